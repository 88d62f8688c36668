//! ConfigMaps with headers that Ingresses of ingress-nginx name: which of their changes matter.

use serde_json::{Value, json};

use super::told::told;
use super::{object, settings};
use crate::index::{Index, Kind, Name};
use crate::translate::{Circumstances, Memory, translate};

#[test]
fn headers_of_a_config_map_are_followed() {
    let settings = settings(&json!({"ingress_nginx": {"config_map": "infra/nginx"}}));
    let mut index = Index::of(&settings);
    let map = |name: &str, namespace: &str, data: Value| json!({"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data});
    let annotations = json!({"nginx.ingress.kubernetes.io/custom-headers": "shop/custom"});
    let paths =
        json!([{"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}}]);
    let objects = [
        json!({"kind": "IngressClass", "metadata": {"name": "nginx"}, "spec": {"controller": "k8s.io/ingress-nginx"}}),
        json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"name": "http", "port": 80}]}}),
        json!({
            "kind": "Ingress",
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example", "http": {"paths": paths}}]},
        }),
        map("nginx", "infra", json!({"global-allowed-response-headers": "X-A"})),
        map("other", "shop", json!({"X-A": "1"})),
    ];
    objects.into_iter().for_each(|value| index.apply(object(value)));
    let mut memory = Memory::default();
    let circumstances = Circumstances { allots: true, ..Circumstances::default() };
    let mut served = |index: &Index| told(&translate(index, &settings, &circumstances, &mut memory));
    assert!(served(&index).contains("status: 503"));
    index.take_changes();

    index.apply(object(map("other", "shop", json!({"X-A": "2"}))));
    assert!(!index.take_changes().all, "nothing names it");
    index.apply(object(map("custom", "shop", json!({"X-A": "1"}))));
    assert!(index.take_changes().all);
    assert!(served(&index).contains("own set[(\"x-a\", Text(\"1\"))]"));
    index.apply(object(map("custom", "shop", json!({"X-A": "1"}))));
    assert!(!index.take_changes().all, "it is the same");
    index.apply(object(map("custom", "shop", json!({"X-A": "2"}))));
    assert!(index.take_changes().all);
    assert!(served(&index).contains("own set[(\"x-a\", Text(\"2\"))]"));
    assert!(index.names(Kind::ConfigMap).contains(&Name::new("shop", "custom")));
    index.remove(Kind::ConfigMap, &Name::new("shop", "custom"));
    assert!(index.take_changes().all);
    assert!(served(&index).contains("status: 503"));
}

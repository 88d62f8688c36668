//! TrafficPolicies: the examples are accepted, and endpoints follow in the clusters of policies.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use super::{index, object, settings};
use crate::index::{Kind, Name};
use crate::translate::{Circumstances, Desired, Memory, Translation, translate};

fn translated(index: &crate::index::Index) -> Translation {
    translate(index, &settings(&json!({})), &Circumstances::default(), &mut Memory::default())
}

fn class() -> Value {
    json!({"kind": "GatewayClass", "metadata": {"name": "steelyard"}, "spec": {"controllerName": "steelyard.io/gateway-controller"}})
}

#[test]
fn the_examples_are_accepted() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/policies.yaml");
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap();
    let namespace = Name::new("", objects[0]["metadata"]["name"].as_str().unwrap());
    objects.push(class());
    let translation = translated(&index(objects));
    let mut count = 0;
    for ((kind, name), desired) in &translation.statuses {
        let Desired::Policy(ancestors) = desired else { continue };
        count += 1;
        assert_eq!((*kind, &name.namespace), (Kind::Traffic, &namespace.name));
        let [ancestor] = ancestors.as_slice() else { panic!("{name}: {ancestors:?}") };
        for condition in &ancestor.conditions {
            assert_eq!(condition.is_true(), condition.kind != "Conflicted", "{name}: {condition:?}");
        }
    }
    assert_eq!(count, 7);
    assert_eq!(translation.notices.len(), 0, "{:?}", translation.notices);
}

#[test]
fn endpoints_follow_in_clusters_of_policies_and_not_in_closed_ones() {
    let slice = |address: &str| {
        let labels = json!({"kubernetes.io/service-name": "web"});
        json!({
            "kind": "EndpointSlice", "metadata": {"name": "web", "labels": labels}, "addressType": "IPv4",
            "ports": [{"port": 8080}], "endpoints": [{"addresses": [address]}],
        })
    };
    let policy = |name: &str, kind: &str, group: &str, target: &str, spec: Value| {
        let mut spec = spec;
        spec["targetRefs"] = json!([{"group": group, "kind": kind, "name": target}]);
        json!({"kind": "TrafficPolicy", "metadata": {"name": name}, "spec": spec})
    };
    let random = json!({"cluster": {"balance": {"algorithm": "random"}}});
    let mut known = index([
        class(),
        json!({"kind": "Gateway", "metadata": {"name": "edge"}, "spec": {"gatewayClassName": "steelyard", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}}),
        json!({"kind": "HTTPRoute", "metadata": {"name": "web"}, "spec": {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}}),
        json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}),
        slice("10.244.0.1"),
        policy("route", "HTTPRoute", "gateway.networking.k8s.io", "web", random.clone()),
    ]);
    let mut translation = translated(&known);
    let found = |translation: &Translation| -> Vec<(String, Vec<String>, bool)> {
        let clusters = translation.snapshot(&settings(&json!({}))).clusters;
        let of_web = clusters.iter().filter(|cluster| cluster.name.starts_with("web."));
        let addresses = |cluster: &model::Cluster| {
            cluster.endpoints.iter().map(|endpoint| format!("{:?}", endpoint.address)).collect::<Vec<_>>()
        };
        of_web
            .map(|cluster| (cluster.name.clone(), addresses(cluster), cluster.algorithm == model::Algorithm::Random))
            .collect()
    };
    let name = "web.shop:80+policy=shop/route".to_owned();
    assert_eq!(found(&translation), [(name.clone(), vec!["Socket(10.244.0.1:8080)".into()], true)]);
    known.take_changes();
    known.apply(object(slice("10.244.0.2")));
    assert!(!known.changes().all, "a change of endpoints translates everything again");
    let changed = BTreeSet::from([Name::new("shop", "web")]);
    assert!(translation.follow(&known, &changed));
    assert_eq!(found(&translation), [(name.clone(), vec!["Socket(10.244.0.2:8080)".into()], true)]);

    // The API server would not take it.
    let wrong = json!({"cluster": {"balance": {"algorithm": "fastest"}}});
    known.apply(object(policy("service", "Service", "", "web", wrong)));
    let mut translation = translated(&known);
    assert_eq!(found(&translation), [(name.clone(), Vec::new(), false)]);
    known.apply(object(slice("10.244.0.3")));
    assert!(!translation.follow(&known, &changed), "a closed cluster gets endpoints");
    assert_eq!(found(&translation), [(name, Vec::new(), false)]);
}

/// As many Gateways as a status has room for, beside the entries of another controller.
#[test]
fn a_status_has_an_end() {
    let mut objects = vec![
        class(),
        json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}),
        json!({
            "kind": "TrafficPolicy", "metadata": {"name": "web"},
            "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": "web"}], "cluster": {"slowStart": "5s"}},
            "status": {"ancestors": [{"ancestorRef": {"name": "x"}, "controllerName": "example.com/other", "conditions": []}]},
        }),
    ];
    let mut parents = Vec::new();
    for number in 0..20 {
        let name = format!("edge-{number}");
        let listeners = json!([{"name": "web", "port": 8000 + number, "protocol": "HTTP"}]);
        parents.push(json!({"name": name}));
        objects.push(json!({"kind": "Gateway", "metadata": {"name": name}, "spec": {"gatewayClassName": "steelyard", "listeners": listeners}}));
    }
    let rules = json!([{"backendRefs": [{"name": "web", "port": 80}]}]);
    objects.push(
        json!({"kind": "HTTPRoute", "metadata": {"name": "web"}, "spec": {"parentRefs": parents, "rules": rules}}),
    );
    let translation = translated(&index(objects));
    let Desired::Policy(ancestors) = &translation.statuses[&(Kind::Traffic, Name::new("shop", "web"))] else {
        panic!("a policy")
    };
    assert_eq!(ancestors.len(), 15);
}

fn web(rules: Value) -> Vec<Value> {
    vec![
        class(),
        json!({"kind": "Gateway", "metadata": {"name": "edge"}, "spec": {"gatewayClassName": "steelyard", "listeners": [{"name": "web", "port": 80, "protocol": "HTTP"}]}}),
        json!({"kind": "HTTPRoute", "metadata": {"name": "web"}, "spec": {"parentRefs": [{"name": "edge"}], "rules": rules}}),
        json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}),
    ]
}

fn of_route(name: &str, route: Value) -> Value {
    let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "web"});
    json!({"kind": "TrafficPolicy", "metadata": {"name": name}, "spec": {"targetRefs": [target], "route": route}})
}

/// The routes that get 500.
fn closed(translation: &Translation) -> usize {
    let snapshot = translation.snapshot(&settings(&json!({})));
    let model::Protocol::Http(http) = &snapshot.listeners[0].protocol else { panic!("HTTP") };
    let is_closed = |route: &&model::Route| route.to.clusters().any(|id| snapshot.clusters[id.0].is_missing);
    http.routes.iter().filter(is_closed).count()
}

#[test]
fn a_target_has_so_many_policies() {
    let backends = json!([{"name": "web", "port": 80}]);
    let mut objects = web(json!([{"backendRefs": backends}]));
    objects.extend((0..16).map(|number| of_route(&format!("p{number:02}"), json!({"timeout": "5s"}))));
    assert_eq!(closed(&translated(&index(objects.clone()))), 0);
    objects.extend((16..20).map(|number| of_route(&format!("p{number:02}"), json!({"deny": ["10.0.0.0/8"]}))));
    let translation = translated(&index(objects));
    assert_eq!(closed(&translation), 1);
    for number in 16..20 {
        let name = Name::new("shop", &format!("p{number}"));
        let Desired::Policy(ancestors) = &translation.statuses[&(Kind::Traffic, name)] else { panic!("a policy") };
        let accepted = &ancestors[0].conditions[0];
        assert_eq!((&*accepted.status, &*accepted.reason), ("False", "Invalid"));
        let expect = "a target has more than 16 TrafficPolicies; requests of the target get 500";
        assert_eq!(&*accepted.message, expect);
    }
}

/// 40 rules with 64 matches, each with 64 pages of 2 KiB: 320 MiB.
#[test]
fn pages_of_all_routes_have_an_end() {
    let matches: Vec<Value> =
        (0..64).map(|number| json!({"path": {"value": format!("/{number}")}, "method": "GET"})).collect();
    let rule = json!({"matches": matches, "backendRefs": [{"name": "web", "port": 80}]});
    let mut objects = web(Value::Array(vec![rule; 40]));
    let page = json!({"status": ["503"], "body": "x".repeat(2048)});
    objects.push(of_route("pages", json!({"errorPages": vec![page; 64]})));
    let translation = translated(&index(objects));
    assert_eq!(closed(&translation), 8 * 64, "256 MiB are for 32 rules");
}

/// A Service that only an Ingress leads to belongs to no Gateway, but its policy applies, or closes it.
#[test]
fn policies_of_services_of_ingresses_are_told() {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let objects = [
        json!({"kind": "IngressClass", "metadata": {"name": "steelyard"}, "spec": {"controller": "steelyard.io/ingress-controller"}}),
        json!({"kind": "Ingress", "metadata": {"name": "web"}, "spec": {"ingressClassName": "steelyard", "defaultBackend": backend}}),
        json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}),
        json!({"kind": "Service", "metadata": {"name": "unused"}, "spec": {"ports": [{"port": 80}]}}),
    ];
    let of_service = |name: &str, cluster: Value| {
        let target = json!({"group": "", "kind": "Service", "name": name});
        json!({"kind": "TrafficPolicy", "metadata": {"name": name}, "spec": {"targetRefs": [target], "cluster": cluster}})
    };
    let told = |cluster: Value| {
        let policies = ["web", "unused"].map(|name| of_service(name, cluster.clone()));
        let translation = translated(&index(objects.iter().cloned().chain(policies)));
        let of = |name: &str| match &translation.statuses[&(Kind::Traffic, Name::new("shop", name))] {
            Desired::Policy(ancestors) => ancestors.to_vec(),
            _ => panic!("a policy"),
        };
        assert_eq!(of("unused").len(), 0, "nothing is sent there");
        let ancestors = of("web");
        let [ancestor] = ancestors.as_slice() else { panic!("{ancestors:?}") };
        assert_eq!((ancestor.ancestor_ref.kind.as_deref(), &*ancestor.ancestor_ref.name), (Some("Service"), "web"));
        ancestor.conditions[0].reason.to_string()
    };
    assert_eq!(told(json!({"slowStart": "5s"})), "Accepted");
    assert_eq!(told(json!({"balance": {"algorithm": "fastest"}})), "Invalid");
}

/// A ReferenceGrant that comes and goes opens and closes the routes of a policy.
#[test]
fn grants_come_and_go() {
    let limit = json!({"globalRateLimit": {"backendRef": {"name": "count", "namespace": "platform", "port": 8081}, "domain": "shop",
        "failOpen": true, "descriptors": [{"entries": [{"clientIp": true}]}]}});
    let mut objects = web(json!([{"backendRefs": [{"name": "web", "port": 80}]}]));
    objects.push(of_route("limit", limit));
    objects.push(json!({"kind": "Service", "metadata": {"name": "count", "namespace": "platform"}, "spec": {"ports": [{"port": 8081}]}}));
    let mut known = index(objects);
    let mut memory = Memory::default();
    let circumstances = Circumstances::default();
    let mut closed_now =
        |known: &crate::index::Index| closed(&translate(known, &settings(&json!({})), &circumstances, &mut memory));
    assert_eq!(closed_now(&known), 1);
    known.take_changes();
    let from = json!([{"group": "steelyard.io", "kind": "TrafficPolicy", "namespace": "shop"}]);
    let to = json!([{"group": "", "kind": "Service", "name": "count"}]);
    known.apply(object(json!({"kind": "ReferenceGrant", "metadata": {"name": "count", "namespace": "platform"}, "spec": {"from": from, "to": to}})));
    assert!(known.changes().all, "a grant has no effect");
    assert_eq!(closed_now(&known), 0);
    known.remove(Kind::Grant, &Name::new("platform", "count"));
    assert_eq!(closed_now(&known), 1);
}

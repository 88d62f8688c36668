//! A few Ingresses of ingress-nginx that are made to be costly.

use serde_json::{Value, json};

use super::{object, settings};
use crate::index::Index;
use crate::translate::{Circumstances, Memory, Translation, translate};

/// An Ingress of one host.
fn ingress(name: &str, annotations: &Value, paths: &[String]) -> Value {
    let service = json!({"name": "web", "port": {"number": 80}});
    let path = |path: &String| json!({"path": path, "pathType": "Prefix", "backend": {"service": service}});
    let paths: Vec<Value> = paths.iter().map(path).collect();
    json!({
        "kind": "Ingress",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example", "http": {"paths": paths}}]},
    })
}

fn served(ingresses: impl IntoIterator<Item = Value>) -> Translation {
    let settings = settings(&json!({"ingress_nginx": {}}));
    let mut index = Index::of(&settings);
    let service = json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    ingresses.into_iter().chain([service]).for_each(|value| index.apply(object(value)));
    translate(&index, &settings, &Circumstances::default(), &mut Memory::default())
}

/// The notices with this text.
fn told(translation: &Translation, text: &str) -> usize {
    translation.notices.iter().filter(|notice| notice.message.contains(text)).count()
}

#[test]
fn names_of_routes_are_bounded() {
    let check = |aliases: usize, expect: usize| {
        let names: Vec<String> = (0..aliases).map(|number| format!("a{number}.example")).collect();
        let annotations = json!({"nginx.ingress.kubernetes.io/server-alias": names.join(",")});
        let paths: Vec<String> = (0..100).map(|number| format!("/{number}")).collect();
        let translation = served([ingress("many", &annotations, &paths)]);
        let snapshot = translation.snapshot(&settings(&Value::Null));
        let routes = snapshot.listeners.iter().flat_map(|listener| match &listener.protocol {
            model::Protocol::Http(http) => &*http.routes,
            _ => [].as_slice(),
        });
        assert_eq!(routes.map(|route| route.hosts.len()).max(), Some(expect), "{aliases}");
        assert_eq!(told(&translation, "server-alias: its names"), usize::from(expect == 1), "{aliases}");
    };
    check(2000, 2001);
    check(4000, 1);
}

#[test]
fn paths_that_are_asked_are_bounded() {
    let asks = |number: usize| {
        let annotations = json!({"nginx.ingress.kubernetes.io/auth-url": format!("https://$host/auth/{number:03}")});
        ingress(&format!("i{number:03}"), &annotations, &[format!("/{number}(.*)")])
    };
    let login = ingress("login", &json!({"nginx.ingress.kubernetes.io/use-regex": "true"}), &["/auth/.*".to_owned()]);
    let translation = served((0..100).map(asks).chain([login]));
    assert_eq!(told(&translation, "auth-url asks more than 64 paths of this host"), 36);
}

#[test]
fn no_annotation_begins_another_line_of_a_head() {
    let prefix = "/x\n\nGET /smuggled HTTP/1.1\nHost: h";
    let annotations = json!({
        "nginx.ingress.kubernetes.io/rewrite-target": "/x",
        "nginx.ingress.kubernetes.io/x-forwarded-prefix": prefix,
    });
    let translation = served([ingress("split", &annotations, &["/a".to_owned()])]);
    assert_eq!(told(&translation, "a value has a line break or another control character"), 1);
    let snapshot = translation.snapshot(&settings(&Value::Null));
    assert!(!format!("{:?}", snapshot.listeners).contains("smuggled"));
}

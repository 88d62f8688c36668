//! A few Ingresses of ingress-nginx that are made to be costly, and what all of their routes have in common.

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
fn hosts_outside_of_the_cluster_are_bounded() {
    let asks = |namespace: usize, number: usize| {
        let url = format!("https://h{namespace}-{number}.example.com/");
        let mut made = ingress(
            &format!("i{number:02}"),
            &json!({"nginx.ingress.kubernetes.io/auth-url": url}),
            &[format!("/{namespace}/{number}")],
        );
        made["metadata"]["namespace"] = json!(format!("n{namespace:02}"));
        made
    };
    let service = |namespace: &str| {
        let metadata = json!({"name": "web", "namespace": namespace});
        json!({"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}})
    };
    let namespaces = (0..40).map(|namespace| service(&format!("n{namespace:02}")));
    let all = (0..40).flat_map(|namespace| (0..40).map(move |number| asks(namespace, number)));
    let translation = served(all.chain(namespaces));
    let outside = |translation: &Translation| -> Vec<std::sync::Arc<model::Cluster>> {
        let clusters = translation.snapshot(&settings(&Value::Null)).clusters;
        clusters.into_iter().filter(|cluster| cluster.outside.is_some()).collect()
    };
    assert_eq!(outside(&translation).len(), 1024);
    // 32 namespaces have as many as they may, and nothing is left for the other 8.
    assert_eq!(told(&translation, "may name 32 hosts outside"), 32 * 8);
    assert_eq!(told(&translation, "may name 1024 hosts outside"), 8 * 40);
    // Each namespace has clusters of its own, and every replica marks its requests alike.
    let mut shared = asks(0, 1);
    shared["metadata"]["namespace"] = json!("other");
    shared["spec"]["rules"][0]["http"]["paths"][0]["path"] = json!("/shared");
    let clusters = outside(&served([asks(0, 1), asks(0, 2), shared, service("n00"), service("other")]));
    let mut names: Vec<&str> = clusters.iter().map(|cluster| &*cluster.name).collect();
    names.sort_unstable();
    let expect = ["n00/https://h0-1", "n00/https://h0-2", "other/https://h0-1"];
    assert_eq!(names, expect.map(|name| format!("outside/{name}.example.com:443")));
    let others = outside(&served([asks(3, 1), service("n03")]));
    let mark = |cluster: &model::Cluster| cluster.outside.as_ref().unwrap().mark.clone();
    assert!(clusters.iter().all(|cluster| mark(cluster) == mark(&others[0])));
}

/// A plan reads expressions and compiles none of them, whose cost nothing would bound. Routes compile them, within the budget of all.
#[test]
fn a_costly_expression_is_refused_where_expressions_are_bounded() {
    let main = ingress("main", &json!({}), &["/a".to_owned()]);
    let annotations = |pattern: &str| {
        json!({
            "nginx.ingress.kubernetes.io/canary": "true",
            "nginx.ingress.kubernetes.io/canary-by-header": "x-a",
            "nginx.ingress.kubernetes.io/canary-by-header-pattern": pattern,
        })
    };
    let check = |pattern: &str, expect: &str| {
        let canary = ingress("canary", &annotations(pattern), &["/a".to_owned()]);
        let translation = served([main.clone(), canary]);
        assert_eq!(told(&translation, "canary-by-header-pattern"), usize::from(!expect.is_empty()), "{pattern}");
        assert!(expect.is_empty() || told(&translation, expect) == 1, "{pattern}: {:?}", translation.notices);
    };
    check("^a$", "");
    check(r"\w{9999}", "is too large");
    check("a(?=b)", "looks around");
}

#[test]
fn no_annotation_begins_another_line_of_a_head() {
    let prefix = "/x\n\nGET /smuggled HTTP/1.1\nHost: h";
    let annotations = json!({
        "nginx.ingress.kubernetes.io/rewrite-target": "/x",
        "nginx.ingress.kubernetes.io/x-forwarded-prefix": prefix,
    });
    let translation = served([ingress("split", &annotations, &["/a".to_owned()])]);
    assert_eq!(told(&translation, "x-forwarded-prefix cannot be read: write a text on one line"), 1);
    assert_eq!(told(&translation, "a value has a line break or another control character"), 0, "the plan refuses it");
    let snapshot = translation.snapshot(&settings(&Value::Null));
    assert!(!format!("{:?}", snapshot.listeners).contains("smuggled"));
}

#[test]
fn no_server_of_an_endpoint_reaches_clients() {
    let check = |data: Value, annotations: Value, removed: bool| {
        let settings = settings(&json!({"ingress_nginx": {"config_map": "shop/nginx"}}));
        let mut index = Index::of(&settings);
        let config = json!({"kind": "ConfigMap", "metadata": {"name": "nginx"}, "data": data});
        let service = json!({"kind": "Service", "metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
        let root = ingress("a", &annotations, &["/a".to_owned()]);
        [config, service, root].into_iter().for_each(|value| index.apply(object(value)));
        let translation = translate(&index, &settings, &Circumstances::default(), &mut Memory::default());
        let snapshot = translation.snapshot(&settings);
        let routes = snapshot.listeners.iter().flat_map(|listener| match &listener.protocol {
            model::Protocol::Http(http) => &*http.routes,
            _ => [].as_slice(),
        });
        let has = |changes: &model::HeaderChanges| changes.remove.iter().any(|name| name == "server");
        let found: Vec<bool> = routes
            .flat_map(|route| [has(&route.policy.own_headers), has(&route.policy.changes.response_headers)])
            .collect();
        assert_eq!(found, [removed; 4], "{data} {annotations}");
    };
    check(json!({}), json!({}), true);
    check(json!({"allow-backend-server-header": "true"}), json!({}), true);
    check(json!({"server-tokens": "true"}), json!({}), true);
    check(json!({"server-tokens": "true", "allow-backend-server-header": "true"}), json!({}), false);
    check(json!({}), json!({"nginx.ingress.kubernetes.io/permanent-redirect": "https://b.example/"}), true);
}

//! What is written in place of Ingresses.

use super::*;
use crate::ingress_nginx::PREFIX;

fn ingress(name: &str, annotations: Value, path: &str) -> Value {
    let annotations: Map<String, Value> =
        annotations.as_object().unwrap().iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())).collect();
    let path =
        json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}});
    json!({
        "kind": "Ingress",
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": {"ingressClassName": "nginx", "rules": [{"host": format!("{name}.example"), "http": {"paths": [path]}}]},
    })
}

fn made(objects: &[Value]) -> Written {
    written(objects, "nginx", ("infra", "edge", "steelyard"), Compat::Safe)
}

#[test]
fn a_prefix_that_is_cut_off() {
    let made = made(&[ingress("a", json!({"rewrite-target": "/$2", "upstream-vhost": "in.example"}), "/api(/|$)(.*)")]);
    assert_eq!(made.lost, [""; 0]);
    let rule = &made.objects[1]["spec"]["rules"][0];
    assert_eq!(rule["matches"], json!([{"path": {"type": "PathPrefix", "value": "/api"}}]));
    let path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"});
    assert_eq!(
        rule["filters"],
        json!([{"type": "URLRewrite", "urlRewrite": {"path": path, "hostname": "in.example"}}])
    );
    let policy = &made.objects[2];
    assert_eq!((&policy["kind"], &policy["spec"]["targetRefs"][0]["name"]), (&json!("TrafficPolicy"), &json!("a")));
    let spec = policy["spec"].as_object().unwrap();
    assert!(config::TrafficPolicy::read(spec).is_ok());
}

#[test]
fn what_keeps_somebody_out_is_not_lost_in_silence() {
    let made = made(&[
        ingress("a", json!({"auth-tls-secret": "shop/ca"}), "/"),
        ingress("b", json!({"rewrite-target": "/x/$1"}), "/b/(.*)"),
        ingress("c", json!({"custom-http-errors": "404"}), "/"),
        ingress("d", json!({"permanent-redirect": "https://new.example/x"}), "/"),
    ]);
    let names: Vec<&str> = made
        .objects
        .iter()
        .filter(|object| object["kind"] == "HTTPRoute")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["d", "c"]);
    for part in
        ["shop/a: nothing of it is written: auth-tls-secret", "a rewrite to /x/$1", "shop/c: custom-http-errors"]
    {
        assert!(made.lost.iter().any(|lost| lost.contains(part)), "{part}: {:?}", made.lost);
    }
}

#[test]
fn canaries() {
    let mut canary =
        ingress("canary", json!({"canary": "true", "canary-weight": "30", "canary-by-header": "x-next"}), "/");
    canary["spec"]["rules"][0]["host"] = json!("a.example");
    canary["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = json!("next");
    let made = made(&[ingress("a", json!({}), "/"), canary]);
    let rules = made.objects[1]["spec"]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 3);
    let weights: Vec<(&str, u64)> = rules[2]["backendRefs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|to| (to["name"].as_str().unwrap(), to["weight"].as_u64().unwrap()))
        .collect();
    assert_eq!(weights, [("web", 70), ("next", 30)]);
}

#[test]
fn many_certificates_of_another_namespace() {
    let secured = |number: usize| {
        let mut ingress = ingress(&format!("a{number}"), json!({}), "/");
        let host = ingress["spec"]["rules"][0]["host"].clone();
        ingress["spec"]["tls"] = json!([{"hosts": [host], "secretName": format!("s{number}")}]);
        ingress
    };
    let objects: Vec<Value> = (0..70).map(secured).collect();
    let made = made(&objects);
    assert_eq!(made.lost, [""; 0]);
    let of_kind = |kind: &str| made.objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
    let listeners = |object: &Value| object["spec"]["listeners"].as_array().unwrap().len();
    assert_eq!(of_kind("Gateway").iter().map(|object| listeners(object)).collect::<Vec<_>>(), [64]);
    assert_eq!(of_kind("ListenerSet").iter().map(|object| listeners(object)).collect::<Vec<_>>(), [7]);
    let grants = of_kind("ReferenceGrant");
    assert_eq!(grants.len(), 10, "70 Secrets for each of two kinds");
    assert!(grants.iter().all(|grant| grant["metadata"]["namespace"] == "shop"));
    // Names of hosts are sorted as texts: a69.example is the last but three.
    let route = made.objects.iter().find(|object| object["metadata"]["name"] == "a69").unwrap();
    let parent = &route["spec"]["parentRefs"][0];
    assert_eq!((&parent["kind"], &parent["name"]), (&json!("ListenerSet"), &json!("edge-1")));
    let filters = route["spec"]["rules"][0]["filters"].to_string();
    assert!(filters.contains("strict-transport-security"), "{filters}");
    let redirect = made.objects.iter().find(|object| object["metadata"]["name"] == "a69-to-https").unwrap();
    assert_eq!(redirect.pointer("/spec/rules/0/filters/0/requestRedirect/statusCode"), Some(&json!(308)));
    // The names of all objects of a kind differ.
    let names: BTreeSet<String> =
        made.objects.iter().map(|object| format!("{} {}", object["kind"], object["metadata"])).collect();
    assert_eq!(names.len(), made.objects.len());
}

#[test]
fn a_host_without_a_certificate_is_not_redirected_to_nowhere() {
    let made = made(&[ingress("a", json!({"force-ssl-redirect": "true"}), "/")]);
    assert!(made.leaves_out && made.lost.iter().any(|lost| lost.contains("there is no certificate")));
}

#[test]
fn services_over_tls_need_a_policy() {
    let made = made(&[
        ingress("a", json!({"auth-url": "https://auth.shop.svc/check"}), "/"),
        ingress("b", json!({"mirror-target": "https://copy.shop.svc"}), "/"),
        ingress("c", json!({"auth-url": "http://auth.shop.svc/check", "mirror-target": "http://copy.shop.svc"}), "/"),
    ]);
    let of: Vec<&String> = made.lost.iter().filter(|lost| lost.contains("BackendTLSPolicy")).collect();
    assert_eq!(of.len(), 2, "{of:?}");
    for part in ["shop/a: auth-url: TLS", "shop/b: mirror-target: TLS"] {
        assert!(of.iter().any(|lost| lost.contains(part)), "{of:?}");
    }
}

//! Annotations whose effect is no directive of nginx: ingress-nginx passes TLS through in Go, and chooses endpoints in Lua. The built program serves
//! Ingresses with them from the API server of these tests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use testkit::client;
use testkit::strict::{ResponseTo, values};

use crate::support::{Scratch, skip};
use crate::tls::{Pki, Tls};
use crate::{API, MAIN, SECURE, STEELYARD, controller, endpoint, lacking, namespace, port_80, until_ready};

/// The endpoints of the Service `many`.
const MANY: [(&str, &str); 9] = [
    ("10.9.2.1", "1"),
    ("10.9.2.2", "2"),
    ("10.9.2.3", "3"),
    ("10.9.2.4", "4"),
    ("10.9.2.5", "5"),
    ("10.9.2.6", "6"),
    ("10.9.2.7", "7"),
    ("10.9.2.8", "8"),
    ("10.9.2.9", "9"),
];

/// Requests for one key: that one of its three endpoints gets none of them by chance has a probability of less than 10^-16.
const REQUESTS: usize = 100;

fn object(name: &str, rest: Value) -> Value {
    let mut object = json!({"metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1"}});
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

/// An Ingress of the host `NAME.example`, whose `/` leads to the port of the Service `NAME`.
fn ingress(name: &str, annotations: &[(&str, &str)], port: u16, tls: &Value) -> Value {
    let annotations: BTreeMap<String, &str> =
        annotations.iter().map(|(key, value)| (format!("nginx.ingress.kubernetes.io/{key}"), *value)).collect();
    let host = format!("{name}.example");
    let path =
        json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": name, "port": {"number": port}}}});
    let rules = json!([{"host": host, "http": {"paths": [path]}}]);
    let mut object = object(name, json!({"spec": {"ingressClassName": "nginx", "rules": rules, "tls": tls}}));
    object["metadata"]["annotations"] = json!(annotations);
    object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    object
}

/// The kinds that the controller watches: an Ingress with `ssl-passthrough`, one whose host is terminated, and one with a hash.
fn objects(pki: &Pki) -> BTreeMap<String, Vec<Value>> {
    let services: [(&str, Vec<&str>, u16); 3] = [
        ("vault", vec![SECURE], 443),
        ("web", vec![MAIN], 80),
        ("many", MANY.map(|(address, _)| address).to_vec(), 80),
    ];
    let service = |(name, _, port): &(&str, Vec<&str>, u16)| {
        let ports = json!([{"name": "p", "port": port, "targetPort": port, "protocol": "TCP"}]);
        object(name, json!({"spec": {"clusterIP": "10.96.0.1", "type": "ClusterIP", "ports": ports}}))
    };
    let slice = |(name, addresses, port): &(&str, Vec<&str>, u16)| {
        let endpoints: Vec<Value> =
            addresses.iter().map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
        let ports = json!([{"name": "p", "port": port, "protocol": "TCP"}]);
        let mut slice = object(name, json!({"addressType": "IPv4", "endpoints": endpoints, "ports": ports}));
        slice["metadata"]["labels"] = json!({"kubernetes.io/service-name": name});
        slice
    };
    let pem = |name: &str| STANDARD.encode(std::fs::read_to_string(pki.path(name)).unwrap());
    let site = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": pem("site.pem"), "tls.key": pem("site.key")}});
    let subsets = [
        ("upstream-hash-by", "$http_x_key"),
        ("upstream-hash-by-subset", "true"),
        ("upstream-hash-by-subset-size", "3"),
    ];
    let ingresses = vec![
        ingress("vault", &[("ssl-passthrough", "true")], 443, &Value::Null),
        ingress("web", &[], 80, &json!([{"hosts": ["web.example"], "secretName": "site"}])),
        ingress("many", &subsets, 80, &Value::Null),
    ];
    let class = json!({"metadata": {"name": "nginx", "uid": "nginx", "resourceVersion": "1"}, "spec": {"controller": "k8s.io/ingress-nginx"}});
    [
        ("ingresses", ingresses),
        ("ingressclasses", vec![class]),
        ("services", services.iter().map(service).collect()),
        ("endpointslices", services.iter().map(slice).collect()),
        ("secrets", vec![object("site", site)]),
        ("configmaps", vec![object("nginx", json!({"data": {}}))]),
        ("namespaces", vec![json!({"metadata": {"name": "default", "uid": "default", "resourceVersion": "1"}})]),
        ("customresourcedefinitions", vec![]),
    ]
    .map(|(plural, objects)| (plural.to_owned(), objects))
    .into()
}

/// The names of the endpoints that get the requests with a key.
fn reached(key: &str) -> BTreeSet<String> {
    let mut conn = client::connect("client", port_80(STEELYARD), None).unwrap();
    let mut one = || {
        conn.send(format!("GET / HTTP/1.1\r\nHost: many.example\r\nX-Key: {key}\r\n\r\n").as_bytes()).unwrap();
        let response = conn.response(ResponseTo::Other).unwrap();
        assert_eq!(response.status, 200, "{key}");
        String::from_utf8_lossy(values(&response.headers, "x-endpoint")[0]).into_owned()
    };
    (0..REQUESTS).map(|_| one()).collect()
}

#[test]
fn tls_passes_through_and_a_key_has_one_subset() {
    if let Some(why) = lacking() {
        return skip("tls_passes_through_and_a_key_has_one_subset", why);
    }
    let (netns, scratch) = (namespace("alone"), Scratch::new());
    let [site, vault] = ["site", "vault"].map(|name| Pki::new(&scratch.path().join(name)));
    site.issue("site", &["web.example"]);
    vault.issue("vault", &["vault.example"]);
    let secure = SocketAddr::new(SECURE.parse().unwrap(), 443);
    netns.inside(|| {
        endpoint::start(port_80(MAIN), "main");
        MANY.iter().for_each(|(address, name)| endpoint::start(port_80(address), name));
        vault.origin_at(secure, "vault", None);
        crate::api::start(API.parse().unwrap(), objects(&site));
    });
    let mut controller = controller(&netns, &scratch, &["--ingress-nginx-ssl-passthrough"]);
    until_ready(&netns, &mut controller);
    netns.inside(|| {
        let https = SocketAddr::new(STEELYARD.parse().unwrap(), 443);
        // The certificate tells who has ended TLS, and the endpoint says what it has got.
        let get = |pki: &Pki, host: &str| {
            let mut tls = Tls::connect(&pki.client(None), https, host).unwrap();
            let (status, body) = tls.get(host, "/a").unwrap();
            assert_eq!(status, 200, "{host}");
            (tls.shown(), String::from_utf8(body).unwrap())
        };
        let (shown, body) = get(&vault, "vault.example");
        assert_eq!(shown, vault.certificate("vault"));
        assert_eq!(body, "sni vault.example\nGET /a HTTP/1.1\r\nHost: vault.example\r\n\r\n", "nobody has touched it");
        let (shown, body) = get(&site, "web.example");
        assert_eq!((shown, body.as_str()), (site.certificate("site"), "GET /a\n"));

        let subsets: Vec<BTreeSet<String>> = (0..40).map(|key| reached(&format!("key-{key}"))).collect();
        assert!(subsets.iter().all(|subset| subset.len() == 3), "{subsets:?}");
        assert_eq!(reached("key-0"), subsets[0], "the same from another connection");
        let all: BTreeSet<&String> = subsets.iter().flatten().collect();
        assert_eq!(all.len(), MANY.len(), "{subsets:?}");
    });
}

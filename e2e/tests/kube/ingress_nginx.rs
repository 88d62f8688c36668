//! Ingresses of ingress-nginx on a real API server, with the rights of the chart: what is served, and what is closed and told.

use serde_json::{Value, json};
use testkit::strict::{Response, ResponseTo};
use testkit::{Signal, client, until};

use crate::edge::{Edge, answer, ask, gateway, header, origin, within};
use crate::harness::{GATEWAY, PATIENCE};
use crate::support::{Origin, Scratch, Steelyard};
use crate::tls::{Pki, Tls};

const PREFIX: &str = "nginx.ingress.kubernetes.io";

/// An Ingress of the class `nginx` for one path of a host, with these annotations.
pub fn ingress(edge: &Edge, name: &str, annotations: &Value, (host, path, kind): (&str, &str, &str), service: &str) {
    let annotations: serde_json::Map<String, Value> = annotations
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (format!("{PREFIX}/{key}"), value.clone()))
        .collect();
    let path =
        json!({"path": path, "pathType": kind, "backend": {"service": {"name": service, "port": {"number": 80}}}});
    edge.cluster.apply(
        &json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"ingressClassName": "nginx", "rules": [{"host": host, "http": {"paths": [path]}}]},
        })
        .to_string(),
    );
}

/// The IngressClass of ingress-nginx, which is the same for all tests, and two Services with an origin each.
pub fn prepared(edge: &Edge) -> [Origin; 2] {
    edge.cluster.apply(
        "{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {name: nginx}, spec: {controller: k8s.io/ingress-nginx}}",
    );
    let origins = [1, 2].map(origin);
    edge.service("web", &[origins[0].address]);
    edge.service("other", &[origins[1].address]);
    origins
}

pub const PREFIXED: &str = "Prefix";
pub const ANY: &str = "ImplementationSpecific";

#[track_caller]
pub fn until_answer(host: &str, path: &str, expect: (u16, &str)) {
    let is_so = || {
        let (status, from) = answer(gateway(80), host, path);
        ((status, from.as_str()) == expect).then_some(())
    };
    if until(PATIENCE, is_so).is_none() {
        panic!("{host}{path} is {:?} and not {expect:?}", answer(gateway(80), host, path));
    }
}

fn ask_with(host: &str, path: &str, fields: &str) -> Response {
    let mut conn = client::connect("client", gateway(80), None).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{fields}Connection: close\r\n\r\n");
    conn.send(request.as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap()
}

fn post(host: &str, path: &str, body: &str) -> Response {
    let mut conn = client::connect("client", gateway(80), None).unwrap();
    let head =
        format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    conn.send(format!("{head}{body}").as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap()
}

/// Ends a controller as a cluster does: it gives its Lease back.
fn stop(mut controller: Steelyard) {
    controller.program.signal(Signal::TERM).unwrap();
    controller.program.exit_within(PATIENCE).unwrap();
}

#[test]
fn ingresses_of_ingress_nginx() {
    within("ingresses_of_ingress_nginx", |edge| {
        let _origins = prepared(edge);
        ingress(edge, "rewritten", &json!({"rewrite-target": "/$2"}), ("a.example", "/app(/|$)(.*)", ANY), "web");
        ingress(edge, "open", &json!({"whitelist-source-range": "10.244.0.0/16"}), ("b.example", "/", PREFIXED), "web");
        ingress(edge, "shut", &json!({"whitelist-source-range": "192.0.2.0/24"}), ("c.example", "/", PREFIXED), "web");
        ingress(edge, "main", &json!({}), ("d.example", "/", PREFIXED), "web");
        let canary = json!({"canary": "true", "canary-by-header": "x-next"});
        ingress(edge, "canary", &canary, ("d.example", "/", PREFIXED), "other");
        // It holds for the whole host, and so for the other Ingress of it.
        ingress(edge, "passed", &json!({"ssl-passthrough": "true"}), ("e.example", "/a", PREFIXED), "web");
        ingress(edge, "beside", &json!({}), ("e.example", "/b", PREFIXED), "web");
        ingress(edge, "firewall", &json!({"enable-modsecurity": "true"}), ("f.example", "/", PREFIXED), "web");
        // An older annotation names the class, and an Ingress without rules has the default backend of all hosts.
        edge.cluster.apply(
            "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: rest, annotations: {kubernetes.io/ingress.class: nginx}}, \
             spec: {defaultBackend: {service: {name: other, port: {number: 80}}}}}",
        );
        let controller = edge.controller_with("one", &["--listen-address", GATEWAY, "--ingress-nginx"]);
        until_answer("b.example", "/", (200, "pod-1"));
        assert_eq!(post("a.example", "/app/echo", "hello").body, b"hello", "the origin echoes at /echo");
        assert_eq!(answer(gateway(80), "c.example", "/").0, 403);
        assert_eq!(answer(gateway(80), "d.example", "/"), (200, "pod-1".into()));
        assert_eq!(header(&ask_with("d.example", "/", "X-Next: always\r\n"), "x-origin"), "pod-2");
        assert_eq!(answer(gateway(80), "nobody.example", "/"), (200, "pod-2".into()));
        for (host, path) in [("e.example", "/a"), ("e.example", "/b"), ("f.example", "/")] {
            assert_eq!(answer(gateway(80), host, path).0, 403, "{host}{path}");
        }
        let told = edge.cluster.until_event("Ingress", "beside", "Closed");
        assert!(told.contains("e.example") && told.contains("ssl-passthrough") && told.contains("/passed"), "{told}");
        assert!(edge.cluster.until_event("Ingress", "firewall", "Closed").contains("web application firewall"));
        let status = controller.status();
        let faults = status["service_faults"].as_array().into_iter().flatten().map(Value::to_string);
        let faults: Vec<String> = faults.collect();
        assert!(faults.iter().any(|fault| fault.contains("/firewall") && fault.contains("Closed")), "{faults:?}");
        edge.cluster.until("told of its address", "Ingress", "main", |ingress| {
            ingress["status"]["loadBalancer"]["ingress"][0]["ip"] == GATEWAY
        });
    });
}

/// Who is to be kept out may be in a ConfigMap that is not there, or may not be read: everything is closed until it can be.
#[test]
fn the_config_map_of_ingress_nginx() {
    within("the_config_map_of_ingress_nginx", |edge| {
        let _origins = prepared(edge);
        ingress(edge, "web", &json!({}), ("a.example", "/", PREFIXED), "web");
        let config_map = format!("{}/nginx-configuration", edge.name);
        let arguments = ["--listen-address", GATEWAY, "--ingress-nginx", "--ingress-nginx-configmap", &config_map];
        edge.limit(&[("list", "configmaps")]);
        {
            let controller = edge.controller_by(&edge.limited(), "limited", &arguments);
            until_answer("a.example", "/", (403, ""));
            let told = edge.cluster.until_event("Ingress", "web", "Closed");
            assert!(told.contains("may not list or watch ConfigMap"), "{told}");
            stop(controller);
        }
        let _controller = edge.controller_with("one", &arguments);
        until_answer("a.example", "/", (403, ""));
        edge.cluster.until_event_with("Ingress", "web", "Closed", "there is no ConfigMap");
        let put = |data: &str| {
            edge.cluster.apply(&format!(
                "{{apiVersion: v1, kind: ConfigMap, metadata: {{name: nginx-configuration}}, data: {{{data}}}}}"
            ));
        };
        put("hsts: 'false'");
        until_answer("a.example", "/", (200, "pod-1"));
        put("whitelist-source-range: 192.0.2.0/24");
        until_answer("a.example", "/", (403, ""));
    });
}

/// Another class, by its name, a certificate for hosts without one of their own, and certificates of clients.
#[test]
fn certificates_of_ingress_nginx() {
    within("certificates_of_ingress_nginx", |edge| {
        let _origins = prepared(edge);
        let scratch = Scratch::new();
        let pki = Pki::new(scratch.path());
        for name in ["default.example", "client.example"] {
            pki.issue(name, &[name, "a.example", "b.example"]);
        }
        let read = |file: &str| std::fs::read_to_string(pki.path(file)).unwrap();
        let secret = |name: &str, kind: &str, data: Value| {
            let object = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": data});
            edge.cluster.apply(&object.to_string());
        };
        let pair = json!({"tls.crt": read("default.example.pem"), "tls.key": read("default.example.key")});
        secret("default", "kubernetes.io/tls", pair);
        secret("ca", "Opaque", json!({"ca.crt": read("ca.pem")}));
        let own = format!("{}-own", edge.name);
        edge.cluster.apply(&format!(
            "{{apiVersion: networking.k8s.io/v1, kind: IngressClass, metadata: {{name: {own}}}, spec: {{controller: k8s.io/ingress-nginx}}}}"
        ));
        for (name, host, key) in [("open", "a.example", None), ("asked", "b.example", Some("auth-tls-secret"))] {
            let annotations = json!(
                key.map(|key| (key.to_owned(), format!("{}/ca", edge.name)))
                    .into_iter()
                    .collect::<std::collections::BTreeMap<_, _>>()
            );
            ingress(edge, name, &annotations, (host, "/", PREFIXED), "web");
            edge.cluster.patch("Ingress", name, json!({"spec": {"ingressClassName": own, "tls": [{"hosts": [host]}]}}));
        }
        ingress(edge, "foreign", &json!({}), ("c.example", "/", PREFIXED), "web");
        let certificate = format!("{}/default", edge.name);
        let arguments = [
            "--listen-address",
            GATEWAY,
            "--ingress-nginx",
            "--ingress-class",
            &own,
            "--default-certificate",
            &certificate,
        ];
        let _controller = edge.controller_with("one", &arguments);
        let over_tls = |host: &str, shows: Option<(&Pki, &str)>| {
            let mut tls = Tls::connect(&pki.client(shows), gateway(443), host).ok()?;
            tls.get(host, "/").ok().map(|(status, _)| status)
        };
        let is_served = || over_tls("a.example", None).filter(|status| *status == 200);
        assert!(until(PATIENCE, is_served).is_some(), "a.example has the default certificate");
        let redirected = ask(gateway(80), "a.example", "/x?y");
        assert_eq!((redirected.status, header(&redirected, "location")), (308, "https://a.example/x?y".into()));
        assert_eq!(over_tls("b.example", Some((&pki, "client.example"))), Some(200));
        assert_eq!(over_tls("b.example", None), Some(400), "a client without a certificate");
        assert_eq!(answer(gateway(80), "b.example", "/").0, 308);
        assert_eq!(answer(gateway(80), "c.example", "/").0, 404, "it is of another class");
    });
}

/// Ingresses with a certificate each, more than a Gateway has listeners, and others with annotations.
fn to_be_rewritten(namespace: &str) -> Vec<Value> {
    let path = |path: &str| json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}});
    let mut items: Vec<Value> = (0..80)
        .map(|number| {
            let host = format!("h{number}.example");
            json!({
                "apiVersion": "networking.k8s.io/v1",
                "kind": "Ingress",
                "metadata": {"name": format!("i{number}"), "namespace": namespace},
                "spec": {
                    "ingressClassName": "nginx",
                    "tls": [{"hosts": [host], "secretName": format!("s{number}")}],
                    "rules": [{"host": host, "http": {"paths": [path("/")]}}],
                },
            })
        })
        .collect();
    let annotated = |name: &str, annotations: Value, paths: &[&str]| {
        let annotations: serde_json::Map<String, Value> = annotations
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (format!("{PREFIX}/{key}"), value.clone()))
            .collect();
        let paths: Vec<Value> = paths.iter().map(|text| path(text)).collect();
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
            "spec": {"ingressClassName": "nginx", "rules": [{"host": format!("{name}.example"), "http": {"paths": paths}}]},
        })
    };
    items.extend([
        annotated("cut", json!({"rewrite-target": "/$2", "upstream-vhost": "in.example"}), &["/api(/|$)(.*)"]),
        annotated("regex", json!({"use-regex": "true", "enable-cors": "true"}), &["/a/[0-9]+", "/b"]),
        annotated(
            "moved",
            json!({"permanent-redirect": "https://new.example/x", "permanent-redirect-code": "308"}),
            &["/"],
        ),
        annotated(
            "limited",
            json!({"limit-rps": "5", "whitelist-source-range": "10.0.0.0/8", "affinity": "cookie"}),
            &["/"],
        ),
        annotated(
            "aliases",
            json!({"server-alias": (0..20).map(|n| format!("alias{n}.example")).collect::<Vec<_>>().join(",")}),
            &["/"],
        ),
    ]);
    items
}

/// What `migrate --to gateway-api` writes is taken by the API server.
#[test]
fn objects_of_the_gateway_api_from_ingresses() {
    within("objects_of_the_gateway_api_from_ingresses", |edge| {
        let scratch = Scratch::new();
        let items = to_be_rewritten(&edge.name);
        let file =
            scratch.write("ingresses.json", &json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
        let gateway = format!("{}-edge/edge", edge.name);
        let written =
            crate::support::run(&["migrate", "ingress-nginx", &file, "--to", "gateway-api", "--gateway", &gateway]);
        let objects = crate::harness::documents(&written.stdout);
        let count = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!((count("Gateway"), count("ListenerSet")), (1, 1), "{}", written.stderr);
        assert!(count("ReferenceGrant") > 0);
        edge.cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {}-edge}}}}", edge.name));
        for object in &objects {
            if let Err(why) = edge.cluster.dry_run(object) {
                panic!("{why}\n{object:#}");
            }
        }
        let redirects =
            objects.iter().filter_map(|object| object.pointer("/spec/rules/0/filters/0/requestRedirect/statusCode"));
        assert!(redirects.clone().count() > 80 && redirects.into_iter().all(|status| *status == 308));
    });
}

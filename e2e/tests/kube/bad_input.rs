//! What people write that cannot be: it is said in a status or an Event, the rest is served, and the data plane is the same process throughout.

use std::fmt::Write;

use serde_json::{Value, json};
use testkit::{PATIENCE, until};

use crate::edge::{Edge, answer, api_server, ask, fails, gateway, holds, origin, until_endpoints, within};
use crate::harness::{GATEWAY, condition};
use crate::support::echo::Echo;
use crate::support::{Load, Scratch, Steelyard, get};
use crate::tls::{Pki, Tls};

/// Hosts of one listener.
const HOSTS: usize = 10_000;
/// Hosts of one Ingress: an object of more than a megabyte is refused by the API server.
const HOSTS_OF_AN_INGRESS: usize = 2_000;

/// Waits until a condition of a route fails for this reason, and an Event says so.
#[track_caller]
fn until_fails(edge: &Edge, kind: &str, name: &str, condition: &str, reason: &str) {
    edge.cluster.until(reason, kind, name, |route| fails(route, &route["status"]["parents"][0], condition) == reason);
    edge.cluster.until_event(kind, name, reason);
}

/// It is the process that was started, and serves.
fn is_the_same(controller: &Steelyard) {
    assert_eq!(controller.status()["pid"], controller.program.pid());
}

#[test]
fn two_routes_that_conflict() {
    within("two_routes_that_conflict", |edge| {
        let (pods, _echo) = ([1, 2].map(origin), Echo::start());
        edge.gateway("{name: web, port: 80, protocol: HTTP}\n{name: echo, port: 7000, protocol: TCP}");
        for (name, pod) in ["older", "younger"].iter().zip(&pods) {
            edge.service(name, &[pod.address]);
            edge.route("HTTPRoute", name, &format!("rules: [{{backendRefs: [{{name: {name}, port: 80}}]}}]"));
            edge.route("TCPRoute", name, &format!("rules: [{{backendRefs: [{{name: {name}, port: 80}}]}}]"));
            edge.cluster.apply(&format!(
                "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: {name}}}
spec:
  ingressClassName: {}
  rules: [{{host: shop.example.com, http: {{paths: [{{path: /only, pathType: Prefix, backend: {{service: {{name: {name}, port: {{number: 80}}}}}}}}]}}}}]
",
                edge.name
            ));
        }
        let controller = edge.controller();
        edge.until_served("HTTPRoute", "older");
        edge.cluster.until("told of the older", "HTTPRoute", "younger", |route| {
            holds(route, &route["status"]["parents"][0], &["Accepted", "steelyard.io/Overlapped"])
        });
        edge.cluster.until_event("HTTPRoute", "younger", "OlderRoute");
        for _ in 0..20 {
            assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));
        }
        edge.until_served("TCPRoute", "older");
        edge.cluster.until("told of the older", "TCPRoute", "younger", |route| {
            holds(route, &route["status"]["parents"][0], &["Accepted", "steelyard.io/Overlapped"])
        });
        edge.cluster.until_event("TCPRoute", "younger", "OlderRoute");
        let why = edge.cluster.until_event("Ingress", "younger", "Conflicted");
        assert!(why.contains("older"), "{why}");
        assert_eq!(answer(gateway(80), "shop.example.com", "/only"), (200, "pod-1".into()));
        // The older goes, and the younger has it all.
        for kind in ["HTTPRoute", "TCPRoute", "Ingress"] {
            edge.cluster.delete(kind, "older");
        }
        edge.until_served("TCPRoute", "younger");
        let is_moved = || (answer(gateway(80), "a", "/").1 == "pod-2").then_some(());
        assert!(until(PATIENCE, is_moved).is_some());
        is_the_same(&controller);
    });
}

/// Each is on the page with its condition; that of an Ingress has none.
fn are_on_the_page(edge: &Edge, controller: &Steelyard) {
    let page = String::from_utf8(get(controller.admin, "/").unwrap().body).unwrap();
    for (kind, name, condition, reason) in [
        ("HTTPRoute", "ungranted", "ResolvedRefs", "RefNotPermitted"),
        ("HTTPRoute", "missing", "ResolvedRefs", "BackendNotFound"),
        ("Ingress", "port", "(Event)", "BackendNotFound"),
    ] {
        let object = format!("{kind} {}/{name}", edge.name);
        let row = format!("<td class=\"name\">{object}</td><td>{condition}</td><td>{reason}</td>");
        assert!(page.contains(&row), "{row}: {page}");
    }
}

#[test]
fn references_that_lead_nowhere() {
    within("references_that_lead_nowhere", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let data = format!("{}-data", edge.name);
        edge.cluster.apply(&format!(
            "
apiVersion: v1
kind: Namespace
metadata: {{name: {data}}}
---
apiVersion: v1
kind: Service
metadata: {{name: db, namespace: {data}}}
spec: {{clusterIP: None, ports: [{{port: 80}}]}}
"
        ));
        let to = |name: &str, backend: &str| {
            let rule = format!("rules: [{{matches: [{{path: {{value: /{name}}}}}], backendRefs: [{backend}]}}]");
            edge.route("HTTPRoute", name, &rule);
        };
        to("ungranted", &format!("{{name: db, namespace: {data}, port: 80}}"));
        to("missing", "{name: missing, port: 80}");
        to("port", "{name: web, port: 81}");
        to("kind", "{group: example.com, kind: Bucket, name: web}");
        edge.service("empty", &[]);
        to("empty", "{name: empty, port: 80}");
        let backend = json!({"service": {"name": "web", "port": {"name": "unknown"}}});
        let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
        let spec =
            json!({"ingressClassName": edge.name, "rules": [{"host": "in.example.com", "http": {"paths": paths}}]});
        let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "port"}, "spec": spec});
        edge.cluster.apply(&ingress.to_string());
        // The namespaces of both: a reference into one that is not watched could not be told from one that leads nowhere.
        let controller = edge.controller_with("one", &["--listen-address", GATEWAY, "--namespace", &data]);
        let check = |name: &str, reason: &str, status: u16| {
            until_fails(edge, "HTTPRoute", name, "ResolvedRefs", reason);
            assert_eq!(ask(gateway(80), "a", &format!("/{name}")).status, status, "{name}");
        };
        check("ungranted", "RefNotPermitted", 500);
        check("missing", "BackendNotFound", 500);
        check("port", "BackendNotFound", 500);
        check("kind", "InvalidKind", 500);
        edge.until_served("HTTPRoute", "empty");
        assert_eq!(ask(gateway(80), "a", "/empty").status, 503);
        edge.cluster.until_event("Service", "empty", "NoEndpoints");
        let why = edge.cluster.until_event("Ingress", "port", "BackendNotFound");
        assert!(why.contains("unknown"), "{why}");
        assert!(ask(gateway(80), "in.example.com", "/").status >= 500);
        are_on_the_page(edge, &controller);
        // The others do not suffer from it.
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));

        edge.cluster.apply(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: ReferenceGrant
metadata: {{name: routes, namespace: {data}}}
spec:
  from: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: {}}}]
  to: [{{group: '', kind: Service}}]
",
            edge.name
        ));
        edge.until_served("HTTPRoute", "ungranted");
        // Granted, and without endpoints.
        assert_eq!(ask(gateway(80), "a", "/ungranted").status, 503);
        api_server().admin(&data).delete("ReferenceGrant", "routes");
        check("ungranted", "RefNotPermitted", 500);
        is_the_same(&controller);
    });
}

#[test]
fn a_certificate_that_is_none() {
    within("a_certificate_that_is_none", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        edge.gateway(
            "{name: web, port: 80, protocol: HTTP}
             {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: broken}]}}",
        );
        let broken = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "broken"}, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": "none", "tls.key": "none"},
        });
        edge.cluster.apply(&broken.to_string());
        let controller = edge.controller();
        let listener = |gateway: &Value| gateway["status"]["listeners"][1].clone();
        edge.cluster.until("told of its certificate", "Gateway", "edge", |gateway| {
            fails(gateway, &listener(gateway), "ResolvedRefs") == "InvalidCertificateRef"
                && fails(gateway, &listener(gateway), "Programmed") == "Invalid"
                && holds(gateway, &gateway["status"], &["Accepted", "Programmed"])
        });
        edge.cluster.until_event("Gateway", "edge", "InvalidCertificateRef");
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));
        let scratch = Scratch::new();
        let pki = Pki::new(scratch.path());
        pki.issue("good", &["shop.example.com"]);
        edge.secret("broken", &pki, "good");
        edge.cluster.until("good", "Gateway", "edge", |gateway| {
            holds(gateway, &listener(gateway), &["ResolvedRefs", "Programmed"])
        });
        let mut tls = Tls::connect(&pki.client(None), gateway(443), "shop.example.com").unwrap();
        assert_eq!(tls.get("shop.example.com", "/").unwrap().0, 200);
        is_the_same(&controller);
    });
}

/// A rule with a filter that nobody knows here may be what protects its endpoints. The rule below must not take its requests.
#[test]
fn a_rule_that_cannot_be_served_lets_nothing_through() {
    within("a_rule_that_cannot_be_served_lets_nothing_through", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let with = |filters: &str| {
            let admin = format!(
                "{{matches: [{{path: {{value: /admin}}}}], filters: [{filters}], backendRefs: [{{name: web, port: 80}}]}}"
            );
            edge.route("HTTPRoute", "web", &format!("rules: [{admin}, {{backendRefs: [{{name: web, port: 80}}]}}]"));
        };
        with("{type: ExtensionRef, extensionRef: {group: example.com, kind: Login, name: staff}}");
        let controller = edge.controller();
        let told = edge.cluster.until("told of its rule", "HTTPRoute", "web", |route| {
            holds(route, &route["status"]["parents"][0], &["Accepted", "ResolvedRefs", "PartiallyInvalid"])
        });
        let told = condition(&told["status"]["parents"][0], "PartiallyInvalid").unwrap()["message"].to_string();
        assert!(told.contains("rule 0: the filter ExtensionRef is not supported; its requests get 500"), "{told}");
        for path in ["/admin", "/admin/users"] {
            assert_eq!(answer(gateway(80), "a", path), (500, String::new()), "{path}");
        }
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));
        with("");
        let is_served = || (answer(gateway(80), "a", "/admin") == (200, "pod-1".into())).then_some(());
        assert!(until(PATIENCE, is_served).is_some(), "the rule is not served");
        is_the_same(&controller);
    });
}

/// One tenant has a wildcard certificate. Another one, with a ListenerSet of its own, has a certificate for a name of the first.
#[test]
fn a_certificate_for_the_name_of_another_tenant() {
    within("a_certificate_for_the_name_of_another_tenant", |edge| {
        let web = origin(1);
        edge.service("web", &[web.address]);
        let scratch = Scratch::new();
        let [pki, other] = ["shop", "other"].map(|name| Pki::new(&scratch.path().join(name)));
        pki.issue("wild", &["*.example.com"]);
        other.issue("own", &["own.example.org", "pay.example.com"]);
        edge.secret("wild", &pki, "wild");
        edge.secret("own", &other, "own");
        let listener = |secret: &str, host: &str| {
            let tls = json!({"certificateRefs": [{"name": secret}]});
            json!({"name": secret, "port": 443, "protocol": "HTTPS", "hostname": host, "tls": tls})
        };
        let object = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({"name": name});
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
        };
        let allowed = json!({"namespaces": {"from": "Same"}});
        let listeners = [listener("wild", "*.example.com")];
        let spec = json!({"gatewayClassName": edge.name, "allowedListeners": allowed, "listeners": listeners});
        // The tenant with the other certificate comes first.
        let set = json!({"parentRef": {"name": "edge"}, "listeners": [listener("own", "own.example.org")]});
        edge.cluster.apply_object(object("ListenerSet", "tenant", set)).unwrap();
        edge.cluster.apply_object(object("Gateway", "edge", spec)).unwrap();
        edge.route("HTTPRoute", "web", "rules: [{backendRefs: [{name: web, port: 80}]}]");
        let controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        edge.cluster.until("programmed", "ListenerSet", "tenant", |set| {
            holds(set, &set["status"], &["Accepted", "Programmed"])
        });
        let mut tls = Tls::connect(&other.client(None), gateway(443), "own.example.org").unwrap();
        assert_eq!(tls.shown(), other.certificate("own"));
        for name in ["pay.example.com", "www.example.com"] {
            let mut tls = Tls::connect(&pki.client(None), gateway(443), name).unwrap();
            assert_eq!(tls.shown(), pki.certificate("wild"), "{name}");
            assert_eq!(tls.get(name, "/").unwrap().0, 200, "{name}");
        }
        // What is not of its host, its connection does not carry.
        assert_eq!(tls.get("pay.example.com", "/").unwrap().0, 421);
        is_the_same(&controller);
    });
}

#[test]
fn ten_thousand_hosts_on_one_listener() {
    within("ten_thousand_hosts_on_one_listener", |edge| {
        let web = origin(1);
        edge.service("web", &[web.address]);
        let controller = edge.controller();
        for first in (0..HOSTS).step_by(HOSTS_OF_AN_INGRESS) {
            let mut rules = String::new();
            for host in first..first + HOSTS_OF_AN_INGRESS {
                let backend = "{service: {name: web, port: {number: 80}}}";
                let paths = format!("[{{path: /, pathType: Prefix, backend: {backend}}}]");
                writeln!(rules, "    - {{host: h{host}.example.com, http: {{paths: {paths}}}}}").unwrap();
            }
            edge.cluster.apply(&format!(
                "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: hosts-{first}}}
spec:
  ingressClassName: {}
  rules:
{rules}",
                edge.name
            ));
        }
        let last = format!("hosts-{}", HOSTS - HOSTS_OF_AN_INGRESS);
        edge.cluster
            .until("served", "Ingress", &last, |ingress| ingress["status"]["loadBalancer"]["ingress"].is_array());
        for host in [0, HOSTS / 2, HOSTS - 1] {
            assert_eq!(answer(gateway(80), &format!("h{host}.example.com"), "/"), (200, "pod-1".into()));
        }
        assert_eq!(ask(gateway(80), &format!("h{HOSTS}.example.com"), "/").status, 404);
        is_the_same(&controller);
    });
}

#[test]
fn objects_that_flap() {
    within("objects_that_flap", |edge| {
        const CHANGES: u64 = 120;
        let pods = [1, 2].map(origin);
        edge.web(&pods.each_ref().map(|pod| pod.address));
        let mut controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        let generation = controller.generation();
        let load = Load::start(gateway(80), "/", 8);
        for number in 0..CHANGES {
            // A route that comes and goes, an endpoint that comes and goes, a port that is right and wrong.
            match number % 3 {
                0 => edge.endpoints("web", &[pods[usize::from(number % 2 == 0)].address]),
                1 => edge.route("HTTPRoute", "other", &format!("hostnames: [h{number}.example.com]")),
                _ => {
                    let port = 80 + number % 2;
                    edge.route("HTTPRoute", "broken", &format!("rules: [{{matches: [{{path: {{value: /broken}}}}], backendRefs: [{{name: web, port: {port}}}]}}]"));
                }
            }
        }
        edge.endpoints("web", &[pods[0].address]);
        until_endpoints(&controller, &[pods[0].address]);
        let grown = controller.generation() - generation;
        // One for each at most; some time after the last, one more takes back that an endpoint was missing.
        assert!(grown <= CHANGES + 5, "{grown} snapshots for {CHANGES} changes");
        pods[0].until_served(200);
        is_the_same(&controller);
        let total = load.end(&mut controller);
        assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    });
}

//! From nothing to a served request, for each kind of route, with what their statuses say.

use testkit::{PATIENCE, until};

use crate::edge::{Edge, LEAVING, answer, ask, fails, gateway, header, holds, origin, pod, until_endpoints, within};
use crate::grpc::{Caller, Greeter, SAY_HELLO, framed};
use crate::harness::{GATEWAY, condition};
use crate::support::echo::{ECHO_PORT, Echo, exchange};
use crate::support::{Origin, Scratch};
use crate::tls::{Pki, Tls};

#[test]
fn http_route() {
    within("http_route", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        assert_eq!(answer(gateway(80), "shop.example.com", "/"), (200, "pod-1".into()));

        let edge_object = edge.until_programmed();
        let status = &edge_object["status"];
        assert_eq!(status["addresses"], serde_json::json!([{"type": "IPAddress", "value": GATEWAY}]));
        let listener = &status["listeners"][0];
        assert_eq!((&listener["name"], &listener["attachedRoutes"]), (&"web".into(), &1.into()));
        assert!(holds(&edge_object, listener, &["Accepted", "Programmed", "ResolvedRefs"]), "{listener}");
        let route = edge.until_served("HTTPRoute", "web");
        assert_eq!(route["status"]["parents"][0]["controllerName"], format!("steelyard.test/{}", edge.name));
        let class = edge.cluster.until("accepted", "GatewayClass", &edge.name, |class| {
            condition(&class["status"], "Accepted").is_some_and(|accepted| accepted["status"] == "True")
        });
        let features = class["status"]["supportedFeatures"].as_array().expect("features");
        for feature in ["Gateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "ReferenceGrant"] {
            assert!(features.iter().any(|found| found["name"] == feature), "{feature}: {features:?}");
        }

        // Another host alone, from now on.
        edge.route("HTTPRoute", "web", "hostnames: [a.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]");
        edge.until_served("HTTPRoute", "web");
        assert_eq!(answer(gateway(80), "a.example.com", "/").0, 200);
        assert_eq!(answer(gateway(80), "shop.example.com", "/").0, 404);
        edge.cluster.delete("HTTPRoute", "web");
        let is_gone = || (answer(gateway(80), "a.example.com", "/").0 == 404).then_some(());
        assert!(until(PATIENCE, is_gone).is_some(), "a route that was deleted is still served");
    });
}

#[test]
fn weights_and_filters() {
    within("weights_and_filters", |edge| {
        let [stable, canary] = [1, 2].map(origin);
        edge.gateway("{name: web, port: 80, protocol: HTTP}");
        edge.service("stable", &[stable.address]);
        edge.service("canary", &[canary.address]);
        edge.route(
            "HTTPRoute",
            "web",
            "rules: [
  {matches: [{path: {value: /old}}], filters: [{type: RequestRedirect, requestRedirect: {hostname: new.example.com, statusCode: 301}}]},
  {matches: [{path: {value: /marked}}], backendRefs: [{name: stable, port: 80}],
   filters: [{type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-edge, value: steelyard}]}}]},
  {backendRefs: [{name: stable, port: 80, weight: 80}, {name: canary, port: 80, weight: 20}]}]",
        );
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        let moved = ask(gateway(80), "shop.example.com", "/old/page");
        assert_eq!((moved.status, header(&moved, "location")), (301, "http://new.example.com/old/page".into()));
        assert_eq!(header(&ask(gateway(80), "a", "/marked"), "x-edge"), "steelyard");
        for _ in 0..200 {
            assert_eq!(ask(gateway(80), "a", "/").status, 200);
        }
        // By chance none of 200 would go to the canary once in 10^19 runs.
        let (stable, canary) = (stable.requests(), canary.requests());
        assert!(canary > 0 && stable > canary && stable + canary == 201, "{stable} {canary}");
    });
}

#[test]
fn ingress() {
    within("ingress", |edge| {
        let [shop, api, rest] = [1, 2, 3].map(origin);
        for (name, origin) in [("shop", &shop), ("api", &api), ("rest", &rest)] {
            edge.service(name, &[origin.address]);
        }
        let scratch = Scratch::new();
        let pki = Pki::new(scratch.path());
        pki.issue("shop", &["shop.example.com"]);
        edge.secret("shop-tls", &pki, "shop");
        edge.cluster.apply(&format!(
            "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: shop}}
spec:
  ingressClassName: {}
  tls: [{{hosts: [shop.example.com], secretName: shop-tls}}]
  defaultBackend: {{service: {{name: rest, port: {{name: main}}}}}}
  rules:
    - host: shop.example.com
      http:
        paths:
          - {{path: /api, pathType: Prefix, backend: {{service: {{name: api, port: {{number: 80}}}}}}}}
          - {{path: /api, pathType: Exact, backend: {{service: {{name: rest, port: {{number: 80}}}}}}}}
          - {{path: /, pathType: Prefix, backend: {{service: {{name: shop, port: {{number: 80}}}}}}}}
    - host: '*.example.org'
      http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: api, port: {{number: 80}}}}}}}}]}}
",
            edge.name
        ));
        let _controller = edge.controller();
        edge.cluster.until("served", "Ingress", "shop", |ingress| {
            ingress["status"]["loadBalancer"]["ingress"] == serde_json::json!([{"ip": GATEWAY}])
        });
        let check = |host: &str, path: &str, expect: &str| {
            assert_eq!(answer(gateway(80), host, path), (200, expect.into()), "{host}{path}");
        };
        check("shop.example.com", "/", "pod-1");
        check("shop.example.com", "/api/v1", "pod-2");
        check("shop.example.com", "/api", "pod-3");
        check("other.example.com", "/", "pod-3");
        check("a.example.org", "/", "pod-2");
        check("b.a.example.org", "/", "pod-3");
        let mut tls = Tls::connect(&pki.client(None), gateway(443), "shop.example.com").unwrap();
        assert_eq!(tls.shown(), pki.certificate("shop"));
        assert_eq!(tls.get("shop.example.com", "/api/v1").unwrap().0, 200);
        assert_eq!(api.requests(), 3);
    });
}

#[test]
fn grpc_route() {
    within("grpc_route", |edge| {
        let greeter = Greeter::start_at(pod(1, 50051), "greeter");
        edge.gateway("{name: web, port: 80, protocol: HTTP}");
        edge.service("greeter", &[greeter.address]);
        let method = "matches: [{method: {service: helloworld.Greeter, method: SayHello}}]";
        edge.route(
            "GRPCRoute",
            "greeter",
            &format!("rules: [{{{method}, backendRefs: [{{name: greeter, port: 80}}]}}]"),
        );
        let _controller = edge.controller();
        edge.until_served("GRPCRoute", "greeter");
        let caller = Caller::connect(gateway(80));
        let called = caller.call(SAY_HELLO, &[], &framed(b"hello"));
        assert_eq!((called.grpc_status, &*called.origin), (Some(0), "greeter"), "{called:?}");
        let called = caller.call("/helloworld.Greeter/Other", &[], &framed(b"hello"));
        // UNIMPLEMENTED, and not from the endpoint.
        assert_eq!((called.grpc_status, &*called.origin), (Some(12), ""), "{called:?}");
    });
}

#[test]
fn tls_route() {
    within("tls_route", |edge| {
        let scratch = Scratch::new();
        let pki = Pki::new(scratch.path());
        let hosts = ["a.example.com", "b.example.com"];
        edge.gateway("{name: through, port: 443, protocol: TLS, tls: {mode: Passthrough}}");
        for (number, host) in (1..).zip(hosts) {
            let name = &host[..1];
            pki.issue(name, &[host]);
            edge.service(name, &[pki.origin_at(pod(number, 8443), name, None)]);
            let rules = format!("hostnames: [{host}], rules: [{{backendRefs: [{{name: {name}, port: 80}}]}}]");
            edge.route("TLSRoute", name, &rules);
        }
        let _controller = edge.controller();
        for host in hosts {
            edge.until_served("TLSRoute", &host[..1]);
            let mut tls = Tls::connect(&pki.client(None), gateway(443), host).unwrap();
            assert_eq!(tls.shown(), pki.certificate(&host[..1]));
            assert_eq!(tls.get(host, "/").unwrap().0, 200);
        }
        assert!(Tls::connect(&pki.client(None), gateway(443), "c.example.com").is_err());
    });
}

#[test]
fn tls_on_both_sides_of_a_gateway() {
    within("tls_on_both_sides_of_a_gateway", |edge| {
        let scratch = Scratch::new();
        let (pki, clients) = (Pki::new(&scratch.path().join("tls")), Pki::new(&scratch.path().join("clients")));
        pki.issue("site", &["a.example.com", "b.example.com", "db.example.com"]);
        pki.issue("up", &["up.internal", "spiffe://internal/up"]);
        clients.issue("gateway", &["gateway"]);
        edge.secret("site", &pki, "site");
        edge.secret("identity", &clients, "gateway");
        let ca = std::fs::read_to_string(pki.path("ca.pem")).unwrap();
        let ca = serde_json::json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca"}, "data": {"ca.crt": ca}});
        edge.cluster.apply(&ca.to_string());
        // The endpoint wants a certificate of the Gateway, and its own has none of the names that it is asked for by.
        edge.service("up", &[pki.origin_at(pod(1, 8443), "up", Some(&clients))]);
        let plain = origin(2);
        edge.service("db", &[plain.address]);
        edge.cluster.apply(&gateway_with_an_identity(&edge.name));
        edge.route("HTTPRoute", "up", "rules: [{backendRefs: [{name: up, port: 80}]}]");
        edge.route(
            "TLSRoute",
            "db",
            "hostnames: [db.example.com, up.internal], rules: [{backendRefs: [{name: db, port: 80}]}]",
        );
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "up");
        edge.until_served("TLSRoute", "db");
        edge.cluster.until("resolved", "Gateway", "edge", |gateway| {
            let kinds = ["Accepted", "Programmed", "ResolvedRefs", "InsecureFrontendValidationMode"];
            holds(gateway, &gateway["status"], &kinds)
        });
        let client = pki.client(None);
        let mut tls = Tls::connect(&client, gateway(443), "a.example.com").unwrap();
        let (status, heard) = tls.get("a.example.com", "/").unwrap();
        assert!(
            status == 200 && heard.starts_with(b"sni asked.internal\n"),
            "{status} {}",
            String::from_utf8_lossy(&heard)
        );
        // Another listener of the port has this host.
        assert_eq!(tls.get("b.example.com", "/").unwrap().0, 421);
        let mut tls = Tls::connect(&client, gateway(5432), "db.example.com").unwrap();
        assert_eq!(tls.shown(), pki.certificate("site"));
        let (status, heard) = tls.get("db.example.com", "/").unwrap();
        assert!(status == 200 && heard.starts_with(b"pod-2"), "{status} {}", String::from_utf8_lossy(&heard));
        // What passes through ends at an origin that speaks no TLS.
        assert!(Tls::connect(&client, gateway(5432), "up.internal").is_err());

        // Without its certificate the Gateway does not go there as somebody else.
        edge.cluster.delete("Secret", "identity");
        edge.cluster.until("unresolved", "Gateway", "edge", |gateway| {
            fails(gateway, &gateway["status"], "ResolvedRefs") == "InvalidClientCertificateRef"
        });
        let mut tls = Tls::connect(&client, gateway(443), "a.example.com").unwrap();
        assert_eq!(tls.get("a.example.com", "/").unwrap().0, 503);
    });
}

/// A Gateway of this class that has a certificate of its own for endpoints, asks clients for theirs, and terminates TLS for some names only; and
/// the policy for its endpoints.
fn gateway_with_an_identity(class: &str) -> String {
    format!(
        "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: {class}
  tls:
    backend: {{clientCertificateRef: {{name: identity}}}}
    frontend: {{default: {{validation: {{mode: AllowInsecureFallback, caCertificateRefs: [{{kind: ConfigMap, group: '', name: ca}}]}}}}}}
  listeners:
    - {{name: any, port: 443, protocol: HTTPS, tls: {{certificateRefs: [{{name: site}}]}}}}
    - {{name: b, port: 443, protocol: HTTPS, hostname: b.example.com, tls: {{certificateRefs: [{{name: site}}]}}}}
    - {{name: db, port: 5432, protocol: TLS, hostname: '*.example.com', tls: {{certificateRefs: [{{name: site}}]}}}}
    - {{name: through, port: 5432, protocol: TLS, tls: {{mode: Passthrough}}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {{name: up}}
spec:
  targetRefs: [{{group: '', kind: Service, name: up}}]
  validation:
    caCertificateRefs: [{{kind: ConfigMap, group: '', name: ca}}]
    hostname: asked.internal
    subjectAltNames: [{{type: Hostname, hostname: other.internal}}, {{type: URI, uri: 'spiffe://internal/up'}}]
"
    )
}

#[test]
fn tcp_route() {
    within("tcp_route", |edge| {
        let _echo = Echo::start();
        edge.gateway("{name: echo, port: 7000, protocol: TCP}");
        edge.service("echo", &[pod(1, ECHO_PORT)]);
        edge.route("TCPRoute", "echo", "rules: [{backendRefs: [{name: echo, port: 80}]}]");
        let _controller = edge.controller();
        edge.until_served("TCPRoute", "echo");
        let stream = std::net::TcpStream::connect(gateway(7000)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        exchange(&stream, "there and back").unwrap();
    });
}

#[test]
fn endpoints_of_both_families_that_come_and_leave() {
    within("endpoints_of_both_families_that_come_and_leave", |edge| {
        let v4 = origin(1);
        let v6 = Origin::start_at("[fd00:244::2]:8080".parse().unwrap(), "six", 18);
        edge.web(&[v4.address]);
        edge.cluster.apply(
            "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-b, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: main, port: 8080}]
endpoints: [{addresses: ['fd00:244::2'], conditions: {ready: true}}]
",
        );
        let controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        for _ in 0..20 {
            assert_eq!(ask(gateway(80), "a", "/").status, 200);
        }
        assert!(v4.requests() > 0 && v6.requests() > 0, "{} {}", v4.requests(), v6.requests());

        // None is ready: those that end and still serve are better than nothing.
        edge.cluster.delete("EndpointSlice", "web-b");
        edge.endpoints_with("web", &[(v4.address, LEAVING)]);
        until_endpoints(&controller, &[v4.address]);
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));
        edge.endpoints("web", &[]);
        until_endpoints(&controller, &[]);
        assert_eq!(ask(gateway(80), "a", "/").status, 503);
    });
}

impl Edge {
    /// A Secret with the certificate of this name.
    #[track_caller]
    pub fn secret(&self, name: &str, pki: &Pki, certificate: &str) {
        let read = |suffix: &str| std::fs::read_to_string(pki.path(&format!("{certificate}.{suffix}"))).unwrap();
        let secret = serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": read("pem"), "tls.key": read("key")},
        });
        self.cluster.apply(&secret.to_string());
    }
}

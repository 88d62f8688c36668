//! GatewayParameters: settings of classes and Gateways that take effect while everything runs, and what a fault in them does. What an endpoint
//! sees of a client is what it answers.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};
use testkit::strict::ResponseTo;
use testkit::{client, until};

use crate::edge::{Edge, answer, fails, gateway, manifest, origin, pod, within, within_alone};
use crate::harness::{PATIENCE, condition};
use crate::support::Load;

const DEFINITION: &str = "gatewayparameters.steelyard.io";

/// A client at 192.0.2.7, as a balancer in front announces it: section 2.1 of the specification, and section 2.2.
const V1: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 80\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n!\x11\0\x0c\xc0\0\x02\x07\xc0\0\x02\x01\x9c@\0P";

/// The header that an endpoint gets of such a client.
const CLIENT: &str = "x-forwarded-for: 192.0.2.7\n";

#[test]
fn proxy_protocol_of_listeners() {
    within("proxy_protocol_of_listeners", |edge| {
        edge.web(&[telltale(1)]);
        edge.parameters("edge", json!({"clients": {"proxyProtocol": "Required"}}));
        edge.class_has("edge");
        let controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        for header in [V1, V2] {
            let seen = try_ask(header).expect("an answer");
            assert!(seen.contains(CLIENT), "{seen}");
        }
        assert_eq!(try_ask(b""), None, "a client without a header is served");
        assert!(controller.metric("steelyard_refused_total", &[("reason", "bad_proxy_protocol")]) >= 1.0);

        // Of this port no longer, and then of one Gateway after all.
        edge.parameters(
            "edge",
            json!({"clients": {"proxyProtocol": "Required"}, "perPort": [{"port": 80, "clients": {"proxyProtocol": "Off"}}]}),
        );
        until_answered(b"");
        assert_eq!(try_ask(V1), None, "a header is taken for a request");
        edge.parameters("own", json!({"perPort": [{"port": 80, "clients": {"proxyProtocol": "Required"}}]}));
        let own = json!({"group": "steelyard.io", "kind": "GatewayParameters", "name": "own"});
        edge.cluster.patch("Gateway", "edge", json!({"spec": {"infrastructure": {"parametersRef": own}}}));
        until_answered(V1);
        assert_eq!(try_ask(b""), None, "a client without a header is served");
        edge.until_programmed();
    });
}

#[test]
fn proxy_protocol_to_endpoints() {
    within("proxy_protocol_to_endpoints", |edge| {
        edge.web(&[telltale(1)]);
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        assert!(!until_answered(b"").contains("PROXY"));
        let ports = json!([{"name": "main", "port": 80, "appProtocol": "steelyard.io/proxy-v1"}]);
        edge.cluster.patch("Service", "web", json!({"spec": {"ports": ports}}));
        let is_told = || try_ask(b"").filter(|seen| seen.starts_with("PROXY TCP4 10.244.0.1 10.244.0.1 "));
        assert!(until(PATIENCE, is_told).is_some(), "{:?}", try_ask(b""));
    });
}

/// Ids of requests and `X-Real-IP`, which only listeners can give, and an id in a header of a policy.
#[test]
fn ids_of_requests() {
    within("ids_of_requests", |edge| {
        edge.web(&[telltale(1)]);
        edge.cluster.apply(
            &json!({
                "apiVersion": "steelyard.io/v1alpha1", "kind": "TrafficPolicy", "metadata": {"name": "trace"},
                "spec": {
                    "targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "web"}],
                    "route": {"requestHeaders": {"set": {"x-trace": "${request_id}"}}},
                },
            })
            .to_string(),
        );
        edge.parameters("edge", json!({}));
        edge.class_has("edge");
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        let seen = until_answered(b"");
        assert!(["x-request-id", "x-real-ip", "x-trace"].iter().all(|name| !seen.contains(name)), "{seen}");
        edge.parameters("edge", json!({"clients": {"requestId": {}, "xRealIp": true}}));
        let value = |seen: &str, name: &str| -> Option<String> {
            seen.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
        };
        let has_ids = || {
            let seen = try_ask(b"")?;
            let id = value(&seen, "x-request-id").filter(|id| id.len() == 36)?;
            (value(&seen, "x-trace") == Some(id) && value(&seen, "x-real-ip").is_some()).then_some(())
        };
        assert!(until(PATIENCE, has_ids).is_some(), "{:?}", try_ask(b""));
    });
}

#[test]
fn parameters_change_under_load() {
    within("parameters_change_under_load", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        edge.parameters("edge", json!({"clients": {"limits": {"headerCount": 50}}}));
        edge.class_has("edge");
        let mut controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        let load = Load::start(gateway(80), "/", 16);
        for round in 1..=10 {
            let count = 50 + round;
            let generation = controller.generation();
            let timeouts = json!({"idle": format!("{count}s"), "stall": "2m"});
            let publish = json!({"addresses": [format!("192.0.2.{round}")]});
            let clients = json!({"limits": {"headerCount": count, "bodySize": "1Mi"}, "timeouts": timeouts});
            edge.parameters("edge", json!({"publish": publish, "clients": clients}));
            controller.until("changed", |status| status["generation"].as_u64().is_some_and(|now| now > generation));
            web.until_served(100);
        }
        edge.cluster.until("at its new address", "Gateway", "edge", |gateway| {
            gateway["status"]["addresses"] == json!([{"type": "IPAddress", "value": "192.0.2.10"}])
        });
        let total = load.end(&mut controller);
        assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    });
}

#[test]
fn faults_in_parameters_take_nothing_back() {
    within("faults_in_parameters_take_nothing_back", |edge| {
        edge.web(&[telltale(1)]);
        let good = json!({"clients": {"proxyProtocol": "Required"}});
        edge.parameters("edge", good.clone());
        edge.class_has("edge");
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        until_answered(V1);
        let told = |what: &str| {
            let class = edge.cluster.until("told of it", "GatewayClass", &edge.name, |class| {
                fails(class, &class["status"], "Accepted") == "InvalidParameters"
            });
            let message = condition(&class["status"], "Accepted").unwrap()["message"].to_string();
            assert!(message.contains(what) && message.contains("the last valid parameters stay in use"), "{message}");
            assert!(try_ask(V1).is_some_and(|seen| seen.contains(CLIENT)), "{what}: served no longer");
        };
        let until_accepted = || {
            edge.cluster.until("accepted", "GatewayClass", &edge.name, |class| {
                condition(&class["status"], "Accepted").is_some_and(|accepted| accepted["status"] == "True")
            });
        };
        until_accepted();
        edge.cluster.delete("GatewayParameters", "edge");
        told(&format!("there is no GatewayParameters {}/edge", edge.name));
        edge.parameters("edge", good);
        until_accepted();
        edge.class_has("other");
        told(&format!("there is no GatewayParameters {}/other", edge.name));
        let config_map = json!({"group": "", "kind": "ConfigMap", "namespace": edge.name, "name": "edge"});
        edge.cluster.patch("GatewayClass", &edge.name, json!({"spec": {"parametersRef": config_map}}));
        told("the parameters are a ConfigMap of the core group");
        // What the definition allows, and the controller does not: the pool needs an address of its own for everything else.
        edge.parameters("pool", json!({"addressPools": [format!("{}/32", crate::harness::GATEWAY)]}));
        edge.class_has("pool");
        told("contains --listen-address");

        // The API server takes nothing that is wrong by itself.
        let refused = [
            (json!({"clients": {"proxyProtocol": "Maybe"}}), "proxyProtocol"),
            (json!({"clients": {"timeouts": {"idle": "0s"}}}), "must be longer than 0s"),
            (json!({"clients": {"timeouts": {"idle": "1.5s"}}}), "idle"),
            (json!({"clients": {"limits": {"headerCount": 1000}}}), "headerCount"),
            (json!({"clients": {"limits": {"bodySize": "10MB"}}}), "bodySize"),
            (json!({"clients": {"requestId": {"keep": "Sometimes"}}}), "keep"),
            (json!({"publish": {}}), "set either addresses or service"),
            (json!({"perPort": [{"port": 0, "clients": {}}]}), "port"),
            (json!({"perPort": [{"port": 1, "clients": {}}, {"port": 1, "clients": {}}]}), "duplicate"),
            (json!({"client": {}}), "client"),
        ];
        for (spec, part) in refused {
            let why = edge.cluster.dry_run(&parameters("wrong", &spec)).expect_err("a refusal");
            assert!(why.contains(part), "{spec}: {why}");
        }
    });
}

#[test]
fn without_the_definition() {
    within_alone("without_the_definition", |edge| {
        edge.cluster.undefine(DEFINITION);
        let web = origin(1);
        edge.web(&[web.address]);
        let _controller = edge.controller();
        edge.until_served("HTTPRoute", "web");
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));
        edge.cluster.until("accepted", "GatewayClass", &edge.name, |class| {
            condition(&class["status"], "Accepted").is_some_and(|accepted| accepted["status"] == "True")
        });

        edge.cluster.apply(&manifest("steelyard/crds/gatewayparameters.yaml"));
        edge.cluster.until_defined(DEFINITION);
        edge.parameters("edge", json!({"clients": {"proxyProtocol": "Required"}}));
        edge.class_has("edge");
        until_answered(V1);
    });
}

fn parameters(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "steelyard.io/v1alpha1", "kind": "GatewayParameters", "metadata": {"name": name}, "spec": spec})
}

impl Edge {
    /// GatewayParameters of this name.
    #[track_caller]
    fn parameters(&self, name: &str, spec: Value) {
        self.cluster.apply(&parameters(name, &spec).to_string());
    }

    /// Gives the class these parameters.
    #[track_caller]
    fn class_has(&self, parameters: &str) {
        let (group, kind) = ("steelyard.io", "GatewayParameters");
        let reference = json!({"group": group, "kind": kind, "namespace": self.name, "name": parameters});
        self.cluster.patch("GatewayClass", &self.name, json!({"spec": {"parametersRef": reference}}));
    }
}

/// An endpoint that answers every connection with all that it got before the body.
pub fn telltale(number: u8) -> SocketAddr {
    let address = pod(number, 8080);
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let seen: String = lines.by_ref().take_while(|line| !line.is_empty()).map(|line| line + "\n").collect();
            let length = seen.len();
            // The balancer may be gone.
            _ = write!(&stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{seen}");
        }
    });
    address
}

/// What the endpoint sees of a client that sends these bytes before its request; `None` if the client gets no answer of it.
fn try_ask(header: &[u8]) -> Option<String> {
    let mut conn = client::connect("client", gateway(80), None).ok()?;
    conn.send(&[header, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"].concat()).ok()?;
    let response = conn.response(ResponseTo::Other).ok().filter(|response| response.status == 200)?;
    Some(String::from_utf8(response.body).unwrap())
}

#[track_caller]
pub fn until_answered(header: &[u8]) -> String {
    let seen = until(PATIENCE, || try_ask(header));
    seen.unwrap_or_else(|| panic!("no answer to {:?}", String::from_utf8_lossy(header)))
}

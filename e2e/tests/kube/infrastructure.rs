//! The Services of Gateways that ask for one, as a real API server takes them.

use serde_json::{Value, json};
use testkit::{PATIENCE, until};

use crate::edge::{Edge, api_server, fails, gateway, holds, origin, pod, within};
use crate::harness::{GATEWAY, condition};

/// The condition of a Gateway whose Service is not as it asks for it.
const READY: &str = "steelyard.io/ServiceReady";

/// Writes of Services and slices in the first test, which makes about ten. Writes that cause each other would be many more.
const WRITES_MAX: usize = 30;

/// The Service in front of the gateway, with an address that stands for that of a cloud.
fn front(edge: &Edge) {
    edge.cluster.apply(
        "
apiVersion: v1
kind: Service
metadata: {name: front}
spec:
  type: LoadBalancer
  loadBalancerClass: example.com/cloud
  allocateLoadBalancerNodePorts: false
  loadBalancerSourceRanges: [192.0.2.0/24]
  ports: [{name: main, port: 80}]
",
    );
    assign(edge, "front", "203.0.113.7");
    edge.endpoints("front", &[pod(7, 80)]);
}

/// Gives a Service an address, as a cloud does.
fn assign(edge: &Edge, service: &str, address: &str) {
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
    edge.cluster.patch_status_in("Service", &edge.name, service, status);
}

/// What the Gateway `edge` asks of its Service.
fn ask(edge: &Edge, infrastructure: Value) {
    edge.cluster.patch("Gateway", "edge", json!({"spec": {"infrastructure": infrastructure}}));
}

fn name(edge: &Edge) -> String {
    format!("edge-{}", edge.name)
}

fn slice(edge: &Edge) -> String {
    format!("{}-ipv4", name(edge))
}

fn until_gone(edge: &Edge, kind: &str, name: &str) {
    let is_gone = || edge.cluster.get(kind, name).is_none().then_some(());
    assert!(until(PATIENCE, is_gone).is_some(), "{kind} {name} is still there");
}

/// Waits until the Gateway is programmed at this address, with nothing to say about its Service.
fn until_at(edge: &Edge, address: &str) {
    edge.cluster.until(&format!("at {address}"), "Gateway", "edge", |gateway| {
        holds(gateway, &gateway["status"], &["Programmed"])
            && gateway["status"]["addresses"] == json!([{"type": "IPAddress", "value": address}])
            && condition(&gateway["status"], READY).is_none()
    });
}

#[test]
fn a_gateway_has_a_service_of_its_own() {
    within("a_gateway_has_a_service_of_its_own", |edge| {
        let web = origin(1);
        front(edge);
        edge.web(&[web.address]);
        let publish = format!("{}/front", edge.name);
        let _controller = edge.controller_with("one", &["--listen-address", GATEWAY, "--publish-service", &publish]);
        until_at(edge, "203.0.113.7");
        assert!(edge.cluster.get("Service", &name(edge)).is_none(), "it was not asked for");

        ask(edge, json!({"labels": {"team": "web", "tier": "1"}, "annotations": {"example.com/scheme": "internal"}}));
        let service = edge.cluster.until("written", "Service", &name(edge), |_| true);
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        assert_eq!(service["spec"]["loadBalancerClass"], "example.com/cloud");
        assert_eq!(service["spec"]["loadBalancerSourceRanges"], json!(["192.0.2.0/24"]));
        assert_eq!(service["metadata"]["annotations"]["example.com/scheme"], "internal");
        let owner = &edge.cluster.get("Gateway", "edge").unwrap()["metadata"]["uid"];
        assert_eq!(service["metadata"]["ownerReferences"][0]["uid"], *owner);
        edge.cluster.until("written", "EndpointSlice", &slice(edge), |slice| {
            slice["endpoints"][0]["addresses"] == json!(["10.244.1.7"])
        });
        // Only now does the cloud give it an address.
        edge.cluster.until("without an address", "Gateway", "edge", |gateway| {
            fails(gateway, &gateway["status"], "Programmed") == "AddressNotAssigned"
        });
        assign(edge, &name(edge), "203.0.113.8");
        until_at(edge, "203.0.113.8");
        assert_eq!(crate::edge::answer(gateway(80), "a", "/"), (200, "pod-1".into()));

        // What is no longer asked for goes, and what others have added stays.
        edge.cluster.patch("Service", &name(edge), json!({"metadata": {"labels": {"other": "stays"}}}));
        ask(edge, json!({"labels": {"team": "shop", "tier": null}}));
        edge.cluster.until("changed", "Service", &name(edge), |service| {
            let labels = &service["metadata"]["labels"];
            labels["team"] == "shop" && labels["tier"].is_null() && labels["other"] == "stays"
        });
        edge.gateway("{name: web, port: 80, protocol: HTTP}\n{name: more, port: 81, protocol: HTTP}");
        edge.cluster.until("changed", "Service", &name(edge), |service| {
            service["spec"]["ports"].as_array().is_some_and(|ports| ports.len() == 2)
        });
        // The pods change, and an object that was deleted comes back.
        edge.endpoints("front", &[pod(8, 80)]);
        edge.cluster.until("changed", "EndpointSlice", &slice(edge), |slice| {
            slice["endpoints"][0]["addresses"] == json!(["10.244.1.8"])
        });
        edge.cluster.delete("EndpointSlice", &slice(edge));
        edge.cluster.until("back", "EndpointSlice", &slice(edge), |_| true);
        edge.cluster.delete("Service", &name(edge));
        edge.cluster.until("back", "Service", &name(edge), |_| true);

        ask(edge, Value::Null);
        until_gone(edge, "Service", &name(edge));
        until_gone(edge, "EndpointSlice", &slice(edge));
        until_at(edge, "203.0.113.7");
        let writes = writes(edge, "steelyard");
        assert!(writes.len() <= WRITES_MAX, "{} writes: {writes:#?}", writes.len());
    });
}

/// The writes of Services and EndpointSlices by an account, as `VERB PATH CODE`.
fn writes(edge: &Edge, account: &str) -> Vec<String> {
    let calls = api_server().audit(&format!("{}:{account}", edge.name));
    let is_write = |call: &&Value| {
        let object = &call["objectRef"];
        (object["resource"] == "services" || object["resource"] == "endpointslices")
            && object["subresource"].is_null()
            && call["verb"] != "list"
            && call["verb"] != "watch"
    };
    let told = |call: &Value| format!("{} {} {}", call["verb"], call["requestURI"], call["responseStatus"]["code"]);
    calls.iter().filter(is_write).map(told).collect()
}

#[test]
fn a_service_of_that_name_is_left_alone() {
    within("a_service_of_that_name_is_left_alone", |edge| {
        let web = origin(1);
        front(edge);
        edge.web(&[web.address]);
        // On which the controller relies: such an apply creates an object, and never changes one.
        let own = |labels: Value| {
            let metadata = json!({"name": name(edge), "resourceVersion": "1", "labels": labels});
            let spec = json!({"clusterIP": "None", "ports": [{"port": 80}], "selector": {"app": "own"}});
            edge.cluster
                .apply_object(json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}))
        };
        let service = own(json!({})).unwrap();
        let refused = own(json!({"changed": "yes"})).unwrap_err();
        assert!(refused.contains("has been modified"), "{refused}");

        ask(edge, json!({"labels": {"team": "web"}}));
        let publish = format!("{}/front", edge.name);
        let _controller = edge.controller_with("one", &["--listen-address", GATEWAY, "--publish-service", &publish]);
        // It is served where it would be without its own Service.
        let is_told = |gateway: &Value| {
            fails(gateway, &gateway["status"], READY) == "NameTaken"
                && holds(gateway, &gateway["status"], &["Programmed"])
                && gateway["status"]["addresses"][0]["value"] == "203.0.113.7"
        };
        edge.cluster.until("told that the name is taken", "Gateway", "edge", is_told);
        edge.cluster.until_event("Gateway", "edge", "NameTaken");
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        assert_eq!(version(&edge.cluster.get("Service", &name(edge)).unwrap()), version(&service));
        assert_eq!(writes(edge, "steelyard"), [""; 0]);

        edge.cluster.delete("Service", &name(edge));
        edge.cluster.until("written", "Service", &name(edge), |service| service["metadata"]["labels"]["team"] == "web");
        assign(edge, &name(edge), "203.0.113.8");
        until_at(edge, "203.0.113.8");
    });
}

#[test]
fn what_the_api_server_refuses_is_told() {
    within("what_the_api_server_refuses_is_told", |edge| {
        front(edge);
        edge.web(&[]);
        // The rights of the kernel plane: everything is read, and no Service is written.
        edge.limit(&[("create", "services"), ("create", "endpointslices")]);
        ask(edge, json!({"labels": {"team": "web"}}));
        let publish = format!("{}/front", edge.name);
        let more = ["--listen-address", GATEWAY, "--publish-service", &publish];
        let _controller = edge.controller_by(&edge.limited(), "one", &more);
        let told = edge.cluster.until("told of it", "Gateway", "edge", |gateway| {
            fails(gateway, &gateway["status"], READY) == "NotWritten"
                && gateway["status"]["addresses"][0]["value"] == "203.0.113.7"
        });
        let message = condition(&told["status"], READY).unwrap()["message"].to_string();
        assert!(message.contains("forbidden"), "{message}");
        // It is tried again every 15 s.
        edge.limit(&[]);
        edge.cluster.until("written", "Service", &name(edge), |service| service["metadata"]["labels"]["team"] == "web");
        assign(edge, &name(edge), "203.0.113.8");
        until_at(edge, "203.0.113.8");
        assert!(writes(edge, "limited").len() <= WRITES_MAX);
    });
}

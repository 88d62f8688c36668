//! Kinds that a controller may not read, that the API server does not know, or knows at an older version only; and statuses that change while they
//! are being written.

use serde_json::json;
use testkit::{PATIENCE, until};

use crate::edge::{Edge, answer, api_server, fails, gateway, origin, pod, within, within_alone};
use crate::harness::holding::Holding;
use crate::harness::{ADDRESS, GATEWAY, PORT, condition};

/// The condition of a class where something cannot be read.
const READABLE: &str = "steelyard.io/ObjectsReadable";

#[test]
fn a_status_that_changes_while_it_is_written() {
    within("a_status_that_changes_while_it_is_written", |edge| {
        let holding = Holding::start((ADDRESS, PORT).into(), &api_server().ca());
        let token = edge.cluster.token_in(&edge.name, "steelyard");
        let kubeconfig = api_server().kubeconfig(&token, holding.address, &edge.name).replace("https://", "http://");
        let _controller = edge.controller_by(&kubeconfig, "one", &["--listen-address", GATEWAY]);
        edge.service("web", &[pod(1, 8080)]);
        // It writes.
        edge.cluster.until("accepted", "GatewayClass", &edge.name, |class| {
            condition(&class["status"], "Accepted").is_some_and(|accepted| accepted["status"] == "True")
        });
        holding.hold();
        edge.gateway("{name: web, port: 80, protocol: HTTP}");
        // The API server has taken the write and told the watch of it; its answer does not come.
        edge.until_programmed();
        edge.route("HTTPRoute", "web", "rules: [{backendRefs: [{name: web, port: 80}]}]");
        // Written after the Gateway was looked at again.
        edge.until_served("HTTPRoute", "web");
        holding.let_go();
        edge.cluster.until("told of its route", "Gateway", "edge", |gateway| {
            gateway["status"]["listeners"][0]["attachedRoutes"] == 1
        });
    });
}

#[test]
fn a_kind_that_may_not_be_read() {
    within("a_kind_that_may_not_be_read", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        edge.limit(&[("list", "tcproutes")]);
        // It becomes ready, and serves what it may read.
        let _controller = edge.controller_by(&edge.limited(), "one", &["--listen-address", GATEWAY]);
        edge.until_served("HTTPRoute", "web");
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));
        let class = edge.cluster.until("told of it", "GatewayClass", &edge.name, |class| {
            fails(class, &class["status"], READABLE) == "Forbidden"
        });
        let told = condition(&class["status"], READABLE).unwrap()["message"].to_string();
        assert!(told.contains("TCPRoute") && !told.contains("UDPRoute"), "{told}");
        // It is tried again and again.
        edge.limit(&[]);
        edge.cluster.until("told of nothing", "GatewayClass", &edge.name, |class| {
            condition(&class["status"], READABLE).is_none()
        });
    });
}

#[test]
fn an_older_version_and_a_kind_that_is_taken_away() {
    within_alone("an_older_version_and_a_kind_that_is_taken_away", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        serve(edge, &["v1beta1"]);
        let _controller = edge.controller();
        let is_served = || (answer(gateway(80), "a", "/") == (200, "pod-1".into())).then_some(());
        assert!(until(PATIENCE, is_served).is_some(), "an HTTPRoute of v1beta1 is not served");
        let told = |reason: &str| {
            edge.cluster
                .until(reason, "GatewayClass", &edge.name, |class| fails(class, &class["status"], READABLE) == reason);
        };
        // As while the definitions are installed anew.
        serve(edge, &[]);
        edge.relay.cut();
        told("UnknownKind");
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()), "what is known stays in use");
        serve(edge, &["v1", "v1beta1"]);
        edge.cluster.until("told of nothing", "GatewayClass", &edge.name, |class| {
            condition(&class["status"], READABLE).is_none()
        });
        assert_eq!(answer(gateway(80), "a", "/"), (200, "pod-1".into()));
        // Its status was written at the older version, and is.
        edge.until_served("HTTPRoute", "web");
        edge.route("HTTPRoute", "web", "hostnames: [b.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]");
        edge.until_served("HTTPRoute", "web");
    });
}

/// HTTPRoutes at these versions and no others.
fn serve(edge: &Edge, versions: &[&str]) {
    const KIND: &str = "httproutes.gateway.networking.k8s.io";
    let mut definition = edge.cluster.get("CustomResourceDefinition", KIND).expect("HTTPRoute");
    let all = definition["spec"]["versions"].as_array_mut().expect("versions");
    for version in all.iter_mut() {
        version["served"] = versions.iter().any(|served| version["name"] == *served).into();
    }
    edge.cluster.patch("CustomResourceDefinition", KIND, json!({"spec": {"versions": all}}));
    for version in ["v1", "v1beta1"] {
        let path = format!("/apis/gateway.networking.k8s.io/{version}/namespaces/{}/httproutes", edge.name);
        let is_so = || (edge.cluster.raw(&path).is_ok() == versions.contains(&version)).then_some(());
        assert!(until(PATIENCE, is_so).is_some(), "{version} of HTTPRoute is not as it was asked for: {versions:?}");
    }
}

//! Faults of the cluster under load: no request is lost and nothing is taken back, and the controller goes on when the fault is over.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::{Span, Timestamp};
use serde_json::{Value, json};
use testkit::{PATIENCE, Signal, until};

use crate::edge::{Edge, answer, api_server, fails, gateway, holds, origin, within, within_alone};
use crate::harness::{GATEWAY, condition};
use crate::support::{Load, Origin, Steelyard, get};

/// Tries to write one status while writes are refused: one every 15 s, and one for each change, however slow the host is. Tries without a pause
/// would be thousands.
const TRIES_MAX: usize = 100;

const LISTENERS: usize = 64;
const SETS: usize = 1_000;

/// A controller that serves the route `web`, and clients that use it.
struct Served {
    origin: Origin,
    controller: Steelyard,
    load: Load,
}

impl Served {
    fn start(edge: &Edge) -> Self {
        let origin = origin(1);
        edge.web(&[origin.address]);
        Self::by(origin, edge.controller(), edge)
    }

    fn by(origin: Origin, controller: Steelyard, edge: &Edge) -> Self {
        edge.until_served("HTTPRoute", "web");
        let load = Load::start(gateway(80), "/", 16);
        origin.until_served(200);
        Self { origin, controller, load }
    }

    /// All requests were answered, and no connection was closed.
    fn end(mut self) {
        self.origin.until_served(500);
        let total = self.load.end(&mut self.controller);
        assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    }
}

/// A route for this host, which needs a new snapshot and a status.
fn route(edge: &Edge, name: &str) {
    edge.route(
        "HTTPRoute",
        name,
        &format!("hostnames: [{name}.example.com], rules: [{{backendRefs: [{{name: web, port: 80}}]}}]"),
    );
}

fn until_answered(host: &str) {
    let is_answered = || (answer(gateway(80), host, "/") == (200, "pod-1".into())).then_some(());
    assert!(until(PATIENCE, is_answered).is_some(), "{host} is not served");
}

#[test]
fn etcd_is_full() {
    within_alone("etcd_is_full", |edge| {
        let mut served = Served::start(edge);
        api_server().fill(true);
        let refused = edge.cluster.apply_object(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "any"}, "data": {"a": "b"},
        }));
        assert!(refused.is_err(), "etcd accepts writes");
        // The Lease cannot be renewed, so this process no longer writes.
        until(PATIENCE, || served.controller.program.log().contains("holds=false").then_some(()))
            .expect("the Lease is still held");
        served.origin.until_served(1_000);
        assert_eq!(get(served.controller.admin, "/readyz").map(|response| response.status), Some(200));
        api_server().fill(false);
        route(edge, "later");
        until_answered("later.example.com");
        edge.until_served("HTTPRoute", "later");
        served.end();
    });
}

#[test]
fn statuses_are_refused() {
    within("statuses_are_refused", |edge| {
        let served = Served::start(edge);
        let name = format!("{}-statuses", edge.name);
        refuse_statuses(edge, &name);
        // The API server learns of a policy a moment later.
        let trial = || edge.cluster.try_patch_status_in("HTTPRoute", &edge.name, "web", json!({"status": {}}));
        assert!(until(PATIENCE, || trial().is_err().then_some(())).is_some(), "statuses are not refused");
        for number in 0..5 {
            let name = format!("later-{number}");
            route(edge, &name);
            until_answered(&format!("{name}.example.com"));
        }
        served.origin.until_served(1_000);
        let tries = |name: &str| {
            let calls = api_server().audit(&format!("{}:steelyard", edge.name));
            let is_try = |call: &&Value| {
                let object = &call["objectRef"];
                object["subresource"] == "status" && object["name"] == name && call["responseStatus"]["code"] == 422
            };
            calls.iter().filter(is_try).count()
        };
        assert!(until(PATIENCE, || (tries("later-4") > 0).then_some(())).is_some(), "no status was refused");
        for kind in ["ValidatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy"] {
            edge.cluster.delete(kind, &name);
        }
        // It is written with the next try, after 15 s at most.
        edge.until_served("HTTPRoute", "later-4");
        for name in ["edge", "web", "later-0", "later-4"] {
            assert!(tries(name) <= TRIES_MAX, "{name}: {} tries", tries(name));
        }
        served.end();
    });
}

/// Stands for a webhook that refuses every write of a status of this namespace. The API server runs both at the same place.
fn refuse_statuses(edge: &Edge, name: &str) {
    edge.cluster.apply(&format!(
        "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: {name}}}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [gateway.networking.k8s.io]
        apiVersions: ['*']
        operations: [UPDATE]
        resources: ['*/status']
  validations: [{{expression: 'false', message: no statuses today}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: {name}}}
spec:
  policyName: {name}
  validationActions: [Deny]
  matchResources: {{namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {}}}}}}}
",
        edge.name
    ));
}

#[test]
fn rights_are_taken_away() {
    within("rights_are_taken_away", |edge| {
        const READABLE: &str = "steelyard.io/ObjectsReadable";
        let web = origin(1);
        edge.web(&[web.address]);
        edge.limit(&[]);
        let controller = edge.controller_by(&edge.limited(), "one", &["--listen-address", GATEWAY]);
        let served = Served::by(web, controller, edge);
        edge.limit(&[("list", "httproutes"), ("list", "services"), ("list", "endpointslices"), ("list", "gateways")]);
        edge.relay.cut();
        edge.cluster.until("told of it", "GatewayClass", &edge.name, |class| {
            fails(class, &class["status"], READABLE) == "Forbidden"
        });
        served.origin.until_served(1_000);
        edge.limit(&[]);
        edge.cluster.until("told of nothing", "GatewayClass", &edge.name, |class| {
            condition(&class["status"], READABLE).is_none()
        });
        route(edge, "later");
        edge.until_served("HTTPRoute", "later");
        until_answered("later.example.com");
        served.end();
    });
}

#[test]
fn definitions_are_removed_and_installed_again() {
    within_alone("definitions_are_removed_and_installed_again", |edge| {
        const KINDS: [&str; 2] = ["tcproutes", "tlsroutes"];
        let served = Served::start(edge);
        let definition = |kind: &str| format!("{kind}.gateway.networking.k8s.io");
        let mut kept = Vec::new();
        for kind in KINDS {
            let mut object = edge.cluster.get("CustomResourceDefinition", &definition(kind)).unwrap();
            for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
                object["metadata"].as_object_mut().unwrap().remove(field);
            }
            object.as_object_mut().unwrap().remove("status");
            edge.cluster.delete("CustomResourceDefinition", &definition(kind));
            kept.push(object);
        }
        for kind in KINDS {
            let is_gone = || edge.cluster.get("CustomResourceDefinition", &definition(kind)).is_none().then_some(());
            assert!(until(PATIENCE, is_gone).is_some(), "{kind} are still defined");
        }
        // Watches do not end with their kind.
        edge.relay.cut();
        route(edge, "later");
        until_answered("later.example.com");
        served.origin.until_served(1_000);

        for object in kept {
            edge.cluster.apply_object(object).unwrap();
        }
        for kind in KINDS {
            edge.cluster.until("established", "CustomResourceDefinition", &definition(kind), |definition| {
                condition(&definition["status"], "Established").is_some_and(|found| found["status"] == "True")
            });
        }
        edge.gateway("{name: web, port: 80, protocol: HTTP}\n{name: tcp, port: 7000, protocol: TCP}");
        let created = || {
            let spec =
                json!({"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]});
            let route = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TCPRoute", "metadata": {"name": "tcp"}, "spec": spec,
            });
            edge.cluster.apply_object(route).ok()
        };
        assert!(until(PATIENCE, created).is_some(), "there are no TCPRoutes");
        edge.until_served("TCPRoute", "tcp");
        assert_eq!(answer(gateway(7000), "a", "/"), (200, "pod-1".into()));
        served.end();
    });
}

/// The clock of the previous holder was a minute ahead. Each controller only measures durations, so its Lease expires all the same.
#[test]
fn a_holder_whose_clock_is_a_minute_ahead() {
    within("a_holder_whose_clock_is_a_minute_ahead", |edge| {
        let ahead = MicroTime(Timestamp::now() + Span::new().minutes(1));
        let ahead = serde_json::to_string(&ahead).unwrap();
        edge.cluster.apply(&format!(
            "
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {{name: steelyard}}
spec: {{holderIdentity: gone, leaseDurationSeconds: 15, acquireTime: {ahead}, renewTime: {ahead}, leaseTransitions: 1}}
"
        ));
        let served = Served::start(edge);
        edge.cluster.until("taken over", "Lease", "steelyard", |lease| lease["spec"]["holderIdentity"] == "one");
        served.end();
    });
}

#[test]
fn a_gateway_with_a_thousand_listener_sets() {
    within("a_gateway_with_a_thousand_listener_sets", |edge| {
        let origin = origin(1);
        edge.service("web", &[origin.address]);
        let listener = |number: usize| match number {
            0 => json!({"name": "web", "port": 80, "protocol": "HTTP"}),
            _ => {
                json!({"name": format!("l{number}"), "port": 80, "protocol": "HTTP", "hostname": format!("l{number}.example.com")})
            }
        };
        let spec = json!({
            "gatewayClassName": edge.name,
            "allowedListeners": {"namespaces": {"from": "Same"}},
            "listeners": (0..LISTENERS).map(listener).collect::<Vec<_>>(),
        });
        let object = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({"name": name});
            json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec})
        };
        edge.cluster.apply_object(object("Gateway", "edge", spec)).unwrap();
        edge.route("HTTPRoute", "web", "rules: [{backendRefs: [{name: web, port: 80}]}]");
        let served = Served::by(origin, edge.controller(), edge);
        for number in 0..SETS {
            let listener =
                json!({"name": "only", "port": 80, "protocol": "HTTP", "hostname": format!("s{number}.example.com")});
            let spec = json!({"parentRef": {"name": "edge"}, "listeners": [listener]});
            edge.cluster.apply_object(object("ListenerSet", &format!("s{number}"), spec)).unwrap();
        }
        edge.cluster.until("with all its sets", "Gateway", "edge", |gateway| {
            gateway["status"]["attachedListenerSets"] == SETS
                && gateway["status"]["listeners"].as_array().is_some_and(|listeners| listeners.len() == LISTENERS)
                && holds(gateway, &gateway["status"], &["Accepted", "Programmed"])
        });
        let last = format!("s{}", SETS - 1);
        edge.cluster
            .until("programmed", "ListenerSet", &last, |set| holds(set, &set["status"], &["Accepted", "Programmed"]));
        let of_last = json!({
            "parentRefs": [{"kind": "ListenerSet", "name": last}],
            "rules": [{"backendRefs": [{"name": "web", "port": 80}]}],
        });
        edge.cluster.apply_object(object("HTTPRoute", "last", of_last)).unwrap();
        edge.until_served("HTTPRoute", "last");
        until_answered(&format!("{last}.example.com"));
        served.end();
    });
}

/// A second installation by mistake: it has the same controller name and class, but a Lease and an address of its own. Each of the two sees an
/// address in the status of the Gateway that it did not write.
#[test]
fn two_installations_with_one_controller_name() {
    within("two_installations_with_one_controller_name", |edge| {
        let origin = origin(1);
        edge.web(&[origin.address]);
        let address = |number: u8| format!("10.244.0.{number}");
        let publish = |number: u8| format!("203.0.113.{number}");
        let [one, two] = [address(1), address(2)];
        let mut first = edge.controller_with("one", &["--listen-address", &one, "--publish-address", &publish(1)]);
        edge.until_served("HTTPRoute", "web");
        let arguments = ["--listen-address", &two, "--publish-address", &publish(2)];
        let mut second = edge.controller_by(&edge.second_installation(), "two", &arguments);

        // Both serve, and both say what is wrong.
        for address in [&one, &two] {
            let at = format!("{address}:80").parse().unwrap();
            let is_answered = || (answer(at, "a", "/") == (200, "pod-1".into())).then_some(());
            assert!(until(PATIENCE, is_answered).is_some(), "{address} is not served");
        }
        let load = Load::start(format!("{one}:80").parse().unwrap(), "/", 4);
        let said = edge.cluster.until_event("Gateway", "edge", "StatusContested");
        assert!(said.contains("is there a second installation with the controller name steelyard.test/"), "{said}");
        let writes = || {
            let accounts = [edge.name.clone(), format!("{}-second", edge.name)];
            let calls = accounts.iter().flat_map(|account| api_server().audit(&format!("{account}:steelyard")));
            let is_write = |call: &Value| {
                let object = &call["objectRef"];
                object["subresource"] == "status" && object["name"] == "edge"
            };
            calls.filter(is_write).count()
        };
        origin.until_served(2_000);
        assert!(writes() <= TRIES_MAX, "{} writes of one status", writes());

        // The mistake is corrected, and the status is that of the one that is left.
        second.program.signal(Signal::TERM).unwrap();
        second.program.exit_within(PATIENCE).unwrap();
        edge.cluster.until("the address of the first", "Gateway", "edge", |gateway| {
            gateway["status"]["addresses"][0]["value"] == publish(1)
        });
        let total = load.end(&mut first);
        assert_eq!(total.reconnects, 0, "connections of clients were closed: {total:?}");
    });
}

//! What each test has: a namespace of the cluster, a node, and an account for its controllers.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{OnceLock, PoisonError, RwLock};

use serde_json::Value;
use testkit::strict::{Response, ResponseTo, values};
use testkit::{Program, client, until};

use crate::harness::{ADDRESS, ApiServer, Cluster, GATEWAY, Link, PATIENCE, PORT, Relay, condition, documents, node};
use crate::support::network::{self, Links, Network};
use crate::support::{self, Origin, Scratch, Steelyard, local, port, skip, steelyard};

/// Most tests share the API server; one that stops it has it for itself.
static API_SERVER_IN_USE: RwLock<()> = RwLock::new(());

pub fn api_server() -> &'static ApiServer {
    static API_SERVER: OnceLock<ApiServer> = OnceLock::new();
    API_SERVER.get_or_init(ApiServer::start)
}

/// A namespace of the cluster, and a node.
pub struct Edge {
    /// As an administrator sees it. Objects that name no namespace are in this test's.
    pub cluster: Cluster,
    /// Between the node and the API server.
    pub link: Link<'static>,
    /// On the node, between controllers and the API server.
    pub relay: Relay,
    /// The namespace, and the name of the classes.
    pub name: String,
}

/// Runs `test` on a node, with its edge.
pub fn within(name: &str, test: impl FnOnce(&Edge) + Send) {
    let _shared = API_SERVER_IN_USE.read().unwrap_or_else(PoisonError::into_inner);
    on_node(name, test);
}

/// The same, with the API server for itself.
pub fn within_alone(name: &str, test: impl FnOnce(&Edge) + Send) {
    let _alone = API_SERVER_IN_USE.write().unwrap_or_else(PoisonError::into_inner);
    on_node(name, test);
}

/// The same with a network around the node, which is its balancer: clients and endpoints are elsewhere.
pub fn within_network(name: &str, test: impl FnOnce(&Edge, &Network) + Send) {
    let _shared = API_SERVER_IN_USE.read().unwrap_or_else(PoisonError::into_inner);
    in_network(name, test);
}

/// The same, with the API server for itself.
pub fn within_network_alone(name: &str, test: impl FnOnce(&Edge, &Network) + Send) {
    let _alone = API_SERVER_IN_USE.write().unwrap_or_else(PoisonError::into_inner);
    in_network(name, test);
}

fn in_network(name: &str, test: impl FnOnce(&Edge, &Network) + Send) {
    network::within(name, Links::default(), |network| {
        let edge = Edge::new(Link::new(api_server(), &network.balancer), name);
        test(&edge, network);
        edge.no_call_was_refused();
    });
}

fn on_node(name: &str, test: impl FnOnce(&Edge) + Send) {
    if !rustix::process::geteuid().is_root() {
        return skip(name, "network namespaces are root's");
    }
    let node = node();
    let link = Link::new(api_server(), &node);
    node.inside(|| {
        let edge = Edge::new(link, name);
        test(&edge);
        edge.no_call_was_refused();
    });
}

/// A file of `deploy/`.
pub fn manifest(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The account and its rights, of `deploy/gateway.yaml`.
pub fn rights() -> Vec<Value> {
    let kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"];
    let objects = documents(&manifest("gateway.yaml")).into_iter();
    objects.filter(|object| kinds.iter().any(|kind| object["kind"] == *kind)).collect()
}

impl Edge {
    fn new(link: Link<'static>, test: &str) -> Self {
        let name = test.replace('_', "-");
        let cluster = api_server().admin(&name);
        cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}"));
        for object in rights() {
            cluster.apply(&moved(object, &name).to_string());
        }
        cluster.apply(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: {name}}}
spec: {{controllerName: steelyard.test/{name}}}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {{name: {name}}}
spec: {{controller: steelyard.io/ingress-controller}}
"
        ));
        let relay = Relay::start((ADDRESS, PORT).into());
        Self { cluster, link, relay, name }
    }

    /// A controller of this test's objects, at [`GATEWAY`], once it is ready.
    pub fn controller(&self) -> Steelyard {
        self.controller_with("one", &["--listen-address", GATEWAY])
    }

    /// The same with these arguments, called `identity` in the Lease. Each has a token of its own.
    pub fn controller_with(&self, identity: &str, more: &[&str]) -> Steelyard {
        self.controller_through(&self.relay, identity, more)
    }

    /// The same with a way to the API server of its own.
    pub fn controller_through(&self, relay: &Relay, identity: &str, more: &[&str]) -> Steelyard {
        let token = self.cluster.token_in(&self.name, "steelyard");
        self.controller_by(&api_server().kubeconfig(&token, relay.address, &self.name), identity, more)
    }

    /// The same with this kubeconfig.
    pub fn controller_by(&self, kubeconfig: &str, identity: &str, more: &[&str]) -> Steelyard {
        let (program, admin, scratch) = self.controller_begun(kubeconfig, identity, more);
        Steelyard::of(program, admin, scratch)
    }

    /// The same, which may not be ready yet, with its admin address.
    pub fn controller_begun(&self, kubeconfig: &str, identity: &str, more: &[&str]) -> (Program, SocketAddr, Scratch) {
        self.controller_in(kubeconfig, identity, more, &[])
    }

    /// The same with the relay of all, and a clock that is off, as `faketime` writes it: `-60s`.
    pub fn controller_at(&self, clock: &str, identity: &str, more: &[&str]) -> Steelyard {
        let token = self.cluster.token_in(&self.name, "steelyard");
        let kubeconfig = api_server().kubeconfig(&token, self.relay.address, &self.name);
        let library = format!("/usr/lib/{}-linux-gnu/faketime/libfaketimeMT.so.1", std::env::consts::ARCH);
        assert!(std::path::Path::new(&library).exists(), "{library}: install libfaketime");
        // Durations stay right, as on a host whose clock is wrong.
        let variables = [("LD_PRELOAD", library.as_str()), ("FAKETIME", clock), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
        let (program, admin, scratch) = self.controller_in(&kubeconfig, identity, more, &variables);
        Steelyard::of(program, admin, scratch)
    }

    fn controller_in(
        &self,
        kubeconfig: &str,
        identity: &str,
        more: &[&str],
        variables: &[(&str, &str)],
    ) -> (Program, SocketAddr, Scratch) {
        let (admin, scratch) = (local(port()), Scratch::new());
        let file = scratch.write("kubeconfig", kubeconfig);
        let name = &*self.name;
        let mut command = steelyard();
        command.envs(variables.iter().copied());
        command.args(["controller", "--kubeconfig", &file, "--namespace", name, "--identity", identity]);
        command.args(["--controller-name", &format!("steelyard.test/{name}")]);
        command.args(["--gateway-class", name, "--admin", &admin.to_string()]);
        // A test of ingress-nginx is about the class that it names.
        if !more.contains(&"--ingress-nginx") {
            command.args(["--ingress-class", name]);
        }
        command.args(["--workers", "1", "--log", "info,controller=debug"]).args(more);
        (Program::spawn(identity, &mut command).unwrap(), admin, scratch)
    }

    /// A kubeconfig of a second installation: it has a namespace of its own, and so its own Lease and account.
    pub fn second_installation(&self) -> String {
        let name = format!("{}-second", self.name);
        self.cluster.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}}}}}"));
        for object in rights() {
            self.cluster.apply(&moved(object, &name).to_string());
        }
        let token = self.cluster.token_in(&name, "steelyard");
        api_server().kubeconfig(&token, self.relay.address, &name)
    }

    /// Creates the account `limited`, or changes its rights: it has those of `deploy/gateway.yaml`, except for the rules with one of these verbs
    /// and resources, which lose the resource.
    pub fn limit(&self, withheld: &[(&str, &str)]) {
        let name = format!("limited-{}", self.name);
        for object in rights() {
            let mut object = moved(object, &self.name);
            // Roles of the namespace are as they are. Objects that are in no namespace get a name of their own.
            match object["kind"].as_str().unwrap_or_default() {
                "ClusterRole" | "ClusterRoleBinding" => object["metadata"]["name"] = name.clone().into(),
                "RoleBinding" | "ServiceAccount" => object["metadata"]["name"] = "limited".into(),
                _ => continue,
            }
            if object["kind"] == "ClusterRoleBinding" {
                object["roleRef"]["name"] = name.clone().into();
            }
            for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
                subject["name"] = "limited".into();
            }
            for rule in object.get_mut("rules").and_then(Value::as_array_mut).into_iter().flatten() {
                let has_verb = |verb: &str| rule["verbs"].as_array().is_some_and(|verbs| verbs.contains(&verb.into()));
                let lost: Vec<&str> =
                    withheld.iter().filter(|(verb, _)| has_verb(verb)).map(|(_, resource)| *resource).collect();
                if let Some(resources) = rule["resources"].as_array_mut() {
                    resources.retain(|resource| !lost.iter().any(|lost| resource == lost));
                }
            }
            if let Some(rules) = object.get_mut("rules").and_then(Value::as_array_mut) {
                rules.retain(|rule| rule["resources"].as_array().is_some_and(|resources| !resources.is_empty()));
            }
            self.cluster.apply(&object.to_string());
        }
    }

    /// A kubeconfig of the account `limited`.
    pub fn limited(&self) -> String {
        let token = self.cluster.token_in(&self.name, "limited");
        api_server().kubeconfig(&token, self.relay.address, &self.name)
    }

    /// A Service of this name with one port, 80, whose EndpointSlice has these endpoints; all of them listen at the same port.
    #[track_caller]
    pub fn service(&self, name: &str, endpoints: &[SocketAddr]) {
        self.cluster.apply(&format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{clusterIP: None, ports: [{{name: main, port: 80}}]}}}}"
        ));
        self.endpoints(name, endpoints);
    }

    /// Other endpoints of a Service.
    #[track_caller]
    pub fn endpoints(&self, name: &str, endpoints: &[SocketAddr]) {
        let ready: Vec<(SocketAddr, &str)> = endpoints.iter().map(|endpoint| (*endpoint, READY)).collect();
        self.endpoints_with(name, &ready);
    }

    /// The same, each with its conditions.
    #[track_caller]
    pub fn endpoints_with(&self, name: &str, endpoints: &[(SocketAddr, &str)]) {
        let port = endpoints.first().map_or(1, |(endpoint, _)| endpoint.port());
        let list: Vec<String> = endpoints
            .iter()
            .map(|(endpoint, conditions)| format!("{{addresses: ['{}'], conditions: {conditions}}}", endpoint.ip()))
            .collect();
        self.cluster.apply(&format!(
            "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-a, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: main, port: {port}}}]
endpoints: [{}]
",
            list.join(", ")
        ));
    }

    /// A Gateway called `edge` with these listeners, one a line.
    #[track_caller]
    pub fn gateway(&self, listeners: &str) {
        let lines: String = listeners.lines().map(|line| format!("    - {}\n", line.trim())).collect();
        self.cluster.apply(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: {}
  listeners:
{lines}",
            self.name
        ));
    }

    /// A route of this kind to the Gateway `edge`, with these rules as YAML in one line.
    #[track_caller]
    pub fn route(&self, kind: &str, name: &str, rules: &str) {
        self.cluster.apply(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: {kind}
metadata: {{name: {name}}}
spec: {{parentRefs: [{{name: edge}}], {rules}}}
"
        ));
    }

    /// The usual: a Gateway with HTTP at port 80, and an HTTPRoute of all requests to the Service `web` with these endpoints.
    #[track_caller]
    pub fn web(&self, endpoints: &[SocketAddr]) {
        self.gateway("{name: web, port: 80, protocol: HTTP}");
        self.service("web", endpoints);
        self.route("HTTPRoute", "web", "rules: [{backendRefs: [{name: web, port: 80}]}]");
    }

    /// Waits until a route is served as it stands: accepted, its references resolved, for the newest generation.
    #[track_caller]
    pub fn until_served(&self, kind: &str, name: &str) -> Value {
        self.cluster.until("served", kind, name, |route| {
            holds(route, &route["status"]["parents"][0], &["Accepted", "ResolvedRefs"])
        })
    }

    /// Waits until the Gateway `edge` is programmed as it stands.
    #[track_caller]
    pub fn until_programmed(&self) -> Value {
        self.cluster.until("programmed", "Gateway", "edge", |gateway| {
            holds(gateway, &gateway["status"], &["Accepted", "Programmed"])
        })
    }

    /// Nothing that the account may not do was tried, and nothing that it tried was refused for that.
    fn no_call_was_refused(&self) {
        let refused: Vec<Value> = api_server().audit(&format!("{}:steelyard", self.name));
        let refused: Vec<&Value> = refused
            .iter()
            .filter(|event| matches!(event["responseStatus"]["code"].as_u64(), Some(401 | 403)))
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
    }
}

/// Conditions of an endpoint that is there.
pub const READY: &str = "{ready: true, serving: true, terminating: false}";
/// Of one that ends, and still answers.
pub const LEAVING: &str = "{ready: false, serving: true, terminating: true}";

/// Whether all of these conditions hold, and are about the newest generation of the object.
pub fn holds(object: &Value, status: &Value, kinds: &[&str]) -> bool {
    kinds.iter().all(|kind| {
        condition(status, kind).is_some_and(|condition| {
            condition["status"] == "True" && condition["observedGeneration"] == object["metadata"]["generation"]
        })
    })
}

/// The reason of a condition that does not hold; empty where it does, or is not there, or is about another generation.
pub fn fails(object: &Value, status: &Value, kind: &str) -> String {
    let found = condition(status, kind).filter(|condition| {
        condition["status"] == "False" && condition["observedGeneration"] == object["metadata"]["generation"]
    });
    found.and_then(|condition| condition["reason"].as_str()).unwrap_or_default().to_owned()
}

/// An object of [`rights`] as it would be in this namespace, under a name that no other test has where it is of none.
fn moved(mut object: Value, namespace: &str) -> Value {
    if object["kind"] == "ClusterRoleBinding" {
        object["metadata"]["name"] = format!("steelyard-{namespace}").into();
    }
    if object["metadata"]["namespace"].is_string() {
        object["metadata"]["namespace"] = namespace.into();
    }
    for subject in object.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        subject["namespace"] = namespace.into();
    }
    object
}

/// Waits until the cluster of the Service `web` has these endpoints and no others.
#[track_caller]
pub fn until_endpoints(controller: &Steelyard, expect: &[SocketAddr]) {
    let mut expect: Vec<String> = expect.iter().map(ToString::to_string).collect();
    expect.sort_unstable();
    let are_there = || {
        let status = support::status(controller.admin)?;
        let is_it = |cluster: &&Value| cluster["name"].as_str().is_some_and(|name| name.starts_with("web."));
        let cluster = status["clusters"].as_array()?.iter().find(is_it)?;
        let endpoints = cluster["endpoints"].as_array().into_iter().flatten();
        let mut found: Vec<&str> = endpoints.filter_map(|endpoint| endpoint["address"].as_str()).collect();
        found.sort_unstable();
        (found == expect).then_some(())
    };
    if until(PATIENCE, are_there).is_none() {
        panic!("not {expect:?} after {PATIENCE:?}: {:#}", controller.status()["clusters"]);
    }
}

/// Where something listens that stands for a pod.
pub fn pod(number: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 244, 1, number]), port)
}

/// An origin that stands for a pod.
pub fn origin(number: u8) -> Origin {
    Origin::start_at(pod(number, 8080), &format!("pod-{number}"), 18)
}

/// A port of the address where the controller of a test listens.
pub fn gateway(port: u16) -> SocketAddr {
    SocketAddr::new(GATEWAY.parse().unwrap(), port)
}

/// One GET on a connection of its own.
#[track_caller]
pub fn ask(to: SocketAddr, host: &str, path: &str) -> Response {
    let mut conn = client::connect("client", to, None).unwrap();
    conn.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap()
}

/// Its status, and the pod that answered it; empty: none did.
#[track_caller]
pub fn answer(to: SocketAddr, host: &str, path: &str) -> (u16, String) {
    let response = ask(to, host, path);
    (response.status, header(&response, "x-origin"))
}

/// A header of a response; empty: it is not there.
pub fn header(response: &Response, name: &str) -> String {
    let found = values(&response.headers, name).first().map(|value| String::from_utf8_lossy(value).into_owned());
    found.unwrap_or_default()
}

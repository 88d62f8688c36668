//! `deploy/`: an API server takes every manifest, and what they say runs, as they say it and with no more rights than they give.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{Exit, PATIENCE, Program, Signal, until};

use crate::edge::{Edge, answer, api_server, manifest, within, within_network_alone};
use crate::harness::{ADDRESS, PORT, condition, documents};
use crate::support::network::{Family, detach};
use crate::support::{Scratch, Steelyard, get, local};

/// What `kubectl apply -f` takes.
const GATEWAY: &str = "gateway.yaml";
const KERNEL_PLANE: &str = "kernel-plane.yaml";

/// Writes of one status in the test below, in which an object changes a few times. Two that disagree write it some times a second.
const STATUS_WRITES_MAX: usize = 15;

/// Applies a file, and gives its pod template.
fn apply(edge: &Edge, file: &str) -> Value {
    template(&edge.cluster.apply(&manifest(file)))
}

fn template(objects: &[Value]) -> Value {
    let template = |object: &Value| Some(object["spec"]["template"].clone()).filter(Value::is_object);
    objects.iter().find_map(template).expect("a pod template")
}

/// What the chart makes of `deploy/values/trial-NAME.yaml`: `cargo xtask test kube` has rendered it.
pub fn chart(name: &str) -> String {
    let folder = std::env::var("STEELYARD_KUBE").expect("`cargo xtask test kube` sets STEELYARD_KUBE");
    let path = format!("{folder}/charts/{name}.yaml");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn the_api_server_takes_every_manifest() {
    within("the_api_server_takes_every_manifest", |edge| {
        for (namespace, file, may_have_host_pid) in
            [("steelyard", GATEWAY, false), ("steelyard-kernel-plane", KERNEL_PLANE, true)]
        {
            let mut pod = apply(edge, file);
            judge(edge, &mut pod, namespace).unwrap_or_else(|why| panic!("{namespace}: {why}"));
            // That they are judged at all:
            pod["spec"]["hostPID"] = true.into();
            assert_eq!(judge(edge, &mut pod, namespace).is_ok(), may_have_host_pid);
        }
    });
}

/// Nobody makes pods of templates here: so that they are judged, by the pod security standards too, we ask for one.
fn judge(edge: &Edge, template: &mut Value, namespace: &str) -> Result<Value, String> {
    template["apiVersion"] = "v1".into();
    template["kind"] = "Pod".into();
    template["metadata"]["name"] = "trial".into();
    template["metadata"]["namespace"] = namespace.into();
    edge.cluster.dry_run(template)
}

#[test]
fn the_api_server_takes_what_the_chart_makes_of_other_values() {
    within("the_api_server_takes_what_the_chart_makes_of_other_values", |edge| {
        // The Prometheus operator's own definition says more; that the object is what it asks for is for its project to test.
        edge.cluster.apply(SERVICE_MONITORS);
        edge.cluster.until_defined("servicemonitors.monitoring.coreos.com");
        for (name, objects_min) in [("everything", 15), ("little", 11), ("scalars", 12), ("node", 7)] {
            let objects = documents(&chart(name));
            assert!(objects.len() >= objects_min, "{name}: {} objects", objects.len());
            for object in &objects {
                // The rest stays a question: other tests would meet a default class, and more.
                let answer = match object["kind"].as_str() {
                    Some("Namespace" | "ServiceAccount") => edge.cluster.apply_object(object.clone()),
                    _ => edge.cluster.dry_run(object),
                };
                answer.unwrap_or_else(|why| panic!("{name}: {} {why}", object["kind"]));
            }
            judge(edge, &mut template(&objects), &format!("trial-{name}"))
                .unwrap_or_else(|why| panic!("{name}: {why}"));
        }
    });
}

/// No value can become a different type of YAML, or a second argument.
#[test]
fn the_chart_passes_texts_on_as_they_are() {
    let pod = template(&documents(&chart("scalars")));
    let arguments = &pod["spec"]["containers"][0]["args"];
    let arguments: Vec<&str> =
        arguments.as_array().unwrap().iter().map(|argument| argument.as_str().unwrap()).collect();
    let starts =
        |flag: &str| arguments.iter().filter(|argument| argument.starts_with(flag)).copied().collect::<Vec<_>>();
    assert_eq!(starts("--publish-address"), ["--publish-address=1", "--publish-address=a\n- --no-such-flag: 'b"]);
    assert_eq!(starts("--gateway-class"), ["--gateway-class=123"]);
    assert_eq!(starts("--ingress-class"), ["--ingress-class=1e3"]);
    assert_eq!(starts("--trusted-proxy"), ["--trusted-proxy=null"]);
    assert_eq!(starts("--no-such-flag"), [""; 0]);
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 1_000_000);
}

const SERVICE_MONITORS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: servicemonitors.monitoring.coreos.com}
spec:
  group: monitoring.coreos.com
  scope: Namespaced
  names: {kind: ServiceMonitor, plural: servicemonitors}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
";

/// A pod as its template says, on this node: its arguments, environment, account, user, capabilities, and a root that it cannot write to.
struct Pod<'e> {
    edge: &'e Edge,
    namespace: &'static str,
    template: Value,
    /// Arguments that are each operator's own, by how they begin.
    own: &'e [(&'e str, &'e str)],
}

impl Pod<'_> {
    fn start(&self, name: &str) -> Steelyard {
        let scratch = Scratch::new();
        let account = self.edge.cluster.token_in(self.namespace, "steelyard");
        scratch.write("token", &account);
        scratch.write("namespace", self.namespace);
        scratch.write("ca.crt", &fs::read_to_string(api_server().ca()).unwrap());
        let container = &self.template["spec"]["containers"][0];
        let environment = self.environment(name);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", SANDBOX, "sandbox"]).arg(scratch.path());
        command.arg(e2e::binary::steelyard().unwrap()).args(self.privileges());
        let arguments = self.arguments(container, &environment);
        let admin = arguments.iter().find_map(|argument| argument.strip_prefix("--admin=")).unwrap_or("127.0.0.1:9900");
        let admin = admin.parse().unwrap();
        command.arg("/run/steelyard").args(&arguments).envs(environment);
        command.env("KUBERNETES_SERVICE_HOST", ADDRESS.to_string()).env("KUBERNETES_SERVICE_PORT", PORT.to_string());
        command.env("STEELYARD_LOG", "info,controller=debug");
        Steelyard::of(Program::spawn(name, &mut command).unwrap(), admin, scratch)
    }

    fn environment(&self, name: &str) -> Vec<(String, String)> {
        let container = &self.template["spec"]["containers"][0];
        let value = |variable: &Value| match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.name") => name.to_owned(),
            Some("metadata.namespace") => self.namespace.to_owned(),
            Some("spec.nodeName") => "node-a".to_owned(),
            // As the kubelet does it for a pod without this label.
            Some("metadata.labels['topology.kubernetes.io/zone']") => String::new(),
            Some(other) => panic!("a pod of the tests has no {other}"),
            None => variable["value"].as_str().expect("a value").to_owned(),
        };
        let variables = container["env"].as_array().into_iter().flatten();
        variables.map(|variable| (variable["name"].as_str().unwrap().to_owned(), value(variable))).collect()
    }

    fn arguments(&self, container: &Value, environment: &[(String, String)]) -> Vec<String> {
        let argument = |argument: &Value| {
            let written = argument.as_str().unwrap();
            let own = self.own.iter().find(|(begins, _)| written.starts_with(begins));
            let text = own.map_or(written.to_owned(), |(begins, value)| format!("{begins}{value}"));
            environment.iter().fold(text, |text, (name, value)| text.replace(&format!("$({name})"), value))
        };
        container["args"].as_array().expect("args").iter().map(argument).collect()
    }

    /// What is left of root's privileges, for setpriv(1).
    fn privileges(&self) -> Vec<String> {
        let of_pod = &self.template["spec"]["securityContext"];
        let of_container = &self.template["spec"]["containers"][0]["securityContext"];
        assert_eq!(of_container["readOnlyRootFilesystem"], true);
        assert_eq!(of_container["allowPrivilegeEscalation"], false);
        assert_eq!(of_container["capabilities"]["drop"], json!(["ALL"]));
        let user = of_pod["runAsUser"].as_u64().expect("runAsUser").to_string();
        let added = of_container["capabilities"]["add"].as_array().into_iter().flatten();
        let added: String = added.map(|name| format!(",+{}", name.as_str().unwrap().to_lowercase())).collect();
        let words =
            ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "--no-new-privs", "--inh-caps=-all"];
        let mut words = words.map(str::to_owned).to_vec();
        words.push(format!("--bounding-set=-all{added}"));
        words.push("--".to_owned());
        words
    }
}

/// In a mount namespace of its own: the account where pods find it, the program where any user may run it, and nothing that can be written to.
/// $1: what the account consists of; $2: the program; the rest is run.
const SANDBOX: &str = "
mount -t tmpfs -o mode=755 pod /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
cp \"$1/token\" \"$1/namespace\" \"$1/ca.crt\" /run/secrets/kubernetes.io/serviceaccount
chmod -R a+rX /run/secrets
cp \"$2\" /run/steelyard
mount -o remount,bind,ro /run
mount -o remount,bind,ro /
shift 2
exec \"$@\"
";

#[test]
fn pods_do_their_whole_work_with_these_rights() {
    within_network_alone("pods_do_their_whole_work_with_these_rights", |edge, network| {
        let origins = network.origins();
        network.balancer.sysctl("net.ipv4.ip_unprivileged_port_start", "0").unwrap();
        let gateway_pod = Pod { edge, namespace: "steelyard", template: apply(edge, GATEWAY), own: &[] };
        let plane_pod = Pod {
            edge,
            namespace: "steelyard-kernel-plane",
            template: apply(edge, KERNEL_PLANE),
            own: &[("--address-pool=", "20.20.20.20-20.20.20.40")],
        };
        // As every node: by that clients come, and the routes to the endpoints lead elsewhere.
        network.balancer.ip(&format!("route add default via {} dev client0", Family::V4.client())).unwrap();
        // Dropped last: also where the test fails, nothing stays attached.
        let detaching = Detaching;
        let mut gateway = gateway_pod.start("steelyard-gateway");
        let mut plane = plane_pod.start("steelyard-kernel-plane");
        // Where the probes of the manifest and Prometheus ask.
        assert_eq!(get(local(9902), "/readyz").map(|response| response.status), Some(200));
        assert_eq!(get(local(9902), "/status").map(|response| response.status), Some(404));
        one_of_each(edge);

        let own = Family::V4.gateway();
        edge.cluster.until("served", "HTTPRoute", "all", |route| {
            let parent = &route["status"]["parents"][0];
            condition(parent, "ResolvedRefs").is_some_and(|found| found["status"] == "True")
        });
        assert_eq!(answer((own, 80).into(), "a", "/").0, 200);
        let service = edge.cluster.until("given an address", "Service", "balanced", |service| {
            service["status"]["loadBalancer"]["ingress"][0]["ip"].is_string()
        });
        let vip = service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().unwrap();
        // As a cloud gives the gateway's own Service an address: statuses have it from there.
        let assigned = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.7"}]}}});
        edge.cluster.patch_status_in("Service", "steelyard", "steelyard", assigned);
        edge.cluster.until("at the address of the Service", "Gateway", "edge", |gateway| {
            gateway["status"]["addresses"][0]["value"] == "203.0.113.7"
        });
        a_service_of_its_own(edge);
        network.get((vip.parse::<std::net::IpAddr>().unwrap(), 80).into(), 4, 100);
        assert!(origins[0].requests() > 100);
        until_all_is_written(edge);

        for pod in [&mut gateway, &mut plane] {
            pod.program.signal(Signal::TERM).unwrap();
            assert_eq!(pod.program.exit_within(2 * PATIENCE).unwrap(), Exit::Code(0), "{}", pod.program.log());
        }
        drop(detaching);
        rights_are_those_that_were_used();
        nobody_takes_back_what_another_writes();
    });
}

/// Takes down at its end what a kernel plane leaves in place on purpose.
struct Detaching;

impl Drop for Detaching {
    fn drop(&mut self) {
        let detached = detach();
        if !std::thread::panicking() {
            assert_eq!(detached.exit, Exit::Code(0), "{}{}", detached.stdout, detached.stderr);
        }
    }
}

/// An object of each kind that something is written to.
fn one_of_each(edge: &Edge) {
    let endpoint = std::net::SocketAddr::new(Family::V4.endpoint(0), 80);
    edge.service("web", &[endpoint]);
    edge.service("verified", &[endpoint]);
    edge.cluster.apply(&ONE_OF_EACH.replace("{class}", &edge.name));
    edge.endpoints("balanced", &[endpoint]);
}

const ONE_OF_EACH: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: steelyard
  allowedListeners: {namespaces: {from: Same}}
  listeners:
    - {name: web, port: 80, protocol: HTTP}
    - {name: tls, port: 8443, protocol: TLS, tls: {mode: Passthrough}}
    - {name: tcp, port: 7000, protocol: TCP}
    - {name: udp, port: 53, protocol: UDP}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: more}
spec: {parentRef: {name: edge}, listeners: [{name: more, port: 81, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: all}
spec:
  parentRefs: [{name: edge}]
  rules:
    - {backendRefs: [{name: web, port: 80}]}
    - {matches: [{path: {value: /verified}}], backendRefs: [{name: verified, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: all}
spec: {parentRefs: [{name: edge}], hostnames: [grpc.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: all}
spec: {parentRefs: [{name: edge}], hostnames: [tls.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: all}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: all}
spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: steelyard.io/v1alpha1
kind: TrafficPolicy
metadata: {name: timed}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: edge}]
  route: {timeout: 10s}
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: {name: verified}
spec:
  targetRefs: [{group: '', kind: Service, name: verified}]
  validation: {hostname: web.example.com, wellKnownCACertificates: System}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: broken}
spec:
  ingressClassName: steelyard
  rules: [{host: in.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: unknown}}}}]}}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  loadBalancerClass: steelyard.io/kernel-plane
  allocateLoadBalancerNodePorts: false
  ports: [{name: main, port: 80}]
";

/// A Gateway asks for a Service, and then no longer does.
fn a_service_of_its_own(edge: &Edge) {
    edge.cluster.apply(PODS);
    edge.cluster.apply(OWN);
    let name = |suffix: &str| format!("own-steelyard{suffix}");
    for (kind, name) in [("Service", name("")), ("EndpointSlice", name("-ipv4"))] {
        edge.cluster.until("written", kind, &name, |object| object["metadata"]["labels"]["team"] == "web");
    }
    edge.cluster.patch("Gateway", "own", json!({"spec": {"infrastructure": null}}));
    for (kind, name) in [("Service", name("")), ("EndpointSlice", name("-ipv4"))] {
        let is_gone = || edge.cluster.get(kind, &name).is_none().then_some(());
        assert!(until(PATIENCE, is_gone).is_some(), "{kind} {name} is still there");
    }
}

/// The endpoints of the Service of the chart.
const PODS: &str = "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: steelyard-a, namespace: steelyard, labels: {kubernetes.io/service-name: steelyard}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [10.244.0.7], nodeName: node-a}]
";

const OWN: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: own}
spec:
  gatewayClassName: steelyard
  infrastructure: {labels: {team: web}}
  listeners: [{name: web, port: 80, protocol: HTTP}]
";

/// Each has a status, and what is wrong has an Event.
fn until_all_is_written(edge: &Edge) {
    for (kind, name) in [("Gateway", "edge"), ("ListenerSet", "more")] {
        edge.cluster.until("told", kind, name, |object| condition(&object["status"], "Programmed").is_some());
    }
    for kind in ["HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"] {
        edge.cluster
            .until("told", kind, "all", |route| condition(&route["status"]["parents"][0], "Accepted").is_some());
    }
    for (kind, name) in [("BackendTLSPolicy", "verified"), ("TrafficPolicy", "timed")] {
        edge.cluster
            .until("told", kind, name, |policy| condition(&policy["status"]["ancestors"][0], "Accepted").is_some());
    }
    let is_told = |class: &Value| condition(&class["status"], "Accepted").is_some();
    edge.cluster.until("told", "GatewayClass", "steelyard", is_told);
    edge.cluster.until("told", "Ingress", "broken", |ingress| ingress["status"]["loadBalancer"]["ingress"].is_array());
    // Of one object, for one reason, and yet two things.
    for port in ["unknown", "other"] {
        let backend = json!({"service": {"name": "web", "port": {"name": port}}});
        let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
        let rule = json!({"host": "in.example.com", "http": {"paths": [path]}});
        edge.cluster.patch("Ingress", "broken", json!({"spec": {"rules": [rule]}}));
        edge.cluster.until_event_with("Ingress", "broken", "BackendNotFound", port);
    }
}

/// All that both accounts asked for.
fn calls() -> Vec<Value> {
    ["steelyard:steelyard", "steelyard-kernel-plane:steelyard"]
        .iter()
        .flat_map(|name| api_server().audit(name))
        .collect()
}

/// The status of an object is written as often as it changes, not by two in turn.
fn nobody_takes_back_what_another_writes() {
    let mut writes: BTreeMap<String, usize> = BTreeMap::new();
    for call in calls().iter().filter(|call| call["objectRef"]["subresource"] == "status") {
        *writes.entry(call["requestURI"].to_string()).or_default() += 1;
    }
    let many: Vec<_> = writes.iter().filter(|(_, count)| **count > STATUS_WRITES_MAX).collect();
    assert!(many.is_empty(), "{many:?}");
    assert!(!writes.is_empty());
}

/// What the accounts did, by group, resource and verb, and what they may do, are the same.
fn rights_are_those_that_were_used() {
    let mut used = BTreeSet::new();
    for event in calls() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let subresource = object["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
        let what = format!("{}{subresource}", text(&object["resource"]));
        assert!(event["responseStatus"]["code"] != 403, "{event:#}");
        let verb = text(&event["verb"]);
        if verb == "patch" && event["responseStatus"]["code"] == 201 {
            // An apply that creates an object needs this right too.
            used.insert((text(&object["apiGroup"]), what.clone(), "create".to_owned()));
        }
        used.insert((text(&object["apiGroup"]), what, verb));
    }
    let mut granted = BTreeSet::new();
    for role in documents(&manifest(GATEWAY)) {
        for rule in role["rules"].as_array().into_iter().flatten() {
            let list = |key: &str| rule[key].as_array().cloned().unwrap_or_default().into_iter();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            for (group, resource) in
                list("apiGroups").flat_map(|group| list("resources").map(move |resource| (group.clone(), resource)))
            {
                granted.extend(list("verbs").map(|verb| (text(&group), text(&resource), text(&verb))));
            }
        }
    }
    let idle: Vec<_> = granted.difference(&used).collect();
    assert!(idle.is_empty(), "rights that nobody needed: {idle:?}");
    let more: Vec<_> = used.difference(&granted).collect();
    assert!(more.is_empty(), "done without a right: {more:?}");
}

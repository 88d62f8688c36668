//! Every Service of the cluster, in the place of kube-proxy. curl and dig ask from outside, from the nodes and from pods.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use serde_json::Value;
use testkit::{Exit, Program, until};

use crate::load::Load;
use crate::node;
use crate::site::{CHART, KERNEL_PLANES, PATIENCE, Site, Workload, site};

const NODES: [&str; 2] = ["n0", "n1"];

const PODS: Workload = Workload { namespace: "near", name: "daemonset/web", selector: "app=web" };

/// An address that no node has. The router sends its packets to n0.
const EXTERNAL: &str = "198.51.100.7";

/// Where the API server listens.
const API_SERVER: &str = "10.90.0.1";

/// The address of the Service `kubernetes`, which n0 also has as its own, so that the other tests need no proxy.
const API_SERVICE: &str = "10.96.0.1";

/// The address of the clients outside.
const ROUTER: &str = "10.90.0.254";

/// Connections, or datagrams, of which each endpoint of two gets one: it would miss one time in half a million.
const ASKED: usize = 20;

/// A pod on each node. Each is a web server and a name server with the name of the pod, and has the clients that ask.
const MANIFEST: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: near}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web, namespace: near}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, serves: both}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
        - name: web
          image: localhost/web:1
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
          lifecycle: {preStop: {sleep: {seconds: 3}}}
        - name: names
          image: localhost/names:1
          args: ['--txt-record=who.test,$(POD)']
          env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
          ports: [{name: dns, containerPort: 53, protocol: UDP}]
          lifecycle: {preStop: {sleep: {seconds: 3}}}
---
apiVersion: v1
kind: Service
metadata: {name: open, namespace: near}
spec:
  type: NodePort
  selector: {app: web}
  externalIPs: [198.51.100.7]
  ports: [{name: http, port: 80, targetPort: http}, {name: dns, port: 53, targetPort: dns, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: local, namespace: near}
spec:
  type: LoadBalancer
  loadBalancerClass: steelyard.io/kernel-plane
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  selector: {serves: both}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: near}
spec: {sessionAffinity: ClientIP, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: same-node, namespace: near}
spec: {trafficDistribution: PreferSameNode, selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
";

/// Where a client runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Outside,
    /// A process of the node.
    On(&'static str),
    /// The pod on the node, which is an endpoint itself.
    PodOn(&'static str),
}

const INSIDE: [Place; 4] = [Place::On("n0"), Place::On("n1"), Place::PodOn("n0"), Place::PodOn("n1")];

impl Place {
    fn node(self) -> Option<&'static str> {
        match self {
            Self::Outside => None,
            Self::On(node) | Self::PodOn(node) => Some(node),
        }
    }
}

/// The Services, as the cluster has made them.
struct Near<'s> {
    site: &'s Site,
    open: Value,
    local: Value,
}

impl<'s> Near<'s> {
    fn open(site: &'s Site) -> Self {
        site.apply(MANIFEST);
        site.until_complete(&PODS);
        let address = "--for=jsonpath={.status.loadBalancer.ingress[0].ip}";
        site.kubectl(&["--namespace=near", "wait", address, "service/local", "--timeout=1m"]);
        let service = |name: &str| site.get(&["--namespace=near", "service", name]);
        Self { site, open: service("open"), local: service("local") }
    }

    fn cluster_ip(&self, name: &str) -> SocketAddr {
        at(&self.site.get(&["--namespace=near", "service", name])["spec"]["clusterIP"], 80)
    }

    /// The name of the pod on this node.
    fn pod(&self, node: &str) -> String {
        let pods = ["--namespace=near", "pods", "--selector=app=web", "--field-selector"];
        let pods = self.site.get(&[&pods[..], &[&format!("spec.nodeName={node},status.phase=Running")]].concat());
        let is_there = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        let pod = pods["items"].as_array().into_iter().flatten().find(is_there);
        pod.unwrap_or_else(|| panic!("no pod on {node}: {pods:#}"))["metadata"]["name"].as_str().unwrap().to_owned()
    }

    fn pods(&self) -> BTreeSet<String> {
        NODES.iter().map(|node| self.pod(node)).collect()
    }

    /// Runs a client at a place. Its output, if it succeeds; otherwise its exit code and its message.
    fn run(&self, place: Place, words: &[&str]) -> Result<String, String> {
        self.finish(&mut self.client(place, words))
    }

    /// The command that runs a client at a place. The API server may be asked for the name of a pod.
    fn client(&self, place: Place, words: &[&str]) -> Command {
        match place {
            Place::Outside => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]);
                command
            }
            Place::On(node) => node::command(self.site, node, words),
            Place::PodOn(node) => {
                let mut command = Command::new(self.site.programs.join("kubectl"));
                command.env("KUBECONFIG", self.site.run.join("pki/admin.conf")).arg("--namespace=near");
                command.args([
                    &format!("--server=https://{API_SERVER}"),
                    "exec",
                    &self.pod(node),
                    "--container=names",
                    "--",
                ]);
                command.args(words);
                command
            }
        }
    }

    fn finish(&self, command: &mut Command) -> Result<String, String> {
        let finished = self.site.client.inside(|| Program::run("client", command)).unwrap();
        match finished.exit {
            Exit::Code(0) => Ok(finished.stdout),
            exit => Err(format!("{exit:?} {}{}", finished.stdout, finished.stderr)),
        }
    }

    /// Sends requests, each on a connection of its own. Returns the answers.
    fn answers(&self, place: Place, to: SocketAddr, path: &str) -> Result<BTreeSet<String>, String> {
        let url = format!("http://{to}/{path}[1-{ASKED}]");
        let words = ["curl", "-sS", "--max-time", "5", "-H", "Connection: close", "-w", "\n", &url];
        self.run(place, &words).map(|said| said.lines().map(str::to_owned).collect())
    }

    /// Asks until exactly these pods answer.
    fn until_answers(&self, place: Place, to: SocketAddr, expect: &BTreeSet<String>) {
        let mut last = Ok(BTreeSet::new());
        let is_so = || {
            last = self.answers(place, to, "");
            (last.as_ref().ok() == Some(expect)).then_some(())
        };
        if until(PATIENCE, is_so).is_none() {
            panic!("{place:?} asks {to}: not {expect:?}: {last:?}\n{}", self.status());
        }
    }

    /// Asks the name server by datagrams until exactly these pods answer.
    fn until_resolves(&self, place: Place, to: SocketAddr, expect: &BTreeSet<String>) {
        let (server, port) = (format!("@{}", to.ip()), to.port().to_string());
        let fixed = ["dig", "+short", "+time=2", "+tries=2", &server, "-p", &port];
        let words = [&fixed[..], &["who.test", "TXT"].repeat(ASKED)].concat();
        let mut last = Ok(String::new());
        let is_so = || {
            last = self.run(place, &words);
            let names = last.as_ref().ok()?.lines().map(|line| line.trim_matches('"').to_owned());
            (names.collect::<BTreeSet<_>>() == *expect).then_some(())
        };
        if until(PATIENCE, is_so).is_none() {
            panic!("{place:?} asks {to}: not {expect:?}: {last:?}\n{}", self.status());
        }
    }

    /// What the kernel planes say, for the message of a failure.
    fn status(&self) -> String {
        let Workload { namespace, selector, .. } = KERNEL_PLANES;
        let pods = self.site.pods(&KERNEL_PLANES);
        let said = pods.iter().map(|pod| {
            let status = ["--namespace", namespace, "exec", pod, "--", "steelyard", "status", "--admin=127.0.0.1:9901"];
            self.site.try_kubectl(&status).unwrap_or_else(|why| why)
        });
        let said: Vec<String> = said.collect();
        let logs =
            self.site.try_kubectl(&["--namespace", namespace, "logs", "--selector", selector, "--tail=30", "--prefix"]);
        said.join("\n") + &logs.unwrap_or_else(|why| why)
    }
}

fn at(address: &Value, port: u16) -> SocketAddr {
    let address: IpAddr = address.as_str().unwrap_or_default().parse().unwrap_or_else(|why| panic!("{address}: {why}"));
    SocketAddr::new(address, port)
}

fn port(value: &Value) -> u16 {
    value.as_u64().and_then(|port| port.try_into().ok()).unwrap_or_else(|| panic!("{value} is not a port"))
}

fn one(name: &str) -> BTreeSet<String> {
    BTreeSet::from([name.to_owned()])
}

/// What the documentation says about a node without kube-proxy, on both nodes of the cluster.
#[test]
fn steelyard_is_in_the_place_of_kube_proxy() {
    let site = site();
    if !site.run.join("n0/cgroup").exists() || !std::path::Path::new("/sys/fs/cgroup/unified").exists() {
        use std::io::Write;
        _ = writeln!(std::io::stderr(), "SKIP steelyard_is_in_the_place_of_kube_proxy: no control groups of version 2");
        return;
    }
    let release = ["steelyard", "--namespace=steelyard-kernel-plane"];
    let values = ["kubeProxyReplacement=true", "socketCgroup=/run/cgroup", "apiServer.port=443"];
    let values = values.map(|value| format!("--set={value}"));
    let host = format!("--set=apiServer.host={API_SERVER}");
    let values = values.each_ref().map(String::as_str);
    site.helm(&[&["upgrade"], &release[..], &[CHART, "--reuse-values", "--wait", &host], &values].concat());
    site.until_complete(&KERNEL_PLANES);
    site.client.ip(&format!("route replace {EXTERNAL} via {API_SERVER} dev n0 onlink")).unwrap();
    let near = Near::open(site);

    every_address(&near);
    names(&near);
    the_api_server(&near);
    policies(&near);
    no_endpoint_on_a_node(&near);
    a_pod_is_replaced(&near);
    the_process_ends(&near);

    site.kubectl(&["delete", "namespace", "near", "--wait=false"]);
    site.helm(&[&["rollback"], &release[..], &["--wait"]].concat());
    site.until_complete(&KERNEL_PLANES);
}

fn every_address(near: &Near<'_>) {
    let (both, web, node_port) =
        (near.pods(), near.cluster_ip("open"), port(&near.open["spec"]["ports"][0]["nodePort"]));
    let external = at(&EXTERNAL.into(), 80);
    let ports = ["10.90.0.1", "10.244.0.1", "10.90.0.2"].map(|address| at(&address.into(), node_port));
    for place in INSIDE {
        for to in [web, external].into_iter().chain(ports) {
            near.until_answers(place, to, &both);
        }
    }
    for to in [external].into_iter().chain(ports) {
        near.until_answers(Place::Outside, to, &both);
    }
    // A pod is seen with its own address: no packet is translated.
    let pod =
        near.site.get(&["--namespace=near", "pod", &near.pod("n0")])["status"]["podIP"].as_str().unwrap().to_owned();
    assert_eq!(near.answers(Place::PodOn("n0"), web, "client"), Ok(one(&pod)));
    println!(
        "without kube-proxy: a cluster IP, an external IP and a node port at three addresses answer at five places"
    );
}

fn names(near: &Near<'_>) {
    let (both, server) = (near.pods(), SocketAddr::new(near.cluster_ip("open").ip(), 53));
    let node_port = SocketAddr::new(API_SERVER.parse().unwrap(), port(&near.open["spec"]["ports"][1]["nodePort"]));
    for (place, to) in INSIDE.map(|place| (place, server)).into_iter().chain([
        (Place::Outside, node_port),
        (Place::Outside, at(&EXTERNAL.into(), 53)),
        (Place::PodOn("n1"), node_port),
    ]) {
        near.until_resolves(place, to, &both);
    }
}

/// Without an address of its own on the node, only Steelyard leads to the Service `kubernetes`.
fn the_api_server(near: &Near<'_>) {
    let url = format!("https://{API_SERVICE}/version");
    let n0 = |words: &[&str]| near.run(Place::On("n0"), &[&["ip", "address"], words].concat()).unwrap();
    let address = format!("{API_SERVICE}/32");
    let clients = INSIDE.map(|place| near.client(place, &["curl", "-sSk", "--max-time", "5", &url]));
    n0(&["del", &address, "dev", "lo"]);
    let said = clients.map(|mut client| near.finish(&mut client));
    n0(&["add", &address, "dev", "lo"]);
    for (place, said) in INSIDE.iter().zip(said) {
        assert!(said.as_ref().is_ok_and(|said| said.contains("gitVersion")), "{place:?}: {said:?}\n{}", near.status());
    }
}

fn policies(near: &Near<'_>) {
    let (both, local) = (near.pods(), near.cluster_ip("local"));
    let balancer = at(&near.local["status"]["loadBalancer"]["ingress"][0]["ip"], 80);
    let node_port = port(&near.local["spec"]["ports"][0]["nodePort"]);
    let health = port(&near.local["spec"]["healthCheckNodePort"]);
    // The router sends packets for the address of the balancer to n0.
    near.until_answers(Place::Outside, balancer, &one(&near.pod("n0")));
    assert_eq!(near.answers(Place::Outside, balancer, "client"), Ok(one(ROUTER)));
    for (node, address) in NODES.iter().zip(["10.90.0.1", "10.90.0.2"]) {
        let (here, to) = (one(&near.pod(node)), at(&address.into(), node_port));
        near.until_answers(Place::Outside, to, &here);
        assert_eq!(near.answers(Place::Outside, to, "client"), Ok(one(ROUTER)));
        let said =
            near.run(Place::Outside, &["curl", "-sS", "--max-time", "5", &format!("http://{address}:{health}/")]);
        assert!(said.as_ref().is_ok_and(|said| said.contains(r#""localEndpoints":1"#)), "{said:?}");
    }
    let near_node = near.cluster_ip("same-node");
    for place in INSIDE {
        let here = one(&near.pod(place.node().unwrap_or_default()));
        near.until_answers(place, local, &here);
        near.until_answers(place, near_node, &here);
        // `externalTrafficPolicy: Local` restricts clients outside only.
        near.until_answers(place, balancer, &both);
    }
    let sticky = near.cluster_ip("sticky");
    for place in INSIDE {
        let first = near.answers(place, sticky, "").unwrap();
        assert_eq!(first.len(), 1, "{place:?} is not kept at one endpoint: {first:?}");
        assert_eq!(near.answers(place, sticky, ""), Ok(first), "{place:?}");
    }
}

fn no_endpoint_on_a_node(near: &Near<'_>) {
    let (local, pod) = (near.cluster_ip("local"), near.pod("n1"));
    let (node_port, health) =
        (port(&near.local["spec"]["ports"][0]["nodePort"]), port(&near.local["spec"]["healthCheckNodePort"]));
    let label = |word: &str| near.site.kubectl(&["--namespace=near", "label", "pod", &pod, word]);
    label("serves-");
    let url = format!("http://10.90.0.2:{health}/");
    let ask = || near.run(Place::Outside, &["curl", "-sS", "--max-time", "5", "-w", "%{http_code}", &url]);
    let is_sick = || ask().is_ok_and(|said| said.ends_with("503")).then_some(());
    assert!(until(PATIENCE, is_sick).is_some(), "{:?}", ask());
    for place in [Place::On("n1"), Place::PodOn("n1")] {
        let refused = near.answers(place, local, "").unwrap_err();
        assert!(refused.starts_with("Code(7)"), "{place:?}: {refused}");
    }
    let to = format!("http://10.90.0.2:{node_port}/");
    let dropped = near.run(Place::Outside, &["curl", "-sS", "--max-time", "1", &to]).unwrap_err();
    assert!(dropped.starts_with("Code(28)"), "{dropped}");
    let status = near.status();
    assert!(status.contains("no_local_endpoint"), "{status}");
    label("serves=both");
    near.until_answers(Place::On("n1"), local, &one(&pod));
}

/// New connections leave a pod that terminates while it still answers, so none is lost.
fn a_pod_is_replaced(near: &Near<'_>) {
    let (web, node_port) = (near.cluster_ip("open"), port(&near.open["spec"]["ports"][0]["nodePort"]));
    let load = Load::start(near.site, at(&API_SERVER.into(), node_port), "near.test");
    let old = near.pod("n1");
    near.site.kubectl(&["--namespace=near", "delete", "pod", &old]);
    near.site.until_complete(&PODS);
    let both = near.pods();
    assert!(!both.contains(&old));
    for place in [Place::On("n0"), Place::PodOn("n0"), Place::PodOn("n1")] {
        near.until_answers(place, web, &both);
        near.until_resolves(place, SocketAddr::new(web.ip(), 53), &both);
    }
    load.end(near.site, "replacement of an endpoint, at a node port");
}

/// What is pinned in the kernel goes on: while a process is killed, and while none is there.
fn the_process_ends(near: &Near<'_>) {
    let (both, web, node_port) =
        (near.pods(), near.cluster_ip("open"), port(&near.open["spec"]["ports"][0]["nodePort"]));
    let at_node = at(&API_SERVER.into(), node_port);
    let load = Load::start(near.site, at_node, "near.test");
    let answers_everywhere = || {
        for place in INSIDE {
            near.until_answers(place, web, &both);
        }
        near.until_answers(Place::Outside, at_node, &both);
    };
    NODES.iter().for_each(|node| node::kill_one(near.site, node, "--kube-proxy-replacement"));
    answers_everywhere();
    near.site.until_complete(&KERNEL_PLANES);
    let Workload { namespace, name, selector } = KERNEL_PLANES;
    let select = |value: &str| {
        let patch = format!(r#"{{"spec": {{"template": {{"spec": {{"nodeSelector": {{"away": {value}}}}}}}}}}}"#);
        near.site.kubectl(&["--namespace", namespace, "patch", name, "--patch", &patch]);
    };
    let old = near.site.pods(&KERNEL_PLANES);
    select(r#""yes""#);
    near.site.kubectl(&[
        "--namespace",
        namespace,
        "wait",
        "--for=delete",
        "pod",
        "--selector",
        selector,
        "--timeout=1m",
    ]);
    answers_everywhere();
    select("null");
    near.site.until_complete(&KERNEL_PLANES);
    assert!(near.site.pods(&KERNEL_PLANES).is_disjoint(&old));
    answers_everywhere();
    near.until_resolves(Place::PodOn("n1"), SocketAddr::new(web.ip(), 53), &both);
    load.end(near.site, "no process of the kernel plane, at a node port");
}

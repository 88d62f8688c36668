//! The cluster as its administrator and its clients see it, and a web site on it.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use testkit::netns::Netns;
use testkit::{Exit, Program, until};

use crate::load::ask;

/// The address of the Service in front of the gateway.
pub const GATEWAY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 80);

/// The host name of the site.
pub const SHOP: &str = "shop.example.com";

/// The chart of the project.
pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/steelyard");

/// How long one command of kubectl may take. It may wait for two pods, and each may take a minute to start on a host that stalls.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Consecutive answers that show that every pod answers. Each new connection may choose any pod.
const ANSWERS: usize = 40;

/// Two pods on two nodes behind a Gateway. They have no preStop hook: nginx answers the requests in progress, and refuses later ones.
const MANIFEST: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  strategy: {rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {matchLabels: {app: web}}
          matchLabelKeys: [pod-template-hash]
      containers:
        - name: web
          image: localhost/web:1
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {httpGet: {path: /, port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: front, namespace: shop}
spec: {gatewayClassName: steelyard, listeners: [{name: http, protocol: HTTP, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec: {parentRefs: [{name: front}], hostnames: [shop.example.com], rules: [{backendRefs: [{name: web, port: 80}]}]}
";

/// A Deployment or a DaemonSet, with the labels of its pods.
pub struct Workload {
    pub namespace: &'static str,
    /// `KIND/NAME`
    pub name: &'static str,
    pub selector: &'static str,
}

pub const WEB: Workload = Workload { namespace: "shop", name: "deployment/web", selector: "app=web" };
pub const GATEWAYS: Workload =
    Workload { namespace: "steelyard", name: "deployment/steelyard", selector: "app.kubernetes.io/component=gateway" };
pub const KERNEL_PLANES: Workload = Workload {
    namespace: "steelyard-kernel-plane",
    name: "daemonset/steelyard",
    selector: "app.kubernetes.io/component=kernel-plane",
};

/// The site, which all tests share.
pub struct Site {
    /// The network namespace of the clients, which is the router in front of the nodes.
    pub client: Netns,
    /// The folder with the programs of Kubernetes.
    pub programs: PathBuf,
    helm: PathBuf,
    /// The folder of the cluster.
    pub run: PathBuf,
    /// The folder with the source of the version before.
    pub previous: PathBuf,
}

/// Installs the web site on the cluster when it is first called, and waits until the site answers.
pub fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(Site::open)
}

impl Site {
    fn open() -> Self {
        let folder = |name: &str| {
            let value = std::env::var_os(name);
            PathBuf::from(value.unwrap_or_else(|| panic!("{name} is not set: run `cargo xtask test cluster`")))
        };
        let (run, programs) = (folder("STEELYARD_CLUSTER"), folder("STEELYARD_KUBE"));
        let router = fs::read_to_string(run.join("router.pid")).unwrap().trim().parse().unwrap();
        let client = Netns::of_process("clients", router).unwrap();
        let (helm, previous) = (folder("STEELYARD_HELM"), folder("STEELYARD_PREVIOUS"));
        let site = Self { client, programs, helm, run, previous };
        site.apply(MANIFEST);
        site.until_complete(&WEB);
        let wait = ["--namespace=shop", "wait", "--for=condition=Programmed", "gateway/front", "--timeout=1m"];
        site.kubectl(&wait);
        site.until_served(SHOP);
        site
    }

    /// Waits until this host is served.
    pub fn until_served(&self, host: &str) {
        let answer = self.client.inside(|| until(PATIENCE, || ask(GATEWAY, host).ok()));
        assert!(answer.is_some(), "{host} is not served at {GATEWAY}");
    }

    /// Waits until every pod behind this address serves this host.
    pub fn until_all_serve(&self, address: SocketAddr, host: &str) {
        let all_serve = || (0..ANSWERS).all(|_| ask(address, host).is_ok()).then_some(());
        let found = self.client.inside(|| until(PATIENCE, all_serve));
        assert!(found.is_some(), "not every connection to {address} is answered for {host}");
    }

    /// A new folder, which is removed with the cluster.
    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.run.join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Runs `kubectl WORDS...` as the administrator. It must succeed. Returns its output.
    pub fn kubectl(&self, words: &[&str]) -> String {
        self.try_kubectl(words).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Does the same, and may fail.
    pub fn try_kubectl(&self, words: &[&str]) -> Result<String, String> {
        self.run("kubectl", Command::new(self.programs.join("kubectl")).args(words))
    }

    /// Starts `kubectl WORDS...`, which ends with the value.
    pub fn start_kubectl(&self, words: &[&str]) -> Program {
        let mut command = Command::new(self.programs.join("kubectl"));
        command.args(words).env("KUBECONFIG", self.run.join("pki/admin.conf"));
        self.client.inside(|| Program::spawn("kubectl", &mut command)).unwrap()
    }

    /// Runs `helm WORDS...` in the same way.
    pub fn helm(&self, words: &[&str]) -> String {
        let mut command = Command::new(&self.helm);
        for (name, folder) in [("HELM_CACHE_HOME", "cache"), ("HELM_CONFIG_HOME", "config"), ("HELM_DATA_HOME", "data")]
        {
            command.env(name, self.run.join("helm").join(folder));
        }
        self.run("helm", command.args(words)).unwrap_or_else(|why| panic!("{why}"))
    }

    fn run(&self, name: &str, command: &mut Command) -> Result<String, String> {
        command.env("KUBECONFIG", self.run.join("pki/admin.conf"));
        let mut program = self.client.inside(|| Program::spawn(name, command)).unwrap();
        let exit = program.exit_within(PATIENCE).unwrap();
        let finished = program.finish().unwrap();
        match exit {
            Exit::Code(0) => Ok(finished.stdout),
            _ => Err(format!("{command:?}: {}{}", finished.stdout, finished.stderr)),
        }
    }

    /// Returns the output of `kubectl get WORDS... -o json`.
    pub fn get(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.kubectl(&[&["get", "--output=json"], words].concat())).unwrap()
    }

    /// Runs `kubectl apply` with this manifest.
    pub fn apply(&self, text: &str) {
        self.with_file("apply", text);
    }

    /// Runs `kubectl create` with this manifest. `apply` would ask for each object first, and keep a copy in an annotation.
    pub fn create(&self, text: &str) {
        self.with_file("create", text);
    }

    fn with_file(&self, verb: &str, text: &str) {
        let file = self.run.join("applied.yaml");
        fs::write(&file, text).unwrap();
        self.kubectl(&[verb, "--filename", &file.display().to_string()]);
    }

    /// Restarts the pods of a workload one after the other, and waits until the old ones are gone.
    pub fn restart(&self, workload: &Workload) {
        let old = self.pods(workload);
        self.kubectl(&["--namespace", workload.namespace, "rollout", "restart", workload.name]);
        self.until_complete(workload);
        // A rollout is complete before the last old pod is gone.
        let are_gone = || self.pods(workload).is_disjoint(&old).then_some(());
        until(PATIENCE, are_gone).unwrap_or_else(|| panic!("{old:?} are still among {:?}", self.pods(workload)));
    }

    /// Waits until all pods of a workload are ready.
    pub fn until_complete(&self, workload: &Workload) {
        self.kubectl(&["--namespace", workload.namespace, "rollout", "status", workload.name, "--timeout=4m"]);
    }

    /// Puts a pod of the gateway and a pod of the site on each node.
    pub fn spread(&self) {
        for workload in [&GATEWAYS, &WEB] {
            self.until_complete(workload);
            let are_spread = |pods: &[Value]| {
                let is_on = |node: &str| pods.iter().any(|pod| pod["spec"]["nodeName"] == node);
                is_on("n0") && is_on("n1")
            };
            if !are_spread(&self.pod_objects(workload)) {
                self.restart(workload);
                let pods = self.pod_objects(workload);
                assert!(are_spread(&pods), "{} is not on both nodes: {pods:#?}", workload.name);
            }
        }
    }

    fn pod_objects(&self, workload: &Workload) -> Vec<Value> {
        let selector = ["--selector", workload.selector];
        let pods = self.get(&[&["--namespace", workload.namespace, "pods"][..], &selector].concat());
        pods["items"].as_array().cloned().unwrap_or_default()
    }

    /// The names of all pods of a workload.
    pub fn pods(&self, workload: &Workload) -> BTreeSet<String> {
        let pods = self.pod_objects(workload);
        pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned)).collect()
    }

    /// The addresses of the pods of a workload.
    pub fn addresses(&self, workload: &Workload) -> Vec<IpAddr> {
        self.pod_objects(workload).iter().filter_map(address_of).collect()
    }

    /// The address of the pod of a workload on this node.
    pub fn address_on(&self, workload: &Workload, node: &str) -> IpAddr {
        let pods = self.pod_objects(workload);
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node);
        pod.and_then(address_of).unwrap_or_else(|| panic!("{node} has no pod of {}: {pods:#?}", workload.name))
    }

    /// Waits until no ready endpoint of a Service is on this node.
    pub fn until_no_endpoint_on(&self, namespace: &str, service: &str, node: &str) {
        let label = format!("--selector=kubernetes.io/service-name={service}");
        let slices = || self.get(&["--namespace", namespace, "endpointslices", &label]);
        let is_so = || {
            let slices = slices();
            let endpoints = slices["items"].as_array().into_iter().flatten();
            let mut endpoints = endpoints.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
            let is_there =
                endpoints.any(|endpoint| endpoint["nodeName"] == node && endpoint["conditions"]["ready"] == true);
            (!is_there).then_some(())
        };
        until(PATIENCE, is_so).unwrap_or_else(|| panic!("{service} still has endpoints on {node}: {:#}", slices()));
    }

    /// The lines of the gateway's logs, except the access log of requests that were answered with 200.
    pub fn log_of_failures(&self) -> String {
        let lines = self.log_of_gateway();
        lines.lines().filter(|line| !line.contains(r#""status":200"#)).map(|line| format!("{line}\n")).collect()
    }

    /// The logs of all pods of the gateway.
    pub fn log_of_gateway(&self) -> String {
        let Workload { namespace, selector, .. } = GATEWAYS;
        self.kubectl(&["--namespace", namespace, "logs", "--selector", selector, "--tail=-1", "--prefix"])
    }

    /// Asks until this many pods have answered, and returns their names.
    pub fn until_names(&self, address: SocketAddr, count: usize) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut ask_again = || {
            names.extend(ask(address, SHOP).ok());
            (names.len() >= count).then_some(())
        };
        let found = self.client.inside(|| until(PATIENCE, &mut ask_again));
        assert!(found.is_some(), "only {names:?} have answered");
        names
    }
}

fn address_of(pod: &Value) -> Option<IpAddr> {
    pod["status"]["podIP"].as_str()?.parse().ok()
}

//! `cargo xtask cluster` and `cargo xtask test cluster`: Kubernetes clusters of one or two real nodes in namespaces of this host. They run the
//! image and the chart of a release.
//!
//! A node runs kubelet from the modules that `hack/kube` pins, and Debian's containerd, runc and CNI plugins. It needs root and version 1 of
//! control groups, but not Docker. All files of a cluster are in `target/cluster/run`. The tests are in `e2e/tests/cluster`.
//!
//! Not here: DNS and kube-proxy. The only cluster IP that works is that of the Service `kubernetes` ([`network`]), and Steelyard needs no other. A
//! test has Steelyard serve all of them.

pub mod conformance;
mod control;
mod images;
mod install;
mod network;
mod node;
mod previous;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use node::{Node, Tether};
use previous::Previous;

use crate::cargo::metadata;
use crate::command::{self, capture, cargo};
use crate::dist::pack;
use crate::{dist, kube, setup, test};

const USAGE: &str = "usage: cargo xtask cluster up [1|2] | down | kubectl ARGS";

/// How long the nodes may take to become Ready after kubelet was started. It takes 5 s on an idle host.
const READY: Duration = Duration::from_secs(120);

/// What a cluster is built from.
struct Parts {
    /// The folder with the programs of Kubernetes.
    programs: PathBuf,
    helm: String,
    images: Vec<PathBuf>,
    /// The version before, if a test needs it.
    previous: Option<Previous>,
    /// Where the API server listens.
    api_server: &'static str,
}

impl Parts {
    fn make() -> Result<Self, String> {
        let (programs, helm) = (kube::build_everything()?, dist::helm()?);
        Ok(Self { programs, helm, images: images::make()?, previous: None, api_server: network::EVERY })
    }

    /// With the version before. It is built first, because the program of the present one must be in the target folder afterwards.
    fn for_tests() -> Result<Self, String> {
        let previous = previous::make()?;
        let mut parts = Self::make()?;
        parts.images.extend(previous.as_ref().map(|previous| previous.image.clone()));
        Ok(Self { previous, ..parts })
    }
}

/// A running cluster. It is removed when this is dropped, and also if this process is killed.
struct Cluster<'p> {
    run: PathBuf,
    parts: &'p Parts,
    /// The process whose network namespace is the router.
    router: u32,
    nodes: Vec<Node>,
    tethers: Vec<Tether>,
    /// It was removed, or outlives this value.
    is_settled: bool,
}

/// The verb `cluster`.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match *words {
        ["up"] | ["up", "1"] => up(1),
        ["up", "2"] => up(2),
        ["down"] => down(&place()?),
        ["kubectl", ref rest @ ..] => {
            let (run, programs) = (place()?, metadata()?.target_directory.join("kube"));
            let router =
                pack::read(&run.join("router.pid")).map_err(|_| "there is no cluster: run `cargo xtask cluster up`")?;
            command::run(&mut kubectl(&run, &programs, pid(&router)?, rest))
        }
        _ => Err(USAGE.into()),
    }
}

/// The verb `test cluster`: runs the tests on a new cluster, which replaces the one of `cluster up`. `arguments` go to the test binary, for
/// example names of tests.
pub fn test(arguments: &[String]) -> Result<(), String> {
    node::check_host()?;
    setup::install_for("cluster")?;
    let words = ["test", "--workspace", "--features", "e2e/kube", "--test", "cluster"];
    command::run(cargo(&words).arg("--no-run"))?;
    let parts = Parts::for_tests()?;
    let cluster = Cluster::start(&parts, 2)?;
    // One test at a time: each has the cluster to itself.
    let mut tests = cargo(&words);
    tests.args(["--", "--test-threads=1", "--nocapture"]).args(arguments);
    tests.env("STEELYARD_CLUSTER", &cluster.run);
    tests.env("STEELYARD_PREVIOUS", previous::source(parts.previous.as_ref()));
    tests.env("STEELYARD_KUBE", &parts.programs).env("STEELYARD_HELM", &parts.helm);
    let outcome = install::everything(&cluster).and_then(|()| test::run_chosen(&mut tests));
    cluster.end(outcome)
}

fn up(count: usize) -> Result<(), String> {
    node::check_host()?;
    setup::install_for("cluster")?;
    let parts = Parts::make()?;
    let cluster = Cluster::start(&parts, count)?;
    if let Err(why) = install::everything(&cluster) {
        return cluster.end(Err(why));
    }
    cluster.stay()?;
    println!("cluster: Gateways are served at {}; try `cargo xtask cluster kubectl get pods -A`", install::ADDRESS);
    Ok(())
}

/// Ends the cluster of an earlier run, if there is one, and removes everything that it has left.
fn down(run: &Path) -> Result<(), String> {
    let nodes = ["n0", "n1"].map(|name| run.join(name));
    // The router first, because it would remove the same things.
    node::kill(run, &run.join("router.pid"));
    nodes.iter().for_each(|node| node::kill(run, &node.join("pid")));
    nodes.iter().try_for_each(|node| node::remove_cgroups(node))?;
    kube::clear(run)
}

/// The folder of a running cluster.
fn place() -> Result<PathBuf, String> {
    Ok(metadata()?.target_directory.join("cluster/run"))
}

/// The folder with the logs of the last cluster that failed.
fn logs() -> Result<PathBuf, String> {
    Ok(metadata()?.target_directory.join("cluster/log"))
}

impl<'p> Cluster<'p> {
    /// Starts a cluster, and waits until its nodes are Ready.
    fn start(parts: &'p Parts, count: usize) -> Result<Self, String> {
        let start = Instant::now();
        let run = place()?;
        down(&run)?;
        let (router, tether) = node::start_router(&run)?;
        let mut cluster = Self { run, parts, router, nodes: Vec::new(), tethers: vec![tether], is_settled: false };
        if let Err(why) = cluster.bring_up(count) {
            cluster.end(Err(why))?;
            return Err("the cluster did not start".into());
        }
        println!("cluster: {count} Ready after {:.1} s", start.elapsed().as_secs_f32());
        Ok(cluster)
    }

    fn bring_up(&mut self, count: usize) -> Result<(), String> {
        for number in 0..count {
            let (node, tether) = Node::start(&self.run, number, self.router)?;
            self.nodes.push(node);
            self.tethers.push(tether);
        }
        self.start_programs()?;
        self.until_ready()
    }

    fn start_programs(&self) -> Result<(), String> {
        let Some(first) = self.nodes.first() else { return Ok(()) };
        std::thread::scope(|scope| {
            let imports: Vec<_> =
                self.nodes.iter().map(|node| scope.spawn(|| node.containerd(&self.parts.images))).collect();
            control::start_api_server(&self.run, &self.parts.programs, first, self.parts.api_server)?;
            control::start_rest(&self.run, &self.parts.programs, first)?;
            for import in imports {
                import.join().map_err(|_| "a thread has panicked")??;
            }
            Ok::<_, String>(())
        })?;
        self.nodes.iter().try_for_each(|node| node.kubelet(&self.parts.programs))
    }

    fn until_ready(&self) -> Result<(), String> {
        let ask = ["get", "nodes", r#"--output=jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#];
        let are_ready = || {
            let answer = capture(&mut self.kubectl(&ask)).unwrap_or_default();
            answer.split_whitespace().filter(|word| *word == "True").count() == self.nodes.len()
        };
        node::wait("the nodes are Ready", READY, are_ready)
    }

    /// Lets the cluster outlive this process.
    fn stay(mut self) -> Result<(), String> {
        std::mem::take(&mut self.tethers).into_iter().try_for_each(Tether::cut)?;
        self.is_settled = true;
        Ok(())
    }

    /// Removes the cluster. If the outcome of its use is a failure, this first shows the state of the cluster and keeps its logs.
    fn end(mut self, outcome: Result<(), String>) -> Result<(), String> {
        if let Err(why) = &outcome {
            println!("cluster: {why}");
            self.show();
        }
        self.is_settled = true;
        outcome.and(down(&self.run))
    }

    /// Shows what helps to find the reason of a failure.
    fn show(&self) {
        let lists = ["get", "pods,services,gateways,httproutes,endpointslices", "-A", "-o", "wide"];
        for words in [&lists[..], &["get", "events", "-A"]] {
            println!("{}", capture(&mut self.kubectl(words)).unwrap_or_else(|why| why));
        }
        match self.keep_logs() {
            Ok(folder) => println!("cluster: the logs of its nodes are in {}", folder.display()),
            Err(why) => println!("cluster: cannot keep the logs of its nodes: {why}"),
        }
    }

    fn keep_logs(&self) -> Result<PathBuf, String> {
        let folder = logs()?;
        kube::clear(&folder)?;
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        self.nodes.iter().try_for_each(|node| node.move_logs(&folder)).map_err(|error| error.to_string())?;
        Ok(folder)
    }

    /// Prepares kubectl with the rights of the administrator.
    fn kubectl(&self, arguments: &[&str]) -> Command {
        kubectl(&self.run, &self.parts.programs, self.router, arguments)
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if !self.is_settled
            && let Err(why) = down(&self.run)
        {
            println!("cluster: {why}");
        }
    }
}

fn kubectl(run: &Path, programs: &Path, router: u32, arguments: &[&str]) -> Command {
    let mut kubectl = node::in_network(router, &programs.join("kubectl").display().to_string(), arguments);
    kubectl.env("KUBECONFIG", control::kubeconfig(run, "admin"));
    kubectl
}

fn pid(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is not a PID"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_arguments_are_a_usage_error() {
        for words in [&[][..], &["up", "3"], &["sideways"]] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(run(&words).unwrap_err(), USAGE);
        }
    }
}

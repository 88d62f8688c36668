//! The processes of a node, which can be killed and started again.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::until;

use crate::site::{PATIENCE, Site};

/// The programs of a node, as the kernel shows their names. The control plane is not on the node that tests kill.
const PROGRAMS: [&str; 3] = ["kubelet", "containerd", "containerd-shim"];

/// A hierarchy of control groups. Any would do.
const HIERARCHY: &str = "/sys/fs/cgroup/pids";

/// Moves a shell to the node's control group of version 2, if there is one, and runs a program in its place.
const JOIN: &str = r#"[ ! -e /run/cgroup ] || echo 0 >/run/cgroup/cgroup.procs; exec "$0" "$@""#;

/// A node without processes, except for the shell that holds its namespaces.
pub struct KilledNode {
    name: &'static str,
    folder: PathBuf,
    /// The process whose namespaces are the node's.
    pid: String,
    /// The arguments of containerd and of kubelet.
    containerd: Vec<String>,
    kubelet: Vec<String>,
}

impl KilledNode {
    /// Kills kubelet, containerd and all containers of a node with SIGKILL.
    pub fn kill(site: &Site, name: &'static str) -> Self {
        let folder = site.run.join(name);
        let pid = fs::read_to_string(folder.join("pid")).unwrap();
        let namespace = fs::read_link(format!("/proc/{pid}/ns/pid_for_children")).unwrap();
        let programs =
            || processes().filter(|process| fs::read_link(process.join("ns/pid")).ok() == Some(namespace.clone()));
        let program =
            |name: &str| programs().find(|process| name_of(process) == name).map(|process| arguments(&process));
        let program = |name: &str| program(name).unwrap_or_else(|| panic!("{name} does not run"));
        let (containerd, kubelet) = (program("containerd"), program("kubelet"));
        // kubelet and containerd are first, so that nothing is started again.
        for name in PROGRAMS {
            kill(programs().filter(|process| name_of(process) == name).map(|process| pid_of(&process)).collect());
        }
        let cgroup = Path::new(HIERARCHY).join(fs::read_to_string(folder.join("cgroup")).unwrap());
        let are_gone = || {
            let left = members(&cgroup);
            kill(left.clone());
            left.is_empty().then_some(())
        };
        until(PATIENCE, are_gone).unwrap_or_else(|| panic!("{:?} of {name} cannot be killed", members(&cgroup)));
        Self { name, folder, pid, containerd, kubelet }
    }

    /// Starts containerd and kubelet again, and waits until the node is Ready.
    pub fn start(&self, site: &Site) {
        self.spawn("containerd", &self.containerd);
        let is_up =
            || self.enter(&["ctr", "version"]).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success();
        assert!(until(PATIENCE, || is_up().then_some(())).is_some(), "containerd does not answer");
        self.spawn("kubelet", &self.kubelet);
        site.kubectl(&["wait", "--for=condition=Ready", &format!("node/{}", self.name), "--timeout=4m"]);
    }

    /// Starts a program, which ends with the node.
    #[expect(clippy::zombie_processes, reason = "it runs until the node ends, which is after this process")]
    fn spawn(&self, name: &str, arguments: &[String]) {
        let log = OpenOptions::new().append(true).open(self.folder.join(format!("log/{name}.log"))).unwrap();
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = self.enter(&words);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    }

    fn enter(&self, words: &[&str]) -> Command {
        enter(&self.pid, words)
    }
}

/// A command in the namespaces and the control group of a node.
pub fn command(site: &Site, node: &str, words: &[&str]) -> Command {
    enter(&fs::read_to_string(site.run.join(node).join("pid")).unwrap(), words)
}

fn enter(pid: &str, words: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", pid, "--mount", "--net", "--uts", "--ipc"]);
    command.arg(format!("--pid=/proc/{pid}/ns/pid_for_children")).args(["--", "sh", "-c", JOIN]).args(words);
    command
}

/// Kills the process of a node that has this argument, with SIGKILL.
pub fn kill_one(site: &Site, node: &str, argument: &str) {
    let cgroup = Path::new(HIERARCHY).join(fs::read_to_string(site.run.join(node).join("cgroup")).unwrap());
    let mut found = members(&cgroup);
    found.retain(|pid| arguments(&Path::new("/proc").join(pid)).iter().any(|word| word == argument));
    assert_eq!(found.len(), 1, "not one process of {node} has {argument}");
    kill(found);
}

/// The folders of all processes.
fn processes() -> impl Iterator<Item = PathBuf> {
    let is_process = |path: &PathBuf| pid_of(path).bytes().all(|byte| byte.is_ascii_digit());
    fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(is_process)
}

fn pid_of(process: &Path) -> String {
    process.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The name that the kernel shows. It is empty for a process that has ended.
fn name_of(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned()
}

fn arguments(process: &Path) -> Vec<String> {
    let line = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
    line.split_terminator('\0').map(str::to_owned).collect()
}

/// The processes of a control group and of all groups below it.
fn members(cgroup: &Path) -> BTreeSet<String> {
    let own = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let mut all: BTreeSet<String> = own.split_whitespace().map(str::to_owned).collect();
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            all.extend(members(&entry.path()));
        }
    }
    all
}

fn kill(pids: BTreeSet<String>) {
    if !pids.is_empty() {
        // One may have ended already.
        _ = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status().unwrap();
    }
}

//! A node: namespaces that look like a separate machine, with containerd and kubelet in them.
//!
//! A node or the router ends as soon as the process that started it ends, by Ctrl-C or otherwise: its standard input is a pipe, and the other
//! end of that pipe is a [`Tether`]. The router then removes what is left on the host.

use std::fs;
use std::io::{PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::until;

use super::{control, network};
use crate::command::{capture, command, is_root, succeeds};
use crate::dist::pack;

/// Process 1 of a node, and the process in the router's namespace.
const NODE: &str = include_str!("node.sh");
const ROUTER: &str = include_str!("router.sh");

/// How long process 1 of a node may take to set it up, or containerd to answer. Each takes less than a second on an idle host.
const START: Duration = Duration::from_secs(60);

/// Moves a shell to the node's control group of version 2, if there is one, and runs a program in its place.
const JOIN: &str = r#"[ ! -e /run/cgroup ] || echo 0 >/run/cgroup/cgroup.procs; exec "$0" "$@""#;

/// The socket of containerd in a node.
const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// The image of the container that holds the namespaces of a pod.
pub const PAUSE: &str = "localhost/pause:1";

/// The folder with the hierarchies of control groups.
const HIERARCHIES: &str = "/sys/fs/cgroup";

/// The other end of the standard input of a node or of the router, which ends when this is dropped.
pub struct Tether(PipeWriter);

impl Tether {
    /// Lets the node or the router outlive this process.
    pub fn cut(mut self) -> Result<(), String> {
        self.0.write_all(b"stay\n").map_err(|error| format!("the cluster has ended early: {error}"))
    }
}

/// A running node.
pub struct Node {
    number: usize,
    /// The folder of the cluster.
    run: PathBuf,
    /// The folder of the node, with its configuration, data and logs.
    directory: PathBuf,
    /// The process of unshare(1), which is in all namespaces of the node except its PID namespace. Its child is process 1 of the node.
    pub pid: u32,
}

impl Node {
    /// Creates the namespaces of a node, and connects them to the router.
    pub fn start(run: &Path, number: usize, router: u32) -> Result<(Self, Tether), String> {
        let directory = run.join(format!("n{number}"));
        let shown = directory.display().to_string();
        pack::write(&directory.join("node.sh"), NODE)?;
        pack::write(&directory.join("cni.conflist"), network::cni(number))?;
        let cgroup = format!("steelyard-{}-n{number}", std::process::id());
        pack::write(&directory.join("cgroup"), &cgroup)?;
        let mut unshare = command("unshare", &["--mount", "--net", "--pid", "--uts", "--ipc", "--fork"]);
        unshare.args(["--kill-child=KILL", "--mount-proc", "--propagation", "private"]);
        unshare.args(["sh", "-eu", &format!("{shown}/node.sh"), &format!("n{number}"), &shown, &cgroup]);
        let (pid, tether) = spawn_tethered(&mut unshare, &directory.join("log/node.log"))?;
        pack::write(&directory.join("pid"), pid.to_string())?;
        wait(&format!("n{number} is set up"), START, || directory.join("ready").exists())?;
        network::connect(router, pid, number)?;
        Ok((Self { number, run: run.to_owned(), directory, pid }, tether))
    }

    /// Prepares `program` to run in the node.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let (target, processes) = (self.pid.to_string(), format!("--pid=/proc/{}/ns/pid_for_children", self.pid));
        let enter = ["--target", &target, "--mount", "--net", "--uts", "--ipc", &processes, "--", program];
        command("nsenter", &[&enter[..], arguments].concat())
    }

    /// Starts a program that ends with the node. Its log is `log/NAME.log`.
    pub fn spawn(&self, name: &str, program: &str, arguments: &[String]) -> Result<(), String> {
        let words: Vec<&str> = ["-c", JOIN, program].into_iter().chain(arguments.iter().map(String::as_str)).collect();
        let log = self.directory.join(format!("log/{name}.log"));
        spawn(&mut self.command("sh", &words), &log, Stdio::null()).map(drop)
    }

    /// Starts containerd and imports images.
    pub fn containerd(&self, images: &[PathBuf]) -> Result<(), String> {
        let file = self.directory.join("containerd.toml");
        pack::write(&file, containerd_file(&self.directory))?;
        self.spawn("containerd", "containerd", &["--config".into(), file.display().to_string()])?;
        let is_up = || succeeds(&mut self.command("ctr", &["version"]));
        wait("containerd answers", START, is_up)?;
        images.iter().try_for_each(|image| self.images(&["import", &image.display().to_string()]))
    }

    /// Runs `ctr images WORDS...` on the images that kubelet uses.
    pub fn images(&self, words: &[&str]) -> Result<(), String> {
        let words = [&["--namespace", "k8s.io", "images"], words].concat();
        capture(&mut self.command("ctr", &words)).map(drop)
    }

    /// Starts kubelet.
    pub fn kubelet(&self, programs: &Path) -> Result<(), String> {
        let file = self.directory.join("kubelet.yaml");
        let cgroup = pack::read(&self.directory.join("cgroup"))?;
        pack::write(&file, kubelet_file(&cgroup))?;
        let (number, address) = (self.number, network::address(self.number));
        let flags = [
            format!("--config={}", file.display()),
            format!("--kubeconfig={}", control::kubeconfig(&self.run, &format!("n{number}"))),
            "--root-dir=/var/lib/kubelet".to_owned(),
            format!("--cert-dir={}", self.directory.join("kubelet-pki").display()),
            format!("--hostname-override=n{number}"),
            format!("--node-ip={address}"),
        ];
        self.spawn("kubelet", &programs.join("kubelet").display().to_string(), &flags)
    }

    /// Moves the logs of the node to a folder.
    pub fn move_logs(&self, to: &Path) -> std::io::Result<()> {
        fs::rename(self.directory.join("log"), to.join(format!("n{}", self.number)))
    }
}

/// Prepares `program` to run in the network namespace of a process, and in no other namespace of it.
pub fn in_network(pid: u32, program: &str, arguments: &[&str]) -> Command {
    let file = format!("--net=/proc/{pid}/ns/net");
    command("nsenter", &[&[&*file, "--", program], arguments].concat())
}

/// Starts the process whose network namespace is the router, and returns its PID.
pub fn start_router(run: &Path) -> Result<(u32, Tether), String> {
    let script = run.join("router.sh");
    pack::write(&script, ROUTER)?;
    let (script, shown) = (script.display().to_string(), run.display().to_string());
    let mut unshare = command("unshare", &["--net", "sh", "-u", &script, &shown, HIERARCHIES]);
    let (pid, tether) = spawn_tethered(&mut unshare, &run.join("router.log"))?;
    pack::write(&run.join("router.pid"), pid.to_string())?;
    let own = fs::read_link("/proc/self/ns/net").ok();
    let has_moved = || fs::read_link(format!("/proc/{pid}/ns/net")).ok().is_some_and(|its| Some(its) != own);
    wait("the router has a namespace", START, has_moved)?;
    network::router(pid)?;
    Ok((pid, tether))
}

fn spawn_tethered(program: &mut Command, log: &Path) -> Result<(u32, Tether), String> {
    let (reader, writer) = std::io::pipe().map_err(|error| format!("cannot make a pipe: {error}"))?;
    Ok((spawn(program, log, reader.into())?, Tether(writer)))
}

/// Starts a program and returns its PID. Ctrl-C does not reach it, because it has its own process group.
fn spawn(program: &mut Command, log: &Path, input: Stdio) -> Result<u32, String> {
    let failed = |error: std::io::Error| format!("cannot start {}: {error}", log.display());
    pack::write(log, "")?;
    let log_file = fs::OpenOptions::new().append(true).open(log).map_err(failed)?;
    program.stdin(input).stdout(log_file.try_clone().map_err(failed)?).stderr(log_file).process_group(0);
    Ok(program.spawn().map_err(failed)?.id())
}

/// Kills the router or a node of the cluster in `run`, if it is still there.
pub fn kill(run: &Path, pid_file: &Path) {
    let Ok(pid) = fs::read_to_string(pid_file) else { return };
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    // The PID may belong to another process by now. The arguments of ours contain the folder.
    if String::from_utf8_lossy(&line).contains(&*run.to_string_lossy()) {
        let _ = capture(&mut command("kill", &["-KILL", "--", &format!("-{pid}")]));
    }
}

/// Removes the control groups of a node. They are empty once its last process has ended.
pub fn remove_cgroups(node: &Path) -> Result<(), String> {
    let Ok(cgroup) = fs::read_to_string(node.join("cgroup")) else { return Ok(()) };
    let hierarchies: Vec<PathBuf> = entries(Path::new(HIERARCHIES)).map(|path| path.join(&cgroup)).collect();
    let are_gone = || {
        hierarchies.iter().for_each(|top| remove_tree(top));
        !hierarchies.iter().any(|top| top.exists())
    };
    wait("the control groups are empty", START, are_gone)
}

/// Removes folders bottom-up. The kernel removes the files of a control group with its folder.
fn remove_tree(folder: &Path) {
    entries(folder).filter(|path| path.is_dir()).for_each(|path| remove_tree(&path));
    let _ = fs::remove_dir(folder);
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Checks that nodes can run on this host.
pub fn check_host() -> Result<(), String> {
    if !is_root() {
        return Err("this creates namespaces and control groups: run it as root".into());
    }
    if Path::new(HIERARCHIES).join("memory").is_dir() {
        return Ok(());
    }
    Err(format!("{HIERARCHIES} is not version 1 of control groups, which is the only version that these nodes support"))
}

/// Asks until the answer is true.
pub fn wait(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let is_in_time = until(patience, || is_so().then_some(())).is_some();
    if is_in_time { Ok(()) } else { Err(format!("still not the case after {} s: {what}", patience.as_secs())) }
}

fn containerd_file(directory: &Path) -> String {
    format!(
        r#"version = 2
root = "{}/containerd"
state = "/run/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # In a host that is itself a container, nobody may lower oom_score_adj, which the pause container asks for.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#,
        directory.display()
    )
}

/// With these values, kubelet evicts no pod and removes no image, even if the host's disk is full.
fn kubelet_file(cgroup: &str) -> String {
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /{cgroup}
containerRuntimeEndpoint: unix://{CONTAINERD}
# Logs and exec work without certificates. Only this host can reach the port.
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
makeIPTablesUtilChains: false
failSwapOn: false
resolvConf: ""
clusterDomain: cluster.local
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}}
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
"#
    )
}

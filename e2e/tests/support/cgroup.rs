//! A control group for tests, of version 2, and processes in it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use serde_json::Value;
use testkit::netns::Netns;
use testkit::{PATIENCE, Program, Signal, until};

/// The client for which python is the shell.
const CLIENT: &str = include_str!("socket_client.py");

/// What sockets see after calls that change their connections.
const CORNERS: &str = include_str!("socket_corners.py");
/// A client that connects again.
const AGAIN: &str = include_str!("socket_again.py");
/// What other programs do to control groups and maps.
const BPF: &str = include_str!("bpf.py");

/// Makes each of this process unique.
static MADE: AtomicU32 = AtomicU32::new(0);

/// A child of the root of the hierarchy. It is removed when it is dropped, after its processes.
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// `None` if version 2 is not mounted.
    pub fn new() -> Option<Self> {
        let info = fs::read_to_string("/proc/self/mountinfo").unwrap();
        // proc(5): the fifth field is the mount point. The last one that was mounted is on top.
        let mut mounted =
            info.lines().filter(|line| line.contains(" - cgroup2 ")).filter_map(|line| line.split(' ').nth(4));
        let number = MADE.fetch_add(1, Relaxed);
        let path = PathBuf::from(mounted.next_back()?).join(format!("steelyard-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Some(Self { path })
    }

    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// A command that moves into the control group before it makes any socket. On one CPU, because `round_robin` has a cursor for each.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", r#"echo $$ >"$0/cgroup.procs" && exec taskset --cpu-list 0 "$@""#, self.path()])
            .args(words);
        command
    }

    /// A python client in this namespace that asks for an address `count` times; see `socket_client.py`.
    pub fn client(&self, netns: &Netns, kind: &str, address: std::net::SocketAddr, count: usize) -> Client {
        self.client_of(netns, kind, &address.ip().to_string(), address.port(), count)
    }

    /// The same, with the address in another form.
    pub fn client_of(&self, netns: &Netns, kind: &str, address: &str, port: u16, count: usize) -> Client {
        let words = ["python3", "-c", CLIENT, kind, address, &port.to_string(), &count.to_string()];
        Client { program: netns.spawn("socket_client.py", &mut self.command(&words)).unwrap(), reports: 0 }
    }

    /// A client whose sockets change their connections; see `socket_corners.py`. What they see are the peers of its reports.
    pub fn corners(&self, netns: &Netns, words: &[&str]) -> Client {
        let words = [&["python3", "-c", CORNERS], words].concat();
        Client { program: netns.spawn("socket_corners.py", &mut self.command(&words)).unwrap(), reports: 0 }
    }

    /// A client that connects its datagram sockets again when they have lost their connections; see `socket_again.py`.
    pub fn persistent(&self, netns: &Netns, address: std::net::SocketAddr, count: usize) -> Client {
        let (host, port, count) = (address.ip().to_string(), address.port().to_string(), count.to_string());
        let words = ["python3", "-c", AGAIN, &host, &port, &count];
        Client { program: netns.spawn("socket_again.py", &mut self.command(&words)).unwrap(), reports: 0 }
    }

    /// Removes the control group, once it has no processes, and makes it again.
    pub fn make_again(&self) {
        let removed = until(PATIENCE, || fs::remove_dir(&self.path).ok());
        assert!(removed.is_some(), "cannot remove {}", self.path.display());
        fs::create_dir(&self.path).unwrap();
    }
}

/// Runs `bpf.py`.
pub fn bpf(words: &[&str]) -> Program {
    let mut command = Command::new("python3");
    command.args(["-c", BPF]).args(words);
    Program::spawn("bpf.py", &mut command).unwrap()
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel removes a process from it a moment after it has ended.
        let removed = until(PATIENCE, || fs::remove_dir(&self.path).ok());
        if !std::thread::panicking() {
            assert!(removed.is_some(), "cannot remove {}", self.path.display());
        }
    }
}

/// A running client, with its sockets open.
pub struct Client {
    program: Program,
    reports: usize,
}

/// What a client sees.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The senders of datagrams, one for each socket.
    pub senders: Vec<String>,
    /// What its connected sockets call their peers.
    pub peers: Vec<String>,
    /// The errors of connecting and of exchanging, by their names in errno(3).
    pub errors: Vec<String>,
}

impl Client {
    /// The next report.
    #[track_caller]
    pub fn report(&mut self) -> Seen {
        let number = self.reports;
        let line = until(PATIENCE, || {
            let log = self.program.log();
            log.lines().filter_map(|line| line.strip_prefix("report ")).nth(number).map(str::to_owned)
        });
        let line = line.unwrap_or_else(|| panic!("no report: {}", self.program.log()));
        self.reports += 1;
        let said: Value = serde_json::from_str(&line).unwrap();
        let words = |key: &str| {
            let words = said[key].as_array().into_iter().flatten();
            words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        Seen { senders: words("senders"), peers: words("peers"), errors: words("errors") }
    }

    /// Exchanges again, on the same sockets.
    #[track_caller]
    pub fn again(&mut self) -> Seen {
        self.program.signal(Signal::USR1).unwrap();
        self.report()
    }
}

//! Network namespaces, which give a test its own network. They need root.
//!
//! A namespace has no name that another process could see. It lives as long as its [`Netns`] or a process or socket in
//! it, so a test that panics or is killed leaves nothing behind. Its interfaces disappear with it.
//!
//! Job: create a namespace, join two by a veth pair, and run something in one: on a thread ([`Netns::inside`]), or as a
//! child process, which inherits the namespace of the thread that starts it. Addresses and routes are written as
//! arguments of `ip` ([`Netns::ip`]).
//!
//! Not its job: deciding which namespaces a test needs.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{Exit, Failure, PATIENCE, Program, until};

/// A network namespace with its loopback up.
pub struct Netns {
    name: String,
    file: File,
}

impl Netns {
    /// Creates a namespace. `name` is only for messages.
    pub fn new(name: &str) -> Result<Self, Failure> {
        let fail = |what: String| Failure::of(name, what);
        // The process reports when it is in its own namespace. It then waits until we hold that namespace, and exits
        // when its input ends.
        let mut child = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| fail(format!("cannot run unshare(1): {error}")))?;
        let said = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut String::new()));
        let is_there = matches!(said, Some(Ok(1)));
        let file = File::open(format!("/proc/{}/ns/net", child.id()));
        drop(child.stdin.take());
        // The result does not matter: the process was asked to exit.
        _ = child.wait();
        if !is_there {
            return Err(fail("no network namespace: see the message of unshare(1)".to_owned()));
        }
        let file = file.map_err(|error| fail(format!("cannot hold the namespace: {error}")))?;
        let netns = Self { name: name.to_owned(), file };
        netns.ip("link set lo up")?;
        // With duplicate address detection, a link-local address cannot be used for a second or two.
        netns.sysctl("net.ipv6.conf.default.accept_dad", "0")?;
        Ok(netns)
    }

    /// Opens the namespace of a running process. `name` appears in messages only.
    ///
    /// # Errors
    /// If the process does not exist, or its namespace cannot be opened.
    pub fn of_process(name: &str, pid: u32) -> Result<Self, Failure> {
        let file = File::open(format!("/proc/{pid}/ns/net"));
        let file =
            file.map_err(|error| Failure::of(name, format!("no network namespace of process {pid}: {error}")))?;
        Ok(Self { name: name.to_owned(), file })
    }

    /// Runs `work` on a thread in the namespace and waits for it. Sockets, threads and processes that it opens belong
    /// to the namespace too.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                if let Err(error) = move_into_link_name_space(self.file.as_fd(), network) {
                    panic!("{}: cannot enter the namespace: {error}", self.name);
                }
                work()
            });
            thread.join()
        });
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Starts a program in the namespace.
    pub fn spawn(&self, name: &str, command: &mut Command) -> Result<Program, Failure> {
        self.inside(|| Program::spawn(name, command))
    }

    /// Runs a program in the namespace. It must succeed. Returns its standard output.
    pub fn run(&self, words: &[&str]) -> Result<String, Failure> {
        let Some((program, arguments)) = words.split_first() else { return Ok(String::new()) };
        let finished = self.inside(|| Program::run(program, Command::new(program).args(arguments)))?;
        if finished.exit != Exit::Code(0) {
            let what = format!("`{}`: {:?}\n{}{}", words.join(" "), finished.exit, finished.stdout, finished.stderr);
            return Err(Failure::of(&self.name, what));
        }
        Ok(finished.stdout)
    }

    /// Runs lines of arguments of ip(8), such as `addr add 10.0.0.1/24 dev eth0`, and stops at the first that fails.
    /// Addresses can be used at once.
    pub fn ip(&self, lines: &str) -> Result<(), Failure> {
        let lines: String = lines.lines().map(|line| format!("{}\n", at_once(line.trim()))).collect();
        let finished = self.inside(|| {
            let mut command = Command::new("ip");
            command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(lines.as_bytes())?;
            }
            child.wait_with_output()
        });
        let finished = finished.map_err(|error| Failure::of(&self.name, format!("cannot run ip(8): {error}")))?;
        if finished.status.success() {
            return Ok(());
        }
        Err(Failure::of(&self.name, format!("ip: {}in:\n{lines}", String::from_utf8_lossy(&finished.stderr))))
    }

    /// Sets a kernel parameter of the namespace, such as `net.ipv4.ip_forward`. A dot in an interface's name is written
    /// as a slash.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), Failure> {
        let path: String = key
            .chars()
            .map(|letter| {
                if letter == '.' {
                    '/'
                } else if letter == '/' {
                    '.'
                } else {
                    letter
                }
            })
            .collect();
        let written = self.inside(|| std::fs::write(format!("/proc/sys/{path}"), value));
        written.map_err(|error| Failure::of(&self.name, format!("{key} = {value}: {error}")))
    }

    /// Makes the namespace a router for both address families.
    pub fn forward(&self) -> Result<(), Failure> {
        self.sysctl("net.ipv4.ip_forward", "1")?;
        self.sysctl("net.ipv6.conf.all.forwarding", "1")
    }

    /// Sets features of an interface, in the notation of ethtool(8): `tx off tso off`.
    pub fn offload(&self, interface: &str, features: &str) -> Result<(), Failure> {
        let words: Vec<&str> = ["ethtool", "-K", interface].into_iter().chain(features.split_whitespace()).collect();
        self.run(&words).map(drop)
    }

    /// The file by which programs find this namespace as long as it is held: `ip link set x netns PATH`.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// A new IPv6 address is tentative until a kernel worker has looked at it, even if it does not detect duplicates. Only
/// `nodad` avoids that.
fn at_once(line: &str) -> String {
    let is_ipv6 = line.split_whitespace().nth(2).is_some_and(|address| address.contains(':'));
    if line.starts_with("addr add ") && is_ipv6 { format!("{line} nodad") } else { line.to_owned() }
}

/// Joins two namespaces by a veth pair with this MTU, and waits until both ends are up.
pub fn join(one: (&Netns, &str), other: (&Netns, &str), mtu: u32) -> Result<(), Failure> {
    let ((one, here), (other, there)) = (one, other);
    one.ip(&format!(
        "link add {here} mtu {mtu} type veth peer name {there} mtu {mtu} netns {}
         link set dev {here} up",
        other.path()
    ))?;
    other.ip(&format!("link set dev {there} up"))?;
    // The kernel notices a carrier some time after it appears. An IPv6 address that was added before cannot be used
    // until then.
    for (netns, name) in [(one, here), (other, there)] {
        let is_up =
            || netns.run(&["ip", "-brief", "link", "show", "dev", name]).ok().filter(|said| said.contains(" UP "));
        until(PATIENCE, is_up).ok_or_else(|| Failure::of(&netns.name, format!("{name} does not come up")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Runs only as root. Otherwise it says so, and a run as root fails if it was skipped.
    fn pair(name: &str) -> Option<(Netns, Netns)> {
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(std::io::stderr(), "SKIP {name}: network namespaces need root");
            return None;
        }
        Some((Netns::new("one").unwrap(), Netns::new("other").unwrap()))
    }

    #[test]
    fn two_that_are_joined_reach_each_other() {
        let Some((one, other)) = pair("two_that_are_joined_reach_each_other") else { return };
        join((&one, "veth0"), (&other, "eth0"), 1400).unwrap();
        one.ip("addr add 10.0.0.1/24 dev veth0\naddr add fd00::1/64 dev veth0").unwrap();
        other.ip("addr add 10.0.0.2/24 dev eth0\naddr add fd00::2/64 dev eth0").unwrap();
        for address in ["10.0.0.2:80", "[fd00::2]:80"] {
            let listener = other.inside(|| TcpListener::bind(address).unwrap());
            let stream = one.inside(|| TcpStream::connect(address).unwrap());
            assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
        }
        assert!(one.run(&["ip", "link", "show", "veth0"]).unwrap().contains("mtu 1400"));
        // The network of the other namespace is separate.
        assert!(std::net::UdpSocket::bind("10.0.0.2:0").is_err());
    }

    #[test]
    fn what_is_set_is_set_there_alone() {
        let Some((one, other)) = pair("what_is_set_is_set_there_alone") else { return };
        let read = |netns: &Netns, key: &str| netns.inside(|| std::fs::read_to_string(key).unwrap());
        one.forward().unwrap();
        let key = "/proc/sys/net/ipv4/ip_forward";
        assert_eq!((&*read(&one, key), &*read(&other, key)), ("1\n", "0\n"));
        join((&one, "a.b"), (&other, "eth0"), 1500).unwrap();
        one.sysctl("net.ipv4.conf.a/b.rp_filter", "2").unwrap();
        one.offload("a.b", "tx off").unwrap();
        let features = one.run(&["ethtool", "-k", "a.b"]).unwrap();
        assert!(features.contains("tx-checksumming: off"), "{features}");
    }

    #[test]
    fn what_fails_says_where_and_why() {
        let Some((one, _)) = pair("what_fails_says_where_and_why") else { return };
        let failure = one.ip("addr add 10.0.0.1/24 dev nowhere").unwrap_err();
        assert!(failure.0.starts_with("one: ip: ") && failure.0.contains("nowhere"), "{failure}");
        let failure = one.run(&["false"]).unwrap_err();
        assert!(failure.0.contains("`false`: Code(1)"), "{failure}");
        assert!(one.sysctl("net.nothing", "1").unwrap_err().0.starts_with("one: net.nothing = 1: "));
    }

    #[test]
    fn it_is_gone_when_it_is_dropped() {
        let Some((one, other)) = pair("it_is_gone_when_it_is_dropped") else { return };
        join((&one, "veth0"), (&other, "eth0"), 1500).unwrap();
        drop(other);
        // One end of a veth pair does not outlive the other. The kernel removes a namespace some time later.
        let is_gone = || one.run(&["ip", "link", "show", "veth0"]).is_err().then_some(());
        assert!(until(PATIENCE, is_gone).is_some());
    }
}

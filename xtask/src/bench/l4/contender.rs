//! The contenders: each does the same in a namespace, for the same addresses.

use std::fmt::Write;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use testkit::netns::Netns;

use super::network::text;
use crate::bench::child::Child;
use crate::command::{capture, command, find_program};

/// The timeout of a check whether something serves.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    Steelyard,
    /// No balancer: the same hosts, with a route to one endpoint.
    Routed,
    Nftables,
    Ipvs,
    Haproxy,
}

/// An address of a contender and its endpoints.
pub struct Frontend {
    pub name: &'static str,
    pub port: u16,
    pub endpoints: Vec<SocketAddr>,
}

/// The network of a contender.
pub struct Testbed<'n> {
    pub netns: &'n Netns,
    pub vip: String,
    pub interfaces: Vec<String>,
    pub frontends: Vec<Frontend>,
}

/// A running contender, which is removed when dropped.
pub struct Running {
    _child: Option<Child>,
    /// Steelyard, and the namespace from which it must be detached: it intentionally stays attached when its process
    /// ends.
    to_detach: Option<(PathBuf, String)>,
}

/// Returns the contenders that this host can run, and a sentence about each that it cannot.
pub fn find_all() -> (Vec<Contender>, Vec<String>) {
    let mut found = vec![Contender::Steelyard, Contender::Routed];
    let mut gaps = Vec::new();
    match find_program("nft") {
        Some(_) => found.push(Contender::Nftables),
        None => gaps.push("nftables is not installed: apt-get install nftables".to_owned()),
    }
    match (Path::new("/proc/net/ip_vs").exists(), find_program("ipvsadm")) {
        (true, Some(_)) => found.push(Contender::Ipvs),
        (true, None) => gaps.push("ipvsadm is not installed: apt-get install ipvsadm".to_owned()),
        (false, _) => gaps.push("this kernel has no IPVS, or its module is not loaded (modprobe ip_vs)".to_owned()),
    }
    match find_program("haproxy") {
        Some(_) => found.push(Contender::Haproxy),
        None => gaps.push("HAProxy is not installed: apt-get install haproxy".to_owned()),
    }
    (found, gaps)
}

impl Contender {
    pub fn name(self) -> &'static str {
        match self {
            Self::Steelyard => "steelyard",
            Self::Routed => "routed",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
            Self::Haproxy => "haproxy",
        }
    }

    /// Starts the contender and waits until it serves.
    pub fn start(self, testbed: &Testbed, cpu: usize, steelyard: &Path, directory: &Path) -> Result<Running, String> {
        let mut running = Running { _child: None, to_detach: None };
        match self {
            Self::Routed => {}
            Self::Nftables => {
                let rules = write(directory, "nftables.nft", &nft_rules(testbed))?;
                testbed.netns.run(&["nft", "-f", &rules]).map_err(text)?;
            }
            Self::Ipvs => ipvs(testbed)?,
            Self::Haproxy => {
                testbed.netns.ip(&format!("addr add {}/32 dev lo", testbed.vip)).map_err(text)?;
                let file = write(directory, "haproxy-l4.cfg", &haproxy_config(testbed))?;
                let program = find_program("haproxy").ok_or("HAProxy is gone")?;
                let mut child =
                    in_namespace(testbed.netns, "haproxy", cpu, &program, &["-q", "-db", "-f", &file], directory)?;
                child.wait_for(|| {
                    testbed.frontends.iter().all(|frontend| accepts(testbed.netns, &testbed.vip, frontend.port))
                })?;
                running._child = Some(child);
            }
            Self::Steelyard => {
                let file = write(directory, "steelyard-l4.yaml", &steelyard_config(testbed))?;
                let words = ["serve", "-c", &file, "--workers", "1"];
                let mut child = in_namespace(testbed.netns, "steelyard-l4", cpu, steelyard, &words, directory)?;
                running.to_detach = Some((steelyard.to_owned(), testbed.netns.path()));
                child.wait_for(|| is_ready(testbed.netns))?;
                running._child = Some(child);
            }
        }
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self._child = None;
        if let Some((steelyard, netns)) = &self.to_detach {
            let words = [&format!("--net={netns}"), "--", &*steelyard.to_string_lossy(), "vip", "detach"];
            if let Err(why) = capture(&mut command("nsenter", &words)) {
                eprintln!("could not detach Steelyard from a namespace: {why}");
            }
        }
    }
}

/// Runs a program in a namespace, pinned. It dies with us.
pub fn in_namespace(
    netns: &Netns,
    name: &str,
    cpu: usize,
    program: &Path,
    words: &[&str],
    directory: &Path,
) -> Result<Child, String> {
    let mut arguments = vec![format!("--net={}", netns.path()), "--".to_owned(), program.display().to_string()];
    arguments.extend(words.iter().map(|word| (*word).to_owned()));
    Child::spawn(name, cpu, Path::new("nsenter"), &arguments, directory)
}

/// Whether something accepts connections there, seen from inside the namespace.
pub fn accepts(netns: &Netns, address: &str, port: u16) -> bool {
    let Ok(address) = format!("{address}:{port}").parse() else { return false };
    netns.inside(|| TcpStream::connect_timeout(&address, LOOK).is_ok())
}

const ADMIN_PORT: u16 = 9900;

fn is_ready(netns: &Netns) -> bool {
    use std::io::{Read, Write};
    let load_run = netns.inside(|| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], ADMIN_PORT)), LOOK)?;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1:9900\r\nconnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status).map(|()| status)
    });
    load_run.is_ok_and(|status| status.ends_with(b" 200"))
}

fn steelyard_config(testbed: &Testbed) -> String {
    let mut config = format!("admin: 127.0.0.1:{ADMIN_PORT}\nvips:\n");
    for frontend in &testbed.frontends {
        let endpoints: Vec<String> = frontend.endpoints.iter().map(|endpoint| format!("'{endpoint}'")).collect();
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            config,
            "  {}: {{address: '{}:{}/tcp', interfaces: [{}], endpoints: [{}]}}",
            frontend.name,
            testbed.vip,
            frontend.port,
            testbed.interfaces.join(", "),
            endpoints.join(", ")
        );
    }
    config
}

fn haproxy_config(testbed: &Testbed) -> String {
    let mut config = String::from(
        "# One thread, no logs, splice where HAProxy thinks it pays.\nglobal\n    nbthread 1\ndefaults\n    mode tcp\n    \
         balance roundrobin\n    timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n    option splice-auto\n",
    );
    for frontend in &testbed.frontends {
        let _ = writeln!(config, "listen {}\n    bind {}:{}", frontend.name, testbed.vip, frontend.port);
        for (index, endpoint) in frontend.endpoints.iter().enumerate() {
            let _ = writeln!(config, "    server ep{index} {endpoint}");
        }
    }
    config
}

/// Only destination translation, with the endpoints in turn: this is what kube-proxy's nftables mode does.
fn nft_rules(testbed: &Testbed) -> String {
    let mut rules = String::from(
        "table ip bench {\n  chain prerouting {\n    type nat hook prerouting priority dstnat; policy accept;\n",
    );
    for frontend in &testbed.frontends {
        let endpoint =
            |(index, endpoint): (usize, &SocketAddr)| format!("{index} : {} . {}", endpoint.ip(), endpoint.port());
        let endpoints: Vec<String> = frontend.endpoints.iter().enumerate().map(endpoint).collect();
        let _ = writeln!(
            rules,
            "    ip daddr {} tcp dport {} dnat ip to numgen inc mod {} map {{ {} }}",
            testbed.vip,
            frontend.port,
            frontend.endpoints.len(),
            endpoints.join(", ")
        );
    }
    rules + "  }\n}\n"
}

fn ipvs(testbed: &Testbed) -> Result<(), String> {
    testbed.netns.ip(&format!("addr add {}/32 dev lo", testbed.vip)).map_err(text)?;
    // This is off by default. Without it, replies are not translated if the host also tracks connections.
    testbed.netns.sysctl("net.ipv4.vs.conntrack", "0").map_err(text)?;
    for frontend in &testbed.frontends {
        let address = format!("{}:{}", testbed.vip, frontend.port);
        testbed.netns.run(&["ipvsadm", "-A", "-t", &address, "-s", "rr"]).map_err(text)?;
        for endpoint in &frontend.endpoints {
            testbed.netns.run(&["ipvsadm", "-a", "-t", &address, "-r", &endpoint.to_string(), "-m"]).map_err(text)?;
        }
    }
    Ok(())
}

/// Writes to a file of its own, because several contenders of one kind run at once.
fn write(directory: &Path, name: &str, content: &str) -> Result<String, String> {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let path = directory.join(format!("{}-{name}", NEXT.fetch_add(1, Relaxed)));
    fs::write(&path, content).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path.display().to_string())
}

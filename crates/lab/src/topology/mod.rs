//! The topology of a run: network namespaces and the links between them.
//!
//! It has a namespace for the client, one for each origin and one for each balancer, and veth pairs between them. They are made with ip(8)
//! and removed when dropped. Every instance has its own path, with its own addresses:
//!
//! ```text
//!   client 10.10.I.1-8 -- client0 | balancer I, VIP 20.20.I.1 | epJ 10.100+J.I.254 -- 10.100+J.I.1 origin J
//! ```
//!
//! The path of a contender in pods has a client and origins of its own, because what captures connections captures all of a namespace. A link
//! joins them, as on the direct path:
//!
//! ```text
//!   client I: 10.10.I.1-8, directI-J 10.100+J.I.254 -- lbI 10.100+J.I.1: origin J of I
//! ```
//!
//! Each path has its own client addresses, since connections from one address over two paths would collide in TIME_WAIT at the origin. For
//! `direct`, the client has a link to each origin. For `direct` and `routed`, the VIP is an address of every origin, and routing spreads
//! connections over them by hash, so these baselines have as many origins as the balancers.
//!
//! The CPU that sends does the receive work of a veth, unless steering (RPS) says otherwise. Here it does: packets for the balancer are
//! received on the balancer's CPUs, and all others on those of load and origins, as if they were separate hosts. A scenario can turn it off,
//! because a balancer that redirects packets between devices does not pass through it, so that it changes the order of balancers in the kernel.
//!
//! It does not run processes, and does not emulate a network: links have no delay, no loss and no limit.

mod congestion;

use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::placement::{Placement, mask};
use crate::record::{Layer, Setting};

/// The most instances: each has a third byte of its addresses.
pub const INSTANCES_MAX: usize = 200;

/// The most origins: each has a second byte.
pub const ENDPOINTS_MAX: u32 = 100;

/// Addresses of the client on each path. A connection per request uses up local ports, of which an address has 64,000.
pub const CLIENT_ADDRESSES: u8 = 8;

/// The exit code of a shell that found no `rps_cpus`.
const NO_RPS: i32 = 44;

/// The beginning of every namespace's name.
pub const PREFIX: &str = "steelyard-lab-";

/// Settings of every namespace. They are the same for every contender.
const SYSCTLS: &[(&str, &str)] = &[
    ("net.ipv4.ip_forward", "1"),
    // Bottleneck bandwidth estimates vary on links without a limit. Cubic is the default of every distribution.
    ("net.ipv4.tcp_congestion_control", "cubic"),
    // A connection per request needs them, and TIME_WAIT holds each for a minute.
    ("net.ipv4.ip_local_port_range", "1024 65535"),
    ("net.ipv4.tcp_tw_reuse", "1"),
    ("net.core.somaxconn", "65535"),
    ("net.ipv4.tcp_max_syn_backlog", "65535"),
    ("net.ipv4.tcp_syncookies", "0"),
    // Replies may arrive over another link than the one the kernel would send on.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    // Connections, not addresses, are spread over several paths.
    ("net.ipv4.fib_multipath_hash_policy", "1"),
    ("net.ipv6.conf.all.disable_ipv6", "1"),
];

/// One path from the load to the origins.
#[derive(Clone, Debug)]
pub struct LoadPath {
    /// From 0; unique.
    pub index: u8,
    /// The layer at which its contender works.
    pub layer: Layer,
    /// Whether the VIP must be an address of the balancer's namespace.
    pub binds: bool,
    /// Whether client and origins are pods of this path alone, with the contender in them.
    pub pods: bool,
    /// Which CPUs receive packets.
    pub placement: Placement,
}

impl LoadPath {
    /// The address that the load connects to.
    #[must_use]
    pub fn vip(&self) -> Ipv4Addr {
        Ipv4Addr::new(20, 20, self.index, 1)
    }

    /// The address of an origin, as the balancer of this path sees it.
    #[must_use]
    pub fn endpoint(&self, endpoint: u32) -> Ipv4Addr {
        Ipv4Addr::new(10, second_byte(endpoint), self.index, 1)
    }

    /// The client's addresses.
    #[must_use]
    pub fn clients(&self) -> Vec<Ipv4Addr> {
        (1..=CLIENT_ADDRESSES).map(|host| Ipv4Addr::new(10, 10, self.index, host)).collect()
    }

    fn vip_is_the_origins(&self) -> bool {
        matches!(self.layer, Layer::Direct | Layer::Routed)
    }

    /// Whether a link joins the client and each origin, with nothing between them.
    #[must_use]
    pub fn is_one_link(&self) -> bool {
        self.layer == Layer::Direct || self.pods
    }
}

fn second_byte(endpoint: u32) -> u8 {
    100 + (endpoint % ENDPOINTS_MAX) as u8
}

/// Namespaces and links, removed when dropped.
#[derive(Debug)]
pub struct Topology {
    tag: String,
    endpoints: u32,
    mtu: u32,
    /// Whether packets are to be steered.
    steers: bool,
    /// Whether the kernel has what that takes, as far as it was tried.
    can_steer: bool,
    namespaces: Vec<String>,
    _cubic: congestion::Allowed,
}

impl Topology {
    /// Creates the namespaces of the client and of `endpoints` origins. `tag` distinguishes this lab's namespaces from another's. With
    /// `steers`, packets are received on the CPUs of the component that they are for, if the kernel can do that.
    ///
    /// # Errors
    /// The error of ip(8), for example without root. Everything made before it is removed.
    pub fn new(tag: &str, endpoints: u32, mtu: u32, steers: bool) -> io::Result<Self> {
        let _cubic = congestion::Allowed::new();
        let namespaces = Vec::new();
        let mut topology = Self { tag: tag.to_owned(), endpoints, mtu, steers, can_steer: true, namespaces, _cubic };
        topology.add(&topology.client())?;
        for endpoint in 0..endpoints {
            topology.add(&topology.origin(endpoint))?;
        }
        Ok(topology)
    }

    /// The load's namespace.
    #[must_use]
    pub fn client(&self) -> String {
        format!("{PREFIX}{}-client", self.tag)
    }

    /// An origin's namespace.
    #[must_use]
    pub fn origin(&self, endpoint: u32) -> String {
        format!("{PREFIX}{}-ep{endpoint}", self.tag)
    }

    /// The namespace of the load on a path.
    #[must_use]
    pub fn client_of(&self, load_path: &LoadPath) -> String {
        if load_path.pods { format!("{}{}", self.client(), load_path.index) } else { self.client() }
    }

    /// The namespace of an origin on a path.
    #[must_use]
    pub fn origin_of(&self, load_path: &LoadPath, endpoint: u32) -> String {
        let origin = self.origin(endpoint);
        if load_path.pods { format!("{origin}-{}", load_path.index) } else { origin }
    }

    /// The namespace of a path's balancer.
    #[must_use]
    pub fn balancer(&self, load_path: &LoadPath) -> String {
        format!("{PREFIX}{}-lb{}", self.tag, load_path.index)
    }

    /// The links of a balancer's namespace.
    #[must_use]
    pub fn interfaces(&self) -> Vec<String> {
        std::iter::once("client0".to_owned())
            .chain((0..self.endpoints).map(|endpoint| format!("ep{endpoint}")))
            .collect()
    }

    /// All namespaces.
    #[must_use]
    pub fn namespaces(&self) -> &[String] {
        &self.namespaces
    }

    /// Creates one path from the client to all origins.
    ///
    /// # Errors
    /// The error of ip(8).
    pub fn add_load_path(&mut self, load_path: &LoadPath) -> io::Result<()> {
        if load_path.is_one_link() {
            return self.add_one_link(load_path);
        }
        let balancer = self.balancer(load_path);
        self.add(&balancer)?;
        let (index, mtu, client) = (load_path.index, self.mtu, self.client());
        let of_client = format!("lb{index}");
        self.link((&balancer, "client0"), (&client, &of_client))?;
        let mut of_client_lines = String::new();
        for address in load_path.clients() {
            of_client_lines += &format!("address add {address}/24 dev {of_client}\n");
        }
        ip_in(&client, &format!("{of_client_lines}link set {of_client} mtu {mtu} up\n"))?;
        ip_in(&client, &format!("route add 20.20.{index}.1/32 via 10.10.{index}.254 src 10.10.{index}.1\n"))?;
        let mut lines = format!("address add 10.10.{index}.254/24 dev client0\nlink set client0 mtu {mtu} up\n");
        for endpoint in 0..self.endpoints {
            let (origin, byte) = (self.origin(endpoint), second_byte(endpoint));
            self.link((&balancer, &format!("ep{endpoint}")), (&origin, &of_client))?;
            ip_in(
                &origin,
                &format!(
                    "address add 10.{byte}.{index}.1/24 dev {of_client}\nlink set {of_client} mtu {mtu} up\n\
                     route add 10.10.{index}.0/24 via 10.{byte}.{index}.254\n"
                ),
            )?;
            lines +=
                &format!("address add 10.{byte}.{index}.254/24 dev ep{endpoint}\nlink set ep{endpoint} mtu {mtu} up\n");
            self.steer(&origin, &of_client, &load_path.placement.origin)?;
        }
        if load_path.binds {
            lines += &format!("address add 20.20.{index}.1/32 dev lo\n");
        }
        ip_in(&balancer, &lines)?;
        if load_path.vip_is_the_origins() {
            self.give_vip_to_origins(load_path)?;
            ip_in(&balancer, &spread(load_path, self.endpoints))?;
        }
        for interface in self.interfaces() {
            self.steer(&balancer, &interface, &load_path.placement.balancer)?;
        }
        self.steer(&client, &of_client, &load_path.placement.client)
    }

    /// A link from the client to each origin, and no balancer between them.
    fn add_one_link(&mut self, load_path: &LoadPath) -> io::Result<()> {
        let (index, mtu, client) = (load_path.index, self.mtu, self.client_of(load_path));
        if load_path.pods {
            self.add(&client)?;
        }
        let mut lines = String::new();
        for endpoint in 0..self.endpoints {
            let (origin, byte) = (self.origin_of(load_path, endpoint), second_byte(endpoint));
            if load_path.pods {
                self.add(&origin)?;
            }
            let (of_client, of_origin) = (format!("direct{index}-{endpoint}"), format!("lb{index}"));
            self.link((&client, &of_client), (&origin, &of_origin))?;
            ip_in(
                &origin,
                &format!(
                    "address add 10.{byte}.{index}.1/24 dev {of_origin}\nlink set {of_origin} mtu {mtu} up\n\
                     route add 10.10.{index}.0/24 via 10.{byte}.{index}.254\n"
                ),
            )?;
            lines +=
                &format!("address add 10.{byte}.{index}.254/24 dev {of_client}\nlink set {of_client} mtu {mtu} up\n");
            self.steer(&origin, &of_origin, &load_path.placement.origin)?;
        }
        for address in load_path.clients() {
            lines += &format!("address add {address}/32 dev lo\n");
        }
        ip_in(&client, &lines)?;
        if load_path.vip_is_the_origins() {
            self.give_vip_to_origins(load_path)?;
        }
        // In a pod, too, the kernel wants a route to the address before it looks at what captures it.
        ip_in(&client, &spread(load_path, self.endpoints))?;
        for endpoint in 0..self.endpoints {
            self.steer(&client, &format!("direct{index}-{endpoint}"), &load_path.placement.client)?;
        }
        Ok(())
    }

    fn give_vip_to_origins(&self, load_path: &LoadPath) -> io::Result<()> {
        for endpoint in 0..self.endpoints {
            ip_in(&self.origin(endpoint), &format!("address add {}/32 dev lo\n", load_path.vip()))?;
        }
        Ok(())
    }

    /// Restricts the routes of `direct` and `routed` to the first `count` origins, for a case that has fewer.
    ///
    /// # Errors
    /// The error of ip(8).
    pub fn use_origins(&self, load_path: &LoadPath, count: u32) -> io::Result<()> {
        if !load_path.vip_is_the_origins() {
            return Ok(());
        }
        let namespace = if load_path.layer == Layer::Direct { self.client() } else { self.balancer(load_path) };
        ip_in(&namespace, &spread(load_path, count.min(self.endpoints)).replacen("route add", "route replace", 1))
    }

    fn add(&mut self, namespace: &str) -> io::Result<()> {
        ip(&["netns", "add", namespace])?;
        self.namespaces.push(namespace.to_owned());
        ip_in(namespace, "link set lo up\n")?;
        let settings = SYSCTLS.to_vec();
        inside(namespace, move || {
            for (name, value) in settings {
                let path = format!("/proc/sys/{}", name.replace('.', "/"));
                // A kernel without one of these features (IPv6, multipath) has nothing to set.
                let _ = std::fs::write(path, value);
            }
        })
    }

    /// Whether packets are steered.
    #[must_use]
    pub fn is_steered(&self) -> bool {
        self.steers && self.can_steer
    }

    /// Makes `cpus` receive the packets that arrive at `interface`. A kernel without SMP has no file for it, and one CPU to choose from.
    fn steer(&mut self, namespace: &str, interface: &str, cpus: &[u32]) -> io::Result<()> {
        if !self.is_steered() {
            return Ok(());
        }
        // ip-netns(8) mounts a sysfs of the namespace, which a thread that only switched namespaces would not see.
        let path = format!("/sys/class/net/{interface}/queues/rx-0/rps_cpus");
        let script = format!("[ -e $0 ] || exit {NO_RPS}; echo $1 > $0");
        let status = Command::new("ip")
            .args(["netns", "exec", namespace, "/bin/sh", "-c", &script, &path, &mask(cpus)])
            .stdin(Stdio::null())
            .output()?;
        match status.status.code() {
            Some(0) => Ok(()),
            Some(NO_RPS) => {
                self.can_steer = false;
                Ok(())
            }
            _ => {
                let why = String::from_utf8_lossy(&status.stderr).trim().to_owned();
                Err(io::Error::other(format!("cannot write {} to {path} in {namespace}: {why}", mask(cpus))))
            }
        }
    }

    fn link(&self, (one, of_one): (&str, &str), (other, of_other): (&str, &str)) -> io::Result<()> {
        ip(&["link", "add", of_one, "netns", one, "type", "veth", "peer", "name", of_other, "netns", other])
    }
}

/// A route to the VIP over the first origins.
fn spread(load_path: &LoadPath, endpoints: u32) -> String {
    let source = if load_path.is_one_link() { format!(" src 10.10.{}.1", load_path.index) } else { String::new() };
    let mut line = format!("route add {}/32{source}", load_path.vip());
    for endpoint in 0..endpoints {
        line += &format!(" nexthop via {}", load_path.endpoint(endpoint));
    }
    line + "\n"
}

impl Drop for Topology {
    fn drop(&mut self) {
        for namespace in &self.namespaces {
            // Its links and addresses are removed with it. It does no harm if it is already gone.
            let _ = ip(&["netns", "delete", namespace]);
        }
    }
}

/// The actual settings of a namespace.
///
/// # Errors
/// The namespace is gone.
pub fn settings(namespace: &str) -> io::Result<Vec<Setting>> {
    inside(namespace, || {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).ok();
        let value = |name: &str| read(name).map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
        SYSCTLS.iter().filter_map(|(name, _)| Some(Setting { name: (*name).to_owned(), value: value(name)? })).collect()
    })
}

/// The file of a namespace.
#[must_use]
pub fn path_of(namespace: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(namespace)
}

/// Runs `work` on its own thread inside a namespace: what it opens belongs there, and `/proc/thread-self/net` is that of the namespace.
///
/// # Errors
/// The namespace does not exist, or may not be entered.
pub fn inside<T: Send + 'static>(namespace: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let file = File::open(path_of(namespace))?;
    let thread = std::thread::spawn(move || -> io::Result<T> {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Several ip(8) commands at once inside a namespace.
fn ip_in(namespace: &str, lines: &str) -> io::Result<()> {
    run(Command::new("ip").args(["-netns", namespace, "-batch", "-"]), lines)
}

fn ip(arguments: &[&str]) -> io::Result<()> {
    run(Command::new("ip").args(arguments), "")
}

fn run(command: &mut Command, input: &str) -> io::Result<()> {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let text = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let failed = |why: String| io::Error::other(format!("`{text}` failed: {why}\n{input}").trim_end().to_owned());
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // The command may have failed already, and reports that itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

#[cfg(test)]
mod tests;

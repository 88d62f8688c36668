//! The network of the measurement: namespaces joined by veth pairs, with a separate path for each contender.

use testkit::netns::{Netns, join};

/// The number of endpoints behind every balancer.
pub const ENDPOINTS: usize = 3;

/// The MTU of all links: that of Ethernet, as between hosts.
pub const MTU: u32 = 1500;

/// One client and three endpoints, and between them one balancer for each contender.
///
/// Each contender has its own namespace, links and client address. So what one installs does not slow down another, and
/// a connection through one never meets another's TIME_WAIT: its timestamps would have another offset, and the SYN
/// would be dropped (PAWS).
pub struct Fan {
    pub client: Netns,
    pub balancers: Vec<Netns>,
    pub endpoints: Vec<Netns>,
}

impl Fan {
    /// Creates a path for each of `count` contenders.
    pub fn new(count: usize) -> Result<Self, String> {
        let balancers = (0..count).map(|_| netns("balancer")).collect::<Result<_, _>>()?;
        let endpoints = (0..ENDPOINTS).map(|_| netns("endpoint")).collect::<Result<_, _>>()?;
        let fan = Self { client: netns("client")?, balancers, endpoints };
        ports_for_load(&fan.client)?;
        for (way, balancer) in fan.balancers.iter().enumerate() {
            balancer.forward().map_err(text)?;
            link((balancer, "client0"), (&fan.client, &format!("way{way}")), &format!("10.10.{way}"))?;
            fan.client
                .ip(&format!("route add 20.20.{way}.0/24 via 10.10.{way}.254 src 10.10.{way}.1"))
                .map_err(text)?;
            for (index, endpoint) in fan.endpoints.iter().enumerate() {
                let net = format!("10.{}.{way}", 31 + index);
                link((balancer, &format!("ep{index}")), (endpoint, &format!("way{way}")), &net)?;
                endpoint.ip(&format!("route add 10.10.{way}.0/24 via {net}.254")).map_err(text)?;
                let there = format!("route add {net}.0/24 via 10.10.{way}.254 src 10.10.{way}.1");
                fan.client.ip(&there).map_err(text)?;
            }
        }
        Ok(fan)
    }

    /// The address that a contender balances.
    pub fn vip(way: usize) -> String {
        format!("20.20.{way}.1")
    }

    /// The address of an endpoint on a contender's path.
    pub fn endpoint(way: usize, index: usize) -> String {
        format!("10.{}.{way}.1", 31 + index)
    }

    /// The interfaces of every balancer.
    pub fn interfaces() -> Vec<String> {
        std::iter::once("client0".to_owned()).chain((0..ENDPOINTS).map(|index| format!("ep{index}"))).collect()
    }
}

/// A client and an endpoint with this many hops in a row between them.
pub struct Chain {
    pub client: Netns,
    pub hops: Vec<Netns>,
    pub endpoint: Netns,
}

impl Chain {
    pub fn new(length: usize) -> Result<Self, String> {
        let hops = (0..length).map(|_| netns("hop")).collect::<Result<_, _>>()?;
        let chain = Self { client: netns("client")?, hops, endpoint: netns("endpoint")? };
        let mut nodes = vec![&chain.client];
        nodes.extend(&chain.hops);
        nodes.push(&chain.endpoint);
        for (index, pair) in nodes.windows(2).enumerate() {
            let [left, right] = pair else { continue };
            link((right, "left0"), (left, "right0"), &format!("10.60.{index}"))?;
        }
        for (index, node) in nodes.iter().enumerate() {
            // The rest of the network is to the right, the client to the left.
            if index + 1 < nodes.len() {
                node.ip(&format!("route add default via 10.60.{index}.254")).map_err(text)?;
            }
            if index > 1 {
                node.ip(&format!("route add 10.60.0.0/24 via 10.60.{}.1", index - 1)).map_err(text)?;
            }
        }
        chain.hops.iter().try_for_each(|hop| hop.forward().map_err(text))?;
        Ok(chain)
    }

    /// The address that a hop balances.
    pub fn vip(hop: usize) -> String {
        format!("10.70.{hop}.1")
    }

    pub fn endpoint(&self) -> String {
        format!("10.60.{}.254", self.hops.len())
    }
}

/// A namespace in which every socket uses cubic.
fn netns(name: &str) -> Result<Netns, String> {
    let netns = Netns::new(name).map_err(text)?;
    netns.sysctl("net.ipv4.tcp_congestion_control", "cubic").map_err(text)?;
    Ok(netns)
}

/// Gives one end the address `net`.254 and the other `net`.1.
fn link(one: (&Netns, &str), other: (&Netns, &str), net: &str) -> Result<(), String> {
    join(one, other, MTU).map_err(text)?;
    one.0.ip(&format!("addr add {net}.254/24 dev {}", one.1)).map_err(text)?;
    other.0.ip(&format!("addr add {net}.1/24 dev {}", other.1)).map_err(text)
}

/// Connections open faster than the ports of the default range become free again.
fn ports_for_load(client: &Netns) -> Result<(), String> {
    client.sysctl("net.ipv4.ip_local_port_range", "1024 65535").map_err(text)
}

pub fn text(failure: testkit::Failure) -> String {
    failure.0
}

/// Allows cubic in all namespaces while this exists: a namespace may choose only what the host allows.
pub struct CubicAllowed {
    before: String,
}

const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

impl CubicAllowed {
    pub fn new() -> Result<Self, String> {
        let failed = |error| format!("{ALLOWED}: {error}");
        let before = std::fs::read_to_string(ALLOWED).map_err(failed)?.trim().to_owned();
        if !before.split_whitespace().any(|name| name == "cubic") {
            std::fs::write(ALLOWED, format!("{before} cubic")).map_err(failed)?;
        }
        Ok(Self { before })
    }
}

impl Drop for CubicAllowed {
    fn drop(&mut self) {
        // It could be written a moment ago, and one more name on that list does no harm.
        let _ = std::fs::write(ALLOWED, &self.before);
    }
}

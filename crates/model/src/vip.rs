//! Virtual addresses that the kernel plane balances. None of their packets enters user space.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::{Endpoint, HealthCheck};

/// A virtual address, and the endpoints behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Vip {
    /// Unique among the vips of a snapshot; a label of its metrics.
    pub name: String,
    /// The address. It need not be an address of this host, but packets for it must be routed here. An unspecified one (`0.0.0.0`, `::`)
    /// stands for every address that this host has, except those of the loopback and of a link.
    pub address: IpAddr,
    /// Its ports.
    pub ports: PortRange,
    /// Its protocol.
    pub transport: Transport,
    /// The interfaces on which packets for the address and replies arrive. Steelyard attaches to no other. Empty means the interfaces of
    /// the routes to the endpoints and of the default routes.
    pub interfaces: Vec<String>,
    /// Addresses only, of the same family as `address`. Port 0 means the port that the client connected to. Empty for [`VipMode::Local`].
    pub endpoints: Vec<Endpoint>,
    /// How the endpoint of a new flow is chosen.
    pub algorithm: VipAlgorithm,
    /// What is rewritten.
    pub mode: VipMode,
    /// With [`VipMode::Dsr`]: how packets reach endpoints behind a router. `None` means that all endpoints are on the same link.
    pub tunnel: Option<Tunnel>,
    /// A client stays with its endpoint for this long after its last new flow; `None` means that each flow is chosen anew.
    pub affinity: Option<Duration>,
    /// `None` means that endpoints count as healthy.
    pub health_check: Option<HealthCheck>,
    /// What happens to TCP connections to an endpoint whose probes fail.
    pub on_unhealthy: OnUnhealthy,
    /// Sources that may open flows; empty means all.
    pub allow: Vec<IpNet>,
    /// Sources that may not. If an address is in several prefixes, the longest decides.
    pub deny: Vec<IpNet>,
    /// The limit on new flows of one source address.
    pub source_rate: Option<SourceRate>,
    /// How long a flow may be silent.
    pub timeouts: FlowTimeouts,
    /// Connections of this host's own processes may be balanced at the socket, if the snapshot wants that. False if the endpoints are meant
    /// for clients elsewhere.
    pub at_sockets: bool,
    /// It has only the endpoints of this node, because its Service demands that. Whoever finds none is counted as `no_local_endpoint`.
    pub is_of_node: bool,
    /// How the network learns that this host serves the address.
    pub announce: Announce,
}

impl Vip {
    /// A vip with the defaults of a file: round robin, nat, all sources, the default timeouts. It follows the routes, and has no endpoints
    /// yet.
    pub fn new(name: impl Into<String>, address: IpAddr, ports: PortRange, transport: Transport) -> Self {
        Self {
            name: name.into(),
            address,
            ports,
            transport,
            interfaces: Vec::new(),
            endpoints: Vec::new(),
            algorithm: VipAlgorithm::RoundRobin,
            mode: VipMode::Nat,
            tunnel: None,
            affinity: None,
            health_check: None,
            on_unhealthy: OnUnhealthy::Keep,
            allow: Vec::new(),
            deny: Vec::new(),
            source_rate: None,
            timeouts: FlowTimeouts::new(transport),
            at_sockets: true,
            is_of_node: false,
            announce: Announce::None,
        }
    }
}

/// Ports from `first` to `last`, both included; `1 <= first <= last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// The lowest.
    pub first: u16,
    /// The highest.
    pub last: u16,
}

/// The protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// How the endpoint of a new flow is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VipAlgorithm {
    /// Smooth weighted round robin.
    RoundRobin,
    /// By weight.
    Random,
    /// Consistent hashing over addresses, ports and protocol (Eisenbud et al., NSDI 2016): every Steelyard sends the same flow to the same
    /// endpoint, so that another one can take over.
    Maglev,
    /// Consistent hashing over the client's address alone.
    SourceHash,
    /// The better of two random endpoints by active flows over weight.
    LeastConnections,
}

/// Which addresses and ports are rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipMode {
    /// The destination. The endpoint sees the client's address, and its replies must be routed back through this host.
    Nat,
    /// The source too: replies return without extra routes, and the endpoint sees an address of this host.
    FullNat {
        /// Source addresses; empty means the one that this host would use to reach the endpoint.
        sources: Vec<IpAddr>,
    },
    /// Only the link layer, or nothing with a [`Tunnel`]: the endpoint holds the virtual address itself and answers the client directly.
    Dsr,
    /// Not forwarded: a listener on this host serves the address.
    Local,
    /// Packets are not touched. Processes of this host get an endpoint when they connect, if the snapshot wants that. Another vip may serve
    /// the packets of the same address; these processes do not reach it.
    Socket,
}

/// What the packets of a client travel in, on their way to an endpoint, which takes them out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// IP in IP (RFC 2003, RFC 2473): 20 bytes more with IPv4, 40 with IPv6.
    Ipip,
    /// Generic UDP Encapsulation to port 6080: 32 bytes more with IPv4, 52 with IPv6. Routers can spread flows by the source port.
    Gue,
}

/// What happens to TCP connections to an endpoint whose probes fail. Datagrams go to another endpoint in any case,
/// except those of connected sockets of this host, which are treated alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnhealthy {
    /// They continue, because an endpoint that fails a probe may still serve them.
    Keep,
    /// They are reset, so that clients need not wait for their own timeouts.
    Reset,
}

/// How the network learns that this host serves the address of a vip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Announce {
    /// Not by Steelyard: packets for the address reach this host by other means.
    #[default]
    None,
    /// By a route of this host, which a routing daemon passes on, for as long as the vip is usable.
    Route,
    /// On the link that the address belongs to, for as long as the vip is usable: this host answers ARP and neighbour discovery for it. Of
    /// several hosts, one does.
    L2,
}

/// What all announcements of a snapshot share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcing {
    /// After an address was withdrawn, how long it must be usable without a break before it is announced again.
    pub after: Duration,
    /// The routing table of the routes.
    pub table: u32,
    /// The metric of the routes.
    pub metric: u32,
}

impl Default for Announcing {
    fn default() -> Self {
        // Ten seconds: an endpoint that fails every few seconds then moves clients once and not every few seconds. The table is the main
        // one (254), which routing daemons read without being told to. The metric is the default of the kernel for IPv6.
        Self { after: Duration::from_secs(10), table: 254, metric: 1024 }
    }
}

/// A token bucket for each source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRate {
    /// New flows per second in the long run.
    pub per_second: u32,
    /// New flows at once.
    pub burst: u32,
}

/// How long a flow may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTimeouts {
    /// From its first packet until the endpoint answers.
    pub syn: Duration,
    /// After that, while neither side sends anything.
    pub idle: Duration,
    /// After both sides have ended the connection.
    pub closing: Duration,
}

impl FlowTimeouts {
    /// The defaults for a protocol.
    pub fn new(transport: Transport) -> Self {
        let (syn, idle) = match transport {
            // Longer than the 7200 s after which Linux sends its first keep-alive would be safest, but a table of flows is finite. An hour
            // is longer than the usual idle times of databases and SSH sessions.
            Transport::Tcp => (20, 3600),
            // RFC 4787 requirement 5: two minutes at least.
            Transport::Udp => (30, 120),
        };
        // Long enough for a last retransmission; a SYN with the same ports reopens the flow at once.
        Self { syn: Duration::from_secs(syn), idle: Duration::from_secs(idle), closing: Duration::from_secs(2) }
    }
}

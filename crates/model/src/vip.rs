//! Virtual addresses that the kernel plane balances: no packet of theirs enters user space.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::{Endpoint, HealthCheck};

/// A virtual address, and the endpoints behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Vip {
    /// Unique among the vips of a snapshot; the label of its metrics.
    pub name: String,
    /// Need not be an address of this host; packets for it must be routed here.
    pub address: IpAddr,
    /// Which of its ports.
    pub ports: PortRange,
    /// And which protocol.
    pub transport: Transport,
    /// Where packets for the address, and the replies, arrive. Nothing is attached to any other interface. Empty: where the routes to the endpoints and the
    /// default routes lead.
    pub interfaces: Vec<String>,
    /// Addresses only, of the family of `address`; port 0: the port that the client asked for. Empty for [`VipMode::Local`].
    pub endpoints: Vec<Endpoint>,
    /// How one is chosen for a new flow.
    pub algorithm: VipAlgorithm,
    /// What is rewritten.
    pub mode: VipMode,
    /// A client stays with its endpoint for this long after its last new flow; `None`: each flow is chosen anew.
    pub affinity: Option<Duration>,
    /// `None`: an endpoint is thought healthy.
    pub health_check: Option<HealthCheck>,
    /// What becomes of its TCP connections to an endpoint whose probes fail.
    pub on_unhealthy: OnUnhealthy,
    /// Sources that may open flows; empty: all.
    pub allow: Vec<IpNet>,
    /// Sources that may not. Of two prefixes that both hold, the longer decides.
    pub deny: Vec<IpNet>,
    /// New flows of one source address.
    pub source_rate: Option<SourceRate>,
    /// How long silence is borne.
    pub timeouts: FlowTimeouts,
}

impl Vip {
    /// One that a file would name with these words and no others: round robin, nat, all sources, the default timeouts. It goes along the routes, and its
    /// endpoints are yet to be named.
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
            affinity: None,
            health_check: None,
            on_unhealthy: OnUnhealthy::Keep,
            allow: Vec::new(),
            deny: Vec::new(),
            source_rate: None,
            timeouts: FlowTimeouts::new(transport),
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
    /// Consistent hashing over addresses, ports and protocol (Eisenbud et al., NSDI 2016): the same flow goes to the same endpoint from every
    /// Steelyard, so that another one may take over.
    Maglev,
    /// The same over the client's address alone.
    SourceHash,
    /// The better of two random endpoints by active flows over weight.
    LeastConnections,
}

/// What is rewritten on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipMode {
    /// The destination. The endpoint sees the client's address, and its replies must be routed back through this host.
    Nat,
    /// The source too: replies come back by themselves, and the endpoint sees an address of this host.
    FullNat {
        /// Source addresses; empty: the one that this host would use towards the endpoint.
        sources: Vec<IpAddr>,
    },
    /// Nothing but the link layer: the endpoint holds the virtual address itself and answers the client directly.
    Dsr,
    /// Not forwarded: a listener of this host serves the address.
    Local,
}

/// What becomes of TCP connections to an endpoint whose probes fail. Datagrams go to another endpoint either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnhealthy {
    /// They go on. A probe may fail where the endpoint still serves.
    Keep,
    /// They are reset, so that clients need not wait for their own timeouts.
    Reset,
}

/// A token bucket for each source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRate {
    /// New flows a second in the long run.
    pub per_second: u32,
    /// New flows at once.
    pub burst: u32,
}

/// How long a flow lives in silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTimeouts {
    /// From its first packet until the endpoint answers.
    pub syn: Duration,
    /// Afterwards, when neither side says anything.
    pub idle: Duration,
    /// After both sides have said goodbye.
    pub closing: Duration,
}

impl FlowTimeouts {
    /// The defaults for a protocol.
    pub fn new(transport: Transport) -> Self {
        let (syn, idle) = match transport {
            // Longer than the 7200 s after which Linux sends its first keep-alive would be safest, but a table of flows is finite: an hour
            // outlives the idle time of databases and SSH sessions in common use.
            Transport::Tcp => (20, 3600),
            // RFC 4787 requirement 5: two minutes at least.
            Transport::Udp => (30, 120),
        };
        // Long enough for a last retransmission; a SYN of the same ports opens the flow again at once.
        Self { syn: Duration::from_secs(syn), idle: Duration::from_secs(idle), closing: Duration::from_secs(2) }
    }
}

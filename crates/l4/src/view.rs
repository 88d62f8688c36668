//! The data that the kernel plane reports, the same in every build.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use model::Transport;

/// Packets, bytes and flows. The counts never decrease while a process holds the plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Flows that have neither ended nor expired.
    pub flows_active: u64,
    /// All flows that were ever made.
    pub flows_made: u64,
    /// Towards the endpoint, and from it.
    pub packets: [u64; 2],
    /// Bytes towards the endpoint and from it, including the link-layer header.
    pub bytes: [u64; 2],
    /// Sockets of this host that are connected to the endpoint because they asked for the vip. Their packets are not counted.
    pub sockets_open: u64,
    /// All that ever were, and exchanges of datagrams by sockets that are not connected.
    pub sockets_made: u64,
    /// Those that are not known as connected, because the table of sockets was full.
    pub sockets_unknown: u64,
}

impl Traffic {
    #[cfg(kernel_plane)]
    pub(crate) fn add(&mut self, other: &Self) {
        self.flows_active += other.flows_active;
        self.flows_made += other.flows_made;
        self.sockets_open += other.sockets_open;
        self.sockets_made += other.sockets_made;
        self.sockets_unknown += other.sockets_unknown;
        for direction in 0..2 {
            for (mine, more) in [(&mut self.packets, &other.packets), (&mut self.bytes, &other.bytes)] {
                if let (Some(mine), Some(more)) = (mine.get_mut(direction), more.get(direction)) {
                    *mine += more;
                }
            }
        }
    }
}

/// All counters of the plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Entries of the table of flows after the last collection. A connection has two, with `dsr` one.
    pub flows_used: u64,
    /// The most entries that the table holds.
    pub flows_max: u64,
    /// Whether it is so full that half-open and closed connections are forgotten early.
    pub pressure: bool,
    /// The memory of all maps in the kernel, in bytes.
    pub map_bytes: u64,
    /// By name of the vip.
    pub vips: BTreeMap<String, VipCounters>,
    /// Packets that belong to no vip and were not forwarded, by the name of the reason. Every reason is present.
    pub drops: BTreeMap<&'static str, u64>,
}

/// The counters of one vip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipCounters {
    /// Over all endpoints, including those that are gone.
    pub total: Traffic,
    /// The present endpoints. Port 0 stands for the port that the client connected to.
    pub endpoints: BTreeMap<SocketAddr, Traffic>,
    /// Packets that were not forwarded, by the name of the reason. Every reason is present.
    pub drops: BTreeMap<&'static str, u64>,
}

/// How connections of this host's own processes are balanced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sockets {
    /// The control group of the processes.
    pub cgroup: PathBuf,
    /// Why they are not balanced.
    pub why_not: Option<String>,
    /// The most sockets that are known as connected to a vip.
    pub open_max: u32,
    /// Why sockets that are connected to dead endpoints cannot be ended, if that was asked for.
    pub cannot_end: Option<String>,
}

/// A connection, or what looks like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The name of the vip.
    pub vip: String,
    /// The protocol.
    pub transport: Transport,
    /// The client.
    pub client: FlowClient,
    /// The address that the client connected to.
    pub address: SocketAddr,
    /// The endpoint.
    pub endpoint: SocketAddr,
    /// `opening`, `established` or `closing`; `connected` for a socket.
    pub state: &'static str,
    /// Seconds since its first packet, or since the socket was connected.
    pub age_s: u32,
    /// Seconds since its last packet in either direction. `None` for a socket, whose packets are not seen.
    pub idle_s: Option<u32>,
}

/// The client of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowClient {
    /// A host, whose packets are balanced.
    Address(SocketAddr),
    /// A socket of this host, by its cookie, which `ss --extended` shows as `sk:` in hexadecimal. It was connected to its endpoint.
    Socket(u64),
}

/// A question: what would happen to this packet?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceQuery {
    /// Its destination.
    pub vip: (IpAddr, u16, Transport),
    /// Its source, of the same family.
    pub from: SocketAddr,
    /// The interface of arrival; `None` means the loopback.
    pub interface: Option<String>,
    /// The bits of the TCP header (RFC 9293 section 3.1); SYN is 0x02.
    pub flags: u8,
}

/// The answer to a [`TraceQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The decision of each stage, in order.
    pub steps: Vec<TraceStep>,
    /// Whether it would be sent to an endpoint, or to the listener of a local vip.
    pub forwarded: bool,
    /// The result in one sentence.
    pub verdict: String,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStep {
    /// Its name.
    pub stage: &'static str,
    /// Its result as a sentence.
    pub text: String,
}

/// The result of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Entries that remain in the table.
    pub kept: u32,
    /// Flows that were forgotten although neither side had closed them.
    pub expired: u32,
    /// Closed flows that were forgotten.
    pub closed: u32,
    /// Removed endpoints whose last flow is gone.
    pub freed: u32,
    /// Clients of dead endpoints that were prodded, so that their connections can be reset.
    pub prodded: u32,
    /// Whether an endpoint has become reachable or unreachable. This takes effect when vips are applied next.
    pub reach_differs: bool,
}

//! What the kernel plane tells: plain data, the same in every build.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use model::Transport;

/// Packets, bytes and flows. What has been counted never goes back while a process holds the plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// That have neither ended nor expired.
    pub flows_active: u64,
    /// Made, ever.
    pub flows_made: u64,
    /// Towards the endpoint, and from it.
    pub packets: [u64; 2],
    /// The same, in bytes with the link layer's header.
    pub bytes: [u64; 2],
}

impl Traffic {
    #[cfg(kernel_plane)]
    pub(crate) fn add(&mut self, other: &Self) {
        self.flows_active += other.flows_active;
        self.flows_made += other.flows_made;
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
    /// Entries of the table of flows after the last collection; a connection has two, with `dsr` one.
    pub flows_used: u64,
    /// Entries that it holds.
    pub flows_max: u64,
    /// It is so full that half-open and closed connections are forgotten early.
    pub pressure: bool,
    /// By name.
    pub vips: BTreeMap<String, VipCounters>,
    /// Packets that belong to no vip and were not forwarded, by the name of the reason; every reason is there.
    pub drops: BTreeMap<&'static str, u64>,
}

/// Of one vip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VipCounters {
    /// Over all endpoints, those that are gone included.
    pub total: Traffic,
    /// Those that the vip has now. Port 0 stands for the port that the client asked for.
    pub endpoints: BTreeMap<SocketAddr, Traffic>,
    /// Packets that were not forwarded, by the name of the reason; every reason is there.
    pub drops: BTreeMap<&'static str, u64>,
}

/// A connection, or what looks like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Its name.
    pub vip: String,
    /// The protocol.
    pub transport: Transport,
    /// Who began it.
    pub client: SocketAddr,
    /// What the client asked for.
    pub address: SocketAddr,
    /// Who serves it.
    pub endpoint: SocketAddr,
    /// `opening`, `established` or `closing`.
    pub state: &'static str,
    /// Seconds since its first packet.
    pub age_s: u32,
    /// Seconds since its last packet in either direction.
    pub idle_s: u32,
}

/// What would happen to this packet?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceQuery {
    /// Its destination.
    pub vip: (IpAddr, u16, Transport),
    /// Its source, of the same family.
    pub from: SocketAddr,
    /// Where it arrives; `None`: at the loopback.
    pub interface: Option<String>,
    /// The bits of the TCP header (RFC 9293 section 3.1); SYN is 0x02.
    pub flags: u8,
}

/// The answer to that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// What each stage decided, in order.
    pub steps: Vec<Step>,
    /// Whether it would be on its way to an endpoint, or to the listener of a local vip.
    pub forwarded: bool,
    /// One sentence.
    pub verdict: String,
}

/// One stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its name.
    pub stage: &'static str,
    /// What it found, in a sentence.
    pub text: String,
}

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// Entries that are left in the table.
    pub kept: u32,
    /// Flows forgotten that nobody had closed.
    pub expired: u32,
    /// Flows forgotten that were over.
    pub closed: u32,
    /// Endpoints that had been removed, and whose last flow is gone.
    pub freed: u32,
    /// Clients of dead endpoints that were asked to show themselves, so that their connections can be reset.
    pub prodded: u32,
    /// An endpoint has come into reach, or gone out of it: it is served, or not, from the next time on that vips are applied.
    pub reach_differs: bool,
}

//! How the kernel plane is, as `/status`, `/flows` and `/trace` tell it in JSON.
//!
//! Versioned with the status: [`crate::STATUS_VERSION`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::status::EndpointState;

/// The kernel plane as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPlaneStatus {
    /// Entries of the table of flows; a flow has two, one for each direction, and with mode dsr one.
    pub entries: u64,
    /// Entries that the table holds.
    pub entries_max: u64,
    /// It is so full that connections which are opening or closing are forgotten sooner.
    pub pressure: bool,
    /// Packets that belong to no vip and were not forwarded, by reason; reasons that did not occur are not there.
    pub drops: BTreeMap<String, u64>,
}

/// A vip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VipStatus {
    /// Its name.
    pub name: String,
    /// As in the file: `192.0.2.1:80/tcp`.
    pub address: String,
    /// As in the file.
    pub mode: String,
    /// As in the file.
    pub algorithm: String,
    /// Where its packets arrive, and the programs are attached.
    pub interfaces: Vec<String>,
    /// The file names no interfaces: they were found along the routes.
    #[serde(default)]
    pub along_routes: bool,
    /// It was added by a command, and is gone when the process ends.
    pub added: bool,
    /// Flows open now.
    pub flows: u64,
    /// Flows made.
    pub flows_total: u64,
    /// Of late.
    pub rates: VipRates,
    /// Packets that were not forwarded, by reason; reasons that did not occur are not there.
    pub drops: BTreeMap<String, u64>,
    /// The same in the last minute.
    #[serde(default)]
    pub recent_drops: BTreeMap<String, u64>,
    /// In the order of the file.
    pub endpoints: Vec<VipEndpointStatus>,
}

/// Over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VipRates {
    /// Flows made in a second.
    pub flows_per_second: f64,
    /// Packets of both directions in a second.
    pub packets_per_second: f64,
    /// Bits of both directions in a second, link layer included.
    pub bits_per_second: f64,
}

/// An endpoint of a vip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipEndpointStatus {
    /// Where; without a port where the client's is kept.
    pub address: String,
    /// Relative to the others; 0 takes no new flows.
    pub weight: u32,
    /// Whether it takes new flows.
    pub state: EndpointState,
    /// What led to that state, or the last failure.
    pub why: Option<String>,
    /// Flows open now.
    pub flows: u64,
    /// Flows made.
    pub flows_total: u64,
    /// Packets to the endpoint.
    pub packets_to: u64,
    /// Packets from the endpoint; none of them in mode dsr, where they do not come this way.
    pub packets_from: u64,
    /// Bytes to the endpoint, link layer included.
    pub bytes_to: u64,
    /// Bytes from the endpoint, link layer included.
    pub bytes_from: u64,
    /// This host has the address itself, so that the kernel plane cannot serve it.
    #[serde(default)]
    pub is_here: bool,
    /// The last minute.
    #[serde(default)]
    pub recent: VipEndpointRecent,
    /// The last 10 to 15 seconds.
    #[serde(default)]
    pub latest: VipEndpointRecent,
}

/// A time just past of an endpoint of a vip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipEndpointRecent {
    /// Flows made.
    pub flows: u64,
    /// Packets to the endpoint.
    pub packets_to: u64,
    /// Packets from the endpoint; none of them in mode dsr.
    pub packets_from: u64,
}

/// A part of the table of flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// [`crate::STATUS_VERSION`].
    pub version: u32,
    /// In no order.
    pub flows: Vec<FlowStatus>,
    /// There are more than were asked for.
    pub more: bool,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// The name of its vip.
    pub vip: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Where it comes from.
    pub client: String,
    /// Where the client sends it.
    pub address: String,
    /// Where it goes.
    pub endpoint: String,
    /// How far the connection is: `opening`, `established`, `closing`.
    pub state: String,
    /// Since its first packet.
    pub age_seconds: u64,
    /// Since its last packet, of either side.
    pub idle_seconds: u64,
}

/// What would happen to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// [`crate::STATUS_VERSION`].
    pub version: u32,
    /// In the order of the stages.
    pub steps: Vec<TraceStep>,
    /// Whether the packet would reach an endpoint, or a listener of this host.
    pub forwarded: bool,
    /// All of it in one sentence.
    pub verdict: String,
}

/// What a stage does with the packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// Its name.
    pub stage: String,
    /// What it finds, in a sentence.
    pub text: String,
}

/// The packet that a trace is about, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceQuestion {
    /// The name of a vip, or the address and port it is sent to.
    pub vip: String,
    /// `IP`, or `IP:PORT`.
    pub from: String,
    /// Where it arrives; `None`: the first interface of the vip.
    pub interface: Option<String>,
    /// Of TCP: `syn`, `ack`, `fin`, `rst`, joined by commas; `None`: a SYN.
    pub flags: Option<String>,
}

/// A change of the vips that a command asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipChange {
    /// One more.
    Add {
        /// Its name.
        name: String,
        /// What the file would have under that name.
        document: String,
    },
    /// One less, of those that were added.
    Remove {
        /// Its name.
        name: String,
    },
    /// The kernel plane is taken down, until the next reload.
    Detach,
}

/// Why a change was not made. Then nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// What was asked for is wrong.
    Bad(String),
    /// This host cannot do it.
    HostCannot(String),
    /// There are too many orders, or the process is ending.
    Busy(String),
}

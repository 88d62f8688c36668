//! The state of the kernel plane as `/status`, `/flows` and `/trace` return it in JSON.
//!
//! It has the version of the status: [`crate::STATUS_VERSION`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::status::EndpointState;

/// The kernel plane as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelPlaneStatus {
    /// Entries in the flow table. A flow has two, one for each direction; with mode dsr it has one.
    pub entries: u64,
    /// The capacity of the table.
    pub entries_max: u64,
    /// The table is so full that connections which are opening or closing expire sooner.
    pub pressure: bool,
    /// The memory of all maps of the kernel plane, in bytes. The kernel has allocated most of it at the start.
    #[serde(default)]
    pub map_bytes: u64,
    /// Packets that belong to no vip and were not forwarded, by reason. Reasons that did not occur are absent.
    pub drops: BTreeMap<String, u64>,
    /// How connections of this host's own processes are balanced; `None`: only packets are.
    #[serde(default)]
    pub sockets: Option<SocketsStatus>,
}

/// Connections that are balanced at the socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketsStatus {
    /// The control group of the processes.
    pub cgroup: String,
    /// Why they are not balanced.
    pub why_not: Option<String>,
    /// Sockets that are connected to an endpoint.
    pub open: u64,
    /// The most that are known as such. More sockets are connected to endpoints too, but are not counted and see the endpoint's address.
    pub open_max: u64,
    /// Why sockets that are connected to dead endpoints cannot be ended, if `on_unhealthy: reset` asks for that.
    #[serde(default)]
    pub cannot_end: Option<String>,
    /// Those that were connected in the last minute although the table was full.
    #[serde(default)]
    pub unknown: u64,
}

/// A vip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VipStatus {
    /// Its name.
    pub name: String,
    /// As in the file: `192.0.2.1:80/tcp`.
    pub address: String,
    /// The mode, as in the file.
    pub mode: String,
    /// What packets travel in with mode dsr, as in the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// The algorithm, as in the file.
    pub algorithm: String,
    /// The interfaces where its packets arrive, and where the programs are attached.
    pub interfaces: Vec<String>,
    /// The file names no interfaces, so they were found from the routes.
    #[serde(default)]
    pub along_routes: bool,
    /// A command added it, and it lasts until the process ends.
    pub added: bool,
    /// Flows open now.
    pub flows: u64,
    /// Flows created.
    pub flows_total: u64,
    /// Sockets of this host that are connected to an endpoint because they asked for the vip. They are no flows.
    #[serde(default)]
    pub sockets: u64,
    /// All that ever were, and exchanges of datagrams of sockets that are not connected.
    #[serde(default)]
    pub sockets_total: u64,
    /// Its rates in the last seconds.
    pub rates: VipRates,
    /// Packets that were not forwarded, by reason. Reasons that did not occur are absent.
    pub drops: BTreeMap<String, u64>,
    /// The same in the last minute.
    #[serde(default)]
    pub recent_drops: BTreeMap<String, u64>,
    /// Whether its address is announced; `None` if that is not Steelyard's task.
    #[serde(default)]
    pub announcement: Option<AnnouncementStatus>,
    /// In the order of the file.
    pub endpoints: Vec<VipEndpointStatus>,
}

/// The announcement of an address. All vips with the address share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnouncementStatus {
    /// How, as in the file.
    pub by: String,
    /// Whether it is announced.
    pub state: AnnouncementState,
    /// Why it is not, or why its route could not be changed.
    pub why: Option<String>,
    /// How often it was announced and withdrawn since the process started.
    pub changes: u64,
}

/// Whether an address is announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnnouncementState {
    /// It is.
    Announced,
    /// It is usable, and will be announced once it has been so for a time.
    Waiting,
    /// It is not.
    Withdrawn,
}

/// Rates over the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VipRates {
    /// Flows created per second.
    pub flows_per_second: f64,
    /// Packets per second in both directions.
    pub packets_per_second: f64,
    /// Bits per second in both directions, including the link layer.
    pub bits_per_second: f64,
}

/// An endpoint of a vip.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipEndpointStatus {
    /// Its address, without a port if the client's port is kept.
    pub address: String,
    /// The weight relative to the others. An endpoint of weight 0 gets no new flows.
    pub weight: u32,
    /// Whether it takes new flows.
    pub state: EndpointState,
    /// What led to the state, or the last failure.
    pub why: Option<String>,
    /// Flows open now.
    pub flows: u64,
    /// Flows created.
    pub flows_total: u64,
    /// Packets to the endpoint.
    pub packets_to: u64,
    /// Packets from the endpoint. In mode dsr there are none, because they do not pass through this host.
    pub packets_from: u64,
    /// Bytes to the endpoint, including the link layer.
    pub bytes_to: u64,
    /// Bytes from the endpoint, including the link layer.
    pub bytes_from: u64,
    /// This host has the address itself, so the kernel plane cannot serve it.
    #[serde(default)]
    pub is_here: bool,
    /// Sockets of this host that are connected to it. They are no flows.
    #[serde(default)]
    pub sockets: u64,
    /// All that ever were, and exchanges of datagrams of sockets that are not connected.
    #[serde(default)]
    pub sockets_total: u64,
    /// The last minute.
    #[serde(default)]
    pub recent: VipEndpointRecent,
    /// The last 10 to 15 seconds.
    #[serde(default)]
    pub latest: VipEndpointRecent,
}

/// What an endpoint of a vip did in a period just past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VipEndpointRecent {
    /// Flows created.
    pub flows: u64,
    /// Packets to the endpoint.
    pub packets_to: u64,
    /// Packets from the endpoint. In mode dsr there are none.
    pub packets_from: u64,
}

/// A part of the table of flows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// [`crate::STATUS_VERSION`].
    pub version: u32,
    /// The flows, in no particular order.
    pub flows: Vec<FlowStatus>,
    /// There are more flows than were asked for.
    pub more: bool,
}

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// The name of its vip.
    pub vip: String,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// The address of the client, or a socket of this host: `sk:` and its cookie in hexadecimal, as `ss --extended` shows it.
    pub client: String,
    /// The address to which the client sends.
    pub address: String,
    /// The endpoint that the flow goes to.
    pub endpoint: String,
    /// The state of the connection: `opening`, `established` or `closing`; `connected` for a socket of this host.
    pub state: String,
    /// Seconds since its first packet, or since the socket was connected.
    pub age_seconds: u64,
    /// Seconds since its last packet in either direction. `None` for a socket of this host, whose packets are not seen.
    pub idle_seconds: Option<u64>,
}

/// What would happen to a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceReport {
    /// [`crate::STATUS_VERSION`].
    pub version: u32,
    /// The steps, in the order of the stages.
    pub steps: Vec<TraceStep>,
    /// Whether the packet would reach an endpoint, or a listener of this host.
    pub forwarded: bool,
    /// A summary in one sentence.
    pub verdict: String,
}

/// What a stage does with the packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStep {
    /// Its name.
    pub stage: String,
    /// What it finds, as a sentence.
    pub text: String,
}

/// The packet to trace, as the operator wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceQuestion {
    /// The name of a vip, or the destination address and port.
    pub vip: String,
    /// `IP`, or `IP:PORT`.
    pub from: String,
    /// The interface where it arrives; `None` for the first interface of the vip.
    pub interface: Option<String>,
    /// TCP flags: `syn`, `ack`, `fin`, `rst`, separated by commas; `None` for a SYN.
    pub flags: Option<String>,
}

/// A change of the vips that a command requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VipChange {
    /// Adds a vip.
    Add {
        /// Its name.
        name: String,
        /// The vip as the file would have it under that name.
        document: String,
    },
    /// Removes a vip that was added.
    Remove {
        /// Its name.
        name: String,
    },
    /// Detaches the kernel plane until the next reload.
    Detach,
}

/// Why a change was not made. If it fails, nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// The request is wrong.
    Bad(String),
    /// This host cannot do it.
    HostCannot(String),
    /// There are too many requests, or the process is ending.
    Busy(String),
}

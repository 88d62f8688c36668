//! An endpoint in the status: its state, and what led to it.

use serde::{Deserialize, Serialize};
use telemetry::EndpointOutcomes;

use super::Quantiles;

/// Where an endpoint is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZoneStatus {
    /// Its zone or that of this process is not known.
    #[default]
    Unknown,
    /// In the zone of this process.
    Own,
    /// In another zone.
    Other,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Its address.
    pub address: String,
    /// The weight relative to the others. An endpoint of weight 0 gets no new work.
    pub weight: u32,
    /// Endpoints of the lowest number get the requests while enough of them are usable.
    #[serde(default)]
    pub priority: u8,
    /// Whether it is in the zone of this process.
    #[serde(default)]
    pub zone: ZoneStatus,
    /// Whether it takes new work.
    pub state: EndpointState,
    /// What led to the state, or the last failure.
    pub why: Option<String>,
    /// Requests in progress.
    pub in_flight: u64,
    /// Connections open to it.
    pub connections: u64,
    /// Requests, or TCP connections, sent to it.
    pub requests: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// The time until its response head; `None` if nothing was measured yet.
    #[serde(default)]
    pub upstream_us: Option<Quantiles>,
    /// What else led to the state.
    #[serde(default)]
    pub cause: EndpointCause,
    /// The last minute.
    #[serde(default)]
    pub recent: EndpointRecent,
    /// The last 5 to 10 seconds.
    #[serde(default)]
    pub latest: EndpointRecent,
}

/// What leads to the state of an endpoint, besides [`EndpointStatus::why`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointCause {
    /// The last probe; `None` if there was none.
    pub last_probe: Option<ProbeStatus>,
    /// Seconds until an ejected endpoint comes back.
    pub ejected_seconds_left: Option<u64>,
    /// Seconds for which an endpoint that has just come into service gets less than its share.
    pub slow_start_seconds_left: Option<u64>,
}

/// A probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Seconds since it ended.
    pub seconds_ago: u64,
    /// Whether it succeeded.
    pub is_success: bool,
}

/// What happened at an endpoint in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRecent {
    /// Requests, or TCP connections, sent to it.
    pub requests: u64,
    /// Requests for which no connection could be made.
    pub unreachable: u64,
    /// Requests that it answered with 500 to 599.
    pub errors: u64,
    /// Requests for which it closed or reset the connection before the end of the response, or sent a malformed
    /// response.
    pub resets: u64,
    /// Requests for which it was silent for too long.
    pub timeouts: u64,
}

/// Whether an endpoint takes new work, and what decides that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndpointState {
    /// It takes work: its health check succeeds.
    Healthy,
    /// It takes work, but nothing has checked it: its cluster has no health check, or no probe has finished yet.
    Unchecked,
    /// Its health check fails.
    Unhealthy,
    /// Outlier ejection has taken it out for a while because of what requests met there.
    Ejected,
    /// An operator wants it to get no new work.
    Draining,
}

impl EndpointState {
    /// Whether it takes new work.
    pub fn takes_work(self) -> bool {
        matches!(self, Self::Healthy | Self::Unchecked)
    }
}

impl EndpointRecent {
    /// All failures.
    pub fn failures(&self) -> u64 {
        self.unreachable + self.errors + self.resets + self.timeouts
    }
}

impl From<EndpointOutcomes> for EndpointRecent {
    fn from(outcomes: EndpointOutcomes) -> Self {
        let EndpointOutcomes { requests, unreachable, errors, resets, timeouts } = outcomes;
        Self { requests, unreachable, errors, resets, timeouts }
    }
}

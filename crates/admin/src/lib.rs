//! The control API: what an operator can ask a running Steelyard to do, and how.
//!
//! Job: serve metrics, readiness and status over HTTP, pass on reloads and drains, show a status to people, and send
//! these requests from the command line. Not its job: producing the answers, which an implementation of [`Control`]
//! does.
//!
//! The control API has no authentication, so it is served on loopback only. Pages for other hosts have an address of
//! their own. Web pages can reach loopback through an operator's browser; `server` describes the protection against
//! them.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod client;
mod counters;
mod findings;
mod handle;
mod listener;
mod query;
mod server;
mod show;
mod status;
mod vip;

use std::pin::Pin;

pub use client::{
    ClientError, endpoint_path, flows_path, get, maintenance_path, post, trace_path, vip_add_path, vip_remove_path,
};
pub use counters::{
    COUNTERS_VERSION, Counters, EndpointCounts, EndpointRates, ListenerCounts, ListenerRates, Rates, RouteCounts,
    RouteRates, VipCounts, VipEndpointCounts, VipEndpointRates, VipRow, listener_counts, rates_between, route_counts,
    vip_endpoint_counts,
};
pub use findings::{Finding, Severity, findings};
pub use listener::Listener;
pub use server::serve;
pub use show::{
    TopOptions, TopSort, TopView, render_flows_text, render_status_text, render_top_text, render_trace_text,
    render_vips_text, visible,
};
pub use status::{
    ClusterStatus, EndpointRecent, EndpointState, EndpointStatus, KeySetStatus, ListenerRecent, ListenerStatus,
    MaintenanceStatus, MethodStatus, PasswordStatus, Quantiles, Reload, RouteRecent, RouteStatus, STATUS_VERSION,
    ServiceFaultStatus, Status, Turn, ZoneStatus, listener_statuses, method_statuses, quantiles, route_statuses,
};
pub use vip::{
    AnnouncementState, AnnouncementStatus, ChangeRefused, FlowStatus, Flows, KernelPlaneStatus, SocketsStatus,
    TraceQuestion, TraceReport, TraceStep, VipChange, VipEndpointRecent, VipEndpointStatus, VipRates, VipStatus,
};

/// Answers the requests. It is called on the control runtime, where a slow answer delays only the next one.
pub trait Control: Send + Sync + 'static {
    /// Prometheus text, format 0.0.4.
    fn metrics(&self) -> String;

    /// Returns the status.
    fn status(&self) -> Status;

    /// Returns the current counters, for clients that compute their own rates.
    fn counters(&self) -> Counters;

    /// Whether the process accepts traffic.
    ///
    /// # Errors
    /// Says in a sentence why not.
    fn ready(&self) -> Result<(), String>;

    /// Reloads the configuration and returns the new generation.
    ///
    /// # Errors
    /// Returns everything that is wrong with the configuration. Then nothing has changed.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<u64, String>> + Send + '_>>;

    /// Drains the endpoints with this address, or puts them back in service. Returns how many there are.
    ///
    /// # Errors
    /// There is no such endpoint.
    fn set_draining(&self, within: Within<'_>, endpoint: &str, draining: bool) -> Result<usize, String>;

    /// Puts the routes of this name into maintenance, in one listener or in all, or back into service, until the process ends. Returns how
    /// many there are.
    ///
    /// # Errors
    /// There is no such route, or the configuration keeps it in maintenance.
    fn set_maintenance(&self, listener: Option<&str>, route: &str, on: bool) -> Result<usize, String>;

    /// Adds or removes vips in addition to those of the file, until the process ends. Returns the new generation.
    ///
    /// # Errors
    /// Says why not. Then nothing has changed.
    fn change_vips(&self, change: VipChange) -> Pin<Box<dyn Future<Output = Result<u64, ChangeRefused>> + Send + '_>>;

    /// Returns at most `limit` flows of the kernel plane, of one vip or of all.
    ///
    /// # Errors
    /// Says in a sentence that there is no such vip, or that the table cannot be read.
    fn flows(&self, vip: Option<&str>, limit: usize) -> Result<Flows, String>;

    /// Returns what the kernel plane would do with a packet, without sending one.
    ///
    /// # Errors
    /// Says in a sentence that the question makes no sense or cannot be answered.
    fn trace(&self, question: &TraceQuestion) -> Result<TraceReport, String>;
}

/// The pages that an address serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// All pages. There are no passwords, so only programs on this host may reach them.
    All,
    /// `/metrics`, `/healthz` and `/readyz`.
    ForAnyone,
}

/// Where to look for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within<'n> {
    /// In every cluster and every vip.
    All,
    /// In the cluster of this name.
    Cluster(&'n str),
    /// In the vip of this name.
    Vip(&'n str),
}

/// A request that changes something carries this header with the value `1`.
pub const ADMIN_HEADER: &str = "x-steelyard-admin";

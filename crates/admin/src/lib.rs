//! The control API: what an operator asks of a running Steelyard, and how.
//!
//! Job: serve metrics, readiness and status over HTTP, pass on reloads and drains, show a status to people, and ask for all that from the
//! command line. Not its job: what is behind the answers: that is whoever implements [`Control`].
//!
//! The control API has no authentication, so it is served on loopback only; what other hosts may read has an address of its own. What is held against web pages, which reach loopback through the browser
//! of an operator, is told at `server`.
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

pub use client::{ClientError, endpoint_path, flows_path, get, post, trace_path, vip_add_path, vip_remove_path};
pub use counters::{
    COUNTERS_VERSION, Counters, EndpointCounts, EndpointRates, ListenerCounts, ListenerRates, Rates, RouteCounts,
    RouteRates, VipCounts, VipRow, listener_counts, rates_between, route_counts,
};
pub use findings::{Finding, Severity, findings};
pub use listener::Listener;
pub use server::serve;
pub use show::{
    TopOptions, TopSort, TopView, render_flows_text, render_status_text, render_top_text, render_trace_text,
    render_vips_text,
};
pub use status::{
    ClusterStatus, EndpointRecent, EndpointState, EndpointStatus, ListenerRecent, ListenerStatus, MethodStatus,
    Quantiles, Reload, RouteRecent, RouteStatus, STATUS_VERSION, Status, listener_statuses, method_statuses, quantiles,
    route_statuses,
};
pub use vip::{
    ChangeRefused, FlowStatus, Flows, KernelPlaneStatus, TraceQuestion, TraceReport, TraceStep, VipChange,
    VipEndpointRecent, VipEndpointStatus, VipRates, VipStatus,
};

/// What answers. Called on the control runtime, where a slow answer delays the next one and nothing else.
pub trait Control: Send + Sync + 'static {
    /// Prometheus text, format 0.0.4.
    fn metrics(&self) -> String;

    /// How things are.
    fn status(&self) -> Status;

    /// The counters as they stand, for clients that compute rates of their own.
    fn counters(&self) -> Counters;

    /// Whether traffic is taken.
    ///
    /// # Errors
    /// Why not, in a sentence.
    fn ready(&self) -> Result<(), String>;

    /// Reads the configuration again; gives the new generation.
    ///
    /// # Errors
    /// Everything that is wrong with it. Then nothing has changed.
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<u64, String>> + Send + '_>>;

    /// Drains the endpoints with this address, or takes them back; gives how many there are.
    ///
    /// # Errors
    /// There is none.
    fn set_draining(&self, within: Within<'_>, endpoint: &str, draining: bool) -> Result<usize, String>;

    /// Changes the vips beyond what the file says, until the process ends; gives the new generation.
    ///
    /// # Errors
    /// Why not. Then nothing has changed.
    fn change_vips(&self, change: VipChange) -> Pin<Box<dyn Future<Output = Result<u64, ChangeRefused>> + Send + '_>>;

    /// At most `limit` flows of the kernel plane, of one vip or of all.
    ///
    /// # Errors
    /// There is no such vip, or the table cannot be read; in a sentence.
    fn flows(&self, vip: Option<&str>, limit: usize) -> Result<Flows, String>;

    /// What the kernel plane would do with a packet; nothing is sent.
    ///
    /// # Errors
    /// The question makes no sense, or cannot be answered; in a sentence.
    fn trace(&self, question: &TraceQuestion) -> Result<TraceReport, String>;
}

/// What an address answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Everything. There are no passwords, so only programs on this host may reach it.
    All,
    /// `/metrics`, `/healthz` and `/readyz`.
    ForAnyone,
}

/// Where an endpoint is looked for.
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

//! The control API: what an operator can ask a running Steelyard to do, and how.
//!
//! Job: serve metrics, readiness and status over HTTP, pass on reloads and drains, show a status to people, and send
//! these requests from the command line. Not its job: producing the answers, which an implementation of [`Control`]
//! does.
//!
//! Whoever reaches the control API can change what is served, so it is served on loopback or a Unix socket only, or those who may use it are
//! named ([`Access`]). Pages for anyone have an address of their own. Web pages can reach loopback through an operator's browser; `server`
//! describes the protection against them.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod access;
mod client;
mod counters;
mod feed;
mod findings;
mod handle;
mod history;
mod listener;
mod page;
mod query;
mod replicas;
mod route;
mod server;
mod show;
mod status;
mod vip;

use std::pin::Pin;

pub use access::{Access, Doubt, Proof, RefusedFor, Role, User, Users};
pub use client::{
    Client, ClientError, ClientTls, Event, EventStream, Login, debug_route_path, endpoint_path, events, events_path,
    flows_path, get, maintenance_path, post, trace_path, vip_add_path, vip_remove_path,
};
pub use counters::{
    COUNTERS_VERSION, Counters, EndpointCounts, EndpointRates, ListenerCounts, ListenerRates, Rates, RouteCounts,
    RouteRates, VipCounts, VipEndpointCounts, VipEndpointRates, VipRow, listener_counts, rates_between, route_counts,
    vip_endpoint_counts,
};
pub use feed::{Feed, FeedCounts, Overview, RequestSeen, VIEWERS_MAX, Wanted};
pub use findings::{AccessLogStatus, Finding, Severity, findings};
pub use history::{History, Point, Points, Verdict, Who};
pub use listener::Listener;
pub use replicas::{OVERVIEW_VERSION, OverviewStatus, Replica, SoFar};
pub use route::{OTHERS_MAX, OtherRoute, RouteQuestion, RouteReport};
pub use server::{MadeWayFor, serve};
pub use show::{
    TopOptions, TopSort, TopView, render_flows_text, render_status_text, render_top_text, render_trace_text,
    render_vips_text, visible,
};
pub use status::{
    AboutStatus, CertificateStatus, ChangesStatus, ClusterStatus, EndpointCause, EndpointRecent, EndpointState,
    EndpointStatus, InvalidCertificate, KeySetStatus, ListenerRecent, ListenerStatus, MaintenanceStatus, MethodStatus,
    PasswordStatus, ProbeStatus, Quantiles, RefusedObjectStatus, Reload, RouteRecent, RouteStatus, STATUS_VERSION,
    ServiceFaultStatus, StalledWorkerStatus, Status, Turn, ZoneStatus, listener_statuses, method_statuses, quantiles,
    route_statuses, route_target,
};
pub use vip::{
    AnnouncementState, AnnouncementStatus, ChangeRefused, FlowStatus, Flows, KernelPlaneStatus, SocketsStatus,
    TraceQuestion, TraceReport, TraceStep, VipChange, VipEndpointRecent, VipEndpointStatus, VipRates, VipStatus,
};

/// Answers the requests. It is called on the control runtime, where a slow answer delays only the next one.
pub trait Control: Send + Sync + 'static {
    /// What the configuration says about who may use the address.
    fn access(&self) -> Access {
        Access::default()
    }

    /// Counts a request that was refused because of who it is from.
    fn note_refused(&self, _reason: RefusedFor) {}

    /// Counts a connection that ended so that another could be served.
    fn note_made_way(&self, _reason: MadeWayFor) {}

    /// Prometheus text, format 0.0.4.
    fn metrics(&self, format: telemetry::Exposition) -> Vec<u8>;

    /// Returns the status.
    fn status(&self) -> Status;

    /// Returns the current counters, for clients that compute their own rates.
    fn counters(&self) -> Counters;

    /// The last hour, and who is to blame for errors and latency now.
    fn history(&self) -> (Points, Verdict);

    /// What this process tells anyone about itself.
    fn overview(&self) -> OverviewStatus;

    /// Whether it knows how to find the other processes that serve the same.
    fn has_replicas(&self) -> bool {
        false
    }

    /// Asks all processes that serve the same, this one included, for their figures.
    fn replicas(&self) -> Pin<Box<dyn Future<Output = Vec<Replica>> + Send + '_>> {
        Box::pin(std::future::ready(Vec::new()))
    }

    /// Those who look at the stream of events; `None` if there is no stream.
    fn feed(&self) -> Option<&Feed> {
        None
    }

    /// Says which route would take a request, and why the others do not.
    ///
    /// # Errors
    /// Says in a sentence that the question makes no sense.
    fn explain(&self, question: &RouteQuestion) -> Result<RouteReport, String>;

    /// Logs the requests of a route for this many seconds; 0 ends that.
    ///
    /// # Errors
    /// There is no such route, or too many are logged already.
    fn debug_route(&self, route: &str, seconds: u64) -> Result<(), String>;

    /// The last lines of the log.
    fn log_lines(&self) -> String;

    /// The configuration in force, without secrets, for people.
    fn configuration(&self) -> String;

    /// What a reason of dropped packets means; `None` if it is not known.
    fn drop_meaning(&self, _reason: &str) -> Option<&'static str> {
        None
    }

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
    /// All pages, for those whom [`Control::access`] admits.
    All,
    /// `/metrics`, `/overview`, `/healthz` and `/readyz`.
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

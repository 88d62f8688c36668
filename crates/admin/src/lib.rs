//! The control API: what an operator asks of a running Steelyard, and how.
//!
//! Job: serve metrics, readiness and status over HTTP, pass on reloads and drains, show a status to people, and ask for all that from the
//! command line. Not its job: what is behind the answers: that is whoever implements [`Control`].
//!
//! The address has no authentication, so it belongs on loopback. What is held against web pages, which reach loopback through the browser
//! of an operator, is told at `server`.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod client;
mod handle;
mod query;
mod server;
mod show;
mod status;

use std::pin::Pin;

pub use client::{ClientError, endpoint_path, get, post};
pub use server::serve;
pub use show::render_status_text;
pub use status::{
    ClusterStatus, EndpointState, EndpointStatus, ListenerStatus, Quantiles, Reload, RouteStatus, STATUS_VERSION,
    Status, listener_statuses, route_statuses,
};

/// What answers. Called on the control runtime, where a slow answer delays the next one and nothing else.
pub trait Control: Send + Sync + 'static {
    /// Prometheus text, format 0.0.4.
    fn metrics(&self) -> String;

    /// How things are.
    fn status(&self) -> Status;

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

    /// Drains the endpoints with this address, or takes them back, in one cluster or in all; gives how many there are.
    ///
    /// # Errors
    /// There is none.
    fn set_draining(&self, cluster: Option<&str>, endpoint: &str, draining: bool) -> Result<usize, String>;
}

/// A request that changes something carries this header with the value `1`.
pub const ADMIN_HEADER: &str = "x-steelyard-admin";

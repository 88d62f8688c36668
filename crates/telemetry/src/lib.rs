//! What Steelyard tells about itself: counters, histograms, the reasons by which failures are counted, and the access log.
//!
//! Job: count on the workers at the price of a plain store, sum when someone asks, write Prometheus text, and write one line per request
//! off the workers' way. Not its job: HTTP (`admin` serves the text), deciding what to count, and pushing anything anywhere.
//!
//! Start at [`Registry`], which hands each worker its own counters, at [`Reason`], and at [`AccessLog`]. The labels of every series come
//! from the configuration, so that traffic cannot make new ones; but for the methods of a gRPC service that a route names ([`METHODS_MAX`]).
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access_log;
mod counter;
mod groups;
mod grpc;
mod histogram;
mod process;
mod prometheus;
mod reason;
mod recent;
mod registry;

pub use access_log::{AccessLog, HttpRecord, Logger, Record};
pub use counter::{Counter, Gauge};
pub use groups::{
    ClusterCounters, ClusterTotals, EndpointCounters, EndpointTotals, ListenerCounters, ListenerTotals, MethodCounters,
    MethodTotals, ReasonCounters, ReasonTotals, ResponseCounters, ResponseTotals, RouteCounters, RouteTotals,
};
pub use grpc::{CodeCounters, CodeTotals, METHODS_MAX, MethodKey, OTHER_METHODS};
pub use histogram::{Distribution, Histogram, LazyHistogram};
pub use process::{OpenFiles, open_files};
pub use prometheus::{Kind, Sample};
pub use reason::{Reason, ReasonGroup};
pub use recent::{EndpointOutcomes, ListenerOutcomes, Outcomes, Recent, RouteOutcomes, Spans, Window};
pub use registry::{Registry, Totals};

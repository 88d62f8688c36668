//! Steelyard's data about itself: counters, histograms, the reasons by which failures are counted, and the access log.
//!
//! Workers count at the cost of a plain store, and the counters are summed on demand. This crate writes Prometheus text, and one line per
//! request without delaying the workers, and has the queue of the spans of traces. It does not serve HTTP (`admin` does), decide what to count,
//! or send anything anywhere.
//!
//! Start at [`Registry`], which gives each worker its own counters, at [`Reason`], at [`AccessLog`], and at [`TraceQueue`]. The labels of every series come
//! from the configuration, so that traffic cannot create new ones, except for the methods of a gRPC service that a route names
//! ([`METHODS_MAX`]).
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod access_log;
mod counter;
mod exemplar;
mod exposition;
mod groups;
mod grpc;
mod histogram;
mod occurred;
mod overall;
mod process;
mod prometheus;
mod protobuf;
mod reason;
mod recent;
mod registry;
mod tail;
mod trace;

pub use access_log::{
    AccessLog, ExportLosses, HttpRecord, LogAttribute, LogAttributes, LogEntry, LogExport, Logger, Record, Timestamp,
};
pub use counter::{Counter, Fullness, FullnessTotals, Gauge};
pub use exemplar::{Exemplar, ExemplarTotals, Exemplars};
pub use exposition::Exposition;
pub use groups::{
    BodyCounters, BodyTotals, ClusterCounters, ClusterTotals, CompressionCounters, CompressionTotals, EndpointCounters,
    EndpointTotals, ListenerCounters, ListenerTotals, MethodCounters, MethodTotals, ReasonCounters, ReasonTotals,
    ResponseCounters, ResponseTotals, RouteCounters, RouteTotals,
};
pub use grpc::{CodeCounters, CodeTotals, METHODS_MAX, MethodKey, OTHER_METHODS, is_fault_of_server};
pub use histogram::{Distribution, Histogram, LazyHistogram};
pub use occurred::OccurredReasons;
pub use overall::{Blame, Overall};
pub use process::{OpenFiles, open_files};
pub use prometheus::{Kind, Sample};
pub use reason::{Reason, ReasonGroup};
pub use recent::{EndpointOutcomes, ListenerOutcomes, Outcomes, Recent, RouteOutcomes, Spans, Window};
pub use registry::{EndpointKey, Registry, Totals};
pub use tail::{SLOW_US, Seen, TAIL_MAX, Tail};
pub use trace::{TRACES_MAX, TRIES_MAX, TraceQueue, TraceQueueHandle, TraceRecord, TraceSender, TryRecord};

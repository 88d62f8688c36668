//! Active probes: asks endpoints whether they are well, and tells their clusters.
//!
//! Job: connect, or ask over HTTP or gRPC, at intervals, count the results into verdicts ([`balance::HealthMachine`]), hand the verdicts to the
//! [`balance::ClusterState`]s, remember why the last probe failed. Not its job: choosing endpoints, ejecting them for what real requests
//! meet, resolving names.
//!
//! [`Checker`] holds one task for each distinct address and check, however many clusters have it; the tasks live on the runtime of the control
//! thread, so that probes cost the workers nothing.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod checker;
mod exchange;
mod grpc;
#[cfg(test)]
mod h2_tests;
mod probe;
mod transport;

pub use checker::{Checker, LastFailure, PROBES_AT_ONCE_MAX, ProbeTarget};
pub use transport::{Handshake, Handshaking, ProbeTransport, Stream};

//! Active probes, which test whether endpoints are healthy and report to their clusters.
//!
//! The probes connect, or send a request over HTTP or gRPC, at intervals. This crate counts the results into verdicts
//! ([`balance::HealthMachine`]), passes the verdicts to the [`balance::ClusterState`]s, and remembers why the last probe failed. It does
//! not choose endpoints, eject them for failures of real requests, or resolve names.
//!
//! [`Checker`] has one task for each distinct address and check, however many clusters use it. The tasks run on the runtime of the control
//! thread, so probes cost the workers nothing.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod checker;
mod exchange;
mod grpc;
#[cfg(test)]
mod h2_tests;
mod probe;
mod transport;

pub use checker::{Checker, LastFailure, LastProbe, PROBES_AT_ONCE_MAX, ProbeTarget};
pub use transport::{Handshake, Handshaking, ProbeTransport, Stream};

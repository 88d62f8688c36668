//! `steelyard controller` on a real API server: `cargo xtask test kube`.
//!
//! One API server for all tests of a run; each test has a namespace of the cluster and a node of its own, and its controllers run as a
//! ServiceAccount with exactly the rights that `deploy/gateway.yaml` gives. A call that was refused fails the test.
#![forbid(unsafe_code)]

mod away;
mod bad_input;
mod cut_over;
mod deploy;
mod edge;
mod faults;
#[path = "../support/grpc.rs"]
mod grpc;
mod harness;
mod infrastructure;
mod ingress_nginx;
mod nodes;
mod parameters;
mod policies;
mod replicas;
mod rollouts;
mod served;
mod services;
mod sidecar_webhook;
#[path = "../support/mod.rs"]
mod support;
mod telemetry;
#[path = "../support/tls.rs"]
mod tls;
mod unread;

// `grpc` asks its parent for it.
use support::local;

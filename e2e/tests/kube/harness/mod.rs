//! A real API server for tests, and the network around it.
//!
//! ```text
//! API server's namespace                      a node's namespace, one for each test
//!   etcd 127.0.0.1:2379                         10.244.0.0/16 and fd00:244::/64: every address is the node's own
//!   kube-apiserver 10.255.0.1:6443              steelyard controller at 10.244.0.1, origins at 10.244.1.x
//!   node7 10.254.7.1 -------------------------- api0 10.254.7.2
//! ```
//!
//! There are no kubelets and no controllers of Kubernetes: a test writes EndpointSlices itself, and starts what stands for pods. The address
//! range is the node's as a whole (a local route to the loopback), so that any process may listen at any of its addresses; loopback's own the
//! API server refuses in EndpointSlices.
#![allow(dead_code, reason = "the tests and the bench compile all of it, and each uses its part")]

mod api_server;
mod cluster;
pub mod holding;
mod node;
mod relay;

pub use api_server::{ADDRESS, ApiServer, PORT};
pub use cluster::{Cluster, PATIENCE, condition, documents};
pub use node::{GATEWAY, Link, node};
pub use relay::Relay;

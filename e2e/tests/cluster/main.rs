//! Steelyard on real nodes: `cargo xtask test cluster`.
//!
//! The verb starts a cluster of two nodes, and installs the image and the chart of a release on it. The tests use kubectl and helm to do what
//! happens to every cluster, and count requests meanwhile. They run one at a time, because each needs the cluster to itself.
#![forbid(unsafe_code)]

mod bad_input;
mod certificates;
mod deaths;
mod load;
mod node;
mod replicas;
mod rollouts;
mod site;
#[path = "../support/tls.rs"]
mod tls;
mod without_kube_proxy;

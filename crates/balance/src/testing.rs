//! Clusters for the tests of this crate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use model::Algorithm;
use proptest::test_runner::{Config as ProptestConfig, RngSeed};

use crate::{ClusterState, EndpointState, Picker};

/// The address of the n-th endpoint.
pub(crate) fn address(n: usize) -> SocketAddr {
    ([10, 0, (n / 256) as u8, (n % 256) as u8], 8080).into()
}

/// A cluster with these weights: no panic, no slow start, the default ejection, unless `adjust` changes it.
pub(crate) fn cluster_with(
    algorithm: Algorithm,
    weights: &[u32],
    adjust: impl FnOnce(&mut model::Cluster),
) -> ClusterState {
    let endpoint = |(n, weight): (usize, &u32)| (Arc::new(EndpointState::new(address(n))), *weight);
    cluster_of(algorithm, weights.iter().enumerate().map(endpoint).collect(), adjust)
}

/// Like [`cluster_with`], with existing endpoints and their weights.
pub(crate) fn cluster_of(
    algorithm: Algorithm,
    endpoints: Vec<(Arc<EndpointState>, u32)>,
    adjust: impl FnOnce(&mut model::Cluster),
) -> ClusterState {
    let mut cluster = model::Cluster::new("test", Vec::new());
    cluster.algorithm = algorithm;
    cluster.panic_threshold = 0.0;
    cluster.slow_start = Duration::ZERO;
    adjust(&mut cluster);
    ClusterState::new(&cluster, endpoints)
}

/// The only worker's picker.
pub(crate) fn picker(algorithm: &Algorithm, seed: u64) -> Picker {
    Picker::new(algorithm, 0, 1, seed)
}

/// Maglev by client address.
pub(crate) fn maglev() -> Algorithm {
    Algorithm::Maglev(model::HashKey::ClientIp)
}

/// The same with this many endpoints for a client.
pub(crate) fn subset(size: usize) -> Algorithm {
    Algorithm::MaglevSubset { key: model::HashKey::ClientIp, size }
}

/// Every algorithm.
pub(crate) fn algorithms() -> [Algorithm; 7] {
    [
        Algorithm::RoundRobin,
        Algorithm::LeastRequest,
        Algorithm::LeastConnections,
        Algorithm::Random,
        maglev(),
        // More than the clusters of the tests have, so that all of them are picked.
        subset(model::SUBSET_MAX),
        Algorithm::PeakEwma,
    ]
}

/// This many cases, the same ones in every run.
pub(crate) fn seeded(cases: u32) -> ProptestConfig {
    ProptestConfig {
        rng_seed: RngSeed::Fixed(0x57ee_17a2_d000_0001),
        failure_persistence: None,
        cases,
        ..ProptestConfig::default()
    }
}

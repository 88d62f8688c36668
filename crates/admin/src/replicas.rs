//! The figures of all processes that serve the same: each tells its own to anyone, and the page adds them up on request.

use serde::{Deserialize, Serialize};

use crate::history::{Point, Verdict};

/// The version of [`OverviewStatus`].
pub const OVERVIEW_VERSION: u32 = 1;

/// What a process tells about itself, without a word of its configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverviewStatus {
    /// [`OVERVIEW_VERSION`].
    pub version: u32,
    /// The name of the host, or of the pod.
    pub host: String,
    /// The process ID.
    pub pid: u32,
    /// Seconds since the process started.
    pub uptime_seconds: u64,
    /// When the process started, in milliseconds of the monotonic clock of its host. Containers may share a name and a process ID.
    #[serde(default)]
    pub started_ms: u64,
    /// The snapshot in force.
    pub generation: u64,
    /// Whether it is Steelyard or the endpoints.
    pub verdict: Verdict,
    /// The last second.
    pub point: Point,
    /// Since the process started.
    #[serde(default)]
    pub so_far: SoFar,
}

/// The largest rate that a process is believed to have. More is no figure of Steelyard, and its digits would fill the page.
const RATE_MAX: f64 = 1e12;
/// Bytes of what a process says of who is to blame.
const VERDICT_BYTES_MAX: usize = 1 << 10;

impl OverviewStatus {
    /// Whether these can be the figures of a Steelyard. What answers at the address of a replica may be anything.
    pub fn is_plausible(&self) -> bool {
        let of = &self.point;
        let rates = [
            of.requests_per_second,
            of.errors_per_second,
            of.by_endpoints_per_second,
            of.own_per_second,
            of.by_clients_per_second,
            of.retries_per_second,
        ];
        let quantiles = [of.added_us, of.upstream_us].into_iter().flatten().flat_map(|of| [of.p50, of.p99]);
        rates.into_iter().chain(quantiles).all(|figure| (0.0..RATE_MAX).contains(&figure))
            && self.verdict.text.len() <= VERDICT_BYTES_MAX
    }
}

/// What a process has counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoFar {
    /// Requests, or TCP connections.
    pub requests: u64,
    /// Responses with a status of 500 to 599, and failed gRPC calls.
    pub errors: u64,
}

/// One of the processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Replica {
    /// Where it was asked; empty if that is not known.
    pub address: String,
    /// The name of its pod; empty if that is not known.
    pub pod: String,
    /// What it said, or why it said nothing.
    pub overview: Result<OverviewStatus, String>,
}

/// The figures of all that answered: rates and numbers are added up, and of quantiles, which cannot be added up, the worst counts.
pub(crate) fn sum(replicas: &[Replica]) -> Point {
    let worst = |one: Option<crate::Quantiles>, other: Option<crate::Quantiles>| match (one, other) {
        (Some(one), Some(other)) => Some(crate::Quantiles { p50: one.p50.max(other.p50), p99: one.p99.max(other.p99) }),
        (one, other) => one.or(other),
    };
    let points = replicas.iter().filter_map(|replica| Some(replica.overview.as_ref().ok()?.point));
    points.fold(Point::default(), |all, of| Point {
        unix_seconds: all.unix_seconds.max(of.unix_seconds),
        requests_per_second: all.requests_per_second + of.requests_per_second,
        errors_per_second: all.errors_per_second + of.errors_per_second,
        by_endpoints_per_second: all.by_endpoints_per_second + of.by_endpoints_per_second,
        own_per_second: all.own_per_second + of.own_per_second,
        by_clients_per_second: all.by_clients_per_second + of.by_clients_per_second,
        retries_per_second: all.retries_per_second + of.retries_per_second,
        connections_open: all.connections_open.saturating_add(of.connections_open),
        pending: all.pending.saturating_add(of.pending),
        added_us: worst(all.added_us, of.added_us),
        upstream_us: worst(all.upstream_us, of.upstream_us),
    })
}

/// What all that answered have counted.
pub(crate) fn sum_so_far(replicas: &[Replica]) -> SoFar {
    let counted = replicas.iter().filter_map(|replica| Some(replica.overview.as_ref().ok()?.so_far));
    counted.fold(SoFar::default(), |all, of| SoFar {
        requests: all.requests.saturating_add(of.requests),
        errors: all.errors.saturating_add(of.errors),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{History, Quantiles};

    fn replica(requests_per_second: f64, p99: f64) -> Replica {
        Replica {
            address: "a".into(),
            pod: String::new(),
            overview: Ok(OverviewStatus {
                version: OVERVIEW_VERSION,
                host: "h".into(),
                pid: 1,
                uptime_seconds: 2,
                started_ms: 0,
                generation: 3,
                verdict: History::default().verdict(),
                point: Point {
                    requests_per_second,
                    connections_open: 5,
                    added_us: Some(Quantiles { p50: 1.0, p99 }),
                    ..Point::default()
                },
                so_far: SoFar { requests: 1_000, errors: 3 },
            }),
        }
    }

    #[test]
    fn figures_that_cannot_be_are_told_from_figures() {
        let check = |change: &dyn Fn(&mut OverviewStatus), expect| {
            let mut of = replica(10.0, 7.0).overview.unwrap();
            change(&mut of);
            assert_eq!(of.is_plausible(), expect, "{of:?}");
        };
        check(&|_| {}, true);
        for wrong in [f64::NAN, f64::INFINITY, 1e308, -1.0] {
            check(&|of| of.point.own_per_second = wrong, false);
            check(&|of| of.point.upstream_us = Some(Quantiles { p50: 1.0, p99: wrong }), false);
        }
        check(&|of| of.verdict.text = "x".repeat(VERDICT_BYTES_MAX + 1), false);
    }

    #[test]
    fn the_largest_counts_are_added_up() {
        let full = |_| {
            let mut full = replica(1.0, 1.0);
            let of = full.overview.as_mut().unwrap();
            (of.point.connections_open, of.point.pending) = (u64::MAX, u64::MAX);
            full
        };
        let all = sum(&[0, 1].map(full));
        assert_eq!((all.connections_open, all.pending), (u64::MAX, u64::MAX));
    }

    #[test]
    fn rates_are_added_up_and_the_worst_quantiles_count() {
        let gone = Replica { address: "b".into(), pod: String::new(), overview: Err("no answer".into()) };
        let replicas = [replica(10.0, 7.0), gone, replica(2.5, 9.0)];
        let all = sum(&replicas);
        assert_eq!(sum_so_far(&replicas), SoFar { requests: 2_000, errors: 6 });
        assert_eq!((all.requests_per_second, all.connections_open), (12.5, 10));
        assert_eq!((all.added_us, all.upstream_us), (Some(Quantiles { p50: 1.0, p99: 9.0 }), None));
    }
}

//! The state of one cluster that all workers share.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};

use model::Zone;

use crate::endpoint::{DRAINING, EndpointState, UNHEALTHY};
use crate::maglev::Maglev;
use crate::outlier::{Ejection, Outcome, OutlierPolicy, Proof};

/// The endpoints of a cluster and the policy for using them, shared by the workers and the health checks.
///
/// It is built anew for each snapshot, from the [`EndpointState`]s of endpoints that stay and new ones for those that are added. An
/// endpoint state belongs to one cluster: if two shared it, each would learn too late what the other's requests and probes found.
/// Requests still in progress under an older snapshot choose with the state of that snapshot, and see every change: see
/// [`ClusterState::replacing`].
#[derive(Debug)]
pub struct ClusterState {
    endpoints: Vec<Arc<EndpointState>>,
    /// As long as `endpoints`. They belong to one snapshot, so that pickers and the maglev table use the same ones.
    weights: Vec<u32>,
    /// As long as `endpoints`; empty if all have the same priority, as in nearly every cluster.
    priorities: Box<[u8]>,
    /// As long as `endpoints`; empty if no zone is known.
    zones: Box<[Zone]>,
    /// Changes after each change of an endpoint's usability, except by the passing of time. The states of this cluster in all snapshots
    /// share it, as they share their endpoints.
    epoch: Arc<AtomicU64>,
    panic_threshold: f64,
    zone_threshold: f64,
    slow_start_ms: u64,
    outlier: Option<OutlierPolicy>,
    /// Here and not in the picker, because its 128 KiB are the same for all workers.
    maglev: Option<Maglev>,
}

/// Whether an endpoint takes new work, and why not. The first that applies, from the operator's command to the proxy's own verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointStatus {
    /// It takes new work, unless its weight is 0.
    Healthy,
    /// The operator wants it to take no new work.
    Draining,
    /// Active probes fail.
    Unhealthy,
    /// It was removed because real requests failed there.
    Ejected {
        /// The end of the ejection.
        until_ms: u64,
    },
}

/// Which endpoints take new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The usable ones of this priority.
    Priority {
        priority: u8,
        /// Only those in the own zone.
        stays_in_zone: bool,
    },
    /// All that do not drain.
    Panic,
}

/// The number of endpoints in each [`EndpointStatus`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// [`EndpointStatus::Healthy`].
    pub healthy: usize,
    /// [`EndpointStatus::Draining`].
    pub draining: usize,
    /// [`EndpointStatus::Unhealthy`].
    pub unhealthy: usize,
    /// [`EndpointStatus::Ejected`].
    pub ejected: usize,
}

impl ClusterState {
    /// The state of `cluster` with these endpoints and their weights: those in the file, and every address of host names.
    pub fn new(cluster: &model::Cluster, endpoints: Vec<(Arc<EndpointState>, u32)>) -> Self {
        let (endpoints, weights): (Vec<_>, Vec<u32>) = endpoints.into_iter().unzip();
        let maglev = matches!(cluster.algorithm, model::Algorithm::Maglev(_) | model::Algorithm::MaglevSubset { .. })
            .then(|| Maglev::new(&endpoints, &weights));
        Self {
            epoch: Arc::new(AtomicU64::new(1)),
            panic_threshold: cluster.panic_threshold,
            zone_threshold: cluster.zone_threshold,
            slow_start_ms: u64::try_from(cluster.slow_start.as_millis()).unwrap_or(u64::MAX),
            outlier: cluster.outlier.as_ref().map(|outlier| OutlierPolicy::new(outlier, endpoints.len())),
            maglev,
            weights,
            priorities: Box::default(),
            zones: Box::default(),
            endpoints,
        }
    }

    /// Sets the priority of each endpoint, in their order. Those of the lowest number of which enough are usable take new work.
    #[must_use]
    pub fn with_priorities(mut self, priorities: &[u8]) -> Self {
        let differ = priorities.windows(2).any(|pair| pair.first() != pair.last());
        self.priorities = if differ { priorities.into() } else { Box::default() };
        self
    }

    /// Sets the zone of each endpoint, in their order. Of the endpoints whose turn it is, those in the own zone take new work while enough of
    /// them are usable.
    #[must_use]
    pub fn with_zones(mut self, zones: &[Zone]) -> Self {
        let is_known = zones.iter().any(|zone| *zone != Zone::Unknown);
        self.zones = if is_known { zones.into() } else { Box::default() };
        self
    }

    /// The state of the same cluster in a newer snapshot, with the [`EndpointState`]s of the endpoints that stay. Requests under the older
    /// snapshot, which may still wait or be retried, see what changes in either: above all that an endpoint begins to drain.
    pub fn replacing(old: &Self, cluster: &model::Cluster, endpoints: Vec<(Arc<EndpointState>, u32)>) -> Self {
        Self { epoch: old.epoch.clone(), ..Self::new(cluster, endpoints) }
    }

    /// All endpoints. A [`crate::Pick`] and the methods here refer to them by their index.
    pub fn endpoints(&self) -> &[Arc<EndpointState>] {
        &self.endpoints
    }

    /// Records the verdict of active probes. Returns whether it changed something. An index that does not exist changes nothing.
    pub fn set_healthy(&self, index: usize, healthy: bool, now_ms: u64) -> bool {
        self.set_flag(index, UNHEALTHY, !healthy, now_ms)
    }

    /// Records whether the operator drains the endpoint. Returns whether it changed something. An index that does not exist changes
    /// nothing.
    pub fn set_draining(&self, index: usize, draining: bool, now_ms: u64) -> bool {
        self.set_flag(index, DRAINING, draining, now_ms)
    }

    fn set_flag(&self, index: usize, flag: u8, on: bool, now_ms: u64) -> bool {
        let Some(endpoint) = self.endpoints.get(index) else { return false };
        let before = set_bits(&endpoint.flags, flag, on);
        if (before & flag != 0) == on {
            return false;
        }
        if !on {
            // Slow start begins now, or at the end of a current ejection.
            endpoint.usable_since_ms.fetch_max(now_ms.max(1), Relaxed);
        }
        self.publish();
        true
    }

    /// Whether the endpoint takes new work outside of panic.
    pub fn usable(&self, index: usize, now_ms: u64) -> bool {
        self.weight(index) > 0 && self.status(index, now_ms) == Some(EndpointStatus::Healthy)
    }

    /// The status of an endpoint; `None` for an index that does not exist.
    pub fn status(&self, index: usize, now_ms: u64) -> Option<EndpointStatus> {
        let endpoint = self.endpoints.get(index)?;
        let until_ms = endpoint.ejected_until_ms.load(Relaxed);
        Some(if endpoint.has(DRAINING) {
            EndpointStatus::Draining
        } else if endpoint.has(UNHEALTHY) {
            EndpointStatus::Unhealthy
        } else if now_ms < until_ms {
            EndpointStatus::Ejected { until_ms }
        } else {
            EndpointStatus::Healthy
        })
    }

    /// Whether active probes fail, even if the endpoint is draining.
    pub fn probes_fail(&self, index: usize) -> bool {
        self.endpoints.get(index).is_some_and(|endpoint| endpoint.has(UNHEALTHY))
    }

    /// The number of endpoints in each status.
    pub fn counts(&self, now_ms: u64) -> Counts {
        let mut counts = Counts::default();
        for status in (0..self.endpoints.len()).filter_map(|index| self.status(index, now_ms)) {
            *match status {
                EndpointStatus::Healthy => &mut counts.healthy,
                EndpointStatus::Draining => &mut counts.draining,
                EndpointStatus::Unhealthy => &mut counts.unhealthy,
                EndpointStatus::Ejected { .. } => &mut counts.ejected,
            } += 1;
        }
        counts
    }

    /// Whether health and ejection are ignored, because less than the panic threshold of the weight is usable, at every priority. Draining
    /// endpoints do not count at all: their removal by the operator is no reason to doubt the verdicts on the others.
    pub fn panicking(&self, now_ms: u64) -> bool {
        self.turn(now_ms) == Turn::Panic
    }

    /// The priority of the endpoints that take new work; `None` if all have the same, or in panic.
    pub fn priority_in_use(&self, now_ms: u64) -> Option<u8> {
        match self.turn(now_ms) {
            Turn::Priority { priority, .. } if !self.priorities.is_empty() => Some(priority),
            Turn::Priority { .. } | Turn::Panic => None,
        }
    }

    /// The share of new work, by weight, that goes to the own zone; `None` if no zone is known or nothing takes work.
    pub fn zone_share(&self, now_ms: u64) -> Option<f64> {
        if self.zones.is_empty() {
            return None;
        }
        let turn = self.turn(now_ms);
        let takes_work = |index: &usize| match turn {
            Turn::Priority { priority, stays_in_zone } => {
                self.usable(*index, now_ms)
                    && self.priority(*index) == priority
                    && (!stays_in_zone || self.zone(*index) == Zone::Own)
            }
            Turn::Panic => self.status(*index, now_ms) != Some(EndpointStatus::Draining),
        };
        let (mut own, mut all) = (0u64, 0u64);
        for index in (0..self.endpoints.len()).filter(takes_work) {
            let weight = u64::from(self.weight(index));
            all += weight;
            own += if self.zone(index) == Zone::Own { weight } else { 0 };
        }
        (all > 0).then(|| own as f64 / all as f64)
    }

    /// Where the endpoint is.
    pub fn zone(&self, index: usize) -> Zone {
        self.zones.get(index).copied().unwrap_or_default()
    }

    /// 0 in a cluster whose endpoints have the same priority.
    pub fn priority(&self, index: usize) -> u8 {
        self.priorities.get(index).copied().unwrap_or(0)
    }

    /// Which endpoints take new work: those of the first priority that has enough usable ones. If there is none, all do, in panic.
    pub(crate) fn turn(&self, now_ms: u64) -> Turn {
        let first = self.priorities.iter().min().copied().unwrap_or(0);
        let mut panics = false;
        let mut next = Some(first);
        while let Some(priority) = next {
            let (usable, total) = self.weights_where(now_ms, |index| self.priority(index) == priority);
            let has_enough = usable as f64 >= self.panic_threshold * total as f64;
            if usable > 0 && has_enough {
                return Turn::Priority { priority, stays_in_zone: self.zone_has_enough(priority, now_ms) };
            }
            panics |= !has_enough;
            next = self.priorities.iter().copied().filter(|other| *other > priority).min();
        }
        if panics { Turn::Panic } else { Turn::Priority { priority: first, stays_in_zone: false } }
    }

    /// Whether enough of a priority's endpoints in the own zone are usable.
    fn zone_has_enough(&self, priority: u8, now_ms: u64) -> bool {
        if self.zones.is_empty() {
            return false;
        }
        let is_near = |index| self.zone(index) == Zone::Own && self.priority(index) == priority;
        let (usable, total) = self.weights_where(now_ms, is_near);
        usable > 0 && usable as f64 >= self.zone_threshold * total as f64
    }

    /// The usable weight and the whole weight of the endpoints that `counts`, without those that drain.
    fn weights_where(&self, now_ms: u64, counts: impl Fn(usize) -> bool) -> (u64, u64) {
        let (mut usable, mut total) = (0u64, 0u64);
        for (index, weight) in self.weights.iter().enumerate() {
            if !counts(index) {
                continue;
            }
            match self.status(index, now_ms) {
                Some(EndpointStatus::Draining) | None => {}
                Some(EndpointStatus::Healthy) => {
                    usable += u64::from(*weight);
                    total += u64::from(*weight);
                }
                Some(_) => total += u64::from(*weight),
            }
        }
        (usable, total)
    }

    /// Records how a request ended at an endpoint. Returns the ejection if this failure caused one.
    pub fn record(&self, index: usize, now_ms: u64, outcome: Outcome) -> Option<Ejection> {
        let policy = self.outlier.as_ref()?;
        if outcome == Outcome::Success {
            policy.on_success(self.endpoints.get(index)?, now_ms);
            return None;
        }
        let replaceable = || self.replaceable(index, now_ms);
        let ejection = policy.on_failure(&self.endpoints, index, now_ms, outcome, replaceable)?;
        self.publish();
        Some(ejection)
    }

    /// The ejected endpoint that may return if `index` fails and no other endpoint is known to work.
    fn replaceable(&self, index: usize, now_ms: u64) -> Option<usize> {
        let works = |(other, endpoint): (usize, &Arc<EndpointState>)| {
            other != index && !endpoint.is_failing() && self.usable(other, now_ms)
        };
        let has_other = self.endpoints.iter().enumerate().any(works);
        if has_other { None } else { self.last_resort(now_ms, |other| other == index) }
    }

    /// Records that an endpoint works again. Returns whether that ended an ejection. Costs one relaxed load if there is none.
    pub fn readmit(&self, index: usize, now_ms: u64, proof: Proof) -> bool {
        let (Some(policy), Some(endpoint)) = (&self.outlier, self.endpoints.get(index)) else { return false };
        let is_over = endpoint.is_ejected(now_ms) && policy.on_proof(endpoint, now_ms, proof);
        if is_over {
            self.publish();
        }
        is_over
    }

    /// The ejected endpoint, among those that are not `excluded`, whose ejection ends first: for a request that would fail otherwise.
    pub fn last_resort(&self, now_ms: u64, excluded: impl Fn(usize) -> bool) -> Option<usize> {
        let ejected = (0..self.endpoints.len()).filter_map(|index| match self.status(index, now_ms)? {
            EndpointStatus::Ejected { until_ms } if self.weight(index) > 0 => Some((until_ms, index)),
            _ => None,
        });
        ejected.filter(|(_, index)| !excluded(*index)).min().map(|(_, index)| index)
    }

    /// The weight relative to the other endpoints; 0 takes no new work. An index that does not exist has weight 0.
    pub fn weight(&self, index: usize) -> u32 {
        self.weights.get(index).copied().unwrap_or(0)
    }

    /// For how much longer the endpoint gets less than its share because it has just come into service; `None` if it does not.
    pub fn slow_start_left_ms(&self, index: usize, now_ms: u64) -> Option<u64> {
        let since_ms = self.endpoints().get(index)?.usable_since_ms.load(Relaxed);
        let left = self.slow_start_ms.saturating_sub(now_ms.saturating_sub(since_ms));
        (since_ms > 0 && left > 0 && self.usable(index, now_ms)).then_some(left)
    }

    pub(crate) fn slow_start_ms(&self) -> u64 {
        self.slow_start_ms
    }

    pub(crate) fn maglev(&self) -> Option<&Maglev> {
        self.maglev.as_ref()
    }

    /// A number that changes after each change of an endpoint's usability, except by the passing of time.
    ///
    /// Acquire, paired with the release in `publish`: a reader that sees the new epoch also sees the change that caused it. Otherwise it
    /// would keep an old list until the next change.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    fn publish(&self) {
        self.epoch.fetch_add(1, Release);
    }
}

/// Returns the previous bits.
fn set_bits(flags: &AtomicU8, bits: u8, on: bool) -> u8 {
    if on { flags.fetch_or(bits, Relaxed) } else { flags.fetch_and(!bits, Relaxed) }
}

#[cfg(test)]
mod tests {
    use model::Algorithm;

    use super::*;
    use crate::testing::{cluster_of, cluster_with};

    #[test]
    fn the_status_is_the_first_that_applies() {
        let cluster = cluster_with(Algorithm::Random, &[1, 1, 0], |_| {});
        let is = |expect| assert_eq!(cluster.status(0, 0), Some(expect));
        is(EndpointStatus::Healthy);
        (0..5).for_each(|_| _ = cluster.record(0, 0, Outcome::Timeout));
        is(EndpointStatus::Ejected { until_ms: 10_000 });
        cluster.set_healthy(0, false, 0);
        is(EndpointStatus::Unhealthy);
        cluster.set_draining(0, true, 0);
        is(EndpointStatus::Draining);
        assert_eq!([0, 1, 9].map(|index| cluster.probes_fail(index)), [true, false, false]);
        assert_eq!(cluster.counts(0), Counts { healthy: 2, draining: 1, ..Counts::default() });
        assert_eq!([0, 1, 2].map(|index| cluster.usable(index, 0)), [false, true, false]);
        assert_eq!(cluster.status(3, 0), None);
    }

    /// The weights, priorities, zones and usability of endpoints, and the share of the own zone.
    #[test]
    fn the_own_zone_is_used_while_enough_of_it_is_usable() {
        use Zone::{Other, Own, Unknown};
        let check = |thresholds: (f64, f64), endpoints: &[(u32, u8, Zone, bool)], expect: Option<f64>| {
            let weights: Vec<u32> = endpoints.iter().map(|(weight, ..)| *weight).collect();
            let priorities: Vec<u8> = endpoints.iter().map(|(_, priority, ..)| *priority).collect();
            let zones: Vec<Zone> = endpoints.iter().map(|(_, _, zone, _)| *zone).collect();
            let cluster = cluster_with(Algorithm::Random, &weights, |cluster| {
                (cluster.panic_threshold, cluster.zone_threshold) = thresholds;
            });
            let cluster = cluster.with_priorities(&priorities).with_zones(&zones);
            for (index, (.., usable)) in endpoints.iter().enumerate() {
                cluster.set_healthy(index, *usable, 0);
            }
            assert_eq!(cluster.zone_share(0), expect, "{thresholds:?} {endpoints:?}");
        };
        let usual = (0.3, 0.7);
        check(usual, &[(1, 0, Unknown, true), (1, 0, Unknown, true)], None);
        check(usual, &[(1, 0, Own, true), (1, 0, Other, true), (1, 0, Unknown, true)], Some(1.0));
        // Half of the zone is left, or by weight enough of it.
        check(usual, &[(1, 0, Own, true), (1, 0, Own, false), (1, 0, Other, true)], Some(0.5));
        check(usual, &[(7, 0, Own, true), (3, 0, Own, false), (7, 0, Other, true)], Some(1.0));
        check((0.3, 0.0), &[(1, 0, Own, true), (9, 0, Own, false), (9, 0, Other, true)], Some(1.0));
        check((0.3, 1.0), &[(1, 0, Own, true), (1, 0, Other, true)], Some(1.0));
        check((0.3, 0.0), &[(1, 0, Own, false), (1, 0, Other, true)], Some(0.0));
        check(usual, &[(0, 0, Own, true), (1, 0, Other, true)], Some(0.0));
        check(usual, &[(1, 0, Other, true), (1, 0, Other, true)], Some(0.0));
        // The priority comes first: a zone is no reason to use backups. Backups have zones too.
        check(usual, &[(1, 0, Other, true), (1, 1, Own, true)], Some(0.0));
        check(usual, &[(1, 0, Other, false), (1, 1, Own, true), (1, 1, Other, true)], Some(1.0));
        // In panic zones do not matter.
        check(usual, &[(1, 0, Own, false), (3, 0, Other, false)], Some(0.25));
        check((0.0, 0.7), &[(1, 0, Own, false), (1, 0, Other, false)], None);
    }

    /// The weights, priorities and usability of endpoints, and the priority in use; `Err` is panic.
    #[test]
    fn the_first_priority_with_enough_usable_endpoints_is_used() {
        let check = |threshold: f64, endpoints: &[(u32, u8, bool)], expect: Result<Option<u8>, ()>| {
            let weights: Vec<u32> = endpoints.iter().map(|(weight, ..)| *weight).collect();
            let priorities: Vec<u8> = endpoints.iter().map(|(_, priority, _)| *priority).collect();
            let cluster = cluster_with(Algorithm::Random, &weights, |cluster| cluster.panic_threshold = threshold);
            let cluster = cluster.with_priorities(&priorities);
            for (index, (.., usable)) in endpoints.iter().enumerate() {
                cluster.set_healthy(index, *usable, 0);
            }
            let found = if cluster.panicking(0) { Err(()) } else { Ok(cluster.priority_in_use(0)) };
            assert_eq!(found, expect, "{threshold} {endpoints:?}");
        };
        check(0.5, &[(1, 0, true), (1, 0, false)], Ok(None));
        check(0.5, &[(1, 3, true), (1, 3, true)], Ok(None));
        check(0.5, &[(1, 1, true), (1, 0, true)], Ok(Some(0)));
        check(0.5, &[(1, 0, true), (1, 0, false), (1, 7, true)], Ok(Some(0)));
        // Few usable endpoints would have to carry everything; the backups can do that better.
        check(0.5, &[(1, 0, true), (2, 0, false), (1, 7, true)], Ok(Some(7)));
        check(0.5, &[(1, 0, false), (1, 2, false), (1, 5, true)], Ok(Some(5)));
        check(0.5, &[(1, 0, false), (1, 2, false)], Err(()));
        check(0.5, &[(1, 0, true), (2, 0, false), (1, 1, true), (2, 1, false)], Err(()));
        // Without a threshold, one is enough, and nothing is used that is not usable.
        check(0.0, &[(1, 0, true), (9, 0, false), (1, 1, true)], Ok(Some(0)));
        check(0.0, &[(9, 0, false), (1, 1, true)], Ok(Some(1)));
        check(0.0, &[(9, 0, false), (1, 1, false)], Ok(Some(0)));
        // Those of weight 0 take nothing, and prove nothing.
        check(0.5, &[(0, 0, true), (1, 1, true)], Ok(Some(1)));
        check(0.5, &[(0, 0, true), (1, 1, false)], Err(()));
    }

    #[test]
    fn draining_all_of_a_priority_is_no_panic() {
        let cluster = cluster_with(Algorithm::Random, &[1, 1], |cluster| cluster.panic_threshold = 0.5);
        let cluster = cluster.with_priorities(&[0, 1]);
        cluster.set_draining(0, true, 0);
        assert_eq!((cluster.panicking(0), cluster.priority_in_use(0)), (false, Some(1)));
    }

    #[test]
    fn only_a_change_moves_the_epoch() {
        let cluster = cluster_with(Algorithm::Random, &[1, 1], |_| {});
        let mut before = cluster.epoch();
        let mut moved = |step: &dyn Fn() -> bool, expect: bool| {
            assert_eq!(step(), expect);
            assert_eq!(cluster.epoch() > before, expect);
            before = cluster.epoch();
        };
        moved(&|| cluster.set_healthy(0, true, 0), false);
        moved(&|| cluster.set_healthy(0, false, 0), true);
        moved(&|| cluster.set_healthy(0, false, 0), false);
        moved(&|| cluster.set_draining(0, true, 0), true);
        moved(&|| cluster.set_draining(0, true, 0), false);
        moved(&|| cluster.set_healthy(9, false, 0), false);
        moved(&|| cluster.record(1, 0, Outcome::Success).is_some(), false);
        moved(&|| cluster.record(1, 0, Outcome::Reset).is_some(), false);
        moved(&|| (0..4).any(|_| cluster.record(1, 0, Outcome::Reset).is_some()), true);
    }

    #[test]
    fn a_reload_forgets_nothing() {
        let old = cluster_with(Algorithm::Random, &[1, 1], |_| {});
        old.set_healthy(0, false, 0);
        old.endpoints()[1].begin_request();
        (0..5).for_each(|_| _ = old.record(1, 0, Outcome::Timeout));
        let kept = old.endpoints().iter().rev().cloned().zip([5, 7]).collect();
        let new = cluster_of(Algorithm::RoundRobin, kept, |_| {});
        assert_eq!(new.status(1, 0), Some(EndpointStatus::Unhealthy));
        assert_eq!(new.status(0, 0), Some(EndpointStatus::Ejected { until_ms: 10_000 }));
        assert_eq!(new.endpoints()[0].in_flight(), 1);
        assert_eq!([0, 1, 2].map(|index| (old.weight(index), new.weight(index))), [(1, 5), (1, 7), (0, 0)]);
    }
}

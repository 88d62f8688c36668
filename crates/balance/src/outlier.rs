//! Outlier ejection: removes an endpoint for a while because real requests fail there.
//!
//! `consecutive_5xx` failures in a row eject an endpoint. The n-th ejection in a row lasts n times `eject_for`, at most
//! [`EJECTION_MULTIPLIER_MAX`] times. After an ejection, each success that comes a whole `eject_for` after the last change reduces n by
//! one. An ejection ends early when the endpoint has done what it was ejected for failing to do: see [`Proof`]. It also ends early when an
//! endpoint that takes no connections must take its place under the cap, and no other endpoint is known to work: see
//! [`OutlierPolicy::on_failure`].

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::endpoint::{EndpointState, PROOF_MASK, PROOF_SHIFT};

/// An ejection lasts at most this many times `eject_for`.
pub const EJECTION_MULTIPLIER_MAX: u32 = 10;
/// An ejection lasts at least this long before another endpoint may take its place. If all endpoints are down, they take turns once in this
/// time, and each change costs `consecutive_5xx` requests that would have failed anyway.
const REPLACED_AFTER_MS_MIN: u64 = 1_000;

/// How a request, or the attempt to send one, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// A response with a status below 500.
    Success,
    /// A response with a status of 500 to 599.
    Failure5xx,
    /// No connection.
    ConnectFailure,
    /// The endpoint closed or reset the connection before the end of its response.
    Reset,
    /// The endpoint was silent for too long.
    Timeout,
}

/// Evidence that an ejected endpoint works. Each kind also proves what the kinds before it prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proof {
    /// It accepted a connection: ends an ejection for failed connections.
    Connected = 1,
    /// It passed a health check: also ends an ejection for resets and timeouts, but not for 5xx responses, because a passed check says
    /// little about other requests.
    Probed = 2,
    /// It served a request that was sent while it was ejected: ends any ejection.
    Served = 3,
}

impl Outcome {
    /// The proof that ends an ejection for this outcome.
    fn disproved_by(self) -> Proof {
        match self {
            Self::ConnectFailure => Proof::Connected,
            Self::Reset | Self::Timeout => Proof::Probed,
            Self::Success | Self::Failure5xx => Proof::Served,
        }
    }
}

/// An ejection, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The endpoint, as an index into its cluster.
    pub index: usize,
    /// The failure that caused it.
    pub outcome: Outcome,
    /// Failures in a row.
    pub failures: u32,
    /// The number of this ejection in a row, from 1, at most [`EJECTION_MULTIPLIER_MAX`].
    pub nth: u32,
    /// The end of the ejection.
    pub until_ms: u64,
    /// The endpoint whose ejection ended to make room for this one under the cap.
    pub in_place_of: Option<usize>,
}

/// A cluster's policy, in the units of this crate.
#[derive(Debug)]
pub(crate) struct OutlierPolicy {
    consecutive: u32,
    eject_for_ms: u64,
    ejected_max: usize,
    /// Held while ejected endpoints are counted and one is added, so that workers that detect failures at the same time do not exceed the
    /// cap together.
    ejecting: Mutex<()>,
}

impl OutlierPolicy {
    pub(crate) fn new(outlier: &model::Outlier, endpoints: usize) -> Self {
        let share = (endpoints as f64 * outlier.max_ejected) as usize;
        let always = usize::from(endpoints >= 2);
        Self {
            // Bounded, so that the count of failures never overflows into the count of ejections above it.
            consecutive: outlier.consecutive_5xx.clamp(1, u32::MAX / 2),
            eject_for_ms: u64::try_from(outlier.eject_for.as_millis()).unwrap_or(u64::MAX),
            ejected_max: share.max(always),
            ejecting: Mutex::new(()),
        }
    }

    /// Records a success: resets the failures, and in time the ejections. Costs one relaxed load if there is nothing to reset.
    pub(crate) fn on_success(&self, endpoint: &EndpointState, now_ms: u64) {
        let trouble = endpoint.trouble.load(Relaxed);
        if trouble == 0 {
            return;
        }
        let (failures, ejections) = unpack(trouble);
        let forgiven = ejections > 0 && now_ms >= endpoint.forgive_at_ms.load(Relaxed);
        if failures == 0 && !forgiven {
            return;
        }
        let next = pack(0, if forgiven { ejections - 1 } else { ejections });
        // Lost to another worker, which has written newer data. The next success comes soon.
        if endpoint.trouble.compare_exchange(trouble, next, Relaxed, Relaxed).is_ok() && forgiven {
            endpoint.forgive_at_ms.store(now_ms.saturating_add(self.eject_for_ms), Relaxed);
        }
    }

    /// Records a failure, and ejects the endpoint if necessary. The caller publishes it.
    ///
    /// `replaceable` names an ejected endpoint that may return if the cap allows no further ejection. It is only called if this endpoint
    /// takes no connections: an endpoint that answers, however badly, is better than one of which nothing is known.
    pub(crate) fn on_failure(
        &self,
        endpoints: &[std::sync::Arc<EndpointState>],
        index: usize,
        now_ms: u64,
        outcome: Outcome,
        replaceable: impl FnOnce() -> Option<usize>,
    ) -> Option<Ejection> {
        let endpoint = endpoints.get(index)?;
        // Requests that were in progress during the ejection, or that panic sent there, say nothing new.
        if endpoint.is_ejected(now_ms) {
            return None;
        }
        let failures = (endpoint.trouble.fetch_add(1, Relaxed) as u32).saturating_add(1);
        if failures < self.consecutive {
            return None;
        }
        // A poisoned lock guards no data: a thread that panicked left nothing half done.
        let _guard = self.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        if endpoint.is_ejected(now_ms) {
            return None;
        }
        let (_, ejections) = unpack(endpoint.trouble.load(Relaxed));
        let ejected = endpoints.iter().filter(|other| other.is_ejected(now_ms)).count();
        let mut in_place_of = None;
        if ejected >= self.ejected_max {
            let replaced = (outcome == Outcome::ConnectFailure).then(replaceable).flatten();
            let state = |index: &usize| endpoints.get(*index);
            in_place_of =
                replaced.filter(|index| state(index).is_some_and(|other| self.may_be_replaced(other, now_ms)));
            let Some(replaced) = in_place_of.as_ref().and_then(state) else {
                // It is asked again after the same number of failures, and not at each one, which would take the lock every time.
                endpoint.trouble.store(pack(0, ejections), Relaxed);
                return None;
            };
            self.end_early(replaced, now_ms);
        }
        // Endpoints that take turns have not had time to prove themselves, so their next ejection is no longer than their last.
        let nth = if in_place_of.is_some() { ejections.max(1) } else { ejections.saturating_add(1) };
        let nth = nth.min(EJECTION_MULTIPLIER_MAX);
        let until_ms = now_ms.saturating_add(self.eject_for_ms.saturating_mul(u64::from(nth)));
        endpoint.trouble.store(pack(0, nth), Relaxed);
        endpoint.forgive_at_ms.store(until_ms.saturating_add(self.eject_for_ms), Relaxed);
        endpoint.usable_since_ms.fetch_max(until_ms, Relaxed);
        endpoint.flags.fetch_and(!PROOF_MASK, Relaxed);
        endpoint.flags.fetch_or((outcome.disproved_by() as u8) << PROOF_SHIFT, Relaxed);
        endpoint.ejected_until_ms.store(until_ms, Relaxed);
        Some(Ejection { index, outcome, failures, nth, until_ms, in_place_of })
    }

    fn may_be_replaced(&self, ejected: &EndpointState, now_ms: u64) -> bool {
        let (_, ejections) = unpack(ejected.trouble.load(Relaxed));
        let whole_ms = self.eject_for_ms.saturating_mul(u64::from(ejections));
        let begun_ms = ejected.ejected_until_ms.load(Relaxed).saturating_sub(whole_ms);
        now_ms.saturating_sub(begun_ms) >= REPLACED_AFTER_MS_MIN
    }

    /// Ends an ejection early, if `proof` ends it. The caller publishes it.
    pub(crate) fn on_proof(&self, endpoint: &EndpointState, now_ms: u64, proof: Proof) -> bool {
        let _guard = self.ejecting.lock().unwrap_or_else(PoisonError::into_inner);
        let needed = (endpoint.flags.load(Relaxed) & PROOF_MASK) >> PROOF_SHIFT;
        if !endpoint.is_ejected(now_ms) || (proof as u8) < needed {
            return false;
        }
        self.end_early(endpoint, now_ms);
        true
    }

    fn end_early(&self, endpoint: &EndpointState, now_ms: u64) {
        // The count of ejections in a row stays: an endpoint that fails again at once stays out longer.
        endpoint.forgive_at_ms.store(now_ms.saturating_add(self.eject_for_ms), Relaxed);
        endpoint.usable_since_ms.store(now_ms.max(1), Relaxed);
        endpoint.ejected_until_ms.store(now_ms, Relaxed);
    }
}

fn pack(failures: u32, ejections: u32) -> u64 {
    (u64::from(ejections) << 32) | u64::from(failures)
}

/// Failures in a row, ejections in a row.
fn unpack(trouble: u64) -> (u32, u32) {
    (trouble as u32, (trouble >> 32) as u32)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use model::Algorithm;

    use super::*;
    use crate::ClusterState;
    use crate::testing::cluster_with;

    /// Five failures eject, for 10 s, at most the share `max_ejected`.
    fn cluster(endpoints: usize, max_ejected: f64) -> ClusterState {
        cluster_with(Algorithm::Random, &vec![1; endpoints], |cluster| {
            cluster.outlier.as_mut().unwrap().max_ejected = max_ejected;
        })
    }

    fn eject(cluster: &ClusterState, index: usize, now_ms: u64) -> Option<Ejection> {
        (0..5).find_map(|_| cluster.record(index, now_ms, Outcome::Failure5xx))
    }

    /// `+` is a success, anything else a failure. Expected after each: `.` nothing, `E` ejected.
    fn check(outcomes: &str, expect: &str) {
        let cluster = cluster(2, 0.5);
        let outcome = |letter| match letter {
            '+' => Outcome::Success,
            '5' => Outcome::Failure5xx,
            'c' => Outcome::ConnectFailure,
            'r' => Outcome::Reset,
            _ => Outcome::Timeout,
        };
        let got: String = outcomes
            .chars()
            .map(|letter| if cluster.record(0, 0, outcome(letter)).is_some() { 'E' } else { '.' })
            .collect();
        assert_eq!(got, expect, "{outcomes}");
    }

    #[test]
    fn failures_in_a_row_eject() {
        check("5555", "....");
        check("55555", "....E");
        check("5crt5", "....E");
        check("5555+5555", ".........");
        check("5555+55555", ".........E");
        // Once ejected, requests that were in progress change nothing.
        check("5555555555555", "....E........");
    }

    #[test]
    fn the_ejection_says_what_happened() {
        let expect = Ejection {
            index: 1,
            outcome: Outcome::Failure5xx,
            failures: 5,
            nth: 1,
            until_ms: 10_007,
            in_place_of: None,
        };
        assert_eq!(eject(&cluster(3, 0.5), 1, 7), Some(expect));
    }

    #[test]
    fn one_that_does_it_again_stays_out_longer() {
        let cluster = cluster(2, 0.5);
        let mut now_ms = 0;
        for nth in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10] {
            let ejection = eject(&cluster, 0, now_ms).unwrap();
            assert_eq!((ejection.nth, ejection.until_ms), (nth, now_ms + 10_000 * u64::from(nth)));
            assert!(!cluster.usable(0, ejection.until_ms - 1) && cluster.usable(0, ejection.until_ms));
            now_ms = ejection.until_ms;
        }
    }

    #[test]
    fn what_disproves_the_ejection_ends_it() {
        use Outcome::{ConnectFailure, Failure5xx, Reset, Timeout};
        let check = |outcome, proof, expect| {
            let cluster = cluster(2, 0.5);
            (0..5).for_each(|_| _ = cluster.record(0, 0, outcome));
            let epoch = cluster.epoch();
            assert_eq!(cluster.readmit(0, 7, proof), expect, "{outcome:?} {proof:?}");
            assert_eq!(cluster.usable(0, 7), expect, "{outcome:?} {proof:?}");
            // Pickers are notified of it, and of nothing else.
            assert_eq!(cluster.epoch() > epoch, expect, "{outcome:?} {proof:?}");
            assert!(!cluster.readmit(0, 7, proof), "only once");
        };
        check(ConnectFailure, Proof::Connected, true);
        check(ConnectFailure, Proof::Served, true);
        check(Reset, Proof::Connected, false);
        check(Reset, Proof::Probed, true);
        check(Timeout, Proof::Connected, false);
        check(Timeout, Proof::Probed, true);
        check(Failure5xx, Proof::Probed, false);
        check(Failure5xx, Proof::Served, true);
    }

    #[test]
    fn one_that_fails_again_after_an_early_end_stays_out_longer() {
        let cluster = cluster(2, 0.5);
        assert!(!cluster.readmit(0, 0, Proof::Served) && !cluster.readmit(9, 0, Proof::Served));
        (0..5).for_each(|_| _ = cluster.record(0, 0, Outcome::Reset));
        assert!(cluster.readmit(0, 100, Proof::Served));
        assert_eq!(eject(&cluster, 0, 101).map(|ejection| (ejection.nth, ejection.until_ms)), Some((2, 20_101)));
        // The reason of the last ejection counts, not of the one before.
        assert!(!cluster.readmit(0, 102, Proof::Probed));
    }

    #[test]
    fn the_last_resort_is_the_one_that_would_be_back_first() {
        let cluster = cluster(4, 1.0);
        assert_eq!(cluster.last_resort(0, |_| false), None);
        for (index, now_ms) in [(1, 50), (2, 10), (3, 90)] {
            assert!(eject(&cluster, index, now_ms).is_some());
        }
        assert_eq!(cluster.last_resort(100, |_| false), Some(2));
        assert_eq!(cluster.last_resort(100, |index| index == 2), Some(1));
        // Not against the operator's command, nor while probes fail.
        cluster.set_draining(2, true, 100);
        cluster.set_healthy(1, false, 100);
        assert_eq!(cluster.last_resort(100, |_| false), Some(3));
        assert_eq!(cluster.last_resort(20_000, |_| false), None, "all are back");
    }

    #[test]
    fn successes_are_forgiven_one_by_one() {
        let cluster = cluster(2, 0.5);
        let third = [0, 10_000, 30_000].map(|now_ms| eject(&cluster, 0, now_ms).unwrap())[2];
        assert_eq!((third.nth, third.until_ms), (3, 60_000));
        // Too soon after its return: still three.
        cluster.record(0, 69_999, Outcome::Success);
        // However many come at once, only one is forgiven.
        (0..9).for_each(|_| _ = cluster.record(0, 70_000, Outcome::Success));
        assert_eq!(eject(&cluster, 0, 70_001).unwrap().nth, 3);
        // Long afterwards, with successes all along, it is like new.
        (0..20).for_each(|n| _ = cluster.record(0, 200_000 + n * 10_000, Outcome::Success));
        assert_eq!(eject(&cluster, 0, 500_000).unwrap().nth, 1);
    }

    #[test]
    fn the_cap_holds_and_one_may_always_be_ejected() {
        for (endpoints, max_ejected, expect) in
            [(1, 0.5, 0), (1, 1.0, 1), (2, 0.0, 1), (2, 0.5, 1), (3, 0.5, 1), (4, 0.5, 2), (10, 0.3, 3), (4, 1.0, 4)]
        {
            let cluster = cluster(endpoints, max_ejected);
            let ejected = (0..endpoints).filter(|index| eject(&cluster, *index, 0).is_some()).count();
            assert_eq!(ejected, expect, "{endpoints} endpoints, {max_ejected}");
            assert_eq!(cluster.counts(0).ejected, expect);
        }
    }

    #[test]
    fn room_under_the_cap_is_used_by_the_next_failures() {
        let cluster = cluster(2, 0.5);
        assert!(eject(&cluster, 0, 0).is_some());
        assert!(eject(&cluster, 1, 9_999).is_none());
        // Not at the first failure when there is room: at the fifth.
        let until_ejected = (1..10).find(|_| cluster.record(1, 10_000, Outcome::Timeout).is_some());
        assert_eq!(until_ejected, Some(5));
    }

    #[test]
    fn the_last_one_that_takes_no_connections_changes_places_with_an_ejected_one() {
        let fail = |cluster: &ClusterState, index, now_ms, outcome| {
            (0..5).find_map(|_| cluster.record(index, now_ms, outcome)).map(|ejection| ejection.in_place_of)
        };
        let check = |endpoints: usize,
                     outcome,
                     now_ms,
                     prepare: &dyn Fn(&ClusterState),
                     expect: Option<Option<usize>>| {
            let cluster = cluster(endpoints, 0.5);
            assert!(fail(&cluster, 0, 0, Outcome::Reset).is_some());
            prepare(&cluster);
            assert_eq!(fail(&cluster, 1, now_ms, outcome), expect, "{endpoints} endpoints, {outcome:?}, {now_ms}");
            let is_swapped = expect == Some(Some(0));
            assert_eq!([0, 1].map(|index| cluster.endpoints()[index].is_ejected(now_ms)), [!is_swapped, is_swapped]);
        };
        let nothing = |_: &ClusterState| {};
        let refused = Outcome::ConnectFailure;
        check(2, refused, 1_000, &nothing, Some(Some(0)));
        // An endpoint that answers is better than one of which nothing is known.
        check(2, Outcome::Failure5xx, 1_000, &nothing, None);
        check(2, Outcome::Timeout, 1_000, &nothing, None);
        // The recent result still holds.
        check(2, refused, 999, &nothing, None);
        // There is another one: it serves all requests except those that come here.
        check(3, refused, 1_000, &nothing, None);
        // The other one fails too, or takes no work.
        check(3, refused, 1_000, &|cluster| _ = cluster.record(2, 0, Outcome::ConnectFailure), Some(Some(0)));
        check(3, refused, 1_000, &|cluster| _ = cluster.set_draining(2, true, 0), Some(Some(0)));
        // The ejected one is also down for other reasons.
        check(2, refused, 1_000, &|cluster| _ = cluster.set_healthy(0, false, 0), None);
    }

    #[test]
    fn ejections_do_not_grow_by_changing_places() {
        let cluster = cluster(2, 0.5);
        let fail = |index, now_ms| (0..5).find_map(|_| cluster.record(index, now_ms, Outcome::ConnectFailure));
        assert!(fail(0, 0).is_some());
        for round in 1..20 {
            let ejection = fail(round % 2, round as u64 * 1_000).expect("they change places");
            assert_eq!((ejection.in_place_of, ejection.nth), (Some((round + 1) % 2), 1), "{round}");
            assert_eq!(cluster.counts(round as u64 * 1_000).ejected, 1);
        }
    }

    /// Timing decides how closely the workers meet. There are enough rounds that a cap without a lock is exceeded in practice.
    #[test]
    fn workers_that_find_out_together_keep_the_cap() {
        const WORKERS: usize = 4;
        for _ in 0..200 {
            let cluster = cluster_with(Algorithm::Random, &[1; 64], |cluster| {
                let outlier = cluster.outlier.as_mut().unwrap();
                (outlier.consecutive_5xx, outlier.max_ejected) = (1, 0.25);
            });
            let start = Barrier::new(WORKERS);
            std::thread::scope(|scope| {
                for worker in 0..WORKERS {
                    let (cluster, start) = (&cluster, &start);
                    scope.spawn(move || {
                        start.wait();
                        (worker..64).step_by(WORKERS).for_each(|index| _ = cluster.record(index, 0, Outcome::Timeout));
                    });
                }
            });
            assert_eq!(cluster.counts(0).ejected, 16);
        }
    }

    #[test]
    fn without_a_policy_nothing_is_ejected() {
        let cluster = cluster_with(Algorithm::Random, &[1, 1], |cluster| cluster.outlier = None);
        assert_eq!(eject(&cluster, 0, 0), None);
    }
}

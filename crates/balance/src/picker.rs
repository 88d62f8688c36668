//! Chooses an endpoint: one [`Picker`] for each worker and cluster.

use crate::alias::AliasTable;
use crate::cluster::ClusterState;
use crate::endpoint::EndpointState;
use crate::hash::mix;
use crate::rng::Rng;
use crate::round_robin::RoundRobin;
use crate::view::{Member, View, WHOLE};

/// Draws that may hit an excluded endpoint before the list is walked instead.
const DRAWS_MAX: u32 = 4;

/// A chosen endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The index into the cluster's endpoints.
    pub index: usize,
    /// Health and ejection were ignored, because too little of the cluster is usable.
    pub panicked: bool,
}

/// One worker's picker for one cluster.
///
/// While the cluster does not change, a pick takes constant time, or logarithmic time for round robin. A pick that excludes endpoints may
/// walk them.
#[derive(Debug)]
pub struct Picker {
    strategy: Strategy,
    view: View,
    rng: Rng,
}

#[derive(Debug)]
enum Strategy {
    RoundRobin(RoundRobin),
    Random(AliasTable),
    /// The better of two endpoints that are drawn by weight.
    TwoChoices(AliasTable, Load),
    Maglev,
    /// With this many endpoints for a key.
    MaglevSubset(usize),
}

/// The measure that is compared between two endpoints.
#[derive(Clone, Copy, Debug)]
enum Load {
    Requests,
    Connections,
    PeakEwma,
}

impl Picker {
    /// The picker of worker number `worker` of `workers`.
    ///
    /// All workers of a process get the same `seed`, which should differ between processes. The workers begin round robin at points spread
    /// evenly from the seed's position, so that they do not begin at the same endpoint, and a reload does not always begin at the first.
    pub fn new(algorithm: &model::Algorithm, worker: usize, workers: usize, seed: u64) -> Self {
        let strategy = match algorithm {
            model::Algorithm::RoundRobin => {
                let spread = (((worker as u64) << 32) / workers.max(1) as u64) as u32;
                Strategy::RoundRobin(RoundRobin::new(spread.wrapping_add(mix(seed) as u32)))
            }
            model::Algorithm::Random => Strategy::Random(AliasTable::default()),
            model::Algorithm::LeastRequest => Strategy::TwoChoices(AliasTable::default(), Load::Requests),
            model::Algorithm::LeastConnections => Strategy::TwoChoices(AliasTable::default(), Load::Connections),
            model::Algorithm::PeakEwma => Strategy::TwoChoices(AliasTable::default(), Load::PeakEwma),
            model::Algorithm::Maglev(_) => Strategy::Maglev,
            model::Algorithm::MaglevSubset { size, .. } => Strategy::MaglevSubset(*size),
        };
        // A view of epoch 0 is never valid, because a cluster's first epoch is 1.
        Self { strategy, view: View::default(), rng: Rng::new(seed ^ mix(worker as u64 + 1)) }
    }

    /// Whether `key` matters. If not, the caller need not hash anything and passes 0.
    pub fn needs_key(&self) -> bool {
        matches!(self.strategy, Strategy::Maglev | Strategy::MaglevSubset(_))
    }

    /// Picks an endpoint for new work; `None` if none takes it, or only endpoints in `tried` do. If those are all of the zone and priority
    /// in use, an endpoint of another one is picked.
    ///
    /// `cluster` is the one that the picker was made for, `key` is a [`crate::hash_key`], and `tried` has the endpoints that have failed
    /// this request.
    pub fn pick(&mut self, cluster: &ClusterState, now_ms: u64, key: u64, tried: &[usize]) -> Option<Pick> {
        let picked = self.pick_unless(cluster, now_ms, key, |index| tried.contains(&index));
        picked.or_else(|| Some(Pick { index: self.spare(tried)?, panicked: false }))
    }

    /// One of the spares of the first rank that has some left, each as likely as the others: there may be many of another zone.
    fn spare(&mut self, tried: &[usize]) -> Option<usize> {
        let untried = self.view.spares.iter().filter(|(_, index)| !tried.contains(index));
        let (first, _) = untried.clone().next()?;
        let same = untried.take_while(|(rank, _)| rank == first);
        let place = self.rng.below(same.clone().count() as u64);
        same.map(|(_, index)| *index).nth(place as usize)
    }

    /// Like [`Self::pick`], with any reason to exclude an endpoint: tried, or no room. Endpoints of other zones and priorities are not
    /// picked: a request waits for room rather than overflow to them. If it excludes many, the cost grows with the number of endpoints.
    pub fn pick_unless(
        &mut self,
        cluster: &ClusterState,
        now_ms: u64,
        key: u64,
        excluded: impl Fn(usize) -> bool,
    ) -> Option<Pick> {
        if !self.view.holds(cluster, now_ms) {
            self.refresh(cluster, now_ms);
        }
        let Self { strategy, view, rng } = self;
        let index = match strategy {
            Strategy::RoundRobin(turns) => turns.pick(view, excluded)?,
            Strategy::Random(table) => draw(table, &view.members, rng, excluded)?.index,
            Strategy::TwoChoices(table, load) => two_choices(table, &view.members, rng, excluded, |first, second| {
                let endpoints = cluster.endpoints();
                match (endpoints.get(first.index), endpoints.get(second.index)) {
                    (Some(a), Some(b)) => load.is_less((b, second), (a, first), now_ms),
                    _ => false,
                }
            })?,
            Strategy::MaglevSubset(size) => {
                let table = cluster.maglev()?;
                let subset = table.subset(key, *size, |index| view.share_of(index) > 0);
                // What cannot take the request leaves the others of the key, and then what would follow them.
                let among = subset.iter().filter(|index| !excluded(*index)).map(|index| (index, view.share_of(index)));
                by_share(among, rng)
                    .or_else(|| table.lookup(key, |index| view.share_of(index) > 0 && !excluded(index)))?
            }
            Strategy::Maglev => {
                let open = |index: usize| view.share_of(index) > 0 && !excluded(index);
                // Slow start depends on the key, so that each key returns once and then stays.
                let granted =
                    |index: usize| mix(key ^ index as u64) % u64::from(WHOLE) < u64::from(view.share_of(index));
                let table = cluster.maglev()?;
                table.lookup(key, |index| open(index) && granted(index)).or_else(|| table.lookup(key, open))?
            }
        };
        Some(Pick { index, panicked: view.panicked })
    }

    fn refresh(&mut self, cluster: &ClusterState, now_ms: u64) {
        self.view.refresh(cluster, now_ms);
        match &mut self.strategy {
            Strategy::RoundRobin(turns) => turns.rebuild(&self.view, cluster),
            Strategy::Random(table) | Strategy::TwoChoices(table, _) => {
                table.rebuild(self.view.members.iter().map(|member| u64::from(member.effective_weight())));
            }
            Strategy::Maglev | Strategy::MaglevSubset(_) => {}
        }
    }
}

/// Draws a member by weight that is not `excluded`.
fn draw<'a>(
    table: &AliasTable,
    members: &'a [Member],
    rng: &mut Rng,
    excluded: impl Fn(usize) -> bool,
) -> Option<&'a Member> {
    for _ in 0..DRAWS_MAX {
        let member = members.get(table.draw(rng)?)?;
        if !excluded(member.index) {
            return Some(member);
        }
    }
    let (head, tail) = members.split_at_checked(rng.below(members.len() as u64) as usize)?;
    tail.iter().chain(head).find(|member| !excluded(member.index))
}

/// Draws an endpoint by the share that slow start grants it.
fn by_share<S: Into<u64>>(among: impl Iterator<Item = (usize, S)> + Clone, rng: &mut Rng) -> Option<usize> {
    let total: u64 = among.clone().map(|(_, share)| share.into()).sum();
    if total == 0 {
        return None;
    }
    let mut left = rng.below(total);
    for (index, share) in among {
        match left.checked_sub(share.into()) {
            Some(rest) => left = rest,
            None => return Some(index),
        }
    }
    None
}

/// The better of two different members (Mitzenmacher: "The power of two choices in randomized load balancing", 2001): the first one drawn
/// unless `second_is_better`.
fn two_choices(
    table: &AliasTable,
    members: &[Member],
    rng: &mut Rng,
    excluded: impl Fn(usize) -> bool,
    second_is_better: impl Fn(&Member, &Member) -> bool,
) -> Option<usize> {
    let first = draw(table, members, rng, &excluded)?;
    let second = draw(table, members, rng, |index| index == first.index || excluded(index));
    Some(second.filter(|second| second_is_better(first, second)).unwrap_or(first).index)
}

impl Load {
    /// Whether the first of the two would carry less for its weight with one more request.
    fn is_less(self, a: (&EndpointState, &Member), b: (&EndpointState, &Member), now_ms: u64) -> bool {
        match self {
            Load::Requests => less_count(a.0.in_flight(), a.1, b.0.in_flight(), b.1),
            Load::Connections => less_count(a.0.connections(), a.1, b.0.connections(), b.1),
            Load::PeakEwma => {
                let (cost_a, cost_b) = (expected_us(a.0, now_ms), expected_us(b.0, now_ms));
                // As in `less_count`: if both are idle, the draw has already considered the weights.
                if a.0.in_flight() == 0 && b.0.in_flight() == 0 {
                    return cost_a < cost_b;
                }
                cost_a * (b.1.effective_weight() as f32) < cost_b * (a.1.effective_weight() as f32)
            }
        }
    }
}

/// `(a + 1) / weight_a < (b + 1) / weight_b`, without the division. Two idle members are equal: otherwise the one with more weight would
/// get all of a load of one request at a time, although the draw has already given each its share.
fn less_count(a: u32, member_a: &Member, b: u32, member_b: &Member) -> bool {
    if a == 0 && b == 0 {
        return false;
    }
    let scaled_a = (u64::from(a) + 1) * u64::from(member_b.effective_weight());
    let scaled_b = (u64::from(b) + 1) * u64::from(member_a.effective_weight());
    scaled_a < scaled_b
}

/// How long one more request would take if all in flight were served in turn. An endpoint without data costs nothing while idle, so that it
/// is tried, and more than any other while its first request is in progress, so that it gets only that one.
fn expected_us(endpoint: &EndpointState, now_ms: u64) -> f32 {
    let in_flight = endpoint.in_flight() as f32;
    match endpoint.latency_us(now_ms) {
        Some(latency_us) => latency_us * (in_flight + 1.0),
        None if in_flight == 0.0 => 0.0,
        None => UNKNOWN_US + in_flight,
    }
}

/// Above any latency, and small enough in `f32` to be multiplied with weights.
const UNKNOWN_US: f32 = 1e15;

impl Member {
    /// The weight including slow start, times [`WHOLE`].
    fn effective_weight(&self) -> u32 {
        // 65535 * 1000 fits; a weight beyond that range saturates.
        self.weight.saturating_mul(u32::from(self.share))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::Algorithm;
    use proptest::prelude::*;

    use crate::testing::{algorithms, cluster_with, maglev, picker, seeded, subset};
    use crate::{ClusterState, Outcome, Pick, Picker, Rng};

    /// Picks with a changing key, and keeps the load of each pick for a while, so that everything that can be picked is picked.
    fn picked(picker: &mut Picker, cluster: &ClusterState, now_ms: u64, tried: &[usize], picks: usize) -> Vec<u32> {
        let mut counts = vec![0; cluster.endpoints().len()];
        let mut rng = Rng::new(picks as u64);
        for _ in 0..picks {
            if let Some(pick) = picker.pick(cluster, now_ms, rng.next_u64(), tried) {
                counts[pick.index] += 1;
            }
        }
        counts
    }

    /// Which endpoints are ever picked, and whether a pick reports panic, for every algorithm.
    fn check(prepare: impl Fn(&ClusterState), threshold: f64, weights: &[u32], expect: &[usize], panicked: bool) {
        for algorithm in algorithms() {
            let cluster = cluster_with(algorithm.clone(), weights, |cluster| cluster.panic_threshold = threshold);
            prepare(&cluster);
            let mut picker = picker(&algorithm, 5);
            let counts = picked(&mut picker, &cluster, 10, &[], 400);
            let got: Vec<usize> = (0..weights.len()).filter(|index| counts[*index] > 0).collect();
            assert_eq!(got, expect, "{algorithm:?}");
            let pick = picker.pick(&cluster, 10, 0, &[]);
            assert_eq!(pick.map(|pick| pick.panicked), (!expect.is_empty()).then_some(panicked), "{algorithm:?}");
        }
    }

    #[test]
    fn requests_under_an_older_snapshot_hear_what_is_told_to_a_newer_one() {
        for algorithm in algorithms() {
            let old = cluster_with(algorithm.clone(), &[1, 1], |_| {});
            let mut picker = picker(&algorithm, 5);
            assert!(picked(&mut picker, &old, 10, &[], 400).iter().all(|count| *count > 0), "{algorithm:?}");
            let endpoints = old.endpoints().iter().cloned().zip([1, 1]).collect();
            let new = ClusterState::replacing(&old, &model::Cluster::new("test", Vec::new()), endpoints);
            assert!(new.set_draining(0, true, 10));
            assert_eq!(picked(&mut picker, &old, 10, &[], 400)[0], 0, "{algorithm:?}");
        }
    }

    fn unhealthy(indexes: &'static [usize]) -> impl Fn(&ClusterState) {
        move |cluster| indexes.iter().for_each(|index| assert!(cluster.set_healthy(*index, false, 5)))
    }

    fn draining(indexes: &'static [usize]) -> impl Fn(&ClusterState) {
        move |cluster| indexes.iter().for_each(|index| assert!(cluster.set_draining(*index, true, 5)))
    }

    #[test]
    fn who_is_eligible() {
        check(|_| {}, 0.3, &[1, 1, 1], &[0, 1, 2], false);
        check(|_| {}, 0.3, &[1, 0, 1], &[0, 2], false);
        check(|_| {}, 0.3, &[0, 0], &[], false);
        check(|_| {}, 0.3, &[], &[], false);
        check(unhealthy(&[0]), 0.3, &[1, 1, 1], &[1, 2], false);
        check(draining(&[0]), 0.3, &[1, 1, 1], &[1, 2], false);
        // A third is not less than the threshold.
        check(unhealthy(&[0, 1]), 0.3, &[1, 1, 1], &[2], false);
        // By weight it is less: 2 of 8.
        check(unhealthy(&[0, 1]), 0.3, &[3, 3, 2], &[0, 1, 2], true);
        check(unhealthy(&[0, 1, 2]), 0.3, &[1, 1, 1], &[0, 1, 2], true);
        // Even then, an endpoint of weight 0 gets nothing.
        check(unhealthy(&[0, 1, 2]), 0.3, &[1, 0, 1], &[0, 2], true);
        // Without panic nothing is left.
        check(unhealthy(&[0, 1, 2]), 0.0, &[1, 1, 1], &[], false);
        // Draining is the operator's command, panic or not.
        check(draining(&[0, 1, 2]), 0.3, &[1, 1, 1], &[], false);
        // One of the two that do not drain: half, so no panic.
        check(|cluster| (draining(&[0])(cluster), unhealthy(&[1])(cluster)).0, 0.3, &[8, 1, 1], &[2], false);
    }

    #[test]
    fn the_requests_of_a_key_are_spread_over_its_endpoints() {
        let cluster = cluster_with(subset(3), &[1; 12], |_| {});
        let mut picker = picker(&subset(3), 5);
        let mut of = |key: u64, tried: &[usize], picks: u32| {
            let mut counts = [0u32; 12];
            (0..picks).for_each(|_| counts[picker.pick(&cluster, 0, key, tried).unwrap().index] += 1);
            let used: Vec<usize> = (0..12).filter(|index| counts[*index] > 0).collect();
            (used, counts)
        };
        for key in 0..50 {
            let (three, counts) = of(key, &[], 3000);
            assert_eq!(three.len(), 3, "{counts:?}");
            assert!(three.iter().all(|index| counts[*index].abs_diff(1000) < 200), "{counts:?}");
            assert_eq!(of(key, &three[..1], 200).0, three[1..], "the others of the key");
            // The next one of the key, and no other.
            let (next, _) = of(key, &three, 200);
            assert!(next.len() == 1 && !three.contains(&next[0]), "{next:?}");
        }
        let (first, _) = of(1, &[], 300);
        assert!(cluster.set_healthy(first[0], false, 5));
        let (other, _) = of(1, &[], 300);
        assert!(other.len() == 3 && first[1..].iter().all(|index| other.contains(index)), "{first:?} {other:?}");
        assert!(cluster.set_healthy(first[0], true, 6));
        assert_eq!(of(1, &[], 300).0, first, "it has its keys back");
    }

    #[test]
    fn the_end_of_an_ejection_is_seen_without_an_event() {
        for algorithm in algorithms() {
            let cluster = cluster_with(algorithm.clone(), &[1, 1], |_| {});
            let mut picker = picker(&algorithm, 5);
            let ejection = (0..5).find_map(|_| cluster.record(0, 100, Outcome::Reset)).unwrap();
            assert_eq!(picked(&mut picker, &cluster, ejection.until_ms - 1, &[], 100)[0], 0, "{algorithm:?}");
            assert!(picked(&mut picker, &cluster, ejection.until_ms, &[], 100)[0] > 0, "{algorithm:?}");
        }
    }

    #[test]
    fn the_tried_are_never_picked_again() {
        for algorithm in algorithms() {
            for weights in [vec![1, 1, 1, 1], vec![1000, 1, 1, 1]] {
                let cluster = cluster_with(algorithm.clone(), &weights, |_| {});
                let mut picker = picker(&algorithm, 5);
                assert_eq!(picked(&mut picker, &cluster, 0, &[0, 2], 100).iter().sum::<u32>(), 100);
                for tried in [&[0][..], &[0, 2], &[3, 1, 0]] {
                    let counts = picked(&mut picker, &cluster, 0, tried, 200);
                    assert!(tried.iter().all(|index| counts[*index] == 0), "{algorithm:?} {tried:?} {counts:?}");
                }
                assert_eq!(picker.pick(&cluster, 0, 1, &[0, 1, 2, 3]), None);
            }
        }
    }

    /// Backups are picked when they are in use, or for work that has tried all others; not because those have no room.
    #[test]
    fn backups_are_picked_in_their_turn() {
        for algorithm in algorithms() {
            let cluster = cluster_with(algorithm.clone(), &[1, 1, 1, 1], |cluster| cluster.panic_threshold = 0.3);
            let cluster = cluster.with_priorities(&[2, 0, 1, 0]);
            let mut picker = picker(&algorithm, 5);
            let mut seen = |tried: &[usize]| -> Vec<usize> {
                let picks: Vec<usize> = (0..100)
                    .filter_map(|key| Some(picker.pick(&cluster, 0, crate::hash::mix(key), tried)?.index))
                    .collect();
                (0..4).filter(|index| picks.contains(index)).collect()
            };
            assert_eq!((seen(&[]), seen(&[1]), seen(&[3, 1])), (vec![1, 3], vec![3], vec![2]), "{algorithm:?}");
            assert_eq!((seen(&[3, 1, 2]), seen(&[0, 1, 2, 3])), (vec![0], vec![]), "{algorithm:?}");
            cluster.set_healthy(1, false, 0);
            assert_eq!(seen(&[]), [3]);
            cluster.set_healthy(3, false, 0);
            assert_eq!((seen(&[]), seen(&[2])), (vec![2], vec![0]));
            cluster.set_healthy(2, false, 0);
            assert_eq!(seen(&[]), [0]);
            cluster.set_healthy(0, false, 0);
            assert_eq!(seen(&[]), [0, 1, 2, 3], "{algorithm:?}: in panic");
            cluster.set_healthy(1, true, 0);
            assert_eq!(seen(&[]), [1]);
            let mut full = self::picker(&algorithm, 5);
            assert_eq!(full.pick_unless(&cluster, 0, 7, |index| index == 1), None);
        }
    }

    /// Work stays in the own zone, leaves it for a retry, and all zones share it evenly when too little of the own is left.
    #[test]
    fn the_own_zone_is_picked() {
        use model::Zone::{Other, Own};
        for algorithm in algorithms() {
            let cluster = cluster_with(algorithm.clone(), &[1; 6], |cluster| cluster.panic_threshold = 0.3);
            let cluster = cluster.with_zones(&[Other, Own, Other, Own, Own, Own]).with_priorities(&[0, 0, 0, 0, 1, 0]);
            let mut picker = picker(&algorithm, 5);
            let mut seen = |tried: &[usize]| -> Vec<usize> {
                let picks: Vec<usize> = (0..200)
                    .filter_map(|key| Some(picker.pick(&cluster, 0, crate::hash::mix(key), tried)?.index))
                    .collect();
                (0..6).filter(|index| picks.contains(index)).collect()
            };
            assert_eq!((seen(&[]), seen(&[3])), (vec![1, 3, 5], vec![1, 5]), "{algorithm:?}");
            // Then another zone, any of its endpoints, and only then a backup.
            assert_eq!((seen(&[1, 3, 5]), seen(&[1, 3, 5, 2])), (vec![0, 2], vec![0]), "{algorithm:?}");
            assert_eq!((seen(&[1, 3, 5, 0, 2]), seen(&[0, 1, 2, 3, 4, 5])), (vec![4], vec![]), "{algorithm:?}");
            cluster.set_healthy(5, false, 0);
            assert_eq!(seen(&[]), [0, 1, 2, 3], "{algorithm:?}: two of three are less than 70 %");
            cluster.set_healthy(5, true, 0);
            assert_eq!(seen(&[]), [1, 3, 5]);
            let mut full = self::picker(&algorithm, 5);
            assert_eq!(full.pick_unless(&cluster, 0, 7, |index| [1, 3, 5].contains(&index)), None, "{algorithm:?}");
        }
    }

    /// A key whose endpoint is in the zone keeps it whether or not the zone is in use.
    #[test]
    fn maglev_moves_only_the_keys_of_other_zones() {
        use model::Zone::{Other, Own};
        let cluster = cluster_with(maglev(), &[1; 9], |_| {});
        let zones = [Own, Own, Own, Own, Other, Other, Other, Other, Other];
        let cluster = cluster.with_zones(&zones);
        let mut picker = picker(&maglev(), 5);
        let mut of_keys = || -> Vec<usize> {
            (0..2000).map(|key| picker.pick(&cluster, 0, crate::hash::mix(key), &[]).unwrap().index).collect()
        };
        let near = of_keys();
        assert!(near.iter().all(|index| *index < 4));
        (0..2).for_each(|index| assert!(cluster.set_healthy(index, false, 0)));
        let far = of_keys();
        (0..2).for_each(|index| assert!(cluster.set_healthy(index, true, 0)));
        assert_eq!(of_keys(), near);
        for (near, far) in near.iter().zip(far) {
            assert!(far >= 2 && (far >= 4 || far == *near || *near < 2));
        }
    }

    #[test]
    fn only_maglev_needs_a_key() {
        for algorithm in algorithms() {
            let needs = picker(&algorithm, 1).needs_key();
            assert_eq!(needs, matches!(algorithm, Algorithm::Maglev(_) | Algorithm::MaglevSubset { .. }));
        }
    }

    /// The shares of 30,000 picks with all endpoints idle must equal the weights within a twentieth.
    #[test]
    fn idle_endpoints_get_their_weight() {
        // Weights decide which keys an endpoint has with these.
        let is_by_key =
            |algorithm: &Algorithm| matches!(algorithm, Algorithm::Maglev(_) | Algorithm::MaglevSubset { .. });
        for algorithm in algorithms().into_iter().filter(|algorithm| !is_by_key(algorithm)) {
            for weights in [vec![2, 1], vec![4, 3, 2, 1]] {
                let cluster = cluster_with(algorithm.clone(), &weights, |_| {});
                cluster.endpoints().iter().for_each(|endpoint| endpoint.observe_latency(0, 1000));
                let counts = picked(&mut picker(&algorithm, 9), &cluster, 0, &[], 30_000);
                let sum: u32 = weights.iter().sum();
                for (count, weight) in counts.iter().zip(&weights) {
                    let due = 30_000 * weight / sum;
                    assert!(count.abs_diff(due) <= due / 20, "{algorithm:?} {weights:?}: {counts:?}");
                }
            }
        }
    }

    #[test]
    fn loads_settle_at_the_weights() {
        for algorithm in [Algorithm::LeastRequest, Algorithm::LeastConnections] {
            let cluster = cluster_with(algorithm.clone(), &[4, 2, 1, 1], |_| {});
            let mut picker = picker(&algorithm, 9);
            for _ in 0..8000 {
                let endpoint = &cluster.endpoints()[picker.pick(&cluster, 0, 0, &[]).unwrap().index];
                endpoint.begin_request();
                endpoint.open_connection();
            }
            let loads: Vec<u32> = cluster.endpoints().iter().map(|endpoint| endpoint.in_flight()).collect();
            for (load, due) in loads.iter().zip([4000, 2000, 1000, 1000]) {
                assert!(load.abs_diff(due) <= 20, "{algorithm:?}: {loads:?}");
            }
        }
    }

    #[test]
    fn an_unknown_endpoint_is_tried_once_and_not_flooded() {
        let cluster = cluster_with(Algorithm::PeakEwma, &[1, 1, 1], |_| {});
        let mut picker = picker(&Algorithm::PeakEwma, 9);
        for known in [0, 1] {
            cluster.endpoints()[known].observe_latency(0, 1000);
        }
        for _ in 0..200 {
            let pick = picker.pick(&cluster, 0, 0, &[]).unwrap();
            cluster.endpoints()[pick.index].begin_request();
        }
        assert_eq!(cluster.endpoints()[2].in_flight(), 1);
    }

    #[test]
    fn slow_start_grows_and_ends() {
        for algorithm in algorithms() {
            let cluster =
                cluster_with(algorithm.clone(), &[1, 1, 1], |cluster| cluster.slow_start = Duration::from_secs(10));
            let mut picker = picker(&algorithm, 9);
            // There is no slow start at the start of the process.
            assert!(picked(&mut picker, &cluster, 0, &[], 3000)[1] > 900, "{algorithm:?}");
            cluster.set_healthy(1, false, 0);
            cluster.set_healthy(1, true, 1000);
            let counts: Vec<u32> = [1000, 3000, 5000, 7000, 9000, 11_000]
                .iter()
                .map(|now_ms| picked(&mut picker, &cluster, *now_ms, &[], 3000)[1])
                .collect();
            assert!(counts.is_sorted_by(|a, b| a < b), "{algorithm:?}: {counts:?}");
            // A tenth against two full weights is 1 in 21.
            assert!((100..200).contains(&counts[0]) && counts[5] > 900, "{algorithm:?}: {counts:?}");
        }
    }

    #[test]
    fn all_in_slow_start_share_as_ever() {
        for algorithm in algorithms() {
            let cluster =
                cluster_with(algorithm.clone(), &[1, 1], |cluster| cluster.slow_start = Duration::from_secs(10));
            for index in [0, 1] {
                cluster.set_draining(index, true, 0);
                cluster.set_draining(index, false, 1000);
            }
            let counts = picked(&mut picker(&algorithm, 9), &cluster, 1000, &[], 2000);
            assert!(counts.iter().all(|count| *count > 850), "{algorithm:?}: {counts:?}");
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Operation {
        Healthy(usize, bool),
        Draining(usize, bool),
        Fail(usize),
        Advance(u64),
        Pick(Option<usize>),
    }

    fn step(endpoints: usize) -> impl Strategy<Value = Operation> {
        let index = 0..endpoints;
        prop_oneof![
            (index.clone(), any::<bool>()).prop_map(|(index, on)| Operation::Healthy(index, on)),
            (index.clone(), prop::bool::weighted(0.3)).prop_map(|(index, on)| Operation::Draining(index, on)),
            index.clone().prop_map(Operation::Fail),
            (0u64..4000).prop_map(Operation::Advance),
            prop::option::of(index).prop_map(Operation::Pick),
        ]
    }

    proptest! {
        #![proptest_config(seeded(256))]

        /// Whatever happens to a cluster, a picked endpoint is usable, or at least not draining if the cluster panics; there is a pick if
        /// there is such an endpoint; and ejections stay within their cap.
        #[test]
        fn picks_are_always_allowed(
            weights in prop::collection::vec(0u32..4, 4),
            threshold in prop_oneof![Just(0.0), Just(0.5)],
            max_ejected in 0.0f64..1.0,
            which in 0usize..6,
            steps in prop::collection::vec(step(4), 1..200),
            seed: u64,
        ) {
            let algorithm = algorithms()[which].clone();
            let cluster = cluster_with(algorithm.clone(), &weights, |cluster| {
                cluster.panic_threshold = threshold;
                cluster.slow_start = Duration::from_secs(3);
                let outlier = cluster.outlier.as_mut().unwrap();
                (outlier.consecutive_5xx, outlier.max_ejected) = (2, max_ejected);
            });
            let ejected_max = ((4.0 * max_ejected) as usize).max(1);
            let mut picker = Picker::new(&algorithm, 0, 1, seed);
            let (mut now_ms, mut key) = (0, seed);
            for step in steps {
                match step {
                    Operation::Healthy(index, on) => _ = cluster.set_healthy(index, on, now_ms),
                    Operation::Draining(index, on) => _ = cluster.set_draining(index, on, now_ms),
                    Operation::Fail(index) => _ = cluster.record(index, now_ms, Outcome::Timeout),
                    Operation::Advance(ms) => now_ms += ms,
                    Operation::Pick(tried) => {
                        key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
                        let panicking = cluster.panicking(now_ms);
                        let allowed = |index: usize| {
                            let drains = cluster.status(index, now_ms) == Some(crate::EndpointStatus::Draining);
                            tried != Some(index) && weights[index] > 0 && !drains
                                && (panicking || cluster.usable(index, now_ms))
                        };
                        match picker.pick(&cluster, now_ms, key, tried.as_slice()) {
                            Some(Pick { index, panicked }) => prop_assert!(allowed(index) && panicked == panicking),
                            None => prop_assert!(!(0..4).any(allowed)),
                        }
                    }
                }
                let ejected = (0..4).filter(|index| cluster.endpoints()[*index].is_ejected(now_ms)).count();
                prop_assert!(ejected <= ejected_max, "{} of {}", ejected, ejected_max);
            }
        }
    }
}

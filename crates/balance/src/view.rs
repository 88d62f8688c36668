//! One worker's list of the endpoints that may be picked, and how long it is valid.

use std::sync::atomic::Ordering::Relaxed;

use model::Zone;

use crate::cluster::{ClusterState, EndpointStatus, Turn};

/// The share of an endpoint that has its full weight.
pub(crate) const WHOLE: u16 = 1000;
/// The share at the beginning of slow start, out of [`WHOLE`].
const RAMP_MIN: u16 = WHOLE / 10;
/// How often shares are computed again while an endpoint is in slow start.
const RAMP_STEP_MS: u64 = 100;

/// An endpoint that may be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// The index into the cluster's endpoints.
    pub(crate) index: usize,
    /// As configured, above 0.
    pub(crate) weight: u32,
    /// `0 < share <= WHOLE`: how much of its weight slow start grants. The member with the largest share has all of it.
    pub(crate) share: u16,
}

/// The eligible endpoints of a cluster at one moment.
#[derive(Debug, Default)]
pub(crate) struct View {
    epoch: u64,
    /// The next time at which time alone changes the list.
    valid_until_ms: u64,
    /// Health and ejection are ignored.
    pub(crate) panicked: bool,
    /// In the order of the cluster.
    pub(crate) members: Vec<Member>,
    /// Usable endpoints of other zones and priorities, for work that has tried all members, with their rank: those of a lower one come
    /// first.
    pub(crate) spares: Vec<(u16, usize)>,
    /// As long as the cluster's endpoints: the member's share, 0 for endpoints that are not members.
    shares: Vec<u16>,
}

impl View {
    /// Whether nothing has changed since the list was made.
    pub(crate) fn holds(&self, cluster: &ClusterState, now_ms: u64) -> bool {
        self.epoch == cluster.epoch() && now_ms < self.valid_until_ms
    }

    /// Makes the list again, in time linear in the number of endpoints.
    pub(crate) fn refresh(&mut self, cluster: &ClusterState, now_ms: u64) {
        // Read first: a change during this call changes the epoch again, and the list is made again.
        self.epoch = cluster.epoch();
        self.valid_until_ms = u64::MAX;
        let turn = cluster.turn(now_ms);
        self.panicked = turn == Turn::Panic;
        self.members.clear();
        self.spares.clear();
        for index in 0..cluster.endpoints().len() {
            let weight = cluster.weight(index);
            let eligible = match cluster.status(index, now_ms) {
                Some(EndpointStatus::Healthy) => true,
                Some(EndpointStatus::Ejected { until_ms }) => {
                    self.valid_until_ms = self.valid_until_ms.min(until_ms);
                    self.panicked
                }
                Some(EndpointStatus::Unhealthy) => self.panicked,
                Some(EndpointStatus::Draining) | None => false,
            };
            if weight > 0 && eligible {
                if let Some(rank) = rank(cluster, turn, index) {
                    self.spares.push((rank, index));
                    continue;
                }
                let share = self.share(cluster, index, now_ms);
                self.members.push(Member { index, weight, share });
            }
        }
        self.spares.sort_unstable();
        self.favour_the_most_favoured();
        self.shares.clear();
        self.shares.resize(cluster.endpoints().len(), 0);
        for member in &self.members {
            if let Some(share) = self.shares.get_mut(member.index) {
                *share = member.share;
            }
        }
    }

    /// How much of its weight an endpoint has in slow start.
    fn share(&mut self, cluster: &ClusterState, index: usize, now_ms: u64) -> u16 {
        let slow_start_ms = cluster.slow_start_ms();
        let since_ms = cluster.endpoints().get(index).map_or(0, |endpoint| endpoint.usable_since_ms.load(Relaxed));
        // In panic all carry what they can: slow start only makes sense if others can take the load.
        if self.panicked || slow_start_ms == 0 || since_ms == 0 {
            return WHOLE;
        }
        let elapsed_ms = now_ms.saturating_sub(since_ms);
        if elapsed_ms >= slow_start_ms {
            return WHOLE;
        }
        self.valid_until_ms = self.valid_until_ms.min(now_ms.saturating_add(RAMP_STEP_MS));
        let share = u128::from(elapsed_ms) * u128::from(WHOLE) / u128::from(slow_start_ms);
        // Below WHOLE, since elapsed < slow_start.
        (share as u16).max(RAMP_MIN)
    }

    /// If all are in slow start, the furthest one counts as whole, because only ratios matter.
    fn favour_the_most_favoured(&mut self) {
        let most = self.members.iter().map(|member| member.share).max().unwrap_or(WHOLE);
        for member in &mut self.members {
            let share = u32::from(member.share) * u32::from(WHOLE) / u32::from(most.max(1));
            member.share = u16::try_from(share).unwrap_or(WHOLE).max(1);
        }
    }

    /// The share of an endpoint by its index in the cluster; 0 if it may not be picked.
    pub(crate) fn share_of(&self, index: usize) -> u16 {
        self.shares.get(index).copied().unwrap_or(0)
    }
}

/// `None` for a member. A spare of the priority in use is in another zone, and comes before those of other priorities. Of these, the own
/// zone comes first.
fn rank(cluster: &ClusterState, turn: Turn, index: usize) -> Option<u16> {
    let Turn::Priority { priority, stays_in_zone } = turn else { return None };
    let is_near = cluster.zone(index) == Zone::Own;
    if cluster.priority(index) != priority {
        return Some(1 + 2 * u16::from(cluster.priority(index)) + u16::from(!is_near));
    }
    (stays_in_zone && !is_near).then_some(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::Algorithm;
    use proptest::prelude::*;

    use super::*;
    use crate::Outcome;
    use crate::testing::{cluster_with, seeded};

    fn view(cluster: &ClusterState, now_ms: u64) -> View {
        let mut view = View::default();
        view.refresh(cluster, now_ms);
        view
    }

    #[test]
    fn a_list_holds_until_the_next_known_change() {
        let check = |prepare: &dyn Fn(&ClusterState), now_ms, last_ms| {
            let cluster =
                cluster_with(Algorithm::Random, &[1, 1], |cluster| cluster.slow_start = Duration::from_secs(10));
            assert!(!View::default().holds(&cluster, 0));
            prepare(&cluster);
            let view = view(&cluster, now_ms);
            assert!(view.holds(&cluster, now_ms) && view.holds(&cluster, last_ms));
            assert_eq!(view.holds(&cluster, last_ms.saturating_add(1)), last_ms == u64::MAX);
            cluster.set_draining(0, true, now_ms);
            assert!(!view.holds(&cluster, now_ms));
        };
        let eject = |cluster: &ClusterState| (0..5).for_each(|_| _ = cluster.record(1, 0, Outcome::Reset));
        let restart = |cluster: &ClusterState| {
            cluster.set_healthy(1, false, 0);
            cluster.set_healthy(1, true, 0);
        };
        check(&|_| {}, 5, u64::MAX - 1);
        check(&eject, 5, 9_999);
        // Slow start begins at the end of the ejection, and advances in steps.
        check(&eject, 10_000, 10_099);
        check(&restart, 5, 104);
        check(&restart, 10_001, u64::MAX - 1);
    }

    /// The shares at 6 s of two endpoints that became usable at the given times, with a slow start of 10 s.
    fn check_shares(since_ms: [u64; 2], panic_threshold: f64, expect: [u16; 2]) {
        let cluster = cluster_with(Algorithm::Random, &[1, 1, 1], |cluster| {
            cluster.slow_start = Duration::from_secs(10);
            cluster.panic_threshold = panic_threshold;
        });
        // Only there so that a panic threshold of one is not reached.
        cluster.set_healthy(2, false, 0);
        for (index, since_ms) in since_ms.into_iter().enumerate() {
            cluster.set_healthy(index, false, 0);
            cluster.set_healthy(index, true, since_ms);
        }
        let view = view(&cluster, 6000);
        assert_eq!([0, 1].map(|index| view.share_of(index)), expect, "{since_ms:?}");
        assert_eq!(view.panicked, panic_threshold == 1.0);
    }

    #[test]
    fn shares_in_slow_start() {
        // The furthest counts as whole, the other in proportion.
        check_shares([2000, 4000], 0.0, [WHOLE, WHOLE / 2]);
        check_shares([6000, 6000], 0.0, [WHOLE, WHOLE]);
        // In panic nothing is held back.
        check_shares([2000, 4000], 1.0, [WHOLE, WHOLE]);
    }

    proptest! {
        #![proptest_config(seeded(256))]

        #[test]
        fn slow_start_is_monotone(slow_start_ms in 1u64..100_000, times in prop::collection::vec(0u64..200_000, 1..50)) {
            let cluster = cluster_with(Algorithm::Random, &[1, 1], |cluster| {
                cluster.slow_start = Duration::from_millis(slow_start_ms);
            });
            cluster.set_healthy(1, false, 0);
            cluster.set_healthy(1, true, 1000);
            let mut times = times;
            times.sort_unstable();
            let mut before = RAMP_MIN;
            for now_ms in times {
                let view = view(&cluster, now_ms);
                let share = view.share_of(1);
                prop_assert!(share >= before && view.share_of(0) == WHOLE);
                prop_assert_eq!(share == WHOLE, now_ms >= 1000 + slow_start_ms);
                before = share;
            }
        }
    }
}

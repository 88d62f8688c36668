//! Smooth weighted round robin, earliest deadline first.
//!
//! Each endpoint of weight `w` has a fixed grid: in each round of virtual time its turns are due at `(k + phase) / w` for `0 <= k < w`. A
//! pick takes the earliest turn and moves that endpoint to its next one. Because the grids repeat with each round, any sequence of as many
//! picks as the sum of the weights contains each endpoint exactly `w` times; because a grid is even, its turns are spread evenly. Nothing
//! accumulates, so nothing drifts, and an endpoint that returns simply waits for its next turn on its own grid, without catching up.
//!
//! Slow start does not change the grids: an endpoint only takes a share of its turns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::cluster::ClusterState;
use crate::view::{View, WHOLE};

/// A moment of virtual time. `position` is the part of the round, out of 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    round: u64,
    position: u32,
}

/// An endpoint's next turn. Ordered by its time, then by index, which makes ties repeat too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    due: Moment,
    index: usize,
    /// `0 <= k < weight`: the number of the turn in its round.
    k: u32,
}

#[derive(Clone, Copy, Debug)]
struct Grid {
    weight: u32,
    /// Out of 2^32. Different for each endpoint, so that equal weights alternate instead of coming together.
    phase: u32,
    /// Out of [`WHOLE`]: what slow start has granted and has not been used.
    credit: u16,
}

/// The turns of one worker for one cluster.
#[derive(Debug)]
pub(crate) struct RoundRobin {
    /// By index in the cluster.
    grids: Vec<Grid>,
    turns: BinaryHeap<Reverse<Turn>>,
    now: Moment,
    /// Turns that were skipped within one pick because their endpoint is excluded. Empty between picks; kept for its memory.
    passed: Vec<Turn>,
}

impl RoundRobin {
    /// `start`, out of 2^32, is the part of the first round that is skipped: workers with different values interleave.
    ///
    /// It has no grids before [`Self::rebuild`]: most of the clusters of a big configuration have no traffic at most of the workers, and the
    /// grids and turns of ten endpoints take half a KiB.
    pub(crate) fn new(start: u32) -> Self {
        Self {
            grids: Vec::new(),
            turns: BinaryHeap::new(),
            now: Moment { round: 0, position: start },
            passed: Vec::new(),
        }
    }

    fn set_weights(&mut self, weights: impl ExactSizeIterator<Item = u32> + Clone) {
        // In lowest terms, so that the start is a part of the shortest possible round: with three equal endpoints a third is one of them,
        // whatever their weight.
        let divisor = weights.clone().fold(0, greatest_common_divisor).max(1);
        let count = weights.len().max(1) as u64;
        let grid = |(index, weight): (usize, u32)| Grid {
            weight: weight / divisor,
            phase: (((index as u64) << 32) / count) as u32,
            credit: 0,
        };
        self.turns.reserve_exact(weights.len());
        self.grids = weights.enumerate().map(grid).collect();
    }

    /// Removes endpoints that are no longer members, and puts new members on their next turn. All others keep theirs. `cluster` is always the
    /// same one.
    pub(crate) fn rebuild(&mut self, view: &View, cluster: &ClusterState) {
        if self.grids.is_empty() {
            self.set_weights((0..cluster.endpoints().len()).map(|index| cluster.weight(index)));
        }
        self.turns.retain(|Reverse(turn)| view.share_of(turn.index) > 0);
        let mut waiting = vec![false; self.grids.len()];
        for Reverse(turn) in &self.turns {
            if let Some(waits) = waiting.get_mut(turn.index) {
                *waits = true;
            }
        }
        for member in &view.members {
            if let (Some(false), Some(grid)) = (waiting.get(member.index), self.grids.get(member.index)) {
                self.turns.push(Reverse(grid.first_turn(member.index, self.now)));
            }
        }
    }

    /// The endpoint whose turn it is, among those not `excluded`; `None` if there is no other. Takes time logarithmic in the number of
    /// endpoints, for it and for each excluded one.
    pub(crate) fn pick(&mut self, view: &View, excluded: impl Fn(usize) -> bool) -> Option<usize> {
        // This ends: an excluded endpoint is skipped once, and the others gain credit at each turn.
        let picked = loop {
            let Some(mut next) = self.turns.peek_mut() else { break None };
            let Reverse(turn) = *next;
            if excluded(turn.index) {
                PeekMut::pop(next);
                self.passed.push(turn);
                continue;
            }
            let Some(grid) = self.grids.get_mut(turn.index) else {
                PeekMut::pop(next);
                continue;
            };
            next.0 = grid.turn_after(turn);
            self.now = turn.due;
            if grid.takes_turn(view.share_of(turn.index)) {
                break Some(turn.index);
            }
        };
        // Skipped endpoints have their turn at the next pick.
        self.turns.extend(self.passed.drain(..).map(Reverse));
        picked
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Grid {
    /// The time of the k-th turn of a round.
    fn position(self, k: u32) -> u32 {
        // k < weight and phase < 2^32, so the quotient is below 2^32.
        (((u64::from(k) << 32) | u64::from(self.phase)) / u64::from(self.weight.max(1))) as u32
    }

    fn turn_after(self, turn: Turn) -> Turn {
        let (round, k) = if turn.k + 1 < self.weight { (turn.due.round, turn.k + 1) } else { (turn.due.round + 1, 0) };
        Turn { due: Moment { round, position: self.position(k) }, index: turn.index, k }
    }

    /// The first turn that is not before `now`.
    fn first_turn(self, index: usize, now: Moment) -> Turn {
        // The k at or just before `now`, which the rounding in `position` may have put before it.
        let elapsed = u64::from(now.position) * u64::from(self.weight);
        let k = (elapsed.saturating_sub(u64::from(self.phase)) >> 32) as u32;
        let mut turn = Turn { due: Moment { round: now.round, position: self.position(k) }, index, k };
        while turn.due < now {
            turn = self.turn_after(turn);
        }
        turn
    }

    /// Whether slow start lets the endpoint take this turn: `share` of [`WHOLE`] turns, evenly.
    fn takes_turn(&mut self, share: u16) -> bool {
        self.credit = (self.credit + share.min(WHOLE)).min(2 * WHOLE);
        let takes = self.credit >= WHOLE;
        if takes {
            self.credit -= WHOLE;
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use model::Algorithm::RoundRobin as Algorithm;
    use proptest::prelude::*;

    use crate::testing::{cluster_with, picker, seeded};
    use crate::{ClusterState, Picker};

    fn take(picker: &mut Picker, cluster: &ClusterState, picks: usize) -> Vec<usize> {
        (0..picks).map(|_| picker.pick(cluster, 0, 0, &[]).unwrap().index).collect()
    }

    fn count(picks: &[usize], endpoints: usize) -> Vec<u32> {
        let mut counts = vec![0; endpoints];
        picks.iter().for_each(|index| counts[*index] += 1);
        counts
    }

    fn spread(counts: &[u32]) -> u32 {
        counts.iter().max().unwrap() - counts.iter().min().unwrap()
    }

    #[test]
    fn the_heavy_one_does_not_come_in_a_burst() {
        for seed in 0..20 {
            let cluster = cluster_with(Algorithm, &[5, 1, 1], |_| {});
            let picks = take(&mut picker(&Algorithm, seed), &cluster, 70);
            let longest = picks.chunk_by(|a, b| a == b).map(<[usize]>::len).max();
            // Five of seven: sequences of two, and of three where the round begins again.
            assert!(longest <= Some(3), "seed {seed}: {picks:?}");
        }
    }

    #[test]
    fn one_that_comes_back_catches_up_on_nothing() {
        let cluster = cluster_with(Algorithm, &[1; 4], |_| {});
        let mut picker = picker(&Algorithm, 3);
        take(&mut picker, &cluster, 10);
        cluster.set_healthy(2, false, 0);
        assert_eq!(count(&take(&mut picker, &cluster, 3000), 4), [1000, 1000, 0, 1000]);
        cluster.set_healthy(2, true, 0);
        assert_eq!(count(&take(&mut picker, &cluster, 4), 4), [1; 4]);
    }

    #[test]
    fn one_that_was_passed_over_has_the_next_turn() {
        let cluster = cluster_with(Algorithm, &[1; 3], |_| {});
        let mut picker = picker(&Algorithm, 0);
        let order = take(&mut picker, &cluster, 3);
        let retried = picker.pick(&cluster, 0, 0, &[order[0]]).unwrap().index;
        assert_eq!(retried, order[1]);
        assert_eq!(take(&mut picker, &cluster, 2), [order[0], order[2]]);
    }

    #[test]
    fn a_health_change_of_one_leaves_the_order_of_the_others() {
        let cluster = cluster_with(Algorithm, &[1; 5], |_| {});
        let mut picker = picker(&Algorithm, 9);
        let order = take(&mut picker, &cluster, 5);
        cluster.set_healthy(order[3], false, 0);
        assert_eq!(take(&mut picker, &cluster, 4), [order[0], order[1], order[2], order[4]]);
    }

    proptest! {
        #![proptest_config(seeded(256))]

        /// Any sequence of as many picks as the sum of the weights, wherever it begins.
        #[test]
        fn weights_are_exact(weights in prop::collection::vec(0u32..40, 1..8), seed: u64, offset in 0usize..500) {
            let sum: u32 = weights.iter().sum();
            let cluster = cluster_with(Algorithm, &weights, |_| {});
            let mut picker = picker(&Algorithm, seed);
            if sum == 0 {
                prop_assert_eq!(picker.pick(&cluster, 0, 0, &[]), None);
                return Ok(());
            }
            take(&mut picker, &cluster, offset);
            let picks = take(&mut picker, &cluster, sum as usize);
            prop_assert_eq!(count(&picks, weights.len()), weights);
        }

        /// Extreme weights: the sum is too large to walk, so the difference is checked after every pick.
        #[test]
        fn large_weights_stay_close(heavy in 30_000u32..=65_535, light in 1u32..100, seed: u64) {
            let cluster = cluster_with(Algorithm, &[heavy, light], |_| {});
            let mut picker = picker(&Algorithm, seed);
            let picks = take(&mut picker, &cluster, 5000);
            let mut lights = 0f64;
            for (n, index) in picks.iter().enumerate() {
                lights += *index as f64;
                let due = (n + 1) as f64 * f64::from(light) / f64::from(heavy + light);
                prop_assert!((lights - due).abs() <= 1.01, "{} after {}, due {}", lights, n + 1, due);
            }
        }

        /// Workers that each made the same number of picks have together spread them evenly from the very first.
        #[test]
        fn workers_together_are_fair(workers in 1usize..=8, endpoints in 1usize..12, each in 1usize..40, seed: u64) {
            let cluster = cluster_with(Algorithm, &vec![3; endpoints], |_| {});
            let mut counts = vec![0; endpoints];
            for worker in 0..workers {
                let mut picker = Picker::new(&Algorithm, worker, workers, seed);
                for index in take(&mut picker, &cluster, each) {
                    counts[index] += 1;
                }
            }
            prop_assert!(spread(&counts) <= 1, "{:?}", counts);
        }

        /// As above with weights: the error is at most about one for each worker, and does not grow with the picks.
        #[test]
        fn workers_together_follow_weights(
            weights in prop::collection::vec(1u32..20, 1..8), workers in 1usize..=8, each in 1usize..300, seed: u64,
        ) {
            let cluster = cluster_with(Algorithm, &weights, |_| {});
            let mut counts = vec![0u32; weights.len()];
            for worker in 0..workers {
                let mut picker = Picker::new(&Algorithm, worker, workers, seed);
                for index in take(&mut picker, &cluster, each) {
                    counts[index] += 1;
                }
            }
            let sum: u32 = weights.iter().sum();
            for (index, weight) in weights.iter().enumerate() {
                let due = (each * workers) as f64 * f64::from(*weight) / f64::from(sum);
                let off = (f64::from(counts[index]) - due).abs();
                prop_assert!(off <= workers as f64 + 0.5, "{:?} for {:?}, {} off", counts, weights, off);
            }
        }
    }
}

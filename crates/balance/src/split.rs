//! Distributes requests over several targets by weight: a route's clusters, or whether to mirror a request.
//!
//! A round has as many places as the sum of the weights in lowest terms. Each target owns as many of them as its weight, and a round visits
//! each place once. So every round contains every target exactly as often as its weight says, whereas random draws would be off by the
//! square root of the number of requests. A round moves in strides near the golden section of its length, which spreads the visits of every
//! target evenly (Knuth, TAOCP volume 3, section 6.4, on Fibonacci hashing), and begins at a random place. Otherwise a client that asks for
//! the same twenty things in the same order again and again could always send the same one to the same target.

use crate::hash::mix;
use crate::rng::Rng;

/// One worker's part of the split.
#[derive(Clone, Debug)]
pub struct Split {
    /// The end of each target's places; ascending, the last is `places`.
    ends: Vec<u64>,
    /// The places of a round.
    places: u64,
    /// Has no common divisor with `places`.
    stride: u64,
    /// `0 <= at < places`, or 0.
    at: u64,
    /// The places that are left in this round.
    left: u64,
    rng: Rng,
}

impl Split {
    /// The split of worker number `worker`. Equal seeds give equal sequences.
    pub fn new(weights: impl IntoIterator<Item = u32>, worker: usize, seed: u64) -> Self {
        let weights: Vec<u64> = weights.into_iter().map(u64::from).collect();
        let divisor = weights.iter().copied().fold(0, common_divisor).max(1);
        let mut places = 0;
        let mut ends = Vec::with_capacity(weights.len());
        for weight in weights {
            places += weight / divisor;
            ends.push(places);
        }
        Self { ends, places, stride: stride(places), at: 0, left: 0, rng: Rng::new(seed ^ mix(worker as u64 + 1)) }
    }

    /// The target of the next request, as an index into the weights; `None` if no weight is above 0.
    pub fn pick(&mut self) -> Option<usize> {
        if self.left == 0 {
            self.left = self.places;
            self.at = self.rng.below(self.places);
        }
        let at = self.at;
        self.left = self.left.saturating_sub(1);
        self.at = (at + self.stride).checked_rem(self.places)?;
        // There are only a few targets, so walking them costs less than a search.
        self.ends.iter().position(|end| at < *end)
    }
}

/// Strides that are examined on either side of the golden section.
const STRIDES_MAX: u64 = 64;

/// A number near the golden section of `places`, without a common divisor with it. Among these, the one whose ratio to `places` is hardest
/// to approximate: a stride that nearly returns after a few steps visits the same neighbourhoods again and again.
fn stride(places: u64) -> u64 {
    let golden = places * 618_034 / 1_000_000;
    let near = (0..STRIDES_MAX).flat_map(|off| [golden + off, golden.saturating_sub(off)]);
    let able = near.filter(|stride| (1..places).contains(stride) && common_divisor(*stride, places) == 1);
    able.min_by_key(|stride| largest_quotient(places, *stride)).unwrap_or(1)
}

/// The largest partial quotient of the continued fraction of `a / b`.
fn largest_quotient(a: u64, b: u64) -> u64 {
    a.checked_div(b).map_or(0, |quotient| quotient.max(largest_quotient(b, a % b)))
}

/// The greatest common divisor.
fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::seeded;

    fn deal(split: &mut Split, targets: usize, picks: u64) -> Vec<u64> {
        let mut counts = vec![0; targets];
        (0..picks).for_each(|_| counts[split.pick().unwrap()] += 1);
        counts
    }

    #[test]
    fn five_in_a_hundred_are_five_in_a_hundred() {
        for worker in 0..4 {
            let mut split = Split::new([95, 5], worker, 7);
            assert_eq!(deal(&mut split, 2, 100), [95, 5]);
            assert_eq!(deal(&mut split, 2, 10_000), [9_500, 500]);
        }
    }

    #[test]
    fn what_weighs_nothing_gets_nothing() {
        assert_eq!(deal(&mut Split::new([0, 3, 0], 0, 1), 3, 30), [0, 30, 0]);
        assert_eq!(Split::new([0, 0], 0, 1).pick(), None);
        assert_eq!(Split::new([], 0, 1).pick(), None);
    }

    /// Twenty things requested in the same order for ever: each of them goes to both targets.
    #[test]
    fn a_period_of_the_client_is_none_of_the_split() {
        let mut split = Split::new([19, 1], 0, 3);
        let mut met = [false; 20];
        for _ in 0..2_000 {
            met.iter_mut().for_each(|met| *met |= split.pick() == Some(1));
        }
        assert_eq!(met, [true; 20]);
    }

    proptest! {
        #![proptest_config(seeded(256))]

        /// Every round is exact, whatever the weights, and each target's turns are spread over it.
        #[test]
        fn rounds_are_exact_and_even(weights in prop::collection::vec(0u32..200, 1..8), worker in 0usize..8, seed: u64) {
            let sum: u32 = weights.iter().sum();
            let mut split = Split::new(weights.iter().copied(), worker, seed);
            prop_assume!(sum > 0);
            let expect: Vec<u64> = weights.iter().map(|weight| u64::from(*weight)).collect();
            for _ in 0..3 {
                prop_assert_eq!(deal(&mut split, weights.len(), u64::from(sum)), expect.clone());
            }
        }

        /// A target gets its share without waiting for a round of a million.
        #[test]
        fn large_weights_stay_close(heavy in 500_000u32..=1_000_000, light in 1u32..100_000, seed: u64) {
            let mut split = Split::new([heavy, light], 0, seed);
            let mut lights = 0f64;
            for n in 1..=5_000u32 {
                lights += split.pick().unwrap() as f64;
                let due = f64::from(n) * f64::from(light) / f64::from(heavy + light);
                prop_assert!((lights - due).abs() <= 6.0, "{} after {}, due {}", lights, n, due);
            }
        }
    }
}

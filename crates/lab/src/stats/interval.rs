//! A median and its confidence.

use serde::{Deserialize, Serialize};

use super::Rng;

/// With fewer rounds, no interval between two of them contains the median with 95 % (2 * 0.5^5 = 6.25 % lie outside all five).
pub const ROUNDS_MIN: usize = 6;

/// The number of draws of a bootstrap.
const RESAMPLES: usize = 10_000;
pub(super) const CONFIDENCE: f64 = 0.95;

/// A median over rounds with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The median of the rounds.
    pub median: f64,
    /// Lower end of the interval; `low <= median <= high`.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// The number of rounds behind it.
    pub rounds: usize,
    /// The probability that the interval contains the true median. It is at least 0.95 from [`ROUNDS_MIN`] rounds on; below that, the
    /// interval is the whole range of the rounds and this is its actual confidence.
    pub confidence: f64,
}

impl Estimate {
    /// Whether the interval has 95 % confidence.
    pub fn is_sure(&self) -> bool {
        self.confidence >= CONFIDENCE
    }
}

/// The middle value, or the mean of the two middle ones. None without values.
pub fn median(values: &[f64]) -> Option<f64> {
    middle(&sorted(values))
}

fn middle(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}

/// The same for finite values that may be reordered, for use inside a bootstrap.
pub(super) fn median_in_place(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    middle(values)
}

/// The median with the exact interval from order statistics: for ten rounds from the 2nd to the 9th value, 97.9 %. It assumes nothing about
/// the shape of the noise. Values that are not finite are ignored; None if nothing is left.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let sorted = sorted(values);
    let (rounds, median) = (sorted.len(), middle(&sorted)?);
    let mut cut = 0;
    while rounds > 2 * (cut + 1) && coverage(rounds, cut + 1) >= CONFIDENCE {
        cut += 1;
    }
    Some(Estimate {
        median,
        low: sorted[cut],
        high: sorted[rounds - 1 - cut],
        rounds,
        confidence: coverage(rounds, cut),
    })
}

/// The probability that the true median lies between the `cut + 1`-th smallest and the `cut + 1`-th greatest of `rounds` values. It lies
/// outside if at most `cut` of the values are on one side of it, and each is on either side with equal probability.
fn coverage(rounds: usize, cut: usize) -> f64 {
    let mut term = 0.5f64.powi(i32::try_from(rounds).unwrap_or(i32::MAX));
    let mut tail = 0.0;
    for heads in 0..=cut {
        tail += term;
        term *= (rounds - heads) as f64 / (heads + 1) as f64;
    }
    1.0 - 2.0 * tail
}

/// The median of `statistic` over `groups` that are resampled with replacement, each within itself, and the percentile interval of 95 %
/// (Efron and Tibshirani, "An Introduction to the Bootstrap", chapter 13). It is for figures without an order statistic, such as the ratio
/// of the medians of two runs. None if a group is empty or `statistic` returns nothing finite for the original values.
///
/// With few values the interval is too narrow, so the `confidence` of [`estimate`] for the smallest group limits it.
///
/// `statistic` may reorder its input.
pub fn bootstrap(groups: &[&[f64]], seed: u64, statistic: impl Fn(&mut [Vec<f64>]) -> Option<f64>) -> Option<Estimate> {
    let mut drawn: Vec<Vec<f64>> = groups.iter().map(|group| group.to_vec()).collect();
    let rounds = groups.iter().map(|group| group.len()).min().filter(|&smallest| smallest > 0)?;
    let centre = statistic(&mut drawn).filter(|value| value.is_finite())?;
    let mut rng = Rng::new(seed);
    let mut outcomes = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        for (into, from) in drawn.iter_mut().zip(groups) {
            into.iter_mut().for_each(|value| *value = from[rng.below(from.len())]);
        }
        outcomes.extend(statistic(&mut drawn).filter(|value| value.is_finite()));
    }
    outcomes.sort_by(f64::total_cmp);
    let at = |share: f64| outcomes.get((outcomes.len().saturating_sub(1) as f64 * share).round() as usize).copied();
    let (low, high) = (at((1.0 - CONFIDENCE) / 2.0)?, at(f64::midpoint(1.0, CONFIDENCE))?);
    Some(Estimate {
        median: centre,
        // A skewed statistic may lie outside its own percentiles, but the interval must contain it.
        low: low.min(centre),
        high: high.max(centre),
        rounds,
        confidence: coverage(rounds, 0).min(CONFIDENCE),
    })
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `(median, low, high, confidence)` of the rounds 1, 2, ... `rounds`.
    #[track_caller]
    fn check(rounds: usize, expect: (f64, f64, f64, f64)) {
        // In reverse, because the order of rounds must not matter.
        let values: Vec<f64> = (1..=rounds).rev().map(|value| value as f64).collect();
        let got = estimate(&values).unwrap();
        assert_eq!((got.median, got.low, got.high), (expect.0, expect.1, expect.2), "{rounds} rounds");
        assert!((got.confidence - expect.3).abs() < 5e-4, "{rounds} rounds: {}", got.confidence);
    }

    #[test]
    fn intervals_are_those_of_the_binomial_table() {
        check(1, (1.0, 1.0, 1.0, 0.0));
        check(3, (2.0, 1.0, 3.0, 0.75));
        check(5, (3.0, 1.0, 5.0, 0.9375));
        check(6, (3.5, 1.0, 6.0, 0.9688));
        check(8, (4.5, 1.0, 8.0, 0.9922));
        check(9, (5.0, 2.0, 8.0, 0.9609));
        check(10, (5.5, 2.0, 9.0, 0.9785));
        check(20, (10.5, 6.0, 15.0, 0.9586));
        check(100, (50.5, 40.0, 61.0, 0.9648));
    }

    #[test]
    fn what_is_no_number_is_left_out() {
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&[f64::NAN]), None);
        assert_eq!(median(&[3.0, f64::INFINITY, 1.0]), Some(2.0));
    }

    /// A statement about many runs, so it is tested on many runs: the interval misses the true median about as often as it claims, and no
    /// more often.
    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        let mut rng = Rng::new(11);
        let missed = (0..4000)
            .filter(|_| {
                // Skewed on purpose, like times: the median of -ln(u) is ln 2.
                let values: Vec<f64> = (0..10).map(|_| -(1.0 - rng.unit()).ln()).collect();
                let got = estimate(&values).unwrap();
                !(got.low..=got.high).contains(&std::f64::consts::LN_2)
            })
            .count();
        // Expected: 2.15 % = 86 of 4,000; five standard deviations are 46.
        assert!((40..=132).contains(&missed), "{missed} of 4000 missed");
    }

    #[test]
    fn bootstrap_of_a_known_spread() {
        let values: Vec<f64> = (0..101).map(f64::from).collect();
        let mean = |drawn: &mut [Vec<f64>]| Some(drawn[0].iter().sum::<f64>() / drawn[0].len() as f64);
        let got = bootstrap(&[&values], 42, mean).unwrap();
        // The standard error of the mean is sqrt((101^2 - 1) / 12 / 101) = 2.90; 1.96 of them are 5.69.
        assert_eq!(got.median, 50.0);
        assert!((got.low - 44.3).abs() < 0.4 && (got.high - 55.7).abs() < 0.4, "{got:?}");
        assert_eq!(bootstrap(&[&values], 42, mean), Some(got), "seeded");
        assert_eq!(bootstrap(&[&values, &[]], 42, mean), None);
        assert!(!bootstrap(&[&[1.0, 2.0, 3.0]], 42, mean).unwrap().is_sure());
    }
}

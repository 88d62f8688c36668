//! Ratios between contenders, and when they count as different.

use serde::{Deserialize, Serialize};

use super::bootstrap::bounds_of_median;
use super::interval::{CONFIDENCE, Estimate, bootstrap, estimate, median_in_place};

/// Differences up to this never count, however quiet the host is: 1 %, the size of effects that come from the layout of code in memory
/// alone (Mytkowicz et al., "Producing Wrong Data Without Doing Anything Obviously Wrong!", ASPLOS 2009).
pub const NOISE_MIN: f64 = 0.01;

/// What a ratio shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    /// The whole interval lies above 1 plus the noise.
    More,
    /// The whole interval lies below 1 minus the noise.
    Less,
    /// The interval touches the noise around 1: no difference was shown, which does not mean that there is none.
    NotShown,
    /// Too few rounds for 95 %, whatever the ratio is.
    TooFewRounds,
}

/// The median of ratios, each of two measurements that were made within seconds of each other. Both met the same state of the host, so
/// variation from pair to pair cancels. None without a pair.
///
/// The interval is the bootstrap of the pairs, exact and without draws. With few pairs that is too narrow: of seven skewed values it misses
/// the true median 13 times in 100 (measured over 3,000 series). So each end is at least as far out as that of the order statistic, which
/// misses it as seldom as it claims.
pub fn ratio_of_pairs(ratios: &[f64]) -> Option<Estimate> {
    let mut sorted: Vec<f64> = ratios.iter().copied().filter(|ratio| ratio.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let by_order = estimate(&sorted)?;
    let (low, high) = bounds_of_median(&sorted, CONFIDENCE)?;
    Some(Estimate { low: low.min(by_order.low), high: high.max(by_order.high), ..by_order })
}

/// How far the interval of a ratio reaches from its median, as a share of the median; infinite for too few rounds.
pub fn half_width(ratio: &Estimate) -> f64 {
    if !ratio.is_sure() || ratio.median <= 0.0 {
        return f64::INFINITY;
    }
    (ratio.high / ratio.median - 1.0).max(1.0 - ratio.low / ratio.median)
}

/// The ratio of the medians of two runs with unrelated rounds, with a bootstrap interval.
pub fn unpaired_ratio(values: &[f64], references: &[f64], seed: u64) -> Option<Estimate> {
    let of_medians = |drawn: &mut [Vec<f64>]| match drawn {
        [values, references] => Some(median_in_place(values)? / median_in_place(references)?),
        _ => None,
    };
    bootstrap(&[values, references], seed, of_medians)
}

/// The smallest difference that a run can detect, as a share: how far the interval of a ratio between something and itself extends from 1,
/// and at least [`NOISE_MIN`].
pub fn noise_floor(same_over_same: &[Estimate]) -> f64 {
    let reach = |ratio: &Estimate| (ratio.high - 1.0).max(1.0 - ratio.low);
    same_over_same.iter().map(reach).fold(NOISE_MIN, f64::max)
}

/// Whether the whole interval of `ratio` lies outside `1 ± floor`.
pub fn differs(ratio: &Estimate, floor: f64) -> Difference {
    if !ratio.is_sure() {
        Difference::TooFewRounds
    } else if ratio.low > 1.0 + floor {
        Difference::More
    } else if ratio.high < 1.0 - floor {
        Difference::Less
    } else {
        Difference::NotShown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Rng;

    fn ratio(low: f64, high: f64, rounds: usize) -> Estimate {
        let confidence = if rounds >= 6 { 0.97 } else { 0.75 };
        Estimate { median: f64::midpoint(low, high), low, high, rounds, confidence }
    }

    #[test]
    fn different_only_outside_the_noise() {
        let check = |low, high, rounds, floor, expect| assert_eq!(differs(&ratio(low, high, rounds), floor), expect);
        check(1.02, 1.04, 10, 0.01, Difference::More);
        check(1.02, 1.04, 10, 0.03, Difference::NotShown);
        check(0.90, 0.96, 10, 0.03, Difference::Less);
        check(0.90, 0.99, 10, 0.01, Difference::NotShown);
        check(0.50, 2.00, 10, 0.01, Difference::NotShown);
        check(5.00, 5.01, 3, 0.01, Difference::TooFewRounds);
    }

    #[test]
    fn the_floor_is_the_widest_of_same_over_same() {
        assert_eq!(noise_floor(&[]), NOISE_MIN);
        assert_eq!(noise_floor(&[ratio(0.999, 1.001, 10)]), NOISE_MIN);
        assert!((noise_floor(&[ratio(0.98, 1.001, 10), ratio(0.995, 1.03, 10)]) - 0.03).abs() < 1e-12);
    }

    #[test]
    fn pairing_cancels_what_both_met() {
        // The host slows down by half over ten rounds, and one of the two costs 10 % more throughout.
        let slow: Vec<f64> = (0..10).map(|round| 100.0 + 5.0 * f64::from(round)).collect();
        let more: Vec<f64> = slow.iter().map(|value| value * 1.1).collect();
        let pairs: Vec<f64> = more.iter().zip(&slow).map(|(more, slow)| more / slow).collect();
        let got = ratio_of_pairs(&pairs).unwrap();
        assert!((got.low - 1.1).abs() < 1e-9 && (got.high - 1.1).abs() < 1e-9 && got.rounds == 10, "{got:?}");
        // What is no number is no pair.
        assert_eq!(ratio_of_pairs(&[1.0, f64::NAN, 2.0]).unwrap().rounds, 2);
        assert_eq!(ratio_of_pairs(&[]), None);
    }

    #[test]
    fn unpaired_rounds_carry_their_whole_spread() {
        let mut rng = Rng::new(3);
        let mut around = |centre: f64| -> Vec<f64> { (0..10).map(|_| centre * (0.95 + 0.1 * rng.unit())).collect() };
        let (one, same, other) = (around(100.0), around(100.0), around(130.0));
        assert_eq!(differs(&unpaired_ratio(&one, &same, 1).unwrap(), NOISE_MIN), Difference::NotShown);
        let apart = unpaired_ratio(&other, &one, 1).unwrap();
        assert_eq!(differs(&apart, NOISE_MIN), Difference::More);
        assert!(apart.low > 1.2 && apart.high < 1.4, "{apart:?}");
    }
}

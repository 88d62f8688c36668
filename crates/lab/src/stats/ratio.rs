//! Ratios between contenders, and when they count as different.

use serde::{Deserialize, Serialize};

use super::interval::{Estimate, bootstrap, estimate, median_in_place};

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

/// The median of `values[i] / references[i]` over the rounds that both have. Within a round both met the same state of the host, so
/// variation from round to round cancels. None if there is no such round.
pub fn paired_ratio(values: &[Option<f64>], references: &[Option<f64>]) -> Option<Estimate> {
    let both = values.iter().zip(references).filter_map(|(value, reference)| Some((*value)? / (*reference)?));
    estimate(&both.collect::<Vec<_>>())
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
        let slow: Vec<Option<f64>> = (0..10).map(|round| Some(100.0 + 5.0 * f64::from(round))).collect();
        let more: Vec<Option<f64>> = slow.iter().map(|value| value.map(|value| value * 1.1)).collect();
        let got = paired_ratio(&more, &slow).unwrap();
        assert!((got.low - 1.1).abs() < 1e-9 && (got.high - 1.1).abs() < 1e-9, "{got:?}");
        // A round that one of them lost does not count.
        let mut gap = more.clone();
        gap[3] = None;
        assert_eq!(paired_ratio(&gap, &slow).unwrap().rounds, 9);
        assert_eq!(paired_ratio(&[None], &[Some(1.0)]), None);
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

//! The exact bootstrap distribution of a median: what infinitely many resamples would give, without drawing one.
//!
//! Resampling `n` rounds with replacement and taking the median has finitely many outcomes, and their probabilities follow from the binomial
//! distribution (Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 1979, section 3; for an even number, from the
//! joint distribution of the two middle values). So the interval needs no seed, and is the same on every host.

/// The bounds between which the medians of resamples lie with probability `confidence`. `sorted` is ascending; `None` if it is empty.
pub(super) fn bounds_of_median(sorted: &[f64], confidence: f64) -> Option<(f64, f64)> {
    let mut outcomes = outcomes(sorted);
    outcomes.sort_by(|left, right| left.0.total_cmp(&right.0));
    let tail = (1.0 - confidence) / 2.0;
    let reaches = |share: f64| {
        let mut sum = 0.0;
        let found = outcomes.iter().find(|(_, probability)| {
            sum += probability;
            // Sums of probabilities are off by rounding in the last digits.
            sum >= share - 1e-12
        });
        found.or(outcomes.last()).map(|(value, _)| *value)
    };
    Some((reaches(tail)?, reaches(1.0 - tail)?))
}

/// Every possible median of a resample, with its probability.
fn outcomes(sorted: &[f64]) -> Vec<(f64, f64)> {
    let count = sorted.len();
    let middle = count / 2;
    if count % 2 == 1 {
        // P(the median is at most the i-th value): more than half of the draws are among the first i.
        let at_most = |place: usize| (middle + 1..=count).map(|draws| binomial(count, draws, place)).sum::<f64>();
        return sorted.iter().enumerate().map(|(place, &value)| (value, at_most(place + 1) - at_most(place))).collect();
    }
    let mut outcomes = Vec::new();
    for (low, &lower) in sorted.iter().enumerate() {
        // Both middle draws are the same value: fewer than half of the draws lie below it, and more than half at or below it. Where exactly half
        // lie at or below it, the upper one is another value.
        let fewer_than_half = |places: usize| (0..middle).map(|draws| binomial(count, draws, places)).sum::<f64>();
        let same = fewer_than_half(low) - fewer_than_half(low + 1) - halves(count, low, None);
        outcomes.push((lower, same.max(0.0)));
        for (high, &upper) in sorted.iter().enumerate().skip(low + 1) {
            outcomes.push((f64::midpoint(lower, upper), halves(count, low, Some(high))));
        }
    }
    outcomes
}

/// The probability that exactly half of the draws lie at or below the value at `low`, at least one at it, and the least of the others is at
/// `high`; with `None`, anywhere above `low`.
fn halves(count: usize, low: usize, high: Option<usize>) -> f64 {
    let (half, whole) = ((count / 2) as i32, count as f64);
    let share = |places: usize| (places as f64 / whole).powi(half);
    let lower = share(low + 1) - share(low);
    let upper = match high {
        Some(high) => share(count - high) - share(count - high - 1),
        None => share(count - low - 1),
    };
    choose(count, count / 2) * lower * upper
}

/// The probability that exactly `draws` of `count` draws are among the first `places` values.
fn binomial(count: usize, draws: usize, places: usize) -> f64 {
    let share = places as f64 / count as f64;
    choose(count, draws) * share.powi(draws as i32) * (1.0 - share).powi((count - draws) as i32)
}

fn choose(count: usize, draws: usize) -> f64 {
    (0..draws).fold(1.0, |product, step| product * (count - step) as f64 / (step + 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Rng, median};

    #[test]
    fn probabilities_are_those_of_many_resamples() {
        for count in [1, 2, 3, 6, 7, 10] {
            let values: Vec<f64> = (0..count).map(|place| f64::from(place * place)).collect();
            let exact = outcomes(&values);
            let all: f64 = exact.iter().map(|(_, probability)| probability).sum();
            assert!((all - 1.0).abs() < 1e-9, "{count} values: {all}");
            let mut rng = Rng::new(5);
            let drawn: Vec<f64> = (0..20_000)
                .filter_map(|_| median(&(0..count).map(|_| values[rng.below(count as usize)]).collect::<Vec<_>>()))
                .collect();
            for bound in [0.5, 4.0, 9.5, 30.0] {
                let expect: f64 = exact.iter().filter(|(value, _)| *value <= bound).map(|(_, share)| share).sum();
                let got = drawn.iter().filter(|value| **value <= bound).count() as f64 / drawn.len() as f64;
                // Four standard deviations of 20,000 draws are at most 1.4 %.
                assert!((got - expect).abs() < 0.015, "{count} values up to {bound}: {got}, not {expect}");
            }
        }
    }

    #[test]
    fn bounds_lie_within_the_values() {
        assert_eq!(bounds_of_median(&[], 0.95), None);
        assert_eq!(bounds_of_median(&[3.0], 0.95), Some((3.0, 3.0)));
        // P(the median of nine draws is at most the second value) = P(Bin(9, 2/9) >= 5) = 2.7 %.
        let nine: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(bounds_of_median(&nine, 0.95), Some((2.0, 8.0)));
        let (low, high) = bounds_of_median(&(0..101).map(f64::from).collect::<Vec<_>>(), 0.95).unwrap();
        assert!((39.0..=42.0).contains(&low) && (58.0..=61.0).contains(&high), "{low} {high}");
    }
}

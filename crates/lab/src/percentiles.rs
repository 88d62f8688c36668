//! Distributions given by some of their percentiles, such as `50=5ms,99=10ms`.
//!
//! There are two interpretations. [`Percentiles::exact`] interpolates linearly between neighbours, beginning at the value for 0 (or at the
//! smallest given value). [`Percentiles::strest`] does the same as strest-grpc: the value for 0 is always 0, lines are climbed in steps of
//! a whole per cent, and values are whole ms. With it, `100=10` is not 10 ms but 0 to 9, each equally likely.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::Rng;

/// The most percentiles of one distribution.
const POINTS_MAX: usize = 100;

/// A distribution of durations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Ascending, from 0 to 1,000 (per mille). The values are ascending too.
    points: Vec<(u32, Duration)>,
    reading: Reading,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Reading {
    Exact,
    Strest,
}

impl Percentiles {
    /// Reads `50=5ms,99=10ms`, for clap.
    pub(crate) fn exact(text: &str) -> Result<Self, String> {
        let points = points(text, crate::units::duration)?;
        let least = points.first().map(|&(_, value)| value).unwrap_or_default();
        Self::new(points, least, Reading::Exact)
    }

    /// Reads `50=5,99=10`, in ms, for clap. As in strest-grpc, a percentile over 100 is in tenths: 999 is 99.9.
    pub(crate) fn strest(text: &str) -> Result<Self, String> {
        let ms = |text: &str| {
            text.parse().map(Duration::from_millis).map_err(|_| format!("{text:?} is not a whole number of ms"))
        };
        let mut points = points(text, ms)?;
        points.retain(|&(per_mille, _)| per_mille > 0);
        Self::new(points, Duration::ZERO, Reading::Strest)
    }

    /// From a map with keys times ten; `None` if values decrease.
    pub(crate) fn from_strest_map(map: &std::collections::BTreeMap<i32, i64>) -> Option<Self> {
        let point = |(&key, &ms): (&i32, &i64)| {
            let per_mille = u32::try_from(key).ok().filter(|&key| key <= 1_000)?;
            Some((per_mille, Duration::from_millis(u64::try_from(ms).ok()?)))
        };
        let mut points = map.iter().map(point).collect::<Option<Vec<_>>>()?;
        points.retain(|&(per_mille, _)| per_mille > 0);
        Self::new(points, Duration::ZERO, Reading::Strest).ok()
    }

    /// The form of a `StreamingGet` call: keys times ten, whole ms.
    pub(crate) fn to_strest_map(&self) -> std::collections::BTreeMap<i32, i64> {
        self.points.iter().map(|&(per_mille, value)| (per_mille as i32, value.as_millis() as i64)).collect()
    }

    fn new(mut points: Vec<(u32, Duration)>, least: Duration, reading: Reading) -> Result<Self, String> {
        points.sort_unstable();
        if points.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err("a percentile is given twice".to_owned());
        }
        if points.first().is_none_or(|&(per_mille, _)| per_mille > 0) {
            points.insert(0, (0, least));
        }
        let greatest = points.last().map(|&(_, value)| value).unwrap_or_default();
        if points.last().is_some_and(|&(per_mille, _)| per_mille < 1_000) {
            points.push((1_000, greatest));
        }
        if points.windows(2).any(|pair| pair[0].1 > pair[1].1) {
            return Err("a higher percentile cannot have a smaller value than a lower one".to_owned());
        }
        Ok(Self { points, reading })
    }

    /// Draws a random value.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Duration {
        self.at(rng.below(1_000) as u32)
    }

    /// The value at a per mille below 1,000.
    fn at(&self, per_mille: u32) -> Duration {
        let above = self.points.partition_point(|&(point, _)| point <= per_mille);
        // Between the first point, which is 0, and the last, which is 1,000, there is always a pair.
        let (Some(&low), Some(&high)) = (self.points.get(above.wrapping_sub(1)), self.points.get(above)) else {
            return self.points.last().map(|&(_, value)| value).unwrap_or_default();
        };
        let (step, width) = (per_mille - low.0, high.0 - low.0);
        match self.reading {
            Reading::Exact => low.1 + (high.1 - low.1).mul_f64(f64::from(step) / f64::from(width)),
            Reading::Strest => {
                let increment_ms = (high.1 - low.1).as_millis() as f64 / (f64::from(width) / 10.0);
                low.1 + Duration::from_millis((f64::from(step / 10) * increment_ms) as u64)
            }
        }
    }
}

fn points(text: &str, value: impl Fn(&str) -> Result<Duration, String>) -> Result<Vec<(u32, Duration)>, String> {
    let points: Vec<_> = text.split(',').map(|item| point(item, &value)).collect::<Result<_, _>>()?;
    if points.len() > POINTS_MAX { Err(format!("more than {POINTS_MAX} percentiles")) } else { Ok(points) }
}

fn point(item: &str, value: impl Fn(&str) -> Result<Duration, String>) -> Result<(u32, Duration), String> {
    let (percent, text) = item.split_once('=').ok_or_else(|| format!("{item:?} has no =; write it like 99=10"))?;
    let number: f64 = percent.trim().parse().map_err(|_| format!("{percent:?} is not a percentile"))?;
    let per_mille = if number > 100.0 { number } else { number * 10.0 };
    if !(0.0..=1_000.0).contains(&per_mille) {
        return Err(format!("{percent} is not a percentile"));
    }
    Ok((per_mille.round() as u32, value(text.trim())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(distribution: Result<Percentiles, String>, expect_ms: &[(u32, f64)]) {
        let distribution = distribution.unwrap();
        for &(per_mille, ms) in expect_ms {
            let got = distribution.at(per_mille).as_secs_f64() * 1e3;
            assert!((got - ms).abs() < 1e-6, "{per_mille}: {got} ms instead of {ms}");
        }
    }

    #[test]
    fn exact_is_a_line() {
        check(Percentiles::exact("0=10ms,100=10ms"), &[(0, 10.0), (999, 10.0)]);
        check(Percentiles::exact("100=10ms"), &[(0, 10.0), (500, 10.0)]);
        check(
            Percentiles::exact("0=0ms,50=5ms,99=10ms"),
            &[(0, 0.0), (250, 2.5), (500, 5.0), (990, 10.0), (995, 10.0)],
        );
    }

    #[test]
    fn strest_starts_at_zero_and_climbs_in_whole_per_cents_and_ms() {
        check(Percentiles::strest("100=10"), &[(0, 0.0), (99, 0.0), (100, 1.0), (500, 5.0), (999, 9.0)]);
        check(Percentiles::strest("0=7,100=10"), &[(0, 0.0), (999, 9.0)]);
        check(Percentiles::strest("50=10,999=20"), &[(0, 0.0), (490, 9.0), (500, 10.0), (745, 14.0), (999, 20.0)]);
        let map = std::collections::BTreeMap::from([(1_000, 10)]);
        assert_eq!(Percentiles::from_strest_map(&map), Percentiles::strest("100=10").ok());
        assert_eq!(Percentiles::from_strest_map(&std::collections::BTreeMap::from([(1_000, -1)])), None);
    }

    #[test]
    fn refused() {
        for text in ["", "50", "50=", "x=1ms", "-1=1ms", "1001=1ms", "50=2ms,99=1ms", "50=1ms,50=2ms", "NaN=1ms"] {
            assert!(Percentiles::exact(text).is_err(), "{text}");
        }
        assert!(Percentiles::strest("50=1ms").is_err());
    }

    #[test]
    fn draws_reach_all_of_it() {
        let distribution = Percentiles::strest("100=10").unwrap();
        let mut rng = Rng::new(1);
        let drawn: std::collections::BTreeSet<u128> =
            (0..1_000).map(|_| distribution.draw(&mut rng).as_millis()).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    }
}

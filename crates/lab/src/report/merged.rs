//! The latencies of all rounds of a cell as one distribution.
//!
//! It adds histograms ([`Merged`]), which is the only way to combine latencies of several rounds; percentiles cannot be averaged. Intervals
//! come from the percentiles of single rounds instead.

use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;

use crate::record::Distribution;

/// All rounds of a cell.
pub(super) struct Merged {
    histogram: Histogram<u64>,
    unit_ns: u64,
}

impl Merged {
    /// None if there is no round, or if one has lost its histogram, as in a run without bulk: then they cannot be combined.
    pub(super) fn of<'a>(rounds: impl IntoIterator<Item = &'a Distribution>) -> Option<Self> {
        let mut merged: Option<Self> = None;
        for round in rounds {
            let (histogram, unit_ns) = (decoded(round.histogram.as_deref()?)?, round.histogram_unit_ns?);
            match &mut merged {
                None => merged = Some(Self { histogram, unit_ns }),
                Some(merged) if merged.unit_ns == unit_ns => merged.histogram.add(&histogram).ok()?,
                Some(_) => return None,
            }
        }
        merged
    }

    /// The time that `percent` of all values do not exceed, in µs. None if there are too few values: ten must lie above it.
    pub(super) fn percentile_us(&self, percent: f64) -> Option<f64> {
        let above = self.histogram.len() as f64 * (1.0 - percent / 100.0);
        let units = self.histogram.value_at_percentile(percent);
        (above >= ABOVE_MIN).then_some(units as f64 * self.unit_ns as f64 / 1e3)
    }
}

/// The values that must lie beyond a percentile.
const ABOVE_MIN: f64 = 10.0;

fn decoded(text: &str) -> Option<Histogram<u64>> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    Deserializer::new().deserialize(&mut bytes.as_slice()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

    fn round(values: impl Iterator<Item = u64>) -> Distribution {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        values.for_each(|value| histogram.record(value).unwrap());
        let mut bytes = Vec::new();
        V2DeflateSerializer::new().serialize(&histogram, &mut bytes).unwrap();
        let text = base64::engine::general_purpose::STANDARD.encode(bytes);
        Distribution { histogram: Some(text), histogram_unit_ns: Some(1000), ..Distribution::default() }
    }

    #[test]
    fn rounds_are_added_not_averaged() {
        // p90 of each round: 90 and 1,900. The mean of the two would be 995.
        let (fast, slow) = (round(1..=100), round((1..=100).map(|value| 1000 + 10 * value)));
        let merged = Merged::of([&fast, &slow]).unwrap();
        let got = merged.percentile_us(90.0).unwrap();
        assert!((got / 1800.0 - 1.0).abs() < 0.001, "{got}");
        assert_eq!(merged.percentile_us(99.0), None, "two values above are too few");
    }

    #[test]
    fn what_cannot_be_put_together() {
        let whole = round(1..=100);
        let without = Distribution { histogram: None, ..whole.clone() };
        let other_unit = Distribution { histogram_unit_ns: Some(1), ..whole.clone() };
        let garbage = Distribution { histogram: Some("HISTFAAA".into()), ..whole.clone() };
        assert!(Merged::of([]).is_none());
        for bad in [&without, &other_unit, &garbage] {
            assert!(Merged::of([&whole, bad]).is_none());
        }
    }
}

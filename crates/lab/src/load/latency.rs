//! Latencies: histograms that record them during a load, and a [`Distribution`] at the end.

use std::time::Duration;

use base64::Engine;
use hdrhistogram::serialization::{Deserializer as Decoder, Serializer as _, V2DeflateSerializer};
use hdrhistogram::{Counter, Histogram};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::record::Distribution;

/// The range of the histogram: from 100 ns, which is less than any exchange over loopback, to 5 minutes. Three significant digits mean an
/// error of at most 0.1 %. A histogram takes about 200 KiB.
const LOWEST_NS: u64 = 100;
const HIGHEST_NS: u64 = 300_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// The percentiles of a report: those of ab, plus the tail beyond 99.
const PERCENTILES: [f64; 10] = [50.0, 66.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.9, 99.99];

/// A histogram of durations. A duration outside its range counts at the nearest end of the range, so none is lost.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS);
        Self(bounds.expect("the constants above are valid bounds"))
    }
}

impl Latencies {
    /// Counts one duration.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The number of durations counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `percent` of the durations did not exceed; zero if there are none.
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    /// The figures of a report, including the whole histogram.
    ///
    /// The mean and the standard deviation are computed from the histogram, so they are only as precise as its buckets.
    pub fn distribution(&self) -> Distribution {
        if self.0.is_empty() {
            return Distribution::default();
        }
        let us = |ns: u64| ns as f64 / 1_000.0;
        Distribution {
            count: self.0.len(),
            min_us: us(self.0.min()),
            mean_us: self.0.mean() / 1_000.0,
            stdev_us: self.0.stdev() / 1_000.0,
            percentiles: PERCENTILES.map(|percent| (percent, us(self.0.value_at_percentile(percent)))).to_vec(),
            max_us: us(self.0.max()),
            histogram: self.encoded(),
            histogram_unit_ns: Some(1),
        }
    }

    /// Reads what [`distribution`](Self::distribution) encoded. `None` if it is not such a histogram.
    pub(crate) fn decode(text: &str) -> Option<Self> {
        decoded(text).map(Self)
    }

    /// The histogram in the format that other tools read: V2, deflated, in base64.
    fn encoded(&self) -> Option<String> {
        encoded(&self.0)
    }
}

fn encoded<T: Counter>(counts: &Histogram<T>) -> Option<String> {
    let mut bytes = Vec::new();
    // This cannot fail, because it writes to memory and the format supports these bounds.
    V2DeflateSerializer::new().serialize(counts, &mut bytes).ok()?;
    Some(base64::engine::general_purpose::STANDARD.encode(bytes))
}

fn decoded<T: Counter>(text: &str) -> Option<Histogram<T>> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
    let mut bytes = bytes.as_slice();
    Decoder::new().deserialize(&mut bytes).ok()
}

/// Reads a histogram into `own`, which is empty and keeps its bounds.
fn read_into<'de, T: Counter, D: Deserializer<'de>>(mut own: Histogram<T>, from: D) -> Result<Histogram<T>, D::Error> {
    let text = String::deserialize(from)?;
    let counts = decoded::<T>(&text).ok_or_else(|| D::Error::custom("this is no histogram"))?;
    own.add(&counts).map_err(D::Error::custom)?;
    Ok(own)
}

impl Serialize for Latencies {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&encoded(&self.0).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Latencies {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        read_into(Self::default().0, from).map(Self)
    }
}

impl Serialize for CoarseLatencies {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&encoded(&self.0).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for CoarseLatencies {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        read_into(Self::default().0, from).map(Self)
    }
}

/// A coarse histogram with two significant digits from 1 µs on. It takes about 12 KiB, because a load has one for each second.
#[derive(Clone, Debug)]
pub(super) struct CoarseLatencies(Histogram<u32>);

impl Default for CoarseLatencies {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(1_000, HIGHEST_NS, 2);
        Self(bounds.expect("the constants above are valid bounds"))
    }
}

impl CoarseLatencies {
    pub(super) fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// A percentile in µs; `None` if nothing was counted.
    pub(super) fn percentile_us(&self, percent: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_percentile(percent) as f64 / 1_000.0)
    }
}

/// The header of a table of distributions. The table is 80 columns wide, including the name of each row.
pub(super) fn columns() -> String {
    row("latency", ["min", "mean", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned))
}

/// A row of that table.
pub(super) fn in_columns(name: &str, distribution: &Distribution) -> String {
    let at = |percent| distribution.percentile_us(percent).unwrap_or_default();
    let Distribution { min_us, mean_us, max_us, .. } = *distribution;
    row(name, [min_us, mean_us, at(50.0), at(90.0), at(99.0), at(99.9), max_us].map(micros))
}

fn row(name: &str, figures: [String; 7]) -> String {
    let figures: String = figures.iter().map(|figure| format!("{figure:>10}")).collect();
    format!("{name:<10}{figures}")
}

/// Formats a time for people: `870 µs`, `1.52 ms`, `3.10 s`.
pub(crate) fn micros(us: f64) -> String {
    if us < 1_000.0 {
        format!("{us:.0} µs")
    } else if us < 1_000_000.0 {
        format!("{:.2} ms", us / 1_000.0)
    } else {
        format!("{:.2} s", us / 1_000_000.0)
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::serialization::Deserializer as Decoder;

    use super::*;

    #[test]
    fn percentiles_are_those_of_what_was_counted() {
        let (mut one, mut other) = (Latencies::default(), Latencies::default());
        for ms in 1..=50 {
            one.record(Duration::from_millis(ms));
            other.record(Duration::from_millis(ms + 50));
        }
        one.add(&other);
        assert_eq!(one.count(), 100);
        let distribution = one.distribution();
        for (percent, expect_ms) in [(50.0, 50.0), (66.0, 66.0), (99.0, 99.0), (99.99, 100.0)] {
            let got_ms = distribution.percentile_us(percent).unwrap() / 1e3;
            assert!((got_ms / expect_ms - 1.0).abs() < 0.001, "p{percent} is {got_ms} ms");
        }
        assert!((distribution.mean_us / 50_500.0 - 1.0).abs() < 0.001, "{distribution:?}");
        assert!((distribution.stdev_us / 28_866.0 - 1.0).abs() < 0.001, "{distribution:?}");
    }

    #[test]
    fn the_whole_histogram_can_be_read_again() {
        let mut latencies = Latencies::default();
        for us in [100, 200, 200, 5_000] {
            latencies.record(Duration::from_micros(us));
        }
        let text = latencies.distribution().histogram.unwrap();
        let bytes = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
        let again: Histogram<u64> = Decoder::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!(again, latencies.0);
    }

    #[test]
    fn histograms_pass_through_json_and_others_are_refused() {
        let (mut latencies, mut coarse) = (Latencies::default(), CoarseLatencies::default());
        for us in [100, 200, 5_000] {
            latencies.record(Duration::from_micros(us));
            coarse.record(Duration::from_micros(us));
        }
        let text = serde_json::to_string(&(&latencies, &coarse)).unwrap();
        let (again, coarse_again): (Latencies, CoarseLatencies) = serde_json::from_str(&text).unwrap();
        assert_eq!((again.0, coarse_again.0), (latencies.0.clone(), coarse.0));
        // Values beyond the bounds of ours.
        let mut wide = Histogram::<u64>::new_with_bounds(1, u64::MAX / 2, 2).unwrap();
        wide.record(u64::MAX / 4).unwrap();
        let wide = serde_json::to_string(&encoded(&wide).unwrap()).unwrap();
        for text in ["7", "\"\"", "\"AAAA\"", wide.as_str()] {
            assert!(serde_json::from_str::<Latencies>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_still_counted() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::MAX);
        assert_eq!(latencies.count(), 2);
        assert!(latencies.percentile(100.0) >= Duration::from_secs(299));
        assert_eq!(Latencies::default().distribution(), Distribution::default());
        assert_eq!(CoarseLatencies::default().percentile_us(50.0), None);
    }

    #[test]
    fn distributions_fit_a_terminal() {
        let mut latencies = Latencies::default();
        for us in [100, 1_000, 999_990, 99_990_000] {
            latencies.record(Duration::from_micros(us));
        }
        let row = in_columns("first byte", &latencies.distribution());
        assert_eq!((columns().chars().count(), row.chars().count()), (80, 80), "{row}");
        assert_eq!(columns(), "latency          min      mean       p50       p90       p99     p99.9       max");
        assert!(row.starts_with("first byte    100 µs   25.24 s   1.00 ms"), "{row}");
    }

    #[test]
    fn durations_for_people() {
        for (us, expect) in [(0.0, "0 µs"), (870.4, "870 µs"), (1_520.0, "1.52 ms"), (3_100_000.0, "3.10 s")] {
            assert_eq!(micros(us), expect);
        }
    }
}

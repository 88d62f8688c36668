//! Latencies: a histogram while they come, a [`Distribution`] when it is over.

use std::time::Duration;

use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};

use crate::record::Distribution;

/// From 100 ns (less than any loopback exchange) to 5 minutes, three significant digits: 0.1 % of the value, about 500 KiB.
const LOWEST_NS: u64 = 100;
const HIGHEST_NS: u64 = 300_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// The percentiles of a report: those of ab, and the tail beyond them.
const PERCENTILES: [f64; 10] = [50.0, 66.0, 75.0, 80.0, 90.0, 95.0, 98.0, 99.0, 99.9, 99.99];

/// A histogram of durations that never loses one: what lies outside its range is counted at the end of the range.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        let bounds = Histogram::new_with_bounds(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS);
        Self(bounds.expect("the constants above are valid bounds"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts all that `other` has counted.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `percent` of all did not exceed; zero when there was none.
    pub fn percentile(&self, percent: f64) -> Duration {
        Duration::from_nanos(self.0.value_at_percentile(percent))
    }

    /// The figures of a report, with the whole histogram in them.
    ///
    /// The mean is that of the histogram's values, so it is as coarse as they are.
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

    /// As other tools read it: V2, deflated, in base64.
    fn encoded(&self) -> Option<String> {
        let mut bytes = Vec::new();
        // Into memory, with bounds that the format knows: nothing is left that could fail.
        V2DeflateSerializer::new().serialize(&self.0, &mut bytes).ok()?;
        Some(base64::engine::general_purpose::STANDARD.encode(bytes))
    }
}

/// A coarse histogram: two significant digits from 1 µs on, about 12 KiB. There is one for each second of a load.
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

    /// In µs; `None` when nothing was counted.
    pub(super) fn percentile_us(&self, percent: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_percentile(percent) as f64 / 1_000.0)
    }
}

/// The columns of distributions in a table for people, 80 characters wide with the name of the row.
pub(super) fn columns() -> String {
    row("latency", ["min", "mean", "p50", "p90", "p99", "p99.9", "max"].map(str::to_owned))
}

/// The figures of one distribution under these columns.
pub(super) fn in_columns(name: &str, distribution: &Distribution) -> String {
    let at = |percent| distribution.percentile_us(percent).unwrap_or_default();
    let Distribution { min_us, mean_us, max_us, .. } = *distribution;
    row(name, [min_us, mean_us, at(50.0), at(90.0), at(99.0), at(99.9), max_us].map(micros))
}

fn row(name: &str, figures: [String; 7]) -> String {
    let figures: String = figures.iter().map(|figure| format!("{figure:>10}")).collect();
    format!("{name:<10}{figures}")
}

/// `870 µs`, `1.52 ms`, `3.1 s`: three digits that matter.
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
    use hdrhistogram::serialization::Deserializer;

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
        let again: Histogram<u64> = Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!(again, latencies.0);
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

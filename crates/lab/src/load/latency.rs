//! Latencies: a histogram while they come, percentiles when it is over.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

/// From 100 ns (less than any loopback exchange) to 5 minutes, three significant digits: 0.1 % of the value, about 500 KiB.
const LOWEST_NS: u64 = 100;
const HIGHEST_NS: u64 = 300_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

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

    /// The figures of a report.
    pub fn summary(&self) -> LatencySummary {
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |percent: f64| us(self.0.value_at_percentile(percent));
        LatencySummary {
            count: self.0.len(),
            min_us: us(if self.0.is_empty() { 0 } else { self.0.min() }),
            mean_us: self.0.mean() / 1000.0,
            p50_us: at(50.0),
            p75_us: at(75.0),
            p90_us: at(90.0),
            p99_us: at(99.0),
            p999_us: at(99.9),
            max_us: us(self.0.max()),
        }
    }
}

/// Percentiles in microseconds; all zero when nothing was counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each name says what it is")]
pub struct LatencySummary {
    pub count: u64,
    pub min_us: f64,
    pub mean_us: f64,
    pub p50_us: f64,
    pub p75_us: f64,
    pub p90_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    pub max_us: f64,
}

impl std::fmt::Display for LatencySummary {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            to,
            "min {}  mean {}  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
            micros(self.min_us),
            micros(self.mean_us),
            micros(self.p50_us),
            micros(self.p90_us),
            micros(self.p99_us),
            micros(self.p999_us),
            micros(self.max_us)
        )
    }
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
        for (percent, expect_ms) in [(50.0, 50.0), (99.0, 99.0), (100.0, 100.0)] {
            let got_ms = one.percentile(percent).as_secs_f64() * 1e3;
            assert!((got_ms / expect_ms - 1.0).abs() < 0.001, "p{percent} is {got_ms} ms");
        }
    }

    #[test]
    fn what_is_out_of_range_is_still_counted() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::ZERO);
        latencies.record(Duration::MAX);
        assert_eq!(latencies.count(), 2);
        assert!(latencies.percentile(100.0) >= Duration::from_secs(299));
        assert_eq!(Latencies::default().summary().max_us, 0.0);
    }

    #[test]
    fn durations_for_people() {
        for (us, expect) in [(0.0, "0 µs"), (870.4, "870 µs"), (1_520.0, "1.52 ms"), (3_100_000.0, "3.10 s")] {
            assert_eq!(micros(us), expect);
        }
    }
}

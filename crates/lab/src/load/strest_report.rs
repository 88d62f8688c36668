//! A report in the format of strest-grpc's final report, for scripts that read it.
//!
//! The figures have strest-grpc's names and are in milliseconds. Two of them differ: `p999` is the 99.9th percentile here and the maximum
//! there; the jitter of replies within a stream is not measured here and is omitted. Two are additional: the achieved rate, and the
//! latencies from when calls were due.

use serde::Serialize;

use super::report::LoadReport;
use crate::record::Distribution;

/// The fields of strest-grpc's final report.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct StrestReport {
    /// Calls that succeeded.
    good: u64,
    /// Calls that failed.
    bad: u64,
    /// Bytes received.
    bytes: u64,
    /// The latency from when calls were sent.
    latency: Option<Milliseconds>,
    /// The latency from when calls were due; only for an open loop.
    response: Option<Milliseconds>,
    /// Successful calls per second.
    achieved_rps: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Milliseconds {
    p50: f64,
    p75: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl StrestReport {
    pub(super) fn of(report: &LoadReport) -> Self {
        Self {
            good: report.ok,
            bad: report.failures(),
            bytes: report.received_bytes,
            latency: report.service.as_ref().map(milliseconds),
            response: report.response.as_ref().map(milliseconds),
            achieved_rps: report.ok_per_s,
        }
    }
}

fn milliseconds(latency: &Distribution) -> Milliseconds {
    let at = |percent| latency.percentile_us(percent).unwrap_or_default() / 1e3;
    Milliseconds {
        p50: at(50.0),
        p75: at(75.0),
        p90: at(90.0),
        p95: at(95.0),
        p99: at(99.0),
        p999: at(99.9),
        max: latency.max_us / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_units_are_those_of_strest() {
        let latency = Distribution {
            count: 2,
            percentiles: vec![
                (50.0, 5_400.0),
                (75.0, 7_500.0),
                (90.0, 9_400.0),
                (95.0, 9_500.0),
                (99.0, 9_600.0),
                (99.9, 12_000.0),
            ],
            max_us: 20_000.0,
            ..Distribution::default()
        };
        let text = serde_json::to_string(&milliseconds(&latency)).unwrap();
        assert_eq!(text, r#"{"p50":5.4,"p75":7.5,"p90":9.4,"p95":9.5,"p99":9.6,"p999":12.0,"max":20.0}"#);
    }
}

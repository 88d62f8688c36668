//! Metrics as Prometheus's protobuf has them (`io/prometheus/client/metrics.proto`, each family with its length before it), which is the only
//! format with native histograms.

use prost::Message;

use crate::exemplar::Exemplar as Sampled;
use crate::histogram::Distribution;

/// The resolution of native histograms: each power of two of a second has two buckets, as each power of two of a microsecond has in the counters.
const SCHEMA: i32 = 1;

/// The index of the first native bucket above a microsecond, and of the one that takes what is above the last bound of the counters (67 s).
const FIRST: i32 = -39;
const LAST: i32 = 14;

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// A `Counter` or a `Gauge`.
#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    sample_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sample_sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<ClassicBucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<BucketSpan>,
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ClassicBucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
    #[prost(message, optional, tag = "3")]
    exemplar: Option<Exemplar>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketSpan {
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Exemplar {
    #[prost(message, repeated, tag = "1")]
    label: Vec<LabelPair>,
    #[prost(double, optional, tag = "2")]
    value: Option<f64>,
    #[prost(message, optional, tag = "3")]
    timestamp: Option<Timestamp>,
}

#[derive(Clone, PartialEq, Message)]
struct Timestamp {
    #[prost(uint64, optional, tag = "1")]
    seconds: Option<u64>,
    #[prost(uint32, optional, tag = "2")]
    nanos: Option<u32>,
}

/// The families of metrics, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Families {
    out: Vec<u8>,
    /// The one that is being written.
    family: Option<MetricFamily>,
}

/// A bucket of a classic histogram.
pub(crate) struct Bucket<'e> {
    /// Infinite for the last one.
    pub(crate) le: f64,
    pub(crate) count: u64,
    pub(crate) exemplar: Option<&'e Sampled>,
}

/// `MetricType`.
const COUNTER: i32 = 0;
const GAUGE: i32 = 1;
const HISTOGRAM: i32 = 4;

impl Families {
    /// Begins a family. `kind`: `counter`, `gauge` or `histogram`.
    pub(crate) fn head(&mut self, name: &str, help: &str, kind: &'static str) {
        self.end();
        let kind = match kind {
            "counter" => COUNTER,
            "gauge" => GAUGE,
            _ => HISTOGRAM,
        };
        let (name, help) = (Some(name.to_owned()), Some(help.to_owned()));
        self.family = Some(MetricFamily { name, help, kind: Some(kind), metric: Vec::new() });
    }

    /// Adds a counter or a gauge.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let Some(family) = &mut self.family else { return };
        let number = Some(Number { value: Some(value) });
        let label = self::labels(labels);
        family.metric.push(match family.kind {
            Some(COUNTER) => Metric { label, counter: number, ..Metric::default() },
            _ => Metric { label, gauge: number, ..Metric::default() },
        });
    }

    /// Adds a histogram, with classic and native buckets.
    pub(crate) fn histogram(&mut self, labels: &[(&str, &str)], distribution: &Distribution, buckets: &[Bucket<'_>]) {
        let Some(family) = &mut self.family else { return };
        let bucket = |Bucket { le, count, exemplar }: &Bucket<'_>| ClassicBucket {
            cumulative_count: Some(*count),
            upper_bound: Some(*le),
            exemplar: exemplar.map(self::exemplar),
        };
        let histogram = Histogram {
            sample_count: Some(distribution.count()),
            sample_sum: Some(distribution.sum_us as f64 / 1e6),
            bucket: buckets.iter().map(bucket).collect(),
            ..native(distribution)
        };
        let histogram = Some(histogram);
        family.metric.push(Metric { label: self::labels(labels), histogram, ..Metric::default() });
    }

    /// The whole page.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.end();
        self.out
    }

    fn end(&mut self) {
        if let Some(family) = self.family.take() {
            // Writing to a Vec does not fail.
            let _ = family.encode_length_delimited(&mut self.out);
        }
    }
}

/// The native part of a histogram. Durations of up to a microsecond are in the zero bucket. The bounds of the other buckets are powers of the
/// square root of two in seconds, and lie within those of the counters, whose durations are taken to be spread evenly.
fn native(distribution: &Distribution) -> Histogram {
    let zero = distribution.at_most(1);
    let mut below = zero;
    let counts: Vec<u64> = (FIRST..=LAST)
        .map(|index| {
            let until = match index {
                LAST => distribution.count(),
                index => distribution.estimate_at_most(f64::powf(2.0, f64::from(index) / 2.0) * 1e6),
            };
            let here = until.saturating_sub(below);
            below = below.max(until);
            here
        })
        .collect();
    // A span of no buckets says that this is a native histogram.
    let (mut span, mut deltas) = (BucketSpan { offset: Some(0), length: Some(0) }, Vec::new());
    if let Some(first) = counts.iter().position(|count| *count > 0) {
        let last = counts.iter().rposition(|count| *count > 0).unwrap_or(first);
        let used = counts.get(first..=last).unwrap_or_default();
        span = BucketSpan { offset: Some(FIRST + first as i32), length: Some(used.len() as u32) };
        let mut before = 0;
        for count in used {
            deltas.push(*count as i64 - before);
            before = *count as i64;
        }
    }
    Histogram {
        schema: Some(SCHEMA),
        zero_threshold: Some(1e-6),
        zero_count: Some(zero),
        positive_span: vec![span],
        positive_delta: deltas,
        ..Histogram::default()
    }
}

fn exemplar(exemplar: &Sampled) -> Exemplar {
    let Sampled { trace_id, us, unix_ms } = exemplar;
    let id = format!("{:032x}", u128::from_be_bytes(*trace_id));
    let nanos = (unix_ms % 1000 * 1_000_000) as u32;
    Exemplar {
        label: labels(&[("trace_id", &id)]),
        value: Some(*us as f64 / 1e6),
        timestamp: Some(Timestamp { seconds: Some(unix_ms / 1000), nanos: Some(nanos) }),
    }
}

fn labels(labels: &[(&str, &str)]) -> Vec<LabelPair> {
    let pair =
        |(name, value): &(&str, &str)| LabelPair { name: Some((*name).to_owned()), value: Some((*value).to_owned()) };
    labels.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_buckets_have_every_duration() {
        let histogram = crate::Histogram::default();
        let durations = [0, 1, 2, 3, 900, 1_000, 1_000_000, 2_000_000, u64::MAX];
        durations.into_iter().for_each(|us| histogram.record(us));
        let mut distribution = Distribution::default();
        histogram.add_to(&mut distribution);
        let Histogram { zero_count, positive_span, positive_delta, .. } = native(&distribution);
        assert_eq!(zero_count, Some(2));
        let BucketSpan { offset, length } = positive_span[0];
        let (offset, length) = (i64::from(offset.unwrap()), u64::from(length.unwrap()));
        let (mut count, mut counts) = (0, Vec::new());
        for delta in positive_delta {
            count += delta;
            counts.push(count);
        }
        assert_eq!(counts.len() as u64, length);
        assert_eq!(counts.iter().sum::<i64>(), durations.len() as i64 - 2);
        assert_eq!((offset + length as i64 - 1, counts.last()), (i64::from(LAST), Some(&1)));
        // A second lies at the bound of the bucket 0, and two of the bucket 2; the counters do not know on which side.
        let at = |index: i64| counts[(index - offset) as usize];
        assert_eq!([at(0) + at(1), at(2) + at(3)], [1, 1]);
    }

    #[test]
    fn families() {
        let mut families = Families::default();
        families.head("a_total", "Things.", "counter");
        families.sample(&[("b", "c")], 2.0);
        families.head("g", "", "gauge");
        families.sample(&[], 1.0);
        let out = families.finish();
        let expect = b"\x29\x0a\x07a_total\x12\x07Things.\x18\x00\x22\x13\x0a\x06\x0a\x01b\x12\x01c\x1a\x09\x09\0\0\0\0\0\0\0\x40";
        assert_eq!(out[..1 + 0x29], expect[..]);
        assert_eq!(out.len(), 1 + 0x29 + 1 + out[1 + 0x29] as usize);
    }
}

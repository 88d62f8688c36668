//! Metrics as Prometheus's protobuf has them (`io/prometheus/client/metrics.proto`, each family with its length before it), which is the only
//! format with native histograms.

use crate::exemplar::Exemplar;
use crate::histogram::Distribution;

/// The resolution of native histograms: each power of two of a second has two buckets, as each power of two of a microsecond has in the counters.
const SCHEMA: i64 = 1;

/// The index of the first native bucket above a microsecond, and of the one that takes what is above the last bound of the counters (67 s).
const FIRST: i32 = -39;
const LAST: i32 = 14;

/// The families of metrics, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Families {
    out: Vec<u8>,
    /// The metrics of the family that is being written, after its head.
    family: Vec<u8>,
    kind: &'static str,
}

/// A bucket of a classic histogram.
pub(crate) struct Bucket<'e> {
    /// Infinite for the last one.
    pub(crate) le: f64,
    pub(crate) count: u64,
    pub(crate) exemplar: Option<&'e Exemplar>,
}

impl Families {
    /// Begins a family. `kind`: `counter`, `gauge` or `histogram`.
    pub(crate) fn head(&mut self, name: &str, help: &str, kind: &'static str) {
        self.end();
        self.kind = kind;
        bytes(&mut self.family, 1, name.as_bytes());
        bytes(&mut self.family, 2, help.as_bytes());
        let number = match kind {
            "counter" => 0,
            "gauge" => 1,
            _ => 4,
        };
        integer(&mut self.family, 3, number);
    }

    /// Adds a counter or a gauge.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let mut metric = self::labels(labels);
        let mut number = Vec::with_capacity(9);
        double(&mut number, 1, value);
        bytes(&mut metric, if self.kind == "counter" { 3 } else { 2 }, &number);
        bytes(&mut self.family, 4, &metric);
    }

    /// Adds a histogram, with classic and native buckets.
    pub(crate) fn histogram(&mut self, labels: &[(&str, &str)], distribution: &Distribution, buckets: &[Bucket<'_>]) {
        let mut histogram = Vec::new();
        integer(&mut histogram, 1, distribution.count());
        double(&mut histogram, 2, distribution.sum_us as f64 / 1e6);
        for Bucket { le, count, exemplar } in buckets {
            let mut bucket = Vec::new();
            integer(&mut bucket, 1, *count);
            double(&mut bucket, 2, *le);
            if let Some(exemplar) = exemplar {
                bytes(&mut bucket, 3, &self::exemplar(exemplar));
            }
            bytes(&mut histogram, 3, &bucket);
        }
        native(&mut histogram, distribution);
        let mut metric = self::labels(labels);
        bytes(&mut metric, 7, &histogram);
        bytes(&mut self.family, 4, &metric);
    }

    /// The whole page.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.end();
        self.out
    }

    fn end(&mut self) {
        if !self.family.is_empty() {
            varint(&mut self.out, self.family.len() as u64);
            self.out.append(&mut self.family);
        }
    }
}

/// Appends the native part of a histogram. Durations of up to a microsecond are in the zero bucket. The bounds of the other buckets are powers of
/// the square root of two in seconds, and lie within those of the counters, whose durations are taken to be spread evenly.
fn native(histogram: &mut Vec<u8>, distribution: &Distribution) {
    integer(histogram, 5, zigzag(SCHEMA));
    double(histogram, 6, 1e-6);
    let zero = distribution.at_most(1);
    integer(histogram, 7, zero);
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
    let Some(first) = counts.iter().position(|count| *count > 0) else {
        // A span of no buckets says that this is a native histogram.
        return bytes(histogram, 12, &span(0, 0));
    };
    let last = counts.iter().rposition(|count| *count > 0).unwrap_or(first);
    let used = counts.get(first..=last).unwrap_or_default();
    bytes(histogram, 12, &span(i64::from(FIRST) + first as i64, used.len() as u64));
    let mut before = 0;
    for count in used {
        integer(histogram, 13, zigzag(*count as i64 - before));
        before = *count as i64;
    }
}

fn span(offset: i64, length: u64) -> Vec<u8> {
    let mut out = Vec::new();
    integer(&mut out, 1, zigzag(offset));
    integer(&mut out, 2, length);
    out
}

fn exemplar(exemplar: &Exemplar) -> Vec<u8> {
    let Exemplar { trace_id, us, unix_ms } = exemplar;
    let id = format!("{:032x}", u128::from_be_bytes(*trace_id));
    let mut out = self::labels(&[("trace_id", &id)]);
    double(&mut out, 2, *us as f64 / 1e6);
    let mut timestamp = Vec::new();
    integer(&mut timestamp, 1, unix_ms / 1000);
    integer(&mut timestamp, 2, unix_ms % 1000 * 1_000_000);
    bytes(&mut out, 3, &timestamp);
    out
}

/// Pairs of a name and a value, as the first field of a message.
fn labels(labels: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in labels {
        let mut pair = Vec::with_capacity(name.len() + value.len() + 8);
        bytes(&mut pair, 1, name.as_bytes());
        bytes(&mut pair, 2, value.as_bytes());
        bytes(&mut out, 1, &pair);
    }
    out
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn integer(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn double(out: &mut Vec<u8>, field: u64, value: f64) {
    varint(out, field << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Of `sint32` and `sint64`.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a message: numbers, and what they hold.
    fn fields(mut rest: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn number(rest: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let (byte, after) = rest.split_first().unwrap();
                *rest = after;
                value |= u64::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
            }
            value
        }
        let mut found = Vec::new();
        while !rest.is_empty() {
            let key = number(&mut rest);
            let length = match key & 7 {
                0 => {
                    found.push((key >> 3, number(&mut rest).to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                _ => number(&mut rest) as usize,
            };
            let (value, after) = rest.split_at(length);
            found.push((key >> 3, value.to_vec()));
            rest = after;
        }
        found
    }

    #[test]
    fn native_buckets_have_every_duration() {
        let histogram = crate::Histogram::default();
        let durations = [0, 1, 2, 3, 900, 1_000, 1_000_000, 2_000_000, u64::MAX];
        durations.into_iter().for_each(|us| histogram.record(us));
        let mut distribution = Distribution::default();
        histogram.add_to(&mut distribution);
        let mut out = Vec::new();
        native(&mut out, &distribution);
        let fields = fields(&out);
        let integer = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let signed = |value: u64| (value >> 1) as i64 ^ -((value & 1) as i64);
        let zero = fields.iter().find(|(field, _)| *field == 7).map(|(_, value)| integer(value)).unwrap();
        assert_eq!(zero, 2);
        let span = self::fields(&fields.iter().find(|(field, _)| *field == 12).unwrap().1);
        let (offset, length) = (signed(integer(&span[0].1)), integer(&span[1].1));
        let (mut count, mut counts) = (0, Vec::new());
        for (_, delta) in fields.iter().filter(|(field, _)| *field == 13) {
            count += signed(integer(delta));
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

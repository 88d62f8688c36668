//! Which records are logged, and what is looked up for them. Workers ask this, so it is cheap: the usual log has one flag.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;

use model::{AccessLog, LogFormat, LogHeader, LogTarget, LogValue};

use super::Record;
use super::entry::{is_error, path};
use crate::reason::Reason;

/// What is logged of a header that may have a secret.
const REDACTED: &[u8] = b"[redacted]";

/// Headers whose values are addresses of pages, and may have a query.
const WITH_QUERIES: [&str; 7] =
    ["referer", "location", "content-location", "refresh", "x-original-url", "x-original-uri", "x-forwarded-uri"];

/// The rules of a log.
#[derive(Debug)]
pub(super) struct Rules {
    /// Every record is written as it is, and nothing is looked up.
    pub(super) is_usual: bool,
    /// In the order of the extras of a batch.
    pub(super) extras: Vec<LogValue>,
    routes: HashSet<String>,
    except_routes: HashSet<String>,
    has_conditions: bool,
    statuses: Vec<RangeInclusive<u16>>,
    slower_than_us: u64,
    reasons: Vec<Reason>,
    retried: bool,
    sampling: f64,
    pub(super) query: bool,
}

/// Random numbers for samples (xorshift64*). Nobody gains from guessing them.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new() -> Self {
        // Not zero.
        Self(RandomState::new().hash_one(0) | 1)
    }

    /// Whether a share of records has this one.
    fn is_in(&mut self, share: f64) -> bool {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        // 53 bits are what the share has.
        ((self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64) < share * (1_u64 << 53) as f64
    }
}

impl Rules {
    pub(super) fn new(log: &AccessLog) -> Self {
        let AccessLog { target, format, filter, sampling, query } = log;
        let mut extras: Vec<LogValue> = format.values().into_iter().filter(|value| value.is_extra()).cloned().collect();
        if let (LogTarget::Otlp(_), _) | (_, LogFormat::Attributes(_)) = (target, format) {
            extras.extend([LogValue::TraceId, LogValue::SpanId]);
        }
        extras.sort();
        extras.dedup();
        let conditions = &filter.conditions;
        let is_wanted =
            |reason: &&Reason| conditions.any_reason || conditions.reasons.iter().any(|wanted| wanted == reason.name());
        Self {
            is_usual: extras.is_empty() && *filter == model::LogFilter::default() && *sampling >= 1.0 && *query,
            extras,
            routes: filter.routes.iter().cloned().collect(),
            except_routes: filter.except_routes.iter().cloned().collect(),
            has_conditions: !conditions.is_empty(),
            statuses: conditions.statuses.clone(),
            slower_than_us: conditions
                .slower_than
                .map_or(u64::MAX, |least| u64::try_from(least.as_micros()).unwrap_or(u64::MAX)),
            reasons: Reason::ALL.iter().filter(is_wanted).copied().collect(),
            retried: conditions.retried,
            sampling: *sampling,
            query: *query,
        }
    }

    /// Whether this record is logged.
    pub(super) fn take(&self, record: &Record<'_>, random: &mut Random) -> bool {
        let route = record.http.map_or("", |http| http.route);
        if !self.routes.is_empty() && !self.routes.contains(route) || self.except_routes.contains(route) {
            return false;
        }
        if self.has_conditions && !self.meets_one(record) {
            return false;
        }
        self.sampling >= 1.0 || is_error(record) || random.is_in(self.sampling)
    }

    fn meets_one(&self, record: &Record<'_>) -> bool {
        let status = record.http.map_or(0, |http| http.status);
        self.statuses.iter().any(|range| range.contains(&status))
            || record.total_us > self.slower_than_us
            || self.retried && record.attempts > 1
            || record.reason.is_some_and(|reason| self.reasons.contains(&reason))
    }

    /// The target as it is logged.
    pub(super) fn target<'t>(&self, target: &'t [u8]) -> &'t [u8] {
        if self.query { target } else { path(target) }
    }

    /// Changes a value that was appended to `out` at `begin` to what is logged of it.
    pub(super) fn hide(&self, value: &LogValue, begin: usize, out: &mut Vec<u8>) {
        let (LogValue::RequestHeader(header) | LogValue::ResponseHeader(header)) = value else { return };
        let LogHeader { name, is_secret } = header;
        if *is_secret {
            out.truncate(begin);
            out.extend_from_slice(REDACTED);
        } else if !self.query && WITH_QUERIES.contains(&name.as_str()) {
            let length = out.get(begin..).map_or(0, |value| path(value).len());
            out.truncate(begin + length);
        }
    }
}

//! What an HTTP load met.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::latency::{Latencies, LatencySummary};

/// Names of origins that are told apart; further ones are counted together as `other`.
const ORIGINS_MAX: usize = 64;

/// What one thread counts, and after [`Tally::add`] what all did.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub latencies: Latencies,
    /// From the actual send; in an open loop only.
    pub service_latencies: Option<Latencies>,
    pub statuses: Vec<(u16, u64)>,
    pub connect_errors: u64,
    pub request_errors: u64,
    pub timeouts: u64,
    pub reconnects: u64,
    pub resent: u64,
    pub unsent: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// When the last connection had its last answer.
    pub end: Option<Instant>,
    /// Answers by `x-origin`, before and after the mark.
    pub origins: [Vec<(Box<[u8]>, u64)>; 2],
}

impl Tally {
    pub(super) fn count_status(&mut self, status: u16, count: u64) {
        match self.statuses.iter_mut().find(|(known, _)| *known == status) {
            Some((_, total)) => *total += count,
            None => self.statuses.push((status, count)),
        }
    }

    pub(super) fn count_origin(&mut self, is_after_mark: bool, name: &[u8], count: u64) {
        let origins = &mut self.origins[usize::from(is_after_mark)];
        let is_full = origins.len() >= ORIGINS_MAX;
        let name = if is_full && !origins.iter().any(|(known, _)| **known == *name) { b"other" } else { name };
        match origins.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, total)) => *total += count,
            None => origins.push((name.into(), count)),
        }
    }

    pub(super) fn ended_at(&mut self, end: Instant) {
        self.end = self.end.max(Some(end));
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.end = self.end.max(other.end);
        self.latencies.add(&other.latencies);
        if let Some(service) = &other.service_latencies {
            self.service_latencies.get_or_insert_default().add(service);
        }
        for &(status, count) in &other.statuses {
            self.count_status(status, count);
        }
        self.connect_errors += other.connect_errors;
        self.request_errors += other.request_errors;
        self.timeouts += other.timeouts;
        self.reconnects += other.reconnects;
        self.resent += other.resent;
        self.unsent += other.unsent;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        for (is_after_mark, origins) in [false, true].into_iter().zip(&other.origins) {
            for (name, count) in origins {
                self.count_origin(is_after_mark, name, *count);
            }
        }
    }
}

/// What an HTTP load met. Every request that was begun is in exactly one of `answers`, `connect_errors`, `request_errors`, `timeouts`.
#[derive(Clone, Debug, Serialize)]
pub struct HttpReport {
    /// Of this form, as JSON; it changes when a field changes its meaning or goes.
    pub version: u32,
    /// From the first connect to the last answer.
    #[serde(rename = "elapsed_s", serialize_with = "seconds")]
    pub elapsed: Duration,
    /// Requests that were answered, whatever the status.
    pub answers: u64,
    /// Answers per second.
    pub rps: f64,
    /// Answers with a status outside 200 to 299.
    pub non_2xx: u64,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Requests for which no connection could be made.
    pub connect_errors: u64,
    /// Requests whose connection broke, or whose answer was no HTTP.
    pub request_errors: u64,
    /// Requests without a whole answer in time.
    pub timeouts: u64,
    /// Connections made again because the other side had closed one that was kept alive, or said that it would.
    pub reconnects: u64,
    /// Requests sent again on a new connection because the old one closed without a byte of an answer; idempotent ones only.
    pub resent: u64,
    /// Open loop only: requests that were due and could not be sent before the end, every connection being busy.
    pub unsent: u64,
    /// Bytes of answers, heads included.
    pub received_bytes: u64,
    /// Bytes of requests, heads included.
    pub sent_bytes: u64,
    /// Closed loop: from the send to the end of the answer. Open loop: from when the request was due, so that a stall counts for
    /// everybody it would have kept waiting.
    pub latency: LatencySummary,
    /// Open loop only: from the actual send, which is what a closed loop would have seen.
    pub service_latency: Option<LatencySummary>,
    /// The whole distribution behind `latency`.
    #[serde(skip)]
    pub latencies: Latencies,
    /// Answers by `x-origin`, before the mark.
    pub origins: BTreeMap<String, u64>,
    /// Answers by `x-origin`, after the mark.
    pub origins_after_mark: BTreeMap<String, u64>,
}

impl HttpReport {
    pub(super) fn new(tally: &Tally, elapsed: Duration) -> Self {
        let answers = tally.statuses.iter().map(|(_, count)| count).sum::<u64>();
        let good = tally
            .statuses
            .iter()
            .filter(|(status, _)| (200..300).contains(status))
            .map(|(_, count)| count)
            .sum::<u64>();
        let [before, after] = tally.origins.each_ref().map(|origins| {
            origins.iter().map(|(name, count)| (String::from_utf8_lossy(name).into_owned(), *count)).collect()
        });
        Self {
            version: 1,
            elapsed,
            answers,
            rps: per_second(answers, elapsed),
            non_2xx: answers - good,
            statuses: tally.statuses.iter().copied().collect(),
            connect_errors: tally.connect_errors,
            request_errors: tally.request_errors,
            timeouts: tally.timeouts,
            reconnects: tally.reconnects,
            resent: tally.resent,
            unsent: tally.unsent,
            received_bytes: tally.received_bytes,
            sent_bytes: tally.sent_bytes,
            latency: tally.latencies.summary(),
            latencies: tally.latencies.clone(),
            service_latency: tally.service_latencies.as_ref().map(Latencies::summary),
            origins: before,
            origins_after_mark: after,
        }
    }

    /// Requests that were begun.
    pub fn requests(&self) -> u64 {
        self.answers + self.connect_errors + self.request_errors + self.timeouts
    }

    /// Requests without an answer, and answers outside 200 to 299.
    pub fn failures(&self) -> u64 {
        self.connect_errors + self.request_errors + self.timeouts + self.non_2xx
    }
}

impl fmt::Display for HttpReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "answers     {} in {:.2} s, {:.0}/s", self.answers, self.elapsed.as_secs_f64(), self.rps)?;
        writeln!(
            to,
            "failed      connect {}  request {}  timed out {}  not 2xx {}",
            self.connect_errors, self.request_errors, self.timeouts, self.non_2xx
        )?;
        if self.non_2xx > 0 {
            let statuses: Vec<_> = self.statuses.iter().map(|(status, count)| format!("{status} x {count}")).collect();
            writeln!(to, "statuses    {}", statuses.join("  "))?;
        }
        if self.reconnects + self.resent > 0 {
            writeln!(to, "reconnects  {}, of which {} with the request sent again", self.reconnects, self.resent)?;
        }
        if self.unsent > 0 {
            writeln!(to, "not sent    {}: all connections were busy when they were due", self.unsent)?;
        }
        writeln!(to, "bytes       received {}  sent {}", self.received_bytes, self.sent_bytes)?;
        match &self.service_latency {
            None => writeln!(to, "latency     {}", self.latency)?,
            Some(service) => {
                writeln!(to, "latency from when a request was due   {}", self.latency)?;
                writeln!(to, "latency from when it was sent         {service}")?;
            }
        }
        for (when, origins) in [("", &self.origins), (" after the mark", &self.origins_after_mark)] {
            if !origins.is_empty() {
                let shares: Vec<_> = origins.iter().map(|(name, count)| format!("{name} {count}")).collect();
                writeln!(to, "origins{when}     {}", shares.join("  "))?;
            }
        }
        Ok(())
    }
}

pub(super) fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

pub(super) fn seconds<S: serde::Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_sums_what_the_threads_counted() {
        let mut one = Tally { connect_errors: 1, timeouts: 2, ..Tally::default() };
        one.count_status(200, 5);
        one.count_origin(false, b"a", 5);
        let mut other = Tally { request_errors: 4, resent: 1, reconnects: 1, ..Tally::default() };
        other.count_status(200, 3);
        other.count_status(503, 2);
        other.count_origin(false, b"a", 1);
        other.count_origin(true, b"b", 4);
        one.add(&other);
        let report = HttpReport::new(&one, Duration::from_secs(2));
        assert_eq!((report.answers, report.non_2xx, report.rps), (10, 2, 5.0));
        assert_eq!((report.requests(), report.failures()), (17, 9));
        assert_eq!(report.origins, BTreeMap::from([("a".to_owned(), 6)]));
        assert_eq!(report.origins_after_mark, BTreeMap::from([("b".to_owned(), 4)]));
    }

    #[test]
    fn origins_are_bounded() {
        let mut tally = Tally::default();
        for number in 0..1000 {
            tally.count_origin(false, format!("{number}").as_bytes(), 1);
        }
        let origins = HttpReport::new(&tally, Duration::ZERO).origins;
        assert_eq!((origins.len(), origins["other"]), (ORIGINS_MAX + 1, 1000 - ORIGINS_MAX as u64));
    }
}

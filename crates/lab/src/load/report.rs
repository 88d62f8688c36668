//! What a load met: one form for all protocols, for people and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::latency::{Latencies, columns, in_columns};
use super::shape::{Shape, Timeline};
use super::tally::Tally;
use super::threshold::Judged;
use crate::record::{Distribution, Errors, Pacing, Second};

/// The version of the JSON form; it changes when a field goes or changes its meaning.
pub const REPORT_VERSION: u32 = 2;

/// What a load met within its window: after ramp and warm-up, before the trim.
///
/// Every operation that ended in the window is in exactly one of `ok` and the kinds of `errors`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// `http/1.1`, `grpc`, `tcp-rr` and so on.
    pub protocol: String,
    /// Connections.
    pub connections: u32,
    /// Operations under way on each at once.
    pub streams: u32,
    /// Threads of the load.
    pub threads: u32,
    /// Open loop: operations a second that were asked for.
    pub rate: Option<f64>,
    /// Open loop: how they were spread.
    pub pacing: Option<Pacing>,
    /// Length of the window.
    #[serde(rename = "window_s", with = "in_seconds")]
    pub elapsed: Duration,
    /// From the start of the load to the start of the window.
    #[serde(rename = "window_after_s", with = "in_seconds")]
    pub window_after: Duration,
    /// Open loop: operations that were due.
    pub planned: Option<u64>,
    /// Operations that were begun (open loop: of those that were due in the window).
    pub sent: u64,
    /// Operations that succeeded. For bytes without an end it is how often 100,000 of them came.
    pub ok: u64,
    /// `ok` a second.
    pub ok_per_s: f64,
    /// Operations that were answered, whatever the answer.
    pub answers: u64,
    /// What went wrong, each kind apart.
    pub errors: Errors,
    /// Answers by status, where the protocol has one: HTTP's, or gRPC's.
    pub statuses: BTreeMap<u16, u64>,
    /// Why operations had no answer, and how often.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// It was told to end before its time, and this is what it had met until then.
    #[serde(default)]
    pub interrupted: bool,
    /// The thresholds of the command line, and whether they were kept to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<Judged>,
    /// Connections made again because the other side had closed one that was kept alive, or said that it would.
    pub reconnects: u64,
    /// Requests sent again on a new connection because the old one closed without a byte of an answer; idempotent ones only.
    pub resent: u64,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that went.
    pub sent_bytes: u64,
    /// Gigabits (10^9) a second that came or went, whichever is more.
    pub gbit_per_s: f64,
    /// From the begin of an operation, its connect included if it needed one, to its end.
    pub service: Option<Distribution>,
    /// Open loop: from when an operation was due, so that a stall counts for everybody it would have kept waiting.
    pub response: Option<Distribution>,
    /// Of the connects.
    pub connect: Option<Distribution>,
    /// From the end of the send to the first byte of the answer.
    pub waiting: Option<Distribution>,
    /// From the send of a stamped message to its last byte here; both by this host's monotonic clock.
    pub delivery: Option<Distribution>,
    /// Open loop: how late operations began for which a connection was free all the while, at p99, in µs. Only the load itself is to blame.
    pub lateness_p99_us: Option<f64>,
    /// Open loop: operations that were due while no connection was free.
    pub queued: Option<u64>,
    /// Operations outside of the window that succeeded, and that failed.
    pub outside: Outside,
    /// Bytes that the connection with the least and that with the most of them carried; streams only. Far apart, and some starve.
    pub bytes_per_connection: Option<(u64, u64)>,
    /// What the load itself cost within the window.
    pub generator: Generator,
    /// Answers by `x-origin`, before the mark.
    pub origins: BTreeMap<String, u64>,
    /// Answers by `x-origin`, after the mark.
    pub origins_after_mark: BTreeMap<String, u64>,
    /// Second by second.
    pub series: Vec<Second>,
    /// The latencies behind `response`, or, without it, `service` (or `delivery`).
    #[serde(skip)]
    pub latencies: Latencies,
}

/// Operations outside of the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// That succeeded.
    pub ok: u64,
    /// That failed.
    pub errors: u64,
}

/// What the load itself cost within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// CPU time of its threads, in seconds.
    pub cpu_s: f64,
    /// Share of the window for which the busiest thread was on a CPU, 0 to 1: near 1, and the load measures itself.
    pub busiest_thread: f64,
}

impl LoadReport {
    pub(super) fn new(protocol: &str, shape: &Shape, timeline: &Timeline, tally: &Tally) -> Self {
        // An open loop's time is that of its plan, even if its last operation was due and done a little earlier.
        let planned_end = timeline.deadline.filter(|_| shape.rate.is_some());
        let end = timeline.window_end.or(tally.end.max(planned_end)).unwrap_or_else(Instant::now);
        let elapsed = end.saturating_duration_since(timeline.window_start);
        let distribution = |of: &Option<Latencies>| of.as_ref().map(Latencies::distribution);
        let [origins, origins_after_mark] = tally
            .origins
            .each_ref()
            .map(|origins| origins.iter().map(|(name, count)| (visible(name), *count)).collect());
        let shares = tally.costs.iter().map(|cost| share(cost.cpu, cost.window));
        Self {
            version: REPORT_VERSION,
            protocol: protocol.to_owned(),
            connections: shape.connections as u32,
            streams: shape.streams as u32,
            threads: shape.threads() as u32,
            rate: shape.rate,
            pacing: shape.rate.map(|_| shape.pacing),
            elapsed,
            window_after: timeline.window_start - timeline.start,
            planned: shape.rate.map(|_| tally.planned),
            sent: tally.sent,
            ok: tally.ok,
            ok_per_s: per_second(tally.ok, elapsed),
            answers: tally.ok + tally.errors.status + tally.errors.length,
            errors: Errors { unsent: tally.planned.saturating_sub(tally.sent), ..tally.errors.clone() },
            statuses: tally.statuses.clone(),
            reasons: tally.reasons.clone(),
            interrupted: shape.stop.at().is_some(),
            thresholds: Vec::new(),
            reconnects: tally.reconnects,
            resent: tally.resent,
            received_bytes: tally.received_bytes,
            sent_bytes: tally.sent_bytes,
            gbit_per_s: per_second(tally.received_bytes.max(tally.sent_bytes), elapsed) * 8.0 / 1e9,
            service: (tally.service.count() > 0).then(|| tally.service.distribution()),
            response: distribution(&tally.response),
            connect: distribution(&tally.connect),
            waiting: distribution(&tally.waiting),
            delivery: distribution(&tally.delivery),
            lateness_p99_us: tally.lateness.as_ref().map(|lateness| lateness.percentile(99.0).as_secs_f64() * 1e6),
            queued: shape.rate.map(|_| tally.queued),
            outside: Outside { ok: tally.outside.0, errors: tally.outside.1 },
            bytes_per_connection: tally.streams.iter().min().copied().zip(tally.streams.iter().max().copied()),
            generator: Generator {
                cpu_s: tally.costs.iter().map(|cost| cost.cpu.as_secs_f64()).sum(),
                busiest_thread: shares.fold(0.0, f64::max),
            },
            origins,
            origins_after_mark,
            series: tally.series(timeline),
            latencies: tally.response.as_ref().or(tally.delivery.as_ref()).unwrap_or(&tally.service).clone(),
        }
    }

    /// Operations that ended in the window, well or not.
    pub fn requests(&self) -> u64 {
        self.ok + self.failures()
    }

    /// Operations without an answer, and with one that says that it failed.
    pub fn failures(&self) -> u64 {
        self.errors.total()
    }

    /// How many failed, and the kinds of failure that occurred.
    fn failed_by_kind(&self) -> String {
        let Errors { connect, request, timeout, length, status, unsent: _ } = self.errors;
        let kinds = [
            ("error status", status),
            ("no connection", connect),
            ("broken", request),
            ("timed out", timeout),
            ("other length", length),
        ];
        let occurred = kinds.into_iter().filter(|(_, count)| *count > 0);
        let occurred: Vec<_> = occurred.map(|(kind, count)| format!("{count} {kind}")).collect();
        match occurred.as_slice() {
            [] => "0".to_owned(),
            _ => {
                let share = 100.0 * self.failures() as f64 / self.requests() as f64;
                format!("{} ({share:.2} %): {}", self.failures(), occurred.join(", "))
            }
        }
    }

    /// What was put on.
    fn title(&self) -> String {
        let Self { protocol, connections, streams, .. } = self;
        let connections =
            if *connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") };
        let streams = if *streams > 1 { format!(" of {streams} streams") } else { String::new() };
        let rate = self.rate.map_or(String::new(), |rate| format!(", {rate}/s asked for"));
        format!("{protocol}: {connections}{streams}{rate}")
    }

    /// Share of the planned operations that were begun in time, 0 to 1; 1 for a closed loop.
    pub fn sent_share(&self) -> f64 {
        self.planned.filter(|&planned| planned > 0).map_or(1.0, |planned| self.sent as f64 / planned as f64)
    }
}

/// By their number. HTTP has no status as low as that.
const GRPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

impl fmt::Display for LoadReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let ended = if self.interrupted { ", interrupted" } else { "" };
        writeln!(to, "{}", self.title())?;
        writeln!(to, "succeeded   {} in {seconds:.2} s, {:.0}/s{ended}", self.ok, self.ok_per_s)?;
        writeln!(to, "failed      {}", self.failed_by_kind())?;
        // All of one status, and of one that says that all went well: nothing to tell.
        let is_plain = self.statuses.keys().all(|status| matches!(status, 0 | 200));
        if !is_plain {
            let named = |(status, count): (&u16, &u64)| match GRPC_STATUSES.get(usize::from(*status)) {
                Some(name) => format!("{name} ({status}) x {count}"),
                None => format!("{status} x {count}"),
            };
            let statuses: Vec<_> = self.statuses.iter().map(named).collect();
            writeln!(to, "statuses    {}", statuses.join("  "))?;
        }
        for (reason, count) in &self.reasons {
            writeln!(to, "            {count} x {reason}")?;
        }
        if self.reconnects + self.resent > 0 {
            writeln!(to, "reconnects  {}, of which {} with the request sent again", self.reconnects, self.resent)?;
        }
        if let Some(planned) = self.planned {
            let late = self.lateness_p99_us.map_or("-".to_owned(), super::micros);
            let queued = self.queued.unwrap_or_default();
            writeln!(to, "schedule    due {planned}  late at p99 {late}  waited for a connection {queued}")?;
        }
        let unsent = self.errors.unsent;
        if unsent > 0 {
            let why = match self.interrupted {
                true => "they were due or under way when the load was interrupted",
                false => "every connection was busy, from when they were due to the end",
            };
            writeln!(to, "not sent    {unsent}: {why}")?;
        }
        writeln!(
            to,
            "bytes       received {}  sent {}  {:.3} Gbit/s",
            self.received_bytes, self.sent_bytes, self.gbit_per_s
        )?;
        if let Some((least, most)) = self.bytes_per_connection {
            writeln!(to, "            {least} to {most} on a connection")?;
        }
        let distributions = [
            ("from due", &self.response),
            ("from send", &self.service),
            ("one way", &self.delivery),
            ("connect", &self.connect),
            ("first byte", &self.waiting),
        ];
        if distributions.iter().any(|(_, distribution)| distribution.is_some()) {
            writeln!(to, "{}", columns())?;
        }
        for (name, distribution) in distributions {
            if let Some(distribution) = distribution {
                writeln!(to, "{}", in_columns(name, distribution))?;
            }
        }
        let Generator { cpu_s, busiest_thread } = self.generator;
        writeln!(to, "the load    {cpu_s:.2} s of CPU, busiest thread {:.0} %", busiest_thread * 100.0)?;
        for (when, origins) in [("", &self.origins), (" after the mark", &self.origins_after_mark)] {
            if !origins.is_empty() {
                let shares: Vec<_> = origins.iter().map(|(name, count)| format!("{name} {count}")).collect();
                writeln!(to, "origins{when}     {}", shares.join("  "))?;
            }
        }
        for judged in &self.thresholds {
            writeln!(to, "threshold   {judged}")?;
        }
        Ok(())
    }
}

pub(super) fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

/// A name as a server told it, without what a terminal would obey and without what would show other text in another order.
fn visible(name: &[u8]) -> String {
    let is_hidden = |c: char| {
        let is_format =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        c.is_control() || is_format
    };
    String::from_utf8_lossy(name).replace(is_hidden, "\u{fffd}")
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

mod in_seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(from)?).map_err(D::Error::custom)
    }
}

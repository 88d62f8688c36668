//! The report of a load, in one format for all protocols, as text and as JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::grpc::status_name;
use super::latency::{Latencies, columns, in_columns};
use super::replay::Replayed;
use super::shape::{Shape, Timeline};
use super::tally::{Tally, TargetTally};
use super::threshold::Judged;
use crate::record::{Distribution, Errors, Pacing, Second};

/// The version of the JSON format. It changes when a field is removed or its meaning changes.
pub const REPORT_VERSION: u32 = 2;

/// The results of a load within its window, which is after the ramp and the warm-up and before the trim.
///
/// An operation belongs to the window if it ended in it (closed loop) or was due in it (open loop). Each is in exactly one of `ok` and the
/// kinds of `errors`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// `http/1.1`, `grpc`, `tcp-rr` and so on.
    pub protocol: String,
    /// The number of connections.
    pub connections: u32,
    /// The maximum number of concurrent operations on each connection.
    pub streams: u32,
    /// The number of threads of the load.
    pub threads: u32,
    /// Open loop: the requested rate in operations per second; with stages, their mean.
    pub rate: Option<f64>,
    /// Open loop: how the operations are spread over each second.
    pub pacing: Option<Pacing>,
    /// What was replayed, if the requests come from a recording.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replayed>,
    /// The length of the window.
    #[serde(rename = "window_s", with = "in_seconds")]
    pub elapsed: Duration,
    /// The time from the start of the load to the start of the window.
    #[serde(rename = "window_after_s", with = "in_seconds")]
    pub window_after: Duration,
    /// Open loop: operations that were due in the window.
    pub planned: Option<u64>,
    /// Operations that were started in the window (closed loop), or that were due in it and were started (open loop).
    pub sent: u64,
    /// Operations that succeeded. In bulk streams, every 100,000 bytes count as one operation.
    pub ok: u64,
    /// `ok` per second.
    pub ok_per_s: f64,
    /// Operations that got a response, successful or not.
    pub answers: u64,
    /// The failures, by kind.
    pub errors: Errors,
    /// Responses by their HTTP or gRPC status, if the protocol has one.
    pub statuses: BTreeMap<u16, u64>,
    /// Messages in the responses, if they consist of messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<u64>,
    /// Why operations got no response, and how often.
    #[serde(default)]
    pub reasons: BTreeMap<String, u64>,
    /// Whether the load was stopped early. The report then covers the time until that.
    #[serde(default)]
    pub interrupted: bool,
    /// The thresholds from the command line, and whether they were met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thresholds: Vec<Judged>,
    /// Connections that replaced an earlier one, which was closed, broke or timed out. With HTTP and a connection for each request, this is
    /// every connection but the first of each lane.
    pub reconnects: u64,
    /// TLS handshakes of the whole load, ramp and warm-up included: version, cipher suite and group, and whether the handshake was `full`, `full
    /// after a retry` (HelloRetryRequest), or `resumed` an earlier session.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub handshakes: BTreeMap<String, u64>,
    /// Requests that were sent again. HTTP/1 repeats an idempotent request on a new connection if the old one closed before the first byte
    /// of the response. HTTP/2 repeats a request that the server refused to process (REFUSED_STREAM or GOAWAY).
    pub resent: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Throughput in the direction with more bytes, in gigabits (10^9 bits) per second.
    pub gbit_per_s: f64,
    /// The time from the start of an operation, including its connect if it needed one, to its end. Only operations with a response count.
    pub service: Option<Distribution>,
    /// Open loop: the time from when an operation was due to its end, so that a stall counts against every operation that it delays. In
    /// streams of messages, the time from when a message was due to its arrival.
    pub response: Option<Distribution>,
    /// The time to connect, with the TLS handshake. An open loop with one server connects before its first operation, which does not
    /// count here.
    pub connect: Option<Distribution>,
    /// The time from the end of the send to the first byte of the response; in HTTP/2, to its complete head. Long bodies do not count.
    pub waiting: Option<Distribution>,
    /// The time from the send of a stamped message to the arrival of its last byte, both on this host's monotonic clock.
    pub delivery: Option<Distribution>,
    /// Open loop: how late operations started although a connection was free, at p99, in µs. The load itself caused this delay.
    pub lateness_p99_us: Option<f64>,
    /// Open loop: operations that became due while no connection was free.
    pub queued: Option<u64>,
    /// Operations outside the window.
    pub outside: Outside,
    /// Streams only: the bytes that were carried by the connection with the fewest bytes and by the one with the most. If they are far
    /// apart, some connections starve.
    pub bytes_per_connection: Option<(u64, u64)>,
    /// The CPU time of the load itself within the window.
    pub generator: Generator,
    /// The generators of the load, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub generators: Vec<Remote>,
    /// The requests of a mix, one by one, or by server if there are more than 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<OfTarget>,
    /// Responses by the value of `x-origin`, to operations that started before the mark.
    pub origins: BTreeMap<String, u64>,
    /// Responses by the value of `x-origin`, to operations that started after the mark.
    pub origins_after_mark: BTreeMap<String, u64>,
    /// The results of each second of the load.
    pub series: Vec<Second>,
    /// The latencies from which `response` is computed. Without `response`, those of `delivery`; without both, those of `service`.
    #[serde(skip)]
    pub latencies: Latencies,
}

/// The part of one generator of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Remote {
    /// The host, as in `--generators`.
    pub host: String,
    /// Operations that succeeded.
    pub ok: u64,
    /// As in [`Generator`].
    pub busiest_thread: f64,
}

/// The results of one request of a mix, or of one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfTarget {
    /// The method and the URL, or the URL of the server.
    pub name: String,
    /// Requests that succeeded.
    pub ok: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Latency, from when a request was due if the load has a rate, to two significant digits. `None` if there were no responses.
    pub p50_us: Option<f64>,
    /// The same.
    pub p99_us: Option<f64>,
}

/// Operations outside the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// Those that succeeded.
    pub ok: u64,
    /// Those that failed.
    pub errors: u64,
}

/// The CPU time of the load itself within the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    /// The CPU time of all its threads, in seconds.
    pub cpu_s: f64,
    /// The share of the window during which the busiest thread used a CPU, from 0 to 1. Near 1, the load measures itself and not the server.
    pub busiest_thread: f64,
}

impl LoadReport {
    pub(super) fn new(protocol: &str, shape: &Shape, timeline: &Timeline, tally: &Tally) -> Self {
        // An open loop lasts until its deadline, even if its last operation ended a little earlier.
        let planned_end = timeline.deadline.filter(|_| shape.is_open_loop());
        let end = timeline.window_end.or(tally.end.max(planned_end)).unwrap_or_else(Instant::now);
        let elapsed = end.saturating_duration_since(timeline.window_start);
        let distribution = |of: &Option<Latencies>| of.as_ref().map(Latencies::distribution);
        let [origins, origins_after_mark] = tally
            .origins
            .each_ref()
            .map(|origins| origins.iter().map(|(name, count)| (visible(name), *count)).collect());
        Self {
            version: REPORT_VERSION,
            protocol: protocol.to_owned(),
            connections: shape.connections as u32,
            streams: shape.streams as u32,
            threads: shape.threads() as u32,
            // In stages there is none but the mean.
            rate: match shape.stages.is_empty() {
                true => shape.rate,
                false => Some(per_second(tally.planned, elapsed)),
            },
            pacing: shape.rate.map(|_| shape.pacing),
            replay: shape.replay.as_ref().map(|schedule| schedule.about.clone()),
            elapsed,
            window_after: timeline.window_start - timeline.start,
            planned: shape.is_open_loop().then_some(tally.planned),
            sent: tally.sent,
            ok: tally.ok,
            ok_per_s: per_second(tally.ok, elapsed),
            answers: tally.ok + tally.errors.status + tally.errors.length,
            errors: Errors { unsent: tally.planned.saturating_sub(tally.sent), ..tally.errors.clone() },
            statuses: tally.statuses.clone(),
            messages: (tally.messages > 0).then_some(tally.messages),
            reasons: tally.reasons.clone(),
            interrupted: shape.stop.at().is_some(),
            thresholds: Vec::new(),
            reconnects: tally.reconnects,
            handshakes: tally.handshakes.clone(),
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
            queued: shape.is_open_loop().then_some(tally.queued),
            outside: Outside { ok: tally.outside.0, errors: tally.outside.1 },
            bytes_per_connection: tally.streams.iter().min().copied().zip(tally.streams.iter().max().copied()),
            generator: Generator {
                cpu_s: tally.costs.iter().map(|cost| cost.cpu.as_secs_f64()).sum(),
                busiest_thread: tally.busiest_thread(),
            },
            generators: Vec::new(),
            targets: tally.targets.iter().map(TargetTally::figures).collect(),
            origins,
            origins_after_mark,
            series: tally.series(timeline),
            latencies: tally.response.as_ref().or(tally.delivery.as_ref()).unwrap_or(&tally.service).clone(),
        }
    }

    /// Operations of the window, successful or not. Those that were not sent do not count.
    pub fn requests(&self) -> u64 {
        self.ok + self.failures()
    }

    /// Operations without a response, or with a response that counts as a failure.
    pub fn failures(&self) -> u64 {
        self.errors.total()
    }

    /// The number of failures, their share, and the kinds that occurred.
    fn failed_by_kind(&self) -> String {
        let Errors { connect, request, timeout, length, status, unsent: _ } = self.errors;
        let kinds = [
            ("error status", status),
            ("no connection", connect),
            ("broken", request),
            ("timed out", timeout),
            ("different length", length),
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

    /// The first line of the text, which describes the load.
    fn title(&self) -> String {
        let Self { connections, streams, .. } = self;
        let protocol = visible(self.protocol.as_bytes());
        let connections =
            if *connections == 1 { "1 connection".to_owned() } else { format!("{connections} connections") };
        let streams = if *streams > 1 { format!(" x {streams} streams") } else { String::new() };
        let rate = self.rate.map_or(String::new(), |rate| format!(", {rate}/s requested"));
        format!("{protocol}: {connections}{streams}{rate}")
    }

    /// The lines about what the responses are, and why there are none.
    fn write_answers(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The statuses are printed only if one of them is not plain success.
        let is_plain = self.statuses.keys().all(|status| matches!(status, 0 | 200));
        if !is_plain {
            let named = |(status, count): (&u16, &u64)| match status_name(*status) {
                Some(name) => format!("{name} ({status}) x {count}"),
                None => format!("{status} x {count}"),
            };
            let statuses: Vec<_> = self.statuses.iter().map(named).collect();
            writeln!(to, "statuses    {}", statuses.join("  "))?;
        }
        // The others have one in each response.
        if let Some(messages) = self.messages.filter(|messages| *messages != self.ok) {
            writeln!(to, "messages    {messages} received, {:.0}/s", per_second(messages, self.elapsed))?;
        }
        for (reason, count) in &self.reasons {
            // Another host may have told it.
            writeln!(to, "            {count} x {}", visible(reason.as_bytes()))?;
        }
        Ok(())
    }

    fn write_replay(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.replay.as_ref().map(Replayed::lines).unwrap_or_default();
        let names = ["replay"].into_iter().chain(std::iter::repeat(""));
        // A line of the file may be in it.
        lines.iter().zip(names).try_for_each(|(line, name)| writeln!(to, "{name:<12}{}", visible(line.as_bytes())))
    }

    /// A line for each kind of TLS handshake.
    fn write_handshakes(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["handshakes"].into_iter().chain(std::iter::repeat(""));
        // Another host may have told it.
        let write = |((negotiated, count), name): ((&String, &u64), &str)| {
            writeln!(to, "{name:<12}{count} x {}", visible(negotiated.as_bytes()))
        };
        self.handshakes.iter().zip(names).try_for_each(write)
    }

    /// A line for each request of a mix, if there are several.
    fn write_targets(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.targets.len() < 2 {
            return Ok(());
        }
        writeln!(to, "{:<10}{:>10}{:>10}{:>10}{:>10}", "request", "ok", "failed", "p50", "p99")?;
        for of in &self.targets {
            let [p50, p99] = [of.p50_us, of.p99_us].map(|us| us.map_or("-".to_owned(), super::micros));
            let name = visible(of.name.as_bytes());
            writeln!(to, "{:<10}{:>10}{:>10}{p50:>10}{p99:>10}  {name}", "", of.ok, of.failed)?;
        }
        Ok(())
    }

    /// The share of the planned operations that were started before the end, from 0 to 1; 1 for a closed loop.
    pub fn sent_share(&self) -> f64 {
        self.planned.filter(|&planned| planned > 0).map_or(1.0, |planned| self.sent as f64 / planned as f64)
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let ended = if self.interrupted { ", interrupted" } else { "" };
        writeln!(to, "{}", self.title())?;
        self.write_replay(to)?;
        let is_outside = self.sent == 0 && self.outside.ok + self.outside.errors > 0;
        if self.replay.is_some() && is_outside && !self.interrupted {
            writeln!(
                to,
                "            all requests were sent during the warm-up and are not measured: shorten --warm-up"
            )?;
        }
        writeln!(to, "succeeded   {} in {seconds:.2} s, {:.0}/s{ended}", self.ok, self.ok_per_s)?;
        writeln!(to, "failed      {}", self.failed_by_kind())?;
        self.write_answers(to)?;
        if self.reconnects + self.resent > 0 {
            writeln!(to, "reconnects  {}  requests sent again {}", self.reconnects, self.resent)?;
        }
        self.write_handshakes(to)?;
        if let Some(planned) = self.planned {
            let late = self.lateness_p99_us.map_or("-".to_owned(), super::micros);
            let queued = self.queued.unwrap_or_default();
            writeln!(to, "schedule    {planned} due, p99 lateness {late}, {queued} waited for a connection")?;
        }
        let unsent = self.errors.unsent;
        if unsent > 0 {
            let why = match self.interrupted {
                true => "they were due or in progress when the load was interrupted",
                false => "no connection was free for them before the end",
            };
            writeln!(to, "not sent    {unsent}: {why}")?;
        }
        writeln!(
            to,
            "bytes       received {}  sent {}  {:.3} Gbit/s",
            self.received_bytes, self.sent_bytes, self.gbit_per_s
        )?;
        if let Some((least, most)) = self.bytes_per_connection {
            writeln!(to, "            {least} to {most} per connection")?;
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
        self.write_targets(to)?;
        let Generator { cpu_s, busiest_thread } = self.generator;
        writeln!(to, "generator   {cpu_s:.2} s of CPU, busiest thread {:.0} %", busiest_thread * 100.0)?;
        for Remote { host, ok, busiest_thread } in &self.generators {
            writeln!(to, "            {host}: {ok} succeeded, busiest thread {:.0} %", busiest_thread * 100.0)?;
        }
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

/// A name from a server, without control characters, which a terminal would obey, and without characters that reorder or hide text.
fn visible(name: &[u8]) -> String {
    let is_hidden = |c: char| {
        let is_format =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        c.is_control() || is_format
    };
    String::from_utf8_lossy(name).replace(is_hidden, "\u{fffd}")
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

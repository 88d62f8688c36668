//! The counts of one thread during a load, and their sum over all threads at its end.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::latency::{CoarseLatencies, Latencies};
use super::report::OfTarget;
use super::shape::Timeline;
use crate::record::{Errors, Second};

/// The maximum number of origins that are counted separately. Further ones are counted together as `other`.
pub(super) const ORIGINS_MAX: usize = 64;

/// The maximum number of reasons for failures that are counted separately. Further ones are counted together as `other`.
const REASONS_MAX: usize = 16;

/// The maximum number of seconds that are counted separately. Later seconds are counted in the last of them.
const SECONDS_MAX: usize = 3_600;

/// The most requests or servers that are counted separately.
pub(super) const TARGETS_MAX: usize = 64;

/// The results of one operation, which its lane fills in. Each lane reuses one for all its operations.
#[derive(Debug, Default)]
pub(super) struct Met {
    /// The time to connect, if the operation connected.
    pub connected: Option<Duration>,
    /// The time from the end of the send to the first byte of the response.
    pub waiting: Option<Duration>,
    /// The HTTP or gRPC status.
    pub status: Option<u16>,
    /// Messages in the response; gRPC only.
    pub messages: u64,
    /// Whether the length of the response differs from that of the first one.
    pub is_other_length: bool,
    /// Connections opened that replace an earlier one.
    pub reconnects: u64,
    /// How often the request was sent again.
    pub resent: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// The value of `x-origin` in the response; empty if there is none.
    pub origin: Vec<u8>,
    /// Why there is no response.
    pub why: Option<String>,
    /// What the operation is counted under besides the whole: its place in the list of these, and its name.
    pub target: Option<(usize, Arc<str>)>,
}

impl Met {
    /// Records why there is no response: the step that failed, and its error.
    pub(super) fn failed(&mut self, what: &str, error: &impl Display) {
        let error = error.to_string();
        // The number of the error adds nothing to its text.
        let words = error.split(" (os error").next().unwrap_or_default();
        self.why = Some(format!("{what}: {words}"));
    }
}

/// How one operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It succeeded.
    Good,
    /// The response says that it failed.
    Refused,
    /// A connection could not be opened.
    NoConnection,
    /// The connection broke, or the response was invalid.
    Broken,
    /// There was no response in time.
    TimedOut,
}

/// When one operation was due, started and ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// Open loop only: when it was due, and whether a lane was free then.
    pub due: Option<(Instant, bool)>,
    pub begun: Instant,
    pub ended: Instant,
}

/// The CPU time of a thread within the window, and the length of the window.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct ThreadCost {
    pub cpu: Duration,
    pub window: Duration,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    /// Latency from the start of an operation.
    pub service: Latencies,
    /// Latency from when it was due; open loop only. What timed out or never began is in it with its age.
    pub response: Option<Latencies>,
    pub connect: Option<Latencies>,
    pub waiting: Option<Latencies>,
    /// One-way latency; stamped messages only.
    pub delivery: Option<Latencies>,
    /// The time from when an operation was due to its start, if a lane was free. The load itself caused this delay.
    pub lateness: Option<Latencies>,
    /// Operations that became due while no lane was free.
    pub queued: u64,
    pub planned: u64,
    pub sent: u64,
    pub ok: u64,
    pub errors: Errors,
    pub statuses: BTreeMap<u16, u64>,
    pub messages: u64,
    /// Why operations got no response, and how often.
    pub reasons: BTreeMap<String, u64>,
    pub reconnects: u64,
    pub resent: u64,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// Operations outside the window: those that succeeded, and those that failed.
    pub outside: (u64, u64),
    /// When the last lane ended its last operation.
    #[serde(skip)]
    pub end: Option<Instant>,
    /// Responses by origin, before and after the mark.
    pub origins: [Vec<(Box<[u8]>, u64)>; 2],
    pub costs: Vec<ThreadCost>,
    pub streams: Vec<u64>,
    pub seconds: Vec<SecondTally>,
    /// Parts of the whole, if there is more than one.
    #[serde(default)]
    pub targets: Vec<TargetTally>,
    /// TLS handshakes by what was negotiated.
    #[serde(default)]
    pub handshakes: BTreeMap<String, u64>,
}

/// The results of one request of a mix, or of one server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct TargetTally {
    /// Empty if nothing was counted.
    name: String,
    ok: u64,
    failed: u64,
    latencies: CoarseLatencies,
}

impl TargetTally {
    pub(super) fn figures(&self) -> OfTarget {
        let at = |percent| self.latencies.percentile_us(percent);
        OfTarget { name: self.name.clone(), ok: self.ok, failed: self.failed, p50_us: at(50.0), p99_us: at(99.0) }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct SecondTally {
    ok: u64,
    errors: u64,
    latencies: CoarseLatencies,
}

impl Tally {
    /// Counts one operation. In a closed loop, it belongs to the window if it ended there, so that throughput is not biased. In an open
    /// loop, it belongs to the window if it was due there, so that an operation that a stall delays beyond the end is not lost.
    pub(super) fn count(&mut self, timeline: &Timeline, times: Times, outcome: Outcome, met: &Met) {
        let latency = times.ended - times.due.map_or(times.begun, |(due, _)| due);
        let is_good = outcome == Outcome::Good && !met.is_other_length;
        self.count_second(timeline, times.ended, latency, is_good);

        let begun_at = times.due.map_or(times.begun, |(due, _)| due);
        self.sent += u64::from(timeline.is_measured(begun_at));
        let is_measured = timeline.is_measured(if times.due.is_some() { begun_at } else { times.ended });
        if !is_measured {
            let (good, failed) = &mut self.outside;
            *(if is_good { good } else { failed }) += 1;
            return;
        }
        self.count_outcome(outcome, met);
        self.count_target(latency, outcome, is_good, times.due.is_some(), met);
        if let Some(connected) = met.connected {
            self.connect.get_or_insert_default().record(connected);
        }
        if let Some((due, was_lane_free)) = times.due {
            if was_lane_free {
                self.lateness.get_or_insert_default().record(times.begun - due);
            } else {
                self.queued += 1;
            }
        }
        // An operation without a response has no service time: it is an error, and a histogram of them would depend on the timeout. In an open
        // loop a client has waited for it all the same, at least for as long as it was due: without it, a balancer that answers only the easy
        // half in time would have the better tail.
        if outcome == Outcome::TimedOut && times.due.is_some() {
            self.response.get_or_insert_default().record(latency);
        }
        if matches!(outcome, Outcome::Good | Outcome::Refused) {
            self.service.record(times.ended - times.begun);
            if times.due.is_some() {
                self.response.get_or_insert_default().record(latency);
            }
            if let Some(waiting) = met.waiting {
                self.waiting.get_or_insert_default().record(waiting);
            }
        }
    }

    /// Counts an operation that was due and never began: whoever wanted it has waited since then.
    pub(super) fn count_unsent(&mut self, age: Duration) {
        self.response.get_or_insert_default().record(age);
    }

    fn count_outcome(&mut self, outcome: Outcome, met: &Met) {
        match outcome {
            Outcome::Good if met.is_other_length => self.errors.length += 1,
            Outcome::Good => self.ok += 1,
            Outcome::Refused => self.errors.status += 1,
            Outcome::NoConnection => self.errors.connect += 1,
            Outcome::Broken => self.errors.request += 1,
            Outcome::TimedOut => self.errors.timeout += 1,
        }
        if let Some(status) = met.status {
            *self.statuses.entry(status).or_default() += 1;
        }
        if let Some(why) = &met.why
            && matches!(outcome, Outcome::NoConnection | Outcome::Broken | Outcome::TimedOut)
        {
            self.count_reason(why, 1);
        }
        self.messages += met.messages;
        self.reconnects += met.reconnects;
        self.resent += met.resent;
        self.received_bytes += met.received_bytes;
        self.sent_bytes += met.sent_bytes;
    }

    fn count_target(&mut self, latency: Duration, outcome: Outcome, is_good: bool, is_open: bool, met: &Met) {
        let Some((place, name)) = met.target.as_ref().filter(|(place, _)| *place < TARGETS_MAX) else { return };
        if self.targets.len() <= *place {
            self.targets.resize_with(place + 1, TargetTally::default);
        }
        let target = &mut self.targets[*place];
        if target.name.is_empty() {
            target.name = name.to_string();
        }
        *(if is_good { &mut target.ok } else { &mut target.failed }) += 1;
        // As for the whole.
        let has_waited = outcome == Outcome::TimedOut && is_open;
        if has_waited || matches!(outcome, Outcome::Good | Outcome::Refused) {
            target.latencies.record(latency);
        }
    }

    fn count_second(&mut self, timeline: &Timeline, at: Instant, latency: Duration, is_good: bool) {
        let second = self.second(timeline, at);
        if is_good {
            second.ok += 1;
            second.latencies.record(latency);
        } else {
            second.errors += 1;
        }
    }

    fn second(&mut self, timeline: &Timeline, at: Instant) -> &mut SecondTally {
        let passed = at.saturating_duration_since(timeline.start).as_secs() as usize;
        let index = passed.min(SECONDS_MAX - 1);
        if self.seconds.len() <= index {
            self.seconds.resize_with(index + 1, SecondTally::default);
        }
        &mut self.seconds[index]
    }

    pub(super) fn count_reason(&mut self, why: &str, count: u64) {
        let is_full = self.reasons.len() >= REASONS_MAX && !self.reasons.contains_key(why);
        let why = if is_full { "other" } else { why };
        *self.reasons.entry(why.to_owned()).or_default() += count;
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

    /// Counts blocks of bulk data that were transferred at `at`. Each is one operation.
    pub(super) fn count_blocks(&mut self, timeline: &Timeline, at: Instant, blocks: u64) {
        self.second(timeline, at).ok += blocks;
        if timeline.is_measured(at) {
            self.ok += blocks;
            self.sent += blocks;
        } else {
            self.outside.0 += blocks;
        }
    }

    /// Counts a message that was complete at `at`, with the times since it was due and since it was sent.
    pub(super) fn count_message(
        &mut self,
        timeline: &Timeline,
        at: Instant,
        since_due: Duration,
        since_sent: Duration,
    ) {
        let second = self.second(timeline, at);
        second.ok += 1;
        second.latencies.record(since_sent);
        if timeline.is_measured(at) {
            self.ok += 1;
            self.sent += 1;
            self.delivery.get_or_insert_default().record(since_sent);
            self.response.get_or_insert_default().record(since_due);
        } else {
            self.outside.0 += 1;
        }
    }

    /// The numbers of operations that succeeded and that failed, in the window or not.
    pub(super) fn so_far(&self) -> (u64, u64) {
        self.seconds.iter().fold((0, 0), |(ok, failed), second| (ok + second.ok, failed + second.errors))
    }

    /// The successful operations of one second of the load, and their latencies. `None` if the load has not counted anything in that second
    /// or later.
    pub(super) fn in_second(&self, second: usize) -> Option<(u64, &CoarseLatencies)> {
        self.seconds.get(second).map(|second| (second.ok, &second.latencies))
    }

    /// The share of the window during which the busiest thread used a CPU.
    pub(super) fn busiest_thread(&self) -> f64 {
        let shares = self.costs.iter().map(|cost| match cost.window.is_zero() {
            true => 0.0,
            false => cost.cpu.as_secs_f64() / cost.window.as_secs_f64(),
        });
        shares.fold(0.0, f64::max)
    }

    pub(super) fn ended_at(&mut self, end: Instant) {
        self.end = self.end.max(Some(end));
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.service.add(&other.service);
        for (mine, others) in [
            (&mut self.response, &other.response),
            (&mut self.connect, &other.connect),
            (&mut self.waiting, &other.waiting),
            (&mut self.delivery, &other.delivery),
            (&mut self.lateness, &other.lateness),
        ] {
            if let Some(others) = others {
                mine.get_or_insert_default().add(others);
            }
        }
        self.add_errors(&other.errors);
        for (&status, count) in &other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        for (why, count) in &other.reasons {
            self.count_reason(why, *count);
        }
        for (negotiated, count) in &other.handshakes {
            *self.handshakes.entry(negotiated.clone()).or_default() += count;
        }
        for (mine, others) in [
            (&mut self.queued, other.queued),
            (&mut self.planned, other.planned),
            (&mut self.sent, other.sent),
            (&mut self.ok, other.ok),
            (&mut self.messages, other.messages),
            (&mut self.reconnects, other.reconnects),
            (&mut self.resent, other.resent),
            (&mut self.received_bytes, other.received_bytes),
            (&mut self.sent_bytes, other.sent_bytes),
            (&mut self.outside.0, other.outside.0),
            (&mut self.outside.1, other.outside.1),
        ] {
            *mine += others;
        }
        self.end = self.end.max(other.end);
        self.costs.extend_from_slice(&other.costs);
        self.streams.extend_from_slice(&other.streams);
        for (is_after_mark, origins) in [false, true].into_iter().zip(&other.origins) {
            for (name, count) in origins {
                self.count_origin(is_after_mark, name, *count);
            }
        }
        self.add_seconds(&other.seconds);
        self.add_targets(&other.targets);
    }

    fn add_errors(&mut self, other: &Errors) {
        self.errors.connect += other.connect;
        self.errors.request += other.request;
        self.errors.timeout += other.timeout;
        self.errors.length += other.length;
        self.errors.status += other.status;
        self.errors.unsent += other.unsent;
    }

    fn add_seconds(&mut self, others: &[SecondTally]) {
        let others = &others[..others.len().min(SECONDS_MAX)];
        if self.seconds.len() < others.len() {
            self.seconds.resize_with(others.len(), SecondTally::default);
        }
        for (mine, other) in self.seconds.iter_mut().zip(others) {
            mine.ok += other.ok;
            mine.errors += other.errors;
            mine.latencies.add(&other.latencies);
        }
    }

    fn add_targets(&mut self, others: &[TargetTally]) {
        let others = &others[..others.len().min(TARGETS_MAX)];
        if self.targets.len() < others.len() {
            self.targets.resize_with(others.len(), TargetTally::default);
        }
        for (mine, other) in self.targets.iter_mut().zip(others) {
            if mine.name.is_empty() {
                mine.name.clone_from(&other.name);
            }
            mine.ok += other.ok;
            mine.failed += other.failed;
            mine.latencies.add(&other.latencies);
        }
    }

    /// The results of each second. A second counts as measured if it began within the window.
    pub(super) fn series(&self, timeline: &Timeline) -> Vec<Second> {
        let second = |(index, tally): (usize, &SecondTally)| Second {
            at_s: index as f64,
            ok: tally.ok,
            errors: tally.errors,
            p50_us: tally.latencies.percentile_us(50.0),
            p99_us: tally.latencies.percentile_us(99.0),
            measured: timeline.is_measured(timeline.start + Duration::from_secs(index as u64)),
        };
        self.seconds.iter().enumerate().map(second).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::{Shape, Until};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A window from 1 s to 3 s, and a trim of 1 s.
    fn timeline() -> Timeline {
        let shape = Shape { warm_up: SECOND, trim: SECOND, ..Shape::closed(1, Until::Elapsed(SECOND * 2)) };
        Timeline::new(&shape, Instant::now())
    }

    #[test]
    fn a_closed_loop_counts_what_ended_in_the_window_and_an_open_one_what_was_due_in_it() {
        let timeline = timeline();
        let at = |ms| timeline.start + Duration::from_millis(ms);
        let check = |due: Option<u64>, begun, ended, expect| {
            let mut tally = Tally::default();
            let due = due.map(|ms| (at(ms), true));
            let times = Times { due, begun: at(begun), ended: at(ended) };
            tally.count(&timeline, times, Outcome::Good, &Met::default());
            assert_eq!((tally.sent, tally.ok, tally.outside.0), expect, "{times:?}");
        };
        check(None, 900, 1_100, (0, 1, 0));
        check(None, 1_100, 1_200, (1, 1, 0));
        check(None, 2_900, 3_100, (1, 0, 1));
        check(Some(900), 1_000, 1_100, (0, 0, 1));
        check(Some(2_900), 3_500, 3_600, (1, 1, 0));
        check(Some(3_000), 3_000, 3_100, (0, 0, 1));
    }

    #[test]
    fn kinds_of_failure_are_kept_apart() {
        let timeline = timeline();
        let now = timeline.window_start;
        let times = Times { due: Some((now, false)), begun: now + SECOND, ended: now + SECOND };
        let mut tally = Tally::default();
        let met_by = |outcome| Met { status: (outcome == Outcome::Refused).then_some(503), ..Met::default() };
        for outcome in [Outcome::Refused, Outcome::NoConnection, Outcome::Broken, Outcome::TimedOut] {
            tally.count(&timeline, times, outcome, &met_by(outcome));
        }
        let longer = Met { status: Some(200), is_other_length: true, ..Met::default() };
        tally.count(&timeline, times, Outcome::Good, &longer);
        let expect = Errors { connect: 1, request: 1, timeout: 1, length: 1, status: 1, unsent: 0 };
        assert_eq!((&tally.errors, tally.ok, tally.sent, tally.queued), (&expect, 0, 5, 5));
        assert_eq!(tally.statuses, BTreeMap::from([(200, 1), (503, 1)]));
        // Only operations with a response have a service time; what timed out has waited for as long as it was due.
        let response = tally.response.as_ref().unwrap();
        assert_eq!((tally.service.count(), response.count(), tally.lateness.is_none()), (2, 3, true));
        tally.count_unsent(SECOND * 5);
        let response = tally.response.as_ref().unwrap();
        assert!(response.count() == 4 && response.percentile(100.0) >= SECOND * 5);
        // A closed loop has no time at which an operation was due.
        let mut closed = Tally::default();
        closed.count(&timeline, Times { due: None, ..times }, Outcome::TimedOut, &Met::default());
        assert_eq!((closed.response.is_none(), closed.errors.timeout), (true, 1));
    }

    #[test]
    fn seconds_and_sums_over_threads() {
        let timeline = timeline();
        let mut one = Tally::default();
        for ms in [500, 1_500, 2_500, 3_500] {
            let ended = timeline.start + Duration::from_millis(ms);
            let times = Times { due: None, begun: ended - Duration::from_millis(1), ended };
            one.count(&timeline, times, Outcome::Good, &Met::default());
        }
        let other = one.clone();
        one.add(&other);
        let series = one.series(&timeline);
        assert_eq!(series.iter().map(|second| second.ok).collect::<Vec<_>>(), [2, 2, 2, 2]);
        assert_eq!(series.iter().map(|second| second.measured).collect::<Vec<_>>(), [false, true, true, false]);
        assert!(series.iter().all(|second| (second.p50_us.unwrap() - 1_000.0).abs() < 10.0), "{series:?}");
        assert_eq!((one.ok, one.outside), (4, (4, 0)));
    }

    #[test]
    fn reasons_are_counted_and_bounded() {
        let mut met = Met::default();
        met.failed("connect", &std::io::Error::from_raw_os_error(111));
        assert_eq!(met.why.as_deref(), Some("connect: Connection refused"));
        let mut tally = Tally::default();
        for number in 0..100 {
            tally.count_reason(&format!("{number}"), 1);
        }
        let other = tally.clone();
        tally.add(&other);
        assert_eq!((tally.reasons.len(), tally.reasons["0"], tally.reasons["other"]), (REASONS_MAX + 1, 2, 168));
    }

    #[test]
    fn origins_are_bounded() {
        let mut tally = Tally::default();
        for number in 0..1000 {
            tally.count_origin(false, format!("{number}").as_bytes(), 1);
        }
        assert_eq!(tally.origins[0].len(), ORIGINS_MAX + 1);
        let other = tally.origins[0].iter().find(|(name, _)| **name == *b"other").unwrap();
        assert_eq!(other.1, 1000 - ORIGINS_MAX as u64);
    }
}

//! The last minute by seconds and the last hour by ten seconds, and who is to blame. This module does no I/O and reads no clock.
//!
//! The control thread records the sums of all counters once a second, which costs the workers nothing. The memory is bounded: 420 points, and
//! eight sums.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use telemetry::{Blame, Overall};

use crate::SoFar;
use crate::status::{Quantiles, quantiles};

/// Points of a minute.
const SECONDS: usize = 60;
/// Points of an hour.
const TENS: usize = 360;
/// Seconds of the points of an hour.
const TEN: u64 = 10;
/// Sums that are kept at a distance of ten seconds: a minute, and the one that it began with.
const MARKS: usize = 7;
/// The requests from which the last ten seconds are judged alone.
const FEW: u64 = 20;
/// A share of failures below this is not worth a name, in percent.
const SHARE_PERCENT: u64 = 1;
/// Fewer failures are not worth a name.
const FAILURES_MIN: u64 = 5;
/// An added time below this is not worth a name, microseconds.
const ADDED_US_MIN: f64 = 5_000.0;

/// What happened in a second, or in ten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// When it ended, in seconds since 1970.
    pub unix_seconds: u64,
    /// Requests, or TCP connections, per second.
    pub requests_per_second: f64,
    /// Responses with a status of 500 to 599, and failed gRPC calls, per second.
    pub errors_per_second: f64,
    /// Requests that failed through the fault of endpoints, per second.
    pub by_endpoints_per_second: f64,
    /// Requests that failed through the fault of Steelyard, per second.
    pub own_per_second: f64,
    /// What clients sent that was refused, per second.
    pub by_clients_per_second: f64,
    /// Requests sent again, per second.
    pub retries_per_second: f64,
    /// Downstream connections that are open.
    pub connections_open: u64,
    /// Requests that wait for a connection to an endpoint.
    pub pending: u64,
    /// The time that Steelyard added.
    pub added_us: Option<Quantiles>,
    /// The time until the endpoints' response heads.
    pub upstream_us: Option<Quantiles>,
}

/// The points that are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Points {
    /// The last minute, a point for each second.
    pub minute: Vec<Point>,
    /// The last hour, a point for ten seconds.
    pub hour: Vec<Point>,
}

/// Who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// There is nothing to judge.
    Quiet,
    /// All is well.
    Nobody,
    /// Steelyard.
    Steelyard,
    /// The endpoints.
    Endpoints,
    /// The clients.
    Clients,
}

/// Whether errors and latency come from Steelyard or from endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Who.
    pub who: Who,
    /// One or two sentences, with the figures.
    pub text: String,
}

/// The last hour of a process.
#[derive(Debug, Default)]
pub struct History {
    seconds: VecDeque<Point>,
    tens: VecDeque<Point>,
    /// The last sum, and its time in milliseconds.
    last: Option<(u64, Overall)>,
    /// Sums of the last minute, the oldest first.
    marks: VecDeque<(u64, Overall)>,
}

impl History {
    /// Records the sums of now. Call this about once a second.
    pub fn record(&mut self, now_ms: u64, unix_seconds: u64, now: Overall) {
        if let Some((then_ms, then)) = &self.last {
            push(&mut self.seconds, SECONDS, point(&now.since(then), now_ms.saturating_sub(*then_ms), unix_seconds));
        }
        let is_due = |(mark_ms, _): &(u64, Overall)| now_ms.saturating_sub(*mark_ms) >= TEN * 1000;
        if self.marks.back().is_none_or(is_due) {
            if let Some((mark_ms, mark)) = self.marks.back() {
                push(&mut self.tens, TENS, point(&now.since(mark), now_ms.saturating_sub(*mark_ms), unix_seconds));
            }
            push(&mut self.marks, MARKS, (now_ms, now.clone()));
        }
        self.last = Some((now_ms, now));
    }

    /// The points that are kept.
    pub fn points(&self) -> Points {
        Points { minute: self.seconds.iter().copied().collect(), hour: self.tens.iter().copied().collect() }
    }

    /// The last second; `None` if none has passed.
    pub fn latest(&self) -> Option<&Point> {
        self.seconds.back()
    }

    /// What was counted since the process started, as of the last second.
    pub fn so_far(&self) -> SoFar {
        self.last
            .as_ref()
            .map_or_else(SoFar::default, |(_, sum)| SoFar { requests: sum.requests, errors: sum.errors() })
    }

    /// Says whether errors and latency come from Steelyard or from endpoints. If there were enough requests in the last ten seconds, they
    /// count alone, so that what has just begun is seen.
    pub fn verdict(&self) -> Verdict {
        let since = |mark: Option<&(u64, Overall)>| {
            let ((_, mark), (_, now)) = (mark?, self.last.as_ref()?);
            Some(now.since(mark))
        };
        let latest = since(self.marks.len().checked_sub(2).and_then(|before| self.marks.get(before)));
        let judged = match latest.filter(|latest| latest.requests >= FEW) {
            Some(latest) => Some((latest, "the last seconds")),
            None => since(self.marks.front()).map(|minute| (minute, "the last minute")),
        };
        match judged {
            Some((grown, span)) if grown.requests > 0 || grown.blame() != Blame::default() => judge(&grown, span),
            _ => Verdict { who: Who::Quiet, text: "There was no request in the last minute.".to_owned() },
        }
    }
}

fn push<T>(list: &mut VecDeque<T>, most: usize, value: T) {
    if list.len() >= most {
        list.pop_front();
    }
    list.push_back(value);
}

fn point(grown: &Overall, passed_ms: u64, unix_seconds: u64) -> Point {
    let seconds = passed_ms.max(1) as f64 / 1000.0;
    let rate = |count: u64| count as f64 / seconds;
    let Blame { endpoints, own, clients } = grown.blame();
    Point {
        unix_seconds,
        requests_per_second: rate(grown.requests),
        errors_per_second: rate(grown.errors()),
        by_endpoints_per_second: rate(endpoints),
        own_per_second: rate(own),
        by_clients_per_second: rate(clients),
        retries_per_second: rate(grown.retries),
        connections_open: grown.connections_open,
        pending: grown.pending,
        added_us: quantiles(&grown.added),
        upstream_us: quantiles(&grown.upstream),
    }
}

fn judge(grown: &Overall, span: &str) -> Verdict {
    let Blame { endpoints, own, clients } = grown.blame();
    let requests = grown.requests.max(endpoints + own);
    let share = |count: u64| format!("{:.1} % of requests", count as f64 * 100.0 / requests.max(1) as f64);
    let matters = |count: u64| count >= FAILURES_MIN && count * 100 >= requests * SHARE_PERCENT;
    let (added, upstream) = (quantiles(&grown.added), quantiles(&grown.upstream));
    let latency = match (added, upstream) {
        (Some(added), Some(upstream)) => format!(
            " At p99, endpoints take {} and Steelyard adds {}.",
            crate::show::time(upstream.p99),
            crate::show::time(added.p99)
        ),
        _ => String::new(),
    };
    let is_slow = |added: Quantiles, upstream: Quantiles| added.p99 >= ADDED_US_MIN && added.p99 > upstream.p99;
    let adds_most = added.zip(upstream).is_some_and(|(added, upstream)| is_slow(added, upstream));
    let (who, text) = if matters(own) && own >= endpoints {
        (Who::Steelyard, format!("It is Steelyard: it failed {} by itself in {span}.", share(own)))
    } else if matters(endpoints) {
        (Who::Endpoints, format!("It is the endpoints: {} failed there in {span}.", share(endpoints)))
    } else if adds_most {
        (Who::Steelyard, format!("It is Steelyard: it adds more time than the endpoints take in {span}."))
    } else if matters(clients) && clients * 2 >= requests {
        (Who::Clients, format!("It is the clients: {} of what they sent in {span} was refused.", clients))
    } else {
        let failed = endpoints + own;
        let intended = match grown.intended_errors {
            0 => String::new(),
            count => format!(" Of them, {count} got a 5xx that the configuration asks for."),
        };
        let text = if failed == 0 && !intended.is_empty() {
            format!("All is well: {requests} requests in {span}, and no failure.{intended}")
        } else if failed == 0 {
            format!("All is well: no request failed in {span}.")
        } else if failed * 100 >= requests * SHARE_PERCENT {
            format!("{failed} of {requests} requests failed in {span}: too few to judge.")
        } else {
            format!("All is well: {} failed in {span}.", share(failed))
        };
        (Who::Nobody, text)
    };
    Verdict { who, text: text + &latency }
}

#[cfg(test)]
mod tests {
    use telemetry::{Reason, Registry};

    use super::*;

    struct Process {
        registry: Registry,
        history: History,
        now: u64,
    }

    impl Process {
        fn new() -> Self {
            let mut process = Self { registry: Registry::default(), history: History::default(), now: 0 };
            process.pass(1);
            process
        }

        fn pass(&mut self, seconds: u64) {
            for _ in 0..seconds {
                self.now += 1;
                self.history.record(self.now * 1000, 1_000_000 + self.now, self.registry.overall());
            }
        }

        fn serve(&self, count: u64, status: u16, added_us: u64, upstream_us: u64) {
            let (listener, route) = (self.registry.listener(0, "web"), self.registry.route(0, "web", "/"));
            for _ in 0..count {
                listener.requests.inc();
                route.responses.inc(status);
                route.added.record(added_us);
                route.upstream.record(upstream_us);
            }
        }

        /// Responses that the configuration asks for.
        fn respond(&self, count: u64, status: u16) {
            let (listener, route) = (self.registry.listener(0, "web"), self.registry.route(0, "web", "/"));
            for _ in 0..count {
                listener.requests.inc();
                route.responses.inc(status);
                route.intended_errors.inc();
            }
        }

        fn fail(&self, count: u64, status: u16, reason: Reason) {
            let (listener, route) = (self.registry.listener(0, "web"), self.registry.route(0, "web", "/"));
            for _ in 0..count {
                listener.requests.inc();
                route.responses.inc(status);
                listener.reasons.inc(reason);
            }
        }
    }

    #[test]
    fn a_minute_by_seconds_and_an_hour_by_ten() {
        let mut process = Process::new();
        for second in 0..4000 {
            process.serve(if second % 2 == 0 { 4 } else { 0 }, 200, 8, 100);
            process.pass(1);
        }
        let Points { minute, hour } = process.history.points();
        assert_eq!((minute.len(), hour.len()), (SECONDS, TENS));
        assert_eq!((minute[58].requests_per_second, minute[59].requests_per_second), (4.0, 0.0));
        assert_eq!(minute[59].unix_seconds, 1_004_001);
        assert!(hour.iter().all(|point| point.requests_per_second == 2.0), "{hour:?}");
        assert_eq!(hour[359].unix_seconds - hour[0].unix_seconds, 3590);
        assert_eq!(minute[58].added_us.map(|of| of.p99), Some(7.98));
        assert_eq!(minute[59].added_us, None);
    }

    #[track_caller]
    fn check(happen: &dyn Fn(&Process), who: Who, text: &str) {
        let mut process = Process::new();
        happen(&process);
        process.pass(1);
        let verdict = process.history.verdict();
        assert_eq!((verdict.who, verdict.text.as_str()), (who, text));
    }

    #[test]
    fn who_is_to_blame() {
        check(&|_| {}, Who::Quiet, "There was no request in the last minute.");
        check(
            &|process| process.serve(1000, 200, 8, 8000),
            Who::Nobody,
            "All is well: no request failed in the last minute. At p99, endpoints take 8.2 ms and Steelyard adds 8 us.",
        );
        // The endpoint answers 503 itself.
        check(
            &|process| {
                process.serve(90, 200, 8, 8000);
                process.serve(10, 503, 8, 8000);
            },
            Who::Endpoints,
            "It is the endpoints: 10.0 % of requests failed there in the last minute. At p99, endpoints take 8.2 ms and Steelyard adds 8 us.",
        );
        check(
            &|process| {
                process.serve(90, 200, 8, 8000);
                process.fail(10, 502, Reason::ConnectRefused);
            },
            Who::Endpoints,
            "It is the endpoints: 10.0 % of requests failed there in the last minute. At p99, endpoints take 8.2 ms and Steelyard adds 8 us.",
        );
        check(
            &|process| process.fail(10, 503, Reason::MemoryFull),
            Who::Steelyard,
            "It is Steelyard: it failed 100.0 % of requests by itself in the last minute.",
        );
        check(
            &|process| process.serve(100, 200, 16_000, 100),
            Who::Steelyard,
            "It is Steelyard: it adds more time than the endpoints take in the last minute. At p99, endpoints take 128 us and Steelyard adds \
             16.3 ms.",
        );
        check(
            &|process| process.fail(10, 404, Reason::NoRoute),
            Who::Clients,
            "It is the clients: 10 of what they sent in the last minute was refused.",
        );
        // One failure of many.
        check(
            &|process| {
                process.serve(999, 200, 8, 8000);
                process.serve(1, 503, 8, 8000);
            },
            Who::Nobody,
            "All is well: 0.1 % of requests failed in the last minute. At p99, endpoints take 8.2 ms and Steelyard adds 8 us.",
        );
    }

    #[test]
    fn responses_that_the_configuration_asks_for_blame_nobody() {
        // The route has `respond: {status: 503}`.
        check(
            &|process| {
                process.serve(90, 200, 8, 8000);
                process.respond(10, 503);
            },
            Who::Nobody,
            "All is well: 100 requests in the last minute, and no failure. Of them, 10 got a 5xx that the configuration asks for. At p99, \
             endpoints take 8.2 ms and Steelyard adds 8 us.",
        );
        // A route in maintenance.
        check(
            &|process| {
                process.respond(10, 503);
                let listener = process.registry.listener(0, "web");
                (0..10).for_each(|_| listener.reasons.inc(Reason::Maintenance));
            },
            Who::Nobody,
            "All is well: 10 requests in the last minute, and no failure. Of them, 10 got a 5xx that the configuration asks for.",
        );
        // An endpoint fails beside it.
        check(
            &|process| {
                process.respond(90, 503);
                process.serve(10, 503, 8, 8000);
            },
            Who::Endpoints,
            "It is the endpoints: 10.0 % of requests failed there in the last minute. At p99, endpoints take 8.2 ms and Steelyard adds 8 us.",
        );
    }

    #[test]
    fn what_has_just_begun_is_seen_although_the_minute_was_good() {
        let mut process = Process::new();
        for _ in 0..60 {
            process.serve(1000, 200, 8, 8000);
            process.pass(1);
        }
        process.pass(10);
        process.serve(30, 503, 8, 8000);
        process.pass(1);
        let verdict = process.history.verdict();
        assert_eq!(verdict.who, Who::Endpoints, "{verdict:?}");
    }
}

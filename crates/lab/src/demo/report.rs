//! The results of the demo, and its verdict.

use std::fmt;
use std::time::Duration;

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use super::{CONNECTIONS, Measured};
use crate::Verdict;
use crate::load::{Latencies, micros};

/// What the demo measured.
#[derive(Debug, Serialize)]
pub struct DemoReport {
    /// The version of this form, as JSON. It changes when a field is removed or changes its meaning.
    pub version: u32,
    /// Whether no request failed.
    pub passed: bool,
    /// Direct, balanced, and balanced while an origin is killed.
    pub phases: [Phase; 3],
    /// What each origin served in the last phase.
    pub shares: Vec<Share>,
    /// Resident memory of the balancer at the end.
    pub balancer_rss_bytes: u64,
}

/// One kind of load, over all its turns.
#[derive(Debug, Serialize)]
pub struct Phase {
    /// The name for people.
    pub name: String,
    /// Requests that were begun.
    pub requests: u64,
    /// Requests without a response, with a status outside 200 to 299, or answered only on a second connection. A client that does not retry
    /// by itself would have seen each of these fail.
    pub failures: u64,
    /// Responses per second.
    pub rps: f64,
    /// Median latency, with all connections busy all the time.
    pub p50_us: f64,
    /// p99 latency, with all connections busy all the time.
    pub p99_us: f64,
    /// CPU time of the balancer per request, user and system together; `None` if it was not involved.
    pub balancer_cpu_us_per_request: Option<f64>,
    #[serde(skip)]
    latencies: Latencies,
    #[serde(skip)]
    elapsed: Duration,
    #[serde(skip)]
    cpu_time: Option<Duration>,
}

/// What an origin served while another one was killed.
#[derive(Debug, Serialize)]
pub struct Share {
    /// Its name.
    pub origin: String,
    /// Whether it is the one that was killed.
    pub is_killed: bool,
    /// Responses to requests sent before the kill.
    pub before: u64,
    /// Responses to requests sent after it.
    pub after: u64,
}

impl DemoReport {
    pub(super) fn new(phases: [Phase; 3], shares: Vec<Share>, balancer_rss_bytes: u64) -> Self {
        // A phase without a single request has shown nothing.
        let passed = phases.iter().all(|phase| phase.requests > 0 && phase.failures == 0);
        Self { version: 1, passed, phases, shares, balancer_rss_bytes }
    }

    /// Good when no request failed.
    pub fn verdict(&self) -> Verdict {
        if self.passed { Verdict::Good } else { Verdict::Failed }
    }
}

impl Phase {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            requests: 0,
            failures: 0,
            rps: 0.0,
            p50_us: 0.0,
            p99_us: 0.0,
            balancer_cpu_us_per_request: None,
            latencies: Latencies::default(),
            elapsed: Duration::ZERO,
            cpu_time: None,
        }
    }

    /// Adds one turn.
    pub(super) fn add(&mut self, turn: &Measured) {
        self.requests += turn.load.requests();
        self.failures += turn.load.failures() + turn.load.resent;
        self.elapsed += turn.load.elapsed;
        self.latencies.add(&turn.load.latencies);
        if let Some(cpu_time) = turn.cpu_time {
            *self.cpu_time.get_or_insert_default() += cpu_time;
        }
        let answers = self.latencies.count();
        let us_at = |percent| self.latencies.percentile(percent).as_secs_f64() * 1e6;
        (self.p50_us, self.p99_us) = (us_at(50.0), us_at(99.0));
        if answers > 0 {
            self.rps = answers as f64 / self.elapsed.as_secs_f64();
            self.balancer_cpu_us_per_request = self.cpu_time.map(|time| time.as_secs_f64() * 1e6 / answers as f64);
        }
    }

    /// One line, while it is in progress.
    pub(super) fn progress(&self) -> String {
        format!("{}: {} requests so far, {} failed, {:.0}/s", self.name, self.requests, self.failures, self.rps)
    }
}

impl fmt::Display for DemoReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = table(&["", "requests", "failed", "req/s", "p50", "p99", "CPU/req"]);
        for phase in &self.phases {
            let cpu = phase.balancer_cpu_us_per_request.map_or("-".to_owned(), |us| format!("{us:.1} µs"));
            table.add_row([
                left(&phase.name),
                right(phase.requests),
                right(phase.failures),
                right(format!("{:.0}", phase.rps)),
                right(micros(phase.p50_us)),
                right(micros(phase.p99_us)),
                right(cpu),
            ]);
        }
        writeln!(to, "{table}")?;
        writeln!(to, "direct: to one origin; balanced: through the balancer, with its CPU time;")?;
        writeln!(to, "origin killed: through the balancer, while one origin is killed.")?;
        writeln!(to)?;
        let mut table = self::table(&["origin", "served before the kill", "after"]);
        let total = |count: fn(&Share) -> u64| self.shares.iter().map(count).sum::<u64>();
        let (before, after) = (total(|share| share.before), total(|share| share.after));
        for share in &self.shares {
            let name = if share.is_killed { format!("{} (killed)", share.origin) } else { share.origin.clone() };
            table.add_row([left(&name), right(percent(share.before, before)), right(percent(share.after, after))]);
        }
        writeln!(to, "{table}")?;
        writeln!(to)?;
        let mib = self.balancer_rss_bytes as f64 / f64::from(1 << 20);
        writeln!(to, "The balancer held {mib:.1} MiB of memory at the end.")?;
        writeln!(to, "Closed loop on {CONNECTIONS} connections; load, origins and balancer shared the CPUs.")?;
        let failures: u64 = self.phases.iter().map(|phase| phase.failures).sum();
        match (self.passed, failures) {
            (true, _) => write!(to, "PASSED: no request failed, although an origin was killed under load."),
            (false, 0) => write!(to, "FAILED: one phase had no requests at all."),
            (false, _) => write!(to, "FAILED: {failures} requests failed."),
        }
    }
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let cells = header.iter().enumerate();
    table.set_header(cells.map(|(column, title)| if column == 0 { left(title) } else { right(title) }));
    table
}

fn left(text: &str) -> Cell {
    Cell::new(text)
}

fn right(value: impl fmt::Display) -> Cell {
    Cell::new(value).set_alignment(CellAlignment::Right)
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(requests: u64, failures: u64) -> Phase {
        let rps = 12_345.6;
        let (p50_us, p99_us, cpu) = (870.0, 12_340.0, Some(45.6));
        let requests = if requests > 0 { 1_000_000 + requests } else { 0 };
        Phase {
            requests,
            failures,
            rps,
            p50_us,
            p99_us,
            balancer_cpu_us_per_request: cpu,
            ..Phase::new("origin killed")
        }
    }

    #[track_caller]
    fn check(phases: [(u64, u64); 3], expect: Verdict, last_line: &str) {
        let phases = phases.map(|(requests, failures)| phase(requests, failures));
        let share = Share { origin: "a".to_owned(), is_killed: true, before: 1, after: 0 };
        let report = DemoReport::new(phases, vec![share], 5 << 20);
        let text = report.to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(report.verdict(), expect);
        assert_eq!(report.to_string().lines().last(), Some(last_line));
    }

    #[test]
    fn one_failure_anywhere_is_a_failed_demo() {
        check(
            [(9, 0), (9, 0), (9, 0)],
            Verdict::Good,
            "PASSED: no request failed, although an origin was killed under load.",
        );
        check([(9, 0), (9, 0), (9, 1)], Verdict::Failed, "FAILED: 1 requests failed.");
        check([(9, 1), (9, 1), (9, 0)], Verdict::Failed, "FAILED: 2 requests failed.");
        check([(9, 0), (0, 0), (9, 0)], Verdict::Failed, "FAILED: one phase had no requests at all.");
    }
}

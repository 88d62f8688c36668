//! The progress of a run, in plain lines on standard error.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::Plan;
use crate::judge;
use crate::record::{Cell, Run, Scenario};
use crate::schedule::{Schedule, Step, clock, step_time};

/// The most contenders that one line names.
const NAMES_SHOWN: usize = 40;

/// If nothing reads this, the run continues.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The plan, before anything is done.
pub(super) fn announce(run: &Run, plan: &Plan) {
    let Run { scenario, seed, .. } = run;
    say(&format!("{}: {}", scenario.name, scenario.title));
    let Schedule { steps, rounds, expected, limit, .. } = &plan.schedule;
    say(&format!("  {} cells in {rounds} rounds, seed {seed}: about {}", steps.len(), clock(*expected)));
    match plan.precision {
        Some(precision) => say(&format!(
            "  rounds are added while a ratio is less certain than ±{} %, up to {} in all",
            precision * 100.0,
            clock(*limit)
        )),
        None => say("  no rounds are added: --rounds is given"),
    }
    for case in &scenario.cases {
        say(&format!("  {:<22} {}", case.name, case.title));
    }
    let names: Vec<_> = scenario.instances.iter().map(|instance| instance.id.as_str()).take(NAMES_SHOWN).collect();
    say(&format!("  contenders: {}", names.join(" ")));
    for gap in &run.gaps {
        say(&format!("  without {}: {}", gap.what, gap.why));
    }
    if run.environment.cpus == 1 {
        say(
            "  this host gives the lab one CPU: load, balancer and origins share it, so no rate is a capacity, and only the total CPU is known",
        );
    }
    if scenario.loopback {
        say("  on loopback: no namespaces, no steering, no kernel contenders");
    }
    if run.environment.load_average > 0.5 * f64::from(run.environment.cpus) {
        say(&format!("  this host is busy (load average {:.1}): figures will be noisy", run.environment.load_average));
    }
}

/// The progress of a run.
#[derive(Debug)]
pub(super) struct Progress {
    /// When the last cell ended.
    last: Instant,
    /// The time that the steps so far have taken.
    measuring: Duration,
    /// Steps so far.
    done: usize,
    /// Expected time of each step.
    times: Vec<Duration>,
}

impl Progress {
    pub(super) fn new(steps: &[Step], scenario: &Scenario) -> Self {
        let times = steps.iter().map(|step| step_time(scenario, step)).collect();
        Self { last: Instant::now(), measuring: Duration::ZERO, done: 0, times }
    }

    /// More steps, of a round that is added.
    pub(super) fn add(&mut self, steps: &[Step], scenario: &Scenario) {
        self.times.extend(steps.iter().map(|step| step_time(scenario, step)));
    }

    /// The remaining time at the present pace.
    pub(super) fn left(&self) -> Duration {
        let (done, left) = self.times.split_at(self.done.min(self.times.len()));
        let (done, left): (Duration, Duration) = (done.iter().sum(), left.iter().sum());
        // Before the first cell the pace is unknown.
        let pace = if done.is_zero() { 1.0 } else { self.measuring.as_secs_f64() / done.as_secs_f64() };
        left.mul_f64(pace)
    }

    /// Prints a line for a cell, with the remaining time at the present pace.
    pub(super) fn tell(&mut self, cell: &Cell) {
        self.measuring += std::mem::replace(&mut self.last, Instant::now()).elapsed();
        self.done += 1;
        let twin = if cell.twin > 0 { " again" } else { "" };
        say(&format!(
            "[{}/{}, {} left] {} {} round {}{twin}: {}",
            self.done,
            self.times.len(),
            clock(self.left()),
            cell.case,
            cell.instance,
            cell.round + 1,
            outcome(cell),
        ));
    }
}

fn outcome(cell: &Cell) -> String {
    let Some(measurement) = &cell.measurement else {
        let failure = cell.failure.as_ref();
        let last = failure.and_then(|failure| failure.log.last()).map_or_else(String::new, |line| format!(": {line}"));
        return format!("failed, {}{last}", failure.map_or("for no known reason", |failure| failure.why.as_str()));
    };
    let latency = measurement.latency().map_or_else(String::new, |latency| {
        let at = |percent| latency.percentile_us(percent).unwrap_or_default();
        format!(", p50 {:.0} µs, p99 {:.0} µs", at(50.0), at(99.0))
    });
    let spoiled = judge::spoiled(measurement).first().map_or_else(String::new, |why| format!("; disturbed: {why}"));
    let errors = match measurement.errors.total() {
        0 => String::new(),
        errors => format!(", {errors} errors"),
    };
    let cost = if measurement.ok > 0 && measurement.cpu.balancer_s > 0.0 {
        format!(", balancer {:.1} µs each", measurement.cpu.balancer_s * 1e6 / measurement.ok as f64)
    } else {
        String::new()
    };
    format!("{:.0}/s{latency}{cost}{errors}{spoiled}", measurement.ok_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Distribution, Failure, Measurement};

    #[test]
    fn a_cell_in_one_line() {
        let check = |measurement: Option<Measurement>, failure: Option<Failure>, expect: &str| {
            let cell = Cell {
                case: "c".into(),
                instance: "i".into(),
                round: 0,
                twin: 0,
                block: 0,
                order: 0,
                started_unix_ms: 0,
                command: String::new(),
                measurement,
                failure,
                judgement: None,
            };
            assert_eq!(outcome(&cell), expect);
        };
        let latency = Distribution { percentiles: vec![(50.0, 120.4), (99.0, 900.0)], ..Default::default() };
        let mut measurement = Measurement { ok: 100, ok_per_s: 50.0, service: Some(latency), ..Default::default() };
        measurement.cpu.balancer_s = 0.001;
        check(Some(measurement), None, "50/s, p50 120 µs, p99 900 µs, balancer 10.0 µs each");
        let failure = Failure { why: "x ended".into(), log: vec!["first".into(), "last".into()] };
        check(None, Some(failure), "failed, x ended: last");
        check(None, None, "failed, for no known reason");
        let mut stolen = Measurement { ok: 100, ok_per_s: 50.0, ..Default::default() };
        (stolen.cpu.busy_s, stolen.cpu.idle_s, stolen.cpu.steal_s) = (1.0, 0.9, 0.1);
        check(Some(stolen), None, "50/s; disturbed: 5.0 % of CPU time stolen by the hypervisor > 1.0 %");
    }
}

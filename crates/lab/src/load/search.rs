//! The search for capacity, which is the highest rate that meets an objective.
//!
//! The search doubles the rate until the objective fails, then halves the interval until its ends are within 3 % of each other, and then
//! tries the result three times for longer. Each step is an open loop, because a closed loop never requests more than it gets.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::micros;
use super::report::LoadReport;
use super::shape::{Shape, Until};

/// The first rate if none is given, in operations per second.
const BEGIN_PER_S: f64 = 500.0;

/// If no rate has passed, the search gives up below this one, in operations per second.
const RATE_MIN: f64 = 0.1;

/// The maximum number of rates that are tried by doubling and halving.
const STEPS_MAX: usize = 40;

/// The search ends when the ratio of the lowest failed rate to the highest passed rate is at most this.
const PRECISION: f64 = 1.03;

/// The minimum share of the planned operations that must be started before the end of a step.
const SENT_MIN: f64 = 0.99;

/// The minimum share of the operations that must succeed.
const GOOD_MIN: f64 = 0.999;

/// The number of runs of full length at the rate that was found, and the number of them that must pass.
const VALIDATIONS: usize = 3;
const VALIDATIONS_GOOD_MIN: usize = 2;

/// The objective of a search, and its course.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// The maximum p99 latency, counted from when operations were due.
    pub p99: Duration,
    /// The duration of a step of the search.
    pub step: Duration,
    /// The pause between two steps, in which queues drain.
    pub cool_down: Duration,
    /// The first rate in operations per second; if `None`, the search starts at 500.
    pub begin: Option<f64>,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CapacityReport {
    /// The version of the JSON format.
    pub version: u32,
    /// The maximum p99 latency that was requested, in µs.
    pub objective_p99_us: f64,
    /// The highest rate, in operations per second, that met the objective in two of three runs of full length. `None` if no rate did, or if
    /// the search was interrupted.
    pub capacity_per_s: Option<f64>,
    /// The steps, in order.
    pub steps: Vec<RateStep>,
    /// The report of the last run of full length.
    pub validation: Option<LoadReport>,
}

/// A run at one rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateStep {
    /// The requested rate in operations per second.
    pub rate: f64,
    /// Successful operations per second.
    pub ok_per_s: f64,
    /// The p99 latency from when operations were due, in µs; `None` if there was no response.
    pub p99_us: Option<f64>,
    /// Why the run did not meet the objective; `None` if it did.
    pub failed: Option<String>,
    /// Whether this is one of the runs of full length.
    pub is_validation: bool,
}

/// Searches for the capacity with loads like `shape`, at other rates and with other durations.
///
/// # Errors
/// `run` fails.
pub async fn find_capacity(
    objective: &Objective,
    shape: &Shape,
    run: impl AsyncFn(Shape) -> io::Result<LoadReport>,
) -> io::Result<CapacityReport> {
    let step_shape = |rate: f64| Shape {
        rate: Some(rate),
        until: Until::Elapsed(objective.step),
        hold: Duration::ZERO,
        announce: false,
        ..shape.clone()
    };
    let mut search = Search::new(objective.begin.unwrap_or(BEGIN_PER_S));
    let mut steps = Vec::new();
    while let Some(rate) = search.next() {
        if !steps.is_empty() {
            tokio::time::sleep(objective.cool_down).await;
        }
        let step = judge(rate, objective, &run(step_shape(rate)).await?, false);
        if shape.stop.at().is_some() {
            // The step was interrupted, so its result is meaningless.
            break;
        }
        search.learn(rate, step.failed.is_none());
        steps.push(step);
    }
    let mut validation = None;
    let mut candidate = search.found().filter(|_| shape.stop.at().is_none());
    while let Some(rate) = candidate {
        let full = Shape { rate: Some(rate), until: shape.until, ..step_shape(rate) };
        let good = validate(objective, &full, &run, &mut steps, &mut validation).await?;
        if good {
            break;
        }
        // This rate passed a short step but not the long runs, so try a slightly lower one.
        let goes_on = steps.len() < 2 * STEPS_MAX && shape.stop.at().is_none();
        candidate = Some(rate / PRECISION).filter(|_| goes_on);
    }
    Ok(CapacityReport {
        version: 1,
        objective_p99_us: objective.p99.as_secs_f64() * 1e6,
        capacity_per_s: candidate,
        steps,
        validation,
    })
}

async fn validate(
    objective: &Objective,
    shape: &Shape,
    run: &impl AsyncFn(Shape) -> io::Result<LoadReport>,
    steps: &mut Vec<RateStep>,
    last: &mut Option<LoadReport>,
) -> io::Result<bool> {
    let mut good = 0;
    for _ in 0..VALIDATIONS {
        tokio::time::sleep(objective.cool_down).await;
        let report = run(shape.clone()).await?;
        let step = judge(shape.rate.unwrap_or_default(), objective, &report, true);
        good += usize::from(step.failed.is_none());
        steps.push(step);
        *last = Some(report);
    }
    Ok(good >= VALIDATIONS_GOOD_MIN)
}

fn judge(rate: f64, objective: &Objective, report: &LoadReport, is_validation: bool) -> RateStep {
    let p99_us = report.response.as_ref().and_then(|response| response.percentile_us(99.0));
    let sent_share = report.sent_share();
    let ended = report.requests();
    let good_share = if ended == 0 { 0.0 } else { report.ok as f64 / ended as f64 };
    let objective_us = objective.p99.as_secs_f64() * 1e6;
    let failed = match p99_us {
        _ if sent_share < SENT_MIN => Some(format!("only {:.1} % sent in time", sent_share * 100.0)),
        _ if good_share < GOOD_MIN => Some(format!("only {:.2} % succeeded", good_share * 100.0)),
        Some(p99_us) if p99_us > objective_us => Some(format!("p99 is {}", micros(p99_us))),
        Some(_) => None,
        None => Some("no response".to_owned()),
    };
    RateStep { rate, ok_per_s: report.ok_per_s, p99_us, failed, is_validation }
}

/// The order in which rates are tried, without the load. `good < bad` if both are known.
#[derive(Debug)]
struct Search {
    next: f64,
    good: Option<f64>,
    bad: Option<f64>,
    steps: usize,
}

impl Search {
    fn new(begin: f64) -> Self {
        Self { next: begin, good: None, bad: None, steps: 0 }
    }

    fn next(&mut self) -> Option<f64> {
        let is_close = self.good.zip(self.bad).is_some_and(|(good, bad)| bad / good <= PRECISION);
        let is_hopeless = self.good.is_none() && self.next < RATE_MIN;
        self.steps += 1;
        (!is_close && !is_hopeless && self.steps <= STEPS_MAX).then_some(self.next)
    }

    fn learn(&mut self, rate: f64, is_good: bool) {
        *(if is_good { &mut self.good } else { &mut self.bad }) = Some(rate);
        self.next = match (self.good, self.bad) {
            (Some(good), Some(bad)) => (good + bad) / 2.0,
            (Some(good), None) => good * 2.0,
            (None, Some(bad)) => bad / 2.0,
            (None, None) => rate,
        };
    }

    fn found(&self) -> Option<f64> {
        self.good
    }
}

impl fmt::Display for CapacityReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            let p99 = step.p99_us.map_or("-".to_owned(), micros);
            let what = if step.is_validation { "validation" } else { "step" };
            let outcome = step.failed.as_ref().map_or("passed".to_owned(), |why| format!("failed: {why}"));
            writeln!(to, "{what:<12}{:.0}/s  ok {:.0}/s  p99 {p99}  {outcome}", step.rate, step.ok_per_s)?;
        }
        let objective = micros(self.objective_p99_us);
        match self.capacity_per_s {
            Some(rate) => writeln!(to, "capacity    {rate:.0}/s with a p99 of at most {objective}"),
            None => writeln!(to, "capacity    not found: no rate passed the final runs (p99 at most {objective})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::shape::Timeline;
    use super::super::tally::Tally;
    use super::*;

    /// Searches a server with this capacity, and returns the rates that are tried and the result.
    fn check(begin: f64, capacity: f64) -> (Vec<f64>, Option<f64>) {
        let (mut search, mut tried) = (Search::new(begin), Vec::new());
        while let Some(rate) = search.next() {
            tried.push(rate);
            search.learn(rate, rate <= capacity);
        }
        (tried, search.found())
    }

    #[test]
    fn capacity_is_found_within_three_per_cent() {
        for capacity in [1.5, 90.0, 500.0, 777.0, 31_234.0, 4e6] {
            let (tried, found) = check(500.0, capacity);
            let found = found.unwrap();
            assert!(found <= capacity && found * PRECISION >= capacity, "{capacity}: {found} after {tried:?}");
            assert!(tried.len() < STEPS_MAX, "{tried:?}");
        }
        assert_eq!(check(100.0, 450.0).0[..4], [100.0, 200.0, 400.0, 800.0]);
    }

    /// The loads are those of a server that can take `limit` operations per second.
    #[test]
    fn a_search_ends_with_runs_of_full_length() {
        let (limit, second) = (1_000.0, Duration::from_secs(1));
        let objective = Objective { p99: second, step: second, cool_down: Duration::ZERO, begin: Some(100.0) };
        let shape = Shape::closed(4, Until::Elapsed(second * 10));
        let run = async |shape: Shape| {
            let start = Instant::now();
            let timeline = Timeline::new(&shape, start);
            let mut tally = Tally { planned: 1_000, ok: 1_000, end: Some(start + second), ..Tally::default() };
            tally.sent = if shape.rate.unwrap() <= limit { 1_000 } else { 900 };
            tally.response.get_or_insert_default().record(Duration::from_millis(1));
            Ok(LoadReport::new("test", &shape, &timeline, &tally))
        };
        let report = crate::host::runtime().unwrap().block_on(find_capacity(&objective, &shape, run)).unwrap();
        let capacity = report.capacity_per_s.unwrap();
        assert!(capacity <= limit && capacity * PRECISION >= limit, "{report}");
        assert_eq!(report.steps.iter().filter(|step| step.is_validation).count(), VALIDATIONS);
        assert!(report.steps.iter().all(|step| step.failed.is_some() == (step.rate > limit)), "{report}");
        assert!(report.validation.is_some());
    }

    #[test]
    fn what_cannot_be_kept_at_all_is_given_up() {
        let (tried, found) = check(500.0, 0.05);
        assert_eq!(found, None);
        assert!(tried.len() < 15, "{tried:?}");
    }
}

//! Decides whether a new run may replace an old one.
//!
//! [`gate`] is for a pipeline. A figure fails if it is certainly worse by more than is allowed. The gate does not hold either if a figure
//! cannot be decided, because its interval reaches beyond what is allowed, or if the new run lacks a contender or a figure: what was not
//! measured well enough has not passed. It does not measure again.

use std::fmt;

use serde::Serialize;

use crate::compare::{Change, Comparison, Gone, Outcome};

/// The limits for a new run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// How much worse a figure may be, as a share: 0.03 is 3 %.
    pub regress_max: f64,
    /// Only these instances, by id; empty means all.
    pub instances: Vec<String>,
    /// Only these metrics; empty means those of [`GATED`].
    pub metrics: Vec<String>,
}

/// The metrics that are gated by default: rates, the CPU of the balancer and of the whole host, and latency.
pub const GATED: &[&str] =
    &["ok_per_s", "lb_us_per_op", "busy_us_per_op", "gbps", "lb_cores_per_gbps", "cores_per_gbps", P50, P99];

const P50: &str = "p50_us";
const P99: &str = "p99_us";

/// Whether a metric is gated. In a closed loop, latency follows from the rate, so unless it is named, only that of open loops is.
fn is_gated(limits: &Limits, metric: &str, is_open_loop: bool) -> bool {
    match limits.metrics.as_slice() {
        [] => GATED.contains(&metric) && (is_open_loop || ![P50, P99].contains(&metric)),
        named => named.iter().any(|named| named == metric),
    }
}

/// The result of a gate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcomes {
    /// The version of this form, as JSON.
    pub version: u32,
    /// Whether nothing failed, everything was decided, and nothing is missing.
    pub holds: bool,
    /// The limits that were applied.
    pub limits: Limits,
    /// The number of figures that were checked.
    pub gated: usize,
    /// Figures that are certainly worse than allowed.
    pub failed: Vec<Change>,
    /// Figures whose interval reaches beyond the limit but does not lie beyond it, or that rest on too few rounds: they have not passed.
    pub undecided: Vec<Change>,
    /// Figures that the old run has and the new run lacks, or has no sound cell for, and what was asked for and neither has: a contender that crashes must not pass for one that is
    /// as good.
    pub missing: Vec<String>,
}

/// Applies the limits to the comparison.
pub fn gate(comparison: &Comparison, limits: &Limits) -> Outcomes {
    let is_metric = |change: &&Change| is_gated(limits, &change.metric, change.is_open_loop);
    let is_instance = |change: &&Change| limits.instances.is_empty() || limits.instances.contains(&change.instance);
    let gated: Vec<&Change> = comparison.changes.iter().filter(is_metric).filter(is_instance).collect();
    let (mut failed, mut undecided) = (Vec::new(), Vec::new());
    for &change in &gated {
        // How much worse it is, at least and at most.
        let (least, most) = regression(change);
        if change.outcome == Outcome::Worse && least > limits.regress_max {
            failed.push(change.clone());
        } else if most > limits.regress_max || change.outcome == Outcome::TooFewRounds {
            undecided.push(change.clone());
        }
    }
    let is_asked_for = |gone: &&Gone| {
        let is_metric = gone.metrics.iter().any(|metric| is_gated(limits, metric, gone.is_open_loop));
        is_metric && (limits.instances.is_empty() || limits.instances.contains(&gone.instance))
    };
    let mut missing: Vec<String> = comparison.lost.iter().filter(is_asked_for).map(ToString::to_string).collect();
    // What was asked for and is in neither run has not passed.
    let is_there = |name: &str, of: fn(&Change) -> &str| comparison.changes.iter().any(|change| of(change) == name);
    let is_lost = |name: &String| comparison.lost.iter().any(|gone| gone.instance == *name);
    let unknown = limits.instances.iter().filter(|name| !is_there(name, |change| &change.instance) && !is_lost(name));
    missing.extend(unknown.map(|name| format!("{name}, of which neither run has a figure")));
    let unknown = limits.metrics.iter().filter(|name| !is_there(name, |change| &change.metric));
    missing.extend(unknown.map(|name| format!("the metric {name}, of which neither run has a figure")));
    // A gate that has checked nothing does not hold.
    let holds = failed.is_empty() && missing.is_empty() && undecided.is_empty() && !gated.is_empty();
    Outcomes { version: 1, holds, limits: limits.clone(), gated: gated.len(), failed, undecided, missing }
}

/// How much worse the new run is, as a share of the old one: both ends of the interval.
fn regression(change: &Change) -> (f64, f64) {
    let ratio = &change.ratio;
    match crate::report::better(&change.metric) {
        crate::report::Better::Less => (ratio.low - 1.0, ratio.high - 1.0),
        crate::report::Better::More => (1.0 - ratio.high, 1.0 - ratio.low),
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, changes) in
            [("Worse than allowed:", &self.failed), ("Not decided (too noisy or too few rounds):", &self.undecided)]
        {
            if !changes.is_empty() {
                writeln!(to, "{what}\n\n{}", crate::report::changes(changes))?;
            }
        }
        for missing in &self.missing {
            writeln!(to, "Not measured in the new run: {missing}")?;
        }
        let allowed = self.limits.regress_max * 100.0;
        let (gated, failed) = (self.gated, self.failed.len());
        if self.holds {
            return write!(
                to,
                "HOLDS: all {gated} figures are decided, and none is certainly more than {allowed} % worse"
            );
        }
        let mut why = Vec::new();
        if failed > 0 {
            why.push(format!("{failed} of {gated} figures are more than {allowed} % worse"));
        }
        if !self.undecided.is_empty() {
            let undecided = self.undecided.len();
            why.push(format!("{undecided} of {gated} could not be decided, for which more rounds would help"));
        }
        if !self.missing.is_empty() {
            why.push(format!("the new run lacks {} of what the old one has or was asked for", self.missing.len()));
        }
        if gated == 0 && self.missing.is_empty() {
            why.push("there was no figure to check".to_owned());
        }
        write!(to, "DOES NOT HOLD: {}", why.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Estimate;

    fn change(metric: &str, low: f64, high: f64) -> Change {
        let ratio = Estimate { median: f64::midpoint(low, high), low, high, rounds: 10, confidence: 0.95 };
        let is_worse =
            if crate::report::better(metric) == crate::report::Better::More { high < 0.99 } else { low > 1.01 };
        Change {
            case: "capacity".into(),
            instance: "steelyard-http".into(),
            metric: metric.into(),
            old: 1.0,
            new: ratio.median,
            ratio,
            noise: 0.01,
            is_open_loop: false,
            outcome: if is_worse { Outcome::Worse } else { Outcome::NotShown },
        }
    }

    /// Whether it holds, how many failed, how many were not decided.
    #[track_caller]
    fn check(changes: Vec<Change>, regress_max: f64, expect: (bool, usize, usize)) {
        let comparison = Comparison {
            version: 1,
            scenario: "x".into(),
            cautions: Vec::new(),
            changes,
            gone: Vec::new(),
            lost: Vec::new(),
            added: Vec::new(),
        };
        let limits = Limits { regress_max, instances: Vec::new(), metrics: Vec::new() };
        let got = gate(&comparison, &limits);
        assert_eq!((got.holds, got.failed.len(), got.undecided.len()), expect, "{got}");
        assert!(got.to_string().contains(if expect.0 { "HOLDS:" } else { "DOES NOT HOLD:" }));
    }

    #[test]
    fn only_what_is_surely_worse_fails() {
        check(vec![change("ok_per_s", 0.99, 1.01)], 0.03, (true, 0, 0));
        check(vec![change("ok_per_s", 0.90, 0.95)], 0.03, (false, 1, 0));
        check(vec![change("lb_us_per_op", 1.05, 1.10)], 0.03, (false, 1, 0));
        // Surely worse, but by no more than is allowed.
        check(vec![change("lb_us_per_op", 1.02, 1.025)], 0.03, (true, 0, 0));
        // Better is no failure.
        check(vec![change("lb_us_per_op", 0.5, 0.6), change("ok_per_s", 1.5, 1.6)], 0.03, (true, 0, 0));
    }

    #[test]
    fn what_is_not_decided_has_not_passed() {
        check(vec![change("ok_per_s", 0.90, 1.10)], 0.03, (false, 0, 1));
        check(vec![change("ok_per_s", 0.90, 1.10), change("ok_per_s", 0.99, 1.0)], 0.03, (false, 0, 1));
        let few = Change { outcome: Outcome::TooFewRounds, ..change("ok_per_s", 0.99, 1.01) };
        check(vec![few], 0.03, (false, 0, 1));
        check(Vec::new(), 0.03, (false, 0, 0));
        // The latency of a closed loop follows from its rate, and that of an open one is a figure of its own.
        check(vec![change("p99_us", 2.0, 3.0), change("ok_per_s", 0.99, 1.0)], 0.03, (true, 0, 0));
        let open = |low, high| Change { is_open_loop: true, ..change("p99_us", low, high) };
        check(vec![open(2.0, 3.0)], 0.03, (false, 1, 0));
        check(vec![open(0.99, 1.02)], 0.03, (true, 0, 0));
        // Not among the gated metrics.
        check(vec![change("min_us", 2.0, 3.0)], 0.03, (false, 0, 0));
    }

    #[test]
    fn a_contender_that_has_gone_does_not_pass() {
        let mut old = crate::report::sample::run(crate::record::Table::L4l7Ab);
        old.cells
            .retain(|cell| cell.case == "capacity" && ["nginx-http", "haproxy-http"].contains(&cell.instance.as_str()));
        let check = |new: &crate::record::Run, instances: &[&str], expect: (bool, usize)| {
            let comparison = crate::compare::compare(&old, new).unwrap();
            let instances = instances.iter().map(|name| (*name).to_owned()).collect();
            let limits = Limits { regress_max: 0.05, instances, metrics: Vec::new() };
            let got = gate(&comparison, &limits);
            assert_eq!((got.holds, got.missing.len()), expect, "{got}");
            got.to_string()
        };
        check(&old, &[], (true, 0));
        // Without a cell.
        let mut gone = old.clone();
        gone.cells.retain(|cell| cell.instance != "haproxy-http");
        let said = check(&gone, &[], (false, 1));
        assert!(said.contains("Not measured in the new run: haproxy-http under capacity"), "{said}");
        check(&gone, &["nginx-http"], (true, 0));
        check(&gone, &["haproxy-http"], (false, 1));
        // Asked for, and in neither.
        let said = check(&old, &["nginx-http", "ngnix-http"], (false, 1));
        assert!(said.contains("ngnix-http, of which neither run has a figure"), "{said}");
        // With cells of which none is sound.
        let mut dead = old.clone();
        for cell in dead.cells.iter_mut().filter(|cell| cell.instance == "haproxy-http") {
            cell.measurement = None;
            cell.failure = Some(crate::record::Failure { why: "it died".into(), log: Vec::new() });
        }
        crate::report::analyse(&mut dead);
        check(&dead, &[], (false, 1));
    }

    #[test]
    fn a_run_against_itself_holds() {
        let mut run = crate::report::sample::run(crate::record::Table::L4l7Ab);
        run.cells.retain(|cell| cell.instance == "nginx-http");
        let comparison = crate::compare::compare(&run, &run).unwrap();
        let limits = Limits { regress_max: 0.05, instances: vec!["nginx-http".into()], metrics: Vec::new() };
        let got = gate(&comparison, &limits);
        // Three cases with rate and two costs, and two latencies of the two that are open loops.
        assert!(got.holds && got.gated == 13, "{got}");
    }
}

//! Compares two runs of one scenario: what changed, and whether it can be distinguished from noise.
//!
//! The rounds of two runs were not measured in turns, so nothing cancels: each interval contains the whole spread of both runs, and the
//! noise floor is the larger one of the two. `gate` decides whether a change is acceptable.

use std::fmt;
use std::io;

use serde::Serialize;

use crate::record::{Mode, Run};
use crate::report::{Better, METRICS_COMPARED, Reading};
use crate::stats::{Difference, Estimate, differs, unpaired_ratio};

/// The seed of the intervals. Any will do, if it is always the same.
const SEED: u64 = 1;

/// The change of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// [`Case::name`](crate::record::Case::name).
    pub case: String,
    /// [`Instance::id`](crate::record::Instance::id).
    pub instance: String,
    /// [`Statistic::metric`](crate::record::Statistic::metric).
    pub metric: String,
    /// Median of the old run.
    pub old: f64,
    /// Median of the new run.
    pub new: f64,
    /// New divided by old.
    pub ratio: Estimate,
    /// Differences up to this share are noise.
    pub noise: f64,
    /// Whether the load of the case has a rate of its own. If not, its latency follows from the rate that it reached.
    pub is_open_loop: bool,
    /// The conclusion.
    pub outcome: Outcome,
}

/// The conclusion about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The whole interval lies on the good side of the noise.
    Better,
    /// The whole interval lies on the bad side of the noise.
    Worse,
    /// No difference could be shown.
    NotShown,
    /// Too few rounds in one of the runs.
    TooFewRounds,
}

/// The comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The version of this form, as JSON. It changes when a field is removed or changes its meaning.
    pub version: u32,
    /// The scenario of both runs.
    pub scenario: String,
    /// Other possible reasons for a difference: another host, kernel or placement.
    pub cautions: Vec<String>,
    /// Every figure that both runs have.
    pub changes: Vec<Change>,
    /// Cells that only the old run has.
    pub gone: Vec<String>,
    /// Figures that only the old run has: those of these cells, and of cells without a sound round in the new run.
    pub lost: Vec<Gone>,
    /// Cells that only the new run has.
    pub added: Vec<String>,
}

/// Figures of a cell that the new run lacks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gone {
    /// As of [`Change`].
    pub case: String,
    /// As of [`Change`].
    pub instance: String,
    /// As of [`Change`].
    pub metrics: Vec<&'static str>,
    /// As of [`Change`].
    pub is_open_loop: bool,
}

impl fmt::Display for Gone {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} under {}", self.instance, self.case)
    }
}

/// Compares `new` with `old`. Both must have been judged.
///
/// # Errors
/// If the runs are of different scenarios, or have no figure in common.
pub fn compare(old: &Run, new: &Run) -> io::Result<Comparison> {
    let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let (of_old, of_new) = (&old.scenario.name, &new.scenario.name);
    if of_old != of_new {
        return Err(invalid(format!(
            "one run is of {of_old} and the other of {of_new}: both must be of the same scenario"
        )));
    }
    let (old_reading, new_reading) = (Reading::new(old), Reading::new(new));
    let (old_cells, new_cells) = (old_reading.cells(), new_reading.cells());
    let mut changes = Vec::new();
    for (case, instance) in old_cells.iter().filter(|cell| new_cells.contains(cell)) {
        for &(metric, better) in METRICS_COMPARED {
            let change = change(&old_reading, &new_reading, case, instance, metric, better);
            changes.extend(change.map(|change| Change { is_open_loop: is_open_loop(new, case), ..change }));
        }
    }
    if changes.is_empty() {
        return Err(invalid("the runs have no sound figure in common".to_owned()));
    }
    let lost = |(case, instance): &(&str, &str)| {
        let is_lost = |metric: &&'static str| {
            let has = |reading: &Reading<'_>| !reading.values(case, instance, metric).is_empty();
            has(&old_reading) && !has(&new_reading)
        };
        let metrics: Vec<_> = METRICS_COMPARED.iter().map(|(metric, _)| *metric).filter(is_lost).collect();
        (!metrics.is_empty()).then(|| Gone {
            case: (*case).to_owned(),
            instance: (*instance).to_owned(),
            metrics,
            is_open_loop: is_open_loop(old, case),
        })
    };
    let only = |cells: &[(&str, &str)], others: &[(&str, &str)]| {
        let only = cells.iter().filter(|cell| !others.contains(cell));
        only.map(|(case, instance)| format!("{instance} under {case}")).collect()
    };
    Ok(Comparison {
        version: 1,
        scenario: of_old.clone(),
        cautions: cautions(old, new),
        changes,
        gone: only(&old_cells, &new_cells),
        lost: old_cells.iter().filter_map(lost).collect(),
        added: only(&new_cells, &old_cells),
    })
}

fn change(
    old: &Reading<'_>,
    new: &Reading<'_>,
    case: &str,
    instance: &str,
    metric: &str,
    better: Better,
) -> Option<Change> {
    let (old_values, new_values) = (old.values(case, instance, metric), new.values(case, instance, metric));
    let ratio = unpaired_ratio(&new_values, &old_values, SEED)?;
    let noise = old.noise(case, metric).max(new.noise(case, metric));
    let outcome = match (differs(&ratio, noise), better) {
        (Difference::More, Better::More) | (Difference::Less, Better::Less) => Outcome::Better,
        (Difference::More, Better::Less) | (Difference::Less, Better::More) => Outcome::Worse,
        (Difference::NotShown, _) => Outcome::NotShown,
        (Difference::TooFewRounds, _) => Outcome::TooFewRounds,
    };
    let median = |values: &[f64]| crate::stats::median(values);
    Some(Change {
        case: case.to_owned(),
        instance: instance.to_owned(),
        metric: metric.to_owned(),
        old: median(&old_values)?,
        new: median(&new_values)?,
        ratio,
        noise,
        is_open_loop: false,
        outcome,
    })
}

/// Whether the load of a case has a rate of its own.
fn is_open_loop(run: &Run, case: &str) -> bool {
    run.case(case).is_some_and(|case| matches!(case.load.mode, Mode::Open { .. }))
}

/// The differences between the runs besides the intended one.
fn cautions(old: &Run, new: &Run) -> Vec<String> {
    let (old_env, new_env) = (&old.environment, &new.environment);
    let pairs = [
        ("CPU", old_env.cpu_model.clone(), new_env.cpu_model.clone()),
        ("number of CPUs", old_env.cpus.to_string(), new_env.cpus.to_string()),
        ("kernel", old_env.kernel.clone(), new_env.kernel.clone()),
        ("placement", old_env.placement.clone(), new_env.placement.clone()),
        ("hypervisor", format!("{:?}", old_env.hypervisor), format!("{:?}", new_env.hypervisor)),
        ("frequency governor", format!("{:?}", old_env.governor), format!("{:?}", new_env.governor)),
        ("loopback", old.scenario.loopback.to_string(), new.scenario.loopback.to_string()),
        ("--quick", old.quick.to_string(), new.quick.to_string()),
    ];
    let differing = pairs.into_iter().filter(|(_, old, new)| old != new);
    let mut cautions: Vec<String> =
        differing.map(|(what, old, new)| format!("{what}: {old} in the old run, {new} in the new one")).collect();
    for contender in &new.contenders {
        let before = old.contenders.iter().find(|before| before.name == contender.name);
        if let Some(before) = before.filter(|before| before.version != contender.version) {
            cautions.push(format!(
                "{}: {} in the old run, {} in the new one",
                contender.title, before.version, contender.version
            ));
        }
    }
    for case in &new.scenario.cases {
        let before = old.scenario.cases.iter().find(|before| before.name == case.name);
        if before.is_some_and(|before| before.load != case.load || before.origin != case.origin) {
            cautions.push(format!("case {}: load or origin differ from the old run", case.name));
        }
    }
    cautions
}

impl fmt::Display for Comparison {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "{}, new compared with old\n", self.scenario)?;
        for caution in &self.cautions {
            writeln!(to, "caution: {caution}")?;
        }
        for cell in &self.gone {
            writeln!(to, "only in the old run: {cell}")?;
        }
        for lost in self.lost.iter().filter(|lost| !self.gone.contains(&lost.to_string())) {
            writeln!(to, "no sound round in the new run: {lost}")?;
        }
        for cell in &self.added {
            writeln!(to, "only in the new run: {cell}")?;
        }
        write!(to, "\n{}", crate::report::changes(&self.changes))?;
        let count = |outcome| self.changes.iter().filter(|change| change.outcome == outcome).count();
        write!(
            to,
            "{} better, {} worse, {} without a significant difference, {} with too few rounds",
            count(Outcome::Better),
            count(Outcome::Worse),
            count(Outcome::NotShown),
            count(Outcome::TooFewRounds)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Table;
    use crate::report::sample;

    /// The sample's capacity case with three contenders: ten thousand draws for every figure of the whole sample would take a while
    /// unoptimised.
    fn small() -> Run {
        let mut run = sample::raw(Table::L4l7Ab);
        run.cells.retain(|cell| {
            cell.case == "capacity" && ["nodeport", "nginx-http", "haproxy-http"].contains(&cell.instance.as_str())
        });
        crate::report::analyse(&mut run);
        run
    }

    /// The same run, with the CPU time of one instance and everything that follows from it multiplied by `factor`.
    fn with_cost(instance: &str, factor: f64) -> Run {
        let mut run = small();
        for cell in run.cells.iter_mut().filter(|cell| cell.instance == instance) {
            let measurement = cell.measurement.as_mut().unwrap();
            measurement.ok_per_s /= factor;
            measurement.ok = (measurement.ok as f64 / factor) as u64;
        }
        crate::report::analyse(&mut run);
        run
    }

    fn outcome(comparison: &Comparison, instance: &str, metric: &str) -> Outcome {
        let is_it =
            |change: &&Change| change.case == "capacity" && change.instance == instance && change.metric == metric;
        comparison.changes.iter().find(is_it).unwrap().outcome
    }

    #[test]
    fn only_what_changed_is_said_to_have_changed() {
        let comparison = compare(&small(), &with_cost("nginx-http", 1.3)).unwrap();
        assert_eq!(outcome(&comparison, "nginx-http", "ok_per_s"), Outcome::Worse);
        assert_eq!(outcome(&comparison, "nginx-http", "lb_us_per_op"), Outcome::Worse);
        assert_eq!(outcome(&comparison, "haproxy-http", "ok_per_s"), Outcome::NotShown);
        let back = compare(&with_cost("nginx-http", 1.3), &small()).unwrap();
        assert_eq!(outcome(&back, "nginx-http", "ok_per_s"), Outcome::Better);
        assert!(comparison.to_string().contains("worse"), "{comparison}");
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let run = small();
        let comparison = compare(&run, &run).unwrap();
        assert!(comparison.changes.iter().all(|change| change.outcome == Outcome::NotShown));
        assert!(comparison.cautions.is_empty() && comparison.gone.is_empty() && comparison.added.is_empty());
    }

    #[test]
    fn what_cannot_be_compared_is_refused_or_named() {
        let (old, mut new) = (small(), small());
        assert!(
            compare(&old, &sample::run(Table::L4Matrix))
                .unwrap_err()
                .to_string()
                .contains("both must be of the same scenario")
        );
        new.environment.kernel = "6.18.0".into();
        new.contenders.iter_mut().for_each(|contender| contender.version = "9".into());
        new.cells.retain(|cell| cell.instance != "haproxy-http");
        let comparison = compare(&old, &new).unwrap();
        assert!(comparison.cautions[0].contains("kernel: 6.1.0 in the old run, 6.18.0"), "{:?}", comparison.cautions);
        assert!(comparison.cautions.iter().any(|caution| caution.starts_with("nginx http: 1.2.3")));
        assert!(comparison.gone.contains(&"haproxy-http under capacity".to_owned()), "{:?}", comparison.gone);
        new.cells.clear();
        assert!(compare(&old, &new).is_err());
    }

    #[test]
    fn too_few_rounds_show_nothing() {
        let few = |mut run: Run| {
            run.cells.retain(|cell| cell.round < 3);
            run
        };
        let comparison = compare(&few(small()), &few(with_cost("nginx-http", 3.0))).unwrap();
        assert_eq!(outcome(&comparison, "nginx-http", "ok_per_s"), Outcome::TooFewRounds);
    }
}

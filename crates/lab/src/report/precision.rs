//! Which ratios of a run are less certain than a reader wants: those for which more rounds are worth their time.

use crate::record::{Mode, Run, Verdict};
use crate::stats::{ROUNDS_MIN, half_width};

use super::figures::{BUSY_US, CORES_PER_GBPS, Figures, GBPS, RPS};
use super::number;

/// Further rounds of a cell that fails in each are not worth their time.
const FAILURES_MAX: usize = 3;

/// Names that a note has at most.
const NAMED_MAX: usize = 12;

/// A cell whose ratio to the reference is not certain enough.
#[derive(Clone, Debug, PartialEq)]
pub struct Imprecise {
    /// [`Case::name`](crate::record::Case::name).
    pub case: String,
    /// [`Instance::id`](crate::record::Instance::id).
    pub instance: String,
    /// How far the widest interval reaches from its ratio, as a share of it; infinite for too few rounds.
    pub half_width: f64,
}

/// The cells of `cases` with a ratio whose interval reaches further from it than `precision`, as a share of it. The run must have been judged.
///
/// The ratios are those of the rate, where it is not the same for all, and of the CPU of the whole host. A cell in which something other than
/// the host's noise is wrong, round after round, is not among them.
#[must_use]
pub fn imprecise(run: &Run, cases: &[&str], precision: f64) -> Vec<Imprecise> {
    let figures = Figures::new(run);
    let mut found = Vec::new();
    for case in run.scenario.cases.iter().filter(|case| cases.contains(&case.name.as_str())) {
        let metrics: &[&str] = match case.load.mode {
            Mode::Closed | Mode::Search { .. } => &[RPS, GBPS, BUSY_US, CORES_PER_GBPS],
            Mode::Open { .. } => &[BUSY_US, CORES_PER_GBPS],
        };
        let reference = &run.scenario.reference;
        for instance in figures.instances(&case.name) {
            let cells = figures.cells(&case.name, &instance.id);
            let is_hopeless = cells.len() >= FAILURES_MAX
                && cells.iter().rev().take(FAILURES_MAX).all(|cell| {
                    let verdict = cell.judgement.as_ref().map(|judgement| judgement.verdict);
                    matches!(verdict, None | Some(Verdict::Invalid))
                });
            if is_hopeless || instance.id == *reference {
                continue;
            }
            let ratios = metrics.iter().filter_map(|metric| figures.ratio(&case.name, &instance.id, reference, metric));
            let widths: Vec<f64> = ratios.map(|ratio| half_width(&ratio)).collect();
            // Without a single pair there is no ratio yet.
            let widest = if widths.is_empty() { f64::INFINITY } else { widths.into_iter().fold(0.0, f64::max) };
            if widest > precision {
                found.push(Imprecise { case: case.name.clone(), instance: instance.id.clone(), half_width: widest });
            }
        }
    }
    found
}

/// What a reader must know if the time ended before `still` were as precise as wanted.
#[must_use]
pub fn imprecise_note(still: &[Imprecise], precision: f64) -> String {
    let name = |cell: &Imprecise| match cell.half_width.is_finite() {
        true => format!("{} under {} (±{})", cell.instance, cell.case, number::per_cent(cell.half_width)),
        false => format!("{} under {} (fewer than {ROUNDS_MIN} pairs)", cell.instance, cell.case),
    };
    let mut names: Vec<String> = still.iter().take(NAMED_MAX).map(name).collect();
    if still.len() > NAMED_MAX {
        names.push(format!("{} more", still.len() - NAMED_MAX));
    }
    format!(
        "The time ended before these ratios to the reference were certain within ±{}: {}",
        number::per_cent(precision),
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Failure, Table};
    use crate::report::sample;

    fn names(run: &Run, precision: f64) -> Vec<String> {
        imprecise(run, &["capacity"], precision).into_iter().map(|cell| cell.instance).collect()
    }

    #[test]
    fn what_is_certain_enough_takes_no_more_rounds() {
        let mut run = sample::run(Table::L4l7Ab);
        assert_eq!(names(&run, 0.05), [""; 0], "the sample's noise is 1 %");
        let wide = names(&run, 0.0001);
        assert!(wide.contains(&"nginx-http".to_owned()) && !wide.contains(&run.scenario.reference), "{wide:?}");
        assert_eq!(imprecise(&run, &["no such case"], 0.0), []);
        // Five rounds are no interval.
        run.cells.retain(|cell| cell.round < 5 || cell.instance != "nginx-http");
        let few = imprecise(&run, &["capacity"], 0.05);
        assert!(few.len() == 1 && few[0].instance == "nginx-http" && few[0].half_width.is_infinite(), "{few:?}");
        let note = imprecise_note(&few, 0.05);
        assert!(note.contains("nginx-http under capacity (fewer than 6 pairs)") && note.contains("±5.0 %"), "{note}");
    }

    #[test]
    fn what_fails_each_time_is_not_tried_forever() {
        let mut run = sample::run(Table::L4l7Ab);
        sample::kill(&mut run, "capacity", "nginx-http");
        crate::report::analyse(&mut run);
        assert_eq!(names(&run, 0.05), [""; 0]);
        // After two failures it may still recover.
        run.cells.retain(|cell| cell.round < 2 || cell.instance != "nginx-http");
        let cell = run.cells.iter_mut().find(|cell| cell.instance == "nginx-http" && cell.case == "capacity").unwrap();
        cell.failure = Some(Failure { why: "it died".into(), log: Vec::new() });
        assert_eq!(names(&run, 0.05), ["nginx-http"]);
    }
}

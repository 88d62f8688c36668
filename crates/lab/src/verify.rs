//! Checks whether a run's report agrees with its rounds.
//!
//! [`verify`] judges, computes and renders again from the cells of `run.json` alone, and names every difference. It cannot know whether the
//! cells are true.

use crate::record::{Cell, Run, Verdict};
use crate::report;

/// How many discrepancies of a kind are named one by one.
const NAMED_MAX: usize = 20;

/// A difference between the file and its rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discrepancy {
    /// The place in the file.
    pub place: String,
    /// What the file has, and what it should have.
    pub what: String,
}

impl std::fmt::Display for Discrepancy {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}: {}", self.place, self.what)
    }
}

/// The files beside a `run.json`, which should agree with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Beside<'a> {
    /// The text of `report.md`.
    pub report: Option<&'a str>,
    /// The text of `README.md`, which a kept run has.
    pub readme: Option<&'a str>,
}

/// Compares `run` and the files `beside` it with what its cells give. Returns nothing if everything agrees.
pub fn verify(run: &Run, beside: Beside<'_>) -> Vec<Discrepancy> {
    let mut again = run.clone();
    report::analyse(&mut again);
    let mut found = figures_that_do_not_add_up(run);
    found.extend(verdicts(run, &again));
    // A kept run has no statistics, because they follow from its cells.
    if !run.kept {
        found.extend(listed("statistic", &run.statistics, &again.statistics, |statistic| {
            format!("{} of {} under {}", statistic.metric, statistic.instance, statistic.case)
        }));
    }
    found.extend(listed("conclusion", &run.conclusions, &again.conclusions, |conclusion| conclusion.text.clone()));
    if let Some(text) = beside.report {
        found.extend(lines("report.md", text, &report::markdown(&again)));
    }
    if let Some(text) = beside.readme {
        found.extend(lines("README.md", text, &report::readme(&again)));
    }
    found
}

/// Figures of a cell that contradict its other figures.
fn figures_that_do_not_add_up(run: &Run) -> Vec<Discrepancy> {
    let mut found = Vec::new();
    for cell in &run.cells {
        let Some(measurement) = &cell.measurement else {
            if cell.failure.is_none() {
                found.push(Discrepancy {
                    place: place(cell),
                    what: "the cell has neither a measurement nor a failure".to_owned(),
                });
            }
            continue;
        };
        let rate = measurement.ok as f64 / measurement.window_s;
        // `ok_per_s` may be rounded.
        if (rate - measurement.ok_per_s).abs() > 0.001 * rate + 1.0 {
            let what = format!(
                "the file has {} per second, but {} in {} s give {rate:.1}",
                measurement.ok_per_s, measurement.ok, measurement.window_s
            );
            found.push(Discrepancy { place: place(cell), what });
        }
        if run.case(&cell.case).is_none() || run.instance(&cell.instance).is_none() {
            found
                .push(Discrepancy { place: place(cell), what: "the scenario has no such case or instance".to_owned() });
        }
    }
    found.truncate(NAMED_MAX);
    found
}

fn verdicts(run: &Run, again: &Run) -> Vec<Discrepancy> {
    let verdict = |cell: &Cell| cell.judgement.as_ref().map(|judgement| judgement.verdict);
    let show = |verdict: Option<Verdict>| verdict.map_or("none".to_owned(), |verdict| format!("{verdict:?}"));
    let cells = run.cells.iter().zip(&again.cells).filter(|(was, is)| was.judgement != is.judgement);
    let discrepancy = |(was, is): (&Cell, &Cell)| {
        let what =
            format!("the file has the verdict {}, but the figures give {}", show(verdict(was)), show(verdict(is)));
        Discrepancy { place: place(was), what }
    };
    cells.take(NAMED_MAX).map(discrepancy).collect()
}

fn place(cell: &Cell) -> String {
    format!("{} under {}, round {}", cell.instance, cell.case, cell.round + 1)
}

/// Compares lists that should be equal, element by element.
fn listed<T: PartialEq + std::fmt::Debug>(
    kind: &str,
    was: &[T],
    is: &[T],
    name: impl Fn(&T) -> String,
) -> Vec<Discrepancy> {
    let mut found = Vec::new();
    for (was, is) in was.iter().zip(is).filter(|(was, is)| was != is).take(NAMED_MAX) {
        found.push(Discrepancy {
            place: format!("{kind} {}", name(was)),
            what: format!("the file has {was:?}, but the rounds give {is:?}"),
        });
    }
    if was.len() != is.len() {
        let what = format!("the file has {}, but the rounds give {}", was.len(), is.len());
        found.push(Discrepancy { place: format!("{kind}s"), what });
    }
    found
}

/// The first lines that differ.
fn lines(file: &str, was: &str, is: &str) -> Vec<Discrepancy> {
    let mut found = Vec::new();
    let (mut was, mut is) = (was.lines(), is.lines());
    for number in 1usize.. {
        let (left, right) = (was.next(), is.next());
        if (left.is_none() && right.is_none()) || found.len() >= NAMED_MAX {
            break;
        }
        if left != right {
            let show = |line: Option<&str>| line.map_or("nothing".to_owned(), |line| format!("{line:?}"));
            let what = format!("the file has {}, but the rounds give {}", show(left), show(right));
            found.push(Discrepancy { place: format!("{file} line {number}"), what });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Table;
    use crate::report::sample;

    fn report_of(text: &str) -> Beside<'_> {
        Beside { report: Some(text), readme: None }
    }

    #[track_caller]
    fn check(tamper: impl Fn(&mut Run), expect: &[&str]) {
        let mut run = sample::run(Table::L4l7Ab);
        tamper(&mut run);
        let found: Vec<String> = verify(&run, Beside::default()).iter().map(ToString::to_string).collect();
        assert_eq!(found.is_empty(), expect.is_empty(), "{found:?}");
        for part in expect {
            assert!(found.iter().any(|line| line.contains(part)), "{part:?} is not in {found:#?}");
        }
    }

    #[test]
    fn a_run_that_was_left_alone() {
        check(|_| {}, &[]);
        // Read from its own file, to show that nothing is lost.
        let run = sample::run(Table::GrpcGateway);
        let read = Run::parse(&serde_json::to_string(&run).unwrap()).unwrap();
        assert_eq!(verify(&read, report_of(&report::markdown(&run))), []);
    }

    #[test]
    fn what_was_embellished_is_found() {
        check(|run| run.statistics[0].median *= 1.01, &["statistic ok_per_s of direct under capacity"]);
        check(|run| run.conclusions[0].text.push('!'), &["conclusion "]);
        check(|run| drop(run.conclusions.pop()), &["conclusions: "]);
        check(
            |run| run.cells[0].judgement.as_mut().unwrap().verdict = Verdict::CapBound,
            &["the file has the verdict CapBound"],
        );
        check(|run| run.cells[0].measurement.as_mut().unwrap().ok_per_s *= 2.0, &["round 1: ", " per second, but "]);
        check(
            |run| run.cells[0].measurement = None,
            &["the cell has neither a measurement nor a failure", "statistic "],
        );
        check(|run| run.cells[0].instance = "nobody".into(), &["the scenario has no such case or instance"]);
    }

    #[test]
    fn the_report_beside_it_is_compared_line_by_line() {
        let run = sample::run(Table::L4l7Ab);
        let text = report::markdown(&run);
        assert_eq!(verify(&run, report_of(&text)), []);
        let mended = text.replacen("| nginx http", "| nginx HTTP", 1);
        let found = verify(&run, report_of(&mended));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains("report.md line "), "{}", found[0]);
        assert!(!verify(&run, report_of(&text[..text.len() / 2])).is_empty());
        let readme = report::readme(&run);
        let beside = |text| Beside { report: None, readme: Some(text) };
        assert_eq!(verify(&run, beside(&readme)), []);
        let found = verify(&run, beside(&readme.replacen("seed 42", "seed 43", 1)));
        assert!(found.len() == 1 && found[0].to_string().contains("README.md line "), "{found:?}");
    }
}

//! Checks whether a run's report agrees with its rounds.
//!
//! [`verify`] judges, computes and renders again from the cells of `run.json` alone, and names every difference. It cannot know whether the
//! cells are true.

use crate::load::Latencies;
use crate::raw::Rounds;
use crate::record::{Cell, Distribution, Measurement, Run, Verdict};
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
    /// The raw data of a kept run.
    pub rounds: Option<&'a Rounds>,
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
    if let Some(rounds) = beside.rounds {
        found.extend(raw_data(run, rounds));
    }
    if let Some(text) = beside.report {
        found.extend(lines("report.md", text, &report::markdown(&again)));
    }
    if let Some(text) = beside.readme {
        found.extend(lines("README.md", text, &report::readme(&again)));
    }
    found
}

/// Cells that are not those of the raw data, and percentiles that are not those of their histograms.
fn raw_data(run: &Run, rounds: &Rounds) -> Vec<Discrepancy> {
    let raw = Run { cells: rounds.cells.clone(), ..run.clone() };
    let mut found = Vec::new();
    for (cell, raw) in run.cells.iter().zip(&raw.clone().without_bulk().cells) {
        if (&cell.measurement, &cell.failure) != (&raw.measurement, &raw.failure) {
            found.push(Discrepancy {
                place: place(cell),
                what: "the raw data of the round give other figures".to_owned(),
            });
        }
    }
    if run.cells.len() != rounds.cells.len() {
        let what = format!("the file has {} cells, but the raw data {}", run.cells.len(), rounds.cells.len());
        found.push(Discrepancy { place: "cells".to_owned(), what });
    }
    for cell in &raw.cells {
        for distribution in cell.measurement.iter().flat_map(Measurement::distributions) {
            if let Some(what) = distribution.histogram.as_ref().and_then(|text| of_histogram(distribution, text)) {
                found.push(Discrepancy { place: place(cell), what });
            }
        }
    }
    found.truncate(NAMED_MAX);
    found
}

/// What a distribution says that its histogram does not.
fn of_histogram(distribution: &Distribution, text: &str) -> Option<String> {
    let Some(latencies) = Latencies::decode(text) else { return Some("a histogram cannot be read".to_owned()) };
    if latencies.count() != distribution.count {
        return Some(format!("a histogram has {} values, not {}", latencies.count(), distribution.count));
    }
    distribution.percentiles.iter().find_map(|&(percent, us)| {
        let is = latencies.percentile(percent).as_secs_f64() * 1e6;
        ((is - us).abs() > 0.001 * us + 0.001)
            .then(|| format!("p{percent} is {us} µs, but its histogram gives {is} µs"))
    })
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
        Beside { report: Some(text), ..Beside::default() }
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
    fn raw_data_that_say_something_else_are_found() {
        let mut run = sample::run(Table::L4l7Ab);
        let mut latencies = Latencies::default();
        (1..=1_000).for_each(|us| latencies.record(std::time::Duration::from_micros(us)));
        run.cells[0].measurement.as_mut().unwrap().service = Some(latencies.distribution());
        crate::report::analyse(&mut run);
        let rounds = Rounds { version: 1, cells: run.cells.clone(), logs: Default::default() };
        let kept = crate::keep::kept(&Run { kept: true, ..run }, "vm7").unwrap();
        let found = |change: fn(&mut Rounds)| {
            let mut rounds = rounds.clone();
            change(&mut rounds);
            let found = verify(&kept, Beside { rounds: Some(&rounds), ..Beside::default() });
            found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(found(|_| {}), "");
        assert!(found(|rounds| drop(rounds.cells.pop())).contains("cells, but the raw data"));
        assert!(found(|rounds| rounds.cells[3].measurement = None).contains("give other figures"));
        let swapped = found(|rounds| {
            let service = &mut rounds.cells[0].measurement.as_mut().unwrap().service;
            service.as_mut().unwrap().percentiles[0].1 *= 1.1;
        });
        assert!(swapped.contains("but its histogram gives"), "{swapped}");
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
        let beside = |text| Beside { readme: Some(text), ..Beside::default() };
        assert_eq!(verify(&run, beside(&readme)), []);
        let found = verify(&run, beside(&readme.replacen("seed 42", "seed 43", 1)));
        assert!(found.len() == 1 && found[0].to_string().contains("README.md line "), "{found:?}");
    }
}

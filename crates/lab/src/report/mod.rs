//! The report of a run: one HTML page, the same as Markdown, and the figures in `run.json`.
//!
//! [`analyse`] fills a [`Run`] with judgements, statistics and conclusions; [`html()`] and [`markdown()`] render it; [`write()`] puts both
//! beside the run. Everything is computed from the cells of the run and from nothing else, so that `verify` can compute it again.
//!
//! It does not measure, and has no opinions: a sentence in a report has an inequality behind it (`conclude`).
//!
//! Order of the work: `figures` (one round of one metric) -> `statistics` -> `tables`, `conclude`, `sizing` -> `markdown`, `html`.

mod chart;
mod conclude;
mod environment;
mod figures;
mod first;
mod hops;
mod html;
mod markdown;
mod merged;
mod number;
mod plot;
mod plots;
mod precision;
mod reading;
mod readme;
mod sizing;
mod statistics;
mod table;
mod tables;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::judge;
use crate::record::Run;

pub(crate) use precision::{imprecise, imprecise_note};
pub(crate) use reading::{Better, METRICS_COMPARED, Reading, better, changes};

/// Judges every cell of `run` again, and computes its statistics and conclusions again.
pub fn analyse(run: &mut Run) {
    judge::judge_run(run);
    run.statistics = statistics::statistics(run);
    run.conclusions = conclude::conclusions(run);
}

/// The language of the titles of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// English
    #[default]
    En,
    /// Chinese, with a translation, for the titles that the published reports have in Chinese; everything else is in English
    Zh,
}

/// The report as Markdown. `run` must be analysed.
pub fn markdown(run: &Run) -> String {
    markdown::render(run, Language::En)
}

/// The report as one HTML page. `run` must be analysed.
pub fn html(run: &Run) -> String {
    html::render(run, Language::En)
}

/// The first page in the directory of a kept run: what was measured, where and how, and the result. `run` must be analysed.
pub fn readme(run: &Run) -> String {
    readme::render(run)
}

/// The tables of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tables {
    /// The whole run in one table, for a README
    Summary,
    /// The tables of the published report, with its columns
    Published,
    /// The tables that it should have had: intervals, costs, verdicts
    Honest,
    /// The cost of an operation for each balancer, a row for each case
    Costs,
}

impl Tables {
    /// The mark between whose two lines a document shows these tables of the run `name`.
    #[must_use]
    pub fn mark(self, name: &str) -> String {
        match self {
            Self::Summary => name.to_owned(),
            Self::Published => format!("{name} published"),
            Self::Honest => format!("{name} honest"),
            Self::Costs => format!("{name} costs"),
        }
    }

    /// The run and the tables in such a mark.
    #[must_use]
    pub fn of_mark(mark: &str) -> (&str, Self) {
        match mark.split_once(' ') {
            Some((name, "published")) => (name, Self::Published),
            Some((name, "honest")) => (name, Self::Honest),
            Some((name, "costs")) => (name, Self::Costs),
            _ => (mark, Self::Summary),
        }
    }
}

/// A chart of one case as an SVG file: the CPU time of each balancer, with every round. `name` is that of the run's directory. None if the
/// run has no such case, or no valid round of it. `run` must be analysed.
#[must_use]
pub fn chart(run: &Run, name: &str, case: &str) -> Option<String> {
    chart::chart(figures::Figures::new(run), name, case)
}

/// These tables as Markdown. `run` must be analysed.
pub fn tables(run: &Run, which: Tables) -> String {
    let figures = figures::Figures::new(run);
    let tables = match which {
        Tables::Summary => tables::summary(figures).into_iter().collect(),
        Tables::Published => tables::published(figures),
        Tables::Honest => tables::honest(figures),
        Tables::Costs => vec![chart::costs(figures)],
    };
    let mut text = tables.iter().map(table::Table::markdown).collect::<Vec<_>>().join("\n");
    // A document that shows the tables states what they were measured with. Runs of before this was recorded have nothing to state.
    if let Some(commit) = &run.environment.commit {
        let digest = run.environment.binaries.first().map_or("", |binary| binary.sha256.get(..12).unwrap_or_default());
        text += &format!("\nMeasured {} with commit {commit}, SHA-256 of the program {digest}….\n", run.started);
    }
    text
}

/// Writes `report.html` and `report.md` into `directory`, each completely or not at all. `run` must be analysed.
///
/// # Errors
/// The error of the host. An existing file is then unchanged.
pub fn write(run: &Run, directory: &Path, language: Language) -> io::Result<()> {
    write_text(&directory.join("report.html"), &html::render(run, language))?;
    write_text(&directory.join("report.md"), &markdown::render(run, language))
}

/// Writes a file completely or not at all.
pub(crate) fn write_text(path: &Path, text: &str) -> io::Result<()> {
    write_bytes(path, text.as_bytes())
}

/// The same for a file that is not text.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let outcome = fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path));
    if outcome.is_err() {
        // Half a file is useless, and a full disk needs its space.
        let _ = fs::remove_file(&beside);
    }
    outcome.map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

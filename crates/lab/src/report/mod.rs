//! The report of a run: one page of HTML, the same as Markdown, and the figures in `run.json`.
//!
//! Job: [`analyse`] fills a [`Run`] with judgements, statistics and conclusions; [`html()`] and [`markdown()`] render it; [`write()`] puts both
//! beside the run. Everything is computed from the cells of the run and from nothing else, so that `verify` can do it again.
//!
//! Non-job: measuring, and opinions. A sentence in a report has an inequality behind it (`conclude`).
//!
//! Order of the work: `figures` (one round of one metric) -> `statistics` -> `tables`, `conclude`, `sizing` -> `markdown`, `html`.

mod conclude;
mod environment;
mod figures;
mod html;
mod markdown;
mod merged;
mod number;
mod plot;
mod plots;
mod reading;
mod sizing;
mod statistics;
mod table;
mod tables;

use std::fs;
use std::io;
use std::path::Path;

use crate::judge;
use crate::record::Run;

pub(crate) use reading::{Better, METRICS_COMPARED, Reading, better, changes};

/// Judges every cell of `run` anew, and computes its statistics and conclusions anew.
pub fn analyse(run: &mut Run) {
    judge::judge_run(run);
    run.statistics = statistics::statistics(run);
    run.conclusions = conclude::conclusions(run);
}

/// The report as Markdown. `run` has been analysed.
pub fn markdown(run: &Run) -> String {
    markdown::render(run)
}

/// The report as one page of HTML. `run` has been analysed.
pub fn html(run: &Run) -> String {
    html::render(run)
}

/// Writes `report.html` and `report.md` into `directory`, each whole or not at all. `run` has been analysed.
///
/// # Errors
/// What the host says. What had stood there is then as it was.
pub fn write(run: &Run, directory: &Path) -> io::Result<()> {
    for (name, text) in [("report.html", html(run)), ("report.md", markdown(run))] {
        let path = directory.join(name);
        let beside = directory.join(format!("{name}.new"));
        let outcome = fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path));
        if outcome.is_err() {
            // Half a file is of no use, and on a full disk its room is wanted.
            let _ = fs::remove_file(&beside);
        }
        outcome.map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

//! What a run leaves behind: `run.json`.
//!
//! Job: the types of the file, its version, and how it is read and written whole or not at all. A [`Run`] holds every round of every cell
//! as it was measured, and beside it what was made of them: judgements, statistics, conclusions. Everything in a report is computed from
//! here, so that anybody can compute it again.
//!
//! Non-job: judging ([`Judgement`] says what a verdict is, not when it is given) and rendering.
//!
//! Words: a *case* is one workload of a scenario. An *instance* is a contender with a variant of its configuration, a number of workers and
//! a length of chain. A *cell* is one instance under one case in one round: the smallest thing that is measured.

mod cell;
mod environment;
mod lines;
mod plan;
mod result;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use cell::{
    Cell, Cpu, Distribution, Errors, Failure, Measurement, Memory, NetCounters, OriginShare, Probe, Sample, Second,
};
pub use environment::{Binary, Cgroups, Environment, Limits, Setting};
pub use plan::{
    Calibration, Case, Contender, Gap, Instance, Layer, LoadKind, LoadSpec, Mode, OriginKind, OriginSpec, Pacing,
    Protocol, Rate, Scenario, Table, Variant,
};
pub use result::{Conclusion, Judgement, Ratio, Statistic, Verdict};

/// The version of the file's form. It changes when a field goes or changes its meaning; a new optional field does not change it.
pub const SCHEMA: u32 = 1;

/// Bytes of a `run.json` at most: more is not one of ours.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// One run of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`] when it was written.
    pub schema: u32,
    /// Which program wrote it, with its version.
    pub program: String,
    /// When it began, in UTC, as RFC 3339 has it.
    pub started: String,
    /// When it ended; absent while it goes on, and in what a killed lab left behind.
    pub ended: Option<String>,
    /// Why it is not whole, if it is not: an interruption, a full disk. Whatever was measured before is here and good.
    pub partial: Option<String>,
    /// The command that would do it again, with the same shuffles.
    pub reproduce: String,
    /// Whether it was run with `--quick`: fewer cases, shorter windows.
    pub quick: bool,
    /// Of all shuffles.
    pub seed: u64,
    /// Rounds that were planned.
    pub rounds: u32,
    /// The host, and what ran on it.
    pub environment: Environment,
    /// What was to be measured.
    pub scenario: Scenario,
    /// Who took part, with the configuration that each was given.
    pub contenders: Vec<Contender>,
    /// Who or what did not take part, and why.
    pub gaps: Vec<Gap>,
    /// Ceilings of the instrument itself, by case.
    pub calibrations: Vec<Calibration>,
    /// Every round of every cell, in the order in which they were measured.
    pub cells: Vec<Cell>,
    /// What a reader must know who looks at these figures, in sentences.
    pub notes: Vec<String>,
    /// Whether it was made small enough to be kept, and the host's own paths and names were taken out: see [`crate::keep`].
    #[serde(default)]
    pub kept: bool,
    /// Computed from `cells`; empty until it has been, and in a run that is [`kept`](Self::kept).
    #[serde(default)]
    pub statistics: Vec<Statistic>,
    /// Computed from `statistics` and `cells`; empty until it has been.
    #[serde(default)]
    pub conclusions: Vec<Conclusion>,
}

impl Run {
    /// Reads `path`.
    ///
    /// # Errors
    /// What the host says; a file of another schema; text that is none of ours, with line and column.
    pub fn read(path: &Path) -> io::Result<Self> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let bytes = fs::metadata(path).map_err(at)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(at(invalid(format!(
                "{bytes} bytes are more than the {FILE_BYTES_MAX} that a run has at most"
            ))));
        }
        Self::parse(&fs::read_to_string(path).map_err(at)?).map_err(at)
    }

    /// Reads the text of a `run.json`.
    ///
    /// # Errors
    /// As [`Run::read`].
    pub fn parse(text: &str) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        // The version first: of another one, every further complaint would mislead.
        let version: Version = serde_json::from_str(text).map_err(|error| invalid(format!("not a run: {error}")))?;
        if version.schema != SCHEMA {
            return Err(invalid(format!("schema {}; this program reads schema {SCHEMA}", version.schema)));
        }
        serde_json::from_str(text).map_err(|error| invalid(format!("not a run: {error}")))
    }

    /// Writes `path` whole or not at all: a reader, or a lab that is killed at this moment, finds the old file or the new one.
    ///
    /// # Errors
    /// What the host says. The old file is then as it was.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("json.new");
        let outcome = self.write_synced(&beside).and_then(|()| fs::rename(&beside, path));
        if outcome.is_err() {
            // Half a file is of no use, and on a full disk its room is wanted.
            let _ = fs::remove_file(&beside);
        }
        outcome.map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
    }

    fn write_synced(&self, path: &Path) -> io::Result<()> {
        let mut file = io::BufWriter::new(fs::File::create(path)?);
        let mut lines = serde_json::Serializer::with_formatter(&mut file, lines::Lines::default());
        self.serialize(&mut lines)?;
        file.write_all(b"\n")?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }

    /// The same without what makes it large: histograms, series and samples. Every figure of the tables can still be computed, since each
    /// cell's percentiles stay.
    #[must_use]
    pub fn without_bulk(mut self) -> Self {
        for measurement in self.cells.iter_mut().filter_map(|cell| cell.measurement.as_mut()) {
            measurement.series.clear();
            measurement.samples.clear();
            for distribution in measurement.distributions_mut() {
                distribution.histogram = None;
            }
        }
        self
    }

    /// The case of that name.
    #[must_use]
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.scenario.cases.iter().find(|case| case.name == name)
    }

    /// The instance of that id.
    #[must_use]
    pub fn instance(&self, id: &str) -> Option<&Instance> {
        self.scenario.instances.iter().find(|instance| instance.id == id)
    }

    /// The rounds of one cell, in order. `twin` is 0 but for the second measurement of a round that tells the noise floor.
    pub fn rounds_of<'a>(&'a self, case: &'a str, instance: &'a str, twin: u8) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| cell.case == case && cell.instance == instance && cell.twin == twin)
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;

//! The result of a run: `run.json`.
//!
//! This module has the types of the file and its version, and reads and writes it completely or not at all. A [`Run`] holds every round of
//! every cell as it was measured, and also what was computed from them: judgements, statistics, conclusions. Everything in a report is
//! computed from these data, so anyone can compute it again.
//!
//! It does not judge ([`Judgement`] says what a verdict is, not when it is given) or render.
//!
//! Words: a *case* is one workload of a scenario. An *instance* is a contender with a variant of its configuration, a number of workers and
//! a chain length. A *cell* is one instance under one case in one round: the smallest unit of measurement.

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
    Cell, Cpu, Distribution, Errors, Failure, Measurement, Memory, NetCounters, OriginShare, Probe, ReferenceLoop,
    Sample, Second, Turn,
};
pub use environment::{Binary, Cgroups, Environment, Limits, Setting};
pub use plan::{
    Calibration, Case, Contender, Gap, Instance, Layer, LoadKind, LoadSpec, Mode, OriginKind, OriginSpec, Pacing,
    Protocol, Rate, Scenario, Table, Variant,
};
pub use result::{Conclusion, Judgement, Ratio, Statistic, Verdict};

/// The version of the file's form. It changes when a field is removed or changes its meaning; a new optional field does not change it.
pub const SCHEMA: u32 = 1;

/// The largest `run.json`. A larger file is not from this program.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// One run of one scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`] when it was written.
    pub schema: u32,
    /// The program that wrote it, with its version.
    pub program: String,
    /// When it began, in UTC, in RFC 3339 form.
    pub started: String,
    /// When it ended; absent during the run, and in what a killed lab left behind.
    pub ended: Option<String>,
    /// Why it is incomplete, if it is: an interruption, a full disk. Everything measured before is here and valid.
    pub partial: Option<String>,
    /// The command that repeats it, with the same shuffles.
    pub reproduce: String,
    /// Whether it was run with `--quick`: fewer cases, shorter windows.
    pub quick: bool,
    /// The seed of all shuffles.
    pub seed: u64,
    /// Rounds that were planned, and those that were added because intervals were still too wide.
    pub rounds: u32,
    /// The host, and what ran on it.
    pub environment: Environment,
    /// What was planned to be measured.
    pub scenario: Scenario,
    /// The contenders, with the configuration that each got.
    pub contenders: Vec<Contender>,
    /// What did not take part, and why.
    pub gaps: Vec<Gap>,
    /// Ceilings of the instrument itself, by case.
    pub calibrations: Vec<Calibration>,
    /// Every round of every cell, in the order in which they were measured.
    pub cells: Vec<Cell>,
    /// Sentences that a reader of these figures must know.
    pub notes: Vec<String>,
    /// Whether it was reduced to be kept, without the host's own paths and names: see [`crate::keep`].
    #[serde(default)]
    pub kept: bool,
    /// Computed from `cells`; empty before that, and in a run that is [`kept`](Self::kept).
    #[serde(default)]
    pub statistics: Vec<Statistic>,
    /// Computed from `statistics` and `cells`; empty before that.
    #[serde(default)]
    pub conclusions: Vec<Conclusion>,
}

impl Run {
    /// Reads `path`.
    ///
    /// # Errors
    /// The error of the host; a file of another schema; text that is not a run, with line and column.
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
    /// Those of [`Run::read`].
    pub fn parse(text: &str) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        // Check the version first: with another version, any further error would mislead.
        let version: Version = serde_json::from_str(text).map_err(|error| invalid(format!("not a run: {error}")))?;
        if version.schema != SCHEMA {
            let (is, what) = match version.schema < SCHEMA {
                true => ("an older", "read it with the program that wrote it, or run the scenario again"),
                false => ("a newer", "read it with a newer program"),
            };
            return Err(invalid(format!(
                "a run file of {is} version: it has schema {}, and this program reads schema {SCHEMA}: {what}",
                version.schema
            )));
        }
        serde_json::from_str(text).map_err(|error| invalid(format!("not a run: {error}")))
    }

    /// Writes `path` completely or not at all: a reader, or a lab that is killed at this moment, finds the old file or the new one.
    ///
    /// # Errors
    /// The error of the host. The old file is then unchanged.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("json.new");
        let outcome = self.write_synced(&beside).and_then(|()| fs::rename(&beside, path));
        if outcome.is_err() {
            // Half a file is useless, and a full disk needs its space.
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

    /// The same without the large parts: histograms, series and samples. Every figure of the tables can still be computed, since each
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

    /// The case with this name.
    #[must_use]
    pub fn case(&self, name: &str) -> Option<&Case> {
        self.scenario.cases.iter().find(|case| case.name == name)
    }

    /// The instance with this id.
    #[must_use]
    pub fn instance(&self, id: &str) -> Option<&Instance> {
        self.scenario.instances.iter().find(|instance| instance.id == id)
    }

    /// The rounds of one cell, in order. `twin` is 0 except for the second measurement in a round, which shows the noise floor.
    pub fn rounds_of<'a>(&'a self, case: &'a str, instance: &'a str, twin: u8) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| cell.case == case && cell.instance == instance && cell.twin == twin)
    }
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;

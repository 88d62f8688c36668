//! Tests the lab itself: does a host that is disturbed on purpose give the same answer as a quiet one?
//!
//! This is `steelyard lab verify --neighbours`. It runs one small scenario three times: as the host is; at a fixed rate with a process that
//! computes without end on the CPU of the load; and as fast as it goes under a quota that holds everything back. The ratios of costs must agree, and contenders that the first run
//! tells apart must be in the same order in the others. `stats` tests the arithmetic on planted data; this tests the whole instrument, and
//! takes a host that is quiet without the neighbours.
//!
//! It leaves a [`Recording`] of the three runs. [`replay`] compares them again, which takes no host at all: so a change of the statistics is
//! tested on what a disturbed host really does.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::placement::Placement;
use crate::record::Run;
use crate::report::{self, Reading};
use crate::stats::Estimate;
use crate::{Verdict, environment, keep, raw};

/// The file that the three runs are left in, below the directory of the test.
pub const FILE: &str = "neighbours.json.gz";

/// What it unpacks to at most. A larger file is not from this program.
const BYTES_MAX: u64 = 1 << 28;

/// Ratios may differ by this share between a disturbed run and the quiet one.
const DIFFERENCE_MAX: f64 = 0.05;

/// What all components may use together under the quota, as a share of the CPUs.
const QUOTA_SHARE: f64 = 0.7;

/// At a rate that every host and every neighbour leaves room for.
const STEADY: &str = "steady";

/// As fast as it goes: only that meets a quota.
const FULL: &str = "full";

/// What is compared.
const METRIC: &str = "busy_us_per_op";

const SCENARIO: &str = r#"
title = "The same with and without neighbours"
question = "Does a neighbour change what the lab says?"
contenders = ["steelyard-http", "direct", "steelyard-tcp", "haproxy-tcp", "haproxy-http", "nginx-http", "envoy-http"]
reference = "steelyard-http"
twins = ["steelyard-http"]
endpoints = 1

[time]
ramp = "200ms"
warm_up = "500ms"
measure = "2s"
trim = "200ms"

[[case]]
name = "steady"
title = "2,000 requests a second over 16 connections"
origin = {kind = "http", arguments = ["--body=18"]}
load = {kind = "http", connections = 16, rate = 2000}

[[case]]
name = "full"
title = "16 connections, as fast as it goes"
origin = {kind = "http", arguments = ["--body=18"]}
load = {kind = "http", connections = 16}
"#;

/// How to test.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds of each run.
    pub rounds: u32,
    /// The window of each cell.
    pub measure: Duration,
    /// Where the three runs are kept.
    pub directory: PathBuf,
    /// Only the order of the contenders must agree, because the host is not quiet.
    pub only_order: bool,
}

/// One contender under one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The case.
    pub case: String,
    /// The instance.
    pub instance: String,
    /// Its cost over that of the reference, on the host as it is.
    pub quiet: Estimate,
    /// What disturbed the host.
    pub neighbour: String,
    /// The same cost, then.
    pub disturbed: Option<Estimate>,
}

/// What the three runs said.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The version of this form, as JSON.
    pub version: u32,
    /// The reference of all ratios.
    pub reference: String,
    /// Every contender.
    pub rows: Vec<Row>,
    /// What differs and must not.
    pub wrong: Vec<String>,
}

impl Report {
    /// Whether nothing differs.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.wrong.is_empty() { Verdict::Good } else { Verdict::Failed }
    }
}

/// The three runs of one test, without histograms and series, and without the paths and the name of the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The version of this form.
    pub version: u32,
    /// The host as it was.
    pub quiet: Run,
    /// With a process that computes on the CPU of the load.
    pub stress: Run,
    /// Under a quota.
    pub quota: Run,
}

impl Recording {
    fn of(quiet: &Run, stress: &Run, quota: &Run) -> io::Result<Self> {
        let host = keep::host_name();
        let small = |run: &Run| keep::anonymous(run, &host);
        Ok(Self { version: 1, quiet: small(quiet)?, stress: small(stress)?, quota: small(quota)? })
    }

    /// Packs it.
    ///
    /// # Errors
    /// None in practice: it writes to memory.
    pub fn pack(&self) -> io::Result<Vec<u8>> {
        raw::pack(self)
    }

    /// Unpacks it.
    ///
    /// # Errors
    /// If it is not such data.
    pub fn unpack(packed: &[u8]) -> io::Result<Self> {
        raw::unpack(packed, BYTES_MAX)
    }

    /// Judges the three runs again and compares them; with `only_order`, only the order of the contenders must agree.
    ///
    /// # Errors
    /// If the run on the host as it was has no ratio.
    pub fn compare(&self, only_order: bool) -> io::Result<Report> {
        let [quiet, stress, quota] = [&self.quiet, &self.stress, &self.quota].map(|run| {
            let mut run = run.clone();
            report::analyse(&mut run);
            run
        });
        compare(&quiet, &[("stress", STEADY, &stress), ("quota", FULL, &quota)], only_order)
    }
}

/// Compares the runs of an earlier test again. `file` is its recording, or the directory with it.
///
/// # Errors
/// If it cannot be read, or has no ratio.
pub fn replay(file: &Path, only_order: bool) -> io::Result<Report> {
    let file = if file.is_dir() { file.join(FILE) } else { file.to_owned() };
    let recording = fs::read(&file).and_then(|packed| Recording::unpack(&packed));
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.display()));
    recording.map_err(named)?.compare(only_order)
}

/// Runs the scenario in each state of the host, and compares.
///
/// # Errors
/// If the host has one CPU, a run cannot be started or has no ratio, or its files cannot be written.
pub fn prove(plan: &Plan, itself: &Path) -> io::Result<Report> {
    let cpus = environment::online();
    if cpus.len() < 2 {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this host gives one CPU to the lab, and a neighbour on another one takes a second",
        ));
    }
    fs::create_dir_all(&plan.directory)?;
    let file = plan.directory.join("neighbours.toml");
    fs::write(&file, SCENARIO)?;
    let run = |name: &str, more: &[String]| run_once(plan, itself, (&file, name), more);
    let quiet = run("quiet", &[])?;
    let stressed = {
        let load = Placement::new(&cpus, 1).client;
        let _neighbour = Neighbour::start(*load.first().unwrap_or(&0))?;
        run("stress", &[format!("--cases={STEADY}")])?
    };
    let quota = format!("--quota={}", cpus.len() as f64 * QUOTA_SHARE);
    let held_back = run("quota", &[format!("--cases={FULL}"), quota])?;
    let recording = Recording::of(&quiet, &stressed, &held_back)?;
    report::write_bytes(&plan.directory.join(FILE), &recording.pack()?)?;
    recording.compare(plan.only_order)
}

fn run_once(plan: &Plan, itself: &Path, (file, name): (&Path, &str), more: &[String]) -> io::Result<Run> {
    let directory = plan.directory.join(name);
    let mut command = Command::new(itself);
    command.args(["lab", "run"]).arg(file).arg("--out").arg(&directory);
    command.args([format!("--rounds={}", plan.rounds), format!("--measure={}ms", plan.measure.as_millis())]);
    // The same order of cells in each.
    command.arg("--seed=1").args(more).stdin(Stdio::null());
    let status = command.status()?;
    let read = Run::read(&directory.join("run.json"));
    match (status.success(), read) {
        (true, Ok(run)) => Ok(run),
        (_, Err(error)) => Err(error),
        (false, Ok(_)) => Err(io::Error::other(format!("the run `{name}` failed: {status}"))),
    }
}

/// A process that computes without end on one CPU, ended when dropped.
struct Neighbour(Child);

impl Neighbour {
    fn start(cpu: u32) -> io::Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "taskset", "-c", &cpu.to_string()]);
        let child = command.args(["/bin/sh", "-c", "while :; do :; done"]).stdin(Stdio::null()).spawn();
        child.map(Self).map_err(|error| io::Error::new(error.kind(), format!("cannot start a neighbour: {error}")))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        // It has no other end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compares the ratios of the disturbed runs with those of the quiet one.
fn compare(quiet: &Run, disturbed: &[(&str, &str, &Run)], only_order: bool) -> io::Result<Report> {
    let reference = &quiet.scenario.reference;
    let mut rows = Vec::new();
    for &(neighbour, case, run) in disturbed {
        let ratio = |run: &Run, id: &str| Reading::new(run).ratio(case, id, reference, METRIC);
        for id in quiet.scenario.instances.iter().map(|instance| &instance.id).filter(|id| *id != reference) {
            let Some(of_quiet) = ratio(quiet, id) else { continue };
            rows.push(Row {
                case: case.to_owned(),
                instance: id.clone(),
                quiet: of_quiet,
                neighbour: neighbour.to_owned(),
                disturbed: ratio(run, id),
            });
        }
    }
    if rows.is_empty() {
        return Err(io::Error::other("the run without neighbours has no ratio: is the host quiet, and a rival there?"));
    }
    let mut wrong = order_changes(&rows);
    if !tells_any_apart(&rows) {
        wrong.push(
            "the run without neighbours tells no two contenders apart, so there is no order to keep: more --rounds"
                .to_owned(),
        );
    }
    if !only_order {
        wrong.extend(differences(&rows));
    }
    Ok(Report { version: 1, reference: reference.clone(), rows, wrong })
}

/// Whether the run without neighbours shows that one costs less than the other.
fn is_told_apart(cheap: &Row, dear: &Row) -> bool {
    cheap.case == dear.case && cheap.quiet.is_sure() && dear.quiet.is_sure() && cheap.quiet.high < dear.quiet.low
}

/// Whether it shows that of any two.
fn tells_any_apart(rows: &[Row]) -> bool {
    rows.iter().any(|one| rows.iter().any(|other| is_told_apart(one, other)))
}

/// Pairs of contenders that the quiet run tells apart, and that a disturbed one has in another order.
fn order_changes(rows: &[Row]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (place, one) in rows.iter().enumerate() {
        for other in &rows[place + 1..] {
            let (cheap, dear) = if one.quiet.median <= other.quiet.median { (one, other) } else { (other, one) };
            if !is_told_apart(cheap, dear) {
                continue;
            }
            if let (Some(of_cheap), Some(of_dear)) = (&cheap.disturbed, &dear.disturbed)
                && of_cheap.median >= of_dear.median
            {
                wrong.push(format!(
                    "{}: {} costs {:.3} and {} {:.3}; without neighbours {:.3} and {:.3}, the other way round",
                    cheap.neighbour,
                    cheap.instance,
                    of_cheap.median,
                    dear.instance,
                    of_dear.median,
                    cheap.quiet.median,
                    dear.quiet.median
                ));
            }
        }
    }
    wrong
}

/// Ratios that a neighbour changed by more than is allowed, or took away.
fn differences(rows: &[Row]) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in rows {
        let Some(disturbed) = &row.disturbed else {
            wrong.push(format!("{}: {} has no ratio", row.neighbour, row.instance));
            continue;
        };
        let difference = disturbed.median / row.quiet.median - 1.0;
        if difference.abs() > DIFFERENCE_MAX {
            wrong.push(format!(
                "{}: {} costs {:.3} times the reference, and {:.3} without neighbours: {:+.1} %, more than {:.0} %",
                row.neighbour,
                row.instance,
                disturbed.median,
                row.quiet.median,
                difference * 100.0,
                DIFFERENCE_MAX * 100.0
            ));
        }
    }
    wrong
}

impl fmt::Display for Report {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.add_row(["CPU of the host per request", "", "quiet", "neighbour", "with it"]);
        let shown = |estimate: &Estimate| format!("{:.3} [{:.3}, {:.3}]", estimate.median, estimate.low, estimate.high);
        for row in &self.rows {
            let disturbed = row.disturbed.as_ref().map_or("-".to_owned(), shown);
            table.add_row([&row.case, &row.instance, &shown(&row.quiet), &row.neighbour, &disturbed]);
        }
        writeln!(to, "{table}\n\nRatios to {}.", self.reference)?;
        for wrong in &self.wrong {
            writeln!(to, "{wrong}")?;
        }
        match self.wrong.is_empty() {
            true => write!(to, "HOLDS: neighbours do not change what the lab says"),
            false => write!(to, "DOES NOT HOLD: {} differences", self.wrong.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Case, Cell, ReferenceLoop, Table, Turn};
    use crate::report::sample;

    /// A run of both cases with the reference loop around its cells, on a host that is slower by factors that differ from cell to cell.
    fn run(slow: [f64; 4]) -> Run {
        let mut run = sample::raw(Table::L4l7Ab);
        let case = run.case("capacity").unwrap().clone();
        run.scenario.cases = [STEADY, FULL].map(|name| Case { name: name.to_owned(), ..case.clone() }).into();
        let cells = std::mem::take(&mut run.cells).into_iter().filter(|cell| cell.case == "capacity");
        let both = |cell: Cell| [STEADY, FULL].map(|name| Cell { case: name.to_owned(), ..cell.clone() });
        run.cells = cells.flat_map(both).collect();
        run.scenario.reference = "steelyard-http".to_owned();
        for (place, cell) in run.cells.iter_mut().enumerate() {
            let (slow, m) = (slow[place % 4], cell.measurement.as_mut().unwrap());
            let turn = |cpu: u32| Turn { cpu, wall_us: 10.0 * slow, cpu_us: 8.0 * slow };
            let turns: Vec<Turn> = (0..12).map(turn).collect();
            m.reference = Some(ReferenceLoop { before: turns.clone(), after: turns });
            (m.ok_per_s, m.ok) = (m.ok_per_s / slow, (m.ok as f64 / slow) as u64);
            let strangers_s = 10.0 * (slow - 0.99);
            (m.cpu.strangers_s, m.cpu.busy_s) = (Some(strangers_s), m.cpu.busy_s + strangers_s);
        }
        run
    }

    #[test]
    fn a_recording_is_compared_like_the_runs_that_it_was_made_of() {
        let [quiet, stress, quota] = [[1.0; 4], [1.0, 1.3, 1.7, 2.0], [1.9, 1.1, 1.4, 1.2]].map(run);
        let recording = Recording::of(&quiet, &stress, &quota).unwrap();
        let directory = std::env::temp_dir().join(format!("steelyard-neighbours-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(FILE), recording.pack().unwrap()).unwrap();
        let report = replay(&directory, false).unwrap();
        assert!(report.wrong.is_empty() && report.rows.len() >= 8 && report.verdict() == Verdict::Good, "{report}");
        fs::write(directory.join(FILE), b"no recording").unwrap();
        assert!(replay(&directory, false).unwrap_err().to_string().contains(FILE));
        fs::remove_dir_all(&directory).unwrap();
    }

    fn estimate(median: f64) -> Estimate {
        Estimate { median, low: median * 0.98, high: median * 1.02, rounds: 10, confidence: 0.97 }
    }

    fn row(instance: &str, quiet: f64, stress: Option<f64>) -> Row {
        Row {
            case: STEADY.to_owned(),
            instance: instance.to_owned(),
            quiet: estimate(quiet),
            neighbour: "stress".to_owned(),
            disturbed: stress.map(estimate),
        }
    }

    #[test]
    fn the_scenario_is_one() {
        let recipes = crate::contender::all(None).unwrap();
        let file = crate::scenario::read("neighbours", "neighbours.toml", SCENARIO, &recipes).unwrap();
        assert_eq!(file.cases.iter().map(|case| case.case.name.as_str()).collect::<Vec<_>>(), [STEADY, FULL]);
        assert!(crate::report::METRICS_COMPARED.iter().any(|(metric, _)| *metric == METRIC));
    }

    #[test]
    fn a_changed_order_is_found() {
        let check = |rows: &[Row], expect: usize| assert_eq!(order_changes(rows).len(), expect, "{rows:?}");
        check(&[row("a", 1.0, Some(1.1)), row("b", 1.5, Some(1.6))], 0);
        check(&[row("a", 1.0, Some(1.7)), row("b", 1.5, Some(1.6))], 1);
        // The quiet run does not tell them apart, so there is no order.
        check(&[row("a", 1.0, Some(1.1)), row("b", 1.02, Some(1.0))], 0);
        check(&[row("a", 1.0, None), row("b", 1.5, Some(1.6))], 0);
        // Nor do two cases.
        let other = Row { case: FULL.to_owned(), ..row("b", 1.5, Some(1.6)) };
        check(&[row("a", 1.0, Some(1.7)), other], 0);
        // Three rounds show no order.
        let unsure = |row: Row| Row { quiet: Estimate { confidence: 0.75, ..row.quiet }, ..row };
        let pair = [row("a", 1.0, Some(1.7)), row("b", 1.5, Some(1.6))];
        assert!(tells_any_apart(&pair));
        let pair = pair.map(unsure);
        check(&pair, 0);
        assert!(!tells_any_apart(&pair));
    }

    #[test]
    fn a_changed_ratio_is_found() {
        assert_eq!(differences(&[row("a", 1.0, Some(1.04)), row("b", 2.0, Some(1.92))]), [""; 0]);
        let found = differences(&[row("a", 1.0, Some(1.06)), row("b", 2.0, None)]);
        assert!(found.len() == 2 && found[0].contains("+6.0 %") && found[1].contains("no ratio"), "{found:?}");
    }
}

//! `steelyard lab`: its verbs, and the result of each.
//!
//! This module has the command line and short calls into the modules that do the work.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::calibrate::{self, Plan, StallPlan, calibrate};
use crate::compare::compare;
use crate::doctor::{self, DoctorArgs};
use crate::gate::{Limits, gate};
use crate::instructions::{self, InstructionsArgs};
use crate::raw::{self, Rounds};
use crate::record::{self, Run};
use crate::run::{self, RunArgs};
use crate::scenario::{self, Wish};
use crate::schedule::{self, clock};
use crate::verify::{self, Beside};
use crate::{Verdict, contender, environment, guest, host, keep, neighbours, report, units};

/// The verbs of the lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List what can be run, and how long it takes here
    List(ListArgs),
    /// Show what this host can and cannot measure, and how to get the rest
    Doctor(DoctorArgs),
    /// Run a scenario with Steelyard and its rivals, and write its report
    Run(Box<RunArgs>),
    /// Write the report of a run again, print its tables, or turn it into a run to keep
    Report(ReportArgs),
    /// Show what changed between two runs of one scenario, and whether it is more than noise
    Compare(CompareArgs),
    /// Exit with 99 if a run is worse than another by more than is allowed
    Gate(GateArgs),
    /// Compute a run's tables again from its rounds, and report differences
    Verify(VerifyArgs),
    /// Count the instructions of Steelyard for an operation, by callgrind
    Instructions(InstructionsArgs),
}

/// The arguments of `lab list`.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// A directory of .toml files with more contenders
    #[arg(long, value_name = "DIR")]
    pub contenders_dir: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `lab report`.
#[derive(Clone, Debug, Args)]
pub struct ReportArgs {
    /// run.json, or its directory
    #[arg(value_name = "RUN")]
    pub run: PathBuf,

    /// Directory for the report [default: the run's directory]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// The language of the titles that the published reports have in Chinese
    #[arg(long, value_name = "LANGUAGE", default_value = "en", conflicts_with_all = ["keep", "table", "chart"])]
    pub language: report::Language,

    /// Write a run to keep under version control into this directory: README.md, report.md, a run.json without histograms and series, and
    /// rounds.json.gz with those and the logs, all without this host's paths and name. The program must be built from a known commit
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "table"])]
    pub keep: Option<PathBuf>,

    /// Print the run in one table, or its published or honest tables, as Markdown, and write nothing else
    #[arg(long, value_name = "WHICH", num_args = 0..=1, require_equals = true, default_missing_value = "summary", conflicts_with = "out")]
    pub table: Option<report::Tables>,

    /// Put the output of --table into this document, between `<!-- NAME -->` and `<!-- end of NAME -->`, where NAME is the run's directory;
    /// for tables other than the summary, between `<!-- NAME costs -->` and `<!-- end of NAME costs -->` and so on
    #[arg(long, value_name = "FILE", requires = "table")]
    pub into: Option<PathBuf>,

    /// Write an SVG chart of one case to this file: the CPU time of each balancer, with every round
    #[arg(long, value_name = "FILE", requires = "case", conflicts_with_all = ["out", "keep", "table"])]
    pub chart: Option<PathBuf>,

    /// The case of --chart
    #[arg(long, value_name = "CASE", requires = "chart")]
    pub case: Option<String>,
}

/// The arguments of `lab compare`.
#[derive(Clone, Debug, Args)]
pub struct CompareArgs {
    /// The old run: run.json, or its directory
    #[arg(value_name = "OLD")]
    pub old: PathBuf,

    /// The new run: run.json, or its directory
    #[arg(value_name = "NEW")]
    pub new: PathBuf,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The arguments of `lab gate`.
#[derive(Clone, Debug, Args)]
pub struct GateArgs {
    /// The runs to compare.
    #[command(flatten)]
    pub compare: CompareArgs,

    /// How much worse a figure may certainly be, beyond noise
    #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = units::percent)]
    pub max_regress: f64,

    /// Only these instances, such as steelyard-http,steelyard-vip
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub instances: Vec<String>,

    /// Only these metrics [default: rates, CPU of the balancer and of the whole host, and the latency of open loops]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub metrics: Vec<String>,
}

/// The arguments of `lab verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyArgs {
    /// run.json, or its directory
    #[arg(value_name = "RUN", required_unless_present_any = ["calibrate", "stall", "neighbours"])]
    pub run: Option<PathBuf>,

    /// Compare the load with wrk, ab, h2load and iperf3 on this host instead
    #[arg(long, conflicts_with = "run")]
    pub calibrate: bool,

    /// Show which load generators report a stall: run them against an origin that answers nothing for a second in the middle of a run. These are
    /// ours, and wrk, h2load, hey, ghz and oha if they are installed. Fails if ours do not report it
    #[arg(long, conflicts_with_all = ["run", "calibrate"])]
    pub stall: bool,

    /// Test the lab itself: run one scenario on the host as it is, with a busy neighbour, and under a CPU quota, and compare what they say
    #[arg(long, conflicts_with_all = ["run", "calibrate", "stall"])]
    pub neighbours: bool,

    /// With --neighbours: check the order of the contenders only, for a host that is not quiet
    #[arg(long, requires = "neighbours")]
    pub only_order: bool,

    /// With --neighbours: measure nothing, and compare the runs that an earlier one left in this directory
    #[arg(long, value_name = "DIR", requires = "neighbours", conflicts_with_all = ["out", "rounds", "duration"])]
    pub replay: Option<PathBuf>,

    /// Directory for the runs of --neighbours [default: lab-neighbours]
    #[arg(long, value_name = "DIR", requires = "neighbours")]
    pub out: Option<PathBuf>,

    /// Rounds, in each of which every tool or contender runs once [default: 5; with --neighbours, 12; with --stall, 3]
    #[arg(long, value_name = "N", conflicts_with = "run", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: Option<u32>,

    /// How long each tool or window takes [default: 2s; with --stall, 4s]
    #[arg(long, value_name = "TIME", conflicts_with = "run", value_parser = units::duration)]
    pub duration: Option<Duration>,

    /// Print the outcome of --calibrate, --stall or --neighbours as JSON
    #[arg(long, conflicts_with = "run")]
    pub json: bool,
}

/// The result of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it should.
    Good,
    /// It was carried out and something failed.
    Failed,
    /// A gate did not hold.
    GateDoesNotHold,
}

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self::Good,
            Verdict::Failed => Self::Failed,
        }
    }
}

/// Rounds of each run of `--neighbours`: enough for an interval that leaves out the extremes.
const NEIGHBOURS_ROUNDS: u32 = 12;

/// Runs a verb. `itself` is the file of this program, which stands in for Steelyard among the contenders; `version` is its version.
///
/// # Errors
/// `InvalidInput` for wrong arguments or files, with every error at its place; otherwise the host's error.
pub fn run(command: LabCommand, itself: &Path, version: &str) -> io::Result<Outcome> {
    match command {
        LabCommand::List(args) => list(&args).map(|()| Outcome::Good),
        LabCommand::Doctor(args) => doctor::run(&args, itself).map(Outcome::from),
        LabCommand::Run(args) if args.guest => guest::run(&args, itself, &doctor::cache_directory()).map(Outcome::from),
        LabCommand::Run(args) => run::run(&args, itself, version).map(Outcome::from),
        LabCommand::Report(args) => write_report(&args).map(|()| Outcome::Good),
        LabCommand::Compare(args) => {
            let comparison = compare(&judged(&args.old)?, &judged(&args.new)?)?;
            print(args.json, &comparison)?;
            Ok(Outcome::Good)
        }
        LabCommand::Gate(args) => {
            let comparison = compare(&judged(&args.compare.old)?, &judged(&args.compare.new)?)?;
            let limits = Limits { regress_max: args.max_regress, instances: args.instances, metrics: args.metrics };
            let outcomes = gate(&comparison, &limits);
            print(args.compare.json, &outcomes)?;
            Ok(if outcomes.holds { Outcome::Good } else { Outcome::GateDoesNotHold })
        }
        LabCommand::Verify(VerifyArgs { run: Some(run), .. }) => verify_run(&run),
        LabCommand::Instructions(args) => {
            print(args.json, &instructions::count(&args, itself)?)?;
            Ok(Outcome::Good)
        }
        LabCommand::Verify(args) if args.neighbours => verify_neighbours(args, itself),
        LabCommand::Verify(args) if args.stall => verify_stall(&args, itself),
        LabCommand::Verify(args) => {
            let _lock = host::lock_measuring()?;
            let rounds = args.rounds.unwrap_or(Plan::default().rounds);
            let report =
                calibrate(&Plan { rounds, duration: args.duration.unwrap_or(Plan::default().duration) }, itself)?;
            print(args.json, &report)?;
            Ok(report.verdict().into())
        }
    }
}

/// Runs of each generator, and how long one takes, for `--stall`.
const STALL_ROUNDS: u32 = 3;
const STALL_DURATION: Duration = Duration::from_secs(4);

fn verify_stall(args: &VerifyArgs, itself: &Path) -> io::Result<Outcome> {
    let _lock = host::lock_measuring()?;
    let duration = args.duration.unwrap_or(STALL_DURATION);
    if !calibrate::DURATIONS.contains(&duration) {
        let why = "--duration: with --stall, a run takes from 3s to 45s";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let report = calibrate::stall(&StallPlan { rounds: args.rounds.unwrap_or(STALL_ROUNDS), duration }, itself)?;
    print(args.json, &report)?;
    Ok(report.verdict().into())
}

fn verify_neighbours(args: VerifyArgs, itself: &Path) -> io::Result<Outcome> {
    let report = match &args.replay {
        Some(recorded) => neighbours::replay(recorded, args.only_order)?,
        None => neighbours::prove(
            &neighbours::Plan {
                rounds: args.rounds.unwrap_or(NEIGHBOURS_ROUNDS),
                measure: args.duration.unwrap_or(Plan::default().duration),
                directory: args.out.unwrap_or_else(|| PathBuf::from("lab-neighbours")),
                only_order: args.only_order,
            },
            itself,
        )?,
    };
    print(args.json, &report)?;
    Ok(if report.verdict() == Verdict::Good { Outcome::Good } else { Outcome::GateDoesNotHold })
}

fn list(args: &ListArgs) -> io::Result<()> {
    let recipes = contender::all(args.contenders_dir.as_deref()).map_err(crate::in_lines)?;
    let cpus = environment::online().len() as u32;
    let mut lines = Vec::new();
    let mut entries = Vec::new();
    for name in scenario::names() {
        let file = scenario::find(name, &recipes).map_err(crate::in_lines)?;
        let time = |quick| {
            let wish = Wish { quick, ..Wish::default() };
            let selection = scenario::select(&file, &recipes, &[], &wish, (cpus, false)).ok()?;
            let (mut scenario, rounds) = (selection.scenario, selection.rounds);
            Some(match quick {
                true => schedule::plan_within(&mut scenario, rounds, 0, schedule::QUICK_MAX).expected,
                false => schedule::plan(&scenario, rounds, 0).expected,
            })
        };
        let (whole, quick) = (time(false).unwrap_or_default(), time(true).unwrap_or_default());
        lines.push(wrapped(&format!("{name:<16}"), &file.title));
        lines.push(format!("{:16}about {}, {} with --quick", "", clock(whole), clock(quick)));
        let case = |case: &record::Case| wrapped(&format!("  {:<22}", case.name), &case.title);
        lines.extend(file.cases.iter().map(|planned| case(&planned.case)));
        entries.push(serde_json::json!({
            "name": name,
            "title": file.title,
            "report": file.report,
            "expected_s": whole.as_secs(),
            "expected_quick_s": quick.as_secs(),
            "cases": file.cases.iter().map(|case| &case.case.name).collect::<Vec<_>>(),
        }));
    }
    let names: Vec<_> = recipes.iter().map(|recipe| recipe.name.as_str()).collect();
    let mut out = io::stdout().lock();
    if args.json {
        let all = serde_json::json!({"version": 1, "scenarios": entries, "contenders": names});
        return writeln!(out, "{all}");
    }
    writeln!(out, "{}\n\n{}", lines.join("\n"), wrapped("contenders: ", &names.join(" ")))
}

/// Columns of the narrowest terminal in use.
const COLUMNS: usize = 80;

/// Text after a head, in lines of at most [`COLUMNS`] characters; further lines are indented to the text.
fn wrapped(head: &str, text: &str) -> String {
    let indent = head.chars().count();
    let (mut lines, mut width) = (head.to_owned(), indent);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if width > indent && width + 1 + length > COLUMNS {
            lines.push_str(&format!("\n{:indent$}", ""));
            width = indent;
        } else if width > indent {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines
}

fn write_report(args: &ReportArgs) -> io::Result<()> {
    let file = file_of(&args.run);
    let run = judged(&args.run)?;
    if let Some(directory) = &args.keep {
        let (kept, beside) = (keep::kept(&run, &keep::host_name())?, file.parent().unwrap_or(Path::new(".")));
        // A run that is kept already has no raw data but those that lie beside it.
        let rounds = if run.kept { None } else { Some(keep::rounds(&run, beside, &keep::host_name())?) };
        return keep::write(&kept, rounds.as_ref(), directory);
    }
    if let Some(which) = args.table {
        let tables = report::tables(&run, which);
        return match &args.into {
            Some(document) => put_into(document, &which.mark(&name_of(&file)?), &tables),
            None => write!(io::stdout().lock(), "{tables}"),
        };
    }
    if let (Some(chart), Some(case)) = (&args.chart, &args.case) {
        let svg = report::chart(&run, &name_of(&file)?, case).ok_or_else(|| {
            let cases: Vec<&str> = run.scenario.cases.iter().map(|case| case.name.as_str()).collect();
            let why = format!("no valid round of a case `{case}`; the run has {}", cases.join(", "));
            io::Error::new(io::ErrorKind::InvalidInput, why)
        })?;
        return report::write_text(chart, &svg);
    }
    let directory = match &args.out {
        Some(directory) => directory.clone(),
        None => file.parent().unwrap_or(Path::new(".")).to_owned(),
    };
    std::fs::create_dir_all(&directory)?;
    report::write(&run, &directory, args.language)
}

/// The name of the directory that a run is in.
fn name_of(run: &Path) -> io::Result<String> {
    let directory = std::fs::canonicalize(run)?;
    Ok(directory.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned())
}

fn put_into(document: &Path, mark: &str, tables: &str) -> io::Result<()> {
    let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
    let text = std::fs::read_to_string(document)?;
    let text = keep::into_document(&text, mark, tables).ok_or_else(|| {
        let marks = format!("<!-- {mark} --> and <!-- end of {mark} -->");
        wrong(format!("{} has no place for it: add two lines {marks}, in this order", document.display()))
    })?;
    report::write_text(document, &text)
}

fn verify_run(path: &Path) -> io::Result<Outcome> {
    let file = file_of(path);
    let run = Run::read(&file)?;
    let beside = |name: &str| std::fs::read_to_string(file.with_file_name(name)).ok();
    let (markdown, readme) = (beside("report.md"), beside("README.md").filter(|_| run.kept));
    let packed = std::fs::read(file.with_file_name(raw::FILE)).ok().filter(|_| run.kept);
    let rounds = packed.map(|packed| Rounds::unpack(&packed)).transpose().map_err(|error| {
        io::Error::new(error.kind(), format!("{}: {error}", file.with_file_name(raw::FILE).display()))
    })?;
    let beside = Beside { report: markdown.as_deref(), readme: readme.as_deref(), rounds: rounds.as_ref() };
    let found = verify::verify(&run, beside);
    let mut out = io::stdout().lock();
    for discrepancy in &found {
        writeln!(out, "{discrepancy}")?;
    }
    let beside = if markdown.is_some() { "its tables and the report beside it" } else { "its tables" };
    if found.is_empty() {
        writeln!(out, "{} cells, computed again: {beside} agree", run.cells.len())?;
    }
    Ok(if found.is_empty() { Outcome::Good } else { Outcome::Failed })
}

/// A run, judged by this program, whichever program wrote it.
fn judged(path: &Path) -> io::Result<Run> {
    let mut run = Run::read(&file_of(path))?;
    report::analyse(&mut run);
    Ok(run)
}

fn file_of(path: &Path) -> PathBuf {
    if path.is_dir() { path.join("run.json") } else { path.to_owned() }
}

fn print<R: Display + Serialize>(as_json: bool, what: &R) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        serde_json::to_writer(&mut out, what)?;
        writeln!(out)
    } else {
        writeln!(out, "{what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_wrapped_under_their_begin() {
        let text = "word ".repeat(20);
        let lines = wrapped("  head  ", &text);
        assert_eq!(lines.lines().count(), 2, "{lines}");
        assert!(
            lines.lines().all(|line| line.chars().count() <= COLUMNS && line.get(8..12) == Some("word")),
            "{lines}"
        );
        assert_eq!(wrapped("a ", "b c"), "a b c");
        assert_eq!(wrapped("a ", ""), "a ");
        assert_eq!(wrapped("a ", &"x".repeat(100)), format!("a {}", "x".repeat(100)), "a word is never cut");
    }
}

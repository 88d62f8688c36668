//! `lab run`: runs a scenario, from its file to its report.
//!
//! This module has the order of the steps. It selects what this host can run and prints it with the expected time; sets up links, origins
//! and contenders; calibrates the instrument; measures cells in the order of the schedule, and repeats those that the host disturbed,
//! writing each to disk before the next begins; and finally judges and writes the report. An interruption ends the run after the current
//! measurement, with a valid record of it.
//!
//! `cell` measures a cell, and `session` sets up the components.

mod args;
mod calibrate;
mod cell;
mod counters;
mod load;
mod origins;
mod progress;
mod ready;
mod session;
mod watch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use args::RunArgs;

use crate::contender::{self, Digests, Probed, Recipe};
use crate::document::Problem;
use crate::leftovers::Leftovers;
use crate::record::{self, Contender, Gap, Run};
use crate::scenario::{self, InstanceId, ScenarioFile, Wish};
use crate::schedule::{self, Schedule, Step};
use crate::{Verdict, doctor, environment, host, judge, report};
use progress::Progress;
use session::Session;

/// Everything that a run consists of and that does not change during the run.
#[derive(Debug)]
struct Plan {
    recipes: Vec<Recipe>,
    found: Vec<(String, contender::Found)>,
    schedule: Schedule,
    directory: PathBuf,
    itself: PathBuf,
    cpus: Vec<u32>,
}

/// Runs scenarios one after the other. Returns `Failed` if one of them was cut short, or measured nothing.
///
/// # Errors
/// If a scenario does not exist or has errors (with the place of each), if a directory cannot be written, or if another run is in progress.
pub fn run(args: &RunArgs, itself: &Path, version: &str) -> io::Result<Verdict> {
    let recipes = contender::all(args.contenders_dir.as_deref()).map_err(crate::in_lines)?;
    let names = if args.scenarios.iter().any(|name| name == "all") {
        scenario::names().iter().map(|name| (*name).to_owned()).collect()
    } else {
        args.scenarios.clone()
    };
    // Read all of them before running the first: an error in the last should not come after an hour.
    let files = read_all(&names, &recipes).map_err(crate::in_lines)?;
    let wish = wish(args, &recipes)?;
    // A plan changes nothing, and is possible while another run is in progress.
    let _lock = if args.plan { None } else { Some(host::lock_measuring()?) };
    if !args.plan {
        host::raise_open_files_for_children();
        clear_leftovers();
    }
    let runtime = host::runtime()?;
    let mut verdict = Verdict::Good;
    for file in &files {
        let directory = if files.len() == 1 { args.directory(&file.name) } else { args.directory("").join(&file.name) };
        let (mut run, plan) = prepare(args, file, &wish, (recipes.clone(), itself, version, &directory))?;
        let outcome = runtime.block_on(carry_out(&mut run, &plan, args.plan));
        if args.plan {
            continue;
        }
        finish(&mut run, &plan.directory, outcome.err())?;
        if run.partial.is_some() {
            verdict = Verdict::Failed;
        }
        if let Some(why) = shows_nothing(&run) {
            progress::say(&why);
            verdict = Verdict::Failed;
        }
        if run.partial.as_deref() == Some(INTERRUPTED) {
            break;
        }
    }
    Ok(verdict)
}

const INTERRUPTED: &str = "interrupted";

/// Why a run has shown nothing: none of its cells was measured soundly.
fn shows_nothing(run: &Run) -> Option<String> {
    let is_sound = |cell: &record::Cell| {
        let is_invalid = cell.judgement.as_ref().is_some_and(|judgement| judgement.verdict == record::Verdict::Invalid);
        cell.measurement.is_some() && !is_invalid
    };
    if run.cells.iter().any(is_sound) {
        return None;
    }
    let failure = |cell: &record::Cell| cell.failure.as_ref().map(|failure| failure.why.clone());
    let unsound = |cell: &record::Cell| Some(cell.judgement.as_ref()?.reasons.join("; "));
    let why = run.cells.iter().find_map(|cell| failure(cell).or_else(|| unsound(cell)));
    let first = why.map_or(String::new(), |why| format!("; the first: {why}"));
    Some(format!(
        "{}: all {} cells failed or are invalid, so the run shows nothing{first}",
        run.scenario.name,
        run.cells.len()
    ))
}

/// How often a cell that the host disturbed is measured again. All measurements are kept, and the last sound one counts.
const REPEATS_MAX: u32 = 3;

fn read_all(names: &[String], recipes: &[Recipe]) -> Result<Vec<ScenarioFile>, Vec<Problem>> {
    let mut files = Vec::new();
    let mut problems = Vec::new();
    for name in names {
        match scenario::find(name, recipes) {
            Ok(file) => files.push(file),
            Err(more) => problems.extend(more),
        }
    }
    if problems.is_empty() { Ok(files) } else { Err(problems) }
}

fn wish(args: &RunArgs, recipes: &[Recipe]) -> io::Result<Wish> {
    let instance = |text: &String| -> io::Result<InstanceId> {
        scenario::instance(text, recipes)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, format!("--contenders: {why}")))
    };
    Ok(Wish {
        quick: args.quick,
        contenders: args.contenders.iter().map(instance).collect::<io::Result<_>>()?,
        cases: args.cases.clone(),
        rounds: args.rounds,
        mtu: args.mtu,
    })
}

fn clear_leftovers() {
    let leftovers = Leftovers::find();
    if leftovers.is_empty() {
        return;
    }
    progress::say(&format!(
        "removing what a killed lab left behind: {} namespaces, {} cgroups",
        leftovers.namespaces.len(),
        leftovers.cgroups.len()
    ));
    for line in leftovers.remove() {
        progress::say(&format!("cannot remove {line}"));
    }
}

/// Selects what takes part, and begins the record.
fn prepare(
    args: &RunArgs,
    file: &ScenarioFile,
    wish: &Wish,
    (recipes, itself, version, directory): (Vec<Recipe>, &Path, &str, &Path),
) -> io::Result<(Run, Plan)> {
    let loopback = args.loopback || !host::is_root();
    let cpus = environment::online();
    let cache = doctor::cache_directory();
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for recipe in &recipes {
        match contender::find(recipe, itself, &cache, !loopback) {
            Probed::Here(here) => found.push((recipe.name.clone(), here)),
            Probed::Missing(gap) => missing.push(gap),
        }
    }
    let selection = scenario::select(file, &recipes, &missing, wish, (cpus.len() as u32, loopback))
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
    let (mut scenario, rounds) = (selection.scenario, selection.rounds);
    let measure = args.measure.map(|window| u64::try_from(window.as_millis()).unwrap_or(u64::MAX).max(1));
    if let Some(window_ms) = measure {
        scenario.cases.iter_mut().for_each(|case| case.load.measure_ms = window_ms);
    }
    let seed = args.seed.unwrap_or_else(seed_of_the_day);
    let schedule = match args.budget.or(args.quick.then_some(schedule::QUICK_MAX)) {
        Some(budget) => schedule::plan_within(&mut scenario, rounds, seed, budget),
        None => schedule::plan(&scenario, rounds, seed),
    };
    let directory = if args.plan { directory.to_owned() } else { made(directory)? };
    let mut digests = Digests::default();
    let contenders = contenders(&recipes, &found, &scenario, &mut digests);
    let run = Run {
        schema: record::SCHEMA,
        program: format!("steelyard {version}"),
        started: utc(now()),
        ended: None,
        partial: Some("the run has not ended".to_owned()),
        reproduce: args.command(&file.name, seed),
        quick: args.quick,
        seed,
        rounds: schedule.rounds,
        environment: environment::capture(itself, version, &mut digests),
        scenario,
        contenders,
        gaps: selection.gaps,
        calibrations: Vec::new(),
        cells: Vec::new(),
        notes: Vec::new(),
        kept: false,
        statistics: Vec::new(),
        conclusions: Vec::new(),
    };
    Ok((run, Plan { recipes, found, schedule, directory, itself: itself.to_owned(), cpus }))
}

/// Makes a run's directory, and returns its absolute path: contenders run in other directories, and read their configurations by path.
fn made(directory: &Path) -> io::Result<PathBuf> {
    let outcome = fs::create_dir_all(directory.join("raw")).and_then(|()| fs::canonicalize(directory));
    outcome.map_err(|error| io::Error::new(error.kind(), format!("cannot make {}: {error}", directory.display())))
}

fn contenders(
    recipes: &[Recipe],
    found: &[(String, contender::Found)],
    scenario: &record::Scenario,
    digests: &mut Digests,
) -> Vec<Contender> {
    let takes_part = |recipe: &&Recipe| scenario.instances.iter().any(|instance| instance.contender == recipe.name);
    let describe = |recipe: &Recipe| {
        let here = found.iter().find(|(name, _)| *name == recipe.name).map(|(_, here)| here);
        Contender {
            name: recipe.name.clone(),
            title: recipe.title.clone(),
            layer: recipe.layer,
            version: here.map(|here| here.version.clone()).unwrap_or_default(),
            program: here.map(|here| here.program.display().to_string()).unwrap_or_default(),
            sha256: here.map(|here| digests.of(&here.program)).unwrap_or_default(),
        }
    };
    recipes.iter().filter(takes_part).map(describe).collect()
}

/// Measures every cell of the schedule. `run` has what was measured, even after an error.
async fn carry_out(run: &mut Run, plan: &Plan, only_plan: bool) -> Result<(), String> {
    progress::announce(run, plan);
    if only_plan {
        return Ok(());
    }
    // Install the signal handler first: from here on there is something to clean up.
    tokio::select! {
        outcome = host::interrupted() => Err(outcome.map_or_else(|error| error.to_string(), |()| INTERRUPTED.to_owned())),
        outcome = measure_all(run, plan) => outcome,
    }
}

async fn measure_all(run: &mut Run, plan: &Plan) -> Result<(), String> {
    let begun = Instant::now();
    let mut session = Session::set_up(run, plan).await.map_err(|failure| failure.why)?;
    save(run, plan)?;
    session.calibrate(run).await;
    // A contender that did not start is a gap, not a failure in each of its cells.
    let is_there = |step: &&Step| run.case(&step.case).is_some_and(|case| case.instances.contains(&step.instance));
    let steps: Vec<&Step> = plan.schedule.steps.iter().filter(is_there).collect();
    let mut progress = Progress::new(&steps, &run.scenario);
    let mut left_out = 0;
    for block in steps.chunk_by(|one, next| (&one.case, one.round) == (&next.case, next.round)) {
        let mut wanted = block.to_vec();
        for attempt in 0..=REPEATS_MAX {
            for step in std::mem::take(&mut wanted) {
                if attempt > 0 && begun.elapsed() + progress.left_with(step, &run.scenario) > plan.schedule.limit {
                    continue;
                }
                if plan.schedule.is_budget && begun.elapsed() > plan.schedule.limit {
                    left_out += 1;
                    continue;
                }
                let cell = session.measure(run, step, run.cells.len() as u32).await;
                // Repeat it within the round, so that it is compared with cells that were measured under similar conditions.
                if cell.measurement.as_ref().is_some_and(|measurement| !judge::spoiled(measurement).is_empty()) {
                    wanted.push(step);
                }
                progress.tell(&cell, attempt > 0);
                run.cells.push(cell);
                save(run, plan)?;
            }
        }
    }
    if left_out > 0 {
        run.notes.push(format!(
            "This host was slower than planned: {left_out} of {} cells were left out to keep to the time that was given",
            plan.schedule.steps.len()
        ));
    }
    session.close(run).await;
    Ok(())
}

fn save(run: &Run, plan: &Plan) -> Result<(), String> {
    run.write(&plan.directory.join("run.json")).map_err(|error| error.to_string())
}

/// Judges and writes what has been measured.
fn finish(run: &mut Run, directory: &Path, stopped: Option<String>) -> io::Result<()> {
    run.ended = Some(utc(now()));
    run.partial = stopped;
    calibrate::origin_ceilings(run);
    report::analyse(run);
    if let Some(why) = &run.partial {
        progress::say(&format!("{why}; {} measured cells are kept", run.cells.len()));
    }
    // If there is no room for the whole file, the record of the last cell still exists.
    run.write(&directory.join("run.json"))?;
    report::write(run, directory)?;
    progress::say(&format!("{}: report.html, report.md, run.json", directory.display()));
    Ok(())
}

fn now() -> Duration {
    // A clock before 1970 is no reason to fail.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn seed_of_the_day() -> u64 {
    now().as_secs()
}

/// Time since 1970 in RFC 3339, in UTC.
fn utc(time: Duration) -> String {
    let seconds = time.as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Days since 1970 as a date of the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    let (mut year, mut rest) = (1970, days);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1)
}

/// Notes a gap, once.
fn note_gap(run: &mut Run, what: &str, why: String) {
    if !run.gaps.iter().any(|gap| gap.what == what) {
        run.gaps.push(Gap { what: what.to_owned(), why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_a_sound_cell_shows_nothing() {
        let mut run = crate::report::sample::run(record::Table::L4l7Ab);
        assert_eq!(shows_nothing(&run), None);
        for cell in run.cells.iter_mut() {
            let (verdict, reasons) = (record::Verdict::Invalid, vec!["every answer was a 426".to_owned()]);
            cell.failure = None;
            cell.judgement = Some(record::Judgement { verdict, reasons });
        }
        let why = shows_nothing(&run).unwrap();
        assert!(
            why.contains("cells failed or are invalid, so the run shows nothing; the first: every answer was a 426"),
            "{why}"
        );
        run.cells[3].judgement.as_mut().unwrap().verdict = record::Verdict::LbSaturated;
        run.cells[3].measurement.as_ref().expect("a cell that was measured");
        assert_eq!(shows_nothing(&run), None);
        run.cells.clear();
        assert!(shows_nothing(&run).is_some());
    }

    #[test]
    fn times_in_utc() {
        for (seconds, expect) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_827_696, "2000-02-29T12:34:56Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(seconds)), expect);
        }
    }
}

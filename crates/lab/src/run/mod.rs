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
mod certificate;
mod counters;
mod load;
mod origins;
mod progress;
mod ready;
mod resume;
mod session;
mod watch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use args::RunArgs;
pub(crate) use args::name_and_path;

use crate::contender::{self, Digests, Probed, Recipe};
use crate::document::Problem;
use crate::leftovers::Leftovers;
use crate::record::{self, Contender, Environment, Gap, Run};
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
    /// Rounds are added until ratios are this precise; `None` for a fixed number of rounds.
    precision: Option<f64>,
    /// The CPUs that all components may use together; `None` for no limit.
    quota: Option<f64>,
}

/// Runs scenarios one after the other. Returns `Failed` if one of them was cut short, or measured nothing.
///
/// # Errors
/// If a scenario does not exist or has errors (with the place of each), if a directory cannot be written, or if another run is in progress.
pub fn run(args: &RunArgs, itself: &Path, version: &str) -> io::Result<Verdict> {
    let mut recipes = contender::all(args.contenders_dir.as_deref()).map_err(crate::in_lines)?;
    let copies = copies(&mut recipes, &args.contender)?;
    let names = if args.scenarios.iter().any(|name| name == "all") {
        scenario::names().iter().map(|name| (*name).to_owned()).collect()
    } else {
        args.scenarios.clone()
    };
    // Read all of them before running the first: an error in the last should not come after an hour.
    let mut files = read_all(&names, &recipes).map_err(crate::in_lines)?;
    files.iter_mut().for_each(|file| scenario::with_copies(file, &copies));
    let wish = wish(args, &recipes, &copies)?;
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
        let nothing = shows_nothing(&run).map_or_else(|| not_served(&run), |why| vec![why]);
        if !nothing.is_empty() {
            nothing.iter().for_each(|why| progress::say(why));
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
    Some(format!(
        "{}: all {} cells failed or are invalid, so the run shows nothing{}",
        run.scenario.name,
        run.cells.len(),
        first_failure(&run.cells.iter().collect::<Vec<_>>())
    ))
}

/// Contenders that took part and did not serve anything. The rest of the run is sound, but it does not compare what it was to compare.
fn not_served(run: &Run) -> Vec<String> {
    let has_served = |cell: &&record::Cell| cell.measurement.as_ref().is_some_and(|measured| measured.ok > 0);
    let mut said = Vec::new();
    for instance in &run.scenario.instances {
        let cells: Vec<_> = run.cells.iter().filter(|cell| cell.instance == instance.id).collect();
        if !cells.is_empty() && !cells.iter().any(has_served) {
            let first = first_failure(&cells);
            said.push(format!("{}: {} served nothing in {} cells{first}", run.scenario.name, instance.id, cells.len()));
        }
    }
    said
}

fn first_failure(cells: &[&record::Cell]) -> String {
    let failure = |cell: &record::Cell| cell.failure.as_ref().map(|failure| failure.why.clone());
    let unsound = |cell: &record::Cell| Some(cell.judgement.as_ref()?.reasons.join("; "));
    let why = cells.iter().find_map(|cell| failure(cell).or_else(|| unsound(cell)));
    why.map_or(String::new(), |why| format!("; the first: {why}"))
}

/// The most rounds of a case, however wide its intervals are.
const ROUNDS_MAX: u32 = 200;

/// How far the interval of a ratio may reach from it, if the command line says nothing else: differences of a twentieth and more are what the
/// choice of a balancer depends on.
const PRECISION: f64 = 0.05;

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

/// Contenders with another build of their program, as `--contender` names them. Returns the name of each original and of its copy.
fn copies(recipes: &mut Vec<Recipe>, wanted: &[(String, PathBuf)]) -> io::Result<Vec<(String, String)>> {
    let mut copies = Vec::new();
    for (program, path) in wanted {
        let copied = contender::copies(recipes, program, path)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, format!("--contender {program}: {why}")))?;
        for (original, copy) in copied {
            copies.push((original, copy.name.clone()));
            recipes.retain(|known| known.name != copy.name);
            recipes.push(copy);
        }
    }
    Ok(copies)
}

fn wish(args: &RunArgs, recipes: &[Recipe], copies: &[(String, String)]) -> io::Result<Wish> {
    let instance = |text: &String| -> io::Result<InstanceId> {
        scenario::instance(text, recipes)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, format!("--contenders: {why}")))
    };
    Ok(Wish {
        quick: args.quick,
        contenders: scenario::and_copies(args.contenders.iter().map(instance).collect::<io::Result<Vec<_>>>()?, copies),
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
    let seed = args.seed.or_else(|| resumed_seed(args, directory)).unwrap_or_else(seed_of_the_day);
    let schedule = match args.budget.or(args.quick.then_some(schedule::QUICK_MAX)) {
        Some(budget) => schedule::plan_within(&mut scenario, rounds, seed, budget),
        None => schedule::plan(&scenario, rounds, seed),
    };
    if args.resume {
        resume::check(directory)?;
    }
    let directory = if args.plan { directory.to_owned() } else { made(directory)? };
    let mut digests = Digests::default();
    let contenders = contenders(&recipes, &found, &scenario, &mut digests);
    let mut run = Run {
        schema: record::SCHEMA,
        program: format!("steelyard {version}"),
        started: utc(now()),
        ended: None,
        partial: Some("the run has not ended".to_owned()),
        reproduce: args.command(&file.name, seed),
        quick: args.quick,
        seed,
        rounds: schedule.rounds,
        environment: Environment {
            guest: args.in_guest.as_deref().map(environment::guest),
            ..environment::capture(itself, version, &mut digests)
        },
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
    if args.resume {
        resume::take_over(&mut run, &directory)?;
    }
    let precision = args.precision.or(args.rounds.is_none().then_some(PRECISION));
    Ok((
        run,
        Plan { recipes, found, schedule, directory, itself: itself.to_owned(), cpus, precision, quota: args.quota },
    ))
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
    let steps: Vec<Step> = plan.schedule.steps.iter().filter(is_there).cloned().collect();
    let steps = resume::left(run, steps);
    let progress = Progress::new(&steps, &run.scenario);
    let mut measuring = Measuring { session: &mut session, plan, begun, progress, left_out: 0 };
    let (first, second): (Vec<Step>, Vec<Step>) =
        steps.into_iter().partition(|step| schedule::is_first_phase(&run.scenario, step));
    let time_of = |run: &Run, steps: &[Step]| -> Duration {
        steps.iter().map(|step| schedule::step_time(&run.scenario, step)).sum()
    };
    let share = time_of(run, &first).as_secs_f64() / (time_of(run, &first) + time_of(run, &second)).as_secs_f64();
    for (phase, is_last) in [(&first, second.is_empty()), (&second, true)] {
        measuring.measure(run, phase).await?;
        // What is left after everything that is planned: all of it for the last phase, and its share for the first.
        let spare = plan.schedule.limit.saturating_sub(begun.elapsed() + measuring.progress.left());
        let until = begun.elapsed() + if is_last { spare } else { spare.mul_f64(share.clamp(0.0, 1.0)) };
        measuring.add_rounds(run, phase, until).await?;
    }
    let Measuring { left_out, .. } = measuring;
    if left_out > 0 {
        run.notes.push(format!(
            "This host was slower than planned: {left_out} of {} cells were left out to keep to the time that was given",
            plan.schedule.steps.len()
        ));
    }
    session.close(run).await;
    Ok(())
}

/// What is under way.
struct Measuring<'a, 'p> {
    session: &'a mut Session<'p>,
    plan: &'a Plan,
    begun: Instant,
    progress: Progress,
    left_out: usize,
}

impl Measuring<'_, '_> {
    async fn measure(&mut self, run: &mut Run, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            if self.plan.schedule.is_budget && self.begun.elapsed() > self.plan.schedule.limit {
                self.left_out += 1;
                continue;
            }
            let cell = self.session.measure(run, step, run.cells.len() as u32).await;
            self.progress.tell(&cell);
            run.cells.push(cell);
            save(run, self.plan)?;
        }
        Ok(())
    }

    /// Adds rounds of the cells of a phase whose ratios are not yet as precise as wanted, until they are, or until a time of the run.
    async fn add_rounds(&mut self, run: &mut Run, phase: &[Step], until: Duration) -> Result<(), String> {
        let Some(precision) = self.plan.precision else { return Ok(()) };
        let mut cases: Vec<&str> = phase.iter().map(|step| step.case.as_str()).collect();
        cases.sort_unstable();
        cases.dedup();
        let planned = phase.iter().map(|step| step.round + 1).max().unwrap_or_default();
        for round in planned..ROUNDS_MAX {
            judge::judge_run(run);
            let wanted: Vec<(String, String)> = report::imprecise(run, &cases, precision)
                .into_iter()
                .map(|imprecise| (imprecise.case, imprecise.instance))
                .collect();
            let left = until.saturating_sub(self.begun.elapsed());
            let steps = whole_blocks(run, schedule::added(&run.scenario, &wanted, round, run.seed), left);
            if steps.is_empty() {
                break;
            }
            run.rounds = run.rounds.max(round + 1);
            self.progress.add(&steps, &run.scenario);
            self.measure(run, &steps).await?;
        }
        judge::judge_run(run);
        let still = report::imprecise(run, &cases, precision);
        if !still.is_empty() {
            run.notes.push(report::imprecise_note(&still, precision));
        }
        Ok(())
    }
}

/// As many blocks as the time that is left allows: half a block has no ratios.
fn whole_blocks(run: &Run, steps: Vec<Step>, left: Duration) -> Vec<Step> {
    let mut fit = Vec::new();
    let mut takes = Duration::ZERO;
    for block in steps.chunk_by(|one, next| (&one.case, one.block) == (&next.case, next.block)) {
        takes += block.iter().map(|step| schedule::step_time(&run.scenario, step)).sum::<Duration>();
        if takes > left {
            break;
        }
        fit.extend_from_slice(block);
    }
    fit
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
    // If there is no room for the whole file, the record of the last cell still exists.
    let file = directory.join("run.json");
    let written = run.write(&file);
    let kept = if written.is_ok() { run.cells.len() } else { Run::read(&file).map_or(0, |known| known.cells.len()) };
    if let Some(why) = &run.partial {
        progress::say(&format!("{why}; {kept} measured cells are kept: --resume continues the run"));
    }
    written?;
    report::write(run, directory, report::Language::En)?;
    progress::say(&format!("{}: report.html, report.md, run.json", directory.display()));
    Ok(())
}

fn now() -> Duration {
    // A clock before 1970 is no reason to fail.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The seed of the run that is resumed. What is wrong with its file is told when it is read as a whole.
fn resumed_seed(args: &RunArgs, directory: &Path) -> Option<u64> {
    args.resume.then(|| Run::read(&directory.join("run.json")).ok().map(|run| run.seed)).flatten()
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
    fn a_round_that_does_not_fit_is_cut_between_blocks() {
        let run = crate::report::sample::run(record::Table::L4l7Ab);
        let wanted: Vec<_> =
            run.scenario.instances.iter().map(|known| ("capacity".to_owned(), known.id.clone())).collect();
        let steps = schedule::added(&run.scenario, &wanted, 10, 1);
        let takes = |steps: &[Step]| steps.iter().map(|step| schedule::step_time(&run.scenario, step)).sum();
        assert_eq!(whole_blocks(&run, steps.clone(), takes(&steps)), steps);
        assert_eq!(whole_blocks(&run, steps.clone(), Duration::ZERO), []);
        let cut = whole_blocks(&run, steps.clone(), takes(&steps) - Duration::from_millis(1));
        assert!(!cut.is_empty() && cut.len() < steps.len() && steps[cut.len()].block != cut[cut.len() - 1].block);
    }

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
    fn a_contender_that_serves_nothing_is_named() {
        let mut run = crate::report::sample::run(record::Table::L4l7Ab);
        assert_eq!(not_served(&run), Vec::<String>::new());
        let name = run.cells[0].instance.clone();
        for cell in run.cells.iter_mut().filter(|cell| cell.instance == name) {
            cell.measurement = None;
            cell.failure = Some(record::Failure { why: "it ended (exit status: 1)".to_owned(), log: Vec::new() });
        }
        let said = not_served(&run);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains(&format!("{name} served nothing in")), "{said:?}");
        assert!(said[0].ends_with("cells; the first: it ended (exit status: 1)"), "{said:?}");
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

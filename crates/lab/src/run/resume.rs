//! Continues a run that was interrupted, with the cells that it still lacks.
//!
//! A resumed run must be the run that it was: the same scenario, seed, program, kernel and CPUs. Otherwise its rounds could not be compared, and
//! it is refused with what differs.

use std::io;
use std::path::Path;

use crate::record::{Instance, Run, Scenario};
use crate::schedule::Step;

/// Checks whether a directory has a run, before anything is made in it.
///
/// # Errors
/// If it has none.
pub(super) fn check(directory: &Path) -> io::Result<()> {
    if directory.join("run.json").is_file() {
        return Ok(());
    }
    let why = format!(
        "there is no run to resume in {}: run without --resume, or name its directory with --out",
        directory.display()
    );
    Err(io::Error::new(io::ErrorKind::NotFound, why))
}

/// Takes over what `directory` has of an interrupted run into `run`, which is about to begin.
///
/// # Errors
/// If there is no interrupted run, or another one than `run`.
pub(super) fn take_over(run: &mut Run, directory: &Path) -> io::Result<()> {
    let file = directory.join("run.json");
    let old = Run::read(&file)?;
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", file.display()));
    if old.partial.is_none() {
        return Err(refused("the run ended, so there is nothing to resume: run without --resume".to_owned()));
    }
    if let Some(what) = difference(&old, run) {
        return Err(refused(format!("not the same run as this one: {what}; start it anew without --resume")));
    }
    run.cells = old.cells;
    run.notes = old.notes;
    run.notes.push(format!("The run was interrupted after {} cells, and resumed at {}.", run.cells.len(), run.started));
    run.started = old.started;
    run.rounds = run.rounds.max(old.rounds);
    Ok(())
}

/// The steps that `run` does not have yet.
pub(super) fn left(run: &Run, steps: Vec<Step>) -> Vec<Step> {
    let is_measured = |step: &Step| {
        run.cells.iter().any(|cell| {
            (&cell.case, &cell.instance) == (&step.case, &step.instance)
                && (cell.round, cell.block, cell.twin) == (step.round, step.block, step.twin)
        })
    };
    steps.into_iter().filter(|step| !is_measured(step)).collect()
}

/// What makes two runs different ones.
fn difference(old: &Run, new: &Run) -> Option<String> {
    let digest = |run: &Run| run.environment.binaries.first().map(|binary| binary.sha256.clone()).unwrap_or_default();
    let versions = |run: &Run| {
        let version = |known: &crate::record::Contender| format!("{} {} {}", known.name, known.version, known.sha256);
        run.contenders.iter().map(version).collect::<Vec<_>>().join(", ")
    };
    let pairs = [
        ("scenario", old.scenario.name.clone(), new.scenario.name.clone()),
        ("seed", old.seed.to_string(), new.seed.to_string()),
        ("program", digest(old), digest(new)),
        ("kernel", old.environment.kernel.clone(), new.environment.kernel.clone()),
        ("number of CPUs", old.environment.cpus.to_string(), new.environment.cpus.to_string()),
        ("contenders", versions(old), versions(new)),
    ];
    let differing = pairs.into_iter().find(|(_, old, new)| old != new);
    if let Some((what, old, new)) = differing {
        return Some(format!("{what} {old:?} then, {new:?} now"));
    }
    (plain(&old.scenario) != plain(&new.scenario)).then(|| "its cases, contenders or times are others".to_owned())
}

/// A scenario without what starting it adds, and without what did not start then.
fn plain(scenario: &Scenario) -> Scenario {
    let instance = |instance: &Instance| Instance {
        address: String::new(),
        commands: Vec::new(),
        configuration: String::new(),
        ..instance.clone()
    };
    Scenario { instances: scenario.instances.iter().map(instance).collect(), ..scenario.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Table;
    use crate::report::sample;

    /// A directory with the file of an interrupted run.
    struct Interrupted(std::path::PathBuf);

    impl Interrupted {
        fn new(name: &str, change: fn(&mut Run)) -> Self {
            let directory = std::env::temp_dir().join(format!("steelyard-resume-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&directory).unwrap();
            let mut run = sample::run(Table::Generic);
            run.partial = Some("interrupted".into());
            run.cells.truncate(20);
            change(&mut run);
            run.write(&directory.join("run.json")).unwrap();
            Self(directory)
        }
    }

    impl Drop for Interrupted {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn new_run() -> Run {
        let mut run = sample::run(Table::Generic);
        run.cells.clear();
        // Known only once the contenders have started.
        run.scenario.instances.iter_mut().for_each(|instance| instance.configuration.clear());
        run
    }

    #[test]
    fn what_was_measured_is_kept_and_not_measured_again() {
        let old = Interrupted::new("good", |_| {});
        let mut run = new_run();
        take_over(&mut run, &old.0).unwrap();
        assert!(run.cells.len() == 20 && run.notes.last().unwrap().contains("after 20 cells"), "{:?}", run.notes);
        let all: Vec<Step> = (sample::run(Table::Generic).cells.iter())
            .map(|cell| Step {
                case: cell.case.clone(),
                instance: cell.instance.clone(),
                round: cell.round,
                block: cell.block,
                twin: cell.twin,
            })
            .collect();
        let left = left(&run, all.clone());
        assert_eq!(left, all[20..]);
    }

    #[test]
    fn another_run_is_refused() {
        let check = |name: &str, change: fn(&mut Run), expect: &str| {
            let old = Interrupted::new(name, change);
            let error = take_over(&mut new_run(), &old.0).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        };
        check("ended", |run| run.partial = None, "there is nothing to resume");
        check("seed", |run| run.seed = 7, "seed \"7\" then, \"42\" now");
        check("kernel", |run| run.environment.kernel = "5.15".into(), "kernel \"5.15\" then");
        check("time", |run| run.scenario.cases[0].load.measure_ms = 1, "its cases, contenders or times are others");
        let nowhere = super::check(Path::new("/no/such/directory")).unwrap_err().to_string();
        assert!(nowhere.starts_with("there is no run to resume in /no/such/directory"), "{nowhere}");
    }
}

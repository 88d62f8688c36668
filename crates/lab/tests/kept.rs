//! Runs that are kept in `lab/runs`, and what documents say of them.
//!
//! Job: their tables still follow from their rounds, nothing in them is the host's own, and the README shows each of them as it is. When a
//! change of the report makes this fail, `steelyard lab report lab/runs/NAME --keep lab/runs/NAME` writes a run anew, and `--table --into
//! README.md` its table.

use std::fs;
use std::path::{Path, PathBuf};

use lab::keep::into_document;
use lab::record::Run;
use lab::report::{self, Tables};
use lab::verify::{Beside, verify};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Name, directory and run.
fn kept() -> Vec<(String, PathBuf, Run)> {
    let Ok(entries) = fs::read_dir(root().join("lab/runs")) else { return Vec::new() };
    let mut runs: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path.clone(), read(&path)))
        .collect();
    runs.sort_by(|left, right| left.0.cmp(&right.0));
    runs
}

fn read(directory: &Path) -> Run {
    Run::read(&directory.join("run.json")).unwrap()
}

#[test]
fn kept_runs_say_what_their_rounds_say() {
    for (name, directory, run) in kept() {
        let text = |file: &str| fs::read_to_string(directory.join(file)).unwrap();
        let (report, readme) = (text("report.md"), text("README.md"));
        assert!(run.kept, "{name} was not made by --keep");
        assert_eq!(verify(&run, Beside { report: Some(&report), readme: Some(&readme) }), [], "{name}");
    }
}

#[test]
fn kept_runs_say_nothing_of_their_host() {
    for (name, directory, _) in kept() {
        for file in ["run.json", "report.md", "README.md"] {
            let text = fs::read_to_string(directory.join(file)).unwrap();
            for folder in ["tmp", "home", "root", "work", "var", "opt", "srv", "mnt"] {
                assert!(!text.contains(&format!("/{folder}/")), "{name}/{file} has a path in /{folder}");
            }
        }
    }
}

#[test]
fn the_readme_shows_every_kept_run_as_it_is() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for (name, _, mut run) in kept() {
        report::analyse(&mut run);
        let again = into_document(&readme, &name, &report::tables(&run, Tables::Summary));
        let again = again.unwrap_or_else(|| panic!("README.md has no place for {name}"));
        assert!(again == readme, "the table of {name} in README.md is not what the run gives");
    }
    // And no run that is not there.
    let shown = readme.lines().filter_map(|line| line.strip_prefix("<!-- end of ")?.strip_suffix(" -->"));
    for name in shown {
        assert!(
            root().join("lab/runs").join(name).join("run.json").exists(),
            "README.md shows {name}, which is not kept"
        );
    }
}

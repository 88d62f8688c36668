//! Runs that are kept in `lab/runs`, and what documents say of them.
//!
//! Job: their tables still follow from their rounds, nothing in them is the host's own, and a document that shows a run's table shows it as
//! the run gives it. When a change of the report makes this fail, `steelyard lab report lab/runs/NAME --keep lab/runs/NAME` writes a run
//! anew, and `--table --into FILE` updates its table in a document.

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

/// What is wrong with the tables of runs that `document` shows: the run is not kept, or it gives another table.
fn wrong_tables(document: &str) -> Vec<String> {
    let shown = document.lines().filter_map(|line| line.strip_prefix("<!-- end of ")?.strip_suffix(" -->"));
    let is_wrong = |name: &&str| {
        let directory = root().join("lab/runs").join(name);
        if !directory.join("run.json").exists() {
            return true;
        }
        let mut run = read(&directory);
        report::analyse(&mut run);
        into_document(document, name, &report::tables(&run, Tables::Summary)).is_none_or(|again| again != document)
    };
    shown.filter(is_wrong).map(str::to_owned).collect()
}

#[test]
fn documents_show_tables_as_their_runs_give_them() {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for path in docs.filter(|path| path.extension().is_some_and(|end| end == "md")).chain([root().join("README.md")]) {
        let document = fs::read_to_string(&path).unwrap();
        assert_eq!(wrong_tables(&document), [""; 0], "{}", path.display());
    }
}

#[test]
fn a_table_that_its_run_does_not_give_is_found() {
    let (name, _, mut run) = kept().into_iter().next().expect("no run is kept");
    report::analyse(&mut run);
    let empty = format!("<!-- {name} -->\n<!-- end of {name} -->\n");
    let document = into_document(&empty, &name, &report::tables(&run, Tables::Summary)).unwrap();
    assert_eq!(wrong_tables(&document), [""; 0]);
    assert_eq!(wrong_tables(&empty), [name.as_str()]);
    assert_eq!(wrong_tables(&document.replacen("| ", "| 1", 1)), [name]);
    assert_eq!(wrong_tables("<!-- never-run -->\n<!-- end of never-run -->\n"), ["never-run"]);
}

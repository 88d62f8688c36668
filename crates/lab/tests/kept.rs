//! Runs that are kept in `lab/runs`, and what documents say about them.
//!
//! Their tables must still follow from their rounds, they must contain nothing of the host's own, and a document that shows a run's table
//! must show it as the run gives it. When a change of the report makes this fail, `steelyard lab report lab/runs/NAME --keep lab/runs/NAME`
//! writes a run again, `--table --into FILE` updates its table in a document, and the first line of a chart is the command that draws it.
//!
//! A figure of speed may stand in a document only between the marks of a kept run, where the first of these tests computes it again, or in
//! [`ALLOWED`] with the reason why no run can have it. Design notes and kept runs are dated records, and are not checked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lab::keep::{into_document, is_commit};
use lab::raw::{self, Rounds};
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
        let rounds = fs::read(directory.join(raw::FILE)).ok().map(|packed| Rounds::unpack(&packed).unwrap());
        let beside = Beside { report: Some(&report), readme: Some(&readme), rounds: rounds.as_ref() };
        assert_eq!(verify(&run, beside), [], "{name}");
    }
}

/// Runs that were kept before runs recorded their commit. Measured again, they go from here.
const WITHOUT_COMMIT: [&str; 5] = [
    "cpu-scaling-2026-11-21",
    "grpc-gateway-2026-11-21",
    "l4-matrix-2026-11-21",
    "l4l7-ab-2026-11-21",
    "tcp-downstream-2026-11-21",
];

/// What a kept run lacks that says what was measured, and with what.
fn lacks(run: &Run, has_raw_data: bool) -> Vec<String> {
    let mut lacks = Vec::new();
    if !run.environment.commit.as_deref().is_some_and(is_commit) {
        lacks.push("the commit that the program was built from".to_owned());
    }
    if run.environment.binaries.iter().any(|binary| binary.sha256.len() != 64 || binary.version.is_empty()) {
        lacks.push("digest and version of the program".to_owned());
    }
    for contender in run.contenders.iter().filter(|contender| !contender.program.is_empty()) {
        if contender.sha256.len() != 64 || contender.version.is_empty() {
            lacks.push(format!("digest and version of {}", contender.name));
        }
    }
    if !has_raw_data {
        lacks.push(format!("the raw data of its rounds, {}", raw::FILE));
    }
    lacks
}

#[test]
fn kept_runs_say_what_they_measured() {
    let runs = kept();
    for (name, directory, run) in &runs {
        if !WITHOUT_COMMIT.contains(&name.as_str()) {
            assert_eq!(lacks(run, directory.join(raw::FILE).exists()), [""; 0], "{name}");
        }
    }
    for name in WITHOUT_COMMIT {
        let old = runs.iter().find(|(kept, ..)| kept == name);
        assert!(
            old.is_some_and(|(.., run)| run.environment.commit.is_none()),
            "{name} need not be named here any more"
        );
    }
}

#[test]
fn a_run_that_does_not_say_what_it_measured_is_found() {
    let mut run = kept().into_iter().next().expect("no run is kept").2;
    run.environment.commit = Some("0123456789".repeat(4));
    assert_eq!(lacks(&run, true), [""; 0]);
    assert!(lacks(&run, false)[0].contains("rounds.json.gz"));
    let check = |change: fn(&mut Run), expect: &str| {
        let mut run = run.clone();
        change(&mut run);
        let lacks = lacks(&run, true);
        assert!(lacks.len() == 1 && lacks[0].contains(expect), "{lacks:?}");
    };
    check(|run| run.environment.commit = None, "the commit");
    check(|run| run.environment.commit = Some("0123456789".repeat(4) + "-dirty"), "the commit");
    check(|run| run.environment.binaries[0].sha256.clear(), "digest and version of the program");
    check(
        |run| {
            run.contenders
                .iter_mut()
                .filter(|known| !known.program.is_empty())
                .take(1)
                .for_each(|known| known.version.clear())
        },
        "digest and version of ",
    );
}

/// The commits of kept runs must be in the history of this repository: a figure of a commit that is not was measured with something else.
#[test]
fn commits_of_kept_runs_are_in_the_history() {
    let git = |arguments: &[&str]| Command::new("git").arg("-C").arg(root()).args(arguments).output();
    if git(&["rev-parse", "--is-shallow-repository"]).map_or(true, |output| output.stdout != b"false\n") {
        // An archive of the sources, or a clone of the last commit, has no history to look into.
        return;
    }
    for (name, _, run) in kept() {
        if let Some(commit) = run.environment.commit {
            let is_ancestor = git(&["merge-base", "--is-ancestor", &commit, "HEAD"]).unwrap().status.success();
            assert!(is_ancestor, "{name}: commit {commit} is not in the history of this one");
        }
    }
}

/// Cells of tables with more digits than so few rounds can claim: two, with fewer than six rounds.
fn overstated(text: &str) -> Vec<&str> {
    const ROUNDS_MIN: u32 = 6;
    let cells = text.lines().filter(|line| line.starts_with('|')).flat_map(|line| line.split('|')).map(str::trim);
    let is_overstated = |cell: &&str| {
        let rounds = cell.split_once("n=").map(|(_, rest)| rest);
        let rounds = rounds.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok());
        rounds.is_some_and(|rounds| rounds < ROUNDS_MIN) && digits_of_first(cell) > 2
    };
    cells.filter(is_overstated).collect()
}

/// The digits of the first number that say something: `15,000` has two, `0.045` has two.
fn digits_of_first(cell: &str) -> usize {
    let begin = cell.find(|c: char| c.is_ascii_digit()).unwrap_or(cell.len());
    let number = &cell[begin..];
    let number = &number[..number.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',').unwrap_or(number.len())];
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_start_matches('0');
    if number.contains('.') { digits.len() } else { digits.trim_end_matches('0').len() }
}

#[test]
fn no_cell_has_more_digits_than_its_rounds_can_claim() {
    for (name, document) in documents() {
        assert_eq!(overstated(&document), [""; 0], "{name}");
    }
    for (name, directory, _) in kept() {
        for file in ["README.md", "report.md"] {
            let text = fs::read_to_string(directory.join(file)).unwrap();
            assert_eq!(overstated(&text), [""; 0], "{name}/{file}");
        }
    }
}

#[test]
fn a_cell_with_too_many_digits_is_found() {
    let check = |row: &str, expect: &[&str]| assert_eq!(overstated(row), expect);
    check("| a | 14,758 (n=1) | 15,000 (n=1) |", &["14,758 (n=1)"]);
    check("| 10.1 (9.0–12, n=3) | 10 (9.0–12, n=3) | 10.1 (9.02–12.1, n=6) |", &["10.1 (9.0–12, n=3)"]);
    check("| 0.045 (n=2) | ≥ 1.5 ms (n=1) | ×1.234 (n=1) | 12.345 [12.1, 12.6] |", &["×1.234 (n=1)"]);
    check("not in a table: 14,758 (n=1)", &[]);
}

#[test]
fn kept_runs_say_nothing_of_their_host() {
    for (name, directory, _) in kept() {
        let packed = fs::read(directory.join(raw::FILE)).ok().map(|packed| Rounds::unpack(&packed).unwrap());
        let packed = packed.map(|rounds| (raw::FILE, serde_json::to_string(&rounds).unwrap()));
        let texts = ["run.json", "report.md", "README.md"];
        let texts = texts.map(|file| (file, fs::read_to_string(directory.join(file)).unwrap()));
        for (file, text) in texts.into_iter().chain(packed) {
            for folder in ["tmp", "home", "root", "work", "var", "opt", "srv", "mnt"] {
                assert!(!text.contains(&format!("/{folder}/")), "{name}/{file} has a path in /{folder}");
            }
        }
    }
}

/// The tables of runs in `document` that are wrong: the run is not kept, or it gives another table.
fn wrong_tables(document: &str) -> Vec<String> {
    let shown = document.lines().filter_map(|line| line.strip_prefix("<!-- end of ")?.strip_suffix(" -->"));
    let is_wrong = |mark: &&str| {
        let (name, which) = Tables::of_mark(mark);
        let directory = root().join("lab/runs").join(name);
        if !directory.join("run.json").exists() {
            return true;
        }
        let mut run = read(&directory);
        report::analyse(&mut run);
        into_document(document, mark, &report::tables(&run, which)).is_none_or(|again| again != document)
    };
    shown.filter(is_wrong).map(str::to_owned).collect()
}

#[test]
fn documents_show_tables_as_their_runs_give_them() {
    for (name, document) in documents() {
        assert_eq!(wrong_tables(&document), [""; 0], "{name}");
    }
}

/// Name and text of the documents for users.
fn documents() -> Vec<(String, String)> {
    let docs = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|end| end == "md"));
    let beside = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name));
    let name = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string();
    pages.chain(beside).map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn charts_are_those_of_their_runs() {
    let mut charts = 0;
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "svg") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let made_by: Vec<&str> = text.lines().next().unwrap_or_default().split(' ').collect();
        let ["<?made-by", "steelyard", "lab", "report", run, "--case", case, "--chart?>"] = made_by[..] else {
            panic!("{}: the first line is not the command that makes it", path.display());
        };
        let name = run.strip_prefix("lab/runs/").expect("a chart of a run that is not kept");
        let mut kept = read(&root().join(run));
        report::analyse(&mut kept);
        let again = report::chart(&kept, name, case).expect("no such case");
        assert!(again == text, "{0}: run `steelyard lab report {run} --case {case} --chart {0}`", path.display());
        charts += 1;
    }
    assert!(charts > 0, "no chart");
}

/// Units that only a measurement of speed has. Limits and timeouts use ms, s and bytes.
const UNITS: [&str; 25] = [
    "µs",
    "us",
    "ns",
    "Gbps",
    "Gbit/s",
    "Mbit/s",
    "req/s",
    "requests/s",
    "calls/s",
    "connections/s",
    "packets/s",
    "Mpps",
    "pps",
    "requests a second",
    "requests per second",
    "calls a second",
    "connections a second",
    "packets a second",
    "times faster",
    "times as fast",
    "% faster",
    "% less CPU",
    "ms of CPU",
    "s of CPU",
    "cores per Gbps",
];

/// Page, a part of the line, and why no kept run has the figure.
const ALLOWED: &[(&str, &str, &str)] = &[];

/// Lines, counted from 1, with a figure of speed that is not between the marks of a run.
fn unmarked_figures(document: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut within: Option<&str> = None;
    for (index, line) in document.lines().enumerate() {
        if let Some(mark) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            within = match mark.strip_prefix("end of ") {
                Some(_) => None,
                None => Some(mark).filter(|mark| document.contains(&format!("<!-- end of {mark} -->"))),
            };
        }
        if within.is_none() && has_figure(line) {
            found.push((index + 1, line));
        }
    }
    found
}

/// Whether a line has a number followed by one of [`UNITS`].
fn has_figure(line: &str) -> bool {
    let is_end = |rest: &str| rest.chars().next().is_none_or(|next| !next.is_alphanumeric());
    line.match_indices(|c: char| c.is_ascii_digit()).any(|(at, _)| {
        let rest = line[at + 1..].trim_start_matches([' ', '\u{a0}', '*', '`']);
        UNITS.iter().any(|unit| rest.strip_prefix(unit).is_some_and(is_end))
    })
}

#[test]
fn figures_of_speed_come_from_kept_runs() {
    let mut unused: Vec<_> = ALLOWED.iter().collect();
    let mut wrong = Vec::new();
    for (name, document) in documents() {
        for (number, line) in unmarked_figures(&document) {
            match ALLOWED.iter().find(|(page, part, _)| *page == name && line.contains(part)) {
                Some(allowed) => unused.retain(|other| *other != allowed),
                None => wrong.push(format!("{name}:{number}: {line}")),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "figures without a kept run; put a table of one between its marks:\n{}",
        wrong.join("\n")
    );
    assert!(unused.is_empty(), "nothing needs these exceptions any more: {unused:?}");
}

#[test]
fn a_figure_of_speed_is_found() {
    let check = |document: &str, expect: &[usize]| {
        let found: Vec<usize> = unmarked_figures(document).into_iter().map(|(number, _)| number).collect();
        assert_eq!(found, expect, "{document}");
    };
    check("It adds 51.3 µs to a request.", &[1]);
    check("| vip | 65,900 requests/s |", &[1]);
    check("a\nIt moves **9.3** Gbps.", &[2]);
    check("7.0 ms of CPU for 20 MB", &[1]);
    check("times out after 250 ms; `added_us`; 64 KiB; HTTP/2 using 3 users", &[]);
    check("<!-- run -->\n5 µs\n<!-- end of run -->\n6 µs", &[4]);
    check("<!-- run -->\n5 µs that no end follows", &[2]);
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

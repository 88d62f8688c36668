//! `steelyard lab`: the results of a run, however it ends.
//!
//! Figures are only checked for being present, because windows are a third of a second, on a host that also does other things.
#![forbid(unsafe_code)]

#[path = "lab/faults.rs"]
mod faults;
#[path = "lab/protocols.rs"]
mod protocols;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use support::{Scratch, run, steelyard};
use testkit::{Exit, Finished, Program, Signal, until};

/// Far more than any run here takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Only one run may measure on a host at a time.
static MEASURING: Mutex<()> = Mutex::new(());

fn measuring() -> MutexGuard<'static, ()> {
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The stall is in the latencies however busy this host is: it makes them only longer.
#[test]
fn our_loads_report_a_stall() {
    let _measuring = measuring();
    let finished = run(&["lab", "verify", "--stall", "--rounds", "1", "--duration", "3s", "--json"]);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    let held: Vec<&Value> = report["rows"].as_array().unwrap().iter().filter(|row| row["is_held"] == true).collect();
    assert!(held.len() == 2 && held.iter().all(|row| row["shows_at_p99"] == true), "{report}");
    // What others report does not matter, unless it cannot be read.
    let is_good = report["failed"].as_array().unwrap().is_empty();
    assert_eq!(finished.exit, Exit::Code(i32::from(!is_good)), "{finished:?}");
    let finished = run(&["lab", "verify", "--stall", "--duration", "1s"]);
    assert!(finished.stderr.contains("a run takes from 3s to 45s"), "{finished:?}");
}

const SCENARIO: &str = r#"
title = "A short one"
question = "Does it run?"
contenders = ["direct", "steelyard-http", "steelyard-tcp*2"]
twins = ["direct"]
endpoints = 2
rounds = 2

[time]
ramp = "50ms"
warm_up = "100ms"
measure = "300ms"
trim = "50ms"

[[case]]
name = "full"
title = "As fast as it goes"
origin = {kind = "http", count = 2}
load = {kind = "http", connections = 4}

[[case]]
name = "half"
title = "At half of it"
origin = {kind = "http", count = 1}
load = {kind = "http", connections = 4, rate = "50% of full"}
"#;

fn lab_run(file: &str, out: &Path, more: &[&str]) -> Command {
    let mut command = steelyard();
    command.args(["lab", "run", file, "--out"]).arg(out).args(["--seed", "7"]).args(more);
    command
}

fn finish(mut program: Program, exit: i32) -> Finished {
    assert_eq!(program.exit_within(PATIENCE).unwrap(), Exit::Code(exit), "{}", program.log());
    program.finish().unwrap()
}

/// The output of a run that went to its end. The run fails if none of its cells is sound, as on a host whose hypervisor takes more than 1 %
/// of the CPUs in each of them, or if a contender served nothing, and then says so.
fn finish_run(mut program: Program, out: &Path) -> String {
    let exit = program.exit_within(PATIENCE).unwrap();
    let said = program.finish().unwrap().stderr;
    let is_sound = has_sound_cells(&record(out));
    let have_all_served = have_all_served(&record(out));
    assert_eq!(exit, Exit::Code(if is_sound && have_all_served { 0 } else { 1 }), "{said}");
    assert_eq!(said.contains("the run shows nothing"), !is_sound, "{said}");
    assert_eq!(said.contains(" served nothing in "), is_sound && !have_all_served, "{said}");
    said
}

fn have_all_served(run: &Value) -> bool {
    let mut served = std::collections::BTreeMap::new();
    for cell in cells(run) {
        *served.entry(cell["instance"].as_str().unwrap()).or_insert(false) |=
            cell["measurement"]["ok"].as_u64().is_some_and(|ok| ok > 0);
    }
    served.into_values().all(|has_served| has_served)
}

fn has_sound_cells(run: &Value) -> bool {
    cells(run).iter().any(|cell| cell["measurement"].is_object() && cell["judgement"]["verdict"] != "invalid")
}

fn record(out: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(out.join("run.json")).unwrap()).unwrap()
}

fn cells(run: &Value) -> &[Value] {
    run["cells"].as_array().unwrap()
}

/// The command lines of processes that contain `directory`.
fn processes_of(directory: &Path) -> Vec<String> {
    let directory = directory.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&directory)).collect()
}

/// The namespaces that a lab with this process id made.
fn namespaces_of(pid: u32) -> Vec<String> {
    let names = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("steelyard-lab-{pid}-"))).collect()
}

fn cgroups_of(pid: u32) -> Vec<String> {
    let find = Command::new("find")
        .args(["/sys/fs/cgroup", "-maxdepth", "2", "-name", &format!("steelyard-lab-{pid}-*")])
        .output();
    String::from_utf8_lossy(&find.unwrap().stdout).lines().map(str::to_owned).collect()
}

#[track_caller]
fn assert_nothing_is_left(pid: u32, out: &Path) {
    // The kernel takes some time to remove killed processes.
    until(Duration::from_secs(20), || processes_of(out).is_empty().then_some(()))
        .unwrap_or_else(|| panic!("still there: {:?}", processes_of(out)));
    assert_eq!((namespaces_of(pid), cgroups_of(pid)), (Vec::new(), Vec::new()));
}

#[test]
fn a_whole_run_and_what_can_be_done_with_it() {
    let _measuring = measuring();
    let scratch = Scratch::new();
    let (file, out) = (scratch.write("short.toml", SCENARIO), scratch.path().join("out"));
    let program = Program::spawn("lab", &mut lab_run(&file, &out, &["--rounds", "2"])).unwrap();
    let pid = program.pid();
    let said = finish_run(program, &out);
    for text in ["14 cells in 2 rounds, seed 7", "[14/14, 0:00 left]", "report.html"] {
        assert!(said.contains(text), "{text}: {said}");
    }
    let run_file = record(&out);
    assert!(run_file["partial"].is_null() && run_file["ended"].is_string(), "{said}");
    for cell in cells(&run_file) {
        let measurement = &cell["measurement"];
        assert!(measurement["ok"].as_u64().unwrap_or_default() > 0, "{cell}");
        assert!(
            measurement["cpu"]["client_s"].as_f64().unwrap() > 0.0 && measurement["window_s"].as_f64().unwrap() > 0.2
        );
        let is_direct = cell["instance"] == "direct";
        assert_eq!(measurement["cpu"]["balancer_s"].as_f64().unwrap() == 0.0, is_direct, "{cell}");
        assert!(cell["judgement"]["verdict"].is_string());
    }
    // Only each round's twin. On a busy host a cell may have been measured again.
    let twins = cells(&run_file).iter().filter(|cell| cell["twin"] == 1);
    let rounds: BTreeSet<u64> = twins.clone().map(|cell| cell["round"].as_u64().unwrap()).collect();
    assert!(rounds == BTreeSet::from([0, 1]) && twins.clone().all(|cell| cell["instance"] == "direct"), "{rounds:?}");
    // Both origins served a part of what went through the balancer.
    let both =
        cells(&run_file).iter().find(|cell| cell["instance"] == "steelyard-http" && cell["case"] == "full").unwrap();
    if is_root() {
        let shares = both["measurement"]["shares"].as_array().unwrap();
        assert!(
            shares.len() == 2 && shares.iter().all(|share| share["operations"].as_u64().unwrap() > 0),
            "{shares:?}"
        );
    }
    assert_eq!(run_file["scenario"]["loopback"], !is_root());
    assert_nothing_is_left(pid, &out);

    let directory = out.display().to_string();
    assert_eq!(run(&["lab", "verify", &directory]).exit, Exit::Code(0));
    assert_eq!(run(&["lab", "report", &directory]).exit, Exit::Code(0));
    a_kept_run(&directory, &scratch);
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("A short one"));
    for outside in ["src=\"http", "href=\"http", "<link", "@import", "<script src"] {
        assert!(!report.contains(outside), "the page needs something from outside: {outside}");
    }
    let compared = run(&["lab", "compare", &directory, &directory]);
    // Two runs are compared by their figures, and a disturbed cell has none of its own.
    let is_undisturbed = |cell: &Value| !matches!(cell["judgement"]["verdict"].as_str(), Some("invalid" | "disturbed"));
    match cells(&run_file).iter().any(is_undisturbed) {
        true => assert_eq!(compared.exit, Exit::Code(0), "{}", compared.stderr),
        false => assert!(compared.stderr.contains("no sound figure in common"), "{compared:?}"),
    }

    // A figure that was changed by hand is found.
    let text = fs::read_to_string(out.join("run.json")).unwrap();
    let ok = cells(&run_file)[0]["measurement"]["ok"].as_u64().unwrap();
    fs::write(out.join("run.json"), text.replacen(&format!("\"ok\":{ok},"), &format!("\"ok\":{},", ok * 2), 1))
        .unwrap();
    assert_eq!(run(&["lab", "verify", &directory]).exit, Exit::Code(1));
}

/// A run for version control: smaller, without this host's paths, and still verifiable.
fn a_kept_run(directory: &str, scratch: &Scratch) {
    let kept = scratch.path().join("kept/short-1");
    let name = kept.display().to_string();
    // The program of these tests was built from no particular commit.
    let refused = run(&["lab", "report", directory, "--keep", &name]);
    assert!(refused.exit == Exit::Code(64) && refused.stderr.contains("does not say which commit"), "{refused:?}");
    let file = Path::new(directory).join("run.json");
    let text = fs::read_to_string(&file).unwrap();
    let commit = "0123456789".repeat(4);
    fs::write(&file, text.replacen("\"commit\":null", &format!("\"commit\":\"{commit}\""), 1)).unwrap();
    assert_eq!(run(&["lab", "report", directory, "--keep", &name]).exit, Exit::Code(0));
    let verified = run(&["lab", "verify", &name]);
    assert!(verified.exit == Exit::Code(0), "{verified:?}");
    for file in ["run.json", "report.md", "README.md"] {
        let text = fs::read_to_string(kept.join(file)).unwrap();
        assert!(!text.contains(&scratch.path().display().to_string()), "{file}");
    }
    let bytes = |directory: &Path| fs::metadata(directory.join("run.json")).unwrap().len();
    assert!(bytes(&kept) < bytes(Path::new(directory)));
    assert!(fs::metadata(kept.join("rounds.json.gz")).unwrap().len() > 0);

    let table = run(&["lab", "report", &name, "--table"]);
    assert!(table.exit == Exit::Code(0) && table.stdout.contains("| Steelyard http"), "{table:?}");
    let document = scratch.write("document.md", "before\n<!-- short-1 -->\n<!-- end of short-1 -->\nafter\n");
    assert_eq!(run(&["lab", "report", &name, "--table", "--into", &document]).exit, Exit::Code(0));
    let text = fs::read_to_string(&document).unwrap();
    assert!(table.stdout.contains(&format!("with commit {commit}, SHA-256 of the program ")), "{table:?}");
    assert!(text.contains(&table.stdout) && text.ends_with("<!-- end of short-1 -->\nafter\n"), "{text}");
    let unmarked = run(&["lab", "report", directory, "--table", "--into", &document]);
    assert!(unmarked.exit == Exit::Code(64) && unmarked.stderr.contains("has no place for it"), "{unmarked:?}");

    // So is another commit than the one that was measured, and raw data of another run.
    let changed = text.replace(&commit, &"9".repeat(40));
    assert!(changed != text && changed != put_again(&name, &changed, scratch));
    let packed = fs::read(kept.join("rounds.json.gz")).unwrap();
    fs::write(kept.join("rounds.json.gz"), &packed[..packed.len() / 2]).unwrap();
    assert_eq!(run(&["lab", "verify", &name]).exit, Exit::Code(1));
    fs::write(kept.join("rounds.json.gz"), &packed).unwrap();
    assert_eq!(run(&["lab", "verify", &name]).exit, Exit::Code(0));

    // A word of the README that was changed by hand is found.
    let readme = kept.join("README.md");
    fs::write(&readme, fs::read_to_string(&readme).unwrap().replacen("# A short one", "# A fast one", 1)).unwrap();
    assert_eq!(run(&["lab", "verify", &name]).exit, Exit::Code(1));
}

/// The document with the table of the run.
fn put_again(name: &str, document: &str, scratch: &Scratch) -> String {
    let file = scratch.write("again.md", document);
    assert_eq!(run(&["lab", "report", name, "--table", "--into", &file]).exit, Exit::Code(0));
    fs::read_to_string(file).unwrap()
}

#[test]
fn a_rival_that_fails_does_not_stop_the_rest() {
    let _measuring = measuring();
    let scratch = Scratch::new();
    let rivals = scratch.path().join("rivals");
    fs::create_dir(&rivals).unwrap();
    let rival = |start: &str| {
        format!(
            "title = 'A rival'\nlayer = 'http'\nspeaks = ['http']\nbinds = true\nitself = true\nversion = ['--version']\nstart = {start}\n\
             suffix = 'yaml'\n[configuration]\ntuned = '''\n{CONFIGURATION}'''\n"
        )
    };
    fs::write(rivals.join("stillborn.toml"), rival("['/bin/sh', '-c', 'echo no such thing >&2; exit 3']")).unwrap();
    // A timer kills it during its second load at the latest.
    let mortal = "['timeout', '-s', 'KILL', '2', '{{ program }}', 'serve', '-c', '{{ file }}', '--workers', '1']";
    fs::write(rivals.join("mortal.toml"), rival(mortal)).unwrap();
    let scenario = SCENARIO
        .replace("\"steelyard-tcp*2\"]", "\"stillborn\", \"mortal\"]")
        .replace("measure = \"300ms\"", "measure = \"900ms\"");
    let (file, out) = (scratch.path().join("short.toml"), scratch.path().join("out"));
    fs::write(&file, scenario).unwrap();
    let mut command = lab_run(&file.display().to_string(), &out, &["--contenders-dir"]);
    command.arg(&rivals).args(["--cases", "full", "--rounds", "2"]);
    let program = Program::spawn("lab", &mut command).unwrap();
    let pid = program.pid();
    let said = finish_run(program, &out);
    let run_file = record(&out);
    let gap = run_file["gaps"].as_array().unwrap().iter().find(|gap| gap["what"] == "stillborn").unwrap();
    assert!(gap["why"].as_str().unwrap().contains("no such thing"), "{gap}");
    let of = |name: &str| cells(&run_file).iter().filter(|cell| cell["instance"] == name).cloned().collect::<Vec<_>>();
    assert!(of("steelyard-http").iter().all(|cell| cell["measurement"].is_object()), "{said}");
    assert!(of("mortal").iter().any(|cell| cell["failure"]["why"].is_string()), "{said}");
    assert_nothing_is_left(pid, &out);
}

const CONFIGURATION: &str = "listeners:
{% for service in services %}
  {{ service.name }}: {bind: '{{ service.address }}:{{ service.port }}', protocol: http, to: {{ service.name }}}
{% endfor %}
clusters:
{% for service in services %}
  {{ service.name }}: {endpoints: ['{{ service.endpoints[0].address }}:{{ service.endpoints[0].port }}']}
{% endfor %}
";

#[test]
fn an_interrupted_run_is_a_valid_part_and_leaves_nothing() {
    let _measuring = measuring();
    for signal in [Signal::INT, Signal::TERM] {
        let scratch = Scratch::new();
        let (file, out) = (scratch.write("short.toml", SCENARIO), scratch.path().join("out"));
        let mut program = Program::spawn("lab", &mut lab_run(&file, &out, &["--rounds", "900"])).unwrap();
        let pid = program.pid();
        until(PATIENCE, || program.log().contains("\n[2/").then_some(())).expect("two cells");
        program.signal(signal).unwrap();
        let said = finish(program, 1).stderr;
        let run_file = record(&out);
        assert_eq!(run_file["partial"], "interrupted", "{said}");
        assert!(cells(&run_file).len() >= 2 && run_file["ended"].is_string());
        assert!(out.join("report.html").exists());
        assert_eq!(run(&["lab", "verify", &out.display().to_string()]).exit, Exit::Code(0));
        assert_nothing_is_left(pid, &out);
    }
}

#[test]
fn a_killed_lab_loses_nothing_and_is_cleaned_up_after() {
    let _measuring = measuring();
    let scratch = Scratch::new();
    let (file, out) = (scratch.write("short.toml", SCENARIO), scratch.path().join("out"));
    let mut program = Program::spawn("lab", &mut lab_run(&file, &out, &["--rounds", "900"])).unwrap();
    let pid = program.pid();
    until(PATIENCE, || program.log().contains("\n[2/").then_some(())).expect("two cells");
    // A second lab at the same time would measure the first.
    let second = run(&["lab", "run", &file, "--out", &scratch.path().join("second").display().to_string()]);
    assert_eq!(second.exit, Exit::Code(1));
    assert!(second.stderr.contains("another lab is measuring"), "{}", second.stderr);

    program.signal(Signal::KILL).unwrap();
    program.finish().unwrap();
    assert!(cells(&record(&out)).len() >= 2);
    if is_root() {
        assert!(!namespaces_of(pid).is_empty(), "there is something to clean up");
    }
    assert_eq!(run(&["lab", "doctor", "--clean"]).exit, Exit::Code(0));
    assert_nothing_is_left(pid, &out);
    // A report can be made of what it had measured.
    assert_eq!(run(&["lab", "report", &out.display().to_string()]).exit, Exit::Code(0));
    assert!(out.join("report.md").exists());
}

#[test]
fn what_is_wrong_is_told_before_anything_is_started() {
    let scratch = Scratch::new();
    let bad = SCENARIO.replace("\"steelyard-http\"", "\"steelyard-htp\"").replace("rate = \"50% of full\"", "rat = 1");
    let file = scratch.write("bad.toml", &bad);
    let finished = run(&["lab", "run", &file, "--out", &scratch.path().join("out").display().to_string()]);
    assert_eq!(finished.exit, Exit::Code(64));
    for text in [
        format!("{file}:4:25: no contender has the name \"steelyard-htp\"; did you mean `steelyard-http`?"),
        format!("{file}:25:41: unknown name `rat`; did you mean `rate`?"),
    ] {
        assert!(finished.stderr.contains(&text), "{text}: {}", finished.stderr);
    }
    assert!(!scratch.path().join("out").exists());

    let check = |words: &[&str], exit: i32, expect: &str| {
        let finished = run(words);
        assert_eq!(finished.exit, Exit::Code(exit), "{words:?}: {finished:?}");
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(said.contains(expect), "{words:?}: {said}");
    };
    check(&["lab", "run", "l4-matrx"], 64, "did you mean `l4-matrix`?");
    check(&["lab", "run", "l4-matrix", "--contenders", "nginx"], 64, "did you mean");
    check(&["lab", "run"], 2, "SCENARIO");
    check(&["lab", "verify", "/no/such/run"], 1, "No such file");
    check(&["lab", "list"], 0, "cpu-scaling");
    check(&["lab", "list", "--json"], 0, "\"expected_quick_s\":");
    check(&["lab", "doctor"], 0, "congestion control");
    check(
        &["lab", "run", "l4-matrix", "--quick", "--plan", "--out", &scratch.path().join("plan").display().to_string()],
        0,
        "cells in",
    );
    assert!(!scratch.path().join("plan").exists());
}

//! The test binaries of the workspace: builds them with the program that they drive, and runs several at a time.
//!
//! Job: the same as `cargo test --workspace`, in less time. That runs one binary after another, and most of them wait
//! for timers and for programs that they start. When a binary has ended, its whole output is passed on under the line
//! that cargo would have written. Not its job: interpreting and printing the output; and doc tests, which have no
//! binary. No crate has doc tests, and one that would is refused.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{PORTS, share_of_ports};

use crate::command::{cargo, command, root};

/// Always builds the whole workspace: the dependencies of a package that is built alone may get other features, and
/// would then be compiled again.
const BUILD: [&str; 5] = ["build", "--workspace", "--bin", "steelyard", "--message-format=json-render-diagnostics"];

/// This many more binaries than CPUs run at a time, because each waits more than it works.
const MORE_THAN_CPUS: usize = 1;

/// With this many, the longest binary takes as long as all others. Each has an eighth of the ports, which is more than
/// the scripts use at once.
const AT_A_TIME_MAX: usize = 8;

/// The binaries that load the kernel plane, most of them in their own networks. They run beside others, but one after
/// another. The kernel has one lock for all networks and frees tables slowly, so three of them at once take longer than
/// in turn, and a plane may not be ready in time. They start first, because together they take longest.
const IN_TURN: &[&str] = &[
    "crates/l4/tests/packets/main.rs",
    "e2e/tests/vip_life.rs",
    "e2e/tests/vip_paths.rs",
    "crates/l4/src/lib.rs",
    "crates/l4/tests/native/main.rs",
    "e2e/tests/vip_refusals.rs",
];

/// Of the others, the longest start first: otherwise one that starts last would still run when all others have ended.
/// Of `vip_nodes.rs`, which takes four minutes, most is waiting for the timers of BGP.
const FIRST: &[&str] = &[
    "e2e/tests/vip_nodes.rs",
    "e2e/tests/scripts.rs",
    "e2e/tests/vip_ports.rs",
    "e2e/tests/matrix.rs",
    "e2e/tests/docs.rs",
    "e2e/tests/vip_socket_faults.rs",
    "crates/lab/tests/demo.rs",
    "e2e/tests/change_without_loss.rs",
];

/// The binaries that run alone, and why.
const ALONE: &[(&str, &str)] = &[
    ("e2e/tests/fair.rs", "it compares what streams got within two seconds"),
    ("e2e/tests/lab.rs", "a measurement that others disturbed is repeated up to four times"),
];

/// If no binary has ended for this long, the running ones are named.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The result of the build.
pub struct Built {
    /// The program that the end-to-end tests drive.
    pub steelyard: PathBuf,
    /// In the order in which they start.
    tests: Vec<TestBinary>,
}

/// The tests of a library, of a program, or of a file under `tests/`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TestBinary {
    /// The path of its root file, relative to the workspace's folder.
    source: String,
    executable: PathBuf,
    /// The folder of its package, in which tests run.
    directory: PathBuf,
}

/// The result of one binary.
pub struct Ended {
    /// The path of its root file.
    pub source: String,
    /// The line that names it, and its whole output.
    pub output: Vec<u8>,
    /// Whether all tests passed.
    pub succeeded: bool,
    /// How long it ran.
    pub took: Duration,
}

/// Builds exactly the program that the tests use, in this environment.
pub fn build_steelyard(environment: &[(&str, &str)]) -> Result<PathBuf, String> {
    // This also builds a test, which is small: features that tests need from a dependency (tokio's paused clock) are
    // only enabled if a test is built.
    Ok(build(&["--test", "scripts"], environment)?.steelyard)
}

/// Builds the program and all tests.
pub fn build_all() -> Result<Built, String> {
    build(&["--tests"], &[])
}

fn build(what: &[&str], environment: &[(&str, &str)]) -> Result<Built, String> {
    let arguments = [&BUILD, what].concat();
    println!("+ cargo {}", arguments.join(" "));
    let output = cargo(&arguments).envs(environment.iter().copied()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("building it failed: {}", output.status));
    }
    built(&String::from_utf8_lossy(&output.stdout), &root())
}

/// Parses the messages of cargo about what it has built: one line of JSON each.
fn built(messages: &str, root: &Path) -> Result<Built, String> {
    let mut steelyard = None;
    let mut tests = Vec::new();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if message["target"]["doctest"] == true && Path::new(&text(&message["manifest_path"])).starts_with(root) {
            return Err(format!("{} lacks `doctest = false`: nothing runs doc tests here", message["manifest_path"]));
        }
        let Some(executable) = message["executable"].as_str().map(PathBuf::from) else { continue };
        if message["profile"]["test"] == true {
            let (source, manifest) = (text(&message["target"]["src_path"]), text(&message["manifest_path"]));
            let source = source.strip_prefix(&format!("{}/", root.display())).map_or(source.clone(), str::to_owned);
            let directory = Path::new(&manifest).parent().unwrap_or(root).to_owned();
            tests.push(TestBinary { source, executable, directory });
        } else if message["target"]["name"] == "steelyard" {
            steelyard = Some(executable);
        }
    }
    // The sort is stable: the others stay in the order of cargo, which is alphabetical.
    tests.sort_by_key(|test: &TestBinary| FIRST.iter().position(|first| *first == test.source).unwrap_or(FIRST.len()));
    Ok(Built { steelyard: steelyard.ok_or("cargo has built no steelyard")?, tests })
}

impl Built {
    /// The number of test binaries.
    pub fn tests(&self) -> usize {
        self.tests.len()
    }
}

/// Runs them all, and calls `tell` with each result.
pub fn run_all(built: &Built, mut tell: impl FnMut(&Ended)) -> Result<(), String> {
    let is_alone = |test: &&TestBinary| ALONE.iter().any(|(source, _)| *source == test.source);
    let (alone, together): (Vec<_>, Vec<_>) = built.tests.iter().partition(is_alone);
    let (in_turn, free): (Vec<_>, Vec<_>) =
        together.into_iter().partition(|test| IN_TURN.contains(&test.source.as_str()));
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    let at_a_time = (cpus + MORE_THAN_CPUS).min(AT_A_TIME_MAX);
    run_some_at_a_time((&in_turn, &free), at_a_time, &built.steelyard, &mut tell)?;
    run_some_at_a_time((&alone, &[]), 1, &built.steelyard, &mut tell)
}

/// A message from a thread that runs binaries.
enum News<'a> {
    Begun(&'a TestBinary),
    Ended(&'a TestBinary, io::Result<Ended>),
}

/// The first thread runs those of `in_turn`, and helps with the others when it is done.
fn run_some_at_a_time(
    (in_turn, free): (&[&TestBinary], &[&TestBinary]),
    at_a_time: usize,
    steelyard: &Path,
    tell: &mut impl FnMut(&Ended),
) -> Result<(), String> {
    let next = Mutex::new(free.iter().copied());
    let (sender, news) = channel();
    std::thread::scope(|scope| {
        for index in 0..at_a_time {
            let (next, sender) = (&next, sender.clone());
            let ports = share_of_ports(index as u16, at_a_time as u16);
            let own = if index == 0 { in_turn } else { &[] };
            scope.spawn(move || run_one_by_one((own, next), (steelyard, &ports), &sender));
        }
        drop(sender);
        let mut running: Vec<&str> = Vec::new();
        let mut errors = Vec::new();
        loop {
            match news.recv_timeout(SILENCE_MAX) {
                Ok(News::Begun(test)) => running.push(&test.source),
                Ok(News::Ended(test, outcome)) => {
                    running.retain(|source| *source != test.source);
                    match outcome {
                        Ok(ended) => tell(&ended),
                        Err(error) => errors.push(format!("{} did not run: {error}", test.executable.display())),
                    }
                }
                Err(RecvTimeoutError::Timeout) => println!("     still running: {}", running.join(", ")),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    })
}

/// One of the threads. It has its own range of ports, and may have tests of its own.
fn run_one_by_one<'a>(
    (own, next): (&[&'a TestBinary], &Mutex<impl Iterator<Item = &'a TestBinary>>),
    (steelyard, ports): (&Path, &str),
    sender: &Sender<News<'a>>,
) {
    let mut own = own.iter().copied();
    while let Some(test) = own.next().or_else(|| next.lock().ok()?.next()) {
        // The receiver outlives this thread.
        _ = sender.send(News::Begun(test));
        _ = sender.send(News::Ended(test, run(test, steelyard, ports)));
    }
}

fn run(test: &TestBinary, steelyard: &Path, ports: &str) -> io::Result<Ended> {
    let start = Instant::now();
    // One pipe for both streams keeps their order.
    let (mut reader, writer) = io::pipe()?;
    let mut command = command(&test.executable.to_string_lossy(), &[]);
    command.current_dir(&test.directory).env("STEELYARD_BIN", steelyard).env(PORTS, ports);
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    drop(command); // It holds the writing ends, which would keep the pipe open.
    let mut written = Vec::new();
    let outcome = reader.read_to_end(&mut written);
    let status = child.wait()?;
    outcome?;
    let mut output = format!("     Running {} ({})\n", test.source, test.executable.display()).into_bytes();
    output.append(&mut written);
    Ok(Ended { source: test.source.clone(), output, succeeded: status.success(), took: start.elapsed() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cargo_has_built() {
        let artifact = |kind: &str, name: &str, source: &str, is_test: bool, executable: &str| {
            let message = serde_json::json!({
                "reason": "compiler-artifact", "manifest_path": "/w/e2e/Cargo.toml",
                "target": {"kind": [kind], "name": name, "src_path": source, "doctest": false}, "profile": {"test": is_test},
                "executable": if executable.is_empty() { Value::Null } else { executable.into() },
            });
            format!("{message}\n")
        };
        let steelyard = artifact("bin", "steelyard", "/w/crates/steelyard/src/main.rs", false, "/t/steelyard");
        let messages = [
            artifact("lib", "e2e", "/w/e2e/src/lib.rs", false, ""),
            "not JSON\n".to_owned(),
            artifact("lib", "e2e", "/w/e2e/src/lib.rs", true, "/t/e2e-1"),
            artifact("test", "scripts", "/w/e2e/tests/scripts.rs", true, "/t/scripts-2"),
            "{\"reason\": \"build-finished\"}\n".to_owned(),
        ]
        .concat();
        assert!(built(&messages, Path::new("/w")).is_err_and(|why| why.contains("no steelyard")));
        let messages = messages + &steelyard;
        let with_doctests = messages.replacen("\"doctest\":false", "\"doctest\":true", 1);
        assert!(built(&with_doctests, Path::new("/w")).is_err_and(|why| why.contains("doctest = false")));
        assert!(built(&with_doctests, Path::new("/of/others")).is_ok());
        let built = built(&messages, Path::new("/w")).unwrap();
        assert_eq!(built.steelyard, Path::new("/t/steelyard"));
        let sources: Vec<&str> = built.tests.iter().map(|test| test.source.as_str()).collect();
        assert_eq!(sources, ["e2e/tests/scripts.rs", "e2e/src/lib.rs"], "what takes long is first");
        assert_eq!(built.tests[0].executable, Path::new("/t/scripts-2"));
        assert!(built.tests.iter().all(|test| test.directory == Path::new("/w/e2e")));
    }

    #[test]
    fn those_with_a_place_of_their_own_are_there() {
        for source in IN_TURN.iter().chain(FIRST).chain(ALONE.iter().map(|(source, _)| source)) {
            assert!(root().join(source).is_file(), "{source}");
        }
    }

    /// Runs shell scripts as if they were tests.
    fn run_scripts(scripts: &[&str], in_turn: usize, at_a_time: usize) -> Result<Vec<(String, String, bool)>, String> {
        let directory = std::env::temp_dir().join(format!("xtask-{}-binaries-{at_a_time}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut tests = Vec::new();
        for (number, script) in scripts.iter().enumerate() {
            let executable = directory.join(format!("t{number}"));
            // Another process writes the script: if another test started a process meanwhile, that would inherit our
            // open file, and a file that is open for writing cannot be executed.
            let write = format!("printf '#!/bin/sh\\n%s\\n' \"$0\" > {0}; chmod +x {0}", executable.display());
            crate::command::run(&mut command("sh", &["-c", &write, script])).unwrap();
            tests.push(TestBinary { source: format!("{number}.rs"), executable, directory: directory.clone() });
        }
        let mut heard = Vec::new();
        let all: Vec<&TestBinary> = tests.iter().collect();
        let outcome = run_some_at_a_time(all.split_at(in_turn), at_a_time, Path::new("/t/steelyard"), &mut |ended| {
            heard.push((ended.source.clone(), String::from_utf8_lossy(&ended.output).into_owned(), ended.succeeded));
        });
        std::fs::remove_dir_all(&directory).unwrap();
        outcome.map(|()| heard)
    }

    #[test]
    fn each_says_its_piece_where_it_belongs() {
        let scripts = ["echo a $STEELYARD_BIN; echo b >&2; echo c", "pwd; exit 3", "echo $STEELYARD_TEST_PORTS"];
        let heard = run_scripts(&scripts, 0, 1);
        let heard = heard.unwrap();
        let check = |index: usize, source: &str, succeeded: bool, expect: &str| {
            let (of, output, has_succeeded) = &heard[index];
            assert_eq!((of.as_str(), *has_succeeded), (source, succeeded));
            let (head, said) = output.split_once('\n').unwrap();
            assert!(head.starts_with(&format!("     Running {source} (")) && said.ends_with(expect), "{output}");
        };
        check(0, "0.rs", true, "a /t/steelyard\nb\nc\n");
        check(1, "1.rs", false, &format!("xtask-{}-binaries-1\n", std::process::id()));
        check(2, "2.rs", true, &format!("{}\n", share_of_ports(0, 1)));
    }

    #[test]
    fn some_run_at_a_time() {
        // The first script ends when the second one, which waits for nothing, has started.
        let heard = run_scripts(&["while ! [ -e mark ]; do :; done", "touch mark; echo done"], 0, 2).unwrap();
        assert_eq!(heard.len(), 2);
        assert!(heard.iter().all(|(_, _, succeeded)| *succeeded));
    }

    #[test]
    fn some_run_in_turn_beside_the_others() {
        // Each of two scripts is alone while it runs, and ends when a third has run beside it.
        let hold = "mkdir held && while ! [ -e mark ]; do :; done && rmdir held";
        let heard = run_scripts(&[hold, hold, "touch mark"], 2, 3).unwrap();
        assert!(heard.len() == 3 && heard.iter().all(|(_, _, succeeded)| *succeeded), "{heard:?}");
    }
}

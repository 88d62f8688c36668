//! `cargo xtask test`: runs every test, and makes sure that they ran.
//!
//! The program that the end-to-end tests drive is built with them, and they find it by `STEELYARD_BIN`. A test that
//! cannot run on this host writes a line `SKIP name: why` directly to standard error, past the capture of the test
//! harness. As root, such a line is a failure, because a test that does not run proves nothing.

mod binaries;
mod failed_output;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use binaries::Ended;
pub use binaries::build_steelyard;
use failed_output::FailedOutput;

use crate::command::{cargo, is_root, root};
use crate::setup;
use crate::tidy::tree;
use crate::{cluster, dist, h2, kernels, kube};

/// Runs all tests. `arguments` go to `cargo test` (`-p wire`, `-- name`); with arguments, the counts are not checked,
/// except that some test ran.
///
/// As the first argument, `h2` runs the suites of other projects: see [`h2`]; `kube` the tests that need an API server:
/// see [`kube`]; `cluster` the tests that need nodes: see [`cluster`]; `conformance` the suite of the Gateway API: see
/// [`cluster::conformance`]; `kernels` the kernel plane on older kernels: see [`kernels`]; `dist` the tests of the
/// packages: see [`dist::trial`].
pub fn run(arguments: &[String]) -> Result<(), String> {
    match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("h2", rest)) => return h2::run(rest),
        Some(("kube", rest)) => return kube::test(rest),
        Some(("cluster", rest)) => return cluster::test(rest),
        Some(("conformance", rest)) => return cluster::conformance::run(rest),
        Some(("kernels", rest)) => return kernels::run(rest),
        Some(("dist", rest)) => return dist::trial::run(rest),
        _ => {}
    }
    setup::install_for("test")?;
    if arguments.is_empty() {
        return run_everything();
    }
    let steelyard = build_steelyard(&[])?;
    run_chosen(cargo(&["test", "--no-fail-fast"]).args(arguments).env("STEELYARD_BIN", steelyard))
}

/// Runs `cargo test`, and requires that all of its tests run and pass.
pub fn run_chosen(tests: &mut Command) -> Result<(), String> {
    let mut tally = Tally::default();
    let failed = if watch(tests, &mut tally)? { Vec::new() } else { vec!["cargo test".to_owned()] };
    judge(&tally, &failed, 0)
}

fn run_everything() -> Result<(), String> {
    println!("building the program and all tests (some minutes the first time)");
    let start = Instant::now();
    let built = binaries::build_all()?;
    println!("built in {}; running {} test binaries", time(start.elapsed()), built.tests());
    let start = Instant::now();
    let mut tally = Tally::default();
    let mut failed = Vec::new();
    let mut ended_count = 0;
    binaries::run_all(&built, |ended| {
        let output = String::from_utf8_lossy(&ended.output);
        let passed_before: u64 = tally.passed.values().sum();
        output.lines().for_each(|line| tally.handle_line(line));
        ended_count += 1;
        if !ended.succeeded {
            failed.push(ended.source.clone());
            print!("\n{output}\n");
        }
        let passed = tally.passed.values().sum::<u64>() - passed_before;
        println!("{}", progress((ended_count, built.tests()), start.elapsed(), ended, passed, failed.len()));
    })?;
    judge(&tally, &failed, scripts()?)
}

/// One line for a binary that has ended. The output of a failed one is printed above it.
fn progress((ended, all): (usize, usize), since: Duration, of: &Ended, passed: u64, failed: usize) -> String {
    let took = time(of.took);
    let outcome = match of.succeeded {
        true => format!("{passed} passed in {took}"),
        false => format!("FAILED after {took}, see above"),
    };
    let failures = if failed == 0 { String::new() } else { format!("; failed so far: {failed}") };
    format!("[{ended}/{all}] {:>7}  {}: {outcome}{failures}", time(since), of.source)
}

/// A duration for people: `45 s`, `2 m 05 s`.
fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 60 { format!("{seconds} s") } else { format!("{} m {:02} s", seconds / 60, seconds % 60) }
}

fn judge(tally: &Tally, failed: &[String], scripts_min: u64) -> Result<(), String> {
    println!("\n{}", summary(tally));
    let problems = verdict(tally, failed, scripts_min, is_root());
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ") + &tally.failed_output.text()) }
}

/// The number of scripts. Each is one end-to-end test.
fn scripts() -> Result<u64, String> {
    let files = tree::read(&root())?;
    Ok(files.iter().filter(|file| file.path.starts_with("e2e/scripts/") && file.path.ends_with(".http")).count() as u64)
}

/// What the tests reported about themselves.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    /// Tests that passed, by the name of their binary, which is that of the crate or of the file under `tests/`.
    passed: BTreeMap<String, u64>,
    failed: u64,
    /// The names of failed tests.
    failures: Vec<String>,
    /// The names in the list of failed tests that is being read, after the last line `failures:`.
    listed: Option<Vec<String>>,
    ignored: u64,
    /// `name: why`.
    skipped: Vec<String>,
    /// The running binary.
    current: String,
    failed_output: FailedOutput,
}

impl Tally {
    /// Reads one line of `cargo test`.
    fn handle_line(&mut self, line: &str) {
        self.failed_output.handle_line(line);
        if let (Some(listed), Some(name)) = (&mut self.listed, line.strip_prefix("    ")) {
            listed.push(name.trim().to_owned());
            return;
        }
        let line = line.trim();
        if let Some(skipped) = line.strip_prefix("SKIP ") {
            self.skipped.push(skipped.to_owned());
        } else if let Some(rest) = line.strip_prefix("Running ") {
            // Running unittests src/lib.rs (target/debug/deps/wire-0f3a...)
            let file = rest.rsplit('/').next().unwrap_or("");
            self.current = file.rsplit_once('-').map_or(file, |(name, _hash)| name).to_owned();
        } else if let Some(rest) = line.strip_prefix("Doc-tests ") {
            self.current = format!("{rest} (documentation)");
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        } else if line == "failures:" {
            // The first such line begins what the failed tests printed, the second the list of their names.
            self.listed = Some(Vec::new());
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            // With --nocapture, output stands between the name of a test and FAILED. Then only the list has the name.
            for name in self.listed.take().unwrap_or_default() {
                if !self.failures.contains(&name) {
                    self.failures.push(name);
                }
            }
            // ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
            *self.passed.entry(self.current.clone()).or_default() += count_before(counts, " passed");
            self.failed += count_before(counts, " failed");
            self.ignored += count_before(counts, " ignored");
        }
    }
}

fn count_before(counts: &str, word: &str) -> u64 {
    let before = counts.split(word).next().unwrap_or("");
    before.rsplit([' ', ';', '.']).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Runs cargo test, passing on every line as it arrives. Returns whether it succeeded.
fn watch(tests: &mut Command, tally: &mut Tally) -> Result<bool, String> {
    let failed = |error: std::io::Error| format!("`cargo test`: {error}");
    // There is one pipe for both streams, because their order matters: cargo names the binary on standard error, and
    // the binary prints counts on standard output.
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    tests.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let mut child = tests.spawn().map_err(failed)?;
    tests.stdout(Stdio::null()).stderr(Stdio::null()); // It holds the writing ends, which would keep the pipe open.
    read_lines(BufReader::new(reader), tally).map_err(failed)?;
    Ok(child.wait().map_err(failed)?.success())
}

fn read_lines(mut reader: impl BufRead, tally: &mut Tally) -> std::io::Result<()> {
    let mut line = Vec::new();
    // Not `lines()`: a test may print bytes that are not UTF-8.
    while reader.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        tally.handle_line(&text);
        line.clear();
    }
    Ok(())
}

/// Everything that is wrong with this run. `failed` names the failures that were reported; `scripts_min` is the number
/// of end-to-end scripts that must have passed.
fn verdict(tally: &Tally, failed: &[String], scripts_min: u64, root: bool) -> Vec<String> {
    let scripts = tally.passed.get("scripts").copied().unwrap_or(0);
    let mut problems = Vec::new();
    if !failed.is_empty() {
        let names = if tally.failures.is_empty() { "no test is named" } else { &tally.failures.join(", ") };
        problems.push(format!("{} failed ({} tests: {names})", failed.join(", "), tally.failed));
    }
    if tally.passed.values().sum::<u64>() == 0 {
        problems.push("no test ran".into());
    }
    if tally.ignored > 0 {
        problems
            .push(format!("{} tests are ignored; assert what happens today and say why it is wrong", tally.ignored));
    }
    if scripts < scripts_min {
        problems.push(format!("only {scripts} of {scripts_min} end-to-end scripts passed"));
    }
    if root && !tally.skipped.is_empty() {
        problems.push(format!("{} tests were skipped under root: {}", tally.skipped.len(), tally.skipped.join("; ")));
    }
    problems
}

fn summary(tally: &Tally) -> String {
    let mut text = String::new();
    for (binary, passed) in tally.passed.iter().filter(|(_, passed)| **passed > 0) {
        text += &format!("  {passed:>5} {binary}\n");
    }
    for skipped in &tally.skipped {
        text += &format!("  skipped {skipped}\n");
    }
    let total: u64 = tally.passed.values().sum();
    text + &format!(
        "tests: {total} passed, {} failed, {} ignored, {} skipped",
        tally.failed,
        tally.ignored,
        tally.skipped.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
     Running unittests src/lib.rs (target/debug/deps/wire-0f3ab2)
test h1::tests::heads ... ok
test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
     Running tests/scripts.rs (target/debug/deps/scripts-77aa)
SKIP splice_to_pipe: needs CAP_NET_ADMIN
test a_reset_is_seen ... FAILED
test result: FAILED. 40 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 9.50s
   Doc-tests wire
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    fn tally(output: &str) -> Tally {
        let mut tally = Tally::default();
        output.lines().for_each(|line| tally.handle_line(line));
        tally
    }

    #[test]
    fn a_line_for_each_binary() {
        let check = |succeeded, since, failed, expect: &str| {
            let took = Duration::from_millis(1900);
            let ended = Ended { source: "e2e/tests/cli.rs".into(), output: Vec::new(), succeeded, took };
            assert_eq!(progress((7, 61), Duration::from_secs(since), &ended, 12, failed), expect);
        };
        check(true, 59, 0, "[7/61]    59 s  e2e/tests/cli.rs: 12 passed in 1 s");
        check(true, 125, 1, "[7/61] 2 m 05 s  e2e/tests/cli.rs: 12 passed in 1 s; failed so far: 1");
        check(false, 3600, 2, "[7/61] 60 m 00 s  e2e/tests/cli.rs: FAILED after 1 s, see above; failed so far: 2");
    }

    #[test]
    fn counts_what_cargo_says() {
        let tally = tally(OUTPUT);
        let passed: Vec<_> = tally.passed.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        assert_eq!(passed, [("scripts", 40), ("wire", 12), ("wire (documentation)", 1)]);
        assert_eq!((tally.failed, tally.ignored), (2, 1));
        assert_eq!(tally.skipped, ["splice_to_pipe: needs CAP_NET_ADMIN"]);
        assert_eq!(tally.failures, ["a_reset_is_seen"]);
        assert!(summary(&tally).ends_with("tests: 53 passed, 2 failed, 1 ignored, 1 skipped"));
    }

    #[test]
    fn failed_tests_have_names_without_capture() {
        let output = "
     Running tests/cluster.rs (target/debug/deps/cluster-77aa)
test drains::late ... 
thread 'drains::late' panicked at e2e/kube/drains.rs:7:5:
    an indented line
FAILED
test drains::soon ... ok

failures:

---- drains::late stdout ----
    another indented line

failures:
    drains::late

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.50s
";
        assert_eq!(tally(output).failures, ["drains::late"]);
    }

    #[test]
    fn what_fails_a_run() {
        let check = |output: &str, succeeded, scripts_min, root, expect: &[&str]| {
            let failed = if succeeded { Vec::new() } else { vec!["e2e/tests/scripts.rs".to_owned()] };
            assert_eq!(verdict(&tally(output), &failed, scripts_min, root), expect, "{output}");
        };
        let ran = "Running x (d/scripts-1)\ntest result: ok. 3 passed; 0 failed; 0 ignored;";
        let unit_only = "Running x (d/wire-1)\ntest result: ok. 3 passed; 0 failed; 0 ignored;";
        let skipped = &format!("{ran}\nSKIP a: no root");
        check(ran, true, 3, true, &[]);
        check(ran, true, 4, true, &["only 3 of 4 end-to-end scripts passed"]);
        check(ran, false, 3, true, &["e2e/tests/scripts.rs failed (0 tests: no test is named)"]);
        let failed =
            format!("{ran}\ntest drains::late ... FAILED\ntest result: FAILED. 2 passed; 1 failed; 0 ignored;");
        check(&failed, false, 3, true, &["e2e/tests/scripts.rs failed (1 tests: drains::late)"]);
        check(unit_only, true, 3, false, &["only 0 of 3 end-to-end scripts passed"]);
        check(unit_only, true, 0, false, &[]);
        check(skipped, true, 3, false, &[]);
        check(skipped, true, 3, true, &["1 tests were skipped under root: a: no root"]);
        check("", true, 0, false, &["no test ran"]);
        let ignored = "Running x (d/scripts-1)\ntest result: ok. 1 passed; 0 failed; 1 ignored;";
        check(ignored, true, 0, false, &["1 tests are ignored; assert what happens today and say why it is wrong"]);
    }
}

//! `cargo xtask ci`: the checks that a change must pass, the same here as on the server. The last ones are exactly the
//! commands that the README gives for tests.

use std::time::Instant;

use crate::cargo::binaries;
use crate::command::{cargo, run as run_command, succeeds};
use crate::{cluster, demo, dist, docs, fuzz, h2, kernels, kube, setup, sim, test, tidy, without_clang};

struct Stage {
    name: &'static str,
    run: fn() -> Result<(), String>,
}

/// The cheap stages come first. All of them run, so that one push shows every problem.
const STAGES: &[Stage] = &[
    Stage { name: "lock file", run: lock_file },
    Stage { name: "format", run: format },
    Stage { name: "tidy", run: || tidy::run(&[]) },
    Stage { name: "lints", run: lints },
    Stage { name: "documentation", run: documentation },
    Stage { name: "book", run: || docs::run(&[]) },
    Stage { name: "fuzz targets", run: fuzz_targets },
    Stage { name: "without clang", run: without_clang::run },
    Stage { name: "demo", run: || demo::check(&["--seconds=2".to_owned()]) },
    Stage { name: "tests", run: || test::run(&[]) },
    Stage { name: "simulation", run: || sim::run(&[]) },
    Stage { name: "HTTP/2 suites", run: || h2::run(&[]) },
    Stage { name: "kernels", run: || kernels::run(&[]) },
    Stage { name: "Kubernetes", run: || kube::test(&[]) },
    Stage { name: "cluster", run: || cluster::test(&[]) },
    Stage { name: "conformance", run: cluster::conformance::check },
    Stage { name: "packages", run: || dist::trial::run(&[]) },
];

/// Runs every stage. The error names those that failed.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask ci (it takes no arguments: CI is the same for everyone)".into());
    }
    setup::install_for("ci")?;
    components()?;
    let mut outcomes = Vec::new();
    for Stage { name, run } in STAGES {
        println!("\n== {name}");
        let start = Instant::now();
        let outcome = run();
        if let Err(why) = &outcome {
            println!("{name}: {why}");
        }
        outcomes.push((*name, start.elapsed().as_secs(), outcome));
    }
    println!("\nci:");
    for (name, seconds, outcome) in &outcomes {
        println!("  {:<14} {:>5} s  {}", name, seconds, if outcome.is_ok() { "ok" } else { "FAILED" });
    }
    // Servers often keep only the end of a log: it says which test failed.
    let failed = outcomes.iter().filter_map(|(name, _, outcome)| Some(format!("{name}: {}", outcome.as_ref().err()?)));
    let failed: Vec<String> = failed.collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed:\n  {}", failed.join("\n  "))) }
}

fn components() -> Result<(), String> {
    for (component, probe) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !succeeds(&mut cargo(&[probe, "--version"])) {
            return Err(format!("{component} is missing: `rustup component add {component}`"));
        }
    }
    Ok(())
}

fn lock_file() -> Result<(), String> {
    run_command(&mut cargo(&["fetch", "--locked"]))?;
    run_command(&mut cargo(&["fetch", "--locked", "--manifest-path", docs::MANIFEST]))
}

fn format() -> Result<(), String> {
    run_command(&mut cargo(&["fmt", "--all", "--check"]))
}

fn lints() -> Result<(), String> {
    // Includes what only `test kube` and `test cluster` build.
    let targets = ["clippy", "--workspace", "--all-targets", "--features", "e2e/kube", "--locked"];
    run_command(cargo(&targets).args(["--", "--deny", "warnings"]))
}

fn documentation() -> Result<(), String> {
    let arguments = ["doc", "--workspace", "--no-deps", "--document-private-items", "--locked"];
    run_command(cargo(&arguments).env("RUSTDOCFLAGS", "--deny warnings"))
}

/// The fuzz targets are outside the workspace, so no other stage would notice if one no longer compiles, links or
/// accepts its seeds. CI runs each target on its seeds with the stable compiler: libFuzzer cannot search without the
/// instrumentation of a nightly compiler, but it still runs the given inputs. `cargo xtask fuzz` searches.
fn fuzz_targets() -> Result<(), String> {
    let manifest = ["--manifest-path", fuzz::MANIFEST, "--locked"];
    run_command(&mut cargo(&[&["clippy"], &manifest[..], &["--", "--deny", "warnings"]].concat()))?;
    run_command(&mut cargo(&[&["build", "--bins"], &manifest[..]].concat()))?;
    for target in binaries(fuzz::MANIFEST)? {
        let mut run = cargo(&[&["run", "--quiet", "--bin", &target], &manifest[..], &["--"]].concat());
        run_command(run.args(fuzz::limits()).args(fuzz::seeds(&target)?))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn takes_no_arguments() {
        assert!(super::run(&["--quick".into()]).unwrap_err().starts_with("usage:"));
    }
}

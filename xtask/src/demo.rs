//! `cargo xtask demo`: builds what the demo needs, and runs it. A stage of `cargo xtask ci` does the same, so that the first command of the
//! README keeps working.

use std::path::PathBuf;
use std::time::Instant;

use crate::cargo::target_directory;
use crate::command::{self, cargo, command};
use crate::setup;
use crate::without_clang::says;

/// Neither Kubernetes nor the kernel plane, which the demo does not use: they need clang, and nearly double the time.
const FEATURES: &str = "--no-default-features";

/// Builds a program for the demo and runs `steelyard demo` with `arguments`. Needs no root.
pub fn run(arguments: &[String]) -> Result<(), String> {
    setup::install_for("demo")?;
    let steelyard = build()?;
    command::run(command(&steelyard.to_string_lossy(), &["demo"]).args(arguments))
}

/// The profile `demo` is made to be built fast. Cargo names each crate, and on a terminal it shows how many are left.
fn build() -> Result<PathBuf, String> {
    println!("demo: building Steelyard, without Kubernetes and virtual IPs; the first time this takes some minutes");
    let start = Instant::now();
    command::run(&mut cargo(&["build", "--profile", "demo", "--package", "steelyard", FEATURES, "--locked"]))?;
    println!("demo: built in {} s", start.elapsed().as_secs());
    Ok(target_directory()?.join("demo/steelyard"))
}

/// The stage of CI: the build has no warnings, shows itself, and says what it lacks.
pub fn check(arguments: &[String]) -> Result<(), String> {
    command::run(&mut cargo(&["clippy", "--package", "steelyard", FEATURES, "--locked", "--", "--deny", "warnings"]))?;
    run(arguments)?;
    let steelyard = build()?.display().to_string();
    says(&mut command(&steelyard, &["check", "-c", "examples/http.yaml"]), 0, "good")?;
    says(&mut command(&steelyard, &["check", "-c", "examples/vip.yaml"]), 0, "but this build has no kernel plane")?;
    says(&mut command(&steelyard, &["controller"]), 2, "controller")
}

//! `cargo xtask bench lab`: a scenario of the lab with a release build that knows its commit, so that the run can be kept.
//!
//! Everything that is measured, and how, is in `lab/scenarios` and the lab.

use crate::cargo::metadata;
use crate::command::{self, COMMIT, cargo, commit};
use crate::setup;

const USAGE: &str = "usage: cargo xtask bench lab SCENARIO [ARGS of steelyard lab run]";

/// Builds the program, and runs the scenario.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if arguments.is_empty() {
        return Err(USAGE.into());
    }
    setup::install_for("bench")?;
    let commit = commit().unwrap_or_default();
    if commit.is_empty() || commit.ends_with("-dirty") {
        println!("the files differ from their commit, so this run cannot be kept");
    }
    command::run(cargo(&["build", "--release", "--locked", "--package", "steelyard"]).env(COMMIT, commit))?;
    let program = metadata()?.target_directory.join("release/steelyard");
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    command::run(&mut command::command(&program.to_string_lossy(), &[&["lab", "run"], &words[..]].concat()))
}

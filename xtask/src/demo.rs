//! `cargo xtask demo`: build what users run, and let it show itself.

use crate::cargo::metadata;
use crate::command::{self, cargo};
use crate::setup;

/// Builds the release binary and runs `steelyard demo` with `arguments`. Needs no root.
pub fn run(arguments: &[String]) -> Result<(), String> {
    setup::install_for("demo")?;
    command::run(&mut cargo(&["build", "--release", "--package", "steelyard"]))?;
    let steelyard = metadata()?.target_directory.join("release/steelyard");
    command::run(command::command(&steelyard.to_string_lossy(), &["demo"]).args(arguments))
}

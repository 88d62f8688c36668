//! A stage of `cargo xtask ci`: Steelyard on a host without clang builds, runs, and says what it lacks.
//!
//! It uses the same target folder as everything else, so that only what depends on the kernel plane is built twice.

use std::process::Command;

use crate::command::{cargo, command, run as run_command};
use crate::test;

/// The variable that names the compiler. It is set to a program that no host has.
const NO_CLANG: (&str, &str) = ("CLANG", "clang-that-is-not-here");
/// The exit code for "this host cannot do it".
const HOST_CANNOT: i32 = 77;

/// Builds Steelyard and checks its messages.
pub fn run() -> Result<(), String> {
    let packages = ["--package", "l4", "--package", "steelyard", "--locked"];
    run_command(without(&mut cargo(
        &[&["clippy"], &packages[..], &["--all-targets", "--", "--deny", "warnings"]].concat(),
    )))?;
    run_command(without(&mut cargo(&["test", "--package", "l4", "--lib", "--locked"])))?;
    let steelyard = test::build_steelyard(&[NO_CLANG])?.display().to_string();
    let says = |words: &[&str], code: i32, text: &str| says(&mut command(&steelyard, words), code, text);
    says(&["check", "-c", "examples/http.yaml"], 0, "good")?;
    says(&["check", "-c", "examples/vip.yaml"], 0, "but this build has no kernel plane")?;
    says(&["serve", "-c", "examples/vip.yaml"], HOST_CANNOT, "where clang 14 or newer is installed")
}

fn without(command: &mut Command) -> &mut Command {
    command.env(NO_CLANG.0, NO_CLANG.1)
}

/// Runs it, and holds its exit code and what it says on either stream against what is expected.
pub fn says(command: &mut Command, code: i32, text: &str) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.code() == Some(code) && said.contains(text) {
        return Ok(());
    }
    Err(format!("{command:?} ended with {} and not with {code}, or does not say {text:?}:\n{said}", output.status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_says() {
        let check = |script: &str, code: i32, text: &str, expect: bool| {
            assert_eq!(says(&mut command("sh", &["-c", script]), code, text).is_ok(), expect, "{script}");
        };
        check("echo yes", 0, "yes", true);
        check("echo yes >&2; exit 77", 77, "yes", true);
        check("echo yes; exit 1", 0, "yes", false);
        check("echo no", 0, "yes", false);
    }
}

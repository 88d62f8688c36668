//! Finds the binary under test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The binary that `STEELYARD_BIN` names, or else a build of it, made once.
pub fn steelyard() -> Result<PathBuf, String> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BINARY.get_or_init(|| std::env::var_os("STEELYARD_BIN").map_or_else(build, |path| Ok(path.into()))).clone()
}

fn build() -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "-p", "steelyard", "--bin", "steelyard"])
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if !built.status.success() {
        return Err("`cargo build -p steelyard` failed".into());
    }
    // The last artifact is the binary, and the only one with an executable.
    let messages = String::from_utf8_lossy(&built.stdout);
    let path = messages.lines().rev().find_map(|line| line.split_once("\"executable\":\"")?.1.split_once('"'));
    path.map(|(path, _)| path.into()).ok_or_else(|| "cargo reported no executable".into())
}

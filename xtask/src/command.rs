//! Runs other programs, and reports which one failed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The folder of the workspace, whatever the current directory is.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Prepares `program` in the workspace's folder, without standard input: no verb asks questions.
pub fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root()).stdin(Stdio::null());
    command
}

/// The cargo that runs us, so that a toolchain chosen with `cargo +name` stays chosen.
pub fn cargo(arguments: &[&str]) -> Command {
    command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), arguments)
}

/// The variable that tells a build of the program which commit it is of. The lab records it with every run.
pub const COMMIT: &str = "STEELYARD_COMMIT";

/// The commit of the workspace, with `-dirty` if its files differ from it. `None` outside of a repository.
pub fn commit() -> Option<String> {
    let head = capture(&mut command("git", &["rev-parse", "HEAD"])).ok()?;
    let changed = capture(&mut command("git", &["status", "--porcelain", "--untracked-files=no"])).ok()?;
    Some(format!("{}{}", head.trim(), if changed.trim().is_empty() { "" } else { "-dirty" }))
}

/// Runs it with our standard output. Fails if it does not exit with 0.
pub fn run(command: &mut Command) -> Result<(), String> {
    let shown = show(command);
    println!("+ {shown}");
    let status = command.status().map_err(|error| format!("`{shown}` did not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{shown}` failed: {status}")) }
}

/// Runs it and returns its standard output. The error contains its standard error.
pub fn capture(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let output = command.output().map_err(|error| format!("`{shown}` did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{shown}` failed: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("`{shown}` wrote output that is not UTF-8: {error}"))
}

/// Whether it starts and exits with 0. Its output is discarded.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The path of `program`: on the PATH, or where Debian installs servers, which is not on the PATH of ordinary users.
pub fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(program)).find(|candidate| candidate.is_file())
}

/// Whether we are root, by our effective user ID.
pub fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Uid:")).and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}

fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text += &argument.to_string_lossy();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_names_the_command() {
        let error = capture(&mut command("sh", &["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.starts_with("`sh -c echo why >&2; exit 3` failed: exit status: 3\nwhy"), "{error}");
        assert!(run(&mut command("no-such-program", &[])).unwrap_err().contains("did not start"));
    }

    #[test]
    fn finds_programs() {
        assert!(find_program("sh").is_some());
        assert!(find_program("no-such-program").is_none());
    }
}

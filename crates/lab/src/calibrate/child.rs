//! Child processes of a comparison: origins on the last CPU, loads on the first. All of them end with this process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use crate::host;

/// How long an origin may take to report its address, and a load beyond its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Kills the child when its parent dies, however that dies.
const SETPRIV: &str = "/usr/bin/setpriv";

/// A running origin, killed when dropped.
pub(super) struct Origin {
    pub address: SocketAddr,
    _child: Child,
}

impl Origin {
    pub(super) async fn start(exe: &Path, words: &[&str]) -> io::Result<Self> {
        let words = ["origin"].iter().chain(words).chain(&["--listen", "127.0.0.1:0"]);
        let mut command = on_cpu(last_cpu(), exe.as_os_str(), words.map(OsStr::new));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let said = child.stderr.take().ok_or_else(|| io::Error::other("the origin has no standard error"))?;
        let mut lines = BufReader::new(said).lines();
        let first = tokio::time::timeout(PATIENCE, lines.next_line()).await??.unwrap_or_default();
        let address = first.rsplit_once(" listening on ").and_then(|(_, address)| address.parse().ok());
        let address = address.ok_or_else(|| io::Error::other(format!("the origin did not start: {first}")))?;
        // Its output at the end is not needed, but it must be able to write it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { address, _child: child })
    }
}

/// A server that belongs to a tool, killed when dropped.
pub(super) fn serve(program: &str, words: &[String]) -> io::Result<Child> {
    let mut command = on_cpu(last_cpu(), OsStr::new(program), words.iter().map(OsStr::new));
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Runs a load to its end, and returns its output.
pub(super) async fn capture(program: &OsStr, words: &[String]) -> io::Result<String> {
    let mut command = on_cpu(0, program, words.iter().map(OsStr::new));
    let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?.wait_with_output();
    let output = tokio::time::timeout(PATIENCE, running).await??;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(format!("{} ended with {}: {why}", program.display(), output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn on_cpu<'a>(cpu: usize, program: &'a OsStr, words: impl Iterator<Item = &'a OsStr>) -> Command {
    let mut line: Vec<OsString> = Vec::new();
    if Path::new(SETPRIV).exists() {
        line.extend([SETPRIV, "--pdeathsig", "KILL", "--"].map(Into::into));
    }
    // Without it, or with one CPU, they disturb each other equally.
    if last_cpu() > 0 && host::find_program("taskset").is_some() {
        line.extend(["taskset".into(), "-c".into(), cpu.to_string().into()]);
    }
    line.push(program.to_owned());
    line.extend(words.map(OsStr::to_owned));
    let mut line = line.into_iter();
    let mut command = Command::new(line.next().unwrap_or_default());
    command.args(line).stdin(Stdio::null()).kill_on_drop(true);
    command
}

fn last_cpu() -> usize {
    std::thread::available_parallelism().map_or(0, |count| count.get() - 1)
}

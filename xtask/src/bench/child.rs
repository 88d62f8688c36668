//! The processes of a bench: each is pinned to a CPU, has its standard error in a file, and is killed when dropped.
//! Also their cost.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command::{command, find_program, succeeds};

/// The time in which a process must serve.
const PATIENCE: Duration = Duration::from_secs(15);

/// The limit on open files, for prlimit(1). Only root can raise a hard limit.
const OPEN_FILES: &str = "--nofile=65536:65536";

/// The interval at which a condition without an event is checked.
pub const POLL: Duration = Duration::from_millis(50);

/// A process pinned to one CPU.
pub struct Child {
    name: String,
    process: Process,
    stderr: PathBuf,
}

/// How to find out that a process serves.
#[derive(Clone, Copy)]
pub enum Ready {
    /// It accepts a connection.
    Accepts,
    /// It answers an HTTP request with 200.
    Answers,
    /// It answers an HTTP/2 request in cleartext, with prior knowledge.
    AnswersH2,
}

impl Child {
    /// Starts `program` pinned to `cpu` and waits until it serves at `port`.
    pub fn start(
        name: &str,
        cpu: usize,
        program: &Path,
        arguments: &[String],
        directory: &Path,
        (port, ready): (u16, Ready),
    ) -> Result<Self, String> {
        let mut child = Self::spawn(name, cpu, program, arguments, directory)?;
        child.wait_for(|| serves(port, ready))?;
        Ok(child)
    }

    /// Starts `program` pinned to `cpu`, without waiting.
    pub fn spawn(
        name: &str,
        cpu: usize,
        program: &Path,
        arguments: &[String],
        directory: &Path,
    ) -> Result<Self, String> {
        let stderr = directory.join(format!("{name}.stderr"));
        let file = File::create(&stderr).map_err(|error| format!("cannot write {}: {error}", stderr.display()))?;
        let mut command = pinned(cpu, program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let process = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { name: name.to_owned(), process, stderr })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the process serves, by its own report or by a probe.
    pub fn wait_for(&mut self, serves: impl Fn() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !serves() {
            let ended = self.process.try_wait().map_err(|error| format!("lost {}: {error}", self.name))?;
            if ended.is_some() || Instant::now() > deadline {
                let what = if ended.is_some() { "ended before it served" } else { "did not serve in time" };
                let said = fs::read_to_string(&self.stderr).unwrap_or_default();
                return Err(format!("{} {what}; its output:\n{said}", self.name));
            }
            pause(POLL);
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only for a process that has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs `program` on one CPU. It may open enough files for 10,000 connections on both sides, if we may raise the limit,
/// and dies with us if setpriv(1) exists.
pub fn pinned(cpu: usize, program: &Path) -> Command {
    let mut words = Vec::new();
    if let Some(setpriv) = find_program("setpriv") {
        words.extend([setpriv.into_os_string(), "--pdeathsig".into(), "KILL".into(), "--".into()]);
    }
    if succeeds(&mut command("prlimit", &[OPEN_FILES, "true"])) {
        words.extend(["prlimit".into(), OPEN_FILES.into()]);
    }
    words.extend(["taskset".into(), "-c".into(), cpu.to_string().into(), program.as_os_str().to_owned()]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// The CPU time of all threads of a process, in ns. No contender ends a thread while it is measured.
pub fn cpu_ns(pid: u32) -> Result<u64, String> {
    let tasks = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&tasks).map_err(|error| format!("cannot read {tasks}: {error}"))?;
    let time_of = |path: PathBuf| {
        let text = fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok())
    };
    Ok(entries.flatten().filter_map(|entry| time_of(entry.path())).sum())
}

/// Resident memory in KiB.
pub fn rss_kib(pid: u32) -> Result<u64, String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.ok_or_else(|| format!("process {pid} is gone, or has no memory"))
}

/// The number of open files of a process.
pub fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// A port on which nothing listened a moment ago.
pub fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no free port: {error}"))
}

#[expect(clippy::disallowed_methods, reason = "other programs give no event to wait for")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn serves(port: u16, ready: Ready) -> bool {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { return false };
    match ready {
        Ready::Accepts => true,
        Ready::AnswersH2 => {
            let mut h2load = command("h2load", &["-n", "1", "-c", "1", &format!("http://127.0.0.1:{port}/")]);
            let said = h2load.stderr(Stdio::null()).output().map(|output| output.stdout);
            said.is_ok_and(|said| String::from_utf8_lossy(&said).contains(" 1 succeeded"))
        }
        Ready::Answers => {
            let request = b"GET / HTTP/1.1\r\nhost: bench.example\r\nconnection: close\r\n\r\n";
            let mut status = [0; 12];
            let asked = stream.set_read_timeout(Some(Duration::from_secs(2))).and_then(|()| stream.write_all(request));
            asked.and_then(|()| stream.read_exact(&mut status)).is_ok() && status.ends_with(b" 200")
        }
    }
}

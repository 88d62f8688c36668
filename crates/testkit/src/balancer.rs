//! The binary under test as a child process.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, kill_process, kill_process_group};

use crate::strict::{Response, ResponseTo};
use crate::{Failure, PATIENCE, client, prometheus};

pub use rustix::process::Signal;

/// The interval at which a condition without an event is checked again, such as a port that opens or a counter that
/// grows.
const ASK_AGAIN: Duration = Duration::from_millis(5);
const ASK_MAX: u128 = PATIENCE.as_millis() / ASK_AGAIN.as_millis();

/// A running `steelyard serve`. Dropping it kills the process and everything that it started.
pub struct Balancer {
    child: Child,
    directory: PathBuf,
    ports: BTreeMap<String, u16>,
    admin: SocketAddr,
    stderr: Receiver<String>,
    log: Vec<String>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl Balancer {
    /// Starts `exe serve -c FILE --workers 1`, where FILE is `config` with each `{name}` of `ports` replaced by its
    /// number. Waits until `/readyz` on the port `admin`, which must be among `ports`, answers 200. There is one
    /// worker, so that requests find pooled upstream connections again.
    pub fn start(exe: &Path, config: &str, ports: BTreeMap<String, u16>) -> Result<Self, Failure> {
        let admin = *ports.get("admin").ok_or_else(|| Failure("the config has no {admin} port".into()))?;
        let directory = own_directory().map_err(|error| Failure(format!("no temporary directory: {error}")))?;
        let path = directory.join("steelyard.yaml");
        let write = fs::write(&path, substitute(config, &ports));
        write.map_err(|error| Failure(format!("cannot write {}: {error}", path.display())))?;
        let mut child = Command::new(exe)
            .args(["serve", "--workers", "1", "-c"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .env_remove("RUST_LOG")
            // The process has a group of its own, so that a successor started by an upgrade is killed with it.
            .process_group(0)
            .spawn()
            .map_err(|error| Failure(format!("cannot start {}: {error}", exe.display())))?;
        let stderr = child.stderr.take().map(lines).ok_or_else(|| Failure("no stderr".into()))?;
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
        let mut balancer = Self { child, directory, ports, admin, stderr, log: Vec::new() };
        balancer.until_ready()?;
        Ok(balancer)
    }

    /// The port that replaced `{name}`.
    pub fn port(&self, name: &str) -> Result<u16, Failure> {
        self.ports.get(name).copied().ok_or_else(|| Failure(format!("the config has no {{{name}}} port")))
    }

    /// The address of the listener bound to `{name}`.
    pub fn address(&self, name: &str) -> Result<SocketAddr, Failure> {
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port(name)?)))
    }

    /// Replaces the config file atomically. The process is not signalled.
    pub fn write_config(&self, config: &str) -> Result<(), Failure> {
        let (path, new) = (self.directory.join("steelyard.yaml"), self.directory.join("steelyard.yaml.new"));
        let swap = fs::write(&new, substitute(config, &self.ports)).and_then(|()| fs::rename(&new, &path));
        swap.map_err(|error| Failure(format!("cannot write {}: {error}", path.display())))
    }

    /// Sends a signal to the started process.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|error| self.failure(format_args!("cannot send a signal: {error}")))
    }

    /// Waits for the started process to exit.
    pub fn exit(&mut self) -> Result<Exit, Failure> {
        for _ in 0..ASK_MAX {
            if let Some(status) = self.ended()? {
                return Ok(exit(status));
            }
            self.listen_a_while();
        }
        Err(self.failure(format_args!("still running after {PATIENCE:?}")))
    }

    /// Sends a GET to the admin address.
    pub fn admin(&self, path: &str) -> Result<Response, Failure> {
        let mut conn = client::connect("admin", self.admin, None)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin);
        conn.send(request.as_bytes())?;
        conn.response(ResponseTo::Other)
    }

    /// The sum over the samples of `/metrics` with this name and these labels.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64, Failure> {
        let response = self.admin("/metrics")?;
        Ok(prometheus::sum(&String::from_utf8_lossy(&response.body), name, labels))
    }

    /// Waits until that sum is at least `at_least`.
    pub fn metric_reaches(&mut self, name: &str, labels: &[(&str, &str)], at_least: f64) -> Result<(), Failure> {
        self.metric_until(name, labels, &format!("at least {at_least}"), |sum| sum >= at_least)
    }

    /// Waits until that sum is `expect`. A gauge can fall to it, too.
    pub fn metric_becomes(&mut self, name: &str, labels: &[(&str, &str)], expect: f64) -> Result<(), Failure> {
        self.metric_until(name, labels, &expect.to_string(), |sum| (sum - expect).abs() < f64::EPSILON)
    }

    fn metric_until(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        expect: &str,
        is: impl Fn(f64) -> bool,
    ) -> Result<(), Failure> {
        for _ in 0..ASK_MAX {
            if is(self.metric(name, labels)?) {
                return Ok(());
            }
            self.listen_a_while();
        }
        let sum = self.metric(name, labels)?;
        Err(self.failure(format_args!("{name}{labels:?} is {sum} after {PATIENCE:?}, expected {expect}")))
    }

    /// What the process has written to stderr so far.
    pub fn log(&mut self) -> String {
        self.log.extend(self.stderr.try_iter());
        self.log.join("\n")
    }

    fn until_ready(&mut self) -> Result<(), Failure> {
        for _ in 0..ASK_MAX {
            if self.admin("/readyz").is_ok_and(|response| response.status == 200) {
                return Ok(());
            }
            if let Some(status) = self.ended()? {
                self.log.extend(self.stderr.iter());
                return Err(
                    self.failure(format_args!("ended before it was ready ({status}):\n{}", self.log.join("\n")))
                );
            }
            self.listen_a_while();
        }
        let log = self.log();
        Err(self.failure(format_args!("not ready after {PATIENCE:?}:\n{log}")))
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, Failure> {
        self.child.try_wait().map_err(|error| Failure(format!("balancer: {error}")))
    }

    /// Waits a moment, or until the log has a new line.
    fn listen_a_while(&mut self) {
        match self.stderr.recv_timeout(ASK_AGAIN) {
            Ok(line) => self.log.push(line),
            Err(RecvTimeoutError::Timeout) => {}
            // Its stderr is closed: it is ending, and nothing will end this wait early.
            Err(RecvTimeoutError::Disconnected) => std::thread::park_timeout(ASK_AGAIN),
        }
    }

    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::of("balancer", what)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // Each of these fails only if there is nothing left to do.
        _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        _ = self.child.wait();
        _ = fs::remove_dir_all(&self.directory);
    }
}

fn exit(status: ExitStatus) -> Exit {
    status.code().map_or_else(|| Exit::Signal(status.signal().unwrap_or_default()), Exit::Code)
}

fn substitute(config: &str, ports: &BTreeMap<String, u16>) -> String {
    ports.iter().fold(config.to_owned(), |text, (name, port)| text.replace(&format!("{{{name}}}"), &port.to_string()))
}

fn own_directory() -> std::io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("steelyard-e2e-{}-{number}", std::process::id()));
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

fn lines(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_are_replaced() {
        let ports = BTreeMap::from([("listen".to_owned(), 80), ("admin".to_owned(), 81)]);
        let text = substitute("bind: 127.0.0.1:{listen}\nx: {http: /, y: {other}}\nadmin: {admin}", &ports);
        assert_eq!(text, "bind: 127.0.0.1:80\nx: {http: /, y: {other}}\nadmin: 81");
    }
}

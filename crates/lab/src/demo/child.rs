//! A child process of the demo: its pid, the end of its standard error, and its reliable end.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{DemoError, host_error};

/// How many last bytes of a child's standard error are kept.
const STDERR_BYTES_MAX: usize = 8 * 1024;

/// How many last lines are shown.
const STDERR_LINES_SHOWN: usize = 12;

/// How long to keep reading the standard error of a child that has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// setpriv(1) of util-linux, which is essential on Debian. It sets the signal that a process gets when its parent dies, then becomes the
/// command. A parent that is killed cannot clean up, and doing the same here would need `unsafe` between fork and exec.
const SETPRIV: &str = "/usr/bin/setpriv";

/// A running child, killed when dropped.
pub(super) struct Child {
    name: String,
    process: tokio::process::Child,
    pid: u32,
    stderr: Arc<Stderr>,
    /// Ends when the child's standard error does.
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stderr {
    tail: Mutex<Vec<u8>>,
    /// Notified of each new piece.
    news: Notify,
}

impl Child {
    pub(super) fn start(
        name: &str,
        exe: &Path,
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, DemoError> {
        let mut command = if Path::new(SETPRIV).exists() {
            let mut command = Command::new(SETPRIV);
            command.args(["--pdeathsig", "KILL", "--"]).arg(exe);
            command
        } else {
            Command::new(exe)
        };
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
        let cannot_start = format!("cannot start {name} ({})", exe.display());
        let mut process = command.spawn().map_err(host_error(&cannot_start))?;
        let stderr = Arc::new(Stderr::default());
        let reader = process.stderr.take().map(|pipe| tokio::spawn(keep_tail(pipe, stderr.clone())));
        // A child that has not been waited for has a pid.
        let pid = process.id().ok_or_else(|| host_error(&cannot_start)(io::ErrorKind::NotFound.into()))?;
        Ok(Self { name: name.to_owned(), process, pid, stderr, reader })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for `listening on ADDRESS` on the child's standard error.
    pub(super) async fn wait_for_address(&mut self, patience: Duration) -> Result<SocketAddr, DemoError> {
        let stderr = self.stderr.clone();
        let said = async {
            loop {
                if let Some(address) = address_in(&stderr.text()) {
                    return address;
                }
                stderr.news.notified().await;
            }
        };
        tokio::select! {
            biased;
            address = said => Ok(address),
            status = self.process.wait() => Err(self.ended(status).await),
            () = tokio::time::sleep(patience) => Err(self.error("did not report its address")),
        }
    }

    pub(super) async fn check_alive(&mut self) -> Result<(), DemoError> {
        match self.process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.ended(Ok(status)).await),
            Err(error) => Err(self.ended(Err(error)).await),
        }
    }

    async fn ended(&mut self, status: io::Result<ExitStatus>) -> DemoError {
        if let Some(reader) = self.reader.take() {
            // Its last output may still be in the pipe. A grandchild may hold the pipe open, so the wait is limited.
            let _ = tokio::time::timeout(LAST_WORDS, reader).await;
        }
        match status {
            Ok(status) => self.error(&format!("ended by itself ({status})")),
            Err(error) => self.error(&format!("cannot be waited for ({error})")),
        }
    }

    /// Sends SIGKILL and waits for the end.
    pub(super) async fn kill(&mut self) -> io::Result<()> {
        self.process.kill().await
    }

    /// An error about this child, with the end of its standard error.
    pub(super) fn error(&self, what: &str) -> DemoError {
        let text = self.stderr.text();
        let lines: Vec<_> = text.lines().collect();
        let shown = &lines[lines.len().saturating_sub(STDERR_LINES_SHOWN)..];
        DemoError::Child { name: self.name.clone(), what: what.to_owned(), stderr: shown.join("\n") }
    }
}

impl Stderr {
    fn text(&self) -> String {
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).into_owned()
    }
}

async fn keep_tail(mut pipe: ChildStderr, stderr: Arc<Stderr>) {
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        let mut tail = stderr.tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&piece[..count]);
        let excess = tail.len().saturating_sub(STDERR_BYTES_MAX);
        tail.drain(..excess);
        drop(tail);
        stderr.news.notify_one();
    }
}

fn address_in(stderr: &str) -> Option<SocketAddr> {
    // Up to the last line feed, because the rest may be half a line.
    let (whole_lines, _) = stderr.rsplit_once('\n')?;
    whole_lines.lines().find_map(|line| line.split_once("listening on ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_whole_lines_only() {
        for (stderr, expect) in [
            ("", None),
            ("origin http listening on 127.0.0.1:90", None),
            ("origin http listening on 127.0.0.1:9001\n", Some("127.0.0.1:9001")),
            ("warning\norigin http listening on [::1]:9001\nmore", Some("[::1]:9001")),
            ("listening on nothing\n", None),
        ] {
            assert_eq!(address_in(stderr), expect.map(|address| address.parse().unwrap()), "{stderr:?}");
        }
    }

    #[test]
    fn an_early_end_is_an_error_that_shows_the_end_of_stderr() {
        crate::host::runtime().unwrap().block_on(async {
            let script = "for line in $(seq 1 2000); do echo \"line $line\" >&2; done; exit 3";
            let mut child = Child::start("x", Path::new("/bin/sh"), ["-c".into(), script.into()]).unwrap();
            let error = child.wait_for_address(Duration::from_secs(60)).await.unwrap_err().to_string();
            let lines: Vec<_> = error.lines().collect();
            assert_eq!(lines[0], "x ended by itself (exit status: 3); the end of its standard error:");
            assert_eq!((lines[1], lines[12], lines.len()), ("line 1989", "line 2000", 13));
        });
    }
}

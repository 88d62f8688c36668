//! Any program as a child process: what it writes to both streams, and how it ends.

use std::fmt::Display;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{Exit, Failure, PATIENCE};

/// The interval at which a condition without an event is checked again, such as the counter of another process.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// A running program. Dropping it kills the program and everything that it started.
pub struct Program {
    name: String,
    child: Child,
    stdout: Stream,
    stderr: Stream,
}

/// The result of a program.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub exit: Exit,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

/// The lines of one stream, if it is read. A thread reads them, so that the program never waits for the test.
#[derive(Default)]
struct Stream {
    receiver: Option<Receiver<String>>,
    lines: Vec<String>,
}

impl Program {
    /// Starts `command` without input and in a process group of its own. Failures call it `name`.
    pub fn spawn(name: &str, command: &mut Command) -> Result<Self, Failure> {
        Self::spawn_on_own_stdio(name, command.stdin(Stdio::null()).stdout(Stdio::piped()))
    }

    /// The same, but keeps the standard input and output of `command`.
    pub fn spawn_on_own_stdio(name: &str, command: &mut Command) -> Result<Self, Failure> {
        // The program has a group of its own, so that a successor that it starts is killed with it.
        command.stderr(Stdio::piped()).process_group(0);
        // A program that a test has just written stays open in the child that another thread has forked, until that becomes a program too.
        let started = until(PATIENCE, || match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => None,
            started => Some(started),
        });
        let started = started.unwrap_or_else(|| Err(ErrorKind::ExecutableFileBusy.into()));
        let mut child = started.map_err(|error| Failure::of(name, format_args!("cannot start: {error}")))?;
        let (stdout, stderr) = (child.stdout.take().map(Stream::of), child.stderr.take().map(Stream::of));
        let name = name.to_owned();
        Ok(Self { name, child, stdout: stdout.unwrap_or_default(), stderr: stderr.unwrap_or_default() })
    }

    /// Runs `command` until it exits.
    pub fn run(name: &str, command: &mut Command) -> Result<Finished, Failure> {
        Self::spawn(name, command)?.finish()
    }

    /// The process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        kill_process(Pid::from_child(&self.child), signal)
            .map_err(|error| Failure::of(&self.name, format_args!("cannot send a signal: {error}")))
    }

    /// Whether the program has ended, and how.
    pub fn ended(&mut self) -> Result<Option<Exit>, Failure> {
        let status = self.child.try_wait().map_err(|error| Failure::of(&self.name, error))?;
        Ok(status
            .map(|status| status.code().map_or_else(|| Exit::Signal(status.signal().unwrap_or_default()), Exit::Code)))
    }

    /// Waits at most `patience` for the program to exit.
    pub fn exit_within(&mut self, patience: Duration) -> Result<Exit, Failure> {
        let ended = until(patience, || self.ended().transpose());
        ended.unwrap_or_else(|| Err(self.failure(format_args!("still running after {patience:?}"))))
    }

    /// Waits until `ask` returns an answer, as long as the program runs. Failures call the answer `what`.
    pub fn until<T>(&mut self, what: &str, mut ask: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let answered = until(PATIENCE, || match ask() {
            Some(answer) => Some(Ok(answer)),
            None => match self.ended() {
                Ok(Some(exit)) => Some(Err(format!("ended ({exit:?})"))),
                Ok(None) => None,
                Err(failure) => Some(Err(failure.0)),
            },
        });
        match answered {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(why)) => Err(self.failure(format_args!("{why} before {what}"))),
            None => Err(self.failure(format_args!("not {what} within {PATIENCE:?}"))),
        }
    }

    /// Waits for a line on standard error that contains `text`, and returns the line.
    pub fn says(&mut self, text: &str) -> Result<String, Failure> {
        let said = until(PATIENCE, || {
            self.stderr.read();
            self.stderr.lines.iter().find(|line| line.contains(text)).cloned()
        });
        said.ok_or_else(|| self.failure(format_args!("never wrote {text:?}")))
    }

    /// What the program has written to standard error so far.
    pub fn log(&mut self) -> String {
        self.stderr.read();
        self.stderr.lines.join("\n")
    }

    /// Waits until the program exits, and returns its whole output.
    pub fn finish(mut self) -> Result<Finished, Failure> {
        let exit = self.exit_within(2 * PATIENCE)?;
        Ok(Finished { exit, stdout: self.stdout.rest(), stderr: self.stderr.rest() })
    }

    /// Adds what the program wrote to a failure.
    fn failure(&mut self, what: impl Display) -> Failure {
        let log = self.log();
        Failure::of(&self.name, format_args!("{what}:\n{log}"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Each of these fails only if there is nothing left to do.
        _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        _ = self.child.wait();
    }
}

impl Stream {
    fn of(from: impl Read + Send + 'static) -> Self {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { receiver: Some(receiver), lines: Vec::new() }
    }

    fn read(&mut self) {
        self.lines.extend(self.receiver.iter().flat_map(Receiver::try_iter));
    }

    /// The whole output of a program that has ended. A process that it started may hold the stream open for longer,
    /// which this does not wait for.
    fn rest(&mut self) -> String {
        while let Some(Ok(line)) = self.receiver.as_ref().map(|lines| lines.recv_timeout(PATIENCE)) {
            self.lines.push(line);
        }
        self.lines.join("\n")
    }
}

/// Calls `ask` until it returns an answer, for at most `patience`. This is for changes that cause no event.
pub fn until<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::park_timeout(ASK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_it_said_and_how_it_ended() {
        let finished = Program::run("sh", &mut sh("echo out; echo err >&2; exit 3")).unwrap();
        assert_eq!((finished.exit, &*finished.stdout, &*finished.stderr), (Exit::Code(3), "out", "err"));
        let finished = Program::run("sh", &mut sh("kill -9 $$")).unwrap();
        assert_eq!(finished.exit, Exit::Signal(9));
    }

    #[test]
    fn an_end_before_the_answer_is_a_failure_that_shows_the_log() {
        let mut program = Program::spawn("sh", &mut sh("echo because >&2; exit 1")).unwrap();
        assert!(program.says("because").is_ok());
        let failure = program.until("ready", || None::<()>).unwrap_err();
        assert_eq!(failure.0, "sh: ended (Code(1)) before ready:\nbecause");
    }

    #[test]
    fn what_it_started_ends_with_it() {
        let mut program = Program::spawn("sh", &mut sh("sleep 1000 & echo $! >&2; wait")).unwrap();
        let grandchild = program.says("").unwrap();
        let stat = || std::fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
        assert!(until(PATIENCE, || stat().contains("(sleep)").then_some(())).is_some());
        drop(program);
        // The process is gone, or is a zombie that nothing has collected yet.
        assert!(until(PATIENCE, || (stat().is_empty() || stat().contains(") Z ")).then_some(())).is_some());
    }
}

//! Passing listening sockets to this process: from a service manager, or from an old Steelyard to a new one on SIGUSR2.
//!
//! The old process starts the new one with its listening sockets. Once the new process serves, it sends SIGTERM to the
//! old one, which drains. If the new process fails, nothing has changed for the old one. Queued connections are not
//! lost, because both processes hold the sockets.
//!
//! The old process tells the service manager that the new one is the main process from then on ([`crate::manager`]). If
//! a main process is not systemd's child, systemd does not wait for it when it stops the service, but kills it at once
//! (seen with systemd 252). Under a manager, a launcher therefore starts the new process and exits at once, which makes
//! the manager its parent.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use net::inherit::{self, Inherited};
use net::notify;
use proxy::Plane;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::control::Control;
use crate::exit::Exit;

/// Tells a process to start the intended program, to write its process ID to standard input, and to exit.
const LAUNCH: &str = "STEELYARD_LAUNCH";

/// How long a launcher may take to start the successor. It takes milliseconds, and the main thread waits for it.
const LAUNCH_MAX: Duration = Duration::from_secs(5);

/// Digits of the largest process ID.
const PID_BYTES_MAX: usize = 10;

/// Names the predecessor by process ID and start time, so that another process with the same ID is not mistaken for it.
const PREDECESSOR: &str = "STEELYARD_PREDECESSOR";

/// The process ID of the successor that this process has started and that has not failed; 0 if there is none. A SIGTERM
/// that arrives then comes from it.
static SUCCESSOR: AtomicU32 = AtomicU32::new(0);

/// The sockets that were passed to this process.
pub(crate) fn inherited() -> Inherited {
    Inherited::from_environment()
}

/// Starts a new process from the same program file, or from what has replaced it, with all listening sockets. There is
/// only one at a time: the SIGTERM of a second one would end this process before it has drained.
pub(crate) fn start(plane: &Plane, control: &Control, under_manager: bool) {
    if successor().is_some() {
        tracing::warn!("a successor is already starting: no second one is started");
        return;
    }
    let started = command(plane, &control.listeners()).and_then(|command| match under_manager {
        true => Started::by_launcher(command),
        false => Started::here(command),
    });
    match started {
        Ok(started) => {
            tracing::info!(pid = started.pid, "successor started");
            SUCCESSOR.store(started.pid, Relaxed);
            std::thread::spawn(move || {
                let outcome = started.wait();
                SUCCESSOR.store(0, Relaxed);
                tracing::error!(?outcome, "successor ended before it took over");
            });
        }
        Err(error) => tracing::error!(%error, "cannot start a successor"),
    }
}

fn command(plane: &Plane, own: &[Arc<admin::Listener>]) -> io::Result<Command> {
    // Not /proc/self/exe, which still names the old file after it has been replaced.
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "steelyard".into());
    let mut command = Command::new(program);
    let own_id = std::process::id();
    command.args(arguments).env(PREDECESSOR, format!("{own_id} {}", start_time(own_id)));
    let sockets: Vec<_> = plane.sockets().map(AsFd::as_fd).chain(own.iter().map(|own| own.as_fd())).collect();
    inherit::pass_to(&mut command, &sockets)?;
    notify::pass_to(&mut command);
    Ok(command)
}

/// A running successor.
struct Started {
    pid: u32,
    /// `None` if the successor is not a child of this process.
    child: Option<Child>,
}

impl Started {
    fn here(mut command: Command) -> io::Result<Self> {
        let child = command.spawn()?;
        Ok(Self { pid: child.id(), child: Some(child) })
    }

    /// Returns when the launcher has exited, which takes as long as starting two programs.
    fn by_launcher(mut command: Command) -> io::Result<Self> {
        let (mut reader, writer) = io::pipe()?;
        let mut launcher = command.env(LAUNCH, "1").stdin(writer).spawn()?;
        // The command holds a writing end too, which would keep the pipe open.
        drop(command);
        // What stands in the place of this program may be any program.
        let has_ended =
            is_ready_within(&pidfd_open(Pid::from_child(&launcher), PidfdFlags::empty())?, Some(LAUNCH_MAX))?;
        if !has_ended {
            launcher.kill()?;
        }
        let status = launcher.wait()?;
        let mut said = [0; PID_BYTES_MAX];
        let count = if is_ready_within(&reader, Some(Duration::ZERO))? { reader.read(&mut said)? } else { 0 };
        let said = std::str::from_utf8(said.get(..count).unwrap_or_default()).unwrap_or_default();
        match said.parse() {
            Ok(pid) => Ok(Self { pid, child: None }),
            Err(_) if has_ended => Err(io::Error::other(format!("its launcher failed ({status})"))),
            Err(_) => Err(io::Error::other(format!(
                "its launcher did not end within {LAUNCH_MAX:?}: is the program file that of Steelyard?"
            ))),
        }
    }

    /// Waits for its end. A failed child would otherwise remain as a zombie.
    fn wait(self) -> io::Result<String> {
        if let Some(mut child) = self.child {
            return Ok(child.wait()?.to_string());
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        is_ready_within(&process, None)?;
        Ok("another process is told how".to_owned())
    }
}

/// Waits until there is something to read, or until a process has exited. A signal does not end the wait: the kernel may
/// deliver it to any thread.
fn is_ready_within(what: &impl AsFd, max: Option<Duration>) -> io::Result<bool> {
    let max = max.map(Timespec::try_from).transpose().map_err(io::Error::other)?;
    Ok(retry_on_intr(|| poll(&mut [PollFd::new(what, PollFlags::IN)], max.as_ref()))? > 0)
}

/// Acts as the launcher if this process is one. It must run before anything looks at the descriptors, which are meant
/// for the successor.
pub(crate) fn launch() -> Option<Exit> {
    std::env::var_os(LAUNCH)?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(arguments.next().unwrap_or_else(|| "steelyard".into()));
    let started = command.args(arguments).env_remove(LAUNCH).stdin(Stdio::null()).spawn();
    let told = started.and_then(|child| {
        let mut to_predecessor = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        to_predecessor.write_all(child.id().to_string().as_bytes())
    });
    Some(told.map_or_else(|error| crate::fail(&format!("cannot start a successor: {error}")), |()| Exit::Good))
}

/// Tells the predecessor to drain. The caller calls this once this process serves.
pub(crate) fn take_over() {
    let Some(predecessor) = predecessor() else { return };
    tracing::info!(predecessor = predecessor.as_raw_nonzero().get(), "taking over");
    if let Err(error) = kill_process(predecessor, Signal::TERM) {
        tracing::error!(%error, "cannot tell the old process to drain");
    }
}

/// Whether another process serves until this one does.
pub(crate) fn has_predecessor() -> bool {
    predecessor().is_some()
}

fn predecessor() -> Option<Pid> {
    let named = std::env::var(PREDECESSOR).ok()?;
    let (pid, started) = named.split_once(' ')?;
    // The variable may be older than the process that has this ID now.
    if start_time(pid.parse().ok()?).to_string() != started {
        return None;
    }
    Pid::from_raw(pid.parse().ok()?)
}

/// The start time of a process in ticks since the boot (proc(5)); 0 if the process is gone or the kernel does not say.
fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain spaces and parentheses. Field 3 follows it, and the start time is field 22.
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    behind_name.split_whitespace().nth(22 - 3).and_then(|ticks| ticks.parse().ok()).unwrap_or_default()
}

/// The successor of this process, if one is starting. A SIGTERM that arrives now comes from it.
pub(crate) fn successor() -> Option<u32> {
    Some(SUCCESSOR.load(Relaxed)).filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_their_start() {
        let mut later = Command::new("sleep").arg("600").spawn().unwrap();
        let (own, others) = (start_time(std::process::id()), start_time(later.id()));
        assert!(0 < own && own <= others, "{own} {others}");
        later.kill().unwrap();
        later.wait().unwrap();
        assert_eq!(start_time(later.id()), 0, "it is gone");
    }
}

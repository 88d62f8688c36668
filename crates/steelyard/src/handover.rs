//! One process after another on the same sockets: those that a service manager passes on, and those that an old Steelyard passes to a
//! new one on SIGUSR2.
//!
//! The old process starts the new one with its listening sockets. When the new one serves, it sends the old one SIGTERM, which drains.
//! If the new one fails, the old one has changed nothing. Connections that the kernel has queued are in sockets that both hold.
//!
//! A service manager is told by the old process that the new one is the main process from then on ([`crate::manager`]). systemd treats a main process that
//! is not its child as a stranger: it does not wait for it when it stops the service, but kills it at once (seen with systemd 252). So under a
//! manager the new process is started by a launcher, which ends at once: then the manager is its parent.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use net::inherit::{self, Inherited};
use net::notify;
use proxy::Plane;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::control::Control;
use crate::exit::Exit;

/// Asks a process to start the one that is meant, to write its id to standard input, and to end.
const LAUNCH: &str = "STEELYARD_LAUNCH";

/// Names the process that the new one takes over from: its id, and when it was started, so that no other process is taken for it.
const PREDECESSOR: &str = "STEELYARD_PREDECESSOR";

/// The id of the process that was started by this one and has not failed; 0: there is none. The SIGTERM that comes is its.
static SUCCESSOR: AtomicU32 = AtomicU32::new(0);

/// The sockets that were passed to this process.
pub(crate) fn inherited() -> Inherited {
    Inherited::from_environment()
}

/// Starts a new process from the same program file (or what has replaced it) with all listening sockets. One at a time: the SIGTERM of a
/// second one would end this process before it has drained.
pub(crate) fn start(plane: &Plane, control: &Control, under_manager: bool) {
    if successor().is_some() {
        tracing::warn!("a successor is starting already: no other is started");
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
    // Not /proc/self/exe: that names the old file even after a new one has been put in its place.
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

/// A successor that runs.
struct Started {
    pid: u32,
    /// `None`: another process is its parent.
    child: Option<Child>,
}

impl Started {
    fn here(mut command: Command) -> io::Result<Self> {
        let child = command.spawn()?;
        Ok(Self { pid: child.id(), child: Some(child) })
    }

    /// Returns when the launcher has ended, which takes as long as starting two programs.
    fn by_launcher(mut command: Command) -> io::Result<Self> {
        let (mut reader, writer) = io::pipe()?;
        let mut launcher = command.env(LAUNCH, "1").stdin(writer).spawn()?;
        // It holds a writing end, too: the pipe would never end.
        drop(command);
        let mut said = String::new();
        reader.read_to_string(&mut said)?;
        let status = launcher.wait()?;
        let pid = said.parse().map_err(|_| io::Error::other(format!("its launcher failed ({status})")))?;
        Ok(Self { pid, child: None })
    }

    /// Waits for its end. A child that has failed would stay as a zombie otherwise.
    fn wait(self) -> io::Result<String> {
        if let Some(mut child) = self.child {
            return Ok(child.wait()?.to_string());
        }
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        poll(&mut [PollFd::new(&process, PollFlags::IN)], None)?;
        Ok("another process is told how".to_owned())
    }
}

/// Does what a launcher is for, if this process is one. To be called before anything looks at the descriptors, which are for the successor.
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

/// Tells the process that this one takes over from to drain. Called when this one serves.
pub(crate) fn take_over() {
    let Some(predecessor) = predecessor() else { return };
    tracing::info!(predecessor = predecessor.as_raw_nonzero().get(), "taking over");
    if let Err(error) = kill_process(predecessor, Signal::TERM) {
        tracing::error!(%error, "cannot tell the old process to drain");
    }
}

/// Whether there is a process that serves as long as this one does not.
pub(crate) fn has_predecessor() -> bool {
    predecessor().is_some()
}

fn predecessor() -> Option<Pid> {
    let named = std::env::var(PREDECESSOR).ok()?;
    let (pid, started) = named.split_once(' ')?;
    // The variable may be older than the process that has the number now.
    if start_time(pid.parse().ok()?).to_string() != started {
        return None;
    }
    Pid::from_raw(pid.parse().ok()?)
}

/// When a process was started, in ticks since the boot (proc(5)); 0: it is gone, or the kernel does not tell.
fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold spaces and parentheses; what follows it begins with the third field, and the start time is the 22nd.
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    behind_name.split_whitespace().nth(22 - 3).and_then(|ticks| ticks.parse().ok()).unwrap_or_default()
}

/// The process that is to follow this one, if one is on its way: a SIGTERM now is its.
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

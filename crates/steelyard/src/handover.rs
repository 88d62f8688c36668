//! One process after another on the same sockets: those that a service manager passes on, and those that an old Steelyard passes to a
//! new one on SIGUSR2.
//!
//! The old process starts the new one with its listening sockets. When the new one serves, it sends the old one SIGTERM, which drains.
//! If the new one fails, the old one has changed nothing. Connections that the kernel has queued are in sockets that both hold.

use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use net::inherit::{self, Inherited};
use proxy::Plane;
use rustix::process::{Pid, Signal, getppid, kill_process};

use crate::control::Control;

/// Names the process that the new one takes over from.
const PREDECESSOR: &str = "STEELYARD_PREDECESSOR";

/// A new process was started by this one, and has not failed: the SIGTERM that comes is its.
static SUCCESSOR: AtomicBool = AtomicBool::new(false);

/// The sockets that were passed to this process.
pub(crate) fn inherited() -> Inherited {
    Inherited::from_environment()
}

/// Starts a new process from the same program file (or what has replaced it) with all listening sockets. One at a time: the SIGTERM of a
/// second one would end this process before it has drained.
pub(crate) fn start(plane: &Plane, control: &Control) {
    if SUCCESSOR.swap(true, Relaxed) {
        tracing::warn!("a successor is starting already: no other is started");
        return;
    }
    match spawn(plane, &control.listeners()) {
        Ok(mut child) => {
            tracing::info!(pid = child.id(), "successor started");
            // Waits for it, or it would stay as a zombie should it fail.
            std::thread::spawn(move || {
                let outcome = child.wait();
                SUCCESSOR.store(false, Relaxed);
                tracing::error!(?outcome, "successor ended before it took over");
            });
        }
        Err(error) => {
            SUCCESSOR.store(false, Relaxed);
            tracing::error!(%error, "cannot start a successor");
        }
    }
}

fn spawn(plane: &Plane, own: &[Arc<admin::Listener>]) -> std::io::Result<std::process::Child> {
    // Not /proc/self/exe: that names the old file even after a new one has been put in its place.
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "steelyard".into());
    let mut command = Command::new(program);
    command.args(arguments).env(PREDECESSOR, std::process::id().to_string());
    let sockets: Vec<_> = plane.sockets().map(AsFd::as_fd).chain(own.iter().map(|own| own.as_fd())).collect();
    inherit::pass_to(&mut command, &sockets)?;
    command.spawn()
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
    let named = std::env::var(PREDECESSOR).ok().and_then(|text| text.parse().ok()).and_then(Pid::from_raw);
    // Only the parent: the variable may have been left in the environment of something else.
    named.filter(|predecessor| getppid() == Some(*predecessor))
}

/// Whether a successor is on its way: a SIGTERM now is its.
pub(crate) fn successor_is_starting() -> bool {
    SUCCESSOR.load(Relaxed)
}

//! What the service manager is told (sd_notify(3)): that the process is ready, reloads, ends, is followed by another one, and is alive.
//!
//! The watchdog is told that all is well only if every worker has made progress since it was told last, and it is told by the main thread: a
//! thread that hangs ends the messages, and the manager starts the process anew.

use std::sync::Arc;
use std::time::Duration;

use model::Snapshot;
use net::clock;
use net::notify::Manager;
use proxy::Progress;

/// Of the interval in which the manager expects a sign of life: two may be missed.
const SIGNS_PER_INTERVAL: u32 = 3;

/// Workers beat ten times a second, and a host may stall: asked more often than this, a healthy worker could seem to hang.
const SIGN_EVERY_MIN: Duration = Duration::from_millis(500);

/// What may take longer than planned once the process is told to end: closing files, writing the last lines.
const END_MARGIN: Duration = Duration::from_secs(5);

/// The service manager, and what it knows.
pub(crate) struct Told {
    manager: Arc<Manager>,
    /// It was told that the process ends, or that another one has taken over. What else is said of readiness would contradict that.
    is_leaving: bool,
}

impl Told {
    /// The manager that started this process, if one did.
    pub(crate) fn from_environment() -> Self {
        Self { manager: Arc::new(Manager::from_environment()), is_leaving: false }
    }

    /// There is a manager.
    pub(crate) fn is_heard(&self) -> bool {
        self.manager.is_there()
    }

    /// This process serves.
    pub(crate) fn ready(&self, snapshot: &Snapshot) {
        self.manager.tell(&format!("READY=1\nSTATUS={}", serving(snapshot)));
    }

    /// A new configuration is being read.
    pub(crate) fn reloading(&self) {
        if !self.is_leaving {
            // `Type=notify-reload` compares the time with that of its signal.
            self.manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reloading", clock::now_us()));
        }
    }

    /// It is in use, or (`refused`) the old one goes on.
    pub(crate) fn reloaded(&self, snapshot: &Snapshot, refused: Option<&str>) {
        if self.is_leaving {
            return;
        }
        let status = match refused {
            None => serving(snapshot),
            Some(why) => {
                let first = why.lines().next().unwrap_or_default();
                format!("{}; the last reload was refused: {first}", serving(snapshot))
            }
        };
        self.manager.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// This process ends: its listeners close after `delay`, and connections are cut `timeout` later.
    pub(crate) fn stopping(&mut self, delay: Duration, timeout: Duration) {
        self.is_leaving = true;
        let max = delay.saturating_add(timeout).saturating_add(END_MARGIN).as_micros();
        // Without it a unit whose TimeoutStopSec= is shorter than the configuration would have the process killed in the middle.
        self.manager.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={max}\nSTATUS={}", leaving(delay)));
    }

    /// The listeners are closed from now on.
    pub(crate) fn draining(&self) {
        self.manager.tell(&format!("STATUS={}", leaving(Duration::ZERO)));
    }

    /// The process `successor` serves in the place of this one, and is the main process of the service from now on. It cannot say so itself: by
    /// default (`NotifyAccess=main`) the manager listens to the main process alone. The same holds for its first sign of life.
    pub(crate) fn handed_over(&mut self, successor: u32) {
        self.is_leaving = true;
        self.manager.tell(&format!("MAINPID={successor}\nWATCHDOG=1\nSTATUS=process {successor} has taken over"));
    }

    /// Tells the watchdog that all is well, as long as it is. To be called when the process serves.
    pub(crate) fn keep_watchdog(&self, progress: Progress) -> Option<tokio::task::AbortHandle> {
        let interval = self.manager.watchdog()?;
        let every = (interval / SIGNS_PER_INTERVAL).max(SIGN_EVERY_MIN);
        if every * 2 > interval {
            tracing::warn!(?interval, "WatchdogSec= is too short: give it at least a second, better ten");
        }
        Some(tokio::spawn(give_signs(self.manager.clone(), progress, every)).abort_handle())
    }
}

async fn give_signs(manager: Arc<Manager>, mut progress: Progress, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let workers = progress.standing_still();
        if workers.is_empty() {
            manager.tell("WATCHDOG=1");
        } else {
            tracing::error!(?workers, "workers hang: the service manager is not told that all is well");
        }
    }
}

fn serving(snapshot: &Snapshot) -> String {
    let Snapshot { generation, listeners, vips, .. } = snapshot;
    let vips = if vips.is_empty() { String::new() } else { format!(", vips: {}", vips.len()) };
    format!("serving generation {}, listeners: {}{vips}", generation.0, listeners.len())
}

fn leaving(delay: Duration) -> String {
    if delay.is_zero() {
        return "draining: finishes what is under way and takes no new connections".to_owned();
    }
    format!("ending: not ready, and takes new connections for another {delay:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_served_is_said_in_one_line() {
        let endpoint = config::parse_endpoint("127.0.0.1:9001").unwrap();
        let snapshot = config::proxy_snapshot(([127, 0, 0, 1], 8080).into(), &[endpoint], false);
        assert_eq!(serving(&snapshot), "serving generation 1, listeners: 1");
        assert_eq!(
            leaving(Duration::from_millis(1500)),
            "ending: not ready, and takes new connections for another 1.5s"
        );
    }
}

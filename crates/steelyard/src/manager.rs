//! Messages to the service manager (sd_notify(3)): the process is ready, reloads, ends, has a successor, or is alive.
//!
//! The main thread sends the watchdog's messages, and only if every worker has made progress since the last one. If a
//! thread hangs, the messages stop and the manager restarts the process.

use std::sync::Arc;
use std::time::Duration;

use model::Snapshot;
use net::clock;
use net::notify::Manager;
use proxy::Progress;

/// The number of messages in the interval in which the manager expects one, so that two may be lost.
const SIGNS_PER_INTERVAL: u32 = 3;

/// Workers report progress ten times a second, and a host may stall. With a shorter interval, a healthy worker could
/// seem to hang.
const SIGN_EVERY_MIN: Duration = Duration::from_millis(500);

/// Extra time for what may be slow at the end: closing files, writing the last lines.
const END_MARGIN: Duration = Duration::from_secs(5);

/// The service manager, and what it has been sent.
pub(crate) struct Told {
    manager: Arc<Manager>,
    /// The manager knows that this process ends or that a successor has taken over. Further messages about readiness
    /// would contradict that.
    is_leaving: bool,
}

impl Told {
    /// The manager that started this process, if one did.
    pub(crate) fn from_environment() -> Self {
        Self { manager: Arc::new(Manager::from_environment()), is_leaving: false }
    }

    /// Whether there is a manager.
    pub(crate) fn is_heard(&self) -> bool {
        self.manager.is_there()
    }

    /// Reports that this process serves.
    pub(crate) fn ready(&self, snapshot: &Snapshot) {
        self.manager.tell(&format!("READY=1\nSTATUS={}", serving(snapshot)));
    }

    /// Reports that a new configuration is being read.
    pub(crate) fn reloading(&self) {
        if !self.is_leaving {
            // `Type=notify-reload` compares this time with the time of its signal.
            self.manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={}\nSTATUS=reloading", clock::now_us()));
        }
    }

    /// Reports that the new configuration is in use or, with `refused`, that the old one stays.
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

    /// Reports that this process ends: its listeners close after `delay`, and connections are cut `timeout` later.
    pub(crate) fn stopping(&mut self, delay: Duration, timeout: Duration) {
        self.is_leaving = true;
        let max = delay.saturating_add(timeout).saturating_add(END_MARGIN).as_micros();
        // Without this, a unit whose TimeoutStopSec= is shorter than the configured times would have the process killed
        // before it is done.
        self.manager.tell(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={max}\nSTATUS={}", leaving(delay)));
    }

    /// Reports that the listeners are closed.
    pub(crate) fn draining(&self) {
        self.manager.tell(&format!("STATUS={}", leaving(Duration::ZERO)));
    }

    /// Reports that the process `successor` has taken over and is the main process of the service. It cannot do so
    /// itself: by default (`NotifyAccess=main`) the manager accepts messages only from the main process. The same holds
    /// for its first watchdog message.
    pub(crate) fn handed_over(&mut self, successor: u32) {
        self.is_leaving = true;
        self.manager.tell(&format!("MAINPID={successor}\nWATCHDOG=1\nSTATUS=process {successor} has taken over"));
    }

    /// Sends watchdog messages as long as all workers make progress. The caller calls this once the process serves.
    pub(crate) fn keep_watchdog(&self, progress: Progress) -> Option<tokio::task::AbortHandle> {
        let interval = self.manager.watchdog()?;
        let every = (interval / SIGNS_PER_INTERVAL).max(SIGN_EVERY_MIN);
        if every * 2 > interval {
            tracing::warn!(?interval, "WatchdogSec= is too short: set it to at least a second, better ten");
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
            tracing::error!(?workers, "workers make no progress: no watchdog message was sent to the service manager");
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
        return "draining: accepts no new connections and finishes the open ones".to_owned();
    }
    format!("ending: not ready, and accepts new connections for another {delay:?}")
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
            "ending: not ready, and accepts new connections for another 1.5s"
        );
    }
}

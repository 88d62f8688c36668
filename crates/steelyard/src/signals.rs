//! The signals that the process handles.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Signals to end that arrive within this time of the last one that counted are the same request: a supervisor that
/// signals the process and its group sends two, and so does a terminal together with a wrapper that forwards its
/// signals.
const SAME_WITHIN: Duration = Duration::from_secs(1);

/// The signals for the main loop.
pub(crate) struct Signals {
    pub(crate) reload: Signal,
    pub(crate) reopen: Signal,
    pub(crate) hand_over: Signal,
}

/// The signals that end the process.
pub(crate) struct Ending {
    terminate: Signal,
    interrupt: Signal,
    /// One of them has arrived.
    pub(crate) told: bool,
    /// When the last one that counted arrived.
    last: Option<Instant>,
}

impl Signals {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            reopen: signal(SignalKind::user_defined1())?,
            hand_over: signal(SignalKind::user_defined2())?,
        })
    }
}

impl Ending {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            told: false,
            last: None,
        })
    }

    /// Waits until the process is asked to end or, with `again`, is asked again.
    pub(crate) async fn asked(&mut self, again: bool) {
        if again { self.told_again().await } else { self.told().await }
    }

    /// Waits until the process is asked to end. After that, it always returns at once.
    pub(crate) async fn told(&mut self) {
        if !self.told {
            self.signal().await;
            self.told = true;
            self.last = Some(Instant::now());
        }
    }

    /// Waits for another signal, not counting duplicates of the first.
    pub(crate) async fn told_again(&mut self) {
        loop {
            self.signal().await;
            let now = Instant::now();
            if is_another(self.last, now) {
                self.last = Some(now);
                return;
            }
            tracing::info!("ignoring a second signal to end within a second of the first");
        }
    }

    async fn signal(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn is_another(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= SAME_WITHIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_at_once_are_one() {
        let first = Instant::now();
        assert!(!is_another(Some(first), first));
        assert!(!is_another(Some(first), first + Duration::from_millis(999)));
        assert!(is_another(Some(first), first + SAME_WITHIN));
        assert!(is_another(None, first));
    }
}

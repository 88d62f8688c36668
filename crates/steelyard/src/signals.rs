//! Signals, and what each asks for.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Signals to end that come within this time of the last that counted are the same one: a supervisor that signals the process and its group sends two,
/// and so does a terminal beside a wrapper that passes its signals on.
const SAME_WITHIN: Duration = Duration::from_secs(1);

/// The signals that ask for something.
pub(crate) struct Signals {
    pub(crate) reload: Signal,
    pub(crate) reopen: Signal,
    pub(crate) hand_over: Signal,
}

/// The signals that end the process.
pub(crate) struct Ending {
    terminate: Signal,
    interrupt: Signal,
    /// One of them has come.
    pub(crate) told: bool,
    /// When the last that counted did.
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

    /// Waits until this process is told to end, or (`again`) told again.
    pub(crate) async fn asked(&mut self, again: bool) {
        if again { self.told_again().await } else { self.told().await }
    }

    /// Waits until this process is told to end. That is not forgotten: asked again, it is so at once.
    pub(crate) async fn told(&mut self) {
        if !self.told {
            self.signal().await;
            self.told = true;
            self.last = Some(Instant::now());
        }
    }

    /// Waits until it is told again, and not only twice at once.
    pub(crate) async fn told_again(&mut self) {
        loop {
            self.signal().await;
            let now = Instant::now();
            if is_another(self.last, now) {
                self.last = Some(now);
                return;
            }
            tracing::info!("a signal to end came twice at once, and counts as one");
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

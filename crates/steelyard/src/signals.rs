//! Signals, and what each asks for.

use tokio::signal::unix::{Signal, SignalKind, signal};

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
        })
    }

    /// Waits until this process is told to end. That is not forgotten: asked again, it is so at once.
    pub(crate) async fn told(&mut self) {
        if !self.told {
            self.told_again().await;
            self.told = true;
        }
    }

    /// Waits until it is told once more.
    pub(crate) async fn told_again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

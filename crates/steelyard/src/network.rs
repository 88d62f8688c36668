//! When the kernel plane looks at the host's network again, and when it answers on links: at once if the kernel says that
//! there is something, but not all the time.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use l4::Changes;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

/// The pause between two looks. An interface that comes and goes ten times a second, or a routing daemon that writes
/// its whole table, causes no more than ten looks a second.
const PAUSE_MIN: Duration = Duration::from_millis(100);

/// The pause is this many times as long as the last look took, so that looks take a tenth of the thread at most,
/// however many interfaces there are.
const PAUSE_FACTOR: u32 = 9;

/// After questions on links, the pause is this many times as long as answering took: a flood of them takes a quarter of the
/// thread at most.
const ASKED_PAUSE_FACTOR: u32 = 3;

/// What there is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// To look at the network again.
    Changed,
    /// To answer on links.
    Asked,
}

/// The kernel's messages, and when to read them next.
#[derive(Debug)]
pub(crate) struct Network {
    changes: Option<AsyncFd<Changes>>,
    /// Listening has failed, which was logged.
    failed: bool,
    not_before: Instant,
    /// The sockets of addresses that are announced on links.
    links: Option<[AsyncFd<OwnedFd>; 2]>,
    asked_not_before: Instant,
}

impl Network {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self { changes: None, failed: false, not_before: now, links: None, asked_not_before: now }
    }

    /// Listens on links as long as there is `Some`.
    pub(crate) fn listen_on_links(&mut self, sockets: impl FnOnce() -> Option<io::Result<[OwnedFd; 2]>>, wanted: bool) {
        if !wanted {
            self.links = None;
        } else if self.links.is_none()
            && let Some(sockets) = sockets()
        {
            let opened = sockets.and_then(|[arp, ndp]| Ok([watched(arp)?, watched(ndp)?]));
            match opened {
                Ok(links) => self.links = Some(links),
                Err(error) => tracing::error!(%error, "cannot wait for questions on links"),
            }
        }
    }

    /// Waits until somebody has asked on a link.
    async fn asked(&self) {
        let Some([arp, ndp]) = &self.links else { return std::future::pending().await };
        sleep_until(self.asked_not_before).await;
        let ready = tokio::select! {
            ready = arp.readable() => ready,
            ready = ndp.readable() => ready,
        };
        match ready {
            // What is left after an answer is read with the next message.
            Ok(mut ready) => ready.clear_ready(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Answering has taken this long.
    pub(crate) fn answered(&mut self, took: Duration) {
        self.asked_not_before = Instant::now() + took.saturating_mul(ASKED_PAUSE_FACTOR);
    }

    /// Listens as long as there is a kernel plane.
    pub(crate) fn listen(&mut self, serves_vips: bool) {
        if !serves_vips {
            self.changes = None;
        } else if self.changes.is_none() && !self.failed {
            match Changes::listen().and_then(watched) {
                Ok(changes) => self.changes = Some(changes),
                Err(error) => {
                    self.failed = true;
                    tracing::error!(%error, "cannot listen for changes of the network: it is looked at every two seconds");
                }
            }
        }
    }

    /// Waits until there is something to do. A call may be dropped: what it has read is lost only when it returns.
    pub(crate) async fn next(&self) -> Heard {
        tokio::select! {
            () = self.changed() => Heard::Changed,
            () = self.asked() => Heard::Asked,
        }
    }

    /// Waits until something has changed.
    async fn changed(&self) {
        let Some(changes) = &self.changes else { return std::future::pending().await };
        sleep_until(self.not_before).await;
        loop {
            let Ok(mut ready) = changes.readable().await else { return std::future::pending().await };
            let (any, all) = ready.get_inner().drain();
            if all {
                ready.clear_ready();
            }
            if any {
                return;
            }
        }
    }

    /// A look has taken this long.
    pub(crate) fn looked(&mut self, took: Duration) {
        self.not_before = Instant::now() + PAUSE_MIN.max(took.saturating_mul(PAUSE_FACTOR));
    }
}

#[expect(deprecated, reason = "its successor is unsafe, for types whose descriptor may change; that of these does not")]
fn watched<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(socket)
}

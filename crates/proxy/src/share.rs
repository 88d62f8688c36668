//! How connections are shared out among workers.
//!
//! The kernel spreads them by a hash over the listening sockets (SO_REUSEPORT), which is even for many and not for few: of two long-lived
//! connections to two workers, both land on one of them half of the time. So a worker that has clearly more than another hands on what
//! it has just accepted, before the first byte is read. From then on the connection, and all its streams, stay where they are. A TCP
//! connection whose client has ended it no longer counts: a client that opens one connection after the other would have every second one
//! handed on, which costs it the wake-up of another thread.
//! Figures: docs/design/2026-11-21-http2-in-the-proxy.md.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc::UnboundedSender;

use crate::worker::Command;

/// All workers, as each of them sees the others.
pub(crate) struct Workers {
    commands: Vec<UnboundedSender<Command>>,
    /// Open downstream connections, by worker.
    open: Vec<AtomicUsize>,
}

/// A connection that was accepted by one worker for another.
pub(crate) struct Handed {
    pub(crate) listener: String,
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
}

impl Workers {
    pub(crate) fn new(commands: Vec<UnboundedSender<Command>>) -> Self {
        let open = commands.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { commands, open }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    /// Who should have a connection that `worker` has accepted; `None`: itself.
    pub(crate) fn better_than(&self, worker: usize) -> Option<usize> {
        let own = self.open.get(worker)?.load(Relaxed);
        // Nearly always: nothing to hand on, nothing to look at.
        if own == 0 {
            return None;
        }
        let others = self.open.iter().enumerate().filter(|(index, _)| *index != worker);
        let (best, least) = others.map(|(index, open)| (index, open.load(Relaxed))).min_by_key(|(_, open)| *open)?;
        is_worth_it(own, least).then_some(best)
    }

    /// Hands a connection on.
    ///
    /// # Errors
    /// The other worker takes no more: it drains. The connection comes back.
    pub(crate) fn hand(&self, to: usize, handed: Handed) -> Result<(), Handed> {
        let Some(commands) = self.commands.get(to) else { return Err(handed) };
        self.opened(to);
        commands.send(Command::Adopt(handed)).map_err(|refused| {
            self.closed(to);
            let Command::Adopt(handed) = refused.0 else { unreachable!("what was sent comes back") };
            handed
        })
    }

    /// One more is open on a worker.
    pub(crate) fn opened(&self, worker: usize) {
        if let Some(open) = self.open.get(worker) {
            open.fetch_add(1, Relaxed);
        }
    }

    /// One less.
    pub(crate) fn closed(&self, worker: usize) {
        if let Some(open) = self.open.get(worker) {
            open.fetch_sub(1, Relaxed);
        }
    }
}

/// Few connections are evened out exactly; of many, an eighth more or less is not worth the wake-up of another thread.
fn is_worth_it(own: usize, least: usize) -> bool {
    own.saturating_sub(least) > own / 8
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use tokio::sync::mpsc::unbounded_channel;

    use super::*;
    use crate::worker::Worker;

    #[test]
    fn few_are_evened_out_and_many_nearly() {
        let check = |own, least, expect| assert_eq!(is_worth_it(own, least), expect, "{own} to {least}");
        check(1, 0, true);
        check(1, 1, false);
        check(2, 1, true);
        check(0, 3, false);
        check(8, 7, false);
        check(8, 6, true);
        check(1000, 876, false);
        check(1000, 874, true);
    }

    /// Connections come to workers as `at` says: how many each has in the end.
    fn shares(workers: usize, connections: usize, at: impl Fn(usize) -> usize) -> Vec<usize> {
        let channels: Vec<_> = (0..workers).map(|_| unbounded_channel()).collect();
        let all = Workers::new(channels.iter().map(|(commands, _)| commands.clone()).collect());
        for index in 0..connections {
            let worker = at(index);
            all.opened(all.better_than(worker).unwrap_or(worker));
        }
        all.open.iter().map(|open| open.load(Relaxed)).collect()
    }

    #[test]
    fn one_connection_after_the_other_stays_where_it_comes() {
        let channels: Vec<_> = (0..2).map(|_| unbounded_channel()).collect();
        let all = Arc::new(Workers::new(channels.iter().map(|(commands, _)| commands.clone()).collect()));
        let worker = Rc::new(Worker::new(0, all.clone(), Arc::default()));
        all.opened(0);
        let last = worker.connection();
        assert_eq!(all.better_than(0), Some(1));
        // Its client has ended it and begins the next, and the endpoint has not heard of that yet.
        last.ends();
        assert_eq!(all.better_than(0), None);
        all.opened(0);
        let next = worker.connection();
        drop(last);
        assert_eq!(all.better_than(0), Some(1), "it is counted off once");
        drop(next);
        assert_eq!(all.open[0].load(Relaxed), 0);
    }

    #[test]
    fn wherever_they_come_they_are_shared() {
        assert_eq!(shares(2, 2, |_| 0), [1, 1]);
        assert_eq!(shares(2, 8, |_| 1), [4, 4]);
        assert_eq!(shares(4, 8, |_| 3), [2, 2, 2, 2]);
        let many = shares(2, 1000, |_| 0);
        assert!(many.iter().all(|share| (450..=550).contains(share)), "{many:?}");
        assert_eq!(shares(1, 5, |_| 0), [5]);
    }
}

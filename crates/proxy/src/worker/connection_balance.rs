//! The balance of connections between workers.
//!
//! The kernel spreads connections over the listening sockets by a hash (SO_REUSEPORT). The hash is even for many connections, but not for
//! few: of two long-lived connections to two workers, both land on the same worker half of the time. So a worker that has clearly more
//! connections than another hands over the connection that it has just accepted, before it reads the first byte. From then on the
//! connection and all its streams stay on that worker. A TCP connection that its client has ended no longer counts. Otherwise a client that
//! opens one connection after the other would have every second one handed over, which costs waking another thread.
//! docs/design/2026-11-21-http2-in-the-proxy.md has the figures.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::mpsc::UnboundedSender;

use crate::worker::Command;

/// All workers, as they see each other.
pub(crate) struct Workers {
    commands: Vec<UnboundedSender<Command>>,
    /// Open downstream connections, by worker.
    open: Vec<AtomicUsize>,
}

/// A connection that one worker accepted for another.
pub(crate) struct AcceptedConnection {
    pub(crate) listener: String,
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
}

impl Workers {
    pub(crate) fn new(commands: Vec<UnboundedSender<Command>>) -> Self {
        let open = commands.iter().map(|_| AtomicUsize::new(0)).collect();
        Self { commands, open }
    }

    /// The number of workers.
    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    /// The worker that should serve a connection that `worker` has accepted; `None`: `worker` itself.
    pub(crate) fn pick_target(&self, worker: usize) -> Option<usize> {
        let own = self.open.get(worker)?.load(Relaxed);
        // The common case: there is nothing to balance.
        if own == 0 {
            return None;
        }
        let others = self.open.iter().enumerate().filter(|(index, _)| *index != worker);
        let (best, least) = others.map(|(index, open)| (index, open.load(Relaxed))).min_by_key(|(_, open)| *open)?;
        is_imbalanced(own, least).then_some(best)
    }

    /// Hands a connection over to another worker.
    ///
    /// # Errors
    /// The other worker drains and accepts no more connections. Returns the connection.
    pub(crate) fn hand_over(&self, to: usize, accepted: AcceptedConnection) -> Result<(), AcceptedConnection> {
        let Some(commands) = self.commands.get(to) else { return Err(accepted) };
        self.opened(to);
        commands.send(Command::Adopt(accepted)).map_err(|refused| {
            self.closed(to);
            let Command::Adopt(accepted) = refused.0 else { unreachable!("the channel returns what was sent") };
            accepted
        })
    }

    /// Counts a new connection of a worker.
    pub(crate) fn opened(&self, worker: usize) {
        if let Some(open) = self.open.get(worker) {
            open.fetch_add(1, Relaxed);
        }
    }

    /// Counts the end of a connection of a worker.
    pub(crate) fn closed(&self, worker: usize) {
        if let Some(open) = self.open.get(worker) {
            open.fetch_sub(1, Relaxed);
        }
    }
}

/// Few connections are balanced exactly. With many, a difference of an eighth is not worth the wake-up of another thread.
fn is_imbalanced(own: usize, least: usize) -> bool {
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
        let check = |own, least, expect| assert_eq!(is_imbalanced(own, least), expect, "{own} to {least}");
        check(1, 0, true);
        check(1, 1, false);
        check(2, 1, true);
        check(0, 3, false);
        check(8, 7, false);
        check(8, 6, true);
        check(1000, 876, false);
        check(1000, 874, true);
    }

    /// How many connections each worker has in the end, if connections arrive at workers as `at` says.
    fn shares(workers: usize, connections: usize, at: impl Fn(usize) -> usize) -> Vec<usize> {
        let channels: Vec<_> = (0..workers).map(|_| unbounded_channel()).collect();
        let all = Workers::new(channels.iter().map(|(commands, _)| commands.clone()).collect());
        for index in 0..connections {
            let worker = at(index);
            all.opened(all.pick_target(worker).unwrap_or(worker));
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
        assert_eq!(all.pick_target(0), Some(1));
        // Its client has ended it and begins the next one, and the endpoint does not know that yet.
        last.ends();
        assert_eq!(all.pick_target(0), None);
        all.opened(0);
        let next = worker.connection();
        drop(last);
        assert_eq!(all.pick_target(0), Some(1), "it is subtracted only once");
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

//! Whose large response is made next. Few are made at a time, and each user gets a turn, however many requests others have.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::access::network;

/// Who waits: a user, or the address of one whom nothing has to identify.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    User(String),
    /// `None` is a Unix socket.
    Network(Option<IpAddr>),
}

impl Who {
    pub(crate) fn new(user: Option<&str>, client: Option<IpAddr>) -> Self {
        user.map_or_else(|| Self::Network(client.map(network)), |user| Self::User(user.to_owned()))
    }
}

/// The turns.
pub(crate) struct Turns(Mutex<Queue>);

struct Queue {
    free: usize,
    waiting: VecDeque<(Who, oneshot::Sender<Turn>)>,
    /// The number of turns that have begun, and of those who wait the number of their last one.
    begun: u64,
    last: HashMap<Who, u64>,
}

/// Keeps a turn until it is dropped.
pub(crate) struct Turn(Arc<Turns>);

impl Turns {
    /// As many at a time.
    pub(crate) fn new(free: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Queue { free, waiting: VecDeque::new(), begun: 0, last: HashMap::new() })))
    }

    /// Waits for a turn. `None` is a bug.
    pub(crate) async fn take(self: &Arc<Self>, who: Who) -> Option<Turn> {
        let turn = {
            let mut queue = self.queue();
            if queue.free > 0 {
                queue.free -= 1;
                queue.begin(who);
                return Some(Turn(Arc::clone(self)));
            }
            let (give, turn) = oneshot::channel();
            queue.waiting.push_back((who, give));
            turn
        };
        turn.await.ok()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn begin(&mut self, who: Who) {
        self.begun += 1;
        self.last.insert(who, self.begun);
        let Self { waiting, last, begun, .. } = self;
        // Of those who do not wait, only the newest are known: they may come again at once.
        let is_new = |number: u64| *begun - number < KNOWN_MAX;
        last.retain(|who, number| is_new(*number) || waiting.iter().any(|(waits, _)| waits == who));
    }

    /// The first request of the one whose last turn was longest ago.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let last = |who: &Who| self.last.get(who).copied().unwrap_or_default();
        let (at, _) = self.waiting.iter().enumerate().min_by_key(|(_, (who, _))| last(who))?;
        let (who, give) = self.waiting.remove(at)?;
        self.begin(who);
        Some(give)
    }
}

/// Turns that are remembered.
const KNOWN_MAX: u64 = 64;

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queue = self.0.queue();
        // Those who no longer wait are passed over.
        while let Some(give) = queue.next() {
            if give.is_closed() {
                continue;
            }
            drop(queue);
            // If the other one is gone by now, its turn ends here and the next one begins.
            drop(give.send(Turn(Arc::clone(&self.0))));
            return;
        }
        queue.free += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Waits = Pin<Box<dyn Future<Output = Option<Turn>>>>;

    fn waits(turns: &Arc<Turns>, user: &str) -> Waits {
        let (turns, who) = (Arc::clone(turns), Who::new(Some(user), None));
        let mut waits: Waits = Box::pin(async move { turns.take(who).await });
        assert!(poll(&mut waits).is_none());
        waits
    }

    fn poll(waits: &mut Waits) -> Option<Turn> {
        match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => turn,
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn each_user_gets_a_turn_whatever_others_want() {
        let turns = Turns::new(1);
        let mut turn = turns.take(Who::new(Some("graphs"), None)).await;
        let mut all: Vec<_> = [["graphs"; 50].as_slice(), &["ann", "bob", "ann"]].concat();
        let mut waiting: Vec<_> = all.iter().map(|user| waits(&turns, user)).collect();
        let mut order = Vec::new();
        // One of those that wait is gone.
        drop(waiting.remove(1));
        all.remove(1);
        while turn.take().is_some() {
            let next = waiting.iter_mut().enumerate().find_map(|(at, waits)| Some((at, poll(waits)?)));
            let Some((at, given)) = next else { break };
            order.push(all.remove(at));
            drop(waiting.remove(at));
            turn = Some(given);
        }
        assert_eq!(order[..5], ["ann", "bob", "graphs", "ann", "graphs"]);
        assert_eq!((order.len(), turns.queue().free), (52, 1));
    }
}

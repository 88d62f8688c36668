//! The HTTP/2 connections of one worker to an endpoint: chooses the one for the next request.
//!
//! It is the first with room. What goes over one connection is sent in one write and answered in one, so the fewer connections are in use,
//! the less a request costs. Connections that are rarely needed become idle and end. A new one is made only when all have as many streams
//! as the endpoint or the cluster allows. Requests that arrive while it is being made wait for it, up to its number of streams.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;

use net::clock;
use net::timer::Timer;
use telemetry::Reason;
use tokio::sync::Notify;

use super::h2_session;
use crate::error::{Error, Side};
use crate::h2::Handle;
use crate::h2::connection::{SharedConnection, is_same};
use crate::upstream::cluster::{Cluster, Endpoint};
use crate::upstream::connect::Wanted;

/// Connections of one worker to one endpoint. If all are full, requests wait for room on the one with the fewest streams.
const CONNECTIONS_MAX: usize = 64;

/// The connections to one endpoint. Cloning is cheap, and all clones are the same object.
#[derive(Clone, Default)]
pub(crate) struct Mux(Rc<RefCell<Connections>>);

#[derive(Default)]
struct Connections {
    open: Vec<OpenConnection>,
    opening: Vec<Rc<Opening>>,
    /// The endpoint was removed from the configuration.
    closed: bool,
}

/// A connection that accepts requests.
#[derive(Clone)]
struct OpenConnection {
    connection: Rc<SharedConnection>,
    opened_us: u64,
}

/// A connection that is being made, and the requests that wait for it.
#[derive(Default)]
pub(super) struct Opening {
    waiting: Cell<usize>,
    outcome: OnceCell<Result<(), (Reason, Side)>>,
    done: Notify,
}

impl Mux {
    /// Reserves a stream for a request, if a connection can take one now. Returns the stream, which is not open yet, and whether the connection is
    /// older than the request. The caller uses it before anything else runs, so nothing else can take it.
    pub(crate) fn try_reserve(&self, wanted: &Wanted<'_>) -> Option<(Handle, bool)> {
        let open = self.pick(wanted.fresh_since_us)?;
        let is_reused = open.opened_us < wanted.begun_us;
        Some((Handle::unopened(open.connection), is_reused))
    }

    /// Reserves a stream, and waits for a new connection if it must.
    ///
    /// # Errors
    /// Those of making a connection, [`Reason::PendingTimeout`] and [`Reason::RequestTimeout`]; nothing was sent.
    pub(crate) async fn reserve(
        &self,
        cluster: &Cluster,
        endpoint: &Rc<Endpoint>,
        wanted: &Wanted<'_>,
        timer: &Timer,
    ) -> Result<(Handle, bool), Error> {
        let limits = &cluster.plan.policy.limits;
        let streams_max = limits.streams_per_connection_max as usize;
        let give_up_ms = wanted.deadline.limit(wanted.now_ms.saturating_add(crate::millis(limits.pending_timeout)));
        loop {
            if let Some(reserved) = self.try_reserve(wanted) {
                return Ok(reserved);
            }
            if let Some(connection) = self.without_streams(wanted.fresh_since_us) {
                // One more would have as little room, so what is waited for is that the endpoint allows streams.
                timer.set(give_up_ms);
                let found = timer.guard(poll_fn(|cx| connection.poll_room(cx))).await;
                let reason =
                    if wanted.deadline.is_over(give_up_ms) { Reason::RequestTimeout } else { Reason::PendingTimeout };
                found.map_err(|_| Error::upstream(reason))?;
                continue;
            }
            let opening = self.opening(streams_max).unwrap_or_else(|| {
                let opening = Rc::new(Opening::default());
                self.0.borrow_mut().opening.push(opening.clone());
                h2_session::spawn(self.clone(), opening.clone(), cluster, endpoint, *wanted.who, timer.sibling());
                opening
            });
            let connect_by_ms = clock::now_ms().saturating_add(crate::millis(cluster.plan.policy.connect_timeout));
            timer.set(wanted.deadline.limit(connect_by_ms));
            let joined = timer.guard(opening.join()).await;
            let is_over = || wanted.deadline.is_over(clock::now_ms());
            let late = || if is_over() { Reason::RequestTimeout } else { Reason::ConnectTimeout };
            joined.unwrap_or_else(|_| Err(Error::upstream(late())))?;
        }
    }

    /// The first with room. `fresh_since_us`: only one that was made since then.
    fn pick(&self, fresh_since_us: Option<u64>) -> Option<OpenConnection> {
        let connections = self.0.borrow();
        let eligible =
            || connections.open.iter().filter(|open| fresh_since_us.is_none_or(|since_us| open.opened_us >= since_us));
        let first = eligible().find(|open| open.connection.room() > 0);
        // All are full, and no more may be made: further requests wait for room on the one with the fewest streams.
        let is_at_limit = connections.open.len() + connections.opening.len() >= CONNECTIONS_MAX;
        let fewest = |open: &&OpenConnection| open.connection.held();
        first.or_else(|| eligible().filter(|_| is_at_limit).min_by_key(fewest)).cloned()
    }

    /// A connection whose endpoint allows no streams at all: it has none, and no room for one.
    fn without_streams(&self, fresh_since_us: Option<u64>) -> Option<Rc<SharedConnection>> {
        let connections = self.0.borrow();
        let mut fresh =
            connections.open.iter().filter(|open| fresh_since_us.is_none_or(|since_us| open.opened_us >= since_us));
        let is_barren =
            |connection: &SharedConnection| connection.over().is_none() && connection.held() + connection.room() == 0;
        let idle = fresh.find(|open| is_barren(&open.connection))?;
        Some(idle.connection.clone())
    }

    /// A connection that is being made and will have room for one more.
    fn opening(&self, streams_max: usize) -> Option<Rc<Opening>> {
        self.0.borrow().opening.iter().find(|opening| opening.waiting.get() < streams_max).cloned()
    }

    /// Adds a new connection. If the endpoint was removed from the configuration, it ends once it has served the waiting requests.
    pub(super) fn opened(&self, opening: &Rc<Opening>, connection: Rc<SharedConnection>) {
        let mut connections = self.0.borrow_mut();
        connections.opening.retain(|other| !Rc::ptr_eq(other, opening));
        connections.open.push(OpenConnection { connection, opened_us: clock::now_us() });
        drop(connections);
        opening.finish(Ok(()));
    }

    /// Records that no connection could be made.
    pub(super) fn failed(&self, opening: &Rc<Opening>, error: &Error) {
        self.0.borrow_mut().opening.retain(|other| !Rc::ptr_eq(other, opening));
        opening.finish(Err((error.reason, error.side)));
    }

    /// Whether the endpoint was removed from the configuration, so that no idle connection is kept.
    pub(super) fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// Removes a connection that accepts no more requests.
    pub(super) fn remove(&self, connection: &Rc<SharedConnection>) {
        self.0.borrow_mut().open.retain(|open| !is_same(&open.connection, connection));
    }

    /// Ends all connections after their last stream, and those that are still being made after the requests that wait for them.
    pub(crate) fn close(&self) {
        let mut connections = self.0.borrow_mut();
        connections.closed = true;
        for open in &connections.open {
            // Its task then ends it if nothing is in progress.
            open.connection.wake_task();
        }
    }
}

impl Opening {
    async fn join(&self) -> Result<(), Error> {
        self.waiting.set(self.waiting.get() + 1);
        let _guard = WaitingGuard(&self.waiting);
        loop {
            let done = self.done.notified();
            if let Some(outcome) = self.outcome.get() {
                return (*outcome).map_err(|(reason, side)| Error { reason, side, source: None, retry_after_s: None });
            }
            done.await;
        }
    }

    fn finish(&self, outcome: Result<(), (Reason, Side)>) {
        // The first outcome counts.
        let _ = self.outcome.set(outcome);
        self.done.notify_waiters();
    }
}

/// Counts a request that waits for the connection, until it is dropped.
struct WaitingGuard<'w>(&'w Cell<usize>);

impl Drop for WaitingGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

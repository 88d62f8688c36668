//! The connections of one worker to an endpoint that speaks HTTP/2: which one takes the next request.
//!
//! The first that has room: what goes over one connection leaves in one write and is answered in one, so the fewer connections are in use, the
//! less a request costs. Those that are seldom needed fall idle, and end. A new one is made only when all have as many streams as the
//! endpoint, or the cluster, allows; requests that come while it is being made wait for it, as many as it will take.

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

/// Connections of one worker to one endpoint. Where all are full, requests wait for room on the one with the fewest.
const CONNECTIONS_MAX: usize = 64;

/// The connections to one endpoint. Cheap to clone: all clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Mux(Rc<RefCell<Connections>>);

#[derive(Default)]
struct Connections {
    open: Vec<OpenConnection>,
    opening: Vec<Rc<Opening>>,
    /// The endpoint left the configuration.
    closed: bool,
}

/// A connection that takes requests.
#[derive(Clone)]
struct OpenConnection {
    connection: Rc<SharedConnection>,
    opened_us: u64,
}

/// A connection in the making, and who waits for it.
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

    /// The first that has room. `fresh_since_us`: only one that was made since then.
    fn pick(&self, fresh_since_us: Option<u64>) -> Option<OpenConnection> {
        let connections = self.0.borrow();
        let eligible =
            || connections.open.iter().filter(|open| fresh_since_us.is_none_or(|since_us| open.opened_us >= since_us));
        let first = eligible().find(|open| open.connection.room() > 0);
        // All are full, and there may be no more: whoever comes waits for room where the fewest are.
        let is_at_limit = connections.open.len() + connections.opening.len() >= CONNECTIONS_MAX;
        let fewest = |open: &&OpenConnection| open.connection.held();
        first.or_else(|| eligible().filter(|_| is_at_limit).min_by_key(fewest)).cloned()
    }

    /// A connection whose endpoint allows no stream at all: there is none on it, and no room for one.
    fn without_streams(&self, fresh_since_us: Option<u64>) -> Option<Rc<SharedConnection>> {
        let connections = self.0.borrow();
        let mut fresh =
            connections.open.iter().filter(|open| fresh_since_us.is_none_or(|since_us| open.opened_us >= since_us));
        let is_barren =
            |connection: &SharedConnection| connection.over().is_none() && connection.held() + connection.room() == 0;
        let idle = fresh.find(|open| is_barren(&open.connection))?;
        Some(idle.connection.clone())
    }

    /// One in the making that will have room for one more.
    fn opening(&self, streams_max: usize) -> Option<Rc<Opening>> {
        self.0.borrow().opening.iter().find(|opening| opening.waiting.get() < streams_max).cloned()
    }

    /// A connection was made. It goes away at once where the endpoint has left the configuration, once it has served who waits.
    pub(super) fn opened(&self, opening: &Rc<Opening>, connection: Rc<SharedConnection>) {
        let mut connections = self.0.borrow_mut();
        connections.opening.retain(|other| !Rc::ptr_eq(other, opening));
        connections.open.push(OpenConnection { connection, opened_us: clock::now_us() });
        drop(connections);
        opening.finish(Ok(()));
    }

    /// No connection could be made.
    pub(super) fn failed(&self, opening: &Rc<Opening>, error: &Error) {
        self.0.borrow_mut().opening.retain(|other| !Rc::ptr_eq(other, opening));
        opening.finish(Err((error.reason, error.side)));
    }

    /// The endpoint left the configuration: no idle connection is kept.
    pub(super) fn is_closed(&self) -> bool {
        self.0.borrow().closed
    }

    /// A connection takes no more requests.
    pub(super) fn remove(&self, connection: &Rc<SharedConnection>) {
        self.0.borrow_mut().open.retain(|open| !is_same(&open.connection, connection));
    }

    /// Lets all connections end with their last stream, and those that are still made for somebody.
    pub(crate) fn close(&self) {
        let mut connections = self.0.borrow_mut();
        connections.closed = true;
        for open in &connections.open {
            // The task looks, and lets it end when nothing is under way.
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
        // The first counts.
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

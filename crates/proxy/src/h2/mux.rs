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

use super::connection::{Connection, is_same};
use super::dial;
use super::handle::Handle;
use crate::cluster::{Cluster, Endpoint};
use crate::connect::Wanted;
use crate::error::{Error, Side};

/// Connections of one worker to one endpoint. Where all are full, requests wait for room on the one with the fewest.
const CONNECTIONS_MAX: usize = 64;

/// The connections to one endpoint. Cheap to clone: all clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Mux(Rc<RefCell<Links>>);

#[derive(Default)]
struct Links {
    open: Vec<Link>,
    opening: Vec<Rc<Opening>>,
    /// The endpoint left the configuration.
    closed: bool,
}

/// A connection that takes requests.
#[derive(Clone)]
struct Link {
    connection: Rc<Connection>,
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
    /// A place for a request, if there is one now: with the stream still to be opened, and whether the connection is older than the request. It
    /// is used before anything else runs, so nobody else can take it.
    pub(crate) fn try_place(&self, wanted: &Wanted<'_>) -> Option<(Handle, bool)> {
        let link = self.pick(wanted.fresh_since_us)?;
        let is_reused = link.opened_us < wanted.begun_us;
        Some((Handle::unopened(link.connection), is_reused))
    }

    /// Waits for one, on a new connection.
    ///
    /// # Errors
    /// Those of making a connection, [`Reason::PendingTimeout`] and [`Reason::RequestTimeout`]; nothing was sent.
    pub(crate) async fn place(
        &self,
        cluster: &Cluster,
        endpoint: &Rc<Endpoint>,
        wanted: &Wanted<'_>,
        timer: &Timer,
    ) -> Result<(Handle, bool), Error> {
        let limits = &cluster.plan.policy.limits;
        let streams_max = limits.streams_per_connection_max as usize;
        let give_up_ms = wanted.now_ms.saturating_add(crate::millis(limits.pending_timeout)).min(wanted.deadline_ms);
        loop {
            if let Some(placed) = self.try_place(wanted) {
                return Ok(placed);
            }
            if let Some(connection) = self.without_streams(wanted.fresh_since_us) {
                // One more would have as little room, so what is waited for is that the endpoint allows streams.
                timer.set(give_up_ms);
                let found = timer.guard(poll_fn(|cx| connection.poll_room(cx))).await;
                let reason =
                    if give_up_ms < wanted.deadline_ms { Reason::PendingTimeout } else { Reason::RequestTimeout };
                found.map_err(|_| Error::upstream(reason))?;
                continue;
            }
            let opening = self.opening(streams_max).unwrap_or_else(|| {
                let opening = Rc::new(Opening::default());
                self.0.borrow_mut().opening.push(opening.clone());
                dial::spawn(self.clone(), opening.clone(), cluster, endpoint, *wanted.who, timer.sibling());
                opening
            });
            let connect_by_ms = clock::now_ms().saturating_add(crate::millis(cluster.plan.policy.connect_timeout));
            timer.set(connect_by_ms.min(wanted.deadline_ms));
            let joined = timer.guard(opening.join()).await;
            let is_over = || clock::now_ms() >= wanted.deadline_ms;
            let late = || if is_over() { Reason::RequestTimeout } else { Reason::ConnectTimeout };
            joined.unwrap_or_else(|_| Err(Error::upstream(late())))?;
        }
    }

    /// The first that has room. `fresh_since_us`: only one that was made since then.
    fn pick(&self, fresh_since_us: Option<u64>) -> Option<Link> {
        let links = self.0.borrow();
        let eligible =
            || links.open.iter().filter(|link| fresh_since_us.is_none_or(|since_us| link.opened_us >= since_us));
        let first = eligible().find(|link| link.connection.room() > 0);
        // All are full, and there may be no more: whoever comes waits for room where the fewest are.
        let is_at_limit = links.open.len() + links.opening.len() >= CONNECTIONS_MAX;
        let fewest = |link: &&Link| link.connection.held();
        first.or_else(|| eligible().filter(|_| is_at_limit).min_by_key(fewest)).cloned()
    }

    /// A connection whose endpoint allows no stream at all: there is none on it, and no room for one.
    fn without_streams(&self, fresh_since_us: Option<u64>) -> Option<Rc<Connection>> {
        let links = self.0.borrow();
        let mut fresh =
            links.open.iter().filter(|link| fresh_since_us.is_none_or(|since_us| link.opened_us >= since_us));
        let is_barren =
            |connection: &Connection| connection.over().is_none() && connection.held() + connection.room() == 0;
        let idle = fresh.find(|link| is_barren(&link.connection))?;
        Some(idle.connection.clone())
    }

    /// One in the making that will have room for one more.
    fn opening(&self, streams_max: usize) -> Option<Rc<Opening>> {
        self.0.borrow().opening.iter().find(|opening| opening.waiting.get() < streams_max).cloned()
    }

    /// A connection was made. It goes away at once where the endpoint has left the configuration, once it has served who waits.
    pub(super) fn opened(&self, opening: &Rc<Opening>, connection: Rc<Connection>) {
        let mut links = self.0.borrow_mut();
        links.opening.retain(|other| !Rc::ptr_eq(other, opening));
        links.open.push(Link { connection, opened_us: clock::now_us() });
        drop(links);
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
    pub(super) fn remove(&self, connection: &Rc<Connection>) {
        self.0.borrow_mut().open.retain(|link| !is_same(&link.connection, connection));
    }

    /// Lets all connections end with their last stream, and those that are still made for somebody.
    pub(crate) fn close(&self) {
        let mut links = self.0.borrow_mut();
        links.closed = true;
        for link in &links.open {
            // The task looks, and lets it end when nothing is under way.
            link.connection.touch();
        }
    }
}

impl Opening {
    async fn join(&self) -> Result<(), Error> {
        self.waiting.set(self.waiting.get() + 1);
        let _seat = Seat(&self.waiting);
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

/// Somebody who waits.
struct Seat<'w>(&'w Cell<usize>);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

//! An HTTP/2 connection to an endpoint: connects, reads and writes until it ends, and closes.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use model::Ping;
use net::clock;
use net::timer::Timer;
use telemetry::{ClusterCounters, Reason};
use wire::h2::{self, Role, StreamKey};

use super::mux::{Mux, Opening};
use crate::error::{Error, Side};
use crate::h2::connection::{ConnectionHandler, SharedConnection, StreamEnd};
use crate::h2::liveness::{ENDPOINT_REST_MS, LastReceived, Liveness, PingAction};
use crate::h2::socket_io::{End, SocketIo};
use crate::upstream::cluster::{Cluster, Endpoint};
use crate::upstream::connect::{self, OnBehalfOf};
use crate::worker::snapshot::ClusterPlan;

/// A connection stays at least this long without a request, because a request that waited for it is about to be sent.
const GRACE_MS: u64 = 1_000;

/// Makes a connection and serves it until it ends, on its own task. A request that waits for it may give up without ending it.
pub(super) fn spawn(
    mux: Mux,
    opening: Rc<Opening>,
    cluster: &Cluster,
    endpoint: &Rc<Endpoint>,
    who: OnBehalfOf,
    timer: Timer,
) {
    let (plan, counters, endpoint) = (cluster.plan.clone(), cluster.counters.clone(), endpoint.clone());
    tokio::task::spawn_local(async move {
        if let Err(error) = run(&mux, &opening, plan, &counters, endpoint, who, &timer).await {
            if error.side == Side::Upstream {
                counters.connect_failures.inc();
            }
            tracing::debug!(%error, "cannot connect to an endpoint");
            mux.failed(&opening, &error);
        }
    });
}

async fn run(
    mux: &Mux,
    opening: &Rc<Opening>,
    plan: Arc<ClusterPlan>,
    counters: &ClusterCounters,
    endpoint: Rc<Endpoint>,
    who: OnBehalfOf,
    timer: &Timer,
) -> Result<(), Error> {
    let policy = &plan.policy;
    let begun_ms = clock::now_ms();
    let connect_by_ms = begun_ms.saturating_add(crate::millis(policy.connect_timeout));
    counters.connects.inc();
    timer.set(connect_by_ms);
    let stream = match timer.guard(connect::open(&plan, &endpoint, who)).await {
        Ok(opened) => opened.map_err(connect::failure)?,
        Err(_) => return Err(Error::upstream(Reason::ConnectTimeout)),
    };
    // The rest of the task holds neither: the endpoint may be removed from the configuration.
    drop(endpoint);

    let connection = Rc::new(SharedConnection::new(Role::Client, crate::h2::client_limits(&policy.limits)));
    let mut link = Session {
        io: SocketIo::new(stream, connection.clone(), begun_ms),
        liveness: Liveness::new(ENDPOINT_REST_MS),
        ping: policy.ping,
        mux,
        opening,
        connect_by_ms,
        is_open: false,
        idle_ms: crate::millis(policy.idle_timeout).max(GRACE_MS),
        stall_ms: crate::millis(policy.response_timeout),
        quiet_since_ms: Some(begun_ms),
        is_draining: false,
    };
    // The connection outlives snapshots.
    drop(plan);
    let end = poll_fn(|cx| link.poll(cx, timer)).await;
    let is_open = link.is_open;
    mux.remove(&connection);
    connection.end(match &end {
        End::Broken(error) => StreamEnd::Broken(error.reason),
        End::Lost(_) => StreamEnd::Lost,
        End::Silent => StreamEnd::Silent,
        End::Done | End::Gone => StreamEnd::Gone,
    });
    if is_open {
        link.part(&end, timer).await;
        return Ok(());
    }
    let error = Error::upstream(if matches!(end, End::Done) { Reason::ConnectTimeout } else { Reason::UpstreamH2 });
    Err(match end {
        End::Lost(source) => error.because(source),
        _ => error,
    })
}

struct Session<'d> {
    io: SocketIo,
    liveness: Liveness,
    ping: Option<Ping>,
    mux: &'d Mux,
    opening: &'d Rc<Opening>,
    connect_by_ms: u64,
    /// The endpoint's settings have arrived, so it speaks HTTP/2 and requests may be sent.
    is_open: bool,
    idle_ms: u64,
    stall_ms: u64,
    /// The time since when there is no stream, in milliseconds; `None` if there is one.
    quiet_since_ms: Option<u64>,
    is_draining: bool,
}

impl Session<'_> {
    fn poll(&mut self, cx: &mut Context<'_>, timer: &Timer) -> Poll<End> {
        loop {
            let now_ms = clock::now_ms();
            if let Poll::Ready(end) = self.io.poll(cx, now_ms, &mut NoRequests) {
                return Poll::Ready(end);
            }
            let connection = &self.io.connection;
            let wire = connection.wire.borrow();
            let (is_established, is_going_away, held) =
                (wire.is_established(), wire.is_going_away(), wire.streams_held());
            drop(wire);
            if is_established && !self.is_open {
                self.is_open = true;
                self.mux.opened(self.opening, connection.clone());
            }
            if is_going_away {
                self.mux.remove(connection);
            }
            self.quiet_since_ms = if held > 0 { None } else { self.quiet_since_ms.or(Some(now_ms)) };
            let idle_ms = if self.mux.is_closed() { GRACE_MS } else { self.idle_ms };
            let deadline_ms = match (self.is_open, self.io.stalled_since_ms, self.quiet_since_ms) {
                (false, ..) => self.connect_by_ms,
                (true, Some(since_ms), _) => since_ms.saturating_add(self.stall_ms),
                (true, None, Some(since_ms)) if !self.is_draining => since_ms.saturating_add(idle_ms),
                _ => u64::MAX,
            };
            let last = LastReceived { at_ms: self.io.received_ms, has_spoken: connection.has_spoken() };
            let is_wanted = self.is_open && held > 0 && self.io.stalled_since_ms.is_none();
            let action = self.liveness.due(self.ping, last, is_wanted);
            let (action_ms, action) = action.map_or((u64::MAX, None), |(at_ms, action)| (at_ms, Some(action)));
            timer.set(deadline_ms.min(action_ms));
            match action {
                Some(PingAction::Send) if action_ms <= now_ms => {
                    connection.ping();
                    self.liveness.ping_sent(now_ms);
                    continue;
                }
                Some(PingAction::GiveUp) if action_ms <= now_ms => return Poll::Ready(End::Silent),
                _ => {}
            }
            if now_ms < deadline_ms {
                // This registers for the wake-up; a timer that was just set has not elapsed.
                let _ = timer.poll_elapsed(cx);
                return Poll::Pending;
            }
            if !self.is_open {
                return Poll::Ready(End::Done);
            }
            if self.io.stalled_since_ms.is_some() {
                return Poll::Ready(End::Gone);
            }
            self.is_draining = true;
            self.mux.remove(&self.io.connection);
            self.io.connection.drain();
        }
    }

    /// Sends the last output if the endpoint can still read it, but only for a moment, because nothing waits for it.
    async fn part(&mut self, end: &End, timer: &Timer) {
        if let End::Done | End::Broken(_) = end {
            timer.set(clock::now_ms() + crate::downstream::session::LINGER_MS);
            let io = &mut self.io;
            // This fails if the endpoint is gone.
            let _ = timer.guard(poll_fn(|cx| io.poll_last_words(cx, clock::now_ms()))).await;
        }
    }
}

/// An endpoint sends no requests, and `wire::h2` accepts none.
struct NoRequests;

impl ConnectionHandler for NoRequests {
    fn on_request(&mut self, _: &mut h2::Connection, _: StreamKey, _: bool) {}

    fn on_refused(&mut self, reason: h2::Reason) {
        tracing::debug!(reason = reason.name(), "an endpoint's frame was refused");
    }

    /// Only connections of clients have exchanges to poll.
    fn run(&mut self, _: &Context<'_>) -> bool {
        false
    }

    fn end_poll(&mut self, _: &Context<'_>) {}
}

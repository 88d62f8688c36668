//! A client's HTTP/2 connection, from its preface to GOAWAY.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use model::{HttpListener, ListenerLimits, Protocol};
use net::buffer::Buffer;
use net::cache::CacheLines;
use net::clock;
use net::timer::Timer;
use telemetry::Reason;
use wire::h2::{self, Role, StreamKey};

use super::exchange_set::{ExchangeSet, NextJob};
use crate::downstream::listener::ActiveListener;
use crate::downstream::session::{self, DRAIN_IDLE_MS, LINGER_MS, LINGER_MS_MAX};
use crate::driver::{self, Downstream};
use crate::exchange::{Disposition, Exchange};
use crate::h2::Handle;
use crate::h2::connection::{ConnectionHandler, SharedConnection, StreamEnd};
use crate::h2::liveness::{LastReceived, Liveness, PingAction};
use crate::h2::socket_io::{End, PAUSE_MS, SocketIo};
use crate::stream::Stream;
use crate::worker::Worker;

/// A connection without a request for this long frees its buffers; a request that comes sooner finds them.
const SHRINK_AFTER_MS: u64 = 1_000;

/// Serves an HTTP/2 connection to its end. `downstream` is what an HTTP/1 connection would be served with. Its input, which may contain the
/// preface, is the beginning of this connection.
pub(crate) async fn serve(worker: &Rc<Worker>, active: &Rc<ActiveListener>, downstream: &mut Downstream) {
    let listener = active.view();
    let Protocol::Http(http) = &listener.plan.policy.protocol else { return };
    let is_paced = listener.plan.policy.client_limits.request_bandwidth.is_some();
    let limits = crate::h2::server_limits(&http.limits, is_paced);
    let connection = Rc::new(SharedConnection::new(Role::Server, limits));
    let stream = std::mem::replace(&mut downstream.stream, Stream::H2(Handle::unopened(connection.clone())));
    let input = std::mem::replace(&mut downstream.input, Buffer::none());
    let begun_ms = clock::now_ms();
    let begin = |next_job| run_task_slot(worker, active, downstream, &connection, next_job);
    let mut session = Session {
        io: SocketIo::new(stream, connection.clone(), begun_ms),
        liveness: Liveness::new(0),
        clients: Clients { worker, active, downstream, requests: 0, exchanges: ExchangeSet::new(begin) },
        begun_ms,
        quiet_since_ms: Some(begun_ms),
        unfinished: None,
        drain_ms: None,
        is_shrunk: false,
    };
    drop(listener);
    let end = match connection.handle(session.begun_ms, input.filled(), &mut session.clients) {
        Ok(_) => {
            drop(input);
            poll_fn(|cx| session.poll(cx)).await
        }
        Err(error) => End::Broken(error),
    };
    session.end(end).await;
}

/// A received request: its stream, and the exchange that will serve it.
type Job = (StreamKey, Box<Exchange>);

/// The future of one task slot. It serves the requests that it takes from `next_job`, one after another, as streams of `connection`.
async fn run_task_slot(
    worker: &Rc<Worker>,
    active: &Rc<ActiveListener>,
    client: &Downstream,
    connection: &Rc<SharedConnection>,
    next_job: Rc<NextJob<Job>>,
) {
    let mut downstream = Downstream {
        stream: Stream::H2(Handle::unopened(connection.clone())),
        input: Buffer::none(),
        timer: Timer::new(&worker.timers),
        connection_info: client.connection_info.clone(),
        requests: 0,
        quiet_since_ms: 0,
    };
    loop {
        let (key, exchange) = next_job.next().await;
        downstream.stream = Stream::H2(Handle::of_request(connection.clone(), key));
        downstream.requests = 0;
        let next = driver::serve(worker, active, &mut downstream, exchange).await;
        if next == Disposition::Linger {
            Box::pin(linger(&mut downstream)).await;
        }
        downstream.stream = Stream::H2(Handle::unopened(connection.clone()));
        downstream.input = Buffer::none();
        downstream.timer.clear();
    }
}

/// Reads and discards what the client still sends after its response, for a while, as over HTTP/1. Then the caller drops the stream, which
/// resets it with NO_ERROR to tell the client to stop sending (RFC 9113 section 8.1). Some clients take a reset that comes at once for a
/// failure. (curl 7.88 stops sending when a response ends before its request, and waits until its own timeout, with and without this.)
async fn linger(downstream: &mut Downstream) {
    let Downstream { stream, input, timer, .. } = downstream;
    let Some(handle) = stream.h2().filter(|handle| !handle.is_too_large()) else { return };
    let ends_ms = clock::now_ms() + LINGER_MS_MAX;
    loop {
        // The first time, these are the bytes that the endpoint did not take.
        handle.release(input.len());
        let now_ms = clock::now_ms();
        timer.set(ends_ms.min(now_ms + LINGER_MS));
        match timer.guard(poll_fn(|cx| handle.poll_data(cx, input))).await {
            Ok(Ok(true)) if now_ms < ends_ms => {}
            // It has ended, or takes too long.
            _ => return,
        }
    }
}

struct Session<'s, F, B> {
    io: SocketIo,
    liveness: Liveness,
    clients: Clients<'s, F, B>,
    begun_ms: u64,
    /// The time since when there is no stream, in milliseconds; `None` if there is one.
    quiet_since_ms: Option<u64>,
    /// The frame or head of which only a part has arrived ([`h2::Connection::unfinished`]), and since when, in milliseconds.
    unfinished: Option<(u64, u64)>,
    /// When GOAWAY was announced, in milliseconds.
    drain_ms: Option<u64>,
    /// The unneeded buffers have been freed.
    is_shrunk: bool,
}

impl<F: Future<Output = ()>, B: Fn(Rc<NextJob<Job>>) -> F> Session<'_, F, B> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        loop {
            let now_ms = clock::now_ms();
            if let Poll::Ready(end) = self.io.poll(cx, now_ms, &mut self.clients) {
                return Poll::Ready(end);
            }
            let listener = self.clients.active.view();
            let Protocol::Http(http) = &listener.plan.policy.protocol else { return Poll::Ready(End::Gone) };
            self.drain_if_due(http, now_ms);
            let (deadline_ms, what) = self.deadline(&http.limits, now_ms);
            let timer = &self.clients.downstream.timer;
            timer.set_interruptible(deadline_ms);
            if timer.poll_elapsed(cx).is_pending() && now_ms < deadline_ms {
                return Poll::Pending;
            }
            if let Some(end) = self.elapse(what) {
                return Poll::Ready(end);
            }
        }
    }

    /// Announces the end if the listener ends, the connection has served its share of requests, or its client is no longer admitted.
    fn drain_if_due(&mut self, http: &HttpListener, now_ms: u64) {
        let Clients { worker, active, requests, downstream, .. } = &self.clients;
        let has_had_enough = http.limits.requests_per_connection_max.is_some_and(|max| *requests >= max);
        let is_outdated = || downstream.connection_info.secured.as_ref().is_some_and(|secured| secured.is_outdated());
        if self.drain_ms.is_none() && (active.is_ending(worker) || has_had_enough || is_outdated()) {
            self.drain_ms = Some(now_ms);
            self.io.connection.drain();
        }
    }

    /// The earliest deadline, and what it is for.
    fn deadline(&mut self, limits: &ListenerLimits, now_ms: u64) -> (u64, Due) {
        let wire = self.io.connection.wire.borrow();
        self.quiet_since_ms = match wire.streams_held() {
            0 => self.quiet_since_ms.or(Some(now_ms)),
            _ => None,
        };
        self.is_shrunk &= self.quiet_since_ms.is_some();
        let after = |since_ms: u64, wait: std::time::Duration| since_ms.saturating_add(crate::millis(wait));
        let mut due = (u64::MAX, Due::Idle);
        let mut consider = |at_ms: u64, what| {
            if at_ms < due.0 {
                due = (at_ms, what);
            }
        };
        if !wire.is_established() {
            consider(after(self.begun_ms, limits.header_timeout), Due::Preface);
        } else if !wire.is_acknowledged() && !self.io.is_paused() {
            consider(after(self.begun_ms, limits.header_timeout), Due::Acknowledgement);
        }
        if self.io.is_paused() {
            // Anything unfinished is so because nothing is read.
            self.unfinished = None;
            consider(now_ms.saturating_add(PAUSE_MS), Due::Memory);
        }
        let since = |frame| self.unfinished.filter(|(same, _)| *same == frame).map_or(now_ms, |(_, since_ms)| since_ms);
        self.unfinished = wire.unfinished().map(|frame| (frame, since(frame)));
        if let Some((_, since_ms)) = self.unfinished {
            consider(after(since_ms, limits.header_timeout), Due::Frame);
        }
        if let Some(since_ms) = self.quiet_since_ms {
            consider(after(since_ms, limits.idle_timeout), Due::Idle);
            if !self.is_shrunk {
                consider(since_ms.saturating_add(SHRINK_AFTER_MS), Due::Shrink);
            }
        }
        if let Some(since_ms) = self.io.stalled_since_ms {
            consider(after(since_ms, limits.stall_timeout), Due::Output);
        }
        let last = LastReceived { at_ms: self.io.received_ms, has_spoken: self.io.connection.has_spoken() };
        let is_wanted = self.quiet_since_ms.is_none() && self.io.stalled_since_ms.is_none();
        if let Some((at_ms, action)) = self.liveness.due(limits.ping, last, is_wanted) {
            consider(at_ms, Due::Ping(action));
        }
        if let Some(since_ms) = self.drain_ms {
            // A client that never answers the PING after the announcement.
            consider(since_ms.saturating_add(DRAIN_IDLE_MS), Due::Drain);
        }
        due
    }

    /// Handles a deadline that has passed.
    fn elapse(&mut self, what: Due) -> Option<End> {
        let connection = &self.io.connection;
        let listener = self.clients.active.view();
        match what {
            Due::Preface | Due::Frame => {
                listener.count(Reason::HeaderTimeout);
                return Some(End::Gone);
            }
            Due::Acknowledgement => {
                connection.wire.borrow_mut().abort(h2::Reason::SettingsTimeout);
                let reason = h2::Reason::SettingsTimeout;
                return Some(End::Broken(h2::Error { reason, code: reason.code() }));
            }
            Due::Output => {
                listener.count(Reason::SlowRead);
                return Some(End::Gone);
            }
            // The caller polls the socket again.
            Due::Memory => {}
            Due::Ping(PingAction::Send) => {
                connection.ping();
                self.liveness.ping_sent(clock::now_ms());
            }
            Due::Ping(PingAction::GiveUp) => {
                listener.count(Reason::H2PingTimeout);
                return Some(End::Silent);
            }
            Due::Idle => {
                listener.count(Reason::IdleTimeout);
                // The first call announces the end, and the second names the last stream.
                connection.drain();
                connection.drain();
                self.quiet_since_ms = Some(clock::now_ms());
                self.drain_ms = Some(u64::MAX);
            }
            Due::Shrink => {
                connection.shrink();
                self.clients.exchanges.shrink();
                self.is_shrunk = true;
            }
            Due::Drain => {
                connection.drain();
                self.drain_ms = Some(u64::MAX);
            }
        }
        None
    }

    /// Sends the last output, resets the remaining streams, and waits until the exchanges have ended.
    async fn end(mut self, end: End) {
        let Clients { downstream, .. } = self.clients;
        let connection = self.io.connection.clone();
        match &end {
            End::Done => {}
            End::Broken(error) => {
                self.clients.on_refused(error.reason);
                tracing::debug!(client = %downstream.connection_info.who.client, %error, "connection closed");
            }
            End::Gone | End::Lost(_) | End::Silent => {
                tracing::trace!(client = %downstream.connection_info.who.client, ?end, "connection gone");
            }
        }
        connection.end(if let End::Lost(_) = end { StreamEnd::Lost } else { StreamEnd::Gone });
        let (io, timer) = (&mut self.io, &downstream.timer);
        let mut parting = std::pin::pin!(async {
            if matches!(end, End::Done | End::Broken(_)) {
                timer.set(clock::now_ms() + LINGER_MS);
                let said = timer.guard(poll_fn(|cx| io.poll_last_words(cx, clock::now_ms()))).await;
                if let Ok(Ok(())) = said {
                    session::linger(&mut io.stream, timer).await;
                }
            }
        });
        let exchanges = &mut self.clients.exchanges;
        let mut has_parted = false;
        poll_fn(|cx| {
            exchanges.poll(cx);
            exchanges.end_poll(cx);
            has_parted = has_parted || parting.as_mut().poll(cx).is_ready();
            if has_parted && exchanges.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// The preface and the first settings.
    Preface,
    /// The rest of a head, or of another frame.
    Frame,
    /// The acknowledgement of our settings.
    Acknowledgement,
    /// A request.
    Idle,
    /// A request, for so long that its buffers can be freed and allocated again.
    Shrink,
    /// The client to read the output.
    Output,
    /// Memory for reading further.
    Memory,
    /// An answer to a PING, or the time to send one.
    Ping(PingAction),
    /// The client to see the announcement of the end.
    Drain,
}

/// Accepts the requests of a connection, and polls their exchanges.
struct Clients<'s, F, B> {
    worker: &'s Rc<Worker>,
    active: &'s Rc<ActiveListener>,
    downstream: &'s Downstream,
    requests: u64,
    exchanges: ExchangeSet<Job, F, B>,
}

impl<F: Future<Output = ()>, B: Fn(Rc<NextJob<Job>>) -> F> ConnectionHandler for Clients<'_, F, B> {
    fn on_request(&mut self, wire: &mut h2::Connection, key: StreamKey, is_too_large: bool) {
        self.requests += 1;
        let mut exchange = self.worker.storage.exchange();
        if !is_too_large {
            wire.take_request(&mut exchange.request.head, &mut exchange.request.bytes);
        }
        let lines = CacheLines::of(&*exchange);
        self.exchanges.push((key, exchange), lines);
    }

    fn on_refused(&mut self, reason: h2::Reason) {
        let (listener, reason) = (self.active.view(), crate::h2::reason(reason));
        listener.count(reason);
        // A connection cannot flood the log: each refusal of a stream uses its budget for glitches, and one that ends it is its last.
        self.worker.log_h2_refusal(&listener, &self.downstream.connection_info, reason);
    }

    fn run(&mut self, cx: &Context<'_>) -> bool {
        self.exchanges.poll(cx);
        true
    }

    fn end_poll(&mut self, cx: &Context<'_>) {
        self.exchanges.end_poll(cx);
    }
}

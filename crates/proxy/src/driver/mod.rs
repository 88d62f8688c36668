//! Drives exchanges: carries out what an [`Exchange`] asks for, and reports what happened. No other code handles both an exchange and its
//! sockets.

mod pace;
mod pump;

use pace::Pace;
use pump::Lane;
pub(crate) use pump::{poll_discard, poll_write};

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use model::{HttpListener, Protocol};
use net::buffer::{self, Buffer};
use net::clock;
use net::timer::Timer;
use telemetry::Reason;
use tokio::io::ReadBuf;
use wire::ResponseHeads;
use wire::message::{Body, Method};

use crate::downstream::listener::{ActiveListener, is_memory_full};
use crate::downstream::watch::{ClientWatch, Watched};
use crate::error::{Error, Side};
use crate::exchange::transfer::{Framing, Head, Transfer};
use crate::exchange::{
    Action, Connected, ConnectionInfo, ConnectionState, Disposition, Env, Exchange, Lost, Response, Reuse, Storage,
    TransferError,
};
use crate::grpc;
use crate::http::receive;
use crate::stream::Stream;
use crate::tcp::relay::{self, End, Moved};
use crate::upstream::closing::Unhealthy;
use crate::upstream::connect::{self, Upstream, Wanted};
use crate::worker::{ListenerView, Worker};

/// A downstream HTTP connection, or one stream of an HTTP/2 connection.
pub(crate) struct Downstream {
    pub(crate) stream: Stream,
    /// Bytes that the client sent and nothing has taken yet.
    pub(crate) input: Buffer,
    pub(crate) timer: Timer,
    pub(crate) connection_info: Rc<ConnectionInfo>,
    /// Requests begun on this connection.
    pub(crate) requests: u64,
    /// When the last response was sent, or the connection arrived, in milliseconds. It saves a call of the clock.
    pub(crate) quiet_since_ms: u64,
}

/// Serves the next request of a connection, whose first bytes have arrived, or the request of a stream, whose head is already in
/// `exchange`.
pub(crate) async fn serve(
    worker: &Worker,
    active: &ActiveListener,
    downstream: &mut Downstream,
    mut exchange: Box<Exchange>,
) -> Disposition {
    let mut listener = active.view();
    let Protocol::Http(http) = &listener.plan.policy.protocol else { return Disposition::Close };
    let connection_info = downstream.connection_info.clone();
    let context = ExchangeContext {
        worker,
        active,
        listener: &listener,
        http,
        connection_info: &connection_info,
        requests_before: downstream.requests,
    };
    let watch = downstream.timer.watch();
    let upstream = watch.over("an exchange", run(&context, downstream, &mut exchange)).await;
    if let Some(upstream) = upstream {
        // The tunnel may last for days, and needs no routing, so the table is released.
        exchange.record.leave_listener(worker, &listener);
        drop(listener);
        let watch = downstream.timer.watch();
        watch.over("a tunnel", Box::pin(relay_tunnel(active, downstream, upstream, &mut exchange))).await;
        listener = active.view();
    }
    send_copies(worker, &mut exchange);
    if exchange.is_begun() {
        worker.log_http(&listener, &connection_info, &exchange);
        worker.finish_trace(&listener, &mut exchange);
    }
    downstream.requests += u64::from(exchange.record.has_head);
    downstream.quiet_since_ms = exchange.ended_ms(clock::now_ms);
    let Action::Done(next) = exchange.action() else { return Disposition::Close };
    if let (Disposition::Reset(code), Some(handle)) = (next, downstream.stream.h2()) {
        handle.reset(code);
    }
    worker.storage.give_back(exchange);
    next
}

/// The driver's data around an exchange, which it passes as [`Env`].
struct ExchangeContext<'s> {
    worker: &'s Worker,
    active: &'s ActiveListener,
    listener: &'s Rc<ListenerView>,
    http: &'s HttpListener,
    connection_info: &'s ConnectionInfo,
    requests_before: u64,
}

impl ExchangeContext<'_> {
    fn env(&self, now_us: u64) -> Env<'_> {
        let Self { worker, active, listener, http, connection_info, requests_before } = *self;
        Env {
            now_us,
            listener,
            http,
            connection_info,
            storage: &worker.storage,
            mirrors: &worker.mirrors,
            compressions: &worker.compressions,
            bodies: &worker.bodies,
            remembered: &worker.remembered,
            tokens: &worker.tokens,
            unix_ms: clock::unix_ms,
            requests_before,
            is_ending: active.is_ending(worker),
            is_drain_over: worker.is_drain_over(),
            is_memory_full: false,
        }
    }

    fn now(&self) -> Env<'_> {
        self.env(clock::now_us())
    }

    /// The environment in which a head is handled, after which a request may be refused for lack of memory.
    fn of_head(&self, now_us: u64) -> Env<'_> {
        Env { is_memory_full: is_memory_full(), ..self.env(now_us) }
    }

    /// The environment after something was moved in this poll, before which the clock had last said `before_us`. If it was called since then,
    /// because a head was sent, that is the time.
    fn moved(&self, before_us: u64) -> Env<'_> {
        let last_us = clock::last_us();
        if last_us == before_us { self.now() } else { self.env(last_us) }
    }

    /// What makes a request wait for the bandwidth of its client; `None` if that is not limited.
    fn pace_request(&self, exchange: &Exchange, timer: &Timer) -> Option<Box<Pace>> {
        let share = exchange.shares()?.request.clone()?;
        let counters = self.listener.counters.clone();
        Some(Box::new(Pace::new(Some(share), None, timer.sibling(), counters, exchange.received())))
    }

    /// What makes a response wait for the bandwidth of its client and for its own; `None` if neither is limited.
    fn pace_response(&self, exchange: &Exchange, timer: &Timer) -> Option<Box<Pace>> {
        let share = exchange.shares().and_then(|shares| shares.response.clone());
        let response = exchange.response_pace().copied();
        if share.is_none() && response.is_none() {
            return None;
        }
        Some(Box::new(Pace::new(share, response, timer.sibling(), self.listener.counters.clone(), 0)))
    }

    fn watched<'w>(&self, stream: &'w Stream) -> Watched<'w> {
        Watched { stream, leaves_by_fin: self.http.limits.abort_on_half_close, owed: 0 }
    }

    /// A client whose request may be incomplete.
    fn watched_sender<'w>(&self, stream: &'w Stream, owed: u64) -> Watched<'w> {
        Watched { owed, ..self.watched(stream) }
    }
}

/// Runs an exchange to its end or to its tunnel, in which case it returns the connection to the endpoint.
async fn run(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) -> Option<Upstream> {
    let arrived = context.of_head(arrived_us(&downstream.stream));
    match &downstream.stream {
        Stream::H2(handle) => exchange.handle_request(&arrived, handle.is_too_large()),
        _ => exchange.handle_head_bytes(&arrived, &mut downstream.input),
    }
    let (mut upstream, mut turn) = (None, Turn::default());
    loop {
        send_copies(context.worker, exchange);
        let action = exchange.action();
        match (action, &mut upstream) {
            (Action::Done(_), _) => return None,
            (Action::Tunnel { .. }, _) => return upstream,
            (Action::ReadHead, _) => read_head(context, downstream, exchange).await,
            // Boxed, here and below, so that an exchange that does not wait does not need the memory for it.
            (Action::Authenticate, _) => Box::pin(authenticate(context, downstream, exchange)).await,
            (Action::HoldBody, _) => Box::pin(hold_body(context, downstream, exchange)).await,
            (Action::Ask, _) => Box::pin(ask(context, downstream, exchange)).await,
            (Action::Wait, _) => Box::pin(wait(context, downstream, exchange)).await,
            (Action::WaitForLease, _) => Box::pin(wait_for_lease(context, downstream, exchange)).await,
            (Action::Connect, upstream) => *upstream = connect(context, downstream, exchange).await,
            (Action::Await | Action::Relay, Some(upstream)) => {
                turn.begin();
                let is_plain = downstream.stream.plain().is_some() && upstream.stream.plain().is_some();
                exchange.set_splice(is_plain && !exchange.is_paced());
                if exchange.is_paced() {
                    turn.set_paces(context, exchange, &downstream.timer);
                }
                pass(context, downstream, upstream, exchange, &mut turn, action == Action::Await).await;
            }
            (Action::Respond, _) => respond(context, downstream, exchange).await,
            (Action::Await | Action::Relay, None) => {
                exchange.fail(&context.now(), Error::internal(Reason::Internal));
            }
        }
        if !exchange.holds_connection()
            && let Some(upstream) = upstream.take()
        {
            give_back(upstream, exchange.take_reuse());
        }
    }
}

async fn read_head(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) {
    let Downstream { stream, input, timer, .. } = downstream;
    arm(timer, exchange);
    let read = timer.guard(poll_fn(|cx| input.poll_fill(cx, stream))).await;
    let env = context.of_head(clock::now_us());
    match read {
        Ok(Ok(0)) => exchange.handle_client_gone(&env, Error::downstream(Reason::ClientEof)),
        Ok(Ok(_)) => exchange.handle_head_bytes(&env, input),
        Ok(Err(error)) => exchange.handle_client_gone(&env, Error::client_io(error)),
        Err(_) => exchange.handle_timeout(&env, input, &Buffer::none()),
    }
}

/// Has a password checked by other threads. Only the client's connection is held meanwhile.
async fn authenticate(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) {
    let Downstream { stream, input, timer, .. } = downstream;
    let submitted = match exchange.take_check() {
        Some((authenticator, check)) => authenticator.submit(*check),
        None => Err(Error::internal(Reason::Internal)),
    };
    let result = match submitted {
        Ok(result) => result,
        Err(error) => return exchange.handle_checked(&context.now(), Err(error)),
    };
    release_empty(input);
    arm(timer, exchange);
    let checked = tokio::select! {
        biased;
        error = context.watched(stream).gone() => return exchange.handle_client_gone(&context.now(), error),
        // The threads of this snapshot outlive its exchanges, so without a result there was no memory for the check.
        checked = result => checked.map_err(|_| crate::auth::passwords::busy()),
        () = poll_fn(|cx| timer.poll_elapsed(cx)) => {
            return exchange.handle_timeout(&context.now(), input, &Buffer::none());
        }
    };
    exchange.handle_checked(&context.now(), checked);
}

/// Reads the body of a request for the service that is asked about it, or until all of it is there.
async fn hold_body(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) {
    let Downstream { stream, input, timer, .. } = downstream;
    arm(timer, exchange);
    if exchange.take_expectation() {
        let mut interim = Transfer::default();
        match interim.start(Framing::H1(Body::None), continue_framing(stream), None) {
            Head::H1(out) => out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"),
            Head::H2(out) => out.status = 100,
        }
        let sent = timer.guard(poll_fn(|cx| pump::poll_write(cx, &mut interim, stream))).await;
        exchange.record.bytes_out += interim.sent();
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => return exchange.handle_client_gone(&context.now(), failure.of_response()),
            Err(_) => return exchange.handle_timeout(&context.now(), input, &Buffer::none()),
        }
    }
    let mut lane = Lane::default();
    lane.pace = context.pace_request(exchange, timer);
    let mut watch = ClientWatch::default();
    let read = timer.guard(poll_held(context, (&mut *stream, &mut *input), exchange, &mut lane, &mut watch));
    match read.await {
        Ok(Err(gone)) => exchange.handle_client_gone(&context.now(), gone),
        Ok(Ok(held)) => {
            let may_be_more = matches!(held, Ok(None));
            exchange.set_paced(lane.waits_until_ms());
            exchange.handle_held(&context.now(), held);
            if may_be_more && exchange.action() == Action::HoldBody {
                arm(timer, exchange);
                // Others get their turn. If the deadline passes meanwhile, the next wait finds that out.
                _ = timer.guard(tokio::task::yield_now()).await;
            }
        }
        Err(_) => exchange.handle_timeout(&context.now(), input, &Buffer::none()),
    }
}

/// Holds back what arrives of a body, as [`pump::poll_hold`] does. While nothing is read, because the client waits for its bandwidth or the
/// body for its turn to be decompressed, it is watched.
///
/// # Errors
/// The client has left.
async fn poll_held(
    context: &ExchangeContext<'_>,
    (stream, input): (&mut Stream, &mut Buffer),
    exchange: &mut Exchange,
    lane: &mut Lane,
    watch: &mut ClientWatch,
) -> Result<Result<Option<bool>, TransferError>, Error> {
    loop {
        let polled = poll_fn(|cx| {
            let Some((upload, data, bytes_max)) = exchange.held() else { return Poll::Ready(Ok(Some(Ok(None)))) };
            if let Poll::Ready(held) = pump::poll_hold(cx, upload, stream, input, (data, bytes_max), lane) {
                return Poll::Ready(Ok(Some(held)));
            }
            watch.check(cx, stream, lane.is_paced() || !upload.waits_for_sender(input))?;
            if watch.needs_gone() { Poll::Ready(Ok(None)) } else { Poll::Pending }
        });
        if let Some(held) = polled.await? {
            return Ok(held);
        }
        let owed = exchange.held().map_or(0, |(upload, ..)| upload.owed(input));
        if let Some(error) = Box::pin(context.watched_sender(stream, owed).gone_before_wake()).await {
            return Err(error);
        }
    }
}

/// The framing of an interim response of our own.
fn continue_framing(stream: &Stream) -> Framing {
    if stream.h2().is_some() { Framing::HeadOnly } else { Framing::H1(Body::None) }
}

/// Asks a service about the request. Only the client's connection is held meanwhile.
async fn ask(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) {
    let Some(question) = exchange.take_question() else {
        return exchange.fail(&context.now(), Error::internal(Reason::Internal));
    };
    let Downstream { stream, input, timer, .. } = downstream;
    release_empty(input);
    match question.ask(context.watched(stream), timer).await {
        Err(error) if error.side == Side::Downstream => exchange.handle_client_gone(&context.now(), error),
        reply => exchange.handle_reply(&context.now(), reply),
    }
}

/// Waits until the next try is due. Only the client's connection is held meanwhile.
async fn wait(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) {
    let Downstream { stream, input, timer, .. } = downstream;
    arm(timer, exchange);
    let waited = tokio::select! {
        biased;
        error = context.watched(stream).gone() => Err(error),
        () = poll_fn(|cx| timer.poll_elapsed(cx)) => Ok(()),
    };
    match waited {
        Ok(()) => exchange.handle_timeout(&context.now(), input, &Buffer::none()),
        Err(error) => exchange.handle_client_gone(&context.now(), error),
    }
}

async fn wait_for_lease(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) {
    let Some(routed) = exchange.routed() else { return };
    let Downstream { stream, input, timer, .. } = downstream;
    release_empty(input);
    let leased = routed.cluster.wait_for_lease(clock::now_ms(), &routed.demand(), context.watched(stream), timer).await;
    exchange.handle_lease(&context.now(), leased);
}

async fn connect(
    context: &ExchangeContext<'_>,
    downstream: &mut Downstream,
    exchange: &mut Exchange,
) -> Option<Upstream> {
    let (routed, lease, deadline, fresh_since_us) = exchange.wanted()?;
    let Downstream { stream, input, timer, .. } = downstream;
    release_empty(input);
    let leased_us = lease.at_ms.saturating_mul(1000);
    let begun_us = exchange.record.begun_us().unwrap_or(leased_us);
    let wanted = Wanted {
        who: &context.connection_info.who,
        client: Some(context.watched(stream)),
        begun_us,
        fresh_since_us,
        now_ms: lease.at_ms,
        deadline,
    };
    match connect::checkout(&routed.cluster, &lease.endpoint, &wanted, timer).await {
        Ok(upstream) => {
            let is_reused = upstream.is_reused;
            // Checked only if it matters: a new connection is not stale.
            let is_doubtful = is_reused && exchange.wants_progress();
            let progress = if is_doubtful { upstream.stream.tcp().and_then(net::socket::progress) } else { None };
            let env = context.env(if is_reused { begun_us.max(leased_us) } else { clock::now_us() });
            exchange.handle_connected(&env, Connected { is_reused, progress });
            Some(upstream)
        }
        Err(error) => {
            exchange.handle_connect_failure(&context.now(), error);
            None
        }
    }
}

/// Moves both messages until the exchange asks for something else, or the client has left.
async fn pass(
    context: &ExchangeContext<'_>,
    downstream: &mut Downstream,
    upstream: &mut Upstream,
    exchange: &mut Exchange,
    turn: &mut Turn,
    is_awaiting: bool,
) {
    loop {
        let is_over = poll_fn(|cx| {
            let polled = if is_awaiting {
                poll_await(cx, context, downstream, upstream, exchange, turn)
            } else {
                poll_relay(cx, context, downstream, upstream, exchange, turn)
            };
            match polled {
                Poll::Ready(()) => Poll::Ready(true),
                Poll::Pending if turn.watch.needs_gone() => Poll::Ready(false),
                Poll::Pending => Poll::Pending,
            }
        });
        if is_over.await {
            return;
        }
        // Only here, between two polls, can the connection be borrowed for that long.
        let owed = exchange.upload().map_or(0, |upload| upload.owed(&downstream.input));
        if let Some(error) = Box::pin(context.watched_sender(&downstream.stream, owed).gone_before_wake()).await {
            return exchange.handle_client_gone(&context.now(), error);
        }
    }
}

/// A client that waits for its response holds no buffer, because many may wait for one slow endpoint.
fn release_empty(input: &mut Buffer) {
    if input.is_empty() {
        *input = Buffer::none();
    }
}

/// State that is kept between two polls of an exchange that waits for its connections.
#[derive(Default)]
struct Turn {
    watch: ClientWatch,
    /// The time that the timer is set to, in milliseconds.
    armed: Option<u64>,
    /// The endpoint's connection was checked for something to read.
    was_asked: bool,
    /// For the request's body and for the response's.
    lanes: [Lane; 2],
}

impl Turn {
    /// Starts another wait.
    fn begin(&mut self) {
        (self.watch, self.armed, self.was_asked) = (ClientWatch::default(), None, false);
    }

    /// Makes both messages wait for their bandwidths, if they do not yet: the response once it has begun.
    fn set_paces(&mut self, context: &ExchangeContext<'_>, exchange: &Exchange, timer: &Timer) {
        let Self { lanes: [upload, download], .. } = self;
        if upload.pace.is_none() {
            upload.pace = context.pace_request(exchange, timer);
        }
        if exchange.action() == Action::Relay && download.pace.is_none() {
            download.pace = context.pace_response(exchange, timer);
        }
    }
}

/// Sends the available part of the request while it waits for the head of a response.
fn poll_await(
    cx: &mut Context<'_>,
    context: &ExchangeContext<'_>,
    downstream: &mut Downstream,
    upstream: &mut Upstream,
    exchange: &mut Exchange,
    turn: &mut Turn,
) -> Poll<()> {
    let Turn { watch, armed, was_asked, lanes: [upload_lane, _] } = turn;
    let Downstream { stream, input, timer, .. } = downstream;
    let before_us = clock::last_us();
    if let Some(upload) = exchange.upload()
        && let Poll::Ready(Err(failure)) = pump::poll(cx, upload, stream, input, &mut upstream.stream, upload_lane)
    {
        exchange.handle_upload_failure(&context.now(), failure);
        if exchange.action() != Action::Await {
            return Poll::Ready(());
        }
    }
    match poll_response(cx, context, stream, upstream, exchange, was_asked) {
        Poll::Ready(Ok(early)) => {
            exchange.handle_response(&context.env(arrived_us(&upstream.stream)), early);
            return Poll::Ready(());
        }
        Poll::Ready(Err(error)) => {
            let lost = lost(upstream, error);
            exchange.handle_lost(&context.now(), lost);
            return Poll::Ready(());
        }
        Poll::Pending => {}
    }
    if let Err(error) = watch.check(cx, stream, is_unread(exchange, input, upload_lane)) {
        exchange.handle_client_gone(&context.now(), error);
        return Poll::Ready(());
    }
    if exchange.is_paced() {
        exchange.set_paced(upload_lane.waits_until_ms());
    }
    exchange.handle_moved(&context.moved(before_us), input, &upstream.input, false);
    if exchange.action() != Action::Await {
        return Poll::Ready(());
    }
    ready!(poll_deadline(cx, timer, exchange, armed));
    exchange.handle_timeout(&context.now(), input, &upstream.input);
    Poll::Ready(())
}

/// Moves both bodies.
fn poll_relay(
    cx: &mut Context<'_>,
    context: &ExchangeContext<'_>,
    downstream: &mut Downstream,
    upstream: &mut Upstream,
    exchange: &mut Exchange,
    turn: &mut Turn,
) -> Poll<()> {
    let Turn { watch, armed, lanes: [upload_lane, download_lane], .. } = turn;
    let Downstream { stream, input, timer, .. } = downstream;
    let is_overdue = armed.is_some() && timer.is_elapsed();
    let before_us = clock::last_us();
    if let Some(upload) = exchange.upload()
        && let Poll::Ready(Err(failure)) = pump::poll(cx, upload, stream, input, &mut upstream.stream, upload_lane)
    {
        exchange.handle_upload_failure(&context.now(), failure);
    }
    if let Some(download) = exchange.download()
        && let Poll::Ready(Err(failure)) =
            pump::poll(cx, download, &mut upstream.stream, &mut upstream.input, stream, download_lane)
    {
        exchange.handle_download_failure(&context.now(), failure);
        return Poll::Ready(());
    }
    if exchange.is_only_sending()
        && let Poll::Ready(error) = poll_left(cx, &upstream.stream)
    {
        exchange.handle_upload_failure(&context.now(), TransferError::Write(error));
    }
    if exchange.is_paced() {
        exchange.set_paced(upload_lane.waits_until_ms().max(download_lane.waits_until_ms()));
    }
    exchange.handle_moved(&context.moved(before_us), input, &upstream.input, is_overdue);
    if exchange.action() != Action::Relay {
        return Poll::Ready(());
    }
    if let Err(error) = watch.check(cx, stream, is_unread(exchange, input, upload_lane)) {
        exchange.handle_client_gone(&context.now(), error);
        return Poll::Ready(());
    }
    ready!(poll_deadline(cx, timer, exchange, armed));
    exchange.handle_timeout(&context.now(), input, &upstream.input);
    Poll::Ready(())
}

/// Ready when an endpoint that has responded takes no more of the request: it has reset the stream, or ended the connection. Within TLS, a
/// failed write shows that.
fn poll_left(cx: &mut Context<'_>, stream: &Stream) -> Poll<io::Error> {
    match stream {
        Stream::H2(handle) => handle.poll_cut(cx),
        Stream::Plain(tcp) => match ready!(tcp.poll_peek(cx, &mut ReadBuf::new(&mut [0]))) {
            Ok(0) => Poll::Ready(io::ErrorKind::BrokenPipe.into()),
            // Bytes after the response hide the end. A write fails, or the deadline passes.
            Ok(_) => Poll::Pending,
            Err(error) => Poll::Ready(error),
        },
        Stream::Tls(_) => Poll::Pending,
    }
}

async fn respond(context: &ExchangeContext<'_>, downstream: &mut Downstream, exchange: &mut Exchange) {
    let Downstream { stream, input, timer, .. } = downstream;
    arm(timer, exchange);
    let sent = timer
        .guard(poll_fn(|cx| match exchange.download() {
            Some(download) => pump::poll_write(cx, download, stream),
            None => Poll::Ready(Ok(())),
        }))
        .await;
    match sent {
        Ok(sent) => exchange.handle_responded(&context.now(), sent),
        Err(_) => exchange.handle_timeout(&context.now(), input, &Buffer::none()),
    }
}

/// Whether nothing reads from the client now: the request is complete, its received part waits for the endpoint, or the rest of it for the
/// bandwidth of the client.
fn is_unread(exchange: &mut Exchange, input: &Buffer, lane: &Lane) -> bool {
    lane.is_paced() || exchange.upload().is_none_or(|upload| !upload.waits_for_sender(input))
}

/// Sets the timer to the deadline of an exchange.
fn arm(timer: &Timer, exchange: &Exchange) {
    match exchange.deadline_ms() {
        Some(deadline_ms) => timer.set(deadline_ms),
        None => timer.clear(),
    }
}

/// Ready when the exchange's deadline has passed. The timer is set to it if it has changed.
fn poll_deadline(cx: &mut Context<'_>, timer: &Timer, exchange: &Exchange, armed: &mut Option<u64>) -> Poll<()> {
    let deadline_ms = exchange.deadline_ms();
    if *armed != deadline_ms
        && let Some(deadline_ms) = deadline_ms
    {
        timer.set(deadline_ms);
        *armed = Some(deadline_ms);
    }
    timer.poll_elapsed(cx)
}

/// Reads the head of a response. Returns the status of a call whose trailers follow directly.
fn poll_response(
    cx: &mut Context<'_>,
    context: &ExchangeContext<'_>,
    client: &Stream,
    upstream: &mut Upstream,
    exchange: &mut Exchange,
    was_asked: &mut bool,
) -> Poll<Result<Option<grpc::Status>, Error>> {
    let Upstream { stream, input, .. } = upstream;
    let storage: &Storage = &context.worker.storage;
    match stream {
        Stream::H2(handle) => {
            ready!(handle.poll_response_ready(cx))?;
            let Response { head, bytes, .. } = exchange.response_room(storage);
            handle.take_response(head, bytes);
            // Only for calls, because nothing else ends with a status in its trailers.
            Poll::Ready(Ok(if exchange.call().is_some() { handle.early_status() } else { None }))
        }
        stream => {
            let take = |input: &mut Buffer| exchange.take_response_head(storage, input);
            ready!(poll_h1_head(cx, stream, input, was_asked, || first_read_bytes(client), take))?;
            Poll::Ready(Ok(None))
        }
    }
}

/// Reads the head of a response, which may be interim, into `response`.
///
/// # Errors
/// Those of the upstream side. [`Reason::UpstreamReset`] and [`Reason::UpstreamEof`] with an empty input mean that no byte of a response
/// arrived.
pub(crate) fn poll_response_head(
    cx: &mut Context<'_>,
    upstream: &mut Upstream,
    response: &mut Response,
    heads: &mut ResponseHeads,
    method: Method,
) -> Poll<Result<(), Error>> {
    let Upstream { stream, input, .. } = upstream;
    match stream {
        Stream::H2(handle) => {
            ready!(handle.poll_response_ready(cx))?;
            handle.take_response(&mut response.head, &mut response.bytes);
            Poll::Ready(Ok(()))
        }
        stream => {
            let take = |input: &mut Buffer| receive::response_head(response, input, heads, method, None);
            poll_h1_head(cx, stream, input, &mut false, buffer::piece_bytes, take)
        }
    }
}

/// How much of a response to read with its head. This includes the beginning of the body, which waits in memory if the client cannot take
/// it now.
fn first_read_bytes(client: &Stream) -> usize {
    /// Most heads are smaller.
    const BYTES_MIN: usize = 4096;
    match client {
        Stream::H2(handle) => handle.piece_bytes().max(BYTES_MIN),
        _ => buffer::piece_bytes(),
    }
}

/// Reads until `take` has taken a head from the input; the first read has the given size. `was_asked`: the connection was checked, and this
/// is polled because there probably is something to read.
fn poll_h1_head(
    cx: &mut Context<'_>,
    stream: &mut Stream,
    input: &mut Buffer,
    was_asked: &mut bool,
    first_bytes: impl Fn() -> usize,
    mut take: impl FnMut(&mut Buffer) -> Result<bool, Error>,
) -> Poll<Result<(), Error>> {
    loop {
        if !input.is_empty() && take(input)? {
            return Poll::Ready(Ok(()));
        }
        if input.capacity() == 0 && !std::mem::replace(was_asked, true) {
            // Check first, so that a request that waits for its endpoint holds no buffer for the response.
            ready!(stream.poll_read_ready(cx)).map_err(Error::endpoint_io)?;
        }
        if input.is_full() {
            input.grow((input.capacity() * 2).max(first_bytes()));
        }
        let read = input.poll_fill(cx, stream);
        if read.is_pending() && input.is_empty() {
            // The runtime assumes that a new socket is readable until a read is tried.
            *input = Buffer::none();
        }
        match ready!(read) {
            Ok(0) => return Poll::Ready(Err(Error::upstream(Reason::UpstreamEof))),
            Ok(_) => {}
            Err(error) => return Poll::Ready(Err(Error::endpoint_io(error))),
        }
    }
}

/// The facts about an upstream connection that gives no response.
pub(crate) fn lost(upstream: &Upstream, error: Error) -> Lost {
    let connection = match &upstream.stream {
        Stream::H2(handle) => ConnectionState::Stream { is_ending: handle.is_connection_ending() },
        stream => ConnectionState::Tcp(stream.tcp().and_then(net::socket::progress)),
    };
    Lost { error, has_input: !upstream.input.is_empty(), connection }
}

/// Keeps an upstream connection for the next request, or closes it.
pub(crate) fn give_back(upstream: Upstream, reuse: Option<Reuse>) {
    let Some(Reuse { endpoint, expires_ms, is_doubtful, idle_max }) = reuse else { return };
    if is_doubtful {
        endpoint.pool.put_doubtful(upstream.stream, expires_ms, idle_max);
    } else {
        endpoint.pool.put(upstream.stream, expires_ms, idle_max);
    }
}

#[inline]
fn send_copies(worker: &Worker, exchange: &mut Exchange) {
    // This is checked at every turn, and there are hardly ever any copies.
    if exchange.has_copies()
        && let Some((copies, body)) = exchange.take_copies()
    {
        copies.send(body, &worker.timers);
    }
}

/// Moves bytes in both directions, beginning with those that came with the heads.
async fn relay_tunnel(
    active: &ActiveListener,
    downstream: &mut Downstream,
    mut upstream: Upstream,
    exchange: &mut Exchange,
) {
    let Action::Tunnel { idle_ms } = exchange.action() else { return };
    let mut moved = Moved::default();
    let from_client = std::mem::replace(&mut downstream.input, Buffer::none());
    let ends = (
        End { stream: &mut downstream.stream, input: from_client },
        End { stream: &mut upstream.stream, input: upstream.input },
    );
    let unhealthy = Unhealthy::of(exchange.record.endpoint.as_ref().and_then(|endpoint| endpoint.closing.as_ref()));
    let outcome = relay::run(ends.0, ends.1, &downstream.timer, idle_ms, &mut moved, unhealthy, || ()).await;
    let reason = outcome.err().map(|error| error.reason);
    if let Some(reason) = reason {
        active.view().count(reason);
        upstream.stream.reset_on_close();
    }
    exchange.handle_tunnel_end(moved.upstream, moved.downstream, reason);
}

/// When the bytes from `stream` had arrived, in microseconds. An HTTP/2 connection calls the clock once per turn before it reads, and each
/// exchange after it has sent something, so one read for many exchanges does not call the clock for each.
fn arrived_us(stream: &Stream) -> u64 {
    if stream.h2().is_some() { clock::last_us() } else { clock::now_us() }
}

//! One request, from its head to the last byte of its response: every stage in order.
//!
//! receive -> route -> policy (rate limit, redirect, split) -> cluster (choose) -> connect -> attempt (send and wait) -> passing (relay the
//! response) -> log; any failure goes to `fail`.

use std::future::poll_fn;
use std::rc::Rc;

use balance::{Outcome, Proof};
use model::{ClusterProtocol, HttpListener, Protocol, Route, RoutePolicy, Scheme};
use net::buffer::Buffer;
use net::clock;
use net::timer::Timer;
use smallvec::SmallVec;
use telemetry::Reason;
use wire::message::{Body, RequestHead};

use crate::attempt;
use crate::body::Framing;
use crate::cluster::{Cluster, Endpoint, Lease};
use crate::connect::{OnBehalfOf, Upstream};
use crate::error::{Error, Side};
use crate::grpc::{Answer, Ongoing};
use crate::h2;
use crate::headers::{self, Client};
use crate::listener::{Slot, is_memory_full};
use crate::log::Entry;
use crate::passing::Passing;
use crate::policy::headers::{RequestEdits, ResponseEdits};
use crate::policy::mirror::{Copies, MIRROR_BODY_BYTES_MAX, Means};
use crate::policy::{self, Asked, Way};
use crate::receive;
use crate::relay::{self, End, Moved};
use crate::respond::{self, Own};
use crate::route::{self, HostText};
use crate::stream::Stream;
use crate::tls::Secured;
use crate::upgrade::Upgrade;
use crate::work::{Reply, Work};
use crate::worker::{ListenerView, Worker};

/// Room for the longest IP address.
pub(crate) type IpText = SmallVec<[u8; 45]>;

/// A downstream HTTP connection; of HTTP/2, one stream of it.
pub(crate) struct Downstream {
    pub(crate) stream: Stream,
    /// What the client sent and nobody took yet.
    pub(crate) input: Buffer,
    pub(crate) timer: Timer,
    pub(crate) peer: Rc<Peer>,
    /// Requests begun on this connection.
    pub(crate) requests: u64,
    /// When the last response left, or the connection came, in milliseconds. Spares a look at the clock.
    pub(crate) quiet_since_ms: u64,
}

/// Whose a downstream connection is: the same for all its streams.
pub(crate) struct Peer {
    pub(crate) who: OnBehalfOf,
    /// The client's IP address as text.
    pub(crate) ip_text: IpText,
    /// For whom the connection was made; `None`: it is in the clear.
    pub(crate) secured: Option<Rc<Secured>>,
}

/// What becomes of the downstream connection after an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another request may come.
    KeepAlive,
    /// All was said.
    Close,
    /// All was said, but the client may still be talking: what it says is read for a while, or it would lose our answer to a reset.
    Linger,
    /// The response is incomplete, and must be seen to be.
    Reset,
}

/// Where a request has led.
enum Course {
    /// To its end.
    Over(Next),
    /// To a tunnel, which is open.
    Tunnel(Box<Tunnel>),
}

/// What is relayed after 101.
struct Tunnel {
    /// Held for as long as it lasts.
    _lease: Lease,
    upstream: Upstream,
    /// The longest silence of both sides, in milliseconds.
    idle_ms: u64,
}

/// Serves the next request of a connection, or the one of a stream, whose head is in `work` already.
pub(crate) async fn serve(worker: &Worker, slot: &Slot, downstream: &mut Downstream, mut work: Box<Work>) -> Next {
    let mut listener = slot.view();
    let Protocol::Http(http) = &listener.plan.policy.protocol else { return Next::Close };
    let mut entry = Entry::http(downstream.peer.who.client);
    let watch = downstream.timer.watch();
    let running = run(worker, slot, &listener, http, downstream, &mut work, &mut entry);
    let outcome = watch.over("an exchange", running).await;
    let next = match outcome {
        Ok(Course::Over(next)) => next,
        Ok(Course::Tunnel(tunnel)) => {
            // It may last for days, and nobody is routed any more: the table is let go of.
            entry.leave_listener(worker, &listener);
            drop(listener);
            let watch = downstream.timer.watch();
            let relay = watch.over("a tunnel", Box::pin(relay_tunnel(*tunnel, slot, downstream, &mut entry)));
            let next = relay.await;
            listener = slot.view();
            next
        }
        Err(mut error) => {
            if worker.is_cut() {
                // Whatever it looks like: it ends because the drain has taken too long.
                error = Error::internal(Reason::Draining);
            }
            let may_stay = may_stay(http, downstream, slot.is_ending(worker));
            // In a box, as all that seldom happens: what it takes is not kept room for in every exchange.
            let next = Box::pin(fail(&listener, http, downstream, &mut work, &mut entry, &error, may_stay)).await;
            if let (Next::Reset, Some(handle)) = (next, downstream.stream.h2()) {
                handle.reset(h2::code(&error));
            }
            next
        }
    };
    work.mirror();
    if entry.is_begun() {
        entry.bytes_out += work.sent();
        entry.bytes_in += work.upload.received;
        worker.log_http(&listener, &entry);
    }
    downstream.quiet_since_ms = match work.reply.as_ref().map(|reply| &reply.download) {
        // A long body may have taken its time: then the clock is asked.
        Some(download) if download.head_sent_us > 0 && download.received <= net::buffer::SMALL_BYTES as u64 => {
            download.head_sent_us / 1000
        }
        _ => clock::now_ms(),
    };
    worker.rooms.give_back(work);
    next
}

async fn run(
    worker: &Worker,
    slot: &Slot,
    listener: &Rc<ListenerView>,
    http: &HttpListener,
    downstream: &mut Downstream,
    work: &mut Work,
    entry: &mut Entry,
) -> Result<Course, Error> {
    let head_bytes = receive::request_head(downstream, &http.limits, work).await?;
    entry.begin(arrived_us(&downstream.stream));
    downstream.requests += 1;
    let head = head_of_request(downstream, work);
    entry.call = Ongoing::of(&work.request, head);
    entry.bytes_in = if head_bytes == 0 { head.len() } else { head_bytes } as u64;
    if worker.logs_requests() {
        entry.remember(&work.request, head);
    }
    let (number, route, cluster) = match way(listener, http, downstream, work, entry) {
        Ok((number, route, Way::Cluster(cluster))) => (number, route, cluster),
        other => {
            // The connection goes on behind this request, if it has no body to be skipped.
            work.upload.leave(Framing::on(&downstream.stream, work.request.body));
            downstream.input.consume(head_bytes);
            let (.., Way::Redirect(status, location)) = other? else { return Err(Error::internal(Reason::Internal)) };
            let own = Own { status, word: Some("redirect"), field: Some(("location", &location)) };
            let may_stay = may_stay(http, downstream, slot.is_ending(worker));
            return Ok(Course::Over(Box::pin(answer(http, downstream, work, entry, &own, may_stay)).await));
        }
    };
    entry.cluster = Some(cluster.clone());
    cluster.counters.requests.inc();

    let mut timeout = route.timeout;
    if let Some(call) = &mut entry.call {
        let head = head_of_request(downstream, work);
        call.route(listener.methods(number), work.target(head), cluster.plan.policy.protocol);
        timeout = timeout.into_iter().chain(call.timeout).min();
    }
    let timeout_ms = timeout.map(crate::millis);
    let prepared = {
        let chosen = Chosen { worker, listener, http, number, route, cluster: &cluster, timeout_ms };
        prepare(&chosen, downstream, work, entry.call.as_ref(), head_bytes)?
    };
    work.mirror();
    if downstream.input.is_empty() {
        // A client that waits for its answer holds no buffer: many may wait for one slow endpoint.
        downstream.input = Buffer::none();
    }
    let deadline_ms = timeout_ms.map_or(u64::MAX, |timeout_ms| (entry.begun_us / 1000).saturating_add(timeout_ms));
    let Prepared { key, preferred, is_https } = prepared;
    let policy = &route.policy;
    let routed = Routed { worker, listener, http, policy, cluster, key, preferred, is_https, deadline_ms };
    let mut answered = attempt::until_answered(&routed, downstream, work, entry).await?;
    if is_tunnel(&answered, work) {
        let tunnel = Box::pin(open_tunnel(&routed, downstream, answered, work, entry)).await?;
        return Ok(Course::Tunnel(Box::new(tunnel)));
    }
    if let Some(call) = &mut entry.call {
        let reply = work.reply();
        if !call.take_head(&reply.head, head_of_response(&answered.upstream, &reply.bytes)) {
            return Err(Error::upstream(Reason::UpstreamNotGrpc));
        }
    }
    let may_stay = may_stay(http, downstream, slot.is_ending(worker));
    let mut passing = Passing::begin(&routed, downstream, &mut answered, work, entry, may_stay);
    let passed = poll_fn(|cx| passing.poll(cx, &routed, downstream, &mut answered, work)).await;
    let (endpoint, was_ejected) = (answered.lease.endpoint.clone(), answered.lease.was_ejected);
    let outcome = passed.map(|()| passing.finish(&routed, answered, work, entry));
    judge(&routed, &endpoint, work.reply(), entry, &outcome);
    if was_ejected
        && outcome.is_ok()
        && entry.status < 500
        && !entry.call.as_ref().is_some_and(Ongoing::is_endpoints_fault)
    {
        routed.cluster.readmit(&endpoint, clock::now_ms(), Proof::Served);
    }
    outcome.map(Course::Over)
}

/// Where the request goes: the number of its route, the route, and what that does with it.
///
/// # Errors
/// [`Reason::MemoryFull`], [`Reason::Misdirected`], [`Reason::AmbiguousPath`], [`Reason::NoRoute`], and those of [`policy::way`].
fn way<'r>(
    listener: &Rc<ListenerView>,
    http: &'r HttpListener,
    downstream: &Downstream,
    work: &mut Work,
    entry: &mut Entry,
) -> Result<(usize, &'r Route, Way), Error> {
    if is_memory_full() {
        return Err(Error::internal(Reason::MemoryFull));
    }
    let head = head_of_request(downstream, work);
    if let Some(secured) = &downstream.peer.secured
        && !is_for(secured, &work.request, head)
    {
        return Err(Error::internal(Reason::Misdirected));
    }
    work.normal_target = route::normal_target(work.request.path.get(head), &http.paths)?;
    let head = head_of_request(downstream, work);
    let target = work.target(head);
    let number = listener.plan.router.route(&work.request, head, target);
    let (number, route) =
        number.and_then(|number| Some((number, http.routes.get(number)?))).ok_or(Error::internal(Reason::NoRoute))?;
    entry.route = Some(number);
    let client = client(http, downstream);
    let asked = Asked { head: &work.request, buffer: head, target, paths: http.paths, client: &client };
    Ok((number, route, policy::way(listener, number, route, &asked, entry.begun_us)?))
}

/// Tells the cluster how the endpoint did.
fn judge(routed: &Routed<'_>, endpoint: &Endpoint, reply: &Reply, entry: &Entry, outcome: &Result<Next, Error>) {
    let judgement = match outcome {
        Ok(_) if entry.call.as_ref().is_some_and(Ongoing::is_endpoints_fault) => Outcome::Failure5xx,
        // A 5xx was judged when it came, and is no success now. Others nearly all are: the clock is not asked for them.
        Ok(_) if reply.head.status < 500 => {
            return routed.cluster.record(endpoint, reply.download.head_sent_us / 1000, Outcome::Success);
        }
        Err(error) if error.side == Side::Upstream => attempt::outcome(error),
        _ => return,
    };
    routed.cluster.record(endpoint, clock::now_ms(), judgement);
}

/// When what came over `stream` was there, in microseconds. A turn of a connection of HTTP/2 asks the clock before it reads, and each
/// exchange when it has sent something: what was read for many is not asked for once more each.
pub(crate) fn arrived_us(stream: &Stream) -> u64 {
    if stream.h2().is_some() { clock::last_us() } else { clock::now_us() }
}

/// What the spans of the request's head point into.
fn head_of_request<'h>(downstream: &'h Downstream, work: &'h Work) -> &'h [u8] {
    if downstream.stream.h2().is_some() { &work.request_bytes } else { downstream.input.filled() }
}

/// Likewise of the response's head.
pub(crate) fn head_of_response<'h>(upstream: &'h Upstream, bytes: &'h [u8]) -> &'h [u8] {
    if upstream.stream.h2().is_some() { bytes } else { upstream.input.filled() }
}

/// The endpoint has opened the tunnel that was asked for: by 101, or by any success over HTTP/2 (RFC 8441 section 4).
fn is_tunnel(answered: &Answered, work: &Work) -> bool {
    match work.status() {
        101 => true,
        200..=299 => work.request.upgrade.is_some() && answered.upstream.stream.h2().is_some(),
        _ => false,
    }
}

/// Whether the request may come over its connection. One that names no host can mean only the one that the connection was made for.
fn is_for(secured: &Secured, request: &RequestHead, buffer: &[u8]) -> bool {
    let authority = request.authority.get(buffer);
    authority.is_empty() || secured.serves(HostText::new(authority).as_str())
}

/// Whether the connection may carry another request, as far as this side is concerned.
fn may_stay(http: &HttpListener, downstream: &Downstream, is_ending: bool) -> bool {
    !is_ending && http.limits.requests_per_connection_max.is_none_or(|max| downstream.requests < max)
}

/// What is known of the client of the request that is in the input.
fn client<'c>(http: &'c HttpListener, downstream: &'c Downstream) -> Client<'c> {
    let peer = &*downstream.peer;
    Client {
        address: peer.who.client,
        ip_text: &peer.ip_text,
        local: peer.who.local,
        scheme: if peer.secured.is_some() { "https" } else { "http" },
        forwarded: http.forwarded,
        is_trusted: http.trusted_proxies.iter().any(|net| net.contains(&peer.who.client.ip())),
        trusted_proxies: &http.trusted_proxies,
        call: None,
    }
}

/// The route that a request takes, and the cluster that is to serve it.
struct Chosen<'r> {
    worker: &'r Worker,
    listener: &'r Rc<ListenerView>,
    http: &'r HttpListener,
    /// The route's place in the listener.
    number: usize,
    route: &'r Route,
    cluster: &'r Cluster,
    /// What is left of the request's time.
    timeout_ms: Option<u64>,
}

/// What the choice of an endpoint and the response need of a head that is gone.
struct Prepared {
    key: u64,
    preferred: Option<usize>,
    is_https: bool,
}

/// Writes the request as the endpoint gets it, and takes its head off the input.
fn prepare(
    chosen: &Chosen<'_>,
    downstream: &mut Downstream,
    work: &mut Work,
    call: Option<&Ongoing>,
    head_bytes: usize,
) -> Result<Prepared, Error> {
    let Chosen { worker, listener, http, number, route, cluster, timeout_ms } = chosen;
    let Work { request, request_bytes, normal_target, upgrade, upload, mirror, .. } = work;
    let client = Client { call: call.map(|call| call.outgoing(*timeout_ms)), ..client(http, downstream) };
    let from = Framing::on(&downstream.stream, request.body);
    let buffer = if let Framing::H2(_) = from { request_bytes } else { downstream.input.filled() };
    let received = request.path.get(buffer);
    let target = normal_target.as_deref().unwrap_or(received);
    let asked = Asked { head: request, buffer, target, paths: http.paths, client: &client };
    let prepared = Prepared {
        key: cluster.hash_key().map_or(0, |key| crate::hash::key(key, request, buffer, &client)),
        preferred: cluster.plan.sticky.as_ref().and_then(|sticky| sticky.endpoint(request, buffer)),
        is_https: cluster.plan.sticky.is_some() && policy::scheme(&asked) == Scheme::Https,
    };
    if let (Body::Length(length), Some(max)) = (request.body, http.limits.body_bytes_max)
        && length > max
    {
        return Err(Error::downstream(Reason::BodyTooLarge));
    }
    let RoutePolicy { rewrite, request_headers, mirrors, .. } = &route.policy;
    let rewritten = policy::rewrite::target(rewrite.path.as_ref(), &route.path, &asked);
    let target = rewritten.as_deref().unwrap_or(policy::passed_on(&http.paths, received, target));
    let edits = RequestEdits { target: Some(target), host: rewrite.host.as_deref(), headers: request_headers };
    let translation = call.and_then(Ongoing::request_translation);
    // What a call of gRPC-Web is translated to is not what would be copied.
    if let Some(dealer) = listener.dealer(*number).filter(|_| translation.is_none()) {
        let means = Means { timers: &worker.timers, in_flight: &worker.mirrors };
        *mirror = Copies::begin(listener, mirrors, dealer, &asked, &edits, downstream.peer.who, &means);
    }
    if translation.is_some() && request.body != Body::None {
        request.body = Body::Chunked;
    }
    let protocol = cluster.plan.policy.protocol;
    *upgrade = Upgrade::of(request, buffer, protocol == ClusterProtocol::H2);
    if upgrade.is_none() {
        request.upgrade = None;
    }
    let to = match (protocol, request.upgrade) {
        (ClusterProtocol::H1, _) => Framing::H1(request.body),
        (ClusterProtocol::H2, Some(_)) => Framing::Tunnel,
        (ClusterProtocol::H2, None) => Framing::H2(request.body),
    };
    let scheme = cluster.scheme();
    let out = upload.start(from, to, http.limits.body_bytes_max);
    headers::write_request(out, request, buffer, &client, scheme, &edits);
    if translation.is_some() {
        upload.is_of_call(translation);
    }
    if mirror.is_some() {
        upload.keep_copy(MIRROR_BODY_BYTES_MAX);
    }
    downstream.input.consume(head_bytes);
    Ok(prepared)
}

/// A request that knows where it goes.
pub(crate) struct Routed<'r> {
    pub(crate) worker: &'r Worker,
    pub(crate) listener: &'r ListenerView,
    pub(crate) http: &'r HttpListener,
    pub(crate) policy: &'r RoutePolicy,
    pub(crate) cluster: Rc<Cluster>,
    /// For consistent hashing.
    pub(crate) key: u64,
    /// The endpoint that the client comes back to.
    pub(crate) preferred: Option<usize>,
    /// The client asked within TLS, here or at a proxy whose word is taken. Known where the cluster is sticky.
    is_https: bool,
    /// When the route's timeout is over, in milliseconds; `u64::MAX`: never.
    pub(crate) deadline_ms: u64,
}

impl Routed<'_> {
    /// The cookie for a client that another endpoint has served than it came back to, or that came for the first time.
    pub(crate) fn cookie(&self, endpoint: &Endpoint) -> Option<Vec<u8>> {
        let sticky = self.cluster.plan.sticky.as_ref().filter(|_| self.preferred != Some(endpoint.index))?;
        sticky.set(endpoint.index, self.is_https)
    }
}

/// An endpoint that has begun to answer.
pub(crate) struct Answered {
    pub(crate) lease: Lease,
    pub(crate) upstream: Upstream,
    /// The response's head is that much of its input.
    pub(crate) head_bytes: usize,
    /// When the response's head was whole.
    pub(crate) at_us: u64,
    /// The request got through to its end; false: the endpoint answered before, or stopped listening.
    pub(crate) upload_failed: bool,
}

/// Tells the client that its tunnel is open.
async fn open_tunnel(
    routed: &Routed<'_>,
    downstream: &mut Downstream,
    answered: Answered,
    work: &mut Work,
    entry: &mut Entry,
) -> Result<Tunnel, Error> {
    let http = routed.http;
    let Answered { lease, mut upstream, head_bytes, at_us, .. } = answered;
    entry.status = if downstream.stream.h2().is_some() { 200 } else { 101 };
    let cookie = routed.cookie(&lease.endpoint);
    let edits = ResponseEdits { headers: &routed.policy.response_headers, cookie: cookie.as_deref() };
    let stall_ms = crate::millis(http.limits.stall_timeout);
    downstream.timer.set(clock::now_ms().saturating_add(stall_ms));
    let opened = respond::interim(&mut downstream.stream, &upstream, work, &edits);
    let written = downstream.timer.guard(opened).await;
    let written = written.map_err(|_| Error::downstream(Reason::SlowRead))?.map_err(Error::client_io)?;
    upstream.input.consume(head_bytes);
    entry.bytes_out += written as u64;
    entry.finish(work.upload.head_sent_us, at_us, clock::now_us());
    Ok(Tunnel { _lease: lease, upstream, idle_ms: crate::millis(http.limits.tunnel_idle_timeout) })
}

/// Bytes both ways, beginning with those that came with the heads.
async fn relay_tunnel(tunnel: Tunnel, slot: &Slot, downstream: &mut Downstream, entry: &mut Entry) -> Next {
    let Tunnel { mut upstream, idle_ms, .. } = tunnel;
    let mut moved = Moved::default();
    let from_client = std::mem::replace(&mut downstream.input, Buffer::none());
    let ends = (
        End { stream: &mut downstream.stream, input: from_client },
        End { stream: &mut upstream.stream, input: upstream.input },
    );
    let outcome = relay::run(ends.0, ends.1, &downstream.timer, idle_ms, &mut moved, || ()).await;
    entry.bytes_in += moved.upstream;
    entry.bytes_out += moved.downstream;
    if let Err(error) = outcome {
        // The response was complete with its head: what ends a tunnel is logged, not answered.
        entry.reason = Some(error.reason);
        slot.view().count(error.reason);
        upstream.stream.reset_on_close();
        return Next::Reset;
    }
    Next::Close
}

/// Tells the client, where there is something to tell and it can still be told.
async fn fail(
    listener: &ListenerView,
    http: &HttpListener,
    downstream: &mut Downstream,
    work: &mut Work,
    entry: &mut Entry,
    error: &Error,
    may_stay: bool,
) -> Next {
    // A request that never got a head was still one: someone sent bytes, and gets an answer.
    entry.begin(clock::now_us());
    entry.reason = Some(error.reason);
    listener.count(error.reason);
    tracing::debug!(listener = listener.plan.policy.name, client = %downstream.peer.who.client, %error, "request failed");
    let status = respond::status(error);
    let call = entry.call.as_mut().map(|call| call.fail(error.reason, status, work.status()));
    downstream.timer.set(clock::now_ms().saturating_add(crate::millis(http.limits.stall_timeout)));
    if let (Some(call), true) = (&call, work.sent() > 0 && error.side != Side::Downstream) {
        return cut_short(downstream, work, call).await;
    }
    if error.reason == Reason::NotHttp {
        // Nothing that was said is cut off: it is only not answered.
        return Next::Linger;
    }
    let Some(status) = status.filter(|_| work.sent() == 0) else { return Next::Reset };
    let may_stay = may_stay && error.side != Side::Downstream;
    if let Some(call) = call {
        entry.status = 200;
        let keep_alive = may_stay && work.upload.is_read() && work.request.keep_alive;
        let Work { request, scratch, .. } = work;
        let sent = respond::send_call(&mut downstream.stream, scratch, &call, request, keep_alive);
        return answered(entry, downstream.timer.guard(sent).await, keep_alive);
    }
    let retry_after = error.retry_after_s.map(|seconds| seconds.to_string());
    let field = retry_after.as_ref().map(|seconds| ("retry-after", seconds.as_bytes()));
    let own = Own { status, word: respond::word(error.reason), field };
    answer(http, downstream, work, entry, &own, may_stay).await
}

/// Sends a response that is made here.
async fn answer(
    http: &HttpListener,
    downstream: &mut Downstream,
    work: &mut Work,
    entry: &mut Entry,
    own: &Own<'_>,
    may_stay: bool,
) -> Next {
    entry.status = own.status;
    let keep_alive = may_stay && work.upload.is_read() && work.request.keep_alive;
    let Work { request, scratch, .. } = work;
    let to = headers::Downstream { method: request.method, version: request.version, keep_alive, web: None };
    downstream.timer.set(clock::now_ms().saturating_add(crate::millis(http.limits.stall_timeout)));
    let sent = respond::send(&mut downstream.stream, scratch, own, &to);
    answered(entry, downstream.timer.guard(sent).await, keep_alive)
}

/// What comes after a response of our own, or after the attempt to send it.
fn answered<E>(entry: &mut Entry, sent: Result<std::io::Result<usize>, E>, keep_alive: bool) -> Next {
    match sent {
        Ok(Ok(sent)) => entry.bytes_out += sent as u64,
        _ => return Next::Reset,
    }
    if keep_alive { Next::KeepAlive } else { Next::Linger }
}

/// Ends the response of a call that has broken off within its body as a call ends: its client reads the messages that came, and then why
/// there are no more.
async fn cut_short(downstream: &mut Downstream, work: &mut Work, answer: &Answer) -> Next {
    let Reply { download, .. } = work.reply();
    if !download.cut_short(answer) {
        return Next::Reset;
    }
    let stream = &mut downstream.stream;
    match downstream.timer.guard(poll_fn(|cx| download.poll_flush(cx, stream))).await {
        Ok(Ok(())) => Next::Linger,
        _ => Next::Reset,
    }
}

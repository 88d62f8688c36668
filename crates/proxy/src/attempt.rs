//! The upstream half of an exchange: choose, connect, send, wait for the answer to begin; and once more elsewhere where that is safe.

use std::future::poll_fn;
use std::task::{Context, Poll};

use balance::{Outcome, Proof};
use model::{ClusterProtocol, ListenerLimits};
use net::clock;
use net::socket::Progress;
use telemetry::Reason;
use wire::message::{Body, Version};

use crate::body::Failure;
use crate::cluster::{Cluster, Lease};
use crate::connect::{self, Upstream, Wanted};
use crate::error::{Error, Side};
use crate::exchange::{self, Answered, Downstream, Routed};
use crate::grpc;
use crate::h2::{Cut, Handle};
use crate::log::Entry;
use crate::pace::Pace;
use crate::policy::headers::ResponseEdits;
use crate::policy::retry::{Setback, Tries};
use crate::receive::{self, Watch};
use crate::respond;
use crate::stream::Stream;
use crate::tls;
use crate::work::{Reply, Rooms, Work};

/// Interim responses passed on for one request. A handful has uses; an endless row of them would hold a request for ever.
const INTERIM_MAX: usize = 16;

/// How much longer than two round trips it may take until this worker hears of a reset that crossed its request, in microseconds.
const CROSSED_US_MAX: u64 = 1_000;

/// Sends the request until an endpoint has begun its final answer, whose head is then in `work.reply`.
///
/// Without a policy of the route's own a request goes to another endpoint where the first cannot have acted on it (no connection was made),
/// or where acting twice is the same as acting once (the method is idempotent) and not a byte of an answer came. An endpoint that closes a
/// connection from the pool just then has not failed: the request is sent once more on a fresh one, where that is safe.
pub(crate) async fn until_answered(
    routed: &Routed<'_>,
    downstream: &mut Downstream,
    work: &mut Work,
    entry: &mut Entry,
) -> Result<Answered, Error> {
    let mut tries = Tries::default();
    let mut now_ms = entry.begun_us / 1000;
    routed.cluster.budget.borrow_mut().on_request(now_ms);
    loop {
        if tries.wait_ms > 0 {
            tries.back_off(downstream).await?;
            now_ms = clock::now_ms();
        }
        // Nothing is kept over a wait that is not needed behind it: hundreds of requests wait at once, and what each keeps is in none of the
        // nearer caches when its turn comes.
        let mut attempt = match tries.lease(routed, now_ms, downstream).await {
            Ok(lease) => Attempt::new(routed, lease, entry.call.is_some()),
            // That there is no other endpoint is not what went wrong.
            Err(error) => return Err(tries.failure().unwrap_or(error)),
        };
        attempt.begin(routed, work, entry);
        let error = match attempt.run(downstream, work, entry, tries.fresh_since_us).await {
            Ok((upstream, head_bytes, upload_failed)) => {
                let at_us = exchange::arrived_us(&upstream.stream);
                attempt.judge_head(work, entry, at_us);
                let setback = attempt.answer(&upstream, work.reply(), entry);
                if !tries.again(routed, setback, &attempt, work, at_us / 1000) {
                    return Ok(Answered { lease: attempt.lease, upstream, head_bytes, at_us, upload_failed });
                }
                if let Setback::Grpc(status) = setback
                    && status.is_endpoints_fault()
                {
                    routed.cluster.record(&attempt.lease.endpoint, at_us / 1000, Outcome::Failure5xx);
                }
                now_ms = at_us / 1000;
                tries.failed(None);
                continue;
            }
            Err(error) => routed.name(error),
        };
        let setback = attempt.setback(&error);
        now_ms = clock::now_ms();
        if attempt.was_stale() && tries.again_fresh(routed, setback, work, entry.begun_us) {
            continue;
        }
        attempt.judge_failure(&error);
        if error.side != Side::Upstream || error.reason == Reason::RequestTimeout {
            return Err(error);
        }
        if attempt.was_reused && attempt.is_connection_over {
            tries.fresh_since_us = Some(entry.begun_us);
        }
        if tries.again(routed, setback, &attempt, work, now_ms) {
            tries.failed(Some(error));
        } else {
            return Err(error);
        }
    }
}

impl Routed<'_> {
    /// A try that ran out of its own time, before the route's is over, says so.
    fn name(&self, error: Error) -> Error {
        let is_of_try = error.reason == Reason::RequestTimeout && clock::now_ms() < self.deadline_ms;
        if is_of_try { Error::upstream(Reason::PerTryTimeout) } else { error }
    }
}

/// What is known of a request whose connection has ended before a byte of its response came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The endpoint cannot have read anything of it.
    Unseen,
    /// The endpoint closed the connection at about the time that the request was sent. It has probably not read the request, which is no proof.
    Crossed,
    /// The endpoint refused the stream and did not act on the request. The connection goes on, so it was not stale.
    Refused,
    /// The endpoint may have read it, and failed on it.
    Unknown,
}

/// What has been sent of a request over a connection that has ended.
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    /// When the head left, in microseconds; 0: it has not.
    pub(crate) head_us: u64,
    /// The request stopped getting through.
    pub(crate) failed: bool,
    /// What had been acknowledged when the request was about to be sent, where that was asked.
    pub(crate) before: Option<Progress>,
}

/// One try at one endpoint.
pub(crate) struct Attempt<'a> {
    limits: &'a ListenerLimits,
    cluster: &'a Cluster,
    rooms: &'a Rooms,
    /// The route's, or that of this try.
    deadline_ms: u64,
    pub(crate) lease: Lease,
    /// The connection had served another request before.
    pub(crate) was_reused: bool,
    /// There was a connection: the endpoint may have seen the request.
    was_sent: bool,
    /// Something of an answer came, be it half a head or a 1xx.
    was_heard: bool,
    /// How the connection ended, where it did.
    ending: Ending,
    /// The connection takes no more requests. It may do so where a stream alone has failed.
    is_connection_over: bool,
    /// The client was told to go on and send its body.
    was_continued: bool,
    /// The client may send nothing for a while: between the messages of a call.
    may_pause: bool,
}

impl<'a> Attempt<'a> {
    fn new(routed: &'a Routed<'_>, lease: Lease, is_call: bool) -> Self {
        let per_try = routed.policy.retry.per_try_timeout;
        let try_ends_ms = per_try.map_or(u64::MAX, |timeout| lease.at_ms.saturating_add(crate::millis(timeout)));
        Self {
            limits: &routed.http.limits,
            cluster: &routed.cluster,
            rooms: &routed.worker.rooms,
            deadline_ms: routed.deadline_ms.min(try_ends_ms),
            lease,
            was_reused: false,
            was_sent: false,
            was_heard: false,
            ending: Ending::Unknown,
            is_connection_over: false,
            was_continued: false,
            // Whoever claims to be a call where there can be none gains nothing by it.
            may_pause: is_call && routed.cluster.plan.policy.protocol == ClusterProtocol::H2,
        }
    }

    /// Counts it, and tells a call how much time is left to it.
    fn begin(&self, routed: &Routed<'_>, work: &mut Work, entry: &mut Entry) {
        let Lease { endpoint, at_ms, .. } = &self.lease;
        endpoint.counters.requests.inc();
        entry.attempts += 1;
        if entry.call.is_some() && *at_ms > entry.begun_us / 1000 && routed.deadline_ms < u64::MAX {
            work.upload.retime(routed.deadline_ms.saturating_sub(*at_ms));
        }
        entry.endpoint = Some(endpoint.clone());
    }

    /// Gives the connection, the length of the response's head, and whether the request stopped getting through.
    async fn run(
        &mut self,
        downstream: &mut Downstream,
        work: &mut Work,
        entry: &mut Entry,
        fresh_since_us: Option<u64>,
    ) -> Result<(Upstream, usize, bool), Error> {
        let mut upstream = self.checkout(downstream, entry, fresh_since_us).await?;
        // Asked only where it can matter: whether an idempotent request was seen need not be proved, and a new connection is not stale.
        let is_doubtful = upstream.is_reused && !work.request.method.is_idempotent();
        let before = if is_doubtful { upstream.stream.tcp().and_then(net::socket::progress) } else { None };
        let mut wait = Wait::new(work.upload.received);
        while wait.interims <= INTERIM_MAX {
            let head_bytes = match self.response_head(&mut wait, downstream, &mut upstream, work).await {
                Ok(head_bytes) => head_bytes,
                Err(error) => {
                    self.was_heard |= !upstream.input.is_empty();
                    self.is_connection_over = upstream.stream.h2().is_none_or(Handle::is_connection_ending);
                    if upstream.is_reused && error.reason == Reason::UpstreamBadHead {
                        // Perhaps the body of a response before it that must not have one.
                        self.lease.endpoint.pool.distrust();
                    }
                    if !self.was_heard {
                        let Work { upload, .. } = work;
                        let (bytes, head_us, failed) = (upload.sent, upload.head_sent_us, wait.upload_failed);
                        self.ending = ending(&error, &upstream.stream, &Sent { bytes, head_us, failed, before });
                    }
                    return Err(error);
                }
            };
            match work.status() {
                // HTTP/2 has none: `wire::h2` refuses it.
                101 if is_agreed(&upstream, work) => return Ok((upstream, head_bytes, wait.upload_failed)),
                // Nobody asked for it: what follows is not HTTP, and not ours to pass on (RFC 9110 section 7.8).
                101 => return Err(Error::upstream(Reason::UpstreamBadHead)),
                100..=199 => {
                    self.was_heard = true;
                    self.was_continued |= work.status() == 100;
                    Box::pin(self.pass_interim(downstream, &mut upstream, work, head_bytes)).await?;
                    wait = wait.behind_interim(work.upload.received);
                }
                _ => return Ok((upstream, head_bytes, wait.upload_failed)),
            }
        }
        Err(Error::upstream(Reason::UpstreamBadHead))
    }

    async fn checkout(
        &mut self,
        downstream: &Downstream,
        entry: &mut Entry,
        fresh_since_us: Option<u64>,
    ) -> Result<Upstream, Error> {
        let wanted = Wanted {
            who: &downstream.peer.who,
            client: Some(&downstream.stream),
            begun_us: entry.begun_us,
            fresh_since_us,
            now_ms: self.lease.at_ms,
            deadline_ms: self.deadline_ms,
        };
        let checked_out = connect::checkout(self.cluster, &self.lease.endpoint, &wanted, &downstream.timer).await;
        let upstream = checked_out?;
        self.was_reused = upstream.is_reused;
        self.was_sent = true;
        if self.lease.was_ejected && !upstream.is_reused {
            self.cluster.readmit(&self.lease.endpoint, clock::now_ms(), Proof::Connected);
        }
        // What a new connection took is the network's time and the endpoint's, not ours.
        entry.connected_us = if upstream.is_reused && entry.attempts == 1 { entry.begun_us } else { clock::now_us() };
        Ok(upstream)
    }

    /// Sends what there is of the request while it waits for the head of a response.
    fn response_head<'w>(
        &'w self,
        wait: &'w mut Wait,
        downstream: &'w mut Downstream,
        upstream: &'w mut Upstream,
        work: &'w mut Work,
    ) -> impl Future<Output = Result<usize, Error>> {
        poll_fn(move |cx| self.poll_response_head(cx, wait, downstream, upstream, work))
    }

    fn poll_response_head(
        &self,
        cx: &mut Context<'_>,
        wait: &mut Wait,
        downstream: &mut Downstream,
        upstream: &mut Upstream,
        work: &mut Work,
    ) -> Poll<Result<usize, Error>> {
        let Downstream { stream, input, timer, .. } = downstream;
        let Work { request, upload, reply: answer, .. } = work;
        if !wait.upload_failed && !upload.is_done() {
            match upload.poll(cx, stream, input, &mut upstream.stream) {
                // The endpoint stopped listening; it may still have said why.
                Poll::Ready(Err(Failure::Write(_))) => wait.upload_failed = true,
                Poll::Ready(Err(failure)) => return Poll::Ready(Err(request_error(failure))),
                _ => {}
            }
        }
        // There already, where a 1xx or another try has been answered.
        let mut reply = answer.take().unwrap_or_else(|| self.rooms.reply());
        let Reply { head, bytes, .. } = &mut *reply;
        let polled = match upstream.stream.h2() {
            Some(handle) => handle.poll_response(cx, head, bytes).map_ok(|()| 0),
            None => {
                let Upstream { stream, input, .. } = &mut *upstream;
                receive::poll_response_head(cx, stream, input, &mut wait.scanned, request.method, head)
            }
        };
        if let Poll::Ready(Ok(_)) = polled {
            *answer = Some(reply);
        } else {
            self.rooms.give_back_reply(reply);
        }
        if polled.is_ready() {
            return polled;
        }
        wait.watch.check(cx, stream, wait.upload_failed || upload.is_done())?;
        // A client that asked first sends nothing before it is told to: until then it is the endpoint that is waited for.
        let is_held = request.expect_continue && !self.was_continued && upload.received == 0;
        let waits_for_client = !is_held && !wait.upload_failed && !upload.is_read() && upload.waits_for_sender(input);
        let progress = upload.sent + wait.scanned as u64;
        if progress != wait.seen {
            wait.seen = progress;
            // A head without a body has just been sent, nearly always: no need to ask the clock again.
            let is_just_sent = wait.interims == 0 && wait.scanned == 0 && request.body == Body::None;
            let sent_ms = if is_just_sent { upload.head_sent_us / 1000 } else { 0 };
            let now_ms = if sent_ms == 0 { clock::now_ms() } else { sent_ms };
            let rate = self.limits.min_rate.filter(|_| !self.may_pause);
            let response_timeout = self.cluster.plan.policy.response_timeout;
            let moved = upload.received;
            let wait_ms = wait.pace.wait_ms(self.limits, rate, response_timeout, now_ms, moved, waits_for_client);
            timer.set(now_ms.saturating_add(wait_ms).min(self.deadline_ms));
        }
        timer.poll_elapsed(cx).map(|()| {
            Err(match waits_for_client {
                false if clock::now_ms() >= self.deadline_ms => Error::upstream(Reason::RequestTimeout),
                true if wait.pace.is_over(clock::now_ms()) => Error::downstream(Reason::BodyTooSlow),
                true => Error::downstream(Reason::BodyTimeout),
                false => Error::upstream(Reason::ResponseTimeout),
            })
        })
    }

    /// Passes a 1xx on to a client that knows them (RFC 9110 section 15.2).
    async fn pass_interim(
        &self,
        downstream: &mut Downstream,
        upstream: &mut Upstream,
        work: &mut Work,
        head_bytes: usize,
    ) -> Result<(), Error> {
        if work.request.version == Version::Http10 {
            upstream.input.consume(head_bytes);
            return Ok(());
        }
        downstream.timer.set(clock::now_ms().saturating_add(crate::millis(self.limits.stall_timeout)));
        let passed_on = respond::interim(&mut downstream.stream, upstream, work, &ResponseEdits::NONE);
        let written = downstream.timer.guard(passed_on).await;
        upstream.input.consume(head_bytes);
        written.map_err(|_| Error::downstream(Reason::SlowRead))?.map_err(Error::client_io).map(drop)
    }

    /// Tells the cluster what the head of an answer says. That all is well is said when the answer is complete.
    fn judge_head(&self, work: &Work, entry: &Entry, at_us: u64) {
        match work.status() {
            101 => self.cluster.record(&self.lease.endpoint, at_us / 1000, Outcome::Success),
            500.. => self.cluster.record(&self.lease.endpoint, at_us / 1000, Outcome::Failure5xx),
            _ => {}
        }
        if self.cluster.plan.policy.algorithm == model::Algorithm::PeakEwma {
            let latency_us = at_us.saturating_sub(work.upload.head_sent_us.max(entry.connected_us));
            self.lease.endpoint.state.observe_latency(at_us / 1000, latency_us);
        }
    }

    /// What the head of a response means for another try. Once a 1xx was passed on, the client has heard of this one.
    fn answer(&self, upstream: &Upstream, reply: &Reply, entry: &mut Entry) -> Setback {
        if self.was_heard {
            return Setback::Other;
        }
        if let Some(call) = &mut entry.call {
            let status = match reply.head.body {
                Body::None => {
                    call.take_head(&reply.head, exchange::head_of_response(upstream, &reply.bytes));
                    call.status
                }
                // Some services send a head in any case, and the trailers right behind it. Nobody waits for them to come: a head that stands
                // alone is the client's at once.
                _ => upstream.stream.h2().and_then(Handle::early_status),
            };
            if let Some(status) = status.filter(|status| *status != grpc::Status::Ok) {
                return Setback::Grpc(status);
            }
        }
        Setback::Status(reply.head.status)
    }

    /// How it went wrong, as far as another try depends on it.
    fn setback(&self, error: &Error) -> Setback {
        match error.reason {
            _ if !self.was_sent && connect::is_unreachable(error) => Setback::Unreachable,
            _ if !self.was_sent => Setback::Connect,
            _ if self.was_heard => Setback::Other,
            Reason::UpstreamRefused => Setback::Unseen,
            Reason::UpstreamReset | Reason::UpstreamEof if self.ending == Ending::Unseen => Setback::Unseen,
            Reason::UpstreamReset | Reason::UpstreamEof | Reason::UpstreamPingTimeout => Setback::Reset,
            Reason::ResponseTimeout | Reason::PerTryTimeout => Setback::Timeout,
            _ => Setback::Other,
        }
    }

    /// The endpoint closed a connection from the pool just then, which says nothing about the endpoint.
    fn was_stale(&self) -> bool {
        self.was_reused && matches!(self.ending, Ending::Unseen | Ending::Crossed)
    }

    fn judge_failure(&self, error: &Error) {
        if error.side != Side::Upstream {
            return;
        }
        self.cluster.record(&self.lease.endpoint, clock::now_ms(), outcome(error));
        if let Some(source) = error.source.as_ref().filter(|source| self.was_sent && tls::reason(source).is_some()) {
            self.lease.endpoint.state.note_failure(&format!("TLS: {}", tls::told(source)));
        }
        tracing::debug!(
            cluster = self.cluster.plan.policy.name,
            endpoint = %self.lease.endpoint.state.address(),
            %error,
            "endpoint failed"
        );
    }
}

/// What the end of a connection, on which nothing of a response came, tells about the request.
///
/// Only a FIN can prove that the request was not seen: it acknowledges all that the endpoint's kernel had received. This holds although the kernel
/// goes on receiving behind a FIN, because an endpoint that has ended its side can answer nothing any more, and must not process what comes
/// (RFC 9112 section 9.6). nginx 1.22, HAProxy 2.6 and Go 1.26 close an idle connection with close(2), after which their kernel takes
/// nothing.
pub(crate) fn ending(error: &Error, stream: &Stream, sent: &Sent) -> Ending {
    match error.reason {
        Reason::UpstreamRefused if stream.h2().is_some_and(|handle| !handle.is_connection_ending()) => {
            return Ending::Refused;
        }
        Reason::UpstreamRefused => return Ending::Unseen,
        Reason::UpstreamEof | Reason::UpstreamReset => {}
        _ => return Ending::Unknown,
    }
    let sent_us = sent.head_us;
    let is_soon = |round_trip_us: u64| sent_us > 0 && is_soon(clock::now_us().saturating_sub(sent_us), round_trip_us);
    let source = error.source.as_ref();
    let Some(tcp) = stream.tcp() else {
        // A stream that was reset was seen. How long a round trip takes on a shared connection is not known here.
        let is_closed = matches!(source.and_then(Cut::within), Some(Cut::Gone | Cut::Lost));
        return if is_closed && is_soon(0) { Ending::Crossed } else { Ending::Unknown };
    };
    if sent.bytes == 0 {
        return Ending::Unseen;
    }
    let Some(progress) = net::socket::progress(tcp) else { return Ending::Unknown };
    // Within TLS the end without a close_notify is an error. A failed write takes the error of an RST with it, and the read behind it finds the
    // end of the stream as after a FIN.
    let is_end = error.reason == Reason::UpstreamEof
        || source.is_some_and(|source| source.kind() == std::io::ErrorKind::UnexpectedEof);
    let is_fin = is_end && !sent.failed;
    if is_fin && sent.before.is_some_and(|before| before.acked == progress.acked) {
        Ending::Unseen
    } else if progress.has_unacked && (is_fin || is_soon(progress.round_trip_us)) {
        Ending::Crossed
    } else {
        Ending::Unknown
    }
}

/// Whether an endpoint that reset a connection so long after a request was sent may have done so because the connection was gone when the
/// request came: that takes one round trip. An endpoint that fails on a request takes longer, where it is not very near and very fast.
fn is_soon(elapsed_us: u64, round_trip_us: u64) -> bool {
    elapsed_us <= round_trip_us.saturating_mul(2).saturating_add(CROSSED_US_MAX)
}

/// A 101 switches to what the client asked for.
fn is_agreed(upstream: &Upstream, work: &Work) -> bool {
    let (Some(upgrade), Some(reply)) = (&work.upgrade, &work.reply) else { return false };
    upgrade.is_agreed(&reply.head, exchange::head_of_response(upstream, &reply.bytes))
}

/// What is known between one look for a response's head and the next.
struct Wait {
    /// Bytes of it, over HTTP/1, in which its end is not.
    scanned: usize,
    /// What had been sent and scanned at the last look.
    seen: u64,
    pace: Pace,
    interims: usize,
    watch: Watch,
    /// The request stopped getting through.
    upload_failed: bool,
}

impl Wait {
    /// `received`: bytes of the request's body that came before.
    fn new(received: u64) -> Self {
        let (watch, pace) = (Watch::default(), Pace::new(received));
        Self { scanned: 0, seen: u64::MAX, pace, interims: 0, watch, upload_failed: false }
    }

    /// The next one, behind an interim response.
    fn behind_interim(self, received: u64) -> Self {
        Self { interims: self.interims + 1, upload_failed: self.upload_failed, ..Self::new(received) }
    }
}

/// What a failure of an endpoint counts as.
pub(crate) fn outcome(error: &Error) -> Outcome {
    match error.reason {
        Reason::ConnectRefused
        | Reason::ConnectTimeout
        | Reason::ConnectFailed
        | Reason::UpstreamTls
        | Reason::UpstreamTlsExpired
        | Reason::UpstreamTlsIssuer
        | Reason::UpstreamTlsName
        | Reason::UpstreamTlsCertificate
        | Reason::UpstreamTlsAlert
        | Reason::UpstreamH2 => Outcome::ConnectFailure,
        Reason::ResponseTimeout | Reason::RequestTimeout | Reason::PerTryTimeout => Outcome::Timeout,
        _ => Outcome::Reset,
    }
}

fn request_error(failure: Failure) -> Error {
    match failure {
        Failure::Read(error) => Error::client_io(error),
        Failure::Truncated => Error::downstream(Reason::ClientEof),
        Failure::Framing => Error::downstream(Reason::BadFraming),
        Failure::TooLarge => Error::downstream(Reason::BodyTooLarge),
        Failure::Write(error) => Error::endpoint_io(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_is_soon_within_about_one_round_trip() {
        let check = |elapsed_us, round_trip_us, expect| {
            assert_eq!(is_soon(elapsed_us, round_trip_us), expect, "{elapsed_us} us, round trip {round_trip_us} us");
        };
        check(0, 0, true);
        check(CROSSED_US_MAX, 0, true);
        check(CROSSED_US_MAX + 1, 0, false);
        check(30_000_000, 10, false);
        check(60_000, 50_000, true);
        check(200_000, 50_000, false);
        check(u64::MAX, u64::MAX, true);
    }
}

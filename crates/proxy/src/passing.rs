//! The downstream half of an exchange: the response, relayed from its head to its last byte, beside what is left of the request.

use std::task::{Context, Poll};

use net::clock;
use telemetry::Reason;
use wire::message::{Body, Method, ResponseHead};

use crate::body::{Failure, Framing};
use crate::cluster::{Cluster, Lease};
use crate::connect::Upstream;
use crate::error::Error;
use crate::exchange::{Answered, Downstream, Next, Routed, head_of_response};
use crate::grpc::Ongoing;
use crate::headers;
use crate::log::Entry;
use crate::pace::Pace;
use crate::policy::headers::ResponseEdits;
use crate::receive::Watch;
use crate::work::{Reply, Work};

/// A response that is relayed, and what is left of its request.
pub(crate) struct Passing {
    may_stay: bool,
    /// When the response is complete, the rest of the request is not waited for.
    ends_with_response: bool,
    /// Bytes moved until the last look, and whether the endpoint was waited for; `None`: there was none.
    seen: Option<(u64, bool)>,
    watch: Watch,
    pace: Pace,
}

impl Passing {
    /// Writes the response's head. Its body follows with [`Passing::poll`].
    pub(crate) fn begin(
        routed: &Routed<'_>,
        downstream: &Downstream,
        answered: &mut Answered,
        work: &mut Work,
        entry: &mut Entry,
        may_stay: bool,
    ) -> Self {
        // An endpoint that refuses a body that is still coming ends the connection: nobody will take the rest.
        let is_early_refusal = work.status() >= 300 && (answered.upload_failed || !work.upload.is_done());
        let cookie = routed.cookie(&answered.lease.endpoint);
        let edits = ResponseEdits { headers: &routed.policy.response_headers, cookie: cookie.as_deref() };
        let may_stay = may_stay && !is_early_refusal;
        let may_stay = begin_response(downstream, &answered.upstream, work, entry.call.as_ref(), &edits, may_stay);
        answered.upstream.input.consume(answered.head_bytes);
        entry.status = work.status();
        // A call is over with its status, whatever its client still has to say.
        let ends_with_response = is_early_refusal || entry.call.is_some();
        let pace = Pace::new(work.upload.received);
        Self { may_stay, ends_with_response, seen: None, watch: Watch::default(), pace }
    }

    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        routed: &Routed<'_>,
        downstream: &mut Downstream,
        answered: &mut Answered,
        work: &mut Work,
    ) -> Poll<Result<(), Error>> {
        let Answered { upstream, upload_failed, .. } = answered;
        let Work { upload, reply, .. } = work;
        let download = &mut reply.get_or_insert_default().download;
        let Downstream { stream, input, timer, .. } = downstream;
        let is_overdue = timer.is_elapsed();
        if !*upload_failed && !upload.is_done() {
            // A request that fails now does not take the response with it: the endpoint may have had enough of it.
            if let Poll::Ready(Err(_)) = upload.poll(cx, stream, input, &mut upstream.stream) {
                *upload_failed = true;
            }
        }
        if !download.is_done() {
            let polled = download.poll(cx, &mut upstream.stream, &mut upstream.input, stream);
            if let Poll::Ready(Err(failure)) = polled {
                return Poll::Ready(Err(response_error(failure)));
            }
        }
        // An endpoint may answer well before it has heard all, and go on listening.
        if download.is_done() && (*upload_failed || self.ends_with_response || upload.is_done()) {
            return Poll::Ready(Ok(()));
        }
        self.watch.check(cx, stream, *upload_failed || upload.is_done())?;
        // Whom it waits for may change without progress: bytes have come, and the client does not take them.
        let waits_for_endpoint = !download.is_done() && download.waits_for_sender(&upstream.input);
        let progress = Some((upload.received + download.received + download.sent, waits_for_endpoint));
        if progress != self.seen {
            if self.seen.is_some() && !self.pace.may_move(is_overdue) {
                return Poll::Ready(Err(overdue(routed.deadline_ms, waits_for_endpoint, &self.pace)));
            }
            self.seen = progress;
            let now_ms = clock::now_ms();
            let (limits, moved) = (&routed.http.limits, upload.received + download.sent);
            let response_timeout = routed.cluster.plan.policy.response_timeout;
            let wait_ms =
                self.pace.wait_ms(limits, limits.min_rate, response_timeout, now_ms, moved, !waits_for_endpoint);
            timer.set(now_ms.saturating_add(wait_ms).min(routed.deadline_ms));
        }
        timer.poll_elapsed(cx).map(|()| {
            // If the response is complete, the rest of the request is not waited for any longer.
            *upload_failed |= download.is_done();
            let waits_for_endpoint = download.waits_for_sender(&upstream.input);
            if download.is_done() { Ok(()) } else { Err(overdue(routed.deadline_ms, waits_for_endpoint, &self.pace)) }
        })
    }

    /// The response is complete: what becomes of both connections.
    pub(crate) fn finish(self, routed: &Routed<'_>, answered: Answered, work: &mut Work, entry: &mut Entry) -> Next {
        let Answered { lease, upstream, at_us, upload_failed, .. } = answered;
        let Work { request, upload, reply, .. } = work;
        let Reply { head: response, download, .. } = &mut **reply.get_or_insert_default();
        entry.finish(upload.head_sent_us, at_us, download.head_sent_us);
        if let Some(call) = &mut entry.call {
            call.status = download.grpc_status().or(call.status);
        }
        let is_uploaded = upload.is_done() && !upload_failed;
        if !upstream.input.is_empty() && is_bodiless(request.method, response.status) {
            lease.endpoint.pool.distrust();
        }
        if is_uploaded && response.keep_alive && upstream.input.is_empty() {
            give_back(&routed.cluster, &lease, upstream, request.method, response, download.head_sent_us / 1000);
        }
        match (self.may_stay, is_uploaded) {
            (true, true) => Next::KeepAlive,
            // A client that meant to stay may be sending its next request.
            (false, true) if !request.keep_alive => Next::Close,
            _ => Next::Linger,
        }
    }
}

/// What has taken too long in the middle of a response.
fn overdue(deadline_ms: u64, waits_for_endpoint: bool, pace: &Pace) -> Error {
    let now_ms = clock::now_ms();
    if now_ms >= deadline_ms {
        Error::upstream(Reason::RequestTimeout)
    } else if waits_for_endpoint {
        Error::upstream(Reason::ResponseTimeout)
    } else if pace.is_over(now_ms) {
        Error::downstream(Reason::ReadTooSlow)
    } else {
        Error::downstream(Reason::SlowRead)
    }
}

/// Writes the response's head as the client gets it, and settles how its body goes on. Gives whether the connection can carry another
/// request behind it.
fn begin_response(
    downstream: &Downstream,
    upstream: &Upstream,
    work: &mut Work,
    call: Option<&Ongoing>,
    edits: &ResponseEdits<'_>,
    may_stay: bool,
) -> bool {
    let Work { request, reply, .. } = work;
    let Reply { head: response, bytes, download, .. } = &mut **reply.get_or_insert_default();
    let from = Framing::on(&upstream.stream, response.body);
    let translation = call.and_then(Ongoing::response_translation);
    if translation.is_some() && response.body != Body::None {
        // It grows by the trailers.
        (response.body, response.content_length) = (Body::Chunked, None);
    }
    let framing = headers::response_framing(response, request.version);
    let keep_alive = may_stay && request.keep_alive && framing != Body::UntilClose;
    let to = headers::Downstream {
        method: request.method,
        version: request.version,
        keep_alive,
        web: call.filter(|call| call.is_translated).map(|call| call.call),
    };
    let head = head_of_response(upstream, bytes);
    let out = download.start(from, Framing::on(&downstream.stream, framing), None);
    headers::write_response(out, response, head, &to, edits);
    download.is_final();
    if call.is_some() {
        download.is_of_call(translation);
    }
    keep_alive
}

fn response_error(failure: Failure) -> Error {
    match failure {
        Failure::Read(error) => Error::endpoint_io(error),
        Failure::Truncated => Error::upstream(Reason::UpstreamEof),
        Failure::Framing | Failure::TooLarge => Error::upstream(Reason::UpstreamBadFraming),
        Failure::Write(error) => Error::client_io(error),
    }
}

/// Keeps an upstream connection for the next request.
pub(crate) fn give_back(
    cluster: &Cluster,
    lease: &Lease,
    upstream: Upstream,
    method: Method,
    response: &ResponseHead,
    now_ms: u64,
) {
    let policy = &cluster.plan.policy;
    // Announced to the endpoint as one client's: nobody else's requests may go there. And a stream has had its request.
    if policy.send_proxy_protocol.is_some() || upstream.stream.h2().is_some() {
        return;
    }
    let mut idle_ms = crate::millis(policy.idle_timeout);
    if let Some(seconds) = response.keep_alive_timeout_s {
        // A second before the endpoint closes it, so that no request meets it closing.
        idle_ms = idle_ms.min(u64::from(seconds.saturating_sub(1)) * 1000);
    }
    let (pool, expires_ms) = (&lease.endpoint.pool, now_ms.saturating_add(idle_ms));
    if is_bodiless(method, response.status) {
        pool.put_doubtful(upstream.stream, expires_ms, policy.idle_connections_max);
    } else {
        pool.put(upstream.stream, expires_ms, policy.idle_connections_max);
    }
}

/// Such a response has no body, whatever its head says (RFC 9112 section 6.3).
fn is_bodiless(method: Method, status: u16) -> bool {
    method == Method::Head || matches!(status, 204 | 304)
}

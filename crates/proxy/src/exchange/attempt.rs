//! One try at one endpoint: its state, and what its failure means for the request.

use std::time::Duration;

use balance::Outcome;
use model::{Algorithm, ListenerLimits};
use net::buffer::Buffer;
use net::socket::Progress;
use telemetry::Reason;
use wire::ResponseHeads;
use wire::message::{Body, RequestHead};

use super::faults::{self, InjectedFault};
use super::min_rate::MinRateTimer;
use super::transfer::Transfer;
use super::{Env, Response, Routed};
use crate::deadline::Deadline;
use crate::error::{Error, Side};
use crate::grpc::{self, Ongoing};
use crate::h2::StreamEnd;
use crate::tls;
use crate::upstream::cluster::{Cluster, Lease};
use crate::upstream::connect;

pub(crate) use crate::policy::retry::RetryCause;

/// How much longer than two round trips it may take until this worker learns of a reset that crossed its request, in microseconds.
const CROSSED_US_MAX: u64 = 1_000;

/// A try at a chosen endpoint.
pub(crate) struct Attempt {
    pub(crate) lease: Lease,
    /// The end of the route's time or of this try's, whichever is first.
    pub(crate) deadline: Deadline,
    /// The client may send nothing for a while, between the messages of a call.
    may_pause: bool,
}

/// A try with a connection: the request is being sent, and the head of a response is awaited.
pub(crate) struct Awaiting {
    pub(crate) attempt: Attempt,
    /// The connection had served another request before.
    pub(crate) is_reused: bool,
    /// What the endpoint had acknowledged when the request was about to be sent, if that was checked.
    pub(crate) progress: Option<Progress>,
    /// Something of a response has arrived, even if only half a head or a 1xx.
    pub(crate) was_heard: bool,
    /// The client was told to continue and send its body.
    pub(crate) was_continued: bool,
    /// The endpoint stopped accepting the request.
    pub(crate) upload_failed: bool,
    /// The connection accepts no more requests. It may still accept some if only a stream has failed.
    pub(crate) is_connection_over: bool,
    /// The state of reading the heads of its responses.
    pub(crate) heads: ResponseHeads,
    /// What had been sent and scanned at the last check; `None` before the first.
    seen: Option<u64>,
    rate_timer: MinRateTimer,
}

/// What is known about a request whose connection ended before any byte of its response arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The endpoint cannot have read anything of it.
    Unseen,
    /// The endpoint closed the connection at about the time when the request was sent. It has probably not read the request, but that is no
    /// proof.
    Crossed,
    /// The endpoint refused the stream and did not act on the request. The connection continues, so it was not stale.
    Refused,
    /// The endpoint may have read it, and failed because of it.
    Unknown,
}

/// An upstream connection that gives no response, from its driver's view.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) error: Error,
    /// Something of a head had arrived over HTTP/1.
    pub(crate) has_input: bool,
    pub(crate) connection: ConnectionState,
}

/// The remaining state of an upstream connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionState {
    /// TCP: what the endpoint has acknowledged, if the kernel reports it.
    Tcp(Option<Progress>),
    /// A stream of an HTTP/2 connection, which may continue without it.
    Stream { is_ending: bool },
}

/// How much of a request was sent over a connection that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    pub(crate) bytes: u64,
    /// When the head was sent, in microseconds; `None` if it was not.
    pub(crate) head_us: Option<u64>,
    /// The endpoint stopped accepting the request.
    pub(crate) failed: bool,
    /// What had been acknowledged when the request was about to be sent, if that was checked.
    pub(crate) before: Option<Progress>,
}

impl Lost {
    /// The wait has been long enough, but the connection is still open.
    pub(crate) fn still_open(error: Error, has_input: bool, is_h2: bool) -> Self {
        let connection = if is_h2 { ConnectionState::Stream { is_ending: false } } else { ConnectionState::Tcp(None) };
        Self { error, has_input, connection }
    }

    /// Whether the connection accepts no more requests.
    pub(crate) fn is_connection_over(&self) -> bool {
        !matches!(self.connection, ConnectionState::Stream { is_ending: false })
    }
}

impl Attempt {
    pub(crate) fn new(env: &Env<'_>, routed: &Routed, lease: Lease, is_call: bool) -> Self {
        let per_try = routed.retry(env).per_try_timeout;
        let try_ends_ms = per_try.map(|timeout| lease.at_ms.saturating_add(crate::millis(timeout)));
        // A request that falsely claims to be a call gains nothing by that.
        let may_pause = is_call && routed.is_to_h2();
        Self { lease, deadline: routed.deadline.or_earlier(try_ends_ms), may_pause }
    }

    /// Reports the head of a response to the cluster. Success is recorded once the response is complete.
    pub(crate) fn judge_response(
        &self,
        cluster: &Cluster,
        status: u16,
        upload: &Transfer,
        connected_us: Option<u64>,
        now_us: u64,
    ) {
        match status {
            101 => cluster.record(&self.lease.endpoint, now_us / 1000, Outcome::Success),
            500.. => cluster.record(&self.lease.endpoint, now_us / 1000, Outcome::Failure5xx),
            _ => {}
        }
        if cluster.plan.policy.algorithm == Algorithm::PeakEwma {
            let since_us = upload.head_sent_us().max(connected_us).unwrap_or(now_us);
            self.lease.endpoint.state.observe_latency(now_us / 1000, now_us.saturating_sub(since_us));
        }
    }

    /// Reports a failure to the cluster. `was_sent`: there was a connection.
    pub(crate) fn judge_failure(&self, cluster: &Cluster, error: &Error, was_sent: bool, now_ms: u64) {
        if error.side != Side::Upstream {
            return;
        }
        let endpoint = &self.lease.endpoint;
        cluster.record(endpoint, now_ms, connection_outcome(error));
        if let Some(source) = error.source.as_ref().filter(|source| was_sent && tls::reason(source).is_some()) {
            endpoint.state.note_failure(&format!("TLS: {}", tls::told(source)));
        }
        let (cluster, endpoint) = (&cluster.plan.policy.name, endpoint.state.address());
        tracing::debug!(cluster, %endpoint, %error, "endpoint failed");
    }
}

impl Awaiting {
    /// `received`: the bytes of the request's body that arrived before.
    pub(crate) fn new(attempt: Attempt, is_reused: bool, progress: Option<Progress>, received: u64) -> Self {
        Self {
            attempt,
            is_reused,
            progress,
            was_heard: false,
            was_continued: false,
            upload_failed: false,
            is_connection_over: false,
            heads: ResponseHeads::default(),
            seen: None,
            rate_timer: MinRateTimer::new(received),
        }
    }

    /// An interim response was passed on, and the next head is awaited.
    pub(crate) fn handle_interim(&mut self, received: u64) {
        if faults::is_injected(InjectedFault::PassesAllInterims) {
            self.heads = ResponseHeads::default();
        }
        self.seen = None;
        self.rate_timer = MinRateTimer::new(received);
    }

    /// Everything that can be moved was moved. Returns the new end of the wait, if it has changed.
    pub(crate) fn handle_moved(
        &mut self,
        env: &Env<'_>,
        routed: &Routed,
        request: &RequestHead,
        upload: &Transfer,
        client_input: &Buffer,
        paced_until_ms: Option<u64>,
    ) -> Option<u64> {
        let progress = Some(upload.sent() + self.heads.scanned as u64);
        if progress == self.seen {
            return None;
        }
        self.seen = progress;
        // A client that has to wait for its bandwidth is not slow, and nor is the endpoint.
        let waits_for_client = paced_until_ms.is_none() && self.waits_for_client(request, upload, client_input);
        // Nearly always, a head without a body has just been sent.
        let is_just_sent = self.heads.interims == 0 && self.heads.scanned == 0 && request.body == Body::None;
        let sent_us = upload.head_sent_us().filter(|_| is_just_sent);
        let now_ms = sent_us.map_or(env.now_ms(), |sent_us| sent_us / 1000);
        let limits: &ListenerLimits = &env.http.limits;
        let rate = limits.min_rate.filter(|_| !self.attempt.may_pause);
        let mut response_timeout = routed.cluster.plan.policy.response_timeout;
        if let Some(until_ms) = paced_until_ms {
            response_timeout += Duration::from_millis(until_ms.saturating_sub(now_ms));
        }
        let wait_ms =
            self.rate_timer.wait_ms(limits, rate, response_timeout, now_ms, upload.received(), waits_for_client);
        let is_forgotten = faults::is_injected(InjectedFault::ForgetsDeadline);
        let deadline = if is_forgotten { Deadline::Never } else { self.attempt.deadline };
        Some(deadline.limit(now_ms.saturating_add(wait_ms)))
    }

    fn waits_for_client(&self, request: &RequestHead, upload: &Transfer, client_input: &Buffer) -> bool {
        // A client that asked first sends nothing until it is told to continue. Until then the exchange waits for the endpoint.
        let is_held = request.expect_continue && !self.was_continued && upload.received() == 0;
        !is_held && !self.upload_failed && !upload.is_read() && upload.waits_for_sender(client_input)
    }

    /// What has taken too long.
    pub(crate) fn overdue(
        &self,
        request: &RequestHead,
        upload: &Transfer,
        client_input: &Buffer,
        now_ms: u64,
    ) -> Error {
        match self.waits_for_client(request, upload, client_input) {
            false if self.attempt.deadline.is_over(now_ms) => Error::upstream(Reason::RequestTimeout),
            true if self.rate_timer.is_over(now_ms) => Error::downstream(Reason::BodyTooSlow),
            true => Error::downstream(Reason::BodyTimeout),
            false => Error::upstream(Reason::ResponseTimeout),
        }
    }

    /// What the head of a response means for another try. After a 1xx was passed on, the client knows of this try.
    pub(crate) fn retry_cause_of_response(
        &self,
        response: &Response,
        call: Option<&mut Ongoing>,
        early: Option<grpc::Status>,
    ) -> RetryCause {
        if self.was_heard {
            return RetryCause::Other;
        }
        if let Some(call) = call {
            let status = match response.head.body {
                Body::None => {
                    call.take_head(&response.head, &response.bytes);
                    call.status
                }
                // Some services send a head in any case, followed directly by the trailers. The proxy does not wait for trailers: a head
                // without them is passed to the client at once.
                _ => early,
            };
            if let Some(status) = status.filter(|status| *status != grpc::Status::Ok) {
                return RetryCause::Grpc(status);
            }
        }
        RetryCause::Status(response.head.status)
    }

    /// The kind of failure, as far as another try depends on it.
    pub(crate) fn retry_cause_of_failure(&self, error: &Error, ending: Ending) -> RetryCause {
        match error.reason {
            _ if self.was_heard => RetryCause::Other,
            Reason::UpstreamRefused => RetryCause::Unseen,
            Reason::UpstreamReset | Reason::UpstreamEof
                if ending == Ending::Unseen
                    || (self.is_reused && faults::is_injected(InjectedFault::ReusedIsStale)) =>
            {
                RetryCause::Unseen
            }
            Reason::UpstreamReset | Reason::UpstreamEof | Reason::UpstreamPingTimeout => RetryCause::Reset,
            Reason::ResponseTimeout | Reason::PerTryTimeout => RetryCause::Timeout,
            _ => RetryCause::Other,
        }
    }
}

/// What a failed connect means for another try.
pub(crate) fn connect_retry_cause(error: &Error) -> RetryCause {
    if connect::is_unreachable(error) { RetryCause::Unreachable } else { RetryCause::Connect }
}

/// What the end of a connection without any byte of a response says about the request.
///
/// Only a FIN can prove that the endpoint did not see the request: it acknowledges everything that the endpoint's kernel had received. The
/// kernel may still receive bytes after a FIN, but an endpoint that has ended its side can answer nothing any more, and must not process
/// what arrives (RFC 9112 section 9.6). nginx 1.22, HAProxy 2.6 and Go 1.26 close an idle connection with close(2), after which their
/// kernel accepts nothing.
pub(crate) fn ending(lost: &Lost, sent: &SentRequest, now_us: u64) -> Ending {
    let error = &lost.error;
    match (error.reason, lost.connection) {
        (Reason::UpstreamRefused, ConnectionState::Stream { is_ending: false }) => return Ending::Refused,
        (Reason::UpstreamRefused, _) => return Ending::Unseen,
        (Reason::UpstreamEof | Reason::UpstreamReset, _) => {}
        _ => return Ending::Unknown,
    }
    let is_soon =
        |round_trip_us: u64| sent.head_us.is_some_and(|sent_us| is_soon(now_us.saturating_sub(sent_us), round_trip_us));
    let source = error.source.as_ref();
    let progress = match lost.connection {
        ConnectionState::Tcp(_) if sent.bytes == 0 => return Ending::Unseen,
        ConnectionState::Tcp(Some(progress)) => progress,
        ConnectionState::Tcp(None) => return Ending::Unknown,
        ConnectionState::Stream { .. } => {
            // If a stream was reset, the endpoint has seen it. The round trip of a shared connection is not known here.
            let is_closed = matches!(source.and_then(StreamEnd::within), Some(StreamEnd::Gone | StreamEnd::Lost));
            return if is_closed && is_soon(0) { Ending::Crossed } else { Ending::Unknown };
        }
    };
    // Within TLS, an end without a close_notify is an error. A failed write consumes the error of an RST, and the read after it sees the
    // end of the stream as after a FIN.
    let is_end = error.reason == Reason::UpstreamEof
        || source.is_some_and(|source| source.kind() == std::io::ErrorKind::UnexpectedEof);
    let is_fin = (is_end && !sent.failed) || faults::is_injected(InjectedFault::ResetIsProof);
    if is_fin && sent.before.is_some_and(|before| before.acked == progress.acked) {
        Ending::Unseen
    } else if progress.has_unacked && (is_fin || is_soon(progress.round_trip_us)) {
        Ending::Crossed
    } else {
        Ending::Unknown
    }
}

/// Whether an endpoint that reset a connection this long after a request was sent may have done so because the connection was already gone
/// when the request arrived. That takes one round trip. An endpoint that fails because of a request takes longer, unless it is very near
/// and very fast.
fn is_soon(elapsed_us: u64, round_trip_us: u64) -> bool {
    elapsed_us <= round_trip_us.saturating_mul(2).saturating_add(CROSSED_US_MAX)
}

/// How a failure of an endpoint is counted.
pub(crate) fn connection_outcome(error: &Error) -> Outcome {
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

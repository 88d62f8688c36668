//! One try at one endpoint: what is known of it, and what its failure tells about the request.

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
use crate::h2::Cut;
use crate::tls;
use crate::upstream::cluster::{Cluster, Lease};
use crate::upstream::connect;

pub(crate) use crate::policy::retry::RetryCause;

/// How much longer than two round trips it may take until this worker hears of a reset that crossed its request, in microseconds.
const CROSSED_US_MAX: u64 = 1_000;

/// A try at an endpoint that was chosen.
pub(crate) struct Attempt {
    pub(crate) lease: Lease,
    /// When the route's time is over, or that of this try.
    pub(crate) deadline: Deadline,
    /// The client may send nothing for a while: between the messages of a call.
    may_pause: bool,
}

/// A try whose connection is there: the request is being sent, and the head of a response is waited for.
pub(crate) struct Awaiting {
    pub(crate) attempt: Attempt,
    /// The connection had served another request before.
    pub(crate) is_reused: bool,
    /// What the endpoint had acknowledged when the request was about to be sent, where that was asked.
    pub(crate) progress: Option<Progress>,
    /// Something of a response came, be it half a head or a 1xx.
    pub(crate) was_heard: bool,
    /// The client was told to go on and send its body.
    pub(crate) was_continued: bool,
    /// The request stopped getting through.
    pub(crate) upload_failed: bool,
    /// The connection takes no more requests. It may do so where a stream alone has failed.
    pub(crate) is_connection_over: bool,
    /// The heads of its responses, as far as they have been read.
    pub(crate) heads: ResponseHeads,
    /// What had been sent and scanned at the last look; `None`: there was none.
    seen: Option<u64>,
    rate_timer: MinRateTimer,
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

/// An upstream connection that gives no response, as its driver sees it.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) error: Error,
    /// Something of a head had come over HTTP/1.
    pub(crate) has_input: bool,
    pub(crate) connection: ConnectionState,
}

/// What is left of an upstream connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ConnectionState {
    /// Of TCP: what the endpoint has acknowledged, where the kernel tells.
    Tcp(Option<Progress>),
    /// A stream of one of HTTP/2, which may go on without it.
    Stream { is_ending: bool },
}

/// What has been sent of a request over a connection that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: u64,
    /// When the head left, in microseconds; `None`: it has not.
    pub(crate) head_us: Option<u64>,
    /// The request stopped getting through.
    pub(crate) failed: bool,
    /// What had been acknowledged when the request was about to be sent, where that was asked.
    pub(crate) before: Option<Progress>,
}

impl Lost {
    /// It was waited for long enough.
    pub(crate) fn still_open(error: Error, has_input: bool, is_h2: bool) -> Self {
        let connection = if is_h2 { ConnectionState::Stream { is_ending: false } } else { ConnectionState::Tcp(None) };
        Self { error, has_input, connection }
    }

    /// The connection takes no more requests.
    pub(crate) fn is_connection_over(&self) -> bool {
        !matches!(self.connection, ConnectionState::Stream { is_ending: false })
    }
}

impl Attempt {
    pub(crate) fn new(env: &Env<'_>, routed: &Routed, lease: Lease, is_call: bool) -> Self {
        let per_try = routed.policy(env).retry.per_try_timeout;
        let try_ends_ms = per_try.map(|timeout| lease.at_ms.saturating_add(crate::millis(timeout)));
        // Whoever claims to be a call where there can be none gains nothing by it.
        let may_pause = is_call && routed.is_to_h2();
        Self { lease, deadline: routed.deadline.or_earlier(try_ends_ms), may_pause }
    }

    /// Tells the cluster what the head of a response says. That all is well is said when the response is complete.
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

    /// Tells the cluster that it has failed. `was_sent`: there was a connection.
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
    /// `received`: bytes of the request's body that came before.
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

    /// An interim response is through, and the next head is waited for.
    pub(crate) fn handle_interim(&mut self, received: u64) {
        if faults::is_injected(InjectedFault::PassesAllInterims) {
            self.heads = ResponseHeads::default();
        }
        self.seen = None;
        self.rate_timer = MinRateTimer::new(received);
    }

    /// What can be moved was moved: when it has been waited for long enough, where that has changed.
    pub(crate) fn handle_moved(
        &mut self,
        env: &Env<'_>,
        routed: &Routed,
        request: &RequestHead,
        upload: &Transfer,
        client_input: &Buffer,
    ) -> Option<u64> {
        let progress = Some(upload.sent() + self.heads.scanned as u64);
        if progress == self.seen {
            return None;
        }
        self.seen = progress;
        let waits_for_client = self.waits_for_client(request, upload, client_input);
        // A head without a body has just been sent, nearly always.
        let is_just_sent = self.heads.interims == 0 && self.heads.scanned == 0 && request.body == Body::None;
        let sent_us = upload.head_sent_us().filter(|_| is_just_sent);
        let now_ms = sent_us.map_or(env.now_ms(), |sent_us| sent_us / 1000);
        let limits: &ListenerLimits = &env.http.limits;
        let rate = limits.min_rate.filter(|_| !self.attempt.may_pause);
        let response_timeout = routed.cluster.plan.policy.response_timeout;
        let wait_ms =
            self.rate_timer.wait_ms(limits, rate, response_timeout, now_ms, upload.received(), waits_for_client);
        let is_forgotten = faults::is_injected(InjectedFault::ForgetsDeadline);
        let deadline = if is_forgotten { Deadline::Never } else { self.attempt.deadline };
        Some(deadline.limit(now_ms.saturating_add(wait_ms)))
    }

    fn waits_for_client(&self, request: &RequestHead, upload: &Transfer, client_input: &Buffer) -> bool {
        // A client that asked first sends nothing before it is told to: until then it is the endpoint that is waited for.
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

    /// What the head of a response means for another try. Once a 1xx was passed on, the client has heard of this one.
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
                // Some services send a head in any case, and the trailers right behind it. Nobody waits for them to come: a head that stands
                // alone is the client's at once.
                _ => early,
            };
            if let Some(status) = status.filter(|status| *status != grpc::Status::Ok) {
                return RetryCause::Grpc(status);
            }
        }
        RetryCause::Status(response.head.status)
    }

    /// How it went wrong, as far as another try depends on it.
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

/// What it means for another try that there was no connection.
pub(crate) fn connect_retry_cause(error: &Error) -> RetryCause {
    if connect::is_unreachable(error) { RetryCause::Unreachable } else { RetryCause::Connect }
}

/// What the end of a connection, on which nothing of a response came, tells about the request.
///
/// Only a FIN can prove that the request was not seen: it acknowledges all that the endpoint's kernel had received. This holds although the kernel
/// goes on receiving behind a FIN, because an endpoint that has ended its side can answer nothing any more, and must not process what comes
/// (RFC 9112 section 9.6). nginx 1.22, HAProxy 2.6 and Go 1.26 close an idle connection with close(2), after which their kernel takes
/// nothing.
pub(crate) fn ending(lost: &Lost, sent: &Sent, now_us: u64) -> Ending {
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
            // A stream that was reset was seen. How long a round trip takes on a shared connection is not known here.
            let is_closed = matches!(source.and_then(Cut::within), Some(Cut::Gone | Cut::Lost));
            return if is_closed && is_soon(0) { Ending::Crossed } else { Ending::Unknown };
        }
    };
    // Within TLS the end without a close_notify is an error. A failed write takes the error of an RST with it, and the read behind it finds the
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

/// Whether an endpoint that reset a connection so long after a request was sent may have done so because the connection was gone when the
/// request came: that takes one round trip. An endpoint that fails on a request takes longer, where it is not very near and very fast.
fn is_soon(elapsed_us: u64, round_trip_us: u64) -> bool {
    elapsed_us <= round_trip_us.saturating_mul(2).saturating_add(CROSSED_US_MAX)
}

/// What a failure of an endpoint counts as.
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

//! The response, relayed from its head to its last byte, beside what is left of the request.

use std::rc::Rc;

use net::buffer::Buffer;
use telemetry::Reason;
use wire::message::{Body, Method, ResponseHead, Version};

use super::attempt::Awaiting;
use super::faults::{self, InjectedFault};
use super::min_rate::MinRateTimer;
use super::transfer::{Framing, Transfer};
use super::{Env, Request, Response, Routed};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::grpc::Ongoing;
use crate::http::headers;
use crate::policy::headers::ResponseEdits;
use crate::upstream::cluster::{Cluster, Endpoint, Lease};

/// A response that is relayed.
pub(crate) struct Relay {
    pub(crate) lease: Lease,
    /// When the response's head was whole, in microseconds.
    pub(crate) answered_us: u64,
    /// The client's connection can carry another request behind the response.
    pub(crate) may_stay: bool,
    /// The endpoint has stopped listening, or the rest of the request is not waited for.
    pub(crate) upload_failed: bool,
    /// When the response is complete, the rest of the request is not waited for.
    ends_with_response: bool,
    /// Bytes moved until the last look, and whether the endpoint was waited for; `None`: there was none.
    seen: Option<(u64, bool)>,
    rate_timer: MinRateTimer,
}

/// What a response says about its client's connection, and how it is changed on its way.
pub(crate) struct Terms<'t> {
    pub(crate) call: Option<&'t Ongoing>,
    pub(crate) edits: &'t ResponseEdits<'t>,
    /// The endpoint speaks HTTP/2.
    pub(crate) is_from_h2: bool,
    pub(crate) may_stay: bool,
}

impl Relay {
    /// Writes the response's head. Its body follows.
    pub(crate) fn begin(
        awaiting: Awaiting,
        answered_us: u64,
        request: &Request,
        upload: &Transfer,
        response: &mut Response,
        terms: &Terms<'_>,
    ) -> Self {
        let Awaiting { attempt, upload_failed, .. } = awaiting;
        // An endpoint that refuses a body that is still coming ends the connection: nobody will take the rest.
        let is_early_refusal = response.head.status >= 300 && (upload_failed || !upload.is_done());
        let may_stay = begin_response(request, response, terms, terms.may_stay && !is_early_refusal);
        Self {
            lease: attempt.lease,
            answered_us,
            may_stay,
            upload_failed,
            // A call is over with its status, whatever its client still has to say.
            ends_with_response: is_early_refusal || terms.call.is_some(),
            seen: None,
            rate_timer: MinRateTimer::new(upload.received()),
        }
    }

    /// Nothing is left to be moved. An endpoint may answer well before it has heard all, and go on listening.
    pub(crate) fn is_over(&self, upload: &Transfer, download: &Transfer) -> bool {
        download.is_done() && (self.upload_failed || self.ends_with_response || upload.is_done())
    }

    /// What can be moved was moved: when it has been waited for long enough, where that has changed. `is_overdue`: the deadline had come
    /// before.
    ///
    /// # Errors
    /// It moves only when it is overdue.
    pub(crate) fn handle_moved(
        &mut self,
        env: &Env<'_>,
        routed: &Routed,
        upload: &Transfer,
        download: &Transfer,
        upstream_input: &Buffer,
        is_overdue: bool,
    ) -> Result<Option<u64>, Error> {
        // Whom it waits for may change without progress: bytes have come, and the client does not take them.
        let waits_for_endpoint = !download.is_done() && download.waits_for_sender(upstream_input);
        let progress = Some((upload.received() + download.received() + download.sent(), waits_for_endpoint));
        if progress == self.seen {
            return Ok(None);
        }
        let now_ms = env.now_ms();
        if self.seen.is_some() && !self.rate_timer.may_move(is_overdue) {
            return Err(self.overdue(routed.deadline, waits_for_endpoint, now_ms));
        }
        self.seen = progress;
        let (limits, moved) = (&env.http.limits, upload.received() + download.sent());
        let response_timeout = routed.cluster.plan.policy.response_timeout;
        let wait_ms =
            self.rate_timer.wait_ms(limits, limits.min_rate, response_timeout, now_ms, moved, !waits_for_endpoint);
        let is_forgotten = faults::is_injected(InjectedFault::RelaysForEver);
        let deadline = if is_forgotten { Deadline::Never } else { routed.deadline };
        Ok(Some(deadline.limit(now_ms.saturating_add(wait_ms))))
    }

    /// What has taken too long in the middle of a response.
    pub(crate) fn overdue(&self, deadline: Deadline, waits_for_endpoint: bool, now_ms: u64) -> Error {
        if deadline.is_over(now_ms) {
            Error::upstream(Reason::RequestTimeout)
        } else if waits_for_endpoint {
            Error::upstream(Reason::ResponseTimeout)
        } else if self.rate_timer.is_over(now_ms) {
            Error::downstream(Reason::ReadTooSlow)
        } else {
            Error::downstream(Reason::SlowRead)
        }
    }
}

/// Writes the response's head as the client gets it, and settles how its body goes on. Gives whether the connection can carry another
/// request behind it.
fn begin_response(request: &Request, response: &mut Response, terms: &Terms<'_>, may_stay: bool) -> bool {
    let Terms { call, edits, is_from_h2, .. } = *terms;
    let Response { head, bytes, download, .. } = response;
    let from = Framing::of(is_from_h2, head.body);
    let translation = call.and_then(Ongoing::response_translation);
    if translation.is_some() && head.body != Body::None {
        // It grows by the trailers.
        (head.body, head.content_length) = (Body::Chunked, None);
    }
    let version = request.head.version;
    let framing = headers::response_framing(head, version);
    let keep_alive = may_stay && request.head.keep_alive && framing != Body::UntilClose;
    let to = headers::ResponseContext {
        method: request.head.method,
        version,
        keep_alive,
        web: call.filter(|call| call.is_translated).map(|call| call.call),
    };
    let out = download.start(from, Framing::of(version == Version::Http2, framing), None);
    headers::write_response(out, head, bytes, &to, edits);
    download.send_once();
    if call.is_some() {
        download.set_call(translation);
    }
    keep_alive
}

/// An upstream connection that can be used again.
pub(crate) struct Reuse {
    pub(crate) endpoint: Rc<Endpoint>,
    /// When it is closed, in milliseconds.
    pub(crate) expires_ms: u64,
    /// The response had no body by rule, and the endpoint may send one all the same.
    pub(crate) is_doubtful: bool,
    pub(crate) idle_max: usize,
}

impl Reuse {
    /// `None`: it cannot, once this response is complete.
    pub(crate) fn of(
        cluster: &Cluster,
        lease: &Lease,
        method: Method,
        response: &ResponseHead,
        now_ms: u64,
    ) -> Option<Self> {
        let policy = &cluster.plan.policy;
        // Announced to the endpoint as one client's: nobody else's requests may go there. And a stream has had its request.
        if !response.keep_alive || policy.send_proxy_protocol.is_some() || policy.protocol == model::ClusterProtocol::H2
        {
            return None;
        }
        let mut idle_ms = crate::millis(policy.idle_timeout);
        if let Some(seconds) = response.keep_alive_timeout_s {
            // A second before the endpoint closes it, so that no request meets it closing.
            idle_ms = idle_ms.min(u64::from(seconds.saturating_sub(1)) * 1000);
        }
        Some(Self {
            endpoint: lease.endpoint.clone(),
            expires_ms: now_ms.saturating_add(idle_ms),
            is_doubtful: is_bodiless(method, response.status),
            idle_max: policy.idle_connections_max,
        })
    }
}

/// Such a response has no body, whatever its head says (RFC 9112 section 6.3).
pub(crate) fn is_bodiless(method: Method, status: u16) -> bool {
    method == Method::Head || matches!(status, 204 | 304)
}

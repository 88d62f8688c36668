//! The relay of the response, from its head to its last byte, and of the rest of the request.

use std::rc::Rc;
use std::time::Duration;

use net::buffer::Buffer;
use telemetry::Reason;
use wire::message::{Body, Method, ResponseHead, Version};

use super::attempt::Awaiting;
use super::faults::{self, InjectedFault};
use super::min_rate::MinRateTimer;
use super::transfer::{Framing, Head, Transfer};
use super::{Env, Request, Response, Routed};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::grpc::Ongoing;
use crate::http::headers;
use crate::policy::headers::ResponseEdits;
use crate::upstream::cluster::{Cluster, Endpoint, Lease};

/// How long an endpoint whose response is complete may take nothing of the rest of the request, in milliseconds. After that it is not
/// reading: nginx and Envoy discard the rest with the last byte of the response, HAProxy after its timeouts. Some endpoints continue to
/// read after their response, so this leaves time for them, and for a lost packet or two.
const UNTAKEN_MS_MAX: u64 = 2_000;

/// What a relay waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    /// The client, which must take the response or send more of its request.
    Client,
    /// The bandwidth of the client.
    Bandwidth,
    /// The endpoint's response.
    Response,
    /// The endpoint, which has responded and must take more of the request.
    UploadTaken,
}

/// A response that is being relayed.
pub(crate) struct Relay {
    pub(crate) lease: Lease,
    /// When the response's head was complete, in microseconds.
    pub(crate) answered_us: u64,
    /// The client's connection can carry another request after the response.
    pub(crate) may_stay: bool,
    /// The endpoint has stopped reading, or the exchange no longer waits for the rest of the request.
    pub(crate) upload_failed: bool,
    /// When the response is complete, the exchange does not wait for the rest of the request.
    ends_with_response: bool,
    /// Bytes moved until the last check, and what the relay waited for; `None` before the first check.
    seen: Option<(u64, WaitsFor)>,
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
    /// Writes the response's head, which its body follows.
    pub(crate) fn begin(
        awaiting: Awaiting,
        answered_us: u64,
        request: &Request,
        upload: &Transfer,
        response: &mut Response,
        terms: &Terms<'_>,
    ) -> Self {
        let Awaiting { attempt, upload_failed, .. } = awaiting;
        // An endpoint that refuses a body while it is still being sent, or ends its connection after the response (RFC 9112 section 9.6),
        // takes nothing of the rest.
        let is_last = response.head.status >= 300 || (!terms.is_from_h2 && !response.head.keep_alive);
        let is_early_end = is_last && (upload_failed || !upload.is_done());
        let may_stay = begin_response(request, response, terms, terms.may_stay && !is_early_end);
        Self {
            lease: attempt.lease,
            answered_us,
            may_stay,
            upload_failed,
            // A call is over with its status, even if its client has more to send.
            ends_with_response: is_early_end || terms.call.is_some(),
            seen: None,
            rate_timer: MinRateTimer::new(upload.received()),
        }
    }

    /// Whether nothing is left to be moved. An endpoint may answer long before it has received everything, and continue to read.
    pub(crate) fn is_over(&self, upload: &Transfer, download: &Transfer) -> bool {
        download.is_done() && (self.upload_failed || self.ends_with_response || upload.is_done())
    }

    /// Everything that can be moved was moved. Returns the new end of the wait, if it has changed. `is_overdue`: the deadline had already
    /// passed.
    ///
    /// # Errors
    /// It moves only when it is overdue.
    pub(crate) fn handle_moved(
        &mut self,
        env: &Env<'_>,
        routed: &Routed,
        (upload, client_input): (&Transfer, &Buffer),
        (download, upstream_input): (&Transfer, &Buffer),
        is_overdue: bool,
        paced_until_ms: Option<u64>,
    ) -> Result<Option<u64>, Error> {
        // The side that it waits for may change without progress: bytes have arrived, and the client does not take them.
        let waits_for = match download.is_done() {
            _ if paced_until_ms.is_some() => WaitsFor::Bandwidth,
            false if download.waits_for_sender(upstream_input) => WaitsFor::Response,
            true if !upload.waits_for_sender(client_input) => WaitsFor::UploadTaken,
            _ => WaitsFor::Client,
        };
        // After the response, each byte of the request that the endpoint takes is progress.
        let taken = if waits_for == WaitsFor::UploadTaken { upload.sent() } else { 0 };
        let progress = Some((upload.received() + download.received() + download.sent() + taken, waits_for));
        if progress == self.seen {
            return Ok(None);
        }
        let now_ms = env.now_ms();
        if self.seen.is_some() && !self.rate_timer.may_move(is_overdue) {
            return Err(self.overdue(routed.deadline, waits_for == WaitsFor::Response, now_ms));
        }
        self.seen = progress;
        let (limits, moved) = (&env.http.limits, upload.received() + download.sent());
        let endpoint_time = match waits_for {
            WaitsFor::UploadTaken => limits.stall_timeout.min(Duration::from_millis(UNTAKEN_MS_MAX)),
            WaitsFor::Bandwidth => {
                let paced_ms = paced_until_ms.map_or(0, |until_ms| until_ms.saturating_sub(now_ms));
                limits.stall_timeout.saturating_add(Duration::from_millis(paced_ms))
            }
            WaitsFor::Client | WaitsFor::Response => routed.cluster.plan.policy.response_timeout,
        };
        let waits_for_client = waits_for == WaitsFor::Client;
        let wait_ms = self.rate_timer.wait_ms(limits, limits.min_rate, endpoint_time, now_ms, moved, waits_for_client);
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

/// Writes the response's head for the client, and decides how its body is framed. Returns whether the connection can carry another request
/// after it.
fn begin_response(request: &Request, response: &mut Response, terms: &Terms<'_>, may_stay: bool) -> bool {
    let Terms { call, edits, is_from_h2, .. } = *terms;
    let Response { head, bytes, download, .. } = response;
    let from = Framing::of(is_from_h2, head.body);
    let translation = call.and_then(Ongoing::response_translation);
    let is_compressed = edits.compressed.is_some_and(|compressed| compressed.encoding.is_some());
    if (translation.is_some() || is_compressed) && head.body != Body::None {
        // The trailers are added to it, or it gets shorter.
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

/// Begins to pass on an interim response, or the 101 that opens a tunnel.
pub(super) fn start_interim(request: &Request, response: &mut Response, edits: &ResponseEdits<'_>) {
    let Response { head, bytes, download, .. } = response;
    let to = if request.head.version == Version::Http2 { Framing::HeadOnly } else { Framing::H1(Body::None) };
    match download.start(Framing::H1(Body::None), to, None) {
        Head::H1(out) => headers::write_interim(out, head, bytes, request.upgrade.as_deref(), edits),
        Head::H2(out) => headers::write_h2_interim(out, head, bytes, edits),
    }
    download.send_once();
}

/// An upstream connection that can be reused.
pub(crate) struct Reuse {
    pub(crate) endpoint: Rc<Endpoint>,
    /// When it will be closed, in milliseconds.
    pub(crate) expires_ms: u64,
    /// The response must have no body, but the endpoint may still send one.
    pub(crate) is_doubtful: bool,
    pub(crate) idle_max: usize,
}

impl Reuse {
    /// `None` if it cannot be reused after this response.
    pub(crate) fn of(
        cluster: &Cluster,
        lease: &Lease,
        method: Method,
        response: &ResponseHead,
        now_ms: u64,
    ) -> Option<Self> {
        let policy = &cluster.plan.policy;
        // The PROXY protocol header announced one client to the endpoint, so other clients' requests must not use the connection. And an
        // HTTP/2 stream carries only one request.
        if !response.keep_alive || policy.send_proxy_protocol.is_some() || policy.protocol == model::ClusterProtocol::H2
        {
            return None;
        }
        let mut idle_ms = crate::millis(policy.idle_timeout);
        if let Some(seconds) = response.keep_alive_timeout_s {
            // One second before the endpoint closes it, so that no request arrives while it closes.
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

//! Our own requests: they are complete when they are sent, and their responses are read here instead of being relayed to a client. These are
//! copies for mirrors, whose responses nothing needs, and questions about a request that waits for the answer ([`Patience`]).
//!
//! They use the same parts as a client's request ([`Exchange`](crate::exchange::Exchange)): [`Transfer`] frames the body and can send it
//! again, [`ResponseHeads`] reads the heads, another [`Transfer`] reads the body, [`ending`] says what a lost connection proves, and
//! [`Reuse`] whether the connection can be reused. The caller decides what to request, and what the response means.

use std::future::poll_fn;

use balance::Outcome;
use model::{ClusterProtocol, Retry};
use net::clock;
use net::timer::Timer;
use smallvec::SmallVec;
use telemetry::Reason;
use wire::message::{Body, Method};
use wire::{HeadKind, ResponseHeads};

use super::cluster::{Cluster, Demand, Lease};
use super::connect::{self, OnBehalfOf, Upstream, Wanted};
use crate::deadline::Deadline;
use crate::downstream::watch::Watched;
use crate::driver;
use crate::error::{Error, Side};
use crate::exchange::transfer::{BodyError, Framing, Transfer};
use crate::exchange::{Ending, Response, Reuse, SentRequest, TransferError, connection_outcome, ending};
use crate::grpc;
use crate::http::headers;
use crate::http::receive::response_reason;
use crate::policy::RequestView;
use crate::policy::headers::RequestEdits;
use crate::stream::Stream;

/// Bytes of a response's body that are read so that its connection can be reused. Beyond that, the connection is closed.
const SKIPPED_BYTES_MAX: u64 = 256 * 1024;

/// Endpoints that a request is sent to if something waits for the response.
const TRIES_MAX: usize = 2;

/// A request with its body, in the form for its endpoint.
pub(crate) struct Subrequest {
    upload: Transfer,
    method: Method,
    /// It is a gRPC call, whose status is in the trailers of its response.
    is_call: bool,
}

/// A response.
pub(crate) struct Answer {
    pub(crate) response: Response,
    /// Its body; `None` if it is too long or was not wanted.
    ///
    /// # Errors
    /// It was cut off, or did not arrive in time. The head counts all the same.
    pub(crate) body: Result<Option<Vec<u8>>, Error>,
    pub(crate) grpc_status: Option<grpc::Status>,
}

/// What waits for the response.
pub(crate) enum Patience<'t> {
    /// Nothing.
    None,
    /// A client, until it leaves. The request may wait for room at an endpoint, and be sent to another one if the first gives no response.
    For { client: Watched<'t>, body_bytes_max: usize },
}

/// The sender of a subrequest, and its time limit.
pub(crate) struct Terms<'t> {
    pub(crate) who: OnBehalfOf,
    /// For consistent hashing.
    pub(crate) key: u64,
    pub(crate) timer: &'t Timer,
    /// The limit from now to the end of the response.
    pub(crate) time_ms_max: u64,
    pub(crate) patience: Patience<'t>,
}

/// Why there is no response.
struct Failed {
    error: Error,
    /// The endpoint closed a kept connection at that moment, so the request is sent again on a fresh one: see [`is_sent_again`].
    is_stale: bool,
}

impl Subrequest {
    /// Writes the head of a client's request, with the changes of `edits`, for an endpoint of `cluster`.
    pub(crate) fn new(cluster: &Cluster, view: &RequestView<'_>, edits: &RequestEdits<'_>) -> Self {
        let is_to_h2 = cluster.plan.policy.protocol == ClusterProtocol::H2;
        let mut upload = Transfer::default();
        let out = upload.start(Framing::H1(Body::None), Framing::of(is_to_h2, view.head.body), None);
        let edits = RequestEdits { mark: cluster.mark(), ..*edits };
        headers::write_request(out, view.head, view.buffer, view.client, cluster.scheme(), &edits);
        Self { upload, method: view.head.method, is_call: false }
    }

    /// It is a gRPC call.
    pub(crate) fn of_call(self) -> Self {
        Self { is_call: true, ..self }
    }

    /// Adds the body, with the length that the head states. A chunked body is sent as one chunk.
    pub(crate) fn put_body(&mut self, body: &[u8]) {
        self.upload.put_whole(body);
    }

    /// Sends it to an endpoint that the cluster chooses, and reads the response. The cluster records the endpoint's result.
    ///
    /// # Errors
    /// Those of [`Cluster::lease_at_once`] or [`Cluster::wait_for_lease`], and of [`connect::checkout`]; [`Reason::ResponseTimeout`]; those of
    /// a response that is cut off or cannot be read.
    pub(crate) async fn send(mut self, cluster: &Cluster, terms: &Terms<'_>) -> Result<Answer, Error> {
        let now_ms = clock::now_ms();
        let deadline_ms = now_ms.saturating_add(terms.time_ms_max);
        let mut tried: SmallVec<[usize; 1]> = SmallVec::new();
        if let Patience::For { .. } = terms.patience {
            cluster.counters.requests.inc();
            cluster.budget.borrow_mut().on_request(now_ms);
        }
        loop {
            let lease = self.lease(cluster, terms, &tried, deadline_ms).await?;
            let error = match self.send_to(cluster, terms, &lease, deadline_ms).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            tried.push(lease.endpoint.index);
            if !self.is_tried_elsewhere(cluster, terms, &error, &tried) {
                return Err(error);
            }
        }
    }

    async fn lease(
        &self,
        cluster: &Cluster,
        terms: &Terms<'_>,
        tried: &[usize],
        deadline_ms: u64,
    ) -> Result<Lease, Error> {
        let now_ms = clock::now_ms();
        let Patience::For { client, .. } = terms.patience else { return cluster.lease_at_once(now_ms, terms.key) };
        let demand = Demand { key: terms.key, tried, takes_ejected: false, deadline: Deadline::At(deadline_ms) };
        cluster.lease_or_wait(now_ms, &demand, client, terms.timer).await
    }

    /// Whether it is sent to another endpoint after this failure. It asks for a statement, and changes nothing.
    fn is_tried_elsewhere(&mut self, cluster: &Cluster, terms: &Terms<'_>, error: &Error, tried: &[usize]) -> bool {
        let now_ms = clock::now_ms();
        let is_waited_for = matches!(terms.patience, Patience::For { .. });
        let is_fast = error.side == Side::Upstream && connection_outcome(error) != Outcome::Timeout;
        let may = is_waited_for && is_fast && tried.len() < TRIES_MAX && cluster.has_other(tried, false, now_ms);
        if may && cluster.try_retry(now_ms, Retry::default().budget) && self.upload.rewind() {
            cluster.counters.retries.inc();
            return true;
        }
        false
    }

    async fn send_to(
        &mut self,
        cluster: &Cluster,
        terms: &Terms<'_>,
        lease: &Lease,
        deadline_ms: u64,
    ) -> Result<Answer, Error> {
        let now_us = clock::now_us();
        lease.endpoint.counters.requests.inc();
        let mut wanted = Wanted {
            who: &terms.who,
            client: None,
            begun_us: now_us,
            fresh_since_us: None,
            now_ms: now_us / 1000,
            deadline: Deadline::At(deadline_ms),
        };
        let outcome = loop {
            let upstream = match connect::checkout(cluster, &lease.endpoint, &wanted, terms.timer).await {
                Ok(upstream) => upstream,
                Err(error) => break Err(error),
            };
            terms.timer.set(deadline_ms);
            match self.exchange(cluster, lease, upstream, terms).await {
                Ok(answer) => break Ok(answer),
                Err(Failed { is_stale: true, .. }) if self.upload.rewind() => {
                    cluster.counters.stale_reuse.inc();
                    wanted.fresh_since_us = Some(now_us);
                }
                Err(Failed { error, .. }) => break Err(error),
            }
        };
        let fault = |error: &Error| (error.side == Side::Upstream).then(|| connection_outcome(error));
        let judged = match &outcome {
            Ok(Answer { body: Err(error), .. }) | Err(error) => fault(error),
            Ok(answer) => {
                let is_fault = answer.grpc_status.is_some_and(grpc::Status::is_endpoints_fault);
                let is_failure = answer.response.head.status >= 500 || is_fault;
                Some(if is_failure { Outcome::Failure5xx } else { Outcome::Success })
            }
        };
        if let Some(judged) = judged {
            cluster.record(&lease.endpoint, clock::now_ms(), judged);
        }
        outcome
    }

    /// Sends it over one connection, which is returned to the pool if it can be reused.
    async fn exchange(
        &mut self,
        cluster: &Cluster,
        lease: &Lease,
        mut upstream: Upstream,
        terms: &Terms<'_>,
    ) -> Result<Answer, Failed> {
        let Self { method, is_call, .. } = *self;
        let body_bytes_max = match terms.patience {
            Patience::None => None,
            Patience::For { body_bytes_max, .. } => Some(body_bytes_max),
        };
        // Checked only if it matters, as for a client's request.
        let is_doubtful = upstream.is_reused && !method.is_idempotent();
        let before = if is_doubtful { upstream.stream.tcp().and_then(net::socket::progress) } else { None };
        let (mut response, mut heads) = (Response::default(), ResponseHeads::default());
        let (mut is_sent, mut was_heard, mut is_begun) = (false, false, false);
        let exchanged = terms.timer.guard(async {
            let sent = poll_fn(|cx| driver::poll_write(cx, &mut self.upload, &mut upstream.stream)).await;
            sent.map_err(TransferError::of_request)?;
            is_sent = true;
            loop {
                poll_fn(|cx| driver::poll_response_head(cx, &mut upstream, &mut response, &mut heads, method)).await?;
                was_heard = true;
                match heads.handle_head(response.head.status) {
                    Ok(HeadKind::Interim) => {}
                    Ok(HeadKind::Final) => break,
                    // The request did not ask for another protocol.
                    Ok(HeadKind::SwitchingProtocols) => return Err(Error::upstream(Reason::UpstreamBadHead)),
                    Err(error) => return Err(Error::upstream(response_reason(error))),
                }
            }
            is_begun = true;
            read_body(&mut upstream, &mut response, body_bytes_max, is_call).await
        });
        let outcome = exchanged.await.unwrap_or_else(|_| Err(Error::upstream(Reason::ResponseTimeout)));
        match outcome {
            Ok(is_whole) => {
                if is_whole && upstream.input.is_empty() {
                    let reuse = Reuse::of(cluster, lease, method, &response.head, clock::now_ms());
                    driver::give_back(upstream, reuse);
                }
                let grpc_status = response.download.grpc_status().or_else(|| {
                    grpc::find(&response.head.fields, &response.bytes, b"grpc-status").map(grpc::Status::parse)
                });
                let kept = response.download.take_copy().filter(|_| is_whole && body_bytes_max.is_some());
                Ok(Answer { response, body: Ok(kept), grpc_status: grpc_status.filter(|_| is_call) })
            }
            Err(error) if is_begun && body_bytes_max.is_some() => {
                Ok(Answer { response, body: Err(error), grpc_status: None })
            }
            Err(error) => {
                let lost = driver::lost(&upstream, error);
                // Something of a response arrived, even if only half a head or a 1xx.
                was_heard |= lost.has_input;
                let sent = SentRequest {
                    bytes: self.upload.sent(),
                    head_us: self.upload.head_sent_us(),
                    failed: !is_sent,
                    before,
                };
                // A question changes nothing at the endpoint, whatever its method is.
                let method = if body_bytes_max.is_some() { Method::Get } else { method };
                let is_stale =
                    upstream.is_reused && !was_heard && is_sent_again(ending(&lost, &sent, clock::now_us()), method);
                Err(Failed { error: lost.error, is_stale })
            }
        }
    }
}

/// The same rule as for a client's request: if the endpoint may have seen it, it is sent again only if its method is idempotent. Discarding
/// the responses of a mirror does not make a repeated POST harmless there.
fn is_sent_again(ending: Ending, method: Method) -> bool {
    match ending {
        Ending::Unseen => true,
        Ending::Crossed => method.is_idempotent(),
        Ending::Refused | Ending::Unknown => false,
    }
}

/// Reads the body as far as it is worthwhile, and keeps up to this many bytes of it. Returns false if some of it is left, or the connection
/// ends with it and nothing is kept.
async fn read_body(
    upstream: &mut Upstream,
    response: &mut Response,
    kept_bytes_max: Option<usize>,
    is_call: bool,
) -> Result<bool, Error> {
    let Upstream { stream, input, .. } = upstream;
    let Response { head, download, .. } = response;
    let is_from_h2 = matches!(stream, Stream::H2(_));
    let is_too_long = match head.body {
        Body::Length(length) => length > SKIPPED_BYTES_MAX,
        Body::UntilClose => !is_from_h2 && kept_bytes_max.is_none(),
        Body::None | Body::Chunked => false,
    };
    if is_too_long {
        return Ok(false);
    }
    download.start(Framing::of(is_from_h2, head.body), Framing::H1(Body::UntilClose), Some(SKIPPED_BYTES_MAX));
    if is_call {
        download.set_call(None);
    }
    if let Some(bytes_max) = kept_bytes_max {
        download.keep_copy(bytes_max);
    }
    match poll_fn(|cx| driver::poll_discard(cx, download, stream, input)).await {
        Ok(()) => Ok(true),
        Err(TransferError::Body(BodyError::TooLarge)) => Ok(false),
        Err(failure) => Err(failure.of_response()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_its_endpoint_may_have_seen_is_sent_again_only_if_that_does_no_harm() {
        let check = |ending, method, expect| assert_eq!(is_sent_again(ending, method), expect, "{ending:?} {method:?}");
        check(Ending::Unseen, Method::Post, true);
        check(Ending::Unseen, Method::Get, true);
        check(Ending::Crossed, Method::Post, false);
        check(Ending::Crossed, Method::Get, true);
        check(Ending::Refused, Method::Get, false);
        check(Ending::Unknown, Method::Get, false);
        check(Ending::Unknown, Method::Post, false);
    }
}

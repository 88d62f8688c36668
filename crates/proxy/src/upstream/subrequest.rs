//! Our own requests: they are complete when they are sent, and their responses are read here instead of being relayed to a client.
//!
//! They use the same parts as a client's request ([`Exchange`](crate::exchange::Exchange)): [`Transfer`] frames the body and can send it
//! again, [`ResponseHeads`] reads the heads, another [`Transfer`] reads the body, [`ending`] says what a lost connection proves, and
//! [`Reuse`] whether the connection can be reused. The caller decides what to request, and what the response means.

use std::future::poll_fn;

use balance::Outcome;
use model::ClusterProtocol;
use net::clock;
use net::timer::Timer;
use telemetry::Reason;
use wire::message::{Body, Method};
use wire::{HeadKind, ResponseHeads};

use super::cluster::{Cluster, Lease};
use super::connect::{self, OnBehalfOf, Upstream, Wanted};
use crate::deadline::Deadline;
use crate::driver;
use crate::error::{Error, Side};
use crate::exchange::transfer::{BodyError, Framing, Transfer};
use crate::exchange::{Ending, Response, Reuse, SentRequest, TransferError, connection_outcome, ending};
use crate::http::headers;
use crate::http::receive::response_reason;
use crate::policy::RequestView;
use crate::policy::headers::RequestEdits;
use crate::stream::Stream;

/// Bytes of a response's body that are read so that its connection can be reused. Beyond that, the connection is closed.
const SKIPPED_BYTES_MAX: u64 = 256 * 1024;

/// A request with its body, in the form for its endpoint.
pub(crate) struct Subrequest {
    upload: Transfer,
    method: Method,
}

/// The sender of a subrequest, and its time limit.
pub(crate) struct Terms<'t> {
    pub(crate) who: OnBehalfOf,
    /// For consistent hashing.
    pub(crate) key: u64,
    pub(crate) timer: &'t Timer,
    /// The limit from now to the end of the response.
    pub(crate) time_ms_max: u64,
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
        headers::write_request(out, view.head, view.buffer, view.client, cluster.scheme(), edits);
        Self { upload, method: view.head.method }
    }

    /// Adds the body, with the length that the head states. A chunked body is sent as one chunk.
    pub(crate) fn put_body(&mut self, body: &[u8]) {
        self.upload.put_whole(body);
    }

    /// Sends it to an endpoint that the cluster chooses, and reads the response. The cluster records the endpoint's result.
    ///
    /// # Errors
    /// Those of [`Cluster::lease_at_once`] and [`connect::checkout`]; [`Reason::ResponseTimeout`]; those of a response that is cut off or
    /// cannot be read.
    pub(crate) async fn send(mut self, cluster: &Cluster, terms: &Terms<'_>) -> Result<Response, Error> {
        let now_us = clock::now_us();
        let now_ms = now_us / 1000;
        let deadline_ms = now_ms.saturating_add(terms.time_ms_max);
        let lease = cluster.lease_at_once(now_ms, terms.key)?;
        lease.endpoint.counters.requests.inc();
        let mut wanted = Wanted {
            who: &terms.who,
            client: None,
            begun_us: now_us,
            fresh_since_us: None,
            now_ms,
            deadline: Deadline::At(deadline_ms),
        };
        let outcome = loop {
            let upstream = match connect::checkout(cluster, &lease.endpoint, &wanted, terms.timer).await {
                Ok(upstream) => upstream,
                Err(error) => break Err(error),
            };
            terms.timer.set(deadline_ms);
            match self.exchange(cluster, &lease, upstream, terms.timer).await {
                Ok(response) => break Ok(response),
                Err(Failed { is_stale: true, .. }) if self.upload.rewind() => {
                    cluster.counters.stale_reuse.inc();
                    wanted.fresh_since_us = Some(now_us);
                }
                Err(Failed { error, .. }) => break Err(error),
            }
        };
        let judged = match &outcome {
            Ok(response) if response.head.status >= 500 => Some(Outcome::Failure5xx),
            Ok(_) => Some(Outcome::Success),
            Err(error) => (error.side == Side::Upstream).then(|| connection_outcome(error)),
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
        timer: &Timer,
    ) -> Result<Response, Failed> {
        let method = self.method;
        // Checked only if it matters, as for a client's request.
        let is_doubtful = upstream.is_reused && !method.is_idempotent();
        let before = if is_doubtful { upstream.stream.tcp().and_then(net::socket::progress) } else { None };
        let (mut response, mut heads) = (Response::default(), ResponseHeads::default());
        let (mut is_sent, mut was_heard) = (false, false);
        let exchanged = timer.guard(async {
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
            skip_body(&mut upstream, &mut response).await
        });
        let outcome = exchanged.await.unwrap_or_else(|_| Err(Error::upstream(Reason::ResponseTimeout)));
        match outcome {
            Ok(is_whole) => {
                if is_whole && upstream.input.is_empty() {
                    let reuse = Reuse::of(cluster, lease, method, &response.head, clock::now_ms());
                    driver::give_back(upstream, reuse);
                }
                Ok(response)
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

/// Reads and discards the body as far as it is worthwhile. Returns false if some of it is left, or the connection ends with it.
async fn skip_body(upstream: &mut Upstream, response: &mut Response) -> Result<bool, Error> {
    let Upstream { stream, input, .. } = upstream;
    let Response { head, download, .. } = response;
    let is_from_h2 = matches!(stream, Stream::H2(_));
    let is_too_long = match head.body {
        Body::Length(length) => length > SKIPPED_BYTES_MAX,
        Body::UntilClose => !is_from_h2,
        Body::None | Body::Chunked => false,
    };
    if is_too_long {
        return Ok(false);
    }
    download.start(Framing::of(is_from_h2, head.body), Framing::H1(Body::UntilClose), Some(SKIPPED_BYTES_MAX));
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

//! Copies of requests for other clusters, whose answers nobody sees.
//!
//! A copy is the request as the route's own endpoint gets it: path, headers and `Host` are not changed (Envoy's `-shadow` behind the host is
//! left out on purpose: a name that the mirror does not serve, or has no certificate for, tests nothing). It is sent when its body is
//! whole: at once where there is none, else when the exchange is over. From there on it is a task of its own: the client's exchange waits for
//! nothing of it. What the mirror's endpoints do counts for their own ejection, since they would do the same to a client.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;

use balance::Outcome;
use model::ClusterProtocol;
use net::buffer::Buffer;
use net::buffer::SMALL_BYTES;
use net::clock;
use net::timer::{Timer, Timers};
use smallvec::SmallVec;
use telemetry::Reason;
use tokio::io::AsyncWriteExt;
use wire::h1::{self, ChunkedDecoder, Decoded};
use wire::message::{Body, Method, ResponseHead};

use super::headers::RequestEdits;
use super::{RequestView, TrafficSplit};
use crate::deadline::Deadline;
use crate::driver;
use crate::error::{Error, Side};
use crate::exchange::transfer::Head;
use crate::exchange::{Ending, Response, Reuse, Sent, connection_outcome, ending};
use crate::h2::{Handle, HeaderList};
use crate::http::headers;
use crate::upstream::cluster::{Cluster, Lease};
use crate::upstream::connect::{self, OnBehalfOf, Upstream, Wanted};

use crate::stream::Stream;
use crate::worker::ListenerView;

/// Bytes of a body that are kept for a copy; a request with a longer one is not mirrored.
pub(crate) const MIRROR_BODY_BYTES_MAX: usize = 64 * 1024;

/// Copies under way on one worker, those that wait for their body included.
const MIRRORS_MAX: usize = 128;

/// From the sending of a copy to the end of its answer.
const MIRROR_MS_MAX: u64 = 10_000;

/// Bytes of an answer that are read so that its connection can be used again; past it the connection is closed.
const ANSWER_BYTES_MAX: u64 = 256 * 1024;

/// Interim answers that are read past.
const INTERIM_MAX: usize = 16;

/// The copies of one worker that are under way.
#[derive(Clone, Default)]
pub(crate) struct InFlight(Rc<Cell<usize>>);

/// The right to one of them.
struct InFlightGuard(Rc<Cell<usize>>);

impl InFlight {
    fn take(&self) -> Option<InFlightGuard> {
        let count = self.0.get();
        (count < MIRRORS_MAX).then(|| {
            self.0.set(count + 1);
            InFlightGuard(self.0.clone())
        })
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// The copies of one request, until its body is whole.
pub(crate) struct Copies {
    listener: Rc<ListenerView>,
    method: Method,
    body: Body,
    who: OnBehalfOf,
    targets: SmallVec<[MirrorTarget; 1]>,
}

struct MirrorTarget {
    cluster: Rc<Cluster>,
    head: Written,
    /// For consistent hashing.
    key: u64,
    guard: InFlightGuard,
}

/// The head of a copy, as its endpoint gets it.
enum Written {
    H1(Vec<u8>),
    H2(Box<HeaderList>),
}

impl Written {
    fn new(cluster: &Cluster, asked: &RequestView<'_>, edits: &RequestEdits<'_>) -> Self {
        let mut written = match cluster.plan.policy.protocol {
            ClusterProtocol::H1 => Self::H1(Vec::new()),
            ClusterProtocol::H2 => Self::H2(Box::default()),
        };
        let out = match &mut written {
            Self::H1(bytes) => Head::H1(bytes),
            Self::H2(list) => Head::H2(list),
        };
        headers::write_request(out, asked.head, asked.buffer, asked.client, cluster.scheme(), edits);
        written
    }
}

/// A copy.
enum Message {
    /// As on the wire.
    H1(Vec<u8>),
    H2 {
        head: Box<HeaderList>,
        body: Rc<[u8]>,
    },
}

impl Copies {
    /// The copies that the route asks for of this request, changed by `edits` as it is; `None`: there are none to be made.
    pub(crate) fn begin(
        listener: &Rc<ListenerView>,
        mirrors: &[model::Mirror],
        split: &TrafficSplit,
        asked: &RequestView<'_>,
        edits: &RequestEdits<'_>,
        who: OnBehalfOf,
        in_flight: &InFlight,
    ) -> Option<Box<Self>> {
        // What follows an upgrade is no request, and cannot be had twice.
        if asked.head.upgrade.is_some() {
            return None;
        }
        let mut targets = SmallVec::new();
        for (number, mirror) in mirrors.iter().enumerate().filter(|(number, _)| split.is_mirrored(*number)) {
            let Some(cluster) = listener.clusters.get(mirror.to.0) else { continue };
            let is_too_large = matches!(asked.head.body, Body::Length(length) if length > MIRROR_BODY_BYTES_MAX as u64);
            match in_flight.take() {
                _ if is_too_large => listener.count(Reason::MirrorTooLarge),
                None => listener.count(Reason::MirrorFull),
                Some(guard) => {
                    tracing::trace!(number, cluster = cluster.plan.policy.name, "mirrored");
                    let key = cluster.hash_key();
                    let key =
                        key.map_or(0, |key| crate::upstream::hash::key(key, asked.head, asked.buffer, asked.client));
                    let head = Written::new(cluster, asked, edits);
                    targets.push(MirrorTarget { cluster: cluster.clone(), head, key, guard });
                }
            }
        }
        if targets.is_empty() {
            return None;
        }
        Some(Box::new(Self {
            listener: listener.clone(),
            method: asked.head.method,
            body: asked.head.body,
            who,
            targets,
        }))
    }

    /// Sends the copies on their way behind the request's body; `None`: it is too long for that.
    pub(crate) fn send(self, body_data: Option<Vec<u8>>, timers: &Timers) {
        let Self { listener, method, body, who, targets } = self;
        let Some(data) = body_data else {
            return targets.iter().for_each(|_| listener.count(Reason::MirrorTooLarge));
        };
        let data: Rc<[u8]> = data.into();
        for MirrorTarget { cluster, head, key, guard } in targets {
            let message = match head {
                Written::H1(head) => Message::H1(framed(head, body, &data)),
                Written::H2(head) => Message::H2 { head, body: data.clone() },
            };
            let (listener, timer) = (listener.clone(), Timer::new(timers));
            tokio::task::spawn_local(async move {
                let _ticket = guard;
                match deliver(&cluster, key, &message, method, who, &timer).await {
                    Ok(()) => cluster.counters.mirrored.inc(),
                    Err(error) => {
                        listener.count(Reason::MirrorFailed);
                        tracing::debug!(cluster = cluster.plan.policy.name, %error, "mirror failed");
                    }
                }
            });
        }
    }
}

/// The whole request. A body that came in chunks goes as one.
fn framed(mut message: Vec<u8>, body: Body, data: &[u8]) -> Vec<u8> {
    if body != Body::Chunked {
        message.extend_from_slice(data);
        return message;
    }
    if !data.is_empty() {
        h1::chunk_start(&mut message, data.len());
        message.extend_from_slice(data);
        h1::chunk_end(&mut message);
    }
    message.extend_from_slice(h1::LAST_CHUNK);
    message
}

/// Why a copy has no answer.
struct Failed {
    error: Error,
    /// The endpoint closed a kept connection just then, so that the copy is sent once more, on a fresh one: see [`is_sent_again`].
    is_stale: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, is_stale: false }
    }
}

/// Sends one copy, and reads its answer.
async fn deliver(
    cluster: &Cluster,
    key: u64,
    message: &Message,
    method: Method,
    who: OnBehalfOf,
    timer: &Timer,
) -> Result<(), Error> {
    let now_us = clock::now_us();
    let now_ms = now_us / 1000;
    let deadline_ms = now_ms.saturating_add(MIRROR_MS_MAX);
    let lease = cluster.lease_at_once(now_ms, key)?;
    lease.endpoint.counters.requests.inc();
    let deadline = Deadline::At(deadline_ms);
    let mut wanted = Wanted { who: &who, client: None, begun_us: now_us, fresh_since_us: None, now_ms, deadline };
    let outcome = loop {
        let upstream = match connect::checkout(cluster, &lease.endpoint, &wanted, timer).await {
            Ok(upstream) => upstream,
            Err(error) => break Err(error),
        };
        match answer(cluster, &lease, upstream, message, method, timer, deadline_ms).await {
            Ok(status) => break Ok(status),
            Err(Failed { is_stale: true, .. }) => {
                cluster.counters.stale_reuse.inc();
                wanted.fresh_since_us = Some(now_us);
            }
            Err(Failed { error, .. }) => break Err(error),
        }
    };
    match &outcome {
        Ok(status) if *status >= 500 => cluster.record(&lease.endpoint, clock::now_ms(), Outcome::Failure5xx),
        Ok(_) => cluster.record(&lease.endpoint, clock::now_ms(), Outcome::Success),
        Err(error) if error.side == Side::Upstream => {
            cluster.record(&lease.endpoint, clock::now_ms(), connection_outcome(error))
        }
        Err(_) => {}
    }
    outcome.map(drop)
}

/// Gives the status of the answer once it has been read, as far as that is worth it.
async fn answer(
    cluster: &Cluster,
    lease: &Lease,
    mut upstream: Upstream,
    message: &Message,
    method: Method,
    timer: &Timer,
    deadline_ms: u64,
) -> Result<u16, Failed> {
    timer.set(deadline_ms);
    let mut response = Response::default();
    // RequestView only where it can matter, as for a request.
    let is_doubtful = upstream.is_reused && !method.is_idempotent();
    let before = if is_doubtful { upstream.stream.tcp().and_then(net::socket::progress) } else { None };
    let mut sent = Sent { bytes: 0, head_us: None, failed: false, before };
    let exchanged = timer.guard(async {
        match (message, &mut upstream.stream) {
            (Message::H2 { head: request, body }, Stream::H2(handle)) => {
                send_frames(handle, request, body, &mut sent).await.map_err(Error::endpoint_io)?;
                final_head(&mut upstream, method, &mut response).await?;
                skip_frames(&upstream).await.map(|()| true)
            }
            (Message::H1(bytes), stream) => {
                send_bytes(stream, bytes, &mut sent).await.map_err(Error::endpoint_io)?;
                final_head(&mut upstream, method, &mut response).await?;
                is_read_whole(&mut upstream, &response.head).await
            }
            (Message::H2 { .. }, _) => Err(Error::internal(Reason::Internal)),
        }
    });
    let exchanged = exchanged.await.map_err(|_| Error::upstream(Reason::ResponseTimeout))?;
    let is_whole = exchanged.map_err(|error| {
        let is_reused = upstream.is_reused;
        let lost = driver::lost(&upstream, error);
        // Something of an answer came, be it half a head or a 1xx.
        let was_heard = response.head.status != 0 || lost.has_input;
        let is_stale = is_reused && !was_heard && is_sent_again(ending(&lost, &sent, clock::now_us()), method);
        Failed { error: lost.error, is_stale }
    })?;
    if is_whole && upstream.input.is_empty() {
        driver::give_back(upstream, Reuse::of(cluster, lease, method, &response.head, clock::now_ms()));
    }
    Ok(response.head.status)
}

/// The same rule as for a request: one that the endpoint may have seen is repeated only if its method is idempotent. That nobody reads the
/// answers of a mirror does not make a POST harmless there.
fn is_sent_again(ending: Ending, method: Method) -> bool {
    match ending {
        Ending::Unseen => true,
        Ending::Crossed => method.is_idempotent(),
        Ending::Refused | Ending::Unknown => false,
    }
}

async fn send_bytes(stream: &mut Stream, bytes: &[u8], sent: &mut Sent) -> std::io::Result<()> {
    sent.failed = true;
    let mut rest = bytes;
    while !rest.is_empty() {
        let taken = stream.write(rest).await?;
        if taken == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        if sent.bytes == 0 {
            sent.head_us = Some(clock::now_us());
        }
        sent.bytes += taken as u64;
        rest = rest.get(taken..).unwrap_or_default();
    }
    stream.flush().await?;
    sent.failed = false;
    Ok(())
}

async fn send_frames(handle: &mut Handle, head: &HeaderList, body: &[u8], sent: &mut Sent) -> std::io::Result<()> {
    poll_fn(|cx| handle.poll_send_head(cx, head, body.is_empty())).await?;
    sent.head_us = Some(clock::now_us());
    let mut rest = body;
    while !rest.is_empty() {
        let taken = poll_fn(|cx| handle.poll_send(cx, rest, true)).await?;
        rest = rest.get(taken..).unwrap_or_default();
    }
    Ok(())
}

/// Reads an answer in frames, as far as it is worth it: a stream that is cut short costs no connection.
async fn skip_frames(upstream: &Upstream) -> Result<(), Error> {
    let Some(handle) = upstream.stream.h2() else { return Ok(()) };
    let (mut input, mut read) = (Buffer::none(), 0);
    while read <= ANSWER_BYTES_MAX
        && poll_fn(|cx| handle.poll_data(cx, &mut input)).await.map_err(Error::endpoint_io)?
    {
        handle.release(input.len());
        read += input.len() as u64;
    }
    Ok(())
}

/// Reads past interim answers to the head of the final one.
async fn final_head(upstream: &mut Upstream, method: Method, response: &mut Response) -> Result<(), Error> {
    for _ in 0..=INTERIM_MAX {
        let mut scanned = 0;
        poll_fn(|cx| driver::poll_response_head(cx, upstream, response, &mut scanned, method)).await?;
        match response.head.status {
            101 => break,
            100..=199 => {}
            _ => return Ok(()),
        }
    }
    Err(Error::upstream(Reason::UpstreamBadHead))
}

/// Reads the body and throws it away. False: it is too long for that, or ends with the connection.
async fn is_read_whole(upstream: &mut Upstream, head: &ResponseHead) -> Result<bool, Error> {
    let mut left = match head.body {
        Body::None => return Ok(true),
        Body::Length(length) if length <= ANSWER_BYTES_MAX => length,
        Body::Chunked => ANSWER_BYTES_MAX,
        Body::Length(_) | Body::UntilClose => return Ok(false),
    };
    let mut decoder = (head.body == Body::Chunked).then(ChunkedDecoder::default);
    let Upstream { stream, input, .. } = upstream;
    loop {
        let taken = match &mut decoder {
            None => usize::try_from(left).unwrap_or(usize::MAX).min(input.len()),
            Some(decoder) => match skip_chunks(decoder, input.filled())? {
                (taken, true) => {
                    input.consume(taken);
                    return Ok(true);
                }
                (taken, false) => taken,
            },
        };
        input.consume(taken);
        left = left.saturating_sub(taken as u64);
        if left == 0 {
            return Ok(decoder.is_none());
        }
        input.grow(SMALL_BYTES);
        if poll_fn(|cx| input.poll_fill(cx, stream)).await.map_err(Error::endpoint_io)? == 0 {
            return Err(Error::upstream(Reason::UpstreamEof));
        }
    }
}

/// How many bytes belong to the body, and whether it ends with them.
fn skip_chunks(decoder: &mut ChunkedDecoder, bytes: &[u8]) -> Result<(usize, bool), Error> {
    let mut at = 0;
    loop {
        match decoder.decode(bytes, at).map_err(|_| Error::upstream(Reason::UpstreamBadFraming))? {
            Decoded::More => return Ok((bytes.len(), false)),
            Decoded::Data(range) => at = range.end,
            Decoded::End(end) => return Ok((end, true)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_framed_as_its_head_says() {
        let check = |body, data: &str, expect: &str| {
            assert_eq!(String::from_utf8(framed(b"H".to_vec(), body, data.as_bytes())).unwrap(), expect);
        };
        check(Body::None, "", "H");
        check(Body::Length(5), "hello", "Hhello");
        check(Body::Chunked, "hello", "H5\r\nhello\r\n0\r\n\r\n");
        check(Body::Chunked, "", "H0\r\n\r\n");
    }

    #[test]
    fn a_copy_that_its_endpoint_may_have_seen_is_repeated_only_if_that_does_no_harm() {
        let check = |ending, method, expect| assert_eq!(is_sent_again(ending, method), expect, "{ending:?} {method:?}");
        check(Ending::Unseen, Method::Post, true);
        check(Ending::Unseen, Method::Get, true);
        check(Ending::Crossed, Method::Post, false);
        check(Ending::Crossed, Method::Get, true);
        check(Ending::Refused, Method::Get, false);
        check(Ending::Unknown, Method::Get, false);
        check(Ending::Unknown, Method::Post, false);
    }

    #[test]
    fn copies_under_way_are_bounded() {
        let in_flight = InFlight::default();
        let mut tickets: Vec<_> = (0..MIRRORS_MAX).map(|_| in_flight.take().unwrap()).collect();
        assert!(in_flight.take().is_none());
        tickets.pop();
        assert!(in_flight.take().is_some());
    }

    #[test]
    fn chunks_are_skipped_to_their_end() {
        let check = |bytes: &str, expect| {
            let skipped = skip_chunks(&mut ChunkedDecoder::default(), bytes.as_bytes());
            assert_eq!(skipped.map_err(|error| error.reason), expect, "{bytes}");
        };
        check("2\r\nhe\r\n0\r\n\r\nnext", Ok((12, true)));
        check("5\r\nhe", Ok((5, false)));
        check("x\r\n", Err(Reason::UpstreamBadFraming));
    }
}

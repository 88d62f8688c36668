//! HTTP/2 load, over TLS or in clear text with prior knowledge: plain requests and gRPC calls. Each stream is a lane.
//!
//! The `h2` crate implements the protocol. It costs several times the CPU time of a lean HTTP/1.1 client, so the load may saturate before
//! the balancer does. Compare balancers by their own CPU time.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::engine::{self, Lane, Protocol};
use super::grpc::{Calls, Counted};
use super::http::{Addressed, FirstLength, HttpLoad, Sent, Server, is_success};
use super::mix::Mix;
use super::payload::Payload;
use super::report::LoadReport;
use super::shape::Shape;
use super::socket::{Socket, Tls};
use super::tally::{Met, Outcome};
use crate::requests::shown;
use crate::stats::Rng;

/// The flow-control windows of a stream and of a connection. They are so large that this side never limits a transfer.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The request that is sent on each stream, and how its response is judged.
pub(super) struct Exchange {
    pub servers: Vec<Server>,
    pub shape: Shape,
    /// What is sent, with its body; empty for gRPC, which sends messages instead.
    pub requests: Mix<Addressed<(http::Request<()>, Payload)>>,
    /// For gRPC: creates the messages, and judges the responses.
    pub calls: Option<Calls>,
    pub body: FirstLength,
}

/// A stream reserves at most this many bytes of flow control at a time, which is a few frames of a body.
const PIECE_BYTES_MAX: usize = 64 * 1024;

/// Runs a load of plain requests.
pub(super) async fn run(load: &HttpLoad) -> io::Result<LoadReport> {
    if load.close {
        let why = "--close works with HTTP/1 only: remove --close, or use --http 1.1";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // A `host` header of the user becomes `:authority`. If both were sent and differed, a server would refuse the request (RFC 9113
    // section 8.3.1).
    let is_host = |(name, _): &&(String, String)| name.eq_ignore_ascii_case("host");
    let requests = load.requests(|Sent { method, target, is_secure, headers, payload }| {
        let host = headers.iter().find(is_host).map_or(&target.host, |(_, value)| value);
        let scheme = if *is_secure { "https" } else { "http" };
        let has_length = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        let uri = format!("{scheme}://{host}{}", target.path);
        let mut request = http::Request::builder().method(*method).uri(&uri).version(http::Version::HTTP_2);
        for (name, value) in headers.iter().filter(|header| !is_host(header)) {
            request = request.header(name, value);
        }
        if payload.len() > 0 && !has_length {
            request = request.header("content-length", payload.len());
        }
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, format!("{method} {}: {error}", shown(&uri)));
        Ok((request.body(()).map_err(invalid)?, payload.clone()))
    })?;
    let exchange = Exchange {
        servers: load.servers(),
        shape: load.shape.clone(),
        requests,
        calls: None,
        body: FirstLength::when(load.same_length),
    };
    let name = if load.tls.is_some() { "http/2 over TLS" } else { "h2c" };
    engine::run(name, Arc::new(exchange), &load.shape, load.mark.clone()).await
}

impl Protocol for Arc<Exchange> {
    type Lane = Stream;

    fn lanes(&self, number: u64, streams: usize) -> Vec<Stream> {
        let link = |Server { address, tls }: &Server| Link {
            address: *address,
            tls: tls.clone(),
            source: self.shape.source(number),
            current: tokio::sync::Mutex::default(),
            traffic: Arc::default(),
        };
        let links: Vec<_> = self.servers.iter().map(|server| Arc::new(link(server))).collect();
        let lane = |stream: usize| Stream {
            exchange: self.clone(),
            links: links.iter().map(|link| Handle { link: link.clone(), sender: None }).collect(),
            calls: self.calls.as_ref().map(|calls| calls.seeded(number * streams as u64 + stream as u64)),
            rng: Rng::new(self.shape.seed.wrapping_add(number * streams as u64 + stream as u64)),
        };
        (0..streams).map(lane).collect()
    }
}

/// A connection and its reconnects, which its streams share.
struct Link {
    address: SocketAddr,
    tls: Option<Tls>,
    source: Option<IpAddr>,
    current: tokio::sync::Mutex<Current>,
    traffic: Arc<Traffic>,
}

#[derive(Default)]
struct Current {
    /// The number of connections opened so far.
    generation: u64,
    sender: Option<SendRequest<Bytes>>,
}

/// Bytes of a connection that no operation has counted yet.
#[derive(Default)]
struct Traffic {
    received: AtomicU64,
    sent: AtomicU64,
}

impl Link {
    /// Returns the current connection. Opens a new one if there is none, or if the current one is the one that the caller found dead.
    async fn connect(&self, dead: Option<u64>, met: &mut Met) -> io::Result<(u64, SendRequest<Bytes>)> {
        let mut current = self.current.lock().await;
        let is_dead = dead == Some(current.generation);
        if let Some(sender) = current.sender.as_ref().filter(|_| !is_dead) {
            return Ok((current.generation, sender.clone()));
        }
        current.sender = None;
        let begun = Instant::now();
        let stream = Socket::connect(self.address, self.source, self.tls.as_ref()).await?;
        if stream.chose_http2() == Some(false) {
            return Err(io::Error::other("the server chose HTTP/1.1 instead of HTTP/2 in the TLS handshake"));
        }
        let io = Metered { stream, traffic: self.traffic.clone() };
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let (sender, connection) =
            builder.enable_push(false).handshake::<_, Bytes>(io).await.map_err(io::Error::other)?;
        // The streams notice when the connection ends.
        tokio::spawn(async move { connection.await.is_ok() });
        met.connected = Some(begun.elapsed());
        met.reconnects += u64::from(current.generation > 0);
        current.generation += 1;
        current.sender = Some(sender.clone());
        Ok((current.generation, sender))
    }
}

/// What a lane has of the connection to a server.
struct Handle {
    link: Arc<Link>,
    /// The number of the connection, and its sender.
    sender: Option<(u64, SendRequest<Bytes>)>,
}

/// A lane, which uses one stream after the other.
pub(super) struct Stream {
    exchange: Arc<Exchange>,
    /// One for each server.
    links: Vec<Handle>,
    calls: Option<Calls>,
    /// Draws the requests of a mix.
    rng: Rng,
}

impl Lane for Stream {
    async fn prepare(&mut self) {
        // As with HTTP/1, the first request to each of several servers connects.
        if let [Handle { link, sender }] = self.links.as_mut_slice() {
            *sender = link.connect(None, &mut Met::default()).await.ok();
        }
    }

    async fn operate(&mut self, place: Option<usize>, met: &mut Met) -> Outcome {
        let place = place.unwrap_or_else(|| self.exchange.requests.draw(&mut self.rng));
        let Addressed { server, counted, .. } = self.exchange.requests.at(place);
        let server = *server;
        met.target.clone_from(counted);
        let outcome = loop {
            if !self.get_ready(server, met).await {
                break Outcome::NoConnection;
            }
            match self.exchange_once(place, server, met).await {
                Ok(outcome) => break outcome,
                // RFC 9113 section 8.7: a request that the server has not started to process may be sent again.
                Err(error) if is_unprocessed(&error) && met.resent == 0 => met.resent += 1,
                Err(error) => {
                    met.failed("request", &error);
                    break Outcome::Broken;
                }
            }
        };
        let traffic = &self.links[server].link.traffic;
        met.received_bytes = traffic.received.swap(0, Ordering::Relaxed);
        met.sent_bytes = traffic.sent.swap(0, Ordering::Relaxed);
        outcome
    }

    fn is_open(&self) -> bool {
        self.links.iter().any(|handle| handle.sender.is_some())
    }
}

impl Stream {
    /// Waits for a connection that accepts another stream. Returns false if connecting fails.
    async fn get_ready(&mut self, server: usize, met: &mut Met) -> bool {
        let Handle { link, sender: own } = &mut self.links[server];
        let mut dead = None;
        if let Some((generation, sender)) = own {
            match poll_fn(|context| sender.poll_ready(context)).await {
                Ok(()) => return true,
                Err(_) => dead = Some(*generation),
            }
        }
        *own = None;
        let (generation, mut sender) = match link.connect(dead, met).await {
            Ok(connected) => connected,
            Err(error) => {
                met.failed("connect", &error);
                return false;
            }
        };
        if let Err(error) = poll_fn(|context| sender.poll_ready(context)).await {
            met.failed("connect", &error);
            return false;
        }
        *own = Some((generation, sender));
        true
    }

    /// Sends the request at this place of the mix.
    async fn exchange_once(&mut self, place: usize, server: usize, met: &mut Met) -> Result<Outcome, h2::Error> {
        let Some((_, sender)) = &mut self.links[server].sender else { return Ok(Outcome::NoConnection) };
        let message = self.calls.as_mut().map(Calls::next_message);
        let (request, payload) = &self.exchange.requests.at(place).request;
        // A long message is sent like the body of a request, as fast as flow control allows.
        let (message, long) = match message {
            Some(message) if message.len() > PIECE_BYTES_MAX => (None, Some(Payload::of(message))),
            message => (message, None),
        };
        let payload = long.as_ref().unwrap_or(payload);
        let has_body = message.is_some() || payload.len() > 0;
        let (answer, mut sending) = sender.send_request(request.clone(), !has_body)?;
        if let Some(message) = message {
            sending.send_data(message, true)?;
        }
        let sent_at = Instant::now();
        let reading = read_answer(answer, self.calls.is_some());
        let answer = match payload.len() {
            0 => reading.await?,
            // Send and read at the same time: an origin that echoes stops reading when its response is not read.
            _ => {
                tokio::pin!(reading);
                tokio::select! {
                    // A complete response before the end of the body refuses the request. The rest of the body is not sent.
                    answer = &mut reading => answer?,
                    // Ignore an error while sending: if the server rejects the body, its response says why.
                    _ = send_payload(&mut sending, payload) => reading.await?,
                }
            }
        };
        // For a long body, this function does not know when the send ended.
        let is_short = payload.len() <= PIECE_BYTES_MAX as u64;
        met.waiting = is_short.then(|| answer.came_at.saturating_duration_since(sent_at));
        let head = &answer.head;
        if let Some(origin) = head.headers.get("x-origin") {
            met.origin.clear();
            met.origin.extend_from_slice(origin.as_bytes());
        }
        if let Some(calls) = &self.calls {
            return Ok(calls.judge(head, answer.trailers.as_ref(), &answer.counted, met));
        }
        met.status = Some(head.status.as_u16());
        let is_good = is_success(head.status.as_u16());
        met.is_other_length = is_good && self.exchange.body.is_other(answer.length);
        Ok(if is_good { Outcome::Good } else { Outcome::Refused })
    }
}

/// A complete response.
struct Answer {
    head: http::response::Parts,
    /// When the head arrived.
    came_at: Instant,
    /// The length of the body.
    length: u64,
    /// With gRPC, its messages.
    counted: Counted,
    trailers: Option<http::HeaderMap>,
}

async fn read_answer(answer: ResponseFuture, is_grpc: bool) -> Result<Answer, h2::Error> {
    let answer = answer.await?;
    let came_at = Instant::now();
    let (head, mut body) = answer.into_parts();
    let (mut length, mut counted) = (0, Counted::default());
    while let Some(piece) = body.data().await {
        let piece = piece?;
        let count = piece.len();
        length += count as u64;
        if is_grpc {
            counted.push(&piece);
        }
        body.flow_control().release_capacity(count)?;
    }
    let trailers = if is_grpc { body.trailers().await? } else { None };
    Ok(Answer { head, came_at, length, counted, trailers })
}

/// Sends a body as fast as flow control allows.
async fn send_payload(sending: &mut SendStream<Bytes>, payload: &Payload) -> Result<(), h2::Error> {
    let mut sent = 0;
    while sent < payload.len() {
        let wanted = payload.piece(sent, PIECE_BYTES_MAX).len();
        sending.reserve_capacity(wanted);
        while sending.capacity() == 0 {
            match poll_fn(|context| sending.poll_capacity(context)).await {
                Some(room) => room?,
                // The stream has ended.
                None => return Ok(()),
            };
        }
        let piece = payload.piece(sent, wanted.min(sending.capacity()));
        sent += piece.len() as u64;
        sending.send_data(piece, sent == payload.len())?;
    }
    Ok(())
}

fn is_unprocessed(error: &h2::Error) -> bool {
    error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
}

/// A socket that counts the bytes sent and received.
struct Metered {
    stream: Socket,
    traffic: Arc<Traffic>,
}

impl AsyncRead for Metered {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = to.filled().len();
        let outcome = Pin::new(&mut this.stream).poll_read(context, to);
        this.traffic.received.fetch_add((to.filled().len() - before) as u64, Ordering::Relaxed);
        outcome
    }
}

impl AsyncWrite for Metered {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(context, from);
        this.traffic.count_sent(&outcome);
        outcome
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(context, from);
        this.traffic.count_sent(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

impl Traffic {
    fn count_sent(&self, outcome: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = outcome {
            self.sent.fetch_add(*count as u64, Ordering::Relaxed);
        }
    }
}

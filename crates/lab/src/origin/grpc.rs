//! The HTTP/2 origin. It answers `strest.Responder` like strest-grpc's server, health checks, and plain requests.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use tokio::net::TcpStream;

use super::manner::Manner;
use super::stats::Counts;
use super::{Acceptors, GrpcOriginArgs};
use crate::alarm::Alarms;
use crate::percentiles::Percentiles;
use crate::stats::Rng;
use crate::strest::{self, Deframer, ResponseReply, ResponseSpec, StreamingResponseSpec};

/// The path of health checks (grpc.health.v1).
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// Concurrent streams on one connection.
const STREAMS_MAX: u32 = 4_096;

/// Flow-control windows that are large enough that this side never slows a transfer down.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// The gRPC statuses that this origin sends.
const OK: u16 = 0;
const UNKNOWN: u16 = 2;
const INVALID_ARGUMENT: u16 = 3;
const UNIMPLEMENTED: u16 = 12;

/// A gRPC origin with its addresses bound.
pub struct GrpcOrigin {
    acceptors: Acceptors,
    service: Arc<Service>,
}

struct Service {
    name: Option<HeaderValue>,
    /// The body of plain answers.
    body: Bytes,
    /// Added to what each call asks for, in strest's way.
    latency: Option<Percentiles>,
    manner: Manner,
    counts: Arc<Counts>,
    /// Calls so far, which give the seeds of their draws.
    calls: AtomicU64,
}

impl GrpcOrigin {
    /// Binds the addresses, and serves nothing yet.
    ///
    /// # Errors
    /// An address that cannot be bound; the message names it.
    pub fn bind(args: &GrpcOriginArgs) -> io::Result<Self> {
        let counts = Arc::<Counts>::default();
        let name = args.name.as_deref().and_then(|name| HeaderValue::from_str(name).ok());
        Ok(Self {
            acceptors: Acceptors::bind(&args.listen, args.threads)?.telling(args.manner.stats, &counts)?,
            service: Arc::new(Service {
                name,
                body: vec![b'.'; args.body as usize].into(),
                latency: args.latency_percentiles.clone(),
                manner: Manner::new(args.delay, &args.manner),
                counts,
                calls: AtomicU64::new(0),
            }),
        })
    }

    /// The bound addresses, in the order of the arguments.
    ///
    /// # Errors
    /// None in practice: the kernel knows the address of a bound socket.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.acceptors.addresses()
    }

    /// Serves on this thread and on the other requested threads until `end` is ready.
    ///
    /// # Errors
    /// Those of `end`, or the runtime cannot start.
    pub fn run_until(&self, end: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let service = self.service.clone();
        self.acceptors.run_until(move |stream, alarms| serve(stream, alarms, service.clone()), end)
    }

    /// Requests whose head has been read, without health checks.
    pub fn requests(&self) -> u64 {
        self.service.counts.requests.load(Ordering::Relaxed)
    }

    /// Connections accepted.
    pub fn connections(&self) -> u64 {
        self.service.counts.connections.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, alarms: Alarms, service: Arc<Service>) {
    service.counts.connections.fetch_add(1, Ordering::Relaxed);
    // This only fails for a dead socket, and the handshake will find that out.
    let _ = stream.set_nodelay(true);
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(STREAMS_MAX);
    builder.initial_window_size(STREAM_WINDOW_BYTES).initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let (service, alarms) = (service.clone(), alarms.clone());
        let rng = Rng::new(service.calls.fetch_add(1, Ordering::Relaxed));
        let call = Call { service, alarms, rng, respond };
        // If the client aborts, there is nothing left to do.
        tokio::spawn(async move { call.answer(request).await.is_ok() });
    }
}

/// One request, and where its answer goes.
struct Call {
    service: Arc<Service>,
    alarms: Alarms,
    rng: Rng,
    respond: SendResponse<Bytes>,
}

impl Call {
    async fn answer(mut self, request: Request<RecvStream>) -> Result<(), h2::Error> {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if path == HEALTH {
            // The message for SERVING: field 1, an enumeration, is 1.
            return self.reply(Bytes::from_static(&[0, 0, 0, 0, 2, 0x08, 0x01]));
        }
        self.service.counts.requests.fetch_add(1, Ordering::Relaxed);
        let is_grpc =
            head.headers.get("content-type").is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
        match path {
            _ if !is_grpc => self.plain(&head, body).await,
            strest::GET => self.unary(body).await,
            strest::STREAMING_GET => self.streaming(body).await,
            _ => self.refuse(UNIMPLEMENTED, "only strest.Responder is served here"),
        }
    }

    async fn plain(mut self, head: &http::request::Parts, body: RecvStream) -> Result<(), h2::Error> {
        drain(body).await?;
        self.hold(Duration::ZERO).await;
        let mut answer = Response::builder().header("content-length", self.service.body.len());
        if let Some(name) = &self.service.name {
            answer = answer.header("x-origin", name);
        }
        let Ok(answer) = answer.body(()) else { return Ok(()) };
        let has_none = head.method == http::Method::HEAD || self.service.body.is_empty();
        let mut sending = self.respond.send_response(answer, has_none)?;
        if !has_none {
            sending.send_data(self.service.body.clone(), true)?;
        }
        Ok(())
    }

    async fn unary(mut self, mut body: RecvStream) -> Result<(), h2::Error> {
        let mut messages = Deframer::default();
        let spec = match next_message::<ResponseSpec>(&mut body, &mut messages).await? {
            Ok(Some(spec)) => spec,
            Ok(None) | Err(_) => return self.refuse(INVALID_ARGUMENT, "not a strest.ResponseSpec message"),
        };
        self.hold(milliseconds(spec.latency)).await;
        if self.rng.unit() < f64::from(spec.error_rate) {
            return self.refuse(UNKNOWN, "Error");
        }
        let reply =
            ResponseReply { body: filling(spec.length.into()), last_frame_sent: 0, current_frame_sent: now_ns() };
        self.reply(strest::framed(&reply))
    }

    /// Sends as many replies to each specification as it asks for. A count of 0 ends the call, and so does the end of the specifications.
    async fn streaming(mut self, mut body: RecvStream) -> Result<(), h2::Error> {
        let mut messages = Deframer::default();
        let mut sending = self.respond.send_response(self.head(), false)?;
        let status = loop {
            let spec = match next_message::<StreamingResponseSpec>(&mut body, &mut messages).await? {
                Ok(Some(spec)) if spec.count > 0 => spec,
                Ok(Some(StreamingResponseSpec { count: 0, .. }) | None) => break OK,
                Ok(Some(_)) | Err(_) => break INVALID_ARGUMENT,
            };
            let latency = Percentiles::from_strest_map(&spec.latency_percentiles);
            let length = Percentiles::from_strest_map(&spec.length_percentiles);
            let (Some(latency), Some(length)) = (latency, length) else { break INVALID_ARGUMENT };
            let mut last_frame_sent = now_ns();
            for _ in 0..spec.count {
                let wait = latency.draw(&mut self.rng);
                self.hold(wait).await;
                // The map of lengths has plain numbers that are read like the one with milliseconds.
                let body = filling(length.draw(&mut self.rng).as_millis() as i64);
                let reply = ResponseReply { body, last_frame_sent, current_frame_sent: now_ns() };
                last_frame_sent = reply.current_frame_sent;
                send_in_time(&mut sending, strest::framed(&reply)).await?;
            }
        };
        sending.send_trailers(trailers(status))
    }

    /// Waits for the time that the call asks for plus the origin's own delay.
    async fn hold(&mut self, asked: Duration) {
        let added = self.service.latency.as_ref().map(|latency| latency.draw(&mut self.rng)).unwrap_or_default();
        self.service.manner.hold(asked + added, &mut self.rng, &self.alarms).await;
    }

    fn head(&self) -> Response<()> {
        let mut head = Response::new(());
        head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        if let Some(name) = &self.service.name {
            head.headers_mut().insert("x-origin", name.clone());
        }
        head
    }

    fn reply(&mut self, message: Bytes) -> Result<(), h2::Error> {
        let mut sending = self.respond.send_response(self.head(), false)?;
        sending.send_data(message, false)?;
        sending.send_trailers(trailers(OK))
    }

    /// A head that is also the trailers.
    fn refuse(&mut self, status: u16, why: &'static str) -> Result<(), h2::Error> {
        let mut head = self.head();
        head.headers_mut().extend(trailers(status));
        head.headers_mut().insert("grpc-message", HeaderValue::from_static(why));
        self.respond.send_response(head, true).map(drop)
    }
}

fn trailers(status: u16) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from(status))])
}

/// The next message of a request's body; `None` at its end.
async fn next_message<M: Message + Default>(
    body: &mut RecvStream,
    messages: &mut Deframer,
) -> Result<Result<Option<M>, strest::BadFrame>, h2::Error> {
    loop {
        match messages.next() {
            Ok(None) => {}
            complete => return Ok(complete),
        }
        let Some(piece) = body.data().await else { return Ok(Ok(None)) };
        let piece = piece?;
        messages.push(&piece);
        body.flow_control().release_capacity(piece.len())?;
    }
}

async fn drain(mut body: RecvStream) -> Result<(), h2::Error> {
    while let Some(piece) = body.data().await {
        let count = piece?.len();
        body.flow_control().release_capacity(count)?;
    }
    Ok(())
}

/// Sends when the other side has room, because `h2` would keep any number of messages in memory.
async fn send_in_time(sending: &mut h2::SendStream<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    sending.reserve_capacity(message.len());
    while sending.capacity() < message.len().min(STREAM_WINDOW_BYTES as usize) {
        match std::future::poll_fn(|context| sending.poll_capacity(context)).await {
            Some(granted) => granted?,
            // The other side has gone.
            None => return Ok(()),
        };
    }
    sending.send_data(message, false)
}

fn milliseconds(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// A text of this many dots, limited to the size of a message.
fn filling(length: i64) -> String {
    let length = usize::try_from(length).unwrap_or_default();
    ".".repeat(length.min(strest::MESSAGE_BYTES_MAX))
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

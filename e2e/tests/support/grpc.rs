//! A gRPC service and its clients, on the `h2` crate, which is not the HTTP/2 implementation under test.
#![allow(dead_code, reason = "each test binary compiles all of it and uses its part")]

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use testkit::PATIENCE;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

pub const SAY_HELLO: &str = "/helloworld.Greeter/SayHello";
pub const STREAM: &str = "/helloworld.Greeter/SayHelloStream";
/// Ends with the status in `x-status`.
pub const FAIL: &str = "/helloworld.Greeter/Fail";
/// Is never answered.
pub const SLEEP: &str = "/helloworld.Greeter/Sleep";
/// Answers in plain HTTP.
pub const BARE: &str = "/helloworld.Greeter/Bare";
/// Sends one message, and resets the stream when the client has sent everything.
pub const BREAK: &str = "/helloworld.Greeter/Break";
/// Sends one message, and then nothing until the stream is reset.
pub const HANG: &str = "/helloworld.Greeter/Hang";
/// Answers and ends before the client has sent everything.
pub const ENOUGH: &str = "/helloworld.Greeter/Enough";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// A message in the form that it has in a body.
pub fn framed(message: &[u8]) -> Bytes {
    let mut framed = vec![0];
    framed.extend((message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed.into()
}

/// `helloworld.Greeter` on a thread of this process.
pub struct Greeter {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// What a service has received, and the health that it reports.
pub struct Seen {
    name: String,
    pub calls: AtomicU64,
    pub connections: AtomicU64,
    /// Calls that were reset by their client.
    pub cancelled: AtomicU64,
    pub is_serving: AtomicBool,
    /// The fields of the last call.
    pub last: Mutex<HeaderMap>,
    /// How `SayHello` fails; `None` if it does not.
    pub ail: Mutex<Option<Ail>>,
}

/// How a service reports that it cannot serve a call.
#[derive(Clone, Copy, Debug)]
pub enum Ail {
    /// With a status in the head.
    TrailersOnly(u16),
    /// With a head, and a status in the trailers after it.
    WithoutMessage(u16),
    /// With a status after a message.
    BehindMessage(u16),
}

impl Seen {
    /// A field of the last call.
    pub fn field(&self, name: &str) -> Option<String> {
        self.last.lock().unwrap().get(name).map(|value| value.to_str().unwrap().to_owned())
    }
}

impl Greeter {
    pub fn start(name: &str) -> Self {
        Self::start_at(super::local(0), name)
    }

    pub fn start_at(address: SocketAddr, name: &str) -> Self {
        Self::start_with(address, name, None)
    }

    /// Over TLS, with ALPN.
    pub fn start_tls(name: &str, config: &rustls::ServerConfig) -> Self {
        let mut config = config.clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self::start_with(super::local(0), name, Some(Arc::new(config).into()))
    }

    fn start_with(address: SocketAddr, name: &str, tls: Option<TlsAcceptor>) -> Self {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen {
            name: name.to_owned(),
            calls: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            is_serving: AtomicBool::new(true),
            last: Mutex::default(),
            ail: Mutex::default(),
        });
        let (end, ended) = oneshot::channel();
        let serving = seen.clone();
        let thread = std::thread::spawn(move || {
            runtime().block_on(async move {
                tokio::spawn(accept(TcpListener::from_std(listener).unwrap(), tls, serving));
                // An error means that the sender was dropped, which is also the end.
                _ = ended.await;
            });
        });
        Self { address, seen, thread: Some((end, thread)) }
    }

    pub fn calls(&self) -> u64 {
        self.seen.calls.load(Relaxed)
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // A panic has already been reported.
            _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        seen.connections.fetch_add(1, Relaxed);
        let (seen, tls) = (seen.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => serve(stream, seen).await,
                Some(tls) => {
                    // If a client aborts the handshake, there is nothing to do.
                    let Ok(stream) = tls.accept(stream).await else { return };
                    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
                    serve(stream, seen).await;
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, seen: Arc<Seen>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, seen.clone()));
    }
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: Arc<Seen>,
) -> Result<(), h2::Error> {
    let (head, mut body) = request.into_parts();
    if head.uri.path() == HEALTH {
        let status = if seen.is_serving.load(Relaxed) { 1 } else { 2 };
        let mut send = respond.send_response(grpc_head(&seen.name), false)?;
        send.send_data(framed(&[0x08, status]), false)?;
        return send.send_trailers(status_fields(0, ""));
    }
    seen.calls.fetch_add(1, Relaxed);
    seen.last.lock().unwrap().clone_from(&head.headers);
    match head.uri.path() {
        SAY_HELLO => {
            let message = read(&mut body).await?;
            say_hello(respond, &seen, message)
        }
        STREAM => stream(body, respond.send_response(grpc_head(&seen.name), false)?).await,
        FAIL => {
            let status = head.headers.get("x-status").and_then(|value| value.to_str().ok()?.parse().ok());
            read(&mut body).await?;
            fail(respond, &seen, status.unwrap_or(2), "as you asked")
        }
        BARE => {
            let head = Response::builder().status(502).header("content-type", "text/html").body(()).unwrap();
            respond.send_response(head, false)?.send_data(Bytes::from_static(b"<h1>sorry</h1>"), true)
        }
        BREAK => {
            let mut send = respond.send_response(grpc_head(&seen.name), false)?;
            send.send_data(framed(b"half"), false)?;
            read(&mut body).await?;
            send.send_reset(Reason::INTERNAL_ERROR);
            Ok(())
        }
        ENOUGH => {
            let mut send = respond.send_response(grpc_head(&seen.name), false)?;
            send.send_trailers(status_fields(0, ""))
        }
        HANG => {
            let mut send = respond.send_response(grpc_head(&seen.name), false)?;
            send.send_data(framed(b"half"), false)?;
            std::future::poll_fn(|cx| send.poll_reset(cx)).await?;
            seen.cancelled.fetch_add(1, Relaxed);
            Ok(())
        }
        SLEEP => {
            std::future::poll_fn(|cx| respond.poll_reset(cx)).await?;
            seen.cancelled.fetch_add(1, Relaxed);
            Ok(())
        }
        _ => fail(respond, &seen, 12, "unknown method"),
    }
}

fn say_hello(mut respond: SendResponse<Bytes>, seen: &Seen, message: Vec<u8>) -> Result<(), h2::Error> {
    let ail = *seen.ail.lock().unwrap();
    let status = match ail {
        Some(Ail::TrailersOnly(status)) => return fail(respond, seen, status, "not now"),
        Some(Ail::WithoutMessage(status) | Ail::BehindMessage(status)) => status,
        None => 0,
    };
    let mut send = respond.send_response(grpc_head(&seen.name), false)?;
    if !matches!(ail, Some(Ail::WithoutMessage(_))) {
        send.send_data(message.into(), false)?;
    }
    send.send_trailers(status_fields(status, ""))
}

/// A response of trailers only.
fn fail(mut respond: SendResponse<Bytes>, seen: &Seen, status: u16, message: &'static str) -> Result<(), h2::Error> {
    let mut head = grpc_head(&seen.name);
    head.headers_mut().extend(status_fields(status, message));
    respond.send_response(head, true).map(drop)
}

/// Sends each piece back on arrival, until the client ends the call.
async fn stream(mut body: RecvStream, mut send: SendStream<Bytes>) -> Result<(), h2::Error> {
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        send.send_data(piece, false)?;
    }
    send.send_trailers(status_fields(0, ""))
}

fn grpc_head(name: &str) -> Response<()> {
    Response::builder().header("content-type", "application/grpc+proto").header("x-origin", name).body(()).unwrap()
}

fn status_fields(status: u16, message: &'static str) -> HeaderMap {
    let mut fields = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from(status))]);
    if !message.is_empty() {
        fields.insert("grpc-message", HeaderValue::from_static(message));
    }
    fields
}

async fn read(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// One connection for calls.
pub struct Caller {
    runtime: Runtime,
    send: SendRequest<Bytes>,
    /// Scheme and authority.
    base: String,
}

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Called {
    /// The HTTP status: 200 for every call that a gRPC client can read.
    pub http_status: u16,
    /// The endpoint that answered, if one did.
    pub origin: String,
    pub content_type: String,
    pub body: Vec<u8>,
    /// `None` if there was none, or the stream was reset.
    pub grpc_status: Option<u16>,
    pub grpc_message: String,
    /// The status was in the head: there was no body, and there were no trailers.
    pub is_trailers_only: bool,
    pub reset: Option<Reason>,
}

impl Caller {
    /// By prior knowledge.
    pub fn connect(address: SocketAddr) -> Self {
        let runtime = runtime();
        let send = runtime.block_on(async { begin(TcpStream::connect(address).await.unwrap()).await });
        Self { runtime, send, base: format!("http://{address}") }
    }

    /// Over TLS, with ALPN.
    pub fn connect_tls(config: &rustls::ClientConfig, address: SocketAddr, name: &str) -> Self {
        let runtime = runtime();
        let mut config = config.clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let base = format!("https://{name}:{}", address.port());
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
        let send = runtime.block_on(async {
            let tcp = TcpStream::connect(address).await.unwrap();
            let tls = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.unwrap();
            assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            begin(tls).await
        });
        Self { runtime, send, base }
    }

    fn request(&self, path: &str, fields: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method("POST").uri(format!("{}{path}", self.base));
        if !fields.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/grpc+proto");
        }
        let request = request.header("te", "trailers");
        fields.iter().fold(request, |request, (name, value)| request.header(*name, *value)).body(()).unwrap()
    }

    /// One call with one message.
    pub fn call(&self, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Called {
        self.calls(1, path, fields, body).remove(0)
    }

    /// This many calls at the same time.
    pub fn calls(&self, count: usize, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Vec<Called> {
        self.runtime.block_on(async {
            let call = || {
                let (request, body) = (self.request(path, fields), Bytes::copy_from_slice(body));
                let send = self.send.clone();
                tokio::spawn(async move { call(send, request, body, false).await })
            };
            let calls: Vec<_> = (0..count).map(|_| call()).collect();
            let mut called = Vec::with_capacity(count);
            for call in calls {
                called.push(timeout(PATIENCE, call).await.expect("the call did not end in time").unwrap());
            }
            called
        })
    }

    /// One call with one message, whose client ends its side after it has seen the beginning of the answer.
    pub fn call_slowly(&self, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Called {
        let (send, request) = (self.send.clone(), self.request(path, fields));
        let called = call(send, request, Bytes::copy_from_slice(body), true);
        self.runtime.block_on(async { timeout(PATIENCE, called).await.expect("the call did not end in time") })
    }

    /// Begins a call, and resets it when `begun` shows that it has arrived upstream.
    pub fn cancel(&self, path: &str, begun: impl Fn() -> bool) {
        self.runtime.block_on(async {
            let mut send = self.send.clone().ready().await.unwrap();
            let (response, mut body) = send.send_request(self.request(path, &[]), false).unwrap();
            body.send_data(framed(b"x"), true).unwrap();
            let known = async {
                while !begun() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(PATIENCE, known).await.expect("the call did not begin in time");
            body.send_reset(Reason::CANCEL);
            assert!(timeout(PATIENCE, response).await.unwrap().is_err());
        });
        // The reset has been sent when a call after it has been answered.
        self.call("/no.Service/Get", &[], &framed(b""));
    }

    /// A call with several messages, each sent after the answer to the one before it has arrived.
    pub fn converse(&self, path: &str, messages: &[&[u8]]) -> (String, Option<u16>) {
        let talk = async {
            let mut send = self.send.clone().ready().await.unwrap();
            let (response, mut request) = send.send_request(self.request(path, &[]), false).unwrap();
            let response = response.await.unwrap();
            let origin = text(response.headers(), "x-origin");
            let mut body = response.into_body();
            for message in messages {
                let sent = framed(message);
                request.send_data(sent.clone(), false).unwrap();
                let mut back = Vec::new();
                while back.len() < sent.len() {
                    let piece = body.data().await.unwrap().unwrap();
                    body.flow_control().release_capacity(piece.len()).unwrap();
                    back.extend_from_slice(&piece);
                }
                assert_eq!(back, sent);
            }
            request.send_data(Bytes::new(), true).unwrap();
            assert!(body.data().await.is_none());
            let trailers = body.trailers().await.unwrap().unwrap_or_default();
            (origin, text(&trailers, "grpc-status").parse().ok())
        };
        self.runtime.block_on(async { timeout(PATIENCE, talk).await.expect("the call made no progress") })
    }
}

async fn begin(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send
}

async fn call(send: SendRequest<Bytes>, request: Request<()>, message: Bytes, slowly: bool) -> Called {
    let mut called = Called {
        http_status: 0,
        origin: String::new(),
        content_type: String::new(),
        body: Vec::new(),
        grpc_status: None,
        grpc_message: String::new(),
        is_trailers_only: false,
        reset: None,
    };
    if let Err(error) = try_call(send, request, message, slowly, &mut called).await {
        called.reset = Some(error.reason().unwrap_or_else(|| panic!("{error}")));
    }
    called
}

async fn try_call(
    send: SendRequest<Bytes>,
    request: Request<()>,
    message: Bytes,
    slowly: bool,
    called: &mut Called,
) -> Result<(), h2::Error> {
    let mut send = send.ready().await?;
    let (response, mut request) = send.send_request(request, false)?;
    // The answer may arrive before the message is sent.
    _ = request.send_data(message, !slowly);
    let response = response.await?;
    called.http_status = response.status().as_u16();
    called.origin = text(response.headers(), "x-origin");
    called.content_type = text(response.headers(), "content-type");
    called.is_trailers_only = response.headers().contains_key("grpc-status");
    let head = response.headers().clone();
    let mut body = response.into_body();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        called.body.extend_from_slice(&piece);
        if slowly && called.body.len() == piece.len() {
            request.send_data(Bytes::new(), true)?;
        }
    }
    let trailers = body.trailers().await?.unwrap_or(head);
    called.grpc_status = text(&trailers, "grpc-status").parse().ok();
    called.grpc_message = text(&trailers, "grpc-message");
    Ok(())
}

fn text(fields: &HeaderMap, name: &str) -> String {
    fields.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
}

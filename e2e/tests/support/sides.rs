//! A client and an origin that speak HTTP/1.1 (by hand) or HTTP/2 (the `h2` crate). Neither is the code under test. The path tells an
//! origin what to do.
#![allow(dead_code, reason = "each test binary compiles all of it and uses its part")]

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use testkit::PATIENCE;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Bytes of `/big`.
pub const BIG: usize = 3_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    H1,
    H2,
}

/// All four combinations, as (client, endpoint).
pub const MIXTURES: [(Speaks, Speaks); 4] =
    [(Speaks::H1, Speaks::H1), (Speaks::H2, Speaks::H1), (Speaks::H1, Speaks::H2), (Speaks::H2, Speaks::H2)];

pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Bytes that differ at every position.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

/// What an origin has received.
#[derive(Default)]
pub struct Seen {
    pub connections: AtomicU64,
    pub requests: AtomicU64,
    /// Requests whose client went away, or was cut off.
    pub cut: AtomicU64,
    /// Bytes of bodies received.
    pub body_bytes: AtomicU64,
    /// Fields of the last request, including pseudo-header fields.
    pub fields: Mutex<Vec<(String, String)>>,
}

impl Seen {
    pub fn field(&self, name: &str) -> Option<String> {
        let fields = self.fields.lock().unwrap();
        fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

/// An origin on a thread of this process.
pub struct Side {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    thread: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Side {
    pub fn start(speaks: Speaks) -> Self {
        Self::start_at(super::local(0), speaks, u32::MAX)
    }

    /// An HTTP/2 origin without extended CONNECT.
    pub fn start_without_connect() -> Self {
        Self::start_with(super::local(0), Speaks::H2, |_| {})
    }

    /// `streams_max`: concurrent requests that it allows on an HTTP/2 connection.
    pub fn start_at(address: SocketAddr, speaks: Speaks, streams_max: u32) -> Self {
        Self::start_with(address, speaks, move |builder| {
            builder.max_concurrent_streams(streams_max).enable_connect_protocol();
        })
    }

    fn start_with(address: SocketAddr, speaks: Speaks, set: impl Fn(&mut Builder) + Send + Sync + 'static) -> Self {
        let listener = std::net::TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let (end, ended) = oneshot::channel();
        let serving = seen.clone();
        let thread = std::thread::spawn(move || {
            runtime().block_on(async move {
                tokio::spawn(accept(TcpListener::from_std(listener).unwrap(), speaks, set, serving));
                // An error means that the sender was dropped, which is also the end.
                _ = ended.await;
            });
        });
        Self { address, seen, thread: Some((end, thread)) }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.thread.take() {
            drop(end);
            // A panic has already been reported.
            _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, speaks: Speaks, set: impl Fn(&mut Builder), seen: Arc<Seen>) {
    while let Ok((stream, _)) = listener.accept().await {
        seen.connections.fetch_add(1, Relaxed);
        let seen = seen.clone();
        match speaks {
            Speaks::H1 => drop(tokio::spawn(serve_h1(stream, seen))),
            Speaks::H2 => {
                let mut builder = Builder::new();
                set(&mut builder);
                drop(tokio::spawn(serve_h2(stream, builder, seen)));
            }
        }
    }
}

async fn serve_h2(stream: TcpStream, builder: Builder, seen: Arc<Seen>) {
    let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let seen = seen.clone();
        tokio::spawn(async move {
            seen.requests.fetch_add(1, Relaxed);
            let mut fields = vec![
                (":method".to_owned(), request.method().to_string()),
                (":path".to_owned(), request.uri().path().to_owned()),
                (":scheme".to_owned(), request.uri().scheme_str().unwrap_or_default().to_owned()),
                (":authority".to_owned(), request.uri().authority().map(ToString::to_string).unwrap_or_default()),
            ];
            if let Some(protocol) = request.extensions().get::<h2::ext::Protocol>() {
                fields.push((":protocol".to_owned(), protocol.as_str().to_owned()));
            }
            fields.extend(list(request.headers()));
            *seen.fields.lock().unwrap() = fields;
            if answer_h2(request, respond, &seen).await.is_err() {
                seen.cut.fetch_add(1, Relaxed);
            }
        });
    }
}

async fn respond_and_wait(mut to: SendStream<Bytes>) -> Result<(), h2::Error> {
    to.send_data("kept".into(), true)?;
    std::future::pending().await
}

async fn answer_h2(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    seen: &Seen,
) -> Result<(), h2::Error> {
    let path = request.uri().path().to_owned();
    let is_tunnel = request.extensions().get::<h2::ext::Protocol>().is_some_and(|it| it.as_str() == "websocket");
    let mut body = request.into_body();
    let head = |status: u16| Response::builder().status(status).body(()).unwrap();
    match path.as_str() {
        "/small" => respond.send_response(head(200), false)?.send_data("small".into(), true),
        "/big" => send(&mut respond.send_response(head(200), false)?, &pattern(BIG), true).await,
        "/none" => respond.send_response(head(204), true).map(drop),
        "/interim" => {
            let hints = Response::builder().status(103).header("link", "</a>").body(()).unwrap();
            respond.send_informational(hints)?;
            respond.send_response(head(200), true).map(drop)
        }
        "/continue" => {
            respond.send_informational(head(100))?;
            let got = read(&mut body, seen).await?;
            respond.send_response(head(200), false)?.send_data(got.into(), true)
        }
        // Sends each piece back on arrival, and at the end how much it was.
        "/echo" => {
            let mut to = respond.send_response(head(200), false)?;
            let mut length = 0;
            while let Some(piece) = body.data().await {
                let piece = piece?;
                length += piece.len();
                seen.body_bytes.fetch_add(piece.len() as u64, Relaxed);
                send(&mut to, &piece, false).await?;
                body.flow_control().release_capacity(piece.len())?;
            }
            let came = body.trailers().await?.and_then(|fields| fields.get("x-up").cloned());
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", HeaderValue::from(length));
            came.and_then(|value| trailers.insert("x-came", value));
            to.send_trailers(trailers)
        }
        "/count" => {
            let got = read(&mut body, seen).await?.len();
            respond.send_response(head(200), false)?.send_data(got.to_string().into(), true)
        }
        "/socket" if is_tunnel => tunnel_h2(body, respond.send_response(accepting(), false)?).await,
        // Answers without reading the body, and does not want it.
        "/early" => respond.send_response(head(413), true).map(drop),
        // Sends a complete response, and reads nothing of the body.
        "/answered" => respond_and_wait(respond.send_response(head(200), false)?).await,
        // The same, but it announces that: dropping the body resets the stream with NO_ERROR.
        "/answered-last" => respond.send_response(head(200), false)?.send_data("kept".into(), true),
        "/refuse" => {
            // Only once: the next request is served.
            match seen.cut.fetch_add(1, Relaxed) {
                0 => respond.send_reset(Reason::REFUSED_STREAM),
                _ => drop(respond.send_response(head(200), true)?),
            }
            Ok(())
        }
        "/reset" => {
            respond.send_reset(Reason::INTERNAL_ERROR);
            Ok(())
        }
        "/break" => {
            let mut to = respond.send_response(head(200), false)?;
            send(&mut to, &pattern(1000), false).await?;
            // A reset discards data that was not sent yet, and nothing shows when it was sent.
            tokio::time::sleep(Duration::from_millis(50)).await;
            to.send_reset(Reason::ENHANCE_YOUR_CALM);
            Ok(())
        }
        "/stall" => std::future::pending().await,
        "/hang" => {
            poll_fn(|cx| respond.poll_reset(cx)).await?;
            seen.cut.fetch_add(1, Relaxed);
            Ok(())
        }
        _ => respond.send_response(head(404), true).map(drop),
    }
}

/// Opens a tunnel like HAProxy, which answers a key that it made up.
fn accepting() -> Response<()> {
    Response::builder().header("sec-websocket-accept", "another").body(()).unwrap()
}

/// Sends each piece back, until the client ends its side.
async fn tunnel_h2(mut body: RecvStream, mut to: SendStream<Bytes>) -> Result<(), h2::Error> {
    while let Some(piece) = body.data().await {
        let piece = piece?;
        send(&mut to, &piece, false).await?;
        body.flow_control().release_capacity(piece.len())?;
    }
    to.send_data(Bytes::new(), true)
}

/// Sends at the pace of the receiver.
pub async fn send(to: &mut SendStream<Bytes>, mut bytes: &[u8], end: bool) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        to.reserve_capacity(bytes.len().min(64 * 1024));
        let Some(room) = poll_fn(|cx| to.poll_capacity(cx)).await else { return Err(Reason::CANCEL.into()) };
        let (piece, rest) = bytes.split_at(room?.min(bytes.len()));
        bytes = rest;
        to.send_data(Bytes::copy_from_slice(piece), end && rest.is_empty())?;
    }
    Ok(())
}

async fn read(body: &mut RecvStream, seen: &Seen) -> Result<Vec<u8>, h2::Error> {
    let mut got = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        seen.body_bytes.fetch_add(piece.len() as u64, Relaxed);
        body.flow_control().release_capacity(piece.len())?;
        got.extend_from_slice(&piece);
    }
    Ok(got)
}

fn list(fields: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    fields.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

/// A head of HTTP/1.1: its first line, and its fields with names in lower case.
struct H1Head {
    line: String,
    fields: Vec<(String, String)>,
}

impl H1Head {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

type H1 = BufReader<TcpStream>;

/// `None` if the connection ended instead.
async fn read_head(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<H1Head>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return if lines.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let line = line.trim_end().to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let mut lines = lines.into_iter();
    let line = lines.next().unwrap_or_default();
    let split = |line: String| {
        let (name, value) = line.split_once(':').unwrap_or((line.as_str(), ""));
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    Ok(Some(H1Head { line, fields: lines.map(split).collect() }))
}

/// How a body is framed in HTTP/1.1.
enum H1Body {
    Length(u64),
    Chunked,
    UntilClose,
}

/// The next piece of a body. It is empty at the end, and the trailers follow.
async fn read_piece(
    stream: &mut (impl AsyncBufRead + Unpin),
    body: &mut H1Body,
) -> io::Result<(Vec<u8>, Vec<(String, String)>)> {
    let wanted = match body {
        H1Body::Length(left) => (*left).min(64 * 1024) as usize,
        H1Body::UntilClose => 64 * 1024,
        H1Body::Chunked => {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
            if length == 0 {
                let trailers = read_head_fields(stream).await?;
                return Ok((Vec::new(), trailers));
            }
            let mut piece = vec![0; length + 2];
            stream.read_exact(&mut piece).await?;
            piece.truncate(length);
            return Ok((piece, Vec::new()));
        }
    };
    let mut piece = vec![0; wanted];
    let count = if wanted == 0 { 0 } else { stream.read(&mut piece).await? };
    piece.truncate(count);
    if let H1Body::Length(left) = body {
        if count == 0 && *left > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= count as u64;
    }
    Ok((piece, Vec::new()))
}

async fn read_head_fields(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.trim_end().split_once(':') else { return Ok(fields) };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

async fn serve_h1(stream: TcpStream, seen: Arc<Seen>) {
    let mut stream = BufReader::new(stream);
    while let Ok(Some(head)) = read_head(&mut stream).await {
        seen.requests.fetch_add(1, Relaxed);
        let mut words = head.line.split(' ');
        let (method, path) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
        let mut fields = vec![(":method".to_owned(), method.clone()), (":path".to_owned(), path.clone())];
        fields.extend(head.fields.iter().cloned());
        *seen.fields.lock().unwrap() = fields;
        match answer_h1(&mut stream, &method, &path, &head, &seen).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(_) => {
                seen.cut.fetch_add(1, Relaxed);
                return;
            }
        }
    }
}

/// Returns whether the connection can serve another request.
async fn answer_h1(stream: &mut H1, method: &str, path: &str, head: &H1Head, seen: &Seen) -> io::Result<bool> {
    let mut body = match (head.field("transfer-encoding"), head.field("content-length")) {
        (Some(_), None) => H1Body::Chunked,
        (None, Some(length)) => H1Body::Length(length.parse().map_err(io::Error::other)?),
        (None, None) => H1Body::Length(0),
        (Some(_), Some(_)) => return Err(io::Error::other("two framings")),
    };
    let whole = |status: &str, body: &[u8]| {
        let mut bytes = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(if method == "HEAD" { &[] } else { body });
        bytes
    };
    match path {
        "/small" => stream.write_all(&whole("200 OK", b"small")).await?,
        "/big" => stream.write_all(&whole("200 OK", &pattern(BIG))).await?,
        "/none" => stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?,
        "/interim" => {
            stream.write_all(b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n").await?;
            stream.write_all(&whole("200 OK", b"")).await?;
        }
        "/continue" => {
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
            let got = read_all(stream, &mut body, seen).await?;
            stream.write_all(&whole("200 OK", &got)).await?;
        }
        "/echo" => echo_h1(stream, &mut body, seen).await?,
        "/count" => {
            let got = read_all(stream, &mut body, seen).await?.len();
            stream.write_all(&whole("200 OK", got.to_string().as_bytes())).await?;
        }
        "/early" => {
            stream.write_all(&whole("413 Content Too Large", b"")).await?;
            return Ok(false);
        }
        "/answered" => {
            stream.write_all(&whole("200 OK", b"kept")).await?;
            std::future::pending().await
        }
        "/answered-last" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 4\r\n\r\nkept").await?;
            std::future::pending().await
        }
        "/reset" => return Ok(false),
        "/break" => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {BIG}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&pattern(1000)).await?;
            return Ok(false);
        }
        "/stall" => std::future::pending().await,
        "/hang" => {
            let mut byte = [0];
            let _gone = stream.read(&mut byte).await;
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        "/socket" if head.field("upgrade") == Some("websocket") && head.field("sec-websocket-key").is_some() => {
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            stream.write_all(answer).await?;
            let mut piece = [0; 1024];
            loop {
                match stream.read(&mut piece).await? {
                    0 => return Ok(false),
                    count => stream.write_all(&piece[..count]).await?,
                }
            }
        }
        _ => stream.write_all(&whole("404 Not Found", b"")).await?,
    }
    Ok(true)
}

/// Sends each piece back on arrival, and at the end how much it was.
async fn echo_h1(stream: &mut H1, body: &mut H1Body, seen: &Seen) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let mut length = 0;
    loop {
        let (piece, trailers) = read_piece(stream, body).await?;
        if piece.is_empty() {
            let came = trailers.iter().find(|(name, _)| name == "x-up");
            let came = came.map_or_else(String::new, |(_, value)| format!("x-came: {value}\r\n"));
            return stream.write_all(format!("0\r\nx-sum: {length}\r\n{came}\r\n").as_bytes()).await;
        }
        length += piece.len();
        seen.body_bytes.fetch_add(piece.len() as u64, Relaxed);
        stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
        stream.write_all(&piece).await?;
        stream.write_all(b"\r\n").await?;
    }
}

async fn read_all(stream: &mut H1, body: &mut H1Body, seen: &Seen) -> io::Result<Vec<u8>> {
    let mut got = Vec::new();
    loop {
        let (piece, _) = read_piece(stream, body).await?;
        if piece.is_empty() {
            return Ok(got);
        }
        seen.body_bytes.fetch_add(piece.len() as u64, Relaxed);
        got.extend_from_slice(&piece);
    }
}

/// The response that a client got.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClientResponse {
    pub status: u16,
    pub interims: Vec<u16>,
    pub fields: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl ClientResponse {
    pub fn trailer(&self, name: &str) -> Option<&str> {
        self.trailers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// A request.
#[derive(Clone, Copy, Default)]
pub struct Ask<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub fields: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
    pub trailers: &'a [(&'a str, &'a str)],
}

impl<'a> Ask<'a> {
    pub fn get(path: &'a str) -> Self {
        Self { method: "GET", path, ..Self::default() }
    }

    pub fn post(path: &'a str, body: &'a [u8]) -> Self {
        Self { method: "POST", path, body, ..Self::default() }
    }
}

/// One connection of a client.
pub enum Client {
    H1(BufReader<OwnedReadHalf>, OwnedWriteHalf),
    H2(SendRequest<Bytes>),
}

impl Client {
    pub async fn connect(speaks: Speaks, address: SocketAddr) -> Self {
        let stream = timeout(PATIENCE, TcpStream::connect(address)).await.unwrap().unwrap();
        match speaks {
            Speaks::H1 => {
                let (reader, writer) = stream.into_split();
                Self::H1(BufReader::new(reader), writer)
            }
            Speaks::H2 => Self::H2(shake(stream).await),
        }
    }

    /// Sends a request, and reads the complete answer, or returns how it failed.
    pub async fn ask(&mut self, ask: &Ask<'_>) -> Result<ClientResponse, String> {
        let asked = async {
            match self {
                Self::H1(reader, writer) => ask_h1(reader, writer, ask).await.map_err(|error| error.to_string()),
                Self::H2(send) => ask_h2(send.clone(), ask).await.map_err(|error| error.to_string()),
            }
        };
        timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(format!("{} is not answered", ask.path)))
    }
}

/// HTTP/2 by prior knowledge over an established connection.
pub async fn shake<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static>(
    stream: S,
) -> SendRequest<Bytes> {
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    send
}

/// The head of a request for HTTP/2.
pub fn head_of(ask: &Ask<'_>) -> Request<()> {
    let mut request = Request::builder().method(ask.method).uri(format!("http://example.com{}", ask.path));
    for (name, value) in ask.fields {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

async fn ask_h2(send_request: SendRequest<Bytes>, ask: &Ask<'_>) -> Result<ClientResponse, h2::Error> {
    let mut ready = send_request.ready().await?;
    let is_whole = ask.body.is_empty() && ask.trailers.is_empty();
    let (mut response, mut to) = ready.send_request(head_of(ask), is_whole)?;
    let upload = async {
        if is_whole {
            return;
        }
        // An answer may arrive before everything was sent. If sending fails, the answer shows why.
        if send(&mut to, ask.body, ask.trailers.is_empty()).await.is_ok() && !ask.trailers.is_empty() {
            let mut fields = HeaderMap::new();
            for (name, value) in ask.trailers {
                fields.insert(HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap());
            }
            _ = to.send_trailers(fields);
        }
    };
    let hear = async {
        let mut reply = ClientResponse::default();
        while let Some(interim) = poll_fn(|cx| response.poll_informational(cx)).await {
            reply.interims.push(interim?.status().as_u16());
        }
        let response = response.await?;
        reply.status = response.status().as_u16();
        reply.fields = list(response.headers());
        let mut body = response.into_body();
        while let Some(piece) = body.data().await {
            let piece = piece?;
            reply.body.extend_from_slice(&piece);
            body.flow_control().release_capacity(piece.len())?;
        }
        reply.trailers = body.trailers().await?.map(|fields| list(&fields)).unwrap_or_default();
        Ok(reply)
    };
    let (reply, ()) = tokio::join!(hear, upload);
    reply
}

async fn ask_h1(
    reader: &mut BufReader<OwnedReadHalf>,
    writer: &mut OwnedWriteHalf,
    ask: &Ask<'_>,
) -> io::Result<ClientResponse> {
    let mut head = format!("{} {} HTTP/1.1\r\nhost: example.com\r\n", ask.method, ask.path);
    for (name, value) in ask.fields {
        head += &format!("{name}: {value}\r\n");
    }
    match (ask.body.is_empty(), ask.trailers.is_empty()) {
        (_, false) => head += "transfer-encoding: chunked\r\n",
        (false, true) => head += &format!("content-length: {}\r\n", ask.body.len()),
        (true, true) => {}
    }
    head += "\r\n";
    let upload = async {
        writer.write_all(head.as_bytes()).await?;
        if ask.trailers.is_empty() {
            return writer.write_all(ask.body).await;
        }
        for piece in ask.body.chunks(10_000) {
            writer.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
            writer.write_all(piece).await?;
            writer.write_all(b"\r\n").await?;
        }
        let trailers: String = ask.trailers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        writer.write_all(format!("0\r\n{trailers}\r\n").as_bytes()).await
    };
    // An answer may arrive before everything was sent. If sending fails, the answer shows why.
    let (_sent, reply) = tokio::join!(upload, hear_h1(reader, ask.method));
    reply
}

async fn hear_h1(reader: &mut BufReader<OwnedReadHalf>, method: &str) -> io::Result<ClientResponse> {
    let mut reply = ClientResponse::default();
    let head = loop {
        let head = read_head(reader).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = head.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        if status >= 200 {
            reply.status = status;
            break head;
        }
        reply.interims.push(status);
    };
    let mut body = match (head.field("transfer-encoding"), head.field("content-length")) {
        _ if method == "HEAD" || matches!(reply.status, 204 | 304) => H1Body::Length(0),
        (Some(_), _) => H1Body::Chunked,
        (None, Some(length)) => H1Body::Length(length.parse().map_err(io::Error::other)?),
        (None, None) => H1Body::UntilClose,
    };
    reply.fields = head.fields;
    loop {
        let (piece, trailers) = read_piece(reader, &mut body).await?;
        if piece.is_empty() {
            reply.trailers = trailers;
            return Ok(reply);
        }
        reply.body.extend_from_slice(&piece);
    }
}

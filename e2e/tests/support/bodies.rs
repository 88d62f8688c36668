//! An origin with known bodies: over HTTP/1.1 and HTTP/2, plain and over TLS, in every framing. The path selects the answer:
//!
//! - `GET /FRAMING/BYTES`: this many bytes of [`pattern`]. FRAMING is `length`, `chunked`, `close` or `trailers`. Over HTTP/2 a body has a
//!   `content-length` or none, and `close` equals `chunked`.
//! - `GET /none`: 204.
//! - `PUT /count`: the number of bytes of the request, and whether they were [`pattern`].
//! - `PUT /trailer`: the trailer `x-sum` of the request.
//! - `PUT /echo`: the body of the request, while it arrives.
#![allow(dead_code, reason = "each test binary compiles all of it and uses its part")]

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use rustls::ServerConfig;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// The largest body.
pub const BYTES_MAX: usize = 20 * 1024 * 1024;

/// Bodies are written in pieces of this size, which divides none of the sizes under test.
pub const PIECE_BYTES: usize = 60_000;

/// Bytes in which a piece that is lost, repeated or misplaced shows.
pub fn pattern(length: usize) -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    let all = PATTERN.get_or_init(|| (0..BYTES_MAX).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect());
    &all[..length]
}

/// What an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    H1,
    H1Tls,
    H2,
    H2Tls,
}

/// All of them, in the order of their discriminants.
pub const ENDPOINTS: [Endpoint; 4] = [Endpoint::H1, Endpoint::H1Tls, Endpoint::H2, Endpoint::H2Tls];

impl Endpoint {
    pub fn is_tls(self) -> bool {
        matches!(self, Self::H1Tls | Self::H2Tls)
    }

    pub fn is_h2(self) -> bool {
        matches!(self, Self::H2 | Self::H2Tls)
    }
}

/// An origin on a thread of this process. The thread ends with the process.
pub struct Origin {
    pub address: SocketAddr,
    /// Bytes of response bodies written so far.
    pub written: Arc<AtomicU64>,
}

impl Origin {
    /// `tls`: its certificate, for an endpoint that speaks TLS.
    pub fn start(endpoint: Endpoint, tls: &ServerConfig) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let written = Arc::new(AtomicU64::new(0));
        let mut tls = tls.clone();
        tls.alpn_protocols = vec![if endpoint.is_h2() { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let (acceptor, counted) = (TlsAcceptor::from(Arc::new(tls)), written.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let Ok((stream, _)) = listener.accept().await else { continue };
                    let (acceptor, written) = (acceptor.clone(), counted.clone());
                    // The client sees when an exchange fails, and reports it.
                    tokio::spawn(async move {
                        if !endpoint.is_tls() {
                            return serve(stream, endpoint, &written).await;
                        }
                        let Ok(stream) = acceptor.accept(stream).await else { return };
                        serve(stream, endpoint, &written).await;
                    });
                }
            });
        });
        Self { address, written }
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, endpoint: Endpoint, written: &Arc<AtomicU64>) {
    if endpoint.is_h2() {
        let mut builder = h2::server::Builder::new();
        builder.initial_window_size(1 << 20).initial_connection_window_size(1 << 24);
        let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else { return };
        while let Some(Ok((request, respond))) = connection.accept().await {
            let written = written.clone();
            tokio::spawn(async move { _ = answer_h2(request, respond, &written).await });
        }
        return;
    }
    let mut stream = BufReader::with_capacity(64 * 1024, stream);
    while let Ok(true) = answer_h1(&mut stream, written).await {}
}

/// The framing and the size that a path selects.
fn asked(path: &str) -> Option<(&str, usize)> {
    let (framing, bytes) = path.strip_prefix('/')?.split_once('/')?;
    Some((framing, bytes.parse().ok()?))
}

/// Counts the bytes of a request and compares them with [`pattern`].
#[derive(Default)]
struct Count {
    bytes: usize,
    is_wrong: bool,
}

impl Count {
    fn take(&mut self, piece: &[u8]) {
        let end = (self.bytes + piece.len()).min(BYTES_MAX);
        self.is_wrong |= pattern(end)[self.bytes.min(end)..] != *piece;
        self.bytes += piece.len();
    }

    fn told(&self) -> String {
        format!("{} bytes{}\n", self.bytes, if self.is_wrong { ", corrupt" } else { "" })
    }
}

/// Answers one request. Returns whether another may follow.
async fn answer_h1<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    written: &AtomicU64,
) -> io::Result<bool> {
    let (mut line, mut fields) = (String::new(), Vec::new());
    if stream.read_line(&mut line).await? == 0 {
        return Ok(false);
    }
    loop {
        let mut field = String::new();
        stream.read_line(&mut field).await?;
        let Some((name, value)) = field.trim_end().split_once(':') else { break };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let field = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut body = match (field("transfer-encoding"), field("content-length")) {
        (Some(_), _) => Body::Chunked { left: 0 },
        (None, Some(length)) => Body::Length { left: length.parse().map_err(io::Error::other)? },
        (None, None) => Body::Length { left: 0 },
    };
    match path {
        "/none" => stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await?,
        "/count" => {
            let mut count = Count::default();
            while let Some(piece) = body.piece(stream).await? {
                count.take(&piece);
            }
            let told = count.told();
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{told}", told.len());
            stream.write_all(text.as_bytes()).await?;
        }
        "/trailer" => {
            while body.piece(stream).await?.is_some() {}
            let told = body.trailers();
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{told}", told.len());
            stream.write_all(text.as_bytes()).await?;
        }
        "/echo" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
            while let Some(piece) = body.piece(stream).await? {
                write_chunk(stream, &piece).await?;
                stream.flush().await?;
            }
            stream.write_all(b"0\r\n\r\n").await?;
        }
        _ => {
            let Some((framing, bytes)) = asked(path) else {
                stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await?;
                stream.flush().await?;
                return Ok(true);
            };
            write_pattern(stream, (framing, bytes), method == "HEAD", written).await?;
            if framing == "close" {
                stream.shutdown().await?;
                return Ok(false);
            }
        }
    }
    stream.flush().await?;
    Ok(true)
}

/// A response with this framing and size.
async fn write_pattern(
    stream: &mut (impl AsyncWrite + Unpin),
    (framing, bytes): (&str, usize),
    is_head: bool,
    written: &AtomicU64,
) -> io::Result<()> {
    let head = match framing {
        "length" => format!("content-length: {bytes}"),
        "close" => "connection: close".to_owned(),
        _ => "transfer-encoding: chunked\r\ntrailer: x-sum".to_owned(),
    };
    stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes()).await?;
    let pieces = if is_head { &[] } else { pattern(bytes) };
    for piece in pieces.chunks(PIECE_BYTES) {
        match framing {
            "length" | "close" => stream.write_all(piece).await?,
            _ => write_chunk(stream, piece).await?,
        }
        written.fetch_add(piece.len() as u64, Relaxed);
    }
    match framing {
        _ if is_head => {}
        "chunked" => stream.write_all(b"0\r\n\r\n").await?,
        "trailers" => stream.write_all(format!("0\r\nx-sum: {bytes}\r\n\r\n").as_bytes()).await?,
        _ => {}
    }
    Ok(())
}

async fn write_chunk(stream: &mut (impl AsyncWrite + Unpin), piece: &[u8]) -> io::Result<()> {
    stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).await?;
    stream.write_all(piece).await?;
    stream.write_all(b"\r\n").await
}

/// The rest of an HTTP/1.1 body.
enum Body {
    Length {
        left: usize,
    },
    /// `left`: bytes of the current chunk.
    Chunked {
        left: usize,
    },
    /// With the lines of its trailers.
    Over(String),
}

impl Body {
    fn trailers(&self) -> &str {
        match self {
            Self::Over(lines) => lines,
            Self::Length { .. } | Self::Chunked { .. } => "none\n",
        }
    }

    /// The next piece; `None` at the end.
    async fn piece<S: AsyncRead + Unpin>(&mut self, stream: &mut BufReader<S>) -> io::Result<Option<Vec<u8>>> {
        let left = match self {
            Self::Over(_) | Self::Length { left: 0 } => return Ok(None),
            Self::Length { left } => left,
            Self::Chunked { left } => {
                if *left == 0 {
                    let mut line = String::new();
                    stream.read_line(&mut line).await?;
                    *left = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
                }
                if *left == 0 {
                    let mut lines = String::new();
                    while stream.read_line(&mut lines).await? > 2 {}
                    *self = Self::Over(lines.trim_end().to_ascii_lowercase().replace('\r', "") + "\n");
                    return Ok(None);
                }
                left
            }
        };
        let mut piece = vec![0; (*left).min(PIECE_BYTES)];
        let count = stream.read(&mut piece).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        piece.truncate(count);
        *left -= count;
        if let Self::Chunked { left: 0 } = self {
            stream.read_exact(&mut [0; 2]).await?;
        }
        Ok(Some(piece))
    }
}

async fn answer_h2(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    written: &AtomicU64,
) -> Result<(), h2::Error> {
    let head = |status: u16| Response::builder().status(status);
    let path = request.uri().path().to_owned();
    let is_head = request.method() == http::Method::HEAD;
    let mut body = request.into_body();
    match path.as_str() {
        "/none" => respond.send_response(head(204).body(()).unwrap(), true).map(drop),
        "/count" => {
            let mut count = Count::default();
            while let Some(piece) = body.data().await {
                let piece = piece?;
                count.take(&piece);
                body.flow_control().release_capacity(piece.len())?;
            }
            respond.send_response(head(200).body(()).unwrap(), false)?.send_data(count.told().into(), true)
        }
        "/trailer" => {
            while let Some(piece) = body.data().await {
                body.flow_control().release_capacity(piece?.len())?;
            }
            let trailers = body.trailers().await?.unwrap_or_default();
            let sum = trailers.get("x-sum").and_then(|value| value.to_str().ok()).unwrap_or("none");
            let mut to = respond.send_response(head(200).body(()).unwrap(), false)?;
            to.send_data(format!("x-sum: {sum}\n").into(), true)
        }
        "/echo" => {
            let mut to = respond.send_response(head(200).body(()).unwrap(), false)?;
            while let Some(piece) = body.data().await {
                let piece = piece?;
                send(&mut to, &piece, false).await?;
                body.flow_control().release_capacity(piece.len())?;
            }
            to.send_data(Bytes::new(), true)
        }
        _ => {
            let Some((framing, bytes)) = asked(&path) else {
                return respond.send_response(head(404).body(()).unwrap(), true).map(drop);
            };
            let response = if framing == "length" { head(200).header("content-length", bytes) } else { head(200) };
            let is_over = is_head || (bytes == 0 && framing != "trailers");
            let mut to = respond.send_response(response.body(()).unwrap(), is_over)?;
            if is_over {
                return Ok(());
            }
            let mut pieces = pattern(bytes).chunks(PIECE_BYTES).peekable();
            while let Some(piece) = pieces.next() {
                send(&mut to, piece, pieces.peek().is_none() && framing != "trailers").await?;
                written.fetch_add(piece.len() as u64, Relaxed);
            }
            if framing == "trailers" {
                let mut trailers = HeaderMap::new();
                trailers.insert("x-sum", HeaderValue::from(bytes));
                to.send_trailers(trailers)?;
            }
            Ok(())
        }
    }
}

/// Sends as fast as flow control allows.
async fn send(to: &mut SendStream<Bytes>, mut bytes: &[u8], end: bool) -> Result<(), h2::Error> {
    while !bytes.is_empty() {
        to.reserve_capacity(bytes.len());
        let room = std::future::poll_fn(|cx| to.poll_capacity(cx)).await;
        let Some(room) = room else { return Err(h2::Reason::CANCEL.into()) };
        let (piece, rest) = bytes.split_at(room?.min(bytes.len()));
        bytes = rest;
        to.send_data(Bytes::copy_from_slice(piece), end && rest.is_empty())?;
    }
    Ok(())
}

//! An HTTP/1 connection of a load, which sends a request and reads the response.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::payload::Payload;
use super::socket::{Socket, Tls};
use super::target::Target;
use crate::buffer::ReadBuffer;
use crate::framing::{BodyReader, Framing, content_length, has_token, invalid};

/// The maximum number of header fields of a response; more are an error.
const HEADERS_MAX: usize = 100;

/// The maximum number of interim responses (1xx) before the final one; more are an error.
const INTERIM_MAX: usize = 16;

/// Bodies up to this size are sent together with the head. A longer body is sent after it.
const TOGETHER_BYTES_MAX: u64 = 64 * 1024;

/// The request that a load repeats, encoded once.
pub(super) struct Request {
    /// The head, and the body if it is short.
    first: Vec<u8>,
    /// A long body, which is sent after `first`; otherwise empty.
    rest: Payload,
    is_head: bool,
    /// Whether the request may be sent again if the connection closes before the first byte of a response (RFC 9110 section 9.2.2).
    pub is_idempotent: bool,
}

/// The version of HTTP/1, and whether connections are kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// HTTP/1.1, kept alive.
    Keep,
    /// HTTP/1.1, with a connection for each request.
    Close,
    /// HTTP/1.0 with `connection: Keep-Alive`, like `ab -k`.
    Keep10,
    /// HTTP/1.0 with a connection for each request, like `ab`.
    Close10,
}

/// A complete final response.
pub(super) struct Answer {
    pub status: u16,
    /// Whether the connection can carry another request.
    pub keep_alive: bool,
    /// The length of the body.
    pub body_bytes: u64,
    /// When the first byte arrived. An interim response counts.
    pub first_byte: Option<Instant>,
    /// From the end of the send to the first byte. `None` for a long body, which is sent while the response is read.
    pub waiting: Option<Duration>,
}

/// Why there is no response.
pub(super) enum Failure {
    /// The connection had carried requests before and was closed before the first byte of this response. With keep-alive, the server may
    /// close a connection just as a request is sent (RFC 9112 section 9.3.1), so this is not a failure if the request may be sent again.
    Stale(io::Error),
    /// Anything else.
    Broken(io::Error),
}

/// One connection.
pub(super) struct Client {
    stream: Socket,
    input: ReadBuffer,
    answers: u64,
    /// Bytes received that `take_received` has not returned yet.
    pub received: u64,
}

impl Request {
    pub(super) fn new(
        manner: Manner,
        method: &str,
        target: &Target,
        headers: &[(String, String)],
        payload: &Payload,
    ) -> Self {
        let (version, connection) = match manner {
            Manner::Keep => ("1.1", ""),
            Manner::Close => ("1.1", "connection: close\r\n"),
            Manner::Keep10 => ("1.0", "connection: Keep-Alive\r\n"),
            Manner::Close10 => ("1.0", ""),
        };
        let Target { host, path, .. } = target;
        let is_given = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        // A header of the user replaces the default one, because a server refuses two of them (RFC 9112 sections 3.2 and 6.3).
        let host = if is_given("host") { String::new() } else { format!("host: {host}\r\n") };
        let connection = if is_given("connection") { "" } else { connection };
        let mut head = format!("{method} {path} HTTP/{version}\r\n{host}{connection}");
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let has_length = payload.len() > 0 || matches!(method, "POST" | "PUT" | "PATCH");
        if has_length && !is_given("content-length") {
            head.push_str(&format!("content-length: {}\r\n", payload.len()));
        }
        head.push_str("\r\n");
        let mut first = head.into_bytes();
        let mut rest = payload.clone();
        if payload.len() <= TOGETHER_BYTES_MAX {
            first.extend_from_slice(&payload.piece(0, usize::MAX));
            rest = Payload::default();
        }
        let is_idempotent = matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE");
        Self { first, rest, is_head: method == "HEAD", is_idempotent }
    }

    /// The size of the request in bytes, head included.
    pub(super) fn bytes(&self) -> u64 {
        self.first.len() as u64 + self.rest.len()
    }

    async fn send_rest<W: AsyncWrite + Unpin>(&self, to: &mut W) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.rest.len() {
            let piece = self.rest.piece(sent, usize::MAX);
            to.write_all(&piece).await?;
            sent += piece.len() as u64;
        }
        to.flush().await
    }
}

impl Client {
    pub(super) async fn connect(address: SocketAddr, source: Option<IpAddr>, tls: Option<&Tls>) -> io::Result<Self> {
        let stream = Socket::connect(address, source, tls).await?;
        Ok(Self { stream, input: ReadBuffer::new(), answers: 0, received: 0 })
    }

    /// Whether the server has closed the connection or sent unexpected bytes since the last response.
    pub(super) fn is_spent(&mut self) -> bool {
        self.stream.is_spent()
    }

    /// Sends the request and reads the complete response. Calls `on_origin` with the value of `x-origin`, if there is one.
    pub(super) async fn exchange(
        &mut self,
        request: &Request,
        on_origin: impl FnMut(&[u8]),
    ) -> Result<Answer, Failure> {
        // TLS buffers what the socket does not accept, so it must be flushed. On a plain socket, this does nothing.
        let sent = match self.stream.write_all(&request.first).await {
            Ok(()) => self.stream.flush().await,
            failed => failed,
        };
        let sent_at = Instant::now();
        let answer = if request.rest.len() == 0 || sent.is_err() {
            // If the request could not be sent completely, the server may have sent an early response that refuses it.
            read_answer(&mut self.stream, &mut self.input, &mut self.received, request.is_head, on_origin).await
        } else {
            self.exchange_long(request, on_origin).await
        };
        match answer {
            Ok(mut answer) => {
                self.answers += 1;
                answer.keep_alive &= sent.is_ok() && self.input.unused().is_empty();
                if request.rest.len() == 0 {
                    answer.waiting = answer.first_byte.map(|at| at.saturating_duration_since(sent_at));
                }
                Ok(answer)
            }
            Err(error) => {
                let is_close = matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
                );
                let nothing_came = self.received == 0;
                let is_stale = is_close && nothing_came && self.answers > 0;
                Err(if is_stale { Failure::Stale(error) } else { Failure::Broken(error) })
            }
        }
    }

    /// Returns the bytes received since the last call.
    pub(super) fn take_received(&mut self) -> u64 {
        std::mem::take(&mut self.received)
    }

    /// Sends a long body while it reads the response. An origin that echoes stops reading when its response is not read.
    async fn exchange_long(&mut self, request: &Request, on_origin: impl FnMut(&[u8])) -> io::Result<Answer> {
        let (mut from, mut to) = tokio::io::split(&mut self.stream);
        let reading = read_answer(&mut from, &mut self.input, &mut self.received, request.is_head, on_origin);
        let writing = request.send_rest(&mut to);
        tokio::pin!(reading, writing);
        tokio::select! {
            // A response before the end of the request refuses it. The rest of the body is not sent, so the connection cannot be reused.
            answer = &mut reading => answer.map(|answer| Answer { keep_alive: false, ..answer }),
            sent = &mut writing => {
                let answer = reading.await?;
                Ok(Answer { keep_alive: answer.keep_alive && sent.is_ok(), ..answer })
            }
        }
    }
}

async fn read_answer<R: AsyncRead + Unpin>(
    stream: &mut R,
    input: &mut ReadBuffer,
    received: &mut u64,
    is_head: bool,
    mut on_origin: impl FnMut(&[u8]),
) -> io::Result<Answer> {
    let mut counted = Counted { stream, received, first_byte: None };
    for _ in 0..=INTERIM_MAX {
        let (answer, framing) = read_head(&mut counted, input, &mut on_origin).await?;
        if answer.status < 200 {
            continue;
        }
        let has_none = is_head || matches!(answer.status, 204 | 304);
        let framing = if has_none { Framing::Length(0) } else { framing };
        let body_bytes = BodyReader::new(framing).drain(input, &mut counted).await?;
        let keep_alive = answer.keep_alive && framing != Framing::UntilClose;
        return Ok(Answer { keep_alive, body_bytes, first_byte: counted.first_byte, ..answer });
    }
    Err(invalid("too many interim responses"))
}

async fn read_head<R: AsyncRead + Unpin>(
    stream: &mut R,
    input: &mut ReadBuffer,
    on_origin: &mut impl FnMut(&[u8]),
) -> io::Result<(Answer, Framing)> {
    loop {
        if let Some((length, answer, framing)) = parse_head(input.unused(), on_origin)? {
            input.consume(length);
            return Ok((answer, framing));
        }
        if input.fill(stream).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

fn parse_head(input: &[u8], on_origin: &mut impl FnMut(&[u8])) -> io::Result<Option<(usize, Answer, Framing)>> {
    if input.is_empty() {
        return Ok(None);
    }
    let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let length = match config.parse_response_with_uninit_headers(&mut response, input, &mut headers) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    };
    let is_http_10 = response.version == Some(0);
    let status = response.code.unwrap_or_default();
    let mut answer = Answer { status, keep_alive: !is_http_10, body_bytes: 0, first_byte: None, waiting: None };
    let mut framing = Framing::UntilClose;
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            if framing == Framing::UntilClose {
                framing = Framing::Length(content_length(header.value)?);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            framing = Framing::Chunked;
        } else if header.name.eq_ignore_ascii_case("connection") {
            if has_token(header.value, "close") {
                answer.keep_alive = false;
            } else if is_http_10 && has_token(header.value, "keep-alive") {
                answer.keep_alive = true;
            }
        } else if header.name.eq_ignore_ascii_case("x-origin") {
            on_origin(header.value);
        }
    }
    Ok(Some((length, answer, framing)))
}

/// Counts the bytes received, and records when the first one arrived.
struct Counted<'a, R> {
    stream: &'a mut R,
    received: &'a mut u64,
    first_byte: Option<Instant>,
}

impl<R: AsyncRead + Unpin> AsyncRead for Counted<'_, R> {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        to: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = to.filled().len();
        let outcome = std::pin::Pin::new(&mut *this.stream).poll_read(context, to);
        let came = to.filled().len() - before;
        *this.received += came as u64;
        if came > 0 && this.first_byte.is_none() {
            this.first_byte = Some(Instant::now());
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, is_head: bool, expect: Option<(u16, bool)>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (mut buffer, mut received, mut source) = (ReadBuffer::new(), 0, input.as_bytes());
        let answer = runtime.block_on(read_answer(&mut source, &mut buffer, &mut received, is_head, |_| ()));
        assert_eq!(answer.ok().map(|answer| (answer.status, answer.keep_alive)), expect, "{input:?}");
        if expect.is_some() {
            assert_eq!(received, input.len() as u64);
            assert!(buffer.unused().is_empty(), "{input:?} was not read completely");
        }
    }

    #[test]
    fn answers() {
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", false, Some((200, true)));
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", true, Some((200, true)));
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no", false, None);
        check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\nConnection: Close\r\n\r\n", false, Some((200, false)));
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", false, Some((200, true)));
        check("HTTP/1.1 200 OK\r\n\r\nuntil the end", false, Some((200, false)));
        check("HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n", false, Some((200, false)));
        check("HTTP/1.0 200 OK\r\ncontent-length: 0\r\nconnection: keep-alive\r\n\r\n", false, Some((200, true)));
        check("HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", false, Some((304, true)));
        check("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n", false, Some((503, true)));
        check("SSH-2.0-OpenSSH_9.2\r\n", false, None);
        check("", false, None);
    }

    #[test]
    fn requests() {
        let text = |request: Request| String::from_utf8(request.first).unwrap();
        let target = Target { address: "127.0.0.1:1".parse().unwrap(), host: "b".to_owned(), path: "/a".to_owned() };
        let new = |method, body_bytes| Request::new(Manner::Keep, method, &target, &[], &Payload::filler(body_bytes));
        let get = Request::new(Manner::Keep, "GET", &target, &[("c".into(), "d".into())], &Payload::default());
        assert!(get.is_idempotent);
        assert_eq!(text(get), "GET /a HTTP/1.1\r\nhost: b\r\nc: d\r\n\r\n");
        let given = |headers: &[(&str, &str)]| {
            let headers: Vec<_> = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            text(Request::new(Manner::Close, "PUT", &target, &headers, &Payload::default()))
        };
        assert_eq!(
            given(&[("Host", "x")]),
            "PUT /a HTTP/1.1\r\nconnection: close\r\nHost: x\r\ncontent-length: 0\r\n\r\n"
        );
        assert_eq!(
            given(&[("Connection", "keep-alive"), ("Content-Length", "0")]),
            "PUT /a HTTP/1.1\r\nhost: b\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n"
        );
        let post = new("POST", 3);
        assert!(!post.is_idempotent);
        assert_eq!(text(post), "POST /a HTTP/1.1\r\nhost: b\r\ncontent-length: 3\r\n\r\n...");
        let given = Payload::of("a=b".into());
        let post_of = |payload| text(Request::new(Manner::Keep, "POST", &target, &[], payload));
        assert_eq!(post_of(&given), "POST /a HTTP/1.1\r\nhost: b\r\ncontent-length: 3\r\n\r\na=b");
        let long = new("PUT", 1 << 20);
        assert_eq!(long.bytes(), (1 << 20) + text(long).len() as u64);
        for (manner, expect) in [
            (Manner::Close, "GET /a HTTP/1.1\r\nhost: b\r\nconnection: close\r\n\r\n"),
            (Manner::Keep10, "GET /a HTTP/1.0\r\nhost: b\r\nconnection: Keep-Alive\r\n\r\n"),
            (Manner::Close10, "GET /a HTTP/1.0\r\nhost: b\r\n\r\n"),
        ] {
            assert_eq!(text(Request::new(manner, "GET", &target, &[], &Payload::default())), expect);
        }
    }
}

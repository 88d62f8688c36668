//! One probe: connect, and for HTTP ask and read the status line; `h2` and `grpc` have what goes over HTTP/2.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use model::{ClusterProtocol, HealthCheck, Probe, ProxyProtocol};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use wire::h2::PseudoHeaders;
use wire::proxy_protocol;

use crate::transport::{ProbeTransport, Stream};
use crate::{grpc, h2};

/// Bytes read of an answer in search of the end of its status line.
pub const RESPONSE_BYTES_MAX: usize = 16 * 1024;

/// As servers' logs show probes.
pub(crate) const USER_AGENT: &str = concat!("steelyard-health/", env!("CARGO_PKG_VERSION"));

/// Why a probe failed, as an operator reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Refused,
    ConnectTimeout(Duration),
    AnswerTimeout(Duration),
    /// The TLS handshake failed, or the certificate is not believed.
    Tls(String),
    /// The connection broke, or could not be made, for another reason.
    Io(String),
    /// The end of the stream came before the end of the status line.
    Closed,
    NotHttp,
    StatusLineTooLong,
    Status {
        got: u16,
        expect: (u16, u16),
    },
    /// The connection or the request failed in the ways of HTTP/2.
    Http2(String),
    /// An answer over HTTP/2, of this status, that is not one of gRPC.
    NotGrpc(u16),
    /// The call ended so: code, name and message.
    GrpcStatus(String),
    /// The answer cannot be read.
    BadMessage,
    /// The serving status, which is not SERVING.
    Serving(u64),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => out.write_str("connect refused"),
            Self::ConnectTimeout(after) => write!(out, "no connection within {}", Seconds(*after)),
            Self::AnswerTimeout(after) => write!(out, "no answer within {}", Seconds(*after)),
            Self::Tls(error) => write!(out, "TLS: {error}"),
            Self::Io(error) => out.write_str(error),
            Self::Closed => out.write_str("closed before the end of the status line"),
            Self::NotHttp => out.write_str("the answer is not HTTP/1"),
            Self::StatusLineTooLong => write!(out, "no status line within {RESPONSE_BYTES_MAX} bytes"),
            Self::Status { got, expect: (first, last) } if first == last => {
                write!(out, "status {got}, expected {first}")
            }
            Self::Status { got, expect: (first, last) } => write!(out, "status {got}, expected {first}-{last}"),
            Self::Http2(why) => write!(out, "HTTP/2: {why}"),
            Self::NotGrpc(status) => write!(out, "status {status} without grpc-status"),
            Self::GrpcStatus(status) => write!(out, "grpc-status {status}"),
            Self::BadMessage => out.write_str("the answer is no health check's"),
            Self::Serving(0) => out.write_str("UNKNOWN"),
            Self::Serving(2) => out.write_str("NOT_SERVING"),
            Self::Serving(3) => out.write_str("SERVICE_UNKNOWN"),
            Self::Serving(other) => write!(out, "a serving status of {other}"),
        }
    }
}

impl Failure {
    fn tls(error: io::Error) -> Self {
        Self::Tls(error.to_string())
    }
}

/// A duration as it was most likely written.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 if self.0.as_secs() > 0 => write!(out, "{} s", self.0.as_secs()),
            _ => write!(out, "{} ms", self.0.as_millis()),
        }
    }
}

/// Probes `address` once. Takes no longer than the check's timeout.
pub(crate) async fn probe(address: SocketAddr, check: &HealthCheck, transport: &ProbeTransport) -> Result<(), Failure> {
    let mut deadline = pin!(sleep(check.timeout));
    let connected = before(deadline.as_mut(), TcpStream::connect(address)).await;
    let mut tcp = connected.ok_or(Failure::ConnectTimeout(check.timeout))?.map_err(broken)?;
    let exchange = async {
        let header = header(&tcp, address, transport.proxy_protocol).map_err(broken)?;
        tcp.write_all(&header).await.map_err(broken)?;
        let host = match &check.probe {
            Probe::Tcp => return Ok(()),
            Probe::Http { host, .. } | Probe::Grpc { host, .. } => host,
        };
        let authority = host.clone().unwrap_or_else(|| address.to_string());
        let scheme = if transport.tls.is_some() { "https" } else { "http" };
        let mut stream: Box<dyn Stream> = match &transport.tls {
            None => Box::new(tcp),
            Some(tls) => tls.handshake(tcp, address, transport.host.as_deref()).await.map_err(Failure::tls)?,
        };
        match &check.probe {
            Probe::Tcp => Ok(()),
            Probe::Grpc { service, .. } => grpc::check(&mut stream, service, &authority, scheme, check.timeout).await,
            Probe::Http { path, expect, .. } => {
                let got = match transport.protocol {
                    ClusterProtocol::H1 => status(&mut stream, path, &authority).await?,
                    ClusterProtocol::H2 => status_over_h2(&mut stream, path, &authority, scheme).await?,
                };
                let is_expected = (expect.0..=expect.1).contains(&got);
                if is_expected { Ok(()) } else { Err(Failure::Status { got, expect: *expect }) }
            }
        }
    };
    before(deadline, exchange).await.unwrap_or(Err(Failure::AnswerTimeout(check.timeout)))
}

/// What `work` gives, unless the deadline comes first.
async fn before<T>(deadline: Pin<&mut Sleep>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = deadline => None,
    }
}

/// The status of the answer to a `GET` over HTTP/1.1.
async fn status(stream: &mut (impl Stream + ?Sized), path: &str, authority: &str) -> Result<u16, Failure> {
    stream.write_all(&request(path, authority)).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    read_status(stream).await
}

/// The same over HTTP/2.
async fn status_over_h2(
    stream: &mut (impl Stream + ?Sized),
    path: &str,
    authority: &str,
    scheme: &str,
) -> Result<u16, Failure> {
    let target = PseudoHeaders {
        method: b"GET",
        scheme: scheme.as_bytes(),
        authority: authority.as_bytes(),
        path: path.as_bytes(),
        protocol: None,
    };
    let fields: &[(&[u8], &[u8])] = &[(b"user-agent", USER_AGENT.as_bytes()), (b"accept", b"*/*")];
    let request = h2::Request { target, fields, body: b"", wants_body: false };
    h2::ask(stream, &request).await.map(|answer| answer.status)
}

pub(crate) fn broken(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::ConnectionReset => Failure::Io("connection reset".to_owned()),
        _ => Failure::Io(error.to_string()),
    }
}

/// The PROXY protocol header, where one is sent.
fn header(stream: &TcpStream, address: SocketAddr, proxy_protocol: Option<ProxyProtocol>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(version) = proxy_protocol {
        // The probe speaks for itself, and says so with its own addresses: receivers that refuse UNKNOWN and LOCAL exist
        // (proxy-protocol.txt, section 2.1).
        let version = match version {
            ProxyProtocol::V1 => proxy_protocol::Version::V1,
            ProxyProtocol::V2 => proxy_protocol::Version::V2,
        };
        proxy_protocol::encode(version, stream.local_addr()?, address, &mut bytes);
    }
    Ok(bytes)
}

fn request(path: &str, authority: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: {USER_AGENT}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    )
    .into_bytes()
}

/// The status of the answer. What follows the status line is left unread: closing then resets the connection, which ends a long body early.
async fn read_status(stream: &mut (impl Stream + ?Sized)) -> Result<u16, Failure> {
    let mut bytes = Vec::with_capacity(256);
    let mut limited = stream.take(RESPONSE_BYTES_MAX as u64);
    loop {
        let read = limited.read_buf(&mut bytes).await.map_err(broken)?;
        if let Some(line) = bytes.split(|byte| *byte == b'\n').next().filter(|line| line.len() < bytes.len()) {
            return parse_status(line).ok_or(Failure::NotHttp);
        }
        if read == 0 {
            return Err(if bytes.len() < RESPONSE_BYTES_MAX { Failure::Closed } else { Failure::StatusLineTooLong });
        }
    }
}

/// `HTTP/1.x SP 3DIGIT`, then a space or the end (RFC 9112 section 4).
fn parse_status(line: &[u8]) -> Option<u16> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let rest = line.strip_prefix(b"HTTP/1.0 ").or_else(|| line.strip_prefix(b"HTTP/1.1 "))?;
    let (digits, rest) = rest.split_first_chunk::<3>()?;
    if !digits.iter().all(u8::is_ascii_digit) || !matches!(rest, [] | [b' ', ..]) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn http(expect: (u16, u16)) -> HealthCheck {
        let mut check = HealthCheck::new(Probe::Http { path: "/healthz?deep=1".to_owned(), host: None, expect });
        check.timeout = Duration::from_secs(10);
        check
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Probes an endpoint that reads a whole head, answers so, and closes. Returns what it read.
    async fn ask(check: &HealthCheck, header: Option<ProxyProtocol>, answer: &[u8]) -> (Vec<u8>, Result<(), Failure>) {
        let (listener, address) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") && stream.read_buf(&mut head).await.unwrap() > 0 {}
            // The probe may have read enough and closed.
            _ = stream.write_all(answer).await;
            head
        };
        let transport = ProbeTransport { proxy_protocol: header, ..ProbeTransport::default() };
        let probed = probe(address, check, &transport);
        tokio::join!(serve, probed)
    }

    /// `expect` is empty for success, else the reason.
    async fn check(statuses: (u16, u16), answer: &[u8], expect: &str) {
        let (_, result) = ask(&http(statuses), None, answer).await;
        let got = result.err().map_or(String::new(), |failure| failure.to_string());
        assert_eq!(got, expect, "{:?}", String::from_utf8_lossy(&answer[..answer.len().min(80)]));
    }

    #[tokio::test]
    async fn answers() {
        let ok = (200, 399);
        check(ok, b"HTTP/1.1 200 OK\r\n\r\n", "").await;
        check(ok, b"HTTP/1.0 204\r\n", "").await;
        check(ok, b"HTTP/1.1 399 \r\n", "").await;
        check(ok, b"HTTP/1.1 200 OK\n", "").await;
        check((503, 503), b"HTTP/1.1 503 x\r\n", "").await;
        check(ok, b"HTTP/1.1 503 Service Unavailable\r\n", "status 503, expected 200-399").await;
        check(ok, b"HTTP/1.1 400 \r\n", "status 400, expected 200-399").await;
        check(ok, b"HTTP/1.1 199 \r\n", "status 199, expected 200-399").await;
        check((200, 200), b"HTTP/1.1 204 \r\n", "status 204, expected 200").await;
        check(ok, b"", "closed before the end of the status line").await;
        check(ok, b"HTTP/1.1 200 OK", "closed before the end of the status line").await;
        for bad in
            ["SSH-2.0-x\r\n", "HTTP/2 200\r\n", "HTTP/1.1 20\r\n", "HTTP/1.1 2000\r\n", "HTTP/1.1 +20 \r\n", "\n"]
        {
            check(ok, bad.as_bytes(), "the answer is not HTTP/1").await;
        }
        check(ok, &[b'x'; 2 * RESPONSE_BYTES_MAX], "no status line within 16384 bytes").await;
    }

    #[tokio::test]
    async fn what_is_asked() {
        let (head, result) = ask(&http((200, 200)), None, b"HTTP/1.1 200 OK\r\n").await;
        assert_eq!(result, Ok(()));
        let head = String::from_utf8(head).unwrap();
        let lines: Vec<&str> = head.split("\r\n").collect();
        assert_eq!(lines[0], "GET /healthz?deep=1 HTTP/1.1");
        assert!(lines[1].starts_with("Host: 127.0.0.1:"), "{head}");
        assert_eq!(lines[2], concat!("User-Agent: steelyard-health/", env!("CARGO_PKG_VERSION")));
        assert_eq!(lines[3..], ["Accept: */*", "Connection: close", "", ""]);

        let mut named = http((200, 200));
        named.probe = Probe::Http { path: "/".to_owned(), host: Some("shop.example".to_owned()), expect: (200, 200) };
        let (head, _) = ask(&named, None, b"HTTP/1.1 200 OK\r\n").await;
        assert!(head.starts_with(b"GET / HTTP/1.1\r\nHost: shop.example\r\n"));
    }

    #[tokio::test]
    async fn a_proxy_protocol_header_comes_first() {
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            let (bytes, _) = ask(&http((200, 200)), Some(version), b"HTTP/1.1 200 OK\r\n").await;
            let Ok(proxy_protocol::Parsed::Complete { header, consumed }) = proxy_protocol::parse(&bytes) else {
                panic!("{version:?}: {bytes:?}")
            };
            let (source, destination) = header.source.unwrap();
            assert!(source.ip().is_loopback() && source.port() > 0 && destination.port() > 0);
            assert!(bytes[consumed..].starts_with(b"GET "));
        }
    }

    #[tokio::test]
    async fn tcp_says_nothing_and_wants_nothing() {
        let (bytes, result) = ask(&HealthCheck::new(Probe::Tcp), None, b"").await;
        assert_eq!((bytes, result), (Vec::new(), Ok(())));
    }

    #[tokio::test]
    async fn refused() {
        // Bound, so that it is nobody else's, and not listening.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(probe(address, &http((200, 200)), &ProbeTransport::default()).await, Err(Failure::Refused));
    }

    #[tokio::test]
    async fn silence_ends_at_the_timeout() {
        // The handshake is completed by the kernel, and then nobody answers.
        let (_listener, address) = listen().await;
        let mut check = http((200, 200));
        check.timeout = Duration::from_millis(20);
        let failure = probe(address, &check, &ProbeTransport::default()).await.unwrap_err();
        assert_eq!(failure.to_string(), "no answer within 20 ms");
    }

    #[test]
    fn durations_read_as_written() {
        for (ms, expect) in [(1000, "1 s"), (1500, "1500 ms"), (20, "20 ms"), (0, "0 ms"), (60_000, "60 s")] {
            assert_eq!(Seconds(Duration::from_millis(ms)).to_string(), expect);
        }
    }
}

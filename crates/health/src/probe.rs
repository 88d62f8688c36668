//! One probe: it connects, and judges the response. `exchange` sends the request; `grpc` has the gRPC requests.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use model::{ClusterProtocol, HealthCheck, HttpProbe, Probe, ProxyProtocol};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use wire::h2::PseudoHeaders;
use wire::{ResponseError, proxy_protocol};

use crate::exchange::{Answer, BODY_BYTES_MAX, Over, Request, ask};
use crate::grpc;
use crate::transport::{ProbeTransport, Stream};

/// The name of probes in the logs of servers.
pub(crate) const USER_AGENT: &str = concat!("steelyard-health/", env!("CARGO_PKG_VERSION"));

/// Why a probe failed, with a text for an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Refused,
    ConnectTimeout(Duration),
    AnswerTimeout(Duration),
    /// The TLS handshake failed, or the certificate is not trusted.
    Tls(String),
    /// The connection broke, or could not be made, for another reason.
    Io(String),
    /// The connection ended before the end of the response's head.
    Closed,
    /// The same, of the body, which is only read to look for a text.
    ClosedInBody,
    /// The body is not validly chunked.
    BadBody,
    NotHttp,
    /// The proxy would answer a client's request with 502 for such a response.
    BadHead(ResponseError),
    Status {
        got: u16,
        expect: Vec<(u16, u16)>,
    },
    /// The beginning of the body, of so many bytes, does not contain the expected text.
    Body(usize),
    /// The connection or the request failed at the level of HTTP/2.
    Http2(String),
    /// An HTTP/2 response with this status that is not gRPC.
    NotGrpc(u16),
    /// The call ended with this code, name and message.
    GrpcStatus(String),
    /// The response cannot be read.
    BadMessage,
    /// The serving status is not SERVING.
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
            Self::Closed => out.write_str("closed before the end of the response head"),
            Self::NotHttp => out.write_str("the answer is not HTTP/1"),
            Self::BadHead(error) => error.fmt(out),
            Self::ClosedInBody => out.write_str("closed before the end of the response body"),
            Self::BadBody => out.write_str("malformed chunked body"),
            Self::Status { got, expect } => {
                write!(out, "status {got}, expected ")?;
                for (index, (first, last)) in expect.iter().enumerate() {
                    let before = if index > 0 { ", " } else { "" };
                    match first == last {
                        true => write!(out, "{before}{first}")?,
                        false => write!(out, "{before}{first}-{last}")?,
                    }
                }
                Ok(())
            }
            // What is expected may be a secret of the endpoint, and the reason is shown to whoever may see the state.
            Self::Body(BODY_BYTES_MAX..) => {
                out.write_str("the first 16 KiB of the body do not contain the expected text")
            }
            Self::Body(_) => out.write_str("the body does not contain the expected text"),
            Self::Http2(why) => write!(out, "HTTP/2: {why}"),
            Self::NotGrpc(status) => write!(out, "status {status} without grpc-status"),
            Self::GrpcStatus(status) => write!(out, "grpc-status {status}"),
            Self::BadMessage => out.write_str("not a health check response"),
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

/// A duration in the form in which it was most likely written.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 if self.0.as_secs() > 0 => write!(out, "{} s", self.0.as_secs()),
            _ => write!(out, "{} ms", self.0.as_millis()),
        }
    }
}

/// Probes `address` once. It takes no longer than the check's timeout.
pub(crate) async fn probe(address: SocketAddr, check: &HealthCheck, transport: &ProbeTransport) -> Result<(), Failure> {
    let mut deadline = pin!(sleep(check.timeout));
    let connected = before(deadline.as_mut(), TcpStream::connect(address)).await;
    let mut tcp = connected.ok_or(Failure::ConnectTimeout(check.timeout))?.map_err(broken)?;
    let exchange = async {
        let header = header(&tcp, address, transport.proxy_protocol).map_err(broken)?;
        tcp.write_all(&header).await.map_err(broken)?;
        let host = match &check.probe {
            Probe::Tcp => return Ok(()),
            Probe::Http(HttpProbe { host, .. }) | Probe::Grpc { host, .. } => host,
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
            Probe::Http(probe) => {
                let text = probe.body.as_deref();
                let over = match transport.protocol {
                    ClusterProtocol::H1 => Over::Http1(text),
                    ClusterProtocol::H2 => Over::Http2(text),
                };
                let answer = get(&mut stream, probe, &authority, scheme, over).await?;
                judge(&answer, probe)
            }
        }
    };
    before(deadline, exchange).await.unwrap_or(Err(Failure::AnswerTimeout(check.timeout)))
}

/// The result of `work`, or `None` if the deadline passes first.
async fn before<T>(deadline: Pin<&mut Sleep>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = deadline => None,
    }
}

/// The response to a `GET`.
async fn get(
    stream: &mut (impl Stream + ?Sized),
    probe: &HttpProbe,
    authority: &str,
    scheme: &str,
    over: Over<'_>,
) -> Result<Answer, Failure> {
    let target = PseudoHeaders {
        method: b"GET",
        scheme: scheme.as_bytes(),
        authority: authority.as_bytes(),
        path: probe.path.as_bytes(),
        protocol: None,
    };
    let own: [(&[u8], &[u8]); 2] = [(b"user-agent", USER_AGENT.as_bytes()), (b"accept", b"*/*")];
    let written = |name: &[u8]| probe.headers.iter().any(|(known, _)| known.as_bytes() == name);
    let added = probe.headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    let fields: Vec<_> = own.into_iter().filter(|(name, _)| !written(name)).chain(added).collect();
    ask(stream, &Request { target, fields: &fields, over }).await
}

fn judge(answer: &Answer, probe: &HttpProbe) -> Result<(), Failure> {
    if !probe.expect.iter().any(|(first, last)| (*first..=*last).contains(&answer.status)) {
        return Err(Failure::Status { got: answer.status, expect: probe.expect.clone() });
    }
    match &probe.body {
        Some(text) if !answer.contains(text.as_bytes()) => Err(Failure::Body(answer.body.len())),
        _ => Ok(()),
    }
}

pub(crate) fn broken(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        io::ErrorKind::ConnectionReset => Failure::Io("connection reset".to_owned()),
        _ => Failure::Io(error.to_string()),
    }
}

/// The PROXY protocol header, if one is sent.
fn header(stream: &TcpStream, address: SocketAddr, proxy_protocol: Option<ProxyProtocol>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(version) = proxy_protocol {
        // The probe speaks for itself, and says so with its own addresses, because some receivers refuse UNKNOWN and LOCAL
        // (proxy-protocol.txt, section 2.1).
        let version = match version {
            ProxyProtocol::V1 => proxy_protocol::Version::V1,
            ProxyProtocol::V2 => proxy_protocol::Version::V2,
        };
        proxy_protocol::encode(version, stream.local_addr()?, address, &mut bytes);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;

    fn http(expect: (u16, u16)) -> HealthCheck {
        let probe = HttpProbe { expect: vec![expect], ..HttpProbe::new("/healthz?deep=1") };
        let mut check = HealthCheck::new(Probe::Http(probe));
        check.timeout = Duration::from_secs(10);
        check
    }

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Probes an endpoint that reads a complete head, sends this answer, and closes. Returns what it read.
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

    /// `expect` is empty for success, or else the reason.
    async fn check(statuses: (u16, u16), answer: &[u8], expect: &str) {
        let (_, result) = ask(&http(statuses), None, answer).await;
        let got = result.err().map_or(String::new(), |failure| failure.to_string());
        assert_eq!(got, expect, "{:?}", String::from_utf8_lossy(&answer[..answer.len().min(80)]));
    }

    #[tokio::test]
    async fn answers() {
        let ok = (200, 399);
        check(ok, b"HTTP/1.1 200 OK\r\n\r\n", "").await;
        check(ok, b"HTTP/1.0 204\r\n\r\n", "").await;
        check(ok, b"HTTP/1.1 399 \r\n\r\n", "").await;
        check(ok, b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "").await;
        check((503, 503), b"HTTP/1.1 503 x\r\n\r\n", "").await;
        check(ok, b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "status 503, expected 200-399").await;
        check(ok, b"HTTP/1.1 400 \r\n\r\n", "status 400, expected 200-399").await;
        check(ok, b"HTTP/1.1 101 \r\n\r\n", "status 101, expected 200-399").await;
        check((200, 200), b"HTTP/1.1 204 \r\n\r\n", "status 204, expected 200").await;
        for bad in
            ["SSH-2.0-x\r\n", "HTTP/2 200\r\n", "HTTP/1.1 20\r\n\r\n", "HTTP/1.1 2000\r\n", "HTTP/1.1 +20 \r\n", "\n"]
        {
            check(ok, bad.as_bytes(), "the answer is not HTTP/1").await;
        }
    }

    #[tokio::test]
    async fn several_ranges() {
        let mut several = http((200, 204));
        let Probe::Http(probe) = &mut several.probe else { panic!("HTTP") };
        probe.expect.push((401, 401));
        for (status, expect) in [(204, None), (401, None), (302, Some("status 302, expected 200-204, 401"))] {
            let (_, result) = ask(&several, None, format!("HTTP/1.1 {status} \r\n\r\n").as_bytes()).await;
            assert_eq!(result.err().map(|failure| failure.to_string()).as_deref(), expect);
        }
    }

    /// Whatever frames it, and wherever it is cut.
    #[tokio::test]
    async fn a_text_in_the_body() {
        let mut check = http((200, 200));
        let Probe::Http(probe) = &mut check.probe else { panic!("HTTP") };
        probe.body = Some("state: up".to_owned());
        let far = format!("{}state: up", " ".repeat(BODY_BYTES_MAX - 9));
        let too_far = format!(" {far}");
        let (whole, cut) = (format!("Content-Length: {}\r\n\r\n{far}", far.len()), "Content-Length: 99\r\n\r\n");
        let length = |body: &str| format!("Content-Length: {}\r\n\r\n{body}", body.len());
        let (lacks, lacks_there) = (
            "the body does not contain the expected text",
            "the first 16 KiB of the body do not contain the expected text",
        );
        for (rest, expect) in [
            (length("the state: up, or so"), None),
            ("Transfer-Encoding: chunked\r\n\r\n5\r\nstate\r\n4\r\n: up\r\n0\r\n\r\n".to_owned(), None),
            ("\r\nstate: up".to_owned(), None),
            (whole, None),
            // It need not be read to its end.
            (format!("{cut}state: up"), None),
            (length("state: down"), Some(lacks)),
            ("Transfer-Encoding: chunked\r\n\r\n5\r\nstate\r\n0\r\n\r\n".to_owned(), Some(lacks)),
            ("\r\nstate: down".to_owned(), Some(lacks)),
            ("Content-Length: 0\r\n\r\n".to_owned(), Some(lacks)),
            (length(&too_far), Some(lacks_there)),
            (format!("{cut}state: "), Some("closed before the end of the response body")),
            ("Transfer-Encoding: chunked\r\n\r\nstate: up".to_owned(), Some("malformed chunked body")),
        ] {
            let (_, result) = ask(&check, None, format!("HTTP/1.1 200 OK\r\n{rest}").as_bytes()).await;
            let shown = &rest[..rest.len().min(60)];
            assert_eq!(result.err().map(|failure| failure.to_string()).as_deref(), expect, "{shown:?}");
        }
        let (_, result) = ask(&check, None, b"HTTP/1.1 204 \r\n\r\n").await;
        assert_eq!(result.unwrap_err().to_string(), "status 204, expected 200");
    }

    /// A client's request would fail because of them, so they do not prove that the endpoint works.
    #[tokio::test]
    async fn response_heads_that_clients_do_not_get() {
        let ok = (200, 399);
        for cut in ["", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 103 \r\n\r\nHTTP/1.1 200 OK\r\n"] {
            check(ok, cut.as_bytes(), "closed before the end of the response head").await;
        }
        check(ok, b"HTTP/1.1 200 OK\nA: b\n\n", "malformed header field").await;
        check(ok, b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "ambiguous message framing").await;
        let long = [b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'x'; wire::RESPONSE_HEAD_BYTES_MAX]].concat();
        check(ok, &long, "response head of more than 65536 bytes").await;
        let endless = b"HTTP/1.1 103 \r\n\r\n".repeat(wire::INTERIMS_MAX + 1);
        check(ok, &endless, "more than 16 interim responses").await;
    }

    #[tokio::test]
    async fn what_is_asked() {
        let (head, result) = ask(&http((200, 200)), None, b"HTTP/1.1 200 OK\r\n\r\n").await;
        assert_eq!(result, Ok(()));
        let head = String::from_utf8(head).unwrap();
        let lines: Vec<&str> = head.split("\r\n").collect();
        assert_eq!(lines[0], "GET /healthz?deep=1 HTTP/1.1");
        assert!(lines[1].starts_with("host: 127.0.0.1:"), "{head}");
        assert_eq!(lines[2], concat!("user-agent: steelyard-health/", env!("CARGO_PKG_VERSION")));
        assert_eq!(lines[3..], ["accept: */*", "connection: close", "", ""]);

        let mut named = http((200, 200));
        let headers = [("accept", "text/plain"), ("x-probe", "1")];
        named.probe = Probe::Http(HttpProbe {
            host: Some("shop.example".to_owned()),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            ..HttpProbe::new("/")
        });
        let (head, _) = ask(&named, None, b"HTTP/1.1 200 OK\r\n\r\n").await;
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("GET / HTTP/1.1\r\nhost: shop.example\r\nuser-agent: steelyard-health/"), "{head}");
        assert!(head.ends_with("\r\naccept: text/plain\r\nx-probe: 1\r\nconnection: close\r\n\r\n"), "{head}");
    }

    #[tokio::test]
    async fn a_proxy_protocol_header_comes_first() {
        for version in [ProxyProtocol::V1, ProxyProtocol::V2] {
            let (bytes, _) = ask(&http((200, 200)), Some(version), b"HTTP/1.1 200 OK\r\n\r\n").await;
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
        // It is bound, so that nothing else takes it, but does not listen.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        assert_eq!(probe(address, &http((200, 200)), &ProbeTransport::default()).await, Err(Failure::Refused));
    }

    #[tokio::test]
    async fn silence_ends_at_the_timeout() {
        // The kernel completes the handshake, and then nothing answers.
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

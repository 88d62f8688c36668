//! Probes over HTTP/2 against another implementation of it: the `h2` crate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ::h2::{Reason, server};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use model::{ClusterProtocol, HealthCheck, Probe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::probe::probe;
use crate::{Handshake, Handshaking, ProbeTransport, Stream};

/// What the endpoint does with the request.
enum Then {
    /// A head, a body in these pieces, and trailers.
    Answer(u16, &'static [&'static [u8]], &'static [(&'static str, &'static str)]),
    /// A head that ends the response.
    HeadAlone(u16, &'static [(&'static str, &'static str)]),
    Reset(Reason),
}

/// The request that the endpoint got.
struct ReceivedRequest {
    request: Request<()>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Serves the first request of one connection.
async fn serve(listener: TcpListener, then: Then) -> ReceivedRequest {
    let (stream, _) = listener.accept().await.unwrap();
    let mut connection = server::handshake(stream).await.unwrap();
    let (request, mut respond) = connection.accept().await.unwrap().unwrap();
    let driver = tokio::spawn(async move { while connection.accept().await.is_some() {} });
    let (head, mut stream) = request.into_parts();
    let mut body = Vec::new();
    while let Some(piece) = stream.data().await {
        let piece = piece.unwrap();
        stream.flow_control().release_capacity(piece.len()).unwrap();
        body.extend_from_slice(&piece);
    }
    let trailers = stream.trailers().await.unwrap();
    match then {
        Then::Answer(status, pieces, trailers) => {
            let head = Response::builder().status(status).header("content-type", "application/grpc").body(()).unwrap();
            let mut send = respond.send_response(head, false).unwrap();
            for piece in pieces {
                send.send_data(Bytes::from_static(piece), false).unwrap();
            }
            let mut fields = HeaderMap::new();
            trailers.iter().for_each(|(name, value)| drop(fields.insert(*name, value.parse().unwrap())));
            send.send_trailers(fields).unwrap();
        }
        Then::HeadAlone(status, fields) => {
            let head = fields
                .iter()
                .fold(Response::builder().status(status), |head, (name, value)| head.header(*name, *value));
            respond.send_response(head.body(()).unwrap(), true).unwrap();
        }
        Then::Reset(reason) => respond.send_reset(reason),
    }
    // It ends when the probe closes.
    driver.await.unwrap();
    ReceivedRequest { request: Request::from_parts(head, ()), body, trailers }
}

fn grpc(service: &str, host: Option<&str>) -> HealthCheck {
    let probe = Probe::Grpc { service: service.to_owned(), host: host.map(str::to_owned) };
    let mut check = HealthCheck::new(probe);
    check.timeout = Duration::from_secs(10);
    check
}

/// Empty for success, or else the reason.
async fn ask(check: &HealthCheck, transport: &ProbeTransport, then: Then) -> (ReceivedRequest, String) {
    let (listener, address) = listen().await;
    let (asked, result) = tokio::join!(serve(listener, then), probe(address, check, transport));
    (asked, result.err().map_or(String::new(), |failure| failure.to_string()))
}

const OK: &[(&str, &str)] = &[("grpc-status", "0")];

#[tokio::test]
async fn only_serving_is_well() {
    let check = |then, expect: &'static str| async move {
        let (_, got) = ask(&grpc("a.B", None), &ProbeTransport::default(), then).await;
        assert_eq!(got, expect);
    };
    check(Then::Answer(200, &[b"\0\0\0\0\x02\x08\x01"], OK), "").await;
    check(Then::Answer(200, &[b"\0\0", b"\0\0\x02", b"\x08", b"\x01"], OK), "").await;
    check(Then::Answer(200, &[b"\0\0\0\0\x02\x08\x02"], OK), "NOT_SERVING").await;
    check(Then::Answer(200, &[b"\0\0\0\0\0"], OK), "UNKNOWN").await;
    check(Then::Answer(200, &[], OK), "not a health check response").await;
    check(
        Then::HeadAlone(200, &[("grpc-status", "12"), ("grpc-message", "unknown service")]),
        "grpc-status 12 UNIMPLEMENTED: unknown service",
    )
    .await;
    check(Then::HeadAlone(404, &[]), "status 404 without grpc-status").await;
    check(Then::HeadAlone(200, &[]), "status 200 without grpc-status").await;
    check(Then::Reset(Reason::REFUSED_STREAM), "HTTP/2: the request was reset with code 7").await;
}

#[tokio::test]
async fn what_is_asked() {
    let (asked, _) = ask(&grpc("a.B", None), &ProbeTransport::default(), Then::HeadAlone(200, OK)).await;
    let ReceivedRequest { request, body, trailers } = asked;
    assert_eq!((request.method().as_str(), request.uri().path()), ("POST", "/grpc.health.v1.Health/Check"));
    assert_eq!(request.uri().scheme_str(), Some("http"));
    assert!(request.uri().authority().unwrap().as_str().starts_with("127.0.0.1:"));
    let field = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(field("te").as_deref(), Some("trailers"));
    assert_eq!(field("content-type").as_deref(), Some("application/grpc"));
    assert_eq!(field("grpc-timeout").as_deref(), Some("10000m"));
    assert_eq!(field("user-agent").as_deref(), Some(concat!("steelyard-health/", env!("CARGO_PKG_VERSION"))));
    assert_eq!((body.as_slice(), trailers), (&b"\0\0\0\0\x05\x0a\x03a.B"[..], None));

    let (asked, _) =
        ask(&grpc("", Some("greeter.example")), &ProbeTransport::default(), Then::HeadAlone(200, OK)).await;
    assert_eq!(asked.request.uri().authority().unwrap().as_str(), "greeter.example");
    assert_eq!(asked.body, b"\0\0\0\0\0");
}

/// A handshake that changes nothing: the HTTP/2 inside TLS is the same.
struct NoHandshake;

impl Handshake for NoHandshake {
    fn id(&self) -> usize {
        0
    }

    fn handshake<'h>(&'h self, tcp: TcpStream, _: SocketAddr, _: Option<&'h str>) -> Handshaking<'h> {
        Box::pin(async move { Ok(Box::new(tcp) as Box<dyn Stream>) })
    }
}

#[tokio::test]
async fn within_tls_the_scheme_is_https() {
    let transport = ProbeTransport { tls: Some(Arc::new(NoHandshake)), ..ProbeTransport::default() };
    let (asked, got) = ask(&grpc("a.B", None), &transport, Then::Answer(200, &[b"\0\0\0\0\x02\x08\x01"], OK)).await;
    assert_eq!((asked.request.uri().scheme_str(), got.as_str()), (Some("https"), ""));
}

#[tokio::test]
async fn http_is_asked_in_the_protocol_of_the_cluster() {
    let mut check = grpc("", None);
    check.probe = Probe::Http(model::HttpProbe::new("/healthz?deep=1"));
    let transport = ProbeTransport { protocol: ClusterProtocol::H2, ..ProbeTransport::default() };
    let (asked, got) = ask(&check, &transport, Then::HeadAlone(204, &[])).await;
    assert_eq!((asked.request.method().as_str(), asked.request.uri().path()), ("GET", "/healthz"));
    assert_eq!((asked.request.uri().query(), got.as_str()), (Some("deep=1"), ""));
    let (_, got) = ask(&check, &transport, Then::Answer(503, &[b"sorry"], OK)).await;
    assert_eq!(got, "status 503, expected 200-399");
    check.probe = Probe::Http(model::HttpProbe { body: Some("all is well".to_owned()), ..model::HttpProbe::new("/") });
    let lacks = "the body does not contain the expected text";
    const GOOD: &[&[u8]] = &[b"so all is", b" well here"];
    const BAD: &[&[u8]] = &[b"all is"];
    for (pieces, expect) in [(GOOD, ""), (BAD, lacks), (&[], lacks)] {
        assert_eq!(ask(&check, &transport, Then::Answer(200, pieces, OK)).await.1, expect);
    }
    assert_eq!(ask(&check, &transport, Then::HeadAlone(200, &[])).await.1, lacks);
}

#[tokio::test]
async fn an_endpoint_that_does_not_speak_http2() {
    let check = |answer: &'static [u8], expect: &'static str| async move {
        let (listener, address) = listen().await;
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = [0; 24];
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(&read, wire::h2::PREFACE);
            // The probe may have read enough and closed.
            _ = stream.write_all(answer).await;
            _ = stream.shutdown().await;
            _ = stream.read_to_end(&mut Vec::new()).await;
        };
        let check = grpc("", None);
        let transport = ProbeTransport::default();
        let ((), result) = tokio::join!(serve, probe(address, &check, &transport));
        assert_eq!(result.unwrap_err().to_string(), expect);
    };
    check(b"", "HTTP/2: closed before the end of the answer").await;
    check(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "HTTP/2: h2_preface").await;
}

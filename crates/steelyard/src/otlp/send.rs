//! One export: the connection to a collector, the request, and what the answer means for the spans.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use model::{Otlp, OtlpProtocol};
use net::clock;
use prost::Message;
use proxy::ClusterPlan;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::Target;
use super::message::ExportResponse;

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Bytes that a collector may send from one export to the next: heads, interim responses, frames. More costs the control thread time, and
/// a collector that never ends its interim responses could take all of it.
const RECEIVED_BYTES_MAX: usize = 256 * 1024;

/// A collector that asks for a longer pause gets this one. The largest numbers that it can write are beyond every clock.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Some senders leave the padding out of `-bin` fields.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What has become of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The collector has the spans, except for this many, for this reason.
    Accepted { rejected: u64, why: String },
    /// It must not be sent again.
    Refused(String),
    /// It may be sent again, not before this time if there is one.
    TryAgain(String, Option<Duration>),
}

impl Outcome {
    fn again(why: impl Into<String>) -> Self {
        Self::TryAgain(why.into(), None)
    }
}

/// The connection to a collector, which is kept between exports.
#[derive(Default)]
pub(super) struct Client {
    connection: Option<Connection>,
    /// The next endpoint of the cluster.
    next: usize,
}

struct Connection {
    sender: Sender,
    /// Bytes that the collector may still send.
    left: Arc<AtomicUsize>,
    /// Drives the connection. Dropping it closes that.
    _tasks: JoinSet<()>,
}

enum Sender {
    Http(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Grpc(h2::client::SendRequest<Bytes>),
}

impl Client {
    /// Sends an export. The caller limits the time: the connection is closed if it does not wait for the outcome.
    pub(super) async fn send(&mut self, target: &Target, method: &str, is_gzip: bool, body: Bytes) -> Outcome {
        let Target { otlp, plan, headers } = target;
        let kept = match self.connection.take() {
            Some(connection) if connection.is_open().await => Some(connection),
            _ => None,
        };
        let mut connection = match kept {
            Some(connection) => connection,
            None => match self.connect(otlp, plan).await {
                Ok(connection) => connection,
                Err(why) => return Outcome::again(why),
            },
        };
        connection.left.store(RECEIVED_BYTES_MAX, Relaxed);
        let host = otlp.host.as_deref().unwrap_or(&plan.policy.name);
        let (outcome, stays) = match (&mut connection.sender, &otlp.protocol) {
            (Sender::Http(sender), OtlpProtocol::Http { path }) => {
                match http_request(host, path, headers, is_gzip, body) {
                    Ok(request) => post(sender, request).await,
                    Err(error) => return Outcome::Refused(format!("the request cannot be made: {error}")),
                }
            }
            (Sender::Grpc(sender), _) => {
                let scheme = if plan.tls().is_some() { "https" } else { "http" };
                match grpc_request(&format!("{scheme}://{host}{method}"), headers, is_gzip) {
                    Ok(request) => call(sender, request, is_gzip, body).await,
                    Err(error) => return Outcome::Refused(format!("the call cannot be made: {error}")),
                }
            }
            (Sender::Http(_), OtlpProtocol::Grpc) => return Outcome::again("the protocol has changed"),
        };
        if stays {
            self.connection = Some(connection);
        }
        outcome
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.connection = None;
    }

    async fn connect(&mut self, otlp: &Otlp, plan: &ClusterPlan) -> Result<Connection, String> {
        let (index, address) = self.choose(plan).ok_or("the cluster has no endpoint with an address")?;
        self.next = index + 1;
        let tcp = TcpStream::connect(address).await;
        let tcp = tcp.map_err(|error| format!("cannot connect to {address}: {error}"))?;
        let _ = tcp.set_nodelay(true);
        match plan.tls() {
            None => begin(otlp, tcp).await,
            Some(keys) => {
                let tls = keys.secure(tcp, address, plan.host(address)).await;
                begin(otlp, tls.map_err(|error| format!("TLS with {address} failed: {error}"))?).await
            }
        }
    }

    /// In turn, those first that work as far as is known.
    fn choose(&self, plan: &ClusterPlan) -> Option<(usize, SocketAddr)> {
        let (all, now_ms) = (plan.state.endpoints(), clock::now_ms());
        let in_turn = || (0..all.len()).map(|offset| (self.next + offset) % all.len().max(1));
        let is_usable = |index: &usize| plan.state.usable(*index, now_ms) && plan.state.weight(*index) > 0;
        let index = in_turn().find(is_usable).or_else(|| in_turn().next())?;
        Some((index, all.get(index)?.address()))
    }
}

impl Connection {
    /// Whether the collector has not closed it.
    async fn is_open(&self) -> bool {
        match &self.sender {
            Sender::Http(sender) => !sender.is_closed(),
            Sender::Grpc(sender) => sender.clone().ready().await.is_ok(),
        }
    }
}

/// Begins HTTP on a connection.
async fn begin(
    otlp: &Otlp,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Connection, String> {
    let left = Arc::new(AtomicUsize::new(RECEIVED_BYTES_MAX));
    let stream = Bounded { stream, left: left.clone() };
    let mut tasks = JoinSet::new();
    let no_http = |error: &dyn std::error::Error| format!("no HTTP: {error}");
    let sender = match otlp.protocol {
        OtlpProtocol::Http { .. } => {
            let mut builder = hyper::client::conn::http1::Builder::new();
            builder.max_buf_size(ANSWER_BYTES_MAX);
            let (sender, connection) =
                builder.handshake(TokioIo::new(stream)).await.map_err(|error| no_http(&error))?;
            tasks.spawn(async {
                // The request learns of it, too.
                let _ = connection.await;
            });
            Sender::Http(sender)
        }
        OtlpProtocol::Grpc => {
            let mut builder = h2::client::Builder::new();
            builder.max_header_list_size(ANSWER_BYTES_MAX as u32).enable_push(false);
            let (sender, connection) = builder.handshake(stream).await.map_err(|error| no_http(&error))?;
            tasks.spawn(async {
                let _ = connection.await;
            });
            Sender::Grpc(sender)
        }
    };
    Ok(Connection { sender, left, _tasks: tasks })
}

/// A connection that fails when a number of bytes has been received.
struct Bounded<S> {
    stream: S,
    left: Arc<AtomicUsize>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, out))?;
        let read = out.filled().len() - before;
        let left = self.left.load(Relaxed);
        if read > left {
            return Poll::Ready(Err(io::Error::other("the collector sends without end")));
        }
        self.left.store(left - read, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// The request of an export over HTTP.
fn http_request(
    host: &str,
    path: &str,
    headers: &HeaderMap,
    is_gzip: bool,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
    let mut request = Request::post(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/x-protobuf")
        .header(header::USER_AGENT, concat!("steelyard/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(body))?;
    if is_gzip {
        request.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    request.headers_mut().extend(headers.clone());
    Ok(request)
}

/// Sends an export over HTTP. Returns the outcome, and whether the connection can be used again.
async fn post(
    sender: &mut hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> (Outcome, bool) {
    if let Err(error) = sender.ready().await {
        return (Outcome::again(format!("the connection has ended: {error}")), false);
    }
    let response = match sender.send_request(request).await {
        Ok(response) => response,
        Err(error) => return (Outcome::again(format!("no response: {error}")), false),
    };
    let (parts, body) = response.into_parts();
    let body = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if parts.status.is_success() => {
            // It may have the spans, and must not get them twice.
            return (Outcome::Refused(format!("the answer was cut off: {error}")), false);
        }
        Err(_) => Bytes::new(),
    };
    (of_status(parts.status, &parts.headers, &body), true)
}

/// What a response over HTTP means (OTLP specification, "OTLP/HTTP Response").
fn of_status(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Outcome {
    let why = || format!("the answer is {status}");
    match status.as_u16() {
        200..=299 => of_answer(body),
        429 | 502 | 503 | 504 => Outcome::TryAgain(why(), retry_after(headers)),
        _ => Outcome::Refused(why()),
    }
}

/// Only in seconds: the clocks of two hosts differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(PAUSE_MAX))
}

/// What the message of a success says.
fn of_answer(message: &[u8]) -> Outcome {
    match ExportResponse::decode(message) {
        Ok(ExportResponse { partial_success: None }) => Outcome::Accepted { rejected: 0, why: String::new() },
        Ok(ExportResponse { partial_success: Some(partial) }) => Outcome::Accepted {
            rejected: u64::try_from(partial.rejected_spans).unwrap_or(0),
            why: partial.error_message.chars().take(200).collect(),
        },
        // It may have the spans, and must not get them twice.
        Err(error) => Outcome::Refused(format!("the answer cannot be read: {error}")),
    }
}

/// The request of an export over gRPC.
fn grpc_request(url: &str, headers: &HeaderMap, is_gzip: bool) -> Result<Request<()>, hyper::http::Error> {
    let mut request = Request::post(url)
        .header(header::TE, "trailers")
        .header(header::CONTENT_TYPE, "application/grpc")
        .header(header::USER_AGENT, concat!("steelyard/", env!("CARGO_PKG_VERSION")))
        .body(())?;
    if is_gzip {
        request.headers_mut().insert("grpc-encoding", HeaderValue::from_static("gzip"));
    }
    request.headers_mut().extend(headers.clone());
    Ok(request)
}

/// Sends an export over gRPC. Returns the outcome, and whether the connection can be used again.
async fn call(
    sender: &mut h2::client::SendRequest<Bytes>,
    request: Request<()>,
    is_gzip: bool,
    message: Bytes,
) -> (Outcome, bool) {
    match called(sender, request, is_gzip, message).await {
        Ok(outcome) => (outcome, true),
        Err(error) => (Outcome::again(format!("the call failed: {error}")), false),
    }
}

async fn called(
    sender: &mut h2::client::SendRequest<Bytes>,
    request: Request<()>,
    is_gzip: bool,
    message: Bytes,
) -> Result<Outcome, h2::Error> {
    let mut ready = sender.clone().ready().await?;
    let (response, mut body) = ready.send_request(request, false)?;
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(u8::from(is_gzip));
    framed.put_u32(message.len() as u32);
    framed.extend_from_slice(&message);
    body.send_data(framed.freeze(), true)?;
    let (parts, mut body) = response.await?.into_parts();
    let mut answer = BytesMut::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        if answer.len() + piece.len() > ANSWER_BYTES_MAX {
            return Ok(Outcome::Refused("the answer is too long".to_owned()));
        }
        answer.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await?.unwrap_or(parts.headers);
    Ok(of_call(parts.status, &trailers, &answer))
}

/// What the end of a call means (OTLP specification, "OTLP/gRPC Response").
fn of_call(status: StatusCode, trailers: &HeaderMap, body: &[u8]) -> Outcome {
    let code = trailers.get("grpc-status").and_then(|code| code.to_str().ok()?.parse::<u8>().ok());
    let Some(code) = code else {
        // Not gRPC: a proxy in between, or another service.
        let why = format!("the answer is {status}, without grpc-status");
        return match status.as_u16() {
            429 | 502 | 503 | 504 => Outcome::again(why),
            _ => Outcome::Refused(why),
        };
    };
    let name = model::GRPC_STATUS_NAMES.get(usize::from(code)).unwrap_or(&"an unknown code");
    let message = trailers.get("grpc-message").and_then(|message| message.to_str().ok()).unwrap_or_default();
    let why = format!("the call ended with {name}: {}", message.chars().take(200).collect::<String>());
    match (code, retry_delay(trailers)) {
        (0, _) => match body.split_at_checked(5) {
            Some(([0, ..], message)) => of_answer(message),
            _ => Outcome::Refused("the answer has no message".to_owned()),
        },
        (8, None) => Outcome::Refused(why),
        (1 | 4 | 8 | 10 | 11 | 14 | 15, delay) => Outcome::TryAgain(why, delay),
        _ => Outcome::Refused(why),
    }
}

/// `google.rpc.RetryInfo` in the details of a status.
fn retry_delay(trailers: &HeaderMap) -> Option<Duration> {
    #[derive(Clone, PartialEq, Message)]
    struct Status {
        #[prost(message, repeated, tag = "3")]
        details: Vec<Detail>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Detail {
        #[prost(string, tag = "1")]
        type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        delay: Option<Delay>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Delay {
        #[prost(int64, tag = "1")]
        seconds: i64,
        #[prost(int32, tag = "2")]
        nanos: i32,
    }

    let bytes = BASE64.decode(trailers.get("grpc-status-details-bin")?.as_bytes()).ok()?;
    let status = Status::decode(bytes.as_slice()).ok()?;
    let detail = status.details.iter().find(|detail| detail.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let Delay { seconds, nanos } = RetryInfo::decode(detail.value.as_slice()).ok()?.delay?;
    Some(Duration::new(u64::try_from(seconds).ok()?, u32::try_from(nanos).ok()?.min(999_999_999)).min(PAUSE_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn what_answers_over_http_mean() {
        let check = |status: u16, fields: &[(&'static str, &str)], body: &[u8], expect: &str| {
            let shown = match of_status(StatusCode::from_u16(status).unwrap(), &headers(fields), body) {
                Outcome::Accepted { rejected, why } => format!("accepted but {rejected} {why}"),
                Outcome::Refused(why) => format!("refused: {}", why.split(": ").next().unwrap()),
                Outcome::TryAgain(why, after) => format!("again after {after:?}: {why}"),
            };
            assert_eq!(shown, expect, "{status}");
        };
        check(200, &[], b"", "accepted but 0 ");
        check(202, &[], b"\x0a\x06\x08\x03\x12\x02no", "accepted but 3 no");
        // A warning without a loss.
        check(200, &[], b"\x0a\x04\x12\x02no", "accepted but 0 no");
        check(200, &[], b"\x0a\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "accepted but 0 ");
        check(200, &[], b"<html>", "refused: the answer cannot be read");
        check(400, &[], b"", "refused: the answer is 400 Bad Request");
        check(500, &[], b"", "refused: the answer is 500 Internal Server Error");
        check(301, &[], b"", "refused: the answer is 301 Moved Permanently");
        for status in [429, 502, 503, 504] {
            let why = format!("the answer is {}", StatusCode::from_u16(status).unwrap());
            check(status, &[], b"x", &format!("again after None: {why}"));
            check(status, &[("retry-after", "7")], b"x", &format!("again after Some(7s): {why}"));
            check(
                status,
                &[("retry-after", "Fri, 31 Dec 1999 23:59:59 GMT")],
                b"",
                &format!("again after None: {why}"),
            );
        }
    }

    #[test]
    fn what_the_ends_of_calls_mean() {
        let check = |fields: &[(&'static str, &str)], body: &[u8], expect: Option<Option<u64>>| {
            let outcome = of_call(StatusCode::OK, &headers(fields), body);
            let again = match &outcome {
                Outcome::TryAgain(_, after) => Some(after.map(|after| after.as_secs())),
                Outcome::Accepted { .. } | Outcome::Refused(_) => None,
            };
            assert_eq!(again, expect, "{fields:?}");
            outcome
        };
        let good = check(&[("grpc-status", "0")], b"\0\0\0\0\0", None);
        assert_eq!(good, Outcome::Accepted { rejected: 0, why: String::new() });
        let partial = check(&[("grpc-status", "0")], b"\0\0\0\0\x08\x0a\x06\x08\x02\x12\x02no", None);
        assert_eq!(partial, Outcome::Accepted { rejected: 2, why: "no".to_owned() });
        assert!(matches!(check(&[("grpc-status", "0")], b"", None), Outcome::Refused(_)));
        for code in ["1", "4", "10", "11", "14", "15"] {
            check(&[("grpc-status", code)], b"", Some(None));
        }
        for code in ["2", "3", "5", "6", "7", "8", "9", "12", "13", "16", "99"] {
            check(&[("grpc-status", code)], b"", None);
        }
        check(&[], b"", None);
        // code: 8, details: [{type_url: "type.googleapis.com/google.rpc.RetryInfo", value: {retry_delay: {seconds: 9}}}]
        let info = b"\x0a\x02\x08\x09";
        let mut detail = b"\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04".to_vec();
        detail.extend_from_slice(info);
        let mut status = b"\x08\x08\x1a".to_vec();
        status.push(detail.len() as u8);
        status.extend_from_slice(&detail);
        let text = BASE64.encode(&status);
        check(&[("grpc-status", "8"), ("grpc-status-details-bin", text.trim_end_matches('='))], b"", Some(Some(9)));
        check(&[("grpc-status", "8"), ("grpc-status-details-bin", "!!")], b"", None);
    }
}

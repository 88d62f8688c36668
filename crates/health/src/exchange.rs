//! One request and its response on a connection that is used once: over HTTP/1.1, or over HTTP/2 by prior knowledge.
//!
//! [`ProbeExchange`] does no I/O. It writes with the encoders of `wire` and reads heads with [`ResponseHeads`], as the proxy does for
//! clients' requests.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::h1::{self, ChunkedDecoder, Decoded, HeadError, Parsed};
use wire::h2::{Connection, Event, Handled, Limits, PseudoHeaders, ResetBy, Role};
use wire::message::{Body, Field, Method, ResponseHead};
use wire::{HeadKind, ResponseError, ResponseHeads};

use crate::probe::{Failure, broken};
use crate::transport::Stream;

/// The longest body of a gRPC response, where that of a health check has about ten bytes; and the part of other bodies in which a text is
/// looked for.
pub(crate) const BODY_BYTES_MAX: usize = 16 * 1024;

/// Bytes per read.
const READ_BYTES: usize = 4 * 1024;

/// The request of a probe.
pub(crate) struct Request<'r> {
    pub(crate) target: PseudoHeaders<'r>,
    /// Names in lower case.
    pub(crate) fields: &'r [(&'r [u8], &'r [u8])],
    pub(crate) over: Over<'r>,
}

/// The protocol of a probe.
#[derive(Clone, Copy)]
pub(crate) enum Over<'r> {
    /// Without a body, over HTTP/1.1. The response is read up to the end of its head, or up to the text that is looked for. The close then resets
    /// the connection, which ends a long body early.
    Http1(Option<&'r str>),
    /// The same over HTTP/2.
    Http2(Option<&'r str>),
    /// With this body over HTTP/2, whose windows accept 16 KiB at once. The response is read to its end.
    Grpc(&'r [u8]),
}

/// A final response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names and values of the fields of the head, followed by those of the trailers.
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The last field with this name, so trailers take precedence.
    pub(crate) fn field(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_slice())
    }

    fn keep(&mut self, fields: &[Field], bytes: &[u8]) {
        let kept = fields.iter().map(|field| (field.name.get(bytes).to_vec(), field.value.get(bytes).to_vec()));
        self.fields.extend(kept);
    }
}

/// Sends a request, and returns its response.
pub(crate) async fn ask(stream: &mut (impl Stream + ?Sized), request: &Request<'_>) -> Result<Answer, Failure> {
    let mut exchange = ProbeExchange::new(request)?;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        flush(stream, &mut exchange).await?;
        let read = stream.read(&mut buffer).await.map_err(broken)?;
        if read == 0 {
            return exchange.handle_close();
        }
        if exchange.handle_bytes(buffer.get(..read).unwrap_or_default())? {
            // The response is complete, so it is no failure if the endpoint does not read our last frames.
            _ = flush(stream, &mut exchange).await;
            return Ok(exchange.answer);
        }
    }
}

async fn flush(stream: &mut (impl Stream + ?Sized), exchange: &mut ProbeExchange) -> Result<(), Failure> {
    let count = exchange.output().len();
    if count == 0 {
        return Ok(());
    }
    stream.write_all(exchange.output()).await.map_err(broken)?;
    exchange.consume_output(count);
    stream.flush().await.map_err(broken)
}

struct ProbeExchange {
    protocol: Protocol,
    heads: ResponseHeads,
    answer: Answer,
    wants: Wants,
}

/// The part of the response that is read.
enum Wants {
    Head,
    /// Up to the end of this text, or as far as it is looked for.
    Text(Vec<u8>),
    Everything,
}

enum Protocol {
    Http1 {
        output: Vec<u8>,
        /// Bytes that have arrived since the last head, unless they belong to the body.
        input: Vec<u8>,
        /// Known after the final head.
        body: Option<BodyReader>,
    },
    Http2(Box<Connection>),
}

impl ProbeExchange {
    fn new(request: &Request<'_>) -> Result<Self, Failure> {
        let text = |text: Option<&str>| text.map_or(Wants::Head, |text| Wants::Text(text.as_bytes().to_vec()));
        let (protocol, wants) = match request.over {
            Over::Http1(wanted) => {
                (Protocol::Http1 { output: h1_head(request), input: Vec::new(), body: None }, text(wanted))
            }
            Over::Http2(wanted) => (h2_request(request, &[])?, text(wanted)),
            Over::Grpc(body) => (h2_request(request, body)?, Wants::Everything),
        };
        Ok(Self { protocol, heads: ResponseHeads::default(), answer: Answer::default(), wants })
    }

    fn output(&self) -> &[u8] {
        match &self.protocol {
            Protocol::Http1 { output, .. } => output,
            Protocol::Http2(connection) => connection.output(),
        }
    }

    fn consume_output(&mut self, count: usize) {
        match &mut self.protocol {
            Protocol::Http1 { output, .. } => drop(output.drain(..count)),
            Protocol::Http2(connection) => connection.consume_output(count),
        }
    }

    /// The endpoint has closed the connection, which ends some bodies. Returns the response if it is complete.
    fn handle_close(self) -> Result<Answer, Failure> {
        match &self.protocol {
            Protocol::Http1 { body: Some(BodyReader::UntilClose), .. } => Ok(self.answer),
            Protocol::Http1 { body: Some(_), .. } => Err(Failure::ClosedInBody),
            Protocol::Http1 { body: None, .. } => Err(Failure::Closed),
            Protocol::Http2(_) => Err(Failure::Http2("closed before the end of the answer".to_owned())),
        }
    }

    /// Processes bytes. Returns whether the wanted part of the response has arrived.
    fn handle_bytes(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        match &mut self.protocol {
            Protocol::Http1 { body: Some(_), .. } => self.handle_body(bytes),
            Protocol::Http1 { input, .. } => {
                input.extend_from_slice(bytes);
                self.handle_heads()
            }
            Protocol::Http2(_) => self.handle_frames(bytes),
        }
    }

    /// Skips interim responses, up to the head of the final one.
    fn handle_heads(&mut self) -> Result<bool, Failure> {
        let Protocol::Http1 { input, body, .. } = &mut self.protocol else { return Ok(false) };
        let mut head = ResponseHead::default();
        while let Parsed::Complete(length) =
            self.heads.handle_bytes(input, Method::Get, &mut head).map_err(Failure::of_response)?
        {
            self.answer.status = head.status;
            let kind = self.heads.handle_head(head.status).map_err(Failure::of_response)?;
            input.drain(..length);
            if kind != HeadKind::Interim {
                *body = BodyReader::of(head.body);
                if body.is_none() || matches!(self.wants, Wants::Head) {
                    return Ok(true);
                }
                let rest = std::mem::take(input);
                return self.handle_body(&rest);
            }
        }
        Ok(false)
    }

    /// Keeps bytes of a body over HTTP/1.1.
    fn handle_body(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        let Protocol::Http1 { body: Some(body), .. } = &mut self.protocol else { return Ok(false) };
        let is_over = body.handle_bytes(bytes, &mut self.answer)?;
        Ok(is_over || self.has_enough())
    }

    /// Whether what follows makes no difference.
    fn has_enough(&self) -> bool {
        let Wants::Text(text) = &self.wants else { return false };
        self.answer.body.len() >= BODY_BYTES_MAX || self.answer.contains(text)
    }

    fn handle_frames(&mut self, mut input: &[u8]) -> Result<bool, Failure> {
        let Self { protocol: Protocol::Http2(connection), heads, answer, wants } = self else { return Ok(false) };
        loop {
            // A connection for one probe needs no clock, because nothing in its budget has to be paid back with time.
            let handled = connection.handle_bytes(0, input);
            let Handled { consumed, event } =
                handled.map_err(|error| Failure::Http2(error.reason.name().to_owned()))?;
            input = input.get(consumed..).unwrap_or_default();
            let is_whole = match event {
                None => return Ok(false),
                Some(Event::Response { end, .. }) => {
                    let (mut head, mut bytes) = (ResponseHead::default(), Vec::new());
                    connection.take_response(&mut head, &mut bytes);
                    match heads.handle_head(head.status).map_err(Failure::of_response)? {
                        HeadKind::Interim => false,
                        // `wire::h2` does not accept 101 as a response (RFC 9113 section 8.6).
                        HeadKind::SwitchingProtocols | HeadKind::Final => {
                            answer.status = head.status;
                            answer.keep(&head.fields, &bytes);
                            end || matches!(wants, Wants::Head)
                        }
                    }
                }
                Some(Event::Trailers { .. }) => {
                    let (mut fields, mut bytes) = (Vec::new(), Vec::new());
                    connection.take_trailers(&mut fields, &mut bytes);
                    answer.keep(&fields, &bytes);
                    true
                }
                Some(event) => match wants {
                    Wants::Text(text) => answer.handle_piece(event, text)?,
                    Wants::Head | Wants::Everything => answer.handle(event)?,
                },
            };
            if is_whole {
                connection.drain();
                return Ok(true);
            }
        }
    }
}

/// What remains of a body over HTTP/1.1.
enum BodyReader {
    Length(u64),
    Chunked(ChunkedDecoder),
    UntilClose,
}

impl BodyReader {
    /// `None` if there is no body.
    fn of(body: Body) -> Option<Self> {
        Some(match body {
            Body::None => return None,
            Body::Length(bytes) => Self::Length(bytes),
            Body::Chunked => Self::Chunked(ChunkedDecoder::default()),
            Body::UntilClose => Self::UntilClose,
        })
    }

    /// Keeps the beginning of the body. Returns whether it has ended.
    fn handle_bytes(&mut self, bytes: &[u8], answer: &mut Answer) -> Result<bool, Failure> {
        match self {
            Self::UntilClose => {
                answer.keep_piece(bytes);
                Ok(false)
            }
            Self::Length(left) => {
                let own = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                answer.keep_piece(bytes.get(..own).unwrap_or_default());
                *left -= own as u64;
                Ok(*left == 0)
            }
            Self::Chunked(decoder) => {
                let mut from = 0;
                loop {
                    match decoder.decode(bytes, from).map_err(|_| Failure::BadBody)? {
                        Decoded::More => return Ok(false),
                        Decoded::End(_) => return Ok(true),
                        Decoded::Data(range) => {
                            from = range.end;
                            answer.keep_piece(bytes.get(range).unwrap_or_default());
                        }
                    }
                }
            }
        }
    }
}

impl Answer {
    /// Whether the part of the body that was read has this text.
    pub(crate) fn contains(&self, text: &[u8]) -> bool {
        memchr::memmem::find(&self.body, text).is_some()
    }

    /// Keeps a piece of the body as far as a text is looked for.
    fn keep_piece(&mut self, piece: &[u8]) {
        let room = BODY_BYTES_MAX.saturating_sub(self.body.len());
        self.body.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    /// Like [`Self::handle`], of a body in which a text is looked for.
    fn handle_piece(&mut self, event: Event<'_>, text: &[u8]) -> Result<bool, Failure> {
        let Event::Data { bytes, end, .. } = event else { return self.handle(event) };
        self.keep_piece(bytes);
        Ok(end || self.body.len() >= BODY_BYTES_MAX || self.contains(text))
    }

    /// Processes what follows the head, except trailers. Returns whether it is the last.
    fn handle(&mut self, event: Event<'_>) -> Result<bool, Failure> {
        match event {
            Event::Data { bytes, end, .. } => {
                if self.body.len() + bytes.len() > BODY_BYTES_MAX {
                    return Err(Failure::Http2(format!("the answer is longer than {BODY_BYTES_MAX} bytes")));
                }
                self.body.extend_from_slice(bytes);
                Ok(end)
            }
            Event::Reset { by: ResetBy::GoAway, .. } => Err(Failure::Http2("the endpoint is going away".to_owned())),
            Event::Reset { by: ResetBy::Us(reason), .. } => Err(Failure::Http2(reason.name().to_owned())),
            Event::Reset { code, by: ResetBy::Peer, .. } => {
                Err(Failure::Http2(format!("the request was reset with code {}", code.0)))
            }
            _ => Ok(false),
        }
    }
}

/// A head that asks the endpoint to close the connection after the response.
fn h1_head(request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    h1::request_line(&mut out, request.target.method, request.target.path);
    h1::field(&mut out, b"host", request.target.authority);
    for (name, value) in request.fields {
        h1::field(&mut out, name, value);
    }
    h1::field(&mut out, b"connection", b"close");
    out.extend_from_slice(b"\r\n");
    out
}

fn h2_request(request: &Request<'_>, body: &[u8]) -> Result<Protocol, Failure> {
    let limits = Limits { extended_connect: false, ..Limits::default() };
    let mut connection = Box::new(Connection::new(Role::Client, limits));
    // A new connection has room for one stream, and its windows for the body.
    let not_sent = |_| Failure::Http2("no room for a request".to_owned());
    let end = body.is_empty();
    let sent = connection.send_request(&request.target, end, |head| {
        for (name, value) in request.fields {
            head.field(name, value);
        }
    });
    let stream = sent.map_err(not_sent)?;
    if !end {
        connection.send_data(stream, body, true).map_err(not_sent)?;
    }
    Ok(Protocol::Http2(connection))
}

impl Failure {
    fn of_response(error: ResponseError) -> Self {
        match error {
            ResponseError::Head(HeadError::StartLine | HeadError::Version) => Self::NotHttp,
            error => Self::BadHead(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(over: Over<'_>) -> ProbeExchange {
        let target =
            PseudoHeaders { method: b"GET", scheme: b"http", authority: b"a.test", path: b"/healthz", protocol: None };
        ProbeExchange::new(&Request { target, fields: &[(b"accept", b"*/*")], over }).unwrap()
    }

    #[test]
    fn the_head_over_http1() {
        let exchange = get(Over::Http1(None));
        let expect = "GET /healthz HTTP/1.1\r\nhost: a.test\r\naccept: */*\r\nconnection: close\r\n\r\n";
        assert_eq!(str::from_utf8(exchange.output()).unwrap(), expect);
    }

    #[test]
    fn interim_responses_are_read_past() {
        let text = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 204 \r\n\r\n";
        for at in 0..text.len() {
            let mut exchange = get(Over::Http1(None));
            let (first, second) = text.split_at(at);
            assert_eq!(exchange.handle_bytes(first), Ok(false));
            assert_eq!((exchange.handle_bytes(second), exchange.answer.status), (Ok(true), 204), "split at {at}");
        }
    }
}

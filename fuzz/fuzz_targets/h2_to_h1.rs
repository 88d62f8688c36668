//! From HTTP/2 to HTTP/1.1: any bytes of a client, through the codec and the proxy's own writer of heads, as an endpoint gets them.
//!
//! What is written for one stream is at most one request, to the letter of RFC 9112, to two readers that share no code with the balancer
//! (`testkit::strict` and httparse) and to the one that does; a stream that ends whole is exactly one, and says what the client said: the
//! same method, target, authority, end-to-end fields, body and trailers. Nothing that was sent as body or field is anything else.
//!
//! The input is what a client sends behind its first words. The clock moves with the input, so that the budget for useless frames is met
//! and is paid back.
#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use proxy::fuzzing;
use testkit::{escape, strict};
use wire::h1::{self, Parsed};
use wire::h2::{Connection, Event, Limits, PREFACE, Role};
use wire::message::{Body, Field, FieldId, Method, RequestHead};

const LIMITS: Limits = Limits {
    streams_max: 8,
    stream_window_bytes: 65_535,
    connection_window_bytes: 65_535,
    header_list_bytes_max: 4_000,
    fields_max: 30,
    output_bytes_max: 4_000,
    glitches_max: 2_000,
    extended_connect: true,
};

/// What an endpoint gets of one stream, and what the client meant.
struct Exchange {
    method: Vec<u8>,
    target: Vec<u8>,
    authority: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    framing: Body,
    /// DATA, in order.
    body: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    /// As the proxy writes it to the endpoint.
    written: Vec<u8>,
}

fuzz_target!(|data: &[u8]| {
    let mut connection = Connection::new(Role::Server, LIMITS);
    let hello = [PREFACE.as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    connection.handle_bytes(0, &hello).expect("the first words");
    let mut under_way: BTreeMap<u32, Exchange> = BTreeMap::new();
    let mut rest = data;
    let mut now_ms = 0;
    while let Ok(handled) = connection.handle_bytes(now_ms, rest) {
        now_ms += handled.consumed as u64;
        rest = &rest[handled.consumed..];
        let Some(event) = handled.event else { break };
        match event {
            Event::Request { stream, end } => {
                let (mut head, mut arena) = (RequestHead::default(), Vec::new());
                connection.take_request(&mut head, &mut arena);
                // Not requests: one is refused, the other becomes a tunnel.
                if head.method == Method::Connect {
                    connection.forget(stream);
                    continue;
                }
                let exchange = Exchange::begin(&head, &arena);
                if end {
                    exchange.end();
                    answer(&mut connection, stream);
                } else {
                    under_way.insert(stream.id, exchange);
                }
            }
            Event::Data { stream, bytes, end } => {
                connection.release_capacity(stream, bytes.len() as u32);
                let Some(exchange) = under_way.get_mut(&stream.id) else { continue };
                exchange.data(bytes);
                if end && let Some(exchange) = under_way.remove(&stream.id) {
                    exchange.end();
                    answer(&mut connection, stream);
                }
            }
            Event::Trailers { stream } => {
                let (mut fields, mut arena) = (Vec::new(), Vec::new());
                connection.take_trailers(&mut fields, &mut arena);
                if let Some(mut exchange) = under_way.remove(&stream.id) {
                    exchange.trailers(&fields, &arena);
                    exchange.end_with(&fields, &arena);
                    answer(&mut connection, stream);
                }
            }
            Event::Reset { stream, .. } => {
                connection.forget(stream);
                if let Some(exchange) = under_way.remove(&stream.id) {
                    exchange.cut();
                }
            }
            Event::RequestTooLarge { stream } => connection.forget(stream),
            _ => {}
        }
        connection.consume_output(usize::MAX);
    }
    under_way.into_values().for_each(Exchange::cut);
});

fn answer(connection: &mut Connection, stream: wire::h2::StreamKey) {
    // Refused by a stream that the client has taken back meanwhile.
    let _ = connection.send_response(stream, 204, true, |_| {});
    connection.forget(stream);
}

impl Exchange {
    fn begin(head: &RequestHead, arena: &[u8]) -> Self {
        let mut written = Vec::new();
        fuzzing::write_request(&mut written, head, arena);
        let text = |span: wire::message::Span| span.get(arena).to_vec();
        let exchange = Self {
            method: text(head.method_name),
            target: text(head.path),
            authority: text(head.authority),
            fields: end_to_end(&head.fields, arena),
            framing: head.body,
            body: Vec::new(),
            trailers: Vec::new(),
            written,
        };
        exchange.assert_head();
        exchange
    }

    /// As the pump frames what it passes on.
    fn data(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
        match self.framing {
            Body::Chunked if !bytes.is_empty() => {
                h1::chunk_start(&mut self.written, bytes.len());
                self.written.extend_from_slice(bytes);
                h1::chunk_end(&mut self.written);
            }
            Body::Chunked => {}
            Body::Length(_) => self.written.extend_from_slice(bytes),
            Body::None | Body::UntilClose => assert!(bytes.is_empty(), "DATA where the head has no body"),
        }
    }

    fn trailers(&mut self, fields: &[Field], arena: &[u8]) {
        // Only chunks have a place for them.
        if self.framing == Body::Chunked {
            self.trailers = end_to_end(fields, arena);
        }
    }

    fn end(self) {
        self.end_with(&[], &[]);
    }

    fn end_with(mut self, fields: &[Field], arena: &[u8]) {
        if self.framing == Body::Chunked {
            self.written.extend_from_slice(b"0\r\n");
            fuzzing::write_trailers(&mut self.written, fields, arena);
            self.written.extend_from_slice(b"\r\n");
        }
        let read = strict::request(&self.written);
        let Ok(Some((request, length))) = read else { panic!("{read:?} of {}", escape(&self.written)) };
        assert_eq!(length, self.written.len(), "behind the request: {}", escape(&self.written));
        assert_eq!(request.body, self.body, "the body of {}", escape(&self.written));
        for trailer in &request.trailers {
            let same = |(name, value): &(Vec<u8>, Vec<u8>)| *name == trailer.name.as_bytes() && *value == trailer.value;
            assert!(self.trailers.iter().any(same), "{trailer:?} came from nowhere");
        }
    }

    /// What was sent of a stream that has no end: at most one request, and nothing behind it.
    fn cut(self) {
        match strict::request(&self.written) {
            Ok(None) => {}
            Ok(Some((_, length))) => assert_eq!(length, self.written.len(), "{}", escape(&self.written)),
            Err(violation) => panic!("{violation} of {}", escape(&self.written)),
        }
    }

    /// The head as three readers see it.
    fn assert_head(&self) {
        let shown = || escape(&self.written);
        let read = strict::request_head(&self.written);
        let Ok(Some((request, length))) = read else { panic!("{read:?} of {}", shown()) };
        assert_eq!(length, self.written.len(), "{}", shown());
        assert_eq!(
            (request.method.as_bytes(), request.target.as_bytes()),
            (&*self.method, &*self.target),
            "{}",
            shown()
        );
        assert_eq!(strict::values(&request.headers, "host"), [self.authority.as_slice()], "{}", shown());
        // A length of nothing is no body.
        let framing = Some(request.framing).filter(|framing| *framing != strict::Framing::Length(0));
        assert_eq!(framing.unwrap_or(strict::Framing::None), fuzz::framing(self.framing), "{}", shown());
        let ours = [
            "host",
            "content-length",
            "transfer-encoding",
            "expect",
            "trailer",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
        ];
        let is_theirs = |field: &&strict::Field| !ours.contains(&field.name.as_str());
        let read: Vec<_> = request.headers.iter().filter(is_theirs).map(|f| (f.name.as_bytes(), &*f.value)).collect();
        let sent: Vec<_> = self.fields.iter().map(|(name, value)| (name.as_slice(), value.as_slice())).collect();
        assert_eq!(read, sent, "{}", shown());

        let mut room = [httparse::EMPTY_HEADER; 64];
        let mut other = httparse::Request::new(&mut room);
        assert_eq!(other.parse(&self.written), Ok(httparse::Status::Complete(length)), "{}", shown());
        assert_eq!((other.method, other.version), (Some(&*request.method), Some(1)), "{}", shown());
        assert_eq!(other.headers.len(), request.headers.len(), "{}", shown());

        let mut own = RequestHead::default();
        assert_eq!(h1::parse_request(&self.written, 64, &mut own), Ok(Parsed::Complete(length)), "{}", shown());
        assert_eq!((own.body, own.upgrade, own.keep_alive), (self.framing, None, true), "{}", shown());
    }
}

/// What passes a hop as it is.
fn end_to_end(fields: &[Field], arena: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let passes = |field: &&Field| matches!(field.id, FieldId::Other | FieldId::Cookie | FieldId::Date);
    let pair = |field: &Field| (field.name.get(arena).to_vec(), field.value.get(arena).to_vec());
    fields.iter().filter(passes).map(pair).collect()
}

//! Tests of the connection: raw frames in, words out. This file has the shared helpers; the files below test the rules.

mod attacks;
mod frames;
mod messages;
mod oracle;
mod sending;
mod simulation;
mod splits;

use super::frame::{FrameHead, HEAD_BYTES, flag, kind};
use super::*;
use crate::message::{RequestHead, ResponseHead, Span};

/// A frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let head = FrameHead { length: payload.len() as u32, kind, flags, stream };
    [&head.bytes(), payload].concat()
}

/// A header block of literals, so that it means the same at any point of any connection.
pub(super) fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            match text.len() {
                short @ 0..127 => out.push(short as u8),
                long => {
                    let rest = long - 127;
                    out.extend_from_slice(&[
                        127,
                        (rest & 127 | 128) as u8,
                        (rest >> 7 & 127 | 128) as u8,
                        (rest >> 14) as u8,
                    ]);
                }
            }
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

pub(super) const GET: &[(&str, &str)] = &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
pub(super) const POST: &[(&str, &str)] =
    &[(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
pub(super) const OK: &[(&str, &str)] = &[(":status", "200")];

/// HEADERS with the complete block.
pub(super) fn headers(stream: u32, end: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    let flags = flag::END_HEADERS | if end { flag::END_STREAM } else { 0 };
    frame(kind::HEADERS, flags, stream, &block(fields))
}

pub(super) fn data(stream: u32, end: bool, bytes: &[u8]) -> Vec<u8> {
    frame(kind::DATA, if end { flag::END_STREAM } else { 0 }, stream, bytes)
}

pub(super) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

pub(super) fn rst(stream: u32, code: ErrorCode) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &code.0.to_be_bytes())
}

pub(super) fn settings(entries: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> =
        entries.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    frame(kind::SETTINGS, 0, 0, &payload)
}

/// The first frames that the other side sends to this role.
pub(super) fn hello(role: Role) -> Vec<u8> {
    if role == Role::Server { [PREFACE.as_slice(), &settings(&[])].concat() } else { settings(&[]) }
}

/// A connection after the first exchange of settings, with nothing to write.
pub(super) fn established(role: Role, limits: Limits) -> Connection {
    let mut connection = Connection::new(role, limits);
    connection.handle_bytes(0, &hello(role)).unwrap();
    assert!(connection.is_established());
    connection.consume_output(usize::MAX);
    connection
}

/// Passes in all bytes in pieces of this size, and returns the events as words; an error comes last.
pub(super) fn feed(connection: &mut Connection, bytes: &[u8], piece: usize) -> Vec<String> {
    let mut words = Vec::new();
    let mut text = TextOfEvents::default();
    for piece in bytes.chunks(piece.max(1)) {
        let mut rest = piece;
        loop {
            match connection.handle_bytes(0, rest) {
                Err(error) => {
                    text.flush(&mut words);
                    words.push(format!("error {}", error.reason.name()));
                    return words;
                }
                Ok(Handled { consumed, event }) => {
                    rest = &rest[consumed..];
                    match event {
                        Some(event) => text.add(connection, &event, &mut words),
                        None => break,
                    }
                }
            }
        }
        assert!(rest.is_empty(), "{} bytes were left", rest.len());
    }
    text.flush(&mut words);
    words
}

/// Joins pieces of DATA, which may be split anywhere.
#[derive(Default)]
struct TextOfEvents {
    data: Option<(u32, Vec<u8>)>,
}

impl TextOfEvents {
    fn flush(&mut self, words: &mut Vec<String>) {
        if let Some((id, bytes)) = self.data.take() {
            words.push(format!("data {id} {}", String::from_utf8_lossy(&bytes)));
        }
    }

    fn add(&mut self, connection: &mut Connection, event: &Event<'_>, words: &mut Vec<String>) {
        if let Event::Data { stream, bytes, end } = event {
            if self.data.as_ref().is_some_and(|(id, _)| *id != stream.id) {
                self.flush(words);
            }
            self.data.get_or_insert_with(|| (stream.id, Vec::new())).1.extend_from_slice(bytes);
            if *end {
                self.flush(words);
                words.push(format!("end {}", stream.id));
            }
            return;
        }
        self.flush(words);
        words.push(word(connection, event));
    }
}

fn word(connection: &mut Connection, event: &Event<'_>) -> String {
    let mut bytes = Vec::new();
    let end = |end: &bool| if *end { " end" } else { "" };
    match event {
        Event::Request { stream, end: is_end } => {
            let mut head = RequestHead::default();
            connection.take_request(&mut head, &mut bytes);
            let at = |span: Span| String::from_utf8_lossy(span.get(&bytes)).into_owned();
            let fields: String =
                head.fields.iter().map(|field| format!(" {}={}", at(field.name), at(field.value))).collect();
            let start = format!("{} {}{}", at(head.method_name), at(head.authority), at(head.path));
            format!("request {} {start}{fields}{}", stream.id, end(is_end))
        }
        Event::Response { stream, end: is_end } => {
            let mut head = ResponseHead::default();
            connection.take_response(&mut head, &mut bytes);
            format!("response {} {}{}", stream.id, head.status, end(is_end))
        }
        Event::Trailers { stream } => {
            let mut fields = Vec::new();
            connection.take_trailers(&mut fields, &mut bytes);
            let at = |span: Span| String::from_utf8_lossy(span.get(&bytes)).into_owned();
            let fields: String =
                fields.iter().map(|field| format!(" {}={}", at(field.name), at(field.value))).collect();
            format!("trailers {}{fields}", stream.id)
        }
        Event::Reset { stream, code, by } => match by {
            ResetBy::Us(reason) => format!("reset {} {}", stream.id, reason.name()),
            ResetBy::Peer => format!("reset {} {}", stream.id, code.0),
            ResetBy::GoAway => format!("reset {} going away", stream.id),
        },
        Event::RequestTooLarge { stream } => format!("too large {}", stream.id),
        Event::Writable { stream } => format!("writable {}", stream.id),
        Event::Settings => "settings".into(),
        Event::GoAway { last_stream, code } => format!("goaway {last_stream} {}", code.0),
        Event::Pong { payload } => format!("pong {}", payload[0]),
        Event::Refused { reason } => format!("refused {}", reason.name()),
        Event::Data { .. } => unreachable!(),
    }
}

/// Returns the frames in the output as words, and empties it.
pub(super) fn sent(connection: &mut Connection) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = connection.output();
    while let Some(head) = rest.first_chunk::<HEAD_BYTES>() {
        let head = FrameHead::parse(head);
        let payload = &rest[HEAD_BYTES..HEAD_BYTES + head.length as usize];
        rest = &rest[HEAD_BYTES + head.length as usize..];
        let end = if head.has(flag::END_STREAM) { " end" } else { "" };
        let number = frame::number(payload);
        words.push(match head.kind {
            kind::DATA => format!("DATA {} {}{end}", head.stream, String::from_utf8_lossy(payload)),
            kind::HEADERS => format!("HEADERS {}{end}", head.stream),
            kind::CONTINUATION => format!("CONTINUATION {}", head.stream),
            kind::RST_STREAM => format!("RST {} {number}", head.stream),
            kind::SETTINGS if head.has(flag::ACK) => "SETTINGS ACK".into(),
            kind::SETTINGS => "SETTINGS".into(),
            kind::PING if head.has(flag::ACK) => format!("PONG {}", payload[0]),
            kind::PING => "PING".into(),
            kind::GOAWAY => format!("GOAWAY {number} {}", frame::number(&payload[4..])),
            kind::WINDOW_UPDATE => format!("WINDOW {} {number}", head.stream),
            other => panic!("a frame of type {other}"),
        });
    }
    assert!(rest.is_empty());
    let count = connection.output().len();
    connection.consume_output(count);
    words
}

/// After the first exchange of settings, the bytes lead to these events and to this output: in one piece, in pieces of a few bytes, and
/// byte by byte. `Refused` events are compared only if one of the expected events is one.
#[track_caller]
pub(super) fn check_with(make: impl Fn() -> Connection, bytes: &[u8], events: &[&str], output: &[&str]) {
    for piece in [usize::MAX, 13, 1] {
        let mut connection = make();
        let mut seen = feed(&mut connection, bytes, piece);
        if !events.iter().any(|event| event.starts_with("refused ")) {
            seen.retain(|event| !event.starts_with("refused "));
        }
        assert_eq!(seen, events, "events, in pieces of {piece}");
        assert_eq!(sent(&mut connection), output, "output, in pieces of {piece}");
        assert!(connection.memory_bytes() <= connection.limits.memory_bytes_max());
    }
}

/// Sends to a server with the default limits.
#[track_caller]
pub(super) fn check(bytes: &[Vec<u8>], events: &[&str], output: &[&str]) {
    check_with(|| established(Role::Server, Limits::default()), &bytes.concat(), events, output);
}

/// Sends to a client that has sent this many requests without a body, on streams 1, 3, ...
#[track_caller]
pub(super) fn check_client(requests: usize, bytes: &[Vec<u8>], events: &[&str], output: &[&str]) {
    let make = || {
        let mut connection = established(Role::Client, Limits::default());
        for _ in 0..requests {
            request(&mut connection, "GET", true);
        }
        sent(&mut connection);
        connection
    };
    check_with(make, &bytes.concat(), events, output);
}

pub(super) fn request(connection: &mut Connection, method: &str, end: bool) -> StreamKey {
    let target =
        PseudoHeaders { method: method.as_bytes(), scheme: b"http", authority: b"a", path: b"/", protocol: None };
    connection.send_request(&target, end, |_| {}).unwrap()
}

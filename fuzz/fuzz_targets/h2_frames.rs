//! HTTP/2: any bytes behind the first exchange, on either side of a connection.
//!
//! Pieces do not matter; memory is bounded as stated; what is written is frames; and a request that is taken, written as HTTP/1.1, is one
//! unambiguous request to the strict reader, with the same fields.
//!
//! The first byte of the input chooses the side and the size of the pieces.
#![no_main]

use std::collections::BTreeMap;

use fuzz::{assert_same_fields, write_fields};
use libfuzzer_sys::fuzz_target;
use testkit::strict;
use wire::h1;
use wire::h2::{Connection, Event, Limits, PREFACE, PseudoHeaders, Reason, ResetBy, Role, StreamKey};
use wire::message::{Body, RequestHead, ResponseHead};

/// Small, so that the edges are near.
const LIMITS: Limits = Limits {
    streams_max: 4,
    stream_window_bytes: 65_535,
    connection_window_bytes: 65_535,
    header_list_bytes_max: 2_000,
    fields_max: 20,
    output_bytes_max: 500,
    glitches_max: 500,
    extended_connect: true,
};

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let role = if choice & 1 == 0 { Role::Server } else { Role::Client };
    let whole = watch(role, bytes, usize::MAX);
    assert_eq!(whole, watch(role, bytes, usize::from(choice >> 1).max(1)), "pieces of {}", choice >> 1);
    assert_eq!(whole, watch(role, bytes, 1), "byte by byte");
    own(role, bytes);
});

fn established(role: Role) -> Connection {
    let mut connection = Connection::new(role, LIMITS);
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let hello = if role == Role::Server { [PREFACE.as_slice(), &settings].concat() } else { settings.to_vec() };
    connection.handle_bytes(0, &hello).expect("the first words");
    connection.consume_output(usize::MAX);
    if role == Role::Client {
        for (method, end) in [("GET", true), ("HEAD", true), ("POST", false)] {
            let (method, authority) = (method.as_bytes(), b"a".as_slice());
            let target = PseudoHeaders { method, scheme: b"http", authority, path: b"/", protocol: None };
            let key = connection.send_request(&target, end, |_| {}).expect("nothing is in the way");
            if !end {
                // More than there is room for: it waits.
                assert!(connection.send_data(key, &[b'x'; 600], true).expect("it is open") < 600);
            }
        }
    }
    connection
}

/// What an owner sees that does nothing, but for writing: it is the same, however the input is cut.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    events: Vec<String>,
    data: BTreeMap<u32, Vec<u8>>,
    output: Vec<u8>,
}

fn watch(role: Role, bytes: &[u8], piece: usize) -> Seen {
    let mut connection = established(role);
    let mut seen = Seen::default();
    for piece in bytes.chunks(piece.min(bytes.len()).max(1)) {
        let mut rest = piece;
        loop {
            let Ok(handled) = connection.handle_bytes(0, rest) else {
                seen.events.push("error".into());
                seen.output.extend_from_slice(connection.output());
                return seen;
            };
            assert!(handled.consumed <= rest.len());
            rest = &rest[handled.consumed..];
            match handled.event {
                None => break,
                Some(Event::Data { stream, bytes, end }) => {
                    assert!(end || !bytes.is_empty());
                    seen.data.entry(stream.id).or_default().extend_from_slice(bytes);
                    if end {
                        seen.events.push(format!("end {}", stream.id));
                    }
                }
                Some(event) => {
                    if let Event::Reset { stream, by: ResetBy::Us(Reason::ContentLength), .. } = event {
                        // How much of the piece that is too long was handed on before depends on how it was cut.
                        seen.data.remove(&stream.id);
                    }
                    seen.events.push(format!("{event:?}"));
                }
            }
        }
        assert!(rest.is_empty(), "{} bytes were left", rest.len());
        assert!(connection.memory_bytes() <= LIMITS.memory_bytes_max());
    }
    seen.output.extend_from_slice(connection.output());
    seen
}

/// An owner that answers, releases, forgets and writes.
fn own(role: Role, bytes: &[u8]) {
    let mut connection = established(role);
    let mut held: Vec<StreamKey> = Vec::new();
    let mut rest = bytes;
    while let Ok(handled) = connection.handle_bytes(0, rest) {
        rest = &rest[handled.consumed..];
        let Some(event) = handled.event else { break };
        let mut arena = Vec::new();
        match event {
            Event::Request { stream, .. } => {
                let mut head = RequestHead::default();
                connection.take_request(&mut head, &mut arena);
                check_request(&head, &arena);
                held.push(stream);
            }
            Event::RequestTooLarge { stream } => {
                let _ = connection.send_response(stream, 431, true, |_| {});
                connection.forget(stream);
            }
            Event::Response { .. } => {
                let mut head = ResponseHead::default();
                connection.take_response(&mut head, &mut arena);
                check_response(&head, &arena);
            }
            Event::Data { stream, bytes, end } => {
                connection.release_capacity(stream, bytes.len() as u32);
                if role == Role::Server {
                    let _ = connection.send_response(stream, 200, false, |head| head.field(b"X-a", b"b"));
                    let _ = connection.send_data(stream, bytes, end);
                }
            }
            Event::Trailers { stream } => {
                let mut fields = Vec::new();
                connection.take_trailers(&mut fields, &mut arena);
                let _ = connection.send_trailers(stream, |head| head.field(b"grpc-status", b"0"));
            }
            Event::Reset { stream, .. } => connection.forget(stream),
            Event::Writable { stream } => _ = connection.send_data(stream, b"more", false),
            Event::Settings | Event::GoAway { .. } | Event::Pong { .. } | Event::Refused { .. } => {}
        }
        assert!(connection.streams_held() <= 2 * LIMITS.streams_max as usize);
        assert!(connection.memory_bytes() <= LIMITS.memory_bytes_max());
        if connection.output().len() > 300 {
            assert_frames(connection.output());
            connection.consume_output(usize::MAX);
        }
    }
    for stream in held {
        connection.forget(stream);
    }
    assert_frames(connection.output());
    connection.drain();
    connection.drain();
    assert!(role == Role::Client || connection.streams_held() > 0 || connection.is_done());
}

fn assert_frames(mut output: &[u8]) {
    while let Some((&[a, b, c, kind, ..], behind)) = output.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        assert!(length <= wire::h2::FRAME_BYTES_MAX && kind <= 9);
        output = behind.get(length..).expect("a frame is whole");
    }
    assert!(output.is_empty());
}

/// As a proxy writes it towards an endpoint that speaks HTTP/1.1.
fn check_request(head: &RequestHead, arena: &[u8]) {
    if head.method == wire::message::Method::Connect {
        return;
    }
    let mut out = Vec::new();
    h1::request_line(&mut out, head.method_name.get(arena), head.path.get(arena));
    h1::field(&mut out, b"host", head.authority.get(arena));
    write_fields(&mut out, &head.fields, arena, head.body);
    let read = strict::request_head(&out);
    let Ok(Some((request, length))) = read else { panic!("{:?} of {}", read, testkit::escape(&out)) };
    assert_eq!(length, out.len());
    assert_eq!(request.framing, fuzz::framing(head.body));
    assert_same_fields(&request.headers, &head.fields, arena);
}

fn check_response(head: &ResponseHead, arena: &[u8]) {
    let mut out = Vec::new();
    h1::status_line(&mut out, head.version, head.status, b"");
    write_fields(&mut out, &head.fields, arena, head.body);
    let read = strict::response_head(&out);
    let Ok(Some((response, length))) = read else { panic!("{:?} of {}", read, testkit::escape(&out)) };
    assert_eq!((length, response.status), (out.len(), head.status));
    if head.body != Body::None {
        assert_eq!(response.framing, fuzz::framing(head.body));
    }
    assert_same_fields(&response.headers, &head.fields, arena);
}

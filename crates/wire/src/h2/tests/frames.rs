//! Framing, the states of streams, and settings (RFC 9113 sections 3 to 6).

use super::*;

const PROTOCOL: &str = "GOAWAY 0 1";

#[test]
fn the_first_words() {
    let mut server = Connection::new(Role::Server, Limits::default());
    assert_eq!(sent(&mut server), ["SETTINGS", "WINDOW 0 983041"]);
    let mut client = Connection::new(Role::Client, Limits::default());
    assert!(client.output().starts_with(PREFACE));
    client.consume_output(PREFACE.len());
    assert_eq!(sent(&mut client), ["SETTINGS", "WINDOW 0 983041"]);

    let make = || {
        let mut server = Connection::new(Role::Server, Limits::default());
        sent(&mut server);
        server
    };
    check_with(make, &hello(Role::Server), &["settings"], &["SETTINGS ACK"]);
    check_with(make, b"GET / HTTP/1.1\r\n", &["error h2_preface"], &[PROTOCOL]);
    check_with(make, b"PRI * HTTP/2.0\r\n\r\nSX", &["error h2_preface"], &[PROTOCOL]);
    let ping = frame(kind::PING, 0, 0, &[0; 8]);
    check_with(make, &[PREFACE.as_slice(), &ping].concat(), &["error h2_preface"], &[PROTOCOL]);
    let ack = frame(kind::SETTINGS, flag::ACK, 0, &[]);
    check_with(make, &[PREFACE.as_slice(), &ack].concat(), &["error h2_preface"], &[PROTOCOL]);
}

#[test]
fn a_request_with_all_that_can_belong_to_it() {
    let fields = block(&[POST, &[("content-length", "5"), ("x", "y")]].concat());
    let (first, second) = fields.split_at(20);
    let padded = [&[3, 0, 0, 0, 9, 16][..], first, &[0; 3]].concat();
    check(
        &[
            frame(kind::HEADERS, flag::PADDED | flag::PRIORITY, 1, &padded),
            frame(kind::CONTINUATION, 0, 1, &second[..5]),
            frame(kind::CONTINUATION, flag::END_HEADERS, 1, &second[5..]),
            frame(kind::DATA, flag::PADDED, 1, b"\x02he\0\0"),
            frame(0xbe, 0xff, 77, b"unknown"),
            data(1, false, b"llo"),
            headers(1, true, &[("sum", "1")]),
        ],
        &["request 1 POST a/ content-length=5 x=y", "data 1 hello", "trailers 1 sum=1"],
        &[],
    );
}

#[test]
fn padding() {
    let end = flag::END_STREAM;
    check(
        &[headers(1, false, POST), frame(kind::DATA, flag::PADDED | end, 1, b"\x05ab\0\0\0\0\0")],
        &["request 1 POST a/", "data 1 ab", "end 1"],
        &[],
    );
    check(
        &[headers(1, false, POST), frame(kind::DATA, flag::PADDED | end, 1, b"\0")],
        &["request 1 POST a/", "data 1 ", "end 1"],
        &[],
    );
    // It counts against the windows, and is returned automatically.
    let padded = frame(kind::DATA, flag::PADDED, 1, &[&[200][..], b"x", &[0; 200]].concat());
    let mut server = established(Role::Server, Limits::default());
    let bytes = [headers(1, false, POST), padded.repeat(660)].concat();
    assert_eq!(feed(&mut server, &bytes, 999).len(), 2);
    assert_eq!(sent(&mut server), ["WINDOW 1 131253"]);
    let bad = |frames: &[Vec<u8>]| {
        check(
            &[&[headers(1, false, POST)], frames].concat(),
            &["request 1 POST a/", "error h2_padding"],
            &["GOAWAY 1 1"],
        );
    };
    bad(&[frame(kind::DATA, flag::PADDED, 1, b"\x04abc")]);
    bad(&[frame(kind::DATA, flag::PADDED, 1, b"\x01")]);
    check(&[frame(kind::HEADERS, flag::PADDED, 1, b"\x05\x82")], &["error h2_padding"], &[PROTOCOL]);
    check(&[frame(kind::HEADERS, flag::PADDED, 1, b"")], &["error h2_frame_size"], &["GOAWAY 0 6"]);
    check(&[frame(kind::HEADERS, flag::PRIORITY, 1, b"1234")], &["error h2_frame_size"], &["GOAWAY 0 6"]);
}

#[test]
fn sizes_of_frames() {
    let bad = |frame: Vec<u8>| check(&[frame], &["error h2_frame_size"], &["GOAWAY 0 6"]);
    bad(frame(kind::PING, 0, 0, &[0; 7]));
    bad(frame(kind::PING, 0, 0, &[0; 9]));
    bad(frame(kind::SETTINGS, 0, 0, &[0; 5]));
    bad(frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]));
    bad(frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]));
    bad(frame(kind::RST_STREAM, 0, 1, &[0; 5]));
    bad(frame(kind::GOAWAY, 0, 0, &[0; 7]));
    bad(frame(kind::PRIORITY, 0, 1, &[0; 4]));
    // Refused by its head, before the rest arrives.
    bad(vec![0, 0x40, 1, kind::DATA, 0, 0, 0, 0, 1]);
    bad(vec![0, 0x40, 1, 0xee, 0, 0, 0, 0, 1]);
    let largest = vec![b'x'; FRAME_BYTES_MAX];
    let text = format!("data 1 {}", String::from_utf8_lossy(&largest));
    check(&[headers(1, false, POST), data(1, false, &largest)], &["request 1 POST a/", &text], &[]);
}

#[test]
fn frames_on_streams_where_they_have_no_place() {
    let bad = |frame: Vec<u8>| check(&[frame], &["error h2_stream_id"], &[PROTOCOL]);
    bad(data(0, false, b"x"));
    bad(headers(0, false, GET));
    bad(rst(0, ErrorCode::CANCEL));
    bad(frame(kind::PRIORITY, 0, 0, &[0; 5]));
    bad(frame(kind::SETTINGS, 0, 1, &[]));
    bad(frame(kind::PING, 0, 1, &[0; 8]));
    bad(frame(kind::GOAWAY, 0, 1, &[0; 8]));
    // Streams that never existed.
    bad(data(1, false, b"x"));
    bad(rst(1, ErrorCode::CANCEL));
    bad(window_update(1, 1));
    // A client's stream ids are odd and ascending.
    bad(headers(2, true, GET));
    check(
        &[headers(5, true, GET), headers(3, true, GET)],
        &["request 5 GET a/ end", "error h2_stream_id"],
        &["GOAWAY 5 1"],
    );
    check(&[frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &[0, 0, 0, 2])], &["error h2_push"], &[PROTOCOL]);
    check_client(1, &[frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &[0, 0, 0, 2])], &["error h2_push"], &[PROTOCOL]);
    check_client(1, &[headers(3, true, OK)], &["error h2_stream_id"], &[PROTOCOL]);
    check_client(1, &[headers(2, true, OK)], &["error h2_stream_id"], &[PROTOCOL]);
}

#[test]
fn nothing_comes_between_a_block_and_its_continuation() {
    let begun = frame(kind::HEADERS, 0, 1, &block(GET));
    let end = frame(kind::CONTINUATION, flag::END_HEADERS, 1, &[]);
    check(&[begun.clone(), end.clone()], &["request 1 GET a/"], &[]);
    let bad = |frames: &[Vec<u8>]| check(frames, &["error h2_continuation"], &[PROTOCOL]);
    bad(&[begun.clone(), frame(kind::PING, 0, 0, &[0; 8])]);
    bad(&[begun.clone(), headers(3, true, GET)]);
    bad(&[begun.clone(), data(1, true, b"")]);
    bad(&[begun.clone(), frame(0xbe, 0, 1, b"")]);
    bad(&[begun, frame(kind::CONTINUATION, flag::END_HEADERS, 3, &[])]);
    bad(std::slice::from_ref(&end));
    check(&[headers(1, false, POST), end], &["request 1 POST a/", "error h2_continuation"], &["GOAWAY 1 1"]);
}

#[test]
fn frames_behind_the_end_of_a_stream() {
    let open = headers(1, true, GET);
    let request = "request 1 GET a/ end";
    // Half closed: these are errors of the stream.
    check(&[open.clone(), data(1, true, b"x")], &[request, "reset 1 h2_stream_closed"], &["RST 1 5"]);
    check(&[open.clone(), headers(1, true, GET)], &[request, "reset 1 h2_stream_closed"], &["RST 1 5"]);
    check(&[open.clone(), window_update(1, 1), frame(kind::PRIORITY, 0, 1, &[0; 5])], &[request], &[]);
    // Reset by its client: what follows is the client's fault.
    let reset = rst(1, ErrorCode::CANCEL);
    let events = [request, "reset 1 8"];
    check(&[open.clone(), reset.clone(), reset.clone(), window_update(1, 1)], &events, &[]);
    check(&[open.clone(), reset.clone(), data(1, true, b"")], &events, &["RST 1 5"]);
    check(&[open, reset, headers(1, true, GET)], &[request, "reset 1 8", "error h2_stream_closed"], &["GOAWAY 1 5"]);
    // Reset by this side: what follows may have been on its way.
    let bad = headers(1, false, &[GET, &[("X", "y")]].concat());
    check(
        &[bad, data(1, false, b"x"), headers(1, true, &[("t", "u")]), window_update(1, 1), headers(3, true, GET)],
        &["request 3 GET a/ end"],
        &["RST 1 1"],
    );
}

/// A block is decoded even if its message is refused, because a later block refers to a field that it put into the table.
#[test]
fn blocks_of_refused_streams_count_for_the_table() {
    let plant = b"\x40\x01k\x01v";
    let refer = [&block(GET)[..], b"\xbe"].concat();
    let whole = flag::END_HEADERS | flag::END_STREAM;
    let good = frame(kind::HEADERS, whole, 9, &refer);
    let check = |frames: &[Vec<u8>], events: &[&str], output: &[&str]| {
        let limits = Limits { streams_max: 1, ..Limits::default() };
        let bytes = [frames.concat(), good.clone()].concat();
        check_with(
            || established(Role::Server, limits),
            &bytes,
            &[events, &["request 9 GET a/ k=v end"]].concat(),
            output,
        );
    };
    let planted = |id, fields| frame(kind::HEADERS, whole, id, &[&block(fields)[..], plant].concat());
    let bad = [GET, &[("X", "y")]].concat();
    check(&[planted(1, &bad)], &[], &["RST 1 1"]);
    // On a stream that this side has reset.
    check(&[headers(1, false, &bad), planted(1, &[])], &[], &["RST 1 1"]);
    // Beyond the stream limit.
    let gone = [headers(1, true, GET), planted(3, GET), rst(1, ErrorCode::CANCEL)];
    check(&gone, &["request 1 GET a/ end", "reset 1 8"], &["RST 3 7"]);
    // On a stream that its client has ended.
    let late = [headers(1, true, GET), planted(1, &[])];
    check(&late, &["request 1 GET a/ end", "reset 1 h2_stream_closed"], &["RST 1 5"]);
    // A stream that depends on itself.
    let priority = [&[0, 0, 0, 1, 16][..], &block(GET), plant].concat();
    check(&[frame(kind::HEADERS, whole | flag::PRIORITY, 1, &priority)], &[], &["RST 1 1"]);
}

#[test]
fn a_stream_that_depends_on_itself() {
    let priority = [&[0, 0, 0, 1, 16][..], &block(GET)].concat();
    let flags = flag::PRIORITY | flag::END_HEADERS;
    check(&[frame(kind::HEADERS, flags, 1, &priority)], &[], &["RST 1 1"]);
    check(&[frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 16])], &["error h2_priority"], &[PROTOCOL]);
    check(
        &[headers(1, true, GET), frame(kind::PRIORITY, 0, 1, &[0x80, 0, 0, 1, 16])],
        &["request 1 GET a/ end", "reset 1 h2_priority"],
        &["RST 1 1"],
    );
}

#[test]
fn settings_and_pings_are_answered() {
    check(
        &[settings(&[(3, 7), (0xf0, 1)]), frame(kind::PING, 0, 0, &[7; 8]), frame(kind::SETTINGS, flag::ACK, 0, &[])],
        &["settings"],
        &["SETTINGS ACK", "PONG 7"],
    );
    check(&[frame(kind::PING, flag::ACK, 0, &[9; 8])], &["pong 9"], &[]);
    check(&[settings(&[(4, 0x8000_0000)])], &["error h2_setting"], &["GOAWAY 0 3"]);
}

#[test]
fn windows_are_opened_by_something_and_not_too_far() {
    let request = "request 1 GET a/ end";
    let open = headers(1, true, GET);
    check(&[window_update(0, 0)], &["error h2_window_update"], &[PROTOCOL]);
    check(&[window_update(0, 0x7fff_0000)], &[], &[]);
    check(&[window_update(0, 0x7fff_0001)], &["error h2_window_update"], &["GOAWAY 0 3"]);
    check(&[open.clone(), window_update(1, 0)], &[request, "reset 1 h2_window_update"], &["RST 1 1"]);
    check(&[open.clone(), window_update(1, 0x7fff_0001)], &[request, "reset 1 h2_window_update"], &["RST 1 3"]);
    // Also by settings.
    check(
        &[open, window_update(1, 0x7fff_0000), settings(&[(4, 65_536)])],
        &[request, "error h2_window_update"],
        &["GOAWAY 1 3"],
    );
}

#[test]
fn going_away() {
    let mut server = established(Role::Server, Limits::default());
    assert_eq!(feed(&mut server, &headers(1, true, GET), 99), ["request 1 GET a/ end"]);
    server.drain();
    assert_eq!(sent(&mut server), ["GOAWAY 2147483647 0", "PING"]);
    // These were on their way when the client saw the announcement.
    let late = [headers(3, true, GET), frame(kind::PING, flag::ACK, 0, &super::super::connection::DRAIN_PING)].concat();
    assert_eq!(feed(&mut server, &late, 99), ["request 3 GET a/ end"]);
    assert_eq!(sent(&mut server), ["GOAWAY 3 0"]);
    // After the last stream: ignored, but its block is decoded.
    assert!(feed(&mut server, &headers(5, true, GET), 99).is_empty());
    assert!(sent(&mut server).is_empty());
    assert!(!server.is_done());
    for (slot, id) in [(0, 1), (1, 3)] {
        let key = StreamKey { id, slot };
        server.send_response(key, 200, true, |_| {}).unwrap();
        server.forget(key);
    }
    assert!(server.is_done());
    // GOAWAY never names a larger last stream than before.
    sent(&mut server);
    assert_eq!(feed(&mut server, &window_update(0, 0), 99), ["error h2_window_update"]);
    assert_eq!(sent(&mut server), ["GOAWAY 3 1"]);
}

#[test]
fn an_endpoint_that_goes_away_says_what_it_has_not_done() {
    let goaway = frame(kind::GOAWAY, 0, 0, &[&[0, 0, 0, 3][..], &[0, 0, 0, 0], b"debug"].concat());
    check_client(3, &[goaway, headers(1, true, OK)], &["goaway 3 0", "reset 5 going away", "response 1 200 end"], &[]);
    let mut client = established(Role::Client, Limits::default());
    request(&mut client, "GET", true);
    feed(&mut client, &frame(kind::GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]), 99);
    let target = PseudoHeaders { method: b"GET", scheme: b"http", authority: b"a", path: b"/", protocol: None };
    assert_eq!(client.send_request(&target, true, |_| {}), Err(SendError::GoingAway));
    assert_eq!((client.can_open(), client.is_done()), (0, false));
    client.forget(StreamKey { id: 1, slot: 0 });
    assert!(client.is_done());
}

#[test]
fn what_has_not_come_whole_is_known_by_its_number() {
    let mut connection = established(Role::Server, Limits::default());
    let first = connection.unfinished();
    let mut take = |bytes: &[u8]| {
        let mut rest = bytes;
        while !rest.is_empty() {
            let handled = connection.handle_bytes(0, rest).unwrap();
            rest = &rest[handled.consumed..];
        }
        connection.unfinished()
    };
    assert_eq!((first, take(&frame(kind::PING, 0, 0, &[0; 8]))), (None, None));
    // It stays the same from piece to piece, until the end of the head.
    let whole = block(POST);
    let (head, rest) = whole.split_at(5);
    let begun = frame(kind::HEADERS, 0, 1, head);
    let number = take(&begun[..3]);
    assert!(number.is_some());
    for piece in [
        &begun[3..11],
        &begun[11..],
        &frame(kind::CONTINUATION, 0, 1, &[]),
        &frame(kind::CONTINUATION, 4, 1, rest)[..7],
    ] {
        assert_eq!(take(piece), number);
    }
    assert_eq!(take(&frame(kind::CONTINUATION, 4, 1, rest)[7..]), None);
    // DATA is passed on as it arrives. What follows it is another frame.
    let (data, ping) = (data(1, false, b"abc"), frame(kind::PING, 0, 0, &[0; 8]));
    assert_eq!((take(&data[..10]), take(&data[10..])), (None, None));
    let next = take(&ping[..12]);
    assert!(next > number, "{next:?} {number:?}");
    assert_eq!(take(&ping[12..]), None);
}

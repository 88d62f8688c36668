//! Attacks by a client or endpoint in which each frame is valid. Their memory is bounded, and the connection is closed.

use super::*;

/// Sends the frames that `make` returns for rising numbers until the connection closes. Returns how many that took and why.
fn flood(mut make: impl FnMut(u32) -> Vec<u8>) -> (u32, String) {
    let mut server = established(Role::Server, Limits::default());
    for number in 0..100_000 {
        let events = feed(&mut server, &make(number), usize::MAX);
        // The owner lets go of streams that are over.
        for word in events.iter().filter_map(|word| word.strip_prefix("reset ")) {
            let id = word.split(' ').next().unwrap().parse().unwrap();
            (0..server.limits.slots_max() as u32).for_each(|slot| server.forget(StreamKey { id, slot }));
        }
        assert!(server.memory_bytes() <= server.limits.memory_bytes_max());
        server.consume_output(usize::MAX);
        if let Some(error) = events.last().filter(|word| word.starts_with("error")) {
            return (number, error.clone());
        }
    }
    (u32::MAX, String::new())
}

#[track_caller]
fn check_flood(frames_max: u32, make: impl FnMut(u32) -> Vec<u8>) {
    let (frames, error) = flood(make);
    assert_eq!(error, "error h2_glitches");
    assert!(frames <= frames_max, "{frames}");
}

#[test]
fn floods_of_frames() {
    check_flood(1000, |_| frame(kind::PING, 0, 0, &[0; 8]));
    check_flood(2000, |_| frame(kind::PING, flag::ACK, 0, &[0; 8]));
    check_flood(200, |_| settings(&[]));
    check_flood(200, |_| settings(&[(4, 1); 2000]));
    check_flood(2000, |_| frame(kind::SETTINGS, flag::ACK, 0, &[]));
    check_flood(2000, |number| frame(kind::PRIORITY, 0, 2 * number + 1, &[0; 5]));
    check_flood(2000, |_| frame(0x77, 0, 0, &[]));
    check_flood(2000, |_| window_update(0, 1));
    check_flood(200, |_| frame(kind::GOAWAY, 0, 0, &[0; 8]));
    // Empty DATA, with and without padding.
    check_flood(501, |number| if number == 0 { headers(1, false, POST) } else { data(1, false, b"") });
    check_flood(
        501,
        |number| {
            if number == 0 { headers(1, false, POST) } else { frame(kind::DATA, flag::PADDED, 1, &[1, 0]) }
        },
    );
}

#[test]
fn rapid_reset_and_made_you_reset() {
    check_flood(500, |number| {
        let id = 2 * number + 1;
        [headers(id, true, GET), rst(id, ErrorCode::CANCEL)].concat()
    });
    // Four ways to make the other side reset a stream.
    check_flood(100, |number| {
        let id = 2 * number + 1;
        [headers(id, true, GET), window_update(id, 0)].concat()
    });
    check_flood(100, |number| headers(2 * number + 1, true, &[GET, &[("X", "y")]].concat()));
    check_flood(100, |number| {
        let id = 2 * number + 1;
        [headers(id, true, GET), data(id, true, b"x")].concat()
    });
    check_flood(100, |number| {
        let id = 2 * number + 1;
        [headers(id, true, GET), frame(kind::PRIORITY, 0, id, &id.to_be_bytes()), frame(kind::PRIORITY, 0, id, &[0; 4])]
            .concat()
    });
}

#[test]
fn a_client_that_works_is_not_punished() {
    let mut server = established(Role::Server, Limits::default());
    for number in 0..50_000_u32 {
        let id = 2 * number + 1;
        // Each request has DATA, two window updates and a PING, as some clients send them.
        let bytes = [
            headers(id, false, POST),
            data(id, true, b"hello"),
            window_update(0, 5),
            window_update(id, 5),
            frame(kind::PING, 0, 0, &[0; 8]),
        ];
        let events = feed(&mut server, &bytes.concat(), usize::MAX);
        assert_eq!(events.len(), 3, "{events:?}");
        let key = StreamKey { id, slot: 0 };
        server.send_response(key, 200, false, |_| {}).unwrap();
        assert_eq!(server.send_data(key, b"world", true), Ok(5));
        server.forget(key);
        server.consume_output(usize::MAX);
    }
    // A connection that only lives, with a PING every ten seconds.
    for number in 0..50_000_u64 {
        server.handle_bytes(number * 10_000, &frame(kind::PING, 0, 0, &[0; 8])).unwrap();
        server.consume_output(usize::MAX);
    }
}

#[test]
fn continuations_are_few_and_bounded() {
    let begin = frame(kind::HEADERS, flag::END_STREAM, 1, &block(GET));
    let more = |count: usize, bytes: &[u8]| frame(kind::CONTINUATION, 0, 1, bytes).repeat(count);
    let flood = |bytes: Vec<u8>, error: &str| {
        check_with(|| established(Role::Server, Limits::default()), &bytes, &[error], &["GOAWAY 0 11"]);
    };
    flood([begin.clone(), more(CONTINUATIONS_MAX as usize + 1, b"\0\x01a\x01b")].concat(), "error h2_head_flood");
    flood([begin.clone(), more(4, &vec![0; FRAME_BYTES_MAX])].concat(), "error h2_head_flood");
    let last = frame(kind::CONTINUATION, flag::END_HEADERS, 1, b"");
    check(&[begin, more(CONTINUATIONS_MAX as usize - 1, b""), last], &["request 1 GET a/ end"], &[]);
}

#[test]
fn heads_beyond_the_limits_are_answered_and_not_kept() {
    let long = "v".repeat(5_000);
    let large: Vec<(&str, &str)> = std::iter::repeat_n(("x", long.as_str()), 7).collect();
    let many: Vec<(&str, &str)> = std::iter::repeat_n(("x", ""), 97).collect();
    let crumbs: Vec<(&str, &str)> = std::iter::repeat_n(("cookie", ""), 97).collect();
    let cut = |fields: &[(&str, &str)]| {
        let bytes = block(&[GET, fields].concat());
        let mut pieces = bytes.chunks(FRAME_BYTES_MAX).peekable();
        let mut out = Vec::new();
        let mut kind = kind::HEADERS;
        while let Some(piece) = pieces.next() {
            let last = if pieces.peek().is_none() { flag::END_HEADERS } else { 0 };
            out.push(frame(kind, last, 1, piece));
            kind = kind::CONTINUATION;
        }
        out
    };
    for fields in [&large, &many, &crumbs] {
        check(&cut(fields), &["too large 1"], &[]);
    }
    check(
        &[headers(1, true, &[GET, &many[..96]].concat())],
        &[&format!("request 1 GET a/{} end", " x=".repeat(96))],
        &[],
    );
    // The owner has to answer it.
    let mut server = established(Role::Server, Limits::default());
    feed(&mut server, &cut(&many).concat(), usize::MAX);
    let key = StreamKey { id: 1, slot: 0 };
    server.send_response(key, 431, true, |_| {}).unwrap();
    server.forget(key);
    assert_eq!(sent(&mut server), ["HEADERS 1 end", "RST 1 0"]);
}

/// One field of 4 KB in the table, then thousands of one-byte references to it: gigabytes if they were expanded.
#[test]
fn a_bomb_of_references_costs_its_own_length() {
    let value = "v".repeat(3_900);
    let mut plant = vec![0x40, 1, b'x', 0x7f, 0xbd, 0x1d];
    plant.extend_from_slice(value.as_bytes());
    let references = vec![0xbe; 12_000];
    let mut server = established(Role::Server, Limits { streams_max: 1000, ..Limits::default() });
    for number in 0..400_u32 {
        let id = 2 * number + 1;
        let bytes = [&block(GET)[..], &plant, &references].concat();
        let events = feed(&mut server, &frame(kind::HEADERS, flag::END_HEADERS, id, &bytes), usize::MAX);
        assert_eq!(events, [format!("too large {id}")]);
    }
    assert!(server.memory_bytes() < 1 << 20, "{}", server.memory_bytes());
}

#[test]
fn more_streams_than_allowed_are_refused() {
    let mut server = established(Role::Server, Limits { streams_max: 3, ..Limits::default() });
    let open =
        |ids: std::ops::Range<u32>| ids.flat_map(|number| headers(2 * number + 1, true, GET)).collect::<Vec<u8>>();
    // Counts the resulting streams and the refused ones.
    let counts = |events: &[String]| {
        let refused = events.iter().filter(|event| *event == "refused h2_stream_limit").count();
        (events.len() - refused, refused)
    };
    assert_eq!(counts(&feed(&mut server, &open(0..5), usize::MAX)), (3, 2));
    assert_eq!(sent(&mut server), ["RST 7 7", "RST 9 7"]);
    // Three streams that are over do not count, as long as the owner has slots left.
    let reset: Vec<u8> = [1, 3, 5].iter().flat_map(|id| rst(*id, ErrorCode::CANCEL)).collect();
    assert_eq!(counts(&feed(&mut server, &[reset, open(5..9)].concat(), usize::MAX)), (6, 1));
    assert_eq!(sent(&mut server), ["RST 17 7"]);
    let reset: Vec<u8> = [11, 13, 15].iter().flat_map(|id| rst(*id, ErrorCode::CANCEL)).collect();
    assert_eq!(counts(&feed(&mut server, &[reset, open(9..10)].concat(), usize::MAX)), (3, 1));
    assert_eq!(sent(&mut server), ["RST 19 7"]);
    assert_eq!(server.streams_held(), 6);
    server.forget(StreamKey { id: 1, slot: 0 });
    assert_eq!(feed(&mut server, &open(10..11), usize::MAX), ["request 21 GET a/ end"]);
}

#[test]
fn windows_hold_and_what_is_not_released_stops_the_sender() {
    let limits = Limits { stream_window_bytes: 65_535, connection_window_bytes: 100_000, ..Limits::default() };
    let mut server = established(Role::Server, limits);
    feed(&mut server, &[headers(1, false, POST), headers(3, false, POST)].concat(), usize::MAX);
    let piece = |id, length| data(id, false, &vec![b'x'; length]);
    let full = piece(1, 16_383).repeat(4);
    feed(&mut server, &full, usize::MAX);
    feed(&mut server, &piece(1, 3), usize::MAX);
    assert!(sent(&mut server).is_empty());
    // The stream's window is full, so this is an error of the stream.
    assert_eq!(feed(&mut server, &piece(1, 1), usize::MAX), ["reset 1 h2_flow_control"]);
    assert_eq!(sent(&mut server), ["RST 1 3"]);
    // Bytes that the owner did not release come back when it lets go of the stream.
    server.forget(StreamKey { id: 1, slot: 0 });
    assert_eq!(sent(&mut server), ["WINDOW 0 65536"]);
    feed(&mut server, &[piece(3, 16_384), piece(3, 16_384)].concat(), usize::MAX);
    let key = StreamKey { id: 3, slot: 1 };
    server.release_capacity(key, 30_000);
    assert!(sent(&mut server).is_empty());
    // Releasing more than was received releases what was received.
    server.release_capacity(key, u32::MAX);
    assert_eq!(sent(&mut server), ["WINDOW 3 32768"]);
    // The connection's window is full, so this is an error of the connection.
    let mut server = established(Role::Server, limits);
    let both =
        [headers(1, false, POST), headers(3, false, POST), piece(1, 16_000).repeat(4), piece(3, 16_000).repeat(3)];
    assert_eq!(feed(&mut server, &both.concat(), usize::MAX).last().unwrap(), "error h2_flow_control");
}

#[test]
fn who_does_not_read_the_answers_is_cut_off() {
    let mut server = established(Role::Server, Limits { glitches_max: u32::MAX, ..Limits::default() });
    let pings = frame(kind::PING, 0, 0, &[0; 8]).repeat(10_000);
    assert_eq!(feed(&mut server, &pings, usize::MAX), ["error h2_output_flood"]);
    assert!(server.memory_bytes() <= server.limits.memory_bytes_max());
}

/// Uses everything that takes memory at once, on a connection whose owner releases and writes nothing.
#[test]
fn memory_is_what_is_stated() {
    let limits = Limits::default();
    let mut server = established(Role::Server, limits);
    let value = "v".repeat(1_000);
    for number in 0..100_u32 {
        let fields: Vec<(String, String)> = (0..28).map(|at| (format!("x-{number}-{at}"), value.clone())).collect();
        let mut encoded = vec![];
        for (name, value) in &fields {
            encoded.extend_from_slice(&[0x40, name.len() as u8]);
            encoded.extend_from_slice(name.as_bytes());
            encoded.extend_from_slice(&[0x7f, 0xe9, 0x06]);
            encoded.extend_from_slice(value.as_bytes());
        }
        let bytes = [block(POST), encoded].concat();
        let mut pieces = bytes.chunks(10_000);
        let mut frames = frame(kind::HEADERS, 0, 2 * number + 1, pieces.next().unwrap());
        pieces.for_each(|piece| frames.extend(frame(kind::CONTINUATION, 0, 2 * number + 1, piece)));
        frames.extend(frame(kind::CONTINUATION, flag::END_HEADERS, 2 * number + 1, b""));
        let events = feed(&mut server, &frames, 4_000);
        assert!(events[0].starts_with("request"), "{events:?}");
        let key = StreamKey { id: 2 * number + 1, slot: number };
        let _ = server.send_response(key, 200, false, |head| head.field(b"x", &[b'v'; 20_000]));
        let _ = server.send_data(key, &[b'x'; 50_000], false);
    }
    feed(&mut server, &frame(kind::PING, 0, 0, &[0; 8]).repeat(900), usize::MAX);
    feed(&mut server, &data(1, false, &[0; 16_000])[..12_000], usize::MAX);
    let (held, stated) = (server.memory_bytes(), limits.memory_bytes_max());
    assert!(held <= stated, "{held} > {stated}");
    // The figure that the threat model states.
    assert!(stated <= 1_400_000, "{stated}");
    assert!(size_of::<Connection>() <= 1_900, "{}", size_of::<Connection>());
}

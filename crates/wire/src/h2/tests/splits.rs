//! Pieces do not matter: random frames, good and bad, mean the same however they are split.

use super::simulation::Random;
use super::*;

/// Frames that reach deep into the state machine: mostly good ones, on a few streams, with an occasional fault.
fn random_frame(random: &mut Random, next: &mut u32) -> Vec<u8> {
    let known = 1 + 2 * random.below(*next as usize / 2 + 1) as u32;
    let text = vec![b'x'; [0, 1, 7, 300][random.below(4)]];
    let length = text.len().to_string();
    match random.below(24) {
        0..=6 => {
            *next += 2;
            let more = [
                vec![],
                vec![("content-length", length.as_str())],
                vec![("cookie", "a=b"), ("x", "y"), ("cookie", "c=d")],
                vec![("X", "bad")],
                vec![("connection", "close")],
            ];
            let fields = [POST, &more[random.below(9).min(7) % 5]].concat();
            let bytes = block(&fields);
            let end = if random.one_in(3) { flag::END_STREAM } else { 0 };
            if random.one_in(2) {
                return frame(kind::HEADERS, end | flag::END_HEADERS, *next, &bytes);
            }
            let (first, second) = bytes.split_at(random.below(bytes.len()));
            let last = frame(kind::CONTINUATION, flag::END_HEADERS, *next, second);
            [frame(kind::HEADERS, end, *next, first), last].concat()
        }
        7..=11 => data(known, random.one_in(2), &text),
        12 | 13 => {
            let padding = random.below(20);
            let payload = [&[padding as u8][..], &text, &vec![0; padding]].concat();
            frame(kind::DATA, flag::PADDED | u8::from(random.one_in(2)), known, &payload)
        }
        14 => headers(known, true, &[("t", "u")]),
        15 => rst(known, ErrorCode::CANCEL),
        16 => window_update([0, known][random.below(2)], random.below(3) as u32),
        17 => settings(&[(4, random.below(70_000) as u32), (1, random.below(5_000) as u32)]),
        18 => frame(kind::PING, 0, 0, &[3; 8]),
        19 => frame(kind::PRIORITY, 0, known, &[0, 0, 0, random.below(9) as u8, 0]),
        20 => frame(0x55, 0xff, known, &text),
        21 => frame(kind::GOAWAY, 0, 0, &[&[0; 8][..], &text].concat()),
        _ => frame(kind::DATA, 0, known, &[]),
    }
}

#[test]
fn however_the_input_is_cut() {
    for seed in 0..3_000 {
        let mut random = Random(seed);
        let mut next = 1;
        let frames = 1 + random.below(25);
        let bytes: Vec<u8> = (0..frames).flat_map(|_| random_frame(&mut random, &mut next)).collect();
        let watch = |piece: usize| {
            let mut connection = established(Role::Server, Limits { streams_max: 5, ..Limits::default() });
            let mut events = feed(&mut connection, &bytes, piece);
            // DATA beyond `content-length` is passed on until the excess shows.
            let failed: Vec<String> = events.iter().filter(|word| word.ends_with("content_length")).cloned().collect();
            for id in failed.iter().filter_map(|word| word.split(' ').nth(1)) {
                events.retain(|word| !word.starts_with(&format!("data {id} ")));
            }
            (events, connection.output().to_vec())
        };
        let whole = watch(usize::MAX);
        for piece in [1, 2 + random.below(40), 100 + random.below(1000)] {
            assert_eq!(watch(piece), whole, "seed {seed}, pieces of {piece}");
        }
    }
}

/// Buffers are reused: after a warm-up nothing grows, and nothing is freed either.
#[test]
fn calls_that_repeat_allocate_nothing() {
    let mut server = established(Role::Server, Limits::default());
    let mut client = established(Role::Client, Limits::default());
    let (mut head, mut response) = (RequestHead::default(), ResponseHead::default());
    let (mut fields, mut arena) = (Vec::new(), Vec::new());
    let mut memory = None;
    for number in 0..2_000 {
        let target = PseudoHeaders { method: b"POST", scheme: b"http", authority: b"a", path: b"/", protocol: None };
        let write = |head: &mut HeadWriter<'_>| head.field(b"x-request-id", number.to_string().as_bytes());
        let key = client.send_request(&target, false, write).unwrap();
        client.send_data(key, b"hello", true).unwrap();
        let mut rest = client.output();
        while let Some(event) = {
            let handled = server.handle_bytes(0, rest).unwrap();
            rest = &rest[handled.consumed..];
            handled.event
        } {
            match event {
                Event::Request { .. } => server.take_request(&mut head, &mut arena),
                Event::Data { stream, bytes, .. } => server.release_capacity(stream, bytes.len() as u32),
                other => panic!("{other:?}"),
            }
        }
        client.consume_output(usize::MAX);
        server.send_response(key, 200, false, |head| head.field(b"a", b"b")).unwrap();
        server.send_data(key, b"world", false).unwrap();
        server.send_trailers(key, |head| head.field(b"grpc-status", b"0")).unwrap();
        server.forget(key);
        let mut rest = server.output();
        while let Some(event) = {
            let handled = client.handle_bytes(0, rest).unwrap();
            rest = &rest[handled.consumed..];
            handled.event
        } {
            match event {
                Event::Response { .. } => client.take_response(&mut response, &mut arena),
                Event::Data { stream, bytes, .. } => client.release_capacity(stream, bytes.len() as u32),
                Event::Trailers { stream } => {
                    client.take_trailers(&mut fields, &mut arena);
                    client.forget(stream);
                }
                other => panic!("{other:?}"),
            }
        }
        server.consume_output(usize::MAX);
        // By then, a table of 4 KiB has been filled several times.
        if number >= 1_000 {
            let now = (client.memory_bytes(), server.memory_bytes(), arena.capacity());
            assert_eq!(*memory.get_or_insert(now), now, "request {number}");
        }
    }
}

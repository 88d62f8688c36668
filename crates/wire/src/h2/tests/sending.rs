//! Sending: windows, room, ends, and what is refused.

use super::*;
use crate::h2::limits::WINDOWS_ANNOUNCED_MAX;

fn server_with(requests: &[Vec<u8>], limits: Limits) -> Connection {
    let mut server = established(Role::Server, limits);
    feed(&mut server, &requests.concat(), usize::MAX);
    sent(&mut server);
    server
}

const FIRST: StreamKey = StreamKey { id: 1, slot: 0 };
const SECOND: StreamKey = StreamKey { id: 3, slot: 1 };

#[test]
fn a_response_to_its_end() {
    let mut server = server_with(&[headers(1, true, GET)], Limits::default());
    assert_eq!(server.send_data(FIRST, b"x", false), Err(SendError::Closed));
    assert_eq!(server.send_trailers(FIRST, |_| {}), Err(SendError::Closed));
    server.send_response(FIRST, 103, true, |head| head.field(b"Link", b"</a>")).unwrap();
    server.send_response(FIRST, 200, false, |_| {}).unwrap();
    assert_eq!(server.send_response(FIRST, 200, false, |_| {}), Err(SendError::Closed));
    assert_eq!(server.send_data(FIRST, b"hello", false), Ok(5));
    server.send_trailers(FIRST, |head| head.field(b"grpc-status", b"0")).unwrap();
    assert_eq!(server.send_data(FIRST, b"x", false), Err(SendError::Closed));
    server.forget(FIRST);
    assert_eq!(sent(&mut server), ["HEADERS 1", "HEADERS 1", "DATA 1 hello", "HEADERS 1 end"]);
    assert_eq!(server.streams_held(), 0);
}

#[test]
fn ends_need_no_window() {
    let mut server = server_with(&[settings(&[(4, 0)]), headers(1, true, GET)], Limits::default());
    server.send_response(FIRST, 200, false, |_| {}).unwrap();
    assert_eq!(server.send_data(FIRST, b"x", true), Ok(0));
    assert_eq!(server.send_data(FIRST, b"", false), Ok(0));
    assert_eq!(server.send_data(FIRST, b"", true), Ok(0));
    assert_eq!(sent(&mut server), ["HEADERS 1", "DATA 1  end"]);
}

#[test]
fn forgetting_says_why() {
    let check = |answer: &dyn Fn(&mut Connection), request: Vec<u8>, expect: &[&str]| {
        let mut server = server_with(&[request], Limits::default());
        answer(&mut server);
        server.forget(FIRST);
        server.forget(FIRST);
        assert_eq!(sent(&mut server), expect);
    };
    let answer = |end| move |server: &mut Connection| server.send_response(FIRST, 200, end, |_| {}).unwrap();
    check(&answer(true), headers(1, true, GET), &["HEADERS 1 end"]);
    check(&answer(true), headers(1, false, POST), &["HEADERS 1 end", "RST 1 0"]);
    check(&answer(false), headers(1, true, GET), &["HEADERS 1", "RST 1 2"]);
    check(&|server| server.reset(FIRST, ErrorCode::REFUSED_STREAM), headers(1, true, GET), &["RST 1 7"]);
    let mut client = established(Role::Client, Limits::default());
    let key = request(&mut client, "GET", true);
    client.forget(key);
    assert_eq!(sent(&mut client), ["HEADERS 1 end", "RST 1 8"]);
}

#[test]
fn data_waits_for_windows_and_is_woken_in_turn() {
    let requests = [settings(&[(4, 10)]), headers(1, true, GET), headers(3, true, GET)];
    let mut server = server_with(&requests, Limits::default());
    for key in [FIRST, SECOND] {
        server.send_response(key, 200, false, |_| {}).unwrap();
        assert_eq!(server.send_data(key, b"0123456789abcdef", true), Ok(10));
        assert_eq!(server.send_data(key, b"abcdef", true), Ok(0));
    }
    sent(&mut server);
    assert_eq!(feed(&mut server, &window_update(3, 4), 99), ["writable 3"]);
    assert_eq!(server.send_data(SECOND, b"abcdef", true), Ok(4));
    // A setting opens all streams at once; one is negative for a while.
    assert_eq!(feed(&mut server, &settings(&[(4, 5)]), 99), ["settings"]);
    assert_eq!(server.send_data(SECOND, b"ef", true), Ok(0));
    assert_eq!(feed(&mut server, &settings(&[(4, 20)]), 99), ["settings", "writable 1", "writable 3"]);
    assert_eq!(server.send_data(FIRST, b"abcdef", true), Ok(6));
    assert_eq!(server.send_data(SECOND, b"ef", true), Ok(2));
    let words = sent(&mut server);
    assert_eq!(words, ["DATA 3 abcd", "SETTINGS ACK", "SETTINGS ACK", "DATA 1 abcdef end", "DATA 3 ef end"]);
}

#[test]
fn the_connections_window_is_shared_in_turn() {
    let requests = [settings(&[(4, 1_000_000)]), headers(1, true, GET), headers(3, true, GET)];
    let mut server = server_with(&requests, Limits { output_bytes_max: 1 << 20, ..Limits::default() });
    let body = vec![b'x'; 100_000];
    for key in [FIRST, SECOND] {
        server.send_response(key, 200, false, |_| {}).unwrap();
    }
    assert_eq!(server.send_data(FIRST, &body, true), Ok(65_535));
    assert_eq!(server.send_data(SECOND, &body, true), Ok(0));
    server.consume_output(usize::MAX);
    // Both are woken. The one that gets nothing keeps its turn, and is the first the next time.
    assert_eq!(feed(&mut server, &window_update(0, 10), 99), ["writable 3", "writable 1"]);
    assert_eq!(server.send_data(FIRST, &body, true), Ok(10));
    assert_eq!(server.send_data(SECOND, &body, true), Ok(0));
    assert_eq!(server.send_data(FIRST, &body, true), Ok(0));
    assert_eq!(feed(&mut server, &window_update(0, 10), 99), ["writable 3", "writable 1"]);
    assert_eq!(server.send_data(SECOND, &body, true), Ok(10));
    assert_eq!(server.send_data(FIRST, &body, true), Ok(0));
    assert_eq!(server.send_data(SECOND, &body, true), Ok(0));
    assert_eq!(feed(&mut server, &window_update(0, 10), 99), ["writable 1", "writable 3"]);
}

#[test]
fn everything_waits_for_room_in_the_output() {
    let requests = [headers(1, true, GET), headers(3, true, GET), headers(5, true, GET)];
    let mut server = server_with(&requests, Limits { output_bytes_max: 1000, ..Limits::default() });
    let third = StreamKey { id: 5, slot: 2 };
    server.send_response(FIRST, 200, false, |_| {}).unwrap();
    let taken = server.send_data(FIRST, &[b'x'; 5_000], true).unwrap();
    assert!((900..1000).contains(&taken), "{taken}");
    assert_eq!(server.send_response(SECOND, 200, true, |_| {}), Err(SendError::Full));
    assert_eq!(server.send_response(third, 200, true, |_| {}), Err(SendError::Full));
    assert_eq!(server.send_trailers(FIRST, |_| {}), Err(SendError::Full));
    server.reset(third, ErrorCode::CANCEL);
    assert!(feed(&mut server, &frame(kind::PING, 0, 0, &[1; 8]), 99).is_empty());
    server.consume_output(400);
    assert!(server.handle_bytes(0, &[]).unwrap().event.is_none());
    server.consume_output(usize::MAX);
    let mut events = Vec::new();
    while let Some(event) = server.handle_bytes(0, &[]).unwrap().event {
        events.push(event);
    }
    // The stream that has already sent something comes last.
    assert_eq!(events, [Event::Writable { stream: SECOND }, Event::Writable { stream: FIRST }]);
    server.send_response(SECOND, 200, true, |_| {}).unwrap();
    server.send_trailers(FIRST, |_| {}).unwrap();
}

#[test]
fn requests_wait_for_a_free_stream() {
    let mut client = established(Role::Client, Limits::default());
    assert_eq!(client.can_open(), 100);
    feed(&mut client, &settings(&[(3, 2), (8, 1)]), 99);
    assert!(client.allows_extended_connect());
    let target = PseudoHeaders { method: b"GET", scheme: b"http", authority: b"a", path: b"/", protocol: None };
    let first = request(&mut client, "GET", true);
    request(&mut client, "GET", true);
    assert_eq!((client.can_open(), client.send_request(&target, true, |_| {})), (0, Err(SendError::Full)));
    assert_eq!(feed(&mut client, &headers(first.id, true, OK), 99), ["response 1 200 end"]);
    assert_eq!(client.can_open(), 1);
    request(&mut client, "GET", true);
    client.drain();
    assert_eq!(client.send_request(&target, true, |_| {}), Err(SendError::GoingAway));
    assert_eq!(
        Connection::new(Role::Server, Limits::default()).send_request(&target, true, |_| {}),
        Err(SendError::GoingAway)
    );
}

#[test]
fn long_heads_are_cut_into_continuations() {
    let mut client = established(Role::Client, Limits::default());
    let mut server = established(Role::Server, Limits { header_list_bytes_max: 80_000, ..Limits::default() });
    let target = PseudoHeaders { method: b"GET", scheme: b"http", authority: b"a", path: b"/", protocol: None };
    client.send_request(&target, true, |head| head.field(b"X-Long", &[b'~'; 40_000])).unwrap();
    let bytes = client.output().to_vec();
    assert_eq!(sent(&mut client), ["HEADERS 1 end", "CONTINUATION 1", "CONTINUATION 1"]);
    let events = feed(&mut server, &bytes, usize::MAX);
    assert_eq!(events, [format!("request 1 GET a/ x-long={} end", "~".repeat(40_000))]);
}

#[test]
fn nothing_is_sent_on_a_connection_that_failed() {
    let mut server = server_with(&[headers(1, true, GET)], Limits::default());
    feed(&mut server, &window_update(0, 0), 99);
    assert_eq!(server.send_response(FIRST, 200, true, |_| {}), Err(SendError::Closed));
    server.forget(FIRST);
    assert_eq!(sent(&mut server), ["GOAWAY 1 1"]);
    assert_eq!(
        server.handle_bytes(0, &[]),
        Err(Error { reason: Reason::WindowUpdate, code: ErrorCode::PROTOCOL_ERROR })
    );
    assert!(server.is_done());
}

#[test]
fn a_quiet_connection_gives_memory_back_and_goes_on() {
    let many: Vec<String> = (0..90).map(|number| format!("x-{number}")).collect();
    let fields: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "value")).collect();
    let open = |id| headers(id, true, &[GET, &fields].concat());
    let mut server = server_with(&[open(1), open(3)], Limits::default());
    server.send_response(FIRST, 200, false, |_| {}).unwrap();
    server.send_data(FIRST, &[b'x'; 30_000], true).unwrap();
    // Bytes that wait to be written, and an incomplete frame, are kept.
    let third = open(5);
    let (begun, rest) = third.split_at(300);
    assert!(feed(&mut server, begun, 99).is_empty());
    server.shrink();
    assert_eq!(server.output().len(), 30_000 + 2 * 9 + (9 + 1));
    assert_eq!(feed(&mut server, rest, 99).len(), 1);
    server.consume_output(usize::MAX);
    let before = server.memory_bytes();
    server.shrink();
    assert!(before > 35_000 && server.memory_bytes() < 10_000, "{before}, {}", server.memory_bytes());
    assert_eq!(feed(&mut server, &headers(7, true, GET), 99), ["request 7 GET a/ end"]);
}

#[test]
fn a_sign_of_life() {
    let mut client = established(Role::Client, Limits::default());
    client.ping([5; 8]);
    assert_eq!(sent(&mut client), ["PING"]);
    assert_eq!(feed(&mut client, &frame(kind::PING, flag::ACK, 0, &[5; 8]), 99), ["pong 5"]);
}

#[test]
fn an_owner_that_gives_up_says_so() {
    let mut server = server_with(&[headers(1, true, GET)], Limits::default());
    server.abort(Reason::Glitches);
    assert_eq!(sent(&mut server), ["GOAWAY 1 11"]);
    assert!(!server.is_done());
    server.forget(FIRST);
    assert!(server.is_done() && server.handle_bytes(0, &hello(Role::Server)).is_err());
}

/// A client that has sent a request, with this window per stream, and has received 100,000 bytes of the response and released half of them.
fn receiving(window: u32) -> (Connection, StreamKey) {
    let limits = Limits { stream_window_bytes: window, ..Limits::default() };
    let mut client = established(Role::Client, limits);
    feed(&mut client, &frame(kind::SETTINGS, flag::ACK, 0, &[]), usize::MAX);
    let key = request(&mut client, "GET", true);
    feed(&mut client, &headers(1, false, &[(":status", "200")]), usize::MAX);
    (0..10).for_each(|_| drop(feed(&mut client, &data(1, false, &[b'.'; 10_000]), usize::MAX)));
    client.release_capacity(key, 50_000);
    sent(&mut client);
    (client, key)
}

#[test]
fn a_smaller_window_holds_once_it_is_acknowledged() {
    let ack = frame(kind::SETTINGS, flag::ACK, 0, &[]);
    let (mut client, key) = receiving(131_072);
    client.set_stream_window(16_384);
    client.set_stream_window(16_384);
    assert_eq!((sent(&mut client), client.stream_window()), (vec!["SETTINGS".to_owned()], 16_384));
    // The other side sent this before it saw the change.
    assert_eq!(feed(&mut client, &data(1, false, &[b'.'; 10_000]), usize::MAX).len(), 1);
    // Released bytes that were too few to be returned before are returned now: the other side may send nothing until it gets them.
    feed(&mut client, &ack, usize::MAX);
    assert_eq!(sent(&mut client), ["WINDOW 1 50000"]);
    client.release_capacity(key, 50_000);
    assert_eq!(sent(&mut client), ["WINDOW 1 50000"]);
    client.release_capacity(key, u32::MAX);
    assert_eq!(sent(&mut client), ["WINDOW 1 10000"]);
    feed(&mut client, &data(1, false, &[b'.'; 16_384]), usize::MAX);
    // The window is full, but an empty frame needs none.
    assert_eq!(feed(&mut client, &data(1, true, b""), usize::MAX), ["data 1 ", "end 1"]);

    let (mut client, _) = receiving(131_072);
    client.set_stream_window(16_384);
    feed(&mut client, &ack, usize::MAX);
    assert_eq!(feed(&mut client, &data(1, true, b""), usize::MAX), ["data 1 ", "end 1"]);

    let (mut client, _) = receiving(131_072);
    client.set_stream_window(16_384);
    feed(&mut client, &ack, usize::MAX);
    sent(&mut client);
    assert_eq!(feed(&mut client, &data(1, false, b"x"), usize::MAX), ["reset 1 h2_flow_control"]);
}

#[test]
fn windows_change_in_the_order_in_which_they_were_announced() {
    let (mut client, _) = receiving(131_072);
    [70_000, 200_000, 1, 300_000, 5].into_iter().for_each(|bytes| client.set_stream_window(bytes));
    assert_eq!((sent(&mut client).len(), client.stream_window()), (WINDOWS_ANNOUNCED_MAX, 300_000));
    for expect in [70_000, 200_000, 1, 300_000, 300_000] {
        feed(&mut client, &frame(kind::SETTINGS, flag::ACK, 0, &[]), usize::MAX);
        assert_eq!(client.limits.stream_window_bytes, expect);
    }
    assert!(client.memory_bytes() <= client.limits.memory_bytes_max());
}

//! Loads against origins, and against servers that each misbehave in one way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::origin::tests::Running;
use crate::record::{Distribution, Pacing};

fn load(address: SocketAddr, connections: usize, until: Until) -> HttpLoad {
    let target = Target { address, host: "x".to_owned(), path: "/".to_owned() };
    HttpLoad::get(target, connections, until)
}

fn run(load: &HttpLoad) -> LoadReport {
    host::runtime().unwrap().block_on(run_http(load)).unwrap()
}

/// Changes the shape of a load.
fn shaped(mut load: HttpLoad, change: impl FnOnce(&mut Shape)) -> HttpLoad {
    change(&mut load.shape);
    load
}

/// Runs `serve` with the number of each connection on a separate thread. The threads end with the test.
fn server(serve: impl Fn(usize, TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            thread::spawn(move || serve(number, stream));
        }
    });
    address
}

/// Reads one request without a body. Returns false at the end of the connection.
fn read_request(stream: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return false,
        }
    }
    true
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn the_load_counts_exactly_what_the_origin_saw() {
    for (connections, threads, rate) in [(1, 1, None), (7, 2, None), (5, 2, Some(50_000.0))] {
        let origin = Running::start("http --name a");
        let load = shaped(load(origin.address, connections, Until::Requests(1_003)), |shape| {
            (shape.threads, shape.rate) = (threads, rate);
        });
        let report = run(&load);
        let seen = origin.http.as_ref().unwrap();
        assert_eq!((report.answers, seen.requests()), (1_003, 1_003));
        assert_eq!(seen.connections(), connections as u64);
        assert_eq!((report.failures(), report.reconnects, report.resent, report.errors.unsent), (0, 0, 0, 0));
        assert_eq!((report.sent, report.planned), (1_003, rate.map(|_| 1_003)));
        assert_eq!(report.service.map(|service| service.count), Some(1_003));
        assert_eq!(report.response.map(|response| response.count), rate.map(|_| 1_003));
        assert_eq!(report.waiting.map(|waiting| waiting.count), Some(1_003));
        // An open loop connects before its first operation is due.
        assert_eq!(report.connect.map(|connect| connect.count), rate.is_none().then_some(connections as u64));
        assert_eq!(report.series.iter().map(|second| second.ok).sum::<u64>(), 1_003);
        assert_eq!(report.origins.get("a"), Some(&1_003));
        assert!(report.origins_after_mark.is_empty());
    }
}

#[test]
fn a_timed_load_ends_and_counts_what_it_did() {
    let origin = Running::start("http");
    for rate in [None, Some(1_000.0)] {
        let load =
            shaped(load(origin.address, 4, Until::Elapsed(Duration::from_millis(100))), |shape| shape.rate = rate);
        let before = origin.http.as_ref().unwrap().requests();
        let report = run(&load);
        assert_eq!(report.answers, origin.http.as_ref().unwrap().requests() - before);
        assert!(report.answers > 0 && report.failures() == 0);
        assert!(rate.is_none_or(|_| report.answers + report.errors.unsent == 100), "{report}");
    }
}

#[test]
fn what_an_open_loop_could_not_send_is_in_its_tail() {
    let address = server(|_, mut stream| while read_request(&mut stream) {});
    let load = shaped(load(address, 1, Until::Elapsed(Duration::from_millis(200))), |shape| {
        (shape.rate, shape.timeout) = (Some(500.0), Duration::from_millis(40));
    });
    let report = run(&load);
    assert!(report.errors.timeout > 0 && report.errors.unsent > 0 && report.answers == 0, "{report}");
    assert_eq!((report.planned, report.errors.timeout + report.errors.unsent), (Some(100), 100), "{report}");
    let response = report.response.expect("everything that was due has waited");
    assert_eq!((response.count, report.service), (100, None));
}

#[test]
fn a_low_rate_is_that_of_all_threads_together() {
    let origin = Running::start("http");
    for (rate, threads, expect) in [(1.0, 1, 1), (30.0, 8, 3), (50.0, 4, 5), (5.0, 4, 1)] {
        let load = shaped(load(origin.address, 8, Until::Elapsed(Duration::from_millis(100))), |shape| {
            (shape.threads, shape.rate) = (threads, Some(rate));
        });
        let report = run(&load);
        assert_eq!(report.answers + report.errors.unsent, expect, "{rate}/s on {threads} threads: {report}");
    }
}

#[test]
fn held_connections_stay_open_and_do_not_count_as_time_of_the_load() {
    let origin = Running::start("http");
    let hold = Duration::from_millis(300);
    let begun = std::time::Instant::now();
    let report = run(&shaped(load(origin.address, 3, Until::Requests(3)), |shape| shape.hold = hold));
    let took = begun.elapsed();
    assert_eq!((report.answers, origin.http.as_ref().unwrap().connections()), (3, 3));
    assert!(took >= hold && report.elapsed + hold <= took, "{took:?} {report}");
}

#[test]
fn bodies_of_any_size_go_both_ways() {
    let origin = Running::start("http");
    for body_bytes in [1, 70_000, 3 << 20] {
        let mut load = HttpLoad { method: "PUT".to_owned(), body_bytes, ..load(origin.address, 2, Until::Requests(4)) };
        load.target.path = "/echo".to_owned();
        let report = run(&load);
        assert_eq!((report.answers, report.failures(), report.reconnects), (4, 0, 0));
        assert!(report.received_bytes > 4 * body_bytes && report.sent_bytes > 4 * body_bytes);
    }
}

#[test]
fn a_server_that_closes_is_connected_to_again() {
    let origin = Running::start("http --close");
    let report = run(&load(origin.address, 1, Until::Requests(10)));
    assert_eq!((report.answers, report.failures(), report.reconnects, report.resent), (10, 0, 9, 0));
}

#[test]
fn a_request_that_met_the_close_of_its_connection_is_sent_again_if_it_may() {
    // The server answers one request, reads a second one, and closes the connection without a response.
    let address = server(|_, mut stream| {
        if read_request(&mut stream) {
            stream.write_all(OK).unwrap();
            read_request(&mut stream);
        }
    });
    let report = run(&load(address, 1, Until::Requests(4)));
    assert_eq!((report.answers, report.failures(), report.reconnects, report.resent), (4, 0, 3, 3));

    let post = HttpLoad { method: "POST".to_owned(), ..load(address, 1, Until::Requests(4)) };
    let report = run(&post);
    assert_eq!((report.answers, report.errors.request, report.resent), (2, 2, 0));
}

#[test]
fn failures_are_told_apart() {
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = run(&load(refused, 1, Until::Requests(3)));
    assert_eq!((report.requests(), report.errors.connect, report.answers), (3, 3, 0));
    assert_eq!(report.reasons, [("connect: Connection refused".to_owned(), 3)].into());
    assert!(report.to_string().contains("3 x connect: Connection refused"), "{report}");

    let broken = server(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").unwrap();
    });
    let report = run(&load(broken, 1, Until::Requests(3)));
    assert_eq!((report.requests(), report.errors.request, report.answers), (3, 3, 0));

    let silent = server(|_, mut stream| while read_request(&mut stream) {});
    let impatient = |shape: &mut Shape| shape.timeout = Duration::from_millis(20);
    let report = run(&shaped(load(silent, 1, Until::Requests(3)), impatient));
    assert_eq!((report.requests(), report.errors.timeout, report.answers), (3, 3, 0));

    let sheds = server(|number, mut stream| {
        if read_request(&mut stream) {
            let status = if number == 0 { "200 OK" } else { "503 Service Unavailable" };
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    let report = run(&load(sheds, 1, Until::Requests(3)));
    assert_eq!((report.answers, report.errors.status, report.failures()), (3, 2, 2));
    assert_eq!(report.statuses.get(&503), Some(&2));
}

#[test]
fn origins_are_counted_before_and_after_the_mark() {
    let origin = Running::start("http --name a");
    let load = load(origin.address, 1, Until::Requests(5));
    load.mark.store(true, std::sync::atomic::Ordering::Relaxed);
    let report = run(&load);
    assert!(report.origins.is_empty());
    assert_eq!(report.origins_after_mark.get("a"), Some(&5));
}

#[test]
fn what_a_server_calls_itself_gives_the_terminal_no_orders() {
    // The name contains C1 controls, and characters for the direction of writing, in UTF-8. Characters below 0x20 cannot occur in a header.
    let hostile = server(|_, mut stream| {
        while read_request(&mut stream) {
            let name = "a\u{9b}2J\u{202e}b\u{200b}";
            write!(stream, "HTTP/1.1 200 OK\r\nx-origin: {name}\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    let report = run(&load(hostile, 1, Until::Requests(2)));
    assert_eq!(report.origins, [("a\u{fffd}2J\u{fffd}b\u{fffd}".to_owned(), 2)].into());
}

/// A closed loop never sends the requests that would have arrived during a stall, so its latencies hide the stall.
#[test]
fn a_stall_shows_in_the_open_loop_and_not_in_the_closed_one() {
    const STALL: Duration = Duration::from_secs(1);
    let stalling = || Running::start("http --stall 1s --stall-after 10ms");
    let stall_us = STALL.as_secs_f64() * 1e6;

    let p99_us = |distribution: &Option<Distribution>| distribution.as_ref().unwrap().percentile_us(99.0).unwrap();
    let closed = run(&load(stalling().address, 1, Until::Requests(2_000)));
    let service = closed.service.as_ref().unwrap();
    assert!(service.count == 2_000 && service.max_us >= stall_us / 2.0, "{closed}");
    assert!(p99_us(&closed.service) < stall_us / 2.0, "{closed}");

    // At one request per ms, about 1000 of the 2000 are due during the stall.
    let open = run(&shaped(load(stalling().address, 1, Until::Requests(2_000)), |shape| shape.rate = Some(1_000.0)));
    assert_eq!(open.response.as_ref().unwrap().count, 2_000);
    assert!(p99_us(&open.response) >= stall_us / 2.0, "{open}");
    assert!(p99_us(&open.service) < stall_us / 2.0, "{open}");
    // Requests that waited for the only connection are queued. The load did not delay them, so they are not late.
    assert!(open.queued.unwrap() > 500 && open.lateness_p99_us.unwrap() < stall_us / 2.0, "{open}");
}

fn run_tcp_load(
    address: SocketAddr,
    close: bool,
    wait_for_close: bool,
    connections: usize,
    until: Until,
) -> LoadReport {
    let shape = Shape::closed(connections, until);
    let load = TcpLoad { address, size: 100, close, wait_for_close, shape };
    host::runtime().unwrap().block_on(run_tcp(&load)).unwrap()
}

#[test]
fn tcp_requests_and_answers() {
    let origin = Running::start("tcp");
    let report = run_tcp_load(origin.address, false, false, 3, Until::Requests(50));
    assert_eq!((report.ok, report.failures(), report.reconnects), (50, 0, 0));
    assert_eq!(origin.tcp.as_ref().unwrap().received(), 100 * 50);
    assert_eq!((report.received_bytes, report.sent_bytes), (5_000, 5_000));

    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = run_tcp_load(refused, false, false, 3, Until::Requests(3));
    assert_eq!((report.ok, report.errors.connect), (0, 3));
}

#[test]
fn tcp_connections_one_for_each_request() {
    for (line, wait_for_close) in [("tcp", false), ("tcp --once", true)] {
        let origin = Running::start(line);
        let report = run_tcp_load(origin.address, true, wait_for_close, 3, Until::Requests(50));
        assert_eq!((report.ok, report.failures(), report.reconnects), (50, 0, 0), "{line}");
        assert_eq!(report.connect.unwrap().count, 50);
        assert_eq!(origin.tcp.as_ref().unwrap().connections(), 50);
    }
}

#[test]
fn tcp_streams_count_what_arrived() {
    for (line, direction) in
        [("tcp --sink", Direction::Send), ("tcp --send 1MiB", Direction::Receive), ("tcp", Direction::Echo)]
    {
        let origin = Running::start(line);
        // A receiver stops when it has received everything, which must happen before the load ends.
        let duration =
            if direction == Direction::Receive { Duration::from_secs(60) } else { Duration::from_millis(50) };
        let run = run_tcp_stream(origin.address, 3, direction, duration);
        let report = host::runtime().unwrap().block_on(run).unwrap();
        let tcp = origin.tcp.as_ref().unwrap();
        let expect = match direction {
            Direction::Send => tcp.received(),
            Direction::Receive => 3 << 20,
            Direction::Echo => tcp.sent(),
        };
        assert_eq!((report.received_bytes.max(report.sent_bytes), report.failures()), (expect, 0), "{direction:?}");
        assert!(report.bytes_per_connection.unwrap().0 > 0, "{direction:?}");
    }
}

#[test]
fn messages_are_timed_one_way() {
    let origin = Running::start("stream --rate 1000 --message 5000");
    let shape =
        Shape { trim: Duration::from_millis(50), ..Shape::closed(3, Until::Elapsed(Duration::from_millis(200))) };
    let load = StreamLoad { address: origin.address, direction: Direction::Receive, messages: true, shape };
    let report = host::runtime().unwrap().block_on(run_stream(&load)).unwrap();
    let (delivery, response) = (report.delivery.as_ref().unwrap(), report.response.as_ref().unwrap());
    assert!(report.ok > 0 && report.failures() == 0);
    assert_eq!((delivery.count, response.count), (report.ok, report.ok));
    assert!(response.max_us >= delivery.min_us);
    // All messages have the same size. At most two on each connection are cut by the ends of the window.
    assert!(report.received_bytes.abs_diff(5_000 * report.ok) < 3 * 2 * 5_000, "{}", report.received_bytes);

    let bulk = Running::start("stream");
    let load = StreamLoad { address: bulk.address, ..load };
    let report = host::runtime().unwrap().block_on(run_stream(&load)).unwrap();
    assert_eq!((report.ok, report.errors.request), (0, 3), "bulk data is not a message");
}

#[test]
fn http_10_and_a_connection_each() {
    let origin = Running::start("http");
    let seen = || origin.http.as_ref().unwrap().connections();
    for (version, close, connections) in
        [(Version::Http10, false, 2), (Version::Http10, true, 10), (Version::Http11, true, 10)]
    {
        let before = seen();
        let report = run(&HttpLoad { version, close, ..load(origin.address, 2, Until::Requests(10)) });
        assert_eq!((report.ok, report.failures(), report.resent), (10, 0, 0), "{version:?} {close}");
        assert_eq!(seen() - before, connections, "{version:?} {close}");
        assert_eq!(report.connect.unwrap().count, connections);
    }
}

#[test]
fn connections_come_from_the_sources_in_turn() {
    let (sender, seen) = std::sync::mpsc::channel();
    let address = server(move |_, mut stream| {
        sender.send(stream.peer_addr().unwrap().ip()).unwrap();
        while read_request(&mut stream) {
            stream.write_all(OK).unwrap();
        }
    });
    let sources: Vec<std::net::IpAddr> = ["127.0.0.7", "127.0.0.8"].map(|text| text.parse().unwrap()).into();
    let report = run(&shaped(load(address, 4, Until::Requests(4)), |shape| shape.sources = sources.clone()));
    assert_eq!(report.failures(), 0);
    let mut from: Vec<_> = seen.iter().take(4).collect();
    from.sort_unstable();
    assert_eq!(from, [sources[0], sources[0], sources[1], sources[1]]);
}

#[test]
fn an_answer_of_another_length_is_a_failure_for_those_who_say_so() {
    let longer_each_time = || {
        server(|_, mut stream| {
            let mut length = 0;
            while read_request(&mut stream) {
                length += 1;
                let body = "x".repeat(length);
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").unwrap();
            }
        })
    };
    let report = run(&load(longer_each_time(), 1, Until::Requests(3)));
    assert_eq!((report.ok, report.errors.length), (3, 0));
    let same_length = HttpLoad { same_length: true, ..load(longer_each_time(), 1, Until::Requests(3)) };
    let report = run(&same_length);
    assert_eq!((report.ok, report.errors.length, report.answers, report.failures()), (1, 2, 3, 2));
}

/// A redirect or a 304 is what the server is expected to send, so it is a success.
#[test]
fn redirects_are_successes_and_are_not_followed() {
    let statuses = [200, 204, 301, 302, 304, 404, 500];
    let address = server(move |_, mut stream| {
        for status in statuses.iter().cycle() {
            if !read_request(&mut stream) {
                return;
            }
            let answer = format!("HTTP/1.1 {status} X\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let report = run(&load(address, 1, Until::Requests(14)));
    assert_eq!((report.ok, report.errors.status, report.failures(), report.answers), (10, 4, 4, 14));
    let text = report.to_string();
    assert!(text.contains("failed      4 (28.57 %): 4 error status\n"), "{text}");
    let counted = "statuses    200 x 2  204 x 2  301 x 2  302 x 2  304 x 2  404 x 2  500 x 2\n";
    assert!(text.contains(counted), "{text}");
}

/// Starts a server that echoes every body over HTTP/2. The channel delivers the `content-length` and the body length of each request.
fn h2_echo() -> (SocketAddr, std::sync::mpsc::Receiver<(String, usize)>) {
    let (sender, seen) = std::sync::mpsc::channel();
    let address = server(move |_, stream| {
        let sender = sender.clone();
        host::runtime().unwrap().block_on(async move {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let length =
                        request.headers().get("content-length").map(|value| value.to_str().unwrap().to_owned());
                    let mut echo = respond.send_response(::http::Response::new(()), false).unwrap();
                    let (mut body, mut count) = (request.into_body(), 0);
                    while let Some(Ok(piece)) = body.data().await {
                        body.flow_control().release_capacity(piece.len()).unwrap();
                        count += piece.len();
                        echo.send_data(piece, false).unwrap();
                    }
                    echo.send_data(bytes::Bytes::new(), true).unwrap();
                    sender.send((length.unwrap_or_default(), count)).unwrap();
                });
            }
        });
    });
    (address, seen)
}

#[test]
fn bodies_go_over_http2_as_its_windows_allow() {
    for (data, body_bytes, expect) in
        [(None, 0, (String::new(), 0)), (Some("a=b"), 0, ("3".into(), 3)), (None, 1 << 20, ("1048576".into(), 1 << 20))]
    {
        let (address, seen) = h2_echo();
        let load = HttpLoad {
            version: Version::Http2,
            method: "POST".to_owned(),
            data: data.map(bytes::Bytes::from),
            body_bytes,
            ..load(address, 2, Until::Requests(6))
        };
        let report = run(&shaped(load, |shape| shape.streams = 3));
        assert_eq!((report.ok, report.failures()), (6, 0), "{report}");
        assert_eq!(seen.iter().take(6).collect::<Vec<_>>(), vec![expect; 6]);
        assert!(report.received_bytes >= 6 * body_bytes && report.sent_bytes >= 6 * body_bytes, "{report}");
    }
}

/// A response before the end of the body counts as a response, and the rest of the body is not sent.
#[test]
fn an_early_answer_over_http2_counts() {
    let address = server(|_, stream| {
        host::runtime().unwrap().block_on(async move {
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                // The server does not read the body, which is larger than the window.
                respond.send_response(::http::Response::builder().status(413).body(()).unwrap(), true).unwrap();
            }
        });
    });
    let load = HttpLoad { version: Version::Http2, body_bytes: 4 << 20, ..load(address, 1, Until::Requests(3)) };
    let report = run(&load);
    assert_eq!((report.errors.status, report.failures()), (3, 3), "{report}");
    assert_eq!(report.statuses.get(&413), Some(&3));
}

#[test]
fn h2c_streams_share_a_connection() {
    let origin = Running::start("grpc --name a --body 70000");
    let load = HttpLoad { version: Version::Http2, ..load(origin.address, 2, Until::Requests(103)) };
    let load = shaped(load, |shape| shape.streams = 5);
    let report = run(&load);
    let seen = origin.grpc.as_ref().unwrap();
    assert_eq!((report.ok, report.failures(), seen.requests(), seen.connections()), (103, 0, 103, 2));
    assert_eq!((report.statuses.get(&200), report.origins.get("a")), (Some(&103), Some(&103)));
    assert!(report.received_bytes > 103 * 70_000, "{report}");
    assert_eq!(report.connect.unwrap().count, 2);
}

fn grpc(address: SocketAddr) -> GrpcLoad {
    GrpcLoad {
        target: Target { address, host: "x".to_owned(), path: "/".to_owned() },
        tls: None,
        metadata: Vec::new(),
        messages: Vec::new(),
        replies: Replies::Any,
        length: 10,
        latency: None,
        error_rate: 0.0,
        streaming: None,
        seed: 1,
        shape: Shape { streams: 3, ..Shape::closed(2, Until::Requests(60)) },
    }
}

fn call(load: &GrpcLoad) -> LoadReport {
    host::runtime().unwrap().block_on(run_grpc(load)).unwrap()
}

#[test]
fn grpc_calls() {
    let origin = Running::start("grpc --name a");
    let report = call(&grpc(origin.address));
    assert_eq!((report.ok, report.failures(), report.statuses.get(&0)), (60, 0, Some(&60)));
    assert_eq!(report.origins.get("a"), Some(&60));

    let failing = call(&GrpcLoad { error_rate: 1.0, ..grpc(origin.address) });
    assert_eq!((failing.ok, failing.errors.status, failing.statuses.get(&2)), (0, 60, Some(&60)));
    assert!(failing.to_string().contains("statuses    UNKNOWN (2) x 60\n"), "{failing}");

    let mut unknown = grpc(origin.address);
    unknown.target.path = "/a.B/C".to_owned();
    assert_eq!(call(&unknown).statuses.get(&12), Some(&60));

    let mut health = grpc(origin.address);
    health.target.path = "/grpc.health.v1.Health/Check".to_owned();
    assert_eq!(call(&health).ok, 60);

    // An HTTP/1 origin does not understand the preface of HTTP/2.
    let other = Running::start("http");
    let report = call(&grpc(other.address));
    assert_eq!((report.ok, report.failures()), (0, 60));
}

#[test]
fn grpc_streams_replies_of_the_length_and_number_that_were_asked_for() {
    let origin = Running::start("grpc");
    let load = GrpcLoad { streaming: Some(7), length: 1_000, ..grpc(origin.address) };
    let report = call(&load);
    assert_eq!((report.ok, report.failures()), (60, 0));
    let bodies = 60 * 7 * 1_000;
    // There are also prefixes, time stamps, frames and heads. As in strest-grpc, one body in a thousand is empty.
    assert!((bodies - 10_000..bodies + 60 * 7 * 100).contains(&report.received_bytes), "{report}");
}

#[test]
fn a_wait_that_a_call_asks_for_is_kept_and_adds_to_the_origins_own() {
    for (line, ask, least_ms) in [
        ("grpc", Some("1=30,100=30"), 0.0),
        ("grpc --delay 20ms", None, 20.0),
        ("grpc --latency-percentiles 100=10", None, 0.0),
        ("grpc --delay-percentiles 100=15ms", None, 15.0),
    ] {
        let origin = Running::start(line);
        let latency = ask.map(|text| crate::percentiles::Percentiles::strest(text).unwrap());
        let service = call(&GrpcLoad { latency, ..grpc(origin.address) }).service.unwrap();
        assert!(service.min_us >= least_ms * 1e3, "{line}: {service:?}");
        // Nearly all calls wait. Only those that draw the minimum of strest's distribution, which is 0, do not.
        let p90_ms = service.percentile_us(90.0).unwrap() / 1e3;
        assert!(p90_ms >= if ask.is_some() { 30.0 } else { 8.0 }, "{line}: {service:?}");
    }
}

#[test]
fn the_rate_follows_its_stages_and_random_arrivals_are_all_sent() {
    let origin = Running::start("http");
    let stage = |ms, rate| Stage { time: Duration::from_millis(ms), rate };
    let staged = shaped(load(origin.address, 4, Until::Elapsed(Duration::from_millis(200))), |shape| {
        (shape.rate, shape.stages) = (Some(0.001), vec![stage(100, 1_000.0), stage(100, 1_000.0)]);
    });
    let report = run(&staged);
    // From nothing to 1,000 a second in a tenth of one, and another tenth.
    assert_eq!((report.ok + report.errors.unsent, report.planned), (150, Some(150)), "{report}");
    let random = shaped(load(origin.address, 4, Until::Elapsed(Duration::from_millis(100))), |shape| {
        (shape.rate, shape.pacing) = (Some(1_000.0), Pacing::Poisson);
    });
    let report = run(&random);
    let planned = report.planned.unwrap();
    assert!((60..150).contains(&planned) && report.ok + report.errors.unsent == planned, "{report}");
    assert!(
        prometheus::text(&report)
            .contains(&format!("steelyard_load_operations{{protocol=\"http/1.1\",result=\"ok\"}} {}\n", report.ok))
    );
}

#[test]
fn the_requests_of_a_mix_are_all_sent() {
    let origin = Running::start("http");
    let entry = |weight, method: &str, data: Option<&'static [u8]>| Entry {
        weight,
        method: method.to_owned(),
        path: "/".to_owned(),
        server: 0,
        data: data.map(Bytes::from_static),
    };
    for close in [false, true] {
        let mix = vec![entry(1, "GET", None), entry(1, "POST", Some(b"0123456789")), entry(2, "HEAD", None)];
        let report = run(&HttpLoad { close, mix, ..load(origin.address, 2, Until::Requests(100)) });
        assert_eq!(report.ok, 100, "{report}");
    }
}

#[test]
fn bursts_are_due_at_the_start_of_a_second() {
    let origin = Running::start("http");
    let load = shaped(load(origin.address, 4, Until::Requests(40)), |shape| {
        (shape.rate, shape.pacing) = (Some(1_000.0), Pacing::Burst1hz);
    });
    let report = run(&load);
    assert_eq!((report.ok, report.planned, report.pacing), (40, Some(40), Some(Pacing::Burst1hz)));
    // Forty requests are due at once and there are four lanes, so most requests wait for a lane.
    assert!(report.queued.unwrap() >= 30, "{report}");
}

#[test]
fn what_lies_outside_the_window_is_apart() {
    let origin = Running::start("http");
    let load = shaped(load(origin.address, 2, Until::Elapsed(Duration::from_millis(100))), |shape| {
        shape.warm_up = Duration::from_millis(50);
        shape.trim = Duration::from_millis(50);
    });
    let report = run(&load);
    assert!(report.ok > 0 && report.outside.ok > 0, "{report}");
    assert_eq!(report.elapsed, Duration::from_millis(100));
    assert_eq!(report.ok + report.outside.ok, origin.http.as_ref().unwrap().requests());
    assert_eq!(report.service.unwrap().count, report.ok);
    let text = serde_json::to_string(&run(&load)).unwrap();
    let again: LoadReport = serde_json::from_str(&text).unwrap();
    assert_eq!((again.version, again.elapsed), (REPORT_VERSION, Duration::from_millis(100)));
}

/// The busiest thread of a load shows whether the load saturates. The verdicts of the lab rely on this.
#[test]
fn a_load_that_saturates_says_so() {
    let origin = Running::start("http");
    let busy = shaped(load(origin.address, 2, Until::Elapsed(Duration::from_millis(300))), |shape| {
        shape.work = Duration::from_millis(5);
    });
    let busy = run(&busy);
    let idle = Running::start("http --delay 50ms");
    let idle = run(&load(idle.address, 1, Until::Elapsed(Duration::from_millis(300))));
    assert!(idle.generator.busiest_thread < busy.generator.busiest_thread, "{idle} {busy}");
    assert!(busy.generator.cpu_s > 0.0);
}

/// Runs a command line until it ends.
fn command(line: &str) -> Outcome {
    use clap::Parser;
    let cli = Cli::try_parse_from(["load"].into_iter().chain(line.split(' '))).unwrap();
    super::run(cli.command).unwrap()
}

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(subcommand)]
    command: LoadCommand,
}

#[test]
fn a_load_of_which_nothing_succeeds_has_failed() {
    let origin = Running::start("http");
    let address = origin.address;
    assert_eq!(command(&format!("http http://{address}/ -n 3 -c 1 --json")), Outcome::Good);
    let missing = server(|_, mut stream| {
        while read_request(&mut stream) {
            stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    assert_eq!(command(&format!("http http://{missing}/ -n 3 -c 1 --json")), Outcome::Failed);
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(command(&format!("tcp-rr {refused} -n 3 --json")), Outcome::Failed);
}

#[test]
fn a_threshold_that_is_missed_sets_the_exit_code() {
    let origin = Running::start("http");
    let check = |thresholds: &str, expect| {
        let line = format!("http http://{}/ -n 5 -c 1 --json {thresholds}", origin.address);
        assert_eq!(command(&line), expect, "{thresholds}");
    };
    check("--max-p99 1h --max-errors 0% --min-rate 0.001", Outcome::Good);
    check("--max-p50 1us", Outcome::GateDoesNotHold);
    check("--max-p95 1h --max-p999 1us", Outcome::GateDoesNotHold);
    check("--min-rate 1000000000", Outcome::GateDoesNotHold);
    let failing = server(|_, mut stream| {
        while read_request(&mut stream) {
            stream.write_all(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    let line = format!("http http://{failing}/ -n 5 -c 1 --json --max-errors");
    assert_eq!(command(&format!("{line} 4")), Outcome::GateDoesNotHold);
    // The threshold is met, but no request succeeded.
    assert_eq!(command(&format!("{line} 5")), Outcome::Failed);
}

#[test]
fn a_target_that_cannot_be_reached_is_an_error_in_a_sentence() {
    use clap::Parser;
    let error = |line: &str| {
        let cli = Cli::try_parse_from(["load"].into_iter().chain(line.split(' '))).unwrap();
        super::run(cli.command).unwrap_err().to_string()
    };
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = format!("cannot connect to {nobody}: nothing listens there (connection refused)");
    assert_eq!(error(&format!("http http://{nobody}/")), refused);
    assert_eq!(error(&format!("http https://{nobody}/")), refused);
    let origin = Running::start("http");
    let expect = format!("{} does not answer with TLS: use http:// if it speaks plain HTTP", origin.address);
    assert_eq!(error(&format!("http https://{}/ --insecure", origin.address)), expect);
    assert_eq!(error(&format!("grpc https://{}/ --insecure", origin.address)), expect);
    for kind in ["http", "grpc"] {
        assert!(error(&format!("{kind} http://{}/ --insecure", origin.address)).contains("--insecure is for https"));
    }
    assert_eq!(error(&format!("grpc {nobody}")), refused);
    let missing = error(&format!("http http://{}/ --data @/nonexistent", origin.address));
    assert!(missing.starts_with("cannot read @/nonexistent: "), "{missing}");
    assert_eq!(error("http ftp://a/"), "cannot put load on ftp://a/: the scheme is \"ftp\"; use http or https");
    assert!(error("http http://nobody.invalid/").starts_with("cannot look up nobody.invalid: "));
}

#[test]
fn a_load_that_is_stopped_reports_what_it_met() {
    let origin = Running::start("http");
    let hour = Duration::from_secs(3600);
    for rate in [None, Some(1_000.0)] {
        let load =
            shaped(load(origin.address, 4, Until::Elapsed(hour)), |shape| (shape.threads, shape.rate) = (2, rate));
        let stop = load.shape.stop.clone();
        let seen = || origin.http.as_ref().unwrap().requests();
        let before = seen();
        let report = thread::scope(|scope| {
            let running = scope.spawn(|| run(&load));
            while seen() < before + 100 {
                thread::yield_now();
            }
            stop.now();
            running.join().unwrap()
        });
        assert!(report.interrupted && report.elapsed < hour, "{report}");
        // Requests in progress are not counted.
        assert!((90..=seen() - before).contains(&report.ok) && report.failures() == 0, "{report}");
        assert!(report.planned.is_none_or(|planned| (report.ok..3_000_000).contains(&planned)), "{report}");
        assert!(report.to_string().contains("/s, interrupted\n"), "{report}");
    }
}

#[test]
fn command_lines() {
    use clap::Parser;
    let check = |line: &str, expect: bool| {
        let words = ["load"].into_iter().chain(line.split(' '));
        assert_eq!(Cli::try_parse_from(words).is_ok(), expect, "{line}");
    };
    check("http http://x/ -c 8 -d 2s --rate 100 -H a:b --json", true);
    check("http http://x/ -n 5", true);
    check("http https://x/ -k --data a=b -H content-type:text/plain -X PUT", true);
    check("http https://x/ --cacert ca.pem --max-p99 50ms --max-errors 0.1% --min-rate 100", true);
    check("http https://x/ --cacert ca.pem -k", false);
    check("grpc https://x/a.B/C --cacert ca.pem -s 5", true);
    check("grpc https://x/ --cacert ca.pem -k", false);
    check("http http://x/ --data a --body 5", false);
    check("http http://x/ --max-p99 50", false);
    check("http http://x/ --max-errors 0.1", false);
    check("http http://x/ --find-capacity 10ms --max-p99 50ms", false);
    // These options are those of wrk, hey, oha, ab and curl.
    check("http http://x/ -d 2 -X POST -q 100 --timeout 3", true);
    check("http http://x/ -z 2s -c 8 -t 2", true);
    check("http http://x/ -z 1.5", true);
    check("http http://x/ -d 2x", false);
    check("http http://x/ -d .", false);
    check("http http://x/ -n 5 -d 2s", false);
    check("http http://x/ -c 0", false);
    check("http http://x/ --rate 0", false);
    check("http http://x/ --rate NaN", false);
    check("http http://x/ -m GE\rT", false);
    check("http http://x/ -m CONNECT", false);
    check("http http://x/ -H a", false);
    check("http http://x/ -H a:b\r\nc:d", false);
    check("tcp-rr 127.0.0.1:1 --size 64KiB", true);
    check("tcp-rr 127.0.0.1:1 --size 1MiB", false);
    check("tcp-stream 127.0.0.1:1 --direction echo", true);
    check("stream 127.0.0.1:1 --direction receive --messages --source 127.0.0.2 --source 127.0.0.3", true);
    check("http http://x/ --http 1.0 --close --same-length --ramp 1s --warm-up 2s --trim 500ms --announce", true);
    check("http http://x/ --http 3", false);
    check("http http://x/ --pacing burst1hz", false);
    check("http http://x/ --rate 8 --pacing burst1hz --streams 3", true);
    check("http http://x/ --pacing poisson --random-seed 2 --rate 8", true);
    check("http http://x/ --rate 8 --stages 10s:20,1m:20,0s:5", true);
    check("http http://x/ --stages 10s:20", false);
    check("http http://x/ --rate 8 --stages 10s:-1", false);
    check("http http://x/ --rate 8 --stages 10s", false);
    check("http http://x/ --rate 8 --stages 10s:20 -d 5s", false);
    check("http http://x/ --find-capacity 10ms --step 1s -r 50", true);
    check("http http://x/ --find-capacity 10ms -n 5", false);
    check("grpc 127.0.0.1:1 --latency-percentiles 50=5,99=10 --length 100 --error-rate 0.1 --streaming 3", true);
    check("grpc 127.0.0.1:1 --error-rate 2", false);
    check("tcp-crr 127.0.0.1:1 --size 10 --wait-for-close", true);
    check("tcp-rr 127.0.0.1:1 --wait-for-close", false);
}

//! Loads against origins and against servers that misbehave in one way each.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use super::*;
use crate::origin::tests::Running;

fn load(address: SocketAddr, connections: usize, until: Until) -> HttpLoad {
    let target = Target { address, host: "x".to_owned(), path: "/".to_owned() };
    HttpLoad::get(target, connections, until)
}

fn run(load: &HttpLoad) -> HttpReport {
    host::runtime().unwrap().block_on(run_http(load)).unwrap()
}

/// Serves each connection with `serve`, which gets its number, on a thread of its own. The threads end with the test.
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

/// Reads one request without a body; false at the end of the connection.
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
        let load = HttpLoad { threads, rate, ..load(origin.address, connections, Until::Requests(1_003)) };
        let report = run(&load);
        let seen = origin.http.as_ref().unwrap();
        assert_eq!((report.answers, seen.requests()), (1_003, 1_003));
        assert_eq!(seen.connections(), connections as u64);
        assert_eq!((report.failures(), report.reconnects, report.resent, report.unsent), (0, 0, 0, 0));
        assert_eq!(report.latency.count, 1_003);
        assert_eq!(report.service_latency.map(|summary| summary.count), rate.map(|_| 1_003));
        assert_eq!(report.origins.get("a"), Some(&1_003));
        assert!(report.origins_after_mark.is_empty());
    }
}

#[test]
fn a_timed_load_ends_and_counts_what_it_did() {
    let origin = Running::start("http");
    for rate in [None, Some(1_000.0)] {
        let load = HttpLoad { rate, ..load(origin.address, 4, Until::Elapsed(Duration::from_millis(100))) };
        let before = origin.http.as_ref().unwrap().requests();
        let report = run(&load);
        assert_eq!(report.answers, origin.http.as_ref().unwrap().requests() - before);
        assert!(report.answers > 0 && report.failures() == 0);
        assert!(rate.is_none_or(|_| report.answers + report.unsent == 100), "{report}");
    }
}

#[test]
fn held_connections_stay_open_and_do_not_count_as_time_of_the_load() {
    let origin = Running::start("http");
    let hold = Duration::from_millis(300);
    let begun = std::time::Instant::now();
    let report = run(&HttpLoad { hold, ..load(origin.address, 3, Until::Requests(3)) });
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
    // Answers one request, takes a second, and closes without a word.
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
    assert_eq!((report.answers, report.request_errors, report.resent), (2, 2, 0));
}

#[test]
fn failures_are_told_apart() {
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = run(&load(refused, 1, Until::Requests(3)));
    assert_eq!((report.requests(), report.connect_errors, report.answers), (3, 3, 0));

    let broken = server(|_, mut stream| {
        read_request(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf").unwrap();
    });
    let report = run(&load(broken, 1, Until::Requests(3)));
    assert_eq!((report.requests(), report.request_errors, report.answers), (3, 3, 0));

    let silent = server(|_, mut stream| while read_request(&mut stream) {});
    let silent = HttpLoad { timeout: Duration::from_millis(20), ..load(silent, 1, Until::Requests(3)) };
    let report = run(&silent);
    assert_eq!((report.requests(), report.timeouts, report.answers), (3, 3, 0));

    let sheds = server(|number, mut stream| {
        if read_request(&mut stream) {
            let status = if number == 0 { "200 OK" } else { "503 Service Unavailable" };
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
        }
    });
    let report = run(&load(sheds, 1, Until::Requests(3)));
    assert_eq!((report.answers, report.non_2xx, report.failures()), (3, 2, 2));
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

/// The mistake that a closed loop makes: the requests that would have come during a stall are never sent, so they are never late.
#[test]
fn a_stall_shows_in_the_open_loop_and_not_in_the_closed_one() {
    const STALL: Duration = Duration::from_secs(1);
    /// Answers at once, but for the 100th request of each connection.
    #[expect(
        clippy::disallowed_methods,
        reason = "the wait is not for an event: it is the fault that the load must show"
    )]
    fn stalling() -> SocketAddr {
        server(|_, mut stream| {
            let mut served = 0;
            while read_request(&mut stream) {
                served += 1;
                if served == 100 {
                    thread::sleep(STALL);
                }
                stream.write_all(OK).unwrap();
            }
        })
    }
    let stall_us = STALL.as_secs_f64() * 1e6;

    let closed = run(&load(stalling(), 1, Until::Requests(2_000)));
    assert_eq!(closed.latency.count, 2_000);
    assert!(closed.latency.max_us >= stall_us, "{closed}");
    assert!(closed.latency.p99_us < stall_us / 2.0, "{closed}");

    // A request a ms: about a thousand of two thousand were due during the stall.
    let open = HttpLoad { rate: Some(1_000.0), ..load(stalling(), 1, Until::Requests(2_000)) };
    let open = run(&open);
    assert_eq!(open.latency.count, 2_000);
    assert!(open.latency.p99_us >= stall_us / 2.0, "{open}");
    assert!(open.service_latency.unwrap().p99_us < stall_us / 2.0, "{open}");
}

#[test]
fn tcp_requests_and_answers() {
    let origin = Running::start("tcp");
    let run = run_tcp_rr(origin.address, 3, 100, Duration::from_millis(50));
    let report = host::runtime().unwrap().block_on(run).unwrap();
    assert!(report.transactions > 0 && report.errors == 0, "{report}");
    assert_eq!(origin.tcp.as_ref().unwrap().received(), 100 * report.transactions);

    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let report = host::runtime().unwrap().block_on(run_tcp_rr(refused, 3, 1, Duration::from_millis(50))).unwrap();
    assert_eq!((report.transactions, report.errors), (0, 3));
}

#[test]
fn tcp_streams_count_what_arrived() {
    for (line, direction) in
        [("tcp --sink", Direction::Send), ("tcp --send 1MiB", Direction::Receive), ("tcp", Direction::Echo)]
    {
        let origin = Running::start(line);
        // A receiver stops when it has everything, and must not stop before.
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
        assert_eq!((report.bytes, report.errors), (expect, 0), "{direction:?}");
        assert!(report.bytes_per_connection.0 > 0, "{direction:?}");
    }
}

#[test]
fn command_lines() {
    use clap::Parser;
    #[derive(Parser)]
    struct Cli {
        #[command(subcommand)]
        _command: LoadCommand,
    }
    let check = |line: &str, expect: bool| {
        let words = ["load"].into_iter().chain(line.split(' '));
        assert_eq!(Cli::try_parse_from(words).is_ok(), expect, "{line}");
    };
    check("http http://x/ -c 8 -d 2s --rate 100 -H a:b --json", true);
    check("http http://x/ -n 5", true);
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
}

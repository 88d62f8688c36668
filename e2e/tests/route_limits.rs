//! Limits of a route on the requests of a client that are in progress, and on how fast responses are: over HTTP/1 and HTTP/2, however a request
//! ends and whichever worker it is on.
#![forbid(unsafe_code)]

#[path = "support/frames.rs"]
mod frames;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use frames::{Client, block, code, kind};
use support::{Origin, Steelyard, local, port};
use testkit::{PATIENCE, until};

/// Requests that one client may have in progress.
const MAX: usize = 4;

/// A response takes minutes at the bandwidth of `/slow`.
const BODY_BYTES: u64 = 200_000;

/// Connections of each of the threads that come and go.
const CHURN: usize = 200;
const THREADS: usize = 3;

/// How a connection ends.
const ENDS: usize = 6;

fn serve(origin: &Origin) -> (Steelyard, SocketAddr) {
    let (plain, other) = (port(), port());
    let limit = format!("concurrency_limit: {{requests: {MAX}, group: all}}");
    let config = format!(
        "admin: {{admin}}
listeners:
  web:
    bind: '127.0.0.1:{plain}'
    protocol: http
    routes:
      - {{path: /slow, to: web, {limit}, response_bandwidth: {{bytes: 1KiB, after: 20KiB}}}}
      - {{path: /free, to: web}}
      - {{to: web, {limit}}}
  other: {{bind: '127.0.0.1:{other}', protocol: http, routes: [{{to: web, {limit}}}]}}
clusters:
  web: {{endpoints: ['{}']}}
",
        origin.address
    );
    (Steelyard::serve(&config, 2), local(plain))
}

fn get(path: &str) -> Vec<u8> {
    block(&[(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a.example"), (b":path", path.as_bytes())])
}

/// A connection with a request for this path, and the status of the answer.
fn ask(address: SocketAddr, path: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).unwrap();
    (stream, String::from_utf8_lossy(&line[9..]).into_owned())
}

#[test]
fn a_slow_response_holds_nothing_up() {
    let origin = Origin::start_at(local(0), "web", BODY_BYTES);
    let (steelyard, address) = serve(&origin);
    let mut client = Client::connect(address, &[]);
    let slow = client.open(&get("/slow"), true);
    let waits = || steelyard.metric("steelyard_listener_bandwidth_waits_total", &[("listener", "web")]);
    assert!(until(PATIENCE, || (waits() > 0.0).then_some(())).is_some(), "the response does not wait");
    for path in ["/", "/free"] {
        let quick = client.open(&get(path), true);
        let answer = client.answer(quick);
        assert_eq!((answer.status, answer.body.len() as u64), (200, BODY_BYTES), "{path}");
    }
    let (mut first, status) = ask(address, "/free");
    assert_eq!(status, "200");
    first.read_exact(&mut vec![0; BODY_BYTES as usize]).unwrap();
    client.send(&frames::reset(slow, code::CANCEL));
    drop(first);
    let in_flight = || steelyard.metric("steelyard_endpoint_in_flight", &[]);
    assert!(until(PATIENCE, || (in_flight() == 0.0).then_some(())).is_some(), "the endpoint is still asked");
}

#[test]
fn every_end_of_a_request_gives_its_place_back() {
    let origin = Origin::start_at(local(0), "web", BODY_BYTES);
    let (steelyard, address) = serve(&origin);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || (0..CHURN).for_each(|number| come_and_go(address, number + thread)));
        }
    });
    let refused = || steelyard.metric("steelyard_refused_total", &[("reason", "concurrency_limited")]);
    // All places are free again, once the last of those requests has ended.
    let all = || {
        let open: Vec<(TcpStream, String)> = (0..MAX).map(|_| ask(address, "/slow")).collect();
        open.iter().all(|(_, status)| status == "200").then_some(open)
    };
    let open = until(PATIENCE, all).expect("places are lost");
    // And there are no more of them than before, on any route, listener or connection.
    let before = refused();
    assert_eq!(ask(address, "/").1, "429");
    let mut client = Client::connect(address, &[]);
    let streams = ["/", "/slow", "/free"].map(|path| client.open(&get(path), true));
    assert_eq!(streams.map(|stream| client.answer(stream).status), [429, 429, 200]);
    assert_eq!(refused() - before, 3.0);
    drop(open);
    let is_free = || (ask(address, "/").1 == "200").then_some(());
    assert!(until(PATIENCE, is_free).is_some(), "a place is not given back");
}

/// Opens a connection with one request or several, and ends it in one of [`ENDS`] ways.
fn come_and_go(address: SocketAddr, way: usize) {
    match way % ENDS {
        // In the middle of a response, with unread bytes.
        0 => drop(ask(address, "/slow")),
        // Before it.
        1 => {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET /slow HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
        }
        // After a whole one, or a refusal.
        2 => {
            let (mut stream, status) = ask(address, "/");
            let bytes = if status == "200" { BODY_BYTES as usize } else { 20 };
            stream.read_exact(&mut vec![0; bytes]).unwrap();
        }
        // Streams that are reset, before or after their responses have begun.
        3 | 4 => {
            let mut client = Client::connect(address, &[]);
            let streams: Vec<u32> = (0..6).map(|_| client.open(&get("/slow"), true)).collect();
            if way % ENDS == 4 {
                while client.frame().is_some_and(|frame| frame.kind != kind::HEADERS) {}
            }
            for stream in streams {
                client.send(&frames::reset(stream, code::CANCEL));
            }
        }
        // A connection that goes with all its streams.
        _ => {
            let mut client = Client::connect(address, &[]);
            for _ in 0..6 {
                client.open(&get("/slow"), true);
            }
        }
    }
}

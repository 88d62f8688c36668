//! `memory_max`: the memory of the whole process stays within it, whatever clients do. New work is refused, and work under way continues.
#![forbid(unsafe_code)]

#[path = "support/bodies.rs"]
mod bodies;
#[path = "support/frames.rs"]
mod frames;
#[path = "support/stalled.rs"]
mod stalled;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;

use bodies::Endpoint;
use frames::{Client, block, flag, frame, kind, setting};
use stalled::{anonymous, deaf, may_open, send, settled, uploads};
use support::{Origin, Scratch, Steelyard, local, port, skip};
use testkit::{PATIENCE, until};
use tls::Pki;

const MIB: usize = 1 << 20;

/// How much memory the balancer may use.
const MEMORY_MAX: u64 = 64 << 20;

/// Clients whose streams stall. Without a limit they use 68 MiB with HTTP/1.1 endpoints, and 374 MiB with HTTP/2 endpoints.
const DOWNLOADERS: usize = 30;

/// Clients whose uploads are not read. Without a limit they use 397 MiB.
const UPLOADERS: usize = 200;

/// Streams of each client.
const STREAMS: usize = 100;

/// Each figure is of one balancer, but the host has to hold all of them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A listener for each of these clusters.
fn serve(clusters: &[&str]) -> (Steelyard, Vec<SocketAddr>) {
    let binds: Vec<_> = clusters.iter().map(|_| local(port())).collect();
    let (mut listeners, mut lines) = (String::new(), String::new());
    for (number, (bind, cluster)) in binds.iter().zip(clusters).enumerate() {
        listeners += &format!("  l{number}: {{bind: '{bind}', protocol: http, to: c{number}, min_rate: off}}\n");
        lines += &format!("  c{number}: {{{cluster}}}\n");
    }
    let max = MEMORY_MAX >> 20;
    let config = format!("admin: {{admin}}\nmemory_max: {max}MiB\nlisteners:\n{listeners}clusters:\n{lines}");
    (Steelyard::serve(&config, 1), binds)
}

fn refused(balancer: &Steelyard) -> f64 {
    balancer.metric("steelyard_refused_total", &[("reason", "memory_full")])
}

fn downloads(test: &str, endpoint: Endpoint, protocol: &str) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !may_open(3 * (DOWNLOADERS * STREAMS) as u64) {
        return skip(test, "the hard limit of open files is too low");
    }
    let scratch = Scratch::new();
    let pki = Pki::new(scratch.path());
    pki.issue("server", &["localhost"]);
    let origin = bodies::Origin::start(endpoint, &pki.server("server"));
    let (balancer, binds) = serve(&[&format!("protocol: {protocol}, endpoints: ['{}']", origin.address)]);
    let path = format!("/length/{MIB}");
    let get = block(&[(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", path.as_bytes())]);
    // A stream takes a little more than a small buffer holds, and then nothing.
    let connect = || Client::connect(binds[0], &[(setting::INITIAL_WINDOW_SIZE, 20_000)]);
    let mut first = connect();
    let stream = first.open(&get, true);
    let mut clients = Vec::new();
    let mut peak = 0;
    for _ in 0..DOWNLOADERS {
        let mut client = connect();
        client.send(&frames::window_update(0, 1 << 30));
        for _ in 0..STREAMS {
            client.open(&get, true);
        }
        clients.push(std::thread::spawn(move || client.end()));
        peak = anonymous(&balancer).max(peak);
    }
    let all = 1 + DOWNLOADERS * STREAMS;
    let taken_in = until(PATIENCE, || {
        peak = anonymous(&balancer).max(peak);
        let served = balancer.status()["clusters"][0]["requests"].as_f64().unwrap();
        (served + refused(&balancer) >= all as f64).then_some(())
    });
    assert!(taken_in.is_some(), "not all requests were accepted");
    peak = settled(&balancer).max(peak);
    eprintln!("{test}: RssAnon of {} KiB at most, {} refused", peak / 1024, refused(&balancer));
    assert!(peak <= MEMORY_MAX, "{peak} bytes");
    assert!(clients.iter().all(|client| !client.is_finished()), "a connection was closed");
    // Now the client that began first reads its body.
    let answer = first.answer(stream);
    assert_eq!((answer.status, answer.body.as_slice()), (200, bodies::pattern(MIB)));
}

#[test]
fn downloads_that_nobody_takes() {
    downloads("downloads_that_nobody_takes", Endpoint::H1, "h1");
}

#[test]
fn downloads_from_http2_that_nobody_takes() {
    downloads("downloads_from_http2_that_nobody_takes", Endpoint::H2, "h2c");
}

#[test]
fn uploads_that_nobody_reads() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !may_open(5_000) {
        return skip("uploads_that_nobody_reads", "the hard limit of open files is too low");
    }
    let origin = Origin::start("o");
    let stalled =
        format!("endpoints: ['{}'], limits: {{connections: 100, pending: 100000, pending_timeout: 60s}}", deaf());
    let (mut balancer, binds) = serve(&[&stalled, &format!("endpoints: ['{}']", origin.address)]);
    // An upload that is under way, and idle while the others arrive.
    let mut first = Client::connect(binds[1], &[]);
    let put = block(&[(b":method", b"PUT"), (b":scheme", b"http"), (b":authority", b"a"), (b":path", b"/")]);
    let stream = first.open(&put, false);
    first.send(&frame(kind::DATA, 0, stream, b"first"));

    let words = uploads(STREAMS as u32, 15_000);
    let clients: Vec<_> = std::thread::scope(|scope| {
        let sending: Vec<_> = (0..UPLOADERS).map(|_| scope.spawn(|| send(binds[0], &words))).collect();
        sending.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let held = settled(&balancer);
    eprintln!("uploads that are not read: RssAnon of {} KiB, {} refused", held / 1024, refused(&balancer));
    assert!(held <= MEMORY_MAX, "{held} bytes");

    // New work is refused with a reason that the status shows, whether it is a connection or a request on an open one. Work under way
    // continues.
    let mut late = TcpStream::connect(binds[1]).unwrap();
    let mut answer = String::new();
    late.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let told = balancer.until("a finding", |status| {
        status["findings"].as_array().is_some_and(|all| all.iter().any(|finding| finding["kind"] == "memory_full"))
    });
    assert_eq!(told["memory_max"], MEMORY_MAX);
    for _ in 0..100 {
        first.send(&frame(kind::DATA, 0, stream, &[b'.'; 10_000]));
    }
    first.send(&frame(kind::DATA, flag::END_STREAM, stream, b"last"));
    assert_eq!(first.answer(stream).status, 200);
    assert_eq!(first.get().status, 503);

    // When they have gone, everything is as before.
    drop(clients);
    let served = until(PATIENCE, || (first.get().status == 200).then_some(()));
    assert!(served.is_some(), "{} bytes are in use", anonymous(&balancer));
    assert_eq!(Client::connect(binds[1], &[]).get().status, 200);
}

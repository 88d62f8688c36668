//! The memory cost of connections and bodies, as the kernel reports it.
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

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use lab::load::{HttpLoad, Target, Until, run_http};
use lab::procfs::resident_bytes;
use stalled::{anonymous, deaf, is_writable, may_open, send, settled, uploads};
use support::{Origin, Scratch, Steelyard, local, port, skip};
use testkit::{PATIENCE, until};
use tls::Pki;

const MIB: u64 = 1 << 20;

/// A body far larger than the buffers on its way.
const BODY_BYTES: u64 = 256 * MIB;

/// How much such a body may add to the balancer's memory.
const GROWTH_BYTES_MAX: u64 = 16 * MIB;

/// How many idle connections the test opens. The limit applies to the whole process of a release build; `cargo xtask bench --only memory`
/// has that figure, since the program under test here is several times as large by its code alone.
const IDLE_CONNECTIONS: usize = 2_000;
const IDLE_BYTES_MAX: u64 = 10 * MIB;

/// How much memory tunnels may add that began under routing tables of 10,000 routes which are gone.
const TABLES_GROWTH_BYTES_MAX: u64 = 16 * MIB;

/// The cost of a connection during its request: two buffers and the state of an exchange.
const BURST_BYTES_MAX: u64 = 40 * 1024;

/// The cost of an HTTP/2 stream whose client takes nothing of its response: the bytes that came with the head, at most 4 KiB, and the state
/// of an exchange and of its connection to the endpoint. The program under test here is not optimised, so its states are larger.
const STALLED_STREAM_BYTES_MAX: u64 = 16 * 1024;

/// The cost of an HTTP/2 connection with 100 uploads that no endpoint reads: its window of 2 MiB, half as much again for buffers that are
/// not full, and its exchanges.
const STALLED_UPLOADS_BYTES_MAX: u64 = 4 * MIB;

/// The minimum for an HTTP/2 stream whose client takes nothing of a response from an HTTP/2 endpoint: it holds the window of its stream
/// there, 128 KiB, in a buffer that is at most half as large again, plus the state of an exchange.
const STALLED_H2_STREAM_BYTES_MIN: u64 = 128 * 1024;
const STALLED_H2_STREAM_BYTES_MAX: u64 = 192 * 1024 + STALLED_STREAM_BYTES_MAX;

/// The cost of an HTTP/1 download whose client does not read: a small buffer, the state of an exchange, and its share of the large buffers
/// that a worker has for all of them.
const STALLED_DOWNLOAD_BYTES_MAX: u64 = 32 * 1024;

/// One test at a time: each has its own balancer, but the host has to hold all of them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn balancer_to(endpoint: std::net::SocketAddr) -> (Steelyard, std::net::SocketAddr) {
    balancer_with(endpoint, "{}")
}

/// `limits`: those of the cluster.
fn balancer_with(endpoint: std::net::SocketAddr, limits: &str) -> (Steelyard, std::net::SocketAddr) {
    balancer_of(&format!("endpoints: ['{endpoint}'], limits: {limits}"))
}

/// `cluster`: its keys. The windows of streams to endpoints depend on `memory_max`, so it is fixed here instead of following the size of
/// the host.
fn balancer_of(cluster: &str) -> (Steelyard, std::net::SocketAddr) {
    let listen = local(port());
    let config = format!(
        "admin: {{admin}}
memory_max: 2GiB
listeners:
  web: {{bind: '{listen}', protocol: http, to: all}}
clusters:
  all: {{{cluster}}}
"
    );
    (Steelyard::serve(&config, 1), listen)
}

/// The sum over all reasons.
fn refused(balancer: &Steelyard) -> f64 {
    balancer.metric("steelyard_refused_total", &[])
}

fn resident(balancer: &Steelyard) -> u64 {
    resident_bytes(balancer.program.pid()).unwrap()
}

/// The peak of resident memory, which includes peaks between two readings.
fn peak(balancer: &Steelyard) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", balancer.program.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a high-water mark");
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes / 1024)
}

#[test]
fn a_large_upload() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let origin = Origin::start("x");
    let (balancer, listen) = balancer_to(origin.address);
    let before = resident(&balancer);
    let target = Target::resolve(&format!("http://{listen}/")).unwrap();
    let mut load = HttpLoad { body_bytes: BODY_BYTES, ..HttpLoad::get(target, 1, Until::Requests(1)) };
    load.method = "PUT".to_owned();
    load.shape.timeout = Duration::from_secs(60);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(run_http(&load)).unwrap();
    let (after, peak) = (resident(&balancer), peak(&balancer));
    eprintln!("upload of {BODY_BYTES} bytes: RSS {} before, {} after, {} at most", kib(before), kib(after), kib(peak));
    assert_eq!((report.failures(), report.answers, origin.requests()), (0, 1, 1), "{report}");
    assert!(peak.saturating_sub(before) < GROWTH_BYTES_MAX);
}

#[test]
fn a_large_download_to_a_client_that_stalls() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let listener = TcpListener::bind(local(0)).unwrap();
    let (balancer, listen) = balancer_to(listener.local_addr().unwrap());
    let mut client = TcpStream::connect(listen).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (mut endpoint, _) = listener.accept().unwrap();
    let before = resident(&balancer);

    write!(endpoint, "HTTP/1.1 200 OK\r\nContent-Length: {BODY_BYTES}\r\n\r\n").unwrap();
    let block = vec![b'.'; 64 * 1024];
    endpoint.set_nonblocking(true).unwrap();
    let mut sent = 0;
    // Until nothing has taken a byte for half a second: all buffers on the way are full.
    while sent < BODY_BYTES && is_writable(&endpoint) {
        match endpoint.write(&block[..block.len().min((BODY_BYTES - sent) as usize)]) {
            Ok(count) => sent += count as u64,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    let (stalled, peak_stalled) = (resident(&balancer), peak(&balancer));
    assert!(sent < BODY_BYTES, "the balancer took everything from the endpoint, although the client has read nothing");

    // Then the client continues to read, and misses nothing.
    let sending = std::thread::spawn(move || {
        endpoint.set_nonblocking(false).unwrap();
        while sent < BODY_BYTES {
            sent += endpoint.write(&block[..block.len().min((BODY_BYTES - sent) as usize)]).unwrap() as u64;
        }
        endpoint
    });
    let mut room = vec![0; 256 * 1024];
    let (mut head, mut received) = (Vec::new(), 0);
    while received < BODY_BYTES {
        let count = client.read(&mut room).unwrap();
        assert_ne!(count, 0, "cut off after {received} bytes");
        let mut body = &room[..count];
        if received == 0 {
            head.extend_from_slice(body);
            let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            body = &head[end + 4..];
        }
        assert!(body.iter().all(|byte| *byte == b'.'));
        received += body.len() as u64;
    }
    assert_eq!(received, BODY_BYTES);
    drop(sending.join().unwrap());
    eprintln!(
        "download of {BODY_BYTES} bytes that stalls after {sent}: RSS {} before, {} stalled, {} at most",
        kib(before),
        kib(stalled),
        kib(peak(&balancer))
    );
    assert!(peak_stalled.saturating_sub(before) < GROWTH_BYTES_MAX);
    assert!(peak(&balancer).saturating_sub(before) < GROWTH_BYTES_MAX);
}

#[test]
fn downloads_over_http2_that_nobody_takes() {
    const CONNECTIONS: usize = 3;
    const STREAMS: usize = 100;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let origin = Origin::start_at(local(0), "large", MIB);
    let (balancer, listen) = balancer_to(origin.address);
    let before = anonymous(&balancer);
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        // A stream takes a little more than a small buffer holds, and then nothing.
        let mut client = frames::Client::connect(listen, &[(frames::setting::INITIAL_WINDOW_SIZE, 20_000)]);
        client.send(&frames::window_update(0, 1 << 30));
        for _ in 0..STREAMS {
            client.open(&frames::block(&frames::GET), true);
        }
        clients.push(std::thread::spawn(move || client.end()));
    }
    let served = until(PATIENCE, || (origin.requests() >= (CONNECTIONS * STREAMS) as u64).then_some(()));
    assert!(served.is_some(), "{} requests", origin.requests());
    let each = settled(&balancer).saturating_sub(before) / (CONNECTIONS * STREAMS) as u64;
    assert!(clients.iter().all(|client| !client.is_finished()), "a connection was closed");
    eprintln!("streams that stall: {each} bytes each");
    assert!(each <= STALLED_STREAM_BYTES_MAX, "{each} bytes for each stream");
}

#[test]
fn downloads_from_an_http2_endpoint_that_nobody_takes() {
    const STREAMS: usize = 100;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let scratch = Scratch::new();
    let pki = Pki::new(scratch.path());
    pki.issue("server", &["localhost"]);
    let origin = bodies::Origin::start(bodies::Endpoint::H2, &pki.server("server"));
    let (balancer, listen) = balancer_of(&format!("protocol: h2c, endpoints: ['{}']", origin.address));
    let before = anonymous(&balancer);
    // A stream takes its head and no DATA.
    let mut client = frames::Client::connect(listen, &[(frames::setting::INITIAL_WINDOW_SIZE, 0)]);
    let path = format!("/length/{MIB}");
    let get =
        [(&b":method"[..], &b"GET"[..]), (b":scheme", b"http"), (b":authority", b"a"), (b":path", path.as_bytes())];
    for _ in 0..STREAMS {
        client.open(&frames::block(&get), true);
    }
    let client = std::thread::spawn(move || client.end());
    let served = until(PATIENCE, || (balancer.status()["clusters"][0]["requests"] == STREAMS).then_some(()));
    assert!(served.is_some(), "{}", balancer.status()["clusters"]);
    // It counts complete pieces, and two of them fit into a window.
    let sent = || origin.written.load(Relaxed);
    let is_full = until(PATIENCE, || (sent() >= (STREAMS * 2 * bodies::PIECE_BYTES) as u64).then_some(()));
    assert!(is_full.is_some(), "the endpoint has sent {} bytes", sent());
    let each = settled(&balancer).saturating_sub(before) / STREAMS as u64;
    assert!(!client.is_finished(), "the connection was closed");
    assert!(refused(&balancer) == 0.0, "{} were refused", refused(&balancer));
    eprintln!("streams of an HTTP/2 endpoint that stall: {each} bytes each");
    let expected = STALLED_H2_STREAM_BYTES_MIN..=STALLED_H2_STREAM_BYTES_MAX;
    assert!(expected.contains(&each), "{each} bytes for each stream");
}

#[test]
fn uploads_over_http2_that_nobody_reads() {
    const CONNECTIONS: u64 = 3;
    const STREAMS: u32 = 100;
    // One byte more than fits in a small buffer.
    const EACH_BYTES: usize = 16 * 1024 + 1;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // All but one wait for a connection to the endpoint, and nothing takes the bytes that they have sent.
    let (balancer, listen) = balancer_with(deaf(), "{connections: 1, pending_timeout: 60s}");
    let before = anonymous(&balancer);
    let words = uploads(STREAMS, EACH_BYTES);
    let clients: Vec<_> = (0..CONNECTIONS).map(|_| send(listen, &words)).collect();
    let waiting = CONNECTIONS * u64::from(STREAMS) - 1;
    let all_wait =
        until(PATIENCE, || (balancer.metric("steelyard_cluster_pending", &[]) == waiting as f64).then_some(()));
    assert!(all_wait.is_some(), "{} wait", balancer.metric("steelyard_cluster_pending", &[]));
    let held = settled(&balancer).saturating_sub(before);
    let each = held / CONNECTIONS;
    assert!(refused(&balancer) == 0.0, "{} were refused", refused(&balancer));
    eprintln!("connections with {STREAMS} uploads that stall: {} each", kib(each));
    drop(clients);
    // The bodies were accepted, and only the one that does not wait could go on to the endpoint.
    assert!(held >= waiting * EACH_BYTES as u64, "{} for all connections", kib(held));
    assert!(each <= STALLED_UPLOADS_BYTES_MAX, "{} for each connection", kib(each));
}

#[test]
fn downloads_over_http1_that_nobody_takes() {
    const CONNECTIONS: usize = 100;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let origin = Origin::start_at(local(0), "large", 16 * MIB);
    let (balancer, listen) = balancer_to(origin.address);
    let before = anonymous(&balancer);
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = TcpStream::connect(listen).unwrap();
            ask(&mut client);
            client
        })
        .collect();
    let served = until(PATIENCE, || (origin.requests() >= CONNECTIONS as u64).then_some(()));
    assert!(served.is_some(), "{} requests", origin.requests());
    let each = settled(&balancer).saturating_sub(before) / CONNECTIONS as u64;
    eprintln!("downloads that stall: {each} bytes each");
    drop(clients);
    assert!(each <= STALLED_DOWNLOAD_BYTES_MAX, "{each} bytes for each download");
}

#[test]
fn two_thousand_idle_connections() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Needed by this process, and by the balancer, which inherits the limit: two for each request under way, and some more.
    if !may_open(2 * IDLE_CONNECTIONS as u64 + 200) {
        return skip("two_thousand_idle_connections", "the hard limit of open files is too low");
    }
    let origin = Origin::start("x");
    let (mut balancer, listen) = balancer_to(origin.address);
    let before = resident(&balancer);
    let mut clients: Vec<_> = (0..IDLE_CONNECTIONS).map(|_| TcpStream::connect(listen).unwrap()).collect();
    for client in &mut clients {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(client);
        answer(client);
    }
    let mut rest = |requests: usize| {
        balancer.until("idle", |status| {
            let listener = &status["listeners"][0];
            listener["connections_open"] == IDLE_CONNECTIONS && listener["requests"] == requests
        });
        resident(&balancer)
    };
    let idle = rest(IDLE_CONNECTIONS);
    // First send all requests, and only then read the answers.
    clients.iter_mut().for_each(ask);
    clients.iter_mut().for_each(answer);
    let after_burst = rest(2 * IDLE_CONNECTIONS);
    let each = |bytes: u64| bytes.saturating_sub(before) / IDLE_CONNECTIONS as u64;
    eprintln!(
        "{IDLE_CONNECTIONS} idle connections: RSS {} before, {} with them ({} bytes each), {} after a request on all at once",
        kib(before),
        kib(idle),
        each(idle),
        kib(after_burst)
    );
    assert!(idle.saturating_sub(before) <= IDLE_BYTES_MAX, "{} bytes", idle.saturating_sub(before));
    // The allocator keeps the memory of a burst for the next one.
    assert!(each(peak(&balancer)) <= BURST_BYTES_MAX, "{} bytes for each request of a burst", each(peak(&balancer)));
}

/// Routes of a table that is large enough to be visible.
const ROUTES: usize = 10_000;

/// The number of tunnels, each of which begins under its own routing table.
const TABLES: usize = 12;

#[test]
fn tunnels_hold_no_tables() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let listener = TcpListener::bind(local(0)).unwrap();
    let (listen, endpoint) = (local(port()), listener.local_addr().unwrap());
    let config = |table: usize| {
        let routes: String =
            (0..ROUTES).map(|n| format!("      - {{hosts: a{n}-of-{table}.example.com, to: all}}\n")).collect();
        format!(
            "admin: {{admin}}
listeners:
  web:
    bind: '{listen}'
    protocol: http
    routes:
{routes}      - {{to: all}}
clusters:
  all: {{endpoints: ['{endpoint}']}}
"
        )
    };
    let mut balancer = Steelyard::serve(&config(0), 1);
    let mut tunnels: Vec<(TcpStream, TcpStream)> = Vec::new();
    let mut sizes = Vec::new();
    for table in 1..=TABLES {
        let mut client = TcpStream::connect(listen).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
        let (mut endpoint, _) = listener.accept().unwrap();
        until_head_ends(&mut endpoint);
        endpoint.write_all(b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
        until_head_ends(&mut client);
        tunnels.push((client, endpoint));
        balancer.reload(&config(table), |status| status["generation"] == table + 1);
        sizes.push(resident(&balancer));
    }
    let list: Vec<String> = sizes.iter().map(|bytes| kib(*bytes)).collect();
    eprintln!(
        "RSS after each of {TABLES} reloads of {ROUTES} routes, with a tunnel from before each: {}",
        list.join(", ")
    );
    // All of them continue.
    for (client, endpoint) in &mut tunnels {
        client.write_all(b"x").unwrap();
        endpoint.read_exact(&mut [0]).unwrap();
    }
    // The first few allocate the memory that is then reused.
    let (first, last) = (sizes[TABLES / 3 - 1], sizes[TABLES - 1]);
    assert!(last.saturating_sub(first) < TABLES_GROWTH_BYTES_MAX, "{} more", kib(last - first));
}

fn until_head_ends(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
}

fn ask(client: &mut TcpStream) {
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
}

fn answer(client: &mut TcpStream) {
    let mut answer = Vec::new();
    // The lab's body consists of dots.
    while !answer.windows(4).position(|four| four == b"\r\n\r\n").is_some_and(|end| answer[end..].contains(&b'.')) {
        let mut room = [0; 4096];
        let count = client.read(&mut room).unwrap();
        assert_ne!(count, 0, "closed");
        answer.extend_from_slice(&room[..count]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

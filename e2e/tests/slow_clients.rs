//! Clients that are never silent for long but never finish, either: they send a byte now and then. They transfer too little for the time
//! that the balancer waits for them, even though each byte restarts that wait.
//!
//! No client reaches this rate byte by byte, so the tests need no clock: each step is made after the effect of the one before has been
//! seen.
#![forbid(unsafe_code)]

#[path = "support/frames.rs"]
mod frames;
#[path = "support/grpc.rs"]
mod grpc;
mod support;

use std::net::SocketAddr;

use frames::{Client, GET, block, code, flag, frame, kind, setting, window_update};
use grpc::{Greeter, SAY_HELLO};
use support::{Origin, Steelyard, local, port};
use testkit::strict::ResponseTo;
use testkit::{PATIENCE, client, until};

/// A body that is not finished before the test is.
const LARGE_BYTES: u64 = 1 << 30;

const RATE: &str = "min_rate: {bytes: 1GiB, per: 1s, grace: 300ms}";

fn serve(origin: &Origin, listener: &str) -> (Steelyard, SocketAddr) {
    serve_to(&format!("endpoints: ['{}']", origin.address), listener)
}

fn serve_to(cluster: &str, listener: &str) -> (Steelyard, SocketAddr) {
    let address = local(port());
    let config = format!(
        "admin: {{admin}}
listeners:
  web: {{bind: '{address}', protocol: http, to: web, {listener}}}
clusters:
  web: {{{cluster}}}
"
    );
    (Steelyard::serve(&config, 1), address)
}

fn refused(balancer: &Steelyard, reason: &str) -> f64 {
    balancer.metric("steelyard_refused_total", &[("listener", "web"), ("reason", reason)])
}

#[test]
fn a_body_byte_by_byte() {
    let origin = Origin::start("o");
    let (balancer, address) = serve(&origin, RATE);
    let mut conn = client::connect("drip", address, None).unwrap();
    conn.send(format!("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGE_BYTES}\r\n\r\n").as_bytes()).unwrap();
    let told = until(PATIENCE, || {
        conn.send(b"x").unwrap();
        (!conn.unclaimed().unwrap().is_empty()).then_some(())
    });
    assert!(told.is_some(), "the client may continue for ever");
    assert_eq!(conn.response(ResponseTo::Other).unwrap().status, 408);
    assert_eq!((refused(&balancer, "body_too_slow"), refused(&balancer, "body_timeout")), (1.0, 0.0));
}

#[test]
fn a_body_byte_by_byte_over_http2() {
    let origin = Origin::start("o");
    let (balancer, address) = serve(&origin, RATE);
    let mut drip = Client::connect(address, &[]);
    let mut fields = GET;
    fields[0].1 = b"PUT";
    let stream = drip.open(&block(&fields), false);
    // A PING after each byte shows when the byte has been read.
    let status = loop {
        drip.send(&[frame(kind::DATA, 0, stream, b"x"), frame(kind::PING, 0, 0, b"has seen")].concat());
        let answered = drip.frame().expect("the connection ended");
        if answered.kind == kind::HEADERS && answered.stream == stream {
            let fields = drip.fields(&answered);
            break String::from_utf8(fields[0].1.clone()).unwrap();
        }
    };
    assert_eq!(status, "408");
    assert_eq!((refused(&balancer, "body_too_slow"), refused(&balancer, "body_timeout")), (1.0, 0.0));
}

#[test]
fn a_response_byte_by_byte_over_http2() {
    let origin = Origin::start_at(local(0), "large", LARGE_BYTES);
    let (balancer, address) = serve(&origin, RATE);
    let mut drip = Client::connect(address, &[(setting::INITIAL_WINDOW_SIZE, 0)]);
    let stream = drip.open(&block(&GET), true);
    let (mut got, mut reset) = (0, None);
    drip.send(&window_update(stream, 1));
    while reset.is_none() {
        let frame = drip.frame().expect("the connection ended");
        match frame.kind {
            kind::DATA => {
                got += frame.payload.len();
                drip.send(&[window_update(0, 1), window_update(stream, 1)].concat());
            }
            kind::RST_STREAM => reset = Some(u32::from_be_bytes(frame.payload[..4].try_into().unwrap())),
            _ => {}
        }
    }
    assert!(got > 1, "the bytes did not arrive slowly: {got} bytes");
    assert_eq!(reset, Some(code::CANCEL));
    assert_eq!((refused(&balancer, "read_too_slow"), refused(&balancer, "slow_read")), (1.0, 0.0));
}

#[test]
fn who_is_fast_enough_or_may_be_slow_is_served() {
    let check = |listener: &str| {
        let origin = Origin::start("o");
        let (balancer, address) = serve(&origin, listener);
        let mut conn = client::connect("drip", address, None).unwrap();
        conn.send(b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        for _ in 0..2_000 {
            conn.send(b"1\r\nx\r\n").unwrap();
        }
        conn.send(b"0\r\n\r\n").unwrap();
        assert_eq!(conn.response(ResponseTo::Other).unwrap().status, 200, "{listener}");
        assert_eq!(balancer.metric("steelyard_refused_total", &[("listener", "web")]), 0.0, "{listener}");
    };
    check("min_rate: {bytes: 1B, per: 1s, grace: 5s}");
    check("min_rate: off");
}

/// The head of an upload to a service.
fn upload(content_type: &[u8]) -> Vec<u8> {
    block(&[
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":authority", b"a.example"),
        (b":path", SAY_HELLO.as_bytes()),
        (b"content-type", content_type),
    ])
}

#[test]
fn a_call_of_grpc_may_pause_between_its_messages() {
    let greeter = Greeter::start("greeter");
    let (balancer, address) = serve_to(&format!("protocol: h2c, endpoints: ['{}']", greeter.address), RATE);
    let mut drip = Client::connect(address, &[]);
    let call = drip.open(&upload(b"application/grpc"), false);
    let other = drip.open(&upload(b"application/json"), false);
    // Both pause after a byte, until one of them was too slow.
    drip.send(&[call, other].map(|stream| frame(kind::DATA, 0, stream, b"x")).concat());
    let mut status = None;
    while status.is_none() {
        let answered = drip.frame().expect("the connection ended");
        if answered.kind == kind::HEADERS {
            let fields = drip.fields(&answered);
            assert_eq!(answered.stream, other, "{fields:?}");
            status = Some(fields[0].1.clone());
        }
    }
    assert_eq!(status.as_deref(), Some(&b"408"[..]));
    drip.send(&frame(kind::DATA, flag::END_STREAM, call, b""));
    assert_eq!(drip.answer(call).status, 200);
    assert_eq!(refused(&balancer, "body_too_slow"), 1.0);
    // If it cannot be a call, it is judged like any other request.
    let origin = Origin::start("o");
    let (balancer, address) = serve(&origin, RATE);
    let mut drip = Client::connect(address, &[]);
    let stream = drip.open(&upload(b"application/grpc"), false);
    assert_eq!(drip.answer(stream).status, 200);
    assert_eq!(refused(&balancer, "body_too_slow"), 1.0);
}

//! HTTP/2 peers that fall silent during a request: they get a PING, and are given up if they do not answer.
#![forbid(unsafe_code)]

#[path = "support/frames.rs"]
mod frames;
#[path = "support/sides.rs"]
mod sides;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;

use frames::{Frame, GET, block, flag, frame, kind, settings};
use sides::{Ask, Client, Side, Speaks, runtime};
use support::{Steelyard, local, port};
use testkit::{PATIENCE, until};

/// Short enough to be reached, and long enough for an answer.
const PING: &str = "ping: {after: 100ms, timeout: 1s}";

fn serve(listener: &str, cluster: &str, endpoints: &[SocketAddr]) -> (Steelyard, SocketAddr) {
    let address = local(port());
    let endpoints: Vec<String> = endpoints.iter().map(|endpoint| format!("'{endpoint}'")).collect();
    let config = format!(
        "admin: {{admin}}
listeners:
  web: {{bind: '{address}', protocol: http, to: web{listener}}}
clusters:
  web: {{protocol: h2c, endpoints: [{}]{cluster}}}
",
        endpoints.join(", ")
    );
    (Steelyard::serve(&config, 1), address)
}

fn refused(balancer: &Steelyard, reason: &str) -> f64 {
    balancer.metric("steelyard_refused_total", &[("listener", "web"), ("reason", reason)])
}

/// Sends a request that is never answered.
fn hang(address: SocketAddr) -> frames::Client {
    let mut client = frames::Client::connect(address, &[]);
    let mut fields = GET;
    fields[3].1 = b"/hang";
    client.open(&block(&fields), true);
    client
}

fn is_question(frame: &Frame) -> bool {
    frame.kind == kind::PING && frame.flags & flag::ACK == 0
}

#[test]
fn a_client_that_answers_is_waited_for_and_one_that_does_not_is_given_up() {
    let origin = Side::start(Speaks::H2);
    let (balancer, address) = serve(&format!(", {PING}"), "", &[origin.address]);
    let mut client = hang(address);
    for _ in 0..3 {
        let question = loop {
            let frame = client.frame().expect("the connection was given up although the client answers");
            if is_question(&frame) {
                break frame;
            }
        };
        client.send(&frame(kind::PING, flag::ACK, 0, &question.payload));
    }
    assert_eq!((refused(&balancer, "h2_ping_timeout"), origin.seen.cut.load(Relaxed)), (0.0, 0));
    // From here on it reads everything, and sends nothing.
    let mut questions = 0;
    while let Some(frame) = client.frame() {
        questions += u32::from(is_question(&frame));
    }
    assert_eq!((questions, refused(&balancer, "h2_ping_timeout")), (1, 1.0));
    // Its request is not served to the end.
    until(PATIENCE, || (origin.seen.cut.load(Relaxed) == 1).then_some(())).expect("a reset at the endpoint");
}

#[test]
fn a_client_is_not_asked_where_nobody_wants_it() {
    let origin = Side::start(Speaks::H2);
    let (balancer, address) =
        serve(", ping: off, idle_timeout: 300ms, stall_timeout: 300ms", ", response_timeout: 1s", &[origin.address]);
    let mut client = hang(address);
    // First the end of a request that reached another limit, and then the end of the connection.
    while let Some(frame) = client.frame() {
        assert!(!is_question(&frame) || &frame.payload == b"drain-rt", "{frame:?}");
    }
    assert_eq!((refused(&balancer, "response_timeout"), refused(&balancer, "h2_ping_timeout")), (1.0, 0.0));
}

/// An endpoint that starts HTTP/2 properly, and then only reads. Its thread ends with the test's process.
fn mute() -> SocketAddr {
    mute_with(&[])
}

/// The same with these settings.
fn mute_with(values: &'static [(u16, u32)]) -> SocketAddr {
    let listener = TcpListener::bind(local(0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.write_all(&settings(values)).unwrap();
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    address
}

#[test]
fn an_endpoint_that_does_not_answer_is_given_up_and_another_one_asked() {
    let (mute, origin) = (mute(), Side::start(Speaks::H2));
    let (balancer, address) = serve("", &format!(", {PING}"), &[mute, origin.address]);
    runtime().block_on(async {
        for speaks in [Speaks::H2, Speaks::H1] {
            let mut client = Client::connect(speaks, address).await;
            for _ in 0..2 {
                assert_eq!(client.ask(&Ask::get("/small")).await.unwrap().status, 200);
            }
        }
    });
    let failures = |endpoint: SocketAddr| {
        let labels = [("cluster", "web"), ("endpoint", &endpoint.to_string())];
        balancer.metric("steelyard_endpoint_failures_total", &labels)
    };
    assert!(failures(mute) >= 1.0);
    assert_eq!(failures(origin.address), 0.0);
}

#[test]
fn what_a_silent_endpoint_may_have_done_is_not_done_again() {
    let mute = mute();
    let (balancer, address) = serve("", &format!(", {PING}"), &[mute]);
    runtime().block_on(async {
        let mut client = Client::connect(Speaks::H2, address).await;
        assert_eq!(client.ask(&Ask::post("/count", b"body")).await.unwrap().status, 502);
    });
    assert_eq!(refused(&balancer, "upstream_ping_timeout"), 1.0);
}

#[test]
fn a_client_that_leaves_waits_for_no_stream() {
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let barren = mute_with(&[(MAX_CONCURRENT_STREAMS, 0)]);
    let (balancer, address) = serve("", ", limits: {pending_timeout: 1h}", &[barren]);
    let mut client = frames::Client::connect(address, &[]);
    let stream = client.open(&block(&GET), true);
    let connects = || balancer.metric("steelyard_cluster_connects_total", &[("cluster", "web")]);
    until(PATIENCE, || (connects() >= 1.0).then_some(())).expect("a connection");
    client.send(&frames::reset(stream, frames::code::CANCEL));
    until(PATIENCE, || (refused(&balancer, "client_reset") >= 1.0).then_some(())).expect("the request dropped");
}

#[test]
fn an_endpoint_that_allows_no_streams_is_waited_for_on_one_connection() {
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let barren = mute_with(&[(MAX_CONCURRENT_STREAMS, 0)]);
    let limits = ", limits: {pending_timeout: 300ms}";
    let status = |balancer_address| {
        runtime().block_on(async {
            let mut client = Client::connect(Speaks::H2, balancer_address).await;
            client.ask(&Ask::post("/count", b"body")).await.unwrap().status
        })
    };
    let (balancer, address) = serve("", limits, &[barren]);
    assert_eq!(status(address), 503);
    assert_eq!(refused(&balancer, "pending_timeout"), 1.0);
    assert_eq!(balancer.metric("steelyard_cluster_connects_total", &[("cluster", "web")]), 1.0);

    // Nothing was sent, so another endpoint serves the request, whatever its method.
    let origin = Side::start(Speaks::H2);
    let (balancer, address) = serve("", limits, &[barren, origin.address]);
    assert_eq!([status(address), status(address)], [200, 200]);
    assert_eq!(refused(&balancer, "pending_timeout"), 0.0);
}

//! gRPC through the whole binary: routes, balancing by call, how failures reach a client, deadlines, health, gRPC-Web, and counters.
//!
//! Clients and services speak HTTP/2 through the `h2` crate, which is not the implementation under test.
#![forbid(unsafe_code)]

#[path = "support/grpc.rs"]
mod grpc;
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use grpc::{BARE, BREAK, Called, Caller, ENOUGH, FAIL, Greeter, HANG, SAY_HELLO, SLEEP, STREAM, framed};
use serde_json::Value;
use support::{Scratch, Steelyard, local, port};
use testkit::strict::{Response, ResponseTo};
use testkit::{Exit, Signal, client, until};
use tls::Pki;

/// A balancer with one listener that has these routes and clusters.
struct Gateway {
    balancer: Steelyard,
    address: SocketAddr,
}

impl Gateway {
    fn serve(routes: &[&str], clusters: &str) -> Self {
        let address = local(port());
        let balancer = Steelyard::serve(&config(address, routes, clusters), 1);
        Self { balancer, address }
    }

    fn caller(&self) -> Caller {
        Caller::connect(self.address)
    }

    /// Calls of a method of `helloworld.Greeter` that ended with this status.
    fn counted(&self, method: &str, status: &str) -> f64 {
        let labels = [("listener", "l"), ("service", "helloworld.Greeter"), ("method", method), ("status", status)];
        self.balancer.metric("steelyard_grpc_calls_total", &labels)
    }

    fn refused(&self, reason: &str) -> f64 {
        self.balancer.metric("steelyard_refused_total", &[("listener", "l"), ("reason", reason)])
    }
}

fn config(address: SocketAddr, routes: &[&str], clusters: &str) -> String {
    let routes: String = routes.iter().map(|route| format!("      - {{{route}}}\n")).collect();
    format!(
        "admin: {{admin}}\nlisteners:\n  l:\n    bind: {address}\n    protocol: http\n    routes:\n{routes}clusters:\n{clusters}"
    )
}

/// A cluster of these services, with further keys.
fn cluster(name: &str, greeters: &[&Greeter], more: &str) -> String {
    let endpoints: Vec<String> = greeters.iter().map(|greeter| greeter.address.to_string()).collect();
    format!("  {name}: {{protocol: h2c, endpoints: [{}]{more}}}\n", endpoints.join(", "))
}

const ALL: &str = "grpc: helloworld.Greeter, to: greeter";

#[track_caller]
fn assert_ok(called: &Called, origin: &str, message: &[u8]) {
    let expect = Called {
        http_status: 200,
        origin: origin.to_owned(),
        content_type: "application/grpc+proto".to_owned(),
        body: framed(message).to_vec(),
        grpc_status: Some(0),
        grpc_message: String::new(),
        is_trailers_only: false,
        reset: None,
    };
    assert_eq!(called, &expect);
}

/// A failure that the balancer reports: a response of trailers only.
#[track_caller]
fn assert_failed(called: &Called, status: u16, message: &str) {
    let expect = Called {
        http_status: 200,
        origin: String::new(),
        content_type: "application/grpc".to_owned(),
        body: Vec::new(),
        grpc_status: Some(status),
        grpc_message: called.grpc_message.clone(),
        is_trailers_only: true,
        reset: None,
    };
    assert_eq!(called, &expect);
    assert!(called.grpc_message.starts_with(message), "{called:?}");
}

#[test]
fn clients_that_a_route_refuses_get_permission_denied() {
    let greeter = Greeter::start("one");
    let routes = ["grpc: helloworld.Greeter/SayHello, to: greeter, deny: 127.0.0.0/8", ALL];
    let gateway = Gateway::serve(&routes, &cluster("greeter", &[&greeter], ""));
    let caller = gateway.caller();
    assert_failed(&caller.call(SAY_HELLO, &[], &framed(b"x")), 7, "client_denied: ");
    assert_eq!(caller.converse(STREAM, &[b"one"]), ("one".to_owned(), Some(0)));
    assert_eq!(gateway.refused("client_denied"), 1.0);
}

#[test]
fn routes_name_services_and_methods() {
    let (unary, streams) = (Greeter::start("unary"), Greeter::start("streams"));
    let routes = ["grpc: helloworld.Greeter/SayHelloStream, to: streams", ALL];
    let clusters = cluster("greeter", &[&unary], "") + &cluster("streams", &[&streams], "");
    let gateway = Gateway::serve(&routes, &clusters);
    let caller = gateway.caller();
    assert_ok(&caller.call(SAY_HELLO, &[], &framed(b"hello")), "unary", b"hello");
    assert_eq!(caller.converse(STREAM, &[b"one", b"two", b"three"]), ("streams".to_owned(), Some(0)));
    // A message that is several windows long passes completely in both directions.
    let large = vec![b'x'; 1 << 20];
    assert_ok(&caller.call(SAY_HELLO, &[], &framed(&large)), "unary", &large);

    let no_route = "no_route: ";
    assert_failed(&caller.call("/helloworld.Other/SayHello", &[], &framed(b"x")), 12, no_route);
    assert_eq!(gateway.refused("no_route"), 1.0);
    // For other clients the route does not exist, and the request is refused as HTTP.
    let other = caller.call(SAY_HELLO, &[("content-type", "application/json")], b"{}");
    assert_eq!((other.http_status, other.grpc_status), (404, None));
}

#[test]
fn calls_of_one_connection_go_to_all_endpoints() {
    let greeters = [Greeter::start("a"), Greeter::start("b"), Greeter::start("c")];
    let endpoints: Vec<&Greeter> = greeters.iter().collect();
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &endpoints, ""));
    let caller = gateway.caller();
    let origins = |called: &[Called]| {
        let mut origins = BTreeMap::new();
        for call in called {
            assert_eq!(call.grpc_status, Some(0), "{call:?}");
            *origins.entry(call.origin.clone()).or_insert(0) += 1;
        }
        origins
    };
    let called: Vec<Called> = (0..10).flat_map(|_| caller.calls(30, SAY_HELLO, &[], &framed(b"x"))).collect();
    assert_eq!(origins(&called), BTreeMap::from(["a", "b", "c"].map(|name| (name.to_owned(), 100))));
    for greeter in &greeters {
        // Streams, not connections, make the load: one connection carries 30 at once.
        assert_eq!(greeter.seen.connections.load(Relaxed), 1);
    }

    // A new endpoint gets its share of the calls of the same connection from the first one on.
    let new = Greeter::start("d");
    let with_new = cluster("greeter", &[endpoints.as_slice(), &[&new]].concat(), "");
    let mut gateway = gateway;
    gateway.balancer.reload(&config(gateway.address, &[ALL], &with_new), |status| status["generation"] == 2);
    assert_eq!(origins(&caller.calls(40, SAY_HELLO, &[], &framed(b"x"))).get("d"), Some(&10));
}

#[test]
fn upstream_connections_grow_with_the_limit_of_streams() {
    let greeter = Greeter::start("a");
    let more = ", limits: {streams_per_connection: 4}";
    let gateway = Gateway::serve(
        &["grpc: helloworld.Greeter, to: greeter, timeout: 10s"],
        &cluster("greeter", &[&greeter], more),
    );
    let called = gateway.caller().calls(20, SLEEP, &[("grpc-timeout", "300m")], &framed(b"x"));
    assert!(called.iter().all(|call| call.grpc_status == Some(4)), "{called:?}");
    assert_eq!((greeter.calls(), greeter.seen.connections.load(Relaxed)), (20, 5));
}

#[test]
fn failures_are_statuses_of_grpc() {
    let greeter = Greeter::start("a");
    let nobody = local(port());
    let routes = [
        "grpc: gone.Service, to: gone",
        "grpc: full.Service, to: full",
        "grpc: helloworld.Greeter/Sleep, to: greeter, timeout: 100ms",
        ALL,
    ];
    let clusters = cluster("greeter", &[&greeter], "")
        + &cluster("full", &[&greeter], ", limits: {connections: 1, pending: 0}")
        + &format!("  gone: {{protocol: h2c, endpoints: [{nobody}]}}\n");
    let gateway = Gateway::serve(&routes, &clusters);
    let caller = gateway.caller();
    assert_failed(&caller.call("/gone.Service/Get", &[], &framed(b"x")), 14, "Bad Gateway");
    assert_failed(&caller.call(SLEEP, &[], &framed(b"x")), 4, "Gateway Timeout");
    // The endpoint's own status is passed on unchanged.
    let failed = caller.call(FAIL, &[("x-status", "7")], &framed(b"x"));
    assert_eq!((failed.grpc_status, failed.grpc_message.as_str()), (Some(7), "as you asked"));
    assert!(failed.is_trailers_only && failed.origin == "a");
    // An HTTP response is reported by its meaning.
    assert_failed(&caller.call(BARE, &[], &framed(b"x")), 14, "upstream_not_grpc: HTTP status 502");
    assert_eq!(gateway.refused("upstream_not_grpc"), 1.0);
    // One of these counts against the endpoint; failures that a client can cause at will do not.
    let address = greeter.address.to_string();
    let failures = || {
        gateway.balancer.metric("steelyard_endpoint_failures_total", &[("cluster", "greeter"), ("endpoint", &address)])
    };
    let before = failures();
    for status in ["3", "12", "13"] {
        caller.call(FAIL, &[("x-status", status)], &framed(b"x"));
    }
    assert_eq!(failures(), before + 1.0);
    // The connection has survived all of that.
    assert_ok(&caller.call(SAY_HELLO, &[], &framed(b"x")), "a", b"x");
}

#[test]
fn a_response_that_breaks_off_ends_with_a_status() {
    let greeter = Greeter::start("a");
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], ""));
    let broken = gateway.caller().call_slowly(BREAK, &[], &framed(b"x"));
    assert_eq!((broken.http_status, broken.body.as_slice()), (200, &framed(b"half")[..]), "{broken:?}");
    assert_eq!((broken.grpc_status, broken.reset), (Some(14), None), "{broken:?}");
    assert!(broken.grpc_message.starts_with("Bad Gateway"), "{broken:?}");
}

#[test]
fn a_deadline_or_a_drain_within_a_response_is_told_behind_it() {
    let greeter = Greeter::start("a");
    let config = |gateway: &Gateway| {
        format!("drain_timeout: 500ms\n{}", config(gateway.address, &[ALL], &cluster("greeter", &[&greeter], "")))
    };
    let mut gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], ""));
    gateway.balancer.reload(&config(&gateway), |status| status["generation"] == 2);
    let ended = |called: &Called, status: u16, message: &str| {
        assert_eq!((called.body.as_slice(), called.grpc_status), (&framed(b"half")[..], Some(status)), "{called:?}");
        assert!(called.grpc_message.starts_with(message) && !called.is_trailers_only, "{called:?}");
    };
    let caller = gateway.caller();
    ended(&caller.call(HANG, &[("grpc-timeout", "100m")], &framed(b"x")), 4, "Gateway Timeout");
    let calls = greeter.calls();
    let called = std::thread::scope(|scope| {
        let hanging = scope.spawn(|| caller.call(HANG, &[], &framed(b"x")));
        until(testkit::PATIENCE, || (greeter.calls() == calls + 1).then_some(())).expect("the call");
        gateway.balancer.program.signal(Signal::TERM).unwrap();
        hanging.join().unwrap()
    });
    ended(&called, 14, "Service Unavailable");
    assert_eq!(gateway.balancer.program.exit_within(testkit::PATIENCE).unwrap(), Exit::Code(0));
}

#[test]
fn a_call_is_over_with_its_status() {
    let greeter = Greeter::start("a");
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], ""));
    // A client that would continue, if it were not told otherwise.
    let called = gateway.caller().call_slowly(ENOUGH, &[], &framed(b"x"));
    assert_eq!((called.grpc_status, called.body.len(), called.reset), (Some(0), 0, None), "{called:?}");
    until(testkit::PATIENCE, || (gateway.counted("Enough", "OK") == 1.0).then_some(())).expect("a count");
}

#[test]
fn endpoints_within_tls_are_asked_and_probed_there() {
    let scratch = Scratch::new();
    let pki = Pki::new(scratch.path());
    pki.issue("greeter", &["greeter.example.com"]);
    let greeter = Greeter::start_tls("a", &pki.server("greeter"));
    let clusters = format!(
        "  greeter:\n    protocol: h2\n    endpoints: [{}]\n    tls: {{ca: {}, server_name: greeter.example.com}}\n    \
         health_check: {{grpc: helloworld.Greeter, interval: 20ms, unhealthy_after: 1, healthy_after: 1}}\n",
        greeter.address,
        pki.path("ca.pem").display()
    );
    let mut gateway = Gateway::serve(&[ALL], &clusters);
    assert_ok(&gateway.caller().call(SAY_HELLO, &[], &framed(b"x")), "a", b"x");
    greeter.seen.is_serving.store(false, Relaxed);
    let why = |status: &Value| status["clusters"][0]["endpoints"][0]["why"] == "NOT_SERVING";
    gateway.balancer.until("probed over TLS", why);
}

#[test]
fn more_than_a_cluster_takes_is_unavailable() {
    let greeter = Greeter::start("a");
    let more = ", limits: {connections: 1, pending: 0, streams_per_connection: 2}";
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], more));
    let called = gateway.caller().calls(5, SLEEP, &[("grpc-timeout", "300m")], &framed(b"x"));
    let of = |status| called.iter().filter(|call| call.grpc_status == Some(status)).count();
    assert_eq!(of(14) + of(4), 5, "{called:?}");
    assert!(of(14) > 0 && of(4) > 0, "{called:?}");
    assert_eq!(gateway.refused("pending_full"), of(14) as f64);
}

#[test]
fn a_deadline_is_kept_and_passed_on() {
    let greeter = Greeter::start("a");
    let routes = ["grpc: helloworld.Greeter/SayHello, to: greeter, timeout: 2s", ALL];
    let gateway = Gateway::serve(&routes, &cluster("greeter", &[&greeter], ""));
    let caller = gateway.caller();
    let check = |path: &str, fields: &[(&str, &str)], ms: std::ops::RangeInclusive<u64>| {
        assert_eq!(caller.call(path, fields, &framed(b"x")).grpc_status, Some(0));
        let told = greeter.seen.field("grpc-timeout").unwrap();
        let told: u64 = told.strip_suffix('m').unwrap().parse().unwrap();
        assert!(ms.contains(&told), "{path} {fields:?}: {told} ms");
    };
    // The client's own timeout; the route's if the client waits longer; the route's if the client sends none.
    check(SAY_HELLO, &[("grpc-timeout", "1500m")], 1..=1500);
    check(SAY_HELLO, &[("grpc-timeout", "1M")], 1..=2000);
    check(SAY_HELLO, &[], 1..=2000);
    check(SAY_HELLO, &[("grpc-timeout", "1000000u")], 1..=1000);
    assert_eq!(caller.converse(STREAM, &[b"x"]), ("a".to_owned(), Some(0)));
    assert_eq!(greeter.seen.field("grpc-timeout"), None, "neither the client nor the route set a timeout");

    assert_failed(&caller.call(SLEEP, &[("grpc-timeout", "50m")], &framed(b"x")), 4, "Gateway Timeout");
    // The endpoint learns that nothing waits for the answer any more.
    until(testkit::PATIENCE, || (greeter.seen.cancelled.load(Relaxed) == 1).then_some(())).expect("a reset");
}

#[test]
fn a_call_that_waited_tells_what_is_left() {
    let greeter = Greeter::start("a");
    let more = ", limits: {connections: 1, streams_per_connection: 1}";
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], more));
    let (first, second) = (gateway.caller(), gateway.caller());
    let calls = &greeter.seen.calls;
    let called = std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            until(testkit::PATIENCE, || (calls.load(Relaxed) == 1).then_some(())).expect("the first call");
            second.call(SAY_HELLO, &[("grpc-timeout", "50S")], &framed(b"x"))
        });
        // It holds the connection until the other call has been seen to wait, several times.
        let is_waiting = || gateway.balancer.metric("steelyard_cluster_pending", &[("cluster", "greeter")]) == 1.0;
        first.cancel(SLEEP, || calls.load(Relaxed) == 1 && (0..5).all(|_| is_waiting()));
        waiting.join().unwrap()
    });
    assert_ok(&called, "a", b"x");
    let told = greeter.seen.field("grpc-timeout").unwrap();
    let told: u64 = told.strip_suffix('m').unwrap().parse().unwrap();
    assert!((1..50_000).contains(&told), "{told} ms");
}

#[test]
fn a_cancelled_call_is_cancelled_at_its_endpoint() {
    let greeter = Greeter::start("a");
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], ""));
    gateway.caller().cancel(SLEEP, || greeter.calls() == 1);
    until(testkit::PATIENCE, || (greeter.seen.cancelled.load(Relaxed) == 1).then_some(())).expect("a reset");
    until(testkit::PATIENCE, || (gateway.counted("*", "CANCELLED") == 1.0).then_some(())).expect("a count");
}

#[test]
fn health_by_the_protocol_of_grpc() {
    let (steady, ill) = (Greeter::start("steady"), Greeter::start("ill"));
    let more = ", health_check: {grpc: helloworld.Greeter, interval: 20ms, unhealthy_after: 1, healthy_after: 1}";
    let mut gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&steady, &ill], more));
    let caller = gateway.caller();
    let origins = || {
        let called = caller.calls(20, SAY_HELLO, &[], &framed(b"x"));
        called.iter().filter(|call| call.grpc_status == Some(0) && call.origin == "ill").count()
    };
    assert_eq!(origins(), 10);
    let address = ill.address.to_string();
    let endpoint = |status: &Value| {
        let endpoints = status["clusters"][0]["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints.into_iter().find(|endpoint| endpoint["address"] == address.as_str()).unwrap_or_default()
    };
    ill.seen.is_serving.store(false, Relaxed);
    let status = gateway.balancer.until("down", |status| endpoint(status)["state"] == "unhealthy");
    assert_eq!(endpoint(&status)["why"], "NOT_SERVING");
    assert_eq!(origins(), 0);
    ill.seen.is_serving.store(true, Relaxed);
    gateway.balancer.until("up", |status| endpoint(status)["state"] == "healthy");
    assert_eq!(origins(), 10);
}

#[test]
fn calls_are_counted_by_method() {
    let greeter = Greeter::start("a");
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], ""));
    let caller = gateway.caller();
    caller.calls(3, SAY_HELLO, &[], &framed(b"x"));
    caller.call(FAIL, &[("x-status", "9")], &framed(b"x"));
    caller.call(BARE, &[], &framed(b"x"));
    caller.calls(2, "/helloworld.Greeter/NoSuch", &[], &framed(b"x"));
    for (method, status, expect) in [
        ("SayHello", "OK", 3.0),
        ("SayHello", "UNKNOWN", 0.0),
        ("Fail", "FAILED_PRECONDITION", 1.0),
        // A method that no endpoint knows gets no name, because clients could make up any number of them.
        ("*", "UNIMPLEMENTED", 2.0),
        ("*", "UNAVAILABLE", 1.0),
        ("NoSuch", "UNIMPLEMENTED", 0.0),
    ] {
        assert_eq!(gateway.counted(method, status), expect, "{method} {status}");
    }
    let labels = [("listener", "l"), ("service", "helloworld.Greeter"), ("method", "SayHello")];
    assert_eq!(gateway.balancer.metric("steelyard_grpc_call_seconds_count", &labels), 3.0);
    let shown = gateway.balancer.ask(&["status"]).stdout;
    assert!(shown.contains("helloworld.Greeter/SayHello"), "{shown}");
    assert!(shown.contains("2 UNIMPLEMENTED, 1 UNAVAILABLE"), "{shown}");
}

/// A gRPC-Web request over HTTP/1.1.
fn web(gateway: &Gateway, path: &str, content_type: &str, body: &[u8]) -> Response {
    let mut conn = client::connect("browser", gateway.address, None).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {content_type}\r\nX-Grpc-Web: 1\r\nContent-Length: {}\r\n\r\n",
        gateway.address,
        body.len()
    );
    conn.send(&[head.as_bytes(), body].concat()).unwrap();
    conn.response(ResponseTo::Other).unwrap()
}

fn field<'r>(response: &'r Response, name: &str) -> &'r str {
    let named = response.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    named.and_then(|field| str::from_utf8(&field.value).ok()).unwrap_or_default()
}

const WEB: &str = "application/grpc-web+proto";
const WEB_TEXT: &str = "application/grpc-web-text+proto";

#[test]
fn grpc_web_is_translated() {
    let greeter = Greeter::start("a");
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], ""));
    let answer = web(&gateway, SAY_HELLO, WEB, &framed(b"hello"));
    assert_eq!((answer.status, field(&answer, "content-type")), (200, WEB));
    assert_eq!(answer.body, [&framed(b"hello")[..], b"\x80\0\0\0\x0fgrpc-status:0\r\n"].concat());
    let seen = |name: &str| greeter.seen.field(name).unwrap_or_default();
    assert_eq!((seen("content-type"), seen("te")), ("application/grpc+proto".to_owned(), "trailers".to_owned()));

    // `\0\0\0\0\x05hello`, followed by the trailers.
    let answer = web(&gateway, SAY_HELLO, WEB_TEXT, b"AAAAAAVoZWxsbw==");
    assert_eq!((answer.status, field(&answer, "content-type")), (200, WEB_TEXT));
    assert_eq!(String::from_utf8_lossy(&answer.body), "AAAAAAVoZWxsbw==gAAAAA9ncnBjLXN0YXR1czowDQo=");

    // Failures are in the head, whether the endpoint or the balancer reports them.
    let answer = web(&gateway, FAIL, WEB, &framed(b"x"));
    assert_eq!((answer.status, field(&answer, "grpc-status"), answer.body.len()), (200, "2", 0));
    let answer = web(&gateway, BARE, WEB, &framed(b"x"));
    assert_eq!((answer.status, field(&answer, "grpc-status"), field(&answer, "content-type")), (200, "14", WEB));
    let answer = web(&gateway, "/other.Service/Get", WEB_TEXT, b"");
    assert_eq!((answer.status, field(&answer, "grpc-status"), field(&answer, "content-type")), (200, "12", WEB_TEXT));
    let answer = web(&gateway, SAY_HELLO, WEB_TEXT, b"not base64");
    assert_eq!((answer.status, field(&answer, "grpc-status")), (200, "13"));
}

#[test]
fn grpc_web_over_http2() {
    let greeter = Greeter::start("a");
    let gateway = Gateway::serve(&[ALL], &cluster("greeter", &[&greeter], ""));
    let caller = gateway.caller();
    let called = caller.call(SAY_HELLO, &[("content-type", WEB)], &framed(b"hello"));
    assert_eq!((called.http_status, called.content_type.as_str(), called.grpc_status), (200, WEB, None));
    assert_eq!(called.body, [&framed(b"hello")[..], b"\x80\0\0\0\x0fgrpc-status:0\r\n"].concat());
    let broken = caller.call_slowly(BREAK, &[("content-type", WEB)], &framed(b"x"));
    assert!(broken.body.starts_with(&framed(b"half")), "{broken:?}");
    let trailers = String::from_utf8_lossy(&broken.body[framed(b"half").len()..]).into_owned();
    assert!(trailers.contains("grpc-status:14\r\n"), "{trailers:?}");
    assert_eq!(gateway.counted("SayHello", "OK"), 1.0);
}

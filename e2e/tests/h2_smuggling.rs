//! Requests in HTTP/2 that would be two requests, or a different one, in HTTP/1.1: none of them reaches the endpoint in any form.
//!
//! The endpoint reads HTTP/1.1 to the letter and shares no code with the balancer. After each attempt, the test sends another request over
//! the same connection, which must be the first complete request that the endpoint gets.
#![forbid(unsafe_code)]

#[path = "support/frames.rs"]
mod frames;
mod support;

use std::net::SocketAddr;

use frames::{Client, code, flag, frame, headers, kind};
use support::{Steelyard, local, port};
use testkit::{Origin, PATIENCE, strict, until};

/// Names and values as bytes, because no string could hold them.
type Fields<'f> = &'f [(&'f [u8], &'f [u8])];

/// A description of the fault, and a head.
struct Attempt<'f>(&'f str, Vec<(&'f [u8], &'f [u8])>);

struct Scene {
    balancer: Steelyard,
    address: SocketAddr,
    origin: Origin,
    /// The number of the origin's connections that are read.
    connections: usize,
}

impl Scene {
    fn start() -> Self {
        let (address, origin) = (local(port()), Origin::listen("origin").unwrap());
        let config = format!(
            "admin: {{admin}}\nlisteners:\n  web: {{bind: '{address}', protocol: http, to: all}}\nclusters:\n  all: {{endpoints: ['{}'], outlier: off}}\n",
            origin.address()
        );
        Self { balancer: Steelyard::serve(&config, 1), address, origin, connections: 1 }
    }

    /// Sends `/after` over this connection, which must be the next complete request at the origin.
    #[track_caller]
    fn goes_on(&mut self, name: &str, client: &mut Client) {
        let stream = client.open(&frames::block(&with(&GET, b":path", b"/after")), true);
        loop {
            let conn = self.origin.connection(self.connections).unwrap();
            match conn.request() {
                // It is complete as its head says; the bytes after it were refused.
                Ok(request) if request.method == "POST" && request.target == "/" && request.body.is_empty() => {
                    assert_eq!(strict::values(&request.headers, "content-length"), [b"0"], "{name}: {request:?}");
                    self.connections += 1;
                }
                Ok(request) => {
                    assert_eq!(request.target, "/after", "{name}: {request:?}");
                    conn.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
                    break;
                }
                // A request that was begun before the balancer knew, and cut off, counts as none.
                Err(failure) => {
                    conn.no_whole_request().unwrap_or_else(|whole| panic!("{name}: {whole}; {failure}"));
                    self.connections += 1;
                }
            }
        }
        let answer = client.answer(stream);
        assert_eq!((answer.status, &*answer.body), (200, &b"ok"[..]), "{name}");
    }

    #[track_caller]
    fn is_counted(&self, name: &str, reason: &str, at_least: f64) {
        let labels = [("listener", "web"), ("reason", reason)];
        let counted = || self.balancer.metric("steelyard_refused_total", &labels) >= at_least;
        if until(PATIENCE, || counted().then_some(())).is_none() {
            panic!("{name}: not counted as {reason}, but {}", self.balancer.status()["listeners"][0]["refused"]);
        }
    }
}

const GET: [(&[u8], &[u8]); 4] = frames::GET;

/// The fields with another value for one of them.
fn with<'f>(fields: Fields<'f>, name: &[u8], value: &'f [u8]) -> Vec<(&'f [u8], &'f [u8])> {
    fields.iter().map(|&(other, old)| (other, if other == name { value } else { old })).collect()
}

/// The fields without one of them.
fn without<'f>(fields: Fields<'f>, name: &[u8]) -> Vec<(&'f [u8], &'f [u8])> {
    fields.iter().copied().filter(|(other, _)| *other != name).collect()
}

/// Heads of requests without a body. Each must be refused with a stream error and counted.
#[track_caller]
fn check_heads(reason: &str, attempts: &[Attempt<'_>]) {
    let mut scene = Scene::start();
    let mut client = Client::connect(scene.address, &[]);
    for (index, Attempt(name, fields)) in attempts.iter().enumerate() {
        let stream = client.open(&frames::block(fields), true);
        assert_eq!(client.reset_of(stream), code::PROTOCOL_ERROR, "{name}");
        scene.is_counted(name, reason, (index + 1) as f64);
        scene.goes_on(name, &mut client);
    }
}

#[test]
fn fields_of_one_connection() {
    // H2.TE, and other fields that would frame or control the next hop (RFC 9113 section 8.2.2).
    let also = |name: &'static [u8], value: &'static [u8]| [&GET[..], &[(name, value)]].concat();
    check_heads(
        "h2_connection_field",
        &[
            Attempt("transfer-encoding", also(b"transfer-encoding", b"chunked")),
            Attempt("transfer-encoding, empty", also(b"transfer-encoding", b"")),
            Attempt("connection", also(b"connection", b"close")),
            Attempt("keep-alive", also(b"keep-alive", b"1")),
            Attempt("proxy-connection", also(b"proxy-connection", b"keep-alive")),
            Attempt("upgrade", also(b"upgrade", b"h2c")),
            Attempt("te", also(b"te", b"trailers, chunked")),
        ],
    );
}

#[test]
fn line_ends_and_other_bytes() {
    let also = |name: &'static [u8], value: &'static [u8]| [&GET[..], &[(name, value)]].concat();
    check_heads(
        "h2_field",
        &[
            Attempt("CR LF in a value", also(b"x", b"a\r\ntransfer-encoding: chunked")),
            Attempt("LF in a value", also(b"x", b"a\ny: b")),
            Attempt("CR in a value", also(b"x", b"a\rb")),
            Attempt("NUL in a value", also(b"x", b"a\0b")),
            Attempt("space before a value", also(b"x", b" a")),
            Attempt("tab behind a value", also(b"x", b"a\t")),
            Attempt("CR LF in a name", also(b"x\r\ny", b"a")),
            Attempt("colon in a name", also(b"x: y", b"a")),
            Attempt("colon at the end of a name", also(b"transfer-encoding:", b"chunked")),
            Attempt("space in a name", also(b"x y", b"a")),
            Attempt("space behind a name", also(b"transfer-encoding ", b"chunked")),
            Attempt("an upper-case name", also(b"Transfer-Encoding", b"chunked")),
            Attempt("no name", also(b"", b"a")),
            Attempt("a path with a request in it", with(&GET, b":path", b"/ HTTP/1.1\r\nhost: b\r\n\r\nGET /admin")),
            Attempt(
                "a method with a request in it",
                with(&GET, b":method", b"GET /admin HTTP/1.1\r\nhost: a\r\n\r\nGET"),
            ),
            Attempt("an authority with a line end", with(&GET, b":authority", b"a\r\nx: y")),
            Attempt("a scheme with a line end", with(&GET, b":scheme", b"http\r\nx: y")),
        ],
    );
}

#[test]
fn pseudo_header_fields() {
    let also = |name: &'static [u8], value: &'static [u8]| [&GET[..], &[(name, value)]].concat();
    let before = |name: &'static [u8], value: &'static [u8]| [&[(name, value)], &GET[..]].concat();
    let path = |value: &'static [u8]| with(&GET, b":path", value);
    let method = |value: &'static [u8]| with(&GET, b":method", value);
    check_heads(
        "h2_pseudo_header",
        &[
            Attempt("no method", without(&GET, b":method")),
            Attempt("no path", without(&GET, b":path")),
            Attempt("no scheme", without(&GET, b":scheme")),
            Attempt("two paths", also(b":path", b"/admin")),
            Attempt("two methods", also(b":method", b"POST")),
            Attempt("behind a field", [&GET[..3], &[(b"x", b"y"), GET[3]]].concat()),
            Attempt("unknown", also(b":proxy", b"x")),
            Attempt("of a response", also(b":status", b"200")),
            Attempt("protocol without CONNECT", also(b":protocol", b"websocket")),
            Attempt("an empty path", path(b"")),
            Attempt("a path without a slash", path(b"admin")),
            Attempt("a path that is a URI", path(b"http://a.example/")),
            Attempt("a path with a space", path(b"/ HTTP/1.1")),
            Attempt("a path with a tab", path(b"/\tx")),
            Attempt("a path with a fragment", path(b"/#x")),
            Attempt("an asterisk for GET", path(b"*")),
            Attempt("a method with a space", method(b"GET /admin")),
            Attempt("an empty method", method(b"")),
            Attempt("a scheme with a host in it", with(&GET, b":scheme", b"http://b.example/x?")),
            Attempt("a field in front", before(b"x", b"y")),
        ],
    );
}

#[test]
fn authorities() {
    let also = |name: &'static [u8], value: &'static [u8]| [&GET[..], &[(name, value)]].concat();
    let authority = |value: &'static [u8]| with(&GET, b":authority", value);
    check_heads(
        "h2_authority",
        &[
            Attempt("none", without(&GET, b":authority")),
            Attempt("an empty one", authority(b"")),
            Attempt("with a space", authority(b"a b")),
            Attempt("with a path", authority(b"a.example/x")),
            Attempt("with user information", authority(b"u@a.example")),
            Attempt("two", authority(b"a.example,b.example")),
            Attempt("another host", also(b"host", b"b.example")),
            Attempt("two hosts", [&without(&GET, b":authority")[..], &[(b"host", b"a"), (b"host", b"b")]].concat()),
        ],
    );
}

#[test]
fn lengths() {
    // H2.CL: a length that differs from the body's.
    let also = |value: &'static [u8]| [&with(&GET, b":method", b"POST")[..], &[(b"content-length", value)]].concat();
    let twice = [&also(b"0")[..], &[(b"content-length", b"5")]].concat();
    check_heads(
        "h2_content_length",
        &[
            Attempt("a length without a body", also(b"5")),
            Attempt("none", also(b"")),
            Attempt("a sign", also(b"+0")),
            Attempt("a list", also(b"0, 0")),
            Attempt("hexadecimal", also(b"0x0")),
            Attempt("below zero", also(b"-1")),
            Attempt("beyond 64 bits", also(b"18446744073709551616")),
            Attempt("twice", twice),
        ],
    );
    let mut scene = Scene::start();
    let mut client = Client::connect(scene.address, &[]);
    let smuggled = b"GET /admin HTTP/1.1\r\nhost: a\r\n\r\n";
    let mut count = 0.0;
    for (name, length) in
        [("a body where there is none", &b"0"[..]), ("a longer body", b"3"), ("a shorter body", b"1000")]
    {
        let stream = client.next;
        client.next += 2;
        let block = frames::block(&[&with(&GET, b":method", b"POST")[..], &[(b"content-length", length)]].concat());
        client.send(&[headers(stream, false, &block), frame(kind::DATA, flag::END_STREAM, stream, smuggled)].concat());
        assert_eq!(client.reset_of(stream), code::PROTOCOL_ERROR, "{name}");
        count += 1.0;
        scene.is_counted(name, "h2_content_length", count);
        scene.goes_on(name, &mut client);
    }
}

#[test]
fn trailers() {
    let check = |name: &str, reason: &str, fields: Fields<'_>, end: bool| {
        let mut scene = Scene::start();
        let mut client = Client::connect(scene.address, &[]);
        let stream = client.next;
        client.next += 2;
        let post = headers(stream, false, &frames::block(&with(&GET, b":method", b"POST")));
        client.send(&[post, headers(stream, end, &frames::block(fields))].concat());
        assert_eq!(client.reset_of(stream), code::PROTOCOL_ERROR, "{name}");
        scene.is_counted(name, reason, 1.0);
        scene.goes_on(name, &mut client);
    };
    check("that end nothing", "h2_trailers", &[(b"x", b"y")], false);
    check("with a length", "h2_trailers", &[(b"content-length", b"5")], true);
    check("with a host", "h2_trailers", &[(b"host", b"b.example")], true);
    check("with a framing", "h2_connection_field", &[(b"transfer-encoding", b"chunked")], true);
    check("with a path", "h2_pseudo_header", &[(b":path", b"/admin")], true);
    check("with a line end", "h2_field", &[(b"x", b"a\r\nb: c")], true);
}

#[test]
fn what_is_one_request_stays_one() {
    // The reverse: bodies that look like requests stay bodies, however they are framed.
    let mut scene = Scene::start();
    let mut client = Client::connect(scene.address, &[]);
    let inner = b"0\r\n\r\nGET /admin HTTP/1.1\r\nhost: a\r\n\r\n";
    let length = inner.len().to_string();
    for more in [&[][..], &[(&b"content-length"[..], length.as_bytes())]] {
        let stream = client.next;
        client.next += 2;
        let block = frames::block(&[&with(&GET, b":method", b"POST")[..], more].concat());
        client.send(&[headers(stream, false, &block), frame(kind::DATA, flag::END_STREAM, stream, inner)].concat());
        let conn = scene.origin.connection(1).unwrap();
        let request = conn.request().unwrap();
        assert_eq!((&*request.method, &*request.target, &*request.body), ("POST", "/", &inner[..]));
        conn.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").unwrap();
        assert_eq!(client.answer(stream).status, 200);
        scene.goes_on("a body like a request", &mut client);
    }
}

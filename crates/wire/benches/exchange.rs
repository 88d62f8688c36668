//! Repeats one HTTP/2 exchange in memory, for a tool that counts instructions. That count is the same on a busy host.
//!
//! It measures the codec's work for a request that a proxy passes on: writing and reading a request's head of 8 fields, a response's head
//! of 3, and 12 bytes of DATA, with 32 streams at a time. `same`: each request is like the last. `paths`: each has another `:path`.
//! `tenants`: eight clients take turns on the connection, each with its own address, user agent and path.
//!
//! `cargo xtask bench wire --instructions` runs it twice under callgrind with different counts, so that the instructions before the first
//! exchange cancel out.

use std::hint::black_box;

use wire::h2::{Connection, Event, HeadWriter, Limits, PseudoHeaders, Role};
use wire::message::{RequestHead, ResponseHead};

const STREAMS: usize = 32;
const BODY: &[u8] = b"hello, world";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (variant, calls) = match arguments.as_slice() {
        [] => ("same", 1000),
        [variant, calls] => (variant.as_str(), calls.parse().expect("CALLS must be a number")),
        _ => panic!("usage: [same|paths|tenants CALLS]"),
    };
    // More than the tables hold.
    let requests: Vec<Request> = (0..64 * STREAMS).map(|number| Request::new(variant, number)).collect();
    let mut pair = Pair::new();
    for round in requests.chunks(STREAMS).cycle().take(calls / STREAMS) {
        pair.open(round);
        pair.answer();
        pair.finish();
    }
}

/// The fields in which requests differ.
struct Request {
    path: String,
    agent: String,
    address: String,
}

impl Request {
    fn new(variant: &str, number: usize) -> Self {
        let tenant = if variant == "tenants" { number * 5 % 8 } else { 0 };
        let path = match variant {
            "same" => "/".into(),
            "paths" => format!("/shop/items/{number}?page={}", number % 17),
            "tenants" => format!("/tenant/{tenant}"),
            _ => panic!("the variant must be same, paths or tenants"),
        };
        Self { path, agent: format!("h2load nghttp2/1.{tenant}"), address: format!("192.0.2.{tenant}") }
    }
}

/// A client and a server, with the buffers of their owners.
struct Pair {
    client: Connection,
    server: Connection,
    request: RequestHead,
    response: ResponseHead,
    arena: Vec<u8>,
    /// The bytes that were read, as from a socket.
    input: Vec<u8>,
}

impl Pair {
    fn new() -> Self {
        let limits = Limits { streams_max: 128, ..Limits::default() };
        let (client, server) = (Connection::new(Role::Client, limits), Connection::new(Role::Server, limits));
        let (request, response) = Default::default();
        Self { client, server, request, response, arena: Vec::new(), input: Vec::new() }
    }

    fn open(&mut self, requests: &[Request]) {
        for request in requests {
            let target = PseudoHeaders {
                method: b"GET",
                scheme: b"http",
                authority: b"127.0.0.1:8080",
                path: request.path.as_bytes(),
                protocol: None,
            };
            let fields = |head: &mut HeadWriter<'_>| {
                head.field(b"user-agent", request.agent.as_bytes());
                head.field(b"x-forwarded-for", request.address.as_bytes());
                head.field(b"x-forwarded-proto", b"http");
                head.field(b"x-forwarded-host", b"127.0.0.1:8080");
            };
            self.client.send_request(&target, true, fields).expect("room for a request");
        }
    }

    /// The server reads all requests, and answers each.
    fn answer(&mut self) {
        carry(&mut self.client, &mut self.input);
        let mut rest = self.input.as_slice();
        loop {
            let handled = self.server.handle_bytes(0, rest).expect("no error");
            rest = rest.get(handled.consumed..).unwrap_or_default();
            match handled.event {
                Some(Event::Request { stream, .. }) => {
                    self.server.take_request(&mut self.request, &mut self.arena);
                    let fields = |head: &mut HeadWriter<'_>| {
                        head.field(b"content-type", b"text/plain");
                        head.field(b"content-length", b"12");
                    };
                    self.server.send_response(stream, 200, false, fields).expect("room for a response");
                    self.server.send_data(stream, BODY, true).expect("room for DATA");
                    self.server.forget(stream);
                }
                None if rest.is_empty() => return,
                _ => {}
            }
        }
    }

    /// The client reads all responses.
    fn finish(&mut self) {
        carry(&mut self.server, &mut self.input);
        let mut rest = self.input.as_slice();
        loop {
            let handled = self.client.handle_bytes(0, rest).expect("no error");
            rest = rest.get(handled.consumed..).unwrap_or_default();
            match handled.event {
                Some(Event::Response { .. }) => self.client.take_response(&mut self.response, &mut self.arena),
                Some(Event::Data { stream, bytes, end }) => {
                    self.client.release_capacity(stream, black_box(bytes).len() as u32);
                    if end {
                        self.client.forget(stream);
                    }
                }
                None if rest.is_empty() => return,
                _ => {}
            }
        }
    }
}

fn carry(from: &mut Connection, to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(from.output());
    from.consume_output(to.len());
}

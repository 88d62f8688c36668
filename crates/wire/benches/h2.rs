//! HTTP/2 in memory: compares this crate's codec with the h2 crate. `cargo xtask bench wire` runs it.
//!
//! A client and a server on one thread exchange small calls, several streams at a time. Each call has a request body of 23 bytes, a
//! response body of 18 bytes, and trailers, like a gRPC call. The figures are nanoseconds of CPU time per call, for both sides together;
//! one side costs about half. The two codecs take turns, round by round. The output is the median, minimum and maximum of the rounds.
//!
//! The two do not do the same work, and published figures must say so. The h2 crate builds maps of fields and wakes tasks
//! through tokio, which its users pay for. This crate passes events to a loop, and its users pay for tasks on top.

use std::hint::black_box;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use rustix::time::{ClockId, clock_gettime};
use wire::h2::{Connection, Event, HeadWriter, Limits, PseudoHeaders, Role};
use wire::hpack::{Decoder, Encoder};
use wire::message::{RequestHead, ResponseHead};

const REQUEST_FIELDS: [(&str, &str); 5] = [
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "grpc-go/1.84.0"),
    ("grpc-timeout", "990m"),
    ("x-request-id", "7f9a4c52-0d7e-4a3b"),
];
const REQUEST_BODY: &[u8] = b"\0\0\0\0\x12hello, how are you?";
const RESPONSE_FIELDS: [(&str, &str); 2] = [("content-type", "application/grpc"), ("server", "steelyard")];
const RESPONSE_BODY: &[u8] = b"\0\0\0\0\x0dfine, thanks.";
const TRAILERS: [(&str, &str); 2] = [("grpc-status", "0"), ("grpc-message", "")];

fn main() {
    // `cargo bench` passes `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let numbers: Option<Vec<usize>> = arguments.iter().map(|argument| argument.parse().ok()).collect();
    let (rounds, calls) = match numbers.as_deref() {
        Some([]) => (7, 100_000),
        Some(&[rounds, calls]) if rounds >= 1 && calls >= 1000 => (rounds, calls),
        _ => panic!("usage: [ROUNDS CALLS], at least 1 and 1000"),
    };
    println!("{rounds} rounds of {calls} calls; ns of CPU time a call, median [least..most]\n");
    println!("{:<34} {:>22} {:>22} {:>7}", "", "wire", "h2 crate", "ratio");
    for streams in [1, 10, 100] {
        let mut figures = [Vec::new(), Vec::new()];
        for _ in 0..rounds {
            figures[0].push(measure(calls, |calls| ours(streams, calls)));
            figures[1].push(measure(calls, |calls| theirs(streams, calls)));
        }
        let [(wire, wire_median), (h2, h2_median)] = figures.map(summary);
        println!(
            "{:<34} {wire:>22} {h2:>22} {:>7.2}",
            format!("calls, {streams} at a time, both sides"),
            wire_median / h2_median
        );
    }
    println!();
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        figures[0].push(measure(calls, decode_heads));
        figures[1].push(measure(calls, encode_heads));
    }
    let [(decode, _), (encode, _)] = figures.map(summary);
    println!("{:<34} {decode:>22}", "HPACK, a request again: decode");
    println!("{:<34} {encode:>22}", "HPACK, a request again: encode");
}

/// Nanoseconds per call, without the warm-up of a tenth of the calls.
fn measure(calls: usize, run: impl Fn(usize)) -> f64 {
    run(calls / 10);
    let from = cpu_ns();
    run(calls);
    (cpu_ns() - from) as f64 / calls as f64
}

fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn summary(mut figures: Vec<f64>) -> (String, f64) {
    figures.sort_by(f64::total_cmp);
    let (median, last) = (figures[figures.len() / 2], figures[figures.len() - 1]);
    (format!("{median:.0} [{:.0}..{last:.0}]", figures[0]), median)
}

fn ours(streams: usize, calls: usize) {
    let mut client = Connection::new(Role::Client, Limits::default());
    let mut server = Connection::new(Role::Server, Limits::default());
    let (mut request, mut response) = (RequestHead::default(), ResponseHead::default());
    let (mut fields, mut arena) = (Vec::new(), Vec::new());
    let target = PseudoHeaders {
        method: b"POST",
        scheme: b"http",
        authority: b"greeter.example:50051",
        path: b"/helloworld.Greeter/SayHello",
        protocol: None,
    };
    let (mut opened, mut ended) = (0, 0);
    // The bytes that were read, as from a socket.
    let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
    while ended < calls {
        while opened < calls && opened - ended < streams {
            let key = client.send_request(&target, false, |head| write(head, &REQUEST_FIELDS)).unwrap();
            client.send_data(key, REQUEST_BODY, true).unwrap();
            opened += 1;
        }
        carry(&mut client, &mut from_client);
        let mut rest = from_client.as_slice();
        loop {
            let handled = server.handle_bytes(0, rest).unwrap();
            rest = &rest[handled.consumed..];
            match handled.event {
                Some(Event::Request { .. }) => server.take_request(&mut request, &mut arena),
                Some(Event::Data { stream, bytes, end }) => {
                    black_box(bytes);
                    server.release_capacity(stream, bytes.len() as u32);
                    if end {
                        server.send_response(stream, 200, false, |head| write(head, &RESPONSE_FIELDS)).unwrap();
                        server.send_data(stream, RESPONSE_BODY, false).unwrap();
                        server.send_trailers(stream, |head| write(head, &TRAILERS)).unwrap();
                        server.forget(stream);
                    }
                }
                Some(_) => {}
                None if rest.is_empty() => break,
                None => {}
            }
        }
        carry(&mut server, &mut from_server);
        let mut rest = from_server.as_slice();
        loop {
            let handled = client.handle_bytes(0, rest).unwrap();
            rest = &rest[handled.consumed..];
            match handled.event {
                Some(Event::Response { .. }) => client.take_response(&mut response, &mut arena),
                Some(Event::Data { stream, bytes, .. }) => {
                    client.release_capacity(stream, black_box(bytes).len() as u32)
                }
                Some(Event::Trailers { stream }) => {
                    client.take_trailers(&mut fields, &mut arena);
                    client.forget(stream);
                    ended += 1;
                }
                Some(_) => {}
                None if rest.is_empty() => break,
                None => {}
            }
        }
    }
}

fn carry(from: &mut Connection, to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(from.output());
    from.consume_output(to.len());
}

fn write(head: &mut HeadWriter<'_>, fields: &[(&str, &str)]) {
    for (name, value) in fields {
        head.field(name.as_bytes(), value.as_bytes());
    }
}

fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
}

fn theirs(streams: usize, calls: usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (near, far) = tokio::io::duplex(1 << 20);
        let server = async {
            let mut connection = h2::server::handshake(far).await.unwrap();
            let (fields, trailers) = (map(&RESPONSE_FIELDS), map(&TRAILERS));
            let mut tasks = tokio::task::JoinSet::new();
            while let Some(accepted) = connection.accept().await {
                let (request, mut respond) = accepted.unwrap();
                let (fields, trailers) = (fields.clone(), trailers.clone());
                tasks.spawn(async move {
                    drain(request.into_body()).await;
                    let mut response = Response::new(());
                    *response.headers_mut() = fields;
                    let mut stream = respond.send_response(response, false).unwrap();
                    stream.send_data(Bytes::from_static(RESPONSE_BODY), false).unwrap();
                    stream.send_trailers(trailers).unwrap();
                });
            }
        };
        let client = async {
            let (sender, connection) = h2::client::handshake(near).await.unwrap();
            let requests = async move {
                let fields = map(&REQUEST_FIELDS);
                let mut tasks = tokio::task::JoinSet::new();
                for number in 0..streams {
                    let (mut sender, fields) = (sender.clone(), fields.clone());
                    tasks.spawn(async move {
                        for _ in (number..calls).step_by(streams) {
                            let url = "http://greeter.example:50051/helloworld.Greeter/SayHello";
                            let mut request = Request::post(url).body(()).unwrap();
                            *request.headers_mut() = fields.clone();
                            sender = sender.ready().await.unwrap();
                            let (response, mut stream) = sender.send_request(request, false).unwrap();
                            stream.send_data(Bytes::from_static(REQUEST_BODY), true).unwrap();
                            drain(response.await.unwrap().into_body()).await;
                        }
                    });
                }
                drop(sender);
                tasks.join_all().await;
            };
            tokio::join!(async { connection.await.unwrap() }, requests);
        };
        tokio::join!(server, client);
    });
}

async fn drain(mut stream: h2::RecvStream) {
    while let Some(bytes) = stream.data().await {
        let length = black_box(bytes.unwrap()).len();
        stream.flow_control().release_capacity(length).unwrap();
    }
    black_box(stream.trailers().await.unwrap());
}

fn head_fields() -> Vec<(&'static str, &'static str)> {
    let pseudo = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/helloworld.Greeter/SayHello"),
        (":authority", "greeter.example:50051"),
    ];
    [&pseudo[..], &REQUEST_FIELDS].concat()
}

fn encode(encoder: &mut Encoder, fields: &[(&str, &str)], out: &mut Vec<u8>) {
    encoder.begin(out);
    for (name, value) in fields {
        encoder.field(out, name.as_bytes(), value.as_bytes(), false);
    }
}

fn encode_heads(calls: usize) {
    let (mut encoder, fields, mut out) = (Encoder::default(), head_fields(), Vec::new());
    for _ in 0..calls {
        out.clear();
        encode(&mut encoder, black_box(&fields), &mut out);
        black_box(&out);
    }
}

fn decode_heads(calls: usize) {
    let (mut encoder, mut decoder, fields) = (Encoder::default(), Decoder::default(), head_fields());
    let mut out = Vec::new();
    for _ in 0..3 {
        out.clear();
        encode(&mut encoder, &fields, &mut out);
        decoder.decode(&out, |_| {}).unwrap();
    }
    let mut arena = Vec::new();
    for _ in 0..calls {
        arena.clear();
        decoder
            .decode(black_box(&out), |field| {
                arena.extend_from_slice(field.name);
                arena.extend_from_slice(field.value);
            })
            .unwrap();
        black_box(&arena);
    }
}

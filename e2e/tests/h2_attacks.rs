//! Attacks on HTTP/2 servers, against the whole binary. Each attack ends its stream or its connection with the right code, is counted by
//! its reason, costs a limited amount of memory, and does not affect other connections.
//!
//! Smuggling to an endpoint is in `h2_smuggling.rs`.
#![forbid(unsafe_code)]

#[path = "support/frames.rs"]
mod frames;
mod support;

use std::net::{SocketAddr, TcpListener};

use frames::{Client, FRAME_BYTES_MAX, GET, PREFACE};
use frames::{block, code, flag, frame, get_with, headers, kind, reset, setting, settings, string, window_update};
use serde_json::Value;
use support::{Origin, Scratch, Steelyard, local, port};
use testkit::{PATIENCE, until};

/// How much memory an attack may add to the balancer.
const GROWTH_BYTES_MAX: u64 = 16 << 20;

/// Frames of a flood: far more than any budget allows.
const FLOOD: u32 = 50_000;

/// Short timeouts, for tests that wait for them.
const SHORT: &str = "    header_timeout: 300ms\n    stall_timeout: 300ms\n";

/// A body that does not fit into the buffers on its way.
const LARGE_BYTES: u64 = 8 << 20;

/// A balancer in front of an origin, and a client that uses it properly in the meantime.
struct Scene {
    balancer: Steelyard,
    address: SocketAddr,
    bystander: Client,
    /// Memory before the attack.
    resident: u64,
    _origin: Origin,
    /// An endpoint for `/wall/` that accepts connections and does nothing else.
    _wall: TcpListener,
}

impl Scene {
    fn start(more: &str) -> Self {
        Self::before(Origin::start("o"), more)
    }

    fn before(origin: Origin, more: &str) -> Self {
        let address = local(port());
        let wall = TcpListener::bind(local(0)).unwrap();
        let config = format!(
            "admin: {{admin}}
listeners:
  web:
    bind: {address}
    protocol: http
    routes: [{{path: /wall/, to: wall}}, {{to: all}}]
{more}clusters:
  all: {{endpoints: [{}]}}
  wall: {{endpoints: [{}]}}
",
            origin.address,
            wall.local_addr().unwrap()
        );
        let balancer = Steelyard::serve(&config, 1);
        let mut bystander = Client::connect(address, &[]);
        assert_eq!(bystander.get().status, 200);
        let resident = peak(&balancer);
        Self { balancer, address, bystander, resident, _origin: origin, _wall: wall }
    }

    fn attacker(&self) -> Client {
        Client::connect(self.address, &[])
    }

    /// Checks that it was counted, memory is limited, and no other client noticed.
    #[track_caller]
    fn is_calm(&mut self, name: &str, reason: &str) {
        let labels = [("listener", "web"), ("reason", reason)];
        let counted = || self.balancer.metric("steelyard_refused_total", &labels) > 0.0;
        if until(PATIENCE, || counted().then_some(())).is_none() {
            let status = self.balancer.status();
            panic!("{name}: not counted as {reason}, but {}", status["listeners"][0]["refused"]);
        }
        let growth = peak(&self.balancer).saturating_sub(self.resident);
        assert!(growth < GROWTH_BYTES_MAX, "{name}: memory grew by {} KiB", growth / 1024);
        assert_eq!(self.bystander.get().status, 200, "{name}: an existing client");
        assert_eq!(self.attacker().get().status, 200, "{name}: a new client");
    }
}

/// The peak of resident memory.
fn peak(balancer: &Steelyard) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", balancer.program.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a high-water mark");
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// The id of the stream with this number, from 0.
fn id(index: u32) -> u32 {
    2 * index + 1
}

fn post(more: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut fields = GET;
    fields[0].1 = b"POST";
    block(&[&fields, more].concat())
}

/// Floods until the balancer ends the connection, which it must do with the code `expect`.
#[track_caller]
fn check_flood(name: &str, reason: &str, expect: u32, before: &[u8], piece: impl Fn(u32) -> Vec<u8>) {
    let mut scene = Scene::start("");
    let mut attacker = scene.attacker();
    attacker.send(before);
    attacker.flood(FLOOD, piece);
    assert_eq!(attacker.goaway(), Some(expect), "{name}");
    scene.is_calm(name, reason);
}

#[test]
fn rapid_reset() {
    // CVE-2023-44487: streams that cost the client two small frames each, and the endpoint a request.
    check_flood("rapid reset", "h2_glitches", code::ENHANCE_YOUR_CALM, &[], |index| {
        [headers(id(index), true, &block(&GET)), reset(id(index), code::CANCEL)].concat()
    });
}

#[test]
fn made_you_reset() {
    // CVE-2025-8671: the client makes the server reset streams that it has begun to work on.
    let check = |name: &str, piece: fn(u32) -> Vec<u8>| {
        check_flood(name, "h2_glitches", code::ENHANCE_YOUR_CALM, &[], piece);
    };
    check("a window that is opened by 0", |index| {
        [headers(id(index), true, &block(&GET)), window_update(id(index), 0)].concat()
    });
    check("a window that is opened too far", |index| {
        [headers(id(index), true, &block(&GET)), window_update(id(index), 0x7fff_ffff)].concat()
    });
    check("a stream that depends on itself", |index| {
        let priority = [&id(index).to_be_bytes()[..], &[0]].concat();
        [headers(id(index), true, &block(&GET)), frame(kind::PRIORITY, 0, id(index), &priority)].concat()
    });
    check("a body longer than its content-length", |index| {
        let body = frame(kind::DATA, flag::END_STREAM, id(index), b"longer");
        [headers(id(index), false, &post(&[(b"content-length", b"1")])), body].concat()
    });
    check("a malformed head", |index| headers(id(index), true, &get_with(&[(b"Upper", b"x")])));
}

#[test]
fn floods_of_frames() {
    let calm = |name: &str, piece: fn(u32) -> Vec<u8>| {
        check_flood(name, "h2_glitches", code::ENHANCE_YOUR_CALM, &[], piece);
    };
    // CVE-2019-9512, -9515, -9518, and priorities, which are not followed.
    calm("PING", |index| frame(kind::PING, 0, 0, &u64::from(index).to_be_bytes()));
    calm("answers to no PING", |_| frame(kind::PING, flag::ACK, 0, &[0; 8]));
    calm("SETTINGS", |_| settings(&[]));
    calm("SETTINGS that change the table", |index| settings(&[(1, index % 2 * 4096)]));
    calm("acknowledgements of nothing", |_| frame(kind::SETTINGS, flag::ACK, 0, &[]));
    calm("PRIORITY", |index| frame(kind::PRIORITY, 0, id(index), &[0, 0, 0, 0, 1]));
    calm("an unknown type", |_| frame(0xee, 0, 0, b"?"));
    calm("windows that are opened a little", |_| window_update(0, 1));
    let opened = headers(1, false, &post(&[]));
    let data = |_| frame(kind::DATA, 0, 1, &[]);
    check_flood("empty DATA", "h2_glitches", code::ENHANCE_YOUR_CALM, &opened, data);
    // Padding alone also carries nothing.
    let padded = |_| frame(kind::DATA, 8, 1, &[3, 0, 0, 0]);
    check_flood("DATA of padding alone", "h2_glitches", code::ENHANCE_YOUR_CALM, &opened, padded);
}

#[test]
fn answers_that_are_never_read() {
    // The flood of frames that must be answered fills the way back, which ends it before the budget does.
    let mut scene = Scene::start("");
    let mut attackers: Vec<Client> = (0..20).map(|_| scene.attacker()).collect();
    for attacker in &mut attackers {
        attacker.flood(FLOOD, |_| settings(&[]));
    }
    scene.is_calm("SETTINGS, unread", "h2_glitches");
}

#[test]
fn heads_that_never_end() {
    // CVE-2024-27316 and its family.
    let begun = frame(kind::HEADERS, flag::END_STREAM, 1, &block(&GET));
    let check = |name: &str, size: usize| {
        let piece = move |_| {
            let mut fields = Vec::new();
            while fields.len() + 10 <= size {
                fields.extend_from_slice(&block(&[(b"a", b"123456")]));
            }
            fields.resize(size, 0x82);
            frame(kind::CONTINUATION, 0, 1, &fields)
        };
        check_flood(name, "h2_head_flood", code::ENHANCE_YOUR_CALM, &begun, piece);
    };
    check("empty CONTINUATION", 0);
    check("CONTINUATION of one byte", 1);
    check("CONTINUATION of 100 bytes", 100);
    check("the largest CONTINUATION", FRAME_BYTES_MAX);
}

#[test]
fn heads_that_are_too_large() {
    let mut scene = Scene::start("");
    let mut attacker = scene.attacker();
    // A head within the limits of frames but beyond that of the list: the client gets an answer, and the connection continues.
    let mut check = |name: &str, block: &[u8]| {
        for _ in 0..20 {
            let stream = attacker.open(block, true);
            assert_eq!(attacker.answer(stream).status, 431, "{name}");
        }
        assert_eq!(attacker.get().status, 200, "{name}");
    };
    let many: Vec<(&[u8], &[u8])> = vec![(b"a", b""); 150];
    check("150 fields", &get_with(&many));
    // Each cookie crumb counts, because each has its cost.
    let crumbs: Vec<(&[u8], &[u8])> = vec![(b"cookie", b""); 150];
    check("150 crumbs of a cookie", &get_with(&crumbs));
    let long = vec![b'x'; 8_000];
    check("five fields of 8,000 bytes", &{
        // In one frame, because this client sends no CONTINUATION. Huffman's shortest codes have 5 bits.
        let mut fields = block(&GET);
        fields.extend_from_slice(&block(&[(b"a", &long)]));
        fields.extend_from_slice(&bomb(4_000, 8));
        fields
    });
    scene.is_calm("heads that are too large", "header_too_large");
}

/// A field of this many bytes that enters the table, and one-byte references to it.
fn bomb(value_bytes: usize, references: usize) -> Vec<u8> {
    let mut bomb = vec![0x40];
    string(&mut bomb, b"x");
    string(&mut bomb, &vec![b'y'; value_bytes]);
    bomb.resize(bomb.len() + references, 0x80 | 62);
    bomb
}

#[test]
fn hpack_bombs() {
    // 16 KiB that stand for 48 MB; and then only the references, once the field is in the table.
    let mut scene = Scene::start("");
    let mut attacker = scene.attacker();
    let first = [block(&GET), bomb(4_000, 12_000)].concat();
    let stream = attacker.open(&first, true);
    assert_eq!(attacker.answer(stream).status, 431);
    let references = [block(&GET), vec![0x80 | 62; 16_000]].concat();
    let streams: Vec<u32> = (0..100).map(|_| attacker.open(&references, false)).collect();
    for stream in streams {
        assert_eq!(attacker.answer(stream).status, 431);
    }
    assert_eq!(attacker.get().status, 200);
    scene.is_calm("HPACK bomb", "header_too_large");
}

#[test]
fn a_client_that_never_opens_its_window() {
    // CVE-2019-9511, -9517: many answers, none of which may be sent.
    let check = |name: &str, initial_window: u32| {
        let mut scene = Scene::before(Origin::start_at(local(0), "large", LARGE_BYTES), SHORT);
        let values = [(setting::INITIAL_WINDOW_SIZE, initial_window)];
        let mut attacker = Client::connect(scene.address, &values);
        let streams: Vec<u32> = (0..50).map(|_| attacker.open(&block(&GET), true)).collect();
        let mut ended = 0;
        while ended < streams.len() {
            let frame = attacker.frame().unwrap_or_else(|| panic!("{name}: {ended} streams ended, and the connection"));
            ended += usize::from(frame.kind == kind::RST_STREAM && streams.contains(&frame.stream));
            assert_ne!(frame.kind, kind::GOAWAY, "{name}: {:?}", frame.payload);
        }
        let growth = peak(&scene.balancer).saturating_sub(scene.resident);
        assert!(growth < GROWTH_BYTES_MAX, "{name}: memory grew by {} KiB", growth / 1024);
        let labels = [("listener", "web"), ("reason", "slow_read")];
        assert!(scene.balancer.metric("steelyard_refused_total", &labels) >= 50.0, "{name}");
        assert_eq!(scene.bystander.get().body.len() as u64, LARGE_BYTES, "{name}");
    };
    check("streams without a window", 0);
    check("a connection without a window", 1 << 20);
}

#[test]
fn slow_beginnings() {
    let check = |name: &str, bytes: &[u8], reason: &str| {
        let mut scene = Scene::start(SHORT);
        let mut attacker = Client::silent(scene.address);
        attacker.send(bytes);
        assert!(attacker.end().is_ok(), "{name}: it did not end");
        scene.is_calm(name, reason);
    };
    check("a piece of the preface", &PREFACE[..10], "header_timeout");
    check("the preface alone", PREFACE, "header_timeout");
    let hello = [PREFACE, &settings(&[])].concat();
    check("settings that are never acknowledged", &hello, "h2_settings_timeout");
    let hello = [hello, frame(kind::SETTINGS, flag::ACK, 0, &[])].concat();
    let begun = frame(kind::HEADERS, flag::END_STREAM, 1, &block(&GET));
    check("a head without its end", &[hello.as_slice(), &begun].concat(), "header_timeout");
    check("a piece of a frame", &[hello.as_slice(), &begun[..20]].concat(), "header_timeout");
    check("a piece of a frame's head", &[hello.as_slice(), &begun[..3]].concat(), "header_timeout");
}

#[test]
fn a_body_that_never_comes() {
    let mut scene = Scene::start(SHORT);
    let mut attacker = scene.attacker();
    let streams: Vec<u32> = (0..50).map(|_| attacker.open(&post(&[(b"content-length", b"10")]), false)).collect();
    for stream in streams {
        // It gets a status, since nothing was answered yet.
        assert_eq!(attacker.answer(stream).status, 408);
    }
    scene.is_calm("a body that never comes", "body_timeout");
}

#[test]
fn more_than_was_allowed() {
    let mut scene = Scene::start("    limits: {streams_per_connection: 10}\n");
    let mut attacker = scene.attacker();
    // Eleven that stay open; the eleventh is refused, and may be sent again.
    let streams: Vec<u32> = (0..11).map(|_| attacker.open(&post(&[]), false)).collect();
    assert_eq!(attacker.reset_of(streams[10]), 7);
    scene.is_calm("one stream too many", "h2_stream_limit");

    let mut attacker = scene.attacker();
    // Beyond 2^31-1 for the connection, which therefore cannot continue.
    attacker.send(&window_update(0, 0x7fff_ffff));
    assert_eq!(attacker.goaway(), Some(code::FLOW_CONTROL_ERROR));
    scene.is_calm("a window beyond all bounds", "h2_window_update");

    // DATA without regard to any window, for an endpoint that takes none.
    let mut attacker = scene.attacker();
    let mut fields = GET;
    (fields[0].1, fields[3].1) = (b"POST", b"/wall/");
    let stream = attacker.open(&block(&fields), false);
    // The stream ends with the first excess byte; continuing after that ends the connection with ENHANCE_YOUR_CALM.
    attacker.flood(FLOOD, |_| frame(kind::DATA, 0, stream, &[b'x'; FRAME_BYTES_MAX]));
    assert_eq!(attacker.reset_of(stream), code::FLOW_CONTROL_ERROR);
    assert_eq!(attacker.goaway(), Some(code::ENHANCE_YOUR_CALM));
    scene.is_calm("DATA beyond the windows", "h2_flow_control");
}

#[test]
fn what_breaks_the_protocol_is_in_the_access_log() {
    // What a malformed head contains cannot be said, so its record has none of it, as over HTTP/1.
    let scratch = Scratch::new();
    let log = scratch.write("access.log", "");
    let scene = Scene::start(&format!("access_log: {{path: {log}, format: json, only: {{reason: any}}}}\n"));
    let records = || -> Vec<Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut client = scene.attacker();
    for malformed in [(b":status".as_slice(), b"200".as_slice()), (b"forged\n{", b"x")] {
        let stream = client.open(&get_with(&[malformed]), true);
        assert_eq!(client.reset_of(stream), code::PROTOCOL_ERROR);
    }
    // An index of no table ends the connection.
    client.open(&[0xff, 0xff, 0x7f], true);
    assert!(client.goaway().is_some());
    let logged = until(PATIENCE, || Some(records()).filter(|records| records.len() == 3));
    let logged = logged.unwrap_or_else(|| panic!("{:?}", records()));
    let reasons = logged.iter().map(|record| record["reason"].as_str().unwrap());
    assert_eq!(reasons.collect::<Vec<_>>(), ["h2_pseudo_header", "h2_field", "h2_compression"]);
    for record in &logged {
        assert_eq!((&record["listener"], &record["version"]), (&Value::from("web"), &Value::from("2")), "{record}");
        assert!(["method", "target", "host", "route"].iter().all(|field| record[field].is_null()), "{record}");
        assert!(record["client"].as_str().unwrap().starts_with("127.0.0.1:"), "{record}");
    }
    // A flood ends its connection before it fills the log.
    let mut flood = scene.attacker();
    flood.flood(FLOOD, |index| headers(id(index), true, &get_with(&[(b":status", b"200")])));
    let ended = || records().iter().any(|record| record["reason"] == "h2_glitches");
    assert!(until(PATIENCE, || ended().then_some(())).is_some(), "{} records", records().len());
    assert!(records().len() < 1_000, "{}", records().len());
}

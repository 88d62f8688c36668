//! Services that Steelyard itself asks, and that send far too much: a key set of 50 MB, an answer with megabytes of headers. Nothing passes that
//! should not, the reason is counted, and memory stays bounded.
#![forbid(unsafe_code)]

#[path = "support/frames.rs"]
mod frames;
mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use frames::{FRAME_BYTES_MAX, flag, frame, kind, settings};
use support::{Origin, Steelyard, local, port};
use testkit::strict::ResponseTo;
use testkit::{PATIENCE, client, until};

/// What a service sends if nobody stops it. The buffers of the kernel hold a fraction of it.
const BYTES: u64 = 50 << 20;

/// Far less than that.
const GROWTH_BYTES_MAX: u64 = 8 << 20;

/// A service. It counts what it has sent.
struct Service {
    address: SocketAddr,
    sent: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
}

impl Service {
    /// To everyone who has sent something, it sends `head`, and then `piece` again and again.
    fn start(head: Vec<u8>, piece: Vec<u8>) -> Self {
        let listener = TcpListener::bind(local(0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (sent, asked) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (counts, message) = ((sent.clone(), asked.clone()), Arc::new((head, piece)));
        // It ends with this process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let ((sent, asked), message) = (counts.clone(), message.clone());
                std::thread::spawn(move || {
                    asked.fetch_add(1, Relaxed);
                    serve(stream, &message.0, &message.1, &sent);
                });
            }
        });
        Self { address, sent, asked }
    }

    /// Waits until it was asked, and fails if it could send everything.
    fn was_stopped(&self) {
        let was_asked = || (self.asked.load(Relaxed) > 0 && self.sent.load(Relaxed) > 0).then_some(());
        assert!(until(PATIENCE, was_asked).is_some(), "nobody has asked the service");
        let sent = self.sent.load(Relaxed) / self.asked.load(Relaxed);
        assert!(sent < BYTES, "the service could send {sent} bytes");
    }
}

fn serve(mut stream: TcpStream, head: &[u8], piece: &[u8], sent: &AtomicU64) {
    if !matches!(stream.read(&mut [0; 4096]), Ok(1..)) || stream.write_all(head).is_err() {
        return;
    }
    let mut own = 0;
    while own < BYTES && stream.write_all(piece).is_ok() {
        own += piece.len() as u64;
        sent.fetch_add(piece.len() as u64, Relaxed);
    }
}

/// The peak of resident memory.
fn peak(balancer: &Steelyard) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", balancer.program.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a high-water mark");
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

fn get(port: u16, path: &str, fields: &str) -> u16 {
    let mut conn = client::connect("client", local(port), None).unwrap();
    conn.send(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n").as_bytes()).unwrap();
    conn.response(ResponseTo::Other).unwrap().status
}

#[test]
fn a_key_set_of_50_mb() {
    let sized = format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n{{\"keys\":[");
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"keys\":\r\n".to_vec();
    let chunk = [b"10000\r\n", &[b' '; 0x10000][..], b"\r\n"].concat();
    for (service, name) in [
        (Service::start(sized.into_bytes(), vec![b' '; 0x10000]), "with a length"),
        (Service::start(chunked, chunk), "in chunks"),
    ] {
        let (web, origin) = (port(), Origin::start("web"));
        let config = |auth: &str| {
            format!(
                "admin: {{admin}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: http{auth}, to: web}}
clusters:
  web: {{endpoints: ['{}']}}
",
                origin.address
            )
        };
        let mut balancer = Steelyard::serve(&config(""), 1);
        assert_eq!(get(web, "/", ""), 200);
        let before = peak(&balancer);
        let jwks = format!("{{url: 'http://{}/'}}", service.address);
        let auth = format!(", auth: {{jwt: {{issuer: login, audience: shop, jwks: {jwks}}}}}");
        let told = |status: &serde_json::Value| status["key_sets"].to_string().contains("larger than 256 KiB");
        balancer.reload(&config(&auth), told);
        service.was_stopped();
        let token = "Authorization: Bearer eyJhbGciOiJFZERTQSIsImtpZCI6ImEifQ.eyJpc3MiOiJsb2dpbiJ9.AAAA\r\n";
        assert_eq!((get(web, "/", token), get(web, "/", "")), (503, 401), "{name}");
        assert_eq!(origin.requests(), 1);
        let growth = peak(&balancer) - before;
        assert!(growth < GROWTH_BYTES_MAX, "{name}: memory grew by {growth} bytes");
        let findings = balancer.ask(&["status"]).stdout;
        assert!(findings.contains("keys_missing"), "{name}: {findings}");
    }
}

/// Over HTTP/1, one header that does not end, and lines that do not end. Over HTTP/2, CONTINUATION frames, and a block of some kilobytes that
/// stands for megabytes because it repeats a field of the table.
#[test]
fn a_service_that_sends_megabytes_of_headers() {
    let line = format!("X-Filler: {}\r\n", "a".repeat(1000));
    let begin = b"HTTP/1.1 200 OK\r\n".to_vec();
    let long = [&begin[..], b"X-A: "].concat();
    let continued = frame(kind::CONTINUATION, 0, 1, &vec![0; FRAME_BYTES_MAX]);
    let call = [settings(&[]), frame(kind::HEADERS, 0, 1, &[0x88])].concat();
    // The field `x` with 3,000 bytes enters the table (RFC 7541 section 6.2.1), and is then named by one byte each.
    let mut bomb = vec![0x88, 0x40];
    frames::string(&mut bomb, b"x");
    frames::string(&mut bomb, &[b'a'; 3000]);
    bomb.extend([0xbe; 12_000]);
    let packed = [settings(&[]), frame(kind::HEADERS, flag::END_HEADERS, 1, &bomb)].concat();
    let services = [
        ("/lines", "http: {}", Service::start(begin, line.repeat(60).into_bytes())),
        ("/line", "http: {}", Service::start(long, vec![b'a'; 0x10000])),
        ("/frames", "grpc: {}", Service::start(call, continued)),
        ("/packed", "grpc: {}", Service::start(packed, frame(kind::PRIORITY, 0, 1, &[0; 5]).repeat(1000))),
    ];
    let (web, origin) = (port(), Origin::start("web"));
    let mut routes = String::new();
    let mut clusters = format!("  web: {{endpoints: ['{}']}}\n", origin.address);
    for (path, protocol, service) in &services {
        let (name, version) = (&path[1..], if *protocol == "grpc: {}" { ", protocol: h2c" } else { "" });
        for (prefix, open) in [("", false), ("/open", true)] {
            let auth = format!("{{to: {name}, {protocol}, timeout: 10s, fail_open: {open}}}");
            routes += &format!("      - {{path: {prefix}{path}, external_auth: {auth}, to: web}}\n");
        }
        clusters += &format!("  {name}: {{endpoints: ['{}'], outlier: off{version}}}\n", service.address);
    }
    let config = format!(
        "admin: {{admin}}\nlisteners:\n  web:\n    bind: 127.0.0.1:{web}\n    protocol: http\n    routes:\n{routes}      - {{to: web}}\nclusters:\n{clusters}"
    );
    let balancer = Steelyard::serve(&config, 1);
    assert_eq!(get(web, "/", ""), 200);
    let (before, mut failures) = (peak(&balancer), 0.0);
    for (path, _, service) in &services {
        assert_eq!(get(web, path, ""), 503, "{path}");
        failures += 1.0;
        let counted = || balancer.metric("steelyard_refused_total", &[("reason", "external_auth_failed")]);
        assert_eq!(counted(), failures, "{path}");
        assert_eq!(get(web, &format!("/open{path}"), ""), 200, "{path}");
        failures += 1.0;
        assert_eq!(counted(), failures, "{path}");
        service.was_stopped();
    }
    let growth = peak(&balancer) - before;
    assert!(growth < GROWTH_BYTES_MAX, "memory grew by {growth} bytes");
    assert_eq!(get(web, "/", ""), 200);
}

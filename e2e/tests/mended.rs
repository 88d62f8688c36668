//! Errors that once occurred between one change and the next: a reload that is refused, an upgrade that is requested twice or fails, an
//! edit that is announced and also seen.
#![forbid(unsafe_code)]

mod support;

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};

use support::{Origin, Steelyard, get, local, names, port};
use testkit::{Exit, PATIENCE, Signal, until};

/// Makes clients wait.
const HOLD: u8 = 255;

/// Answers every A query with 127.0.0.`last` and a TTL of one second, or with NXDOMAIN if `last` is 0. It does not answer while `last` is
/// [`HOLD`].
struct NameServer {
    address: SocketAddr,
    last: Arc<AtomicU8>,
    end: Arc<AtomicBool>,
}

impl NameServer {
    fn start(last: u8) -> Self {
        let socket = UdpSocket::bind(local(0)).unwrap();
        let server = Self {
            address: socket.local_addr().unwrap(),
            last: Arc::new(AtomicU8::new(last)),
            end: Arc::new(AtomicBool::new(false)),
        };
        let (last, end) = (server.last.clone(), server.end.clone());
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                if end.load(Relaxed) {
                    return;
                }
                _ = until(PATIENCE, || (last.load(Relaxed) != HOLD).then_some(()));
                // A client that has given up is gone.
                _ = socket.send_to(&reply(&query[..length], last.load(Relaxed)), client);
            }
        });
        server
    }

    fn answer(&self, last: u8) {
        self.last.store(last, Relaxed);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.end.store(true, Relaxed);
        // Wakes the thread. If that fails, it ends with the process.
        _ = UdpSocket::bind(local(0)).and_then(|socket| socket.send_to(&[0], self.address));
    }
}

/// RFC 1035 section 4.
fn reply(query: &[u8], last: u8) -> Vec<u8> {
    let question_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 5;
    let has_record = last != 0 && query[question_end - 4..question_end - 2] == [0, 1];
    let code = if last == 0 { 3 } else { 0 };
    let mut reply = query[..question_end].to_vec();
    reply[2..12].copy_from_slice(&[0x81, 0x80 | code, 0, 1, 0, u8::from(has_record), 0, 0, 0, 0]);
    if has_record {
        reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, last]);
    }
    reply
}

/// A listener `web` on `web` whose cluster has one name with the origins' port, which is resolved at `server`. `more` is added to the
/// listeners.
fn named(web: u16, server: &NameServer, name: &str, endpoint_port: u16, more: &str) -> String {
    format!(
        "admin: {{admin}}
dns: {{servers: ['{}']}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: http, to: named}}
{more}clusters:
  named: {{endpoints: ['{name}:{endpoint_port}']}}
",
        server.address
    )
}

fn asked(web: u16) -> Option<u16> {
    get(local(web), "/").map(|response| response.status)
}

fn endpoint(last: u8, port: u16) -> String {
    format!("127.0.0.{last}:{port}")
}

/// Two origins at 127.0.0.2 and 127.0.0.3, on one port.
fn origins() -> (Origin, Origin, u16) {
    let first = Origin::start_at(SocketAddr::from(([127, 0, 0, 2], 0)), "first", 18);
    let port = first.address.port();
    let second = Origin::start_at(SocketAddr::from(([127, 0, 0, 3], port)), "second", 18);
    (first, second, port)
}

#[test]
fn a_refused_reload_leaves_the_names_in_use() {
    let (_first, _second, origin_port) = origins();
    let (server, web) = (NameServer::start(2), port());
    let mut balancer = Steelyard::serve(&named(web, &server, "app.example.com", origin_port, ""), 1);
    assert_eq!(asked(web), Some(200));

    let taken = TcpListener::bind(local(0)).unwrap();
    let more = format!("  taken: {{bind: '{}', protocol: http, to: named}}\n", taken.local_addr().unwrap());
    balancer.write(&named(web, &server, "other.example.com", origin_port, &more));
    let refused = balancer.ask(&["reload"]);
    assert_eq!(refused.exit, Exit::Code(64), "{}", refused.stderr);
    assert_eq!(asked(web), Some(200));

    // The name in use is still resolved again.
    server.answer(3);
    let moved = endpoint(3, origin_port);
    balancer.until("moved", |status| status["clusters"][0]["endpoints"][0]["address"] == *moved);
    assert_eq!(asked(web), Some(200));
    // The counters of the previous address are gone.
    let metrics = get(balancer.admin, "/metrics").unwrap();
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(metrics.contains(&moved) && !metrics.contains(&endpoint(2, origin_port)), "{metrics}");
}

#[test]
fn an_edit_is_seen_while_names_move_all_the_time() {
    let (_first, _second, origin_port) = origins();
    let (server, web) = (NameServer::start(2), port());
    let mut balancer = Steelyard::serve(&named(web, &server, "app.example.com", origin_port, ""), 1);
    let more = format!("  more: {{bind: '127.0.0.1:{}', protocol: http, to: named}}\n", port());
    balancer.write(&named(web, &server, "app.example.com", origin_port, &more));
    balancer.until("reloaded", |status| {
        // Each move starts after the last one has arrived.
        let last = server.last.load(Relaxed);
        if status["clusters"][0]["endpoints"][0]["address"] == *endpoint(last, origin_port) {
            server.answer(5 - last);
        }
        names(status, "listeners").contains(&"more")
    });
}

#[test]
fn asked_twice_for_a_successor_it_starts_one_and_drains() {
    let (server, web) = (NameServer::start(2), port());
    let (first, _second, origin_port) = origins();
    let mut balancer = Steelyard::serve(&named(web, &server, "app.example.com", origin_port, ""), 1);
    // The successor waits for its names, and the second signal arrives meanwhile.
    server.answer(HOLD);
    balancer.program.signal(Signal::USR2).unwrap();
    balancer.program.says("successor started").unwrap();
    balancer.program.signal(Signal::USR2).unwrap();
    balancer.program.says("successor is already starting").unwrap();
    server.answer(2);
    assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0), "{}", balancer.program.log());
    assert_eq!(balancer.program.log().matches("successor started").count(), 1, "{}", balancer.program.log());
    let before = first.requests();
    assert_eq!(asked(web), Some(200));
    assert_eq!(first.requests(), before + 1);
}

#[test]
fn a_successor_that_finds_no_endpoint_does_not_take_over() {
    let (_first, _second, origin_port) = origins();
    let (server, web) = (NameServer::start(2), port());
    let mut balancer = Steelyard::serve(&named(web, &server, "app.example.com", origin_port, ""), 1);
    server.answer(0);
    for _ in 0..2 {
        balancer.program.signal(Signal::USR2).unwrap();
        let ended = |log: &str| log.matches("successor ended before it took over").count();
        let before = ended(&balancer.program.log());
        let gave_up = until(PATIENCE, || (ended(&balancer.program.log()) > before).then_some(()));
        assert!(gave_up.is_some(), "{}", balancer.program.log());
        assert_eq!(asked(web), Some(200));
    }
    assert!(balancer.program.log().contains("cluster named: none of its names has an address"));
    assert_eq!(balancer.status()["pid"], balancer.program.pid());
}

#[test]
fn a_refused_reload_leaves_the_weights_in_use() {
    let origin = Origin::start("only");
    let (web, taken) = (port(), TcpListener::bind(local(0)).unwrap());
    let config = |weight: u32, more: &str| {
        format!(
            "admin: {{admin}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: http, to: c}}
{more}clusters:
  c: {{endpoints: [{{address: '{}', weight: {weight}}}]}}
",
            origin.address
        )
    };
    let mut balancer = Steelyard::serve(&config(3, ""), 1);
    let weight = |balancer: &Steelyard| balancer.status()["clusters"][0]["endpoints"][0]["weight"].clone();
    let more = format!("  taken: {{bind: '{}', protocol: http, to: c}}\n", taken.local_addr().unwrap());
    balancer.write(&config(5, &more));
    assert_eq!(balancer.ask(&["reload"]).exit, Exit::Code(64));
    assert_eq!(weight(&balancer), 3);
    balancer.reload(&config(7, ""), |status| status["clusters"][0]["endpoints"][0]["weight"] == 7);
    assert_eq!(weight(&balancer), 7);
}

#[test]
fn told_to_end_it_does_not_wait_for_names() {
    let origin = Origin::start("only");
    let web = port();
    let config = |server: SocketAddr, endpoint: &str| {
        format!(
            "admin: {{admin}}
dns: {{servers: ['{server}']}}
listeners:
  web: {{bind: '127.0.0.1:{web}', protocol: http, to: c}}
clusters:
  c: {{endpoints: ['{endpoint}']}}
"
        )
    };
    // It gets queries and never answers.
    let silent = UdpSocket::bind(local(0)).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let server = silent.local_addr().unwrap();
    let mut balancer = Steelyard::serve(&config(server, &origin.address.to_string()), 1);
    balancer.write(&config(server, "app.example.com:80"));
    balancer.program.signal(Signal::HUP).unwrap();
    silent.recv_from(&mut [0; 512]).expect("a query");
    balancer.program.signal(Signal::TERM).unwrap();
    assert_eq!(balancer.program.exit_within(PATIENCE).unwrap(), Exit::Code(0));
    assert!(balancer.program.log().contains("asked to end before"), "{}", balancer.program.log());
}

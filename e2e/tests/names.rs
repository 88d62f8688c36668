//! An endpoint given by name: requests follow its addresses, and keep the last ones if there are no new ones.
#![forbid(unsafe_code)]

mod support;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use support::{Load, Origin, Steelyard, local, port, until_served};
use testkit::{PATIENCE, until};

const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// A name server that answers every name with one address, or with none.
struct NameServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// `None`: NXDOMAIN.
    answer: Mutex<Option<Ipv4Addr>>,
    nxdomains: AtomicU64,
    end: AtomicBool,
}

impl NameServer {
    fn start(answer: Ipv4Addr) -> Self {
        let socket = UdpSocket::bind(local(0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let address = socket.local_addr().unwrap();
        let shared =
            Shared { answer: Mutex::new(Some(answer)), nxdomains: AtomicU64::new(0), end: AtomicBool::new(false) };
        let shared = Arc::new(shared);
        let served = shared.clone();
        let thread = std::thread::spawn(move || {
            let mut query = [0; 512];
            while !served.end.load(Relaxed) {
                // The timeout is for checking whether the test has ended.
                let Ok((length, client)) = socket.recv_from(&mut query) else { continue };
                let answer = *served.answer.lock().unwrap();
                // A client whose query timed out is gone, and has asked again.
                _ = socket.send_to(&reply(&query[..length], answer), client);
                served.nxdomains.fetch_add(u64::from(answer.is_none()), Relaxed);
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    fn answer(&self, answer: Option<Ipv4Addr>) {
        *self.shared.answer.lock().unwrap() = answer;
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.end.store(true, Relaxed);
        // A panic has already been reported.
        _ = self.thread.take().map(JoinHandle::join);
    }
}

/// RFC 1035 section 4: repeats the question, and for a query of type A adds one record with a TTL of one second.
fn reply(query: &[u8], answer: Option<Ipv4Addr>) -> Vec<u8> {
    let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap();
    let question_end = name_end + 5;
    let record = answer.filter(|_| query[name_end + 1..name_end + 3] == [0, 1]);
    let mut reply = query[..question_end].to_vec();
    let response_code = if answer.is_some() { 0 } else { 3 };
    // A response, recursion available, one question, the records, no others.
    reply[2..12].copy_from_slice(&[0x81, 0x80 | response_code, 0, 1, 0, u8::from(record.is_some()), 0, 0, 0, 0]);
    if let Some(address) = record {
        // The name of the question, type A, class IN, TTL 1 s, four bytes.
        reply.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        reply.extend_from_slice(&address.octets());
    }
    reply
}

#[test]
fn requests_follow_the_name() {
    for workers in [1, 2] {
        let first = Origin::start_at(SocketAddr::from((FIRST, 0)), "first", 18);
        let port_of_both = first.address.port();
        let second = Origin::start_at(SocketAddr::from((SECOND, port_of_both)), "second", 18);
        let server = NameServer::start(FIRST);
        let listen = port();
        let config = format!(
            "admin: {{admin}}
dns: {{servers: ['{}']}}
listeners:
  web: {{bind: '127.0.0.1:{listen}', protocol: http, to: named}}
clusters:
  named: {{endpoints: ['app.example.com:{port_of_both}']}}
",
            server.address
        );
        let mut balancer = Steelyard::serve(&config, workers);
        let before = balancer.generation();
        let load = Load::start(local(listen), "/", 16);
        until_served(&[&first], 500);
        assert_eq!(second.requests(), 0);

        server.answer(Some(SECOND));
        let at_second = SocketAddr::from((SECOND, port_of_both)).to_string();
        let status = balancer.until("moved", |status| status["clusters"][0]["endpoints"][0]["address"] == at_second);
        assert_eq!(status["clusters"][0]["endpoints"].as_array().map(Vec::len), Some(1), "{status}");
        assert!(balancer.generation() > before);
        until_served(&[&second], 500);
        // Requests that were under way to the first have ended by now, and it gets no new ones.
        let at_first = first.requests();
        until_served(&[&second], 500);
        assert_eq!(first.requests(), at_first);

        server.answer(None);
        let told = until(PATIENCE, || (server.shared.nxdomains.load(Relaxed) > 0).then_some(()));
        assert!(told.is_some(), "the name is not resolved again");
        balancer.program.says("cannot resolve").unwrap();
        until_served(&[&second], 500);
        assert_eq!(balancer.status()["clusters"][0]["endpoints"][0]["address"], at_second);
        load.end(&mut balancer);
    }
}

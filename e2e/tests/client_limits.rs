//! Connections of a client count exactly as long as they are open, however they end and whichever worker they are on.
#![forbid(unsafe_code)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use support::{Origin, Steelyard, local, port};
use testkit::PATIENCE;

/// Connections that one client may have.
const MAX: usize = 8;

/// Connections of each of the threads that come and go.
const CHURN: usize = 1_000;
const THREADS: usize = 3;

/// How a connection ends.
const ENDS: usize = 8;

#[test]
fn every_end_of_a_connection_gives_its_place_back() {
    let origin = Origin::start("web");
    let [http, proxied, tcp, tls] = [port(), port(), port(), port()];
    // The balancer gives up connections that say nothing after `silence`.
    let config = |silence: &str| {
        let limits = format!("client_limits: {{connections: {MAX}}}");
        format!(
            "admin: {{admin}}
listeners:
  http: {{bind: '127.0.0.1:{http}', protocol: http, {limits}, header_timeout: {silence}, to: web}}
  proxied: {{bind: '127.0.0.1:{proxied}', protocol: http, proxy_protocol: true, {limits}, to: web}}
  tcp: {{bind: '127.0.0.1:{tcp}', protocol: tcp, {limits}, idle_timeout: {silence}, to: web}}
  tls: {{bind: '127.0.0.1:{tls}', protocol: tls_passthrough, {limits}, header_timeout: {silence}, to: web}}
clusters:
  web: {{endpoints: ['{}']}}
",
            origin.address
        )
    };
    let mut steelyard = Steelyard::serve(&config("50ms"), 2);
    let listeners = [("http", http), ("proxied", proxied), ("tcp", tcp), ("tls", tls)];
    let churn = || {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let ports = listeners.map(|(_, port)| port);
                scope.spawn(move || {
                    (0..CHURN).for_each(|number| come_and_go(local(ports[number % 4]), number / 4 + thread));
                });
            }
        });
    };
    churn();
    // A reload keeps the counts.
    steelyard.reload(&config("5m"), |status| status["generation"] == 2);
    steelyard
        .until("no connection is open", |status| (0..4).all(|at| status["listeners"][at]["connections_open"] == 0));
    for (at, (name, port)) in listeners.into_iter().enumerate() {
        let full = |steelyard: &Steelyard| {
            steelyard.metric("steelyard_refused_total", &[("reason", "client_connections_full")])
        };
        let head = if name == "proxied" { "PROXY TCP4 192.0.2.7 192.0.2.1 4000 80\r\n" } else { "" };
        let before = full(&steelyard);
        // All places are free again, and there are no more of them than before.
        let open: Vec<TcpStream> = (0..MAX).map(|_| served(local(port), name, head)).collect();
        steelyard.until("all are open", |status| status["listeners"][at]["connections_open"] == MAX);
        assert_eq!(full(&steelyard), before, "{name}");
        let mut refused = connect(local(port));
        _ = refused.write_all(head.as_bytes());
        _ = refused.read_to_end(&mut Vec::new());
        assert_eq!(full(&steelyard) - before, 1.0, "{name}");
        drop(open);
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection that was let in, as far as that can be seen.
fn served(address: SocketAddr, listener: &str, head: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(head.as_bytes()).unwrap();
    if listener != "tls" {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200", "{listener}");
    }
    stream
}

/// Opens a connection and ends it in one of [`ENDS`] ways. Any step may fail, as the balancer may have ended it before.
fn come_and_go(address: SocketAddr, way: usize) {
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const FROM: &[u8] = b"PROXY TCP4 192.0.2.7 192.0.2.1 4000 80\r\n";
    let mut stream = connect(address);
    let mut rest = Vec::new();
    match way % ENDS {
        0 => {}
        1 => _ = stream.write_all(b"GET / HT"),
        2 => {
            _ = stream.write_all(b"\x16\x03\x01\x00\xff garbage \r\n\r\n").and_then(|()| stream.read_to_end(&mut rest))
        }
        3 => _ = stream.write_all(REQUEST),
        4 => _ = stream.write_all(FROM).and_then(|()| stream.write_all(REQUEST)),
        5 => {
            let sent = stream.write_all(&[FROM, REQUEST].concat()).and_then(|()| stream.shutdown(Shutdown::Write));
            _ = sent.and_then(|()| stream.read_to_end(&mut rest));
        }
        // Until the balancer gives it up.
        6 => {
            _ = stream
                .write_all(b"G")
                .and_then(|()| stream.shutdown(Shutdown::Write))
                .and_then(|()| stream.read_to_end(&mut rest))
        }
        _ => {
            // With unread bytes, the end is a reset.
            _ = stream.write_all(REQUEST).and_then(|()| stream.read(&mut [0]));
        }
    }
}

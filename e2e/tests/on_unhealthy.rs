//! What happens to TCP connections and WebSockets when the health check of their endpoint begins to fail.
#![forbid(unsafe_code)]

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use serde_json::Value;
use support::{Steelyard, local, port};
use testkit::PATIENCE;

const UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";

#[test]
fn connections_to_an_unhealthy_endpoint_are_closed_where_the_cluster_says_so() {
    let (origin, probed) = (listen(), listen());
    let address = origin.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in origin.incoming().flatten() {
            std::thread::spawn(move || echo(stream));
        }
    });
    let [close, chat, keep] = [port(), port(), port()];
    let check = format!("health_check: {{tcp: true, port: {}, interval: 100ms}}", probed.local_addr().unwrap().port());
    let mut steelyard = Steelyard::serve(
        &format!(
            "admin: {{admin}}
listeners:
  close: {{bind: '127.0.0.1:{close}', protocol: tcp, to: close}}
  chat: {{bind: '127.0.0.1:{chat}', protocol: http, to: close}}
  keep: {{bind: '127.0.0.1:{keep}', protocol: tcp, to: keep}}
clusters:
  close: {{endpoints: ['{address}'], {check}, on_unhealthy: close}}
  keep: {{endpoints: ['{address}'], {check}}}
"
        ),
        2,
    );
    let all_are = |state: &'static str| {
        move |status: &Value| (0..2).all(|at| status["clusters"][at]["endpoints"][0]["state"] == state)
    };
    steelyard.until("both are probed", all_are("healthy"));
    let mut closed: Vec<TcpStream> = (0..8).map(|_| connect(close)).collect();
    closed.extend((0..8).map(|_| {
        let mut stream = connect(chat);
        stream.write_all(UPGRADE).unwrap();
        let mut head = vec![0; SWITCHED.len()];
        stream.read_exact(&mut head).unwrap();
        stream
    }));
    let mut kept = connect(keep);
    for stream in closed.iter_mut().chain([&mut kept]) {
        assert!(is_echoed(stream));
    }

    drop(probed);
    steelyard.until("both are unhealthy", all_are("unhealthy"));
    for stream in &mut closed {
        // However it ends, nothing more comes.
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    }
    let metric = |steelyard: &Steelyard, listener: &str| {
        let labels = [("reason", "endpoint_unhealthy"), ("listener", listener)];
        steelyard.metric("steelyard_refused_total", &labels)
    };
    assert_eq!([metric(&steelyard, "close"), metric(&steelyard, "chat")], [8.0, 8.0]);
    // There is no other endpoint, so this one gets new connections all the same. They stay.
    let mut late = connect(close);
    assert!(is_echoed(&mut kept) && is_echoed(&mut late) && is_echoed(&mut late));
    assert_eq!(metric(&steelyard, "close"), 8.0);
}

fn listen() -> TcpListener {
    TcpListener::bind(local(0)).unwrap()
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(local(port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn is_echoed(stream: &mut TcpStream) -> bool {
    let mut back = [0; 5];
    stream.write_all(b"hello").is_ok() && stream.read_exact(&mut back).is_ok() && back == *b"hello"
}

/// Sends back what it gets. A request is answered as its client hopes.
fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(count) = stream.read(&mut buffer) {
        let got = &buffer[..count];
        let answer = if got.starts_with(b"GET ") { SWITCHED } else { got };
        if count == 0 || stream.write_all(answer).is_err() {
            return;
        }
    }
}

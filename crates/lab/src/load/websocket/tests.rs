//! Loads against small servers, some of which misbehave in one way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tungstenite::protocol::Role;
use tungstenite::{Error, Message, WebSocket};

use super::*;
use crate::host;
use crate::load::shape::Until;

type Server = WebSocket<TcpStream>;

/// Runs `serve` with each WebSocket on a separate thread. The threads end with the test.
fn server(serve: impl Fn(Server) + Clone + Send + 'static) -> SocketAddr {
    raw_server(move |stream| {
        if let Ok(socket) = tungstenite::accept(stream) {
            serve(socket);
        }
    })
}

fn raw_server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn echo(mut socket: Server) {
    while let Ok(message) = socket.read() {
        if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
            return;
        }
    }
}

fn load(address: SocketAddr, answers: Answers, requests: u64) -> WebSocketLoad {
    WebSocketLoad {
        target: Target { address, host: "x".to_owned(), path: "/".to_owned() },
        tls: None,
        headers: Vec::new(),
        message: Some(Message::text("hello")),
        answers,
        message_bytes_max: 1 << 20,
        shape: Shape::closed(2, Until::Requests(requests)),
    }
}

fn run(load: &WebSocketLoad) -> LoadReport {
    host::runtime().unwrap().block_on(run_websocket(load)).unwrap()
}

#[test]
fn each_message_is_answered_by_its_echo() {
    let address = server(echo);
    let mut load = load(address, Answers::Echo, 20);
    for (message, rate) in [
        (Message::text("hello"), None),
        (Message::text("hello"), Some(10_000.0)),
        (Message::binary(vec![0xff; 1000]), None),
        // Longer than the buffers of the sockets: the echo arrives while the message is sent.
        (Message::binary(vec![7; 1 << 20]), None),
    ] {
        (load.message, load.shape.rate) = (Some(message), rate);
        let report = run(&load);
        assert_eq!((report.ok, report.failures(), report.messages), (20, 0, Some(20)), "{report}");
        assert_eq!(report.response.is_some(), rate.is_some());
    }
}

#[test]
fn answers_are_as_many_as_the_load_waits_for() {
    let twice = server(|mut socket| {
        while let Ok(message) = socket.read() {
            if message.is_text() {
                socket.write(message.clone()).unwrap();
                socket.send(message).unwrap();
            }
        }
    });
    let report = run(&load(twice, Answers::Count(2), 10));
    assert_eq!((report.ok, report.messages), (10, Some(20)), "{report}");
    let heard = Arc::new(AtomicU64::new(0));
    let silent = server({
        let heard = heard.clone();
        move |mut socket| {
            while let Ok(message) = socket.read() {
                heard.fetch_add(u64::from(message.is_text()), Ordering::Relaxed);
            }
        }
    });
    let report = run(&load(silent, Answers::Count(0), 10));
    assert_eq!((report.ok, report.messages), (10, None), "{report}");
    while heard.load(Ordering::Relaxed) < 10 {
        thread::yield_now();
    }
}

#[test]
fn what_arrives_unasked_is_counted() {
    // Sends once it has been greeted.
    let ticker = server(|mut socket| {
        assert_eq!(socket.read().unwrap(), Message::text("hello"));
        while socket.send(Message::text("tick")).is_ok() {}
    });
    let report = run(&load(ticker, Answers::Unasked, 50));
    assert_eq!((report.ok, report.messages, report.failures()), (50, Some(50), 0), "{report}");
}

#[test]
fn pings_are_answered_and_closes_are_confirmed() {
    let (told, pongs) = std::sync::mpsc::channel();
    let pinging = server(move |mut socket| {
        loop {
            match socket.read() {
                Ok(message @ Message::Text(_)) => {
                    socket.send(Message::Ping("p".into())).unwrap();
                    assert_eq!(socket.read().unwrap(), Message::Pong("p".into()));
                    socket.send(message).unwrap();
                }
                Ok(Message::Close(frame)) => told.send(frame.unwrap().code).unwrap(),
                Ok(other) => panic!("{other}"),
                Err(_) => return,
            }
        }
    });
    let report = run(&load(pinging, Answers::Echo, 10));
    assert_eq!((report.ok, report.failures()), (10, 0), "{report}");
    // Both connections end with a goodbye.
    for _ in 0..2 {
        assert_eq!(u16::from(pongs.recv().unwrap()), 1000);
    }
}

#[test]
fn failures_are_told_apart() {
    let check = |address, answers, expect: &str| {
        let mut load = load(address, answers, 2);
        load.shape.timeout = Duration::from_secs(5);
        let report = run(&load);
        assert_eq!((report.ok, report.failures()), (0, 2), "{expect}: {report}");
        assert!(report.to_string().contains(expect), "{expect}: {report}");
    };
    let answering = |message: Message| {
        server(move |mut socket| {
            while socket.read().is_ok() {
                let _ = socket.send(message.clone());
            }
        })
    };
    check(answering(Message::text("bye")), Answers::Echo, "not an echo");
    check(answering(Message::binary(vec![0; (1 << 20) + 1])), Answers::Count(1), "Space limit exceeded");
    check(answering(Message::Close(None)), Answers::Count(1), "the server closed the connection");
    let leaving = tungstenite::protocol::CloseFrame { code: 1013.into(), reason: "later".into() };
    check(answering(Message::Close(Some(leaving))), Answers::Count(1), "closed the connection with code 1013");
    let refusing = raw_server(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n");
    });
    check(refusing, Answers::Count(1), "with status 503 instead of 101");
    // A server must not mask, and must not set bits of extensions.
    for bytes in [&b"\x81\x81abcd\0"[..], b"\xf1\x01a"] {
        let wrong = server(move |mut socket| {
            let _ = socket.read();
            let _ = socket.get_mut().write_all(bytes);
            let _ = socket.get_mut().read(&mut [0; 1024]);
        });
        check(wrong, Answers::Count(1), "WebSocket protocol error");
    }
}

#[test]
fn a_connection_that_the_server_has_left_is_replaced() {
    // Closes after each answer.
    let short = server(|mut socket| {
        if let Ok(message) = socket.read() {
            socket.send(message).unwrap();
            socket.close(None).unwrap();
            while !matches!(socket.read(), Err(Error::ConnectionClosed | Error::Io(_))) {}
        }
    });
    let mut load = load(short, Answers::Echo, 4);
    load.shape.connections = 1;
    // Usually, the close has arrived before the next message is due. Otherwise, that message fails, and the one after it does not.
    load.shape.rate = Some(20.0);
    let report = run(&load);
    assert_eq!(report.ok + report.failures(), 4, "{report}");
    assert!(report.ok >= 2 && report.reconnects >= 1, "{report}");
}

/// The bytes of a frame, which tungstenite's server would also accept from its own client: bit FIN, text, the mask, and the masked text.
#[test]
fn frames_are_masked() {
    let (told, frames) = std::sync::mpsc::channel();
    let address = server(move |mut socket: WebSocket<TcpStream>| {
        let mut frame = [0; 11];
        socket.get_mut().read_exact(&mut frame).unwrap();
        told.send(frame).unwrap();
        let mut socket = WebSocket::from_raw_socket(socket.get_mut().try_clone().unwrap(), Role::Server, None);
        socket.send(Message::text("hello")).unwrap();
        let _ = socket.read();
    });
    let mut load = load(address, Answers::Echo, 1);
    load.shape.connections = 1;
    assert_eq!(run(&load).ok, 1);
    let frame = frames.recv().unwrap();
    assert_eq!(frame[..2], [0x81, 0x80 | 5]);
    let text: Vec<u8> = frame[6..].iter().zip(&frame[2..6].repeat(2)).map(|(byte, mask)| byte ^ mask).collect();
    assert_eq!(text, b"hello");
}

//! The origins over real sockets, and [`Running`], which starts one for the tests of the load.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Parser;

use super::*;

/// More than any test needs. Reaching it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: OriginCommand,
}

/// An origin on its own thread, stopped when dropped.
pub(crate) struct Running {
    pub address: SocketAddr,
    pub http: Option<Arc<HttpOrigin>>,
    pub grpc: Option<Arc<GrpcOrigin>>,
    pub tcp: Option<Arc<TcpOrigin>>,
    pub stream: Option<Arc<StreamOrigin>>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// `line` is what follows `steelyard origin`, without `--listen`.
    pub(crate) fn start(line: &str) -> Self {
        let words = ["origin"].into_iter().chain(line.split(' ')).chain(["--listen", "127.0.0.1:0"]);
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let ended = async {
            let _ = ended.await;
            Ok(())
        };
        let (mut http, mut grpc, mut tcp, mut stream) = (None, None, None, None);
        let (address, thread) = match Cli::try_parse_from(words).unwrap().command {
            OriginCommand::Http(command) => {
                let origin = Arc::new(HttpOrigin::with_manner(&command.args, &command.manner).unwrap());
                http = Some(origin.clone());
                (origin.addresses().unwrap()[0], std::thread::spawn(move || origin.run_until(ended).unwrap()))
            }
            OriginCommand::Grpc(args) => {
                let origin = Arc::new(GrpcOrigin::bind(&args).unwrap());
                grpc = Some(origin.clone());
                (origin.addresses().unwrap()[0], std::thread::spawn(move || origin.run_until(ended).unwrap()))
            }
            OriginCommand::Tcp(command) => {
                let origin = Arc::new(TcpOrigin::with_manner(&command).unwrap());
                tcp = Some(origin.clone());
                (origin.addresses().unwrap()[0], std::thread::spawn(move || origin.run_until(ended).unwrap()))
            }
            OriginCommand::Stream(args) => {
                let origin = Arc::new(StreamOrigin::bind(&args).unwrap());
                stream = Some(origin.clone());
                (origin.addresses().unwrap()[0], std::thread::spawn(move || origin.run_until(ended).unwrap()))
            }
        };
        Self { address, http, grpc, tcp, stream, end: Some(end), thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Sends `input`, closes this side, and reads to the end.
fn exchange(address: SocketAddr, input: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut sender = stream.try_clone().unwrap();
    let input = input.to_vec();
    let sending = std::thread::spawn(move || {
        // The origin may have refused already, and closed.
        let _ = sender.write_all(&input);
        let _ = sender.shutdown(Shutdown::Write);
    });
    let mut output = Vec::new();
    stream.read_to_end(&mut output).unwrap();
    sending.join().unwrap();
    output
}

/// `expect` is the whole output, with `$OK` for the head of a 200 up to the empty line.
#[track_caller]
fn check(line: &str, input: &str, expect: &str) {
    let origin = Running::start(line);
    let output = String::from_utf8(exchange(origin.address, input.as_bytes())).unwrap();
    let expect = expect.replace("$OK", "HTTP/1.1 200 OK\r\nserver: steelyard-origin\r\n");
    assert_eq!(output, expect, "{line} {input:?}");
}

const PLAIN: &str = "$OKcontent-type: text/plain\r\ncontent-length: 3\r\n";

#[test]
fn gets_and_heads() {
    let line = "http --body 3";
    check(line, "GET / HTTP/1.1\r\nhost: x\r\n\r\n", &format!("{PLAIN}\r\n..\n"));
    check(line, "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", &format!("{PLAIN}\r\n"));
    check(line, "GET / HTTP/1.1\r\nconnection: close\r\n\r\n", &format!("{PLAIN}connection: close\r\n\r\n..\n"));
    check(line, "GET / HTTP/1.0\r\n\r\n", &format!("{PLAIN}connection: close\r\n\r\n..\n"));
    check(
        line,
        "GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
        &format!("{PLAIN}connection: keep-alive\r\n\r\n..\n"),
    );
    check("http --body 3 --close", "GET / HTTP/1.1\r\n\r\n", &format!("{PLAIN}connection: close\r\n\r\n..\n"));
    check(
        "http --body 3 --name a",
        "GET / HTTP/1.1\r\n\r\n",
        "$OKx-origin: a\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\na\n\n",
    );
    check("http", "GET /healthz HTTP/1.1\r\n\r\n", &format!("{PLAIN}\r\nok\n"));
}

#[test]
fn pipelined_requests_are_answered_in_order_and_none_after_a_close() {
    let three = "GET / HTTP/1.1\r\n\r\nGET /healthz HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\n";
    check("http --body 3", three, &format!("{PLAIN}\r\n..\n{PLAIN}\r\nok\n{PLAIN}\r\n"));
    let closed = "GET / HTTP/1.1\r\nconnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n";
    check("http --body 3", closed, &format!("{PLAIN}connection: close\r\n\r\n..\n"));
}

#[test]
fn uploads_are_counted_and_the_next_request_is_found() {
    let next = "GET / HTTP/1.1\r\n\r\n";
    let answers = format!("{PLAIN}x-received-bytes: 5\r\n\r\n..\n{PLAIN}\r\n..\n");
    check("http --body 3", &format!("POST / HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello{next}"), &answers);
    let chunked = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\na: b\r\n\r\n";
    check("http --body 3", &format!("{chunked}{next}"), &answers);
    check(
        "http --body 3",
        "PUT / HTTP/1.1\r\ncontent-length: 1\r\nexpect: 100-continue\r\nconnection: close\r\n\r\nx",
        &format!("HTTP/1.1 100 Continue\r\n\r\n{PLAIN}x-received-bytes: 1\r\nconnection: close\r\n\r\n..\n"),
    );
}

#[test]
fn echo_sends_back_what_came_as_it_was_framed() {
    check(
        "http --name a",
        "POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello",
        "$OKx-origin: a\r\ncontent-length: 5\r\n\r\nhello",
    );
    check("http", "GET /echo HTTP/1.1\r\n\r\n", "$OKcontent-length: 0\r\n\r\n");
    check(
        "http",
        "POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\nGET /echo HTTP/1.1\r\n\r\n",
        "$OKtransfer-encoding: chunked\r\n\r\nb\r\nhello world\r\n0\r\n\r\n$OKcontent-length: 0\r\n\r\n",
    );
}

#[test]
fn echo_is_streamed_whatever_the_size() {
    let origin = Running::start("http");
    let size = 5 << 20;
    let mut input = format!("POST /echo HTTP/1.1\r\ncontent-length: {size}\r\n\r\n").into_bytes();
    let body: Vec<u8> = (0..size).map(|at: u32| (at % 251) as u8).collect();
    input.extend_from_slice(&body);
    let output = exchange(origin.address, &input);
    let head = memchr::memmem::find(&output, b"\r\n\r\n").unwrap() + 4;
    assert!(output[head..] == body, "the body came back changed");
}

#[test]
fn long_bodies_have_the_size_that_was_asked_for() {
    for size in [65_536, 65_537, 1_000_000] {
        let origin = Running::start(&format!("http --body {size} --name a"));
        let output = exchange(origin.address, b"GET / HTTP/1.1\r\n\r\n");
        let head = memchr::memmem::find(&output, b"\r\n\r\n").unwrap() + 4;
        assert_eq!(output.len() - head, size);
        assert!(output[head..].starts_with(b"a\n..."));
    }
}

#[test]
fn what_is_no_request_is_refused() {
    let refused = "HTTP/1.1 400 Bad Request\r\nserver: steelyard-origin\r\ncontent-type: text/plain\r\ncontent-length: 12\r\n\
                   connection: close\r\n\r\nbad request\n";
    for input in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "GET / HTTP/1.1\r\na b: c\r\n\r\n",
        "POST / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        check("http", input, refused);
        check("http --body 3", &format!("GET / HTTP/1.1\r\n\r\n{input}"), &format!("{PLAIN}\r\n..\n{refused}"));
    }
    check("http", &format!("GET / HTTP/1.1\r\na: {}", "x".repeat(70_000)), refused);
}

#[test]
fn all_threads_and_addresses_serve() {
    let origin = Running::start("http --body 3 --threads 3 --listen 127.0.0.1:0");
    let addresses = origin.http.as_ref().unwrap().addresses().unwrap();
    assert_eq!(addresses.len(), 2);
    for address in addresses.iter().cycle().take(20) {
        assert!(exchange(*address, b"GET / HTTP/1.1\r\n\r\n").ends_with(b"..\n"));
    }
    assert_eq!(origin.http.as_ref().unwrap().requests(), 20);
    assert_eq!(origin.http.as_ref().unwrap().connections(), 20);
}

#[test]
fn an_address_in_use_is_named() {
    let origin = Running::start("http");
    let words = ["origin", "http", "--listen", &origin.address.to_string()];
    let OriginCommand::Http(command) = Cli::try_parse_from(words).unwrap().command else { panic!("not http") };
    let error = HttpOrigin::bind(&command.args).err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot listen on {}: ", origin.address)), "{error}");
}

#[test]
fn tcp_modes() {
    let block = "0123456789".repeat(100_000);
    let echo = Running::start("tcp");
    assert!(exchange(echo.address, block.as_bytes()) == block.as_bytes());
    let tcp = echo.tcp.as_ref().unwrap();
    assert_eq!((tcp.received(), tcp.sent()), (1_000_000, 1_000_000));

    let sender = Running::start("tcp --send 300000");
    assert_eq!(exchange(sender.address, b"").len(), 300_000);
    assert_eq!(sender.tcp.as_ref().unwrap().sent(), 300_000);

    let once = Running::start("tcp --once");
    assert_eq!(exchange(once.address, b"x"), b"x");

    let sink = Running::start("tcp --sink");
    assert_eq!(exchange(sink.address, block.as_bytes()), b"");
    assert_eq!(sink.tcp.as_ref().unwrap().received(), 1_000_000);
}

#[test]
fn a_delayed_answer_waits_without_holding_up_others() {
    // It waits much longer than the test may take.
    let origin = Running::start("http --delay 1h");
    let mut waiting = TcpStream::connect(origin.address).unwrap();
    waiting.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let (sender, receiver) = mpsc::channel();
    let address = origin.address;
    std::thread::spawn(move || sender.send(exchange(address, b"GET /healthz HTTP/1.1\r\n\r\n")));
    assert!(receiver.recv_timeout(PATIENCE).unwrap().ends_with(b"ok\n"));
    waiting.set_nonblocking(true).unwrap();
    assert_eq!(waiting.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_stream_origin_sends_until_the_other_side_has_had_enough() {
    let origin = Running::start("stream --block 1000");
    let mut stream = TcpStream::connect(origin.address).unwrap();
    let mut block = vec![0; 10_000_000];
    stream.read_exact(&mut block).unwrap();
    assert!(block.iter().all(|&byte| byte == b'.'));
    drop(stream);
    assert!(origin.stream.as_ref().unwrap().sent() >= 10_000_000);
}

#[test]
fn what_was_served_is_told() {
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (line, input, expect) in
        [("http", &b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"[..], (1, 2, 0, 0)), ("tcp", b"hello", (1, 0, 5, 5))]
    {
        let stats = free();
        let origin = Running::start(&format!("{line} --stats {stats}"));
        exchange(origin.address, input);
        let told = String::from_utf8(exchange(stats, b"GET / HTTP/1.1\r\n\r\n")).unwrap();
        let body = told.split_once("\r\n\r\n").unwrap().1;
        let told: OriginStats = serde_json::from_str(body).unwrap();
        assert_eq!((told.connections, told.requests, told.received_bytes, told.sent_bytes), expect);
        assert!(told.version == 1 && told.monotonic_ns > 0);
    }
}

#[test]
fn command_lines() {
    let check = |line: &str, expect: bool| {
        let words = ["origin"].into_iter().chain(line.split(' '));
        assert_eq!(Cli::try_parse_from(words).is_ok(), expect, "{line}");
    };
    check("http --delay-percentiles 50=5ms,99=10ms --stall 1s --stall-after 2s --stats :0", true);
    check("http --stall-after 2s", false);
    check("http --delay-percentiles 50=5", false);
    check("grpc --latency-percentiles 50=5,99=10 --delay 10ms --name a", true);
    check("grpc --latency-percentiles 50=5ms", false);
    check("grpc --body 1GiB", false);
    check("tcp --once --sink", false);
    check("stream --rate 20 --message 25000", true);
    check("stream --message 25000", false);
    check("stream --rate 20 --message 23", false);
}

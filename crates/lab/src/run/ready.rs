//! Waits until a contender serves. It asks from the load's position, through the contender, to the origin and back.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::record::{Failure, LoadKind, LoadSpec, Mode, OriginKind, Protocol};
use crate::topology;

use super::load::{Where, arguments};
use super::origins::Service;
use crate::process::{Process, Spec, last_lines};

/// How often to ask.
const POLL: Duration = Duration::from_millis(40);

/// How long one request may take; an origin may wait before it answers.
const ANSWER: Duration = Duration::from_secs(3);

/// How long a load asks whether it is served.
const A_MOMENT: Duration = Duration::from_millis(50);

/// The preface of a client of HTTP/2 (RFC 9113, section 3.4), and an empty SETTINGS frame.
const H2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Waits until `address` serves, or until one of `processes` has ended.
pub(super) async fn wait(
    namespace: Option<String>,
    address: SocketAddr,
    service: &Service,
    (processes, patience): (&mut [Process], Duration),
) -> Result<(), Failure> {
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let answer = ask(namespace.clone(), address, service.origin.kind).await;
        let Err(why) = answer else { return Ok(()) };
        if let Some(failure) = processes.iter_mut().find_map(Process::ended) {
            return Err(failure);
        }
        if tokio::time::Instant::now() > deadline {
            let what = format!("does not serve {} at {address} after {} s: {why}", service.name, patience.as_secs());
            let of_process = processes.first().map(|process| process.failure(&what));
            return Err(of_process.unwrap_or(Failure { why: what, log: Vec::new() }));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Sends requests to a service, from the addresses of its load in turn, and ignores how they are answered: some balancers serve a client or
/// an endpoint only from its second connection on.
pub(super) async fn first_requests(
    namespace: Option<&str>,
    address: SocketAddr,
    service: &Service,
    (sources, count, patience): (&[IpAddr], u32, Duration),
) {
    let deadline = tokio::time::Instant::now() + patience;
    let unspecified = [IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
    let sources = if sources.is_empty() { &unspecified } else { sources };
    for source in sources.iter().cycle().take(count as usize) {
        let asked = ask_from(namespace.map(str::to_owned), *source, address, service.origin.kind);
        if tokio::time::timeout_at(deadline, asked).await.is_err() {
            return;
        }
    }
}

/// The arguments of this program that ask for a service as its load does: over one connection, for a moment.
pub(super) fn command(itself: &Path, service: &Service, address: SocketAddr) -> Vec<String> {
    let kind = match (service.protocol, service.origin.kind) {
        (Protocol::H2Http, _) => LoadKind::H2cHttp,
        (Protocol::Https, _) => LoadKind::Https,
        (_, OriginKind::Http) => LoadKind::Http,
        (_, OriginKind::Grpc) => LoadKind::Grpc,
        (_, OriginKind::Tcp) => LoadKind::TcpRr,
        (_, OriginKind::Stream) => LoadKind::Stream,
    };
    let measure_ms = A_MOMENT.as_millis() as u64;
    let load = LoadSpec {
        kind,
        mode: Mode::Closed,
        connections: 1,
        streams: 1,
        arguments: Vec::new(),
        ramp_ms: 0,
        warm_up_ms: 0,
        measure_ms,
        trim_ms: 0,
    };
    let to = Where { address, sources: Vec::new(), threads: 1, rate: None };
    let mut words = vec![itself.display().to_string()];
    words.extend(arguments(&load, &to));
    words
}

/// Whether only a load can ask for a service: [`wait`] speaks the protocol of the origin, in clear text.
pub(super) fn needs_load(service: &Service) -> bool {
    matches!(service.protocol, Protocol::H2Http | Protocol::Https)
}

/// Waits as [`wait`] does, but asks with a process of the load's kind, `spec`: programs at sockets and rules of a pod see it as they see the load.
pub(super) async fn wait_with_load(
    spec: &Spec<'_>,
    (address, service): (SocketAddr, &Service),
    (processes, patience): (&mut [Process], Duration),
) -> Result<(), Failure> {
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let mut asking = Process::start(spec)?;
        let why = match tokio::time::timeout(ANSWER, asking.wait()).await {
            Ok(Ok(status)) if status.success() => return Ok(()),
            Ok(Ok(_)) => last_lines(asking.log()).join(" | "),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        asking.kill().await;
        if let Some(failure) = processes.iter_mut().find_map(Process::ended) {
            return Err(failure);
        }
        if tokio::time::Instant::now() > deadline {
            let what = format!("does not serve {} at {address} after {} s: {why}", service.name, patience.as_secs());
            let of_process = processes.first().map(|process| process.failure(&what));
            return Err(of_process.unwrap_or(Failure { why: what, log: Vec::new() }));
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn ask(namespace: Option<String>, address: SocketAddr, kind: OriginKind) -> io::Result<()> {
    ask_from(namespace, IpAddr::V4(Ipv4Addr::UNSPECIFIED), address, kind).await
}

async fn ask_from(namespace: Option<String>, source: IpAddr, address: SocketAddr, kind: OriginKind) -> io::Result<()> {
    let (sender, answer) = tokio::sync::oneshot::channel();
    // On a thread of its own, because it blocks and moves into the namespace.
    std::thread::Builder::new().name("ready".to_owned()).spawn(move || {
        let outcome = match namespace {
            Some(namespace) => {
                topology::inside(&namespace, move || exchange(source, address, kind)).and_then(|outcome| outcome)
            }
            None => exchange(source, address, kind),
        };
        // The receiver is gone if the run was interrupted.
        let _ = sender.send(outcome);
    })?;
    answer.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

fn exchange(source: IpAddr, address: SocketAddr, kind: OriginKind) -> io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if !source.is_unspecified() {
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect_timeout(&address.into(), ANSWER)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(ANSWER))?;
    let mut read = |bytes: &mut [u8]| stream.read_exact(bytes);
    match kind {
        OriginKind::Http => {
            stream.write_all(format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").as_bytes())?;
            let mut status = [0; 12];
            stream.read_exact(&mut status)?;
            expect(status.ends_with(b" 200"), &String::from_utf8_lossy(&status))
        }
        OriginKind::Grpc => {
            stream.write_all(H2_PREFACE)?;
            let mut head = [0; 9];
            stream.read_exact(&mut head)?;
            expect(head.get(3) == Some(&4), "no SETTINGS")
        }
        OriginKind::Tcp => {
            stream.write_all(b"x")?;
            stream.read_exact(&mut [0; 1])
        }
        OriginKind::Stream => read(&mut [0; 1]),
    }
}

fn expect(is_good: bool, what: &str) -> io::Result<()> {
    if is_good { Ok(()) } else { Err(io::Error::other(format!("it answered {what:?}"))) }
}

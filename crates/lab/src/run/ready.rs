//! Waits until a contender serves. It asks from the load's position, through the contender, to the origin and back.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::record::{Failure, OriginKind};
use crate::topology;

use super::origins::Service;
use crate::process::Process;

/// How often to ask.
const POLL: Duration = Duration::from_millis(40);

/// How long one request may take; an origin may wait before it answers.
const ANSWER: Duration = Duration::from_secs(3);

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

async fn ask(namespace: Option<String>, address: SocketAddr, kind: OriginKind) -> io::Result<()> {
    let (sender, answer) = tokio::sync::oneshot::channel();
    // On a thread of its own, because it blocks and moves into the namespace.
    std::thread::Builder::new().name("ready".to_owned()).spawn(move || {
        let outcome = match namespace {
            Some(namespace) => {
                topology::inside(&namespace, move || exchange(address, kind)).and_then(|outcome| outcome)
            }
            None => exchange(address, kind),
        };
        // The receiver is gone if the run was interrupted.
        let _ = sender.send(outcome);
    })?;
    answer.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
}

fn exchange(address: SocketAddr, kind: OriginKind) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
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

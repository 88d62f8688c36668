//! Clients and endpoints that stall, and their memory cost for the balancer, as the kernel reports it.
#![allow(dead_code, reason = "each test binary compiles all of it and uses its part")]

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, getrlimit, setrlimit};
use testkit::{PATIENCE, until};

use crate::frames;
use crate::support::{Steelyard, local};

/// The process's resident anonymous memory. It excludes the pages of its program, which become resident when they are used.
pub fn anonymous(balancer: &Steelyard) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", balancer.program.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

/// [`anonymous`], once it stays the same for several readings.
pub fn settled(balancer: &Steelyard) -> u64 {
    let (mut before, mut looks) = (0, 0);
    let settled = until(PATIENCE, || {
        let now = anonymous(balancer);
        looks = if now == before { looks + 1 } else { 0 };
        before = now;
        (looks >= 20).then_some(now)
    });
    settled.expect("the memory keeps growing")
}

/// Allows this process, and the programs that it starts, this many open files. Returns false if that is not permitted.
pub fn may_open(needed: u64) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        limit.current = Some(needed);
        return setrlimit(Resource::Nofile, limit).is_ok();
    }
    true
}

/// The bytes of an HTTP/2 client that begins this many uploads, with this many bytes of each.
pub fn uploads(streams: u32, bytes: usize) -> Vec<u8> {
    let put: Vec<_> = [(&b":method"[..], &b"PUT"[..])].into_iter().chain(frames::GET[1..].iter().copied()).collect();
    let mut words = [frames::PREFACE, &frames::settings(&[])].concat();
    for stream in (0..streams).map(|number| 2 * number + 1) {
        words.extend(frames::headers(stream, false, &frames::block(&put)));
        for piece in vec![b'.'; bytes].chunks(frames::FRAME_BYTES_MAX) {
            words.extend(frames::frame(frames::kind::DATA, 0, stream, piece));
        }
    }
    words
}

/// A connection over which these bytes were sent, as far as the other side reads.
pub fn send(listen: SocketAddr, words: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(listen).unwrap();
    client.set_nonblocking(true).unwrap();
    let mut rest = words;
    while !rest.is_empty() && is_writable(&client) {
        match client.write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Refused.
            Err(_) => break,
        }
    }
    client
}

/// Returns false if the other side has not taken a byte for half a second.
pub fn is_writable(stream: &TcpStream) -> bool {
    let half_a_second = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    poll(&mut [PollFd::new(stream, PollFlags::OUT)], Some(&half_a_second)).unwrap() > 0
}

/// An endpoint that accepts connections and reads nothing.
pub fn deaf() -> SocketAddr {
    let listener = TcpListener::bind(local(0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    address
}

//! One TCP connection in the hand of a test.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::strict::{self, Request, Response, ResponseTo, Violation};
use crate::{Failure, PATIENCE, escape};

/// More than this is not read: a test that needs more should count bytes, not keep them.
const RECEIVED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How the other side ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// FIN: all that was sent has arrived.
    Fin,
    /// RST.
    Reset,
}

/// A connection that keeps every byte it received. Bytes that the test has asked for are *claimed*; at the end none should be left over.
pub struct Conn {
    name: String,
    /// `None` once closed from this side.
    stream: Option<TcpStream>,
    received: Vec<u8>,
    /// `0 <= claimed <= received.len()`
    claimed: usize,
    end: Option<End>,
    /// Nothing that came or will come is a surprise.
    rest_ignored: bool,
}

impl Conn {
    /// Takes over an open connection; `name` is what failures call it.
    pub fn new(name: &str, stream: TcpStream) -> Result<Self, Failure> {
        let io = |error: std::io::Error| Failure::of(name, error);
        stream.set_nonblocking(false).map_err(io)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
        // Pieces must leave as pieces.
        stream.set_nodelay(true).map_err(io)?;
        Ok(Self {
            name: name.to_owned(),
            stream: Some(stream),
            received: Vec::new(),
            claimed: 0,
            end: None,
            rest_ignored: false,
        })
    }

    /// A connection that the other side reset as soon as it was there.
    pub(crate) fn reset_at_once(name: &str) -> Self {
        let (stream, received) = (None, Vec::new());
        Self { name: name.to_owned(), stream, received, claimed: 0, end: Some(End::Reset), rest_ignored: false }
    }

    /// What failures call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This side's address.
    pub fn local_address(&self) -> Result<SocketAddr, Failure> {
        self.stream()?.local_addr().map_err(|error| self.failure(error))
    }

    /// Everything that ever arrived.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    /// Sends all of it. A peer that has already closed is no failure: what it answered before is still to be read, and judged.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.end == Some(End::Reset) {
            return Ok(());
        }
        match self.stream()?.write_all(bytes) {
            Err(error) if !is_hang_up(error.kind()) => Err(self.failure(format_args!("cannot send: {error}"))),
            _ => Ok(()),
        }
    }

    /// Sends in pieces of `piece_bytes`, each its own segment as far as the kernel allows.
    pub fn send_pieces(&mut self, bytes: &[u8], piece_bytes: usize) -> Result<(), Failure> {
        bytes.chunks(piece_bytes.max(1)).try_for_each(|piece| self.send(piece))
    }

    /// FIN: no more from this side, which still reads.
    pub fn half_close(&mut self) -> Result<(), Failure> {
        match self.stream()?.shutdown(Shutdown::Write) {
            Err(error) if error.kind() != ErrorKind::NotConnected => Err(self.failure(error)),
            _ => Ok(()),
        }
    }

    /// Closes as a process does that is done: FIN, or RST where bytes were never read, and RST to whatever comes later.
    pub fn close(&mut self) {
        self.stream = None;
    }

    /// RST.
    pub fn reset(&mut self) -> Result<(), Failure> {
        let linger = SockRef::from(self.stream()?).set_linger(Some(Duration::ZERO));
        linger.map_err(|error| self.failure(error))?;
        self.close();
        Ok(())
    }

    /// One request, head and body, from a peer that must leave no doubt about what it says.
    pub fn request(&mut self) -> Result<Request, Failure> {
        self.message("request", |bytes, _| strict::request(bytes))
    }

    /// One request head; its body stays to be claimed as bytes.
    pub fn request_head(&mut self) -> Result<Request, Failure> {
        self.message("request head", |bytes, _| strict::request_head(bytes))
    }

    /// One response, whole.
    pub fn response(&mut self, to: ResponseTo) -> Result<Response, Failure> {
        self.message("response", |bytes, ended| strict::response(bytes, to, ended))
    }

    /// One response head; its body stays to be claimed as bytes.
    pub fn response_head(&mut self) -> Result<Response, Failure> {
        self.message("response head", |bytes, _| strict::response_head(bytes))
    }

    /// What came is at most the beginning of a request, after which the connection was cut. An idle connection will do.
    pub fn no_whole_request(&mut self) -> Result<(), Failure> {
        if self.unclaimed()?.is_empty() {
            return Ok(());
        }
        while self.more()? {}
        match strict::request(&self.received[self.claimed..]) {
            Ok(None) => self.claimed = self.received.len(),
            Ok(Some(_)) => return Err(self.failure(format_args!("a whole request came:\n{}", escape(&self.received)))),
            Err(violation) => return Err(self.violation("request", &violation)),
        }
        Ok(())
    }

    /// The connection ends after what is at most the beginning of a response, or after a 502.
    pub fn no_whole_response(&mut self) -> Result<(), Failure> {
        loop {
            let rest = &self.received[self.claimed..];
            match strict::response(rest, ResponseTo::Other, self.end == Some(End::Fin)) {
                Ok(None) if self.end.is_some() => break,
                Ok(None) => _ = self.more()?,
                Ok(Some((response, length))) if response.status == 502 && length == rest.len() => break,
                Ok(Some(_)) => return Err(self.failure(format_args!("a whole response came:\n{}", escape(rest)))),
                Err(violation) => return Err(self.violation("response", &violation)),
            }
        }
        self.claimed = self.received.len();
        Ok(())
    }

    /// From now on nothing is unclaimed.
    pub fn ignore_rest(&mut self) {
        self.rest_ignored = true;
    }

    /// A response whose head is whole and whose body was cut off by the end of the connection; `Response::body` is what came before.
    pub fn truncated_response(&mut self) -> Result<Response, Failure> {
        let mut response = self.response_head()?;
        while self.more()? {}
        let rest = &self.received[self.claimed..];
        match strict::body(rest, response.framing, false).map_err(|violation| self.violation("body", &violation))? {
            strict::Progress::Whole(..) => Err(self.failure("the body is complete, though it should have been cut")),
            strict::Progress::Partial(data) => {
                response.body = data;
                self.claimed = self.received.len();
                Ok(response)
            }
        }
    }

    /// Exactly these bytes, next.
    pub fn expect_bytes(&mut self, expect: &[u8]) -> Result<(), Failure> {
        loop {
            let rest = &self.received[self.claimed..];
            let seen = rest.len().min(expect.len());
            if rest[..seen] != expect[..seen] {
                return Err(self.failure(format_args!("expected\n{}\nbut got\n{}", escape(expect), escape(rest))));
            }
            if seen == expect.len() {
                self.claimed += seen;
                return Ok(());
            }
            if !self.more()? {
                let rest = escape(&self.received[self.claimed..]);
                return Err(self.failure(format_args!("ended, expected\n{}\nbut got\n{rest}", escape(expect))));
            }
        }
    }

    /// The end of the connection, with nothing before it that was not claimed.
    pub fn expect_end(&mut self) -> Result<End, Failure> {
        while self.claimed == self.received.len() && self.more()? {}
        match (self.end, &self.received[self.claimed..]) {
            (Some(end), []) => Ok(end),
            (_, rest) => Err(self.failure(format_args!("expected the connection to end, but got\n{}", escape(rest)))),
        }
    }

    /// What has arrived by now and was not claimed. Does not wait.
    pub fn unclaimed(&mut self) -> Result<Vec<u8>, Failure> {
        if self.rest_ignored {
            return Ok(Vec::new());
        }
        self.set_nonblocking(true)?;
        let drained = loop {
            match self.read() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(self.failure(error)),
            }
        };
        self.set_nonblocking(false)?;
        drained.map(|()| self.received[self.claimed..].to_vec())
    }

    fn message<M>(
        &mut self,
        what: &str,
        parse: impl Fn(&[u8], bool) -> Result<Option<(M, usize)>, Violation>,
    ) -> Result<M, Failure> {
        loop {
            match parse(&self.received[self.claimed..], self.end == Some(End::Fin)) {
                Ok(Some((message, length))) => {
                    self.claimed += length;
                    return Ok(message);
                }
                Err(violation) => return Err(self.violation(what, &violation)),
                Ok(None) if self.end.is_some() => {
                    let rest = escape(&self.received[self.claimed..]);
                    return Err(self.failure(format_args!("ended ({:?}) before a whole {what}:\n{rest}", self.end)));
                }
                // The end of the connection may be what completes the message: parse once more.
                Ok(None) => _ = self.more()?,
            }
        }
    }

    /// Waits for more bytes; false when the connection has ended.
    fn more(&mut self) -> Result<bool, Failure> {
        match self.read() {
            Ok(more) => Ok(more),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let rest = escape(&self.received[self.claimed..]);
                Err(self.failure(format_args!("nothing more came within {PATIENCE:?}, unclaimed so far:\n{rest}")))
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    fn read(&mut self) -> std::io::Result<bool> {
        let (None, Some(stream)) = (self.end, &mut self.stream) else { return Ok(false) };
        if self.received.len() > RECEIVED_BYTES_MAX {
            return Err(std::io::Error::other("received more than a test should"));
        }
        let mut buffer = [0; 16 * 1024];
        match stream.read(&mut buffer) {
            Ok(0) => self.end = Some(End::Fin),
            Ok(length) => self.received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if is_hang_up(error.kind()) => self.end = Some(End::Reset),
            Err(error) => return Err(error),
        }
        Ok(self.end.is_none())
    }

    fn stream(&self) -> Result<&TcpStream, Failure> {
        self.stream.as_ref().ok_or_else(|| self.failure("was closed from this side before"))
    }

    fn set_nonblocking(&self, nonblocking: bool) -> Result<(), Failure> {
        let Some(stream) = &self.stream else { return Ok(()) };
        stream.set_nonblocking(nonblocking).map_err(|error| self.failure(error))
    }

    fn violation(&self, what: &str, violation: &Violation) -> Failure {
        self.failure(format_args!("{what}: {violation}, in\n{}", escape(&self.received[self.claimed..])))
    }

    fn failure(&self, what: impl std::fmt::Display) -> Failure {
        Failure::of(&self.name, what)
    }
}

fn is_hang_up(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted)
}

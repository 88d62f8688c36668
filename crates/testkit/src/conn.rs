//! One TCP connection that a test controls.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use crate::strict::{self, Request, Response, ResponseTo, Violation};
use crate::{Failure, PATIENCE, escape};

/// The maximum number of bytes kept. A test that needs more should count bytes, not keep them.
const RECEIVED_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How the other side ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// FIN: everything that was sent has arrived.
    Fin,
    /// RST.
    Reset,
}

/// A connection that keeps every byte it received. Bytes that the test has asked for are *claimed*; at the end none
/// should be unclaimed.
pub struct Conn {
    name: String,
    /// `None` once this side has closed it.
    stream: Option<TcpStream>,
    received: Vec<u8>,
    /// `0 <= claimed <= received.len()`
    claimed: usize,
    end: Option<End>,
    /// Whatever came or will come is accepted.
    rest_ignored: bool,
}

impl Conn {
    /// Takes over an open connection. Failures call it `name`.
    pub fn new(name: &str, stream: TcpStream) -> Result<Self, Failure> {
        let io = |error: std::io::Error| Failure::of(name, error);
        stream.set_nonblocking(false).map_err(io)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
        // Pieces must leave as separate segments.
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

    /// A connection that the other side reset at once.
    pub(crate) fn reset_at_once(name: &str) -> Self {
        let (stream, received) = (None, Vec::new());
        Self { name: name.to_owned(), stream, received, claimed: 0, end: Some(End::Reset), rest_ignored: false }
    }

    /// The name used in failures.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// This side's address.
    pub fn local_address(&self) -> Result<SocketAddr, Failure> {
        self.stream()?.local_addr().map_err(|error| self.failure(error))
    }

    /// All bytes that have arrived.
    pub fn received(&self) -> &[u8] {
        &self.received
    }

    /// Sends all bytes. It is not a failure if the peer has already closed: the test still reads and judges what it
    /// answered before.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.end == Some(End::Reset) {
            return Ok(());
        }
        match self.stream()?.write_all(bytes) {
            Err(error) if !is_hang_up(error.kind()) => Err(self.failure(format_args!("cannot send: {error}"))),
            _ => Ok(()),
        }
    }

    /// Sends in pieces of `piece_bytes`, each in its own segment as far as the kernel allows.
    pub fn send_pieces(&mut self, bytes: &[u8], piece_bytes: usize) -> Result<(), Failure> {
        bytes.chunks(piece_bytes.max(1)).try_for_each(|piece| self.send(piece))
    }

    /// Sends FIN. This side sends no more, but still reads.
    pub fn half_close(&mut self) -> Result<(), Failure> {
        match self.stream()?.shutdown(Shutdown::Write) {
            Err(error) if error.kind() != ErrorKind::NotConnected => Err(self.failure(error)),
            _ => Ok(()),
        }
    }

    /// Closes as a finished process does: sends FIN, or RST if bytes were never read, and answers RST to everything
    /// later.
    pub fn close(&mut self) {
        self.stream = None;
    }

    /// Sends RST.
    pub fn reset(&mut self) -> Result<(), Failure> {
        let linger = SockRef::from(self.stream()?).set_linger(Some(Duration::ZERO));
        linger.map_err(|error| self.failure(error))?;
        self.close();
        Ok(())
    }

    /// Claims one request with its body, which must be unambiguous.
    pub fn request(&mut self) -> Result<Request, Failure> {
        self.message("request", |bytes, _| strict::request(bytes))
    }

    /// Claims one request head. The body can then be claimed as bytes.
    pub fn request_head(&mut self) -> Result<Request, Failure> {
        self.message("request head", |bytes, _| strict::request_head(bytes))
    }

    /// Claims one complete response.
    pub fn response(&mut self, to: ResponseTo) -> Result<Response, Failure> {
        self.message("response", |bytes, ended| strict::response(bytes, to, ended))
    }

    /// Claims one response head. The body can then be claimed as bytes.
    pub fn response_head(&mut self) -> Result<Response, Failure> {
        self.message("response head", |bytes, _| strict::response_head(bytes))
    }

    /// Checks that at most the beginning of a request arrived before the connection was cut. An idle connection is
    /// accepted too.
    pub fn no_whole_request(&mut self) -> Result<(), Failure> {
        if self.unclaimed()?.is_empty() {
            return Ok(());
        }
        while self.more()? {}
        match strict::request(&self.received[self.claimed..]) {
            Ok(None) => self.claimed = self.received.len(),
            Ok(Some(_)) => {
                return Err(self.failure(format_args!("a complete request arrived:\n{}", escape(&self.received))));
            }
            Err(violation) => return Err(self.violation("request", &violation)),
        }
        Ok(())
    }

    /// Checks that the connection ends after at most the beginning of a response, or after a 502.
    pub fn no_whole_response(&mut self) -> Result<(), Failure> {
        loop {
            let rest = &self.received[self.claimed..];
            match strict::response(rest, ResponseTo::Other, self.end == Some(End::Fin)) {
                Ok(None) if self.end.is_some() => break,
                Ok(None) => _ = self.more()?,
                Ok(Some((response, length))) if response.status == 502 && length == rest.len() => break,
                Ok(Some(_)) => return Err(self.failure(format_args!("a complete response arrived:\n{}", escape(rest)))),
                Err(violation) => return Err(self.violation("response", &violation)),
            }
        }
        self.claimed = self.received.len();
        Ok(())
    }

    /// From now on, all bytes count as claimed.
    pub fn ignore_rest(&mut self) {
        self.rest_ignored = true;
    }

    /// Claims a response whose head is complete and whose body was cut off by the end of the connection.
    /// `Response::body` is what arrived before.
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

    /// Claims exactly these bytes.
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

    /// Checks that the connection ends without further unclaimed bytes.
    pub fn expect_end(&mut self) -> Result<End, Failure> {
        while self.claimed == self.received.len() && self.more()? {}
        match (self.end, &self.received[self.claimed..]) {
            (Some(end), []) => Ok(end),
            (_, rest) => Err(self.failure(format_args!("expected the connection to end, but got\n{}", escape(rest)))),
        }
    }

    /// What has arrived by now and is unclaimed. Does not wait.
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
                    return Err(self.failure(format_args!("ended ({:?}) before a complete {what}:\n{rest}", self.end)));
                }
                // The end of the connection may complete the message, so parse again.
                Ok(None) => _ = self.more()?,
            }
        }
    }

    /// Waits for more bytes. Returns false if the connection has ended.
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
        self.stream.as_ref().ok_or_else(|| self.failure("was already closed from this side"))
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

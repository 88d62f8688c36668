//! The heads of the responses to one request: interim ones (RFC 9110 section 15.2), and then the final one.
//!
//! Everything that sends a request to an endpoint reads the heads of its responses with this: requests of clients, copies for mirrors,
//! health probes. So an endpoint whose health check succeeds sends heads that clients can get. This module does not handle bodies, and does
//! not decide what happens to an interim response.

use crate::h1::{self, HeadError, Parsed, ResponseMemo};
use crate::message::{Method, ResponseHead};

/// A larger response head is refused, whatever a listener allows its clients.
pub const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

/// The most interim responses to one request. A handful is useful; an endless series would hold a request for ever.
pub const INTERIMS_MAX: usize = 16;

/// How far the responses to one request have been read.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseHeads {
    /// Over HTTP/1, the number of bytes that are known not to contain the head's end.
    pub scanned: usize,
    /// Interim responses so far: `0 <= interims <= INTERIMS_MAX`.
    pub interims: usize,
}

/// What follows a response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadKind {
    /// Another head.
    Interim,
    /// Another protocol, over HTTP/1: 101.
    SwitchingProtocols,
    /// The body of the response.
    Final,
}

/// Why a response is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseError {
    /// It cannot be read.
    Head(HeadError),
    /// Its head is longer than [`RESPONSE_HEAD_BYTES_MAX`].
    TooLarge,
    /// It is an interim response after [`INTERIMS_MAX`] others.
    TooManyInterims,
}

impl std::fmt::Display for ResponseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Head(error) => error.fmt(f),
            Self::TooLarge => write!(f, "response head of more than {RESPONSE_HEAD_BYTES_MAX} bytes"),
            Self::TooManyInterims => write!(f, "more than {INTERIMS_MAX} interim responses"),
        }
    }
}

impl std::error::Error for ResponseError {}

impl ResponseHeads {
    /// Reads an HTTP/1 head into `head` once `bytes` contain all of it. `bytes` are everything that has arrived since the previous head,
    /// and `request` is the method of the request. The caller passes the status of a complete head to [`ResponseHeads::handle_head`].
    ///
    /// # Errors
    /// The connection must be closed.
    pub fn handle_bytes(
        &mut self,
        bytes: &[u8],
        request: Method,
        head: &mut ResponseHead,
    ) -> Result<Parsed, ResponseError> {
        self.handle_bytes_by(bytes, head, |head| h1::parse_response(bytes, h1::FIELDS_MAX, request, head))
    }

    /// The same, where many responses are read.
    ///
    /// # Errors
    /// Those of [`ResponseHeads::handle_bytes`].
    pub fn handle_bytes_with(
        &mut self,
        bytes: &[u8],
        request: Method,
        head: &mut ResponseHead,
        memo: &mut ResponseMemo,
    ) -> Result<Parsed, ResponseError> {
        self.handle_bytes_by(bytes, head, |head| memo.parse(bytes, h1::FIELDS_MAX, request, head))
    }

    fn handle_bytes_by(
        &mut self,
        bytes: &[u8],
        head: &mut ResponseHead,
        parse: impl FnOnce(&mut ResponseHead) -> Result<Parsed, HeadError>,
    ) -> Result<Parsed, ResponseError> {
        if bytes.len() > self.scanned && (self.scanned == 0 || h1::has_head_end(bytes, self.scanned)) {
            let parsed = parse(head).map_err(ResponseError::Head)?;
            if let Parsed::Complete(_) = parsed {
                self.scanned = 0;
                return Ok(parsed);
            }
        }
        self.scanned = bytes.len();
        if bytes.len() >= RESPONSE_HEAD_BYTES_MAX {
            return Err(ResponseError::TooLarge);
        }
        Ok(Parsed::Partial)
    }

    /// Records a complete head, in any version of HTTP. Returns what follows it.
    ///
    /// # Errors
    /// [`ResponseError::TooManyInterims`]
    pub fn handle_head(&mut self, status: u16) -> Result<HeadKind, ResponseError> {
        match status {
            101 => Ok(HeadKind::SwitchingProtocols),
            100..=199 if self.interims == INTERIMS_MAX => Err(ResponseError::TooManyInterims),
            100..=199 => {
                self.interims += 1;
                Ok(HeadKind::Interim)
            }
            _ => Ok(HeadKind::Final),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statuses of the heads in `text`, which arrives in pieces of `piece_bytes`.
    fn statuses(text: &[u8], piece_bytes: usize) -> Result<Vec<(u16, HeadKind)>, ResponseError> {
        let (mut heads, mut head) = (ResponseHeads::default(), ResponseHead::default());
        let (mut input, mut got) = (Vec::new(), Vec::new());
        for piece in text.chunks(piece_bytes) {
            input.extend_from_slice(piece);
            while let Parsed::Complete(length) = heads.handle_bytes(&input, Method::Get, &mut head)? {
                got.push((head.status, heads.handle_head(head.status)?));
                input.drain(..length);
            }
        }
        Ok(got)
    }

    #[test]
    fn heads_come_in_any_pieces() {
        let text = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n";
        let expect = [(103, HeadKind::Interim), (100, HeadKind::Interim), (204, HeadKind::Final)];
        for piece_bytes in 1..=text.len() {
            assert_eq!(statuses(text, piece_bytes).unwrap(), expect, "pieces of {piece_bytes}");
        }
        let switching = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n";
        assert_eq!(statuses(switching, 7).unwrap(), [(101, HeadKind::SwitchingProtocols)]);
    }

    #[test]
    fn what_has_no_end_is_refused() {
        let check = |text: &[u8], expect| assert_eq!(statuses(text, 1000), Err(expect));
        let interims = b"HTTP/1.1 103 \r\n\r\n".repeat(INTERIMS_MAX + 1);
        check(&interims, ResponseError::TooManyInterims);
        let long = [b"HTTP/1.1 200 OK\r\nA: ".as_slice(), &[b'x'; RESPONSE_HEAD_BYTES_MAX]].concat();
        check(&long, ResponseError::TooLarge);
        check(b"SSH-2.0-x\r\n\r\n", ResponseError::Head(HeadError::Version));
    }
}

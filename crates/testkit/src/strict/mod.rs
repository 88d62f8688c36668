//! Reads HTTP/1.1 strictly by RFC 9112, and a little more strictly: where the RFC gives a recipient a choice, this
//! reader refuses, because two recipients may choose differently.
//!
//! It judges what a balancer sends, so it accepts only the canonical form: CRLF line ends, one space, one way to write
//! a length, no chunk extensions. It shares no code with the balancer. It works byte by byte and allocates: it is slow,
//! but easy to check against the RFC.

mod body;
mod head;
mod message;

use std::fmt;

pub use body::{Progress, body};
pub use message::{Request, Response, ResponseTo, request, request_head, response, response_head};

/// Why bytes are not one unambiguous message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The offset from the start of the input.
    pub offset: usize,
    /// What is wrong, and the section of the RFC that says so.
    pub what: String,
}

impl Violation {
    fn at(offset: usize, what: impl Into<String>) -> Self {
        Self { offset, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at byte {})", self.what, self.offset)
    }
}

/// One header or trailer field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The name as it was written.
    pub name: String,
    /// The value without surrounding white space.
    pub value: Vec<u8>,
}

/// The values of all fields with this name, in order. Names are compared case-insensitively.
pub fn values<'a>(fields: &'a [Field], name: &str) -> Vec<&'a [u8]> {
    fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value.as_slice()).collect()
}

/// How the end of a body is found (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// Content-Length.
    Length(u64),
    /// Transfer-Encoding: chunked.
    Chunked,
    /// The end of the connection; for responses only.
    UntilClose,
}

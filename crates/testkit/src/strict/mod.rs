//! HTTP/1.1 to the letter of RFC 9112, and a little more: where the RFC lets a recipient choose, this reader refuses, since what one
//! recipient may choose another may choose differently.
//!
//! It is the judge of what a balancer emits, so it takes only the canonical form: CRLF line ends, one space, one way to write a length, no
//! chunk extensions. It shares no code with the balancer. Byte by byte and allocating: it is slow, and easy to check against the RFC.

mod body;
mod head;
mod message;

use std::fmt;

pub use body::{Progress, body};
pub use message::{Request, Response, ResponseTo, request, request_head, response, response_head};

/// Why bytes are not one unambiguous message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Where, counted from the start of what was given.
    pub offset: usize,
    /// What is wrong, and the section that says so.
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
    /// As it was written.
    pub name: String,
    /// Without the white space around it.
    pub value: Vec<u8>,
}

/// The values of all fields of this name, in order; the name is compared without case.
pub fn values<'a>(fields: &'a [Field], name: &str) -> Vec<&'a [u8]> {
    fields.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value.as_slice()).collect()
}

/// How the end of a body is known (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// Content-Length.
    Length(u64),
    /// Transfer-Encoding: chunked.
    Chunked,
    /// The end of the connection: responses only.
    UntilClose,
}

//! A request as the origin sees it: only the parts that decide the answer. Nothing is allocated.

use std::io;

use crate::framing::{Framing, content_length, has_token, invalid};

/// The most header fields of a request; more are an error.
const HEADERS_MAX: usize = 100;

/// One request head.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Length of the head, including its empty line.
    pub length: usize,
    pub requested: RequestedPath,
    pub is_head: bool,
    pub is_http_10: bool,
    /// Whether the client leaves the connection open (RFC 9112 section 9.3).
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` (RFC 9110 section 10.1.1).
    pub expects_continue: bool,
    pub framing: Framing,
}

/// What the path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedPath {
    Health,
    Echo,
    Elsewhere,
}

impl Head {
    /// Reads the head at the start of `input`; `None` while it is incomplete.
    pub(super) fn parse(input: &[u8]) -> io::Result<Option<Self>> {
        let mut headers = [const { std::mem::MaybeUninit::uninit() }; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(input, &mut headers) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        };
        let is_http_10 = request.version == Some(0);
        let mut head = Self {
            length,
            requested: requested(request.path.unwrap_or("/")),
            is_head: request.method == Some("HEAD"),
            is_http_10,
            keep_alive: !is_http_10,
            expects_continue: false,
            framing: Framing::Length(0),
        };
        let mut has_length = false;
        for header in request.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                if std::mem::replace(&mut has_length, true) {
                    return Err(invalid("repeated content-length"));
                }
                head.framing = Framing::Length(content_length(header.value)?);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if !header.value.eq_ignore_ascii_case(b"chunked") {
                    return Err(invalid("the transfer-encoding is not chunked"));
                }
                head.framing = Framing::Chunked;
            } else if header.name.eq_ignore_ascii_case("connection") {
                if has_token(header.value, "close") {
                    head.keep_alive = false;
                } else if is_http_10 && has_token(header.value, "keep-alive") {
                    head.keep_alive = true;
                }
            } else if header.name.eq_ignore_ascii_case("expect") {
                head.expects_continue = has_token(header.value, "100-continue");
            }
        }
        // Smuggling starts with both fields, and a balancer that sends both has a fault worth noticing.
        if has_length && head.framing == Framing::Chunked {
            return Err(invalid("both content-length and transfer-encoding"));
        }
        Ok(Some(head))
    }
}

fn requested(target: &str) -> RequestedPath {
    // An origin must understand the absolute form (RFC 9112 section 3.2.2).
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    match path.split('?').next() {
        Some("/healthz") => RequestedPath::Health,
        Some("/echo") => RequestedPath::Echo,
        _ => RequestedPath::Elsewhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(input: &str, change: impl Fn(&mut Head)) {
        let mut expect = Head {
            length: input.len(),
            requested: RequestedPath::Elsewhere,
            is_head: false,
            is_http_10: false,
            keep_alive: true,
            expects_continue: false,
            framing: Framing::Length(0),
        };
        change(&mut expect);
        assert_eq!(Head::parse(input.as_bytes()).unwrap(), Some(expect), "{input:?}");
    }

    #[test]
    fn heads() {
        check("GET / HTTP/1.1\r\nhost: a\r\n\r\n", |_| ());
        check("HEAD /x HTTP/1.1\r\n\r\n", |head| head.is_head = true);
        check("GET /healthz?deep HTTP/1.1\r\n\r\n", |head| head.requested = RequestedPath::Health);
        check("GET http://a.example/echo HTTP/1.1\r\n\r\n", |head| head.requested = RequestedPath::Echo);
        check("GET http://a.example HTTP/1.1\r\n\r\n", |_| ());
        check("GET / HTTP/1.1\r\nConnection: x, CLOSE\r\n\r\n", |head| head.keep_alive = false);
        check("GET / HTTP/1.0\r\n\r\n", |head| {
            head.is_http_10 = true;
            head.keep_alive = false;
        });
        check("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", |head| head.is_http_10 = true);
        check("POST / HTTP/1.1\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n", |head| {
            head.framing = Framing::Length(5);
            head.expects_continue = true;
        });
        check("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n", |head| head.framing = Framing::Chunked);
    }

    #[test]
    fn refused() {
        for input in [
            "GET /\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
        ] {
            assert!(Head::parse(input.as_bytes()).is_err(), "{input:?}");
        }
        assert_eq!(Head::parse(b"GET / HTTP/1.1\r\nhost:").unwrap(), None);
    }
}

//! Takes heads out of the received bytes once they are complete, with a limit on their size.

use model::ListenerLimits;
use net::buffer::{Buffer, SMALL_BYTES};
use telemetry::Reason;
use wire::h1::{self, HeadError, Parsed, RequestMemo, ResponseMemo};
use wire::message::{Body, Method, RequestHead, Span, Version};
use wire::{ResponseError, ResponseHeads};

use crate::error::Error;
use crate::exchange::{Request, Response};

/// Takes an HTTP/1 request head from `input` into `request` once it is complete, and makes room for more until then. `scanned`: the number
/// of bytes that are known not to contain its end. `is_first`: the connection's first head. `memo`: what other heads were read as.
///
/// # Errors
/// Those of the downstream side: the head is malformed, or too large.
pub(crate) fn request_head(
    request: &mut Request,
    input: &mut Buffer,
    scanned: &mut usize,
    limits: &ListenerLimits,
    is_first: bool,
    memo: &mut RequestMemo,
) -> Result<bool, Error> {
    let Request { head, bytes, .. } = request;
    if *scanned == 0 {
        // Until the head is complete, the fields of the last request no longer apply.
        head.version = Version::Http11;
        head.method = Method::Get;
    }
    if *scanned == 0 || h1::has_head_end(input.filled(), *scanned) {
        match memo.parse(input.filled(), limits.header_count_max, head) {
            Ok(Parsed::Complete(length)) if length > limits.header_bytes_max => return Err(too_large(input, limits)),
            Ok(Parsed::Complete(length)) => {
                take(bytes, input, length);
                return Ok(true);
            }
            Ok(Parsed::Partial) => {}
            Err(_) if is_first && is_foreign(input.filled()) => return Err(Error::downstream(Reason::NotHttp)),
            Err(error) => return Err(Error::downstream(request_reason(error))),
        }
    }
    *scanned = input.len();
    if input.len() >= limits.header_bytes_max {
        return Err(too_large(input, limits));
    }
    if input.is_full() {
        let room = (input.capacity() * 2).clamp(SMALL_BYTES, limits.header_bytes_max.max(SMALL_BYTES));
        input.grow(room.max(input.len() + 1));
    }
    Ok(false)
}

/// Moves a head of `length` bytes out of `input`.
fn take(bytes: &mut Vec<u8>, input: &mut Buffer, length: usize) {
    bytes.clear();
    bytes.extend_from_slice(input.filled().get(..length).unwrap_or_default());
    input.consume(length);
}

/// The checks and conversions that `wire::h2` leaves to the proxy.
///
/// # Errors
/// Those of [`request_head`].
pub(crate) fn h2_request(request: &mut Request, is_too_large: bool) -> Result<(), Error> {
    let Request { head, bytes, .. } = request;
    if is_too_large {
        *head = RequestHead { version: Version::Http2, keep_alive: true, ..RequestHead::default() };
        return Err(Error::downstream(Reason::HeaderTooLarge));
    }
    if head.expect_unknown {
        return Err(Error::downstream(Reason::ExpectationFailed));
    }
    if let Some(protocol) = head.upgrade {
        if protocol.get(bytes).eq_ignore_ascii_case(b"h2c") {
            return Err(Error::downstream(Reason::BadHeader));
        }
        // Extended CONNECT asks for the same as GET with `Upgrade` in HTTP/1.1 (RFC 8441 section 4), and is routed and sent on as that. The
        // bytes after the head are for the tunnel.
        let start = bytes.len() as u32;
        bytes.extend_from_slice(b"GET");
        head.method_name = Span { start, end: start + 3 };
        head.method = Method::Get;
        head.body = Body::None;
        head.expect_continue = false;
    } else if head.method == Method::Connect {
        return Err(Error::downstream(Reason::MethodNotSupported));
    }
    Ok(())
}

/// Whether a connection begins with a line of three words of which none is a path or a version. The sender of that speaks neither HTTP/1
/// nor HTTP/2, and could not understand an answer in either (RFC 9113 section 3.4 says to close the connection).
fn is_foreign(input: &[u8]) -> bool {
    let line = input.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count() == 3 && !line.contains(&b'/')
}

/// A request line that is too long by itself gets its own answer: 414 says what to shorten.
fn too_large(input: &Buffer, limits: &ListenerLimits) -> Error {
    let fits = memchr::memchr(b'\n', input.filled()).is_some_and(|at| at < limits.header_bytes_max);
    Error::downstream(if fits { Reason::HeaderTooLarge } else { Reason::UriTooLong })
}

fn request_reason(error: HeadError) -> Reason {
    match error {
        HeadError::StartLine => Reason::BadRequestLine,
        HeadError::Version => Reason::BadVersion,
        HeadError::Field => Reason::BadHeader,
        HeadError::TooManyFields => Reason::TooManyHeaders,
        HeadError::Framing => Reason::BadFraming,
        HeadError::Host => Reason::BadHost,
        HeadError::Method => Reason::MethodNotSupported,
        HeadError::Expectation => Reason::ExpectationFailed,
    }
}

/// Takes a response head from `input` into `response` once it is complete.
///
/// # Errors
/// Those of the upstream side: the head is malformed, or too large.
pub(crate) fn response_head(
    response: &mut Response,
    input: &mut Buffer,
    heads: &mut ResponseHeads,
    method: Method,
    memo: Option<&mut ResponseMemo>,
) -> Result<bool, Error> {
    let Response { head, bytes, .. } = response;
    let read = match memo {
        Some(memo) => heads.handle_bytes_with(input.filled(), method, head, memo),
        None => heads.handle_bytes(input.filled(), method, head),
    };
    match read {
        Ok(Parsed::Complete(length)) => {
            take(bytes, input, length);
            Ok(true)
        }
        Ok(Parsed::Partial) => Ok(false),
        Err(error) => Err(Error::upstream(response_reason(error))),
    }
}

/// Why a response was refused.
pub(crate) fn response_reason(error: ResponseError) -> Reason {
    match error {
        ResponseError::Head(HeadError::Framing) => Reason::UpstreamBadFraming,
        ResponseError::Head(HeadError::TooManyFields) | ResponseError::TooLarge => Reason::UpstreamHeadTooLarge,
        ResponseError::Head(_) | ResponseError::TooManyInterims => Reason::UpstreamBadHead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_claims_to_be_no_http_is_told_apart() {
        let check = |line: &str, expect| assert_eq!(is_foreign(line.as_bytes()), expect, "{line}");
        check("INVALID CONNECTION PREFACE\r\n\r\n", true);
        check("EHLO mail example\r\n", true);
        check("GET / HTTP/3.0\r\n", false);
        check("GET / HTTP\r\n", false);
        check("PROXY TCP4 1.2.3.4 5.6.7.8 9 80\r\n", false);
        check("GET /\r\n", false);
        check("GET /a b HTTP/1.1\r\n", false);
        check("HELO mail\r\n", false);
        check("", false);
    }
}

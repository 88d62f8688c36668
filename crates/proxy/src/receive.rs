//! Heads as they arrive: read until whole, bounded in bytes and time.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use model::ListenerLimits;
use net::buffer::{self, Buffer, SMALL_BYTES};
use net::clock;
use telemetry::Reason;
use tokio::io::ReadBuf;
use wire::h1::{self, HeadError, Parsed};
use wire::message::{Body, Method, RequestHead, ResponseHead, Span, Version};

use crate::error::Error;
use crate::exchange::Downstream;
use crate::h2::Handle;
use crate::stream::Stream;
use crate::work::Work;

/// A response head larger than this is refused, whatever the listener allows its clients.
pub(crate) const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Reads the rest of a request head, of which the first bytes are in `downstream.input`; gives its length in bytes. Of a stream of HTTP/2 it
/// came whole, and stands in `work` already.
///
/// # Errors
/// Of the downstream side: the head is malformed, too large or too slow.
pub(crate) async fn request_head(
    downstream: &mut Downstream,
    limits: &ListenerLimits,
    work: &mut Work,
) -> Result<usize, Error> {
    if let Some(handle) = downstream.stream.h2() {
        return h2_request_head(handle, work).map(|()| 0);
    }
    // Until the head is there, nothing is known of the last request any more.
    work.request.version = Version::Http11;
    work.request.method = Method::Get;
    let is_first = downstream.requests == 0;
    let Downstream { stream, input, timer, .. } = downstream;
    let head = &mut work.request;
    // Set only when the first read does not bring the whole head, which it nearly always does.
    let mut has_deadline = false;
    let mut scanned = 0;
    loop {
        if scanned == 0 || h1::has_head_end(input.filled(), scanned) {
            match h1::parse_request(input.filled(), limits.header_count_max, head) {
                Ok(Parsed::Complete(length)) if length > limits.header_bytes_max => {
                    return Err(too_large(input, limits));
                }
                Ok(Parsed::Complete(length)) => return Ok(length),
                Ok(Parsed::Partial) => {}
                Err(_) if is_first && is_foreign(input.filled()) => return Err(Error::downstream(Reason::NotHttp)),
                Err(error) => return Err(Error::downstream(request_reason(error))),
            }
        }
        scanned = input.len();
        if input.len() >= limits.header_bytes_max {
            return Err(too_large(input, limits));
        }
        if input.is_full() {
            let room = (input.capacity() * 2).clamp(SMALL_BYTES, limits.header_bytes_max.max(SMALL_BYTES));
            input.grow(room.max(input.len() + 1));
        }
        if !has_deadline {
            timer.set(clock::now_ms().saturating_add(crate::millis(limits.header_timeout)));
            has_deadline = true;
        }
        match timer.guard(poll_fn(|cx| input.poll_fill(cx, stream))).await {
            Ok(Ok(0)) => return Err(Error::downstream(Reason::ClientEof)),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(Error::client_io(error)),
            Err(_) => return Err(Error::downstream(Reason::HeaderTimeout)),
        }
    }
}

/// What `wire::h2` leaves to be said of a request.
fn h2_request_head(handle: &Handle, work: &mut Work) -> Result<(), Error> {
    let Work { request, request_bytes, .. } = work;
    if handle.is_too_large() {
        *request = RequestHead { version: Version::Http2, keep_alive: true, ..RequestHead::default() };
        return Err(Error::downstream(Reason::HeaderTooLarge));
    }
    if request.expect_unknown {
        return Err(Error::downstream(Reason::ExpectationFailed));
    }
    if let Some(protocol) = request.upgrade {
        if protocol.get(request_bytes).eq_ignore_ascii_case(b"h2c") {
            return Err(Error::downstream(Reason::BadHeader));
        }
        // Extended CONNECT asks for what GET with `Upgrade` asks for in HTTP/1.1 (RFC 8441 section 4), and is routed and sent on as such. What
        // comes behind the head is for the tunnel.
        let start = request_bytes.len() as u32;
        request_bytes.extend_from_slice(b"GET");
        request.method_name = Span { start, end: start + 3 };
        request.method = Method::Get;
        request.body = Body::None;
        request.expect_continue = false;
    } else if request.method == Method::Connect {
        return Err(Error::downstream(Reason::MethodNotSupported));
    }
    Ok(())
}

/// Whether a connection begins with a line of three words of which none is a path or a version: whoever sends that speaks neither HTTP/1 nor
/// HTTP/2, and an answer in either would only be a riddle to it (RFC 9113 section 3.4 asks to close the connection).
fn is_foreign(input: &[u8]) -> bool {
    let line = input.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).count() == 3 && !line.contains(&b'/')
}

/// A request line that alone is too long is told apart: 414 says what to shorten.
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

/// Reads a response head as far as it has come; its length in bytes once it is whole.
///
/// # Errors
/// Of the upstream side. [`Reason::UpstreamReset`] and [`Reason::UpstreamEof`] while `input` is empty mean that no byte of a response came.
pub(crate) fn poll_response_head(
    cx: &mut Context<'_>,
    stream: &mut Stream,
    input: &mut Buffer,
    scanned: &mut usize,
    method: Method,
    head: &mut ResponseHead,
) -> Poll<Result<usize, Error>> {
    loop {
        if input.len() > *scanned && (*scanned == 0 || h1::has_head_end(input.filled(), *scanned)) {
            match h1::parse_response(input.filled(), h1::FIELDS_MAX, method, head) {
                Ok(Parsed::Complete(length)) => return Poll::Ready(Ok(length)),
                Ok(Parsed::Partial) => {}
                Err(HeadError::Framing) => return Poll::Ready(Err(Error::upstream(Reason::UpstreamBadFraming))),
                Err(HeadError::TooManyFields) => {
                    return Poll::Ready(Err(Error::upstream(Reason::UpstreamHeadTooLarge)));
                }
                Err(_) => return Poll::Ready(Err(Error::upstream(Reason::UpstreamBadHead))),
            }
        }
        *scanned = input.len();
        if input.len() >= RESPONSE_HEAD_BYTES_MAX {
            return Poll::Ready(Err(Error::upstream(Reason::UpstreamHeadTooLarge)));
        }
        if input.capacity() == 0 {
            // Asked first, so that a request that waits for its endpoint holds no buffer for the answer.
            ready!(stream.poll_read_ready(cx)).map_err(Error::endpoint_io)?;
        }
        if input.is_full() {
            input.grow((input.capacity() * 2).max(buffer::piece_bytes()));
        }
        let read = input.poll_fill(cx, stream);
        if read.is_pending() && input.is_empty() {
            // The runtime takes a new socket for readable until it is tried.
            *input = Buffer::none();
        }
        match ready!(read) {
            Ok(0) => return Poll::Ready(Err(Error::upstream(Reason::UpstreamEof))),
            Ok(_) => {}
            Err(error) => return Poll::Ready(Err(Error::endpoint_io(error))),
        }
    }
}

/// Watches a client that waits for its answer: one that resets its connection is not served to the end.
///
/// One that only ends its side (a half-close) is, and one that sends its next request already is not to be disturbed: either is seen
/// once and then left alone.
///
/// While the request is still on its way, whoever reads it hears of the end of a connection; but a body that waits for its endpoint is not
/// read, and a stream of HTTP/2 can tell of its end without being read. So that is asked all along.
#[derive(Default)]
pub(crate) struct Watch {
    is_over: bool,
}

impl Watch {
    /// Costs no system call while the client is silent. `is_unread`: nobody else reads from it now.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) fn check(&mut self, cx: &mut Context<'_>, stream: &Stream, is_unread: bool) -> Result<(), Error> {
        if self.is_over {
            return Ok(());
        }
        let Some(tcp) = stream.tcp() else {
            let gone = stream.h2().map_or(Poll::Pending, |handle| handle.poll_cut(cx));
            return if let Poll::Ready(error) = gone { Err(Error::client_io(error)) } else { Ok(()) };
        };
        if !is_unread {
            return Ok(());
        }
        let mut byte = [0];
        match tcp.poll_peek(cx, &mut ReadBuf::new(&mut byte)) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(_)) => {
                self.is_over = true;
                Ok(())
            }
            Poll::Ready(Err(error)) => Err(Error::client_io(error)),
        }
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

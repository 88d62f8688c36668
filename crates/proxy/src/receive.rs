//! Heads as they arrive: read until whole, bounded in bytes and time.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use model::ListenerLimits;
use net::buffer::{Buffer, SMALL_BYTES};
use net::clock;
use telemetry::Reason;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use wire::h1::{self, HeadError, Parsed};
use wire::message::{Method, RequestHead, ResponseHead};

use crate::error::Error;
use crate::exchange::Downstream;
use crate::stream::Stream;

/// A response head larger than this is refused, whatever the listener allows its clients.
pub(crate) const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

/// Reads the rest of a request head, of which the first bytes are in `downstream.input`; gives its length in bytes.
///
/// # Errors
/// Of the downstream side: the head is malformed, too large or too slow.
pub(crate) async fn request_head(
    downstream: &mut Downstream,
    limits: &ListenerLimits,
    head: &mut RequestHead,
) -> Result<usize, Error> {
    let Downstream { stream, input, timer, .. } = downstream;
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
            input.grow((input.capacity() * 2).max(SMALL_BYTES));
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
#[derive(Default)]
pub(crate) struct Watch {
    is_over: bool,
}

impl Watch {
    /// Costs no system call while the client is silent.
    ///
    /// # Errors
    /// The client is gone.
    pub(crate) fn check(&mut self, cx: &mut Context<'_>, stream: &TcpStream) -> Result<(), Error> {
        if self.is_over {
            return Ok(());
        }
        let mut byte = [0];
        match stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(_)) => {
                self.is_over = true;
                Ok(())
            }
            Poll::Ready(Err(error)) => Err(Error::client_io(error)),
        }
    }
}

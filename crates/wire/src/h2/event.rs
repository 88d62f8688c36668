//! The events that the owner of a connection gets.

use super::error::{ErrorCode, Reason};
use super::streams::StreamKey;

/// Something that happened. The owner holds a stream from `Request` or `send_request` until
/// [`Connection::forget`](super::Connection::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// A request. [`Connection::take_request`](super::Connection::take_request) returns its head until the next call of `handle_bytes`.
    /// With `end` it has no body.
    Request {
        /// A new stream.
        stream: StreamKey,
        /// Nothing follows.
        end: bool,
    },
    /// A request whose head exceeds the limits and was not kept. The owner should answer it with 431 and forget it. Its DATA may still
    /// arrive.
    RequestTooLarge {
        /// A new stream.
        stream: StreamKey,
    },
    /// A response, which may be informational. [`Connection::take_response`](super::Connection::take_response) returns its head until the
    /// next call of `handle_bytes`.
    Response {
        /// The stream of the request.
        stream: StreamKey,
        /// Nothing follows.
        end: bool,
    },
    /// A piece of a body. It counts against the windows until [`Connection::release_capacity`](super::Connection::release_capacity). It is
    /// empty only with `end`.
    Data {
        /// The stream.
        stream: StreamKey,
        /// A piece of the input.
        bytes: &'b [u8],
        /// Nothing follows.
        end: bool,
    },
    /// Trailers, which end the message. [`Connection::take_trailers`](super::Connection::take_trailers) returns them until the next call of
    /// `handle_bytes`.
    Trailers {
        /// The stream.
        stream: StreamKey,
    },
    /// The stream was reset. It gets nothing more, and nothing can be sent on it. NO_ERROR after a complete response only means that the
    /// rest of the request is not wanted (RFC 9113 section 8.1). REFUSED_STREAM means that the request was not processed.
    Reset {
        /// The stream.
        stream: StreamKey,
        /// The code that was received or sent.
        code: ErrorCode,
        /// Which side reset it.
        by: ResetBy,
    },
    /// The stream may try again, after [`SendError::Full`](super::SendError::Full) or after fewer bytes were taken than it offered.
    Writable {
        /// The stream.
        stream: StreamKey,
    },
    /// Something was refused that the owner does not know of: a malformed request, one beyond the limit, or a frame for a stream that is
    /// over. The other side was informed; this event is for counting.
    Refused {
        /// The reason.
        reason: Reason,
    },
    /// The other side's settings have arrived or changed: more streams may be allowed.
    Settings,
    /// The other side accepts no new requests. Those that it did not process get `Reset` with `ResetBy::GoAway`.
    GoAway {
        /// This side's last stream that it did or may have processed.
        last_stream: u32,
        /// The reason.
        code: ErrorCode,
    },
    /// The answer to [`Connection::ping`](super::Connection::ping).
    Pong {
        /// As it was sent.
        payload: [u8; 8],
    },
}

/// What reset a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetBy {
    /// The other side, with RST_STREAM.
    Peer,
    /// The other side went away before it processed the stream. The request may be sent again elsewhere, whatever its method.
    GoAway,
    /// This side, because of what the other side sent.
    Us(Reason),
}

/// The outcome of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handled<'b> {
    /// Bytes of the input that were taken.
    pub consumed: usize,
    /// The event. `None` means that all of the input was taken.
    pub event: Option<Event<'b>>,
}

//! What the owner of a connection is told.

use super::error::{ErrorCode, Reason};
use super::streams::StreamKey;

/// What happened. Streams are the owner's from `Request` or `send_request` on, until [`Connection::forget`](super::Connection::forget).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'b> {
    /// A request, whose head is in [`Connection::take_request`](super::Connection::take_request) until the next call of `handle_bytes`. `end`: it has no body.
    Request {
        /// A new stream.
        stream: StreamKey,
        /// Nothing follows.
        end: bool,
    },
    /// A request whose head is beyond the limits and was not kept: to be answered with 431 and forgotten. Its DATA may come meanwhile.
    RequestTooLarge {
        /// A new stream.
        stream: StreamKey,
    },
    /// A response, be it informational: in [`Connection::take_response`](super::Connection::take_response) until the next call of `handle_bytes`.
    Response {
        /// The stream of the request.
        stream: StreamKey,
        /// Nothing follows.
        end: bool,
    },
    /// A piece of a body. Counts against the windows until [`Connection::release_capacity`](super::Connection::release_capacity). Empty only with `end`.
    Data {
        /// The stream.
        stream: StreamKey,
        /// A piece of the input.
        bytes: &'b [u8],
        /// Nothing follows.
        end: bool,
    },
    /// Trailers, which end the message: in [`Connection::take_trailers`](super::Connection::take_trailers) until the next call of `handle_bytes`.
    Trailers {
        /// The stream.
        stream: StreamKey,
    },
    /// The stream was cut off. Nothing more comes for it, and nothing can be sent on it. With NO_ERROR behind a whole response it only says
    /// that the rest of the request is not wanted (RFC 9113 section 8.1); with REFUSED_STREAM the request was not looked at.
    Reset {
        /// The stream.
        stream: StreamKey,
        /// What the other side said, or was told.
        code: ErrorCode,
        /// By whom.
        by: ResetBy,
    },
    /// The stream, which got [`SendError::Full`](super::SendError::Full) or had less taken than it wanted, may try again.
    Writable {
        /// The stream.
        stream: StreamKey,
    },
    /// Something was refused that the owner knows nothing of: a malformed request, one more than are allowed, a frame for a stream that is
    /// over. The other side was told; this is for counting.
    Refused {
        /// Why.
        reason: Reason,
    },
    /// The other side's settings have come or changed: more streams may fit.
    Settings,
    /// The other side takes no new requests. Those that it did not process get `Reset` with `ResetBy::GoAway`.
    GoAway {
        /// The last stream of this side's that it did or may have processed.
        last_stream: u32,
        /// Why.
        code: ErrorCode,
    },
    /// The answer to [`Connection::ping`](super::Connection::ping).
    Pong {
        /// As it was sent.
        payload: [u8; 8],
    },
}

/// Who cut a stream off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetBy {
    /// The other side, by RST_STREAM.
    Peer,
    /// The other side, by going away before it looked at the stream: the request may be sent again elsewhere, whatever its method.
    GoAway,
    /// This side, because of what the other sent.
    Us(Reason),
}

/// The outcome of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handled<'b> {
    /// Bytes of the input that were taken.
    pub consumed: usize,
    /// What happened. `None`: all of the input was taken.
    pub event: Option<Event<'b>>,
}

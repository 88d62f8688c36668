//! Errors of a connection or a stream, by reasons that can be counted.

/// An error code as sent in a frame (RFC 9113 section 7). Unknown ones have no special meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorCode(pub u32);

#[expect(missing_docs, reason = "each is the code of that name")]
impl ErrorCode {
    pub const NO_ERROR: Self = Self(0x0);
    pub const PROTOCOL_ERROR: Self = Self(0x1);
    pub const INTERNAL_ERROR: Self = Self(0x2);
    pub const FLOW_CONTROL_ERROR: Self = Self(0x3);
    pub const SETTINGS_TIMEOUT: Self = Self(0x4);
    pub const STREAM_CLOSED: Self = Self(0x5);
    pub const FRAME_SIZE_ERROR: Self = Self(0x6);
    pub const REFUSED_STREAM: Self = Self(0x7);
    pub const CANCEL: Self = Self(0x8);
    pub const COMPRESSION_ERROR: Self = Self(0x9);
    pub const CONNECT_ERROR: Self = Self(0xa);
    pub const ENHANCE_YOUR_CALM: Self = Self(0xb);
    pub const INADEQUATE_SECURITY: Self = Self(0xc);
    pub const HTTP_1_1_REQUIRED: Self = Self(0xd);
}

/// Why this side gave up on a connection or a stream. The other side is always the cause.
///
/// The same reason can end a stream in one place and the connection in another; RFC 9113 says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The connection does not begin with the preface, or its first frame is not SETTINGS (section 3.4).
    Preface,
    /// A frame of a size that is invalid for its type, or beyond SETTINGS_MAX_FRAME_SIZE (section 4.2).
    FrameSize,
    /// A frame on a stream on which it is not allowed: stream 0, one that never existed, or one of the wrong side (section 5.1).
    StreamId,
    /// A frame on a stream whose sender had ended it (section 5.1).
    StreamClosed,
    /// Padding as long as the frame (section 6.1).
    Padding,
    /// Another frame between HEADERS and the CONTINUATION that ends it, or a CONTINUATION without HEADERS (section 6.10).
    Continuation,
    /// PUSH_PROMISE, which the first settings refused (section 8.4).
    Push,
    /// A setting with an invalid value (section 6.5.2).
    Setting,
    /// A stream that depends on itself (RFC 7540 section 5.3.1).
    Priority,
    /// A window was opened by 0, or beyond 2^31-1 (section 6.9).
    WindowUpdate,
    /// More DATA than the window allowed (section 6.9).
    FlowControl,
    /// A header block that cannot be decoded (section 4.3).
    Compression,
    /// A malformed field name or value (section 8.2.1).
    Field,
    /// A field that belongs to one HTTP/1 connection: `connection`, `transfer-encoding`, ... (section 8.2.2).
    ConnectionField,
    /// Pseudo-header fields that are missing, repeated, unknown, after other fields, or malformed (section 8.3).
    PseudoHeader,
    /// `:authority` and `host` are both missing, malformed, or different (section 8.3.1).
    Authority,
    /// `content-length` is malformed, repeated, or different from the DATA received (section 8.1.1).
    ContentLength,
    /// An informational response that ends the stream, a 101, or DATA before a response (section 8.1).
    Response,
    /// Trailers that do not end the stream, or DATA in a response that has none (section 8.1).
    Trailers,
    /// A header list beyond the limits.
    HeadTooLarge,
    /// A header block beyond all limits, or in too many pieces.
    HeadFlood,
    /// More streams than were allowed.
    StreamLimit,
    /// Too many things that cost work and achieve nothing: see `Limits::glitches_max`.
    Glitches,
    /// The other side causes answers and does not read them.
    OutputFlood,
    /// Settings were not acknowledged in time (section 6.5.3).
    SettingsTimeout,
}

impl Reason {
    /// The name for counters and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Preface => "h2_preface",
            Self::FrameSize => "h2_frame_size",
            Self::StreamId => "h2_stream_id",
            Self::StreamClosed => "h2_stream_closed",
            Self::Padding => "h2_padding",
            Self::Continuation => "h2_continuation",
            Self::Push => "h2_push",
            Self::Setting => "h2_setting",
            Self::Priority => "h2_priority",
            Self::WindowUpdate => "h2_window_update",
            Self::FlowControl => "h2_flow_control",
            Self::Compression => "h2_compression",
            Self::Field => "h2_field",
            Self::ConnectionField => "h2_connection_field",
            Self::PseudoHeader => "h2_pseudo_header",
            Self::Authority => "h2_authority",
            Self::ContentLength => "h2_content_length",
            Self::Response => "h2_response",
            Self::Trailers => "h2_trailers",
            Self::HeadTooLarge => "h2_head_too_large",
            Self::HeadFlood => "h2_head_flood",
            Self::StreamLimit => "h2_stream_limit",
            Self::Glitches => "h2_glitches",
            Self::OutputFlood => "h2_output_flood",
            Self::SettingsTimeout => "h2_settings_timeout",
        }
    }

    /// The code that is sent to the other side.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::FrameSize => ErrorCode::FRAME_SIZE_ERROR,
            Self::StreamClosed => ErrorCode::STREAM_CLOSED,
            Self::FlowControl => ErrorCode::FLOW_CONTROL_ERROR,
            Self::Compression => ErrorCode::COMPRESSION_ERROR,
            Self::StreamLimit => ErrorCode::REFUSED_STREAM,
            Self::SettingsTimeout => ErrorCode::SETTINGS_TIMEOUT,
            Self::HeadFlood | Self::Glitches | Self::OutputFlood => ErrorCode::ENHANCE_YOUR_CALM,
            _ => ErrorCode::PROTOCOL_ERROR,
        }
    }
}

/// The connection cannot continue. GOAWAY with the code is in the output: write it, then close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// The reason, for counters.
    pub reason: Reason,
    /// The code that is sent to the other side; usually [`Reason::code`].
    pub code: ErrorCode,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HTTP/2 connection error {} ({})", self.code.0, self.reason.name())
    }
}

impl std::error::Error for Error {}

/// The internal outcome of a failed step of the state machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The whole connection (RFC 9113 section 5.4.1).
    Connection(Reason, ErrorCode),
    /// One stream (section 5.4.2).
    Stream(u32, Reason, ErrorCode),
}

impl Fault {
    pub(super) fn connection(reason: Reason) -> Self {
        Self::Connection(reason, reason.code())
    }

    pub(super) fn stream(id: u32, reason: Reason) -> Self {
        Self::Stream(id, reason, reason.code())
    }
}

/// Why something cannot be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The output is full. The stream will get [`Event::Writable`](super::Event::Writable); for a new request, see
    /// [`Connection::can_open`](super::Connection::can_open).
    Full,
    /// The stream is over, was reset, or has ended on this side.
    Closed,
    /// The connection is going away, so no new request may be sent on it.
    GoingAway,
}

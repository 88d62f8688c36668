//! What goes wrong on a connection or a stream, by reasons that can be counted.

/// An error code as it is sent (RFC 9113 section 7). Unknown ones have no special meaning.
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

/// Why this side gave up on a connection or on a stream: the other side's fault, always.
///
/// The same reason can end a stream in one place and the connection in another; RFC 9113 says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The connection does not begin with the preface, or SETTINGS is not its first frame (section 3.4).
    Preface,
    /// A frame of a size that its type cannot have, or beyond SETTINGS_MAX_FRAME_SIZE (section 4.2).
    FrameSize,
    /// A frame on a stream that it has no place on: stream 0, one that never was, one of the wrong side's (section 5.1).
    StreamId,
    /// A frame on a stream whose sender had ended it (section 5.1).
    StreamClosed,
    /// Padding as long as the frame (section 6.1).
    Padding,
    /// Something between HEADERS and the CONTINUATION that ends it, or a CONTINUATION without (section 6.10).
    Continuation,
    /// PUSH_PROMISE, which was refused from the beginning (section 8.4).
    Push,
    /// A setting with a value that it cannot have (section 6.5.2).
    Setting,
    /// A stream that depends on itself (RFC 7540 section 5.3.1).
    Priority,
    /// A window was opened by nothing, or beyond 2^31-1 (section 6.9).
    WindowUpdate,
    /// More DATA than the window allowed (section 6.9).
    FlowControl,
    /// A header block that cannot be decoded (section 4.3).
    Compression,
    /// A malformed field name or value (section 8.2.1).
    Field,
    /// A field that belongs to one HTTP/1 connection: `connection`, `transfer-encoding`, ... (section 8.2.2).
    ConnectionField,
    /// Pseudo-header fields: missing, repeated, unknown, behind others, or malformed (section 8.3).
    PseudoHeader,
    /// `:authority` and `host`: none, malformed, or not the same (section 8.3.1).
    Authority,
    /// `content-length`: malformed, repeated, or not what came as DATA (section 8.1.1).
    ContentLength,
    /// An informational response that ends the stream, a 101, or DATA in front of a response (section 8.1).
    Response,
    /// Trailers that do not end the stream, or DATA where a response has none (section 8.1).
    Trailers,
    /// A header list beyond the limits.
    HeadTooLarge,
    /// A header block beyond all limits, or in too many pieces.
    HeadFlood,
    /// More streams than were allowed.
    StreamLimit,
    /// Too much that costs work and leads nowhere: see `Limits::glitches_max`.
    Glitches,
    /// The other side makes us answer, and does not read the answers.
    OutputFlood,
    /// Settings were not acknowledged in time (section 6.5.3).
    SettingsTimeout,
}

impl Reason {
    /// For counters and logs.
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

    /// What the other side is told.
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

/// The connection is beyond repair. GOAWAY with the code is in the output: write it, then close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Why, for counters.
    pub reason: Reason,
    /// What the other side is told; mostly [`Reason::code`].
    pub code: ErrorCode,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HTTP/2 connection error {} ({})", self.code.0, self.reason.name())
    }
}

impl std::error::Error for Error {}

/// What a step of the state machine can end in, inside.
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
    /// The output is full. [`Event::Writable`](super::Event::Writable) will come for the stream; for a new request, see
    /// [`Connection::can_open`](super::Connection::can_open).
    Full,
    /// The stream is over, was reset, or is ended on this side.
    Closed,
    /// No new request may be sent on this connection: it is going away.
    GoingAway,
}

//! The nine-byte head of every frame (RFC 9113 section 4.1), and functions that write small frames.

use super::error::ErrorCode;

/// Bytes of a frame's head.
pub(super) const HEAD_BYTES: usize = 9;

/// The first bytes that a client sends (section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The largest payload that is accepted or sent. It is the standard's default and never changes. A larger frame would only make other
/// streams wait.
pub const FRAME_BYTES_MAX: usize = 16_384;

/// 2^31-1: the largest window, and the largest id of a stream.
pub(super) const WINDOW_MAX: i64 = 0x7fff_ffff;
/// The same as a stream id.
pub(super) const STREAM_ID_MAX: u32 = 0x7fff_ffff;
/// The initial size of every window (section 6.9.2).
pub(super) const WINDOW_DEFAULT: i64 = 65_535;

pub(super) mod kind {
    //! Types of frames (section 6).
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

pub(super) mod flag {
    //! Flags of frames (section 6).
    pub const END_STREAM: u8 = 0x1;
    pub const ACK: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

pub(super) mod setting {
    //! Identifiers of settings (section 6.5.2, RFC 8441 section 3, RFC 9218 section 2.1).
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    pub const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// Length of the payload, `< 2^24`.
    pub(super) length: u32,
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// `< 2^31`.
    pub(super) stream: u32,
}

impl FrameHead {
    pub(super) fn parse(bytes: &[u8; HEAD_BYTES]) -> Self {
        let [a, b, c, kind, flags, stream @ ..] = *bytes;
        // The reserved bit is ignored.
        Self {
            length: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes(stream) & STREAM_ID_MAX,
        }
    }

    pub(super) fn bytes(self) -> [u8; HEAD_BYTES] {
        let [_, a, b, c] = self.length.to_be_bytes();
        let [s, t, u, v] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, s, t, u, v]
    }

    pub(super) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

pub(super) fn write_head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&FrameHead { length: length as u32, kind, flags, stream }.bytes());
}

pub(super) fn write_rst_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
    write_head(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// Stream 0 is the connection's window.
pub(super) fn write_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    write_head(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

pub(super) fn write_ping(out: &mut Vec<u8>, flags: u8, payload: [u8; 8]) {
    write_head(out, 8, kind::PING, flags, 0);
    out.extend_from_slice(&payload);
}

pub(super) fn write_goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode) {
    write_head(out, 8, kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last_stream.to_be_bytes());
    out.extend_from_slice(&code.0.to_be_bytes());
}

/// The first four bytes of `payload` as a number; 0 if there are fewer.
pub(super) fn number(payload: &[u8]) -> u32 {
    payload.first_chunk::<4>().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads() {
        let check = |bytes: [u8; 9], length, kind, flags, stream| {
            let head = FrameHead { length, kind, flags, stream };
            assert_eq!(FrameHead::parse(&bytes), head);
            assert_eq!(head.bytes(), bytes);
        };
        check([0, 0, 0, 4, 0, 0, 0, 0, 0], 0, kind::SETTINGS, 0, 0);
        check([0, 0x40, 0, 0, 1, 0, 0, 0, 7], 16_384, kind::DATA, flag::END_STREAM, 7);
        check([0xff, 0xff, 0xff, 0xfe, 0xff, 0x7f, 0xff, 0xff, 0xff], 0xff_ffff, 0xfe, 0xff, STREAM_ID_MAX);
        // With the reserved bit set.
        assert_eq!(FrameHead::parse(&[0, 0, 0, 0, 0, 0x80, 0, 0, 1]).stream, 1);
    }
}

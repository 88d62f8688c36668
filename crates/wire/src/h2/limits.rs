//! Limits on the memory and time that one connection may use on this side.

use super::frame::{FRAME_BYTES_MAX, HEAD_BYTES};
use super::head;
use super::streams;
use crate::hpack;

/// CONTINUATION frames of one header block. A list within the limits fits into two or three of a reasonable size.
pub const CONTINUATIONS_MAX: u32 = 16;

/// Bytes of answers (SETTINGS, PING, WINDOW_UPDATE, RST_STREAM) that may wait to be written, in addition to [`Limits::output_bytes_max`].
/// Beyond that, the connection is closed. Reading cannot simply stop while DATA waits to be written: two hops could then wait for each
/// other for ever.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Changes of the stream window that may be unacknowledged ([`Connection::set_stream_window`](super::Connection::set_stream_window)).
pub const WINDOWS_ANNOUNCED_MAX: usize = 4;

/// Limits of one connection. The defaults suit an unknown client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that the other side may have open at once; announced. As many again are held while the owner still holds streams that are
    /// over (until `Connection::forget`).
    pub streams_max: u32,
    /// Bytes of one stream's DATA that were received and not yet released; announced. It is at least 65,535, because the other side may
    /// send that much before it sees any settings. A stream transfers at most this much per round trip.
    pub stream_window_bytes: u32,
    /// The same for all streams together, at least 65,535. It bounds what the owner has to hold.
    pub connection_window_bytes: u32,
    /// The size of a head or of trailers, counted as in RFC 9113 section 6.5.2, with 32 bytes added per field; announced.
    pub header_list_bytes_max: u32,
    /// Fields of a head or of trailers. Each cookie crumb counts.
    pub fields_max: u32,
    /// Output that may wait to be written before DATA and heads have to wait.
    pub output_bytes_max: u32,
    /// The budget of the other side for things that cost work and achieve nothing. When it is used up, the connection ends with
    /// ENHANCE_YOUR_CALM. Each kind has its price (`glitches.rs`). Completed requests, DATA and time pay back.
    pub glitches_max: u32,
    /// Whether a server accepts extended CONNECT (RFC 8441) for WebSocket; announced.
    pub extended_connect: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // The minimum that RFC 9113 section 6.5.2 recommends, and that gRPC clients expect.
            streams_max: 100,
            stream_window_bytes: 256 * 1024,
            connection_window_bytes: 1024 * 1024,
            header_list_bytes_max: 32 * 1024,
            fields_max: 100,
            output_bytes_max: 64 * 1024,
            glitches_max: 2_000,
            extended_connect: true,
        }
    }
}

impl Limits {
    /// The largest header block before decoding. The blocks of lists within the limit are smaller; one that is somewhat larger can still be
    /// decoded and answered with 431.
    pub fn block_bytes_max(&self) -> usize {
        2 * self.header_list_bytes_max as usize
    }

    /// Streams that are held for the owner at once.
    pub(super) fn slots_max(&self) -> usize {
        2 * self.streams_max as usize
    }

    /// The most memory that a connection can hold, in bytes, whatever the other side sends and however its bytes are split.
    ///
    /// It excludes DATA, which is never kept here. The owner keeps the DATA that it cannot pass on, at most `connection_window_bytes`.
    pub fn memory_bytes_max(&self) -> usize {
        // Vectors grow by doubling, to up to twice the requested size.
        let frame = 2 * (HEAD_BYTES + FRAME_BYTES_MAX);
        let block = 2 * self.block_bytes_max();
        let output = 2 * (self.output_bytes_max as usize + ANSWER_BYTES_MAX + 2 * FRAME_BYTES_MAX);
        let head = 2 * (head::memory_bytes_max(self.header_list_bytes_max as usize, self.fields_max as usize));
        let literal = 2 * (self.block_bytes_max() * 8 / 5);
        let streams = streams::memory_bytes_max(self.slots_max());
        let windows = 2 * WINDOWS_ANNOUNCED_MAX * size_of::<u32>();
        frame + block + output + head + literal + streams + windows + hpack::MEMORY_BYTES_MAX
    }
}

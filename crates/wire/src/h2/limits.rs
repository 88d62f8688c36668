//! What one connection may take of this side's memory and time.

use super::frame::{FRAME_BYTES_MAX, HEAD_BYTES};
use super::head;
use super::streams;
use crate::hpack;

/// CONTINUATION frames of one header block. What is within the limits of a list fits into two or three of a sensible size.
pub const CONTINUATIONS_MAX: u32 = 16;

/// Answers (SETTINGS, PING, WINDOW_UPDATE, RST_STREAM) that may wait for the other side to read them, beyond
/// [`Limits::output_bytes_max`]. Then the connection is closed: reading has to go on while DATA waits, or two hops that both wait
/// for each other to read would do so for ever.
pub const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Changes of the window of streams that may be on their way ([`Connection::set_stream_window`](super::Connection::set_stream_window)).
pub const WINDOWS_ANNOUNCED_MAX: usize = 4;

/// Limits of one connection. The defaults suit a client that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Streams that the other side may have open at once; announced. While the owner has not let go of streams that are over
    /// (`Connection::forget`), as many again are held for it.
    pub streams_max: u32,
    /// Bytes of one stream's DATA that were received and not yet released; announced; at least 65,535: the other side may use so
    /// much before it has heard anything. A stream gets no faster than this for each round trip.
    pub stream_window_bytes: u32,
    /// Likewise for all streams together: this bounds what the owner has to hold. At least 65,535.
    pub connection_window_bytes: u32,
    /// A head or trailers, counted as RFC 9113 section 6.5.2 does, with 32 bytes for each field; announced.
    pub header_list_bytes_max: u32,
    /// Fields of a head or of trailers; crumbs of cookies count one by one.
    pub fields_max: u32,
    /// Output that may wait to be written, before DATA and heads have to wait.
    pub output_bytes_max: u32,
    /// What the other side may spend on things that cost work and lead nowhere, before it is told to calm down. Each has its price
    /// (`glitches.rs`); requests that are let run to their end, DATA, and time pay back.
    pub glitches_max: u32,
    /// Takes extended CONNECT (RFC 8441): WebSocket. For the server's side; announced.
    pub extended_connect: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // What RFC 9113 section 6.5.2 recommends at least, and gRPC clients expect.
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
    /// A header block before decoding: blocks of lists within the limit are smaller, and one that is somewhat beyond can still be
    /// decoded and answered with 431.
    pub fn block_bytes_max(&self) -> usize {
        2 * self.header_list_bytes_max as usize
    }

    /// Streams that are held for the owner at once.
    pub(super) fn slots_max(&self) -> usize {
        2 * self.streams_max as usize
    }

    /// Memory that a connection can hold at most, in bytes, whatever the other side sends and however it is cut.
    ///
    /// Not in it: DATA, which is never kept here. The owner keeps what it cannot pass on: at most `connection_window_bytes`.
    pub fn memory_bytes_max(&self) -> usize {
        // Vectors grow by doubling: up to twice what was asked for.
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

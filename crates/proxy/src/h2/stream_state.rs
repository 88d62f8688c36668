//! The receive state of a stream: what has arrived and was not taken yet, and the tasks that wait.

use std::collections::VecDeque;
use std::task::Waker;

use net::buffer::Buffer;
use wire::message::{Field, ResponseHead};

use super::connection::StreamEnd;

/// Heads and trailers whose buffers are larger than this, in bytes, are not kept for another stream.
const KEPT_BYTES_MAX: usize = 4096;

/// What has arrived on one stream and was not taken by its exchange yet.
///
/// Everything that each poll needs is in one cache line. With hundreds of waiting streams, none is in the nearer caches when its turn
/// comes, so each line that is touched is a cache miss.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct StreamState {
    /// 0 if the entry is free.
    pub(super) id: u32,
    /// Nothing follows the bytes in `input`.
    pub(super) is_ended: bool,
    /// Trailers have arrived, and are in `received`.
    pub(super) has_trailers: bool,
    /// A response's head has arrived, and is in `received`.
    pub(super) has_head: bool,
    /// The request's head exceeds the limits, and was not kept.
    pub(super) is_too_large: bool,
    /// The waker of the exchange that waits for data.
    pub(super) reader: Option<Waker>,
    /// DATA: at most the stream's window.
    pub(super) input: Buffer,
    pub(super) ended: Option<StreamEnd>,
    /// Heads and trailers. `None` if none have arrived.
    pub(super) received: Option<Box<ReceivedHeads>>,
    /// The waker of the exchange that waits to send.
    pub(super) writer: Option<Waker>,
}

/// Heads and trailers of one stream, with their buffers. They are in use from their arrival until the end of the exchange. That is a short
/// time, so few are in use at once, and the streams reuse them.
#[derive(Default)]
pub(super) struct ReceivedHeads {
    pub(super) head: ResponseHead,
    pub(super) head_bytes: Vec<u8>,
    pub(super) trailers: Vec<Field>,
    pub(super) trailer_bytes: Vec<u8>,
    /// Heads after `head`. There is more than one only with informational responses.
    pub(super) heads: VecDeque<(ResponseHead, Vec<u8>)>,
}

impl ReceivedHeads {
    /// Clears it for reuse. Returns false if its buffers are too large to be kept.
    pub(super) fn clear(&mut self) -> bool {
        if !self.heads.is_empty() {
            self.heads = VecDeque::new();
        }
        let fields = (self.trailers.capacity() + self.head.fields.capacity()) * size_of::<Field>();
        self.trailer_bytes.capacity() + self.head_bytes.capacity() + fields <= KEPT_BYTES_MAX
    }
}

impl StreamState {
    pub(super) fn begin(&mut self, id: u32, is_ended: bool, is_too_large: bool) {
        (self.id, self.is_ended, self.is_too_large) = (id, is_ended, is_too_large);
    }

    /// Frees the entry.
    pub(super) fn clear(&mut self) -> Option<Box<ReceivedHeads>> {
        self.id = 0;
        self.input = Buffer::none();
        (self.is_ended, self.has_trailers, self.has_head) = (false, false, false);
        (self.ended, self.reader, self.writer) = (None, None, None);
        self.received.take()
    }

    pub(super) fn wake_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    pub(super) fn wake_writer(&mut self) {
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    pub(super) fn end(&mut self, end: StreamEnd) {
        self.ended.get_or_insert(end);
        self.wake_reader();
        self.wake_writer();
    }
}

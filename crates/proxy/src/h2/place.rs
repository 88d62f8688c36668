//! What has come for a stream, and who waits for more.

use std::collections::VecDeque;
use std::task::Waker;

use net::buffer::Buffer;
use wire::message::{Field, ResponseHead};

use super::connection::Cut;

/// Room for heads and trailers that is kept for another stream, in bytes.
const ROOM_BYTES_MAX: usize = 4096;

/// What has come for one stream and its exchange has not taken yet.
///
/// One line of the cache for all that every look needs: of hundreds of streams that wait none is in the nearer caches when its turn comes, and
/// each line that is touched is waited for.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct Place {
    /// 0: it is nobody's.
    pub(super) id: u32,
    /// Nothing follows what is in `input`.
    pub(super) is_ended: bool,
    /// Trailers came, and are in `arrived`.
    pub(super) has_trailers: bool,
    /// A response's head came, and is in `arrived`.
    pub(super) has_head: bool,
    /// The request's head is beyond the limits, and was not kept.
    pub(super) is_too_large: bool,
    /// Who waits for something to come.
    pub(super) reader: Option<Waker>,
    /// DATA: at most the stream's window.
    pub(super) input: Buffer,
    pub(super) cut: Option<Cut>,
    /// Heads and trailers. `None`: nothing of the kind has come.
    pub(super) arrived: Option<Box<Arrived>>,
    /// Who waits for room to send.
    pub(super) writer: Option<Waker>,
}

/// Heads and trailers of one stream, and the room for them: in use from their coming until the exchange is over, which is not long. So few
/// are in use at once, and go round among the streams.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) head: ResponseHead,
    pub(super) head_bytes: Vec<u8>,
    pub(super) trailers: Vec<Field>,
    pub(super) trailer_bytes: Vec<u8>,
    /// Heads behind `head`: there is more than one only where informational responses come.
    pub(super) heads: VecDeque<(ResponseHead, Vec<u8>)>,
}

impl Arrived {
    /// Makes it a spare. False: it takes too much room for that.
    pub(super) fn clear(&mut self) -> bool {
        if !self.heads.is_empty() {
            self.heads = VecDeque::new();
        }
        let fields = (self.trailers.capacity() + self.head.fields.capacity()) * size_of::<Field>();
        self.trailer_bytes.capacity() + self.head_bytes.capacity() + fields <= ROOM_BYTES_MAX
    }
}

impl Place {
    pub(super) fn begin(&mut self, id: u32, is_ended: bool, is_too_large: bool) {
        (self.id, self.is_ended, self.is_too_large) = (id, is_ended, is_too_large);
    }

    /// Gives all back.
    pub(super) fn clear(&mut self) -> Option<Box<Arrived>> {
        self.id = 0;
        self.input = Buffer::none();
        (self.is_ended, self.has_trailers, self.has_head) = (false, false, false);
        (self.cut, self.reader, self.writer) = (None, None, None);
        self.arrived.take()
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

    pub(super) fn cut(&mut self, cut: Cut) {
        self.cut.get_or_insert(cut);
        self.wake_reader();
        self.wake_writer();
    }
}

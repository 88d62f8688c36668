//! Read buffers, pooled by thread: a connection that waits holds none.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::memory::{self, Pressure};
use crate::spares::Spares;

/// Room of a tiny buffer, for a message that is kept until its receiver comes. Streams wait by the hundred: in rooms of 16 KiB, each of which
/// begins a page, what they hold would lie in a few sets of the caches.
const TINY_BYTES: usize = 1024;

/// Room of a little buffer, for one read while the process has used up its memory: about as much as the rest of an exchange costs.
const LITTLE_BYTES: usize = 4 * 1024;

/// Room of a small buffer: a head of the default limit needs two, all else fits one.
pub const SMALL_BYTES: usize = 16 * 1024;

/// Room of a large buffer, for bodies and streams that have shown themselves to be bulk. Measured over loopback: a recv of 256 KiB
/// costs a third less CPU a byte than one of 16 KiB, and more than that gains nothing.
pub const LARGE_BYTES: usize = 256 * 1024;

/// The sizes of buffers that are used again, and how many spare ones of each a thread keeps: 0.25 MiB of tiny and of little ones, 4 MiB of small
/// and of large ones, at most 0.5 MiB of each size between. The sizes lie so close together that a buffer, once it is larger than a small one, is at most half
/// as large again as what it has to hold: a client decides how much a stream holds. DATA of one stream reaches 128 KiB.
const KINDS: [(usize, usize); 11] = [
    (TINY_BYTES, 256),
    (LITTLE_BYTES, 64),
    (SMALL_BYTES, 256),
    (20 * 1024, 16),
    (24 * 1024, 16),
    (32 * 1024, 16),
    (48 * 1024, 10),
    (64 * 1024, 8),
    (96 * 1024, 4),
    (128 * 1024, 4),
    (LARGE_BYTES, 16),
];

thread_local! {
    /// Rooms of [`LARGE_BYTES`] that this thread has given out.
    static LARGE_IN_USE: Cell<usize> = const { Cell::new(0) };

    /// Spare rooms of this thread, by size as in [`KINDS`].
    static ROOMS: RefCell<[Spares<[u8]>; KINDS.len()]> = const { RefCell::new([const { Spares::new() }; KINDS.len()]) };
}

/// Large buffers of this thread that are in use.
pub fn large_in_use() -> usize {
    LARGE_IN_USE.get()
}

/// Room for one read: [`SMALL_BYTES`], and less while memory is full.
pub fn piece_bytes() -> usize {
    if memory::pressure() == Pressure::Full { LITTLE_BYTES } else { SMALL_BYTES }
}

/// Drops spare rooms of this thread that nobody needs ([`Spares::trim`]).
pub fn trim() {
    ROOMS.with_borrow_mut(|rooms| rooms.iter_mut().for_each(Spares::trim));
}

/// Bytes that were read and not yet used. Its room goes back to the thread when it is dropped.
///
/// `0 <= start <= end <= room.len()`
pub struct Buffer {
    room: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// An empty buffer of [`SMALL_BYTES`].
    pub fn small() -> Self {
        Self::of_bytes(SMALL_BYTES)
    }

    /// An empty buffer of [`LARGE_BYTES`].
    pub fn large() -> Self {
        Self::of_bytes(LARGE_BYTES)
    }

    /// An empty buffer of exactly so many bytes.
    pub fn of_bytes(bytes: usize) -> Self {
        if bytes == LARGE_BYTES {
            LARGE_IN_USE.set(LARGE_IN_USE.get() + 1);
        }
        let make = || vec![0; bytes].into_boxed_slice();
        let kind = KINDS.iter().position(|(size, _)| *size == bytes);
        let room = ROOMS.with_borrow_mut(|rooms| Some(rooms.get_mut(kind?)?.take_or(make)));
        Self::of(room.unwrap_or_else(|| {
            memory::note_allocated(bytes);
            make()
        }))
    }

    /// An empty buffer without room: nothing can be read into it.
    pub fn none() -> Self {
        Self::of(Box::default())
    }

    fn of(room: Box<[u8]>) -> Self {
        Self { room, start: 0, end: 0 }
    }

    /// What was read and not consumed.
    pub fn filled(&self) -> &[u8] {
        self.room.get(self.start..self.end).unwrap_or_default()
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Bytes it can hold in all.
    pub fn capacity(&self) -> usize {
        self.room.len()
    }

    /// Whether a read has no room left, even after moving what is in it to the front.
    pub fn is_full(&self) -> bool {
        self.len() == self.room.len()
    }

    /// Drops `count` bytes from the front; all, if there are fewer.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves what is in it into a buffer that holds at least `capacity` bytes.
    pub fn grow(&mut self, capacity: usize) {
        if capacity <= self.room.len() {
            return;
        }
        // No more than was asked for, from small ones on: a client decides when the buffer of its head grows.
        let is_kind = [TINY_BYTES, LITTLE_BYTES].contains(&capacity);
        let mut larger = Self::of_bytes(if is_kind { capacity } else { capacity.max(SMALL_BYTES) });
        let length = self.len();
        if let Some(room) = larger.room.get_mut(..length) {
            room.copy_from_slice(self.filled());
            larger.end = length;
        }
        *self = larger;
    }

    /// Gives back the memory that what is in it does not need: all of it if it is empty; else what a smaller size saves, but a large one only
    /// for a small one, since [`large_in_use`] counts what waits.
    pub fn fit(&mut self) {
        if self.is_empty() {
            *self = Self::none();
            return;
        }
        let bytes = if self.room.len() == LARGE_BYTES && self.len() > SMALL_BYTES {
            LARGE_BYTES
        } else {
            bytes_for(self.len().max(SMALL_BYTES))
        };
        if bytes < self.room.len() {
            let mut smaller = Self::of_bytes(bytes);
            smaller.put(self.filled());
            *self = smaller;
        }
    }

    /// Appends bytes, in a larger room where this one is too small.
    pub fn put(&mut self, bytes: &[u8]) {
        let wanted = self.len() + bytes.len();
        if wanted > self.room.len() {
            self.grow(bytes_for(wanted));
        } else if self.end + bytes.len() > self.room.len() {
            self.room.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if let Some(room) = self.room.get_mut(self.end..self.end + bytes.len()) {
            room.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }

    /// Reads once. `Ready(Ok(0))` is the end of the stream.
    ///
    /// # Errors
    /// Those of the stream; [`io::ErrorKind::OutOfMemory`] where the buffer is full, so that a caller that forgot a limit fails
    /// instead of taking "no room" for "end of stream".
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        if self.end == self.room.len() && self.start > 0 {
            self.room.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let Some(room) = self.room.get_mut(self.end..).filter(|room| !room.is_empty()) else {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        };
        let mut space = ReadBuf::new(room);
        ready!(Pin::new(stream).poll_read(cx, &mut space))?;
        let count = space.filled().len();
        self.end += count;
        Poll::Ready(Ok(count))
    }
}

/// Size of a buffer that so many bytes are put into.
fn bytes_for(wanted: usize) -> usize {
    let mut sizes = KINDS.iter().map(|(size, _)| *size);
    sizes.find(|size| wanted <= *size).unwrap_or_else(|| wanted.next_power_of_two())
}

impl Default for Buffer {
    fn default() -> Self {
        Self::none()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.room.is_empty() {
            return;
        }
        let room = std::mem::take(&mut self.room);
        if room.len() == LARGE_BYTES {
            LARGE_IN_USE.set(LARGE_IN_USE.get().saturating_sub(1));
        }
        // Fails only while the thread ends; the room is then freed.
        let _ = ROOMS.try_with(|rooms| {
            let mut rooms = rooms.borrow_mut();
            let kind = rooms.iter_mut().zip(KINDS).find(|(_, (size, _))| *size == room.len());
            match kind {
                Some((spares, (_, spares_max))) => spares.put(room, spares_max),
                None => memory::note_freed(room.len()),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn fills_consumes_and_moves_to_the_front() {
        let mut buffer = Buffer::small();
        let text = vec![7_u8; SMALL_BYTES + 10];
        let mut stream = text.as_slice();
        assert_eq!(poll_fn(|cx| buffer.poll_fill(cx, &mut stream)).await.unwrap(), SMALL_BYTES);
        assert!(buffer.is_full());
        let full = poll_fn(|cx| buffer.poll_fill(cx, &mut stream)).await;
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        buffer.consume(100);
        assert_eq!(poll_fn(|cx| buffer.poll_fill(cx, &mut stream)).await.unwrap(), 10);
        assert_eq!(buffer.len(), SMALL_BYTES - 90);
        assert_eq!(poll_fn(|cx| buffer.poll_fill(cx, &mut stream)).await.unwrap(), 0);
        buffer.grow(SMALL_BYTES + 1);
        assert_eq!((buffer.capacity(), buffer.len()), (SMALL_BYTES + 1, SMALL_BYTES - 90));
        buffer.grow(LARGE_BYTES);
        assert_eq!((buffer.capacity(), buffer.len()), (LARGE_BYTES, SMALL_BYTES - 90));
        buffer.consume(usize::MAX);
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_is_put_in_comes_out_in_order() {
        let mut buffer = Buffer::none();
        let mut expect = Vec::new();
        for round in 0..200_u32 {
            let bytes: Vec<u8> = (0..round * 37).map(|at| (at ^ round) as u8).collect();
            buffer.put(&bytes);
            expect.extend_from_slice(&bytes);
            let taken = (round as usize * 31).min(expect.len());
            buffer.consume(taken);
            expect.drain(..taken);
            assert_eq!(buffer.filled(), expect, "{round}");
        }
        assert!(expect.len() > SMALL_BYTES && buffer.capacity() > SMALL_BYTES);
    }

    #[test]
    fn a_buffer_is_at_most_half_as_large_again_as_what_it_holds() {
        for bytes in (SMALL_BYTES + 1..=128 * 1024).step_by(1023) {
            let mut buffer = Buffer::none();
            buffer.put(&vec![1; bytes]);
            assert!(buffer.len() == bytes && buffer.capacity() <= bytes + bytes / 2, "{bytes}: {}", buffer.capacity());
        }
        let mut buffer = Buffer::none();
        buffer.put(&[1; SMALL_BYTES + 1]);
        assert_eq!(buffer.capacity(), 20 * 1024);
    }

    #[test]
    fn what_is_left_moves_to_a_buffer_that_fits() {
        let mut buffer = Buffer::none();
        buffer.put(&vec![7; 60 * 1024]);
        buffer.consume(20 * 1024);
        buffer.fit();
        assert_eq!((buffer.capacity(), buffer.len()), (48 * 1024, 40 * 1024));
        buffer.consume(30 * 1024);
        buffer.fit();
        assert_eq!((buffer.capacity(), buffer.filled()), (SMALL_BYTES, &[7; 10 * 1024][..]));
        buffer.consume(10 * 1024);
        buffer.fit();
        assert_eq!(buffer.capacity(), 0);
    }

    #[test]
    fn large_buffers_are_counted_while_they_are_in_use() {
        let mut buffer = Buffer::large();
        buffer.put(&vec![7; 40 * 1024]);
        buffer.fit();
        assert_eq!((buffer.capacity(), large_in_use()), (LARGE_BYTES, 1));
        buffer.consume(30 * 1024);
        buffer.fit();
        assert_eq!((buffer.capacity(), large_in_use()), (SMALL_BYTES, 0));
    }

    #[test]
    fn room_is_used_again() {
        let first = Buffer::small().room.as_ptr();
        assert_eq!(Buffer::small().room.as_ptr(), first);
    }

    #[test]
    fn rooms_that_nobody_needs_are_dropped_by_halves() {
        let spares = || ROOMS.with_borrow(|rooms| rooms[2].len());
        let burst: Vec<Buffer> = (0..100).map(|_| Buffer::small()).collect();
        drop(burst);
        assert_eq!(spares(), 100);
        // All were needed since the last time, if there was one.
        trim();
        let in_use: Vec<Buffer> = (0..20).map(|_| Buffer::small()).collect();
        drop(in_use);
        trim();
        assert_eq!(spares(), 60);
        (0..10).for_each(|_| trim());
        assert_eq!(spares(), 0);
    }
}

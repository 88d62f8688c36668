//! Read buffers, pooled per thread. A waiting connection holds none.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::free_list::FreeList;
use crate::memory::{self, Pressure};

/// Size of a tiny buffer, for a message that is kept until its receiver comes. Hundreds of streams may wait. If each had a buffer of 16
/// KiB, which starts on a page boundary, their bytes would all fall into a few sets of the caches.
const TINY_BYTES: usize = 1024;

/// Size of a little buffer, for one read while the process has used up its memory. It costs about as much as the rest of an exchange.
const LITTLE_BYTES: usize = 4 * 1024;

/// Size of a small buffer. A head of the default limit needs two; everything else fits in one.
pub const SMALL_BYTES: usize = 16 * 1024;

/// Size of a large buffer, for bodies and streams that have turned out to be bulk. Measured over loopback: a recv of 256 KiB costs a third
/// less CPU per byte than one of 16 KiB, and a larger one gains nothing.
pub const LARGE_BYTES: usize = 256 * 1024;

/// The sizes of buffers that are reused, and how many free ones of each size a thread keeps: 0.25 MiB of tiny and of little ones, 4 MiB of
/// small and of large ones, and at most 0.5 MiB of each size between. A client decides how much a stream holds, so the sizes are close
/// together: a buffer above the small size is at most one and a half times as large as its content. DATA of one stream reaches 128 KiB.
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
    /// Buffers of [`LARGE_BYTES`] that this thread has in use.
    static LARGE_IN_USE: Cell<usize> = const { Cell::new(0) };

    /// The buffer pool of this thread: a free list for each size of [`KINDS`].
    static POOL: RefCell<[FreeList<[u8]>; KINDS.len()]> = const { RefCell::new([const { FreeList::new() }; KINDS.len()]) };
}

/// Large buffers of this thread that are in use.
pub fn large_in_use() -> usize {
    LARGE_IN_USE.get()
}

/// Size of a buffer for one read: [`SMALL_BYTES`], or less while memory is full.
pub fn piece_bytes() -> usize {
    if memory::pressure() == Pressure::Full { LITTLE_BYTES } else { SMALL_BYTES }
}

/// As [`piece_bytes`], for a receiver that has `room` bytes left: the largest size that fits, or the smallest size if none does.
pub fn piece_bytes_within(room: usize) -> usize {
    let sizes = [SMALL_BYTES, LITTLE_BYTES];
    sizes.into_iter().find(|size| *size <= room).unwrap_or(TINY_BYTES).min(piece_bytes())
}

/// Frees unneeded storage in this thread's pool ([`FreeList::trim`]).
pub fn trim() {
    POOL.with_borrow_mut(|lists| lists.iter_mut().for_each(FreeList::trim));
}

/// Bytes that were read and are not yet used. On drop, its storage goes back to the thread's pool.
///
/// `0 <= start <= end <= storage.len()`
pub struct Buffer {
    storage: Box<[u8]>,
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

    /// An empty buffer of exactly `bytes` bytes.
    pub fn of_bytes(bytes: usize) -> Self {
        if bytes == LARGE_BYTES {
            LARGE_IN_USE.set(LARGE_IN_USE.get() + 1);
        }
        let make = || vec![0; bytes].into_boxed_slice();
        let kind = KINDS.iter().position(|(size, _)| *size == bytes);
        let storage = POOL.with_borrow_mut(|lists| Some(lists.get_mut(kind?)?.take_or(make)));
        Self::of(storage.unwrap_or_else(|| {
            memory::note_allocated(bytes);
            make()
        }))
    }

    /// An empty buffer without storage: nothing can be read into it.
    pub fn none() -> Self {
        Self::of(Box::default())
    }

    fn of(storage: Box<[u8]>) -> Self {
        Self { storage, start: 0, end: 0 }
    }

    /// The bytes that were read and not consumed.
    pub fn filled(&self) -> &[u8] {
        self.storage.get(self.start..self.end).unwrap_or_default()
    }

    /// The number of bytes in it.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The number of bytes it can hold.
    pub fn capacity(&self) -> usize {
        self.storage.len()
    }

    /// Whether a read has no room left, even after the content moves to the front.
    pub fn is_full(&self) -> bool {
        self.len() == self.storage.len()
    }

    /// Drops `count` bytes from the front, or all if there are fewer.
    pub fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Moves the content into a buffer that holds at least `capacity` bytes.
    pub fn grow(&mut self, capacity: usize) {
        if capacity <= self.storage.len() {
            return;
        }
        // No more than requested, from the small size on: a client decides when the buffer of its head grows.
        let is_kind = [TINY_BYTES, LITTLE_BYTES].contains(&capacity);
        let mut larger = Self::of_bytes(if is_kind { capacity } else { capacity.max(SMALL_BYTES) });
        let length = self.len();
        if let Some(storage) = larger.storage.get_mut(..length) {
            storage.copy_from_slice(self.filled());
            larger.end = length;
        }
        *self = larger;
    }

    /// Gives back the memory that the content does not need. An empty buffer gives back everything. Otherwise the content moves to a
    /// smaller size; but a large buffer is replaced only if the content fits in a small one, since [`large_in_use`] counts what waits.
    pub fn fit(&mut self) {
        if self.is_empty() {
            *self = Self::none();
            return;
        }
        let bytes = if self.storage.len() == LARGE_BYTES && self.len() > SMALL_BYTES {
            LARGE_BYTES
        } else {
            bytes_for(self.len().max(SMALL_BYTES))
        };
        if bytes < self.storage.len() {
            let mut smaller = Self::of_bytes(bytes);
            smaller.put(self.filled());
            *self = smaller;
        }
    }

    /// Appends bytes, and moves to larger storage if this is too small.
    pub fn put(&mut self, bytes: &[u8]) {
        let wanted = self.len() + bytes.len();
        if wanted > self.storage.len() {
            self.grow(bytes_for(wanted));
        } else if self.end + bytes.len() > self.storage.len() {
            self.storage.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if let Some(storage) = self.storage.get_mut(self.end..self.end + bytes.len()) {
            storage.copy_from_slice(bytes);
            self.end += bytes.len();
        }
    }

    /// Reads once. `Ready(Ok(0))` is the end of the stream.
    ///
    /// # Errors
    /// Those of the stream, and [`io::ErrorKind::OutOfMemory`] if the buffer is full, so that a caller that forgot a limit fails instead of
    /// taking "no room" for "end of stream".
    pub fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        if self.end == self.storage.len() && self.start > 0 {
            self.storage.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let Some(storage) = self.storage.get_mut(self.end..).filter(|storage| !storage.is_empty()) else {
            return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
        };
        let mut space = ReadBuf::new(storage);
        ready!(Pin::new(stream).poll_read(cx, &mut space))?;
        let count = space.filled().len();
        self.end += count;
        Poll::Ready(Ok(count))
    }
}

/// Size of a buffer that will hold `wanted` bytes.
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
        if self.storage.is_empty() {
            return;
        }
        let storage = std::mem::take(&mut self.storage);
        if storage.len() == LARGE_BYTES {
            LARGE_IN_USE.set(LARGE_IN_USE.get().saturating_sub(1));
        }
        // This fails only while the thread ends; the storage is then freed.
        let _ = POOL.try_with(|lists| {
            let mut lists = lists.borrow_mut();
            let kind = lists.iter_mut().zip(KINDS).find(|(_, (size, _))| *size == storage.len());
            match kind {
                Some((list, (_, items_max))) => list.put(storage, items_max),
                None => memory::note_freed(storage.len()),
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
    fn storage_is_used_again() {
        let first = Buffer::small().storage.as_ptr();
        assert_eq!(Buffer::small().storage.as_ptr(), first);
    }

    #[test]
    fn storage_that_nobody_needs_is_dropped_by_halves() {
        let list = || POOL.with_borrow(|lists| lists[2].len());
        let burst: Vec<Buffer> = (0..100).map(|_| Buffer::small()).collect();
        drop(burst);
        assert_eq!(list(), 100);
        // All of them were in use since the last call, if there was one.
        trim();
        let in_use: Vec<Buffer> = (0..20).map(|_| Buffer::small()).collect();
        drop(in_use);
        trim();
        assert_eq!(list(), 60);
        (0..10).for_each(|_| trim());
        assert_eq!(list(), 0);
    }
}

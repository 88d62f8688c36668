//! The read side of one connection: bytes that have arrived and have not been used.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The initial size of a buffer: the heads of nearly all requests and responses fit.
const BYTES_AT_START: usize = 4 * 1024;

/// The largest size, for a long head or for streaming a body. A longer head is an error.
pub(crate) const BYTES_MAX: usize = 64 * 1024;

/// `0 <= start <= end <= bytes.len()`; `bytes[start..end]` has arrived and is unused.
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; BYTES_AT_START], start: 0, end: 0 }
    }

    /// The bytes that have arrived and are unused.
    pub(crate) fn unused(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Marks the first `count` unused bytes as used.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "more bytes consumed than have arrived");
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Grows to the full size now, because a body streams better in large reads.
    pub(crate) fn grow_to_max(&mut self) {
        self.bytes.resize(BYTES_MAX, 0);
    }

    /// Reads once from `source` after the unused bytes. `Ok(0)` is the end of the stream.
    ///
    /// A buffer that is full of unused bytes at its full size is `InvalidData`: a valid peer sends no line that long.
    pub(crate) async fn fill<S: AsyncRead + Unpin>(&mut self, source: &mut S) -> io::Result<usize> {
        if self.end == self.bytes.len() {
            self.make_room()?;
        }
        let count = source.read(&mut self.bytes[self.end..]).await?;
        self.end += count;
        Ok(count)
    }

    fn make_room(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        } else if self.bytes.len() < BYTES_MAX {
            self.bytes.resize(self.bytes.len() * 2, 0);
        } else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a head or chunk line is longer than 64 KiB"));
        }
        Ok(())
    }
}

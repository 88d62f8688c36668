//! The read side of one connection: bytes that have come and have not been used.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};

/// A buffer starts with this many bytes: the heads of nearly all requests and answers fit.
const BYTES_AT_START: usize = 4 * 1024;

/// And grows to this many at most, when a head needs them or a body streams through. A head that is longer is an error.
pub(crate) const BYTES_MAX: usize = 64 * 1024;

/// `0 <= start <= end <= bytes.len()`; what has come and is unused is `bytes[start..end]`.
pub(crate) struct ReadBuffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; BYTES_AT_START], start: 0, end: 0 }
    }

    /// What has come and is unused.
    pub(crate) fn unused(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Marks the first `count` unused bytes as used.
    pub(crate) fn consume(&mut self, count: usize) {
        assert!(count <= self.end - self.start, "more consumed than has come");
        self.start += count;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes the full size now: a body streams better through large reads.
    pub(crate) fn grow_to_max(&mut self) {
        self.bytes.resize(BYTES_MAX, 0);
    }

    /// Reads once from `source` behind what is unused. `Ok(0)` is the end of the stream.
    ///
    /// A buffer that is full of unused bytes at its full size is `InvalidData`: nobody may send a line that long.
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
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a head or chunk line over 64 KiB"));
        }
        Ok(())
    }
}

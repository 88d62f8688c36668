//! Bytes that wait to be written.

/// Output of one connection: the frames of all its streams, in the order in which they were written.
#[derive(Debug, Default)]
pub(super) struct Output {
    /// `written <= bytes.len()`.
    bytes: Vec<u8>,
    written: usize,
}

/// Written bytes are dropped from the front once there are this many, so that moving the rest is worth its cost.
const COMPACT_BYTES: usize = 16 * 1024;

impl Output {
    /// The bytes that are still to be written.
    pub(super) fn pending(&self) -> &[u8] {
        self.bytes.get(self.written..).unwrap_or_default()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    /// The buffer to append to. Callers must never shorten it.
    pub(super) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.written = self.written.saturating_add(count).min(self.bytes.len());
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        } else if self.written >= COMPACT_BYTES {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    pub(super) fn shrink(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_gone() {
        let mut output = Output::default();
        output.bytes().extend_from_slice(&[1; 40_000]);
        output.consume(10_000);
        assert_eq!((output.len(), output.pending().len(), output.bytes.len()), (30_000, 30_000, 40_000));
        output.consume(10_000);
        assert_eq!((output.len(), output.bytes.len()), (20_000, 20_000));
        output.bytes().push(2);
        output.consume(20_000);
        assert_eq!(output.pending(), [2]);
        output.consume(99);
        assert_eq!((output.len(), output.written), (0, 0));
    }
}

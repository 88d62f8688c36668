//! The body of a request: given bytes, or filler of a given length.

use bytes::Bytes;

/// The maximum size of the block of filler that is kept in memory.
const BLOCK_BYTES: u64 = 64 * 1024;

/// The body of a request. Clones share the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Payload {
    /// Repeated until `length` bytes are sent. `block.len() <= length`; empty only if `length` is 0.
    block: Bytes,
    length: u64,
}

impl Payload {
    /// `length` dots.
    pub(super) fn filler(length: u64) -> Self {
        Self { block: vec![b'.'; length.min(BLOCK_BYTES) as usize].into(), length }
    }

    /// These bytes.
    pub(super) fn of(data: Bytes) -> Self {
        Self { length: data.len() as u64, block: data }
    }

    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// The next bytes from position `at`, at most `bytes_max`; empty at the end.
    pub(super) fn piece(&self, at: u64, bytes_max: usize) -> Bytes {
        if at >= self.length {
            return Bytes::new();
        }
        let begin = (at % self.block.len() as u64) as usize;
        let left = (self.length - at).min((self.block.len() - begin) as u64) as usize;
        self.block.slice(begin..begin + left.min(bytes_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_whole() {
        let check = |payload: Payload, bytes_max, pieces| {
            let (mut at, mut count, mut text) = (0, 0, Vec::new());
            loop {
                let piece = payload.piece(at, bytes_max);
                if piece.is_empty() {
                    break;
                }
                assert!(piece.len() <= bytes_max);
                at += piece.len() as u64;
                count += 1;
                text.extend_from_slice(&piece);
            }
            assert_eq!((at, text.len() as u64, count), (payload.len(), payload.len(), pieces));
            text
        };
        assert_eq!(check(Payload::of(Bytes::from_static(b"hello world")), 4, 3), b"hello world");
        assert_eq!(check(Payload::filler(3), 16_384, 1), b"...");
        check(Payload::filler(BLOCK_BYTES * 2 + 1), usize::MAX, 3);
        check(Payload::filler(BLOCK_BYTES * 2 + 1), 40_000, 5);
        check(Payload::default(), 10, 0);
    }
}

//! Messages with time stamps, which `origin stream` sends and `load stream` reads to find how long each took, one way.
//!
//! Both stamps are of CLOCK_MONOTONIC, which all processes and network namespaces of one host share. Between hosts they mean nothing.

use std::time::Duration;

/// Bytes before the filler: a mark, the length of the whole message, and the two stamps.
pub(crate) const HEADER_BYTES: usize = 24;

/// A message is at least its header, and no longer than this.
pub(crate) const MESSAGE_BYTES_MAX: u32 = 64 << 20;

const MARK: [u8; 4] = *b"SYM1";

/// The beginning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The length of the whole message, including this header.
    pub length: u32,
    /// When it should have been sent, in ns.
    pub due_ns: u64,
    /// When it was sent, in ns.
    pub sent_ns: u64,
}

impl Header {
    pub(crate) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MARK);
        bytes[4..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.due_ns.to_be_bytes());
        bytes[16..].copy_from_slice(&self.sent_ns.to_be_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let number =
            |range: std::ops::Range<usize>| bytes[range].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let header = Self { length: number(4..8) as u32, due_ns: number(8..16), sent_ns: number(16..24) };
        let is_one = bytes.starts_with(&MARK) && (HEADER_BYTES as u32..=MESSAGE_BYTES_MAX).contains(&header.length);
        is_one.then_some(header)
    }
}

/// The data are not a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoMessage;

/// Finds the ends of messages in a stream that arrives in pieces of any size.
#[derive(Debug, Default)]
pub(crate) struct MessageReader {
    header: [u8; HEADER_BYTES],
    /// Of the header; `0 <= header_bytes <= HEADER_BYTES`.
    header_bytes: usize,
    /// The message whose filler is still to come, and how much of it.
    open: Option<(Header, u32)>,
}

impl MessageReader {
    /// Takes a piece, and passes the header of each message that ended in it to `ended`.
    pub(crate) fn read(&mut self, mut piece: &[u8], mut ended: impl FnMut(Header)) -> Result<(), NoMessage> {
        while !piece.is_empty() {
            let (header, left) = match self.open {
                Some(open) => open,
                None => {
                    let count = piece.len().min(HEADER_BYTES - self.header_bytes);
                    self.header[self.header_bytes..][..count].copy_from_slice(&piece[..count]);
                    self.header_bytes += count;
                    piece = &piece[count..];
                    if self.header_bytes < HEADER_BYTES {
                        return Ok(());
                    }
                    self.header_bytes = 0;
                    let header = Header::from_bytes(&self.header).ok_or(NoMessage)?;
                    (header, header.length - HEADER_BYTES as u32)
                }
            };
            let count = piece.len().min(left as usize);
            piece = &piece[count..];
            let left = left - count as u32;
            self.open = (left > 0).then_some((header, left));
            if left == 0 {
                ended(header);
            }
        }
        Ok(())
    }
}

/// The present time of the clock of the stamps.
pub(crate) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_in_pieces_of_any_size() {
        let headers = [24, 25, 5_000].map(|length| Header { length, due_ns: 7, sent_ns: u64::from(length) });
        let mut bytes = Vec::new();
        for header in headers {
            bytes.extend_from_slice(&header.to_bytes());
            bytes.resize(bytes.len() + header.length as usize - HEADER_BYTES, b'.');
        }
        for size in [1, 23, 24, 100, bytes.len()] {
            let (mut reader, mut got) = (MessageReader::default(), Vec::new());
            for piece in bytes.chunks(size) {
                reader.read(piece, |header| got.push(header)).unwrap();
            }
            assert_eq!(got, headers, "{size}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let good = Header { length: 24, due_ns: 0, sent_ns: 0 };
        let mut marked = good.to_bytes();
        marked[0] = b'x';
        for bytes in [marked, Header { length: 23, ..good }.to_bytes(), Header { length: u32::MAX, ..good }.to_bytes()]
        {
            assert_eq!(MessageReader::default().read(&bytes, |_| ()), Err(NoMessage));
        }
    }
}

//! The connection's own windows (RFC 9113 section 5.2), and the return of received bytes.

use super::frame::{self, WINDOW_DEFAULT};
use super::output::Output;

/// Both windows of the connection.
///
/// `recv + released + what the owner holds + what is on its way through handle_bytes == connection_window_bytes`.
#[derive(Debug)]
pub(super) struct Windows {
    /// Bytes that may be sent on all streams together.
    pub(super) send: i64,
    /// Bytes that may be received.
    pub(super) recv: i64,
    /// Bytes that were released and not yet returned to the other side.
    released: u32,
    /// The maximum of `recv`.
    size: u32,
}

impl Windows {
    pub(super) fn new(size: u32) -> Self {
        let size = size.max(WINDOW_DEFAULT as u32);
        Self { send: WINDOW_DEFAULT, recv: i64::from(size), released: 0, size }
    }

    /// Releases `count` bytes that the owner is done with. They are returned to the other side half a window at a time.
    pub(super) fn release(&mut self, count: u32, output: &mut Output) {
        self.released += count;
        if self.released >= self.size / 2 {
            frame::write_window_update(output.bytes(), 0, self.released);
            self.recv += i64::from(self.released);
            self.released = 0;
        }
    }

    /// Bytes that arrived and were not released.
    pub(super) fn held(&self) -> usize {
        usize::try_from(i64::from(self.size) - self.recv - i64::from(self.released)).unwrap_or(0)
    }

    /// Nothing is on its way, and the owner holds nothing, so the whole window must be available.
    #[cfg(test)]
    pub(super) fn assert_whole(&self) {
        assert_eq!(self.recv + i64::from(self.released), i64::from(self.size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_told_by_halves() {
        let (mut windows, mut output) = (Windows::new(100_000), Output::default());
        windows.recv -= 60_000;
        windows.release(49_999, &mut output);
        assert_eq!((output.len(), windows.recv, windows.held()), (0, 40_000, 10_001));
        windows.release(1, &mut output);
        assert_eq!(output.pending(), [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0xc3, 0x50]);
        assert_eq!((windows.recv, windows.released, windows.held()), (90_000, 0, 10_000));
    }
}

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

    /// Counts `count` bytes that arrive. Returns whether the window was large enough.
    pub(super) fn receive(&mut self, count: u32, output: &mut Output) -> bool {
        self.recv -= i64::from(count);
        self.tell(output);
        self.recv >= 0
    }

    /// Releases `count` bytes that the owner is done with.
    pub(super) fn release(&mut self, count: u32, output: &mut Output) {
        self.released += count;
        self.tell(output);
    }

    /// Returns what was released to the other side, half of what the owner does not hold at a time. It must not depend on the size of the window:
    /// while the owner holds half of it for streams that wait, the rest could otherwise be released and never returned, and no stream could go on.
    fn tell(&mut self, output: &mut Output) {
        if self.released > 0 && i64::from(self.released) >= self.recv && self.recv >= 0 {
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
        assert!(windows.receive(50_000, &mut output));
        windows.release(49_999, &mut output);
        assert_eq!((output.len(), windows.recv, windows.held()), (0, 50_000, 1));
        windows.release(1, &mut output);
        assert_eq!(output.pending(), [0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0xc3, 0x50]);
        assert_eq!((windows.recv, windows.released, windows.held()), (100_000, 0, 0));
        assert!(!windows.receive(100_001, &mut output));
    }

    /// The owner holds 60,000 bytes of streams that wait, and another stream goes on in what is left.
    #[test]
    fn what_the_owner_holds_does_not_keep_the_rest_from_being_told() {
        let (mut windows, mut output) = (Windows::new(100_000), Output::default());
        assert!(windows.receive(60_000, &mut output));
        for _ in 0..100 {
            let piece = windows.recv.min(9_000);
            assert!(piece > 0, "{windows:?}");
            assert!(windows.receive(piece as u32, &mut output));
            windows.release(piece as u32, &mut output);
            assert_eq!(windows.held(), 60_000);
        }
    }
}

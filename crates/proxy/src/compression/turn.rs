//! How much a worker compresses before it looks after its other connections.

use std::cell::Cell;

/// Bytes that one poll of a connection compresses, for all its streams together, before other connections get their turn.
const TURN_BYTES_MAX: usize = 32 * 1024;

thread_local! {
    static LEFT_BYTES: Cell<usize> = const { Cell::new(TURN_BYTES_MAX) };
}

/// A poll of a connection begins.
pub(crate) fn begin() {
    LEFT_BYTES.set(TURN_BYTES_MAX);
}

/// Whether more may be compressed in this poll.
pub(crate) fn has_left() -> bool {
    LEFT_BYTES.get() > 0
}

/// Records that so many bytes were compressed.
pub(crate) fn note(bytes: usize) {
    LEFT_BYTES.set(LEFT_BYTES.get().saturating_sub(bytes));
}

//! The window sizes of streams to endpoints, which limit what endpoints may send before clients have taken any of it.
//!
//! An endpoint fills the window of a stream whose client does not read, and only the window prevents more. So the windows are chosen when
//! streams are opened, by the number of streams, and not when memory is short: by then the bytes are on their way. All windows of a worker
//! together have at most an eighth of the worker's share of `memory_max`, plus the smallest window for each stream.

use std::cell::Cell;

use net::memory;

use super::STREAM_WINDOW_BYTES;

/// The window with many streams: a small buffer.
const SMALL_WINDOW_BYTES: u32 = 16 * 1024;

/// The window with even more streams. It is about as much as the rest of an exchange costs.
const LEAST_WINDOW_BYTES: u32 = 4 * 1024;

/// Windows of each of the two larger sizes may use one part in this many of the worker's share of `memory_max`.
const SHARE: u64 = 16;

/// Windows grow again only when the number of streams falls below this part of the number that made them smaller, so that the size does not
/// alternate with each stream.
const GROW_PART: u64 = 4;

thread_local! {
    /// Streams to endpoints that this worker has open.
    static OPEN: Cell<u64> = const { Cell::new(0) };
}

/// [`memory::note_promised`] is called once for this many streams, since all workers write to the same place.
const TOLD_AT_ONCE: u64 = 16;

/// Counts an open stream while it exists. The smallest window is promised for it, because endpoints send many heads before the first DATA.
pub(super) struct Counted(());

impl Counted {
    pub(super) fn new() -> Self {
        OPEN.set(OPEN.get() + 1);
        tell(1);
        Self(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        tell(-1);
        OPEN.set(OPEN.get().saturating_sub(1));
    }
}

/// Called for each stream that begins or ends. It acts on every [`TOLD_AT_ONCE`]th.
fn tell(sign: i64) {
    if OPEN.get().is_multiple_of(TOLD_AT_ONCE) {
        memory::note_promised(sign * (TOLD_AT_ONCE * u64::from(LEAST_WINDOW_BYTES)) as i64);
    }
}

/// The window for streams of a connection that now uses `now`, before one more is opened.
pub(super) fn next_bytes(now: u32) -> u32 {
    let share = memory::bytes_max_of_worker().map_or(u64::MAX, |bytes| bytes / SHARE);
    next_of(now, OPEN.get() + 1, share)
}

fn next_of(now: u32, streams: u64, share: u64) -> u32 {
    let (small, grown) = (bytes_for(streams, share), bytes_for(streams.saturating_mul(GROW_PART), share));
    if small < now { small } else { grown.max(now) }
}

fn bytes_for(streams: u64, share: u64) -> u32 {
    let fits = |bytes: &u32| streams.saturating_mul(u64::from(*bytes)) <= share;
    [STREAM_WINDOW_BYTES, SMALL_WINDOW_BYTES].into_iter().find(fits).unwrap_or(LEAST_WINDOW_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u32 = STREAM_WINDOW_BYTES;

    #[test]
    fn many_streams_have_small_windows() {
        let share = 10 * u64::from(LARGE);
        let check = |now, streams, expect| assert_eq!(next_of(now, streams, share), expect, "{streams} from {now}");
        check(LARGE, 1, LARGE);
        check(LARGE, 10, LARGE);
        check(LARGE, 11, SMALL_WINDOW_BYTES);
        check(LARGE, 80, SMALL_WINDOW_BYTES);
        check(LARGE, 81, LEAST_WINDOW_BYTES);
        check(SMALL_WINDOW_BYTES, 81, LEAST_WINDOW_BYTES);
        // Fewer streams again.
        check(LEAST_WINDOW_BYTES, 21, LEAST_WINDOW_BYTES);
        check(LEAST_WINDOW_BYTES, 20, SMALL_WINDOW_BYTES);
        check(SMALL_WINDOW_BYTES, 3, SMALL_WINDOW_BYTES);
        check(SMALL_WINDOW_BYTES, 2, LARGE);
        check(LEAST_WINDOW_BYTES, 2, LARGE);
    }

    #[test]
    fn all_windows_together_have_a_limit() {
        let share = 64 << 20;
        let (mut now, mut sum) = (LARGE, 0);
        for streams in 1..=100_000_u64 {
            now = next_of(now, streams, share);
            sum += u64::from(now);
            let least = streams * u64::from(LEAST_WINDOW_BYTES);
            assert!(sum <= 2 * share + least, "{sum} for {streams} streams");
        }
    }

    #[test]
    fn streams_are_counted_while_they_last() {
        let before = OPEN.get();
        let streams: Vec<_> = (0..3).map(|_| Counted::new()).collect();
        assert_eq!(OPEN.get(), before + 3);
        drop(streams);
        assert_eq!(OPEN.get(), before);
    }
}

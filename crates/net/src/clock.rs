//! The monotonic clock as plain numbers. Pure crates take them as arguments.

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};

thread_local! {
    static LAST_US: Cell<u64> = const { Cell::new(0) };
}

/// Microseconds of CLOCK_MONOTONIC. About 25 ns a call where the kernel serves it without a system call.
pub fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let now_us = time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000;
    LAST_US.set(now_us);
    now_us
}

/// What [`now_us`] said last on this thread; 0: nothing yet. For work that runs right behind something that has asked, and by the hundred.
pub fn last_us() -> u64 {
    LAST_US.get()
}

/// Milliseconds of the same clock.
pub fn now_ms() -> u64 {
    now_us() / 1000
}

/// Milliseconds since 1970, for what people read. It may jump.
pub fn unix_ms() -> u64 {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

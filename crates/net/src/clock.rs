//! The monotonic clock as plain numbers. Pure crates take them as arguments.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds of CLOCK_MONOTONIC. About 25 ns a call where the kernel serves it without a system call.
pub fn now_us() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
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

//! Numbers that one thread writes and any thread reads.
//!
//! An atomic read-modify-write costs about 20 cycles on x86 even if no other thread touches the line, and a request updates a dozen
//! counters. Each of these therefore has a single writer, so that an increment is a load and a store. Nothing enforces this: with two
//! writers, increments get lost, but nothing worse happens.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// A number that only increases, written by one worker. It wraps after 2^64.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The present value, or a recent one if another thread writes.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The present number of things, written by one worker: `0 <= value`.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.0.store(self.0.load(Relaxed).saturating_add(1), Relaxed);
    }

    /// Subtracts one. It stays 0 at 0, because a gauge that is one too low is less wrong than one near 2^64.
    #[inline]
    pub fn dec(&self) {
        self.0.store(self.0.load(Relaxed).saturating_sub(1), Relaxed);
    }

    /// The present value, or a recent one if another thread writes.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How full something was when a worker last used it, written by that worker.
#[derive(Debug, Default)]
pub struct Fullness(AtomicU64);

/// Bits of the share in a [`Fullness`]; the others have the time in milliseconds. Both are written at once, so that they fit together.
const SHARE_BITS: u32 = 16;
/// The share that stands for all of it.
const FULL: f64 = 10_000.0;

impl Fullness {
    /// Records the share that is in use now, 0.0 to 1.0.
    pub fn set(&self, now_ms: u64, share: f64) {
        let share = (share.clamp(0.0, 1.0) * FULL).round() as u64;
        self.0.store(now_ms << SHARE_BITS | share, Relaxed);
    }
}

/// The same of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FullnessTotals(Vec<u64>);

impl FullnessTotals {
    /// Adds that of one worker.
    pub fn push(&mut self, fullness: &Fullness) {
        let value = fullness.0.load(Relaxed);
        // Most are never used.
        if value > 0 {
            self.0.push(value);
        }
    }

    /// The share at the worker where it was fullest; 0 if all are older than this.
    pub fn fullest(&self, now_ms: u64, age_ms_max: u64) -> f64 {
        let is_new = |value: &&u64| now_ms.saturating_sub(**value >> SHARE_BITS) <= age_ms_max;
        let share = |value: &u64| (*value & ((1 << SHARE_BITS) - 1)) as f64 / FULL;
        self.0.iter().filter(is_new).map(share).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_grow() {
        let counter = Counter::default();
        counter.inc();
        counter.add(41);
        assert_eq!(counter.get(), 42);
        counter.add(u64::MAX);
        assert_eq!(counter.get(), 41);
    }

    #[test]
    fn what_was_full_long_ago_is_empty() {
        let (one, other) = (Fullness::default(), Fullness::default());
        let check = |now_ms, expect| {
            let mut totals = FullnessTotals::default();
            [&one, &other].into_iter().for_each(|of| totals.push(of));
            assert_eq!(totals.fullest(now_ms, 10_000), expect, "{now_ms}");
        };
        check(0, 0.0);
        one.set(5_000, 0.37);
        other.set(3_000, 0.5);
        check(13_000, 0.5);
        check(13_001, 0.37);
        check(15_000, 0.37);
        check(15_001, 0.0);
        // A worker that is a little ahead.
        check(2_999, 0.5);
        other.set(20_000, 7.0);
        check(20_000, 1.0);
    }

    #[test]
    fn gauges_come_back_and_stop_at_zero() {
        let gauge = Gauge::default();
        gauge.inc();
        gauge.inc();
        gauge.dec();
        assert_eq!(gauge.get(), 1);
        gauge.dec();
        gauge.dec();
        assert_eq!(gauge.get(), 0);
    }
}

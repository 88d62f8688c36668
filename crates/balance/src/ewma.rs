//! A moving average of latency that rises at once and falls slowly: Finagle's peak EWMA.
//!
//! Because it rises at once, an endpoint loses traffic at its first slow response. Because it decays with time, with or without samples,
//! the endpoint is tried again later.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time in which a single peak falls to 1/e.
const TAU_MS: f32 = 10_000.0;

/// The average and the time of its last sample in one word, so that they are always read together: high half = average in microseconds as
/// `f32` bits, low half = milliseconds, wrapping. Zero means no sample yet.
#[derive(Debug, Default)]
pub(crate) struct PeakEwma {
    word: AtomicU64,
}

impl PeakEwma {
    /// Takes a sample. If two workers do so at the same moment, one of the samples may be lost. An average can bear that, unless the lost
    /// one was the peak, and the next slow response restores it.
    pub(crate) fn observe(&self, now_ms: u64, latency_us: u64) {
        let word = self.word.load(Relaxed);
        let (average, age_ms) = unpack(word, now_ms);
        // A latency of zero would read as "no sample".
        let sample = (latency_us as f32).max(1.0);
        let next = if word == 0 || sample >= average {
            sample
        } else if age_ms == 0.0 {
            // Within one millisecond a sample has no weight; not writing keeps the cache line quiet.
            return;
        } else {
            let kept = (-age_ms / TAU_MS).exp();
            average * kept + sample * (1.0 - kept)
        };
        self.word.store(pack(next, now_ms), Relaxed);
    }

    /// The average, decayed until now, in microseconds; `None` before the first sample, and when less than a microsecond is left.
    pub(crate) fn get(&self, now_ms: u64) -> Option<f32> {
        let word = self.word.load(Relaxed);
        if word == 0 {
            return None;
        }
        let (average, age_ms) = unpack(word, now_ms);
        let decayed = if age_ms == 0.0 { average } else { average * (-age_ms / TAU_MS).exp() };
        (decayed >= 1.0).then_some(decayed)
    }
}

fn pack(average_us: f32, now_ms: u64) -> u64 {
    (u64::from(average_us.to_bits()) << 32) | (now_ms & 0xffff_ffff)
}

/// The average as written, and its age in milliseconds.
fn unpack(word: u64, now_ms: u64) -> (f32, f32) {
    let age_ms = (now_ms as u32).wrapping_sub(word as u32);
    // The writer's clock may be a little ahead of ours: workers read theirs once per turn of the event loop.
    let age_ms = if age_ms > u32::MAX / 2 { 0 } else { age_ms };
    (f32::from_bits((word >> 32) as u32), age_ms as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `(now_ms, latency_us)` samples and reads at `at_ms`; `None` is "no sample".
    fn check(samples: &[(u64, u64)], at_ms: u64, expect_us: Option<f32>) {
        let ewma = PeakEwma::default();
        for (now_ms, latency_us) in samples {
            ewma.observe(*now_ms, *latency_us);
        }
        let got = ewma.get(at_ms);
        let close = match (got, expect_us) {
            (Some(got), Some(expect)) => (got - expect).abs() <= expect * 0.001,
            (got, expect) => got == expect,
        };
        assert!(close, "{samples:?} at {at_ms}: got {got:?}, expected {expect_us:?}");
    }

    #[test]
    fn jumps_up_and_decays() {
        check(&[], 5, None);
        check(&[(0, 100)], 0, Some(100.0));
        check(&[(0, 0)], 0, Some(1.0));
        // It rises at once, even within the same millisecond.
        check(&[(0, 100), (0, 5000)], 0, Some(5000.0));
        // It falls by 1/e in tau without a sample.
        check(&[(0, 1000)], 10_000, Some(367.88));
        // With samples it falls towards them.
        check(&[(0, 1000), (10_000, 100)], 10_000, Some(367.88 + 63.212));
        // A low sample in the same millisecond weighs nothing.
        check(&[(0, 1000), (0, 1)], 0, Some(1000.0));
        // After a long silence, as if it had no sample.
        check(&[(0, 1000)], 100_000, None);
        // A reader whose clock is behind the writer's.
        check(&[(50, 1000)], 40, Some(1000.0));
        // Across the wrap of the 32-bit milliseconds.
        check(&[(0xffff_ffff, 1000)], 0x1_0000_0000 + 9_999, Some(367.88));
    }
}

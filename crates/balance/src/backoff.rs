//! The delay before a retry, so that requests that failed together are not all retried at once.

use crate::Rng;

/// The first delay is less than this, in milliseconds. Envoy uses the same value, and the same maximum.
pub const BACKOFF_BASE_MS: u64 = 25;
/// Every delay is less than this.
pub const BACKOFF_MAX_MS: u64 = 250;

/// Delays before retries: exponential, with full jitter (Brooker, "Exponential Backoff And Jitter", 2015).
#[derive(Clone, Debug)]
pub struct Backoff {
    rng: Rng,
}

impl Backoff {
    /// Equal seeds give equal delays.
    pub fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed) }
    }

    /// Milliseconds to wait before a retry, the first of which is number 1: any number below `25 * (2^retry - 1)`, and below 250.
    pub fn wait_ms(&mut self, retry: u32) -> u64 {
        let steps = 2u64.saturating_pow(retry).saturating_sub(1);
        self.rng.below(BACKOFF_BASE_MS.saturating_mul(steps).min(BACKOFF_MAX_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_are_spread_over_all_that_they_may_be() {
        let check = |retry, below_ms: u64| {
            let mut backoff = Backoff::new(7);
            let waits: Vec<u64> = (0..10_000).map(|_| backoff.wait_ms(retry)).collect();
            assert_eq!(waits.iter().min(), Some(&0), "retry {retry}");
            assert_eq!(waits.iter().max(), Some(&below_ms.saturating_sub(1)), "retry {retry}");
            // The mean of uniform numbers is in the middle; with ten thousand numbers, within a few hundredths of it.
            let (mean, middle) = (waits.iter().sum::<u64>() as f64 / 10_000.0, below_ms.saturating_sub(1) as f64 / 2.0);
            assert!((mean - middle).abs() <= middle * 0.05, "retry {retry}: {mean} ms");
        };
        check(0, 0);
        check(1, 25);
        check(2, 75);
        check(3, 175);
        check(4, 250);
        check(10, 250);
        check(u32::MAX, 250);
    }

    #[test]
    fn seeds_make_the_difference() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..8).map(|_| backoff.wait_ms(4)).collect::<Vec<_>>()
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}

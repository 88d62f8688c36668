//! Histograms of durations, with buckets fine enough for an honest quantile and few enough to keep one per route and worker.
//!
//! The upper bounds of the buckets are 1, 2, 3, 4, 6, 8, 12, 16, 24 ... 2^26 microseconds (67 s): powers of two and the half steps between
//! them. A bound belongs to its bucket, like `le` in Prometheus. So a quantile lies in a bucket whose bounds differ by a factor of at most
//! two below 2 us, and of 1.5 above. Exact histograms (HDR) cost 10 to 40 KiB each; this costs 432 bytes.

use std::sync::OnceLock;

use crate::counter::Counter;

/// Buckets with an upper bound.
const BOUNDED: usize = 52;
/// The last bucket holds durations above 67 s.
const BUCKETS: usize = BOUNDED + 1;

/// Durations in microseconds, written by one worker.
#[derive(Debug)]
pub struct Histogram {
    buckets: [Counter; BUCKETS],
    sum_us: Counter,
}

/// A [`Histogram`] that takes no memory until something is recorded: of a large configuration, most endpoints are idle on most workers.
#[derive(Debug, Default)]
pub struct LazyHistogram(OnceLock<Box<Histogram>>);

/// The content of one or more [`Histogram`]s when they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    buckets: [u64; BUCKETS],
    /// The sum of all durations in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Counts a duration. This takes a few instructions: two loads, two stores, one count of leading zeros.
    #[inline]
    pub fn record(&self, us: u64) {
        if let Some(bucket) = self.buckets.get(bucket_of(us)) {
            bucket.inc();
        }
        self.sum_us.add(us);
    }

    /// Adds the present content to `total`.
    pub fn add_to(&self, total: &mut Distribution) {
        for (total, bucket) in total.buckets.iter_mut().zip(&self.buckets) {
            *total += bucket.get();
        }
        total.sum_us = total.sum_us.wrapping_add(self.sum_us.get());
    }
}

impl LazyHistogram {
    /// Counts one duration.
    #[inline]
    pub fn record(&self, us: u64) {
        self.0.get_or_init(Box::default).record(us);
    }

    /// Adds what it holds now to `total`.
    pub fn add_to(&self, total: &mut Distribution) {
        if let Some(histogram) = self.0.get() {
            histogram.add_to(total);
        }
    }
}

impl Distribution {
    /// The greatest duration of each bucket, microseconds; the last bucket has none and is not among them.
    pub fn bounds_us() -> impl Iterator<Item = u64> {
        (0..BOUNDED).map(bound_us)
    }

    /// Durations in each bucket, as far as there are any: what follows the last one is 0.
    pub fn counts(&self) -> &[u64] {
        let used = self.buckets.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        self.buckets.get(..used).unwrap_or_default()
    }

    /// The growth from what [`Distribution::counts`] was to what it is: a distribution of the durations in between. Buckets that there are none
    /// of are passed over, and one that is less than it was began anew.
    pub fn between(before: &[u64], now: &[u64]) -> Self {
        let mut grown = Self::default();
        let before = before.iter().copied().chain(std::iter::repeat(0));
        // Counts that another process tells: together they may be more than a number can hold.
        let mut room = u64::MAX;
        for ((grown, now), before) in grown.buckets.iter_mut().zip(now).zip(before) {
            *grown = now.checked_sub(before).unwrap_or(*now).min(room);
            room -= *grown;
        }
        grown
    }

    /// Durations counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The number of durations of at most `us`, if `us` is the bound of a bucket; otherwise of those up to the largest bound below it.
    pub fn at_most(&self, us: u64) -> u64 {
        let holds = |bucket: &usize| bound_us(*bucket) <= us;
        (0..BOUNDED).take_while(holds).zip(&self.buckets).map(|(_, count)| count).sum()
    }

    /// The number of durations of at most `us`: those of the bucket that it lies in are taken to be spread evenly. It never decreases while durations
    /// are added, and neither does the number between two of them.
    pub(crate) fn estimate_at_most(&self, us: f64) -> u64 {
        let mut below = 0;
        for (bucket, &here) in self.buckets.iter().enumerate().take(BOUNDED) {
            let (low, high) = (if bucket == 0 { 0 } else { bound_us(bucket - 1) } as f64, bound_us(bucket) as f64);
            if us < high {
                let share = ((us - low) / (high - low)).clamp(0.0, 1.0);
                return below + (share * here as f64) as u64;
            }
            below += here;
        }
        below
    }

    /// The duration in microseconds that a share `q` (0.0 to 1.0) of the durations does not exceed; `None` if there are none.
    ///
    /// It lies in the same bucket as the true quantile, at a place found by linear interpolation, like Prometheus' `histogram_quantile`.
    /// Beyond the last bound, it is that bound.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (q.clamp(0.0, 1.0) * count as f64).max(1.0);
        let mut below = 0;
        for (bucket, &here) in self.buckets.iter().enumerate() {
            if (below + here) as f64 >= rank && bucket < BOUNDED {
                let low = if bucket == 0 { 0 } else { bound_us(bucket - 1) };
                let within = (rank - below as f64) / here as f64;
                return Some(low as f64 + (bound_us(bucket) - low) as f64 * within);
            }
            below += here;
        }
        Some(bound_us(BOUNDED - 1) as f64)
    }
}

/// The first bucket whose bound is not below `us`.
#[inline]
fn bucket_of(us: u64) -> usize {
    // The bounds are one above binary steps, so the two highest bits of `us - 1` identify the bucket.
    let n = us.saturating_sub(1);
    if n < 2 {
        return n as usize;
    }
    let exponent = n.ilog2();
    let half = (n >> (exponent - 1)) & 1;
    (2 * exponent as usize + half as usize).min(BOUNDED)
}

/// The largest duration of a bucket that has a bound.
const fn bound_us(bucket: usize) -> u64 {
    if bucket < 2 {
        return bucket as u64 + 1;
    }
    let half_step = 1 << (bucket / 2 - 1);
    2 * half_step + (bucket as u64 % 2 + 1) * half_step
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| Counter::default()), sum_us: Counter::default() }
    }
}

impl Default for Distribution {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_us: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn distribution(durations_us: &[u64]) -> Distribution {
        let histogram = Histogram::default();
        durations_us.iter().for_each(|us| histogram.record(*us));
        let mut total = Distribution::default();
        histogram.add_to(&mut total);
        total
    }

    #[test]
    fn bounds() {
        let bounds: Vec<u64> = (0..10).map(bound_us).collect();
        assert_eq!(bounds, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
        assert_eq!(bound_us(BOUNDED - 1), 1 << 26);
    }

    #[test]
    fn every_bound_is_the_last_of_its_bucket() {
        assert_eq!(bucket_of(0), 0);
        for bucket in 0..BOUNDED {
            assert_eq!(bucket_of(bound_us(bucket)), bucket);
            assert_eq!(bucket_of(bound_us(bucket) + 1), bucket + 1);
        }
        assert_eq!(bucket_of(u64::MAX), BOUNDED);
    }

    #[test]
    fn at_most_counts_whole_buckets() {
        let check =
            |us, expect| assert_eq!(distribution(&[0, 1, 2, 5, 6, 7, 100, u64::MAX]).at_most(us), expect, "{us}");
        check(0, 0);
        check(1, 2);
        check(2, 3);
        check(6, 5);
        check(7, 5);
        check(8, 6);
        check(128, 7);
        check(1 << 26, 7);
    }

    #[test]
    fn quantiles_of_little() {
        let check =
            |durations: &[u64], q, expect| assert_eq!(distribution(durations).quantile(q), expect, "{durations:?} {q}");
        check(&[], 0.5, None);
        check(&[0], 0.5, Some(1.0));
        check(&[8, 8], 0.5, Some(7.0));
        check(&[8, 8], 1.0, Some(8.0));
        check(&[2, 2, 2, 2], 0.0, Some(1.25));
        check(&[u64::MAX], 0.5, Some(67_108_864.0));
        check(&[1, 1, 1, u64::MAX], 1.0, Some(67_108_864.0));
        check(&[4], 7.0, Some(4.0));
    }

    #[test]
    fn merged_is_the_same_as_recorded_together() {
        let mut merged = distribution(&[3, 900]);
        let other = Histogram::default();
        other.record(17);
        other.add_to(&mut merged);
        assert_eq!(merged, distribution(&[3, 900, 17]));
        assert_eq!((merged.count(), merged.sum_us), (3, 920));
    }

    #[test]
    fn a_lazy_one_holds_the_same() {
        let lazy = LazyHistogram::default();
        let mut total = Distribution::default();
        lazy.add_to(&mut total);
        assert_eq!(total, Distribution::default());
        [3, 900].into_iter().for_each(|us| lazy.record(us));
        lazy.add_to(&mut total);
        assert_eq!(total, distribution(&[3, 900]));
    }

    #[test]
    fn what_came_between_two_readings() {
        let before = distribution(&[3, 900]);
        let now = distribution(&[3, 900, 8, 8, 2_000_000]);
        let between = Distribution::between(before.counts(), now.counts());
        assert_eq!((between.count(), between.quantile(0.5)), (3, Some(7.5)));
        // Nothing came, or the process began anew.
        assert_eq!(Distribution::between(now.counts(), now.counts()).count(), 0);
        assert_eq!(Distribution::between(distribution(&[3, 3]).counts(), distribution(&[3]).counts()).count(), 1);
        assert_eq!(Distribution::default().counts(), [0; 0]);
        assert_eq!((distribution(&[3]).counts(), Distribution::bounds_us().nth(2)), ([0, 0, 1].as_slice(), Some(3)));
    }

    proptest! {
        /// What the module promises: the estimate is in the bucket of the true quantile.
        #[test]
        fn a_quantile_is_within_a_half_step(mut durations in prop::collection::vec(0..70_000_000_u64, 1..300), q in 0.0..=1.0_f64) {
            let estimate = distribution(&durations).quantile(q).unwrap();
            durations.sort_unstable();
            let rank = ((q * durations.len() as f64).ceil() as usize).max(1);
            let exact = durations[rank - 1].min(bound_us(BOUNDED - 1));
            let bucket = bucket_of(exact);
            let low = if bucket == 0 { 0 } else { bound_us(bucket - 1) };
            prop_assert!(estimate >= low as f64 && estimate <= bound_us(bucket) as f64, "{estimate} for {exact}");
        }
    }
}

//! Rate limits for each client, over all workers.
//!
//! This is the generic cell rate algorithm (ITU-T I.371, annex A). It keeps one number for each client: the time at which its allowance is
//! full again. A request moves that time forward by the interval between two requests, and is refused if it would then be further ahead
//! than a full allowance takes. A client whose time has passed is the same as one that was never seen, so its bucket can be reused without
//! loss.
//!
//! There is one table for all limits of the process, so that its size is known whatever is configured. A client in the table is checked
//! without a lock; a new one takes the lock of its part of the table.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// Clients that are remembered at once, over all limits. The table takes 16 bytes for each: 4 MiB.
pub const RATE_KEYS_MAX: usize = SETS * WAYS;

const SETS: usize = 1 << 15;
/// Places in which a client may be found: two cache lines, which processors fetch in pairs.
const WAYS: usize = 8;
/// Locks, each for the same number of sets.
const PARTS: usize = 64;

/// A limit, in the units of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The interval between two requests in the long run, in nanoseconds.
    interval_ns: u64,
    /// The time in which a full allowance grows back: `burst` intervals.
    allowance_ns: u64,
}

impl Rate {
    /// How many more requests may come at once from a client whose allowance is full again after this time.
    pub fn remaining(self, whole_after_ns: u64) -> u64 {
        self.allowance_ns.saturating_sub(whole_after_ns) / self.interval_ns
    }

    /// The time after which the allowance of a client is full again that must wait this long for its next request.
    pub fn whole_after_ns(self, wait_ns: u64) -> u64 {
        wait_ns.saturating_add(self.allowance_ns).saturating_sub(self.interval_ns)
    }

    /// The time in which a full allowance grows back, in nanoseconds.
    pub fn allowance_ns(self) -> u64 {
        self.allowance_ns
    }

    /// The rate of a limit.
    pub fn new(limit: model::FurtherRate) -> Self {
        let per_ns = u64::try_from(limit.per.as_nanos()).unwrap_or(u64::MAX);
        let interval_ns = (per_ns / u64::from(limit.requests.max(1))).max(1);
        Self { interval_ns, allowance_ns: interval_ns.saturating_mul(u64::from(limit.burst.max(1))) }
    }
}

/// A limit on bytes, in the units of this module. Bytes are not refused: they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// In each of `per_ns`, as many bytes move in the long run.
    bytes: u64,
    per_ns: u64,
    /// The time in which a full allowance grows back.
    allowance_ns: u64,
}

impl Bandwidth {
    /// The bandwidth of a limit.
    pub fn new(limit: &model::Bandwidth) -> Self {
        let per_ns = u64::try_from(limit.per.as_nanos()).unwrap_or(u64::MAX).max(1);
        let bandwidth = Self { bytes: limit.bytes.max(1), per_ns, allowance_ns: 0 };
        Self { allowance_ns: bandwidth.cost_ns(limit.burst), ..bandwidth }
    }

    /// How long it takes to move these bytes in the long run.
    pub fn cost_ns(self, bytes: u64) -> u64 {
        let cost = (u128::from(bytes) * u128::from(self.per_ns)).div_ceil(u128::from(self.bytes));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }

    /// How many bytes move in this time in the long run.
    pub fn bytes_in(self, ns: u64) -> u64 {
        let bytes = u128::from(ns) * u128::from(self.bytes) / u128::from(self.per_ns);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The clients that the limits remember. All workers share it.
#[derive(Debug)]
pub struct RateTable {
    sets: Box<[Set]>,
    /// Held while a bucket is given to another client.
    claims: Box<[Mutex<()>]>,
    /// Clients that lost their bucket before their allowance was full again.
    forgotten: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Set([Bucket; WAYS]);

#[derive(Debug, Default)]
struct Bucket {
    /// 0 means free.
    key: AtomicU64,
    /// The time at which the allowance is full again.
    whole_at_ns: AtomicU64,
}

impl Default for RateTable {
    fn default() -> Self {
        Self {
            sets: (0..SETS).map(|_| Set::default()).collect(),
            claims: (0..PARTS).map(|_| Mutex::default()).collect(),
            forgotten: AtomicU64::new(0),
        }
    }
}

impl RateTable {
    /// Counts one request of a client, or refuses it. Returns the nanoseconds until its allowance is full again.
    ///
    /// `key` identifies the client and the limit together. It must be a hash that clients cannot predict, or some could be made to share a
    /// bucket. `now_ns` is from one monotonic clock of the caller's.
    ///
    /// # Errors
    /// If the limit is exceeded: the nanoseconds until one more request is allowed.
    pub fn admit(&self, key: u64, rate: Rate, now_ns: u64) -> Result<u64, u64> {
        let key = key.max(1);
        let index = (key as usize) % SETS;
        let Some(set) = self.sets.get(index) else { return Ok(0) };
        if let Some(verdict) = set.admit(key, rate, now_ns) {
            return verdict;
        }
        // A poisoned lock guards no data: a thread that panicked left nothing half done.
        let claim = self.claims.get(index % PARTS).map(|claim| claim.lock().unwrap_or_else(PoisonError::into_inner));
        // Another worker may have seen the same client at the same time.
        let verdict = set.admit(key, rate, now_ns).unwrap_or_else(|| {
            self.claim(set, key, now_ns.saturating_add(rate.interval_ns), now_ns);
            Ok(rate.interval_ns)
        });
        drop(claim);
        verdict
    }

    /// Takes back what [`RateTable::admit`] has just counted: another limit refuses the request. If the client has lost its bucket in the meantime,
    /// there is nothing to take back.
    pub fn take_back(&self, key: u64, rate: Rate) {
        let key = key.max(1);
        let set = self.sets.get((key as usize) % SETS);
        if let Some(bucket) = set.and_then(|set| set.0.iter().find(|bucket| bucket.key.load(Relaxed) == key)) {
            bucket.take_back(key, rate);
        }
    }

    /// Reserves bytes of a client's bandwidth. Returns the nanoseconds after which they may move. Reservations are served in the order in which
    /// they are made, so connections of one client share its bandwidth. For `key` and `now_ns`, see [`RateTable::admit`].
    pub fn reserve(&self, key: u64, bandwidth: Bandwidth, bytes: u64, now_ns: u64) -> u64 {
        let (key, cost_ns) = (key.max(1), bandwidth.cost_ns(bytes));
        let index = (key as usize) % SETS;
        let Some(set) = self.sets.get(index) else { return 0 };
        let whole_after_ns = set.reserve(key, cost_ns, now_ns).unwrap_or_else(|| {
            let claim =
                self.claims.get(index % PARTS).map(|claim| claim.lock().unwrap_or_else(PoisonError::into_inner));
            let whole_after_ns = set.reserve(key, cost_ns, now_ns).unwrap_or_else(|| {
                self.claim(set, key, now_ns.saturating_add(cost_ns), now_ns);
                cost_ns
            });
            drop(claim);
            whole_after_ns
        });
        whole_after_ns.saturating_sub(bandwidth.allowance_ns)
    }

    /// Gives the client a free bucket, or that of the client whose allowance is full first. Called with the lock held.
    fn claim(&self, set: &Set, key: u64, whole_at_ns: u64, now_ns: u64) {
        let first = set.0.iter().min_by_key(|bucket| match bucket.key.load(Relaxed) {
            0 => 0,
            _ => bucket.whole_at_ns.load(Relaxed),
        });
        let Some(bucket) = first else { return };
        if bucket.key.load(Relaxed) != 0 && bucket.whole_at_ns.load(Relaxed) > now_ns {
            self.forgotten.fetch_add(1, Relaxed);
        }
        // Belongs to no client while it changes hands. A worker that still counts for the previous client finds another time than it has
        // read.
        bucket.key.store(0, Relaxed);
        bucket.whole_at_ns.store(whole_at_ns, Release);
        bucket.key.store(key, Release);
    }

    /// Clients that lost their bucket to others before their allowance was full again, and so got a new one: more clients are active at
    /// once than [`RATE_KEYS_MAX`].
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }
}

impl Set {
    /// Returns `None` if the client has no bucket here.
    fn admit(&self, key: u64, rate: Rate, now_ns: u64) -> Option<Result<u64, u64>> {
        self.0.iter().find(|bucket| bucket.key.load(Relaxed) == key)?.admit(key, rate, now_ns)
    }
}

impl Set {
    /// Returns `None` if the client has no bucket here, and else the nanoseconds until its allowance is full again.
    fn reserve(&self, key: u64, cost_ns: u64, now_ns: u64) -> Option<u64> {
        self.0.iter().find(|bucket| bucket.key.load(Relaxed) == key)?.reserve(key, cost_ns, now_ns)
    }
}

impl Bucket {
    /// As [`Bucket::admit`], but it refuses nothing.
    fn reserve(&self, key: u64, cost_ns: u64, now_ns: u64) -> Option<u64> {
        loop {
            let whole_at_ns = self.whole_at_ns.load(Acquire);
            if self.key.load(Acquire) != key {
                return None;
            }
            let next_ns = whole_at_ns.max(now_ns).saturating_add(cost_ns);
            if self.whole_at_ns.compare_exchange_weak(whole_at_ns, next_ns, Release, Relaxed).is_ok() {
                return Some(next_ns.saturating_sub(now_ns));
            }
        }
    }

    fn take_back(&self, key: u64, rate: Rate) {
        loop {
            let whole_at_ns = self.whole_at_ns.load(Acquire);
            // As in `admit`.
            if self.key.load(Acquire) != key {
                return;
            }
            let before_ns = whole_at_ns.saturating_sub(rate.interval_ns);
            if self.whole_at_ns.compare_exchange_weak(whole_at_ns, before_ns, Release, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Returns `None` if the bucket was given to another client in the meantime.
    fn admit(&self, key: u64, rate: Rate, now_ns: u64) -> Option<Result<u64, u64>> {
        loop {
            let whole_at_ns = self.whole_at_ns.load(Acquire);
            // Checked after the time was read: if the bucket is given to another client from here on, the exchange below fails.
            if self.key.load(Acquire) != key {
                return None;
            }
            let next_ns = whole_at_ns.max(now_ns).saturating_add(rate.interval_ns);
            let ahead_ns = next_ns.saturating_sub(now_ns);
            if ahead_ns > rate.allowance_ns {
                return Some(Err(ahead_ns - rate.allowance_ns));
            }
            if self.whole_at_ns.compare_exchange_weak(whole_at_ns, next_ns, Release, Relaxed).is_ok() {
                return Some(Ok(ahead_ns));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use model::FurtherRate;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::seeded;

    const SECOND: u64 = 1_000_000_000;

    fn rate(requests: u32, per_s: u64, burst: u32) -> Rate {
        Rate::new(FurtherRate { requests, per: Duration::from_secs(per_s), burst })
    }

    /// `(at_ms, asked, granted)` in order, for one client.
    fn check(rate: Rate, steps: &[(u64, u64, u64)]) {
        let table = RateTable::default();
        for (at_ms, asked, granted) in steps {
            let got = (0..*asked).filter(|_| table.admit(7, rate, SECOND + at_ms * 1_000_000).is_ok()).count() as u64;
            assert_eq!(got, *granted, "at {at_ms} ms of {steps:?}");
        }
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        check(rate(100, 1, 50), &[(0, 60, 50), (5, 9, 0), (10, 9, 1), (1010, 200, 50)]);
        check(rate(100, 1, 1), &[(0, 9, 1), (9, 9, 0), (10, 9, 1)]);
        check(rate(10, 60, 10), &[(0, 20, 10), (5_999, 1, 0), (6_000, 2, 1), (66_000, 20, 10)]);
        // A clock that steps back allows nothing.
        check(rate(1, 1, 2), &[(1_000, 5, 2), (0, 5, 0), (2_000, 5, 1)]);
    }

    #[test]
    fn what_is_taken_back_does_not_count() {
        let (table, rate) = (RateTable::default(), rate(1, 10, 2));
        table.take_back(7, rate);
        let outcomes = [0, 0, 0].map(|_| table.admit(7, rate, SECOND).is_ok());
        assert_eq!(outcomes, [true, true, false]);
        table.take_back(7, rate);
        assert_eq!([0, 0].map(|_| table.admit(7, rate, SECOND).is_ok()), [true, false]);
        table.take_back(8, rate);
        assert!(table.admit(7, rate, SECOND).is_err(), "another client's");
    }

    #[test]
    fn the_wait_is_until_one_more_is_granted() {
        let (table, rate) = (RateTable::default(), rate(1, 10, 2));
        assert_eq!([0, 0, 0].map(|at| table.admit(7, rate, at)), [Ok(10 * SECOND), Ok(20 * SECOND), Err(10 * SECOND)]);
        assert_eq!(table.admit(7, rate, 9 * SECOND), Err(SECOND));
        assert_eq!(table.admit(7, rate, 10 * SECOND), Ok(20 * SECOND));
    }

    #[test]
    fn what_is_left_is_told() {
        let (table, rate) = (RateTable::default(), rate(1, 10, 3));
        let left = |at: u64| match table.admit(7, rate, at * SECOND) {
            Ok(whole_after_ns) => (rate.remaining(whole_after_ns), whole_after_ns / SECOND),
            Err(wait_ns) => (0, rate.whole_after_ns(wait_ns) / SECOND),
        };
        assert_eq!([0, 0, 5, 5, 9, 10, 100].map(left), [(2, 10), (1, 20), (0, 25), (0, 25), (0, 21), (0, 30), (2, 10)]);
        assert_eq!(rate.allowance_ns(), 30 * SECOND);
    }

    #[test]
    fn clients_do_not_share() {
        let (table, rate) = (RateTable::default(), rate(1, 1000, 1));
        // All of one set, and more than it has buckets: the client whose allowance is full first is forgotten.
        let keys: Vec<u64> = (1..=WAYS as u64 + 1).map(|n| n * SETS as u64 + 5).collect();
        for (at, key) in keys.iter().enumerate() {
            assert!(table.admit(*key, rate, at as u64).is_ok());
        }
        assert_eq!(table.forgotten(), 1);
        for key in &keys[1..] {
            assert!(table.admit(*key, rate, 100).is_err(), "{key}");
        }
        assert!(table.admit(keys[0], rate, 100).is_ok());
        // Clients whose allowance is full lose nothing.
        let later = 2000 * SECOND;
        keys.iter().for_each(|key| assert!(table.admit(key + 1000 * SETS as u64, rate, later).is_ok()));
        assert_eq!(table.forgotten(), 3);
    }

    #[test]
    fn workers_together_grant_no_more_than_one_would() {
        const WORKERS: usize = 4;
        let rate = rate(1, 1000, 100);
        for round in 0..20 {
            let (table, granted, start) = (RateTable::default(), AtomicUsize::new(0), Barrier::new(WORKERS));
            std::thread::scope(|scope| {
                for _ in 0..WORKERS {
                    scope.spawn(|| {
                        start.wait();
                        // The same few clients, so that several workers claim them at once.
                        for n in 0..800 {
                            let is_granted = table.admit(1 + n % 4, rate, SECOND).is_ok();
                            granted.fetch_add(usize::from(is_granted), Relaxed);
                        }
                    });
                }
            });
            assert_eq!(granted.load(Relaxed), 400, "round {round}");
        }
    }

    fn bandwidth(bytes: u64, per_s: u64, burst: u64) -> Bandwidth {
        Bandwidth::new(&model::Bandwidth { bytes, per: Duration::from_secs(per_s), burst })
    }

    #[test]
    fn bytes_wait_for_what_is_before_them() {
        let (table, bandwidth) = (RateTable::default(), bandwidth(1000, 1, 500));
        let reserve = |at_ms: u64, bytes| table.reserve(7, bandwidth, bytes, at_ms * 1_000_000) / 1_000_000;
        // The burst, and then a millisecond for each byte, whoever asks.
        assert_eq!([(0, 400), (0, 100), (0, 1), (0, 99), (0, 900)].map(|(at, n)| reserve(at, n)), [0, 0, 1, 100, 1000]);
        // 1,500 ms of work are reserved, and 500 ms of it may be ahead.
        assert_eq!([(1_000, 100), (1_100, 0)].map(|(at, n)| reserve(at, n)), [100, 0]);
        assert_eq!([(60_000, 500), (60_000, 1)].map(|(at, n)| reserve(at, n)), [0, 1]);
        assert_eq!((bandwidth.cost_ns(1), bandwidth.bytes_in(SECOND)), (1_000_000, 1000));
    }

    #[test]
    fn bandwidths_of_any_size_can_be_computed() {
        let fast = bandwidth(u64::MAX, 1, u64::MAX);
        assert_eq!((fast.cost_ns(1), fast.cost_ns(u64::MAX)), (1, SECOND));
        let slow = bandwidth(1, u64::MAX / SECOND, 1);
        assert!(slow.cost_ns(u64::MAX) == u64::MAX && slow.bytes_in(SECOND) == 0);
        let table = RateTable::default();
        assert!(table.reserve(7, slow, u64::MAX, u64::MAX) < u64::MAX);
    }

    proptest! {
        #![proptest_config(seeded(64))]

        /// A client that moves its bytes when it may moves exactly what the bandwidth allows, however it divides them.
        #[test]
        fn the_pace_is_the_bandwidth(
            bytes in 1u64..10_000_000, burst in 0u64..1_000_000, pieces in prop::collection::vec(1u64..100_000, 1..200),
        ) {
            let (table, bandwidth) = (RateTable::default(), bandwidth(bytes, 1, burst));
            let (begun_ns, mut now_ns, mut moved) = (SECOND, SECOND, 0u64);
            for piece in &pieces {
                now_ns += table.reserve(3, bandwidth, *piece, now_ns);
                moved += piece;
            }
            // Each piece rounds up to a nanosecond.
            let due_ns = bandwidth.cost_ns(moved).saturating_sub(bandwidth.allowance_ns);
            let took_ns = now_ns - begun_ns;
            prop_assert!((due_ns..=due_ns + pieces.len() as u64).contains(&took_ns), "{} of {}", took_ns, due_ns);
        }

        /// Over any period: at most the burst plus what the rate gives, and exactly that for a client that keeps asking.
        #[test]
        fn never_more_and_not_less(
            requests in 1u32..1000, per_s in 1u64..100, burst in 1u32..100, gaps_ms in prop::collection::vec(0u64..300, 1..100),
        ) {
            let (table, rate) = (RateTable::default(), rate(requests, per_s, burst));
            let (mut now_ns, mut granted) = (SECOND, 0u64);
            for gap_ms in gaps_ms {
                now_ns += gap_ms * 1_000_000;
                // More than there can be: the allowance is empty afterwards.
                granted += (0..=burst).filter(|_| table.admit(9, rate, now_ns).is_ok()).count() as u64;
                let due = u64::from(burst) + (now_ns - SECOND) / rate.interval_ns;
                prop_assert!(granted <= due, "{} granted, {} due", granted, due);
            }
        }
    }
}

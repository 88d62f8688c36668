//! Rate limits: so many requests of each client, whichever worker it meets.
//!
//! The generic cell rate algorithm (ITU-T I.371, annex A): of each client one number is kept, the moment at which its allowance is whole
//! again. A request moves that moment on by the interval between two requests, and is refused where it would come to lie further ahead
//! than a whole allowance takes. A client whose moment has passed is as good as one that was never seen, so its bucket can be given away
//! without anything being forgotten.
//!
//! One table for all limits of the process, so that its size is known whatever is configured. A client that is in the table is judged
//! without a lock, one that is not takes the lock of its part of the table.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, PoisonError};

/// Clients that are remembered at once, of all limits. The table takes 16 bytes for each: 4 MiB.
pub const RATE_KEYS_MAX: usize = SETS * WAYS;

const SETS: usize = 1 << 15;
/// Places that a client may be found in: two cache lines, which processors fetch in pairs.
const WAYS: usize = 8;
/// Locks, each for as many sets as any other.
const PARTS: usize = 64;

/// A limit, in the units of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Between two requests in the long run, nanoseconds.
    interval_ns: u64,
    /// In which a whole allowance grows back: `burst` intervals.
    allowance_ns: u64,
}

impl Rate {
    /// The rate of a limit.
    pub fn new(limit: &model::RateLimit) -> Self {
        let per_ns = u64::try_from(limit.per.as_nanos()).unwrap_or(u64::MAX);
        let interval_ns = (per_ns / u64::from(limit.requests.max(1))).max(1);
        Self { interval_ns, allowance_ns: interval_ns.saturating_mul(u64::from(limit.burst.max(1))) }
    }
}

/// The clients that limits remember. Shared by all workers.
#[derive(Debug)]
pub struct RateTable {
    sets: Box<[Set]>,
    /// Held while a bucket passes to another client.
    claims: Box<[Mutex<()>]>,
    /// Clients that lost their bucket before their allowance was whole again.
    forgotten: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Set([Bucket; WAYS]);

#[derive(Debug, Default)]
struct Bucket {
    /// 0: free.
    key: AtomicU64,
    /// When the allowance is whole again.
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
    /// Counts one request of a client, or refuses it.
    ///
    /// `key` stands for the client and the limit together, and for no other pair: a hash that clients cannot foresee, or some could be made to
    /// share a bucket. `now_ns` is of one monotonic clock of the caller's.
    ///
    /// # Errors
    /// The limit is met; the nanoseconds until one more request is granted.
    pub fn admit(&self, key: u64, rate: Rate, now_ns: u64) -> Result<(), u64> {
        let key = key.max(1);
        let index = (key as usize) % SETS;
        let Some(set) = self.sets.get(index) else { return Ok(()) };
        if let Some(verdict) = set.admit(key, rate, now_ns) {
            return verdict;
        }
        // A poisoned lock guards no data: whoever panicked left nothing half done.
        let claim = self.claims.get(index % PARTS).map(|claim| claim.lock().unwrap_or_else(PoisonError::into_inner));
        // Another worker may have met the same client at the same time.
        let verdict = set.admit(key, rate, now_ns).unwrap_or_else(|| {
            self.claim(set, key, now_ns.saturating_add(rate.interval_ns), now_ns);
            Ok(())
        });
        drop(claim);
        verdict
    }

    /// Gives the client a free bucket, or that of the one whose allowance is whole first. Called with the lock held.
    fn claim(&self, set: &Set, key: u64, whole_at_ns: u64, now_ns: u64) {
        let first = set.0.iter().min_by_key(|bucket| match bucket.key.load(Relaxed) {
            0 => 0,
            _ => bucket.whole_at_ns.load(Relaxed),
        });
        let Some(bucket) = first else { return };
        if bucket.key.load(Relaxed) != 0 && bucket.whole_at_ns.load(Relaxed) > now_ns {
            self.forgotten.fetch_add(1, Relaxed);
        }
        // Nobody's while it changes hands. Whoever still counts for the client before finds another moment than it looked at.
        bucket.key.store(0, Relaxed);
        bucket.whole_at_ns.store(whole_at_ns, Release);
        bucket.key.store(key, Release);
    }

    /// Clients that lost their bucket to others before their allowance was whole again, and so have a new one: more clients are busy at
    /// once than [`RATE_KEYS_MAX`].
    pub fn forgotten(&self) -> u64 {
        self.forgotten.load(Relaxed)
    }
}

impl Set {
    /// `None`: the client has no bucket here.
    fn admit(&self, key: u64, rate: Rate, now_ns: u64) -> Option<Result<(), u64>> {
        self.0.iter().find(|bucket| bucket.key.load(Relaxed) == key)?.admit(key, rate, now_ns)
    }
}

impl Bucket {
    /// `None`: the bucket went to another client in the meantime.
    fn admit(&self, key: u64, rate: Rate, now_ns: u64) -> Option<Result<(), u64>> {
        loop {
            let whole_at_ns = self.whole_at_ns.load(Acquire);
            // Looked at after the moment: should the bucket go to another client from here on, the exchange below fails.
            if self.key.load(Acquire) != key {
                return None;
            }
            let next_ns = whole_at_ns.max(now_ns).saturating_add(rate.interval_ns);
            let ahead_ns = next_ns.saturating_sub(now_ns);
            if ahead_ns > rate.allowance_ns {
                return Some(Err(ahead_ns - rate.allowance_ns));
            }
            if self.whole_at_ns.compare_exchange_weak(whole_at_ns, next_ns, Release, Relaxed).is_ok() {
                return Some(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use model::{RateKey, RateLimit};
    use proptest::prelude::*;

    use super::*;
    use crate::testing::seeded;

    const SECOND: u64 = 1_000_000_000;

    fn rate(requests: u32, per_s: u64, burst: u32) -> Rate {
        Rate::new(&RateLimit { requests, per: Duration::from_secs(per_s), by: RateKey::ClientIp, burst })
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
        // A clock that steps back grants nothing.
        check(rate(1, 1, 2), &[(1_000, 5, 2), (0, 5, 0), (2_000, 5, 1)]);
    }

    #[test]
    fn the_wait_is_until_one_more_is_granted() {
        let (table, rate) = (RateTable::default(), rate(1, 10, 2));
        assert_eq!([0, 0, 0].map(|at| table.admit(7, rate, at)), [Ok(()), Ok(()), Err(10 * SECOND)]);
        assert_eq!(table.admit(7, rate, 9 * SECOND), Err(SECOND));
        assert_eq!(table.admit(7, rate, 10 * SECOND), Ok(()));
    }

    #[test]
    fn clients_do_not_share() {
        let (table, rate) = (RateTable::default(), rate(1, 1000, 1));
        // All of one set, and more than it has buckets: who is forgotten is the one whose allowance is whole first.
        let keys: Vec<u64> = (1..=WAYS as u64 + 1).map(|n| n * SETS as u64 + 5).collect();
        for (at, key) in keys.iter().enumerate() {
            assert_eq!(table.admit(*key, rate, at as u64), Ok(()));
        }
        assert_eq!(table.forgotten(), 1);
        for key in &keys[1..] {
            assert!(table.admit(*key, rate, 100).is_err(), "{key}");
        }
        assert_eq!(table.admit(keys[0], rate, 100), Ok(()));
        // Those whose allowance is whole are not missed.
        let later = 2000 * SECOND;
        keys.iter().for_each(|key| assert_eq!(table.admit(key + 1000 * SETS as u64, rate, later), Ok(())));
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
                        // The same few clients, so that they are claimed by several at once.
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

    proptest! {
        #![proptest_config(seeded(64))]

        /// Over any stretch of time: at most the burst and what the rate gives, and as much as that to one that keeps asking.
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

//! Limits retries, so that they do not overload a failing cluster completely.

/// Seconds over which requests and retries are counted.
pub const RETRY_WINDOW_SECONDS: u64 = 10;
/// Retries per second that are always allowed, so that requests are retried even with little traffic.
pub const RETRY_FLOOR_PER_SECOND: u64 = 10;

/// One worker's retry budget for one cluster.
///
/// In any [`RETRY_WINDOW_SECONDS`], counted in whole seconds, there are at most as many retries as the given share of the requests, plus
/// [`RETRY_FLOOR_PER_SECOND`] for each second. These may come at once, for example when an endpoint dies with many requests in progress.
#[derive(Clone, Debug, Default)]
pub struct RetryBudget {
    /// Requests and retries of second `s`, at `s % RETRY_WINDOW_SECONDS`.
    seconds: [Counted; RETRY_WINDOW_SECONDS as usize],
    /// The sum of `seconds`.
    window: Counted,
    /// The latest second seen.
    second: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    requests: u64,
    retries: u64,
}

impl RetryBudget {
    /// A budget with an empty window.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a request from downstream. Its retries do not count as requests.
    pub fn on_request(&mut self, now_ms: u64) {
        self.advance(now_ms);
        self.window.requests += 1;
        self.current().requests += 1;
    }

    /// Whether a retry is within the budget of this share of the requests, 0.0 to 1.0. If so, it is counted.
    pub fn try_retry(&mut self, now_ms: u64, share: f64) -> bool {
        self.advance(now_ms);
        if self.window.retries >= self.allowed(share) {
            return false;
        }
        self.window.retries += 1;
        self.current().retries += 1;
        true
    }

    /// The part of the budget of this share of the requests that is used, 0.0 to 1.0, at the time of the last call of the other functions.
    pub fn used(&self, share: f64) -> f64 {
        (self.window.retries as f64 / self.allowed(share) as f64).min(1.0)
    }

    /// Retries of the window, at least those of the floor.
    fn allowed(&self, share: f64) -> u64 {
        (self.window.requests as f64 * share) as u64 + RETRY_FLOOR_PER_SECOND * RETRY_WINDOW_SECONDS
    }

    #[expect(clippy::indexing_slicing, reason = "x % n is below n, the length of the array")]
    fn current(&mut self) -> &mut Counted {
        &mut self.seconds[(self.second % RETRY_WINDOW_SECONDS) as usize]
    }

    /// Removes the seconds that have left the window, in at most as many steps as the window has seconds.
    fn advance(&mut self, now_ms: u64) {
        let second = now_ms / 1000;
        // If the clock stands still or steps back, events count into the latest second.
        let steps = second.saturating_sub(self.second).min(RETRY_WINDOW_SECONDS);
        for _ in 0..steps {
            self.second += 1;
            let old = std::mem::take(self.current());
            self.window.requests -= old.requests;
            self.window.retries -= old.retries;
        }
        self.second = self.second.max(second);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::seeded;

    /// `(at_ms, requests, retries asked for, retries granted)` in order.
    fn check(steps: &[(u64, u64, u64, u64)]) {
        let mut budget = RetryBudget::new();
        for (at_ms, requests, asked, granted) in steps {
            (0..*requests).for_each(|_| budget.on_request(*at_ms));
            let got = (0..*asked).filter(|_| budget.try_retry(*at_ms, 0.2)).count() as u64;
            assert_eq!(got, *granted, "at {at_ms} of {steps:?}");
        }
    }

    #[test]
    fn budgets() {
        // Only the floor.
        check(&[(0, 0, 200, 100)]);
        // A fifth of the requests in addition.
        check(&[(0, 1000, 500, 300)]);
        // Used retries count for the whole window, and are available again after it.
        check(&[(0, 0, 100, 100), (9_999, 0, 5, 0), (10_000, 0, 200, 100)]);
        // Requests leave the window as well.
        check(&[(0, 1000, 0, 0), (5_000, 500, 0, 0), (10_000, 0, 500, 200), (15_000, 0, 10, 0), (20_000, 0, 500, 100)]);
        // A long silence.
        check(&[(0, 1000, 300, 300), (1_000_000_000, 0, 500, 100)]);
        // A clock that steps back.
        check(&[(50_000, 100, 120, 120), (1_000, 0, 1, 0)]);
    }

    #[test]
    fn how_full_a_budget_is() {
        let mut budget = RetryBudget::new();
        assert_eq!(budget.used(0.2), 0.0);
        (0..1000).for_each(|_| budget.on_request(0));
        assert!((0..75).all(|_| budget.try_retry(0, 0.2)));
        // 75 of 300, and of the 150 of a route that allows less.
        assert_eq!((budget.used(0.2), budget.used(0.05)), (0.25, 0.5));
        assert!((0..225).all(|_| budget.try_retry(0, 0.2)) && !budget.try_retry(0, 0.2));
        assert_eq!((budget.used(0.2), budget.used(0.0)), (1.0, 1.0));
        // The window has passed.
        budget.on_request(10_000);
        assert_eq!(budget.used(0.2), 0.0);
    }

    #[test]
    fn the_share_is_the_routes() {
        let granted = |share| {
            let mut budget = RetryBudget::new();
            (0..1000).for_each(|_| budget.on_request(0));
            (0..2000).filter(|_| budget.try_retry(0, share)).count()
        };
        assert_eq!([0.0, 0.05, 0.5, 1.0].map(granted), [100, 150, 600, 1100]);
    }

    proptest! {
        #![proptest_config(seeded(256))]

        /// However requests and failures arrive, the retries of any ten seconds stay within the share of their requests plus the floor.
        #[test]
        fn a_storm_is_bounded(steps in prop::collection::vec((0u64..3_000, 0u64..200, 0u64..400), 1..100)) {
            let mut budget = RetryBudget::new();
            let (mut now_ms, mut seen) = (0, Vec::new());
            for (gap_ms, requests, asked) in steps {
                now_ms += gap_ms;
                (0..requests).for_each(|_| budget.on_request(now_ms));
                let retries = (0..asked).filter(|_| budget.try_retry(now_ms, 0.2)).count() as u64;
                seen.push((now_ms / 1000, requests, retries));
                let since = (now_ms / 1000 + 1).saturating_sub(RETRY_WINDOW_SECONDS);
                let window = seen.iter().filter(|(second, ..)| *second >= since);
                let (requests, all) = window.fold((0, 0), |sum, (_, requests, retries)| (sum.0 + requests, sum.1 + retries));
                prop_assert!(retries == 0 || all <= requests / 5 + 100, "{} of {} at {}", all, requests, now_ms);
            }
        }
    }
}

//! Limits how often a request moves on to another endpoint while none can be reached.

/// Unreachable endpoints that one request, or one TCP connection, may try at no charge. If more endpoints are down at once, further tries
/// count as the route's retries.
pub const REDISPATCHES_MAX: u32 = 10;

/// The tries of one request, or of one TCP connection, at endpoints that cannot be reached.
///
/// An endpoint that refuses a connection does no work and gets nothing of the request, and the endpoint that takes it instead serves it
/// once, as it would have anyway. So there is no load that a number of tries or a retry budget would have to limit. What remains is the
/// work of connecting, ours and the network's, and the client's patience. Hence [`REDISPATCHES_MAX`], and a total time of at most one
/// connect timeout, because some unreachable endpoints take seconds to show, such as a host that does not answer for its address.
#[derive(Clone, Debug, Default)]
pub struct Redispatch {
    count: u32,
    spent_ms: u64,
}

impl Redispatch {
    /// Whether the request may go to another endpoint at no charge, after a failed connect that took from `begun_ms` to `now_ms`. If so, it
    /// is counted. `connect_timeout_ms` is the limit of a single connect.
    pub fn try_another(&mut self, begun_ms: u64, now_ms: u64, connect_timeout_ms: u64) -> bool {
        self.spent_ms = self.spent_ms.saturating_add(now_ms.saturating_sub(begun_ms));
        if self.count >= REDISPATCHES_MAX || self.spent_ms >= connect_timeout_ms {
            return false;
        }
        self.count += 1;
        true
    }

    /// Charges every further try, because the request has been everywhere.
    pub fn end(&mut self) {
        self.count = REDISPATCHES_MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the failures, which took these milliseconds, were free of charge, with a connect timeout of 3,000.
    fn check(took_ms: &[u64], expect: usize) {
        let (mut redispatch, mut now_ms) = (Redispatch::default(), 1_000_000);
        let free = took_ms.iter().filter(|took_ms| {
            let begun_ms = now_ms;
            now_ms += **took_ms;
            redispatch.try_another(begun_ms, now_ms, 3_000)
        });
        assert_eq!(free.count(), expect, "{took_ms:?}");
    }

    #[test]
    fn bounded_in_number_and_in_time() {
        check(&[0; 9], 9);
        check(&[0; 11], 10);
        check(&[250; 20], 10);
        // A connect that takes the whole time has in effect timed out.
        check(&[3_000], 0);
        check(&[1_000, 1_000, 999, 0, 1, 0], 4);
        check(&[0, 3_000, 0, 0], 1);
        check(&[u64::MAX - 1_000_000, 0], 0);
    }

    #[test]
    fn a_clock_that_steps_back_spends_nothing() {
        let mut redispatch = Redispatch::default();
        assert!(redispatch.try_another(5_000, 1_000, 1) && redispatch.try_another(1_000, 1_000, 1));
    }

    #[test]
    fn at_the_end_nothing_is_free() {
        let mut redispatch = Redispatch::default();
        assert!(redispatch.try_another(0, 0, 1));
        redispatch.end();
        assert!(!redispatch.try_another(0, 0, 1));
    }
}

//! How many requests of one client a route serves at once, over all workers.
//!
//! A request counts from here until its exchange is over, however it ends: what counts for it is dropped with it. So it counts once, whatever
//! is retried, and until the end of a tunnel.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use model::{ConcurrencyLimit, LimitTerms, RateKey};
use telemetry::Reason;

use super::RequestView;
use super::rate_limit::{Exempt, client_key};
use crate::counts::{Counts, Permit};
use crate::error::Error;

/// The requests in progress of all routes that limit them.
#[derive(Default)]
pub(crate) struct InProgress {
    counts: Arc<Counts>,
    /// As of rate limits: no client can choose which other client it shares an entry with.
    hasher: RandomState,
}

#[cfg(test)]
impl InProgress {
    /// Of all clients together.
    pub(crate) fn total(&self) -> usize {
        self.counts.total()
    }
}

/// The concurrency limit of one route, for all workers.
pub(crate) struct ConcurrencyLimiter {
    requests_max: usize,
    by: RateKey,
    /// Identifies the route. The requests that are in progress count after a reload that changes their number.
    id: u64,
    exempt: Exempt,
    in_progress: Arc<InProgress>,
}

impl ConcurrencyLimiter {
    pub(crate) fn new(limit: &ConcurrencyLimit, listener: &str, route: &str, in_progress: &Arc<InProgress>) -> Self {
        let ConcurrencyLimit { requests, by, terms } = limit;
        let LimitTerms { except, group, status: _ } = terms;
        let header = by.header();
        let id = match group {
            Some(group) => in_progress.hasher.hash_one((group, header)),
            None => in_progress.hasher.hash_one((listener, route, header)),
        };
        Self {
            requests_max: usize::try_from(*requests).unwrap_or(usize::MAX),
            by: by.clone(),
            id,
            exempt: Exempt::new(except),
            in_progress: in_progress.clone(),
        }
    }

    /// Counts a request until the permit is dropped, or refuses it. One that is not limited needs no permit.
    ///
    /// # Errors
    /// [`Reason::ConcurrencyLimited`].
    pub(crate) fn admit(&self, asked: &RequestView<'_>) -> Result<Option<Permit>, Error> {
        if self.exempt.has(asked) {
            return Ok(None);
        }
        let key = client_key(&self.in_progress.hasher, self.id, &self.by, asked);
        let permit = self.in_progress.counts.acquire(key, self.requests_max);
        permit.map(Some).ok_or_else(|| Error::internal(Reason::ConcurrencyLimited))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    /// The permits of three requests that stay in progress.
    fn admitted(limiter: &ConcurrencyLimiter, fields: &str, is_trusted: bool) -> Vec<Option<Permit>> {
        let lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}");
        (0..3).filter_map(|_| testing::asked(&lines, is_trusted, |asked| limiter.admit(asked)).ok()).collect()
    }

    fn limiter(requests: u32, by: RateKey, route: &str, terms: LimitTerms, of: &Arc<InProgress>) -> ConcurrencyLimiter {
        ConcurrencyLimiter::new(&ConcurrencyLimit { requests, by, terms }, "web", route, of)
    }

    #[test]
    fn requests_count_as_long_as_they_last() {
        let all = Arc::default();
        let by_ip = limiter(2, RateKey::ClientIp, "/", LimitTerms::default(), &all);
        let first = admitted(&by_ip, "", false);
        assert_eq!((first.len(), all.total()), (2, 2));
        assert_eq!(admitted(&by_ip, "", false).len(), 0);
        let other = admitted(&by_ip, "X-Forwarded-For: 2001:db8::1\r\n", true);
        assert_eq!((other.len(), admitted(&by_ip, "X-Forwarded-For: 2001:db8::2\r\n", true).len()), (2, 0));
        // A reload changes the number, and forgets no request.
        let more = limiter(3, RateKey::ClientIp, "/", LimitTerms::default(), &all);
        assert_eq!(admitted(&more, "", false).len(), 1);
        drop(first);
        assert_eq!(admitted(&more, "", false).len(), 3);
        drop(other);
        assert_eq!(all.total(), 0);
    }

    #[test]
    fn clients_and_routes_are_told_apart_by_what_the_limit_says() {
        let all = Arc::default();
        let by_key = limiter(1, RateKey::Header("x-key".into()), "/", LimitTerms::default(), &all);
        let of_joe = admitted(&by_key, "X-Key: joe\r\n", false);
        assert_eq!((of_joe.len(), admitted(&by_key, "x-key: joe\r\n", false).len()), (1, 0));
        assert_eq!(admitted(&by_key, "X-Key: ann\r\n", false).len(), 1);
        let grouped = |route: &str| {
            let terms = LimitTerms { group: Some("g".to_owned()), ..LimitTerms::default() };
            limiter(1, RateKey::ClientIp, route, terms, &all)
        };
        let of_a = admitted(&grouped("/a"), "", false);
        assert_eq!((of_a.len(), admitted(&grouped("/b"), "", false).len()), (1, 0));
        let some = LimitTerms { except: vec!["10.0.0.9/32".parse().unwrap()], ..LimitTerms::default() };
        assert_eq!(admitted(&limiter(1, RateKey::ClientIp, "/c", some, &all), "", false).len(), 3);
    }
}

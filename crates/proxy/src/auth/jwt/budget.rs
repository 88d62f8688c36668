//! How much time a worker spends on signatures that are wrong.
//!
//! A right signature costs once for each token. Wrong ones can be made up without end, and the dearest takes a worker milliseconds. So the time
//! that they took is a debt, of the client and of all clients together, and no signature is verified for a client that owes too much: this
//! client alone gets 429. Only if many clients together spend the worker's share, tokens that are not known yet get 503, of all clients.
//! Tokens that are known pass in any case. Right signatures count for nothing, so no number of right tokens is too large.
//!
//! The times are those of a table, measured once, as the exchange has no clock.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

use telemetry::Reason;

use crate::error::Error;

/// What one client may spend: 1 % of the time, in microseconds a millisecond.
const CLIENT_US_PER_MS: u64 = 10;

/// What it may spend at once: 1,000 wrong signatures with RSA of 2048 bits, and 30 with ES512.
const CLIENT_US_MAX: u64 = 20_000;

/// What all clients may spend: 20 %.
const ALL_US_PER_MS: u64 = 200;

/// The same at once.
const ALL_US_MAX: u64 = 200_000;

/// Clients that are distinguished. Clients with one place owe together; which they are depends on a random number.
const PLACES: usize = 1024;

/// How soon a client may try again, in seconds: by then, at least 10 ms are free.
const RETRY_AFTER_S: u64 = 1;

/// The time that wrong signatures took on one worker.
#[derive(Default)]
pub(crate) struct Budget {
    all: RefCell<Debt>,
    /// Empty until a signature is wrong: 16 KiB.
    clients: RefCell<Vec<Debt>>,
    places: RandomState,
}

/// Time that was spent, and when, in milliseconds of the worker's clock. It is paid off at a fixed rate.
#[derive(Clone, Copy, Default)]
struct Debt {
    us: u64,
    at_ms: u64,
}

impl Debt {
    fn left_us(self, now_ms: u64, us_per_ms: u64) -> u64 {
        self.us.saturating_sub(now_ms.saturating_sub(self.at_ms).saturating_mul(us_per_ms))
    }

    fn add(&mut self, us: u64, now_ms: u64, us_per_ms: u64) {
        *self = Self { us: self.left_us(now_ms, us_per_ms).saturating_add(us), at_ms: now_ms };
    }
}

impl Budget {
    /// Whether a signature may be verified for this client.
    ///
    /// # Errors
    /// [`Reason::TokenAttempts`], [`Reason::TokensBusy`].
    pub(super) fn admit(&self, client: u64, now_ms: u64) -> Result<(), Error> {
        let own = self.clients.borrow().get(self.place(client)).copied().unwrap_or_default();
        if own.left_us(now_ms, CLIENT_US_PER_MS) >= CLIENT_US_MAX {
            return Err(Error::downstream(Reason::TokenAttempts).retry_after(RETRY_AFTER_S));
        }
        if self.all.borrow().left_us(now_ms, ALL_US_PER_MS) >= ALL_US_MAX {
            return Err(Error::internal(Reason::TokensBusy).retry_after(RETRY_AFTER_S));
        }
        Ok(())
    }

    /// Records that this much time was spent on a wrong token of this client.
    pub(super) fn spend(&self, client: u64, now_ms: u64, us: u64) {
        self.all.borrow_mut().add(us, now_ms, ALL_US_PER_MS);
        let mut clients = self.clients.borrow_mut();
        if clients.is_empty() {
            clients.resize(PLACES, Debt::default());
        }
        if let Some(own) = clients.get_mut(self.place(client)) {
            own.add(us, now_ms, CLIENT_US_PER_MS);
        }
    }

    fn place(&self, client: u64) -> usize {
        self.places.hash_one(client) as usize % PLACES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(budget: &Budget, client: u64, now_ms: u64) -> Option<Reason> {
        budget.admit(client, now_ms).err().map(|error| error.reason)
    }

    #[test]
    fn a_client_spends_its_own() {
        let budget = Budget::default();
        // Two clients with different places.
        let other = (2..).find(|client| budget.place(*client) != budget.place(1)).unwrap();
        assert_eq!(reason(&budget, 1, 0), None);
        budget.spend(1, 0, CLIENT_US_MAX);
        assert_eq!((reason(&budget, 1, 0), reason(&budget, other, 0)), (Some(Reason::TokenAttempts), None));
        assert_eq!(reason(&budget, 1, 1), None);
        budget.spend(1, 1, CLIENT_US_MAX);
        let free_ms = CLIENT_US_MAX / CLIENT_US_PER_MS;
        assert_eq!(
            (reason(&budget, 1, free_ms / 2), reason(&budget, 1, free_ms + 2)),
            (Some(Reason::TokenAttempts), None)
        );
        // A clock that goes back frees nothing, and does not lock up either.
        assert_eq!(reason(&budget, 1, 0), Some(Reason::TokenAttempts));
    }

    #[test]
    fn all_clients_together_spend_no_more_than_their_share() {
        let budget = Budget::default();
        (0..20).for_each(|client| budget.spend(client << 40, 0, ALL_US_MAX / 20));
        let fresh = (1..).find(|client| budget.clients.borrow()[budget.place(*client)].us == 0).unwrap();
        assert_eq!(reason(&budget, fresh, 0), Some(Reason::TokensBusy));
        assert_eq!(reason(&budget, fresh, 1), None);
        budget.spend(fresh, 1, u64::MAX);
        assert_eq!(reason(&budget, fresh, 1_000_000), Some(Reason::TokenAttempts));
    }
}

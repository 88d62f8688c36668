//! The minimum rate of a client (`min_rate`): how long the proxy waits for it, which grows with each byte that it moves.
//!
//! The rate is checked when a deadline is moved anyway, which is after progress, so this needs no timer of its own.

use std::time::Duration;

use model::{ListenerLimits, MinRate};

/// The remaining time of one client, in one direction of an exchange. The account is created when the proxy first waits for the client,
/// which for most clients never happens.
#[derive(Debug)]
pub(crate) struct MinRateTimer {
    /// Bytes that were moved before this, which earn no time.
    before: u64,
    /// The last progress came only after its deadline had passed.
    was_overdue: bool,
    account: Option<Box<Account>>,
}

#[derive(Debug)]
struct Account {
    rate: MinRate,
    /// The remaining time, in milliseconds: `0 <= left_ms <= left_ms_max`.
    left_ms: u64,
    /// The most time that a fast client can save up for being slow later.
    left_ms_max: u64,
    /// Since when the proxy waits for it, in milliseconds.
    since_ms: Option<u64>,
    /// Bytes for which time was credited.
    paid: u64,
}

impl MinRateTimer {
    /// `moved`: bytes before this, which earn no time.
    pub(crate) fn new(moved: u64) -> Self {
        Self { before: moved, was_overdue: false, account: None }
    }

    /// Records progress, and returns how long the client may take from now on, in milliseconds. `moved`: bytes moved so far in total;
    /// `waits_for_client`: the exchange now waits for the client, and not for something else. The account begins with the grace of `rate`.
    /// Without a rate, the client may take any time.
    fn note(
        &mut self,
        limits: &ListenerLimits,
        rate: Option<MinRate>,
        now_ms: u64,
        moved: u64,
        waits_for_client: bool,
    ) -> u64 {
        match (&mut self.account, rate) {
            (Some(account), _) => account.note(now_ms, moved, waits_for_client),
            (None, Some(rate)) if waits_for_client => {
                let account = self.account.insert(Box::new(Account::new(limits, rate, self.before)));
                account.note(now_ms, moved, true)
            }
            (None, _) => u64::MAX,
        }
    }

    /// How long to wait from now on, in milliseconds: for the client as long as [`MinRateTimer::note`] allows, and at most the stall
    /// timeout; for the endpoint, `response_timeout`.
    pub(crate) fn wait_ms(
        &mut self,
        limits: &ListenerLimits,
        rate: Option<MinRate>,
        response_timeout: Duration,
        now_ms: u64,
        moved: u64,
        waits_for_client: bool,
    ) -> u64 {
        let left_ms = self.note(limits, rate, now_ms, moved, waits_for_client);
        if waits_for_client {
            crate::millis(limits.stall_timeout).min(left_ms)
        } else {
            crate::millis(response_timeout)
        }
    }

    /// Records that something has moved, before its deadline or only after it. Returns whether the exchange may continue. Progress at the
    /// last moment is accepted, but not twice in a row: an exchange that moves only when its deadline is checked is stalled.
    pub(crate) fn may_move(&mut self, is_overdue: bool) -> bool {
        let was_overdue = std::mem::replace(&mut self.was_overdue, is_overdue);
        !(was_overdue && is_overdue)
    }

    /// Whether the client has used up its time.
    pub(crate) fn is_over(&self, now_ms: u64) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_over(now_ms))
    }
}

impl Account {
    fn new(limits: &ListenerLimits, rate: MinRate, paid: u64) -> Self {
        let left_ms = crate::millis(rate.grace);
        let left_ms_max = left_ms.max(crate::millis(limits.stall_timeout));
        Self { rate, left_ms, left_ms_max, since_ms: None, paid }
    }

    fn note(&mut self, now_ms: u64, moved: u64, waits_for_client: bool) -> u64 {
        if let Some(since_ms) = self.since_ms.take() {
            self.left_ms = self.left_ms.saturating_sub(now_ms.saturating_sub(since_ms));
        }
        if !waits_for_client {
            return u64::MAX;
        }
        let per_ms = crate::millis(self.rate.per).max(1);
        let bytes = self.rate.bytes.max(1);
        let earned_ms = moved.saturating_sub(self.paid).saturating_mul(per_ms) / bytes;
        // A remainder of less than a millisecond is not lost: it counts with the next bytes.
        self.paid = self.paid.saturating_add(earned_ms.saturating_mul(bytes).div_ceil(per_ms));
        self.left_ms = self.left_ms.saturating_add(earned_ms).min(self.left_ms_max);
        self.since_ms = Some(now_ms);
        self.left_ms
    }

    fn is_over(&self, now_ms: u64) -> bool {
        let ends_ms = self.since_ms.map(|since_ms| since_ms.saturating_add(self.left_ms));
        ends_ms.is_some_and(|ends_ms| now_ms >= ends_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 bytes per second after a grace of 5 s, with at most 60 s saved up.
    fn terms() -> (ListenerLimits, Option<MinRate>) {
        let rate = MinRate { bytes: 100, per: Duration::from_secs(1), grace: Duration::from_secs(5) };
        (ListenerLimits { stall_timeout: Duration::from_secs(60), ..ListenerLimits::default() }, Some(rate))
    }

    /// `(at_ms, moved in total, whether the proxy waits for the client, how long it may)`, in order.
    fn check(steps: &[(u64, u64, bool, u64)]) {
        let ((limits, rate), mut timer) = (terms(), MinRateTimer::new(0));
        for (at_ms, moved, waits, expect) in steps {
            assert_eq!(timer.note(&limits, rate, *at_ms, *moved, *waits), *expect, "at {at_ms} of {steps:?}");
            let ends_ms = at_ms.saturating_add(*expect);
            assert_eq!(
                (timer.is_over(ends_ms), timer.is_over(ends_ms - 1)),
                (*waits, false),
                "at {at_ms} of {steps:?}"
            );
        }
    }

    #[test]
    fn waiting_costs_and_bytes_earn() {
        // A trickle: a byte is worth ten milliseconds.
        check(&[(0, 0, true, 5_000), (3_000, 1, true, 2_010), (5_000, 2, true, 20), (5_020, 3, true, 10)]);
        // Just fast enough, for ever.
        check(&[(0, 0, true, 5_000), (1_000, 100, true, 5_000), (2_000, 200, true, 5_000), (3_000, 300, true, 5_000)]);
        // In between, the proxy waits for something else.
        check(&[(0, 0, true, 5_000), (1_000, 0, false, u64::MAX), (90_000, 0, true, 4_000)]);
        // A fast client may pause, but for no longer than a minute in total.
        check(&[(0, 1_000_000, true, 60_000), (59_000, 1_000_001, true, 1_010)]);
        // Too late.
        check(&[(0, 0, true, 5_000), (9_000, 0, true, 0)]);
        check(&[(0, u64::MAX, true, 60_000)]);
    }

    #[test]
    fn what_moves_only_when_it_is_overdue_stalls() {
        let mut timer = MinRateTimer::new(0);
        let moves = [false, true, false, true, true].map(|is_overdue| timer.may_move(is_overdue));
        assert_eq!(moves, [true, true, true, true, false]);
    }

    #[test]
    fn parts_of_a_millisecond_add_up() {
        let rate = MinRate { bytes: 10_000, per: Duration::from_secs(1), grace: Duration::from_secs(1) };
        let (limits, mut timer) = (ListenerLimits::default(), MinRateTimer::new(7));
        assert_eq!(
            [7, 11, 16, 17, 36, 37].map(|moved| timer.note(&limits, Some(rate), 0, moved, true)),
            [1000, 1000, 1000, 1001, 1002, 1003]
        );
    }

    #[test]
    fn without_a_rate_there_is_all_the_time() {
        let mut timer = MinRateTimer::new(0);
        assert_eq!(timer.note(&ListenerLimits::default(), None, 0, 0, true), u64::MAX);
        assert!(!timer.is_over(u64::MAX));
    }
}

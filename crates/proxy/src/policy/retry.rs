//! Decides whether, where and how often a request is sent again.

use balance::Redispatch;
use model::Retry;
use smallvec::SmallVec;
use wire::message::Method;

use crate::deadline::Deadline;
use crate::error::Error;
use crate::exchange::faults::{self, InjectedFault};
use crate::exchange::transfer::Transfer;
use crate::grpc::Status;
use crate::upstream::cluster::{Cluster, Lease};

/// Why a request might be retried: the kinds of failure that matter for a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryCause {
    /// There was no connection, and the endpoint did no work.
    Unreachable,
    /// There was no connection: the endpoint did not answer, or not properly.
    Connect,
    /// The connection ended, and the endpoint cannot have read the complete request.
    Unseen,
    /// The connection ended before any byte of the response arrived.
    Reset,
    /// The response did not begin in time.
    Timeout,
    /// The response has this status, and nothing of it was sent to the client.
    Status(u16),
    /// A gRPC call has failed with this status, and the response contains nothing else.
    Grpc(Status),
    /// Something of a response arrived, or it is not the endpoint's fault.
    Other,
}

/// Whether the policy asks for another try.
fn is_wanted(retry: &Retry, cause: RetryCause, method: Method) -> bool {
    let is_repeatable =
        method.is_idempotent() || retry.non_idempotent || faults::is_injected(InjectedFault::RetriesPost);
    match cause {
        RetryCause::Unreachable | RetryCause::Connect => retry.on_connect_failure,
        RetryCause::Unseen => retry.on_reset,
        RetryCause::Reset => retry.on_reset && is_repeatable,
        RetryCause::Timeout => retry.on_timeout && is_repeatable,
        RetryCause::Status(status) => retry.is_on_status(status) && is_repeatable,
        // Every call is a POST. Naming a status means that the service tolerates a repeated call.
        RetryCause::Grpc(status) => retry.on_grpc.contains(&(status as u8)),
        RetryCause::Other => false,
    }
}

/// Whether to retry without a wait: the endpoint was asked for nothing, and there is another one, so waiting improves nothing.
fn is_at_once(cause: RetryCause, has_other: bool) -> bool {
    matches!(cause, RetryCause::Unreachable | RetryCause::Connect | RetryCause::Unseen) && has_other
}

/// The tries of one request.
#[derive(Default)]
pub(crate) struct Tries {
    /// The failed ones. Boxed, because there are few.
    past: Option<Box<Past>>,
}

#[derive(Default)]
struct Past {
    /// When the first try began, in milliseconds, if the policy counts from then; 0 before that.
    begun_ms: u64,
    /// Endpoints that are not asked again as long as there are others.
    tried: SmallVec<[usize; 3]>,
    retries: u32,
    redispatch: Redispatch,
    /// An endpoint that lost a request on a kept connection may be asked again on a fresh one, if there is no other endpoint.
    may_return: bool,
    /// The last failure, if no response arrived.
    failed: Option<Error>,
    /// The next try needs a connection that was made since this time, in microseconds.
    fresh_since_us: Option<u64>,
    /// The next try must wait this long, in milliseconds.
    wait_ms: u64,
}

/// A failed try.
pub(crate) struct Failed<'f> {
    pub(crate) lease: &'f Lease,
    /// Its connection had served another request before.
    pub(crate) was_reused: bool,
    pub(crate) cause: RetryCause,
    pub(crate) method: Method,
    pub(crate) now_ms: u64,
}

impl Tries {
    /// A try begins.
    pub(crate) fn begin(&mut self, retry: &Retry, at_ms: u64) {
        if retry.within.is_some() {
            let past = self.past.get_or_insert_default();
            if past.begun_ms == 0 {
                past.begun_ms = at_ms;
            }
        }
    }

    /// Whether it is too late for another try that begins at this time.
    pub(crate) fn is_late(&self, retry: &Retry, at_ms: u64) -> bool {
        self.ends_ms(retry).is_some_and(|ends_ms| at_ms >= ends_ms)
    }

    /// When it is too late for another try, in milliseconds; `None` if it never is, or the first one has not begun.
    fn ends_ms(&self, retry: &Retry) -> Option<u64> {
        let begun_ms = self.past.as_deref().map(|past| past.begun_ms).filter(|begun_ms| *begun_ms > 0)?;
        let within = retry.within.filter(|_| !faults::is_injected(InjectedFault::RetriesLate))?;
        Some(begun_ms.saturating_add(crate::millis(within)))
    }

    /// Endpoints that must not be asked.
    pub(crate) fn tried(&self) -> &[usize] {
        self.past.as_deref().map_or(&[], |past| &past.tried)
    }

    /// How often the request was sent again, but for endpoints that could not be reached while there was another.
    pub(crate) fn retries(&self) -> u32 {
        self.past.as_deref().map_or(0, |past| past.retries)
    }

    /// Whether an ejected endpoint is acceptable if there is no other.
    pub(crate) fn takes_ejected(&self) -> bool {
        self.past.as_deref().is_some_and(|past| past.failed.is_some())
    }

    /// There is no other endpoint. Returns whether those that have failed may be asked once more.
    pub(crate) fn may_return(&mut self, same_endpoint: bool) -> bool {
        let Some(past) = &mut self.past else { return false };
        if !(same_endpoint || past.may_return) || past.tried.is_empty() {
            return false;
        }
        past.may_return = false;
        past.tried.clear();
        past.redispatch.end();
        true
    }

    /// The next try needs a connection that was made since this time, in microseconds; `None` if any will do.
    pub(crate) fn fresh_since_us(&self) -> Option<u64> {
        self.past.as_deref().and_then(|past| past.fresh_since_us)
    }

    /// From now on only connections that were made since this time are acceptable.
    pub(crate) fn set_fresh_since(&mut self, since_us: Option<u64>) {
        self.past.get_or_insert_default().fresh_since_us = since_us;
    }

    /// How long the next try must wait, in milliseconds. Returned once.
    pub(crate) fn take_wait_ms(&mut self) -> u64 {
        self.past.as_mut().map_or(0, |past| std::mem::take(&mut past.wait_ms))
    }

    /// Records what went wrong with the last try. `None` means that it got a response.
    pub(crate) fn failed(&mut self, error: Option<Error>) {
        self.past.get_or_insert_default().failed = error;
    }

    /// What went wrong with the last try, if no response arrived.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.past.as_mut().and_then(|past| past.failed.take())
    }

    /// The endpoint closed a pooled connection before the request arrived, or at that moment, which says nothing about the endpoint.
    /// Returns whether the request is sent once more, on a fresh connection. This uses none of the budget, and does not depend on the
    /// policy.
    pub(crate) fn again_fresh(
        &mut self,
        cluster: &Cluster,
        is_repeatable: bool,
        cause: RetryCause,
        upload: &mut Transfer,
        begun_us: Option<u64>,
    ) -> bool {
        // Only once: if a fresh connection fails the same way, the endpoint has failed.
        if self.fresh_since_us().is_some() {
            return false;
        }
        if !(cause == RetryCause::Unseen || is_repeatable) || !upload.rewind() {
            return false;
        }
        cluster.counters.stale_reuse.inc();
        self.set_fresh_since(begun_us);
        true
    }

    /// Returns whether the request is sent again after a failure at this endpoint. If so, the try is counted and the request prepared.
    ///
    /// An unreachable endpoint uses none of the route's tries and none of the budget while there is another endpoint, up to the limit of
    /// [`Redispatch`]. `refused` is called if the budget does not allow the try.
    pub(crate) fn again(
        &mut self,
        cluster: &Cluster,
        retry: &Retry,
        failed: &Failed<'_>,
        deadline: Deadline,
        upload: &mut Transfer,
        refused: impl FnOnce(),
    ) -> bool {
        let Failed { lease, was_reused, cause, method, now_ms } = *failed;
        if !is_wanted(retry, cause, method) || !upload.can_rewind() {
            return false;
        }
        let ends_ms = self.ends_ms(retry);
        let past = self.past.get_or_insert_default();
        past.tried.push(lease.endpoint.index);
        // An ejected endpoint is asked last, before the client gets an error that there is none. A response of another endpoint is better
        // than that.
        let takes_ejected = !matches!(cause, RetryCause::Status(_) | RetryCause::Grpc(_));
        let has_other = cluster.has_other(&past.tried, takes_ejected, now_ms);
        let is_free = cause == RetryCause::Unreachable && has_other && retry.attempts > 0 && {
            let connect_timeout_ms = crate::millis(cluster.plan.policy.connect_timeout);
            past.redispatch.try_another(lease.at_ms, now_ms, connect_timeout_ms)
        };
        // A kept connection may end at any time (RFC 9112 section 9.3.1), and a cluster with one endpoint must survive that, too.
        past.may_return = was_reused && matches!(cause, RetryCause::Reset | RetryCause::Unseen);
        let has_another = retry.same_endpoint || past.may_return || has_other;
        if !is_free && (past.retries >= retry.attempts || !has_another) {
            return false;
        }
        let wait_ms = match is_at_once(cause, has_other) {
            true => 0,
            false => crate::millis(retry.backoff).saturating_add(cluster.backoff_ms(past.retries + 1)),
        };
        // The time ends before the wait does, so the failure can be reported now.
        let next_ms = now_ms.saturating_add(wait_ms);
        if deadline.is_over(next_ms) || ends_ms.is_some_and(|ends_ms| next_ms >= ends_ms) {
            return false;
        }
        if is_free {
            cluster.counters.redispatches.inc();
        } else if cluster.try_retry(now_ms, retry.budget) {
            past.retries += u32::from(!faults::is_injected(InjectedFault::RetriesForEver));
            cluster.counters.retries.inc();
        } else {
            refused();
            return false;
        }
        past.wait_ms = wait_ms;
        upload.rewind()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_asked_is_asked_elsewhere_at_once() {
        let check = |cause, expect| {
            assert_eq!((is_at_once(cause, true), is_at_once(cause, false)), (expect, false), "{cause:?}");
        };
        check(RetryCause::Unreachable, true);
        check(RetryCause::Connect, true);
        check(RetryCause::Unseen, true);
        check(RetryCause::Reset, false);
        check(RetryCause::Timeout, false);
        check(RetryCause::Status(503), false);
        check(RetryCause::Grpc(Status::Unavailable), false);
    }

    #[test]
    fn no_try_begins_too_late() {
        let mut tries = Tries::default();
        let retry = Retry { within: Some(std::time::Duration::from_secs(2)), ..Retry::default() };
        assert!(!tries.is_late(&retry, u64::MAX), "the first one never is");
        tries.begin(&retry, 1_000);
        tries.begin(&retry, 2_500);
        let late = [1_000, 2_999, 3_000].map(|at_ms| tries.is_late(&retry, at_ms));
        assert_eq!(late, [false, false, true]);
        assert!(!tries.is_late(&Retry::default(), u64::MAX));
    }

    #[test]
    fn what_is_safe_is_retried_and_what_was_asked_for() {
        let default = Retry::default();
        let check = |retry: &Retry, cause, get, post| {
            assert_eq!(is_wanted(retry, cause, Method::Get), get, "GET {cause:?} {retry:?}");
            assert_eq!(is_wanted(retry, cause, Method::Post), post, "POST {cause:?} {retry:?}");
        };
        check(&default, RetryCause::Unreachable, true, true);
        check(&default, RetryCause::Connect, true, true);
        check(&default, RetryCause::Unseen, true, true);
        check(&default, RetryCause::Reset, true, false);
        check(&default, RetryCause::Timeout, false, false);
        check(&default, RetryCause::Status(503), false, false);
        check(&default, RetryCause::Other, false, false);

        let all = Retry { on_timeout: true, on_statuses: vec![(503, 503), (502, 502)], ..Retry::default() };
        check(&all, RetryCause::Timeout, true, false);
        check(&all, RetryCause::Status(503), true, false);
        check(&all, RetryCause::Status(500), false, false);
        check(&Retry { non_idempotent: true, ..all.clone() }, RetryCause::Status(502), true, true);
        check(&Retry { non_idempotent: true, ..all }, RetryCause::Other, false, false);
        let grpc = Retry { on_grpc: vec![14], ..Retry::default() };
        check(&grpc, RetryCause::Grpc(Status::Unavailable), true, true);
        check(&grpc, RetryCause::Grpc(Status::Internal), false, false);

        let none = Retry { on_connect_failure: false, on_reset: false, ..Retry::default() };
        check(&none, RetryCause::Unreachable, false, false);
        check(&none, RetryCause::Connect, false, false);
        check(&none, RetryCause::Unseen, false, false);
    }
}

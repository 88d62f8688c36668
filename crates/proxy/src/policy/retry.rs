//! Whether, where and how often a request is sent again.

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

/// Why a request might be retried: how a try failed, as far as a retry depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryCause {
    /// There was no connection, nor anything that could have been the endpoint's work.
    Unreachable,
    /// There was no connection: the endpoint did not answer, or not well.
    Connect,
    /// The connection ended, and the endpoint cannot have read the request whole.
    Unseen,
    /// The connection ended before a byte of the response came.
    Reset,
    /// The response did not begin in time.
    Timeout,
    /// The response has this status, and nothing of it has gone to the client.
    Status(u16),
    /// A call of gRPC has failed with this status, and that is all that there is of its response.
    Grpc(Status),
    /// Something of a response came, or it is not the endpoint's fault.
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
        // Every call is a POST: to name a status is to say that the service bears it twice.
        RetryCause::Grpc(status) => retry.on_grpc.contains(&(status as u8)),
        RetryCause::Other => false,
    }
}

/// Nothing was asked of the endpoint, and another one is there to be asked: no time has to pass for anything to get better.
fn is_at_once(cause: RetryCause, has_other: bool) -> bool {
    matches!(cause, RetryCause::Unreachable | RetryCause::Connect | RetryCause::Unseen) && has_other
}

/// The tries of one request.
#[derive(Default)]
pub(crate) struct Tries {
    /// Those that have failed. In a box: there are few.
    past: Option<Box<Past>>,
}

#[derive(Default)]
struct Past {
    /// Endpoints that are not asked again as long as there are others.
    tried: SmallVec<[usize; 3]>,
    retries: u32,
    redispatch: Redispatch,
    /// An endpoint that lost a request on a kept connection may be asked again on a fresh one, where there is no other.
    may_return: bool,
    /// What went wrong last, where no response came.
    failed: Option<Error>,
    /// The next try takes a connection that was made since then, in microseconds.
    fresh_since_us: Option<u64>,
    /// The next try is to come so much later, in milliseconds.
    wait_ms: u64,
}

/// A try that has failed.
pub(crate) struct Failed<'f> {
    pub(crate) lease: &'f Lease,
    /// Its connection had served another request before.
    pub(crate) was_reused: bool,
    pub(crate) cause: RetryCause,
    pub(crate) method: Method,
    pub(crate) now_ms: u64,
}

impl Tries {
    /// Endpoints that are not to be asked.
    pub(crate) fn tried(&self) -> &[usize] {
        self.past.as_deref().map_or(&[], |past| &past.tried)
    }

    /// An endpoint that is ejected will do, where there is no other.
    pub(crate) fn takes_ejected(&self) -> bool {
        self.past.as_deref().is_some_and(|past| past.failed.is_some())
    }

    /// There is no other endpoint: whether those that have failed may be asked once more.
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

    /// The next try takes a connection that was made since then, in microseconds; `None`: any will do.
    pub(crate) fn fresh_since_us(&self) -> Option<u64> {
        self.past.as_deref().and_then(|past| past.fresh_since_us)
    }

    /// From now on only a connection will do that was made since then.
    pub(crate) fn set_fresh_since(&mut self, since_us: Option<u64>) {
        self.past.get_or_insert_default().fresh_since_us = since_us;
    }

    /// How much later the next try is to come, in milliseconds. RequestView once.
    pub(crate) fn take_wait_ms(&mut self) -> u64 {
        self.past.as_mut().map_or(0, |past| std::mem::take(&mut past.wait_ms))
    }

    /// What went wrong with the last try. `None`: it was answered.
    pub(crate) fn failed(&mut self, error: Option<Error>) {
        self.past.get_or_insert_default().failed = error;
    }

    /// What went wrong with the last try, where no response came.
    pub(crate) fn take_failure(&mut self) -> Option<Error> {
        self.past.as_mut().and_then(|past| past.failed.take())
    }

    /// A connection from the pool was closed by its endpoint before the request came, or just then, which says nothing about the endpoint: whether
    /// the request is sent once more, on a fresh one. Costs nothing of the budget, and is done whatever the policy.
    pub(crate) fn again_fresh(
        &mut self,
        cluster: &Cluster,
        is_repeatable: bool,
        cause: RetryCause,
        upload: &mut Transfer,
        begun_us: Option<u64>,
    ) -> bool {
        // Not a second time: a fresh connection that fails the same way is the endpoint's failure.
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

    /// Whether the request is sent again after a failure at this endpoint; if so that is counted, and the request made ready.
    ///
    /// One that could not be reached costs none of the route's tries and nothing of the budget while there is another endpoint to go to, as far
    /// as [`Redispatch`] goes. `refused` is called where it is the budget that does not allow it.
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
        let past = self.past.get_or_insert_default();
        past.tried.push(lease.endpoint.index);
        // One that is ejected is asked last, and before the client is told that nobody is there. Where there was an answer, that is better.
        let takes_ejected = !matches!(cause, RetryCause::Status(_) | RetryCause::Grpc(_));
        let has_other = cluster.has_other(&past.tried, takes_ejected, now_ms);
        let is_free = cause == RetryCause::Unreachable && has_other && retry.attempts > 0 && {
            let connect_timeout_ms = crate::millis(cluster.plan.policy.connect_timeout);
            past.redispatch.try_another(lease.at_ms, now_ms, connect_timeout_ms)
        };
        // A kept connection may end at any time (RFC 9112 section 9.3.1): a cluster of one endpoint is to bear that, too.
        past.may_return = was_reused && matches!(cause, RetryCause::Reset | RetryCause::Unseen);
        let has_another = retry.same_endpoint || past.may_return || has_other;
        if !is_free && (past.retries >= retry.attempts || !has_another) {
            return false;
        }
        let wait_ms = if is_at_once(cause, has_other) { 0 } else { cluster.backoff_ms(past.retries + 1) };
        // The request's time is over before the wait is: what there is to be told can be told now.
        if deadline.is_over(now_ms.saturating_add(wait_ms)) {
            return false;
        }
        if is_free {
            cluster.counters.redispatches.inc();
        } else if cluster.budget.borrow_mut().try_retry(now_ms, retry.budget) {
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

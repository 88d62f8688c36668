//! The stages between a prepared request and the connection to an endpoint: choosing one, and trying another after a failure.

use super::*;

impl Exchange {
    /// Chooses an endpoint: the one to which the client returns, or wherever the cluster chooses.
    pub(super) fn lease(&mut self, env: &Env<'_>) {
        if env.is_drain_over {
            return self.fail(env, Error::internal(Reason::Draining));
        }
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        *step = UpstreamPhase::Queue;
        self.deadline_ms = None;
        loop {
            match routed.try_lease(env.now_ms()) {
                Ok(lease) => return self.connect(env, lease),
                Err(Full::NoRoom) => return,
                Err(Full::NoEndpoint) if routed.may_return(env) => {}
                Err(Full::NoEndpoint) => {
                    let nobody = Error::internal(routed.cluster.nobody());
                    let error = routed.tries.take_failure().unwrap_or(nobody);
                    return self.fail(env, error);
                }
            }
        }
    }

    /// An endpoint was chosen.
    pub(super) fn connect(&mut self, env: &Env<'_>, lease: Lease) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let retry = routed.retry(env);
        if routed.tries.is_late(retry, lease.at_ms) {
            // It had to wait for room.
            drop(lease);
            let error = routed.tries.take_failure().unwrap_or_else(|| Error::internal(Reason::PendingTimeout));
            return self.fail(env, error);
        }
        let attempt = Attempt::new(env, routed, lease, self.call.is_some());
        let Lease { endpoint, at_ms, .. } = &attempt.lease;
        routed.tries.begin(retry, *at_ms);
        endpoint.counters.requests.inc();
        let is_late = self.record.begun_us().is_some_and(|begun_us| *at_ms > begun_us / 1000);
        if let (true, Deadline::At(ends_ms)) = (self.call.is_some() && is_late, routed.deadline) {
            self.upload.set_grpc_timeout(ends_ms.saturating_sub(*at_ms));
        }
        self.record.handle_attempt(endpoint);
        if let Some(trace) = &mut self.trace {
            let address = endpoint.state.address();
            trace.begin_try(&routed.cluster, address, &mut self.upload, &env.storage.ids, env.now_us);
        }
        *step = UpstreamPhase::Connect(attempt);
        self.deadline_ms = None;
    }

    /// Handles a failed try.
    pub(super) fn handle_failed_attempt(&mut self, env: &Env<'_>, awaiting: Awaiting, error: Error, ending: Ending) {
        let method = self.method();
        let Phase::Upstream(routed, _) = &mut self.phase else { return };
        let error = routed.name(error, env.now_ms());
        let cause = awaiting.retry_cause_of_failure(&error, ending);
        let begun_us = self.record.begun_us();
        let was_stale = awaiting.is_reused && matches!(ending, Ending::Unseen | Ending::Crossed);
        if was_stale && routed.again_fresh(env, cause, method, &mut self.upload, begun_us) {
            drop(awaiting);
            self.end_try(env, Some(error.reason));
            return self.lease(env);
        }
        awaiting.attempt.judge_failure(&routed.cluster, &error, true, env.now_ms());
        if awaiting.is_reused && awaiting.is_connection_over {
            routed.tries.set_fresh_since(begun_us);
        }
        let Awaiting { attempt, is_reused, .. } = awaiting;
        self.try_again(env, attempt.lease, is_reused, cause, error);
    }

    /// Sends the request once more, if that is safe and wanted.
    pub(super) fn try_again(&mut self, env: &Env<'_>, lease: Lease, was_reused: bool, cause: RetryCause, error: Error) {
        let method = self.method();
        let Phase::Upstream(routed, _) = &mut self.phase else { return };
        let is_final = error.side != Side::Upstream || error.reason == Reason::RequestTimeout;
        let failed = Failed { lease: &lease, was_reused, cause, method, now_ms: env.now_ms() };
        if !is_final && routed.again(env, &mut self.upload, &mut self.record, &failed) {
            // Returns its room for the next try.
            drop(lease);
            let reason = error.reason;
            routed.tries.failed(Some(error));
            self.end_try(env, Some(reason));
            self.next_try(env);
        } else {
            self.fail(env, error);
        }
    }

    /// The next try comes at once, or after a pause in which only the client's connection is held.
    pub(super) fn next_try(&mut self, env: &Env<'_>) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        match routed.tries.take_wait_ms() {
            _ if env.is_drain_over => self.lease(env),
            0 => self.lease(env),
            wait_ms => {
                *step = UpstreamPhase::BackOff;
                self.deadline_ms = Some(env.now_ms().saturating_add(wait_ms));
            }
        }
    }
}

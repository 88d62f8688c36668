//! The events of an exchange: each `handle_*` processes one, and leaves the exchange asking for the next.

use super::relay::start_interim;
use super::*;

impl Exchange {
    /// A complete request has arrived, as over HTTP/2, and is in [`Exchange::request`]; or one that exceeds the limits.
    pub(crate) fn handle_request(&mut self, env: &Env<'_>, is_too_large: bool) {
        match receive::h2_request(&mut self.request, is_too_large) {
            Ok(()) => self.begin(env),
            Err(error) => self.fail(env, error),
        }
    }

    /// More of the request's head has arrived in `input`. It is taken from there once it is complete.
    pub(crate) fn handle_head_bytes(&mut self, env: &Env<'_>, input: &mut Buffer) {
        let Phase::ReadHead { scanned } = &mut self.phase else { return };
        let is_first = env.requests_before == 0;
        let memo = &env.storage.request_memo;
        let read = receive::request_head(
            &mut self.request,
            input,
            scanned,
            &env.http.limits,
            is_first,
            &mut memo.borrow_mut(),
        );
        match read {
            Ok(true) => self.begin(env),
            Ok(false) if self.deadline_ms.is_none() => {
                let header_ms = crate::millis(env.http.limits.header_timeout);
                self.deadline_ms = Some(env.now_ms().saturating_add(header_ms));
            }
            Ok(false) => {}
            Err(error) => self.fail(env, error),
        }
    }

    /// The wait for room at an endpoint is over.
    pub(crate) fn handle_lease(&mut self, env: &Env<'_>, leased: Result<Lease, Error>) {
        let Phase::Upstream(routed, UpstreamPhase::Queue) = &mut self.phase else { return };
        match leased {
            Ok(lease) => self.connect(env, lease),
            Err(error) if error.reason == Reason::NoEndpoint && routed.may_return(env) => self.lease(env),
            // Report the earlier failure instead of the lack of another endpoint.
            Err(error) => {
                let error = routed.tries.take_failure().unwrap_or(error);
                self.fail(env, error);
            }
        }
    }

    /// There is a connection for sending the request.
    pub(crate) fn handle_connected(&mut self, env: &Env<'_>, connected: Connected) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let UpstreamPhase::Connect(attempt) = std::mem::replace(step, UpstreamPhase::Between) else { return };
        let Connected { is_reused, progress } = connected;
        if attempt.lease.was_ejected && !is_reused {
            routed.cluster.readmit(&attempt.lease.endpoint, env.now_ms(), Proof::Connected);
        }
        self.record.handle_connected(is_reused, env.now_us);
        *step = UpstreamPhase::Await(Awaiting::new(attempt, is_reused, progress, self.upload.received()));
        self.deadline_ms = None;
    }

    /// No connection could be made.
    pub(crate) fn handle_connect_failure(&mut self, env: &Env<'_>, error: Error) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let UpstreamPhase::Connect(attempt) = std::mem::replace(step, UpstreamPhase::Between) else { return };
        let error = routed.name(error, env.now_ms());
        if !faults::is_injected(InjectedFault::ForgetsToJudge) {
            attempt.judge_failure(&routed.cluster, &error, false, env.now_ms());
        }
        let cause = attempt::connect_retry_cause(&error);
        if faults::is_injected(InjectedFault::LeaksLease) {
            attempt.lease.endpoint.state.open_connection();
        }
        self.try_again(env, attempt.lease, false, cause, error);
    }

    /// The request's body could not be moved further.
    pub(crate) fn handle_upload_failure(&mut self, env: &Env<'_>, failure: TransferError) {
        let Phase::Upstream(_, step) = &mut self.phase else { return };
        match step {
            // The endpoint stopped reading, and may still have sent a reason.
            UpstreamPhase::Await(awaiting) if matches!(failure, TransferError::Write(_)) => {
                awaiting.upload_failed = true
            }
            UpstreamPhase::Await(_) => self.fail(env, failure.of_request()),
            // A failure of the request no longer affects the response: the endpoint may not need the rest of the request.
            UpstreamPhase::Relay(relay) => relay.upload_failed = true,
            _ => {}
        }
    }

    /// More of a response's head has arrived over HTTP/1 in `input`. It is taken from there once it is complete. Returns true if it is, and
    /// the caller must then call [`Exchange::handle_response`].
    ///
    /// # Errors
    /// It is invalid, and the caller must call [`Exchange::handle_lost`].
    pub(crate) fn take_response_head(&mut self, storage: &Storage, input: &mut Buffer) -> Result<bool, Error> {
        let Phase::Upstream(_, UpstreamPhase::Await(awaiting)) = &mut self.phase else { return Ok(false) };
        let mut response = self.response.take().unwrap_or_else(|| storage.response());
        let method = self.request.head.method;
        let memo = &mut *storage.response_memo.borrow_mut();
        let taken = receive::response_head(&mut response, input, &mut awaiting.heads, method, Some(memo));
        if let Ok(true) = taken {
            self.response = Some(response);
        } else {
            storage.give_back_response(response);
        }
        taken
    }

    /// The buffers for the head of a response that has arrived over HTTP/2.
    pub(crate) fn response_room(&mut self, storage: &Storage) -> &mut Response {
        self.response.get_or_insert_with(|| storage.response())
    }

    /// The head of a response is complete. `early`: the status of a call whose trailers followed directly.
    pub(crate) fn handle_response(&mut self, env: &Env<'_>, early: Option<grpc::Status>) {
        let method = self.method();
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let Some(response) = &mut self.response else { return };
        let UpstreamPhase::Await(mut awaiting) = std::mem::replace(step, UpstreamPhase::Between) else { return };
        let status = response.head.status;
        let kind = match awaiting.heads.handle_head(status) {
            // The client did not ask for it: what follows is not HTTP, and must not be passed on (RFC 9110 section 7.8).
            Ok(HeadKind::SwitchingProtocols) if !self.request.agrees_to(response) => Err(Reason::UpstreamBadHead),
            kind => kind.map_err(receive::response_reason),
        };
        let kind = match kind {
            Ok(kind) => kind,
            Err(reason) => {
                awaiting.was_heard |= status != 101;
                return self.handle_failed_attempt(env, awaiting, Error::upstream(reason), Ending::Unknown);
            }
        };
        if kind == HeadKind::Interim {
            awaiting.was_heard = true;
            awaiting.was_continued |= status == 100;
            let is_unknown =
                self.request.head.version == Version::Http10 && !faults::is_injected(InjectedFault::InterimsToHttp10);
            if is_unknown || routed.is_to_error_backend() {
                // The client does not know them (RFC 9110 section 15.2), or did not ask for what they announce.
                awaiting.handle_interim(self.upload.received());
                *step = UpstreamPhase::Await(awaiting);
                self.deadline_ms = None;
            } else {
                start_interim(&self.request, response, &ResponseEdits::NONE);
                *step = UpstreamPhase::Interim(awaiting, Interim::Response);
                self.deadline_ms = Some(env.stalls_at_ms());
            }
            return;
        }
        if let Some(trace) = &mut self.trace {
            trace.handle_status(status);
        }
        let connected_us = self.record.connected_us();
        awaiting.attempt.judge_response(&routed.cluster, status, &self.upload, connected_us, env.now_us);
        let cause = awaiting.retry_cause_of_response(response, self.call.as_mut(), early);
        let lease = &awaiting.attempt.lease;
        let failed = Failed { lease, was_reused: awaiting.is_reused, cause, method, now_ms: env.now_ms() };
        if routed.again(env, &mut self.upload, &mut self.record, &failed) {
            if let RetryCause::Grpc(status) = cause
                && status.is_endpoints_fault()
            {
                routed.cluster.record(&lease.endpoint, env.now_ms(), Outcome::Failure5xx);
            }
            routed.tries.failed(None);
            drop(awaiting);
            self.end_try(env, None);
            return self.next_try(env);
        }
        let is_of_fallback = routed.share == intercept::FALLBACK;
        match self.intercepts(env, status).filter(|policy| policy.of_endpoints && !is_of_fallback) {
            Some(policy) => self.intercept_response(env, awaiting, policy),
            None => self.answered(env, awaiting),
        }
    }

    /// The upstream connection or stream has ended before the head of a response was complete.
    pub(crate) fn handle_lost(&mut self, env: &Env<'_>, lost: Lost) {
        let Phase::Upstream(_, step) = &mut self.phase else { return };
        let UpstreamPhase::Await(mut awaiting) = std::mem::replace(step, UpstreamPhase::Between) else { return };
        awaiting.was_heard |= lost.has_input;
        awaiting.is_connection_over = lost.is_connection_over();
        if awaiting.is_reused && lost.error.reason == Reason::UpstreamBadHead {
            // It may be the body of an earlier response that must not have one.
            awaiting.attempt.lease.endpoint.pool.distrust();
        }
        let ending = if awaiting.was_heard {
            Ending::Unknown
        } else {
            let upload = &self.upload;
            let sent = SentRequest {
                bytes: upload.sent(),
                head_us: upload.head_sent_us(),
                failed: awaiting.upload_failed,
                before: awaiting.progress,
            };
            ending(&lost, &sent, env.now_us)
        };
        self.handle_failed_attempt(env, awaiting, lost.error, ending);
    }

    /// The client has left, so there is nothing to send a response to.
    pub(crate) fn handle_client_gone(&mut self, env: &Env<'_>, error: Error) {
        self.fail(env, error);
    }

    /// Both bodies were moved as far as possible. `is_overdue`: the deadline had already passed.
    pub(crate) fn handle_moved(
        &mut self,
        env: &Env<'_>,
        client_input: &Buffer,
        upstream_input: &Buffer,
        is_overdue: bool,
    ) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        match step {
            // Before a deadline is moved: once the drain is over, all of them have passed, and will not pass again.
            UpstreamPhase::Await(_) if env.is_drain_over && !faults::is_injected(InjectedFault::OutlivesDrain) => {
                self.fail(env, Error::internal(Reason::Draining))
            }
            UpstreamPhase::Await(awaiting) => {
                if let Some(deadline_ms) = awaiting.handle_moved(
                    env,
                    routed,
                    &self.request.head,
                    &self.upload,
                    client_input,
                    self.paced_until_ms,
                ) {
                    self.deadline_ms = Some(deadline_ms);
                }
            }
            UpstreamPhase::Relay(relay) => {
                let Some(response) = &self.response else { return };
                let (upload, download) = (&self.upload, &response.download);
                if relay.is_over(upload, download) {
                    return self.relayed(env, upstream_input);
                }
                if env.is_drain_over && !faults::is_injected(InjectedFault::OutlivesDrain) {
                    return self.fail(env, Error::internal(Reason::Draining));
                }
                let (request, answer) = ((upload, client_input), (download, upstream_input));
                match relay.handle_moved(env, routed, request, answer, is_overdue, self.paced_until_ms) {
                    Ok(Some(_)) if faults::is_injected(InjectedFault::WaitsForEver) => {}
                    Ok(Some(deadline_ms)) => self.deadline_ms = Some(deadline_ms),
                    Ok(None) => {}
                    Err(_) if download.is_done() => {
                        relay.upload_failed = true;
                        self.relayed(env, upstream_input);
                    }
                    Err(error) => self.handle_relay_failure(env, error),
                }
            }
            _ => {}
        }
    }

    /// The response's body could not be moved further.
    pub(crate) fn handle_download_failure(&mut self, env: &Env<'_>, failure: TransferError) {
        self.handle_relay_failure(env, failure.of_response());
    }

    /// [`Exchange::deadline_ms`] has passed, or the drain has taken too long, so that all deadlines pass at once.
    pub(crate) fn handle_timeout(&mut self, env: &Env<'_>, client_input: &Buffer, upstream_input: &Buffer) {
        let now_ms = env.now_ms();
        match &mut self.phase {
            Phase::Upstream(..) if env.is_drain_over => self.fail(env, Error::internal(Reason::Draining)),
            Phase::ReadHead { .. } => self.fail(env, Error::downstream(Reason::HeaderTimeout)),
            Phase::Authenticate(_) => self.fail(env, auth::passwords::busy()),
            Phase::HoldBody(_) => self.handle_hold_timeout(env),
            Phase::Ask(_) => self.handle_reply(env, Err(Error::upstream(Reason::ResponseTimeout))),
            Phase::Upstream(_, UpstreamPhase::BackOff) => self.lease(env),
            Phase::Upstream(routed, UpstreamPhase::Await(awaiting)) => {
                let error = awaiting.overdue(&self.request.head, &self.upload, client_input, now_ms);
                // The progress is only known for connections that have ended, and this one is still open.
                let lost = Lost::still_open(error, !upstream_input.is_empty(), routed.is_to_h2());
                self.handle_lost(env, lost);
            }
            Phase::Upstream(_, UpstreamPhase::Interim(..)) => self.fail(env, Error::downstream(Reason::SlowRead)),
            Phase::Upstream(routed, UpstreamPhase::Relay(relay)) => {
                let Some(response) = &self.response else { return };
                if response.download.is_done() {
                    // The exchange no longer waits for the rest of the request.
                    relay.upload_failed = true;
                    return self.relayed(env, upstream_input);
                }
                let error = relay.overdue(routed.deadline, response.download.waits_for_sender(upstream_input), now_ms);
                self.handle_relay_failure(env, error);
            }
            Phase::Respond { code, .. } => self.phase = Phase::Done(Disposition::Reset(*code)),
            Phase::Upstream(..) | Phase::Tunnel(_) | Phase::Done(_) => {}
        }
    }

    /// Our own response, or an interim one, was sent, or could not be.
    pub(crate) fn handle_responded(&mut self, env: &Env<'_>, sent: Result<(), TransferError>) {
        match &mut self.phase {
            Phase::Respond { then, code } => {
                let next = if sent.is_ok() { *then } else { Disposition::Reset(*code) };
                self.done(next);
            }
            Phase::Upstream(_, step @ UpstreamPhase::Interim(..)) => {
                if let Err(failure) = sent {
                    return self.fail(env, failure.of_response());
                }
                let UpstreamPhase::Interim(mut awaiting, follows) = std::mem::replace(step, UpstreamPhase::Between)
                else {
                    return;
                };
                if let Some(response) = &mut self.response {
                    self.record.bytes_out += response.download.sent();
                    if !faults::is_injected(InjectedFault::CountsInterimTwice) {
                        // It no longer counts as a part of the response.
                        response.download.leave(Framing::H1(Body::None));
                    }
                }
                self.deadline_ms = None;
                match follows {
                    Interim::Response => {
                        awaiting.handle_interim(self.upload.received());
                        *step = UpstreamPhase::Await(awaiting);
                    }
                    Interim::Tunnel { answered_us } => {
                        self.record.finish(self.upload.head_sent_us(), answered_us, Some(env.now_us));
                        let idle_ms = crate::millis(env.http.limits.tunnel_idle_timeout);
                        // It is not a call, and it may last for days.
                        self.call = None;
                        self.phase = Phase::Tunnel(Tunnel { _lease: awaiting.attempt.lease, idle_ms });
                    }
                }
            }
            _ => {}
        }
    }

    /// The tunnel has ended, with this reason if it failed. The response was complete with its head, so the reason is logged but not sent.
    pub(crate) fn handle_tunnel_end(&mut self, bytes_in: u64, bytes_out: u64, reason: Option<Reason>) {
        self.record.bytes_in += bytes_in;
        self.record.bytes_out += bytes_out;
        self.record.reason = reason;
        self.done(if reason.is_some() { Disposition::Reset(ErrorCode::INTERNAL_ERROR) } else { Disposition::Close });
    }
}

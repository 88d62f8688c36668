//! What happens to an exchange: each `handle_*` takes in one thing, and leaves it asking for the next.

use super::stages::start_interim;
use super::*;

impl Exchange {
    /// A request that came whole, as over HTTP/2, and stands in [`Exchange::request`]; or one that is beyond the limits.
    pub(crate) fn handle_request(&mut self, env: &Env<'_>, is_too_large: bool) {
        match receive::h2_request(&mut self.request, is_too_large) {
            Ok(()) => self.begin(env),
            Err(error) => self.fail(env, error),
        }
    }

    /// More of the request's head has come, and is in `input`, from which it is taken once it is whole.
    pub(crate) fn handle_head_bytes(&mut self, env: &Env<'_>, input: &mut Buffer) {
        let Phase::ReadHead { scanned } = &mut self.phase else { return };
        let is_first = env.requests_before == 0;
        match receive::request_head(&mut self.request, input, scanned, &env.http.limits, is_first) {
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
        let Phase::Upstream(routed, Step::Queue) = &mut self.phase else { return };
        match leased {
            Ok(lease) => self.connect(env, lease),
            Err(error) if error.reason == Reason::NoEndpoint && routed.may_return(env) => self.lease(env),
            // That there is no other endpoint is not what went wrong.
            Err(error) => {
                let error = routed.tries.take_failure().unwrap_or(error);
                self.fail(env, error);
            }
        }
    }

    /// There is a connection, on which the request is to be sent.
    pub(crate) fn handle_connected(&mut self, env: &Env<'_>, connected: Connected) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let Step::Connect(attempt) = std::mem::replace(step, Step::Between) else { return };
        let Connected { is_reused, progress } = connected;
        if attempt.lease.was_ejected && !is_reused {
            routed.cluster.readmit(&attempt.lease.endpoint, env.now_ms(), Proof::Connected);
        }
        self.record.handle_connected(is_reused, env.now_us);
        *step = Step::Await(Awaiting::new(attempt, is_reused, progress, self.upload.received()));
        self.deadline_ms = None;
    }

    /// No connection could be made.
    pub(crate) fn handle_connect_failure(&mut self, env: &Env<'_>, error: Error) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let Step::Connect(attempt) = std::mem::replace(step, Step::Between) else { return };
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

    /// The request's body could not be moved on.
    pub(crate) fn handle_upload_failure(&mut self, env: &Env<'_>, failure: TransferError) {
        let Phase::Upstream(_, step) = &mut self.phase else { return };
        match step {
            // The endpoint stopped listening; it may still have said why.
            Step::Await(awaiting) if matches!(failure, TransferError::Write(_)) => awaiting.upload_failed = true,
            Step::Await(_) => self.fail(env, failure.of_request()),
            // A request that fails now does not take the response with it: the endpoint may have had enough of it.
            Step::Relay(relay) => relay.upload_failed = true,
            _ => {}
        }
    }

    /// More of a response's head has come over HTTP/1, and is in `input`, from which it is taken once it is whole. True: that is now, and
    /// [`Exchange::handle_response`] is to be told.
    ///
    /// # Errors
    /// It is none, and [`Exchange::handle_lost`] is to be told.
    pub(crate) fn take_response_head(&mut self, storage: &Storage, input: &mut Buffer) -> Result<bool, Error> {
        let Phase::Upstream(_, Step::Await(awaiting)) = &mut self.phase else { return Ok(false) };
        let mut response = self.response.take().unwrap_or_else(|| storage.response());
        let taken = receive::response_head(&mut response, input, &mut awaiting.heads, self.request.head.method);
        if let Ok(true) = taken {
            self.response = Some(response);
        } else {
            storage.give_back_response(response);
        }
        taken
    }

    /// Where the head of a response over HTTP/2 is to be put, which has come.
    pub(crate) fn response_room(&mut self, storage: &Storage) -> &mut Response {
        self.response.get_or_insert_with(|| storage.response())
    }

    /// The head of a response is whole. `early`: the status of a call whose trailers have come right behind it.
    pub(crate) fn handle_response(&mut self, env: &Env<'_>, early: Option<grpc::Status>) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let Some(response) = &mut self.response else { return };
        let Step::Await(mut awaiting) = std::mem::replace(step, Step::Between) else { return };
        let status = response.head.status;
        let kind = match awaiting.heads.handle_head(status) {
            // Nobody asked for it: what follows is not HTTP, and not ours to pass on (RFC 9110 section 7.8).
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
            if self.request.head.version == Version::Http10 && !faults::is_injected(InjectedFault::InterimsToHttp10) {
                // It does not know them (RFC 9110 section 15.2).
                awaiting.handle_interim(self.upload.received());
                *step = Step::Await(awaiting);
                self.deadline_ms = None;
            } else {
                start_interim(&self.request, response, &ResponseEdits::NONE);
                *step = Step::Interim(awaiting, Interim::Response);
                self.deadline_ms = Some(env.stalls_at_ms());
            }
            return;
        }
        let connected_us = self.record.connected_us();
        awaiting.attempt.judge_response(&routed.cluster, status, &self.upload, connected_us, env.now_us);
        let cause = awaiting.retry_cause_of_response(response, self.call.as_mut(), early);
        let lease = &awaiting.attempt.lease;
        if routed.again(env, &self.request.head, &mut self.upload, lease, awaiting.is_reused, cause) {
            if let RetryCause::Grpc(status) = cause
                && status.is_endpoints_fault()
            {
                routed.cluster.record(&lease.endpoint, env.now_ms(), Outcome::Failure5xx);
            }
            routed.tries.failed(None);
            drop(awaiting);
            return self.next_try(env);
        }
        self.answered(env, awaiting);
    }

    /// The upstream connection, or the stream, has ended before the head of a response was whole.
    pub(crate) fn handle_lost(&mut self, env: &Env<'_>, lost: Lost) {
        let Phase::Upstream(_, step) = &mut self.phase else { return };
        let Step::Await(mut awaiting) = std::mem::replace(step, Step::Between) else { return };
        awaiting.was_heard |= lost.has_input;
        awaiting.is_connection_over = lost.is_connection_over();
        if awaiting.is_reused && lost.error.reason == Reason::UpstreamBadHead {
            // Perhaps the body of a response before it that must not have one.
            awaiting.attempt.lease.endpoint.pool.distrust();
        }
        let ending = if awaiting.was_heard {
            Ending::Unknown
        } else {
            let upload = &self.upload;
            let sent = Sent {
                bytes: upload.sent(),
                head_us: upload.head_sent_us(),
                failed: awaiting.upload_failed,
                before: awaiting.progress,
            };
            ending(&lost, &sent, env.now_us)
        };
        self.handle_failed_attempt(env, awaiting, lost.error, ending);
    }

    /// The client has left: nobody is there any more to respond to.
    pub(crate) fn handle_client_gone(&mut self, env: &Env<'_>, error: Error) {
        self.fail(env, error);
    }

    /// Both bodies were moved as far as they go. `is_overdue`: the deadline had come before.
    pub(crate) fn handle_moved(
        &mut self,
        env: &Env<'_>,
        client_input: &Buffer,
        upstream_input: &Buffer,
        is_overdue: bool,
    ) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        match step {
            // Before a deadline is moved: all of them have come, and do not come again.
            Step::Await(_) if env.is_cut && !faults::is_injected(InjectedFault::SurvivesCut) => {
                self.fail(env, Error::internal(Reason::Draining))
            }
            Step::Await(awaiting) => {
                if let Some(deadline_ms) =
                    awaiting.handle_moved(env, routed, &self.request.head, &self.upload, client_input)
                {
                    self.deadline_ms = Some(deadline_ms);
                }
            }
            Step::Relay(relay) => {
                let Some(response) = &self.response else { return };
                let (upload, download) = (&self.upload, &response.download);
                if relay.is_over(upload, download) {
                    return self.relayed(env, upstream_input);
                }
                if env.is_cut && !faults::is_injected(InjectedFault::SurvivesCut) {
                    return self.fail(env, Error::internal(Reason::Draining));
                }
                let (request, answer) = ((upload, client_input), (download, upstream_input));
                match relay.handle_moved(env, routed, request, answer, is_overdue) {
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

    /// The response's body could not be moved on.
    pub(crate) fn handle_download_failure(&mut self, env: &Env<'_>, failure: TransferError) {
        self.handle_relay_failure(env, failure.of_response());
    }

    /// [`Exchange::deadline_ms`] has come; or the drain has taken too long, and all deadlines come at once.
    pub(crate) fn handle_timeout(&mut self, env: &Env<'_>, client_input: &Buffer, upstream_input: &Buffer) {
        let now_ms = env.now_ms();
        match &mut self.phase {
            Phase::Upstream(..) if env.is_cut => self.fail(env, Error::internal(Reason::Draining)),
            Phase::ReadHead { .. } => self.fail(env, Error::downstream(Reason::HeaderTimeout)),
            Phase::Upstream(_, Step::BackOff) => self.lease(env),
            Phase::Upstream(routed, Step::Await(awaiting)) => {
                let error = awaiting.overdue(&self.request.head, &self.upload, client_input, now_ms);
                // What is known of the end of a connection is known of its end alone: this one still stands.
                let lost = Lost::still_open(error, !upstream_input.is_empty(), routed.is_to_h2());
                self.handle_lost(env, lost);
            }
            Phase::Upstream(_, Step::Interim(..)) => self.fail(env, Error::downstream(Reason::SlowRead)),
            Phase::Upstream(routed, Step::Relay(relay)) => {
                let Some(response) = &self.response else { return };
                if response.download.is_done() {
                    // The rest of the request is not waited for any longer.
                    relay.upload_failed = true;
                    return self.relayed(env, upstream_input);
                }
                let error = relay.overdue(routed.deadline, response.download.waits_for_sender(upstream_input), now_ms);
                self.handle_relay_failure(env, error);
            }
            Phase::Respond { code, .. } => self.phase = Phase::Done(Next::Reset(*code)),
            Phase::Upstream(..) | Phase::Tunnel(_) | Phase::Done(_) => {}
        }
    }

    /// The response that was made here, or an interim one, has been sent; or cannot be.
    pub(crate) fn handle_responded(&mut self, env: &Env<'_>, sent: Result<(), TransferError>) {
        match &mut self.phase {
            Phase::Respond { then, code } => {
                let next = if sent.is_ok() { *then } else { Next::Reset(*code) };
                self.done(next);
            }
            Phase::Upstream(_, step @ Step::Interim(..)) => {
                if let Err(failure) = sent {
                    return self.fail(env, failure.of_response());
                }
                let Step::Interim(mut awaiting, follows) = std::mem::replace(step, Step::Between) else { return };
                if let Some(response) = &mut self.response {
                    self.record.bytes_out += response.download.sent();
                    if !faults::is_injected(InjectedFault::CountsInterimTwice) {
                        // It counts no longer as something of the response.
                        response.download.leave(Framing::H1(Body::None));
                    }
                }
                self.deadline_ms = None;
                match follows {
                    Interim::Response => {
                        awaiting.handle_interim(self.upload.received());
                        *step = Step::Await(awaiting);
                    }
                    Interim::Tunnel { answered_us } => {
                        self.record.finish(self.upload.head_sent_us(), answered_us, Some(env.now_us));
                        let idle_ms = crate::millis(env.http.limits.tunnel_idle_timeout);
                        // It is no call, and it may last for days.
                        self.call = None;
                        self.phase = Phase::Tunnel(Tunnel { _lease: awaiting.attempt.lease, idle_ms });
                    }
                }
            }
            _ => {}
        }
    }

    /// The tunnel has ended, for this reason if it ended in failure. The response was complete with its head: what ends a tunnel is logged, not
    /// answered.
    pub(crate) fn handle_tunnel_end(&mut self, bytes_in: u64, bytes_out: u64, reason: Option<Reason>) {
        self.record.bytes_in += bytes_in;
        self.record.bytes_out += bytes_out;
        self.record.reason = reason;
        self.done(if reason.is_some() { Next::Reset(ErrorCode::INTERNAL_ERROR) } else { Next::Close });
    }
}

//! The driver of an exchange, in place of `driver` for sockets.

use std::time::Duration;

use net::buffer::Buffer;
use telemetry::Reason;
use wire::h1::{self, Parsed};
use wire::message::{Body, Method, ResponseHead, Version};

use super::link::{Delivery, Link};
use super::pump::{Read, Side, read_client, read_link, reset};
use super::{Event, TRANSIT_US, World, slot};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::exchange::{Action, Connected, ConnectionInfo, Disposition, Env, Exchange, Reuse, Routed, TransferError};
use crate::external_auth::{Grant, Refusal, Verdict};
use crate::global_rate_limit;
use crate::h2::StreamEnd;
use crate::policy::rate_headers::Quota;
use crate::question::Reply;
use crate::upstream::connect::OnBehalfOf;

/// The proxy's part of a link.
pub(super) struct Upstream {
    link: usize,
    pub(super) input: Buffer,
}

impl Upstream {
    pub(super) fn side(&self) -> Side {
        Side::Link(self.link)
    }
}

/// A connection that is being made.
pub(super) struct Connecting {
    at_us: u64,
    outcome: Result<(), Reason>,
}

impl World {
    fn connection_info() -> ConnectionInfo {
        let address = ([10, 0, 0, 9], 4711).into();
        let who = OnBehalfOf { client: address, is_known: true, local: address };
        ConnectionInfo { who, ip_text: b"10.0.0.9"[..].into(), secured: None }
    }

    /// Runs a client's exchange as far as possible.
    pub(super) fn drive(&mut self, index: usize) {
        let connection_info = Self::connection_info();
        loop {
            let client = &mut self.clients[index];
            if client.gone.is_some() {
                return;
            }
            let mut exchange = match client.exchange.take() {
                Some(exchange) => exchange,
                None => match self.begin(index, &connection_info) {
                    Some(exchange) => exchange,
                    None => return,
                },
            };
            while self.step(index, &mut exchange, &connection_info) {
                self.check_step(index, &exchange);
            }
            self.release(index, &mut exchange);
            let Action::Done(next) = exchange.action() else {
                self.rest(index, &mut exchange);
                self.clients[index].exchange = Some(exchange);
                return;
            };
            self.finish(index, exchange, next);
        }
    }

    fn begin(&mut self, index: usize, connection_info: &ConnectionInfo) -> Option<Box<Exchange>> {
        let (view, worker, is_draining) = (self.view.clone(), self.worker.clone(), self.is_draining);
        let client = &mut self.clients[index];
        client.view = Some(view.clone());
        (client.received_before, client.was_ending) = (client.received.len(), is_draining);
        if client.is_h2 {
            let (head, bytes) = client.head.take()?;
            if client.was_reset {
                client.gone = Some(Disposition::Close);
                return None;
            }
            let mut exchange = worker.storage.exchange();
            self.check_blank(&exchange);
            (exchange.request.head, exchange.request.bytes) = (head, bytes);
            let env = env(self, &view, &worker, connection_info, index);
            exchange.handle_request(&env, false);
            return Some(exchange);
        }
        if client.was_reset || (client.arrived.is_empty() && client.input.is_empty()) {
            let is_over = client.was_reset || (client.has_ended && client.acts.is_empty());
            if is_over || (self.is_draining && client.served > 0) {
                client.gone = Some(Disposition::Close);
            }
            return None;
        }
        let mut exchange = worker.storage.exchange();
        if client.input.is_empty() {
            read_client(client);
        }
        self.check_blank(&exchange);
        let env = env(self, &view, &worker, connection_info, index);
        let mut input = std::mem::take(&mut self.clients[index].input);
        exchange.handle_head_bytes(&env, &mut input);
        self.clients[index].input = input;
        Some(exchange)
    }

    /// Does one thing that the exchange asks for. Returns false if it has to wait.
    fn step(&mut self, index: usize, exchange: &mut Box<Exchange>, connection_info: &ConnectionInfo) -> bool {
        let view = self.clients[index].view.clone().expect("an exchange has begun");
        let worker = self.worker.clone();
        let action = exchange.action();
        self.say(|| format!("client {index}: {action:?}"));
        self.release(index, exchange);
        let now_us = self.now_us;
        let is_due =
            exchange.deadline_ms().is_some_and(|deadline_ms| self.is_drain_over || now_us / 1000 >= deadline_ms);
        let mut client_input = std::mem::take(&mut self.clients[index].input);
        let mut upstream = self.clients[index].upstream.take();
        let was_reset = self.clients[index].was_reset;
        let env = env(self, &view, &worker, connection_info, index);
        let gone = || {
            Error::client_io(if self.clients[index].is_h2 {
                std::io::Error::other(StreamEnd::Reset(wire::h2::ErrorCode::CANCEL))
            } else {
                reset()
            })
        };
        let goes_on = match action {
            Action::Done(_) | Action::Tunnel { .. } => false,
            Action::ReadHead if was_reset => {
                exchange.handle_client_gone(&env, gone());
                true
            }
            Action::ReadHead => self.read_head(index, exchange, &env, &mut client_input, is_due),
            Action::Authenticate
            | Action::HoldBody
            | Action::Ask
            | Action::Wait
            | Action::WaitForLease
            | Action::Connect
                if was_reset =>
            {
                exchange.handle_client_gone(&env, gone());
                true
            }
            Action::Authenticate | Action::Ask | Action::Wait if is_due => {
                if action == Action::Ask {
                    self.note_reply(index, false, true);
                }
                exchange.handle_timeout(&env, &client_input, &Buffer::none());
                true
            }
            Action::HoldBody => self.hold_body(index, exchange, &env, &mut client_input, is_due),
            Action::Ask => self.ask(index, exchange, &env),
            Action::Wait => false,
            Action::Authenticate => self.authenticate(index, exchange, &env),
            Action::WaitForLease => self.wait_for_lease(index, exchange, &env),
            Action::Connect => {
                let (connected, goes_on) = self.connect(index, exchange, &env);
                upstream = connected;
                goes_on
            }
            Action::Respond => self.send_response(index, exchange, &env, &client_input, is_due),
            Action::Await | Action::Relay => {
                let upstream = upstream.as_mut().expect("a connection in use");
                self.relay(index, exchange, &env, &mut client_input, upstream, is_due)
            }
        };
        let client = &mut self.clients[index];
        client.input = client_input;
        client.upstream = upstream;
        goes_on
    }

    fn read_head(
        &mut self,
        index: usize,
        exchange: &mut Exchange,
        env: &Env<'_>,
        input: &mut Buffer,
        is_due: bool,
    ) -> bool {
        let client = &mut self.clients[index];
        std::mem::swap(&mut client.input, input);
        let read = read_client(client);
        std::mem::swap(&mut client.input, input);
        match read {
            Read::Bytes(_) => exchange.handle_head_bytes(env, input),
            Read::End => exchange.handle_client_gone(env, Error::downstream(Reason::ClientEof)),
            Read::Nothing if is_due => exchange.handle_timeout(env, input, &Buffer::none()),
            Read::Nothing => return false,
        }
        true
    }

    /// Checks a password, which may take longer than the exchange waits.
    fn authenticate(&mut self, index: usize, exchange: &mut Exchange, env: &Env<'_>) -> bool {
        if let Some((_, check)) = exchange.take_check() {
            let at_us = self.now_us + self.rng.pick(&[0, 1_000, 100_000, 4_000_000, 15_000_000]);
            let result = if self.rng.one_in(6) { Err(Reason::AuthenticationBusy) } else { Ok(check.run()) };
            self.clients[index].checked = Some((at_us, result));
            self.at(at_us, Event::Client(index));
        }
        let now_us = self.now_us;
        let Some((_, result)) = self.clients[index].checked.take_if(|(at_us, _)| *at_us <= now_us) else {
            return false;
        };
        exchange.handle_checked(env, result.map_err(Error::internal));
        true
    }

    fn hold_body(
        &mut self,
        index: usize,
        exchange: &mut Exchange,
        env: &Env<'_>,
        input: &mut Buffer,
        is_due: bool,
    ) -> bool {
        let Some((upload, data, bytes_max)) = exchange.held() else { panic!("seed {}: nothing is held", self.seed) };
        let before = data.len();
        let held = self.hold(index, (upload, &mut *data, bytes_max), input);
        // One read more than the limit at most.
        assert!(
            data.len() <= bytes_max + 64 * 1024,
            "seed {}: client {index}: {} bytes are held",
            self.seed,
            data.len()
        );
        let has_moved = data.len() > before;
        match held {
            Ok(None) if is_due => exchange.handle_timeout(env, input, &Buffer::none()),
            Ok(None) => {
                if has_moved {
                    exchange.handle_held(env, Ok(None));
                }
                return false;
            }
            held => exchange.handle_held(env, held),
        }
        true
    }

    /// Asks a service, which may hang for longer than the exchange waits. Of two, external authorization comes first.
    fn ask(&mut self, index: usize, exchange: &mut Exchange, env: &Env<'_>) -> bool {
        if exchange.take_question().is_some() {
            let is_limit = self.asks_for_limit(index);
            let request = self.clients[index].requests[self.clients[index].served as usize];
            let asked = &mut self.asked[request];
            *(if is_limit { &mut asked.limit_questions } else { &mut asked.questions }) += 1;
            let at_us = self.now_us + self.rng.pick(&[0, 1_000, 50_000, 80_000, 10_000_000]);
            let answer = match (self.rng.below(6), is_limit) {
                (0, _) => Err(Reason::UpstreamEof),
                (roll, true) => {
                    let is_over = roll == 1;
                    let retry_after_s = self.rng.pick(&[None, Some(7)]).filter(|_| is_over);
                    let quotas = vec![Quota { name: "a".into(), limit: 5, window_s: 60, remaining: 0, reset_s: 7 }];
                    Ok(Reply::RateLimit(global_rate_limit::Verdict { is_over, retry_after_s, quotas }))
                }
                (1, false) => Ok(Reply::Authorization(
                    Verdict::Denied(Box::new(Refusal {
                        status: self.rng.pick(&[302, 401, 403]),
                        headers: Vec::new(),
                        content_type: None,
                        body: self.rng.one_in(2).then(|| b"no".to_vec()),
                    })),
                    Duration::ZERO,
                )),
                (_, false) => {
                    let set = vec![("x-service".into(), (*b"yes").into())];
                    Ok(Reply::Authorization(Verdict::Allowed(Grant { set, ..Grant::default() }), Duration::ZERO))
                }
            };
            self.clients[index].answer = Some((at_us, answer));
            self.at(at_us, Event::Client(index));
        }
        let now_us = self.now_us;
        let Some((_, answer)) = self.clients[index].answer.take_if(|(at_us, _)| *at_us <= now_us) else {
            return false;
        };
        let is_yes = matches!(
            answer,
            Ok(Reply::Authorization(Verdict::Allowed(_), _)
                | Reply::RateLimit(global_rate_limit::Verdict { is_over: false, .. }))
        );
        self.note_reply(index, is_yes, answer.is_err());
        exchange.handle_reply(env, answer.map_err(Error::upstream));
        true
    }

    /// Whether the question of this client's request is about a limit.
    fn asks_for_limit(&self, index: usize) -> bool {
        let request = self.clients[index].requests[self.clients[index].served as usize];
        self.external_auth.is_none() || self.asked[request].is_decided
    }

    /// Notes what the answer, or its absence, means for the client's request.
    fn note_reply(&mut self, index: usize, is_yes: bool, is_absent: bool) {
        let is_limit = self.asks_for_limit(index);
        let request = self.clients[index].requests[self.clients[index].served as usize];
        let fails_open = match is_limit {
            true => self.global_limit.as_ref().is_some_and(|limit| limit.fail_open),
            false => self.external_auth.as_ref().is_some_and(|auth| auth.fail_open),
        };
        let (asked, passes) = (&mut self.asked[request], is_yes || is_absent && fails_open);
        if is_limit {
            asked.is_within_limit = passes;
        } else {
            (asked.is_granted, asked.may_pass, asked.is_decided) = (is_yes, passes, true);
        }
    }

    fn send_response(
        &mut self,
        index: usize,
        exchange: &mut Exchange,
        env: &Env<'_>,
        client_input: &Buffer,
        is_due: bool,
    ) -> bool {
        match self.write(index, exchange.download(), &mut Buffer::none(), Side::Client(index)) {
            Ok(true) => exchange.handle_responded(env, Ok(())),
            Ok(false) if is_due => exchange.handle_timeout(env, client_input, &Buffer::none()),
            Ok(false) => return false,
            Err(error) => exchange.handle_responded(env, Err(error)),
        }
        true
    }

    fn wait_for_lease(&mut self, index: usize, exchange: &mut Exchange, env: &Env<'_>) -> bool {
        let now_us = self.now_us;
        let limits = self.cluster.plan.policy.limits.clone();
        let Some(until_us) = self.clients[index].waits_until_us else {
            let is_first = self.queue.is_empty();
            let has_room = |routed: &Routed| routed.cluster.lease(now_us / 1000, &routed.demand()).is_ok();
            let waits_in_vain = is_first && exchange.routed().is_some_and(has_room);
            assert!(!waits_in_vain, "seed {}: client {index} queues though there is room", self.seed);
            if self.queue.len() >= limits.pending_max {
                exchange.handle_lease(env, Err(Error::internal(Reason::PendingFull)));
                return true;
            }
            // No longer than the request's own time.
            let mut until_us = now_us + limits.pending_timeout.as_micros() as u64;
            if let Some(Deadline::At(ends_ms)) = exchange.routed().map(|routed| routed.deadline) {
                until_us = until_us.min(ends_ms.saturating_mul(1000)).max(now_us);
            }
            self.clients[index].waits_until_us = Some(until_us);
            self.queue.push_back(index);
            self.at(until_us, Event::Client(index));
            return false;
        };
        let leased = exchange.routed().map(|routed| routed.cluster.lease(now_us / 1000, &routed.demand()));
        let leased = match leased {
            Some(Ok(lease)) if self.queue.front() == Some(&index) => Ok(lease),
            Some(Err(crate::upstream::cluster::Full::NoEndpoint)) => Err(Error::internal(Reason::NoEndpoint)),
            _ if now_us >= until_us || self.is_drain_over => Err(Error::internal(Reason::PendingTimeout)),
            _ => return false,
        };
        self.leave_queue(index);
        exchange.handle_lease(env, leased);
        true
    }

    fn leave_queue(&mut self, index: usize) {
        self.clients[index].waits_until_us = None;
        self.queue.retain(|waiting| *waiting != index);
    }

    /// Lets the clients that wait for room check whether there is some.
    pub(super) fn serve_queue(&mut self) {
        for _ in 0..self.queue.len() {
            let Some(first) = self.queue.front().copied() else { return };
            self.drive(first);
            if self.queue.front() == Some(&first) {
                return;
            }
        }
    }

    fn connect(&mut self, index: usize, exchange: &mut Exchange, env: &Env<'_>) -> (Option<Upstream>, bool) {
        let now_us = self.now_us;
        let Some((routed, lease, deadline, fresh_since_us)) = exchange.wanted() else { return (None, false) };
        let (endpoint, is_h2) = (slot(&lease.endpoint), routed.is_to_h2());
        let (is_to_error_backend, port) = (routed.is_to_error_backend(), lease.endpoint.state.address().port());
        // Also under an older snapshot.
        let is_drained = self.drained_ms[endpoint].is_some_and(|drained_ms| lease.at_ms > drained_ms);
        assert!(!is_drained, "seed {}: endpoint {endpoint} drains and still gets new work", self.seed);
        self.clients[index].try_ms = lease.at_ms;
        if !is_to_error_backend {
            let first_ms = *self.clients[index].first_try_ms.get_or_insert(lease.at_ms);
            let is_late = |within| lease.at_ms >= first_ms + crate::millis(within);
            let is_late = lease.at_ms > first_ms && routed.policy(env).retry.within.is_some_and(is_late);
            assert!(
                !is_late,
                "seed {}: client {index}: a try at {} ms, the first at {first_ms} ms",
                self.seed, lease.at_ms
            );
        }
        let connect_ms = crate::millis(routed.cluster.plan.policy.connect_timeout);
        let (link, is_reused) = match self.clients[index].connecting.take() {
            Some(connecting) if now_us < connecting.at_us && !self.is_drain_over => {
                self.clients[index].connecting = Some(connecting);
                return (None, false);
            }
            Some(Connecting { outcome: Ok(()), .. }) => (self.open_link(is_h2, index, port), false),
            Some(Connecting { outcome: Err(reason), .. }) => {
                self.unreachable += u64::from(reason != Reason::RequestTimeout);
                exchange.handle_connect_failure(env, Error::upstream(reason));
                return (None, true);
            }
            None => {
                let mut idle = None;
                while fresh_since_us.is_none() {
                    let Some(link) = self.idle[endpoint].pop() else { break };
                    if self.links[link].is_silent() {
                        idle = Some(link);
                        break;
                    }
                    self.close_link(link);
                }
                match idle {
                    Some(link) => (link, true),
                    // A stream of a connection that others also use.
                    None if is_h2 && fresh_since_us.is_none() && self.rng.one_in(2) => {
                        (self.open_link(true, index, port), true)
                    }
                    None => {
                        let until_us = deadline.limit(now_us / 1000 + connect_ms).saturating_mul(1000);
                        let (after_us, outcome) = match self.rng.below(12) {
                            0 => (2 * TRANSIT_US, Err(Reason::ConnectRefused)),
                            1 if deadline.is_over(until_us / 1000) => {
                                (until_us.saturating_sub(now_us), Err(Reason::RequestTimeout))
                            }
                            1 => (until_us.saturating_sub(now_us), Err(Reason::ConnectTimeout)),
                            _ => (2 * TRANSIT_US + self.rng.below(1000), Ok(())),
                        };
                        let at_us = now_us + after_us;
                        self.clients[index].connecting = Some(Connecting { at_us, outcome });
                        self.at(at_us, Event::Client(index));
                        return (None, false);
                    }
                }
            }
        };
        self.links[link].owner = Some(index);
        let progress = self.links[link].asked_progress().filter(|_| is_reused && exchange.wants_progress());
        let request = *self.clients[index].requests.get(self.clients[index].served as usize).expect("a request");
        let asked = &mut self.asked[request];
        *(if is_to_error_backend { &mut asked.error_tries } else { &mut asked.tries }) += 1;
        exchange.handle_connected(env, Connected { is_reused, progress });
        (Some(Upstream { link, input: Buffer::none() }), true)
    }

    fn relay(
        &mut self,
        index: usize,
        exchange: &mut Box<Exchange>,
        env: &Env<'_>,
        client_input: &mut Buffer,
        upstream: &mut Upstream,
        is_due: bool,
    ) -> bool {
        let action = exchange.action();
        let link = upstream.link;
        exchange.set_splice(!self.clients[index].is_h2 && !self.links[link].is_h2 && !exchange.is_paced());
        match self.pump(index, exchange.upload(), client_input, Side::Client(index), Side::Link(link)) {
            Ok(_) => {}
            Err(error) => {
                exchange.handle_upload_failure(env, error);
                if exchange.action() != action {
                    return true;
                }
            }
        }
        if action == Action::Await {
            match self.read_response(exchange, env, upstream) {
                Ok(true) => {
                    let early = None;
                    exchange.handle_response(env, early);
                    return true;
                }
                Ok(false) => {}
                Err(error) => {
                    let lost = self.links[link].lost(error, !upstream.input.is_empty());
                    self.say(|| format!("client {index}: {lost:?}"));
                    exchange.handle_lost(env, lost);
                    return true;
                }
            }
        } else if let Err(error) = self.pump_response(index, exchange, upstream) {
            exchange.handle_download_failure(env, error);
            return true;
        }
        if exchange.is_only_sending() && self.links[link].has_left() {
            exchange.handle_upload_failure(env, TransferError::Write(reset()));
        }
        let deadline_ms = exchange.deadline_ms();
        exchange.handle_moved(env, client_input, &upstream.input, is_due);
        if exchange.action() != action {
            return true;
        }
        // A timer that is set again has not elapsed.
        self.clients[index].has_elapsed &= exchange.deadline_ms() == deadline_ms;
        // A read reports a reset; otherwise check for one.
        let client = &self.clients[index];
        if client.was_reset && (exchange.upload().is_none() || client.is_h2) {
            let error = if client.is_h2 { std::io::Error::other(StreamEnd::Gone) } else { reset() };
            exchange.handle_client_gone(env, Error::client_io(error));
            return true;
        }
        let has_elapsed = self.clients[index].has_elapsed;
        if exchange.deadline_ms().is_some_and(|deadline_ms| has_elapsed || self.now_us / 1000 >= deadline_ms) {
            exchange.handle_timeout(env, client_input, &upstream.input);
            return true;
        }
        false
    }

    /// Reads the head of a response, if it has arrived.
    fn read_response(
        &mut self,
        exchange: &mut Exchange,
        env: &Env<'_>,
        upstream: &mut Upstream,
    ) -> Result<bool, Error> {
        let link = &mut self.links[upstream.link];
        if link.is_h2 {
            return match link.arrived.pop_front() {
                Some(Delivery::Head(text, ends)) => {
                    let response = exchange.response_room(env.storage);
                    parse_h2(&text, ends, &mut response.head);
                    response.bytes = text;
                    Ok(true)
                }
                Some(Delivery::Ended(end, _)) => {
                    link.arrived.push_front(Delivery::Ended(end, true));
                    Err(Error::endpoint_io(std::io::Error::other(end)))
                }
                Some(other) => {
                    link.arrived.push_front(other);
                    Ok(false)
                }
                None => Ok(false),
            };
        }
        loop {
            if !upstream.input.is_empty() && exchange.take_response_head(env.storage, &mut upstream.input)? {
                return Ok(true);
            }
            match read_link(&mut self.links[upstream.link], &mut upstream.input).map_err(Error::endpoint_io)? {
                Read::Bytes(_) => {}
                Read::End => return Err(Link::eof()),
                Read::Nothing => return Ok(false),
            }
        }
    }

    /// Handles a connection that the exchange no longer uses.
    fn release(&mut self, index: usize, exchange: &mut Exchange) {
        if exchange.action() != Action::Connect {
            self.clients[index].connecting = None;
        }
        if exchange.action() != Action::Authenticate {
            self.clients[index].checked = None;
        }
        if exchange.action() != Action::Ask {
            self.clients[index].answer = None;
        }
        if exchange.action() != Action::WaitForLease && self.clients[index].waits_until_us.is_some() {
            self.leave_queue(index);
        }
        if exchange.holds_connection() {
            return;
        }
        let Some(Upstream { link, .. }) = self.clients[index].upstream.take() else { return };
        match exchange.take_reuse() {
            Some(Reuse { endpoint, .. }) => {
                self.links[link].owner = None;
                self.idle[slot(&endpoint)].push(link);
            }
            None => self.close_link(link),
        }
    }

    /// Checks before a wait that something will wake the exchange.
    fn rest(&mut self, index: usize, exchange: &mut Exchange) {
        let seed = self.seed;
        match exchange.action() {
            Action::Authenticate if self.clients[index].checked.is_none() => {
                panic!("seed {seed}: no password is being checked")
            }
            Action::Ask if self.clients[index].answer.is_none() => panic!("seed {seed}: no service is asked"),
            Action::Connect => assert!(self.clients[index].connecting.is_some(), "seed {seed}: not connecting"),
            Action::WaitForLease => assert!(self.queue.contains(&index), "seed {seed}: the client is not in the queue"),
            action => {
                let Some(deadline_ms) = exchange.deadline_ms() else {
                    panic!("seed {seed}: client {index} waits without a deadline: {action:?}")
                };
                self.check_deadline(index, exchange, deadline_ms);
                self.check_flushed(index, exchange);
                if self.clients[index].armed_ms != Some(deadline_ms) {
                    self.clients[index].armed_ms = Some(deadline_ms);
                    self.at(deadline_ms * 1000, Event::Client(index));
                }
            }
        }
    }

    /// While an endpoint pauses, the client can read everything that the endpoint has sent of a body whose end is not known.
    fn check_flushed(&self, index: usize, exchange: &mut Exchange) {
        let (seed, client) = (self.seed, &self.clients[index]);
        let (Action::Relay, Some(upstream)) = (exchange.action(), &client.upstream) else { return };
        let Some(request) = client.requests.get(client.served as usize) else { return };
        let Some(download) = exchange.download() else { return };
        let must_be_there = download.waits_for_sender(&upstream.input) && download.passes_on_at_once();
        if let (true, Some(readable)) = (must_be_there, client.readable(&self.asked[*request])) {
            assert_eq!(readable as u64, download.received(), "seed {seed}: client {index} waits for what has arrived");
        }
    }

    fn check_step(&self, index: usize, exchange: &Exchange) {
        let has_link = self.clients[index].upstream.is_some();
        assert!(has_link || !exchange.holds_connection(), "seed {}: there is no connection", self.seed);
        let (in_progress, max) = (self.compiled.in_progress(), self.requests_max);
        let is_within = max.is_none_or(|max| in_progress <= max as usize);
        assert!(is_within, "seed {}: {in_progress} requests at once, not {max:?}", self.seed);
    }

    /// Checks the byte counts at the end.
    fn check_counts(&self, index: usize, exchange: &Exchange, next: Disposition) {
        let (seed, client) = (self.seed, &self.clients[index]);
        let attempts = client.view.as_ref().map_or(0, |view| match &view.plan.policy.protocol {
            model::Protocol::Http(http) => http.routes[0].policy.retry.attempts,
            _ => 0,
        });
        if let Some(request) = client.requests.get(client.served as usize) {
            // The first, the retries, and one on a fresh connection instead of a stale one.
            let tries = self.asked[*request].tries;
            assert!(tries <= attempts + 2, "seed {seed}: request {request} was tried {tries} times");
        }
        if client.is_h2 {
            return;
        }
        let received = (client.received.len() - client.received_before) as u64;
        assert_eq!(exchange.bytes_out(), received, "seed {seed}: bytes to client {index}");
        if let (Disposition::KeepAlive, Some(request)) = (next, client.requests.get(client.served as usize)) {
            assert_eq!(exchange.bytes_in(), self.asked[*request].bytes, "seed {seed}: bytes of client {index}");
        }
    }

    /// An exchange that is about to be used must contain nothing of the previous one.
    fn check_blank(&self, exchange: &Exchange) {
        let has_rest = exchange.deadline_ms().is_some() || exchange.is_begun() || exchange.bytes_in() > 0;
        assert!(!has_rest && exchange.action() == Action::ReadHead, "seed {}: the exchange is not cleared", self.seed);
    }

    /// No wait exceeds the configured timeouts.
    fn check_deadline(&self, index: usize, exchange: &Exchange, deadline_ms: u64) {
        let (seed, client, action) = (self.seed, &self.clients[index], exchange.action());
        assert!(
            !self.is_drain_over || action == Action::Respond,
            "seed {seed}: client {index} outlives the drain: {action:?}"
        );
        let Some(model::Protocol::Http(http)) = client.view.as_ref().map(|view| &view.plan.policy.protocol) else {
            return;
        };
        let route = &http.routes[0];
        let waits_until_us = self.now_us.max(client.paced_until_us);
        let mut ends_ms = waits_until_us.div_ceil(1000) + crate::millis(http.limits.stall_timeout);
        if let Some(routed) = exchange.routed().filter(|routed| routed.is_to_error_backend()) {
            // It has a time of its own.
            match routed.deadline {
                Deadline::At(over_ms) => ends_ms = ends_ms.min(over_ms),
                // The body has as long as it makes progress.
                Deadline::Never => assert_eq!(action, Action::Relay, "seed {seed}: an error backend without a limit"),
            }
            let is_in_time = deadline_ms <= ends_ms;
            return assert!(is_in_time, "seed {seed}: client {index} waits until {deadline_ms}, not {ends_ms}");
        }
        if let (Some(timeout), Some(begun_us), true) = (route.timeout, exchange.record.begun_us(), is_upstream(action))
        {
            ends_ms = ends_ms.min(begun_us / 1000 + crate::millis(timeout));
        }
        if let (Some(timeout), Action::Await) = (route.policy.retry.per_try_timeout, action) {
            ends_ms = ends_ms.min(client.try_ms + crate::millis(timeout));
        }
        assert!(
            deadline_ms <= ends_ms,
            "seed {seed}: client {index} waits until {deadline_ms}, not {ends_ms}: {action:?}"
        );
    }

    fn finish(&mut self, index: usize, exchange: Box<Exchange>, next: Disposition) {
        let seed = self.seed;
        self.attempts += u64::from(exchange.record.attempts);
        self.check_counts(index, &exchange, next);
        self.say(|| format!("client {index}: {next:?}, {:?}, {:?}", exchange.record.status, exchange.record.reason));
        if exchange.is_begun() {
            self.begun += 1;
            let is_accounted = exchange.record.status.is_some() || exchange.record.reason.is_some();
            self.ended += u64::from(is_accounted);
        }
        let client = &mut self.clients[index];
        client.served += 1;
        client.pipes = [Vec::new(), Vec::new()];
        client.armed_ms = None;
        (client.first_try_ms, client.paced_from_us, client.paced_until_us) = (None, None, 0);
        if next == Disposition::KeepAlive {
            assert!(!client.was_ending, "seed {seed}: client {index} stays on a connection that must end");
            let Some(model::Protocol::Http(http)) = client.view.as_ref().map(|view| &view.plan.policy.protocol) else {
                return;
            };
            let max = http.limits.requests_per_connection_max;
            assert!(max.is_none_or(|max| client.served < max), "seed {seed}: client {index} has asked too often");
        }
        assert!(client.upstream.is_none(), "seed {seed}: a connection is left behind");
        if client.is_h2 || next != Disposition::KeepAlive {
            client.gone = Some(next);
        }
        self.worker.storage.give_back(exchange);
    }
}

/// Whether the time of the route runs: it waits for a password, for a service, for the endpoint, or for another try at one.
fn is_upstream(action: Action) -> bool {
    matches!(
        action,
        Action::Authenticate | Action::HoldBody | Action::Ask | Action::Wait | Action::Await | Action::Relay
    )
}

fn env<'e>(
    world: &World,
    view: &'e std::rc::Rc<crate::worker::ListenerView>,
    worker: &'e crate::worker::Worker,
    connection_info: &'e ConnectionInfo,
    index: usize,
) -> Env<'e> {
    let model::Protocol::Http(http) = &view.plan.policy.protocol else { unreachable!("not an HTTP listener") };
    Env {
        now_us: world.now_us,
        listener: view,
        http,
        connection_info,
        storage: &worker.storage,
        mirrors: &worker.mirrors,
        compressions: &worker.compressions,
        bodies: &worker.bodies,
        remembered: &worker.remembered,
        tokens: &worker.tokens,
        unix_ms: || 1_800_000_000_000,
        requests_before: world.clients[index].served,
        is_ending: world.is_draining,
        is_drain_over: world.is_drain_over,
        is_memory_full: false,
    }
}

/// A head as received over HTTP/2.
fn parse_h2(text: &[u8], ends: bool, head: &mut ResponseHead) {
    let parsed = h1::parse_response(text, 100, Method::Get, head);
    assert_eq!(parsed, Ok(Parsed::Complete(text.len())));
    head.version = Version::Http2;
    head.keep_alive = true;
    if ends {
        head.body = Body::None;
    }
}

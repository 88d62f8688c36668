//! The stages of an exchange, in order.

use super::additions::{additions, cors, responds_with_id, rewriting};
use super::relay::start_interim;
use super::*;

impl Exchange {
    /// Removes everything of the request, so that the next one finds nothing of it. It does so now, while the memory is in the cache, and
    /// not when the next request arrives. Returns its response, if there is one.
    pub(super) fn clear(&mut self) -> Option<Box<Response>> {
        self.request.clear();
        self.upload.clear();
        self.phase = Phase::default();
        self.deadline_ms = self.deadline_ms.filter(|_| faults::is_injected(InjectedFault::KeepsDeadline));
        self.record = AccessRecord::default();
        self.trace = None;
        self.call = None;
        // If copies still wait, they wait for a body that will not be complete.
        self.mirror = None;
        self.held = None;
        self.room = None;
        self.shares = None;
        self.paced_until_ms = None;
        (self.quotas, self.bearer, self.cookies, self.unproven) = (None, None, None, None);
        if faults::is_injected(InjectedFault::LeaksCount) {
            std::mem::forget(self.permit.take());
        }
        (self.permit, self.pace) = (None, None);
        self.interception = None;
        self.reuse = None;
        self.response.take()
    }

    /// The head is complete.
    pub(super) fn begin(&mut self, env: &Env<'_>) {
        self.record.begin(env.now_us);
        self.record.has_head = true;
        self.record.bytes_in = self.request.bytes.len() as u64;
        let Request { head, bytes, .. } = &mut self.request;
        headers::drop_names(env.http.header_names, head, bytes);
        self.call = Ongoing::of(&self.request.head, &self.request.bytes);
        if let Some(rules) = &env.http.request_id {
            let id = request_id::of(rules, &self.request.head, &self.request.bytes, is_trusted(env));
            self.record.request_id = Some(id);
        }
        // The connection continues after a request without a destination, if it has no body to be skipped.
        if self.request.head.body != Body::None {
            self.upload.leave(Framing::of(self.is_h2(), self.request.head.body));
        }
        match self.destination(env) {
            Ok((number, route, destination)) => self.proceed(env, number, route, destination),
            Err(error) => {
                // Otherwise the trace has begun with the route.
                if self.record.route.is_none() {
                    self.begin_trace(env, None);
                }
                self.fail(env, error);
            }
        }
    }

    /// Sends the request to its destination.
    pub(super) fn proceed(&mut self, env: &Env<'_>, number: usize, route: &Route, destination: Destination) {
        let (cluster, share) = match destination {
            Destination::Cluster(cluster, share) => intercept::serving(env, route, (cluster, share)),
            Destination::Redirect(status, location) => {
                let own = Own { field: Some(("location", &location)), ..Own::line(status, Some("redirect")) };
                return self.respond(env, &own, self.may_stay(env), ErrorCode::INTERNAL_ERROR);
            }
            Destination::Preflight { is_allowed } => {
                // The word is for people who look for the reason in their browser, which shows scripts nothing of the response.
                let (status, word) = if is_allowed { (204, None) } else { (403, Some("origin_not_allowed")) };
                return self.respond(env, &Own::line(status, word), self.may_stay(env), ErrorCode::INTERNAL_ERROR);
            }
            Destination::Respond => return self.respond_fixed(env, number, route),
            Destination::Authorize => return self.authorize(env, number, route),
            Destination::Limit => return self.limit(env, number, route),
            Destination::Check(checking) => {
                self.phase = Phase::Authenticate(checking);
                // A caller does not wait longer than it says.
                let timeouts = route.timeout.into_iter().chain(self.call.as_ref().and_then(|call| call.timeout));
                let wait_ms = timeouts.map(crate::millis).chain([CHECK_MS_MAX]).min().unwrap_or(CHECK_MS_MAX);
                self.deadline_ms = Some(env.now_ms().saturating_add(wait_ms));
                return;
            }
        };
        match &route.policy.request_body {
            Some(rules) if self.request.head.body != Body::None => {
                self.prepare_body(env, (number, route), (cluster, share), rules);
            }
            Some(rules) if let Err(error) = self.strip_encoding(rules) => self.fail(env, error),
            _ => self.send(env, (number, route), (cluster, share), None),
        }
    }

    /// Sends the request to an endpoint of this cluster. `decompressing`: its body is decompressed on its way.
    pub(super) fn send(
        &mut self,
        env: &Env<'_>,
        (number, route): (usize, &Route),
        (cluster, share): (Rc<Cluster>, usize),
        decompressing: Option<Decompressing>,
    ) {
        self.record.cluster = Some(cluster.clone());
        cluster.counters.requests.inc();
        let mut timeout = route.timeout;
        if let Some(call) = &mut self.call {
            call.route(env.listener.methods(number), self.request.target(), cluster.plan.policy.protocol);
            timeout = timeout.into_iter().chain(call.timeout).min();
        }
        let timeout_ms = timeout.map(crate::millis);
        // A password may have been checked since then.
        let begun_ms = self.record.begun_us().map_or(env.now_ms(), |begun_us| begun_us / 1000);
        let deadline = Deadline::Never.or_earlier(timeout_ms.map(|timeout_ms| begun_ms.saturating_add(timeout_ms)));
        let prepared = match self.prepare(env, (number, route), (&cluster, share), timeout_ms, decompressing) {
            Ok(prepared) => prepared,
            Err(error) => return self.fail(env, error),
        };
        let Prepared { key, preferred, is_https } = prepared;
        cluster.budget.borrow_mut().on_request(env.now_ms());
        let routed = Routed { number, cluster, share, key, preferred, is_https, deadline, tries: Tries::default() };
        self.phase = Phase::Upstream(routed, UpstreamPhase::Queue);
        self.lease(env);
    }

    /// The destination of the request: the number of its route, the route, and what that does with it.
    ///
    /// # Errors
    /// [`Reason::MemoryFull`], [`Reason::Misdirected`], [`Reason::ClientDenied`], [`Reason::RateLimited`], [`Reason::AmbiguousPath`], [`Reason::NoRoute`], and those of
    /// [`policy::admit`], [`Authenticator::judge`] and [`policy::destination`].
    pub(super) fn destination<'e>(&mut self, env: &Env<'e>) -> Result<(usize, &'e Route, Destination), Error> {
        let found = self.find_destination(env);
        if matches!(found, Err(_) | Ok((.., Destination::Preflight { .. }))) {
            // Whatever it is answered, its credentials stay out of the access log.
            env.listener.plan.auth.hide(&mut self.request, self.record.route);
        }
        found
    }

    fn find_destination<'e>(&mut self, env: &Env<'e>) -> Result<(usize, &'e Route, Destination), Error> {
        if env.is_memory_full {
            return Err(Error::internal(Reason::MemoryFull));
        }
        let Request { head, bytes, .. } = &self.request;
        if let Some(secured) = &env.connection_info.secured
            && !is_for(secured, &env.listener.plan, head, bytes)
        {
            return Err(Error::internal(Reason::Misdirected));
        }
        let client = client(env);
        if let Some(addresses) = &env.listener.plan.addresses
            && !addresses.admits(client_address::known_client_ip(head, bytes, &client).ok())
        {
            return Err(Error::internal(Reason::ClientDenied));
        }
        if let Some(limiter) = &env.listener.plan.limiter {
            let target = head.path.get(bytes);
            let view = RequestView { head, buffer: bytes, target, paths: env.http.paths, client: &client };
            limiter.admit(&view, env.now_us, &mut self.quotas)?;
        }
        if let Some(shapers) = &env.listener.plan.shapers {
            self.shares = Some(shapers.shares(client_address::client_ip(head, bytes, &client)));
        }
        env.listener.plan.auth.remove_claims(&mut self.request);
        let Request { head, bytes, normal_target, .. } = &mut self.request;
        *normal_target = route::normal_target(head.path.get(bytes), &env.http.paths)?;
        let target = normal_target.as_deref().unwrap_or(head.path.get(bytes));
        let verifier = env.listener.plan.auth.before_routing();
        let (number, identity, is_for_others) = match verifier {
            None => (env.listener.plan.router.route(head, bytes, target), None, false),
            Some(verifier) => self.route_by_claims(env, verifier),
        };
        let (number, route) =
            number.and_then(|number| Some((number, env.route(number)?))).ok_or(Error::internal(Reason::NoRoute))?;
        self.record.route = Some(number);
        self.record.is_unlogged = route.policy.is_unlogged;
        self.begin_trace(env, Some(route));
        let Request { head, bytes, normal_target, .. } = &self.request;
        let target = normal_target.as_deref().unwrap_or(head.path.get(bytes));
        let view = RequestView { head, buffer: bytes, target, paths: env.http.paths, client: &client };
        match policy::admit(env.listener, number, route, &view, env.now_us, &mut self.quotas, &mut self.permit)? {
            Admitted::Answered(answer) => return Ok((number, route, answer)),
            // Conditions on claims hold for every address.
            Admitted::Proven if !is_for_others => return Ok((number, route, self.proven(env, number, route)?)),
            Admitted::Proven | Admitted::Unproven => {}
        }
        if route.policy.auth.is_some() {
            return Ok((number, route, self.authenticate(env, number, route, identity, is_for_others)?));
        }
        // Without a token, no route would have been found that is for others.
        if is_for_others {
            return Err(Error::internal(Reason::Internal));
        }
        if route.policy.external_auth.is_some() {
            return Ok((number, route, Destination::Authorize));
        }
        if route.policy.global_rate_limit.is_some() {
            return Ok((number, route, Destination::Limit));
        }
        Ok((number, route, policy::destination(env.listener, number, route, &view)?))
    }

    /// Writes the request for the endpoint.
    ///
    /// # Errors
    /// [`Reason::BodyTooLarge`]; [`Reason::BadFraming`] if a body that was held back cannot be translated.
    #[expect(clippy::too_many_lines, reason = "every step takes what the one before it has borrowed")]
    fn prepare(
        &mut self,
        env: &Env<'_>,
        (number, route): (usize, &Route),
        (cluster, share): (&Cluster, usize),
        timeout_ms: Option<u64>,
        decompressing: Option<Decompressing>,
    ) -> Result<Prepared, Error> {
        let call = self.call.as_ref();
        let Self { request, upload, mirror, record, held, room, .. } = self;
        let Request { head, bytes: buffer, normal_target, upgrade } = request;
        let call_fields = call.map(|call| call.outgoing(timeout_ms));
        let client = Client { call: call_fields, request_id: record.request_id.as_deref(), ..client(env) };
        let names =
            Names { listener: &env.listener.plan.policy.name, route: &route.name, cluster: &cluster.plan.policy.name };
        let from = Framing::of(head.version == Version::Http2, head.body);
        let received = head.path.get(buffer);
        let target = normal_target.as_deref().unwrap_or(received);
        let view = RequestView { head, buffer, target, paths: env.http.paths, client: &client };
        let prepared = Prepared {
            key: cluster.hash_key().map_or(0, |key| crate::upstream::hash::key(key, &view)),
            preferred: match &cluster.plan.sticky {
                // The session of the client is with another cluster.
                Some(sticky) if share != intercept::FALLBACK => sticky.endpoint(head, buffer),
                _ => None,
            },
            is_https: cluster.plan.sticky.is_some() && policy::scheme(&view) == Scheme::Https,
        };
        // What was held back is within its limits.
        let body_bytes_max = super::body::body_bytes_max(env, Some(route));
        if let (Body::Length(length), Some(max), None) = (head.body, body_bytes_max, &held)
            && length > max
        {
            return Err(Error::downstream(Reason::BodyTooLarge));
        }
        let translation = call.and_then(Ongoing::request_translation);
        // Before the copies are begun: the length of an encoded body is not that of its content, and what a copy has beyond its length would
        // be read as another request.
        if (translation.is_some() || decompressing.is_some()) && head.body != Body::None {
            head.body = Body::Chunked;
        }
        let view = RequestView { head, buffer, target, paths: env.http.paths, client: &client };
        let (Changes { rewrite, request_headers, .. }, mirrors) = (route.changes(share), &route.policy.mirrors);
        let rewritten = policy::rewrite::target(rewrite.path.as_ref(), &route.path, &view)?;
        let target = rewritten.as_deref().unwrap_or(policy::passed_on(&env.http.paths, received, target));
        let of_fallback = (share == intercept::FALLBACK).then(|| intercept::of_fallback(route, head, buffer));
        let headers = of_fallback.as_ref().unwrap_or(request_headers);
        let (host, via) = (rewrite.host.as_deref(), route.policy.via.as_deref());
        // A translated gRPC-Web call is not what a copy should contain.
        if let Some(split) = env.listener.split(number).filter(|_| translation.is_none()) {
            let who = env.connection_info.who;
            let values = Values { head, buffer, client: &client, names, endpoint: None };
            let edits = RequestEdits { target: Some(target), host, headers, values: Some(&values), via, mark: None };
            *mirror = Copies::begin(env.listener, mirrors, split, share, &view, &edits, who, env.mirrors);
        }
        let protocol = cluster.plan.policy.protocol;
        *upgrade = Upgrade::of(head, buffer, protocol == ClusterProtocol::H2);
        if upgrade.is_none() {
            head.upgrade = None;
        }
        let to = match (protocol, head.upgrade) {
            (ClusterProtocol::H1, _) => Framing::H1(head.body),
            (ClusterProtocol::H2, Some(_)) => Framing::HeadOnly,
            (ClusterProtocol::H2, None) => Framing::H2(head.body),
        };
        let out = match held {
            Some(_) => upload.resume(to),
            None => upload.start(from, to, body_bytes_max),
        };
        let values = Values { head, buffer, client: &client, names, endpoint: None };
        let edits = RequestEdits { target: Some(target), host, headers, values: Some(&values), via, mark: None };
        headers::write_request(out, head, buffer, &client, cluster.scheme(), &edits);
        if translation.is_some() {
            upload.set_call(translation);
        }
        let claims = env.listener.plan.auth.claims();
        if !claims.is_empty() {
            upload.hide_trailers(claims.clone());
        }
        upload.allow_trailers(env.http.header_names);
        if mirror.is_some() {
            upload.keep_copy(MIRROR_BODY_BYTES_MAX);
        }
        if let Some(decompressing) = decompressing {
            upload.decompress(decompressing);
        }
        if let Some(mut held) = held.take() {
            *room = held.take_room();
            upload.put_held(&held.data).map_err(|error| TransferError::Body(error).of_request())?;
        }
        Ok(prepared)
    }

    /// An endpoint has begun its final response, which is sent to the client.
    pub(super) fn answered(&mut self, env: &Env<'_>, awaiting: Awaiting) {
        let may_stay = self.may_stay(env);
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let Some(response) = &mut self.response else { return };
        let is_tunnel = match response.head.status {
            101 => true,
            // Any success over HTTP/2 (RFC 8441 section 4).
            200..=299 => self.request.head.upgrade.is_some() && routed.is_to_h2(),
            _ => false,
        };
        let session = routed.session(env, &awaiting.attempt.lease.endpoint);
        let own = routed.changes(env);
        let with_kept = self.interception.as_deref().and_then(|interception| interception.with_kept(own));
        let changes = with_kept.as_ref().unwrap_or(&own.response_headers);
        let request_id = self.record.request_id.as_deref();
        // Most routes need nothing of this.
        let client = changes.variables().next().map(|_| Client { request_id, ..client(env) });
        let values = client.as_ref().map(|client| Values {
            head: &self.request.head,
            buffer: &self.request.bytes,
            client,
            names: Names {
                listener: &env.listener.plan.policy.name,
                route: env.route(routed.number).map_or("", |route| &route.name),
                cluster: &routed.cluster.plan.policy.name,
            },
            endpoint: Some(awaiting.attempt.lease.endpoint.state.address()),
        });
        let edits = ResponseEdits {
            headers: changes,
            values: values.as_ref(),
            request_id: request_id.filter(|_| responds_with_id(env)),
            cors: cors(env, Some(routed.number), &self.request),
            quotas: self.quotas.as_deref(),
            cookies: self.cookies.as_deref(),
            session: session.as_ref(),
            rewriting: rewriting(env, routed.policy(env), &self.request),
            compressed: None,
            via: routed.policy(env).via.as_deref(),
        };
        if is_tunnel {
            let is_h2 = self.request.head.version == Version::Http2;
            (self.record.status, self.record.is_of_endpoint) = (Some(if is_h2 { 200 } else { 101 }), true);
            start_interim(&self.request, response, &edits);
            *step = UpstreamPhase::Interim(awaiting, Interim::Tunnel { answered_us: env.now_us });
            self.deadline_ms = Some(env.stalls_at_ms());
            return;
        }
        if let Some(call) = &mut self.call
            && !call.take_head(&response.head, &response.bytes)
        {
            return self.fail(env, Error::upstream(Reason::UpstreamNotGrpc));
        }
        (self.record.status, self.record.is_of_endpoint) = (Some(response.head.status), true);
        let is_to_h2 = routed.is_to_h2();
        // A call's messages have a compression of their own.
        let policy = routed.policy(env).compression.as_deref().filter(|_| self.call.is_none());
        let (compressed, compressing) = policy
            .and_then(|policy| compress::compress(env, routed.number, policy, &self.request, response, changes))
            .unzip();
        let compressing = compressing.flatten();
        let edits = ResponseEdits { compressed, ..edits };
        let terms = Terms { call: self.call.as_ref(), edits: &edits, is_from_h2: is_to_h2, may_stay };
        let relay = Relay::begin(awaiting, env.now_us, &self.request, &self.upload, response, &terms);
        if let Some(compressing) = compressing {
            response.download.compress(compressing);
        }
        if let Some(limit) = &routed.policy(env).response_bandwidth {
            self.pace = Some(Box::new(ResponsePace::new(limit, env.now_us)));
        }
        routed.handle_head();
        *step = UpstreamPhase::Relay(relay);
        self.deadline_ms = None;
        self.release_body();
    }

    /// The response is complete. Decides what happens to both connections.
    pub(super) fn relayed(&mut self, env: &Env<'_>, upstream_input: &Buffer) {
        let Phase::Upstream(routed, step) = &mut self.phase else { return };
        let UpstreamPhase::Relay(relay) = std::mem::replace(step, UpstreamPhase::Between) else { return };
        let Some(response) = &mut self.response else { return };
        let download = &response.download;
        self.record.finish(self.upload.head_sent_us(), relay.answered_us, download.head_sent_us());
        if let Some(call) = &mut self.call {
            call.status = download.grpc_status().or(call.status);
        }
        let ended_ms = download.head_sent_us().map_or(env.now_ms(), |sent_us| sent_us / 1000);
        let method = self.request.head.method;
        let is_uploaded = self.upload.is_done() && !relay.upload_failed;
        if !upstream_input.is_empty() && relay::is_bodiless(method, response.head.status) {
            relay.lease.endpoint.pool.distrust();
        }
        if (is_uploaded && upstream_input.is_empty()) || faults::is_injected(InjectedFault::ReusesBusy) {
            self.reuse = Reuse::of(&routed.cluster, &relay.lease, method, &response.head, ended_ms);
        }
        let is_endpoints_fault = self.call.as_ref().is_some_and(Ongoing::is_endpoints_fault);
        let is_5xx = response.head.status >= 500;
        if is_endpoints_fault {
            routed.cluster.record(&relay.lease.endpoint, env.now_ms(), Outcome::Failure5xx);
        } else if !is_5xx {
            // A 5xx was recorded when it arrived, and is no success now.
            routed.served(&relay.lease, ended_ms, env.now_ms());
        }
        let next = match (relay.may_stay, is_uploaded) {
            (true, true) => Disposition::KeepAlive,
            // A client that intended to stay may be sending its next request.
            (false, true) if !self.request.head.keep_alive && !self.leaves_body() => Disposition::Close,
            _ => self.linger(),
        };
        drop(relay);
        self.done(next);
    }

    /// The response was cut off.
    pub(super) fn handle_relay_failure(&mut self, env: &Env<'_>, error: Error) {
        if let Phase::Upstream(routed, UpstreamPhase::Relay(relay)) = &self.phase
            && error.side == Side::Upstream
        {
            routed.cluster.record(&relay.lease.endpoint, env.now_ms(), connection_outcome(&error));
        }
        self.fail(env, error);
    }

    /// Ends the request with an error. Sends a response, if there is one to send and the client can still get it.
    pub(crate) fn fail(&mut self, env: &Env<'_>, error: Error) {
        // Whatever the error is, the request ends because the drain has taken too long.
        let error = if env.is_drain_over { Error::internal(Reason::Draining) } else { error };
        if self.respond_without_error_backend(env, &error) {
            return;
        }
        // A request without a complete head still counts: a client sent bytes, and gets an answer.
        self.record.begin(env.now_us);
        self.record.reason = Some(error.reason);
        self.end_try(env, Some(error.reason));
        if env.http.request_id.is_some() && self.record.request_id.is_none() {
            // Its head is not complete.
            self.record.request_id = Some(request_id::random());
        }
        env.listener.count(error.reason);
        let (listener, client) = (&env.listener.plan.policy.name, env.connection_info.who.client);
        tracing::debug!(listener, %client, %error, "request failed");
        let status = match error.reason {
            reason @ (Reason::ExternalAuthFailed | Reason::RateLimitFailed) => {
                self.status_without_answer(env, reason).or_else(|| respond::status(&error))
            }
            reason @ (Reason::RateLimited | Reason::ConcurrencyLimited) => {
                self.status_above_limit(env, reason).or_else(|| respond::status(&error))
            }
            _ => respond::status(&error),
        };
        let endpoints = self.response.as_ref().map(|response| response.head.status);
        let call = self.call.as_mut().map(|call| call.fail(error.reason, status, endpoints));
        let code = h2::code(&error);
        let sent = self.sent();
        if let (Some(call), true) = (&call, sent > 0 && error.side != Side::Downstream) {
            let is_cut_short = self.response.as_mut().is_some_and(|response| response.download.cut_short(call));
            if is_cut_short {
                return self.start_response(env, self.linger(), code);
            }
            return self.done(Disposition::Reset(code));
        }
        if error.reason == Reason::NotHttp {
            // The client's bytes are still read, but get no answer.
            return self.done(Disposition::Linger);
        }
        let Some(status) = status.filter(|_| sent == 0 || faults::is_injected(InjectedFault::AnswersTwice)) else {
            return self.done(Disposition::Reset(code));
        };
        let may_stay = self.may_stay(env) && error.side != Side::Downstream;
        if let Some(call) = call {
            return self.respond_to_call(env, &call, may_stay, code);
        }
        self.respond_to_failure(env, &error, status, may_stay, code);
    }

    /// Begins our own response to a gRPC call.
    pub(super) fn respond_to_call(&mut self, env: &Env<'_>, call: &grpc::Answer, may_stay: bool, code: ErrorCode) {
        self.record.status = Some(200);
        let keep_alive = self.keeps_alive(may_stay);
        let is_h2 = self.is_h2();
        let response = self.response.get_or_insert_with(|| env.storage.response());
        let additions = additions(env, &self.record, &self.request, (self.quotas.as_deref(), self.cookies.as_deref()));
        let version = self.request.head.version;
        respond::write_call(response.download.start_own(is_h2), call, version, keep_alive, &additions);
        response.download.send_once();
        self.start_response(env, if keep_alive { Disposition::KeepAlive } else { self.linger() }, code);
    }

    /// Begins the fixed response of a route.
    fn respond_fixed(&mut self, env: &Env<'_>, number: usize, route: &Route) {
        let RouteAction::Respond(FixedResponse { status, headers, .. }) = &route.to else { return };
        let own = Own { status: *status, content: env.listener.plan.pages.fixed(number), field: None, headers };
        self.respond(env, &own, self.may_stay(env), ErrorCode::INTERNAL_ERROR);
    }

    /// Begins our own response.
    pub(super) fn respond(&mut self, env: &Env<'_>, own: &Own<'_>, may_stay: bool, code: ErrorCode) {
        self.record.status = Some(own.status);
        let keep_alive = self.keeps_alive(may_stay);
        let RequestHead { method, version, .. } = self.request.head;
        let to = headers::ResponseContext { method, version, keep_alive, web: None };
        let is_h2 = self.is_h2();
        let response = self.response.get_or_insert_with(|| env.storage.response());
        let additions = additions(env, &self.record, &self.request, (self.quotas.as_deref(), self.cookies.as_deref()));
        if let Some(body) = respond::write_own(response.download.start_own(is_h2), own, &to, &additions) {
            response.download.put_body(&body);
        }
        response.download.send_once();
        self.start_response(env, if keep_alive { Disposition::KeepAlive } else { Disposition::Linger }, code);
    }

    pub(super) fn start_response(&mut self, env: &Env<'_>, then: Disposition, code: ErrorCode) {
        self.deadline_ms = Some(env.stalls_at_ms());
        self.phase = Phase::Respond { then, code };
    }

    pub(super) fn done(&mut self, next: Disposition) {
        self.deadline_ms = self.deadline_ms.filter(|_| faults::is_injected(InjectedFault::KeepsDeadline));
        self.phase = Phase::Done(next);
    }

    /// The response is complete, and the client may still be sending. A gRPC client treats the status of its call as the end, and needs no
    /// time.
    fn linger(&self) -> Disposition {
        if self.is_h2() && self.call.is_some() { Disposition::Close } else { Disposition::Linger }
    }

    /// Whether it arrived over HTTP/2.
    pub(super) fn is_h2(&self) -> bool {
        self.request.head.version == Version::Http2
    }

    /// Whether the connection may carry another request, as far as this side is concerned.
    pub(super) fn may_stay(&self, env: &Env<'_>) -> bool {
        let max = env.http.limits.requests_per_connection_max;
        let is_ending = env.is_ending && !faults::is_injected(InjectedFault::StaysWhenEnding);
        let max = max.filter(|_| !faults::is_injected(InjectedFault::ForgetsMax));
        let is_outdated = env.connection_info.secured.as_ref().is_some_and(|secured| secured.is_outdated());
        let may_stay = !is_ending && !is_outdated && self.may_stay_after_interception();
        may_stay && max.is_none_or(|max| env.requests_before + u64::from(self.record.has_head) < max)
    }

    pub(super) fn keeps_alive(&self, may_stay: bool) -> bool {
        may_stay && self.upload.is_read() && self.request.head.keep_alive
    }
}

/// What the choice of an endpoint and the response need of a request's head.
struct Prepared {
    key: u64,
    preferred: Option<usize>,
    is_https: bool,
}

/// Whether the request may use its connection.
fn is_for(secured: &Secured, listener: &ListenerPlan, request: &RequestHead, buffer: &[u8]) -> bool {
    let host = HostText::new(request.authority.get(buffer));
    // A connection of its own would not end here. Clients that reuse this one, whose certificate has the name, make one when they get 421.
    listener.router.passthrough(Some(host.as_str())).is_none()
        && secured.serves(host.as_str(), &listener.router, listener.tls.as_ref())
}

/// The known properties of the client.
pub(super) fn client<'e>(env: &Env<'e>) -> Client<'e> {
    env.connection_info.client(env.http)
}

/// Whether the connection comes from a trusted proxy.
fn is_trusted(env: &Env<'_>) -> bool {
    env.connection_info.is_of_trusted(env.http)
}

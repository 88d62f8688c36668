//! The stage at which a service is asked whether the request may use its route.
//!
//! If the service gets the body, that is held back first ([`Action::HoldBody`]), as far as the policy says. Then the service is asked
//! ([`Action::Ask`]). A request that may pass goes on to its destination; what was held back of its body is sent before the rest.

use std::rc::Rc;
use std::time::Duration;

use model::Satisfy;

use super::ask::{Subject, view};
use super::hold::{HeldBody, Holding};
use super::intercept::Replaced;
use super::*;
use crate::external_auth::cache::Key;
use crate::external_auth::{Authorizer, Grant, Refusal, Verdict, sign_in};
use crate::http::pages::Page;
use crate::http::respond::Content;

/// A request that a service has to allow.
pub(crate) struct Authorizing {
    /// The route's index in the listener.
    pub(super) number: usize,
    authorizer: Arc<Authorizer>,
    /// What is remembered of the answer.
    key: Option<Key>,
}

impl Authorizing {
    /// Whether the service takes the beginning of a body that is too long for it.
    pub(super) fn takes_a_part(&self) -> bool {
        self.authorizer.policy.body.is_some_and(|body| body.partial)
    }
}

impl Exchange {
    /// Asks about the request, unless the answer is known.
    pub(super) fn authorize(&mut self, env: &Env<'_>, number: usize, route: &Route) {
        if env.is_drain_over {
            return self.fail(env, Error::internal(Reason::Draining));
        }
        // Every route with a policy has an authorizer. If one had none, nothing would pass.
        let Some(authorizer) = env.listener.plan.external_auth.of(number).cloned() else {
            return self.fail(env, Error::internal(Reason::Internal));
        };
        // It would be asked about without end: the service that this installation asks is behind this very route, or behind one that leads here.
        let Request { head, bytes, .. } = &self.request;
        let asked = env.listener.clusters.get(authorizer.policy.to.0);
        if asked.is_some_and(|cluster| cluster.has_sent(head, bytes)) {
            return self.fail(env, Error::internal(Reason::LoopDetected));
        }
        let client = stages::client(env);
        self.swap_credentials();
        let key = authorizer.cache_key(route, &view(&self.request, env, &client));
        self.swap_credentials();
        if let Some(verdict) = key.and_then(|key| env.remembered.find(&key, env.now_ms())) {
            authorizer.strip(&mut self.request);
            return self.judged(env, number, route, &verdict);
        }
        let holds = match (self.request.head.body, authorizer.policy.body) {
            (Body::None, _) | (_, None) => None,
            (body, Some(held)) => Some((body, held)),
        };
        let authorizing = Box::new(Authorizing { number, authorizer, key });
        let Some((body, held)) = holds else { return self.ask_for_authorization(env, authorizing) };
        let max = super::body::body_bytes_max(env, Some(route));
        if let Body::Length(length) = body
            && (max.is_some_and(|max| length > max) || !held.partial && length > held.bytes_max as u64)
        {
            return self.fail(env, Error::downstream(Reason::BodyTooLarge));
        }
        self.upload.start(Framing::of(self.is_h2(), body), Framing::H1(Body::None), max);
        self.hold(env, HeldBody::new(held.bytes_max, 0, None), Holding::Authorization(authorizing));
    }

    pub(super) fn ask_for_authorization(&mut self, env: &Env<'_>, authorizing: Box<Authorizing>) {
        let Some(route) = env.route(authorizing.number) else {
            return self.fail(env, Error::internal(Reason::Internal));
        };
        let wait = self.wait_for(env, route, authorizing.authorizer.policy.timeout);
        self.swap_credentials();
        let held = self.held.as_deref().map(|held| {
            let first = held.data.get(..held.bytes_max);
            (
                first.unwrap_or(&held.data),
                first.is_none_or(|first| first.len() == held.data.len()) && self.upload.is_read(),
            )
        });
        let client = Client { request_id: self.record.request_id.as_deref(), ..stages::client(env) };
        let view = view(&self.request, env, &client);
        let who = env.connection_info.who;
        let question = authorizing.authorizer.question(env.listener, &view, who, held, wait.left_ms(env));
        self.swap_credentials();
        let question = match question {
            Ok(question) => question,
            Err(error) => return self.fail(env, error),
        };
        // From now on, the endpoint gets these from the service or not at all.
        authorizing.authorizer.strip(&mut self.request);
        self.ask(env, question, wait, Subject::Authorization(authorizing));
    }

    /// The service has answered after this time, or has not. `is_cut_short`: because the caller does not wait as long as the service may take.
    pub(super) fn handle_authorized(
        &mut self,
        env: &Env<'_>,
        authorizing: Authorizing,
        answer: Result<(Verdict, Duration), Error>,
        took_us: u64,
        is_cut_short: bool,
    ) {
        let Authorizing { number, authorizer, key } = authorizing;
        self.record.handle_authorized(took_us);
        let Some(route) = env.route(number) else { return self.fail(env, Error::internal(Reason::Internal)) };
        let passes_all = faults::is_injected(InjectedFault::PassesRefused);
        match answer {
            Ok((verdict, ttl)) => {
                let verdict = Rc::new(verdict);
                if let (Some(key), Some(cache)) = (&key, &authorizer.policy.cache) {
                    env.remembered.put(key, cache, &verdict, ttl, env.now_ms());
                }
                self.judged(env, number, route, &verdict);
            }
            // Without an answer, everybody would pass whose credentials are wrong.
            Err(error)
                if (is_cut_short || !authorizer.policy.fail_open || route.policy.satisfy == Satisfy::Any)
                    && !passes_all =>
            {
                let source = std::io::Error::other(error);
                self.fail(env, Error::internal(Reason::ExternalAuthFailed).because(source));
            }
            Err(error) => {
                env.listener.count(Reason::ExternalAuthFailed);
                self.record.handle_besides(Reason::ExternalAuthFailed);
                let listener = &env.listener.plan.policy.name;
                tracing::debug!(listener, %error, "external authorization failed, and the request passes");
                self.granted(env, number, route, &Grant::default());
            }
        }
    }

    /// The service says this, or has said it before.
    fn judged(&mut self, env: &Env<'_>, number: usize, route: &Route, verdict: &Verdict) {
        let refusal = match verdict {
            Verdict::Allowed(grant) => return self.granted(env, number, route, grant),
            Verdict::Denied(_) if faults::is_injected(InjectedFault::PassesRefused) => {
                return self.granted(env, number, route, &Grant::default());
            }
            Verdict::Denied(refusal) => self.of_both(env, (**refusal).clone()),
        };
        let sign_in = route.policy.external_auth.as_ref().and_then(|policy| policy.sign_in.as_ref());
        let refusal = match sign_in {
            // A call cannot follow a redirect.
            Some(page) if refusal.status == 401 && self.call.is_none() => {
                let client = stages::client(env);
                sign_in::redirect(page, &view(&self.request, env, &client), refusal)
            }
            _ => refusal,
        };
        self.refuse(env, refusal);
    }

    /// The refusal of a request whose credentials were not enough either. As with nginx, 401 comes before 403, and says all that would have been
    /// enough.
    fn of_both(&mut self, env: &Env<'_>, refusal: Refusal) -> Refusal {
        let Some(why) = self.take_unproven() else { return refusal };
        let is_401 = respond::status(&Error::internal(why)) == Some(401);
        let mut refusal = match refusal.status {
            403 if is_401 => Refusal { status: 401, headers: Vec::new(), content_type: None, body: None },
            _ => refusal,
        };
        if let Some(challenge) = self.challenge(env, refusal.status, why) {
            refusal.headers.push(("www-authenticate".to_owned(), challenge.to_owned()));
        }
        refusal
    }

    fn granted(&mut self, env: &Env<'_>, number: usize, route: &Route, grant: &Grant) {
        self.unproven = None;
        grant.apply(&mut self.request);
        self.cookies = route.policy.external_auth.as_deref().and_then(|policy| Cookies::of(policy, grant));
        if route.policy.global_rate_limit.is_some() {
            return self.limit(env, number, route);
        }
        self.pass(env, number, route);
    }

    /// Passes a refusal on to the client.
    fn refuse(&mut self, env: &Env<'_>, refusal: Refusal) {
        let Refusal { status, headers, content_type, body } = refusal;
        let (reason, may_stay, code) = (Reason::ExternalAuthDenied, self.may_stay(env), ErrorCode::INTERNAL_ERROR);
        self.record.reason = Some(reason);
        env.listener.count(reason);
        if let Some(call) = self.call.as_mut().map(|call| call.fail(reason, Some(status), None)) {
            return self.respond_to_call(env, &call, may_stay, code);
        }
        if let Some(policy) = self.intercepts(env, status).filter(|policy| policy.to.is_some()) {
            let is_kept =
                |name: &str| ["www-authenticate", "set-cookie"].iter().any(|kept| name.eq_ignore_ascii_case(kept));
            let kept = headers.into_iter().filter(|(name, _)| is_kept(name)).collect();
            let replaced = Replaced { status, word: respond::word(reason), kept, may_stay, code };
            return self.replace(env, policy, replaced);
        }
        let page = body.map(|body| Page { content_type: content_type.unwrap_or_default().into(), body: body.into() });
        let content = match &page {
            Some(page) => Content::Page(page),
            None => self.error_content(env, status, respond::word(reason)),
        };
        self.respond(env, &Own { status, content, field: None, headers: &headers }, may_stay, code);
    }

    /// What a client gets while the service of its route does not answer.
    pub(super) fn status_without_answer(&self, env: &Env<'_>, reason: Reason) -> Option<u16> {
        let number = self.record.route?;
        if reason == Reason::RateLimitFailed {
            return Some(env.route(number)?.policy.global_rate_limit.as_ref()?.failure_status);
        }
        Some(env.listener.plan.external_auth.of(number)?.policy.failure_status)
    }
}

//! The wait for a service that is asked about the request ([`Action::Ask`]), once, however often the request is sent to endpoints afterwards.
//!
//! `authorize` and `limit` decide what is asked, and what becomes of the request then.

use super::authorize::Authorizing;
use super::*;
use crate::question::{Question, Reply};

/// A request about which a service is asked.
pub(crate) struct Asking {
    /// When the wait for the answer began, in microseconds.
    since_us: u64,
    /// Present until it is asked.
    question: Option<Box<Question>>,
    /// The caller waits for a shorter time than the service has (`grpc-timeout`). Then nothing passes without an answer, also where the policy
    /// fails open: otherwise callers could choose a time in which no service answers.
    is_cut_short: bool,
    about: Subject,
}

/// How long an answer is waited for.
pub(super) struct Wait {
    until_ms: u64,
    is_cut_short: bool,
}

impl Wait {
    /// The time that is left, in milliseconds; at least 1.
    pub(super) fn left_ms(&self, env: &Env<'_>) -> u64 {
        self.until_ms.saturating_sub(env.now_ms()).max(1)
    }
}

/// What the service is asked about.
pub(super) enum Subject {
    Authorization(Box<Authorizing>),
    /// A limit, of the route with this index in the listener.
    RateLimit(usize),
}

impl Exchange {
    /// The end of the request's time, if it has one.
    pub(super) fn ends_ms(&self, route: &Route) -> Option<u64> {
        let timeouts = route.timeout.into_iter().chain(self.call.as_ref().and_then(|call| call.timeout));
        Some((self.record.begun_us()? / 1000).saturating_add(timeouts.map(crate::millis).min()?))
    }

    /// How long an answer is waited for: the service has this much time, if neither the route nor the caller has less.
    pub(super) fn wait_for(&self, env: &Env<'_>, route: &Route, timeout: std::time::Duration) -> Wait {
        let until_ms = env.now_ms().saturating_add(crate::millis(timeout));
        Wait {
            until_ms: self.ends_ms(route).map_or(until_ms, |ends_ms| ends_ms.min(until_ms)),
            is_cut_short: self.call_ends_ms().is_some_and(|ends_ms| ends_ms < until_ms),
        }
    }

    /// Asks.
    pub(super) fn ask(&mut self, env: &Env<'_>, question: Question, wait: Wait, about: Subject) {
        let Wait { until_ms, is_cut_short } = wait;
        let question = Some(Box::new(question));
        self.phase = Phase::Ask(Box::new(Asking { since_us: env.now_us, question, is_cut_short, about }));
        self.deadline_ms = Some(until_ms);
    }

    /// When the caller stops waiting, if it says so.
    fn call_ends_ms(&self) -> Option<u64> {
        let timeout = self.call.as_ref()?.timeout?;
        Some((self.record.begun_us()? / 1000).saturating_add(crate::millis(timeout)))
    }

    /// The question that it waits for, once.
    pub(crate) fn take_question(&mut self) -> Option<Box<Question>> {
        let Phase::Ask(asking) = &mut self.phase else { return None };
        asking.question.take()
    }

    /// The service has answered, or has not.
    pub(crate) fn handle_reply(&mut self, env: &Env<'_>, reply: Result<Reply, Error>) {
        if !matches!(self.phase, Phase::Ask(_)) {
            return;
        }
        let Phase::Ask(asking) = std::mem::take(&mut self.phase) else { return };
        let Asking { since_us, is_cut_short, about, .. } = *asking;
        self.deadline_ms = None;
        let took_us = env.now_us.saturating_sub(since_us);
        match (about, reply) {
            (Subject::Authorization(authorizing), Ok(Reply::Authorization(verdict, ttl))) => {
                self.handle_authorized(env, *authorizing, Ok((verdict, ttl)), took_us, is_cut_short);
            }
            (Subject::Authorization(authorizing), Err(error)) => {
                self.handle_authorized(env, *authorizing, Err(error), took_us, is_cut_short);
            }
            (Subject::RateLimit(number), Ok(Reply::RateLimit(verdict))) => {
                self.handle_limited(env, number, Ok(verdict), took_us, is_cut_short);
            }
            (Subject::RateLimit(number), Err(error)) => {
                self.handle_limited(env, number, Err(error), took_us, is_cut_short);
            }
            (_, Ok(_)) => self.fail(env, Error::internal(Reason::Internal)),
        }
    }
}

/// What policies read of a request.
pub(super) fn view<'v>(request: &'v Request, env: &Env<'_>, client: &'v Client<'v>) -> RequestView<'v> {
    let Request { head, bytes, .. } = request;
    RequestView { head, buffer: bytes, target: request.target(), paths: env.http.paths, client }
}

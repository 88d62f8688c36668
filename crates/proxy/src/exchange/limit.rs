//! The stage at which a service says whether the request is within the limits that it counts for all instances. The limit of the route itself
//! was checked long before, so the service is not asked about requests that exceed that. What clients get above a limit of the route.

use super::ask::{Subject, view};
use super::*;
use crate::global_rate_limit::{self, Counted, Verdict};
use crate::policy::rate_headers::Quotas;

impl Exchange {
    /// Asks whether the request is within the limits. If there is nothing to ask, it goes on to its destination.
    pub(super) fn limit(&mut self, env: &Env<'_>, number: usize, route: &Route) {
        if env.is_drain_over {
            return self.fail(env, Error::internal(Reason::Draining));
        }
        let Some(policy) = &route.policy.global_rate_limit else {
            return self.fail(env, Error::internal(Reason::Internal));
        };
        let wait = self.wait_for(env, route, policy.timeout);
        let client = stages::client(env);
        let view = view(&self.request, env, &client);
        let counted = Counted { view: &view, bearer: self.bearer.as_deref() };
        let who = env.connection_info.who;
        match global_rate_limit::question(policy, env.listener, &counted, who, wait.left_ms(env)) {
            Ok(Some(question)) => self.ask(env, question, wait, Subject::RateLimit(number)),
            Ok(None) => self.pass(env, number, route),
            Err(error) => self.fail(env, error),
        }
    }

    /// The service has answered after this time, or has not. `is_cut_short`: because the caller does not wait as long as the service may take.
    pub(super) fn handle_limited(
        &mut self,
        env: &Env<'_>,
        number: usize,
        answer: Result<Verdict, Error>,
        took_us: u64,
        is_cut_short: bool,
    ) {
        self.record.handle_limited(took_us);
        let of_route = env.route(number).and_then(|route| Some((route, route.policy.global_rate_limit.as_deref()?)));
        let Some((route, policy)) = of_route else { return self.fail(env, Error::internal(Reason::Internal)) };
        let passes_all = faults::is_injected(InjectedFault::PassesOverLimit);
        match answer {
            Ok(verdict) => {
                if !policy.headers.is_none() {
                    let quotas: &mut Quotas = self.quotas.get_or_insert_default();
                    verdict.quotas.into_iter().for_each(|quota| quotas.add(policy.headers, quota));
                }
                if verdict.is_over && !passes_all {
                    let error =
                        Error { retry_after_s: verdict.retry_after_s, ..Error::internal(Reason::GlobalRateLimited) };
                    return self.fail(env, error);
                }
            }
            Err(error) if (is_cut_short || !policy.fail_open) && !passes_all => {
                let source = std::io::Error::other(error);
                return self.fail(env, Error::internal(Reason::RateLimitFailed).because(source));
            }
            Err(error) => {
                env.listener.count(Reason::RateLimitFailed);
                self.record.handle_besides(Reason::RateLimitFailed);
                let listener = &env.listener.plan.policy.name;
                tracing::debug!(listener, %error, "the global rate limit failed, and the request passes");
            }
        }
        self.pass(env, number, route);
    }

    /// What a client gets above a limit that its route counts; `None` if the limit is the listener's.
    pub(super) fn status_above_limit(&self, env: &Env<'_>, reason: Reason) -> Option<u16> {
        let policy = &env.route(self.record.route?)?.policy;
        if reason == Reason::ConcurrencyLimited {
            return Some(policy.concurrency_limit.as_ref()?.terms.status);
        }
        Some(policy.rate_limit.as_ref()?.terms.status)
    }

    /// Nothing stands between the request and its destination.
    pub(super) fn pass(&mut self, env: &Env<'_>, number: usize, route: &Route) {
        let client = stages::client(env);
        match policy::destination(env.listener, number, route, &view(&self.request, env, &client)) {
            Ok(destination) => self.proceed(env, number, route, destination),
            Err(error) => self.fail(env, error),
        }
    }
}

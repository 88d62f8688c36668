//! Who a request is from, as far as its token tells; and its route, if that depends on it.

use super::*;

impl Exchange {
    /// The number of the route, who the request is from, and whether the route is only for others.
    pub(super) fn route_by_claims(
        &self,
        env: &Env<'_>,
        verifier: &Verifier,
    ) -> (Option<usize>, Option<Identity>, bool) {
        let Request { head, bytes, normal_target, .. } = &self.request;
        let target = normal_target.as_deref().unwrap_or(head.path.get(bytes));
        let identity = self.identify(env, verifier);
        let bearer = match &identity {
            Identity::Nobody => Bearer::Nobody,
            Identity::Known(verified) => Bearer::Known(verified),
            // Nobody knows whether the conditions are met. The route refuses it, as no other route may serve what this one would have refused.
            Identity::Refused(_) => Bearer::Unclear,
        };
        match env.listener.plan.router.route_of(head, bytes, target, bearer) {
            Found::Route(number) => (Some(number), Some(identity), false),
            Found::ForOthers(number) => (Some(number), Some(identity), true),
            Found::Nothing => (None, None, false),
        }
    }

    /// Who the request is from.
    pub(super) fn identify(&self, env: &Env<'_>, verifier: &Verifier) -> Identity {
        let Request { head, bytes, .. } = &self.request;
        let from = || rate_limit::network(client_address::client_ip(head, bytes, &stages::client(env)));
        let bearing = Bearing { unix_ms: (env.unix_ms)(), now_ms: env.now_ms(), client: &from };
        verifier.identify(&self.request, &bearing, env.tokens)
    }
}

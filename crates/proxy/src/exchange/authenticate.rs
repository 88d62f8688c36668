//! The stage at which a request proves what its route demands (`auth`), and what becomes of it if one of several proofs is enough
//! ([`Satisfy::Any`]): an address, credentials, or the word of a service.

use model::Satisfy;
use wire::message::Span;

use super::*;

/// A request whose credentials were not enough, or may turn out not to be, and about which a service is asked then.
#[derive(Debug)]
pub(super) struct Unproven {
    /// Why they were not; `None` before that is known.
    why: Option<Reason>,
    /// What was taken out of the request, for the service: it may be what the service wants to see.
    fields: Vec<Field>,
    path: Span,
    normal_target: Option<Vec<u8>>,
}

impl Exchange {
    /// The destination of a request whose address is all that it needs. The endpoint learns nothing of other proofs, and no credentials reach it
    /// that are not for it.
    ///
    /// # Errors
    /// Those of [`policy::destination`].
    pub(super) fn proven(&mut self, env: &Env<'_>, number: usize, route: &Route) -> Result<Destination, Error> {
        if let Some(authenticator) = env.listener.plan.auth.of(number) {
            drop(authenticator.take(&mut self.request));
        }
        if let Some(authorizer) = env.listener.plan.external_auth.of(number) {
            authorizer.strip(&mut self.request);
        }
        self.admitted(env, number, route)
    }

    /// Takes the credentials out of the request. Returns its destination if they are right, or if a service may still let it pass. `identity`: the
    /// token was looked at before. Nobody passes a route that `is_for_others`.
    ///
    /// # Errors
    /// Those of [`Authenticator::judge`], [`Exchange::authenticate_token`] and [`policy::destination`].
    pub(super) fn authenticate(
        &mut self,
        env: &Env<'_>,
        number: usize,
        route: &Route,
        identity: Option<Identity>,
        is_for_others: bool,
    ) -> Result<Destination, Error> {
        if route.policy.satisfy == Satisfy::Any && route.policy.external_auth.is_some() && !is_for_others {
            let Request { head, normal_target, .. } = &self.request;
            let (fields, normal_target) = (head.fields.clone(), normal_target.clone());
            self.unproven = Some(Box::new(Unproven { why: None, fields, path: head.path, normal_target }));
        }
        let judged = self.judge(env, number, route, identity, is_for_others);
        judged.or_else(|error| self.ask_instead(error))
    }

    fn judge(
        &mut self,
        env: &Env<'_>,
        number: usize,
        route: &Route,
        identity: Option<Identity>,
        is_for_others: bool,
    ) -> Result<Destination, Error> {
        // Every route with a policy has an authenticator. If one had none, nobody would pass.
        let authenticator = env.listener.plan.auth.of(number).ok_or(Error::internal(Reason::Internal))?;
        if let Some(verifier) = authenticator.verifier() {
            // Conditions on claims are about the token of the listener, which may not be that of this route.
            let of_listener = env.listener.plan.auth.before_routing();
            let identity = identity.filter(|_| of_listener.is_some_and(|of| std::ptr::eq(of, verifier)));
            // Nothing is no proof.
            let is_demanded = is_for_others || !verifier.is_optional() || route.policy.satisfy == Satisfy::Any;
            self.authenticate_token(env, verifier, identity, (is_demanded, is_for_others))?;
            return self.authenticated(env, number, route);
        }
        if is_for_others {
            return Err(Error::internal(Reason::Internal));
        }
        let from = client_address::client_ip(&self.request.head, &self.request.bytes, &stages::client(env));
        let taken = authenticator.take(&mut self.request);
        match authenticator.judge(taken, rate_limit::network(from))? {
            Judged::From(client) => self.grant(env, number, route, authenticator, &client),
            Judged::Ask(user, check) => {
                let authenticator = authenticator.clone();
                Ok(Destination::Check(Box::new(Checking { number, authenticator, user, check: Some(check) })))
            }
        }
    }

    /// The destination of a request from this client.
    ///
    /// # Errors
    /// Those of [`policy::destination`].
    fn grant(
        &mut self,
        env: &Env<'_>,
        number: usize,
        route: &Route,
        authenticator: &Authenticator,
        name: &str,
    ) -> Result<Destination, Error> {
        authenticator.grant(&mut self.request, name);
        self.authenticated(env, number, route)
    }

    /// Whether the request may pass with its token, which is demanded or not. If so, the endpoint gets what the token says.
    ///
    /// # Errors
    /// [`Reason::CredentialsMissing`], [`Reason::ClaimsDenied`], and those of [`Verifier::identify`].
    fn authenticate_token(
        &mut self,
        env: &Env<'_>,
        verifier: &Verifier,
        identity: Option<Identity>,
        (is_demanded, is_for_others): (bool, bool),
    ) -> Result<(), Error> {
        let identity = identity.unwrap_or_else(|| self.identify(env, verifier));
        verifier.strip(&mut self.request);
        match identity {
            Identity::Refused(error) => Err(error),
            Identity::Nobody if is_demanded => Err(Error::internal(Reason::CredentialsMissing)),
            Identity::Nobody => Ok(()),
            Identity::Known(_) if is_for_others => Err(Error::internal(Reason::ClaimsDenied)),
            Identity::Known(verified) => {
                for (name, value) in verified.fields() {
                    auth::present::add_identity(&mut self.request, name, value);
                }
                self.bearer = Some(verified);
                Ok(())
            }
        }
    }

    /// The destination of a request that has proved what the route demands.
    ///
    /// # Errors
    /// Those of [`policy::destination`].
    fn authenticated(&mut self, env: &Env<'_>, number: usize, route: &Route) -> Result<Destination, Error> {
        self.unproven = None;
        let Some(authorizer) = env.listener.plan.external_auth.of(number) else {
            // Every route with a service has an authorizer. If one had none, nothing would pass.
            return match route.policy.external_auth {
                Some(_) => Err(Error::internal(Reason::Internal)),
                None => self.admitted(env, number, route),
            };
        };
        match route.policy.satisfy {
            Satisfy::All => Ok(Destination::Authorize),
            Satisfy::Any => {
                authorizer.strip(&mut self.request);
                self.admitted(env, number, route)
            }
        }
    }

    /// The destination of a request that needs no further proof.
    ///
    /// # Errors
    /// Those of [`policy::destination`].
    fn admitted(&self, env: &Env<'_>, number: usize, route: &Route) -> Result<Destination, Error> {
        if route.policy.global_rate_limit.is_some() {
            return Ok(Destination::Limit);
        }
        let client = stages::client(env);
        policy::destination(env.listener, number, route, &ask::view(&self.request, env, &client))
    }

    /// The check of the request's password is over.
    pub(crate) fn handle_checked(&mut self, env: &Env<'_>, checked: Result<bool, Error>) {
        if !matches!(self.phase, Phase::Authenticate(_)) {
            return;
        }
        let Phase::Authenticate(checking) = std::mem::take(&mut self.phase) else { return };
        let Checking { number, authenticator, user, .. } = *checking;
        self.deadline_ms = None;
        self.record.handle_checked(env.now_us);
        let passes = |is_right| is_right || faults::is_injected(InjectedFault::PassesWrongPasswords);
        let is_right = checked.and_then(|is_right| if passes(is_right) { Ok(()) } else { Err(auth::invalid()) });
        let Some(route) = env.route(number) else { return self.fail(env, Error::internal(Reason::Internal)) };
        let destination = is_right.and_then(|()| self.grant(env, number, route, &authenticator, &user));
        match destination.or_else(|error| self.ask_instead(error)) {
            Ok(destination) => self.proceed(env, number, route, destination),
            Err(error) => self.fail(env, error),
        }
    }

    /// What becomes of a request whose credentials are not enough: the service decides, if one of both is enough.
    ///
    /// # Errors
    /// The same, if there is no service, or if this says nothing about the credentials: passwords that nobody can check now are not wrong.
    fn ask_instead(&mut self, error: Error) -> Result<Destination, Error> {
        let is_refusal = matches!(respond::status(&error), Some(401 | 403));
        match self.unproven.as_deref_mut().filter(|_| is_refusal) {
            Some(unproven) => {
                unproven.why = Some(error.reason);
                Ok(Destination::Authorize)
            }
            None => Err(error),
        }
    }

    /// Puts the credentials of a request about which a service is asked back into it, or takes them out again: only the question has them.
    pub(super) fn swap_credentials(&mut self) {
        let Some(Unproven { fields, path, normal_target, .. }) = self.unproven.as_deref_mut() else { return };
        std::mem::swap(&mut self.request.head.fields, fields);
        std::mem::swap(&mut self.request.head.path, path);
        std::mem::swap(&mut self.request.normal_target, normal_target);
    }

    /// Why the credentials of the request were not enough, now that the service has decided.
    pub(super) fn take_unproven(&mut self) -> Option<Reason> {
        self.unproven.take()?.why
    }
}

//! Our own response to a request that has failed.

use super::intercept::Replaced;
use super::*;
use crate::http::respond::Content;

impl Exchange {
    /// Begins the response with this status to a request that has failed, or asks the error backend for one.
    pub(super) fn respond_to_failure(
        &mut self,
        env: &Env<'_>,
        error: &Error,
        status: u16,
        may_stay: bool,
        code: ErrorCode,
    ) {
        let retry_after = error.retry_after_s.map(|seconds| seconds.to_string());
        let field = retry_after.as_ref().map(|seconds| ("retry-after", seconds.as_bytes()));
        // RFC 9110 section 15.5.2.
        let encodings = self.accepted_encodings(env, error.reason);
        let field = field.or_else(|| Some(("accept-encoding", encodings.as_ref()?.as_bytes())));
        let field = field.or_else(|| Some(("www-authenticate", self.challenge(env, status, error.reason)?.as_bytes())));
        let word = respond::word(error.reason);
        if let Some(policy) = self.intercepts(env, status).filter(|policy| policy.to.is_some()) {
            let told = |value| String::from_utf8_lossy(value).into_owned();
            let kept = field.into_iter().map(|(name, value)| (name.to_owned(), told(value))).collect();
            return self.replace(env, policy, Replaced { status, word, kept, may_stay, code });
        }
        let own = Own { status, content: self.error_content(env, status, word), field, headers: &[] };
        self.respond(env, &own, may_stay, code);
    }

    /// The page for this status, in the form that the client prefers.
    pub(super) fn error_content<'e>(&self, env: &Env<'e>, status: u16, word: Option<&'static str>) -> Content<'e> {
        // A head that is not complete says nothing about the client.
        let fields: &[Field] = if self.record.has_head { &self.request.head.fields } else { &[] };
        env.listener.plan.pages.error(self.record.route, status, word, pages::accept(fields, &self.request.bytes))
    }

    /// What the route demands, if the status says that the request has not met it.
    pub(super) fn challenge<'e>(&self, env: &Env<'e>, status: u16, reason: Reason) -> Option<&'e str> {
        let is_told = status == 401 || matches!(reason, Reason::TokenAudience | Reason::ClaimsDenied);
        let authenticator = env.listener.plan.auth.of(self.record.route.filter(|_| is_told)?)?;
        Some(authenticator.challenge(reason))
    }
}

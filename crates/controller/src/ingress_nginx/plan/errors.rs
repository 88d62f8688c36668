//! Responses that are replaced by those of a default backend.

use std::collections::BTreeSet;

use super::super::value;
use super::Reading;

/// Responses that are replaced by those of a default backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    /// Their statuses.
    pub statuses: Vec<u16>,
    /// The ConfigMap says it, so the default backend of the Ingress is not asked.
    pub is_global: bool,
    /// Responses of endpoints are replaced, too.
    pub of_endpoints: bool,
}

impl Reading<'_> {
    /// Which responses are replaced. What an annotation says replaces what the ConfigMap says.
    pub(super) fn errors(&mut self) -> Option<Errors> {
        let own = self.text("custom-http-errors");
        let listed = own.or_else(|| self.globals.text("custom-http-errors"));
        let statuses: BTreeSet<u16> = listed.into_iter().flat_map(value::words).filter_map(value::status).collect();
        let disabled = self.globals.bool("disable-proxy-intercept-errors", false);
        let of_endpoints = !self.bool("disable-proxy-intercept-errors", disabled);
        let errors = Errors { statuses: statuses.into_iter().collect(), is_global: own.is_none(), of_endpoints };
        if errors.statuses.is_empty() {
            self.idle(&["disable-proxy-intercept-errors"], "without custom-http-errors, it has no effect");
            return None;
        }
        Some(errors)
    }
}

//! The policies of a route without the route: what a TrafficPolicy says about routes that it does not know.

use std::path::Path;
use std::time::Duration;

use model::{FixedResponse, PathMatcher, RoutePolicy};

use super::{ClusterIds, auth, external_auth, global_rate_limit, policy, respond};
use crate::diagnostic::Report;
use crate::raw::RawRoute;

/// What was said.
pub struct RoutePart {
    pub policy: RoutePolicy,
    pub timeout: Option<Duration>,
    pub respond: Option<FixedResponse>,
}

/// Lowers everything except for the conditions and the clusters. The keys that depend on a path, or name a cluster, must be absent, except
/// for `external_auth` and `global_rate_limit`, which name `service`.
pub fn route(raw: &RawRoute, service: &str, report: &mut Report) -> RoutePart {
    let (path, base) = (PathMatcher::Prefix("/".to_owned()), Path::new(""));
    if raw.respond.is_some() {
        policy::refuse_what_no_endpoint_gets("respond", raw, report);
    }
    let mut policy = policy::policy(raw, &path, base, &ClusterIds::of(None), report);
    policy.auth = auth::alone(&raw.auth, report);
    let service = ClusterIds::one(service);
    policy.external_auth = external_auth::alone(&raw.external_auth, &service, report);
    policy.global_rate_limit = global_rate_limit::alone(&raw.global_rate_limit, &service, report);
    RoutePart {
        policy,
        timeout: raw.timeout.as_ref().map(|timeout| timeout.value.0),
        respond: raw.respond.as_ref().map(|written| respond::fixed(&written.value, base, report)),
    }
}

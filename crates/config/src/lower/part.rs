//! The policies of a route without the route: what a TrafficPolicy says about routes that it does not know.

use std::path::Path;
use std::time::Duration;

use model::{FixedResponse, PathMatcher, RoutePolicy, Variable};

use super::{ClusterIds, auth, policy, respond};
use crate::diagnostic::{Report, Wrong};
use crate::raw::RawRoute;

/// What was said.
pub struct RoutePart {
    pub policy: RoutePolicy,
    pub timeout: Option<Duration>,
    pub respond: Option<FixedResponse>,
}

/// Lowers everything except for the conditions and the clusters. The keys that depend on a path, or name a cluster, must be absent.
pub fn route(raw: &RawRoute, report: &mut Report) -> RoutePart {
    let (path, base) = (PathMatcher::Prefix("/".to_owned()), Path::new(""));
    if raw.respond.is_some() {
        policy::refuse_what_no_endpoint_gets("respond", raw, report);
    }
    // No listener of a Gateway gives its requests ids, so it would always be empty.
    for (location, _) in policy::variables(raw).filter(|(_, used)| *used == Variable::RequestId) {
        report.add(location, Wrong::new("`${request_id}` is used, and requests of Gateways have no ids"));
    }
    let mut policy = policy::policy(raw, &path, base, &ClusterIds::of(None), report);
    policy.auth = auth::alone(&raw.auth, report);
    RoutePart {
        policy,
        timeout: raw.timeout.as_ref().map(|timeout| timeout.value.0),
        respond: raw.respond.as_ref().map(|written| respond::fixed(&written.value, base, report)),
    }
}

//! Routes whose requests fail.

use super::{Found, by_reason, first_span, is_failure, is_worth_a_look, only};
use crate::show::shortened;
use crate::status::{RouteRecent, RouteStatus, Status};

/// Reports routes that answer with 5xx or whose gRPC calls fail, all in one finding: an endpoint that is down may have many. Reasons are named if Steelyard made the
/// responses; otherwise endpoints did.
pub(super) fn of_routes(status: &Status, found: &mut Found) {
    // Their 503s are what the operator wants.
    let in_maintenance = |route: &RouteStatus| {
        status.maintenance.iter().any(|of| of.route == route.name && of.listener == route.listener)
    };
    let failing = status.routes.iter().filter(|route| !in_maintenance(route)).filter_map(|route| {
        let is_failing = |of: &&RouteRecent| is_worth_a_look(of.failures(), of.responses);
        Some((route, first_span([&route.recent, &route.latest], |of| Some(of).filter(is_failing))?))
    });
    let mut failing: Vec<_> = failing.collect();
    failing.sort_by_key(|(_, (of, _))| std::cmp::Reverse(of.failures()));
    let Some((first, _)) = failing.first() else { return };
    let each = failing.iter().map(|(route, (of, span))| {
        let reasons = only(&of.refused, is_failure);
        let why = if reasons.is_empty() { String::new() } else { format!(": {}", by_reason(&reasons)) };
        format!(
            "{} of {} ({} of {} requests in the {span}{why})",
            route.name,
            route.listener,
            of.failures(),
            of.responses
        )
    });
    let calls: u64 = failing.iter().map(|(_, (of, _))| of.call_failures).sum();
    let errors: u64 = failing.iter().map(|(_, (of, _))| of.failures()).sum();
    let with = match (calls, errors.saturating_sub(calls)) {
        (0, _) => "5xx",
        (_, 0) => "gRPC errors",
        _ => "5xx and gRPC errors",
    };
    let text = format!(
        "{} answered with {with}: {}",
        if failing.len() == 1 { "a route" } else { "routes" },
        shortened(each, ", ")
    );
    found.wrong("route_errors", &first.listener, text);
}

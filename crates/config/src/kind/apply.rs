//! Puts policies over a route, a cluster, or the limits on clients. The first policy that has a field decides it; later ones are less specific, or newer.

use model::{ClientLimits, Cluster, HeaderChanges, Route, RouteAction};

use super::{ClientsPart, ClusterPart, RoutePart, TrafficPolicy};

/// Puts one field of a policy into a route, a cluster, or the limits on clients.
type Put<Part, To> = fn(&Part, &mut To);

/// The fields of a route, by their keys in the file. What a rule says by the fields and filters of its own kind stays, so this comes before
/// those fields are read, and after the filters.
const ROUTE: &[(&str, Put<RoutePart, Route>)] = &[
    ("timeout", |of, route| route.timeout = of.timeout),
    ("retry", |of, route| route.policy.retry = of.policy.retry.clone()),
    ("request_headers", |of, route| {
        let all = &of.policy.changes.request_headers;
        route.for_each_changes(|changes| changes.request_headers = all.then(&changes.request_headers));
    }),
    ("response_headers", |of, route| {
        let all: &HeaderChanges = &of.policy.changes.response_headers;
        // A response passes the rule first.
        route.for_each_changes(|changes| changes.response_headers = changes.response_headers.then(all));
    }),
    ("all_response_headers", |of, route| route.change_all_responses(&of.policy.own_headers)),
    ("rewrite_responses", |of, route| route.policy.response_rewrite = of.policy.response_rewrite.clone()),
    ("allow", |of, route| route.policy.addresses.allow = of.policy.addresses.allow.clone()),
    ("deny", |of, route| route.policy.addresses.deny = of.policy.addresses.deny.clone()),
    ("auth", |of, route| route.policy.auth = of.policy.auth.clone()),
    ("satisfy", |of, route| route.policy.satisfy = of.policy.satisfy),
    ("rate_limit", |of, route| route.policy.rate_limit = of.policy.rate_limit.clone()),
    ("concurrency_limit", |of, route| route.policy.concurrency_limit = of.policy.concurrency_limit.clone()),
    ("response_bandwidth", |of, route| route.policy.response_bandwidth = of.policy.response_bandwidth),
    ("cors", |of, route| {
        if route.policy.cors.is_none() {
            route.policy.cors = of.policy.cors.clone();
        }
    }),
    ("compress", |of, route| route.policy.compression = of.policy.compression.clone()),
    ("max_body", |of, route| route.policy.body_bytes_max = of.policy.body_bytes_max),
    ("buffer", |of, route| {
        route.policy.request_body.get_or_insert_default().buffer =
            of.policy.request_body.as_ref().and_then(|body| body.buffer);
    }),
    ("decompress", |of, route| {
        route.policy.request_body.get_or_insert_default().decompression =
            of.policy.request_body.as_ref().and_then(|body| body.decompression.clone());
    }),
    ("via", |of, route| route.policy.via = of.policy.via.clone()),
    ("external_auth", |of, route| {
        // The filter of a rule is more specific. The cluster does not exist: the caller replaces it.
        if route.policy.external_auth.is_none() {
            route.policy.external_auth = of.policy.external_auth.clone();
        }
    }),
    ("global_rate_limit", |of, route| route.policy.global_rate_limit = of.policy.global_rate_limit.clone()),
    ("maintenance", |of, route| route.policy.maintenance = of.policy.maintenance),
    ("access_log", |of, route| route.policy.is_unlogged = of.policy.is_unlogged),
    ("tracing", |of, route| route.policy.tracing = of.policy.tracing.clone()),
    ("error_pages", |of, route| route.policy.error_pages = of.policy.error_pages.clone()),
    ("respond", |of, route| {
        if let Some(respond) = &of.respond {
            route.to = RouteAction::Respond(respond.clone());
            // No endpoint gets a request.
            route.policy.mirrors.clear();
        }
    }),
];

/// The same for a cluster.
const CLUSTER: &[(&str, Put<ClusterPart, Cluster>)] = &[
    ("balance", |of, cluster| cluster.algorithm = of.values.algorithm.clone()),
    ("sticky", |of, cluster| cluster.sticky = of.values.sticky.clone()),
    ("health_check", |of, cluster| cluster.health_check = of.values.health_check.clone()),
    ("on_unhealthy", |of, cluster| cluster.closes_on_unhealthy = of.values.closes_on_unhealthy),
    ("outlier", |of, cluster| cluster.outlier = of.values.outlier.clone()),
    ("panic_threshold", |of, cluster| cluster.panic_threshold = of.values.panic_threshold),
    ("zone_threshold", |of, cluster| cluster.zone_threshold = of.values.zone_threshold),
    ("slow_start", |of, cluster| cluster.slow_start = of.values.slow_start),
    ("limits", |of, cluster| cluster.limits = of.values.limits.clone()),
    ("connect_timeout", |of, cluster| cluster.connect_timeout = of.values.connect_timeout),
    ("response_timeout", |of, cluster| cluster.response_timeout = of.values.response_timeout),
    ("idle_timeout", |of, cluster| cluster.idle_timeout = of.values.idle_timeout),
    ("ping", |of, cluster| cluster.ping = of.values.ping),
    ("idle_connections", |of, cluster| cluster.idle_connections_max = of.values.idle_connections_max),
];

/// The same for the limits on clients.
const CLIENTS: &[(&str, Put<ClientsPart, ClientLimits>)] = &[
    ("requests", |of, limits| limits.requests = of.limits.requests.clone()),
    ("request_bandwidth", |of, limits| limits.request_bandwidth = of.limits.request_bandwidth),
    ("response_bandwidth", |of, limits| limits.response_bandwidth = of.limits.response_bandwidth),
];

/// Puts policies over a route that has the filters of its rule and nothing else yet. The caller replaces the file of [`TrafficPolicy::auth`] by
/// what is in the Secret, and the cluster of [`TrafficPolicy::external_auth`] by that of the Service.
pub fn apply_to_route<'p>(policies: impl Iterator<Item = &'p TrafficPolicy> + Clone, route: &mut Route) {
    for (key, put) in ROUTE {
        if let Some(policy) = policies.clone().find(|policy| policy.route.written.contains(key)) {
            put(&policy.route, route);
        }
    }
}

/// Puts policies over a cluster.
pub fn apply_to_cluster<'p>(policies: impl Iterator<Item = &'p TrafficPolicy> + Clone, cluster: &mut Cluster) {
    for (key, put) in CLUSTER {
        if let Some(policy) = policies.clone().find(|policy| policy.cluster.written.contains(key)) {
            put(&policy.cluster, cluster);
        }
    }
}

/// Puts policies over the limits on the clients of a listener that speaks HTTP.
pub fn apply_to_clients<'p>(policies: impl Iterator<Item = &'p TrafficPolicy> + Clone, limits: &mut ClientLimits) {
    for (key, put) in CLIENTS {
        if let Some(policy) = policies.clone().find(|policy| policy.clients.written.contains(key)) {
            put(&policy.clients, limits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape;
    use super::*;

    #[test]
    fn every_field_has_its_place() {
        let check = |fields: &[shape::Field], known: Vec<&str>, table: &str| {
            for field in fields {
                assert!(known.contains(&field.key), "add `{}` to {table}, or leave it out in LEFT_OUT", field.key);
            }
            assert_eq!(fields.len(), known.len(), "{table}");
        };
        check(&shape::route().fields, ROUTE.iter().map(|(key, _)| *key).collect(), "ROUTE");
        check(&shape::cluster().fields, CLUSTER.iter().map(|(key, _)| *key).collect(), "CLUSTER");
        check(&shape::clients().fields, CLIENTS.iter().map(|(key, _)| *key).collect(), "CLIENTS");
    }
}

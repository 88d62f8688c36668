//! The keys that nothing has read: each is reported, unless it says nothing about connections and requests.

use super::super::draft::Became;
use super::super::tree::Unread;

/// Names, statistics, and how Envoy runs itself.
const SAYS_NOTHING: &[&str] = &[
    "@type",
    "access_log_flush_interval",
    "access_log_options",
    "alt_stat_name",
    "always_log_health_check_failures",
    "always_log_health_check_success",
    "cleanup_interval",
    "cluster_name",
    "codec_type",
    "connection_balance_config",
    "decorator",
    "drain_type",
    "dynamic_stats",
    "enable_reuse_port",
    "event_log_path",
    "flush_access_log_on_connected",
    "ignore_health_on_host_removal",
    "ignore_port_in_host_matching",
    "initial_jitter",
    "interval_jitter",
    "interval_jitter_percent",
    "is_optional",
    "max_connections_to_accept_per_socket_event",
    "max_direct_response_body_size_bytes",
    "metadata",
    "name",
    "observability_name",
    // A retry goes to another endpoint if there is one.
    "host_selection_retry_max_attempts",
    "retry_host_predicate",
    "reuse_port",
    "region",
    "runtime_key",
    "runtime_key_prefix",
    "start_child_span",
    "stat_prefix",
    "stream_error_on_invalid_http_message",
    "sub_zone",
    "suppress_envoy_headers",
    "tcp_backlog_size",
    "tcp_fast_open_queue_length",
    "total_weight",
    "track_cluster_stats",
    "track_timeout_budgets",
    "traffic_direction",
    "validate_clusters",
    "virtual_clusters",
    "wait_for_warm_on_init",
];

/// Keys without which clients and endpoints see a difference, and nothing is missing.
const DIFFERENT: &[(&str, &str)] = &[
    ("append_x_forwarded_host", "X-Forwarded-Host is sent on every route"),
    ("cluster_not_found_response_code", "what leads to no cluster is closed (403)"),
    ("delayed_close_timeout", "connections have the timeouts of the listener"),
    ("dns_failure_refresh_rate", "names are resolved as `dns` at the top of the file says"),
    ("dns_jitter", "names are resolved as `dns` at the top of the file says"),
    ("dns_lookup_family", "names are resolved as `dns` at the top of the file says"),
    ("dns_refresh_rate", "names are resolved as `dns` at the top of the file says"),
    ("respect_dns_ttl", "names are resolved as `dns` at the top of the file says"),
    ("typed_dns_resolver_config", "names are resolved as `dns` at the top of the file says"),
    ("use_tcp_for_dns_lookups", "names are resolved as `dns` at the top of the file says"),
    ("drain_timeout", "write `drain_timeout` at the top of the file"),
    ("initial_connection_window_size", "Steelyard has windows of its own"),
    ("initial_stream_window_size", "Steelyard has windows of its own"),
    ("internal_address_config", "no client counts as internal; name proxies in `trusted_proxies`"),
    ("maglev_lb_config", "the table of `maglev` has a size of its own"),
    ("merge_slashes", "routes compare paths with `//` as one `/`; endpoints get that with `paths: {forward: normal}`"),
    ("no_traffic_interval", "probes have one `interval`"),
    ("per_connection_buffer_limit_bytes", "Steelyard has buffers of its own"),
    ("ring_hash_lb_config", "`maglev` takes the place of the ring"),
    ("server_header_transformation", "the Server of endpoints passes"),
    ("server_name", "the Server of endpoints passes"),
    ("strip_any_host_port", "the port of Host does not count, and stays"),
    ("strip_matching_host_port", "the port of Host does not count, and stays"),
    ("tcp_keepalive", "Steelyard sends keepalives of its own"),
    ("unhealthy_edge_interval", "probes have one `interval`"),
    ("unhealthy_interval", "probes have one `interval`"),
    ("healthy_edge_interval", "probes have one `interval`"),
];

/// What to write in the place of other keys.
const INSTEAD: &[(&str, &str)] = &[
    ("hostname", "write `rewrite: {host: ...}` of the routes, or `host` of `health_check`"),
    (
        "policy",
        "Steelyard drops no share of the requests, and `panic_threshold` decides when the next priority is used",
    ),
    ("health_checks", "a cluster has one health check: the first is translated"),
    ("idle_timeout", "write `response_timeout` of the cluster"),
    ("listener_filters_timeout", "write `header_timeout` of the listener"),
    ("load_balancing_weight", "write `weight` of the endpoints"),
    ("max_connection_duration", "`requests_per_connection` of `limits` ends connections"),
    ("max_requests_per_connection", "a connection to an endpoint has no largest number of requests"),
    ("max_retries", "`budget` of `retry` limits retries, as a share of the requests"),
    ("method", "probes are GET"),
    ("rate_limits", "write `rate_limit` or `global_rate_limit`"),
    ("request_timeout", "`stall_timeout` and `min_rate` of the listener end slow requests"),
    ("retry_back_off", "write `backoff` of `retry`"),
    ("retry_budget", "write `budget` of `retry`"),
    ("secrets", "certificates and keys are in files"),
    ("service_name_matcher", "write `body` of `health_check` if the response names the service"),
    ("skip_xff_append", "write `forwarded: off` of the listener"),
    ("thresholds", "`limits` of the cluster hold for all requests: the first thresholds are translated"),
    ("tls_params", "TLS 1.2 and 1.3 and modern suites are used"),
    ("tracing", "write `tracing` at the top of the file"),
    ("via", "write `via` of the listener"),
];

/// What becomes of a key that nothing has read, and what to write; `None` if nobody sees that it is absent.
pub(super) fn verdict(unread: &Unread<'_>) -> Option<(Became, &'static str)> {
    let find = |table: &[(&'static str, &'static str)]| {
        table.iter().find(|(known, _)| is_name(unread.key, known)).map(|(_, why)| *why)
    };
    if SAYS_NOTHING.iter().any(|known| is_name(unread.key, known)) {
        return None;
    }
    let other = "it is not translated; if you need it, write what it does by hand";
    Some(match find(DIFFERENT) {
        Some(why) => (Became::Different, why),
        None => (Became::Lost, find(INSTEAD).unwrap_or(other)),
    })
}

/// Names of protobuf have two forms.
fn is_name(key: &str, known: &str) -> bool {
    key == known || key == super::super::tree::camel(known)
}

//! Nothing is dropped without a note.

use super::*;

/// A file in which all mappings below `static_resources` are written in braces.
const FILE: &str = r#"
node: {locality: NODE}
static_resources:
  {listeners: [{name: l, address: {socket_address: {address: 0.0.0.0, port_value: 8080}},
    filter_chains: [{filters: [{name: envoy.filters.network.http_connection_manager, typed_config: {
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
      use_remote_address: true, max_request_headers_kb: 16,
      http2_protocol_options: {max_concurrent_streams: 50},
      common_http_protocol_options: {max_headers_count: 80, idle_timeout: 60s},
      http_filters: [{name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}],
      route_config: {request_mirror_policies: [{cluster: b}], virtual_hosts: [{name: v, domains: ["*"], routes: [
        {match: {prefix: /a/}, redirect: {path_redirect: /b, response_code: FOUND}},
        {match: {prefix: /d/}, direct_response: {status: 200, body: {inline_string: hi}}},
        {match: {prefix: /w/}, route: {weighted_clusters: {clusters: [{name: app, weight: 90}, {name: b, weight: 10}]}}},
        {match: {prefix: /}, request_headers_to_add: [{header: {key: X-A, value: b}, append: false}], route: {cluster: app, timeout: 5s,
          retry_policy: {retry_on: 5xx, num_retries: 2}}}]}]}}}]}]}],
  clusters: [
    {name: app, type: STRICT_DNS, connect_timeout: 0.25s, common_lb_config: {healthy_panic_threshold: {value: 20.0}COMMON},
      circuit_breakers: {thresholds: [{max_requests: 5, max_pending_requests: 6}]},
      outlier_detection: {consecutive_5xx: 3},
      health_checks: [{timeout: 1s, interval: 5s, http_health_check: {path: /h, request_headers_to_add: [{header: {key: X-B, value: c}}]}}],
      load_assignment: {endpoints: [
        {locality: {zone: z}, load_balancing_weight: 90, lb_endpoints: [
          {endpoint: {health_check_config: {port_value: 99}, address: {socket_address: {address: 127.0.0.1, port_value: 81}}}},
          {endpoint: {health_check_config: {port_value: 99}, address: {socket_address: {address: 127.0.0.2, port_value: 81}}}}]},
        {load_balancing_weight: 10, lb_endpoints: [
          {endpoint: {health_check_config: {port_value: 99}, address: {socket_address: {address: 127.0.0.3, port_value: 81}}}}]}]}},
    {name: b, load_assignment: {endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.9, port_value: 80}}}}]}]}}]}
"#;

fn translated(text: &str) -> (String, String) {
    let text = text.replace("NODE", "{}").replace("COMMON", "");
    let draft = Draft::of_text(&text, translate);
    (draft.checked(), draft.told().join("\n"))
}

/// What a change of the file has in the translation and in the notes.
#[track_caller]
fn check(from: &str, to: &str, parts: &[&str]) {
    let changed = FILE.replacen(from, to, 1);
    assert_ne!(changed, FILE, "{from}");
    let (text, told) = translated(&changed);
    for part in parts {
        match part.strip_prefix('!') {
            Some(part) => assert!(!text.contains(part) && !told.contains(part), "{to}: {part}: {told}\n{text}"),
            None => assert!(text.contains(part) || told.contains(part), "{to}: {part}: {told}\n{text}"),
        }
    }
}

#[test]
fn an_unknown_key_of_any_mapping_is_reported() {
    let (_, told) = translated(FILE);
    assert!(!told.contains("left out") && !told.contains("closed"), "{told}");
    let start = FILE.find("static_resources").unwrap();
    let mut count = 0;
    for (place, _) in FILE.match_indices('{').filter(|(place, _)| *place > start) {
        let mut text = FILE.to_owned();
        text.insert_str(place + 1, "zzz: 1, ");
        let (_, told) = translated(&text);
        assert!(told.contains("zzz: "), "{}: {told}", &FILE[place..(place + 60).min(FILE.len())]);
        count += 1;
    }
    assert!(count > 60, "{count}");
}

#[test]
fn settings_with_an_equivalent() {
    let (text, told) = translated(FILE);
    for part in [
        "header_bytes: 16KiB",
        "streams_per_connection: 50",
        "header_count: 80",
        "panic_threshold: 20%",
        "X-B: c",
        "port: 99",
        "mirror:",
        "to: b",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Steelyard refuses zones of endpoints unless it knows its own.
    assert!(!text.contains("zone:") && told.contains("zone z: different"), "{text}\n{told}");
    let text = translated(&FILE.replace("NODE", "{zone: own}")).0;
    assert!(text.contains("zone: own") && text.contains("zone: z"), "{text}");
    let text = translated(&FILE.replace("COMMON", ", locality_weighted_lb_config: {}")).0;
    let weights: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("weight: ")).collect();
    // Those of the shares come first.
    assert_eq!(weights, ["90", "10", "45", "45", "10"]);
    let text = translated(
        &FILE.replace("COMMON", ", locality_weighted_lb_config: {}").replace("weight: 10, lb", "weight: 0, lb"),
    )
    .0;
    assert!(text.contains("weight: 0"), "{text}");
    let text = translated(&FILE.replace("healthy_panic_threshold: {value: 20.0}", "healthy_panic_threshold: {}")).0;
    assert!(text.contains("panic_threshold: 0%"), "{text}");
    let closes = "connect_timeout: 0.25s, close_connections_on_host_health_failure: true";
    check("connect_timeout: 0.25s", closes, &["on_unhealthy: close"]);
}

#[test]
fn settings_without_an_equivalent() {
    let other = "port_value: 97}, address: {socket_address: {address: 127.0.0.3";
    check(
        "port_value: 99}, address: {socket_address: {address: 127.0.0.3",
        other,
        &["port_value: left out", "!port: 9"],
    );
    let two = "{path: /h}}, {timeout: 2s, tcp_health_check: {}";
    check("{path: /h, request_headers_to_add: [{header: {key: X-B, value: c}}]}", two, &["health_checks: left out"]);
    for (from, to, part) in [
        ("{path: /h,", "{path: /h, method: HEAD,", "method: left out"),
        ("{path: /h,", "{path: /h, service_name_matcher: {prefix: a},", "service_name_matcher: left out"),
        ("value: c}", "value: '%X%'}", "request_headers_to_add: left out"),
        ("max_requests: 5", "max_requests: 5, max_retries: 3", "max_retries: left out"),
        ("load_assignment: {", "load_assignment: {policy: {drop_overloads: []}, ", "policy: left out"),
        ("timeout: 5s,", "timeout: 5s, idle_timeout: 9s,", "idle_timeout: left out"),
        ("timeout: 5s,", "timeout: 5s, append_x_forwarded_host: true,", "append_x_forwarded_host: different"),
        ("max_request_headers_kb: 16", "max_request_headers_kb: 16, request_timeout: 9s", "request_timeout: left out"),
        ("max_request_headers_kb: 16", "max_request_headers_kb: 16, via: x", "via: left out"),
        ("num_retries: 2", "num_retries: 2, retry_back_off: {base_interval: 1s}", "retry_back_off: left out"),
    ] {
        check(from, to, &[part]);
    }
}

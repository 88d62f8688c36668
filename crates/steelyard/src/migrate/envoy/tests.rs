//! Files of Envoy and what they become.

use super::*;

fn translated(text: &str) -> Draft {
    Draft::of_text(text, translate)
}

/// A bootstrap file with these routes and filters.
fn bootstrap(routes: &str, filters: &str) -> String {
    format!(
        r#"
static_resources:
  listeners:
  - name: web
    address: {{socket_address: {{address: 0.0.0.0, port_value: 8080}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          use_remote_address: true
          http_filters:
          {filters}
          - name: envoy.filters.http.router
          route_config:
            virtual_hosts:
            - name: shop
              domains: [shop.example.com, "*.shop.example.com"]
              routes:
{routes}
  clusters:
  - name: app
    type: STRICT_DNS
    connect_timeout: 0.25s
    lb_policy: LEAST_REQUEST
    load_assignment:
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: app, port_value: 80}}}}}}
          load_balancing_weight: 3
    health_checks:
    - {{timeout: 1s, interval: 5s, unhealthy_threshold: 2, healthy_threshold: 1, http_health_check: {{path: /healthz}}}}
    circuit_breakers: {{thresholds: [{{max_connections: 100, max_pending_requests: 10}}]}}
  - name: canary
    load_assignment: {{endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 10.0.0.2, port_value: 443}}}}}}}}]}}]}}
    http2_protocol_options: {{}}
    transport_socket:
      name: tls
      typed_config: {{sni: canary.example.com}}
"#
    )
}

fn check(routes: &str, filters: &str, parts: &[&str]) {
    let draft = translated(&bootstrap(routes, filters));
    let text = draft.checked();
    for part in parts {
        let is_there = text.contains(part) || draft.told().iter().any(|note| note.contains(part));
        assert!(is_there, "{part}: {text}\n{:?}", draft.told());
    }
}

#[test]
fn routes_and_clusters() {
    let routes = r#"
              - match: {prefix: /api/, headers: [{name: x-team, string_match: {exact: red}}]}
                route: {cluster: app, prefix_rewrite: /, timeout: 3s, retry_policy: {retry_on: "5xx", num_retries: 3}}
              - match: {path: /old}
                redirect: {https_redirect: true, response_code: PERMANENT_REDIRECT}
              - match: {prefix: /teapot}
                direct_response: {status: 418, body: {inline_string: short and stout}}
              - match: {prefix: /}
                route: {weighted_clusters: {clusters: [{name: app, weight: 90}, {name: canary, weight: 10}]}}
"#;
    let expect = [
        "bind: 0.0.0.0:8080",
        "isolated_hosts",
        "*.shop.example.com",
        "x-team: red",
        "/api/(.*)",
        "timeout: 3s",
        "attempts: 3",
        "exact: /old",
        "status: 308",
        "status: 418",
        "short and stout",
        "weight: 90",
        "weight: 10",
        "app:80",
        "weight: 3",
        "least_request",
        "connect_timeout: 250ms",
        "http: /healthz",
        "unhealthy_after: 2",
        "pending: 10",
        "protocol: h2",
        "server_name: canary.example.com",
        "verify: false",
        "timeout: 15s",
    ];
    check(routes, "", &expect);
}

#[test]
fn what_keeps_somebody_out() {
    let routes = "              - match: {prefix: /}\n                route: {cluster: app}\n";
    let rbac = "- name: envoy.filters.http.rbac\n            typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC}";
    check(routes, rbac, &["deny:\n    - 0.0.0.0/0\n    - ::/0", "envoy.filters.http.rbac: closed"]);
    let authz = "- name: envoy.filters.http.ext_authz\n            typed_config: {\"@type\": x/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz, http_service: {server_uri: {uri: 'http://a', cluster: app, timeout: 1s}, path_prefix: /check}}";
    check(routes, authz, &["external_auth", "prefix: /check"]);
    let gone = authz.replace("cluster: app", "cluster: gone");
    check(routes, &gone, &["deny:\n    - 0.0.0.0/0\n    - ::/0", "gone: closed"]);
    let inverted = "              - match: {prefix: /, headers: [{name: x, present_match: true, invert_match: true}]}\n                route: {cluster: app}\n";
    check(inverted, "", &["status: 403", "x: closed"]);
    let unknown =
        "              - match: {prefix: /}\n                route: {cluster: app, internal_redirect_policy: {a: b}}\n";
    check(unknown, "", &["status: 403", "internal_redirect_policy: closed"]);
    let per_route = "              - match: {prefix: /}\n                route: {cluster: app}\n                typed_per_filter_config: {envoy.filters.http.jwt_authn: {a: b}}\n";
    check(per_route, "", &["status: 403"]);
}

#[test]
fn connections() {
    let text = r#"{"static_resources": {"listeners": [{"name": "db", "address": {"socketAddress": {"address": "127.0.0.1", "portValue": 5432}},
        "filterChains": [{"filters": [{"name": "tcp", "typedConfig": {"@type": "x/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "cluster": "db"}}]}]}],
        "clusters": [{"name": "db", "loadAssignment": {"endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 5432}}}}]}]}}]}}"#;
    let text = translated(text).checked();
    assert!(text.contains("protocol: tcp") && text.contains("to: db"), "{text}");
}

#[test]
fn what_cannot_be_read() {
    for (text, part) in [("", "empty"), ("a: [", "2: this is not YAML"), ("admin: {}", "no static_resources.listeners")]
    {
        let file = std::env::temp_dir().join(format!("steelyard-envoy-bad-{}", std::process::id()));
        std::fs::write(&file, text).unwrap();
        let why = translate(&file).unwrap_err();
        std::fs::remove_file(file).unwrap();
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn forwarded_headers_are_those_of_the_listener() {
    let routes = r#"              - match: {prefix: /}
                route: {cluster: app}
                request_headers_to_add: [{header: {key: x-forwarded-proto, value: https}}]"#;
    let draft = translated(&bootstrap(routes, ""));
    assert!(!draft.checked().contains("x-forwarded-proto"), "{}", draft.checked());
    assert!(
        draft.told().iter().any(|note| note.contains("x-forwarded-proto: different: the listener's")),
        "{:?}",
        draft.told()
    );
}

const APP: &str = "              - match: {prefix: /}\n                route: {cluster: app}\n";

/// The listener is closed, and a note says that this part is why.
#[track_caller]
fn denies(text: &str, part: &str) {
    let draft = translated(text);
    let (text, told) = (draft.checked(), draft.told());
    assert!(text.contains("deny:\n    - 0.0.0.0/0\n    - ::/0"), "{part}: {text}\n{told:?}");
    assert!(told.iter().any(|note| note.contains("closed") && note.contains(part)), "{part}: {told:?}");
}

#[test]
fn filters_are_known_by_their_types() {
    let filter = |name: &str, kind: &str, config: &str| {
        let url = format!("type.googleapis.com/envoy.extensions.filters.http.{kind}");
        bootstrap(APP, &format!("- name: {name}\n            typed_config: {{\"@type\": {url}{config}}}"))
    };
    denies(&filter("envoy.filters.http.router", "lua.v3.Lua", ""), "envoy.filters.http.router");
    denies(&filter("de-fault", "unknown.v3.Unknown", ""), "de-fault");
    denies(&filter("a", "local_ratelimit.v3.LocalRateLimit", ""), "a");
    denies(&filter("a", "ratelimit.v3.RateLimit", ""), "a");
    denies(&filter("a", "fault.v3.HTTPFault", ""), "a");
    denies(&filter("a", "jwt_authn.v3.JwtAuthentication", ""), "a");
    denies(&filter("a", "header_to_metadata.v3.Config", ""), "a");
    denies(&filter("a", "router.v3.Router", ", upstream_http_filters: [{name: x}]"), "upstream_http_filters");
    denies(&filter("a", "health_check.v3.HealthCheck", ", pass_through_mode: No"), "a");
    denies(&bootstrap(APP, "- {name: envoy.filters.http.cors, config_discovery: {}}"), "config_discovery");
    let open = translated(&filter("rbac", "grpc_stats.v3.FilterConfig", "")).checked();
    assert!(!open.contains("deny"), "{open}");
}

#[test]
fn settings_that_close_a_listener() {
    let base = bootstrap(APP, "");
    let at = |from: &str, to: &str| base.replace(from, to);
    let manager = |keys: &str| {
        at("          use_remote_address: true", &format!("          use_remote_address: true\n          {keys}"))
    };
    denies(&at("[shop.example.com, ", "[shop.example.com, 'admin.*', "), "admin.");
    denies(&at("[shop.example.com, ", "['shop*.example.com', "), "shop*.example.com");
    denies(
        &at("    filter_chains:", "    default_filter_chain: {filters: []}\n    filter_chains:"),
        "default_filter_chain",
    );
    denies(&at("    filter_chains:", "    filter_chain_matcher: {a: b}\n    filter_chains:"), "filter_chain_matcher");
    for condition in
        ["source_prefix_ranges: []", "application_protocols: [h2]", "destination_port: 80", "source_type: EXTERNAL"]
    {
        let name = condition.split_once(':').unwrap().0;
        denies(&at("    - filters:", &format!("    - filter_chain_match: {{{condition}}}\n      filters:")), name);
    }
    denies(&manager("early_header_mutation_extensions: [{name: a}]"), "early_header_mutation_extensions");
    denies(
        &manager("common_http_protocol_options: {headers_with_underscores_action: REJECT_REQUEST}"),
        "headers_with_underscores_action",
    );
    denies(&manager("upgrade_configs: [{upgrade_type: CONNECT}]"), "upgrade_configs");
    denies(
        &at(
            "          route_config:",
            "          route_config:\n            ignore_path_parameters_in_path_matching: yes",
        ),
        "ignore_path_parameters",
    );
    denies(&at("          route_config:", "          route_config:\n            vhds: {}\n            x: y"), "x");
    let two = base.replace(
        "            - name: shop",
        "            - {name: a, domains: [shop.example.com], routes: []}\n            - name: shop",
    );
    denies(&two, "two virtual hosts");
}

#[test]
fn routes_that_are_closed() {
    let closes = |matched: &str, action: &str, part: &str| {
        let routes = format!("              - match: {{{matched}}}\n                {action}\n");
        let draft = translated(&bootstrap(&routes, ""));
        let (text, told) = (draft.checked(), draft.told());
        let (_, after) = text.split_once("sec-websocket-version").unwrap();
        let after = after.split_once("clusters:").unwrap().0;
        assert!(after.contains("status: 403") && !after.contains(" to:"), "{part}: {text}");
        assert!(told.iter().any(|note| note.contains("closed") && note.contains(part)), "{part}: {told:?}");
    };
    let to = "route: {cluster: app}";
    closes(
        "prefix: /, headers: [{name: x, string_match: {contains: a}}, {name: X, string_match: {contains: b}}]",
        to,
        "X",
    );
    closes("prefix: /, headers: [{name: x, present_match: True, invert_match: yes}]", to, "x");
    closes("prefix: /, headers: [{name: x, range_match: {start: 1, end: 2}}]", to, "x");
    closes("prefix: /, headers: [{name: ':authority', string_match: {exact: a}}]", to, ":authority");
    closes("prefix: /, headers: [{name: x-forwarded-proto, string_match: {exact: http}}]", to, "x-forwarded-proto");
    closes("prefix: /, query_parameters: [{name: a, string_match: {exact: 'b%20c'}}]", to, "a");
    closes("prefix: /, runtime_fraction: {default_value: {numerator: 50}}", to, "runtime_fraction");
    closes("prefix: /a%20b", to, "/a%20b");
    closes("safe_regex: {regex: '/[a&&b]'}", to, "safe_regex");
    closes("connect_matcher: {}, tls_context: {presented: true}", to, "tls_context");
    closes(
        "prefix: /",
        "route: {cluster: app, regex_rewrite: {pattern: {regex: ^/x/(.*)$}, substitution: /y}}",
        "regex_rewrite",
    );
    closes(
        "prefix: /",
        "route: {weighted_clusters: {clusters: [{name: app, weight: 1, typed_per_filter_config: {a: {b: c}}}]}}",
        "typed_per_filter_config",
    );
    closes("prefix: /", "route: {cluster: app, metadata_match: {a: b}}", "metadata_match");
    closes("prefix: /", "route: {cluster_header: x}", "cluster_header");
    closes("prefix: /", "route: {cluster: app, path_rewrite_policy: {a: b}}", "path_rewrite_policy");
    closes("prefix: /", "redirect: {regex_rewrite: {pattern: {regex: a}}}", "regex_rewrite");
}

#[test]
fn other_protocols_are_refused() {
    let allowed = "route: {cluster: app, upgrade_configs: [{upgrade_type: websocket}]}";
    let text = translated(&bootstrap(&APP.replace("route: {cluster: app}", allowed), "")).checked();
    assert!(!text.contains("upgrade:"), "{text}");
    let routes = format!("{}{APP}", APP.replace("prefix: /", "path: /ws").replace("route: {cluster: app}", allowed));
    let text = translated(&bootstrap(&routes, "")).checked();
    let (before, after) = text.split_once("exact: /ws").unwrap();
    assert!(!before.contains("upgrade:"), "{text}");
    for name in ["upgrade:", "sec-websocket-version:"] {
        assert_eq!(after.matches(name).count(), 1, "{text}");
    }
}

/// Filters of a listener that asks a service.
const ASKS: &str = "- name: asks\n            typed_config: {\"@type\": x/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz, http_service: {server_uri: {cluster: app, timeout: 1s}}}";

#[test]
fn a_service_is_asked_about_every_route() {
    let off = "typed_per_filter_config: {asks: {\"@type\": x/envoy.extensions.filters.http.ext_authz.v3.ExtAuthzPerRoute, disabled: yes}}";
    let routes = format!(
        "              - {{match: {{path: /a}}, direct_response: {{status: 200}}}}\n              - {{match: {{path: /b}}, route: {{cluster: app}}, {off}}}\n"
    );
    let text = translated(&bootstrap(&routes, ASKS)).checked();
    let (listener, routes) = text.split_once("routes:").unwrap();
    assert!(listener.contains("external_auth:") && routes.matches("external_auth: off").count() == 1, "{text}");
    // Without the filter there is nothing to be disabled.
    let text = translated(&bootstrap(&routes_with(off), "")).told().join("\n");
    assert!(text.contains("asks: closed"), "{text}");
    denies(&bootstrap(APP, &ASKS.replace("http_service:", "clear_route_cache: On, http_service:")), "asks");
    denies(&bootstrap(APP, &ASKS.replace("http_service:", "filter_enabled: {a: b}, http_service:")), "filter_enabled");
    let grpc = ASKS.replace(
        "http_service: {server_uri: {cluster: app, timeout: 1s}}",
        "grpc_service: {envoy_grpc: {cluster_name: canary}}",
    );
    denies(&bootstrap(APP, &grpc), "grpc_service");
    let pattern = ASKS.replace(
        "timeout: 1s}}",
        "timeout: 1s}, authorization_response: {allowed_upstream_headers: {patterns: [{prefix: x-}]}}}",
    );
    denies(&bootstrap(APP, &pattern), "patterns");
}

fn routes_with(keys: &str) -> String {
    format!("              - {{match: {{path: /b}}, route: {{cluster: app}}, {keys}}}\n")
}

/// A file with these filter chains of TLS.
fn chains(chains: &[(&str, &str, &str)]) -> String {
    let base = bootstrap(APP, "");
    let (head, rest) = base.split_once("    - filters:").unwrap();
    let (filters, clusters) = rest.split_once("  clusters:").unwrap();
    let all: String = chains
        .iter()
        .map(|(names, context, common)| {
            let url = "x/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
            let filters = filters.replace("[shop.example.com, \"*.shop.example.com\"]", "[\"*\"]");
            format!(
                "    - filter_chain_match: {{{names}}}\n      transport_socket: {{name: tls, typed_config: {{\"@type\": {url}, {context} common_tls_context: {{tls_certificates: [{{certificate_chain: {{filename: a.pem}}, private_key: {{filename: a.key}}}}], {common}}}}}}}\n      filters:{filters}"
            )
        })
        .collect();
    format!("{head}{all}  clusters:{clusters}")
}

#[test]
fn certificates_of_clients() {
    let (needs, of_a) = ("require_client_certificate: True,", "validation_context: {trusted_ca: {filename: a-ca.pem}}");
    let of_b = of_a.replace("a-ca", "b-ca");
    let two = [("server_names: [a.example]", needs, of_a), ("server_names: [b.example]", needs, of_a), ("", "", "")];
    let text = translated(&chains(&two)).checked();
    let expect = "client_ca:\n        ca: a-ca.pem\n        hosts:\n        - a.example\n        - b.example\n";
    assert!(text.contains(expect) && !text.contains("deny"), "{text}");
    denies(&chains(&[two[0], ("server_names: [b.example]", needs, &of_b)]), "different CAs");
    for other in [
        "combined_validation_context: {default_validation_context: {trusted_ca: {filename: a}}}",
        "validation_context_sds_secret_config: {name: a}",
        "validation_context: {trusted_ca: {filename: a}, verify_certificate_hash: [b]}",
        "validation_context: {trusted_ca: {inline_string: a}}",
        "",
    ] {
        denies(&chains(&[("", needs, other)]), "require_client_certificate");
    }
}

#[test]
fn clusters_that_no_route_leads_to() {
    let closes = |from: &str, to: &str| {
        let text = bootstrap(APP, "").replace("{cluster: app}", "{cluster: canary}").replace(from, to);
        let draft = translated(&text);
        let text = draft.checked();
        assert!(!text.contains("to: canary") && !text.contains("verify: false"), "{to}: {text}");
        assert!(draft.told().iter().any(|note| note.contains("closed")), "{:?}", draft.told());
    };
    let sni = "{sni: canary.example.com}";
    for common in [
        "combined_validation_context: {a: b}",
        "validation_context_sds_secret_config: {name: a}",
        "validation_context: {trusted_ca: {filename: a}, match_typed_subject_alt_names: [{a: b}]}",
        "validation_context: {verify_certificate_spki: [a]}",
        "custom_handshaker: {a: b}",
    ] {
        closes(sni, &format!("{{sni: canary.example.com, common_tls_context: {{{common}}}}}"));
    }
    closes("http2_protocol_options: {}", "http2_protocol_options: {}\n    filters: [{name: a}]");
    closes("http2_protocol_options: {}", "lb_subset_config: {a: b}\n    http2_protocol_options: {}");
}

#[test]
fn connections_that_are_refused() {
    let filter = r#"{"name": "tcp", "typedConfig": {"@type": "x/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", "cluster": "db"}}"#;
    let of = |chains: &str| {
        format!(
            r#"{{"static_resources": {{"listeners": [{{"name": "db", "listenerFilters": [{{"name": "envoy.filters.listener.tls_inspector"}}], "address": {{"socketAddress": {{"address": "127.0.0.1", "portValue": 5432}}}},
        "filterChains": [{chains}]}}], "clusters": [{{"name": "db", "loadAssignment": {{"endpoints": [{{"lbEndpoints": [{{"endpoint": {{"address": {{"socketAddress": {{"address": "10.0.0.1", "portValue": 5432}}}}}}}}]}}]}}}}]}}}}"#
        )
    };
    let chain = |names: &str, filters: &str| format!(r#"{{"filterChainMatch": {{{names}}}, "filters": [{filters}]}}"#);
    let rbac = format!(
        r#"{{"name": "rbac", "typedConfig": {{"@type": "x/envoy.extensions.filters.network.rbac.v3.RBAC"}}}}, {filter}"#
    );
    denies(&of(&chain("", &rbac)), "rbac");
    let named = r#""serverNames": ["a.example"]"#;
    denies(&of(&chain(named, &rbac)), "rbac");
    let gone = filter.replace(r#""cluster": "db""#, r#""cluster": "gone""#);
    denies(&of(&format!("{}, {}", chain(named, &gone), chain("", filter))), "gone");
    let shares = filter.replace(r#""cluster": "db""#, r#""weightedClusters": {"clusters": []}"#);
    denies(&of(&format!("{}, {}", chain(named, &shares), chain("", filter))), "weightedClusters");
    let open = translated(&of(&format!("{}, {}", chain(named, filter), chain("", filter)))).checked();
    assert!(open.contains("tls_passthrough") && !open.contains("deny"), "{open}");
}

#[test]
fn headers_of_clients_are_replaced() {
    let routes = format!(
        "{APP}                request_headers_to_remove: [x-user]\n                request_headers_to_add: [{{header: {{key: X-User, value: nobody}}}}]\n"
    );
    let text = bootstrap(&routes, "")
        .replace("          route_config:", "          route_config:\n            internal_only_headers: [x-inner]");
    let text = translated(&text).checked();
    assert!(text.contains("set:\n          X-User: nobody"), "{text}");
    for name in ["x-inner", "x-forwarded-client-cert", "x-envoy-internal"] {
        assert!(text.contains(&format!("- {name}")), "{text}");
    }
}

#[test]
fn values_that_can_be_read_in_two_ways() {
    for (from, to, part) in [
        ("use_remote_address: true", "use_remote_address: maybe", "use_remote_address: this is neither"),
        (
            "use_remote_address: true",
            "use_remote_address: true\n          useRemoteAddress: false",
            "the key is there twice",
        ),
        ("use_remote_address: true", "<<: {a: b}", "`<<` is not understood"),
    ] {
        let file = std::env::temp_dir().join(format!("steelyard-envoy-two-{}", std::process::id()));
        std::fs::write(&file, bootstrap(APP, "").replace(from, to)).unwrap();
        let why = translate(&file).unwrap_err();
        std::fs::remove_file(file).unwrap();
        assert!(why.contains(part), "{why}");
    }
}

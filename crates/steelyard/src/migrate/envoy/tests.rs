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
    check(routes, rbac, &["status: 403", "envoy.filters.http.rbac: closed"]);
    let authz = "- name: envoy.filters.http.ext_authz\n            typed_config: {\"@type\": x/envoy.extensions.filters.http.ext_authz.v3.ExtAuthz, http_service: {server_uri: {cluster: app, timeout: 1s}, path_prefix: /check}}";
    check(routes, authz, &["external_auth", "prefix: /check"]);
    let gone = authz.replace("cluster: app", "cluster: gone");
    check(routes, &gone, &["status: 403", "gone: closed"]);
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

//! Clusters.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, milliseconds};
use super::super::tree::Node;
use super::tls::{COMMON, Validation, is_upstream, validation};
use super::{Making, address, duration};

const CLUSTER: &[&str] = &[
    "name",
    "alt_stat_name",
    "type",
    "connect_timeout",
    "per_connection_buffer_limit_bytes",
    "lb_policy",
    "load_assignment",
    "health_checks",
    "max_requests_per_connection",
    "circuit_breakers",
    "upstream_http_protocol_options",
    "common_http_protocol_options",
    "http_protocol_options",
    "http2_protocol_options",
    "typed_extension_protocol_options",
    "dns_refresh_rate",
    "dns_jitter",
    "dns_failure_refresh_rate",
    "respect_dns_ttl",
    "dns_lookup_family",
    "dns_resolvers",
    "dns_resolution_config",
    "typed_dns_resolver_config",
    "use_tcp_for_dns_lookups",
    "wait_for_warm_on_init",
    "outlier_detection",
    "cleanup_interval",
    "ring_hash_lb_config",
    "maglev_lb_config",
    "least_request_lb_config",
    "round_robin_lb_config",
    "common_lb_config",
    "transport_socket",
    "metadata",
    "protocol_selection",
    "upstream_connection_options",
    "close_connections_on_host_health_failure",
    "ignore_health_on_host_removal",
    "track_timeout_budgets",
    "track_cluster_stats",
    "preconnect_policy",
];

const UPSTREAM_TLS: &[&str] =
    &["@type", "common_tls_context", "sni", "auto_host_sni", "allow_renegotiation", "max_session_keys"];

impl Making<'_> {
    /// A cluster. If it is not understood, no route leads to it: whatever names it is closed.
    pub(super) fn cluster(&mut self, node: &Node) {
        let name = node.at("name").text().unwrap_or("cluster").to_owned();
        let kind = node.at("type").text().unwrap_or("STATIC");
        let what = "what leads to this cluster is closed";
        let options = node.at("typed_extension_protocol_options").entries();
        let mut is_unknown = self.unknown(node, CLUSTER, what);
        for (_, options) in options {
            // Filters of a cluster may keep somebody out, too.
            const OPTIONS: &[&str] = &[
                "@type",
                "common_http_protocol_options",
                "upstream_http_protocol_options",
                "explicit_http_config",
                "use_downstream_protocol_config",
                "auto_config",
            ];
            is_unknown |= self.unknown(options, OPTIONS, what);
        }
        let Some(tls) = self.upstream_tls(node, &name).filter(|_| !is_unknown) else {
            return self.clusters.push((name, String::new()));
        };
        let endpoints = self.endpoints(node);
        if !["STATIC", "STRICT_DNS", "LOGICAL_DNS"].contains(&kind) || endpoints.is_empty() {
            self.note(
                node,
                &name,
                Became::Lost,
                "its endpoints are not in the file; write them, or names that DNS resolves",
            );
            return self.clusters.push((name, String::new()));
        }
        let mut keys = Keys::default().with("endpoints", endpoints);
        match (is_h2(node), tls.is_some()) {
            (true, true) => keys.set("protocol", "h2"),
            (true, false) => keys.set("protocol", "h2c"),
            (false, _) => {}
        }
        if let Some(tls) = tls {
            keys.set("tls", tls);
        }
        match node.at("lb_policy").text() {
            None | Some("ROUND_ROBIN" | "CLUSTER_PROVIDED") => {}
            Some("LEAST_REQUEST") => keys.set("balance", "least_request"),
            Some("RANDOM") => keys.set("balance", "random"),
            Some("RING_HASH" | "MAGLEV") => keys.set("balance", "maglev"),
            Some(other) => self.note(node.at("lb_policy"), other, Became::Lost, "endpoints are chosen in turn"),
        }
        keys.set("connect_timeout", milliseconds(duration(node.at("connect_timeout")).unwrap_or(5_000)));
        if let Some(check) = node.at("health_checks").items().first() {
            let check = self.check(check);
            keys.set("health_check", check);
        }
        self.limits(node, &mut keys);
        let outlier = node.at("outlier_detection");
        if !outlier.is_null() {
            let mut value = json!({"consecutive_5xx": outlier.at("consecutive_5xx").number().unwrap_or(5).max(1)});
            if let Some(time) = duration(outlier.at("base_ejection_time")) {
                value["eject_for"] = json!(milliseconds(time));
            }
            if let Some(share) = outlier.at("max_ejection_percent").number() {
                value["max_ejected"] = json!(format!("{}%", share.min(100)));
            }
            keys.set("outlier", value);
        } else {
            keys.set("outlier", "off");
        }
        let ours = self.draft.cluster(&name, keys);
        self.clusters.push((name, ours));
    }

    fn endpoints(&mut self, node: &Node) -> Vec<Value> {
        let mut all = Vec::new();
        for locality in node.at("load_assignment").at("endpoints").items() {
            for one in locality.at("lb_endpoints").items() {
                if !matches!(one.at("health_status").text(), None | Some("UNKNOWN" | "HEALTHY" | "DEGRADED")) {
                    self.note(one, "health_status", Became::Lost, "the endpoint gets no requests");
                    continue;
                }
                let Some(address) = address(one.at("endpoint").at("address")) else {
                    self.note(
                        one,
                        "lb_endpoints",
                        Became::Lost,
                        "Steelyard connects to addresses and names with a port",
                    );
                    continue;
                };
                let mut endpoint = json!({"address": address});
                if let Some(weight) = one.at("load_balancing_weight").number() {
                    endpoint["weight"] = json!(weight.min(65_535));
                }
                if let Some(priority) = locality.at("priority").number().filter(|priority| *priority > 0) {
                    endpoint["priority"] = json!(priority.min(7));
                }
                if let Some(zone) = locality.at("locality").at("zone").text() {
                    endpoint["zone"] = json!(zone);
                }
                all.push(endpoint);
            }
        }
        all
    }

    /// TLS to endpoints, if there is any; `None` if it is not understood.
    fn upstream_tls(&mut self, node: &Node, name: &str) -> Option<Option<Value>> {
        let socket = node.at("transport_socket");
        if socket.is_null() {
            return Some(None);
        }
        let config = socket.at("typed_config");
        let common = config.at("common_tls_context");
        let what = "what leads to this cluster is closed";
        let is_unknown = !is_upstream(socket)
            | self.unknown(socket, &["name", "typed_config"], what)
            | self.unknown(config, UPSTREAM_TLS, what)
            | self.unknown(common, COMMON, what);
        let mut tls = json!({});
        if let Some(name) = config.at("sni").text() {
            tls["server_name"] = json!(name);
        }
        match validation(common) {
            Validation::File(file) if !is_unknown => {
                tls["ca"] = json!(file);
                let why = "certificates of endpoints must have the name that is asked for (`server_name`)";
                self.note(socket, name, Became::Different, why);
            }
            Validation::None if !is_unknown => {
                tls["verify"] = json!(false);
                let why =
                    "certificates of endpoints are not verified, as with Envoy; remove `verify: false` to verify them";
                self.note(socket, name, Became::Different, why);
            }
            _ => {
                let why = "certificates of endpoints are checked by something else than `trusted_ca` in a file, so what leads to this cluster is closed";
                self.note(socket, name, Became::Closed, why);
                return None;
            }
        }
        let pairs = common.at("tls_certificates").items();
        if let Some(pair) = pairs.first() {
            let file = |key: &str| pair.at(key).at("filename").text();
            if let (Some(cert), Some(key)) = (file("certificate_chain"), file("private_key")) {
                tls["certificate"] = json!({"cert": cert, "key": key});
            }
        }
        if tls.get("certificate").is_none()
            && (!pairs.is_empty() || !common.at("tls_certificate_sds_secret_configs").is_null())
        {
            let why = "its own certificate is not in files: write `certificate` of `tls`";
            self.note(common, "tls_certificates", Became::Lost, why);
        }
        Some(Some(tls))
    }

    fn check(&mut self, node: &Node) -> Value {
        let mut check = json!({});
        let http = node.at("http_health_check");
        let grpc = node.at("grpc_health_check");
        if !http.is_null() {
            check["http"] = json!(http.at("path").text().unwrap_or("/"));
            if let Some(host) = http.at("host").text() {
                check["host"] = json!(host);
            }
            let statuses: Vec<String> = http
                .at("expected_statuses")
                .items()
                .iter()
                .filter_map(|range| {
                    // The end of a range is not in it.
                    let (start, end) = (range.at("start").number()?, range.at("end").number()?.checked_sub(1)?);
                    Some(if start == end { start.to_string() } else { format!("{start}-{end}") })
                })
                .collect();
            check["expect"] = if statuses.is_empty() { json!("200") } else { json!(statuses) };
        } else if node.get("grpc_health_check").is_some() || node.get("grpcHealthCheck").is_some() {
            check["grpc"] = json!(grpc.at("service_name").text().unwrap_or(""));
        } else {
            check["tcp"] = json!(true);
        }
        for (from, key) in [("interval", "interval"), ("timeout", "timeout")] {
            if let Some(time) = duration(node.at(from)) {
                check[key] = json!(milliseconds(time));
            }
        }
        for (from, key) in [("unhealthy_threshold", "unhealthy_after"), ("healthy_threshold", "healthy_after")] {
            if let Some(count) = node.at(from).number() {
                check[key] = json!(count.clamp(1, 1000));
            }
        }
        check
    }

    fn limits(&mut self, node: &Node, keys: &mut Keys) {
        let Some(threshold) = node.at("circuit_breakers").at("thresholds").items().first() else { return };
        let mut limits = json!({});
        if let Some(count) = threshold
            .at("max_requests")
            .number()
            .or(threshold.at("max_connections").number())
            .filter(|count| *count > 0)
        {
            limits["connections"] = json!(count.min(10_000_000));
        }
        if let Some(count) = threshold.at("max_pending_requests").number() {
            limits["pending"] = json!(count.min(10_000_000));
        }
        if limits.as_object().is_some_and(|limits| !limits.is_empty()) {
            keys.set("limits", limits);
            self.note(
                threshold,
                "circuit_breakers",
                Became::Different,
                "requests in progress are counted for each endpoint",
            );
        }
    }
}

/// Whether endpoints speak HTTP/2.
fn is_h2(node: &Node) -> bool {
    let has = |node: &Node, key: &str| node.get(key).is_some() || node.get(&super::super::tree::camel(key)).is_some();
    if has(node, "http2_protocol_options") {
        return true;
    }
    node.at("typed_extension_protocol_options")
        .entries()
        .iter()
        .any(|(_, options)| has(options.at("explicit_http_config"), "http2_protocol_options"))
}

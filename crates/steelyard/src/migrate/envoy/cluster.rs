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

/// The largest weight of an endpoint.
const WEIGHT_MAX: u64 = 65_535;

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
            // It was not read to the end.
            node.told();
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
        self.health(node, &mut keys);
        self.limits(node, &mut keys);
        let ours = self.draft.cluster(&name, keys);
        self.clusters.push((name, ours));
    }

    /// Which endpoints count as healthy.
    fn health(&mut self, node: &Node, keys: &mut Keys) {
        if let Some(check) = node.at("health_checks").items().first() {
            let mut check = self.check(check);
            self.probed_port(node, &mut check);
            keys.set("health_check", check);
            if node.at("close_connections_on_host_health_failure").is_true() {
                keys.set("on_unhealthy", "close");
            }
        }
        let threshold = node.at("common_lb_config").at("healthy_panic_threshold");
        // An empty one is 0 %, as in every message of a protocol buffer.
        let is_empty = !threshold.is_null() && threshold.entries().is_empty();
        if let Some(share) = threshold.at("value").text().or(is_empty.then_some("0")) {
            match share.parse::<f64>().ok().filter(|share| (0.0..=100.0).contains(share)) {
                Some(share) => keys.set("panic_threshold", format!("{}%", share.round() as u64)),
                None => self.note(
                    threshold,
                    "healthy_panic_threshold",
                    Became::Lost,
                    "write `panic_threshold` of the cluster",
                ),
            }
        }
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
    }

    fn endpoints(&mut self, node: &Node) -> Vec<Value> {
        // Empty, it still switches the weights of localities on.
        let is_weighted = node.at("common_lb_config").get("locality_weighted_lb_config").is_some()
            || node.at("common_lb_config").get("localityWeightedLbConfig").is_some();
        let mut all = Vec::new();
        let mut shares = Vec::new();
        for locality in node.at("load_assignment").at("endpoints").items() {
            let first = all.len();
            for one in locality.at("lb_endpoints").items() {
                if let Some(endpoint) = self.endpoint(locality, one) {
                    all.push(endpoint);
                }
            }
            let weight = locality.at("load_balancing_weight").number();
            shares.push((weight.unwrap_or(0).min(u64::from(u32::MAX)), first..all.len()));
        }
        if is_weighted {
            weighted(&mut all, &shares);
        }
        fit(&mut all);
        all
    }

    fn endpoint(&mut self, locality: &Node, one: &Node) -> Option<Value> {
        if !matches!(one.at("health_status").text(), None | Some("UNKNOWN" | "HEALTHY" | "DEGRADED")) {
            self.note(one, "health_status", Became::Lost, "the endpoint gets no requests");
            return None;
        }
        let Some(address) = address(one.at("endpoint").at("address")) else {
            self.note(one, "lb_endpoints", Became::Lost, "Steelyard connects to addresses and names with a port");
            return None;
        };
        let mut endpoint = json!({"address": address});
        if let Some(weight) = one.at("load_balancing_weight").number() {
            endpoint["weight"] = json!(weight);
        }
        if let Some(priority) = locality.at("priority").number().filter(|priority| *priority > 0) {
            endpoint["priority"] = json!(priority.min(7));
        }
        let zone = locality.at("locality").at("zone");
        match (zone.text().filter(|zone| !zone.is_empty()), self.zone.clone()) {
            (Some(name), Some(own)) => {
                endpoint["zone"] = json!(name);
                self.draft.top.set("zone", own);
            }
            (Some(name), None) => {
                let why = "the file does not say in which zone Envoy runs, so requests go to all zones: write `zone` at the top and at the endpoints";
                self.note(zone, &format!("zone {name}"), Became::Different, why);
            }
            (None, _) => {}
        }
        Some(endpoint)
    }

    /// The port that all endpoints are probed at.
    fn probed_port(&mut self, node: &Node, check: &mut Value) {
        let mut ports = Vec::new();
        for locality in node.at("load_assignment").at("endpoints").items() {
            for one in locality.at("lb_endpoints").items() {
                let port = one.at("endpoint").at("health_check_config").at("port_value");
                ports.push((port, port.number().filter(|port| (1..=65_535).contains(port))));
            }
        }
        let Some((_, first)) = ports.first() else { return };
        if ports.iter().all(|(_, port)| port == first) {
            if let Some(port) = first {
                check["port"] = json!(port);
            }
            return;
        }
        for (node, _) in ports.iter().filter(|(_, port)| port.is_some()) {
            let why = "all endpoints of a cluster are probed at one `port`, or each at its own";
            self.note(node, "port_value", Became::Lost, why);
        }
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
        let pairs_node = common.at("tls_certificates");
        let pairs = pairs_node.items();
        // Which one is offered follows from the protocol of the cluster.
        common.at("alpn_protocols").told();
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
            self.draft.note((&self.file, common.line), "tls_certificates", Became::Lost, why);
            pairs_node.told();
            common.at("tls_certificate_sds_secret_configs").told();
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
            let method = http.at("method");
            if method.text() == Some("GET") {
                method.told();
            } else if !method.is_null() {
                self.note(method, "method", Became::Lost, "probes are GET");
            }
            for one in http.at("request_headers_to_add").items() {
                self.sent(one, &mut check);
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
            if let Some(host) = grpc.at("authority").text() {
                check["host"] = json!(host);
            }
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
        if let Some(port) = node.at("alt_port").number().filter(|port| (1..=65_535).contains(port)) {
            check["port"] = json!(port);
        }
        check
    }

    /// A header of a probe.
    fn sent(&mut self, one: &Node, check: &mut Value) {
        let (name, value) = (one.at("header").at("key").text(), one.at("header").at("value").text());
        let is_plain = |text: &str| {
            !text.is_empty() && !text.contains('%') && text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic())
        };
        let is_token = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        match (name.unwrap_or_default(), value.unwrap_or_default()) {
            (name, value) if name.eq_ignore_ascii_case("host") && is_plain(value) => check["host"] = json!(value),
            (name, value)
                if !name.is_empty() && is_token(name) && config::unchangeable(name).is_none() && is_plain(value) =>
            {
                check["headers"][name] = json!(value);
            }
            _ => self.note(one, "request_headers_to_add", Became::Lost, "this header of a probe cannot be set"),
        }
        for key in ["append", "append_action"] {
            one.at(key).told();
        }
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

/// Gives each locality its share: the weights of its endpoints together become its own weight. One without a weight gets no requests.
fn weighted(endpoints: &mut [Value], shares: &[(u64, std::ops::Range<usize>)]) {
    let of = |endpoint: &Value| endpoint["weight"].as_u64().unwrap_or(1) as f64;
    let mut weights = vec![0.0; endpoints.len()];
    for (share, range) in shares {
        let own = endpoints.get(range.clone()).unwrap_or_default();
        let sum: f64 = own.iter().map(of).sum();
        for (weight, endpoint) in weights.iter_mut().skip(range.start).zip(own) {
            *weight = if sum > 0.0 { *share as f64 * of(endpoint) / sum } else { 0.0 };
        }
    }
    let most = weights.iter().copied().fold(0.0, f64::max);
    if most <= 0.0 {
        return endpoints.iter_mut().for_each(|endpoint| endpoint["weight"] = json!(0));
    }
    // Whole numbers stay as they are if they fit.
    let is_whole = weights.iter().all(|weight| weight.fract() == 0.0) && most <= WEIGHT_MAX as f64;
    let factor = if is_whole { 1.0 } else { 10_000.0 / most };
    for (endpoint, weight) in endpoints.iter_mut().zip(weights) {
        let least = if weight > 0.0 { 1.0 } else { 0.0 };
        endpoint["weight"] = json!((weight * factor).round().max(least) as u64);
    }
}

/// Makes weights smaller that are too large, all by the same factor.
fn fit(endpoints: &mut [Value]) {
    let most = endpoints.iter().filter_map(|endpoint| endpoint["weight"].as_u64()).max().unwrap_or(0);
    if most <= WEIGHT_MAX {
        return;
    }
    for endpoint in endpoints {
        let weight = endpoint["weight"].as_u64().unwrap_or(1);
        let scaled = (weight as f64 * WEIGHT_MAX as f64 / most as f64).round() as u64;
        endpoint["weight"] = json!(scaled.clamp(weight.min(1), WEIGHT_MAX));
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

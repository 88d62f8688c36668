//! HTTP filters. One that is not in the lists here may keep somebody out, so it closes the listener.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, milliseconds};
use super::super::tree::Node;
use super::http::Manager;
use super::{Making, duration, kind, type_name};

/// Names of filters in files that have no types.
const BY_NAME: &[(&str, &str)] = &[
    ("envoy.filters.http.router", "filters.http.router.v3.Router"),
    ("envoy.router", "filters.http.router.v3.Router"),
    ("envoy.filters.http.cors", "filters.http.cors.v3.Cors"),
    ("envoy.cors", "filters.http.cors.v3.Cors"),
];

/// Filters that keep nobody out and decide nothing, and what to write instead.
const LEFT_OUT: &[(&str, &str)] = &[
    ("filters.http.adaptive_concurrency.v3.AdaptiveConcurrency", "write `limits` of the cluster"),
    ("filters.http.admission_control.v3.AdmissionControl", "write `limits` of the cluster"),
    ("filters.http.bandwidth_limit.v3.BandwidthLimit", "write `client_limits` of the listener"),
    ("filters.http.cache.v3.CacheConfig", "responses are not cached"),
    ("filters.http.decompressor.v3.Decompressor", "write `decompress` of the route"),
    ("filters.http.grpc_http1_bridge.v3.Config", "calls of gRPC are HTTP/2"),
    ("filters.http.grpc_web.v3.GrpcWeb", "write a route with `grpc`, which takes gRPC-Web, too"),
    ("filters.http.on_demand.v3.OnDemand", "all is in the file"),
    ("filters.http.stateful_session.v3.StatefulSession", "write `sticky` of the cluster"),
    ("filters.http.tap.v3.Tap", "`steelyard tail` shows requests"),
];

const ROUTER: &[&str] = &[
    "@type",
    "dynamic_stats",
    "start_child_span",
    "suppress_envoy_headers",
    "respect_expected_rq_timeout",
    "strict_check_headers",
    "suppress_grpc_request_failure_code_stats",
    "upstream_log",
    "upstream_log_options",
];

const AUTH: &[&str] = &[
    "@type",
    "http_service",
    "grpc_service",
    "transport_api_version",
    "failure_mode_allow",
    "with_request_body",
    "clear_route_cache",
    "status_on_error",
    "stat_prefix",
    "bootstrap_metadata_labels_key",
    "include_tls_session",
    "allowed_headers",
];

impl Making<'_> {
    /// Reads the filters of a connection manager. Returns the service that is asked.
    pub(super) fn filters(&mut self, config: &Node, manager: &mut Manager) -> Option<Value> {
        let mut asked = None;
        for filter in config.at("http_filters").items() {
            let name = filter.at("name").text().unwrap_or("http_filters").to_owned();
            let inner = filter.at("typed_config");
            self.known_or_closed(filter, &["name", "typed_config", "is_optional", "disabled"]);
            if filter.at("disabled").is_true() {
                self.close(filter, &name, "routes can enable it");
                continue;
            }
            let kind = kind(filter, BY_NAME);
            if let Some((_, why)) = LEFT_OUT.iter().find(|(known, _)| *known == kind) {
                self.note(filter, &name, Became::Lost, why);
                continue;
            }
            match kind {
                "filters.http.router.v3.Router" => self.known_or_closed(inner, ROUTER),
                "filters.http.cors.v3.Cors" => {
                    manager.has_cors = true;
                    inner.told();
                }
                "filters.http.grpc_stats.v3.FilterConfig" => inner.told(),
                "filters.http.health_check.v3.HealthCheck" if inner.at("pass_through_mode").is_true() => {}
                "filters.http.buffer.v3.Buffer" => {
                    let most = inner.at("max_request_bytes").number().unwrap_or(1 << 20);
                    let bytes = most.clamp(1, 16 << 20);
                    if bytes < most {
                        let why = "at most 16 MiB of a body are buffered, and a larger one is refused";
                        self.note(inner.at("max_request_bytes"), "max_request_bytes", Became::Different, why);
                    }
                    manager.keys.set("buffer", json!({"max_size": format!("{bytes}B")}));
                }
                "filters.http.compressor.v3.Compressor" => {
                    manager.keys.set("compress", json!({}));
                    inner.told();
                    self.note(filter, &name, Became::Different, "responses are compressed as `compress` says");
                }
                "filters.http.ext_authz.v3.ExtAuthz" if manager.auth.is_none() => {
                    asked = self.asked(inner);
                    if asked.is_none() {
                        self.close(filter, &name, "the service is not understood; write `external_auth`");
                    }
                    manager.auth = Some(name);
                }
                _ => self.close(filter, &name, "the filter is not understood and may keep somebody out"),
            }
        }
        asked
    }

    /// `external_auth` of the filter; `None` if it would not ask the same.
    fn asked(&mut self, config: &Node) -> Option<Value> {
        let what = "the listener is closed (`deny`)";
        let (grpc, http) = (config.at("grpc_service"), config.at("http_service"));
        let is_unknown = self.unknown(config, AUTH, what)
            | self.unknown(grpc, &["envoy_grpc", "timeout", "retry_policy"], what)
            | self.unknown(grpc.at("envoy_grpc"), &["cluster_name", "retry_policy"], what)
            | self.unknown(
                http,
                &["server_uri", "path_prefix", "authorization_request", "authorization_response"],
                what,
            );
        if is_unknown || config.at("clear_route_cache").is_true() {
            return None;
        }
        let mut auth = json!({});
        let (service, time) = if grpc.is_null() {
            auth["http"] =
                json!({"prefix": http.at("path_prefix").text().filter(|path| path.starts_with('/')).unwrap_or("/")});
            // Envoy asks the cluster, whatever the URI says.
            http.at("server_uri").at("uri").told();
            (http.at("server_uri").at("cluster"), http.at("server_uri").at("timeout"))
        } else {
            auth["grpc"] = json!({});
            (grpc.at("envoy_grpc").at("cluster_name"), grpc.at("timeout"))
        };
        auth["to"] = json!(self.named_cluster(service)?);
        auth["timeout"] = json!(milliseconds(duration(time).unwrap_or(200)));
        if config.at("failure_mode_allow").is_true() {
            auth["fail_open"] = json!(true);
        }
        let code = config.at("status_on_error").at("code").number();
        auth["failure_status"] = json!(code.filter(|code| (400..600).contains(code)).unwrap_or(403));
        let body = config.at("with_request_body");
        if let Some(count) = body.at("max_request_bytes").number() {
            let partial = body.at("allow_partial_message").is_true();
            auth["body"] = json!({"bytes": format!("{}B", count.clamp(1, 1 << 20)), "partial": partial});
        }
        match grpc.is_null() {
            true => self.http_headers(config, http, &mut auth)?,
            false => {
                if !config.at("allowed_headers").is_null() {
                    auth["request_headers"] = json!(self.exact(config.at("allowed_headers"))?);
                }
                let why = "endpoints get no headers of the service unless `response_headers` of `external_auth` names them: name them all";
                self.close(grpc, "grpc_service", why);
            }
        }
        Some(auth)
    }

    /// The headers that a service over HTTP gets and gives.
    fn http_headers(&mut self, config: &Node, http: &Node, auth: &mut Value) -> Option<()> {
        let what = "the listener is closed (`deny`)";
        let (asks, answers) = (http.at("authorization_request"), http.at("authorization_response"));
        let known = ["allowed_upstream_headers", "allowed_client_headers", "allowed_client_headers_on_success"];
        if self.unknown(asks, &["allowed_headers"], what) | self.unknown(answers, &known, what) {
            return None;
        }
        // Envoy sends this one, and Host, Content-Length, the method and the path, always.
        let mut sent = vec!["authorization".to_owned()];
        for list in [asks.at("allowed_headers"), config.at("allowed_headers")] {
            sent.extend(self.exact(list)?);
        }
        if sent.iter().any(|name| name.starts_with("x-envoy-") || name == "x-forwarded-client-cert") {
            self.note(asks, "allowed_headers", Became::Closed, "the service would get what clients write there");
            return None;
        }
        sent.sort_unstable();
        sent.dedup();
        auth["request_headers"] = json!(sent);
        let passed = self.exact(answers.at("allowed_upstream_headers"))?;
        if !passed.is_empty() {
            auth["response_headers"] = json!(passed);
        }
        for key in ["allowed_client_headers", "allowed_client_headers_on_success"] {
            if !answers.at(key).is_null() {
                let why = "clients get of a refusal what `refusal_headers` names, and nothing of a positive answer";
                self.note(answers.at(key), key, Became::Different, why);
            }
        }
        Some(())
    }

    /// The names in a list of matchers; `None` if one is no whole name.
    fn exact(&mut self, list: &Node) -> Option<Vec<String>> {
        let mut names = Vec::new();
        for one in list.at("patterns").items() {
            let Some(name) = one.at("exact").text() else {
                self.note(one, "patterns", Became::Closed, "headers are named in full");
                return None;
            };
            names.push(name.to_ascii_lowercase());
        }
        Some(names)
    }

    /// Settings of filters at the routes, the virtual host and the route; the last one counts for each filter. Returns whether one is not
    /// understood.
    pub(super) fn per_filter(&mut self, levels: [&Node; 3], manager: &Manager, route: &mut Keys) -> bool {
        let mut closes = false;
        for (name, config) in levels.iter().flat_map(|level| level.at("typed_per_filter_config").entries()) {
            let what = name.text().unwrap_or_default().to_owned();
            match config.at("@type").text().map_or("", type_name) {
                "filters.http.cors.v3.CorsPolicy" if !manager.has_cors => config.told(),
                "filters.http.cors.v3.CorsPolicy" => match self.cors(config) {
                    Some(cors) => route.set("cors", cors),
                    None => route.remove("cors"),
                },
                "filters.http.ext_authz.v3.ExtAuthzPerRoute" if manager.auth.as_ref() == Some(&what) => {
                    if config.entries().len() == 2 && config.at("disabled").is_true() {
                        route.set("external_auth", "off");
                    } else {
                        route.remove("external_auth");
                        let why = "the service gets no settings of routes, so the route is closed";
                        self.note(name, &what, Became::Closed, why);
                        closes = true;
                    }
                }
                "filters.http.buffer.v3.BufferPerRoute" | "filters.http.compressor.v3.CompressorPerRoute" => {
                    self.note(name, &what, Became::Lost, "write it at the route");
                }
                _ => {
                    self.note(name, &what, Became::Closed, "it is not understood, so the route is closed");
                    closes = true;
                }
            }
        }
        closes
    }

    /// A policy about scripts of other origins.
    pub(super) fn cors(&mut self, node: &Node) -> Option<Value> {
        if node.is_null() {
            return None;
        }
        let list = node.at("allow_origin_string_match");
        let mut origins: Vec<&str> = list.items().iter().filter_map(|one| one.at("exact").text()).collect();
        let is_whole = origins.len() == list.items().len();
        // It stands for all, and alone.
        if origins.contains(&"*") {
            origins = vec!["*"];
        }
        if !is_whole {
            self.note(list, "allow_origin_string_match", Became::Lost, "origins are named in full");
        }
        if !node.at("filter_enabled").is_null() || !node.at("shadow_enabled").is_null() {
            self.note(node, "cors", Became::Lost, "it holds for all requests or for none: write `cors`");
            return None;
        }
        if origins.is_empty() {
            return None;
        }
        let words = |key: &str| -> Vec<String> {
            let text = node.at(key).text().unwrap_or_default();
            let words = text.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty());
            let words: Vec<String> = words.collect();
            if words.iter().any(|word| word == "*") { vec!["*".to_owned()] } else { words }
        };
        let credentials = node.at("allow_credentials").is_true() && !origins.contains(&"*");
        let mut cors = json!({"origins": origins, "credentials": credentials});
        for (from, key) in [("allow_methods", "methods"), ("allow_headers", "headers"), ("expose_headers", "expose")] {
            let words = words(from);
            if !words.is_empty() {
                cors[key] = json!(words);
            }
        }
        if let Some(age) = node.at("max_age").number() {
            cors["max_age"] = json!(format!("{age}s"));
        }
        Some(cors)
    }
}

//! HTTP connection managers and their virtual hosts.

use serde_json::json;

use super::super::draft::{Became, Keys, Listener, literal, milliseconds};
use super::super::pattern::covers;
use super::super::tree::Node;
use super::{Making, duration, is_host};

const MANAGER: &[&str] = &[
    "@type",
    "stat_prefix",
    "codec_type",
    "route_config",
    "http_filters",
    "access_log",
    "access_log_options",
    "add_user_agent",
    "always_set_request_id_in_response",
    "append_x_forwarded_port",
    "common_http_protocol_options",
    "delayed_close_timeout",
    "drain_timeout",
    "forward_client_cert_details",
    "generate_request_id",
    "http2_protocol_options",
    "http_protocol_options",
    "internal_address_config",
    "max_request_headers_kb",
    "merge_slashes",
    "normalize_path",
    "path_with_escaped_slashes_action",
    "preserve_external_request_id",
    "proxy_100_continue",
    "represent_ipv4_remote_address_as_ipv4_mapped_ipv6",
    "request_headers_timeout",
    "request_timeout",
    "server_header_transformation",
    "server_name",
    "set_current_client_cert_details",
    "skip_xff_append",
    "stream_error_on_invalid_http_message",
    "stream_idle_timeout",
    "strip_any_host_port",
    "strip_matching_host_port",
    "strip_trailing_host_dot",
    "tracing",
    "upgrade_configs",
    "use_remote_address",
    "via",
    "xff_num_trusted_hops",
];

const ROUTES: &[&str] = &[
    "name",
    "virtual_hosts",
    "ignore_port_in_host_matching",
    "ignore_path_parameters_in_path_matching",
    "internal_only_headers",
    "max_direct_response_body_size_bytes",
    "metadata",
    "most_specific_header_mutations_wins",
    "request_headers_to_add",
    "request_headers_to_remove",
    "request_mirror_policies",
    "response_headers_to_add",
    "response_headers_to_remove",
    "typed_per_filter_config",
    "validate_clusters",
];

/// What Envoy takes from requests of clients, because it writes it itself.
const OF_ENVOY: &[&str] = &[
    "x-envoy-downstream-service-cluster",
    "x-envoy-downstream-service-node",
    "x-envoy-external-address",
    "x-envoy-internal",
    "x-envoy-original-path",
    "x-forwarded-client-cert",
];

/// What a connection manager gives to each of its routes.
#[derive(Default)]
pub(super) struct Manager {
    /// Keys of routes that lead to endpoints.
    pub(super) keys: Keys,
    /// Headers that clients may not send.
    pub(super) removed: Vec<String>,
    /// Clients may ask for a WebSocket on every route.
    pub(super) upgrades: bool,
    /// A filter reads what routes say about CORS. Without one, Envoy ignores it.
    pub(super) has_cors: bool,
    /// The name of the filter that asks a service.
    pub(super) auth: Option<String>,
    /// The listener has that service.
    pub(super) asks: bool,
}

impl Making<'_> {
    /// The routes of a connection manager. The first one of a listener says which service is asked.
    pub(super) fn http(&mut self, config: &Node, names: &[String], is_first: bool, listener: &mut Listener) {
        self.known_or_closed(config, MANAGER);
        let mut manager = Manager { upgrades: self.upgrades(config), ..Manager::default() };
        let asked = self.filters(config, &mut manager);
        if is_first && let Some(asked) = asked.clone() {
            listener.keys.set("external_auth", asked);
        }
        manager.asks = asked.is_some() && listener.keys.get("external_auth") == asked.as_ref();
        if !is_first && listener.keys.get("external_auth") != asked.as_ref() {
            self.close(config, "http_filters", "its chains ask different services");
        }
        self.manager(config, &mut listener.keys);
        let routes = config.at("route_config");
        if routes.is_null() {
            self.close(config, "route_config", "its routes are not in the file");
        }
        self.known_or_closed(routes, ROUTES);
        if routes.at("ignore_path_parameters_in_path_matching").is_true() {
            self.close(routes, "ignore_path_parameters_in_path_matching", "routes see the parameters of a path");
        }
        let only = routes.at("internal_only_headers").items().iter().filter_map(Node::text);
        manager.removed = OF_ENVOY.iter().copied().chain(only).map(str::to_ascii_lowercase).collect();
        let mut isolated: Vec<String> = listener
            .keys
            .get("isolated_hosts")
            .and_then(serde_json::Value::as_array)
            .map(|all| all.iter().filter_map(serde_json::Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default();
        self.is_tls = listener.keys.get("protocol").is_some_and(|protocol| protocol == "https");
        for host in routes.at("virtual_hosts").items() {
            let Some(hosts) = self.domains(host, names) else { continue };
            let mut made = self.virtual_host(host, routes, &manager);
            if !hosts.is_empty() {
                made =
                    made.into_iter().map(|route| Keys::default().with("hosts", hosts.clone()).joined(&route)).collect();
            }
            isolated.extend(hosts);
            listener.routes.extend(made);
        }
        isolated.sort_unstable();
        isolated.dedup();
        if !isolated.is_empty() {
            listener.keys.set("isolated_hosts", isolated);
        }
    }

    /// The hosts of a virtual host; empty for all, and `None` if none can be named. Whatever cannot be named exactly closes the listener, because
    /// another virtual host would take its requests.
    fn domains(&mut self, host: &Node, names: &[String]) -> Option<Vec<String>> {
        let mut hosts = Vec::new();
        let mut is_all = false;
        for domain in host.at("domains").items() {
            let text = domain.text().unwrap_or_default().to_ascii_lowercase();
            if text == "*" {
                is_all = true;
                continue;
            }
            // Ports do not count.
            let text = text.split_once(':').map_or(&*text, |(name, _)| name);
            if !is_host(text) {
                self.close(domain, text, "a host is a name, or `*.` in front of one");
            } else if !names.is_empty() && !names.iter().any(|name| covers(name, text)) {
                self.close(domain, text, "the names of its filter chain do not have this host");
            } else if !hosts.iter().any(|known| known == text) {
                hosts.push(text.to_owned());
            }
        }
        if is_all {
            // Of a chain with names, only these come here.
            hosts = names.to_vec();
        }
        let taken = if is_all && names.is_empty() { vec!["*".to_owned()] } else { hosts.clone() };
        for one in &taken {
            if !self.hosts.insert(one.clone()) {
                self.close(host, one, "two virtual hosts have this host");
            }
        }
        hosts.sort_unstable();
        (!taken.is_empty()).then_some(hosts)
    }

    /// Settings of a connection manager.
    fn manager(&mut self, config: &Node, keys: &mut Keys) {
        let common = config.at("common_http_protocol_options");
        for (node, key) in [
            (config.at("request_headers_timeout"), "header_timeout"),
            (config.at("stream_idle_timeout"), "stall_timeout"),
            (common.at("idle_timeout"), "idle_timeout"),
        ] {
            if let Some(time) = duration(node) {
                keys.set(key, milliseconds(time));
            }
        }
        if !config.at("generate_request_id").is_false() {
            let keep =
                if config.at("preserve_external_request_id").is_true() { json!({"keep": "always"}) } else { json!({}) };
            keys.set("request_id", keep);
        }
        self.limits_of_clients(config, keys);
        self.paths(config, keys);
        match common.at("headers_with_underscores_action").text() {
            None | Some("ALLOW") => {}
            Some(_) => self.close(common, "headers_with_underscores_action", "names with `_` pass"),
        }
        if config.at("xff_num_trusted_hops").number().is_some_and(|hops| hops > 0) {
            let why = "name the proxies in front in `trusted_proxies`";
            self.note(config.at("xff_num_trusted_hops"), "xff_num_trusted_hops", Became::Lost, why);
        }
        if !config.at("use_remote_address").is_true() {
            let why = "what clients send in X-Forwarded-For is replaced, unless they are in `trusted_proxies`";
            self.note(config, "use_remote_address", Became::Different, why);
        }
        if !config.at("access_log").is_null() {
            self.note(config.at("access_log"), "access_log", Became::Lost, "write `access_log` at the top of the file");
        }
        if !matches!(config.at("forward_client_cert_details").text(), None | Some("SANITIZE")) {
            let why = "endpoints get no x-forwarded-client-cert; write a header with `${client_cert_subject}`";
            self.note(config.at("forward_client_cert_details"), "forward_client_cert_details", Became::Lost, why);
        }
    }

    /// What clients may send.
    fn limits_of_clients(&mut self, config: &Node, keys: &mut Keys) {
        let common = config.at("common_http_protocol_options");
        let mut limits = keys.get("limits").cloned().unwrap_or_else(|| json!({}));
        if let Some(count) = config.at("max_request_headers_kb").number().filter(|count| *count > 0) {
            limits["header_bytes"] = json!(format!("{}KiB", count.min(1024)));
        }
        for (node, key, most) in [
            (config.at("http2_protocol_options").at("max_concurrent_streams"), "streams_per_connection", 10_000),
            (common.at("max_headers_count"), "header_count", 256),
            (common.at("max_requests_per_connection"), "requests_per_connection", 1_000_000_000),
        ] {
            let Some(count) = node.number().filter(|count| *count > 0) else { continue };
            limits[key] = json!(count.min(most));
            if count > most {
                self.note(node, key, Became::Different, &format!("the largest value of `{key}` is {most}"));
            }
        }
        if limits.as_object().is_some_and(|limits| !limits.is_empty()) {
            keys.set("limits", limits);
        }
    }

    /// Which form of a path endpoints get, and which paths are refused.
    fn paths(&mut self, config: &Node, keys: &mut Keys) {
        let mut paths = json!({});
        if config.at("normalize_path").is_true() {
            paths["forward"] = json!("normal");
        }
        let slashes = config.at("path_with_escaped_slashes_action");
        if !matches!(slashes.text(), None | Some("KEEP_UNCHANGED" | "IMPLEMENTATION_SPECIFIC_DEFAULT")) {
            paths["refuse_ambiguous"] = json!(true);
            if slashes.text() != Some("REJECT_REQUEST") {
                let why = "paths with escaped slashes are refused";
                self.note(slashes, "path_with_escaped_slashes_action", Became::Different, why);
            }
        }
        if paths.as_object().is_some_and(|paths| !paths.is_empty()) {
            keys.set("paths", paths);
        }
    }

    /// Whether a connection manager or a route lets clients ask for a WebSocket. Anything else that they may ask for closes.
    pub(super) fn upgrades(&mut self, node: &Node) -> bool {
        let mut is_allowed = false;
        for one in node.at("upgrade_configs").items() {
            let kind = one.at("upgrade_type").text().unwrap_or_default();
            let is_plain = one.entries().iter().all(|(key, _)| key.is_key("upgrade_type") || key.is_key("enabled"));
            if !kind.eq_ignore_ascii_case("websocket") || !is_plain {
                self.close(one, "upgrade_configs", "only WebSockets without filters of their own are understood");
            }
            is_allowed |= one.at("enabled").is_null() || one.at("enabled").is_true();
        }
        is_allowed
    }

    /// Adds the changes of headers of a node to a route, and reports those that are not understood.
    pub(super) fn changed(&mut self, node: &Node, removed: &[String], route: &mut Keys) {
        for side in ["request_headers", "response_headers"] {
            let mut gone: Vec<String> = if side == "request_headers" { removed.to_vec() } else { Vec::new() };
            let list = node.at(&format!("{side}_to_remove"));
            gone.extend(list.items().iter().filter_map(Node::text).map(str::to_ascii_lowercase));
            let added = node.at(&format!("{side}_to_add"));
            if route.get("to").is_none() {
                if !added.is_null() {
                    let why = "answers without an endpoint do not have them; write `headers` of `respond`";
                    self.note(added, &format!("{side}_to_add"), Became::Lost, why);
                }
                continue;
            }
            for name in &gone {
                self.header(list, route, (side, "remove", name), "");
            }
            for one in added.items() {
                self.added(one, side, &gone, route);
            }
        }
    }

    fn added(&mut self, one: &Node, side: &str, gone: &[String], route: &mut Keys) {
        let name = one.at("header").at("key").text().unwrap_or_default();
        let value = one.at("header").at("value").text().unwrap_or_default();
        let how = one.at("append_action");
        // What clients send is gone before this is added.
        let mut replaces = one.at("append").is_false() || gone.iter().any(|gone| gone.eq_ignore_ascii_case(name));
        match how.text() {
            None | Some("APPEND_IF_EXISTS_OR_ADD") => {}
            Some("OVERWRITE_IF_EXISTS_OR_ADD") => replaces = true,
            Some("OVERWRITE_IF_EXISTS") => {
                replaces = true;
                self.note(how, name, Became::Different, "it is always set");
            }
            Some(_) if replaces => {}
            Some(_) => {
                return self.note(how, name, Became::Lost, "a header is set or added whether or not it is there");
            }
        }
        let value = match value {
            "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%" => "${client_ip}".to_owned(),
            "%REQ(X-REQUEST-ID)%" => "${request_id}".to_owned(),
            "%DOWNSTREAM_PEER_SUBJECT%" => "${client_cert_subject}".to_owned(),
            "%REQUESTED_SERVER_NAME%" => "${sni}".to_owned(),
            value if value.contains('%') => {
                // A client could write it otherwise, and the endpoint relies on it.
                self.header(one, route, (side, "remove", name), "");
                let why = "its value is not understood, so nobody gets it; see the variables of Steelyard";
                return self.note(one, "header", Became::Lost, why);
            }
            value => literal(value),
        };
        self.header(one, route, (side, if replaces { "set" } else { "add" }, name), &value);
    }

    fn header(&mut self, at: &Node, route: &mut Keys, (side, how, name): (&str, &str, &str), value: &str) {
        if let Err(why) = route.header(side, how, name, value) {
            self.note(at, name, Became::Different, why);
        }
    }
}

//! `steelyard migrate envoy`: the static resources of Envoy as listeners, routes and clusters.
//!
//! A filter, a condition or an action that is not understood closes what it stands in.

mod cluster;
mod route;

use std::path::Path;

use serde_json::{Value, json};

use super::draft::{Became, Draft, Keys, Listener, closed, milliseconds, named};
use super::tree::{self, Node};

/// The translation of one file.
pub(super) struct Making<'d> {
    file: String,
    draft: &'d mut Draft,
    /// Names of Envoy's clusters, and those of ours; empty if one cannot be reached.
    clusters: Vec<(String, String)>,
}

/// What the filters of a connection manager add to every route.
#[derive(Default)]
struct Filters {
    keys: Keys,
    is_closed: bool,
}

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn translate(path: &Path) -> Result<Draft, String> {
    let file = path.display().to_string();
    let text = super::text_of(path)?;
    let documents = tree::documents(&text).map_err(|(line, why)| format!("{file}:{line}: {why}"))?;
    let Some(root) = documents.first() else { return Err(format!("{file}: the file is empty")) };
    let resources = root.at("static_resources");
    if resources.at("listeners").items().is_empty() {
        return Err(format!(
            "{file}: there are no static_resources.listeners; give the bootstrap file, or a dump of the configuration with them"
        ));
    }
    let mut draft = Draft::default();
    let mut making = Making { file, draft: &mut draft, clusters: Vec::new() };
    for (key, value) in root.entries() {
        match key.text().unwrap_or_default() {
            "static_resources"
            | "node"
            | "admin"
            | "layered_runtime"
            | "stats_config"
            | "overload_manager"
            | "stats_flush_interval" => {}
            name => making.note(value, name, Became::Lost, "only static_resources are translated"),
        }
    }
    for node in resources.at("clusters").items() {
        making.cluster(node);
    }
    for node in resources.at("listeners").items() {
        making.listener(node);
    }
    Ok(draft)
}

impl Making<'_> {
    pub(super) fn note(&mut self, node: &Node, what: &str, became: Became, why: &str) {
        self.draft.note((&self.file, node.line), what, became, why);
    }

    /// Our cluster for a name; `None` if it is not known or cannot be reached.
    pub(super) fn named_cluster(&mut self, node: &Node) -> Option<String> {
        let name = node.text().unwrap_or_default();
        let found = self.clusters.iter().find(|(known, _)| known == name).map(|(_, ours)| ours.clone());
        let found = found.filter(|ours| !ours.is_empty());
        if found.is_none() {
            self.note(
                node,
                name,
                Became::Closed,
                "there is no such cluster with addresses in the file, so what leads to it is closed",
            );
        }
        found
    }

    fn listener(&mut self, node: &Node) {
        let name = node.at("name").text().unwrap_or("listener").to_owned();
        let Some(bind) = address(node.at("address")) else {
            return self.note(node, &name, Became::Lost, "Steelyard listens on addresses and ports");
        };
        let filters: Vec<&str> =
            node.at("listener_filters").items().iter().filter_map(|one| one.at("name").text()).collect();
        let has_proxy_protocol = filters.iter().any(|name| name.contains("proxy_protocol"));
        let chains = node.at("filter_chains").items();
        let is_tls = chains.iter().any(|chain| !chain.at("transport_socket").is_null());
        let mut keys = Keys::default().with("bind", bind);
        if has_proxy_protocol {
            keys.set("proxy_protocol", true);
        }
        let mut tls = json!({"certificates": []});
        let mut listener = Listener::default();
        let mut protocol = None;
        for chain in chains {
            let names = self.chain_names(chain);
            self.tls(chain, &mut tls, names.as_deref());
            let Some(names) = names else { continue };
            for filter in chain.at("filters").items() {
                let config = filter.at("typed_config");
                let kind = config.at("@type").text().unwrap_or_default();
                if kind.ends_with("HttpConnectionManager") {
                    protocol = Some(if is_tls { "https" } else { "http" });
                    self.http(config, &names, is_tls, &mut listener);
                } else if kind.ends_with("TcpProxy") {
                    let route = self.tcp(config, &names);
                    let passes = chain.at("transport_socket").is_null()
                        && (!names.is_empty() || filters.iter().any(|name| name.contains("tls_inspector")));
                    protocol = Some(if passes {
                        "tls_passthrough"
                    } else if is_tls {
                        "tls"
                    } else {
                        "tcp"
                    });
                    listener.routes.push(route);
                } else {
                    let what = filter.at("name").text().unwrap_or(kind).to_owned();
                    self.note(filter, &what, Became::Closed, "the filter is not understood, so the listener is closed");
                    listener.routes.insert(0, closed(&Keys::default()));
                }
            }
        }
        let Some(protocol) = protocol else {
            return self.note(node, &name, Became::Lost, "it has neither an HTTP connection manager nor a TCP proxy");
        };
        keys.set("protocol", protocol);
        if ["https", "tls"].contains(&protocol) {
            keys.set("tls", tls);
        }
        self.finish(name, protocol, keys, listener);
    }

    fn finish(&mut self, name: String, protocol: &str, keys: Keys, mut listener: Listener) {
        listener.keys = keys.joined(&listener.keys);
        if protocol == "tcp"
            && let Some(route) = listener.routes.drain(..).next()
        {
            match route.get("to").cloned() {
                Some(to) if to.is_string() => listener.keys.set("to", to),
                _ => {
                    let nowhere = Keys::default().with("endpoints", json!(["127.0.0.1:9"]));
                    let nowhere = self.draft.cluster("nowhere", nowhere);
                    listener.keys = listener.keys.with("to", nowhere).with("deny", json!(["0.0.0.0/0", "::/0"]));
                }
            }
        }
        if ["tls", "tls_passthrough"].contains(&protocol) {
            // A name that leads nowhere is refused.
            listener.routes.retain(|route| route.get("to").is_some());
        }
        self.draft.listeners.push((named(&name), listener));
    }

    /// The names that a chain is for; `None` if something else chooses it.
    fn chain_names(&mut self, chain: &Node) -> Option<Vec<String>> {
        let conditions = chain.at("filter_chain_match");
        let known = ["server_names", "transport_protocol", "application_protocols"];
        let unknown = conditions.entries().iter().find(|(key, _)| {
            !known.contains(&key.text().unwrap_or_default())
                && key.text() != Some("serverNames")
                && key.text() != Some("transportProtocol")
        });
        if let Some((key, _)) = unknown {
            let what = key.text().unwrap_or_default().to_owned();
            self.note(
                key,
                &what,
                Became::Closed,
                "only the names that clients ask for choose a chain: this one is left out",
            );
            return None;
        }
        Some(conditions.at("server_names").items().iter().filter_map(Node::text).map(str::to_owned).collect())
    }

    fn tls(&mut self, chain: &Node, tls: &mut Value, names: Option<&[String]>) {
        let socket = chain.at("transport_socket");
        if socket.is_null() {
            return;
        }
        let config = socket.at("typed_config");
        let common = config.at("common_tls_context");
        for pair in common.at("tls_certificates").items() {
            let file = |key: &str| pair.at(key).at("filename").text().map(str::to_owned);
            match (file("certificate_chain"), file("private_key")) {
                (Some(cert), Some(key)) => {
                    if let Some(all) = tls["certificates"].as_array_mut() {
                        all.push(json!({"cert": cert, "key": key}));
                    }
                }
                _ => self.note(pair, "tls_certificates", Became::Lost, "write the certificate and its key to files"),
            }
        }
        if !common.at("tls_certificate_sds_secret_configs").is_null() {
            self.note(
                common,
                "tls_certificate_sds_secret_configs",
                Became::Lost,
                "certificates are in files: add them to `certificates`",
            );
        }
        if common.at("tls_params").at("tls_minimum_protocol_version").text() == Some("TLSv1_3") {
            tls["min_version"] = json!("1.3");
        }
        let context = common.at("validation_context");
        let ca = context.at("trusted_ca").at("filename").text();
        if config.at("require_client_certificate").is_true() {
            let mut client = json!({"ca": ca.unwrap_or("missing.pem")});
            let has_more = context
                .entries()
                .iter()
                .any(|(key, _)| !["trusted_ca", "trustedCa"].contains(&key.text().unwrap_or_default()));
            if ca.is_none() || has_more || !common.at("validation_context_sds_secret_config").is_null() {
                client["ca"] = json!("missing.pem");
                self.note(
                    config,
                    "validation_context",
                    Became::Closed,
                    "only `trusted_ca` in a file is understood: no certificate is accepted until you write `client_ca`",
                );
            }
            if let Some(names) = names.filter(|names| !names.is_empty()) {
                client["hosts"] = json!(names);
            }
            tls["client_ca"] = client;
        }
    }

    fn http(&mut self, config: &Node, names: &[String], is_tls: bool, listener: &mut Listener) {
        let filters = self.filters(config);
        self.manager(config, &mut listener.keys);
        let routes = config.at("route_config");
        if routes.is_null() {
            self.note(config, "rds", Became::Closed, "routes of a server are not known, so the listener is closed");
            listener.routes.push(closed(&Keys::default()));
        }
        let mut isolated: Vec<String> = listener
            .keys
            .get("isolated_hosts")
            .and_then(Value::as_array)
            .map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect())
            .unwrap_or_default();
        for host in routes.at("virtual_hosts").items() {
            let Some(hosts) = self.domains(host, names) else { continue };
            let mut made = self.virtual_host(host, is_tls);
            for route in &mut made {
                if filters.is_closed {
                    *route = closed(route);
                } else if route.get("to").is_some() {
                    for (key, value) in filters.keys.entries() {
                        if route.get(key).is_none() {
                            route.set(key, value.clone());
                        }
                    }
                }
                self.changed(routes, route);
                if !hosts.is_empty() {
                    *route = Keys::default().with("hosts", hosts.clone()).joined(route);
                }
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

    /// The hosts of a virtual host; empty for all, and `None` if none can be named.
    fn domains(&mut self, host: &Node, names: &[String]) -> Option<Vec<String>> {
        let mut hosts = Vec::new();
        for domain in host.at("domains").items() {
            let text = domain.text().unwrap_or_default().to_ascii_lowercase();
            if text == "*" {
                // Of a chain with names, only these come here.
                return Some(names.to_vec());
            }
            let text = text.split(':').next().unwrap_or_default();
            let bare = text.strip_prefix("*.").unwrap_or(text);
            if bare.is_empty() || bare.contains('*') {
                self.note(domain, text, Became::Lost, "a host is a name, or `*.` in front of one");
                continue;
            }
            hosts.push(text.to_owned());
        }
        hosts.sort_unstable();
        hosts.dedup();
        (!hosts.is_empty()).then_some(hosts)
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
        if config.at("generate_request_id").text() != Some("false") {
            let keep =
                if config.at("preserve_external_request_id").is_true() { json!({"keep": "always"}) } else { json!({}) };
            keys.set("request_id", keep);
        }
        if config.at("xff_num_trusted_hops").number().is_some_and(|hops| hops > 0) {
            self.note(
                config.at("xff_num_trusted_hops"),
                "xff_num_trusted_hops",
                Became::Lost,
                "name the proxies in front in `trusted_proxies`",
            );
        }
        if !config.at("use_remote_address").is_true() {
            let why = "what clients send in X-Forwarded-For is replaced, unless they are in `trusted_proxies`";
            self.note(config, "use_remote_address", Became::Different, why);
        }
        if !config.at("access_log").is_null() {
            self.note(config.at("access_log"), "access_log", Became::Lost, "write `access_log` at the top of the file");
        }
    }

    fn filters(&mut self, config: &Node) -> Filters {
        let mut all = Filters::default();
        for filter in config.at("http_filters").items() {
            let name = filter.at("name").text().unwrap_or_default().to_owned();
            let inner = filter.at("typed_config");
            let kind = inner.at("@type").text().unwrap_or(&name).to_ascii_lowercase();
            let has = |part: &str| kind.contains(part);
            if has("router")
                || has("filters.http.cors")
                || has("grpc_stats")
                || has("grpcstats")
                || has("health_check")
                || has("grpc_web")
                || has("grpcweb")
            {
                continue;
            }
            if has("buffer.v3") {
                let bytes = inner.at("max_request_bytes").number().unwrap_or(1 << 20).clamp(1, 16 << 20);
                all.keys.set("buffer", json!({"max_size": format!("{bytes}B")}));
            } else if has("compressor") {
                all.keys.set("compress", json!({}));
                self.note(filter, &name, Became::Different, "responses are compressed as `compress` says");
            } else if has("ext_authz") {
                match self.asked(inner) {
                    Some(auth) => all.keys.set("external_auth", auth),
                    None => {
                        self.note(
                            filter,
                            &name,
                            Became::Closed,
                            "the service is not understood, so the listener is closed; write `external_auth`",
                        );
                        all.is_closed = true;
                    }
                }
            } else if [
                "ratelimit",
                "fault",
                "tap",
                "decompressor",
                "header_to_metadata",
                "on_demand",
                "admission_control",
            ]
            .iter()
            .any(|part| has(part))
            {
                self.note(filter, &name, Became::Lost, "write `rate_limit`, `global_rate_limit` or `decompress`");
            } else {
                self.note(
                    filter,
                    &name,
                    Became::Closed,
                    "the filter is not understood and may keep somebody out, so the listener is closed",
                );
                all.is_closed = true;
            }
        }
        all
    }

    /// Adds the changes of headers of a node to a route, and reports those that are not understood.
    pub(super) fn changed(&mut self, node: &Node, route: &mut Keys) {
        if route.get("to").is_none() {
            return;
        }
        for side in ["request_headers", "response_headers"] {
            for one in node.at(&format!("{side}_to_add")).items() {
                self.added(one, side, route);
            }
            let removed = node.at(&format!("{side}_to_remove"));
            for name in removed.items().iter().filter_map(Node::text) {
                self.header(removed, route, (side, "remove", name), "");
            }
        }
    }

    fn added(&mut self, one: &Node, side: &str, route: &mut Keys) {
        let (name, value) = (
            one.at("header").at("key").text().unwrap_or_default(),
            one.at("header").at("value").text().unwrap_or_default(),
        );
        let replaces = one.at("append").text() == Some("false")
            || one.at("append_action").text().is_some_and(|how| how.starts_with("OVERWRITE"));
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
            value => super::draft::literal(value),
        };
        self.header(one, route, (side, if replaces { "set" } else { "add" }, name), &value);
    }

    fn header(&mut self, at: &Node, route: &mut Keys, (side, how, name): (&str, &str, &str), value: &str) {
        if let Err(why) = route.header(side, how, name, value) {
            self.note(at, name, Became::Different, why);
        }
    }

    /// `external_auth` of the filter.
    fn asked(&mut self, config: &Node) -> Option<Value> {
        let (grpc, http) = (config.at("grpc_service"), config.at("http_service"));
        let service =
            if grpc.is_null() { http.at("server_uri").at("cluster") } else { grpc.at("envoy_grpc").at("cluster_name") };
        let to = self.named_cluster(service)?;
        let time = if grpc.is_null() { http.at("server_uri").at("timeout") } else { grpc.at("timeout") };
        let mut auth = json!({"to": to, "timeout": milliseconds(duration(time).unwrap_or(200))});
        match grpc.is_null() {
            true => {
                auth["http"] =
                    json!({"prefix": http.at("path_prefix").text().filter(|path| path.starts_with('/')).unwrap_or("/")})
            }
            false => auth["grpc"] = json!({}),
        }
        if config.at("failure_mode_allow").is_true() {
            auth["fail_open"] = json!(true);
        }
        if let Some(code) = config.at("status_on_error").at("code").number() {
            auth["failure_status"] = json!(code);
        } else {
            auth["failure_status"] = json!(403);
        }
        let passed = http.at("authorization_response").at("allowed_upstream_headers").at("patterns");
        let names: Vec<&str> = passed.items().iter().filter_map(|one| one.at("exact").text()).collect();
        if names.len() < passed.items().len() {
            self.note(passed, "allowed_upstream_headers", Became::Lost, "headers are named in full");
        }
        if !names.is_empty() {
            auth["response_headers"] = json!(names);
        }
        Some(auth)
    }

    fn tcp(&mut self, config: &Node, names: &[String]) -> Keys {
        let mut route = Keys::default();
        if !names.is_empty() {
            route.set("sni", names.to_vec());
        }
        if !config.at("weighted_clusters").is_null() {
            self.note(
                config.at("weighted_clusters"),
                "weighted_clusters",
                Became::Closed,
                "connections go to one cluster; this is left out",
            );
            return route;
        }
        match self.named_cluster(config.at("cluster")) {
            Some(to) => route.with("to", to),
            None => route,
        }
    }
}

/// `{socket_address: {address, port_value}}`
pub(super) fn address(node: &Node) -> Option<String> {
    let socket = node.at("socket_address");
    let host = socket.at("address").text()?;
    let port = socket.at("port_value").number().filter(|port| (1..=65_535).contains(port))?;
    Some(match host {
        "::" => format!(":{port}"),
        host if host.contains(':') => format!("[{host}]:{port}"),
        host => format!("{host}:{port}"),
    })
}

/// `0.25s` in milliseconds; `None` for none and for zero.
pub(super) fn duration(node: &Node) -> Option<u64> {
    let seconds: f64 = node.text()?.strip_suffix('s')?.parse().ok()?;
    let milliseconds = (seconds * 1000.0).round();
    (1.0..1e12).contains(&milliseconds).then_some(milliseconds as u64)
}

#[cfg(test)]
mod tests;

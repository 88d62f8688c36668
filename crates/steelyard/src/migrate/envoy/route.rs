//! The routes of a virtual host.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed, literal, milliseconds};
use super::super::pattern::escaped;
use super::super::tree::Node;
use super::http::Manager;
use super::matches::{Matched, Path};
use super::{Making, duration};

const HOST: &[&str] = &[
    "name",
    "domains",
    "routes",
    "require_tls",
    "cors",
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "typed_per_filter_config",
    "retry_policy",
    "include_request_attempt_count",
    "include_attempt_count_in_response",
    "metadata",
    "per_request_buffer_limit_bytes",
    "rate_limits",
    "virtual_clusters",
];

const ROUTE: &[&str] = &[
    "name",
    "match",
    "route",
    "redirect",
    "direct_response",
    "metadata",
    "decorator",
    "request_headers_to_add",
    "request_headers_to_remove",
    "response_headers_to_add",
    "response_headers_to_remove",
    "typed_per_filter_config",
    "stat_prefix",
    "tracing",
];

const ACTION: &[&str] = &[
    "cluster",
    "weighted_clusters",
    "cluster_not_found_response_code",
    "prefix_rewrite",
    "regex_rewrite",
    "host_rewrite_literal",
    "host_rewrite",
    "auto_host_rewrite",
    "timeout",
    "idle_timeout",
    "retry_policy",
    "request_mirror_policies",
    "hash_policy",
    "cors",
    "rate_limits",
    "upgrade_configs",
    "max_stream_duration",
    "priority",
    "append_x_forwarded_host",
    "max_grpc_timeout",
    "include_vh_rate_limits",
];

/// The largest body of a fixed response.
const BODY_BYTES_MAX: usize = 32 << 10;

impl Making<'_> {
    pub(super) fn virtual_host(&mut self, host: &Node, config: &Node, manager: &Manager) -> Vec<Keys> {
        if self.unknown(host, HOST, "the virtual host is closed") {
            host.told();
            return vec![closed(&Keys::default())];
        }
        if !self.is_tls && host.at("require_tls").text().is_some_and(|text| text != "NONE") {
            return vec![Keys::default().with("redirect", json!({"scheme": "https", "status": 301}))];
        }
        let mut routes = Vec::new();
        for node in host.at("routes").items() {
            let action = node.at("route");
            let upgrades = manager.upgrades && action.at("upgrade_configs").is_null() || self.upgrades(action);
            let mut route = self.route(node, [config, host, node], manager);
            for from in [node, host, config] {
                self.changed(from, &manager.removed, &mut route);
            }
            routes.push((route, upgrades));
        }
        let allows_any = routes.iter().any(|(_, upgrades)| *upgrades);
        let mut all = Vec::new();
        if !allows_any {
            all.extend(without_upgrade(&Keys::default()));
        }
        for (route, upgrades) in routes {
            if allows_any && !upgrades {
                all.extend(without_upgrade(&route));
            }
            all.push(route);
        }
        all
    }

    fn route(&mut self, node: &Node, levels: [&Node; 3], manager: &Manager) -> Keys {
        let matched = self.matches(node.at("match"));
        let mut is_closed = !matched.is_exact | self.unknown(node, ROUTE, "the route is closed");
        let mut policies = Keys::default();
        is_closed |= self.per_filter(levels, manager, &mut policies);
        let (action, redirect, answer) = (node.at("route"), node.at("redirect"), node.at("direct_response"));
        let mut made = match () {
            () if is_closed => None,
            () if !redirect.is_null() => self.redirect(redirect, &matched),
            () if !answer.is_null() => self.answer(answer, &matched),
            () => self.action(action, &matched),
        };
        // Whoever is not asked is refused.
        if let Some(route) = &mut made
            && let Some(off) = policies.get("external_auth").filter(|_| manager.asks)
        {
            route.set("external_auth", off.clone());
        }
        let Some(mut route) = made else {
            // It was not read to the end.
            node.told();
            return closed(&matched.keys);
        };
        if route.get("to").is_none() {
            return route;
        }
        route = Keys::default().joined(&route);
        for (key, value) in manager.keys.entries() {
            route.set(key, value.clone());
        }
        if route.get("mirror").is_none() {
            let copies = self.copies(levels[0].at("request_mirror_policies"));
            if !copies.is_empty() {
                route.set("mirror", copies);
            }
        }
        let host = levels[1];
        if !manager.has_cors {
            action.at("cors").told();
            host.at("cors").told();
        } else if let Some(cors) = self.cors(action.at("cors")).or_else(|| self.cors(host.at("cors"))) {
            route.set("cors", cors);
        }
        if let Some(cors) = policies.get("cors") {
            route.set("cors", cors.clone());
        }
        if route.get("retry").is_none()
            && let Some(retry) = self.retry(host.at("retry_policy"))
        {
            route.set("retry", retry);
        }
        route
    }

    fn answer(&mut self, node: &Node, matched: &Matched) -> Option<Keys> {
        if self.unknown(node, &["status", "body"], "the route is closed") {
            return None;
        }
        let mut value = json!({"status": node.at("status").number().unwrap_or(200).clamp(200, 599)});
        let body = node.at("body");
        if !body.is_null() {
            value["content_type"] = json!("text/plain");
        }
        match (body.at("inline_string").text(), body.at("filename").text()) {
            (Some(text), _) if text.len() <= BODY_BYTES_MAX => value["body"] = json!(text),
            (None, Some(file)) => value["file"] = json!(file),
            (None, None) if body.is_null() => {}
            _ => self.note(body, "body", Became::Lost, "a body is a text of at most 32 KiB, or in a file"),
        }
        Some(matched.keys.clone().with("respond", value))
    }

    fn redirect(&mut self, node: &Node, matched: &Matched) -> Option<Keys> {
        const KNOWN: &[&str] = &[
            "https_redirect",
            "scheme_redirect",
            "host_redirect",
            "port_redirect",
            "path_redirect",
            "prefix_rewrite",
            "response_code",
            "strip_query",
        ];
        if self.unknown(node, KNOWN, "the route is closed") {
            return None;
        }
        let mut keys = matched.keys.clone();
        let status = match node.at("response_code").text() {
            Some("FOUND") => 302,
            Some("SEE_OTHER") => 303,
            Some("TEMPORARY_REDIRECT") => 307,
            Some("PERMANENT_REDIRECT") => 308,
            _ => 301,
        };
        let mut to = json!({"status": status});
        if node.at("https_redirect").is_true() {
            to["scheme"] = json!("https");
        }
        if let Some(scheme) = node.at("scheme_redirect").text() {
            to["scheme"] = json!(scheme);
        }
        if let Some(host) = node.at("host_redirect").text() {
            let (host, port) = host.rsplit_once(':').filter(|_| !host.ends_with(']')).unwrap_or((host, ""));
            to["host"] = json!(host);
            if let Ok(port) = port.parse::<u16>() {
                to["port"] = json!(port);
            } else if to.get("scheme").is_none() {
                // A new host has the default port, not that of the listener.
                to["port"] = json!(if self.is_tls { 443 } else { 80 });
            }
        }
        if let Some(port) = node.at("port_redirect").number().filter(|port| *port > 0) {
            to["port"] = json!(port);
        }
        if let Some(path) = node.at("path_redirect").text() {
            if path.contains(['?', '#']) {
                self.note(node, "path_redirect", Became::Closed, "a path has no query, so the route is closed");
                return None;
            }
            to["path"] = json!(literal(path));
        }
        if let Some(new) = node.at("prefix_rewrite").text() {
            let (path, rewritten) = matched.path.replaced(matched.ignores_case, new);
            keys.set("path", path);
            to["path"] = json!(rewritten);
        }
        if node.at("strip_query").is_true() {
            self.note(node, "strip_query", Became::Different, "the query stays");
        }
        Some(keys.with("redirect", to))
    }

    /// What a route leads to; `None` closes it.
    fn action(&mut self, node: &Node, matched: &Matched) -> Option<Keys> {
        if self.unknown(node, ACTION, "the route is closed") {
            return None;
        }
        let mut route = matched.keys.clone();
        let weighted = node.at("weighted_clusters");
        if weighted.is_null() {
            route.set("to", self.named_cluster(node.at("cluster"))?);
        } else {
            route.set("to", self.shares(weighted)?);
        }
        if let Some(new) = node.at("prefix_rewrite").text().filter(|new| !new.is_empty()) {
            let (path, rewritten) = matched.path.replaced(matched.ignores_case, new);
            route.set("path", path);
            route.set_in("rewrite", "path", rewritten);
        }
        self.rewritten(node, matched, &mut route)?;
        match node.at("timeout").text() {
            Some(text) if text.trim_end_matches('s').parse::<f64>() == Ok(0.0) => {}
            _ => route.set("timeout", milliseconds(duration(node.at("timeout")).unwrap_or(15_000))),
        }
        self.rest(node, &mut route);
        Some(route)
    }

    /// Clusters and their weights; `None` if one is not known.
    fn shares(&mut self, weighted: &Node) -> Option<Value> {
        let what = "the route is closed";
        if self.unknown(weighted, &["clusters", "total_weight", "runtime_key_prefix"], what) {
            return None;
        }
        let mut shares = Vec::new();
        for one in weighted.at("clusters").items() {
            if self.unknown(one, &["name", "weight"], what) {
                return None;
            }
            let to = self.named_cluster(one.at("name"))?;
            shares.push(json!({"cluster": to, "weight": one.at("weight").number().unwrap_or(0).min(1_000_000)}));
        }
        (!shares.is_empty()).then(|| json!(shares))
    }

    /// The new path by an expression, and the new host; `None` closes the route.
    fn rewritten(&mut self, node: &Node, matched: &Matched, route: &mut Keys) -> Option<()> {
        let regex = node.at("regex_rewrite");
        if !regex.is_null() {
            let pattern = regex.at("pattern").at("regex").text().unwrap_or_default();
            let to = regex.at("substitution").text().unwrap_or_default();
            let whole = pattern.strip_prefix('^').and_then(|rest| rest.strip_suffix('$').or(Some(rest)));
            let is_whole = whole.is_some_and(|whole| match &matched.path {
                Path::Regex(text) => pattern.ends_with('$') && whole == text,
                Path::Prefix(prefix) => {
                    [prefix.clone(), escaped(prefix)].iter().any(|prefix| whole == format!("{prefix}(.*)"))
                }
                Path::All => whole == "(.*)" || whole == "/(.*)",
                Path::Exact(_) | Path::Separated(_) => false,
            });
            let Some(whole) = whole.filter(|_| is_whole && !matched.ignores_case) else {
                let why = "only the expression of the whole path that the route matches is understood, so the route is closed";
                self.note(regex, "regex_rewrite", Became::Closed, why);
                return None;
            };
            let text = match &matched.path {
                Path::Prefix(prefix) => format!("{}(.*)", escaped(prefix)),
                _ => whole.to_owned(),
            };
            route.set("path", json!({"regex": text}));
            route.set_in("rewrite", "path", groups(to));
        }
        if let Some(host) = node.at("host_rewrite_literal").text().or(node.at("host_rewrite").text()) {
            route.set_in("rewrite", "host", host);
        }
        if node.at("auto_host_rewrite").is_true() {
            let Some(host) = self.host_of_endpoints(route.get("to")) else {
                let why = "the endpoints do not have one name, so the route is closed; write `rewrite: {host: ...}`";
                self.note(node.at("auto_host_rewrite"), "auto_host_rewrite", Became::Closed, why);
                return None;
            };
            route.set_in("rewrite", "host", host);
        }
        Some(())
    }

    /// The one name that all endpoints of a cluster have.
    fn host_of_endpoints(&self, to: Option<&Value>) -> Option<String> {
        let cluster = to?.as_str()?;
        let (_, keys) = self.draft.clusters.iter().find(|(name, _)| name == cluster)?;
        let mut hosts = keys.get("endpoints")?.as_array()?.iter().map(|endpoint| {
            let (host, _) = endpoint["address"].as_str()?.rsplit_once(':')?;
            Some(host).filter(|host| host.parse::<std::net::IpAddr>().is_err() && !host.starts_with('['))
        });
        let first = hosts.next()??;
        hosts.all(|host| host == Some(first)).then(|| first.to_owned())
    }

    fn rest(&mut self, node: &Node, route: &mut Keys) {
        if let Some(retry) = self.retry(node.at("retry_policy")) {
            route.set("retry", retry);
        }
        let copies = self.copies(node.at("request_mirror_policies"));
        if !copies.is_empty() {
            route.set("mirror", copies);
        }
        for (key, why) in [
            ("max_stream_duration", "it has no equivalent at a route"),
            ("hash_policy", "write `balance: {maglev: {key: ...}}` of the cluster"),
        ] {
            if !node.at(key).is_null() {
                self.note(node.at(key), key, Became::Lost, why);
            }
        }
    }

    /// The clusters that get copies.
    fn copies(&mut self, policies: &Node) -> Vec<Value> {
        let mut copies = Vec::new();
        for one in policies.items().iter().take(4) {
            let name = one.at("cluster").text().unwrap_or_default();
            let to = self.clusters.iter().find(|(known, ours)| known == name && !ours.is_empty());
            let Some((_, to)) = to.cloned() else {
                self.note(one, "request_mirror_policies", Became::Lost, "no cluster of the file gets the copies");
                continue;
            };
            let fraction = one.at("runtime_fraction").at("default_value");
            let of = match fraction.at("denominator").text() {
                Some("TEN_THOUSAND") => 10_000.0,
                Some("MILLION") => 1_000_000.0,
                _ => 100.0,
            };
            let numerator = if fraction.is_null() { Some(of as u64) } else { fraction.at("numerator").number() };
            let percent = numerator.unwrap_or(0) as f64 * 100.0 / of;
            if percent > 0.0 {
                let whole = percent.round().clamp(1.0, 100.0);
                if whole != percent {
                    let why = format!("{whole} % of the requests are copied: the share is in whole percent");
                    self.note(fraction, "runtime_fraction", Became::Different, &why);
                }
                copies.push(json!({"to": to, "percent": whole as u64}));
            }
        }
        copies
    }

    fn retry(&mut self, node: &Node) -> Option<Value> {
        if node.is_null() {
            return None;
        }
        let mut on: Vec<String> = Vec::new();
        for word in node.at("retry_on").text().unwrap_or_default().split(',').map(str::trim) {
            match word {
                "5xx" => {
                    on.extend(["connect_failure", "reset", "timeout", "500", "502", "503", "504"].map(str::to_owned))
                }
                "gateway-error" => on.extend(["502", "503", "504"].map(str::to_owned)),
                "reset" | "refused-stream" | "reset-before-request" => on.push("reset".to_owned()),
                "connect-failure" => on.push("connect_failure".to_owned()),
                "retriable-status-codes" => on
                    .extend(node.at("retriable_status_codes").items().iter().filter_map(Node::text).map(str::to_owned)),
                "" => {}
                other => {
                    let why = "retries are for connections, timeouts and statuses";
                    self.note(node.at("retry_on"), other, Became::Lost, why);
                }
            }
        }
        on.sort_unstable();
        on.dedup();
        let most = node.at("num_retries").number().unwrap_or(1);
        if most == 0 {
            node.told();
            return None;
        }
        let mut retry = json!({"attempts": most.min(10)});
        if !on.is_empty() {
            retry["on"] = json!(on);
        }
        if let Some(time) = duration(node.at("per_try_timeout")) {
            retry["per_try_timeout"] = json!(milliseconds(time));
        }
        Some(retry)
    }
}

/// Routes that refuse the requests of another one that ask for another protocol, such as a WebSocket. `h2c` is not among them, because both programs
/// ignore it. In HTTP/2 such a request has no `Upgrade` (RFC 8441 section 5).
pub(in super::super) fn without_upgrade(route: &Keys) -> [Keys; 2] {
    let other = json!({"regex": "(?i)(?:[^h].*|h(?:[^2].*)?|h2(?:[^c].*)?|h2c.+)"});
    [("upgrade", other), ("sec-websocket-version", json!({"present": true}))].map(|(name, value)| {
        let mut refused = closed(route);
        // If the route has another condition on it, all that it takes is refused.
        let _is_added = refused.condition("headers", name, value);
        refused
    })
}

/// `/\1` as `/${1}`.
fn groups(text: &str) -> String {
    let mut out = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letters.peek().filter(|next| letter == '\\' && next.is_ascii_digit()).copied() {
            Some(digit) => {
                letters.next();
                out.push_str(&format!("${{{digit}}}"));
            }
            None => out.push_str(&literal(&letter.to_string())),
        }
    }
    out
}

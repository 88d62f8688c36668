//! The routes of a virtual host.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed, escaped, literal, milliseconds, searched};
use super::super::tree::Node;
use super::{Making, duration};

impl Making<'_> {
    pub(super) fn virtual_host(&mut self, host: &Node, is_tls: bool) -> Vec<Keys> {
        const KNOWN: &[&str] = &[
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
        ];
        if !is_tls && host.at("require_tls").text().is_some_and(|text| text != "NONE") {
            return vec![Keys::default().with("redirect", json!({"scheme": "https", "status": 301}))];
        }
        if self.unknown(host, KNOWN, "the virtual host is closed") {
            return vec![closed(&Keys::default())];
        }
        let mut routes = Vec::new();
        for node in host.at("routes").items() {
            let mut route = self.route(node, host);
            for from in [node, host] {
                self.changed(from, &mut route);
            }
            routes.push(route);
        }
        routes
    }

    /// Reports keys that are not known, and returns whether there are any.
    fn unknown(&mut self, node: &Node, known: &[&str], what: &str) -> bool {
        let mut found = false;
        for (key, value) in node.entries() {
            let name = key.text().unwrap_or_default();
            let is_known = known.iter().any(|known| *known == name || super::super::tree::camel(known) == name);
            if !is_known && !value.is_null() {
                self.note(key, name, Became::Closed, &format!("it is not understood, so {what}"));
                found = true;
            }
        }
        found
    }

    fn route(&mut self, node: &Node, host: &Node) -> Keys {
        const KNOWN: &[&str] = &[
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
        let matched = node.at("match");
        let (keys, is_exact) = self.matches(matched);
        let mut is_closed = !is_exact | self.unknown(node, KNOWN, "the route is closed");
        let mut policies = Keys::default();
        for from in [host, node] {
            is_closed |= self.per_filter(from.at("typed_per_filter_config"), &mut policies);
        }
        if is_closed {
            return closed(&keys);
        }
        let (action, redirect, answer) = (node.at("route"), node.at("redirect"), node.at("direct_response"));
        if !redirect.is_null() {
            return self.redirect(redirect, matched, keys);
        }
        if !answer.is_null() {
            let mut value = json!({"status": answer.at("status").number().unwrap_or(200).clamp(200, 599)});
            match (answer.at("body").at("inline_string").text(), answer.at("body").at("filename").text()) {
                (Some(text), _) => value["body"] = json!(text),
                (None, Some(file)) => value["file"] = json!(file),
                (None, None) => {}
            }
            return keys.with("respond", value);
        }
        let Some(made) = self.action(action, matched, keys.clone()) else { return closed(&keys) };
        let mut route = made.joined(&policies);
        if let Some(cors) = cors(action.at("cors")).or_else(|| cors(host.at("cors"))) {
            route.set("cors", cors);
        }
        if route.get("retry").is_none()
            && let Some(retry) = self.retry(host.at("retry_policy"))
        {
            route.set("retry", retry);
        }
        route
    }

    /// The conditions of a route, and whether they are exact; otherwise they take more.
    fn matches(&mut self, node: &Node) -> (Keys, bool) {
        const KNOWN: &[&str] = &[
            "prefix",
            "path",
            "safe_regex",
            "path_separated_prefix",
            "headers",
            "query_parameters",
            "case_sensitive",
            "grpc",
            "runtime_fraction",
        ];
        let mut keys = Keys::default();
        let mut is_exact = !self.unknown(node, KNOWN, "the route is closed");
        let ignores_case = node.at("case_sensitive").text() == Some("false");
        let case = if ignores_case { "(?i)" } else { "" };
        if let Some(path) = node.at("path").text() {
            keys.set(
                "path",
                if ignores_case {
                    json!({"regex": format!("{case}{}", escaped(path))})
                } else {
                    json!({"exact": path})
                },
            );
        } else if let Some(prefix) = node.at("path_separated_prefix").text() {
            keys.set("path", prefix);
        } else if let Some(regex) = node.at("safe_regex").at("regex").text() {
            keys.set("path", json!({"regex": regex}));
        } else if let Some(prefix) = node.at("prefix").text().filter(|prefix| !["", "/"].contains(prefix)) {
            keys.set("path", json!({"regex": format!("{case}{}.*", escaped(prefix))}));
        }
        if !node.at("runtime_fraction").is_null() {
            self.note(
                node.at("runtime_fraction"),
                "runtime_fraction",
                Became::Closed,
                "a share of requests is a weight of clusters, so the route is closed",
            );
            is_exact = false;
        }
        if !node.at("grpc").is_null() {
            keys.set_in("headers", "content-type", json!({"regex": "application/grpc.*"}));
        }
        for (from, key) in [("headers", "headers"), ("query_parameters", "query")] {
            for one in node.at(from).items() {
                let name = one.at("name").text().unwrap_or_default();
                let condition = text_matcher(one);
                match (name, condition) {
                    (":method", Some(Value::String(method))) => keys.set("methods", json!([method])),
                    (":authority" | "host", Some(Value::String(host))) => keys.set("hosts", json!([host])),
                    (name, Some(condition)) if !name.starts_with(':') => keys.set_in(key, name, condition),
                    (name, _) => {
                        self.note(
                            one,
                            name,
                            Became::Closed,
                            "the condition is not understood, so what it may be about is closed",
                        );
                        is_exact = false;
                    }
                }
            }
        }
        (keys, is_exact)
    }

    /// Settings of filters for a route; whether one is not understood.
    fn per_filter(&mut self, node: &Node, route: &mut Keys) -> bool {
        let mut closes = false;
        for (name, config) in node.entries() {
            let what = name.text().unwrap_or_default().to_owned();
            let kind = config.at("@type").text().unwrap_or(&what).to_ascii_lowercase();
            if kind.contains("cors") {
                if let Some(cors) = cors(config) {
                    route.set("cors", cors);
                }
            } else if kind.contains("ext_authz") || kind.contains("extauthz") {
                match config.at("disabled").is_true() {
                    true => route.set("external_auth", "off"),
                    false => self.note(
                        name,
                        &what,
                        Became::Lost,
                        "the service does not get these settings; write `context` of `external_auth`",
                    ),
                }
            } else if ["buffer", "compressor", "ratelimit", "fault", "grpc"].iter().any(|part| kind.contains(part)) {
                self.note(name, &what, Became::Lost, "write it at the route");
            } else {
                self.note(name, &what, Became::Closed, "it is not understood, so the route is closed");
                closes = true;
            }
        }
        closes
    }

    fn redirect(&mut self, node: &Node, matched: &Node, mut keys: Keys) -> Keys {
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
        for (from, key) in [("scheme_redirect", "scheme"), ("host_redirect", "host")] {
            if let Some(text) = node.at(from).text() {
                to[key] = json!(text);
            }
        }
        if let Some(port) = node.at("port_redirect").number() {
            to["port"] = json!(port);
        }
        if let Some(path) = node.at("path_redirect").text() {
            to["path"] = json!(literal(path));
        }
        if let Some(new) = node.at("prefix_rewrite").text() {
            let (path, rewritten) = prefixed(matched, new);
            keys.set("path", path);
            to["path"] = json!(rewritten);
        }
        if node.at("strip_query").is_true() || !node.at("regex_rewrite").is_null() {
            self.note(node, "redirect", Became::Different, "the query and the path stay");
        }
        keys.with("redirect", to)
    }

    /// What a route leads to; `None` closes it.
    fn action(&mut self, node: &Node, matched: &Node, mut route: Keys) -> Option<Keys> {
        const KNOWN: &[&str] = &[
            "cluster",
            "weighted_clusters",
            "prefix_rewrite",
            "regex_rewrite",
            "host_rewrite_literal",
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
            "host_rewrite",
            "metadata_match",
            "include_vh_rate_limits",
            "path_rewrite",
        ];
        if self.unknown(node, KNOWN, "the route is closed") {
            return None;
        }
        let weighted = node.at("weighted_clusters").at("clusters");
        if weighted.items().is_empty() {
            route.set("to", self.named_cluster(node.at("cluster"))?);
        } else {
            let mut shares = Vec::new();
            for one in weighted.items() {
                let to = self.named_cluster(one.at("name"))?;
                shares.push(json!({"cluster": to, "weight": one.at("weight").number().unwrap_or(0).min(1_000_000)}));
                if one.entries().len() > 2 {
                    self.note(one, "weighted_clusters", Became::Lost, "only the name and the weight are translated");
                }
            }
            route.set("to", shares);
        }
        if let Some(new) = node.at("prefix_rewrite").text() {
            let (path, rewritten) = prefixed(matched, new);
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

    /// The new path by an expression, and the new host; `None` closes the route.
    fn rewritten(&mut self, node: &Node, matched: &Node, route: &mut Keys) -> Option<()> {
        let regex = node.at("regex_rewrite");
        if !regex.is_null() {
            let pattern = regex.at("pattern").at("regex").text().unwrap_or_default();
            let to = regex.at("substitution").text().unwrap_or_default();
            let is_all = matched
                .at("prefix")
                .text()
                .is_some_and(|prefix| prefix == "/" || pattern.trim_start_matches('^').starts_with(prefix));
            match (searched(pattern, false), is_all && pattern.starts_with('^')) {
                // Envoy replaces what is found, and the whole path is found if it begins and ends so.
                (Some(found), true) if pattern.ends_with('$') || pattern.ends_with(".*)") => {
                    route.set("path", json!({"regex": found}));
                    route.set_in("rewrite", "path", groups(to));
                }
                _ => {
                    self.note(
                        regex,
                        "regex_rewrite",
                        Became::Closed,
                        "only an expression of the whole path is understood, so the route is closed",
                    );
                    return None;
                }
            }
        }
        if let Some(host) = node.at("host_rewrite_literal").text().or(node.at("host_rewrite").text()) {
            route.set_in("rewrite", "host", host);
        }
        if node.at("auto_host_rewrite").is_true() {
            self.note(node.at("auto_host_rewrite"), "auto_host_rewrite", Became::Lost, "write `rewrite: {host: ...}`");
        }
        Some(())
    }

    fn rest(&mut self, node: &Node, route: &mut Keys) {
        if let Some(retry) = self.retry(node.at("retry_policy")) {
            route.set("retry", retry);
        }
        let mut copies = Vec::new();
        for one in node.at("request_mirror_policies").items().iter().take(4) {
            if let Some(to) = self.named_cluster(one.at("cluster")) {
                let fraction = one.at("runtime_fraction").at("default_value");
                let of = match fraction.at("denominator").text() {
                    Some("TEN_THOUSAND") => 10_000.0,
                    Some("MILLION") => 1_000_000.0,
                    _ => 100.0,
                };
                let percent = fraction.at("numerator").number().map_or(100.0, |share| share as f64 * 100.0 / of);
                copies.push(json!({"to": to, "percent": percent.round().clamp(1.0, 100.0) as u64}));
            }
        }
        if !copies.is_empty() {
            route.set("mirror", copies);
        }
        for key in ["rate_limits", "max_stream_duration", "metadata_match", "hash_policy"] {
            let value = node.at(key);
            if !value.is_null() {
                let why = if key == "hash_policy" {
                    "write `balance: {maglev: {key: ...}}` of the cluster"
                } else {
                    "it has no equivalent at a route"
                };
                self.note(value, key, Became::Lost, why);
            }
        }
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
                other => self.note(node, other, Became::Lost, "retries are for connections, timeouts and statuses"),
            }
        }
        on.sort_unstable();
        on.dedup();
        let mut retry = json!({"attempts": node.at("num_retries").number().unwrap_or(1).clamp(1, 10)});
        if !on.is_empty() {
            retry["on"] = json!(on);
        }
        if let Some(time) = duration(node.at("per_try_timeout")) {
            retry["per_try_timeout"] = json!(milliseconds(time));
        }
        Some(retry)
    }
}

/// The condition and the new path for `prefix_rewrite`.
fn prefixed(matched: &Node, new: &str) -> (Value, String) {
    match (matched.at("path").text(), matched.at("prefix").text().or(matched.at("path_separated_prefix").text())) {
        (Some(path), _) => (json!({"exact": path}), literal(new)),
        (None, prefix) => {
            let regex = format!("{}(.*)", escaped(prefix.unwrap_or("/")));
            (json!({"regex": regex}), format!("{}${{1}}", literal(new)))
        }
    }
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

/// A condition on one header or parameter.
fn text_matcher(node: &Node) -> Option<Value> {
    const KNOWN: &[&str] = &[
        "name",
        "string_match",
        "exact_match",
        "prefix_match",
        "suffix_match",
        "contains_match",
        "safe_regex_match",
        "present_match",
        "invert_match",
    ];
    let is_known = node.entries().iter().all(|(key, _)| {
        KNOWN.iter().any(|known| key.text() == Some(known) || key.text() == Some(&super::super::tree::camel(known)))
    });
    if !is_known || node.at("invert_match").is_true() || node.at("present_match").text() == Some("false") {
        return None;
    }
    let string = node.at("string_match");
    let case = if string.at("ignore_case").is_true() { "(?i)" } else { "" };
    let text = |new: &str, old: &str| string.at(new).text().or(node.at(old).text()).map(str::to_owned);
    if let Some(value) = text("exact", "exact_match") {
        return Some(if case.is_empty() {
            json!(value)
        } else {
            json!({"regex": format!("{case}{}", escaped(&value))})
        });
    }
    let regex = string
        .at("safe_regex")
        .at("regex")
        .text()
        .or(node.at("safe_regex_match").at("regex").text())
        .map(str::to_owned);
    let regex = regex
        .or_else(|| text("prefix", "prefix_match").map(|value| format!("{}.*", escaped(&value))))
        .or_else(|| text("suffix", "suffix_match").map(|value| format!(".*{}", escaped(&value))))
        .or_else(|| text("contains", "contains_match").map(|value| format!(".*{}.*", escaped(&value))));
    match regex {
        Some(regex) => Some(json!({"regex": format!("{case}{regex}")})),
        None if string.is_null() => Some(json!({"present": true})),
        None => None,
    }
}

/// A policy about scripts of other origins.
fn cors(node: &Node) -> Option<Value> {
    let origins: Vec<&str> =
        node.at("allow_origin_string_match").items().iter().filter_map(|one| one.at("exact").text()).collect();
    if origins.is_empty() {
        return None;
    }
    let words = |key: &str| -> Vec<String> {
        let text = node.at(key).text().unwrap_or_default();
        text.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
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

//! A backend: its cluster, and what it changes in requests and responses.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed, literal, milliseconds};
use super::super::pattern::searched;
use super::acl::{self, Fit, Place, Signed};
use super::headers::Changes;
use super::read::{Line, Section, time};
use super::server::Options;
use super::{Making, clients, front, rules};

/// The rules of a backend, read.
#[derive(Default)]
struct Rules {
    request: Changes,
    response: Changes,
    /// Conditions of requests that are refused.
    first: Vec<Keys>,
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
    /// An expression, and the path that it becomes.
    path: Option<(String, String)>,
}

impl Making<'_> {
    /// The routes with these conditions to a backend, after the rules of the frontend.
    pub(super) fn routes_to(&mut self, backend: &Section, matches: Vec<Keys>, before: &front::Rules) -> Vec<Keys> {
        let is_own = before.is_of(backend);
        let shut = |matches: &[Keys]| -> Vec<Keys> { matches.iter().map(closed).collect() };
        if !self.spend(backend.lines.len()) {
            return shut(&matches);
        }
        let Some(rules) = self.rules_of(backend, is_own, before) else { return shut(&matches) };
        let mut changes = Keys::default();
        let request = before.request.then(&rules.request);
        // A response meets the rules of the backend first.
        let response = rules.response.then(&before.response);
        let routes = matches.len().saturating_mul(rules.first.len() + 2);
        if !self.fits(routes) || !self.spend(request.work() + response.work()) {
            return shut(&matches);
        }
        if !self.write_changes(&request, "request_headers", &mut changes)
            || !self.write_changes(&response, "response_headers", &mut changes)
        {
            return shut(&matches);
        }
        let Some(lists) = clients::lists(&rules.allow, &rules.deny) else { return shut(&matches) };
        changes = changes.joined(&lists);
        let Some(to) = self.cluster(backend, true) else { return shut(&matches) };
        if let Some(retry) = self.retry(backend) {
            changes.set("retry", retry);
        }
        let mut routes = Vec::new();
        for keys in matches {
            for inner in &rules.first {
                // What both say about the same part has no form: the conditions of the backend alone take more.
                routes.push(closed(&keys.clone().joined(inner)));
            }
            let route = keys.joined(&changes).with("to", to.as_str());
            if let Some((pattern, path)) = &rules.path {
                routes.push(self.rewritten(backend, &route, pattern, path));
            }
            routes.push(route);
        }
        routes
    }

    /// A route with another path.
    fn rewritten(&mut self, backend: &Section, route: &Keys, pattern: &str, path: &str) -> Keys {
        // What follows must not be about the last letter of what both begin with.
        let is_below = |own: &str| {
            let begin = own.strip_suffix(".*").unwrap_or(own);
            pattern.strip_prefix(begin).is_some_and(|rest| !rest.starts_with(['?', '*', '+', '{', '|']))
        };
        let is_open = route.get("path").is_none_or(|own| own["regex"].as_str().is_some_and(is_below));
        if is_open {
            let mut rewritten = route.clone().with("path", json!({"regex": pattern}));
            rewritten.set_in("rewrite", "path", path);
            return rewritten;
        }
        let why = "a new path and the path of the rule that leads here have no common form, so this is closed";
        self.note(&backend.head(), Became::Closed, why);
        closed(route)
    }

    /// Reads the rules of a backend; those of a `listen` were read with its sockets. `None` if it is closed.
    fn rules_of(&mut self, backend: &Section, is_own: bool, before: &front::Rules) -> Option<Rules> {
        let mut rules = Rules::default();
        if is_own {
            return Some(rules);
        }
        if backend.is_disabled() {
            self.note(&backend.head(), Became::Closed, "it is disabled, so what leads to it is closed");
            return None;
        }
        let mut is_closed = self.closes(backend);
        let mut place = before.place.clone();
        for kind in ["tcp-request", "http-request", "http-response", "http-after-response", "redirect"] {
            for line in backend.all(&[kind]) {
                if !self.spend(acl::size(line, backend)) || !self.rule_of(line, backend, &mut place, &mut rules) {
                    is_closed = true;
                }
            }
        }
        self.told_address(backend, &mut rules.request);
        (!is_closed).then_some(rules)
    }

    /// Reads one of them; whether it is understood.
    fn rule_of(&mut self, line: &Line, backend: &Section, place: &mut Place, rules: &mut Rules) -> bool {
        let lists = acl::condition(line, backend, place);
        match (line.word(0), line.word(1)) {
            ("http-response" | "http-after-response", _) => return self.response(line, &mut rules.response),
            ("http-request", "set-header" | "add-header" | "del-header") => {
                self.request_header(line, lists.as_deref(), place, &mut rules.request);
            }
            ("http-request", "replace-path" | "set-path") if lists.is_none() && rules.path.is_none() => {
                place.is_path_changed = true;
                rules.path = self.path(line);
                return rules.path.is_some();
            }
            ("http-request", "deny" | "reject" | "tarpit" | "silent-drop") if lists.is_some() => {
                for list in lists.iter().flatten() {
                    self.denied(line, list, rules);
                }
            }
            ("http-request", action) if rules::is_harmless(action) => self.harmless(line, action),
            ("tcp-request", "inspect-delay") => {}
            ("tcp-request", "content") if line.word(2) == "accept" || rules::is_harmless(line.word(2)) => {
                self.harmless(line, line.word(2));
            }
            _ => {
                let why = "it is not understood, so the backend is closed; remove it, or write what it does";
                self.note(line, Became::Closed, why);
                return false;
            }
        }
        true
    }

    /// Requests that a backend refuses.
    fn denied(&mut self, line: &Line, list: &[Signed], rules: &mut Rules) {
        if clients::by_source(list, &mut rules.allow, &mut rules.deny) {
            return;
        }
        let Some(found) = acl::refused(list) else { return };
        if found.has_rate {
            return self.note(line, Became::Lost, "it limits rates: write `rate_limit` of the routes");
        }
        if found.fit == Fit::Part {
            let why = "its condition is not understood, so everything that it may be about is closed";
            self.note(line, Became::Closed, why);
        }
        rules.first.extend(found.keys);
        // Once there are too many, the file is refused.
        let _ = self.fits(rules.first.len());
    }

    /// The expression and the new path of a rule.
    fn path(&mut self, line: &Line) -> Option<(String, String)> {
        let found = match line.word(1) {
            "set-path" if !line.word(2).contains('%') => Some((".*".to_owned(), literal(line.word(2)))),
            "replace-path" => searched(line.word(2), false).and_then(|regex| {
                // `\1`
                let mut path = String::new();
                let mut letters = line.word(3).chars().peekable();
                while let Some(letter) = letters.next() {
                    match letters.peek().and_then(|next| next.to_digit(10)).filter(|_| letter == '\\') {
                        Some(digit) => {
                            letters.next();
                            path.push_str(&format!("${{{digit}}}"));
                        }
                        None => path.push_str(&literal(&letter.to_string())),
                    }
                }
                path.starts_with('/').then_some((regex, path))
            }),
            _ => None,
        };
        if found.is_none() {
            self.note(
                line,
                Became::Closed,
                "the new path is not understood, so the backend is closed; write `rewrite`",
            );
        }
        found
    }

    fn retry(&mut self, backend: &Section) -> Option<Value> {
        let count = backend.last(&["retries"]).and_then(|line| line.word(1).parse::<u64>().ok());
        let on = backend.last(&["retry-on"]);
        if count.is_none() && on.is_none() {
            return None;
        }
        if count == Some(0) || on.is_some_and(|line| line.word(1) == "none") {
            return Some(json!("off"));
        }
        let mut retry = json!({"attempts": count.unwrap_or(3).clamp(1, 10)});
        let mut words = Vec::new();
        for word in on.into_iter().flat_map(|line| line.words.iter().skip(1)) {
            match word.as_str() {
                "conn-failure" => words.push("connect_failure".to_owned()),
                "empty-response" | "junk-response" => words.push("reset".to_owned()),
                "response-timeout" => words.push("timeout".to_owned()),
                "all-retryable-errors" => {
                    words.extend(["connect_failure", "reset", "timeout", "500", "502", "503", "504"].map(str::to_owned))
                }
                word if word.len() == 3 && word.starts_with(['4', '5']) && word.parse::<u16>().is_ok() => {
                    words.push(word.to_owned());
                }
                word => {
                    let why = format!("`{word}`: retries are for connections, times and statuses");
                    if let Some(line) = on {
                        self.note(line, Became::Lost, &why);
                    }
                }
            }
        }
        words.sort_unstable();
        words.dedup();
        retry["on"] = if words.is_empty() { json!(["connect_failure"]) } else { json!(words) };
        Some(retry)
    }

    /// The cluster of a backend; `None` if the backend has to be closed.
    pub(super) fn cluster(&mut self, backend: &Section, is_http: bool) -> Option<String> {
        let key = (backend.line, is_http);
        if let Some(known) = self.clusters.get(&key) {
            return known.clone();
        }
        let cluster = self.cluster_of(backend, is_http);
        self.clusters.insert(key, cluster.clone());
        cluster
    }

    fn cluster_of(&mut self, backend: &Section, is_http: bool) -> Option<String> {
        let servers = self.servers(backend)?;
        let mut keys = Keys::default();
        if servers.endpoints.iter().all(|endpoint| endpoint["weight"] == 0) {
            self.note(&backend.head(), Became::Closed, "it has no server in use, so what leads to it is closed");
            return None;
        }
        keys.set("endpoints", servers.endpoints);
        let options = servers.options;
        self.balance(backend, &mut keys);
        if servers.has_backup {
            keys.set("panic_threshold", "0%");
        }
        self.connections(backend, &options, is_http, &mut keys);
        if let Some(options) = &servers.probed {
            let check = self.check(backend, options);
            keys.set("health_check", check);
            // A server that is down gets nothing there, however few are left.
            keys.set("panic_threshold", "0%");
            if options.value("on-marked-down") == Some("shutdown-sessions") {
                keys.set("on_unhealthy", "close");
            }
        }
        if options.value("observe").is_some() {
            let count = options.value("error-limit").and_then(|text| text.parse::<u64>().ok()).unwrap_or(10);
            keys.set("outlier", json!({"consecutive_5xx": count.clamp(1, 1_000_000)}));
            let why = "`observe`: responses from 500 to 599 and connections that fail eject an endpoint";
            self.note(&backend.head(), Became::Different, why);
        }
        if let Some(line) = backend.last(&["cookie"]).filter(|_| is_http) {
            keys.set("sticky", json!({"cookie": line.word(1)}));
            let why = "the cookie has another value, so each client is assigned an endpoint anew";
            self.note(line, Became::Different, why);
        }
        Some(self.draft.cluster(&backend.name, keys))
    }

    fn balance(&mut self, backend: &Section, keys: &mut Keys) {
        let Some(line) = backend.last(&["balance"]) else { return };
        let inner =
            |name: &str| line.word(1).strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')').map(str::to_owned);
        match line.word(1) {
            "roundrobin" | "static-rr" => {}
            "leastconn" => keys.set("balance", "least_connections"),
            "source" => keys.set("balance", "maglev"),
            "random" => keys.set("balance", "random"),
            _ => match inner("hdr") {
                Some(name) => keys.set("balance", json!({"maglev": {"key": {"header": name}}})),
                None => self.note(line, Became::Lost, "endpoints are chosen in turn"),
            },
        }
    }

    fn connections(&mut self, backend: &Section, options: &Options, is_http: bool, keys: &mut Keys) {
        if let Some(time) = backend.time(&["timeout", "connect"]) {
            keys.set("connect_timeout", milliseconds(time));
        }
        if let Some(time) = backend.time(&["timeout", "server"]).filter(|_| is_http) {
            keys.set("response_timeout", milliseconds(time));
        }
        let mut limits = json!({});
        if let Some(count) =
            options.value("maxconn").and_then(|text| text.parse::<u64>().ok()).filter(|count| *count > 0)
        {
            limits["connections"] = json!(count.min(front::CONNECTIONS_MAX));
        }
        if let Some(time) = backend.time(&["timeout", "queue"]) {
            limits["pending_timeout"] = json!(milliseconds(time));
        }
        if limits.as_object().is_some_and(|limits| !limits.is_empty()) {
            keys.set("limits", limits);
        }
        if let Some(time) = options.value("slowstart").and_then(time) {
            keys.set("slow_start", milliseconds(time));
        }
        let is_v2 = ["send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn"].iter().any(|flag| options.has(flag));
        match (options.has("send-proxy"), is_v2) {
            (_, true) => keys.set("proxy_protocol", "v2"),
            (true, false) => keys.set("proxy_protocol", "v1"),
            (false, false) => {}
        }
        let is_h2 =
            options.value("proto") == Some("h2") || options.value("alpn").is_some_and(|text| text.starts_with("h2"));
        if is_h2 && is_http {
            keys.set("protocol", if options.has("ssl") { "h2" } else { "h2c" });
        }
        if options.has("ssl") {
            let mut tls = json!({});
            let default = self.global.trusts_servers.then_some("none");
            match (options.value("verify").or(default), options.value("ca-file")) {
                (Some("none"), _) => tls["verify"] = json!(false),
                // The system's own are the default.
                (_, Some("@system-ca")) => {}
                (_, Some(file)) => tls["ca"] = json!(self.global.ca(file)),
                _ => {}
            }
            let sni =
                options.value("sni").and_then(|text| text.strip_prefix("str(")?.strip_suffix(')').map(str::to_owned));
            if options.value("sni").is_some() && sni.is_none() {
                let why = "`sni`: the name that is asked for is that of the endpoint, or `str(NAME)`: write `server_name` of `tls`";
                self.note(&backend.head(), Became::Lost, why);
            }
            match (sni, options.value("verifyhost")) {
                (Some(name), Some(host)) if name != host => {
                    tls["server_name"] = json!(name);
                    tls["subject_alt_names"] = json!([host]);
                }
                (Some(name), _) => tls["server_name"] = json!(name),
                (None, Some(host)) => tls["server_name"] = json!(host),
                (None, None) => {}
            }
            if let Some(file) = options.value("crt").map(|file| self.global.certificate(file)) {
                tls["certificate"] = json!({"cert": file, "key": file});
            }
            keys.set("tls", tls);
        }
    }
}

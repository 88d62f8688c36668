//! A backend: its cluster, and what it changes in requests and responses.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, closed, literal, milliseconds, searched};
use super::acl;
use super::{Line, Making, Section, time};

/// The rules of a backend, read.
struct Rules {
    /// What they change.
    changes: Keys,
    /// Conditions of requests that are refused.
    first: Vec<Keys>,
    /// Expressions, and the paths that they become.
    paths: Vec<(String, String)>,
    is_closed: bool,
}

impl Making<'_> {
    /// The routes with these conditions to a backend.
    pub(super) fn routes_to(&mut self, backend: &Section, matches: Vec<Keys>) -> Vec<Keys> {
        let is_own = backend.kind == "listen";
        let Rules { changes, first, paths, mut is_closed } = self.rules_of(backend, is_own);
        if !is_own && self.unknown_in(backend) {
            is_closed = true;
        }
        if is_closed {
            return matches.iter().map(closed).collect();
        }
        let to = self.cluster(backend, true);
        let retry = self.retry(backend);
        let mut routes = Vec::new();
        for keys in matches {
            for inner in &first {
                // What both say about the same part has no form: the conditions of the backend alone take more.
                routes.push(closed(&keys.clone().joined(inner)));
            }
            let mut route = keys.joined(&changes).with("to", to.as_str());
            if let Some(retry) = &retry {
                route.set("retry", retry.clone());
            }
            for (pattern, path) in &paths {
                let is_open = route.get("path").is_none_or(|own| {
                    own["regex"].as_str().is_some_and(|own| pattern.starts_with(own.trim_end_matches(".*")))
                });
                if is_open {
                    let mut rewritten = route.clone().with("path", json!({"regex": pattern}));
                    rewritten.set_in("rewrite", "path", path.as_str());
                    routes.push(rewritten);
                } else {
                    let line = Line { number: backend.line, words: vec!["backend".to_owned(), backend.name.clone()] };
                    self.note(
                        &line,
                        Became::Closed,
                        "a new path and the path of the rule that leads here have no common form, so this is closed",
                    );
                    routes.push(closed(&route));
                }
            }
            routes.push(route);
        }
        routes
    }

    /// Reads the rules of a backend; those of a `listen` were read with its sockets.
    fn rules_of(&mut self, backend: &Section, is_own: bool) -> Rules {
        let mut rules_of = Rules { changes: Keys::default(), first: Vec::new(), paths: Vec::new(), is_closed: false };
        let Rules { changes, first, paths, is_closed } = &mut rules_of;
        let rules: Vec<Line> = backend
            .all(&["http-request"])
            .chain(backend.all(&["http-response"]))
            .filter(|_| !is_own)
            .cloned()
            .collect();
        for line in &rules {
            let lists = acl::condition(line, backend, false);
            match (line.word(0), line.word(1), lists) {
                ("http-response", ..) => self.response(line, changes),
                (_, "set-header" | "add-header" | "del-header", None) => self.request_header(line, changes),
                (_, "replace-path" | "replace-uri" | "set-path", None) => match self.path(line) {
                    Some(path) => paths.push(path),
                    None => *is_closed = true,
                },
                (_, "deny", Some(lists)) => {
                    for list in &lists {
                        let Some(found) = acl::routes(list) else { continue };
                        if !found.is_exact {
                            self.note(
                                line,
                                Became::Closed,
                                "its condition is not understood, so everything that it may be about is closed",
                            );
                        }
                        first.extend(found.keys);
                    }
                }
                (_, "set-log-level" | "capture" | "set-nice" | "set-var", _) => {}
                _ => {
                    self.note(
                        line,
                        Became::Closed,
                        "it is not understood, so the backend is closed; remove it, or write what it does",
                    );
                    *is_closed = true;
                }
            }
        }
        rules_of
    }

    /// Reports lines of a backend that are not translated; whether they close it.
    fn unknown_in(&mut self, backend: &Section) -> bool {
        const KNOWN: &[&str] = &[
            "mode",
            "balance",
            "server",
            "server-template",
            "default-server",
            "option",
            "http-check",
            "tcp-check",
            "cookie",
            "timeout",
            "retries",
            "retry-on",
            "log",
            "http-request",
            "http-response",
            "acl",
            "hash-type",
            "fullconn",
            "http-reuse",
            "compression",
            "description",
            "id",
            "source",
            "load-server-state-from-file",
            "email-alert",
            "persist",
            "dynamic-cookie-key",
            "http-after-response",
            "external-check",
            "maxconn",
            "bind",
            "default_backend",
            "use_backend",
            "stats",
            "no",
            "log-format",
            "guid",
            "log-tag",
            "monitor-uri",
        ];
        let mut closes = false;
        for line in &backend.lines {
            match line.word(0) {
                word if KNOWN.contains(&word) => {}
                "errorfile" | "errorloc" | "errorloc302" | "errorloc303" | "stick-table" | "stick" | "filter"
                | "errorfiles" | "http-error" => {
                    self.note(line, Became::Lost, "write `error_pages`, `sticky` or `rate_limit`");
                }
                _ => {
                    self.note(
                        line,
                        Became::Closed,
                        "it is not understood, so the backend is closed; remove it, or write what it does",
                    );
                    closes = true;
                }
            }
        }
        closes
    }

    /// The expression and the new path of a rule.
    fn path(&mut self, line: &Line) -> Option<(String, String)> {
        let found = match line.word(1) {
            "set-path" if !line.word(2).contains('%') => Some((".*".to_owned(), literal(line.word(2)))),
            "replace-path" | "replace-uri" => searched(line.word(2), false).and_then(|regex| {
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

    pub(super) fn request_header(&mut self, line: &Line, keys: &mut Keys) {
        let (name, value) = (line.word(2), line.word(3));
        let lower = name.to_ascii_lowercase();
        if line.word(1) == "del-header" {
            return self.header(line, keys, ("request_headers", "remove"), "");
        }
        if lower == "host" && !value.contains('%') {
            return keys.set_in("rewrite", "host", value);
        }
        // Steelyard sends these itself.
        if ["x-forwarded-proto", "x-forwarded-for", "x-forwarded-host", "connection"].contains(&lower.as_str()) {
            return;
        }
        let known = match value {
            "%[src]" | "%ci" => Some("${client_ip}".to_owned()),
            "%[src_port]" | "%cp" => Some("${client_port}".to_owned()),
            "%[ssl_fc_sni]" => Some("${sni}".to_owned()),
            "%[ssl_fc_protocol]" => Some("${tls_version}".to_owned()),
            "%[unique-id]" | "%ID" => Some("${request_id}".to_owned()),
            value if value.starts_with("%[ssl_c_s_dn") => Some("${client_cert_subject}".to_owned()),
            value if !value.contains('%') => Some(literal(value)),
            _ => None,
        };
        match known {
            Some(value) => {
                let how = if line.word(1) == "add-header" { "add" } else { "set" };
                self.header(line, keys, ("request_headers", how), &value);
            }
            None => {
                // A client could write it otherwise, and the endpoint relies on it.
                self.header(line, keys, ("request_headers", "remove"), "");
                self.note(line, Became::Lost, "its value is not understood, so the endpoint does not get it");
            }
        }
    }

    /// Changes the header that the line names.
    pub(super) fn header(&mut self, line: &Line, keys: &mut Keys, (side, how): (&str, &str), value: &str) {
        if let Err(why) = keys.header(side, how, line.word(2), value) {
            self.note(line, Became::Different, why);
        }
    }

    pub(super) fn response(&mut self, line: &Line, keys: &mut Keys) {
        let is_plain = !line.word(3).contains('%') && !line.has("if") && !line.has("unless");
        match line.word(1) {
            "del-header" => self.header(line, keys, ("response_headers", "remove"), ""),
            "set-header" if is_plain => self.header(line, keys, ("response_headers", "set"), &literal(line.word(3))),
            "add-header" if is_plain => self.header(line, keys, ("response_headers", "add"), &literal(line.word(3))),
            "set-log-level" | "capture" | "set-var" => {}
            _ => self.note(line, Became::Lost, "only headers with a text are changed"),
        }
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
                word if word.len() == 3 && word.starts_with('5') => words.push(word.to_owned()),
                _ => {}
            }
        }
        words.sort_unstable();
        words.dedup();
        retry["on"] = if words.is_empty() { json!(["connect_failure"]) } else { json!(words) };
        Some(retry)
    }

    /// The cluster of a backend.
    pub(super) fn cluster(&mut self, backend: &Section, is_http: bool) -> String {
        let mut keys = Keys::default();
        let mut endpoints = Vec::new();
        let base = backend.last(&["default-server"]).cloned();
        let servers: Vec<Line> = backend.all(&["server"]).chain(backend.all(&["server-template"])).cloned().collect();
        let mut has_backup = false;
        for line in &servers {
            let place = if line.word(0) == "server" { 2 } else { 3 };
            let address = line.word(place);
            if address.contains('@') || address.starts_with('/') || address.starts_with("unix") {
                self.note(line, Became::Lost, "Steelyard connects to addresses and names");
                continue;
            }
            let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            let port = if line.has("ssl") { 443 } else { 80 };
            let mut endpoint =
                json!({"address": if has_port { address.to_owned() } else { format!("{address}:{port}") }});
            if let Some(weight) = line.after("weight").and_then(|text| text.parse::<u16>().ok()) {
                endpoint["weight"] = json!(weight);
            }
            if line.has("disabled") {
                endpoint["weight"] = json!(0);
            }
            if line.has("backup") {
                endpoint["priority"] = json!(1);
                has_backup = true;
            }
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            let line = Line { number: backend.line, words: vec!["backend".to_owned(), backend.name.clone()] };
            self.note(&line, Became::Lost, "it has no server, so its requests are answered 502 or 503");
            endpoints.push(json!({"address": "127.0.0.1:9", "weight": 0}));
        }
        keys.set("endpoints", endpoints);
        let options = Options { line: servers.first().cloned(), base };
        self.balance(backend, &mut keys);
        if has_backup {
            keys.set("panic_threshold", "0%");
        }
        self.connections(backend, &options, is_http, &mut keys);
        if let Some(check) = self.check(backend, &options, is_http) {
            keys.set("health_check", check);
        }
        if let Some(line) = backend.last(&["cookie"]).filter(|_| is_http) {
            keys.set("sticky", json!({"cookie": line.word(1)}));
            self.note(
                line,
                Became::Different,
                "the cookie has another value, so each client is assigned an endpoint anew",
            );
        }
        self.draft.cluster(&backend.name, keys)
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
            limits["connections"] = json!(count);
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
        match (options.has("send-proxy"), options.has("send-proxy-v2")) {
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
            match (options.value("verify"), options.value("ca-file")) {
                (Some("none"), _) => tls["verify"] = json!(false),
                (_, Some(file)) => tls["ca"] = json!(file),
                _ => {}
            }
            let sni =
                options.value("sni").and_then(|text| text.strip_prefix("str(")?.strip_suffix(')').map(str::to_owned));
            if let Some(name) = sni.or(options.value("verifyhost").map(str::to_owned)) {
                tls["server_name"] = json!(name);
            }
            if let Some(file) = options.value("crt") {
                tls["certificate"] = json!({"cert": file, "key": file});
            }
            keys.set("tls", tls);
        }
    }

    /// The health check, if a server has `check`.
    fn check(&mut self, backend: &Section, options: &Options, is_http: bool) -> Option<Value> {
        if !options.has("check") {
            return None;
        }
        let mut check = json!({});
        let old = backend.last(&["option", "httpchk"]);
        let send = backend.last(&["http-check", "send"]);
        match (old, is_http) {
            (Some(old), true) => {
                let path = match (send.and_then(|line| line.after("uri")), old.word(2), old.word(3)) {
                    (Some(path), ..) => path,
                    (None, "", _) => "/",
                    (None, path, "") => path,
                    (None, _, path) => path,
                };
                check["http"] = json!(path);
                let method = send.and_then(|line| line.after("meth")).unwrap_or(if old.word(3).is_empty() {
                    "OPTIONS"
                } else {
                    old.word(2)
                });
                if method != "GET" {
                    self.note(old, Became::Different, "probes are GET");
                }
                let text = old.rest(4) + " " + &send.map(|line| line.rest(2)).unwrap_or_default();
                let host =
                    text.split("Host:").nth(1).or(text.split("hdr Host ").nth(1)).or(text.split("hdr host ").nth(1));
                if let Some(host) =
                    host.and_then(|rest| rest.trim().split(['\\', ' ']).next()).filter(|host| !host.is_empty())
                {
                    check["host"] = json!(host);
                }
                for line in backend.all(&["http-check", "expect"]) {
                    match (line.word(2), line.word(3)) {
                        ("status", statuses) => check["expect"] = json!(statuses.split(',').collect::<Vec<_>>()),
                        ("string", text) => check["body"] = json!(text),
                        _ => self.note(line, Became::Lost, "a status and a text are expected, and no expression"),
                    }
                }
            }
            _ => check["tcp"] = json!(true),
        }
        if let Some(time) = options.value("inter").and_then(time) {
            check["interval"] = json!(milliseconds(time));
        }
        for (word, key) in [("fall", "unhealthy_after"), ("rise", "healthy_after"), ("port", "port")] {
            if let Some(count) = options.value(word).and_then(|text| text.parse::<u64>().ok()) {
                check[key] = json!(count);
            }
        }
        if let Some(time) = backend.time(&["timeout", "check"]) {
            check["timeout"] = json!(milliseconds(time));
        }
        Some(check)
    }
}

/// The words of the first server, and those of `default-server`.
struct Options {
    line: Option<Line>,
    base: Option<Line>,
}

impl Options {
    fn value(&self, word: &str) -> Option<&str> {
        self.line.as_ref().and_then(|line| line.after(word)).or_else(|| self.base.as_ref()?.after(word))
    }

    fn has(&self, word: &str) -> bool {
        self.line.as_ref().is_some_and(|line| line.has(word)) || self.base.as_ref().is_some_and(|line| line.has(word))
    }
}

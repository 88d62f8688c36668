//! A frontend: its sockets, and its rules in their order as routes.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::draft::{Became, Keys, Listener, closed, milliseconds, named};
use super::acl::{self, Signed, Term};
use super::{Line, Making, Section};

/// Rules and settings that nobody sees the absence of.
const TUNING: &[&str] = &[
    "mode",
    "log",
    "log-format",
    "log-format-sd",
    "log-tag",
    "bind",
    "acl",
    "default_backend",
    "use_backend",
    "maxconn",
    "description",
    "id",
    "unique-id-format",
    "unique-id-header",
    "capture",
    "declare",
    "backlog",
    "fullconn",
    "balance",
    "server",
    "server-template",
    "default-server",
    "cookie",
    "retries",
    "retry-on",
    "http-check",
    "tcp-check",
    "hash-type",
    "persist",
    "email-alert",
    "external-check",
    "load-server-state-from-file",
    "http-reuse",
    "source",
    "timeout",
    "stats",
    "monitor-uri",
    "no",
    "http-after-response",
    "dynamic-cookie-key",
    "guid",
    "disabled",
    "enabled",
    "grace",
    "bind-process",
    "rate-limit",
    "max-keep-alive-queue",
    "clitcpka-cnt",
    "srvtcpka-cnt",
];

const OPTIONS_LOST: &[&str] = &["http-no-delay", "transparent", "http_proxy", "originalto", "nolinger"];

/// One socket of a frontend.
struct Bind {
    address: String,
    is_tls: bool,
    tls: Option<Value>,
    has_proxy_protocol: bool,
}

/// The routes of one socket in the making.
struct Rules {
    routes: Vec<Keys>,
    /// What every route changes.
    all: Keys,
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
    /// Nothing comes after a rule without a condition.
    is_final: bool,
}

impl Making<'_> {
    pub(super) fn front(&mut self, section: &Section) {
        let binds = self.binds(section);
        let reports = self.unknown(section);
        for (number, bind) in binds.iter().enumerate() {
            let (mut listener, protocol) = match section.is_http() {
                true => (self.http(section, bind, reports), if bind.is_tls { "https" } else { "http" }),
                false => self.tcp(section, bind, reports),
            };
            let mut keys = Keys::default().with("bind", bind.address.as_str()).with("protocol", protocol);
            if let Some(tls) = bind.tls.clone().filter(|_| protocol == "https" || protocol == "tls") {
                keys.set("tls", tls);
            }
            if bind.has_proxy_protocol {
                keys.set("proxy_protocol", true);
            }
            listener.keys = keys.joined(&listener.keys);
            let name =
                if number == 0 { named(&section.name) } else { named(&format!("{}-{}", section.name, number + 1)) };
            self.draft.listeners.push((name, listener));
        }
    }

    fn binds(&mut self, section: &Section) -> Vec<Bind> {
        let mut binds = Vec::new();
        for line in section.all(&["bind"]) {
            for address in line.word(1).split(',') {
                let Some(address) = address_of(address) else {
                    self.note(
                        line,
                        Became::Lost,
                        "Steelyard listens on an address and one port: write a listener for each port",
                    );
                    continue;
                };
                let is_tls = line.has("ssl");
                let tls = is_tls.then(|| self.tls(line));
                binds.push(Bind { address, is_tls, tls, has_proxy_protocol: line.has("accept-proxy") });
            }
        }
        if binds.is_empty() {
            let line = Line { number: section.line, words: vec![section.kind.clone(), section.name.clone()] };
            self.note(&line, Became::Lost, "it has no address that Steelyard can listen on");
        }
        binds
    }

    fn tls(&mut self, line: &Line) -> Value {
        let mut certificates = Vec::new();
        for (place, word) in line.words.iter().enumerate().filter(|(_, word)| *word == "crt" || *word == "crt-list") {
            let file = line.word(place + 1);
            if word == "crt-list" || file.ends_with('/') || std::path::Path::new(file).is_dir() {
                self.note(line, Became::Lost, "name each certificate of the folder or the list in `certificates`");
                continue;
            }
            certificates.push(json!({"cert": file, "key": file}));
        }
        if certificates.is_empty() {
            certificates.push(json!({"cert": "missing.pem", "key": "missing.pem"}));
        }
        let mut tls = json!({"certificates": certificates});
        if line.after("ssl-min-ver") == Some("TLSv1.3") {
            tls["min_version"] = json!("1.3");
        }
        match (line.after("verify"), line.after("ca-file")) {
            (Some("required"), Some(file)) => tls["client_ca"] = json!({"ca": file}),
            (None | Some("none"), _) => {}
            (Some(_), file) => {
                // Whoever has no good certificate is refused.
                tls["client_ca"] = json!({"ca": file.unwrap_or("missing.pem")});
                self.note(
                    line,
                    Became::Closed,
                    "`client_ca` demands a certificate or none: clients without one are refused",
                );
            }
        }
        if line.has("crl-file") {
            tls["client_ca"] = json!({"ca": "missing.pem"});
            self.note(line, Became::Closed, "revoked certificates cannot be refused, so no certificate is accepted");
        }
        tls
    }

    /// Reports lines that are not translated; whether they close the section.
    fn unknown(&mut self, section: &Section) -> bool {
        let mut closes = false;
        for (place, line) in section.lines.iter().enumerate() {
            // Once, where the defaults are.
            let what = line.word(0);
            let known = TUNING.contains(&what)
                || [
                    "http-request",
                    "http-response",
                    "redirect",
                    "tcp-request",
                    "compression",
                    "monitor-uri",
                    "tcp-response",
                ]
                .contains(&what);
            match what {
                "option" if OPTIONS_LOST.contains(&line.word(1)) => {
                    self.note(line, Became::Lost, "it has no equivalent")
                }
                "option" => {}
                "stats" if place >= section.defaults && ["enable", "uri"].contains(&line.word(1)) => {
                    self.note(
                        line,
                        Became::Lost,
                        "the admin address has a page and `/metrics`; `steelyard status` shows the same",
                    );
                }
                "errorfile" | "errorloc" | "errorloc302" | "errorloc303" | "http-error" | "errorfiles" => {
                    self.note(line, Became::Lost, "write `error_pages` of the listener, with the body alone");
                }
                "stick-table" | "stick" | "filter" if line.word(1) != "lua" => {
                    self.note(line, Became::Lost, "write `sticky`, `rate_limit` or `client_limits`");
                }
                _ if known => {}
                _ => {
                    self.note(
                        line,
                        Became::Closed,
                        "it is not understood, so what leads through it is closed; remove it, or write what it does",
                    );
                    closes = true;
                }
            }
        }
        closes
    }

    fn http(&mut self, section: &Section, bind: &Bind, is_closed: bool) -> Listener {
        let mut rules =
            Rules { routes: Vec::new(), all: Keys::default(), allow: Vec::new(), deny: Vec::new(), is_final: false };
        if is_closed {
            rules.routes.push(closed(&Keys::default()));
        }
        if let Some(line) = section.last(&["monitor-uri"]) {
            rules.routes.push(
                Keys::default().with("path", json!({"exact": line.word(1)})).with("respond", json!({"status": 200})),
            );
        }
        // HAProxy runs all rules of a kind before the next kind.
        for kind in ["tcp-request", "http-request", "redirect", "use_backend"] {
            for line in section.all(&[kind]) {
                if !rules.is_final {
                    self.rule(line, section, bind.is_tls, &mut rules);
                }
            }
        }
        for line in section.all(&["http-response"]) {
            self.response(line, &mut rules.all);
        }
        if !rules.is_final {
            let default = match section.kind.as_str() {
                "listen" if section.last(&["server"]).is_some() => Some((section.name.clone(), section.line)),
                _ => section.last(&["default_backend"]).map(|line| (line.word(1).to_owned(), line.number)),
            };
            match default {
                Some((name, line)) => {
                    let place = Line { number: line, words: vec!["default_backend".to_owned(), name.clone()] };
                    self.send(&place, &name, vec![Keys::default()], &mut rules);
                }
                None => rules.routes.push(Keys::default().with("respond", json!({"status": 503}))),
            }
        }
        let mut keys = self.clients(section);
        for (key, list) in [("allow", &rules.allow), ("deny", &rules.deny)] {
            if !list.is_empty() {
                keys.set(key, list.iter().map(ToString::to_string).collect::<Vec<_>>());
            }
        }
        Listener { keys, routes: rules.routes }
    }

    /// Settings about clients.
    fn clients(&mut self, section: &Section) -> Keys {
        let mut keys = Keys::default();
        let limit =
            section.last(&["maxconn"]).and_then(|line| line.word(1).parse::<u64>().ok()).filter(|count| *count > 0);
        if let Some(count) = limit {
            keys.set("limits", json!({"connections": count}));
        }
        let names: [(&[&str], &str); 4] = [
            (&["timeout", "client"], "stall_timeout"),
            (&["timeout", "http-request"], "header_timeout"),
            (&["timeout", "http-keep-alive"], "idle_timeout"),
            (&["timeout", "tunnel"], "tunnel_idle_timeout"),
        ];
        for (words, key) in names {
            if let Some(time) = section.time(words) {
                keys.set(key, milliseconds(time));
            }
        }
        if section.last(&["option", "forwardfor"]).is_none() {
            keys.set("forwarded", "off");
        }
        keys
    }

    fn rule(&mut self, line: &Line, section: &Section, is_tls: bool, rules: &mut Rules) {
        let lists = acl::condition(line, section, is_tls);
        let is_always = lists.is_none();
        let action = if line.word(0) == "redirect" { "redirect" } else { line.word(1) };
        match (line.word(0), action) {
            ("use_backend", name) => self.use_backend(line, name, lists, rules),
            ("tcp-request", "inspect-delay") => {}
            ("tcp-request", "connection" | "session" | "content") if ["reject", "accept"].contains(&line.word(2)) => {
                self.connection(line, lists, rules);
            }
            ("http-request", "deny" | "reject" | "tarpit" | "silent-drop") => self.deny(line, lists, rules),
            ("http-request", "allow") => {
                let why = "what it lets through could be refused by later rules, and here it is";
                self.note(line, Became::Different, why);
            }
            ("http-request" | "redirect", "redirect") => self.redirect(line, lists, rules),
            ("http-request", "return") => self.answer(line, lists, rules),
            ("http-request", "set-header" | "add-header" | "del-header") => match holds(lists.as_deref()) {
                Some(true) => self.request_header(line, &mut rules.all),
                Some(false) => {}
                None => {
                    // Nobody may write it in the place of the rule.
                    self.header(line, &mut rules.all, ("request_headers", "remove"), "");
                    self.note(
                        line,
                        Became::Lost,
                        "a header with a condition: the endpoint never gets it; write it at the route",
                    );
                }
            },
            ("http-request" | "tcp-request", "track-sc0" | "track-sc1" | "track-sc2" | "sc-inc-gpc0") => {
                self.note(line, Became::Lost, "write `rate_limit` or `client_limits`");
            }
            ("tcp-request", "connection" | "content" | "session")
                if line.word(2).starts_with("track-")
                    || line.word(2).starts_with("set-")
                    || line.word(2) == "capture" => {}
            ("http-request", action)
                if [
                    "set-log-level",
                    "capture",
                    "set-nice",
                    "set-var",
                    "unset-var",
                    "disable-l7-retry",
                    "set-mark",
                    "set-tos",
                    "wait-for-body",
                ]
                .contains(&action)
                    || action.starts_with("set-var(") => {}
            _ => {
                let why = "it is not understood, so what it may be about is closed; remove it, or write what it does";
                self.note(line, Became::Closed, why);
                rules.close(lists.as_deref(), is_always);
            }
        }
    }

    fn use_backend(&mut self, line: &Line, name: &str, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let Some(lists) = lists else {
            rules.is_final = true;
            return self.send(line, name, vec![Keys::default()], rules);
        };
        for list in &lists {
            let Some(found) = acl::routes(list) else { continue };
            if found.is_exact {
                self.send(line, name, found.keys, rules);
            } else {
                let why = "its condition is not understood, so what it may be about is closed; write a route with the condition";
                self.note(line, Became::Closed, why);
                rules.close(Some(std::slice::from_ref(list)), false);
            }
        }
    }

    fn send(&mut self, line: &Line, name: &str, matches: Vec<Keys>, rules: &mut Rules) {
        let found = self.backend(name).filter(|_| !name.contains('%'));
        let routes = match found {
            Some(backend) => self.routes_to(&backend, matches),
            None => {
                self.note(line, Became::Closed, "there is no such backend in the file, so it is closed");
                matches.iter().map(closed).collect()
            }
        };
        rules.routes.extend(routes.into_iter().map(|route| match route.get("to") {
            Some(_) => merged(route, &rules.all),
            None => route,
        }));
    }

    /// A rule that refuses requests.
    fn deny(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let status =
            line.after("deny_status").or(line.after("status")).and_then(|text| text.parse::<u16>().ok()).unwrap_or(403);
        let Some(lists) = lists else {
            rules.routes.push(Keys::default().with("respond", json!({"status": status})));
            rules.is_final = true;
            return;
        };
        for list in &lists {
            if self.by_source(list, rules) {
                continue;
            }
            let Some(found) = acl::routes(list) else { continue };
            if found.has_rate {
                self.note(
                    line,
                    Became::Lost,
                    "it limits rates: write `rate_limit` of the routes, or `client_limits` of the listener",
                );
                continue;
            }
            if !found.is_exact {
                self.note(
                    line,
                    Became::Closed,
                    "its condition is not understood, so everything that it may be about is closed",
                );
            }
            rules.routes.extend(found.keys.into_iter().map(|keys| keys.with("respond", json!({"status": status}))));
        }
    }

    /// Whether a list of terms is about the address of the client alone, and is now part of the listener.
    fn by_source(&self, list: &[Signed], rules: &mut Rules) -> bool {
        match list {
            [Signed { term: Term::Source(networks), is_negated: false }] => rules.deny.extend(networks),
            // Two such rules would both have to hold.
            [Signed { term: Term::Source(networks), is_negated: true }] if rules.allow.is_empty() => {
                rules.allow.extend(networks)
            }
            _ => return false,
        }
        true
    }

    fn connection(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let is_reject = line.word(2) == "reject";
        match lists {
            None if !is_reject => {}
            Some(lists) if is_reject && lists.iter().all(|list| self.by_source(list, rules)) => {}
            // It waits for the first bytes.
            Some(_) if !is_reject && (line.rest(3).contains("ssl_hello_type") || line.rest(3).contains("HTTP")) => {}
            Some(lists) if lists.iter().flatten().any(|one| one.term == Term::Rate) => {
                self.note(line, Became::Lost, "it limits rates: write `client_limits` of the listener");
            }
            _ => {
                self.note(line, Became::Closed, "its condition is not understood, so the listener is closed");
                rules.routes.push(closed(&Keys::default()));
                rules.is_final = true;
            }
        }
    }

    fn answer(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let mut answer =
            json!({"status": line.after("status").and_then(|text| text.parse::<u16>().ok()).unwrap_or(200)});
        if let Some(kind) = line.after("content-type") {
            answer["content_type"] = json!(kind);
        }
        if let Some(text) = line.after("string") {
            answer["body"] = json!(text);
        }
        let is_plain =
            ["file", "errorfile", "lf-string", "lf-file", "errorfiles", "hdr"].iter().all(|word| !line.has(word));
        if !is_plain {
            self.note(line, Became::Lost, "only a status and a `string` are understood");
        }
        self.answered(line, lists, Keys::default().with("respond", answer), rules);
    }

    /// Adds an answer for what a condition holds for.
    fn answered(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, answer: Keys, rules: &mut Rules) {
        let Some(lists) = lists else {
            rules.routes.push(answer);
            rules.is_final = true;
            return;
        };
        for list in &lists {
            let Some(found) = acl::routes(list) else { continue };
            if !found.is_exact {
                self.note(line, Became::Closed, "its condition is not understood, so what it may be about is closed");
                rules.routes.extend(found.keys.iter().map(closed));
                continue;
            }
            let is_all = found.keys.iter().any(Keys::is_empty);
            rules.routes.extend(found.keys.into_iter().map(|keys| keys.joined(&answer)));
            rules.is_final |= is_all;
        }
    }

    fn redirect(&mut self, line: &Line, lists: Option<Vec<Vec<Signed>>>, rules: &mut Rules) {
        let status = line.after("code").and_then(|text| text.parse::<u16>().ok()).unwrap_or(302);
        let answer = match (line.after("scheme"), line.after("location"), line.after("prefix")) {
            (Some(scheme), ..) => Some(json!({"redirect": {"scheme": scheme, "status": status}})),
            (_, Some(url), _) if !url.contains('%') => {
                Some(json!({"respond": {"status": status, "headers": {"location": url}}}))
            }
            (_, _, Some(url)) if !url.contains('%') => prefix(url).map(|mut to| {
                to["status"] = json!(status);
                json!({"redirect": to})
            }),
            (_, Some(url), _) => with_variables(url).map(|mut to| {
                to["status"] = json!(status);
                json!({"redirect": to})
            }),
            _ => None,
        };
        for word in ["drop-query", "append-slash", "set-cookie", "clear-cookie", "ignore-empty"] {
            if line.has(word) {
                self.note(line, Became::Different, "the query stays, and no cookie is set");
            }
        }
        let Some(Value::Object(answer)) = answer else {
            self.note(
                line,
                Became::Closed,
                "the place that it leads to is not understood, so it is closed; write `redirect`",
            );
            return rules.close(lists.as_deref(), lists.is_none());
        };
        let mut keys = Keys::default();
        answer.into_iter().for_each(|(key, value)| keys.set(&key, value));
        self.answered(line, lists, keys, rules);
    }

    fn tcp(&mut self, section: &Section, bind: &Bind, is_closed: bool) -> (Listener, &'static str) {
        let mut rules =
            Rules { routes: Vec::new(), all: Keys::default(), allow: Vec::new(), deny: Vec::new(), is_final: false };
        for line in section.all(&["tcp-request"]) {
            self.rule(line, section, bind.is_tls, &mut rules);
        }
        let mut is_closed = is_closed || rules.is_final;
        let mut routes = Vec::new();
        for line in section.all(&["use_backend"]) {
            for list in acl::condition(line, section, bind.is_tls).unwrap_or_else(|| vec![Vec::new()]) {
                let found = acl::routes(&list).filter(|found| found.is_exact);
                let names: Option<Vec<Value>> =
                    found.map(|found| found.keys.iter().filter_map(|keys| keys.get("hosts").cloned()).collect());
                let target = self.backend(line.word(1));
                match (names.as_deref(), target) {
                    (Some([names]), Some(backend)) => {
                        let to = self.cluster(&backend, false);
                        routes.push(Keys::default().with("sni", names.clone()).with("to", to));
                    }
                    _ => {
                        self.note(
                            line,
                            Became::Closed,
                            "only names that TLS clients ask for choose a backend, so the listener is left out",
                        );
                        is_closed = true;
                    }
                }
            }
        }
        let default = match section.kind.as_str() {
            "listen" => Some(section.clone()),
            _ => section.last(&["default_backend"]).and_then(|line| self.backend(line.word(1))),
        };
        let mut keys = Keys::default();
        for (key, list) in [("allow", &rules.allow), ("deny", &rules.deny)] {
            if !list.is_empty() {
                keys.set(key, list.iter().map(ToString::to_string).collect::<Vec<_>>());
            }
        }
        if let Some(time) = section.time(&["timeout", "client"]) {
            keys.set("idle_timeout", milliseconds(time));
        }
        let to = default.map(|backend| self.cluster(&backend, false));
        let (protocol, to) = match (routes.is_empty(), to) {
            (true, Some(to)) if !is_closed => (if bind.is_tls { "tls" } else { "tcp" }, Some(to)),
            (false, to) if !is_closed => {
                routes.extend(to.map(|to| Keys::default().with("to", to)));
                (if bind.is_tls { "tls" } else { "tls_passthrough" }, None)
            }
            // Nobody gets through.
            _ => {
                keys.set("deny", json!(["0.0.0.0/0", "::/0"]));
                keys.remove("allow");
                let nowhere = Keys::default().with("endpoints", json!(["127.0.0.1:9"]));
                ("tcp", Some(self.draft.cluster("nowhere", nowhere)))
            }
        };
        if let Some(to) = to {
            keys.set("to", to);
            routes.clear();
        }
        (Listener { keys, routes }, protocol)
    }
}

impl Rules {
    /// Closes what a rule may be about.
    fn close(&mut self, lists: Option<&[Vec<Signed>]>, is_always: bool) {
        let found: Vec<Keys> =
            lists.into_iter().flatten().filter_map(|list| acl::routes(list)).flat_map(|found| found.keys).collect();
        let is_all = is_always || found.iter().any(Keys::is_empty);
        self.routes.extend(found.iter().map(closed));
        if is_always {
            self.routes.push(closed(&Keys::default()));
        }
        self.is_final |= is_all;
    }
}

/// Whether a condition always holds, or never; `None` if it depends on the request.
fn holds(lists: Option<&[Vec<Signed>]>) -> Option<bool> {
    let Some(lists) = lists else { return Some(true) };
    let found: Vec<acl::Routes> = lists.iter().filter_map(|list| acl::routes(list)).collect();
    match found.is_empty() {
        true => Some(false),
        false if found.iter().any(|one| one.is_exact && one.keys.iter().any(Keys::is_empty)) => Some(true),
        false => None,
    }
}

/// The changes of headers of a route, with those of all routes.
fn merged(mut route: Keys, all: &Keys) -> Keys {
    for side in ["request_headers", "response_headers"] {
        let Some(other) = all.get(side) else { continue };
        let mut own = route.get(side).cloned().unwrap_or_else(|| json!({}));
        for how in ["set", "add"] {
            for (name, value) in other[how].as_object().into_iter().flatten() {
                own[how][name] = value.clone();
            }
        }
        let names: Vec<Value> =
            other["remove"].as_array().into_iter().chain(own["remove"].as_array()).flatten().cloned().collect();
        if !names.is_empty() {
            own["remove"] = json!(names);
        }
        route.set(side, own);
    }
    route
}

/// `*:80`, `:80`, `10.0.0.1:80`, `[::]:443`, `ipv4@...`; one port.
fn address_of(text: &str) -> Option<String> {
    let text = text.trim_start_matches("ipv4@").trim_start_matches("ipv6@");
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare {
        "" | "*" | "::" => Some(format!(":{port}")),
        bare => match bare.parse::<std::net::IpAddr>().ok()? {
            address if address.is_ipv6() => Some(format!("[{address}]:{port}")),
            address => Some(format!("{address}:{port}")),
        },
    }
}

/// `https://www.example.com` in front of the client's path.
fn prefix(url: &str) -> Option<Value> {
    let (scheme, authority) = url.trim_end_matches('/').split_once("://")?;
    let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
    if host.is_empty() || authority.contains('/') {
        return None;
    }
    let mut to = json!({"scheme": scheme, "host": host});
    if !port.is_empty() {
        to["port"] = json!(port.parse::<u16>().ok()?);
    }
    Some(to)
}

/// `https://%[hdr(host)]%[capture.req.uri]`, and with a host.
fn with_variables(url: &str) -> Option<Value> {
    let (scheme, rest) = url.split_once("://")?;
    let rest = ["%[capture.req.uri]", "%[pathq]", "%[path]", "%HU"].iter().find_map(|end| rest.strip_suffix(end))?;
    match rest {
        "%[hdr(host)]" | "%[req.hdr(Host)]" | "%[req.hdr(host)]" | "%[hdr(Host)]" => Some(json!({"scheme": scheme})),
        host if !host.contains('%') => prefix(&format!("{scheme}://{host}")),
        _ => None,
    }
}

//! A frontend: its sockets, and the listener that each of them becomes.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::super::draft::{Became, Keys, Listener, closed, milliseconds, named};
use super::acl::{self, Fit, Place, Signed};
use super::headers::{Changes, How};
use super::options::{BIND_FLAGS, BIND_VALUES, options};
use super::read::{Line, Section};
use super::{Making, clients, hosts};

/// The largest limit of connections.
pub(super) const CONNECTIONS_MAX: u64 = 10_000_000;

/// One socket of a frontend.
struct Bind {
    address: String,
    is_tls: bool,
    tls: Option<Value>,
    has_proxy_protocol: bool,
    is_closed: bool,
    /// HTTP/2 is not offered.
    is_h1: bool,
    /// The largest number of its connections.
    connections: Option<u64>,
}

/// The routes of one socket in the making.
pub(super) struct Rules {
    pub(super) routes: Vec<Keys>,
    /// What every route changes.
    pub(super) request: Changes,
    pub(super) response: Changes,
    pub(super) allow: Vec<IpNet>,
    pub(super) deny: Vec<IpNet>,
    /// Nothing comes after a rule without a condition.
    pub(super) is_final: bool,
    /// Some requests get an answer that is more than a refusal.
    pub(super) has_answers: bool,
    pub(super) place: Place,
    /// The line of its section.
    section: usize,
}

impl Rules {
    fn new(section: &Section, bind: &Bind) -> Self {
        Self {
            routes: Vec::new(),
            request: Changes::default(),
            response: Changes::default(),
            allow: Vec::new(),
            deny: Vec::new(),
            is_final: false,
            has_answers: false,
            place: Place { is_http: section.is_http(), is_tls: bind.is_tls, ..Place::default() },
            section: section.line,
        }
    }

    /// Whether these are the rules of a `listen` itself.
    pub(super) fn is_of(&self, section: &Section) -> bool {
        self.section == section.line
    }

    /// Closes what a rule may be about: everything, if it has no condition.
    pub(super) fn close(&mut self, lists: Option<&[Vec<Signed>]>) {
        let found = match lists {
            None => vec![Keys::default()],
            Some(lists) => lists.iter().filter_map(|list| acl::refused(list)).flat_map(|found| found.keys).collect(),
        };
        self.is_final |= found.iter().any(Keys::is_empty);
        self.routes.extend(found.iter().map(closed));
    }
}

impl Making<'_> {
    pub(super) fn front(&mut self, section: &Section) {
        if section.is_disabled() {
            return self.note(&section.head(), Became::Different, "it is disabled, so it is left out");
        }
        let binds = self.binds(section);
        let is_closed = self.closes(section);
        for (number, bind) in binds.iter().enumerate() {
            if !self.spend(section.lines.len()) {
                return;
            }
            let is_closed = is_closed || bind.is_closed;
            let (mut listener, protocol) = match section.is_http() {
                true => (self.http(section, bind, is_closed), if bind.is_tls { "https" } else { "http" }),
                false => self.tcp(section, bind, is_closed),
            };
            if !self.fits(listener.routes.len()) {
                return;
            }
            self.routes += listener.routes.len();
            let mut keys = Keys::default().with("bind", bind.address.as_str()).with("protocol", protocol);
            if let Some(tls) = bind.tls.clone().filter(|_| protocol == "https" || protocol == "tls") {
                keys.set("tls", tls);
            }
            if bind.has_proxy_protocol {
                keys.set("proxy_protocol", true);
            }
            if bind.is_h1 && section.is_http() {
                keys.set("http2", false);
            }
            let own = section.last(&["maxconn"]).and_then(|line| line.word(1).parse().ok()).filter(|count| *count > 0);
            let count = [own.or(self.global.connections), bind.connections].into_iter().flatten().min();
            if let Some(count) = count {
                keys.set("limits", json!({"connections": count.min(CONNECTIONS_MAX)}));
            }
            listener.keys = keys.joined(&listener.keys);
            let mut name = named(&section.name);
            for number in (number + 1).max(2).. {
                if !self.draft.listeners.iter().any(|(known, _)| *known == name) {
                    break;
                }
                name = named(&format!("{}-{}", section.name.get(..40).unwrap_or(&section.name), number));
            }
            self.draft.listeners.push((name, listener));
        }
    }

    fn binds(&mut self, section: &Section) -> Vec<Bind> {
        let mut binds = Vec::new();
        for line in section.all(&["bind"]) {
            let words = match options(line.words.get(2..).unwrap_or_default(), BIND_FLAGS, BIND_VALUES) {
                Ok(words) => Some(words),
                Err(word) => {
                    let why = format!(
                        "`{word}` is not understood, so what comes in here is closed; remove it, or write what it does"
                    );
                    self.note(line, Became::Closed, &why);
                    None
                }
            };
            self.report_bind(line, words.as_deref().unwrap_or_default());
            let has = |flag: &str| words.iter().flatten().any(|(word, _)| *word == flag);
            let last =
                |name: &str| words.iter().flatten().rev().find(|(word, _)| *word == name).map(|(_, value)| *value);
            let is_h1 = has("no-alpn")
                || last("proto") == Some("h1")
                || last("alpn").is_some_and(|names| !names.split(',').any(|name| name == "h2"));
            for address in line.word(1).split(',') {
                let Some(address) = address_of(address, has("v6only")) else {
                    let why = "Steelyard listens on an address and one port: write a listener for each port";
                    self.note(line, Became::Lost, why);
                    continue;
                };
                let tls = words.as_ref().filter(|_| has("ssl")).map(|words| self.tls(line, words));
                binds.push(Bind {
                    address,
                    is_tls: has("ssl"),
                    tls,
                    has_proxy_protocol: has("accept-proxy"),
                    is_closed: words.is_none() || has("ssl") && self.global.closes_tls,
                    is_h1,
                    connections: last("maxconn").and_then(|text| text.parse().ok()).filter(|count| *count > 0),
                });
            }
        }
        if binds.is_empty() {
            self.note(&section.head(), Became::Lost, "it has no address that Steelyard can listen on");
        }
        binds
    }

    fn tls(&mut self, line: &Line, words: &[(&str, &str)]) -> Value {
        let last = |name: &str| words.iter().rev().find(|(word, _)| *word == name).map(|(_, value)| *value);
        let mut certificates = Vec::new();
        for (_, file) in words.iter().filter(|(word, _)| *word == "crt") {
            if file.ends_with('/') || std::path::Path::new(&self.global.certificate(file)).is_dir() {
                self.note(line, Became::Lost, "name each certificate of the folder in `certificates`");
                continue;
            }
            let file = self.global.certificate(file);
            certificates.push(json!({"cert": file, "key": file}));
        }
        if certificates.is_empty() {
            certificates.push(json!({"cert": "missing.pem", "key": "missing.pem"}));
        }
        let mut tls = json!({"certificates": certificates});
        let demands = |words: &[&str]| {
            words.windows(2).any(|two| two == ["ssl-min-ver", "TLSv1.3"])
                || ["force-tlsv13", "no-tlsv12"].iter().any(|flag| words.contains(flag))
        };
        let own: Vec<&str> = words.iter().flat_map(|(word, value)| [*word, *value]).collect();
        let default: Vec<&str> = self.global.bind_options.iter().map(String::as_str).collect();
        if demands(&own) || last("ssl-min-ver").is_none() && demands(&default) {
            tls["min_version"] = json!("1.3");
        }
        let ca = last("ca-file").map(|file| self.global.ca(file));
        match (last("verify"), ca) {
            (Some("required"), Some(file)) => tls["client_ca"] = json!({"ca": file}),
            (None | Some("none"), _) => {}
            (Some(_), file) => {
                // Whoever has no good certificate is refused.
                tls["client_ca"] = json!({"ca": file.as_deref().unwrap_or("missing.pem")});
                let why = "`client_ca` demands a certificate or none: clients without one are refused";
                self.note(line, Became::Closed, why);
            }
        }
        if let (Some(crl), false) = (last("crl-file"), tls["client_ca"].is_null()) {
            tls["client_ca"]["crl"] = json!(self.global.ca(crl));
        }
        tls
    }

    fn http(&mut self, section: &Section, bind: &Bind, is_closed: bool) -> Listener {
        let mut rules = Rules::new(section, bind);
        let mut keys = self.clients(section);
        if let Some(line) = section.last(&["monitor-uri"]).filter(|line| line.word(1).starts_with('/')) {
            rules.has_answers = true;
            rules.routes.push(
                Keys::default().with("path", json!({"exact": line.word(1)})).with("respond", json!({"status": 200})),
            );
        }
        let mut is_closed = is_closed;
        for kind in ["http-response", "http-after-response"] {
            for line in section.all(&[kind]) {
                is_closed |= !self.response(line, &mut rules.response);
            }
        }
        if is_closed {
            rules.close(None);
        }
        // HAProxy runs all rules of a kind before the next kind.
        let kinds = [
            &["tcp-request", "connection"][..],
            &["tcp-request", "session"],
            &["tcp-request"],
            &["http-request"],
            &["redirect"],
        ];
        for (number, kind) in kinds.iter().enumerate() {
            for line in section.all(kind) {
                let is_done = number == 2 && ["connection", "session"].contains(&line.word(1));
                if !rules.is_final && !is_done {
                    self.rule(line, section, &mut rules);
                }
            }
        }
        self.told_address(section, &mut rules.request);
        for line in section.all(&["use_backend"]) {
            if !rules.is_final {
                self.rule(line, section, &mut rules);
            }
        }
        if !rules.is_final {
            match self.default_of(section) {
                Some((place, name)) => {
                    self.send(&place, &name, vec![Keys::default()], &mut rules);
                }
                None => rules.routes.push(Keys::default().with("respond", json!({"status": 503}))),
            }
        }
        match clients::lists(&rules.allow, &rules.deny) {
            Some(lists) => keys = keys.joined(&lists),
            None => {
                self.note(&section.head(), Became::Closed, "no client may come in, or there are too many networks");
                rules.routes = vec![closed(&Keys::default())];
            }
        }
        if rules.routes.iter().any(|route| route.get("path").is_some()) {
            let why = "conditions see the path in its normal form, with `.` and `..` resolved, and so do endpoints";
            self.note(&section.head(), Became::Different, why);
            keys.set("paths", json!({"merge_slashes": false, "forward": "normal"}));
        }
        let has_id =
            |route: &Keys| route.get("request_headers").is_some_and(|all| all.to_string().contains("${request_id}"));
        if rules.routes.iter().any(has_id) {
            keys.set("request_id", json!({}));
        }
        Listener { keys, routes: self.in_order(rules.routes) }
    }

    /// Where requests go that no rule sends elsewhere, and the line that says so.
    fn default_of(&self, section: &Section) -> Option<(Line, String)> {
        if let Some(line) = section.last(&["default_backend"]) {
            return Some((Line::clone(line), line.word(1).to_owned()));
        }
        let has_server = section.last(&["server"]).or(section.last(&["server-template"])).is_some();
        (section.kind == "listen" && has_server).then(|| (section.head(), section.name.clone()))
    }

    /// Headers about the client and the request that settings add, and which nobody may write in their place.
    pub(super) fn told_address(&self, section: &Section, changes: &mut Changes) {
        for line in section.all(&["unique-id-header"]) {
            changes.push(line, How::Remove, line.word(1), "");
        }
        let line = section.last(&["option", "forwardfor"]).filter(|_| section.has_option("forwardfor"));
        let Some((line, name)) = line.and_then(|line| Some((line, line.after("header")?))) else { return };
        if !name.eq_ignore_ascii_case("x-forwarded-for") {
            changes.push(line, How::Set, name, "${client_ip}");
        }
    }

    fn in_order(&mut self, routes: Vec<Keys>) -> Vec<Keys> {
        if !self.fits(routes.len()) {
            return Vec::new();
        }
        match hosts::ordered(routes) {
            Some(routes) => routes,
            None => {
                self.is_too_large = true;
                Vec::new()
            }
        }
    }
    /// Settings about clients.
    fn clients(&mut self, section: &Section) -> Keys {
        let mut keys = Keys::default();
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
        if !self.forwards {
            keys.set("forwarded", "off");
        }
        keys
    }

    fn tcp(&mut self, section: &Section, bind: &Bind, is_closed: bool) -> (Listener, &'static str) {
        let mut rules = Rules::new(section, bind);
        for line in section.all(&["tcp-request"]) {
            self.rule(line, section, &mut rules);
        }
        let mut is_closed = is_closed || rules.is_final;
        let mut routes = Vec::new();
        let mut claimed = Vec::new();
        for line in section.all(&["use_backend"]) {
            if !self.spend(acl::size(line, section)) {
                break;
            }
            let lists = acl::condition(line, section, &rules.place).unwrap_or_else(|| vec![Vec::new()]);
            for list in lists {
                let Some(found) = acl::refused(&list) else { continue };
                let names: Vec<String> = found.keys.iter().flat_map(|keys| hosts::names(keys, "hosts")).collect();
                let is_named = found.fit < Fit::Part && found.keys.iter().all(|keys| keys.get("hosts").is_some());
                let to = self
                    .backend(line.word(1))
                    .filter(|_| is_named)
                    .and_then(|backend| self.stream_to(&backend, &rules));
                let Some(to) = to else {
                    let why = "only names that TLS clients ask for choose a backend, and it has to be open, so the listener is closed";
                    self.note(line, Became::Closed, why);
                    is_closed = true;
                    continue;
                };
                let names = hosts::unclaimed(names, &mut claimed);
                if !names.is_empty() {
                    routes.push(Keys::default().with("sni", names).with("to", to));
                }
            }
        }
        let default = self.default_of(section).map(|(line, name)| (line, self.backend(&name)));
        let mut to = None;
        if let Some((line, backend)) = default {
            to = backend.and_then(|backend| self.stream_to(&backend, &rules));
            if to.is_none() {
                self.note(
                    &line,
                    Became::Closed,
                    "there is no such backend, or it is closed, so the listener is closed",
                );
                is_closed = true;
            }
        }
        let mut keys = Keys::default();
        match clients::lists(&rules.allow, &rules.deny) {
            Some(lists) => keys = lists,
            None => is_closed = true,
        }
        // Between both sides of a connection, the time of a tunnel is the one that counts.
        if let Some(time) = section.time(&["timeout", "tunnel"]).or(section.time(&["timeout", "client"])) {
            keys.set("idle_timeout", milliseconds(time));
        }
        let protocol = match (routes.is_empty(), to) {
            _ if is_closed => self.nobody(&mut keys, &mut routes),
            (true, None) => self.nobody(&mut keys, &mut routes),
            (true, Some(to)) => {
                keys.set("to", to);
                if bind.is_tls { "tls" } else { "tcp" }
            }
            (false, to) => {
                routes.extend(to.map(|to| Keys::default().with("to", to)));
                if bind.is_tls { "tls" } else { "tls_passthrough" }
            }
        };
        (Listener { keys, routes }, protocol)
    }

    /// A listener of connections that nobody gets through.
    fn nobody(&mut self, keys: &mut Keys, routes: &mut Vec<Keys>) -> &'static str {
        routes.clear();
        keys.remove("allow");
        keys.set("deny", json!(["0.0.0.0/0", "::/0"]));
        let nowhere = Keys::default().with("endpoints", json!(["127.0.0.1:9"]));
        let to = self.draft.cluster("nowhere", nowhere);
        keys.set("to", to);
        "tcp"
    }

    /// The cluster of a backend for connections; `None` if it is closed, or may refuse some of them.
    fn stream_to(&mut self, backend: &Section, rules: &Rules) -> Option<String> {
        let is_own = rules.is_of(backend);
        if !self.spend(backend.lines.len()) || !is_own && (backend.is_disabled() || self.closes(backend)) {
            return None;
        }
        let is_rule = |line: &Line| {
            line.word(1) != "inspect-delay" && line.word(2) != "accept" && !super::rules::is_harmless(line.word(2))
        };
        let rule = backend.all(&["tcp-request"]).find(|line| !is_own && is_rule(line));
        if let Some(line) = rule {
            self.note(line, Became::Closed, "it may refuse connections, so what leads to the backend is closed");
            return None;
        }
        self.cluster(backend, false)
    }
}

/// `*:80`, `:80`, `10.0.0.1:80`, `[::]:443`, `:::443`, `ipv4@...`; one port.
fn address_of(text: &str, is_v6_only: bool) -> Option<String> {
    let text = text.trim_start_matches("ipv4@").trim_start_matches("ipv6@");
    let (host, port) = text.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port > 0)?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare {
        "" | "*" => Some(format!("0.0.0.0:{port}")),
        "::" if !is_v6_only => Some(format!(":{port}")),
        bare => match bare.parse::<std::net::IpAddr>().ok()? {
            address if address.is_ipv6() => Some(format!("[{address}]:{port}")),
            address => Some(format!("{address}:{port}")),
        },
    }
}

//! Endpoints: upstreams, the addresses in `proxy_pass`, and streams.

use serde_json::{Value, json};

use super::super::draft::{Became, Draft, Keys, literal, milliseconds};
use super::super::pattern::{escaped, searched};
use super::location::{template, with_path, within};
use super::parse::Directive;
use super::server::{Matcher, Of};
use super::variables::{names, replaced};
use super::{Making, Scope, Zone, path};

/// The URL of `proxy_pass`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) is_tls: bool,
    /// A name of an upstream, or a host and perhaps a port.
    pub(super) authority: String,
    /// Path and query, if it has any.
    pub(super) uri: Option<String>,
}

impl Target {
    pub(super) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let is_tls = match scheme {
            "http" | "grpc" => false,
            "https" | "grpcs" => true,
            _ => return None,
        };
        // `http://app$request_uri`
        let end = rest
            .find('/')
            .into_iter()
            .chain(rest.find("$request_uri"))
            .chain(rest.find("$uri"))
            .min()
            .unwrap_or(rest.len());
        let (authority, uri) = rest.split_at(end);
        (!authority.is_empty()).then(|| Self {
            is_tls,
            authority: authority.to_owned(),
            uri: (!uri.is_empty()).then(|| uri.to_owned()),
        })
    }

    /// `$proxy_host`: without the default port.
    pub(super) fn host(&self) -> &str {
        self.authority.strip_suffix(if self.is_tls { ":443" } else { ":80" }).unwrap_or(&self.authority)
    }
}

/// `limit_req_zone $binary_remote_addr zone=a:1m rate=10r/s;`
pub(super) fn zone(one: &Directive) -> Option<(String, Zone)> {
    let value = |name: &str| one.args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let name = value("zone")?.split(':').next()?.to_owned();
    let rate = value("rate")?;
    let (requests, per) = match (rate.strip_suffix("r/s"), rate.strip_suffix("r/m")) {
        (Some(count), _) => (count, "1s"),
        (_, Some(count)) => (count, "1m"),
        _ => return None,
    };
    let is_by_address = ["$binary_remote_addr", "$remote_addr"].contains(&one.arg(0));
    Some((name, Zone { requests: requests.parse().ok()?, per, is_by_address }))
}

impl<'d> Making<'d, '_> {
    /// The routes of a location with `proxy_pass`. `None` closes it.
    pub(super) fn proxied(
        &mut self,
        pass: &'d Directive,
        block: &'d [Directive],
        of: &Of<'d, '_>,
    ) -> Option<Vec<Keys>> {
        let is_grpc = pass.name == "grpc_pass";
        let url = of.scope.resolved(pass.arg(0));
        let url = if is_grpc && !url.contains("://") { format!("grpc://{url}") } else { url };
        if let Some(routes) = self.mapped(&url, pass, block, of) {
            return Some(routes);
        }
        let target = Target::of(&url).filter(|target| !target.authority.contains('$'));
        let Some(target) = target else {
            let why = "the endpoint is not known before the request, so the location is closed; write a route for each";
            self.draft.note(pass.place(), &pass.told(), Became::Closed, why);
            return None;
        };
        let to = self.upstream(&target, &of.scope, pass, is_grpc)?;
        let mut common = Keys::default().with("to", to);
        self.behind(of, target.host(), &mut common);
        let mut routes = Vec::new();
        for one in block.iter().filter(|one| one.name == "rewrite" && within(one.arg(0), of.matcher)) {
            let (Some(regex), Some(path)) =
                (path::found(one.arg(0), false), template(one.arg(1).trim_end_matches('?')))
            else {
                let why = "the expression or the new path is not understood, so the location is closed";
                self.draft.note(one.place(), &one.told(), Became::Closed, why);
                return None;
            };
            let mut route = with_path(Some(json!({"regex": regex}))).joined(&common);
            route.set_in("rewrite", "path", path);
            routes.push(route);
        }
        let is_whole = pass.arg(0).contains('$');
        let (path, rewrite) = match paths(of.matcher, target.uri.as_deref(), is_whole) {
            Some(found) => found,
            None => {
                let why = "the new path is not understood, so the location is closed; write `rewrite` by hand";
                self.draft.note(pass.place(), &pass.told(), Became::Closed, why);
                return None;
            }
        };
        let mut route = with_path(path).joined(&common);
        if let Some(NewPath { key, value }) = rewrite {
            self.query_stays(pass, target.uri.as_deref(), is_whole);
            route.set_in("rewrite", key, value);
        }
        routes.push(route);
        Some(routes)
    }

    /// nginx drops the query of a request whose path is replaced by one with variables.
    fn query_stays(&mut self, pass: &Directive, uri: Option<&str>, is_whole: bool) {
        let has_query = uri.is_some_and(|uri| ["$args", "$query_string"].iter().any(|name| uri.contains(name)));
        if is_whole && !has_query {
            self.draft.note(pass.place(), &pass.told(), Became::Different, "the query stays");
        }
    }

    /// What a location says about the requests that it passes on, wherever they go. `host` is that of the endpoints.
    fn behind(&mut self, of: &Of<'d, '_>, host: &str, route: &mut Keys) {
        self.headers(of, host, route);
        self.compression(of, route);
        self.bandwidth(of, route);
        self.mirror(of, route);
        if let Some(retry) = self.retry(of) {
            route.set("retry", retry);
        }
    }

    /// `proxy_pass http://$pool`, where a map or split_clients has the values.
    fn mapped(&mut self, url: &str, pass: &'d Directive, block: &'d [Directive], of: &Of<'d, '_>) -> Option<Vec<Keys>> {
        let mut maps: Vec<(&str, &'d Directive)> = Vec::new();
        for name in names(url) {
            let map = self.maps.get(format!("${name}").as_str()).copied();
            maps.extend(map.filter(|_| maps.iter().all(|(known, _)| *known != name)).map(|map| (name, map)));
        }
        let [(name, map)] = maps[..] else { return None };
        let is_grpc = pass.name == "grpc_pass";
        // The new paths of `rewrite` have no place in these routes.
        if block.iter().any(|one| one.name == "rewrite") {
            return None;
        }
        let value = |entry: &Directive| replaced(url, |other| (other == name).then(|| entry.arg(0)));
        let passes = |url: String| Directive { args: vec![url], ..pass.clone() };
        if map.name == "split_clients" {
            let mut shares = Vec::new();
            let mut route: Option<Keys> = None;
            let mut left = 1_000_000;
            for entry in &map.block {
                let weight = match entry.name.strip_suffix('%').and_then(|text| text.parse::<f64>().ok()) {
                    Some(percent) => (percent * 10_000.0).round().clamp(0.0, 1e6) as u64,
                    None => left,
                };
                left = left.saturating_sub(weight);
                let target = Target::of(&value(entry)).filter(|target| !target.authority.contains('$'))?;
                let to = self.upstream(&target, &of.scope, pass, is_grpc)?;
                let mut share = json!({"cluster": to, "weight": weight});
                let (path, None) = paths(of.matcher, target.uri.as_deref(), true)? else { return None };
                let mut one = with_path(path);
                self.behind(of, target.host(), &mut one);
                // Each share has the host of its own endpoints.
                let first = route.get_or_insert_with(|| one.clone());
                if let Some(rewrite) = one.get("rewrite").filter(|rewrite| first.get("rewrite") != Some(rewrite)) {
                    share["rewrite"] = rewrite.clone();
                }
                shares.push(share);
            }
            let why = "the share is exact, and a client may get another cluster with each request";
            self.draft.note(map.place(), &map.told(), Became::Different, why);
            return Some(vec![route?.with("to", shares)]);
        }
        let source = map.arg(0);
        let mut routes = Vec::new();
        let mut default = None;
        let is_option = |entry: &&Directive| ["hostnames", "volatile", "include"].contains(&entry.name.as_str());
        let mut entries: Vec<&Directive> = map.block.iter().filter(|entry| !is_option(entry)).collect();
        // A text comes before all expressions.
        entries.sort_by_key(|entry| entry.name.starts_with('~'));
        for entry in entries {
            let made = self.for_one(&passes(value(entry)), pass, of)?;
            if entry.name == "default" {
                default = Some(made);
                continue;
            }
            for mut route in made {
                entered(&mut route, source, &entry.name)?;
                routes.push(route);
            }
        }
        routes.extend(default?);
        Some(routes)
    }

    /// The routes for one value of a map.
    fn for_one(&mut self, pass: &Directive, place: &'d Directive, of: &Of<'d, '_>) -> Option<Vec<Keys>> {
        let target = Target::of(pass.arg(0)).filter(|target| !target.authority.contains('$'))?;
        let to = self.upstream(&target, &of.scope, place, pass.name == "grpc_pass")?;
        let (path, rewrite) = paths(of.matcher, target.uri.as_deref(), true)?;
        let mut route = with_path(path).with("to", to);
        self.behind(of, target.host(), &mut route);
        if let Some(NewPath { key, value }) = rewrite {
            self.query_stays(place, target.uri.as_deref(), true);
            route.set_in("rewrite", key, value);
        }
        Some(vec![route])
    }

    /// The cluster of a target.
    pub(super) fn upstream(
        &mut self,
        target: &Target,
        scope: &Scope<'d>,
        place: &Directive,
        is_grpc: bool,
    ) -> Option<String> {
        if target.authority.starts_with("unix:") {
            let why =
                "Steelyard connects to addresses, so it is closed; let the application listen on a port of 127.0.0.1";
            self.draft.note(place.place(), &place.told(), Became::Closed, why);
            return None;
        }
        let mut keys = Keys::default();
        match self.upstreams.get(target.authority.as_str()).copied() {
            Some(upstream) => endpoints(upstream, &mut keys, self.draft)?,
            None => {
                let port = if target.is_tls { 443 } else { 80 };
                let address = with_port(&target.authority, port);
                keys.set("endpoints", json!([address]));
            }
        }
        let time = |name: &str| scope.last(name).and_then(|one| duration(one.arg(0)));
        let prefix = if is_grpc { "grpc" } else { "proxy" };
        if let Some(time) = time(&format!("{prefix}_connect_timeout")) {
            keys.set("connect_timeout", milliseconds(time));
        }
        if let Some(time) = time(&format!("{prefix}_read_timeout")) {
            keys.set("response_timeout", milliseconds(time));
        }
        if is_grpc {
            keys.set("protocol", if target.is_tls { "h2" } else { "h2c" });
        }
        if target.is_tls {
            let tls = self.upstream_tls(target, scope, place);
            keys.set("tls", tls);
        }
        Some(self.draft.cluster(&target.authority, keys))
    }

    fn upstream_tls(&mut self, target: &Target, scope: &Scope<'d>, place: &Directive) -> Value {
        let is_on = |name: &str| scope.last(name).is_some_and(|one| one.arg(0) == "on");
        let mut tls = json!({});
        if !is_on("proxy_ssl_verify") {
            tls["verify"] = json!(false);
            let why =
                "certificates of endpoints are not verified, as with nginx; remove `verify: false` to verify them";
            self.draft.note(place.place(), &place.told(), Became::Different, why);
        } else if let Some(ca) = scope.last("proxy_ssl_trusted_certificate") {
            tls["ca"] = json!(ca.arg(0));
        }
        let name = scope.last("proxy_ssl_name").map(|one| one.arg(0)).filter(|name| !name.contains('$'));
        let host = target.authority.split(':').next().unwrap_or_default();
        let is_upstream = self.upstreams.contains_key(target.authority.as_str());
        if let Some(name) = name.or(is_upstream.then_some(host)) {
            tls["server_name"] = json!(name);
        }
        tls
    }

    fn retry(&mut self, of: &Of<'d, '_>) -> Option<Value> {
        let next = of.scope.last("proxy_next_upstream");
        let tries = of.scope.last("proxy_next_upstream_tries").and_then(|one| one.arg(0).parse::<u64>().ok());
        let within = of.scope.last("proxy_next_upstream_timeout").and_then(|one| duration(one.arg(0)));
        if next.is_none() && tries.is_none() && within.is_none() {
            return None;
        }
        let words: Vec<&str> =
            next.map_or_else(|| vec!["error", "timeout"], |one| one.args.iter().map(String::as_str).collect());
        if words.contains(&"off") || tries == Some(1) {
            return Some(json!("off"));
        }
        let mut on: Vec<String> = Vec::new();
        for word in &words {
            match *word {
                "error" => on.extend(["connect_failure".to_owned(), "reset".to_owned()]),
                "timeout" => on.push("timeout".to_owned()),
                "non_idempotent" => {}
                word => match word.strip_prefix("http_").filter(|code| code.parse::<u16>().is_ok()) {
                    Some(code) => on.push(code.to_owned()),
                    None => {
                        let why = format!("`{word}`: retries are for connections, times and statuses");
                        if let Some(next) = next {
                            self.draft.note(next.place(), &next.told(), Became::Lost, &why);
                        }
                    }
                },
            }
        }
        if on.is_empty() {
            return Some(json!("off"));
        }
        let attempts = tries.filter(|tries| *tries > 0).map_or(2, |tries| (tries - 1).clamp(1, 10));
        let mut retry = json!({"on": on, "attempts": attempts});
        if words.contains(&"non_idempotent") {
            retry["non_idempotent"] = json!(true);
        }
        if let Some(time) = within {
            retry["within"] = json!(milliseconds(time));
        }
        Some(retry)
    }

    fn compression(&mut self, of: &Of<'d, '_>, route: &mut Keys) {
        if of.scope.last("gzip").is_none_or(|one| one.arg(0) != "on") {
            return;
        }
        let mut types: Vec<String> = vec!["text/html".to_owned()];
        if let Some(one) = of.scope.last("gzip_types") {
            types.extend(one.args.iter().filter(|kind| kind.contains('/')).cloned());
        }
        types.sort_unstable();
        types.dedup();
        let mut compress = json!({"encodings": ["gzip"], "types": types});
        if let Some(level) = of.scope.last("gzip_comp_level").and_then(|one| one.arg(0).parse::<u64>().ok()) {
            compress["level"] = json!(level.clamp(1, 9));
        }
        if let Some(bytes) = of.scope.last("gzip_min_length").and_then(|one| super::server::size(one.arg(0))) {
            compress["min_size"] = json!(format!("{bytes}B"));
        }
        route.set("compress", compress);
    }
}

/// Adds the condition of an entry of a map. There, the case of a text does not matter.
fn entered(route: &mut Keys, source: &str, entry: &str) -> Option<()> {
    let named = |prefix: &str| source.strip_prefix(prefix).filter(|name| !name.is_empty());
    let is_text = !entry.starts_with(['~', '\\', '*', '.']) && !entry.is_empty();
    match source {
        "$host" | "$http_host" if is_text && !entry.ends_with('*') => route.set("hosts", json!([entry])),
        "$request_method" if is_text => route.set("methods", json!([entry.to_ascii_uppercase()])),
        _ => {
            let regex = match entry.strip_prefix('~') {
                Some(pattern) => {
                    let (pattern, ignores_case) =
                        pattern.strip_prefix('*').map_or((pattern, false), |pattern| (pattern, true));
                    path::reads_alike(pattern).then(|| searched(pattern, ignores_case))??
                }
                None => format!("(?i){}", escaped(entry.strip_prefix('\\').unwrap_or(entry))),
            };
            // A header that is not there has the empty text for nginx.
            (!path::takes_nothing(&regex)).then_some(())?;
            let condition = json!({"regex": regex});
            let is_there = match (named("$http_"), named("$cookie_"), named("$arg_")) {
                (Some(name), ..) => route.condition("headers", &name.replace('_', "-"), condition),
                (_, Some(name), _) => route.condition("cookies", name, condition),
                (.., Some(name)) => route.condition("query", name, condition),
                _ => false,
            };
            is_there.then_some(())?;
        }
    }
    Some(())
}

/// What a route makes of a path: a key of `rewrite`, and its value.
struct NewPath {
    key: &'static str,
    value: Value,
}

/// The condition of a route and its new path, for the URI of `proxy_pass`. `is_whole`: its URL has variables, so the URI replaces all of the path, and
/// not only what the location matches.
fn paths(matcher: &Matcher, uri: Option<&str>, is_whole: bool) -> Option<(Option<Value>, Option<NewPath>)> {
    let uri_written = uri;
    let bare = uri.map(|uri| uri.strip_suffix("$is_args$args").unwrap_or(uri));
    let same = || Some((matcher.condition(true), None));
    let uri = match bare {
        None | Some("$request_uri" | "$uri" | "/$request_uri") => return same(),
        Some(uri) => uri,
    };
    // A path of Steelyard has no query.
    if uri.contains(['?', '#']) {
        return None;
    }
    if uri.contains('$') {
        let regex = matches!(matcher, Matcher::Regex { .. }).then(|| matcher.condition(true))?;
        return Some((regex, Some(NewPath { key: "path", value: json!(template(uri)?) })));
    }
    match matcher {
        _ if is_whole || bare != uri_written => {
            Some((matcher.condition(true), Some(NewPath { key: "path", value: json!(literal(uri)) })))
        }
        Matcher::Exact(_) => Some((matcher.condition(true), Some(NewPath { key: "path", value: json!(literal(uri)) }))),
        Matcher::Prefix { path, .. } if path == uri => same(),
        Matcher::Prefix { path, has_bare, .. } if (*has_bare || path == "/") && uri.ends_with('/') => {
            let condition = matcher.condition(true).unwrap_or_else(|| json!("/"));
            Some((Some(condition), Some(NewPath { key: "path_prefix", value: json!(uri) })))
        }
        Matcher::Prefix { path, .. } => {
            let regex = json!({"regex": format!("{}(.*)", path::text(path))});
            Some((Some(regex), Some(NewPath { key: "path", value: json!(format!("{}${{1}}", literal(uri))) })))
        }
        Matcher::Regex { .. } => None,
    }
}

/// The endpoints of an upstream block, and how they are chosen.
pub(super) fn endpoints(upstream: &Directive, keys: &mut Keys, draft: &mut Draft) -> Option<()> {
    let mut all = Vec::new();
    let (mut has_backup, mut fails, mut connections) = (false, Vec::new(), None);
    for one in upstream.block.iter().filter(|one| one.name == "server") {
        let value = |name: &str| one.args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
        if one.arg(0).starts_with("unix:") {
            draft.note(
                one.place(),
                &one.told(),
                Became::Lost,
                "Steelyard connects to addresses; let the application listen on a port",
            );
            continue;
        }
        has_backup |= one.args.iter().any(|arg| arg == "backup");
        let endpoint = endpoint(one, keys, draft);
        fails.push((
            value("max_fails").and_then(|text| text.parse::<u64>().ok()),
            value("fail_timeout").and_then(duration),
        ));
        let own = value("max_conns").and_then(|text| text.parse::<u64>().ok()).filter(|count| *count > 0);
        if own.is_some() && connections.is_some() && own != connections {
            let why = "`max_conns`: a cluster has one limit for all, that of its first server with one";
            draft.note(one.place(), &one.told(), Became::Different, why);
        }
        connections = connections.or(own);
        all.push(endpoint);
    }
    if all.is_empty() {
        draft.note(
            upstream.place(),
            &upstream.told(),
            Became::Closed,
            "it has no endpoint that Steelyard can connect to",
        );
        return None;
    }
    keys.set("endpoints", all);
    choice(upstream, keys, draft);
    if has_backup {
        keys.set("panic_threshold", "0%");
    }
    if let Some(count) = connections {
        keys.set("limits", json!({"connections": count}));
    }
    match fails.iter().find(|(fails, _)| fails.is_some()) {
        Some(_) if fails.iter().all(|(fails, _)| *fails == Some(0)) => keys.set("outlier", "off"),
        Some((Some(count), time)) if *count > 0 => {
            let outlier = json!({"consecutive_5xx": count, "eject_for": milliseconds(time.unwrap_or(10_000))});
            keys.set("outlier", outlier);
            draft.note(
                upstream.place(),
                &upstream.told(),
                Became::Different,
                "responses from 500 to 599 count as failures, too",
            );
        }
        _ => {}
    }
    Some(())
}

/// One server of an upstream; `slow_start` becomes that of the cluster.
fn endpoint(one: &Directive, keys: &mut Keys, draft: &mut Draft) -> Value {
    let value = |name: &str| one.args.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    let has = |word: &str| one.args.iter().any(|arg| arg == word);
    let mut endpoint = match value("service") {
        Some(service) => json!({"srv": service_name(service, one.arg(0))}),
        None => json!({"address": with_port(one.arg(0), 80)}),
    };
    for arg in one.args.iter().skip(1) {
        let name = arg.split('=').next().unwrap_or_default();
        if !SERVER_WORDS.contains(&name) {
            let why = format!("`{arg}` is not understood; the endpoint is there without it");
            draft.note(one.place(), &one.told(), Became::Lost, &why);
        }
    }
    if let Some(weight) = value("weight").and_then(|text| text.parse::<u16>().ok()) {
        endpoint["weight"] = json!(weight);
    }
    if has("down") {
        endpoint["weight"] = json!(0);
    }
    if has("drain") {
        endpoint["weight"] = json!(0);
        let why = "an endpoint with weight 0 gets no requests, also none of clients that had it before";
        draft.note(one.place(), &one.told(), Became::Different, why);
    }
    if let Some(time) = value("slow_start").and_then(duration) {
        keys.set("slow_start", milliseconds(time));
    }
    if has("backup") {
        endpoint["priority"] = json!(1);
    }
    endpoint
}

/// What a server of an upstream may have.
const SERVER_WORDS: &[&str] = &[
    "backup",
    "down",
    "drain",
    "fail_timeout",
    "max_conns",
    "max_fails",
    "resolve",
    "service",
    "slow_start",
    "weight",
];

/// The name of the SRV records of `server HOST service=NAME`.
fn service_name(service: &str, host: &str) -> String {
    match service.contains('.') || service.starts_with('_') {
        true => format!("{service}.{host}"),
        false => format!("_{service}._tcp.{host}"),
    }
}

/// How an endpoint is chosen.
fn choice(upstream: &Directive, keys: &mut Keys, draft: &mut Draft) {
    for one in &upstream.block {
        match (one.name.as_str(), one.arg(0)) {
            (
                "server" | "keepalive" | "keepalive_requests" | "keepalive_timeout" | "keepalive_time" | "zone"
                | "resolver" | "resolver_timeout",
                _,
            ) => {}
            ("least_conn", _) | ("random", "two") => keys.set("balance", "least_connections"),
            ("random", _) => keys.set("balance", "random"),
            ("ip_hash", _) | ("hash", "$remote_addr" | "$binary_remote_addr") => keys.set("balance", "maglev"),
            ("hash", key) if key.starts_with("$cookie_") => {
                keys.set("balance", json!({"maglev": {"key": {"cookie": key.trim_start_matches("$cookie_")}}}));
            }
            ("hash", key) if key.starts_with("$http_") => {
                let name = key.trim_start_matches("$http_").replace('_', "-");
                keys.set("balance", json!({"maglev": {"key": {"header": name}}}));
            }
            ("sticky", "cookie") => keys.set("sticky", json!({"cookie": one.arg(1)})),
            _ => {
                draft.note(one.place(), &one.told(), Became::Lost, "it is not understood; endpoints are chosen in turn")
            }
        }
    }
}

/// An address with its port, or with this one.
fn with_port(address: &str, port: u16) -> String {
    let has_port = match address.rsplit_once(':') {
        Some((host, port)) => {
            port.bytes().all(|byte| byte.is_ascii_digit()) && (!host.contains(':') || host.ends_with(']'))
        }
        None => false,
    };
    if has_port { address.to_owned() } else { format!("{address}:{port}") }
}

/// `60s`, `1m30s` or `5` in milliseconds.
pub(super) fn duration(text: &str) -> Option<u64> {
    let (mut all, mut number) = (0u64, None::<u64>);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if let Some(digit) = letter.to_digit(10) {
            number = Some(number.unwrap_or(0).checked_mul(10)?.checked_add(digit.into())?);
            continue;
        }
        let factor = match letter {
            'm' if letters.next_if_eq(&'s').is_some() => 1,
            's' => 1_000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            _ => return None,
        };
        all = all.checked_add(number.take()?.checked_mul(factor)?)?;
    }
    all.checked_add(number.unwrap_or(0).checked_mul(1_000)?).filter(|all| *all > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_addresses() {
        let check = |text: &str, expect: Option<u64>| assert_eq!(duration(text), expect, "{text}");
        check("60", Some(60_000));
        check("60s", Some(60_000));
        check("1m30s", Some(90_000));
        check("500ms", Some(500));
        check("x", None);
        check("0", None);
        assert_eq!(with_port("app", 80), "app:80");
        assert_eq!(with_port("[::1]", 80), "[::1]:80");
        assert_eq!(with_port("[::1]:81", 80), "[::1]:81");
        assert_eq!(with_port("10.0.0.1:81", 80), "10.0.0.1:81");
    }
}

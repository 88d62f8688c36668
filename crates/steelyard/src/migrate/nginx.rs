//! `steelyard migrate nginx`: servers, locations and upstreams of nginx as listeners, routes and clusters.
//!
//! A directive is translated, or has no effect that anybody sees, or is reported. One that is unknown closes what it stands in: it may decide who
//! gets what.

mod location;
pub(super) mod parse;
mod policy;
mod server;
mod upstream;
mod words;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::draft::{Became, Draft, Keys, Listener, named};
use parse::Directive;
use words::Word;

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn translate(path: &Path) -> Result<Draft, String> {
    let all = parse::read(path)?;
    let mut draft = Draft::default();
    let is_whole = all.iter().any(|one| one.name == "http" || one.name == "stream");
    let https: Vec<&[Directive]> = match is_whole {
        true => all.iter().filter(|one| one.name == "http").map(|one| one.block.as_slice()).collect(),
        // A file of sites-available, which nginx includes within http.
        false => vec![all.as_slice()],
    };
    for http in https {
        Making::of(http, &mut draft).servers();
    }
    for stream in all.iter().filter(|one| one.name == "stream") {
        upstream::streams(&stream.block, &mut draft);
    }
    Ok(draft)
}

/// The levels around a directive, from http inwards.
#[derive(Clone)]
pub(super) struct Scope<'d>(Vec<&'d [Directive]>);

impl<'d> Scope<'d> {
    fn inner(&self, block: &'d [Directive]) -> Self {
        let mut levels = self.0.clone();
        levels.push(block);
        Self(levels)
    }

    /// A directive of which the innermost counts.
    fn last(&self, name: &str) -> Option<&'d Directive> {
        self.0.iter().rev().find_map(|level| level.iter().rev().find(|one| one.name == name))
    }

    /// Directives of which those of the innermost level with one count.
    fn all(&self, names: &[&str]) -> Vec<&'d Directive> {
        let is_it = |one: &&Directive| names.contains(&one.name.as_str());
        self.0
            .iter()
            .rev()
            .map(|level| level.iter().filter(is_it).collect::<Vec<_>>())
            .find(|found| !found.is_empty())
            .unwrap_or_default()
    }

    /// `set $name value;` with a value without variables.
    fn variable(&self, name: &str) -> Option<&'d str> {
        let is_it = |one: &&Directive| one.name == "set" && one.arg(0) == name && !one.arg(1).contains('$');
        self.0.iter().rev().find_map(|level| level.iter().rev().find(is_it)).map(|one| one.arg(1))
    }

    /// A text with the variables of `set` in it.
    fn resolved(&self, text: &str) -> String {
        let names = self.0.iter().flat_map(|level| level.iter()).filter(|one| one.name == "set").map(|one| one.arg(0));
        let mut names: Vec<&str> = names.filter(|name| name.len() > 1).collect();
        // A longer name first: `$ab` is not `$a` and `b`.
        names.sort_by_key(|name| std::cmp::Reverse(name.len()));
        names.into_iter().fold(text.to_owned(), |text, name| match self.variable(name) {
            Some(value) => text.replace(name, value),
            None => text,
        })
    }
}

/// How often a client may ask, by the name of a zone.
#[derive(Clone, Copy)]
pub(super) struct Zone {
    requests: u64,
    per: &'static str,
    /// By the address of the client.
    is_by_address: bool,
}

/// The translation of one http block.
pub(super) struct Making<'d, 'o> {
    http: &'d [Directive],
    scope: Scope<'d>,
    upstreams: BTreeMap<&'d str, &'d Directive>,
    zones: BTreeMap<String, Zone>,
    /// Maps and split_clients, by their variable.
    maps: BTreeMap<&'d str, &'d Directive>,
    draft: &'o mut Draft,
    /// Why every server is closed.
    closed: bool,
}

/// A socket that a server listens on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Socket {
    host: String,
    port: u16,
}

/// A server at a socket.
#[derive(Clone, Copy)]
struct Bound<'d> {
    server: &'d Directive,
    number: usize,
    is_tls: bool,
    is_default: bool,
    has_proxy_protocol: bool,
}

impl<'d, 'o> Making<'d, 'o> {
    fn of(http: &'d [Directive], draft: &'o mut Draft) -> Self {
        let named = |name: &str| http.iter().filter(move |one| one.name == name).collect::<Vec<_>>();
        let upstreams = named("upstream").into_iter().map(|one| (one.arg(0), one)).collect();
        let maps = named("map").into_iter().chain(named("split_clients")).map(|one| (one.arg(1), one)).collect();
        let zones = named("limit_req_zone").into_iter().filter_map(upstream::zone).collect();
        let mut making = Self { http, scope: Scope(vec![http]), upstreams, zones, maps, draft, closed: false };
        making.closed = making.outer();
        making
    }

    /// Reports directives outside of servers, and returns whether one closes everything.
    fn outer(&mut self) -> bool {
        let mut closes = false;
        for one in self.http {
            match words::of(&one.name) {
                Word::Known | Word::Tuning => {}
                Word::Lost(instead) => self.draft.note(one.place(), &one.told(), Became::Lost, instead),
                Word::Unknown if words::sounds_protective(&one.name) => {
                    let why = "it is not understood and may keep somebody out, so all servers are closed; remove it, and write what it does";
                    self.draft.note(one.place(), &one.told(), Became::Closed, why);
                    closes = true;
                }
                Word::Unknown => self.draft.note(one.place(), &one.told(), Became::Lost, "it is not understood"),
            }
        }
        closes
    }

    fn servers(&mut self) {
        let mut sockets: BTreeMap<Socket, Vec<Bound<'d>>> = BTreeMap::new();
        let servers = self.http.iter().filter(|one| one.name == "server");
        for (number, server) in servers.enumerate() {
            let is_old = server.block.iter().any(|one| one.name == "ssl" && one.arg(0) == "on");
            let mut listens: Vec<&Directive> = server.block.iter().filter(|one| one.name == "listen").collect();
            let any = Directive {
                name: "listen".to_owned(),
                args: vec!["80".to_owned()],
                block: Vec::new(),
                ..server.clone()
            };
            if listens.is_empty() {
                listens.push(&any);
            }
            for listen in listens {
                let has = |word: &str| listen.args.iter().skip(1).any(|arg| arg == word);
                let Some(socket) = socket(listen.arg(0)) else {
                    let why = "Steelyard listens on addresses and ports";
                    self.draft.note(listen.place(), &listen.told(), Became::Lost, why);
                    continue;
                };
                let bound = Bound {
                    server,
                    number,
                    is_tls: is_old || has("ssl") || has("quic"),
                    is_default: has("default_server") || has("default"),
                    has_proxy_protocol: has("proxy_protocol"),
                };
                let all = sockets.entry(socket).or_default();
                if all.iter().all(|other| other.number != number) {
                    all.push(bound);
                }
            }
        }
        for (socket, bound) in merged(sockets) {
            self.listener(&socket, &bound);
        }
    }

    fn listener(&mut self, socket: &Socket, bound: &[Bound<'d>]) {
        let Some(first) = bound.iter().find(|one| one.is_default).or(bound.first()).copied() else { return };
        let protocol = if first.is_tls { "https" } else { "http" };
        let bind = format!("{}:{}", socket.host, socket.port);
        let mut keys = Keys::default().with("bind", bind.as_str()).with("protocol", protocol);
        if let Some(other) = bound.iter().find(|one| one.is_tls != first.is_tls) {
            let why = "one port has TLS or has none; the default server of the port decides";
            self.draft.note(other.server.place(), "server", Became::Different, why);
        }
        if first.is_tls {
            keys.set("tls", self.tls(first, bound));
        }
        if first.has_proxy_protocol {
            keys.set("proxy_protocol", true);
        }
        let mut isolated = Vec::new();
        let mut routes = Vec::new();
        let has_wildcards = bound
            .iter()
            .any(|one| one.number != first.number && self.names(one.server).iter().any(|name| name.contains('*')));
        for one in bound {
            let names = self.names(one.server);
            let made = self.server(*one, socket.port);
            let is_first = one.number == first.number;
            if !names.is_empty() && (!is_first || has_wildcards) {
                routes.extend(made.iter().map(|route| Keys::default().with("hosts", names.clone()).joined(route)));
                isolated.extend(names);
            }
            if is_first {
                routes.extend(made);
            }
        }
        isolated.sort_unstable();
        isolated.dedup();
        if !isolated.is_empty() {
            keys.set("isolated_hosts", isolated);
        }
        self.clients(bound, &mut keys);
        if routes.is_empty() {
            routes.push(Keys::default().with("respond", json!({"status": 404})));
        }
        let base = format!("{protocol}-{}", socket.port);
        let is_taken = self.draft.listeners.iter().any(|(name, _)| *name == base);
        let name = if is_taken { named(&format!("{base}-{}", socket.host)) } else { base };
        self.draft.listeners.push((name, Listener { keys, routes }));
    }

    /// The hosts of a server, as far as they can be named.
    fn names(&mut self, server: &Directive) -> Vec<String> {
        let mut names = Vec::new();
        for one in server.block.iter().filter(|one| one.name == "server_name") {
            for name in &one.args {
                let name = name.to_ascii_lowercase();
                let is_plain = |name: &str| {
                    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
                };
                match name.as_str() {
                    "" | "_" | "localhost_" => {}
                    name if name.strip_prefix("*.").is_some_and(is_plain) => names.push(name.to_owned()),
                    name if name.strip_prefix('.').is_some_and(is_plain) => {
                        names.extend([name.trim_start_matches('.').to_owned(), format!("*{name}")]);
                    }
                    name if is_plain(name) && !name.starts_with('_') => names.push(name.to_owned()),
                    name => {
                        let why =
                            format!("a host is a name, or `*.` in front of one: list the names that {name} stands for");
                        self.draft.note(one.place(), &one.told(), Became::Lost, &why);
                    }
                }
            }
        }
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// `80`, `*:80`, `10.0.0.1`, `10.0.0.1:80`, `[::]:80`. A name of a host is not an address.
fn socket(text: &str) -> Option<Socket> {
    let (host, port) = match text.rsplit_once(':') {
        _ if text.bytes().all(|byte| byte.is_ascii_digit()) => ("*", text),
        Some((host, port)) if !host.is_empty() && !text.ends_with(']') => (host, port),
        _ => (text, "80"),
    };
    let host = match host {
        "*" | "0.0.0.0" => "0.0.0.0".to_owned(),
        "localhost" => "127.0.0.1".to_owned(),
        host => {
            let bare = host.trim_start_matches('[').trim_end_matches(']');
            let address: std::net::IpAddr = bare.parse().ok()?;
            if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
        }
    };
    Some(Socket { host, port: port.parse().ok()? })
}

/// One listener takes both families, if the same servers listen on both.
fn merged(sockets: BTreeMap<Socket, Vec<Bound<'_>>>) -> Vec<(Socket, Vec<Bound<'_>>)> {
    let numbers = |all: &[Bound<'_>]| all.iter().map(|one| (one.number, one.is_tls)).collect::<Vec<_>>();
    let other = |socket: &Socket, host: &str| Socket { host: host.to_owned(), port: socket.port };
    let mut all = Vec::new();
    for (socket, bound) in &sockets {
        let twin = match socket.host.as_str() {
            "0.0.0.0" => sockets.get(&other(socket, "[::]")),
            "[::]" => sockets.get(&other(socket, "0.0.0.0")),
            _ => None,
        };
        let is_twin = twin.is_some_and(|twin| numbers(twin) == numbers(bound));
        match (is_twin, socket.host.as_str()) {
            (true, "[::]") => {}
            (true, _) => all.push((other(socket, ""), bound.clone())),
            (false, _) => all.push((socket.clone(), bound.clone())),
        }
    }
    all.sort_by_key(|(socket, _)| socket.port);
    all
}

#[cfg(test)]
mod tests;

//! `steelyard migrate nginx`: servers, locations and upstreams of nginx as listeners, routes and clusters.
//!
//! A directive is translated, or has no effect that anybody sees, or is reported. One that is unknown closes what it stands in: it may decide who
//! gets what.

#[cfg(test)]
mod asked;
mod client;
mod host;
mod location;
pub(super) mod parse;
mod path;
mod policy;
#[cfg(test)]
mod reported;
mod server;
mod stream;
mod subrequest;
mod tls;
mod upstream;
mod variables;
mod words;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use serde_json::json;

use super::draft::{Became, Draft, Keys, Listener, milliseconds, named};
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
        Making::of(http, &mut draft).servers().map_err(|why| format!("{}: {why}", path.display()))?;
    }
    for stream in all.iter().filter(|one| one.name == "stream") {
        stream::streams(&stream.block, &mut draft);
    }
    for one in all.iter().filter(|_| is_whole) {
        match upstream::duration(one.arg(0)).filter(|_| one.name == "worker_shutdown_timeout") {
            Some(time) => draft.top.set("drain_timeout", milliseconds(time)),
            None if words::is_of_process(&one.name) => {}
            None => draft.note(one.place(), &one.told(), Became::Lost, "it is not understood"),
        }
    }
    for one in all.iter().filter(|one| one.name == "mail") {
        draft.note(one.place(), "mail", Became::Lost, "Steelyard speaks no protocol of mail");
    }
    Ok(draft)
}

/// The levels around a directive, from http inwards.
#[derive(Clone)]
pub(super) struct Scope<'d>(Vec<Rc<Level<'d>>>);

/// The directives of a block by their name, each with its place in the block.
pub(super) struct Level<'d>(HashMap<&'d str, Vec<(usize, &'d Directive)>>);

impl<'d> Level<'d> {
    fn of(block: &'d [Directive]) -> Rc<Self> {
        let mut all: HashMap<&str, Vec<(usize, &Directive)>> = HashMap::new();
        for (place, one) in block.iter().enumerate() {
            all.entry(&one.name).or_default().push((place, one));
        }
        Rc::new(Self(all))
    }

    fn last(&self, name: &str) -> Option<&'d Directive> {
        self.0.get(name)?.last().map(|(_, one)| *one)
    }
}

impl<'d> Scope<'d> {
    fn of(blocks: &[&'d [Directive]]) -> Self {
        Self(blocks.iter().map(|block| Level::of(block)).collect())
    }

    fn inner(&self, block: &'d [Directive]) -> Self {
        let mut levels = self.0.clone();
        levels.push(Level::of(block));
        Self(levels)
    }

    /// A directive of which the innermost counts.
    fn last(&self, name: &str) -> Option<&'d Directive> {
        self.0.iter().rev().find_map(|level| level.last(name))
    }

    /// Directives of which those of the innermost level with one count.
    fn all(&self, names: &[&str]) -> Vec<&'d Directive> {
        let of_level = |level: &Rc<Level<'d>>| {
            let mut found: Vec<_> = names.iter().filter_map(|name| level.0.get(name)).flatten().copied().collect();
            found.sort_unstable_by_key(|(place, _)| *place);
            found
        };
        let found = self.0.iter().rev().map(of_level).find(|found| !found.is_empty()).unwrap_or_default();
        found.into_iter().map(|(_, one)| one).collect()
    }

    /// Whether the innermost level has one of these.
    fn has(&self, names: &[&str]) -> bool {
        self.0.last().is_some_and(|level| names.iter().any(|name| level.last(name).is_some()))
    }

    /// The levels of http and of the server.
    fn of_server(&self) -> Self {
        Self(self.0.iter().take(2).cloned().collect())
    }

    /// A text with the variables of `set $name value;` in it, if the last one of each has a value without variables.
    fn resolved(&self, text: &str) -> String {
        let mut names: Vec<&str> = variables::names(text).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(VARIABLES_MAX);
        if names.is_empty() {
            return text.to_owned();
        }
        let mut values: HashMap<&str, &str> = HashMap::new();
        // The innermost level and the last directive first.
        for (_, one) in self.0.iter().rev().filter_map(|level| level.0.get("set")).flat_map(|all| all.iter().rev()) {
            let set = one.arg(0).strip_prefix('$').unwrap_or_default();
            // nginx does not distinguish the case of names.
            for name in names.iter().filter(|name| name.eq_ignore_ascii_case(set)) {
                values.entry(name).or_insert_with(|| one.arg(1));
            }
        }
        variables::replaced(text, |name| values.get(name).copied().filter(|value| !value.contains('$')))
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
    /// The zones of `limit_conn` that count by the address of the client.
    counts: BTreeSet<&'d str>,
    /// Maps and split_clients, by their variable.
    maps: BTreeMap<&'d str, &'d Directive>,
    draft: &'o mut Draft,
    /// Every server is closed.
    closed: bool,
    /// At the current port, clients may show certificates and none must.
    optional_certs: bool,
    /// Why the addresses of clients at the current port are not known, and the directive that says so.
    unclear: Option<(&'d Directive, &'static str)>,
    /// Addresses in the lists of the locations so far.
    networks: usize,
    /// Expressions of locations that were compared with the path of a request of nginx; `None` if one is not understood.
    expressions: HashMap<(String, bool), Option<regex::Regex>>,
    /// How the first location with a zone of `limit_req` counts.
    counted: HashMap<&'d str, String>,
}

/// The largest number of routes in all. A server has its routes at each of its ports.
const ROUTES_MAX: usize = 100_000;

/// The largest number of variables that are replaced in a text.
const VARIABLES_MAX: usize = 100;

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
        let is_by_address = |one: &&Directive| ["$binary_remote_addr", "$remote_addr"].contains(&one.arg(0));
        let zone_of = |one: &'d Directive| one.args.iter().find_map(|arg| arg.strip_prefix("zone=")?.split(':').next());
        let counts = named("limit_conn_zone").into_iter().filter(is_by_address).filter_map(zone_of).collect();
        let mut making = Self {
            http,
            counts,
            optional_certs: false,
            scope: Scope::of(&[http]),
            upstreams,
            zones,
            maps,
            draft,
            closed: false,
            unclear: None,
            networks: 0,
            expressions: HashMap::new(),
            counted: HashMap::new(),
        };
        making.closed = making.outer();
        making
    }

    /// Reports directives outside of servers, and returns whether one closes everything.
    fn outer(&mut self) -> bool {
        let mut closes = false;
        for one in self.http {
            match words::of(one) {
                Word::Known | Word::Tuning => {}
                Word::Different(why) => self.draft.note(one.place(), &one.told(), Became::Different, why),
                Word::Lost(instead) => self.draft.note(one.place(), &one.told(), Became::Lost, instead),
                Word::Unknown => {
                    let why = "it is not understood and may keep somebody out, so all servers are closed; remove it, and write what it does";
                    self.draft.note(one.place(), &one.told(), Became::Closed, why);
                    closes = true;
                }
            }
        }
        closes
    }

    fn servers(&mut self) -> Result<(), String> {
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
                for arg in listen.args.iter().skip(1) {
                    let name = arg.split('=').next().unwrap_or_default();
                    if name == "quic" {
                        self.draft.note(listen.place(), &listen.told(), Became::Different, "HTTP/3 is not served");
                    } else if !words::LISTEN.contains(&name) {
                        let why = format!("`{arg}` is not understood; the port is there without it");
                        self.draft.note(listen.place(), &listen.told(), Became::Lost, &why);
                    }
                }
                let bound = Bound {
                    server,
                    number,
                    is_tls: is_old || has("ssl") || has("quic"),
                    is_default: has("default_server") || has("default"),
                    has_proxy_protocol: has("proxy_protocol"),
                };
                let all = sockets.entry(socket).or_default();
                if all.last().is_none_or(|last: &Bound<'_>| last.number != number) {
                    all.push(bound);
                }
            }
        }
        let mut count = 0;
        for (socket, bound) in merged(sockets) {
            count += self.listener(&socket, &bound);
            if count > ROUTES_MAX {
                return Err(format!("there are more than {ROUTES_MAX} routes: give one server at a time"));
            }
        }
        Ok(())
    }

    /// Adds a listener, and returns how many routes it has.
    fn listener(&mut self, socket: &Socket, bound: &[Bound<'d>]) -> usize {
        let Some(first) = bound.iter().find(|one| one.is_default).or(bound.first()).copied() else { return 0 };
        // All of a port is TLS, or has the PROXY protocol, if one `listen` says so.
        let is_tls = bound.iter().any(|one| one.is_tls);
        let has_proxy_protocol = bound.iter().any(|one| one.has_proxy_protocol);
        let all: Vec<Bound<'d>> = bound.iter().map(|one| Bound { is_tls, has_proxy_protocol, ..*one }).collect();
        let first = Bound { is_tls, has_proxy_protocol, ..first };
        let protocol = if is_tls { "https" } else { "http" };
        let bind = format!("{}:{}", socket.host, socket.port);
        let mut keys = Keys::default().with("bind", bind.as_str()).with("protocol", protocol);
        if let Some(other) = bound.iter().find(|one| one.is_tls != is_tls) {
            let why = "one `listen` of this port has ssl, so all of the port is TLS";
            self.draft.note(other.server.place(), "server", Became::Different, why);
        }
        let was_closed = self.closed;
        self.clients(first, &all, &mut keys);
        if is_tls {
            keys.set("tls", self.tls(first, &all));
        }
        if has_proxy_protocol {
            keys.set("proxy_protocol", true);
        }
        let (isolated, mut routes) = self.hosts(first, &all, socket.port);
        self.closed = was_closed;
        if !isolated.is_empty() {
            keys.set("isolated_hosts", isolated);
        }
        if routes.is_empty() {
            routes.push(Keys::default().with("respond", json!({"status": 404})));
        }
        let base = format!("{protocol}-{}", socket.port);
        let is_taken = self.draft.listeners.iter().any(|(name, _)| *name == base);
        let name = if is_taken { named(&format!("{base}-{}", socket.host)) } else { base };
        let count = routes.len();
        self.draft.listeners.push((name, Listener { keys, routes }));
        count
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
    let numbers = |all: &[Bound<'_>]| {
        let one = |one: &Bound<'_>| (one.number, one.is_tls, one.is_default, one.has_proxy_protocol);
        all.iter().map(one).collect::<Vec<_>>()
    };
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

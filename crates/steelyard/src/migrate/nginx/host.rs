//! The hosts of the servers at one port, and which server has which.

use std::collections::BTreeMap;

use super::super::draft::{Became, Keys, closed};
use super::parse::Directive;
use super::{Bound, Making};

/// The names of a server.
struct Names<'d> {
    /// Hosts, as Steelyard has them.
    hosts: Vec<String>,
    /// The first that is no host: an expression, or no name at all.
    other: Option<&'d Directive>,
}

/// The server of each host, by its number. The first that names a host has it.
struct Owners {
    hosts: BTreeMap<String, usize>,
    /// The default server has all others.
    default: usize,
}

impl Owners {
    /// The server of a host: that of its name, or of the longest `*.` in front of a part of it.
    fn of(&self, host: &str) -> usize {
        let host = host.to_ascii_lowercase();
        let parts = host.match_indices('.').map(|(at, _)| format!("*{}", host.get(at..).unwrap_or_default()));
        let found = std::iter::once(host.clone()).chain(parts).find_map(|name| self.hosts.get(&name));
        found.copied().unwrap_or(self.default)
    }

    /// A route of a server without the hosts that are those of other servers; `None` if it has no other hosts.
    fn restricted(&self, mut route: Keys, number: usize) -> Option<Keys> {
        let Some(hosts) = route.get("hosts").and_then(|hosts| hosts.as_array()) else { return Some(route) };
        let own: Vec<_> =
            hosts.iter().filter(|host| self.of(host.as_str().unwrap_or_default()) == number).cloned().collect();
        if own.is_empty() {
            return None;
        }
        route.set("hosts", own);
        Some(route)
    }
}

impl<'d> Making<'d, '_> {
    /// The isolated hosts and the routes of the servers at a port.
    pub(super) fn hosts(&mut self, first: Bound<'d>, bound: &[Bound<'d>], port: u16) -> (Vec<String>, Vec<Keys>) {
        let mut owners = Owners { hosts: BTreeMap::new(), default: first.number };
        let mut named: Vec<(Bound<'d>, Vec<String>)> = Vec::new();
        let mut unclear = false;
        let mut nameless = None;
        for one in bound {
            let names = self.names(one.server);
            let is_first = one.number == first.number;
            if let Some(other) = names.other {
                let why = if is_first {
                    "it is the default server of its port, and takes all hosts that no other name takes"
                } else {
                    unclear = true;
                    "it is no host, or `*.` in front of one, so hosts that no other name takes are closed; list the names that it stands for"
                };
                let became = if is_first { Became::Different } else { Became::Closed };
                self.draft.note(other.place(), &other.told(), became, why);
            }
            // Requests without a host, as those of HTTP/1.0.
            let mut names_of = one.server.block.iter().filter(|one| one.name == "server_name").peekable();
            let is_nameless = names_of.peek().is_none() || names_of.any(|one| one.args.iter().any(String::is_empty));
            if is_nameless && nameless.is_none() {
                nameless = Some(one.number);
                if !is_first {
                    unclear = true;
                    let why = "it takes requests without a host, and is not the default server, so hosts that no name takes are closed";
                    self.draft.note(one.server.place(), "server", Became::Closed, why);
                }
            }
            let mut own = Vec::new();
            for host in names.hosts {
                match owners.hosts.get(&host) {
                    Some(number) if *number != one.number => {
                        let why = format!("a server in front of it has the name {host} at this port");
                        self.draft.note(one.server.place(), "server_name", Became::Different, &why);
                    }
                    _ => {
                        owners.hosts.insert(host.clone(), one.number);
                        own.push(host);
                    }
                }
            }
            named.push((*one, own));
        }
        self.routes_of(first, &named, &owners, (unclear, port))
    }

    fn routes_of(
        &mut self,
        first: Bound<'d>,
        named: &[(Bound<'d>, Vec<String>)],
        owners: &Owners,
        (unclear, port): (bool, u16),
    ) -> (Vec<String>, Vec<Keys>) {
        let (mut isolated, mut routes, mut rest) = (Vec::new(), Vec::new(), Vec::new());
        let has_wildcards =
            named.iter().any(|(one, names)| one.number != first.number && names.iter().any(|name| name.contains('*')));
        for (one, names) in named {
            let made = self.server(*one, port).into_iter();
            let made: Vec<Keys> = made.filter_map(|route| owners.restricted(route, one.number)).collect();
            let is_first = one.number == first.number;
            if !names.is_empty() && (!is_first || has_wildcards || unclear) {
                routes.extend(made.iter().map(|route| Keys::default().with("hosts", names.clone()).joined(route)));
                isolated.extend(names.iter().cloned());
            }
            if is_first && unclear {
                rest.push(closed(&Keys::default()));
            } else if is_first {
                rest.extend(made);
            }
        }
        routes.append(&mut rest);
        isolated.sort_unstable();
        isolated.dedup();
        (isolated, routes)
    }

    fn names(&mut self, server: &'d Directive) -> Names<'d> {
        let mut names = Names { hosts: Vec::new(), other: None };
        for one in server.block.iter().filter(|one| one.name == "server_name") {
            for name in &one.args {
                let name = name.to_ascii_lowercase();
                let is_plain = |name: &str| {
                    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
                };
                match name.as_str() {
                    // No host is called so.
                    "" | "_" => {}
                    name if name.strip_prefix("*.").is_some_and(is_plain) => names.hosts.push(name.to_owned()),
                    name if name.strip_prefix('.').is_some_and(is_plain) => {
                        names.hosts.extend([name.trim_start_matches('.').to_owned(), format!("*{name}")]);
                    }
                    name if is_plain(name) && !name.starts_with('_') => names.hosts.push(name.to_owned()),
                    _ => {
                        names.other.get_or_insert(one);
                    }
                }
            }
        }
        names.hosts.sort_unstable();
        names.hosts.dedup();
        names
    }

    /// The hosts that a server names, for its certificates.
    pub(super) fn named_hosts(&mut self, server: &'d Directive) -> Vec<String> {
        self.names(server).hosts
    }
}

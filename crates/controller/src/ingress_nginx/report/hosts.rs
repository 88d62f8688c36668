//! What Ingresses of one host do to each other: which of them the controller closes, and what a reader should know.

use std::collections::{BTreeMap, BTreeSet};

use super::super::path::{literal_of, regex_of};
use super::super::plan::{ClientTls, Plan};
use super::super::snippet::check_locations;
use super::super::value;
use super::Read;

/// Closes the Ingresses of which the controller closes a path: because another Ingress closes the host, or because an expression cannot be
/// matched. They come in the order in which ingress-nginx takes them.
pub(super) fn close<'o>(all: &mut [Read<'o>]) {
    let mut hosts: BTreeMap<String, String> = BTreeMap::new();
    let mut with_snippet: BTreeSet<String> = BTreeSet::new();
    let is_served = |ingress: &&Read<'_>| ingress.plan.dropped.is_none();
    let regexes: BTreeSet<String> = regexes(all).into_keys().map(str::to_owned).collect();
    let places = places(all);
    let contradicting = contradicting(all);
    for ingress in all.iter().filter(is_served) {
        let Plan { host_closed, location, canary, .. } = &ingress.plan;
        let has_snippet = canary.is_none() && (location.server.is_some() || location.server_refused.is_some());
        for host in ingress.hosts() {
            // The oldest one counts.
            let of_snippet = has_snippet && with_snippet.insert(host.to_owned());
            let refused = location.server_refused.as_ref().filter(|_| of_snippet);
            let server = location.server.as_ref().filter(|_| of_snippet);
            let placeless = server.and_then(|server| {
                let paths = places.get(host).into_iter().flatten().copied();
                let why = check_locations(&server.locations, paths, regexes.contains(host)).err()?;
                Some(format!("server-snippet is refused: {why}"))
            });
            if let Some(why) = host_closed.as_ref().or(refused).or(placeless.as_ref()) {
                let why = || format!("{}: {why}; it holds for all of the host {}", ingress.name, shown(host));
                hosts.entry(host.to_owned()).or_insert_with(why);
            }
        }
    }
    let mut blocked: BTreeMap<String, Blocked<'_>> = BTreeMap::new();
    for ingress in all.iter_mut().filter(|ingress| ingress.plan.dropped.is_none()) {
        let of_rule = |(host, paths): &(String, Vec<(&'o str, &'o str)>)| {
            let wrong = paths.iter().filter_map(|(path, _)| Some((host.clone(), *path, regex_of(path).err()?)));
            wrong.collect::<Vec<_>>()
        };
        ingress.unmatched = ingress.rules.iter().filter(|(host, _)| regexes.contains(host)).flat_map(of_rule).collect();
        for (host, path, begins) in &ingress.unmatched {
            blocked.entry(host.clone()).or_default().add(path, begins);
        }
    }
    for ingress in all.iter_mut().filter(|ingress| ingress.plan.dropped.is_none()) {
        let of_host = ingress.hosts().find_map(|host| hosts.get(host).cloned());
        if let Some(why) = of_host {
            ingress.plan.closed.get_or_insert(why);
        }
        if let Some(why) = contradicting.get(&ingress.name) {
            ingress.plan.closed.get_or_insert_with(|| why.clone());
        }
        let of_itself = ingress.unmatched.first().map(|(host, path, _)| {
            let (host, path) = (shown(host), value::cut(path));
            format!("the path {path} of {host} cannot be matched: it looks around or refers back, or is no expression")
        });
        let of_paths = || {
            ingress.rules.iter().find_map(|(host, paths)| {
                let blocked = blocked.get(host)?;
                paths.iter().find_map(|(path, _)| blocked.why(host, path))
            })
        };
        if let Some(why) = of_itself.or_else(of_paths) {
            ingress.plan.closed.get_or_insert(why);
        }
    }
}

/// The Ingress that says which certificates clients of a host show, with what it says: the oldest one of each host.
fn certificates<'r>(all: &'r [Read<'_>]) -> BTreeMap<&'r str, (&'r str, &'r ClientTls)> {
    let is_served = |ingress: &&Read<'_>| ingress.plan.dropped.is_none();
    let is_main = |ingress: &&Read<'_>| ingress.plan.canary.is_none();
    let mains: BTreeSet<&str> = all.iter().filter(is_served).filter(is_main).flat_map(Read::hosts).collect();
    let mut first = BTreeMap::new();
    for ingress in all.iter().filter(is_served) {
        let Some(client_tls) = &ingress.plan.location.client_tls else { continue };
        for host in ingress.hosts().filter(|host| mains.contains(host)) {
            first.entry(host).or_insert((ingress.name.as_str(), client_tls));
        }
    }
    first
}

/// The Ingresses that demand more of clients of a host than the oldest one does, each with the reason for which it is closed.
fn contradicting(all: &[Read<'_>]) -> BTreeMap<String, String> {
    let first = certificates(all);
    let namespace = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    let mut found = BTreeMap::new();
    for ingress in all.iter().filter(|ingress| ingress.plan.dropped.is_none()) {
        let Some(client_tls) = &ingress.plan.location.client_tls else { continue };
        let demands_more = |host: &str| {
            let (by, of_host) = first.get(host)?;
            let is_same = namespace(by) == namespace(&ingress.name) && of_host.demands_as_much_as(client_tls);
            (!is_same && *by != ingress.name).then(|| (host.to_owned(), (*by).to_owned()))
        };
        if let Some((host, by)) = ingress.hosts().find_map(demands_more) {
            let why = format!(
                "the older Ingress {by} says which certificates clients of {} show, and demands less: write the same annotations for both",
                shown(&host)
            );
            found.insert(ingress.name.clone(), why);
        }
    }
    found
}

/// The hosts whose clients show certificates of another CA than those of the first one.
fn authorities(all: &[Read<'_>]) -> Vec<String> {
    let secret = |(by, client_tls): &(&str, &ClientTls)| {
        format!("{}/{}", by.split('/').next().unwrap_or_default(), client_tls.secret)
    };
    let certificates = certificates(all);
    let mut hosts = certificates.iter().map(|(host, of)| (shown(host), secret(of)));
    let Some((first, its)) = hosts.next() else { return Vec::new() };
    let others = hosts.filter(|(_, other)| *other != its);
    let told = others.map(|(host, other)| {
        format!(
            "clients of {host} show certificates of the CA in the Secret {other}, and those of {first} of the one in {its}: all hosts share one \
             CA, so {host} is closed (403) unless both Secrets say the same"
        )
    });
    told.collect()
}

/// The paths of each host, each with whether it is exact. Canaries have none of their own.
fn places<'o>(all: &[Read<'o>]) -> BTreeMap<String, BTreeSet<(&'o str, bool)>> {
    let mut places: BTreeMap<String, BTreeSet<(&str, bool)>> = BTreeMap::new();
    let is_main = |ingress: &&Read<'_>| ingress.plan.dropped.is_none() && ingress.plan.canary.is_none();
    for (host, paths) in all.iter().filter(is_main).flat_map(|ingress| &ingress.rules) {
        places.entry(host.clone()).or_default().extend(paths.iter().map(|(path, kind)| (*path, *kind == "Exact")));
    }
    places
}

/// The expressions of one host that cannot be matched: by the text that its paths begin with, in small letters, the one that comes first, and that
/// text as it is written.
#[derive(Default)]
struct Blocked<'o>(BTreeMap<String, (&'o str, String)>);

impl<'o> Blocked<'o> {
    fn add(&mut self, path: &'o str, begins: &str) {
        let known = self.0.entry(begins.to_ascii_lowercase()).or_insert_with(|| (path, begins.to_owned()));
        if comes_first(path, known.0) {
            *known = (path, begins.to_owned());
        }
    }

    /// Why a path is closed, if it is.
    fn why(&self, host: &str, path: &str) -> Option<String> {
        let own = literal_of(path).to_ascii_lowercase();
        let ends = own.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let known = ends.filter_map(|end| self.0.get(own.get(..end)?));
        let (closed, begins) = known.into_iter().find(|(closed, _)| !comes_first(path, closed))?;
        let (host, path, closed) = (shown(host), value::cut(path), value::cut(closed));
        Some(format!("the path {path} of {host} begins with {begins}, as {closed} does, which cannot be matched"))
    }
}

/// Longer expressions come first, and of equally long ones the last of the alphabet.
fn comes_first(path: &str, other: &str) -> bool {
    (path.len(), path) > (other.len(), other)
}

/// A host for people.
pub(in crate::ingress_nginx) fn shown(host: &str) -> &str {
    if host.is_empty() { "*" } else { host }
}

/// The hosts all of whose paths are regular expressions, each with the Ingress because of which they are.
fn regexes<'r>(all: &'r [Read<'_>]) -> BTreeMap<&'r str, &'r str> {
    let mut regexes: BTreeMap<&str, &str> = BTreeMap::new();
    let is_main = |ingress: &&Read<'_>| ingress.plan.dropped.is_none() && ingress.plan.canary.is_none();
    for ingress in all.iter().filter(is_main) {
        for (host, paths) in &ingress.rules {
            if paths.iter().any(|(path, _)| ingress.plan.location.is_regex(path)) {
                regexes.entry(host).or_insert(&ingress.name);
            }
        }
    }
    regexes
}

/// What Ingresses of one host do to each other. They come in the order in which ingress-nginx takes them.
pub(super) fn of_hosts(read: &[Read<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    let regexes = regexes(read);
    let mut claimed: BTreeMap<(&str, &str, bool), &str> = BTreeMap::new();
    let mut canaries: Vec<(&str, &str, &str)> = Vec::new();
    for ingress in read.iter().filter(|ingress| ingress.plan.dropped.is_none()) {
        for (host, paths) in &ingress.rules {
            for (path, kind) in paths {
                if ingress.plan.canary.is_some() {
                    canaries.push((host, path, &ingress.name));
                    continue;
                }
                let first = claimed.entry((host, path, *kind == "Exact")).or_insert(&ingress.name);
                if *first != ingress.name {
                    notes.push(format!("{host}{path} of {} belongs to the older {first}", ingress.name));
                }
            }
        }
    }
    notes.extend(authorities(read));
    for (host, because) in &regexes {
        notes.push(format!(
            "all paths of {} are regular expressions, compared without case and open at their ends, because of {because}",
            if host.is_empty() { "the hosts without a rule" } else { host }
        ));
    }
    for ingress in read {
        for (host, path, begins) in &ingress.unmatched {
            let shown = value::cut(path);
            notes.push(format!(
                "{host}{shown} of {} cannot be matched here (it looks around or refers back, or is no expression): paths that begin with \
                 {begins} are closed",
                ingress.name
            ));
        }
    }
    for (host, path, name) in canaries {
        if [true, false].iter().all(|exact| !claimed.contains_key(&(host, path, *exact))) {
            notes.push(format!("{name} is a canary of {host}{path}, which no other Ingress has: it has no effect"));
        }
    }
    notes
}

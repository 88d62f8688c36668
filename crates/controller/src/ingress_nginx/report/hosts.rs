//! What Ingresses of one host do to each other: which of them the controller closes, and what a reader should know.

use std::collections::{BTreeMap, BTreeSet};

use super::super::path::{literal_of, regex_of};
use super::super::value;
use super::Read;

/// Closes the Ingresses of which the controller closes a path: because another Ingress closes the host, or because an expression cannot be
/// matched. They come in the order in which ingress-nginx takes them.
pub(super) fn close(all: &mut [Read<'_>]) {
    let mut hosts: BTreeMap<String, String> = BTreeMap::new();
    let mut blocked: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let is_served = |ingress: &&Read<'_>| ingress.plan.dropped.is_none();
    for ingress in all.iter().filter(is_served) {
        for host in ingress.hosts() {
            if let Some(why) = &ingress.plan.host_closed {
                let why = || format!("{}: {why}; it holds for all of the host {}", ingress.name, shown(host));
                hosts.entry(host.to_owned()).or_insert_with(why);
            }
        }
    }
    let regexes: BTreeSet<String> = regexes(all).into_keys().map(str::to_owned).collect();
    for ingress in all.iter().filter(is_served) {
        for (host, paths) in ingress.rules.iter().filter(|(host, _)| regexes.contains(host)) {
            let wrong = paths.iter().filter_map(|(path, _)| Some(((*path).to_owned(), regex_of(path).err()?)));
            let wrong: Vec<(String, String)> = wrong.collect();
            if !wrong.is_empty() {
                blocked.entry(host.clone()).or_default().extend(wrong);
            }
        }
    }
    for ingress in all.iter_mut().filter(|ingress| ingress.plan.dropped.is_none()) {
        let of_host = ingress.hosts().find_map(|host| hosts.get(host).cloned());
        if let Some(why) = of_host {
            ingress.plan.closed.get_or_insert(why);
        }
        let of_paths = ingress.rules.iter().find_map(|(host, paths)| {
            let wrong = blocked.get(host)?;
            paths.iter().find_map(|(path, _)| is_blocked(host, path, wrong))
        });
        if let Some(why) = of_paths {
            ingress.plan.closed.get_or_insert(why);
        }
    }
}

/// Why a path is closed, on a host with these expressions that cannot be matched, each with the text that its paths begin with.
fn is_blocked(host: &str, path: &str, wrong: &[(String, String)]) -> Option<String> {
    let own = literal_of(path).to_ascii_lowercase();
    let (closed, begins) = wrong.iter().find(|(closed, begins)| {
        // Longer expressions come first, and of equally long ones the last of the alphabet.
        let comes_later = (closed.len(), closed.as_str()) >= (path.len(), path);
        comes_later && own.starts_with(&begins.to_ascii_lowercase())
    })?;
    let (host, path, closed) = (shown(host), value::cut(path), value::cut(closed));
    Some(match path == closed {
        true => {
            format!("the path {path} of {host} cannot be matched: it looks around or refers back, or is no expression")
        }
        false => format!("the path {path} of {host} begins with {begins}, as {closed} does, which cannot be matched"),
    })
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
    for (host, because) in &regexes {
        notes.push(format!(
            "all paths of {} are regular expressions, compared without case and open at their ends, because of {because}",
            if host.is_empty() { "the hosts without a rule" } else { host }
        ));
    }
    for ingress in read {
        for (host, paths) in ingress.rules.iter().filter(|(host, _)| regexes.contains_key(host.as_str())) {
            for (path, _) in paths {
                if let Err(begins) = regex_of(path) {
                    let shown = value::cut(path);
                    notes.push(format!(
                        "{host}{shown} of {} cannot be matched here (it looks around or refers back, or is no expression): paths that begin \
                         with {begins} are closed",
                        ingress.name
                    ));
                }
            }
        }
    }
    for (host, path, name) in canaries {
        if [true, false].iter().all(|exact| !claimed.contains_key(&(host, path, *exact))) {
            notes.push(format!("{name} is a canary of {host}{path}, which no other Ingress has: it has no effect"));
        }
    }
    notes
}

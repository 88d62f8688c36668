//! Sets of hosts: those of a route at one address, and those that one kind of route has at a listener.

use std::collections::{HashMap, HashSet};

use model::HostMatcher;

use crate::index::Name;

/// The hosts of a route at one address, over all listeners there.
#[derive(Default)]
pub(crate) struct Hosts {
    /// One of the listeners serves every host, and the route names none.
    any: bool,
    hosts: Vec<HostMatcher>,
}

impl Hosts {
    pub(crate) fn add(&mut self, hosts: &[HostMatcher]) {
        self.any |= hosts.is_empty();
        for host in hosts {
            if !self.hosts.contains(host) {
                self.hosts.push(host.clone());
            }
        }
    }

    /// The hosts for the model: an empty list means any host.
    pub(crate) fn list(&self) -> Vec<HostMatcher> {
        let mut hosts = self.hosts.clone();
        if self.any && !hosts.is_empty() {
            hosts.push(HostMatcher::Any);
        }
        hosts
    }
}

/// The hosts that listeners have for themselves at one address, and the Gateway that each belongs to.
#[derive(Default)]
pub(crate) struct Isolated(HashMap<HostMatcher, Name>);

impl Isolated {
    /// If several Gateways want the same host, it counts as that of the first, which this returns.
    pub(crate) fn add(&mut self, host: HostMatcher, gateway: &Name) -> &Name {
        self.0.entry(host).or_insert_with(|| gateway.clone())
    }

    /// The most specific of these hosts that covers `host`, and its Gateway.
    pub(crate) fn of(&self, host: &HostMatcher) -> Option<(&HostMatcher, &Name)> {
        let (own, name) = match host {
            HostMatcher::Any => (None, None),
            HostMatcher::Exact(name) => (Some(host.clone()), Some(name)),
            HostMatcher::OneLabel(domain) | HostMatcher::Suffix(domain) => {
                (Some(HostMatcher::Suffix(domain.clone())), Some(domain))
            }
        };
        let above = name.into_iter().flat_map(|name| domains(name));
        let above = above.map(|domain| HostMatcher::Suffix(domain.to_owned()));
        own.into_iter().chain(above).chain([HostMatcher::Any]).find_map(|host| self.0.get_key_value(&host))
    }

    /// In an order that depends on nothing else.
    pub(crate) fn into_list(self) -> Vec<HostMatcher> {
        let mut list: Vec<HostMatcher> = self.0.into_keys().collect();
        list.sort_by_cached_key(ToString::to_string);
        list
    }
}

/// A set of hosts that can be tested for an overlap with others, at a cost that does not grow with its size.
#[derive(Default)]
pub(crate) struct HostSet {
    any: bool,
    exact: HashSet<String>,
    /// `example.com` for `*.example.com`.
    suffixes: HashSet<String>,
    /// The domains that contain any of them: `example.com` and `com` for `a.example.com` and for `*.a.example.com`.
    above: HashSet<String>,
}

impl HostSet {
    /// Adds these hosts. An empty list means any host.
    pub(crate) fn add(&mut self, hosts: &[HostMatcher]) {
        self.any |= hosts.is_empty();
        for host in hosts {
            let (set, name) = match host {
                HostMatcher::Exact(name) => (&mut self.exact, name),
                HostMatcher::OneLabel(domain) | HostMatcher::Suffix(domain) => (&mut self.suffixes, domain),
                HostMatcher::Any => {
                    self.any = true;
                    continue;
                }
            };
            if set.insert(name.clone()) {
                self.above.extend(domains(name).map(str::to_owned));
            }
        }
    }

    /// Whether any of these hosts has a name in common with the set. An empty list means any host.
    pub(crate) fn overlaps(&self, hosts: &[HostMatcher]) -> bool {
        let is_empty = !self.any && self.exact.is_empty() && self.suffixes.is_empty();
        if is_empty || self.any || hosts.is_empty() {
            return !is_empty;
        }
        hosts.iter().any(|host| match host {
            HostMatcher::Exact(name) => {
                self.exact.contains(name) || domains(name).any(|domain| self.suffixes.contains(domain))
            }
            HostMatcher::Any => true,
            HostMatcher::OneLabel(domain) | HostMatcher::Suffix(domain) => {
                self.above.contains(domain)
                    || self.suffixes.contains(domain)
                    || domains(domain).any(|above| self.suffixes.contains(above))
            }
        })
    }
}

/// The domains that contain a name, the nearest first.
fn domains(name: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(name.split_once('.').map(|(_, rest)| rest), |domain| {
        domain.split_once('.').map(|(_, rest)| rest)
    })
}

#[cfg(test)]
mod tests {
    use super::super::bind::host;
    use super::*;

    #[test]
    fn names_in_common() {
        let check = |set: &[&str], other: &[&str], expect: bool| {
            let list = |texts: &[&str]| texts.iter().map(|text| host(text)).collect::<Vec<_>>();
            let overlap = |one: &[&str], other: &[&str]| {
                let mut set = HostSet::default();
                set.add(&list(one));
                set.overlaps(&list(other))
            };
            assert_eq!((overlap(set, other), overlap(other, set)), (expect, expect), "{set:?} {other:?}");
        };
        check(&["a.example.com"], &["b.example.com"], false);
        check(&["a.example.com", "b.example.com"], &["b.example.com"], true);
        check(&["*.example.com"], &["a.b.example.com"], true);
        check(&["*.example.com"], &["example.com"], false);
        check(&["*.example.com"], &["*.a.example.com"], true);
        check(&["*.example.com"], &["*.example.com"], true);
        check(&["*.a.example.com"], &["*.b.example.com"], false);
        check(&["*.ample.com"], &["a.example.com"], false);
        check(&[], &["a.example.com"], true);
        check(&[], &[], true);
        assert!(!HostSet::default().overlaps(&[]), "of no route at all");
    }

    #[test]
    fn the_listener_that_a_host_belongs_to() {
        let check = |listeners: &[&str], of: &str, expect: Option<&str>| {
            let matcher = |text: &str| if text.is_empty() { HostMatcher::Any } else { host(text) };
            let mut isolated = Isolated::default();
            listeners.iter().for_each(|text| _ = isolated.add(matcher(text), &Name::new("shop", "edge")));
            let found = isolated.of(&matcher(of)).map(|(host, _)| host.clone());
            assert_eq!(found, expect.map(matcher), "{of} {listeners:?}");
        };
        let all = ["", "*.example.com", "*.foo.example.com", "abc.foo.example.com"];
        check(&all, "bar.com", Some(""));
        check(&all, "*.com", Some(""));
        check(&all, "example.com", Some(""));
        check(&all, "", Some(""));
        check(&all, "*.example.com", Some("*.example.com"));
        check(&all, "bar.example.com", Some("*.example.com"));
        check(&all, "foo.example.com", Some("*.example.com"));
        check(&all, "*.foo.example.com", Some("*.foo.example.com"));
        check(&all, "*.bar.foo.example.com", Some("*.foo.example.com"));
        check(&all, "abc.foo.example.com", Some("abc.foo.example.com"));
        check(&all[1..], "bar.com", None);
        check(&[], "bar.com", None);
    }
}

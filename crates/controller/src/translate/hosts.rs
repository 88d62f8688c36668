//! Sets of hosts: those of a route at one place, and those that one kind of route has at a listener.

use std::collections::HashSet;

use model::HostMatcher;

/// Hosts of a route at one place, of all listeners there.
#[derive(Default)]
pub(crate) struct Hosts {
    /// One of the listeners is for every host, and so is the route.
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

    /// As the model has them: an empty list is any host.
    pub(crate) fn list(&self) -> Vec<HostMatcher> {
        if self.any { Vec::new() } else { self.hosts.clone() }
    }
}

/// Many hosts, of which it is asked whether any of them and some others have a name in common; at a cost that does not grow with their number.
#[derive(Default)]
pub(crate) struct HostSet {
    any: bool,
    exact: HashSet<String>,
    /// Of `*.example.com`, `example.com`.
    suffixes: HashSet<String>,
    /// The domains that any of them are in: of `a.example.com` and of `*.a.example.com` that is `example.com` and `com`.
    above: HashSet<String>,
}

impl HostSet {
    /// These too. An empty list: any.
    pub(crate) fn add(&mut self, hosts: &[HostMatcher]) {
        self.any |= hosts.is_empty();
        for host in hosts {
            let (set, name) = match host {
                HostMatcher::Exact(name) => (&mut self.exact, name),
                HostMatcher::Suffix(domain) => (&mut self.suffixes, domain),
            };
            if set.insert(name.clone()) {
                self.above.extend(domains(name).map(str::to_owned));
            }
        }
    }

    /// Whether any of these, an empty list being any, has a name in common with any of the set.
    pub(crate) fn overlaps(&self, hosts: &[HostMatcher]) -> bool {
        let is_empty = !self.any && self.exact.is_empty() && self.suffixes.is_empty();
        if is_empty || self.any || hosts.is_empty() {
            return !is_empty;
        }
        hosts.iter().any(|host| match host {
            HostMatcher::Exact(name) => {
                self.exact.contains(name) || domains(name).any(|domain| self.suffixes.contains(domain))
            }
            HostMatcher::Suffix(domain) => {
                self.above.contains(domain)
                    || self.suffixes.contains(domain)
                    || domains(domain).any(|above| self.suffixes.contains(above))
            }
        })
    }
}

/// The domains that a name is in, the nearest first.
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
}

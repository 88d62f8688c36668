//! Expressions of paths that are prefixes: `/api(/|$)(.*)`, which is cut off by `rewrite-target: /$2`.
//!
//! The API has no rewrite of an expression, so such a path is written as a PathPrefix. Controllers ask every regular expression before every
//! prefix, however long they are. A path that is an expression must therefore not match what such a prefix matches, or it would take its
//! requests, without what keeps somebody out there. And an expression of ingress-nginx ignores case, which a prefix does not.

use std::collections::{BTreeMap, BTreeSet};

use super::super::path::literal_of;
use super::super::report::Read;
use super::rules::is_literal;
use super::valid::PATH_BYTES_MAX;

/// Bytes of an expression without what stands around its alternatives.
const ALTERNATIVES_BYTES_MAX: usize = PATH_BYTES_MAX - 32;

/// The paths of one host.
#[derive(Default)]
pub(super) struct Prefixes<'o> {
    /// Those that are cut off, by their lower case.
    cut: BTreeMap<String, &'o str>,
    /// What the others begin with, in lower case.
    others: BTreeSet<String>,
    /// Two of them differ in case alone.
    is_ambiguous: bool,
    /// Whether some path takes what no other one of the host has: `/`, or a path of a wildcard that the host has as well.
    has_rest: bool,
}

/// The prefix that a path stands for, and what replaces it.
pub(super) fn cut_off<'p>(path: &'p str, rewrite: Option<&'p str>) -> Option<(&'p str, &'p str)> {
    let is_prefix = |prefix: &&str| {
        prefix.len() > 1
            && prefix.starts_with('/')
            && !prefix.ends_with('/')
            && !prefix.contains("//")
            && is_literal(prefix)
    };
    let prefix = path.strip_suffix("(/|$)(.*)").filter(is_prefix)?;
    let before = rewrite?.strip_suffix("/$2").filter(|before| is_literal(before))?;
    Some((prefix, if before.is_empty() { "/" } else { before }))
}

/// The paths of all hosts.
pub(super) fn prefixes<'r>(read: &[&'r Read<'_>]) -> BTreeMap<&'r str, Prefixes<'r>> {
    let mut hosts: BTreeMap<&str, Prefixes<'_>> = BTreeMap::new();
    for ingress in read {
        let rewrite = ingress.plan.location.rewrite.as_deref();
        for (host, paths) in &ingress.rules {
            let of_host = hosts.entry(host).or_default();
            for (path, _) in paths {
                of_host.add(path, cut_off(path, rewrite).map(|(prefix, _)| prefix));
            }
        }
    }
    let wide: BTreeSet<String> =
        hosts.keys().filter(|host| host.is_empty() || host.starts_with('*')).map(|host| (*host).to_owned()).collect();
    for (host, of_host) in &mut hosts {
        let mut domains = host.match_indices('.').filter_map(|(at, _)| host.get(at..));
        let is_wide = |domain: &str| wide.contains(&format!("*{domain}"));
        of_host.has_rest |= domains.any(is_wide) || (!host.is_empty() && wide.contains(""));
    }
    hosts
}

impl<'o> Prefixes<'o> {
    fn add(&mut self, path: &str, prefix: Option<&'o str>) {
        match prefix {
            Some(prefix) => {
                let known = self.cut.insert(prefix.to_ascii_lowercase(), prefix);
                self.is_ambiguous |= known.is_some_and(|known| known != prefix);
            }
            None if path == "/" => self.has_rest = true,
            None => {
                // Some letters beyond ASCII are the same as one of ASCII if case is ignored.
                let literal = literal_of(path);
                let end = literal.find(|c: char| !c.is_ascii()).unwrap_or(literal.len());
                self.others.insert(literal.get(..end).unwrap_or_default().to_ascii_lowercase());
            }
        }
    }

    /// Whether the path of this prefix can be written as one: no other path of the host would take its requests.
    pub(super) fn has(&self, prefix: &str) -> bool {
        let lower = prefix.to_ascii_lowercase();
        let begins = |end: usize| lower.get(..end).is_some_and(|begin| self.others.contains(begin));
        let is_longer = self.others.range(lower.clone()..).next().is_some_and(|other| other.starts_with(&lower));
        let is_nested = self.above(&lower).all(|above| prefix.starts_with(above));
        !self.is_ambiguous && is_nested && !is_longer && !(0..=lower.len()).any(begins)
    }

    /// Whether some path is written as a prefix.
    pub(super) fn has_cut(&self) -> bool {
        !self.cut.is_empty()
    }

    /// The prefixes that are above one in lower case.
    fn above(&self, lower: &str) -> impl Iterator<Item = &'o str> {
        lower.match_indices('/').filter_map(|(end, _)| self.cut.get(lower.get(..end)?).copied())
    }

    /// Expressions of the paths that ingress-nginx takes for those of this prefix, and the prefix does not: another letter is a capital. There are
    /// none if no other path of the host takes them, so that nothing is served for them.
    pub(super) fn in_other_case(&self, prefix: &str) -> Vec<String> {
        let is_taken = self.has_rest || self.above(&prefix.to_ascii_lowercase()).next().is_some();
        let mut all: Vec<String> = Vec::new();
        let letters = prefix.char_indices().filter(|(_, letter)| is_taken && letter.is_ascii_alphabetic());
        for (at, letter) in letters {
            let (before, rest) = prefix.split_at(at);
            let other = match letter.is_ascii_lowercase() {
                true => letter.to_ascii_uppercase(),
                false => letter.to_ascii_lowercase(),
            };
            let one = format!("{before}{other}(?i:{})", rest.get(1..).unwrap_or_default());
            match all.last_mut().filter(|last| last.len() + 1 + one.len() <= ALTERNATIVES_BYTES_MAX) {
                Some(last) => last.extend(["|", one.as_str()]),
                None => all.push(one),
            }
        }
        all.iter().map(|alternatives| format!("(?:{alternatives})(?s:/.*)?")).collect()
    }
}

//! Finds routes that no request can reach, because an earlier route takes all requests that they would take.
//!
//! It finds one earlier route that covers a later one, but not several that do so together. It compares conditions as written: two regular
//! expressions are the same only if their texts are.

use std::collections::{HashMap, HashSet};

use model::{HostMatcher, PathMatcher, Route, TextMatcher, ValueMatcher};

use crate::diagnostic::{Location, Report, Wrong};

/// How many earlier routes with the same host and path are compared with each later one. Beyond it, a route counts as reachable.
const CANDIDATES_MAX: usize = 64;

/// How many segments of a path are tried as an earlier prefix.
const SEGMENTS_MAX: usize = 32;

/// How many times two lists of conditions are compared. Beyond it, a route counts as reachable.
const COMPARISONS_MAX: usize = 4096;

/// `locations` has the place of each route.
pub fn report_unreachable(routes: &[Route], locations: &[Location], report: &mut Report) {
    let all: Vec<Seen<'_>> = routes.iter().zip(locations).map(|(route, location)| Seen::of(route, *location)).collect();
    let mut earlier: HashMap<(Option<&HostMatcher>, Path<'_>), Vec<&Seen<'_>>> = HashMap::new();
    for later in &all {
        // A route that covers this one has all of its hosts, so it has the first one too.
        let host = later.route.hosts.first();
        let candidates =
            covering(&later.route.path).into_iter().filter_map(|path| earlier.get(&(host, path))).flatten();
        if let Some(seen) = candidates.take(CANDIDATES_MAX).find(|earlier| covers(earlier, later.route)) {
            let line = seen.location.line;
            let wrong =
                Wrong::new(format!("this route can never match: the route at line {line} takes all its requests"));
            report.add(later.location, wrong.hint("move this route before that one, or remove it"));
            continue;
        }
        let every_host = later.hosts.is_empty().then_some(None);
        for host in later.hosts.iter().map(|host| Some(*host)).chain(every_host) {
            earlier.entry((host, Path::of(&later.route.path))).or_default().push(later);
        }
    }
}

/// A route and its place.
struct Seen<'a> {
    route: &'a Route,
    location: Location,
    hosts: HashSet<&'a HostMatcher>,
}

impl<'a> Seen<'a> {
    fn of(route: &'a Route, location: Location) -> Self {
        Self { route, location, hosts: route.hosts.iter().collect() }
    }
}

/// A path condition that can be looked up. A prefix has no trailing `/`: `/api` and `/api/` are the same.
#[derive(PartialEq, Eq, Hash)]
enum Path<'a> {
    Prefix(&'a str),
    Exact(&'a str),
    Regex(&'a str),
}

impl<'a> Path<'a> {
    fn of(path: &'a PathMatcher) -> Self {
        match path {
            PathMatcher::Prefix(prefix) => Self::Prefix(prefix.strip_suffix('/').unwrap_or(prefix)),
            PathMatcher::Exact(exact) => Self::Exact(exact),
            PathMatcher::Regex(regex) => Self::Regex(regex.as_str()),
        }
    }
}

/// The conditions that hold for every path for which this one holds.
fn covering(path: &PathMatcher) -> Vec<Path<'_>> {
    let (text, itself) = match Path::of(path) {
        Path::Prefix(prefix) => (prefix, Path::Prefix(prefix)),
        Path::Exact(exact) => (exact, Path::Exact(exact)),
        Path::Regex(regex) => ("", Path::Regex(regex)),
    };
    let ends = text.match_indices('/').map(|(at, _)| at).chain([text.len()]).take(SEGMENTS_MAX);
    ends.filter_map(|end| text.get(..end)).map(Path::Prefix).chain([itself]).collect()
}

fn covers(earlier: &Seen<'_>, later: &Route) -> bool {
    let methods = earlier.route.methods.is_empty()
        || (!later.methods.is_empty() && within(&later.methods, &earlier.route.methods, String::eq));
    methods
        && (earlier.route.grpc.is_none() || later.grpc.is_some())
        && later.hosts.iter().all(|host| earlier.hosts.contains(host))
        && within(&earlier.route.headers, &later.headers, same)
        && within(&earlier.route.cookies, &later.cookies, same)
        && within(&earlier.route.query, &later.query, same)
        && within(&earlier.route.claims, &later.claims, same)
}

/// Every one of `some` is in `all`.
fn within<T>(some: &[T], all: &[T], same: impl Fn(&T, &T) -> bool) -> bool {
    some.len().saturating_mul(all.len()) <= COMPARISONS_MAX
        && some.iter().all(|one| all.iter().any(|other| same(one, other)))
}

fn same(one: &ValueMatcher, other: &ValueMatcher) -> bool {
    let value = match (&one.value, &other.value) {
        (TextMatcher::Present, _) => true,
        (TextMatcher::Exact(one), TextMatcher::Exact(other)) => one == other,
        (TextMatcher::Regex(one), TextMatcher::Regex(other)) => one.as_str() == other.as_str(),
        _ => false,
    };
    one.name == other.name && value
}

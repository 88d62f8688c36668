//! Finds the route of a request, at a cost that does not grow with the number of routes.
//!
//! The routes of a snapshot are compiled into tables by host, and within a host into a tree of path segments, a map of exact paths and one
//! automaton for all regular expressions. Of the matching routes, the most specific host wins, and within a host the first in the file. The
//! search ends at a host that is isolated.

use std::collections::HashMap;

use model::{HostMatcher, Passthrough, PathMatcher, PathRules, Route};
use regex::RegexSet;
use smallvec::SmallVec;
use telemetry::Reason;
use wire::message::RequestHead;
use wire::path;

use super::conditions::{Bearer, Conditions, Request, Wanted};
use crate::error::Error;
use crate::policy::cors::Preflight;

/// The compiled routes of a listener.
pub(crate) struct Router {
    /// By complete host, in lower case.
    exact: HashMap<Box<str>, Table>,
    /// By the part after `*.`, which stands for one label.
    one_label: HashMap<Box<str>, Table>,
    /// By the part after `*.`, which stands for one or more labels.
    suffix: HashMap<Box<str>, Table>,
    any: Table,
    /// Whether any host is isolated.
    isolates: bool,
    /// Whether TLS passes through for any name.
    passes: bool,
    /// Whether any route has `cors`.
    has_cors: bool,
    /// Whether any route has conditions on claims.
    has_claims: bool,
    conditions: Vec<Conditions>,
}

/// The route of a request whose token was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The index of its route.
    Route(usize),
    /// It has none, and would have this one with other claims.
    ForOthers(usize),
    Nothing,
}

/// The routes of one host. The lists contain indexes in the file, ascending.
#[derive(Default)]
struct Table {
    exact: HashMap<Box<[u8]>, Vec<usize>>,
    prefixes: Segment,
    regexes: Option<Regexes>,
    /// The number of the isolated host, if it is one. Routes of less specific hosts do not take its requests.
    isolated: Option<usize>,
    /// The number of the [`model::Passthrough`] that has the connections for this name.
    passthrough: Option<usize>,
    has_routes: bool,
}

/// A node of the tree of path prefixes: the routes whose prefix ends here, and the segments that may follow.
#[derive(Default)]
struct Segment {
    routes: Vec<usize>,
    children: HashMap<Box<[u8]>, Segment>,
}

struct Regexes {
    set: RegexSet,
    /// The route of each pattern of `set`.
    routes: Vec<usize>,
}

/// Path and query of a request with the path in its normal form; `None` if the client wrote it in that form, as nearly every client does.
///
/// # Errors
/// [`Reason::AmbiguousPath`], if the listener refuses such paths.
pub(crate) fn normal_target(target: &[u8], rules: &PathRules) -> Result<Option<Vec<u8>>, Error> {
    let (path, query) = path::split_target(target);
    if rules.refuse_ambiguous
        && let Some(ambiguity) = path::ambiguity(path)
    {
        tracing::debug!(?ambiguity, "path refused");
        return Err(Error::internal(Reason::AmbiguousPath));
    }
    let normal = path::normalize(path, rules.merge_slashes);
    Ok(normal.map(|mut target| {
        target.extend_from_slice(query);
        target
    }))
}

impl Router {
    /// `isolated`: as [`model::HttpListener::isolated_hosts`]. `merge_slashes`: as in [`PathRules`].
    pub(crate) fn new(routes: &[Route], isolated: &[HostMatcher], merge_slashes: bool) -> Self {
        Self::replacing(None, routes, isolated, merge_slashes)
    }

    /// The same. Hosts whose regular expressions are those of `old` keep what was compiled of them.
    pub(crate) fn replacing(
        old: Option<&Self>,
        routes: &[Route],
        isolated: &[HostMatcher],
        merge_slashes: bool,
    ) -> Self {
        let mut by_host: HashMap<&HostMatcher, Vec<usize>> = HashMap::new();
        for (index, route) in routes.iter().enumerate() {
            let any = route.hosts.is_empty().then_some(&HostMatcher::Any);
            for host in route.hosts.iter().chain(any) {
                by_host.entry(host).or_default().push(index);
            }
        }
        let mut router = Self {
            exact: HashMap::new(),
            one_label: HashMap::new(),
            suffix: HashMap::new(),
            any: Table::default(),
            isolates: !isolated.is_empty(),
            passes: false,
            has_cors: routes.iter().any(|route| route.policy.cors.is_some()),
            has_claims: routes.iter().any(|route| !route.claims.is_empty()),
            conditions: routes.iter().map(Conditions::new).collect(),
        };
        for (host, members) in by_host {
            let old = old.and_then(|old| old.table(host)?.regexes.as_ref());
            *router.table_mut(host) = Table::new(old, routes, members, merge_slashes);
        }
        for (number, host) in isolated.iter().enumerate() {
            router.table_mut(host).isolated = Some(number);
        }
        router
    }

    /// The same, with the names whose connections pass through.
    pub(crate) fn with_passthrough(mut self, passthrough: &[Passthrough]) -> Self {
        self.passes = !passthrough.is_empty();
        for (number, entry) in passthrough.iter().enumerate() {
            for host in &entry.sni {
                self.table_mut(host).passthrough.get_or_insert(number);
            }
        }
        self
    }

    /// The number of the entry that has the connections for a name; `None` if TLS for it ends here. A client that asks for no name is one of those for
    /// every name.
    pub(crate) fn passthrough(&self, name: Option<&str>) -> Option<usize> {
        if !self.passes {
            return None;
        }
        let Some(name) = name else { return self.any.passthrough };
        let decides = |table: &&Table| table.passthrough.is_some() || table.has_routes || table.isolated.is_some();
        self.tables(name).find(decides)?.passthrough
    }

    fn table(&self, host: &HostMatcher) -> Option<&Table> {
        match host {
            HostMatcher::Exact(host) => self.exact.get(host.as_str()),
            HostMatcher::OneLabel(domain) => self.one_label.get(domain.as_str()),
            HostMatcher::Suffix(domain) => self.suffix.get(domain.as_str()),
            HostMatcher::Any => Some(&self.any),
        }
    }

    fn table_mut(&mut self, host: &HostMatcher) -> &mut Table {
        match host {
            HostMatcher::Exact(host) => self.exact.entry(host.as_str().into()).or_default(),
            HostMatcher::OneLabel(domain) => self.one_label.entry(domain.as_str().into()).or_default(),
            HostMatcher::Suffix(domain) => self.suffix.entry(domain.as_str().into()).or_default(),
            HostMatcher::Any => &mut self.any,
        }
    }

    /// Whether any host is isolated.
    pub(crate) fn isolates(&self) -> bool {
        self.isolates
    }

    /// The number of the isolated host that a host belongs to. `host` is in the form of [`HostText`].
    pub(crate) fn isolated_host(&self, host: &str) -> Option<usize> {
        self.tables(host).find_map(|table| table.isolated)
    }

    /// The tables of the hosts that match, the most specific first.
    fn tables<'r>(&'r self, host: &'r str) -> impl Iterator<Item = &'r Table> {
        let parent = |host: &'r str| host.split_once('.').map(|(_, parent)| parent);
        let one_label = parent(host).and_then(|parent| self.one_label.get(parent));
        // The longest suffix first: `*.a.example.com` before `*.example.com`.
        let parents = std::iter::successors(parent(host), move |host| parent(host));
        let suffixes = parents.take_while(|_| !self.suffix.is_empty()).filter_map(|parent| self.suffix.get(parent));
        self.exact.get(host).into_iter().chain(one_label).chain(suffixes).chain([&self.any])
    }

    /// The index of the route for a request. `buffer` is what its head was read from; `target` is its path, in normal form, and its query.
    pub(crate) fn route(&self, head: &RequestHead, buffer: &[u8], target: &[u8]) -> Option<usize> {
        match self.route_of(head, buffer, target, Bearer::Nobody) {
            Found::Route(number) => Some(number),
            Found::ForOthers(_) | Found::Nothing => None,
        }
    }

    /// The same for a request whose token was looked at.
    pub(crate) fn route_of(&self, head: &RequestHead, buffer: &[u8], target: &[u8], bearer: Bearer<'_>) -> Found {
        if let Some(number) = self.find(head, buffer, target, bearer) {
            return Found::Route(number);
        }
        if matches!(bearer, Bearer::Unclear) || !self.has_claims {
            return Found::Nothing;
        }
        self.find(head, buffer, target, Bearer::Unclear).map_or(Found::Nothing, Found::ForOthers)
    }

    fn find(&self, head: &RequestHead, buffer: &[u8], target: &[u8], bearer: Bearer<'_>) -> Option<usize> {
        let (path, query) = path::split_target(target);
        let query = query.strip_prefix(b"?").unwrap_or_default();
        let request = Request { method: head.method_name.get(buffer), fields: &head.fields, buffer, query, bearer };
        let authority = head.authority.get(buffer);
        // Where no route has `cors`, no field of the request is read for this.
        let preflight = if self.has_cors { Preflight::of(head.method, &head.fields, buffer) } else { None };
        let Some(preflight) = preflight else { return self.search(authority, path, &request, Wanted::Itself) };
        let found = self.search(authority, path, &request, Wanted::Asked(preflight));
        if found.and_then(|index| self.conditions.get(index)).is_some_and(|conditions| conditions.has_cors) {
            return found;
        }
        self.search(authority, path, &request, Wanted::Unanswered)
    }

    fn search(&self, authority: &[u8], path: &[u8], request: &Request<'_>, wanted: Wanted<'_>) -> Option<usize> {
        let accepts =
            |index: usize| self.conditions.get(index).is_some_and(|conditions| conditions.accept(request, wanted));
        if self.exact.is_empty() && self.one_label.is_empty() && self.suffix.is_empty() {
            return self.any.first(path, accepts);
        }
        let host = HostText::new(authority);
        for table in self.tables(host.as_str()) {
            let found = table.first(path, accepts);
            if found.is_some() || table.isolated.is_some() {
                return found;
            }
        }
        None
    }
}

/// A host in the form of the tables: lower case, without port or trailing dot.
pub(crate) struct HostText(SmallVec<[u8; 64]>);

impl HostText {
    pub(crate) fn new(authority: &[u8]) -> Self {
        let host = match authority {
            [b'[', ..] => memchr::memchr(b']', authority).and_then(|end| authority.get(..=end)).unwrap_or(authority),
            _ => authority.split(|byte| *byte == b':').next().unwrap_or_default(),
        };
        let host = host.strip_suffix(b".").unwrap_or(host);
        Self(host.iter().map(u8::to_ascii_lowercase).collect())
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Table {
    fn new(old: Option<&Regexes>, routes: &[Route], members: Vec<usize>, merge_slashes: bool) -> Self {
        // The path of a route may be written in another form than the normal one.
        let normal = |path: &str| path::normalize(path.as_bytes(), merge_slashes).unwrap_or(path.as_bytes().to_vec());
        let mut table = Self { has_routes: !members.is_empty(), ..Self::default() };
        let (mut patterns, mut pattern_routes) = (Vec::new(), Vec::new());
        for index in members {
            match routes.get(index).map(|route| &route.path) {
                Some(PathMatcher::Prefix(prefix)) => table.prefixes.insert(&normal(prefix), index),
                Some(PathMatcher::Exact(path)) => {
                    table.exact.entry(normal(path).into()).or_default().push(index);
                }
                Some(PathMatcher::Regex(regex)) => {
                    patterns.push(regex.as_str());
                    pattern_routes.push(index);
                }
                None => {}
            }
        }
        if !patterns.is_empty() {
            let known = old.filter(|old| old.set.patterns().iter().eq(patterns.iter())).map(|old| old.set.clone());
            // Each of them was compiled when the configuration was read. Together they may exceed the set's default limit (10 MiB), which
            // is no reason to refuse them now.
            let set = known.or_else(|| regex::RegexSetBuilder::new(patterns).size_limit(usize::MAX).build().ok());
            table.regexes = set.map(|set| Regexes { set, routes: pattern_routes });
        }
        table
    }

    /// The first route in the file whose path matches and for which `accepts` is true.
    fn first(&self, path: &[u8], accepts: impl Fn(usize) -> bool) -> Option<usize> {
        let mut best = None;
        let mut consider = |list: &[usize]| {
            // Ascending: the first accepted one is the best of its list, and those after the best so far do not matter.
            let candidates = list.iter().copied().take_while(|index| best.is_none_or(|best| *index < best));
            if let Some(index) = candidates.into_iter().find(|index| accepts(*index)) {
                best = Some(index);
            }
        };
        if !self.exact.is_empty()
            && let Some(list) = self.exact.get(path)
        {
            consider(list);
        }
        self.prefixes.walk(path, &mut consider);
        if let Some(regexes) = &self.regexes
            && let Ok(path) = std::str::from_utf8(path)
        {
            let matched: SmallVec<[usize; 8]> =
                regexes.set.matches(path).iter().filter_map(|pattern| regexes.routes.get(pattern).copied()).collect();
            consider(&matched);
        }
        best
    }
}

impl Segment {
    fn insert(&mut self, prefix: &[u8], index: usize) {
        let mut node = self;
        for segment in segments(prefix.strip_suffix(b"/").unwrap_or(prefix)) {
            node = node.children.entry(segment.into()).or_default();
        }
        node.routes.push(index);
    }

    /// Calls `consider` with the routes of every prefix of `path`. It goes as deep as the longest configured prefix, however long `path`
    /// is.
    fn walk(&self, path: &[u8], consider: &mut impl FnMut(&[usize])) {
        let mut node = self;
        let mut rest = segments(path);
        loop {
            if !node.routes.is_empty() {
                consider(&node.routes);
            }
            if node.children.is_empty() {
                return;
            }
            match rest.next().and_then(|segment| node.children.get(segment)) {
                Some(child) => node = child,
                None => return,
            }
        }
    }
}

/// `/a/b` is `a`, `b`; an empty path has no segments. Only the prefix `/` matches `*` (OPTIONS).
fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let rest = path.strip_prefix(b"/");
    rest.into_iter().flat_map(|rest| rest.split(|byte| *byte == b'/'))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{ClusterId, GrpcMatcher, TextMatcher, ValueMatcher};
    use regex::Regex;
    use wire::h1::{Parsed, parse_request};

    use super::*;
    use crate::auth::jwt::Verified;

    fn route(path: PathMatcher) -> Route {
        Route { path, ..Route::to_all("", ClusterId(0).into()) }
    }

    fn prefix(path: &str) -> Route {
        route(PathMatcher::Prefix(path.into()))
    }

    fn exact(path: &str) -> Route {
        route(PathMatcher::Exact(path.into()))
    }

    fn regex(pattern: &str) -> Route {
        route(PathMatcher::Regex(Regex::new(&format!("^(?:{pattern})$")).unwrap()))
    }

    fn on(hosts: &[&str], mut route: Route) -> Route {
        route.hosts = hosts
            .iter()
            .map(|host| match host.strip_prefix("*.") {
                Some(suffix) => HostMatcher::Suffix(suffix.into()),
                None => HostMatcher::Exact((*host).into()),
            })
            .collect();
        route
    }

    /// The number of the route that a request for `path` on `host` takes.
    fn found(router: &Router, host: &str, path: &str) -> Option<usize> {
        let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
        router.route(&head, text.as_bytes(), path.as_bytes())
    }

    fn value(name: &str, value: TextMatcher) -> ValueMatcher {
        ValueMatcher { name: name.into(), value }
    }

    /// Checks which of `routes` a request takes: `line` is method and target, `fields` complete lines with their ends.
    #[track_caller]
    fn check_with(routes: &[Route], line: &str, host: &str, fields: &str, expect: Option<usize>) {
        let text = format!("{line} HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
        let target = head.path.get(text.as_bytes());
        let normal = normal_target(target, &PathRules::default()).unwrap();
        let router = Router::new(routes, &[], PathRules::default().merge_slashes);
        let found = router.route(&head, text.as_bytes(), normal.as_deref().unwrap_or(target));
        assert_eq!(found, expect, "{line} on {host} {fields}");
    }

    #[track_caller]
    fn check(routes: &[Route], path: &str, expect: Option<usize>) {
        check_with(routes, &format!("GET {path}"), "a", "", expect);
    }

    #[test]
    fn prefixes_end_on_segments() {
        let routes = [prefix("/api/"), prefix("/web"), prefix("/a/b")];
        for (path, expect) in [
            ("/api", Some(0)),
            ("/api/", Some(0)),
            ("/api/x?y=/z", Some(0)),
            ("/apix", None),
            ("/web", Some(1)),
            ("/web/x", Some(1)),
            ("/website", None),
            ("/a", None),
            ("/a/b/c", Some(2)),
            ("/", None),
            ("/API", None),
        ] {
            check(&routes, path, expect);
        }
        check(&[prefix("/")], "/anything/at/all", Some(0));
        check(&[prefix("/")], "http://a", Some(0));
        check_with(&[prefix("/x"), prefix("/")], "OPTIONS *", "a", "", Some(1));
    }

    #[test]
    fn a_path_takes_its_route_however_it_is_written() {
        let routes = [prefix("/admin"), exact("/login"), regex("/v[0-9]/caf%C3%A9"), prefix("/%7ejoe/.")];
        for (path, expect) in [
            ("/%61dmin", Some(0)),
            ("//admin/x", Some(0)),
            ("/./admin", Some(0)),
            ("/x/../admin?q", Some(0)),
            ("/x/%2e%2E/%41dmin", None),
            ("/admin/..", None),
            ("/%2561dmin", None),
            ("/admin%2Fx", None),
            ("/lo%67in?a=/..", Some(1)),
            ("//login", Some(1)),
            ("/v1/caf%c3%a9", Some(2)),
            ("/~joe", Some(3)),
            ("/%7Ejoe/x", Some(3)),
        ] {
            check(&routes, path, expect);
        }
        check(&[prefix("/admin")], "http://a//admin", Some(0));
        check_with(&[prefix("/x"), prefix("/")], "OPTIONS *", "a", "", Some(1));
    }

    #[test]
    fn slashes_are_told_apart_where_they_are_not_merged() {
        let rules = PathRules { merge_slashes: false, ..PathRules::default() };
        let router = Router::new(&[prefix("/a//b")], &[], false);
        let head = RequestHead::default();
        for (target, expect) in [(&b"/a//b"[..], Some(0)), (b"/a/b", None), (b"/a//./b", Some(0))] {
            let normal = normal_target(target, &rules).unwrap();
            assert_eq!(router.route(&head, b"", normal.as_deref().unwrap_or(target)), expect, "{target:?}");
        }
    }

    #[test]
    fn expressions_that_stay_keep_what_was_compiled() {
        let regex = |text: &str| Route { path: PathMatcher::Regex(regex::Regex::new(text).unwrap()), ..prefix("/") };
        let old = Router::new(&[regex("/a.*"), regex("/b.*")], &[], true);
        let check = |routes: &[Route], expect: [Option<usize>; 3]| {
            let router = Router::replacing(Some(&old), routes, &[], true);
            let head = RequestHead::default();
            let found = [&b"/a1"[..], b"/b1", b"/c1"].map(|target| router.route(&head, b"", target));
            assert_eq!(found, expect);
        };
        check(&[prefix("/c1"), regex("/a.*"), regex("/b.*")], [Some(1), Some(2), Some(0)]);
        check(&[regex("/b.*"), regex("/a.*")], [Some(1), Some(0), None]);
        check(&[regex("/a.*"), regex("/b.*"), regex("/c.*")], [Some(0), Some(1), Some(2)]);
        check(&[prefix("/c1")], [None, None, Some(0)]);
    }

    #[test]
    fn claims_choose_among_routes() {
        let with = |path: &str, claim: &str, text: &str| Route {
            claims: vec![value(claim, TextMatcher::Exact(text.into()))],
            ..prefix(path)
        };
        let present = Route { claims: vec![value("sub", TextMatcher::Present)], ..prefix("/me") };
        let mut with_cors = with("/cors", "role", "admin");
        with_cors.policy.cors = Some(crate::worker::snapshot::fixture::open_to_all().into());
        let routes = [with("/a", "role", "admin"), with("/a", "role", "staff"), prefix("/a/open"), present, with_cors];
        let router = Router::new(&routes, &[], true);
        let found = |line: &str, fields: &str, bearer: Bearer<'_>| {
            let text = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
            let mut head = RequestHead::default();
            assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
            router.route_of(&head, text.as_bytes(), head.path.get(text.as_bytes()), bearer)
        };
        let known = |roles: &[&str]| Verified::of_claims(&[("role", roles), ("sub", &[])]);
        let (staff, none) = (known(&["guest", "staff"]), known(&[]));
        let check = |path: &str, bearer: Bearer<'_>, expect: Found| {
            assert_eq!(found(&format!("GET {path}"), "", bearer), expect, "{path}");
        };
        check("/a", Bearer::Known(&known(&["admin", "staff"])), Found::Route(0));
        check("/a", Bearer::Known(&staff), Found::Route(1));
        check("/a", Bearer::Known(&none), Found::ForOthers(0));
        check("/a", Bearer::Nobody, Found::ForOthers(0));
        check("/a/open", Bearer::Known(&none), Found::Route(2));
        check("/a/open", Bearer::Nobody, Found::Route(2));
        // A token that cannot be verified opens no route that its claims might have closed.
        check("/a/open", Bearer::Unclear, Found::Route(0));
        check("/me", Bearer::Known(&none), Found::Route(3));
        check("/me", Bearer::Known(&Verified::of_claims(&[])), Found::ForOthers(3));
        check("/x", Bearer::Known(&staff), Found::Nothing);
        check("/x", Bearer::Unclear, Found::Nothing);
        // Browsers ask without the token.
        let asks = "Origin: https://b.test\r\nAccess-Control-Request-Method: GET\r\n";
        assert_eq!(found("OPTIONS /cors", asks, Bearer::Nobody), Found::Route(4));
        assert_eq!(found("OPTIONS /cors", "", Bearer::Nobody), Found::ForOthers(4));
    }

    #[test]
    fn the_first_in_the_file_wins() {
        let routes = [regex("/v[0-9]+/.*"), prefix("/v1"), exact("/v1/x"), prefix("/")];
        check(&routes, "/v1/x", Some(0));
        check(&routes, "/v1", Some(1));
        check(&routes, "/vv", Some(3));
        check(&[exact("/v1/x"), prefix("/v1")], "/v1/x", Some(0));
        check(&[prefix("/v1"), exact("/v1/x")], "/v1/x", Some(0));
        check(&[exact("/v1/x")], "/v1/x/", None);
    }

    #[test]
    fn the_more_specific_host_wins() {
        let routes = [
            prefix("/"),
            on(&["*.example.com"], prefix("/")),
            on(&["*.shop.example.com"], prefix("/")),
            on(&["shop.example.com"], prefix("/only")),
        ];
        let on_host = |host: &str, path: &str, expect| {
            check_with(&routes, &format!("GET {path}"), host, "", expect);
        };
        on_host("shop.example.com", "/only", Some(3));
        on_host("SHOP.example.com.:8080", "/only/x", Some(3));
        on_host("shop.example.com", "/other", Some(1));
        on_host("a.b.shop.example.com", "/", Some(2));
        on_host("example.com", "/", Some(0));
        on_host("badexample.com", "/", Some(0));
        on_host("[::1]:80", "/", Some(0));
    }

    #[test]
    fn a_wildcard_for_one_label_matches_one() {
        let mut one = prefix("/one");
        one.hosts = vec![HostMatcher::OneLabel("example.com".into())];
        let mut both = prefix("/");
        both.hosts = vec![HostMatcher::OneLabel("example.com".into()), HostMatcher::Suffix("a.example.com".into())];
        let router = Router::new(&[one, both, on(&["*.example.com"], prefix("/"))], &[], true);
        assert_eq!(found(&router, "a.example.com", "/one"), Some(0));
        assert_eq!(found(&router, "a.example.com", "/"), Some(1), "one label is more specific than several");
        assert_eq!(found(&router, "b.a.example.com", "/one"), Some(1));
        assert_eq!(found(&router, "b.c.example.com", "/one"), Some(2));
        assert_eq!(found(&router, "example.com", "/one"), None);
    }

    #[test]
    fn the_most_specific_name_decides_where_tls_ends() {
        let entry = |names: &[&str]| Passthrough {
            sni: names.iter().map(|name| on(&[name], prefix("/")).hosts[0].clone()).collect(),
            to: ClusterId(0),
            idle_timeout: std::time::Duration::ZERO,
        };
        let routes = [prefix("/"), on(&["in.example.com"], prefix("/")), on(&["*.a.example.com"], prefix("/"))];
        let passthrough =
            [entry(&["*.example.com"]), entry(&["b.a.example.com", "in.example.com"]), entry(&["*.example.com"])];
        let router = Router::new(&routes, &[HostMatcher::Exact("empty.example.com".into())], true);
        assert_eq!(router.passthrough(Some("x.example.com")), None);
        let router = router.with_passthrough(&passthrough);
        let check =
            |name: Option<&str>, expect: Option<usize>| assert_eq!(router.passthrough(name), expect, "{name:?}");
        check(Some("x.example.com"), Some(0));
        check(Some("x.y.example.com"), Some(0));
        check(Some("x.a.example.com"), None);
        check(Some("b.a.example.com"), Some(1));
        check(Some("in.example.com"), Some(1));
        check(Some("empty.example.com"), None);
        check(Some("example.com"), None);
        check(None, None);
        let every = Passthrough { sni: vec![HostMatcher::Any], ..passthrough[0].clone() };
        let router = Router::new(&routes, &[], true).with_passthrough(&[every]);
        assert_eq!(
            [None, Some("x"), Some("in.example.com")].map(|name| router.passthrough(name)),
            [Some(0), Some(0), None]
        );
    }

    #[test]
    fn an_isolated_host_has_only_its_own_routes() {
        let mut both = on(&["*.example.com"], prefix("/both"));
        both.hosts.push(HostMatcher::Any);
        let routes = [
            prefix("/any"),
            on(&["*.example.com"], prefix("/wide")),
            on(&["*.foo.example.com"], prefix("/foo")),
            on(&["abc.foo.example.com"], prefix("/abc")),
            on(&["shop.example.com"], prefix("/shop")),
            both,
        ];
        let isolated = |hosts: &[&str]| on(hosts, prefix("/")).hosts;
        let mut hosts = isolated(&["*.example.com", "*.foo.example.com", "abc.foo.example.com", "empty.example.com"]);
        hosts.push(HostMatcher::Any);
        let router = Router::new(&routes, &hosts, true);
        // Of each host, the routes that take its requests.
        for (host, expect) in [
            ("bar.com", &[0, 5][..]),
            ("bar.example.com", &[1, 5]),
            ("shop.example.com", &[1, 4, 5]),
            ("bar.foo.example.com", &[2]),
            ("abc.foo.example.com", &[3]),
            ("empty.example.com", &[]),
        ] {
            let paths = ["/any", "/wide", "/foo", "/abc", "/shop", "/both"];
            let taken: Vec<usize> = paths.into_iter().filter_map(|path| found(&router, host, path)).collect();
            assert_eq!(taken, expect, "{host}");
        }
        let numbers = ["x.example.com", "x.foo.example.com", "abc.foo.example.com", "empty.example.com", "x.org"];
        assert_eq!(numbers.map(|host| router.isolated_host(host)), [0, 1, 2, 3, 4].map(Some));
        let without = Router::new(&routes, hosts.get(..4).unwrap(), true);
        assert_eq!((without.isolated_host("x.org"), without.isolates()), (None, true));
        assert!(!Router::new(&routes, &[], true).isolates());
    }

    #[test]
    fn other_conditions_must_hold_too() {
        let mut by_method = prefix("/");
        by_method.methods = vec!["POST".into(), "PUT".into()];
        let mut by_header = prefix("/");
        by_header.headers = vec![value("x-canary", TextMatcher::Exact("always".into()))];
        let mut by_query = prefix("/");
        by_query.query = vec![
            value("q", TextMatcher::Regex(Regex::new("^(?:a b|c.*)$").unwrap())),
            value("debug", TextMatcher::Present),
        ];
        let mut by_cookie = prefix("/");
        by_cookie.cookies = vec![value("group", TextMatcher::Exact("beta".into())), value("id", TextMatcher::Present)];
        let routes = [by_method, by_header, by_query, by_cookie];
        check_with(&routes, "PUT /", "a", "", Some(0));
        check_with(&routes, "put /", "a", "", None);
        check_with(&routes, "GET /", "a", "X-Canary: never\r\nX-CANARY: always\r\n", Some(1));
        check_with(&routes, "GET /", "a", "X-Canary: alwaysx\r\n", None);
        check_with(&routes, "GET /?q=a+b&debug", "a", "", Some(2));
        check_with(&routes, "GET /?debug=1&%71=a%20b", "a", "", Some(2));
        check_with(&routes, "GET /?q=cx", "a", "", None);
        // No byte that is not UTF-8 leads past an expression.
        check_with(&routes, "GET /?q=c%ff&debug", "a", "", Some(2));
        check_with(&routes, "GET /?q=x&q=cx&debug", "a", "", None);
        check_with(&routes, "GET /", "a", "Cookie: id=1; group=beta\r\n", Some(3));
        check_with(&routes, "GET /", "a", "Cookie: group=alpha; group=beta\r\nCookie: id=\r\n", Some(3));
        check_with(&routes, "GET /", "a", "Cookie: group=beta; ID=1\r\n", None);
        check_with(&routes, "GET /", "a", "Cookie: group=betas; id=1\r\n", None);
    }

    #[test]
    fn all_fields_of_a_header_together() {
        let joined = |pattern: &str| TextMatcher::JoinedRegex(Arc::new(Regex::new(pattern).unwrap()));
        let mut numbers = prefix("/");
        numbers.headers = vec![value("x-id", joined("^[0-9]+$"))];
        let mut bytes = prefix("/");
        bytes.headers = vec![value("x-id", joined("^a.b, c$"))];
        let routes = [numbers, bytes];
        let check = |fields: &str, expect| check_with(&routes, "GET /", "a", fields, expect);
        check("X-Id: 17\r\n", Some(0));
        check("X-Id: 17\r\nX-ID: 18\r\n", None);
        check("X-Id: 17\r\nX-Id: a\r\n", None);
        check("X-Id: a b\r\nX-Id: c\r\n", Some(1));
        // Two bytes, and one letter of UTF-8.
        check("X-Id: a\u{e9}b, c\r\n", None);
        check("", None);
    }

    #[test]
    fn grpc_is_told_by_its_content_type() {
        let call = |mut route: Route| {
            route.methods = vec!["POST".into()];
            route.grpc = Some(GrpcMatcher { service: "a.B".into(), method: None });
            route
        };
        let routes = [call(exact("/a.B/Stream")), call(prefix("/a.B/")), prefix("/")];
        let check = |line: &str, content_type: &str, expect| {
            check_with(&routes, line, "a", &format!("Content-Type: {content_type}\r\n"), expect);
        };
        check("POST /a.B/Stream", "application/grpc", Some(0));
        check("POST /a.B/Other", "application/grpc+proto", Some(1));
        check("POST /a.B/Other", "application/grpc-web-text", Some(1));
        check("POST /x/../%61.B//Other", "application/grpc", Some(1));
        check("POST /a.C/Other", "application/grpc", Some(2));
        check("POST /a.B/Other", "application/json", Some(2));
        check("GET /a.B/Other", "application/grpc", Some(2));
        check_with(&routes, "POST /a.B/Other", "a", "", Some(2));
    }

    #[test]
    fn a_preflight_request_goes_where_its_request_would_go() {
        let with = |methods: &[&str], mut route: Route| {
            route.methods = methods.iter().map(|method| (*method).to_owned()).collect();
            route.policy.cors = Some(Box::new(crate::worker::snapshot::fixture::open_to_all()));
            route
        };
        let mut call = with(&["POST"], prefix("/a.B/"));
        call.grpc = Some(GrpcMatcher { service: "a.B".into(), method: None });
        let mut without = prefix("/y");
        without.methods = vec!["PUT".into()];
        let routes = [call, with(&["PUT"], prefix("/x")), with(&["OPTIONS"], prefix("/z")), without, prefix("/")];
        let check = |path: &str, fields: &str, expect| check_with(&routes, path, "a", fields, expect);
        let asks = |method: &str| format!("Origin: https://a\r\nAccess-Control-Request-Method: {method}\r\n");
        check("OPTIONS /x", &asks("PUT"), Some(1));
        check("OPTIONS /x", &asks("GET"), Some(4));
        check("OPTIONS /x", "Access-Control-Request-Method: PUT\r\n", Some(4));
        check("OPTIONS /x", "Origin: https://a\r\n", Some(4));
        check("GET /x", &asks("PUT"), Some(4));
        check("OPTIONS /a.B/C", &asks("POST"), Some(0));
        check("OPTIONS /a.B/C", &asks("GET"), Some(4));
        check("OPTIONS /z", &asks("GET"), Some(2));
        // The application decides it.
        check("OPTIONS /y", &asks("PUT"), Some(4));

        // The route of the request allows nothing, so no other route may do so in its place.
        let mut own = prefix("/");
        own.methods = vec!["PUT".into()];
        let routes = [own, with(&[], prefix("/"))];
        let check = |line: &str, fields: &str, expect| check_with(&routes, line, "a", fields, expect);
        check("OPTIONS /x", &asks("PUT"), None);
        check("OPTIONS /x", &asks("POST"), Some(1));
        check("OPTIONS /x", "Origin: https://a\r\n", Some(1));
        check("PUT /x", "Origin: https://a\r\n", Some(0));
    }

    #[test]
    fn ten_thousand_routes_are_told_apart() {
        let mut routes: Vec<_> = (0..10_000).map(|n| prefix(&format!("/svc{n}/api"))).collect();
        routes.extend((0..10_000).map(|n| on(&[&format!("h{n}.example.com")], prefix("/"))));
        check(&routes, "/svc9999/api/x", Some(9_999));
        check(&routes, "/svc9999/apix", None);
        check_with(&routes, "GET /", "h1234.example.com", "", Some(11_234));
    }

    proptest::proptest! {
        /// The tables agree with trying every route in turn.
        #[test]
        fn tables_agree_with_a_scan(
            paths in proptest::collection::vec(("(/[ab]{0,2}){1,3}", 0..3_u8), 1..8), target in "(/[ab]{0,2}){1,4}")
        {
            let routes: Vec<_> = paths.iter().map(|(path, kind)| match kind {
                0 => prefix(path),
                1 => exact(path),
                _ => regex(&format!("{path}.*")),
            }).collect();
            let normal = |path: &str| {
                let normal = path::normalize(path.as_bytes(), true).unwrap_or(path.as_bytes().to_vec());
                String::from_utf8(normal).unwrap()
            };
            let asked = normal(&target);
            let expect = paths.iter().position(|(path, kind)| match kind {
                0 => {
                    let path = normal(path);
                    let bare = path.strip_suffix('/').unwrap_or(&path);
                    asked == bare || asked.starts_with(&format!("{bare}/"))
                }
                1 => asked == normal(path),
                _ => asked.starts_with(path),
            });
            check(&routes, &target, expect);
        }
    }
}

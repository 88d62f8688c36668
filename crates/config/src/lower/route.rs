//! Lowers routes, and makes names for those that have none.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use model::{
    Auth, ClusterId, ExternalAuth, GlobalRateLimit, GrpcMatcher, PathMatcher, Route, RouteAction, RoutePolicy, Satisfy,
    TextMatcher, TlsMode, TlsRoute, ValueMatcher, Via,
};

use super::{ClusterIds, auth, external_auth, global_rate_limit, policy, reachable};
use crate::diagnostic::{Location, Report, Wrong, ticked};
use crate::raw::{RawPath, RawRoute, RawTo, RawValue};
use crate::read::{Keyed, Located, Many, Named, NamedEntry, OneOrMany};
use crate::text::{ClaimName, CookieName, GrpcName, HeaderName, Label, Pattern, QueryName, RouteName};

/// Characters of a name made from conditions. The name is a label of metrics.
const NAME_CHARS_MAX: usize = 128;

/// What a route takes from its listener if it says nothing else.
#[derive(Default)]
pub struct Inherited {
    pub auth: Option<Arc<Auth>>,
    pub external_auth: Option<Arc<ExternalAuth>>,
    pub global_rate_limit: Option<Arc<GlobalRateLimit>>,
    pub via: Option<Arc<Via>>,
}

/// Lowers the routes of one listener. Routes that could not be read are left out, and the report has them.
pub fn routes(
    raw: &Located<Many<RawRoute>>,
    inherited: &Inherited,
    base: &Path,
    ids: &ClusterIds,
    report: &mut Report,
) -> Vec<Route> {
    let Inherited { auth, external_auth, global_rate_limit, via } = inherited;
    let mut names = Names::of(&raw.value.0, report);
    let mut routes = Vec::with_capacity(raw.value.0.len());
    let mut locations = Vec::with_capacity(raw.value.0.len());
    for raw in &raw.value.0 {
        if let Some(mut route) = route(&raw.value, base, &mut names, ids, report) {
            route.policy.auth = auth::auth(&raw.value.auth, auth.as_ref(), base, report);
            if let Some(claims) = &raw.value.claims {
                check_claims(claims.location, &raw.value, auth.as_ref(), report);
            }
            route.policy.external_auth =
                external_auth::external_auth(&raw.value.external_auth, external_auth.as_ref(), ids, report);
            route.policy.global_rate_limit = global_rate_limit::global_rate_limit(
                &raw.value.global_rate_limit,
                global_rate_limit.as_ref(),
                ids,
                report,
            );
            route.policy.via = super::via::via(&raw.value.via, via.as_ref(), report);
            check_satisfy(&raw.value, &route.policy, report);
            let RoutePolicy { auth, global_rate_limit, .. } = &*route.policy;
            let limit = global_rate_limit.as_ref();
            global_rate_limit::check_claims(&raw.value.global_rate_limit, limit, auth.as_ref(), report);
            routes.push(route);
            locations.push(raw.location);
        }
    }
    // Only in a file without errors so far: a condition that could not be read is missing here, and its route would seem to take every
    // request.
    if report.is_empty() {
        reachable::report_unreachable(&routes, &locations, report);
    }
    routes
}

/// Lowers the routes of a TLS listener: names and their clusters. `mode` is that of a route without `passthrough`.
pub fn by_name(raw: &Located<Many<RawRoute>>, mode: TlsMode, ids: &ClusterIds, report: &mut Report) -> Vec<TlsRoute> {
    let route = |raw: &Located<RawRoute>, report: &mut Report| {
        let to = raw.value.to.as_ref()?;
        let RawTo::One(name) = &to.value else {
            let wrong =
                Wrong::new("a TLS listener cannot split traffic between clusters").hint("name one cluster in `to`");
            report.add(to.location, wrong);
            return None;
        };
        let to = ids.find(&Located { location: to.location, value: name.clone() }, report)?;
        let passes = raw.value.passthrough.as_ref().is_some_and(|flag| flag.value.0);
        let mode = if passes { TlsMode::Passthrough } else { mode };
        Some(TlsRoute { sni: listed(&raw.value.sni, |host| host.0.clone()), to, mode })
    };
    raw.value.0.iter().filter_map(|raw| route(raw, report)).collect()
}

/// The route that takes every request.
pub fn catch_all(to: ClusterId) -> Route {
    Route::to_all("/", RouteAction::from(to))
}

fn route(raw: &RawRoute, base: &Path, names: &mut Names, ids: &ClusterIds, report: &mut Report) -> Option<Route> {
    let path = match &raw.path {
        Some(path) => path_matcher(&path.value),
        None => Some(PathMatcher::Prefix("/".to_owned())),
    };
    let to = policy::target(raw, path.as_ref(), base, ids, report);
    if let Some(grpc) = &raw.grpc {
        check_grpc(raw, grpc, ids, report);
    }
    // The target may be wrong, but the other errors are still worth reporting.
    let mut route = Route::to_all("/", to.clone().unwrap_or(RouteAction::Clusters(Vec::new())));
    route.hosts = listed(&raw.hosts, |host| host.0.clone());
    route.path = path?;
    route.policy = policy::policy(raw, &route.path, base, ids, report).into();
    to?;
    if !route.policy.own_headers.is_empty() {
        let all = std::mem::take(&mut route.policy.own_headers);
        route.change_all_responses(&all);
    }
    route.methods = listed(&raw.methods, |method| method.0.clone());
    if let Some(grpc) = &raw.grpc {
        let GrpcName(grpc) = &grpc.value;
        route.path = grpc_path(grpc);
        route.methods = vec!["POST".to_owned()];
        route.grpc = Some(grpc.clone());
    }
    route.headers = matchers(&raw.headers, |HeaderName(name)| name);
    route.cookies = matchers(&raw.cookies, |CookieName(name)| name);
    route.query = matchers(&raw.query, |QueryName(name)| name);
    route.claims = matchers(&raw.claims, |ClaimName(name)| name);
    route.timeout = raw.timeout.as_ref().map(|timeout| timeout.value.0);
    route.name = match &raw.name {
        Some(name) => name.value.0.clone(),
        None => names.make(&route, raw.path.as_ref().map(|path| &path.value)),
    };
    Some(route)
}

/// One of several is enough only where there are several.
fn check_satisfy(raw: &RawRoute, policy: &RoutePolicy, report: &mut Report) {
    let Some(satisfy) = raw.satisfy.as_ref().filter(|_| policy.satisfy == Satisfy::Any) else { return };
    let has = [!policy.addresses.allow.is_empty(), policy.auth.is_some(), policy.external_auth.is_some()];
    if has.into_iter().filter(|has| *has).count() < 2 {
        let wrong =
            Wrong::new("`satisfy: any` needs two of `allow`, `auth` and `external_auth`, one of which is enough");
        report.add(satisfy.location, wrong.hint("add one of them, or remove `satisfy`"));
    }
    if let Some(claims) = &raw.claims {
        let wrong = Wrong::new(
            "`claims` has no place beside `satisfy: any`: they are those of a token, and an address may be enough",
        );
        report.add(claims.location, wrong.hint("remove one of the two"));
    }
}

/// Claims are those of the token that is read before the route is known, so it is that of the listener.
fn check_claims(location: Location, raw: &RawRoute, inherited: Option<&Arc<Auth>>, report: &mut Report) {
    let (wrong, hint) = match (inherited.map(|auth| &**auth), &raw.auth) {
        (Some(Auth::Jwt(_)), None) => return,
        (Some(Auth::Jwt(_)), Some(_)) => (
            "a route with `claims` demands the token of its listener, and this one has an `auth` of its own",
            "remove `auth` of the route",
        ),
        _ => (
            "`claims` needs a token, and the listener has no `auth` with `jwt`",
            "add `auth: {jwt: ...}` to the listener",
        ),
    };
    report.add(location, Wrong::new(wrong).hint(hint));
}

/// Checks a gRPC route: it must not repeat what `grpc` says about path and method, and its cluster must be able to speak gRPC.
fn check_grpc(raw: &RawRoute, grpc: &Located<GrpcName>, ids: &ClusterIds, report: &mut Report) {
    for key in raw.written() {
        let wrong = match key.key {
            "path" | "methods" => Wrong::new(format!(
                "`grpc` already sets the path and the method, and this route also has `{}`",
                key.key
            )),
            "query" => Wrong::new("a gRPC call has no query"),
            _ => continue,
        };
        report.add(key.location, wrong.hint("remove it"));
    }
    let to: Vec<&Label> = match raw.to.as_ref().map(|to| &to.value) {
        None => Vec::new(),
        Some(RawTo::One(name)) => vec![name],
        Some(RawTo::Split(shares)) => {
            shares.0.iter().filter_map(|share| Some(&share.value.cluster.as_ref()?.value)).collect()
        }
    };
    for Label(name) in to.into_iter().filter(|name| ids.speaks_h1(name)) {
        report.add(grpc.location, speaks_no_grpc(name));
    }
    let mirrors = raw.mirror.iter().flat_map(|mirrors| &mirrors.value.0).filter_map(|mirror| mirror.value.to.as_ref());
    for Located { location, value } in mirrors.filter(|to| ids.speaks_h1(&to.value)) {
        report.add(*location, speaks_no_grpc(&value.0));
    }
    let hint = "name the cluster that serves the calls with `to`";
    if let Some(redirect) = &raw.redirect {
        report.add(redirect.location, Wrong::new("gRPC clients do not follow redirects").hint(hint));
    }
    if let Some(respond) = &raw.respond {
        report.add(respond.location, Wrong::new("a fixed response is no answer to a gRPC call").hint(hint));
    }
}

fn speaks_no_grpc(cluster: &str) -> Wrong {
    let name = ticked(cluster);
    Wrong::new(format!("gRPC needs HTTP/2, and the cluster {name} speaks h1"))
        .hint(format!("give {name} `protocol: h2c`, or `protocol: h2` with `tls`"))
}

/// The path of a call (gRPC over HTTP2, section "Requests"): `/package.Service/Method`.
fn grpc_path(grpc: &GrpcMatcher) -> PathMatcher {
    match &grpc.method {
        Some(method) => PathMatcher::Exact(format!("/{}/{method}", grpc.service)),
        None => PathMatcher::Prefix(format!("/{}/", grpc.service)),
    }
}

/// The values of a key that takes one value or a list; empty if the key was not written.
pub fn listed<T, M>(raw: &Option<Located<OneOrMany<T>>>, model: impl Fn(&T) -> M) -> Vec<M> {
    raw.iter().flat_map(|many| &many.value.0).map(|one| model(&one.value)).collect()
}

fn path_matcher(raw: &RawPath) -> Option<PathMatcher> {
    match raw {
        RawPath::Text(prefix) => Some(PathMatcher::Prefix(prefix.0.clone())),
        RawPath::Object(object) => match (&object.exact, &object.regex) {
            (Some(exact), _) => Some(PathMatcher::Exact(exact.value.0.clone())),
            (None, Some(regex)) => Some(PathMatcher::Regex(regex.value.regex.clone())),
            (None, None) => None,
        },
    }
}

fn matchers<K>(raw: &Option<Located<Named<K, RawValue>>>, name: impl Fn(&K) -> &String) -> Vec<ValueMatcher> {
    raw.iter().flat_map(|named| &named.value.0).filter_map(|entry| condition(entry, &name)).collect()
}

fn condition<K>(entry: &NamedEntry<K, RawValue>, name: impl Fn(&K) -> &String) -> Option<ValueMatcher> {
    Some(ValueMatcher { name: name(&entry.name).clone(), value: matcher(entry.value.as_ref()?)? })
}

/// Returns `None` if its keys could not be read; the report says why.
pub fn matcher(raw: &RawValue) -> Option<TextMatcher> {
    Some(match raw {
        RawValue::Text(text) => TextMatcher::Exact(text.0.clone()),
        RawValue::Object(object) => match (&object.regex, &object.present) {
            (Some(regex), _) => TextMatcher::Regex(regex.value.regex.clone()),
            (None, Some(_)) => TextMatcher::Present,
            (None, None) => return None,
        },
    })
}

/// The names of a listener's routes. Given names take precedence, and generated names are changed to avoid them.
struct Names {
    /// Each name, and how often it was requested.
    taken: HashMap<String, usize>,
}

impl Names {
    fn of(routes: &[Located<RawRoute>], report: &mut Report) -> Self {
        let mut first: HashMap<&str, Location> = HashMap::new();
        for name in routes.iter().filter_map(|route| route.value.name.as_ref()) {
            let RouteName(text) = &name.value;
            if let Some(first) = first.get(text.as_str()) {
                let hint = format!("the first is at line {}", first.line);
                report.add(name.location, Wrong::new(format!("two routes have the name {}", ticked(text))).hint(hint));
            } else {
                first.insert(text, name.location);
            }
        }
        Self { taken: first.into_keys().map(|name| (name.to_owned(), 1)).collect() }
    }

    fn make(&mut self, route: &Route, path: Option<&RawPath>) -> String {
        let wanted: String = conditions(route, path).chars().take(NAME_CHARS_MAX).collect();
        let mut name = wanted.clone();
        loop {
            if !self.taken.contains_key(&name) {
                self.taken.insert(name.clone(), 1);
                return name;
            }
            let asked = self.taken.entry(wanted.clone()).or_insert(1);
            *asked += 1;
            name = format!("{wanted}#{asked}");
        }
    }
}

/// `GET shop.example.com/api/ x-canary= ?v=`; `grpc shop.example.com/shop.Cart/Add`; `/` where there are none.
///
/// Metrics, logs and `status` show the name to people who must not learn what requests have to bring, so it has no values.
fn conditions(route: &Route, path: Option<&RawPath>) -> String {
    let mut name = String::new();
    if route.grpc.is_some() {
        name.push_str("grpc ");
    } else if !route.methods.is_empty() {
        name = format!("{} ", route.methods.join(","));
    }
    if let Some(host) = route.hosts.first() {
        name.push_str(&host.to_string());
    }
    if route.hosts.len() > 1 {
        name.push_str(&format!("+{}", route.hosts.len() - 1));
    }
    match path {
        None => match &route.grpc {
            Some(GrpcMatcher { service, method: Some(method) }) => name.push_str(&format!("/{service}/{method}")),
            Some(GrpcMatcher { service, method: None }) => name.push_str(&format!("/{service}/")),
            None => name.push('/'),
        },
        Some(RawPath::Text(prefix)) => name.push_str(&prefix.0),
        Some(RawPath::Object(object)) => match (&object.exact, &object.regex) {
            (Some(exact), _) => name.push_str(&format!("={}", exact.value.0)),
            (None, Some(regex)) => name.push_str(&format!("~{}", source(&regex.value))),
            (None, None) => {}
        },
    }
    for (prefix, matchers) in
        [(" ", &route.headers), (" cookie:", &route.cookies), (" ?", &route.query), (" claim:", &route.claims)]
    {
        for matcher in matchers {
            let value = match &matcher.value {
                TextMatcher::Exact(_) => "=",
                TextMatcher::Regex(_) | TextMatcher::JoinedRegex(_) => "~",
                TextMatcher::Present => "",
            };
            name.push_str(&format!("{prefix}{}{value}", matcher.name));
        }
    }
    name
}

/// A regular expression may span several lines, but a name may not.
fn source(pattern: &Pattern) -> String {
    pattern.source.chars().filter(|c| !c.is_control()).collect()
}

//! Translates a rule of an HTTPRoute or a GRPCRoute: conditions here, filters in `filter`.

use model::{
    Auth, ClusterId, GrpcMatcher, PathMatcher, Retry, Route, RouteAction, TextMatcher, Transport, ValueMatcher,
    WeightedCluster,
};
use regex::Regex;

use super::cluster::Clusters;
use super::filter;
use super::reference::{self, duration};
use super::regexes::Regexes;
use super::route::Made;
use super::traffic::{Asked, Policies, Scope};
use crate::index::{Index, Name, RouteKind};
use crate::objects::{
    BackendRef, GrpcMatch, GrpcMethod, GrpcRule, HttpFilter, HttpMatch, HttpRule, PathMatch, RetrySpec, SessionSpec,
    Text, Timeouts, ValueMatch,
};

/// The kinds of routes that an HTTP listener serves.
pub(crate) const HTTP_KINDS: &[RouteKind] = &[RouteKind::Http, RouteKind::Grpc];

/// Features that the controller claims (`pkg/features` of the Gateway API v1.6). Each of them is implemented completely. `UDPRoute` is
/// added if there is a kernel plane.
pub(crate) const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayInfrastructure",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeMixed",
    "TLSRouteModeTerminate",
];

/// The same, if the HTTPRoutes of the cluster have the fields of the experimental channel. Otherwise the API server drops `retry`.
pub(crate) const EXPERIMENTAL_FEATURES: &[&str] =
    &["HTTPRouteRetry", "HTTPRouteRetryBackendTimeout", "HTTPRouteRetryConnectionError"];

/// The largest weight in the model.
const WEIGHT_MAX: u32 = 1_000_000;

/// A gRPC call is recognised by its content type (gRPC over HTTP2, section "Requests").
const GRPC_CONTENT_TYPE: &str = r"\Aapplication/grpc(?:[+;].*)?\z";

/// The translation of a rule.
pub(crate) struct Lowering<'t> {
    pub(crate) index: &'t Index,
    pub(crate) kind: RouteKind,
    pub(crate) name: &'t Name,
    /// The number of the rule.
    pub(crate) place: usize,
    /// How many addresses it is served at.
    pub(crate) places: usize,
    /// The name of the routes, without the number of the match.
    pub(crate) label: String,
    pub(crate) made: &'t mut Made,
    pub(crate) clusters: &'t mut Clusters,
    pub(crate) regexes: &'t mut Regexes,
    pub(crate) policies: &'t Policies<'t>,
    /// The policies of the rule.
    pub(crate) scope: Scope,
    /// The cluster without endpoints.
    pub(crate) nowhere: ClusterId,
    /// The service that decides about the requests of the rule cannot be asked, so none is served.
    pub(crate) is_closed: bool,
}

/// The routes of a rule of an HTTPRoute, one for each of its matches, without hosts. If the rule asks for something that is not supported,
/// they answer 500, as the API demands of filters: another rule might let its requests through without what this one would do to them.
///
/// # Errors
/// Returns a sentence if its matches are not supported. Then it is not known which requests are meant.
pub(crate) fn http(rule: &HttpRule, with: &mut Lowering<'_>) -> Result<Vec<Route>, String> {
    let all = http_rule(rule, with);
    let everything = [HttpMatch::default()];
    let matches = if rule.matches.is_empty() { &everything[..] } else { &rule.matches };
    with.numbered(all, matches, http_match)
}

/// A route with everything that the rule says except its matches.
fn http_rule(rule: &HttpRule, with: &mut Lowering<'_>) -> Result<Route, String> {
    if let Some(field) = rule.others.keys().next() {
        return Err(format!("`{field}` is not supported"));
    }
    let mut all = with.everything(&rule.filters, &rule.backend_refs, rule.session_persistence.as_deref())?;
    if with.is_closed {
        return Ok(with.closed());
    }
    // What the rule itself says comes after its policies, but a rule whose policies cannot be applied is not served.
    if with.apply(rule.matches.len(), &mut all) {
        if let Some(wanted) = &rule.retry {
            all.policy.retry = retry(wanted)?;
        }
        timeouts(rule.timeouts.as_ref(), &mut all)?;
    }
    Ok(all)
}

/// The routes of a rule of a GRPCRoute, as [`http`].
///
/// # Errors
/// As [`http`].
pub(crate) fn grpc(rule: &GrpcRule, with: &mut Lowering<'_>) -> Result<Vec<Route>, String> {
    let all = grpc_rule(rule, with);
    let everything = [GrpcMatch::default()];
    let matches = if rule.matches.is_empty() { &everything[..] } else { &rule.matches };
    with.numbered(all, matches, grpc_match)
}

fn grpc_rule(rule: &GrpcRule, with: &mut Lowering<'_>) -> Result<Route, String> {
    if let Some(field) = rule.others.keys().next() {
        return Err(format!("`{field}` is not supported"));
    }
    let mut all = with.everything(&rule.filters, &rule.backend_refs, rule.session_persistence.as_deref())?;
    with.apply(rule.matches.len(), &mut all);
    Ok(all)
}

impl Lowering<'_> {
    /// A route for each of the matches, made of `all`. If that is what is wrong with the rule, they answer 500.
    fn numbered<M>(
        &mut self,
        all: Result<Route, String>,
        matches: &[M],
        put: fn(&M, &mut Route, &mut Regexes) -> Result<(), String>,
    ) -> Result<Vec<Route>, String> {
        let (all, wrong) = match all {
            Ok(all) => (all, None),
            Err(why) => (self.closed(), Some(why)),
        };
        let one = |(place, wanted): (usize, &M)| {
            let mut route = Route { name: format!("{}.{place}", all.name), ..all.clone() };
            put(wanted, &mut route, self.regexes)?;
            Ok(route)
        };
        let routes = matches.iter().enumerate().map(one).collect::<Result<_, String>>()?;
        self.made.dropped.extend(wrong.map(|why| self.told_closed(&why)));
        Ok(routes)
    }

    fn told_closed(&self, why: &str) -> String {
        format!("rule {}: {why}; its requests get 500", self.place)
    }

    /// A route that takes every request, with its clusters and filters.
    fn everything(
        &mut self,
        filters: &[HttpFilter],
        backends: &[BackendRef],
        session: Option<&SessionSpec>,
    ) -> Result<Route, String> {
        let mut route = Route::to_all(self.label.clone(), RouteAction::Clusters(Vec::new()));
        for wanted in filters {
            filter::put(wanted, &mut route, self)?;
        }
        if matches!(route.to, RouteAction::Redirect(_)) {
            return Ok(route);
        }
        if let Some(wanted) = session {
            let session = filter::session(wanted, &own_session_name(&self.label))?;
            self.clusters.set_session(Some(session));
        }
        let clusters = self.backends(backends, &mut route);
        self.clusters.set_session(None);
        let mut clusters = clusters?;
        if let [WeightedCluster { changes, .. }] = clusters.as_mut_slice() {
            // What the sole backend changes, the rule changes.
            if let Some(changes) = changes.take() {
                route.policy.changes = *changes;
            }
        }
        if clusters.iter().all(|weighted| weighted.weight == 0) {
            let cluster = self.clusters.of(self.index, Vec::new())?;
            clusters = vec![WeightedCluster { cluster, weight: 1, changes: None }];
            route.policy.mirrors.retain(|mirror| mirror.only.is_none());
        }
        route.to = RouteAction::Clusters(clusters);
        filter::check_cors(&route)?;
        Ok(route)
    }

    fn backends(&mut self, backends: &[BackendRef], route: &mut Route) -> Result<Vec<WeightedCluster>, String> {
        let mut clusters = Vec::with_capacity(backends.len());
        for (place, backend) in backends.iter().enumerate() {
            // A backend that cannot be resolved keeps its share: its requests get an error and are not sent to the others.
            let cluster = self.cluster(backend)?;
            let weight = backend.weight.unwrap_or(1).min(WEIGHT_MAX);
            let changes = filter::of_backend(&backend.filters, place, route, self)?.map(Box::new);
            clusters.push(WeightedCluster { cluster, weight, changes });
        }
        Ok(clusters)
    }

    /// A route whose requests get 500.
    fn closed(&self) -> Route {
        Route::to_all(self.label.clone(), self.nowhere.into())
    }

    /// The cluster of a service that is asked about requests. If the reference cannot be resolved, the rule is closed.
    pub(crate) fn auth_cluster(&mut self, backend: &BackendRef, is_grpc: bool) -> Result<Option<ClusterId>, String> {
        let share = reference::asked(self.index, self.kind.name(), &self.name.namespace, backend, is_grpc);
        let Some(share) = self.made.note(share) else {
            self.is_closed = true;
            return Ok(None);
        };
        self.asked_cluster(share).map(Some)
    }

    /// The policies of the rule are for its backends, and not for the service that is asked.
    fn asked_cluster(&mut self, share: super::cluster::Share) -> Result<ClusterId, String> {
        let policies = self.clusters.set_policies(Default::default());
        let cluster = self.clusters.of(self.index, vec![share]);
        self.clusters.set_policies(policies);
        cluster
    }

    /// Puts the clusters of the Services that policies name into a route: `of_filter` has its own external authorization already.
    fn put_services(&mut self, of_filter: bool, route: &mut Route) -> Result<(), String> {
        if let Some(policy) = route.policy.external_auth.clone().filter(|_| !of_filter) {
            let (number, share) = self.policies.asked(self.index, &self.scope, Asked::Authorization)?;
            self.made.services.insert(share.service.clone());
            let to = self.asked_cluster(share)?;
            route.policy.external_auth = Some(self.policies.authorizing(number, to, &policy));
        }
        if let Some(policy) = route.policy.global_rate_limit.clone() {
            let demands_token = route.policy.auth.as_ref().is_some_and(|auth| matches!(**auth, Auth::Jwt(_)));
            if let (Some(claim), false) = (policy.claims().next(), demands_token) {
                return Err(format!(
                    "globalRateLimit of a TrafficPolicy counts by the claim {claim}, and no policy of the rule demands a token"
                ));
            }
            let (number, share) = self.policies.asked(self.index, &self.scope, Asked::RateLimit)?;
            self.made.services.insert(share.service.clone());
            let to = self.asked_cluster(share)?;
            route.policy.global_rate_limit = Some(self.policies.counting(number, to, &policy));
        }
        Ok(())
    }

    /// Puts the policies of the rule over a route that has its filters. Returns whether that is possible.
    fn apply(&mut self, matches: usize, route: &mut Route) -> bool {
        let of_filter = route.policy.external_auth.is_some();
        let mut outcome = self.policies.apply(&self.scope, self.nowhere, matches.max(1) * self.places, route);
        if outcome.is_ok() {
            outcome = self.put_services(of_filter, route);
            if outcome.is_err() {
                *route = self.closed();
            }
        }
        if let Err(why) = &outcome {
            self.made.dropped.push(self.told_closed(why));
        }
        outcome.is_ok()
    }

    /// The cluster of a backend. If the reference cannot be resolved, the cluster has no endpoints.
    pub(crate) fn cluster(&mut self, backend: &BackendRef) -> Result<ClusterId, String> {
        let share = reference::backend(self.index, self.kind.name(), &self.name.namespace, backend, Transport::Tcp);
        let share = self.made.note(share).map(|share| super::cluster::Share { weight: 1, ..share });
        self.clusters.of(self.index, share.into_iter().collect())
    }
}

/// The name of the session of a rule that gives it none. It must differ from those of other rules, because one client may use several.
fn own_session_name(label: &str) -> String {
    // FNV-1a: the same from every replica and every version.
    let hash = label
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("steelyard-{hash:016x}")
}

fn http_match(wanted: &HttpMatch, route: &mut Route, regexes: &mut Regexes) -> Result<(), String> {
    if let Some(field) = wanted.others.keys().next() {
        return Err(format!("`{field}` in matches is not supported"));
    }
    if let Some(matcher) = &wanted.path {
        route.path = path(matcher, regexes)?;
    }
    route.methods = wanted.method.iter().map(ToString::to_string).collect();
    route.headers = headers(&wanted.headers, regexes)?;
    let query = |matcher: &ValueMatch| value(matcher, matcher.name.to_string(), regexes);
    route.query = firsts(&wanted.query_params, str::to_owned).map(query).collect::<Result<_, _>>()?;
    Ok(())
}

fn grpc_match(wanted: &GrpcMatch, route: &mut Route, regexes: &mut Regexes) -> Result<(), String> {
    if let Some(field) = wanted.others.keys().next() {
        return Err(format!("`{field}` in matches is not supported"));
    }
    route.methods = vec!["POST".to_owned()];
    route.headers = headers(&wanted.headers, regexes)?;
    let method = wanted.method.clone().unwrap_or_default();
    let GrpcMethod { kind, service, method } = method;
    let (service, method) = (service.filter(|text| !text.is_empty()), method.filter(|text| !text.is_empty()));
    match (kind.as_deref().unwrap_or("Exact"), service, method) {
        ("Exact", Some(service), method) => {
            route.path = match &method {
                Some(method) => PathMatcher::Exact(format!("/{service}/{method}")),
                None => PathMatcher::Prefix(format!("/{service}/")),
            };
            route.grpc = Some(GrpcMatcher { service, method });
        }
        ("Exact" | "RegularExpression", None, None) => route.headers.push(is_grpc()?),
        (kind @ ("Exact" | "RegularExpression"), service, method) => {
            let part = |text: Option<String>| match text {
                None => "[^/]+".to_owned(),
                Some(text) if kind == "Exact" => ::regex::escape(&text),
                Some(text) => format!("(?:{text})"),
            };
            let (service, method) = (part(service), part(method));
            route.path = PathMatcher::Regex(regexes.anchored(&format!("/{service}/{method}"))?);
            route.headers.push(is_grpc()?);
        }
        (other, ..) => return Err(format!("the method type {other} is not supported")),
    }
    Ok(())
}

fn is_grpc() -> Result<ValueMatcher, String> {
    let value = Regex::new(GRPC_CONTENT_TYPE).map_err(|error| error.to_string())?;
    Ok(ValueMatcher { name: "content-type".to_owned(), value: TextMatcher::Regex(value) })
}

fn headers(wanted: &[ValueMatch], regexes: &mut Regexes) -> Result<Vec<ValueMatcher>, String> {
    let header = |matcher: &ValueMatch| value(matcher, matcher.name.to_ascii_lowercase(), regexes);
    firsts(wanted, str::to_ascii_lowercase).map(header).collect()
}

/// If there are several conditions on one name, the API says that the first one counts.
fn firsts(matches: &[ValueMatch], key: fn(&str) -> String) -> impl Iterator<Item = &ValueMatch> {
    let mut seen = std::collections::BTreeSet::new();
    matches.iter().filter(move |matcher| seen.insert(key(&matcher.name)))
}

fn path(wanted: &PathMatch, regexes: &mut Regexes) -> Result<PathMatcher, String> {
    let value = wanted.value.as_deref().unwrap_or("/");
    Ok(match wanted.kind.as_deref().unwrap_or("PathPrefix") {
        "PathPrefix" => PathMatcher::Prefix(value.to_owned()),
        "Exact" => PathMatcher::Exact(value.to_owned()),
        "RegularExpression" => PathMatcher::Regex(regexes.anchored(value)?),
        other => return Err(format!("the path type {other} is not supported")),
    })
}

fn value(wanted: &ValueMatch, name: String, regexes: &mut Regexes) -> Result<ValueMatcher, String> {
    let value = match wanted.kind.as_deref().unwrap_or("Exact") {
        "Exact" => TextMatcher::Exact(wanted.value.to_string()),
        "RegularExpression" => TextMatcher::Regex(regexes.anchored(&wanted.value)?),
        other => return Err(format!("the match type {other} is not supported")),
    };
    Ok(ValueMatcher { name, value })
}

/// The retries of a rule. Connection errors and timeouts are retried whichever codes are named, as GEP-1731 wants it. A method that is not
/// idempotent is retried only if no endpoint can have acted on it.
fn retry(wanted: &RetrySpec) -> Result<Retry, String> {
    if let Some(field) = wanted.others.keys().next() {
        return Err(format!("`{field}` in retry is not supported"));
    }
    let mut retry = Retry { on_timeout: true, same_endpoint: true, ..Retry::default() };
    if let Some(attempts) = wanted.attempts {
        let max = Retry::ATTEMPTS_MAX;
        retry.attempts = u32::try_from(attempts)
            .ok()
            .filter(|attempts| (1..=max).contains(attempts))
            .ok_or_else(|| format!("the retry has {attempts} attempts; write a number from 1 to {max}"))?;
    }
    for code in &wanted.codes {
        let status = u16::try_from(*code).ok().filter(|status| (400..=599).contains(status));
        let status = status.ok_or_else(|| format!("the retry has the code {code}; write codes from 400 to 599"))?;
        retry.on_statuses.push((status, status));
    }
    if let Some(text) = &wanted.backoff {
        retry.backoff = duration(text)?;
        if retry.backoff > Retry::BACKOFF_MAX {
            return Err(format!(
                "the backoff of the retry is {text}; the longest is {}s",
                Retry::BACKOFF_MAX.as_secs()
            ));
        }
    }
    Ok(retry)
}

/// Zero means no limit.
fn timeouts(wanted: Option<&Timeouts>, route: &mut Route) -> Result<(), String> {
    let Some(wanted) = wanted else { return Ok(()) };
    let of = |text: &Option<Text>| text.as_deref().map(duration).transpose();
    if let Some(timeout) = of(&wanted.request)? {
        route.timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
    }
    if let Some(timeout) = of(&wanted.backend_request)? {
        route.policy.retry.per_try_timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
    }
    Ok(())
}

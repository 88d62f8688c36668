//! The policies of routes, and sticky sessions.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use model::{
    Changes, CookieScope, Cors, CorsNames, CorsOrigins, Fallback, FieldValue, HeaderChanges, IngressNginxSessions,
    InterceptErrors, Mirror, PathMatcher, PathRewrite, Redirect, Retry, Rewrite, RouteAction, RoutePolicy, SameSite,
    Satisfy, Secret, Sticky, StickyToken, Variable, WeightedCluster,
};

use super::{
    ClusterIds, addresses, bandwidth, compression, limits, request_body, respond, response_rewrite, template, tls,
    tracing, via,
};
use crate::defaults;
use crate::diagnostic::{Location, Report, Wrong, ticked};
use crate::raw::{
    AffinityMode, RawCors, RawFallback, RawHeaderChanges, RawInterceptErrors, RawMirror, RawRedirect, RawRetry,
    RawRetryObject, RawRewrite, RawRoute, RawShare, RawSticky, RawTo,
};
use crate::read::{Keyed, Located, Named, NamedEntry, OneOrMany};
use crate::text::{
    AllowedOrigin, ChangedHeader, CorsName, HeaderTemplate, HeaderValue, HttpPath, Label, RetryOn, duration_text,
};

/// The most clusters in one split. Gateway API allows 16.
const SHARES_MAX: usize = 32;

/// The most mirrors of one route. Each adds one more copy of every request.
const MIRRORS_MAX: usize = 4;

/// The most origins of one route. Gateway API allows as many. Each request is compared with all of them.
const ORIGINS_MAX: usize = 64;

/// What the route does with its requests. Returns `None` if the report says why.
///
/// `path` is `None` if it is wrong.
pub fn target(
    raw: &RawRoute,
    path: Option<&PathMatcher>,
    base: &Path,
    ids: &ClusterIds,
    report: &mut Report,
) -> Option<RouteAction> {
    if let Some(redirect) = &raw.redirect {
        refuse_what_no_endpoint_gets("redirect", raw, report);
        return self::redirect(redirect, path, report).map(RouteAction::Redirect);
    }
    if let Some(respond) = &raw.respond {
        refuse_what_no_endpoint_gets("respond", raw, report);
        return Some(RouteAction::Respond(respond::fixed(&respond.value, base, report)));
    }
    let to = raw.to.as_ref()?;
    match &to.value {
        RawTo::One(name) => {
            ids.find(&Located { location: to.location, value: name.clone() }, report).map(RouteAction::from)
        }
        RawTo::Split(shares) => {
            // The report gets what is wrong with the changes of the route in `policy`.
            let mut ignored = Report::default();
            let of_route = changes(&raw.request_headers, &raw.response_headers, &raw.rewrite, path, &mut ignored);
            split(&shares.0, &of_route, path, to.location, ids, report).map(RouteAction::Clusters)
        }
    }
}

fn split(
    raw: &[Located<RawShare>],
    of_route: &Changes,
    path: Option<&PathMatcher>,
    location: Location,
    ids: &ClusterIds,
    report: &mut Report,
) -> Option<Vec<WeightedCluster>> {
    if raw.len() > SHARES_MAX {
        report.add(location, Wrong::new(format!("`to` has {} clusters; the limit is {SHARES_MAX}", raw.len())));
    }
    let mut first: HashMap<&str, Location> = HashMap::new();
    let mut shares = Vec::with_capacity(raw.len());
    for raw in raw {
        let Some(name) = &raw.value.cluster else { continue };
        let Label(text) = &name.value;
        if let Some(first) = first.insert(text, name.location) {
            let hint = format!("the first is at line {}; to send it more traffic, raise its weight", first.line);
            report.add(name.location, Wrong::new(format!("{} is given twice in `to`", ticked(text))).hint(hint));
        }
        let weight = raw.value.weight.as_ref().map(|weight| u32::try_from(weight.value.0).unwrap_or(u32::MAX));
        let RawShare { request_headers, response_headers, rewrite, .. } = &raw.value;
        let own = changes(request_headers, response_headers, rewrite, path, report);
        let changes = (own != Changes::default()).then(|| Box::new(of_route.with(&own)));
        if let Some(cluster) = ids.find(name, report) {
            shares.push(WeightedCluster { cluster, weight: weight.unwrap_or(defaults::WEIGHT), changes });
        }
    }
    if shares.len() == raw.len() && shares.iter().all(|share| share.weight == 0) {
        let hint = "no cluster would get a request; give at least one a weight above 0";
        report.add(location, Wrong::new("every cluster of `to` has weight 0").hint(hint));
    }
    (shares.len() == raw.len()).then_some(shares)
}

/// Refuses keys that are about an endpoint beside an action that has none.
pub fn refuse_what_no_endpoint_gets(action: &str, raw: &RawRoute, report: &mut Report) {
    let keys = [
        "timeout",
        "retry",
        "mirror",
        "intercept_errors",
        "fallback",
        "request_headers",
        "response_headers",
        "rewrite",
        "rewrite_responses",
    ];
    for written in raw.written().iter().filter(|written| keys.contains(&written.key)) {
        let wrong = Wrong::new(format!("`{}` has no effect beside `{action}`", written.key));
        report.add(written.location, wrong.hint("Steelyard answers by itself, and no endpoint sees the request"));
    }
}

fn redirect(raw: &Located<RawRedirect>, path: Option<&PathMatcher>, report: &mut Report) -> Option<Redirect> {
    let Located { location, value: raw } = raw;
    let parts = ["scheme", "host", "port", "path", "path_prefix"];
    let is_written = |key: &str| raw.written().iter().any(|written| written.key == key);
    if !is_written("to") && !parts.iter().any(|part| is_written(part)) {
        let wrong = Wrong::new("a redirect needs `to`, `scheme`, `host`, `port`, `path` or `path_prefix`");
        report.add(*location, wrong.hint("with none of them, it would redirect to the same URL"));
        return None;
    }
    for written in raw.written().iter().filter(|written| is_written("to") && parts.contains(&written.key)) {
        let wrong = Wrong::new(format!("a redirect has both `{}` and `to`", written.key));
        report.add(written.location, wrong.hint("put it into `to`, or replace `to` by the separate keys"));
    }
    let status = raw.status.as_ref().map_or(defaults::REDIRECT_STATUS, |status| status.value.0);
    let is_relative = raw.relative.as_ref().is_some_and(|flag| flag.value.0);
    for key in ["to", "scheme", "host", "port"].into_iter().filter(|key| is_relative && is_written(key)) {
        let wrong = Wrong::new(format!("a relative redirect has no `{key}`"));
        report.add(*location, wrong.hint("write `path` or `path_prefix`, or remove `relative`"));
    }
    if let Some(to) = &raw.to {
        let url = &to.value;
        let to_path = match &url.path {
            Some(to_path) => Some(replaced(to_path, to.location, path?, report)?),
            None => None,
        };
        return Some(Redirect {
            scheme: Some(url.scheme),
            host: Some(url.host.clone()),
            port: url.port,
            path: to_path,
            status,
            is_relative: false,
        });
    }
    Some(Redirect {
        scheme: raw.scheme.as_ref().map(|scheme| scheme.value.0),
        host: raw.host.as_ref().map(|host| host.value.0.clone()),
        port: raw.port.as_ref().and_then(|port| u16::try_from(port.value.0).ok()),
        path: path_rewrite(
            raw.path.as_ref().map(|full| (full.value.0.as_str(), full.location)),
            &raw.path_prefix,
            "a redirect",
            path,
            report,
        ),
        status,
        is_relative,
    })
}

/// Lowers the other policies of a route with this path.
pub fn policy(raw: &RawRoute, path: &PathMatcher, base: &Path, ids: &ClusterIds, report: &mut Report) -> RoutePolicy {
    let redirect_prefix = raw.redirect.as_ref().and_then(|redirect| redirect.value.path_prefix.as_ref());
    let rewrites = raw.rewrite.iter().chain(shares(raw).filter_map(|share| share.rewrite.as_ref()));
    let rewrite_prefixes = rewrites.filter_map(|rewrite| rewrite.value.path_prefix.as_ref());
    for prefix in redirect_prefix.into_iter().chain(rewrite_prefixes) {
        if !matches!(path, PathMatcher::Prefix(_)) {
            let wrong =
                Wrong::new("`path_prefix` replaces the prefix that the route matches, and this route matches none");
            report.add(prefix.location, wrong.hint("write `path`, or give the route a prefix: `path: /api/`"));
        }
    }
    RoutePolicy {
        client_cert: raw.client_cert.as_ref().map(|rule| Arc::new(tls::client_cert(&rule.value, report))),
        addresses: addresses::rules(&raw.allow, &raw.deny, report),
        mirrors: mirrors(raw, ids, report),
        retry: raw.retry.as_ref().map_or_else(Retry::default, |retry| self::retry(&retry.value, raw, report)),
        changes: changes(&raw.request_headers, &raw.response_headers, &raw.rewrite, Some(path), report),
        // Those of the responses of endpoints follow when the route is complete.
        own_headers: raw.all_response_headers.as_ref().map(|raw| header_changes(raw, report)).unwrap_or_default(),
        response_rewrite: response_rewrite::response_rewrite(&raw.rewrite_responses, report),
        rate_limit: raw.rate_limit.as_ref().and_then(|limit| limits::rate_limit(&limit.value, report)),
        concurrency_limit: raw
            .concurrency_limit
            .as_ref()
            .and_then(|limit| limits::concurrency_limit(&limit.value, report)),
        response_bandwidth: bandwidth::of_responses(raw, report),
        cors: raw.cors.as_ref().and_then(|written| cors(&written.value, raw, report)).map(Box::new),
        compression: raw.compress.as_ref().map(|written| Box::new(compression::compression(written, raw, report))),
        body_bytes_max: request_body::body_bytes_max(raw, report),
        request_body: request_body::request_body(raw, report).map(Box::new),
        via: via::alone(&raw.via),
        // That of the listener may apply.
        auth: None,
        satisfy: raw.satisfy.as_ref().map_or(Satisfy::All, |satisfy| satisfy.value.0),
        external_auth: None,
        global_rate_limit: None,
        intercept_errors: raw.intercept_errors.as_ref().map(|raw| Box::new(intercept_errors(&raw.value, ids, report))),
        fallback: raw.fallback.as_ref().and_then(|raw| fallback(&raw.value, ids, report)).map(Box::new),
        tracing: raw.tracing.as_ref().map(|raw| Arc::new(tracing::route(&raw.value, report))),
        is_unlogged: raw.access_log.as_ref().is_some_and(|flag| !flag.value.0),
        maintenance: raw.maintenance.as_ref().is_some_and(|flag| flag.value.0),
        error_pages: respond::error_pages(&raw.error_pages, base, report),
    }
}

/// The shares of a split; none if there is only one cluster.
fn shares(raw: &RawRoute) -> impl Iterator<Item = &RawShare> {
    let shares = match raw.to.as_ref().map(|to| &to.value) {
        Some(RawTo::Split(shares)) => shares.0.as_slice(),
        Some(RawTo::One(_)) | None => &[],
    };
    shares.iter().map(|share| &share.value)
}

fn changes(
    request_headers: &Option<Located<RawHeaderChanges>>,
    response_headers: &Option<Located<RawHeaderChanges>>,
    rewrite: &Option<Located<RawRewrite>>,
    path: Option<&PathMatcher>,
    report: &mut Report,
) -> Changes {
    let headers = |raw: &Option<Located<RawHeaderChanges>>, report: &mut Report| {
        raw.as_ref().map_or_else(HeaderChanges::default, |raw| header_changes(raw, report))
    };
    refuse_endpoint(request_headers, report);
    Changes {
        request_headers: headers(request_headers, report),
        response_headers: headers(response_headers, report),
        rewrite: rewrite.as_ref().map_or_else(Rewrite::default, |rewrite| self::rewrite(rewrite, path, report)),
    }
}

/// Returns `None` if a required key is missing or wrong; the report says so.
fn cors(raw: &RawCors, route: &RawRoute, report: &mut Report) -> Option<Cors> {
    let own = shares(route).filter_map(|share| share.response_headers.as_ref());
    let of_route =
        [("response_headers", &route.response_headers), ("all_response_headers", &route.all_response_headers)];
    let of_route = of_route.into_iter().filter_map(|(key, changes)| Some((key, changes.as_ref()?)));
    for (key, changes) in of_route.chain(own.map(|changes| ("response_headers", changes))) {
        let named = |named: &Option<Located<Named<ChangedHeader, HeaderTemplate>>>| -> Vec<String> {
            named.iter().flat_map(|named| &named.value.0).map(|entry| entry.name.0.clone()).collect()
        };
        let set = named(&changes.value.set).into_iter().chain(named(&changes.value.add));
        for name in set.filter(|name| Cors::decides(name)) {
            let wrong = Wrong::new(format!("both `cors` and `{key}` decide {}", ticked(&name)));
            report.add(changes.location, wrong.hint("remove it here: `cors` replaces what the endpoint says"));
        }
    }
    if let Some(age) = &raw.max_age
        && age.value.0.subsec_nanos() != 0
    {
        let wrong = Wrong::new(format!("`max_age` ({}) is not a number of whole seconds", duration_text(age.value.0)));
        report.add(age.location, wrong.hint("browsers count in whole seconds: write 1s or more"));
    }
    let origins = raw.origins.as_ref()?;
    if origins.value.0.len() > ORIGINS_MAX {
        let message = format!("`origins` has {} entries; the limit is {ORIGINS_MAX}", origins.value.0.len());
        report
            .add(origins.location, Wrong::new(message).hint("write `https://*.example.com` for all hosts of a domain"));
    }
    let is_any = origins.value.0.iter().any(|origin| origin.value.0 == AllowedOrigin::Any);
    if is_any && origins.value.0.len() > 1 {
        let wrong = Wrong::new("`origins` has `*` beside others");
        report.add(origins.location, wrong.hint("`*` alone stands for every origin"));
    }
    let matchers = origins.value.0.iter().filter_map(|origin| match &origin.value.0 {
        AllowedOrigin::Any => None,
        AllowedOrigin::These(matcher) => Some(matcher.clone()),
    });
    Some(Cors {
        origins: if is_any { CorsOrigins::Any } else { CorsOrigins::These(matchers.collect()) },
        credentials: raw.credentials.as_ref().is_some_and(|flag| flag.value.0),
        methods: cors_names(&raw.methods, "methods", report),
        headers: cors_names(&raw.headers, "headers", report),
        expose: cors_names(&raw.expose, "expose", report),
        max_age: raw.max_age.as_ref().map_or(defaults::CORS_MAX_AGE, |age| age.value.0),
    })
}

fn cors_names(raw: &Option<Located<OneOrMany<CorsName>>>, key: &str, report: &mut Report) -> CorsNames {
    let Some(raw) = raw else { return CorsNames::NONE };
    let names: Vec<String> = raw.value.0.iter().map(|name| name.value.0.clone()).collect();
    let is_any = names.iter().any(|name| name == "*");
    if is_any && names.len() > 1 {
        let wrong = Wrong::new(format!("`{key}` has `*` beside others"));
        report.add(raw.location, wrong.hint("`*` alone stands for all of them"));
    }
    if is_any { CorsNames::Any } else { CorsNames::These(names) }
}

fn mirrors(raw: &RawRoute, ids: &ClusterIds, report: &mut Report) -> Vec<Mirror> {
    let Some(written) = &raw.mirror else { return Vec::new() };
    let mirrors = &written.value.0;
    if mirrors.len() > MIRRORS_MAX {
        let message = format!("a route has {} mirrors; the limit is {MIRRORS_MAX}", mirrors.len());
        report.add(written.location, Wrong::new(message));
    }
    let mirror = |raw: &Located<RawMirror>, report: &mut Report| {
        let to = ids.find(raw.value.to.as_ref()?, report)?;
        let percent = raw.value.percent.as_ref().map_or(100, |percent| percent.value.0);
        let host = raw.value.host.as_ref().map(|host| host.value.0.clone());
        Some(Mirror { to, host, share: percent as f64 / 100.0, only: None })
    };
    mirrors.iter().filter_map(|raw| mirror(raw, report)).collect()
}

fn intercept_errors(raw: &RawInterceptErrors, ids: &ClusterIds, report: &mut Report) -> InterceptErrors {
    respond::refuse_successes(&raw.statuses, "errors have statuses from 400 to 599", report);
    let of_backend = [
        ("path", raw.path.as_ref().map(|it| it.location)),
        ("request_headers", raw.request_headers.as_ref().map(|it| it.location)),
        ("timeout", raw.timeout.as_ref().map(|it| it.location)),
        ("endpoints", raw.endpoints.as_ref().filter(|flag| !flag.value.0).map(|it| it.location)),
    ];
    for (key, location) in of_backend.into_iter().filter_map(|(key, location)| Some((key, location?))) {
        if raw.to.is_none() {
            let wrong = Wrong::new(format!("`{key}` has no effect without `to`"));
            report.add(location, wrong.hint("name the cluster that is asked, or remove it"));
        }
    }
    InterceptErrors {
        statuses: super::route::listed(&raw.statuses, |status| (status.0, status.1)),
        of_endpoints: raw.endpoints.as_ref().is_none_or(|flag| flag.value.0),
        to: raw.to.as_ref().and_then(|to| ids.find(to, report)),
        path: raw.path.as_ref().map_or(defaults::ERROR_PATH, |path| &path.value.0).to_owned(),
        request_headers: own_headers(&raw.request_headers, report),
        timeout: raw.timeout.as_ref().map_or(defaults::ERROR_TIMEOUT, |timeout| timeout.value.0),
    }
}

/// Returns `None` if the report says why.
fn fallback(raw: &RawFallback, ids: &ClusterIds, report: &mut Report) -> Option<Fallback> {
    let request_headers = own_headers(&raw.request_headers, report);
    Some(Fallback { to: ids.find(raw.to.as_ref()?, report)?, request_headers })
}

fn own_headers(raw: &Option<Located<RawHeaderChanges>>, report: &mut Report) -> HeaderChanges {
    refuse_endpoint(raw, report);
    raw.as_ref().map_or_else(HeaderChanges::default, |raw| header_changes(raw, report))
}

fn retry(raw: &RawRetry, route: &RawRoute, report: &mut Report) -> Retry {
    let raw: &RawRetryObject = match raw {
        RawRetry::Text(_off) => return Retry::off(),
        RawRetry::Object(object) => object,
    };
    // An operator who asks for retries wants them even if there is a single endpoint.
    let mut retry = Retry { same_endpoint: true, ..Retry::default() };
    if let Some(attempts) = &raw.attempts {
        retry.attempts = u32::try_from(attempts.value.0).unwrap_or(u32::MAX);
    }
    if let Some(on) = &raw.on {
        retry.on_connect_failure = false;
        retry.on_reset = false;
        for on in &on.value.0 {
            match on.value {
                RetryOn::ConnectFailure => retry.on_connect_failure = true,
                RetryOn::Reset => retry.on_reset = true,
                RetryOn::Timeout => retry.on_timeout = true,
                RetryOn::Statuses(first, last) => retry.on_statuses.push((first, last)),
                RetryOn::Grpc(code) => retry.on_grpc.push(code),
            }
        }
    }
    retry.non_idempotent = raw.non_idempotent.as_ref().is_some_and(|flag| flag.value.0);
    if let Some(budget) = &raw.budget {
        retry.budget = budget.value.0;
    }
    retry.per_try_timeout = raw.per_try_timeout.as_ref().map(|timeout| timeout.value.0);
    retry.within = raw.within.as_ref().map(|within| within.value.0);
    if let Some(backoff) = &raw.backoff {
        retry.backoff = backoff.value.0;
        if retry.backoff > Retry::BACKOFF_MAX {
            let (written, max) = (duration_text(retry.backoff), duration_text(Retry::BACKOFF_MAX));
            let wrong = Wrong::new(format!("`backoff` ({written}) is longer than {max}"));
            report.add(backoff.location, wrong.hint("shorten it: the client waits that long before each retry"));
        }
    }
    if let (Some(per_try), Some(timeout)) = (&raw.per_try_timeout, &route.timeout)
        && per_try.value.0 >= timeout.value.0
    {
        let message =
            format!("`per_try_timeout` is not shorter than the route's `timeout` ({})", duration_text(timeout.value.0));
        report.add(per_try.location, Wrong::new(message).hint("shorten it: there would be no time for another try"));
    }
    retry
}

/// Names of headers with their values.
pub fn pairs(named: &Option<Located<Named<ChangedHeader, HeaderValue>>>) -> Vec<(String, String)> {
    let entries = named.iter().flat_map(|named| &named.value.0);
    let pair =
        |entry: &NamedEntry<ChangedHeader, HeaderValue>| Some((entry.name.0.clone(), entry.value.as_ref()?.0.clone()));
    entries.filter_map(pair).collect()
}

fn values(named: &Option<Located<Named<ChangedHeader, HeaderTemplate>>>) -> Vec<(String, FieldValue)> {
    let entries = named.iter().flat_map(|named| &named.value.0);
    entries.filter_map(|entry| Some((entry.name.0.clone(), entry.value.as_ref()?.0.clone()))).collect()
}

/// The variables in all changes of headers of a route, each with the place of its mapping.
pub fn variables(route: &RawRoute) -> impl Iterator<Item = (Location, Variable)> {
    let own = shares(route).flat_map(|share| [&share.request_headers, &share.response_headers]);
    let all = [&route.request_headers, &route.response_headers, &route.all_response_headers].into_iter().chain(own);
    all.flatten().flat_map(|changes| changed(&changes.value))
}

fn changed(changes: &RawHeaderChanges) -> impl Iterator<Item = (Location, Variable)> {
    [&changes.set, &changes.add].into_iter().flatten().flat_map(|named| {
        let values = named.value.0.iter().filter_map(|entry| entry.value.as_ref());
        values.flat_map(|value| value.0.variables()).map(|variable| (named.location, variable))
    })
}

/// Refuses what is not known when the head of a request is written: a retry sends the same head to another endpoint.
fn refuse_endpoint(raw: &Option<Located<RawHeaderChanges>>, report: &mut Report) {
    for (location, _) in raw.iter().flat_map(|raw| changed(&raw.value)).filter(|(_, used)| *used == Variable::Endpoint)
    {
        let wrong = Wrong::new("`${endpoint}` is not known when the request is written");
        report.add(location, wrong.hint("use it in `response_headers`, or use `${cluster}`"));
    }
}

fn header_changes(raw: &Located<RawHeaderChanges>, report: &mut Report) -> HeaderChanges {
    let changes = HeaderChanges {
        set: values(&raw.value.set),
        add: values(&raw.value.add),
        remove: super::route::listed(&raw.value.remove, |name| name.0.clone()),
    };
    if raw.value.written().is_empty() {
        report.add(raw.location, Wrong::new("a change of headers needs `set`, `add` or `remove`"));
    }
    let mut names: Vec<&String> = changes.set.iter().chain(&changes.add).map(|(name, _)| name).collect();
    names.extend(&changes.remove);
    names.sort_unstable();
    // An operator should not have to know which of two changes comes first.
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let hint = "`set` replaces all fields of the name, `add` adds one, `remove` removes all";
        report.add(raw.location, Wrong::new(format!("the header {} is changed twice", ticked(pair[0]))).hint(hint));
    }
    changes
}

fn rewrite(raw: &Located<RawRewrite>, path: Option<&PathMatcher>, report: &mut Report) -> Rewrite {
    if raw.value.written().is_empty() {
        report.add(raw.location, Wrong::new("a rewrite needs `host`, `path` or `path_prefix`"));
    }
    Rewrite {
        host: raw.value.host.as_ref().map(|host| host.value.0.clone()),
        path: path_rewrite(
            raw.value.path.as_ref().map(|full| (full.value.0.as_str(), full.location)),
            &raw.value.path_prefix,
            "a rewrite",
            path,
            report,
        ),
    }
}

fn path_rewrite(
    full: Option<(&str, Location)>,
    prefix: &Option<Located<HttpPath>>,
    noun: &str,
    matched: Option<&PathMatcher>,
    report: &mut Report,
) -> Option<PathRewrite> {
    match (full, prefix) {
        (Some(_), Some(prefix)) => {
            let wrong = Wrong::new(format!("{noun} has both `path_prefix` and `path`"));
            report.add(prefix.location, wrong.hint("keep one of them"));
            None
        }
        (Some((full, location)), None) => replaced(full, location, matched?, report),
        (None, Some(prefix)) => Some(PathRewrite::Prefix(prefix.value.0.clone())),
        (None, None) => None,
    }
}

/// The rewrite of a whole path. Returns `None` if it names groups that the route does not have; the report says so.
fn replaced(text: &str, location: Location, matched: &PathMatcher, report: &mut Report) -> Option<PathRewrite> {
    template::full_path(text, matched).map_err(|wrong| report.add(location, wrong)).ok()
}

/// Returns `None` if it has no valid cookie; the report says why.
pub fn sticky(raw: &RawSticky, report: &mut Report) -> Option<Sticky> {
    if let Some(ttl) = &raw.ttl
        && ttl.value.0.as_secs() == 0
    {
        let wrong = Wrong::new(format!("`ttl` ({}) is less than a second", duration_text(ttl.value.0)));
        report.add(ttl.location, wrong.hint("cookies count their age in whole seconds: write 1s or more"));
    }
    if let (Some(_), None, Some(ttl)) = (&raw.header, &raw.cookie, &raw.ttl) {
        let wrong = Wrong::new("`ttl` has no effect on a header: the client decides how long it sends it");
        report.add(ttl.location, wrong.hint("remove `ttl`, or use `cookie`"));
    }
    let token = match (&raw.cookie, &raw.header) {
        (Some(cookie), _) => StickyToken::Cookie(cookie.value.0.clone()),
        (None, Some(header)) => StickyToken::Header(header.value.0.clone()),
        (None, None) => return None,
    };
    cookie_only(raw, report);
    let scope = CookieScope {
        path: raw.path.as_ref().map(|path| path.value.0.clone()),
        domain: raw.domain.as_ref().map(|domain| domain.value.0.clone()),
        same_site: raw.same_site.as_ref().map_or(SameSite::Lax, |same_site| same_site.value.0),
        is_secure: raw.secure.as_ref().is_some_and(|secure| secure.value.0),
    };
    Some(Sticky {
        token,
        ttl: raw.ttl.as_ref().map(|ttl| ttl.value.0),
        secret: raw.secret.as_ref().map(|secret| Secret(secret.value.0.clone())),
        scope,
        ingress_nginx: raw.ingress_nginx.as_ref().and_then(|raw| {
            let mode = raw.value.mode.as_ref().map_or(AffinityMode::Balanced, |mode| mode.value.0);
            let backend = raw.value.backend.as_ref()?.value.0.clone();
            Some(IngressNginxSessions { backend, is_persistent: mode == AffinityMode::Persistent })
        }),
    })
}

/// Reports what says more about a cookie, where there is none or where it has no effect.
fn cookie_only(raw: &RawSticky, report: &mut Report) {
    if let Some(path) = &raw.path
        && path.value.0.contains(';')
    {
        report.add(path.location, Wrong::new("a `;` ends the path of a cookie").hint("write the path up to it"));
    }
    if let (Some(sessions), Some(_)) = (&raw.ingress_nginx, &raw.secret) {
        let wrong = Wrong::new("cookies of ingress-nginx have no `secret`");
        report.add(sessions.location, wrong.hint("remove one of both"));
    }
    if raw.cookie.is_some() || raw.header.is_none() {
        return;
    }
    let found = [
        ("path", raw.path.as_ref().map(|it| it.location)),
        ("domain", raw.domain.as_ref().map(|it| it.location)),
        ("same_site", raw.same_site.as_ref().map(|it| it.location)),
        ("secure", raw.secure.as_ref().map(|it| it.location)),
        ("ingress_nginx", raw.ingress_nginx.as_ref().map(|it| it.location)),
    ];
    for (key, location) in found.into_iter().filter_map(|(key, location)| Some((key, location?))) {
        report.add(
            location,
            Wrong::new(format!("`{key}` is about a cookie, not a header")).hint("remove it, or use `cookie`"),
        );
    }
}

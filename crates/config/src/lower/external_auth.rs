//! External authorization.

use std::sync::Arc;

use model::{
    AnswerHeaders, AuthBody, AuthCache, AuthCacheKey, AuthCacheTtl, AuthProtocol, AuthTarget, ClusterId, ExternalAuth,
    GrpcAuth, HttpAuth, RequestPart, SetCookie, SignIn,
};

use super::inherited::{self, or_inherited};
use super::route::listed;
use super::{ClusterIds, count, positive};
use crate::defaults;
use crate::diagnostic::{Report, Wrong, ticked};
use crate::raw::{RawAuthCache, RawExternalAuth, RawExternalAuthObject, RawHttpAuth, RawSignIn};
use crate::read::{Flag, Located, NamedEntry};
use crate::text::{ChangedHeader, RequestTemplate, duration_text};

/// The most names in one of its lists. Each is compared with every field of a request or an answer.
const NAMES_MAX: usize = 32;

/// The service that is asked about the requests of a listener or a route. A route that says nothing takes that of its listener.
pub fn external_auth(
    raw: &Option<Located<RawExternalAuth>>,
    inherited: Option<&Arc<ExternalAuth>>,
    ids: &ClusterIds,
    report: &mut Report,
) -> Option<Arc<ExternalAuth>> {
    or_inherited("external_auth", raw, inherited, report, |object, report| service(object, ids, report))
}

/// What one policy says. `off` is for routes that would otherwise take that of a less specific policy.
pub fn alone(
    raw: &Option<Located<RawExternalAuth>>,
    ids: &ClusterIds,
    report: &mut Report,
) -> Option<Arc<ExternalAuth>> {
    inherited::alone(raw, report, |object, report| service(object, ids, report))
}

/// A service that is asked in this way, with the defaults of the file for everything else.
pub fn usual_external_auth(to: ClusterId, protocol: AuthProtocol) -> ExternalAuth {
    ExternalAuth {
        to,
        protocol,
        timeout: defaults::EXTERNAL_AUTH_TIMEOUT,
        fail_open: false,
        failure_status: defaults::EXTERNAL_AUTH_STATUS,
        request_headers: None,
        response_headers: AnswerHeaders::Named(Vec::new()),
        refusal_headers: defaults::REFUSAL_HEADERS.map(str::to_owned).into(),
        set_cookie: SetCookie::Off,
        is_403_bare: false,
        body: None,
        cache: None,
        sign_in: None,
    }
}

/// Returns `None` if a required key is missing; the report says so.
fn service(raw: &RawExternalAuthObject, ids: &ClusterIds, report: &mut Report) -> Option<ExternalAuth> {
    let to = raw.to.as_ref().and_then(|to| ids.find(to, report));
    if let (Some(grpc), Some(to)) = (&raw.grpc, &raw.to)
        && ids.speaks_h1(&to.value)
    {
        let name = ticked(&to.value.0);
        let wrong = Wrong::new(format!("the cluster {name} speaks HTTP/1.1, and a gRPC service needs HTTP/2"));
        report.add(grpc.location, wrong.hint(format!("add `protocol: h2` to {name}")));
    }
    let protocol = match (&raw.http, &raw.grpc) {
        (Some(http), _) => Some(AuthProtocol::Http(by_http(&http.value, report))),
        (None, Some(grpc)) => {
            let context = grpc.value.context.iter().flat_map(|context| &context.value.0);
            let pairs = context.filter_map(|entry| Some((entry.name.0.clone(), entry.value.as_ref()?.0.clone())));
            let host = grpc.value.host.as_ref().map(|host| host.value.0.clone());
            Some(AuthProtocol::Grpc(GrpcAuth { host, context: pairs.collect() }))
        }
        (None, None) => None,
    };
    let response_headers = listed(&raw.response_headers, |name| name.0.clone());
    for name in raw.response_headers.iter().flat_map(|names| &names.value.0) {
        refuse_cookie(name, report);
    }
    let refusal_headers = match &raw.refusal_headers {
        Some(_) => listed(&raw.refusal_headers, |name| name.0.clone()),
        None => defaults::REFUSAL_HEADERS.map(str::to_owned).into(),
    };
    let request_headers = raw.request_headers.as_ref().map(|_| listed(&raw.request_headers, |name| name.0.clone()));
    let headers = raw.http.as_ref().and_then(|http| http.value.headers.as_ref());
    let lists = [
        ("headers", headers.map(|list| (list.location, list.value.0.len()))),
        ("request_headers", raw.request_headers.as_ref().map(|list| (list.location, list.value.0.len()))),
        ("response_headers", raw.response_headers.as_ref().map(|list| (list.location, list.value.0.len()))),
        ("refusal_headers", raw.refusal_headers.as_ref().map(|list| (list.location, list.value.0.len()))),
    ];
    for (key, list) in lists {
        if let Some((location, length)) = list.filter(|(_, length)| *length > NAMES_MAX) {
            report.add(location, Wrong::new(format!("`{key}` has {length} names; the limit is {NAMES_MAX}")));
        }
    }
    let body = raw.body.as_ref().and_then(|body| {
        let bytes_max = count(body.value.bytes.as_ref()?.value.0);
        Some(AuthBody { bytes_max, partial: is_set(&body.value.partial) })
    });
    refuse_body(raw, report);
    if let (Some(set_cookie), Some(_)) = (&raw.set_cookie, &raw.grpc) {
        let wrong = Wrong::new("`set_cookie` has no effect beside `grpc`: cookies are those of an answer over HTTP");
        report.add(set_cookie.location, wrong.hint("remove it"));
    }
    let cache = raw.cache.as_ref().and_then(|written| cache(written, raw, report));
    let status = raw.failure_status.as_ref().map_or(defaults::EXTERNAL_AUTH_STATUS, |status| {
        u16::try_from(status.value.0).unwrap_or(defaults::EXTERNAL_AUTH_STATUS)
    });
    Some(ExternalAuth {
        to: to?,
        protocol: protocol?,
        timeout: positive(&raw.timeout, defaults::EXTERNAL_AUTH_TIMEOUT),
        fail_open: is_set(&raw.fail_open),
        failure_status: status,
        request_headers,
        response_headers: AnswerHeaders::Named(response_headers),
        refusal_headers,
        set_cookie: raw.set_cookie.as_ref().map_or(SetCookie::Off, |when| when.value.0),
        is_403_bare: false,
        body,
        cache,
        sign_in: raw.sign_in.as_ref().and_then(|written| sign_in(&written.value, report)),
    })
}

fn by_http(raw: &RawHttpAuth, report: &mut Report) -> HttpAuth {
    let headers = raw.headers.iter().flat_map(|headers| &headers.value.0);
    let header = |entry: &NamedEntry<ChangedHeader, RequestTemplate>| {
        Some((entry.name.0.clone(), entry.value.as_ref()?.0.clone().into()))
    };
    HttpAuth {
        target: target(raw, report),
        method: raw.method.as_ref().map(|method| method.value.0),
        host: raw.host.as_ref().map(|host| host.value.0.clone()),
        headers: headers.filter_map(header).collect(),
        query: raw.query.as_ref().map_or_else(Box::default, |query| query.value.0.clone().into()),
    }
}

fn target(raw: &RawHttpAuth, report: &mut Report) -> AuthTarget {
    let Some(prefix) = &raw.prefix else {
        return AuthTarget::Path(raw.path.as_ref().map_or("/", |path| &path.value.0).to_owned());
    };
    let beside = [
        ("path", raw.path.as_ref().map(|path| path.location)),
        ("method", raw.method.as_ref().map(|method| method.location)),
        ("query", raw.query.as_ref().map(|query| query.location)),
    ];
    for (name, location) in beside {
        if let Some(location) = location {
            let wrong = Wrong::new(format!("`{name}` has no effect beside `prefix`"));
            report.add(location, wrong.hint("remove one of the two"));
        }
    }
    AuthTarget::Prefix(prefix.value.0.trim_end_matches('/').to_owned())
}

/// Returns `None` if the URL is missing; the report says so.
fn sign_in(raw: &RawSignIn, report: &mut Report) -> Option<SignIn> {
    let param = raw.param.as_ref().map_or(defaults::SIGN_IN_PARAM, |param| &param.value.0).to_owned();
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if let Some(written) = raw.param.as_ref().filter(|_| param.is_empty() || !param.bytes().all(is_name)) {
        let wrong = Wrong::new(format!("{} is not the name of a parameter of a URL", ticked(&param)));
        report.add(written.location, wrong.hint("use letters, digits and `-._~`"));
    }
    let url = raw.url.as_ref()?;
    if sends_back_anywhere(&url.value.0, &param) {
        let wrong = Wrong::new(format!("clients could choose where {} leads", ticked(&param)));
        report
            .add(url.location, wrong.hint("use no variables in it but ${scheme}, ${host}, ${authority} and ${target}"));
    }
    Some(SignIn { url: url.value.0.clone().into(), param, path_only: is_set(&raw.path_only) })
}

/// Whether the parameter that leads back from the page has what anyone can write into a link, or have a client send.
fn sends_back_anywhere(url: &[RequestPart], param: &str) -> bool {
    let shown = |part: &RequestPart| match part {
        RequestPart::Text(text) => text.clone(),
        RequestPart::Scheme | RequestPart::Host | RequestPart::Authority | RequestPart::Target => String::new(),
        _ => "\n".to_owned(),
    };
    let url: String = url.iter().map(shown).collect();
    let pairs = url.split_once('?').map_or("", |(_, query)| query).split('&');
    pairs.filter_map(|pair| pair.split_once('=')).any(|(name, value)| name == param && value.contains('\n'))
}

/// With some methods no question has a body.
fn refuse_body(raw: &RawExternalAuthObject, report: &mut Report) {
    let method = raw.http.as_ref().and_then(|http| http.value.method.as_ref());
    if let (Some(method), Some(_)) = (method, &raw.body)
        && !method.value.0.has_body()
    {
        let name = method.value.0.name();
        let wrong = Wrong::new(format!("a question by {name} has no body, and `body` wants to send one"));
        report.add(method.location, wrong.hint("write `method: POST`, or remove one of the two"));
    }
}

/// The service would never see the cookies that it decides by.
fn refuse_cookie(name: &Located<ChangedHeader>, report: &mut Report) {
    if name.value.0 == "cookie" {
        let wrong = Wrong::new("`response_headers` has `cookie`, which only clients send");
        report.add(name.location, wrong.hint("let the service use another header"));
    }
}

/// Returns `None` if a required key is missing; the report says so.
fn cache(written: &Located<RawAuthCache>, of: &RawExternalAuthObject, report: &mut Report) -> Option<AuthCache> {
    if let Some(body) = &of.body {
        let wrong = Wrong::new(
            "`cache` has no effect beside `body`: an answer depends on the body, which is no part of the key",
        );
        report.add(body.location, wrong.hint("remove one of the two"));
    }
    let key = cache_key(written, report);
    let ttl = cache_ttl(&written.value, of, report);
    Some(AuthCache { key, ttl: ttl? })
}

fn cache_key(written: &Located<RawAuthCache>, report: &mut Report) -> AuthCacheKey {
    let raw = &written.value;
    let headers = listed(&raw.header, |name| name.0.clone());
    let cookies = listed(&raw.cookie, |name| name.0.clone());
    if let Some(key) = &raw.key {
        let others = [
            ("header", raw.header.as_ref().map(|list| list.location)),
            ("cookie", raw.cookie.as_ref().map(|list| list.location)),
            ("any_request", raw.any_request.as_ref().map(|flag| flag.location)),
        ];
        for (name, location) in others {
            if let Some(location) = location {
                let wrong = Wrong::new(format!("`{name}` has no effect beside `key`"));
                report.add(location, wrong.hint("remove one of the two"));
            }
        }
        return AuthCacheKey::Template(key.value.0.clone().into());
    }
    if headers.is_empty() && cookies.is_empty() {
        let wrong = Wrong::new("the cache does not say what its answers depend on");
        report.add(written.location, wrong.hint("add `header: authorization` or `cookie: NAME_OF_THE_SESSION`"));
    }
    if headers.len() + cookies.len() > NAMES_MAX {
        let (found, max) = (headers.len() + cookies.len(), NAMES_MAX);
        report.add(written.location, Wrong::new(format!("the key of the cache has {found} names; the limit is {max}")));
    }
    AuthCacheKey::Values { headers, cookies, any_request: is_set(&raw.any_request) }
}

fn cache_ttl(raw: &RawAuthCache, of: &RawExternalAuthObject, report: &mut Report) -> Option<AuthCacheTtl> {
    let max = defaults::EXTERNAL_AUTH_TTL_MAX;
    if let Some(ttl) = &raw.ttl {
        if ttl.value.0 > max {
            let (found, max) = (duration_text(ttl.value.0), duration_text(max));
            report.add(ttl.location, Wrong::new(format!("`ttl` is {found}; the limit is {max}")));
        }
        return Some(AuthCacheTtl::Yes(ttl.value.0));
    }
    let statuses = raw.statuses.as_ref()?;
    if of.grpc.is_some() {
        let wrong = Wrong::new("`statuses` has no effect beside `grpc`: its answers have no status of HTTP");
        report.add(statuses.location, wrong.hint("write `ttl`"));
    }
    let entries = &statuses.value.0;
    if entries.is_empty() || entries.len() > NAMES_MAX {
        let wrong = format!("`statuses` has {} entries; it needs 1 to {NAMES_MAX}", entries.len());
        report.add(statuses.location, Wrong::new(wrong));
    }
    let pairs = entries.iter().filter_map(|entry| Some((entry.name.0, entry.value.as_ref()?.0)));
    let pairs: Vec<_> = pairs.collect();
    if let Some((_, found)) = pairs.iter().find(|(_, ttl)| *ttl > max) {
        let (found, max) = (duration_text(*found), duration_text(max));
        report.add(statuses.location, Wrong::new(format!("`statuses` has {found}; the limit is {max}")));
    }
    Some(AuthCacheTtl::Statuses(pairs))
}

fn is_set(flag: &Option<Located<Flag>>) -> bool {
    flag.as_ref().is_some_and(|flag| flag.value.0)
}

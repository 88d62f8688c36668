//! Filters of rules: changes to requests and responses.
//!
//! The API server accepts values that would end a header or a request line; they are refused here.

use std::sync::Arc;
use std::time::Duration;

use model::{
    AnswerHeaders, AuthBody, AuthProtocol, AuthTarget, Changes, Cors, CorsNames, CorsOrigins, FieldValue, GrpcAuth,
    HeaderChanges, HttpAuth, Mirror, OriginMatcher, PathRewrite, Redirect, Rewrite, Route, RouteAction, Scheme, Sticky,
    StickyToken,
};

use super::lower::Lowering;
use crate::objects::{
    CorsFilter, ExternalAuthFilter, HeaderModifier, HeaderValue, HttpFilter, MirrorFilter, PathModifier,
    RedirectFilter, RewriteFilter, SessionSpec,
};

/// Fields that frame a message, belong to one hop, or name the host. Objects may not set them.
const RESERVED: [&str; 11] = [
    "connection",
    "content-length",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// The default of the API.
const CORS_MAX_AGE_S: u32 = 5;

/// The most origins of a CORS filter, and the most names in one of its lists; the API has the same limits. Requests are compared with all of
/// them.
const CORS_ENTRIES_MAX: usize = 64;

/// The same for a filter ExternalAuth.
const AUTH_ENTRIES_MAX: usize = 64;
/// Letters of the path in front of the client's.
const AUTH_PATH_MAX: usize = 1024;
/// Bytes of a body that is held back for a service; the API cannot ask for more.
const AUTH_BODY_MAX: u32 = 65_535;
/// Letters of the name of a session, as the API has it.
const SESSION_NAME_MAX: usize = 128;

/// Applies a filter to a route.
///
/// # Errors
/// Returns a sentence if it asks for something that is not supported.
pub(crate) fn put(filter: &HttpFilter, route: &mut Route, with: &mut Lowering<'_>) -> Result<(), String> {
    let missing = || format!("the filter {} has no settings", filter.kind);
    match filter.kind.as_str() {
        "RequestMirror" => mirror(filter.request_mirror.as_ref().ok_or_else(missing)?, None, route, with),
        "RequestRedirect" => redirect(filter.request_redirect.as_ref().ok_or_else(missing)?, route),
        "CORS" => {
            let wanted = filter.cors.as_ref().ok_or_else(missing)?;
            route.policy.cors = Some(Box::new(cors(wanted)?));
            Ok(())
        }
        "ExternalAuth" => external_auth(filter.external_auth.as_ref().ok_or_else(missing)?, route, with),
        _ => change(filter, &mut route.policy.changes),
    }
}

/// Applies the filters of the backend at this place of a rule. Returns what changes in its requests and responses, those of the rule
/// included; `None` means nothing but those.
///
/// # Errors
/// As [`put`].
pub(crate) fn of_backend(
    filters: &[HttpFilter],
    place: usize,
    route: &mut Route,
    with: &mut Lowering<'_>,
) -> Result<Option<Changes>, String> {
    let mut own = Changes::default();
    for filter in filters {
        let missing = || format!("the filter {} has no settings", filter.kind);
        match filter.kind.as_str() {
            "RequestMirror" => mirror(filter.request_mirror.as_ref().ok_or_else(missing)?, Some(place), route, with)?,
            "RequestRedirect" => {
                let why = "its requests would never reach the backend";
                return Err(format!(
                    "the filter RequestRedirect on a backendRef is not supported, because {why}: put it in a rule"
                ));
            }
            "ExternalAuth" => {
                let why = "the service is asked before a backend is chosen";
                return Err(format!(
                    "the filter ExternalAuth on a backendRef is not supported, because {why}: put it in the rule"
                ));
            }
            "CORS" => {
                let why = "a preflight request is answered before a backend is chosen";
                return Err(format!(
                    "the filter CORS on a backendRef is not supported, because {why}: put it in the rule"
                ));
            }
            _ => change(filter, &mut own)?,
        }
    }
    Ok((own != Changes::default()).then(|| route.policy.changes.with(&own)))
}

/// Applies a filter that changes requests or responses.
fn change(filter: &HttpFilter, changes: &mut Changes) -> Result<(), String> {
    let missing = || format!("the filter {} has no settings", filter.kind);
    match filter.kind.as_str() {
        "RequestHeaderModifier" => {
            headers(filter.request_header_modifier.as_ref().ok_or_else(missing)?, &mut changes.request_headers)
        }
        "ResponseHeaderModifier" => {
            headers(filter.response_header_modifier.as_ref().ok_or_else(missing)?, &mut changes.response_headers)
        }
        "URLRewrite" => rewrite(filter.url_rewrite.as_ref().ok_or_else(missing)?, &mut changes.rewrite),
        other => Err(format!("the filter {other} is not supported")),
    }
}

/// Whether only one filter of the route says which origins may read its responses.
///
/// # Errors
/// Returns a sentence if several do.
pub(crate) fn check_cors(route: &Route) -> Result<(), String> {
    let RouteAction::Clusters(clusters) = &route.to else { return Ok(()) };
    if route.policy.cors.is_none() {
        return Ok(());
    }
    let changes = clusters.iter().filter_map(|share| share.changes.as_deref()).chain([&route.policy.changes]);
    let mut names =
        changes.flat_map(|changes| changes.response_headers.set.iter().chain(&changes.response_headers.add));
    match names.find(|(name, _)| Cors::decides(name)) {
        Some((name, _)) => Err(format!(
            "both the filter CORS and the filter ResponseHeaderModifier decide {name}: remove it from the latter"
        )),
        None => Ok(()),
    }
}

fn cors(wanted: &CorsFilter) -> Result<Cors, String> {
    let CorsFilter { allow_origins, allow_credentials, allow_methods, allow_headers, expose_headers, max_age } = wanted;
    let lists = [allow_origins, allow_methods, allow_headers, expose_headers];
    if lists.iter().any(|list| list.len() > CORS_ENTRIES_MAX) {
        return Err(format!("a list of the filter CORS has more than {CORS_ENTRIES_MAX} entries"));
    }
    let origin = |text: &String| {
        OriginMatcher::parse(text).ok_or_else(|| {
            format!("{text:?} is not an origin; write it like https://www.example.com, https://*.example.com:8443 or *")
        })
    };
    let origins = match allow_origins.iter().any(|text| text == "*") {
        true => CorsOrigins::Any,
        false => CorsOrigins::These(allow_origins.iter().map(origin).collect::<Result<_, _>>()?),
    };
    let names = |texts: &[String]| -> Result<CorsNames, String> {
        if let Some(wrong) = texts.iter().find(|text| !is_token(text)) {
            return Err(format!("{wrong:?} in the filter CORS is not the name of a method or a header"));
        }
        Ok(if texts.iter().any(|text| text == "*") { CorsNames::Any } else { CorsNames::These(texts.to_vec()) })
    };
    Ok(Cors {
        origins,
        credentials: *allow_credentials,
        methods: names(allow_methods)?,
        headers: names(allow_headers)?,
        expose: names(expose_headers)?,
        max_age: Duration::from_secs(u64::from(max_age.unwrap_or(CORS_MAX_AGE_S))),
    })
}

/// A service that is asked about the requests of the rule. If the reference to it cannot be resolved, the rule is closed.
fn external_auth(wanted: &ExternalAuthFilter, route: &mut Route, with: &mut Lowering<'_>) -> Result<(), String> {
    let ExternalAuthFilter { protocol, backend_ref, grpc, http, forward_body, others } = wanted;
    let within = [http.as_ref().map(|http| &http.others), grpc.as_ref().map(|grpc| &grpc.others)];
    let body_fields = forward_body.as_ref().map(|body| &body.others);
    let unknown =
        within.into_iter().flatten().chain(body_fields).chain([others]).find_map(|others| others.keys().next());
    if let Some(field) = unknown {
        return Err(format!("`{field}` in the filter ExternalAuth is not supported"));
    }
    let names = |written: &[String]| -> Result<Vec<String>, String> {
        if written.len() > AUTH_ENTRIES_MAX {
            return Err(format!("a list of the filter ExternalAuth has more than {AUTH_ENTRIES_MAX} entries"));
        }
        written.iter().map(|written| name(written)).collect()
    };
    let is_grpc = match protocol.as_str() {
        "HTTP" => false,
        "GRPC" => true,
        other => return Err(format!("the protocol {other} of the filter ExternalAuth is not supported")),
    };
    let how = if is_grpc {
        AuthProtocol::Grpc(GrpcAuth { host: None, context: Vec::new() })
    } else {
        let prefix = http.as_ref().map_or("", |http| http.path.as_str());
        AuthProtocol::Http(HttpAuth {
            target: AuthTarget::Prefix(auth_prefix(prefix)?),
            method: None,
            host: None,
            query: [].into(),
            headers: Vec::new(),
        })
    };
    let to = with.auth_cluster(backend_ref, is_grpc)?;
    let Some(to) = to else { return Ok(()) };
    let mut service = config::usual_external_auth(to, how);
    let settings = if is_grpc { grpc } else { http }.clone().unwrap_or_default();
    let mut asked = names(&settings.allowed_headers)?;
    service.request_headers = match (is_grpc, asked.is_empty()) {
        (true, true) => None,
        (true, false) => Some(asked),
        (false, _) => {
            asked.push("authorization".to_owned());
            Some(asked)
        }
    };
    let answered = names(&settings.allowed_response_headers)?;
    service.response_headers = match answered.is_empty() {
        true => AnswerHeaders::All,
        false => AnswerHeaders::Named(answered),
    };
    let bytes = forward_body.as_ref().map_or(0, |body| body.max_size);
    // The API says of a larger body both that it is truncated and that the request is refused. A service that sees a part of what the endpoint
    // gets can be deceived.
    service.body = (bytes > 0).then(|| AuthBody { bytes_max: bytes.min(AUTH_BODY_MAX) as usize, partial: false });
    route.policy.external_auth = Some(Arc::new(service));
    Ok(())
}

/// What is in front of the client's path in the request to a service, without a `/` at its end.
fn auth_prefix(written: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&byte);
    if written.len() > AUTH_PATH_MAX || !written.bytes().all(is_part) {
        return Err(format!("{written:?} in the filter ExternalAuth is not a path"));
    }
    let inner = written.trim_matches('/');
    Ok(if inner.is_empty() { String::new() } else { format!("/{inner}") })
}

/// The session of a rule. `own` is its name if the rule gives it none.
///
/// # Errors
/// Returns a sentence if it asks for something that is not supported.
pub(crate) fn session(wanted: &SessionSpec, own: &str) -> Result<Sticky, String> {
    let SessionSpec { session_name, absolute_timeout, kind, cookie_config, others } = wanted;
    let of_cookie = cookie_config.as_ref().and_then(|config| config.others.keys().next());
    if let Some(field) = others.keys().next().or(of_cookie) {
        return Err(format!("`{field}` in sessionPersistence is not supported"));
    }
    let given = session_name.as_deref().filter(|name| !name.is_empty()).unwrap_or(own);
    if !is_token(given) || given.len() > SESSION_NAME_MAX {
        return Err(format!("the sessionName {given:?} cannot be the name of a cookie or a header"));
    }
    let ttl = absolute_timeout.as_deref().map(super::reference::duration).transpose()?;
    let lifetime = cookie_config.as_ref().and_then(|config| config.lifetime_type.as_deref()).unwrap_or("Session");
    let untracked = "nothing is stored of a session, so its age is not known";
    match (kind.as_deref().unwrap_or("Cookie"), lifetime) {
        ("Cookie", "Session") if ttl.is_some() => Err(format!(
            "absoluteTimeout of a session cookie is not supported ({untracked}); use lifetimeType Permanent"
        )),
        ("Cookie", "Session") => Ok(Sticky::new(StickyToken::Cookie(given.to_owned()))),
        ("Cookie", "Permanent") => match ttl {
            Some(ttl) if ttl.as_secs() > 0 => {
                Ok(Sticky { ttl: Some(ttl), ..Sticky::new(StickyToken::Cookie(given.to_owned())) })
            }
            _ => Err("a cookie with lifetimeType Permanent needs an absoluteTimeout of 1s or more".to_owned()),
        },
        ("Header", _) if ttl.is_some() => {
            Err(format!("absoluteTimeout with the type Header is not supported: {untracked}"))
        }
        ("Header", _) => Ok(Sticky::new(StickyToken::Header(name(given)?))),
        (other, _) => {
            Err(format!("sessionPersistence of the type {other} with the lifetime {lifetime} is not supported"))
        }
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_part)
}

fn headers(wanted: &HeaderModifier, changes: &mut HeaderChanges) -> Result<(), String> {
    let pair = |header: &HeaderValue| {
        let is_text = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        let value = header.value.trim_matches([' ', '\t']);
        if !value.bytes().all(is_text) {
            return Err(format!("the value of {} contains characters that are not allowed in a header", header.name));
        }
        // Literally: the Gateway API knows no variables.
        Ok((name(&header.name)?, FieldValue::from(value)))
    };
    // Of several entries with one name, the API says that the first one counts.
    for (to, headers) in [(&mut changes.set, &wanted.set), (&mut changes.add, &wanted.add)] {
        for header in headers {
            let (name, value) = pair(header)?;
            if to.iter().all(|(known, _)| *known != name) {
                to.push((name, value));
            }
        }
    }
    for removed in &wanted.remove {
        changes.remove.push(name(removed)?);
    }
    Ok(())
}

/// In lower case.
fn name(written: &str) -> Result<String, String> {
    let name = written.to_ascii_lowercase();
    if !is_token(&name) {
        return Err(format!("{written:?} is not a valid header name"));
    }
    if RESERVED.contains(&name.as_str()) {
        return Err(format!(
            "the header {name} cannot be set or removed: it belongs to the connection or names the host"
        ));
    }
    Ok(name)
}

/// `only`: the place of the backend whose requests are copied.
fn mirror(
    wanted: &MirrorFilter,
    only: Option<usize>,
    route: &mut Route,
    with: &mut Lowering<'_>,
) -> Result<(), String> {
    let to = with.cluster(&wanted.backend_ref)?;
    let share = match (wanted.percent, wanted.fraction) {
        (Some(percent), _) => f64::from(percent) / 100.0,
        (None, Some(of)) => f64::from(of.numerator) / f64::from(of.denominator.unwrap_or(100).max(1)),
        (None, None) => 1.0,
    };
    route.policy.mirrors.push(Mirror { to, host: None, share: share.clamp(0.0, 1.0), only });
    Ok(())
}

fn redirect(wanted: &RedirectFilter, route: &mut Route) -> Result<(), String> {
    let scheme = match wanted.scheme.as_deref() {
        None => None,
        Some("http") => Some(Scheme::Http),
        Some("https") => Some(Scheme::Https),
        Some(other) => return Err(format!("the scheme {other} of a redirect is not supported")),
    };
    let status = wanted.status_code.unwrap_or(302);
    if ![301, 302, 303, 307, 308].contains(&status) {
        return Err(format!("the status {status} is not a redirect status"));
    }
    route.to = RouteAction::Redirect(Redirect {
        scheme,
        host: wanted.hostname.as_deref().map(host).transpose()?,
        port: wanted.port,
        path: wanted.path.as_ref().map(path).transpose()?,
        status,
        is_relative: false,
    });
    Ok(())
}

fn rewrite(wanted: &RewriteFilter, to: &mut Rewrite) -> Result<(), String> {
    to.host = wanted.hostname.as_deref().map(host).transpose()?;
    to.path = wanted.path.as_ref().map(path).transpose()?;
    Ok(())
}

fn host(written: &str) -> Result<String, String> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    if written.is_empty() || !written.bytes().all(is_part) {
        return Err(format!("{written:?} is not a host name"));
    }
    Ok(written.to_ascii_lowercase())
}

fn path(wanted: &PathModifier) -> Result<PathRewrite, String> {
    let text = |text: &Option<String>| {
        let text = text.as_deref().unwrap_or_default();
        // An empty value removes the prefix.
        let text = if text.is_empty() { "/" } else { text };
        let is_good = |byte: u8| byte.is_ascii_graphic() && byte != b'?' && byte != b'#';
        match text.starts_with('/') && text.bytes().all(is_good) {
            true => Ok(text.to_owned()),
            false => Err(format!("{text:?} is not a path")),
        }
    };
    match wanted.kind.as_str() {
        "ReplaceFullPath" => Ok(PathRewrite::Full(text(&wanted.replace_full_path)?)),
        "ReplacePrefixMatch" => Ok(PathRewrite::Prefix(text(&wanted.replace_prefix_match)?)),
        other => Err(format!("the path modifier {other} is not supported")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_line_is_refused() {
        let check = |written: &str, is_good: bool| assert_eq!(name(written).is_ok(), is_good, "{written:?}");
        check("X-Edge", true);
        check("x edge", false);
        check("", false);
        check("Host", false);
        check("transfer-encoding", false);
        let check = |value: &str, is_good: bool| {
            let set = vec![HeaderValue { name: "x".into(), value: value.into() }];
            let wanted = HeaderModifier { set, ..HeaderModifier::default() };
            assert_eq!(headers(&wanted, &mut HeaderChanges::default()).is_ok(), is_good, "{value:?}");
        };
        check("a b\tc", true);
        check("a\r\nx: y", false);
        check("a\0", false);
        let check = |text: &str, is_good: bool| {
            let wanted = PathModifier {
                kind: "ReplaceFullPath".into(),
                replace_full_path: Some(text.into()),
                ..PathModifier::default()
            };
            assert_eq!(path(&wanted).is_ok(), is_good, "{text:?}");
        };
        check("/a/b", true);
        check("", true);
        check("a", false);
        check("/a b", false);
        check("/a\r\n", false);
        check("/a?b", false);
    }
}

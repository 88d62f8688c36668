//! Filters of rules: changes to requests and responses.
//!
//! The API server accepts values that would end a header or a request line; they are refused here.

use std::time::Duration;

use model::{
    Changes, Cors, CorsNames, CorsOrigins, FieldValue, HeaderChanges, Mirror, OriginMatcher, PathRewrite, Redirect,
    Rewrite, Route, RouteAction, Scheme,
};

use super::lower::Lowering;
use crate::objects::{
    CorsFilter, HeaderModifier, HeaderValue, HttpFilter, MirrorFilter, PathModifier, RedirectFilter, RewriteFilter,
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
    route.policy.mirrors.push(Mirror { to, share: share.clamp(0.0, 1.0), only });
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

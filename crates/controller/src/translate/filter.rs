//! Filters of rules: changes to requests and responses.
//!
//! The API server accepts values that would end a header or a request line; they are refused here.

use model::{HeaderChanges, Mirror, PathRewrite, Redirect, Route, RouteAction, Scheme};

use super::lower::Lowering;
use crate::objects::{
    HeaderModifier, HeaderValue, HttpFilter, MirrorFilter, PathModifier, RedirectFilter, RewriteFilter,
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

/// Applies a filter to a route.
///
/// # Errors
/// Returns a sentence if it asks for something that is not supported.
pub(crate) fn put(filter: &HttpFilter, route: &mut Route, with: &mut Lowering<'_>) -> Result<(), String> {
    let missing = || format!("the filter {} has no settings", filter.kind);
    match filter.kind.as_str() {
        "RequestHeaderModifier" => {
            headers(filter.request_header_modifier.as_ref().ok_or_else(missing)?, &mut route.policy.request_headers)
        }
        "ResponseHeaderModifier" => {
            headers(filter.response_header_modifier.as_ref().ok_or_else(missing)?, &mut route.policy.response_headers)
        }
        "RequestMirror" => mirror(filter.request_mirror.as_ref().ok_or_else(missing)?, route, with),
        "RequestRedirect" => redirect(filter.request_redirect.as_ref().ok_or_else(missing)?, route),
        "URLRewrite" => rewrite(filter.url_rewrite.as_ref().ok_or_else(missing)?, route),
        other => Err(format!("the filter {other} is not supported")),
    }
}

fn headers(wanted: &HeaderModifier, changes: &mut HeaderChanges) -> Result<(), String> {
    let pair = |header: &HeaderValue| {
        let is_text = |byte: u8| byte == b'\t' || (byte >= b' ' && byte != 0x7f);
        let value = header.value.trim_matches([' ', '\t']);
        if !value.bytes().all(is_text) {
            return Err(format!("the value of {} contains characters that are not allowed in a header", header.name));
        }
        Ok((name(&header.name)?, value.to_owned()))
    };
    for header in &wanted.set {
        changes.set.push(pair(header)?);
    }
    for header in &wanted.add {
        changes.add.push(pair(header)?);
    }
    for removed in &wanted.remove {
        changes.remove.push(name(removed)?);
    }
    Ok(())
}

/// In lower case.
fn name(written: &str) -> Result<String, String> {
    let name = written.to_ascii_lowercase();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("{written:?} is not a valid header name"));
    }
    if RESERVED.contains(&name.as_str()) {
        return Err(format!(
            "the header {name} cannot be set or removed: it belongs to the connection or names the host"
        ));
    }
    Ok(name)
}

fn mirror(wanted: &MirrorFilter, route: &mut Route, with: &mut Lowering<'_>) -> Result<(), String> {
    let to = with.cluster(&wanted.backend_ref)?;
    let share = match (wanted.percent, wanted.fraction) {
        (Some(percent), _) => f64::from(percent) / 100.0,
        (None, Some(of)) => f64::from(of.numerator) / f64::from(of.denominator.unwrap_or(100).max(1)),
        (None, None) => 1.0,
    };
    route.policy.mirrors.push(Mirror { to, share: share.clamp(0.0, 1.0) });
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

fn rewrite(wanted: &RewriteFilter, route: &mut Route) -> Result<(), String> {
    route.policy.rewrite.host = wanted.hostname.as_deref().map(host).transpose()?;
    route.policy.rewrite.path = wanted.path.as_ref().map(path).transpose()?;
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

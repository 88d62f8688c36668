//! The values in the policies of a route: redirect targets, statuses, the failures that are retried, header fields, origins.

use model::{HostMatcher, OriginMatcher, RequestPart, Scheme};

use super::hash;
use super::http::{HeaderName, HostText, HttpPath, Text};
use crate::define::Form;
use crate::diagnostic::{Wrong, nearest, quoted};
use crate::read::Formed;

/// The target of a redirect: `https://shop.example.com`, optionally with a port and a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectUrl {
    pub scheme: Scheme,
    pub host: String,
    pub port: Option<u16>,
    pub path: Option<String>,
}

/// The URL of a page, in the parts between which the host of the request stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignInUrl(pub Vec<RequestPart>);

/// A host without a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainHost(pub String);

/// The status of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedirectStatus(pub u16);

/// A reason to retry a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOn {
    ConnectFailure,
    Reset,
    Timeout,
    /// The first and the last.
    Statuses(u16, u16),
    /// A status of gRPC.
    Grpc(u8),
}

/// The name of a header that may be changed, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedHeader(pub String);

/// The value of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderValue(pub String);

/// An origin whose scripts may use a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginText(pub AllowedOrigin);

/// One origin, several, or all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    Any,
    These(OriginMatcher),
}

/// The name of a method or a header, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsName(pub String);

/// A text in a value of a response that is replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedText(pub String);

/// What replaces it, with its variables and groups; may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacingText(pub String);

/// Bytes of both.
const REPLACED_BYTES_MAX: usize = 1024;

impl Formed for ReplacedText {
    const FORM: Form = Form { noun: "text", example: "http://inner.example.com/", pattern: Some("^[!-~]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text.is_empty() {
            return Err(Wrong::new("the text is empty").hint("write what the values begin with"));
        }
        ReplacingText::parse(text).map(|ReplacingText(text)| Self(text))
    }
}

impl Formed for ReplacingText {
    const FORM: Form = Form { noun: "text", example: "${scheme}://${host}/", pattern: Some("^[!-~]*$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        // It must not end a header, nor a part of one.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            let wrong = Wrong::new(format!("{} has characters other than visible ASCII", quoted(text)));
            return Err(wrong.hint("write spaces and others percent-encoded"));
        }
        if text.len() > REPLACED_BYTES_MAX {
            return Err(Wrong::new(format!("the text has {} bytes; the limit is {REPLACED_BYTES_MAX}", text.len())));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for RedirectUrl {
    const FORM: Form =
        Form { noun: "a URL", example: "https://shop.example.com", pattern: Some(r"^https?://[^/?#\s]+(/[^?#\s]*)?$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || Wrong::new(format!("{} is not a URL to redirect to", quoted(text)));
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => (Scheme::Http, rest),
            Some(("https", rest)) => (Scheme::Https, rest),
            _ if text.starts_with('/') => {
                return Err(wrong().hint("to redirect to another path on the same host, use `path`"));
            }
            _ => return Err(wrong().hint("a URL begins with http:// or https://")),
        };
        if rest.contains(['?', '#']) {
            return Err(wrong().hint("remove `?` and `#`: the client's query is kept"));
        }
        let (authority, path) = match rest.find('/') {
            Some(at) => (&rest[..at], Some(HttpPath::parse(&rest[at..])?.0)),
            None => (rest, None),
        };
        let (host, port) = match authority.rsplit_once(':') {
            // A colon within brackets is part of the address.
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let port = port.map(|port| match port.parse::<u16>() {
            Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
            _ => Err(wrong().hint("a port is a number from 1 to 65535")),
        });
        let PlainHost(host) = PlainHost::parse(host)?;
        Ok(Self { scheme, host, port: port.transpose()?, path })
    }
}

impl Formed for SignInUrl {
    const FORM: Form = Form {
        noun: "a URL",
        example: "https://${host}/oauth2/start",
        pattern: Some(r"^(https?|\$\{scheme\})://[!-~]+$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Text(text) = Text::parse(text)?;
        let wrong = || Wrong::new(format!("{} is not the URL of a page", quoted(&text)));
        let rest = ["https://", "http://", "${scheme}://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let rest = rest.ok_or_else(|| wrong().hint("a URL begins with http:// or https://"))?;
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        if authority.is_empty() || authority.contains('@') {
            return Err(wrong().hint("write the host behind http:// or https://"));
        }
        // What would end the URL, the header or an attribute of a page.
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"'<>\\#".contains(&byte)) {
            return Err(wrong().hint("write other characters percent-encoded, and no `#`"));
        }
        // Clients must not choose where the page is.
        let (base, query) = text.split_once('?').map_or((&*text, None), |(base, query)| (base, Some(query)));
        let mut parts = hash::parts(base, &[])?;
        let is_base =
            |part: &RequestPart| matches!(part, RequestPart::Text(_) | RequestPart::Host | RequestPart::Scheme);
        if !parts.iter().all(is_base) || base.contains("$$") {
            return Err(
                wrong().hint("before `?`, the variables are `${host}` and `${scheme}`; write a dollar sign as %24")
            );
        }
        if let Some(query) = query {
            parts.push(RequestPart::Text("?".to_owned()));
            parts.extend(hash::parts(query, &[])?);
        }
        Ok(Self(parts))
    }
}

impl Formed for PlainHost {
    const FORM: Form =
        Form { noun: "a host", example: "shop.example.com", pattern: Some(r"^[A-Za-z0-9_.-]+$|^\[[0-9A-Fa-f:.]+\]$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match HostText::parse(text)?.0 {
            HostMatcher::Exact(host) => Ok(Self(host)),
            _ => Err(Wrong::new(format!("{} stands for many hosts", quoted(text))).hint("write one host")),
        }
    }
}

impl Formed for RedirectStatus {
    const FORM: Form = Form { noun: "the status of a redirect", example: "308", pattern: Some("^30[12378]$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match text {
            "301" | "302" | "303" | "307" | "308" => Ok(Self(text.parse().unwrap_or(302))),
            _ => Err(Wrong::new(format!("{} is not the status of a redirect", quoted(text))).hint(
                "use 308 or 301 for a permanent redirect, 307 or 302 for a temporary one (301 and 302 may turn a POST into a GET), or 303 \
                to have the client fetch the answer to a POST by GET",
            )),
        }
    }
}

/// The words for failures that have no HTTP status.
const RETRY_WORDS: &[(&str, RetryOn)] = &[
    ("connect_failure", RetryOn::ConnectFailure),
    ("reset", RetryOn::Reset),
    ("timeout", RetryOn::Timeout),
    ("5xx", RetryOn::Statuses(500, 599)),
    ("cancelled", RetryOn::Grpc(1)),
    ("deadline_exceeded", RetryOn::Grpc(4)),
    ("resource_exhausted", RetryOn::Grpc(8)),
    ("internal", RetryOn::Grpc(13)),
    ("unavailable", RetryOn::Grpc(14)),
];

impl Formed for RetryOn {
    const FORM: Form = Form {
        noun: "a failure",
        example: "503",
        pattern: Some(
            "^(connect_failure|reset|timeout|5xx|[45][0-9][0-9]|cancelled|deadline_exceeded|resource_exhausted|internal|unavailable)$",
        ),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if let Some((_, on)) = RETRY_WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*on);
        }
        let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse::<u16>() {
            Ok(status) if digits && (400..=599).contains(&status) => Ok(Self::Statuses(status, status)),
            _ => {
                let wrong = Wrong::new(format!("{} is not a reason to retry", quoted(text)));
                let words = "connect_failure, reset, timeout, 5xx, a status from 400 to 599, or a gRPC status: cancelled, \
                    deadline_exceeded, resource_exhausted, internal, unavailable";
                Err(wrong.hint(match nearest(text, RETRY_WORDS.iter().map(|(word, _)| *word)) {
                    Some(word) => format!("did you mean {word}?"),
                    None => format!("it can be {words}"),
                }))
            }
        }
    }
}

impl Formed for ChangedHeader {
    const FORM: Form = HeaderName::FORM;

    fn parse(text: &str) -> Result<Self, Wrong> {
        let HeaderName(name) = HeaderName::parse(text)?;
        match unchangeable(&name) {
            Some(why) => Err(Wrong::new(format!("{} cannot be changed", quoted(text))).hint(why)),
            None => Ok(Self(name)),
        }
    }
}

/// Why no route may change the header of this name, and what to write instead; `None` if it may. Another part of the configuration, or the protocol, decides it.
#[must_use]
pub fn unchangeable(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().replace('_', "-").as_str() {
        "host" => "set the host that the endpoint sees with `rewrite: {host: ...}`",
        "content-length" | "transfer-encoding" => "Steelyard frames each message itself",
        "connection"
        | "keep-alive"
        | "proxy-connection"
        | "te"
        | "trailer"
        | "upgrade"
        | "http2-settings"
        | "proxy-authorization"
        | "proxy-authenticate" => "it belongs to one hop, and Steelyard does not forward it",
        "expect" => "the client and the endpoint negotiate it",
        "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" | "forwarded" => {
            "the listener's `forwarded` decides which of these headers are sent"
        }
        _ => return None,
    })
}

impl Formed for HeaderValue {
    const FORM: Form = Form { noun: "text", example: "steelyard", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Text(value) = Text::parse(text)?;
        // RFC 9110 section 5.5: visible ASCII and spaces, but no space at either end.
        if !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            let wrong = Wrong::new(format!("{} is not the value of a header", quoted(text)));
            return Err(wrong.hint("use ASCII letters, digits, signs and spaces"));
        }
        if value.trim() != value {
            let wrong = Wrong::new(format!("{} begins or ends with a space", quoted(text)));
            return Err(wrong.hint("remove it: spaces at the ends are not part of a value"));
        }
        Ok(Self(value))
    }
}

impl Formed for OriginText {
    const FORM: Form = Form {
        noun: "an origin",
        example: "https://www.example.com",
        pattern: Some(r"^(\*|[Hh][Tt][Tt][Pp][Ss]?://(\*|(\*\.)?[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text == "*" {
            return Ok(Self(AllowedOrigin::Any));
        }
        OriginMatcher::parse(text).map(AllowedOrigin::These).map(Self).ok_or_else(|| {
            let wrong = Wrong::new(format!("{} is not an origin", quoted(text)));
            wrong.hint(match text.strip_suffix('/') {
                Some(origin) if OriginMatcher::parse(origin).is_some() => {
                    format!("an origin has no path: write {origin}")
                }
                _ => "write http:// or https://, a host, and a port if it is not the default one; the host can be `*` or begin with `*.`"
                    .to_owned(),
            })
        })
    }
}

impl Formed for CorsName {
    const FORM: Form = Form { noun: "a name", example: "x-request-id", pattern: HeaderName::FORM.pattern };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if text.is_empty() || !text.bytes().all(is_token) {
            let wrong = Wrong::new(format!("{} is not the name of a method or a header", quoted(text)));
            return Err(wrong.hint("use letters, digits and !#$%&'*+-.^_`|~"));
        }
        Ok(Self(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsed value, or the error in one line.
    fn check<T: Formed>(text: &str, expect: &str, show: impl Fn(T) -> String) {
        let found = T::parse(text).map_or_else(|wrong| wrong.to_string(), show);
        assert_eq!(found, expect, "{text:?}");
    }

    #[test]
    fn places_to_redirect_to() {
        let check = |text, expect| {
            check(text, expect, |url: RedirectUrl| {
                format!("{} {} {:?} {:?}", url.scheme.name(), url.host, url.port, url.path)
            });
        };
        check("https://Shop.example.com", "https shop.example.com None None");
        check("http://[::1]:8080/x/y", r#"http [::1] Some(8080) Some("/x/y")"#);
        check("https://[::1]/", r#"https [::1] None Some("/")"#);
        check("/x", r#""/x" is not a URL to redirect to; to redirect to another path on the same host, use `path`"#);
        check(
            "shop.example.com",
            r#""shop.example.com" is not a URL to redirect to; a URL begins with http:// or https://"#,
        );
        check("ftp://a", r#""ftp://a" is not a URL to redirect to; a URL begins with http:// or https://"#);
        check(
            "https://a/x?y",
            r#""https://a/x?y" is not a URL to redirect to; remove `?` and `#`: the client's query is kept"#,
        );
        check("https://a:0", r#""https://a:0" is not a URL to redirect to; a port is a number from 1 to 65535"#);
        check("https://*.a.com", r#""*.a.com" stands for many hosts; write one host"#);
        check(
            "https://joe@a.com",
            r#""joe@a.com" is not a host name; a label consists of letters, digits, `_` and `-`, and does not begin or end with `-`"#,
        );
    }

    #[test]
    fn pages_to_sign_in_on() {
        let check = |text, expect| {
            check(text, expect, |SignInUrl(parts): SignInUrl| {
                let shown = |part: &RequestPart| match part {
                    RequestPart::Text(text) => text.clone(),
                    part => format!("<{part:?}>"),
                };
                parts.iter().map(shown).collect::<String>()
            })
        };
        check("https://login.example.com/start?a=b", "https://login.example.com/start?a=b");
        check("https://${host}/oauth2/start?at=${host}", "https://<Host>/oauth2/start?at=<Host>");
        check("${scheme}://${host}/?rm=${method}", "<Scheme>://<Host>/?rm=<Method>");
        check(
            "https://a/${target}",
            r#""https://a/${target}" is not the URL of a page; before `?`, the variables are `${host}` and `${scheme}`; write a dollar sign as %24"#,
        );
        check("/start", r#""/start" is not the URL of a page; a URL begins with http:// or https://"#);
        check("https:///a", r#""https:///a" is not the URL of a page; write the host behind http:// or https://"#);
        check("https://a@b/", r#""https://a@b/" is not the URL of a page; write the host behind http:// or https://"#);
        check("https://a/$host", "a `$` stands before no variable; write `${client_ip}`, or `$$` for a dollar sign");
        check(
            "https://a/b#c",
            r#""https://a/b#c" is not the URL of a page; write other characters percent-encoded, and no `#`"#,
        );
    }

    #[test]
    fn statuses_of_redirects() {
        for status in ["301", "302", "303", "307", "308"] {
            check(status, status, |RedirectStatus(status)| status.to_string());
        }
        for status in ["300", "304", "200", "3xx", ""] {
            assert!(RedirectStatus::parse(status).is_err(), "{status}");
        }
    }

    #[test]
    fn what_is_retried() {
        let check = |text, expect| check(text, expect, |on: RetryOn| format!("{on:?}"));
        check("connect_failure", "ConnectFailure");
        check("5xx", "Statuses(500, 599)");
        check("503", "Statuses(503, 503)");
        check(
            "200",
            r#""200" is not a reason to retry; it can be connect_failure, reset, timeout, 5xx, a status from 400 to 599, or a gRPC status: cancelled, deadline_exceeded, resource_exhausted, internal, unavailable"#,
        );
        check("resets", r#""resets" is not a reason to retry; did you mean reset?"#);
        check(
            "+503",
            r#""+503" is not a reason to retry; it can be connect_failure, reset, timeout, 5xx, a status from 400 to 599, or a gRPC status: cancelled, deadline_exceeded, resource_exhausted, internal, unavailable"#,
        );
    }

    #[test]
    fn origins_that_may_be_allowed() {
        let check = |text, expect| {
            check(text, expect, |OriginText(origin)| match origin {
                AllowedOrigin::Any => "any".to_owned(),
                AllowedOrigin::These(OriginMatcher { scheme, host, port }) => {
                    format!("{} {host:?} {port}", scheme.name())
                }
            });
        };
        check("*", "any");
        check("https://WWW.foo.com", r#"https Exact("www.foo.com") 443"#);
        check("http://*.foo.com:8080", r#"http Suffix("foo.com") 8080"#);
        check("https://*", "https Any 443");
        check("https://a.com/", r#""https://a.com/" is not an origin; an origin has no path: write https://a.com"#);
        let hint = "write http:// or https://, a host, and a port if it is not the default one; the host can be `*` or begin with `*.`";
        for text in ["a.com", "https://a.com/x", "https://*a.com", "null", "https://a:0"] {
            let found = OriginText::parse(text).unwrap_err().to_string();
            assert_eq!(found, format!("{text:?} is not an origin; {hint}"));
        }
        let name = |text, expect| super::tests::check(text, expect, |CorsName(name)| name);
        name("X-A", "X-A");
        name("*", "*");
        name("a b", r#""a b" is not the name of a method or a header; use letters, digits and !#$%&'*+-.^_`|~"#);
    }

    #[test]
    fn headers_that_may_be_changed() {
        let name = |text, expect| check(text, expect, |ChangedHeader(name)| name);
        name("X-Edge", "x-edge");
        name("Host", r#""Host" cannot be changed; set the host that the endpoint sees with `rewrite: {host: ...}`"#);
        name("Content_Length", r#""Content_Length" cannot be changed; Steelyard frames each message itself"#);
        name("te", r#""te" cannot be changed; it belongs to one hop, and Steelyard does not forward it"#);
        name(
            "X-Forwarded-For",
            r#""X-Forwarded-For" cannot be changed; the listener's `forwarded` decides which of these headers are sent"#,
        );
        name(":path", r#"":path" is not the name of a header; use letters, digits and !#$%&'*+-.^_`|~"#);
        let value = |text, expect| check(text, expect, |HeaderValue(value)| value);
        value("max-age=1, x", "max-age=1, x");
        value("", "");
        value("a\r\nb", r#""a\r\nb" contains a control character"#);
        value(" a", r#"" a" begins or ends with a space; remove it: spaces at the ends are not part of a value"#);
        value("ü", r#""ü" is not the value of a header; use ASCII letters, digits, signs and spaces"#);
    }
}

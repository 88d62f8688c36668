//! The parts of a request as the configuration file names them, and the names that the operator gives.

use std::net::Ipv6Addr;
use std::path::PathBuf;

use model::{HolderMatcher, HostMatcher, Page, SubjectAltName};
use regex::{Regex, RegexBuilder};

use super::dns_name;
use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// The most bytes that one compiled regular expression may take. `\w` needs some tens of kilobytes because it covers all of Unicode. Most
/// expressions need far less.
const REGEX_BYTES_MAX: usize = 256 * 1024;

/// Characters of a name. The name becomes a label of metrics and a column of tables.
const LABEL_CHARS_MAX: usize = 64;

/// Characters of the name of a route. It is a label too, but may look like the conditions of the route.
const ROUTE_NAME_CHARS_MAX: usize = 128;

/// Characters of a corrected text that a hint repeats.
const HINT_CHARS_MAX: usize = 100;

/// Characters of any other text. Request lines are at most this long, and so are the paths and header values that could match.
const TEXT_CHARS_MAX: usize = 8192;

/// The longest text that is looked for in a body.
const PROBE_TEXT_CHARS_MAX: usize = 256;

/// A name that the operator gives to a listener or cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label(pub String);

/// A name that the operator gives to a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteName(pub String);

/// Any text of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

/// The target of a log: a file, or `stdout`. `-` means `stdout` too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFile(pub Option<PathBuf>);

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName(pub PathBuf);

/// A folder, by its whole path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(pub PathBuf);

/// The name of a query parameter, decoded; case matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryName(pub String);

/// A host to match: a name, `*.` and a name, or an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostText(pub HostMatcher);

/// A name in a certificate: a DNS name, which may begin with `*.`, or a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateName(pub SubjectAltName);

/// What the certificate of a client must have: a name, or its whole subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderText(pub HolderMatcher);

/// The content of a `Host` header: a host, with an optional port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostHeader(pub String);

/// The body of a response. Unlike other text it may have several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyText(pub String);

/// A text to look for in the body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeText(pub String);

/// A path that begins with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpPath(pub String);

/// A path to go to. What follows a `?` replaces the client's query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPath(pub String);

/// A path that requests are compared with. It is not a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePath(pub String);

/// A regular expression, anchored at both ends.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// As written.
    pub source: String,
    pub regex: Regex,
}

/// A method, as on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Method(pub String);

/// The name of a header, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HeaderName(pub String);

/// The name of a cookie; case matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieName(pub String);

/// The first and last of a range of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusRange(pub u16, pub u16);

/// The status of an answer that is remembered, or `any`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStatus(pub Option<u16>);

impl Formed for AuthStatus {
    const FORM: Form = Form { noun: "a status", example: "401", pattern: Some("^(any|[2-4][0-9][0-9])$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text == "any" {
            return Ok(Self(None));
        }
        let status = text.parse::<u16>().ok().filter(|status| text.len() == 3 && (200..500).contains(status));
        let wrong = || Wrong::new(format!("{} is not the status of an answer", quoted(text)));
        status.map(|status| Self(Some(status))).ok_or_else(|| wrong().hint("write a status from 200 to 499, or `any`"))
    }
}

impl Formed for Label {
    const FORM: Form = Form { noun: "a name", example: "web", pattern: Some("^[A-Za-z0-9_.-]{1,64}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !plain || text.is_empty() || text.len() > LABEL_CHARS_MAX {
            let hint = format!("a name consists of 1 to {LABEL_CHARS_MAX} letters, digits, `-`, `_` and `.`");
            return Err(Wrong::new(format!("{} is not a name", quoted(text))).hint(hint));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for RouteName {
    const FORM: Form = Form { noun: "a name", example: "checkout", pattern: Some("^.{1,128}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Text(name) = Text::parse(text)?;
        if name.trim().is_empty() || name.chars().count() > ROUTE_NAME_CHARS_MAX {
            let hint = format!("the name of a route has 1 to {ROUTE_NAME_CHARS_MAX} characters");
            return Err(Wrong::new(format!("{} is not a name", quoted(text))).hint(hint));
        }
        Ok(Self(name))
    }
}

impl Formed for Text {
    const FORM: Form = Form { noun: "text", example: "always", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text.chars().any(char::is_control) {
            return Err(Wrong::new(format!("{} contains a control character", quoted(text))));
        }
        if text.len() > TEXT_CHARS_MAX {
            return Err(Wrong::new(format!("{} is longer than {TEXT_CHARS_MAX} bytes", quoted(text))));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for LogFile {
    const FORM: Form = Form { noun: "a file", example: "/var/log/steelyard.log", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match Text::parse(text)?.0.as_str() {
            "" => Err(Wrong::new("the file name is empty").hint("write a path, or stdout")),
            "stdout" | "-" => Ok(Self(None)),
            path => Ok(Self(Some(PathBuf::from(path)))),
        }
    }
}

impl Formed for BodyText {
    const FORM: Form = Form { noun: "text", example: "Not here", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text.len() > Page::BYTES_MAX {
            let message = format!("the text has {} bytes; the limit is {}KiB", text.len(), Page::BYTES_MAX >> 10);
            return Err(Wrong::new(message).hint("let an endpoint serve larger pages"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for ProbeText {
    const FORM: Form = Form { noun: "text", example: "\"status\":\"up\"", pattern: Some("^(.|\n|\r){1,256}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match text.chars().count() {
            1..=PROBE_TEXT_CHARS_MAX => Ok(Self(text.to_owned())),
            count => Err(Wrong::new(format!("the text has {count} characters"))
                .hint(format!("write 1 to {PROBE_TEXT_CHARS_MAX} characters that only a good response has"))),
        }
    }
}

impl Formed for Folder {
    const FORM: Form = Form { noun: "a folder", example: "/sys/fs/cgroup", pattern: Some("^/") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match Text::parse(text)?.0.as_str() {
            path if path.starts_with('/') => Ok(Self(PathBuf::from(path))),
            path => Err(Wrong::new(format!("{path:?} is not a whole path")).hint("begin it with a slash")),
        }
    }
}

impl Formed for FileName {
    const FORM: Form = Form { noun: "a file", example: "tls/www.pem", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match Text::parse(text)?.0.as_str() {
            "" => Err(Wrong::new("the file name is empty").hint("write a path")),
            path => Ok(Self(PathBuf::from(path))),
        }
    }
}

impl Formed for QueryName {
    const FORM: Form = Form { noun: "the name of a parameter", example: "page", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Text(name) = Text::parse(text)?;
        Ok(Self(name))
    }
}

impl Formed for HostText {
    const FORM: Form = Form {
        noun: "a host",
        example: "shop.example.com",
        pattern: Some(r"^(\*\.)?[A-Za-z0-9_.-]+$|^\[[0-9A-Fa-f:.]+\]$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || Wrong::new(format!("{} is not a host", quoted(text)));
        if text == "*" {
            return Err(wrong().hint("omit `hosts` to match every host"));
        }
        if let Some(domain) = text.strip_prefix("*.") {
            return dns_name(domain).map(HostMatcher::Suffix).map(Self);
        }
        if text.contains('*') {
            return Err(
                wrong().hint("a `*` can only stand at the beginning, for one or more labels, as in *.example.com")
            );
        }
        // RFC 3986 section 3.2.2: an IPv6 address is in brackets, in `Host` too.
        let literal = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(address) = literal.and_then(|literal| literal.parse::<Ipv6Addr>().ok()) {
            return Ok(Self(HostMatcher::Exact(format!("[{address}]"))));
        }
        if text.contains("://") || text.contains('/') {
            return Err(wrong().hint("write only the name: the path has a key of its own"));
        }
        if let Some((name, port)) = text.rsplit_once(':')
            && port.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(wrong().hint(format!("hosts are compared without their port: write {}", shortened(name))));
        }
        if text.parse::<std::net::Ipv4Addr>().is_ok() {
            return Ok(Self(HostMatcher::Exact(text.to_owned())));
        }
        dns_name(text).map(HostMatcher::Exact).map(Self)
    }
}

impl Formed for CertificateName {
    const FORM: Form =
        Form { noun: "a name in a certificate", example: "spiffe://example.com/shop", pattern: Some(r"^[!-~]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || Wrong::new(format!("{} is not a name in a certificate", quoted(text)));
        if let Some((scheme, rest)) = text.split_once("://") {
            // RFC 3986 section 3.1.
            let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
            if !is_scheme || rest.is_empty() || !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(wrong().hint("write a URI such as spiffe://example.com/shop"));
            }
            return Ok(Self(SubjectAltName::Uri(text.to_owned())));
        }
        if text.contains(':') || text.parse::<std::net::IpAddr>().is_ok() {
            return Err(wrong().hint("write a DNS name without a port, or a URI with `://`"));
        }
        let name = match text.strip_prefix("*.") {
            Some(domain) => format!("*.{}", dns_name(domain)?),
            None => dns_name(text)?,
        };
        Ok(Self(SubjectAltName::Dns(name)))
    }
}

impl Formed for HolderText {
    const FORM: Form =
        Form { noun: "a name in a certificate, or its subject", example: "CN=ann,O=ops", pattern: Some(r"^[ -~]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        // A URI may have `=`, and the value of an attribute may have `://`.
        let is_subject = text.find('=').is_some_and(|sign| text.find("://").is_none_or(|uri| sign < uri));
        if !is_subject {
            return CertificateName::parse(text).map(|CertificateName(name)| Self(HolderMatcher::Name(name)));
        }
        let wrong = |what: &str| Wrong::new(format!("{} {what}", quoted(text)));
        match model::respelled(text) {
            Ok(right) if right == text => Ok(Self(HolderMatcher::Subject(right))),
            Ok(right) => Err(wrong("is a subject that no certificate is compared as").hint(format!("write {right}"))),
            Err(why) => Err(wrong(&format!("is not the subject of a certificate: {why}"))
                .hint("write it as `openssl x509 -noout -subject -nameopt RFC2253` does: CN=ann,O=ops")),
        }
    }
}

impl Formed for HostHeader {
    const FORM: Form = Form { noun: "a host", example: "shop.example.com", pattern: Some(r"^[A-Za-z0-9_.:\[\]-]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port),
            _ => (text, "80"),
        };
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        if !digits || port.parse::<u16>().is_err() {
            return Err(
                Wrong::new(format!("{} has no valid port", quoted(text))).hint("a port is a number from 1 to 65535")
            );
        }
        match HostText::parse(host)?.0 {
            HostMatcher::Exact(_) => Ok(Self(text.to_owned())),
            _ => Err(Wrong::new(format!("{} stands for many hosts", quoted(text)))
                .hint("write one host that the endpoint serves")),
        }
    }
}

/// The corrected text, for a hint. It is not escaped, so that it can be copied.
fn plain(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c });
    shown.take(HINT_CHARS_MAX).collect()
}

fn shortened(text: &str) -> String {
    quoted(text).trim_matches('"').to_owned()
}

/// Translates an nginx `location` with a modifier.
fn of_nginx(text: &str) -> Option<String> {
    let (modifier, rest) = text.split_once(char::is_whitespace)?;
    let rest = plain(rest.trim());
    // A `location` matches anywhere in the path, and our expressions match the whole path.
    let whole = || {
        let begin = rest.strip_prefix('^').map_or(format!(".*{rest}"), str::to_owned);
        begin.strip_suffix('$').map_or(format!("{begin}.*"), str::to_owned)
    };
    match modifier {
        "~" => Some(format!("write {{regex: '{}'}}, which matches the whole path", whole())),
        "~*" => Some(format!("write {{regex: '(?i){}'}}, which matches the whole path", whole())),
        "=" => Some(format!("to match this one path, write {{exact: {rest}}}")),
        "^~" => Some(format!("to match a prefix, write only the path: {rest}")),
        _ => None,
    }
}

impl Formed for RoutePath {
    const FORM: Form = HttpPath::FORM;

    fn parse(text: &str) -> Result<Self, Wrong> {
        let HttpPath(path) = HttpPath::parse(text)?;
        let Some((before, _)) = path.split_once('*') else { return Ok(Self(path)) };
        // RFC 3986 allows the character in a path, but clients hardly ever send it: an operator who writes it means every path below.
        let wrong = Wrong::new(format!("{} contains a `*`, which is not a wildcard in a path", quoted(text)));
        let end = path.find('*').map_or(0, |at| at + 1);
        let prefix = before.rsplit_once('/').map_or("/", |(folder, _)| if folder.is_empty() { "/" } else { folder });
        Err(match before.ends_with('/') && end == path.len() {
            true => wrong.hint(format!("a prefix matches every path below it: write {}", shortened(before))),
            false => wrong.hint(format!(
                "write a prefix such as {}, or {{regex: '{}'}}",
                shortened(prefix),
                plain(&regex::escape(&path).replace(r"\*", "[^/]*"))
            )),
        })
    }
}

impl Formed for HttpPath {
    const FORM: Form = Form { noun: "a path", example: "/api/", pattern: Some(r"^/[^?#\s]*$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || Wrong::new(format!("{} is not a path", quoted(text)));
        if !text.starts_with('/') {
            // The likely cause is a URL or an nginx `location`. Any other text only lacks the leading `/`.
            let hint = if text.contains("://") {
                "write only its path, from the `/` after the host".to_owned()
            } else if let Some(hint) = of_nginx(text) {
                hint
            } else {
                format!("a path begins with `/`: write /{}", shortened(text))
            };
            return Err(wrong().hint(hint));
        }
        if text.len() > TEXT_CHARS_MAX {
            return Err(wrong().hint(format!("it is longer than {TEXT_CHARS_MAX} bytes")));
        }
        if text.contains(['?', '#']) {
            return Err(wrong().hint(
                "a path has no query and no fragment: match the query with `query`; clients never send a fragment",
            ));
        }
        // RFC 3986 section 2: clients send these percent-encoded, and paths are compared as they are sent.
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong().hint("percent-encode spaces and characters outside ASCII, as clients send them"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for TargetPath {
    const FORM: Form = Form { noun: "a path", example: "/new/?from=old", pattern: Some(r"^/[^#\s]*$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        HttpPath::parse(path)?;
        if text.len() > TEXT_CHARS_MAX {
            let wrong = Wrong::new(format!("{} is not a path", quoted(text)));
            return Err(wrong.hint(format!("it is longer than {TEXT_CHARS_MAX} bytes")));
        }
        if !query.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            let wrong = Wrong::new(format!("{} is not a query", quoted(query)));
            return Err(wrong.hint("percent-encode spaces, `#` and characters outside ASCII"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for Pattern {
    const FORM: Form = Form { noun: "a regular expression", example: "/v[0-9]+/.*", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let compile = |text: &str, bytes_max| RegexBuilder::new(text).size_limit(bytes_max).build();
        let wrong = |error: regex::Error| {
            Wrong::new(format!("{} is not a regular expression: {}", quoted(text), reason(&error)))
        };
        // Compile the expression alone first: `a)|(b` must not become valid through the parentheses that are put around it. A size limit of
        // 0 makes this stop before the costly part.
        if let Err(error @ regex::Error::Syntax(_)) = compile(text, 0) {
            return Err(wrong(error));
        }
        // If this does not compile, the expression ends in a comment that swallowed the `)` (`(?x)` allows comments). A newline ends the
        // comment.
        let anchored = compile(&format!(r"\A(?:{text})\z"), REGEX_BYTES_MAX);
        let regex = anchored.or_else(|_| compile(&format!("\\A(?:{text}\n)\\z"), REGEX_BYTES_MAX)).map_err(wrong)?;
        Ok(Self { source: text.to_owned(), regex })
    }
}

/// The last line of the library's message. The lines before it show the expression again.
fn reason(error: &regex::Error) -> String {
    let message = error.to_string();
    let last = message.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).trim_end_matches('.').to_owned()
}

impl Formed for Method {
    const FORM: Form = Form { noun: "a method", example: "GET", pattern: Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
        token(text, "a method")?;
        // RFC 9110 section 9.1.
        if let Some(known) = KNOWN.iter().find(|known| known.eq_ignore_ascii_case(text) && **known != text) {
            return Err(Wrong::new(format!("no client sends {}: the case of a method matters", quoted(text)))
                .hint(format!("write {known}")));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for HeaderName {
    const FORM: Form =
        Form { noun: "the name of a header", example: "x-canary", pattern: Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        token(text, "the name of a header")?;
        Ok(Self(text.to_ascii_lowercase()))
    }
}

impl Formed for CookieName {
    const FORM: Form =
        Form { noun: "the name of a cookie", example: "session", pattern: Some("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        token(text, "the name of a cookie")?;
        Ok(Self(text.to_owned()))
    }
}

/// RFC 9110 section 5.6.2.
fn token(text: &str, noun: &str) -> Result<(), Wrong> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if text.is_empty() || !text.bytes().all(token) {
        return Err(
            Wrong::new(format!("{} is not {noun}", quoted(text))).hint("use letters, digits and !#$%&'*+-.^_`|~")
        );
    }
    if text.len() > 256 {
        return Err(Wrong::new(format!("{} is longer than 256 bytes", quoted(text))));
    }
    Ok(())
}

impl Formed for StatusRange {
    const FORM: Form = Form {
        noun: "a status, or two with a `-` between them",
        example: "200-399",
        pattern: Some("^[1-5][0-9]{2}(-[1-5][0-9]{2})?$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let status = |text: &str| {
            let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse::<u16>().ok().filter(|status| digits && (100..=599).contains(status))
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (status(first), status(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self(first, last)),
            _ => Err(Wrong::new(format!("{} is not a range of statuses", quoted(text)))
                .hint("write one status from 100 to 599, or the first and the last, such as 200-399")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsed value as text, or the error in one line.
    fn check<T: Formed>(text: &str, expect: &str, show: impl Fn(T) -> String) {
        assert_eq!(T::parse(text).map_or_else(|wrong| wrong.to_string(), show), expect, "{text:?}");
    }

    #[test]
    fn names_in_certificates() {
        let check = |text: &str, expect: &str| check(text, expect, |CertificateName(name)| format!("{name:?}"));
        check("Web.Example.com", r#"Dns("web.example.com")"#);
        check("*.example.com", r#"Dns("*.example.com")"#);
        check("spiffe://example.com/Shop", r#"Uri("spiffe://example.com/Shop")"#);
        let wrong = "is not a name in a certificate; write a DNS name without a port, or a URI with `://`";
        for text in ["web.example.com:443", "10.0.0.1", "fd00::1", "urn:shop"] {
            check(text, &format!("\"{text}\" {wrong}"));
        }
        let wrong = "is not a name in a certificate; write a URI such as spiffe://example.com/shop";
        for text in ["spiffe://", "://shop", "1x://shop", "spiffe://a b"] {
            check(text, &format!("\"{text}\" {wrong}"));
        }
    }

    #[test]
    fn holders_of_certificates() {
        let check = |text: &str, expect: &str| check(text, expect, |HolderText(holder)| format!("{holder:?}"));
        check("graphs.example.com", r#"Name(Dns("graphs.example.com"))"#);
        check("spiffe://example.com/a?b=c", r#"Name(Uri("spiffe://example.com/a?b=c"))"#);
        check("CN=ann,O=ops", r#"Subject("CN=ann,O=ops")"#);
        check("CN=https://a.test", r#"Subject("CN=https://a.test")"#);
        let respelled = |text: &str, right: &str| {
            check(text, &format!("\"{text}\" is a subject that no certificate is compared as; write {right}"));
        };
        respelled("CN=ann, O=ops", "CN=ann,O=ops");
        respelled("cn=ann", "CN=ann");
        respelled("CN=J\u{fc}rgen", r"CN=J\C3\BCrgen");
        let hint = "write it as `openssl x509 -noout -subject -nameopt RFC2253` does: CN=ann,O=ops";
        for text in ["=ann", "C N=ann", "X=ann"] {
            let (name, _) = text.split_once('=').unwrap();
            let why = format!(
                "`{name}` is no attribute of a subject: there are CN, SN, serialNumber, C, L, ST, street, O, OU, title, GN, DC, UID, emailAddress"
            );
            check(text, &format!("\"{text}\" is not the subject of a certificate: {why}; {hint}"));
        }
    }

    #[test]
    fn hosts() {
        let check = |text, expect| check(text, expect, |HostText(host)| format!("{host:?}"));
        check("Shop.Example.com", r#"Exact("shop.example.com")"#);
        check("shop.example.com.", r#"Exact("shop.example.com")"#);
        check("*.Example.com", r#"Suffix("example.com")"#);
        check("10.0.0.1", r#"Exact("10.0.0.1")"#);
        check("[::1]", r#"Exact("[::1]")"#);
        check("*", r#""*" is not a host; omit `hosts` to match every host"#);
        check(
            "a.*.com",
            r#""a.*.com" is not a host; a `*` can only stand at the beginning, for one or more labels, as in *.example.com"#,
        );
        check(
            "*example.com",
            r#""*example.com" is not a host; a `*` can only stand at the beginning, for one or more labels, as in *.example.com"#,
        );
        check(
            "example.com:80",
            r#""example.com:80" is not a host; hosts are compared without their port: write example.com"#,
        );
        check("[::1]:80", r#""[::1]:80" is not a host; hosts are compared without their port: write [::1]"#);
        check(
            "http://example.com",
            r#""http://example.com" is not a host; write only the name: the path has a key of its own"#,
        );
        check(
            "a b",
            r#""a b" is not a host name; a label consists of letters, digits, `_` and `-`, and does not begin or end with `-`"#,
        );
    }

    #[test]
    fn paths() {
        let check = |text, expect| check(text, expect, |HttpPath(path)| path);
        check("/", "/");
        check("/api/%20x", "/api/%20x");
        check("api", r#""api" is not a path; a path begins with `/`: write /api"#);
        check(
            "/a?b=1",
            r#""/a?b=1" is not a path; a path has no query and no fragment: match the query with `query`; clients never send a fragment"#,
        );
        check(
            "/a b",
            r#""/a b" is not a path; percent-encode spaces and characters outside ASCII, as clients send them"#,
        );
    }

    #[test]
    fn paths_of_routes() {
        let check = |text, expect| check(text, expect, |RoutePath(path)| path);
        check("/api/", "/api/");
        check(
            "/api/*",
            r#""/api/*" contains a `*`, which is not a wildcard in a path; a prefix matches every path below it: write /api/"#,
        );
        check(
            "/*",
            r#""/*" contains a `*`, which is not a wildcard in a path; a prefix matches every path below it: write /"#,
        );
        check(
            "/api*",
            r#""/api*" contains a `*`, which is not a wildcard in a path; write a prefix such as /, or {regex: '/api[^/]*'}"#,
        );
        check(
            "/v1/*/a.b",
            r#""/v1/*/a.b" contains a `*`, which is not a wildcard in a path; write a prefix such as /v1, or {regex: '/v1/[^/]*/a\.b'}"#,
        );
        check("~ /api", r#""~ /api" is not a path; write {regex: '.*/api.*'}, which matches the whole path"#);
        check("~* ^/api$", r#""~* ^/api$" is not a path; write {regex: '(?i)/api'}, which matches the whole path"#);
        check(r"~ \.php$", r#""~ \\.php$" is not a path; write {regex: '.*\.php'}, which matches the whole path"#);
        check("= /api", r#""= /api" is not a path; to match this one path, write {exact: /api}"#);
        check("^~ /api", r#""^~ /api" is not a path; to match a prefix, write only the path: /api"#);
    }

    #[test]
    fn patterns_are_anchored() {
        let matches = |pattern: &str, text: &str| Pattern::parse(pattern).unwrap().regex.is_match(text);
        assert!(matches("/v[0-9]+", "/v1"));
        assert!(!matches("/v[0-9]+", "/v1/x"));
        assert!(!matches("a|b", "ab"));
        assert!(!matches("(?m)^a$", "a\nb"));
        assert!(matches("(?x) a # comment", "a"));
        assert!(!matches("a", "a\n"));
    }

    #[test]
    fn patterns_are_refused_in_the_words_of_the_library() {
        let check = |text, expect| check(text, expect, |pattern: Pattern| pattern.source);
        check("(a", r#""(a" is not a regular expression: unclosed group"#);
        check("a)|(b", r#""a)|(b" is not a regular expression: unopened group"#);
        check(
            "(?:a{1000}){1000}",
            r#""(?:a{1000}){1000}" is not a regular expression: Compiled regex exceeds size limit of 262144 bytes"#,
        );
    }

    #[test]
    fn names_methods_and_statuses() {
        check("x-Canary", "x-canary", |HeaderName(name)| name);
        check(
            "x canary",
            r#""x canary" is not the name of a header; use letters, digits and !#$%&'*+-.^_`|~"#,
            |HeaderName(name)| name,
        );
        check("PURGE", "PURGE", |Method(method)| method);
        check("get", r#"no client sends "get": the case of a method matters; write GET"#, |Method(method)| method);
        check(
            "a b",
            r#""a b" is not a name; a name consists of 1 to 64 letters, digits, `-`, `_` and `.`"#,
            |Label(name)| name,
        );
        let status = |text, expect| check(text, expect, |StatusRange(first, last)| format!("{first} {last}"));
        status("200", "200 200");
        status("200-399", "200 399");
        status(
            "399-200",
            r#""399-200" is not a range of statuses; write one status from 100 to 599, or the first and the last, such as 200-399"#,
        );
        status(
            "2xx",
            r#""2xx" is not a range of statuses; write one status from 100 to 599, or the first and the last, such as 200-399"#,
        );
        let host = |text, expect| check(text, expect, |HostHeader(host)| host);
        host("Shop.example.com", "Shop.example.com");
        host("[::1]:8080", "[::1]:8080");
        host("[::1]", "[::1]");
        host("a:b", r#""a:b" has no valid port; a port is a number from 1 to 65535"#);
        host("*.example.com", r#""*.example.com" stands for many hosts; write one host that the endpoint serves"#);
    }
}

//! Which scripts of other origins may use a route: CORS, as the Fetch standard defines it (section "CORS protocol").

use std::time::Duration;

use crate::Scheme;

/// Which scripts of other origins may use a route. Steelyard answers their preflight requests, and replaces the fields of CORS in the
/// responses of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// The origins of those scripts.
    pub origins: CorsOrigins,
    /// Browsers may send cookies, client certificates and passwords with the requests of scripts.
    pub credentials: bool,
    /// The methods that scripts may use besides GET, HEAD and POST.
    pub methods: CorsNames,
    /// The headers that scripts may set besides those that the standard allows.
    pub headers: CorsNames,
    /// The headers of responses that scripts may read besides those that the standard allows.
    pub expose: CorsNames,
    /// How long browsers may remember the answer to a preflight request. Whole seconds.
    pub max_age: Duration,
}

/// The origins that are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsOrigins {
    /// All of them, including opaque ones (`null`) and those with other schemes.
    Any,
    /// Any of these.
    These(Vec<OriginMatcher>),
}

/// Names of methods or headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CorsNames {
    /// All of them.
    Any,
    /// These, as they are written in a response.
    These(Vec<String>),
}

/// A condition on an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginMatcher {
    /// The scheme must be this one.
    pub scheme: Scheme,
    /// The condition on the host.
    pub host: OriginHost,
    /// The port must be this one.
    pub port: u16,
}

/// A condition on the host of an origin. Texts are in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginHost {
    /// Any host.
    Any,
    /// This name or address.
    Exact(String),
    /// `*.example.com`, stored as `example.com`: one or more labels in front of it.
    Suffix(String),
}

/// The parts of an origin (RFC 6454 section 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'o> {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// A name or address, in any case.
    pub host: &'o str,
    /// The default port of the scheme if none is written.
    pub port: u16,
}

impl Cors {
    /// The fields of responses that a policy decides, in lower case.
    pub const DECIDED: [&str; 6] = [
        "access-control-allow-origin",
        "access-control-allow-credentials",
        "access-control-expose-headers",
        "access-control-allow-methods",
        "access-control-allow-headers",
        "access-control-max-age",
    ];

    /// Whether a policy decides the field with this name, in lower case.
    pub fn decides(name: &str) -> bool {
        Self::DECIDED.contains(&name)
    }
}

impl<'o> Origin<'o> {
    /// Reads `https://host` or `https://host:port`, in any case. The host may have wildcards.
    pub fn parse(text: &'o str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme =
            [Scheme::Http, Scheme::Https].into_iter().find(|known| scheme.eq_ignore_ascii_case(known.name()))?;
        let (host, port) = match rest.rsplit_once(':') {
            // A colon within brackets is part of the address.
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (rest, None),
        };
        let port = match port {
            None => scheme.port(),
            // No browser writes a zero in front (URL standard, section "host serializing").
            Some(digits)
                if (1..=5).contains(&digits.len())
                    && !digits.starts_with('0')
                    && digits.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                digits.parse().ok()?
            }
            Some(_) => return None,
        };
        let is_name = |text: &str| {
            text.split('.').all(|label| !label.is_empty())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.*".contains(&byte))
        };
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match address {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => is_name(host),
        };
        is_host.then_some(Self { scheme, host, port })
    }
}

impl OriginMatcher {
    /// Reads `https://www.example.com`, `https://*.example.com:8443` or `https://*`.
    pub fn parse(text: &str) -> Option<Self> {
        let Origin { scheme, host, port } = Origin::parse(text)?;
        let host = host.to_ascii_lowercase();
        let host = match host.strip_prefix("*.") {
            _ if host == "*" => OriginHost::Any,
            Some(domain) => OriginHost::Suffix(domain.to_owned()),
            None => OriginHost::Exact(host),
        };
        let has_wildcard = matches!(&host, OriginHost::Exact(text) | OriginHost::Suffix(text) if text.contains('*'));
        (!has_wildcard).then_some(Self { scheme, host, port })
    }

    /// Whether the condition holds for this origin.
    pub fn matches(&self, origin: &Origin<'_>) -> bool {
        let Self { scheme, host, port } = self;
        *scheme == origin.scheme && *port == origin.port && host.matches(origin.host)
    }
}

impl OriginHost {
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(exact) => host.eq_ignore_ascii_case(exact),
            Self::Suffix(domain) => {
                let front = host.len().checked_sub(domain.len()).and_then(|front| host.split_at_checked(front));
                front.is_some_and(|(front, rest)| {
                    front.len() > 1 && front.ends_with('.') && rest.eq_ignore_ascii_case(domain)
                })
            }
        }
    }
}

impl CorsNames {
    /// No names.
    pub const NONE: Self = Self::These(Vec::new());

    /// Whether there are no names.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::These(names) if names.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_matched_by_scheme_host_and_port() {
        let check = |pattern: &str, origin: &str, expect: bool| {
            let matcher = OriginMatcher::parse(pattern).unwrap_or_else(|| panic!("{pattern}"));
            let found = Origin::parse(origin).is_some_and(|origin| matcher.matches(&origin));
            assert_eq!(found, expect, "{pattern} {origin}");
        };
        check("https://www.foo.com", "https://www.foo.com", true);
        check("https://www.foo.com", "https://www.foo.com:443", true);
        check("https://www.foo.com:443", "https://www.foo.com", true);
        check("https://www.foo.com", "https://www.foo.com:8443", false);
        check("https://www.foo.com", "http://www.foo.com", false);
        check("https://WWW.foo.com", "HTTPS://www.FOO.com", true);
        check("http://www.foo.com", "http://www.foo.com:80", true);
        check("https://*.bar.com", "https://www.bar.com", true);
        check("https://*.bar.com", "https://xpto.www.BAR.com", true);
        check("https://*.bar.com", "https://bar.com", false);
        check("https://*.bar.com", "https://.bar.com", false);
        check("https://*.bar.com", "https://foobar.com", false);
        check("https://*.bar.com", "https://www.bar.com.evil.test", false);
        check("https://*.bar.com:8443", "https://www.bar.com:8443", true);
        check("https://*.bar.com:8443", "https://www.bar.com", false);
        check("https://*", "https://any.thing", true);
        check("https://*", "http://any.thing", false);
        check("https://*", "https://any.thing:8443", false);
        check("https://192.0.2.1", "https://192.0.2.1", true);
        check("https://[2001:db8::1]:8443", "https://[2001:db8::1]:8443", true);
        check("https://[2001:db8::1]", "https://[2001:db8::1]", true);
        // None of these is an origin.
        for text in [
            "null",
            "",
            "https://",
            "https:www.bar.com",
            "https://evil.test/.bar.com",
            "https://evil.test#.bar.com",
            "https://evil.test@www.bar.com",
            "https://evil.test, https://www.bar.com",
            "https://www.bar.com:0",
            "https://www.bar.com:0443",
            "https://www.bar.com:00443",
            "https://www.bar.com:+1",
            "https://www.bar.com:65536",
            "https://www.bar.com:",
            "https://www..bar.com",
            "https://[::1].bar.com",
            "https://b\u{fc}r.bar.com",
            "ftp://www.bar.com",
        ] {
            assert_eq!(Origin::parse(text), None, "{text}");
            check("https://*.bar.com", text, false);
        }
    }

    #[test]
    fn a_wildcard_is_a_whole_label_in_front() {
        for text in
            ["*", "https://*bar.com", "https://www.*.com", "https://*.*.com", "https://www.bar.*", "*://a", "a", "//a"]
        {
            assert_eq!(OriginMatcher::parse(text), None, "{text}");
        }
    }
}

//! Conditions on the parts of a request.

use std::fmt;

use std::sync::Arc;

use regex::Regex;

/// A host, in lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMatcher {
    /// `shop.example.com`.
    Exact(String),
    /// `*.example.com`, stored as `example.com`: exactly one label in front of it.
    OneLabel(String),
    /// `*.example.com`, stored as `example.com`: one or more labels in front of it.
    Suffix(String),
    /// Every host.
    Any,
}

impl HostMatcher {
    /// Whether this host, in lower case and without a port, matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == host,
            Self::OneLabel(domain) => host.split_once('.').is_some_and(|(_, parent)| parent == domain),
            Self::Suffix(domain) => host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.')),
            Self::Any => true,
        }
    }

    /// Whether this matches every host that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Any) => false,
            (_, Self::Exact(host)) => self.matches(host),
            (Self::Suffix(domain), Self::OneLabel(of) | Self::Suffix(of)) => domain == of || self.matches(of),
            (Self::OneLabel(domain), Self::OneLabel(of)) => domain == of,
            (Self::Exact(_), Self::OneLabel(_) | Self::Suffix(_)) | (Self::OneLabel(_), Self::Suffix(_)) => false,
        }
    }

    /// Of several matchers that match the same host, the one with the largest rank is the most specific.
    pub fn rank(&self) -> (usize, u8) {
        match self {
            Self::Exact(_) => (usize::MAX, 0),
            Self::OneLabel(domain) => (domain.len(), 2),
            Self::Suffix(domain) => (domain.len(), 1),
            Self::Any => (0, 0),
        }
    }
}

/// As it is written in objects and files.
impl fmt::Display for HostMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::OneLabel(domain) | Self::Suffix(domain) => write!(f, "*.{domain}"),
            Self::Any => f.write_str("*"),
        }
    }
}

/// The path of a request target, without its query.
#[derive(Clone, Debug)]
pub enum PathMatcher {
    /// Prefix at a segment boundary: `/api` and `/api/` both match `/api`, `/api/` and `/api/x`, but not `/apix`. `/` matches every path.
    Prefix(String),
    /// The whole path, byte for byte.
    Exact(String),
    /// Anchored at both ends, case matters.
    Regex(Regex),
}

/// gRPC calls, including gRPC-Web, which is translated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMatcher {
    /// The service with its package: `helloworld.Greeter`.
    pub service: String,
    /// `None` means every method of the service.
    pub method: Option<String>,
}

/// The names of gRPC's statuses, by their codes 0 to 16 ("statuscodes" in gRPC's documentation).
pub const GRPC_STATUS_NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a status of gRPC, or its number if it has none.
pub fn grpc_status_name(code: u8) -> String {
    GRPC_STATUS_NAMES.get(usize::from(code)).map_or_else(|| code.to_string(), |name| (*name).to_owned())
}

/// A condition on a named value: a header (its name compared without case), a cookie or a query parameter.
#[derive(Clone, Debug)]
pub struct ValueMatcher {
    /// Lower case for headers.
    pub name: String,
    /// The condition on its value. Of several headers or cookies with the name, one must meet it.
    pub value: TextMatcher,
}

/// A condition on a text.
#[derive(Clone, Debug)]
pub enum TextMatcher {
    /// The whole value, byte for byte.
    Exact(String),
    /// Anchored at both ends, case matters.
    Regex(Regex),
    /// The same, byte for byte, for all fields of a header with commas between them, as nginx 1.23 has them in `$http_NAME`.
    JoinedRegex(Arc<Regex>),
    /// The value is present, whatever it is.
    Present,
}

#[cfg(test)]
mod tests {
    use super::HostMatcher::{self, Any, Exact, OneLabel, Suffix};

    #[test]
    fn what_hosts_match_and_cover() {
        let domain = || "example.com".to_owned();
        let all = [Exact("a.example.com".to_owned()), OneLabel(domain()), Suffix(domain()), Any];
        let check = |host: &str, expect: [bool; 4]| {
            assert_eq!(all.each_ref().map(|matcher| matcher.matches(host)), expect, "{host}");
        };
        check("a.example.com", [true, true, true, true]);
        check("b.example.com", [false, true, true, true]);
        check("b.a.example.com", [false, false, true, true]);
        check("example.com", [false, false, false, true]);
        check("badexample.com", [false, false, false, true]);
        // Each covers itself and those before it, and is less specific than they are.
        for (place, wide) in all.iter().enumerate() {
            for (other, narrow) in all.iter().enumerate() {
                assert_eq!(wide.covers(narrow), other <= place, "{wide:?} {narrow:?}");
                assert_eq!(wide.rank() < narrow.rank(), other < place, "{wide:?} {narrow:?}");
            }
        }
        let below = |domain: &str| [OneLabel(domain.to_owned()), Suffix(domain.to_owned())];
        assert!(below("b.example.com").iter().all(|narrow: &HostMatcher| Suffix(domain()).covers(narrow)));
        assert!(below("b.example.com").iter().all(|narrow| !OneLabel(domain()).covers(narrow)));
        assert!(below("com").iter().all(|wide| !Suffix(domain()).covers(wide)));
    }
}

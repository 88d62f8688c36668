//! Conditions on the parts of a request.

use regex::Regex;

/// A host, in lower case, without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMatcher {
    /// `shop.example.com`.
    Exact(String),
    /// `*.example.com`, stored as `example.com`: one or more labels in front of it.
    Suffix(String),
}

impl HostMatcher {
    /// Whether this host, in lower case and without a port, matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == host,
            Self::Suffix(domain) => host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.')),
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
    /// The value is present, whatever it is.
    Present,
}

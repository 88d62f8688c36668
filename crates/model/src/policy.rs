//! What a route does with a request besides choosing who serves it, and how a cluster keeps a client where it was.
//!
//! All that the filters and rules of the Gateway API (v1) say of an HTTP route can be said here, by whatever source.

use std::time::Duration;

use crate::ClusterId;

/// What becomes of the requests of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// One of these serves it, each as often as its weight says. At least one.
    Clusters(Vec<WeightedCluster>),
    /// The client is sent elsewhere.
    Redirect(Redirect),
}

/// A cluster and its share of a route's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedCluster {
    /// Who serves.
    pub cluster: ClusterId,
    /// 0 to 1,000,000, relative to the others; 0 gets none.
    pub weight: u32,
}

impl RouteAction {
    /// The clusters, in their order; none of a redirect.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + '_ {
        let clusters = match self {
            Self::Clusters(clusters) => clusters.as_slice(),
            Self::Redirect(_) => &[],
        };
        clusters.iter().map(|weighted| weighted.cluster)
    }
}

/// One cluster serves all.
impl From<ClusterId> for RouteAction {
    fn from(cluster: ClusterId) -> Self {
        Self::Clusters(vec![WeightedCluster { cluster, weight: 1 }])
    }
}

/// What else a route does. The default does nothing that was not asked for, and retries what is safe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutePolicy {
    /// Who gets a copy of requests.
    pub mirrors: Vec<Mirror>,
    /// When a request is sent again.
    pub retry: Retry,
    /// What the endpoint gets.
    pub request_headers: HeaderChanges,
    /// What the client gets of an endpoint's response. Responses that Steelyard makes itself are not changed.
    pub response_headers: HeaderChanges,
    /// What the endpoint is asked for.
    pub rewrite: Rewrite,
    /// How much one client may ask.
    pub rate_limit: Option<RateLimit>,
}

/// A copy of requests goes to another cluster; what comes back is thrown away.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirror {
    /// Who gets it.
    pub to: ClusterId,
    /// Share of the requests, 0.0 to 1.0.
    pub share: f64,
}

/// When a request that went wrong is sent again. Never after anything of the response has gone to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// How often it is sent again at most; 0: never.
    pub attempts: u32,
    /// No connection came about: nothing was sent.
    pub on_connect_failure: bool,
    /// The connection ended before a byte of the response came.
    pub on_reset: bool,
    /// The endpoint did not begin its response within the cluster's response timeout, or `per_try_timeout`.
    pub on_timeout: bool,
    /// First and last of ranges of statuses.
    pub on_statuses: Vec<(u16, u16)>,
    /// Statuses of gRPC that a call has failed with before anything else of its response came: codes 1 to 16.
    pub on_grpc: Vec<u8>,
    /// Methods that are not idempotent (RFC 9110 section 9.2.2: POST, PATCH, unknown ones) are sent again too, though an endpoint may have
    /// acted on them.
    pub non_idempotent: bool,
    /// Where there is no other endpoint, the same is asked again.
    pub same_endpoint: bool,
    /// Retries as a share of a cluster's requests, 0.0 to 1.0, besides a few that are always allowed.
    pub budget: f64,
    /// From a try's beginning to the end of the response's headers. `None`: the other timeouts alone.
    pub per_try_timeout: Option<Duration>,
}

impl Default for Retry {
    /// What is safe, at another endpoint.
    fn default() -> Self {
        Self {
            attempts: 2,
            on_connect_failure: true,
            on_reset: true,
            on_timeout: false,
            on_statuses: Vec::new(),
            on_grpc: Vec::new(),
            non_idempotent: false,
            same_endpoint: false,
            // A fifth more load on what still works, should one part of it fail wholly: what Linkerd and Envoy take, too.
            budget: 0.2,
            per_try_timeout: None,
        }
    }
}

impl Retry {
    /// Nothing is sent again.
    pub fn off() -> Self {
        Self { attempts: 0, ..Self::default() }
    }

    /// Whether a response of this status is asked for again.
    pub fn is_on_status(&self, status: u16) -> bool {
        self.on_statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

/// Header fields put in, taken out, exchanged. Names are in lower case, and those of no field that frames a message, belongs to one hop, or
/// names the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// Name and value: takes the place of all that have the name.
    pub set: Vec<(String, String)>,
    /// Name and value: one more.
    pub add: Vec<(String, String)>,
    /// Names of which none is left.
    pub remove: Vec<String>,
}

impl HeaderChanges {
    /// Nothing changes.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }
}

/// What is changed of the target of a request. The query stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The `Host` that the endpoint gets; `X-Forwarded-Host` keeps the client's.
    pub host: Option<String>,
    /// The path that it gets.
    pub path: Option<PathRewrite>,
}

/// Another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRewrite {
    /// Instead of the whole path. Begins with `/`.
    Full(String),
    /// Instead of the prefix that the route matched, on the boundary of a segment; of a route that matches no prefix, in front of the path.
    /// Begins with `/`; one at the end is of no consequence.
    Prefix(String),
}

/// Where a client is sent instead. What is `None` stays as the client wrote it; the query always does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Of the new URL.
    pub scheme: Option<Scheme>,
    /// A name or address without a port.
    pub host: Option<String>,
    /// `None`: with a scheme, that scheme's own; with a host alone, the listener's.
    pub port: Option<u16>,
    /// Of the new URL.
    pub path: Option<PathRewrite>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// Within TLS.
    Https,
}

impl Scheme {
    /// As in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port of a URL that names none.
    pub fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// How many requests one client may make, over all workers. One more is answered 429.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// In the long run, in each `per`.
    pub requests: u32,
    /// See `requests`.
    pub per: Duration,
    /// What a client is told apart by.
    pub by: RateKey,
    /// How many may come at once after a silence; at least 1.
    pub burst: u32,
}

/// What a client is told apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateKey {
    /// Its address, as trusted proxies report it; of IPv6 the first 64 bits, since one client has them all.
    ClientIp,
    /// The value of the header of this name, in lower case; the client's address where there is none.
    Header(String),
}

/// A client comes back to the endpoint that served it first, by a cookie that Steelyard gives it.
///
/// The cookie holds a keyed hash of the endpoint's address: nothing is remembered here, and any Steelyard with the same configuration reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// The name of the cookie.
    pub cookie: String,
    /// How long the client keeps it, from its first request on; `None`: until it ends its session.
    pub ttl: Option<Duration>,
    /// Of the hash. Without one whoever knows the cluster's name can find the address behind a cookie by trying addresses.
    pub secret: Option<String>,
}

//! The policies of a route besides the choice of a cluster, and sticky sessions.
//!
//! They cover all filters and rules of the Gateway API (v1) for HTTP routes, whichever source they come from.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ipnet::IpNet;

use crate::{
    AddressRules, Auth, ClientCertRule, ClusterId, Compression, Cors, ErrorPage, ExternalAuth, FieldValue,
    FixedResponse, GlobalRateLimit, RequestBody, ResponseRewrite, RouteTracing, Satisfy, Secret, Variable, Via,
};

/// The action for the requests of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// One of these clusters serves each request, in proportion to the weights. At least one.
    Clusters(Vec<WeightedCluster>),
    /// The client is redirected.
    Redirect(Redirect),
    /// Steelyard answers.
    Respond(FixedResponse),
}

/// A cluster and its share of a route's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedCluster {
    /// The cluster.
    pub cluster: ClusterId,
    /// 0 to 1,000,000, relative to the other weights; a cluster with weight 0 gets no requests.
    pub weight: u32,
    /// Replaces the changes of the route for requests that this cluster gets; `None` means the route's.
    pub changes: Option<Box<Changes>>,
}

impl RouteAction {
    /// The clusters with their weights, in order; none if no endpoint gets a request.
    pub fn shares(&self) -> &[WeightedCluster] {
        match self {
            Self::Clusters(clusters) => clusters,
            Self::Redirect(_) | Self::Respond(_) => &[],
        }
    }

    /// The clusters, in order.
    pub fn clusters(&self) -> impl Iterator<Item = ClusterId> + '_ {
        self.shares().iter().map(|weighted| weighted.cluster)
    }
}

/// One cluster serves everything.
impl From<ClusterId> for RouteAction {
    fn from(cluster: ClusterId) -> Self {
        Self::Clusters(vec![WeightedCluster { cluster, weight: 1, changes: None }])
    }
}

/// The policies of a route. The default only retries what is safe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoutePolicy {
    /// What the certificate of a client must be, before anything else is looked at; `None` means nothing.
    pub client_cert: Option<Arc<ClientCertRule>>,
    /// The clients that may use the route; others are answered 403.
    pub addresses: AddressRules,
    /// The clusters that get a copy of requests.
    pub mirrors: Vec<Mirror>,
    /// When a request is sent again.
    pub retry: Retry,
    /// Changes to requests and responses. A cluster of the route may have others ([`Route::changes`](crate::Route::changes)).
    pub changes: Changes,
    /// Changes to the headers of the responses that Steelyard makes itself.
    pub own_headers: HeaderChanges,
    /// Changes to URLs and cookies in the responses of endpoints; `None` means none.
    pub response_rewrite: Option<Box<ResponseRewrite>>,
    /// How many requests one client may make.
    pub rate_limit: Option<RateLimit>,
    /// How many requests of one client are served at once.
    pub concurrency_limit: Option<Box<ConcurrencyLimit>>,
    /// How fast each response of an endpoint goes to its client; `None` means as fast as it can.
    pub response_bandwidth: Option<ResponseBandwidth>,
    /// Which scripts of other origins may use the route; `None` means that the endpoints decide it.
    pub cors: Option<Box<Cors>>,
    /// How responses are compressed; `None` means not at all.
    pub compression: Option<Box<Compression>>,
    /// The largest body of a request, if that is less than the listener allows; a larger one is answered 413.
    pub body_bytes_max: Option<u64>,
    /// How the bodies of requests are prepared; `None` means not at all.
    pub request_body: Option<Box<RequestBody>>,
    /// What messages say of their way; `None` means that they say nothing. Shared like `auth`.
    pub via: Option<Arc<Via>>,
    /// What requests must prove; `None` means nothing. Shared by all routes that take it from their listener.
    pub auth: Option<Arc<Auth>>,
    /// How much of `addresses`, `auth` and `external_auth` is enough.
    pub satisfy: Satisfy,
    /// The service that is asked whether a request may use the route; `None` means none. Shared like `auth`.
    pub external_auth: Option<Arc<ExternalAuth>>,
    /// The service that counts requests for all instances; `None` means none. Shared like `auth`.
    pub global_rate_limit: Option<Arc<GlobalRateLimit>>,
    /// Responses that are replaced; `None` means none.
    pub intercept_errors: Option<Box<InterceptErrors>>,
    /// The cluster that serves requests while that of the route has no endpoint for them; `None` means none.
    pub fallback: Option<Box<Fallback>>,
    /// Every request is answered 503.
    pub maintenance: bool,
    /// The access log has no line for its requests.
    pub is_unlogged: bool,
    /// How their traces differ from those of other routes; `None` means not at all.
    pub tracing: Option<Arc<RouteTracing>>,
    /// The pages for requests that cannot be served. The first for a status counts, and those of the listener follow.
    pub error_pages: Vec<ErrorPage>,
}

/// The policies of a route, in memory that routes share: most of the thousands of routes of a cluster have the default, and a policy is
/// larger than everything else in its route. Writing to it copies what is shared.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedPolicy(Arc<RoutePolicy>);

impl Default for SharedPolicy {
    fn default() -> Self {
        static DEFAULT: LazyLock<Arc<RoutePolicy>> = LazyLock::new(Arc::default);
        Self(DEFAULT.clone())
    }
}

impl From<RoutePolicy> for SharedPolicy {
    fn from(policy: RoutePolicy) -> Self {
        let default = Self::default();
        if policy == *default { default } else { Self(Arc::new(policy)) }
    }
}

impl Deref for SharedPolicy {
    type Target = RoutePolicy;

    fn deref(&self) -> &RoutePolicy {
        &self.0
    }
}

impl DerefMut for SharedPolicy {
    fn deref_mut(&mut self) -> &mut RoutePolicy {
        Arc::make_mut(&mut self.0)
    }
}

/// Changes to a request on its way to an endpoint, and to the response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Changes to the headers that the endpoint gets.
    pub request_headers: HeaderChanges,
    /// Changes to the headers of an endpoint's response. For responses that Steelyard makes itself, see [`RoutePolicy::own_headers`].
    pub response_headers: HeaderChanges,
    /// Changes to the target of the request.
    pub rewrite: Rewrite,
}

impl Changes {
    /// These changes of a route, with those of one of its clusters. A request passes the route first, and a response the cluster.
    #[must_use]
    pub fn with(&self, cluster: &Self) -> Self {
        let rewrite = Rewrite {
            host: cluster.rewrite.host.clone().or_else(|| self.rewrite.host.clone()),
            path: cluster.rewrite.path.clone().or_else(|| self.rewrite.path.clone()),
        };
        Self {
            request_headers: self.request_headers.then(&cluster.request_headers),
            response_headers: cluster.response_headers.then(&self.response_headers),
            rewrite,
        }
    }
}

/// Replaces responses with some statuses: those of endpoints, and those that Steelyard makes itself. gRPC calls are left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterceptErrors {
    /// First and last of ranges of statuses, from 400 to 599.
    pub statuses: Vec<(u16, u16)>,
    /// Whether responses of endpoints are replaced, too, and not only those that Steelyard makes itself.
    pub of_endpoints: bool,
    /// The cluster that answers instead, the error backend; `None` means that Steelyard answers with its error pages.
    pub to: Option<ClusterId>,
    /// The path that it is asked for. Begins with `/`; `{status}` in it is the status.
    pub path: String,
    /// Changes to the headers that it gets.
    pub request_headers: HeaderChanges,
    /// From the beginning of the request to it to the end of the headers of its response.
    pub timeout: Duration,
}

impl InterceptErrors {
    /// Stands in the path for the status.
    pub const STATUS: &str = "{status}";

    /// Whether a response with this status is replaced.
    pub fn is_on_status(&self, status: u16) -> bool {
        self.statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

/// The cluster that serves requests while that of the route has no endpoint for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The cluster.
    pub to: ClusterId,
    /// Changes to the headers that its endpoints get, after those of the route.
    pub request_headers: HeaderChanges,
}

/// Sends a copy of requests to another cluster, and discards its responses.
#[derive(Clone, Debug, PartialEq)]
pub struct Mirror {
    /// The cluster that gets the copy.
    pub to: ClusterId,
    /// The `Host` of the copy; `None` means that of the request that the endpoint gets.
    pub host: Option<String>,
    /// Share of the requests, 0.0 to 1.0.
    pub share: f64,
    /// Copies only the requests that the route's cluster with this index gets; `None` means all.
    pub only: Option<usize>,
}

/// When a failed request is sent again. Never after any part of the response has gone to the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// How many times it is sent again at most; 0 means never.
    pub attempts: u32,
    /// The connection could not be made, so nothing was sent.
    pub on_connect_failure: bool,
    /// The connection ended before the first byte of the response.
    pub on_reset: bool,
    /// The endpoint did not begin its response within the cluster's response timeout, or `per_try_timeout`.
    pub on_timeout: bool,
    /// First and last of ranges of statuses.
    pub on_statuses: Vec<(u16, u16)>,
    /// gRPC statuses, codes 1 to 16, with which a call failed before anything else of its response.
    pub on_grpc: Vec<u8>,
    /// Also retry methods that are not idempotent (RFC 9110 section 9.2.2: POST, PATCH, unknown ones), although an endpoint may have acted
    /// on them.
    pub non_idempotent: bool,
    /// If there is no other endpoint, try the same one again.
    pub same_endpoint: bool,
    /// Retries as a share of a cluster's requests, 0.0 to 1.0; a few are always allowed.
    pub budget: f64,
    /// From the beginning of a try to the end of the response's headers. `None` means only the other timeouts.
    pub per_try_timeout: Option<Duration>,
    /// No try begins later than this after the first one has begun. `None` means that only `attempts` counts.
    pub within: Option<Duration>,
    /// The wait before a try is at least this long, unless the endpoint received nothing and another endpoint takes work.
    pub backoff: Duration,
}

impl Default for Retry {
    /// Retries what is safe, at another endpoint.
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
            // If a part of the cluster fails completely, the rest gets at most a fifth more load. Linkerd and Envoy use the same value.
            budget: 0.2,
            per_try_timeout: None,
            within: None,
            backoff: Duration::ZERO,
        }
    }
}

impl Retry {
    /// The most tries after the first. More of them only add load to a cluster that fails.
    pub const ATTEMPTS_MAX: u32 = 10;

    /// The longest [`Retry::backoff`]. A client that waits longer has mostly given up.
    pub const BACKOFF_MAX: Duration = Duration::from_secs(60);

    /// No retries.
    pub fn off() -> Self {
        Self { attempts: 0, ..Self::default() }
    }

    /// Whether a response with this status is retried.
    pub fn is_on_status(&self, status: u16) -> bool {
        self.on_statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

/// Changes to header fields. Names are in lower case. Fields that frame a message, belong to one hop, or name the host cannot be changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// Name and value; the value replaces all fields with the name.
    pub set: Vec<(String, FieldValue)>,
    /// Name and value; added as one more field.
    pub add: Vec<(String, FieldValue)>,
    /// Names; all fields with these names are removed.
    pub remove: Vec<String>,
}

impl HeaderChanges {
    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// The variables in the values.
    pub fn variables(&self) -> impl Iterator<Item = Variable> {
        self.set.iter().chain(&self.add).flat_map(|(_, value)| value.variables())
    }

    /// These changes, followed by others.
    #[must_use]
    pub fn then(&self, next: &Self) -> Self {
        let is_kept = |name: &String| !next.remove.contains(name) && next.set.iter().all(|(set, _)| set != name);
        let kept = |fields: &[(String, FieldValue)]| -> Vec<(String, FieldValue)> {
            fields.iter().filter(|(name, _)| is_kept(name)).cloned().collect()
        };
        let removed = self.remove.iter().filter(|name| !next.remove.contains(name));
        Self {
            set: kept(&self.set).into_iter().chain(next.set.iter().cloned()).collect(),
            add: kept(&self.add).into_iter().chain(next.add.iter().cloned()).collect(),
            remove: removed.chain(&next.remove).cloned().collect(),
        }
    }
}

/// Changes to the target of a request. The query stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The `Host` that the endpoint gets; `X-Forwarded-Host` has the client's.
    pub host: Option<String>,
    /// The path that it gets.
    pub path: Option<PathRewrite>,
}

/// Another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRewrite {
    /// Replaces the whole path. Begins with `/`.
    Full(String),
    /// Replaces the whole path by one that is made of parts of it. Begins with `/`. The route matches by a regular expression.
    Template(Template),
    /// Replaces the prefix that the route matched, at a segment boundary; if the route matches no prefix, it is put before the path. Begins
    /// with `/`; a trailing `/` makes no difference.
    Prefix(String),
}

/// A text with places for what the groups of a regular expression captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(pub Vec<TemplatePart>);

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplatePart {
    /// This text.
    Text(String),
    /// What the group with this number captured; nothing if it took no part in the match. 0 is the whole match.
    Group(usize),
}

/// A redirect. Parts that are `None` stay as the client wrote them; the query does unless the new path has a `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The scheme of the new URL.
    pub scheme: Option<Scheme>,
    /// A name or address without a port.
    pub host: Option<String>,
    /// `None` means the default port of the scheme if a scheme is set; with only a host, the listener's port.
    pub port: Option<u16>,
    /// The path of the new URL.
    pub path: Option<PathRewrite>,
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// `Location` has the path and the query alone; then there is no scheme, host or port here.
    pub is_relative: bool,
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS.
    Http,
    /// Within TLS.
    Https,
}

impl Scheme {
    /// Its name in a URL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The default port of the scheme.
    pub fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// How many requests one client may make, counted over all workers. A request above the limit is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests in each `per`, in the long run.
    pub requests: u32,
    /// See `requests`.
    pub per: Duration,
    /// What identifies a client.
    pub by: RateKey,
    /// How many requests may come at once after a silence; at least 1.
    pub burst: u32,
    /// Further rates. A request needs room in each, and one that is refused counts for none.
    pub also: Vec<FurtherRate>,
    /// The fields that tell a client about the limit.
    pub headers: RateHeaders,
    /// What it has in common with other limits on clients.
    pub terms: LimitTerms,
}

/// A rate beside that of its [`RateLimit`], of the same clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FurtherRate {
    /// See [`RateLimit::requests`].
    pub requests: u32,
    /// See [`RateLimit::per`].
    pub per: Duration,
    /// See [`RateLimit::burst`].
    pub burst: u32,
}

impl RateLimit {
    /// All rates: the requests, in which time, and how many at once.
    pub fn rates(&self) -> impl Iterator<Item = FurtherRate> {
        let Self { requests, per, burst, also, .. } = self;
        std::iter::once(FurtherRate { requests: *requests, per: *per, burst: *burst }).chain(also.iter().copied())
    }
}

/// How many requests of one client are served at once, counted over all workers. A request above the limit is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimit {
    /// Requests at once: from the end of their headers to the end of their responses, or of their tunnels.
    pub requests: u32,
    /// What identifies a client.
    pub by: RateKey,
    /// What it has in common with other limits on clients.
    pub terms: LimitTerms,
}

/// For whom a limit on the requests of clients holds, and what they get above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitTerms {
    /// The networks of clients that are not limited.
    pub except: Vec<IpNet>,
    /// The status of a request above the limit.
    pub status: u16,
    /// The routes whose limit has the same group count together, on all listeners; `None` means that the route counts alone.
    pub group: Option<String>,
}

impl LimitTerms {
    /// RFC 6585 section 4: too many requests.
    pub const STATUS: u16 = 429;
}

impl Default for LimitTerms {
    fn default() -> Self {
        Self { except: Vec::new(), status: Self::STATUS, group: None }
    }
}

/// How fast a response goes to its client. The first bytes go as fast as they can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseBandwidth {
    /// Bytes in each `per`.
    pub bytes: u64,
    /// See `bytes`.
    pub per: Duration,
    /// Bytes that are not slowed down, from the beginning of the response.
    pub after: u64,
}

/// The fields of a response that tell a client about its limits. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RateHeaders {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, as Envoy sends them (draft-polli-ratelimit-headers-03).
    pub x_ratelimit: bool,
    /// `RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers-10).
    pub ratelimit: bool,
}

impl RateHeaders {
    /// Whether a response gets none.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// What identifies a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateKey {
    /// Its address, as trusted proxies report it. Of IPv6 only the first 64 bits, because one client may have all addresses in them.
    ClientIp,
    /// The value of the header with this name, in lower case; the client's address if it is missing.
    Header(String),
}

impl RateKey {
    /// The name of the header that identifies a client, if one does.
    pub fn header(&self) -> Option<&str> {
        match self {
            Self::ClientIp => None,
            Self::Header(name) => Some(name),
        }
    }
}

/// Sends a client back to the endpoint that served it first, by means of a cookie from Steelyard.
///
/// The cookie or header holds a keyed hash of the endpoint's address: no state is kept here, and any Steelyard with the same configuration
/// can read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    /// What the client gets, and sends with its next request.
    pub token: StickyToken,
    /// How long the client keeps a cookie, counted from its first request; `None` means until its session ends.
    pub ttl: Option<Duration>,
    /// The key of the hash. Without it, anyone who knows the cluster's name can find the address behind a cookie by trying addresses.
    pub secret: Option<Secret>,
    /// What browsers are told about the cookie.
    pub scope: CookieScope,
    /// The cookie is one of ingress-nginx instead of a hash: those that it has given keep their endpoints here, and those given here keep them there.
    pub ingress_nginx: Option<IngressNginxSessions>,
}

impl Sticky {
    /// A session in this cookie or header, with the defaults of the file.
    pub fn new(token: StickyToken) -> Self {
        Self { token, ttl: None, secret: None, scope: CookieScope::default(), ingress_nginx: None }
    }
}

/// To which requests browsers add a cookie (RFC 6265bis section 4.1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CookieScope {
    /// Where paths begin. `None` means `/`, and for cookies of ingress-nginx the path of the route.
    pub path: Option<String>,
    /// This host and those below it; `None` means the host of the response alone.
    pub domain: Option<String>,
    /// Whether requests that other sites cause have it.
    pub same_site: SameSite,
    /// Never over HTTP in the clear, also if the client of Steelyard does not use TLS: another proxy in front of it may end TLS.
    pub is_secure: bool,
}

/// The attribute `SameSite` of a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// With requests of the same site, and when a link of another site is followed.
    #[default]
    Lax,
    /// With requests of the same site only.
    Strict,
    /// With all requests. Browsers demand `Secure` then.
    None,
}

/// How ingress-nginx finds the endpoint of a session cookie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IngressNginxSessions {
    /// Its name for the endpoints: `NAMESPACE-SERVICE-PORT`, with the port as the Ingress writes it.
    pub backend: String,
    /// `affinity-mode: persistent`: the cookie names the endpoint. Otherwise it is a key on a consistent hash of the endpoints.
    pub is_persistent: bool,
}

/// Where a client has the hash of its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StickyToken {
    /// In the cookie with this name. Browsers send it again by themselves.
    Cookie(String),
    /// In the header with this name, in lower case. The client has to copy it from the response to its next requests.
    Header(String),
}

impl StickyToken {
    /// The name of the cookie or of the header.
    pub fn name(&self) -> &str {
        match self {
            Self::Cookie(name) | Self::Header(name) => name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_follow_each_other() {
        let pairs = |text: &str| -> Vec<(String, FieldValue)> {
            text.split_whitespace().filter_map(|pair| pair.split_once('=')).map(|(a, b)| (a.into(), b.into())).collect()
        };
        let changes = |set: &str, add: &str, remove: &str| HeaderChanges {
            set: pairs(set),
            add: pairs(add),
            remove: remove.split_whitespace().map(str::to_owned).collect(),
        };
        let check = |first: HeaderChanges, next: HeaderChanges, expect: HeaderChanges| {
            assert_eq!(first.then(&next), expect, "{first:?} then {next:?}");
        };
        let none = HeaderChanges::default();
        check(changes("a=1", "b=1", "c"), none.clone(), changes("a=1", "b=1", "c"));
        check(none, changes("a=1", "b=1", "c"), changes("a=1", "b=1", "c"));
        // The last one decides.
        check(changes("a=1", "a=2", ""), changes("a=3", "", ""), changes("a=3", "", ""));
        check(changes("a=1", "b=1", ""), changes("", "", "a b"), changes("", "", "a b"));
        check(changes("", "", "a"), changes("a=1", "", ""), changes("a=1", "", "a"));
        check(changes("a=1", "", "b"), changes("", "a=2 b=2", "b"), changes("a=1", "a=2 b=2", "b"));
    }

    #[test]
    fn a_cluster_has_the_last_word_on_requests_and_the_route_on_responses() {
        let sets = |value: &str| HeaderChanges { set: vec![("a".into(), value.into())], ..HeaderChanges::default() };
        let changes = |value: &str, host: Option<&str>, path: Option<&str>| Changes {
            request_headers: sets(value),
            response_headers: sets(value),
            rewrite: Rewrite {
                host: host.map(str::to_owned),
                path: path.map(|path| PathRewrite::Full(path.to_owned())),
            },
        };
        let both = changes("route", Some("route.test"), Some("/route")).with(&changes("own", Some("own.test"), None));
        let expect = Changes { response_headers: sets("route"), ..changes("own", Some("own.test"), Some("/route")) };
        assert_eq!(both, expect);
    }
}

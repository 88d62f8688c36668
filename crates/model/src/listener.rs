//! Addresses for downstream connections, and their protocols.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::{
    AddressRules, CaptureListener, Captured, ClusterId, ErrorPage, HostMatcher, ListenerTls, Page, RateLimit, Route,
    RouteAction,
};

/// An address on which downstream connections are accepted.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Unique among the listeners of a snapshot; a label of its metrics.
    pub name: String,
    /// `[::]:port` also accepts IPv4 if the host allows it. With `captured`, it is that of the listener that the connections arrive at.
    pub bind: SocketAddr,
    /// It has no socket, and serves connections that the kernel has redirected to a sidecar; `None` means that it listens on `bind`.
    pub captured: Option<Captured>,
    /// The protocol.
    pub protocol: Protocol,
    /// TLS around the protocol; `None` means no encryption. Only with [`Protocol::Http`], and with [`Protocol::Tls`] if one of its routes
    /// terminates TLS.
    pub tls: Option<ListenerTls>,
    /// Every connection must begin with a PROXY protocol header, v1 or v2; others are refused.
    pub accept_proxy_protocol: bool,
    /// The clients that may use it. HTTP: of each request, as trusted proxies report the client; others are answered 403. Otherwise: of each
    /// connection, as a PROXY protocol header reports the client; others are reset.
    pub addresses: AddressRules,
    /// Open downstream connections; a connection above the limit is answered 503 (HTTP) or closed (TCP), and counted.
    pub connections_max: usize,
    /// Limits on each client.
    pub client_limits: ClientLimits,
}

/// Limits on what one client may have of a listener, over all workers. The default is none. A client is an IPv4 address, or an IPv6 network
/// of 64 bits, because one client may have all addresses in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLimits {
    /// Open connections. The client is the one that the connection comes from, or that a PROXY protocol header names.
    pub connections_max: Option<usize>,
    /// How many requests it may make, as trusted proxies report the client. HTTP only.
    pub requests: Option<RateLimit>,
    /// How fast the bodies of its requests may arrive, on all its connections together, as trusted proxies report the client. HTTP only.
    pub request_bandwidth: Option<Bandwidth>,
    /// The same for the responses of endpoints that it gets.
    pub response_bandwidth: Option<Bandwidth>,
}

impl ClientLimits {
    /// Whether something is counted that clients are remembered for after their connections.
    pub fn counts(&self) -> bool {
        self.requests.is_some() || self.request_bandwidth.is_some() || self.response_bandwidth.is_some()
    }
}

/// How many bytes may move. Bytes above it wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bandwidth {
    /// In each `per`, in the long run.
    pub bytes: u64,
    /// See `bytes`.
    pub per: Duration,
    /// How many may move at once after a silence.
    pub burst: u64,
}

/// The protocol of a listener.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a snapshot has one for each listener, and nearly all are HTTP")]
pub enum Protocol {
    /// HTTP/1.0 and HTTP/1.1; HTTP/2 by prior knowledge, or by ALPN within TLS.
    Http(HttpListener),
    /// Bytes.
    Tcp(TcpListener),
    /// TLS connections, told apart by the name that the client asks for, and then treated as bytes.
    Tls(TlsListener),
    /// Connections that the kernel has redirected to a sidecar; others serve them.
    Capture(CaptureListener),
}

impl Listener {
    /// Where its connections arrive, for an operator: an address, or what a sidecar captures.
    pub fn place(&self) -> String {
        match &self.captured {
            None => self.bind.to_string(),
            Some(captured) => {
                let destinations = captured.destinations.iter().map(ToString::to_string);
                format!("{} {}", captured.direction.name(), destinations.collect::<Vec<_>>().join(","))
            }
        }
    }
}

/// A listener that speaks HTTP.
#[derive(Clone, Debug)]
pub struct HttpListener {
    /// In the order of the source. The first matching route wins, and a more specific host comes before a less specific one. Shared: a
    /// snapshot that only differs in other things has the same routes in memory, and a plane can keep what it derived from them.
    pub routes: Arc<[Route]>,
    /// Hosts with routes of their own. A request belongs to the most specific of these hosts that matches its own, and only routes with
    /// hosts within that one can take it. If the listener has TLS, a request must belong to the same one as the name that its connection
    /// was made for; otherwise it is answered 421. Empty means that the most specific route that matches takes a request, and that the
    /// certificates decide which requests a connection may carry.
    pub isolated_hosts: Vec<HostMatcher>,
    /// Downstream addresses whose `X-Forwarded-*` and `Forwarded` headers are trusted and extended; those of any other are replaced.
    pub trusted_proxies: Vec<IpNet>,
    /// The headers that are sent upstream.
    pub forwarded: ForwardedHeaders,
    /// The endpoint gets the client's address in `X-Real-IP`.
    pub x_real_ip: bool,
    /// The names that header fields of a request may have. Fields with other names are dropped before anything looks at them.
    pub header_names: HeaderNames,
    /// Connections whose TLS does not end here. Shared, like `routes`.
    pub passthrough: Arc<[Passthrough]>,
    /// Clients may speak HTTP/2.
    pub http2: bool,
    /// Every request gets an id; `None` means that `X-Request-ID` is a header like any other.
    pub request_id: Option<RequestId>,
    /// How paths are compared and forwarded.
    pub paths: PathRules,
    /// Limits on what clients may send to this listener.
    pub limits: ListenerLimits,
    /// The pages for requests that cannot be served, after those of a route. The first for a status counts.
    pub error_pages: Box<[ErrorPage]>,
}

/// Names whose connections a listener of HTTPS does not decrypt. Among the names of all entries and the hosts of all routes, the most specific one
/// that matches the name that a client asks for decides; of an entry and a route with the same name, the entry does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// At least one.
    pub sni: Vec<HostMatcher>,
    /// The cluster of the connections.
    pub to: ClusterId,
    /// How long both directions may be silent; then the connection is closed.
    pub idle_timeout: Duration,
}

impl HttpListener {
    /// All pages of the listener and of its routes.
    pub fn pages(&self) -> impl Iterator<Item = &Page> {
        let fixed = self.routes.iter().filter_map(|route| match &route.to {
            RouteAction::Respond(response) => response.page.as_ref(),
            RouteAction::Clusters(_) | RouteAction::Redirect(_) => None,
        });
        let errors = self.routes.iter().flat_map(|route| &route.policy.error_pages).chain(self.error_pages.iter());
        fixed.chain(errors.map(|error| &error.page))
    }
}

/// Which headers tell the endpoint about the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedHeaders {
    /// `X-Forwarded-For`, `-Proto`, `-Host`: the default.
    XForwarded,
    /// `Forwarded` (RFC 7239).
    Rfc7239,
    /// All four.
    Both,
    /// Those that ingress-nginx sends: `X-Forwarded-For`, `-Proto`, `-Host`, `-Port` and `-Scheme`, `X-Scheme`, and what the client has sent
    /// in `X-Forwarded-For` and `-Host` in `X-Original-Forwarded-For` and `-Host`. The port of a client with TLS is 443.
    IngressNginx,
    /// None. Headers from a client are removed unless it is a trusted proxy.
    Off,
}

/// Names of header fields. Software that maps `-` and `_` to the same character (CGI, WSGI) takes one name for another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeaderNames {
    /// All that are allowed in HTTP.
    #[default]
    Any,
    /// Letters, digits, `-` and `_`.
    Underscores,
    /// Letters, digits and `-`.
    Strict,
}

impl HeaderNames {
    /// Whether a field may have this name.
    pub fn allows(self, name: &[u8]) -> bool {
        let underscores = match self {
            Self::Any => return true,
            Self::Underscores => true,
            Self::Strict => false,
        };
        name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-' || underscores && *byte == b'_')
    }
}

/// How requests get their ids, which endpoints get as `X-Request-ID`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// From whom an id is taken.
    pub keep: KeepRequestId,
    /// The client gets the id, too, in every response.
    pub in_response: bool,
}

impl Default for RequestId {
    fn default() -> Self {
        // A stranger's id could be that of another request, and would mislead who searches logs by it.
        Self { keep: KeepRequestId::Trusted, in_response: false }
    }
}

/// Whose `X-Request-ID` is kept. A request without one gets a new id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepRequestId {
    /// Those of trusted proxies.
    Trusted,
    /// Those of all clients.
    Always,
    /// None.
    Never,
}

/// How the paths of requests are compared with those of routes, and forwarded. Routes always see the normal form (RFC 3986 section 6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRules {
    /// In the normal form, `//` is `/`.
    pub merge_slashes: bool,
    /// The path to forward if no route rewrites it.
    pub forward: ForwardPath,
    /// A path that can be read in two ways is answered 400.
    pub refuse_ambiguous: bool,
}

/// The form of the path that an endpoint gets, and that a redirect keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardPath {
    /// The path that the client wrote.
    Received,
    /// The normal form, which the routes saw.
    Normal,
}

impl Default for PathRules {
    fn default() -> Self {
        // Routes compare merged slashes because most endpoints merge them: a limit on `/admin` must also apply to `//admin`. The forwarded
        // path stays unchanged: signatures of requests cover its exact bytes, and object stores have keys with two slashes.
        Self { merge_slashes: true, forward: ForwardPath::Received, refuse_ambiguous: false }
    }
}

/// Limits on what clients may send to an HTTP listener. Each limit has a status and a reason by which it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Bytes of the request line and the headers together; a larger request is answered 431 (414 if the request line alone is too long).
    pub header_bytes_max: usize,
    /// Header fields; a request with more is answered 431.
    pub header_count_max: usize,
    /// Bytes of a request body, as framed; a larger body is answered 413. `None` means no limit.
    pub body_bytes_max: Option<u64>,
    /// Whether an HTTP/1 client that ends its side before its response is complete counts as gone, so that its request is given up.
    /// Otherwise it still gets its response.
    pub abort_on_half_close: bool,
    /// From the first byte of a request, or from accept, to the end of its headers; then 408.
    pub header_timeout: Duration,
    /// The longest pause within a request body (then 408), or while the client does not read its response (then the connection is closed).
    pub stall_timeout: Duration,
    /// How slow a client may be within a request body, or in reading its response; then as above. `None` means that only `stall_timeout`
    /// applies.
    pub min_rate: Option<MinRate>,
    /// When to send PING to an HTTP/2 client; `None` means never.
    pub ping: Option<Ping>,
    /// How long a keep-alive connection may wait for its next request; then it is closed without a response.
    pub idle_timeout: Duration,
    /// How long both sides of a tunnel (after 101) may be silent; then it is closed.
    pub tunnel_idle_timeout: Duration,
    /// Requests on one connection; the response to the last one has `Connection: close`, or GOAWAY follows it. `None` means no limit.
    pub requests_per_connection_max: Option<u64>,
    /// Concurrent requests on one HTTP/2 connection, as announced in SETTINGS.
    pub streams_per_connection_max: u32,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            // 32 KiB: large cookies and bearer tokens fit; HAProxy's 16 KiB and nginx's 8 KiB lines are a well-known cause of 400s and
            // 502s.
            header_bytes_max: 32 * 1024,
            // More than browsers and meshes send (Envoy: 100); bounds the work of one head.
            header_count_max: 100,
            body_bytes_max: None,
            header_timeout: Duration::from_secs(10),
            abort_on_half_close: false,
            stall_timeout: Duration::from_secs(60),
            min_rate: Some(MinRate::default()),
            ping: Some(Ping::default()),
            idle_timeout: Duration::from_secs(75),
            tunnel_idle_timeout: Duration::from_secs(3600),
            requests_per_connection_max: None,
            // The smallest value that RFC 9113 section 6.5.2 recommends, which clients expect: gRPC clients make another connection, or
            // wait.
            streams_per_connection_max: 100,
        }
    }
}

/// The rate at which a client must move bytes while Steelyard waits for it and for nothing else.
///
/// A client begins with `grace`; the bytes that it moves give it more time, and waiting for it uses the time up. It can save up time, to at
/// most the listener's stall timeout: a client that was fast may pause, and one that is slow from the first byte is detected after `grace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// This many bytes, at least 1,
    pub bytes: u64,
    /// in this time, at least a millisecond.
    pub per: Duration,
    /// The initial time, see above.
    pub grace: Duration,
}

impl Default for MinRate {
    fn default() -> Self {
        // The rate is Kestrel's, and that of a modem with 2,400 bits a second. The grace is twice as long: a segment that is lost three
        // times arrives after seven seconds, and a client with such a link is no attacker.
        Self { bytes: 240, per: Duration::from_secs(1), grace: Duration::from_secs(10) }
    }
}

/// When to send PING (RFC 9113 section 6.7) to the other side of an HTTP/2 connection, and when to give the connection up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// The silence, while a request is in progress, after which PING is sent.
    pub after: Duration,
    /// The silence after PING after which the connection is given up.
    pub timeout: Duration,
}

impl Default for Ping {
    fn default() -> Self {
        // The first is half of what a silent endpoint gets, and what Kubernetes uses; the second is what gRPC libraries use.
        Self { after: Duration::from_secs(30), timeout: Duration::from_secs(20) }
    }
}

/// A listener that forwards bytes.
#[derive(Clone, Debug)]
pub struct TcpListener {
    /// The cluster of every connection.
    pub to: ClusterId,
    /// How long both directions may be silent; then the connection is closed.
    pub idle_timeout: Duration,
}

/// A listener that forwards TLS connections by the name that the client asks for: decrypted, or as they are.
#[derive(Clone, Debug)]
pub struct TlsListener {
    /// In the order of the file. The first match wins, and a more specific name comes before a less specific one.
    pub routes: Vec<TlsRoute>,
    /// Names with routes of their own: a connection belongs to the most specific of these names that matches the one that its client asks
    /// for, and only routes with names within it can take it.
    pub isolated_hosts: Vec<HostMatcher>,
    /// From accept to the end of the handshake, or of the client's first message if TLS passes through; then the connection is closed.
    pub hello_timeout: Duration,
    /// How long both directions may be silent; then the connection is closed.
    pub idle_timeout: Duration,
}

/// Names, and the cluster that serves them.
#[derive(Clone, Debug)]
pub struct TlsRoute {
    /// Any of these names, as the client asks for it (SNI). Empty means every name, and clients that send none.
    pub sni: Vec<HostMatcher>,
    /// The cluster.
    pub to: ClusterId,
    /// Whether TLS ends here, with [`Listener::tls`], or at the endpoint.
    pub mode: TlsMode,
}

/// Where TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    /// Here: the endpoint gets the decrypted bytes.
    Terminate,
    /// At the endpoint: it gets the bytes as the client sent them.
    Passthrough,
}

//! Where downstream connections arrive, and what is spoken there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;

use crate::{ClusterId, HostMatcher, ListenerTls, Route};

/// An address on which downstream connections are accepted.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Unique among the listeners of a snapshot; the label of its metrics.
    pub name: String,
    /// `[::]:port` accepts IPv4 too where the host allows it.
    pub bind: SocketAddr,
    /// What is spoken.
    pub protocol: Protocol,
    /// It is spoken within TLS; `None`: in the clear. Only with [`Protocol::Http`].
    pub tls: Option<ListenerTls>,
    /// Every connection begins with a PROXY protocol header, v1 or v2, and is refused without one.
    pub accept_proxy_protocol: bool,
    /// Open downstream connections; one more is answered 503 (HTTP) or closed (TCP), and counted.
    pub connections_max: usize,
}

/// What is spoken on a listener.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// HTTP/1.0 and HTTP/1.1; HTTP/2 by prior knowledge, or by ALPN within TLS.
    Http(HttpListener),
    /// Bytes.
    Tcp(TcpListener),
    /// TLS that is not opened.
    TlsPassthrough(PassthroughListener),
}

/// A listener that speaks HTTP.
#[derive(Clone, Debug)]
pub struct HttpListener {
    /// In the order of the source; the first that matches wins, the more specific host first. Shared: a snapshot that differs in other things
    /// alone has the very same ones, and what a plane has made of them still holds.
    pub routes: Arc<[Route]>,
    /// Downstream addresses whose `X-Forwarded-*` and `Forwarded` are believed and extended; from any other they are replaced.
    pub trusted_proxies: Vec<IpNet>,
    /// Which of them are sent upstream.
    pub forwarded: ForwardedHeaders,
    /// How paths are compared and passed on.
    pub paths: PathRules,
    /// What a client may ask of this listener.
    pub limits: ListenerLimits,
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
    /// None; those that a client sent are removed unless it is a trusted proxy.
    Off,
}

/// How the paths of requests are compared with those of routes, and passed on. Routes always see the normal form (RFC 3986 section 6.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRules {
    /// In the normal form, `//` is `/`.
    pub merge_slashes: bool,
    /// What goes on where no route rewrites it.
    pub forward: ForwardPath,
    /// A path that can be read in two ways is answered 400.
    pub refuse_ambiguous: bool,
}

/// Which form of a path an endpoint is asked for, and a redirect that keeps the path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardPath {
    /// What the client wrote.
    Received,
    /// The normal form, which the routes saw.
    Normal,
}

impl Default for PathRules {
    fn default() -> Self {
        // Routes compare merged slashes because most endpoints merge them: a limit on `/admin` must hold for `//admin`. What goes on stays as it
        // is: signatures of requests cover the very bytes, and object stores have keys with two slashes.
        Self { merge_slashes: true, forward: ForwardPath::Received, refuse_ambiguous: false }
    }
}

/// What a client may ask of an HTTP listener. Each limit has a status and a reason by which it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Bytes of the request line and headers together; more is answered 431 (414 where the request line alone is too long).
    pub header_bytes_max: usize,
    /// Header fields; more is answered 431.
    pub header_count_max: usize,
    /// Bytes of a request body, as framed; more is answered 413. `None`: no limit.
    pub body_bytes_max: Option<u64>,
    /// A client of HTTP/1 that ends its side before its response is complete has left: its request is given up. Otherwise it still gets its
    /// response.
    pub abort_on_half_close: bool,
    /// From the first byte of a request, or from accept, to the end of its headers; then 408.
    pub header_timeout: Duration,
    /// The longest silence within a request body (then 408), or while the client does not read its response (then the connection is closed).
    pub stall_timeout: Duration,
    /// How slow a client may be within a request body, or in reading its response; then as above. `None`: only silence is judged.
    pub min_rate: Option<MinRate>,
    /// When a client of HTTP/2 is asked for a sign of life; `None`: never.
    pub ping: Option<Ping>,
    /// How long a keep-alive connection may wait for its next request; then it is closed in silence.
    pub idle_timeout: Duration,
    /// The longest silence of both sides of a tunnel (after 101); then it is closed.
    pub tunnel_idle_timeout: Duration,
    /// Requests on one connection; the last one is answered with `Connection: close`, or followed by GOAWAY. `None`: no limit.
    pub requests_per_connection_max: Option<u64>,
    /// Requests at once on one connection of HTTP/2; announced.
    pub streams_per_connection_max: u32,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            // 32 KiB: large cookies and bearer tokens fit; HAProxy's 16 KiB and nginx's 8 KiB lines are a well-known cause of 400s and 502s.
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
            // What RFC 9113 section 6.5.2 recommends at least, and clients expect: those of gRPC make another connection, or wait.
            streams_per_connection_max: 100,
        }
    }
}

/// The least that a client has to move while it is waited for, which is while nothing else is in the way.
///
/// It begins with `grace`; what it moves gives it more time, and waiting for it takes the time away. Time that is left over is kept, up to the
/// listener's stall timeout: a client that was fast may pause, and one that is slow from the first byte on is found out after `grace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinRate {
    /// So many bytes, at least 1,
    pub bytes: u64,
    /// in so long, at least a millisecond.
    pub per: Duration,
    /// See above.
    pub grace: Duration,
}

impl Default for MinRate {
    fn default() -> Self {
        // The rate is Kestrel's, and that of a modem of 2,400 bits a second. The grace is twice as long: a segment that is lost three times
        // over arrives after seven seconds, and whoever has such a link is no attacker.
        Self { bytes: 240, per: Duration::from_secs(1), grace: Duration::from_secs(10) }
    }
}

/// When the other side of a connection of HTTP/2 is asked for a sign of life, by PING (RFC 9113 section 6.7), and given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ping {
    /// When nothing has come for so long while a request is under way.
    pub after: Duration,
    /// When nothing has come for so long behind the question, the connection is given up.
    pub timeout: Duration,
}

impl Default for Ping {
    fn default() -> Self {
        // The first is half of what a silent endpoint is given, and what Kubernetes takes; the second is what gRPC's libraries take.
        Self { after: Duration::from_secs(30), timeout: Duration::from_secs(20) }
    }
}

/// A listener that moves bytes.
#[derive(Clone, Debug)]
pub struct TcpListener {
    /// Where every connection goes.
    pub to: ClusterId,
    /// The longest silence of both directions together; then the connection is closed.
    pub idle_timeout: Duration,
}

/// A listener that moves the bytes of TLS connections by the name that the client asks for, and does not open them.
#[derive(Clone, Debug)]
pub struct PassthroughListener {
    /// In the order of the file; the first that matches wins, the more specific name first.
    pub routes: Vec<PassthroughRoute>,
    /// From accept to the end of the client's first message; then the connection is closed.
    pub hello_timeout: Duration,
    /// The longest silence of both directions together; then the connection is closed.
    pub idle_timeout: Duration,
}

/// Names, and the cluster that serves them.
#[derive(Clone, Debug)]
pub struct PassthroughRoute {
    /// One of these is the name that the client asks for (SNI). Empty: any, or none.
    pub sni: Vec<HostMatcher>,
    /// Who serves it.
    pub to: ClusterId,
}

//! Endpoints that serve the same thing, and the policy for choosing among them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{ClusterTls, Outside, Ping, ProxyProtocol, RequestPart, Sticky};

/// The index of a cluster in [`crate::Snapshot::clusters`]. Valid only in the snapshot that it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterId(pub usize);

/// Endpoints that serve the same thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Unique among the clusters of a snapshot; a label of its metrics.
    pub name: String,
    /// Empty if nothing serves it at present.
    pub endpoints: Vec<Endpoint>,
    /// It stands for something that was named and does not exist, or that may not be used. HTTP requests get 500 and not 503, because after
    /// a 503 a client would try again. It has no endpoints and never will.
    pub is_missing: bool,
    /// The protocol towards the endpoints. Only HTTP uses it; TCP bytes are passed on unchanged.
    pub protocol: ClusterProtocol,
    /// How an endpoint is chosen.
    pub algorithm: Algorithm,
    /// How a client returns to the endpoint that served it before; `None` means that the algorithm chooses each time. HTTP only.
    pub sticky: Option<Sticky>,
    /// `None` means that endpoints count as healthy.
    pub health_check: Option<HealthCheck>,
    /// TCP connections, WebSockets and other tunnels to an endpoint whose probes begin to fail are closed.
    pub closes_on_unhealthy: bool,
    /// How real requests eject an endpoint; `None` means never.
    pub outlier: Option<Outlier>,
    /// The share of the endpoints' weight, 0.0 to 1.0. If less than this is usable, health and ejection are ignored.
    pub panic_threshold: f64,
    /// The share of the weight of the endpoints in this process's zone, 0.0 to 1.0. While this much of it is usable, requests stay in the zone.
    pub zone_threshold: f64,
    /// How long it takes until an endpoint that has become usable has its whole weight, beginning with a tenth; zero means at once.
    pub slow_start: Duration,
    /// The limits of the breaker.
    pub limits: ClusterLimits,
    /// From the start of the TCP handshake to its end.
    pub connect_timeout: Duration,
    /// The longest silence of an endpoint while a response is due or in progress; then 504, or the connection is closed if the head was
    /// already sent.
    pub response_timeout: Duration,
    /// How long an unused upstream connection is kept. A shorter `Keep-Alive: timeout` of the endpoint takes precedence.
    pub idle_timeout: Duration,
    /// When to send PING to an endpoint that speaks HTTP/2; `None` means never.
    pub ping: Option<Ping>,
    /// Unused upstream HTTP/1.1 connections that each worker keeps for each endpoint; zero means that connections are not reused.
    pub idle_connections_max: usize,
    /// The PROXY protocol header to send at the start of each upstream connection. HTTP connections are then not shared between downstream
    /// connections.
    pub send_proxy_protocol: Option<ProxyProtocol>,
    /// TLS towards the endpoints; `None` means no encryption.
    pub tls: Option<ClusterTls>,
    /// Somebody else than the operator named the endpoints; `None` means that the operator did, or that they are those of a Service.
    pub outside: Option<Outside>,
}

/// The version of HTTP towards endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterProtocol {
    /// HTTP/1.1: one request at a time on a connection.
    #[default]
    H1,
    /// HTTP/2, with many concurrent requests: by prior knowledge in the clear (RFC 9113 section 3.3), or by ALPN if [`Cluster::tls`] is
    /// set. An endpoint that does not speak it fails; there is no fallback.
    H2,
}

/// One address of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The address or the name.
    pub address: EndpointAddress,
    /// 0 to 65535, relative to the others; 0 takes no new work.
    pub weight: u32,
    /// Endpoints of the lowest number take the requests while enough of them are usable; see [`Cluster::panic_threshold`].
    pub priority: u8,
    /// Whether it is in the zone of this process.
    pub zone: Zone,
    /// The name from which the address was resolved. `None` if the address was given, or the name has not been resolved yet.
    pub host: Option<String>,
}

/// Where an endpoint is, seen from this process. Only whether its zone is the process's own matters, so there are no names of zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Zone {
    /// The zone of the endpoint or that of this process is not known.
    #[default]
    Unknown,
    /// In the zone of this process.
    Own,
    /// In another zone.
    Other,
}

/// The address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointAddress {
    /// An address and port.
    Socket(SocketAddr),
    /// A name that is resolved at run time: each of its addresses is an endpoint of this weight until its TTL expires.
    Name {
        /// Lower case, without the trailing dot.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A service whose SRV records (RFC 2782) are looked up at run time: each address of each target is an endpoint, with the port of the record, and
    /// the weight and the priority that follow from it. [`Endpoint::weight`] and [`Endpoint::priority`] have no meaning.
    Service {
        /// `_service._protocol.name`, in lower case, without the trailing dot.
        name: String,
    },
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Smooth weighted round robin: over any run of as many picks as the sum of weights, each endpoint gets exactly its weight.
    RoundRobin,
    /// The better of two random endpoints by outstanding requests over weight.
    LeastRequest,
    /// The better of two random endpoints by open connections over weight.
    LeastConnections,
    /// By weight.
    Random,
    /// Consistent hashing (Eisenbud et al., NSDI 2016): the same key goes to the same endpoint from every Steelyard.
    Maglev(HashKey),
    /// The same, with several endpoints for a key: each request goes to one of them at random.
    MaglevSubset {
        /// See [`Algorithm::Maglev`].
        key: HashKey,
        /// How many, from 2 to [`SUBSET_MAX`].
        size: usize,
    },
    /// The better of two random endpoints by a decaying average of latency that jumps up at once, times outstanding requests (Finagle).
    PeakEwma,
}

/// The most endpoints of one key of [`Algorithm::MaglevSubset`]. They are found anew for each request.
pub const SUBSET_MAX: usize = 64;

/// The key of the hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address, as trusted proxies report it.
    ClientIp,
    /// The value of the header with this name, in lower case; the client's address if it is missing.
    Header(String),
    /// The value of the cookie with this name; the client's address if it is missing.
    Cookie(String),
    /// Text made of the request; the client's address if nothing comes out.
    Template(Box<[RequestPart]>),
}

/// An active probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What to ask.
    pub probe: Probe,
    /// The time from the start of one probe to the start of the next, plus or minus a tenth.
    pub interval: Duration,
    /// The time for the whole probe.
    pub timeout: Duration,
    /// Failures in a row that make a healthy endpoint unhealthy.
    pub unhealthy_after: u32,
    /// Successes in a row that make an unhealthy endpoint healthy.
    pub healthy_after: u32,
    /// The port to probe instead of the endpoint's own.
    pub port: Option<u16>,
}

/// What an active probe asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The TCP handshake completes.
    Tcp,
    /// A `GET` has the expected response, in the protocol of the cluster.
    Http(HttpProbe),
    /// `grpc.health.v1.Health/Check` answers SERVING.
    Grpc {
        /// The service to ask about; empty means the endpoint as a whole.
        service: String,
        /// The `:authority`; `None` means the endpoint's address.
        host: Option<String>,
    },
}

/// A `GET`, and the response that it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpProbe {
    /// Begins with `/`.
    pub path: String,
    /// The `Host` header; `None` means the endpoint's address.
    pub host: Option<String>,
    /// Further fields: names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The ranges of statuses that count as success, with their ends.
    pub expect: Vec<(u16, u16)>,
    /// What the beginning of the body must contain; `None` means that the body is not read.
    pub body: Option<String>,
}

impl HttpProbe {
    /// Any status from 200 to 399 counts as success.
    pub fn new(path: &str) -> Self {
        Self { path: path.to_owned(), host: None, headers: Vec::new(), expect: vec![(200, 399)], body: None }
    }
}

/// Passive ejection: real requests act as the probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// Responses from 500 to 599, failed connections, resets and timeouts in a row that eject an endpoint.
    pub consecutive_5xx: u32,
    /// The duration of the first ejection; the n-th in a row lasts n times as long, at most ten times.
    pub eject_for: Duration,
    /// The share of the cluster's endpoints, 0.0 to 1.0, that may be ejected at once. With two or more endpoints, one may always be
    /// ejected.
    pub max_ejected: f64,
}

/// The limits of the breaker. All workers share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterLimits {
    /// Upstream connections in use to each endpoint, over all workers; `None` means no limit. Idle connections do not count.
    pub connections_max: Option<usize>,
    /// Requests that may wait for a connection, in the whole cluster; further ones are answered 503.
    pub pending_max: usize,
    /// How long a request may wait; then 503.
    pub pending_timeout: Duration,
    /// Concurrent requests on one upstream HTTP/2 connection, or fewer if the endpoint allows fewer; above it, another connection is made.
    pub streams_per_connection_max: u32,
}

impl Cluster {
    /// A cluster with the defaults that a careful operator would choose.
    pub fn new(name: impl Into<String>, endpoints: Vec<Endpoint>) -> Self {
        Self {
            name: name.into(),
            endpoints,
            is_missing: false,
            protocol: ClusterProtocol::H1,
            algorithm: Algorithm::RoundRobin,
            sticky: None,
            health_check: None,
            // An endpoint that fails a probe may still serve them.
            closes_on_unhealthy: false,
            outlier: Some(Outlier::default()),
            panic_threshold: 0.3,
            // Those that are left carry at most 1.4 times their load. Envoy overprovisions localities by the same factor.
            zone_threshold: 0.7,
            slow_start: Duration::ZERO,
            limits: ClusterLimits::default(),
            // A lost SYN is sent again after one second, and a second time after three: 3 s survives one loss.
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(60),
            // Below the 60 s and 75 s that origins commonly use, so that we close connections first.
            idle_timeout: Duration::from_secs(45),
            ping: Some(Ping::default()),
            idle_connections_max: 256,
            send_proxy_protocol: None,
            tls: None,
            outside: None,
        }
    }
}

impl Default for Outlier {
    fn default() -> Self {
        Self { consecutive_5xx: 5, eject_for: Duration::from_secs(10), max_ejected: 0.5 }
    }
}

impl Default for ClusterLimits {
    fn default() -> Self {
        Self {
            connections_max: None,
            pending_max: 1024,
            pending_timeout: Duration::from_secs(5),
            // The limit of most endpoints (RFC 9113 section 6.5.2 recommends no less), and few enough that requests on one connection,
            // which the loss of a packet stops together, do not wait for each other for long.
            streams_per_connection_max: 100,
        }
    }
}

impl HealthCheck {
    /// A probe with the defaults: every 2 s, with 1 s to answer, down after 3 failures, up after 2 successes.
    pub fn new(probe: Probe) -> Self {
        Self {
            probe,
            interval: Duration::from_secs(2),
            timeout: Duration::from_secs(1),
            unhealthy_after: 3,
            healthy_after: 2,
            port: None,
        }
    }
}

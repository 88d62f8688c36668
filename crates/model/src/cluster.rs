//! Endpoints that serve the same thing, and the policy for choosing among them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{ClusterTls, Ping, ProxyProtocol, Sticky};

/// The place of a cluster in [`crate::Snapshot::clusters`]. Valid in the snapshot that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterId(pub usize);

/// Endpoints that serve the same thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Unique among the clusters of a snapshot; the label of its metrics.
    pub name: String,
    /// None where nobody serves it at present.
    pub endpoints: Vec<Endpoint>,
    /// It stands for something that was named and does not exist, or that may not be used: HTTP is answered 500, and not 503, after which a
    /// client would come again. It has no endpoints and never will.
    pub is_missing: bool,
    /// What is spoken with them. Has a meaning for HTTP alone: bytes of TCP go through as they are.
    pub protocol: ClusterProtocol,
    /// How one is chosen.
    pub algorithm: Algorithm,
    /// Which endpoint a client comes back to, where it has been before; `None`: the algorithm chooses each time. HTTP only.
    pub sticky: Option<Sticky>,
    /// `None`: an endpoint is thought healthy.
    pub health_check: Option<HealthCheck>,
    /// What real requests say about an endpoint; `None`: they say nothing.
    pub outlier: Option<Outlier>,
    /// Share of the endpoints' weight, 0.0 to 1.0. When less than this is usable, health and ejection are ignored.
    pub panic_threshold: f64,
    /// How long an endpoint's weight takes to grow from a tenth to whole after it becomes usable; zero: at once.
    pub slow_start: Duration,
    /// The breaker.
    pub limits: ClusterLimits,
    /// From the start of the TCP handshake to its end.
    pub connect_timeout: Duration,
    /// The longest silence of an endpoint while a response is due or under way; then 504, or the connection is cut where the head has gone out.
    pub response_timeout: Duration,
    /// How long an unused upstream connection is kept; less if the endpoint's `Keep-Alive: timeout` says so.
    pub idle_timeout: Duration,
    /// When an endpoint is asked for a sign of life, where HTTP/2 is spoken; `None`: never.
    pub ping: Option<Ping>,
    /// Unused upstream connections of HTTP/1.1 kept by each worker for each endpoint; zero: none is reused.
    pub idle_connections_max: usize,
    /// Sent at the start of each upstream connection. HTTP connections are then not shared between downstream connections.
    pub send_proxy_protocol: Option<ProxyProtocol>,
    /// Connections to the endpoints are encrypted; `None`: in the clear.
    pub tls: Option<ClusterTls>,
}

/// The version of HTTP that is spoken with endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClusterProtocol {
    /// HTTP/1.1: one request at a time on a connection.
    #[default]
    H1,
    /// HTTP/2, many requests at once: by prior knowledge in the clear (RFC 9113 section 3.3), by ALPN where [`Cluster::tls`] is set. An
    /// endpoint that does not speak it fails; there is no falling back.
    H2,
}

/// One address of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Where.
    pub address: EndpointAddress,
    /// 0 to 65535, relative to the others; 0 takes no new work.
    pub weight: u32,
    /// The name by which an address was found. `None`: the address was given, or the name has not been resolved yet.
    pub host: Option<String>,
}

/// Where an endpoint is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EndpointAddress {
    /// An address and port.
    Socket(SocketAddr),
    /// A name, resolved at run time: every address that the name has is an endpoint of this weight, for as long as its TTL says.
    Name {
        /// Lower case, without the trailing dot.
        host: String,
        /// TCP port.
        port: u16,
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
    /// The better of two random endpoints by a decaying average of latency that jumps up at once, times outstanding requests (Finagle).
    PeakEwma,
}

/// What is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashKey {
    /// The client's address, as trusted proxies report it.
    ClientIp,
    /// The value of the header of this name, in lower case; the client's address where there is none.
    Header(String),
    /// The value of the cookie of this name; the client's address where there is none.
    Cookie(String),
}

/// An active probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// What is asked.
    pub probe: Probe,
    /// From the start of one probe to the start of the next, give or take a tenth.
    pub interval: Duration,
    /// For the whole probe.
    pub timeout: Duration,
    /// Failures in a row that make a healthy endpoint unhealthy.
    pub unhealthy_after: u32,
    /// Successes in a row that make an unhealthy endpoint healthy.
    pub healthy_after: u32,
    /// Probe this port instead of the endpoint's own.
    pub port: Option<u16>,
}

/// What an active probe asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The TCP handshake completes.
    Tcp,
    /// `GET path` answers with a status in `expect`, in the protocol of the cluster.
    Http {
        /// Begins with `/`.
        path: String,
        /// The `Host` header; `None`: the endpoint's address.
        host: Option<String>,
        /// First and last status that count as success.
        expect: (u16, u16),
    },
    /// `grpc.health.v1.Health/Check` answers SERVING.
    Grpc {
        /// Which service is asked about; empty: the endpoint as a whole.
        service: String,
        /// The `:authority`; `None`: the endpoint's address.
        host: Option<String>,
    },
}

/// Passive ejection: real requests are the probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlier {
    /// Answers of 500 to 599, resets and timeouts in a row that eject.
    pub consecutive_5xx: u32,
    /// For the first ejection; the n-th in a row lasts n times as long, at most ten times.
    pub eject_for: Duration,
    /// Share of the cluster's endpoints, 0.0 to 1.0, that may be ejected at once; one may always be, of two or more.
    pub max_ejected: f64,
}

/// The breaker. Shared by all workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterLimits {
    /// Upstream connections in use to each endpoint at once, over all workers; `None`: no limit. Idle ones kept for reuse do not count.
    pub connections_max: Option<usize>,
    /// Requests that wait for one of them, cluster-wide; one more is answered 503.
    pub pending_max: usize,
    /// How long one waits; then 503.
    pub pending_timeout: Duration,
    /// Requests at once on one upstream connection of HTTP/2; fewer where the endpoint allows fewer. Then another connection is made.
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
            outlier: Some(Outlier::default()),
            panic_threshold: 0.3,
            slow_start: Duration::ZERO,
            limits: ClusterLimits::default(),
            // A SYN lost once is sent again after one second, twice after three: 3 s survives one loss.
            connect_timeout: Duration::from_secs(3),
            response_timeout: Duration::from_secs(60),
            // Below the 60 s and 75 s that origins commonly use, so that we close first and not they.
            idle_timeout: Duration::from_secs(45),
            ping: Some(Ping::default()),
            idle_connections_max: 256,
            send_proxy_protocol: None,
            tls: None,
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
            // What most endpoints allow (RFC 9113 section 6.5.2 asks for no less), and few enough that requests of one connection, which the
            // loss of one packet stops together, do not wait for each other long.
            streams_per_connection_max: 100,
        }
    }
}

impl HealthCheck {
    /// A probe with the defaults: every 2 s, given 1 s, down after 3 failures, up after 2 successes.
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

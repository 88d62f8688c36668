//! The nouns of Steelyard, as plain data: what the operator wants, with no trace of where it was written.
//!
//! A source (a file, a cluster of Kubernetes) makes a [`Snapshot`]; the planes take it. Nothing here does I/O, holds a lock or knows a plane.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | downstream | the side of the client (an adjective: downstream connection) |
//! | upstream | the side of the endpoint (an adjective: upstream connection) |
//! | listener | an address on which downstream connections are accepted, and the protocol spoken there |
//! | route | conditions on a request, and what becomes of those that meet them |
//! | split | a route's requests dealt over several clusters by weight |
//! | mirror | a cluster that gets a copy of requests, and whose answers nobody sees |
//! | sticky | said of a cluster that sends a client back to the endpoint that served it first |
//! | cluster | a set of endpoints that serve the same thing, and the policy for choosing among them |
//! | endpoint | one address of a cluster |
//! | health check | an active probe |
//! | outlier ejection | taking an endpoint out for a while because of what real requests met there |
//! | ejected | said of an endpoint that outlier ejection has taken out |
//! | drain | finish old work, take no new |
//! | panic threshold | the share of usable endpoints below which health is ignored, since the verdict is more likely wrong than the endpoints |
//! | breaker | a cluster's limits on connections and pending requests; open means no traffic |
//! | vip | a virtual address whose packets the kernel plane sends on to endpoints |
//! | flow | the packets of one connection in one direction, told by addresses, ports and protocol |
//! | conntrack | the table of flows |
//! | snapshot | all of the above at one generation, immutable |
//! | generation | the number of a snapshot; it only grows |
#![forbid(unsafe_code)]

mod admin;
mod cluster;
mod listener;
mod matcher;
mod policy;
mod route;
mod tls;
mod vip;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use admin::{AdminAddress, UNIX_PREFIX};
pub use cluster::{
    Algorithm, Cluster, ClusterId, ClusterLimits, ClusterProtocol, Endpoint, EndpointAddress, HashKey, HealthCheck,
    Outlier, Probe,
};
pub use listener::{
    ForwardPath, ForwardedHeaders, HttpListener, Listener, ListenerLimits, MinRate, PassthroughListener,
    PassthroughRoute, PathRules, Ping, Protocol, TcpListener,
};
pub use matcher::{GRPC_STATUS_NAMES, GrpcMatcher, HostMatcher, PathMatcher, TextMatcher, ValueMatcher};
pub use policy::{
    HeaderChanges, Mirror, PathRewrite, RateKey, RateLimit, Redirect, Retry, Rewrite, RouteAction, RoutePolicy, Scheme,
    Sticky, WeightedCluster,
};
pub use route::Route;
pub use tls::{Certificate, ClientCa, ClusterTls, ListenerTls, Pem, TlsVersion};
pub use vip::{FlowTimeouts, OnUnhealthy, PortRange, SourceRate, Transport, Vip, VipAlgorithm, VipMode};

/// The version of the PROXY protocol (<https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>) sent to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// The line of text, section 2.1.
    V1,
    /// The binary header, section 2.2.
    V2,
}

/// The number of a snapshot. The first is 1; a later snapshot has a greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// All that the operator wants, at one generation. Immutable once made.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Which one this is.
    pub generation: Generation,
    /// Where the control API, `/metrics`, `/healthz` and `/readyz` listen; `None` opens nothing.
    pub admin: Option<AdminAddress>,
    /// Where `/metrics`, `/healthz` and `/readyz` alone are answered; `None` opens nothing.
    pub metrics: Option<SocketAddr>,
    /// Where one line per request or TCP connection goes; `None` writes none.
    pub access_log: Option<AccessLog>,
    /// How names among the endpoints are resolved.
    pub dns: Dns,
    /// The longest a drain takes before what is left is closed.
    pub drain_timeout: Duration,
    /// Memory that the whole process may use, in bytes; `None`: a share of what there is.
    pub memory_max: Option<u64>,
    /// In the order of the file.
    pub listeners: Vec<Listener>,
    /// Indexed by [`ClusterId`]. Shared: one that is the very same in the next snapshot has not changed, and what a plane has made of it still
    /// holds.
    pub clusters: Vec<Arc<Cluster>>,
    /// Served by the kernel plane, in the order of the file.
    pub vips: Vec<Vip>,
    /// Flows that the kernel plane can hold, both directions together counted once.
    pub flows_max: u32,
}

impl Snapshot {
    /// The cluster behind an id of this snapshot. Ids of another snapshot are a bug of the caller.
    pub fn cluster(&self, id: ClusterId) -> &Cluster {
        &self.clusters[id.0]
    }
}

/// One line per request (HTTP) or connection (TCP).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    /// `None` is standard output.
    pub path: Option<PathBuf>,
    /// Text for people, JSON for machines.
    pub format: AccessLogFormat,
}

/// How an access log line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// `key=value` text, the request line quoted.
    Text,
    /// One JSON object a line.
    Json,
}

/// How the names among the endpoints are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Empty: those of the host's resolv.conf.
    pub servers: Vec<SocketAddr>,
    /// A record's TTL is raised to this: a TTL of zero would ask at every request.
    pub ttl_min: Duration,
    /// And lowered to this.
    pub ttl_max: Duration,
}

impl Default for Dns {
    fn default() -> Self {
        Self { servers: Vec::new(), ttl_min: Duration::from_secs(1), ttl_max: Duration::from_secs(300) }
    }
}

//! The nouns of Steelyard as plain data: what the operator wants, without a trace of where it was written.
//!
//! A source (a file, or a Kubernetes cluster) makes a [`Snapshot`], and the planes take it. Nothing here does I/O, holds a lock or knows a
//! plane.
//!
//! # Glossary
//!
//! | word | meaning |
//! |---|---|
//! | downstream | the side of the client (an adjective: downstream connection) |
//! | upstream | the side of the endpoint (an adjective: upstream connection) |
//! | listener | an address on which downstream connections are accepted, and its protocol |
//! | route | conditions on a request, and the action for requests that meet them |
//! | split | the distribution of a route's requests over several clusters by weight |
//! | mirror | a cluster that gets a copy of requests, and whose responses are discarded |
//! | sticky | said of a cluster that sends a client back to the endpoint that served it first |
//! | cluster | a set of endpoints that serve the same thing, and the policy for choosing among them |
//! | endpoint | one address of a cluster |
//! | health check | an active probe |
//! | outlier ejection | the removal of an endpoint for a while because real requests failed there |
//! | ejected | said of an endpoint that outlier ejection has removed |
//! | drain | finish old work, take no new work |
//! | panic threshold | the share of usable endpoints below which health is ignored, because then the verdict is more likely wrong than the endpoints |
//! | breaker | a cluster's limits on connections and pending requests; open means no traffic |
//! | vip | a virtual address whose packets the kernel plane forwards to endpoints |
//! | flow | the packets of one connection in one direction, identified by addresses, ports and protocol |
//! | conntrack | the table of flows |
//! | sidecar | a Steelyard beside one application, in its network namespace |
//! | capture | the redirection of an application's connections to its sidecar |
//! | snapshot | all of the above at one generation, immutable |
//! | generation | the number of a snapshot; it only increases |
#![forbid(unsafe_code)]

mod access_log;
mod addresses;
mod admin;
mod auth;
mod cluster;
mod compression;
mod cors;
mod credentials;
mod external_auth;
mod field_value;
mod global_rate_limit;
mod jwk;
mod jwt;
mod listener;
mod masked;
mod matcher;
mod otlp;
mod outside;
mod policy;
mod reason;
mod request_body;
mod request_part;
mod respond;
mod response_rewrite;
mod route;
mod sidecar;
mod subject;
mod tls;
mod tracing;
mod via;
mod vip;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use access_log::{
    AccessLog, LogConditions, LogField, LogFilter, LogFormat, LogHeader, LogPart, LogTarget, LogValue, Syslog,
    SyslogAddress,
};
pub use addresses::AddressRules;
pub use admin::{AdminAccess, AdminAddress, AdminRole, AdminTls, HolderMatcher, UNIX_PREFIX};
pub use auth::{ApiKeyAuth, Auth, BasicAuth, KeyPlace, Keys, PasswordHash, Satisfy, Secret, Users};
pub use cluster::{
    Algorithm, Cluster, ClusterId, ClusterLimits, ClusterProtocol, Endpoint, EndpointAddress, HashKey, HealthCheck,
    HttpProbe, Outlier, Probe, SUBSET_MAX, Zone,
};
pub use compression::{Compression, Encoding, MediaRange};
pub use cors::{Cors, CorsNames, CorsOrigins, Origin, OriginHost, OriginMatcher};
pub use credentials::{Credential, WrongLine, parse_credentials};
pub use external_auth::{
    AnswerHeaders, AuthBody, AuthCache, AuthCacheKey, AuthCacheTtl, AuthMethod, AuthProtocol, AuthTarget, ExternalAuth,
    GrpcAuth, HttpAuth, SetCookie, SignIn,
};
pub use field_value::{FieldPart, FieldValue, Variable};
pub use global_rate_limit::{DescriptorEntry, DescriptorSource, GlobalRateLimit};
pub use jwk::{Jwk, JwkSet, KeyMaterial};
pub use jwt::{Jwks, JwksUrl, JwtAlgorithm, JwtAuth, claim_path};
pub use listener::{
    Bandwidth, ClientLimits, ForwardPath, ForwardedHeaders, HeaderNames, HttpListener, KeepRequestId, Listener,
    ListenerLimits, MinRate, Passthrough, PathRules, Ping, Protocol, RequestId, TcpListener, TlsListener, TlsMode,
    TlsRoute,
};
pub use masked::HIDDEN;
pub use matcher::{
    GRPC_STATUS_NAMES, GrpcMatcher, HostMatcher, PathMatcher, TextMatcher, ValueMatcher, grpc_status_name,
};
pub use otlp::{Otlp, OtlpHeader, OtlpProtocol};
pub use outside::{Outside, Reach};
pub use policy::{
    Changes, ConcurrencyLimit, CookieScope, Fallback, FurtherRate, HeaderChanges, IngressNginxSessions,
    InterceptErrors, LimitTerms, Mirror, PathRewrite, RateHeaders, RateKey, RateLimit, Redirect, ResponseBandwidth,
    Retry, Rewrite, RouteAction, RoutePolicy, SameSite, Scheme, SharedPolicy, Sticky, StickyToken, Template,
    TemplatePart, WeightedCluster,
};
pub use reason::REASON_NAMES;
pub use request_body::{Decompression, RequestBody, RequestBuffer};
pub use request_part::RequestPart;
pub use respond::{ErrorPage, FixedResponse, Page, PageBody};
pub use response_rewrite::{ResponseRewrite, ToPart, ValueFrom, ValueRewrite};
pub use route::Route;
pub use sidecar::{
    CaptureListener, Captured, Destination, Detect, Direction, Excluded, SpiffeMatcher, UnknownDestination,
};
pub use subject::{ATTRIBUTES, Attribute, SUBJECT_BYTES_MAX, escape_subject_value, respelled};
pub use tls::{
    Certificate, ClientCa, ClientCertMode, ClientCertRule, ClusterTls, HostCertificates, ListenerTls, Pem,
    SubjectAltName, TlsVersion,
};
pub use tracing::{RouteTracing, SpanNamePart, Tracing};
pub use via::Via;
pub use vip::{
    Announce, Announcing, FlowTimeouts, OnUnhealthy, PortRange, SourceRate, Transport, Tunnel, Vip, VipAlgorithm,
    VipMode,
};

/// The version of the PROXY protocol header (<https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>) for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyProtocol {
    /// A line of text, section 2.1.
    V1,
    /// A binary header, section 2.2.
    V2,
}

/// The number of a snapshot. The first is 1; a later snapshot has a larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// Everything that the operator wants, at one generation. Immutable once made.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its number.
    pub generation: Generation,
    /// The address of the control API, `/metrics`, `/healthz` and `/readyz`; `None` opens nothing.
    pub admin: Option<AdminAddress>,
    /// Who may use that address.
    pub admin_access: AdminAccess,
    /// An address for `/metrics`, `/healthz` and `/readyz` only; `None` opens nothing.
    pub metrics: Option<SocketAddr>,
    /// The log with one line per request or TCP connection; `None` writes none.
    pub access_log: Option<AccessLog>,
    /// Which requests are recorded as spans, and the collector that gets these; `None` records none.
    pub tracing: Option<Arc<Tracing>>,
    /// How host names of endpoints are resolved.
    pub dns: Dns,
    /// How long connections are still accepted after SIGTERM, while `/readyz` fails.
    pub drain_delay: Duration,
    /// How long a drain may last before the remaining connections are closed.
    pub drain_timeout: Duration,
    /// Memory that the whole process may use, in bytes; `None` means a share of the available memory.
    pub memory_max: Option<u64>,
    /// In the order of the file.
    pub listeners: Vec<Listener>,
    /// Indexed by [`ClusterId`]. Shared: a cluster at the same place in memory in the next snapshot has not changed, and a plane can keep
    /// what it derived from it.
    pub clusters: Vec<Arc<Cluster>>,
    /// Served by the kernel plane, in the order of the file.
    pub vips: Vec<Vip>,
    /// Flows that the kernel plane can hold, with both directions counted as one.
    pub flows_max: u32,
    /// The control group whose processes' connections to vips are balanced at the socket; `None` balances packets alone.
    pub socket_cgroup: Option<PathBuf>,
    /// What the announcements of vips share.
    pub announcing: Announcing,
}

impl Snapshot {
    /// The cluster with this id. An id of another snapshot is a bug of the caller.
    pub fn cluster(&self, id: ClusterId) -> &Cluster {
        &self.clusters[id.0]
    }
}

/// How host names of endpoints are resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// Empty means those in the host's resolv.conf.
    pub servers: Vec<SocketAddr>,
    /// The lower limit for a TTL: with a TTL of zero, every request would cause a query.
    pub ttl_min: Duration,
    /// The upper limit for a TTL.
    pub ttl_max: Duration,
}

impl Default for Dns {
    fn default() -> Self {
        Self { servers: Vec::new(), ttl_min: Duration::from_secs(1), ttl_max: Duration::from_secs(300) }
    }
}

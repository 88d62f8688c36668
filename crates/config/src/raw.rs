//! The file as it is written: every key, its type, its default and its meaning. The one definition that all else comes from.
//!
//! What the values mean together is the business of [`crate::lower`].

use std::sync::LazyLock;

use model::{
    AccessLogFormat, Algorithm, Cluster, ClusterLimits, ClusterProtocol, Dns, ForwardPath, ForwardedHeaders, HashKey,
    HealthCheck, ListenerLimits, MinRate, Outlier, PathRules, Ping, Probe, ProxyProtocol, TlsVersion,
};

use crate::defaults;
use crate::define::{Kind, Object, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Flag, Int, Many, Named, OneOf, OneOrMany, Read, Scalar, True, unexpected};
use crate::text::{
    Admin, Bind, ByteSize, CookieName, EndpointText, FileName, GrpcName, GrpcService, HeaderName, HostHeader, HostText,
    HttpPath, Label, LogFile, Method, Network, Pattern, Percent, Positive, QueryName, RouteName, RoutePath, Server,
    StatusRange, Text, Wait, duration_text, percent_text, size_text,
};
use crate::yaml::{Node, Value};

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::new("", Vec::new()));
static PROBE: LazyLock<HealthCheck> = LazyLock::new(|| HealthCheck::new(Probe::Tcp));
static LIMITS: LazyLock<ListenerLimits> = LazyLock::new(ListenerLimits::default);
static MIN_RATE: LazyLock<MinRate> = LazyLock::new(MinRate::default);
static PATHS: LazyLock<PathRules> = LazyLock::new(PathRules::default);
static PING: LazyLock<Ping> = LazyLock::new(Ping::default);

keys! {
    /// The whole file.
    pub struct RawFile as "the file" {
        /// Where the control API listens, and `/metrics`, `/healthz` and `/readyz`. It has no passwords, and may change everything: only a
        /// loopback address is taken, or a Unix socket, as `unix:/run/steelyard/admin.sock`, which only the user of the process and root reach.
        optional admin: Admin, default "not opened";
        /// Where `/metrics`, `/healthz` and `/readyz` are answered as well, and nothing else: any address, for scrapers and probes on other hosts.
        optional metrics: Bind, default "not opened";
        /// Where one line goes for each request (HTTP) or connection (TCP): a file, or `stdout`; or an object that says the format too.
        optional access_log: RawAccessLog, default "none written";
        /// How names among the endpoints are resolved.
        optional dns: RawDns, default "as below";
        /// Whether this file and the certificates and keys that it names are read again when they change: what is saved is served within two seconds, and a file with an error leaves everything as it is. `false`: only on `steelyard reload` and SIGHUP.
        optional watch: Flag, default defaults::WATCH.to_string();
        /// The longest a drain takes after SIGTERM before the connections that are left are cut. Listeners that a reload removes drain without limit.
        optional drain_timeout: Wait, default duration_text(defaults::DRAIN_TIMEOUT);
        /// Memory that the whole process may use: its resident anonymous memory, without what the kernel holds for sockets. From three quarters of it on, buffers shrink; from seven eighths on, new connections and requests are refused (503, `memory_full`), and the last eighth is for what is under way.
        optional memory_max: ByteSize<{ 32 << 20 }, { 1 << 50 }>, default "three quarters of the host's memory, or of the control group's limit (cgroup v2) if that is less";
        /// Where connections arrive. The name is the label of the listener's metrics. A file has `listeners` or `vips`, or both.
        optional listeners: Named<Label, RawListener>, default "none";
        /// Who serves them. The name is what `to` names, and the label of the cluster's metrics.
        optional clusters: Named<Label, RawCluster>, default "none";
        /// Virtual addresses that the kernel balances. The name is the label of the vip's metrics. `{}` where they come by `steelyard vip add`.
        optional vips: Named<Label, RawVip>, default "none";
        /// What all vips share.
        optional kernel_plane: RawKernelPlane, default "as below";
    }
}

keys! {
    /// One line for each request or connection.
    pub struct RawAccessLogObject as "an access log" {
        /// The file that lines are added to; `stdout` or `"-"` is standard output.
        optional path: LogFile, default "stdout";
        /// How a line is written.
        optional format: OneOf<AccessLogFormat>, default word(&defaults::ACCESS_LOG_FORMAT);
    }
}

keys! {
    /// How names among the endpoints are resolved. Every address of a name is an endpoint for as long as its TTL says.
    pub struct RawDns as "the resolver" {
        /// Addresses of name servers; the port is 53 where none is given.
        optional servers: OneOrMany<Server>, default "those of resolv.conf";
        /// A TTL is raised to this: one of zero would ask at every request.
        optional ttl_min: Positive, default duration_text(Dns::default().ttl_min);
        /// And lowered to this.
        optional ttl_max: Positive, default duration_text(Dns::default().ttl_max);
    }
}

keys! {
    /// An address on which connections are accepted, and what is spoken there.
    pub struct RawListener as "a listener", one of [to, routes] {
        /// The address and port. `:8080` is port 8080 of every address, IPv4 and IPv6.
        required bind: Bind;
        /// What is spoken.
        required protocol: OneOf<ProtocolName>;
        /// The cluster that every connection (TCP) or request (HTTP) goes to.
        optional to: Label;
        /// Which request goes to which cluster. The first route that matches wins, the more specific host first.
        optional routes: Many<RawRoute>, only "http, tls_passthrough";
        /// Certificates, and what else is asked of a connection before anything is spoken. Must be there with protocol https.
        optional tls: RawListenerTls, default "none", only "https";
        /// Every connection begins with a PROXY protocol header, v1 or v2, and is refused without one. For listeners behind another balancer.
        optional proxy_protocol: Flag, default "false";
        /// What clients may ask.
        optional limits: RawListenerLimits, default "as below";
        /// Addresses or networks whose `X-Forwarded-*` and `Forwarded` headers are believed and extended. From all others they are replaced.
        optional trusted_proxies: OneOrMany<Network>, default "none", only "http";
        /// The headers that tell the endpoint about the client.
        optional forwarded: OneOf<ForwardedHeaders>, default word(&defaults::FORWARDED), only "http";
        /// How the paths of requests are compared with those of routes, and passed on.
        optional paths: RawPaths, default "as below", only "http";
        /// A client of HTTP/1 that ends its side of the connection (FIN) before its response is complete has left: its request leaves the queue, or the connection to the endpoint is closed. With `false` it still gets its response, because a FIN cannot tell a client that has left from one that has nothing more to send. A reset ends the request in either case.
        optional abort_on_half_close: Flag, default "false", only "http";
        /// From the first byte of a request, or from accept, to the end of its headers; then 408. Also the longest that a TLS handshake takes.
        optional header_timeout: Positive, default duration_text(LIMITS.header_timeout), only "http, tls_passthrough";
        /// The longest silence within a request body (then 408), or while the client does not read its response (then the connection is closed). Where `min_rate` gives it less, that counts.
        optional stall_timeout: Positive, default duration_text(LIMITS.stall_timeout), only "http";
        /// The least that a client has to send of its body, or to take of its response, while it is waited for; then 408, or the connection is closed. `off`: only silence is judged, by `stall_timeout`. A call of gRPC may be silent between its messages.
        optional min_rate: RawMinRate, default "on, as below", only "http";
        /// PING to a client of HTTP/2 that is silent while a request is under way. `off`: it is not asked.
        optional ping: RawPing, default "on, as below", only "http";
        /// HTTP: how long a kept-alive connection may wait for its next request. TCP: the longest silence of both directions together. Then it is closed.
        optional idle_timeout: Positive, default format!(
            "{} (http), {} (tcp)", duration_text(LIMITS.idle_timeout), duration_text(defaults::TCP_IDLE_TIMEOUT)
        );
        /// The longest silence of both sides of a tunnel (WebSocket, after 101); then it is closed.
        optional tunnel_idle_timeout: Positive, default duration_text(LIMITS.tunnel_idle_timeout), only "http";
    }
}

keys! {
    /// How connections are encrypted. Files are read again when they change; a pair that does not fit leaves the old one in use. A path that does not begin with `/` is
    /// seen from the folder of this file.
    pub struct RawListenerTls as "the TLS of a listener" {
        /// Which is shown follows from the name that the client asks for and the names in the certificates; the first is shown where none fits.
        required certificates: Many<RawCertificate>;
        /// Clients must show a certificate.
        optional client_ca: RawClientCa, default "none asked for";
        /// Older versions are refused.
        optional min_version: OneOf<TlsVersion>, default word(&defaults::TLS_MIN_VERSION);
    }
}

keys! {
    /// A certificate and its key.
    pub struct RawCertificate as "a certificate" {
        /// A PEM file: the certificate, then those that lead to the root.
        required cert: FileName;
        /// A PEM file: the private key.
        required key: FileName;
        /// A DER file: an OCSP response, which is stapled to the certificate.
        optional ocsp: FileName, default "none stapled";
    }
}

keys! {
    /// Whose certificates clients must show.
    pub struct RawClientCa as "a client CA" {
        /// For these names only. A request for one of them over a connection that was made for another name is answered 421.
        optional hosts: OneOrMany<HostText>, default "every host";
        /// A PEM file: those who may have signed them.
        required ca: FileName;
    }
}

keys! {
    /// How connections to endpoints are encrypted.
    pub struct RawClusterTls as "the TLS of a cluster" {
        /// The name that an endpoint's certificate must carry, and that is asked for.
        optional server_name: HostHeader, default "the name in the endpoint's address, or the address";
        /// A PEM file: those who may have signed it.
        optional ca: FileName, default "those that this host trusts";
        /// Shown to endpoints that ask for one.
        optional certificate: RawCertificate, default "none shown";
        /// false: any certificate is believed. For tests and nothing else.
        optional verify: Flag, default "true";
    }
}

keys! {
    /// What clients may ask of a listener. Each refusal is counted with its reason.
    pub struct RawListenerLimits as "the limits of a listener" {
        /// Open connections; one more is answered 503 (HTTP) or closed (TCP).
        optional connections: Int<1, 10_000_000>, default defaults::CONNECTIONS_MAX.to_string();
        /// The request line and the headers together; more is answered 431, or 414 where the request line alone is too long. From 1KiB to 1MiB.
        optional header_bytes: ByteSize<1024, 1_048_576>, default size_text(LIMITS.header_bytes_max as u64), only "http";
        /// Header fields of one request; more is answered 431.
        optional header_count: Int<1, 256>, default LIMITS.header_count_max.to_string(), only "http";
        /// A request body; more is answered 413.
        optional body_bytes: ByteSize<0, { u64::MAX }>, default "no limit", only "http";
        /// Requests on one connection; the last is answered with `Connection: close`, or followed by GOAWAY.
        optional requests_per_connection: Int<1, 1_000_000_000>, default "no limit", only "http";
        /// Requests at once on one connection of HTTP/2; clients are told.
        optional streams_per_connection: Int<1, 10_000>, default LIMITS.streams_per_connection_max.to_string(), only "http";
    }
}

keys! {
    /// Routes, rewrites and redirects see a path in its normal form (RFC 3986 section 6.2.2): `%61` is `a`, other escapes are in upper case, and `.` and `..` are resolved. So `/%61dmin` and `/x/../admin` take the route of `/admin`. A route's own path is put into the same form, but a regular expression is not.
    pub struct RawPaths as "the paths of a listener" {
        /// In the normal form `//` is `/`, so that `//admin` takes the route of `/admin`.
        optional merge_slashes: Flag, default PATHS.merge_slashes.to_string();
        /// Which form an endpoint is asked for where no route rewrites the path, and a redirect that keeps the path leads to.
        optional forward: OneOf<ForwardPath>, default word(&PATHS.forward);
        /// Answer 400 to a path that others may read differently: with `%2F`, with `\` or `%5C`, with a control character such as `%00`, with a `%` that begins no escape, with a segment such as `..;x`, or with `//..`, which depends on whether slashes are merged first.
        optional refuse_ambiguous: Flag, default PATHS.refuse_ambiguous.to_string();
    }
}

keys! {
    /// Conditions on a request, all of which must hold, and what becomes of what meets them. A route without conditions takes every request.
    pub struct RawRoute as "a route", one of [to, redirect] {
        /// The label of the route's metrics.
        optional name: RouteName, default "made from the conditions", only "http";
        /// One of these: `shop.example.com`, or `*.example.com` for one label or more in front. Compared without port and case.
        optional hosts: OneOrMany<HostText>, default "every host", only "http";
        /// Text is a prefix on the boundaries of segments: `/api` and `/api/` take `/api`, `/api/` and `/api/x`, but not `/apix`. It is no pattern, and `*` is refused. The query is no part of it.
        optional path: RawPath, default "every path", only "http";
        /// One of these. Case matters.
        optional methods: OneOrMany<Method>, default "every method", only "http";
        /// All of these: names of headers, each with the text that one of its values must be.
        optional headers: Named<HeaderName, RawValue>, default "none asked for", only "http";
        /// Calls of gRPC, and of gRPC-Web: `package.Service` for every method of the service, or `package.Service/Method`. Stands for `path` and `methods`, and for the content type; the cluster speaks HTTP/2.
        optional grpc: GrpcName, default "not asked for", only "http";
        /// All of these: names of cookies, each with the text that its value must be.
        optional cookies: Named<CookieName, RawValue>, default "none asked for", only "http";
        /// All of these: names of query parameters, each with the text that its decoded value must be.
        optional query: Named<QueryName, RawValue>, default "none asked for", only "http";
        /// The cluster that serves it; or a list of clusters and their weights, each of which gets its share of the requests. TLS that is passed through goes to one cluster.
        optional to: RawTo;
        /// Send clients elsewhere.
        optional redirect: RawRedirect, only "http";
        /// From the end of the request's headers to the end of the response's; then 504, and DEADLINE_EXCEEDED to a client of gRPC, whose own `grpc-timeout` counts where it is shorter.
        optional timeout: Positive, default "no limit", only "http";
        /// When a request is sent again. `off`: never, but where a kept connection turns out to be closed.
        optional retry: RawRetry, default "another endpoint, twice at most, on connect_failure and reset", only "http";
        /// Who gets a copy of requests. At most 4.
        optional mirror: OneOrMany<RawMirror>, default "nobody", only "http";
        /// What is changed of the headers that the endpoint gets.
        optional request_headers: RawHeaderChanges, default "nothing", only "http";
        /// What is changed of the headers of an endpoint's response. Those that Steelyard makes itself stay as they are.
        optional response_headers: RawHeaderChanges, default "nothing", only "http";
        /// What the endpoint is asked for.
        optional rewrite: RawRewrite, default "what the client asked for", only "http";
        /// How much one client may ask.
        optional rate_limit: RawRateLimit, default "no limit", only "http";
        /// One of these is the name that the client asks for in its first message: `vault.example.com`, or `*.example.com` for one label or more in front.
        optional sni: OneOrMany<HostText>, default "every name, and none", only "tls_passthrough";
    }
}

keys! {
    /// A path that is not a prefix.
    pub struct RawPathObject as "a path", one of [exact, regex] {
        /// The whole path, byte for byte.
        optional exact: RoutePath;
        /// The whole path matches; case matters.
        optional regex: Pattern;
    }
}

keys! {
    /// A condition on a value that is not one text.
    pub struct RawValueObject as "a condition", one of [regex, present] {
        /// The whole value matches; case matters.
        optional regex: Pattern;
        /// It is there, whatever its value.
        optional present: True;
    }
}

keys! {
    /// Endpoints that serve the same thing, and the policy for choosing among them.
    pub struct RawCluster as "a cluster" {
        /// Where they are: `address:port`, or `name:port` for a name that is resolved at run time. At least one.
        required endpoints: Many<RawEndpoint>;
        /// What is spoken with them, where listeners speak HTTP. An endpoint of another version fails: nothing is tried out.
        optional protocol: OneOf<UpstreamName>, default word(&UpstreamName::H1);
        /// How an endpoint is chosen.
        optional balance: RawBalance, default word(&CLUSTER.algorithm);
        /// Clients come back to the endpoint that served them first. HTTP only.
        optional sticky: RawSticky, default "not done";
        /// An active probe of each endpoint.
        optional health_check: RawHealthCheck, default "none: endpoints are thought healthy";
        /// What real requests say about an endpoint. `off`: nothing.
        optional outlier: RawOutlier, default "on, as below";
        /// When less than this share of the endpoints' weight is usable, health and ejection are ignored: the verdict is then more likely wrong than the endpoints.
        optional panic_threshold: Percent, default percent_text(CLUSTER.panic_threshold);
        /// How long the weight of an endpoint takes to grow from a tenth to whole after it becomes usable.
        optional slow_start: Wait, default duration_text(CLUSTER.slow_start);
        /// The breaker.
        optional limits: RawClusterLimits, default "as below";
        /// From the start of the TCP handshake to its end.
        optional connect_timeout: Positive, default duration_text(CLUSTER.connect_timeout);
        /// The longest silence of an endpoint while a response is due or under way; then 504, or the connection is cut where the headers have gone out. HTTP only.
        optional response_timeout: Positive, default duration_text(CLUSTER.response_timeout);
        /// How long an unused upstream connection is kept; less if the endpoint's `Keep-Alive: timeout` says so. HTTP only.
        optional idle_timeout: Positive, default duration_text(CLUSTER.idle_timeout);
        /// PING to an endpoint that is silent while a request is under way; its next try is another endpoint's. `off`: it is not asked. HTTP/2 only.
        optional ping: RawPing, default "on, as below";
        /// Unused upstream connections kept by each worker for each endpoint; 0: none is used again. HTTP/1.1 only.
        optional idle_connections: Int<0, 1_000_000>, default CLUSTER.idle_connections_max.to_string();
        /// The version of the PROXY protocol sent at the start of each upstream connection. HTTP connections are then not shared between clients.
        optional proxy_protocol: OneOf<ProxyProtocol>, default "none sent";
        /// Connections to the endpoints are encrypted. An empty mapping (`{}`) is enough.
        optional tls: RawClusterTls, default "in the clear";
    }
}

keys! {
    /// One address of a cluster.
    pub struct RawEndpointObject as "an endpoint" {
        /// `address:port` or `name:port`.
        required address: EndpointText;
        /// Relative to the others; 0 takes no new work.
        optional weight: Int<0, 65535>, default defaults::WEIGHT.to_string();
    }
}

keys! {
    /// An algorithm with something to say about it.
    pub struct RawBalanceObject as "a balance" {
        /// Consistent hashing: the same key goes to the same endpoint, from every Steelyard.
        required maglev: RawMaglev;
    }
}

keys! {
    /// What is hashed.
    pub struct RawMaglev as "the settings of maglev" {
        /// The client's address as trusted proxies report it, a header or a cookie. Where the header or cookie is missing: the address.
        optional key: RawHashKey, default word(&KeyWord);
    }
}

keys! {
    /// A part of the request that is hashed.
    pub struct RawHashKeyObject as "a hash key", one of [header, cookie] {
        /// The value of this header.
        optional header: HeaderName;
        /// The value of this cookie.
        optional cookie: CookieName;
    }
}

keys! {
    /// An active probe.
    pub struct RawHealthCheck as "a health check", one of [http, grpc, tcp] {
        /// `GET` this path, in the protocol of the cluster, or in HTTP/1.1 from another `port`; the status must be in `expect`.
        optional http: HttpPath;
        /// Ask `grpc.health.v1.Health/Check` about this service; it must be SERVING. `""` asks about the endpoint as a whole.
        optional grpc: GrpcService;
        /// The TCP handshake must complete.
        optional tcp: True;
        /// The `Host` header, or `:authority`. With `http` or `grpc`.
        optional host: HostHeader, default "the endpoint's address";
        /// The status that counts as success, or the first and the last of them. With `http`.
        optional expect: StatusRange, default format!("{}-{}", defaults::EXPECTED_STATUSES.0, defaults::EXPECTED_STATUSES.1);
        /// From the start of one probe to the start of the next, give or take a tenth.
        optional interval: Positive, default duration_text(PROBE.interval);
        /// For the whole probe.
        optional timeout: Positive, default duration_text(PROBE.timeout);
        /// Failures in a row that make a healthy endpoint unhealthy.
        optional unhealthy_after: Int<1, 1000>, default PROBE.unhealthy_after.to_string();
        /// Successes in a row that make an unhealthy endpoint healthy.
        optional healthy_after: Int<1, 1000>, default PROBE.healthy_after.to_string();
        /// Probe this port instead of the endpoint's own.
        optional port: Int<1, 65535>, default "the endpoint's";
    }
}

keys! {
    /// Passive ejection: real requests are the probe.
    pub struct RawOutlierObject as "the outlier ejection" {
        /// Answers of 500 to 599, failed connections, resets and timeouts in a row that eject an endpoint.
        optional consecutive_5xx: Int<1, 1_000_000>, default Outlier::default().consecutive_5xx.to_string();
        /// For the first ejection; the n-th in a row lasts n times as long, at most ten times. It ends early when the endpoint proves that it works: by a health check that passes, but not after answers of 500 to 599; or by serving a request that had nowhere else to go.
        optional eject_for: Positive, default duration_text(Outlier::default().eject_for);
        /// The share of the endpoints that may be ejected at once; one may always be, of two or more. When no more may be, an endpoint that takes no connections changes places with the ejected one that would be back first, if no other endpoint is known to work.
        optional max_ejected: Percent, default percent_text(Outlier::default().max_ejected);
    }
}

keys! {
    /// The breaker: what a cluster takes before it refuses. Shared by all workers.
    pub struct RawClusterLimits as "the limits of a cluster" {
        /// Requests at once at each endpoint; of TCP, connections. An idle connection in the pool does not count, and requests that share one connection of HTTP/2 count one by one.
        optional connections: Int<1, 10_000_000>, default "no limit";
        /// Requests, or connections of TCP, that wait until an endpoint has room, in the whole cluster; one more is answered 503. One whose client leaves waits no longer.
        optional pending: Int<0, 10_000_000>, default ClusterLimits::default().pending_max.to_string();
        /// How long one waits; then 503.
        optional pending_timeout: Positive, default duration_text(ClusterLimits::default().pending_timeout);
        /// Requests at once on one connection of HTTP/2, or fewer where the endpoint allows fewer; then another connection is made.
        optional streams_per_connection: Int<1, 10_000>, default ClusterLimits::default().streams_per_connection_max.to_string();
    }
}

keys! {
    /// How slow a client may be. It begins with `grace`; what it moves gives it more time, and waiting for it takes the time away. Up to `stall_timeout` is kept for later.
    pub struct RawMinRateObject as "a minimum rate" {
        /// So many bytes in each `per`, at least.
        optional bytes: ByteSize<1, { 1 << 40 }>, default size_text(MIN_RATE.bytes);
        /// See `bytes`.
        optional per: Positive, default duration_text(MIN_RATE.per);
        /// The time that a client has before it has moved anything.
        optional grace: Positive, default duration_text(MIN_RATE.grace);
    }
}

keys! {
    /// When the other side of a connection of HTTP/2 is asked for a sign of life, and given up. An endpoint that answers and goes on in silence is asked again only after five minutes: gRPC servers close connections that ask more often.
    pub struct RawPingObject as "the setting of PING" {
        /// When nothing has come for so long.
        optional after: Positive, default duration_text(PING.after);
        /// When then nothing has come for so long, the connection is given up.
        optional timeout: Positive, default duration_text(PING.timeout);
    }
}

/// A value that is one text, or an object for what one text cannot say.
macro_rules! text_or_object {
    ($(#[doc = $doc:literal])* $raw:ident = $text:ty | $object:ty) => {
        $(#[doc = $doc])*
        #[derive(Debug)]
        pub enum $raw {
            Text($text),
            Object($object),
        }

        impl Read for $raw {
            fn kind() -> Kind {
                Kind::Either(vec![<$text as Read>::kind(), <$object as Read>::kind()])
            }

            fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
                match &node.value {
                    Value::Scalar { text, .. } => match <$text as Scalar>::parse(text) {
                        Ok(value) => Some(Self::Text(value)),
                        Err(wrong) => {
                            let other = || format!("it can also be {}", <$object as Read>::kind().expected());
                            let message = format!("{subject}: {}", wrong.message);
                            report.add(node.location, Wrong::new(message).hint(wrong.hint.unwrap_or_else(other)));
                            None
                        }
                    },
                    Value::Map(_) => <$object as Read>::read(node, subject, report).map(Self::Object),
                    other => {
                        report.add(node.location, unexpected(subject, &Self::kind(), other));
                        None
                    }
                }
            }
        }
    };
}

mod policy;
mod vip;

pub use policy::{
    RawHeaderChanges, RawMirror, RawRateKey, RawRateLimit, RawRedirect, RawRetry, RawRetryObject, RawRewrite, RawShare,
    RawSticky, RawTo,
};
pub use vip::{ModeName, RawFlowTimeouts, RawKernelPlane, RawSourceRate, RawVip, RawVipEndpoint};

text_or_object! {
    /// A file, or the file and the format.
    RawAccessLog = LogFile | RawAccessLogObject
}
text_or_object! {
    /// A prefix, or another way to match.
    RawPath = RoutePath | RawPathObject
}
text_or_object! {
    /// The exact text, or another condition.
    RawValue = Text | RawValueObject
}
text_or_object! {
    /// An address, or the address and its weight.
    RawEndpoint = EndpointText | RawEndpointObject
}
text_or_object! {
    /// An algorithm as it is, or with settings.
    RawBalance = OneOf<Algorithm> | RawBalanceObject
}
text_or_object! {
    /// The client's address, or a part of the request.
    RawHashKey = OneOf<KeyWord> | RawHashKeyObject
}
text_or_object! {
    /// `off`, or the settings.
    RawOutlier = OneOf<Off> | RawOutlierObject
}
text_or_object! {
    /// `off`, or the rate.
    RawMinRate = OneOf<Off> | RawMinRateObject
}
text_or_object! {
    /// `off`, or the times.
    RawPing = OneOf<Off> | RawPingObject
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolName {
    Http,
    Https,
    Tcp,
    TlsPassthrough,
}

impl ProtocolName {
    pub fn name(self) -> &'static str {
        word(&self)
    }

    /// Whether a key that belongs to these protocols has a meaning here. What is said of HTTP holds within TLS too.
    pub fn has(self, only: &str) -> bool {
        only.split(", ").any(|name| name == self.name() || (name == "http" && self == Self::Https))
    }
}

/// What is spoken with endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamName {
    H1,
    H2c,
    H2,
}

impl UpstreamName {
    pub fn protocol(self) -> ClusterProtocol {
        match self {
            Self::H1 => ClusterProtocol::H1,
            Self::H2c | Self::H2 => ClusterProtocol::H2,
        }
    }
}

impl RawCluster {
    /// What is spoken with its endpoints; a word that could not be read is not taken for the default.
    pub fn speaks_h1(&self) -> bool {
        match &self.protocol {
            Some(protocol) => protocol.value.0 == UpstreamName::H1,
            None => !self.written.iter().any(|written| written.key == "protocol"),
        }
    }
}

/// The one word among the hash keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyWord;

/// The one word that turns something off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Off;

impl Choice for ProtocolName {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("http", Self::Http, "HTTP/1.0 and HTTP/1.1, and HTTP/2 by prior knowledge"),
        ("https", Self::Https, "the same within TLS, where ALPN offers `h2` and `http/1.1`"),
        ("tcp", Self::Tcp, "bytes, whatever they mean"),
        (
            "tls_passthrough",
            Self::TlsPassthrough,
            "TLS that is not opened, routed by the name that the client asks for",
        ),
    ];
}

impl Choice for UpstreamName {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("h1", Self::H1, "HTTP/1.1, in the clear or within `tls`"),
        ("h2c", Self::H2c, "HTTP/2 in the clear, by prior knowledge"),
        ("h2", Self::H2, "HTTP/2 within `tls`, by ALPN"),
    ];
}

impl Choice for KeyWord {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[("client_ip", Self, "the client's address")];
}

impl Choice for Off {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[("off", Self, "not done")];
}

impl Choice for AccessLogFormat {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("text", Self::Text, "`key=value`, for people"), ("json", Self::Json, "one object a line, for machines")];
}

impl Choice for ForwardPath {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("received", Self::Received, "what the client wrote"),
        ("normal", Self::Normal, "the normal form, which the routes saw"),
    ];
}

impl Choice for ForwardedHeaders {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("x_forwarded", Self::XForwarded, "`X-Forwarded-For`, `-Proto` and `-Host`"),
        ("rfc7239", Self::Rfc7239, "`Forwarded`"),
        ("both", Self::Both, "all four"),
        ("off", Self::Off, "none of them"),
    ];
}

impl Choice for Algorithm {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("round_robin", Self::RoundRobin, "in turn, each by its weight"),
        ("least_request", Self::LeastRequest, "the better of two at random, by outstanding requests over weight"),
        (
            "least_connections",
            Self::LeastConnections,
            "the better of two at random, by connections in use over weight: the same as `least_request`, since each request uses one",
        ),
        ("random", Self::Random, "at random, by weight"),
        ("maglev", Self::Maglev(HashKey::ClientIp), "consistent hashing of the client's address"),
        ("peak_ewma", Self::PeakEwma, "the better of two at random, by recent latency times outstanding requests"),
    ];
}

impl Choice for TlsVersion {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("1.2", Self::V1_2, "RFC 5246"), ("1.3", Self::V1_3, "RFC 8446")];
}

impl Choice for ProxyProtocol {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("v1", Self::V1, "a line of text"), ("v2", Self::V2, "a binary header")];
}

/// The keys of other balancers' files, and of Kubernetes, by what they would be in ours: the object, our key, theirs.
const KEYS_OF_OTHERS: &[(&str, &str, &[&str])] = &[
    (
        "the file",
        "listeners",
        &["http", "https", "tcp", "stream", "server", "servers", "frontend", "frontends", "entryPoints"],
    ),
    ("the file", "clusters", &["upstream", "upstreams", "backend", "backends", "service", "services", "pools"]),
    ("the file", "admin", &["stats", "api"]),
    ("a listener", "bind", &["listen", "address", "addr", "port"]),
    ("a listener", "protocol", &["mode", "type"]),
    (
        "a listener",
        "to",
        &["backend", "default_backend", "use_backend", "proxy_pass", "upstream", "cluster", "service"],
    ),
    ("a listener", "routes", &["location", "locations", "rules", "route"]),
    ("a listener", "tls", &["ssl", "certificates", "certificate", "cert", "ssl_certificate"]),
    ("a route", "path", &["location", "prefix", "uri", "url", "match"]),
    ("a route", "hosts", &["server_name", "domain", "domains", "hostname", "hostnames"]),
    ("a route", "to", &["backend", "use_backend", "proxy_pass", "upstream", "cluster", "service"]),
    (
        "a cluster",
        "endpoints",
        &["server", "servers", "backends", "upstreams", "hosts", "targets", "nodes", "addresses", "load_assignment"],
    ),
    ("a cluster", "balance", &["algorithm", "lb_policy", "policy", "strategy"]),
    ("a cluster", "health_check", &["check", "health", "healthcheck", "health_checks"]),
    ("a cluster", "limits", &["circuit_breakers", "circuit_breaker"]),
    ("a cluster", "outlier", &["outlier_detection"]),
    ("a cluster", "sticky", &["cookie", "session", "sticky_session"]),
    ("an endpoint", "address", &["host", "server", "url", "addr"]),
    ("a health check", "http", &["path", "uri", "url"]),
];

/// The key that another balancer calls by this name, where this object has it.
pub fn meant_by(key: &str, object: &Object) -> Option<&'static str> {
    let is_of = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(key));
    KEYS_OF_OTHERS.iter().find(|(noun, _, names)| *noun == object.noun && is_of(names)).map(|(_, ours, _)| *ours)
}

/// What has this key, when it is not what the operator gave it to.
pub fn owner_of(key: &str) -> Option<&'static str> {
    RawFile::kind().objects().into_iter().find(|object| object.key(key).is_some()).map(|object| object.noun)
}

/// The word that stands for a value; for defaults.
fn word<T: Choice + PartialEq>(value: &T) -> &'static str {
    T::CHOICES.iter().find(|(_, choice, _)| choice == value).map_or("", |(word, ..)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_a_meaning_and_every_default_is_a_text() {
        let found = RawFile::kind().objects();
        assert_eq!(found.len(), 37);
        for (object, key) in found.iter().flat_map(|object| object.keys.iter().map(move |key| (object, key))) {
            let name = key.name;
            assert!(key.doc.len() > 10 && key.doc.ends_with('.'), "{name}: {:?}", key.doc);
            let must = key.required || object.one_of.contains(&name);
            assert_eq!(key.default.as_ref().is_some_and(|text| !text.is_empty()), !must, "the default of {name}");
        }
    }

    #[test]
    fn keys_of_others_stand_for_keys_of_ours() {
        let found = RawFile::kind().objects();
        for (noun, ours, theirs) in KEYS_OF_OTHERS {
            let object = found.iter().find(|object| object.noun == *noun).unwrap_or_else(|| panic!("{noun}"));
            assert!(object.key(ours).is_some(), "{noun}: {ours}");
            assert!(theirs.iter().all(|theirs| object.key(theirs).is_none()), "{noun}: {theirs:?}");
        }
    }

    #[test]
    fn what_one_of_names_are_optional_keys() {
        let found = RawFile::kind().objects();
        for object in found {
            for name in object.one_of {
                assert!(!object.key(name).unwrap().required, "{name}");
            }
        }
    }

    #[test]
    fn words_are_read_as_what_they_stand_for() {
        for (text, algorithm, _) in Algorithm::CHOICES {
            assert_eq!(&OneOf::<Algorithm>::parse(text).unwrap().0, algorithm);
            assert_eq!(word(algorithm), *text);
        }
    }
}

//! The file as it is written: every key with its type, its default and its meaning. This is the only definition; everything else is derived
//! from it.
//!
//! [`crate::lower`] decides what the values mean together.

use std::sync::LazyLock;

use model::{
    Algorithm, Cluster, ClusterLimits, ClusterProtocol, Dns, ForwardPath, ForwardedHeaders, HashKey, HeaderNames,
    ListenerLimits, MinRate, PathRules, ProxyProtocol, SUBSET_MAX, Satisfy, TlsVersion,
};

use crate::defaults;
use crate::define::{Kind, Object, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Flag, Int, Many, Named, OneOf, OneOrMany, Read, Scalar, True, unexpected};
use crate::text::{
    Admin, Bind, ByteSize, ClaimName, ClientNetwork, CookieName, EndpointText, GrpcName, HashTemplate, HeaderName,
    HostText, Label, Method, Network, Pattern, Percent, Positive, QueryName, RouteName, RoutePath, Server, ServiceName,
    SpiffeText, Text, Wait, duration_text, percent_text, size_text,
};
use crate::yaml::{Node, Value};

static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| Cluster::new("", Vec::new()));
static LIMITS: LazyLock<ListenerLimits> = LazyLock::new(ListenerLimits::default);
static MIN_RATE: LazyLock<MinRate> = LazyLock::new(MinRate::default);
static PATHS: LazyLock<PathRules> = LazyLock::new(PathRules::default);

keys! {
    /// The whole file.
    pub struct RawFile as "the file" {
        /// The address of the web page, the control API, `/metrics`, `/healthz` and `/readyz`. Whoever reaches the control API can change
        /// everything. Therefore only a loopback address is allowed, or a Unix socket such as `unix:/run/steelyard/admin.sock`, which only
        /// root and the user of the process can open. Any other address needs `admin_access`.
        optional admin: Admin, default "not opened";
        /// Who may use that address.
        optional admin_access: RawAdminAccess, default "everybody who can connect";
        /// A second address for `/metrics`, `/healthz` and `/readyz`, and nothing else. Any address is allowed, for scrapers and probes on
        /// other hosts.
        optional metrics: Bind, default "not opened";
        /// The log with one line for each request (HTTP) or connection (TCP): a file, or `stdout`, or an object with another target, a
        /// format, fields and conditions.
        optional access_log: RawAccessLog, default "none";
        /// Record requests as spans, and send them to a collector.
        optional tracing: RawTracing, default "none: `traceparent` is a header like any other";
        /// How host names of endpoints are resolved.
        optional dns: RawDns, default "as below";
        /// Whether to read this file, and the files that it names (certificates, keys, pages), again when they change. A saved change takes effect
        /// within two seconds; a file with an error leaves everything as it is. With `false`, only `steelyard reload` and SIGHUP read them
        /// again.
        optional watch: Flag, default defaults::WATCH.to_string();
        /// How long new connections are still accepted and served after SIGTERM, while `/readyz` already fails, so that whatever sends the
        /// traffic can send it elsewhere first. The drain begins after that. A second SIGTERM ends the delay. A handover to a new binary
        /// has no delay.
        optional drain_delay: Wait, default duration_text(defaults::DRAIN_DELAY);
        /// How long a drain lasts, after SIGTERM and `drain_delay`, before the remaining connections are closed. Listeners that a reload
        /// removes drain without a limit.
        optional drain_timeout: Wait, default duration_text(defaults::DRAIN_TIMEOUT);
        /// Memory that the whole process may use: its resident anonymous memory, not counting kernel memory for sockets. From three
        /// quarters of the limit on, buffers shrink. From seven eighths on, new connections and requests are refused (503, `memory_full`),
        /// and the last eighth is left for work in progress.
        optional memory_max: ByteSize<{ 32 << 20 }, { 1 << 50 }>, default "three quarters of the host's memory, or of the control group's \
            limit (cgroup v2) if that is less";
        /// Addresses that accept connections. The name becomes a label of the listener's metrics. A file has `listeners` or `vips`, or
        /// both.
        optional listeners: Named<Label, RawListener>, default "none";
        /// Endpoints that serve the requests. `to` refers to a cluster by its name, which is also a label of the cluster's metrics.
        optional clusters: Named<Label, RawCluster>, default "none";
        /// The zone that this process runs in. Endpoints of a cluster that have this `zone` are preferred: see `zone_threshold`.
        optional zone: Label, default "not known";
        /// Virtual addresses that the kernel balances. The name becomes a label of the vip's metrics. Write `{}` if you add vips with
        /// `steelyard vip add`.
        optional vips: Named<Label, RawVip>, default "none";
        /// Makes this process the sidecar of an application.
        optional sidecar: RawSidecar, default "none";
        /// Settings that all vips share.
        optional kernel_plane: RawKernelPlane, default "as below";
    }
}

keys! {
    /// How host names of endpoints are resolved. Each address of a name is an endpoint until its TTL expires.
    pub struct RawDns as "the resolver" {
        /// Addresses of name servers; the default port is 53.
        optional servers: OneOrMany<Server>, default "those of resolv.conf";
        /// The lower limit for a TTL: with a TTL of zero, every request would cause a query.
        optional ttl_min: Positive, default duration_text(Dns::default().ttl_min);
        /// The upper limit for a TTL.
        optional ttl_max: Positive, default duration_text(Dns::default().ttl_max);
    }
}

keys! {
    /// An address that accepts connections, and the protocol that it speaks.
    pub struct RawListener as "a listener", one of [to, routes] {
        /// The address and port. `:8080` is port 8080 of every address, IPv4 and IPv6. In the file of a sidecar it can also be
        /// `{inbound: 8080}` for the connections to this port of the application, or `{outbound: 10.96.0.20:80}` for those of the application
        /// to this destination.
        required bind: RawBind;
        /// The protocol of the connections.
        required protocol: OneOf<ProtocolName>;
        /// The cluster that every connection (TCP) or request (HTTP) goes to.
        optional to: Label;
        /// Rules that send requests to clusters. The first matching route wins, and a more specific host comes before a less specific one.
        optional routes: Many<RawRoute>, only "http, tls, tls_passthrough";
        /// Certificates and requirements for clients. Required with protocol https, and with protocol tls.
        optional tls: RawListenerTls, default "none", only "https, tls";
        /// Connections whose TLS ends at the endpoint: those of clients that ask for one of these names. They go to a cluster as they are.
        optional passthrough: Many<RawPassthrough>, default "none: TLS ends here", only "https";
        /// Hosts with routes of their own, as the server blocks of nginx and the virtual hosts of Envoy have. A request belongs to the most
        /// specific of these hosts that matches, and only routes whose `hosts` (`sni`) are within it can take it; other requests take the
        /// other routes. A request on a TLS connection that was made for a name of another isolated host is answered 421.
        optional isolated_hosts: OneOrMany<HostText>, default "none: the most specific route that matches takes a request",
            only "http, tls, tls_passthrough";
        /// Every connection must begin with a PROXY protocol header, v1 or v2; others are refused. For listeners behind another load
        /// balancer.
        optional proxy_protocol: Flag, default "false";
        /// Networks of clients that may use it; all others are answered 403 (HTTP) or reset. Of the networks in `allow` and `deny` that have
        /// the client's address, the longest decides.
        optional allow: OneOrMany<ClientNetwork>, default "all that `deny` does not name";
        /// Networks of clients that may not use it; see `allow`.
        optional deny: OneOrMany<ClientNetwork>, default "none that `allow` names";
        /// What requests must prove, on every route that does not say otherwise.
        optional auth: RawAuth, default "nothing", only "http";
        /// A service that is asked about requests, on every route that does not say otherwise.
        optional external_auth: RawExternalAuth, default "none", only "http";
        /// A service that counts requests for all instances, on every route that does not say otherwise.
        optional global_rate_limit: RawGlobalRateLimit, default "none", only "http";
        /// Limits on what clients may send.
        optional limits: RawListenerLimits, default "as below";
        /// Limits on each client.
        optional client_limits: RawClientLimits, default "none";
        /// Addresses or networks whose `X-Forwarded-*` and `Forwarded` headers are trusted and extended. The headers of all other clients
        /// are replaced.
        optional trusted_proxies: OneOrMany<Network>, default "none", only "http";
        /// The headers that tell the endpoint about the client.
        optional forwarded: OneOf<ForwardedHeaders>, default word(&defaults::FORWARDED), only "http";
        /// Whether clients may speak HTTP/2. Without it, HTTP/1.1 is all that is offered within TLS, and in plain text a client that begins with HTTP/2 gets 505.
        optional http2: Flag, default "true", only "http";
        /// The endpoint gets the client's address in `X-Real-IP`, as trusted proxies report it.
        optional x_real_ip: Flag, default "false", only "http";
        /// The names that headers of requests may have. Headers with other names are dropped before anything looks at them: software that
        /// takes `_` for `-` (CGI, WSGI) would take `X_User` for the `X-User` that a proxy sets.
        optional header_names: OneOf<HeaderNames>, default word(&defaults::HEADER_NAMES), only "http";
        /// What requests say of their way through this hop, on every route that does not say otherwise.
        optional via: RawVia, default "none: `Via` is a header like any other", only "http";
        /// Gives every request an id.
        optional request_id: RawRequestId, default "none: `X-Request-ID` is a header like any other", only "http";
        /// How the paths of requests are compared with the paths of routes, and how they are forwarded.
        optional paths: RawPaths, default "as below", only "http";
        /// Pages for requests that cannot be served. The first for a status counts. Connections that are refused before a request is read
        /// get a line of text all the same.
        optional error_pages: Many<RawErrorPage>, default "a line of text with the status and the reason", only "http";
        /// If a HTTP/1 client ends its side of the connection (FIN) before its response is complete, treat the client as gone: its request
        /// leaves the queue, or the connection to the endpoint is closed. With `false` it still gets its response, because a FIN cannot
        /// tell a client that has left from a client that has nothing more to send. A reset ends the request in either case.
        optional abort_on_half_close: Flag, default "false", only "http";
        /// From the first byte of a request, or from accept, to the end of its headers; then 408. It also limits a TLS handshake.
        optional header_timeout: Positive, default duration_text(LIMITS.header_timeout), only "http, tls, tls_passthrough";
        /// The longest pause within a request body (then 408), or while the client does not read its response (then the connection is
        /// closed). A shorter limit from `min_rate` takes precedence.
        optional stall_timeout: Positive, default duration_text(LIMITS.stall_timeout), only "http";
        /// The rate at which a client must send its body, or read its response, while Steelyard waits for it; a slower client gets 408, or
        /// its connection is closed. With `off`, only `stall_timeout` applies. A gRPC call may be silent between its messages.
        optional min_rate: RawMinRate, default "on, as below", only "http";
        /// Sends PING to a HTTP/2 client that is silent while a request is in progress. `off`: never.
        optional ping: RawPing, default "on, as below", only "http";
        /// HTTP: how long a kept-alive connection may wait for its next request. TCP: how long both directions may be silent. After that
        /// the connection is closed.
        optional idle_timeout: Positive, default format!(
            "{} (http), {} (tcp)", duration_text(LIMITS.idle_timeout), duration_text(defaults::TCP_IDLE_TIMEOUT)
        );
        /// How long both sides of a tunnel (WebSocket, after 101) may be silent; then it is closed.
        optional tunnel_idle_timeout: Positive, default duration_text(LIMITS.tunnel_idle_timeout), only "http";
    }
}

keys! {
    /// Names whose connections are not decrypted. The most specific name decides, among these and the `hosts` of routes: with `*.example.com` here,
    /// TLS for a route with `hosts: www.example.com` still ends here. Of the keys of the listener, `allow`, `deny`, `proxy_protocol`, `header_timeout` (for the
    /// client's first message) and the limits on connections apply.
    pub struct RawPassthrough as "a passthrough" {
        /// Any of these names, as the client asks for it in its first message: `vault.example.com`, or `*.example.com` for one or more
        /// labels in front.
        required sni: OneOrMany<HostText>;
        /// The cluster that the connections go to.
        required to: Label;
        /// How long both directions may be silent. After that the connection is closed.
        optional idle_timeout: Positive, default duration_text(defaults::TCP_IDLE_TIMEOUT);
    }
}

keys! {
    /// Conditions on a request, all of which must hold, and the action for requests that meet them. A route without conditions takes every
    /// request.
    pub struct RawRoute as "a route", one of [to, redirect, respond] {
        /// The label of the route's metrics.
        optional name: RouteName, default "made from the conditions, without their values", only "http";
        /// Any of these hosts: `shop.example.com`, or `*.example.com` for one or more labels in front. The port and the case are ignored.
        optional hosts: OneOrMany<HostText>, default "every host", only "http";
        /// Plain text is a prefix that ends at a segment boundary: `/api` and `/api/` both take `/api`, `/api/` and `/api/x`, but not
        /// `/apix`. It is not a pattern, and `*` is refused. The query is not part of the path.
        optional path: RawPath, default "every path", only "http";
        /// Any of these methods. Case matters.
        optional methods: OneOrMany<Method>, default "every method", only "http";
        /// All of these headers: each name with the text that one of its values must equal.
        optional headers: Named<HeaderName, RawValue>, default "any headers", only "http";
        /// gRPC and gRPC-Web calls: `package.Service` for every method of the service, or `package.Service/Method`. It replaces `path` and
        /// `methods`, and also checks the content type; the cluster must speak HTTP/2.
        optional grpc: GrpcName, default "any request", only "http";
        /// All of these cookies: each name with the text that its value must equal.
        optional cookies: Named<CookieName, RawValue>, default "any cookies", only "http";
        /// All of these query parameters: each name with the text that its decoded value must equal.
        optional query: Named<QueryName, RawValue>, default "any query", only "http";
        /// The cluster that serves the requests, or a list of clusters with weights that share them. With the protocols tls and
        /// tls_passthrough it must be one cluster.
        optional to: RawTo;
        /// Redirects clients to another URL.
        optional redirect: RawRedirect, only "http";
        /// Answers requests without an endpoint.
        optional respond: RawRespond, only "http";
        /// From the end of the request's headers to the end of the response's headers; then the client gets 504, or DEADLINE_EXCEEDED if it
        /// is a gRPC client. A shorter `grpc-timeout` of the client takes precedence.
        optional timeout: Positive, default "no limit", only "http";
        /// When a failed request is sent again. `off`: only if a kept connection turns out to be closed.
        optional retry: RawRetry, default "another endpoint, twice at most, on connect_failure and reset", only "http";
        /// Clusters that get a copy of requests. At most 4.
        optional mirror: OneOrMany<RawMirror>, default "none", only "http";
        /// Replaces responses that have some statuses.
        optional intercept_errors: RawInterceptErrors, default "off", only "http";
        /// A cluster that serves the requests while that of `to` has no endpoint for them.
        optional fallback: RawFallback, default "none: such requests get 503", only "http";
        /// Changes to the headers that the endpoint gets.
        optional request_headers: RawHeaderChanges, default "none", only "http";
        /// Changes to the headers of an endpoint's response. Responses that Steelyard makes itself stay as they are; see `all_response_headers`.
        optional response_headers: RawHeaderChanges, default "none", only "http";
        /// Changes to the headers of all responses: those of endpoints, after `response_headers`, and those that Steelyard makes itself, such as
        /// redirects and errors. They leave out what a gRPC call needs.
        optional all_response_headers: RawHeaderChanges, default "none", only "http";
        /// Changes to URLs and cookies in the responses of endpoints.
        optional rewrite_responses: RawResponseRewrite, default "none", only "http";
        /// Changes to the request that the endpoint gets.
        optional rewrite: RawRewrite, default "what the client asked for", only "http";
        /// What the certificate of a client must be. It comes before everything else. The listener's `client_ca` has the CA.
        optional client_cert: RawClientCert, default "what `client_ca` demands", only "http";
        /// Networks of clients that may use the route, as of a listener. A client must pass the lists of both.
        optional allow: OneOrMany<ClientNetwork>, default "all that `deny` does not name", only "http";
        /// Networks of clients that may not use the route; see `allow`.
        optional deny: OneOrMany<ClientNetwork>, default "none that `allow` names", only "http";
        /// What requests must prove. `off`: nothing, although the listener has `auth`.
        optional auth: RawAuth, default "that of the listener", only "http";
        /// All of these claims of the token that the listener's `auth` demands: `name: value`. A claim that begins with `/` is a pointer to a nested
        /// one, such as `/realm_access/roles`. Of a list, any entry may have the value; of `scope` and `scp`, any word.
        optional claims: Named<ClaimName, RawValue>, default "any", only "http";
        /// A service that is asked about requests, after `auth`. `off`: none, although the listener has `external_auth`.
        optional external_auth: RawExternalAuth, default "that of the listener", only "http";
        /// How much of `allow`, `auth` and `external_auth` a request needs. With `any`, what comes first in this order is enough, and the rest is
        /// not looked at. `deny` holds in any case.
        optional satisfy: OneOf<Satisfy>, default word(&Satisfy::All), only "http";
        /// How many requests one client may make.
        optional rate_limit: RawRateLimit, default "no limit", only "http";
        /// How many requests of one client are served at once.
        optional concurrency_limit: RawConcurrencyLimit, default "no limit", only "http";
        /// How fast each response of an endpoint goes to its client.
        optional response_bandwidth: RawResponseBandwidth, default "no limit", only "http";
        /// A service that counts requests for all instances, asked after `external_auth`. `off`: none, although the listener has
        /// `global_rate_limit`.
        optional global_rate_limit: RawGlobalRateLimit, default "that of the listener", only "http";
        /// The scripts of other origins that may use the route.
        optional cors: RawCors, default "the endpoint decides", only "http";
        /// Compress the responses of endpoints for clients that accept it.
        optional compress: RawCompress, default "off", only "http";
        /// Answer requests with a larger body 413. The limit of the listener (`body_bytes`) holds besides. It counts all messages of a gRPC call together.
        optional max_body: ByteSize<1, { 1 << 40 }>, default "that of the listener", only "http";
        /// Collect the whole body of a request before an endpoint gets anything of it.
        optional buffer: RawBuffer, default "off: bodies are passed on as they arrive", only "http";
        /// Decompress the bodies of requests for endpoints that cannot.
        optional decompress: RawDecompress, default "off", only "http";
        /// What requests say of their way through this hop. `off`: nothing, although the listener has `via`.
        optional via: RawVia, default "that of the listener", only "http";
        /// Answer every request 503 (`maintenance`). `steelyard maintenance` does the same without a change of the file.
        optional maintenance: Flag, default "false", only "http";
        /// Whether the access log has a line for each of its requests.
        optional access_log: Flag, default "true", only "http";
        /// How the traces of its requests differ from those of other routes.
        optional tracing: RawRouteTracing, default "as `tracing` of the file says", only "http";
        /// Pages for requests that cannot be served. The first for a status counts; those of the listener follow.
        optional error_pages: Many<RawErrorPage>, default "those of the listener", only "http";
        /// Any of these names, as the client asks for it in its first message: `vault.example.com`, or `*.example.com` for one or more
        /// labels in front.
        optional sni: OneOrMany<HostText>, default "every name, and clients that send none", only "tls, tls_passthrough";
        /// Leaves TLS to the endpoint, which gets the bytes as the client sent them. With `false`, TLS ends here.
        optional passthrough: Flag, default "false", only "tls";
    }
}

keys! {
    /// A path condition other than a prefix.
    pub struct RawPathObject as "a path", one of [exact, regex] {
        /// The whole path, byte for byte.
        optional exact: RoutePath;
        /// The whole path matches; case matters.
        optional regex: Pattern;
    }
}

keys! {
    /// A condition on a value other than one text.
    pub struct RawValueObject as "a condition", one of [regex, present] {
        /// The whole value matches; case matters.
        optional regex: Pattern;
        /// The value is present, whatever it is.
        optional present: True;
    }
}

keys! {
    /// Endpoints that serve the same thing, and the policy for choosing among them.
    pub struct RawCluster as "a cluster" {
        /// Addresses of the endpoints: `address:port`, or `name:port` for a name that is resolved at run time. At least one.
        required endpoints: Many<RawEndpoint>;
        /// The protocol towards the endpoints, for HTTP listeners. Steelyard does not probe for it: an endpoint that speaks another version
        /// fails.
        optional protocol: OneOf<UpstreamName>, default word(&UpstreamName::H1);
        /// How an endpoint is chosen.
        optional balance: RawBalance, default word(&CLUSTER.algorithm);
        /// Sends clients back to the endpoint that served them first. HTTP only.
        optional sticky: RawSticky, default "off";
        /// An active probe of each endpoint.
        optional health_check: RawHealthCheck, default "none: endpoints count as healthy";
        /// What happens to TCP connections, and to WebSockets and other tunnels, to an endpoint whose health check begins to fail. Requests in
        /// progress have their own timeouts.
        optional on_unhealthy: OneOf<OnUnhealthyWord>, default word(&OnUnhealthyWord::Keep);
        /// Ejects endpoints that fail real requests. `off`: never.
        optional outlier: RawOutlier, default "on, as below";
        /// If less than this share of the endpoints' weight is usable, health and ejection are ignored, because then the verdict is more
        /// likely wrong than the endpoints.
        optional panic_threshold: Percent, default percent_text(CLUSTER.panic_threshold);
        /// The share of the weight of the endpoints in this process's zone that must be usable. While it is, requests stay in the zone; if it is not,
        /// they go to the endpoints of all zones. Endpoints have zones by `zone`, or in Kubernetes by the hints of their Service.
        optional zone_threshold: Percent, default percent_text(CLUSTER.zone_threshold);
        /// How long it takes until an endpoint that has become usable has its whole weight. It begins with a tenth.
        optional slow_start: Wait, default duration_text(CLUSTER.slow_start);
        /// Limits on the load of a cluster (its breaker).
        optional limits: RawClusterLimits, default "as below";
        /// From the start of the TCP handshake to its end.
        optional connect_timeout: Positive, default duration_text(CLUSTER.connect_timeout);
        /// The longest silence of an endpoint while a response is due or in progress; then 504, or the connection is closed if the headers
        /// were already sent. HTTP only.
        optional response_timeout: Positive, default duration_text(CLUSTER.response_timeout);
        /// How long an unused upstream connection is kept. A shorter `Keep-Alive: timeout` of the endpoint takes precedence. HTTP only.
        optional idle_timeout: Positive, default duration_text(CLUSTER.idle_timeout);
        /// Sends PING to an endpoint that is silent while a request is in progress; a retry goes to another endpoint. `off`: never. HTTP/2
        /// only.
        optional ping: RawPing, default "on, as below";
        /// Unused upstream connections that each worker keeps for each endpoint; 0 means that connections are not reused. HTTP/1.1 only.
        optional idle_connections: Int<0, 1_000_000>, default CLUSTER.idle_connections_max.to_string();
        /// The version of the PROXY protocol header that is sent at the start of each upstream connection. HTTP connections are then not
        /// shared between clients.
        optional proxy_protocol: OneOf<ProxyProtocol>, default "none";
        /// Encrypts connections to the endpoints. An empty mapping (`{}`) is enough.
        optional tls: RawClusterTls, default "not encrypted";
        /// The endpoints have sidecars: connections use mutual TLS with the certificate of this `sidecar`, and the endpoint must present one of
        /// these SPIFFE ids. It replaces `tls`.
        optional spiffe_ids: OneOrMany<SpiffeText>, default "the endpoints have no sidecars";
    }
}

keys! {
    /// One address of a cluster.
    pub struct RawEndpointObject as "an endpoint", one of [address, srv] {
        /// `address:port` or `name:port`.
        optional address: EndpointText;
        /// A service in DNS: `_http._tcp.shop.example.com`. Its SRV records say which names and ports serve it, with which weights and priorities. They are
        /// looked up again as their TTL says.
        optional srv: ServiceName;
        /// Relative to the other weights; an endpoint with weight 0 takes no new work.
        optional weight: Int<0, 65535>, default defaults::WEIGHT.to_string();
        /// Backups have a higher number than the endpoints that they stand in for. The endpoints with the lowest number of which at least
        /// `panic_threshold` of the weight is usable take all requests.
        optional priority: Int<0, 7>, default "0";
        /// The zone that it runs in, such as `eu-1a`. With `zone` at the top of the file, requests stay in that zone while enough of its endpoints
        /// are usable.
        optional zone: Label, default "not known";
    }
}

keys! {
    /// An algorithm with settings.
    pub struct RawBalanceObject as "a balance" {
        /// Consistent hashing: the same key goes to the same endpoint, from every Steelyard.
        required maglev: RawMaglev;
    }
}

keys! {
    /// What is hashed.
    pub struct RawMaglev as "the settings of maglev" {
        /// What to hash: the client's address as trusted proxies report it, or a part of the request. If the part is missing, the address
        /// counts.
        optional key: RawHashKey, default word(&KeyWord);
        /// How many endpoints a key has. Each request goes to one of them at random, and to another one if it cannot take it. When endpoints come and
        /// go, a key keeps most of its own.
        optional subset: Int<2, { SUBSET_MAX as u64 }>, default "1: all requests with the same key go to the same endpoint";
    }
}

keys! {
    /// The part of the request to hash.
    pub struct RawHashKeyObject as "a hash key", one of [header, cookie, template] {
        /// The value of this header.
        optional header: HeaderName;
        /// The value of this cookie.
        optional cookie: CookieName;
        /// Text with variables: `${client_ip}`, `${method}`, `${scheme}`, `${host}` (in lower case, without a port), `${authority}` (as the client
        /// wrote it), `${port}` (of the listener), `${target}` (path and query as the client wrote them), `${path}` (as routes see it), `${query}`,
        /// and the values of `${query.NAME}`, `${header.NAME}` and `${cookie.NAME}`. `$$` is a dollar sign.
        optional template: HashTemplate;
    }
}

keys! {
    /// Limits on the load that a cluster takes before it refuses more. All workers share them.
    pub struct RawClusterLimits as "the limits of a cluster" {
        /// Concurrent requests at each endpoint, or connections with TCP. Idle connections in the pool do not count, and each request on a
        /// shared HTTP/2 connection does.
        optional connections: Int<1, 10_000_000>, default "no limit";
        /// Requests, or TCP connections, that may wait for room at an endpoint, in the whole cluster; further ones are answered 503. A
        /// request whose client leaves stops waiting.
        optional pending: Int<0, 10_000_000>, default ClusterLimits::default().pending_max.to_string();
        /// How long a request may wait; then 503.
        optional pending_timeout: Positive, default duration_text(ClusterLimits::default().pending_timeout);
        /// Concurrent requests on one HTTP/2 connection, or fewer if the endpoint allows fewer; above it, another connection is made.
        optional streams_per_connection: Int<1, 10_000>, default ClusterLimits::default().streams_per_connection_max.to_string();
    }
}

keys! {
    /// How slow a client may be. It begins with `grace`; the bytes that it moves give it more time, and waiting for it uses the time up. It
    /// can save up to `stall_timeout`.
    pub struct RawMinRateObject as "a minimum rate" {
        /// The bytes that a client must move in each `per`.
        optional bytes: ByteSize<1, { 1 << 40 }>, default size_text(MIN_RATE.bytes);
        /// See `bytes`.
        optional per: Positive, default duration_text(MIN_RATE.per);
        /// The time that a client has before it has moved anything.
        optional grace: Positive, default duration_text(MIN_RATE.grace);
    }
}

#[macro_use]
mod text_or_object;

mod access_log;
mod admin;
mod auth;
mod compression;
mod external_auth;
mod health;
mod jwt;
mod limits;
mod listener;
mod otlp;
mod policy;
mod request_body;
mod sidecar;
mod tls;
mod tracing;
mod via;
mod vip;

pub use access_log::{Facility, RawAccessLog, RawAccessLogObject, RawLogConditions, RawLogFields, RawLogOtlp};
pub use admin::{RawAdminAccess, RawAdminRole, RawAdminTls};
pub use auth::{RawApiKey, RawAuth, RawAuthObject, RawBasic};
pub use compression::RawCompress;
pub use external_auth::{RawAuthCache, RawExternalAuth, RawExternalAuthObject, RawHttpAuth, RawSignIn};
pub use health::{OnUnhealthyWord, RawHealthCheck, RawOutlierObject, RawPingObject};
pub use jwt::{RawJwks, RawJwt};
pub use limits::{
    RawBandwidth, RawClientLimits, RawClientRate, RawDescriptorEntry, RawGlobalRateLimit, RawGlobalRateLimitObject,
};
pub use listener::{RawListenerLimits, RawPaths, RawRequestId};
pub use otlp::{OtlpCompression, OtlpName, RawSecretValue};
pub use policy::{
    AffinityMode, RateHeader, RawConcurrencyLimit, RawCors, RawErrorPage, RawFallback, RawFurtherRate,
    RawHeaderChanges, RawInterceptErrors, RawMirror, RawRateKey, RawRateLimit, RawRedirect, RawRespond,
    RawResponseBandwidth, RawResponseRewrite, RawRetry, RawRetryObject, RawRewrite, RawShare, RawSticky, RawTo,
    RawValueRewrite,
};
pub use request_body::{RawBuffer, RawDecompress};
pub use sidecar::{ModeOfSidecar, RawBind, RawCaptureObject, RawSidecar, RawSidecarTls};
pub use text_or_object::TextOrObject;
pub use tls::{RawCertificate, RawClientCert, RawClusterTls, RawListenerTls};
pub use tracing::{RawRouteTracing, RawTracing};
pub use via::RawVia;
pub use vip::{ModeName, RawFlowTimeouts, RawKernelPlane, RawSourceRate, RawVip, RawVipEndpoint};

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
    /// An algorithm alone, or with settings.
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
    Detect,
    Tcp,
    Tls,
    TlsPassthrough,
}

impl ProtocolName {
    /// Whether it tells connections apart by the name that the client asks for, and does not interpret what is within TLS.
    pub fn is_by_name(self) -> bool {
        matches!(self, Self::Tls | Self::TlsPassthrough)
    }

    pub fn name(self) -> &'static str {
        word(&self)
    }

    /// Whether a key for these protocols has a meaning here. Keys for HTTP have one within TLS too.
    pub fn has(self, only: &str) -> bool {
        only.split(", ")
            .any(|name| name == self.name() || (name == "http" && matches!(self, Self::Https | Self::Detect)))
    }
}

/// The protocol towards endpoints.
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
    /// Whether it speaks HTTP/1.1 with its endpoints. A word that could not be read does not count as the default.
    pub fn speaks_h1(&self) -> bool {
        match &self.protocol {
            Some(protocol) => protocol.value.0 == UpstreamName::H1,
            None => !self.written.iter().any(|written| written.key == "protocol"),
        }
    }
}

/// The only word among the hash keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyWord;

/// The word that turns something off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Off;

impl Choice for ProtocolName {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("http", Self::Http, "HTTP/1.0 and HTTP/1.1, and HTTP/2 by prior knowledge"),
        ("https", Self::Https, "the same within TLS, where ALPN offers `h2` and `http/1.1`"),
        (
            "detect",
            Self::Detect,
            "`http` or `tcp`, as the first bytes of a connection say; for listeners that a sidecar captures",
        ),
        ("tcp", Self::Tcp, "bytes, not interpreted"),
        (
            "tls",
            Self::Tls,
            "TLS around bytes that are not interpreted, routed by the name that the client asks for; a route with `passthrough` \
             leaves TLS to the endpoint",
        ),
        (
            "tls_passthrough",
            Self::TlsPassthrough,
            "TLS that is not decrypted, routed by the name that the client asks for",
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
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[("off", Self, "off")];
}

impl Choice for ForwardPath {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("received", Self::Received, "the path that the client wrote"),
        ("normal", Self::Normal, "the normal form, which the routes saw"),
    ];
}

impl Choice for ForwardedHeaders {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("x_forwarded", Self::XForwarded, "`X-Forwarded-For`, `-Proto` and `-Host`"),
        ("rfc7239", Self::Rfc7239, "`Forwarded`"),
        ("both", Self::Both, "all four"),
        (
            "ingress_nginx",
            Self::IngressNginx,
            "`X-Forwarded-For`, `-Proto`, `-Host`, `-Port` and `-Scheme`, `X-Scheme`, `X-Original-Forwarded-For` and `-Host`, as ingress-nginx sends them",
        ),
        ("off", Self::Off, "none"),
    ];
}

impl Choice for HeaderNames {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("any", Self::Any, "all names of HTTP"),
        ("underscores", Self::Underscores, "letters, digits, `-` and `_`"),
        ("strict", Self::Strict, "letters, digits and `-`, as with nginx"),
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

/// Keys in the files of other load balancers and of Kubernetes, and ours for the same thing: the object, our key, their keys.
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
    ("a route", "compress", &["compression", "encode", "gzip", "compressor"]),
    ("a route", "max_body", &["client_max_body_size", "body_bytes", "body_limit", "max_request_body"]),
    ("a route", "buffer", &["buffering", "request_buffering", "proxy_request_buffering"]),
    ("a route", "decompress", &["decompression", "decompressor", "gunzip"]),
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

/// The key of this object that another load balancer calls by this name.
pub fn meant_by(key: &str, object: &Object) -> Option<&'static str> {
    let is_of = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(key));
    KEYS_OF_OTHERS.iter().find(|(noun, _, names)| *noun == object.noun && is_of(names)).map(|(_, ours, _)| *ours)
}

/// The object that has this key, if it is another one.
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
        assert_eq!(found.len(), 86);
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

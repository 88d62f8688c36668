//! The ConfigMap and the flags of ingress-nginx, and what becomes of them here.

mod judged;

use std::collections::BTreeMap;

use super::catalogue::Verdict;
use super::plan::Finding;
use super::snippet::{self, Headers, Step};
use super::value::{self, Form};

/// A key of the ConfigMap, or a flag.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Its name.
    pub name: &'static str,
    /// What its value looks like.
    pub form: Form,
    /// As of an annotation ([`Key`](super::Key)).
    pub security: bool,
    /// What becomes of it.
    pub verdict: Verdict,
    /// What is different, why it is refused, or what replaces it.
    pub says: &'static str,
}

const fn opt(name: &'static str, form: Form, verdict: Verdict, says: &'static str) -> Opt {
    Opt { name, form, security: false, verdict, says }
}

const fn secures(opt: Opt) -> Opt {
    Opt { security: true, ..opt }
}

use Form::{Bool, Int, Lines, Networks, Service, Size, Text, Token, Tokens, Url, Word};
use Verdict::{Differs, NoEffect, Refused, Served};

const LOG: &str = "`--access-log`, or `access_log` in the file of `--telemetry`, says where the log goes";
const FORMAT: &str =
    "fields of the access log cannot be chosen; `--access-log` has text or JSON, so adapt what reads the log";
const TUNING: &str = "it tunes nginx";
const NGINX_LOG: &str = "it is about the log files of nginx";
const GZIP: &str = "as `compress` of a TrafficPolicy; use-gzip and enable-brotli say whether";
const TRACES: &str = "`tracing` in the file of `--telemetry` says it";
const SPANS: &str = "with `--telemetry`, of all Ingresses that do not say otherwise";
const OWN: &str = "it is about processes of ingress-nginx itself";
const SERIES: &str = "it is about series of metrics that have other names here";
const BLOCKED: &str =
    "requests with such a header get 403 everywhere, before anything else: a text, or an expression behind `~` or `~*`";
const SNIPPET: &str = "it is configuration of nginx itself; write what it does as annotations or as TrafficPolicies";

/// The keys of the ConfigMap that block values of a header, and its name.
const BLOCKS: [(&str, &str); 2] = [("block-user-agents", "user-agent"), ("block-referers", "referer")];

/// The keys of the ConfigMap that are known; others are reported as unknown.
pub const OPTIONS: &[Opt] = &[
    opt("ssl-redirect", Bool, Served, "the default of the annotation"),
    opt("force-ssl-redirect", Bool, Served, "the default of the annotation"),
    opt("use-port-in-redirects", Bool, Differs, "the default of the annotation"),
    opt("relative-redirects", Bool, Served, "the default of the annotation"),
    opt("http-redirect-code", Int, Served, "301, 302, 307 or 308"),
    opt("no-tls-redirect-locations", Tokens, Served, "paths that begin with one of these are not redirected"),
    opt("hsts", Bool, Served, "all responses over HTTPS have the header"),
    opt("hsts-max-age", Int, Served, "in seconds"),
    opt("hsts-include-subdomains", Bool, Served, "a part of the header"),
    opt("hsts-preload", Bool, Served, "a part of the header"),
    opt("proxy-body-size", Size, Differs, "the default of the annotation"),
    opt("proxy-connect-timeout", Int, Served, "the default of the annotation"),
    opt("proxy-read-timeout", Int, Served, "the default of the annotation"),
    opt("proxy-send-timeout", Int, Differs, "as of the annotation"),
    opt("proxy-request-buffering", Word(&["on", "off"]), Served, "the default of the annotation"),
    opt("proxy-buffering", Word(&["on", "off"]), NoEffect, "as of the annotation"),
    opt("proxy-buffer-size", Size, NoEffect, TUNING),
    opt("proxy-buffers-number", Int, NoEffect, TUNING),
    opt("proxy-next-upstream", Tokens, Differs, "the default of the annotation"),
    opt("proxy-next-upstream-tries", Int, Served, "the default of the annotation"),
    opt("proxy-next-upstream-timeout", Int, Served, "the default of the annotation"),
    opt("proxy-cookie-domain", Text, Served, "the default of the annotation"),
    opt("proxy-cookie-path", Text, Served, "the default of the annotation"),
    opt("proxy-redirect-from", Text, Served, "the default of the annotation"),
    opt("proxy-redirect-to", Text, Served, "the default of the annotation"),
    opt("retry-non-idempotent", Bool, Served, "as non_idempotent of proxy-next-upstream"),
    opt("load-balance", Word(&["round_robin", "ewma"]), Served, "the default of the annotation"),
    opt("service-upstream", Bool, Differs, "as of the annotation"),
    secures(opt("whitelist-source-range", Networks, Served, "the default of the annotation")),
    secures(opt("denylist-source-range", Networks, Served, "the default of the annotation")),
    secures(opt("block-cidrs", Networks, Served, "they get 403 everywhere")),
    secures(opt("block-user-agents", Lines, Served, BLOCKED)),
    secures(opt("block-referers", Lines, Served, BLOCKED)),
    secures(opt(
        "global-auth-url",
        Service,
        Differs,
        "auth-url of every Ingress that does not say `enable-global-auth: false`",
    )),
    opt("global-auth-response-headers", Tokens, Served, "auth-response-headers with it"),
    opt("global-auth-signin", Url, Served, "see auth-signin"),
    opt("global-auth-signin-redirect-param", Token, Served, "see auth-signin-redirect-param"),
    secures(opt("global-auth-request-redirect", Text, Served, "see auth-request-redirect")),
    secures(opt("global-auth-cache-key", Text, Served, "see auth-cache-key")),
    secures(opt("global-auth-cache-duration", Text, Served, "see auth-cache-duration")),
    opt("global-auth-always-set-cookie", Bool, Served, "see auth-always-set-cookie"),
    secures(opt("global-auth-method", Token, Served, "see auth-method")),
    secures(opt("global-auth-snippet", Lines, Refused, "see auth-snippet")),
    opt(
        "no-auth-locations",
        Tokens,
        Differs,
        "global-auth-url is not asked about an Ingress all of whose paths begin with one of these",
    ),
    opt(
        "use-forwarded-headers",
        Bool,
        Differs,
        "the networks of proxy-real-ip-cidr and `--trusted-proxy` are trusted; everybody only with `--ingress-nginx-compat=exact`",
    ),
    opt("enable-real-ip", Bool, Differs, "as use-forwarded-headers"),
    opt("proxy-real-ip-cidr", Networks, Served, "the proxies that use-forwarded-headers trusts"),
    opt(
        "compute-full-forwarded-for",
        Bool,
        NoEffect,
        "`X-Forwarded-For` has the address of the client alone, as there; with `true`, that is a difference",
    ),
    opt(
        "forwarded-for-header",
        Token,
        Refused,
        "the header is `X-Forwarded-For`; with another one, which use-forwarded-headers or enable-real-ip would read, routes with lists of addresses are closed",
    ),
    opt("use-proxy-protocol", Bool, Served, "both ports demand the header, from everybody"),
    opt("generate-request-id", Bool, NoEffect, "`X-Request-ID` is kept, or made"),
    opt(
        "proxy-add-original-uri-header",
        Bool,
        Refused,
        "endpoints get the path in the request and nowhere else, unless it is rewritten",
    ),
    opt(
        "enable-underscores-in-headers",
        Bool,
        Served,
        "without it, request headers with `_` in their names are dropped",
    ),
    opt(
        "ignore-invalid-headers",
        Bool,
        Served,
        "request headers whose names have other characters than letters, digits and `-` are dropped; with `false` they pass",
    ),
    opt(
        "ssl-protocols",
        Lines,
        Served,
        "TLS 1.2 and 1.3, or 1.3 alone; older ones are refused, and TLS 1.3 cannot be switched off",
    ),
    opt(
        "ssl-ciphers",
        Lines,
        Differs,
        "whatever it lists, TLS has the cipher suites of Steelyard, all of which are authenticated and forward secret",
    ),
    opt("ssl-session-tickets", Bool, NoEffect, TUNING),
    opt("ssl-early-data", Bool, NoEffect, "early data is not accepted"),
    opt(
        "ssl-reject-handshake",
        Bool,
        Differs,
        "without a default certificate, a handshake for an unknown name gets another certificate or fails",
    ),
    opt("enable-ocsp", Bool, NoEffect, "responses are not stapled"),
    opt("use-http2", Bool, Served, "with `false`, clients speak HTTP/1 alone"),
    opt("client-header-timeout", Int, Served, "the time for all headers of a request"),
    opt(
        "client-body-timeout",
        Int,
        Differs,
        "the longest pause within a body, and also while a client does not read its response",
    ),
    opt("client-header-buffer-size", Size, NoEffect, TUNING),
    opt("client-body-buffer-size", Size, NoEffect, TUNING),
    opt(
        "large-client-header-buffers",
        Lines,
        Differs,
        "the headers of a request have the room of all buffers together, from 1k to 1m, and may each be as long; a longer one gets 431 or 414",
    ),
    opt("keep-alive", Int, Served, "how long a connection waits for its next request"),
    opt("keep-alive-requests", Int, NoEffect, "connections are not limited to a number of requests"),
    opt("http2-max-concurrent-streams", Int, Served, "up to 10000"),
    opt("limit-req-status-code", Int, Served, "400 to 599; 503 if it is not set"),
    opt("limit-conn-status-code", Int, Served, "400 to 599; 503 if it is not set"),
    opt("limit-rate", Int, Served, "the default of the annotation"),
    opt("limit-rate-after", Int, Served, "the default of the annotation"),
    opt("worker-processes", Lines, NoEffect, TUNING),
    opt("worker-shutdown-timeout", Lines, NoEffect, "connections have 25 s and `--drain-delay`"),
    opt("max-worker-connections", Int, NoEffect, TUNING),
    opt("upstream-keepalive-connections", Int, NoEffect, "connections to endpoints are kept"),
    opt("upstream-keepalive-timeout", Int, NoEffect, "connections to endpoints are kept for 45 s"),
    opt("upstream-keepalive-requests", Int, NoEffect, "connections to endpoints are kept"),
    opt("proxy-stream-timeout", Lines, NoEffect, "`timeouts.idle` of GatewayParameters"),
    opt(
        "server-tokens",
        Bool,
        Differs,
        "responses name no server, and with `true` they still do not name nginx; see allow-backend-server-header",
    ),
    opt(
        "use-gzip",
        Bool,
        Differs,
        "responses of endpoints are compressed, also those of requests through other proxies",
    ),
    opt("gzip-level", Int, Served, GZIP),
    opt("gzip-min-length", Int, Served, GZIP),
    opt("gzip-types", Text, Served, GZIP),
    opt("gzip-disable", Lines, NoEffect, "no browser of today claims an encoding that it cannot read"),
    opt(
        "enable-brotli",
        Bool,
        Differs,
        "as use-gzip, with `br`, which clients get first; both have the level and the types of gzip",
    ),
    opt("brotli-level", Int, NoEffect, "the level is gzip-level"),
    opt("brotli-min-length", Int, NoEffect, "the length is gzip-min-length"),
    opt("brotli-types", Lines, NoEffect, "the types are gzip-types"),
    opt(
        "custom-http-errors",
        Tokens,
        Differs,
        "as of the annotation, from 400 to 599; `--ingress-nginx-default-backend` is asked, whatever default-backend of the Ingress says",
    ),
    opt("disable-proxy-intercept-errors", Bool, Served, "the default of the annotation"),
    opt("add-headers", Form::Reference, Differs, "headers of all responses for hosts of Ingresses, and of no others"),
    opt(
        "proxy-set-headers",
        Form::Reference,
        Differs,
        "headers that endpoints get, in place of those of the same names",
    ),
    opt("hide-headers", Tokens, Served, "headers that are removed from responses of endpoints"),
    opt(
        "allow-backend-server-header",
        Bool,
        Served,
        "the `Server` of endpoints passes if server-tokens is `true` as well, as there; otherwise it is removed",
    ),
    opt("global-allowed-response-headers", Tokens, Served, "the headers that custom-headers may set"),
    opt("log-format-upstream", Lines, Refused, FORMAT),
    opt("log-format-escape-json", Bool, NoEffect, "it says more about log-format-upstream"),
    opt("disable-access-log", Bool, Differs, "without `--access-log` there is none"),
    opt("skip-access-log-urls", Lines, Refused, "every request is logged"),
    opt(
        "enable-opentelemetry",
        Bool,
        Differs,
        "the default of the annotation; if it is not set, `--telemetry` of the controller, with `tracing`, records requests, and ingress-nginx does not",
    ),
    secures(opt("enable-modsecurity", Bool, Refused, "there is no web application firewall here")),
    secures(opt("enable-owasp-modsecurity-crs", Bool, Refused, "there is no web application firewall here")),
    opt("use-geoip2", Bool, Refused, "countries of clients are not known"),
    opt(
        "allow-snippet-annotations",
        Bool,
        Served,
        "without it, ingress-nginx serves no Ingress with a snippet, and neither does Steelyard",
    ),
    opt("annotations-risk-level", Word(&["Low", "Medium", "High", "Critical"]), Served, "snippets need Critical"),
    opt("strict-validate-path-type", Bool, NoEffect, "the admission webhook of ingress-nginx checks it"),
    opt(
        "allow-cross-namespace-resources",
        Bool,
        Differs,
        "a ConfigMap with headers may be in another namespace, and a Secret is one of the Ingress' own",
    ),
    opt("main-snippet", Lines, Refused, SNIPPET),
    opt(
        "http-snippet",
        Lines,
        Refused,
        "it is configuration of nginx itself; all routes are closed, unless all of its directives are known to keep nobody out",
    ),
    secures(opt("server-snippet", Lines, Refused, SNIPPET)),
    secures(opt("location-snippet", Lines, Refused, SNIPPET)),
    opt("stream-snippet", Lines, Refused, SNIPPET),
    opt("lua-shared-dicts", Lines, NoEffect, TUNING),
    opt("ssl-dh-param", Lines, NoEffect, "key exchange is by elliptic curves"),
    opt("bind-address", Lines, Differs, "`--listen-address`"),
    opt("proxy-busy-buffers-size", Size, NoEffect, TUNING),
    opt("proxy-max-temp-file-size", Size, NoEffect, TUNING),
    opt("proxy-headers-hash-max-size", Int, NoEffect, TUNING),
    opt("proxy-headers-hash-bucket-size", Int, NoEffect, TUNING),
    opt("server-name-hash-max-size", Int, NoEffect, TUNING),
    opt("server-name-hash-bucket-size", Int, NoEffect, TUNING),
    opt("map-hash-bucket-size", Int, NoEffect, TUNING),
    opt("variables-hash-bucket-size", Int, NoEffect, TUNING),
    opt("variables-hash-max-size", Int, NoEffect, TUNING),
    opt("http2-max-field-size", Size, NoEffect, "nginx has removed it; large-client-header-buffers says it"),
    opt("http2-max-header-size", Size, NoEffect, "nginx has removed it; large-client-header-buffers says it"),
    opt("http2-max-requests", Int, NoEffect, "nginx has removed it"),
    opt("enable-multi-accept", Bool, NoEffect, TUNING),
    opt("enable-aio-write", Bool, NoEffect, TUNING),
    opt("reuse-port", Bool, NoEffect, TUNING),
    opt("max-worker-open-files", Int, NoEffect, TUNING),
    opt("worker-cpu-affinity", Lines, NoEffect, TUNING),
    opt("enable-serial-reloads", Bool, NoEffect, TUNING),
    opt("grpc-buffer-size-kb", Int, NoEffect, TUNING),
    opt("ssl-buffer-size", Size, NoEffect, TUNING),
    opt("ssl-session-cache", Bool, NoEffect, TUNING),
    opt("ssl-session-cache-size", Size, NoEffect, TUNING),
    opt("ssl-session-ticket-key", Lines, NoEffect, "sessions are resumed by the process that has begun them"),
    opt("ssl-session-timeout", Lines, NoEffect, TUNING),
    opt("ssl-ecdh-curve", Lines, NoEffect, "key exchange has the groups of Steelyard"),
    opt("proxy-ssl-location-only", Bool, NoEffect, "proxy-ssl-* holds for the paths of its Ingress"),
    opt("upstream-keepalive-time", Lines, NoEffect, "connections to endpoints are kept"),
    opt("proxy-stream-responses", Int, NoEffect, "a UDP client keeps its endpoint until both are silent"),
    opt("proxy-stream-next-upstream", Bool, NoEffect, "a TCP connection that an endpoint refuses goes to another one"),
    opt("proxy-stream-next-upstream-timeout", Lines, NoEffect, "`connectTimeout` of a TrafficPolicy"),
    opt(
        "proxy-stream-next-upstream-tries",
        Int,
        NoEffect,
        "a TCP connection that an endpoint refuses goes to another one",
    ),
    opt("proxy-protocol-header-timeout", Lines, NoEffect, "the header must come within 5 s"),
    opt("limit-conn-zone-variable", Lines, NoEffect, "clients are counted by their addresses"),
    opt("default-type", Lines, NoEffect, "responses of endpoints have their own types"),
    opt("disable-ipv6", Bool, NoEffect, "`--listen-address`"),
    opt("disable-ipv6-dns", Bool, NoEffect, "both kinds of addresses are used"),
    opt("nginx-status-ipv4-whitelist", Lines, NoEffect, "there is no such page"),
    opt("nginx-status-ipv6-whitelist", Lines, NoEffect, "there is no such page"),
    opt("access-log-path", Lines, NoEffect, LOG),
    opt("http-access-log-path", Lines, NoEffect, LOG),
    opt("stream-access-log-path", Lines, NoEffect, LOG),
    opt("access-log-params", Lines, NoEffect, NGINX_LOG),
    opt("error-log-path", Lines, NoEffect, NGINX_LOG),
    opt("error-log-level", Lines, NoEffect, "`--log`"),
    opt("log-format-stream", Lines, Refused, FORMAT),
    opt("log-format-escape-none", Bool, NoEffect, "it says more about log-format-upstream"),
    opt("enable-access-log-for-default-backend", Bool, NoEffect, "the access log is that of the process"),
    opt("enable-auth-access-log", Bool, NoEffect, "questions to auth-url are not logged"),
    opt("enable-syslog", Bool, Refused, "collect the output of the pod"),
    opt("syslog-host", Lines, NoEffect, "it says more about enable-syslog"),
    opt("syslog-port", Int, NoEffect, "it says more about enable-syslog"),
    opt("debug-connections", Lines, NoEffect, NGINX_LOG),
    opt("plugins", Lines, Refused, "plug-ins are Lua of nginx"),
    opt("annotation-value-word-blocklist", Lines, NoEffect, "no text of an annotation becomes configuration here"),
    opt("geoip2-autoreload-in-minutes", Int, NoEffect, "it says more about use-geoip2"),
    opt("opentelemetry-operation-name", Lines, Served, SPANS),
    opt("opentelemetry-trust-incoming-span", Bool, Served, SPANS),
    opt("opentelemetry-config", Lines, NoEffect, TRACES),
    opt("otlp-collector-host", Lines, NoEffect, TRACES),
    opt("otlp-collector-port", Int, NoEffect, TRACES),
    opt("otel-max-queuesize", Int, NoEffect, TRACES),
    opt("otel-schedule-delay-millis", Int, NoEffect, TRACES),
    opt("otel-max-export-batch-size", Int, NoEffect, TRACES),
    opt("otel-service-name", Lines, NoEffect, TRACES),
    opt("otel-sampler", Lines, NoEffect, TRACES),
    opt("otel-sampler-ratio", Lines, NoEffect, TRACES),
    opt("otel-sampler-parent-based", Bool, NoEffect, TRACES),
    secures(opt("modsecurity-snippet", Lines, Refused, "there is no web application firewall here")),
];

/// The flags of the controller.
pub const FLAGS: &[Opt] = &[
    opt("ingress-class", Text, Served, "`--ingress-class`"),
    opt("controller-class", Text, Served, "`--ingress-nginx` takes IngressClasses of k8s.io/ingress-nginx"),
    opt("ingress-class-by-name", Bool, Served, "`--ingress-class` chooses one by its name"),
    opt("watch-ingress-without-class", Bool, Refused, "mark the IngressClass as the default one"),
    opt("watch-namespace", Text, Served, "`--namespace`"),
    opt("watch-namespace-selector", Lines, Refused, "`--namespace` takes names, several if necessary"),
    opt("configmap", Text, Served, "`--ingress-nginx-configmap`"),
    opt("default-ssl-certificate", Text, Served, "`--default-certificate`"),
    opt("default-backend-service", Text, Served, "`--ingress-nginx-default-backend`; without it, the answer is 404"),
    opt("tcp-services-configmap", Text, Served, "`--ingress-nginx-tcp-services`"),
    opt(
        "udp-services-configmap",
        Lines,
        Differs,
        "`--ingress-nginx-udp-services`, served by the kernel plane, which needs one `--listen-address`, and `--vip-interface`",
    ),
    opt("publish-service", Text, Served, "`--publish-service`"),
    opt("publish-status-address", Text, Served, "`--publish-address`"),
    opt("enable-ssl-passthrough", Bool, Served, "`--ingress-nginx-ssl-passthrough`"),
    opt(
        "annotations-prefix",
        Text,
        Served,
        "`--ingress-nginx-annotations-prefix`, without which no annotation with this prefix has an effect",
    ),
    opt("http-port", Int, Served, "`--http-port`"),
    opt("https-port", Int, Served, "`--https-port`"),
    opt("election-id", Lines, NoEffect, "`--lease-name`"),
    opt("validating-webhook", Lines, NoEffect, "there is no webhook; faults are Events"),
    opt("validating-webhook-certificate", Lines, NoEffect, "there is no webhook"),
    opt("validating-webhook-key", Lines, NoEffect, "there is no webhook"),
    opt("enable-metrics", Bool, Differs, "`--metrics`, whose series have other names"),
    opt("update-status", Bool, Differs, "`--ingress-status=false`"),
    opt("disable-catch-all", Bool, Refused, "an Ingress without hosts serves all of them"),
    opt("healthz-port", Int, Differs, "`--metrics` serves the probes"),
    opt("shutdown-grace-period", Int, Differs, "`--drain-delay`"),
    opt("v", Int, NoEffect, "`--log`"),
    opt("apiserver-host", Lines, NoEffect, "`--kubeconfig`"),
    opt("kubeconfig", Text, Served, "`--kubeconfig`"),
    opt("certificate-authority", Lines, NoEffect, "`--kubeconfig`"),
    opt("root-ca-file", Lines, NoEffect, "`--kubeconfig`"),
    opt("disable-leader-election", Bool, NoEffect, "one replica writes statuses"),
    opt("election-ttl", Lines, NoEffect, "one replica writes statuses"),
    opt("update-status-on-shutdown", Bool, NoEffect, "addresses stay in the statuses"),
    opt("report-node-internal-ip-address", Bool, NoEffect, "`--publish-address` or `--publish-service`"),
    opt("status-update-interval", Int, NoEffect, "statuses are written when they change"),
    opt("sync-period", Lines, NoEffect, OWN),
    opt("sync-rate-limit", Lines, NoEffect, OWN),
    opt("disable-sync-events", Bool, NoEffect, OWN),
    opt("disable-full-test", Bool, NoEffect, OWN),
    opt("dynamic-configuration-retries", Int, NoEffect, OWN),
    opt("internal-logger-address", Lines, NoEffect, OWN),
    opt("default-server-port", Int, NoEffect, OWN),
    opt("status-port", Int, NoEffect, OWN),
    opt("stream-port", Int, NoEffect, OWN),
    opt("profiler-port", Int, NoEffect, OWN),
    opt("profiler-address", Lines, NoEffect, OWN),
    opt("profiling", Bool, NoEffect, OWN),
    opt("ssl-passthrough-proxy-port", Int, NoEffect, OWN),
    opt("disable-svc-external-name", Bool, NoEffect, "a Service of type ExternalName has no endpoints here"),
    opt("enable-annotation-validation", Bool, NoEffect, "values are always checked"),
    opt("deep-inspect", Bool, NoEffect, "no text of an annotation becomes configuration here"),
    opt("enable-topology-aware-routing", Bool, Served, "hints of zones are followed"),
    opt("post-shutdown-grace-period", Int, NoEffect, "`--drain-delay` comes first"),
    opt("healthz-host", Lines, Differs, "`--metrics` serves the probes"),
    opt("health-check-path", Lines, Differs, "`--metrics` serves the probes, at /healthz and /readyz"),
    opt("health-check-timeout", Int, NoEffect, OWN),
    opt("metrics-per-host", Bool, NoEffect, SERIES),
    opt("metrics-per-undefined-host", Bool, NoEffect, SERIES),
    opt("report-status-classes", Bool, NoEffect, SERIES),
    opt("exclude-socket-metrics", Lines, NoEffect, SERIES),
    opt("monitor-max-batch-size", Int, NoEffect, SERIES),
    opt("time-buckets", Lines, NoEffect, SERIES),
    opt("length-buckets", Lines, NoEffect, SERIES),
    opt("size-buckets", Lines, NoEffect, SERIES),
    opt("bucket-factor", Lines, NoEffect, SERIES),
    opt("max-buckets", Int, NoEffect, SERIES),
    opt("maxmind-edition-ids", Lines, NoEffect, "countries of clients are not known"),
    opt("maxmind-license-key", Lines, NoEffect, "countries of clients are not known"),
    opt("maxmind-mirror", Lines, NoEffect, "countries of clients are not known"),
    opt("maxmind-retries-count", Int, NoEffect, "countries of clients are not known"),
    opt("maxmind-retries-timeout", Lines, NoEffect, "countries of clients are not known"),
];

/// What the ConfigMap says, with the defaults of ingress-nginx.
#[derive(Clone, Debug, PartialEq)]
pub struct Globals {
    values: BTreeMap<&'static str, String>,
    /// One for each key.
    pub findings: Vec<Finding>,
    /// Why all routes are closed.
    pub closed: Option<String>,
    /// Why nobody knows the addresses of clients, so that lists of them cannot be compared.
    pub addresses_unknown: Option<String>,
    /// `http-snippet`, of which nothing is served.
    http_snippet: Option<String>,
    /// Which requests get 403 on all hosts, before anything else.
    pub blocks: Vec<Step>,
    /// What all endpoints get (`proxy-set-headers`), by [`Globals::with_header_maps`].
    pub(super) request_headers: Headers,
    /// What all responses get (`add-headers`), likewise.
    pub(super) response_headers: Headers,
}

impl Default for Globals {
    fn default() -> Self {
        Self::of(std::iter::empty())
    }
}

impl Globals {
    /// Reads the data of a ConfigMap.
    pub fn of<'d>(data: impl IntoIterator<Item = (&'d str, &'d str)>) -> Self {
        let mut globals = Self {
            values: BTreeMap::new(),
            findings: Vec::new(),
            closed: None,
            addresses_unknown: None,
            http_snippet: None,
            blocks: Vec::new(),
            request_headers: Headers::default(),
            response_headers: Headers::default(),
        };
        for (name, written) in data {
            let Some(text) = value::trimmed(written) else { continue };
            let Some(opt) = OPTIONS.iter().find(|opt| opt.name == name) else {
                globals.findings.push(Finding::unknown(name, &text, None));
                continue;
            };
            let off = match opt.form {
                Bool => value::boolean(&text) == Some(false),
                _ => !opt.security && text == "off",
            };
            if opt.name == "http-snippet" && !off {
                globals.http_snippet = Some(text.clone());
            }
            let mut finding = Finding::new(opt.name, &text, opt.verdict, opt.says.to_owned());
            let header = BLOCKS.iter().find(|(key, _)| *key == opt.name).map(|(_, header)| *header);
            let blocks = |()| header.map_or_else(|| Ok(Vec::new()), |header| snippet::blocks(header, &text));
            let read = opt.form.check(&text).and_then(blocks).map(|blocks| globals.blocks.extend(blocks));
            match read {
                Ok(()) if off && opt.verdict == Refused => {
                    finding = Finding::new(opt.name, &text, NoEffect, "it is off".to_owned());
                }
                Ok(()) if opt.verdict != Refused => drop(globals.values.insert(opt.name, text)),
                Ok(()) => {
                    if opt.security {
                        globals.closed.get_or_insert(format!("{} of the ConfigMap is refused: {}", opt.name, opt.says));
                    }
                }
                Err(right) => {
                    finding = Finding::new(opt.name, &text, Refused, format!("the value cannot be read: {right}"));
                    if opt.security {
                        globals.closed.get_or_insert(format!("{} of the ConfigMap cannot be read: {right}", opt.name));
                    }
                }
            }
            globals.findings.push(finding);
        }
        globals.judge();
        globals
    }

    /// What closes all routes for this reason.
    pub fn closed(why: &str) -> Self {
        Self { closed: Some(why.to_owned()), ..Self::default() }
    }

    /// A text; `None` if it is not set.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A boolean.
    pub fn bool(&self, name: &str, default: bool) -> bool {
        self.text(name).and_then(value::boolean).unwrap_or(default)
    }

    /// A number.
    pub fn int(&self, name: &str, default: u64) -> u64 {
        self.text(name).and_then(value::integer).unwrap_or(default)
    }

    /// Networks; none if they are not set.
    pub fn networks(&self, name: &str) -> Vec<ipnet::IpNet> {
        self.text(name).and_then(|text| value::networks(text).ok()).unwrap_or_default()
    }

    /// Whether snippets are allowed.
    pub fn allows_snippets(&self) -> bool {
        self.bool("allow-snippet-annotations", false) && self.text("annotations-risk-level") == Some("Critical")
    }

    /// Whether the `Server` of an endpoint reaches clients. ingress-nginx removes it from all responses unless server-tokens is set, and nginx
    /// replaces it unless it is told to pass it.
    pub fn passes_server(&self) -> bool {
        self.bool("server-tokens", false) && self.bool("allow-backend-server-header", false)
    }

    /// The value of `Strict-Transport-Security`; `None` if there is none.
    pub fn hsts(&self) -> Option<String> {
        self.bool("hsts", true).then(|| {
            let mut value = format!("max-age={}", self.int("hsts-max-age", 31_536_000));
            if self.bool("hsts-include-subdomains", true) {
                value.push_str("; includeSubDomains");
            }
            if self.bool("hsts-preload", false) {
                value.push_str("; preload");
            }
            value
        })
    }

    /// The status of redirects to HTTPS.
    pub fn redirect_code(&self) -> u16 {
        match self.int("http-redirect-code", 308) {
            code @ (301 | 302 | 307 | 308) => u16::try_from(code).unwrap_or(308),
            _ => 308,
        }
    }

    /// The beginnings of paths that a rule does not hold for, which `name` has.
    pub fn prefixes(&self, name: &str) -> Vec<String> {
        let text = self.text(name).unwrap_or("/.well-known/acme-challenge");
        value::words(text).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_map() {
        let globals = Globals::of([
            ("hsts-preload", "true"),
            ("hsts-max-age", "60"),
            ("http-redirect-code", "200"),
            ("nonsense", "1"),
        ]);
        assert_eq!(globals.hsts().as_deref(), Some("max-age=60; includeSubDomains; preload"));
        assert_eq!(globals.redirect_code(), 308);
        assert!(globals.findings.iter().any(|finding| finding.key == "nonsense"));
        assert_eq!(globals.closed, None);
        assert_eq!(Globals::default().hsts().as_deref(), Some("max-age=31536000; includeSubDomains"));
    }

    #[test]
    fn what_keeps_somebody_out_and_cannot_be_served_closes_everything() {
        let check = |key: &str, value: &str, closed: bool| {
            assert_eq!(Globals::of([(key, value)]).closed.is_some(), closed, "{key}: {value}");
        };
        check("block-user-agents", "curl, ~*bot", false);
        check("block-user-agents", "~bot(?!h)", true);
        check("block-referers", "a b", true);
        check("whitelist-source-range", "10.0.0.0/8", false);
        check("whitelist-source-range", "10.0.0.0/99", true);
        check("enable-modsecurity", "false", false);
        check("enable-modsecurity", "true", true);
        check("use-gzip", "true", false);
        // `off` may be the name of a program.
        assert_eq!(Globals::of([("block-user-agents", "off")]).blocks.len(), 1);
        let found = |value: &str| Globals::of([("main-snippet", value)]).findings.remove(0).verdict;
        assert_eq!((found("off"), found("env A;")), (NoEffect, Refused));
    }

    #[test]
    fn every_option_is_there_once() {
        for list in [OPTIONS, FLAGS] {
            let mut names: Vec<&str> = list.iter().map(|opt| opt.name).collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        }
    }
}

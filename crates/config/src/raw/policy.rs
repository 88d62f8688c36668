//! The keys of the policies of routes.

use std::sync::LazyLock;

use model::{LimitTerms, Retry, SameSite, Scheme};

use super::{KeyWord, Off, word};
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Choice, Flag, Int, Many, Named, OneOf, OneOrMany, Read, Scalar, unexpected};
use crate::text::{
    BodyText, ByteSize, ChangedHeader, ClientNetwork, CookieName, CorsName, FileName, HeaderName, HeaderTemplate,
    HeaderValue, HostHeader, HttpPath, Label, OriginText, Pattern, Percent, PlainHost, Positive, RedirectStatus,
    RedirectUrl, ReplacedText, ReplacingText, RetryOn, RoutePath, StatusRange, TargetPath, Text, duration_text,
    percent_text,
};
use crate::yaml::{Node, Value};

static RETRY: LazyLock<Retry> = LazyLock::new(Retry::default);

/// One cluster, or several with their shares.
#[derive(Debug)]
pub enum RawTo {
    One(Label),
    Split(Many<RawShare>),
}

impl Read for RawTo {
    fn kind() -> Kind {
        Kind::Either(vec![<Label as Read>::kind(), <Many<RawShare> as Read>::kind()])
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        match &node.value {
            Value::List(_) => Many::read(node, subject, report).map(Self::Split),
            Value::Scalar { .. } => <Label as Read>::read(node, subject, report).map(Self::One),
            other => {
                report.add(node.location, unexpected(subject, &Self::kind(), other));
                None
            }
        }
    }
}

keys! {
    /// A cluster and its share of a route's requests.
    pub struct RawShare as "a share" {
        /// The cluster.
        required cluster: Label;
        /// Relative to the other weights in the list; a cluster with weight 0 gets no requests.
        optional weight: Int<0, 1_000_000>, default defaults::WEIGHT.to_string();
        /// Changes to the headers that the endpoints of this cluster get, after those of the route. HTTP only.
        optional request_headers: RawHeaderChanges, default "the route's";
        /// Changes to the headers of its responses, before those of the route. HTTP only.
        optional response_headers: RawHeaderChanges, default "the route's";
        /// Changes to the requests that its endpoints get, in place of those of the route. HTTP only.
        optional rewrite: RawRewrite, default "the route's";
    }
}

keys! {
    /// Redirects the client. Every part that is not set stays as in the client's URL. The query stays unless `path` has a `?`.
    pub struct RawRedirect as "a redirect" {
        /// The new URL, such as `https://shop.example.com`, with a port and a path if these change; short for the keys below. `$` in the
        /// path means the same as in `path`.
        optional to: RedirectUrl, default "from the next five keys";
        /// The scheme of the new URL. Without `port`, the port becomes the default port of the scheme.
        optional scheme: OneOf<Scheme>, default "the client's";
        /// The host of the new URL.
        optional host: PlainHost, default "the client's";
        /// The port of the new URL.
        optional port: Int<1, 65535>, default "the client's; with `host` alone the listener's";
        /// Replaces the whole path. If the route's `path` is a regular expression, `$1` and `${name}` are what its groups captured, and
        /// `$$` is a dollar sign. What follows a `?` replaces the client's query, and nothing after it removes the query.
        optional path: TargetPath, default "the client's";
        /// Replaces the prefix that the route's `path` matched; the rest of the path stays.
        optional path_prefix: HttpPath, default "the client's";
        /// 301 and 308 are permanent, 302 and 307 temporary; with 307 and 308 a POST stays a POST. With 303 the client fetches the answer
        /// to its POST by GET.
        optional status: RedirectStatus, default defaults::REDIRECT_STATUS.to_string();
        /// `Location` has the path and the query alone, for clients that reach Steelyard by a scheme or a port that it does not know.
        optional relative: Flag, default "false";
    }
}

keys! {
    /// Answers requests without an endpoint.
    pub struct RawRespond as "a fixed response" {
        /// The status.
        optional status: Int<200, 599>, default defaults::FIXED_STATUS.to_string();
        /// The body. At most 32KiB.
        optional body: BodyText, default "none";
        /// A file with the body. At most 32KiB.
        optional file: FileName, default "none";
        /// The type of the body.
        optional content_type: HeaderValue, default defaults::FIXED_CONTENT_TYPE;
        /// More headers: names and values.
        optional headers: Named<ChangedHeader, HeaderValue>, default "none";
    }
}

keys! {
    /// The body of responses with which Steelyard says that it cannot serve a request. Responses of endpoints stay as they are, and gRPC clients
    /// get a gRPC status. A client whose `Accept` prefers JSON to HTML gets JSON.
    pub struct RawErrorPage as "an error page", one of [body, file] {
        /// The statuses, from 400 to 599: `503`, or a range such as `500-599`.
        required status: OneOrMany<StatusRange>;
        /// The body. At most 32KiB.
        optional body: BodyText;
        /// A file with the body. At most 32KiB.
        optional file: FileName;
        /// The type of the body.
        optional content_type: HeaderValue, default defaults::ERROR_CONTENT_TYPE;
        /// The body for clients that prefer JSON, whose type is `application/json`. At most 32KiB.
        optional json: BodyText, default "`application/problem+json` with the status and the reason";
    }
}

keys! {
    /// When a failed request is sent again, to another endpoint if there is one. A request is never sent again after any part of the
    /// response went to the client, or after a part of its body went to an endpoint and is gone (a small body that arrived together with
    /// the headers is kept).
    pub struct RawRetryObject as "a retry" {
        /// How many times a request is sent again, at most. A try at an endpoint that refuses the connection or is unreachable does not
        /// count, for up to 10 endpoints, while another endpoint takes work. There is a random delay before each try: less than 25ms, 75ms,
        /// 175ms, and then 250ms. There is no delay if the endpoint received nothing and another endpoint takes work.
        optional attempts: Int<1, { Retry::ATTEMPTS_MAX as u64 }>, default RETRY.attempts.to_string();
        /// `connect_failure`: the connection could not be made. `reset`: it ended before the first byte of the response. `timeout`: the
        /// response did not begin in time (the cluster's `response_timeout`, or `per_try_timeout`). `5xx`, or a status from 400 to 599: the
        /// endpoint answered with it; after the last try the client gets that response. `cancelled`, `deadline_exceeded`,
        /// `resource_exhausted`, `internal`, `unavailable`: a gRPC call failed with this status before its first message.
        optional on: OneOrMany<RetryOn>, default "[connect_failure, reset]";
        /// Also retry POST, PATCH and unknown methods, although an endpoint may already have acted on them. By default they are retried
        /// only if no endpoint can have received them.
        optional non_idempotent: Flag, default "false";
        /// Retries as a share of the cluster's requests in the last ten seconds, counted by each worker; ten a second are always allowed.
        optional budget: Percent, default percent_text(RETRY.budget);
        /// Wait at least this long before each try after the first, in addition to the random delay. At most 1m.
        optional backoff: Positive, default "only the random delay";
        /// From the beginning of one try to the end of the response's headers. When it passes, the try counts as `timeout`; the client gets
        /// 504 if there is no further try.
        optional per_try_timeout: Positive, default "only the other timeouts";
        /// No try begins later than this after the first one has begun. A try that has begun may take longer.
        optional within: Positive, default "only `attempts` counts";
    }
}

keys! {
    /// Replaces responses that have some statuses: those of endpoints, after all retries, and those that Steelyard makes itself. Their bodies are
    /// discarded. gRPC calls are left alone.
    pub struct RawInterceptErrors as "an interception of errors" {
        /// The statuses, from 400 to 599: `503`, or a range such as `500-599`.
        required statuses: OneOrMany<StatusRange>;
        /// The error backend: a cluster that is asked for another response, by GET (HEAD for a HEAD). Clients get the status and the body that it
        /// sends. It gets the headers of the request, `X-Code` with the status, `X-Format` with the client's `Accept`, and `X-Original-URI`
        /// with its path and query. If it gives no response, clients get the status with the page of
        /// `error_pages`.
        optional to: Label, default "none: clients get the status with the page of `error_pages`";
        /// Whether responses of endpoints are replaced, too. With `false`, only those that Steelyard makes itself are.
        optional endpoints: Flag, default "true";
        /// The path that the error backend is asked for. `{status}` in it is the status.
        optional path: RoutePath, default defaults::ERROR_PATH;
        /// Changes to the headers that the error backend gets.
        optional request_headers: RawHeaderChanges, default "none";
        /// From the beginning of the request to the error backend to the end of the headers of its response.
        optional timeout: Positive, default duration_text(defaults::ERROR_TIMEOUT);
    }
}

keys! {
    /// A cluster that serves the requests of a route while its own cluster has no endpoint for them: there are none, or all of them are
    /// draining or of weight 0, or unhealthy and `panic_threshold` is 0%.
    pub struct RawFallback as "a fallback" {
        /// The cluster.
        required to: Label;
        /// Changes to the headers that its endpoints get, after those of the route.
        optional request_headers: RawHeaderChanges, default "the route's";
    }
}

keys! {
    /// Sends a copy of requests to another cluster. Its responses are discarded, and the client does not notice what it does.
    pub struct RawMirror as "a mirror" {
        /// The cluster that gets the copies. Path, headers and `Host` are the same as for the route's own endpoint.
        required to: Label;
        /// Another `Host` for the copies.
        optional host: HostHeader, default "the same";
        /// The percentage of requests that are copied. A request is not copied if its body is larger than 64KiB, or if 128 copies are in
        /// progress on the worker; metrics count both cases.
        optional percent: Int<1, 100>, default "100";
    }
}

keys! {
    /// Changes header fields. Fields that frame a message, belong to one hop or name the host cannot be changed. A name can appear in only
    /// one of the three keys. A value may have variables, such as `${client_ip}`; `$$` is a dollar sign. [Traffic
    /// policies](traffic-policies.md#variables) has the list.
    pub struct RawHeaderChanges as "a change of headers" {
        /// Names and values; each value replaces all fields with the name. If a value with variables comes out empty, the field is left
        /// out.
        optional set: Named<ChangedHeader, HeaderTemplate>, default "none";
        /// Names and values; each is added as one more field, or left out as above.
        optional add: Named<ChangedHeader, HeaderTemplate>, default "none";
        /// Names; all fields with these names are removed.
        optional remove: OneOrMany<ChangedHeader>, default "none";
    }
}

keys! {
    /// Changes the request that the endpoint gets. The query stays.
    pub struct RawRewrite as "a rewrite" {
        /// The `Host` that the endpoint gets. `X-Forwarded-Host` still has the client's.
        optional host: HostHeader, default "the client's";
        /// Replaces the whole path. If the route's `path` is a regular expression, `$1` and `${name}` are what its groups captured, and
        /// `$$` is a dollar sign.
        optional path: HttpPath, default "the client's";
        /// Replaces the prefix that the route's `path` matched; the rest of the path stays.
        optional path_prefix: HttpPath, default "the client's";
    }
}

keys! {
    /// Changes URLs and cookies in the responses of endpoints that know their own names and paths, and not those that clients use. Of each list,
    /// the first entry that matches a value changes it. At most 16 entries each.
    pub struct RawResponseRewrite as "a rewrite of responses" {
        /// `Location`, and the URL in `Refresh`: `from` is what they begin with.
        optional location: Many<RawValueRewrite>, default "none";
        /// The `Domain` of `Set-Cookie`: `from` is the whole domain. Case does not matter, and a dot in front of it stays.
        optional cookie_domain: Many<RawValueRewrite>, default "none";
        /// The `Path` of `Set-Cookie`: `from` is what it begins with.
        optional cookie_path: Many<RawValueRewrite>, default "none";
    }
}

keys! {
    /// A change of a value.
    pub struct RawValueRewrite as "a change of a value", one of [from, regex] {
        /// The text that is replaced; the rest of the value stays.
        optional from: ReplacedText;
        /// The whole value matches, and is replaced; case matters unless it begins with `(?i)`.
        optional regex: Pattern;
        /// The new text. `${scheme}` is the scheme of the client's request, `${host}` its host without the port, `$1` and `${name}` are what the groups of
        /// `regex` captured, and `$$` is a dollar sign.
        required to: ReplacingText;
    }
}

keys! {
    /// How many requests one client may make on this route, counted over all workers; each request above the limit is answered with 429, or
    /// `status`, and `Retry-After`. At most 262,144 clients are remembered at once.
    pub struct RawRateLimit as "a rate limit" {
        /// How many requests a client may make in each `per`, in the long run.
        required requests: Int<1, 1_000_000>;
        /// See `requests`.
        required per: Positive;
        /// What identifies a client: its address as trusted proxies report it (the first 64 bits of an IPv6 address), or a header. If the
        /// header is missing, the address counts.
        optional by: RawRateKey, default word(&KeyWord);
        /// How many requests may come at once after a silence.
        optional burst: Int<1, 1_000_000>, default "as many as `requests`";
        /// Further rates of the same clients, at most 4: a request needs room in each, and one that is refused counts for none.
        optional also: Many<RawFurtherRate>, default "none";
        /// The headers of each response that tell the client about its limit.
        optional headers: OneOrMany<OneOf<RateHeader>>, default "none";
        /// Networks of clients that are not limited: `10.0.0.0/8`, or single addresses. At most 1,024.
        optional except: OneOrMany<ClientNetwork>, default "none";
        /// What a request above the limit is answered. A gRPC client gets RESOURCE_EXHAUSTED.
        optional status: Int<400, 599>, default LimitTerms::STATUS.to_string();
        /// The routes whose `rate_limit` has the same group, `requests`, `per`, `by` and `burst` count together, on all listeners.
        optional group: Label, default "the route counts alone";
    }
}

keys! {
    /// A further rate of a rate limit, such as one by the minute beside one by the second.
    pub struct RawFurtherRate as "a further rate" {
        /// How many requests a client may make in each `per`, in the long run.
        required requests: Int<1, 1_000_000>;
        /// See `requests`.
        required per: Positive;
        /// How many requests may come at once after a silence.
        optional burst: Int<1, 1_000_000>, default "as many as `requests`";
    }
}

keys! {
    /// How many requests of one client the route serves at once, counted over all workers: from the end of a request's headers to the end of its
    /// response, or of the tunnel that it opened. A request above the limit is answered 429, or `status`.
    pub struct RawConcurrencyLimit as "a concurrency limit" {
        /// Requests at once. Each stream of an HTTP/2 connection is one.
        required requests: Int<1, 1_000_000>;
        /// What identifies a client; see `rate_limit`.
        optional by: RawRateKey, default word(&KeyWord);
        /// Networks of clients that are not limited: `10.0.0.0/8`, or single addresses. At most 1,024.
        optional except: OneOrMany<ClientNetwork>, default "none";
        /// What a request above the limit is answered. A gRPC client gets RESOURCE_EXHAUSTED.
        optional status: Int<400, 599>, default LimitTerms::STATUS.to_string();
        /// The routes whose `concurrency_limit` has the same group and the same `by` count together, on all listeners.
        optional group: Label, default "the route counts alone";
    }
}

keys! {
    /// How fast each response of an endpoint goes to its client. The endpoint has to wait, and nothing is collected. A client may have several
    /// responses at once; `client_limits` of the listener bounds all of them together.
    pub struct RawResponseBandwidth as "the bandwidth of a response" {
        /// The bytes in each `per`. At least 1KiB in a second.
        required bytes: ByteSize<1, { 1 << 40 }>;
        /// See `bytes`.
        optional per: Positive, default duration_text(defaults::BANDWIDTH_PER);
        /// The first bytes of each response, with its headers, which go as fast as the client takes them.
        optional after: ByteSize<0, { 1 << 40 }>, default "what one second allows";
    }
}

keys! {
    /// Which scripts of other origins may use the route (CORS, in the Fetch standard). Steelyard answers their preflight requests itself, with
    /// 204, or 403 if the origin is not allowed. In the responses of endpoints it replaces the fields of CORS.
    pub struct RawCors as "a CORS policy" {
        /// The origins of the scripts: `https://www.example.com`, with a port if it is not the default one; `https://*.example.com` for one or
        /// more labels in front; `https://*` for every host; `*` for every origin. At most 64.
        required origins: OneOrMany<OriginText>;
        /// The methods that scripts may use besides GET, HEAD and POST; `*` for all.
        optional methods: OneOrMany<CorsName>, default "GET, HEAD and POST alone";
        /// The headers that scripts may set besides those that browsers always allow; `*` for all.
        optional headers: OneOrMany<CorsName>, default "none";
        /// The headers of responses that scripts may read besides those that browsers always allow; `*` for all.
        optional expose: OneOrMany<CorsName>, default "none";
        /// Lets browsers send cookies, client certificates and passwords with the requests of scripts.
        optional credentials: Flag, default "false";
        /// How long browsers may remember the answer to a preflight request. Whole seconds.
        optional max_age: Positive, default duration_text(defaults::CORS_MAX_AGE);
    }
}

keys! {
    /// A header that identifies a client. Clients can write any value there: use a header that a trusted proxy sets, or an API key that the
    /// endpoints check.
    pub struct RawRateKeyObject as "a rate key" {
        /// The header's name.
        required header: HeaderName;
    }
}

keys! {
    /// Sends clients back to the endpoint that served them first, by means of a cookie or a header, as long as that endpoint is healthy; otherwise
    /// they get another endpoint. A draining endpoint keeps its clients and gets no new ones.
    pub struct RawSticky as "a sticky session", one of [cookie, header] {
        /// The name of the cookie. Its value is a keyed hash of the endpoint's address.
        optional cookie: CookieName;
        /// A response has this header with such a hash. The client sends it back in its next requests, for clients that keep no cookies.
        optional header: ChangedHeader;
        /// How long the client keeps the cookie, counted from its first request. At least 1s.
        optional ttl: Positive, default "until its session ends";
        /// The key of the hash. Use the same key in every Steelyard that the same clients reach. Without a key, anyone who knows the
        /// cluster's name can find an endpoint's address by trying addresses.
        optional secret: Text, default "none";
        /// Browsers send the cookie with requests whose paths begin with this.
        optional path: HttpPath, default "`/`; with `ingress_nginx`, the path of the route, unless that is a regular expression";
        /// Browsers send the cookie to this host and to all below it.
        optional domain: PlainHost, default "to the host that it came from";
        /// Whether browsers send the cookie with requests that other sites cause.
        optional same_site: OneOf<SameSite>, default word(&SameSite::Lax);
        /// Browsers never send the cookie over HTTP in the clear. The default is right unless a proxy in front of Steelyard ends TLS and is
        /// none of the `trusted_proxies`.
        optional secure: Flag, default "only if the client uses TLS";
        /// The cookies are those of ingress-nginx, so that clients keep their endpoints when they move from there, and back. Whoever knows the
        /// address of an endpoint can choose it then. Only for cookies, without `secret`.
        optional ingress_nginx: RawIngressNginxSessions, default "none";
    }
}

keys! {
    /// How ingress-nginx finds the endpoint of a cookie.
    pub struct RawIngressNginxSessions as "the sessions of ingress-nginx" {
        /// `NAMESPACE-SERVICE-PORT` of the backend, with the number or the name of the port as the Ingress writes it.
        required backend: Text;
        /// Its annotation `affinity-mode`.
        optional mode: OneOf<AffinityMode>, default word(&AffinityMode::Balanced);
    }
}

/// The annotation `affinity-mode` of ingress-nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AffinityMode {
    Balanced,
    Persistent,
}

impl Choice for AffinityMode {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        (
            "balanced",
            Self::Balanced,
            "a cookie has a key, and a consistent hash of the endpoints finds its endpoint; some clients move when endpoints come",
        ),
        ("persistent", Self::Persistent, "a cookie names its endpoint"),
    ];
}

impl Choice for SameSite {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("lax", Self::Lax, "only if a link is followed"),
        ("strict", Self::Strict, "never"),
        ("none", Self::None, "always; then the cookie is never sent over HTTP in the clear"),
    ];
}

text_or_object! {
    /// `off`, or the settings.
    RawRetry = OneOf<Off> | RawRetryObject
}
text_or_object! {
    /// The client's address, or a header.
    RawRateKey = OneOf<KeyWord> | RawRateKeyObject
}

impl Choice for Scheme {
    const CHOICES: &'static [(&'static str, Self, &'static str)] =
        &[("http", Self::Http, "in the clear"), ("https", Self::Https, "within TLS")];
}

/// A form of the headers that tell a client about its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateHeader {
    XRateLimit,
    RateLimit,
}

impl Choice for RateHeader {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("x_ratelimit", Self::XRateLimit, "`X-RateLimit-Limit`, `-Remaining` and `-Reset`, as Envoy sends them"),
        ("ratelimit", Self::RateLimit, "`RateLimit` and `RateLimit-Policy` of the IETF's draft"),
    ];
}

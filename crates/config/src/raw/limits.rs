//! The keys of limits on each client of a listener, and of global rate limits.

use super::Off;
use super::policy::RateHeader;
use crate::defaults;
use crate::define::{Kind, keys};
use crate::diagnostic::{Report, Wrong};
use crate::read::{Flag, Int, Many, OneOf, OneOrMany, Read, Scalar, True, unexpected};
use crate::text::{ByteSize, ClaimName, HeaderName, HeaderValue, HostHeader, Label, Positive, duration_text};
use crate::yaml::{Node, Value};

keys! {
    /// Limits on each client of a listener, counted over all workers. A client is an IPv4 address, or an IPv6 network of 64 bits.
    pub struct RawClientLimits as "the limits on a client" {
        /// Open connections. A connection above the limit is answered 429 (protocol http), or reset. The client is the one that the
        /// connection comes from, or that a PROXY protocol header names: behind proxies that report clients in headers, it is the proxy.
        optional connections: Int<1, 10_000_000>, default "no limit";
        /// How many requests a client may make on all routes together, in addition to `rate_limit` of the route. The client is the one
        /// that trusted proxies report. A request above the limit is answered 429.
        optional requests: RawClientRate, default "no limit", only "http";
        /// How fast the bodies of a client's requests are read, on all its connections together. A faster client has to wait. The client is the one
        /// that trusted proxies report.
        optional request_bandwidth: RawBandwidth, default "no limit", only "http";
        /// How fast a client gets the responses of endpoints, on all its connections together; as `request_bandwidth`.
        optional response_bandwidth: RawBandwidth, default "no limit", only "http";
    }
}

keys! {
    /// How many bytes a client may move. What is above it waits, and is not refused. At most 262,144 clients are remembered at once, over all
    /// rate limits.
    pub struct RawBandwidth as "a bandwidth" {
        /// The bytes in each `per`, in the long run. At least 1KiB in a second.
        required bytes: ByteSize<1, { 1 << 40 }>;
        /// See `bytes`.
        optional per: Positive, default duration_text(defaults::BANDWIDTH_PER);
        /// How many bytes may move at once after a silence. At least what a tenth of a second allows.
        optional burst: ByteSize<1, { 1 << 40 }>, default "what one second allows, and at least 64KiB";
    }
}

keys! {
    /// How many requests a client may make on a listener. At most 262,144 clients are remembered at once, over all rate limits.
    pub struct RawClientRate as "the rate of a client" {
        /// How many requests a client may make in each `per`, in the long run.
        required requests: Int<1, 1_000_000>;
        /// See `requests`.
        required per: Positive;
        /// How many requests may come at once after a silence.
        optional burst: Int<1, 1_000_000>, default "as many as `requests`";
        /// The headers of each response that tell the client about its limit.
        optional headers: OneOrMany<OneOf<RateHeader>>, default "none";
    }
}

keys! {
    /// A service that counts requests for all instances. It is asked about each request, after everything that the route checks itself
    /// (`rate_limit`, `auth`, `external_auth`). [Global rate limits](global-rate-limit.md) has the details.
    pub struct RawGlobalRateLimitObject as "a global rate limit" {
        /// The cluster of the service. Its breaker, health checks, ejection and TLS are those of any cluster, and it needs HTTP/2.
        required to: Label;
        /// The set of limits, as the service calls it.
        required domain: HeaderValue;
        /// What the service counts by. A request counts for each descriptor of which all entries have a value, and one limit that is
        /// exceeded is enough to refuse it. If no descriptor is left, the service is not asked. At most 16.
        required descriptors: Many<RawDescriptor>;
        /// Whether requests pass (`true`) or are answered `failure_status` (`false`) while the service gives no answer.
        required fail_open: Flag;
        /// From the question to the end of the answer.
        optional timeout: Positive, default duration_text(defaults::GLOBAL_RATE_LIMIT_TIMEOUT);
        /// What clients get while the service gives no answer, without `fail_open`.
        optional failure_status: Int<400, 599>, default defaults::EXTERNAL_AUTH_STATUS.to_string();
        /// The `:authority` of the call.
        optional host: HostHeader, default "the name of the cluster";
        /// The headers of each response that tell the client about its limits, including that of `rate_limit`.
        optional headers: OneOrMany<OneOf<RateHeader>>, default "none";
    }
}

keys! {
    /// A descriptor.
    pub struct RawDescriptor as "a descriptor" {
        /// Its entries, in the order in which the service has them. At most 16.
        required entries: OneOrMany<RawDescriptorEntry>;
    }
}

keys! {
    /// A key and a value of a descriptor. Exactly one key says where the value comes from.
    pub struct RawDescriptorEntry as "an entry of a descriptor", one of [client_ip, header, claim, path, method, host, value] {
        /// The key, as the service calls it.
        optional key: HeaderValue, default "`remote_address` for `client_ip`, the name of the header or the claim, `path`, `method`, `host`, or `generic_key`";
        /// The client's address as trusted proxies report it. Of an IPv6 address the network of 64 bits: `2001:db8:0:1::/64`.
        optional client_ip: True;
        /// The value of this header; if there are several, they are joined with commas.
        optional header: HeaderName;
        /// The value of this claim of the token that `auth` demands; the values of a list are joined with commas.
        optional claim: ClaimName;
        /// The path as routes see it, without the query.
        optional path: True;
        /// The method.
        optional method: True;
        /// The host, without the port.
        optional host: True;
        /// The same text for each request.
        optional value: HeaderValue;
    }
}

text_or_object! {
    /// `off`, or the service.
    RawGlobalRateLimit = OneOf<Off> | RawGlobalRateLimitObject
}

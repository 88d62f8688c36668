//! The keys of a listener's limits and paths.

use model::{ForwardPath, KeepRequestId};

use super::{LIMITS, PATHS, word};
use crate::defaults;
use crate::define::keys;
use crate::read::{Choice, Flag, Int, OneOf};
use crate::text::{ByteSize, size_text};

keys! {
    /// Limits on what clients may send to a listener. Metrics count each refusal with its reason.
    pub struct RawListenerLimits as "the limits of a listener" {
        /// Open connections; a connection above the limit is answered 503 (HTTP) or closed (TCP).
        optional connections: Int<1, 10_000_000>, default defaults::CONNECTIONS_MAX.to_string();
        /// Size of the request line and the headers together; a larger request is answered 431, or 414 if the request line alone is too
        /// long. From 1KiB to 1MiB.
        optional header_bytes: ByteSize<1024, 1_048_576>, default size_text(LIMITS.header_bytes_max as u64), only "http";
        /// Header fields of one request; a request with more is answered 431.
        optional header_count: Int<1, 256>, default LIMITS.header_count_max.to_string(), only "http";
        /// Size of a request body; a larger body is answered 413.
        optional body_bytes: ByteSize<0, { u64::MAX }>, default "no limit", only "http";
        /// Requests on one connection; the response to the last one has `Connection: close`, or GOAWAY follows it.
        optional requests_per_connection: Int<1, 1_000_000_000>, default "no limit", only "http";
        /// Concurrent requests on one HTTP/2 connection. Clients learn this limit from SETTINGS.
        optional streams_per_connection: Int<1, 10_000>, default LIMITS.streams_per_connection_max.to_string(), only "http";
    }
}

keys! {
    /// Routes, rewrites and redirects see a path in its normal form (RFC 3986 section 6.2.2): `%61` is `a`, other escapes are in upper
    /// case, and `.` and `..` are resolved. So `/%61dmin` and `/x/../admin` take the route of `/admin`. A route's own path is also put into
    /// this form, but a regular expression is not.
    pub struct RawPaths as "the paths of a listener" {
        /// Treat `//` as `/` in the normal form, so that `//admin` takes the route of `/admin`.
        optional merge_slashes: Flag, default PATHS.merge_slashes.to_string();
        /// The form of the path that an endpoint gets if no route rewrites it, and that a redirect keeps.
        optional forward: OneOf<ForwardPath>, default word(&PATHS.forward);
        /// Answer 400 to a path that other software may read differently: with `%2F`, with `\` or `%5C`, with a control character such as
        /// `%00`, with a `%` that begins no escape, with a segment such as `..;x`, or with `//..`, which depends on whether slashes are
        /// merged first.
        optional refuse_ambiguous: Flag, default PATHS.refuse_ambiguous.to_string();
    }
}

keys! {
    /// Gives every request an id. The endpoint gets it as `X-Request-ID`, the access log has it as `request_id`, and values of headers can
    /// use it as `${request_id}`. A new id is a random UUID (version 4). An empty mapping (`{}`) is enough.
    pub struct RawRequestId as "the request id" {
        /// Whose `X-Request-ID` is kept. It must be one field with 1 to 128 letters, digits and signs `-._~:/+=@`; otherwise the request
        /// gets a new id.
        optional keep: OneOf<KeepRequestId>, default word(&KeepRequestId::Trusted);
        /// Every response has the id, too, also those that Steelyard makes itself. It replaces an `X-Request-ID` of the endpoint.
        optional respond: Flag, default "false";
    }
}

impl Choice for KeepRequestId {
    const CHOICES: &'static [(&'static str, Self, &'static str)] = &[
        ("trusted", Self::Trusted, "those of `trusted_proxies`"),
        ("always", Self::Always, "those of all clients, which can then choose the ids in your logs"),
        ("never", Self::Never, "none"),
    ];
}

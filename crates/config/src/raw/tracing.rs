//! The keys of traces.

use super::{OtlpCompression, OtlpName, RawSecretValue, word};
use crate::defaults;
use crate::define::keys;
use crate::read::{Flag, Named, OneOf};
use crate::text::{
    ChangedHeader, HeaderValue, HostHeader, HttpPath, Label, Percent, Positive, QueryName, SpanName, Text,
    duration_text, percent_text,
};

keys! {
    /// Spans of requests, for a collector that understands OpenTelemetry (OTLP). [Traces](tracing.md) has the details.
    pub struct RawTracing as "the tracing" {
        /// The cluster of the collector.
        required to: Label;
        /// How the collector is spoken to.
        optional protocol: OneOf<OtlpName>, default word(&OtlpName::Grpc);
        /// The path of exports, with `protocol: http`.
        optional path: HttpPath, default defaults::OTLP_PATH;
        /// The `Host` (`:authority`) of exports.
        optional host: HostHeader, default "the name of the cluster";
        /// Headers of exports, such as `authorization` or the key that a service wants. Each is the value, or `{file: FILE}`.
        optional headers: Named<ChangedHeader, RawSecretValue>, default "none";
        /// How exports are compressed.
        optional compression: OneOf<OtlpCompression>, default word(&OtlpCompression::None);
        /// The share of requests that are recorded if no trusted sender has decided for their trace: `100%`, or as little as `0.0001%`.
        optional sampling: Percent, default percent_text(defaults::SAMPLING);
        /// Record what any client asks to have recorded. With `false`, only the decisions of `trusted_proxies` count, and the traces of others
        /// are continued, but sampled here.
        optional trust_client_sampling: Flag, default "false";
        /// Whether spans have the query of the request (`url.query`), which may have secrets.
        optional query: Flag, default "false";
        /// The name of this process in traces (`service.name`).
        optional service: Text, default defaults::SERVICE;
        /// Further attributes of this process (the resource), such as `deployment.environment.name: production`.
        optional attributes: Named<QueryName, HeaderValue>, default "none";
        /// From the connect to the end of the collector's answer.
        optional timeout: Positive, default duration_text(defaults::OTLP_TIMEOUT);
    }
}

keys! {
    /// How the traces of a route differ from those of other routes. The file needs `tracing`, which says where they are sent.
    pub struct RawRouteTracing as "the tracing of a route" {
        /// false: record none of its requests, and leave their `traceparent` as it is.
        optional enabled: Flag, default "true";
        /// The share of requests that are recorded if no trusted sender has decided for their trace.
        optional sampling: Percent, default "that of the file";
        /// false: begin a new trace for each request, whatever `traceparent` it has.
        optional continue_trace: Flag, default "true";
        /// The name of the SERVER spans: text with `${method}`, `${host}`, `${path}` and `${route}` (the name of the route). Of the result, 256 bytes count.
        optional span_name: SpanName, default "the method and the path of the route, or the method of a gRPC call";
    }
}

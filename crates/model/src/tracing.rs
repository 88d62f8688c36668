//! Traces: which requests are recorded as spans, and where the spans are sent.

use std::time::Duration;

use crate::ClusterId;

/// Spans of requests, sent to a collector by the OpenTelemetry protocol (OTLP).
#[derive(Clone, Debug, PartialEq)]
pub struct Tracing {
    /// The cluster of the collector.
    pub to: ClusterId,
    /// How the collector is spoken to.
    pub protocol: OtlpProtocol,
    /// The `Host` or `:authority` of exports; `None` means the name of the cluster.
    pub host: Option<String>,
    /// The share of requests that are recorded, from 0.0 to 1.0, if no trusted sender has decided.
    pub sampling: f64,
    /// The decision of every sender counts, and not only that of trusted proxies.
    pub trust_client_sampling: bool,
    /// Spans have the query of the request.
    pub query: bool,
    /// The value of the attribute `service.name`.
    pub service: String,
    /// Further attributes of the resource, by name.
    pub attributes: Vec<(String, String)>,
    /// The limit from the connect to the end of the collector's answer.
    pub timeout: Duration,
}

/// A transport of OTLP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// Calls of `opentelemetry.proto.collector.trace.v1.TraceService/Export`.
    Grpc,
    /// Requests with a protobuf body.
    Http {
        /// The path that they are sent to.
        path: String,
    },
}

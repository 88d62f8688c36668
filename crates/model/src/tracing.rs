//! Traces: which requests are recorded as spans, and where the spans are sent.

use std::sync::Arc;

use crate::Otlp;

/// Spans of requests, sent to a collector.
#[derive(Clone, Debug, PartialEq)]
pub struct Tracing {
    /// The collector.
    pub otlp: Arc<Otlp>,
    /// The share of requests that are recorded, from 0.0 to 1.0, if no trusted sender has decided.
    pub sampling: f64,
    /// The decision of every sender counts, and not only that of trusted proxies.
    pub trust_client_sampling: bool,
    /// Spans have the query of the request.
    pub query: bool,
}

/// What a route says about the traces of its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteTracing {
    /// False: none of them is recorded, and what they say of a trace passes as it is.
    pub enabled: bool,
    /// The share of requests that are recorded; `None` means that of [`Tracing`].
    pub sampling: Option<f64>,
    /// False: each request begins a new trace, whatever it says.
    pub continues: bool,
    /// The name of the SERVER spans; empty means the usual one.
    pub span_name: Vec<SpanNamePart>,
}

/// A part of the name of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanNamePart {
    /// This text.
    Text(String),
    /// The method of the request, if it is a known one.
    Method,
    /// The host of the request, as the client wrote it.
    Host,
    /// The path of the request.
    Path,
    /// The name of the route.
    Route,
}

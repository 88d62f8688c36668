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

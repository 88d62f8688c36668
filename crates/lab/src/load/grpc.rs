//! gRPC load: calls of `strest.Responder`, or of any other unary method with an empty message.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::response::Parts;

use super::engine;
use super::h2c::Exchange;
use super::http::FirstLength;
use super::payload::Payload;
use super::report::LoadReport;
use super::shape::Shape;
use super::socket::Tls;
use super::tally::{Met, Outcome};
use super::target::Target;
use crate::percentiles::Percentiles;
use crate::stats::Rng;
use crate::strest::{self, ResponseSpec, StreamingResponseSpec};

/// What to call, and how.
#[derive(Clone, Debug)]
pub struct GrpcLoad {
    /// Where to; its path is the method, as in `/strest.Responder/Get`.
    pub target: Target,
    /// How the connections are encrypted; `None`: they are not.
    pub tls: Option<Tls>,
    /// Bytes that each reply is asked for.
    pub length: u32,
    /// How long the origin is asked to wait before each reply, drawn anew for each call; whole ms, as strest-grpc has it.
    pub latency: Option<Percentiles>,
    /// Share of the calls that the origin is asked to fail, 0 to 1.
    pub error_rate: f32,
    /// Replies that each call asks for: a call of `StreamingGet` instead of `Get`.
    pub streaming: Option<u32>,
    /// Of the draws.
    pub seed: u64,
    /// How much, when, and from where.
    pub shape: Shape,
}

/// Puts the load on.
///
/// # Errors
/// Threads or timers that this host refuses. What the target does is in the report.
pub async fn run_grpc(load: &GrpcLoad) -> io::Result<LoadReport> {
    let path = match (load.streaming, load.target.path.as_str()) {
        (Some(_), "/") => strest::STREAMING_GET,
        (None, "/") => strest::GET,
        (_, path) => path,
    };
    let scheme = if load.tls.is_some() { "https" } else { "http" };
    let request = http::Request::post(format!("{scheme}://{}{path}", load.target.host))
        .version(http::Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "steelyard-load")
        .body(())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let exchange = Exchange {
        address: load.target.address,
        tls: load.tls.clone(),
        shape: load.shape.clone(),
        request,
        payload: Payload::default(),
        calls: Some(Calls::new(load)),
        body: FirstLength::when(false),
    };
    let name = if load.tls.is_some() { "grpc over TLS" } else { "grpc" };
    engine::run(name, Arc::new(exchange), &load.shape, Arc::default()).await
}

/// What is called.
#[derive(Clone)]
pub(super) struct Calls {
    spec: ResponseSpec,
    latency: Option<Percentiles>,
    rng: Rng,
    seed: u64,
    /// The message, where it is always the same.
    message: Bytes,
}

impl Calls {
    fn new(load: &GrpcLoad) -> Self {
        let length = i32::try_from(load.length).unwrap_or(i32::MAX);
        let spec = ResponseSpec { length, latency: 0, error_rate: load.error_rate };
        let message = match load.streaming {
            None => strest::framed(&spec),
            Some(count) => strest::framed(&StreamingResponseSpec {
                count: i32::try_from(count).unwrap_or(i32::MAX),
                latency_percentiles: load.latency.as_ref().map(Percentiles::to_strest_map).unwrap_or_default(),
                // By strest's reading the least of all is always 0; all above it can be said.
                length_percentiles: [(1, i64::from(length)), (1_000, i64::from(length))].into(),
            }),
        };
        let latency = load.latency.clone().filter(|_| load.streaming.is_none());
        Self { spec, latency, rng: Rng::new(load.seed), seed: load.seed, message }
    }

    /// The same with draws of its own.
    pub(super) fn seeded(&self, number: u64) -> Self {
        Self { rng: Rng::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)), ..self.clone() }
    }

    pub(super) fn next_message(&mut self) -> Bytes {
        let Some(latency) = &self.latency else { return self.message.clone() };
        let latency_ms = latency.draw(&mut self.rng).as_millis() as i64;
        strest::framed(&ResponseSpec { latency: latency_ms, ..self.spec })
    }

    /// gRPC's status stands in the trailers, or in the head where there is nothing else.
    pub(super) fn judge(head: &Parts, trailers: Option<&HeaderMap>, met: &mut Met) -> Outcome {
        let status = trailers.unwrap_or(&head.headers).get("grpc-status");
        let status = status.and_then(|status| status.to_str().ok()).and_then(|status| status.parse::<u16>().ok());
        met.status = status;
        match status {
            Some(0) => Outcome::Good,
            Some(_) => Outcome::Refused,
            // An answer, but none of gRPC: a gateway's own error page.
            None if head.status.is_success() => Outcome::Broken,
            None => {
                met.status = Some(head.status.as_u16());
                Outcome::Refused
            }
        }
    }
}

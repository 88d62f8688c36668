//! gRPC load: calls to `strest.Responder`, or to any other unary method with an empty message.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::response::Parts;

use super::engine;
use super::h2c::Exchange;
use super::http::FirstLength;
use super::mix::Mix;
use super::payload::Payload;
use super::report::LoadReport;
use super::shape::Shape;
use super::socket::Tls;
use super::tally::{Met, Outcome};
use super::target::Target;
use crate::percentiles::Percentiles;
use crate::stats::Rng;
use crate::strest::{self, ResponseSpec, StreamingResponseSpec};

/// A load of gRPC calls.
#[derive(Clone, Debug)]
pub struct GrpcLoad {
    /// The server. The path is the method, as in `/strest.Responder/Get`; `/` stands for the method of `strest.Responder` that fits
    /// `streaming`.
    pub target: Target,
    /// The encryption of the connections; `None` means clear text.
    pub tls: Option<Tls>,
    /// The size of the body to request for each reply, in bytes.
    pub length: u32,
    /// The delay before each reply that the origin is asked for, in whole ms as in strest-grpc. It is drawn at random for each call.
    pub latency: Option<Percentiles>,
    /// The share of the calls that the origin is asked to fail, from 0 to 1.
    pub error_rate: f32,
    /// The number of replies to request for each call, with `StreamingGet` instead of `Get`.
    pub streaming: Option<u32>,
    /// The seed of the random delays.
    pub seed: u64,
    /// Connections, rate and duration of the load.
    pub shape: Shape,
}

/// Runs the load.
///
/// # Errors
/// The host refuses a thread or a timer, or the target is not a valid URL. The failures of calls are in the report.
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
        requests: Mix::new((1, (request, Payload::default())), []),
        calls: Some(Calls::new(load)),
        body: FirstLength::when(false),
    };
    let name = if load.tls.is_some() { "grpc over TLS" } else { "grpc" };
    engine::run(name, Arc::new(exchange), &load.shape, Arc::default()).await
}

/// Creates the messages of the calls, and judges the responses.
#[derive(Clone)]
pub(super) struct Calls {
    spec: ResponseSpec,
    latency: Option<Percentiles>,
    rng: Rng,
    seed: u64,
    /// The message of every call, unless delays are drawn.
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
                // In strest-grpc, the smallest value of a distribution is always 0. These points give all other replies the same length.
                length_percentiles: [(1, i64::from(length)), (1_000, i64::from(length))].into(),
            }),
        };
        let latency = load.latency.clone().filter(|_| load.streaming.is_none());
        Self { spec, latency, rng: Rng::new(load.seed), seed: load.seed, message }
    }

    /// The same calls with their own sequence of random delays.
    pub(super) fn seeded(&self, number: u64) -> Self {
        Self { rng: Rng::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)), ..self.clone() }
    }

    pub(super) fn next_message(&mut self) -> Bytes {
        let Some(latency) = &self.latency else { return self.message.clone() };
        let latency_ms = latency.draw(&mut self.rng).as_millis() as i64;
        strest::framed(&ResponseSpec { latency: latency_ms, ..self.spec })
    }

    /// Reads the gRPC status from the trailers, or from the head if the response has no trailers.
    pub(super) fn judge(head: &Parts, trailers: Option<&HeaderMap>, met: &mut Met) -> Outcome {
        let status = trailers.unwrap_or(&head.headers).get("grpc-status");
        let status = status.and_then(|status| status.to_str().ok()).and_then(|status| status.parse::<u16>().ok());
        met.status = status;
        match status {
            Some(0) => Outcome::Good,
            Some(_) => Outcome::Refused,
            // This is a response without a gRPC status, such as a gateway's own page.
            None if head.status.is_success() => Outcome::Broken,
            None => {
                met.status = Some(head.status.as_u16());
                Outcome::Refused
            }
        }
    }
}

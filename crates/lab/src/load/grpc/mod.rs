//! gRPC load: calls to `strest.Responder`, or to any other method.
//!
//! What a method takes is described by files or by the server; `schema`, `reflection` and `messages` turn JSON into what is sent. All of this
//! happens before the load, so it costs a call nothing.

mod args;
mod messages;
mod reflection;
mod schema;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::response::Parts;

pub(super) use args::EXAMPLES;
pub use args::{CallArgs, GrpcLoadArgs};
pub(super) use messages::Counted;

use super::engine;
use super::h2c::Exchange;
use super::http::{Addressed, FirstLength, Server};
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
    /// Headers of each call. `host` replaces the authority of the URL.
    pub metadata: Vec<(String, String)>,
    /// What calls send, in turn: one or more messages with their prefixes. If there is none, they send the messages of `strest.Responder`.
    pub messages: Vec<Bytes>,
    /// How many messages a response has.
    pub replies: Replies,
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

/// How many messages a good response has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// One: the method is unary in this direction.
    One,
    /// Any number: the method has a stream of responses, or nothing describes it.
    Any,
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
    let request = request(scheme, &load.target.host, path, &load.metadata)?;
    let exchange = Exchange {
        servers: vec![Server { address: load.target.address, tls: load.tls.clone() }],
        shape: load.shape.clone(),
        requests: Mix::new((1, Addressed::to_first((request, Payload::default()))), []),
        calls: Some(Calls::new(load)),
        body: FirstLength::when(false),
    };
    let name = if load.tls.is_some() { "grpc over TLS" } else { "grpc" };
    engine::run(name, Arc::new(exchange), &load.shape, Arc::default()).await
}

/// The head of a call.
fn request(scheme: &str, host: &str, path: &str, metadata: &[(String, String)]) -> io::Result<http::Request<()>> {
    let is_host = |(name, _): &&(String, String)| name == "host";
    let host = metadata.iter().find(is_host).map_or(host, |(_, value)| value);
    let mut request = http::Request::post(format!("{scheme}://{host}{path}"))
        .version(http::Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if !metadata.iter().any(|(name, _)| name == "user-agent") {
        request = request.header("user-agent", "steelyard-load");
    }
    for (name, value) in metadata.iter().filter(|header| !is_host(header)) {
        request = request.header(name, value);
    }
    request.body(()).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
}

/// The names of the gRPC statuses, by number. HTTP has no status as low as these.
const STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// The name of a gRPC status.
pub(super) fn status_name(status: u16) -> Option<&'static str> {
    STATUSES.get(usize::from(status)).copied()
}

/// Creates the messages of the calls, and judges the responses.
#[derive(Clone)]
pub(super) struct Calls {
    spec: ResponseSpec,
    latency: Option<Percentiles>,
    rng: Rng,
    seed: u64,
    /// The messages of the calls, in turn, unless delays are drawn. There is at least one.
    messages: Vec<Bytes>,
    /// The number of the next call.
    next: usize,
    replies: Replies,
}

impl Calls {
    fn new(load: &GrpcLoad) -> Self {
        let length = i32::try_from(load.length).unwrap_or(i32::MAX);
        let spec = ResponseSpec { length, latency: 0, error_rate: load.error_rate };
        let strest = || match load.streaming {
            None => strest::framed(&spec),
            Some(count) => strest::framed(&StreamingResponseSpec {
                count: i32::try_from(count).unwrap_or(i32::MAX),
                latency_percentiles: load.latency.as_ref().map(Percentiles::to_strest_map).unwrap_or_default(),
                // In strest-grpc, the smallest value of a distribution is always 0. These points give all other replies the same length.
                length_percentiles: [(1, i64::from(length)), (1_000, i64::from(length))].into(),
            }),
        };
        let messages = if load.messages.is_empty() { vec![strest()] } else { load.messages.clone() };
        let latency = load.latency.clone().filter(|_| load.streaming.is_none() && load.messages.is_empty());
        Self { spec, latency, rng: Rng::new(load.seed), seed: load.seed, messages, next: 0, replies: load.replies }
    }

    /// The same calls with their own sequence of random delays, and beginning with another message.
    pub(super) fn seeded(&self, number: u64) -> Self {
        let rng = Rng::new(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { rng, next: number as usize, ..self.clone() }
    }

    pub(super) fn next_message(&mut self) -> Bytes {
        let Some(latency) = &self.latency else {
            let message = &self.messages[self.next % self.messages.len()];
            self.next = self.next.wrapping_add(1);
            return message.clone();
        };
        let latency_ms = latency.draw(&mut self.rng).as_millis() as i64;
        strest::framed(&ResponseSpec { latency: latency_ms, ..self.spec })
    }

    /// Reads the gRPC status from the trailers, or from the head if the response has no trailers.
    /// A response with the status OK must consist of whole messages, as many as the method returns.
    pub(super) fn judge(
        &self,
        head: &Parts,
        trailers: Option<&HeaderMap>,
        counted: &Counted,
        met: &mut Met,
    ) -> Outcome {
        let status = trailers.unwrap_or(&head.headers).get("grpc-status");
        let status = status.and_then(|status| status.to_str().ok()).and_then(|status| status.parse::<u16>().ok());
        met.status = status;
        met.messages = counted.messages;
        match status {
            Some(0) if !counted.is_complete() => {
                met.failed("request", &"the response ends within a message");
                Outcome::Broken
            }
            Some(0) if self.replies == Replies::One && counted.messages != 1 => {
                let why = format!("a response with {} messages, although the method returns one", counted.messages);
                met.failed("request", &why);
                Outcome::Broken
            }
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

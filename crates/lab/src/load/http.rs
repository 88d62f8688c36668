//! HTTP/1 load, in clear text or over TLS. Each connection is a lane.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::client::{Client, Failure, Manner, Request};
use super::engine::{self, Lane, Protocol};
use super::h2c;
use super::mix::{Entry, Mix};
use super::payload::Payload;
use super::report::LoadReport;
use super::shape::{Shape, Until};
use super::socket::Tls;
use super::tally::{Met, Outcome};
use super::target::Target;
use crate::stats::Rng;

/// A version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    /// HTTP/1.0; kept alive with `connection: Keep-Alive`, like ab -k, unless the load closes its connections.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2: negotiated with ALPN over TLS, and with prior knowledge in clear text.
    Http2,
}

/// A load of HTTP requests.
#[derive(Clone, Debug)]
pub struct HttpLoad {
    /// The server and the path.
    pub target: Target,
    /// The encryption of the connections; `None` means clear text.
    pub tls: Option<Tls>,
    /// The version of HTTP.
    pub version: Version,
    /// Whether to open a connection for each request. HTTP/2 does not support this.
    pub close: bool,
    /// The method, such as `GET`.
    pub method: String,
    /// Additional headers. `host`, `connection` and `content-length` replace the default ones.
    pub headers: Vec<(String, String)>,
    /// The body of each request. If `None`, the body is `body_bytes` of filler.
    pub data: Option<Bytes>,
    /// The size of the filler, if `data` is `None`.
    pub body_bytes: u64,
    /// Requests that are sent in random order instead of the one of `target` and `method`; empty for that one.
    pub mix: Vec<Entry>,
    /// Whether a response is a failure if its length differs from that of the first one, as in ab. This is wrong if endpoints legitimately
    /// send bodies of different lengths.
    pub same_length: bool,
    /// Connections, rate and duration of the load.
    pub shape: Shape,
    /// The responses to requests that start after this is set count under `origins_after_mark`.
    pub mark: Arc<AtomicBool>,
}

impl HttpLoad {
    /// GET requests over HTTP/1.1 in a closed loop on one thread, with a timeout of 10 s.
    pub fn get(target: Target, connections: usize, until: Until) -> Self {
        Self {
            target,
            tls: None,
            version: Version::Http11,
            close: false,
            method: "GET".to_owned(),
            headers: Vec::new(),
            data: None,
            body_bytes: 0,
            mix: Vec::new(),
            same_length: false,
            shape: Shape::closed(connections, until),
            mark: Arc::default(),
        }
    }

    fn payload(&self) -> Payload {
        self.data.clone().map_or_else(|| Payload::filler(self.body_bytes), Payload::of)
    }

    /// The requests that are sent: method, path and body of each, as `encoded`.
    pub(super) fn requests<T>(
        &self,
        mut encoded: impl FnMut(&str, &Target, Payload) -> io::Result<T>,
    ) -> io::Result<Mix<T>> {
        let mut of_entry = |entry: &Entry| {
            let target = Target { path: entry.path.clone(), ..self.target.clone() };
            let payload = entry.data.clone().map_or_else(|| self.payload(), Payload::of);
            Ok((entry.weight, encoded(&entry.method, &target, payload)?))
        };
        let Some((first, more)) = self.mix.split_first() else {
            return Ok(Mix::new((1, encoded(&self.method, &self.target, self.payload())?), []));
        };
        let first = of_entry(first)?;
        Ok(Mix::new(first, more.iter().map(of_entry).collect::<io::Result<Vec<_>>>()?))
    }
}

/// Whether a response with this status is a success. A redirect is a success, because it is what the server was asked for, and the load does
/// not follow it. h2load and k6 count the same way.
pub(super) fn is_success(status: u16) -> bool {
    (200..400).contains(&status)
}

/// Runs the load on its own threads, and returns the report when it ends. When the future is dropped, no further request is sent.
///
/// # Errors
/// The host refuses a thread or a timer, or the request is not valid in HTTP/2. The failures of requests are in the report.
pub async fn run_http(load: &HttpLoad) -> io::Result<LoadReport> {
    let (manner, name) = match (load.version, load.close) {
        (Version::Http10, false) => (Manner::Keep10, "http/1.0"),
        (Version::Http10, true) => (Manner::Close10, "http/1.0, one connection per request"),
        (Version::Http11, false) => (Manner::Keep, "http/1.1"),
        (Version::Http11, true) => (Manner::Close, "http/1.1, one connection per request"),
        (Version::Http2, _) => return h2c::run(load).await,
    };
    let name = if load.tls.is_some() { format!("{name} over TLS") } else { name.to_owned() };
    let requests =
        load.requests(|method, target, payload| Ok(Request::new(manner, method, target, &load.headers, &payload)))?;
    let (target, tls) = (load.target.clone(), load.tls.clone());
    let http = Http { target, tls, requests, shape: load.shape.clone(), body: FirstLength::when(load.same_length) };
    // HTTP/1 has no streams.
    let shape = Shape { streams: 1, ..load.shape.clone() };
    engine::run(&name, Arc::new(http), &shape, load.mark.clone()).await
}

/// The body length of the first successful response. ab requires all later ones to have the same length.
pub(super) struct FirstLength(Option<AtomicU64>);

impl FirstLength {
    /// Creates one that compares lengths, or one that accepts any length.
    pub(super) fn when(compares: bool) -> Self {
        Self(compares.then(|| AtomicU64::new(u64::MAX)))
    }

    /// Whether the length of this response differs from that of the first one.
    pub(super) fn is_other(&self, length: u64) -> bool {
        let Some(first) = &self.0 else { return false };
        match first.compare_exchange(u64::MAX, length, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => false,
            Err(first) => first != length,
        }
    }
}

struct Http {
    target: Target,
    tls: Option<Tls>,
    requests: Mix<Request>,
    shape: Shape,
    body: FirstLength,
}

impl Protocol for Arc<Http> {
    type Lane = Connection;

    fn lanes(&self, number: u64, _: usize) -> Vec<Connection> {
        let rng = Rng::new(self.shape.seed.wrapping_add(number));
        vec![Connection { http: self.clone(), number, client: None, has_connected: false, rng }]
    }
}

/// A connection and its reconnects.
struct Connection {
    http: Arc<Http>,
    number: u64,
    client: Option<Client>,
    has_connected: bool,
    /// Draws the requests of a mix.
    rng: Rng,
}

impl Lane for Connection {
    async fn prepare(&mut self) {
        self.client = self.connect().await.ok();
        self.has_connected = self.client.is_some();
    }

    async fn operate(&mut self, met: &mut Met) -> Outcome {
        let http = self.http.clone();
        let request = http.requests.at(http.requests.draw(&mut self.rng));
        loop {
            let Some(mut client) = self.take_client(met).await else { return Outcome::NoConnection };
            let origin = &mut met.origin;
            let outcome = client.exchange(request, |name| origin.extend_from_slice(name)).await;
            met.received_bytes += client.take_received();
            met.sent_bytes += request.bytes();
            match outcome {
                Ok(answer) => {
                    met.status = Some(answer.status);
                    met.waiting = answer.waiting;
                    if answer.keep_alive {
                        self.client = Some(client);
                    }
                    if !is_success(answer.status) {
                        return Outcome::Refused;
                    }
                    met.is_other_length = http.body.is_other(answer.body_bytes);
                    return Outcome::Good;
                }
                Err(Failure::Stale(_)) if request.is_idempotent && met.resent == 0 => {
                    met.origin.clear();
                    met.resent += 1;
                }
                Err(Failure::Stale(error) | Failure::Broken(error)) => {
                    met.failed("request", &error);
                    return Outcome::Broken;
                }
            }
        }
    }

    fn is_open(&self) -> bool {
        self.client.is_some()
    }
}

impl Connection {
    /// Takes the open connection, or opens a new one.
    async fn take_client(&mut self, met: &mut Met) -> Option<Client> {
        if let Some(mut client) = self.client.take()
            && !client.is_spent()
        {
            return Some(client);
        }
        let begun = std::time::Instant::now();
        let client = match self.connect().await {
            Ok(client) => client,
            Err(error) => {
                met.failed("connect", &error);
                return None;
            }
        };
        met.connected = Some(begun.elapsed());
        if std::mem::replace(&mut self.has_connected, true) {
            met.reconnects += 1;
        }
        Some(client)
    }

    async fn connect(&mut self) -> io::Result<Client> {
        // Each connect uses the next source address. With a connection for each request, the load then uses the ports of all addresses.
        let source = self.http.shape.source(self.number);
        self.number += 1;
        Client::connect(self.http.target.address, source, self.http.tls.as_ref()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_length_is_that_of_all() {
        let body = FirstLength::when(true);
        assert_eq!([18, 18, 17, 18].map(|length| body.is_other(length)), [false, false, true, false]);
        let body = FirstLength::when(false);
        assert_eq!([18, 17].map(|length| body.is_other(length)), [false, false]);
    }
}

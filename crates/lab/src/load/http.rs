//! HTTP/1 load, in clear text or over TLS: a connection is a lane.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use super::client::{Client, Failure, Manner, Request};
use super::engine::{self, Lane, Protocol};
use super::h2c;
use super::payload::Payload;
use super::report::LoadReport;
use super::shape::{Shape, Until};
use super::socket::Tls;
use super::tally::{Met, Outcome};
use super::target::Target;

/// Which HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0 with the keep-alive that ab asks for.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2: over TLS by ALPN, in clear text by prior knowledge.
    Http2,
}

/// What to send, and how.
#[derive(Clone, Debug)]
pub struct HttpLoad {
    /// Where to.
    pub target: Target,
    /// How the connections are encrypted; `None`: clear text.
    pub tls: Option<Tls>,
    /// Which HTTP.
    pub version: Version,
    /// A connection for each request; not for HTTP/2.
    pub close: bool,
    /// `GET`, and so on.
    pub method: String,
    /// Fields beside `host` and `content-length`.
    pub headers: Vec<(String, String)>,
    /// The request's body; `None`: `body_bytes` of filler.
    pub data: Option<Bytes>,
    /// Size of the request's body, where that is filler.
    pub body_bytes: u64,
    /// Whether an answer of another length than the first one is a failure, as it is for ab. Endpoints may have their reasons to differ.
    pub same_length: bool,
    /// How much, when, and from where.
    pub shape: Shape,
    /// Once it is true, answers are counted under `origins_after_mark`.
    pub mark: Arc<AtomicBool>,
}

impl HttpLoad {
    /// GETs of HTTP/1.1 in a closed loop on one thread, answers within 10 s.
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
            same_length: false,
            shape: Shape::closed(connections, until),
            mark: Arc::default(),
        }
    }

    pub(super) fn payload(&self) -> Payload {
        self.data.clone().map_or_else(|| Payload::filler(self.body_bytes), Payload::of)
    }
}

/// Whether an answer with this status is a success. A redirect is one: it is what the server was to say, and a load does not follow it. So
/// h2load and k6 have it, too.
pub(super) fn is_success(status: u16) -> bool {
    (200..400).contains(&status)
}

/// Puts the load on, from threads of its own, and reports when it is over. When the future is dropped, no further request is sent.
///
/// # Errors
/// Threads or timers that this host refuses. What the target does is in the report.
pub async fn run_http(load: &HttpLoad) -> io::Result<LoadReport> {
    let (manner, name) = match (load.version, load.close) {
        (Version::Http10, false) => (Manner::Keep10, "http/1.0"),
        (Version::Http10, true) => (Manner::Close10, "http/1.0, a connection each"),
        (Version::Http11, false) => (Manner::Keep, "http/1.1"),
        (Version::Http11, true) => (Manner::Close, "http/1.1, a connection each"),
        (Version::Http2, _) => return h2c::run(load).await,
    };
    let name = if load.tls.is_some() { format!("{name} over TLS") } else { name.to_owned() };
    let request = Request::new(manner, &load.method, &load.target, &load.headers, &load.payload());
    let (target, tls) = (load.target.clone(), load.tls.clone());
    let http = Http { target, tls, request, shape: load.shape.clone(), body: FirstLength::when(load.same_length) };
    // Without keep-alive, streams on a connection would be connections under another name.
    let shape = Shape { streams: 1, ..load.shape.clone() };
    engine::run(&name, Arc::new(http), &shape, load.mark.clone()).await
}

/// The length that the first good answer had: ab's idea of how long all must be.
pub(super) struct FirstLength(Option<AtomicU64>);

impl FirstLength {
    /// One that compares, or one that does not.
    pub(super) fn when(compares: bool) -> Self {
        Self(compares.then(|| AtomicU64::new(u64::MAX)))
    }

    /// Whether this answer's length is another one.
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
    request: Request,
    shape: Shape,
    body: FirstLength,
}

impl Protocol for Arc<Http> {
    type Lane = Connection;

    fn lanes(&self, number: u64, _: usize) -> Vec<Connection> {
        vec![Connection { http: self.clone(), number, client: None, has_connected: false }]
    }
}

/// One connection, through all its reconnects.
struct Connection {
    http: Arc<Http>,
    number: u64,
    client: Option<Client>,
    has_connected: bool,
}

impl Lane for Connection {
    async fn prepare(&mut self) {
        self.client = self.connect().await.ok();
        self.has_connected = self.client.is_some();
    }

    async fn operate(&mut self, met: &mut Met) -> Outcome {
        let http = self.http.clone();
        loop {
            let Some(mut client) = self.take_client(met).await else { return Outcome::NoConnection };
            let origin = &mut met.origin;
            let outcome = client.exchange(&http.request, |name| origin.extend_from_slice(name)).await;
            met.received_bytes += client.take_received();
            met.sent_bytes += http.request.bytes();
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
                Err(Failure::Stale(_)) if http.request.is_idempotent && met.resent == 0 => {
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
    /// The open connection, or a new one.
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
        // Each connect takes the next source, so that a connection for each request uses the ports of all of them.
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

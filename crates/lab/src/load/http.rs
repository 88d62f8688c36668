//! HTTP/1 load, in clear text or over TLS. Each connection is a lane.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::client::{Client, Failure, Manner, Request};
use super::engine::{self, Lane, Protocol};
use super::h2c;
use super::mix::{Entry, Mix};
use super::payload::Payload;
use super::replay::Recording;
use super::report::LoadReport;
use super::shape::{Shape, Until};
use super::socket::Tls;
use super::tally::{Met, Outcome, TARGETS_MAX};
use super::target::Target;
use crate::requests::Recorded;
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
    /// The other servers of `mix`, in the order of their places, from 1 on.
    pub others: Vec<(Target, Option<Tls>)>,
    /// Recorded requests that are sent instead of the one of `target` and `method`.
    pub replay: Option<Arc<Recording>>,
    /// Whether recorded requests have the host that was recorded.
    pub keep_host: bool,
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
            others: Vec::new(),
            replay: None,
            keep_host: false,
            mix: Vec::new(),
            same_length: false,
            shape: Shape::closed(connections, until),
            mark: Arc::default(),
        }
    }

    fn payload(&self) -> Payload {
        self.data.clone().map_or_else(|| Payload::filler(self.body_bytes), Payload::of)
    }

    /// The servers of the load, in the order of their places.
    pub(super) fn servers(&self) -> Vec<Server> {
        let first = Server { address: self.target.address, tls: self.tls.clone() };
        let others = self.others.iter().map(|(target, tls)| Server { address: target.address, tls: tls.clone() });
        [first].into_iter().chain(others).collect()
    }

    /// The server at a place, with its host.
    fn server(&self, place: usize) -> (&Target, Option<&Tls>) {
        let other = place.checked_sub(1).and_then(|place| self.others.get(place));
        other.map_or((&self.target, self.tls.as_ref()), |(target, tls)| (target, tls.as_ref()))
    }

    /// The requests that are sent, as `encoded`. Those of a recording are in its order.
    ///
    /// # Errors
    /// A request cannot be encoded.
    pub(super) fn requests<T>(
        &self,
        mut encoded: impl FnMut(&Sent<'_>) -> io::Result<T>,
    ) -> io::Result<Mix<Addressed<T>>> {
        if let Some(recording) = &self.replay {
            let mut of = |recorded| Ok((1, Addressed::to_first(encoded(&self.sent(recorded))?)));
            let (first, more) = recording.requests.split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
            return Ok(Mix::new(of(first)?, more.iter().map(of).collect::<io::Result<Vec<_>>>()?));
        }
        let headers = || Cow::Borrowed(self.headers.as_slice());
        let Some((first, more)) = self.mix.split_first() else {
            let (method, target) = (self.method.as_str(), self.target.clone());
            let sent =
                Sent { method, target, is_secure: self.tls.is_some(), headers: headers(), payload: self.payload() };
            return Ok(Mix::new((1, Addressed::to_first(encoded(&sent)?)), []));
        };
        // One by one, or by server if they are too many.
        let counts_each = self.mix.len() <= TARGETS_MAX;
        let mut number = 0;
        let mut of_entry = |entry: &Entry| {
            let (server, tls) = self.server(entry.server);
            let target = Target { path: entry.path.clone(), ..server.clone() };
            let origin = format!("{}://{}", if tls.is_some() { "https" } else { "http" }, server.host);
            let counted = match counts_each {
                true => (number, format!("{} {origin}{}", entry.method, entry.path).into()),
                false => (entry.server, origin.into()),
            };
            number += 1;
            let payload = entry.data.clone().map_or_else(|| self.payload(), Payload::of);
            let sent = Sent { method: &entry.method, target, is_secure: tls.is_some(), headers: headers(), payload };
            let addressed = Addressed { server: entry.server, counted: Some(counted), request: encoded(&sent)? };
            Ok((entry.weight, addressed))
        };
        let first = of_entry(first)?;
        Ok(Mix::new(first, more.iter().map(of_entry).collect::<io::Result<Vec<_>>>()?))
    }

    /// A recorded request, for the server of this load.
    fn sent<'a>(&self, recorded: &'a Recorded) -> Sent<'a> {
        let is_given = |name: &str| self.headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
        let kept = recorded.headers.iter().filter(|(name, _)| !is_given(name));
        let keeps_host = self.keep_host && !recorded.host.is_empty();
        Sent {
            method: &recorded.method,
            target: Target {
                address: self.target.address,
                host: if keeps_host { &recorded.host } else { &self.target.host }.clone(),
                path: recorded.target.clone(),
            },
            is_secure: self.tls.is_some(),
            headers: kept.chain(&self.headers).cloned().collect::<Vec<_>>().into(),
            payload: Payload::of(recorded.body.clone().into()),
        }
    }
}

/// A server of a load.
pub(super) struct Server {
    pub address: SocketAddr,
    pub tls: Option<Tls>,
}

/// A request before it is encoded.
pub(super) struct Sent<'a> {
    pub method: &'a str,
    pub target: Target,
    pub is_secure: bool,
    pub headers: Cow<'a, [(String, String)]>,
    pub payload: Payload,
}

/// An encoded request, and where it goes.
pub(super) struct Addressed<T> {
    /// The place of the server.
    pub server: usize,
    /// What it is counted under, see [`Met::target`].
    pub counted: Option<(usize, Arc<str>)>,
    pub request: T,
}

impl<T> Addressed<T> {
    /// A request to the first server, which is counted with all others.
    pub(super) fn to_first(request: T) -> Self {
        Self { server: 0, counted: None, request }
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
        load.requests(|sent| Ok(Request::new(manner, sent.method, &sent.target, &sent.headers, &sent.payload)))?;
    let (servers, body) = (load.servers(), FirstLength::when(load.same_length));
    let http = Http { servers, requests, shape: load.shape.clone(), body };
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
    servers: Vec<Server>,
    requests: Mix<Addressed<Request>>,
    shape: Shape,
    body: FirstLength,
}

impl Protocol for Arc<Http> {
    type Lane = Connection;

    fn lanes(&self, number: u64, _: usize) -> Vec<Connection> {
        let rng = Rng::new(self.shape.seed.wrapping_add(number));
        let links = self.servers.iter().map(|_| Link::default()).collect();
        vec![Connection { http: self.clone(), number, links, rng }]
    }
}

/// A connection to one server, and its reconnects.
#[derive(Default)]
struct Link {
    client: Option<Client>,
    has_connected: bool,
}

/// A lane, with a connection to each server that it has sent to.
struct Connection {
    http: Arc<Http>,
    number: u64,
    /// As many as servers.
    links: Vec<Link>,
    /// Draws the requests of a mix.
    rng: Rng,
}

impl Lane for Connection {
    async fn prepare(&mut self) {
        // With several servers, the first request to each one connects. A lane that waited here for all of them would send nothing meanwhile.
        if self.links.len() == 1 {
            let client = self.connect(0).await.ok();
            self.links[0] = Link { has_connected: client.is_some(), client };
        }
    }

    async fn operate(&mut self, place: Option<usize>, met: &mut Met) -> Outcome {
        let http = self.http.clone();
        let place = place.unwrap_or_else(|| http.requests.draw(&mut self.rng));
        let Addressed { server, counted, request } = http.requests.at(place);
        met.target.clone_from(counted);
        loop {
            let Some(mut client) = self.take_client(*server, met).await else { return Outcome::NoConnection };
            let origin = &mut met.origin;
            let outcome = client.exchange(request, |name| origin.extend_from_slice(name)).await;
            met.received_bytes += client.take_received();
            met.sent_bytes += request.bytes();
            match outcome {
                Ok(answer) => {
                    met.status = Some(answer.status);
                    met.waiting = answer.waiting;
                    if answer.keep_alive {
                        self.links[*server].client = Some(client);
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
        self.links.iter().any(|link| link.client.is_some())
    }
}

impl Connection {
    /// Takes the open connection to a server, or opens a new one.
    async fn take_client(&mut self, server: usize, met: &mut Met) -> Option<Client> {
        if let Some(mut client) = self.links[server].client.take()
            && !client.is_spent()
        {
            return Some(client);
        }
        let begun = std::time::Instant::now();
        let client = match self.connect(server).await {
            Ok(client) => client,
            Err(error) => {
                met.failed("connect", &error);
                return None;
            }
        };
        met.connected = Some(begun.elapsed());
        if std::mem::replace(&mut self.links[server].has_connected, true) {
            met.reconnects += 1;
        }
        Some(client)
    }

    async fn connect(&mut self, server: usize) -> io::Result<Client> {
        // Each connect uses the next source address. With a connection for each request, the load then uses the ports of all addresses.
        let source = self.http.shape.source(self.number);
        self.number += 1;
        let Server { address, tls } = &self.http.servers[server];
        Client::connect(*address, source, tls.as_ref()).await
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

//! Connections that the kernel has redirected to a sidecar: find the original destination, choose the listener that captures it, do the TLS
//! handshake, tell protocols apart by their first bytes, and serve the connection as its listener would.
//!
//! A connection whose destination no listener captures is relayed to that destination, or refused.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use model::{Captured, Destination, Detect, Direction, Listener, Protocol, UnknownDestination};
use net::buffer::Buffer;
use net::clock;
use net::timer::Timer;
use telemetry::Reason;
use tokio::net::TcpStream;

use super::listener::{self, ActiveListener, ListenerPermit};
use super::session;
use super::watch::Watched;
use crate::error::Error;
use crate::exchange::record::AccessRecord;
use crate::stream::Stream;
use crate::tcp::relay::{self, End, Moved};
use crate::tcp::{self, by_name};
use crate::tls::Secured;
use crate::upstream::closing::Unhealthy;
use crate::upstream::connect::{self, OnBehalfOf};
use crate::worker::{ConnectionGuard, ListenerView, Worker};

/// How long a client that must use TLS may take for its first byte, and for the handshake.
const HELLO_TIMEOUT_MS: u64 = 10_000;

/// The time limit for a connection to an unknown destination. The kernel sends SYN at 0, 1, 3 and 7 seconds.
const CONNECT_TIMEOUT_MS: u64 = 10_000;

/// The longest method that counts as one of HTTP. The longest registered one has 16 letters (UPDATEREDIRECTREF has 17).
const METHOD_BYTES_MAX: usize = 17;

/// Which listener serves which destinations of a direction.
pub(crate) struct Destinations {
    /// Those of one address. Most are, and there may be thousands.
    exact: HashMap<SocketAddr, Box<str>>,
    /// The others, the more specific before the less specific.
    networks: Vec<(Destination, Box<str>)>,
}

impl Destinations {
    /// Those of the listener that the connections of a direction are redirected to; `None` for any other listener.
    pub(crate) fn of(listener: &Listener, all: &[Listener]) -> Option<Self> {
        let Protocol::Capture(capture) = &listener.protocol else { return None };
        let captured =
            |listener: &Listener| listener.captured.clone().map(|captured| (listener.name.clone(), captured));
        let mut destinations = Self { exact: HashMap::new(), networks: Vec::new() };
        for (name, captured) in all.iter().filter_map(captured) {
            for destination in captured.destinations.iter().filter(|_| captured.direction == capture.direction) {
                match destination.network.filter(|network| network.prefix_len() == network.max_prefix_len()) {
                    Some(network) => {
                        let address = SocketAddr::new(network.addr(), destination.port);
                        destinations.exact.entry(address).or_insert_with(|| name.as_str().into());
                    }
                    None => destinations.networks.push((*destination, name.as_str().into())),
                }
            }
        }
        destinations.networks.sort_by_key(|(destination, _)| std::cmp::Reverse(destination.rank()));
        Some(destinations)
    }

    /// The listener that serves an address; `None` if no listener captures it.
    fn find(&self, address: SocketAddr) -> Option<&str> {
        if let Some(name) = self.exact.get(&address) {
            return Some(name);
        }
        self.networks.iter().find(|(destination, _)| destination.has(address)).map(|(_, name)| &**name)
    }
}

/// Serves one connection to its end. `gate` is the listener that the kernel has redirected it to.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    gate: Rc<ListenerView>,
    stream: TcpStream,
    mut who: OnBehalfOf,
    connection: &ConnectionGuard,
) {
    let Protocol::Capture(capture) = &gate.plan.policy.protocol else { return };
    let original = net::socket::original_destination(&stream).map(listener::canonical);
    // Without this check, a client that connects to the sidecar's own port would make it connect to itself, again and again.
    let Some(destination) = original.filter(|original| *original != who.local) else {
        net::socket::reset_on_close(&stream);
        return listener::refused(&gate, &who, &Error::downstream(Reason::NotCaptured));
    };
    who.local = destination;
    let found = gate.plan.destinations.as_ref().and_then(|destinations| destinations.find(destination));
    // A listener that was just removed captures nothing any more.
    if let Some(active) = found.and_then(|name| worker.listener(name)) {
        drop(gate);
        return serve_by(worker, &active, stream, who, connection).await;
    }
    if capture.unknown == UnknownDestination::Refuse {
        net::socket::reset_on_close(&stream);
        return listener::refused(&gate, &who, &Error::internal(Reason::UnknownDestination));
    }
    let (source, idle_timeout) = (source(capture.direction, destination), capture.idle_timeout);
    match secure(worker, &gate, stream, capture.admits_plain, capture.detect_timeout).await {
        Ok((stream, input, secured)) => {
            pass(worker, gate, stream, input, who, secured, source, idle_timeout, connection).await;
        }
        Err(error) => listener::refused(&gate, &who, &error),
    }
}

/// Serves a connection as the listener that captures its destination.
async fn serve_by(
    worker: &Rc<Worker>,
    active: &Rc<ActiveListener>,
    stream: TcpStream,
    who: OnBehalfOf,
    connection: &ConnectionGuard,
) {
    let view = active.view();
    let Some(&Captured { direction, admits_plain, detect, detect_timeout, .. }) = view.plan.policy.captured.as_ref()
    else {
        return;
    };
    view.counters.connections.inc();
    let Some(_permit) = ListenerPermit::acquire(&view) else {
        return listener::refuse(&view, stream, Reason::ConnectionsFull).await;
    };
    let _client = match listener::client_permit(&view, who.client.ip()) {
        Ok(client) => client,
        Err(reason) => return listener::refuse(&view, stream, reason).await,
    };
    if listener::is_denied(&view, &who) {
        net::socket::reset_on_close(&stream);
        return listener::refused(&view, &who, &Error::internal(Reason::ClientDenied));
    }
    if let Protocol::Tls(_) = &view.plan.policy.protocol {
        return Box::pin(by_name::serve(worker, view, stream, Buffer::none(), who, connection)).await;
    }
    // A client of HTTP speaks first, with TLS or without, so a slow one is not taken for one in plain text.
    let speaks_first = matches!(view.plan.policy.protocol, Protocol::Http(_)) && detect.is_none();
    let hello_timeout = if speaks_first { Duration::from_millis(HELLO_TIMEOUT_MS) } else { detect_timeout };
    // Boxed, so that the state of the handshake is not kept while the connection is served.
    let secured = Box::pin(secure(worker, &view, stream, admits_plain, hello_timeout)).await;
    let (mut stream, mut input, secured) = match secured {
        Ok(secured) => secured,
        Err(error) => return listener::refused(&view, &who, &error),
    };
    let detect = match (&view.plan.policy.protocol, detect) {
        (Protocol::Tcp(_), _) => {
            return Box::pin(tcp::serve(worker, view, stream, input, who, secured, connection)).await;
        }
        (Protocol::Http(_), None) => None,
        (Protocol::Http(_), Some(detect)) => {
            let begins = begins_with(worker, &mut stream, &mut input, detect_timeout).await;
            (!is_served_as_http(begins, secured.as_deref())).then_some(detect)
        }
        (Protocol::Tls(_) | Protocol::Capture(_), _) => return,
    };
    match detect {
        None => {
            drop(view);
            Box::pin(session::serve(worker, active, stream, input, who, secured)).await;
        }
        Some(detect) => bytes(worker, view, direction, detect, stream, input, who, secured, connection).await,
    }
}

/// Relays a connection that does not speak HTTP.
#[expect(clippy::too_many_arguments, reason = "each is a part of the connection, and they are only used together")]
async fn bytes(
    worker: &Worker,
    view: Rc<ListenerView>,
    direction: Direction,
    detect: Detect,
    stream: Stream,
    input: Buffer,
    who: OnBehalfOf,
    secured: Option<Rc<Secured>>,
    connection: &ConnectionGuard,
) {
    let idle_timeout = detect.idle_timeout;
    match detect.to.and_then(|to| view.clusters.get(to.0).cloned()) {
        Some(cluster) => {
            Box::pin(tcp::relay(worker, view, cluster, stream, input, who, secured, idle_timeout, connection)).await;
        }
        None => {
            let source = source(direction, who.local);
            Box::pin(pass(worker, view, stream, input, who, secured, source, idle_timeout, connection)).await;
        }
    }
}

/// The address to connect to the original destination from, if the kernel would not choose the right one.
fn source(direction: Direction, destination: SocketAddr) -> Option<IpAddr> {
    (direction == Direction::Inbound).then(|| within(destination))
}

/// The address to connect to an address of this namespace from: one that the kernel does not redirect back to the sidecar. It is not
/// 127.0.0.1, since applications trust that (Istio uses this one as well); IPv6 has only one address of the loopback.
pub(crate) fn within(destination: SocketAddr) -> IpAddr {
    if destination.is_ipv4() { Ipv4Addr::new(127, 0, 0, 6).into() } else { Ipv6Addr::LOCALHOST.into() }
}

/// Does the TLS handshake, if the listener has TLS and the client begins with one. Returns what was read after it.
///
/// # Errors
/// [`Reason::PlainText`] if the client must use TLS and does not; [`Reason::TlsHandshakeTimeout`], [`Reason::ClientEof`], and those of
/// [`crate::tls::client_reason`].
async fn secure(
    worker: &Worker,
    view: &ListenerView,
    mut stream: TcpStream,
    admits_plain: bool,
    detect_timeout: Duration,
) -> Result<(Stream, Buffer, Option<Rc<Secured>>), Error> {
    let Some(keys) = view.plan.tls.clone() else { return Ok((Stream::Plain(stream), Buffer::none(), None)) };
    let mut input = Buffer::none();
    let timer = Timer::new(&worker.timers);
    let patience_ms = if admits_plain { crate::millis(detect_timeout) } else { HELLO_TIMEOUT_MS };
    timer.set(clock::now_ms().saturating_add(patience_ms));
    let has_begun = timer.guard(session::first_bytes(&mut stream, &mut input)).await;
    drop(timer);
    // A handshake begins with a record of type 22 and a version 3.x (RFC 8446 section 5.1).
    let is_tls = matches!(input.filled(), [22] | [22, 3, ..]);
    match has_begun {
        Ok(true) if is_tls => {
            let (stream, secured) = listener::tls_handshake(worker, keys, stream, input, HELLO_TIMEOUT_MS).await?;
            Ok((stream, Buffer::none(), Some(secured)))
        }
        // A silent client may be one whose server sends first, and one that has ended its side may still read.
        Ok(_) | Err(_) if admits_plain => Ok((Stream::Plain(stream), input, None)),
        Ok(true) => {
            // A failure must not look like a server that has nothing to say.
            net::socket::reset_on_close(&stream);
            Err(Error::downstream(Reason::PlainText))
        }
        Ok(false) => Err(Error::downstream(Reason::ClientEof)),
        Err(_) => Err(Error::downstream(Reason::TlsHandshakeTimeout)),
    }
}

/// How a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    /// With a request line.
    Http1,
    /// With the preface of HTTP/2.
    Http2,
    /// Otherwise, or with nothing in time.
    Otherwise,
}

/// Waits for as many bytes as tell how a connection begins. They stay in `input`.
async fn begins_with(worker: &Worker, stream: &mut Stream, input: &mut Buffer, timeout: Duration) -> Begins {
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms().saturating_add(crate::millis(timeout)));
    if input.is_empty() && !matches!(timer.guard(session::first_bytes(stream, input)).await, Ok(true)) {
        return Begins::Otherwise;
    }
    loop {
        if let Some(begins) = beginning(input.filled()) {
            return begins;
        }
        match timer.guard(poll_fn(|cx| input.poll_fill(cx, stream))).await {
            Ok(Ok(count)) if count > 0 => {}
            _ => return Begins::Otherwise,
        }
    }
}

/// `None` if the bytes do not decide it yet.
fn beginning(input: &[u8]) -> Option<Begins> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
    let count = input.len().min(PREFACE.len());
    if input.get(..count) == PREFACE.get(..count) {
        return (count == PREFACE.len()).then_some(Begins::Http2);
    }
    // Methods of other protocols that use words (EHLO, USER, GET of Redis) are followed by something else.
    let is_letter = |byte: &u8| byte.is_ascii_uppercase() || *byte == b'-';
    let length = input.iter().take(METHOD_BYTES_MAX + 1).take_while(|byte| is_letter(byte)).count();
    if length > METHOD_BYTES_MAX {
        return Some(Begins::Otherwise);
    }
    let is_method = length >= 3;
    match (input.get(length), input.get(length + 1..)) {
        (None, _) => None,
        (Some(b' '), Some(target)) if is_method => match target.first() {
            None => None,
            Some(b'/' | b'*') => Some(Begins::Http1),
            // The absolute form.
            Some(_) => {
                let scheme = [b"http://".as_slice(), b"https://"];
                let begins = |scheme: &&[u8]| {
                    let count = target.len().min(scheme.len());
                    target
                        .get(..count)
                        .is_some_and(|begin| begin.eq_ignore_ascii_case(scheme.get(..count).unwrap_or(begin)))
                };
                let possible: Vec<&&[u8]> = scheme.iter().filter(|scheme| begins(scheme)).collect();
                if possible.is_empty() {
                    Some(Begins::Otherwise)
                } else {
                    possible.iter().any(|scheme| target.len() >= scheme.len()).then_some(Begins::Http1)
                }
            }
        },
        _ => Some(Begins::Otherwise),
    }
}

/// Whether the session of an HTTP listener understands a connection that begins like this. Within TLS, what was negotiated decides which
/// version it speaks, and a relay of bytes negotiates what its cluster would speak.
fn is_served_as_http(begins: Begins, secured: Option<&Secured>) -> bool {
    match (begins, secured.map(Secured::is_h2)) {
        (Begins::Otherwise, _) | (Begins::Http1, Some(true)) | (Begins::Http2, Some(false)) => false,
        (Begins::Http1 | Begins::Http2, _) => true,
    }
}

/// Relays a connection to its original destination, and logs it.
#[expect(clippy::too_many_arguments, reason = "each is a part of the connection, and they are only used together")]
async fn pass(
    worker: &Worker,
    view: Rc<ListenerView>,
    mut stream: Stream,
    input: Buffer,
    who: OnBehalfOf,
    secured: Option<Rc<Secured>>,
    source: Option<IpAddr>,
    idle_timeout: Duration,
    connection: &ConnectionGuard,
) {
    let timer = Timer::new(&worker.timers);
    let begun_us = clock::now_us();
    let mut record = AccessRecord::tcp(begun_us);
    let mut moved = Moved::default();
    let opened = open(&stream, who.local, source, &timer).await;
    let (counters, name) = (view.counters.clone(), view.plan.policy.name.clone());
    // The connection may last for days, and there may be a new snapshot every minute.
    drop(view);
    let outcome = match opened {
        Ok(upstream) => {
            record.added_us = clock::now_us().saturating_sub(begun_us);
            let mut upstream = Stream::Plain(upstream);
            let ends = (End { stream: &mut stream, input }, End { stream: &mut upstream, input: Buffer::none() });
            let (idle_ms, unhealthy) = (crate::millis(idle_timeout), Unhealthy::of(None));
            let outcome =
                relay::run(ends.0, ends.1, &timer, idle_ms, &mut moved, unhealthy, || connection.ends()).await;
            if outcome.is_err() {
                // A failure on one side must not look like a normal end on the other.
                upstream.reset_on_close();
            }
            outcome
        }
        Err(error) => Err(error),
    };
    counters.bytes_received.add(moved.upstream);
    counters.bytes_sent.add(moved.downstream);
    record.bytes_in = moved.upstream;
    record.bytes_out = moved.downstream;
    if let Err(mut error) = outcome {
        stream.reset_on_close();
        if worker.is_drain_over() {
            error = Error::internal(Reason::Draining);
        }
        counters.reasons.inc(error.reason);
        tracing::debug!(listener = name, client = %who.client, destination = %who.local, %error, "relay failed");
        record.reason = Some(error.reason);
    }
    counters.requests.inc();
    worker.log_tcp(&name, &who.local.to_string(), who.client, secured.as_deref(), &record);
}

/// Connects to the original destination, for as long as the client is there.
async fn open(
    client: &Stream,
    destination: SocketAddr,
    source: Option<IpAddr>,
    timer: &Timer,
) -> Result<TcpStream, Error> {
    timer.set(clock::now_ms().saturating_add(CONNECT_TIMEOUT_MS));
    let made = async {
        match source {
            Some(source) => net::socket::connect_from(source, destination).await,
            None => net::socket::connect(destination).await,
        }
    };
    let client = Watched { stream: client, leaves_by_fin: false, owed: 0 };
    tokio::select! {
        biased;
        error = client.gone() => Err(error),
        made = timer.guard(made) => match made {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(connect::failure(error)),
            Err(_) => Err(Error::upstream(Reason::ConnectTimeout)),
        },
    }
}

#[cfg(test)]
mod tests {
    use model::CaptureListener;

    use super::*;
    use crate::worker::snapshot::fixture;

    fn gate(direction: Direction) -> CaptureListener {
        CaptureListener {
            direction,
            unknown: UnknownDestination::Pass,
            admits_plain: true,
            detect_timeout: Duration::from_millis(100),
            idle_timeout: Duration::from_secs(3600),
            excluded: model::Excluded::default(),
            user: 1337,
        }
    }

    #[test]
    fn how_connections_begin() {
        let check = |input: &[u8], expect: Option<Begins>| {
            assert_eq!(beginning(input), expect, "{:?}", String::from_utf8_lossy(input));
        };
        let (h1, h2, other) = (Some(Begins::Http1), Some(Begins::Http2), Some(Begins::Otherwise));
        check(b"", None);
        check(b"GE", None);
        check(b"GET", None);
        check(b"GET ", None);
        check(b"GET /", h1);
        check(b"OPTIONS *", h1);
        check(b"PROPFIND /x", h1);
        check(b"M-SEARCH *", h1);
        check(b"UPDATEREDIRECTREF /", h1);
        check(b"GET h", None);
        check(b"GET http:/", None);
        check(b"GET http://a", h1);
        check(b"GET HTTPS://a", h1);
        check(b"GET https:", None);
        check(b"GET key", other);
        check(b"CONNECT a:443", other);
        check(b"PRI", None);
        check(b"PRI * HTTP/2.0\r", None);
        check(b"PRI * HTTP/2.0\r\n", h2);
        check(b"PRI * HTTP/2.1\r\n", h1);
        check(b"EHLO mail.example", other);
        check(b"AB /", other);
        check(b"get /", other);
        check(b"\x16\x03\x01", other);
        check(b"*1\r\n$4\r\nPING\r\n", other);
        check(b"SSH-2.0-OpenSSH", other);
        check(&[b'A'; 17], None);
        check(&[b'A'; 18], other);
        check(&[0; 64], other);
    }

    #[test]
    fn the_most_specific_destination_wins() {
        let captures = |name: &str, direction, destinations: &[(Option<&str>, u16)]| {
            let destination = |&(network, port): &(Option<&str>, u16)| Destination {
                network: network.map(|network: &str| network.parse().unwrap()),
                port,
            };
            let captured = Captured {
                direction,
                destinations: destinations.iter().map(destination).collect(),
                admits_plain: true,
                detect: None,
                detect_timeout: Duration::ZERO,
            };
            Listener { captured: Some(captured), ..fixture::http(name, 1) }
        };
        let all = [
            captures("any", Direction::Outbound, &[(None, 80)]),
            captures("wide", Direction::Outbound, &[(Some("10.0.0.0/8"), 80)]),
            captures("narrow", Direction::Outbound, &[(Some("10.1.0.0/16"), 80), (Some("fd00::/8"), 80)]),
            captures("one", Direction::Outbound, &[(Some("10.1.0.1/32"), 80), (Some("10.1.0.1/32"), 81)]),
            captures("app", Direction::Inbound, &[(None, 80)]),
        ];
        let of = |direction| {
            let gate = Listener { protocol: Protocol::Capture(gate(direction)), ..fixture::tcp("gate", 1) };
            Destinations::of(&gate, &all).unwrap()
        };
        let outbound = of(Direction::Outbound);
        let check = |address: &str, expect: Option<&str>| {
            assert_eq!(outbound.find(address.parse().unwrap()), expect, "{address}");
        };
        check("10.1.0.1:80", Some("one"));
        check("10.1.0.1:81", Some("one"));
        check("10.1.0.2:80", Some("narrow"));
        check("10.2.0.2:80", Some("wide"));
        check("192.0.2.1:80", Some("any"));
        check("[fd00::1]:80", Some("narrow"));
        check("[2001:db8::1]:80", Some("any"));
        check("10.1.0.2:81", None);
        assert_eq!(of(Direction::Inbound).find("10.1.0.1:80".parse().unwrap()), Some("app"));
        assert!(Destinations::of(&all[0], &all).is_none());
    }
}

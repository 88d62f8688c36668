//! Downstream connections begin here: they are accepted and counted, their client's address is determined, and they are passed to their
//! protocol.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use model::{Passthrough, Protocol};
use net::buffer::Buffer;
use net::clock;
use net::memory::{self, Pressure};
use net::timer::Timer;
use telemetry::{ListenerCounters, Reason};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use wire::message::{Method, Version};
use wire::proxy_protocol::{self, Parsed};

use crate::counts::Permit;
use crate::error::Error;
use crate::policy::addresses::AddressTable;
use crate::policy::rate_limit::network;
use crate::stream::Stream;
use crate::upstream::connect::OnBehalfOf;
use crate::worker::connection_balance::AcceptedConnection;
use crate::worker::{ConnectionGuard, ListenerView, Worker};
use crate::{
    downstream::captured, downstream::session, http::headers, http::respond, tcp, tcp::by_name, tcp::by_name::Passing,
    tls,
};

/// The time limit for a PROXY protocol header. The proxy in front sends it at once.
const PROXY_PROTOCOL_TIMEOUT_MS: u64 = 5_000;

/// The pause after accept(2) failed for lack of descriptors or memory. Trying again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener on one worker. It lives as long as snapshots contain the listener.
pub(crate) struct ActiveListener {
    view: RefCell<Rc<ListenerView>>,
    /// The listener was removed from the configuration. Its connections finish their current work and end.
    closed: Cell<bool>,
    stop: Notify,
}

impl ActiveListener {
    pub(crate) fn new(view: Rc<ListenerView>) -> Self {
        Self { view: RefCell::new(view), closed: Cell::new(false), stop: Notify::new() }
    }

    /// The listener in the newest snapshot.
    pub(crate) fn view(&self) -> Rc<ListenerView> {
        self.view.borrow().clone()
    }

    pub(crate) fn update(&self, view: Rc<ListenerView>) {
        *self.view.borrow_mut() = view;
    }

    /// Stops accepting, after the connections in the kernel's queue are accepted.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        // Notify all accept loops of this worker. There are several if the process got more sockets than it has workers.
        self.stop.notify_waiters();
    }

    /// Whether connections should end after their current work, because the listener was removed or the whole worker drains.
    pub(crate) fn is_ending(&self, worker: &Worker) -> bool {
        self.closed.get() || worker.is_draining()
    }
}

/// Accepts until the listener is closed.
pub(crate) async fn accept(worker: Rc<Worker>, active: Rc<ActiveListener>, socket: TcpListener) {
    while !active.closed.get() {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            () = active.stop.notified() => break,
        };
        match accepted {
            Ok((stream, address)) => balance(&worker, &active, stream, address),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                let view = active.view();
                view.counters.accept_failures.inc();
                tracing::warn!(listener = view.plan.policy.name, %error, "cannot accept");
                drop(view);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // The kernel has completed these connections, and closing the socket now would reset them. Ask the kernel itself: the runtime may not
    // have seen the newest ones yet.
    let Ok(socket) = socket.into_std() else { return };
    loop {
        match socket.accept().and_then(|(stream, address)| Ok((own(stream)?, address))) {
            Ok((stream, address)) => serve_here(&worker, &active, stream, address),
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => return,
        }
    }
}

/// Registers a connection that was accepted outside this worker's runtime.
pub(crate) fn own(stream: std::net::TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

/// The client left before its connection was accepted: accept(2) says to treat these errors like EAGAIN.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Serves a new connection on this worker, or hands it over to a worker with fewer connections.
fn balance(worker: &Rc<Worker>, active: &Rc<ActiveListener>, stream: TcpStream, address: SocketAddr) {
    let target = worker.workers.pick_target(worker.index).filter(|_| !active.is_ending(worker));
    let Some(target) = target else { return serve_here(worker, active, stream, address) };
    // Deregister it from this worker's epoll first, or it would wake this worker.
    let Ok(stream) = stream.into_std() else { return };
    let accepted = AcceptedConnection { listener: active.view().plan.policy.name.clone(), stream, address };
    if let Err(AcceptedConnection { stream, address, .. }) = worker.workers.hand_over(target, accepted)
        && let Ok(stream) = TcpStream::from_std(stream)
    {
        serve_here(worker, active, stream, address);
    }
}

fn serve_here(worker: &Rc<Worker>, active: &Rc<ActiveListener>, stream: TcpStream, address: SocketAddr) {
    worker.workers.opened(worker.index);
    begin(worker, active, stream, address);
}

/// Serves a connection that already counts as this worker's.
pub(crate) fn begin(worker: &Rc<Worker>, active: &Rc<ActiveListener>, stream: TcpStream, address: SocketAddr) {
    let view = active.view();
    view.counters.connections.inc();
    let permit = ConnectionPermit::acquire(&view, worker.connection());
    let is_named_later = view.plan.policy.accept_proxy_protocol;
    let client = if is_named_later { Ok(None) } else { client_permit(&view, address.ip()) };
    let (worker, active) = (worker.clone(), active.clone());
    tokio::task::spawn_local(async move {
        match (permit, client) {
            (Some(_), _) if is_memory_full() => refuse(&view, stream, Reason::MemoryFull).await,
            (Some(permit), Ok(client)) => {
                // The connection may last for days. It uses the listener of each new snapshot, and keeps none of them.
                drop(view);
                serve(&worker, &active, stream, address, &permit.connection, client).await;
            }
            (Some(_), Err(reason)) => refuse(&view, stream, reason).await,
            (None, _) => refuse(&view, stream, Reason::ConnectionsFull).await,
        }
    });
}

/// Counts a connection of this client; `None` if clients have no limit.
///
/// # Errors
/// [`Reason::ClientConnectionsFull`].
pub(crate) fn client_permit(view: &ListenerView, client: IpAddr) -> Result<Option<Permit>, Reason> {
    let (Some(counts), Some(max)) = (&view.plan.client_connections, view.plan.policy.client_limits.connections_max)
    else {
        return Ok(None);
    };
    counts.acquire(network(client), max).map(Some).ok_or(Reason::ClientConnectionsFull)
}

/// A permit for one connection of the listener that accepted it.
struct ConnectionPermit {
    connection: ConnectionGuard,
    /// Dropped for its count.
    _listener: ListenerPermit,
}

impl ConnectionPermit {
    fn acquire(view: &Rc<ListenerView>, connection: ConnectionGuard) -> Option<Self> {
        Some(Self { connection, _listener: ListenerPermit::acquire(view)? })
    }
}

/// Counts a connection against the `connections` limit of a listener until it is dropped.
pub(crate) struct ListenerPermit {
    open: Arc<AtomicUsize>,
    counters: Arc<ListenerCounters>,
}

impl ListenerPermit {
    /// Returns `None` if the listener has as many as it may have.
    pub(crate) fn acquire(view: &Rc<ListenerView>) -> Option<Self> {
        let open = view.plan.open.clone();
        let before = open.fetch_add(1, Relaxed);
        view.counters.open.inc();
        let permit = Self { open, counters: view.counters.clone() };
        (before < view.plan.policy.connections_max).then_some(permit)
    }
}

impl Drop for ListenerPermit {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Relaxed);
        self.counters.open.dec();
    }
}

/// Whether the process uses all the memory that it may, so that nothing new is accepted.
pub(crate) fn is_memory_full() -> bool {
    memory::pressure() == Pressure::Full
}

/// Refuses one connection too many. An HTTP client gets a response, in one write that never waits.
pub(crate) async fn refuse(view: &ListenerView, mut stream: TcpStream, reason: Reason) {
    let error = Error::internal(reason);
    view.count(error.reason);
    let is_plain_http = matches!(view.plan.policy.protocol, Protocol::Http(_)) && view.plan.tls.is_none();
    if reason == Reason::ClientConnectionsFull && !is_plain_http {
        // It costs no more than it must: a client that opens too many leaves no connections that wait for their end.
        return net::socket::reset_on_close(&stream);
    }
    if let (Protocol::Http(_), None, Some(status)) =
        (&view.plan.policy.protocol, &view.plan.tls, respond::status(&error))
    {
        let mut out = Vec::new();
        let own = respond::Own::line(status, respond::word(error.reason));
        respond::write(&mut out, &own, &closing(), &respond::Additions::NONE);
        let _ = stream.try_write(&out);
        let _ = stream.shutdown().await;
    }
}

async fn serve(
    worker: &Rc<Worker>,
    active: &Rc<ActiveListener>,
    mut stream: TcpStream,
    address: SocketAddr,
    connection: &ConnectionGuard,
    mut client: Option<Permit>,
) {
    let view = active.view();
    let local = stream.local_addr().map_or(address, canonical);
    let mut who = OnBehalfOf { client: canonical(address), is_known: true, local };
    let mut input = Buffer::none();
    if view.plan.policy.accept_proxy_protocol {
        match Box::pin(read_proxy_header(worker, &mut stream, &mut who)).await {
            Ok(rest) => input = rest,
            Err(error) => return refused(&view, &who, &error),
        }
        client = match client_permit(&view, who.client.ip()) {
            Ok(permit) => permit,
            Err(reason) => return refuse(&view, stream, reason).await,
        };
    }
    if is_denied(&view, &who) {
        net::socket::reset_on_close(&stream);
        return refused(&view, &who, &Error::internal(Reason::ClientDenied));
    }
    match &view.plan.policy.protocol {
        Protocol::Http(http) => {
            let secured = match &view.plan.tls {
                None => (Stream::Plain(stream), input, None),
                Some(keys) => {
                    let mut timeout_ms = crate::millis(http.limits.header_timeout);
                    if !http.passthrough.is_empty() {
                        let deadline_ms = clock::now_ms().saturating_add(timeout_ms);
                        let passed =
                            Box::pin(may_pass(worker, &view, &http.passthrough, stream, input, &who, timeout_ms));
                        (stream, input) = match passed.await {
                            Ok((stream, input, Passing::Ends)) => (stream, input),
                            Ok((stream, input, Passing::To(cluster, idle_timeout))) => {
                                let stream = Stream::Plain(stream);
                                // Boxed, as below. The client counts until the end.
                                let relay = tcp::relay(
                                    worker,
                                    view,
                                    cluster,
                                    stream,
                                    input,
                                    who,
                                    None,
                                    idle_timeout,
                                    connection,
                                );
                                return Box::pin(relay).await;
                            }
                            Err(error) => return refused(&view, &who, &error),
                        };
                        timeout_ms = deadline_ms.saturating_sub(clock::now_ms());
                    }
                    match Box::pin(tls_handshake(worker, keys.clone(), stream, input, timeout_ms)).await {
                        Ok((stream, secured)) => (stream, Buffer::none(), Some(secured)),
                        Err(error) => return refused(&view, &who, &error),
                    }
                }
            };
            let (stream, input, secured) = secured;
            drop(view);
            // Boxed, as below, so that the state of the handshake is not kept while the connection is served.
            Box::pin(session::serve(worker, active, stream, input, who, secured)).await;
        }
        Protocol::Tcp(_) => {
            Box::pin(tcp::serve(worker, view, Stream::Plain(stream), input, who, None, connection)).await
        }
        Protocol::Tls(_) => {
            Box::pin(by_name::serve(worker, view, stream, input, who, connection)).await;
        }
        Protocol::Capture(_) => Box::pin(captured::serve(worker, view, stream, who, connection)).await,
    }
    // It has counted until here, however it ended.
    drop(client);
}

/// Whether the addresses of the listener refuse the client of a connection. Those of an HTTP listener apply to each request.
pub(crate) fn is_denied(view: &ListenerView, who: &OnBehalfOf) -> bool {
    let is_http = matches!(view.plan.policy.protocol, Protocol::Http(_));
    !is_http && !admits(view, who)
}

fn admits(view: &ListenerView, who: &OnBehalfOf) -> bool {
    let admits = |addresses: &Arc<AddressTable>| addresses.admits(Some(who.client.ip()).filter(|_| who.is_known));
    view.plan.addresses.as_ref().is_none_or(admits)
}

/// Decides whether a connection passes through. Nothing but its first message has been read then.
///
/// # Errors
/// It is refused, and has been closed.
async fn may_pass(
    worker: &Worker,
    view: &ListenerView,
    passthrough: &[Passthrough],
    mut stream: TcpStream,
    mut input: Buffer,
    who: &OnBehalfOf,
    timeout_ms: u64,
) -> Result<(TcpStream, Buffer, Passing), Error> {
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms().saturating_add(timeout_ms));
    let timeout = || Error::downstream(Reason::TlsHandshakeTimeout);
    let speaks = match input.is_empty() {
        true => timer.guard(session::first_bytes(&mut stream, &mut input)).await.map_err(|_| timeout())?,
        false => true,
    };
    // The handshake tells a client that leaves, or that speaks plain HTTP, as it always does.
    if !speaks || is_request(input.filled()) {
        return Ok((stream, input, Passing::Ends));
    }
    let passing = match timer.guard(by_name::passing(view, passthrough, &mut stream, &mut input)).await {
        Ok(passing) => passing,
        Err(_) => Err(timeout()),
    };
    let passing = passing.and_then(|passing| match passing {
        Passing::To(..) if !admits(view, who) => Err(Error::internal(Reason::ClientDenied)),
        passing => Ok(passing),
    });
    if passing.is_err() {
        net::socket::reset_on_close(&stream);
    }
    Ok((stream, input, passing?))
}

pub(crate) fn refused(view: &ListenerView, who: &OnBehalfOf, error: &Error) {
    view.count(error.reason);
    tracing::debug!(listener = view.plan.policy.name, client = %who.client, %error, "refused");
}

pub(crate) async fn tls_handshake(
    worker: &Worker,
    keys: Arc<tls::ServerKeys>,
    mut stream: TcpStream,
    mut input: Buffer,
    timeout_ms: u64,
) -> Result<(Stream, Rc<tls::Secured>), Error> {
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms().saturating_add(timeout_ms));
    let timeout = |_| Error::downstream(Reason::TlsHandshakeTimeout);
    // Check the bytes that TLS would read first. TLS would answer a plain-text request with an alert, which its client cannot read.
    if input.is_empty() && !timer.guard(session::first_bytes(&mut stream, &mut input)).await.map_err(timeout)? {
        // A probe, or a browser that connects in advance. This is not a failed handshake.
        return Err(Error::downstream(Reason::ClientEof));
    }
    if is_request(input.filled()) {
        let error = Error::downstream(Reason::PlainHttp);
        refuse_plain_http(stream, &timer, &error).await;
        return Err(error);
    }
    let made = timer.guard(tls::accept(keys, tls::Socket::new(stream, input))).await.map_err(timeout)?;
    made.map_err(|error| Error::downstream(tls::client_reason(&error)).because(error))
}

/// A handshake begins with a record of type 22, and a request with its method.
fn is_request(input: &[u8]) -> bool {
    input.first().is_some_and(u8::is_ascii_uppercase)
}

/// Tells a client that speaks plain HTTP on a TLS port about it.
async fn refuse_plain_http(stream: TcpStream, timer: &Timer, error: &Error) {
    let Some(status) = respond::status(error) else { return };
    let own = respond::Own::line(status, Some("this port speaks HTTPS: write https://"));
    let mut out = Vec::new();
    respond::write(&mut out, &own, &closing(), &respond::Additions::NONE);
    // Nothing was written to the connection before, so this never waits.
    let _ = stream.try_write(&out);
    session::linger(&mut Stream::Plain(stream), timer).await;
}

/// The context of a response after which the connection is closed.
fn closing() -> headers::ResponseContext {
    headers::ResponseContext { method: Method::Get, version: Version::Http11, keep_alive: false, web: None }
}

/// Turns `::ffff:1.2.3.4`, the form in which a dual-stack socket reports an IPv4 client, into 1.2.3.4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Reads the PROXY protocol header with which the connection must begin. Returns the bytes after it.
async fn read_proxy_header(worker: &Worker, stream: &mut TcpStream, who: &mut OnBehalfOf) -> Result<Buffer, Error> {
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms() + PROXY_PROTOCOL_TIMEOUT_MS);
    let mut input = Buffer::small();
    let (mut reader, _) = stream.split();
    loop {
        match proxy_protocol::parse(input.filled()) {
            Ok(Parsed::Complete { header, consumed }) => {
                match header.source {
                    Some((client, local)) => {
                        *who = OnBehalfOf { client: canonical(client), is_known: true, local: canonical(local) };
                    }
                    None => who.is_known = header.is_local,
                }
                input.consume(consumed);
                return Ok(input);
            }
            Ok(Parsed::Incomplete) => {}
            Err(_) => return Err(Error::downstream(Reason::BadProxyProtocol)),
        }
        match timer.guard(poll_fn(|cx| input.poll_fill(cx, &mut reader))).await {
            Ok(Ok(0)) => return Err(Error::downstream(Reason::ClientEof)),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(Error::client_io(error)),
            Err(_) => return Err(Error::downstream(Reason::ProxyProtocolTimeout)),
        }
    }
}

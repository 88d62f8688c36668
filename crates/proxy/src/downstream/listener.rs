//! Where downstream connections come in: accept, count, learn the client's address, hand over to the protocol.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use model::Protocol;
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

use crate::error::Error;
use crate::stream::Stream;
use crate::upstream::connect::OnBehalfOf;
use crate::worker::connection_balance::AcceptedConnection;
use crate::worker::{ConnectionGuard, ListenerView, Worker};
use crate::{downstream::session, http::headers, http::respond, tcp, tcp::passthrough, tls};

/// The longest a PROXY protocol header may take: the proxy in front sends it at once.
const PROXY_PROTOCOL_TIMEOUT_MS: u64 = 5_000;

/// After accept(2) failed for want of descriptors or memory: trying again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener on one worker. It stays the same through all snapshots that have the listener.
pub(crate) struct ActiveListener {
    view: RefCell<Rc<ListenerView>>,
    /// The listener left the configuration: connections finish what they do and end.
    closed: Cell<bool>,
    stop: Notify,
}

impl ActiveListener {
    pub(crate) fn new(view: Rc<ListenerView>) -> Self {
        Self { view: RefCell::new(view), closed: Cell::new(false), stop: Notify::new() }
    }

    /// The listener as the newest snapshot has it.
    pub(crate) fn view(&self) -> Rc<ListenerView> {
        self.view.borrow().clone()
    }

    pub(crate) fn update(&self, view: Rc<ListenerView>) {
        *self.view.borrow_mut() = view;
    }

    /// Ends accepting, once what the kernel has queued is accepted.
    pub(crate) fn close(&self) {
        self.closed.set(true);
        // All accept loops of this worker: there are several where it was handed more sockets than there are workers.
        self.stop.notify_waiters();
    }

    /// Connections end after what they are doing: the listener is gone, or the whole worker drains.
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
    // The kernel has completed these; closing the socket now would reset them. Asked of the kernel itself: the runtime knows of a
    // connection only once it has looked, which it need not have done since this one came.
    let Ok(socket) = socket.into_std() else { return };
    loop {
        match socket.accept().and_then(|(stream, address)| Ok((own(stream)?, address))) {
            Ok((stream, address)) => serve_here(&worker, &active, stream, address),
            Err(error) if is_of_one_connection(&error) => {}
            Err(_) => return,
        }
    }
}

/// A connection that was accepted outside of this worker's runtime.
pub(crate) fn own(stream: std::net::TcpStream) -> io::Result<TcpStream> {
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

/// The client was gone before it was accepted: accept(2) says to treat these as EAGAIN.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Serves a new connection on this worker, or hands it over to one that has fewer connections.
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

/// Serves a connection that is counted as this worker's.
pub(crate) fn begin(worker: &Rc<Worker>, active: &Rc<ActiveListener>, stream: TcpStream, address: SocketAddr) {
    let view = active.view();
    view.counters.connections.inc();
    let permit = ConnectionPermit::acquire(&view, worker.connection());
    let (worker, active) = (worker.clone(), active.clone());
    tokio::task::spawn_local(async move {
        match permit {
            Some(_) if is_memory_full() => refuse(&view, stream, Reason::MemoryFull).await,
            Some(permit) => {
                // It may last for days: it takes the listener as each snapshot has it, and holds none.
                drop(view);
                serve(&worker, &active, stream, address, &permit.connection).await;
            }
            None => refuse(&view, stream, Reason::ConnectionsFull).await,
        }
    });
}

/// A permit for one connection of the listener, counted against its `connections` limit until it is dropped.
struct ConnectionPermit {
    open: Arc<AtomicUsize>,
    counters: Arc<ListenerCounters>,
    connection: ConnectionGuard,
}

impl ConnectionPermit {
    fn acquire(view: &Rc<ListenerView>, connection: ConnectionGuard) -> Option<Self> {
        let open = view.plan.open.clone();
        let before = open.fetch_add(1, Relaxed);
        view.counters.open.inc();
        let permit = Self { open, counters: view.counters.clone(), connection };
        (before < view.plan.policy.connections_max).then_some(permit)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Relaxed);
        self.counters.open.dec();
    }
}

/// The process uses as much memory as it may: nothing new is taken.
pub(crate) fn is_memory_full() -> bool {
    memory::pressure() == Pressure::Full
}

/// One connection too many: an HTTP client is told, in one write that never waits.
async fn refuse(view: &ListenerView, mut stream: TcpStream, reason: Reason) {
    let error = Error::internal(reason);
    view.count(error.reason);
    if let (Protocol::Http(_), None, Some(status)) =
        (&view.plan.policy.protocol, &view.plan.tls, respond::status(&error))
    {
        let mut out = Vec::new();
        let own = respond::Own { status, word: respond::word(error.reason), field: None };
        respond::write(&mut out, &own, &closing());
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
) {
    let view = active.view();
    let mut who = OnBehalfOf { client: canonical(address), local: stream.local_addr().map_or(address, canonical) };
    let mut input = Buffer::none();
    if view.plan.policy.accept_proxy_protocol {
        match Box::pin(read_proxy_header(worker, &mut stream, &mut who)).await {
            Ok(rest) => input = rest,
            Err(error) => return refused(&view, &who, &error),
        }
    }
    match &view.plan.policy.protocol {
        Protocol::Http(http) => {
            let secured = match &view.plan.tls {
                None => (Stream::Plain(stream), input, None),
                Some(keys) => {
                    let timeout_ms = crate::millis(http.limits.header_timeout);
                    match Box::pin(tls_handshake(worker, keys.clone(), stream, input, timeout_ms)).await {
                        Ok((stream, secured)) => (stream, Buffer::none(), Some(secured)),
                        Err(error) => return refused(&view, &who, &error),
                    }
                }
            };
            let (stream, input, secured) = secured;
            drop(view);
            // In a box, as below: what it takes to begin a connection is not kept beside what it takes to serve it.
            Box::pin(session::serve(worker, active, stream, input, who, secured)).await;
        }
        Protocol::Tcp(_) => Box::pin(tcp::serve(worker, view, stream, input, who, connection)).await,
        Protocol::TlsPassthrough(_) => Box::pin(passthrough::serve(worker, view, stream, input, who, connection)).await,
    }
}

fn refused(view: &ListenerView, who: &OnBehalfOf, error: &Error) {
    view.count(error.reason);
    tracing::debug!(listener = view.plan.policy.name, client = %who.client, %error, "refused");
}

async fn tls_handshake(
    worker: &Worker,
    keys: Arc<tls::ServerKeys>,
    mut stream: TcpStream,
    mut input: Buffer,
    timeout_ms: u64,
) -> Result<(Stream, Rc<tls::Secured>), Error> {
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms().saturating_add(timeout_ms));
    let timeout = |_| Error::downstream(Reason::TlsHandshakeTimeout);
    // What TLS would read first is looked at before: it would answer a request in the clear with an alert, which nobody can read.
    if input.is_empty() && !timer.guard(session::first_bytes(&mut stream, &mut input)).await.map_err(timeout)? {
        // A probe, or a browser that connects in advance: no handshake has failed.
        return Err(Error::downstream(Reason::ClientEof));
    }
    if is_request(input.filled()) {
        let error = Error::downstream(Reason::PlainHttp);
        refuse_plain_http(stream, &timer, &error).await;
        return Err(error);
    }
    let made = timer.guard(tls::accept(keys, tls::Socket::new(stream, input))).await.map_err(timeout)?;
    made.map_err(|error| Error::downstream(Reason::TlsHandshake).because(error))
}

/// A handshake begins with a record of type 22, a request with its method.
fn is_request(input: &[u8]) -> bool {
    input.first().is_some_and(u8::is_ascii_uppercase)
}

/// A client that speaks HTTP in the clear where TLS is spoken is told so.
async fn refuse_plain_http(stream: TcpStream, timer: &Timer, error: &Error) {
    let Some(status) = respond::status(error) else { return };
    let own = respond::Own { status, word: Some("this port speaks HTTPS: write https://"), field: None };
    let mut out = Vec::new();
    respond::write(&mut out, &own, &closing());
    // It is the first that is written to the connection, and never waits.
    let _ = stream.try_write(&out);
    session::linger(&mut Stream::Plain(stream), timer).await;
}

/// For a response behind which the connection is closed.
fn closing() -> headers::ResponseContext {
    headers::ResponseContext { method: Method::Get, version: Version::Http11, keep_alive: false, web: None }
}

/// `::ffff:1.2.3.4`, which is how a socket for both families tells of an IPv4 client, is 1.2.3.4 to everybody else.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Reads the PROXY protocol header with which the connection must begin; gives what came behind it.
async fn read_proxy_header(worker: &Worker, stream: &mut TcpStream, who: &mut OnBehalfOf) -> Result<Buffer, Error> {
    let timer = Timer::new(&worker.timers);
    timer.set(clock::now_ms() + PROXY_PROTOCOL_TIMEOUT_MS);
    let mut input = Buffer::small();
    let (mut reader, _) = stream.split();
    loop {
        match proxy_protocol::parse(input.filled()) {
            Ok(Parsed::Complete { header, consumed }) => {
                if let Some((client, local)) = header.source {
                    *who = OnBehalfOf { client: canonical(client), local: canonical(local) };
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

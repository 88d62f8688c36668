//! The server of the control API: connections, their number and their time limits. `handle` answers the requests.
//!
//! # Web pages
//! A web page in the browser of somebody who can reach this address can send requests here. Therefore
//! - a request that changes something must carry `x-steelyard-admin: 1`. A page cannot send this header to another
//!   origin without asking first (CORS preflight), and nothing here answers that;
//! - a request is refused if the browser says that a page of another origin sent it (`Origin`, `Sec-Fetch-Site`). Only following a link to a page here
//!   is allowed;
//! - a request whose `Host` is neither an address (one of the loopback, over loopback) nor `localhost` nor a name in the configuration is
//!   refused. A page whose name was made to resolve to this address (DNS rebinding) has this origin for the browser, so it could send the
//!   header and read the responses. Only [`Pages::ForAnyone`] over an address that is not of the loopback may have any name: scrapers use
//!   any;
//! - no other page can show these in a frame.
//!
//! # Who may use it
//! If the configuration names users, every request must prove who it is from; `access` reads the proof.
//!
//! # Slow clients
//! A new connection is served at once, whatever others do: see `places`, which also bounds the bytes that wait for clients.

mod counted;
mod places;
mod turns;

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::counted::Counted;
use crate::access::Limiter;
use crate::handle::{Connection, handle};
use crate::listener::{Listener, Stream, Watched};
use crate::{Control, Pages};

pub use self::places::MadeWayFor;
pub(crate) use self::places::{Place, Places};
pub(crate) use self::turns::{Turns, Who};

/// Limits on what clients may use.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The maximum number of open connections. Further ones take the place of others.
    connections_max: usize,
    /// The same for those of one address whose clients have proved nothing.
    of_address_max: usize,
    /// The time for the handshake of TLS, and that for the request's head.
    header_timeout: Duration,
    /// The time for its body.
    body_timeout: Duration,
    /// Bytes of large responses that wait for clients. A single response may have more.
    waiting_bytes_max: usize,
    /// The time from accept to the end of the response. The slowest request is a reload.
    connection_timeout: Duration,
    /// The same for a stream of events. Browsers then open another one.
    stream_timeout: Duration,
}

const LIMITS: Limits = Limits {
    connections_max: 64,
    of_address_max: 16,
    header_timeout: Duration::from_secs(3),
    body_timeout: Duration::from_secs(10),
    waiting_bytes_max: 64 * 1024 * 1024,
    connection_timeout: Duration::from_secs(60),
    stream_timeout: Duration::from_secs(3600),
};
/// The limit on a request's head in bytes. hyper allows no smaller one.
const HEADER_BYTES_MAX: usize = 8192;
/// The pause after a failed accept. File descriptors become free only with time, and a tight loop would take the CPU
/// from the threads that can free them.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Large responses that are made at a time, on threads of their own. Each may need some MiB.
const LARGE_MAX: usize = 2;
/// The same for metrics, so that a scrape does not wait for pages of people.
const METRICS_MAX: usize = 1;
/// The time for a connection with the last descriptor, which keeps all others waiting.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for the end of TLS, which the client may leave out.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// EMFILE of errno(3): the process has reached its limit on open descriptors.
const DESCRIPTORS_USED_UP: i32 = 24;

/// What the connections of an address share.
pub(crate) struct Shared {
    pub(crate) control: Arc<dyn Control>,
    pub(crate) pages: Pages,
    pub(crate) limiter: Limiter,
    /// What forms of the page must send back. A page of another origin cannot read it.
    pub(crate) form_token: String,
    /// Turns for large responses.
    pub(crate) large: Arc<Turns>,
    /// Turns for metrics.
    pub(crate) metrics: Arc<Turns>,
    pub(crate) places: Arc<Places>,
    /// The time for the body of a request.
    pub(crate) body_timeout: Duration,
}

/// A text that nobody can guess: the keys of hash maps are random.
fn random_text() -> String {
    let number = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", number(), number())
}

/// Serves the control API on `listener` until the future is dropped. Requests that are in progress then finish in tasks
/// of their own.
///
/// Each connection carries one request: a client that asks a few times a minute gains nothing from keeping it, and idle
/// connections use up no slots.
///
/// # Errors
/// The runtime cannot watch the socket.
pub async fn serve(listener: Listener, control: Arc<dyn Control>, pages: Pages) -> io::Result<()> {
    serve_with(listener.try_into()?, control, pages, LIMITS).await;
    Ok(())
}

async fn serve_with(listener: Watched, control: Arc<dyn Control>, pages: Pages, limits: Limits) {
    let Limits { connections_max, of_address_max, waiting_bytes_max, .. } = limits;
    let noting = Arc::clone(&control);
    let made_way = move |reason| noting.note_made_way(reason);
    let places = Places::new(connections_max, of_address_max, waiting_bytes_max, made_way);
    let shared = Arc::new(Shared {
        control,
        pages,
        limiter: Limiter::default(),
        form_token: random_text(),
        large: Turns::new(LARGE_MAX),
        metrics: Turns::new(METRICS_MAX),
        places: Arc::clone(&places),
        body_timeout: limits.body_timeout,
    });
    let mut spare = open_spare();
    loop {
        match accept(&listener, &mut spare).await {
            Ok((stream, false)) => {
                let (client, is_local) = stream.client();
                let (taken, shared) = (places.take(client, Instant::now()), Arc::clone(&shared));
                tokio::spawn(async move {
                    let connection = Connection::new(&shared, &taken.place, client, is_local);
                    serve_connection(stream, connection, limits).await;
                    drop(taken);
                });
                // Each connection gets its turn before others can take its place.
                tokio::task::yield_now().await;
            }
            // With only this descriptor left, connections are served one after the other.
            Ok((stream, true)) => {
                let (client, is_local) = stream.client();
                let taken = places.take(client, Instant::now());
                let connection = Connection::new(&shared, &taken.place, client, is_local);
                let limits = Limits { connection_timeout: LAST_TIMEOUT, stream_timeout: Duration::ZERO, ..limits };
                spare = serve_connection(stream, connection, limits).await;
            }
            Err(error) => {
                tracing::warn!("the admin address cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        if spare.is_none() {
            spare = open_spare();
        }
    }
}

/// Opens the spare descriptor, which is kept for when all others are used up: that is when an operator needs an answer
/// most.
fn open_spare() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

/// Returns the next connection, and whether it uses the spare descriptor.
async fn accept(listener: &Watched, spare: &mut Option<OwnedFd>) -> io::Result<(Stream, bool)> {
    loop {
        match poll_fn(|cx| listener.poll_accept(cx)).await {
            Ok(stream) => return Ok((stream, false)),
            Err(error) if error.raw_os_error() == Some(DESCRIPTORS_USED_UP) && spare.take().is_some() => {}
            Err(error) => return Err(error),
        }
        // Accept at once, before a worker takes the descriptor for a client.
        match poll_fn(|cx| Poll::Ready(listener.poll_accept(cx))).await {
            Poll::Ready(accepted) => return accepted.map(|stream| (stream, true)),
            // No client is waiting: accept(2) allocates a descriptor before it looks for a connection (Linux 6.18).
            Poll::Pending => *spare = open_spare(),
        }
    }
}

/// Answers one request. Returns the descriptor of the finished connection still open, because any thread could take a
/// closed one.
async fn serve_connection(stream: Stream, connection: Connection<'_>, limits: Limits) -> Option<OwnedFd> {
    let tls = match connection.shared.pages {
        Pages::All => connection.shared.control.access().tls,
        Pages::ForAnyone => None,
    };
    let ended = match (stream, tls) {
        (Stream::Tcp(stream), Some(tls)) => {
            let secured = secure(counted(stream, connection), tls, connection.place, limits).await?;
            let certificate = secured.get_ref().1.peer_certificates().map(Arc::from);
            let connection = Connection { certificate: certificate.as_ref(), ..connection };
            let mut ended = answer(secured, connection, limits).await;
            // Without this, clients could not tell the end from a cut.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended.shutdown()).await;
            Stream::Tcp(ended.into_inner().0.stream)
        }
        (Stream::Tcp(stream), None) => {
            Stream::Tcp(answer(counted(stream, connection), connection, limits).await.stream)
        }
        (Stream::Unix(stream), _) => Stream::Unix(answer(counted(stream, connection), connection, limits).await.stream),
    };
    ended.end()
}

fn counted<S>(stream: S, connection: Connection<'_>) -> Counted<S> {
    Counted { stream, place: Arc::clone(connection.place) }
}

/// Does the handshake. `None`: the client aborted it, was too slow, or had to make place.
async fn secure(
    stream: Counted<TcpStream>,
    tls: Arc<rustls::ServerConfig>,
    place: &Place,
    limits: Limits,
) -> Option<TlsStream<Counted<TcpStream>>> {
    let handshake = tokio::time::timeout(limits.header_timeout, TlsAcceptor::from(tls).accept(stream));
    tokio::select! {
        secured = handshake => match secured {
            Ok(Ok(secured)) => Some(secured),
            Ok(Err(error)) => {
                tracing::debug!(%error, "no TLS at the admin address");
                None
            }
            Err(_) => None,
        },
        () = place.ended() => None,
    }
}

async fn answer<S>(stream: S, connection: Connection<'_>, limits: Limits) -> S
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Boxed, because hyper needs a future that it can move.
    let service = service_fn(|request| Box::pin(handle(connection, request)));
    let mut http = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // The result does not matter here: the client has its response, went away, or was too slow.
    let mut ended = poll_fn(|cx| http.poll_without_shutdown(cx));
    let served = async {
        let timed_out = tokio::time::timeout(limits.connection_timeout, &mut ended).await.is_err();
        if timed_out && connection.place.streams() {
            let _ = tokio::time::timeout(limits.stream_timeout, ended).await;
        }
    };
    tokio::select! {
        () = served => {}
        () = connection.place.ended() => {}
    }
    http.into_parts().io.into_inner()
}

#[cfg(test)]
mod tests;

//! The server of the control API: connections, their number and their time limits. `handle` answers the requests.
//!
//! # Web pages
//! A web page in the browser of somebody who can reach this address can send requests here. Therefore
//! - a request that changes something must carry `x-steelyard-admin: 1`. A page cannot send this header to another
//!   origin without asking first (CORS preflight), and nothing here answers that;
//! - a request whose `Host` is neither a loopback address nor `localhost` is refused if it changes something or came
//!   over loopback. A page whose name was made to resolve to this address (DNS rebinding) has this origin for the
//!   browser, so it could send the header and read the responses. Over other addresses, which serve only
//!   [`Pages::ForAnyone`], scrapers may use any name.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

use crate::handle::handle;
use crate::listener::{Listener, Stream, Watched};
use crate::{Control, Pages};

/// Limits on what clients may use.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The maximum number of open connections. Further ones wait to be accepted.
    connections_max: usize,
    /// The time from accept to the end of the request's head.
    header_timeout: Duration,
    /// The time from accept to the end of the response. The slowest request is a reload.
    connection_timeout: Duration,
}

const LIMITS: Limits =
    Limits { connections_max: 64, header_timeout: Duration::from_secs(5), connection_timeout: Duration::from_secs(60) };
/// The limit on a request's head in bytes. hyper allows no smaller one.
const HEADER_BYTES_MAX: usize = 8192;
/// The pause after a failed accept. File descriptors become free only with time, and a tight loop would take the CPU
/// from the threads that can free them.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// EMFILE of errno(3): the process has reached its limit on open descriptors.
const DESCRIPTORS_USED_UP: i32 = 24;

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
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut spare = open_spare();
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match accept(&listener, &mut spare).await {
            Ok((stream, false)) => {
                let control = Arc::clone(&control);
                tokio::spawn(async move {
                    connection(stream, control, pages, limits).await;
                    drop(place);
                });
            }
            // With only this descriptor left, connections are served one after the other.
            Ok((stream, true)) => spare = connection(stream, Arc::clone(&control), pages, limits).await,
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
async fn connection(stream: Stream, control: Arc<dyn Control>, pages: Pages, limits: Limits) -> Option<OwnedFd> {
    let ended = match stream {
        Stream::Tcp(stream) => {
            let over_loopback = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
            Stream::Tcp(answer(stream, &*control, pages, over_loopback, limits).await)
        }
        // Browsers cannot connect here, and the rules for loopback do no harm.
        Stream::Unix(stream) => Stream::Unix(answer(stream, &*control, pages, true, limits).await),
    };
    ended.end()
}

async fn answer<S>(stream: S, control: &dyn Control, pages: Pages, over_loopback: bool, limits: Limits) -> S
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Boxed, because hyper needs a future that it can move.
    let service = service_fn(|request| Box::pin(handle(control, request, pages, over_loopback)));
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // The result does not matter here: the client has its response, went away, or was too slow.
    let ended = poll_fn(|cx| connection.poll_without_shutdown(cx));
    let _ = tokio::time::timeout(limits.connection_timeout, ended).await;
    connection.into_parts().io.into_inner()
}

#[cfg(test)]
mod tests;

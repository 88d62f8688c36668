//! The listening side: connections, their number and their time. What is answered is `handle`'s.
//!
//! # Web pages
//! A page in the browser of someone who can reach this address can send requests here. So
//! - a request that changes something must carry `x-steelyard-admin: 1`, which no page can send to another origin without asking first (CORS
//!   preflight), and nothing here answers that;
//! - a request whose `Host` is neither a loopback address nor `localhost` is refused when it changes something, or came over loopback: a page
//!   whose name was made to resolve to this address (DNS rebinding) counts for the browser as of this origin, and could send the header and
//!   read the answers. Over other addresses, where only [`Pages::ForAnyone`] are answered, scrapers may use any name.

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

/// What a client may take of us.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Open connections; the next waits to be accepted.
    connections_max: usize,
    /// From accept to the end of the request's head.
    header_timeout: Duration,
    /// From accept to the end of the response. A reload is the longest that is asked for.
    connection_timeout: Duration,
}

const LIMITS: Limits =
    Limits { connections_max: 64, header_timeout: Duration::from_secs(5), connection_timeout: Duration::from_secs(60) };
/// Bytes of a request's head. The least that hyper allows.
const HEADER_BYTES_MAX: usize = 8192;
/// After a failed accept: nothing but time gives a file descriptor back, and a tight loop would take the CPU from who could.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// EMFILE of errno(3): this process has as many descriptors open as it may.
const DESCRIPTORS_USED_UP: i32 = 24;

/// Serves the control API on `listener` until it is dropped; requests that are under way then are finished by tasks of their own.
///
/// One request a connection: who asks a few times a minute gains nothing from keeping it, and an idle one takes no place.
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
            // One after the other, as long as there is only this descriptor.
            Ok((stream, true)) => spare = connection(stream, Arc::clone(&control), pages, limits).await,
            Err(error) => {
                tracing::warn!("the admin address cannot accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
        if spare.is_none() {
            spare = open_spare();
        }
    }
}

/// A descriptor that is held for when all others are used up: then, above all, an operator has to be answered.
fn open_spare() -> Option<OwnedFd> {
    File::open("/dev/null").ok().map(OwnedFd::from)
}

/// The next connection, and whether it has the spare descriptor.
async fn accept(listener: &Watched, spare: &mut Option<OwnedFd>) -> io::Result<(Stream, bool)> {
    loop {
        match poll_fn(|cx| listener.poll_accept(cx)).await {
            Ok(stream) => return Ok((stream, false)),
            Err(error) if error.raw_os_error() == Some(DESCRIPTORS_USED_UP) && spare.take().is_some() => {}
            Err(error) => return Err(error),
        }
        // At once, before a worker takes the descriptor for a client.
        match poll_fn(|cx| Poll::Ready(listener.poll_accept(cx))).await {
            Poll::Ready(accepted) => return accepted.map(|stream| (stream, true)),
            // Nobody is there: accept(2) asks for a descriptor before it looks (Linux 6.18).
            Poll::Pending => *spare = open_spare(),
        }
    }
}

/// Answers one request. Gives the descriptor of the connection, which has ended, still open: one that is closed is anybody's.
async fn connection(stream: Stream, control: Arc<dyn Control>, pages: Pages, limits: Limits) -> Option<OwnedFd> {
    let ended = match stream {
        Stream::Tcp(stream) => {
            let over_loopback = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
            Stream::Tcp(answer(stream, &*control, pages, over_loopback, limits).await)
        }
        // No browser gets here. What holds over loopback does no harm.
        Stream::Unix(stream) => Stream::Unix(answer(stream, &*control, pages, true, limits).await),
    };
    ended.end()
}

async fn answer<S>(stream: S, control: &dyn Control, pages: Pages, over_loopback: bool, limits: Limits) -> S
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // In a box, as hyper asks for one that can be moved.
    let service = service_fn(|request| Box::pin(handle(control, request, pages, over_loopback)));
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // How it ended is the client's affair: it has its answer, or left, or was too slow.
    let ended = poll_fn(|cx| connection.poll_without_shutdown(cx));
    let _ = tokio::time::timeout(limits.connection_timeout, ended).await;
    connection.into_parts().io.into_inner()
}

#[cfg(test)]
mod tests;

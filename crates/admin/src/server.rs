//! The listening side: connections, their number and their time. What is answered is `handle`'s.
//!
//! # Web pages
//! A page in the browser of someone who can reach this address can send requests here. So
//! - a request that changes something must carry `x-steelyard-admin: 1`, which no page can send to another origin without asking first (CORS
//!   preflight), and nothing here answers that;
//! - a request whose `Host` is a DNS name other than `localhost` is refused when it changes something, or came over loopback: a page whose
//!   name was made to resolve to this address (DNS rebinding) counts for the browser as of this origin, and could send the header and read
//!   the answers. Over other addresses reading is allowed under any name: scrapers use names, and who reaches such an address may read anyway.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::Control;
use crate::handle::handle;

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

/// Serves the control API on `listener` until it is dropped; requests that are under way then are finished by tasks of their own.
///
/// One request a connection: who asks a few times a minute gains nothing from keeping it, and an idle one takes no place.
pub async fn serve(listener: TcpListener, control: Arc<dyn Control>) {
    serve_with(listener, control, LIMITS).await;
}

async fn serve_with(listener: TcpListener, control: Arc<dyn Control>, limits: Limits) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let control = Arc::clone(&control);
                tokio::spawn(async move {
                    connection(stream, control, limits).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("the admin address cannot accept: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, control: Arc<dyn Control>, limits: Limits) {
    let over_loopback = stream.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback());
    let service = service_fn(|request| handle(&*control, request, over_loopback));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // How it ended is the client's affair: it has its answer, or left, or was too slow.
    let _ = tokio::time::timeout(limits.connection_timeout, connection).await;
}

#[cfg(test)]
mod tests;

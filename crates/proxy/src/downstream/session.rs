//! One downstream HTTP connection: exchange after exchange, and an orderly end.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use model::Protocol;
use net::buffer::Buffer;
use net::clock;
use net::timer::Timer;
use telemetry::Reason;
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::downstream::h2_session;
use crate::downstream::listener::ActiveListener;
use crate::driver::{self, Downstream};
use crate::exchange::{ConnectionInfo, Disposition};
use crate::stream::Stream;
use crate::tls::Secured;
use crate::upstream::connect::OnBehalfOf;
use crate::worker::{ListenerView, Worker};

/// How long an idle connection may stay while its worker drains: long enough for a request that is on its way.
pub(crate) const DRAIN_IDLE_MS: u64 = 2_000;

/// How long to read and discard the bytes of a client that still sends after its last response: this long while it is silent, and in total.
/// The time is limited instead of the bytes, because the number of bytes on their way depends on the buffers of both kernels (of 200
/// chunked uploads that were answered 413 over loopback, 11 lost the answer when 1 MiB was the limit), and discarding them costs only one
/// small buffer.
pub(crate) const LINGER_MS: u64 = 2_000;
pub(crate) const LINGER_MS_MAX: u64 = 15_000;

/// Serves a connection to its end. `input` holds the bytes after a PROXY protocol header.
///
/// This is not an `async fn`, because that would store its arguments twice for as long as the connection lasts: once as passed and once
/// where they are used.
pub(crate) fn serve<'c>(
    worker: &'c Rc<Worker>,
    active: &'c Rc<ActiveListener>,
    stream: Stream,
    input: Buffer,
    who: OnBehalfOf,
    secured: Option<Rc<Secured>>,
) -> impl Future<Output = ()> + 'c {
    let mut downstream = Downstream {
        stream,
        input,
        timer: Timer::new(&worker.timers),
        connection_info: Rc::new(ConnectionInfo {
            who,
            ip_text: who.client.ip().to_string().bytes().collect(),
            secured,
        }),
        requests: 0,
        quiet_since_ms: clock::now_ms(),
    };
    async move { exchanges(worker, active, &mut downstream).await }
}

/// Serves exchanges one after another, and waits for the next request in between.
async fn exchanges(worker: &Rc<Worker>, active: &Rc<ActiveListener>, downstream: &mut Downstream) {
    loop {
        if downstream.input.is_empty() && !wait_for_request(worker, active, downstream).await {
            return;
        }
        let listener = active.view();
        if downstream.requests == 0 && speaks_h2(&listener, downstream).await {
            drop(listener);
            return Box::pin(h2_session::serve(worker, active, downstream)).await;
        }
        // The exchange holds what it needs of the listener, and a tunnel releases it.
        drop(listener);
        // The exchange is boxed only while it runs, so that a waiting connection costs a few hundred bytes and not the state of an
        // exchange.
        let next = Box::pin(driver::serve(worker, active, downstream, worker.storage.exchange())).await;
        if next != Disposition::KeepAlive
            && let Protocol::Http(http) = &active.view().plan.policy.protocol
        {
            downstream.timer.set(clock::now_ms().saturating_add(crate::millis(http.limits.stall_timeout)));
        }
        match next {
            Disposition::KeepAlive => {}
            Disposition::Close => return close(downstream).await,
            Disposition::Linger => return linger(&mut downstream.stream, &downstream.timer).await,
            Disposition::Reset(_) => return downstream.stream.reset_on_close(),
        }
    }
}

/// Whether the connection uses HTTP/2: as negotiated within TLS (RFC 9113 section 3.2), or in plain text according to the first bytes
/// (section 3.3), of which this waits for as many as are needed.
async fn speaks_h2(listener: &ListenerView, downstream: &mut Downstream) -> bool {
    if let Some(secured) = &downstream.connection_info.secured {
        return secured.is_h2();
    }
    // The reader of HTTP/1 refuses its version.
    if matches!(&listener.plan.policy.protocol, Protocol::Http(http) if !http.http2) {
        return false;
    }
    match begins_as_h2(downstream.input.filled()) {
        Some(is_h2) => is_h2,
        // This is rare, so it is boxed.
        None => Box::pin(read_beginning(listener, downstream)).await,
    }
}

/// `None` if the bytes do not decide it yet.
fn begins_as_h2(input: &[u8]) -> Option<bool> {
    /// No HTTP/1 request begins like this: the method is reserved (RFC 9113 section 11.5).
    const BEGINNING: &[u8] = b"PRI ";
    let count = input.len().min(BEGINNING.len());
    let is_alike = input.get(..count) == BEGINNING.get(..count);
    if is_alike && count < BEGINNING.len() { None } else { Some(is_alike) }
}

async fn read_beginning(listener: &ListenerView, downstream: &mut Downstream) -> bool {
    let Protocol::Http(http) = &listener.plan.policy.protocol else { return false };
    let Downstream { stream, input, timer, .. } = downstream;
    timer.set(clock::now_ms().saturating_add(crate::millis(http.limits.header_timeout)));
    loop {
        if let Some(is_h2) = begins_as_h2(input.filled()) {
            return is_h2;
        }
        match timer.guard(poll_fn(|cx| input.poll_fill(cx, stream))).await {
            Ok(Ok(count)) if count > 0 => {}
            // The reader of the rest of the head will report the error.
            _ => return false,
        }
    }
}

/// Waits for the first bytes of a request, without a buffer and without holding the listener's tables. Returns false when it is time to
/// close.
async fn wait_for_request(worker: &Worker, active: &ActiveListener, downstream: &mut Downstream) -> bool {
    downstream.input = Buffer::none();
    let is_first = downstream.requests == 0;
    let patience = match &active.view().plan.policy.protocol {
        Protocol::Http(http) if is_first => http.limits.header_timeout,
        Protocol::Http(http) => http.limits.idle_timeout,
        Protocol::Tcp(_) | Protocol::Tls(_) | Protocol::Capture(_) => return false,
    };
    let deadline_ms = downstream.quiet_since_ms.saturating_add(crate::millis(patience));
    loop {
        let is_ending = active.is_ending(worker);
        if is_ending {
            downstream.timer.set(deadline_ms.min(clock::now_ms() + DRAIN_IDLE_MS));
        } else {
            downstream.timer.set_interruptible(deadline_ms);
        }
        if let Ok(has_begun) = downstream.timer.guard(first_bytes(&mut downstream.stream, &mut downstream.input)).await
        {
            return has_begun;
        }
        // A drain began during the wait and interrupted the timer. The client gets a little longer before the connection is closed.
        if is_ending {
            return false;
        }
        if clock::now_ms() >= deadline_ms {
            active.view().count(if is_first { Reason::HeaderTimeout } else { Reason::IdleTimeout });
            return false;
        }
    }
}

/// Reads the first bytes of a request, or of a connection, into `input`. Returns false if the client ended the connection instead.
pub(crate) async fn first_bytes<S: Readable>(stream: &mut S, input: &mut Buffer) -> bool {
    let mut was_asked = false;
    poll_fn(|cx| {
        // Checked once. After a wake-up there are nearly always bytes, and the read itself finds out.
        if !was_asked {
            was_asked = true;
            if ready!(stream.poll_readable(cx)).is_err() {
                return Poll::Ready(false);
            }
        }
        *input = Buffer::small();
        let read = input.poll_fill(cx, stream);
        if read.is_pending() {
            // The runtime assumes that a new socket is readable until a read is tried. Without this, a silent client would hold a buffer.
            *input = Buffer::none();
        }
        read.map(|read| match read {
            Ok(count) => count > 0,
            Err(error) => {
                tracing::trace!(%error, "client gone between requests");
                false
            }
        })
    })
    .await
}

/// A stream that can be checked for readable bytes before a buffer exists.
pub(crate) trait Readable: AsyncRead + Unpin {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
}

impl Readable for Stream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }
}

impl Readable for TcpStream {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }
}

/// The timer limits the client's time: TLS has something to write, and a client that does not read leaves no room for it.
async fn close(downstream: &mut Downstream) {
    let Downstream { stream, timer, .. } = downstream;
    // This only fails if the client is already gone.
    let _ = timer.guard(stream.shutdown()).await;
}

/// Ends our side, for as long as the timer allows, and continues to read for a while. A close with unread bytes makes the kernel send a
/// reset, which can overtake the answer.
pub(crate) async fn linger(stream: &mut Stream, timer: &Timer) {
    if !matches!(timer.guard(stream.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    let ends_ms = clock::now_ms() + LINGER_MS_MAX;
    let mut input = Buffer::small();
    loop {
        let now_ms = clock::now_ms();
        timer.set(ends_ms.min(now_ms + LINGER_MS));
        input.consume(usize::MAX);
        match timer.guard(poll_fn(|cx| input.poll_fill(cx, stream))).await {
            Ok(Ok(count)) if count > 0 && now_ms < ends_ms => {}
            // It has ended, or takes too long. The connection ends here in either case.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_waits_is_small() {
        type Serve<F> =
            fn(&'static Rc<Worker>, &'static Rc<ActiveListener>, Stream, Buffer, OnBehalfOf, Option<Rc<Secured>>) -> F;
        fn size<F: Future>(_: Serve<F>) -> usize {
            size_of::<F>()
        }
        // The cost of an idle client is all of these at once. If it grew on purpose, change the figure here.
        assert!(size(serve) <= 544, "{}", size(serve));
    }
}

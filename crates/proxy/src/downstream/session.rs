//! One downstream HTTP connection: exchange after exchange, and a decent end.

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
use crate::exchange::{ConnectionInfo, Next};
use crate::stream::Stream;
use crate::tls::Secured;
use crate::upstream::connect::OnBehalfOf;
use crate::worker::{ListenerView, Worker};

/// How long an idle connection may stay when its worker drains: long enough for a request that is on its way.
pub(crate) const DRAIN_IDLE_MS: u64 = 2_000;

/// How long a client that is still talking after its last answer is read from, and what it says thrown away: for so long when it falls silent,
/// and in all. Its time is limited and not its bytes: how much is on its way depends on the buffers of both kernels (of 200 chunked uploads
/// that were answered 413 through the loopback, 11 lost the answer when 1 MiB was the limit), and all that it costs is one small buffer.
pub(crate) const LINGER_MS: u64 = 2_000;
pub(crate) const LINGER_MS_MAX: u64 = 15_000;

/// Serves a connection to its end. `input` holds what came behind a PROXY protocol header.
///
/// Not an `async fn`: that would keep its arguments twice, once as they came and once where they are used, for as long as the
/// connection lasts.
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

/// One after another, and between them the wait for the next.
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
        // What an exchange needs of it, it holds itself, and a tunnel lets go of it.
        drop(listener);
        // In a box of its own for as long as it runs: a connection that waits costs a few hundred bytes, not the state of an exchange.
        let next = Box::pin(driver::serve(worker, active, downstream, worker.storage.exchange())).await;
        if next != Next::KeepAlive
            && let Protocol::Http(http) = &active.view().plan.policy.protocol
        {
            downstream.timer.set(clock::now_ms().saturating_add(crate::millis(http.limits.stall_timeout)));
        }
        match next {
            Next::KeepAlive => {}
            Next::Close => return close(downstream).await,
            Next::Linger => return linger(&mut downstream.stream, &downstream.timer).await,
            Next::Reset(_) => return downstream.stream.reset_on_close(),
        }
    }
}

/// Whether it is HTTP/2 that is spoken: as agreed upon within TLS (RFC 9113 section 3.2); in the clear as the first bytes say (section 3.3), of
/// which those that make the difference are waited for.
async fn speaks_h2(listener: &ListenerView, downstream: &mut Downstream) -> bool {
    if let Some(secured) = &downstream.connection_info.secured {
        return secured.is_h2();
    }
    match begins_as_h2(downstream.input.filled()) {
        Some(is_h2) => is_h2,
        // Hardly ever: in a box.
        None => Box::pin(read_beginning(listener, downstream)).await,
    }
}

/// `None`: it cannot be told yet.
fn begins_as_h2(input: &[u8]) -> Option<bool> {
    /// No request of HTTP/1 begins so: the method is kept for this (RFC 9113 section 11.5).
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
            // What is wrong with it is said where the rest of the head is read.
            _ => return false,
        }
    }
}

/// Waits, without a buffer and without a hold on the listener's tables, for the first bytes of a request; false when it is time to close.
async fn wait_for_request(worker: &Worker, active: &ActiveListener, downstream: &mut Downstream) -> bool {
    downstream.input = Buffer::none();
    let is_first = downstream.requests == 0;
    let patience = match &active.view().plan.policy.protocol {
        Protocol::Http(http) if is_first => http.limits.header_timeout,
        Protocol::Http(http) => http.limits.idle_timeout,
        Protocol::Tcp(_) | Protocol::TlsPassthrough(_) => return false,
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
        // A drain that began while we waited interrupts the timer: the client gets a little longer, then we close.
        if is_ending {
            return false;
        }
        if clock::now_ms() >= deadline_ms {
            active.view().count(if is_first { Reason::HeaderTimeout } else { Reason::IdleTimeout });
            return false;
        }
    }
}

/// Reads the first bytes of a request, or of a connection, into `input`; false where the client ended the connection instead.
pub(crate) async fn first_bytes<S: Readable>(stream: &mut S, input: &mut Buffer) -> bool {
    let mut was_asked = false;
    poll_fn(|cx| {
        // Asked once, and then nearly always woken since there is something: that it can be read is told by reading.
        if !was_asked {
            was_asked = true;
            if ready!(stream.poll_readable(cx)).is_err() {
                return Poll::Ready(false);
            }
        }
        *input = Buffer::small();
        let read = input.poll_fill(cx, stream);
        if read.is_pending() {
            // The runtime takes a new socket for readable until it is tried: without this a silent client would hold a buffer.
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

/// What can be asked whether it has something to read before there is a buffer to read it into.
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

/// The timer says how long the client may take: within TLS there is something to write, for which a client that does not read leaves no room.
async fn close(downstream: &mut Downstream) {
    let Downstream { stream, timer, .. } = downstream;
    // Fails only where the client is gone already.
    let _ = timer.guard(stream.shutdown()).await;
}

/// Ends our side, for as long as the timer says, and reads on for a while: closing with unread bytes makes the kernel send a reset, which can
/// overtake the answer.
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
            // Its end, or too long: in any case the connection ends here.
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
        // All of them at once are what idle clients cost. Grown on purpose? Then say so here.
        assert!(size(serve) <= 544, "{}", size(serve));
    }
}

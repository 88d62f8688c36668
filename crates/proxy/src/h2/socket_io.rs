//! The socket of a connection: reads what arrives, and writes the output of the streams.

use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use net::buffer::{self, Buffer, LARGE_BYTES, SMALL_BYTES};
use net::memory::{self, Pressure};
use tokio::io::AsyncWrite;
use wire::h2;

use super::connection::{ConnectionHandler, SharedConnection};
use crate::stream::Stream;

/// Bytes read and written in one turn before other connections of the worker get theirs.
const TURN_BYTES_MAX: usize = 256 * 1024;

/// DATA that a client's connection may hold for its exchanges and still be read while memory is short: as much as one stream may hold.
const HELD_BYTES_MAX: usize = super::STREAM_WINDOW_BYTES as usize;

/// The same while memory is full. It is as much as a connection of HTTP/1 holds, and enough for an upload to go on, piece by piece.
const HELD_BYTES_MAX_FULL: usize = SMALL_BYTES;

/// How long a connection is not read for want of memory before it is looked at again, in milliseconds.
pub(crate) const PAUSE_MS: u64 = 100;

/// Reads and writes for one connection.
pub(crate) struct SocketIo {
    pub(crate) stream: Stream,
    pub(crate) connection: Rc<SharedConnection>,
    /// Something was written that the stream may still hold.
    is_unflushed: bool,
    /// The last read filled its buffer: the next one gets a larger.
    is_bulk: bool,
    /// It has more to do, behind others.
    wants_turn: bool,
    /// Since when there is output that nobody takes, in milliseconds.
    pub(crate) stalled_since_ms: Option<u64>,
    /// When the last bytes came, or the connection, in milliseconds.
    pub(crate) received_ms: u64,
}

/// DATA that a client's connection may hold and still be read.
fn held_bytes_max(pressure: Pressure) -> usize {
    match pressure {
        // Its window bounds it.
        Pressure::Low => usize::MAX,
        Pressure::High => HELD_BYTES_MAX,
        Pressure::Full => HELD_BYTES_MAX_FULL,
    }
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Either side went away, and no stream is left.
    Done,
    /// The other side closed it.
    Gone,
    /// It failed.
    Lost(io::Error),
    /// The other side has not answered a PING.
    Silent,
    /// The other side broke the protocol: GOAWAY is in the output.
    Broken(h2::Error),
}

impl SocketIo {
    pub(crate) fn new(stream: Stream, connection: Rc<SharedConnection>, now_ms: u64) -> Self {
        Self {
            stream,
            connection,
            is_unflushed: false,
            is_bulk: false,
            wants_turn: false,
            stalled_since_ms: None,
            received_ms: now_ms,
        }
    }

    /// Does what can be done. Pending: there is nothing to write, or no room for it, and nothing to read.
    ///
    /// Answers to what was read are written behind the exchanges that it woke, so that what they say goes out with them: where the owner runs
    /// them itself, in the same turn; where other tasks do, in the next.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        now_ms: u64,
        handler: &mut impl ConnectionHandler,
    ) -> Poll<End> {
        self.connection.begin_poll(cx);
        let polled = self.poll_turn(cx, now_ms, handler);
        self.connection.end_poll();
        handler.end_poll(cx);
        if std::mem::take(&mut self.wants_turn) {
            self.connection.wake_task();
        } else if polled.is_pending() {
            debug_assert!(!self.connection.wire.borrow().has_news(), "a stream may go on, and is not told");
        }
        polled
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>, now_ms: u64, handler: &mut impl ConnectionHandler) -> Poll<End> {
        let mut turn = 0;
        let mut buffer = Buffer::none();
        loop {
            let runs_exchanges = handler.run(cx);
            let written = match self.poll_write(cx, now_ms) {
                Err(error) => return Poll::Ready(End::Lost(error)),
                Ok(written) => written,
            };
            if self.is_done() {
                return Poll::Ready(End::Done);
            }
            turn += written;
            // Streams that waited for the output to be written are resumed before the turn may end: nothing else would wake their exchanges.
            let has_news = written > 0
                && match self.connection.handle(now_ms, &[], handler) {
                    Err(error) => return Poll::Ready(End::Broken(error)),
                    Ok(has_news) => has_news,
                };
            if turn >= TURN_BYTES_MAX {
                self.wants_turn = true;
                return Poll::Pending;
            }
            if has_news && runs_exchanges {
                continue;
            }
            let pressure = memory::pressure();
            if runs_exchanges && self.connection.pause(held_bytes_max(pressure)) {
                // Its end would be read behind what is not read now, and all that it holds would be held for nobody.
                if self.stream.tcp().is_some_and(net::socket::has_ended) {
                    return Poll::Ready(End::Gone);
                }
                // Nothing that it says meanwhile is heard, which is not its silence.
                self.received_ms = now_ms;
                return Poll::Pending;
            }
            if buffer.capacity() == 0 {
                let is_large = self.is_bulk && pressure == Pressure::Low;
                buffer = Buffer::of_bytes(if is_large { LARGE_BYTES } else { buffer::piece_bytes() });
            }
            match buffer.poll_fill(cx, &mut self.stream) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Gone),
                Poll::Ready(Err(error)) => return Poll::Ready(End::Lost(error)),
                Poll::Ready(Ok(count)) => turn += count,
            }
            self.received_ms = now_ms;
            self.is_bulk = buffer.is_full() || (self.is_bulk && buffer.len() > SMALL_BYTES);
            if let Err(error) = self.connection.handle(now_ms, buffer.filled(), handler) {
                return Poll::Ready(End::Broken(error));
            }
            buffer.consume(usize::MAX);
            if !runs_exchanges && !self.connection.wire.borrow().output().is_empty() {
                self.wants_turn = true;
                return Poll::Pending;
            }
        }
    }

    /// Whether nothing is read, because the connection holds much and memory is short. Then [`SocketIo::poll`] is to be called again after
    /// [`PAUSE_MS`]: nothing else may tell that there is memory again.
    pub(crate) fn is_paused(&self) -> bool {
        self.connection.is_paused()
    }

    /// Writes what there is. Gives how many bytes of it went out.
    fn poll_write(&mut self, cx: &mut Context<'_>, now_ms: u64) -> io::Result<usize> {
        let mut written = 0;
        loop {
            let mut wire = self.connection.wire.borrow_mut();
            if wire.output().is_empty() {
                break;
            }
            match Pin::new(&mut self.stream).poll_write(cx, wire.output()) {
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    wire.consume_output(count);
                    written += count;
                }
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => {
                    drop(wire);
                    let since = if written > 0 { now_ms } else { self.stalled_since_ms.unwrap_or(now_ms) };
                    self.stalled_since_ms = Some(since);
                    return Ok(written);
                }
            }
            self.is_unflushed |= self.stream.plain().is_none();
        }
        if self.is_unflushed {
            match Pin::new(&mut self.stream).poll_flush(cx) {
                Poll::Ready(flushed) => {
                    flushed?;
                    self.is_unflushed = false;
                }
                Poll::Pending => {
                    self.stalled_since_ms.get_or_insert(now_ms);
                    return Ok(written);
                }
            }
        }
        self.stalled_since_ms = None;
        Ok(written)
    }

    /// No stream is left and none will come, and all was written.
    fn is_done(&self) -> bool {
        let wire = self.connection.wire.borrow();
        wire.is_done() && wire.output().is_empty() && !self.is_unflushed
    }

    /// Writes the last words: GOAWAY.
    ///
    /// # Errors
    /// The other side does not take them.
    pub(crate) fn poll_last_words(&mut self, cx: &mut Context<'_>, now_ms: u64) -> Poll<io::Result<()>> {
        self.poll_write(cx, now_ms)?;
        if self.stalled_since_ms.is_some() {
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        Poll::Ready(Ok(()))
    }
}

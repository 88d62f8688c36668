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

/// DATA that a client's connection may hold for its exchanges and still be read while memory is short. It is as much as one stream may
/// hold.
const HELD_BYTES_MAX: usize = super::STREAM_WINDOW_BYTES as usize;

/// The same while memory is full. It is as much as an HTTP/1 connection holds, and enough for an upload to continue piece by piece.
const HELD_BYTES_MAX_FULL: usize = SMALL_BYTES;

/// How long a connection that is not read for lack of memory waits until the next check, in milliseconds.
pub(crate) const PAUSE_MS: u64 = 100;

/// Reads and writes for one connection.
pub(crate) struct SocketIo {
    pub(crate) stream: Stream,
    pub(crate) connection: Rc<SharedConnection>,
    /// The stream may still hold bytes that were written to it.
    is_unflushed: bool,
    /// The last read filled its buffer, so the next one gets a larger buffer.
    is_bulk: bool,
    /// It has more to do, after other connections had their turn.
    wants_turn: bool,
    /// Since when nothing takes the output, in milliseconds.
    pub(crate) stalled_since_ms: Option<u64>,
    /// When the last bytes arrived, or the connection itself, in milliseconds.
    pub(crate) received_ms: u64,
}

/// DATA that a client's connection may hold and still be read.
fn held_bytes_max(pressure: Pressure) -> usize {
    match pressure {
        // The window is the limit.
        Pressure::Low => usize::MAX,
        Pressure::High => HELD_BYTES_MAX,
        Pressure::Full => HELD_BYTES_MAX_FULL,
    }
}

/// How a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// Either side shut down, and no stream is left.
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

    /// Does everything that is possible now. Pending: there is nothing to write or no room for it, and nothing to read.
    ///
    /// Answers to what was read are written after the exchanges that it woke have run, so that their output goes out in the same write. If
    /// the owner runs them itself, that happens in this turn; if other tasks do, in the next.
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
            debug_assert!(!self.connection.wire.borrow().has_news(), "a stream can continue and was not resumed");
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
                // A FIN comes after the bytes that are not read now, so a read would not find it, and the DATA would be held for a client
                // that has left.
                if self.stream.tcp().is_some_and(net::socket::has_ended) {
                    return Poll::Ready(End::Gone);
                }
                // Nothing is read meanwhile, so the other side must not count as silent.
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

    /// Whether nothing is read, because the connection holds much and memory is short. The caller must call [`SocketIo::poll`] again after
    /// [`PAUSE_MS`], because nothing else may signal that memory is available again.
    pub(crate) fn is_paused(&self) -> bool {
        self.connection.is_paused()
    }

    /// Writes the pending output. Returns how many bytes were written.
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

    /// Whether no stream is left, none will come, and everything was written.
    fn is_done(&self) -> bool {
        let wire = self.connection.wire.borrow();
        wire.is_done() && wire.output().is_empty() && !self.is_unflushed
    }

    /// Writes the last output, which ends with GOAWAY.
    ///
    /// # Errors
    /// The other side does not take it.
    pub(crate) fn poll_last_words(&mut self, cx: &mut Context<'_>, now_ms: u64) -> Poll<io::Result<()>> {
        self.poll_write(cx, now_ms)?;
        if self.stalled_since_ms.is_some() {
            return Poll::Pending;
        }
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        Poll::Ready(Ok(()))
    }
}

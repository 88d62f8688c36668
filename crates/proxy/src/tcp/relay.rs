//! Relays bytes in both directions until both sides have ended: TCP connections, and tunnels after 101.
//!
//! An idle direction holds no buffer. A direction is treated as bulk after a read that fills its buffer: from then on the kernel moves its
//! bytes, from socket to pipe to socket (splice(2)), until it becomes quiet again. docs/design/2026-11-21-relay.md has the gain, and the
//! reason for not doing so from the first byte.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use net::buffer::{self, Buffer, LARGE_BYTES, SMALL_BYTES};
use net::clock;
use net::memory::{self, Pressure};
use net::splice::Pipe;
use net::timer::Timer;
use telemetry::Reason;
use tokio::io::AsyncWrite;

use crate::error::Error;
use crate::stream::Stream;
use crate::upstream::closing::Unhealthy;

/// Bytes that one poll moves in one direction before other connections of the worker get their turn.
const TURN_BYTES_MAX: u64 = 1024 * 1024;

/// One end of a relay, with the bytes that were read from it before the relay began.
pub(crate) struct End<'s> {
    pub(crate) stream: &'s mut Stream,
    pub(crate) input: Buffer,
}

/// How much a relay has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes from the client to the endpoint.
    pub(crate) upstream: u64,
    /// Bytes from the endpoint to the client.
    pub(crate) downstream: u64,
}

/// Relays until both sides have ended. The end of one side is passed on to the other, which may continue (half-close).
///
/// # Errors
/// [`Reason::EndpointUnhealthy`]; [`Reason::TunnelIdle`] after `idle_timeout_ms` without a byte in either direction; [`Reason::ClientReset`] and [`Reason::UpstreamReset`]
/// when a connection fails. `moved` is correct in any case. `client_ended` is called once the client has ended its side.
pub(crate) async fn run(
    downstream: End<'_>,
    upstream: End<'_>,
    timer: &Timer,
    idle_timeout_ms: u64,
    moved: &mut Moved,
    mut unhealthy: Unhealthy,
    client_ended: impl FnOnce(),
) -> Result<(), Error> {
    let (client, endpoint) = (downstream.stream, upstream.stream);
    let can_splice = client.plain().is_some() && endpoint.plain().is_some();
    let mut request = Direction::new(downstream.input, can_splice);
    let mut response = Direction::new(upstream.input, can_splice);
    timer.set(clock::now_ms().saturating_add(idle_timeout_ms));
    let (mut seen, mut client_ended) = (0, Some(client_ended));
    let outcome = std::future::poll_fn(|cx| {
        let up = request.poll(cx, client, endpoint);
        if request.state != State::Open
            && let Some(client_ended) = client_ended.take()
        {
            client_ended();
        }
        let down = response.poll(cx, endpoint, client);
        match (up, down) {
            (Poll::Ready(Err(Failure::Read(error))), _) | (_, Poll::Ready(Err(Failure::Write(error)))) => {
                return Poll::Ready(Err(Error::client_io(error)));
            }
            (Poll::Ready(Err(Failure::Write(error))), _) | (_, Poll::Ready(Err(Failure::Read(error)))) => {
                return Poll::Ready(Err(Error::endpoint_io(error)));
            }
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => return Poll::Ready(Ok(())),
            _ => {}
        }
        if request.moved + response.moved != seen {
            seen = request.moved + response.moved;
            timer.set(clock::now_ms().saturating_add(idle_timeout_ms));
        }
        if unhealthy.poll(cx).is_ready() {
            return Poll::Ready(Err(Error::internal(Reason::EndpointUnhealthy)));
        }
        timer.poll_elapsed(cx).map(|()| Err(Error::internal(Reason::TunnelIdle)))
    })
    .await;
    *moved = Moved { upstream: request.moved, downstream: response.moved };
    outcome
}

enum Failure {
    Read(io::Error),
    Write(io::Error),
}

/// One direction.
struct Direction {
    input: Buffer,
    /// Present while the direction is bulk.
    pipe: Option<Pipe>,
    moved: u64,
    /// Bytes read since the reader had none.
    turn_bytes: usize,
    state: State,
    mode: Mode,
    /// Both sides are plain text.
    can_splice: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The reader has ended, and the writer must be ended.
    Ending,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Reads fit in a small buffer: messages.
    Interactive,
    /// A read filled its buffer, and since then more than a small buffer arrived at a time, so the kernel moves the bytes (splice).
    Bulk,
    /// Bulk as well, but this process can get no pipe or one side uses TLS, so the bytes go through large buffers.
    BulkWithoutPipe,
}

impl Direction {
    fn new(input: Buffer, can_splice: bool) -> Self {
        Self { input, pipe: None, moved: 0, turn_bytes: 0, state: State::Open, mode: Mode::Interactive, can_splice }
    }

    fn poll(&mut self, cx: &mut Context<'_>, reader: &mut Stream, writer: &mut Stream) -> Poll<Result<(), Failure>> {
        let turn_end = self.moved + TURN_BYTES_MAX;
        loop {
            ready!(self.poll_write(cx, writer)).map_err(Failure::Write)?;
            match self.state {
                State::Open if self.moved >= turn_end => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                State::Open => match self.poll_read(cx, reader) {
                    Poll::Ready(Ok(0)) => {
                        self.input = Buffer::none();
                        self.pipe = None;
                        self.state = State::Ending;
                    }
                    Poll::Ready(Ok(count)) => self.turn_bytes += count,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Read(error))),
                    Poll::Pending => {
                        self.rest();
                        return Poll::Pending;
                    }
                },
                State::Ending => {
                    ready!(Pin::new(&mut *writer).poll_shutdown(cx)).map_err(Failure::Write)?;
                    self.state = State::Ended;
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    /// Notes that nothing is left to read and everything that was read is written.
    fn rest(&mut self) {
        if self.turn_bytes > 0 && self.turn_bytes <= SMALL_BYTES {
            // Give the pipe back, so that a stream with only small messages uses no descriptors for it.
            (self.pipe, self.mode) = (None, Mode::Interactive);
        }
        self.turn_bytes = 0;
    }

    /// Passes on everything that was read.
    fn poll_write(&mut self, cx: &mut Context<'_>, writer: &mut Stream) -> Poll<io::Result<()>> {
        while !self.input.is_empty() {
            let count = ready!(Pin::new(&mut *writer).poll_write(cx, self.input.filled()))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.input.consume(count);
            self.moved += count as u64;
        }
        if let (Some(pipe), Some(socket)) = (&mut self.pipe, writer.plain()) {
            // There is a pipe only if neither socket is read or written in another way, because the kernel moves bytes from socket to
            // socket.
            while !pipe.is_empty() {
                self.moved += ready!(pipe.poll_drain(cx, socket))? as u64;
            }
            if self.mode != Mode::Bulk {
                self.pipe = None;
            }
        }
        Pin::new(writer).poll_flush(cx)
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, reader: &mut Stream) -> Poll<io::Result<usize>> {
        if self.mode == Mode::Bulk {
            return self.poll_splice(cx, reader);
        }
        if self.input.capacity() == 0 {
            // Check first, so that a waiting direction holds no buffer.
            ready!(reader.poll_read_ready(cx))?;
            let is_large = self.mode != Mode::Interactive && memory::pressure() == Pressure::Low;
            self.input = Buffer::of_bytes(if is_large { LARGE_BYTES } else { buffer::piece_bytes() });
        }
        match self.input.poll_fill(cx, reader) {
            Poll::Ready(Ok(count)) => {
                self.mode = match self.mode {
                    Mode::Interactive if self.input.is_full() && self.can_splice => Mode::Bulk,
                    Mode::Interactive if self.input.is_full() => Mode::BulkWithoutPipe,
                    mode => mode,
                };
                Poll::Ready(Ok(count))
            }
            Poll::Pending => {
                self.input = Buffer::none();
                Poll::Pending
            }
            failed => failed,
        }
    }

    /// Moves bytes from the socket into the pipe. `poll_write` moves them out of it.
    fn poll_splice(&mut self, cx: &mut Context<'_>, reader: &Stream) -> Poll<io::Result<usize>> {
        self.input = Buffer::none();
        if self.pipe.is_none() {
            self.pipe =
                Pipe::new().inspect_err(|error| tracing::debug!(%error, "cannot create a pipe for a stream")).ok();
        }
        let (Some(pipe), Some(socket)) = (&mut self.pipe, reader.plain()) else {
            // This is no wait, so the bytes read so far do not count for the new mode.
            (self.mode, self.turn_bytes) = (Mode::BulkWithoutPipe, 0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        let Some(count) = ready!(pipe.poll_fill(cx, socket, usize::MAX))? else {
            (self.pipe, self.mode) = (None, Mode::Interactive);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests {
    use net::timer::Timers;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// Bytes that differ everywhere, so that a lost, repeated or moved byte is noticed.
    fn text(length: u32) -> Vec<u8> {
        (0..length).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
    }

    /// Sends `up` and `down` through a relay at the same time, in pieces of `piece`. Both must arrive and be counted.
    async fn check(up: &[u8], down: &[u8], piece: usize) {
        let ((mut client, from), (to, mut endpoint)) = (pair().await, pair().await);
        let (mut from, mut to) = (Stream::Plain(from), Stream::Plain(to));
        let timers = Timers::default();
        let timer = Timer::new(&timers);
        let mut moved = Moved::default();
        let relay = async {
            let ends =
                (End { stream: &mut from, input: Buffer::none() }, End { stream: &mut to, input: Buffer::none() });
            run(ends.0, ends.1, &timer, 60_000, &mut moved, Unhealthy::default(), || ()).await.unwrap();
        };
        let ((), sent, got) = tokio::join!(relay, talk(&mut endpoint, down, piece), talk(&mut client, up, piece));
        assert!(sent == up && got == down, "{} up, {} down, in pieces of {piece}", up.len(), down.len());
        assert_eq!(moved, Moved { upstream: up.len() as u64, downstream: down.len() as u64 });
    }

    /// Sends all of `words`, ends its side, and reads the other side to its end.
    async fn talk(stream: &mut TcpStream, words: &[u8], piece: usize) -> Vec<u8> {
        let (mut reader, mut writer) = stream.split();
        let say = async {
            for piece in words.chunks(piece) {
                writer.write_all(piece).await.unwrap();
            }
            writer.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        let (outcome, ()) = tokio::join!(reader.read_to_end(&mut heard), say);
        outcome.unwrap();
        heard
    }

    #[tokio::test]
    async fn the_end_of_the_client_is_told_before_the_endpoint_ends() {
        let ((client, from), (to, mut endpoint)) = (pair().await, pair().await);
        let (mut from, mut to) = (Stream::Plain(from), Stream::Plain(to));
        let timers = Timers::default();
        let timer = Timer::new(&timers);
        let (mut moved, has_ended) = (Moved::default(), std::cell::Cell::new(false));
        let relay = async {
            let ends =
                (End { stream: &mut from, input: Buffer::none() }, End { stream: &mut to, input: Buffer::none() });
            run(ends.0, ends.1, &timer, 60_000, &mut moved, Unhealthy::default(), || has_ended.set(true))
                .await
                .unwrap();
        };
        let talk = async {
            let mut client = client;
            endpoint.write_all(b"!").await.unwrap();
            client.read_u8().await.unwrap();
            assert!(!has_ended.get());
            drop(client);
            assert_eq!(endpoint.read(&mut [0]).await.unwrap(), 0);
            assert!(has_ended.get());
            drop(endpoint);
        };
        tokio::join!(relay, talk);
    }

    #[tokio::test]
    async fn all_arrives_at_any_pace() {
        check(b"", b"", 1).await;
        check(b"hello", b"", 1).await;
        check(&text(3_000_000), &text(10), 1_000_000).await;
        check(&text(100_000), &text(5_000_000), 20_000).await;
        check(&text(1_000_000), &text(1_000_000), 700).await;
    }
}

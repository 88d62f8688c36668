//! Bytes both ways until both sides have said all: TCP connections, and tunnels after 101.
//!
//! A direction that is idle holds no buffer. One that fills its buffer time after time has shown itself to be bulk, and gets a large
//! buffer: fewer, larger system calls. See docs/design for what splice(2) did instead.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use net::buffer::{Buffer, LARGE_BYTES, SMALL_BYTES};
use net::clock;
use net::timer::Timer;
use telemetry::Reason;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::error::Error;

/// Bytes that one poll moves in one direction before other connections of the worker get their turn.
const TURN_BYTES_MAX: usize = 1024 * 1024;

/// One end of a relay, with what was read from it before the relay began.
pub(crate) struct End<'s> {
    pub(crate) stream: &'s mut TcpStream,
    pub(crate) input: Buffer,
}

/// What a relay moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes from the client to the endpoint.
    pub(crate) upstream: u64,
    /// Bytes from the endpoint to the client.
    pub(crate) downstream: u64,
}

/// Relays until both sides have ended. The end of one side is passed on to the other, which may go on (half-close).
///
/// # Errors
/// [`Reason::TunnelIdle`] after `idle_timeout_ms` without a byte in either direction; [`Reason::ClientReset`] and
/// [`Reason::UpstreamReset`] when a connection fails. `moved` is right in any case.
pub(crate) async fn run(
    downstream: End<'_>,
    upstream: End<'_>,
    timer: &Timer,
    idle_timeout_ms: u64,
    moved: &mut Moved,
) -> Result<(), Error> {
    let (mut down_reader, mut down_writer) = downstream.stream.split();
    let (mut up_reader, mut up_writer) = upstream.stream.split();
    let mut request = Direction::new(downstream.input);
    let mut response = Direction::new(upstream.input);
    timer.set(clock::now_ms().saturating_add(idle_timeout_ms));
    let mut seen = 0;
    let outcome = std::future::poll_fn(|cx| {
        let up = request.poll(cx, &mut down_reader, &mut up_writer);
        let down = response.poll(cx, &mut up_reader, &mut down_writer);
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
    moved: u64,
    state: State,
    /// The last read filled its buffer.
    is_bulk: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// The reader has ended, and the writer is to be told.
    Ending,
    Ended,
}

impl Direction {
    fn new(input: Buffer) -> Self {
        Self { input, moved: 0, state: State::Open, is_bulk: false }
    }

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut ReadHalf<'_>,
        writer: &mut WriteHalf<'_>,
    ) -> Poll<Result<(), Failure>> {
        let mut turn = 0;
        loop {
            while !self.input.is_empty() {
                let count =
                    ready!(Pin::new(&mut *writer).poll_write(cx, self.input.filled())).map_err(Failure::Write)?;
                if count == 0 {
                    return Poll::Ready(Err(Failure::Write(io::ErrorKind::WriteZero.into())));
                }
                self.input.consume(count);
                self.moved += count as u64;
                turn += count;
            }
            match self.state {
                State::Open if turn >= TURN_BYTES_MAX => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                State::Open => ready!(self.poll_read(cx, reader))?,
                State::Ending => {
                    ready!(Pin::new(&mut *writer).poll_shutdown(cx)).map_err(Failure::Write)?;
                    self.state = State::Ended;
                }
                State::Ended => return Poll::Ready(Ok(())),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, reader: &mut ReadHalf<'_>) -> Poll<Result<(), Failure>> {
        if self.input.capacity() == 0 {
            // Asked first, so that a direction that waits holds no buffer.
            ready!(reader.as_ref().poll_read_ready(cx)).map_err(Failure::Read)?;
            self.input = if self.is_bulk { Buffer::large() } else { Buffer::small() };
        }
        match self.input.poll_fill(cx, reader) {
            Poll::Ready(Ok(0)) => {
                self.input = Buffer::none();
                self.state = State::Ending;
            }
            Poll::Ready(Ok(count)) => {
                self.is_bulk = self.input.is_full() || (self.is_bulk && count > SMALL_BYTES);
                if self.is_bulk && self.input.capacity() < LARGE_BYTES {
                    self.input.grow(LARGE_BYTES);
                }
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Read(error))),
            Poll::Pending => {
                self.input = Buffer::none();
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }
}

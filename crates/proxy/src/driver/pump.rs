//! Moves a [`Transfer`] between two connections: reads, writes, and reports the results.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use net::buffer::{self, Buffer, LARGE_BYTES, SMALL_BYTES};
use net::clock;
use net::memory::{self, Pressure};
use tokio::io::AsyncWrite;

use net::splice::Pipe;

use super::pace::Pace;
use crate::compression::turn::{self, Ticket};
use crate::exchange::transfer::{Transfer, TransferStep};
use crate::exchange::{HeldBody, TransferError};
use crate::stream::Stream;

/// Bytes that one poll moves before other connections of the worker get their turn.
const TURN_BYTES_MAX: usize = 1024 * 1024;

/// Bytes of a body that are held back in one poll, before the same. They are copied, and memory is made for them.
const HOLD_TURN_BYTES_MAX: usize = 256 * 1024;

/// Large buffers that a worker uses for bodies at once: 1 MiB. While this many wait for slow receivers, all bodies are read in small
/// pieces.
const LARGE_IN_USE_MAX: usize = 4;

/// A large piece is read if the receiver's send buffer has at least this much room. The kernel counts queued bytes with its own overhead,
/// which can be as much again.
const BULK_ROOM_BYTES: usize = 2 * LARGE_BYTES;

/// Moving fewer bytes than this through a pipe costs more than copying them.
const PIPED_BYTES_MIN: usize = 2 * SMALL_BYTES;

/// What one direction of an exchange has of the worker while it moves.
#[derive(Default)]
pub(super) struct Lane {
    /// The pipe for the body, if the kernel moves it.
    pub(super) pipe: Option<Pipe>,
    /// The place in the queue for compression, or for decompression.
    ticket: Ticket,
    /// Set if a bandwidth is limited in this direction: that of the client, or of the response.
    pub(super) pace: Option<Box<Pace>>,
}

impl Lane {
    /// Whether it waits for a bandwidth, and reads nothing until then.
    pub(super) fn is_paced(&self) -> bool {
        self.waits_until_ms().is_some()
    }

    /// Until when it waits for a bandwidth, in milliseconds; `None` if it does not.
    pub(super) fn waits_until_ms(&self) -> Option<u64> {
        self.pace.as_ref()?.waits_until_ms()
    }
}

/// Moves as much as possible now. `input` belongs to the reader, and may hold bytes of the body followed by bytes of the next message.
///
/// # Errors
/// The message cannot be completed.
pub(super) fn poll(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &mut Stream,
    input: &mut Buffer,
    writer: &mut Stream,
    lane: &mut Lane,
) -> Poll<Result<(), TransferError>> {
    let polled = poll_turn(cx, transfer, reader, input, writer, lane);
    let Lane { pipe, .. } = lane;
    if polled.is_ready() {
        // The other direction may continue for a long time.
        *pipe = None;
    } else {
        // Either side may be slow now.
        input.fit();
        transfer.rest();
        if !transfer.is_bulk() && pipe.as_ref().is_some_and(Pipe::is_empty) {
            // A body that only trickles now uses no descriptors.
            *pipe = None;
        }
    }
    polled
}

fn poll_turn(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &mut Stream,
    input: &mut Buffer,
    writer: &mut Stream,
    lane: &mut Lane,
) -> Poll<Result<(), TransferError>> {
    let mut turn = 0;
    note_stream_end(transfer, reader);
    if let Some(pace) = &mut lane.pace {
        ready!(pace.poll(cx));
    }
    loop {
        let moved = poll_step(cx, transfer, input, writer, lane);
        turn += release(transfer, reader);
        if let Some(pace) = &mut lane.pace {
            pace.note(transfer);
        }
        match ready!(moved)? {
            Moved::Written => {}
            Moved::Drained(count) => turn += count,
            Moved::Done => return Poll::Ready(Ok(())),
            Moved::Starved | Moved::Emptied(_) if turn >= TURN_BYTES_MAX => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Moved::Starved => match poll_paced_read(cx, transfer, reader, input, writer, lane) {
                Poll::Ready(read) => read?,
                Poll::Pending if transfer.handle_pause() => {}
                Poll::Pending => return Poll::Pending,
            },
            Moved::Emptied(bytes_max) => match splice_bytes(writer, lane.pipe.as_mut()) {
                0 => ready!(poll_read(cx, transfer, reader, input, |transfer| read_bytes(transfer, writer)))?,
                bytes => ready!(poll_fill_pipe(cx, transfer, reader, input, &mut lane.pipe, bytes_max.min(bytes)))?,
            },
        }
    }
}

/// Reads as [`poll_read`] does, once the bandwidth allows more.
fn poll_paced_read(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &mut Stream,
    input: &mut Buffer,
    writer: &Stream,
    lane: &mut Lane,
) -> Poll<Result<(), TransferError>> {
    let Some(pace) = &mut lane.pace else {
        return poll_read(cx, transfer, reader, input, |transfer| read_bytes(transfer, writer));
    };
    ready!(pace.poll(cx));
    // In small pieces: what is read is written without a wait.
    poll_read(cx, transfer, reader, input, |_| pace.piece_bytes())
}

/// Writes the part of a message that is already read.
///
/// # Errors
/// The receiver's connection failed.
pub(crate) fn poll_write(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    writer: &mut Stream,
) -> Poll<Result<(), TransferError>> {
    let mut input = Buffer::none();
    while ready!(poll_step(cx, transfer, &mut input, writer, &mut Lane::default()))? != Moved::Done {}
    Poll::Ready(Ok(()))
}

/// Reads more of a message into `held`, which gets somewhat more than `bytes_max` bytes at most. Returns whether that was all of it, or
/// `None` if more may come: either nothing is there now, or other connections of the worker should get their turn.
///
/// # Errors
/// The message cannot be completed.
pub(crate) fn poll_hold(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &mut Stream,
    input: &mut Buffer,
    (held, bytes_max): (&mut Vec<u8>, usize),
    lane: &mut Lane,
) -> Poll<Result<Option<bool>, TransferError>> {
    note_stream_end(transfer, reader);
    let before = held.len();
    loop {
        if held.len().saturating_sub(before) >= HOLD_TURN_BYTES_MAX {
            return Poll::Ready(Ok(None));
        }
        if held.len() > bytes_max {
            return Poll::Ready(Ok(Some(false)));
        }
        match transfer.next(input)? {
            TransferStep::Write { bytes, .. } => {
                HeldBody::add(held, bytes);
                let count = bytes.len();
                transfer.handle_written(count, false, clock::now_us);
            }
            TransferStep::Forward { count, ends } => {
                HeldBody::add(held, input.filled().get(..count).unwrap_or_default());
                transfer.handle_forwarded(count, (count, ends), false, input)?;
            }
            TransferStep::WriteAndForward { bytes, count } => {
                HeldBody::add(held, bytes);
                HeldBody::add(held, input.filled().get(..count).unwrap_or_default());
                let written = bytes.len() + count;
                transfer.handle_written_and_forwarded(written, count, false, input, clock::now_us)?;
            }
            TransferStep::Read => match poll_held_read(cx, transfer, reader, input, lane) {
                Poll::Ready(read) => read?,
                // The deadline moves.
                Poll::Pending if held.len() > before => return Poll::Ready(Ok(None)),
                Poll::Pending => return Poll::Pending,
            },
            TransferStep::Code if turn::poll(cx, &mut lane.ticket) => {
                turn::note(transfer.code(input, clock::thread_cpu_ns)?);
            }
            // What is there counts before the wait for the next turn.
            TransferStep::Code if held.len() > before => return Poll::Ready(Ok(None)),
            TransferStep::Code => return Poll::Pending,
            TransferStep::Done => return Poll::Ready(Ok(Some(true))),
            TransferStep::SendHead { .. }
            | TransferStep::SendTrailers(_)
            | TransferStep::Flush
            | TransferStep::FillPipe(_)
            | TransferStep::DrainPipe => {
                return Poll::Ready(Err(TransferError::Write(io::ErrorKind::Unsupported.into())));
            }
        }
        release(transfer, reader);
        if let Some(pace) = &mut lane.pace {
            pace.note(transfer);
        }
    }
}

/// As [`poll_paced_read`], for what is held back.
fn poll_held_read(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &mut Stream,
    input: &mut Buffer,
    lane: &mut Lane,
) -> Poll<Result<(), TransferError>> {
    if let Some(pace) = &mut lane.pace {
        ready!(pace.poll(cx));
    }
    poll_read(cx, transfer, reader, input, |_| buffer::piece_bytes())
}

/// Reads a message to its end and discards it.
///
/// # Errors
/// The message cannot be completed.
pub(crate) fn poll_discard(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &mut Stream,
    input: &mut Buffer,
) -> Poll<Result<(), TransferError>> {
    note_stream_end(transfer, reader);
    loop {
        match transfer.next(input)? {
            TransferStep::Write { bytes, .. } => {
                let count = bytes.len();
                transfer.handle_written(count, false, clock::now_us);
            }
            TransferStep::Forward { count, ends } => transfer.handle_forwarded(count, (count, ends), false, input)?,
            TransferStep::WriteAndForward { bytes, count } => {
                let written = bytes.len() + count;
                transfer.handle_written_and_forwarded(written, count, false, input, clock::now_us)?;
            }
            TransferStep::Read => ready!(poll_read(cx, transfer, reader, input, |_| buffer::piece_bytes()))?,
            TransferStep::Done => return Poll::Ready(Ok(())),
            TransferStep::SendHead { .. }
            | TransferStep::SendTrailers(_)
            | TransferStep::Code
            | TransferStep::Flush
            | TransferStep::FillPipe(_)
            | TransferStep::DrainPipe => {
                return Poll::Ready(Err(TransferError::Write(io::ErrorKind::Unsupported.into())));
            }
        }
        release(transfer, reader);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moved {
    /// Something was written.
    Written,
    /// This many bytes of the pipe were written.
    Drained(usize),
    /// Everything that was read is written.
    Starved,
    /// The same, and the kernel should move up to this many bytes.
    Emptied(u64),
    /// Everything is read and written.
    Done,
}

fn poll_step(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    input: &mut Buffer,
    writer: &mut Stream,
    lane: &mut Lane,
) -> Poll<Result<Moved, TransferError>> {
    let failed = TransferError::Write;
    match transfer.next(input)? {
        TransferStep::Write { bytes, ends } => {
            let is_end_alone = bytes.is_empty();
            let count = ready!(write(cx, writer, bytes, ends)).map_err(failed)?;
            if count == 0 && !is_end_alone {
                return Poll::Ready(Err(failed(io::ErrorKind::WriteZero.into())));
            }
            transfer.handle_written(count, writer.is_buffering(), clock::now_us);
        }
        TransferStep::Forward { count, ends } => {
            let now = ready!(poll_piece(cx, lane, count));
            let piece = input.filled().get(..now).unwrap_or_default();
            let written = ready!(write(cx, writer, piece, ends && now == count)).map_err(failed)?;
            if written == 0 {
                return Poll::Ready(Err(failed(io::ErrorKind::WriteZero.into())));
            }
            transfer.handle_forwarded(written, (count, ends), writer.is_buffering(), input)?;
        }
        TransferStep::WriteAndForward { bytes, count } => {
            let now = ready!(poll_piece(cx, lane, count));
            let piece = input.filled().get(..now).unwrap_or_default();
            let both = [IoSlice::new(bytes), IoSlice::new(piece)];
            let written = ready!(Pin::new(&mut *writer).poll_write_vectored(cx, &both)).map_err(failed)?;
            if written == 0 {
                return Poll::Ready(Err(failed(io::ErrorKind::WriteZero.into())));
            }
            transfer.handle_written_and_forwarded(written, count, writer.is_buffering(), input, clock::now_us)?;
        }
        TransferStep::SendHead { head, ends } => {
            let Stream::H2(handle) = writer else { return Poll::Ready(Err(failed(io::ErrorKind::Unsupported.into()))) };
            ready!(handle.poll_send_head(cx, head, ends)).map_err(failed)?;
            transfer.handle_head_sent(ends, clock::now_us);
        }
        TransferStep::SendTrailers(trailers) => {
            let Stream::H2(handle) = writer else { return Poll::Ready(Err(failed(io::ErrorKind::Unsupported.into()))) };
            ready!(handle.poll_send_trailers(cx, trailers)).map_err(failed)?;
            transfer.handle_trailers_sent();
        }
        TransferStep::Code => {
            if !turn::poll(cx, &mut lane.ticket) {
                return Poll::Pending;
            }
            turn::note(transfer.code(input, clock::thread_cpu_ns)?);
        }
        TransferStep::Flush => {
            ready!(Pin::new(writer).poll_flush(cx)).map_err(failed)?;
            transfer.handle_flushed();
        }
        TransferStep::DrainPipe => {
            let (Some(pipe), Some(socket)) = (&mut lane.pipe, writer.plain()) else {
                return Poll::Ready(Err(failed(io::ErrorKind::Unsupported.into())));
            };
            let count = ready!(pipe.poll_drain(cx, socket)).map_err(failed)?;
            transfer.handle_pipe_drained(count);
            return Poll::Ready(Ok(Moved::Drained(count)));
        }
        TransferStep::FillPipe(bytes_max) => return Poll::Ready(Ok(Moved::Emptied(bytes_max))),
        TransferStep::Read => return Poll::Ready(Ok(Moved::Starved)),
        TransferStep::Done => return Poll::Ready(Ok(Moved::Done)),
    }
    Poll::Ready(Ok(Moved::Written))
}

/// Ready when more may move, with how much of these bytes may be sent now.
fn poll_piece(cx: &mut Context<'_>, lane: &mut Lane, count: usize) -> Poll<usize> {
    match &mut lane.pace {
        Some(pace) => pace.poll_piece(cx, count),
        None => Poll::Ready(count),
    }
}

fn write(cx: &mut Context<'_>, writer: &mut Stream, bytes: &[u8], ends: bool) -> Poll<io::Result<usize>> {
    match writer {
        // END_STREAM on the last piece of the body saves a separate frame.
        Stream::H2(handle) => handle.poll_send(cx, bytes, ends),
        writer => Pin::new(writer).poll_write(cx, bytes),
    }
}

/// Makes the kernel move bytes from the reader into the pipe, which is empty. The next step writes them out.
fn poll_fill_pipe(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &Stream,
    input: &mut Buffer,
    pipe: &mut Option<Pipe>,
    bytes_max: u64,
) -> Poll<Result<(), TransferError>> {
    *input = Buffer::none();
    if pipe.is_none() {
        *pipe = Pipe::new().inspect_err(|error| tracing::debug!(%error, "cannot create a pipe for a body")).ok();
    }
    let (Some(open), Some(socket)) = (pipe.as_mut(), reader.plain()) else {
        transfer.set_splice(false);
        return Poll::Ready(Ok(()));
    };
    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    let Some(count) = ready!(open.poll_fill(cx, socket, bytes_max)).map_err(TransferError::Read)? else {
        *pipe = None;
        transfer.set_splice(false);
        return Poll::Ready(Ok(()));
    };
    if count == 0 {
        return Poll::Ready(transfer.handle_closed().map_err(TransferError::Body));
    }
    Poll::Ready(transfer.handle_pipe_filled(count).map_err(TransferError::Body))
}

/// Reads into `input`, which is empty: over HTTP/1 as much as `bytes_max` says.
fn poll_read(
    cx: &mut Context<'_>,
    transfer: &mut Transfer,
    reader: &mut Stream,
    input: &mut Buffer,
    bytes_max: impl FnOnce(&Transfer) -> usize,
) -> Poll<Result<(), TransferError>> {
    if let Stream::H2(handle) = reader {
        if ready!(handle.poll_data(cx, input)).map_err(TransferError::Read)? {
            transfer.handle_read(input.len(), false);
        }
        note_stream_end(transfer, reader);
        return Poll::Ready(Ok(()));
    }
    let bytes = bytes_max(transfer);
    if input.capacity() != bytes {
        *input = Buffer::of_bytes(bytes);
    }
    let count = ready!(input.poll_fill(cx, reader)).map_err(TransferError::Read)?;
    if count == 0 {
        return Poll::Ready(transfer.handle_closed().map_err(TransferError::Body));
    }
    transfer.handle_read(count, input.is_full());
    Poll::Ready(Ok(()))
}

/// Tells the transfer that its sender's stream has ended after the bytes in the input.
fn note_stream_end(transfer: &mut Transfer, reader: &Stream) {
    if !transfer.awaits_stream_end() {
        return;
    }
    if let Stream::H2(handle) = reader
        && handle.has_ended()
        && let Some((fields, bytes)) = transfer.handle_stream_end(handle.has_trailers())
    {
        handle.take_trailers(fields, bytes);
    }
}

/// Lets the sender send as much as was taken of its bytes. Returns how much that was.
fn release(transfer: &mut Transfer, reader: &Stream) -> usize {
    let count = transfer.take_consumed();
    if count > 0 {
        reader.release(count);
    }
    count
}

/// How much the kernel moves at once: half of what the receiver can take now, since anything left would stay in the pipe for as long as the
/// body lasts. 0 means that nothing is moved this way, and the body is read. A pipe is created only for a receiver that takes much at once;
/// once there is one, it serves for less.
fn splice_bytes(writer: &Stream, pipe: Option<&mut Pipe>) -> u64 {
    let Some(receiver) = writer.tcp().filter(|_| memory::pressure() == Pressure::Low) else { return 0 };
    let (room, room_min) = match pipe {
        Some(pipe) => (pipe.room(receiver, PIPED_BYTES_MIN), PIPED_BYTES_MIN),
        None => (net::socket::send_room(receiver).unwrap_or_default() / 2, BULK_ROOM_BYTES / 2),
    };
    if room < room_min { 0 } else { room as u64 }
}

/// How much to read at once. Larger pieces cost less CPU per byte, but a receiver that is slower than the sender would leave most of a
/// piece in its buffer for as long as the body lasts. So a large piece is read only if the receiver can take all of it now. Some may be
/// left all the same, if the kernel is short of memory for sockets, or if an HTTP/2 client opens its windows and does not read; hence the
/// limit. Pieces are small while the process is short of memory, and for one of many streams that can send less (`Handle::piece_bytes`).
fn read_bytes(transfer: &Transfer, writer: &Stream) -> usize {
    if let Stream::H2(handle) = writer {
        let piece_bytes = handle.piece_bytes();
        if piece_bytes < SMALL_BYTES {
            return piece_bytes;
        }
    }
    let is_short = memory::pressure() > Pressure::Low;
    if !transfer.is_bulk() || buffer::large_in_use() >= LARGE_IN_USE_MAX || is_short {
        return buffer::piece_bytes();
    }
    let takes_all = match writer {
        Stream::H2(handle) => handle.send_window() >= LARGE_BYTES,
        writer => writer.tcp().and_then(net::socket::send_room).is_some_and(|room| room >= BULK_ROOM_BYTES),
    };
    if takes_all { LARGE_BYTES } else { SMALL_BYTES }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use wire::message::Body;

    use super::*;
    use crate::exchange::transfer::{Framing, Head};
    use crate::grpc::{self, Call, Translation};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// Sends `bytes` through a pump after the head `H`. Returns what the receiver gets, or how it failed, and what is left unread.
    async fn pump(body: Body, framing: Body, max: Option<u64>, bytes: &[u8]) -> (Result<Vec<u8>, String>, Vec<u8>) {
        let (got, left, _) = pump_call(body, framing, max, None, bytes).await;
        (got, left)
    }

    /// The same for a message that may be one of a call, with the status of the call.
    async fn pump_call(
        body: Body,
        framing: Body,
        max: Option<u64>,
        call: Option<Translation>,
        bytes: &[u8],
    ) -> (Result<Vec<u8>, String>, Vec<u8>, Option<grpc::Status>) {
        let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
        let (mut from, mut to) = (Stream::Plain(from), Stream::Plain(to));
        sender.write_all(bytes).await.unwrap();
        sender.shutdown().await.unwrap();
        let mut transfer = Transfer::default();
        let Head::H1(head) = transfer.start(Framing::H1(body), Framing::H1(framing), max) else {
            unreachable!("not HTTP/1")
        };
        head.push(b'H');
        let is_call = call.is_some();
        if is_call {
            transfer.set_call(call);
        }
        transfer.set_splice(true);
        let (mut input, mut lane) = (Buffer::small(), Lane::default());
        let mut was_piped = false;
        let outcome = poll_fn(|cx| {
            let polled = poll(cx, &mut transfer, &mut from, &mut input, &mut to, &mut lane);
            was_piped |= lane.pipe.is_some();
            polled
        });
        let outcome = outcome.await;
        let is_bulk = !is_call && framing != Body::Chunked && bytes.len() > 1_000_000;
        assert_eq!((was_piped, lane.pipe.is_some()), (is_bulk, false), "{body:?} as {framing:?}");
        drop(to);
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).await.unwrap();
        let left = input.filled().to_vec();
        (outcome.map(|()| got).map_err(|failure| format!("{failure:?}")), left, transfer.grpc_status())
    }

    #[track_caller]
    fn check(body: Body, framing: Body, bytes: &str, expect: Result<&str, &str>, left: &str) {
        check_max(body, framing, None, bytes, expect, left);
    }

    #[track_caller]
    fn check_max(body: Body, framing: Body, max: Option<u64>, bytes: &str, expect: Result<&str, &str>, left: &str) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (got, got_left) = runtime.block_on(pump(body, framing, max, bytes.as_bytes()));
        let got = got.map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(got.as_deref().map_err(String::as_str), expect, "{body:?} as {framing:?}: {bytes}");
        assert_eq!(String::from_utf8(got_left).unwrap(), left);
    }

    #[test]
    fn every_framing_becomes_the_one_asked_for() {
        check(Body::None, Body::None, "next", Ok("H"), "");
        check(Body::Length(5), Body::Length(5), "hellonext", Ok("Hhello"), "next");
        check(Body::UntilClose, Body::UntilClose, "hello", Ok("Hhello"), "");
        check(Body::UntilClose, Body::Chunked, "hello", Ok("H5\r\nhello\r\n0\r\n\r\n"), "");
        check(Body::UntilClose, Body::Chunked, "", Ok("H0\r\n\r\n"), "");
        let chunks = "2;x=y\r\nhe\r\n03\r\nllo\r\n0\r\nA: b\r\nHost: c\r\n\r\nnext";
        check(Body::Chunked, Body::Chunked, chunks, Ok("H2\r\nhe\r\n3\r\nllo\r\n0\r\nA: b\r\n\r\n"), "next");
        check(Body::Chunked, Body::UntilClose, chunks, Ok("Hhello"), "next");
    }

    /// A sender that writes 32 KiB at a time, as nginx does, fills a small buffer and then half a small buffer's worth of pipe.
    #[tokio::test]
    async fn a_pipe_is_kept_while_more_than_a_small_buffer_comes_at_a_time() {
        let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
        let (mut from, mut to) = (Stream::Plain(from), Stream::Plain(to));
        let mut transfer = Transfer::default();
        let body = Body::Length(10_000_000);
        let Head::H1(head) = transfer.start(Framing::H1(body), Framing::H1(body), None) else {
            unreachable!("not HTTP/1")
        };
        head.push(b'H');
        transfer.set_splice(true);
        let (mut input, mut lane) = (Buffer::small(), Lane::default());
        let mut got = vec![0; 2 * SMALL_BYTES];
        for (count, is_kept) in
            [(2 * SMALL_BYTES, true), (2 * SMALL_BYTES, true), (SMALL_BYTES / 2, false), (100, false)]
        {
            sender.write_all(&vec![b'x'; count]).await.unwrap();
            let mut left = count + usize::from(transfer.sent() == 0);
            // The kernel may take a moment to deliver it, and the turn must find all of it.
            while from.plain().unwrap().peek(&mut got).await.unwrap() < count {
                tokio::task::yield_now().await;
            }
            while left > 0 {
                let polled =
                    poll_fn(|cx| Poll::Ready(poll(cx, &mut transfer, &mut from, &mut input, &mut to, &mut lane)));
                assert!(polled.await.is_pending());
                left -= receiver.read(&mut got).await.unwrap();
            }
            assert_eq!(lane.pipe.is_some(), is_kept, "{count}");
        }
    }

    #[test]
    fn a_body_that_does_not_end_well_fails() {
        check(Body::Length(6), Body::Length(6), "hello", Err("Body(Truncated)"), "");
        check(Body::Chunked, Body::Chunked, "5\r\nhel", Err("Body(Truncated)"), "");
        check(Body::Chunked, Body::Chunked, "5\r\nhelloX", Err("Body(Framing)"), "5\r\nhelloX");
        check(Body::Chunked, Body::Chunked, "0\r\nA b\r\n\r\n", Err("Body(Framing)"), "");
        check_max(
            Body::Chunked,
            Body::Chunked,
            Some(4),
            "5\r\nhello\r\n0\r\n\r\n",
            Err("Body(TooLarge)"),
            "5\r\nhello\r\n0\r\n\r\n",
        );
        check_max(Body::Chunked, Body::Chunked, Some(5), "5\r\nhello\r\n0\r\n\r\n", Ok("H5\r\nhello\r\n0\r\n\r\n"), "");
    }

    #[test]
    fn bodies_of_calls_are_translated() {
        let check = |call: Option<Translation>, body, bytes: &str, expect: Result<&str, &str>, status| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (got, _, told) = runtime.block_on(pump_call(body, Body::Chunked, None, call, bytes.as_bytes()));
            let got = got.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            assert_eq!(got.as_deref().map_err(String::as_str), expect, "{bytes}");
            assert_eq!(told, status, "{bytes}");
        };
        let web = |is_text| Call::Web { is_text };
        let decode = || Translation::of_request(web(true));
        check(decode(), Body::Length(12), "Zm9vYg==Zm9v", Ok("H7\r\nfoobfoo\r\n0\r\n\r\n"), None);
        check(decode(), Body::Chunked, "3\r\nZm9\r\n5\r\nvYg==\r\n0\r\n\r\n", Ok("H4\r\nfoob\r\n0\r\n\r\n"), None);
        check(decode(), Body::Length(4), "Zm9-", Err("Body(Framing)"), None);
        check(decode(), Body::Length(3), "Zm9", Err("Body(Framing)"), None);
        let encode = |is_text| Translation::of_response(web(is_text));
        let ended = "2\r\nhi\r\n0\r\nGrpc-Status: 5\r\n\r\n";
        let frame = "14\r\n\u{FFFD}\0\0\0\u{f}grpc-status:5\r\n\r\n0\r\n\r\n";
        let expect = format!("H2\r\nhi\r\n{frame}");
        check(encode(false), Body::Chunked, ended, Ok(&expect), Some(grpc::Status::NotFound));
        let expect = "H20\r\naGk=gAAAAA9ncnBjLXN0YXR1czo1DQo=\r\n0\r\n\r\n";
        check(encode(true), Body::Chunked, ended, Ok(expect), Some(grpc::Status::NotFound));
    }

    #[test]
    fn a_body_leaves_with_its_head_and_is_copied_only_where_that_is_little_or_it_is_kept() {
        // `expect`: how much is written of what was framed here, and of what was read.
        let check = |is_sent_once, length: usize, expect: (usize, usize)| {
            let mut transfer = Transfer::default();
            let body = Framing::H1(Body::Length(1_000_000));
            let Head::H1(head) = transfer.start(body, body, None) else { unreachable!("not HTTP/1") };
            head.extend_from_slice(b"head");
            if is_sent_once {
                transfer.send_once();
            }
            let mut input = Buffer::small();
            input.put(&vec![b'x'; length]);
            let written = match transfer.next(&mut input) {
                Ok(TransferStep::Write { bytes, .. }) => (bytes.len(), 0),
                Ok(TransferStep::WriteAndForward { bytes, count }) => (bytes.len(), count),
                _ => unreachable!("nothing is to be written"),
            };
            assert_eq!(written, expect, "{length} bytes, once: {is_sent_once}");
        };
        check(true, 2048, (4 + 2048, 0));
        check(true, 2049, (4, 2049));
        check(true, SMALL_BYTES, (4, SMALL_BYTES));
        check(false, SMALL_BYTES, (4 + SMALL_BYTES, 0));
    }

    #[test]
    fn large_bodies_arrive_whole() {
        let text = "0123456789abcdef".repeat(100_000);
        let expect = format!("H{text}");
        check(Body::Length(text.len() as u64), Body::Length(1), &text, Ok(&expect), "");
        check(Body::UntilClose, Body::UntilClose, &text, Ok(&expect), "");
    }
}

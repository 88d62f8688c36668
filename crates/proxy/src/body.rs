//! One direction of an exchange: a head, then a body re-framed on the way, with backpressure.
//!
//! A [`Pump`] reads only when what it read before has been written: a slow receiver stops its sender, and memory stays at one small buffer each
//! way whatever the size of the body. From and to a stream of HTTP/2 it is the window that stops: what was read is released to the sender only
//! when the receiver has it.
//!
//! Its length is that of one state machine and the tests of its framings: reading, framing and writing share the state of the message.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use net::buffer::{self, Buffer, LARGE_BYTES, SMALL_BYTES};
use net::memory::{self, Pressure};
use tokio::io::AsyncWrite;
use wire::h1::{self, ChunkedDecoder, Decoded};
use wire::message::{Body, Field};

use crate::grpc::{self, Translation};
use crate::h2::{Block, Handle};
use crate::headers::{self, Out};
use crate::stream::Stream;

/// Bytes that one poll moves before other connections of the worker get their turn.
const TURN_BYTES_MAX: usize = 1024 * 1024;

/// Body bytes up to this many are copied behind the head that they follow, so that both leave in one write; and are kept, so that the request
/// can be sent again.
const COALESCE_BYTES_MAX: usize = SMALL_BYTES;

/// Capacity of `out` that is kept while nothing in it is needed: a head, and chunks that come one by one. Messages that wait and those that are
/// over keep no more.
const OUT_KEPT_BYTES_MAX: usize = 4096;

/// Large buffers that a worker has at once for bodies: 1 MiB. While as many wait for slow receivers, all bodies are read in small pieces.
const LARGE_IN_USE_MAX: usize = 4;

/// A large piece is read if the receiver's send buffer has at least this much room. The kernel counts what it queues with its own overhead, which
/// can be as much again.
const BULK_ROOM_BYTES: usize = 2 * LARGE_BYTES;

/// How one side of an exchange frames a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// As HTTP/1 does.
    H1(Body),
    /// As frames; [`Body::None`]: the head ends the message.
    H2(Body),
    /// To HTTP/2 only: a head behind which a tunnel begins.
    Tunnel,
}

impl Framing {
    /// Of a body on a connection, or a stream.
    pub(crate) fn on(stream: &Stream, body: Body) -> Self {
        if stream.h2().is_some() { Self::H2(body) } else { Self::H1(body) }
    }
}

/// Where the head of a message is written to.
pub(crate) enum Head<'p> {
    H1(&'p mut Vec<u8>),
    H2(&'p mut Block),
}

/// Moves one message from a reader to a writer.
///
/// What is looked at each time stands in front and together, as in the places of streams of HTTP/2.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Pump {
    source: Source,
    /// What is to be written before anything else: the head, and what was framed anew. `0 <= written <= out.len()`
    out: Vec<u8>,
    written: usize,
    /// How the receiver gets the body.
    sink: Sink,
    /// Something of the message was written and is not in `out` any more: it cannot be sent again.
    is_forgotten: bool,
    /// Something was written that the receiver's stream may still hold.
    is_unflushed: bool,
    /// [`Pump::poll`] has come to the end: all is read and written.
    is_over: bool,
    /// The last read filled its room: the body comes faster than it is read.
    is_bulk: bool,
    /// Trailers for HTTP/2 are to be sent.
    has_trailers: bool,
    /// When the last of the head was written, in microseconds; 0: not yet.
    pub(crate) head_sent_us: u64,
    /// Bytes of the body taken from the reader.
    pub(crate) received: u64,
    /// Bytes written, head and framing and all; of HTTP/2, heads as they are before HPACK.
    pub(crate) sent: u64,
    /// Bytes of the body, as framed by the sender, that may still come; one more is an error.
    allowance: Option<u64>,
    /// What of the body was taken, where somebody else wants it too.
    copy: Option<Box<Copy>>,
    /// For HTTP/2.
    head: Block,
    /// Trailers. In a box: most messages have none.
    ending: Option<Box<Ending>>,
    /// The message is one of a call.
    call: Option<CallPart>,
}

/// Trailers of HTTP/2: rooms for them as they come, and as they go.
#[derive(Default)]
struct Ending {
    fields: Vec<Field>,
    bytes: Vec<u8>,
    block: Block,
}

/// A body kept for another than its receiver: `data.len() <= bytes_max`.
struct Copy {
    data: Vec<u8>,
    bytes_max: usize,
    /// The body is longer.
    is_over: bool,
}

/// What is done for a call of gRPC.
#[derive(Default)]
struct CallPart {
    /// As the trailers told it.
    status: Option<grpc::Status>,
    translation: Option<Translation>,
    /// A piece of the body as it was translated.
    translated: Vec<u8>,
}

#[derive(Default)]
enum Source {
    #[default]
    Done,
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
    UntilClose,
    /// DATA, until the stream ends.
    Frames,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    H1 { is_chunked: bool },
    H2 { step: Step, is_tunnel: bool },
}

impl Default for Sink {
    fn default() -> Self {
        Self::H1 { is_chunked: false }
    }
}

/// How far a message to HTTP/2 is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing was sent.
    Head,
    Body,
    /// END_STREAM was sent.
    Ended,
}

/// Why a message did not get through.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The sender's connection failed.
    Read(io::Error),
    /// The sender's connection ended before the body did.
    Truncated,
    /// The body is badly framed.
    Framing,
    /// The body is larger than allowed.
    TooLarge,
    /// The receiver's connection failed.
    Write(io::Error),
}

impl Pump {
    /// Begins a message: `from` as the sender frames its body, `to` as the receiver shall get it. The head is to be put into what
    /// this returns, and leaves with the first bytes of the body.
    pub(crate) fn start(&mut self, from: Framing, to: Framing, body_bytes_max: Option<u64>) -> Head<'_> {
        self.source = match from {
            Framing::H1(Body::Length(length)) => Source::Length(length),
            Framing::H1(Body::Chunked) => Source::Chunked(Box::default()),
            Framing::H1(Body::UntilClose) => Source::UntilClose,
            Framing::H2(Body::Length(_) | Body::Chunked | Body::UntilClose) => Source::Frames,
            Framing::H1(Body::None) | Framing::H2(Body::None) | Framing::Tunnel => Source::Done,
        };
        self.allowance = body_bytes_max;
        self.received = 0;
        self.sent = 0;
        self.head_sent_us = 0;
        self.is_forgotten = false;
        self.is_unflushed = false;
        self.is_over = false;
        self.is_bulk = false;
        self.has_trailers = false;
        self.call = None;
        self.copy = None;
        self.clear_out();
        match to {
            Framing::H1(body) => {
                self.sink = Sink::H1 { is_chunked: body == Body::Chunked };
                Head::H1(&mut self.out)
            }
            to @ (Framing::H2(_) | Framing::Tunnel) => {
                self.sink = Sink::H2 { step: Step::Head, is_tunnel: to == Framing::Tunnel };
                self.head.clear();
                Head::H2(&mut self.head)
            }
        }
    }

    /// The message that was begun is sent once at most: nothing is kept for another time.
    pub(crate) fn is_final(&mut self) {
        self.is_forgotten = true;
    }

    /// The message that was begun is one of a call, and its body is to be translated so.
    pub(crate) fn is_of_call(&mut self, translation: Option<Translation>) {
        self.call = Some(CallPart { translation, ..CallPart::default() });
    }

    /// A call is tried only now, or once more: so much is left of its time. Only towards HTTP/2, where calls are at home.
    pub(crate) fn retime(&mut self, left_ms: u64) {
        self.head.replace(b"grpc-timeout", |out| grpc::write_timeout(out, left_ms));
    }

    /// The status of the call, as its trailers told it.
    pub(crate) fn grpc_status(&self) -> Option<grpc::Status> {
        self.call.as_ref().and_then(|call| call.status)
    }

    /// Ends the response of a call within its body: behind what is on its way comes `answer`. False: it cannot be ended so.
    pub(crate) fn cut_short(&mut self, answer: &grpc::Answer) -> bool {
        let translation = self.call.as_mut().and_then(|call| call.translation.take());
        match (self.sink, translation) {
            _ if self.is_read() => false,
            (sink, Some(mut translation)) if sink != (Sink::H1 { is_chunked: false }) => {
                let mut end = Vec::new();
                // Only text that was to be decoded, a request's, can be wrong.
                _ = translation.end(answer.trailers().into_iter(), &mut end);
                self.put(&end).is_ok() && self.finish(&[]).is_ok()
            }
            (Sink::H2 { step: Step::Body, is_tunnel: false }, None) => {
                self.source = Source::Done;
                let ending = self.ending.get_or_insert_default();
                ending.block.clear();
                for (name, value) in answer.trailers() {
                    ending.block.field(name, value, false);
                }
                self.has_trailers = true;
                true
            }
            _ => false,
        }
    }

    /// Begins nothing: a body of which so much is still to be read stays where it is.
    pub(crate) fn leave(&mut self, from: Framing) {
        self.start(from, Framing::H1(Body::None), None);
    }

    /// Keeps the body, as the sender means it and without its framing, up to so many bytes. Asked before anything of it is taken.
    pub(crate) fn keep_copy(&mut self, bytes_max: usize) {
        self.copy = Some(Box::new(Copy { data: Vec::new(), bytes_max, is_over: false }));
    }

    /// The body that was to be kept; `None`: it is longer than that.
    pub(crate) fn take_copy(&mut self) -> Option<Vec<u8>> {
        match self.copy.take() {
            Some(copy) if copy.is_over => None,
            copy => Some(copy.map_or_else(Vec::new, |copy| copy.data)),
        }
    }

    fn copy(&mut self, piece: &[u8]) {
        let Some(copy) = &mut self.copy else { return };
        if copy.is_over || copy.data.len() + piece.len() > copy.bytes_max {
            copy.is_over = true;
            copy.data = Vec::new();
        } else {
            copy.data.extend_from_slice(piece);
        }
    }

    /// Nothing is left to read from the sender.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.source, Source::Done)
    }

    /// Nothing is left to read or to write.
    pub(crate) fn is_done(&self) -> bool {
        self.is_over || (self.is_read() && !self.is_pending())
    }

    /// Something of what was read is not written.
    fn is_pending(&self) -> bool {
        let is_unended = match self.sink {
            Sink::H1 { .. } => false,
            Sink::H2 { step: Step::Head, .. } => true,
            Sink::H2 { step, is_tunnel } => step == Step::Body && self.is_read() && !is_tunnel,
        };
        is_unended || self.written < self.out.len() || self.is_unflushed
    }

    /// The receiver has all that was read: if the pump waits, it waits for the sender.
    pub(crate) fn waits_for_sender(&self, input: &Buffer) -> bool {
        !self.is_pending() && input.is_empty()
    }

    /// Whether all that was sent is still there to be sent again.
    pub(crate) fn can_rewind(&self) -> bool {
        !self.is_forgotten
    }

    /// Makes the pump send all again, to another receiver. False, where some of it is gone. A small body stays with its head until more of
    /// it comes.
    pub(crate) fn rewind(&mut self) -> bool {
        let possible = self.can_rewind();
        if possible {
            self.written = 0;
            self.head_sent_us = 0;
            self.is_over = false;
            if let Sink::H2 { step, .. } = &mut self.sink {
                *step = Step::Head;
            }
        }
        possible
    }

    /// Moves what can be moved. `input` belongs to the reader and may hold bytes of the body, and behind them bytes of the next
    /// message.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut Stream,
        input: &mut Buffer,
        writer: &mut Stream,
    ) -> Poll<Result<(), Failure>> {
        let polled = self.poll_turn(cx, reader, input, writer);
        if polled.is_pending() {
            // Either side may take its time now.
            input.fit();
            if self.is_forgotten && self.written == self.out.len() {
                self.clear_out();
            }
        }
        polled
    }

    fn poll_turn(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut Stream,
        input: &mut Buffer,
        writer: &mut Stream,
    ) -> Poll<Result<(), Failure>> {
        let mut turn = 0;
        loop {
            if !self.is_read() && !input.is_empty() {
                turn += ready!(self.poll_take(cx, reader, input, writer))?;
            }
            ready!(self.poll_flush(cx, writer)).map_err(Failure::Write)?;
            if self.is_read() {
                self.is_over = true;
                return Poll::Ready(Ok(()));
            }
            if !input.is_empty() {
                continue;
            }
            if turn >= TURN_BYTES_MAX {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.poll_read(cx, reader, input, writer))?;
        }
    }

    /// Reads into `input`, which is empty.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut Stream,
        input: &mut Buffer,
        writer: &Stream,
    ) -> Poll<Result<(), Failure>> {
        if let Stream::H2(handle) = reader {
            let has_more = ready!(handle.poll_data(cx, input)).map_err(Failure::Read)?;
            return Poll::Ready(if has_more { Ok(()) } else { self.finish_stream(handle) });
        }
        let bytes = self.read_bytes(writer);
        if input.capacity() != bytes {
            *input = Buffer::of_bytes(bytes);
        }
        let count = ready!(input.poll_fill(cx, reader)).map_err(Failure::Read)?;
        if count == 0 {
            return match self.source {
                Source::UntilClose => Poll::Ready(self.finish(&[])),
                _ => Poll::Ready(Err(Failure::Truncated)),
            };
        }
        self.is_bulk = input.is_full() || (self.is_bulk && count > SMALL_BYTES);
        Poll::Ready(Ok(()))
    }

    /// How much is read at once. Larger pieces cost less CPU a byte, but a receiver that is slower than the sender would leave most of one in its
    /// buffer for as long as the body lasts. So a large piece is read only for a receiver that can take all of it now. Some is left over all the
    /// same where the kernel is short of memory for sockets, or where a client of HTTP/2 opens its windows and does not read: hence the limit.
    /// While the process is short of memory, pieces are small.
    fn read_bytes(&self, writer: &Stream) -> usize {
        if !self.is_bulk || buffer::large_in_use() >= LARGE_IN_USE_MAX || memory::pressure() > Pressure::Low {
            return buffer::piece_bytes();
        }
        let takes_all = match writer {
            Stream::H2(handle) => handle.send_window() >= LARGE_BYTES,
            // A chunk is copied for its framing.
            _ if self.sink == (Sink::H1 { is_chunked: true }) => false,
            writer => writer.tcp().and_then(net::socket::send_room).is_some_and(|room| room >= BULK_ROOM_BYTES),
        };
        if takes_all { LARGE_BYTES } else { SMALL_BYTES }
    }

    /// Takes what `input` has of the body: to the writer at once where it needs no framing and no head goes before it, else to `out`.
    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        reader: &Stream,
        input: &mut Buffer,
        writer: &mut Stream,
    ) -> Poll<Result<usize, Failure>> {
        let limit = match &self.source {
            Source::Length(remaining) => usize::try_from(*remaining).unwrap_or(usize::MAX),
            Source::UntilClose | Source::Frames => usize::MAX,
            Source::Chunked(_) | Source::Done => return Poll::Ready(self.take_chunks(input)),
        };
        let piece = input.filled();
        let piece = piece.get(..limit.min(piece.len())).unwrap_or(piece);
        // Judged before anything of it is passed on.
        if self.allowance.is_some_and(|allowance| (piece.len() as u64) > allowance) {
            return Poll::Ready(Err(Failure::TooLarge));
        }
        let has_pending = self.written < self.out.len()
            || matches!(self.sink, Sink::H2 { step: Step::Head, .. })
            || self.is_kept(piece.len());
        let is_chunked = self.sink == Sink::H1 { is_chunked: true };
        let is_translated = self.call.as_ref().is_some_and(|call| call.translation.is_some());
        let count = if is_chunked || is_translated || (has_pending && piece.len() <= COALESCE_BYTES_MAX) {
            let count = piece.len();
            self.put(piece)?;
            count
        } else {
            ready!(self.poll_flush(cx, writer)).map_err(Failure::Write)?;
            self.is_forgotten = true;
            self.is_unflushed |= writer.is_buffering();
            let ends = self.ends_with(piece.len(), input.len(), reader);
            let sent = match writer {
                // END_STREAM on the last of the body spares a frame of its own.
                Stream::H2(handle) => handle.poll_send(cx, piece, ends),
                writer => Pin::new(writer).poll_write(cx, piece),
            };
            let count = match ready!(sent) {
                Ok(0) => return Poll::Ready(Err(Failure::Write(io::ErrorKind::WriteZero.into()))),
                outcome => outcome.map_err(Failure::Write)?,
            };
            if let (true, Sink::H2 { step, .. }) = (ends && count == piece.len(), &mut self.sink) {
                *step = Step::Ended;
            }
            self.sent += count as u64;
            count
        };
        self.copy(piece.get(..count).unwrap_or(piece));
        input.consume(count);
        reader.release(count);
        self.count(count)?;
        match (&mut self.source, reader) {
            (Source::Length(remaining), _) => {
                *remaining -= count as u64;
                if *remaining == 0 {
                    self.finish(&[])?;
                }
            }
            // Seen here, and not when it is asked for more, so that the end leaves with the last bytes.
            (Source::Frames, Stream::H2(handle)) if input.is_empty() && handle.has_ended() => {
                self.finish_stream(handle)?
            }
            _ => {}
        }
        Poll::Ready(Ok(count))
    }

    /// Behind so many bytes, of as many as are at hand, nothing more comes, be it trailers.
    fn ends_with(&self, count: usize, at_hand: usize, reader: &Stream) -> bool {
        match (&self.source, reader) {
            (Source::Length(remaining), _) => *remaining == count as u64,
            (Source::Frames, Stream::H2(handle)) => count == at_hand && handle.has_ended() && !handle.has_trailers(),
            _ => false,
        }
    }

    /// Decodes chunks, and frames the data for the receiver.
    fn take_chunks(&mut self, input: &mut Buffer) -> Result<usize, Failure> {
        self.forget_written(input.len());
        let is_chunked = self.sink == Sink::H1 { is_chunked: true };
        let bytes = input.filled();
        let mut at = 0;
        let ended = loop {
            let Source::Chunked(decoder) = &mut self.source else { return Ok(0) };
            match decoder.decode(bytes, at).map_err(|_| Failure::Framing)? {
                Decoded::More => break None,
                Decoded::Data(range) => {
                    at = range.end;
                    let data = bytes.get(range).unwrap_or_default();
                    put(&mut self.out, is_chunked, translated(&mut self.call, data)?);
                    self.copy(data);
                    self.count(data.len())?;
                }
                Decoded::End(end) => break Some(end),
            }
        };
        let consumed = ended.unwrap_or(bytes.len());
        input.consume(consumed);
        if ended.is_some()
            && let Source::Chunked(decoder) = std::mem::take(&mut self.source)
        {
            let mut fields = Vec::new();
            h1::parse_trailers(decoder.trailers(), &mut fields).map_err(|_| Failure::Framing)?;
            self.finish_with(&fields, decoder.trailers())?;
        }
        Ok(consumed)
    }

    fn put(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.forget_written(piece.len());
        put(&mut self.out, self.sink == Sink::H1 { is_chunked: true }, translated(&mut self.call, piece)?);
        Ok(())
    }

    /// So many bytes more are put behind what was written already, so that all can be sent again. Of HTTP/2 alone: there a small body nearly
    /// always comes behind its head, and endpoints say that they did not look at a request.
    fn is_kept(&self, more: usize) -> bool {
        matches!(self.sink, Sink::H2 { .. }) && !self.is_forgotten && self.out.len() + more <= COALESCE_BYTES_MAX
    }

    /// Makes room in `out` once all of it is written, unless it is kept with as many bytes more.
    fn forget_written(&mut self, more: usize) {
        if self.written == self.out.len() && self.written > 0 && !self.is_kept(more) {
            self.is_forgotten = true;
            self.out.clear();
            self.written = 0;
        }
    }

    /// Empties `out`, and frees it if it is large.
    fn clear_out(&mut self) {
        if self.out.capacity() > OUT_KEPT_BYTES_MAX {
            self.out = Vec::new();
        } else {
            self.out.clear();
        }
        self.written = 0;
    }

    fn count(&mut self, bytes: usize) -> Result<(), Failure> {
        self.received += bytes as u64;
        if let Some(allowance) = &mut self.allowance {
            *allowance = allowance.checked_sub(bytes as u64).ok_or(Failure::TooLarge)?;
        }
        Ok(())
    }

    fn finish(&mut self, fields: &[Field]) -> Result<(), Failure> {
        self.finish_with(fields, &[])
    }

    /// The sender's stream has ended, perhaps with trailers.
    fn finish_stream(&mut self, handle: &Handle) -> Result<(), Failure> {
        if !handle.has_trailers() {
            return self.finish(&[]);
        }
        let ending = self.ending.get_or_insert_default();
        handle.take_trailers(&mut ending.fields, &mut ending.bytes);
        let (fields, bytes) = (std::mem::take(&mut ending.fields), std::mem::take(&mut ending.bytes));
        let finished = self.finish_with(&fields, &bytes);
        if let Some(ending) = &mut self.ending {
            (ending.fields, ending.bytes) = (fields, bytes);
        }
        finished
    }

    fn finish_with(&mut self, fields: &[Field], section: &[u8]) -> Result<(), Failure> {
        self.source = Source::Done;
        let fields = if self.finish_call(fields, section)? { &[] } else { fields };
        match self.sink {
            Sink::H1 { is_chunked: true } => {
                self.forget_written(0);
                self.out.extend_from_slice(b"0\r\n");
                headers::write_trailers(&mut self.out, fields, section);
                self.out.extend_from_slice(b"\r\n");
            }
            Sink::H1 { is_chunked: false } => {}
            Sink::H2 { .. } if fields.is_empty() => {}
            Sink::H2 { .. } => {
                let ending = self.ending.get_or_insert_default();
                ending.block.clear();
                headers::write_trailers(&mut ending.block, fields, section);
                self.has_trailers = !ending.block.is_empty();
            }
        }
        Ok(())
    }

    /// Takes in how a call has ended, and ends a body that is translated. True: the trailers are in it.
    fn finish_call(&mut self, fields: &[Field], section: &[u8]) -> Result<bool, Failure> {
        let Some(call) = &mut self.call else { return Ok(false) };
        call.status = grpc::find(fields, section, b"grpc-status").map(grpc::Status::parse);
        let Some(mut translation) = call.translation.take() else { return Ok(false) };
        let mut end = Vec::new();
        let has_trailers = translation.end(grpc::trailers(fields, section), &mut end).map_err(|_| Failure::Framing)?;
        self.put(&end)?;
        Ok(has_trailers)
    }

    /// Writes what is to be written.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>, writer: &mut Stream) -> Poll<io::Result<()>> {
        if let Stream::H2(handle) = writer {
            ready!(self.poll_flush_frames(cx, handle))?;
        } else {
            while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
                let count = ready!(Pin::new(&mut *writer).poll_write(cx, rest))?;
                if count == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.written += count;
                self.sent += count as u64;
                self.is_unflushed |= writer.is_buffering();
            }
            if self.is_unflushed {
                ready!(Pin::new(writer).poll_flush(cx))?;
                self.is_unflushed = false;
            }
        }
        if self.head_sent_us == 0 {
            self.head_sent_us = net::clock::now_us();
        }
        Poll::Ready(Ok(()))
    }

    /// Head, what is in `out`, and the end, each as soon as it is known: END_STREAM stands on the last frame that there is anyway.
    fn poll_flush_frames(&mut self, cx: &mut Context<'_>, handle: &mut Handle) -> Poll<io::Result<()>> {
        let Sink::H2 { mut step, is_tunnel } = self.sink else { return Poll::Ready(Ok(())) };
        let is_last = self.is_read() && !self.has_trailers && !is_tunnel;
        if step == Step::Head {
            let end = is_last && self.out.is_empty();
            ready!(handle.poll_send_head(cx, &self.head, end))?;
            step = if end { Step::Ended } else { Step::Body };
            self.sink = Sink::H2 { step, is_tunnel };
            self.sent += self.head.len() as u64;
        }
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            let count = ready!(handle.poll_send(cx, rest, is_last))?;
            self.written += count;
            self.sent += count as u64;
            if is_last && self.written == self.out.len() {
                step = Step::Ended;
                self.sink = Sink::H2 { step, is_tunnel };
            }
        }
        if step == Step::Body && self.is_read() && !is_tunnel {
            if let Some(ending) = self.ending.as_ref().filter(|_| self.has_trailers) {
                ready!(handle.poll_send_trailers(cx, &ending.block))?;
                self.sent += ending.block.len() as u64;
            } else {
                ready!(handle.poll_send(cx, &[], true))?;
            }
            self.sink = Sink::H2 { step: Step::Ended, is_tunnel };
        }
        Poll::Ready(Ok(()))
    }
}

/// A piece of a body as it goes on.
fn translated<'p>(call: &'p mut Option<CallPart>, piece: &'p [u8]) -> Result<&'p [u8], Failure> {
    let Some(CallPart { translation: Some(translation), translated, .. }) = call else { return Ok(piece) };
    translated.clear();
    translation.piece(piece, translated).map_err(|_| Failure::Framing)?;
    Ok(translated)
}

fn put(out: &mut Vec<u8>, is_chunked: bool, piece: &[u8]) {
    if piece.is_empty() {
        return;
    }
    if is_chunked {
        h1::chunk_start(out, piece.len());
        out.extend_from_slice(piece);
        h1::chunk_end(out);
    } else {
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use crate::grpc::Call;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// Sends `bytes` through a pump behind the head `H`: what the receiver gets, or how it failed, and what is left unread.
    async fn pump(body: Body, framing: Body, max: Option<u64>, bytes: &[u8]) -> (Result<Vec<u8>, String>, Vec<u8>) {
        let (got, left, _) = pump_call(body, framing, max, None, bytes).await;
        (got, left)
    }

    /// The same, where the message may be one of a call; and the status of the call.
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
        let mut pump = Pump::default();
        let Head::H1(head) = pump.start(Framing::H1(body), Framing::H1(framing), max) else {
            unreachable!("not HTTP/1")
        };
        head.push(b'H');
        if call.is_some() {
            pump.is_of_call(call);
        }
        let mut input = Buffer::small();
        let outcome = poll_fn(|cx| pump.poll(cx, &mut from, &mut input, &mut to)).await;
        drop(to);
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).await.unwrap();
        let left = input.filled().to_vec();
        (outcome.map(|()| got).map_err(|failure| format!("{failure:?}")), left, pump.grpc_status())
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

    #[test]
    fn a_body_that_does_not_end_well_fails() {
        check(Body::Length(6), Body::Length(6), "hello", Err("Truncated"), "");
        check(Body::Chunked, Body::Chunked, "5\r\nhel", Err("Truncated"), "");
        check(Body::Chunked, Body::Chunked, "5\r\nhelloX", Err("Framing"), "5\r\nhelloX");
        check(Body::Chunked, Body::Chunked, "0\r\nA b\r\n\r\n", Err("Framing"), "");
        check_max(
            Body::Chunked,
            Body::Chunked,
            Some(4),
            "5\r\nhello\r\n0\r\n\r\n",
            Err("TooLarge"),
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
        check(decode(), Body::Length(4), "Zm9-", Err("Framing"), None);
        check(decode(), Body::Length(3), "Zm9", Err("Framing"), None);
        let encode = |is_text| Translation::of_response(web(is_text));
        let ended = "2\r\nhi\r\n0\r\nGrpc-Status: 5\r\n\r\n";
        let frame = "14\r\n\u{FFFD}\0\0\0\u{f}grpc-status:5\r\n\r\n0\r\n\r\n";
        let expect = format!("H2\r\nhi\r\n{frame}");
        check(encode(false), Body::Chunked, ended, Ok(&expect), Some(grpc::Status::NotFound));
        let expect = "H20\r\naGk=gAAAAA9ncnBjLXN0YXR1czo1DQo=\r\n0\r\n\r\n";
        check(encode(true), Body::Chunked, ended, Ok(expect), Some(grpc::Status::NotFound));
    }

    #[test]
    fn large_bodies_arrive_whole() {
        let text = "0123456789abcdef".repeat(100_000);
        let expect = format!("H{text}");
        check(Body::Length(text.len() as u64), Body::Length(1), &text, Ok(&expect), "");
        check(Body::UntilClose, Body::UntilClose, &text, Ok(&expect), "");
    }
}

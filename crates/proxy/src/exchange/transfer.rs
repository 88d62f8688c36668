//! One message on its way from one side of an exchange to the other: a head, then a body with new framing.
//!
//! This is a state machine without I/O. [`Transfer::next`] says what to do next; the driver does it, and reports back with
//! [`Transfer::handle_written`] and the other `handle_*`. It asks for more only when everything that was read before has been written, so a
//! slow receiver stops its sender, and the memory stays at one small buffer in each direction, whatever the size of the body.
//!
//! The file has this length because reading, framing and writing share the state of the message.

use std::sync::Arc;

use model::HeaderNames;
use net::buffer::{Buffer, SMALL_BYTES};
use wire::h1::{self, ChunkedDecoder, Decoded};
use wire::message::{Body, Field};

use super::coding::{Coded, Coding};
use super::faults::{self, InjectedFault};
use crate::compression::{Compressing, SLICE_BYTES_MAX, Trailers as EndTrailers};
use crate::grpc::{self, Translation};
use crate::h2::HeaderList;
use crate::http::headers::{self, Out};
use crate::policy::headers::is_alike;
use crate::request_body::Decompressing;

/// Body bytes of a request up to this many are copied after the head, so that both are sent in one write, and are kept, so that the request
/// can be sent again.
const COALESCE_BYTES_MAX: usize = SMALL_BYTES;

/// If a message is sent only once, no more than this is copied after its head. A longer piece is written from where it was read, in the
/// same write. Measured over loopback: with 4 KiB, the copy costs 0.2 us less than a second piece in the write; with 16 KiB, 0.2 us more.
const COPIED_BYTES_MAX: usize = OUT_KEPT_BYTES_MAX / 2;

/// Capacity of `out` that is kept while it is empty: enough for a head, and for chunks that arrive one by one. Messages that wait and those
/// that are over keep no more.
const OUT_KEPT_BYTES_MAX: usize = 4096;

/// If less than this is left of a body, a pipe is not worthwhile. (Simulated bodies are smaller.)
const SPLICE_BYTES_MIN: u64 = if cfg!(test) { 1024 } else { 128 * 1024 };

/// More of a body is compressed while less than this is written of what was compressed before.
const CODED_AHEAD_BYTES_MAX: usize = SMALL_BYTES;

/// How one side of an exchange frames a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// In HTTP/1.
    H1(Body),
    /// In frames; with [`Body::None`], the head ends the message.
    H2(Body),
    /// Only towards HTTP/2: a head that does not end the stream, and no body. It is an interim response, or the beginning of a tunnel.
    HeadOnly,
}

impl Framing {
    /// The framing of a body in the version of its side.
    pub(crate) fn of(is_h2: bool, body: Body) -> Self {
        if is_h2 { Self::H2(body) } else { Self::H1(body) }
    }
}

/// The output for the head of a message.
pub(crate) enum Head<'p> {
    H1(&'p mut Vec<u8>),
    H2(&'p mut HeaderList),
}

/// The next step of a transfer.
pub(crate) enum TransferStep<'t> {
    /// Write these bytes, which were framed here. Over HTTP/2 they are DATA; `ends`: they end the stream.
    Write { bytes: &'t [u8], ends: bool },
    /// Write this many bytes of the input unchanged. Over HTTP/2 they are DATA; `ends`: they end the stream.
    Forward { count: usize, ends: bool },
    /// Write these bytes, which were framed here, and in the same write this many bytes of the input unchanged. Never over HTTP/2.
    WriteAndForward { bytes: &'t [u8], count: usize },
    /// Send this head over HTTP/2. `ends`: it ends the stream.
    SendHead { head: &'t HeaderList, ends: bool },
    /// Send these trailers over HTTP/2, which end the stream.
    SendTrailers(&'t HeaderList),
    /// Flush what was written to a connection that buffers.
    Flush,
    /// Compress some of what was read: [`Transfer::code`].
    Code,
    /// Read more of the body into the input, which is empty.
    Read,
    /// Let the kernel move up to this many bytes of the body into a pipe, which is empty; or read, as for [`TransferStep::Read`].
    FillPipe(u64),
    /// Let the kernel write what is in the pipe.
    DrainPipe,
    /// Nothing: everything is read and written.
    Done,
}

/// One message from its sender to its receiver.
///
/// The fields that each step needs are at the front and together: hundreds of transfers wait, and each cache line that is touched is a
/// cache miss.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Transfer {
    source: Source,
    /// Bytes to write before anything else: the head, and whatever has new framing. `0 <= written <= out.len()`
    out: Vec<u8>,
    written: usize,
    /// How the receiver gets the body.
    sink: Sink,
    /// Something of the message was written and is no longer in `out`, so it cannot be sent again.
    is_forgotten: bool,
    /// The receiver's connection may still hold bytes that were written.
    is_unflushed: bool,
    /// [`Transfer::next`] has reached the end: everything is read and written.
    is_over: bool,
    /// The body arrives faster than it is read: a read filled its buffer, and since then more than a small buffer arrived between any two
    /// waits.
    is_bulk: bool,
    /// Both sides are plain-text connections, between which the kernel can move bytes.
    may_splice: bool,
    /// Trailers must be sent over HTTP/2.
    has_trailers: bool,
    /// When the last of the head was written, in microseconds; `None` before that.
    head_sent_us: Option<u64>,
    /// Bytes of the body taken from the sender.
    received: u64,
    /// Bytes written, including head and framing; over HTTP/2, heads before HPACK.
    sent: u64,
    /// Bytes of the body in the driver's pipe, which are received and not sent.
    in_pipe: u64,
    /// Bytes read since the last wait.
    turn_bytes: usize,
    /// Bytes that were taken from the input since the last call of [`Transfer::take_consumed`].
    consumed: usize,
    /// Bytes of the body, as framed by the sender, that may still arrive; one more is an error.
    allowance: Option<u64>,
    /// The received body, if something else needs it, too.
    copy: Option<Box<Copy>>,
    /// For HTTP/2.
    head: HeaderList,
    /// Trailers. Boxed, because most messages have none.
    trailers: Option<Box<Trailers>>,
    /// The message is one of a call.
    call: Option<CallPart>,
    /// The body is being compressed or decompressed; `None` once all of it is.
    coding: Option<Box<Coding>>,
    /// Trailers with these names are dropped: as headers they would say who the client is.
    hidden: Option<Arc<[Box<str>]>>,
    /// The names that trailers may have.
    allowed: HeaderNames,
}

/// Trailers of HTTP/2: as received, and as sent.
#[derive(Default)]
struct Trailers {
    fields: Vec<Field>,
    bytes: Vec<u8>,
    list: HeaderList,
}

/// A body kept for something other than its receiver: `data.len() <= bytes_max`.
struct Copy {
    data: Vec<u8>,
    bytes_max: usize,
    /// The body is longer.
    is_over: bool,
}

/// The state for a gRPC call.
#[derive(Default)]
struct CallPart {
    /// The status in the trailers.
    status: Option<grpc::Status>,
    translation: Option<Translation>,
    /// The translation of a piece of the body.
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
    /// The stream has ended: the input contains the end of the body, and trailers may follow it.
    LastFrames,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sink {
    H1 { is_chunked: bool },
    H2 { step: H2SinkState, is_head_only: bool },
}

impl Default for Sink {
    fn default() -> Self {
        Self::H1 { is_chunked: false }
    }
}

/// The progress of a message to HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H2SinkState {
    /// Nothing was sent.
    Head,
    Body,
    /// END_STREAM was sent.
    Ended,
}

/// What is wrong with a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The sender's connection ended before the body did.
    Truncated,
    /// The body is badly framed.
    Framing,
    /// The body is larger than allowed.
    TooLarge,
    /// It cannot be compressed, because there is no memory.
    Coding,
    /// It cannot be decompressed: it is not what it should be, or is cut off.
    Encoding,
    /// It becomes too large when it is decompressed.
    Decompressed,
}

impl Transfer {
    /// Begins a message: `from` is the sender's framing of the body, and `to` the receiver's. The caller writes the head to the returned
    /// output. The head is sent with the first bytes of the body.
    pub(crate) fn start(&mut self, from: Framing, to: Framing, body_bytes_max: Option<u64>) -> Head<'_> {
        self.source = match from {
            Framing::H1(Body::Length(length)) => Source::Length(length),
            Framing::H1(Body::Chunked) => Source::Chunked(Box::default()),
            Framing::H1(Body::UntilClose) => Source::UntilClose,
            Framing::H2(Body::Length(_) | Body::Chunked | Body::UntilClose) => Source::Frames,
            Framing::H1(Body::None) | Framing::H2(Body::None) | Framing::HeadOnly => Source::Done,
        };
        self.allowance = body_bytes_max;
        self.received = 0;
        self.sent = 0;
        self.consumed = 0;
        self.head_sent_us = None;
        self.is_forgotten = false;
        self.is_unflushed = false;
        self.is_over = false;
        self.is_bulk = false;
        self.may_splice = false;
        self.in_pipe = 0;
        self.has_trailers = false;
        self.call = None;
        self.coding = None;
        self.copy = None;
        (self.hidden, self.allowed) = (None, HeaderNames::Any);
        self.clear_out();
        match to {
            Framing::H1(body) => {
                self.sink = Sink::H1 { is_chunked: body == Body::Chunked };
                Head::H1(&mut self.out)
            }
            to @ (Framing::H2(_) | Framing::HeadOnly) => {
                self.sink = Sink::H2 { step: H2SinkState::Head, is_head_only: to == Framing::HeadOnly };
                self.head.clear();
                Head::H2(&mut self.head)
            }
        }
    }

    /// Begins the message again, towards its receiver, after a part of its body was taken for something else. [`Transfer::put_held`] adds that
    /// part; the rest has not been read.
    pub(crate) fn resume(&mut self, to: Framing) -> Head<'_> {
        let source = std::mem::take(&mut self.source);
        let (received, consumed, allowance) = (self.received, self.consumed, self.allowance);
        self.start(Framing::H1(Body::None), to, allowance);
        (self.source, self.received, self.consumed) = (source, received, consumed);
        match self.sink {
            Sink::H1 { .. } => Head::H1(&mut self.out),
            Sink::H2 { .. } => Head::H2(&mut self.head),
        }
    }

    /// Adds the part of the body that was taken before.
    ///
    /// # Errors
    /// It cannot be translated.
    pub(crate) fn put_held(&mut self, piece: &[u8]) -> Result<(), BodyError> {
        self.copy_received(piece);
        self.put(piece)?;
        if self.is_read() { self.finish(&[], &[]) } else { Ok(()) }
    }

    /// Drops the trailers with these names, which are in lower case.
    pub(crate) fn hide_trailers(&mut self, names: Arc<[Box<str>]>) {
        self.hidden = Some(names);
    }

    /// Drops the trailers whose names are not allowed.
    pub(crate) fn allow_trailers(&mut self, allowed: HeaderNames) {
        self.allowed = allowed;
    }

    /// Begins our own message. For HTTP/1, the caller writes head and body to the returned output; for HTTP/2 only the head, and passes the
    /// body to [`Transfer::put_body`].
    pub(crate) fn start_own(&mut self, to_h2: bool) -> Head<'_> {
        self.start(Framing::H1(Body::None), Framing::of(to_h2, Body::None), None)
    }

    /// Adds the body of our own message, for HTTP/2.
    pub(crate) fn put_body(&mut self, body: &[u8]) {
        self.out.extend_from_slice(body);
    }

    /// Adds the whole body of our own message, in the framing with which it was begun.
    pub(crate) fn put_whole(&mut self, body: &[u8]) {
        put(&mut self.out, self.sink == Sink::H1 { is_chunked: true }, body);
        // Only a translated call can fail here, and this is not one.
        _ = self.finish(&[], &[]);
    }

    /// The message that was begun is sent at most once, so nothing is kept for another try.
    pub(crate) fn send_once(&mut self) {
        self.is_forgotten = true;
    }

    /// The message that was begun is one of a call, and its body is translated like this.
    pub(crate) fn set_call(&mut self, translation: Option<Translation>) {
        self.call = Some(CallPart { translation, ..CallPart::default() });
    }

    /// Compresses the body of the message that was begun.
    pub(crate) fn compress(&mut self, compressing: Compressing) {
        self.coding = Some(Box::new(Coding::Compress(compressing)));
    }

    /// Decompresses the body of the message that was begun.
    pub(crate) fn decompress(&mut self, decompressing: Decompressing) {
        self.coding = Some(Box::new(Coding::Decompress(decompressing)));
    }

    /// Compresses or decompresses a piece of what was read, passes on what the coding keeps, or ends the body, as [`TransferStep::Code`] asks
    /// for. `cpu_ns` returns the CPU time of this thread, in nanoseconds. Returns how many bytes that took: of the body before compression, or
    /// after decompression.
    ///
    /// # Errors
    /// Those of [`Transfer::next`]; [`BodyError::Coding`], [`BodyError::Encoding`], [`BodyError::Decompressed`].
    pub(crate) fn code(&mut self, input: &mut Buffer, cpu_ns: impl Fn() -> u64) -> Result<usize, BodyError> {
        let (received, begun_ns) = (self.received, cpu_ns());
        let Some(mut coding) = self.coding.take() else { return Ok(0) };
        let took_ns = || cpu_ns().saturating_sub(begun_ns);
        match coding.step()? {
            Coded::End(bytes, EndTrailers { fields, section }) => {
                self.put_coded(bytes);
                coding.count_cpu(took_ns());
                return self.finish_framed(&fields, &section).map(|()| 0);
            }
            Coded::Bytes(bytes) => {
                let count = bytes.len();
                self.put_stepped(bytes)?;
                coding.count_cpu(took_ns());
                let is_decompression = coding.is_decompression();
                self.coding = Some(coding);
                return Ok(if is_decompression { count } else { 0 });
            }
            Coded::Needs => self.coding = Some(coding),
        }
        if !self.is_read() && !input.is_empty() {
            self.take(input)?;
        }
        if let Some(coding) = &self.coding {
            coding.count_cpu(took_ns());
        }
        Ok(usize::try_from(self.received - received).unwrap_or(usize::MAX))
    }

    /// Adds what a coding has given, which may still have to be translated, or copied.
    fn put_stepped(&mut self, bytes: &[u8]) -> Result<(), BodyError> {
        // Of a compressed response, there is neither a copy nor a translation.
        self.copy(bytes);
        let mut call = self.call.take();
        let outcome = translated(&mut call, &mut None, bytes).map(|bytes| self.put_coded(bytes));
        self.call = call;
        outcome
    }

    /// Adds bytes of a coding, which are not counted as a part of the body again.
    fn put_coded(&mut self, coded: &[u8]) {
        self.forget_written(coded.len());
        put(&mut self.out, self.sink == Sink::H1 { is_chunked: true }, coded);
    }

    /// Records that the sender pauses. Returns whether something must be passed on before the transfer waits.
    pub(crate) fn handle_pause(&mut self) -> bool {
        self.coding.as_mut().is_some_and(|coding| coding.handle_pause())
    }

    /// Frees what was written, because it will not be sent again. Returns whether nothing is held any more.
    pub(crate) fn release(&mut self) -> bool {
        self.is_forgotten = true;
        if self.written == self.out.len() {
            self.clear_out();
        }
        self.out.is_empty()
    }

    /// Sets the remaining time of a call that is tried now, or once more. Only towards HTTP/2, which calls use.
    pub(crate) fn set_grpc_timeout(&mut self, left_ms: u64) {
        self.head.replace(b"grpc-timeout", |out| grpc::write_timeout(out, left_ms));
    }

    /// Replaces a text in the head, of which nothing was sent yet, by another one of the same length.
    pub(crate) fn replace_in_head(&mut self, old: &[u8], new: &[u8]) {
        match self.sink {
            Sink::H1 { .. } => replace_text(&mut self.out, old, new),
            Sink::H2 { .. } => self.head.replace_text(old, new),
        }
    }

    /// The head that was written.
    #[cfg(test)]
    pub(crate) fn written_head(&mut self) -> Head<'_> {
        match self.sink {
            Sink::H1 { .. } => Head::H1(&mut self.out),
            Sink::H2 { .. } => Head::H2(&mut self.head),
        }
    }

    /// The status of the call in its trailers.
    pub(crate) fn grpc_status(&self) -> Option<grpc::Status> {
        self.call.as_ref().and_then(|call| call.status)
    }

    /// Ends the response of a call in the middle of its body: `answer` is sent after what is on its way. Returns false if that is not
    /// possible.
    pub(crate) fn cut_short(&mut self, answer: &grpc::Answer) -> bool {
        let translation = self.call.as_mut().and_then(|call| call.translation.take());
        match (self.sink, translation) {
            _ if self.is_read() => false,
            (sink, Some(mut translation)) if sink != (Sink::H1 { is_chunked: false }) => {
                let mut end = Vec::new();
                // Only text that is being decoded, which is a request's, can be invalid.
                _ = translation.end(answer.trailers().into_iter(), &mut end);
                self.put(&end).is_ok() && self.finish(&[], &[]).is_ok()
            }
            (Sink::H2 { step: H2SinkState::Body, is_head_only: false }, None) => {
                self.source = Source::Done;
                let trailers = self.trailers.get_or_insert_default();
                trailers.list.clear();
                for (name, value) in answer.trailers() {
                    trailers.list.field(name, value, false);
                }
                self.has_trailers = true;
                true
            }
            _ => false,
        }
    }

    /// Begins nothing: the rest of a body stays where it is.
    pub(crate) fn leave(&mut self, from: Framing) {
        self.start(from, Framing::H1(Body::None), None);
    }

    /// Removes everything of the message, so that the next one finds nothing of it.
    pub(crate) fn clear(&mut self) {
        self.leave(Framing::H1(Body::None));
    }

    /// Keeps the body without its framing, up to this many bytes. Call it before anything of the body is taken.
    pub(crate) fn keep_copy(&mut self, bytes_max: usize) {
        self.copy = Some(Box::new(Copy { data: Vec::new(), bytes_max, is_over: false }));
    }

    /// The kept body; `None` if it is longer than the limit.
    pub(crate) fn take_copy(&mut self) -> Option<Vec<u8>> {
        match self.copy.take() {
            Some(copy) if copy.is_over => None,
            copy => Some(copy.map_or_else(Vec::new, |copy| copy.data)),
        }
    }

    /// Keeps a piece of the body as it was received, unless what comes out of it is kept.
    fn copy_received(&mut self, piece: &[u8]) {
        if self.copy.is_some() && !self.coding.as_ref().is_some_and(|coding| coding.is_decompression()) {
            self.copy(piece);
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

    /// Bytes of the body taken from the sender.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Bytes written, including head and framing.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// When the last of the head was written, in microseconds.
    pub(crate) fn head_sent_us(&self) -> Option<u64> {
        self.head_sent_us
    }

    /// Whether nothing is left to read from the sender.
    pub(crate) fn is_read(&self) -> bool {
        matches!(self.source, Source::Done)
    }

    /// Whether nothing is left to read or to write.
    pub(crate) fn is_done(&self) -> bool {
        self.is_over || (self.is_read() && !self.is_pending())
    }

    /// Whether something that was read is not written yet.
    fn is_pending(&self) -> bool {
        let is_unended = match self.sink {
            Sink::H1 { .. } => false,
            Sink::H2 { step: H2SinkState::Head, .. } => true,
            Sink::H2 { step, is_head_only } => step == H2SinkState::Body && self.is_read() && !is_head_only,
        };
        let is_coding = self.coding.as_ref().is_some_and(|coding| coding.is_due() || coding.has_more());
        is_coding || is_unended || self.written < self.out.len() || self.is_unflushed || self.in_pipe > 0
    }

    /// Whether everything that there will be to write is in the form for the receiver.
    fn is_framed(&self) -> bool {
        self.is_read() && self.coding.is_none()
    }

    /// Whether the receiver has everything that was read: if the transfer waits, it waits for the sender.
    pub(crate) fn waits_for_sender(&self, input: &Buffer) -> bool {
        !self.is_pending() && input.is_empty()
    }

    /// Bytes of the body that are at least still to be read from an HTTP/1 sender, as far as its head or its chunk says how many.
    pub(crate) fn owed(&self, input: &Buffer) -> u64 {
        let missing = match &self.source {
            Source::Length(left) => *left,
            Source::Chunked(decoder) => decoder.missing_min(),
            Source::Done | Source::UntilClose | Source::Frames | Source::LastFrames => 0,
        };
        missing.saturating_sub(input.len() as u64)
    }

    /// Whether the body arrives faster than it is read, and is sent unchanged, so that large pieces cost less.
    pub(crate) fn is_bulk(&self) -> bool {
        // A chunk is copied for its framing, and much is not compressed at once.
        self.is_bulk && self.coding.is_none() && self.sink != (Sink::H1 { is_chunked: true })
    }

    /// Whether everything that was sent is still available for sending again.
    pub(crate) fn can_rewind(&self) -> bool {
        !self.is_forgotten || faults::is_injected(InjectedFault::RewindsForgotten)
    }

    /// Makes the transfer send everything again, to another receiver. Returns false if some of it is gone. A small body stays with its head
    /// until more of it arrives.
    pub(crate) fn rewind(&mut self) -> bool {
        let possible = self.can_rewind();
        if possible {
            self.written = 0;
            self.head_sent_us = None;
            self.is_over = false;
            self.is_unflushed = false;
            if let Sink::H2 { step, .. } = &mut self.sink {
                *step = H2SinkState::Head;
            }
        }
        possible
    }

    /// What to do next. `input` belongs to the sender, and may hold bytes of the body followed by bytes of the next message.
    ///
    /// # Errors
    /// What was read is not a valid body.
    pub(crate) fn next(&mut self, input: &mut Buffer) -> Result<TransferStep<'_>, BodyError> {
        if let Some(coding) = &self.coding
            && (coding.has_more() || !self.is_read() && !input.is_empty())
        {
            // Nothing is added once a part is written, so that `out` becomes empty in between.
            let may_code =
                self.written == 0 && self.out.len() < CODED_AHEAD_BYTES_MAX || self.written == self.out.len();
            return Ok(if may_code { TransferStep::Code } else { self.pending() });
        }
        if !self.is_read() && !input.is_empty() {
            if let Some((count, ends)) = self.take(input)? {
                let bytes = self.out.get(self.written..).unwrap_or_default();
                let is_alone = bytes.is_empty();
                return Ok(if is_alone {
                    TransferStep::Forward { count, ends }
                } else {
                    TransferStep::WriteAndForward { bytes, count }
                });
            }
        } else if matches!(self.source, Source::LastFrames) {
            self.finish_frames()?;
        }
        if self.is_pending() {
            return Ok(self.pending());
        }
        if self.is_read() {
            self.is_over = true;
            return Ok(TransferStep::Done);
        }
        Ok(self.splice_bytes().map_or(TransferStep::Read, TransferStep::FillPipe))
    }

    /// Which of the bytes that were read to write next.
    fn pending(&self) -> TransferStep<'_> {
        if self.coding.as_ref().is_some_and(|coding| coding.is_due()) {
            return TransferStep::Code;
        }
        let rest = self.out.get(self.written..).unwrap_or_default();
        let Sink::H2 { step, is_head_only } = self.sink else {
            return match rest {
                [] if self.in_pipe > 0 => TransferStep::DrainPipe,
                [] => TransferStep::Flush,
                bytes => TransferStep::Write { bytes, ends: false },
            };
        };
        // END_STREAM is set on the last frame that is sent in any case.
        let is_last = self.is_framed() && !self.has_trailers && !is_head_only;
        match &self.trailers {
            _ if step == H2SinkState::Head => {
                TransferStep::SendHead { head: &self.head, ends: is_last && self.out.is_empty() }
            }
            _ if !rest.is_empty() => TransferStep::Write { bytes: rest, ends: is_last },
            Some(trailers) if self.has_trailers => TransferStep::SendTrailers(&trailers.list),
            _ => TransferStep::Write { bytes: &[], ends: true },
        }
    }

    /// Records that `count` of the bytes of [`TransferStep::Write`] were written. `clock_us` returns the time in microseconds, if it is needed;
    /// `is_buffered`: the connection may still hold them.
    pub(crate) fn handle_written(&mut self, count: usize, is_buffered: bool, clock_us: impl FnOnce() -> u64) {
        let is_last = self.is_framed() && !self.has_trailers;
        self.written += count;
        self.sent += count as u64;
        self.is_unflushed |= is_buffered;
        if self.written < self.out.len() {
            return;
        }
        if let Sink::H2 { step: step @ H2SinkState::Body, is_head_only: false } = &mut self.sink
            && is_last
        {
            *step = H2SinkState::Ended;
        }
        self.note_head_sent(clock_us);
    }

    /// Records that the head of [`TransferStep::SendHead`] was taken.
    pub(crate) fn handle_head_sent(&mut self, ends: bool, clock_us: impl FnOnce() -> u64) {
        if let Sink::H2 { step, .. } = &mut self.sink {
            *step = if ends { H2SinkState::Ended } else { H2SinkState::Body };
        }
        self.sent += self.head.len() as u64;
        if self.written == self.out.len() {
            self.note_head_sent(clock_us);
        }
    }

    /// Records that the trailers of [`TransferStep::SendTrailers`] were taken.
    pub(crate) fn handle_trailers_sent(&mut self) {
        if let Sink::H2 { step, .. } = &mut self.sink {
            *step = H2SinkState::Ended;
        }
        self.sent += self.trailers.as_ref().map_or(0, |trailers| trailers.list.len() as u64);
    }

    /// Records that everything written was flushed.
    pub(crate) fn handle_flushed(&mut self) {
        self.is_unflushed = false;
    }

    /// Records that `written` bytes of [`TransferStep::WriteAndForward`] were written, of which those that were framed here come first.
    ///
    /// # Errors
    /// Those of [`Transfer::next`].
    pub(crate) fn handle_written_and_forwarded(
        &mut self,
        written: usize,
        count: usize,
        is_buffered: bool,
        input: &mut Buffer,
        clock_us: impl FnOnce() -> u64,
    ) -> Result<(), BodyError> {
        let framed = written.min(self.out.len() - self.written);
        self.handle_written(framed, is_buffered, clock_us);
        if written == framed {
            return Ok(());
        }
        self.handle_forwarded(written - framed, (count, false), is_buffered, input)
    }

    /// Records that `written` of the bytes of [`TransferStep::Forward`], which was for `count` of them, were written.
    ///
    /// # Errors
    /// Those of [`Transfer::next`].
    pub(crate) fn handle_forwarded(
        &mut self,
        written: usize,
        (count, ends): (usize, bool),
        is_buffered: bool,
        input: &mut Buffer,
    ) -> Result<(), BodyError> {
        if let (true, Sink::H2 { step, .. }) = (ends && written == count, &mut self.sink) {
            *step = H2SinkState::Ended;
        }
        self.sent += written as u64;
        self.is_unflushed |= is_buffered;
        self.consume(if faults::is_injected(InjectedFault::LosesBytes) { count } else { written }, input)
    }

    /// Records that more of the body was read into the input; `filled`: as much as there was room for.
    pub(crate) fn handle_read(&mut self, count: usize, filled: bool) {
        self.is_bulk |= filled;
        self.turn_bytes += count;
    }

    /// Says whether both sides are plain-text connections: see [`TransferStep::FillPipe`].
    pub(crate) fn set_splice(&mut self, may_splice: bool) {
        self.may_splice = may_splice;
    }

    /// How much the kernel may move by itself; `None` if every byte has to be seen, or it is not worthwhile.
    fn splice_bytes(&self) -> Option<u64> {
        let left = match self.source {
            Source::Length(left) => left,
            Source::UntilClose => u64::MAX,
            _ => return None,
        };
        let is_changed = self.call.is_some() || self.coding.is_some();
        let is_seen = self.copy.is_some() || self.allowance.is_some() || is_changed;
        let is_worth_it = self.is_bulk() && self.is_forgotten && left >= SPLICE_BYTES_MIN;
        (self.may_splice && is_worth_it && !is_seen).then_some(left)
    }

    /// Records that `count` bytes of the body are in the pipe.
    ///
    /// # Errors
    /// Those of [`Transfer::next`].
    pub(crate) fn handle_pipe_filled(&mut self, count: usize) -> Result<(), BodyError> {
        self.in_pipe += count as u64;
        self.turn_bytes += count;
        self.count(count)?;
        match &mut self.source {
            Source::Length(left) => {
                *left = left.saturating_sub(count as u64);
                if *left == 0 { self.finish(&[], &[]) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// Records that `count` bytes of the pipe were written.
    pub(crate) fn handle_pipe_drained(&mut self, count: usize) {
        self.in_pipe = self.in_pipe.saturating_sub(count as u64);
        self.sent += count as u64;
    }

    /// Records that the sender's connection has ended, so nothing more arrives.
    ///
    /// # Errors
    /// [`BodyError::Truncated`] if the body is not complete.
    pub(crate) fn handle_closed(&mut self) -> Result<(), BodyError> {
        match self.source {
            Source::UntilClose => self.finish(&[], &[]),
            Source::Length(_) if faults::is_injected(InjectedFault::EndsTruncated) => self.finish(&[], &[]),
            _ => Err(BodyError::Truncated),
        }
    }

    /// Whether the end of the HTTP/2 stream from which the body comes is not known yet.
    pub(crate) fn awaits_stream_end(&self) -> bool {
        matches!(self.source, Source::Frames)
    }

    /// Records that the HTTP/2 stream from which the body comes has ended: the input contains the last of it. If it has trailers, the
    /// caller puts them into the returned list of fields and bytes.
    pub(crate) fn handle_stream_end(&mut self, has_trailers: bool) -> Option<(&mut Vec<Field>, &mut Vec<u8>)> {
        self.source = Source::LastFrames;
        if !has_trailers {
            if let Some(trailers) = &mut self.trailers {
                trailers.fields.clear();
            }
            return None;
        }
        let trailers = self.trailers.get_or_insert_default();
        trailers.fields.clear();
        trailers.bytes.clear();
        Some((&mut trailers.fields, &mut trailers.bytes))
    }

    /// Bytes that were taken from the input since the last call, which the sender may replace by new ones.
    pub(crate) fn take_consumed(&mut self) -> usize {
        std::mem::take(&mut self.consumed)
    }

    /// Whether a pause of the sender flushes what was compressed.
    #[cfg(test)]
    pub(super) fn passes_on_at_once(&self) -> bool {
        self.coding.as_ref().is_some_and(|coding| coding.flushes())
    }

    /// Bytes that it holds.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.out.capacity() + self.head.len()
    }

    /// Frees what is not needed during a wait, because either side may be slow now.
    pub(crate) fn rest(&mut self) {
        if self.is_forgotten && self.written == self.out.len() {
            self.clear_out();
        }
        // A single read does not decide this: nginx writes 32 KiB at a time, and a small buffer takes the first half and a pipe the rest. A download
        // of 20 MB created 600 pipes when it did.
        if self.turn_bytes > 0 {
            self.is_bulk &= self.turn_bytes > SMALL_BYTES;
            self.turn_bytes = 0;
        }
    }

    /// Takes the body bytes of `input`. If they need no framing and no head precedes them, they should be forwarded: returns how many, and
    /// whether they end the stream. Otherwise they are put into `out`.
    fn take(&mut self, input: &mut Buffer) -> Result<Option<(usize, bool)>, BodyError> {
        let limit = match &self.source {
            Source::Length(remaining) => usize::try_from(*remaining).unwrap_or(usize::MAX),
            Source::UntilClose | Source::Frames | Source::LastFrames => usize::MAX,
            Source::Chunked(_) | Source::Done => return self.take_chunks(input).map(|()| None),
        };
        let limit = if self.coding.is_some() { limit.min(SLICE_BYTES_MAX) } else { limit };
        let piece = input.filled();
        let piece = piece.get(..limit.min(piece.len())).unwrap_or(piece);
        // Checked before anything of it is passed on.
        if self.allowance.is_some_and(|allowance| (piece.len() as u64) > allowance) {
            return Err(BodyError::TooLarge);
        }
        let has_pending = self.written < self.out.len()
            || matches!(self.sink, Sink::H2 { step: H2SinkState::Head, .. })
            || self.is_kept(piece.len());
        let is_chunked = self.sink == Sink::H1 { is_chunked: true };
        let is_translated = self.coding.is_some() || self.call.as_ref().is_some_and(|call| call.translation.is_some());
        let count = piece.len();
        let copied_max = if self.is_forgotten { COPIED_BYTES_MAX } else { COALESCE_BYTES_MAX };
        if is_chunked || is_translated || (has_pending && count <= copied_max) {
            self.put(piece)?;
            return self.consume(count, input).map(|()| None);
        }
        let is_first = match self.sink {
            // The kept part is written before anything that is not kept.
            Sink::H1 { .. } => self.is_forgotten || self.written == self.out.len(),
            Sink::H2 { step, .. } => step != H2SinkState::Head && self.written == self.out.len(),
        };
        if !is_first {
            // First what precedes it.
            return Ok(None);
        }
        self.is_forgotten = true;
        let ends = match &self.source {
            Source::Length(remaining) => *remaining == count as u64,
            Source::LastFrames => self.trailers.as_ref().is_none_or(|trailers| trailers.fields.is_empty()),
            _ => false,
        };
        Ok(Some((count, ends)))
    }

    /// Takes `count` bytes of the input.
    fn consume(&mut self, count: usize, input: &mut Buffer) -> Result<(), BodyError> {
        self.copy_received(input.filled().get(..count).unwrap_or_default());
        input.consume(count);
        self.consumed += count;
        self.count(count)?;
        match &mut self.source {
            Source::Length(remaining) => {
                *remaining -= count as u64;
                if *remaining == 0 { self.finish(&[], &[]) } else { Ok(()) }
            }
            // Detected here, and not when more is needed, so that the end is sent with the last bytes.
            Source::LastFrames if input.is_empty() => self.finish_frames(),
            _ => Ok(()),
        }
    }

    /// Decodes chunks, and frames the data for the receiver.
    fn take_chunks(&mut self, input: &mut Buffer) -> Result<(), BodyError> {
        self.forget_written(input.len());
        let is_chunked = self.sink == Sink::H1 { is_chunked: true };
        let mut bytes = input.filled();
        if self.coding.is_some() {
            bytes = bytes.get(..SLICE_BYTES_MAX.min(bytes.len())).unwrap_or(bytes);
        }
        let mut at = 0;
        let ended = loop {
            let Source::Chunked(decoder) = &mut self.source else { return Ok(()) };
            match decoder.decode(bytes, at).map_err(|_| BodyError::Framing)? {
                Decoded::More => break None,
                Decoded::Data(range) => {
                    at = range.end;
                    let data = bytes.get(range).unwrap_or_default();
                    put(&mut self.out, is_chunked, translated(&mut self.call, &mut self.coding, data)?);
                    self.copy_received(data);
                    self.count(data.len())?;
                }
                Decoded::End(end) => break Some(end),
            }
        };
        let consumed = ended.unwrap_or(bytes.len());
        input.consume(consumed);
        self.consumed += consumed;
        if ended.is_some()
            && let Source::Chunked(decoder) = std::mem::take(&mut self.source)
        {
            let mut fields = Vec::new();
            h1::parse_trailers(decoder.trailers(), &mut fields).map_err(|_| BodyError::Framing)?;
            self.finish(&fields, decoder.trailers())?;
        }
        Ok(())
    }

    fn put(&mut self, piece: &[u8]) -> Result<(), BodyError> {
        self.forget_written(piece.len());
        put(
            &mut self.out,
            self.sink == Sink::H1 { is_chunked: true },
            translated(&mut self.call, &mut self.coding, piece)?,
        );
        Ok(())
    }

    /// Whether `more` bytes are added after what was already written, so that everything can be sent again. Only over HTTP/2: there a small
    /// body nearly always follows its head, and endpoints report that they did not process a request.
    fn is_kept(&self, more: usize) -> bool {
        matches!(self.sink, Sink::H2 { .. }) && !self.is_forgotten && self.out.len() + more <= COALESCE_BYTES_MAX
    }

    /// Makes room in `out` once all of it is written, unless it is kept with this many more bytes.
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

    fn note_head_sent(&mut self, clock_us: impl FnOnce() -> u64) {
        if self.head_sent_us.is_none() {
            self.head_sent_us = Some(clock_us());
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), BodyError> {
        self.received += bytes as u64;
        if let Some(allowance) = &mut self.allowance {
            *allowance = allowance.checked_sub(bytes as u64).ok_or(BodyError::TooLarge)?;
        }
        Ok(())
    }

    /// The whole body in frames was taken, so its trailers may be sent.
    fn finish_frames(&mut self) -> Result<(), BodyError> {
        let Some(mut trailers) = self.trailers.take() else { return self.finish(&[], &[]) };
        let (fields, bytes) = (std::mem::take(&mut trailers.fields), std::mem::take(&mut trailers.bytes));
        self.trailers = Some(trailers);
        let finished = self.finish(&fields, &bytes);
        if let Some(trailers) = &mut self.trailers {
            (trailers.fields, trailers.bytes) = (fields, bytes);
        }
        finished
    }

    /// The whole body was taken.
    fn finish(&mut self, fields: &[Field], section: &[u8]) -> Result<(), BodyError> {
        self.source = Source::Done;
        if let Some(coding) = &mut self.coding {
            coding.handle_end(fields, section);
            return Ok(());
        }
        self.finish_framed(fields, section)
    }

    /// The whole body is in the form for the receiver.
    fn finish_framed(&mut self, fields: &[Field], section: &[u8]) -> Result<(), BodyError> {
        let fields = if faults::is_injected(InjectedFault::DropsTrailers) { &[] } else { fields };
        let fields = if self.finish_call(fields, section)? { &[] } else { fields };
        let shown: Vec<Field>;
        let fields = if self.hidden.is_some() || self.allowed != HeaderNames::Any {
            let hidden = self.hidden.as_deref().unwrap_or_default();
            let is_hidden = |name: &[u8]| hidden.iter().any(|hidden| is_alike(name, hidden.as_bytes()));
            let is_shown = |name: &[u8]| self.allowed.allows(name) && !is_hidden(name);
            shown = fields.iter().filter(|field| is_shown(field.name.get(section))).copied().collect();
            shown.as_slice()
        } else {
            fields
        };
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
                let trailers = self.trailers.get_or_insert_default();
                trailers.list.clear();
                headers::write_trailers(&mut trailers.list, fields, section);
                self.has_trailers = !trailers.list.is_empty();
            }
        }
        Ok(())
    }

    /// Records how a call has ended, and ends a translated body. Returns whether that contains the trailers.
    fn finish_call(&mut self, fields: &[Field], section: &[u8]) -> Result<bool, BodyError> {
        let Some(call) = &mut self.call else { return Ok(false) };
        call.status = grpc::find(fields, section, b"grpc-status").map(grpc::Status::parse);
        let Some(mut translation) = call.translation.take() else { return Ok(false) };
        let mut end = Vec::new();
        let has_trailers =
            translation.end(grpc::trailers(fields, section), &mut end).map_err(|_| BodyError::Framing)?;
        self.put(&end)?;
        Ok(has_trailers)
    }
}

/// Replaces a text near the beginning by another one of the same length.
pub(crate) fn replace_text(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    /// No head for an endpoint is longer, and a body may follow it.
    const HEAD_BYTES_MAX: usize = 128 * 1024;
    let head = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    let Some(at) = memchr::memmem::find(head, old) else { return };
    if let Some(place) = bytes.get_mut(at..at + old.len()).filter(|place| place.len() == new.len()) {
        place.copy_from_slice(new);
    }
}

/// A piece of a body in the form in which it is passed on.
fn translated<'p>(
    call: &'p mut Option<CallPart>,
    coding: &'p mut Option<Box<Coding>>,
    piece: &'p [u8],
) -> Result<&'p [u8], BodyError> {
    if let Some(coding) = coding {
        return coding.put(piece);
    }
    let Some(CallPart { translation: Some(translation), translated, .. }) = call else { return Ok(piece) };
    translated.clear();
    translation.piece(piece, translated).map_err(|_| BodyError::Framing)?;
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

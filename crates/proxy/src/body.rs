//! One direction of an exchange: a head, then a body re-framed on the way, with backpressure.
//!
//! A [`Pump`] reads only when what it read before has been written: a slow receiver stops its sender, and memory stays at one
//! buffer each way whatever the size of the body.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use net::buffer::{Buffer, LARGE_BYTES, SMALL_BYTES};
use tokio::io::AsyncWrite;
use wire::h1::{self, ChunkedDecoder, Decoded};
use wire::message::{Body, Field};

use crate::headers;
use crate::stream::Stream;

/// Bytes that one poll moves before other connections of the worker get their turn.
const TURN_BYTES_MAX: usize = 1024 * 1024;

/// Body bytes up to this many are copied behind the head that they follow, so that both leave in one write.
const COALESCE_BYTES_MAX: usize = SMALL_BYTES;

/// Moves one message from a reader to a writer.
#[derive(Default)]
pub(crate) struct Pump {
    source: Source,
    /// How the receiver gets the body.
    framing: Body,
    /// What is to be written before anything else: the head, and what was framed anew. `0 <= written <= out.len()`
    out: Vec<u8>,
    written: usize,
    /// Bytes of the body, as framed by the sender, that may still come; one more is an error.
    allowance: Option<u64>,
    /// Bytes of the body taken from the reader.
    pub(crate) received: u64,
    /// Bytes written, head and framing and all.
    pub(crate) sent: u64,
    /// When the last of the head was written, in microseconds; 0: not yet.
    pub(crate) head_sent_us: u64,
    /// Something of the message was written and is not in `out` any more: it cannot be sent again.
    is_forgotten: bool,
    /// Something was written that the receiver's stream may still hold.
    is_unflushed: bool,
    /// What of the body was taken, where somebody else wants it too.
    copy: Option<Box<Copy>>,
}

/// A body kept for another than its receiver: `data.len() <= bytes_max`.
struct Copy {
    data: Vec<u8>,
    bytes_max: usize,
    /// The body is longer.
    is_over: bool,
}

#[derive(Default)]
enum Source {
    #[default]
    Done,
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
    UntilClose,
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
    /// Begins a message: `body` as the sender frames it, `framing` as the receiver shall get it. The head is to be put into what
    /// this returns, and leaves with the first bytes of the body.
    pub(crate) fn start(&mut self, body: Body, framing: Body, body_bytes_max: Option<u64>) -> &mut Vec<u8> {
        self.source = match body {
            Body::None => Source::Done,
            Body::Length(length) => Source::Length(length),
            Body::Chunked => Source::Chunked(Box::default()),
            Body::UntilClose => Source::UntilClose,
        };
        self.framing = framing;
        self.allowance = body_bytes_max;
        self.written = 0;
        self.received = 0;
        self.sent = 0;
        self.head_sent_us = 0;
        self.is_forgotten = false;
        self.is_unflushed = false;
        self.copy = None;
        self.out.clear();
        &mut self.out
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
        self.is_read() && self.written == self.out.len() && !self.is_unflushed
    }

    /// The receiver has all that was read: if the pump waits, it waits for the sender.
    pub(crate) fn waits_for_sender(&self, input: &Buffer) -> bool {
        self.written == self.out.len() && !self.is_unflushed && input.is_empty()
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
        let mut turn = 0;
        loop {
            if !self.is_read() && !input.is_empty() {
                turn += ready!(self.poll_take(cx, input, writer))?;
            }
            ready!(self.poll_flush(cx, writer)).map_err(Failure::Write)?;
            if self.is_read() {
                return Poll::Ready(Ok(()));
            }
            if !input.is_empty() {
                continue;
            }
            if turn >= TURN_BYTES_MAX {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            ready!(self.poll_read(cx, reader, input))?;
        }
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        reader: &mut Stream,
        input: &mut Buffer,
    ) -> Poll<Result<(), Failure>> {
        input.grow(SMALL_BYTES);
        let count = ready!(input.poll_fill(cx, reader)).map_err(Failure::Read)?;
        if count == 0 {
            return match self.source {
                Source::UntilClose => {
                    self.finish(&[]);
                    Poll::Ready(Ok(()))
                }
                _ => Poll::Ready(Err(Failure::Truncated)),
            };
        }
        // A buffer filled to the brim is a body that comes faster than it is read: larger pieces cost less each byte.
        if input.is_full() && input.capacity() < LARGE_BYTES && self.framing != Body::Chunked {
            input.grow(LARGE_BYTES);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes what `input` has of the body: to the writer at once where it needs no framing and no head goes before it, else to `out`.
    fn poll_take(
        &mut self,
        cx: &mut Context<'_>,
        input: &mut Buffer,
        writer: &mut Stream,
    ) -> Poll<Result<usize, Failure>> {
        let limit = match &self.source {
            Source::Length(remaining) => usize::try_from(*remaining).unwrap_or(usize::MAX),
            Source::UntilClose => usize::MAX,
            Source::Chunked(_) | Source::Done => return Poll::Ready(self.take_chunks(input)),
        };
        let piece = input.filled();
        let piece = piece.get(..limit.min(piece.len())).unwrap_or(piece);
        // Judged before anything of it is passed on.
        if self.allowance.is_some_and(|allowance| (piece.len() as u64) > allowance) {
            return Poll::Ready(Err(Failure::TooLarge));
        }
        let has_pending = self.written < self.out.len();
        let count = if self.framing == Body::Chunked || (has_pending && piece.len() <= COALESCE_BYTES_MAX) {
            let count = piece.len();
            self.put(piece);
            count
        } else {
            ready!(self.poll_flush(cx, writer)).map_err(Failure::Write)?;
            self.is_forgotten = true;
            self.is_unflushed |= writer.plain().is_none();
            let count = match ready!(Pin::new(writer).poll_write(cx, piece)) {
                Ok(0) => return Poll::Ready(Err(Failure::Write(io::ErrorKind::WriteZero.into()))),
                outcome => outcome.map_err(Failure::Write)?,
            };
            self.sent += count as u64;
            count
        };
        self.copy(piece.get(..count).unwrap_or(piece));
        input.consume(count);
        self.count(count)?;
        if let Source::Length(remaining) = &mut self.source {
            *remaining -= count as u64;
            if *remaining == 0 {
                self.finish(&[]);
            }
        }
        Poll::Ready(Ok(count))
    }

    /// Decodes chunks, and frames the data for the receiver.
    fn take_chunks(&mut self, input: &mut Buffer) -> Result<usize, Failure> {
        self.forget_written();
        let bytes = input.filled();
        let mut at = 0;
        let ended = loop {
            let Source::Chunked(decoder) = &mut self.source else { return Ok(0) };
            match decoder.decode(bytes, at).map_err(|_| Failure::Framing)? {
                Decoded::More => break None,
                Decoded::Data(range) => {
                    at = range.end;
                    let data = bytes.get(range).unwrap_or_default();
                    put(&mut self.out, self.framing, data);
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
            self.finish_with(&fields, decoder.trailers());
        }
        Ok(consumed)
    }

    fn put(&mut self, piece: &[u8]) {
        self.forget_written();
        put(&mut self.out, self.framing, piece);
    }

    /// Makes room in `out` once all of it is written.
    fn forget_written(&mut self) {
        if self.written == self.out.len() && self.written > 0 {
            self.is_forgotten = true;
            self.out.clear();
            self.written = 0;
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), Failure> {
        self.received += bytes as u64;
        if let Some(allowance) = &mut self.allowance {
            *allowance = allowance.checked_sub(bytes as u64).ok_or(Failure::TooLarge)?;
        }
        Ok(())
    }

    fn finish(&mut self, fields: &[Field]) {
        self.finish_with(fields, &[]);
    }

    fn finish_with(&mut self, fields: &[Field], section: &[u8]) {
        self.source = Source::Done;
        if self.framing == Body::Chunked {
            self.forget_written();
            self.out.extend_from_slice(b"0\r\n");
            headers::write_trailers(&mut self.out, fields, section);
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, writer: &mut Stream) -> Poll<io::Result<()>> {
        while let Some(rest) = self.out.get(self.written..).filter(|rest| !rest.is_empty()) {
            let count = ready!(Pin::new(&mut *writer).poll_write(cx, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.sent += count as u64;
            self.is_unflushed |= writer.plain().is_none();
        }
        if self.is_unflushed {
            ready!(Pin::new(writer).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        if self.head_sent_us == 0 {
            self.head_sent_us = net::clock::now_us();
        }
        Poll::Ready(Ok(()))
    }
}

fn put(out: &mut Vec<u8>, framing: Body, piece: &[u8]) {
    if piece.is_empty() {
        return;
    }
    if framing == Body::Chunked {
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

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// Sends `bytes` through a pump behind the head `H`: what the receiver gets, or how it failed, and what is left unread.
    async fn pump(body: Body, framing: Body, max: Option<u64>, bytes: &[u8]) -> (Result<Vec<u8>, String>, Vec<u8>) {
        let ((mut sender, from), (to, mut receiver)) = (pair().await, pair().await);
        let (mut from, mut to) = (Stream::Plain(from), Stream::Plain(to));
        sender.write_all(bytes).await.unwrap();
        sender.shutdown().await.unwrap();
        let mut pump = Pump::default();
        pump.start(body, framing, max).push(b'H');
        let mut input = Buffer::small();
        let outcome = poll_fn(|cx| pump.poll(cx, &mut from, &mut input, &mut to)).await;
        drop(to);
        let mut got = Vec::new();
        receiver.read_to_end(&mut got).await.unwrap();
        let left = input.filled().to_vec();
        (outcome.map(|()| got).map_err(|failure| format!("{failure:?}")), left)
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
    fn large_bodies_arrive_whole() {
        let text = "0123456789abcdef".repeat(100_000);
        let expect = format!("H{text}");
        check(Body::Length(text.len() as u64), Body::Length(1), &text, Ok(&expect), "");
        check(Body::UntilClose, Body::UntilClose, &text, Ok(&expect), "");
    }
}

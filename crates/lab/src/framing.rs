//! Finds the end of a message body (RFC 9112 section 6), for requests at the origin and responses at the load.
//!
//! It reads all three framings as one pull reader over a [`ReadBuffer`]. It is less strict than a balancer must be: a measuring tool only
//! has to notice that something is wrong.

use std::io;
use std::ops::Range;

use tokio::io::AsyncRead;

use crate::buffer::ReadBuffer;

/// More bytes of trailers than this are an error.
const TRAILER_BYTES_MAX: usize = 64 * 1024;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// This many bytes; zero means no body.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Until the connection closes; only for responses.
    UntilClose,
}

/// Reads one body to its end.
pub(crate) struct BodyReader {
    state: State,
    trailer_bytes: usize,
}

enum State {
    Length(u64),
    UntilClose,
    ChunkSize,
    /// Bytes of the chunk that have not arrived yet.
    ChunkData(u64),
    /// The CRLF after a chunk's data.
    ChunkEnd,
    Trailers,
    Done,
}

enum BodyPart {
    /// This range of the input is data; what is before it is framing.
    Data(Range<usize>),
    /// This many bytes are used, and the rest needs more input.
    More(usize),
    /// The body ended after this many bytes of the input.
    Done(usize),
}

impl BodyReader {
    pub(crate) fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, trailer_bytes: 0 }
    }

    /// Reads the whole body through `buffer` and discards it. Returns its number of bytes.
    pub(crate) async fn drain<S: AsyncRead + Unpin>(
        mut self,
        buffer: &mut ReadBuffer,
        source: &mut S,
    ) -> io::Result<u64> {
        let mut total = 0;
        while let Some(count) = self.next_data(buffer, source, |_| ()).await? {
            total += count as u64;
        }
        Ok(total)
    }

    /// Passes the next piece of data to `take` and consumes it. Returns `None` at the end of the body.
    pub(crate) async fn next_data<S: AsyncRead + Unpin>(
        &mut self,
        buffer: &mut ReadBuffer,
        source: &mut S,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<Option<usize>> {
        loop {
            match self.step(buffer.unused())? {
                BodyPart::Data(range) => {
                    take(&buffer.unused()[range.clone()]);
                    buffer.consume(range.end);
                    return Ok(Some(range.len()));
                }
                BodyPart::Done(used) => {
                    buffer.consume(used);
                    return Ok(None);
                }
                BodyPart::More(used) => buffer.consume(used),
            }
            if buffer.fill(source).await? == 0 {
                return match self.state {
                    State::UntilClose => Ok(None),
                    _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection closed inside a body")),
                };
            }
        }
    }

    fn step(&mut self, input: &[u8]) -> io::Result<BodyPart> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match self.state {
                State::Length(0) | State::Done => return Ok(BodyPart::Done(at)),
                _ if rest.is_empty() => return Ok(BodyPart::More(at)),
                State::Length(left) => {
                    let count = count_of(left, rest);
                    self.state = State::Length(left - count as u64);
                    return Ok(BodyPart::Data(at..at + count));
                }
                State::UntilClose => return Ok(BodyPart::Data(at..input.len())),
                State::ChunkSize => match httparse::parse_chunk_size(rest) {
                    Ok(httparse::Status::Complete((used, size))) => {
                        at += used;
                        self.state = if size == 0 { State::Trailers } else { State::ChunkData(size) };
                    }
                    Ok(httparse::Status::Partial) => return Ok(BodyPart::More(at)),
                    Err(_) => return Err(invalid("an invalid chunk size")),
                },
                State::ChunkData(left) => {
                    let count = count_of(left, rest);
                    let left = left - count as u64;
                    self.state = if left == 0 { State::ChunkEnd } else { State::ChunkData(left) };
                    return Ok(BodyPart::Data(at..at + count));
                }
                State::ChunkEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        at += 2;
                        self.state = State::ChunkSize;
                    }
                    [b'\r'] => return Ok(BodyPart::More(at)),
                    _ => return Err(invalid("the data of a chunk do not end with CRLF")),
                },
                State::Trailers => {
                    let Some(end) = memchr::memchr(b'\n', rest) else { return Ok(BodyPart::More(at)) };
                    at += end + 1;
                    self.trailer_bytes += end + 1;
                    if self.trailer_bytes > TRAILER_BYTES_MAX {
                        return Err(invalid("the trailers are larger than 64 KiB"));
                    }
                    if matches!(&rest[..end], b"" | b"\r") {
                        self.state = State::Done;
                    }
                }
            }
        }
    }
}

fn count_of(left: u64, rest: &[u8]) -> usize {
    usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()))
}

/// Whether a comma-separated header value contains `token`, ignoring case.
pub(crate) fn has_token(value: &[u8], token: &str) -> bool {
    value.split(|&byte| byte == b',').any(|member| member.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

/// A Content-Length value: digits only.
pub(crate) fn content_length(value: &[u8]) -> io::Result<u64> {
    let digits_only = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(value).ok().filter(|_| digits_only).and_then(|text| text.parse().ok());
    number.ok_or_else(|| invalid("the content-length is not a number"))
}

pub(crate) fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `input` as a body, in one piece and byte by byte. Expects `Some((data, rest of the input))`, or `None` for a refusal.
    #[track_caller]
    fn check(framing: Framing, input: &str, expect: Option<(&str, &str)>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for piece in [input.len().max(1), 1] {
            let mut source = pieces_of(input, piece);
            let mut buffer = ReadBuffer::new();
            let mut reader = BodyReader::new(framing);
            let mut data = Vec::new();
            let outcome = runtime.block_on(async {
                while reader.next_data(&mut buffer, &mut source, |piece| data.extend_from_slice(piece)).await?.is_some()
                {
                }
                while buffer.fill(&mut source).await? > 0 {}
                io::Result::Ok(())
            });
            let got =
                outcome.ok().map(|()| (String::from_utf8(data).unwrap(), String::from_utf8_lossy(buffer.unused())));
            let got = got.as_ref().map(|(data, rest)| (data.as_str(), rest.as_ref()));
            assert_eq!(got, expect, "{framing:?} {input:?} in pieces of {piece}");
        }
    }

    /// A source that returns at most `piece` bytes per read.
    fn pieces_of(input: &str, piece: usize) -> impl AsyncRead + Unpin + use<> {
        struct Pieces(Vec<u8>, usize);
        impl AsyncRead for Pieces {
            fn poll_read(
                mut self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                to: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<io::Result<()>> {
                let count = self.1.min(self.0.len()).min(to.remaining());
                to.put_slice(&self.0.drain(..count).collect::<Vec<_>>());
                std::task::Poll::Ready(Ok(()))
            }
        }
        Pieces(input.as_bytes().to_vec(), piece)
    }

    #[test]
    fn bodies_end_where_they_should() {
        check(Framing::Length(0), "next", Some(("", "next")));
        check(Framing::Length(5), "hellonext", Some(("hello", "next")));
        check(Framing::Length(5), "hell", None);
        check(Framing::UntilClose, "hello", Some(("hello", "")));
        check(Framing::Chunked, "0\r\n\r\nnext", Some(("", "next")));
        check(Framing::Chunked, "5\r\nhello\r\n0\r\n\r\nnext", Some(("hello", "next")));
        check(
            Framing::Chunked,
            "5;a=b\r\nhello\r\n6\r\n world\r\n0\r\na: b\r\nc: d\r\n\r\n",
            Some(("hello world", "")),
        );
        check(Framing::Chunked, "A\r\n0123456789\r\n0\r\n\r\n", Some(("0123456789", "")));
        check(Framing::Chunked, "5\r\nhello0\r\n\r\n", None);
        check(Framing::Chunked, "x\r\n", None);
        check(Framing::Chunked, "5\r\nhello\r\n", None);
        check(Framing::Chunked, "0\r\na: b\r\n", None);
    }

    #[test]
    fn content_lengths() {
        for (input, expect) in
            [("0", Some(0)), ("18", Some(18)), ("", None), ("+5", None), ("0x5", None), ("1, 1", None)]
        {
            assert_eq!(content_length(input.as_bytes()).ok(), expect, "{input:?}");
        }
    }

    #[test]
    fn tokens() {
        assert!(has_token(b"Keep-Alive, Close", "close"));
        assert!(!has_token(b"not-close", "close"));
    }
}

//! The chunked coding (RFC 9112 section 7.1), decoded in whatever pieces it arrives.
//!
//! Extensions are checked and dropped, because their meaning does not cross a hop. Every line ends in CRLF, and a size is one to sixteen
//! plain hexadecimal digits. What follows the last chunk is returned as a trailer section of limited size.

use std::ops::Range;

/// The longest chunk line, with its extensions. In practice, extensions only serve to hide things and to cause work.
pub const CHUNK_LINE_BYTES_MAX: usize = 256;

/// The longest trailer section, with the empty line that ends it.
pub const TRAILER_BYTES_MAX: usize = 8 * 1024;

/// Decodes one body. Pass it bytes until [`Decoded::End`].
#[derive(Debug, Default)]
pub struct ChunkedDecoder {
    state: State,
    /// Bytes of the current chunk that have not arrived.
    remaining: u64,
    /// Bytes of the current line, including its end: `<= CHUNK_LINE_BYTES_MAX`.
    line_bytes: usize,
    /// Digits of the current size: `<= 16`.
    digits: u8,
    /// Everything after the last chunk's line: `<= TRAILER_BYTES_MAX`.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    /// White space before an extension (RFC 9112 section 7.1.1 allows it and calls it bad).
    SizeSpace,
    Extension,
    QuotedExtension,
    QuotedPair,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    End,
}

/// What the decoder found in the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All of the bytes were framing. The decoder needs more.
    More,
    /// This range of the bytes is data. Continue after it.
    Data(Range<usize>),
    /// The body ended before this position.
    End(usize),
}

/// The body is not validly chunked. Nothing after the last data can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkError;

impl std::fmt::Display for ChunkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("malformed chunked body")
    }
}

impl std::error::Error for ChunkError {}

impl ChunkedDecoder {
    /// Decodes `bytes` from position `from` on. After [`Decoded::Data`], continue with `from` at its end; for new bytes, start at 0.
    ///
    /// # Errors
    /// [`ChunkError`]. The decoder must not be used after it.
    pub fn decode(&mut self, bytes: &[u8], from: usize) -> Result<Decoded, ChunkError> {
        let mut at = from;
        while let Some(byte) = bytes.get(at).copied() {
            match self.state {
                State::Data => {
                    let available = (bytes.len() - at) as u64;
                    let taken = self.remaining.min(available);
                    self.remaining -= taken;
                    if self.remaining == 0 {
                        self.state = State::DataCr;
                    }
                    return Ok(Decoded::Data(at..at + taken as usize));
                }
                State::DataCr if byte == b'\r' => self.state = State::DataLf,
                State::DataLf if byte == b'\n' => self.start_line(),
                State::Trailers => {
                    self.take_trailer(byte)?;
                    if self.state == State::End {
                        return Ok(Decoded::End(at + 1));
                    }
                }
                State::DataCr | State::DataLf | State::End => return Err(ChunkError),
                _ => self.take_line(byte)?,
            }
            at += 1;
        }
        Ok(Decoded::More)
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::End
    }

    /// The fewest bytes that are still to come, up to the end of the body.
    pub fn missing_min(&self) -> u64 {
        // After the line of a chunk: its data, the end of its line, the last chunk `0`, and the empty line.
        let after_line = if self.remaining == 0 { 2 } else { self.remaining.saturating_add(7) };
        match self.state {
            State::Size if self.digits == 0 => 5,
            State::Data => after_line,
            State::DataCr => 7,
            State::DataLf => 6,
            State::SizeLf => after_line.saturating_add(1),
            State::Size | State::SizeSpace | State::Extension | State::QuotedExtension | State::QuotedPair => {
                after_line.saturating_add(2)
            }
            State::Trailers if self.trailers.is_empty() => 2,
            State::Trailers => 1,
            State::End => 0,
        }
    }

    /// The trailer section with its empty line, once the body has ended. It is just `\r\n` if there are no trailers.
    pub fn trailers(&self) -> &[u8] {
        &self.trailers
    }

    fn start_line(&mut self) {
        self.state = State::Size;
        self.line_bytes = 0;
        self.digits = 0;
        self.remaining = 0;
    }

    fn take_line(&mut self, byte: u8) -> Result<(), ChunkError> {
        self.line_bytes += 1;
        if self.line_bytes > CHUNK_LINE_BYTES_MAX {
            return Err(ChunkError);
        }
        self.state = match (self.state, byte) {
            (State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                self.digits += 1;
                // Sixteen digits are 64 bits. One more could overflow, and leading zeros are a way to hide one.
                if self.digits > 16 {
                    return Err(ChunkError);
                }
                let digit = (byte as char).to_digit(16).ok_or(ChunkError)?;
                self.remaining = (self.remaining << 4) | u64::from(digit);
                State::Size
            }
            (State::Size | State::SizeSpace, _) if self.digits == 0 => return Err(ChunkError),
            (State::Size | State::SizeSpace | State::Extension, b';') => State::Extension,
            (State::Size | State::SizeSpace, b' ' | b'\t') => State::SizeSpace,
            (State::Size | State::Extension, b'\r') => State::SizeLf,
            (State::Extension, b'"') => State::QuotedExtension,
            (State::QuotedExtension, b'"') => State::Extension,
            (State::QuotedExtension, b'\\') => State::QuotedPair,
            (State::QuotedPair, b'\t' | b' '..=b'~' | 0x80..) => State::QuotedExtension,
            (State::Extension | State::QuotedExtension, b'\t' | b' '..=b'~' | 0x80..) => self.state,
            (State::SizeLf, b'\n') if self.remaining == 0 => State::Trailers,
            (State::SizeLf, b'\n') => State::Data,
            _ => return Err(ChunkError),
        };
        Ok(())
    }

    fn take_trailer(&mut self, byte: u8) -> Result<(), ChunkError> {
        if self.trailers.len() == TRAILER_BYTES_MAX {
            return Err(ChunkError);
        }
        // CR and LF are only valid as a pair: some readers take a lone one for an end of line and others do not.
        let after_cr = self.trailers.last() == Some(&b'\r');
        if after_cr != (byte == b'\n') {
            return Err(ChunkError);
        }
        self.trailers.push(byte);
        if self.trailers == b"\r\n" || self.trailers.ends_with(b"\r\n\r\n") {
            self.state = State::End;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes `body` in pieces of at most `piece` bytes. Returns the data, the trailers, and how many bytes were consumed.
    fn decode(body: &[u8], piece: usize) -> Result<(Vec<u8>, Vec<u8>, usize), ChunkError> {
        let mut decoder = ChunkedDecoder::default();
        let mut data = Vec::new();
        let mut base = 0;
        for bytes in body.chunks(piece) {
            let mut from = 0;
            loop {
                match decoder.decode(bytes, from)? {
                    Decoded::More => break,
                    Decoded::Data(range) => {
                        data.extend_from_slice(&bytes[range.clone()]);
                        from = range.end;
                    }
                    Decoded::End(at) => return Ok((data, decoder.trailers().to_vec(), base + at)),
                }
            }
            base += bytes.len();
        }
        Ok((data, b"partial".to_vec(), base))
    }

    #[test]
    fn what_is_missing_is_never_overestimated() {
        let check = |body: &str, is_exact: bool| {
            for split in 0..=body.len() {
                let mut decoder = ChunkedDecoder::default();
                let (arrived, missing) = body.as_bytes().split_at(split);
                let mut from = 0;
                while let Decoded::Data(range) = decoder.decode(arrived, from).unwrap() {
                    from = range.end;
                }
                let (least, exact) = (decoder.missing_min(), missing.len() as u64);
                assert!(least <= exact && (least > 0) == (exact > 0), "{arrived:?}: {least}, and {exact} are");
                assert!(!is_exact || least == exact, "{arrived:?}: {least}, and {exact} are");
            }
        };
        check("0\r\n\r\n", true);
        check("0\r\nA: b\r\n\r\n", false);
        check("a\r\n0123456789\r\n0\r\n\r\n", false);
        check("00a ; x=\"\\\"\"\r\n0123456789\r\n5;a\r\n01234\r\n000\r\n\r\n", false);
        let mut decoder = ChunkedDecoder::default();
        decoder.decode(b"ffffffffffffffff\r\n", 0).unwrap();
        assert_eq!(decoder.missing_min(), u64::MAX);
        // Within a chunk.
        let mut decoder = ChunkedDecoder::default();
        decoder.decode(b"a\r\n012", 0).unwrap();
        assert_eq!(decoder.missing_min(), 7 + 7);
    }

    #[track_caller]
    fn check(body: &str, expect: Result<(&str, &str), ChunkError>) {
        let expect = expect.map(|(data, trailers)| (data.as_bytes().to_vec(), trailers.as_bytes().to_vec()));
        for piece in [1, 2, 3, 1000] {
            let got = decode(body.as_bytes(), piece).map(|(data, trailers, _)| (data, trailers));
            assert_eq!(got, expect, "{body:?} in pieces of {piece}");
        }
    }

    #[test]
    fn well_formed_bodies() {
        check("5\r\nhello\r\n0\r\n\r\n", Ok(("hello", "\r\n")));
        check("0\r\n\r\n", Ok(("", "\r\n")));
        check("3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", Ok(("abc0123456789", "\r\n")));
        check("5;a=b;c=\"d;\\\"\\r\"\r\nhello\r\n0;last\r\n\r\n", Ok(("hello", "\r\n")));
        check("0005\r\nhello\r\n000\r\n\r\n", Ok(("hello", "\r\n")));
        check("1\r\na\r\n0\r\nX: y\r\nZ: w\r\n\r\n", Ok(("a", "X: y\r\nZ: w\r\n\r\n")));
        check("5\r\nhel", Ok(("hel", "partial")));
    }

    #[test]
    fn hostile_bodies() {
        for body in [
            "\r\n",
            ";\r\n",
            " 5\r\nhello\r\n",
            "+5\r\nhello",
            "-5\r\n",
            "0x5\r\nhello",
            "5_0\r\n",
            "g\r\n",
            "5\nhello\r\n",
            "5\rhello",
            "5\r\rhello",
            "5\r\nhello0\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhello\r0\r\n",
            "5\r\nhelloworld\r\n",
            "00000000000000005\r\nhello",
            "fffffffffffffffff\r\n",
            "5;a\nb\r\nhello",
            "5;\"a\r\n\"\r\nhello",
            "5;a=\0\r\n",
            "5 \r\nhello",
            "0\r\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\nA: b\rC: d\r\n\r\n",
            "0\n\r\n",
        ] {
            check(body, Err(ChunkError));
        }
        check(&format!("5;{}\r\n", "a".repeat(CHUNK_LINE_BYTES_MAX)), Err(ChunkError));
        check(&format!("0\r\n{}", "A: b\r\n".repeat(TRAILER_BYTES_MAX / 6 + 1)), Err(ChunkError));
    }

    #[test]
    fn what_follows_is_left_alone() {
        assert_eq!(decode(b"1\r\na\r\n0\r\n\r\nGET / HTTP/1.1\r\n", 1000).unwrap().2, 11);
    }

    proptest::proptest! {
        #[test]
        fn pieces_do_not_matter(bytes in proptest::collection::vec(
            proptest::sample::select(b"0123abf;\r\n\"x: ".to_vec()), 0..80), piece in 1_usize..20)
        {
            proptest::prop_assert_eq!(decode(&bytes, piece), decode(&bytes, 1000));
        }
    }
}

//! gRPC-Web ("PROTOCOL-WEB"): the bodies of calls from browsers, which see no trailers and, in the text form, no bytes.
//!
//! A request's body is that of gRPC, in base64 if the content type says `-text`. A response's body is that of gRPC followed by a frame with
//! the trailers, also in base64 for `-text`. Both are translated as they arrive, and never more than three bytes of a body are kept.

use wire::message::Field;

use super::content::Call;

/// The flag of the frame with the trailers. In gRPC, the first byte of a message says whether it is compressed.
const TRAILERS: u8 = 0x80;

/// The length of a message's prefix: a flag, and the message's length in four bytes.
const PREFIX_BYTES: usize = 5;

/// How a body is translated.
#[derive(Debug)]
pub(crate) enum Translation {
    /// A request's body, from text.
    Decode(TextDecoder),
    /// A response's body.
    Encode(ResponseEncoder),
}

impl Translation {
    /// For the request of a call; `None` if its body is that of gRPC already.
    pub(crate) fn of_request(call: Call) -> Option<Self> {
        (call == Call::Web { is_text: true }).then(|| Self::Decode(TextDecoder::default()))
    }

    /// For the response to a call; `None` if the client needs no translation.
    pub(crate) fn of_response(call: Call) -> Option<Self> {
        match call {
            Call::Grpc => None,
            Call::Web { is_text } => Some(Self::Encode(ResponseEncoder::new(is_text))),
        }
    }

    /// Adds the translation of a piece to `out`.
    pub(crate) fn piece(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), BadBase64> {
        match self {
            Self::Decode(decoder) => decoder.decode(piece, out),
            Self::Encode(encoder) => {
                encoder.encode(piece, out);
                Ok(())
            }
        }
    }

    /// Adds the end of the body. Returns whether it contains the trailers.
    pub(crate) fn end<'f>(
        &mut self,
        trailers: impl Iterator<Item = (&'f [u8], &'f [u8])>,
        out: &mut Vec<u8>,
    ) -> Result<bool, BadBase64> {
        match self {
            Self::Decode(decoder) => decoder.finish().map(|()| false),
            Self::Encode(encoder) => {
                encoder.finish(trailers, out);
                Ok(true)
            }
        }
    }
}

/// The text is not base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadBase64;

/// Decodes the base64 (RFC 4648 section 4) of a request's body, piece by piece.
///
/// Clients encode pieces separately and send them one after the other, so padding may follow any group of four.
#[derive(Debug, Default)]
pub(crate) struct TextDecoder {
    group: [u8; 4],
    /// Characters in `group`: `< 4`.
    length: usize,
}

impl TextDecoder {
    /// Adds to `out` the bytes of `input` that are complete.
    pub(crate) fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), BadBase64> {
        out.reserve(input.len() / 4 * 3 + 3);
        for byte in input {
            if let Some(place) = self.group.get_mut(self.length) {
                *place = *byte;
            }
            self.length += 1;
            if self.length == self.group.len() {
                decode_group(self.group, out)?;
                self.length = 0;
            }
        }
        Ok(())
    }

    /// Checks that the text may end here.
    pub(crate) fn finish(&self) -> Result<(), BadBase64> {
        if self.length == 0 { Ok(()) } else { Err(BadBase64) }
    }
}

/// Decodes four characters into three bytes, or fewer if there is padding. Unused bits must be zero (RFC 4648 section 3.5).
fn decode_group(group: [u8; 4], out: &mut Vec<u8>) -> Result<(), BadBase64> {
    let [a, b, c, d] = group;
    let length = match (c, d) {
        (b'=', b'=') => 1,
        (_, b'=') => 2,
        _ => 3,
    };
    let of = |character| if character == b'=' { Ok(0) } else { sextet(character).ok_or(BadBase64) };
    let bits = sextet(a).ok_or(BadBase64)? << 18 | sextet(b).ok_or(BadBase64)? << 12 | of(c)? << 6 | of(d)?;
    let (has_stray_padding, unused) = match length {
        1 => (false, bits & 0xFFFF),
        2 => (false, bits & 0xFF),
        _ => (c == b'=', 0),
    };
    if has_stray_padding || unused != 0 {
        return Err(BadBase64);
    }
    let [_, bytes @ ..] = bits.to_be_bytes();
    out.extend(bytes.iter().take(length));
    Ok(())
}

fn sextet(character: u8) -> Option<u32> {
    let value = match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// Translates a response's body.
#[derive(Debug)]
pub(crate) struct ResponseEncoder {
    text: Option<TextEncoder>,
}

impl ResponseEncoder {
    /// `is_text`: the client uses base64.
    pub(crate) fn new(is_text: bool) -> Self {
        Self { text: is_text.then(TextEncoder::default) }
    }

    /// Adds a piece of the body to `out`.
    pub(crate) fn encode(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        match &mut self.text {
            None => out.extend_from_slice(piece),
            Some(text) => text.encode(piece, out),
        }
    }

    /// Adds the trailers, which end the body: a block of lines as in HTTP/1, with names in lower case.
    pub(crate) fn finish<'f>(&mut self, trailers: impl Iterator<Item = (&'f [u8], &'f [u8])>, out: &mut Vec<u8>) {
        let mut frame = vec![TRAILERS, 0, 0, 0, 0];
        for (name, value) in trailers {
            frame.extend(name.iter().map(u8::to_ascii_lowercase));
            frame.push(b':');
            frame.extend_from_slice(value);
            frame.extend_from_slice(b"\r\n");
        }
        let length = u32::try_from(frame.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
        if let Some(place) = frame.get_mut(1..PREFIX_BYTES) {
            place.copy_from_slice(&length.to_be_bytes());
        }
        match &mut self.text {
            None => out.extend_from_slice(&frame),
            Some(text) => {
                text.end_group(out);
                encode_all(&frame, out);
            }
        }
    }
}

/// The fields of a trailer section, for [`ResponseEncoder::finish`].
pub(crate) fn trailers<'f>(fields: &'f [Field], section: &'f [u8]) -> impl Iterator<Item = (&'f [u8], &'f [u8])> {
    fields.iter().map(|field| (field.name.get(section), field.value.get(section)))
}

/// Base64 of a stream of messages. Each message ends with its own padding, so that it does not wait for the next one to fill its last group
/// of four: the next message of a stream may come an hour later.
#[derive(Debug, Default)]
struct TextEncoder {
    group: [u8; 3],
    /// Bytes in `group`: `< 3`.
    length: usize,
    messages: Messages,
}

impl TextEncoder {
    fn encode(&mut self, mut piece: &[u8], out: &mut Vec<u8>) {
        out.reserve(piece.len().div_ceil(3) * 4 + 4);
        while !piece.is_empty() {
            let (within, rest) = piece.split_at(self.messages.take(piece));
            piece = rest;
            for byte in within {
                if let Some(place) = self.group.get_mut(self.length) {
                    *place = *byte;
                }
                self.length += 1;
                if self.length == self.group.len() {
                    encode_group(self.group, 3, out);
                    self.length = 0;
                }
            }
            if self.messages.is_at_end() {
                self.end_group(out);
            }
        }
    }

    fn end_group(&mut self, out: &mut Vec<u8>) {
        if self.length > 0 {
            self.group.iter_mut().skip(self.length).for_each(|byte| *byte = 0);
            encode_group(self.group, self.length, out);
            self.length = 0;
        }
    }
}

/// Base64 (RFC 4648 section 4), with padding.
pub(crate) fn encode_all(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group.iter_mut().zip(chunk).for_each(|(place, byte)| *place = *byte);
        encode_group(group, chunk.len(), out);
    }
}

/// The first `length` bytes of a group: `1 <= length <= 3`.
fn encode_group([a, b, c]: [u8; 3], length: usize, out: &mut Vec<u8>) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u32::from_be_bytes([0, a, b, c]);
    for (place, shift) in [18, 12, 6, 0].into_iter().enumerate() {
        let sextet = (bits >> shift & 63) as usize;
        out.push(if place <= length { ALPHABET.get(sextet).copied().unwrap_or(b'=') } else { b'=' });
    }
}

/// Finds the ends of messages in a gRPC body.
#[derive(Debug, Default)]
struct Messages {
    prefix: [u8; PREFIX_BYTES],
    /// Bytes of the prefix that have arrived: `<= PREFIX_BYTES`.
    prefix_length: usize,
    /// Bytes of the message that are still missing, once the prefix is complete.
    left: u64,
}

impl Messages {
    /// How many bytes of `piece`, which is not empty, belong to the current message.
    fn take(&mut self, piece: &[u8]) -> usize {
        if self.is_at_end() {
            self.prefix_length = 0;
        }
        let mut taken = 0;
        for byte in piece.iter().take(PREFIX_BYTES.saturating_sub(self.prefix_length)) {
            if let Some(place) = self.prefix.get_mut(self.prefix_length) {
                *place = *byte;
            }
            self.prefix_length += 1;
            taken += 1;
            if self.prefix_length == PREFIX_BYTES {
                let [_, length @ ..] = self.prefix;
                self.left = u64::from(u32::from_be_bytes(length));
            }
        }
        if self.prefix_length == PREFIX_BYTES {
            let within = (piece.len() - taken).min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= within as u64;
            taken += within;
        }
        taken
    }

    fn is_at_end(&self) -> bool {
        self.prefix_length == PREFIX_BYTES && self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The decoded text of `pieces`.
    fn decoded(pieces: &[&str]) -> Result<String, BadBase64> {
        let (mut decoder, mut out) = (TextDecoder::default(), Vec::new());
        for piece in pieces {
            decoder.decode(piece.as_bytes(), &mut out)?;
        }
        decoder.finish()?;
        Ok(String::from_utf8(out).unwrap())
    }

    #[test]
    fn base64_is_undone_wherever_it_is_cut_and_padded() {
        let check = |pieces: &[&str], expect: &str| assert_eq!(decoded(pieces).as_deref(), Ok(expect), "{pieces:?}");
        check(&[], "");
        check(&["Zm9v"], "foo");
        check(&["Zm9vYg=="], "foob");
        check(&["Zm9vYmE="], "fooba");
        check(&["Z", "m9", "vYm", "E="], "fooba");
        check(&["Zg==Zm8=Zm9v"], "ffofoo");
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for bad in
            ["Z", "Zm9", "Zm9vYg=", "Zm9vYg", "====", "Z===", "Zm=v", "=m9v", "Zm9-", "Zm9_", "Zm 9", "Zh==", "Zm9="]
        {
            assert_eq!(decoded(&[bad]), Err(BadBase64), "{bad}");
        }
    }

    /// A message of gRPC.
    fn message(text: &str) -> Vec<u8> {
        let mut message = vec![0];
        message.extend((text.len() as u32).to_be_bytes());
        message.extend(text.bytes());
        message
    }

    const TRAILERS: [(&[u8], &[u8]); 2] = [(b"Grpc-Status", b"0"), (b"grpc-message", b"all is well")];

    #[test]
    fn trailers_become_the_last_frame() {
        let (mut encoder, mut out) = (ResponseEncoder::new(false), Vec::new());
        encoder.encode(&message("hello"), &mut out);
        encoder.finish(TRAILERS.into_iter(), &mut out);
        assert_eq!(out, b"\0\0\0\0\x05hello\x80\0\0\0\x29grpc-status:0\r\ngrpc-message:all is well\r\n");
    }

    #[test]
    fn in_text_each_message_can_be_read_as_soon_as_it_is_whole() {
        let (mut encoder, mut out) = (ResponseEncoder::new(true), Vec::new());
        encoder.encode(&message("hello")[..7], &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "AAAAAAVo");
        encoder.encode(&message("hello")[7..], &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "AAAAAAVoZWxsbw==");
        encoder.encode(&[message(""), message("!")].concat(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "AAAAAAVoZWxsbw==AAAAAAA=AAAAAAEh");
        out.clear();
        encoder.finish([(&b"a"[..], &b"b"[..])].into_iter(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "gAAAAAVhOmINCg==");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, rng_seed: proptest::test_runner::RngSeed::Fixed(0x57EE_17A6), failure_persistence: None, ..ProptestConfig::default() })]

        /// However messages are split, the decoded text is the same as the bytes without text form, and each message is complete with its
        /// last byte.
        #[test]
        fn text_and_bytes_agree(texts in prop::collection::vec("[a-z]{0,20}", 0..6), cuts in prop::collection::vec(1usize..9, 1..80)) {
            let stream: Vec<u8> = texts.iter().flat_map(|text| message(text)).collect();
            let (mut binary, mut plain) = (ResponseEncoder::new(false), Vec::new());
            let (mut textual, mut text) = (ResponseEncoder::new(true), Vec::new());
            let (mut rest, mut cuts) = (&stream[..], cuts.into_iter().cycle());
            while !rest.is_empty() {
                let (piece, tail) = rest.split_at(cuts.next().unwrap().min(rest.len()));
                rest = tail;
                binary.encode(piece, &mut plain);
                textual.encode(piece, &mut text);
            }
            prop_assert_eq!(&plain, &stream);
            let mut read = Vec::new();
            prop_assert_eq!(TextDecoder::default().decode(&text, &mut read), Ok(()));
            prop_assert_eq!(&read, &stream);
            binary.finish(TRAILERS.into_iter(), &mut plain);
            textual.finish(TRAILERS.into_iter(), &mut text);
            read.clear();
            prop_assert_eq!(TextDecoder::default().decode(&text, &mut read), Ok(()));
            prop_assert_eq!(read, plain);
        }
    }
}

//! What requests and responses have in common: field lines, lengths, connection options.

use std::mem::MaybeUninit;

use super::HeadError;
use crate::message::{Field, FieldId, Span, list};

/// Fields that one head or one trailer section can hold, whatever the configuration allows.
pub const FIELDS_MAX: usize = 256;

/// Scratch memory for the fields that `httparse` finds; on the stack, not initialised.
pub(super) type HeaderScratch<'b> = [MaybeUninit<httparse::Header<'b>>; FIELDS_MAX];

/// Copies what `httparse` found into the neutral form.
pub(super) fn index(
    found: &[httparse::Header<'_>],
    buffer: &[u8],
    fields_max: usize,
    fields: &mut Vec<Field>,
) -> Result<(), HeadError> {
    fields.clear();
    if found.len() > fields_max {
        return Err(HeadError::TooManyFields);
    }
    for header in found {
        let name = header.name.as_bytes();
        fields.push(Field {
            id: FieldId::of(name),
            name: Span::of(name, buffer),
            // httparse trims spaces and tabs at both ends; `trim_ascii` makes that a promise of ours.
            value: Span::of(header.value.trim_ascii(), buffer),
            never_indexed: false,
        });
    }
    Ok(())
}

/// Every line of a head ends in CRLF: `httparse` takes a bare LF as well, and a neighbour may not (RFC 9112 section 2.2).
pub(super) fn check_line_ends(head: &[u8]) -> Result<(), HeadError> {
    let mut previous_end = 0;
    for at in memchr::memchr_iter(b'\n', head) {
        if at == previous_end || head.get(at - 1) != Some(&b'\r') {
            return Err(HeadError::Field);
        }
        previous_end = at + 1;
    }
    Ok(())
}

/// The longest body: many readers keep a length in 63 bits, and take a greater one for a negative one or for another.
const LENGTH_MAX: u64 = i64::MAX as u64;

/// The one place where a length is read: digits only, no sign, no list, no overflow (RFC 9110 section 8.6).
pub(crate) fn content_length(value: &[u8]) -> Result<u64, HeadError> {
    // 19 digits cannot overflow 64 bits.
    if value.is_empty() || value.len() > 19 {
        return Err(HeadError::Framing);
    }
    let mut length = 0_u64;
    for byte in value {
        if !byte.is_ascii_digit() {
            return Err(HeadError::Framing);
        }
        length = length * 10 + u64::from(byte - b'0');
    }
    if length <= LENGTH_MAX { Ok(length) } else { Err(HeadError::Framing) }
}

/// The framing fields of a message.
#[derive(Default)]
pub(super) struct Framing {
    pub(super) length: Option<u64>,
    pub(super) chunked: bool,
}

impl Framing {
    /// Takes a field that frames. A second one of either kind, or one of each, is doubtful, even when both agree:
    /// implementations differ in which they take (RFC 9112 section 6.3).
    pub(super) fn take(&mut self, id: FieldId, value: &[u8]) -> Result<(), HeadError> {
        if self.length.is_some() || self.chunked {
            return Err(HeadError::Framing);
        }
        match id {
            FieldId::ContentLength => self.length = Some(content_length(value)?),
            // No other coding can be taken off or passed on by a hop that re-frames, and a list hides `chunked` from some readers.
            _ if value.eq_ignore_ascii_case(b"chunked") => self.chunked = true,
            _ => return Err(HeadError::Framing),
        }
        Ok(())
    }
}

/// What `Connection` says.
#[derive(Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
}

impl ConnectionOptions {
    pub(super) fn take(&mut self, value: &[u8]) {
        for option in list(value) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }
}

/// Reads a trailer section: zero or more field lines and the empty line that ends it. `section` is that and nothing else.
///
/// # Errors
/// [`HeadError::Field`] or [`HeadError::TooManyFields`]: the message is to be treated as badly framed.
pub fn parse_trailers(section: &[u8], fields: &mut Vec<Field>) -> Result<(), HeadError> {
    check_line_ends(section)?;
    let mut scratch = [httparse::EMPTY_HEADER; FIELDS_MAX];
    match httparse::parse_headers(section, &mut scratch) {
        Ok(httparse::Status::Complete((consumed, found))) if consumed == section.len() => {
            index(found, section, FIELDS_MAX, fields)
        }
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooManyFields),
        _ => Err(HeadError::Field),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_digits_only() {
        let check = |value: &str, expect| assert_eq!(content_length(value.as_bytes()).ok(), expect, "{value:?}");
        check("0", Some(0));
        check("5368709120", Some(5_368_709_120));
        check("0005", Some(5));
        check("9223372036854775807", Some(i64::MAX as u64));
        check("9223372036854775808", None);
        check("9999999999999999999", None);
        for bad in ["", "+5", "-1", "0x5", "1_0", "5 ", " 5", "1, 1", "5;", "18446744073709551616", "٥"] {
            check(bad, None);
        }
    }

    #[test]
    fn every_line_ends_in_crlf() {
        let check = |head: &[u8], good| assert_eq!(check_line_ends(head).is_ok(), good, "{head:?}");
        check(b"GET / HTTP/1.1\r\nA: b\r\n\r\n", true);
        check(b"GET / HTTP/1.1\nA: b\r\n\r\n", false);
        check(b"GET / HTTP/1.1\r\nA: b\n\r\n", false);
        check(b"GET / HTTP/1.1\r\nA: b\r\n\n", false);
        check(b"\n", false);
    }

    #[test]
    fn framing_is_said_once() {
        let check = |fields: &[(FieldId, &str)], good: bool| {
            let mut framing = Framing::default();
            let outcome = fields.iter().try_for_each(|(id, value)| framing.take(*id, value.as_bytes()));
            assert_eq!(outcome.is_ok(), good, "{fields:?}");
        };
        let (length, coding) = (FieldId::ContentLength, FieldId::TransferEncoding);
        check(&[(length, "5")], true);
        check(&[(coding, "ChunKed")], true);
        check(&[(length, "5"), (length, "5")], false);
        check(&[(length, "5"), (coding, "chunked")], false);
        check(&[(coding, "chunked"), (length, "5")], false);
        check(&[(coding, "chunked"), (coding, "chunked")], false);
        for bad in ["", "identity", "gzip, chunked", "chunked,", ",chunked", "xchunked", "chunked;q=1", "\"chunked\""] {
            check(&[(coding, bad)], false);
        }
    }
}

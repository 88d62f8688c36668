//! The parts that requests and responses share: field lines, lengths, connection options.

use super::HeadError;
use super::reader::{Reader, Stop};
use crate::message::{Field, FieldId, list};

/// The most fields in one head or one trailer section, whatever the configuration allows.
pub const FIELDS_MAX: usize = 256;

/// The longest body. Many readers store a length in 63 bits, and would read a greater one as negative or as a different number.
const LENGTH_MAX: u64 = i64::MAX as u64;

/// The only place that reads a length: digits only, no sign, no list, no overflow (RFC 9110 section 8.6).
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
    /// Records a framing field. Two of either kind, or one of each, are ambiguous even if they agree, because implementations differ in
    /// which one they use (RFC 9112 section 6.3).
    pub(super) fn take(&mut self, id: FieldId, value: &[u8]) -> Result<(), HeadError> {
        if self.length.is_some() || self.chunked {
            return Err(HeadError::Framing);
        }
        match id {
            FieldId::ContentLength => self.length = Some(content_length(value)?),
            // A hop that re-frames can neither remove nor pass on any other coding, and a list hides `chunked` from some readers.
            _ if value.eq_ignore_ascii_case(b"chunked") => self.chunked = true,
            _ => return Err(HeadError::Framing),
        }
        Ok(())
    }
}

/// The options in `Connection`.
#[derive(Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
    /// It names other fields, which end at this hop.
    pub(super) names_fields: bool,
}

impl ConnectionOptions {
    pub(super) fn take(&mut self, value: &[u8]) {
        // Almost always there is only one option.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.keep_alive = true;
            return;
        }
        for option in list(value) {
            if option.eq_ignore_ascii_case(b"close") {
                self.close = true;
            } else if option.eq_ignore_ascii_case(b"keep-alive") {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.upgrade = true;
            } else {
                self.names_fields = true;
            }
        }
    }
}

/// Reads a trailer section: zero or more field lines and the empty line that ends it. `section` contains exactly that.
///
/// # Errors
/// [`HeadError::Field`] or [`HeadError::TooManyFields`]. Treat the message as badly framed.
pub fn parse_trailers(section: &[u8], fields: &mut Vec<Field>) -> Result<(), HeadError> {
    let mut reader = Reader::new(section, 0);
    match reader.fields(FIELDS_MAX, fields) {
        Ok(()) if reader.at() == section.len() => Ok(()),
        Err(Stop::Refused(error)) => Err(error),
        Ok(()) | Err(Stop::Partial) => Err(HeadError::Field),
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

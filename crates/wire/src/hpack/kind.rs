//! Identifies a field, and checks whether HTTP/2 allows its bytes (RFC 9113 sections 8.2.1 and 8.3).

use crate::message::FieldId;
use crate::words;

/// The identity of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:protocol` (RFC 8441)
    Protocol,
    /// `:status`
    Status,
    /// Another name that begins with a colon.
    UnknownPseudo,
    /// The name is not a lower-case token.
    BadName,
    /// The value has control characters, or white space at an end.
    BadValue,
    /// A field that is none of the above.
    Field(FieldId),
}

impl Kind {
    /// Finds the kind by name and value, and looks at every byte of both.
    pub fn of(name: &[u8], value: &[u8]) -> Self {
        if !is_value(value) {
            return Self::BadValue;
        }
        match name {
            [b':', pseudo @ ..] => match pseudo {
                b"method" => Self::Method,
                b"scheme" => Self::Scheme,
                b"authority" => Self::Authority,
                b"path" => Self::Path,
                b"protocol" => Self::Protocol,
                b"status" => Self::Status,
                _ => Self::UnknownPseudo,
            },
            _ if !is_name(name) => Self::BadName,
            _ => Self::Field(FieldId::of(name)),
        }
    }

    /// The kind of a field with the same name as a field of this kind, and another value.
    pub(super) fn with_value(self, name: &[u8], value: &[u8]) -> Self {
        match self {
            Self::BadValue => Self::of(name, value),
            _ if !is_value(value) => Self::BadValue,
            _ => self,
        }
    }
}

/// A token (RFC 9110 section 5.6.2) without upper case. This is stricter than RFC 9113 section 8.2.1 requires, because anything else cannot
/// be passed on in HTTP/1.1.
fn is_name(name: &[u8]) -> bool {
    const ALLOWED: [bool; 256] = name_bytes();
    !name.is_empty() && name.iter().all(|byte| ALLOWED.get(usize::from(*byte)) == Some(&true))
}

#[expect(clippy::indexing_slicing, reason = "computed at compile time: out of bounds does not compile")]
const fn name_bytes() -> [bool; 256] {
    let mut allowed = [false; 256];
    let tokens = b"abcdefghijklmnopqrstuvwxyz0123456789!#$%&'*+-.^_`|~";
    let mut at = 0;
    while at < tokens.len() {
        allowed[tokens[at] as usize] = true;
        at += 1;
    }
    allowed
}

/// No control characters except tabs, and no surrounding white space. RFC 9113 section 8.2.1 bans NUL, CR and LF; HTTP/1.1 bans the others
/// (RFC 9110 section 5.5), so they are refused here.
fn is_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let is_control = |byte: &u8| byte.is_ascii_control() && *byte != b'\t';
    let has_control = words::any(value, |word| words::control(word) != 0) && value.iter().any(is_control);
    !has_control && !is_space(value.first()) && !is_space(value.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let check = |name: &str, value: &str, expect| {
            assert_eq!(Kind::of(name.as_bytes(), value.as_bytes()), expect, "{name:?}: {value:?}");
        };
        let other = Kind::Field(FieldId::Other);
        check(":method", "GET", Kind::Method);
        check(":scheme", "http", Kind::Scheme);
        check(":authority", "a", Kind::Authority);
        check(":path", "/", Kind::Path);
        check(":protocol", "websocket", Kind::Protocol);
        check(":status", "200", Kind::Status);
        check(":version", "2", Kind::UnknownPseudo);
        check(":Path", "/", Kind::UnknownPseudo);
        check(":", "", Kind::UnknownPseudo);
        check("content-length", "1", Kind::Field(FieldId::ContentLength));
        check("x", "", other);
        check("x", "a b\tc", other);
        check("x", "\u{e9}", other);
        for name in ["", "X", "x y", "x:", "x\0", "x\r\n", "\u{e9}", "x\x7f", "(x)", "content-Length"] {
            check(name, "v", Kind::BadName);
        }
        for value in [" a", "a ", "\ta", "a\t", " ", "a\0", "a\rb", "a\nb", "a\r\nb: c", "\x01", "\x7f"] {
            check("x", value, Kind::BadValue);
            check(":path", value, Kind::BadValue);
        }
    }
}

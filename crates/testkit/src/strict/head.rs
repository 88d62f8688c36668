//! Start line and fields: RFC 9112 sections 2 to 5.

use super::{Field, Framing, Violation, values};

/// The lines of a head, which are a start line and fields, and its total length including the empty line.
pub(super) struct Head {
    pub start_line: Vec<u8>,
    pub fields: Vec<Field>,
    pub length: usize,
}

/// Reads up to the empty line. Returns `None` if it has not arrived yet and nothing is wrong so far.
pub(super) fn head(bytes: &[u8]) -> Result<Option<Head>, Violation> {
    let Some((start_line, mut offset)) = line(bytes, 0)? else { return Ok(None) };
    if start_line.is_empty() {
        // A server may skip an empty line (RFC 9112 section 2.2), but a client must not send one.
        return Err(Violation::at(0, "empty line where a message begins"));
    }
    let start_line = start_line.to_vec();
    Ok(fields(bytes, &mut offset)?.map(|fields| Head { start_line, fields, length: offset }))
}

/// Reads fields up to the empty line and moves `offset` past it.
pub(super) fn fields(bytes: &[u8], offset: &mut usize) -> Result<Option<Vec<Field>>, Violation> {
    let mut fields = Vec::new();
    loop {
        let Some((text, next)) = line(bytes, *offset)? else { return Ok(None) };
        if text.is_empty() {
            *offset = next;
            return Ok(Some(fields));
        }
        fields.push(field(text, *offset)?);
        *offset = next;
    }
}

/// The line that begins at `offset`, without its CRLF, and the offset of the next one. It must contain no CR, LF or
/// other control character except HTAB (RFC 9112 section 2.2; RFC 9110 section 5.5).
pub(super) fn line(bytes: &[u8], offset: usize) -> Result<Option<(&[u8], usize)>, Violation> {
    let rest = bytes.get(offset..).unwrap_or_default();
    for (index, &byte) in rest.iter().enumerate() {
        match byte {
            b'\r' => {
                return match rest.get(index + 1) {
                    None => Ok(None),
                    Some(b'\n') => Ok(Some((&rest[..index], offset + index + 2))),
                    Some(_) => Err(Violation::at(offset + index, "bare CR")),
                };
            }
            b'\n' => return Err(Violation::at(offset + index, "bare LF")),
            b'\t' => {}
            0..=0x1f | 0x7f => return Err(Violation::at(offset + index, format!("control character 0x{byte:02x}"))),
            _ => {}
        }
    }
    Ok(None)
}

fn field(text: &[u8], offset: usize) -> Result<Field, Violation> {
    if matches!(text[0], b' ' | b'\t') {
        return Err(Violation::at(offset, "obs-fold, or white space before a field (RFC 9112 section 5.2)"));
    }
    let Some(colon) = text.iter().position(|&byte| byte == b':') else {
        return Err(Violation::at(offset, "field without a colon"));
    };
    let name = token(&text[..colon]).ok_or_else(|| {
        Violation::at(offset, format!("field name {:?} is not a token", String::from_utf8_lossy(&text[..colon])))
    })?;
    Ok(Field { name, value: text[colon + 1..].trim_ascii().to_vec() })
}

/// RFC 9110 section 5.6.2.
pub(super) fn token(text: &[u8]) -> Option<String> {
    let is_tchar = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    (!text.is_empty() && text.iter().all(is_tchar)).then(|| String::from_utf8_lossy(text).into_owned())
}

/// What the fields say about the body; `None` if they say nothing.
pub(super) fn declared_framing(fields: &[Field]) -> Result<Option<Framing>, Violation> {
    let lengths = values(fields, "content-length");
    let encodings = values(fields, "transfer-encoding");
    match (lengths.as_slice(), encodings.as_slice()) {
        ([], []) => Ok(None),
        ([length], []) => content_length(length).map(|length| Some(Framing::Length(length))),
        ([], [encoding]) if encoding.eq_ignore_ascii_case(b"chunked") => Ok(Some(Framing::Chunked)),
        ([], [encoding]) => {
            let encoding = String::from_utf8_lossy(encoding);
            Err(Violation::at(0, format!("Transfer-Encoding {encoding:?} is not exactly \"chunked\"")))
        }
        ([], _) => Err(Violation::at(0, "several Transfer-Encoding fields")),
        (_, []) => Err(Violation::at(0, "several Content-Length fields (RFC 9112 section 6.3)")),
        _ => Err(Violation::at(0, "both Content-Length and Transfer-Encoding (RFC 9112 section 6.1)")),
    }
}

/// Only digits. The grammar allows leading zeros, but they are refused here because some readers take such a number as
/// octal.
fn content_length(value: &[u8]) -> Result<u64, Violation> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let canonical = digits && (value.len() == 1 || value[0] != b'0');
    let parsed = std::str::from_utf8(value).ok().filter(|_| canonical).and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Violation::at(0, format!("Content-Length {:?}", String::from_utf8_lossy(value))))
}

/// There must be exactly one Host, with a host and optionally a port (RFC 9112 section 3.2; RFC 3986 section 3.2.2).
pub(super) fn host(fields: &[Field]) -> Result<(), Violation> {
    let hosts = values(fields, "host");
    let [host] = hosts.as_slice() else {
        return Err(Violation::at(0, format!("{} Host fields, expected one", hosts.len())));
    };
    if authority(host) {
        return Ok(());
    }
    Err(Violation::at(0, format!("Host {:?} is not a host", String::from_utf8_lossy(host))))
}

fn authority(text: &[u8]) -> bool {
    let (host, port): (&[u8], &[u8]) = if text.first() == Some(&b'[') {
        let Some(close) = text.iter().position(|&byte| byte == b']') else { return false };
        let address = std::str::from_utf8(&text[1..close]).ok();
        if address.and_then(|address| address.parse::<std::net::Ipv6Addr>().ok()).is_none() {
            return false;
        }
        (&text[1..close], &text[close + 1..])
    } else {
        let colon = text.iter().position(|&byte| byte == b':').unwrap_or(text.len());
        let name = &text[..colon];
        let is_reg_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(byte);
        if !name.iter().all(is_reg_name) {
            return false;
        }
        (name, &text[colon..])
    };
    let port_is_good = match port {
        [] | [b':'] => true,
        [b':', digits @ ..] => std::str::from_utf8(digits)
            .is_ok_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok()),
        _ => false,
    };
    !host.is_empty() && port_is_good
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let check = |text: &str, expect: bool| assert_eq!(authority(text.as_bytes()), expect, "{text:?}");
        check("a.test", true);
        check("a.test:80", true);
        check("a.test:", true);
        check("127.0.0.1:8080", true);
        check("[::1]", true);
        check("[::1]:443", true);
        check("", false);
        check(":80", false);
        check("a.test:65536", false);
        check("a.test:8o", false);
        check("a.test:80:80", false);
        check("user@a.test", false);
        check("a.test/x", false);
        check("a test", false);
        check("a,b", true);
        check("[::1", false);
        check("[::1]x", false);
        check("[]", false);
    }
}

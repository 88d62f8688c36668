//! The one form in which Steelyard writes heads and chunks.

use crate::message::Version;

/// The chunk that ends a body without trailers, with the empty line after it.
pub const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// `GET /path HTTP/1.1`, always with this version. An empty path is written as `/` (RFC 9112 section 3.2.1).
pub fn request_line(out: &mut Vec<u8>, method: &[u8], path: &[u8]) {
    out.extend_from_slice(method);
    out.push(b' ');
    out.extend_from_slice(if path.is_empty() { b"/" } else { path });
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// `HTTP/1.1 200 OK`, in the version of the hop that receives it. `status` has three digits.
pub fn status_line(out: &mut Vec<u8>, version: Version, status: u16, reason: &[u8]) {
    out.extend_from_slice(match version {
        Version::Http10 => b"HTTP/1.0 ",
        Version::Http11 | Version::Http2 => b"HTTP/1.1 ",
    });
    decimal(out, u64::from(status));
    out.push(b' ');
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
}

/// `name: value`. Neither may contain CR, LF or NUL. Both come from a parsed head or from our own code.
pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The line before a chunk of `length` bytes; `length` is not zero.
pub fn chunk_start(out: &mut Vec<u8>, length: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - length.leading_zeros()).div_ceil(4).max(1);
    for at in (0..digits).rev() {
        let digit = DIGITS.get((length >> (4 * at)) & 15).copied().unwrap_or_default();
        out.push(digit);
    }
    out.extend_from_slice(b"\r\n");
}

/// The end of the line after a chunk.
pub fn chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// A number in decimal digits.
pub fn decimal(out: &mut Vec<u8>, number: u64) {
    if number >= 10 {
        decimal(out, number / 10);
    }
    out.push(b'0' + (number % 10) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_lines_are_plain_hexadecimal() {
        let check = |length, expect: &str| {
            let mut out = Vec::new();
            chunk_start(&mut out, length);
            assert_eq!(out, expect.as_bytes());
        };
        check(1, "1\r\n");
        check(0xf, "f\r\n");
        check(0x10, "10\r\n");
        check(0x4000, "4000\r\n");
        check(usize::MAX, "ffffffffffffffff\r\n");
    }

    #[test]
    fn start_lines() {
        let mut out = Vec::new();
        request_line(&mut out, b"GET", b"");
        status_line(&mut out, Version::Http10, 404, b"Not Found");
        decimal(&mut out, u64::MAX);
        assert_eq!(out, b"GET / HTTP/1.1\r\nHTTP/1.0 404 Not Found\r\n18446744073709551615");
    }
}

//! Bodies: RFC 9112 sections 6 and 7.

use super::head::{fields, line};
use super::{Field, Framing, Violation};

/// Trailers that must never occur: if they were merged into the header section, they would change framing, routing,
/// authentication or what the balancer says about the client (RFC 9110 section 6.5.1).
const FORBIDDEN_TRAILERS: [&str; 8] = [
    "content-length",
    "transfer-encoding",
    "host",
    "trailer",
    "authorization",
    "x-forwarded-for",
    "forwarded",
    "connection",
];

/// How much of a body has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All of it: its data, its trailers, and the number of bytes read.
    Whole(Vec<u8>, Vec<Field>, usize),
    /// The data so far.
    Partial(Vec<u8>),
}

/// Reads a body at the start of `bytes`. `ended` means that nothing will follow.
pub fn body(bytes: &[u8], framing: Framing, ended: bool) -> Result<Progress, Violation> {
    match framing {
        Framing::None => Ok(Progress::Whole(Vec::new(), Vec::new(), 0)),
        Framing::Length(length) => {
            Ok(match usize::try_from(length).ok().and_then(|length| Some((bytes.get(..length)?, length))) {
                Some((data, length)) => Progress::Whole(data.to_vec(), Vec::new(), length),
                None => Progress::Partial(bytes.to_vec()),
            })
        }
        Framing::UntilClose if ended => Ok(Progress::Whole(bytes.to_vec(), Vec::new(), bytes.len())),
        Framing::UntilClose => Ok(Progress::Partial(bytes.to_vec())),
        Framing::Chunked => chunked(bytes),
    }
}

fn chunked(bytes: &[u8]) -> Result<Progress, Violation> {
    let mut data = Vec::new();
    let mut offset = 0;
    loop {
        let Some((size_line, start)) = line(bytes, offset)? else { return Ok(Progress::Partial(data)) };
        let size = chunk_size(size_line, offset)?;
        if size == 0 {
            let mut offset = start;
            let Some(trailers) = fields(bytes, &mut offset)? else { return Ok(Progress::Partial(data)) };
            let forbidden =
                |field: &&Field| FORBIDDEN_TRAILERS.iter().any(|name| field.name.eq_ignore_ascii_case(name));
            if let Some(field) = trailers.iter().find(forbidden) {
                return Err(Violation::at(start, format!("trailer {:?} (RFC 9110 section 6.5.1)", field.name)));
            }
            return Ok(Progress::Whole(data, trailers, offset));
        }
        let rest = &bytes[start..];
        data.extend_from_slice(&rest[..rest.len().min(size)]);
        match rest.get(size..).unwrap_or_default() {
            [] | [b'\r'] => return Ok(Progress::Partial(data)),
            [b'\r', b'\n', ..] => offset = start + size + 2,
            _ => return Err(Violation::at(start + size, "chunk data does not end in CRLF (RFC 9112 section 7.1)")),
        }
    }
}

/// Only hex digits, at most eight, without leading zeros. A recipient that re-frames a body must ignore extensions (RFC
/// 9112 section 7.1.1), so none may arrive.
fn chunk_size(text: &[u8], offset: usize) -> Result<usize, Violation> {
    let plain = (1..=8).contains(&text.len()) && text.iter().all(u8::is_ascii_hexdigit);
    let canonical = plain && (text.len() == 1 || text[0] != b'0');
    let parsed = std::str::from_utf8(text).ok().filter(|_| canonical);
    parsed
        .and_then(|text| usize::from_str_radix(text, 16).ok())
        .ok_or_else(|| Violation::at(offset, format!("chunk size {:?}", String::from_utf8_lossy(text))))
}

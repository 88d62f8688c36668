//! `Via` (RFC 9110 section 7.6.3) and `CDN-Loop` (RFC 8586): what a message says of its way, and requests that come back.

use model::Via;
use telemetry::Reason;
use wire::message::{Field, RequestHead, Version};

use crate::error::Error;
use crate::http::headers::Out;

const VIA: &[u8] = b"via";
const CDN_LOOP: &[u8] = b"cdn-loop";

/// Refuses a request that has been here before.
///
/// # Errors
/// [`Reason::LoopDetected`].
pub(super) fn admit(via: &Via, head: &RequestHead, buffer: &[u8]) -> Result<(), Error> {
    let names = |list: &[u8], is_us| names(list, is_us, via.name.as_bytes(), head, buffer);
    if via.refuses_loops && (names(VIA, is_received_by) || via.cdn_loop && names(CDN_LOOP, is_cdn)) {
        return Err(Error::internal(Reason::LoopDetected));
    }
    Ok(())
}

/// Whether the request comes from this installation, which sent it to a host that somebody else than the operator named
/// ([`model::Outside::mark`]).
pub(crate) fn is_marked(mark: &str, head: &RequestHead, buffer: &[u8]) -> bool {
    names(CDN_LOOP, is_cdn, mark.as_bytes(), head, buffer)
}

/// Whether the list in the fields of a name has us.
fn names(list: &[u8], is_us: fn(&[u8], &[u8]) -> bool, us: &[u8], head: &RequestHead, buffer: &[u8]) -> bool {
    let is_it = |field: &&Field| field.name.get(buffer).eq_ignore_ascii_case(list);
    let mut values = head.fields.iter().filter(is_it).map(|field| field.value.get(buffer));
    values.any(|value| elements(value).any(|element| is_us(element, us)))
}

/// Whether a request keeps this field, although its route or its `Connection` removes it: nobody but the operator of a CDN may take a name out of the
/// list (RFC 8586 section 2), and behind a route that anybody can write, a loop would go on without end.
pub(crate) fn stays(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(CDN_LOOP)
}

/// The elements of a list, in which commas may also stand within comments, which may be nested, and within quoted strings (RFC 9110 sections 5.6.1,
/// 5.6.4 and 5.6.5). A comment or a string that is not closed is no such thing: its first byte is taken for itself, so that nobody can hide this
/// hop behind it. Nor is any that follows, in a value that is not valid: to look for the end of each would take quadratic time (31 KB of `(` took
/// 3 s of a worker).
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    let (mut comments_end, mut strings_end) = (true, true);
    std::iter::from_fn(move || {
        let list = rest.take()?;
        let mut at = 0;
        while let Some(byte) = list.get(at) {
            let tail = list.get(at..).unwrap_or_default();
            at += match byte {
                b',' => break,
                b'(' if comments_end => comment(tail).unwrap_or_else(|| {
                    comments_end = false;
                    1
                }),
                b'"' if strings_end => quoted(tail).unwrap_or_else(|| {
                    strings_end = false;
                    1
                }),
                _ => 1,
            };
        }
        rest = list.get(at + 1..);
        Some(list.get(..at).unwrap_or_default())
    })
}

/// The length of the comment at the beginning of `text`. `None` if it does not end.
fn comment(text: &[u8]) -> Option<usize> {
    let mut depth = 0_usize;
    let mut bytes = text.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return Some(at + 1),
            b')' => depth = depth.saturating_sub(1),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}

/// The same for a quoted string.
fn quoted(text: &[u8]) -> Option<usize> {
    let mut bytes = text.iter().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at + 1),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}

/// Whether an element of `Via` is of this hop: `1.1 name (comment)`. Names of hosts have no case.
fn is_received_by(element: &[u8], name: &[u8]) -> bool {
    let mut words = element.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    words.nth(1).is_some_and(|by| by.eq_ignore_ascii_case(name))
}

/// Whether an element of `CDN-Loop` is of this hop: `name; parameter=value`.
fn is_cdn(element: &[u8], name: &[u8]) -> bool {
    let id = element.split(|byte| *byte == b';').next().unwrap_or_default();
    id.trim_ascii().eq_ignore_ascii_case(name)
}

/// Adds this hop to a request that arrived in this version.
pub(crate) fn write_request(via: &Via, out: &mut impl Out, version: Version) {
    write(via, out, version);
    if via.cdn_loop {
        write_mark(&via.name, out);
    }
}

/// Adds the mark of this installation to a request.
pub(crate) fn write_mark(mark: &str, out: &mut impl Out) {
    out.field(CDN_LOOP, mark.as_bytes(), false);
}

/// Adds this hop to a response that arrived in this version.
pub(crate) fn write_response(via: &Via, out: &mut impl Out, version: Version) {
    if via.in_response {
        write(via, out, version);
    }
}

/// A field of its own continues the list of those before it (RFC 9110 section 5.3).
fn write(via: &Via, out: &mut impl Out, version: Version) {
    let text = out.value(VIA);
    text.extend_from_slice(match version {
        Version::Http10 => b"1.0 ",
        Version::Http11 => b"1.1 ",
        Version::Http2 => b"2.0 ",
    });
    text.extend_from_slice(via.name.as_bytes());
    out.end(false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::testing::request;

    #[track_caller]
    fn check(lines: &str, cdn_loop: bool, is_loop: bool) {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
        let via = Via { name: "edge-1".into(), in_response: false, refuses_loops: true, cdn_loop };
        let reason = admit(&via, &request(&text), text.as_bytes()).err().map(|error| error.reason);
        assert_eq!(reason, is_loop.then_some(Reason::LoopDetected), "{lines}");
        let silent = Via { refuses_loops: false, ..via };
        assert!(admit(&silent, &request(&text), text.as_bytes()).is_ok());
    }

    #[test]
    fn a_request_that_was_here_is_recognised() {
        check("", true, false);
        check("Via: 1.1 edge-1\r\n", false, true);
        check("VIA: HTTP/1.1  Edge-1 (Steelyard)\r\n", false, true);
        check("Via: 1.0 fred, 2.0\tedge-1 , 1.1 p.example.net\r\n", false, true);
        check("Via: 1.1 a\r\nVia: 1.1 edge-1\r\n", false, true);
        check("Via: 1.1 edge-11, 1.1 edge-1:80, edge-1, 1.1 a edge-1\r\n", false, false);
        check("Via: ,,  ,\r\n", false, false);
        // Comments.
        check("Via: 1.1 a (x, 1.1 edge-1)\r\n", false, false);
        check("Via: 1.1 a (x (y, 1.1 edge-1), 1.1 edge-1), 1.1 b\r\n", false, false);
        check("Via: 1.1 a (\\), 1.1 edge-1 \\(), 1.1 b\r\n", false, false);
        check("Via: 1.1 a (x, y), 1.1 edge-1 (z)\r\n", false, true);
        check("Via: 1.1 a (\\\\), 1.1 edge-1\r\n", false, true);
        check("Via: 1.1 a (never closed, 1.1 edge-1\r\n", false, true);
        check("Via: 1.1 a ((x), 1.1 edge-1\r\n", false, true);
        check("Via: 1.1 a (x\\, 1.1 edge-1\r\n", false, true);
        check("Via: 1.1 a ), 1.1 edge-1\r\n", false, true);
        check("CDN-Loop: edge-1\r\n", false, false);
        check("CDN-Loop: edge-1\r\n", true, true);
        check("CDN-Loop: foo.example; a=b, Edge-1;x=\"y\"\r\n", true, true);
        check("CDN-Loop: foo.example; edge-1\r\n", true, false);
        check("CDN-Loop: a; b=\"c, edge-1\", d\r\n", true, false);
        check("CDN-Loop: a; b=\"c\\\", edge-1\", d\r\n", true, false);
        check("CDN-Loop: a; b=\"c, edge-1\r\n", true, true);
    }

    #[test]
    fn a_mark_is_recognised() {
        let check = |lines: &str, expect: bool| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            assert_eq!(is_marked("steelyard-1", &request(&text), text.as_bytes()), expect, "{lines}");
        };
        check("", false);
        check("CDN-Loop: steelyard-1\r\n", true);
        check("CDN-Loop: a\r\ncdn-loop: b,STEELYARD-1 ; c\r\n", true);
        check("CDN-Loop: steelyard-12, steelyard, a; steelyard-1\r\n", false);
        check("Via: 1.1 steelyard-1\r\n", false);
    }

    #[test]
    fn a_value_of_openings_is_read_in_linear_time() {
        for opening in ["(", "\"\\", "(\"", "(),("] {
            // A quadratic search would take hours.
            let value = opening.repeat(1 << 20) + ", us";
            assert!(elements(value.as_bytes()).any(|element| is_cdn(element, b"us")), "{opening}");
        }
    }

    #[test]
    fn a_hop_adds_itself() {
        let via = Via { name: "edge-1".into(), in_response: false, refuses_loops: true, cdn_loop: true };
        let written = |write: fn(&Via, &mut Vec<u8>, Version), via: &Via, version| {
            let mut out = Vec::new();
            write(via, &mut out, version);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(write_request, &via, Version::Http10), "via: 1.0 edge-1\r\ncdn-loop: edge-1\r\n");
        assert_eq!(written(write_response, &via, Version::Http11), "");
        let both = Via { in_response: true, ..via };
        assert_eq!(written(write_response, &both, Version::Http2), "via: 2.0 edge-1\r\n");
    }
}

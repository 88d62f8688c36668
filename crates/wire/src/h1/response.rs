//! Response heads (RFC 9112 section 4), read as strictly as requests: one endpoint is not trusted with the framing of other endpoints'
//! responses.

use super::fields::{ConnectionOptions, Framing};
use super::reader::{Reader, Stop};
use super::{HeadError, Parsed};
use crate::message::{Body, FieldId, Method, ResponseHead, Span, Version, list};

/// Reads the head of the response to a request with this method from the beginning of `buffer` into `head`.
///
/// # Errors
/// The connection must be closed, because the beginning of the next message is unknown.
pub fn parse_response(
    buffer: &[u8],
    fields_max: usize,
    request: Method,
    head: &mut ResponseHead,
) -> Result<Parsed, HeadError> {
    // Other readers skip empty lines before a response, but no standard allows them there.
    if matches!(buffer.first(), Some(b'\r' | b'\n')) {
        return Err(HeadError::StartLine);
    }
    let mut reader = Reader::new(buffer, 0);
    match read_lines(&mut reader, buffer, fields_max, head) {
        Ok(()) => {}
        Err(Stop::Partial) => return Ok(Parsed::Partial),
        Err(Stop::Refused(error)) => return Err(error),
    }
    read_fields(buffer, request, head)?;
    Ok(Parsed::Complete(reader.at()))
}

/// Reads the status line and the field lines.
fn read_lines(reader: &mut Reader<'_>, buffer: &[u8], fields_max: usize, head: &mut ResponseHead) -> Result<(), Stop> {
    head.version = reader.version()?;
    reader.expect(b' ', HeadError::Version)?;
    head.status = 0;
    for _ in 0..3 {
        let digit = reader.peek()?;
        reader.expect(digit.clamp(b'0', b'9'), HeadError::StartLine)?;
        head.status = 10 * head.status + u16::from(digit - b'0');
    }
    if head.status < 100 {
        return Err(HeadError::StartLine.into());
    }
    head.reason = Span::default();
    // Some servers omit the space if there is no reason.
    if reader.peek()? == b' ' {
        reader.expect(b' ', HeadError::StartLine)?;
        let reason = reader.take_text();
        // Readers would treat non-ASCII bytes in different ways, and nothing needs them.
        head.reason = if reason.get(buffer).is_ascii() { reason } else { Span::default() };
    }
    reader.line_end(HeadError::StartLine)?;
    reader.fields(fields_max, &mut head.fields)
}

fn read_fields(buffer: &[u8], request: Method, head: &mut ResponseHead) -> Result<(), HeadError> {
    let mut framing = Framing::default();
    let mut connection = ConnectionOptions::default();
    head.keep_alive_timeout_s = None;
    for field in &head.fields {
        let value = field.value.get(buffer);
        match field.id {
            FieldId::ContentLength | FieldId::TransferEncoding => framing.take(field.id, value)?,
            FieldId::Connection => connection.take(value),
            FieldId::KeepAlive => head.keep_alive_timeout_s = keep_alive_timeout(value),
            _ => {}
        }
    }
    let is_http10 = head.version == Version::Http10;
    if framing.chunked && is_http10 {
        return Err(HeadError::Framing);
    }
    head.content_length = framing.length;
    // RFC 9112 section 6.3, in its order.
    head.body = match (head.status, framing.length) {
        (100..=199 | 204 | 304, _) => Body::None,
        _ if request == Method::Head => Body::None,
        _ if framing.chunked => Body::Chunked,
        (_, Some(0)) => Body::None,
        (_, Some(length)) => Body::Length(length),
        (_, None) => Body::UntilClose,
    };
    head.names_fields = connection.names_fields;
    head.keep_alive = head.body != Body::UntilClose
        && if is_http10 { connection.keep_alive && !connection.close } else { !connection.close };
    Ok(())
}

/// `timeout=5, max=100` (RFC 2068 section 19.7.1.1). No later standard has it, but servers send it.
fn keep_alive_timeout(value: &[u8]) -> Option<u32> {
    let seconds = list(value).find_map(|parameter| parameter.strip_prefix(b"timeout="))?;
    std::str::from_utf8(seconds).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, method: Method) -> Result<(Parsed, ResponseHead), HeadError> {
        let mut head = ResponseHead::default();
        parse_response(text.as_bytes(), 100, method, &mut head).map(|parsed| (parsed, head))
    }

    #[track_caller]
    fn check_good(text: &str, method: Method, expect: (u16, Body, bool)) {
        let (parsed, head) = parse(text, method).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(parsed, Parsed::Complete(text.len()));
        assert_eq!((head.status, head.body, head.keep_alive), expect, "{text:?}");
    }

    #[test]
    fn bodies_follow_the_standard() {
        let get = Method::Get;
        check_good("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", get, (200, Body::Length(5), true));
        check_good("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", Method::Head, (200, Body::None, true));
        check_good("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", get, (200, Body::None, true));
        check_good("HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n", get, (200, Body::Chunked, true));
        check_good("HTTP/1.1 200\r\n\r\n", get, (200, Body::UntilClose, false));
        check_good("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", get, (200, Body::Length(5), false));
        check_good(
            "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n",
            get,
            (200, Body::Length(5), true),
        );
        check_good("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", get, (204, Body::None, true));
        check_good("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", get, (304, Body::None, true));
        check_good("HTTP/1.1 100 Continue\r\n\r\n", get, (100, Body::None, true));
        check_good(
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\n",
            get,
            (200, Body::Length(1), false),
        );
    }

    #[test]
    fn doubtful_responses_are_refused() {
        let check = |text: &str, expect| assert_eq!(parse(text, Method::Get).map(|p| p.0), Err(expect), "{text:?}");
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", HeadError::Framing);
        check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", HeadError::Framing);
        check("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", HeadError::Framing);
        check("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", HeadError::Framing);
        check("HTTP/1.1 099 OK\r\n\r\n", HeadError::StartLine);
        check("HTTP/1.1 20 OK\r\n\r\n", HeadError::StartLine);
        check("HTTP/2.0 200 OK\r\n\r\n", HeadError::Version);
        check("\r\nHTTP/1.1 200 OK\r\n\r\n", HeadError::StartLine);
        check("HTTP/1.1 200 OK\nA: b\r\n\r\n", HeadError::Field);
        check("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", HeadError::Field);
        check("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", HeadError::Field);
        check("HTTP/1.1 200 OK\r\nA: b\0\r\n\r\n", HeadError::Field);
    }

    #[test]
    fn keep_alive_timeouts() {
        let check = |value: &str, expect| assert_eq!(keep_alive_timeout(value.as_bytes()), expect, "{value}");
        check("timeout=5, max=100", Some(5));
        check("max=1,timeout=60", Some(60));
        check("timeout=x", None);
        check("", None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let mut head = ResponseHead::default();
            if let Ok(Parsed::Complete(length)) = parse_response(&bytes, 100, Method::Get, &mut head) {
                proptest::prop_assert!(length <= bytes.len());
            }
        }
    }
}

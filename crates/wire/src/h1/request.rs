//! Request heads (RFC 9112 sections 3 and 5).

use super::authority::is_authority;
use super::fields::{ConnectionOptions, Framing};
use super::reader::{Reader, Stop, TARGET, TOKEN};
use super::{HeadError, Parsed};
use crate::message::{Body, FieldId, Method, RequestHead, Span, Version, list};

/// Reads a request head from the beginning of `buffer` into `head`. On [`Parsed::Partial`] and on errors, the content of `head` has no
/// meaning.
///
/// # Errors
/// The head must be refused and the connection closed, because the beginning of the next message is unknown.
pub fn parse_request(buffer: &[u8], fields_max: usize, head: &mut RequestHead) -> Result<Parsed, HeadError> {
    // Accept one empty line first: old clients sent one after a body (RFC 9112 section 2.2).
    let skipped = if buffer.starts_with(b"\r\n") { 2 } else { 0 };
    let text = buffer.get(skipped..).unwrap_or_default();
    if matches!(text.first(), Some(b'\r' | b'\n')) {
        // A lone `\r` may be half of that empty line only at the very beginning.
        let undecided = skipped == 0 && text == b"\r";
        return if undecided { Ok(Parsed::Partial) } else { Err(HeadError::StartLine) };
    }

    let mut reader = Reader::new(buffer, skipped);
    match read_lines(&mut reader, fields_max, head) {
        Ok(()) => {}
        Err(Stop::Partial) => return Ok(Parsed::Partial),
        Err(Stop::Refused(HeadError::Version)) => return refuse_version(text),
        Err(Stop::Refused(error)) => return Err(error),
    }
    head.method = Method::of(head.method_name.get(buffer));
    head.scheme = Span::default();
    let target = read_target(head.path.get(buffer), head.method)?;
    head.path = Span::of(target.path, buffer);
    read_fields(buffer, head, target.authority)?;
    Ok(Parsed::Complete(reader.at()))
}

/// Reads the request line and the field lines; the target into `head.path`.
fn read_lines(reader: &mut Reader<'_>, fields_max: usize, head: &mut RequestHead) -> Result<(), Stop> {
    head.method_name = reader.take(TOKEN, HeadError::StartLine)?;
    reader.expect(b' ', HeadError::StartLine)?;
    head.path = reader.take(TARGET, HeadError::StartLine)?;
    reader.expect(b' ', HeadError::StartLine)?;
    head.version = reader.version()?;
    reader.line_end(HeadError::StartLine)?;
    reader.fields(fields_max, &mut head.fields)
}

/// A version that is well formed is refused as a version, with 505; anything else is no request line. Only a whole line can tell them apart, so
/// that the answer does not depend on the pieces in which the line came.
fn refuse_version(text: &[u8]) -> Result<Parsed, HeadError> {
    match memchr::memchr2(b'\r', b'\n', text).and_then(|end| text.get(..end)) {
        None => Ok(Parsed::Partial),
        Some(line) if has_well_formed_version(line) => Err(HeadError::Version),
        Some(_) => Err(HeadError::StartLine),
    }
}

fn has_well_formed_version(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    let (version, rest) = (words.next().unwrap_or_default(), words.next());
    rest.is_none()
        && matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit())
}

struct RequestTarget<'b> {
    path: &'b [u8],
    authority: Option<&'b [u8]>,
}

/// Origin-form, absolute-form with `http`, or `*` for OPTIONS (RFC 9112 section 3.2).
fn read_target(target: &[u8], method: Method) -> Result<RequestTarget<'_>, HeadError> {
    if method == Method::Connect {
        return Err(HeadError::Method);
    }
    match target {
        [b'/', ..] => return Ok(RequestTarget { path: target, authority: None }),
        b"*" if method == Method::Options => return Ok(RequestTarget { path: target, authority: None }),
        _ => {}
    }
    let (scheme, rest) = target.split_at_checked(7).ok_or(HeadError::StartLine)?;
    if !scheme.eq_ignore_ascii_case(b"http://") {
        return Err(HeadError::StartLine);
    }
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).ok_or(HeadError::StartLine)?;
    // `http://host?query` would need a `/` inserted. No client sends it, so it is not worth a second form of path.
    if path.starts_with(b"?") {
        return Err(HeadError::StartLine);
    }
    Ok(RequestTarget { path, authority: Some(authority) })
}

fn read_fields(buffer: &[u8], head: &mut RequestHead, target: Option<&[u8]>) -> Result<(), HeadError> {
    let mut framing = Framing::default();
    let mut connection = ConnectionOptions::default();
    let mut host = None;
    let mut upgrade = Upgrade::default();
    head.expect_continue = false;
    head.expect_unknown = false;
    for field in &head.fields {
        let value = field.value.get(buffer);
        match field.id {
            FieldId::ContentLength | FieldId::TransferEncoding => framing.take(field.id, value)?,
            FieldId::Host if host.is_some() => return Err(HeadError::Host),
            FieldId::Host => host = Some(value),
            FieldId::Connection => connection.take(value),
            FieldId::Upgrade => upgrade.take(value),
            FieldId::Expect if value.eq_ignore_ascii_case(b"100-continue") => head.expect_continue = true,
            FieldId::Expect => return Err(HeadError::Expectation),
            _ => {}
        }
    }

    // RFC 9112 section 6.1: treat an HTTP/1.0 message with a transfer coding as badly framed.
    let is_http10 = head.version == Version::Http10;
    if framing.chunked && is_http10 {
        return Err(HeadError::Framing);
    }
    head.body = match framing.length {
        _ if framing.chunked => Body::Chunked,
        None | Some(0) => Body::None,
        Some(length) => Body::Length(length),
    };
    head.authority = Span::of(authority(host, target, is_http10)?, buffer);
    if target.is_some() {
        // The target's host overrides this field, so nothing later may see the field's value.
        let host = head.fields.iter_mut().find(|field| field.id == FieldId::Host);
        host.into_iter().for_each(|host| host.value = head.authority);
    }
    head.names_fields = connection.names_fields;
    head.keep_alive = if is_http10 { connection.keep_alive && !connection.close } else { !connection.close };
    // The upgrade to h2c is gone from the standard (RFC 9113 section 3.1) and is a known way around a proxy, so it is never passed on.
    let may_upgrade = connection.upgrade && !is_http10 && head.body == Body::None;
    head.upgrade = upgrade.chosen().filter(|_| may_upgrade).map(|protocol| Span::of(protocol, buffer));
    // An HTTP/1.0 client does not know 1xx (RFC 9110 section 10.1.1).
    head.expect_continue &= !is_http10 && head.body != Body::None;
    Ok(())
}

/// What all `Upgrade` lines together ask for (RFC 9110 section 7.8).
#[derive(Default)]
struct Upgrade<'b> {
    websocket: Option<&'b [u8]>,
    first: Option<&'b [u8]>,
    count: usize,
}

impl<'b> Upgrade<'b> {
    fn take(&mut self, value: &'b [u8]) {
        for protocol in list(value) {
            self.count += 1;
            self.first.get_or_insert(protocol);
            if protocol.eq_ignore_ascii_case(b"websocket") {
                self.websocket.get_or_insert(protocol);
            }
        }
    }

    /// WebSocket if it is offered, otherwise the only protocol. None of several others: the endpoint would have to choose, and one may be
    /// HTTP/2.
    fn chosen(&self) -> Option<&'b [u8]> {
        let only = self.first.filter(|protocol| self.count == 1 && is_upgrade(protocol));
        self.websocket.or(only)
    }
}

/// One protocol that is not HTTP/2.
fn is_upgrade(value: &[u8]) -> bool {
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(byte);
    !value.is_empty() && value.iter().all(is_token) && !value.get(..2).is_some_and(|v| v.eq_ignore_ascii_case(b"h2"))
}

/// HTTP/1.1 needs exactly one valid host (RFC 9112 section 3.2); HTTP/1.0 may have none. A target that names another host overrides it
/// (section 3.2.2), and the endpoint gets only the target's.
fn authority<'b>(host: Option<&'b [u8]>, target: Option<&'b [u8]>, is_http10: bool) -> Result<&'b [u8], HeadError> {
    let authority = match (target, host) {
        (Some(_), Some(host)) if !is_authority(host) => return Err(HeadError::Host),
        (Some(target), Some(_)) => target,
        (Some(target), None) if is_http10 => target,
        (None, Some(host)) => host,
        (None, None) if is_http10 => return Ok(b""),
        (_, None) => return Err(HeadError::Host),
    };
    if is_authority(authority) { Ok(authority) } else { Err(HeadError::Host) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::find;

    fn parse(text: &str) -> Result<(Parsed, RequestHead), HeadError> {
        let mut head = RequestHead::default();
        parse_request(text.as_bytes(), 100, &mut head).map(|parsed| (parsed, head))
    }

    /// `expect`: method, path, authority, body, keep-alive.
    #[track_caller]
    fn check_good(text: &str, expect: (&str, &str, &str, Body, bool)) {
        let (parsed, head) = parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(parsed, Parsed::Complete(text.len()), "{text:?}");
        let at = |span: Span| std::str::from_utf8(span.get(text.as_bytes())).unwrap().to_owned();
        let got = (at(head.method_name), at(head.path), at(head.authority));
        assert_eq!((got.0.as_str(), got.1.as_str(), got.2.as_str(), head.body, head.keep_alive), expect, "{text:?}");
    }

    #[track_caller]
    fn check_bad(text: &str, expect: HeadError) {
        assert_eq!(parse(text).map(|(parsed, _)| parsed), Err(expect), "{text:?}");
    }

    #[test]
    fn plain_requests() {
        check_good("GET / HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/", "a", Body::None, true));
        check_good("\r\nGET /x?y=z HTTP/1.1\r\nHost: a:80\r\n\r\n", ("GET", "/x?y=z", "a:80", Body::None, true));
        check_good("GET / HTTP/1.0\r\n\r\n", ("GET", "/", "", Body::None, false));
        check_good("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", ("GET", "/", "", Body::None, true));
        check_good("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, close\r\n\r\n", ("GET", "/", "a", Body::None, false));
        check_good(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n",
            ("POST", "/", "a", Body::Length(5), true),
        );
        check_good("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", ("POST", "/", "a", Body::None, true));
        check_good(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked \r\n\r\n",
            ("POST", "/", "a", Body::Chunked, true),
        );
        check_good("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", ("OPTIONS", "*", "a", Body::None, true));
        check_good("GET http://a/b HTTP/1.1\r\nHost: A\r\n\r\n", ("GET", "/b", "a", Body::None, true));
        check_good("GET http://b:81/x HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "/x", "b:81", Body::None, true));
        check_good("GET HTTP://a HTTP/1.1\r\nHost: a\r\n\r\n", ("GET", "", "a", Body::None, true));
        check_good("GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", ("GET", "/", "[::1]:8080", Body::None, true));
    }

    #[test]
    fn hostile_start_lines() {
        for line in [
            "GET  / HTTP/1.1",
            "GET / HTTP/1.1 ",
            " GET / HTTP/1.1",
            "GET\t/ HTTP/1.1",
            "GET /a b HTTP/1.1",
            "GET /a#b HTTP/1.1",
            "GET /\u{e9} HTTP/1.1",
            "GET a HTTP/1.1",
            "GET * HTTP/1.1",
            "GET https://a/ HTTP/1.1",
            "GET http://a?x HTTP/1.1",
            "GET / HTTP/1",
            "GET / http/1.1",
            "GET /",
            "G\0T / HTTP/1.1",
            "GET /\x01 HTTP/1.1",
        ] {
            check_bad(&format!("{line}\r\nHost: a\r\n\r\n"), HeadError::StartLine);
        }
        check_bad("GET / HTTP/2.0\r\nHost: a\r\n\r\n", HeadError::Version);
        check_bad("GET / HTTP/1.2\r\nHost: a\r\n\r\n", HeadError::Version);
        check_bad("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::Method);
        check_bad("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::StartLine);
        check_bad("\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", HeadError::StartLine);
    }

    #[test]
    fn hostile_fields() {
        for line in [
            "A : b",
            "A b",
            ": b",
            "A\0: b",
            "A: b\0c",
            "A: b\x07",
            "A: b\n",
            "A: b\rC: d",
            " A: b",
            "A: b\r\n c",
            "\u{e9}: b",
            "A(: b",
        ] {
            check_bad(&format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n"), HeadError::Field);
        }
        check_bad("GET / HTTP/1.1\nHost: a\r\n\r\n", HeadError::Field);
        check_bad("GET / HTTP/1.1\r\nHost: a\r\n\n", HeadError::Field);
        let many = "A: b\r\n".repeat(101);
        check_bad(&format!("GET / HTTP/1.1\r\n{many}\r\n"), HeadError::TooManyFields);
        check_bad(&format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(300)), HeadError::TooManyFields);
    }

    #[test]
    fn hostile_framing_and_hosts() {
        let framing = |lines: &str, version: &str| {
            check_bad(&format!("POST / HTTP/{version}\r\nHost: a\r\n{lines}\r\n\r\n"), HeadError::Framing);
        };
        framing("Content-Length: 5\r\nTransfer-Encoding: chunked", "1.1");
        framing("Content-Length: 5\r\nContent-Length: 5", "1.1");
        framing("Content-Length: 5, 5", "1.1");
        framing("Content-Length:", "1.1");
        framing("Transfer-Encoding: chunked", "1.0");
        framing("Transfer-Encoding: gzip, chunked", "1.1");
        framing("Transfer-Encoding:", "1.1");
        let host = |lines: &str| check_bad(&format!("GET / HTTP/1.1\r\n{lines}\r\n"), HeadError::Host);
        host("");
        host("Host: a\r\nHost: a\r\n");
        host("Host:\r\n");
        for bad in
            ["a b", "a/b", "a@b", "a,b", "a:x", "a:", "a:65536", "[::1", "[1::2::3]", "[::1]x", "[g]", ":80", "a:80:80"]
        {
            host(&format!("Host: {bad}\r\n"));
        }
        check_bad("GET http://b/ HTTP/1.1\r\nHost: a/\r\n\r\n", HeadError::Host);
        check_bad("GET http://b/ HTTP/1.1\r\nHost: b\r\nHost: b\r\n\r\n", HeadError::Host);
        check_bad("GET http://u@a/ HTTP/1.1\r\nHost: u@a\r\n\r\n", HeadError::Host);
        check_bad("POST / HTTP/1.1\r\nHost: a\r\nExpect: 200-ok\r\n\r\n", HeadError::Expectation);
    }

    #[test]
    fn upgrades_that_may_be_passed_on() {
        let check = |lines: &str, expect: Option<&str>| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
            let upgrade = parse(&text).unwrap().1.upgrade;
            assert_eq!(upgrade.map(|span| span.get(text.as_bytes())), expect.map(str::as_bytes), "{lines:?}");
        };
        check("Connection: keep-alive, Upgrade\r\nUpgrade: websocket", Some("websocket"));
        check("Connection: upgrade\r\nUpgrade: SPDY/3.1", Some("SPDY/3.1"));
        check("Upgrade: websocket", None);
        check("Connection: upgrade", None);
        check("Connection: upgrade\r\nUpgrade: h2c", None);
        check("Connection: upgrade\r\nUpgrade: websocket, h2c", Some("websocket"));
        check("Connection: upgrade\r\nUpgrade: h2c ,, WebSocket ,", Some("WebSocket"));
        check("Connection: upgrade\r\nUpgrade: a\r\nUpgrade: websocket", Some("websocket"));
        check("Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b", None);
        check("Connection: upgrade\r\nUpgrade: a, h2c", None);
        check("Connection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 3", None);
    }

    #[test]
    fn the_answer_does_not_depend_on_the_pieces() {
        for version in
            ["HTTP/2.0", "HTTP/1.2", "HTTP/2.0 ", "HTTP/2.0x", "HTTP/2", "HTTP/22", "HTTP/1.10", "http/1.1", "X"]
        {
            let text = format!("GET / {version}\r\nHost: a\r\n\r\n");
            let whole = parse(&text).unwrap_err();
            for length in 0..text.len() {
                let piece = parse(&text[..length]).map(|(parsed, _)| parsed);
                assert!(piece == Ok(Parsed::Partial) || piece == Err(whole), "{:?}: {piece:?}", &text[..length]);
            }
        }
        check_bad("GET / HTTP/2.0\nHost: a\r\n\r\n", HeadError::Version);
    }

    #[test]
    fn every_prefix_is_partial_and_the_head_is_found_again() {
        let text = "POST /x HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 3\r\n\r\nabc";
        let end = text.len() - 3;
        let mut head = RequestHead::default();
        for length in 0..end {
            let parsed = parse_request(&text.as_bytes()[..length], 100, &mut head);
            assert_eq!(parsed, Ok(Parsed::Partial), "{length}");
        }
        for length in end..=text.len() {
            let parsed = parse_request(&text.as_bytes()[..length], 100, &mut head);
            assert_eq!(parsed, Ok(Parsed::Complete(end)));
        }
        assert_eq!(find(&head.fields, FieldId::Host).unwrap().value.get(text.as_bytes()), b"a");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let mut head = RequestHead::default();
            if let Ok(Parsed::Complete(length)) = parse_request(&bytes, 100, &mut head) {
                proptest::prop_assert!(length <= bytes.len());
            }
        }
    }
}

//! Whole messages: the valid start lines, and how head and body belong together (RFC 9112 section 6.3).

use super::body::{Progress, body};
use super::head::{Head, declared_framing, head, host, token};
use super::{Field, Framing, Violation};

/// A request that can be read in only one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method, a token.
    pub method: String,
    /// Origin-form, or `*`: the forms that an origin may receive (RFC 9112 section 3.2.1).
    pub target: String,
    /// The fields, in order.
    pub headers: Vec<Field>,
    /// The framing that the headers declare.
    pub framing: Framing,
    /// The decoded body; empty if only the head was read.
    pub body: Vec<u8>,
    /// The trailers of a chunked body.
    pub trailers: Vec<Field>,
}

/// A response that can be read in only one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The minor version: 1, or 0 in a response to a client that uses HTTP/1.0.
    pub minor_version: u8,
    /// 100 to 999. Statuses above 599 are in use, and are unambiguous.
    pub status: u16,
    /// The fields, in order.
    pub headers: Vec<Field>,
    /// The framing, decided by headers, status and the request's method.
    pub framing: Framing,
    /// The decoded body; empty if only the head was read.
    pub body: Vec<u8>,
    /// The trailers of a chunked body.
    pub trailers: Vec<Field>,
}

/// What the framing of a response depends on besides its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseTo {
    /// A HEAD request: the headers describe a body that is not sent.
    Head,
    /// Any other request.
    Other,
}

/// Reads one request at the start of `bytes`, and returns it with its length; `None` if more is needed.
pub fn request(bytes: &[u8]) -> Result<Option<(Request, usize)>, Violation> {
    let Some((mut request, head_length)) = request_head(bytes)? else { return Ok(None) };
    match after_head(bytes, head_length, request.framing, false)? {
        Progress::Partial(_) => Ok(None),
        Progress::Whole(data, trailers, length) => {
            request.body = data;
            request.trailers = trailers;
            Ok(Some((request, head_length + length)))
        }
    }
}

/// Reads one request head at the start of `bytes`, and returns it with its length.
pub fn request_head(bytes: &[u8]) -> Result<Option<(Request, usize)>, Violation> {
    let Some(Head { start_line, fields, length }) = head(bytes)? else { return Ok(None) };
    let parts: Vec<&[u8]> = start_line.split(|&byte| byte == b' ').collect();
    let [method, target, b"HTTP/1.1"] = parts.as_slice() else {
        let line = String::from_utf8_lossy(&start_line);
        return Err(Violation::at(0, format!("request line {line:?} is not METHOD SP TARGET SP HTTP/1.1")));
    };
    let method = token(method).ok_or_else(|| Violation::at(0, "the method is not a token"))?;
    let target = request_target(&method, target)?;
    host(&fields)?;
    let framing = declared_framing(&fields)?.unwrap_or(Framing::None);
    Ok(Some((Request { method, target, headers: fields, framing, body: Vec::new(), trailers: Vec::new() }, length)))
}

/// Reads one response at the start of `bytes`, and returns it with its length. `ended` means that the connection was
/// closed properly after them.
pub fn response(bytes: &[u8], to: ResponseTo, ended: bool) -> Result<Option<(Response, usize)>, Violation> {
    let Some((mut response, head_length)) = response_head(bytes)? else { return Ok(None) };
    if to == ResponseTo::Head {
        response.framing = Framing::None;
    }
    match after_head(bytes, head_length, response.framing, ended)? {
        Progress::Partial(_) => Ok(None),
        Progress::Whole(data, trailers, length) => {
            response.body = data;
            response.trailers = trailers;
            Ok(Some((response, head_length + length)))
        }
    }
}

/// Reads one response head at the start of `bytes`, and returns it with its length. `framing` assumes that the request
/// was not HEAD.
pub fn response_head(bytes: &[u8]) -> Result<Option<(Response, usize)>, Violation> {
    let Some(Head { start_line, fields, length }) = head(bytes)? else { return Ok(None) };
    let (minor_version, status) = status(&start_line).ok_or_else(|| {
        let line = String::from_utf8_lossy(&start_line);
        Violation::at(0, format!("status line {line:?} is not HTTP/1.x SP 3DIGIT SP REASON"))
    })?;
    let declared = declared_framing(&fields)?;
    let framing = match (status, declared) {
        // RFC 9110 sections 8.6 and 6.4.1: neither field may be sent, because there is no body.
        (100..=199 | 204, Some(_)) => return Err(Violation::at(0, format!("{status} with a declared body"))),
        (100..=199 | 204 | 304, _) => Framing::None,
        (_, Some(Framing::Chunked)) if minor_version == 0 => {
            return Err(Violation::at(0, "chunked in HTTP/1.0 (RFC 9112 section 6.1)"));
        }
        (_, Some(framing)) => framing,
        (_, None) => Framing::UntilClose,
    };
    let (headers, body, trailers) = (fields, Vec::new(), Vec::new());
    Ok(Some((Response { minor_version, status, headers, framing, body, trailers }, length)))
}

fn after_head(bytes: &[u8], head_length: usize, framing: Framing, ended: bool) -> Result<Progress, Violation> {
    let rest = bytes.get(head_length..).unwrap_or_default();
    body(rest, framing, ended).map_err(|violation| Violation { offset: violation.offset + head_length, ..violation })
}

/// Visible ASCII that begins with a slash. A fragment is never sent (RFC 9112 section 3.2.1).
fn request_target(method: &str, target: &[u8]) -> Result<String, Violation> {
    let visible = target.iter().all(|byte| (0x21..=0x7e).contains(byte) && *byte != b'#');
    let asterisk = target == b"*" && method == "OPTIONS";
    if !visible || !(target.starts_with(b"/") || asterisk) {
        return Err(Violation::at(0, format!("request target {:?}", String::from_utf8_lossy(target))));
    }
    Ok(String::from_utf8_lossy(target).into_owned())
}

/// `HTTP/1.1 SP 3DIGIT SP [reason]`, or HTTP/1.0 (RFC 9112 section 4): the minor version and the status.
fn status(line: &[u8]) -> Option<(u8, u16)> {
    let (minor, rest) = match line.strip_prefix(b"HTTP/1.1 ") {
        Some(rest) => (1, rest),
        None => (0, line.strip_prefix(b"HTTP/1.0 ")?),
    };
    let (digits, reason) = rest.split_at_checked(3)?;
    let in_range = digits.iter().all(u8::is_ascii_digit) && digits[0] != b'0';
    if !in_range || reason.first() != Some(&b' ') {
        return None;
    }
    Some((minor, std::str::from_utf8(digits).ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `Ok(true)` expects a complete request, `Ok(false)` an incomplete one, and `Err` an error that contains this
    /// text.
    fn check(bytes: &str, expect: Result<bool, &str>) {
        match (request(bytes.as_bytes()), expect) {
            (Ok(Some((_, length))), Ok(true)) => assert_eq!(length, bytes.len(), "{bytes:?}"),
            (Ok(None), Ok(false)) => {}
            (Err(violation), Err(part)) => assert!(violation.what.contains(part), "{bytes:?}: {violation}"),
            (got, expect) => panic!("{bytes:?}: expected {expect:?}, got {got:?}"),
        }
    }

    #[test]
    fn requests() {
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Ok(true));
        check("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Ok(true));
        check("GET /a?b=c%20d HTTP/1.1\r\nhOST:a:80\r\nx-empty:\r\n\r\n", Ok(true));
        check("GET / HTTP/1.1\r\nHost: a\r\n", Ok(false));
        check("GET / HTTP/1.1\r\nHost: a\r\n\r", Ok(false));
        check("", Ok(false));
        check("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", Err("empty line"));
        check("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", Err("request line"));
        check("GET / HTTP/1.0\r\nHost: a\r\n\r\n", Err("request line"));
        check("GET / HTTP/1.1 \r\nHost: a\r\n\r\n", Err("request line"));
        check("G(T / HTTP/1.1\r\nHost: a\r\n\r\n", Err("method"));
        check("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n", Err("target"));
        check("GET * HTTP/1.1\r\nHost: a\r\n\r\n", Err("target"));
        check("GET /#x HTTP/1.1\r\nHost: a\r\n\r\n", Err("target"));
        check("GET /\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n", Err("target"));
        check("GET / HTTP/1.1\nHost: a\r\n\r\n", Err("bare LF"));
        check("GET / HTTP/1.1\r\nHost: a\r\rx: y\r\n\r\n", Err("bare CR"));
        check("GET / HTTP/1.1\r\nHost: a\r\nx: \0\r\n\r\n", Err("control character 0x00"));
        check("GET / HTTP/1.1\r\nHost: a\r\nx : y\r\n\r\n", Err("token"));
        check("GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n", Err("token"));
        check("GET / HTTP/1.1\r\nHost: a\r\nx\r\n\r\n", Err("colon"));
        check("GET / HTTP/1.1\r\nHost: a\r\nx: y\r\n z\r\n\r\n", Err("obs-fold"));
        check("GET / HTTP/1.1\r\n\r\n", Err("0 Host"));
        check("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", Err("2 Host"));
        check("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", Err("not a host"));
    }

    #[test]
    fn bodies() {
        let post = |rest: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}");
        check(&post("Content-Length: 2\r\n\r\nhi"), Ok(true));
        check(&post("Content-Length: 3\r\n\r\nhi"), Ok(false));
        check(&post("Content-Length: 0\r\n\r\n"), Ok(true));
        check(&post("Content-Length: 02\r\n\r\nhi"), Err("Content-Length"));
        check(&post("Content-Length: +2\r\n\r\nhi"), Err("Content-Length"));
        check(&post("Content-Length:\r\n\r\nhi"), Err("Content-Length"));
        check(&post("Content-Length: 2, 2\r\n\r\nhi"), Err("Content-Length"));
        check(&post("Content-Length: 99999999999999999999\r\n\r\nhi"), Err("Content-Length"));
        check(&post("Content-Length: 2\r\nContent-Length: 2\r\n\r\nhi"), Err("several"));
        check(&post("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nhi"), Err("both"));
        check(&post("Transfer-Encoding: Chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n"), Ok(true));
        check(&post("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), Err("exactly"));
        check(&post("Transfer-Encoding: \u{b}chunked\r\n\r\n0\r\n\r\n"), Err("control"));
        check(&post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), Err("several"));
        let chunked = |rest: &str| post(&format!("Transfer-Encoding: chunked\r\n\r\n{rest}"));
        check(&chunked("a\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\n"), Ok(true));
        check(&chunked("a\r\n0123456789\r\n0\r\n"), Ok(false));
        check(&chunked("a\r\n01234"), Ok(false));
        check(&chunked("2\r\nhi!\r\n0\r\n\r\n"), Err("chunk data"));
        check(&chunked("2;x=y\r\nhi\r\n0\r\n\r\n"), Err("chunk size"));
        check(&chunked("0x2\r\nhi\r\n0\r\n\r\n"), Err("chunk size"));
        check(&chunked("002\r\nhi\r\n0\r\n\r\n"), Err("chunk size"));
        check(&chunked("\r\n"), Err("chunk size"));
        check(&chunked("123456789\r\n"), Err("chunk size"));
        check(&chunked("2\nhi\r\n0\r\n\r\n"), Err("bare LF"));
        check(&chunked("0\r\nContent-Length: 4\r\n\r\n"), Err("trailer"));
    }

    #[test]
    fn responses() {
        let check = |bytes: &str, to: ResponseTo, ended: bool, expect: Result<Option<&str>, &str>| match (
            response(bytes.as_bytes(), to, ended),
            expect,
        ) {
            (Ok(Some((response, _))), Ok(Some(body))) => assert_eq!(response.body, body.as_bytes(), "{bytes:?}"),
            (Ok(None), Ok(None)) => {}
            (Err(violation), Err(part)) => assert!(violation.what.contains(part), "{bytes:?}: {violation}"),
            (got, expect) => panic!("{bytes:?}: expected {expect:?}, got {got:?}"),
        };
        let other = ResponseTo::Other;
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi", other, false, Ok(Some("hi")));
        check("HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\nhimore", other, false, Ok(Some("hi")));
        check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi", other, true, Ok(None));
        check("HTTP/1.1 200 OK\r\n\r\nhi", other, false, Ok(None));
        check("HTTP/1.1 200 OK\r\n\r\nhi", other, true, Ok(Some("hi")));
        check("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", ResponseTo::Head, false, Ok(Some("")));
        check("HTTP/1.1 304 Not Modified\r\ncontent-length: 2\r\n\r\n", other, false, Ok(Some("")));
        check("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nraw", other, false, Ok(Some("")));
        check("HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n", other, false, Err("declared body"));
        check("HTTP/1.1 200\r\n\r\n", other, false, Err("status line"));
        check("HTTP/1.1 20 OK\r\n\r\n", other, false, Err("status line"));
        check("HTTP/1.1 099 OK\r\n\r\n", other, false, Err("status line"));
        check("HTTP/1.2 200 OK\r\n\r\n", other, false, Err("status line"));
        check("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", other, false, Ok(Some("hi")));
        check("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", other, false, Err("1.0"));
    }
}

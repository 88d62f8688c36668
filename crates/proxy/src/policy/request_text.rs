//! Text that is made of a request: keys of hashes and of caches, and headers of questions.

use std::io::Write;

use model::RequestPart;
use smallvec::SmallVec;

use super::rate_limit::first_value;
use super::values::{Names, Values};
use super::{RequestView, scheme};
use crate::exchange::route::HostText;
use crate::http::client_address;
use crate::http::cookie;

/// Bytes of a text. A longer one needs memory of its own.
const TEXT_BYTES: usize = 256;

/// The text.
pub(crate) fn made(parts: &[RequestPart], asked: &RequestView<'_>) -> SmallVec<[u8; TEXT_BYTES]> {
    let mut out = SmallVec::new();
    parts.iter().for_each(|part| put(part, asked, &mut out));
    out
}

/// The text as the value of a field: one line of printable ASCII, with no space at either end. Other bytes are percent-encoded.
pub(crate) fn field_value(parts: &[RequestPart], asked: &RequestView<'_>) -> String {
    let mut out = Vec::new();
    for byte in made(parts, asked) {
        match byte {
            b' '..=b'~' => out.push(byte),
            // Writing to a Vec cannot fail.
            byte => _ = write!(out, "%{byte:02X}"),
        }
    }
    String::from_utf8_lossy(out.trim_ascii()).into_owned()
}

/// Appends the text as a part of a URL: what variables stand for is percent-encoded but for letters, digits and `-._~`.
pub(crate) fn put_in_url(parts: &[RequestPart], asked: &RequestView<'_>, out: &mut String) {
    for part in parts {
        match part {
            RequestPart::Text(text) => out.push_str(text),
            _ => escape(&made(std::slice::from_ref(part), asked), UNRESERVED, out),
        }
    }
}

/// RFC 3986 section 2.3, besides letters and digits.
pub(crate) const UNRESERVED: &[u8] = b"-._~";

/// Appends bytes, percent-encoded but for letters, digits and these.
pub(crate) fn escape(bytes: &[u8], kept: &[u8], out: &mut String) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    let digit = |four: u8| HEX.get(usize::from(four)).copied().unwrap_or('0');
    for byte in bytes {
        match byte.is_ascii_alphanumeric() || kept.contains(byte) {
            true => out.push(char::from(*byte)),
            false => out.extend(['%', digit(byte >> 4), digit(byte & 15)]),
        }
    }
}

fn put(part: &RequestPart, asked: &RequestView<'_>, out: &mut SmallVec<[u8; TEXT_BYTES]>) {
    let RequestView { head, buffer, target, client, .. } = asked;
    let query = || split(head.path.get(buffer)).1;
    let bytes: &[u8] = match part {
        RequestPart::Text(text) => text.as_bytes(),
        RequestPart::ClientIp => {
            let ip = client_address::client_ip(head, buffer, client).to_string();
            return out.extend_from_slice(ip.as_bytes());
        }
        RequestPart::Method => head.method_name.get(buffer),
        RequestPart::Scheme => scheme(asked).name().as_bytes(),
        RequestPart::Host => return out.extend(HostText::new(head.authority.get(buffer)).as_str().bytes()),
        RequestPart::Authority => head.authority.get(buffer),
        RequestPart::Port => return out.extend_from_slice(client.local.port().to_string().as_bytes()),
        RequestPart::Target => head.path.get(buffer),
        RequestPart::Path => split(target).0,
        RequestPart::Query => query(),
        RequestPart::Parameter(name) => parameter(query(), name).unwrap_or_default(),
        RequestPart::Header(name) => first_value(asked, name).unwrap_or_default(),
        RequestPart::Cookie(name) => cookie::values(&head.fields, buffer, name.as_bytes()).next().unwrap_or_default(),
        RequestPart::Variable(variable) => {
            // No such text has a variable for one of these.
            let names = Names { listener: "", route: "", cluster: "" };
            let mut value = Vec::new();
            Values { head, buffer, client, names, endpoint: None }.write(*variable, &mut value);
            return out.extend_from_slice(&value);
        }
    };
    out.extend_from_slice(bytes);
}

/// Path and query.
pub(crate) fn split(target: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'?', target) {
        Some(at) => (target.get(..at).unwrap_or_default(), target.get(at + 1..).unwrap_or_default()),
        None => (target, &[]),
    }
}

/// The value of the first parameter with this name, as it is written. Its name may be in another case, as nginx has it.
fn parameter<'q>(query: &'q [u8], name: &str) -> Option<&'q [u8]> {
    query.split(|byte| *byte == b'&').find_map(|pair| {
        let at = memchr::memchr(b'=', pair)?;
        let (written, value) = pair.split_at_checked(at)?;
        written.eq_ignore_ascii_case(name.as_bytes()).then(|| value.get(1..).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use model::Variable;

    use super::*;
    use crate::policy::testing::asked;

    #[test]
    fn keys_are_made_of_parts() {
        let check = |line: &str, parts: &[RequestPart], expect: &str| {
            let lines = format!("{line} HTTP/1.1\r\nHost: A.example:81\r\nCookie: id=joe\r\nX-User: ann\r\n");
            asked(&lines, false, |asked| {
                assert_eq!(String::from_utf8_lossy(&made(parts, asked)), expect, "{line} {parts:?}");
            });
        };
        let text = |text: &str| RequestPart::Text(text.to_owned());
        let param = |name: &str| RequestPart::Parameter(name.to_owned());
        let all = [
            RequestPart::Method,
            text(" "),
            RequestPart::Scheme,
            text("://"),
            RequestPart::Host,
            RequestPart::Path,
            text("?"),
            RequestPart::Query,
        ];
        check("GET /a/./b?c=d", &all, "GET http://a.example/a/b?c=d");
        check("GET /a/./b", &[RequestPart::Target, text("|"), RequestPart::Authority], "/a/./b|A.example:81");
        check("GET /a?x=1&User=2%20&user=3", &[param("user")], "2%20");
        check("GET /a?users=1&user", &[param("user")], "");
        check("GET /a?user=", &[param("user"), RequestPart::Query], "user=");
        let named = [RequestPart::Header("x-user".into()), RequestPart::Cookie("id".into()), RequestPart::ClientIp];
        check("GET /", &named, "annjoe10.0.0.9");
        check("GET /", &[RequestPart::Port], "8080");
        check("GET /", &[RequestPart::Header("x-none".into())], "");
        check(&format!("GET /{}", "a".repeat(1000)), &[RequestPart::Target], &format!("/{}", "a".repeat(1000)));
    }

    #[test]
    fn values_of_fields_are_one_line() {
        let check = |lines: &str, parts: &[RequestPart], expect: &str| {
            let lines = format!("GET /a HTTP/1.1\r\nHost: a\r\n{lines}");
            assert_eq!(asked(&lines, false, |asked| field_value(parts, asked)), expect, "{lines} {parts:?}");
        };
        let header = |name: &str| RequestPart::Header(name.to_owned());
        check("X-User: j\u{f6}\tb\r\n", &[header("x-user")], "j%C3%B6%09b");
        check("X-User: joe\r\n", &[RequestPart::Text("for ".to_owned()), header("x-none")], "for");
        check("", &[header("x-none")], "");
        check("", &[RequestPart::Variable(Variable::ClientPort), RequestPart::Target], "4711/a");
    }
}

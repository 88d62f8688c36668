//! The hash keys for consistent hashing.

use std::net::IpAddr;

use balance::hash_key;
use model::{HashKey, HashPart};
use smallvec::SmallVec;

use crate::exchange::route::HostText;
use crate::http::client_address;
use crate::http::cookie;
use crate::policy::rate_limit::first_value;
use crate::policy::{self, RequestView};

/// Bytes of a key that is made of parts. A longer one needs memory of its own.
const TEMPLATE_BYTES: usize = 256;

/// The key of a request. If the part that it is made of is missing, the client's address is used instead, so such a client also stays with its
/// endpoint.
pub(crate) fn key(key: &HashKey, asked: &RequestView<'_>) -> u64 {
    let RequestView { head, buffer, .. } = asked;
    let value = match key {
        HashKey::ClientIp => None,
        HashKey::Header(name) => first_value(asked, name),
        HashKey::Cookie(name) => cookie::values(&head.fields, buffer, name.as_bytes()).next(),
        HashKey::Template(parts) => {
            let made = made(parts, asked);
            return if made.is_empty() { of_client(asked) } else { hash_key(&made) };
        }
    };
    value.map_or_else(|| of_client(asked), hash_key)
}

fn of_client(asked: &RequestView<'_>) -> u64 {
    ip(client_address::client_ip(asked.head, asked.buffer, asked.client))
}

fn made(parts: &[HashPart], asked: &RequestView<'_>) -> SmallVec<[u8; TEMPLATE_BYTES]> {
    let RequestView { head, buffer, target, client, .. } = asked;
    let mut out = SmallVec::new();
    let query = || split(head.path.get(buffer)).1;
    for part in parts {
        let bytes: &[u8] = match part {
            HashPart::Text(text) => text.as_bytes(),
            // As numbers: nobody reads the key.
            HashPart::ClientIp => {
                match client_address::client_ip(head, buffer, client) {
                    IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
                    IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
                }
                continue;
            }
            HashPart::Method => head.method_name.get(buffer),
            HashPart::Scheme => policy::scheme(asked).name().as_bytes(),
            HashPart::Host => {
                out.extend(HostText::new(head.authority.get(buffer)).as_str().bytes());
                continue;
            }
            HashPart::Authority => head.authority.get(buffer),
            HashPart::Port => {
                out.extend_from_slice(&client.local.port().to_be_bytes());
                continue;
            }
            HashPart::Target => head.path.get(buffer),
            HashPart::Path => split(target).0,
            HashPart::Query => query(),
            HashPart::Parameter(name) => parameter(query(), name).unwrap_or_default(),
            HashPart::Header(name) => first_value(asked, name).unwrap_or_default(),
            HashPart::Cookie(name) => cookie::values(&head.fields, buffer, name.as_bytes()).next().unwrap_or_default(),
        };
        out.extend_from_slice(bytes);
    }
    out
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

/// The key of an address.
pub(crate) fn ip(ip: IpAddr) -> u64 {
    match ip {
        IpAddr::V4(ip) => hash_key(&ip.octets()),
        IpAddr::V6(ip) => hash_key(&ip.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::asked;

    #[test]
    fn keys_come_from_what_is_named() {
        let check = |by: HashKey, lines: &str, expect: u64| {
            asked(&format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}"), false, |asked| {
                assert_eq!(key(&by, asked), expect, "{by:?} {lines}");
            });
        };
        let address = hash_key(&[10, 0, 0, 9]);
        check(HashKey::ClientIp, "X-Forwarded-For: 1.1.1.1\r\n", address);
        check(HashKey::Header("x-user".into()), "X-User: joe\r\n", hash_key(b"joe"));
        check(HashKey::Header("x-user".into()), "", address);
        check(HashKey::Cookie("id".into()), "Cookie: xid=1; id=joe\r\n", hash_key(b"joe"));
        check(HashKey::Cookie("id".into()), "Cookie: a=b\r\nCookie: id=joe\r\n", hash_key(b"joe"));
        check(HashKey::Cookie("id".into()), "Cookie: idx=joe\r\n", address);
    }

    #[test]
    fn keys_are_made_of_parts() {
        let check = |line: &str, parts: &[HashPart], expect: &str| {
            let lines = format!("{line} HTTP/1.1\r\nHost: A.example:81\r\nCookie: id=joe\r\nX-User: ann\r\n");
            asked(&lines, false, |asked| {
                assert_eq!(String::from_utf8_lossy(&made(parts, asked)), expect, "{line} {parts:?}");
                let address = hash_key(&[10, 0, 0, 9]);
                let hashed = if expect.is_empty() { address } else { hash_key(&made(parts, asked)) };
                assert_eq!(key(&HashKey::Template(parts.into()), asked), hashed);
            });
        };
        let text = |text: &str| HashPart::Text(text.to_owned());
        let param = |name: &str| HashPart::Parameter(name.to_owned());
        let all = [
            HashPart::Method,
            text(" "),
            HashPart::Scheme,
            text("://"),
            HashPart::Host,
            HashPart::Path,
            text("?"),
            HashPart::Query,
        ];
        check("GET /a/./b?c=d", &all, "GET http://a.example/a/b?c=d");
        check("GET /a/./b", &[HashPart::Target, text("|"), HashPart::Authority], "/a/./b|A.example:81");
        check("GET /a?x=1&User=2%20&user=3", &[param("user")], "2%20");
        check("GET /a?users=1&user", &[param("user")], "");
        check("GET /a?user=", &[param("user"), HashPart::Query], "user=");
        let named = [HashPart::Header("x-user".into()), HashPart::Cookie("id".into()), HashPart::ClientIp];
        check("GET /", &named, "annjoe\n\0\0\t");
        check("GET /", &[HashPart::Port], "\u{1f}\u{fffd}");
        check("GET /", &[HashPart::Header("x-none".into())], "");
        check(&format!("GET /{}", "a".repeat(1000)), &[HashPart::Target], &format!("/{}", "a".repeat(1000)));
    }
}

//! The hash keys for consistent hashing.

use std::net::IpAddr;

use balance::hash_key;
use model::HashKey;

use crate::http::client_address;
use crate::http::cookie;
use crate::policy::rate_limit::first_value;
use crate::policy::{RequestView, request_text};

/// The key of a request. If the part that it is made of is missing, the client's address is used instead, so such a client also stays with its
/// endpoint.
pub(crate) fn key(key: &HashKey, asked: &RequestView<'_>) -> u64 {
    let RequestView { head, buffer, .. } = asked;
    let value = match key {
        HashKey::ClientIp => None,
        HashKey::Header(name) => first_value(asked, name),
        HashKey::Cookie(name) => cookie::values(&head.fields, buffer, name.as_bytes()).next(),
        HashKey::Template(parts) => {
            let made = request_text::made(parts, asked);
            return if made.is_empty() { of_client(asked) } else { hash_key(&made) };
        }
    };
    value.map_or_else(|| of_client(asked), hash_key)
}

fn of_client(asked: &RequestView<'_>) -> u64 {
    ip(client_address::client_ip(asked.head, asked.buffer, asked.client))
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
}

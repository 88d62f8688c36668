//! The hash keys for consistent hashing.

use std::net::IpAddr;

use balance::hash_key;
use model::HashKey;
use wire::message::RequestHead;

use crate::http::client_address;
use crate::http::cookie;
use crate::http::headers::Client;

/// The key of a request. If the header or cookie is missing, the client's address is used instead, so such a client also stays with its
/// endpoint.
pub(crate) fn key(key: &HashKey, head: &RequestHead, buffer: &[u8], client: &Client<'_>) -> u64 {
    let value = match key {
        HashKey::ClientIp => None,
        HashKey::Header(name) => {
            let is_wanted =
                |field: &&wire::message::Field| field.name.get(buffer).eq_ignore_ascii_case(name.as_bytes());
            head.fields.iter().find(is_wanted).map(|field| field.value.get(buffer))
        }
        HashKey::Cookie(name) => cookie::values(&head.fields, buffer, name.as_bytes()).next(),
    };
    value.map_or_else(|| ip(client_address::client_ip(head, buffer, client)), hash_key)
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
                assert_eq!(key(&by, asked.head, asked.buffer, asked.client), expect, "{by:?} {lines}");
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

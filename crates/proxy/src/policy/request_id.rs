//! The id of a request: kept from whoever sent it, or made here.

use aws_lc_rs::rand;
use model::{KeepRequestId, RequestId};
use net::clock;
use wire::message::RequestHead;

use super::headers::is_alike;

/// The field that has it.
pub(crate) const NAME: &[u8] = b"x-request-id";

/// The longest id that is kept: every line of the access log has it.
const ID_BYTES_MAX: usize = 128;

/// The id of a request with this head. `is_trusted`: it comes from a trusted proxy.
pub(crate) fn of(rules: &RequestId, head: &RequestHead, buffer: &[u8], is_trusted: bool) -> Box<str> {
    let is_kept = match rules.keep {
        KeepRequestId::Trusted => is_trusted,
        KeepRequestId::Always => true,
        KeepRequestId::Never => false,
    };
    let kept = if is_kept { received(head, buffer) } else { None };
    kept.map_or_else(random, Box::from)
}

/// The id that was sent. Two of them, or one that others might cut or misread, count as none.
fn received<'b>(head: &RequestHead, buffer: &'b [u8]) -> Option<&'b str> {
    let mut ids = head.fields.iter().filter(|field| is_alike(field.name.get(buffer), NAME));
    let id = ids.next().filter(|_| ids.next().is_none())?.value.get(buffer);
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:/+=@".contains(byte);
    let is_good = (1..=ID_BYTES_MAX).contains(&id.len()) && id.iter().all(is_plain);
    std::str::from_utf8(id).ok().filter(|_| is_good)
}

/// A random UUID (RFC 9562 section 5.4).
pub(crate) fn random() -> Box<str> {
    let mut bytes = [0; 16];
    if rand::fill(&mut bytes).is_err() {
        // The generator has never failed. If it does, ids that repeat are better than requests that fail.
        bytes = u128::from(clock::unix_ms()).to_be_bytes();
    }
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    let part = |range| hex.get(range).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)).into_boxed_str()
}

#[cfg(test)]
mod tests {
    use super::super::testing::asked;
    use super::*;

    #[test]
    fn ids_are_kept_from_whom_the_operator_says() {
        let check = |lines: &str, keep, is_trusted, expect: Option<&str>| {
            let lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}");
            let rules = RequestId { keep, in_response: false };
            let id = asked(&lines, is_trusted, |view| of(&rules, view.head, view.buffer, is_trusted));
            match expect {
                Some(expect) => assert_eq!(&*id, expect, "{lines}"),
                None => assert!(id.len() == 36 && !lines.contains(&*id), "{lines} {id}"),
            }
        };
        let (trusted, always, never) = (KeepRequestId::Trusted, KeepRequestId::Always, KeepRequestId::Never);
        check("X-Request-ID: a-1\r\n", trusted, true, Some("a-1"));
        check("X-Request-ID: a-1\r\n", trusted, false, None);
        check("X-Request-ID: a-1\r\n", always, false, Some("a-1"));
        check("X-Request-ID: a-1\r\n", never, true, None);
        check("", always, true, None);
        check("X-Request-ID: a-1\r\nx-request-id: a-2\r\n", always, true, None);
        check("X-Request-ID: a-1\r\nx_request_id: a-2\r\n", always, true, None);
        check("X-Request-ID:\r\n", always, true, None);
        check("X-Request-ID: a b\r\n", always, true, None);
        check("X-Request-ID: a\"b\r\n", always, true, None);
        check(&format!("X-Request-ID: {}\r\n", "a".repeat(129)), always, true, None);
        let longest = "a".repeat(128);
        check(&format!("X-Request-ID: {longest}\r\n"), always, true, Some(&longest));
    }

    #[test]
    fn a_new_id_is_a_uuid() {
        let (one, other) = (random(), random());
        assert_ne!(one, other);
        for id in [one, other] {
            let lengths: Vec<_> = id.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
            assert!(id.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)));
            assert!(id[14..].starts_with('4') && "89ab".contains(&id[19..20]), "{id}");
        }
    }
}

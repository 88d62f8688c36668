//! Cookies of a request (RFC 6265 section 4.2).

use wire::message::{Field, FieldId};

/// The values of the cookies with this name, in the order received.
pub(crate) fn values<'b>(fields: &[Field], buffer: &'b [u8], name: &[u8]) -> impl Iterator<Item = &'b [u8]> {
    let cookies = fields.iter().filter(|field| field.id == FieldId::Cookie);
    cookies
        .flat_map(|field| field.value.get(buffer).split(|byte| *byte == b';'))
        .filter_map(move |pair| pair.trim_ascii().strip_prefix(name)?.strip_prefix(b"="))
}

#[cfg(test)]
mod tests {
    use wire::h1::parse_request;
    use wire::message::RequestHead;

    use super::*;

    #[test]
    fn cookies_are_found_by_their_whole_name() {
        let check = |lines: &str, expect: &[&str]| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let mut head = RequestHead::default();
            parse_request(text.as_bytes(), 100, &mut head).unwrap();
            let found: Vec<_> = values(&head.fields, text.as_bytes(), b"id").map(String::from_utf8_lossy).collect();
            assert_eq!(found, expect, "{lines}");
        };
        check("Cookie: xid=1; id=joe\r\n", &["joe"]);
        check("Cookie: a=b\r\ncookie: id=joe;id=\r\n", &["joe", ""]);
        check("Cookie: idx=joe; ID=x; id\r\n", &[]);
        check("X: id=joe\r\n", &[]);
    }
}

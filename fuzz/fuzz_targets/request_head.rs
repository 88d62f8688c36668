//! Request heads: what is accepted is one unambiguous request, and stays the same when it is written again.
#![no_main]

use fuzz::{FIELDS_MAX, assert_prefixes, assert_refused, assert_same_fields, framing, write_fields};
use libfuzzer_sys::fuzz_target;
use testkit::strict;
use wire::h1::{self, Parsed};
use wire::message::{RequestHead, Version};

fuzz_target!(|data: &[u8]| {
    let mut head = RequestHead::default();
    match h1::parse_request(data, FIELDS_MAX, &mut head) {
        Ok(Parsed::Complete(length)) => {
            let mut other = RequestHead::default();
            assert_prefixes(data, length, |bytes| h1::parse_request(bytes, FIELDS_MAX, &mut other));
            check(data, &head);
        }
        Ok(Parsed::Partial) => {}
        Err(_) => {
            let mut other = RequestHead::default();
            assert_refused(data, |bytes| h1::parse_request(bytes, FIELDS_MAX, &mut other));
        }
    }
});

fn check(data: &[u8], head: &RequestHead) {
    let authority: &[u8] = match head.authority.get(data) {
        b"" => {
            assert_eq!(head.version, Version::Http10, "only HTTP/1.0 may do without a host");
            b"127.0.0.1"
        }
        authority => authority,
    };
    let mut out = Vec::new();
    h1::request_line(&mut out, head.method_name.get(data), head.path.get(data));
    h1::field(&mut out, b"host", authority);
    write_fields(&mut out, &head.fields, data, head.body);

    let read = strict::request_head(&out);
    let Ok(Some((request, length))) = read else {
        panic!("{:?} of {}", read, testkit::escape(&out));
    };
    assert_eq!(length, out.len());
    assert_eq!(request.method.as_bytes(), head.method_name.get(data));
    let path = head.path.get(data);
    assert_eq!(request.target.as_bytes(), if path.is_empty() { b"/" } else { path });
    assert_eq!(strict::values(&request.headers, "host"), [authority]);
    assert_eq!(request.framing, framing(head.body));
    assert_same_fields(&request.headers, &head.fields, data);
}

//! Response heads: what is accepted is one unambiguous response, and stays the same when it is written again.
//!
//! The first byte of the input chooses the method of the request.
#![no_main]

use fuzz::{FIELDS_MAX, assert_prefixes, assert_refused, assert_same_fields, framing, write_fields};
use libfuzzer_sys::fuzz_target;
use testkit::strict;
use wire::h1::{self, Parsed};
use wire::message::{Body, Method, ResponseHead, Version};

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let method = if choice % 4 == 0 { Method::Head } else { Method::Get };
    let mut head = ResponseHead::default();
    match h1::parse_response(data, FIELDS_MAX, method, &mut head) {
        Ok(Parsed::Complete(length)) => {
            let mut other = ResponseHead::default();
            assert_prefixes(data, length, |bytes| h1::parse_response(bytes, FIELDS_MAX, method, &mut other));
            check(data, &head, method);
        }
        Ok(Parsed::Partial) => {}
        Err(_) => {
            let mut other = ResponseHead::default();
            assert_refused(data, |bytes| h1::parse_response(bytes, FIELDS_MAX, method, &mut other));
        }
    }
});

fn check(data: &[u8], head: &ResponseHead, method: Method) {
    assert!(
        !(head.keep_alive && head.body == Body::UntilClose),
        "nothing can follow a body that ends with the connection"
    );
    let mut out = Vec::new();
    h1::status_line(&mut out, Version::Http11, head.status, head.reason.get(data));
    write_fields(&mut out, &head.fields, data, head.body);

    let read = strict::response_head(&out);
    let Ok(Some((response, length))) = read else {
        panic!("{:?} of {}", read, testkit::escape(&out));
    };
    assert_eq!(length, out.len());
    assert_eq!(response.status, head.status);
    // `Body::None` is also a Content-Length of 0, and whatever answers HEAD: written without the field, only those without a body read alike.
    if head.body != Body::None || (method != Method::Head && matches!(head.status, 100..=199 | 204 | 304)) {
        assert_eq!(response.framing, framing(head.body));
    }
    assert_same_fields(&response.headers, &head.fields, data);
}

//! Credentials in requests: what a request has is found or refused, and nothing of it is left in the head that an endpoint gets.
#![no_main]

use fuzz::FIELDS_MAX;
use libfuzzer_sys::fuzz_target;
use proxy::fuzzing;
use wire::h1::{self, Parsed};
use wire::message::RequestHead;

fuzz_target!(|data: &[u8]| {
    let mut head = RequestHead::default();
    let Ok(Parsed::Complete(length)) = h1::parse_request(data, FIELDS_MAX, &mut head) else { return };
    fuzzing::take_credentials(head, &data[..length]);
});

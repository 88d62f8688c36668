//! What the fuzz targets share: how a head that was accepted is written again, for the strict reader to judge.
//!
//! Each target holds an oracle, not only "no panic": what is accepted must be read by `testkit::strict`, an independent and literal reader of
//! RFC 9112, and mean the same to it; and bytes that come in pieces must mean what they mean as a whole.
//!
//! `cargo xtask fuzz` runs all targets. Findings become rows of the tables beside the code, or scripts in `e2e/scripts`.
#![forbid(unsafe_code)]

use testkit::strict;
use wire::h1;
use wire::message::{Body, Field, FieldId};

/// More than the balancer allows by default.
pub const FIELDS_MAX: usize = 100;

/// The fields that pass a hop as they are; framing, routing and hop-by-hop fields are made anew.
pub fn end_to_end<'h>(fields: &'h [Field], buffer: &'h [u8]) -> impl Iterator<Item = (&'h [u8], &'h [u8])> {
    let passes = |field: &&Field| {
        matches!(field.id, FieldId::Other | FieldId::Cookie | FieldId::Date | FieldId::Claim | FieldId::Alias)
    };
    fields.iter().filter(passes).map(move |field| (field.name.get(buffer), field.value.get(buffer)))
}

/// Writes those fields, the framing and the end of the head.
pub fn write_fields(out: &mut Vec<u8>, fields: &[Field], buffer: &[u8], body: Body) {
    for (name, value) in end_to_end(fields, buffer) {
        h1::field(out, name, value);
    }
    match body {
        Body::Length(length) => h1::field(out, b"content-length", length.to_string().as_bytes()),
        Body::Chunked => h1::field(out, b"transfer-encoding", b"chunked"),
        Body::None | Body::UntilClose => {}
    }
    out.extend_from_slice(b"\r\n");
}

/// The same fields, in the same order, with the same values.
pub fn assert_same_fields(read: &[strict::Field], fields: &[Field], buffer: &[u8]) {
    let framing = ["host", "content-length", "transfer-encoding"];
    let read = read.iter().filter(|field| !framing.iter().any(|name| field.name.eq_ignore_ascii_case(name)));
    let read: Vec<_> = read.map(|field| (field.name.as_bytes(), field.value.as_slice())).collect();
    let written: Vec<_> = end_to_end(fields, buffer).collect();
    assert_eq!(read, written, "the fields changed");
}

/// The strict reader's word for a framing.
pub fn framing(body: Body) -> strict::Framing {
    match body {
        Body::None => strict::Framing::None,
        Body::Length(length) => strict::Framing::Length(length),
        Body::Chunked => strict::Framing::Chunked,
        Body::UntilClose => strict::Framing::UntilClose,
    }
}

/// Every prefix of a head is the beginning of it, and nothing behind it changes it.
pub fn assert_prefixes<E: std::fmt::Debug>(
    data: &[u8],
    length: usize,
    mut parse: impl FnMut(&[u8]) -> Result<h1::Parsed, E>,
) {
    assert!(length <= data.len());
    for end in 0..length {
        let parsed = parse(&data[..end]);
        assert!(matches!(parsed, Ok(h1::Parsed::Partial)), "whole at {length}, but {parsed:?} at {end}");
        assert!(!h1::has_head_end(&data[..end], 0), "the end of the head is seen at {end}, before {length}");
    }
    assert!(h1::has_head_end(&data[..length], length), "the end of the head at {length} is not seen");
    let parsed = parse(&data[..length]);
    assert!(matches!(parsed, Ok(h1::Parsed::Complete(end)) if end == length), "{parsed:?}");
}

/// Once refused, more bytes do not make it good.
pub fn assert_refused<E: std::fmt::Debug>(data: &[u8], mut parse: impl FnMut(&[u8]) -> Result<h1::Parsed, E>) {
    for end in 0..data.len() {
        let parsed = parse(&data[..end]);
        assert!(!matches!(parsed, Ok(h1::Parsed::Complete(_))), "refused, but {parsed:?} at {end}");
    }
}

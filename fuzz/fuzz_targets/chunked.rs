//! Chunked bodies: pieces do not matter, and what was decoded reads the same once it is written again.
//!
//! The first byte of the input is the size of the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use testkit::strict::{self, Framing, Progress};
use wire::h1::{self, ChunkError, ChunkedDecoder, Decoded};

fuzz_target!(|data: &[u8]| {
    let Some((piece, body)) = data.split_first() else { return };
    let whole = decode(body, usize::MAX);
    assert_eq!(whole, decode(body, usize::from(*piece).max(1)), "pieces of {piece}");
    assert_eq!(whole, decode(body, 1), "byte by byte");
    if let Ok(Some(decoded)) = whole {
        check(body, &decoded);
    }
});

#[derive(Debug, PartialEq)]
struct Body {
    data: Vec<u8>,
    trailers: Vec<u8>,
    length: usize,
}

/// `None`: more is needed.
fn decode(bytes: &[u8], piece: usize) -> Result<Option<Body>, ChunkError> {
    let mut decoder = ChunkedDecoder::default();
    let mut data = Vec::new();
    let mut before = 0;
    for bytes in bytes.chunks(piece.min(bytes.len().max(1))) {
        let mut from = 0;
        loop {
            assert!(!decoder.is_done());
            match decoder.decode(bytes, from)? {
                Decoded::More => break,
                Decoded::Data(range) => {
                    assert!(from <= range.start && range.start < range.end && range.end <= bytes.len(), "{range:?}");
                    data.extend_from_slice(&bytes[range.clone()]);
                    from = range.end;
                }
                Decoded::End(end) => {
                    assert!(from < end && end <= bytes.len() && decoder.is_done());
                    return Ok(Some(Body { data, trailers: decoder.trailers().to_vec(), length: before + end }));
                }
            }
        }
        before += bytes.len();
    }
    Ok(None)
}

fn check(body: &[u8], decoded: &Body) {
    assert!(decoded.length <= body.len() && decoded.data.len() < decoded.length);
    let mut out = Vec::new();
    // As a relay re-frames what it reads: in chunks of its own.
    for data in decoded.data.chunks(7) {
        h1::chunk_start(&mut out, data.len());
        out.extend_from_slice(data);
        h1::chunk_end(&mut out);
    }
    out.extend_from_slice(h1::LAST_CHUNK);
    let read = strict::body(&out, Framing::Chunked, false);
    assert_eq!(read, Ok(Progress::Whole(decoded.data.clone(), Vec::new(), out.len())));

    let mut fields = Vec::new();
    if h1::parse_trailers(&decoded.trailers, &mut fields).is_ok() {
        let mut out = b"GET / HTTP/1.1\r\nhost: a\r\n".to_vec();
        fuzz::write_fields(&mut out, &fields, &decoded.trailers, wire::message::Body::None);
        // Trailers are fields: in a header section the strict reader must take them as they are.
        let read = strict::request_head(&out);
        let Ok(Some((request, _))) = read else { panic!("{:?} of {}", read, testkit::escape(&out)) };
        fuzz::assert_same_fields(&request.headers, &fields, &decoded.trailers);
    }
}

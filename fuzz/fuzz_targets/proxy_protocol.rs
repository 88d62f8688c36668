//! PROXY protocol headers: never longer than given, pieces do not matter, and addresses survive being written again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::proxy_protocol::{HEADER_BYTES_MAX, Header, Parsed, Version, encode, parse};

fuzz_target!(|data: &[u8]| {
    match parse(data) {
        Ok(Parsed::Complete { header, consumed }) => {
            assert!(0 < consumed && consumed <= data.len() && consumed <= HEADER_BYTES_MAX);
            for end in 0..consumed {
                let parsed = parse(&data[..end]);
                assert!(matches!(parsed, Ok(Parsed::Incomplete)), "whole at {consumed}, but {parsed:?} at {end}");
            }
            check(&header);
        }
        Ok(Parsed::Incomplete) => assert!(data.len() < HEADER_BYTES_MAX, "waits for more than a header may have"),
        Err(_) => {
            for end in 0..data.len() {
                let parsed = parse(&data[..end]);
                assert!(!matches!(parsed, Ok(Parsed::Complete { .. })), "refused, but {parsed:?} at {end}");
            }
        }
    }
});

fn check(header: &Header) {
    let Some((source, destination)) = header.source else { return };
    for version in [Version::V1, Version::V2] {
        let mut out = Vec::new();
        encode(version, source, destination, &mut out);
        let Ok(Parsed::Complete { header: again, consumed }) = parse(&out) else {
            panic!("what was written is not read: {}", testkit::escape(&out));
        };
        assert_eq!(consumed, out.len());
        let plain = |pair: Option<(std::net::SocketAddr, std::net::SocketAddr)>| {
            pair.map(|(a, b)| (a.ip().to_canonical(), a.port(), b.ip().to_canonical(), b.port()))
        };
        assert_eq!(plain(again.source), plain(header.source));
    }
}

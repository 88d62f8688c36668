//! Compression: defaults, what a route may say, and refusals.

use model::{Encoding, MediaRange};

use super::refused::routes;
use super::{http, load};

#[test]
fn a_route_says_how_its_responses_are_compressed() {
    let text =
        "listeners: {l: {bind: :1, protocol: http, routes: [{path: /a, to: web, compress: {}}, {path: /b, to: web},
        {path: /c, to: web, compress: {encodings: [gzip, br], level: 9, types: 'Text/*', min_size: 0B}}]}}
clusters: {web: {endpoints: [a:1]}}";
    let snapshot = load(text);
    let policies: Vec<_> = http(&snapshot).routes.iter().map(|route| route.policy.compression.as_deref()).collect();
    let [Some(default), None, Some(own)] = policies.as_slice() else { panic!("{policies:?}") };
    assert_eq!((&default.encodings[..], default.level, default.bytes_min), (&Encoding::ALL[..], 3, 1024));
    let is_listed = |content_type: &str| default.types.iter().any(|range| range.contains(content_type.as_bytes()));
    assert!(is_listed("text/html; charset=utf-8") && is_listed("image/svg+xml") && is_listed("application/json"));
    assert!(!is_listed("text/event-stream") && !is_listed("image/png") && !is_listed("application/octet-stream"));
    assert_eq!((&own.encodings[..], own.level, own.bytes_min), (&[Encoding::Gzip, Encoding::Brotli][..], 9, 0));
    assert_eq!(own.types, [MediaRange { top: "text".into(), sub: None }]);
}

#[test]
fn what_cannot_be_compressed() {
    routes(
        &[
            "to: web, path: /a, compress: on",
            "to: web, path: /b, compress: {encodings: [gzip, deflate, gzip], level: 10}",
            "to: web, path: /c, compress: {types: [], encodings: []}",
            "to: web, path: /d, compress: {types: [html, application/grpc-web]}",
            "path: /e, redirect: {to: 'https://a'}, compress: {}",
        ],
        r#"7:36: `compress` must be a mapping with `encodings`, `level`, `types` or `min_size`, not text
8:55: an entry of `encodings`: "deflate" is not valid; it must be zstd, br or gzip
8:64: `encodings` has `gzip` twice; remove one of the two
8:78: `level`: "10" is not a whole number from 1 to 9
9:44: `types` is empty; add at least one entry
9:59: `encodings` is empty; add at least one entry
10:45: an entry of `types`: "html" is not a media type; write it like text/html, or text/* for all types of text
10:51: gRPC is never compressed: its messages have a compression of their own; remove it
11:56: `compress` has no effect: only responses of endpoints are compressed; remove it"#,
    );
}

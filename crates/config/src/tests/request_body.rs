//! The bodies of requests: defaults, what a route may say, and refusals.

use model::{Decompression, Encoding, RequestBody, RequestBuffer};

use super::refused::routes;
use super::{http, load};

#[test]
fn a_route_says_what_happens_to_bodies() {
    let text = "listeners: {l: {bind: :1, protocol: http, routes: [{path: /a, to: web, buffer: {}, decompress: {}}, {path: /b, to: web},
        {path: /c, to: web, buffer: {max_size: 2KiB}},
        {path: /d, to: web, decompress: {encodings: br, max_size: 1GiB, max_ratio: 7}}]}}
clusters: {web: {endpoints: [a:1]}}";
    let snapshot = load(text);
    let found: Vec<_> =
        http(&snapshot).routes.iter().map(|route| route.policy.request_body.as_deref().cloned()).collect();
    let decompression = |encodings: &[Encoding], bytes_max, ratio_max| {
        Some(Decompression { encodings: encodings.into(), bytes_max, ratio_max })
    };
    let buffer = |bytes_max| Some(RequestBuffer { bytes_max });
    let expect = [
        Some(RequestBody { buffer: buffer(1 << 20), decompression: decompression(&Encoding::ALL, 10 << 20, 100) }),
        None,
        Some(RequestBody { buffer: buffer(2048), decompression: None }),
        Some(RequestBody { buffer: None, decompression: decompression(&[Encoding::Brotli], 1 << 30, 7) }),
    ];
    assert_eq!(found, expect);
}

#[test]
fn what_cannot_be_done_with_bodies() {
    routes(
        &[
            "to: web, path: /a, buffer: on",
            "to: web, path: /b, buffer: {max_size: 17MiB}",
            "to: web, path: /c, decompress: {encodings: [deflate, gzip, gzip], max_ratio: 0}",
            "path: /d, respond: {status: 200}, buffer: {}, decompress: {}",
        ],
        r#"7:34: `buffer` must be a mapping with `max_size`, not text
8:45: `max_size`: "17MiB" is out of range; write 1B to 16MiB
9:51: an entry of `encodings`: "deflate" is not valid; it must be zstd, br or gzip
9:66: `encodings` has `gzip` twice; remove one of the two
9:84: `max_ratio`: "0" is not a whole number from 1 to 100000
10:49: `buffer` has no effect: no endpoint gets the bodies of this route's requests; remove it
10:65: `decompress` has no effect: no endpoint gets the bodies of this route's requests; remove it"#,
    );
}

#[test]
fn routes_say_their_via_or_take_that_of_the_listener() {
    let text = "listeners: {l: {bind: :1, protocol: http, via: {name: edge-1}, routes: [
        {path: /a, to: web}, {path: /b, to: web, via: off},
        {path: /c, to: web, via: {name: b, refuse_loops: false, in_response: true, cdn_loop: true}}]},
        m: {bind: :2, protocol: http, to: web, via: {name: m}}}
clusters: {web: {endpoints: [a:1]}}";
    let snapshot = load(text);
    let of = |routes: &[model::Route]| -> Vec<Option<model::Via>> {
        routes.iter().map(|route| route.policy.via.as_deref().cloned()).collect()
    };
    let via = |name: &str| model::Via { name: name.into(), in_response: false, refuses_loops: true, cdn_loop: false };
    let own = model::Via { in_response: true, refuses_loops: false, cdn_loop: true, ..via("b") };
    assert_eq!(of(&http(&snapshot).routes), [Some(via("edge-1")), None, Some(own)]);
    let model::Protocol::Http(second) = &snapshot.listeners[1].protocol else { panic!("not HTTP") };
    assert_eq!(of(&second.routes), [Some(via("m"))]);
}

#[test]
fn a_via_has_a_name() {
    routes(
        &[
            "to: web, path: /a, via: off",
            "to: web, path: /b, via: {in_response: true}",
            "to: web, path: /c, via: {name: a b}",
        ],
        r#"7:31: `via: off` has no effect: the listener has no `via`; remove it
8:31: a Via needs `name`; it must be a name such as web
9:38: `name`: "a b" is not a name; a name consists of 1 to 64 letters, digits, `-`, `_` and `.`"#,
    );
}

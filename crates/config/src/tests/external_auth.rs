//! External authorization: what a route takes from its listener, defaults, and refusals.

use std::time::Duration;

use model::{AuthBody, AuthProtocol};

use super::refused::routes;
use super::{http, load};

#[test]
fn routes_take_the_service_of_their_listener() {
    let text = "listeners: {l: {bind: :1, protocol: http, external_auth: {to: login, http: {}}, routes: [{path: /a, to: web},
        {path: /b, to: web, external_auth: off}, {path: /c, to: web, external_auth: {to: policy, grpc: {context: {a: b}},
        timeout: 1s, fail_open: true, request_headers: X-A, response_headers: [X-B], refusal_headers: x-c,
        body: {bytes: 1KiB, partial: true}}}, {path: /d, to: web, external_auth: {to: login, http: {path: /x, host: h},
        cache: {cookie: s, ttl: 1s}}}]}}
clusters: {web: {endpoints: [a:1]}, login: {endpoints: [a:2]}, policy: {endpoints: [a:3], protocol: h2c}}";
    let snapshot = load(text);
    let services: Vec<_> =
        http(&snapshot).routes.iter().map(|route| route.policy.external_auth.as_deref().cloned()).collect();
    let [Some(first), None, Some(grpc), Some(cached)] = services.as_slice() else { panic!("{services:?}") };
    assert_eq!(
        (first.to.0, first.timeout, first.fail_open, first.failure_status),
        (1, Duration::from_millis(200), false, 503)
    );
    assert_eq!((&first.request_headers, first.response_headers.len(), first.refusal_headers.len()), (&None, 0, 5));
    assert!(matches!(&first.protocol, AuthProtocol::Http(http) if http.path == "/" && http.host.is_none()));
    assert!(matches!(&grpc.protocol, AuthProtocol::Grpc(grpc) if grpc.context == [("a".into(), "b".into())]));
    assert_eq!((grpc.to.0, grpc.timeout, grpc.fail_open), (2, Duration::from_secs(1), true));
    assert_eq!(
        (grpc.request_headers.as_deref(), &grpc.response_headers[..]),
        (Some(&["x-a".into()][..]), &["x-b".into()][..])
    );
    assert_eq!(grpc.body, Some(AuthBody { bytes_max: 1024, partial: true }));
    assert!(
        matches!(&cached.protocol, AuthProtocol::Http(http) if http.path == "/x" && http.host.as_deref() == Some("h"))
    );
    assert!(cached.cache.as_ref().is_some_and(|cache| cache.cookies == ["s"] && !cache.any_request));
    // A listener without routes.
    let to = "listeners: {l: {bind: :1, protocol: http, to: web, external_auth: {to: web, http: {}}}}\n\
              clusters: {web: {endpoints: [a:1]}}";
    assert!(http(&load(to)).routes[0].policy.external_auth.is_some());
}

#[test]
fn what_a_service_cannot_be() {
    routes(
        &[
            "to: web, path: /a, external_auth: off",
            "to: web, path: /b, external_auth: {to: web}",
            "to: web, path: /c, external_auth: {to: webb, http: {}, grpc: {}}",
            "to: web, path: /d, external_auth: {to: web, grpc: {}}",
            "to: web, path: /e, external_auth: {to: web, http: {}, response_headers: [cookie, host]}",
            "to: web, path: /f, external_auth: {to: web, http: {}, cache: {ttl: 25h}}",
            "to: web, path: /g, external_auth: {to: web, http: {}, body: {bytes: 2MiB}, cache: {header: a, ttl: 1s}}",
        ],
        "",
    );
}

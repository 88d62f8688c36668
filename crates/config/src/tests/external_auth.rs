//! External authorization: what a route takes from its listener, defaults, and refusals.

use std::time::Duration;

use model::{
    AuthBody, AuthCache, AuthCacheKey, AuthCacheTtl, AuthMethod, AuthProtocol, AuthTarget, RequestPart, SetCookie,
};

use super::refused::routes;
use super::{http, load};

#[test]
fn routes_take_the_service_of_their_listener() {
    let text = "listeners: {l: {bind: :1, protocol: http, external_auth: {to: login, http: {}}, routes: [{path: /a, to: web},
        {path: /b, to: web, external_auth: off}, {path: /c, to: web, external_auth: {to: policy, grpc: {context: {a: b}},
        timeout: 1s, fail_open: true, request_headers: X-A, response_headers: [X-B], refusal_headers: x-c,
        body: {bytes: 1KiB, partial: true}}}, {path: /d, to: web, external_auth: {to: login, http: {path: /x, host: h},
        cache: {cookie: s, ttl: 1s}, set_cookie: success}}]}}
clusters: {web: {endpoints: [a:1]}, login: {endpoints: [a:2]}, policy: {endpoints: [a:3], protocol: h2c}}";
    let snapshot = load(text);
    let services: Vec<_> =
        http(&snapshot).routes.iter().map(|route| route.policy.external_auth.as_deref().cloned()).collect();
    let [Some(first), None, Some(grpc), Some(cached)] = services.as_slice() else { panic!("{services:?}") };
    assert_eq!(
        (first.to.0, first.timeout, first.fail_open, first.failure_status),
        (1, Duration::from_millis(200), false, 503)
    );
    assert_eq!(
        (&first.request_headers, first.response_headers.names().len(), first.refusal_headers.len()),
        (&None, 0, 5)
    );
    assert!(
        matches!(&first.protocol, AuthProtocol::Http(http) if http.target == AuthTarget::Path("/".to_owned()) && http.host.is_none())
    );
    assert!(matches!(&grpc.protocol, AuthProtocol::Grpc(grpc) if grpc.context == [("a".into(), "b".into())]));
    assert_eq!((grpc.to.0, grpc.timeout, grpc.fail_open), (2, Duration::from_secs(1), true));
    assert_eq!(
        (grpc.request_headers.as_deref(), grpc.response_headers.names()),
        (Some(&["x-a".into()][..]), &["x-b".into()][..])
    );
    assert_eq!(grpc.body, Some(AuthBody { bytes_max: 1024, partial: true }));
    assert!(
        matches!(&cached.protocol, AuthProtocol::Http(http) if http.target == AuthTarget::Path("/x".to_owned()) && http.host.as_deref() == Some("h"))
    );
    assert_eq!((first.set_cookie, cached.set_cookie), (SetCookie::Off, SetCookie::Success));
    let key = AuthCacheKey::Values { headers: Vec::new(), cookies: vec!["s".into()], any_request: false };
    assert_eq!(cached.cache, Some(AuthCache { key, ttl: AuthCacheTtl::Yes(Duration::from_secs(1)) }));
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
            "to: web, path: /h, external_auth: {to: web, grpc: {}, set_cookie: always}",
        ],
        r#"7:41: `external_auth: off` has no effect: the listener has no `external_auth`; remove it
8:41: an external authorization needs `http` or `grpc`
9:46: `to` names the cluster `webb`, which is not in `clusters`; did you mean `web`?
9:62: an external authorization has both `grpc` and `http`; keep one of them
10:57: the cluster `web` speaks HTTP/1.1, and a gRPC service needs HTTP/2; add `protocol: h2` to `web`
11:80: `response_headers` has `cookie`, which only clients send; let the service use another header
11:88: an entry of `response_headers`: "host" cannot be changed; set the host that the endpoint sees with `rewrite: {host: ...}`
12:68: the cache does not say what its answers depend on; add `header: authorization` or `cookie: NAME_OF_THE_SESSION`
12:74: `ttl` is 25h; the limit is 1d
13:67: `cache` has no effect beside `body`: an answer depends on the body, which is no part of the key; remove one of the two
13:75: `bytes`: "2MiB" is out of range; write 1B to 1MiB
14:57: the cluster `web` speaks HTTP/1.1, and a gRPC service needs HTTP/2; add `protocol: h2` to `web`
14:73: `set_cookie` has no effect beside `grpc`: cookies are those of an answer over HTTP; remove it"#,
    );
}

#[test]
fn answers_are_remembered_by_status() {
    let cache = "cache: {key: '${cookie.s}', statuses: {200: 5m, any: 0s}}";
    let text = format!(
        "clusters: {{web: {{endpoints: ['a:1']}}}}\nlisteners: {{l: {{bind: ':1', protocol: http, to: web, external_auth: {{to: web, http: {{}}, {cache}}}}}}}"
    );
    let snapshot = load(&text);
    let service = http(&snapshot).routes[0].policy.external_auth.clone().unwrap();
    let ttl = AuthCacheTtl::Statuses(vec![(Some(200), Duration::from_secs(300)), (None, Duration::ZERO)]);
    let key = AuthCacheKey::Template([RequestPart::Cookie("s".into())].into());
    assert_eq!(service.cache, Some(AuthCache { key, ttl }));
    routes(
        &[
            "to: web, path: /a, external_auth: {to: web, http: {}, cache: {key: '${host}', ttl: 1s, statuses: {200: 1s}}}",
            "to: web, path: /b, external_auth: {to: web, http: {}, cache: {key: '${host}', header: a, statuses: {}}}",
            "to: web, path: /c, external_auth: {to: web, http: {}, cache: {key: '${host}', statuses: {500: 1s, 200: 2d}}}",
        ],
        r#"7:94: the cache of an external authorization has both `statuses` and `ttl`; keep one of them
8:93: `header` has no effect beside `key`; remove one of the two
8:106: `statuses` has 0 entries; it needs 1 to 32
9:95: `statuses` has 2d; the limit is 1d
9:96: a name in `statuses`: "500" is not the status of an answer; write a status from 200 to 499, or `any`"#,
    );
}

#[test]
fn where_a_page_leads_back_to_is_not_for_clients_to_choose() {
    routes(
        &[
            "to: web, path: /a, external_auth: {to: web, http: {query: 'u=${target}&g=a'}, sign_in: {url: 'https://a/?rm=${method}&t=${query.t}&rd=${scheme}://${host}/'}}",
            "to: web, path: /b, external_auth: {to: web, http: {}, sign_in: {url: 'https://a/?rd=${query.rd}'}}",
            "to: web, path: /c, external_auth: {to: web, http: {}, sign_in: {param: next, url: 'https://a/?next=https://${header.x}'}}",
            "to: web, path: /d, external_auth: {to: web, http: {prefix: /a, query: b}}",
        ],
        "8:76: clients could choose where `rd` leads; use no variables in it but ${scheme}, ${host}, ${authority} and ${target}\n\
         9:89: clients could choose where `next` leads; use no variables in it but ${scheme}, ${host}, ${authority} and ${target}\n\
         10:77: `query` has no effect beside `prefix`; remove one of the two",
    );
}

#[test]
fn a_prefix_stands_instead_of_a_path() {
    let external = "http: {prefix: /check/}";
    let text = format!(
        "clusters: {{web: {{endpoints: ['a:1']}}}}\nlisteners: {{l: {{bind: ':1', protocol: http, to: web, external_auth: {{to: web, {external}}}}}}}"
    );
    let snapshot = load(&text);
    let service = http(&snapshot).routes[0].policy.external_auth.clone().unwrap();
    assert!(
        matches!(&service.protocol, AuthProtocol::Http(http) if http.target == AuthTarget::Prefix("/check".to_owned()))
    );
    routes(
        &[
            "to: web, external_auth: {to: web, http: {path: /a, prefix: /b}}",
            "to: web, external_auth: {to: web, http: {prefix: '/b?c'}}",
            "to: web, external_auth: {to: web, http: {method: PUT, prefix: /b}}",
        ],
        "7:54: `path` has no effect beside `prefix`; remove one of the two\n\
         8:56: `prefix`: \"/b?c\" is not a path; a path has no query and no fragment: match the query with `query`; clients never send a fragment\n\
         9:56: `method` has no effect beside `prefix`; remove one of the two",
    );
}

#[test]
fn a_service_is_asked_by_a_method() {
    let check = |written: &str, expect: Option<AuthMethod>| {
        let external = format!("http: {{{written}}}");
        let text = format!(
            "clusters: {{web: {{endpoints: ['a:1']}}}}\nlisteners: {{l: {{bind: ':1', protocol: http, to: web, external_auth: {{to: web, {external}}}}}}}"
        );
        let snapshot = load(&text);
        let service = http(&snapshot).routes[0].policy.external_auth.clone().unwrap();
        assert!(matches!(&service.protocol, AuthProtocol::Http(http) if http.method == expect), "{written}");
    };
    check("", None);
    AuthMethod::ALL.into_iter().for_each(|method| check(&format!("method: {}", method.name()), Some(method)));
    routes(
        &[
            "to: web, external_auth: {to: web, http: {method: TRACE}}",
            "to: web, external_auth: {to: web, http: {method: CONNECT}}",
            "to: web, external_auth: {to: web, http: {method: get}}",
            "to: web, external_auth: {to: web, http: {method: DELETE}, body: {bytes: 1KiB}}",
        ],
        "7:56: `method`: \"TRACE\" is not valid; it must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS\n\
         8:56: `method`: \"CONNECT\" is not valid; it must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS\n\
         9:56: `method`: \"get\" is not valid; it must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS; did you mean GET?\n\
         10:56: a question by DELETE has no body, and `body` wants to send one; write `method: POST`, or remove one of the two",
    );
}

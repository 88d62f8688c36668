//! Policies of routes: every key, and every refusal with its place.

use std::time::Duration;

use model::{
    Changes, Cors, CorsNames, CorsOrigins, ErrorPage, FixedResponse, HeaderChanges, Mirror, OriginHost, OriginMatcher,
    Page, PageBody, PathRewrite, RateHeaders, RateKey, RateLimit, Redirect, ResponseRewrite, Retry, Rewrite, Route,
    RouteAction, Scheme, Template, TemplatePart, TextMatcher, ToPart, ValueFrom, ValueRewrite,
};

use super::refused::{check, routes};
use super::{ClusterId, http, load};

/// The only route of a file, with these keys. The file has the clusters `web` and `other`.
fn route(keys: &str) -> Route {
    let text = format!(
        "listeners: {{l: {{bind: :1, protocol: http, routes: [{{{keys}}}]}}}}\n\
         clusters: {{web: {{endpoints: [a:1]}}, other: {{endpoints: [b:1]}}}}"
    );
    http(&load(&text)).routes[0].clone()
}

#[test]
fn a_split() {
    let check = |to: &str, expect: &[(usize, u32)]| {
        let RouteAction::Clusters(shares) = route(&format!("to: {to}")).to else { panic!("{to}") };
        let shares: Vec<_> = shares.iter().map(|share| (share.cluster.0, share.weight)).collect();
        assert_eq!(shares, expect, "{to}");
    };
    check("web", &[(0, 1)]);
    check("[{cluster: other}]", &[(1, 1)]);
    check("[{cluster: web, weight: 0}, {cluster: other, weight: 1000000}]", &[(0, 0), (1, 1_000_000)]);
    assert_eq!(route("to: web").to.clusters().collect::<Vec<_>>(), [ClusterId(0)]);
}

#[test]
fn headers_of_all_responses() {
    let set = |name: &str, value: &str| HeaderChanges {
        set: vec![(name.to_owned(), value.into())],
        ..HeaderChanges::default()
    };
    let keys = "to: [{cluster: web, response_headers: {set: {a: \"1\"}}}, {cluster: other}], all_response_headers: {set: {a: \"2\"}}";
    let found = route(keys);
    assert_eq!(found.policy.own_headers, set("a", "2"));
    assert_eq!([0, 1].map(|share| found.changes(share).response_headers.clone()), [set("a", "2"), set("a", "2")]);
    let redirect = route("redirect: {path: /b}, all_response_headers: {set: {a: \"2\"}}");
    assert_eq!(redirect.policy.own_headers, set("a", "2"));
    routes(
        &["to: web, cors: {origins: '*'}, all_response_headers: {set: {Access-Control-Max-Age: 5}}"],
        "7:60: both `cors` and `all_response_headers` decide `access-control-max-age`; remove it here: `cors` replaces what the endpoint says",
    );
}

#[test]
fn urls_and_cookies_of_responses() {
    let text = |from: &str, to: Vec<ToPart>| ValueRewrite { from: ValueFrom::Text(from.to_owned()), to };
    let part = |text: &str| ToPart::Text(text.to_owned());
    let keys = "location: [{from: 'http://a/', to: '${scheme}://${host}/$$'}, {regex: '(?<at>/.*)x', to: '$1${at}'}], \
                cookie_domain: [{from: .a.test, to: .b.test}], cookie_path: [{from: /app/, to: ''}]";
    let found = route(&format!("to: web, rewrite_responses: {{{keys}}}")).policy.response_rewrite.clone();
    let regex = ValueFrom::Regex(regex::Regex::new(r"\A(?:(?<at>/.*)x)\z").unwrap());
    let expect = ResponseRewrite {
        location: vec![
            text("http://a/", vec![ToPart::Scheme, part("://"), ToPart::Host, part("/$")]),
            ValueRewrite { from: regex, to: vec![ToPart::Group(1), ToPart::Group(1)] },
        ],
        cookie_domain: vec![text("a.test", vec![part("b.test")])],
        cookie_path: vec![text("/app/", Vec::new())],
    };
    assert_eq!(found.as_deref(), Some(&expect));
    routes(
        &[
            "to: web, rewrite_responses: {}, path: /a",
            "to: web, rewrite_responses: {cookie_path: [{from: '', to: /}, {from: /a, to: '/;x'}, {to: /}]}, path: /b",
            "to: web, rewrite_responses: {location: [{from: /a, to: '$1'}, {regex: /a, to: '$1'}, {from: /a b, to: /}]}, path: /c",
            "redirect: {path: /x}, rewrite_responses: {location: [{from: /a, to: /}]}, path: /d",
        ],
        r#"7:35: a rewrite of responses needs `location`, `cookie_domain` or `cookie_path`
8:57: `from`: the text is empty; write what the values begin with
8:84: a `;` ends an attribute of a cookie; write the text up to it
8:92: a change of a value needs `from` or `regex`
9:62: a `$` stands before no variable; write `${scheme}`, `${host}`, or `$$` for a dollar sign
9:85: `regex` has no group `1`; it has no groups: put a part of it in parentheses
9:99: `from`: "/a b" has characters other than visible ASCII; write spaces and others percent-encoded
10:29: `rewrite_responses` has no effect beside `redirect`; Steelyard answers by itself, and no endpoint sees the request"#,
    );
}

#[test]
fn a_relative_redirect() {
    let RouteAction::Redirect(redirect) = route("redirect: {path: /b, relative: true}").to else {
        panic!("no redirect")
    };
    assert!(redirect.is_relative);
    let RouteAction::Redirect(redirect) = route("redirect: {path: '/new?'}").to else { panic!("a redirect") };
    assert_eq!(redirect.path, Some(PathRewrite::Full("/new?".to_owned())));
    routes(
        &["redirect: {host: a.test, path: /b, relative: true}"],
        "7:17: a relative redirect has no `host`; write `path` or `path_prefix`, or remove `relative`",
    );
}

#[test]
fn cookies_are_conditions() {
    let route = route("to: web, cookies: {group: beta, Id: {present: true}}");
    assert_eq!(route.name, "/ cookie:group= cookie:Id");
    assert_eq!(route.cookies.iter().map(|cookie| cookie.name.as_str()).collect::<Vec<_>>(), ["group", "Id"]);
    assert!(matches!(&route.cookies[0].value, TextMatcher::Exact(text) if text == "beta"));
}

#[test]
fn fixed_responses() {
    let check = |keys: &str, expect: FixedResponse| {
        assert_eq!(route(&format!("respond: {{{keys}}}")).to, RouteAction::Respond(expect), "{keys}");
    };
    let page = |content_type: &str, body| Some(Page { content_type: content_type.to_owned(), body });
    let empty = FixedResponse { status: 200, headers: Vec::new(), page: None };
    check("", empty.clone());
    check("status: 204", FixedResponse { status: 204, ..empty.clone() });
    let text = page("text/plain; charset=utf-8", PageBody::Text("a\nb".to_owned()));
    check("body: \"a\\nb\"", FixedResponse { page: text, ..empty.clone() });
    let file = page("text/html", PageBody::File("sorry.html".into()));
    let headers = vec![("x-a".to_owned(), "1".to_owned())];
    check(
        "file: sorry.html, content_type: text/html, headers: {X-A: 1}, status: 410",
        FixedResponse { status: 410, headers, page: file },
    );
    assert!(route("to: web, maintenance: true").policy.maintenance);
}

#[test]
fn error_pages() {
    let pages =
        route("to: web, error_pages: [{status: [404, 500-599], body: x, json: '{}'}]").policy.error_pages.clone();
    let page = Page { content_type: "text/html; charset=utf-8".to_owned(), body: PageBody::Text("x".to_owned()) };
    assert_eq!(pages, [ErrorPage { statuses: vec![(404, 404), (500, 599)], page, json: Some("{}".to_owned()) }]);
}

#[test]
fn a_path_is_made_of_groups() {
    let rewrite = |keys: &str| route(&format!("to: web, {keys}")).policy.changes.rewrite.path.clone();
    let parts = vec![TemplatePart::Text("/x/".to_owned()), TemplatePart::Group(1)];
    let template = Some(PathRewrite::Template(Template(parts)));
    assert_eq!(rewrite("path: {regex: '/v1/(.*)'}, rewrite: {path: /x/$1}"), template);
    let RouteAction::Redirect(redirect) = route("path: {regex: '/v1/(?<n>.*)'}, redirect: {path: '/x/${n}'}").to else {
        panic!("it is a redirect")
    };
    assert_eq!(redirect.path, template);
    assert_eq!(rewrite("path: {exact: /v1}, rewrite: {path: /x/$1}"), Some(PathRewrite::Full("/x/$1".to_owned())));
}

#[test]
fn redirects() {
    let check = |keys: &str, expect: Redirect| {
        assert_eq!(route(&format!("redirect: {{{keys}}}")).to, RouteAction::Redirect(expect), "{keys}");
    };
    let kept = Redirect { scheme: None, host: None, port: None, path: None, status: 302, is_relative: false };
    let full = |path: &str| Some(PathRewrite::Full(path.to_owned()));
    check("port: 8443", Redirect { port: Some(8443), ..kept.clone() });
    check("scheme: https, status: 301", Redirect { scheme: Some(Scheme::Https), status: 301, ..kept.clone() });
    check("path: /new", Redirect { path: full("/new"), ..kept.clone() });
    let prefix = Some(PathRewrite::Prefix("/new".to_owned()));
    check(
        "host: B.example.com, path_prefix: /new",
        Redirect { host: Some("b.example.com".to_owned()), path: prefix, ..kept },
    );
    check(
        "to: 'http://[::1]:81/x', status: 307",
        Redirect {
            scheme: Some(Scheme::Http),
            host: Some("[::1]".to_owned()),
            port: Some(81),
            path: full("/x"),
            status: 307,
            is_relative: false,
        },
    );
}

#[test]
fn every_other_policy() {
    let policy = |keys: &str| route(&format!("to: web, {keys}")).policy;
    let asked = Retry { same_endpoint: true, ..Retry::default() };
    assert_eq!(policy("retry: {}").retry, asked);
    assert_eq!(policy("retry: off").retry.attempts, 0);
    let expect = Retry {
        attempts: 5,
        on_connect_failure: false,
        on_reset: false,
        on_timeout: true,
        on_statuses: vec![(500, 599), (429, 429)],
        non_idempotent: true,
        budget: 0.5,
        per_try_timeout: Some(Duration::from_secs(1)),
        backoff: Duration::from_secs(60),
        ..asked
    };
    let keys =
        "attempts: 5, on: [timeout, 5xx, 429], non_idempotent: true, budget: 50%, per_try_timeout: 1s, backoff: 1m";
    assert_eq!(policy(&format!("retry: {{{keys}}}")).retry, expect);

    assert_eq!(
        policy("mirror: {to: other}").mirrors,
        [Mirror { to: ClusterId(1), host: None, share: 1.0, only: None }]
    );
    assert_eq!(policy("mirror: [{to: other, percent: 1}, {to: web}]").mirrors.len(), 2);

    let changes =
        policy("response_headers: {set: {X-A: '1'}, add: {x-b: b c}, remove: Server}").changes.response_headers.clone();
    let remove = vec!["server".to_owned()];
    let one = |name: &str, value: &str| vec![(name.to_owned(), model::FieldValue::from(value))];
    assert_eq!(changes, HeaderChanges { set: one("x-a", "1"), add: one("x-b", "b c"), remove });

    let rewrite = policy("path: /api, rewrite: {host: 'b:81', path_prefix: /}").changes.rewrite.clone();
    assert_eq!(rewrite, Rewrite { host: Some("b:81".to_owned()), path: Some(PathRewrite::Prefix("/".to_owned())) });

    let limit =
        policy("rate_limit: {requests: 3, per: 1m, by: {header: X-Key}, headers: ratelimit}").rate_limit.clone();
    let headers = RateHeaders { x_ratelimit: false, ratelimit: true };
    let by = RateKey::Header("x-key".to_owned());
    assert_eq!(
        limit,
        Some(RateLimit {
            requests: 3,
            per: Duration::from_secs(60),
            by,
            burst: 3,
            also: Vec::new(),
            headers,
            terms: model::LimitTerms::default()
        })
    );
}

#[test]
fn a_share_changes_what_its_cluster_gets() {
    let keys = "path: /api, request_headers: {set: {x-a: r, x-b: r}}, rewrite: {host: r}, \
                to: [{cluster: web}, {cluster: other, request_headers: {set: {x-a: o}}, \
                response_headers: {remove: server}, rewrite: {path_prefix: /v2}}]";
    let route = route(keys);
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).into())).collect();
    let sets = |set: &[(&str, &str)]| HeaderChanges { set: pairs(set), ..HeaderChanges::default() };
    let rewrite = Rewrite { host: Some("r".to_owned()), path: None };
    let of_route = Changes {
        request_headers: sets(&[("x-a", "r"), ("x-b", "r")]),
        response_headers: HeaderChanges::default(),
        rewrite: rewrite.clone(),
    };
    assert_eq!(route.changes(0), &of_route);
    let of_other = Changes {
        request_headers: sets(&[("x-b", "r"), ("x-a", "o")]),
        response_headers: HeaderChanges { remove: vec!["server".to_owned()], ..HeaderChanges::default() },
        rewrite: Rewrite { path: Some(PathRewrite::Prefix("/v2".to_owned())), ..rewrite },
    };
    assert_eq!(route.changes(1), &of_other);
}

#[test]
fn cors_policies() {
    let cors = |keys: &str| route(&format!("to: web, cors: {{{keys}}}")).policy.cors.clone().unwrap();
    let matcher = |host, port| OriginMatcher { scheme: Scheme::Https, host, port };
    let these = |names: &[&str]| CorsNames::These(names.iter().map(|name| (*name).to_owned()).collect());
    let least = Cors {
        origins: CorsOrigins::Any,
        credentials: false,
        methods: CorsNames::NONE,
        headers: CorsNames::NONE,
        expose: CorsNames::NONE,
        max_age: Duration::from_secs(5),
    };
    assert_eq!(*cors("origins: '*'"), least);
    let expect = Cors {
        origins: CorsOrigins::These(vec![
            matcher(OriginHost::Exact("a.com".to_owned()), 443),
            matcher(OriginHost::Suffix("b.com".to_owned()), 8443),
        ]),
        credentials: true,
        methods: these(&["PUT", "DELETE"]),
        headers: CorsNames::Any,
        expose: these(&["X-A"]),
        max_age: Duration::from_secs(3600),
    };
    let keys = "origins: ['https://a.com', 'https://*.b.com:8443'], methods: [PUT, DELETE], headers: '*', expose: X-A, \
                credentials: true, max_age: 1h";
    assert_eq!(*cors(keys), expect);
}

#[test]
fn splits_and_redirects_are_refused() {
    routes(
        &["to: [{cluster: wbe, weight: 1}, {cluster: web, weight: 2000000}], path: /a", "to: [], path: /b", "to: {}"],
        r#"7:22: `to` names the cluster `wbe`, which is not in `clusters`; did you mean `web`?
7:62: `weight`: "2000000" is not a whole number from 0 to 1000000
8:11: `to` is empty; add at least one entry
9:11: `to` must be a name such as web or a list, not a mapping"#,
    );
    routes(
        &["to: [{cluster: web, weight: 0}, {cluster: web, weight: 0}]"],
        r#"7:11: every cluster of `to` has weight 0; no cluster would get a request; give at least one a weight above 0
7:49: `web` is given twice in `to`; the first is at line 7; to send it more traffic, raise its weight"#,
    );
    routes(&["path: /x"], "7:6: a route needs `to`, `redirect` or `respond`");
    routes(
        &["to: web, redirect: {to: 'https://a'}, path: /a", "redirect: {}, timeout: 1s, path: /b"],
        r#"7:16: a route has both `redirect` and `to`; keep one of them
8:17: a redirect needs `to`, `scheme`, `host`, `port`, `path` or `path_prefix`; with none of them, it would redirect to the same URL
8:21: `timeout` has no effect beside `redirect`; Steelyard answers by itself, and no endpoint sees the request"#,
    );
    routes(
        &[
            "redirect: {to: 'https://a', port: 1}, path: /a",
            "redirect: {path: /x, path_prefix: /y, status: 300}, path: {exact: /b}",
        ],
        r#"7:35: a redirect has both `port` and `to`; put it into `to`, or replace `to` by the separate keys
8:41: `path_prefix` replaces the prefix that the route matches, and this route matches none; write `path`, or give the route a prefix: `path: /api/`
8:41: a redirect has both `path_prefix` and `path`; keep one of them
8:53: `status`: "300" is not the status of a redirect; use 308 or 301 for a permanent redirect, 307 or 302 for a temporary one (301 and 302 may turn a POST into a GET), or 303 to have the client fetch the answer to a POST by GET"#,
    );
    let passthrough = "listeners: {l: {bind: :1, protocol: tls_passthrough, routes: [{to: [{cluster: web}]}]}}\n";
    check(
        &format!("{passthrough}clusters: {{web: {{endpoints: [\"a:1\"]}}}}"),
        "1:68: a TLS listener cannot split traffic between clusters; name one cluster in `to`",
    );
}

#[test]
fn own_responses_are_refused() {
    routes(
        &[
            "respond: {body: x, file: y, status: 199}, path: /a",
            "respond: {body: x, status: 204}, path: /b",
            "respond: {content_type: text/html, headers: {Content-Type: a}}, retry: off, path: /c",
            "respond: {headers: {Content-Length: 1}}, path: /d",
        ],
        r#"7:32: a fixed response has both `file` and `body`; keep one of them
7:43: `status`: "199" is not a whole number from 200 to 599
8:34: a response with the status 204 has no body; remove `body` and `file`, or write another status
9:31: `content_type` has no effect without `body` or `file`; remove it, or add a body
9:51: `headers` sets `content-type`; use the key `content_type`
9:71: `retry` has no effect beside `respond`; Steelyard answers by itself, and no endpoint sees the request
10:27: a name in `headers`: "Content-Length" cannot be changed; Steelyard frames each message itself"#,
    );
    routes(
        &[
            "to: web, error_pages: [{status: 399, body: x}, {status: 500}, {body: x, file: y, status: 500}]",
            "to: web, path: {regex: '/(a)'}, rewrite: {path: /$2}",
            "redirect: {to: 'https://b.test/$2'}, path: {regex: '/(b)'}",
            "respond: {headers: {Date: x}}, path: /e",
            "respond: {headers: {x-a: '${client_ip}'}}, path: /f",
        ],
        r#"7:39: an error page is for statuses from 400 to 599; write a status such as 503, or a range such as 500-599
7:54: an error page needs `body` or `file`
7:79: an error page has both `file` and `body`; keep one of them
8:55: the route's `path` has no group `2`; it has one group
9:22: the route's `path` has no group `2`; it has one group
10:26: `headers` sets `date`; remove it: every response has its own
11:26: `headers` has a variable, and those of a fixed response are text; remove `${...}`"#,
    );
    routes(
        &["grpc: a.B, respond: {}"],
        "7:27: a fixed response is no answer to a gRPC call; name the cluster that serves the calls with `to`",
    );
}

#[test]
fn other_policies_are_refused() {
    routes(
        &["to: web, request_headers: {set: {Host: a}, remove: [te, x]}, response_headers: {}, path: /a"],
        r#"7:40: a name in `set`: "Host" cannot be changed; set the host that the endpoint sees with `rewrite: {host: ...}`
7:59: an entry of `remove`: "te" cannot be changed; it belongs to one hop, and Steelyard does not forward it
7:86: a change of headers needs `set`, `add` or `remove`"#,
    );
    routes(
        &["to: web, request_headers: {set: {x-a: 1}, remove: X-A}"],
        "7:33: the header `x-a` is changed twice; `set` replaces all fields of the name, `add` adds one, `remove` removes all",
    );
    routes(
        &[
            "to: web, retry: {attempts: 0, on: [resets]}, path: /a",
            "to: web, timeout: 1s, retry: {per_try_timeout: 1s}",
        ],
        r#"7:34: `attempts`: "0" is not a whole number from 1 to 10
7:42: an entry of `on`: "resets" is not a reason to retry; did you mean reset?
8:54: `per_try_timeout` is not shorter than the route's `timeout` (1s); shorten it: there would be no time for another try"#,
    );
    routes(
        &["to: web, mirror: {to: shadow, percent: 0}, rewrite: {}, rate_limit: {requests: 1, by: ip}"],
        r#"7:29: `to` names the cluster `shadow`, which is not in `clusters`; the only cluster is `web`
7:46: `percent`: "0" is not a whole number from 1 to 100
7:59: a rewrite needs `host`, `path` or `path_prefix`
7:75: a rate limit needs `per`; it must be a duration such as 30s
7:93: `by`: "ip" is not valid; it must be client_ip; it can also be a mapping with `header`"#,
    );
    routes(
        &[
            "to: web, cors: {origins: [a.com, '*'], methods: ['*', GET], max_age: 1500ms}, response_headers: {set: {Access-Control-Max-Age: 5, x: 1}}, path: /a",
            "to: web, cors: {expose: 'a b'}, path: /b",
            "to: web, retry: {backoff: 100h}, path: /c",
            "to: [{cluster: web, rewrite: {path_prefix: /x}, request_headers: {}}], path: {exact: /d}",
        ],
        r#"7:33: an entry of `origins`: "a.com" is not an origin; write http:// or https://, a host, and a port if it is not the default one; the host can be `*` or begin with `*.`
7:55: `methods` has `*` beside others; `*` alone stands for all of them
7:76: `max_age` (1500ms) is not a number of whole seconds; browsers count in whole seconds: write 1s or more
7:103: both `cors` and `response_headers` decide `access-control-max-age`; remove it here: `cors` replaces what the endpoint says
8:22: a CORS policy needs `origins`; it must be an origin such as https://www.example.com or a list
8:31: `expose`: "a b" is not the name of a method or a header; use letters, digits and !#$%&'*+-.^_`|~
9:33: `backoff` (100h) is longer than 1m; shorten it: the client waits that long before each retry
10:50: `path_prefix` replaces the prefix that the route matches, and this route matches none; write `path`, or give the route a prefix: `path: /api/`
10:72: a change of headers needs `set`, `add` or `remove`"#,
    );
    let many = (0..65).map(|n| format!("'https://a{n}.com'")).collect::<Vec<_>>().join(", ");
    routes(
        &[&format!("to: web, cors: {{origins: [{many}]}}")],
        "7:32: `origins` has 65 entries; the limit is 64; write `https://*.example.com` for all hosts of a domain",
    );
}

#[test]
fn variables_and_many_mirrors_are_refused() {
    routes(
        &[
            "to: web, request_headers: {set: {x-a: 'costs $5', x-b: '${client_ip}', x-c: '${endpoint}'}, add: {x-d: '$remote_addr'}}, path: /a",
            "to: web, response_headers: {set: {x-a: '${upstream}'}, add: {x-b: '${request_id}'}}, path: /b",
            "to: [{cluster: web, request_headers: {add: {x-a: '${endpoint}'}}, response_headers: {set: {x-b: '${endpoint}'}}}]",
        ],
        "7:39: `${endpoint}` is not known when the request is written; use it in `response_headers`, or use `${cluster}`
7:45: `x-a`: a `$` stands before no variable; write `${client_ip}`, or `$$` for a dollar sign
7:110: `x-d`: `$remote_addr` is not a variable; write `${client_ip}`, or `$$` for a dollar sign
8:46: `x-a`: there is no variable `upstream`; it can be client_ip, client_port, request_id, tls_version, sni, client_cert, \
client_cert_pem, client_cert_subject, client_cert_issuer, client_cert_verify, shown_cert_pem, shown_cert_subject, shown_cert_issuer, \
client_cert_sha256, listener, route, cluster, endpoint, time
8:67: `${request_id}` is used, and the requests of this listener have no ids; add `request_id: {}` to the listener
9:50: `${endpoint}` is not known when the request is written; use it in `response_headers`, or use `${cluster}`",
    );
    let five = ["{to: web}"; 5].join(", ");
    routes(&[&format!("to: web, mirror: [{five}]")], "7:24: a route has 5 mirrors; the limit is 4");
    check(
        "listeners: {l: {bind: :1, protocol: http, to: c}}\nclusters: {c: {endpoints: [\"a:1\"], sticky: {cookie: 'a b', ttl: 10ms}}}",
        r#"2:53: `cookie`: "a b" is not the name of a cookie; use letters, digits and !#$%&'*+-.^_`|~
2:65: `ttl` (10ms) is less than a second; cookies count their age in whole seconds: write 1s or more"#,
    );
}

#[test]
fn lists_of_clients() {
    let policy = |keys: &str| route(&format!("to: web, {keys}")).policy;
    let allowed = policy("allow: [10.0.0.0/8, 192.0.2.7], deny: 10.1.0.0/16").addresses.clone();
    let networks = |networks: &[ipnet::IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(networks(&allowed.allow), "10.0.0.0/8 192.0.2.7/32");
    assert_eq!(networks(&allowed.deny), "10.1.0.0/16");
    assert!(policy("timeout: 1s").addresses.is_empty());
    routes(
        &[
            "to: web, allow: [10.0.0.0/8, 10.1.2.3/8], deny: 10.0.0.0/8, path: /a",
            "to: web, allow: [], path: /b",
            "to: web, deny: [1.1.1.1, 1.1.1.1/32, all, '::ffff:10.0.0.0/104']",
        ],
        r#"7:36: an entry of `allow`: "10.1.2.3/8" has bits behind its prefix; write 10.0.0.0/8 for the network, or 10.1.2.3 for the address
7:55: 10.0.0.0/8 is in `allow` and in `deny`; the first is at line 7; keep one of them
8:23: `allow` is empty; add at least one entry
9:32: 1.1.1.1/32 is twice in `deny`; the first is at line 9; keep one of them
9:44: an entry of `deny`: "all" is not an address or network; with `allow`, all others are refused; write 0.0.0.0/0 and ::/0 to name every address
9:49: an entry of `deny`: "::ffff:10.0.0.0/104" is a network of IPv4 addresses; write 10.0.0.0/8"#,
    );
    let many: Vec<_> = (0..16_385).map(|n| format!("10.{}.{}.0/24", n >> 8, n & 255)).collect();
    routes(
        &[&format!("to: web, deny: [{}]", many.join(", "))],
        "7:22: `allow` and `deny` have 16385 networks; the limit is 16384; merge neighbouring networks into larger ones",
    );
}

#[test]
fn errors_are_intercepted() {
    let errors =
        |keys: &str| route(&format!("to: web, intercept_errors: {{{keys}}}")).policy.intercept_errors.clone().unwrap();
    let bare = errors("statuses: 500-599");
    assert_eq!((bare.statuses.as_slice(), bare.of_endpoints, bare.to), (&[(500, 599)][..], true, None));
    let all = errors(
        "statuses: [404, 502-504], to: other, path: '/{status}.html', endpoints: false, timeout: 2s, request_headers: {set: {x-a: b}}",
    );
    assert_eq!(all.statuses, [(404, 404), (502, 504)]);
    assert_eq!((all.of_endpoints, all.to, all.path.as_str()), (false, Some(ClusterId(1)), "/{status}.html"));
    assert_eq!(
        (all.timeout, &all.request_headers.set),
        (Duration::from_secs(2), &vec![("x-a".to_owned(), "b".into())])
    );
    assert!(all.is_on_status(503) && all.is_on_status(404) && !all.is_on_status(500));
    assert_eq!(errors("statuses: 404, to: web").path, "/");
    let fallback = route("to: web, fallback: {to: other}").policy.fallback.clone().unwrap();
    assert_eq!((fallback.to, fallback.request_headers), (ClusterId(1), HeaderChanges::default()));
}

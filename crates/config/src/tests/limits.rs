//! Global rate limits: what a route takes from its listener, defaults, and refusals.

use std::time::Duration;

use model::{DescriptorSource, RateHeaders};

use super::refused::routes;
use super::{http, load};

#[test]
fn routes_take_the_limit_of_their_listener() {
    let text = "listeners: {l: {bind: :1, protocol: http, global_rate_limit: {to: rls, domain: edge, fail_open: true, descriptors:
        [{entries: {client_ip: true}}, {entries: [{path: true, key: p}, {header: X-A}, {method: true}, {host: true}, {value: a b}]}]},
        routes: [{path: /a, to: web}, {path: /b, to: web, global_rate_limit: off}, {path: /c, to: web, global_rate_limit: {to: rls,
        domain: other, fail_open: false, failure_status: 500, timeout: 20ms, host: limits.test, headers: [x_ratelimit, ratelimit],
        descriptors: [{entries: [{value: all}]}]}}]}}
clusters: {web: {endpoints: [a:1]}, rls: {endpoints: [a:2], protocol: h2c}}";
    let snapshot = load(text);
    let all: Vec<_> =
        http(&snapshot).routes.iter().map(|route| route.policy.global_rate_limit.as_deref().cloned()).collect();
    let [Some(first), None, Some(own)] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!((first.to.0, first.domain.as_str(), first.fail_open, first.failure_status), (1, "edge", true, 503));
    assert_eq!(
        (first.timeout, &first.host, first.headers),
        (Duration::from_millis(100), &None, RateHeaders::default())
    );
    let entries = |at: usize| -> Vec<_> {
        first.descriptors[at].iter().map(|entry| (entry.key.as_str(), entry.source.clone())).collect()
    };
    assert_eq!(entries(0), [("remote_address", DescriptorSource::ClientIp)]);
    let text = |text: &str| DescriptorSource::Text(text.to_owned());
    let expect = [
        ("p", DescriptorSource::Path),
        ("x-a", DescriptorSource::Header("x-a".to_owned())),
        ("method", DescriptorSource::Method),
        ("host", DescriptorSource::Host),
        ("generic_key", text("a b")),
    ];
    assert_eq!(entries(1), expect);
    assert_eq!((own.domain.as_str(), own.fail_open, own.failure_status), ("other", false, 500));
    assert_eq!((own.timeout, own.host.as_deref()), (Duration::from_millis(20), Some("limits.test")));
    assert_eq!(own.headers, RateHeaders { x_ratelimit: true, ratelimit: true });
    // A listener without routes.
    let limit = "{to: web, domain: a, fail_open: true, descriptors: [{entries: [{path: true}]}]}";
    let to = format!(
        "listeners: {{l: {{bind: :1, protocol: http, to: web, global_rate_limit: {limit}}}}}\n\
         clusters: {{web: {{endpoints: [a:1], protocol: h2c}}}}"
    );
    assert!(http(&load(&to)).routes[0].policy.global_rate_limit.is_some());
}

#[test]
fn what_a_limit_cannot_be() {
    let rest = "fail_open: true, descriptors: [{entries: {path: true}}]";
    routes(
        &[
            "to: web, path: /a, global_rate_limit: off",
            "to: web, path: /b, global_rate_limit: {to: h2}",
            &format!("to: web, path: /c, global_rate_limit: {{to: web, domain: a, {rest}}}"),
            &format!("to: web, path: /d, global_rate_limit: {{to: webb, domain: '', {rest}}}"),
            "to: web, path: /e, global_rate_limit: {domain: a, fail_open: yes, descriptors: [{entries: [{key: a}, {path: false}]}]}",
            "to: web, path: /f, rate_limit: {requests: 1, per: 1s, headers: [ratelimit, ratelimit, x]}",
        ],
        r#"7:45: `global_rate_limit: off` has no effect: the listener has no `global_rate_limit`; remove it
8:45: a global rate limit needs `descriptors`; it must be a list
8:45: a global rate limit needs `domain`; it must be text such as steelyard
8:45: a global rate limit needs `fail_open`; it must be true or false
8:50: `to` names the cluster `h2`, which is not in `clusters`; the only cluster is `web`
9:50: the cluster `web` speaks HTTP/1.1, and a rate limit service needs HTTP/2; add `protocol: h2c`, or `protocol: h2` and `tls`, to `web`
10:50: `to` names the cluster `webb`, which is not in `clusters`; did you mean `web`?
10:64: `domain` is empty; write the `domain` of the service's limits
11:45: a global rate limit needs `to`; it must be a name such as web
11:68: `fail_open` must be true or false, not "yes"; write true, without quotes
11:98: an entry of a descriptor needs `client_ip`, `header`, `claim`, `path`, `method`, `host` or `value`
11:115: `path` can only be true; otherwise remove the key
12:82: this form is listed twice; remove it
12:93: an entry of `headers`: "x" is not valid; it must be x_ratelimit or ratelimit"#,
    );
}

#[test]
fn clients_of_a_listener_have_limits() {
    let limits = |protocol: &str, limits: &str| {
        let text = format!(
            "listeners: {{l: {{bind: :1, protocol: {protocol}, to: web, client_limits: {limits}}}}}\n\
             clusters: {{web: {{endpoints: [a:1]}}}}"
        );
        crate::parse("f", &text, model::Generation(1)).map(|snapshot| snapshot.listeners[0].client_limits.clone())
    };
    let all = limits("http", "{connections: 3, requests: {requests: 5, per: 2s, headers: x_ratelimit}}").unwrap();
    assert_eq!(all.connections_max, Some(3));
    let rate = all.requests.unwrap();
    assert_eq!(
        (rate.requests, rate.burst, rate.per, rate.by),
        (5, 5, Duration::from_secs(2), model::RateKey::ClientIp)
    );
    assert!(rate.headers.x_ratelimit && !rate.headers.ratelimit);
    assert_eq!(limits("tcp", "{connections: 3}").unwrap().connections_max, Some(3));
    let bandwidths = |text: &str| limits("http", text).map(|all| (all.request_bandwidth, all.response_bandwidth));
    let bandwidth = |bytes, per_s, burst| Some(model::Bandwidth { bytes, per: Duration::from_secs(per_s), burst });
    let both = bandwidths("{request_bandwidth: {bytes: 10KiB}, response_bandwidth: {bytes: 60MiB, per: 1m}}").unwrap();
    assert_eq!(both, (bandwidth(10 << 10, 1, 64 << 10), bandwidth(60 << 20, 60, 1 << 20)));
    let own = bandwidths("{response_bandwidth: {bytes: 1MiB, burst: 200KiB}}").unwrap();
    assert_eq!(own, (None, bandwidth(1 << 20, 1, 200 << 10)));
    let refused = |text: &str| limits("http", text).unwrap_err().to_string();
    assert!(
        refused("{request_bandwidth: {bytes: 10KiB, per: 11s}}")
            .contains("a bandwidth of 930B in a second is less than 1KiB")
    );
    assert!(
        refused("{request_bandwidth: {bytes: 1MiB, burst: 100KiB}}")
            .contains("`burst` is less than what a tenth of a second allows")
    );
    assert!(refused("{request_bandwidth: {per: 1s}}").contains("a bandwidth needs `bytes`"));
    let refused = limits("tcp", "{requests: {requests: 5, per: 2s}}").unwrap_err().to_string();
    assert!(refused.contains("`requests` needs protocol http, and this listener has protocol tcp"), "{refused}");
}

#[test]
fn claims_need_a_token() {
    let limit =
        |entries: &str| format!("{{to: rls, domain: a, fail_open: true, descriptors: [{{entries: {entries}}}]}}");
    let jwt = "{jwt: {issuer: a, audience: b, jwks: {url: 'https://a.test/k'}}}";
    let file = |listener: &str, route: &str| {
        format!(
            "listeners: {{l: {{bind: :1, protocol: http{listener}, routes: [{{to: web{route}}}]}}}}\n\
             clusters: {{web: {{endpoints: [a:1]}}, rls: {{endpoints: [a:2], protocol: h2c}}}}"
        )
    };
    let claims = limit("[{claim: sub}, {key: roles, claim: /realm/roles}]");
    for (listener, route) in [
        (format!(", auth: {jwt}, global_rate_limit: {claims}"), String::new()),
        (format!(", auth: {jwt}"), format!(", global_rate_limit: {claims}")),
        (String::new(), format!(", auth: {jwt}, global_rate_limit: {claims}")),
        // The limit of the listener counts nothing here, which `auth: off` says.
        (format!(", auth: {jwt}, global_rate_limit: {claims}"), ", auth: off".to_owned()),
    ] {
        let snapshot = load(&file(&listener, &route));
        let found = http(&snapshot).routes[0].policy.global_rate_limit.clone().unwrap();
        let entries: Vec<_> =
            found.descriptors[0].iter().map(|entry| (entry.key.as_str(), entry.source.clone())).collect();
        let claim = |name: &str| DescriptorSource::Claim(name.to_owned());
        assert_eq!(entries, [("sub", claim("sub")), ("roles", claim("/realm/roles"))]);
    }
    let refused = |listener: &str, route: &str| {
        let text = file(listener, route);
        let errors = crate::parse("f", &text, model::Generation(1)).map(drop).unwrap_err().to_string();
        assert!(errors.contains("counts by the claim `sub`, and there is no token"), "{errors}");
    };
    refused("", &format!(", global_rate_limit: {claims}"));
    refused(&format!(", global_rate_limit: {claims}"), "");
    refused(&format!(", auth: {jwt}"), &format!(", auth: off, global_rate_limit: {claims}"));
}

#[test]
fn limits_of_routes() {
    let policy = |keys: &str| {
        let text = format!(
            "listeners: {{l: {{bind: :1, protocol: http, routes: [{{{keys}}}]}}}}\nclusters: {{web: {{endpoints: [a:1]}}}}"
        );
        crate::parse("f", &text, model::Generation(1)).map(|snapshot| http(&snapshot).routes[0].policy.clone())
    };
    let limited = policy(
        "to: web, rate_limit: {requests: 1, per: 1s, except: 10.0.0.0/8, status: 503, group: a}, \
         concurrency_limit: {requests: 2, by: {header: X-Key}, except: [\"::1\", 10.0.0.1]}, \
         response_bandwidth: {bytes: 10KiB}, retry: {within: 3s}",
    )
    .unwrap();
    let terms = &limited.rate_limit.as_ref().unwrap().terms;
    let except = |limit: &model::LimitTerms| limit.except.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!((except(terms), terms.status, terms.group.as_deref()), ("10.0.0.0/8".to_owned(), 503, Some("a")));
    let concurrency = limited.concurrency_limit.as_ref().unwrap();
    assert_eq!((concurrency.requests, &concurrency.by), (2, &model::RateKey::Header("x-key".into())));
    assert_eq!((except(&concurrency.terms), concurrency.terms.status), ("::1/128 10.0.0.1/32".to_owned(), 429));
    let pace = |bytes, after| Some(model::ResponseBandwidth { bytes, per: Duration::from_secs(1), after });
    assert_eq!(limited.response_bandwidth, pace(10 << 10, 10 << 10));
    assert_eq!(
        policy("to: web, response_bandwidth: {bytes: 2KiB, after: 0B}").unwrap().response_bandwidth,
        pace(2048, 0)
    );
    assert_eq!(limited.retry.within, Some(Duration::from_secs(3)));
    let also = policy(
        "to: web, rate_limit: {requests: 5, per: 1s, also: [{requests: 60, per: 1m, burst: 9}, {requests: 7, per: 1h}]}",
    );
    let rates: Vec<_> = also.unwrap().rate_limit.iter().flat_map(|limit| limit.rates().collect::<Vec<_>>()).collect();
    let rates: Vec<_> = rates.iter().map(|rate| (rate.requests, rate.per.as_secs(), rate.burst)).collect();
    assert_eq!(rates, [(5, 1, 5), (60, 60, 9), (7, 3600, 7)]);
    let refused = |keys: &str, part: &str| {
        let found = policy(keys).unwrap_err().to_string();
        assert!(found.contains(part), "{keys}: {found}");
    };
    refused("to: web, concurrency_limit: {requests: 0}", "1 to 1000000");
    refused("to: web, rate_limit: {requests: 1, per: 1s, also: [{requests: 1}]}", "`per`");
    refused(
        "to: web, rate_limit: {requests: 60, per: 1m, also: [{requests: 60, per: 60s, burst: 9}]}",
        "`rate_limit` has 60 requests per 1m twice; keep the one with the smaller `burst`, which decides",
    );
    refused(
        "to: web, rate_limit: {requests: 1, per: 1s, also: [{requests: 2, per: 1s}, {requests: 2, per: 1s}]}",
        "2 requests per 1s twice",
    );
    // The same on average, and ingress-nginx may have both.
    assert!(policy("to: web, rate_limit: {requests: 1, per: 1s, also: [{requests: 60, per: 1m}]}").is_ok());
    let five = ["{requests: 1, per: 1s}"; 5].join(", ");
    refused(
        &format!("to: web, rate_limit: {{requests: 1, per: 1s, also: [{five}]}}"),
        "`also` has 5 rates; the limit is 4",
    );
    refused("to: web, concurrency_limit: {requests: 1, status: 200}", "400 to 599");
    refused(
        "to: web, concurrency_limit: {requests: 1, except: [10.0.0.0/8, 10.0.0.0/8]}",
        "10.0.0.0/8 is twice in `except`",
    );
    let many: Vec<String> = (0..1025).map(|number| format!("10.0.{}.{}", number / 256, number % 256)).collect();
    let many = many.join(", ");
    refused(
        &format!("to: web, rate_limit: {{requests: 1, per: 1s, except: [{many}]}}"),
        "has 1025 networks; the limit is 1024",
    );
    refused("to: web, response_bandwidth: {bytes: 10KiB, per: 11s}", "in a second is less than 1KiB");
    refused(
        "redirect: {to: 'https://a'}, response_bandwidth: {bytes: 10KiB}",
        "only responses of endpoints are slowed down",
    );
}

//! What annotations become, which of them close a route or drop an Ingress, and that none that keeps somebody out fails open.

use super::super::catalogue::KEYS;
use super::super::path::regex_of;
use super::*;

fn plan(annotations: &[(&str, &str)]) -> Plan {
    let with = (&Globals::default(), Compat::Safe);
    Plan::of(annotations.iter().copied(), "shop", &["/"], with, &mut Known::default())
}

#[test]
fn every_verdict_of_the_catalogue_holds_for_a_value_that_is_right() {
    for key in KEYS {
        let plan = plan(&[(key.name, value_for(key))]);
        assert_eq!(plan.findings.len(), 1, "{}", key.name);
        if key.security && key.verdict == Verdict::Refused {
            assert!(plan.closed.is_some() || plan.dropped.is_some(), "{} does not close its route", key.name);
        }
    }
}

#[test]
fn a_bad_value_of_a_key_that_keeps_somebody_out_closes_its_route() {
    for key in KEYS.iter().filter(|key| key.security) {
        let plan = plan(&[(key.name, "\u{1}")]);
        assert!(plan.closed.is_some(), "{} fails open", key.name);
    }
}

fn value_for(key: &Key) -> &'static str {
    use super::super::value::Form;
    match key.form {
        Form::Bool => "true",
        Form::Int | Form::Code => "5",
        Form::Size => "8m",
        Form::Word(words) => words.first().copied().unwrap_or_default(),
        Form::Text | Form::Token | Form::Tokens | Form::Host => "abc",
        Form::Networks => "10.0.0.0/8",
        Form::Url => "http://auth.shop.svc.cluster.local/",
        Form::Path | Form::Target => "/",
        Form::Reference => "shop/secret",
    }
}

#[test]
fn what_annotations_become() {
    let check = |annotations: &[(&str, &str)], place: &str, expect: Value| {
        let plan = plan(annotations);
        assert_eq!((&plan.closed, &plan.dropped), (&None, &None), "{annotations:?}");
        let spec = Value::Object(plan.spec);
        assert_eq!(spec.pointer(place).cloned().unwrap_or_default(), expect, "{annotations:?}");
    };
    check(&[], "/route/buffer", json!({"maxSize": "1048576B"}));
    check(&[("proxy-body-size", "0")], "/route/buffer", Value::Null);
    check(&[("proxy-body-size", "8m"), ("proxy-request-buffering", "off")], "/route/buffer", Value::Null);
    check(&[("proxy-body-size", "1g")], "/route/buffer", Value::Null);
    check(&[("proxy-body-size", "nonsense")], "/route/buffer", json!({"maxSize": "1048576B"}));
    check(&[("proxy-read-timeout", "3600")], "/cluster/responseTimeout", json!("3600s"));
    check(&[("proxy-read-timeout", "60s")], "/cluster/responseTimeout", json!("60s"));
    check(&[("proxy-next-upstream", "off")], "/route/retry", json!({"disabled": true}));
    check(
        &[("proxy-next-upstream", "error http_502 non_idempotent"), ("proxy-next-upstream-tries", "2")],
        "/route/retry",
        json!({"attempts": 1, "retryOn": ["502", "connect_failure", "reset"], "nonIdempotent": true}),
    );
    check(&[("load-balance", "ewma")], "/cluster/balance", json!({"algorithm": "peak_ewma"}));
    check(
        &[("upstream-hash-by", "$http_x_user")],
        "/cluster/balance",
        json!({"maglev": {"key": {"header": "x-user"}}}),
    );
    check(&[("upstream-hash-by", "$request_uri")], "/cluster/balance", json!({"algorithm": "round_robin"}));
    check(
        &[("affinity", "cookie"), ("session-cookie-max-age", "60")],
        "/cluster/sticky",
        json!({"cookie": "INGRESSCOOKIE", "ttl": "60s"}),
    );
    check(&[("session-cookie-name", "a")], "/cluster/sticky", Value::Null);
    check(&[("limit-rps", "10")], "/route/rateLimit", json!({"requests": 10, "per": "1s", "burst": 51}));
    check(
        &[("limit-rpm", "30"), ("limit-burst-multiplier", "1")],
        "/route/rateLimit",
        json!({"requests": 30, "per": "1m", "burst": 31}),
    );
    check(&[("whitelist-source-range", "10.1.2.3/8, ::1")], "/route/allow", json!(["10.0.0.0/8", "::1/128"]));
    check(
        &[("allowlist-source-range", "10.0.0.0/8,192.0.2.1"), ("denylist-source-range", "192.0.2.0/24")],
        "/route/allow",
        json!(["10.0.0.0/8"]),
    );
    check(
        &[("auth-type", "basic"), ("auth-secret", "users"), ("auth-realm", "x")],
        "/route/auth",
        json!({"basic": {"secretRef": {"name": "users"}, "realm": "x"}}),
    );
    check(
        &[("auth-url", "http://auth.shop.svc:4180/oauth2/auth"), ("auth-response-headers", "X-User, X-Group")],
        "/route/externalAuth",
        json!({
            "backendRef": {"name": "auth", "namespace": "shop", "port": 4180},
            "http": {"path": "/oauth2/auth", "host": "auth.shop.svc"},
            "timeout": "60s",
            "failureStatus": 500,
            "responseHeaders": ["x-user", "x-group"],
        }),
    );
    check(&[("enable-cors", "true")], "/route/cors/credentials", json!(false));
    check(
        &[("enable-cors", "true"), ("cors-allow-origin", "https://a.example")],
        "/route/cors/credentials",
        json!(true),
    );
    check(&[("cors-allow-origin", "https://a.example")], "/route/cors", Value::Null);
}

#[test]
fn what_closes_a_route_and_what_drops_an_ingress() {
    let check = |annotations: &[(&str, &str)], closed: Option<&str>, dropped: Option<&str>| {
        let plan = plan(annotations);
        for (found, expect) in [(&plan.closed, closed), (&plan.dropped, dropped)] {
            match (found, expect) {
                (None, None) => {}
                (Some(why), Some(part)) => assert!(why.contains(part), "{annotations:?}: {why}"),
                (found, _) => panic!("{annotations:?}: {found:?}"),
            }
        }
    };
    check(&[("auth-type", "digest"), ("auth-secret", "a")], Some("MD5"), None);
    check(&[("auth-type", "basic")], Some("auth-secret is missing"), None);
    check(&[("auth-secret", "a")], Some("auth-type is missing"), None);
    check(&[("auth-type", "basic"), ("auth-secret", "other/a")], Some("another namespace"), None);
    check(&[("auth-url", "https://$host/oauth2/auth")], Some("in the clear"), None);
    check(&[("auth-url", "http://login.example.com/")], Some("no Service"), None);
    check(&[("auth-url", "http://a.login.svc/")], Some("another namespace"), None);
    check(&[("auth-url", "http://a.shop.svc/"), ("auth-method", "POST")], Some("GET"), None);
    check(&[("auth-tls-secret", "shop/ca")], Some("Gateway"), None);
    check(&[("ssl-passthrough", "true")], Some("TLSRoute"), None);
    check(&[("ssl-passthrough", "false")], None, None);
    check(&[("enable-modsecurity", "true")], Some("firewall"), None);
    check(
        &[("satisfy", "any"), ("auth-type", "basic"), ("auth-secret", "a"), ("whitelist-source-range", "::1")],
        Some("satisfy"),
        None,
    );
    check(&[("satisfy", "any"), ("auth-type", "basic"), ("auth-secret", "a")], None, None);
    check(
        &[("whitelist-source-range", "10.0.0.0/8"), ("denylist-source-range", "0.0.0.0/0")],
        Some("denies all"),
        None,
    );
    check(&[("whitelist-source-range", "nonsense")], Some("cannot be read"), None);
    check(&[("limit-rps", "ten")], None, Some("limit-rps"));
    check(&[("permanent-redirect", "https://$host/")], None, Some("1.12"));
    check(&[("configuration-snippet", "add_header a b;")], None, Some("allow-snippet-annotations"));
    check(&[("auth-snippet", "proxy_set_header a b;")], Some("auth-snippet"), Some("allow-snippet-annotations"));
}

#[test]
fn snippets_count_only_where_the_config_map_allows_them() {
    let globals = Globals::of([("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")]);
    let plan = |text: &str| {
        Plan::of([("configuration-snippet", text)], "shop", &["/"], (&globals, Compat::Safe), &mut Known::default())
    };
    let headers = plan("more_set_headers 'X-A: 1';");
    assert_eq!(headers.spec["route"]["responseHeaders"], json!({"set": {"x-a": "1"}}));
    assert_eq!((headers.closed, headers.dropped), (None, None));
    assert_eq!(plan("proxy_cache off;").closed, None);
    assert!(plan("deny all;").closed.is_some());
    // What cannot be changed closes the route: it would be half a snippet.
    assert!(plan("more_set_headers 'Content-Length: 1';").closed.is_some());
}

#[test]
fn unknown_names_and_large_values() {
    let found = plan(&[("secure-backends", "true"), ("rewrite-target", "/")]);
    let says: Vec<&str> = found.findings.iter().map(|finding| finding.says.as_str()).collect();
    assert!(says[1].contains("did you mean backend-protocol?"), "{says:?}");
    let large = "a".repeat(1 << 20);
    let found = plan(&[("configuration-snippet", &large), ("whitelist-source-range", &large)]);
    assert!(found.closed.is_some() && found.findings.iter().all(|finding| finding.value.len() < 100));
}

#[test]
fn expressions_of_paths() {
    assert_eq!(regex_of("/a(/|$)(.*)").as_deref(), Ok("(?i:/a(/|$)(.*))(?s:.*)"));
    let closes = |path: &str, begins: &str| assert_eq!(regex_of(path), Err(begins.to_owned()), "{path}");
    closes("/api/(?!internal).*", "/api/");
    closes(r"/a/(.)\1", "/a/");
    closes("/ab*(?=x)", "/a");
    closes("/a(?=x)|/b", "/");
    closes("(?<=x)", "/");
    closes("/a*+b", "/");
    closes("/x/[", "/x/");
}

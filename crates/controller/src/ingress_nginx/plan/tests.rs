//! What annotations become, which of them close a route or drop an Ingress, and that none that keeps somebody out fails open.

use model::ClientCertMode;

use super::super::catalogue::KEYS;
use super::super::header_map::HeaderMap;
use super::super::path::regex_of;
use super::*;

fn with(globals: &Globals) -> With<'_> {
    With { globals, compat: Compat::Safe, maps: HeaderMaps::NONE, passes_tls: false }
}

fn plan(annotations: &[(&str, &str)]) -> Plan {
    Plan::of(annotations.iter().copied(), "shop", &["/"], with(&Globals::default()), &mut Known::default())
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
        Form::Text | Form::Lines | Form::Token | Form::Tokens | Form::List | Form::Host => "abc",
        Form::Networks => "10.0.0.0/8",
        Form::Statuses => "404,503",
        Form::Url | Form::Service => "http://auth.shop.svc.cluster.local/",
        Form::Path | Form::Target => "/",
        Form::Reference => "shop/secret",
    }
}

/// Checks what is at this place of the policy.
fn becomes(annotations: &[(&str, &str)], place: &str, expect: Value) {
    let plan = plan(annotations);
    assert_eq!((&plan.closed, &plan.dropped), (&None, &None), "{annotations:?}");
    let spec = Value::Object(plan.spec);
    assert_eq!(spec.pointer(place).cloned().unwrap_or_default(), expect, "{annotations:?}");
}

#[test]
fn what_annotations_of_subsets_and_traces_become() {
    let check = becomes;
    let subset = |size: &[(&'static str, &'static str)], expect: Value| {
        let of = [("upstream-hash-by", "$request_uri"), ("upstream-hash-by-subset", "true")];
        let expect = json!({"maglev": {"key": {"template": "${target}"}, "subset": expect}});
        check(&[&of[..], size].concat(), "/cluster/balance", expect);
    };
    subset(&[], json!(3));
    subset(&[("upstream-hash-by-subset-size", "5")], json!(5));
    subset(&[("upstream-hash-by-subset-size", "0")], json!(3));
    subset(&[("upstream-hash-by-subset-size", "1000")], json!(64));
    check(
        &[
            ("upstream-hash-by", "$http_x_user"),
            ("upstream-hash-by-subset", "true"),
            ("upstream-hash-by-subset-size", "1"),
        ],
        "/cluster/balance",
        json!({"maglev": {"key": {"header": "x-user"}}}),
    );
    check(&[("upstream-hash-by-subset", "true")], "/cluster/balance", json!({"algorithm": "round_robin"}));
    check(&[("enable-opentelemetry", "false")], "/route/tracing", json!({"enabled": false}));
    check(&[("opentelemetry-trust-incoming-span", "false")], "/route/tracing", json!({"continueTrace": false}));
    check(
        &[("opentelemetry-operation-name", "HTTP $request_method"), ("opentelemetry-trust-incoming-span", "true")],
        "/route/tracing",
        json!({"spanName": "HTTP ${method}"}),
    );
}

#[test]
fn what_annotations_become() {
    let check = becomes;
    check(&[], "/route/buffer", json!({"maxSize": "1048576B"}));
    check(&[("proxy-body-size", "0")], "/route/buffer", Value::Null);
    check(&[("proxy-body-size", "8m"), ("proxy-request-buffering", "off")], "/route/buffer", Value::Null);
    check(&[("proxy-body-size", "1g")], "/route/buffer", Value::Null);
    check(&[("proxy-body-size", "1g")], "/route/maxBody", json!("1073741824B"));
    check(&[("proxy-body-size", "8m"), ("proxy-request-buffering", "off")], "/route/maxBody", json!("8388608B"));
    check(&[("backend-protocol", "GRPC")], "/route/maxBody", json!("1048576B"));
    check(&[("proxy-body-size", "0")], "/route/maxBody", Value::Null);
    check(&[("proxy-body-size", "99999g")], "/route/maxBody", json!("1099511627776B"));
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
    check(
        &[("upstream-hash-by", "$host$request_uri")],
        "/cluster/balance",
        json!({"maglev": {"key": {"template": "${host}${target}"}}}),
    );
    check(&[("upstream-hash-by", "$geoip_city")], "/cluster/balance", json!({"algorithm": "round_robin"}));
    check(
        &[("affinity", "cookie"), ("session-cookie-max-age", "60")],
        "/cluster/sticky",
        json!({"cookie": "INGRESSCOOKIE", "ttl": "60s"}),
    );
    check(&[("session-cookie-name", "a")], "/cluster/sticky", Value::Null);
    check(
        &[
            ("affinity", "cookie"),
            ("session-cookie-path", "/a"),
            ("session-cookie-domain", ".a.test"),
            ("session-cookie-samesite", "None"),
            ("session-cookie-secure", "true"),
        ],
        "/cluster/sticky",
        json!({"cookie": "INGRESSCOOKIE", "path": "/a", "domain": "a.test", "sameSite": "none", "secure": true}),
    );
    check(
        &[("affinity", "cookie"), ("session-cookie-path", "/a;b"), ("session-cookie-domain", "a b")],
        "/cluster/sticky",
        json!({"cookie": "INGRESSCOOKIE"}),
    );
}

#[test]
fn what_annotations_about_limits_become() {
    let check = becomes;
    check(&[("limit-rps", "10")], "/route/rateLimit", json!({"requests": 10, "per": "1s", "burst": 51, "status": 503}));
    check(
        &[("limit-rpm", "30"), ("limit-burst-multiplier", "1"), ("limit-whitelist", "10.1.2.3/8, ::1")],
        "/route/rateLimit",
        json!({"requests": 30, "per": "1m", "burst": 31, "status": 503, "except": ["10.0.0.0/8", "::1/128"]}),
    );
    check(
        &[("limit-rpm", "30"), ("limit-rps", "2")],
        "/route/rateLimit",
        json!({"requests": 2, "per": "1s", "burst": 11, "status": 503, "also": [{"requests": 30, "per": "1m", "burst": 151}]}),
    );
    let (concurrent, buffered) = (("limit-connections", "3"), ("proxy-buffering", "on"));
    check(&[concurrent], "/route/concurrencyLimit", json!({"requests": 3, "status": 503}));
    check(&[concurrent], "/route/rateLimit", Value::Null);
    check(&[("limit-connections", "0")], "/route", plan(&[]).spec["route"].clone());
    check(
        &[concurrent, ("limit-allowlist", "10.0.0.1"), ("limit-whitelist", "10.0.0.2")],
        "/route/concurrencyLimit/except",
        json!(["10.0.0.1/32"]),
    );
    check(
        &[buffered, ("limit-rate", "100"), ("limit-rate-after", "500")],
        "/route/responseBandwidth",
        json!({"bytes": "102400B", "after": "614400B"}),
    );
    check(&[buffered, ("limit-rate-after", "500")], "/route/responseBandwidth", Value::Null);
    check(&[buffered, ("limit-rate", "fast")], "/route/responseBandwidth", Value::Null);
    check(&[("limit-rate", "100")], "/route/responseBandwidth", Value::Null);
    check(
        &[buffered, ("limit-rate", "999999999999999999")],
        "/route/responseBandwidth",
        json!({"bytes": "1099511627776B", "after": "1099511627776B"}),
    );
    let limits = |annotations: &[(&str, &str)]| plan(annotations).limits_clients();
    assert_eq!(
        [limits(&[concurrent]), limits(&[("limit-rpm", "1")]), limits(&[("limit-rate", "1")])],
        [true, true, false]
    );
    let says = |key: &str| plan(&[(key, "10.0.0.0/8")]).findings[0].verdict;
    assert_eq!([says("limit-whitelist"), says("limit-allowlist")], [Verdict::NoEffect; 2]);
}

#[test]
fn limits_of_the_config_map() {
    let of = |data: &[(&str, &str)], annotations: &[(&str, &str)]| {
        let globals = Globals::of(data.iter().copied());
        let mut plan = Plan::of(annotations.iter().copied(), "shop", &["/"], with(&globals), &mut Known::default());
        plan.spec["route"].take()
    };
    let statuses = [("limit-req-status-code", "429"), ("limit-conn-status-code", "200")];
    let route = of(&statuses, &[("limit-rps", "1"), ("limit-connections", "1")]);
    // nginx takes no status below 400 there.
    assert_eq!((&route["rateLimit"]["status"], &route["concurrencyLimit"]["status"]), (&json!(429), &json!(503)));
    let rates = [("limit-rate", "1"), ("limit-rate-after", "2"), ("proxy-buffering", "on")];
    assert_eq!(of(&rates, &[])["responseBandwidth"], json!({"bytes": "1024B", "after": "3072B"}));
    assert_eq!(of(&rates, &[("limit-rate", "0")])["responseBandwidth"], Value::Null);
    let [off, own] = ["false", "true"].map(|value| [("enable-opentelemetry", value)]);
    assert_eq!(of(&off, &[])["tracing"], json!({"enabled": false}));
    assert_eq!(of(&off, &own)["tracing"], Value::Null);
    assert_eq!(of(&own, &off)["tracing"], json!({"enabled": false}));
    let within = [("proxy-next-upstream-timeout", "7")];
    assert_eq!(of(&within, &[])["retry"]["within"], json!("7s"));
    assert_eq!(of(&within, &[("proxy-next-upstream-timeout", "0")])["retry"]["within"], Value::Null);
}

#[test]
fn where_clients_sign_in_and_what_the_service_is_asked() {
    let check = becomes;
    let asks = ("auth-url", "https://$host/oauth2/auth");
    let signs_in = |url: &str, expect: Value| {
        check(&[asks, ("auth-signin", url)], "/route/externalAuth/signIn", expect);
    };
    signs_in("https://$host/oauth2/start", json!({"url": "https://${host}/oauth2/start"}));
    let path = json!({"url": "https://${host}/oauth2/start", "pathOnly": true});
    signs_in("https://$host/oauth2/start?rd=$escaped_request_uri", path.clone());
    signs_in("https://$http_host/oauth2/start?rd=$request_uri", path);
    signs_in("https://login.example/?a=b&rd=https://$host$request_uri", json!({"url": "https://login.example/?a=b"}));
    signs_in("https://login.example/?rd=/home", json!({"url": "https://login.example/?rd=/home"}));
    signs_in("$scheme://login.example/", json!({"url": "${scheme}://login.example/"}));
    signs_in(
        "https://l.example/?rm=$request_method&t=$arg_t&rd=$scheme://$host/app",
        json!({"url": "https://l.example/?rm=${method}&t=${query.t}&rd=${scheme}://${host}/app"}),
    );
    for refused in [
        "https://l.example/?rd=$uri",
        "https://l.example/?rd=$arg_rd",
        "https://l.example/$uri",
        "https://l.example/?a=$geoip",
    ] {
        signs_in(refused, Value::Null);
    }
    for (url, port, sni) in [
        ("https://auth.shop.svc/check", 443, Some("auth.shop.svc")),
        ("https://Auth.shop.svc.cluster.local.:8443/check", 8443, Some("auth.shop.svc.cluster.local")),
        ("http://auth.shop.svc/check", 80, None),
    ] {
        check(&[("auth-url", url)], "/route/externalAuth/backendRef/port", json!(port));
        let plan = plan(&[("auth-url", url), ("mirror-target", &url.replace("/check", ""))]);
        let mirror = plan.location.mirror.unwrap();
        assert_eq!(mirror.service().map(|service| (service.port, service.sni.as_deref())), Some((port, sni)), "{url}");
        assert_eq!(plan.location.asks_over_tls.and_then(|service| service.sni).as_deref(), sni, "{url}");
        for key in ["auth-url", "mirror-target"] {
            let finding = plan.findings.iter().find(|finding| finding.key == key).unwrap();
            assert_eq!(finding.says.contains("any certificate of it is accepted"), sni.is_some(), "{finding:?}");
        }
    }
    check(&[("auth-url", "http://[2606:4700:0::1111]/x")], "/route/externalAuth/http/host", json!("[2606:4700::1111]"));
    let query = "http://auth.shop.svc/check?groups=a,b&m=$request_method&u=$request_uri";
    check(
        &[("auth-url", query)],
        "/route/externalAuth/http",
        json!({"path": "/check", "query": "groups=a,b&m=${method}&u=${target}", "host": "auth.shop.svc"}),
    );
    check(
        &[asks, ("auth-signin", "https://l.example/"), ("auth-signin-redirect-param", "next")],
        "/route/externalAuth/signIn",
        json!({"url": "https://l.example/", "param": "next"}),
    );
}

#[test]
fn what_annotations_about_access_become() {
    let check = becomes;
    check(&[("whitelist-source-range", "10.1.2.3/8, ::1")], "/route/allow", json!(["10.0.0.0/8", "::1/128"]));
    check(
        &[("allowlist-source-range", "10.0.0.0/8,192.0.2.1"), ("denylist-source-range", "192.0.2.0/24")],
        "/route/allow",
        json!(["10.0.0.0/8"]),
    );
    check(
        &[("allowlist-source-range", "10.0.0.0/8"), ("whitelist-source-range", "10.1.0.0/16,192.0.2.1")],
        "/route/allow",
        json!(["10.1.0.0/16"]),
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
            "setCookie": "success",
        }),
    );
    let asks = ("auth-url", "https://$host/oauth2/auth");
    for (value, expect) in [("true", "always"), ("false", "success"), ("nonsense", "success")] {
        check(&[asks, ("auth-always-set-cookie", value)], "/route/externalAuth/setCookie", json!(expect));
    }
    check(&[asks], "/route/externalAuth/http", json!({"path": "/oauth2/auth"}));
    check(
        &[asks, ("auth-request-redirect", "https://$host/in?to=$request_uri")],
        "/route/externalAuth/http/headers",
        json!({"x-auth-request-redirect": "https://${host}/in?to=${target}"}),
    );
    assert_eq!(plan(&[asks]).location.asks_host.as_deref(), Some("/oauth2/auth"));
    check(&[("enable-cors", "true")], "/route/cors/credentials", json!(false));
    check(
        &[("enable-cors", "true"), ("cors-allow-origin", "https://a.example")],
        "/route/cors/credentials",
        json!(true),
    );
    check(&[("cors-allow-origin", "https://a.example")], "/route/cors", Value::Null);
}

/// Checks why routes are closed, and why an Ingress is dropped.
fn ends(annotations: &[(&str, &str)], closed: Option<&str>, dropped: Option<&str>) {
    let plan = plan(annotations);
    for (found, expect) in [(&plan.closed, closed), (&plan.dropped, dropped)] {
        match (found, expect) {
            (None, None) => {}
            (Some(why), Some(part)) => assert!(why.contains(part), "{annotations:?}: {why}"),
            (found, _) => panic!("{annotations:?}: {found:?}"),
        }
    }
}

#[test]
fn what_closes_a_route_and_what_drops_an_ingress() {
    let check = ends;
    check(&[("auth-type", "digest"), ("auth-secret", "a")], Some("MD5"), None);
    check(&[("auth-type", "basic")], Some("auth-secret is missing"), None);
    check(&[("auth-secret", "a")], Some("auth-type is missing"), None);
    check(&[("auth-type", "basic"), ("auth-secret", "other/a")], Some("another namespace"), None);
    check(&[("auth-url", "https://auth.shop.svc/")], None, None);
    check(&[("auth-url", "https://-.shop.svc/")], Some("no name of a Service"), None);
    check(&[("auth-url", "https://auth.other.svc/")], Some("another namespace"), None);
    check(&[("auth-url", "https://me:secret@auth.shop.svc/")], Some("the header Authorization"), None);
    check(&[("auth-url", "https://bücher.example/")], Some("punycode"), None);
    check(&[("auth-url", "http://[2606:4700::1111]:8080/x")], None, None);
    check(&[("auth-url", "http://[fd12::1]/x")], Some("may be used"), None);
    check(&[("auth-url", "http://2606:4700::1111/x")], Some("in brackets"), None);
    check(&[("auth-url", "https://$host/auth?u=$uri&x=1")], Some("$uri is not known"), None);
    check(&[("auth-url", "http://auth.shop.svc/$request_uri?x=1")], Some("before the query"), None);
    check(&[("auth-url", "https://$host")], Some("before the query"), None);
    check(&[("auth-url", "http://login.example.com/")], None, None);
    check(&[("auth-url", "http://login/")], Some("no Service"), None);
    check(&[("auth-url", "http://169.254.169.254/")], Some("may be used"), None);
    check(&[("auth-url", "http://a.login.svc/")], Some("another namespace"), None);
    check(&[("auth-url", "http://a.shop.svc/"), ("auth-method", "TRACE")], Some("asked by TRACE"), None);
    check(&[("auth-url", "http://a.shop.svc/"), ("auth-method", "post")], Some("asked by post"), None);
    check(&[("auth-url", "http://a.shop.svc/"), ("auth-request-redirect", "$uri")], Some("$uri is not known"), None);
    let [asks, by] = [("auth-url", "http://a.shop.svc/"), ("auth-cache-key", "$cookie_a")];
    check(&[asks, ("auth-cache-key", "abc")], Some("all clients would get"), None);
    check(&[asks, by, ("auth-cache-duration", "200 5m;")], Some("auth-cache-duration is refused"), None);
    check(&[asks, ("auth-cache-duration", "200 5m;")], None, None);
    check(&[("ssl-passthrough", "true")], Some("--ingress-nginx-ssl-passthrough"), None);
    check(&[("ssl-passthrough", "false")], None, None);
    // Only a boolean can say that something is off: these name Secrets, or are no word of theirs.
    for (key, value) in [("auth-tls-secret", "off"), ("auth-tls-secret", "0"), ("auth-snippet", "false")] {
        let plan = plan(&[(key, value)]);
        assert!(plan.closed.is_some(), "{key}: {value}");
        assert!(plan.findings.iter().all(|finding| finding.verdict == Verdict::Refused), "{key}: {value}");
    }
    for (key, value) in [("proxy-redirect-from", "off"), ("proxy-cookie-path", "off")] {
        assert_eq!(plan(&[(key, value)]).findings[0].verdict, Verdict::NoEffect, "{key}: {value}");
    }
    check(&[("enable-modsecurity", "true")], Some("firewall"), None);
    check(
        &[("satisfy", "any"), ("auth-type", "basic"), ("auth-secret", "a"), ("whitelist-source-range", "::1")],
        None,
        None,
    );
    check(&[("satisfy", "any"), ("auth-type", "basic"), ("auth-secret", "a")], None, None);
    check(
        &[("whitelist-source-range", "10.0.0.0/8"), ("denylist-source-range", "0.0.0.0/0")],
        Some("denies all"),
        None,
    );
    check(&[("whitelist-source-range", "nonsense")], Some("cannot be read"), None);
    check(&[("whitelist-source-range", "::1"), ("allowlist-source-range", "10.0.0.0/8")], Some("in common"), None);
    check(&[("limit-rps", "ten")], None, Some("limit-rps"));
    check(&[("permanent-redirect", "https://$host/")], None, Some("1.12"));
    check(&[("configuration-snippet", "add_header a b;")], None, Some("allow-snippet-annotations"));
    check(&[("auth-snippet", "proxy_set_header a b;")], Some("auth-snippet"), Some("allow-snippet-annotations"));
}

#[test]
fn one_of_several_proofs() {
    let check = |more: &[(&str, &str)], expect: [Value; 3]| {
        let plan = plan(&[&[("satisfy", "ANY")], more].concat());
        assert_eq!(plan.closed, None, "{more:?}");
        let found = ["satisfy", "allow", "deny"].map(|key| plan.spec["route"][key].clone());
        assert_eq!(found, expect, "{more:?}");
    };
    let [basic, secret] = [("auth-type", "basic"), ("auth-secret", "a")];
    let (allow, deny) = (("whitelist-source-range", "10.0.0.0/30"), ("denylist-source-range", "10.0.0.2/31"));
    let service = ("auth-url", "http://login.shop.svc/");
    let none = || Value::Null;
    check(&[allow, deny], [none(), json!(["10.0.0.0/30"]), json!(["10.0.0.2/31"])]);
    check(&[basic, secret], [none(), none(), none()]);
    check(&[basic, secret, deny], [none(), none(), none()]);
    check(&[basic, secret, allow], [json!("any"), json!(["10.0.0.0/30"]), none()]);
    check(&[basic, secret, allow, deny], [json!("any"), json!(["10.0.0.0/31"]), none()]);
    check(&[service, allow], [json!("any"), json!(["10.0.0.0/30"]), none()]);
    check(&[service, basic, secret], [json!("any"), none(), none()]);
    // What the ConfigMap blocks is blocked.
    let globals = Globals::of([("block-cidrs", "10.0.0.1"), ("whitelist-source-range", "10.0.0.0/8")]);
    let annotations = [("satisfy", "any"), basic, secret];
    let plan = Plan::of(annotations, "shop", &["/"], with(&globals), &mut Known::default());
    let found = ["satisfy", "allow", "deny"].map(|key| plan.spec["route"][key].clone());
    assert_eq!(found, [json!("any"), json!(["10.0.0.0/8"]), json!(["10.0.0.1/32"])]);
}

#[test]
fn certificates_of_clients_and_for_endpoints() {
    let check = ends;
    let (client_tls, asks) = (("auth-tls-secret", "shop/ca"), |how| ("auth-tls-verify-client", how));
    check(&[client_tls], None, None);
    check(&[("auth-tls-secret", "ca")], Some("NAMESPACE/NAME"), None);
    check(&[("auth-tls-secret", "other/ca")], Some("another namespace"), None);
    check(&[client_tls, asks("optional")], None, None);
    check(&[client_tls, asks("optional_no_ca")], None, None);
    check(&[client_tls, asks("yes")], Some("cannot be read"), None);
    let matches = |pattern| ("auth-tls-match-cn", pattern);
    check(&[client_tls, matches("CN=a")], None, None);
    // What ingress-nginx ignores.
    check(&[client_tls, matches("a")], Some("write CN="), None);
    check(&[matches("CN=a")], Some("auth-tls-secret is missing"), None);
    check(&[client_tls, matches("CN=(?!a)")], Some("looks around"), None);
    check(&[client_tls, matches("CN=a"), asks("off")], Some("is off"), None);
    let found = |annotations: &[(&str, &str)]| plan(annotations).location.client_tls;
    let passes = ("auth-tls-pass-certificate-to-upstream", "true");
    let page = ("auth-tls-error-page", "https://a.example/no");
    let expect = ClientTls {
        secret: "ca".to_owned(),
        mode: ClientCertMode::Required,
        passes: true,
        subject: Some("CN=a".to_owned()),
        error_page: Some("https://a.example/no".to_owned()),
    };
    assert_eq!(found(&[client_tls, passes, matches("CN=a"), page]), Some(expect));
    let mode = |word| found(&[client_tls, asks(word)]).map(|client| client.mode);
    let modes = ["on", "optional", "optional_no_ca"].map(mode);
    assert_eq!(modes, [ClientCertMode::Required, ClientCertMode::Optional, ClientCertMode::Unsigned].map(Some));
    assert_eq!(found(&[client_tls, ("auth-tls-error-page", "/no")]).and_then(|client| client.error_page), None);
    assert_eq!(found(&[client_tls, asks("off")]), None);
    let (https, ssl) = (("backend-protocol", "HTTPS"), ("proxy-ssl-secret", "shop/pair"));
    check(&[https, ssl], None, None);
    check(&[https, ("proxy-ssl-secret", "pair")], Some("NAMESPACE/NAME"), None);
    check(&[https, ("proxy-ssl-secret", "other/pair")], Some("another namespace"), None);
    check(&[https, ssl, ("proxy-ssl-verify", "on")], Some("proxy-ssl-name"), None);
    check(&[https, ssl, ("proxy-ssl-verify", "yes")], Some("cannot be read"), None);
    let names = [("proxy-ssl-verify", "on"), ("proxy-ssl-name", "in.example"), ("proxy-ssl-server-name", "on")];
    let found = |annotations: &[(&str, &str)]| plan(annotations).location.proxy_ssl;
    let name = || Some("in.example".to_owned());
    let expect = ProxySsl { secret: "pair".to_owned(), verify: name(), sni: name() };
    assert_eq!(found(&[&[https, ssl], &names[..]].concat()), Some(expect));
    assert_eq!(found(&[&[ssl], &names[..]].concat()), None, "endpoints speak no TLS");
}

#[test]
fn snippets_count_only_where_the_config_map_allows_them() {
    let globals = Globals::of([("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")]);
    let plan =
        |text: &str| Plan::of([("configuration-snippet", text)], "shop", &["/"], with(&globals), &mut Known::default());
    let headers = plan("more_set_headers 'X-A: 1';");
    assert_eq!(headers.spec["route"]["responseHeaders"], json!({"set": {"x-a": "1"}}));
    assert_eq!((headers.closed, headers.dropped), (None, None));
    assert_eq!(plan("proxy_cache off;").closed, None);
    assert!(plan("deny all;").closed.is_some());
    let lists = plan("deny 10.1.0.0/16; allow 10.0.0.0/8; deny all;");
    assert_eq!(
        (&lists.spec["route"]["allow"], &lists.spec["route"]["deny"]),
        (&json!(["10.0.0.0/8"]), &json!(["10.1.0.0/16"]))
    );
    assert_eq!(lists.closed, None);
    let both = [("configuration-snippet", "allow ::1; deny all;"), ("whitelist-source-range", "10.0.0.0/8")];
    let both = Plan::of(both, "shop", &["/"], with(&globals), &mut Known::default());
    assert!(both.closed.is_some_and(|why| why.contains("another list")));
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
    // Longer than nginx takes them.
    closes(&format!("/ab{}", "c?".repeat(300_000)), "/ab");
    closes("/a(?=x)|/b", "/");
    closes("(?<=x)", "/");
    closes("/a*+b", "/");
    closes("/x/[", "/x/");
    closes("/a(?R)?", "/a");
    closes("/a(?u:b)", "/a");
    closes(r"/a\<b", "/a");
    closes("/a[b[c]]", "/a");
    closes("/a[a-z&&[^b]]", "/a");
    closes("/a)|(b", "/");
    closes(r"/a\w{2000}", "/a");
    for path in [r"/a\*+", "/a[*+]", "/a[[:alpha:]]+", "/a[]a]", "/(?<year>[0-9]{4})/", "/(?i)a", "/(?P<n>a)"] {
        assert!(regex_of(path).is_ok(), "{path}");
    }
}

#[test]
fn the_config_map_compresses() {
    let compress = |data: &[(&str, &str)]| {
        let globals = Globals::of(data.iter().copied());
        let plan = Plan::of([], "shop", &["/"], with(&globals), &mut Known::default());
        assert_eq!(plan.closed, None, "{data:?}");
        plan.spec["route"]["compress"].clone()
    };
    assert_eq!(compress(&[("gzip-level", "9")]), Value::Null);
    let both = [
        ("use-gzip", "true"),
        ("enable-brotli", "true"),
        ("gzip-level", "11"),
        ("gzip-types", "text/css */* text/html x"),
    ];
    assert_eq!(
        compress(&both),
        json!({"encodings": ["br", "gzip"], "level": 9, "minSize": "256B", "types": ["text/html", "text/css"]})
    );
    let usual = compress(&[("use-gzip", "true"), ("gzip-min-length", "1000")]);
    assert_eq!((&usual["level"], &usual["minSize"]), (&json!(1), &json!("1000B")));
    assert_eq!(usual["types"].as_array().map(Vec::len), Some(18));
}

#[test]
fn the_config_map_replaces_errors() {
    let errors = |annotations: &[(&str, &str)], data: &[(&str, &str)]| {
        let globals = Globals::of(data.iter().copied());
        let plan = Plan::of(annotations.iter().copied(), "shop", &["/"], with(&globals), &mut Known::default());
        plan.location.errors.map(|errors| (errors.statuses, errors.is_global, errors.of_endpoints))
    };
    let global = [("custom-http-errors", "503, 404,404,x,200")];
    assert_eq!(errors(&[], &[]), None);
    assert_eq!(errors(&[], &global), Some((vec![404, 503], true, true)));
    assert_eq!(errors(&[("custom-http-errors", "500")], &global), Some((vec![500], false, true)));
    assert_eq!(errors(&[("disable-proxy-intercept-errors", "true")], &global), Some((vec![404, 503], true, false)));
}

#[test]
fn headers_of_config_maps() {
    let maps = |namespace: &str, name: &str| match (namespace, name) {
        ("shop", "own") => HeaderMap::of([("X-A", "1"), ("X-B", "$req_id")]),
        ("infra", "all") => HeaderMap::of([("X-A", "0"), ("X-C", "")]),
        _ => HeaderMaps::NONE.find(namespace, name),
    };
    let of = |keys: &[(&str, &str)], compat: Compat, reference: &str| {
        let globals = Globals::of(keys.iter().copied()).with_header_maps(HeaderMaps(&maps), &mut Known::default());
        let with = With { globals: &globals, compat, maps: HeaderMaps(&maps), passes_tls: false };
        Plan::of([("custom-headers", reference)], "shop", &["/"], with, &mut Known::default())
    };
    let check = |keys: &[(&str, &str)], compat: Compat, reference: &str, expect: Result<Value, &str>| {
        let plan = of(keys, compat, reference);
        match expect {
            Ok(field) => assert_eq!((&plan.unavailable, &plan.spec["route"]["allResponseHeaders"]), (&None, &field)),
            Err(why) => {
                let found = plan.unavailable.unwrap_or_default();
                assert!(found.contains(why), "{found}");
            }
        }
    };
    let allowed = ("global-allowed-response-headers", "X-A,X-B");
    let own = json!({"set": {"x-a": "1", "x-b": "${request_id}"}, "remove": ["server"]});
    check(&[allowed], Compat::Safe, "shop/own", Ok(own));
    let both = json!({"set": {"x-a": "1", "x-b": "${request_id}"}, "remove": ["x-c", "server"]});
    check(&[allowed, ("add-headers", "infra/all")], Compat::Safe, "shop/own", Ok(both));
    check(&[], Compat::Safe, "shop/own", Err("the header X-A is not allowed"));
    check(
        &[("global-allowed-response-headers", "x-a,x-b")],
        Compat::Safe,
        "shop/own",
        Err("the header X-A is not allowed"),
    );
    check(&[allowed], Compat::Safe, "own", Err("write NAMESPACE/NAME"));
    check(&[allowed], Compat::Safe, "shop/none", Err("there is no ConfigMap shop/none"));
    check(&[allowed], Compat::Safe, "infra/all", Err("is in another namespace"));
    check(&[allowed], Compat::Exact, "infra/all", Err("the header X-C is not allowed"));
    check(&[allowed, ("allow-cross-namespace-resources", "true")], Compat::Safe, "infra/all", Err("the header X-C"));
    assert_eq!(of(&[], Compat::Safe, "shop/own").named, [("shop".to_owned(), "own".to_owned())]);
    assert!(of(&[], Compat::Safe, "UPPER").unavailable.is_some());
}

#[test]
fn a_canary_gets_its_share_where_another_ingress_would_get_503() {
    for reference in ["shop/none", "UPPER"] {
        let alone = plan(&[("custom-headers", reference)]);
        assert!(alone.unavailable.is_some(), "{reference}");
        let canary = plan(&[("custom-headers", reference), ("canary", "true"), ("canary-weight", "20")]);
        assert_eq!((canary.unavailable, canary.closed), (None, None), "{reference}");
        let finding = canary.findings.iter().find(|finding| finding.key == "custom-headers").unwrap();
        assert_eq!(finding.verdict, Verdict::NoEffect, "{finding:?}");
        assert!(canary.canary.is_some_and(|canary| canary.weight == 20));
    }
}

#[test]
fn a_snippet_may_name_a_server() {
    let allowed = Globals::of([("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")]);
    let of = |text: &str| {
        let plan = Plan::of([("configuration-snippet", text)], "shop", &["/"], with(&allowed), &mut Known::default());
        plan.spec["route"]["allResponseHeaders"].clone()
    };
    assert_eq!(of("more_set_headers 'Server: mine';"), json!({"set": {"server": "mine"}}));
    assert_eq!(of("more_set_headers 'X-A: 1';"), json!({"remove": ["server"]}));
}

#[test]
fn headers_of_endpoints_of_config_maps() {
    let maps = |_: &str, _: &str| HeaderMap::of([("X-A", "$remote_addr"), ("Host", "a"), ("X-B", "$odd"), ("X-C", "")]);
    let globals =
        Globals::of([("proxy-set-headers", "infra/all")]).with_header_maps(HeaderMaps(&maps), &mut Known::default());
    let with = With { maps: HeaderMaps(&maps), ..with(&globals) };
    let plan = Plan::of([], "shop", &["/"], with, &mut Known::default());
    let field = json!({"set": {"x-a": "${client_ip}"}, "remove": ["x-c"]});
    assert_eq!(plan.spec["route"]["requestHeaders"], field);
    let [finding] = &globals.findings[..] else { panic!("{:?}", globals.findings) };
    assert_eq!(finding.verdict, Verdict::Refused);
    assert!(finding.says.contains("the header Host") && finding.says.contains("$odd"), "{}", finding.says);
}

#[test]
fn urls_and_cookies_of_endpoints() {
    let of = |keys: &[(&str, &str)], annotations: &[(&str, &str)]| {
        let globals = Globals::of(keys.iter().copied());
        Plan::of(annotations.iter().copied(), "shop", &["/"], with(&globals), &mut Known::default())
    };
    let check = |keys: &[(&str, &str)], annotations: &[(&str, &str)], expect: Value| {
        let plan = of(keys, annotations);
        assert_eq!((&plan.closed, &plan.dropped), (&None, &None), "{annotations:?}");
        assert_eq!(plan.spec["route"]["rewriteResponses"], expect, "{keys:?} {annotations:?}");
    };
    let domain = json!({"cookieDomain": [{"from": "in.test", "to": "out.test"}]});
    check(&[], &[("proxy-cookie-domain", "in.test  out.test")], domain.clone());
    check(&[("proxy-cookie-domain", "in.test out.test")], &[], domain.clone());
    check(&[("proxy-cookie-domain", "in.test out.test")], &[("proxy-cookie-domain", "off")], Value::Null);
    // It has a sign that ingress-nginx refuses, so that its default counts.
    check(&[("proxy-cookie-domain", "in.test out.test")], &[("proxy-cookie-domain", "a $b")], domain);
    check(&[], &[("proxy-cookie-path", "/app/ /")], json!({"cookiePath": [{"from": "/app/", "to": "/"}]}));
    check(&[], &[("proxy-cookie-path", "/app/")], Value::Null);
    let regex = |from: &str, to: &str| json!({"regex": format!("{from}"), "to": to});
    let path = json!({"cookiePath": [regex("(?i)(?s:.*?)(?:^/u/(.+))(?s:.*)", "/${1}")]});
    check(&[("proxy-cookie-path", "~*^/u/(.+) /$1")], &[], path);
    check(&[("proxy-cookie-path", "~/a(?=b) /")], &[], Value::Null);
    let location = |from: &str, to: &str| json!({"location": [{"from": from, "to": to}]});
    let redirect = |from, to| [("proxy-redirect-from", from), ("proxy-redirect-to", to)];
    check(&[], &redirect("http://a/", "https://b/"), location("http://a/", "https://b/"));
    check(&[], &redirect("http://a/", "/b/"), location("http://a/", "${scheme}://${host}/b/"));
    check(&[("relative-redirects", "true")], &redirect("http://a/", "/b/"), location("http://a/", "/b/"));
    check(&[], &redirect("http://a/", "$scheme://$host/"), location("http://a/", "${scheme}://${host}/"));
    check(&[], &redirect("http://a/", "$scheme://$http_host/"), Value::Null);
    check(&[], &redirect("default", "https://b/"), Value::Null);
    check(&[], &redirect("off", "https://b/"), Value::Null);
    check(&[], &redirect("http://a/", "off"), Value::Null);
    check(&[], &[("proxy-redirect-from", "http://a/")], Value::Null);
    let grpc = [("backend-protocol", "GRPC"), ("proxy-cookie-path", "/a /")];
    check(&[], &grpc, Value::Null);
    let verdict = |annotations: &[(&str, &str)]| {
        let plan = of(&[], annotations);
        plan.findings.iter().map(|finding| finding.verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdict(&redirect("http://a/", "$uri")), [Verdict::Refused, Verdict::Differs]);
    assert_eq!(verdict(&[("proxy-cookie-path", "/a")]), [Verdict::Refused]);
    assert_eq!(verdict(&redirect("default", "off")), [Verdict::NoEffect, Verdict::NoEffect]);
}

#[test]
fn requests_that_are_not_logged() {
    becomes(&[("enable-access-log", "false")], "/route/accessLog", json!(false));
    becomes(&[("enable-access-log", "true")], "/route/accessLog", Value::Null);
}

#[test]
fn what_proves_nothing_closes() {
    let globals = Globals::of([("allow-snippet-annotations", "true"), ("annotations-risk-level", "Critical")]);
    let closed = |annotations: &[(&str, &str)]| {
        let plan = Plan::of(annotations.iter().copied(), "shop", &["/"], with(&globals), &mut Known::default());
        plan.closed.or(plan.host_closed).unwrap_or_default()
    };
    let service = [("auth-url", "http://auth.shop.svc/"), ("auth-response-headers", "X-User")];
    let snippet = |text| closed(&[service[0], service[1], ("configuration-snippet", text)]);
    assert!(snippet("more_set_input_headers \"X-User: guest\";").contains("auth-response-headers"));
    assert!(snippet("proxy_set_header X-User \"\";").contains("auth-response-headers"));
    assert_eq!(snippet("proxy_set_header X-Other a;"), "");
    let several = ("auth-response-headers", "X-User X-Group");
    let group = ("configuration-snippet", "more_set_input_headers \"X-Group: all\";");
    assert!(closed(&[service[0], several, group]).contains("auth-response-headers"));
    let unsigned = ("auth-tls-verify-client", "optional_no_ca");
    let subject = closed(&[("auth-tls-secret", "shop/ca"), unsigned, ("auth-tls-match-cn", "CN=ann")]);
    assert!(subject.contains("a subject proves nothing"), "{subject}");
    for text in ["proxy_set_header Host \"a b\";", "return 301 \"https://e.test/\nX-Evil: 1\";"] {
        let plan = Plan::of([("configuration-snippet", text)], "shop", &["/"], with(&globals), &mut Known::default());
        assert_eq!(plan.findings[0].verdict, Verdict::Refused, "{text}");
    }
}

fn verdict_of(annotations: &[(&str, &str)], key: &str) -> (Verdict, String) {
    let found = plan(annotations).findings.into_iter().find(|finding| finding.key == key).unwrap();
    (found.verdict, found.says)
}

#[test]
fn sizes_of_bodies_that_ingress_nginx_leaves_out() {
    // nginx then has its own default.
    becomes(&[("proxy-body-size", "20000b")], "/route/buffer", json!({"maxSize": "1048576B"}));
    let told = |size: &str| verdict_of(&[("proxy-body-size", size)], "proxy-body-size").0;
    assert_eq!(
        (told("20000b"), told("8m"), told("64m"), told("0")),
        (Verdict::Differs, Verdict::Served, Verdict::Differs, Verdict::Served)
    );
    assert_eq!((told("8mb"), told("lots")), (Verdict::Refused, Verdict::Refused));
}

#[test]
fn a_verdict_says_what_a_value_that_cannot_be_read_becomes() {
    let long = "a".repeat(value::VALUE_BYTES_MAX + 1);
    let says = |key: &str| verdict_of(&[(key, &long)], key).1;
    assert!(says("app-root").ends_with("the default counts, and in ingress-nginx the value would"));
    assert!(says("ssl-ciphers").ends_with("the Ingress is not served, and ingress-nginx would serve it"));
    assert!(says("custom-headers").ends_with("its requests get 503"));
}

#[test]
fn names_of_cors_beside_a_star() {
    let cors = ("enable-cors", "true");
    let exposes = ("cors-expose-headers", "*, X-CustomResponseHeader");
    becomes(&[cors, exposes], "/route/cors/expose", json!(["*"]));
    becomes(&[cors, ("cors-allow-headers", "X-A,*")], "/route/cors/headers", json!(["*"]));
    becomes(&[cors, ("cors-allow-methods", "*, GET")], "/route/cors/methods", json!(["*"]));
    assert_eq!(verdict_of(&[cors, exposes], exposes.0).0, Verdict::Served);
    assert_eq!(verdict_of(&[cors, exposes, ("cors-allow-origin", "https://a.example")], exposes.0).0, Verdict::Differs);
}

#[test]
fn differences_that_depend_on_the_value() {
    let check = |key: &str, value: &str, verdict: Verdict| {
        assert_eq!(
            verdict_of(&[(key, value), ("mirror-target", "http://copy.shop.svc")], key).0,
            verdict,
            "{key}: {value}"
        );
    };
    check("proxy-http-version", "1.0", Verdict::Differs);
    check("proxy-http-version", "1.1", Verdict::NoEffect);
    check("connection-proxy-header", "close", Verdict::Differs);
    check("connection-proxy-header", "keep-alive", Verdict::NoEffect);
    check("proxy-send-timeout", "5", Verdict::Differs);
    check("proxy-send-timeout", "60", Verdict::NoEffect);
    check("mirror-request-body", "off", Verdict::Differs);
    check("mirror-request-body", "on", Verdict::Served);
    check("ssl-ciphers", "HIGH", Verdict::Differs);
}

#[test]
fn lists_of_addresses_close_their_routes_if_nobody_knows_the_addresses_of_clients() {
    let of = |data: &[(&str, &str)], annotation: (&str, &str)| {
        let globals = Globals::of(data.iter().copied());
        Plan::of([annotation], "shop", &["/"], with(&globals), &mut Known::default())
    };
    let unread = [("forwarded-for-header", "X-Client-IP"), ("use-forwarded-headers", "true")];
    let allows = ("allowlist-source-range", "192.0.2.0/24");
    let closed = of(&unread, allows);
    assert!(closed.closed.is_some_and(|why| why.contains("X-Client-IP")));
    assert_eq!(closed.findings[0].verdict, Verdict::Refused);
    assert!(of(&unread, ("denylist-source-range", "192.0.2.0/24")).closed.is_some());
    assert_eq!(of(&unread, ("proxy-body-size", "8m")).closed, None);
    assert_eq!(of(&unread[..1], allows).closed, None, "nobody is believed");
    assert!(
        of(&[&unread[..], &[("block-cidrs", "192.0.2.0/24")]].concat(), ("proxy-body-size", "8m")).closed.is_some()
    );
}

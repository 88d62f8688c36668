//! Objects of Ambassador and what they become.

use super::*;

fn translated(text: &str) -> Draft {
    Draft::of_text(text, |file| translate(&[file.to_owned()]))
}

#[test]
fn a_canary_with_everything() {
    let draft = translated(
        r#"
apiVersion: getambassador.io/v3alpha1
kind: Mapping
metadata: {name: shop, namespace: prod}
spec:
  hostname: shop.example.com
  prefix: /api/
  service: shop:8080
  timeout_ms: 5000
  retry_policy: {retry_on: 5xx, num_retries: 3}
  cors: {origins: ["https://a.example"], methods: "GET, POST", credentials: true, max_age: "600"}
  headers: {x-team: red}
---
apiVersion: getambassador.io/v2
kind: Mapping
metadata: {name: shop-canary, namespace: prod}
spec:
  host: shop.example.com
  prefix: /api/
  service: shop-canary:8080
  weight: 10
  headers: {x-team: red}
---
apiVersion: getambassador.io/v2
kind: Mapping
metadata: {name: grpc}
spec: {prefix: /pkg.Service/, rewrite: "", service: "greeter:50051", grpc: true, method: POST}
"#,
    );
    let text = draft.checked();
    for part in [
        "weight: 90",
        "weight: 10",
        "shop.prod:8080",
        "regex: /api/(.*)",
        "path: /${1}",
        "timeout: 5s",
        "attempts: 3",
        "x-team: red",
        "protocol: h2c",
        "https://a.example",
        "POST",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The longest prefix first.
    assert!(text.find("pkg.Service") < text.find("/api/"), "{text}");
}

#[test]
fn what_keeps_somebody_out() {
    let mapping =
        "apiVersion: getambassador.io/v2\nkind: Mapping\nmetadata: {name: a}\nspec: {prefix: /a/, service: a}\n";
    let auth = "---\napiVersion: getambassador.io/v2\nkind: AuthService\nmetadata: {name: auth}\nspec: {auth_service: 'auth:3000', proto: http, path_prefix: /check}\n";
    let text = translated(&format!("{mapping}{auth}")).checked();
    assert!(text.contains("external_auth") && text.contains("prefix: /check"), "{text}");
    let policy = "---\napiVersion: getambassador.io/v2\nkind: FilterPolicy\nmetadata: {name: jwt}\nspec: {rules: []}\n";
    let draft = translated(&format!("{mapping}{policy}"));
    assert!(draft.checked().contains("status: 403"), "{}", draft.checked());
    assert!(draft.told().iter().any(|note| note.contains("FilterPolicy jwt: closed")), "{:?}", draft.told());
    let unknown = mapping.replace("service: a}", "service: a, ip_allow: [10.0.0.0/8]}");
    let draft = translated(&unknown);
    assert!(draft.checked().contains("status: 403"), "{}", draft.checked());
    assert!(draft.told()[0].contains(":4: ip_allow: closed"), "{:?}", draft.told());
}

#[test]
fn a_mapping_in_the_annotation_of_a_service() {
    let draft = translated(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: qotm\n  annotations:\n    getambassador.io/config: |\n      ---\n      apiVersion: ambassador/v1\n      kind: Mapping\n      name: qotm\n      prefix: /qotm/\n      service: qotm\n",
    );
    assert!(draft.checked().contains("qotm:80"), "{}", draft.checked());
}

#[test]
fn forwarded_headers_are_those_of_the_listener() {
    let mapping = "apiVersion: getambassador.io/v3alpha1\nkind: Mapping\nmetadata: {name: a}\nspec:\n  hostname: a.example\n  prefix: /\n  service: a\n";
    let draft = translated(&format!("{mapping}  add_request_headers: {{x-forwarded-proto: https, x-a: b}}\n"));
    assert!(draft.checked().contains("x-a: b"), "{}", draft.checked());
    assert!(
        draft.told().iter().any(|note| note.contains("x-forwarded-proto: different: the listener's")),
        "{:?}",
        draft.told()
    );
}

const MAPPING: &str = "apiVersion: getambassador.io/v3alpha1\nkind: Mapping\nmetadata: {name: a}\nspec: {hostname: a.example, prefix: /a/, service: a}\n";

/// An object of Ambassador.
fn object(kind: &str, name: &str, spec: &str) -> String {
    format!("---\napiVersion: getambassador.io/v3alpha1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n")
}

/// No request reaches an endpoint by the translation of these objects, and a note has this part.
#[track_caller]
fn closes(text: &str, part: &str) {
    let draft = translated(text);
    let (text, told) = (draft.checked(), draft.told());
    assert!(!text.contains(" to:") && text.contains("status: 403"), "{text}\n{told:?}");
    assert!(told.iter().any(|note| note.contains("closed") && note.contains(part)), "{part}: {told:?}");
}

#[test]
fn objects_that_keep_somebody_out() {
    let check = |kind: &str, name: &str, spec: &str, part: &str| {
        closes(&format!("{MAPPING}{}", object(kind, name, spec)), part);
    };
    check("Module", "ambassador", "{config: {ip_allow: [{peer: 10.0.0.0/8}]}}", "ip_allow");
    check("Module", "ambassador", "{config: {ip_deny: [{remote: 10.0.0.0/8}]}}", "ip_deny");
    check("Module", "ambassador", "{config: {lua_scripts: x}}", "lua_scripts");
    check("Module", "authentication", "{auth_service: a}", "Module authentication");
    check(
        "Host",
        "a",
        "{hostname: a.example, tls: {ca_secret: ca}, requestPolicy: {insecure: {action: Route}}}",
        "ca_secret",
    );
    check(
        "Host",
        "a",
        "{hostname: a.example, tls: {cert_required: True}, requestPolicy: {insecure: {action: Route}}}",
        "cert_required",
    );
    check("Host", "a", "{hostname: a.example, mappingSelector: {matchLabels: {a: b}}}", "mappingSelector");
    check("TLSContext", "a", "{ca_secret: ca, cert_required: yes}", "ca_secret");
    check("TLSContext", "a", "{hosts: [a.example], redirect_cleartext_from: 8080}", "redirect_cleartext_from");
    check("Listener", "a", "{port: 8080, protocol: HTTP, hostBinding: {selector: {matchLabels: {a: b}}}}", "selector");
    check("Listener", "a", "{port: 8080, protocol: HTTPPROXY}", "neither HTTP nor HTTPS");
    check("AuthService", "a", "{auth_service: 'a:80', proto: grpc}", "proto");
    check("AuthService", "a", "{auth_service: 'a:80', add_auth_headers: {a: b}}", "add_auth_headers");
    check("Wasm", "a", "{}", "Wasm a");
    let auth = object("AuthService", "a", "{auth_service: 'a:80'}");
    closes(&format!("{MAPPING}{auth}{auth}"), "not the only one");
}

#[test]
fn mappings_that_are_closed() {
    let check =
        |keys: &str, part: &str| closes(&MAPPING.replace("service: a}", &format!("service: a, {keys}}}")), part);
    check("headers: {x-a: b}, regex_headers: {X-A: c.*}", "X-A");
    check("headers: {x-forwarded-proto: http}", "x-forwarded-proto");
    check("headers: {x-a: false}", "x-a");
    check("method: 'P.*', method_regex: true", "method");
    check("regex_rewrite: {pattern: /a, substitution: /b}", "regex_rewrite");
    check("tls: context", "TLSContext");
    check("v2BoolHeaders: [a]", "v2BoolHeaders");
    check("host_regex: yes", "host_regex");
    closes(&MAPPING.replace("a.example", "'a.*'"), "hostname");
    let limits = object("RateLimitService", "a", "{service: a}");
    closes(&format!("{}{limits}", MAPPING.replace("service: a}", "service: a, labels: {a: [b]}}")), "labels");
    closes(&MAPPING.replace("service: a}", "service: a, shadow: True}"), "Mapping a");
}

#[test]
fn requests_in_the_clear() {
    let of = |hosts: &str| translated(&format!("{MAPPING}{hosts}")).checked();
    let reject = "{hostname: a.example, requestPolicy: {insecure: {action: Reject}}}";
    let text = of(&object("Host", "a", reject));
    assert!(!text.contains(" to:") && !text.contains("redirect"), "{text}");
    // Without an action they are redirected, whether or not there is a Secret.
    let text = of(&object("Host", "a", "{hostname: a.example}"));
    assert!(!text.contains(" to:") && text.contains("scheme: https"), "{text}");
    let open = object("Host", "b", "{hostname: b.example, requestPolicy: {insecure: {action: Route}}}");
    let text = of(&format!("{}{open}", object("Host", "a", reject)));
    assert!(!text.contains(" to:"), "{text}");
    // What no Host has is not served.
    let text = of(&open);
    assert!(!text.contains(" to:"), "{text}");
}

#[test]
fn the_longest_prefix_counts_for_every_host() {
    let wide = MAPPING.replace("hostname: a.example, prefix: /a/", "prefix: /a/admin/, bypass_auth: yes");
    let text = translated(&format!("{MAPPING}---\n{wide}")).checked();
    let (admin, rest) = (text.find("/a/admin/(.*)").unwrap(), text.find("/a/(.*)").unwrap());
    assert!(admin < rest && text[..admin].contains("a.example"), "{text}");
}

#[test]
fn what_cannot_be_translated_as_a_whole() {
    let wrong = |text: &str, part: &str| {
        let file = std::env::temp_dir().join(format!("steelyard-ambassador-{}-{}", std::process::id(), part.len()));
        std::fs::write(&file, text).unwrap();
        let why = translate(std::slice::from_ref(&file)).unwrap_err();
        std::fs::remove_file(file).unwrap();
        assert!(why.contains(part), "{why}");
    };
    let other = MAPPING.replace("service: a}", "service: a, ambassador_id: [inner]}");
    wrong(&format!("{MAPPING}---\n{other}"), "ambassador_id is inner here and default before");
    wrong(&MAPPING.replace("service: a}", "service: a, shadow: maybe}"), "shadow: this is neither");
    wrong(&MAPPING.replace("service: a}", "service: a, service: b}"), "service: the key is there twice");
}

#[test]
fn headers_of_clients_are_replaced() {
    let keys = "service: a, remove_request_headers: [x-user], add_request_headers: {X-User: nobody, x-b: '%REQ(x)%'}}";
    let draft = translated(&MAPPING.replace("service: a}", keys));
    let text = draft.checked();
    assert!(text.contains("set:") && text.contains("X-User: nobody") && text.contains("- x-b"), "{text}");
}

/// Notes about these objects beside a Mapping that is served.
#[track_caller]
fn notes(text: &str) -> (String, String) {
    let draft = translated(text);
    let text = draft.checked();
    assert!(text.contains(" to:"), "{text}\n{:?}", draft.told());
    (text, draft.told().join("\n"))
}

#[test]
fn the_oldest_version_of_tls() {
    let of = |kind: &str, spec: &str| {
        let open = "{hostname: a.example, tlsSecret: {name: tls}, tlsContext: {name: c}, requestPolicy: {insecure: {action: Route}}TLS}";
        let host = object("Host", "a", &open.replace("TLS", if kind == "Host" { spec } else { "" }));
        let context = if kind == "Host" { String::new() } else { object("TLSContext", "c", spec) };
        notes(&format!("{MAPPING}{host}{context}"))
    };
    let (text, told) = of("Host", ", tls: {min_tls_version: v1.3, alpn_protocols: h2}");
    assert!(text.contains("min_version: 1.3"), "{text}");
    assert!(told.contains("alpn_protocols: different") && told.contains("tlsContext: left out"), "{told}");
    assert!(!of("Host", ", tls: {min_tls_version: v1.2}").0.contains("min_version"));
    assert!(of("TLSContext", "{min_tls_version: v1.3}").0.contains("min_version: 1.3"));
    closes(
        &format!(
            "{MAPPING}{}",
            object(
                "Host",
                "a",
                "{hostname: a.example, requestPolicy: {insecure: {action: Route}}, tls: {min_tls_version: v2}}"
            )
        ),
        "min_tls_version",
    );
}

#[test]
fn every_key_that_is_not_read_is_reported() {
    let check = |text: &str, parts: &[&str]| {
        let (text, told) = notes(text);
        for part in parts {
            assert!(told.contains(part), "{part}: {told}\n{text}");
        }
    };
    let keys = |keys: &str| MAPPING.replace("service: a}", &format!("service: a, {keys}}}"));
    check(
        &keys("circuit_breakers: [{max_requests: 7, max_retries: 8}, {priority: high}]"),
        &[":4: max_retries: left out", ":4: circuit_breakers: left out"],
    );
    check(
        &keys("resolver: endpoint, load_balancer: {policy: maglev, cookie: {name: a, ttl: 60s}}"),
        &["resolver", "ttl"],
    );
    check(
        &keys("retry_policy: {retry_on: nonsense, num_retries: 2, back_off: 1s}"),
        &["nonsense", "back_off: left out"],
    );
    let listener = object("Listener", "l", "{port: 8080, protocol: HTTP, securityModel: XFP, l7Depth: 2}");
    check(&format!("{MAPPING}{listener}"), &["l7Depth: left out: name the proxies"]);
    let host = "{hostname: '*', requestPolicy: {insecure: {action: Route, additionalPort: 8080}}}";
    check(&format!("{MAPPING}{}", object("Host", "h", host)), &["additionalPort: left out"]);
    let others = "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: i}\n---\n\
                  apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: r}\n---\n\
                  apiVersion: v1\nkind: Service\nmetadata: {name: s}\n";
    let told = notes(&format!("{MAPPING}{others}")).1;
    assert!(told.contains("Ingress i: left out") && told.contains("HTTPRoute r: left out"), "{told}");
    assert!(!told.contains("Service s"), "{told}");
    // What is read, and what says nothing, is not reported.
    let told = notes(&keys("docs: {ignored: true}, stats_name: x, timeout_ms: 1000, cors: {origins: '*'}")).1;
    assert_eq!(told, "");
}

#[test]
fn any_origin_beside_others() {
    let cors = "service: a, cors: {origins: ['https://a.example', '*'], methods: 'GET, *'}}";
    let text = translated(&MAPPING.replace("service: a}", cors)).checked();
    assert!(text.contains("- *\n") && !text.contains("https://a.example"), "{text}");
}

#[test]
fn an_unknown_key_of_any_mapping_is_reported() {
    let host = "{hostname: a.example, tls: {min_tls_version: v1.2}, requestPolicy: {insecure: {action: Route}}}";
    let spec = "service: a, retry_policy: {retry_on: 5xx}, cors: {origins: '*'}, load_balancer: {policy: maglev, cookie: {name: a}}, \
                circuit_breakers: [{max_requests: 1}], outlier_detection: {consecutive_5xx: 2}, headers: {x-a: b}}";
    let listener = "{port: 8080, protocol: HTTP, hostBinding: {namespace: {from: ALL}}}";
    let mapping = MAPPING.replace("service: a}", spec);
    let file = format!("{mapping}{}{}", object("Host", "h", host), object("Listener", "l", listener));
    let mut count = 0;
    for (place, _) in file.match_indices('{') {
        if file[..place].ends_with("metadata: ") || file[..place].ends_with(" headers: ") {
            continue;
        }
        let mut text = file.clone();
        text.insert_str(place + 1, "zzz: 1, ");
        let told = translated(&text).told().join("\n");
        assert!(told.contains("zzz"), "{}: {told}", &file[place..(place + 40).min(file.len())]);
        count += 1;
    }
    assert!(count > 10, "{count}");
}

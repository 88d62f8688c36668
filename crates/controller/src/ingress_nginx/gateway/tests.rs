//! What is written for Ingresses, and what is lost.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::super::catalogue::{KEYS, Verdict};
use super::super::options::{FLAGS, OPTIONS};
use super::super::plan::{Compat, Finding};
use super::{Written, lost, written};
use crate::ingress_nginx::PREFIX;
use crate::objects::ParametersSpec;
use crate::translate::clients::{ClientPolicy, Wrong};

fn ingress(name: &str, annotations: Value, path: &str) -> Value {
    let annotations: Map<String, Value> =
        annotations.as_object().unwrap().iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())).collect();
    let path =
        json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}});
    json!({
        "kind": "Ingress",
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": {"ingressClassName": "nginx", "rules": [{"host": format!("{name}.example"), "http": {"paths": [path]}}]},
    })
}

fn made(objects: &[Value]) -> Written {
    written(objects, "nginx", ("infra", "edge", "steelyard"), Compat::Safe)
}

#[test]
fn a_prefix_that_is_cut_off() {
    let made = made(&[ingress("a", json!({"rewrite-target": "/$2", "upstream-vhost": "in.example"}), "/api(/|$)(.*)")]);
    assert_eq!(made.lost, [""; 0]);
    let rule = &made.objects[2]["spec"]["rules"][0];
    assert_eq!(rule["matches"], json!([{"path": {"type": "PathPrefix", "value": "/api"}}]));
    let path = json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"});
    assert_eq!(
        rule["filters"],
        json!([{"type": "URLRewrite", "urlRewrite": {"path": path, "hostname": "in.example"}}])
    );
    let policy = &made.objects[3];
    assert_eq!((&policy["kind"], &policy["spec"]["targetRefs"][0]["name"]), (&json!("TrafficPolicy"), &json!("a")));
    let spec = policy["spec"].as_object().unwrap();
    assert!(config::TrafficPolicy::read(spec).is_ok());
}

#[test]
fn what_keeps_somebody_out_is_not_lost_in_silence() {
    let made = made(&[
        ingress("a", json!({"auth-tls-secret": "shop/ca"}), "/"),
        ingress("b", json!({"rewrite-target": "/x/$1"}), "/b/(.*)"),
        ingress("c", json!({"custom-http-errors": "404"}), "/"),
        ingress("d", json!({"permanent-redirect": "https://new.example/x"}), "/"),
    ]);
    let names: Vec<&str> = made
        .objects
        .iter()
        .filter(|object| object["kind"] == "HTTPRoute")
        .filter_map(|object| object["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["d", "c"]);
    for part in
        ["shop/a: nothing of it is written: auth-tls-secret", "a rewrite to /x/$1", "shop/c: custom-http-errors"]
    {
        assert!(made.lost.iter().any(|lost| lost.contains(part)), "{part}: {:?}", made.lost);
    }
}

#[test]
fn canaries() {
    let mut canary =
        ingress("canary", json!({"canary": "true", "canary-weight": "30", "canary-by-header": "x-next"}), "/");
    canary["spec"]["rules"][0]["host"] = json!("a.example");
    canary["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = json!("next");
    let made = made(&[ingress("a", json!({}), "/"), canary]);
    let rules = made.objects[2]["spec"]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), 3);
    let weights: Vec<(&str, u64)> = rules[2]["backendRefs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|to| (to["name"].as_str().unwrap(), to["weight"].as_u64().unwrap()))
        .collect();
    assert_eq!(weights, [("web", 70), ("next", 30)]);
}

#[test]
fn many_certificates_of_another_namespace() {
    let secured = |number: usize| {
        let mut ingress = ingress(&format!("a{number}"), json!({}), "/");
        let host = ingress["spec"]["rules"][0]["host"].clone();
        ingress["spec"]["tls"] = json!([{"hosts": [host], "secretName": format!("s{number}")}]);
        ingress
    };
    let objects: Vec<Value> = (0..70).map(secured).collect();
    let made = made(&objects);
    assert_eq!(made.lost, [""; 0]);
    let of_kind = |kind: &str| made.objects.iter().filter(|object| object["kind"] == kind).collect::<Vec<_>>();
    let listeners = |object: &Value| object["spec"]["listeners"].as_array().unwrap().len();
    assert_eq!(of_kind("Gateway").iter().map(|object| listeners(object)).collect::<Vec<_>>(), [64]);
    assert_eq!(of_kind("ListenerSet").iter().map(|object| listeners(object)).collect::<Vec<_>>(), [7]);
    let grants = of_kind("ReferenceGrant");
    assert_eq!(grants.len(), 10, "70 Secrets for each of two kinds");
    assert!(grants.iter().all(|grant| grant["metadata"]["namespace"] == "shop"));
    // Names of hosts are sorted as texts: a69.example is the last but three.
    let route = made.objects.iter().find(|object| object["metadata"]["name"] == "a69").unwrap();
    let parent = &route["spec"]["parentRefs"][0];
    assert_eq!((&parent["kind"], &parent["name"]), (&json!("ListenerSet"), &json!("edge-1")));
    let filters = route["spec"]["rules"][0]["filters"].to_string();
    assert!(filters.contains("strict-transport-security"), "{filters}");
    let redirect = made.objects.iter().find(|object| object["metadata"]["name"] == "a69-to-https").unwrap();
    assert_eq!(redirect.pointer("/spec/rules/0/filters/0/requestRedirect/statusCode"), Some(&json!(308)));
    // The names of all objects of a kind differ.
    let names: BTreeSet<String> =
        made.objects.iter().map(|object| format!("{} {}", object["kind"], object["metadata"])).collect();
    assert_eq!(names.len(), made.objects.len());
}

#[test]
fn a_host_without_a_certificate_is_not_redirected_to_nowhere() {
    let made = made(&[ingress("a", json!({"force-ssl-redirect": "true"}), "/")]);
    assert!(made.leaves_out && made.lost.iter().any(|lost| lost.contains("there is no certificate")));
}

fn config_map(data: Value) -> Value {
    json!({"kind": "ConfigMap", "metadata": {"name": "ingress-nginx-controller", "namespace": "ingress-nginx"}, "data": data})
}

fn deployment(flags: &[&str]) -> Value {
    let args = [&["/nginx-ingress-controller"], flags].concat();
    let container = json!({"args": args});
    json!({"kind": "Deployment", "spec": {"template": {"spec": {"containers": [container]}}}})
}

fn of_kind<'w>(made: &'w Written, kind: &str) -> Vec<&'w Value> {
    made.objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The `clients` of the GatewayParameters, which the controller takes.
fn clients(made: &Written) -> Value {
    let spec = &of_kind(made, "GatewayParameters")[0]["spec"];
    let read: ParametersSpec = serde_json::from_value(spec.clone()).unwrap();
    let mut wrong = Wrong::default();
    wrong.unknown(&read.others);
    ClientPolicy::of(&Default::default()).apply(&read.clients, &mut wrong);
    assert_eq!(wrong.all, [""; 0], "{spec}");
    spec["clients"].clone()
}

#[test]
fn clients_are_treated_as_before() {
    let plain = made(&[ingress("a", json!({}), "/")]);
    let usual = json!({
        "forwardedHeaders": "IngressNginx", "xRealIp": true, "requestId": {"keep": "Always"}, "headerNames": "Strict",
    });
    assert_eq!(clients(&plain), usual);
    let gateway = of_kind(&plain, "Gateway")[0];
    let named = &gateway["spec"]["infrastructure"]["parametersRef"];
    assert_eq!(named, &json!({"group": "steelyard.io", "kind": "GatewayParameters", "name": "edge"}));
    assert_eq!(of_kind(&plain, "GatewayParameters")[0]["metadata"], gateway["metadata"]);
    assert!(plain.notes.iter().any(|note| note.contains("its flags are not known")), "{:?}", plain.notes);

    let check = |data: Value, expect: &[(&str, Value)], lost: &[&str]| {
        let made = made(&[ingress("a", json!({}), "/"), config_map(data.clone())]);
        let clients = clients(&made);
        for (name, value) in expect {
            assert_eq!(&clients[*name], value, "{data}");
        }
        assert_eq!(made.lost.len(), lost.len(), "{data}: {:?}", made.lost);
        assert!(lost.iter().zip(&made.lost).all(|(part, lost)| lost.contains(part)), "{data}: {:?}", made.lost);
    };
    check(
        json!({"use-forwarded-headers": "true", "proxy-real-ip-cidr": "10.0.0.0/8"}),
        &[("trustedProxies", json!(["10.0.0.0/8"]))],
        &[],
    );
    check(json!({"proxy-real-ip-cidr": "10.0.0.0/8"}), &[("trustedProxies", Value::Null)], &[]);
    check(json!({"use-forwarded-headers": "true"}), &[("trustedProxies", Value::Null)], &["trustedProxies"]);
    check(json!({"use-proxy-protocol": "true"}), &[("proxyProtocol", json!("Required"))], &[]);
    check(json!({"enable-underscores-in-headers": "true"}), &[("headerNames", json!("Underscores"))], &[]);
    check(json!({"ignore-invalid-headers": "false"}), &[("headerNames", json!("Any"))], &[]);
    check(
        json!({"client-header-timeout": "20", "client-body-timeout": "30", "keep-alive": "40"}),
        &[("timeouts", json!({"header": "20s", "stall": "30s", "idle": "40s"}))],
        &[],
    );
    check(json!({"keep-alive": "0"}), &[("timeouts", Value::Null)], &["keep-alive"]);
    check(json!({"large-client-header-buffers": "4 16k"}), &[("limits", json!({"headerSize": "64Ki"}))], &[]);
    check(json!({"large-client-header-buffers": "4 16m"}), &[("limits", Value::Null)], &["headerSize"]);
    check(json!({"http2-max-concurrent-streams": "7"}), &[("limits", json!({"streamsPerConnection": 7}))], &[]);
    check(json!({"http2-max-concurrent-streams": "70000"}), &[("limits", Value::Null)], &["streamsPerConnection"]);
    check(json!({"ssl-protocols": "TLSv1.3"}), &[("minTlsVersion", json!("1.3"))], &[]);
    check(json!({"ssl-protocols": "tlsv1.3"}), &[("minTlsVersion", json!("1.3"))], &[]);
    check(json!({"ssl-protocols": "tlsv1.2 tlsv1.3"}), &[("minTlsVersion", Value::Null)], &[]);
    check(json!({"ssl-protocols": "TLSv1.2 TLSv1.3"}), &[("minTlsVersion", Value::Null)], &[]);
    check(json!({"ssl-protocols": "TLSv1.1 TLSv1.2"}), &[("minTlsVersion", Value::Null)], &["TLS 1.2 and 1.3"]);
}

#[test]
fn what_the_controller_does_and_the_objects_do_not() {
    let lost =
        |data: Value, flags: &[&str]| made(&[ingress("a", json!({}), "/"), config_map(data), deployment(flags)]).lost;
    let of_option = |name: &str, value: &str| lost(json!({name: value}), &[]);
    for (name, value) in [
        ("proxy-add-original-uri-header", "true"),
        ("http-snippet", "gzip on;"),
        ("main-snippet", "a b;"),
        ("stream-snippet", "a b;"),
        ("use-port-in-redirects", "true"),
        ("add-headers", "ingress-nginx/none"),
        ("skip-access-log-urls", "/x"),
        ("log-format-upstream", "$host"),
    ] {
        let found = of_option(name, value);
        assert!(found.len() == 1 && found[0].starts_with(&format!("ConfigMap: {name}: ")), "{name}: {found:?}");
    }
    for (name, value) in
        [("use-port-in-redirects", "false"), ("proxy-add-original-uri-header", "false"), ("hsts", "false")]
    {
        assert_eq!(of_option(name, value), [""; 0], "{name}");
    }
    for name in [
        "tcp-services-configmap",
        "udp-services-configmap",
        "default-backend-service",
        "default-ssl-certificate",
        "publish-service",
        "watch-namespace",
    ] {
        let found = lost(json!({}), &[&format!("--{name}=a/b")]);
        assert!(found.len() == 1 && found[0].starts_with(&format!("flag --{name}: ")), "{name}: {found:?}");
        assert!(!found[0].contains("--ingress-nginx"), "the flags of another mode: {found:?}");
    }
    let flags = ["--http-port=80", "--election-id=x", "--configmap=a/ingress-nginx-controller", "--update-status=true"];
    assert_eq!(lost(json!({}), &flags), [""; 0]);
    assert_eq!(lost(json!({}), &["--http-port=8080", "--update-status=false"]).len(), 2);
    let relative = made(&[ingress("a", json!({"relative-redirects": "true"}), "/")]);
    assert!(relative.lost[0].starts_with("shop/a: relative-redirects: "), "{:?}", relative.lost);
}

/// Ingresses of one host: of each, its name, its annotations, and its path.
fn of_host(ingresses: &[(&str, Value, &str)]) -> Written {
    let of = |(name, annotations, path): &(&str, Value, &str)| {
        let mut ingress = ingress(name, annotations.clone(), path);
        ingress["spec"]["rules"][0]["host"] = json!("a.example");
        ingress["spec"]["rules"][0]["http"]["paths"][0]["pathType"] = json!("ImplementationSpecific");
        ingress
    };
    made(&ingresses.iter().map(of).collect::<Vec<_>>())
}

#[test]
fn an_expression_does_not_take_the_requests_of_a_prefix() {
    let cut = || json!({"rewrite-target": "/$2", "whitelist-source-range": "10.0.0.0/8"});
    let matches = |made: &Written, name: &str| -> Vec<(String, String)> {
        let route = of_kind(made, "HTTPRoute").into_iter().find(|route| route["metadata"]["name"] == name).unwrap();
        let rules = route["spec"]["rules"].as_array().unwrap().iter();
        let paths = rules.flat_map(|rule| rule["matches"].as_array().unwrap()).map(|one| &one["path"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        paths.map(|path| (text(&path["type"]), text(&path["value"]))).collect()
    };
    let is_one = |found: &(String, String), kind: &str, path: &str| found.0 == kind && found.1 == path;
    // `/` comes last, as a prefix does.
    let both = of_host(&[("p", cut(), "/admin(/|$)(.*)"), ("o", json!({}), "/")]);
    assert!(!both.leaves_out);
    let found = matches(&both, "o");
    assert!(found.len() == 1 && is_one(&found[0], "PathPrefix", "/"), "{found:?}");
    let found = matches(&both, "p");
    assert!(found.len() == 2 && is_one(&found[1], "PathPrefix", "/admin"), "{found:?}");
    // ingress-nginx takes /ADMIN for it, too. It must not be served by the other one.
    assert!(both.lost.iter().any(|lost| lost.contains("case counts in the prefix /admin")), "{:?}", both.lost);
    let other = regex::Regex::new(&format!("^(?:{})$", found[0].1)).unwrap();
    for path in ["/ADMIN", "/Admin/x", "/admiN/x/y", "/aDmIn/"] {
        assert!(other.is_match(path), "{path}");
    }
    for path in ["/admin", "/admin/x", "/ADMINX", "/x", "/admin/X"] {
        assert!(!other.is_match(path), "{path}");
    }
    let route = of_kind(&both, "HTTPRoute").into_iter().find(|route| route["metadata"]["name"] == "p").unwrap();
    assert!(route["spec"]["rules"][0]["backendRefs"].is_null());
    // Nothing else is on the host, and nothing else takes it.
    let alone = of_host(&[("p", cut(), "/admin(/|$)(.*)"), ("o", cut(), "/other(/|$)(.*)")]);
    assert!(!alone.leaves_out);
    assert_eq!(alone.lost, [""; 0]);
    assert_eq!(matches(&alone, "p").len(), 1);
    // Another host may take it.
    for host in ["", "*.example"] {
        let mut other = ingress("o", json!({}), "/");
        other["spec"]["rules"][0]["host"] = json!(host);
        let wide = made(&[ingress("p", cut(), "/admin(/|$)(.*)"), other]);
        assert_eq!((wide.leaves_out, matches(&wide, "p").len()), (false, 2), "{host}: {:?}", wide.lost);
    }
    // An expression that matches nothing of what the prefix does.
    let apart = of_host(&[("p", cut(), "/admin(/|$)(.*)"), ("o", json!({}), "/shop")]);
    assert!(!apart.leaves_out, "{:?}", apart.lost);
    let found = matches(&apart, "o");
    assert!(is_one(&found[0], "RegularExpression", "(?i:/shop)(?s:.*)"), "{found:?}");

    for other in ["/(.*)", "/ad", "/Admin", "/admin/x", "/ADMIN/x", "/a.*", "(.*)", "/\u{e9}", "/ADMIN(/|$)(.*)"] {
        let made = of_host(&[("p", cut(), "/admin(/|$)(.*)"), ("o", json!({"use-regex": "true"}), other)]);
        let is_told = |lost: &String| lost.contains("would come before a prefix");
        assert!(made.leaves_out && made.lost.iter().any(is_told), "{other}: {:?}", made.lost);
    }
    let both = of_host(&[("p", cut(), "/admin(/|$)(.*)"), ("o", cut(), "/ADMIN(/|$)(.*)")]);
    assert!(both.leaves_out);
    let long = format!("/{}(/|$)(.*)", "a".repeat(200));
    let made = of_host(&[("p", cut(), &long), ("o", json!({}), "/")]);
    assert!(made.leaves_out && made.lost.iter().any(|lost| lost.contains("too long for a rule")), "{:?}", made.lost);
    let nested = of_host(&[("p", cut(), "/api/v2(/|$)(.*)"), ("o", cut(), "/api(/|$)(.*)")]);
    assert_eq!((nested.leaves_out, matches(&nested, "p").len(), matches(&nested, "o").len()), (false, 2, 1));
    let nested = of_host(&[("p", cut(), "/api/v2(/|$)(.*)"), ("o", cut(), "/API(/|$)(.*)")]);
    assert!(nested.leaves_out);
}

#[test]
fn what_the_api_server_does_not_accept() {
    let check = |annotations: Value, path: &str, expect: Option<&str>| {
        let made = of_host(&[("p", annotations.clone(), path), ("o", json!({}), "/")]);
        let told = |part: &str| made.lost.iter().any(|lost| lost.starts_with("shop/p: ") && lost.contains(part));
        assert_eq!(made.leaves_out, expect.is_some(), "{annotations} {path}: {:?}", made.lost);
        assert!(expect.is_none_or(told), "{annotations} {path}: {:?}", made.lost);
    };
    let long = format!("/{}", "x".repeat(1024));
    for path in [
        "/adm in",
        "/api//admin",
        "/a{b}",
        "/a|b",
        "/x%2fy",
        "/x%2Fy",
        "/x#y",
        "/é",
        "/a/./b",
        "/a/../b",
        "/a/..",
        "/a/.",
        "/%zz",
        "/%4",
        "foo",
        "/a?b",
        &long,
    ] {
        check(json!({}), path, Some("is not accepted by the API server: a path"));
    }
    for path in ["/a;b=c", "/a.b", "/..a", "/%41%c3%a9", "/a:b@c", &"/y".repeat(512)] {
        check(json!({}), path, None);
    }
    for host in ["admin.internal:8080", "a_b", "-a.example", "a..b", "a.example."] {
        check(json!({"upstream-vhost": host}), "/x", Some("is not accepted by the API server: a host"));
    }
    check(json!({"upstream-vhost": "Admin.internal"}), "/x", None);
    check(json!({"upstream-vhost": "10.0.0.1"}), "/x", None);
    check(json!({"permanent-redirect": "https://A.Example/x"}), "/x", None);
    check(json!({"permanent-redirect": "https://a_b.example/x"}), "/x", Some("a host"));
    check(json!({"permanent-redirect": "https://a.example:0/x"}), "/x", Some("a port"));

    let named = |length: usize| {
        let mut ingress = ingress("a", json!({"force-ssl-redirect": "true"}), "/");
        ingress["metadata"]["name"] = json!("a".repeat(length));
        ingress["spec"]["tls"] = json!([{"hosts": ["a.example"], "secretName": "s"}]);
        made(&[ingress])
    };
    assert!(!named(244).leaves_out);
    let long = named(245);
    assert!(long.leaves_out && long.lost.iter().any(|lost| lost.contains("the name of an object")), "{:?}", long.lost);
}

#[test]
fn hosts_and_parts_of_an_ingress_have_names_of_their_own() {
    let mut ingress = ingress(
        "a",
        json!({"server-alias": (0..20).map(|n| format!("h{n}.example")).collect::<Vec<_>>().join(",")}),
        "/",
    );
    let path = |number: usize| json!({"path": format!("/p{number}"), "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}});
    let rule = |host: usize| json!({"host": format!("r{host}.example"), "http": {"paths": (0..40).map(path).collect::<Vec<_>>()}});
    ingress["spec"]["rules"] = (0..3).map(rule).collect();
    let made = made(&[ingress]);
    let routes = of_kind(&made, "HTTPRoute");
    let names: BTreeSet<&str> = routes.iter().filter_map(|route| route["metadata"]["name"].as_str()).collect();
    assert_eq!((names.len(), routes.len()), (18, 18), "{names:?}");
}

/// Nobody can add a setting and forget what becomes of it here: what no list has is lost, and this is all that is.
#[test]
fn all_that_counts_as_lost() {
    let with_effect = |verdict: Verdict| matches!(verdict, Verdict::Served | Verdict::Differs);
    let of = |name: &str, verdict: Verdict| Finding::new(name, "x", verdict, "says".to_owned());
    let options: Vec<Finding> =
        OPTIONS.iter().filter(|one| with_effect(one.verdict)).map(|one| of(one.name, one.verdict)).collect();
    let flags: Vec<Finding> =
        FLAGS.iter().filter(|one| with_effect(one.verdict)).map(|one| of(one.name, one.verdict)).collect();
    let keys: Vec<Finding> =
        KEYS.iter().filter(|one| with_effect(one.verdict)).map(|one| of(one.name, one.verdict)).collect();
    let name = |text: String| text.split(": ").find(|part| *part != "ConfigMap").map(str::to_owned);
    let of_controller: Vec<String> = lost::of_controller(&options, &flags).into_iter().filter_map(name).collect();
    assert_eq!(
        of_controller,
        [
            "use-port-in-redirects",
            "relative-redirects",
            "ssl-reject-handshake",
            "use-http2",
            "add-headers",
            "disable-access-log",
            "bind-address",
            "flag --watch-namespace",
            "flag --default-ssl-certificate",
            "flag --default-backend-service",
            "flag --tcp-services-configmap",
            "flag --udp-services-configmap",
            "flag --publish-service",
            "flag --publish-status-address",
            "flag --http-port",
            "flag --https-port",
            "flag --enable-metrics",
            "flag --update-status",
            "flag --healthz-port",
            "flag --shutdown-grace-period",
            "flag --healthz-host",
            "flag --health-check-path",
        ]
    );
    let of_annotations: Vec<String> = lost::of_annotations(&keys).filter_map(name).collect();
    assert_eq!(of_annotations, ["use-port-in-redirects", "relative-redirects"]);
    // What is refused is lost in any case, unless a sentence about each Ingress says so.
    let refused: Vec<Finding> = OPTIONS.iter().map(|one| of(one.name, Verdict::Refused)).collect();
    assert_eq!(lost::of_controller(&refused, &[]).len(), OPTIONS.len() - 4);
}

#[test]
fn the_other_one_with_www() {
    let annotations = json!({"from-to-www-redirect": "true"});
    let plain = made(&[ingress("a", annotations.clone(), "/"), ingress("www.b", annotations.clone(), "/")]);
    assert_eq!(plain.lost, [""; 0]);
    let found: Vec<(&Value, &Value)> = of_kind(&plain, "HTTPRoute")
        .into_iter()
        .filter(|route| route["metadata"]["name"].as_str().unwrap().ends_with("-www"))
        .map(|route| (&route["spec"]["hostnames"], &route["spec"]["rules"]))
        .collect();
    let rules = |host: &str| json!([{"filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": host, "statusCode": 308}}]}]);
    let expect = [(json!(["b.example"]), rules("www.b.example")), (json!(["www.a.example"]), rules("a.example"))];
    assert_eq!(found, expect.iter().map(|(hosts, rules)| (hosts, rules)).collect::<Vec<_>>());
    // No policy for it, which may ask for a password.
    assert!(
        of_kind(&plain, "TrafficPolicy")
            .iter()
            .all(|policy| !policy["spec"]["targetRefs"].to_string().contains("-www"))
    );

    // Another Ingress serves it.
    let mut other = ingress("b", json!({}), "/");
    other["spec"]["rules"][0]["host"] = json!("www.a.example");
    let taken = made(&[ingress("a", annotations.clone(), "/"), other]);
    assert_eq!(of_kind(&taken, "HTTPRoute").len(), 2);

    // Over HTTPS it needs a certificate.
    let secured = |hosts: Value| {
        let mut ingress = ingress("a", annotations.clone(), "/");
        ingress["spec"]["tls"] = json!([{"hosts": hosts, "secretName": "s"}]);
        made(&[ingress])
    };
    let of_www = |made: &Written| {
        let route = of_kind(made, "HTTPRoute").into_iter().find(|route| route["metadata"]["name"] == "a-www").unwrap();
        route["spec"]["parentRefs"].as_array().unwrap().len()
    };
    let both = secured(json!(["a.example", "www.a.example"]));
    assert_eq!((of_www(&both), both.lost.len()), (2, 0), "{:?}", both.lost);
    let one = secured(json!(["a.example"]));
    assert_eq!(of_www(&one), 1);
    assert!(one.lost[0].contains("from-to-www-redirect: https://www.a.example"), "{:?}", one.lost);
}

#[test]
fn paths_that_are_not_redirected_to_https() {
    let check = |data: Value, paths: &[&str], expect: &[&str]| {
        let mut ingress = ingress("a", json!({}), "/");
        ingress["spec"]["tls"] = json!([{"hosts": ["a.example"], "secretName": "s"}]);
        let path = ingress["spec"]["rules"][0]["http"]["paths"][0].clone();
        let paths = paths.iter().map(|text| {
            let mut path = path.clone();
            path["path"] = json!(text);
            path
        });
        ingress["spec"]["rules"][0]["http"]["paths"] = paths.collect();
        let made = made(&[ingress, config_map(data)]);
        assert_eq!(made.lost, [""; 0]);
        let open = of_kind(&made, "HTTPRoute").into_iter().find(|route| route["metadata"]["name"] == "a-open");
        let rules = open.map(|route| route["spec"]["rules"].as_array().unwrap().clone()).unwrap_or_default();
        let found: Vec<&str> =
            rules.iter().filter_map(|rule| rule.pointer("/matches/0/path/value")?.as_str()).collect();
        assert_eq!(found, expect);
        let policy = of_kind(&made, "TrafficPolicy")[0]["spec"]["targetRefs"].to_string();
        assert_eq!(
            policy.contains("a-open"),
            !expect.is_empty(),
            "what holds for the paths holds for them over HTTP, too"
        );
        if let Some(open) = open {
            assert_eq!(open["spec"]["parentRefs"][0]["sectionName"], "http");
        }
    };
    check(json!({}), &["/", "/.well-known/acme-challenge/token"], &["/.well-known/acme-challenge/token"]);
    check(json!({}), &["/", "/.well-known"], &[]);
    check(json!({"no-tls-redirect-locations": "/health,/open"}), &["/openapi", "/x"], &["/openapi"]);
}

#[test]
fn a_slash_at_the_end_of_a_path() {
    let check = |path: &str, kind: &str, expect: usize| {
        let mut ingress = ingress("a", json!({}), path);
        ingress["spec"]["rules"][0]["http"]["paths"][0]["pathType"] = json!(kind);
        let made = made(&[ingress]);
        assert_eq!(made.lost.len(), expect, "{path} {kind}: {:?}", made.lost);
        assert!(made.lost.iter().all(|lost| lost.contains("/foo/: requests for /foo are served")), "{:?}", made.lost);
    };
    check("/foo/", "Prefix", 1);
    check("/foo/", "ImplementationSpecific", 1);
    check("/foo/", "Exact", 0);
    check("/foo", "Prefix", 0);
    check("/", "Prefix", 0);
}

#[test]
fn services_over_tls_need_a_policy() {
    let made = made(&[
        ingress("a", json!({"auth-url": "https://auth.shop.svc/check"}), "/"),
        ingress("b", json!({"mirror-target": "https://copy.shop.svc"}), "/"),
        ingress("c", json!({"auth-url": "http://auth.shop.svc/check", "mirror-target": "http://copy.shop.svc"}), "/"),
    ]);
    let of: Vec<&String> = made.lost.iter().filter(|lost| lost.contains("BackendTLSPolicy")).collect();
    assert_eq!(of.len(), 2, "{of:?}");
    for part in ["shop/a: auth-url: TLS", "shop/b: mirror-target: TLS"] {
        assert!(of.iter().any(|lost| lost.contains(part)), "{of:?}");
    }
}

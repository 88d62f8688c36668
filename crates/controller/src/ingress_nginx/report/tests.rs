//! Reports, and what they make of wrong objects.

use serde_json::json;

use super::super::PREFIX;
use super::*;

fn ingress(name: &str, annotations: &Value, path: &str) -> Value {
    let annotations: serde_json::Map<String, Value> =
        annotations.as_object().unwrap().iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())).collect();
    json!({
        "kind": "Ingress",
        "metadata": {"name": name, "namespace": "shop", "annotations": annotations},
        "spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example", "http": {"paths": [{"path": path, "pathType": "Prefix"}]}}]},
    })
}

#[test]
fn a_report() {
    let objects = [
        ingress("a", &json!({"proxy-body-size": "8m"}), "/a"),
        ingress("b", &json!({"service-upstream": "true", "rewrite-target": "/$1"}), "/b/(.*)"),
        ingress("c", &json!({"fastcgi-index": "index.php"}), "/c"),
        ingress("d", &json!({"auth-tls-secret": "other/ca"}), "/d"),
        ingress("e", &json!({"limit-rps": "x<y"}), "/e"),
        ingress("f", &json!({}), "/x(?!y)"),
        json!({"kind": "Ingress", "metadata": {"name": "other"}, "spec": {"ingressClassName": "other"}}),
        json!({"kind": "ConfigMap", "metadata": {"name": "ingress-nginx-controller"}, "data": {"enable-syslog": "true", "hsts": "false"}}),
        json!({"kind": "Deployment", "metadata": {"name": "c"}, "spec": {"template": {"spec": {"containers": [
            {"args": ["/nginx-ingress-controller", "--configmap=$(POD_NAMESPACE)/ingress-nginx-controller", "--udp-services-configmap=a/b", "--disable-catch-all=true"]}
        ]}}}}),
    ];
    let mut objects = objects;
    objects[3]["spec"]["rules"][0]["host"] = json!("d.example");
    let report = Report::of(&objects, "nginx", Compat::Safe);
    let expect =
        Score { ingresses: 6, served: 1, differs: 1, refused: 1, closed: 2, dropped: 1, options: 2, percent: 25 };
    assert_eq!(report.score, expect);
    assert!(!report.is_good());
    let text = report.page(Format::Text);
    for part in [
        "6 Ingresses: 1 served, 1 served with a difference, 1 served without an annotation, 2 closed (403), 1 not served; 2 keys of the ConfigMap and flags refused; score 25 %",
        "shop/f: closed (403): the path /x(?!y) of a.example cannot be matched",
        "shop/d: closed (403): auth-tls-secret is refused",
        "all paths of a.example are regular expressions, compared without case and open at their ends, because of shop/b",
        "a.example/x(?!y) of shop/f cannot be matched here (it looks around or refers back, or is no expression): paths that begin with /x are",
        "enable-syslog = true: refused",
        "udp-services-configmap = a/b: served with a difference",
        "disable-catch-all = true: refused",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let json: Value = serde_json::from_str(&report.page(Format::Json)).unwrap();
    assert_eq!(json["score"]["percent"], 25);
    assert!(report.page(Format::Markdown).contains("| auth-tls-secret | refused | shop/d |"));
    let html = report.page(Format::Html);
    assert!(html.contains("x&lt;y") && !html.contains("x<y"));
}

fn outcomes(objects: &[Value]) -> Vec<(String, Outcome)> {
    let report = Report::of(objects, "nginx", Compat::Safe);
    report.ingresses.into_iter().map(|ingress| (ingress.name, ingress.outcome)).collect()
}

#[test]
fn what_holds_for_a_host_closes_all_of_its_ingresses() {
    let allows = json!({"kind": "ConfigMap", "metadata": {"name": "ingress-nginx-controller"},
        "data": {"allow-snippet-annotations": "true", "annotations-risk-level": "Critical"}});
    for annotations in [
        json!({"auth-tls-secret": "other/ca"}),
        json!({"auth-tls-secret": "off"}),
        json!({"server-snippet": "deny all;"}),
        json!({"server-snippet": "include /etc/nginx/deny.conf;"}),
        // The path of the other Ingress is this location, so nginx would refuse its file.
        json!({"server-snippet": "location = /a { return 403; }"}),
        json!({"server-snippet": "location ^~ / { return 403; } location ~ x { return 404; }"}),
    ] {
        let mut elsewhere = ingress("elsewhere", &json!({}), "/");
        elsewhere["spec"]["rules"][0]["host"] = json!("b.example");
        let objects = [ingress("a", &json!({}), "/a"), ingress("b", &annotations, "/b"), elsewhere, allows.clone()];
        let expect = [("shop/a", Outcome::Closed), ("shop/b", Outcome::Closed), ("shop/elsewhere", Outcome::Served)];
        assert_eq!(outcomes(&objects), expect.map(|(name, outcome)| (name.to_owned(), outcome)), "{annotations}");
    }
}

#[test]
fn the_oldest_ingress_of_a_host_says_which_certificates_its_clients_show() {
    let older = json!({"auth-tls-secret": "shop/ca", "auth-tls-verify-client": "optional"});
    let check = |younger: Value, expect: Outcome| {
        let mut objects = [ingress("a", &older, "/a"), ingress("b", &younger, "/b")];
        objects[0]["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
        objects[1]["metadata"]["creationTimestamp"] = json!("2021-01-01T00:00:00Z");
        let found = outcomes(&objects);
        assert_eq!(found[0].1, Outcome::Differs, "{younger}");
        assert_eq!(found[1].1, expect, "{younger}");
    };
    check(older.clone(), Outcome::Differs);
    check(json!({"auth-tls-secret": "shop/ca"}), Outcome::Closed);
    check(json!({"auth-tls-secret": "shop/other", "auth-tls-verify-client": "optional"}), Outcome::Closed);
    check(json!({"auth-tls-secret": "shop/ca", "auth-tls-verify-client": "optional_no_ca"}), Outcome::Differs);
    let mut elsewhere = ingress("b", &json!({"auth-tls-secret": "shop/other"}), "/");
    elsewhere["spec"]["rules"][0]["host"] = json!("b.example");
    let page = Report::of(&[ingress("a", &older, "/a"), elsewhere], "nginx", Compat::Safe).page(Format::Text);
    assert!(page.contains("b.example is closed (403) unless both Secrets say the same"), "{page}");
}

fn controller(arguments: &[&str]) -> Value {
    let arguments: Vec<&str> = ["/nginx-ingress-controller"].iter().chain(arguments).copied().collect();
    json!({"kind": "Deployment", "metadata": {"name": "c"}, "spec": {"template": {"spec": {"containers": [{"args": arguments}]}}}})
}

#[test]
fn annotations_with_the_prefix_of_the_flag() {
    let with = |name: &str, value: &str| {
        let mut object = ingress("a", &json!({}), "/");
        object["metadata"]["annotations"][name] = json!(value);
        object
    };
    let digest = with("foo.io/auth-type", "digest");
    let flag = controller(&["--annotations-prefix=foo.io"]);
    let report = Report::of(&[digest.clone(), flag.clone()], "nginx", Compat::Safe);
    assert_eq!(report.ingresses[0].outcome, Outcome::Closed, "{}", report.page(Format::Text));
    assert_eq!(report.ingresses[0].annotations[0].key, "auth-type");
    // Nobody reads those with the usual prefix then.
    let usual = with("nginx.ingress.kubernetes.io/auth-type", "digest");
    let report = Report::of(&[usual, flag], "nginx", Compat::Safe);
    assert_eq!(report.ingresses[0].outcome, Outcome::Served);
    // Without the flags, the report says what it does not know.
    let page = Report::of(std::slice::from_ref(&digest), "nginx", Compat::Safe).page(Format::Text);
    assert!(page.contains("look like those of ingress-nginx, and are not read: foo.io"), "{page}");
    let page =
        Report::of(&[digest, controller(&["--annotations-prefix=$(P)"])], "nginx", Compat::Safe).page(Format::Text);
    assert!(page.contains("annotations-prefix = $(P): refused: expected a DNS name"), "{page}");
}

#[test]
fn annotations_whose_prefix_nobody_knows() {
    let check = |annotation: &str, workloads: &[Value], verdict: Verdict, is_good: bool| {
        let mut object = ingress("a", &json!({}), "/");
        object["metadata"]["annotations"][annotation] = json!("true");
        let report = Report::of(&[&[object], workloads].concat(), "nginx", Compat::Safe);
        let page = report.page(Format::Text);
        assert_eq!(
            report.ingresses[0].annotations.first().map(|one| one.verdict),
            Some(verdict),
            "{annotation}: {page}"
        );
        assert_eq!((report.is_good(), report.score.percent == 100), (is_good, is_good), "{annotation}: {page}");
        page.contains("look like those of ingress-nginx, and are not read")
    };
    // The default of early versions, and one of a flag.
    for prefix in ["ingress.kubernetes.io", "foo.io", "other.ingress.kubernetes.io"] {
        for name in ["auth-type", "whitelist-source-range", "auth-tls-secret"] {
            assert!(check(&format!("{prefix}/{name}"), &[], Verdict::Refused, false));
        }
        assert!(check(&format!("{prefix}/proxy-body-size"), &[], Verdict::NoEffect, true));
    }
    // The flags are known, and another controller reads these.
    assert!(!check("ingress.kubernetes.io/auth-type", &[controller(&[])], Verdict::NoEffect, true));
    assert!(!check("alb.ingress.kubernetes.io/auth-type", &[], Verdict::NoEffect, true));
    assert!(!check("haproxy.org/auth-type", &[], Verdict::NoEffect, true));
}

#[test]
fn workloads_with_different_prefixes() {
    let check = |flags: &[&[&str]], is_good: bool| {
        let workloads: Vec<Value> = flags.iter().map(|flags| controller(flags)).collect();
        let report =
            Report::of(&[&[ingress("a", &json!({}), "/")], workloads.as_slice()].concat(), "nginx", Compat::Safe);
        let page = report.page(Format::Text);
        assert_eq!((report.is_good(), report.score.percent == 100), (is_good, is_good), "{page}");
        assert_eq!(page.contains("refused: several workloads of ingress-nginx read annotations"), !is_good, "{page}");
    };
    check(&[&["--annotations-prefix=foo.io"], &["--annotations-prefix=foo.io"]], true);
    check(&[&["--annotations-prefix=foo.io"], &["--annotations-prefix=bar.io"]], false);
    check(&[&[], &["--annotations-prefix=bar.io"]], false);
}

#[test]
fn a_rewrite_with_a_variable() {
    let check = |target: &str, expect: Outcome| {
        let found = outcomes(&[ingress("a", &json!({"rewrite-target": target}), "/(.*)")]);
        assert_eq!(found[0].1, expect, "{target}");
    };
    check("/v1/$1", Outcome::Served);
    for target in ["/v1$uri", "/$host/$1", "/$request_id", "/$a", "/$0", "/a$", "https://$host/$1"] {
        check(target, Outcome::Closed);
    }
}

#[test]
fn a_snippet_is_served_only_if_it_is() {
    let allows = json!({"kind": "ConfigMap", "metadata": {"name": "ingress-nginx-controller"},
        "data": {"allow-snippet-annotations": "true", "annotations-risk-level": "Critical", "hide-headers": "X-Hidden"}});
    let check = |snippet: &str, verdict: Verdict, outcome: Outcome| {
        let objects = [ingress("a", &json!({"configuration-snippet": snippet}), "/"), allows.clone()];
        let report = Report::of(&objects, "nginx", Compat::Safe);
        let found = &report.ingresses[0];
        assert_eq!((found.annotations[0].verdict, found.outcome), (verdict, outcome), "{snippet}: {found:?}");
    };
    check("proxy_hide_header X-A; add_header X-A b always;", Verdict::Served, Outcome::Served);
    check("add_header X-Hidden b always;", Verdict::Served, Outcome::Served);
    check("proxy_hide_header Content-Length;", Verdict::Refused, Outcome::Closed);
    check("more_set_headers 'X-A: b'; add_header X-A c always;", Verdict::Refused, Outcome::Closed);
    check("proxy_set_header X-Q $request_id;", Verdict::Differs, Outcome::Differs);
    check("proxy_set_header X-Request-ID $request_id;", Verdict::Differs, Outcome::Differs);
    check("proxy_set_header X-Q $req_id;", Verdict::Served, Outcome::Served);
}

#[test]
fn a_server_of_a_snippet_at_a_port_of_a_flag() {
    let snippet = json!({"kind": "ConfigMap", "metadata": {"name": "ingress-nginx-controller"},
        "data": {"http-snippet": "server { listen 8080; deny all; }"}});
    let check = |flags: &[&str], expect: Outcome| {
        let objects = [ingress("a", &json!({}), "/"), snippet.clone(), controller(flags)];
        assert_eq!(outcomes(&objects)[0].1, expect, "{flags:?}");
    };
    check(&[], Outcome::Served);
    check(&["--http-port=8080"], Outcome::Closed);
    check(&["--https-port", "8080"], Outcome::Closed);
}

#[test]
fn a_config_map_that_is_named_by_an_argument_of_its_own() {
    let named = json!({"kind": "ConfigMap", "metadata": {"name": "edge"}, "data": {"main-snippet": "env A;"}});
    let usual = json!({"kind": "ConfigMap", "metadata": {"name": "ingress-nginx-controller"}, "data": {}});
    let objects = [ingress("a", &json!({}), "/"), named, usual, controller(&["--configmap", "infra/edge"])];
    let report = Report::of(&objects, "nginx", Compat::Safe);
    assert!(report.page(Format::Text).contains("main-snippet = env A;: refused"));
}

#[test]
fn options_that_are_refused_count() {
    let check = |objects: &[Value], is_good: bool| {
        let mut objects = objects.to_vec();
        objects.push(ingress("a", &json!({}), "/"));
        let report = Report::of(&objects, "nginx", Compat::Safe);
        assert_eq!(report.ingresses[0].outcome, Outcome::Served);
        assert_eq!((report.is_good(), report.score.percent == 100), (is_good, is_good), "{objects:?}");
    };
    let config = |key: &str, value: &str| json!({"kind": "ConfigMap", "metadata": {"name": "ingress-nginx-controller"}, "data": {key: value}});
    check(&[config("hsts", "false"), controller(&["--enable-metrics=false"])], true);
    check(&[config("proxy-add-original-uri-header", "true")], false);
    check(&[config("proxy-add-original-uri-header", "false")], true);
    check(&[config("hsts-max-age", "long")], false);
    check(&[controller(&["--disable-catch-all"])], false);
    check(&[controller(&["--disable-catch-all=false"])], true);
}

#[test]
fn tls_passes_through_by_a_flag_of_the_controller() {
    let check = |arguments: Option<&[&str]>, expect: Outcome| {
        let mut objects = vec![ingress("a", &json!({}), "/a"), ingress("b", &json!({"ssl-passthrough": "true"}), "/")];
        objects.extend(arguments.map(controller));
        let outcomes: Vec<Outcome> = outcomes(&objects).into_iter().map(|(_, outcome)| outcome).collect();
        // It holds for all of the host.
        assert_eq!(outcomes, [expect, expect], "{arguments:?}");
    };
    // Nobody knows the flags.
    check(None, Outcome::Served);
    check(Some(&["--enable-ssl-passthrough"]), Outcome::Served);
    check(Some(&["--enable-ssl-passthrough=true"]), Outcome::Served);
    check(Some(&["--enable-ssl-passthrough=false"]), Outcome::Closed);
    check(Some(&["--enable-metrics"]), Outcome::Closed);
}

#[test]
fn expressions_that_close_other_paths() {
    let objects = [
        ingress("a", &json!({"use-regex": "true"}), "/api/(?!internal).*"),
        ingress("b", &json!({}), "/API/v1"),
        ingress("c", &json!({}), "/api"),
        ingress("d", &json!({}), "/api/a-path-that-is-longer-and-so-comes-first"),
    ];
    let outcomes: Vec<Outcome> = outcomes(&objects).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(outcomes, [Outcome::Closed, Outcome::Closed, Outcome::Served, Outcome::Served]);
}

#[test]
fn objects_that_the_api_server_would_not_take() {
    let numbers = ingress("a", &json!({"proxy-body-size": 8}), "/");
    let report = Report::of(&[numbers], "nginx", Compat::Safe);
    assert_eq!(report.ingresses[0].outcome, Outcome::Dropped);
    assert!(report.page(Format::Text).contains("proxy-body-size = 8: refused: the API server takes text alone"));
    let none = Report::of(&[], "nginx", Compat::Safe);
    assert_eq!((none.score.percent, none.is_good()), (0, false));
}

#[test]
fn ingresses_without_a_class_and_annotations_of_others() {
    let mut bare = ingress("a", &json!({}), "/");
    bare["spec"]["ingressClassName"] = Value::Null;
    bare["metadata"]["annotations"]["nginx.org/rewrites"] = json!("x");
    let left_out = Report::of(&[bare.clone()], "nginx", Compat::Safe);
    assert_eq!(left_out.score.ingresses, 0);
    assert!(left_out.notes.iter().any(|note| note.contains("they name no class") && note.contains("shop/a")));
    let class = json!({"kind": "IngressClass", "metadata": {"name": "nginx", "annotations": {DEFAULT_CLASS: "true"}},
        "spec": {"controller": CONTROLLER}});
    let served = Report::of(&[bare.clone(), class], "nginx", Compat::Safe);
    assert_eq!(served.ingresses[0].outcome, Outcome::Served);
    assert_eq!(served.ingresses[0].annotations[0].key, "nginx.org/rewrites");
    let flag = json!({"kind": "Deployment", "metadata": {"name": "c"}, "spec": {"template": {"spec": {"containers": [
        {"args": ["/nginx-ingress-controller", "--watch-ingress-without-class"]}
    ]}}}});
    assert_eq!(outcomes(&[bare, flag]), [("shop/a".to_owned(), Outcome::Dropped)]);
}

#[test]
fn names_make_no_links() {
    let objects = [ingress("[x](https://evil.example)\n|\\[y](z)", &json!({"fastcgi-index": "index.php"}), "/")];
    let page = Report::of(&objects, "nginx", Compat::Safe).page(Format::Markdown);
    assert!(page.contains(r"\[x\](https://evil.example) \|\\\[y\](z)"), "{page}");
    assert!(!page.contains("[x](") && !page.contains("[y]("), "{page}");
}

/// If this variable is set, the test writes the page instead of comparing it.
const WRITE: &str = "STEELYARD_WRITE_DOCS";

#[test]
fn the_page_of_annotations() {
    let page = format!(
        "# Annotations of ingress-nginx\n\n<!-- Made from crates/controller/src/ingress_nginx. To write it again: \
         {WRITE}=1 cargo test -p controller the_page_of_annotations -->\n\n\
         What becomes of them with `steelyard controller --ingress-nginx` ([the page](migration-ingress-nginx.md)). Names are without \
         `{PREFIX}`. A value may have another verdict than its key; `steelyard migrate ingress-nginx` says so. `tests` names the tables \
         of `crates/controller/tests/cases` in which something else is served without the annotation, and the cases of `e2e/nginx` that have \
         it, whose requests nginx answers, too; or else a module with unit tests beside the table.\n\n{}",
        table(crate::tests::annotations::tests_of())
    );
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ingress-nginx-annotations.md");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(path, page).unwrap();
    } else {
        assert!(
            std::fs::read_to_string(path).unwrap() == page,
            "write it again: {WRITE}=1 cargo test -p controller the_page_of"
        );
    }
}

#[test]
fn ten_thousand_ingresses_and_a_large_annotation() {
    let mut objects: Vec<Value> = (0..10_000)
        .map(|number| ingress(&format!("i{number}"), &json!({"proxy-body-size": "8m"}), &format!("/{number}")))
        .collect();
    objects.push(ingress("large", &json!({"configuration-snippet": "a".repeat(1 << 20)}), "/large"));
    let report = Report::of(&objects, "nginx", Compat::Safe);
    assert_eq!(report.score.ingresses, 10_001);
    assert!(report.page(Format::Html).len() < 10_000_000);
}

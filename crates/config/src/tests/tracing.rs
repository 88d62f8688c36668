//! Traces.

use std::sync::Arc;
use std::time::Duration;

use model::{ClusterId, Otlp, OtlpHeader, OtlpProtocol, RouteTracing, Secret, SpanNamePart, Tracing};

use super::load;
use super::refused::check;

/// A file with these traces, in line 1.
fn file(tracing: &str) -> String {
    format!(
        "tracing: {{{tracing}}}
listeners: {{l: {{bind: ':1', protocol: http, to: web}}}}
clusters: {{web: {{endpoints: ['a:1']}}, otel: {{endpoints: ['a:2'], protocol: h2c}}, p: {{endpoints: ['a:3'], proxy_protocol: v2}}}}"
    )
}

#[test]
fn what_is_recorded_and_where_it_goes() {
    let otlp = Otlp {
        to: ClusterId(1),
        protocol: OtlpProtocol::Grpc,
        host: None,
        headers: Vec::new(),
        gzip: false,
        service: "steelyard".to_owned(),
        attributes: Vec::new(),
        timeout: Duration::from_secs(10),
    };
    let usual = Tracing { otlp: Arc::new(otlp), sampling: 0.01, trust_client_sampling: false, query: false };
    assert_eq!(load(&file("to: otel")).tracing.as_deref(), Some(&usual));
    let otlp = Otlp {
        to: ClusterId(0),
        protocol: OtlpProtocol::Http { path: "/in".to_owned() },
        host: Some("otel.example".to_owned()),
        headers: vec![
            ("authorization".to_owned(), OtlpHeader::Text(Secret("Bearer a".to_owned()))),
            ("x-key".to_owned(), OtlpHeader::File("keys/otel".into())),
        ],
        gzip: true,
        service: "edge".to_owned(),
        attributes: vec![("zone".to_owned(), "a b".to_owned())],
        timeout: Duration::from_millis(100),
    };
    let written = Tracing { otlp: Arc::new(otlp), sampling: 0.000_001, trust_client_sampling: true, query: true };
    let text = "to: web, protocol: http, path: /in, host: otel.example, sampling: 0.0001%, trust_client_sampling: true, query: true, \
                service: edge, attributes: {zone: a b}, timeout: 100ms, headers: {Authorization: Bearer a, x-key: {file: keys/otel}}, compression: gzip";
    assert_eq!(load(&file(text)).tracing.as_deref(), Some(&written));
}

#[test]
fn collectors_that_cannot_be_spoken_to() {
    check(
        &file("to: web"),
        "1:15: the cluster `web` speaks HTTP/1.1, and gRPC needs HTTP/2; add `protocol: h2c`, or `protocol: h2` and `tls`, to the cluster; or \
         send traces with `protocol: http`",
    );
    check(
        &file("to: otel, protocol: http"),
        "1:15: the cluster `otel` speaks HTTP/2, and traces with `protocol: http` use HTTP/1.1; send traces with `protocol: grpc`, or remove \
         `protocol` from the cluster",
    );
    check(
        &file("to: p, protocol: http"),
        "1:15: the cluster `p` has `proxy_protocol`, and exports have no client; give the collector a cluster of its own",
    );
    check(&file("to: otle"), "1:15: `to` names the cluster `otle`, which is not in `clusters`; did you mean `otel`?");
    check(
        &file("to: otel, path: /x"),
        "1:27: `path` has no effect: the path of a gRPC call is that of its method; remove it, or add `protocol: http`",
    );
    check(&file("protocol: http"), "1:10: the tracing needs `to`; it must be a name such as web");
}

#[test]
fn routes_that_differ() {
    let routes = |tracing: &str, routes: &str| {
        format!(
            "{tracing}listeners: {{l: {{bind: ':1', protocol: http, routes: [{routes}]}}}}
clusters: {{web: {{endpoints: ['a:1']}}, otel: {{endpoints: ['a:2'], protocol: h2c}}}}"
        )
    };
    let text = "{path: /a, tracing: {enabled: false}, to: web}, {path: /b, tracing: {sampling: 50%, continue_trace: false, span_name: 'b ${method}'}, to: web}, {to: web}";
    let snapshot = load(&routes("tracing: {to: otel}\n", text));
    let found: Vec<Option<RouteTracing>> =
        super::http(&snapshot).routes.iter().map(|route| route.policy.tracing.as_deref().cloned()).collect();
    let usual = RouteTracing { enabled: true, sampling: None, continues: true, span_name: Vec::new() };
    let span_name = vec![SpanNamePart::Text("b ".to_owned()), SpanNamePart::Method];
    let expect = [
        Some(RouteTracing { enabled: false, ..usual.clone() }),
        Some(RouteTracing { sampling: Some(0.5), continues: false, span_name, ..usual }),
        None,
    ];
    assert_eq!(found, expect);
    check(
        &routes("", "{tracing: {enabled: false}, to: web}"),
        "1:64: `tracing` of a route has no effect, because the file has none of its own; add `tracing: {to: CLUSTER}` at the top of the file",
    );
    check(
        &routes("tracing: {to: otel}\n", "{tracing: {enabled: false, sampling: 1%}, to: web}"),
        "2:81: `sampling` has no effect with `enabled: false`; remove one of them",
    );
}

//! The access log.

use std::time::Duration;

use model::{LogFormat, LogPart, LogTarget, LogValue, OtlpProtocol, SyslogAddress};

use super::load;
use super::refused::check;

/// A file with this access log, in line 1.
fn file(log: &str) -> String {
    format!(
        "access_log: {{{log}}}
listeners:
  l:
    bind: :1
    protocol: http
    auth: {{api_key: {{header: x-shop, keys: {{a: 0123456789abcdef}}}}}}
    routes: [{{name: shop, path: /shop, to: web}}, {{name: health, path: /healthz, to: web, auth: {{jwt: {{issuer: a, audience: b, header: x-who, \
         jwks: {{url: 'http://127.0.0.1/'}}}}}}}}]
clusters: {{web: {{endpoints: ['a:1']}}, otel: {{endpoints: ['a:2'], protocol: h2c}}}}"
    )
}

/// The fields, a secret header with a `!`.
fn shown(format: &LogFormat) -> Vec<String> {
    let value = |value: &LogValue| match value {
        LogValue::RequestHeader(header) | LogValue::ResponseHeader(header) if header.is_secret => {
            format!("{}!", value.name())
        }
        value => value.name(),
    };
    match format {
        LogFormat::Text(Some(fields))
        | LogFormat::Json(Some(fields))
        | LogFormat::StructuredData { fields, .. }
        | LogFormat::Attributes(fields) => {
            fields.iter().map(|field| format!("{}={}", field.name, value(&field.value))).collect()
        }
        LogFormat::Template(parts) => parts
            .iter()
            .map(|part| match part {
                LogPart::Text(text) => text.clone(),
                LogPart::Value { value: of, .. } => value(of),
            })
            .collect(),
        LogFormat::Text(None) | LogFormat::Json(None) => Vec::new(),
    }
}

#[test]
fn fields_and_secrets() {
    let check = |log: &str, expect: &[&str]| assert_eq!(shown(&load(&file(log)).access_log.unwrap().format), expect);
    check("fields: [time, status]", &["time=time", "status=status"]);
    check(
        "format: json, fields: {at: time, agent: 'request_header:User-Agent', key: 'request_header:Authorization'}",
        &["at=time", "agent=request_header:user-agent", "key=request_header:authorization!"],
    );
    // A key of a client, as the file says.
    check(
        "fields: ['request_header:x-shop', 'response_header:set-cookie']",
        &["request_header:x-shop=request_header:x-shop!", "response_header:set-cookie=response_header:set-cookie!"],
    );
    // Where tokens are expected, and what names of headers with keys look like.
    check(
        "fields: ['request_header:x-who', 'request_header:X-Auth-Key', 'request_header:Ocp-Apim-Subscription-Key', 'request_header:idempotency-key']",
        &[
            "request_header:x-who=request_header:x-who!",
            "request_header:x-auth-key=request_header:x-auth-key!",
            "request_header:ocp-apim-subscription-key=request_header:ocp-apim-subscription-key!",
            "request_header:idempotency-key=request_header:idempotency-key",
        ],
    );
    check("fields: ['request_header:Cookie'], reveal: cookie", &["request_header:cookie=request_header:cookie"]);
    check("format: '${method} ${request_header:x-csrf-token}'", &["method", " ", "request_header:x-csrf-token!"]);
}

#[test]
fn targets() {
    let target = |log: &str| load(&file(log)).access_log.unwrap().target;
    let LogTarget::Syslog(syslog) = target("syslog: {to: 'unix:/dev/log', facility: local0, app_name: edge}") else {
        panic!()
    };
    assert_eq!((syslog.to, syslog.facility), (SyslogAddress::Unix("/dev/log".into()), 16));
    let log = load(&file("syslog: {to: 192.0.2.5, structured_data: a@1}")).access_log.unwrap();
    assert!(matches!(&log.format, LogFormat::StructuredData { id, fields } if id == "a@1" && fields.len() == 24));
    let LogTarget::Otlp(otlp) = target("otlp: {to: web, protocol: http}") else { panic!() };
    assert_eq!(otlp.protocol, OtlpProtocol::Http { path: "/v1/logs".to_owned() });
    let LogTarget::Otlp(otlp) = target("otlp: {to: otel, compression: gzip}") else { panic!() };
    assert!(otlp.gzip && otlp.protocol == OtlpProtocol::Grpc);
}

#[test]
fn filters() {
    let log = load(&file(
        "only: {status: [5xx, 404], slower_than: 2s, reason: [any, no_route], retried: true}, routes: shop, except_routes: [health], \
         sampling: 1%, query: false",
    ))
    .access_log
    .unwrap();
    let conditions = &log.filter.conditions;
    assert_eq!(conditions.statuses, [500..=599, 404..=404]);
    assert_eq!((conditions.slower_than, conditions.retried), (Some(Duration::from_secs(2)), true));
    assert_eq!((conditions.any_reason, conditions.reasons.as_slice()), (true, ["no_route".to_owned()].as_slice()));
    assert_eq!((log.filter.routes, log.filter.except_routes), (vec!["shop".to_owned()], vec!["health".to_owned()]));
    assert_eq!((log.sampling, log.query), (0.01, false));
}

#[test]
fn mistakes() {
    check(&file("format: '${statsu}'"), "1:22: `format`: there is no value `statsu`; did you mean `status`?");
    check(&file("fields: [colour, time, time]"), &{
        let all = LogValue::SIMPLE.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        format!(
            "1:23: an entry of `fields`: there is no value `colour`; it can be {all}, request_header:NAME or response_header:NAME\n\
             1:37: `fields` has `time` twice"
        )
    });
    check(
        &file("path: a.log, syslog: {to: 192.0.2.5}"),
        "1:35: an access log has both `path` and `syslog`; keep one of them: it has one target",
    );
    check(
        &file("format: '${status}', fields: [time]"),
        "1:43: `fields` has no effect: the format has its values in it; remove it, or choose `format: json` or `format: text`",
    );
    check(
        &file("otlp: {to: otel}, format: json"),
        "1:40: `format` has no effect: `otlp` sends fields, and no lines; remove it, and choose with `fields`",
    );
    check(
        &file("otlp: {to: web}"),
        "1:25: the cluster `web` speaks HTTP/1.1, and gRPC needs HTTP/2; add `protocol: h2c`, or `protocol: h2` and `tls`, to the cluster; or \
         send logs with `protocol: http`",
    );
    check(&file("routes: shopp"), "1:22: no listener has a route `shopp`; did you mean `shop`?");
    check(
        &file("reveal: cookie"),
        "1:22: `reveal` names `cookie`, which the log does not have; remove it, or add `request_header:cookie`",
    );
    check(&file("only: {}"), "1:20: `only` has no condition; write one, such as `only: {status: 5xx}`, or remove it");
    check(
        &file("otlp: {to: otel, headers: {authorization: \"a\\nsecret\"}}"),
        "1:56: `authorization` is not the value of a header; use visible characters of ASCII and spaces between them, or `{file: FILE}`",
    );
    check(
        &file("otlp: {to: otel, headers: {content-type: a}}"),
        "1:40: `headers` cannot set `content-type`; exports have it already",
    );
}

#[test]
fn a_file_for_telemetry() {
    let read = |text: &str| {
        crate::read_telemetry("t.yaml", text).map(|file| file.snapshot).map_err(|errors| errors.to_string())
    };
    let good = "tracing: {to: otel}\naccess_log: {except_routes: shop/web, otlp: {to: otel}}\nclusters: {otel: {protocol: h2c, endpoints: ['a:1']}}\n";
    let snapshot = read(good).unwrap();
    assert_eq!(snapshot.tracing.unwrap().otlp.to, model::ClusterId(0));
    assert!(matches!(snapshot.access_log.unwrap().target, LogTarget::Otlp(_)));
    let check = |text: &str, expect: &[&str]| {
        let errors = read(text).unwrap_err();
        assert!(expect.iter().all(|part| errors.contains(part)), "{errors}");
    };
    check(
        "access_log: stdout\nmetrics: ':9000'\nlisteners: {}\n",
        &[
            "t.yaml:2:1: `metrics` does not belong in a telemetry file; it can have `access_log`, `tracing`, and the `clusters`",
            "t.yaml:3:1: `listeners` does not belong",
        ],
    );
    let needs = "it needs `access_log` or `tracing`, each with a colon and its settings";
    for empty in ["", "# nothing yet\n", "---\n"] {
        check(empty, &[&format!("t.yaml:1:1: the file is empty; {needs}")]);
    }
    check("access_log\n", &[&format!("t.yaml:1:1: the file must be a mapping, not text; {needs}")]);
    check("- access_log: stdout\n", &[&format!("t.yaml:1:1: the file must be a mapping, not a list; {needs}")]);
    check("access_log:\n", &["t.yaml:1:11: `access_log` has no value; it must be a file"]);
    check("clusters: {otel: {endpoints: ['a:1']}}\n", &["t.yaml:1:1: the file needs `access_log` or `tracing`"]);
    check("tracing: {to: otl}\nclusters: {otel: {protocol: h2c, endpoints: ['a:1']}}\n", &["did you mean `otel`?"]);
}

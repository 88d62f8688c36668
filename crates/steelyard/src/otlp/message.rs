//! Spans as OTLP has them. The messages have only the fields that are used here, with the numbers of `opentelemetry/proto`, version 1.

use std::net::SocketAddr;

use model::{Otlp, SpanNamePart, grpc_status_name};
use prost::Message;
use telemetry::{Reason, TraceRecord, TryRecord, is_fault_of_server};

/// Our part of the flags of a span: whether its parent is known to be in another process, and that it is.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

const KIND_SERVER: i32 = 2;
const KIND_CLIENT: i32 = 3;

const STATUS_ERROR: i32 = 2;

/// Methods that a span names; others are `_OTHER`, so that clients cannot make up any number of them.
const METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "AnyKind", tags = "1, 3, 4")]
    pub(super) kind: Option<AnyKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum AnyKind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Integer(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// What a collector answers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_spans: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// Attributes, while they are collected.
#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, key: &str, kind: AnyKind) {
        self.0.push(KeyValue { key: key.to_owned(), value: Some(AnyValue { kind: Some(kind) }) });
    }

    /// Leaves out the empty text.
    fn text(&mut self, key: &str, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.add(key, AnyKind::Text(text));
        }
    }

    fn number(&mut self, key: &str, number: impl TryInto<i64>) {
        self.add(key, AnyKind::Integer(number.try_into().unwrap_or(i64::MAX)));
    }
}

/// An export of the spans of these records.
pub(super) fn encode(otlp: &Otlp, records: &[TraceRecord]) -> Vec<u8> {
    let spans = records.iter().flat_map(spans).collect();
    let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans }];
    ExportRequest { resource_spans: vec![ResourceSpans { resource: Some(resource(otlp)), scope_spans }] }
        .encode_to_vec()
}

/// What this process is.
pub(super) fn resource(otlp: &Otlp) -> Resource {
    let mut resource = Attributes::default();
    resource.text("service.name", otlp.service.as_str());
    resource.text("service.version", env!("CARGO_PKG_VERSION"));
    resource.text("host.name", rustix::system::uname().nodename().to_string_lossy());
    resource.number("process.pid", std::process::id());
    for (name, value) in &otlp.attributes {
        // Those of the operator replace ours.
        resource.0.retain(|ours| ours.key != *name);
        resource.text(name, value);
    }
    Resource { attributes: resource.0 }
}

/// The part of this process that records.
pub(super) fn scope() -> Scope {
    Scope { name: "steelyard".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

/// The SERVER span and those of the tries.
fn spans(record: &TraceRecord) -> impl Iterator<Item = Span> {
    let of_tries = record.tries.iter().map(|one| client_span(record, one));
    std::iter::once(server_span(record)).chain(of_tries)
}

fn server_span(record: &TraceRecord) -> Span {
    let mut attributes = Attributes::default();
    method(&mut attributes, &record.method);
    attributes.text("url.path", &record.path);
    attributes.text("url.query", &record.query);
    attributes.text("url.scheme", record.scheme);
    attributes.text("http.route", &record.route_path);
    let (host, port) = split(&record.host);
    attributes.text("server.address", host);
    if let Some(port) = port.or(record.local.map(|local| local.port())) {
        attributes.number("server.port", port);
    }
    attributes.text("client.address", record.client.map_or_else(String::new, |client| client.to_string()));
    if let Some(peer) = record.peer {
        network_peer(&mut attributes, peer);
    }
    attributes.text("network.protocol.version", record.version);
    attributes.text("user_agent.original", &record.user_agent);
    if record.status != 0 {
        attributes.number("http.response.status_code", record.status);
    }
    rpc(&mut attributes, record, record.grpc_status);
    let is_error = match record.grpc_status {
        Some(code) => is_fault_of_server(code),
        None => record.status >= 500 || record.status == 0,
    };
    if is_error {
        attributes.text("error.type", error_type(record.reason, Some(record.status), record.grpc_status));
    }
    attributes.text("steelyard.listener", &record.listener);
    attributes.text("steelyard.route", &record.route);
    attributes.text("steelyard.cluster", &record.cluster);
    if let Some(last) = record.tries.last() {
        attributes.text("steelyard.endpoint", last.endpoint.to_string());
    }
    attributes.text("steelyard.request_id", &record.request_id);
    attributes.text("steelyard.reason", record.reason.map_or("", Reason::name));
    if record.attempts > 0 {
        attributes.number("steelyard.tries", record.attempts);
    }
    if let Some(added_us) = record.added_us {
        attributes.number("steelyard.added_us", added_us);
    }
    if let Some(upstream_us) = record.upstream_us {
        attributes.number("steelyard.upstream_us", upstream_us);
    }
    let remote = if record.parent_id.is_some() { HAS_IS_REMOTE | IS_REMOTE } else { HAS_IS_REMOTE };
    let name = match (own_name(record), rpc_name(record), record.route_path.as_str()) {
        (Some(own), ..) => own,
        (None, Some(method), _) => method.to_owned(),
        (None, None, "") => known(&record.method).unwrap_or("HTTP").to_owned(),
        (None, None, path) => format!("{} {path}", known(&record.method).unwrap_or("HTTP")),
    };
    Span {
        trace_id: record.trace_id.to_vec(),
        span_id: record.span_id.to_vec(),
        trace_state: record.state.clone(),
        parent_span_id: record.parent_id.map_or_else(Vec::new, Vec::from),
        name,
        kind: KIND_SERVER,
        start_unix_nano: nanos(record.begun_unix_us),
        end_unix_nano: nanos(record.begun_unix_us.saturating_add(record.took_us)),
        attributes: attributes.0,
        status: is_error.then_some(Status { code: STATUS_ERROR }),
        flags: u32::from(record.flags) | remote,
    }
}

fn client_span(record: &TraceRecord, one: &TryRecord) -> Span {
    let mut attributes = Attributes::default();
    method(&mut attributes, &record.method);
    let scheme = if record.is_tls_upstream { "https" } else { "http" };
    attributes.text("url.full", format!("{scheme}://{}{}", one.endpoint, record.path));
    attributes.text("server.address", one.endpoint.ip().to_string());
    attributes.number("server.port", one.endpoint.port());
    network_peer(&mut attributes, one.endpoint);
    attributes.text("network.protocol.version", if record.is_h2_upstream { "2" } else { "1.1" });
    if one.number > 0 {
        attributes.number("http.request.resend_count", one.number);
    }
    if let Some(status) = one.status {
        attributes.number("http.response.status_code", status);
    }
    rpc(&mut attributes, record, one.grpc_status);
    let is_error = match (record.grpc_status, one.grpc_status) {
        (Some(_), Some(code)) => code != 0,
        _ => one.reason.is_some() || one.status.is_none_or(|status| status >= 400),
    };
    if is_error {
        attributes.text("error.type", error_type(one.reason, one.status, one.grpc_status));
    }
    attributes.text("steelyard.cluster", &record.cluster);
    attributes.text("steelyard.endpoint", one.endpoint.to_string());
    attributes.text("steelyard.reason", one.reason.map_or("", Reason::name));
    let name = match rpc_name(record) {
        Some(method) => method.to_owned(),
        None => known(&record.method).unwrap_or("HTTP").to_owned(),
    };
    let begun_us = record.begun_unix_us.saturating_add(one.begun_us);
    Span {
        trace_id: record.trace_id.to_vec(),
        span_id: one.span_id.to_vec(),
        trace_state: record.state.clone(),
        parent_span_id: record.span_id.to_vec(),
        name,
        kind: KIND_CLIENT,
        start_unix_nano: nanos(begun_us),
        end_unix_nano: nanos(begun_us.saturating_add(one.took_us.unwrap_or_default())),
        attributes: attributes.0,
        status: is_error.then_some(Status { code: STATUS_ERROR }),
        flags: u32::from(record.flags) | HAS_IS_REMOTE,
    }
}

fn nanos(us: u64) -> u64 {
    us.saturating_mul(1000)
}

fn known(method: &str) -> Option<&str> {
    METHODS.into_iter().find(|known| *known == method)
}

fn method(attributes: &mut Attributes, method: &str) {
    match known(method) {
        Some(known) => attributes.text("http.request.method", known),
        None => {
            attributes.text("http.request.method", "_OTHER");
            attributes.text("http.request.method_original", method);
        }
    }
}

fn network_peer(attributes: &mut Attributes, peer: SocketAddr) {
    attributes.text("network.peer.address", peer.ip().to_string());
    attributes.number("network.peer.port", peer.port());
}

/// The name that the route gives its spans.
fn own_name(record: &TraceRecord) -> Option<String> {
    const BYTES_MAX: usize = 256;
    let parts =
        record.tracing.as_ref().map(|tracing| tracing.span_name.as_slice()).filter(|parts| !parts.is_empty())?;
    let mut name = String::new();
    for part in parts {
        name.push_str(match part {
            SpanNamePart::Text(text) => text,
            SpanNamePart::Method => known(&record.method).unwrap_or("HTTP"),
            SpanNamePart::Host => &record.host,
            SpanNamePart::Path => &record.path,
            SpanNamePart::Route => &record.route,
        });
        if name.len() > BYTES_MAX {
            let end = (0..=BYTES_MAX).rev().find(|end| name.is_char_boundary(*end));
            name.truncate(end.unwrap_or_default());
            break;
        }
    }
    Some(name)
}

/// The method of a call with its service, as the path has them: `helloworld.Greeter/SayHello`.
fn rpc_name(record: &TraceRecord) -> Option<&str> {
    record.grpc_status?;
    record.path.strip_prefix('/').filter(|name| name.contains('/'))
}

/// The attributes of calls since they are stable (semantic conventions 1.45). Before, a call had `rpc.system`, `rpc.service`, and its status as a
/// number.
fn rpc(attributes: &mut Attributes, record: &TraceRecord, code: Option<u8>) {
    if record.grpc_status.is_none() {
        return;
    }
    attributes.text("rpc.system.name", "grpc");
    attributes.text("rpc.method", rpc_name(record).unwrap_or("_OTHER"));
    if let Some(code) = code {
        attributes.text("rpc.response.status_code", grpc_status_name(code));
    }
}

/// Our reason says most; otherwise a status does.
fn error_type(reason: Option<Reason>, status: Option<u16>, grpc_status: Option<u8>) -> String {
    match (reason, grpc_status.filter(|code| *code != 0), status) {
        (Some(reason), ..) => reason.name().to_owned(),
        (None, Some(code), _) => grpc_status_name(code),
        (None, None, Some(status)) if status != 0 => status.to_string(),
        _ => "_OTHER".to_owned(),
    }
}

/// A host and its port.
fn split(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        // The colon may be one of an IPv6 address.
        Some((name, port)) if !port.ends_with(']') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (host, None),
        },
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::{ClusterId, OtlpProtocol};

    use super::*;

    fn record() -> TraceRecord {
        let one = TryRecord {
            span_id: [3; 8],
            number: 0,
            begun_us: 100,
            took_us: Some(400),
            endpoint: ([10, 0, 0, 1], 8080).into(),
            status: None,
            grpc_status: None,
            reason: Some(Reason::ConnectRefused),
        };
        let other = TryRecord {
            span_id: [4; 8],
            number: 1,
            begun_us: 500,
            took_us: Some(500),
            status: Some(200),
            reason: None,
            ..one.clone()
        };
        TraceRecord {
            trace_id: [1; 16],
            span_id: [2; 8],
            parent_id: Some([9; 8]),
            flags: 1,
            state: "a=1".to_owned(),
            begun_unix_us: 1_000_000,
            took_us: 1_000,
            method: "GET".to_owned(),
            path: "/cart/7".to_owned(),
            scheme: "https",
            host: "shop.example.com:8443".to_owned(),
            version: "2",
            client: Some([192, 0, 2, 7].into()),
            listener: "web".to_owned(),
            route: "cart".to_owned(),
            route_path: "/cart".to_owned(),
            cluster: "shop".to_owned(),
            status: 200,
            added_us: Some(80),
            upstream_us: Some(300),
            attempts: 2,
            tries: vec![one, other],
            ..TraceRecord::default()
        }
    }

    /// The attributes with these names, in this order.
    fn shown(span: &Span, names: &[&str]) -> Vec<String> {
        let value = |name: &&str| {
            let found = span.attributes.iter().find(|attribute| attribute.key == *name)?;
            match found.value.as_ref()?.kind.as_ref()? {
                AnyKind::Text(text) => Some(text.clone()),
                AnyKind::Integer(number) => Some(number.to_string()),
                AnyKind::Double(number) => Some(number.to_string()),
            }
        };
        names.iter().map(|name| value(name).unwrap_or_else(|| "-".to_owned())).collect()
    }

    #[test]
    fn a_route_names_its_spans() {
        let named = |parts: Vec<SpanNamePart>, record: TraceRecord| {
            let route = model::RouteTracing { enabled: true, sampling: None, continues: true, span_name: parts };
            let record = TraceRecord { tracing: Some(std::sync::Arc::new(route)), ..record };
            spans(&record).next().unwrap().name
        };
        let text = |text: &str| SpanNamePart::Text(text.to_owned());
        assert_eq!(named(Vec::new(), record()), "GET /cart", "it says nothing about the name");
        let parts = vec![text("a "), SpanNamePart::Method, text(" "), SpanNamePart::Route, SpanNamePart::Path];
        assert_eq!(named(parts.clone(), record()), "a GET cart/cart/7");
        let made_up = TraceRecord { method: "NONSENSE".to_owned(), ..record() };
        assert_eq!(named(parts, made_up), "a HTTP cart/cart/7", "clients make up no names of methods");
        let long = TraceRecord { host: "ä".repeat(300), ..record() };
        assert_eq!(named(vec![text("a"), SpanNamePart::Host], long), format!("a{}", "ä".repeat(127)));
    }

    #[test]
    fn a_request_and_its_tries() {
        let record = record();
        let all: Vec<Span> = spans(&record).collect();
        let [server, first, second] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((server.name.as_str(), server.kind, server.flags), ("GET /cart", 2, 0x301));
        assert_eq!((&server.parent_span_id, server.trace_state.as_str()), (&vec![9; 8], "a=1"));
        assert_eq!((server.start_unix_nano, server.end_unix_nano), (1_000_000_000, 1_001_000_000));
        assert_eq!(server.status, None);
        let names = ["http.request.method", "url.path", "url.query", "server.address", "server.port", "client.address"];
        assert_eq!(shown(server, &names), ["GET", "/cart/7", "-", "shop.example.com", "8443", "192.0.2.7"]);
        let names = ["http.response.status_code", "error.type", "steelyard.added_us", "steelyard.tries", "rpc.method"];
        assert_eq!(shown(server, &names), ["200", "-", "80", "2", "-"]);
        for span in [first, second] {
            assert_eq!((&span.parent_span_id, span.kind, span.flags), (&vec![2; 8], 3, 0x101));
        }
        let names = ["http.request.resend_count", "http.response.status_code", "error.type", "url.full"];
        assert_eq!(shown(first, &names), ["-", "-", "connect_refused", "http://10.0.0.1:8080/cart/7"]);
        assert_eq!(shown(second, &names), ["1", "200", "-", "http://10.0.0.1:8080/cart/7"]);
        assert_eq!([&first.status, &second.status], [&Some(Status { code: 2 }), &None]);
        assert_eq!((second.start_unix_nano, second.end_unix_nano), (1_000_500_000, 1_001_000_000));
    }

    #[test]
    fn calls_have_the_stable_attributes() {
        let check = |path: &str, code: u8, name: &str, expect: [&str; 3]| {
            let mut record = TraceRecord { path: path.to_owned(), grpc_status: Some(code), ..record() };
            record.tries[1].grpc_status = Some(code);
            let all: Vec<Span> = spans(&record).collect();
            for span in [&all[0], &all[2]] {
                assert_eq!(span.name, name);
                let names = ["rpc.system.name", "rpc.method", "rpc.response.status_code"];
                assert_eq!(shown(span, &names), expect, "{path} {code}");
                assert_eq!(shown(span, &["rpc.system", "rpc.service", "rpc.grpc.status_code"]), ["-"; 3]);
            }
            // A try that got no response has no status.
            assert_eq!(shown(&all[1], &["rpc.response.status_code"]), ["-"]);
        };
        check("/shop.Cart/Add", 0, "shop.Cart/Add", ["grpc", "shop.Cart/Add", "OK"]);
        check("/shop.Cart/Add", 14, "shop.Cart/Add", ["grpc", "shop.Cart/Add", "UNAVAILABLE"]);
        check("/shop.Cart/Add", 99, "shop.Cart/Add", ["grpc", "shop.Cart/Add", "99"]);
        let span = server_span(&TraceRecord { path: "/odd".to_owned(), grpc_status: Some(12), ..record() });
        assert_eq!(shown(&span, &["rpc.method"]), ["_OTHER"]);
    }

    #[test]
    fn which_spans_are_errors() {
        let check = |status, grpc_status, reason, expect: [&str; 2]| {
            let mut record = TraceRecord { status, grpc_status, reason, ..record() };
            let last = record.tries.last_mut().unwrap();
            (last.status, last.grpc_status, last.reason) = (Some(status), grpc_status, reason);
            let all: Vec<Span> = spans(&record).collect();
            let found = [all.first(), all.last()].map(|span| shown(span.unwrap(), &["error.type"]).remove(0));
            assert_eq!(found, expect, "{status} {grpc_status:?} {reason:?}");
        };
        check(200, None, None, ["-", "-"]);
        // What the client did wrong is no error of the server.
        check(404, None, None, ["-", "404"]);
        check(503, None, None, ["503", "503"]);
        check(502, None, Some(Reason::UpstreamReset), ["upstream_reset", "upstream_reset"]);
        check(200, Some(0), None, ["-", "-"]);
        check(200, Some(5), None, ["-", "NOT_FOUND"]);
        check(200, Some(14), None, ["UNAVAILABLE", "UNAVAILABLE"]);
    }

    #[test]
    fn methods_and_hosts_that_clients_make_up() {
        let odd = TraceRecord { method: "BREW".to_owned(), host: "[::1]:80".to_owned(), ..record() };
        let span = server_span(&odd);
        assert_eq!(span.name, "HTTP /cart");
        let names = ["http.request.method", "http.request.method_original", "server.address", "server.port"];
        assert_eq!(shown(&span, &names), ["_OTHER", "BREW", "[::1]", "80"]);
        for (host, expect) in [("a", ("a", None)), ("[::1]", ("[::1]", None)), ("a:x", ("a:x", None)), ("", ("", None))]
        {
            assert_eq!(split(host), expect);
        }
    }

    #[test]
    fn an_export_can_be_read_again() {
        let otlp = Otlp {
            to: ClusterId(0),
            protocol: OtlpProtocol::Grpc,
            host: None,
            headers: Vec::new(),
            gzip: false,
            service: "edge".to_owned(),
            attributes: vec![("service.name".to_owned(), "other".to_owned()), ("zone".to_owned(), "a".to_owned())],
            timeout: Duration::from_secs(1),
        };
        let bytes = encode(&otlp, &[record()]);
        let export = ExportRequest::decode(bytes.as_slice()).unwrap();
        let [of_resource] = export.resource_spans.as_slice() else { panic!("{export:?}") };
        let attributes = &of_resource.resource.as_ref().unwrap().attributes;
        let values = |name: &str| attributes.iter().filter(|attribute| attribute.key == name).count();
        assert_eq!([values("service.name"), values("zone"), values("process.pid")], [1, 1, 1]);
        assert_eq!(of_resource.scope_spans[0].spans.len(), 3);
    }
}

//! The question over gRPC: `envoy.service.auth.v3.Authorization/Check`. The messages have only the fields that are used here, with the numbers
//! of Envoy's `service/auth/v3/external_auth.proto` and `attribute_context.proto`.
//!
//! An answer with the status 0 (OK) is a yes. One with another status is a no, and so is one that is too long to be read. An answer without any status, with a call that failed, or
//! that cannot be read, is no answer. `response_headers_to_add`, `query_parameters_to_*` and `dynamic_metadata` are ignored.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;

use model::{ExternalAuth, GrpcAuth};
use prost::Message;
use wire::message::{Body, FieldId, Version};

use super::{Grant, Refusal, Verdict, passed_on};
use crate::error::Error;
use crate::http::client_address::known_client_ip;
use crate::policy::{self, RequestView};
use crate::question::call::{self, bad};
use crate::upstream::cluster::Cluster;
use crate::upstream::connect::OnBehalfOf;
use crate::upstream::subrequest::{Answer, Subrequest};

/// The method that is called.
const PATH: &[u8] = b"/envoy.service.auth.v3.Authorization/Check";

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "1")]
    source: Option<Peer>,
    #[prost(message, optional, tag = "2")]
    destination: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    request: Option<Request>,
    #[prost(map = "string, string", tag = "10")]
    context_extensions: HashMap<String, String>,
    #[prost(message, optional, tag = "12")]
    tls_session: Option<TlsSession>,
}

#[derive(Clone, PartialEq, Message)]
struct Peer {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
    #[prost(string, tag = "4")]
    principal: String,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct SocketAddress {
    #[prost(string, tag = "2")]
    address: String,
    #[prost(uint32, optional, tag = "3")]
    port: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, optional, tag = "2")]
    http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct HttpRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, string", tag = "3")]
    headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    path: String,
    #[prost(string, tag = "5")]
    host: String,
    #[prost(string, tag = "6")]
    scheme: String,
    #[prost(int64, tag = "9")]
    size: i64,
    #[prost(string, tag = "10")]
    protocol: String,
    #[prost(string, tag = "11")]
    body: String,
    #[prost(bytes = "vec", tag = "12")]
    raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct TlsSession {
    #[prost(string, tag = "1")]
    sni: String,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(message, optional, tag = "2")]
    denied: Option<Denied>,
    #[prost(message, optional, tag = "3")]
    ok: Option<Allowed>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Denied {
    #[prost(message, optional, tag = "1")]
    status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderOption>,
    #[prost(bytes = "vec", tag = "3")]
    body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Allowed {
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderOption>,
    #[prost(string, repeated, tag = "5")]
    headers_to_remove: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct HttpStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    raw_value: Vec<u8>,
}

pub(super) fn question(
    policy: &ExternalAuth,
    grpc: &GrpcAuth,
    cluster: &Cluster,
    asked: &RequestView<'_>,
    who: OnBehalfOf,
    body: Option<(&[u8], bool)>,
    timeout_ms: u64,
) -> Subrequest {
    let message = request(policy, grpc, asked, who, body);
    call::request(cluster, PATH, grpc.host.as_deref(), &message, asked, timeout_ms)
}

fn request(
    policy: &ExternalAuth,
    grpc: &GrpcAuth,
    asked: &RequestView<'_>,
    who: OnBehalfOf,
    body: Option<(&[u8], bool)>,
) -> CheckRequest {
    let RequestView { head, buffer, client, .. } = *asked;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let path = policy::passed_on(&asked.paths, head.path.get(buffer), asked.target);
    let scheme = policy::scheme(asked).name();
    let certificate = client.secured.and_then(|secured| secured.client_certificate());
    let peer = |address: SocketAddr, principal: &str| {
        let socket = SocketAddress { address: address.ip().to_string(), port: Some(address.port().into()) };
        Some(Peer { address: Some(Address { socket: Some(socket) }), principal: principal.to_owned() })
    };
    let source = match known_client_ip(head, buffer, client) {
        Ok(ip) if ip != who.client.ip() => SocketAddr::new(ip, 0),
        _ => who.client,
    };
    let (body, raw_body) = match body.map(|(body, _)| (std::str::from_utf8(body), body)) {
        None => (String::new(), Vec::new()),
        Some((Ok(body), _)) => (body.to_owned(), Vec::new()),
        Some((Err(_), body)) => (String::new(), body.to_vec()),
    };
    let http = HttpRequest {
        id: client.request_id.unwrap_or_default().to_owned(),
        method: text(head.method_name.get(buffer)),
        headers: headers(policy, asked),
        path: text(path),
        host: text(head.authority.get(buffer)),
        scheme: scheme.to_owned(),
        size: match head.body {
            Body::Length(length) => i64::try_from(length).unwrap_or(i64::MAX),
            Body::None => 0,
            Body::Chunked | Body::UntilClose => -1,
        },
        protocol: match head.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
        }
        .to_owned(),
        body,
        raw_body,
    };
    let sni = client.secured.and_then(|secured| secured.sni()).map(str::to_owned);
    CheckRequest {
        attributes: Some(Attributes {
            source: peer(source, certificate.map_or("", |certificate| certificate.subject())),
            destination: peer(who.local, ""),
            request: Some(Request { http: Some(http) }),
            context_extensions: grpc.context.iter().cloned().collect(),
            tls_session: sni.map(|sni| TlsSession { sni }),
        }),
    }
}

/// The headers as Envoy sends them: names in lower case, several values joined.
fn headers(policy: &ExternalAuth, asked: &RequestView<'_>) -> HashMap<String, String> {
    let RequestView { head, buffer, client, .. } = *asked;
    let mut joined: BTreeMap<String, String> = BTreeMap::new();
    for field in &head.fields {
        let name = String::from_utf8_lossy(field.name.get(buffer)).to_ascii_lowercase();
        let is_told = match field.id {
            FieldId::Other | FieldId::Cookie | FieldId::Date | FieldId::Identity => true,
            FieldId::ContentLength | FieldId::Te => true,
            FieldId::Claim | FieldId::XForwardedFor | FieldId::XForwardedHost | FieldId::Forwarded => client.is_trusted,
            _ => false,
        };
        if !is_told || !policy.request_headers.as_ref().is_none_or(|names| names.contains(&name)) {
            continue;
        }
        let value = String::from_utf8_lossy(field.value.get(buffer));
        let separator = if field.id == FieldId::Cookie { "; " } else { "," };
        joined
            .entry(name)
            .and_modify(|joined| {
                joined.push_str(separator);
                joined.push_str(&value);
            })
            .or_insert_with(|| value.clone().into_owned());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let forwarded_for = joined.entry("x-forwarded-for".to_owned()).or_default();
    if !forwarded_for.is_empty() {
        forwarded_for.push(',');
    }
    forwarded_for.push_str(&text(client.ip_text));
    joined.insert("x-forwarded-proto".to_owned(), policy::scheme(asked).name().to_owned());
    joined.insert(":method".to_owned(), text(head.method_name.get(buffer)));
    joined.insert(":path".to_owned(), text(policy::passed_on(&asked.paths, head.path.get(buffer), asked.target)));
    joined.insert(":authority".to_owned(), text(head.authority.get(buffer)));
    joined.insert(":scheme".to_owned(), policy::scheme(asked).name().to_owned());
    joined.into_iter().collect()
}

/// # Errors
/// There is no answer, or none with a clear status.
pub(crate) fn verdict(policy: &ExternalAuth, answer: Answer) -> Result<Verdict, Error> {
    // What is too long to be read may be a no with a long page, which must not pass by `fail_open`.
    let Some(answer) = call::message::<CheckResponse>(answer)? else {
        return Ok(Verdict::Denied(Box::new(refusal(policy, Denied::default()))));
    };
    match (answer.status, answer.denied, answer.ok) {
        (Some(Status { code: 0 }), None, ok) => Ok(Verdict::Allowed(grant(policy, ok.unwrap_or_default())?)),
        // Envoy takes this for a yes, and a service that meant one would not write it.
        (None, None, _) | (Some(Status { code: 0 }), Some(_), _) => Err(bad("the answer has no clear status")),
        (_, denied, _) => Ok(Verdict::Denied(Box::new(refusal(policy, denied.unwrap_or_default())))),
    }
}

fn grant(policy: &ExternalAuth, ok: Allowed) -> Result<Grant, Error> {
    let fields = ok.headers.iter().filter_map(pair).map(|(key, value)| (key.as_bytes(), value));
    let remove = ok.headers_to_remove.iter().map(|name| name.to_ascii_lowercase().into());
    Grant::of(policy, fields, remove.collect())
}

fn refusal(policy: &ExternalAuth, denied: Denied) -> Refusal {
    let fields = denied.headers.iter().filter_map(pair).map(|(key, value)| (key.as_bytes(), value));
    let code = denied.status.and_then(|status| u16::try_from(status.code).ok());
    // Envoy's default, and what becomes of a status that could not be a refusal.
    let status = code.filter(|code| (300..=599).contains(code)).unwrap_or(403);
    let (headers, content_type) = passed_on(policy, status, fields);
    let body = (!denied.body.is_empty()).then_some(denied.body);
    Refusal { status, headers, content_type, body }
}

fn pair(option: &HeaderOption) -> Option<(&str, &[u8])> {
    let Header { key, value, raw_value } = option.header.as_ref()?;
    Some((key, if raw_value.is_empty() { value } else { raw_value }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::policy as of;
    use super::*;
    use crate::grpc::Status as Code;
    use crate::policy::testing::asked;
    use crate::question::call::testing::answer;

    fn policy() -> ExternalAuth {
        of(model::AuthProtocol::Grpc(GrpcAuth { host: None, context: Vec::new() }))
    }

    fn headers_of(pairs: &[(&str, &str)]) -> Vec<HeaderOption> {
        let of = |(key, value): &(&str, &str)| {
            let header = Header { key: (*key).to_owned(), value: value.as_bytes().to_vec(), raw_value: Vec::new() };
            HeaderOption { header: Some(header) }
        };
        pairs.iter().map(of).collect()
    }

    #[test]
    fn a_yes_is_explicit() {
        let ask = |response: CheckResponse| verdict(&policy(), answer(&response.encode_to_vec(), Some(Code::Ok)));
        let ok = Allowed {
            headers: headers_of(&[("X-User", "joe"), ("x-admin", "yes"), ("authorization", "Bearer a")]),
            headers_to_remove: vec!["Cookie".into()],
        };
        let yes = Status { code: 0 };
        let allowed = ask(CheckResponse { status: Some(yes.clone()), denied: None, ok: Some(ok) });
        let Ok(Verdict::Allowed(grant)) = allowed else { panic!("{allowed:?}") };
        let set: Vec<_> = grant.set.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(set, [("x-user", &b"joe"[..]), ("authorization", b"Bearer a")]);
        assert_eq!(grant.remove, ["cookie".into()]);
        let plain = CheckResponse { status: Some(yes.clone()), denied: None, ok: None };
        assert!(matches!(ask(plain.clone()), Ok(Verdict::Allowed(_))));
        assert!(ask(CheckResponse::default()).is_err());
        assert!(ask(CheckResponse { denied: Some(Denied::default()), ..plain.clone() }).is_err());
        assert!(ask(CheckResponse { status: None, denied: None, ok: Some(Allowed::default()) }).is_err());
        let split = Allowed { headers: headers_of(&[("x-user", "a\r\nb: c")]), headers_to_remove: Vec::new() };
        assert!(ask(CheckResponse { ok: Some(split), ..plain.clone() }).is_err());
        let message = plain.encode_to_vec();
        for status in [None, Some(Code::Unavailable), Some(Code::PermissionDenied)] {
            assert!(verdict(&policy(), answer(&message, status)).is_err(), "{status:?}");
        }
        for status in [None, Some(Code::Ok)] {
            let long = Answer { body: Ok(None), ..answer(&message, status) };
            assert!(matches!(verdict(&policy(), long), Ok(Verdict::Denied(_))));
        }
        for broken in [&b"\xff\xff"[..], b"\x0a\x7f"] {
            assert!(verdict(&policy(), answer(broken, Some(Code::Ok))).is_err());
        }
        let two = Answer { body: Ok(Some(b"\0\0\0\0\0\0\0\0\0\0".to_vec())), ..answer(b"", Some(Code::Ok)) };
        assert!(verdict(&policy(), two).is_err());
    }

    #[test]
    fn a_no_has_its_status_and_the_named_headers() {
        let check = |code, denied: Option<Denied>, expect_status, expect_headers: &[&str]| {
            let response = CheckResponse { status: Some(Status { code }), denied, ok: None };
            let asked = verdict(&policy(), answer(&response.encode_to_vec(), Some(Code::Ok)));
            let Ok(Verdict::Denied(refusal)) = asked else { panic!("{asked:?}") };
            let names: Vec<_> = refusal.headers.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((refusal.status, names.as_slice()), (expect_status, expect_headers));
        };
        let denied = |code, headers| Some(Denied { status: Some(HttpStatus { code }), headers, body: Vec::new() });
        check(7, None, 403, &[]);
        check(16, denied(401, Vec::new()), 401, &[]);
        check(7, denied(302, headers_of(&[("Location", "/login"), ("x-internal", "1")])), 302, &["location"]);
        check(7, denied(302, headers_of(&[("location", "/a\r\nset-cookie: b")])), 302, &[]);
        check(7, denied(200, Vec::new()), 403, &[]);
        check(7, denied(-1, Vec::new()), 403, &[]);
    }

    #[test]
    fn the_service_gets_what_is_known() {
        let lines = "GET /a?b=c HTTP/1.1\r\nHost: shop\r\nX-A: 1\r\nx-a: 2\r\nCookie: a=b\r\nCookie: c=d\r\n\
                     X-Forwarded-For: 1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\n";
        let who = OnBehalfOf {
            client: "10.0.0.9:4711".parse().unwrap(),
            is_known: true,
            local: "127.0.0.1:8080".parse().unwrap(),
        };
        let grpc = GrpcAuth { host: None, context: vec![("tier".into(), "gold".into())] };
        let sent =
            |is_trusted| asked(lines, is_trusted, |view| request(&policy(), &grpc, view, who, Some((b"\xff", true))));
        let attributes = sent(false).attributes.unwrap();
        assert_eq!(attributes.context_extensions["tier"], "gold");
        let http = attributes.request.unwrap().http.unwrap();
        assert_eq!((http.method.as_str(), http.path.as_str(), http.host.as_str()), ("GET", "/a?b=c", "shop"));
        assert_eq!((http.headers["x-a"].as_str(), http.headers["cookie"].as_str()), ("1,2", "a=b; c=d"));
        assert_eq!((http.headers["x-forwarded-for"].as_str(), http.headers.get("x-real-ip")), ("10.0.0.9", None));
        assert_eq!((http.raw_body.as_slice(), http.body.as_str()), (&b"\xff"[..], ""));
        let trusted = sent(true).attributes.unwrap().request.unwrap().http.unwrap();
        assert_eq!(trusted.headers["x-forwarded-for"], "1.2.3.4,10.0.0.9");
    }
}

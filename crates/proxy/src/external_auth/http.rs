//! The question over HTTP, in the forms that Traefik's forward-auth, nginx's `auth_request` and the services for both read.
//!
//! | header | value |
//! |---|---|
//! | `X-Forwarded-For`, `-Proto`, `-Host` | as for the endpoint |
//! | `X-Forwarded-Method`, `X-Original-Method` | the method of the client's request |
//! | `X-Forwarded-Uri`, `X-Original-Uri`, `X-Auth-Request-Redirect` | its path and query |
//! | `X-Forwarded-Port` | the port that the client connected to |
//! | `X-Original-Url` | scheme, host, path and query |
//!
//! 200 to 299 is a yes, and 300 to 499 a no. Everything else is no answer: nginx calls it an error, too, and a service that fails should not
//! look as if it refused.

use model::{ExternalAuth, ForwardedHeaders, HeaderChanges, HttpAuth};
use wire::message::{Body, Field, FieldId, Method, RequestHead, Span};

use super::{Grant, Refusal, Verdict, passed_on};
use crate::error::Error;
use crate::exchange::Response;
use crate::http::headers::Client;
use crate::policy::headers::{RequestEdits, is_alike};
use crate::policy::{self, RequestView};
use crate::question::call::bad;
use crate::upstream::cluster::Cluster;
use crate::upstream::subrequest::{Answer, Subrequest};

static UNCHANGED: HeaderChanges = HeaderChanges { set: Vec::new(), add: Vec::new(), remove: Vec::new() };

/// Fields that describe what the client wants of the endpoint. Of a service they would ask for a part of its answer, or for none.
const OF_THE_ENDPOINT: [&[u8]; 6] =
    [b"range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range"];

/// Tells the service that it gets only the beginning of the body.
const PARTIAL: &str = "x-auth-body-partial";

pub(super) fn question(
    policy: &ExternalAuth,
    http: &HttpAuth,
    cluster: &Cluster,
    asked: &RequestView<'_>,
    body: Option<(&[u8], bool)>,
) -> Subrequest {
    let RequestView { head: from, buffer, client, .. } = *asked;
    let mut bytes = buffer.to_vec();
    let mut append = |text: &[u8]| {
        let start = bytes.len() as u32;
        bytes.extend_from_slice(text);
        Span { start, end: bytes.len() as u32 }
    };
    let uri = policy::passed_on(&asked.paths, from.path.get(buffer), asked.target);
    let scheme = policy::scheme(asked).name();
    let host = from.authority.get(buffer);
    let port = client.local.port().to_string();
    let url = [scheme.as_bytes(), b"://", host, uri].concat();
    let method_name = from.method_name.get(buffer);
    let mut own: Vec<(&str, &[u8])> = vec![
        ("x-forwarded-method", method_name),
        ("x-forwarded-uri", uri),
        ("x-forwarded-port", port.as_bytes()),
        ("x-original-method", method_name),
        ("x-original-url", &url),
        ("x-original-uri", uri),
        ("x-auth-request-redirect", uri),
    ];
    if let Some((_, is_whole)) = body {
        own.push((PARTIAL, if is_whole { b"false" } else { b"true" }));
    }
    let is_wanted = |field: &&Field| {
        let name = field.name.get(buffer);
        let is_listed = |names: &Vec<String>| names.iter().any(|listed| name.eq_ignore_ascii_case(listed.as_bytes()));
        let is_named = policy.request_headers.as_ref().is_none_or(is_listed);
        let is_own = || own.iter().any(|(own, _)| is_alike(name, own.as_bytes())) || is_alike(name, PARTIAL.as_bytes());
        match field.id {
            // They say where the request comes from, and are written from what is known about that.
            FieldId::Connection
            | FieldId::XForwardedFor
            | FieldId::XForwardedProto
            | FieldId::XForwardedHost
            | FieldId::Forwarded => true,
            FieldId::ContentLength | FieldId::Expect | FieldId::Trailer => false,
            _ => is_named && !is_own() && !OF_THE_ENDPOINT.iter().any(|of| name.eq_ignore_ascii_case(of)),
        }
    };
    let mut fields: Vec<Field> = from.fields.iter().filter(is_wanted).copied().collect();
    for (name, value) in own {
        let (name, value) = (append(name.as_bytes()), append(value));
        fields.push(Field { id: FieldId::Identity, name, value, never_indexed: false });
    }
    let method = if body.is_some() { Method::Post } else { Method::Get };
    let head = RequestHead {
        method,
        method_name: append(if body.is_some() { b"POST" } else { b"GET" }),
        path: append(http.path.as_bytes()),
        authority: from.authority,
        version: from.version,
        fields,
        body: body.map_or(Body::None, |(body, _)| Body::Length(body.len() as u64)),
        keep_alive: true,
        names_fields: from.names_fields,
        ..RequestHead::default()
    };
    let client = Client { forwarded: ForwardedHeaders::XForwarded, call: None, ..*client };
    let target = head.path.get(&bytes);
    let view = RequestView { head: &head, buffer: &bytes, target, paths: asked.paths, client: &client };
    let edits = RequestEdits { target: Some(target), host: http.host.as_deref(), headers: &UNCHANGED, values: None };
    let mut request = Subrequest::new(cluster, &view, &edits);
    if let Some((body, _)) = body {
        request.put_body(body);
    }
    request
}

pub(crate) fn verdict(policy: &ExternalAuth, answer: Answer) -> Result<Verdict, Error> {
    let status = answer.response.head.status;
    match status {
        200..=299 => {
            // Its body means nothing, but an answer that is cut off may be half of another one.
            let Answer { response, body, .. } = answer;
            body?;
            grant(policy, &response).map(Verdict::Allowed)
        }
        300..=499 => {
            // It is a refusal, whatever becomes of its body.
            let Answer { response, body, .. } = answer;
            let Response { head, bytes, .. } = &response;
            let fields = head.fields.iter().map(|field| (field.name.get(bytes), field.value.get(bytes)));
            let (headers, content_type) = passed_on(policy, fields);
            let body = body.unwrap_or_default();
            Ok(Verdict::Denied(Box::new(Refusal { status, headers, content_type, body })))
        }
        _ => Err(bad("the status is neither a yes nor a no")),
    }
}

/// What the endpoint gets: every field of a name, in the order of the answer.
fn grant(policy: &ExternalAuth, response: &Response) -> Result<Grant, Error> {
    let Response { head, bytes, .. } = response;
    let mut set = Vec::new();
    for name in &policy.response_headers {
        let fields = head.fields.iter().filter(|field| field.name.get(bytes).eq_ignore_ascii_case(name.as_bytes()));
        set.extend(fields.map(|field| (name.as_str().into(), field.value.get(bytes).into())));
    }
    Grant { set, remove: Vec::new() }.checked()
}

#[cfg(test)]
mod tests {
    use wire::h1::parse_response;

    use super::super::tests::policy as of;
    use super::*;

    fn policy() -> ExternalAuth {
        of(model::AuthProtocol::Http(HttpAuth { path: "/".into(), host: None }))
    }

    fn answer(text: &str, body: Result<Option<Vec<u8>>, Error>) -> Answer {
        let mut response = Response::default();
        parse_response(text.as_bytes(), 100, Method::Get, &mut response.head).unwrap();
        response.bytes = text.as_bytes().to_vec();
        Answer { response, body, grpc_status: None }
    }

    fn cut() -> Result<Option<Vec<u8>>, Error> {
        Err(Error::upstream(telemetry::Reason::UpstreamEof))
    }

    #[test]
    fn only_named_headers_reach_the_endpoint() {
        let text = "HTTP/1.1 202 Accepted\r\nX-User: joe\r\nX-User: ann\r\nX-Admin: yes\r\nContent-Length: 0\r\n\r\n";
        let Ok(Verdict::Allowed(grant)) = verdict(&policy(), answer(text, Ok(None))) else { panic!("a yes") };
        let set: Vec<_> = grant.set.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(set, [("x-user", &b"joe"[..]), ("x-user", b"ann")]);
    }

    #[test]
    fn a_refusal_is_one_even_if_its_body_is_cut_off() {
        let text =
            "HTTP/1.1 302 Found\r\nLocation: /login\r\nSet-Cookie: a=b\r\nServer: x\r\nContent-Type: text/html\r\n\r\n";
        for (body, expect) in [(Ok(Some(b"in".to_vec())), Some(b"in".to_vec())), (Ok(None), None), (cut(), None)] {
            let Ok(Verdict::Denied(refusal)) = verdict(&policy(), answer(text, body)) else { panic!("a no") };
            let names: Vec<_> = refusal.headers.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!((refusal.status, names, refusal.body), (302, vec!["location", "set-cookie"], expect));
            assert_eq!(refusal.content_type.as_deref(), Some("text/html"));
        }
    }

    #[test]
    fn anything_else_is_no_answer() {
        let check = |line: &str, body| {
            let text = format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n");
            assert!(verdict(&policy(), answer(&text, body)).is_err(), "{line}");
        };
        check("500 Internal Server Error", Ok(None));
        check("503 Busy", Ok(None));
        check("999 What", Ok(None));
        check("200 OK", cut());
        let long = "a".repeat(super::super::CHANGES_BYTES_MAX);
        check(&format!("200 OK\r\nX-User: {long}"), Ok(None));
    }
}

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
//! Headers that the configuration adds take the place of these, too.
//!
//! The request has one path, or as GEP-1494 wants it, the method and path of the client's request behind a prefix. The path is the one that
//! the routes see: `/../` of a client must not lead to another resource of the service.
//!
//! 200 to 299 is a yes (of GEP-1494 only 200), and 300 to 499 a no. Everything else is no answer: nginx calls it an error, too, and a service that fails should not
//! look as if it refused.

use model::{AuthMethod, AuthProtocol, AuthTarget, ExternalAuth, ForwardedHeaders, HeaderChanges, HttpAuth};
use telemetry::Reason;
use wire::message::{Body, Field, FieldId, Method, RequestHead, Span};

use super::{Grant, Refusal, Verdict, passed_on};
use crate::error::Error;
use crate::exchange::Response;
use crate::http::headers::Client;
use crate::policy::headers::{RequestEdits, is_alike};
use crate::policy::{self, RequestView, request_text, via};
use crate::question::call::bad;
use crate::upstream::cluster::Cluster;
use crate::upstream::subrequest::{Answer, Subrequest};

/// Fields that describe what the client wants of the endpoint. Of a service they would ask for a part of its answer, or for none.
const OF_THE_ENDPOINT: [&[u8]; 6] =
    [b"range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since", b"if-range"];

/// Bytes of the values that are made of the client's request, so that a head for the service is not much longer than one of a client.
const MADE_BYTES_MAX: usize = 64 * 1024;

/// Tells the service that it gets only the beginning of the body.
const PARTIAL: &str = "x-auth-body-partial";

pub(super) fn question(
    policy: &ExternalAuth,
    http: &HttpAuth,
    cluster: &Cluster,
    asked: &RequestView<'_>,
    body: Option<(&[u8], bool)>,
) -> Result<Subrequest, Error> {
    let (changes, target) = (additional(http, asked)?, target(http, asked)?);
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
    let is_decided =
        |name: &[u8]| names(&own).chain(names(&http.headers)).any(|decided| is_alike(name, decided.as_bytes()));
    let mut fields = passed_fields(policy, asked, is_decided);
    for (name, value) in own {
        let (name, value) = (append(name.as_bytes()), append(value));
        fields.push(Field { id: FieldId::Identity, name, value, never_indexed: false });
    }
    let (method, method_name) = match (&http.target, http.method) {
        (AuthTarget::Prefix(_), _) => (from.method, from.method_name),
        (AuthTarget::Path(_), method) => {
            let usual = if body.is_some() { AuthMethod::Post } else { AuthMethod::Get };
            let name = method.unwrap_or(usual).name().as_bytes();
            (Method::of(name), append(name))
        }
    };
    let path = append(&target);
    if body.is_none() && !matches!(method, Method::Get | Method::Head) {
        // The method may promise a body (RFC 9110 section 8.6).
        let (name, value) = (append(b"content-length"), append(b"0"));
        fields.push(Field { id: FieldId::ContentLength, name, value, never_indexed: false });
    }
    let head = RequestHead {
        method,
        method_name,
        path,
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
    let edits =
        RequestEdits { target: Some(target), host: http.host.as_deref(), headers: &changes, ..RequestEdits::NONE };
    let mut request = Subrequest::new(cluster, &view, &edits);
    if let Some((body, _)) = body {
        request.put_body(body);
    }
    Ok(request)
}

/// The headers that the configuration adds. What comes out empty is removed.
///
/// # Errors
/// They are too long.
fn additional(http: &HttpAuth, asked: &RequestView<'_>) -> Result<HeaderChanges, Error> {
    let mut changes = HeaderChanges::default();
    let mut left = MADE_BYTES_MAX;
    for (name, parts) in &http.headers {
        let value = request_text::field_value(parts, asked);
        left = left.checked_sub(value.len()).ok_or_else(|| Error::downstream(Reason::HeaderTooLarge))?;
        match value.is_empty() {
            true => changes.remove.push(name.clone()),
            false => changes.set.push((name.clone(), value.into())),
        }
    }
    Ok(changes)
}

/// The path and the query.
///
/// # Errors
/// The query is too long.
fn target(http: &HttpAuth, asked: &RequestView<'_>) -> Result<Vec<u8>, Error> {
    let path = match &http.target {
        AuthTarget::Prefix(prefix) => return Ok(behind(prefix, asked.target)),
        AuthTarget::Path(path) => path,
    };
    let mut target = path.clone();
    if !http.query.is_empty() {
        target.push('?');
        request_text::put_in_url(&http.query, asked, &mut target);
    }
    if target.len() > MADE_BYTES_MAX { Err(Error::downstream(Reason::HeaderTooLarge)) } else { Ok(target.into_bytes()) }
}

fn names<S: AsRef<str>, V>(headers: &[(S, V)]) -> impl Iterator<Item = &str> {
    headers.iter().map(|(name, _)| name.as_ref())
}

/// A target behind a prefix. It has the normal form, in which no `..` leads out of the prefix. `*` of `OPTIONS *` is not a path, and becomes the
/// last segment of one.
fn behind(prefix: &str, target: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if target.starts_with(b"/") { b"" } else { b"/" };
    [prefix.as_bytes(), slash, target].concat()
}

/// The fields of the client's request that the service gets, besides those that are decided here.
fn passed_fields(policy: &ExternalAuth, asked: &RequestView<'_>, is_decided: impl Fn(&[u8]) -> bool) -> Vec<Field> {
    let RequestView { head, buffer, .. } = *asked;
    let is_wanted = |field: &&Field| {
        let name = field.name.get(buffer);
        let is_listed = |names: &Vec<String>| names.iter().any(|listed| name.eq_ignore_ascii_case(listed.as_bytes()));
        let is_named = policy.request_headers.as_ref().is_none_or(is_listed);
        let is_own = || is_decided(name) || is_alike(name, PARTIAL.as_bytes());
        match field.id {
            // They say where the request comes from, and are written from what is known about that.
            FieldId::Connection
            | FieldId::XForwardedFor
            | FieldId::XForwardedProto
            | FieldId::XForwardedHost
            | FieldId::Forwarded => true,
            FieldId::ContentLength | FieldId::Expect | FieldId::Trailer => false,
            // Neither the policy nor what it adds takes it away.
            _ if via::stays(name) => true,
            _ => is_named && !is_own() && !OF_THE_ENDPOINT.iter().any(|of| name.eq_ignore_ascii_case(of)),
        }
    };
    head.fields.iter().filter(is_wanted).copied().collect()
}

/// Whether every 2xx is a yes. GEP-1494 wants 200 alone.
fn takes_any(policy: &ExternalAuth) -> bool {
    !matches!(&policy.protocol, AuthProtocol::Http(HttpAuth { target: AuthTarget::Prefix(_), .. }))
}

pub(crate) fn verdict(policy: &ExternalAuth, answer: Answer) -> Result<Verdict, Error> {
    let status = answer.response.head.status;
    match status {
        201..=299 if !takes_any(policy) => Err(bad("the status is not 200, which alone is a yes")),
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
            let (headers, content_type) = passed_on(policy, status, fields);
            let body = body.unwrap_or_default();
            Ok(Verdict::Denied(Box::new(Refusal { status, headers, content_type, body })))
        }
        _ => Err(bad("the status is neither a yes nor a no")),
    }
}

fn grant(policy: &ExternalAuth, response: &Response) -> Result<Grant, Error> {
    let Response { head, bytes, .. } = response;
    Grant::of(policy, head.fields.iter().map(|field| (field.name.get(bytes), field.value.get(bytes))), Vec::new())
}

#[cfg(test)]
mod tests {
    use model::{RequestPart, SetCookie};
    use wire::h1::parse_response;

    use super::super::tests::policy as of;
    use super::*;

    fn policy() -> ExternalAuth {
        of(model::AuthProtocol::Http(HttpAuth {
            target: AuthTarget::Path("/".into()),
            method: None,
            host: None,
            query: [].into(),
            headers: Vec::new(),
        }))
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
    fn nothing_takes_a_name_out_of_the_way_of_a_question() {
        let named = ExternalAuth { request_headers: Some(vec!["cookie".to_owned()]), ..policy() };
        let lines = "GET / HTTP/1.1\r\nHost: a\r\nCDN-Loop: b\r\ncdn_loop: c\r\nCookie: d=e\r\nX-A: f\r\n";
        policy::testing::asked(lines, false, |asked| {
            // What the policy adds is called so, too.
            let passed = passed_fields(&named, asked, |name| is_alike(name, b"cdn-loop"));
            let passed: Vec<_> = passed.iter().map(|field| field.value.get(asked.buffer)).collect();
            assert_eq!(passed, [&b"b"[..], b"d=e"]);
        });
    }

    #[test]
    fn only_named_headers_reach_the_endpoint() {
        let text = "HTTP/1.1 202 Accepted\r\nX-User: joe\r\nX-User: ann\r\nX-Admin: yes\r\nContent-Length: 0\r\n\r\n";
        let Ok(Verdict::Allowed(grant)) = verdict(&policy(), answer(text, Ok(None))) else { panic!("a yes") };
        let set: Vec<_> = grant.set.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(set, [("x-user", &b"joe"[..]), ("x-user", b"ann")]);
    }

    #[test]
    fn the_client_gets_the_cookies_of_a_yes_if_it_is_to() {
        let text =
            "HTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nSET-COOKIE: c=d\r\nX-User: joe\r\nContent-Length: 0\r\n\r\n";
        let check = |set_cookie: SetCookie, status: u16, expect: &str| {
            let policy = ExternalAuth { set_cookie, ..policy() };
            let Ok(Verdict::Allowed(grant)) = verdict(&policy, answer(text, Ok(None))) else { panic!("a yes") };
            let mut out = Vec::new();
            if let Some(cookies) = super::super::Cookies::of(&policy, &grant) {
                cookies.write(&mut out, status);
            }
            assert_eq!(String::from_utf8(out).unwrap(), expect, "{set_cookie:?} {status}");
        };
        let both = "set-cookie: a=b; Path=/\r\nset-cookie: c=d\r\n";
        check(SetCookie::Off, 200, "");
        check(SetCookie::Success, 200, both);
        check(SetCookie::Success, 308, both);
        check(SetCookie::Success, 404, "");
        check(SetCookie::Success, 101, "");
        check(SetCookie::Always, 502, both);
        check(SetCookie::Always, 101, both);
        check(SetCookie::Always, 103, "");
    }

    #[test]
    fn a_403_may_be_bare() {
        let check = |is_403_bare, status: u16, expect: usize| {
            let text = format!("HTTP/1.1 {status} No\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n");
            let policy = ExternalAuth { is_403_bare, refusal_headers: vec!["www-authenticate".into()], ..policy() };
            let Ok(Verdict::Denied(refusal)) = verdict(&policy, answer(&text, Ok(None))) else { panic!("a no") };
            assert_eq!(refusal.headers.len(), expect, "{status}");
        };
        check(true, 401, 1);
        check(true, 403, 0);
        check(false, 403, 1);
    }

    #[test]
    fn only_200_is_a_yes_for_the_gateway_api() {
        let policy = of(AuthProtocol::Http(HttpAuth {
            target: AuthTarget::Prefix(String::new()),
            method: None,
            host: None,
            query: [].into(),
            headers: Vec::new(),
        }));
        let check = |status: &str, expect: Option<bool>| {
            let text = format!("HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n");
            let found = verdict(&policy, answer(&text, Ok(None))).ok();
            assert_eq!(found.map(|verdict| matches!(verdict, Verdict::Allowed(_))), expect, "{status}");
        };
        check("200", Some(true));
        check("201", None);
        check("204", None);
        check("302", Some(false));
        check("401", Some(false));
        check("500", None);
    }

    #[test]
    fn no_path_leads_out_of_the_prefix() {
        let check = |prefix: &str, line: &str, expect: &str| {
            let target = crate::policy::testing::asked(&format!("{line} HTTP/1.1\r\nHost: a\r\n"), false, |asked| {
                behind(prefix, asked.target)
            });
            assert_eq!(String::from_utf8_lossy(&target), expect, "{line}");
        };
        check("/check", "GET /a?b=/../c", "/check/a?b=/../c");
        check("/check", "GET /../admin", "/check/admin");
        check("/check", "GET /a/%2e%2E/../../admin?x", "/check/admin?x");
        check("/check", "GET /a//b/.", "/check/a/b/");
        check("/check", "OPTIONS *", "/check/*");
        check("", "OPTIONS *", "/*");
    }

    #[test]
    fn headers_of_the_configuration() {
        let header = |name: &str, part: RequestPart| (name.to_owned(), [part].into());
        let http = HttpAuth {
            target: AuthTarget::Path("/".into()),
            method: None,
            host: None,
            headers: vec![
                header("x-uri", RequestPart::Target),
                header("x-app", RequestPart::Text("shop".to_owned())),
                header("x-none", RequestPart::Cookie("none".to_owned())),
            ],
            query: [RequestPart::Text("u=".to_owned()), RequestPart::Target].into(),
        };
        let check = |path: &str, expect: Option<HeaderChanges>| {
            let lines = format!("GET {path} HTTP/1.1\r\nHost: a\r\n");
            assert_eq!(crate::policy::testing::asked(&lines, false, |asked| additional(&http, asked)).ok(), expect);
        };
        let set = vec![("x-uri".to_owned(), "/a?b".into()), ("x-app".to_owned(), "shop".into())];
        check("/a?b", Some(HeaderChanges { set, remove: vec!["x-none".to_owned()], ..HeaderChanges::default() }));
        check(&format!("/{}", "a".repeat(MADE_BYTES_MAX)), None);
        let asks = |path: &str| {
            let lines = format!("GET {path} HTTP/1.1\r\nHost: a\r\n");
            crate::policy::testing::asked(&lines, false, |asked| target(&http, asked)).ok()
        };
        assert_eq!(asks("/a?b=c&d").as_deref(), Some(&b"/?u=%2Fa%3Fb%3Dc%26d"[..]));
        assert_eq!(asks(&format!("/{}", "a".repeat(MADE_BYTES_MAX))), None);
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

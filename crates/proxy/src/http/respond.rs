//! The responses for failed requests: the one function that maps reasons to statuses.

use std::borrow::Cow;

use model::HeaderChanges;
use net::clock;
use telemetry::{Reason, ReasonGroup};
use wire::h1;
use wire::message::{Method, Version};

use crate::error::Error;
use crate::exchange::transfer::Head;
use crate::external_auth::Cookies;
use crate::grpc::Answer;
use crate::http::headers::{self, Out};
use crate::http::pages::Page;
use crate::policy::cors::CorsEdits;
use crate::policy::headers::{added, drops};
use crate::policy::rate_headers::Quotas;
use crate::policy::request_id;
use crate::policy::values::Values;

/// The status for a reason. `None` closes the connection without one, because the client is gone or has asked nothing.
#[expect(clippy::too_many_lines, reason = "one table, which the compiler checks against the list of reasons")]
pub(crate) fn status(error: &Error) -> Option<u16> {
    Some(match error.reason {
        Reason::BadRequestLine
        | Reason::BadHeader
        | Reason::BadFraming
        | Reason::BadHost
        | Reason::AmbiguousPath
        | Reason::EncodingInvalid
        // As with nginx. There is no status for it.
        | Reason::ClientCertMissing
        | Reason::ClientCertInvalid
        | Reason::PlainHttp => 400,
        Reason::BadVersion => 505,
        // RFC 9220 section 3 says this for a protocol that is not supported over HTTP/3.
        Reason::MethodNotSupported | Reason::UpstreamNoTunnel => 501,
        Reason::HeaderTooLarge | Reason::TooManyHeaders => 431,
        Reason::UriTooLong => 414,
        Reason::BodyTooLarge | Reason::DecompressedTooLarge => 413,
        // RFC 9110 section 15.5.16.
        Reason::EncodingUnsupported => 415,
        // RFC 6585 section 4. A route may say otherwise of the first two (`Exchange::status_above_limit`).
        Reason::RateLimited
        | Reason::ConcurrencyLimited
        | Reason::GlobalRateLimited
        | Reason::ClientConnectionsFull
        | Reason::TokenAttempts => 429,
        Reason::HeaderTimeout | Reason::BodyTimeout | Reason::BodyTooSlow => 408,
        Reason::ExpectationFailed => 417,
        Reason::CredentialsMissing
        | Reason::CredentialsInvalid
        | Reason::TokenExpired
        | Reason::TokenNotYetValid
        | Reason::TokenKeyUnknown => 401,
        // A refusal has a status of its own; this one is for calls.
        Reason::ClientDenied
        | Reason::ClientCertDenied
        | Reason::ExternalAuthDenied
        | Reason::TokenAudience
        | Reason::ClaimsDenied => 403,
        Reason::NoRoute => 404,
        // RFC 5842 section 7.2, and RFC 8586 section 3.
        Reason::LoopDetected => 508,
        // RFC 9110 section 15.5.20: the client may try again over another connection.
        Reason::Misdirected => 421,
        // No endpoint can be asked now, but that may change.
        Reason::ConnectionsFull
        | Reason::MemoryFull
        | Reason::NoEndpoint
        | Reason::PendingFull
        | Reason::PendingTimeout
        | Reason::NoLocalResources
        | Reason::Maintenance
        | Reason::BuffersFull
        | Reason::AuthenticationBusy
        | Reason::TokenKeysMissing
        | Reason::TokensBusy
        | Reason::ExternalAuthFailed
        | Reason::RateLimitFailed
        | Reason::Draining => 503,
        // RFC 9110 section 15.6.3: the endpoint, or the path to it, gave no valid response.
        Reason::ConnectRefused
        | Reason::ConnectFailed
        | Reason::UpstreamTls
        | Reason::UpstreamTlsExpired
        | Reason::UpstreamTlsIssuer
        | Reason::UpstreamTlsName
        | Reason::UpstreamTlsCertificate
        | Reason::UpstreamTlsAlert
        | Reason::UpstreamReset
        | Reason::UpstreamEof
        | Reason::UpstreamBadHead
        | Reason::UpstreamBadFraming
        | Reason::UpstreamHeadTooLarge
        | Reason::UpstreamNotGrpc
        | Reason::UpstreamH2
        | Reason::UpstreamRefused
        | Reason::UpstreamPingTimeout
        // The client gets the status that was to be replaced.
        | Reason::ErrorBackendFailed
        | Reason::RetryBudget => 502,
        // RFC 9110 section 15.6.5: no response in time.
        Reason::ConnectTimeout | Reason::ResponseTimeout | Reason::RequestTimeout | Reason::PerTryTimeout => 504,
        Reason::ClientReset
        | Reason::ClientEof
        | Reason::SlowRead
        | Reason::ReadTooSlow
        | Reason::IdleTimeout
        | Reason::TunnelIdle
        | Reason::EndpointUnhealthy
        | Reason::BadProxyProtocol
        | Reason::ProxyProtocolTimeout
        | Reason::TlsHandshake
        | Reason::TlsHandshakeTimeout
        | Reason::NotCaptured
        | Reason::UnknownDestination
        | Reason::PlainText
        | Reason::SpiffeId
        // A violation of the protocol is answered in the protocol: RST_STREAM or GOAWAY.
        | Reason::NotHttp
        | Reason::H2Preface
        | Reason::H2FrameSize
        | Reason::H2StreamId
        | Reason::H2StreamClosed
        | Reason::H2Padding
        | Reason::H2Continuation
        | Reason::H2Push
        | Reason::H2Setting
        | Reason::H2Priority
        | Reason::H2WindowUpdate
        | Reason::H2FlowControl
        | Reason::H2Compression
        | Reason::H2Field
        | Reason::H2ConnectionField
        | Reason::H2PseudoHeader
        | Reason::H2Authority
        | Reason::H2ContentLength
        | Reason::H2Response
        | Reason::H2Trailers
        | Reason::H2HeadTooLarge
        | Reason::H2HeadFlood
        | Reason::H2StreamLimit
        | Reason::H2Glitches
        | Reason::H2OutputFlood
        | Reason::H2SettingsTimeout
        | Reason::H2PingTimeout
        | Reason::MirrorTooLarge
        | Reason::MirrorFull
        | Reason::MirrorFailed => return None,
        // Time does not fix these (HTTPBackendRef of the Gateway API says 500, too).
        Reason::ClusterMissing | Reason::Internal => 500,
    })
}

/// The phrase that is registered for a status (the HTTP Status Code Registry of IANA; for 418, RFC 2324). A status that is not registered
/// gets the name of its class.
pub(crate) fn phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        418 => "I'm a teapot",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        510 => "Not Extended",
        511 => "Network Authentication Required",
        _ => match status / 100 {
            ..=2 => "Success",
            3 => "Redirection",
            4 => "Client Error",
            _ => "Server Error",
        },
    }
}

/// The reason in a response body, if the client caused it or asked for it. Failures behind this hop are only for the access log and the
/// metrics.
pub(crate) fn word(reason: Reason) -> Option<&'static str> {
    matches!(reason.group(), ReasonGroup::Downstream | ReasonGroup::Routing).then_some(reason.name())
}

/// A response that Steelyard makes itself.
#[derive(Clone, Copy)]
pub(crate) struct Own<'o> {
    pub(crate) status: u16,
    pub(crate) content: Content<'o>,
    /// A field that belongs to this status: its name and value.
    pub(crate) field: Option<(&'static str, &'o [u8])>,
    /// The fields that the configuration adds.
    pub(crate) headers: &'o [(String, String)],
}

/// The body of such a response.
#[derive(Clone, Copy)]
pub(crate) enum Content<'o> {
    /// One line that names no endpoint and no cluster: the status, and the reason or an explanation, if the client gets one.
    Line(Option<&'static str>),
    /// The same as a problem document (RFC 9457).
    Problem(Option<&'static str>),
    /// A page of the configuration, which does not depend on the request.
    Page(&'o Page),
    /// A page of the configuration that was chosen by `Accept`.
    Negotiated(&'o Page),
    Empty,
}

impl<'o> Own<'o> {
    /// A response of one line.
    pub(crate) fn line(status: u16, word: Option<&'static str>) -> Self {
        Self { status, content: Content::Line(word), field: None, headers: &[] }
    }

    /// The type of the body, and the body. `None` if a message with this status has neither a body nor a length (RFC 9110 sections 8.6,
    /// 15.3.5 and 15.4.5).
    fn body(&self) -> Option<(&'o str, Cow<'o, [u8]>)> {
        let (status, phrase) = (self.status, phrase(self.status));
        if matches!(status, 204 | 304) {
            return None;
        }
        Some(match self.content {
            Content::Line(word) => {
                let body = match word {
                    None => format!("{status} {phrase}\n"),
                    Some(word) => format!("{status} {phrase}: {word}\n"),
                };
                ("text/plain; charset=utf-8", Cow::Owned(body.into()))
            }
            Content::Problem(word) => {
                // Neither a phrase nor a word has a character that JSON escapes.
                let detail = word.map(|word| format!(",\"detail\":\"{word}\"")).unwrap_or_default();
                let body = format!("{{\"status\":{status},\"title\":\"{phrase}\"{detail}}}\n");
                ("application/problem+json", Cow::Owned(body.into()))
            }
            Content::Page(page) | Content::Negotiated(page) => (&page.content_type, Cow::Borrowed(&*page.body)),
            Content::Empty => ("", Cow::Borrowed(b"")),
        })
    }
}

/// What every response on a listener or a route gets besides its own fields.
pub(crate) struct Additions<'o> {
    pub(crate) cors: Option<CorsEdits<'o>>,
    /// The id of the request, if clients get it.
    pub(crate) request_id: Option<&'o str>,
    /// What the client is told about its limits.
    pub(crate) quotas: Option<&'o Quotas>,
    /// The cookies of external authorization.
    pub(crate) cookies: Option<&'o Cookies>,
    /// The changes of the route.
    pub(crate) changes: Option<OwnChanges<'o>>,
}

/// The changes of a route to a response of our own.
pub(crate) struct OwnChanges<'o> {
    headers: &'o HeaderChanges,
    /// The fields that it adds.
    fields: Vec<(&'o [u8], Cow<'o, [u8]>)>,
}

impl<'o> OwnChanges<'o> {
    pub(crate) fn new(headers: &'o HeaderChanges, values: &Values<'_>) -> Self {
        Self { headers, fields: added(headers, Some(values)).collect() }
    }

    /// Adds the fields. In the response to a call, those by which its client recognises it are not changed.
    fn write(&self, out: &mut impl Out, is_call: bool) {
        for (name, value) in self.fields.iter().filter(|(name, _)| !is_call || !is_of_call(name)) {
            out.field(name, value, false);
        }
    }
}

fn is_of_call(name: &[u8]) -> bool {
    name == b"content-type" || name.starts_with(b"grpc-")
}

/// Leaves out the fields that the changes of a route remove or replace.
struct Changed<'o, O> {
    out: &'o mut O,
    headers: &'o HeaderChanges,
    /// Takes the value of such a field.
    left_out: Vec<u8>,
    is_left_out: bool,
}

impl<'o, O: Out> Changed<'o, O> {
    fn new(out: &'o mut O, headers: &'o HeaderChanges) -> Self {
        Self { out, headers, left_out: Vec::new(), is_left_out: false }
    }
}

impl<O: Out> Out for Changed<'_, O> {
    fn value(&mut self, name: &[u8]) -> &mut Vec<u8> {
        self.is_left_out = drops(self.headers, name);
        if self.is_left_out {
            self.left_out.clear();
            return &mut self.left_out;
        }
        self.out.value(name)
    }

    fn end(&mut self, never_indexed: bool) {
        if !self.is_left_out {
            self.out.end(never_indexed);
        }
    }
}

impl Additions<'_> {
    pub(crate) const NONE: Self = Self { cors: None, request_id: None, quotas: None, cookies: None, changes: None };

    /// The same for a gRPC call.
    fn write_to_call(&self, out: &mut impl Out) {
        let Some(changes) = &self.changes else { return self.write(out, 200, &[]) };
        self.write(&mut Changed::new(out, changes.headers), 200, &[]);
        changes.write(out, true);
    }

    fn write(&self, out: &mut impl Out, status: u16, headers: &[(String, String)]) {
        if let Some(cors) = &self.cors {
            cors.write_own(out);
        }
        if let Some(quotas) = self.quotas {
            quotas.write(out);
        }
        if let Some(cookies) = self.cookies {
            cookies.write(out, status);
        }
        let is_set = |name: &[u8]| headers.iter().any(|(set, _)| set.as_bytes() == name);
        if let Some(id) = self.request_id.filter(|_| !is_set(request_id::NAME)) {
            out.field(request_id::NAME, id.as_bytes(), false);
        }
    }
}

/// Writes a complete response. For HTTP/2 it writes the head, and returns the body.
pub(crate) fn write_own<'o>(
    out: Head<'_>,
    own: &Own<'o>,
    to: &headers::ResponseContext,
    additions: &Additions<'_>,
) -> Option<Cow<'o, [u8]>> {
    let out = match out {
        Head::H1(out) => {
            write(out, own, to, additions);
            return None;
        }
        Head::H2(out) => out,
    };
    out.status = own.status;
    let body = write_own_fields(out, own, additions);
    body.filter(|_| to.method != Method::Head)
}

/// Writes all fields that do not depend on the connection, and returns the body.
fn write_own_fields<'o>(out: &mut impl Out, own: &Own<'o>, additions: &Additions<'_>) -> Option<Cow<'o, [u8]>> {
    let Some(changes) = &additions.changes else { return write_unchanged_fields(out, own, additions) };
    let body = write_unchanged_fields(&mut Changed::new(out, changes.headers), own, additions);
    changes.write(out, false);
    body
}

fn write_unchanged_fields<'o>(out: &mut impl Out, own: &Own<'o>, additions: &Additions<'_>) -> Option<Cow<'o, [u8]>> {
    let (content_type, body) = own.body().unzip();
    if let Some(content_type) = content_type.filter(|content_type| !content_type.is_empty()) {
        out.field(b"content-type", content_type.as_bytes(), false);
    }
    out.field(b"date", &clock::http_date(), false);
    if let Some((name, value)) = own.field {
        out.field(name.as_bytes(), value, false);
    }
    for (name, value) in own.headers {
        out.field(name.as_bytes(), value.as_bytes(), false);
    }
    if let Content::Problem(_) | Content::Negotiated(_) = own.content {
        out.field(b"vary", b"accept", false);
    }
    additions.write(out, own.status, own.headers);
    if let Some(body) = &body {
        h1::decimal(out.value(b"content-length"), body.len() as u64);
        out.end(false);
    }
    body
}

/// Writes the response to a gRPC call, with the trailers in its head.
pub(crate) fn write_call(
    out: Head<'_>,
    answer: &Answer,
    version: Version,
    keep_alive: bool,
    additions: &Additions<'_>,
) {
    match out {
        Head::H1(out) => {
            h1::status_line(out, Version::Http11, 200, b"OK");
            for (name, value) in answer.head() {
                h1::field(out, name, value);
            }
            h1::field(out, b"date", &clock::http_date());
            additions.write_to_call(out);
            h1::field(out, b"content-length", b"0");
            write_persistence(out, keep_alive, version);
            out.extend_from_slice(b"\r\n");
        }
        Head::H2(out) => {
            out.status = 200;
            for (name, value) in answer.head() {
                out.field(name, value, false);
            }
            out.field(b"date", &clock::http_date(), false);
            additions.write_to_call(out);
        }
    }
}

/// Writes a complete HTTP/1 response.
pub(crate) fn write(out: &mut Vec<u8>, own: &Own<'_>, to: &headers::ResponseContext, additions: &Additions<'_>) {
    h1::status_line(out, Version::Http11, own.status, phrase(own.status).as_bytes());
    let body = write_own_fields(out, own, additions);
    write_persistence(out, to.keep_alive, to.version);
    out.extend_from_slice(b"\r\n");
    if let Some(body) = body.filter(|_| to.method != Method::Head) {
        out.extend_from_slice(&body);
    }
}

fn write_persistence(out: &mut Vec<u8>, keep_alive: bool, version: Version) {
    match (keep_alive, version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, Version::Http11 | Version::Http2) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_says_status_and_reason() {
        let check = |own: Own<'_>, method, keep_alive, expect: &str| {
            let mut out = Vec::new();
            let to = headers::ResponseContext { method, version: Version::Http11, keep_alive, web: None };
            write(&mut out, &own, &to, &Additions::NONE);
            let date = clock::http_date();
            let text = String::from_utf8(out).unwrap();
            // A second may have passed since.
            let at = text.find("\r\ndate: ").unwrap() + 2;
            let undated = format!("{}{}", &text[..at], &text[at + "date: \r\n".len() + date.len()..]);
            assert_eq!(undated, expect);
        };
        check(
            Own::line(502, word(Reason::ConnectRefused)),
            Method::Get,
            true,
            "HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 16\r\n\r\n502 Bad Gateway\n",
        );
        check(
            Own::line(404, word(Reason::NoRoute)),
            Method::Get,
            false,
            "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 24\r\nconnection: close\r\n\r\n\
             404 Not Found: no_route\n",
        );
        check(Own::line(204, None), Method::Options, true, "HTTP/1.1 204 No Content\r\n\r\n");
        let json: Page = Page { content_type: "application/json".into(), body: (*b"{}").into() };
        check(
            Own { content: Content::Negotiated(&json), ..Own::line(503, None) },
            Method::Get,
            true,
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nvary: accept\r\ncontent-length: 2\r\n\r\n{}",
        );
        check(
            Own { content: Content::Problem(Some("no_route")), ..Own::line(404, None) },
            Method::Get,
            true,
            "HTTP/1.1 404 Not Found\r\ncontent-type: application/problem+json\r\nvary: accept\r\ncontent-length: 55\r\n\r\n\
             {\"status\":404,\"title\":\"Not Found\",\"detail\":\"no_route\"}\n",
        );
        let headers = [("x-a".to_owned(), "1".to_owned())];
        check(
            Own { content: Content::Empty, headers: &headers, ..Own::line(200, None) },
            Method::Get,
            true,
            "HTTP/1.1 200 OK\r\nx-a: 1\r\ncontent-length: 0\r\n\r\n",
        );
        check(
            Own { field: Some(("location", b"https://a/")), ..Own::line(308, Some("redirect")) },
            Method::Head,
            true,
            "HTTP/1.1 308 Permanent Redirect\r\ncontent-type: text/plain; charset=utf-8\r\nlocation: https://a/\r\n\
             content-length: 33\r\n\r\n",
        );
    }

    #[test]
    fn a_route_changes_responses_of_our_own() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.into());
        let headers = HeaderChanges {
            set: vec![pair("content-type", "text/html"), pair("x-a", "1")],
            add: vec![pair("location", "/b")],
            remove: vec!["vary".to_owned(), "date".to_owned()],
        };
        let fields = added(&headers, None).collect();
        let additions = Additions { changes: Some(OwnChanges { headers: &headers, fields }), ..Additions::NONE };
        let to =
            headers::ResponseContext { method: Method::Get, version: Version::Http11, keep_alive: true, web: None };
        let own = Own { content: Content::Problem(None), field: Some(("location", b"/a")), ..Own::line(302, None) };
        let mut out = Vec::new();
        write(&mut out, &own, &to, &additions);
        let text = String::from_utf8(out).unwrap();
        let head = "HTTP/1.1 302 Found\r\nlocation: /a\r\ncontent-length: 31\r\ncontent-type: text/html\r\nx-a: 1\r\nlocation: /b\r\n\r\n";
        assert_eq!(text, format!("{head}{{\"status\":302,\"title\":\"Found\"}}\n"));

        let mut out = Vec::new();
        additions.write_to_call(&mut out);
        assert_eq!(String::from_utf8(out).unwrap(), "x-a: 1\r\nlocation: /b\r\n");
    }

    #[test]
    fn statuses_have_their_phrases() {
        for reason in Reason::ALL {
            if let Some(status) = status(&Error::internal(*reason)) {
                assert!(!phrase(status).ends_with(" Error") || status == 500, "{status} of {}", reason.name());
            }
        }
        let phrases = [299, 301, 399, 410, 418, 499, 503, 599].map(phrase);
        let expect = ["Success", "Moved Permanently", "Redirection", "Gone", "I'm a teapot", "Client Error"];
        assert_eq!(phrases, [&expect[..], &["Service Unavailable", "Server Error"]].concat()[..]);
    }
}

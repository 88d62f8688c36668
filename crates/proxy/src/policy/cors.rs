//! Requests of scripts from other origins (CORS, in the Fetch standard): the answer to a preflight request, and the fields that tell a
//! browser which scripts may read a response.
//!
//! Nothing is kept between a request and its response: its head is still there when the response is written.

use std::io::Write;

use model::{Cors, CorsNames, CorsOrigins, HeaderChanges, Origin};
use wire::message::{Field, Method, RequestHead};

use super::headers::puts;
use crate::http::headers::Out;

/// Fields that scripts may read in any case ("CORS-safelisted response-header name"), and those that they may never read.
const NOT_EXPOSED: [&[u8]; 9] = [
    b"cache-control",
    b"content-language",
    b"content-length",
    b"content-type",
    b"expires",
    b"last-modified",
    b"pragma",
    b"set-cookie",
    b"set-cookie2",
];

/// A preflight request: a browser asks whether a script of an origin may use a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preflight<'b> {
    /// The method that the script wants to use.
    pub(crate) method: &'b [u8],
}

impl<'b> Preflight<'b> {
    /// `None` if the request is another one. One of these requests that has no single origin or method comes from no browser.
    pub(crate) fn of(method: Method, fields: &[Field], buffer: &'b [u8]) -> Option<Self> {
        if method != Method::Options {
            return None;
        }
        only(fields, buffer, b"origin")?;
        Some(Self { method: only(fields, buffer, b"access-control-request-method")? })
    }
}

/// The value of the only field with this name; `None` if there is none or more than one.
fn only<'b>(fields: &[Field], buffer: &'b [u8], name: &'static [u8]) -> Option<&'b [u8]> {
    let mut values = named(fields, buffer, name);
    values.next().filter(|_| values.next().is_none())
}

fn named<'b>(fields: &[Field], buffer: &'b [u8], name: &'static [u8]) -> impl Iterator<Item = &'b [u8]> {
    let is_it =
        move |field: &&Field| field.name.len() == name.len() && field.name.get(buffer).eq_ignore_ascii_case(name);
    fields.iter().filter(is_it).map(move |field| field.value.get(buffer))
}

/// Whether scripts of the request's origin may use the route. Without an origin, nobody asks.
pub(crate) fn is_allowed(cors: &Cors, head: &RequestHead, buffer: &[u8]) -> bool {
    only(&head.fields, buffer, b"origin").is_some_and(|origin| allows(&cors.origins, origin))
}

fn allows(origins: &CorsOrigins, origin: &[u8]) -> bool {
    match origins {
        // It is repeated in the response, so it must be one word.
        CorsOrigins::Any => !origin.is_empty() && origin.iter().all(|byte| byte.is_ascii_graphic() && *byte != b','),
        CorsOrigins::These(matchers) => {
            let origin = std::str::from_utf8(origin).ok().and_then(Origin::parse);
            origin.is_some_and(|origin| matchers.iter().any(|matcher| matcher.matches(&origin)))
        }
    }
}

/// What a route says about the origin of one request, in the response to it.
#[derive(Clone, Copy)]
pub(crate) struct CorsEdits<'e> {
    cors: &'e Cors,
    request: &'e RequestHead,
    /// The bytes that the request's head was read from.
    buffer: &'e [u8],
}

impl<'e> CorsEdits<'e> {
    pub(crate) fn new(cors: &'e Cors, request: &'e RequestHead, buffer: &'e [u8]) -> Self {
        Self { cors, request, buffer }
    }

    /// Whether the endpoint's field with this name is left out.
    pub(crate) fn drops(name: &[u8]) -> bool {
        name.first_chunk::<15>().is_some_and(|start| start.eq_ignore_ascii_case(b"access-control-"))
            && Cors::DECIDED.iter().any(|decided| name.eq_ignore_ascii_case(decided.as_bytes()))
    }

    /// Writes the fields for a response of Steelyard's own.
    pub(crate) fn write_own(&self, out: &mut impl Out) {
        if let Some(preflight) = Preflight::of(self.request.method, &self.request.fields, self.buffer) {
            self.write_preflight(out, preflight);
        } else {
            self.write(out, &[], b"", &HeaderChanges::default());
        }
    }

    /// Writes the fields for a response with these other fields, of which `changes` are the route's.
    pub(crate) fn write(&self, out: &mut impl Out, fields: &[Field], buffer: &[u8], changes: &HeaderChanges) {
        let is_allowed = self.write_origin(out);
        if self.is_by_origin() {
            out.field(b"vary", b"origin", false);
        }
        if !is_allowed || self.cors.expose.is_none() {
            return;
        }
        if self.cors.expose == CorsNames::Any && self.cors.credentials {
            // Browsers take `*` for the name of a header if the request has credentials.
            let received = fields.iter().map(|field| field.name.get(buffer));
            let exposed = exposed(received.chain(puts(changes)));
            if !exposed.is_empty() {
                out.field(b"access-control-expose-headers", &exposed.join(&b", "[..]), false);
            }
            return;
        }
        write_names(out.value(b"access-control-expose-headers"), &self.cors.expose, b"*");
        out.end(false);
    }

    fn write_preflight(&self, out: &mut impl Out, preflight: Preflight<'_>) {
        let Cors { methods, headers, expose, max_age, .. } = self.cors;
        let is_allowed = self.write_origin(out);
        out.field(b"vary", b"origin, access-control-request-method, access-control-request-headers", false);
        if !is_allowed {
            return;
        }
        // If everything is allowed, the answer names what was asked for: `*` would not include `authorization`.
        let is_token = |text: &[u8]| !text.is_empty() && text.iter().all(|byte| is_token(*byte));
        if !methods.is_none() && (*methods != CorsNames::Any || is_token(preflight.method)) {
            write_names(out.value(b"access-control-allow-methods"), methods, preflight.method);
            out.end(false);
        }
        let asked = named(&self.request.fields, self.buffer, b"access-control-request-headers");
        let asked: Vec<&[u8]> = asked.flat_map(wire::message::list).filter(|name| is_token(name)).collect();
        if !headers.is_none() && (*headers != CorsNames::Any || !asked.is_empty()) {
            write_names(out.value(b"access-control-allow-headers"), headers, &asked.join(&b", "[..]));
            out.end(false);
        }
        // The standard does not read this field here, but the Gateway API wants it.
        let is_only_known_later = *expose == CorsNames::Any && self.cors.credentials;
        if !expose.is_none() && !is_only_known_later {
            write_names(out.value(b"access-control-expose-headers"), expose, b"*");
            out.end(false);
        }
        // Writing to a Vec cannot fail.
        let _ = write!(out.value(b"access-control-max-age"), "{}", max_age.as_secs());
        out.end(false);
    }

    /// Whether responses differ by the origin of the request, which caches must know.
    fn is_by_origin(&self) -> bool {
        self.cors.credentials || self.cors.origins != CorsOrigins::Any
    }

    /// Returns whether the origin is allowed.
    fn write_origin(&self, out: &mut impl Out) -> bool {
        if !self.is_by_origin() {
            // Without an origin, too: a cache may give the response to a request that has one.
            out.field(b"access-control-allow-origin", b"*", false);
            return true;
        }
        let origin = only(&self.request.fields, self.buffer, b"origin");
        let Some(origin) = origin.filter(|origin| allows(&self.cors.origins, origin)) else { return false };
        out.field(b"access-control-allow-origin", origin, false);
        if self.cors.credentials {
            out.field(b"access-control-allow-credentials", b"true", false);
        }
        true
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn write_names(text: &mut Vec<u8>, names: &CorsNames, any: &[u8]) {
    match names {
        CorsNames::Any => text.extend_from_slice(any),
        CorsNames::These(names) => text.extend_from_slice(names.join(", ").as_bytes()),
    }
}

/// The names that scripts cannot read otherwise, each once.
fn exposed<'n>(names: impl Iterator<Item = &'n [u8]>) -> Vec<&'n [u8]> {
    let mut exposed: Vec<&[u8]> = Vec::new();
    for name in names {
        let is_it = |other: &&[u8]| other.eq_ignore_ascii_case(name);
        if !CorsEdits::drops(name) && !NOT_EXPOSED.iter().any(is_it) && !exposed.iter().any(is_it) {
            exposed.push(name);
        }
    }
    exposed
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use model::OriginMatcher;
    use wire::h1::{Parsed, parse_request, parse_response};
    use wire::message::ResponseHead;

    use super::*;

    fn cors(origins: &[&str], credentials: bool) -> Cors {
        let matchers = || origins.iter().map(|text| OriginMatcher::parse(text).unwrap()).collect();
        let these = |names: &[&str]| CorsNames::These(names.iter().map(|name| (*name).to_owned()).collect());
        Cors {
            origins: if origins == ["*"] { CorsOrigins::Any } else { CorsOrigins::These(matchers()) },
            credentials,
            methods: these(&["GET", "OPTIONS"]),
            headers: these(&["x-header-1", "x-header-2"]),
            expose: these(&["x-header-3", "x-header-4"]),
            max_age: Duration::from_secs(3600),
        }
    }

    fn all(origins: &[&str], credentials: bool) -> Cors {
        let any = CorsNames::Any;
        Cors { methods: any.clone(), headers: any.clone(), expose: any, ..cors(origins, credentials) }
    }

    /// The fields of a response of our own to a request with these lines, and whether the origin is allowed.
    #[track_caller]
    fn check(cors: &Cors, lines: &str, is_allowed: bool, expect: &str) {
        let text = format!("{lines}Host: a\r\n\r\n");
        let mut head = RequestHead::default();
        assert_eq!(parse_request(text.as_bytes(), 100, &mut head), Ok(Parsed::Complete(text.len())));
        let mut out = Vec::new();
        CorsEdits::new(cors, &head, text.as_bytes()).write_own(&mut out);
        assert_eq!(String::from_utf8(out).unwrap().replace("\r\n", "\n"), expect, "{lines}");
        assert_eq!(super::is_allowed(cors, &head, text.as_bytes()), is_allowed, "{lines}");
    }

    const PREFLIGHT: &str = "OPTIONS / HTTP/1.1\r\nAccess-Control-Request-Method: PUT\r\n\
                             Access-Control-Request-Headers: x-a, authorization\r\nOrigin: ";
    const VARY: &str = "vary: origin, access-control-request-method, access-control-request-headers\n";

    #[test]
    fn a_preflight_request_is_told_what_is_allowed() {
        let some = cors(&["https://www.foo.com", "https://*.bar.com"], true);
        let told = |origin: &str| {
            format!(
                "access-control-allow-origin: {origin}\naccess-control-allow-credentials: true\n{VARY}\
                 access-control-allow-methods: GET, OPTIONS\naccess-control-allow-headers: x-header-1, x-header-2\n\
                 access-control-expose-headers: x-header-3, x-header-4\naccess-control-max-age: 3600\n"
            )
        };
        let check_from = |origin: &str, expect: &str| {
            check(&some, &format!("{PREFLIGHT}{origin}\r\n"), expect.starts_with("access"), expect);
        };
        for origin in ["https://www.foo.com", "https://xpto.www.bar.com", "HTTPS://www.BAR.com:443"] {
            check_from(origin, &told(origin));
        }
        for origin in ["https://foobar.com", "null", "http://www.foo.com", "https://www.foo.com:8443", "*"] {
            check_from(origin, VARY);
        }
        // Two origins are none.
        check_from("https://www.foo.com\r\nOrigin: https://www.foo.com", "vary: origin\n");
    }

    #[test]
    fn whatever_is_asked_for_is_allowed_by_name() {
        let told = |credentials: &str, expose: &str| {
            format!(
                "access-control-allow-origin: {credentials}{VARY}access-control-allow-methods: PUT\n\
                 access-control-allow-headers: x-a, authorization\n{expose}access-control-max-age: 3600\n"
            )
        };
        let with = "null\naccess-control-allow-credentials: true\n";
        check(&all(&["*"], true), &format!("{PREFLIGHT}null\r\n"), true, &told(with, ""));
        let without = "*\n";
        let expose = "access-control-expose-headers: *\n";
        check(&all(&["*"], false), &format!("{PREFLIGHT}https://a.test:12345\r\n"), true, &told(without, expose));
        // Nothing is repeated that is not a name.
        let odd = "OPTIONS / HTTP/1.1\r\nAccess-Control-Request-Method: a b\r\nAccess-Control-Request-Headers: (x), x y\r\nOrigin: a\r\n";
        let expect = format!(
            "access-control-allow-origin: a\naccess-control-allow-credentials: true\n{VARY}access-control-max-age: 3600\n"
        );
        check(&all(&["*"], true), odd, true, &expect);
        check(&all(&["*"], true), &format!("{PREFLIGHT}a, b\r\n"), false, VARY);
        let nothing = Cors {
            methods: CorsNames::NONE,
            headers: CorsNames::NONE,
            expose: CorsNames::NONE,
            ..cors(&["https://a"], false)
        };
        let expect = format!("access-control-allow-origin: https://a\n{VARY}access-control-max-age: 3600\n");
        check(&nothing, &format!("{PREFLIGHT}https://a\r\n"), true, &expect);
    }

    #[test]
    fn other_requests_are_no_preflight_requests() {
        let some = cors(&["https://www.foo.com"], false);
        let allowed = "access-control-allow-origin: https://www.foo.com\nvary: origin\naccess-control-expose-headers: x-header-3, x-header-4\n";
        let origin = "Origin: https://www.foo.com\r\n";
        check(&some, &format!("GET / HTTP/1.1\r\n{origin}Access-Control-Request-Method: GET\r\n"), true, allowed);
        check(&some, &format!("OPTIONS / HTTP/1.1\r\n{origin}"), true, allowed);
        check(&some, "GET / HTTP/1.1\r\nOrigin: https://foobar.com\r\n", false, "vary: origin\n");
        check(&some, "GET / HTTP/1.1\r\n", false, "vary: origin\n");
        check(&some, "OPTIONS / HTTP/1.1\r\nAccess-Control-Request-Method: GET\r\n", false, "vary: origin\n");
        // The same for every origin: caches need not know it.
        let open = cors(&["*"], false);
        let expect = "access-control-allow-origin: *\naccess-control-expose-headers: x-header-3, x-header-4\n";
        check(&open, "GET / HTTP/1.1\r\n", false, expect);
        check(&open, "GET / HTTP/1.1\r\nOrigin: null\r\n", true, expect);
    }

    #[test]
    fn with_credentials_every_field_is_exposed_by_its_name() {
        let request = "GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://a\r\n\r\n";
        let mut head = RequestHead::default();
        assert_eq!(parse_request(request.as_bytes(), 100, &mut head), Ok(Parsed::Complete(request.len())));
        let response = "HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nX-A: 1\r\nSet-Cookie: c=d\r\nx-a: 2\r\nETag: e\r\n\
                        Access-Control-Allow-Origin: *\r\n\r\n";
        let mut answer = ResponseHead::default();
        assert_eq!(
            parse_response(response.as_bytes(), 100, Method::Get, &mut answer),
            Ok(Parsed::Complete(response.len()))
        );
        let changes = HeaderChanges { add: vec![("x-b".into(), "3".into())], ..HeaderChanges::default() };
        let exposed = |credentials: bool| {
            let (cors, mut out) = (all(&["https://a"], credentials), Vec::new());
            let edits = CorsEdits::new(&cors, &head, request.as_bytes());
            edits.write(&mut out, &answer.fields, response.as_bytes(), &changes);
            let text = String::from_utf8(out).unwrap();
            text.lines().find_map(|line| line.strip_prefix("access-control-expose-headers: ").map(str::to_owned))
        };
        assert_eq!(exposed(true).as_deref(), Some("X-A, ETag, x-b"));
        assert_eq!(exposed(false).as_deref(), Some("*"));
    }

    #[test]
    fn the_fields_of_the_endpoint_are_replaced() {
        for name in ["Access-Control-Allow-Origin", "access-control-max-age", "ACCESS-CONTROL-EXPOSE-HEADERS"] {
            assert!(CorsEdits::drops(name.as_bytes()), "{name}");
        }
        for name in ["access-control-", "access-control-allow-private-network", "vary", "x-access-control-allow-origin"]
        {
            assert!(!CorsEdits::drops(name.as_bytes()), "{name}");
        }
    }
}

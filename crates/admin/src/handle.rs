//! From a request to its answer.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, Response, StatusCode};

use crate::query::EndpointQuery;
use crate::{ADMIN_HEADER, Control};

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Index,
    Metrics,
    Health,
    Ready,
    Status,
    Reload,
    Drain,
    Undrain,
}

const PAGES: &[(&str, Page, &str)] = &[
    ("/", Page::Index, "this page"),
    ("/metrics", Page::Metrics, "Prometheus text"),
    ("/healthz", Page::Health, "200 while the process lives"),
    ("/readyz", Page::Ready, "200 while traffic is taken, else 503 and why"),
    ("/status", Page::Status, "how things are, as JSON: what `steelyard status` shows"),
    ("/reload", Page::Reload, "reads the configuration again"),
    ("/endpoint/drain", Page::Drain, "?endpoint=ADDRESS[&cluster=NAME]: no new work for it"),
    ("/endpoint/ready", Page::Undrain, "?endpoint=ADDRESS[&cluster=NAME]: takes it back"),
];

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Answers. The body of a request is not read: nothing here has one.
pub(crate) async fn handle(
    control: &dyn Control,
    request: Request<Incoming>,
    over_loopback: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(match admit(&request, over_loopback) {
        Ok(page) => answer(control, page, request.uri().query().unwrap_or("")).await,
        Err(refusal) => refusal.response(),
    })
}

/// Why a request gets no page.
struct Refusal {
    status: StatusCode,
    why: String,
    /// The methods that would be taken, with 405 (RFC 9110 section 15.5.6).
    allow: Option<&'static str>,
}

/// The page that is asked for, if this request may have it.
fn admit<B>(request: &Request<B>, over_loopback: bool) -> Result<Page, Refusal> {
    let refusal = |status, why| Err(Refusal { status, why, allow: None });
    let path = request.uri().path();
    let Some((_, page, _)) = PAGES.iter().find(|(name, ..)| *name == path) else {
        let paths: Vec<&str> = PAGES.iter().map(|(name, ..)| *name).collect();
        return refusal(StatusCode::NOT_FOUND, format!("there is no {path:?} here; there are {}", paths.join(" ")));
    };
    if (page.changes_state() || over_loopback) && !host_is_ours(request) {
        let why = "the Host is a name: ask by IP address or as localhost, so that no web page can ask in your name";
        return refusal(StatusCode::MISDIRECTED_REQUEST, why.into());
    }
    let (allowed, allow): (&[Method], _) =
        if page.changes_state() { (&[Method::POST], "POST") } else { (&[Method::GET, Method::HEAD], "GET, HEAD") };
    if !allowed.contains(request.method()) {
        let why = format!("{path} takes {allow}");
        return Err(Refusal { status: StatusCode::METHOD_NOT_ALLOWED, why, allow: Some(allow) });
    }
    if page.changes_state() && request.headers().get(ADMIN_HEADER).is_none_or(|value| value != "1") {
        let why = format!("send the header `{ADMIN_HEADER}: 1`, so that no web page can ask in your name");
        return refusal(StatusCode::FORBIDDEN, why);
    }
    Ok(*page)
}

impl Refusal {
    fn response(self) -> Response<Full<Bytes>> {
        let mut response = text(self.status, self.why + "\n");
        if let Some(allow) = self.allow {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
        }
        response
    }
}

async fn answer(control: &dyn Control, page: Page, query: &str) -> Response<Full<Bytes>> {
    match page {
        Page::Index => response(StatusCode::OK, HTML, index()),
        Page::Metrics => response(StatusCode::OK, PROMETHEUS, control.metrics()),
        Page::Health => text(StatusCode::OK, "ok\n".into()),
        Page::Ready => match control.ready() {
            Ok(()) => text(StatusCode::OK, "ok\n".into()),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
        },
        Page::Status => match serde_json::to_string(&control.status()) {
            Ok(json) => response(StatusCode::OK, JSON, json + "\n"),
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("the status cannot be written: {error}\n")),
        },
        Page::Reload => match control.reload().await {
            Ok(generation) => response(StatusCode::OK, JSON, format!("{{\"generation\":{generation}}}\n")),
            Err(errors) => text(StatusCode::UNPROCESSABLE_ENTITY, errors),
        },
        Page::Drain => set_draining(control, query, true),
        Page::Undrain => set_draining(control, query, false),
    }
}

fn set_draining(control: &dyn Control, query: &str, draining: bool) -> Response<Full<Bytes>> {
    match EndpointQuery::parse(query) {
        Ok(query) => match control.set_draining(query.cluster.as_deref(), &query.endpoint, draining) {
            Ok(endpoints) => response(StatusCode::OK, JSON, format!("{{\"endpoints\":{endpoints}}}\n")),
            Err(why) => text(StatusCode::NOT_FOUND, why + "\n"),
        },
        Err(why) => text(StatusCode::BAD_REQUEST, why + "\n"),
    }
}

impl Page {
    fn changes_state(self) -> bool {
        match self {
            Page::Reload | Page::Drain | Page::Undrain => true,
            Page::Index | Page::Metrics | Page::Health | Page::Ready | Page::Status => false,
        }
    }
}

/// Whether every name that the request gives us is an address or `localhost`. A request without one (HTTP/1.0) is not a browser's.
fn host_is_ours<B>(request: &Request<B>) -> bool {
    let target = request.uri().authority().is_none_or(|authority| is_ours(authority.as_str()));
    target && request.headers().get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_ours))
}

fn is_ours(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.parse::<Ipv4Addr>().is_ok() || name.eq_ignore_ascii_case("localhost")
}

fn index() -> String {
    let row = |(path, page, what): &(&str, Page, &str)| {
        if page.changes_state() {
            format!("<tr><td>POST <code>{path}</code><td>{what}\n")
        } else {
            format!("<tr><td><a href=\"{path}\"><code>{path}</code></a><td>{what}\n")
        }
    };
    let rows: String = PAGES.iter().map(row).collect();
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Steelyard</title>\n<h1>Steelyard</h1>\n<table>\n{rows}</table>\n\
         <p>A POST needs the header <code>{ADMIN_HEADER}: 1</code>.\n"
    )
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    response(status, TEXT, body)
}

fn response(status: StatusCode, content_type: HeaderValue, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let check = |host: &str, expect| assert_eq!(is_ours(host), expect, "{host}");
        check("127.0.0.1", true);
        check("127.0.0.1:9900", true);
        check("10.0.0.7:9900", true);
        check("[::1]:9900", true);
        check("[::1]", true);
        check("localhost", true);
        check("LocalHost:9900", true);
        check("evil.example:9900", false);
        check("localhost.evil.example", false);
        check("127.0.0.1.evil.example", false);
        check("[evil.example]", false);
        check("[::1", false);
        check("", false);
        // Browsers read these as addresses; we do not, and refuse them.
        check("127.1", false);
        check("2130706433", false);
    }

    #[test]
    fn who_may_ask_for_what() {
        let check = |method: &str, uri: &str, headers: &[(&str, &str)], over_loopback, expect: u16| {
            let mut request = Request::builder().method(method).uri(uri);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let have = admit(&request.body(()).unwrap(), over_loopback)
                .map_or_else(|refusal| refusal.status.as_u16(), |_| 200);
            assert_eq!(have, expect, "{method} {uri} {headers:?} {over_loopback}");
        };
        let (ours, foreign, admin) = (("host", "127.0.0.1:9900"), ("host", "evil.example"), (ADMIN_HEADER, "1"));
        check("GET", "/status", &[ours], true, 200);
        check("HEAD", "/metrics", &[ours], true, 200);
        check("GET", "/nothing", &[ours], true, 404);
        check("GET", "/status/", &[ours], true, 404);
        check("POST", "/metrics", &[ours, admin], true, 405);
        check("GET", "/reload", &[ours, admin], true, 405);
        check("OPTIONS", "/reload", &[ours], true, 405);
        // A form, or fetch without leave: no header.
        check("POST", "/reload", &[ours], true, 403);
        check("POST", "/endpoint/drain?endpoint=a", &[ours], false, 403);
        check("POST", "/reload", &[ours, (ADMIN_HEADER, "0")], true, 403);
        check("POST", "/reload", &[ours, admin], true, 200);
        // DNS rebinding: the header can be sent, the name gives it away.
        check("POST", "/reload", &[foreign, admin], true, 421);
        check("POST", "/reload", &[foreign, admin], false, 421);
        check("POST", "/reload", &[ours, foreign, admin], false, 421);
        check("POST", "http://evil.example/reload", &[ours, admin], false, 421);
        check("GET", "/metrics", &[foreign], true, 421);
        check("GET", "/metrics", &[foreign], false, 200);
        check("GET", "/status", &[], true, 200);
    }
}

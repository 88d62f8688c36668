//! Answers a request.

use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::query::Query;
use crate::{ADMIN_HEADER, ChangeRefused, Control, Pages, TraceQuestion, VipChange, Within};

/// The limit on the body of a request, in bytes. A body describes one vip, and no description written by a person is
/// this long.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// The maximum number of flows in one response. A person cannot use more, and programs read the metrics.
const FLOWS_MAX: usize = 100_000;

/// The number of flows in one response if the request does not say.
const FLOWS_DEFAULT: usize = 1000;

/// The pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Index,
    Metrics,
    Health,
    Ready,
    Status,
    Counters,
    Reload,
    Drain,
    Undrain,
    MaintenanceOn,
    MaintenanceOff,
    Flows,
    Trace,
    VipAdd,
    VipRemove,
    VipDetach,
}

const PAGES: &[(&str, Page, &str)] = &[
    ("/", Page::Index, "this page"),
    ("/metrics", Page::Metrics, "Prometheus text"),
    ("/healthz", Page::Health, "200 while the process runs"),
    ("/readyz", Page::Ready, "200 while it accepts traffic, else 503 and the reason"),
    ("/status", Page::Status, "the state of the process as JSON: what `steelyard status` shows"),
    ("/counters", Page::Counters, "counters and histograms as JSON: `steelyard top` computes its rates from them"),
    ("/reload", Page::Reload, "reloads the configuration"),
    ("/endpoint/drain", Page::Drain, "?endpoint=ADDRESS[&cluster=NAME | &vip=NAME]: gives the endpoint no new work"),
    (
        "/endpoint/ready",
        Page::Undrain,
        "?endpoint=ADDRESS[&cluster=NAME | &vip=NAME]: puts the endpoint back in service",
    ),
    (
        "/maintenance/on",
        Page::MaintenanceOn,
        "?route=NAME[&listener=NAME]: answers every request of the route 503 until the process ends",
    ),
    ("/maintenance/off", Page::MaintenanceOff, "?route=NAME[&listener=NAME]: puts the route back into service"),
    ("/flows", Page::Flows, "?[vip=NAME][&limit=N]: flows of the kernel plane, as JSON"),
    (
        "/trace",
        Page::Trace,
        "?vip=NAME&from=IP[:PORT][&interface=NAME][&flags=syn,ack]: what would happen to this packet",
    ),
    (
        "/vip/add",
        Page::VipAdd,
        "?name=NAME: adds a vip until the process ends; the body is what the file would have under its name",
    ),
    ("/vip/remove", Page::VipRemove, "?name=NAME: removes a vip that a command added"),
    ("/vip/detach", Page::VipDetach, "detaches the kernel plane until the next reload"),
];

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PROMETHEUS: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Answers a request. It reads the body only for `/vip/add`, the one page that has one.
pub(crate) async fn handle(
    control: &dyn Control,
    request: Request<Incoming>,
    pages: Pages,
    over_loopback: bool,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(match admit(&request, pages, over_loopback) {
        Ok(Page::VipAdd) => add_vip(control, request).await,
        Ok(page) => answer(control, page, request.uri().query().unwrap_or("")).await,
        Err(refusal) => refusal.response(),
    })
}

/// Why a request is refused.
struct Refusal {
    status: StatusCode,
    why: String,
    /// The methods that the page takes, which a 405 must list (RFC 9110 section 15.5.6).
    allow: Option<&'static str>,
}

/// Returns the requested page if this request may have it.
fn admit<B>(request: &Request<B>, pages: Pages, over_loopback: bool) -> Result<Page, Refusal> {
    let refusal = |status, why| Err(Refusal { status, why, allow: None });
    let path = request.uri().path();
    let all = || PAGES.iter().filter(|(_, page, _)| pages == Pages::All || page.is_for_anyone());
    let Some((_, page, _)) = all().find(|(name, ..)| *name == path) else {
        let paths: Vec<&str> = all().map(|(name, ..)| *name).collect();
        return refusal(StatusCode::NOT_FOUND, format!("there is no {path:?} here; there are {}", paths.join(" ")));
    };
    if (page.changes_state() || over_loopback) && !host_is_ours(request) {
        let why = "the Host header does not name this host: use 127.0.0.1 or localhost, so that web pages cannot send \
                   requests in your name";
        return refusal(StatusCode::MISDIRECTED_REQUEST, why.into());
    }
    let (allowed, allow): (&[Method], _) =
        if page.changes_state() { (&[Method::POST], "POST") } else { (&[Method::GET, Method::HEAD], "GET, HEAD") };
    if !allowed.contains(request.method()) {
        let why = format!("{path} takes {allow}");
        return Err(Refusal { status: StatusCode::METHOD_NOT_ALLOWED, why, allow: Some(allow) });
    }
    if page.changes_state() && request.headers().get(ADMIN_HEADER).is_none_or(|value| value != "1") {
        let why = format!("send the header `{ADMIN_HEADER}: 1`, so that web pages cannot send requests in your name");
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
        Page::Status => json(&control.status()),
        Page::Counters => json(&control.counters()),
        Page::Reload => match control.reload().await {
            Ok(generation) => response(StatusCode::OK, JSON, format!("{{\"generation\":{generation}}}\n")),
            Err(errors) => text(StatusCode::UNPROCESSABLE_ENTITY, errors),
        },
        Page::Drain => set_draining(control, query, true),
        Page::Undrain => set_draining(control, query, false),
        Page::MaintenanceOn => set_maintenance(control, query, true),
        Page::MaintenanceOff => set_maintenance(control, query, false),
        Page::Flows => flows(control, query).unwrap_or_else(|why| text(StatusCode::BAD_REQUEST, why + "\n")),
        Page::Trace => trace(control, query).unwrap_or_else(|why| text(StatusCode::BAD_REQUEST, why + "\n")),
        Page::VipRemove => match name_of(query) {
            Ok(name) => change_vips(control, VipChange::Remove { name }).await,
            Err(why) => text(StatusCode::BAD_REQUEST, why + "\n"),
        },
        Page::VipDetach => change_vips(control, VipChange::Detach).await,
        // This page is answered where the body is read.
        Page::VipAdd => text(StatusCode::BAD_REQUEST, "this request needs a body\n".into()),
    }
}

fn set_draining(control: &dyn Control, query: &str, draining: bool) -> Response<Full<Bytes>> {
    let query = match Query::parse(query, &["endpoint", "cluster", "vip"]) {
        Ok(query) => query,
        Err(why) => return text(StatusCode::BAD_REQUEST, why + "\n"),
    };
    let within = match (query.get("cluster"), query.get("vip")) {
        (None, None) => Within::All,
        (Some(name), None) => Within::Cluster(name),
        (None, Some(name)) => Within::Vip(name),
        (Some(_), Some(_)) => {
            return text(
                StatusCode::BAD_REQUEST,
                "an endpoint belongs to a cluster or to a vip: name one of them, not both\n".into(),
            );
        }
    };
    let Some(endpoint) = query.get("endpoint") else {
        let why = "name the endpoint: `?endpoint=10.0.0.7:8080`, with `&cluster=NAME` or `&vip=NAME` to restrict it to \
                   one of them\n";
        return text(StatusCode::BAD_REQUEST, why.into());
    };
    match control.set_draining(within, endpoint, draining) {
        Ok(endpoints) => response(StatusCode::OK, JSON, format!("{{\"endpoints\":{endpoints}}}\n")),
        Err(why) => text(StatusCode::NOT_FOUND, why + "\n"),
    }
}

fn set_maintenance(control: &dyn Control, query: &str, on: bool) -> Response<Full<Bytes>> {
    let query = match Query::parse(query, &["route", "listener"]) {
        Ok(query) => query,
        Err(why) => return text(StatusCode::BAD_REQUEST, why + "\n"),
    };
    let Some(route) = query.get("route") else {
        let why = "name the route: `?route=NAME`, with `&listener=NAME` if several listeners have it\n";
        return text(StatusCode::BAD_REQUEST, why.into());
    };
    match control.set_maintenance(query.get("listener"), route, on) {
        Ok(routes) => response(StatusCode::OK, JSON, format!("{{\"routes\":{routes}}}\n")),
        Err(why) => text(StatusCode::NOT_FOUND, why + "\n"),
    }
}

fn flows(control: &dyn Control, query: &str) -> Result<Response<Full<Bytes>>, String> {
    let query = Query::parse(query, &["vip", "limit"])?;
    let limit = query.get("limit").map_or(Ok(FLOWS_DEFAULT), |limit| {
        let limit = limit.parse().ok().filter(|limit| (1..=FLOWS_MAX).contains(limit));
        limit.ok_or_else(|| format!("`limit` must be a number from 1 to {FLOWS_MAX}"))
    })?;
    Ok(match control.flows(query.get("vip"), limit) {
        Ok(flows) => json(&flows),
        Err(why) => text(StatusCode::NOT_FOUND, why + "\n"),
    })
}

fn trace(control: &dyn Control, query: &str) -> Result<Response<Full<Bytes>>, String> {
    let query = Query::parse(query, &["vip", "from", "interface", "flags"])?;
    let needed = |name| query.get(name).ok_or_else(|| format!("`{name}` is missing: `?vip=web&from=10.0.0.7:40000`"));
    let question = TraceQuestion {
        vip: needed("vip")?.to_owned(),
        from: needed("from")?.to_owned(),
        interface: query.get("interface").map(str::to_owned),
        flags: query.get("flags").map(str::to_owned),
    };
    Ok(match control.trace(&question) {
        Ok(report) => json(&report),
        Err(why) => text(StatusCode::UNPROCESSABLE_ENTITY, why + "\n"),
    })
}

async fn add_vip<B>(control: &dyn Control, request: Request<B>) -> Response<Full<Bytes>>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let name = match name_of(request.uri().query().unwrap_or("")) {
        Ok(name) => name,
        Err(why) => return text(StatusCode::BAD_REQUEST, why + "\n"),
    };
    let body = match Limited::new(request.into_body(), BODY_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("cannot read the body: {error}\n")),
    };
    match String::from_utf8(body.to_vec()) {
        Ok(document) => change_vips(control, VipChange::Add { name, document }).await,
        Err(_) => text(StatusCode::BAD_REQUEST, "the body is not UTF-8\n".into()),
    }
}

fn name_of(query: &str) -> Result<String, String> {
    let query = Query::parse(query, &["name"])?;
    query.get("name").map(str::to_owned).ok_or_else(|| "name the vip: `?name=NAME`".to_owned())
}

async fn change_vips(control: &dyn Control, change: VipChange) -> Response<Full<Bytes>> {
    match control.change_vips(change).await {
        Ok(generation) => response(StatusCode::OK, JSON, format!("{{\"generation\":{generation}}}\n")),
        Err(ChangeRefused::Bad(why)) => text(StatusCode::UNPROCESSABLE_ENTITY, why + "\n"),
        Err(ChangeRefused::HostCannot(why)) => text(StatusCode::NOT_IMPLEMENTED, why + "\n"),
        Err(ChangeRefused::Busy(why)) => text(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}

fn json(value: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string(value) {
        Ok(json) => response(StatusCode::OK, JSON, json + "\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the response: {error}\n")),
    }
}

impl Page {
    /// The page changes nothing and shows nothing of the configuration but names.
    fn is_for_anyone(self) -> bool {
        matches!(self, Page::Metrics | Page::Health | Page::Ready)
    }

    fn changes_state(self) -> bool {
        match self {
            Page::Reload
            | Page::Drain
            | Page::Undrain
            | Page::MaintenanceOn
            | Page::MaintenanceOff
            | Page::VipAdd
            | Page::VipRemove
            | Page::VipDetach => true,
            // A trace runs the program over a packet that is not sent.
            Page::Index
            | Page::Metrics
            | Page::Health
            | Page::Ready
            | Page::Status
            | Page::Counters
            | Page::Flows
            | Page::Trace => false,
        }
    }
}

/// Whether every host that the request names is a loopback address or `localhost`. A request that names none (HTTP/1.0)
/// does not come from a browser.
fn host_is_ours<B>(request: &Request<B>) -> bool {
    let target = request.uri().authority().is_none_or(|authority| is_ours(authority.as_str()));
    target && request.headers().get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_ours))
}

fn is_ours(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, _)| address.parse().is_ok_and(is_loopback));
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback()) || name.eq_ignore_ascii_case("localhost")
}

fn is_loopback(address: Ipv6Addr) -> bool {
    address.to_canonical().is_loopback()
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
        check("127.8.9.1:9900", true);
        check("10.0.0.7:9900", false);
        check("0.0.0.0:9900", false);
        check("[::1]:9900", true);
        check("[::ffff:127.0.0.1]:9900", true);
        check("[fd00::1]:9900", false);
        check("[::1]", true);
        check("localhost", true);
        check("LocalHost:9900", true);
        check("evil.example:9900", false);
        check("localhost.evil.example", false);
        check("127.0.0.1.evil.example", false);
        check("[evil.example]", false);
        check("[::1", false);
        check("", false);
        // Browsers accept these as addresses. We do not, and refuse them.
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
            let have = admit(&request.body(()).unwrap(), Pages::All, over_loopback)
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
        check("GET", "/vip/add?name=a", &[ours, admin], true, 405);
        check("POST", "/vip/add?name=a", &[ours], true, 403);
        check("POST", "/vip/detach", &[foreign, admin], true, 421);
        check("POST", "/vip/remove?name=a", &[ours, admin], true, 200);
        check("GET", "/trace?vip=a&from=b", &[ours], true, 200);
        check("OPTIONS", "/reload", &[ours], true, 405);
        // A form, or a fetch without permission, has no such header.
        check("POST", "/reload", &[ours], true, 403);
        check("POST", "/endpoint/drain?endpoint=a", &[ours], false, 403);
        check("POST", "/reload", &[ours, (ADMIN_HEADER, "0")], true, 403);
        check("POST", "/reload", &[ours, admin], true, 200);
        // DNS rebinding: the page can send the header, but the name gives it away.
        check("POST", "/reload", &[foreign, admin], true, 421);
        check("POST", "/reload", &[foreign, admin], false, 421);
        check("POST", "/reload", &[ours, foreign, admin], false, 421);
        check("POST", "http://evil.example/reload", &[ours, admin], false, 421);
        check("GET", "/metrics", &[foreign], true, 421);
        check("GET", "/metrics", &[foreign], false, 200);
        check("GET", "/status", &[], true, 200);
    }

    #[test]
    fn what_anyone_may_have() {
        let check = |method: &str, uri: &str, host: &str, over_loopback, expect: u16| {
            let request = Request::builder().method(method).uri(uri).header("host", host).header(ADMIN_HEADER, "1");
            let have = admit(&request.body(()).unwrap(), Pages::ForAnyone, over_loopback)
                .map_or_else(|refusal| refusal.status.as_u16(), |_| 200);
            assert_eq!(have, expect, "{method} {uri} {host} {over_loopback}");
        };
        for page in ["/metrics", "/healthz", "/readyz"] {
            check("GET", page, "steelyard.example:9901", false, 200);
            check("GET", page, "127.0.0.1:9901", true, 200);
            check("GET", page, "evil.example", true, 421);
            check("POST", page, "10.0.0.7", false, 405);
        }
        for (path, page, _) in PAGES.iter().filter(|(_, page, _)| !page.is_for_anyone()) {
            let method = if page.changes_state() { "POST" } else { "GET" };
            check(method, path, "127.0.0.1", true, 404);
            check(method, path, "10.0.0.7", false, 404);
        }
    }
}

//! Answers a request.

mod origin;
mod who;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    REFERRER_POLICY, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use rustls::pki_types::CertificateDer;
use serde::Serialize;
use telemetry::Exposition;
use tokio::sync::oneshot;

use self::origin::{follows_a_link, host_is_ours, is_of_this_origin, only};
use self::who::authorize;
use crate::access::{Proof, User};
use crate::feed::{Admitted, Events, Wanted};
use crate::page::{self, Action, Form, View, Wish};
use crate::query::Query;
use crate::server::{Place, Shared, Turns, Who};
use crate::{ADMIN_HEADER, ChangeRefused, Control, Pages, RouteQuestion, TraceQuestion, VipChange, Within};

/// The limit on the body of a request, in bytes. A body describes one vip, and no description written by a person is
/// this long.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// Responses up to this size wait for their clients without being counted: all connections together hold little of them.
const SMALL_BYTES_MAX: usize = 64 * 1024;

/// The longest time for which the requests of a route are logged.
const DEBUG_SECONDS_MAX: u64 = 3600;

/// The limit on the body of a form, in bytes.
const FORM_BYTES_MAX: usize = 16 * 1024;

/// The maximum number of flows in one response. A person cannot use more, and programs read the metrics.
const FLOWS_MAX: usize = 100_000;

/// The number of flows in one response if the request does not say.
const FLOWS_DEFAULT: usize = 1000;

/// The pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Index,
    Style,
    Script,
    Events,
    History,
    Overview,
    Route,
    Do,
    DebugRoute,
    DebugLog,
    DebugConfiguration,
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
    ("/page.css", Page::Style, "its styles"),
    ("/page.js", Page::Script, "its script"),
    (
        "/events",
        Page::Events,
        "?[overview=1][&counters=1][&requests=1][&all=1]: a stream of events, one update a second and single requests",
    ),
    ("/overview", Page::Overview, "the figures of the last second as JSON, without a word of the configuration"),
    ("/history", Page::History, "the last minute by seconds and the last hour by ten seconds, as JSON"),
    (
        "/route",
        Page::Route,
        "?path=PATH[&listener=NAME][&method=GET][&host=HOST][&headers=LINES]: which route would take this request, as JSON",
    ),
    ("/metrics", Page::Metrics, "Prometheus text, or OpenMetrics"),
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
    ("/do", Page::Do, "what the forms of this page send"),
    (
        "/debug/route",
        Page::DebugRoute,
        "?route=NAME&seconds=N: logs the requests of the route for this time, at most an hour; 0 ends that",
    ),
    ("/debug/log", Page::DebugLog, "the last lines of the log"),
    ("/debug/configuration", Page::DebugConfiguration, "the configuration in force, without secrets"),
];

/// No page of another origin may load anything from here, not even as an image or a script.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const CSS: HeaderValue = HeaderValue::from_static("text/css; charset=utf-8");
const JAVASCRIPT: HeaderValue = HeaderValue::from_static("text/javascript; charset=utf-8");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The connection that a request came on.
#[derive(Clone, Copy)]
pub(crate) struct Connection<'c> {
    pub(crate) shared: &'c Arc<Shared>,
    pub(crate) place: &'c Arc<Place>,
    /// The client's address; `None` for a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// Whether only programs on this host can use the address of the connection.
    pub(crate) is_local: bool,
    /// The client's certificate, which was verified in the handshake, and those that lead from it to a CA.
    pub(crate) certificate: Option<&'c Arc<[CertificateDer<'static>]>>,
}

impl<'c> Connection<'c> {
    pub(crate) fn new(shared: &'c Arc<Shared>, place: &'c Arc<Place>, client: Option<IpAddr>, is_local: bool) -> Self {
        Self { shared, place, client, is_local, certificate: None }
    }

    fn control(&self) -> &'c dyn Control {
        &*self.shared.control
    }

    /// Makes a large response on another thread, so that the control thread can go on. Few are made at a time, and the next one is not made before
    /// there is memory for this one to wait for its client.
    async fn apart(
        &self,
        turns: &Arc<Turns>,
        user: &User,
        make: impl FnOnce(&dyn Control) -> Response<Reply> + Send + 'static,
    ) -> Response<Reply> {
        // Only a bug in `make` ends it early.
        let unmade = || {
            let why = "cannot make the response: no thread for it";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, why).response()
        };
        let Some(turn) = turns.take(Who::new(user.name.as_deref(), self.client)).await else { return unmade() };
        let shared = Arc::clone(self.shared);
        let (done, made) = oneshot::channel();
        // The client may be gone before the end: it must not be able to begin more of these, so the turn goes with the response.
        let work = move || drop(done.send((make(&*shared.control), turn)));
        if std::thread::Builder::new().name("large-response".to_owned()).spawn(work).is_err() {
            return unmade();
        }
        let Ok((response, _turn)) = made.await else { return unmade() };
        self.hold(&response).await;
        response
    }

    /// Waits until there is memory for a large response to wait for its client.
    async fn hold(&self, response: &Response<Reply>) {
        let bytes = response.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        if let Some(bytes) = bytes.filter(|bytes| *bytes > SMALL_BYTES_MAX && self.place.held() == 0) {
            self.shared.places.hold(self.place, bytes).await;
        }
    }

    /// Reads the body of a request, which must not take long.
    ///
    /// # Errors
    /// `what` cannot be read.
    async fn body<B>(&self, body: B, bytes_max: usize, what: &str) -> Result<Bytes, Refusal>
    where
        B: Body,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.place.wait_for_request(true);
        let read = tokio::time::timeout(self.shared.body_timeout, Limited::new(body, bytes_max).collect()).await;
        self.place.wait_for_request(false);
        match read {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(Refusal::new(StatusCode::BAD_REQUEST, format!("cannot read {what}: {error}"))),
            Err(_) => {
                let seconds = self.shared.body_timeout.as_secs();
                let why = format!("cannot read {what}: it took longer than {seconds} s to arrive");
                Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, why))
            }
        }
    }
}

/// The body of a response.
pub(crate) enum Reply {
    Whole(Full<Bytes>),
    Events(Events),
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(cx),
            Self::Events(events) => Pin::new(events).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// Answers a request. It reads the body only for `/vip/add` and `/do`, the pages that have one.
pub(crate) async fn handle(
    connection: Connection<'_>,
    request: Request<Incoming>,
) -> Result<Response<Reply>, Infallible> {
    let Connection { shared, client, is_local, .. } = connection;
    connection.place.wait_for_request(false);
    let access = connection.control().access();
    let (page, (user, proof)) = match admit(&request, shared.pages, is_local, &access.hosts) {
        Err(refusal) => return Ok(refusal.response()),
        Ok(page) => match authorize(connection, &request, page, &access).await {
            Ok(who) => (page, who),
            Err(refusal) => return Ok(refusal.response()),
        },
    };
    if shared.pages == Pages::All && !page.is_for_probes() {
        connection.place.prove();
    }
    let mut action = page.changes_state().then(|| request.uri().to_string());
    let query = request.uri().query().unwrap_or("").to_owned();
    let control = connection.control();
    let response = match page {
        Page::VipAdd => add_vip(connection, request).await,
        Page::Do => match form(connection, request).await {
            Ok(form) => {
                action = Some(format!("{:?}", form.action));
                act(control, form.action).await
            }
            Err(refusal) => refusal.response(),
        },
        Page::Index => index(connection, &user, query).await,
        Page::Events => events(connection, &query, proof),
        Page::Metrics => metrics(connection, &user, accepted(request.headers())).await,
        Page::Status | Page::Counters | Page::Flows | Page::DebugConfiguration => {
            large(connection, page, &user, query).await
        }
        page => answer(control, page, &query).await,
    };
    connection.hold(&response).await;
    if let Some(action) = action {
        let client = client.map_or_else(|| "unix".to_owned(), |client| client.to_string());
        tracing::info!(%user, client, action, status = response.status().as_u16(), "action through the admin address");
    }
    Ok(response)
}

/// Reads a form of the page.
async fn form(connection: Connection<'_>, request: Request<Incoming>) -> Result<Form, Refusal> {
    let bad = |why| Refusal::new(StatusCode::BAD_REQUEST, why);
    let body = connection.body(request.into_body(), FORM_BYTES_MAX, "the form").await?;
    let form = Form::parse(std::str::from_utf8(&body).unwrap_or_default()).map_err(bad)?;
    if form.token != connection.shared.form_token {
        let why = "this form is not of the page as it is now: reload the page, and try again";
        return Err(Refusal::new(StatusCode::FORBIDDEN, why));
    }
    Ok(form)
}

/// Does what a form asks for.
async fn act(control: &dyn Control, action: Action) -> Response<Reply> {
    let outcome = match action {
        Action::Reload => control.reload().await.map(|generation| format!("Reloaded: generation {generation}.")),
        Action::Endpoint { address, cluster, draining } => {
            let within = cluster.as_deref().map_or(Within::All, Within::Cluster);
            let word = if draining { "Draining" } else { "In service" };
            let found = control.set_draining(within, &address, draining);
            found.map(|count| format!("{word}: {address} (clusters and vips that have it: {count})."))
        }
        Action::Maintenance { route, listener, on } => {
            let word = if on { "In maintenance" } else { "In service" };
            let found = control.set_maintenance(listener.as_deref(), &route, on);
            found.map(|count| format!("{word}: {route} (listeners that have it: {count})."))
        }
    };
    match outcome {
        Ok(done) => html(StatusCode::OK, page::outcome(&done)),
        Err(why) => html(StatusCode::UNPROCESSABLE_ENTITY, page::outcome(&why)),
    }
}

/// The page for people.
async fn index(connection: Connection<'_>, user: &User, query: String) -> Response<Reply> {
    let wish = match Wish::parse(&query) {
        Ok(wish) => wish,
        Err(why) => return text(StatusCode::BAD_REQUEST, why + "\n"),
    };
    let form_token = connection.shared.form_token.clone();
    let control = connection.control();
    let replicas = if wish.replicas { Some(control.replicas().await) } else { None };
    let replicas = control.has_replicas().then_some(replicas);
    let shown = user.clone();
    let made = connection.apart(&connection.shared.large, user, move |control| {
        let (points, verdict) = control.history();
        let pages: Vec<_> = PAGES.iter().map(|(path, page, what)| (*path, page.changes_state(), *what)).collect();
        let page = page::page(&View {
            status: &control.status(),
            points: &points,
            verdict: &verdict,
            user: &shown,
            wish: &wish,
            route: wish.route.as_ref().map(|question| control.explain(question)),
            replicas: replicas.as_ref().map(Option::as_deref),
            packet: wish.packet.as_ref().map(|question| control.trace(question)),
            form_token: &form_token,
            drop_meaning: &|reason| control.drop_meaning(reason),
            pages: page::list_of_pages(&pages),
        });
        html(StatusCode::OK, page)
    });
    made.await
}

/// Pages that grow with the configuration or with the traffic.
async fn large(connection: Connection<'_>, page: Page, user: &User, query: String) -> Response<Reply> {
    let make = move |control: &dyn Control| match page {
        Page::Status => json(&control.status()),
        Page::Counters => json(&control.counters()),
        Page::Flows => flows(control, &query).unwrap_or_else(|why| text(StatusCode::BAD_REQUEST, why + "\n")),
        _ => text(StatusCode::OK, control.configuration()),
    };
    connection.apart(&connection.shared.large, user, make).await
}

/// The format of metrics that the scraper prefers.
fn accepted(headers: &HeaderMap) -> Exposition {
    let accepted: Vec<&str> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    Exposition::negotiate(Some(accepted.join(",")).filter(|accepted| !accepted.is_empty()).as_deref())
}

async fn metrics(connection: Connection<'_>, user: &User, format: Exposition) -> Response<Reply> {
    let content_type = HeaderValue::from_static(format.content_type());
    let make = move |control: &dyn Control| {
        let mut response = response(StatusCode::OK, content_type, control.metrics(format));
        response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
        response
    };
    connection.apart(&connection.shared.metrics, user, make).await
}

fn html(status: StatusCode, body: String) -> Response<Reply> {
    let mut response = response(status, HTML, body);
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::POLICY));
    response
}

/// The stream of events.
fn events(connection: Connection<'_>, query: &str, proof: Option<Proof>) -> Response<Reply> {
    let query = match Query::parse(query, &["overview", "counters", "requests", "all"]) {
        Ok(query) => query,
        Err(why) => return text(StatusCode::BAD_REQUEST, why + "\n"),
    };
    let is = |name| query.get(name).is_some_and(|value| value == "1");
    let all = is("all");
    let wanted = Wanted {
        overview: is("overview"),
        counters: is("counters"),
        requests: is("requests") || all,
        all_requests: all,
    };
    // The right may have ended while a password was checked, and then nothing would end the stream.
    if !connection.control().access().still_admits(proof.as_ref(), connection.is_local) {
        return text(StatusCode::FORBIDDEN, "the configuration no longer admits you\n".to_owned());
    }
    let admitted = Admitted { proof, is_local: connection.is_local, place: Arc::clone(connection.place) };
    let Some(events) = connection.control().feed().and_then(|feed| feed.join(wanted, admitted)) else {
        let why = "too many are looking: close another page or `steelyard top`\n".to_owned();
        let mut response = text(StatusCode::SERVICE_UNAVAILABLE, why);
        response.headers_mut().insert(RETRY_AFTER, 10.into());
        return response;
    };
    connection.place.stream();
    let mut response = response(StatusCode::OK, EVENTS, String::new());
    *response.body_mut() = Reply::Events(events);
    response
}

/// Why a request is refused.
struct Refusal {
    status: StatusCode,
    why: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    fn new(status: StatusCode, why: impl Into<String>) -> Self {
        Self { status, why: why.into(), headers: Vec::new() }
    }

    fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }
}

/// Returns the requested page if a request like this may have it, whoever it is from. `hosts` are the names of the address.
fn admit<B>(request: &Request<B>, pages: Pages, is_local: bool, hosts: &[String]) -> Result<Page, Refusal> {
    let refusal = |status, why: String| Err(Refusal::new(status, why));
    let path = request.uri().path();
    let all = || PAGES.iter().filter(|(_, page, _)| pages == Pages::All || page.is_for_anyone());
    let Some((_, page, _)) = all().find(|(name, ..)| *name == path) else {
        let paths: Vec<&str> = all().map(|(name, ..)| *name).collect();
        return refusal(StatusCode::NOT_FOUND, format!("there is no {path:?} here; there are {}", paths.join(" ")));
    };
    if (pages == Pages::All || is_local) && !host_is_ours(request, is_local, hosts) {
        let why = "the Host header does not name this address: use an address or localhost, or add the name to \
                   `admin_access.hosts`; otherwise web pages could send requests in your name";
        return refusal(StatusCode::MISDIRECTED_REQUEST, why.into());
    }
    if request.headers().get_all(HOST).iter().count() > 1 {
        // RFC 9112 section 3.2.
        return refusal(StatusCode::BAD_REQUEST, "the request has more than one Host header".to_owned());
    }
    let (allowed, allow): (&[Method], _) =
        if page.changes_state() { (&[Method::POST], "POST") } else { (&[Method::GET, Method::HEAD], "GET, HEAD") };
    if !allowed.contains(request.method()) {
        let why = format!("{path} takes {allow}");
        // RFC 9110 section 15.5.6.
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, why).header(ALLOW, HeaderValue::from_static(allow)));
    }
    if !is_of_this_origin(request) && (page.changes_state() || !follows_a_link(request)) {
        let why = "this request comes from a web page of another origin: open the address in the browser itself, or ask it from a program";
        return refusal(StatusCode::FORBIDDEN, why.to_owned());
    }
    // Forms have no such header. They have a token instead, which is looked at with the rest of the form.
    let is_marked = || only(request, ADMIN_HEADER).is_ok_and(|value| value == Some("1"));
    if page.changes_state() && *page != Page::Do && !is_marked() {
        let why = format!("send the header `{ADMIN_HEADER}: 1`, so that web pages cannot send requests in your name");
        return refusal(StatusCode::FORBIDDEN, why);
    }
    Ok(*page)
}

impl Refusal {
    fn response(self) -> Response<Reply> {
        let mut response = text(self.status, self.why + "\n");
        for (name, value) in self.headers {
            response.headers_mut().append(name, value);
        }
        response
    }
}

async fn answer(control: &dyn Control, page: Page, query: &str) -> Response<Reply> {
    match page {
        Page::Style => response(StatusCode::OK, CSS, page::STYLE.to_owned()),
        Page::Script => response(StatusCode::OK, JAVASCRIPT, page::SCRIPT.to_owned()),
        Page::History => json(&control.history().0),
        Page::Overview => json(&control.overview()),
        Page::Route => route(control, query).unwrap_or_else(|why| text(StatusCode::BAD_REQUEST, why + "\n")),
        Page::DebugRoute => debug_route(control, query).unwrap_or_else(|why| text(StatusCode::BAD_REQUEST, why + "\n")),
        Page::DebugLog => text(StatusCode::OK, control.log_lines()),
        Page::Health => text(StatusCode::OK, "ok\n".into()),
        Page::Ready => match control.ready() {
            Ok(()) => text(StatusCode::OK, "ok\n".into()),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
        },
        Page::Reload => match control.reload().await {
            Ok(generation) => response(StatusCode::OK, JSON, format!("{{\"generation\":{generation}}}\n")),
            Err(errors) => text(StatusCode::UNPROCESSABLE_ENTITY, errors),
        },
        Page::Drain => set_draining(control, query, true),
        Page::Undrain => set_draining(control, query, false),
        Page::MaintenanceOn => set_maintenance(control, query, true),
        Page::MaintenanceOff => set_maintenance(control, query, false),
        Page::Trace => trace(control, query).unwrap_or_else(|why| text(StatusCode::BAD_REQUEST, why + "\n")),
        Page::VipRemove => match name_of(query) {
            Ok(name) => change_vips(control, VipChange::Remove { name }).await,
            Err(why) => text(StatusCode::BAD_REQUEST, why + "\n"),
        },
        Page::VipDetach => change_vips(control, VipChange::Detach).await,
        // These are answered elsewhere: they have a body, belong to a connection, or are large.
        Page::Index
        | Page::Events
        | Page::Do
        | Page::VipAdd
        | Page::Metrics
        | Page::Status
        | Page::Counters
        | Page::Flows
        | Page::DebugConfiguration => text(StatusCode::BAD_REQUEST, "this request needs a body\n".into()),
    }
}

fn set_draining(control: &dyn Control, query: &str, draining: bool) -> Response<Reply> {
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

fn set_maintenance(control: &dyn Control, query: &str, on: bool) -> Response<Reply> {
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

fn flows(control: &dyn Control, query: &str) -> Result<Response<Reply>, String> {
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

fn debug_route(control: &dyn Control, query: &str) -> Result<Response<Reply>, String> {
    let query = Query::parse(query, &["route", "seconds"])?;
    let route = query.get("route").ok_or("name the route: `?route=NAME&seconds=300`")?;
    let seconds = query.get("seconds").and_then(|seconds| seconds.parse().ok());
    let seconds = seconds.filter(|seconds| *seconds <= DEBUG_SECONDS_MAX);
    let seconds = seconds.ok_or_else(|| format!("`seconds` must be a number from 0 to {DEBUG_SECONDS_MAX}"))?;
    Ok(match control.debug_route(route, seconds) {
        Ok(()) => response(StatusCode::OK, JSON, format!("{{\"seconds\":{seconds}}}\n")),
        Err(why) => text(StatusCode::NOT_FOUND, why + "\n"),
    })
}

fn route(control: &dyn Control, query: &str) -> Result<Response<Reply>, String> {
    let query = Query::parse(query, &["listener", "method", "host", "path", "headers"])?;
    let text_of = |name| query.get(name).unwrap_or_default().to_owned();
    let question = RouteQuestion {
        listener: text_of("listener"),
        method: query.get("method").unwrap_or("GET").to_owned(),
        host: text_of("host"),
        path: query.get("path").ok_or("`path` is missing: `?path=/cart&host=shop.example.com`")?.to_owned(),
        headers: query.get("headers").unwrap_or_default().lines().map(str::to_owned).collect(),
    };
    Ok(match control.explain(&question) {
        Ok(report) => json(&report),
        Err(why) => text(StatusCode::UNPROCESSABLE_ENTITY, why + "\n"),
    })
}

fn trace(control: &dyn Control, query: &str) -> Result<Response<Reply>, String> {
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

async fn add_vip<B>(connection: Connection<'_>, request: Request<B>) -> Response<Reply>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let control = connection.control();
    let name = match name_of(request.uri().query().unwrap_or("")) {
        Ok(name) => name,
        Err(why) => return text(StatusCode::BAD_REQUEST, why + "\n"),
    };
    let body = match connection.body(request.into_body(), BODY_BYTES_MAX, "the body").await {
        Ok(body) => body,
        Err(refusal) => return refusal.response(),
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

async fn change_vips(control: &dyn Control, change: VipChange) -> Response<Reply> {
    match control.change_vips(change).await {
        Ok(generation) => response(StatusCode::OK, JSON, format!("{{\"generation\":{generation}}}\n")),
        Err(ChangeRefused::Bad(why)) => text(StatusCode::UNPROCESSABLE_ENTITY, why + "\n"),
        Err(ChangeRefused::HostCannot(why)) => text(StatusCode::NOT_IMPLEMENTED, why + "\n"),
        Err(ChangeRefused::Busy(why)) => text(StatusCode::SERVICE_UNAVAILABLE, why + "\n"),
    }
}

fn json(value: &impl Serialize) -> Response<Reply> {
    match serde_json::to_string(value) {
        Ok(json) => response(StatusCode::OK, JSON, json + "\n"),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the response: {error}\n")),
    }
}

impl Page {
    /// The page changes nothing and shows nothing of the configuration but names.
    fn is_for_anyone(self) -> bool {
        matches!(self, Page::Metrics | Page::Overview | Page::Health | Page::Ready)
    }

    fn is_for_probes(self) -> bool {
        matches!(self, Page::Health | Page::Ready)
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
            | Page::VipDetach
            | Page::Do
            | Page::DebugRoute => true,
            // A trace runs the program over a packet that is not sent.
            Page::Index
            | Page::Style
            | Page::Script
            | Page::Events
            | Page::History
            | Page::Overview
            | Page::Route
            | Page::DebugLog
            | Page::DebugConfiguration
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

fn text(status: StatusCode, body: String) -> Response<Reply> {
    response(status, TEXT, body)
}

fn response(status: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(Full::new(body.into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // No other page may show this one: it could lead a user to press its buttons (clickjacking).
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    // With `no-referrer`, browsers post the page's own forms with `Origin: null` (Fetch, "append a request Origin header"), which is refused.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}

#[cfg(test)]
mod tests;

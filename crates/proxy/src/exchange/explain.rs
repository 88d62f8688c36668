//! Which route a request would take, and why not the others. No request is sent.
//!
//! The answer is that of the router of the listener itself. Why another route does not take the request is found by asking routers of that
//! route alone, each with one more of its conditions, so this cannot say anything else than the router does.

use model::{HttpListener, Protocol, Route};
use wire::h1::{Parsed, parse_request};
use wire::message::RequestHead;

use super::route::{Router, normal_target};
use crate::http::headers;
use crate::worker::snapshot::ListenerPlan;

/// Header fields of a question.
const FIELDS_MAX: usize = 64;
/// Bytes of the head that a question stands for.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Routes that are looked at one by one. Each takes some microseconds, and the thread that does it has other work.
const LOOKED_AT_MAX: usize = 2_000;

/// A request that nobody sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteQuestion {
    /// `GET`.
    pub method: String,
    /// The host, with or without a port.
    pub host: String,
    /// The path and the query.
    pub target: String,
    /// Header fields.
    pub headers: Vec<(String, String)>,
}

/// What would happen to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Path and query as the routes see them.
    pub target: String,
    /// The index of its route in the listener; `None`: it would be answered 404.
    pub route: Option<usize>,
    /// The other routes, in the order of the listener, as far as they were looked at: index, and why they do not take it.
    pub others: Vec<(usize, WhyNot)>,
    /// Routes that were not looked at.
    pub more: usize,
}

/// Why a route does not take a request: the first of its conditions that does not hold. The later ones are nearer to taking it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WhyNot {
    /// Another host.
    Host,
    /// Another path.
    Path,
    /// Another method.
    Method,
    /// A header is missing or has another value.
    Header,
    /// A cookie is missing or has another value.
    Cookie,
    /// A query parameter is missing or has another value.
    Query,
    /// It is not a gRPC call.
    Grpc,
    /// It depends on claims of a token, and the question has no token.
    Claims,
    /// It would take the request if the other route did not: its host is less specific, or it comes later.
    After,
}

impl ListenerPlan {
    /// Says which of its routes a request would take.
    ///
    /// # Errors
    /// Says in a sentence that the listener has no routes, or that it would refuse such a request before it looks for a route.
    pub fn explain(&self, question: &RouteQuestion) -> Result<Explanation, String> {
        let Protocol::Http(http) = &self.policy.protocol else {
            return Err(format!("{} does not speak HTTP, so it has no routes", self.policy.name));
        };
        let (mut head, buffer) = head(question)?;
        headers::drop_names(http.header_names, &mut head, &buffer);
        let target = head.path.get(&buffer);
        let normal = normal_target(target, &http.paths).map_err(|error| {
            format!("the listener refuses this path before it looks for a route: {}", error.reason.meaning())
        })?;
        let target = normal.as_deref().unwrap_or(target);
        let route = self.router.route(&head, &buffer, target);
        let looked_at = http.routes.iter().enumerate().take(LOOKED_AT_MAX).filter(|(index, _)| Some(*index) != route);
        let others = looked_at.map(|(index, of)| (index, why_not(of, http, &head, &buffer, target))).collect();
        Ok(Explanation {
            target: String::from_utf8_lossy(target).into_owned(),
            route,
            others,
            more: http.routes.len().saturating_sub(LOOKED_AT_MAX),
        })
    }
}

/// The head of a request like this, as a client of HTTP/1.1 would send it.
fn head(question: &RouteQuestion) -> Result<(RequestHead, Vec<u8>), String> {
    let RouteQuestion { method, host, target, headers } = question;
    let has_break = |text: &str| text.bytes().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
    let texts = [method, host, target].into_iter().chain(headers.iter().flat_map(|(name, value)| [name, value]));
    if texts.into_iter().any(|text| has_break(text)) {
        return Err("a line break cannot be in a request".to_owned());
    }
    let mut text = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n");
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    text += "\r\n";
    if text.len() > HEAD_BYTES_MAX || headers.len() > FIELDS_MAX {
        return Err(format!("the head of the request has more than {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields"));
    }
    let (mut head, buffer) = (RequestHead::default(), text.into_bytes());
    match parse_request(&buffer, FIELDS_MAX + 1, &mut head) {
        Ok(Parsed::Complete(_)) => Ok((head, buffer)),
        Ok(_) => Err("this is not a request: its head has no end".to_owned()),
        Err(error) => Err(format!("this is not a request: {error:?}")),
    }
}

fn why_not(route: &Route, http: &HttpListener, head: &RequestHead, buffer: &[u8], target: &[u8]) -> WhyNot {
    let takes = |route: Route| {
        let router = Router::new(std::slice::from_ref(&route), &[], http.paths.merge_slashes);
        router.route(head, buffer, target).is_some()
    };
    // A route with nothing but its path; then with one more kind of condition.
    let mut bare = Route::to_all("", route.to.clone());
    bare.hosts = route.hosts.clone();
    if !takes(bare.clone()) {
        return WhyNot::Host;
    }
    bare.path = route.path.clone();
    if !takes(bare.clone()) {
        return WhyNot::Path;
    }
    bare.methods = route.methods.clone();
    if !takes(bare.clone()) {
        return WhyNot::Method;
    }
    bare.headers = route.headers.clone();
    if !takes(bare.clone()) {
        return WhyNot::Header;
    }
    bare.cookies = route.cookies.clone();
    if !takes(bare.clone()) {
        return WhyNot::Cookie;
    }
    bare.query = route.query.clone();
    if !takes(bare.clone()) {
        return WhyNot::Query;
    }
    bare.grpc = route.grpc.clone();
    if !takes(bare.clone()) {
        return WhyNot::Grpc;
    }
    if route.claims.is_empty() { WhyNot::After } else { WhyNot::Claims }
}

#[cfg(test)]
mod tests {
    use model::{ClusterId, PathMatcher, PathRules, TextMatcher, ValueMatcher};

    use super::*;

    fn http(routes: Vec<Route>) -> HttpListener {
        HttpListener {
            isolated_hosts: Vec::new(),
            routes: routes.into(),
            trusted_proxies: Vec::new(),
            forwarded: model::ForwardedHeaders::Off,
            x_real_ip: false,
            header_names: model::HeaderNames::Any,
            passthrough: Default::default(),
            http2: true,
            request_id: None,
            paths: PathRules::default(),
            limits: model::ListenerLimits::default(),
            error_pages: Box::default(),
        }
    }

    fn prefix(path: &str) -> Route {
        Route { path: PathMatcher::Prefix(path.into()), ..Route::to_all(path, ClusterId(0).into()) }
    }

    fn value(name: &str) -> Vec<ValueMatcher> {
        vec![ValueMatcher { name: name.into(), value: TextMatcher::Present }]
    }

    #[test]
    fn each_condition_that_does_not_hold_is_named() {
        let host = vec![model::HostMatcher::Exact("b.test".into())];
        let routes = vec![
            Route { hosts: host, ..prefix("/") },
            prefix("/b"),
            Route { methods: vec!["POST".into()], ..prefix("/") },
            Route { headers: value("x-a"), ..prefix("/") },
            Route { cookies: value("c"), ..prefix("/") },
            Route { query: value("q"), ..prefix("/") },
            Route { claims: value("sub"), ..prefix("/") },
            prefix("/"),
        ];
        let http = http(routes);
        let question = RouteQuestion {
            method: "GET".into(),
            host: "a.test".into(),
            target: "/a?x=1".into(),
            headers: vec![("X-B".into(), "1".into())],
        };
        let (head, buffer) = head(&question).unwrap();
        let why: Vec<WhyNot> =
            http.routes.iter().map(|route| why_not(route, &http, &head, &buffer, b"/a?x=1")).collect();
        use WhyNot::{After, Claims, Cookie, Header, Host, Method, Path, Query};
        assert_eq!(why, [Host, Path, Method, Header, Cookie, Query, Claims, After]);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let check = |method: &str, host: &str, target: &str, expect: &str| {
            let question =
                RouteQuestion { method: method.into(), host: host.into(), target: target.into(), headers: Vec::new() };
            let error = head(&question).map(drop).unwrap_err();
            assert!(error.contains(expect), "{error}");
        };
        check("GET", "a", "/\r\nx: y", "a line break");
        check("GET", "a", "/a b", "this is not a request");
        check("", "a", "/", "this is not a request");
        check("GET", "a", &"/a".repeat(HEAD_BYTES_MAX), "more than");
    }
}

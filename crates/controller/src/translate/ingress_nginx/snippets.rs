//! What snippets decide of requests before everything else, as routes in front of the others.
//!
//! nginx takes what is written in its order: what one `if` answers never reaches the next. A route has conditions that all have to hold, so an
//! `if` whose condition holds becomes a route with this condition in front of the others. For an `if` whose condition does not hold, the
//! others get the condition, and a route behind them answers the rest.

use model::{
    HostMatcher, Page, PageBody, PathMatcher, PathRewrite, Redirect, Route, RouteAction, Scheme, TextMatcher,
    ValueMatcher,
};

use super::host::{is_below, redirect, rewritten};
use super::{Host, Ingress, Making, Place, respond};
use crate::ingress_nginx::{
    Answer, Found, Like, LocationKind, ServerLocation, Step, Test, check_locations, found_in, of_path,
};

/// Removes headers from responses of endpoints, as the snippet of a host says. What the location itself sets comes later.
pub(super) fn hide(server: Option<&crate::ingress_nginx::Server>, route: &mut Route) {
    if let Some(server) = server.filter(|server| !server.hidden.is_empty()) {
        route.for_each_changes(|changes| changes.response_headers = server.hidden.then(&changes.response_headers));
    }
}

/// The requests that a route is for, besides what the route itself says.
#[derive(Clone, Debug, Default)]
pub(super) struct When {
    headers: Vec<ValueMatcher>,
    /// `None`: all.
    methods: Option<Vec<String>>,
    /// `None`: those of the route.
    hosts: Option<Vec<HostMatcher>>,
    /// Over HTTP, or over HTTPS; `None` means both.
    is_plain: Option<bool>,
    /// No request at all.
    is_never: bool,
}

/// The answer for requests that no route before took.
pub(super) struct Rest {
    when: When,
    label: String,
    answer: Answer,
}

/// The routes that steps stand before.
#[derive(Clone, Copy)]
pub(super) struct Before<'b, 't> {
    pub(super) ingress: Ingress<'t>,
    pub(super) label: &'b str,
    pub(super) hosts: &'b [HostMatcher],
    pub(super) path: &'b PathMatcher,
    /// `None`: all of a host.
    pub(super) place: Option<&'b Place<'t>>,
}

impl When {
    /// Puts the conditions into a route; `false` if no request fits both.
    pub(super) fn restrict(&self, route: &mut Route, is_plain: bool) -> bool {
        if self.is_never || self.is_plain.is_some_and(|only| only != is_plain) {
            return false;
        }
        route.headers.extend(self.headers.iter().cloned());
        if let Some(hosts) = &self.hosts {
            route.hosts.clone_from(hosts);
        }
        match &self.methods {
            None => true,
            Some(methods) if route.methods.is_empty() => {
                route.methods.clone_from(methods);
                !methods.is_empty()
            }
            Some(methods) => {
                route.methods.retain(|method| methods.contains(method));
                !route.methods.is_empty()
            }
        }
    }

    /// Only these methods.
    pub(super) fn only(&mut self, methods: &[String]) {
        match &mut self.methods {
            Some(known) => known.retain(|method| methods.contains(method)),
            None => self.methods = Some(methods.to_vec()),
        }
    }

    fn only_plain(&mut self, is_plain: bool) {
        self.is_never |= self.is_plain.is_some_and(|known| known != is_plain);
        self.is_plain = Some(is_plain);
    }
}

impl<'t> Making<'t, '_, '_> {
    /// Adds the routes of steps, and leaves in `when` the requests that they do not decide. Returns the answers for behind the routes of those.
    ///
    /// # Errors
    /// Returns what no route can say here.
    pub(super) fn steps(&mut self, before: Before<'_, 't>, steps: &[Step]) -> Result<Vec<Rest>, String> {
        self.check(before, steps)?;
        if steps.iter().any(|step| matches!(step, Step::If { test: Test::Path(..) | Test::ExactPath(_), .. })) {
            self.refuse_ambiguous(before)?;
        }
        let mut rests = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::If { test, is_not, answer } => {
                    let label = format!("{}.if{number}", before.label);
                    let outside = self.when.clone();
                    let mut path = before.path.clone();
                    self.narrow(before, test, &mut path)?;
                    let inside = std::mem::take(&mut self.when);
                    match is_not {
                        false => {
                            self.when = inside;
                            self.answer(before, &label, path, answer);
                            self.when = without(before, outside, test);
                        }
                        true => {
                            rests.push(Rest { when: outside, label, answer: answer.clone() });
                            self.when = inside;
                        }
                    }
                }
                Step::Answer(answer) => {
                    self.answer(before, &format!("{}.return", before.label), before.path.clone(), answer);
                    self.when.is_never = true;
                }
                Step::Moved { from, to, status } => {
                    // Those of other paths are never asked for there.
                    if is_in(from, before.path) {
                        let to = Some(PathRewrite::Full(to.clone()));
                        let to = self.moved(before.ingress, to, *status);
                        let path = PathMatcher::Exact(from.clone());
                        self.lead(before, &format!("{}.moved{number}", before.label), path, RouteAction::Redirect(to));
                    }
                }
                Step::Rewrite { pattern, to, status } => {
                    let Some(path) = self.found_in((pattern, pattern), before)? else { continue };
                    let label = format!("{}.rewrite{number}", before.label);
                    match (status, before.place) {
                        (Some(status), _) => {
                            let to = match redirect(to, &path) {
                                Some(redirect) => Redirect { status: *status, ..redirect },
                                None => self.moved(before.ingress, Some(rewritten(to, &path)), *status),
                            };
                            self.lead(before, &label, path, RouteAction::Redirect(to));
                        }
                        (None, Some(place)) => {
                            let to = rewritten(to, &path);
                            self.main(before.hosts, &Place { label, ..place.clone() }, &path, Some(&to));
                        }
                        (None, None) => {}
                    }
                }
            }
        }
        rests.reverse();
        Ok(rests)
    }

    /// Tries all steps before the first route is added: half of a snippet is not what its author wrote.
    fn check(&mut self, before: Before<'_, 't>, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            match step {
                Step::If { test, .. } => {
                    let outside = self.when.clone();
                    let tried = self.narrow(before, test, &mut before.path.clone());
                    self.when = outside;
                    tried?;
                }
                Step::Rewrite { pattern, status, .. } => {
                    self.found_in((pattern, pattern), before)?;
                    if status.is_none() && before.place.is_none() {
                        return Err("a rewrite of the paths of a host".to_owned());
                    }
                }
                Step::Moved { .. } | Step::Answer(_) => {}
            }
        }
        Ok(())
    }

    /// Adds the answers for what the routes before did not take.
    pub(super) fn rests(&mut self, before: Before<'_, 't>, rests: Vec<Rest>) {
        for Rest { when, label, answer } in rests {
            self.when = when;
            self.answer(before, &label, before.path.clone(), &answer);
        }
    }

    /// Adds the condition of a test.
    fn narrow(&mut self, before: Before<'_, 't>, test: &Test, path: &mut PathMatcher) -> Result<(), String> {
        match test {
            Test::Header(name, like) => {
                let matcher = self.value(name, like)?;
                self.when.headers.push(matcher);
            }
            Test::Method(methods) => self.when.only(methods),
            Test::IsPlain => self.when.only_plain(true),
            Test::Host(host) => {
                let hosts = self.when.hosts.as_deref().unwrap_or(before.hosts);
                let is_one = hosts.contains(&HostMatcher::Exact(host.clone()));
                // Otherwise it may be the host of another Ingress.
                let is_other = |matcher: &HostMatcher| !matches!(matcher, HostMatcher::Exact(_));
                if !is_one && (hosts.is_empty() || hosts.iter().any(is_other)) {
                    return Err(format!("an `if` with the host {host}, which is no host of the rule"));
                }
                self.when.is_never |= !is_one;
                self.when.hosts = Some(vec![HostMatcher::Exact(host.clone())]);
            }
            Test::Path(pattern, regex) => match self.found_in((pattern, regex), before)? {
                Some(found) => *path = found,
                None => self.when.is_never = true,
            },
            Test::ExactPath(exact) if is_in(exact, before.path) => {
                let regex = self.with.regexes.anchored(&of_path(exact))?;
                *path = PathMatcher::Regex(regex);
            }
            Test::ExactPath(_) => self.when.is_never = true,
        }
        Ok(())
    }

    pub(super) fn value(&mut self, name: &str, like: &Like) -> Result<ValueMatcher, String> {
        let regexes = &mut *self.with.regexes;
        let regex = match like {
            Like::Is(text) => regexes.shared(&regex::escape(text))?,
            Like::Has(pattern) => regexes.shared_anywhere(pattern)?,
            Like::IsThere => regexes.shared("(?s:.+)")?,
        };
        Ok(ValueMatcher { name: name.to_owned(), value: TextMatcher::JoinedRegex(regex) })
    }

    /// The paths in which an expression is found, which must all be paths of the place: a route has one condition of its path. `None` if no path
    /// of the place has it.
    fn found_in(
        &mut self,
        (pattern, regex): (&str, &str),
        before: Before<'_, 't>,
    ) -> Result<Option<PathMatcher>, String> {
        let found = match (before.place, before.path) {
            (None, _) => Found::Within,
            // All that no other place took.
            (Some(place), _) if place.path == "/" && !place.exact => Found::Within,
            (_, PathMatcher::Prefix(prefix)) => found_in(pattern, prefix, false),
            (_, PathMatcher::Exact(exact)) => {
                let regex = self.with.regexes.anywhere(regex)?;
                return Ok(regex.is_match(exact).then(|| before.path.clone()));
            }
            (_, PathMatcher::Regex(_)) => Found::Elsewhere,
        };
        match found {
            Found::Within => {}
            Found::Never => return Ok(None),
            Found::Elsewhere => {
                return Err(format!("{pattern} may be found in paths other than those of {}", before.label));
            }
        }
        // The first place where it is found, as there.
        let regex = self.with.regexes.anchored(&format!("(?s:.*?)(?:{regex})(?s:.*)"))?;
        Ok(Some(PathMatcher::Regex(regex)))
    }

    /// Refuses preflight requests that `limit_except` of the path does not let pass: nginx chooses its block before the `if` that answers them.
    pub(super) fn refuse_preflights(&mut self, before: Before<'_, 't>) {
        let plan = &before.ingress.planned.plan;
        let passes =
            plan.location.methods.as_ref().is_none_or(|methods| methods.iter().any(|method| method == "OPTIONS"));
        let has_cors = plan.spec.get("route").is_some_and(|route| route.get("cors").is_some());
        let Some(place) = before.place.filter(|_| has_cors && !passes) else { return };
        // A condition on the method would be one on the method that such a request asks about. Browsers send the two headers with no other
        // request.
        let is_there = |name: &str| ValueMatcher { name: name.to_owned(), value: TextMatcher::Present };
        let route = Route {
            hosts: before.hosts.to_vec(),
            path: before.path.clone(),
            headers: ["origin", "access-control-request-method"].map(is_there).into(),
            ..respond(format!("{}.limit-except-preflight", before.label), 403, None)
        };
        self.own(place.ingress, place.path, route);
    }

    /// Refuses paths that go up or stay behind an encoded slash, which nginx decodes before it looks at a path: an expression would not find what
    /// an endpoint makes of them.
    fn refuse_ambiguous(&mut self, before: Before<'_, 't>) -> Result<(), String> {
        let below = match before.place {
            Some(place) if place.path != "/" => of_path(place.path.trim_end_matches('/')),
            _ => String::new(),
        };
        let slash = "(?:/|%2[Ff])";
        let pattern = format!(r"{below}(?s:.*)(?:{slash}\.\.?%2[Ff]|%2[Ff]\.\.?(?:{slash}|\z))(?s:.*)");
        let path = PathMatcher::Regex(self.with.regexes.anchored(&pattern)?);
        let answer = Answer::Fixed { status: 400, location: None, text: None };
        self.answer(before, &format!("{}.ambiguous", before.label), path, &answer);
        Ok(())
    }

    fn moved(&self, ingress: Ingress<'_>, path: Option<PathRewrite>, status: u16) -> Redirect {
        let is_relative = ingress.planned.plan.location.relative_redirects;
        Redirect { scheme: None, host: None, port: None, path, status, is_relative }
    }

    /// Adds a route to both listeners.
    fn lead(&mut self, before: Before<'_, 't>, label: &str, path: PathMatcher, to: RouteAction) {
        let route = Route { hosts: before.hosts.to_vec(), path, ..Route::to_all(label, to) };
        self.add_answer(before, route);
    }

    fn answer(&mut self, before: Before<'_, 't>, label: &str, path: PathMatcher, answer: &Answer) {
        let route = Route { hosts: before.hosts.to_vec(), path, ..answered(label.to_owned(), answer, before.ingress) };
        self.add_answer(before, route);
    }

    /// Adds a route that answers. In a location, preflight requests are answered before.
    pub(super) fn add_answer(&mut self, before: Before<'_, 't>, route: Route) {
        self.add_answers(before, route.clone(), route);
    }

    /// The same, with a route of its own for each listener.
    pub(super) fn add_answers(&mut self, before: Before<'_, 't>, over_plain: Route, over_tls: Route) {
        let mut policies = over_plain.clone();
        let scope = self.with.policies.of_ingress(before.ingress.name);
        let is_location = before.place.is_some();
        let is_applied = is_location && self.with.policies.apply(&scope, self.with.nowhere, 1, &mut policies).is_ok();
        let cors = policies.policy.cors.clone().filter(|_| is_applied);
        for (at, mut route) in [(self.at.plain, over_plain), (self.at.tls, over_tls)] {
            if !is_location {
                self.add_of_host(at, before.ingress, route);
                continue;
            }
            if cors.is_some() {
                route.policy.cors.clone_from(&cors);
            }
            self.add(at, before.ingress, route);
        }
    }

    /// What the snippet of a host says, with the places of the host in their order. What it decides before everything else is added.
    ///
    /// # Errors
    /// Returns the Ingress that says what no route can say, and what that is.
    pub(super) fn server<'i>(
        &mut self,
        name: &str,
        host: &'i Host<'t>,
        hosts: &[HostMatcher],
        (places, is_regex): (&[&'i Place<'t>], bool),
    ) -> Result<Server<'i, 't>, (Ingress<'t>, String)> {
        let Some((by, server)) = host.server else {
            let items = places.iter().map(|place| Item::Place(place)).collect();
            return Ok(Server { rests: Vec::new(), routes: Vec::new(), items });
        };
        self.server = Some(server);
        let label = host_label(by, name);
        let before = Before { ingress: by, label: &label, hosts, path: &everything(), place: None };
        let mut all = || {
            let numbered = server.locations.iter().enumerate();
            let routes: Result<Vec<Route>, String> =
                numbered.map(|(number, location)| self.location(before, location, number)).collect();
            let (routes, items) = (routes?, merged(places, &server.locations, is_regex)?);
            let rests = self.steps(before, &server.steps)?;
            if !server.locations.is_empty() {
                self.refuse_ambiguous(Before { label: &format!("{label}.location"), ..before })?;
            }
            Ok(Server { rests, routes, items })
        };
        all().map_err(|why: String| (by, format!("server-snippet: {why}")))
    }

    /// The route of a location of the snippet of a host.
    fn location(&mut self, before: Before<'_, 't>, location: &ServerLocation, number: usize) -> Result<Route, String> {
        let path = PathMatcher::Regex(self.with.regexes.anywhere(&location.regex)?);
        let mut route = answered(format!("{}.location{number}", before.label), &location.answer, before.ingress);
        if let RouteAction::Respond(response) = &mut route.to {
            response.headers.extend(location.headers.iter().cloned());
            if let (Some(page), Some(content_type)) = (&mut response.page, &location.content_type) {
                page.content_type.clone_from(content_type);
            }
        }
        Ok(Route { hosts: before.hosts.to_vec(), path, ..route })
    }
}

/// How the names of the routes of a server-snippet begin.
pub(super) fn host_label(by: Ingress<'_>, name: &str) -> String {
    format!("ingress/{}#server@{name}", by.name)
}

/// Every path.
pub(super) fn everything() -> PathMatcher {
    PathMatcher::Prefix("/".to_owned())
}

/// What the snippet of a host says.
pub(super) struct Server<'i, 't> {
    /// The answers for behind all of its routes.
    pub(super) rests: Vec<Rest>,
    /// The routes of its locations.
    pub(super) routes: Vec<Route>,
    /// All locations of the host.
    pub(super) items: Vec<Item<'i, 't>>,
}

/// The order of the locations of a host, as nginx chooses among them: those of the snippet and the places of Ingresses.
pub(super) enum Item<'i, 't> {
    Place(&'i Place<'t>),
    /// The path of a place itself, which nginx has as an exact location, so that no expression comes before it.
    Itself(&'i Place<'t>),
    Location(usize, &'i ServerLocation),
}

/// Puts the locations of a snippet among the places of a host, which are in their order.
///
/// # Errors
/// Returns the location that nginx would not take, or that has no place in one order.
pub(super) fn merged<'i, 't>(
    places: &[&'i Place<'t>],
    locations: &'i [ServerLocation],
    is_regex: bool,
) -> Result<Vec<Item<'i, 't>>, String> {
    use LocationKind::{Exact, First, Prefix, Regex};
    let of_kind = |kinds: &'static [LocationKind]| {
        let all = locations.iter().enumerate().filter(|(_, location)| kinds.contains(&location.kind));
        all.map(|(number, location)| Item::Location(number, location))
    };
    check_locations(locations, places.iter().map(|place| (place.path, place.exact)), is_regex)?;
    let mut items: Vec<Item<'i, 't>> = of_kind(&[Exact]).collect();
    if is_regex {
        let mut first: Vec<_> = of_kind(&[First]).collect();
        first.sort_by_key(length);
        items.extend(first);
        items.extend(of_kind(&[Regex]));
        // Prefixes come last, and `/` of every host is an expression that takes everything before.
        items.extend(places.iter().map(|place| Item::Place(place)));
        return Ok(items);
    }
    let (exact, prefixes): (Vec<_>, Vec<_>) = places.iter().copied().partition(|place| place.exact);
    items.extend(exact.into_iter().map(Item::Place));
    if locations.iter().any(|location| location.kind == Regex) {
        items.extend(prefixes.iter().filter(|place| place.path != "/").map(|place| Item::Itself(place)));
        let mut first: Vec<_> = of_kind(&[First]).collect();
        first.sort_by_key(length);
        items.extend(first);
        items.extend(of_kind(&[Regex]));
        let mut rest: Vec<_> = prefixes.into_iter().map(Item::Place).chain(of_kind(&[Prefix])).collect();
        rest.sort_by_key(length);
        items.extend(rest);
    } else {
        let mut rest: Vec<_> = prefixes.into_iter().map(Item::Place).chain(of_kind(&[First, Prefix])).collect();
        rest.sort_by_key(length);
        items.extend(rest);
    }
    Ok(items)
}

/// The longest first.
fn length(item: &Item<'_, '_>) -> std::cmp::Reverse<usize> {
    std::cmp::Reverse(match item {
        Item::Place(place) | Item::Itself(place) => place.path.trim_end_matches('/').len(),
        Item::Location(_, location) => location.path.len(),
    })
}

/// The requests that are left behind a route that answers those for which a test holds. What such a route takes never comes further, so
/// there is nothing to say; but what is known of hosts and schemes makes fewer routes.
fn without(before: Before<'_, '_>, mut when: When, test: &Test) -> When {
    match test {
        Test::IsPlain => when.only_plain(false),
        Test::Host(host) => {
            let hosts = when.hosts.as_deref().unwrap_or(before.hosts);
            let others = hosts.iter().filter(|matcher| **matcher != HostMatcher::Exact(host.clone()));
            let others: Vec<HostMatcher> = others.cloned().collect();
            when.is_never |= others.is_empty() && !hosts.is_empty();
            when.hosts = Some(others).filter(|others| !others.is_empty());
        }
        _ => {}
    }
    when
}

/// Whether a path is one of these.
fn is_in(path: &str, of: &PathMatcher) -> bool {
    match of {
        PathMatcher::Regex(regex) => regex.is_match(path),
        PathMatcher::Exact(exact) => exact == path,
        PathMatcher::Prefix(prefix) => is_below(path, prefix),
    }
}

/// The route that answers what a snippet returns.
fn answered(name: String, answer: &Answer, ingress: Ingress<'_>) -> Route {
    let to = match answer {
        // nginx makes a URL of a path, and a `?` at the end leaves out the query of the request.
        Answer::Fixed { status, location: Some(path), .. } if path.starts_with('/') => Redirect {
            scheme: None,
            host: None,
            port: None,
            path: Some(PathRewrite::Full(if path.contains('?') { path.clone() } else { format!("{path}?") })),
            status: *status,
            is_relative: ingress.planned.plan.location.relative_redirects,
        },
        Answer::Fixed { status, location, text } => {
            let mut route = respond(name, *status, location.as_deref());
            if let (RouteAction::Respond(response), Some(text)) = (&mut route.to, text) {
                let content_type = "text/html".to_owned();
                response.page = Some(Page { content_type, body: PageBody::Text(text.clone()) });
            }
            return route;
        }
        Answer::Moved { status, is_https, host, port } => Redirect {
            scheme: is_https.map(|is_https| if is_https { Scheme::Https } else { Scheme::Http }),
            host: host.clone(),
            port: *port,
            path: None,
            status: *status,
            is_relative: false,
        },
    };
    Route::to_all(name, RouteAction::Redirect(to))
}

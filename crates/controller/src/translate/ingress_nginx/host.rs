//! The routes of one host, in the order in which nginx would try its locations.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use model::{
    ClientCertRule, ExternalAuth, FieldValue, HostMatcher, IngressNginxSessions, Mirror, PathMatcher, PathRewrite,
    Redirect, Route, RouteAction, Scheme, Template, TemplatePart, TextMatcher, ValueMatcher, WeightedCluster,
};

use super::super::bind::Ask;
use super::super::cluster::{Identity, Share};
use super::super::ingress::One;
use super::super::listener::certificate;
use super::super::policy::Authority;
use super::super::reference::Why;
use super::super::regexes::Unmatched;
use super::super::traffic::UpstreamTls;
use super::snippets::{Before, Item, Server, When, everything, hide, host_label};
use super::{At, Host, Ingress, Making, NAMES_MAX, Place, client_certificate, moved, names, respond};
use crate::index::{IngressTarget, Name};
use crate::ingress_nginx::{
    Affinity, Backend, Canary, ClientTls, HeaderRule, Https, ProxySsl, cut, filled, is_expression,
};

/// Paths of one host that are asked whether requests may pass. Each is looked up among all paths of the host.
const ASKED_MAX: usize = 64;

/// The path of a location, and why its requests are refused if they are.
struct Matched {
    path: PathMatcher,
    closed: Option<String>,
}

impl<'t> Making<'t, '_, '_> {
    /// All routes of a host. `others` are the names of all hosts, sorted.
    pub(super) fn host(&mut self, name: &str, host: &Host<'t>, others: &[String]) {
        let Some(first) = host.first else { return };
        let hosts = self.names(name, host, first, others);
        let ask = match host.client_tls {
            None => Ok(None),
            Some((by, client_tls)) => {
                self.ask(by, client_tls).map(Some).map_err(|why| (by, format!("auth-tls-secret: {why}")))
            }
        };
        let rule = host.client_tls.map(|(by, client_tls)| self.client_cert(client_tls).map_err(|why| (by, why)));
        let (rule, ask) = match rule.transpose() {
            Ok(rule) => (rule, ask),
            Err(wrong) => (None, Err(wrong)),
        };
        self.client_cert = rule;
        self.at = self.at(name, host, others, ask.as_ref().ok().and_then(Option::as_ref));
        self.has_tls = host.has_tls;
        self.client_tls = host.client_tls.map(|(_, client_tls)| client_tls);
        self.contradicting.clone_from(&host.contradicting);
        self.when = When::default();
        self.server = None;
        self.shut(name, first, &hosts);
        if let Some((by, why)) = host.closed {
            return self.closed(name, hosts, host, (by, why));
        }
        if let Err((by, why)) = ask {
            self.tell(by, Why::new("Closed", format!("its requests get 403: {why}")));
            return self.closed(name, hosts, host, (by, why.as_str()));
        }
        let is_regex = host.places.iter().any(|place| place.ingress.planned.plan.location.is_regex(place.path));
        let mut places: Vec<&Place<'t>> = host.places.iter().collect();
        match is_regex {
            true => places.sort_by_key(|place| Reverse((place.path.len(), place.path))),
            false => places.sort_by_key(|place| (!place.exact, Reverse(place.path.trim_end_matches('/').len()))),
        }
        self.server = host.server.map(|(_, server)| server);
        self.asked = self.asked_places(&places, is_regex);
        let blocked = self.block((name, first), &hosts).map_err(|why| (first, why));
        let made = blocked.and_then(|blocked| Ok((blocked, self.server(name, host, &hosts, (&places, is_regex))?)));
        let (blocked, Server { rests, routes, items }) = match made {
            Ok(made) => made,
            Err((by, why)) => {
                self.when = When::default();
                self.tell(by, Why::new("Closed", format!("its requests get 403: {why}")));
                return self.closed(name, hosts, host, (by, &why));
            }
        };
        if let (Some(by), Ok(place)) = (host.passes_tls, &self.places.tls) {
            self.pass(name, by, host, *place);
        }
        self.app_root(name, host, &hosts);
        for item in items {
            self.item(host, &hosts, (item, &routes), is_regex);
        }
        // Otherwise a less specific host would get what no path of this one takes.
        if !name.is_empty() && !places.iter().any(|place| place.path == "/" && !place.exact) {
            self.not_found(name, first, &hosts);
        }
        if let Some((by, _)) = host.server {
            let before =
                Before { ingress: by, label: &host_label(by, name), hosts: &hosts, path: &everything(), place: None };
            self.rests(before, rests);
        }
        self.behind_block((name, first), &hosts, blocked);
        self.when = When::default();
        self.server = None;
        if host.www {
            self.www(name, first, others);
        }
    }

    /// Where `/` is redirected to.
    fn app_root(&mut self, name: &str, host: &Host<'t>, hosts: &[HostMatcher]) {
        let Some((ingress, root)) = host.app_root else { return };
        let route = respond(format!("ingress/{}#app-root@{name}", ingress.name), 302, Some(root));
        let route = Route { hosts: hosts.to_vec(), path: PathMatcher::Exact("/".to_owned()), ..route };
        let At { plain, tls } = self.at;
        let over_plain = self.https(ingress, "/", &route).unwrap_or_else(|| route.clone());
        self.add_bare(plain, ingress, over_plain);
        self.add_bare(tls, ingress, route);
    }

    /// One of the locations of a host. `routes` are those of its snippet.
    fn item(
        &mut self,
        host: &Host<'t>,
        hosts: &[HostMatcher],
        (item, routes): (Item<'_, 't>, &[Route]),
        is_regex: bool,
    ) {
        match item {
            Item::Place(place) => {
                // A prefix also takes the path without its slash, so the redirect to it comes first.
                if !is_regex {
                    self.slash(hosts, place, host);
                }
                self.place(hosts, place, is_regex);
            }
            Item::Itself(place) => {
                let bare = place.path.trim_end_matches('/');
                if bare.len() < place.path.len() {
                    return self.slash(hosts, place, host);
                }
                let label = format!("{}.itself", place.label);
                self.place(hosts, &Place { label, exact: true, ..place.clone() }, is_regex);
            }
            Item::Location(number, _) => {
                let (Some((by, _)), Some(route)) = (host.server, routes.get(number)) else { return };
                let At { plain, tls } = self.at;
                self.add_of_host(plain, by, route.clone());
                self.add_of_host(tls, by, route.clone());
            }
        }
    }

    /// The names of a host.
    fn names(&mut self, name: &str, host: &Host<'_>, first: Ingress<'_>, others: &[String]) -> Vec<HostMatcher> {
        let mut hosts = names(name, &host.aliases, others);
        let more = hosts.len().saturating_sub(1) * (host.places.len() + 1);
        match self.names_left.checked_sub(more) {
            Some(left) => self.names_left = left,
            None => {
                hosts.truncate(1);
                let mut all = host.places.iter().map(|place| place.ingress);
                let by = all.find(|ingress| !ingress.planned.plan.location.aliases.is_empty()).unwrap_or(first);
                let why = format!(
                    "these annotations are not served: server-alias: its names, counted once for each path of {name}, are more than the {NAMES_MAX} \
                     of all hosts; write rules for them"
                );
                self.tell(by, Why::new("UnsupportedAnnotation", why));
            }
        }
        hosts
    }

    /// What the clients of a host are asked for.
    fn ask(&self, by: Ingress<'_>, client_tls: &ClientTls) -> Result<Ask, String> {
        let authority = Authority::in_secret(self.index, Name::new(&by.name.namespace, &client_tls.secret))?;
        Ok(Ask { ca: authority.pem(), crl: authority.crl(), verify: true, required: false })
    }

    /// What all routes of a host demand of the certificates of clients.
    fn client_cert(&mut self, client_tls: &ClientTls) -> Result<Arc<ClientCertRule>, String> {
        let ClientTls { mode, subject, error_page, .. } = client_tls;
        let subject = match subject {
            None => None,
            // As in nginx, it is found anywhere in the subject.
            Some(pattern) => {
                let regex = self.with.regexes.anywhere(pattern);
                Some(TextMatcher::Regex(regex.map_err(|why| format!("auth-tls-match-cn: {why}"))?))
            }
        };
        Ok(Arc::new(ClientCertRule { mode: *mode, subject, redirect: error_page.clone() }))
    }

    /// The backends behind the paths of auth-url on this host. `places` are all of its places in their order.
    fn asked_places(
        &mut self,
        places: &[&Place<'t>],
        is_regex: bool,
    ) -> BTreeMap<String, Result<(Ingress<'t>, &'t IngressTarget), String>> {
        let wanted = places.iter().filter_map(|place| place.ingress.planned.plan.location.asks_host.clone());
        let wanted: BTreeSet<String> = wanted.collect();
        let mut found = BTreeMap::new();
        for (number, url) in wanted.into_iter().enumerate() {
            if number >= ASKED_MAX {
                found.insert(url, Err(format!("auth-url asks more than {ASKED_MAX} paths of this host")));
                continue;
            }
            let path = url.split('?').next().unwrap_or_default();
            let place = places.iter().find(|place| match is_regex {
                false if place.exact => place.path == path,
                false => is_below(path, place.path),
                true => {
                    let regexes = &mut *self.with.regexes;
                    regexes.of_path(place.path).is_ok_and(|regex| regex.is_match(path))
                }
            });
            let outcome = match place {
                None => Err(format!("auth-url asks {path} of the same host, which no Ingress has")),
                Some(place) => {
                    let plan = &place.ingress.planned.plan;
                    // The question does not go through its routes.
                    let is_plain = !plan.answers()
                        && !plan.location.has_rules
                        && self.server.is_none_or(|server| server.steps.is_empty() && server.locations.is_empty())
                        && plan.location.asks_host.is_none()
                        && plan.location.rewrite.as_deref().is_none_or(|target| target == place.path);
                    match is_plain {
                        true => Ok((place.ingress, place.target)),
                        false => Err(format!(
                            "auth-url asks {path} of the same host, and {} closes, redirects or rewrites it, decides it by a snippet, or asks it about itself",
                            place.ingress.name
                        )),
                    }
                }
            };
            found.insert(url, outcome);
        }
        found
    }

    /// Closes a host, and tells all Ingresses of it.
    fn closed(&mut self, name: &str, hosts: Vec<HostMatcher>, host: &Host<'_>, (by, why): (Ingress<'_>, &str)) {
        let route = respond(format!("ingress/{}#closed@{name}", by.name), 403, None);
        let At { plain, tls } = self.at;
        for at in [plain, tls] {
            self.add(at, by, Route { hosts: hosts.clone(), ..route.clone() });
        }
        let others = host.first.into_iter().chain(host.places.iter().map(|place| place.ingress));
        let others: BTreeMap<&Name, Ingress<'_>> = others.map(|ingress| (ingress.name, ingress)).collect();
        let shown = if name.is_empty() { "*" } else { name };
        let what = format!("requests for {shown} get 403, because of {}: {why}; it holds for all of a host", by.name);
        for ingress in others.into_values().filter(|ingress| ingress.name != by.name) {
            self.tell(ingress, Why::new("Closed", what.clone()));
        }
    }

    /// Adds a route that leads to no endpoint: over HTTP, the redirect to HTTPS comes first.
    pub(super) fn own(&mut self, ingress: Ingress<'_>, path: &str, route: Route) {
        let At { plain, tls } = self.at;
        let over_plain = self.https(ingress, path, &route).unwrap_or_else(|| route.clone());
        self.add(plain, ingress, over_plain);
        self.add(tls, ingress, route);
    }

    /// The redirect to HTTPS for the requests of a route, if there is one.
    fn https(&self, ingress: Ingress<'_>, path: &str, route: &Route) -> Option<Route> {
        let globals = &self.with.plans.globals;
        let applies = match ingress.planned.plan.location.https {
            Https::No => false,
            // Whether or not there is such a certificate: what should be encrypted is not served in the clear.
            Https::WithCertificate => self.has_tls,
            Https::Always => true,
        };
        (applies && !self.is_open(path)).then(|| {
            let status = globals.redirect_code();
            let https = self.places.tls.as_ref().map(|place| place.port()).ok();
            let port = https.filter(|_| ingress.planned.plan.location.port_in_redirects);
            let to = Redirect { scheme: Some(Scheme::Https), host: None, port, path: None, status, is_relative: false };
            let mut own = Route { to: RouteAction::Redirect(to), timeout: None, ..route.clone() };
            own.policy = Default::default();
            // A preflight request is answered and not redirected.
            if route.policy.cors.is_some() {
                own.policy.cors.clone_from(&route.policy.cors);
            }
            own
        })
    }

    /// Whether requests for this path are served over HTTP in any case.
    fn is_open(&self, path: &str) -> bool {
        let prefixes = self.with.plans.globals.prefixes("no-tls-redirect-locations");
        prefixes.iter().any(|prefix| path.starts_with(prefix.as_str()))
    }

    /// `/foo/` as a path of a rule makes `/foo` a redirect to it.
    fn slash(&mut self, hosts: &[HostMatcher], place: &Place<'_>, host: &Host<'_>) {
        let bare = place.path.trim_end_matches('/');
        let plan = &place.ingress.planned.plan;
        let is_taken = [true, false].iter().any(|exact| host.known.contains_key(&(bare, *exact)));
        if bare.is_empty() || bare.len() == place.path.len() || is_taken || plan.answers() {
            return;
        }
        let (has_port, is_relative) = (plan.location.port_in_redirects, plan.location.relative_redirects);
        let route = |at: Option<SocketAddr>| {
            let to = Redirect {
                scheme: None,
                host: None,
                port: at.map(|at| at.port()).filter(|_| has_port && !is_relative),
                path: Some(PathRewrite::Full(place.path.to_owned())),
                status: 301,
                is_relative,
            };
            let route = Route::to_all(format!("{}.slash", place.label), RouteAction::Redirect(to));
            Route { hosts: hosts.to_vec(), path: PathMatcher::Exact(bare.to_owned()), ..route }
        };
        let At { plain, tls } = self.at;
        let over_plain = route(plain);
        let over_plain = self.https(place.ingress, bare, &over_plain).unwrap_or(over_plain);
        self.add(plain, place.ingress, over_plain);
        self.add(tls, place.ingress, route(tls));
    }

    fn www(&mut self, host: &str, ingress: Ingress<'t>, others: &[String]) {
        let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
        if host.is_empty() || host.contains('*') || others.binary_search(&other).is_ok() {
            return;
        }
        let host_to = Some(host.to_owned());
        let to = Redirect { scheme: None, host: host_to, port: None, path: None, status: 308, is_relative: false };
        let route = Route::to_all(format!("ingress/{}#www@{host}", ingress.name), RouteAction::Redirect(to));
        let At { plain, tls } = self.at;
        // Clients of this name are asked for nothing.
        self.client_cert = None;
        let hosts = [HostMatcher::Exact(other.clone())];
        // The expressions are those of the host.
        let Ok(blocked) = self.block((&other, ingress), &hosts) else { return };
        for at in [plain, tls] {
            self.add_bare(at, ingress, Route { hosts: hosts.to_vec(), ..route.clone() });
        }
        self.behind_block((&other, ingress), &hosts, blocked);
        self.when = When::default();
    }

    fn matched(&mut self, place: &Place<'_>, is_regex: bool) -> Matched {
        let contradicts = self.contradicting.contains(place.ingress.name);
        let closed = place.ingress.planned.plan.closed.clone();
        let closed = closed.or_else(|| contradicts.then(|| "it demands more of clients than its host".to_owned()));
        if !is_regex {
            let path = place.path.to_owned();
            return Matched {
                path: if place.exact { PathMatcher::Exact(path) } else { PathMatcher::Prefix(path) },
                closed,
            };
        }
        let Unmatched { begins, why } = match self.with.regexes.of_path(place.path) {
            Ok(regex) => return Matched { path: PathMatcher::Regex(regex), closed },
            Err(unmatched) => unmatched,
        };
        let all = self.with.regexes.anchored(&format!("(?i:{})(?s:.*)", regex::escape(&begins)));
        let what = match &all {
            Ok(_) => format!("all paths that begin with {begins} are closed"),
            Err(_) => "the host is closed".to_owned(),
        };
        let told = format!("the path {} cannot be matched ({why}), so {what}: write it otherwise", cut(place.path));
        self.tell(place.ingress, Why::new("Closed", told.clone()));
        // Without an expression nothing is left to compare with, so everything that comes later is closed.
        let path = all.map_or_else(|_| PathMatcher::Prefix("/".to_owned()), PathMatcher::Regex);
        Matched { path, closed: closed.or(Some(told)) }
    }

    fn place(&mut self, hosts: &[HostMatcher], place: &Place<'t>, is_regex: bool) {
        let ingress = place.ingress;
        let plan = &ingress.planned.plan;
        let Matched { path, closed } = self.matched(place, is_regex);
        let with = |route: Route| Route { hosts: hosts.to_vec(), path: path.clone(), ..route };
        let At { plain, tls } = self.at;
        let refused = closed.map(|_| 403).or(plan.unavailable.as_ref().map(|_| 503));
        if let Some(status) = refused {
            let route = with(respond(place.label.clone(), status, None));
            self.add(plain, ingress, route.clone());
            return self.add(tls, ingress, route);
        }
        if let Some((code, url)) = &plan.location.redirect {
            let before = Before { ingress, label: &place.label, hosts, path: &path, place: Some(place) };
            let At { plain, tls } = self.at;
            let [over_plain, over_tls] = [plain, tls].map(|at| with(moved(place, *code, url, at)));
            return self.add_answers(before, over_plain, over_tls);
        }
        self.decided(hosts, place, &path);
    }

    /// What a snippet decides of the requests of a path, and the routes for the others.
    fn decided(&mut self, hosts: &[HostMatcher], place: &Place<'t>, path: &PathMatcher) {
        let location = &place.ingress.planned.plan.location;
        let before = Before { ingress: place.ingress, label: &place.label, hosts, path, place: Some(place) };
        self.refuse_preflights(before);
        let outside = self.when.clone();
        if let Some(methods) = &location.methods {
            // nginx chooses the block before it does anything else.
            self.when.only(methods);
        }
        let rests = match self.steps(before, &location.steps) {
            Ok(rests) => rests,
            Err(why) => {
                self.when = outside;
                let why = format!("its requests get 403: configuration-snippet: {why}");
                self.tell(place.ingress, Why::new("Closed", why));
                let label = format!("{}.closed", place.label);
                let closed = Route { hosts: hosts.to_vec(), path: path.clone(), ..respond(label, 403, None) };
                return self.add_answer(before, closed);
            }
        };
        self.main(hosts, place, path, None);
        self.rests(before, rests);
        self.when = outside;
        if location.methods.is_some() {
            // Behind the redirect to HTTPS, as all that is about who may come in.
            let route = respond(format!("{}.limit-except", place.label), 403, None);
            self.own(place.ingress, place.path, Route { hosts: hosts.to_vec(), path: path.clone(), ..route });
        }
    }

    /// The routes that lead to the endpoints of a path, which get `rewrite` if there is one.
    pub(super) fn main(
        &mut self,
        hosts: &[HostMatcher],
        place: &Place<'t>,
        path: &PathMatcher,
        rewrite: Option<&PathRewrite>,
    ) {
        let with = |route: Route| Route { hosts: hosts.to_vec(), path: path.clone(), ..route };
        let mut all = with(Route::to_all(place.label.clone(), self.with.nowhere.into()));
        if let Some(rewrite) = rewrite {
            all.policy.changes.rewrite.path = Some(rewrite.clone());
        }
        let At { plain, tls } = self.at;
        for mut route in self.served(place, all) {
            hide(self.server, &mut route);
            let over_plain = match self.https(place.ingress, place.path, &route) {
                Some(redirect) => redirect,
                // Nobody shows a certificate there.
                None if self.client_tls.is_some() && !self.is_open(place.path) => {
                    with(respond(route.name.clone(), 403, None))
                }
                None => route.clone(),
            };
            self.add(plain, place.ingress, over_plain);
            let mut over_tls = route;
            if let Some(client_tls) = self.client_tls {
                client_certificate::put(&mut over_tls, client_tls);
            }
            self.add(tls, place.ingress, over_tls);
        }
    }

    /// The routes of a path: one, and those of its canary in front of it.
    fn served(&mut self, place: &Place<'_>, route: Route) -> Vec<Route> {
        let closes = |this: &mut Self, why: String| {
            this.tell(place.ingress, Why::new("Closed", format!("its requests get 403: {why}")));
            let closed = respond(route.name.clone(), 403, None);
            vec![Route { hosts: route.hosts.clone(), path: route.path.clone(), ..closed }]
        };
        let main = match self.share(place.ingress, place.ingress, place.target) {
            Ok(share) => share,
            Err(why) => {
                // Before any question of who may use it, as there.
                self.tell(place.ingress, why);
                if place.ingress.planned.plan.location.default_backend.is_some() {
                    return match self.without_service(place, &route) {
                        Ok(route) => vec![route],
                        Err(why) => closes(self, why),
                    };
                }
                let gone = respond(route.name.clone(), 503, None);
                return vec![Route { hosts: route.hosts, path: route.path, ..gone }];
            }
        };
        let main = match self.cluster(place.ingress, main, sessions(place.ingress, place.ingress, place.target)) {
            Ok(main) => main,
            Err(why) => return closes(self, why),
        };
        let mut all = Route { to: main.into(), ..route.clone() };
        if let Err(why) = self.shaped(place, &mut all) {
            return closes(self, why);
        }
        let Some((canary, target)) = place.canary else { return vec![all] };
        let other = self.share(place.ingress, canary, target).and_then(|share| {
            let sessions = sessions(place.ingress, canary, target);
            self.cluster(place.ingress, share, sessions).map_err(|why| Why::new("UnsupportedValue", why))
        });
        match (other, &canary.planned.plan) {
            (Ok(other), plan) if plan.closed.is_none() => {
                let rule = plan.canary.clone().unwrap_or_default();
                self.split((canary, &rule), all, (main, other))
            }
            (Err(why), _) => {
                self.tell(canary, why);
                vec![all]
            }
            (Ok(_), _) => vec![all],
        }
    }

    /// The routes of a path with a canary: by header, by cookie, and then by weight.
    fn split(
        &mut self,
        (by, canary): (Ingress<'_>, &Canary),
        all: Route,
        (main, other): (model::ClusterId, model::ClusterId),
    ) -> Vec<Route> {
        let variant = |suffix: &str, to: model::ClusterId| Route {
            name: format!("{}.{suffix}", all.name),
            to: to.into(),
            ..all.clone()
        };
        let exact = |name: &str, value: &str| ValueMatcher {
            name: name.to_owned(),
            value: TextMatcher::Exact(value.to_owned()),
        };
        let mut routes = Vec::new();
        match &canary.header {
            Some((name, HeaderRule::Words)) => {
                for (word, to) in [("always", other), ("never", main)] {
                    routes.push(Route { headers: vec![exact(name, word)], ..variant(&format!("header-{word}"), to) });
                }
            }
            Some((name, HeaderRule::Value(value))) => {
                routes.push(Route { headers: vec![exact(name, value)], ..variant("header", other) });
            }
            Some((name, HeaderRule::Pattern(pattern))) => match self.with.regexes.anywhere(pattern) {
                Ok(regex) => {
                    let matcher = ValueMatcher { name: name.clone(), value: TextMatcher::Regex(regex) };
                    routes.push(Route { headers: vec![matcher], ..variant("header", other) });
                }
                Err(_) if !is_expression(pattern) => {}
                Err(why) => {
                    let why = format!("these annotations are not served: canary-by-header-pattern: {}", cut(&why));
                    self.tell(by, Why::new("UnsupportedAnnotation", why));
                }
            },
            None => {}
        }
        if let Some(cookie) = &canary.cookie {
            for (word, to) in [("always", other), ("never", main)] {
                routes.push(Route { cookies: vec![exact(cookie, word)], ..variant(&format!("cookie-{word}"), to) });
            }
        }
        let share = |cluster, weight| WeightedCluster { cluster, weight, changes: None };
        let to = match canary.weight {
            0 => main.into(),
            weight => RouteAction::Clusters(vec![share(main, canary.total - weight), share(other, weight)]),
        };
        routes.push(Route { to, ..all });
        routes
    }

    /// The port of a Service that a path leads to. `of` is the Ingress that says how, and `ingress` the one that has the path.
    pub(super) fn share(
        &mut self,
        of: Ingress<'_>,
        ingress: Ingress<'_>,
        target: &IngressTarget,
    ) -> Result<Share, Why> {
        let one = One::of(self.index, (ingress.name, ingress.entry), None, self.out);
        let share = one.share(target)?;
        let h2 = share.h2 || of.planned.plan.location.protocol.h2;
        Ok(Share { h2, ..share })
    }

    pub(super) fn cluster(
        &mut self,
        of: Ingress<'_>,
        share: Share,
        sessions: Option<IngressNginxSessions>,
    ) -> Result<model::ClusterId, String> {
        let policies = self.with.policies;
        let location = &of.planned.plan.location;
        let mut scope = policies.of_clusters(&policies.of_ingress(of.name));
        if let Some(sessions) = &sessions {
            // Of one port, the number and the name have sessions of their own.
            scope.label += &format!("+{}", sessions.backend);
        }
        scope.sessions = sessions;
        let mut identity = Identity::Anonymous;
        if location.protocol.tls {
            scope.label += "+tls";
            let tls = scope.tls.insert(UpstreamTls::default());
            if let Some(ProxySsl { secret, verify, sni }) = &location.proxy_ssl {
                let secret = Name::new(&of.name.namespace, secret);
                certificate(self.index, secret.clone()).map_err(|why| format!("proxy-ssl-secret: {}", why.message))?;
                if verify.is_some() {
                    Authority::in_secret(self.index, secret.clone())
                        .map_err(|why| format!("proxy-ssl-secret: {why}"))?;
                }
                *tls = UpstreamTls { verify: verify.clone().map(|name| (secret.clone(), name)), sni: sni.clone() };
                identity = Identity::Secret(secret);
            }
        }
        let before = self.out.clusters.set_policies(scope);
        self.out.clusters.present(&identity);
        let cluster = self.out.clusters.of(self.index, vec![share]);
        self.out.clusters.present(&Identity::Anonymous);
        self.out.clusters.set_policies(before);
        cluster
    }

    /// Puts what the annotations say into a route.
    pub(super) fn shaped(&mut self, place: &Place<'_>, route: &mut Route) -> Result<(), String> {
        let ingress = place.ingress;
        let location = &ingress.planned.plan.location;
        if let Some(target) = location.rewrite.as_deref().filter(|target| *target != place.path) {
            if let Some(redirect) = redirect(target, &route.path) {
                route.to = RouteAction::Redirect(redirect);
                return Ok(());
            }
            route.policy.changes.rewrite.path = Some(rewritten(target, &route.path));
            if let Some(prefix) = &location.prefix {
                let set = &mut route.policy.changes.request_headers.set;
                set.push(("x-forwarded-prefix".to_owned(), FieldValue::Text(prefix.clone())));
            }
        }
        let of_place = |text: &str| {
            let (service, port) = match place.target {
                IngressTarget::Service(service, port) => (&**service, port.to_string()),
                IngressTarget::Resource(_) => ("", String::new()),
            };
            let Name { namespace, name, .. } = ingress.name;
            filled(text, Backend { namespace, ingress: name, service, port: &port })
        };
        if let Some(host) = &location.host {
            route.policy.changes.rewrite.host = Some(of_place(host));
        }
        if let Some(mirror) = &location.mirror
            && let Some(to) = self.copied_to(ingress, mirror)?
        {
            let host = Some(mirror.host().to_owned()).filter(|host| !host.is_empty());
            route.policy.mirrors.push(Mirror { to, host, share: 1.0, only: None });
        }
        let scope = self.with.policies.of_ingress(ingress.name);
        // Two listeners, and the routes of a canary.
        self.with.policies.apply(&scope, self.with.nowhere, 2, route)?;
        if ingress.planned.plan.limits_clients() {
            count_together(&format!("ingress/{}", ingress.name), route);
        }
        let set = &mut route.policy.changes.request_headers.set;
        for (name, text) in &location.backend_headers {
            set.retain(|(known, _)| known != name);
            set.push((name.clone(), FieldValue::Text(of_place(text))));
        }
        set.extend(location.forwarded.iter().map(|(name, value)| (name.clone(), FieldValue::Text(value.clone()))));
        self.errors(place, route)?;
        // Programs take a `Proxy` of the client for a setting of theirs (CVE-2016-5385, "httpoxy"), so ingress-nginx removes it.
        let changes = &mut route.policy.changes.request_headers;
        if !changes.set.iter().any(|(name, _)| name == "proxy") {
            changes.remove.push("proxy".to_owned());
        }
        if let Some(policy) = route.policy.external_auth.as_deref().cloned() {
            let policy = ExternalAuth { is_403_bare: true, ..policy };
            if self.client_tls.is_some() {
                return Err("auth-url beside auth-tls-secret: the service would not learn who the client is".to_owned());
            }
            let number = self.with.policies.number_of(ingress.name);
            let to = self.authorizer(ingress, &scope)?;
            route.policy.external_auth = Some(self.with.policies.authorizing(number, to, &policy));
        }
        Ok(())
    }
}

/// Whether a path is that of a prefix, or below it at a segment boundary.
pub(super) fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Has the routes of an Ingress, which are many (paths, canaries, over HTTP and HTTPS), count a client's requests together, as there.
fn count_together(group: &str, route: &mut Route) {
    let policy = &mut *route.policy;
    let of_rate = policy.rate_limit.as_mut().map(|limit| &mut limit.terms);
    let of_concurrency = policy.concurrency_limit.as_mut().map(|limit| &mut limit.terms);
    for terms in of_rate.into_iter().chain(of_concurrency) {
        terms.group = Some(group.to_owned());
    }
}

/// The sessions of a backend, if the Ingress `of` wants some. `ingress` has the path that leads there.
fn sessions(of: Ingress<'_>, ingress: Ingress<'_>, target: &IngressTarget) -> Option<IngressNginxSessions> {
    let is_persistent = of.planned.plan.location.affinity? == Affinity::Persistent;
    let IngressTarget::Service(service, port) = target else { return None };
    Some(IngressNginxSessions { backend: format!("{}-{service}-{port}", ingress.name.namespace), is_persistent })
}

/// The new path: `$1` to `$9` are what the groups of the expression captured, and nothing if there is no such group.
pub(super) fn rewritten(target: &str, path: &PathMatcher) -> PathRewrite {
    let groups = match path {
        PathMatcher::Regex(regex) => regex.captures_len(),
        PathMatcher::Prefix(_) | PathMatcher::Exact(_) => 1,
    };
    let parts = parts(target, groups);
    match parts.as_slice() {
        [TemplatePart::Text(text)] => PathRewrite::Full(text.clone()),
        _ => PathRewrite::Template(Template(parts)),
    }
}

fn parts(target: &str, groups: usize) -> Vec<TemplatePart> {
    let mut parts = Vec::new();
    let mut text = String::new();
    let mut letters = target.chars().peekable();
    while let Some(letter) = letters.next() {
        let digit = letters.peek().and_then(|next| next.to_digit(10)).filter(|digit| letter == '$' && *digit > 0);
        let Some(digit) = digit else {
            text.push(letter);
            continue;
        };
        letters.next();
        let number = digit as usize;
        if number < groups {
            if !text.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut text)));
            }
            parts.push(TemplatePart::Group(number));
        }
    }
    if !text.is_empty() || parts.is_empty() {
        parts.push(TemplatePart::Text(text));
    }
    parts
}

/// A rewrite to a URL is a redirect.
pub(super) fn redirect(target: &str, path: &PathMatcher) -> Option<Redirect> {
    let (scheme, rest) = target.split_once("://")?;
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    let (authority, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (authority, None),
    };
    let after = if after.is_empty() { "/" } else { after };
    let path = Some(rewritten(after, path));
    let host = Some(host.to_owned());
    Some(Redirect { scheme: Some(scheme), host, port, path, status: 302, is_relative: false })
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn what_a_rewrite_becomes() {
        let group = TemplatePart::Group;
        let text = |text: &str| TemplatePart::Text(text.to_owned());
        let check = |target: &str, path: &str, expect: Vec<TemplatePart>| {
            let regex = PathMatcher::Regex(Regex::new(path).unwrap());
            let found = match rewritten(target, &regex) {
                PathRewrite::Template(Template(parts)) => parts,
                PathRewrite::Full(full) => vec![TemplatePart::Text(full)],
                PathRewrite::Prefix(_) => panic!("{target}"),
            };
            assert_eq!(found, expect, "{target}");
        };
        check("/$2", "/a(/|$)(.*)", vec![text("/"), group(2)]);
        check("/x/$1/y", "/a(.*)", vec![text("/x/"), group(1), text("/y")]);
        check("/x", "/a(.*)", vec![text("/x")]);
        // As in nginx, one digit, and nothing for a group that there is not.
        check("/$10", "/(.*)", vec![text("/"), group(1), text("0")]);
        check("/a$3", "/(.*)", vec![text("/a")]);
        check("/a$", "/(.*)", vec![text("/a$")]);
        let to = redirect("https://b.example:8443/x/$1", &PathMatcher::Regex(Regex::new("/a(.*)").unwrap())).unwrap();
        assert_eq!((to.host.as_deref(), to.port, to.status), (Some("b.example"), Some(8443), 302));
        assert_eq!(redirect("/x", &PathMatcher::Prefix("/".to_owned())), None);
    }
}

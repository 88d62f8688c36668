//! Ingresses as ingress-nginx understands them: its annotations, its ConfigMap, and what Ingresses of one host do to each other.
//!
//! A host has an order of its own. Normally exact paths come first, and then prefixes, the longest first. If one path of a host is a regular
//! expression, or is rewritten, all of them are regular expressions, whoever wrote them. What annotations say of routes and clusters is a
//! TrafficPolicy ([`Plan`](crate::ingress_nginx::Plan)) and is applied as one.

mod asked;
mod block;
mod client_certificate;
mod clients;
mod errors;
mod host;
mod lines;
mod outside;
mod passthrough;
mod plans;
pub(super) mod ports;
mod snippets;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use model::{
    ClientCertRule, ClusterId, HeaderChanges, HostMatcher, Page, PageBody, PathRewrite, Redirect, Route, RouteAction,
    RoutePolicy,
};

use super::bind::{Ask, Rank};
use super::clients::ClientPolicy;
use super::ingress::{One, Places, Serving, TlsHosts, has_certificate, host as matcher, is_ours, tell_addresses};
use super::parameters::Class;
use super::reference::Why;
use super::regexes::Regexes;
use super::traffic::Policies;
use super::{Circumstances, Notice};
use crate::index::{Index, IngressEntry, IngressTarget, Kind, Name};
use crate::ingress_nginx::{ClientTls, Globals, Server, Verdict};
use crate::settings::Settings;
use plans::Planned;
pub(super) use plans::Plans;
use snippets::When;

/// What this needs besides the objects.
pub(super) struct With<'t, 'p> {
    pub(super) plans: &'t Plans,
    pub(super) policies: &'t Policies<'p>,
    pub(super) regexes: &'t mut Regexes,
    /// The cluster without endpoints.
    pub(super) nowhere: ClusterId,
}

/// An Ingress with its plan.
#[derive(Clone, Copy)]
struct Ingress<'t> {
    name: &'t Name,
    entry: &'t IngressEntry,
    planned: &'t Planned,
}

/// A path of a host.
#[derive(Clone)]
struct Place<'t> {
    label: String,
    ingress: Ingress<'t>,
    path: &'t str,
    exact: bool,
    target: &'t IngressTarget,
    /// The canary of it, and its backend.
    canary: Option<(Ingress<'t>, &'t IngressTarget)>,
}

/// What the Ingresses of one host ask for together.
#[derive(Default)]
struct Host<'t> {
    places: Vec<Place<'t>>,
    /// The place of each path, and whether it is an exact one, in `places`.
    known: HashMap<(&'t str, bool), usize>,
    /// An Ingress of the host has `tls`, so those that ask for it redirect to HTTPS.
    has_tls: bool,
    /// The host is served over HTTPS.
    has_certificate: bool,
    /// The Ingress that closes the host as a whole, and why.
    closed: Option<(Ingress<'t>, &'t str)>,
    /// The first Ingress that says that clients of the host show a certificate.
    client_tls: Option<(Ingress<'t>, &'t ClientTls)>,
    /// What the first `server-snippet` of the host says, and the Ingress that has it.
    server: Option<(Ingress<'t>, &'t Server)>,
    /// The Ingresses that demand more of clients than that.
    contradicting: BTreeSet<&'t Name>,
    /// The first Ingress that says that TLS of the host ends at its endpoints.
    passes_tls: Option<Ingress<'t>>,
    /// More names.
    aliases: Vec<&'t str>,
    /// The path that `/` leads to, and who says so.
    app_root: Option<(Ingress<'t>, &'t str)>,
    /// The other one of `example.com` and `www.example.com` leads here.
    www: bool,
    /// The first Ingress, whose default backend takes what no path does.
    first: Option<Ingress<'t>>,
}

/// Serves every Ingress that we manage, the oldest first.
pub(super) fn translate(
    index: &Index,
    class: &Class,
    circumstances: &Circumstances,
    with: With<'_, '_>,
    out: &mut Serving<'_>,
) {
    let settings = &class.settings;
    let planned = |(name, entry)| Some(Ingress { name, entry, planned: with.plans.of(name)? });
    let ours = index.ingresses.iter().filter(|(_, entry)| is_ours(index, settings, entry));
    let mut ours: Vec<Ingress<'_>> = ours.filter_map(planned).collect();
    // Of two that are equally old, ingress-nginx takes the one whose name comes last.
    ours.sort_by(|a, b| (a.entry.meta.created, b.name).cmp(&(b.entry.meta.created, a.name)));
    if ours.is_empty() {
        return;
    }
    let compat = settings.ingress_nginx.as_ref().map(|nginx| nginx.compat).unwrap_or_default();
    let globals = &with.plans.globals;
    let change = |policy: &mut ClientPolicy| clients::change(globals, compat, policy);
    let defaults = |policy: &mut ClientPolicy| clients::defaults(globals, policy);
    let places = Places::of(index, class, circumstances, (&defaults, &change), out.binds);
    for ingress in &ours {
        let mut one = One::of(index, (ingress.name, ingress.entry), places.default.as_ref(), out);
        tell(*ingress, &mut one);
        if ingress.planned.plan.dropped.is_none() {
            let tls = places.tls.clone().ok().filter(|_| !ingress.entry.tls.is_empty());
            one.certificates(tls);
            tell_addresses(index, class, (ingress.name, ingress.entry), out);
        }
    }
    let served: Vec<Ingress<'_>> = ours.into_iter().filter(|ingress| ingress.planned.plan.dropped.is_none()).collect();
    let hosts = hosts(&served, matches!(places.default, Some(Ok(_))), out);
    let names: Vec<String> = hosts.keys().map(|name| (*name).to_owned()).collect();
    let mut making = Making {
        index,
        places: &places,
        with,
        out,
        order: 0,
        at: At::default(),
        unserved: None,
        has_tls: false,
        client_tls: None,
        contradicting: BTreeSet::new(),
        server: None,
        when: When::default(),
        client_cert: None,
        hsts: hsts(globals),
        default_backend: None,
        names_left: NAMES_MAX,
        asked: BTreeMap::new(),
        outside: outside::OutsideHosts::of(&served, index, settings),
    };
    making.default_backend = making.default_backend(settings);
    for (name, host) in &hosts {
        making.host(name, host, &names);
    }
    if !hosts.contains_key("") {
        making.rest();
    }
}

fn hsts(globals: &Globals) -> HeaderChanges {
    let field = globals.hsts().map(|hsts| ("strict-transport-security".to_owned(), hsts.into()));
    HeaderChanges { set: field.into_iter().collect(), ..HeaderChanges::default() }
}

/// Annotations that one message names.
const TOLD_MAX: usize = 16;

/// Tells the owner of an Ingress what is not served.
fn tell(ingress: Ingress<'_>, one: &mut One<'_, '_>) {
    let plan = &ingress.planned.plan;
    if let Some(why) = &plan.dropped {
        one.tell(Why::new(
            "NotServed",
            format!("ingress-nginx would not serve this Ingress, and it is not served here: {why}"),
        ));
    } else if let Some(why) = &plan.closed {
        one.tell(Why::new("Closed", format!("its requests get 403: {why}")));
    } else if let Some(why) = &plan.unavailable {
        one.tell(Why::new("NotServed", format!("its requests get 503, as with ingress-nginx: {why}")));
    }
    // One reason is enough.
    let reasons = [&plan.dropped, &plan.closed, &plan.unavailable];
    let reason = reasons.into_iter().find_map(Option::as_deref).unwrap_or_default();
    let is_told = |key: &str| reason.split([' ', ':']).next() == Some(key);
    let refused = plan.findings.iter().filter(|finding| finding.verdict == Verdict::Refused && !is_told(&finding.key));
    let mut refused: Vec<String> = refused.map(|finding| format!("{}: {}", finding.key, finding.says)).collect();
    let more = refused.len().saturating_sub(TOLD_MAX);
    refused.truncate(TOLD_MAX);
    if more > 0 {
        refused.push(format!("and {more} more"));
    }
    if !refused.is_empty() {
        one.tell(Why::new(
            "UnsupportedAnnotation",
            format!("these annotations are not served: {}", refused.join("; ")),
        ));
    }
    one.annotations();
}

/// Sorts the paths of all Ingresses by their hosts; `""` stands for every host. The oldest Ingress has a path, and others are told. With
/// `has_default`, there is a certificate for every host.
fn hosts<'t>(served: &[Ingress<'t>], has_default: bool, out: &mut Serving<'_>) -> BTreeMap<&'t str, Host<'t>> {
    let mut hosts: BTreeMap<&'t str, Host<'t>> = BTreeMap::new();
    let (canaries, mains): (Vec<Ingress<'t>>, Vec<Ingress<'t>>) =
        served.iter().partition(|ingress| ingress.planned.plan.canary.is_some());
    for ingress in mains {
        let location = &ingress.planned.plan.location;
        let tls_hosts: Vec<TlsHosts> = ingress.entry.tls.iter().map(|tls| TlsHosts::of(&tls.hosts)).collect();
        let mut number = 0;
        for rule in &ingress.entry.rules {
            let host = hosts.entry(rule.host.as_deref().unwrap_or_default()).or_default();
            host.first.get_or_insert(ingress);
            host.has_tls |= !tls_hosts.is_empty();
            host.has_certificate |=
                has_default || has_certificate(ingress.entry, &tls_hosts, has_default, rule.host.as_deref());
            host.www |= location.www;
            if location.passes_tls {
                host.passes_tls.get_or_insert(ingress);
            }
            host.aliases.extend(location.aliases.iter().map(String::as_str));
            if let Some(root) = location.app_root.as_deref().filter(|_| host.app_root.is_none()) {
                host.app_root = Some((ingress, root));
            }
            for path in &rule.paths {
                let exact = &*path.kind == "Exact";
                let older = host.known.get(&(&*path.path, exact)).and_then(|known| host.places.get(*known));
                match older.map(|older| older.ingress.name).filter(|older| **older != *ingress.name) {
                    Some(older) => {
                        let host = rule.host.as_deref().unwrap_or("*");
                        conflicts(ingress, format!("{host}{} belongs to the older Ingress {older}", path.path), out);
                    }
                    None if older.is_some() => {}
                    None => {
                        host.known.insert((&path.path, exact), host.places.len());
                        host.places.push(Place {
                            label: format!("ingress/{}#{number}", ingress.name),
                            ingress,
                            path: &path.path,
                            exact,
                            target: &path.target,
                            canary: None,
                        });
                    }
                }
                number += 1;
            }
        }
        if ingress.entry.rules.is_empty() {
            let host = hosts.entry("").or_default();
            host.first.get_or_insert(ingress);
            host.has_certificate |= has_default || has_certificate(ingress.entry, &tls_hosts, has_default, None);
        }
    }
    put_canaries(&canaries, &mut hosts, out);
    default_backends(&mut hosts);
    hold(served, &mut hosts, out);
    put_servers(served, &mut hosts, out);
    hosts
}

fn conflicts(ingress: Ingress<'_>, why: String, out: &mut Serving<'_>) {
    let (about, why) = ((Kind::Ingress, ingress.name.clone()), Why::new("Conflicted", why));
    out.notices.push(Notice::warning(about, &ingress.entry.meta, why));
}

/// Puts canaries beside the paths that they belong to.
fn put_canaries<'t>(canaries: &[Ingress<'t>], hosts: &mut BTreeMap<&'t str, Host<'t>>, out: &mut Serving<'_>) {
    for canary in canaries {
        for rule in &canary.entry.rules {
            let host = rule.host.as_deref().unwrap_or_default();
            for path in &rule.paths {
                let exact = &*path.kind == "Exact";
                let of_host = hosts.get_mut(host);
                let place = of_host.and_then(|host| host.places.get_mut(*host.known.get(&(&*path.path, exact))?));
                match place {
                    Some(place) if place.canary.is_none() => place.canary = Some((*canary, &path.target)),
                    Some(_) => conflicts(*canary, format!("{host}{} has an older canary", path.path), out),
                    None => {
                        conflicts(*canary, format!("{host}{} belongs to no Ingress that is no canary", path.path), out);
                    }
                }
            }
        }
    }
}

/// Notes what an Ingress asks for and holds for all of its hosts, a canary as well. As there, the oldest Ingress says which certificates of clients
/// a host demands. Another one that demands more than that is closed.
fn hold<'t>(served: &[Ingress<'t>], hosts: &mut BTreeMap<&'t str, Host<'t>>, out: &mut Serving<'_>) {
    for ingress in served {
        let plan = &ingress.planned.plan;
        if plan.host_closed.is_none() && plan.location.client_tls.is_none() {
            continue;
        }
        let rules = ingress.entry.rules.iter().map(|rule| rule.host.as_deref().unwrap_or_default());
        for name in rules.chain(ingress.entry.rules.is_empty().then_some("")) {
            let Some(host) = hosts.get_mut(name) else { continue };
            if let Some(why) = &plan.host_closed {
                host.closed.get_or_insert((*ingress, why.as_str()));
            }
            if let Some(client_tls) = &plan.location.client_tls {
                let (by, first) = *host.client_tls.get_or_insert((*ingress, client_tls));
                if by.name.namespace == ingress.name.namespace && first.demands_as_much_as(client_tls) {
                    continue;
                }
                if by.name != ingress.name {
                    let shown = if name.is_empty() { "*" } else { name };
                    let why = format!(
                        "its requests for {shown} get 403: the older Ingress {} says which certificates clients of the host show, and demands less: \
                         write the same annotations for both",
                        by.name
                    );
                    let about = (Kind::Ingress, ingress.name.clone());
                    out.notices.push(Notice::warning(about, &ingress.entry.meta, Why::new("Closed", why)));
                    host.contradicting.insert(ingress.name);
                }
            }
        }
    }
}

/// The oldest Ingress of a host with a `server-snippet` says it for all of the host.
fn put_servers<'t>(served: &[Ingress<'t>], hosts: &mut BTreeMap<&'t str, Host<'t>>, out: &mut Serving<'_>) {
    let mut first: BTreeMap<&str, Ingress<'t>> = BTreeMap::new();
    // ingress-nginx does not look at those of canaries.
    for ingress in served.iter().filter(|ingress| ingress.planned.plan.canary.is_none()) {
        let location = &ingress.planned.plan.location;
        if location.server.is_none() && location.server_refused.is_none() {
            continue;
        }
        let rules = ingress.entry.rules.iter().map(|rule| rule.host.as_deref().unwrap_or_default());
        for name in rules.chain(ingress.entry.rules.is_empty().then_some("")) {
            let Some(host) = hosts.get_mut(name) else { continue };
            let by = *first.entry(name).or_insert(*ingress);
            if by.name != ingress.name {
                let shown = if name.is_empty() { "*" } else { name };
                let why = format!("{shown} has the server-snippet of the older Ingress {}, and not this one", by.name);
                conflicts(*ingress, why, out);
                continue;
            }
            host.server = location.server.as_ref().map(|server| (*ingress, server));
            if let Some(why) = &location.server_refused {
                host.closed.get_or_insert((*ingress, why));
            }
        }
    }
}

/// The default backend of the first Ingress of a host takes what no path of the host does.
fn default_backends<'t>(hosts: &mut BTreeMap<&'t str, Host<'t>>) {
    for (name, host) in hosts {
        let has_root = host.places.iter().any(|place| place.path == "/" && !place.exact);
        let Some(ingress) = host.first.filter(|_| !has_root) else { continue };
        if let Some(target) = &ingress.entry.default_backend {
            let label = format!("ingress/{}#default@{name}", ingress.name);
            host.places.push(Place { label, ingress, path: "/", exact: false, target, canary: None });
        }
    }
}

/// The routes in the making.
struct Making<'t, 'p, 'o> {
    index: &'t Index,
    places: &'t Places,
    with: With<'t, 'p>,
    out: &'t mut Serving<'o>,
    /// The place of the next route.
    order: usize,
    /// Where the host that is made is served.
    at: At,
    /// The listener where it should be served and is not, because clients of others there show other certificates.
    unserved: Option<SocketAddr>,
    /// An Ingress of it has `tls`.
    has_tls: bool,
    /// Its clients show a certificate.
    client_tls: Option<&'t ClientTls>,
    /// What its snippet says.
    server: Option<&'t Server>,
    /// The requests that a snippet leaves to the routes that come next.
    when: When,
    /// Its Ingresses whose paths are closed, because they demand more of clients than the host does.
    contradicting: BTreeSet<&'t Name>,
    /// What all of its routes demand of them.
    client_cert: Option<Arc<ClientCertRule>>,
    /// What all responses over HTTPS get.
    hsts: HeaderChanges,
    /// The cluster of what no path takes.
    default_backend: Option<ClusterId>,
    /// Names that routes may still have besides the hosts of their rules.
    names_left: usize,
    /// The backends behind the paths of it that are asked whether requests may pass, each with its Ingress, or why there is none.
    asked: BTreeMap<String, Result<(Ingress<'t>, &'t IngressTarget), String>>,
    /// Hosts outside of the cluster.
    outside: outside::OutsideHosts<'t>,
}

/// Names that all routes have by `server-alias`. Each route of a host has all names of the host.
const NAMES_MAX: usize = 262_144;

/// The two listeners of a host, as far as it is served there.
#[derive(Clone, Copy, Default)]
struct At {
    plain: Option<SocketAddr>,
    tls: Option<SocketAddr>,
}

impl Making<'_, '_, '_> {
    /// The cluster of the Service that gets what no Ingress takes.
    fn default_backend(&mut self, settings: &Settings) -> Option<ClusterId> {
        let service = settings.ingress_nginx.as_ref()?.default_backend.as_ref()?;
        let service = Name::new(&service.namespace, &service.name);
        let entry = self.index.services.get(&service)?;
        match self.first_port(&service).and_then(|share| self.out.clusters.of(self.index, vec![share])) {
            Ok(cluster) => Some(cluster),
            Err(why) => {
                let why = Why::new("NotServed", format!("it is no default backend: {why}"));
                self.out.notices.push(Notice::warning((Kind::Service, service), &entry.meta, why));
                None
            }
        }
    }

    /// Answers what no path of a host takes.
    fn not_found(&mut self, name: &str, first: Ingress<'_>, hosts: &[HostMatcher]) {
        let label = format!("ingress/{}#404@{name}", first.name);
        let route = match self.default_backend {
            Some(cluster) => Route::to_all(label, cluster.into()),
            None => respond(label, 404, None),
        };
        self.own(first, "/", Route { hosts: hosts.to_vec(), ..route });
    }

    /// Sends requests for hosts that no Ingress has to the default backend. Without one they get 404; a route says so over TLS, where responses
    /// have a header of their own.
    fn rest(&mut self) {
        let label = "ingress/default-backend".to_owned();
        let has_plain = self.default_backend.is_some() || !self.with.plans.globals.blocks.is_empty();
        let plain = self.places.plain.as_ref().ok().copied().filter(|_| has_plain);
        let route = match self.default_backend {
            Some(cluster) => Route::to_all(label, cluster.into()),
            None => respond(label, 404, None),
        };
        let mut routes = match self.blocked_rest(route) {
            Ok(routes) => routes,
            // The owners of all Ingresses are told.
            Err(_) => vec![respond("ingress/closed".to_owned(), 403, None)],
        };
        routes.iter_mut().for_each(|route| route.change_all_responses(&self.with.plans.headers));
        let name = Name::new("", "default-backend");
        let tls = self.places.tls.as_ref().ok().copied();
        let tls = tls.filter(|_| matches!(self.places.default, Some(Ok(_))));
        let all = plain.into_iter().chain(tls).flat_map(|at| routes.iter().map(move |route| (at, route.clone())));
        for (at, mut route) in all {
            let rank = Rank::ordered(self.order, i64::MAX, &name);
            self.order += 1;
            if tls == Some(at) {
                route.change_all_responses(&self.hsts);
            }
            // If there are too many routes, Ingresses of the cluster are told.
            _ = self.out.binds.route(at, rank, route);
        }
    }

    /// Adds a route at an address. Its responses have the headers that the Ingress says.
    fn add(&mut self, at: Option<SocketAddr>, ingress: Ingress<'_>, mut route: Route) {
        if let Some(policy) = &ingress.planned.plan.policy {
            // A route with a policy of its own has them already.
            if route.policy.own_headers.is_empty() {
                route.change_all_responses(policy.all_response_headers());
            }
            if policy.is_unlogged() {
                route.policy.is_unlogged = true;
            }
        }
        let location = &ingress.planned.plan.location;
        if let Some(server) = self.server {
            // A location with headers of its own does not inherit those of its host.
            if !location.has_add_header {
                route.change_all_responses(&server.add_header);
            }
            if !location.has_more_headers {
                route.change_all_responses(&server.more_headers);
            }
        }
        self.add_bare(at, ingress, route);
    }

    /// Adds a route that the snippet of a host stands for.
    fn add_of_host(&mut self, at: Option<SocketAddr>, ingress: Ingress<'_>, mut route: Route) {
        if let Some(server) = self.server {
            route.change_all_responses(&server.add_header);
            route.change_all_responses(&server.more_headers);
        }
        self.add_bare(at, ingress, route);
    }

    /// Adds a route that stands for a host and not for what the Ingress says.
    fn add_bare(&mut self, at: Option<SocketAddr>, ingress: Ingress<'_>, mut route: Route) {
        let Some(at) = at else { return };
        if !self.when.restrict(&mut route, self.at.tls != Some(at)) {
            return;
        }
        if self.at.tls == Some(at) && self.client_cert.is_some() {
            // Every route of the host, whatever it answers: the handshake lets everybody in.
            route.policy.client_cert.clone_from(&self.client_cert);
        }
        let all = &self.with.plans.headers;
        if route.policy.own_headers.is_empty() {
            route.change_all_responses(all);
        }
        if self.at.tls == Some(at) {
            route.change_all_responses(&self.hsts);
        }
        if let Some(text) = lines::broken(&route) {
            let why = format!("its requests get 403: a value has a line break or another control character: {text:?}");
            route.to = respond(String::new(), 403, None).to;
            let client_cert = route.policy.client_cert.clone();
            route.policy = RoutePolicy { client_cert, ..RoutePolicy::default() }.into();
            self.tell(ingress, Why::new("Closed", why));
        }
        let rank = Rank::ordered(self.order, ingress.entry.meta.created, ingress.name);
        self.order += 1;
        if let Err(why) = self.out.binds.route(at, rank, route) {
            self.tell(ingress, Why::new("TooManyRoutes", why));
        }
    }

    fn tell(&mut self, ingress: Ingress<'_>, why: Why) {
        self.out.notices.push(Notice::warning((Kind::Ingress, ingress.name.clone()), &ingress.entry.meta, why));
    }

    /// Closes a host where it is not served, or a less specific host would get its requests.
    fn shut(&mut self, name: &str, first: Ingress<'_>, hosts: &[HostMatcher]) {
        let Some(at) = self.unserved.take() else { return };
        let mut route = respond(format!("ingress/{}#unserved@{name}", first.name), 403, None);
        route.change_all_responses(&self.hsts);
        self.add_bare(Some(at), first, Route { hosts: hosts.to_vec(), ..route });
    }

    /// The listeners of a host. All of its Ingresses are served at both, whichever has the certificate. `others` are the names of all hosts, and
    /// `ask` is what clients are asked for.
    fn at(&mut self, name: &str, host: &Host<'_>, others: &[String], ask: Option<&Ask>) -> At {
        let aliases = host.aliases.iter().copied().filter(|alias| is_free(alias, others));
        let named: Vec<Option<&str>> =
            std::iter::once(Some(name).filter(|name| !name.is_empty())).chain(aliases.map(Some)).collect();
        let plain = self.places.plain.as_ref().ok().copied();
        let mut tls = self.places.tls.as_ref().ok().copied().filter(|_| host.has_certificate);
        let mut wrong: Vec<Why> =
            [&self.places.plain, &self.places.tls].into_iter().filter_map(|place| place.clone().err()).collect();
        if let Some(place) = tls {
            let may = named.iter().try_for_each(|named| self.out.binds.may_ask_clients(place, *named, ask));
            match may {
                Ok(()) => named.iter().for_each(|named| self.out.binds.note_clients(place, *named, ask)),
                Err(why) => {
                    wrong.push(Why::new("Conflicted", why));
                    self.unserved = tls.take();
                }
            }
        }
        if !wrong.is_empty() {
            let all = host.first.into_iter().chain(host.places.iter().map(|place| place.ingress));
            let all: BTreeMap<&Name, Ingress<'_>> = all.map(|ingress| (ingress.name, ingress)).collect();
            for ingress in all.into_values() {
                wrong.iter().for_each(|why| self.tell(ingress, why.clone()));
            }
        }
        At { plain, tls }
    }
}

/// The matchers of a host and its other names; none for every host.
fn names(host: &str, aliases: &[&str], others: &[String]) -> Vec<HostMatcher> {
    if host.is_empty() {
        return Vec::new();
    }
    let aliases = aliases.iter().copied().filter(|alias| is_free(alias, others));
    std::iter::once(matcher(host)).chain(aliases.map(alias_matcher)).collect()
}

/// Another name of a host. In a list of names of nginx, `*.` stands for one or more labels; in a host of a rule, ingress-nginx makes it an expression
/// for one.
fn alias_matcher(text: &str) -> HostMatcher {
    text.strip_prefix("*.")
        .map_or_else(|| HostMatcher::Exact(text.to_owned()), |domain| HostMatcher::Suffix(domain.to_owned()))
}

/// A host that exists comes before another name for one.
fn is_free(alias: &str, others: &[String]) -> bool {
    others.binary_search_by(|other| other.as_str().cmp(alias)).is_err()
}

/// A route whose requests get this status, and perhaps a place to go to.
fn respond(name: String, status: u16, location: Option<&str>) -> Route {
    let headers = location.map(|location| ("location".to_owned(), location.to_owned())).into_iter().collect();
    Route::to_all(name, RouteAction::Respond(model::FixedResponse { status, headers, page: None }))
}

/// The route of permanent-redirect and temporal-redirect. nginx writes the scheme and the host in front of a path, and never the query of the
/// request behind it.
fn moved(place: &Place<'_>, status: u16, url: &str, at: Option<SocketAddr>) -> Route {
    let location = &place.ingress.planned.plan.location;
    // With another status, nginx sends the URL as text and no `Location` (ngx_http_send_response); nothing of a 304 but its head.
    if ![301, 302, 303, 307, 308].contains(&status) {
        let mut route = respond(place.label.clone(), status, None);
        if let (RouteAction::Respond(response), false) = (&mut route.to, status == 304) {
            let body = PageBody::Text(url.to_owned());
            response.page = Some(Page { content_type: "text/html".to_owned(), body });
        }
        return route;
    }
    if !url.starts_with('/') {
        return respond(place.label.clone(), status, Some(url));
    }
    let is_relative = location.relative_redirects;
    let query = if url.contains('?') { "" } else { "?" };
    let to = Redirect {
        scheme: None,
        host: None,
        port: at.map(|at| at.port()).filter(|_| location.port_in_redirects && !is_relative),
        path: Some(PathRewrite::Full(format!("{url}{query}"))),
        status,
        is_relative,
    };
    Route::to_all(place.label.clone(), RouteAction::Redirect(to))
}

//! Ingresses as ingress-nginx understands them: its annotations, its ConfigMap, and what Ingresses of one host do to each other.
//!
//! A host has an order of its own. Normally exact paths come first, and then prefixes, the longest first. If one path of a host is a regular
//! expression, or is rewritten, all of them are regular expressions, whoever wrote them. What annotations say of routes and clusters is a
//! TrafficPolicy ([`Plan`](crate::ingress_nginx::Plan)) and is applied as one.

mod host;
mod plans;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use model::{ClusterId, ForwardPath, HostMatcher, KeepRequestId, RequestId, Route, RouteAction};

use super::bind::Rank;
use super::clients::ClientPolicy;
use super::ingress::{One, Places, Serving, host as matcher, is_ours, tell_addresses};
use super::parameters::Class;
use super::reference::Why;
use super::regexes::Regexes;
use super::traffic::Policies;
use super::{Circumstances, Notice};
use crate::index::{Index, IngressEntry, IngressTarget, Kind, Name};
use crate::ingress_nginx::{Compat, Globals, Verdict};
use plans::Planned;
pub(super) use plans::Plans;

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
    let change = |policy: &mut ClientPolicy| clients(&with.plans.globals, compat, policy);
    let places = Places::of(index, class, circumstances, &change, out.binds);
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
    let hosts = hosts(&served, out);
    let names: Vec<String> = hosts.keys().map(|name| (*name).to_owned()).collect();
    let mut making = Making { index, places: &places, with, out, order: 0 };
    for (name, host) in &hosts {
        making.host(name, host, &names);
    }
}

/// How clients of both ports are treated.
fn clients(globals: &Globals, compat: Compat, policy: &mut ClientPolicy) {
    policy.x_real_ip = true;
    policy.request_id.get_or_insert(RequestId { keep: KeepRequestId::Always, in_response: false });
    policy.accept_proxy_protocol |= globals.bool("use-proxy-protocol", false);
    policy.paths.forward = ForwardPath::Received;
    if globals.bool("use-forwarded-headers", false) || globals.bool("enable-real-ip", false) {
        let mut trusted = globals.networks("proxy-real-ip-cidr");
        match compat {
            Compat::Exact if trusted.is_empty() => trusted.extend("0.0.0.0/0".parse::<ipnet::IpNet>()),
            Compat::Exact => {}
            // Everybody could name any address, and pass an allowlist.
            Compat::Safe => trusted.retain(|network| network.prefix_len() > 0),
        }
        policy.trusted_proxies.extend(trusted);
    }
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
    }
    // One reason is enough.
    let reason = plan.dropped.as_deref().or(plan.closed.as_deref()).unwrap_or_default();
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

/// Sorts the paths of all Ingresses by their hosts; `""` stands for every host. The oldest Ingress has a path, and others are told.
fn hosts<'t>(served: &[Ingress<'t>], out: &mut Serving<'_>) -> BTreeMap<&'t str, Host<'t>> {
    let mut hosts: BTreeMap<&'t str, Host<'t>> = BTreeMap::new();
    let (canaries, mains): (Vec<Ingress<'t>>, Vec<Ingress<'t>>) =
        served.iter().partition(|ingress| ingress.planned.plan.canary.is_some());
    let mut tell = |ingress: Ingress<'_>, why: String| {
        out.notices.push(Notice::warning(
            (Kind::Ingress, ingress.name.clone()),
            &ingress.entry.meta,
            Why::new("Conflicted", why),
        ));
    };
    for ingress in mains {
        let location = &ingress.planned.plan.location;
        let mut number = 0;
        for rule in &ingress.entry.rules {
            let host = hosts.entry(rule.host.as_deref().unwrap_or_default()).or_default();
            host.first.get_or_insert(ingress);
            host.www |= location.www;
            host.aliases.extend(location.aliases.iter().map(String::as_str));
            if let Some(root) = location.app_root.as_deref().filter(|_| host.app_root.is_none()) {
                host.app_root = Some((ingress, root));
            }
            for path in &rule.paths {
                let exact = &*path.kind == "Exact";
                let older = host.places.iter().find(|place| *place.path == *path.path && place.exact == exact);
                match older.map(|older| older.ingress.name).filter(|older| **older != *ingress.name) {
                    Some(older) => {
                        let host = rule.host.as_deref().unwrap_or("*");
                        tell(ingress, format!("{host}{} belongs to the older Ingress {older}", path.path));
                    }
                    None if older.is_some() => {}
                    None => host.places.push(Place {
                        label: format!("ingress/{}#{number}", ingress.name),
                        ingress,
                        path: &path.path,
                        exact,
                        target: &path.target,
                        canary: None,
                    }),
                }
                number += 1;
            }
        }
        if ingress.entry.rules.is_empty() {
            hosts.entry("").or_default().first.get_or_insert(ingress);
        }
    }
    for canary in canaries {
        for rule in &canary.entry.rules {
            let host = rule.host.as_deref().unwrap_or_default();
            for path in &rule.paths {
                let exact = &*path.kind == "Exact";
                let places = hosts.get_mut(host).into_iter().flat_map(|host| &mut host.places);
                let place = places.into_iter().find(|place| *place.path == *path.path && place.exact == exact);
                match place {
                    Some(place) if place.canary.is_none() => place.canary = Some((canary, &path.target)),
                    Some(_) => tell(canary, format!("{host}{} has an older canary", path.path)),
                    None => tell(canary, format!("{host}{} belongs to no Ingress that is no canary", path.path)),
                }
            }
        }
    }
    default_backends(&mut hosts);
    hosts
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
}

/// The two listeners of a host, as far as it is served there.
#[derive(Clone, Copy)]
struct At {
    plain: Option<SocketAddr>,
    tls: Option<SocketAddr>,
}

impl Making<'_, '_, '_> {
    /// Adds a route at an address.
    fn add(&mut self, at: Option<SocketAddr>, ingress: Ingress<'_>, route: Route) {
        let Some(at) = at else { return };
        let rank = Rank::ordered(self.order, ingress.entry.meta.created, ingress.name);
        self.order += 1;
        if let Err(why) = self.out.binds.route(at, rank, route) {
            self.tell(ingress, Why::new("TooManyRoutes", why));
        }
    }

    fn tell(&mut self, ingress: Ingress<'_>, why: Why) {
        self.out.notices.push(Notice::warning((Kind::Ingress, ingress.name.clone()), &ingress.entry.meta, why));
    }

    /// The listeners of a host of this Ingress.
    fn at(&mut self, host: &str, ingress: Ingress<'_>) -> At {
        let named = Some(host).filter(|host| !host.is_empty());
        let has_default = matches!(self.places.default, Some(Ok(_)));
        let one = One::of(self.index, (ingress.name, ingress.entry), self.places.default.as_ref(), self.out);
        let has_tls = has_default || one.has_certificate(named);
        let plain = self.places.plain.as_ref().ok().copied();
        let mut tls = self.places.tls.as_ref().ok().copied().filter(|_| has_tls);
        if let Some(place) = tls
            && let Err(why) = self.out.binds.let_in_clients(place, named)
        {
            self.tell(ingress, Why::new("Conflicted", why));
            tls = None;
        }
        for outcome in [&self.places.plain, &self.places.tls] {
            if let Err(why) = outcome {
                self.tell(ingress, why.clone());
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
    // A host that exists comes before another name for one.
    let aliases = aliases.iter().filter(|alias| others.binary_search_by(|other| other.as_str().cmp(alias)).is_err());
    std::iter::once(host).chain(aliases.copied()).map(matcher).collect()
}

/// A route whose requests get this status, and perhaps a place to go to.
fn respond(name: String, status: u16, location: Option<&str>) -> Route {
    let headers = location.map(|location| ("location".to_owned(), location.to_owned())).into_iter().collect();
    Route::to_all(name, RouteAction::Respond(model::FixedResponse { status, headers, page: None }))
}

//! Routes: where each may be attached, the result of its rules, and its status.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;

use model::{ClusterId, HostMatcher, Route, TlsMode};

use super::bind::{Binds, Rank, intersection};
use super::cluster::{Clusters, Identity, Share};
use super::gateway::{GatewayListener, Gateways};
use super::hosts::Hosts;
use super::notice::{BACKENDS_AVAILABLE, OVERLAPPED};
use super::reference::{Why, is_allowed};
use super::regexes::Regexes;
use super::status::{self, condition};
use super::traffic::{Policies, Scope};
use super::{Desired, Statuses, lower, stream};
use crate::index::{Index, Kind, Name, RouteEntry, RouteKind, Rules};
use crate::objects::{Condition, GROUP, GrpcRule, HttpRule, ParentRef, ParentStatus, Text};
use crate::settings::Settings;

/// The result of translating routes.
pub(crate) struct Attaching<'t, 'p> {
    pub(crate) binds: &'t mut Binds,
    pub(crate) clusters: &'t mut Clusters,
    pub(crate) vips: &'t mut stream::Vips,
    pub(crate) statuses: &'t mut Statuses,
    /// The addresses of UDP listeners that already have a route, and that route.
    pub(crate) udp: BTreeMap<SocketAddr, Name>,
    /// The interfaces on which packets of vips arrive.
    pub(crate) interfaces: &'t [String],
    /// There are both HTTPRoutes and GRPCRoutes.
    pub(crate) has_both: bool,
    /// Services that have had no endpoints for a while.
    pub(crate) empty: &'t BTreeSet<Name>,
    pub(crate) regexes: &'t mut Regexes,
    /// The Gateways that use each Service.
    pub(crate) users: &'t mut BTreeMap<Name, BTreeSet<Name>>,
    pub(crate) policies: &'t mut Policies<'p>,
    /// The cluster without endpoints.
    pub(crate) nowhere: ClusterId,
}

/// Whether there are routes of both HTTP kinds. If not, there is no need to check which hosts either has.
pub(crate) fn has_both(index: &Index) -> bool {
    let first = |kind| index.routes.range((kind, Name::new("", ""))..).next();
    let has = |kind| first(kind).is_some_and(|((of, _), _)| *of == kind);
    has(RouteKind::Http) && has(RouteKind::Grpc)
}

/// Attaches every route, the oldest first.
pub(crate) fn attach(index: &Index, settings: &Settings, gateways: &mut Gateways<'_>, out: &mut Attaching<'_, '_>) {
    let mut routes: Vec<_> = index.routes.iter().collect();
    routes.sort_by_key(|((kind, name), entry)| (entry.meta.created, name, *kind));
    for ((kind, name), entry) in routes {
        attach_one(index, settings, gateways, (*kind, name, entry), out);
    }
}

type Found<'i> = (RouteKind, &'i Name, &'i RouteEntry);

/// The reason if an older route takes the requests of another.
pub(crate) const OLDER: &str = "OlderRoute";

/// What the rules of a route mean differs with these. Where TLS ends matters for TLSRoutes only.
type Variant = (Identity, TlsMode, Scope);

fn attach_one(
    index: &Index,
    settings: &Settings,
    gateways: &mut Gateways<'_>,
    route: Found<'_>,
    out: &mut Attaching<'_, '_>,
) {
    let (kind, name, entry) = route;
    let is_http = lower::HTTP_KINDS.contains(&kind);
    let mut parents = Vec::new();
    let mut places: BTreeMap<Variant, BTreeMap<SocketAddr, Hosts>> = BTreeMap::new();
    let mut of: BTreeSet<&Name> = BTreeSet::new();
    let mut taken = None;
    for parent in &entry.parents {
        let Some(listeners) = slots_of(gateways, name, parent) else { continue };
        let outcome = find(index, route, parent, listeners, &gateways.listeners).map(|found| {
            for (at, both) in found {
                let Some(listener) = gateways.listeners.get_mut(at) else { continue };
                listener.attached.insert((kind, name.clone()));
                if let Some(own) = listener.hosts_of(kind).filter(|_| out.has_both) {
                    own.add(&both);
                }
                of.insert(listener.gateway);
                let mode = if listener.terminates() { TlsMode::Terminate } else { TlsMode::Passthrough };
                let identity = gateways.identities.get(listener.gateway).cloned().unwrap_or_default();
                for place in listener.places.iter().filter(|_| listener.is_served()) {
                    let Some(own) = own_hosts(out.binds, *place, listener, &both, &mut taken) else { continue };
                    let identity = if kind == RouteKind::Udp { Default::default() } else { identity.clone() };
                    let scope = if is_http { out.policies.inherited(listener) } else { Scope::default() };
                    places.entry((identity, mode, scope)).or_default().entry(*place).or_default().add(&own);
                }
            }
        });
        parents.push((parent.clone(), outcome));
    }
    if parents.is_empty() {
        // The route is not attached to any Gateway of ours, so a status that we wrote is removed.
        if entry.present.iter().any(|parent| *parent.controller_name == *settings.controller_name) {
            out.statuses.insert((Kind::Route(kind), name.clone()), Desired::Route(Box::default()));
        }
        return;
    }
    let mut made = serve_variants(index, route, places, out);
    if let Some(why) = taken {
        made.overlapped.get_or_insert(why);
    }
    out.policies.attach(kind, name, &of);
    for service in &made.services {
        out.users.entry(service.clone()).or_default().extend(of.iter().map(|gateway| (*gateway).clone()));
    }
    let status = |(parent, outcome): (ParentRef, Result<(), Why>)| ParentStatus {
        parent_ref: parent,
        controller_name: settings.controller_name.as_str().into(),
        conditions: made.conditions(outcome, out.empty, entry.meta.generation),
    };
    let statuses = parents.into_iter().map(status).collect();
    out.statuses.insert((Kind::Route(kind), name.clone()), Desired::Route(statuses));
}

/// The hosts of a route at an address without those that belong to more specific listeners; `None` if none is left. A listener of another
/// Gateway that takes one is named in `taken`: that its own Gateway has one, the author of a route can see.
fn own_hosts(
    binds: &Binds,
    place: SocketAddr,
    listener: &GatewayListener<'_>,
    hosts: &[HostMatcher],
    taken: &mut Option<Why>,
) -> Option<Vec<HostMatcher>> {
    let mut is_own = |host: &HostMatcher| match binds.taken(place, listener.hostname(), host) {
        None => true,
        Some(gateway) => {
            if gateway != listener.gateway {
                taken.get_or_insert_with(|| {
                    let message =
                        format!("the Gateway {gateway} has a listener at {place} that takes the requests for {host}");
                    Why::new("OtherGateway", message)
                });
            }
            false
        }
    };
    if hosts.is_empty() {
        return is_own(&HostMatcher::Any).then(Vec::new);
    }
    let own: Vec<HostMatcher> = hosts.iter().filter(|host| is_own(host)).cloned().collect();
    (!own.is_empty()).then_some(own)
}

/// Serves each variant of a route at its addresses. The results only differ in what they say about older routes.
fn serve_variants(
    index: &Index,
    route: Found<'_>,
    mut places: BTreeMap<Variant, BTreeMap<SocketAddr, Hosts>>,
    out: &mut Attaching<'_, '_>,
) -> Made {
    if places.is_empty() {
        // There is no address, but what is wrong with the route is reported all the same.
        places.insert((Identity::default(), TlsMode::Passthrough, Scope::default()), BTreeMap::new());
    }
    let mut all: Option<Made> = None;
    for (number, ((identity, mode, scope), places)) in places.into_iter().enumerate() {
        out.clusters.present(&identity);
        let made = serve(index, route, (number, mode, &scope), &places, out);
        match &mut all {
            None => all = Some(made),
            Some(all) => all.join(made),
        }
    }
    out.clusters.present(&Identity::default());
    all.unwrap_or_default()
}

/// The listeners of the object that a parentRef names, if we manage it.
fn slots_of(gateways: &Gateways<'_>, route: &Name, parent: &ParentRef) -> Option<Range<usize>> {
    if parent.group.as_deref().is_some_and(|group| group != GROUP) {
        return None;
    }
    let name = Name::new(parent.namespace.as_deref().unwrap_or(&route.namespace), &parent.name);
    let kind = match parent.kind.as_deref().unwrap_or("Gateway") {
        "Gateway" => Kind::Gateway,
        "ListenerSet" => Kind::ListenerSet,
        _ => return None,
    };
    gateways.owners.get(&(kind, name)).cloned()
}

/// The listeners that accept the route, with the hosts that it has there.
///
/// # Errors
/// Returns why if none does.
fn find(
    index: &Index,
    (kind, name, entry): Found<'_>,
    parent: &ParentRef,
    range: Range<usize>,
    listeners: &[GatewayListener<'_>],
) -> Result<Vec<(usize, Vec<HostMatcher>)>, Why> {
    let is_meant = |listener: &GatewayListener<'_>| {
        parent.section_name.as_deref().is_none_or(|section| section == listener.spec.name)
            && parent.port.is_none_or(|port| port == listener.spec.port)
    };
    let meant: Vec<(usize, &GatewayListener<'_>)> =
        range.filter_map(|at| Some((at, listeners.get(at)?))).filter(|(_, listener)| is_meant(listener)).collect();
    if meant.is_empty() {
        let what = parent.section_name.as_deref().map_or_else(String::new, |section| format!(" named {section}"));
        let port = parent.port.map_or_else(String::new, |port| format!(" on port {port}"));
        return Err(Why::new("NoMatchingParent", format!("{} has no listener{what}{port}", parent.name)));
    }
    let is_let_in = |listener: &GatewayListener<'_>| {
        let namespaces = listener.spec.allowed_routes.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
        listener.kinds.contains(&kind)
            && is_allowed(index, namespaces, "Same", &listener.owner.1.namespace, &name.namespace)
    };
    let allowed: Vec<_> = meant.into_iter().filter(|(_, listener)| is_let_in(listener)).collect();
    if allowed.is_empty() {
        let message = format!("no listener of {} allows a {} from {}", parent.name, kind.name(), name.namespace);
        return Err(Why::new("NotAllowedByListeners", message));
    }
    let hosts = |listener: &GatewayListener<'_>| match kind {
        RouteKind::Tcp | RouteKind::Udp => Some(Vec::new()),
        _ => intersection(listener.hostname(), &entry.hostnames),
    };
    let found: Vec<_> = allowed.into_iter().filter_map(|(at, listener)| Some((at, hosts(listener)?))).collect();
    if found.is_empty() {
        let message = format!("no listener of {} serves {}", parent.name, entry.hostnames.join(", "));
        return Err(Why::new("NoMatchingListenerHostname", message));
    }
    let is_free = |(at, both): &(usize, Vec<HostMatcher>)| {
        listeners.get(*at).is_some_and(|listener| !listener.is_of_others(kind, both))
    };
    let found: Vec<_> = found.into_iter().filter(is_free).collect();
    if found.is_empty() {
        // The API allows a host only one kind of HTTP route, and prefers the older one.
        let other = if kind == RouteKind::Grpc { RouteKind::Http } else { RouteKind::Grpc };
        let message = format!("an older {} uses one of its hosts at {}", other.name(), parent.name);
        return Err(Why::new("HostnameConflict", message));
    }
    Ok(found)
}

/// The result of a route, at all of its parents.
#[derive(Default)]
pub(crate) struct Made {
    /// Why the whole route is refused.
    pub(crate) refused: Option<Why>,
    /// Rules that were dropped, and why.
    pub(crate) dropped: Vec<String>,
    /// What takes some or all of its requests: an older route, or a listener of another Gateway.
    pub(crate) overlapped: Option<Why>,
    /// The first reference that cannot be resolved.
    pub(crate) references: Option<Why>,
    /// The Services that it refers to.
    pub(crate) services: BTreeSet<Name>,
}

impl Made {
    fn conditions(&self, attached: Result<(), Why>, empty: &BTreeSet<Name>, generation: i64) -> Box<[Condition]> {
        let accepted = attached.and(match &self.refused {
            Some(why) => Err(why.clone()),
            None => Ok(()),
        });
        let references = self.references.clone().map_or(Ok(()), Err);
        let mut conditions = vec![
            condition("Accepted", "Accepted", &accepted, generation),
            condition("ResolvedRefs", "ResolvedRefs", &references, generation),
        ];
        if self.refused.is_none() && !self.dropped.is_empty() {
            // The API prescribes how this message begins.
            let message = format!("Dropped Rule: {}", self.dropped.join("; "));
            conditions.push(status::at(Condition::holds("PartiallyInvalid", "UnsupportedValue", message), generation));
        }
        if let Some(why) = &self.overlapped {
            conditions.push(status::at(Condition::holds(OVERLAPPED, why.reason, why.message.as_str()), generation));
        }
        if let Some(service) = self.services.intersection(empty).next() {
            let message =
                format!("the Service {service} has no endpoint that serves: its share of the requests gets 503");
            conditions.push(status::at(Condition::fails(BACKENDS_AVAILABLE, "NoEndpoints", message), generation));
        }
        conditions.into()
    }

    /// Adds the result of another variant of the route.
    fn join(&mut self, other: Self) {
        self.refused = self.refused.take().or(other.refused);
        self.overlapped = self.overlapped.take().or(other.overlapped);
        let known = std::mem::take(&mut self.dropped);
        let fresh = other.dropped.into_iter().filter(|why| !known.contains(why)).collect::<Vec<_>>();
        self.dropped = known.into_iter().chain(fresh).collect();
    }

    /// Notes the result of a reference.
    pub(crate) fn note(&mut self, share: Result<Share, Why>) -> Option<Share> {
        match share {
            Ok(share) => {
                self.services.insert(share.service.clone());
                Some(share)
            }
            Err(why) => {
                self.references.get_or_insert(why);
                None
            }
        }
    }
}

fn serve(
    index: &Index,
    route: Found<'_>,
    (variant, mode, scope): (usize, TlsMode, &Scope),
    places: &BTreeMap<SocketAddr, Hosts>,
    out: &mut Attaching<'_, '_>,
) -> Made {
    let (_, _, entry) = route;
    if let Some(field) = entry.others.keys().next() {
        let why = Why::new("UnsupportedValue", format!("`{field}` is not supported"));
        return Made { refused: Some(why), ..Made::default() };
    }
    match &entry.rules {
        Rules::Http(rules) => {
            let lowering = |rule: &HttpRule, with: &mut lower::Lowering<'_>| lower::http(rule, with);
            rules_of(index, route, (variant, scope), rules, (|rule| rule.name.as_ref(), lowering), places, out)
        }
        Rules::Grpc(rules) => {
            let lowering = |rule: &GrpcRule, with: &mut lower::Lowering<'_>| lower::grpc(rule, with);
            rules_of(index, route, (variant, scope), rules, (|rule| rule.name.as_ref(), lowering), places, out)
        }
        Rules::Stream(rules) => stream::serve(index, (route.0, route.1, mode), rules, places, out),
    }
}

/// Translates each rule on its own: a rule that cannot be served answers 500, or is dropped if it is not known which requests it means.
/// The others are served.
fn rules_of<R>(
    index: &Index,
    (kind, name, entry): Found<'_>,
    (variant, inherited): (usize, &Scope),
    rules: &[R],
    (name_of, lowering): (fn(&R) -> Option<&Text>, impl Fn(&R, &mut lower::Lowering<'_>) -> Result<Vec<Route>, String>),
    places: &BTreeMap<SocketAddr, Hosts>,
    out: &mut Attaching<'_, '_>,
) -> Made {
    let mut made = Made::default();
    // A rule may have several faults.
    let mut faulty = 0;
    // Two variants may have one address, where each route needs a name of its own.
    let variant = if variant == 0 { String::new() } else { format!("+{variant}") };
    for (place, rule) in rules.iter().enumerate() {
        let label = format!("{}/{name}{variant}#{place}", kind.name().to_ascii_lowercase());
        let (clusters, regexes, policies) = (&mut *out.clusters, &mut *out.regexes, &*out.policies);
        let scope = policies.of_rule(kind, name, name_of(rule), inherited);
        clusters.set_policies(policies.of_clusters(&scope));
        let made = &mut made;
        let faults = made.dropped.len();
        let (nowhere, places_count) = (out.nowhere, places.len());
        let mut with = lower::Lowering {
            index,
            kind,
            name,
            place,
            places: places_count,
            label,
            made,
            clusters,
            regexes,
            policies,
            scope,
            nowhere,
            is_closed: false,
        };
        let routes = match lowering(rule, &mut with) {
            Ok(routes) => routes,
            Err(why) => {
                made.dropped.push(format!("rule {place}: {why}"));
                Vec::new()
            }
        };
        for (matching, route) in routes.into_iter().enumerate() {
            let rank = Rank::new(&route, entry.meta.created, name, (place, matching));
            for (at, hosts) in places {
                let route = Route { hosts: hosts.list(), ..route.clone() };
                match out.binds.route(*at, rank.clone(), route) {
                    Ok(None) => {}
                    Ok(Some(older)) => drop(made.overlapped.get_or_insert_with(|| {
                        Why::new(OLDER, format!("rule {place}: the older route {older} takes the same requests"))
                    })),
                    Err(why) => made.dropped.push(format!("rule {place}: {why}")),
                }
            }
        }
        faulty += usize::from(made.dropped.len() > faults);
    }
    out.clusters.set_policies(Default::default());
    if !rules.is_empty() && faulty == rules.len() {
        made.refused = Some(Why::new("UnsupportedValue", made.dropped.join("; ")));
    }
    made
}

//! Gateways and ListenerSets: which ones we manage, their addresses, and what each of their listeners can serve.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use model::HostMatcher;

use super::address::{self, Allotted, Claim};
use super::bind::{Ask, Binds};
use super::cluster::Identity;
use super::hosts::HostSet;
use super::infrastructure::{self, Asked};
use super::listener::{self, Held, claim, conflicts, gateway_listener};
use super::parameters::{self, Class, Classes, LastGood};
use super::reference::{self, Why, is_allowed};
use super::traffic::Policies;
use super::{Circumstances, publish_service, published};
use crate::index::{GatewayEntry, Index, Keypair, Kind, ListenerSetEntry, Name, RouteKind};
use crate::objects::{GROUP, GatewayAddress, GatewaySpec, ListenerSpec, ObjectRef, ParametersSpec};
use crate::settings::{Published, Settings};

/// The most listeners of a Gateway together with its ListenerSets.
const LISTENERS_MAX: usize = 4096;

/// A Gateway that we manage.
pub(crate) struct Plan<'i> {
    pub(crate) name: &'i Name,
    pub(crate) entry: &'i GatewayEntry,
    pub(crate) class: &'i Class,
    /// Its own parameters that are in use.
    pub(crate) parameters: Option<Arc<ParametersSpec>>,
    /// What is wrong with those that it names, if older ones are in use instead.
    pub(crate) outdated: Option<Why>,
    /// Why it is not accepted.
    pub(crate) refused: Option<Why>,
    /// Its addresses, or why it has none yet.
    pub(crate) places: Result<Vec<IpAddr>, Why>,
    /// The addresses that clients use.
    pub(crate) published: Vec<GatewayAddress>,
    /// The Service that `published` comes from, if it comes from one.
    pub(crate) service: Option<Name>,
    /// The Service that it asks for.
    pub(crate) asked: Option<Asked>,
    /// What it presents to endpoints.
    pub(crate) identity: Identity,
    /// Why the certificate that it should present cannot be found, or is an older one.
    pub(crate) unidentified: Option<Why>,
}

/// A ListenerSet that names a Gateway that we manage.
pub(crate) struct SetPlan<'i> {
    pub(crate) name: &'i Name,
    pub(crate) gateway: &'i Name,
    pub(crate) entry: &'i ListenerSetEntry,
    pub(crate) refused: Option<Why>,
}

/// A listener of a Gateway or a ListenerSet.
pub(crate) struct GatewayListener<'i> {
    /// Its owner: a Gateway or a ListenerSet.
    pub(crate) owner: (Kind, &'i Name),
    pub(crate) gateway: &'i Name,
    pub(crate) spec: &'i ListenerSpec,
    pub(crate) kinds: Vec<RouteKind>,
    pub(crate) places: Vec<SocketAddr>,
    /// Why it conflicts with another listener.
    pub(crate) conflict: Option<Why>,
    /// Why it is not accepted.
    pub(crate) refused: Option<Why>,
    /// The first reference that cannot be resolved.
    pub(crate) references: Option<Why>,
    pub(crate) certificates: Vec<(Name, Keypair)>,
    /// What is asked of its clients; `None` means nothing.
    pub(crate) ask: Option<Ask>,
    /// Why an older Gateway decides how its clients are treated, or serves its host too.
    pub(crate) overruled: Option<Why>,
    pub(crate) attached: BTreeSet<(RouteKind, Name)>,
    /// The hosts of its HTTPRoutes, and of its GRPCRoutes.
    pub(crate) hosts: (HostSet, HostSet),
}

impl GatewayListener<'_> {
    /// Whether it has no error so far.
    pub(crate) fn is_accepted(&self) -> bool {
        self.conflict.is_none() && self.refused.is_none()
    }

    /// Whether it terminates TLS.
    pub(crate) fn terminates(&self) -> bool {
        let passes = self.spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()) == Some("Passthrough");
        self.spec.protocol == "HTTPS" || (self.spec.protocol == "TLS" && !passes)
    }

    /// Whether it terminates TLS but has no certificate to present.
    pub(crate) fn lacks_certificate(&self) -> bool {
        self.terminates() && self.certificates.is_empty()
    }

    /// Whether it is being served.
    pub(crate) fn is_served(&self) -> bool {
        self.is_accepted() && !self.places.is_empty() && !self.lacks_certificate()
    }

    pub(crate) fn hostname(&self) -> Option<&str> {
        self.spec.hostname.as_deref().filter(|host| !host.is_empty())
    }

    /// The hosts that routes of this kind have here; `None` means that they may have any.
    pub(crate) fn hosts_of(&mut self, kind: RouteKind) -> Option<&mut HostSet> {
        match kind {
            RouteKind::Http => Some(&mut self.hosts.0),
            RouteKind::Grpc => Some(&mut self.hosts.1),
            RouteKind::Tls | RouteKind::Tcp | RouteKind::Udp => None,
        }
    }

    /// Whether any of these hosts belongs to routes of the other HTTP kind.
    pub(crate) fn is_of_others(&self, kind: RouteKind, hosts: &[HostMatcher]) -> bool {
        match kind {
            RouteKind::Http => self.hosts.1.overlaps(hosts),
            RouteKind::Grpc => self.hosts.0.overlaps(hosts),
            RouteKind::Tls | RouteKind::Tcp | RouteKind::Udp => false,
        }
    }

    pub(crate) fn is_udp(&self) -> bool {
        self.spec.protocol == "UDP"
    }
}

/// All Gateways that we manage, their ListenerSets, and the listeners of both: those of a Gateway come before those of its sets, and an
/// older set before a newer one.
pub(crate) struct Gateways<'i> {
    pub(crate) plans: Vec<Plan<'i>>,
    pub(crate) sets: Vec<SetPlan<'i>>,
    pub(crate) listeners: Vec<GatewayListener<'i>>,
    /// The listeners of each Gateway and ListenerSet, as a range of `listeners`; empty if it was refused.
    pub(crate) owners: BTreeMap<(Kind, Name), Range<usize>>,
    /// What those Gateways present to endpoints that present anything.
    pub(crate) identities: BTreeMap<Name, Identity>,
}

/// Finds the Gateways and reserves their addresses.
pub(crate) fn gateways<'i>(
    index: &'i Index,
    classes: &'i Classes,
    circumstances: &Circumstances,
    memory: (&mut LastGood, &mut Allotted),
    (policies, binds): (&Policies<'_>, &mut Binds),
) -> Gateways<'i> {
    let plans = plans(index, classes, circumstances, memory);
    let mut sets: Vec<SetPlan<'i>> = Vec::new();
    let mut listeners: Vec<GatewayListener<'i>> = Vec::new();
    let mut owners = BTreeMap::new();
    for plan in &plans {
        let first = listeners.len();
        for spec in &plan.entry.spec.listeners {
            listeners.push(gateway_listener(index, plan, (Kind::Gateway, plan.name), spec));
        }
        owners.insert((Kind::Gateway, plan.name.clone()), first..listeners.len());
        for set in sets_of(index, plan) {
            let begin = listeners.len();
            if set.refused.is_none() {
                for spec in &set.entry.spec.listeners {
                    listeners.push(gateway_listener(index, plan, (Kind::ListenerSet, set.name), spec));
                }
            }
            owners.insert((Kind::ListenerSet, set.name.clone()), begin..listeners.len());
            sets.push(set);
        }
        let own = listeners.get_mut(first..).unwrap_or_default();
        for listener in own.iter_mut().skip(LISTENERS_MAX) {
            listener.refused =
                Some(Why::new("TooManyListeners", format!("a Gateway can have at most {LISTENERS_MAX} listeners")));
        }
        let mut held = Held::default();
        for listeners in own.chunk_by_mut(|one, next| one.owner == next.owner) {
            conflicts(listeners, &held);
            for listener in listeners.iter_mut() {
                claim(listener, plan, circumstances, policies, binds);
            }
            held.add(listeners);
        }
    }
    let presenting = plans.iter().filter(|plan| plan.identity != Identity::Anonymous);
    let identities = presenting.map(|plan| (plan.name.clone(), plan.identity.clone())).collect();
    Gateways { plans, sets, listeners, owners, identities }
}

fn plans<'i>(
    index: &'i Index,
    classes: &'i Classes,
    circumstances: &Circumstances,
    (last, given): (&mut LastGood, &mut Allotted),
) -> Vec<Plan<'i>> {
    let class_of = |entry: &GatewayEntry| classes.gateway.get(&Name::new("", &entry.spec.gateway_class_name));
    let ours = index.gateways.iter().filter_map(|(name, entry)| Some((name, entry, class_of(entry)?)));
    let mut ours: Vec<(&Name, &GatewayEntry, &Class)> = ours.collect();
    ours.sort_by_key(|(name, entry, _)| (entry.meta.created, *name));
    let claims: Vec<Claim<'_>> = ours.iter().map(|(name, entry, class)| claim_of(name, entry, class, given)).collect();
    let allotted = address::allot(&claims, circumstances.allots);
    given.set(Kind::Gateway, ours.iter().map(|(name, ..)| *name).zip(&allotted));
    ours.into_iter()
        .zip(allotted)
        .map(|((name, entry, class), allotted)| {
            let settings = &class.settings;
            let asked = infrastructure::asked(index, settings, circumstances, name, entry);
            let way = asked.as_ref().and_then(|asked| asked.way(index, settings));
            let (service, known) = match way {
                Some((service, addresses)) => (Some(service), addresses.to_vec()),
                None => (publish_service(settings), published(index, settings)),
            };
            let (places, mut published) = match settings.gateway_pools.is_empty() {
                true => shared(&entry.spec, settings, &known),
                false => own(allotted),
            };
            if class.lacks_parameters && !entry.status.addresses.is_empty() {
                published.clone_from(&entry.status.addresses);
            }
            let reference = entry.spec.infrastructure.as_ref().and_then(|of| of.parameters_ref.as_ref());
            let (parameters, wrong) = parameters::of_gateway(index, name, reference, last);
            // Without any that were valid it is not known how its clients should be treated.
            let (outdated, unusable) = if parameters.is_some() { (wrong, None) } else { (None, wrong) };
            let refused = unusable.or_else(|| unsupported(&entry.spec)).or_else(|| odd_address(&entry.spec, settings));
            let (identity, unidentified) = identity(index, name, &entry.spec);
            Plan {
                name,
                entry,
                class,
                parameters,
                outdated,
                refused,
                places,
                published,
                service,
                asked,
                identity,
                unidentified,
            }
        })
        .collect()
}

/// What a Gateway presents to endpoints, and what is wrong with that.
fn identity(index: &Index, name: &Name, spec: &GatewaySpec) -> (Identity, Option<Why>) {
    let backend = spec.tls.as_ref().and_then(|tls| tls.backend.as_ref());
    let Some(reference) = backend.and_then(|backend| backend.client_certificate_ref.as_ref()) else {
        return (Identity::Anonymous, None);
    };
    const INVALID: &str = "InvalidClientCertificateRef";
    let found = reference::core_object(index, "Gateway", &name.namespace, "Secret", reference, INVALID);
    let missing = |Why { reason, message }| {
        let reason = if reason == "RefNotPermitted" { reason } else { INVALID };
        let message = format!("{message}; requests to endpoints with TLS are answered 503");
        (Identity::Missing, Some(Why::new(reason, message)))
    };
    match found.and_then(|secret| listener::certificate(index, secret)) {
        Ok((secret, _, wrong)) => (Identity::Secret(secret), wrong.map(|why| Why::new(INVALID, why.message))),
        Err(why) => missing(why),
    }
}

/// Whether an address has an unsupported type.
fn odd_address(spec: &GatewaySpec, settings: &Settings) -> Option<Why> {
    let has_pool = !settings.gateway_pools.is_empty();
    let is_odd = |address: &&GatewayAddress| match kind_of(address) {
        "IPAddress" => false,
        // A name cannot be allotted from a pool.
        "Hostname" => has_pool,
        _ => true,
    };
    let odd = spec.addresses.iter().find(is_odd)?;
    Some(Why::new("UnsupportedAddress", format!("addresses of type {} are not supported", kind_of(odd))))
}

fn kind_of(address: &GatewayAddress) -> &str {
    address.kind.as_deref().unwrap_or("IPAddress")
}

fn claim_of<'c>(name: &Name, entry: &GatewayEntry, class: &'c Class, given: &Allotted) -> Claim<'c> {
    // Addresses without a value stand for any; the API server accepts no other text than an address.
    let addresses = |all: &[GatewayAddress]| {
        all.iter().filter_map(|address| address.value.as_deref()?.parse().ok()).collect::<Vec<IpAddr>>()
    };
    let pools = &class.settings.gateway_pools;
    Claim {
        pools,
        asked: addresses(&entry.spec.addresses),
        present: given.present((Kind::Gateway, name), addresses(&entry.status.addresses), pools),
        families: (false, false),
    }
}

type Where = (Result<Vec<IpAddr>, Why>, Vec<GatewayAddress>);

/// All Gateways share one address.
fn shared(spec: &GatewaySpec, settings: &Settings, published: &[Published]) -> Where {
    let published: Vec<GatewayAddress> = published
        .iter()
        .map(|address| match address {
            Published::Address(ip) => gateway_address("IPAddress", ip.to_string()),
            Published::Host(host) => gateway_address("Hostname", host.clone()),
        })
        .collect();
    let value = |address: &GatewayAddress| address.value.clone().filter(|text| !text.is_empty());
    // An entry without a value stands for any address of its type.
    let meets = |asked: &GatewayAddress, published: &GatewayAddress| {
        kind_of(asked) == kind_of(published) && value(asked).is_none_or(|text| published.value.as_ref() == Some(&text))
    };
    if let Some(foreign) = spec.addresses.iter().find(|asked| !published.iter().any(|of| meets(asked, of))) {
        let what = value(foreign).unwrap_or_else(|| kind_of(foreign).to_owned());
        let message = format!("{what} is not an address of this controller, which has no pool to allot addresses from");
        return (Err(Why::new("AddressNotUsable", message)), Vec::new());
    }
    let is_told =
        |of: &GatewayAddress| spec.addresses.is_empty() || spec.addresses.iter().any(|asked| meets(asked, of));
    (Ok(vec![settings.listen]), published.into_iter().filter(is_told).collect())
}

fn own(allotted: Result<Vec<IpAddr>, Why>) -> Where {
    match allotted {
        Ok(addresses) if addresses.is_empty() => {
            (Err(Why::new("AddressNotAssigned", "no address has been allotted yet")), Vec::new())
        }
        Ok(addresses) => {
            let told = addresses.iter().map(|address| gateway_address("IPAddress", address.to_string())).collect();
            (Ok(addresses), told)
        }
        Err(why) => (Err(why), Vec::new()),
    }
}

fn gateway_address(kind: &str, value: String) -> GatewayAddress {
    GatewayAddress { kind: Some(kind.to_owned()), value: Some(value) }
}

/// A field of a Gateway that we do not support. Ignoring a demand for client certificates silently would be dangerous.
fn unsupported(spec: &GatewaySpec) -> Option<Why> {
    let tls = spec.tls.as_ref();
    let frontend = tls.and_then(|tls| tls.frontend.as_ref());
    let client_tls = frontend
        .into_iter()
        .flat_map(|frontend| std::iter::once(&frontend.default).chain(frontend.per_port.iter().map(|port| &port.tls)));
    let of_clients = client_tls
        .flat_map(|tls| tls.others.keys().chain(tls.validation.iter().flat_map(|validation| validation.others.keys())));
    let of_tls = tls.into_iter().flat_map(|tls| tls.others.keys());
    let of_backend = tls.and_then(|tls| tls.backend.as_ref()).into_iter().flat_map(|backend| backend.others.keys());
    let of_frontend = frontend.into_iter().flat_map(|frontend| frontend.others.keys());
    let mut all = spec.others.keys().chain(of_tls).chain(of_backend).chain(of_frontend).chain(of_clients);
    all.next().map(|field| Why::new("Invalid", format!("`{field}` is not supported")))
}

/// The ListenerSets of a Gateway, the oldest first.
fn sets_of<'i>(index: &'i Index, plan: &Plan<'i>) -> Vec<SetPlan<'i>> {
    let is_of = |name: &Name, entry: &ListenerSetEntry| {
        let ObjectRef { group, kind, namespace, name: to } = &entry.spec.parent_ref;
        group.as_deref().is_none_or(|group| group == GROUP)
            && kind.as_deref().is_none_or(|kind| kind == "Gateway")
            && namespace.as_deref().unwrap_or(&name.namespace) == &*plan.name.namespace
            && **to == *plan.name.name
    };
    let mut sets: Vec<_> = index.listener_sets.iter().filter(|(name, entry)| is_of(name, entry)).collect();
    sets.sort_by_key(|(name, entry)| (entry.meta.created, *name));
    let allowed = plan.entry.spec.allowed_listeners.as_ref().and_then(|allowed| allowed.namespaces.as_ref());
    sets.into_iter()
        .map(|(name, entry)| {
            let refused = if !is_allowed(index, allowed, "None", &plan.name.namespace, &name.namespace) {
                let message = format!("allowedListeners of {} does not allow {}", plan.name, name.namespace);
                Some(Why::new("NotAllowed", message))
            } else if plan.refused.is_some() {
                Some(Why::new("ParentNotAccepted", format!("the Gateway {} is not accepted", plan.name)))
            } else {
                None
            };
            SetPlan { name, gateway: plan.name, entry, refused }
        })
        .collect()
}

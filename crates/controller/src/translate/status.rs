//! Statuses: the conditions of Gateways and their listeners, and how a wanted status becomes a write, if one is needed.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::gateway::{GatewayListener, Gateways, Plan, SetPlan};
use super::notice::{BACKENDS_AVAILABLE, OBJECTS_READABLE, OVERLAPPED, SERVICE_READY};
use super::parameters::Classes;
use super::reference::Why;
use super::{Circumstances, Desired, Statuses, lower};
use crate::index::{Index, Kind, Name};
use crate::objects::{
    AncestorStatus, Condition, FrontendTls, GROUP, GatewayClassStatus, GatewayStatus, ListenerStatus, ParentRef,
    ParentStatus, RouteGroupKind, SupportedFeature,
};
use crate::settings::Settings;
use crate::watch::Unreadable;

/// The condition for an outcome; `good` is the reason if there is no error.
pub(crate) fn condition(
    kind: &'static str,
    good: &'static str,
    outcome: &Result<(), Why>,
    generation: i64,
) -> Condition {
    let condition = match outcome {
        Ok(()) => Condition::holds(kind, good, ""),
        Err(why) => Condition::fails(kind, why.reason, why.message.clone()),
    };
    at(condition, generation)
}

/// Sets the generation that the condition was found in.
pub(crate) fn at(condition: Condition, generation: i64) -> Condition {
    Condition { observed_generation: generation, ..condition }
}

/// The GatewayClasses that we manage.
pub(super) fn classes(index: &Index, settings: &Settings, classes: &Classes, statuses: &mut Statuses) {
    let mut features: BTreeSet<&str> = lower::FEATURES.iter().copied().collect();
    if super::service::no_kernel_plane(settings).is_none() {
        features.insert("UDPRoute");
    }
    if index.definitions.values().any(|definition| definition.is_experimental) {
        features.extend(lower::EXPERIMENTAL_FEATURES);
    }
    // Every class that names the controller gets a status, because without one the controller would seem to be absent.
    let ours = index.classes.iter().filter(|(_, class)| class.spec.controller_name == settings.controller_name);
    for (name, class) in ours {
        let other = settings.gateway_class.as_deref().filter(|only| **only != *name.name);
        let accepted = match other {
            Some(only) => {
                Err(Why::new("Unsupported", format!("this controller serves only the class {only} (--gateway-class)")))
            }
            None => classes.gateway.get(name).and_then(|class| class.wrong.clone()).map_or(Ok(()), Err),
        };
        let feature = |name: &str| SupportedFeature { name: name.to_owned() };
        let mut conditions = vec![condition("Accepted", "Accepted", &accepted, class.meta.generation)];
        conditions.extend(unreadable(index).map(|condition| at(condition, class.meta.generation)));
        let status = GatewayClassStatus {
            conditions,
            supported_features: features.iter().copied().filter(|_| other.is_none()).map(feature).collect(),
        };
        statuses.insert((Kind::GatewayClass, name.clone()), Desired::Class(status));
    }
}

/// What cannot be read; `None` if everything can.
fn unreadable(index: &Index) -> Option<Condition> {
    let (_, first) = index.unreadable.first_key_value()?;
    let reason = match first {
        Unreadable::Forbidden => "Forbidden",
        Unreadable::Unknown => "UnknownKind",
    };
    let all: Vec<String> = index.unreadable.iter().map(|(about, why)| why.told(about)).collect();
    let message = format!("{}; what was read before stays in use", all.join("; "));
    Some(Condition::fails(OBJECTS_READABLE, reason, message))
}

/// The statuses of Gateways and ListenerSets, after all routes have been attached.
pub(super) fn gateways(gateways: &Gateways<'_>, circumstances: &Circumstances, statuses: &mut Statuses) {
    for plan in &gateways.plans {
        let listeners = listeners(gateways, Kind::Gateway, plan.name);
        let generation = plan.entry.meta.generation;
        let mut status = GatewayStatus {
            addresses: plan.published.clone(),
            conditions: of_gateway(plan, listeners, circumstances),
            listeners: listeners
                .iter()
                .map(|listener| listener_status(listener, plan, circumstances, generation))
                .collect(),
            attached_listener_sets: accepted_sets(gateways, plan.name),
        };
        if plan.entry.status.attached_listener_sets.is_some_and(|written| written > 0) {
            // An old count must be reset to 0. If it was never written it stays absent, because an older API has no such field.
            status.attached_listener_sets.get_or_insert(0);
        }
        statuses.insert((Kind::Gateway, plan.name.clone()), Desired::Gateway(status));
    }
    for set in &gateways.sets {
        let listeners = listeners(gateways, Kind::ListenerSet, set.name);
        let generation = set.entry.meta.generation;
        let Some(plan) = gateways.plans.iter().find(|plan| plan.name == set.gateway) else { continue };
        let status = GatewayStatus {
            addresses: Vec::new(),
            conditions: of_set(set, plan, listeners, circumstances),
            listeners: listeners
                .iter()
                .map(|listener| listener_status(listener, plan, circumstances, generation))
                .collect(),
            attached_listener_sets: None,
        };
        statuses.insert((Kind::ListenerSet, set.name.clone()), Desired::Gateway(status));
    }
}

/// The number of accepted ListenerSets of a Gateway; `None` if there are none.
fn accepted_sets(gateways: &Gateways<'_>, gateway: &Name) -> Option<i32> {
    let of = gateways.sets.iter().filter(|set| set.gateway == gateway);
    let accepted = of.filter(|set| accepts_set(set, listeners(gateways, Kind::ListenerSet, set.name)).is_true());
    i32::try_from(accepted.count()).ok().filter(|sets| *sets > 0)
}

fn listeners<'g, 'i>(gateways: &'g Gateways<'i>, kind: Kind, name: &Name) -> &'g [GatewayListener<'i>] {
    let range = gateways.owners.get(&(kind, name.clone())).cloned().unwrap_or_default();
    gateways.listeners.get(range).unwrap_or_default()
}

/// Whether all, some or none of the listeners are valid.
fn validity(
    listeners: &[GatewayListener<'_>],
    is_valid: impl Fn(&GatewayListener<'_>) -> bool,
    generation: i64,
) -> Condition {
    let bad: Vec<&str> =
        listeners.iter().filter(|listener| !is_valid(listener)).map(|listener| listener.spec.name.as_str()).collect();
    let message = || format!("not valid: {}", bad.join(", "));
    let condition = match (bad.len(), listeners.len()) {
        (0, _) => Condition::holds("Accepted", "Accepted", ""),
        (bad, all) if bad == all => Condition::fails("Accepted", "ListenersNotValid", message()),
        _ => Condition::holds("Accepted", "ListenersNotValid", message()),
    };
    at(condition, generation)
}

fn of_gateway(plan: &Plan<'_>, listeners: &[GatewayListener<'_>], circumstances: &Circumstances) -> Vec<Condition> {
    let generation = plan.entry.meta.generation;
    let accepted = match plan.refused.as_ref().or(plan.outdated.as_ref()) {
        Some(why) => condition("Accepted", "Accepted", &Err(why.clone()), generation),
        None => validity(listeners, |listener| listener.is_accepted(), generation),
    };
    // With older parameters it is served.
    let is_served = plan.refused.is_none() && (accepted.is_true() || plan.outdated.is_some());
    let programmed = if !is_served {
        Err(Why::new("Invalid", "not accepted"))
    } else if let Err(why) = &plan.places {
        Err(why.clone())
    } else if plan.published.is_empty() {
        let message = match &plan.service {
            Some(service) => format!("the Service {service}, by which clients come, has no address yet"),
            None => "the address that clients use is not known: set --publish-address or --publish-service".to_owned(),
        };
        Err(Why::new("AddressNotAssigned", message))
    } else if let Some(why) = &circumstances.refused {
        Err(Why::new("Pending", why.clone()))
    } else if !listeners.iter().any(GatewayListener::is_served) {
        Err(Why::new("Invalid", "none of its listeners can be served"))
    } else {
        Ok(())
    };
    let mut conditions = vec![accepted, condition("Programmed", "Programmed", &programmed, generation)];
    let tls = plan.entry.spec.tls.as_ref();
    if tls.and_then(|tls| tls.backend.as_ref()).is_some_and(|backend| backend.client_certificate_ref.is_some()) {
        let resolved = plan.unidentified.clone().map_or(Ok(()), Err);
        conditions.push(condition("ResolvedRefs", "ResolvedRefs", &resolved, generation));
    }
    conditions.extend(overruled(listeners, generation));
    if tls.and_then(|tls| tls.frontend.as_ref()).is_some_and(admits_anyone) {
        let message =
            "tls.frontend has the mode AllowInsecureFallback: clients without a valid certificate are admitted";
        conditions.push(at(Condition::holds(INSECURE, "ConfigurationChanged", message), generation));
    }
    if let Some(why) = plan.asked.as_ref().and_then(|asked| asked.trouble.clone()) {
        conditions.push(condition(SERVICE_READY, "", &Err(why), generation));
    }
    conditions
}

/// Says that an older Gateway decides how clients of these listeners are treated, or has the same host; `None` if none does.
fn overruled(listeners: &[GatewayListener<'_>], generation: i64) -> Option<Condition> {
    let Why { reason, message } = listeners.iter().find_map(|listener| listener.overruled.clone())?;
    Some(at(Condition::holds(OVERLAPPED, reason, message), generation))
}

/// Whether clients of any port are admitted without a valid certificate although they are asked for one.
fn admits_anyone(frontend: &FrontendTls) -> bool {
    let all = std::iter::once(&frontend.default).chain(frontend.per_port.iter().map(|port| &port.tls));
    let mut modes = all.filter_map(|tls| tls.validation.as_ref()?.mode.as_deref());
    modes.any(|mode| mode == "AllowInsecureFallback")
}

/// The API wants a ListenerSet to be refused if its only listener has no usable certificate. It does not want this for a Gateway.
fn accepts_set(set: &SetPlan<'_>, listeners: &[GatewayListener<'_>]) -> Condition {
    let generation = set.entry.meta.generation;
    let is_valid = |listener: &GatewayListener<'_>| listener.is_accepted() && !listener.lacks_certificate();
    match &set.refused {
        Some(why) => condition("Accepted", "Accepted", &Err(why.clone()), generation),
        None => validity(listeners, is_valid, generation),
    }
}

fn of_set(
    set: &SetPlan<'_>,
    plan: &Plan<'_>,
    listeners: &[GatewayListener<'_>],
    circumstances: &Circumstances,
) -> Vec<Condition> {
    let accepted = accepts_set(set, listeners);
    let programmed = match &set.refused {
        Some(why) => Err(why.clone()),
        None if !accepted.is_true() => Err(Why::new("ListenersNotValid", "none of its listeners can be served")),
        None => match (&plan.places, &circumstances.refused) {
            (Err(why), _) => Err(Why::new("ParentNotProgrammed", why.message.clone())),
            (Ok(_), Some(why)) => Err(Why::new("Pending", why.clone())),
            (Ok(_), None) => Ok(()),
        },
    };
    let generation = set.entry.meta.generation;
    let mut conditions = vec![accepted, condition("Programmed", "Programmed", &programmed, generation)];
    conditions.extend(overruled(listeners, generation));
    conditions
}

fn listener_status(
    listener: &GatewayListener<'_>,
    plan: &Plan<'_>,
    circumstances: &Circumstances,
    generation: i64,
) -> ListenerStatus {
    let refused = listener.conflict.clone().or_else(|| listener.refused.clone());
    let accepted = refused.map_or(Ok(()), Err);
    // If two listeners conflict, the API wants both conditions to say so.
    let unaccepted = listener.conflict.as_ref().map_or("Invalid", |why| why.reason);
    let references = listener.references.clone().map_or(Ok(()), Err);
    let programmed = match (&accepted, &plan.places, &circumstances.refused) {
        (Err(_), ..) => Err(Why::new(unaccepted, "not accepted")),
        (Ok(()), Err(why), _) => Err(Why::new("Pending", why.message.clone())),
        (Ok(()), Ok(_), Some(why)) => Err(Why::new("Pending", why.clone())),
        _ if plan.refused.is_some() => Err(Why::new("Invalid", "its Gateway is not accepted")),
        // Whether or not it was served before, the kernel plane reports the same.
        _ if listener.is_udp() && circumstances.kernel.is_some() => {
            Err(Why::new("Pending", circumstances.kernel.clone().unwrap_or_default()))
        }
        _ if !listener.is_served() => Err(Why::new("Invalid", "no certificate can be presented")),
        _ => Ok(()),
    };
    let conflicted = match &listener.conflict {
        Some(why) => Condition::holds("Conflicted", why.reason, why.message.clone()),
        None => Condition::fails("Conflicted", "NoConflicts", ""),
    };
    let kind =
        |kind: &crate::index::RouteKind| RouteGroupKind { group: Some(GROUP.to_owned()), kind: kind.name().to_owned() };
    ListenerStatus {
        name: listener.spec.name.clone(),
        supported_kinds: listener.kinds.iter().map(kind).collect(),
        attached_routes: i32::try_from(listener.attached.len()).unwrap_or(i32::MAX),
        conditions: vec![
            condition("Accepted", "Accepted", &accepted, generation),
            condition("Programmed", "Programmed", &programmed, generation),
            condition("ResolvedRefs", "ResolvedRefs", &references, generation),
            at(conflicted, generation),
        ],
    }
}

/// A write that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// A merge patch of the status, which only applies to the state of the object that it was made from.
    pub patch: Value,
}

/// The write that gives an object its wanted status; `None` if it already has it, or is gone. `now` is in RFC 3339.
pub(crate) fn write(
    index: &Index,
    settings: &Settings,
    about: &(Kind, Name),
    desired: &Desired,
    now: &str,
) -> Option<Write> {
    let (kind, name) = about;
    let (resource_version, status) = match (kind, desired) {
        (Kind::GatewayClass, Desired::Class(wanted)) => {
            let entry = index.classes.get(name)?;
            (&entry.meta.resource_version, class(&entry.status, wanted, now)?)
        }
        (Kind::Gateway, Desired::Gateway(wanted)) => {
            let entry = index.gateways.get(name)?;
            (&entry.meta.resource_version, gateway(&entry.status, wanted, now)?)
        }
        (Kind::ListenerSet, Desired::Gateway(wanted)) => {
            let entry = index.listener_sets.get(name)?;
            (&entry.meta.resource_version, gateway(&entry.status, wanted, now)?)
        }
        (Kind::Route(of), Desired::Route(wanted)) => {
            let entry = index.routes.get(&(*of, name.clone()))?;
            (&entry.meta.resource_version, parents(&entry.present, wanted, &settings.controller_name, now)?)
        }
        (Kind::Policy, Desired::Policy(wanted)) => {
            let entry = index.policies.get(name)?;
            (&entry.meta.resource_version, ancestors(&entry.present, wanted, &settings.controller_name, now)?)
        }
        (Kind::Traffic, Desired::Policy(wanted)) => {
            let entry = index.traffic.get(name)?;
            (&entry.meta.resource_version, ancestors(&entry.present, wanted, &settings.controller_name, now)?)
        }
        (Kind::Ingress, Desired::Ingress(wanted)) => {
            let entry = index.ingresses.get(name)?;
            let is_same = entry.present.iter().map(|text| &**text).eq(wanted.iter().map(String::as_str));
            let point = |text: &String| match text.parse::<IpAddr>() {
                Ok(ip) => json!({"ip": ip}),
                Err(_) => json!({"hostname": text}),
            };
            let points: Vec<Value> = wanted.iter().map(point).collect();
            (&entry.meta.resource_version, (!is_same).then(|| json!({"loadBalancer": {"ingress": points}}))?)
        }
        (Kind::Service, Desired::Service(wanted)) => {
            let entry = index.services.get(name)?;
            let present = &entry.load_balancer.as_ref()?.present;
            // Packets reach the endpoint with the virtual address still in them, so kube-proxy may short-circuit it.
            let points: Vec<Value> = wanted.iter().map(|ip| json!({"ip": ip, "ipMode": "VIP"})).collect();
            (&entry.meta.resource_version, (present != wanted).then(|| json!({"loadBalancer": {"ingress": points}}))?)
        }
        _ => return None,
    };
    Some(Write { patch: json!({"metadata": {"resourceVersion": resource_version}, "status": status}) })
}

fn class(present: &GatewayClassStatus, wanted: &GatewayClassStatus, now: &str) -> Option<Value> {
    let conditions = merge(&present.conditions, &wanted.conditions, now);
    let is_same = same(&present.conditions, &conditions) && present.supported_features == wanted.supported_features;
    let status = GatewayClassStatus { conditions, supported_features: wanted.supported_features.clone() };
    to_value(!is_same, status)
}

fn gateway(present: &GatewayStatus, wanted: &GatewayStatus, now: &str) -> Option<Value> {
    let of = |name: &str| present.listeners.iter().find(|listener| listener.name == name);
    let listener = |wanted: &ListenerStatus| {
        let before = of(&wanted.name).map(|listener| listener.conditions.as_slice()).unwrap_or_default();
        ListenerStatus { conditions: merge(before, &wanted.conditions, now), ..wanted.clone() }
    };
    let merged = GatewayStatus {
        conditions: merge(&present.conditions, &wanted.conditions, now),
        listeners: wanted.listeners.iter().map(listener).collect(),
        ..wanted.clone()
    };
    let same_listener = |(a, b): (&ListenerStatus, &ListenerStatus)| {
        a.name == b.name
            && a.attached_routes == b.attached_routes
            && a.supported_kinds == b.supported_kinds
            && same(&a.conditions, &b.conditions)
    };
    let is_same = same(&present.conditions, &merged.conditions)
        && present.addresses == merged.addresses
        && present.attached_listener_sets.unwrap_or(0) == merged.attached_listener_sets.unwrap_or(0)
        && present.listeners.len() == merged.listeners.len()
        && present.listeners.iter().zip(&merged.listeners).all(same_listener);
    let mut value = to_value(!is_same, merged)?;
    if wanted.addresses.is_empty() {
        // A merge patch keeps fields that it does not name.
        value["addresses"] = Value::Null;
    }
    Some(value)
}

fn parents(present: &[ParentStatus], wanted: &[ParentStatus], ours: &str, now: &str) -> Option<Value> {
    let (own, foreign): (Vec<_>, Vec<_>) = present.iter().partition(|parent| parent.controller_name == ours);
    let merged = |wanted: &ParentStatus| {
        let before = own.iter().find(|parent| parent.parent_ref == wanted.parent_ref);
        let before = before.map(|parent| &*parent.conditions).unwrap_or_default();
        ParentStatus { conditions: merge(before, &wanted.conditions, now).into(), ..wanted.clone() }
    };
    let wanted: Vec<ParentStatus> = wanted.iter().map(merged).collect();
    let same_parent =
        |(a, b): (&&ParentStatus, &ParentStatus)| a.parent_ref == b.parent_ref && same(&a.conditions, &b.conditions);
    let is_same = own.len() == wanted.len() && own.iter().zip(&wanted).all(same_parent);
    let all: Vec<&ParentStatus> = foreign.into_iter().chain(&wanted).collect();
    (!is_same).then(|| json!({"parents": all}))
}

fn ancestors(present: &[AncestorStatus], wanted: &[AncestorStatus], ours: &str, now: &str) -> Option<Value> {
    let parent = |ancestor: &AncestorStatus| ParentStatus {
        parent_ref: ParentRef { ..ancestor.ancestor_ref.clone() },
        controller_name: ancestor.controller_name.clone(),
        conditions: ancestor.conditions.as_slice().into(),
    };
    let (present, wanted): (Vec<_>, Vec<_>) =
        (present.iter().map(parent).collect(), wanted.iter().map(parent).collect());
    let mut value = parents(&present, &wanted, ours, now)?;
    // The same, except for two names.
    let mut all = value["parents"].take();
    for ancestor in all.as_array_mut().into_iter().flatten() {
        ancestor["ancestorRef"] = ancestor["parentRef"].take();
        if let Some(fields) = ancestor.as_object_mut() {
            fields.remove("parentRef");
        }
    }
    Some(json!({"ancestors": all}))
}

/// The wanted conditions, with the times of equal existing ones, and conditions of kinds that are not ours.
fn merge(present: &[Condition], wanted: &[Condition], now: &str) -> Vec<Condition> {
    let of = |kind: &str| present.iter().find(|condition| condition.kind == kind);
    let timed = |wanted: &Condition| {
        let before = of(&wanted.kind).filter(|before| before.status == wanted.status);
        let time = before.map_or_else(|| now.into(), |before| before.last_transition_time.clone());
        Condition { last_transition_time: time, ..wanted.clone() }
    };
    let is_foreign = |condition: &&Condition| {
        !OUR_CONDITIONS.contains(&&*condition.kind) && !wanted.iter().any(|wanted| wanted.kind == condition.kind)
    };
    wanted.iter().map(timed).chain(present.iter().filter(is_foreign).cloned()).collect()
}

/// The kinds of conditions that we own. One that is no longer wanted is removed.
const OUR_CONDITIONS: [&str; 10] = [
    "Accepted",
    "Programmed",
    "ResolvedRefs",
    "Conflicted",
    "PartiallyInvalid",
    OVERLAPPED,
    BACKENDS_AVAILABLE,
    OBJECTS_READABLE,
    SERVICE_READY,
    INSECURE,
];

/// The kind of the condition of a Gateway that admits clients without a valid certificate.
const INSECURE: &str = "InsecureFrontendValidationMode";

fn same(present: &[Condition], merged: &[Condition]) -> bool {
    present.len() == merged.len()
        && merged.iter().all(|merged| present.iter().any(|present| present.says_the_same(merged)))
}

fn to_value(is_due: bool, status: impl serde::Serialize) -> Option<Value> {
    // Statuses are plain data, so turning them into JSON cannot fail.
    is_due.then(|| serde_json::to_value(status).unwrap_or_default())
}

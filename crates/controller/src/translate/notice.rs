//! Notices: every condition that reports a problem becomes an Event of its object, together with problems that a status has no place for.
//!
//! This module finds them in the translation. The main loop decides how often each is sent.

use std::collections::BTreeSet;

use super::{Circumstances, Desired, Notice, Statuses};
use crate::index::{Index, Kind, Meta, Name};
use crate::objects::{Condition, GatewayStatus};

/// The condition of a route some of whose Services have no endpoints. The API has no such condition.
pub(crate) const BACKENDS_AVAILABLE: &str = "steelyard.io/BackendsAvailable";

/// The condition of a GatewayClass if objects of some kind cannot be read. It concerns the whole cluster, and no other object could carry
/// it.
pub(crate) const OBJECTS_READABLE: &str = "steelyard.io/ObjectsReadable";

/// The condition of a route some of whose requests an older route takes, and of a Gateway some of whose clients are treated by the
/// parameters of an older one. The API says which one wins, but has no condition for it.
pub(crate) const OVERLAPPED: &str = "steelyard.io/Overlapped";

/// The condition of a Gateway whose Service is not as it asks for it. The API has none for resources of a Gateway.
pub(crate) const SERVICE_READY: &str = "steelyard.io/ServiceReady";

/// The reason of the notice about a Service that has had no endpoints for a while.
pub(super) const NO_ENDPOINTS: &str = "NoEndpoints";

/// Notices from conditions that report a problem, and about Services of ours without endpoints.
pub(super) fn of_statuses(
    index: &Index,
    circumstances: &Circumstances,
    users: impl Iterator<Item = Name>,
    statuses: &Statuses,
    notices: &mut Vec<Notice>,
) {
    for (about, desired) in statuses {
        let Some(meta) = meta(index, about) else { continue };
        let mut told = BTreeSet::new();
        let mut tell = |condition: &Condition, listener: &str| {
            // Another replica is about to allot the address.
            let is_pending = condition.reason == "AddressNotAssigned" && !circumstances.allots;
            if says_no(condition) && !is_pending && told.insert((listener.to_owned(), condition.message.to_string())) {
                notices.push(notice(about, meta, condition, listener));
            }
        };
        match desired {
            Desired::Class(status) => status.conditions.iter().for_each(|condition| tell(condition, "")),
            Desired::Gateway(status) => of_gateway(status, &mut tell),
            Desired::Route(parents) => {
                parents.iter().flat_map(|parent| &parent.conditions).for_each(|condition| tell(condition, ""));
            }
            Desired::Policy(ancestors) => {
                ancestors.iter().flat_map(|ancestor| &ancestor.conditions).for_each(|condition| tell(condition, ""));
            }
            // Their notices were added during the translation, because these statuses have no conditions.
            Desired::Ingress(_) | Desired::Service(_) => {}
        }
    }
    for service in users.filter(|service| circumstances.empty.contains(service)) {
        let Some(entry) = index.services.get(&service) else { continue };
        notices.push(Notice {
            about: (Kind::Service, service),
            uid: entry.meta.uid.clone(),
            reason: NO_ENDPOINTS.into(),
            message: "no endpoint is ready, or terminating and still serving: HTTP requests for this Service get 503"
                .to_owned(),
        });
    }
}

/// That something is not programmed is only news if no other condition says why.
fn of_gateway(status: &GatewayStatus, tell: &mut impl FnMut(&Condition, &str)) {
    let is_programmed = |condition: &&Condition| condition.kind == "Programmed";
    let is_good = |conditions: &[Condition]| {
        conditions.iter().filter(|condition| condition.kind != "Programmed").all(|condition| !says_no(condition))
    };
    let is_accepted = is_good(&status.conditions);
    for condition in status.conditions.iter().filter(|condition| is_accepted || !is_programmed(condition)) {
        // The listeners report which and why.
        if condition.reason != "ListenersNotValid" {
            tell(condition, "");
        }
    }
    let is_served = status.conditions.iter().all(|condition| !says_no(condition));
    for listener in &status.listeners {
        let has_reason = !is_served || !is_good(&listener.conditions);
        let news = listener.conditions.iter().filter(|condition| !has_reason || !is_programmed(condition));
        news.for_each(|condition| tell(condition, &listener.name));
    }
}

/// `Conflicted` is left out, because `Accepted` says the same. So is what a Service reports once itself, instead of each of its routes.
fn says_no(condition: &Condition) -> bool {
    match &*condition.kind {
        "PartiallyInvalid" | OVERLAPPED => condition.is_true(),
        "Conflicted" | BACKENDS_AVAILABLE => false,
        _ => !condition.is_true(),
    }
}

fn notice(about: &(Kind, Name), meta: &Meta, condition: &Condition, listener: &str) -> Notice {
    let place = if listener.is_empty() { String::new() } else { format!("listener {listener}: ") };
    Notice {
        about: about.clone(),
        uid: meta.uid.clone(),
        reason: condition.reason.clone(),
        message: format!("{place}{}", condition.message),
    }
}

pub(super) fn meta<'i>(index: &'i Index, (kind, name): &(Kind, Name)) -> Option<&'i Meta> {
    match kind {
        Kind::GatewayClass => index.classes.get(name).map(|entry| &entry.meta),
        Kind::Gateway => index.gateways.get(name).map(|entry| &entry.meta),
        Kind::ListenerSet => index.listener_sets.get(name).map(|entry| &entry.meta),
        Kind::Route(kind) => index.routes.get(&(*kind, name.clone())).map(|entry| &entry.meta),
        Kind::Traffic => index.traffic.get(name).map(|entry| &entry.meta),
        Kind::Policy => index.policies.get(name).map(|entry| &entry.meta),
        _ => None,
    }
}

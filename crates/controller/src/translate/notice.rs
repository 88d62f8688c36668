//! What must be heard: every condition that says no, once as an Event of its object, besides what a status has no place for.
//!
//! Job: find them in what was made of the objects. Not its job: how often each is told, which is the loop's.

use std::collections::BTreeSet;

use super::{Circumstances, Desired, Notice, Statuses};
use crate::index::{Index, Kind, Meta, Name};
use crate::objects::{Condition, GatewayStatus};

/// The condition of a route some of whose Services have no endpoints. The API has none for it.
pub(crate) const BACKENDS_AVAILABLE: &str = "steelyard.io/BackendsAvailable";

/// The condition of a GatewayClass where objects of some kind cannot be read. It is about the whole cluster: there is nothing else to say it of.
pub(crate) const OBJECTS_READABLE: &str = "steelyard.io/ObjectsReadable";

/// The condition of a route some of whose requests an older one takes. The API says who is right, and has no word for it.
pub(crate) const OVERLAPPED: &str = "steelyard.io/Overlapped";

/// Of conditions that say no, and of Services of ours that nobody serves.
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
            // What has not been allotted yet is about to be, by another replica.
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
            // Theirs were noted on the way: these statuses have no conditions.
            Desired::Ingress(_) | Desired::Service(_) => {}
        }
    }
    for service in users.filter(|service| circumstances.empty.contains(service)) {
        let Some(entry) = index.services.get(&service) else { continue };
        notices.push(Notice {
            about: (Kind::Service, service),
            uid: entry.meta.uid.clone(),
            reason: "NoEndpoints".into(),
            message: "none of its endpoints is ready, or on its way out and still serving: HTTP requests for it are answered 503"
                .to_owned(),
        });
    }
}

/// That something is not programmed is news only where nothing else says why.
fn of_gateway(status: &GatewayStatus, tell: &mut impl FnMut(&Condition, &str)) {
    let is_programmed = |condition: &&Condition| condition.kind == "Programmed";
    let is_good = |conditions: &[Condition]| {
        conditions.iter().filter(|condition| condition.kind != "Programmed").all(|condition| !says_no(condition))
    };
    let is_accepted = is_good(&status.conditions);
    for condition in status.conditions.iter().filter(|condition| is_accepted || !is_programmed(condition)) {
        // Its listeners say which and why.
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

/// `Conflicted` is left out: `Accepted` says the same. So is what a Service says of itself, once, and not each of its routes.
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

fn meta<'i>(index: &'i Index, (kind, name): &(Kind, Name)) -> Option<&'i Meta> {
    match kind {
        Kind::GatewayClass => index.classes.get(name).map(|entry| &entry.meta),
        Kind::Gateway => index.gateways.get(name).map(|entry| &entry.meta),
        Kind::ListenerSet => index.listener_sets.get(name).map(|entry| &entry.meta),
        Kind::Route(kind) => index.routes.get(&(*kind, name.clone())).map(|entry| &entry.meta),
        Kind::Policy => index.policies.get(name).map(|entry| &entry.meta),
        _ => None,
    }
}

//! Derives a snapshot and the status of each object from the index. The translation is pure: the same index, settings and circumstances
//! give the same result.
//!
//! | file | what it answers |
//! |---|---|
//! | `gateway`, `listener` | which Gateways and ListenerSets are ours, their addresses, what their listeners can serve |
//! | `route`, `hosts` | where a route may be attached, and its status |
//! | `lower`, `filter`, `regexes` | what an HTTP rule means in the model |
//! | `stream` | what TLSRoute, TCPRoute and UDPRoute mean in the model |
//! | `ingress`, `service` | the same for Ingresses, and for Services of type LoadBalancer |
//! | `ingress_nginx` | the same for Ingresses, as ingress-nginx understands them |
//! | `node`, `near` | what a node serves of every Service in the place of kube-proxy, and which endpoints are near |
//! | `bind` | what each address serves, and in which order |
//! | `cluster` | the Services of a rule, and their endpoints |
//! | `parameters`, `clients` | the settings of classes and Gateways, and how their clients are treated |
//! | `policy` | TLS towards endpoints |
//! | `traffic` | which TrafficPolicies apply to a rule and to a cluster |
//! | `reference` | what a reference leads to, and whether it is allowed |
//! | `address` | which object has which address of a pool |
//! | `infrastructure` | the Services that Gateways ask for |
//! | `status` | what is written back |
//! | `notice` | what is reported in Events |
//!
//! If only endpoints have changed, none of this is repeated: [`Translation::follow`] replaces them in place, and routes stay at the same
//! place in memory, so that the planes see that they have not changed.

mod address;
mod bind;
pub(crate) mod clients;
mod cluster;
mod filter;
mod gateway;
mod hosts;
mod infrastructure;
mod ingress;
mod ingress_nginx;
mod listener;
mod lower;
mod near;
mod node;
mod notice;
mod parameters;
mod policy;
mod reference;
mod regexes;
mod route;
mod service;
mod status;
mod stream;
mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use model::{Generation, Listener, Snapshot, Vip};

use crate::index::{Index, Kind, Meta, Name};
use crate::objects::{AncestorStatus, Condition, GatewayClassStatus, GatewayStatus, ParentStatus, Text};
use crate::settings::{Published, Settings};
use parameters::{Classes, LastGood};
use reference::Why;
use regexes::Regexes;

pub(crate) use infrastructure::{Infrastructure, Making};
pub(crate) use status::{Write, write};

/// The addresses to write to the status of objects that are served at the listen address.
fn published(index: &Index, settings: &Settings) -> Vec<Published> {
    let Some(service) = publish_service(settings) else { return settings.published() };
    let found = index.services.get(&service);
    found.map(|service| service.reached_at.to_vec()).unwrap_or_default()
}

/// The Service whose addresses are those of the listen address.
fn publish_service(settings: &Settings) -> Option<Name> {
    settings.publish_service.as_ref().map(|service| Name::new(&service.namespace, &service.name))
}

/// What one translation leaves for the next.
#[derive(Default)]
pub struct Memory {
    regexes: Regexes,
    parameters: LastGood,
    allotted: address::Allotted,
    nginx: ingress_nginx::Plans,
}

/// What the translation depends on besides the objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Circumstances {
    /// Whether this process allots addresses, because it holds the Lease.
    pub allots: bool,
    /// Addresses that could not be bound, and why.
    pub binds: BTreeMap<SocketAddr, String>,
    /// Why the kernel plane refused its part of the last snapshot; `None` if it did not. It keeps serving what it had.
    pub kernel: Option<String>,
    /// The vips that it refused while it serves others, by name.
    pub vips: BTreeMap<String, RefusedVip>,
    /// Services that have had no endpoints for a while.
    pub empty: BTreeSet<Name>,
    /// Why the last snapshot was refused as a whole; `None` if it was not.
    pub refused: Option<String>,
    /// Services of Gateways and EndpointSlices that could not be written, and why.
    pub unmade: BTreeMap<(Kind, Name), String>,
}

/// A vip that the kernel plane refused in its current form.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedVip {
    /// The reason as a sentence.
    pub why: String,
    /// The form in which it was served last and is still served; `None` if it was not served, or if that form was refused too.
    pub held: Option<Vip>,
}

/// The wanted status of each object.
pub(crate) type Statuses = BTreeMap<(Kind, Name), Desired>;

/// The wanted status of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Desired {
    Class(GatewayClassStatus),
    /// Of a Gateway or a ListenerSet.
    Gateway(GatewayStatus),
    /// Only our entries.
    Route(Box<[ParentStatus]>),
    /// Only our entries.
    Policy(Vec<AncestorStatus>),
    /// Addresses and names.
    Ingress(Vec<String>),
    /// Addresses of a Service.
    Service(Vec<IpAddr>),
}

/// A message for the owner of an object that its status has no place for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The object.
    pub about: (Kind, Name),
    /// Identifies this object, as opposed to a later one with the same name.
    pub uid: Box<str>,
    /// For machines.
    pub reason: Text,
    /// For people.
    pub message: String,
}

impl Notice {
    pub(crate) fn warning(about: (Kind, Name), meta: &Meta, why: Why) -> Self {
        Self { about, uid: meta.uid.clone(), reason: why.reason.into(), message: why.message }
    }

    /// A notice about any object that has a status; `None` if the object is gone.
    pub(crate) fn of(index: &Index, about: &(Kind, Name), reason: &'static str, message: String) -> Option<Self> {
        let uid = notice::meta(index, about)?.uid.clone();
        Some(Self { about: about.clone(), uid, reason: reason.into(), message })
    }
}

/// Why a Service is not served as it says, for the status of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFault {
    /// Namespace and name.
    pub service: String,
    /// For machines, as in the Event.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// A status is for people, who need not read more of them at once.
const SERVICE_FAULTS_MAX: usize = 256;

/// An object that is not served as it says, and the condition that reports this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedObject {
    /// Kind, namespace and name: `HTTPRoute shop/cart`.
    pub object: String,
    /// The type of the condition; empty if the object's status has no place for it, and an Event reports it.
    pub condition: String,
    /// For machines.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// The result of the translation.
#[derive(Default)]
pub struct Translation {
    listeners: Vec<Listener>,
    clusters: cluster::Clusters,
    vips: stream::Vips,
    node: node::Node,
    /// The Services that Gateways ask for.
    pub(crate) infrastructure: Infrastructure,
    /// The wanted status of each object.
    pub statuses: BTreeMap<(Kind, Name), Desired>,
    /// Other messages.
    pub notices: BTreeSet<Notice>,
}

/// How long a drain may take, after `drain_delay`. A pod is killed after 30 s unless its manifest says otherwise, and the drain must have ended
/// by then.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// Flows of the kernel plane; see the default of a configuration file.
pub const FLOWS_MAX: u32 = 262_144;

/// Translates all objects into what to serve and what to report.
pub fn translate(
    index: &Index,
    settings: &Settings,
    circumstances: &Circumstances,
    memory: &mut Memory,
) -> Translation {
    let Memory { regexes, parameters, allotted, nginx } = memory;
    regexes.begin();
    parameters.begin();
    if !circumstances.allots {
        allotted.clear();
    }
    let mut binds = bind::Binds::default();
    let mut clusters = cluster::Clusters::beginning_with(&settings.clusters);
    let mut vips = stream::Vips::new(&circumstances.vips);
    let mut statuses = Statuses::new();
    let mut notices = Vec::new();
    let mut users = BTreeMap::new();
    nginx.follow(index, settings);
    let mut policies = traffic::Policies::of(index, nginx.policies());
    // This cluster has no Service, so it cannot fail. It always exists, even if nothing needs it.
    let nowhere = clusters.of(index, Vec::new()).unwrap_or(model::ClusterId(0));

    let classes = Classes::of(index, settings, parameters, &mut notices);
    let mut gateways =
        gateway::gateways(index, &classes, circumstances, (parameters, allotted), (&policies, &mut binds));
    let mut attaching = route::Attaching {
        binds: &mut binds,
        clusters: &mut clusters,
        vips: &mut vips,
        statuses: &mut statuses,
        udp: BTreeMap::new(),
        interfaces: &settings.interfaces,
        has_both: route::has_both(index),
        empty: &circumstances.empty,
        users: &mut users,
        policies: &mut policies,
        nowhere,
        regexes,
    };
    route::attach(index, settings, &mut gateways, &mut attaching);
    service::translate(index, settings, (circumstances, allotted), &mut vips, &mut statuses, &mut notices);
    let mut serving =
        ingress::Serving { binds: &mut binds, clusters: &mut clusters, statuses: &mut statuses, notices: &mut notices };
    match &settings.ingress_nginx {
        None => ingress::translate(index, &classes.ingress, circumstances, &mut serving),
        Some(_) => {
            let with = ingress_nginx::With { plans: nginx, policies: &policies, regexes, nowhere };
            ingress_nginx::ports::translate(index, &classes.ingress, circumstances, &mut vips, &mut serving);
            ingress_nginx::translate(index, &classes.ingress, circumstances, with, &mut serving);
        }
    }
    let node = node::translate(index, settings, (circumstances, &statuses), (&mut vips, &mut binds), &mut notices);
    vips.fit();
    for (name, why) in vips.cut() {
        let service = index.services.get(&name);
        notices.extend(service.map(|entry| Notice::warning((Kind::Service, name), &entry.meta, why)));
    }
    policies.shape(&mut clusters);
    traffic::statuses(index, settings, &policies, &gateways, &users, &mut statuses);
    policy::statuses(index, settings, &users, &mut statuses);
    status::classes(index, settings, &classes, &mut statuses);
    status::gateways(&gateways, circumstances, &mut statuses);
    let infrastructure = infrastructure::translate(index, settings, &gateways);
    notice::of_statuses(index, circumstances, clusters.services(), &statuses, &mut notices);
    regexes.end();

    let listeners = binds.into_listeners(nowhere);
    Translation { listeners, clusters, vips, node, infrastructure, statuses, notices: notices.into_iter().collect() }
}

impl Translation {
    /// Updates the endpoints of these Services. Returns whether anything is served differently.
    pub fn follow(&mut self, index: &Index, services: &BTreeSet<Name>) -> bool {
        let clusters = self.clusters.follow(index, services);
        self.vips.follow(index, services) || clusters
    }

    /// Whether the endpoints that [`Translation::follow`] has brought need a new translation, because the kernel plane has no room for all.
    pub(crate) fn outgrew(&self) -> bool {
        self.vips.outgrew()
    }

    /// What is wrong with Services that this node serves: the name, the reason and a sentence, at most [`SERVICE_FAULTS_MAX`].
    pub(crate) fn service_faults(&self) -> Vec<ServiceFault> {
        let is_ingress = |notice: &Notice| notice.about.0 == Kind::Ingress;
        let of = |notice: &Notice| ServiceFault {
            service: match notice.about.0 {
                Kind::Service => notice.about.1.to_string(),
                kind => format!("{} {}", kind.told().1, notice.about.1),
            },
            reason: notice.reason.to_string(),
            message: notice.message.clone(),
        };
        // Those without endpoints are clusters, too, and have findings of their own.
        let is_service = |notice: &Notice| notice.about.0 == Kind::Service && &*notice.reason != notice::NO_ENDPOINTS;
        // Of Ingresses, those that are closed because something about them cannot be served.
        let is_closed = |notice: &Notice| is_ingress(notice) && ["Closed", "NotServed"].contains(&&*notice.reason);
        // Of ConfigMaps, the ports of ingress-nginx.
        let is_port = |notice: &Notice| notice.about.0 == Kind::ConfigMap;
        let is_it = |notice: &&Notice| is_service(notice) || is_closed(notice) || is_port(notice);
        self.notices.iter().filter(is_it).take(SERVICE_FAULTS_MAX).map(of).collect()
    }

    /// The objects that are not served as they say, at most [`SERVICE_FAULTS_MAX`], and the number of the others.
    pub(crate) fn refused_objects(&self) -> (Vec<RefusedObject>, usize) {
        let of = |notice: &Notice| {
            let (kind, name) = &notice.about;
            RefusedObject {
                object: format!("{} {name}", kind.told().1),
                condition: self.condition_of(notice).map(|condition| condition.kind.to_string()).unwrap_or_default(),
                reason: notice.reason.to_string(),
                message: notice.message.clone(),
            }
        };
        let first = self.notices.iter().take(SERVICE_FAULTS_MAX).map(of).collect();
        (first, self.notices.len().saturating_sub(SERVICE_FAULTS_MAX))
    }

    /// The condition that a notice is made from.
    fn condition_of(&self, notice: &Notice) -> Option<&Condition> {
        let is_it =
            |condition: &&Condition| condition.reason == notice.reason && notice.message.ends_with(&*condition.message);
        match self.statuses.get(&notice.about)? {
            Desired::Class(status) => status.conditions.iter().find(is_it),
            Desired::Gateway(status) => {
                let of_listeners = status.listeners.iter().flat_map(|listener| &listener.conditions);
                status.conditions.iter().chain(of_listeners).find(is_it)
            }
            Desired::Route(parents) => parents.iter().flat_map(|parent| &parent.conditions).find(is_it),
            Desired::Policy(ancestors) => ancestors.iter().flat_map(|ancestor| &ancestor.conditions).find(is_it),
            Desired::Ingress(_) | Desired::Service(_) => None,
        }
    }

    /// Whether new endpoints of these Services change more than the endpoints of clusters and vips.
    pub(crate) fn is_outdated(&self, index: &Index, settings: &Settings, services: &BTreeSet<Name>) -> bool {
        self.node.is_outdated(index, settings, services)
    }

    /// Keeps whatever has not changed since `before` at the same place in memory, so that the planes see that it has not.
    pub fn keep(&mut self, before: &Self) {
        self.clusters.keep(&before.clusters);
    }

    /// The vips to serve.
    pub fn vips(&self) -> impl Iterator<Item = &Vip> {
        self.vips.list.iter()
    }

    /// Services that something refers to and that have no endpoints at all.
    pub fn empty(&self) -> BTreeSet<Name> {
        self.clusters.empty()
    }

    /// What to serve. The receiver sets its generation.
    pub fn snapshot(&self, settings: &Settings) -> Snapshot {
        Snapshot {
            generation: Generation(0),
            admin: settings.admin.clone(),
            admin_access: Default::default(),
            metrics: settings.metrics,
            access_log: settings.access_log.clone(),
            tracing: settings.tracing.clone(),
            dns: settings.dns.clone(),
            drain_delay: settings.drain_delay,
            drain_timeout: DRAIN_TIMEOUT,
            memory_max: None,
            listeners: self.listeners.clone(),
            clusters: self.clusters.list.clone(),
            vips: self.vips.list.clone(),
            flows_max: FLOWS_MAX,
            socket_cgroup: settings.socket_cgroup.clone(),
            announcing: settings.announcing,
        }
    }
}

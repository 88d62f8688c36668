//! From the index to a snapshot and to what is said of each object. Pure: the same index, settings and circumstances give the same.
//!
//! | file | what it answers |
//! |---|---|
//! | `gateway`, `listener` | which Gateways and ListenerSets are ours, where they are, what their listeners can be |
//! | `route`, `hosts` | where a route may be attached, and what is said of it |
//! | `lower`, `filter`, `regexes` | what a rule for HTTP means to the model |
//! | `stream` | what TLSRoute, TCPRoute and UDPRoute mean to it |
//! | `ingress`, `service` | the same for Ingresses, and for Services of the type LoadBalancer |
//! | `bind` | what of all that is served at one place, in which order |
//! | `cluster` | who serves a rule, and where its endpoints are |
//! | `policy` | TLS towards endpoints |
//! | `reference` | what a reference leads to, and whether it may |
//! | `address` | who has which address out of a pool |
//! | `status` | what is written back |
//! | `notice` | what is told besides, in Events |
//!
//! When only endpoints have changed nothing of this is done again: [`Translation::follow`] exchanges them in place, and routes stay the very
//! same in memory, so that the planes see that they are.

mod address;
mod bind;
mod cluster;
mod filter;
mod gateway;
mod hosts;
mod ingress;
mod listener;
mod lower;
mod notice;
mod policy;
mod reference;
mod regexes;
mod route;
mod service;
mod status;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use model::{Dns, Generation, Listener, Snapshot, Vip};

use crate::index::{Index, Kind, Meta, Name};
use crate::objects::{AncestorStatus, GatewayClassStatus, GatewayStatus, ParentStatus, Text};
use crate::settings::Settings;
use reference::Why;

pub(crate) use regexes::Regexes;
pub(crate) use status::{Write, write};

/// What else there is to know besides the objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Circumstances {
    /// Whether this process gives out addresses: it holds the Lease.
    pub allots: bool,
    /// Places where nothing can listen, and why.
    pub binds: BTreeMap<SocketAddr, String>,
    /// Why the kernel plane refused its part of the last snapshot; `None`: it did not. What it serves stays as it is meanwhile.
    pub kernel: Option<String>,
    /// Vips that it refused while it serves others, by their names.
    pub vips: BTreeMap<String, RefusedVip>,
    /// Services that have had no endpoints for a while.
    pub empty: BTreeSet<Name>,
    /// Why the last snapshot was refused as a whole; `None`: it was not.
    pub refused: Option<String>,
}

/// A vip that the kernel plane refused as it is wanted now.
#[derive(Clone, Debug, PartialEq)]
pub struct RefusedVip {
    /// In a sentence.
    pub why: String,
    /// As it was served last, and goes on being served; `None`: it was not served, or that was refused, too.
    pub held: Option<Vip>,
}

/// What is to be said of each object.
pub(crate) type Statuses = BTreeMap<(Kind, Name), Desired>;

/// What is to be said of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Desired {
    Class(GatewayClassStatus),
    /// Of a Gateway or a ListenerSet.
    Gateway(GatewayStatus),
    /// Ours alone.
    Route(Box<[ParentStatus]>),
    /// Ours alone.
    Policy(Vec<AncestorStatus>),
    /// Addresses and names.
    Ingress(Vec<String>),
    /// Addresses of a Service.
    Service(Vec<IpAddr>),
}

/// Something that whoever looks after an object must hear, and that its status has no place for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// The object.
    pub about: (Kind, Name),
    /// Of this very object, and not a later one of its name.
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
}

/// What was made of the objects.
#[derive(Default)]
pub struct Translation {
    listeners: Vec<Listener>,
    clusters: cluster::Clusters,
    vips: stream::Vips,
    /// What is to be said of each object.
    pub statuses: BTreeMap<(Kind, Name), Desired>,
    /// What else is to be heard.
    pub notices: BTreeSet<Notice>,
}

/// How long a drain may take; a pod is killed after 30 s unless its manifest says otherwise, and must have ended by then.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// Flows of the kernel plane; see the default of a configuration file.
pub const FLOWS_MAX: u32 = 262_144;

/// Makes of all objects what is to be served, and what is to be said.
pub fn translate(
    index: &Index,
    settings: &Settings,
    circumstances: &Circumstances,
    regexes: &mut Regexes,
) -> Translation {
    regexes.begin();
    let mut binds = bind::Binds::default();
    let mut clusters = cluster::Clusters::default();
    let mut vips = stream::Vips::new(&circumstances.vips);
    let mut statuses = Statuses::new();
    let mut notices = Vec::new();
    let mut users = BTreeMap::new();
    // Of no Service at all, it cannot fail; and it is always there, whoever needs it.
    let nowhere = clusters.of(index, Vec::new()).unwrap_or(model::ClusterId(0));

    let mut gateways = gateway::gateways(index, settings, circumstances, &mut binds);
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
        regexes,
    };
    route::attach(index, settings, &mut gateways, &mut attaching);
    service::translate(index, settings, circumstances, &mut vips, &mut statuses, &mut notices);
    let mut serving =
        ingress::Serving { binds: &mut binds, clusters: &mut clusters, statuses: &mut statuses, notices: &mut notices };
    ingress::translate(index, settings, circumstances, &mut serving);
    policy::statuses(index, settings, &users, &mut statuses);
    status::classes(index, settings, &mut statuses);
    status::gateways(&gateways, circumstances, &mut statuses);
    notice::of_statuses(index, circumstances, clusters.services(), &statuses, &mut notices);
    regexes.end();

    let listeners = binds.into_listeners(settings, nowhere);
    Translation { listeners, clusters, vips, statuses, notices: notices.into_iter().collect() }
}

impl Translation {
    /// Follows the endpoints of these Services. Says whether anything is served differently from before.
    pub fn follow(&mut self, index: &Index, services: &BTreeSet<Name>) -> bool {
        let clusters = self.clusters.follow(index, services);
        self.vips.follow(index, services) || clusters
    }

    /// What has not changed since `before` stays the very same in memory, so that the planes see that it has not.
    pub fn keep(&mut self, before: &Self) {
        self.clusters.keep(&before.clusters);
    }

    /// The vips that are to be served.
    pub fn vips(&self) -> impl Iterator<Item = &Vip> {
        self.vips.list.iter()
    }

    /// Services that something leads to, and that have no endpoints at all.
    pub fn empty(&self) -> BTreeSet<Name> {
        self.clusters.empty()
    }

    /// What is to be served. Its number is for whoever puts it to use to give.
    pub fn snapshot(&self, settings: &Settings) -> Snapshot {
        Snapshot {
            generation: Generation(0),
            admin: settings.admin.clone(),
            metrics: settings.metrics,
            access_log: settings.access_log.clone(),
            dns: Dns::default(),
            drain_timeout: DRAIN_TIMEOUT,
            memory_max: None,
            listeners: self.listeners.clone(),
            clusters: self.clusters.list.clone(),
            vips: self.vips.list.clone(),
            flows_max: FLOWS_MAX,
        }
    }
}

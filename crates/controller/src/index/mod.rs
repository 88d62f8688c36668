//! The index: everything that is known of the cluster. All watches feed it.
//!
//! It holds what the translation needs of each object and no more: an HTTPRoute of three rules takes about two KiB here, and its
//! `managedFields` alone would take more. It also determines how far each change reaches: to nothing, to statuses, to the endpoints of some
//! Services, or to everything. It does not watch, translate or write.

mod core;
mod entry;
mod keys;
mod made;
mod object;
mod slice;
mod traffic;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub use self::core::*;
pub use entry::*;
pub use keys::Keypair;
pub use made::MadeEntry;
pub(crate) use made::RECORD;
pub use object::{CREDENTIALS_TYPE, CredentialSecret, Definition, Kind, Object, Watched};
pub(crate) use slice::SERVICE_LABEL;
pub use slice::{SliceEndpoint, SliceEntry, Standing};
pub use traffic::{TrafficEntry, UsersPart};

use crate::ingress_nginx::{HEADER_MAP_KEYS, HEADER_MAP_OPTIONS, HeaderMap, Prefix, named_header_map};
use crate::objects::Text;
use crate::settings::{IngressNginx, ServiceName, Settings};
use crate::watch::{Scoped, Unreadable};

/// A namespace and a name. Cluster-wide objects have an empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    /// Empty for cluster-wide objects.
    pub namespace: Text,
    /// Unique within the namespace and kind.
    pub name: Text,
}

impl Name {
    /// A name from these two parts.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

/// The index of all known objects.
#[derive(Default)]
pub struct Index {
    /// GatewayClasses of any controller.
    pub classes: BTreeMap<Name, ClassEntry>,
    /// Gateways of any class.
    pub gateways: BTreeMap<Name, GatewayEntry>,
    /// ListenerSets of any Gateway.
    pub listener_sets: BTreeMap<Name, ListenerSetEntry>,
    /// Routes of all five kinds.
    pub routes: BTreeMap<(RouteKind, Name), RouteEntry>,
    /// ReferenceGrants.
    pub grants: BTreeMap<Name, GrantEntry>,
    /// BackendTLSPolicies.
    pub policies: BTreeMap<Name, PolicyEntry>,
    /// TrafficPolicies.
    pub traffic: BTreeMap<Name, TrafficEntry>,
    /// GatewayParameters, whether or not anything refers to them.
    pub parameters: BTreeMap<Name, ParametersEntry>,
    /// Ingresses of any class.
    pub ingresses: BTreeMap<Name, IngressEntry>,
    /// IngressClasses of any controller.
    pub ingress_classes: BTreeMap<Name, IngressClassEntry>,
    /// Services of every type.
    pub services: BTreeMap<Name, ServiceEntry>,
    /// Secrets of the type `kubernetes.io/tls`.
    pub secrets: BTreeMap<Name, SecretEntry>,
    /// Secrets with users or keys.
    pub credentials: BTreeMap<Name, CredentialsEntry>,
    /// ConfigMaps that have a `ca.crt`.
    pub authorities: BTreeMap<Name, AuthorityEntry>,
    /// The labels of namespaces.
    pub namespaces: BTreeMap<Name, BTreeMap<String, String>>,
    /// The identity of the namespace `kube-system`, which is that of the cluster; `None` if it cannot be seen.
    pub cluster_uid: Option<Box<str>>,
    /// The definitions of kinds, of which only that of the HTTPRoute is read.
    pub definitions: BTreeMap<Name, DefinitionEntry>,
    /// Objects that cannot be read at present, and why. Those that were read before are still known.
    pub unreadable: BTreeMap<Scoped, Unreadable>,
    /// Services and EndpointSlices that a controller of ours has written.
    pub made: BTreeMap<(Kind, Name), MadeEntry>,
    /// The ConfigMap of ingress-nginx, if it is to be read. It stays known when it is gone.
    pub nginx_config: Option<BTreeMap<String, String>>,
    /// ConfigMaps that may have headers, or why they have none, if annotations of ingress-nginx are served. Which of them are named is not
    /// known when they come.
    header_maps: BTreeMap<Name, Result<HeaderMap, Box<str>>>,
    /// The ConfigMaps of its TCP and its UDP ports.
    pub nginx_tcp: Ports,
    pub nginx_udp: Ports,
    /// The name of the first.
    nginx_config_name: Option<Name>,
    /// The prefix of annotations of ingress-nginx, if they are served.
    nginx_prefix: Option<Prefix>,
    /// The zone of this process.
    zone: Option<Box<str>>,
    slices: BTreeMap<Name, SliceEntry>,
    /// The slices of each Service.
    slices_of: BTreeMap<Name, BTreeSet<Name>>,
    /// Every namespace has the same `kube-root-ca.crt`, which is kept once.
    shared: HashSet<Arc<[u8]>>,
    changes: Changes,
}

/// Ports of ingress-nginx, as a ConfigMap has them.
#[derive(Default)]
pub struct Ports {
    /// The name of the ConfigMap; `None` if it is not to be read.
    name: Option<Name>,
    /// Its identity and its data, if there is one.
    pub held: Option<(Meta, BTreeMap<String, String>)>,
}

impl Ports {
    /// Returns whether this ConfigMap has changed them.
    fn apply(&mut self, name: &Name, object: &k8s_openapi::api::core::v1::ConfigMap) -> bool {
        if self.name.as_ref() != Some(name) {
            return false;
        }
        let data = object.data.clone().unwrap_or_default();
        let is_new = self.held.as_ref().is_none_or(|(_, known)| *known != data);
        if is_new {
            self.held = Some((Meta::of(&object.metadata), data));
        }
        is_new
    }

    /// Returns whether there were any.
    fn remove(&mut self, name: &Name) -> bool {
        self.name.as_ref() == Some(name) && self.held.take().is_some()
    }
}

/// The changes since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Anything may have changed.
    pub all: bool,
    /// The endpoints of these Services have changed, and nothing else depends on them.
    pub endpoints: BTreeSet<Name>,
    /// The present status of these objects has changed.
    pub statuses: BTreeSet<(Kind, Name)>,
    /// These objects, which a controller of ours has written, have changed or are gone.
    pub made: BTreeSet<(Kind, Name)>,
}

impl Index {
    /// An empty index of a process in this zone.
    pub fn in_zone(zone: Option<&str>) -> Self {
        Self { zone: zone.map(Into::into), ..Self::default() }
    }

    /// An empty index of a process with these settings. What ingress-nginx reads is kept only if it is served.
    pub fn of(settings: &Settings) -> Self {
        let config_map = settings.ingress_nginx.as_ref().and_then(|nginx| nginx.config_map.as_ref());
        let ports = |of: fn(&IngressNginx) -> &Option<ServiceName>| {
            let name = settings.ingress_nginx.as_ref().and_then(|nginx| of(nginx).as_ref());
            Ports { name: name.map(|name| Name::new(&name.namespace, &name.name)), held: None }
        };
        Self {
            nginx_prefix: settings.ingress_nginx.as_ref().map(|nginx| nginx.prefix.clone()),
            nginx_config_name: config_map.map(|name| Name::new(&name.namespace, &name.name)),
            nginx_tcp: ports(|nginx| &nginx.tcp_services),
            nginx_udp: ports(|nginx| &nginx.udp_services),
            ..Self::in_zone(settings.zone.as_deref())
        }
    }

    /// Returns the changes since the last call.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Returns the objects whose status has changed since the last call.
    pub fn take_statuses(&mut self) -> BTreeSet<(Kind, Name)> {
        std::mem::take(&mut self.changes.statuses)
    }

    /// Returns the objects written by a controller of ours that have changed since the last call, or are gone.
    pub fn take_made(&mut self) -> BTreeSet<(Kind, Name)> {
        std::mem::take(&mut self.changes.made)
    }

    /// The changes so far.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The headers that a ConfigMap has.
    ///
    /// # Errors
    /// Returns why it has none.
    pub(crate) fn header_map(&self, name: &Name) -> Result<HeaderMap, String> {
        match self.header_maps.get(name) {
            Some(map) => map.clone().map_err(|why| format!("the ConfigMap {name}: {why}")),
            None => Err(self.unknown(Kind::ConfigMap, &name.namespace, &format!("ConfigMap {name}"))),
        }
    }

    /// Whether an annotation, or the ConfigMap of ingress-nginx, names a ConfigMap for its headers.
    fn is_header_map(&self, name: &Name) -> bool {
        let is_it = |reference: &str, namespace: &str| {
            named_header_map(reference.trim(), namespace) == (&*name.namespace, &*name.name)
        };
        let config = self.nginx_config.iter().flatten();
        config.filter(|(key, _)| HEADER_MAP_OPTIONS.contains(&key.as_str())).any(|(_, reference)| is_it(reference, ""))
            || self.ingresses.iter().any(|(of, entry)| {
                let references = HEADER_MAP_KEYS.iter().filter_map(|key| entry.nginx.get(*key));
                references.into_iter().any(|reference| is_it(reference, &of.namespace))
            })
    }

    fn apply_header_map(&mut self, name: &Name, data: &Option<BTreeMap<String, String>>) {
        let data = data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
        let map: Result<HeaderMap, Box<str>> = HeaderMap::of(data).map_err(Into::into);
        if self.header_maps.get(name) != Some(&map) {
            self.header_maps.insert(name.clone(), map);
            // Before the first translation, everything has changed anyway, and there may be thousands of both.
            self.changes.all = self.changes.all || self.is_header_map(name);
        }
    }

    /// The message about an unknown object: it does not exist, or objects of its kind cannot be read. `what` names the object.
    pub(crate) fn unknown(&self, kind: Kind, namespace: &str, what: &str) -> String {
        match self.why_unread(kind, namespace) {
            None => format!("there is no {what}"),
            Some(why) => format!("it is not known whether there is a {what}: {why}"),
        }
    }

    /// A sentence that says why objects of this kind and namespace cannot be read; `None` if they can.
    pub(crate) fn why_unread(&self, kind: Kind, namespace: &str) -> Option<String> {
        let is_about = |((unread, scope), _): &(&Scoped, _)| {
            *unread == kind && scope.as_ref().is_none_or(|scope| **scope == *namespace)
        };
        self.unreadable.iter().find(is_about).map(|(about, why)| why.told(about))
    }

    /// The slices of a Service, sorted by name.
    pub fn slices_of(&self, service: &Name) -> impl Iterator<Item = &SliceEntry> {
        self.slices_of.get(service).into_iter().flatten().filter_map(|slice| self.slices.get(slice))
    }

    /// The slices of all Services.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &SliceEntry> {
        self.slices.values()
    }

    /// Whether this Service or EndpointSlice exists.
    pub(crate) fn has(&self, (kind, name): &(Kind, Name)) -> bool {
        match kind {
            Kind::Slice => self.slices.contains_key(name),
            _ => self.services.contains_key(name),
        }
    }

    /// Adds or replaces an object.
    pub fn apply(&mut self, object: Object) {
        match object {
            Object::GatewayClass(object) => {
                let (name, entry) = ClassEntry::of(*object);
                set(&mut self.changes, Kind::GatewayClass, &mut self.classes, name, entry);
            }
            Object::Gateway(object) => {
                let (name, entry) = GatewayEntry::of(*object);
                set(&mut self.changes, Kind::Gateway, &mut self.gateways, name, entry);
            }
            Object::ListenerSet(object) => {
                let (name, entry) = ListenerSetEntry::of(*object);
                set(&mut self.changes, Kind::ListenerSet, &mut self.listener_sets, name, entry);
            }
            Object::Route(route) => {
                let (kind, name, entry) = route.into_entry();
                let difference = replace(&mut self.routes, (kind, name.clone()), entry);
                self.changes.note(difference, Kind::Route(kind), name);
            }
            Object::Grant(object) => {
                let (name, entry) = GrantEntry::of(*object);
                set(&mut self.changes, Kind::Grant, &mut self.grants, name, entry);
            }
            Object::Policy(object) => {
                let (name, entry) = PolicyEntry::of(*object);
                set(&mut self.changes, Kind::Policy, &mut self.policies, name, entry);
            }
            Object::Traffic(object) => {
                let (name, entry) = TrafficEntry::of(*object);
                set(&mut self.changes, Kind::Traffic, &mut self.traffic, name, entry);
            }
            Object::Parameters(object) => {
                let (name, entry) = ParametersEntry::of(*object);
                set(&mut self.changes, Kind::Parameters, &mut self.parameters, name, entry);
            }
            Object::Ingress(object) => {
                let (name, entry) = IngressEntry::of(*object, self.nginx_prefix.as_ref());
                set(&mut self.changes, Kind::Ingress, &mut self.ingresses, name, entry);
            }
            Object::IngressClass(object) => {
                let (name, entry) = IngressClassEntry::of(*object);
                set(&mut self.changes, Kind::IngressClass, &mut self.ingress_classes, name, entry);
            }
            Object::Service(object) => {
                self.apply_made(Kind::Service, &object.metadata);
                let (name, entry) = ServiceEntry::of(*object);
                set(&mut self.changes, Kind::Service, &mut self.services, name, entry);
            }
            Object::Secret(object) => {
                let (name, new) = SecretEntry::of(*object, self.nginx_prefix.is_some());
                let entry = SecretEntry::after(self.secrets.get(&name), new);
                set(&mut self.changes, Kind::Secret, &mut self.secrets, name, entry);
            }
            Object::Credentials(object) => {
                let (name, entry) = CredentialsEntry::of(object.0);
                set(&mut self.changes, Kind::Credentials, &mut self.credentials, name, entry);
            }
            Object::ConfigMap(object) => self.apply_config_map(*object),
            Object::Namespace(object) => self.apply_namespace(&object.metadata),
            Object::Definition(object) => {
                let (name, entry) = DefinitionEntry::of(&object);
                set(&mut self.changes, Kind::Definition, &mut self.definitions, name, entry);
            }
            Object::Slice(object) => {
                self.apply_made(Kind::Slice, &object.metadata);
                if let Some((name, entry)) = SliceEntry::of(*object, self.zone.as_deref()) {
                    self.apply_slice(name, entry);
                }
            }
        }
    }

    fn apply_namespace(&mut self, metadata: &ObjectMeta) {
        let name = Name::new("", metadata.name.as_deref().unwrap_or_default());
        let labels = metadata.labels.clone().unwrap_or_default();
        if &*name.name == "kube-system" {
            let uid = metadata.uid.as_deref().map(Box::from);
            self.changes.all |= self.cluster_uid != uid;
            self.cluster_uid = uid;
        }
        if self.namespaces.get(&name) != Some(&labels) {
            self.namespaces.insert(name, labels);
            self.changes.all = true;
        }
    }

    fn apply_made(&mut self, kind: Kind, metadata: &ObjectMeta) {
        let (about, new) = ((kind, entry::name_of(metadata)), MadeEntry::of(metadata));
        let old = self.made.get(&about);
        if old == new.as_ref() {
            return;
        }
        // A Service that belongs to another Gateway than before, or to none, takes the name of a Service that is wanted, or gives it free.
        let belongs_as_before = match (old, &new) {
            (Some(old), Some(new)) => old.belongs_as(new),
            _ => false,
        };
        self.changes.all |= kind == Kind::Service && !belongs_as_before;
        self.changes.made.insert(about.clone());
        match new {
            Some(new) => drop(self.made.insert(about, new)),
            None => drop(self.made.remove(&about)),
        }
    }

    fn apply_slice(&mut self, name: Name, entry: SliceEntry) {
        if self.slices.get(&name) == Some(&entry) {
            return;
        }
        // It may have belonged to another Service.
        self.remove_slice(&name);
        self.changes.endpoints.insert(entry.service.clone());
        self.slices_of.entry(entry.service.clone()).or_default().insert(name.clone());
        self.slices.insert(name, entry);
    }

    /// Gives back what a list of many objects has left unused. Objects arrive in the order of their names, and a map that grows at its end
    /// has nodes that are half full.
    pub(crate) fn pack(&mut self) {
        pack(&mut self.routes);
        pack(&mut self.services);
        pack(&mut self.slices);
        pack(&mut self.slices_of);
    }

    fn remove_slice(&mut self, name: &Name) {
        let Some(old) = self.slices.remove(name) else { return };
        if let Some(slices) = self.slices_of.get_mut(&old.service) {
            slices.remove(name);
            if slices.is_empty() {
                self.slices_of.remove(&old.service);
            }
        }
        self.changes.endpoints.insert(old.service);
    }

    fn apply_config_map(&mut self, object: k8s_openapi::api::core::v1::ConfigMap) {
        let name = entry::name_of(&object.metadata);
        if self.nginx_config_name.as_ref() == Some(&name) && self.nginx_config != object.data {
            self.nginx_config = Some(object.data.clone().unwrap_or_default());
            self.changes.all = true;
        }
        for ports in [&mut self.nginx_tcp, &mut self.nginx_udp] {
            self.changes.all |= ports.apply(&name, &object);
        }
        if self.nginx_prefix.is_some() {
            self.apply_header_map(&name, &object.data);
        }
        let text = object.data.and_then(|mut data| data.remove("ca.crt"));
        let Some(text) = text else {
            self.changes.all |= self.authorities.remove(&name).is_some();
            return;
        };
        let new = match self.shared.get(text.as_bytes()) {
            // The same text was checked before.
            Some(held) => AuthorityEntry::Good { text: held.clone(), crl: None },
            None => AuthorityEntry::of(text.as_bytes()),
        };
        if self.authorities.get(&name) == Some(&new) {
            return;
        }
        if let AuthorityEntry::Good { text, .. } = &new {
            self.shared.insert(text.clone());
        }
        self.authorities.insert(name, new);
        self.shared.retain(|text| Arc::strong_count(text) > 1);
        self.changes.all = true;
    }

    /// Removes an object.
    pub fn remove(&mut self, kind: Kind, name: &Name) {
        let was_there = match kind {
            Kind::GatewayClass => self.classes.remove(name).is_some(),
            Kind::Gateway => self.gateways.remove(name).is_some(),
            Kind::ListenerSet => self.listener_sets.remove(name).is_some(),
            Kind::Route(kind) => self.routes.remove(&(kind, name.clone())).is_some(),
            Kind::Grant => self.grants.remove(name).is_some(),
            Kind::Policy => self.policies.remove(name).is_some(),
            Kind::Traffic => self.traffic.remove(name).is_some(),
            Kind::Parameters => self.parameters.remove(name).is_some(),
            Kind::Ingress => self.ingresses.remove(name).is_some(),
            Kind::IngressClass => self.ingress_classes.remove(name).is_some(),
            Kind::Service => self.services.remove(name).is_some(),
            Kind::Secret => self.secrets.remove(name).is_some(),
            Kind::Credentials => self.credentials.remove(name).is_some(),
            Kind::ConfigMap => {
                let tcp = self.nginx_tcp.remove(name);
                let udp = self.nginx_udp.remove(name);
                let headers = self.header_maps.remove(name).is_some() && self.is_header_map(name);
                self.authorities.remove(name).is_some() || tcp || udp || headers
            }
            Kind::Namespace => self.namespaces.remove(name).is_some(),
            Kind::Definition => self.definitions.remove(name).is_some(),
            Kind::Slice => {
                self.remove_slice(name);
                false
            }
        };
        self.changes.all |= was_there;
        let about = (kind, name.clone());
        if self.made.remove(&about).is_some() {
            self.changes.made.insert(about);
        }
    }

    /// The names of all objects of a kind. After a list, those that were not in it are gone.
    pub fn names(&self, kind: Kind) -> BTreeSet<Name> {
        match kind {
            Kind::GatewayClass => self.classes.keys().cloned().collect(),
            Kind::Gateway => self.gateways.keys().cloned().collect(),
            Kind::ListenerSet => self.listener_sets.keys().cloned().collect(),
            Kind::Route(kind) => {
                self.routes.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name.clone()).collect()
            }
            Kind::Grant => self.grants.keys().cloned().collect(),
            Kind::Policy => self.policies.keys().cloned().collect(),
            Kind::Traffic => self.traffic.keys().cloned().collect(),
            Kind::Parameters => self.parameters.keys().cloned().collect(),
            Kind::Ingress => self.ingresses.keys().cloned().collect(),
            Kind::IngressClass => self.ingress_classes.keys().cloned().collect(),
            Kind::Service => self.services.keys().cloned().collect(),
            Kind::Secret => self.secrets.keys().cloned().collect(),
            Kind::Credentials => self.credentials.keys().cloned().collect(),
            Kind::ConfigMap => {
                let ports = [&self.nginx_tcp, &self.nginx_udp].into_iter().filter(|ports| ports.held.is_some());
                let ports = ports.filter_map(|ports| ports.name.as_ref());
                self.authorities.keys().chain(ports).chain(self.header_maps.keys()).cloned().collect()
            }
            Kind::Namespace => self.namespaces.keys().cloned().collect(),
            Kind::Definition => self.definitions.keys().cloned().collect(),
            Kind::Slice => self.slices.keys().cloned().collect(),
        }
    }
}

/// The difference between two states of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// Nothing.
    None,
    /// Only its status has changed.
    Status,
    /// It may affect anything.
    All,
}

impl Changes {
    fn note(&mut self, difference: Difference, kind: Kind, name: Name) {
        match difference {
            Difference::None => {}
            Difference::Status => drop(self.statuses.insert((kind, name))),
            Difference::All => self.all = true,
        }
    }
}

/// Makes the map anew from its sorted entries, which fills its nodes.
fn pack<K: Ord, E>(map: &mut BTreeMap<K, E>) {
    *map = std::mem::take(map).into_iter().collect();
}

fn set<E: entry::IndexEntry>(changes: &mut Changes, kind: Kind, map: &mut BTreeMap<Name, E>, name: Name, new: E) {
    let difference = replace(map, name.clone(), new);
    changes.note(difference, kind, name);
}

fn replace<K: Ord, E: entry::IndexEntry>(map: &mut BTreeMap<K, E>, key: K, new: E) -> Difference {
    let difference = map.get(&key).map_or(Difference::All, |old| new.difference(old));
    map.insert(key, new);
    difference
}

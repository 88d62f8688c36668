//! The Service of a Gateway that has labels or annotations for its infrastructure, and the EndpointSlices of that Service.
//!
//! All Gateways share the same proxies, so a Gateway needs no resource of its own. It gets one if `spec.infrastructure` asks for it: a
//! Service through which a cloud can give this Gateway a balancer with an address and settings of its own. The Service is in the namespace
//! of the Gateway, as the API wants it. A selector finds pods of the same namespace only, so we write the EndpointSlices ourselves.
//!
//! | the Gateway is served | type of the Service | its endpoints |
//! |---|---|---|
//! | behind `--publish-service` | that of the Service named there | the endpoints of the Service named there |
//! | at addresses of a pool, or at `--publish-address` | ClusterIP | those addresses |
//!
//! The parameters of its class may replace these arguments.
//!
//! This module says what to write. Nothing is taken over from others: an object belongs to a Gateway if we have written it for it
//! ([`MadeEntry`]).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use serde_json::{Value, json};

use super::gateway::{Gateways, Plan};
use super::reference::Why;
use super::{Circumstances, publish_service};
use crate::index::{
    GatewayEntry, Index, Kind, MadeEntry, Meta, Name, RECORD, SERVICE_LABEL, ServiceEntry, SliceEndpoint, Standing,
};
use crate::objects::{GROUP, GatewayAddress, Text};
use crate::settings::{Published, Settings};

/// The most endpoints that the API server accepts in one slice.
const ENDPOINTS_MAX: usize = 1000;

/// The label that names the controller of a slice, and its value. Other controllers leave such slices alone.
const MANAGED_BY: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", "steelyard.io");

/// The slices of a Service: what follows its name, the type of their addresses, and whether that is IPv4.
const FAMILIES: [(&str, &str, bool); 2] = [("-ipv4", "IPv4", true), ("-ipv6", "IPv6", false)];

/// A version that no object has, because the first write to an empty etcd gets a higher one. A write that names it creates an object or
/// fails: it never changes an object that we do not know yet.
const NO_VERSION: &str = "1";

/// What to write for all Gateways.
#[derive(Default)]
pub(crate) struct Infrastructure {
    /// The Services, by their names.
    services: BTreeMap<Name, GatewayService>,
    /// Objects that we wrote and that their Gateways no longer ask for.
    unwanted: BTreeSet<(Kind, Name)>,
    /// The endpoints of each Service whose endpoints a Service of a Gateway has.
    pods: BTreeMap<Name, Vec<SliceEndpoint>>,
}

/// The Service of one Gateway.
#[derive(PartialEq)]
struct GatewayService {
    gateway: Name,
    uid: Box<str>,
    class: Text,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    ports: Ports,
    /// The fields of its spec except for the ports.
    spec: Value,
    endpoints: Endpoints,
}

/// The endpoints of the Service of a Gateway.
#[derive(PartialEq)]
enum Endpoints {
    /// Those of this Service, in front of the pods.
    Of(Name),
    /// These.
    These(Vec<SliceEndpoint>),
}

/// The names of ports: by number, and by whether the transport is UDP.
type Ports = BTreeMap<(u16, bool), String>;

/// The Service that a Gateway asks for.
pub(crate) struct Asked {
    pub(crate) name: Name,
    /// It exists, and we have written it for this Gateway.
    is_there: bool,
    /// An object of its name, or of the name of one of its slices, is not this Gateway's.
    is_taken: bool,
    /// Why it is not as the Gateway asks for it.
    pub(crate) trouble: Option<Why>,
}

/// A write that is due.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Making {
    /// Apply this, unless the object has changed since.
    Apply(Value),
    /// Delete the object, unless it has changed since.
    Delete(Meta),
}

/// The Service that a Gateway asks for; `None` if it asks for none.
pub(crate) fn asked(
    index: &Index,
    settings: &Settings,
    circumstances: &Circumstances,
    gateway: &Name,
    entry: &GatewayEntry,
) -> Option<Asked> {
    let infrastructure = entry.spec.infrastructure.as_ref()?;
    if infrastructure.labels.is_empty() && infrastructure.annotations.is_empty() {
        return None;
    }
    let name = Name::new(&gateway.namespace, &format!("{}-{}", gateway.name, entry.spec.gateway_class_name));
    let is_made =
        |about: &(Kind, Name)| index.made.get(about).is_some_and(|made| is_ours(made, settings, &entry.meta.uid));
    let taken = objects(&name).find(|about| index.has(about) && !is_made(about));
    let failed = objects(&name).find_map(|about| Some((circumstances.unmade.get(&about)?, about)));
    let trouble = if let Some((kind, name)) = &taken {
        let kind = kind.told().1;
        let message = format!("the {kind} {name} exists, but not for this Gateway: delete it, or rename the Gateway");
        Some(Why::new("NameTaken", message))
    } else if let Some((why, (kind, name))) = failed {
        Some(Why::new("NotWritten", format!("cannot write the {} {name}: {why}", kind.told().1)))
    } else {
        no_way(index, settings)
    };
    let is_there = is_made(&(Kind::Service, name.clone()));
    Some(Asked { name, is_there, is_taken: taken.is_some(), trouble })
}

/// Why it is not known where a Service could lead; `None` if it is.
fn no_way(index: &Index, settings: &Settings) -> Option<Why> {
    let is_address = |published: &Published| matches!(published, Published::Address(_));
    match front(settings) {
        Some(front) if !index.services.contains_key(&front) => {
            let service = format!("Service {front}, which --publish-service names");
            Some(Why::new("NoService", index.unknown(Kind::Service, &front.namespace, &service)))
        }
        None if settings.gateway_pools.is_empty() && !settings.published().iter().any(is_address) => Some(Why::new(
            "NoAddress",
            "the addresses of this controller are not known: set --publish-service, or --publish-address to an address",
        )),
        _ => None,
    }
}

/// The Service that leads to the pods; `None` if clients use addresses of this controller.
fn front(settings: &Settings) -> Option<Name> {
    publish_service(settings).filter(|_| settings.gateway_pools.is_empty())
}

impl Asked {
    /// The Service by which clients reach this Gateway, and its addresses; `None` if that is the same as for other Gateways. A fault takes
    /// no address back, so a Service that we can no longer write still counts.
    pub(crate) fn way<'i>(&self, index: &'i Index, settings: &Settings) -> Option<(Name, &'i [Published])> {
        front(settings)?;
        let service = index.services.get(&self.name).filter(|_| self.is_there);
        let is_way = service.is_some() || self.trouble.is_none();
        is_way.then(|| (self.name.clone(), service.map(|service| &*service.reached_at).unwrap_or_default()))
    }
}

fn is_ours(made: &MadeEntry, settings: &Settings, uid: &str) -> bool {
    *made.controller == *settings.controller_name && *made.owner.1 == *uid
}

/// A Service and its slices.
fn objects(service: &Name) -> impl Iterator<Item = (Kind, Name)> + use<> {
    let slices = FAMILIES.map(|(suffix, ..)| (Kind::Slice, with_suffix(service, suffix)));
    std::iter::once((Kind::Service, service.clone())).chain(slices)
}

fn with_suffix(service: &Name, suffix: &str) -> Name {
    Name::new(&service.namespace, &format!("{}{suffix}", service.name))
}

/// The Service that an object of ours is, or belongs to, and the family of a slice.
fn service_of((kind, name): &(Kind, Name)) -> Option<(Name, Option<(&'static str, bool)>)> {
    if *kind == Kind::Service {
        return Some((name.clone(), None));
    }
    FAMILIES.iter().find_map(|(suffix, family, is_ipv4)| {
        let service = name.name.strip_suffix(suffix)?;
        Some((Name::new(&name.namespace, service), Some((*family, *is_ipv4))))
    })
}

/// Decides what to write for all Gateways.
pub(super) fn translate(index: &Index, settings: &Settings, gateways: &Gateways<'_>) -> Infrastructure {
    let mut pods = BTreeMap::new();
    let mut ports = ports(gateways);
    let mut services = BTreeMap::new();
    for plan in &gateways.plans {
        let Some(asked) = &plan.asked else { continue };
        let led = match front(&plan.class.settings) {
            Some(front) => index.services.get(&front).map(|like| (spec_like(like), Endpoints::Of(front))),
            None => {
                let addresses: Vec<_> = plan.published.iter().filter_map(endpoint).collect();
                (!addresses.is_empty()).then(|| (inside(&addresses), Endpoints::These(addresses)))
            }
        };
        let ports = ports.remove(plan.name).unwrap_or_default();
        // If nothing of it can be served at present, or if it is not known where it should lead, the Service stays as it is.
        let Some((spec, endpoints)) =
            led.filter(|_| !asked.is_taken && !ports.is_empty() && !plan.class.lacks_parameters)
        else {
            continue;
        };
        if let Endpoints::Of(front) = &endpoints {
            pods.entry(front.clone()).or_insert_with(|| endpoints_of(index, front));
        }
        services.insert(asked.name.clone(), GatewayService::of(plan, ports, spec, endpoints));
    }
    Infrastructure { services, unwanted: unwanted(index, settings, gateways), pods }
}

/// The ports of each Gateway that asks for a Service.
fn ports<'i>(gateways: &Gateways<'i>) -> BTreeMap<&'i Name, Ports> {
    let asking = gateways.plans.iter().filter(|plan| plan.asked.is_some());
    let mut all: BTreeMap<&Name, Ports> = asking.map(|plan| (plan.name, Ports::new())).collect();
    for listener in gateways.listeners.iter().filter(|listener| listener.is_accepted() && !listener.places.is_empty()) {
        if let Some(ports) = all.get_mut(listener.gateway) {
            let (port, protocol) = (listener.spec.port, listener.spec.protocol.to_ascii_lowercase());
            ports.entry((port, listener.is_udp())).or_insert_with(|| format!("{protocol}-{port}"));
        }
    }
    all
}

/// What we wrote for Gateways that no longer ask for it. If a Gateway is gone, the cluster removes what it owned.
fn unwanted(index: &Index, settings: &Settings, gateways: &Gateways<'_>) -> BTreeSet<(Kind, Name)> {
    let asked: BTreeSet<&Name> =
        gateways.plans.iter().filter_map(|plan| plan.asked.as_ref()).map(|asked| &asked.name).collect();
    let known: BTreeSet<&Name> = gateways.plans.iter().map(|plan| plan.name).collect();
    let is_unwanted = |about: &(Kind, Name), made: &MadeEntry| {
        let owner = Name::new(&about.1.namespace, &made.owner.0);
        let Some(gateway) = index.gateways.get(&owner).filter(|gateway| gateway.meta.uid == made.owner.1) else {
            return false;
        };
        let is_of_class = gateway.spec.gateway_class_name == *made.class;
        // Another controller of this name may serve other classes. A class that is not known now may only be about to be installed again.
        is_ours(made, settings, &made.owner.1)
            && settings.gateway_class.as_ref().is_none_or(|only| *only == *made.class)
            && service_of(about).is_some_and(|(service, _)| !asked.contains(&service))
            && (!is_of_class || known.contains(&owner))
    };
    let made = index.made.iter().filter(|(about, made)| is_unwanted(about, made));
    made.map(|(about, _)| about.clone()).collect()
}

/// A spec like that of the Service in front of the pods: what its operator allows to be opened to the outside, and how.
fn spec_like(service: &ServiceEntry) -> Value {
    let Some(like) = &service.load_balancer else { return inside(&[]) };
    let mut spec = json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": if like.local { "Local" } else { "Cluster" },
    });
    if let Some(class) = &like.class {
        spec["loadBalancerClass"] = (&**class).into();
    }
    let sources: Vec<String> =
        like.sources.iter().map(ToString::to_string).chain(like.bad_sources.iter().map(ToString::to_string)).collect();
    if !sources.is_empty() {
        spec["loadBalancerSourceRanges"] = sources.into();
    }
    if like.families == (true, true) {
        spec["ipFamilyPolicy"] = "PreferDualStack".into();
    }
    spec
}

/// The spec of a Service for clients inside of the cluster.
fn inside(endpoints: &[SliceEndpoint]) -> Value {
    let mut spec = json!({"type": "ClusterIP"});
    if FAMILIES.iter().all(|(.., is_ipv4)| endpoints.iter().any(|at| at.address.is_ipv4() == *is_ipv4)) {
        spec["ipFamilyPolicy"] = "PreferDualStack".into();
    }
    spec
}

/// The endpoint for an address of a Gateway; `None` if it is a name.
fn endpoint(address: &GatewayAddress) -> Option<SliceEndpoint> {
    let address = address.value.as_deref()?.parse().ok()?;
    Some(SliceEndpoint { address, standing: Standing::Ready, zone: model::Zone::Unknown, node: None, hints: None })
}

/// The endpoints of a Service that serve, each once, sorted by address.
fn endpoints_of(index: &Index, service: &Name) -> Vec<SliceEndpoint> {
    let mut all: BTreeMap<IpAddr, &SliceEndpoint> = BTreeMap::new();
    for endpoint in index.slices_of(service).flat_map(|slice| &slice.endpoints) {
        match endpoint.standing {
            Standing::Ready => drop(all.insert(endpoint.address, endpoint)),
            Standing::Leaving => drop(all.entry(endpoint.address).or_insert(endpoint)),
            Standing::Out => {}
        }
    }
    all.into_values().cloned().collect()
}

impl GatewayService {
    fn of(plan: &Plan<'_>, ports: Ports, spec: Value, endpoints: Endpoints) -> Self {
        let asked = plan.entry.spec.infrastructure.clone().unwrap_or_default();
        Self {
            gateway: plan.name.clone(),
            uid: plan.entry.meta.uid.clone(),
            class: plan.entry.spec.gateway_class_name.as_str().into(),
            labels: asked.labels,
            annotations: asked.annotations,
            ports,
            spec,
            endpoints,
        }
    }

    /// The Service as an object.
    fn service(&self, name: &Name) -> Value {
        let port = |((number, is_udp), name): (&(u16, bool), &String)| json!({"name": name, "port": number, "targetPort": number, "protocol": protocol(*is_udp)});
        let mut spec = self.spec.clone();
        spec["ports"] = self.ports.iter().map(port).collect();
        json!({"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(name, &[]), "spec": spec})
    }

    /// A slice with these endpoints as an object.
    fn slice(&self, name: &Name, service: &Name, family: &str, endpoints: &[&SliceEndpoint]) -> Value {
        let port = |((number, is_udp), name): (&(u16, bool), &String)| json!({"name": name, "port": number, "protocol": protocol(*is_udp)});
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": self.metadata(name, &[(SERVICE_LABEL, &*service.name), MANAGED_BY]),
            "addressType": family,
            "ports": self.ports.iter().map(port).collect::<Vec<_>>(),
            "endpoints": endpoints.iter().take(ENDPOINTS_MAX).map(|endpoint| written(endpoint)).collect::<Vec<_>>(),
        })
    }

    /// Labels of ours take precedence over those that the Gateway asks for.
    fn metadata(&self, name: &Name, more: &[(&str, &str)]) -> Value {
        let mut labels: BTreeMap<String, &str> =
            self.labels.iter().map(|(key, value)| (key.clone(), value.as_str())).collect();
        labels.insert(format!("{GROUP}/gateway-name"), &self.gateway.name);
        labels.insert(format!("{GROUP}/gateway-class-name"), &self.class);
        labels.extend(more.iter().map(|(key, value)| ((*key).to_owned(), *value)));
        json!({
            "name": &*name.name,
            "namespace": &*name.namespace,
            "labels": labels,
            "annotations": self.annotations,
            "ownerReferences": [{
                "apiVersion": format!("{GROUP}/v1"),
                "kind": "Gateway",
                "name": &*self.gateway.name,
                "uid": self.uid,
                "controller": true,
            }],
        })
    }
}

fn protocol(is_udp: bool) -> &'static str {
    if is_udp { "UDP" } else { "TCP" }
}

/// An endpoint of a slice.
fn written(endpoint: &SliceEndpoint) -> Value {
    let is_ready = endpoint.standing == Standing::Ready;
    let mut value = json!({
        "addresses": [endpoint.address],
        "conditions": {"ready": is_ready, "serving": true, "terminating": !is_ready},
    });
    if let Some(node) = &endpoint.node {
        value["nodeName"] = (&**node).into();
    }
    value
}

impl Infrastructure {
    /// The objects that may have to be written because they are not as `before`.
    pub(crate) fn changed_since(&self, before: &Self) -> Vec<(Kind, Name)> {
        let have_moved = |service: &GatewayService| match &service.endpoints {
            Endpoints::Of(front) => self.pods.get(front) != before.pods.get(front),
            Endpoints::These(_) => false,
        };
        let is_new = |(name, service): &(&Name, &GatewayService)| {
            have_moved(service) || before.services.get(*name) != Some(*service)
        };
        let changed = self.services.iter().filter(is_new);
        changed.flat_map(|(name, _)| objects(name)).chain(self.unwanted.iter().cloned()).collect()
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<(Kind, Name)> {
        self.changed_since(&Self::default())
    }

    /// Updates the endpoints after those of these Services have changed, and returns the objects that may have to be written.
    pub(crate) fn follow(&mut self, index: &Index, services: &BTreeSet<Name>) -> Vec<(Kind, Name)> {
        let mut moved = BTreeSet::new();
        for (front, pods) in self.pods.iter_mut().filter(|(front, _)| services.contains(*front)) {
            let now = endpoints_of(index, front);
            if *pods != now {
                *pods = now;
                moved.insert(front);
            }
        }
        let has_moved =
            |service: &GatewayService| matches!(&service.endpoints, Endpoints::Of(front) if moved.contains(front));
        self.services.iter().filter(|(_, service)| has_moved(service)).flat_map(|(name, _)| objects(name)).collect()
    }

    /// The write that this object needs; `None` if it is as it should be.
    pub(crate) fn write(&self, index: &Index, settings: &Settings, about: &(Kind, Name)) -> Option<Making> {
        let made = index.made.get(about);
        if self.unwanted.contains(about) {
            return Some(Making::Delete(made?.meta.clone()));
        }
        let (name, slice) = service_of(about)?;
        let service = self.services.get(&name)?;
        let made = made.filter(|made| is_ours(made, settings, &service.uid));
        let mut object = match slice {
            None => service.service(&name),
            Some((family, is_ipv4)) => {
                let all = match &service.endpoints {
                    Endpoints::Of(front) => self.pods.get(front)?,
                    Endpoints::These(addresses) => addresses,
                };
                let endpoints: Vec<_> = all.iter().filter(|at| at.address.is_ipv4() == is_ipv4).collect();
                // An existing slice whose last endpoint is gone stays, because there will be others.
                if endpoints.is_empty() && made.is_none() {
                    return None;
                }
                service.slice(&about.1, &name, family, &endpoints)
            }
        };
        let digest = digest(&object);
        if made.is_some_and(|made| *made.digest == *digest) {
            return None;
        }
        let record = format!("{} {} {digest}", settings.controller_name, service.class);
        object["metadata"]["annotations"][RECORD] = record.into();
        object["metadata"]["resourceVersion"] = made.map_or(NO_VERSION, |made| &*made.meta.resource_version).into();
        Some(Making::Apply(object))
    }
}

/// The digest of an object. If another version of the hash function gives another digest, the object is written once more.
fn digest(object: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    object.to_string().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests;

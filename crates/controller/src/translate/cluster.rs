//! Clusters: the Services of a rule, and their endpoints.
//!
//! A cluster is made of a port of a Service. The model can only split HTTP traffic over clusters. Elsewhere, several ports become one
//! cluster whose endpoints have weights in proportion: each port gets exactly its share as long as all of its endpoints are usable.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use model::{
    Certificate, Cluster, ClusterId, ClusterProtocol, ClusterTls, Endpoint, EndpointAddress, Outlier, Outside,
    ProxyProtocol, Sticky, StickyToken, SubjectAltName, Transport, Zone,
};

use super::policy::Authority;
use super::reference::Why;
use super::traffic::{ClusterScope, Scope, UpstreamTls};
use crate::index::{Index, Keypair, Name, ServicePort, SliceEndpoint, Standing};
use crate::ingress_nginx::OutsideHost;

/// Connections to each address of a host outside of the cluster. What waits for an answer holds one, and such a host may give none.
const OUTSIDE_CONNECTIONS_MAX: usize = 256;

/// Of these, the ones without work that each worker keeps.
const OUTSIDE_IDLE_CONNECTIONS_MAX: usize = 16;

/// The largest weight in the model.
const WEIGHT_MAX: u64 = 65_535;

/// A port of a Service, and its share of the traffic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Share {
    pub(crate) service: Name,
    pub(crate) port: u16,
    pub(crate) transport: Transport,
    pub(crate) weight: u32,
    /// The port speaks HTTP/2.
    pub(crate) h2: bool,
    /// The PROXY protocol header that the port expects.
    pub(crate) proxy: Option<ProxyProtocol>,
}

impl Share {
    /// A TCP port of a Service, alone.
    ///
    /// # Errors
    /// Returns a sentence if what the port expects of connections is not known.
    pub(crate) fn of(port: &ServicePort, service: Name) -> Result<Self, String> {
        let proxy = port.proxy_protocol()?;
        Ok(Self { service, port: port.port, transport: Transport::Tcp, weight: 1, h2: port.speaks_h2c(), proxy })
    }
}

/// What is presented to endpoints over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Identity {
    /// No certificate.
    #[default]
    Anonymous,
    /// The certificate in this Secret.
    Secret(Name),
    /// A certificate that cannot be found. Endpoints with TLS are not used then: they would take us for somebody else.
    Missing,
}

/// All clusters, each once.
#[derive(Default)]
pub(crate) struct Clusters {
    pub(crate) list: Vec<Arc<Cluster>>,
    /// The first ones, which come from the operator's settings. No policy applies to them.
    own: usize,
    /// The ports of each cluster: `made_of.len() == list.len()`.
    made_of: Vec<Vec<Share>>,
    ids: HashMap<(Identity, ClusterScope), HashMap<Vec<Share>, ClusterId>>,
    of_service: HashMap<Name, Vec<usize>>,
    /// Those of hosts outside of the Kubernetes cluster.
    outside: HashMap<(Option<Arc<str>>, OutsideHost), ClusterId>,
    identity: Identity,
    /// The policies of the rule that asks for clusters.
    policies: ClusterScope,
    /// Those of each cluster: `scopes.len() == list.len()`.
    scopes: Vec<ClusterScope>,
    /// The sessions of the rule that asks for clusters.
    session: Option<Sticky>,
}

impl Clusters {
    /// None but these, which no object describes.
    pub(crate) fn beginning_with(own: &[Arc<Cluster>]) -> Self {
        let count = own.len();
        Self {
            list: own.to_vec(),
            own: count,
            made_of: vec![Vec::new(); count],
            scopes: vec![ClusterScope::default(); count],
            ..Self::default()
        }
    }

    /// Sets what clusters with TLS present to their endpoints, from now on.
    pub(crate) fn present(&mut self, identity: &Identity) {
        self.identity.clone_from(identity);
    }

    /// Sets the policies that apply to clusters, besides those of their Services, from now on. Returns those until now.
    pub(crate) fn set_policies(&mut self, policies: ClusterScope) -> ClusterScope {
        std::mem::replace(&mut self.policies, policies)
    }

    /// Sets how clients return to the endpoints of clusters, from now on.
    pub(crate) fn set_session(&mut self, session: Option<Sticky>) {
        self.session = session;
    }

    /// Changes each cluster by its Services and its policies. One for which `change` returns false may not be used.
    pub(crate) fn shape(&mut self, change: impl Fn(&[Name], &Scope, &mut Arc<Cluster>) -> bool) {
        for ((cluster, made_of), of) in self.list.iter_mut().zip(&mut self.made_of).zip(&self.scopes).skip(self.own) {
            let services: Vec<Name> = made_of.iter().map(|share| share.service.clone()).collect();
            // What a rule says of its sessions comes before any policy.
            let session = of.session.as_ref().and_then(|_| cluster.sticky.clone());
            let is_usable = change(&services, &of.scope, cluster);
            if session.is_some() && cluster.sticky != session {
                Arc::make_mut(cluster).sticky = session;
            }
            if of.sessions.is_some()
                && let Some(sticky) = &mut Arc::make_mut(cluster).sticky
            {
                sticky.ingress_nginx.clone_from(&of.sessions);
            }
            if !is_usable {
                let cluster = Arc::make_mut(cluster);
                (cluster.is_missing, cluster.endpoints) = (true, Vec::new());
                // It follows no endpoints.
                made_of.clear();
            }
        }
    }

    /// The cluster of these shares. Without any share it has no endpoints, and stands for references that cannot be resolved.
    ///
    /// # Errors
    /// Returns a sentence if they cannot be one cluster.
    pub(crate) fn of(&mut self, index: &Index, mut shares: Vec<Share>) -> Result<ClusterId, String> {
        shares.retain(|share| share.weight > 0);
        if let [one] = shares.as_mut_slice() {
            one.weight = 1;
        }
        // What stands for references that cannot be resolved has no policies.
        let mut policies = if shares.is_empty() { ClusterScope::default() } else { self.policies.clone() };
        if let Some(session) = self.session.as_ref().filter(|_| !shares.is_empty()) {
            let ttl = session.ttl.map_or_else(String::new, |ttl| format!(":{}s", ttl.as_secs()));
            let (kind, name) = match &session.token {
                StickyToken::Cookie(name) => ("cookie", name),
                StickyToken::Header(name) => ("header", name),
            };
            let label = format!("+{kind}={name}{ttl}");
            policies.label += &label;
            policies.session = Some(label);
        }
        let known = |ids: &HashMap<_, HashMap<Vec<Share>, ClusterId>>, variant: &(Identity, ClusterScope)| {
            ids.get(variant).and_then(|ids| ids.get(&shares)).copied()
        };
        let policies_tls = policies.tls.clone();
        let variant = (self.identity.clone(), policies);
        if let Some(id) = known(&self.ids, &variant) {
            return Ok(id);
        }
        let proxy = shares.first().and_then(|share| share.proxy);
        if shares.iter().any(|share| share.proxy != proxy) {
            return Err(
                "backends that expect different PROXY protocol headers, or none, cannot share a rule".to_owned()
            );
        }
        let mut tls = tls(index, &shares)?;
        if let Some(wanted) = policies_tls.filter(|_| matches!(tls, Ok(None))) {
            tls = annotated(index, &wanted).map(Some);
        }
        // In the clear, nothing is presented.
        let (identity, policies) = variant;
        let identity = if matches!(tls, Ok(None)) { Identity::Anonymous } else { identity };
        let variant = (identity, policies);
        if let Some(id) = known(&self.ids, &variant) {
            return Ok(id);
        }
        let (identity, policies) = &variant;
        let mut cluster = Cluster::new(name(&shares, identity) + &policies.label, Vec::new());
        cluster.is_missing = shares.is_empty();
        cluster.sticky = policies.session.as_ref().and(self.session.clone());
        cluster.send_proxy_protocol = proxy;
        // If the required TLS is not possible, the cluster has no endpoints: nothing is sent in the clear instead.
        let made_of = match tls.ok().and_then(|tls| with(index, tls, identity)) {
            Some(tls) => {
                cluster.tls = tls;
                shares.clone()
            }
            None => Vec::new(),
        };
        cluster.endpoints = endpoints(index, &made_of);
        if shares.iter().any(|share| share.h2) {
            cluster.protocol = ClusterProtocol::H2;
        }
        let id = ClusterId(self.list.len());
        self.list.push(Arc::new(cluster));
        for share in &shares {
            let places = self.of_service.entry(share.service.clone()).or_default();
            if places.last() != Some(&id.0) {
                places.push(id.0);
            }
        }
        self.made_of.push(made_of);
        self.scopes.push(policies.clone());
        self.ids.entry(variant).or_default().insert(shares, id);
        Ok(id)
    }

    /// The cluster of a host outside of the Kubernetes cluster. `verify`: with TLS, its certificate must be valid for its name. Each namespace has its
    /// own: connections that one of them holds, and failures that it causes, are not those of another.
    pub(crate) fn outside(&mut self, host: &OutsideHost, outside: Outside, verify: bool) -> ClusterId {
        let key = (outside.namespace.clone(), host.clone());
        if let Some(id) = self.outside.get(&key) {
            return *id;
        }
        let address = match host.name.parse() {
            Ok(ip) => EndpointAddress::Socket(SocketAddr::new(ip, host.port)),
            Err(_) => EndpointAddress::Name { host: host.name.clone(), port: host.port },
        };
        let endpoint = Endpoint { address, weight: 1, priority: 0, zone: Zone::Unknown, host: None };
        let name = match &outside.namespace {
            Some(namespace) => format!("outside/{namespace}/{host}"),
            None => format!("outside/{host}"),
        };
        let mut cluster = Cluster::new(name, vec![endpoint]);
        cluster.tls = host.is_https.then(|| ClusterTls {
            server_name: Some(host.name.clone()),
            subject_alt_names: Vec::new(),
            ca: None,
            certificate: None,
            verify,
        });
        // Nobody sees to it that all addresses of a name are alive. A question has two tries, so a dead one must be left out soon, and all but one may be.
        cluster.outlier = Some(Outlier { consecutive_5xx: 2, max_ejected: 0.9, ..Outlier::default() });
        cluster.panic_threshold = 0.0;
        cluster.limits.connections_max = Some(OUTSIDE_CONNECTIONS_MAX);
        cluster.idle_connections_max = OUTSIDE_IDLE_CONNECTIONS_MAX;
        cluster.outside = Some(outside);
        let id = ClusterId(self.list.len());
        self.list.push(Arc::new(cluster));
        self.made_of.push(Vec::new());
        self.scopes.push(ClusterScope::default());
        self.outside.insert(key, id);
        id
    }

    /// Keeps clusters that have not changed at the same place in memory, so that the planes see that they have not.
    pub(crate) fn keep(&mut self, before: &Self) {
        let before: HashMap<&str, &Arc<Cluster>> =
            before.list.iter().map(|cluster| (cluster.name.as_str(), cluster)).collect();
        for cluster in &mut self.list {
            if let Some(same) = before.get(cluster.name.as_str()).filter(|before| **before == cluster) {
                *cluster = (*same).clone();
            }
        }
    }

    /// The Services that clusters are made of.
    pub(crate) fn services(&self) -> impl Iterator<Item = Name> {
        let services: BTreeSet<&Name> = self.of_service.keys().collect();
        services.into_iter().cloned()
    }

    /// The Services that have no endpoints at any port in use.
    pub(crate) fn empty(&self) -> BTreeSet<Name> {
        // If TLS prevents the use of endpoints, the status of the BackendTLSPolicy says so.
        let has_none = |place: &usize| {
            let is_bare = |cluster: &Arc<Cluster>| cluster.endpoints.is_empty();
            self.list.get(*place).is_some_and(is_bare) && self.made_of.get(*place).is_some_and(|made| !made.is_empty())
        };
        let is_empty = |(_, places): &(&Name, &Vec<usize>)| places.iter().all(has_none);
        self.of_service.iter().filter(is_empty).map(|(name, _)| name.clone()).collect()
    }

    /// Updates the endpoints of these Services. Returns whether any cluster has changed.
    pub(crate) fn follow(&mut self, index: &Index, services: &BTreeSet<Name>) -> bool {
        let places: BTreeSet<usize> =
            services.iter().filter_map(|service| self.of_service.get(service)).flatten().copied().collect();
        let mut changed = false;
        for place in places {
            let (Some(shares), Some(cluster)) = (self.made_of.get(place), self.list.get_mut(place)) else { continue };
            let now = endpoints(index, shares);
            if now != cluster.endpoints {
                changed = true;
                Arc::make_mut(cluster).endpoints = now;
            }
        }
        changed
    }
}

/// The TLS that annotations of ingress-nginx mean: backend-protocol accepts every certificate, and asks for no name.
///
/// # Errors
/// Returns why there are no CA certificates.
fn annotated(index: &Index, wanted: &UpstreamTls) -> Result<ClusterTls, Why> {
    let UpstreamTls { verify, sni } = wanted;
    let mut tls = ClusterTls {
        server_name: sni.clone(),
        subject_alt_names: Vec::new(),
        ca: None,
        certificate: None,
        verify: verify.is_some(),
    };
    if let Some((secret, name)) = verify {
        let authority = Authority::in_secret(index, secret.clone());
        tls.ca = Some(authority.map_err(|why| Why::new("InvalidCACertificateRef", why))?.pem());
        tls.subject_alt_names.push(SubjectAltName::Dns(name.clone()));
    }
    Ok(tls)
}

/// Services with the same name in two namespaces must differ, so the name is like a DNS name.
fn name(shares: &[Share], identity: &Identity) -> String {
    if shares.is_empty() {
        return "nowhere".to_owned();
    }
    let several = shares.len() > 1;
    let one = |share: &Share| {
        let (Name { namespace, name }, port) = (&share.service, share.port);
        let h2 = if share.h2 { "+h2" } else { "" };
        let weight = if several { format!("={}", share.weight) } else { String::new() };
        format!("{name}.{namespace}:{port}{h2}{weight}")
    };
    let identity = match identity {
        Identity::Anonymous => String::new(),
        Identity::Secret(secret) => format!("+as={secret}"),
        Identity::Missing => "+as=nobody".to_owned(),
    };
    shares.iter().map(one).collect::<Vec<_>>().join(",") + &identity
}

/// The TLS settings with the certificate to present; `None` if that cannot be found.
fn with(index: &Index, tls: Option<ClusterTls>, identity: &Identity) -> Option<Option<ClusterTls>> {
    let certificate = match identity {
        Identity::Anonymous => None,
        Identity::Secret(secret) => Some(certificate(secret, index.secrets.get(secret)?.good.as_ref()?)),
        Identity::Missing => return None,
    };
    Some(tls.map(|tls| ClusterTls { certificate, ..tls }))
}

/// The TLS settings that every share wants, or why they are not possible.
///
/// # Errors
/// Returns a sentence if the shares want different settings.
fn tls(index: &Index, shares: &[Share]) -> Result<Result<Option<ClusterTls>, Why>, String> {
    let of = |share: &Share| super::policy::tls(index, &share.service, share.port, share.transport);
    let mut wanted = shares.iter().map(of);
    let first = wanted.next().unwrap_or(Ok(None));
    if wanted.any(|other| other != first) {
        return Err("backends with different BackendTLSPolicies cannot share a rule".to_owned());
    }
    Ok(first)
}

fn endpoints(index: &Index, shares: &[Share]) -> Vec<Endpoint> {
    endpoints_where(index, shares, &|_| true)
}

/// The wanted endpoints of these shares, with weights in proportion.
pub(crate) fn endpoints_where(
    index: &Index,
    shares: &[Share],
    is_wanted: &dyn Fn(&SliceEndpoint) -> bool,
) -> Vec<Endpoint> {
    let of = |share: &Share| addresses(index, &share.service, share.port, share.transport, is_wanted);
    let mut found: Vec<Vec<(SocketAddr, Zone)>> = shares.iter().map(of).collect();
    // Zones would change the shares. And as kube-proxy has it, hints count only if every endpoint has one: Kubernetes writes one slice after
    // another, and the first endpoints with hints must not get all requests.
    let is_unhinted = |(_, zone): &(SocketAddr, Zone)| *zone == Zone::Unknown;
    if shares.len() > 1 || found.iter().flatten().any(is_unhinted) {
        found.iter_mut().flatten().for_each(|(_, zone)| *zone = Zone::Unknown);
    }
    let weights = weights(shares.iter().zip(&found).map(|(share, found)| (share.weight, found.len())));
    let endpoint = |(address, zone): &(SocketAddr, Zone), weight| Endpoint {
        address: EndpointAddress::Socket(*address),
        weight,
        priority: 0,
        zone: *zone,
        host: None,
    };
    // A cluster is kept as long as its Service, so its list has no spare room.
    let mut endpoints = Vec::with_capacity(found.iter().map(Vec::len).sum());
    for (found, weight) in found.iter().zip(weights) {
        endpoints.extend(found.iter().map(|found| endpoint(found, weight)));
    }
    endpoints
}

/// The weight of each endpoint, for shares with these weights and numbers of endpoints: in proportion, and no larger than necessary.
fn weights(shares: impl Iterator<Item = (u32, usize)> + Clone) -> Vec<u32> {
    let used = shares.clone().filter(|(_, count)| *count > 0);
    // The least common multiple of the counts, as long as it stays small: then the weights are exact. Beyond that they are close enough.
    let common = used.clone().fold(1_u64, |common, (_, count)| {
        let next = common / gcd(common, count as u64) * count as u64;
        if next > 1 << 32 { common } else { next }
    });
    let scaled = |(weight, count): (u32, usize)| u64::from(weight) * common / (count as u64).max(1);
    let divisor = used.clone().map(scaled).fold(0, gcd).max(1);
    let largest = used.map(scaled).max().unwrap_or(1) / divisor;
    let shrink = |weight: u64| if largest > WEIGHT_MAX { (weight * WEIGHT_MAX / largest).max(1) } else { weight };
    shares.map(|share| u32::try_from(shrink((scaled(share) / divisor).max(1))).unwrap_or(u32::MAX)).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The endpoints of a port of a Service, each with its own port.
pub(crate) fn each_endpoint<'i>(
    index: &'i Index,
    service: &'i Name,
    port: u16,
    transport: Transport,
) -> impl Iterator<Item = (&'i SliceEndpoint, u16)> {
    let of = index.services.get(service).and_then(|entry| {
        let is_it = |of: &&crate::index::ServicePort| of.port == port && of.transport == transport;
        entry.ports.iter().find(is_it).map(|port| &port.name)
    });
    of.into_iter().flat_map(move |name| {
        index.slices_of(service).flat_map(move |slice| {
            let at = slice.ports.iter().find(|at| at.name == *name && at.transport == transport);
            at.into_iter().flat_map(move |at| slice.endpoints.iter().map(move |endpoint| (endpoint, at.port)))
        })
    })
}

/// The addresses of a port's endpoints: those that are ready, or if none is, those that terminate and still serve. They are sorted and
/// unique, so that every replica has the same list.
fn addresses(
    index: &Index,
    service: &Name,
    port: u16,
    transport: Transport,
    is_wanted: &dyn Fn(&SliceEndpoint) -> bool,
) -> Vec<(SocketAddr, Zone)> {
    let (mut ready, mut leaving) = (BTreeMap::new(), BTreeMap::new());
    for (endpoint, port) in each_endpoint(index, service, port, transport).filter(|(endpoint, _)| is_wanted(endpoint)) {
        let address = SocketAddr::new(endpoint.address, port);
        match endpoint.standing {
            Standing::Ready => drop(ready.insert(address, endpoint.zone)),
            Standing::Leaving => drop(leaving.insert(address, endpoint.zone)),
            Standing::Out => {}
        }
    }
    if ready.is_empty() { leaving } else { ready }.into_iter().collect()
}

/// The certificate in a Secret.
pub(crate) fn certificate(secret: &Name, keypair: &Keypair) -> Certificate {
    Certificate {
        cert: held(format!("Secret {secret} tls.crt"), &keypair.cert),
        key: held(format!("Secret {secret} tls.key"), &keypair.key),
        ocsp: None,
    }
}

/// PEM text in memory instead of a file.
pub(crate) fn held(name: String, text: &Arc<[u8]>) -> model::Pem {
    model::Pem::Held { name: name.into(), text: text.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_in_proportion_to_the_shares() {
        let check = |shares: &[(u32, usize)], expect: &[u32]| {
            assert_eq!(weights(shares.iter().copied()), expect, "{shares:?}");
        };
        check(&[(1, 3)], &[1]);
        check(&[(1, 1), (1, 1)], &[1, 1]);
        check(&[(90, 1), (10, 1)], &[9, 1]);
        check(&[(1, 2), (1, 3)], &[3, 2]);
        check(&[(95, 2), (5, 1)], &[19, 2]);
        check(&[(1, 0), (1, 2)], &[2, 1]);
        check(&[(1_000_000, 1), (1, 1)], &[65_535, 1]);
        check(&[], &[]);
    }
}

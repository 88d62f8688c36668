//! What this node serves of every Service, in the place of kube-proxy.
//!
//! | address | clients | endpoints |
//! |---|---|---|
//! | the cluster's | processes and pods of this node, at the socket | near ones; with `internalTrafficPolicy: Local` those of this node |
//! | the same, with `--cluster-ip-packets` | all others, by packets | the same, which see this node |
//! | external, of a balancer, of this node with a node port | the same | near ones |
//! | the same | all others, by packets | near ones, which see this node; with `externalTrafficPolicy: Local` those of this node, which see the client |
//!
//! `service` has already given the Services of our class their vips for packets.
//!
//! Whoever may write a Service writes its external IPs, and with some controllers of balancers also the addresses in its status
//! (CVE-2020-8554). So these are claims, and one that something else has precedence over is refused and reported: cluster IPs and addresses
//! of our pools belong to their Services at every port, an endpoint gets its packets itself, and between two claims the older Service wins.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::{FixedResponse, OnUnhealthy, Page, PageBody, Route, RouteAction, Transport, Vip, VipAlgorithm, VipMode};

use super::bind::{Binds, Rank, Speaks};
use super::clients::ClientPolicy;
use super::cluster::{self, Share};
use super::reference::{Why, word};
use super::service::{SOURCES_MAX, SOURCES_OF_SERVICE_MAX, VIPS_MAX, everybody};
use super::stream::{self, Choice, Source, Vips};
use super::{Circumstances, Desired, Notice, Statuses};
use crate::index::{Index, Kind, Name, OnNodes, ServiceEntry, ServicePort, SliceEntry, Standing};
use crate::settings::Settings;

/// Claims of one Service that are reported, when they are refused.
const REFUSED_MAX: usize = 4;

/// An address and port, and the transport protocol.
type Place = (IpAddr, u16, u8);

/// What is served besides vips, and what depends on endpoints.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// The number of endpoints on this node that each health check port reports.
    reported: BTreeMap<Name, usize>,
    /// Every place that a Service claims.
    claimed: BTreeSet<Place>,
    /// Those of them where an endpoint is, and its Service.
    endpoints: BTreeMap<Place, Name>,
}

impl Node {
    /// Whether the answer of a health check port of one of these Services has changed, or an endpoint has come to or left a place that a
    /// Service claims.
    pub(crate) fn is_outdated(&self, index: &Index, settings: &Settings, services: &BTreeSet<Name>) -> bool {
        let differs =
            |(name, count): (&Name, &usize)| services.contains(name) && endpoints_here(index, settings, name) != *count;
        let comes = |name: &Name| {
            let is_new = |place: &Place| self.claimed.contains(place) && !self.endpoints.contains_key(place);
            !self.claimed.is_empty() && index.slices_of(name).flat_map(places).any(|place| is_new(&place))
        };
        let leaves = |(place, name): (&Place, &Name)| {
            services.contains(name) && !index.slices_of(name).flat_map(places).any(|other| other == *place)
        };
        self.reported.iter().any(differs) || services.iter().any(comes) || self.endpoints.iter().any(leaves)
    }
}

/// The places of the endpoints of a slice, whether they are ready or not.
fn places(slice: &SliceEntry) -> impl Iterator<Item = Place> {
    slice.ports.iter().flat_map(|port| {
        let of = move |address: IpAddr| (address.to_canonical(), port.port, port.transport as u8);
        slice.endpoints.iter().map(move |endpoint| of(endpoint.address))
    })
}

/// Who has which address.
#[derive(Default)]
struct Claims<'i> {
    /// Addresses that belong to a Service at every port: the cluster IPs of all Services, also of those that this node does not serve, and
    /// what was allotted from our pools.
    reserved: BTreeMap<IpAddr, &'i Name>,
    /// Vips that are not of Services, by name.
    others: BTreeMap<Place, String>,
    /// The endpoints at places that any Service claims.
    endpoints: BTreeMap<Place, &'i Name>,
    /// Who is served where. Only older Services are in it.
    taken: BTreeMap<Place, &'i Name>,
}

impl<'i> Claims<'i> {
    /// `names` are all Services, the oldest first.
    fn of(index: &'i Index, names: &[&'i Name], statuses: &Statuses, vips: &Vips) -> Self {
        let mut claims = Self::default();
        for name in names {
            let Some(entry) = index.services.get(*name) else { continue };
            let allotted = match statuses.get(&(Kind::Service, (*name).clone())) {
                Some(Desired::Service(addresses)) => addresses.as_slice(),
                _ => &[],
            };
            for address in entry.cluster_ips.iter().chain(allotted) {
                claims.reserved.entry(*address).or_insert(name);
            }
        }
        let is_other = |vip: &&Vip| !claims.reserved.contains_key(&vip.address);
        claims.others = vips.list.iter().filter(is_other).map(|vip| (place_of(vip), vip.name.clone())).collect();
        claims
    }

    /// # Errors
    /// If the Service may not have this address and port.
    fn check(&self, name: &Name, address: IpAddr, place: &Place) -> Result<(), Why> {
        let in_use = |message: String| Err(Why::new("AddressInUse", message));
        let shown = SocketAddr::new(address, place.1);
        if !is_claimable(address) {
            let message = format!("{address} cannot be an address of a Service: others do not reach this node by it");
            return Err(Why::new("AddressNotUsable", message));
        }
        match self.reserved.get(&address) {
            Some(owner) if *owner != name => {
                return in_use(format!("{address} belongs to the Service {owner}, at every port"));
            }
            _ => {}
        }
        if let Some(vip) = self.others.get(place) {
            return in_use(format!("{shown} belongs to the vip {vip}"));
        }
        match self.endpoints.get(place) {
            Some(owner) => {
                in_use(format!("{shown} is an endpoint of the Service {owner}, which gets its packets itself"))
            }
            None => Ok(()),
        }
    }
}

fn place_of(vip: &Vip) -> Place {
    (vip.address, vip.ports.first, vip.transport as u8)
}

/// Whether it can be an address outside of the cluster: the API server refuses most others in a spec, but not in a status.
fn is_claimable(address: IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    // An IPv4 address that is written as IPv6 would be another address to every comparison, and the same one to a socket.
    let is_written_twice = address.to_canonical() != address;
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast() && !is_of_link && !is_written_twice
}

/// A Service that is being translated.
struct Served<'s> {
    name: &'s Name,
    entry: &'s ServiceEntry,
    on_nodes: &'s OnNodes,
    settings: &'s Settings,
    node: &'s str,
}

/// What is to be served of a Service.
#[derive(Default)]
struct Wanted {
    vips: Vec<(Vip, Source)>,
    places: Vec<Place>,
    /// Networks in lists of sources.
    sources: usize,
    /// What is not served, at most [`REFUSED_MAX`] of it.
    refused: Vec<Why>,
}

impl Wanted {
    fn refuse(&mut self, why: Why) {
        if self.refused.len() < REFUSED_MAX && self.refused.iter().all(|other| other.message != why.message) {
            self.refused.push(why);
        }
    }
}

/// Serves every Service that has addresses, the oldest first.
pub(crate) fn translate(
    index: &Index,
    settings: &Settings,
    (circumstances, statuses): (&Circumstances, &Statuses),
    (vips, binds): (&mut Vips, &mut Binds),
    notices: &mut Vec<Notice>,
) -> Node {
    let mut node = Node::default();
    let Some(own_name) = settings.node.as_deref().filter(|_| settings.kube_proxy_replacement) else { return node };
    let mut names: Vec<&Name> = index.services.keys().collect();
    names.sort_by_cached_key(|name| (index.services.get(*name).map(|entry| entry.meta.created), *name));
    let with_packets: BTreeSet<Place> = vips.list.iter().map(place_of).collect();
    let mut claims = Claims::of(index, &names, statuses, vips);
    let served: Vec<Served<'_>> = names.iter().filter_map(|name| Served::of(index, settings, own_name, name)).collect();
    node.claimed = served.iter().flat_map(|served| served.claims().map(|(_, place, _)| place)).collect();
    if !node.claimed.is_empty() {
        let each = index.slices().flat_map(|slice| places(slice).map(|place| (place, &slice.service)));
        claims.endpoints = each.filter(|(place, _)| node.claimed.contains(place)).collect();
    }
    node.endpoints = claims.endpoints.iter().map(|(place, name)| (*place, (*name).clone())).collect();
    let mut sources = vips.sources();
    for served in served {
        let (name, entry) = (served.name, served.entry);
        let mut tell = |why| notices.push(Notice::warning((Kind::Service, name.clone()), &entry.meta, why));
        let mut wanted = served.wanted(&claims, &with_packets, true);
        if let Err(why) = served.check_sources(sources, wanted.sources) {
            wanted = served.wanted(&claims, &with_packets, false);
            tell(why);
        }
        if vips.list.len() + wanted.vips.len() > VIPS_MAX {
            let message = format!("this node does not serve it: the kernel plane has room for {VIPS_MAX} vips");
            tell(Why::new("TooManyVips", message));
            continue;
        }
        wanted.refused.into_iter().for_each(tell);
        sources += wanted.sources;
        claims.taken.extend(wanted.places.into_iter().map(|place| (place, name)));
        for (vip, source) in wanted.vips {
            // What the kernel plane of this node refuses is in the status of this node alone.
            let _ = vips.add(index, vec![vip], &source);
        }
        if let Some(port) = served.on_nodes.health_check_port {
            let count = endpoints_here(index, settings, name);
            let place = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
            if !circumstances.binds.contains_key(&place) {
                report_health(binds, settings, place, entry, name, count);
            }
            node.reported.insert(name.clone(), count);
        }
    }
    node
}

impl<'s> Served<'s> {
    /// `None` if no node serves it.
    fn of(index: &'s Index, settings: &'s Settings, node: &'s str, name: &'s Name) -> Option<Self> {
        let entry = index.services.get(name)?;
        Some(Self { name, entry, on_nodes: entry.on_nodes.as_deref()?, settings, node })
    }

    /// The places outside of the cluster that it names, whether it may have them or not: the port, the place, and whether the address is a
    /// balancer's.
    fn claims(&self) -> impl Iterator<Item = (&'s ServicePort, Place, bool)> + use<'s> {
        let on_nodes = self.on_nodes;
        self.entry.ports.iter().flat_map(move |port| {
            let external = on_nodes.external_ips.iter().map(|address| (*address, false));
            let balancers = on_nodes.balancer_ips.iter().map(|address| (*address, true));
            let place = |address| (address, port.port, port.transport as u8);
            external.chain(balancers).map(move |(address, of_balancer)| (port, place(address), of_balancer))
        })
    }

    /// Its vips, without endpoints. There are as many that each list would grow too long, so it ends once they cannot be served.
    fn wanted(&self, claims: &Claims<'_>, with_packets: &BTreeSet<Place>, with_balancers: bool) -> Wanted {
        let mut wanted = Wanted::default();
        let mut own = BTreeSet::new();
        for port in &self.entry.ports {
            for address in &self.entry.cluster_ips {
                let place = (*address, port.port, port.transport as u8);
                match claims.reserved.get(address) {
                    Some(owner) if *owner != self.name => {
                        let message = format!("{address} belongs to the older Service {owner}, at every port");
                        wanted.refuse(Why::new("AddressInUse", message));
                    }
                    // Also if one of its external IPs is the same address, for which there are other rules.
                    _ if own.insert(place) => self.want_cluster_ip(&mut wanted, port, *address),
                    _ => {}
                }
            }
        }
        let every = self.entry.ports.iter().flat_map(|port| {
            let at = move |address| Some((port, (address, port.node_port?, port.transport as u8), false));
            self.every_address().filter_map(at)
        });
        for (port, place, of_balancer) in self.claims().chain(every) {
            if wanted.vips.len() > VIPS_MAX {
                break;
            }
            if of_balancer && !with_balancers || !own.insert(place) {
                continue;
            }
            let (address, number, _) = place;
            let is_of_node = address.is_unspecified() && port.node_port == Some(number);
            let checked = if is_of_node { Ok(()) } else { claims.check(self.name, address, &place) };
            let older = claims.taken.get(&place).map(|older| {
                let message = format!("{address}:{number} belongs to the older Service {older}, which is served there");
                Why::new("AddressInUse", message)
            });
            if let Some(why) = checked.err().or(older) {
                wanted.refuse(why);
                continue;
            }
            wanted.places.push(place);
            let at = SocketAddr::new(address, number);
            // The sources of sockets are not known. Their packets leave the node, and come back from the balancer.
            if !(of_balancer && self.has_sources()) {
                self.want_for_sockets(&mut wanted, port, at, false);
            }
            if !with_packets.contains(&place) {
                self.want_for_packets(&mut wanted, port, at, of_balancer);
            }
        }
        wanted
    }

    /// # Errors
    /// If its `loadBalancerSourceRanges` have too many networks. Then its balancer's addresses are not served, and it keeps all others.
    fn check_sources(&self, used: usize, more: usize) -> Result<(), Why> {
        let of_service = self.entry.load_balancer.as_deref().map_or(0, |balancer| balancer.sources.len());
        if more > 0 && of_service > SOURCES_OF_SERVICE_MAX {
            let message = format!(
                "this node does not serve its balancer's addresses: loadBalancerSourceRanges has more than {SOURCES_OF_SERVICE_MAX} networks"
            );
            return Err(Why::new("InvalidSourceRange", message));
        }
        if more > 0 && used + more > SOURCES_MAX {
            let message = format!(
                "this node does not serve its balancer's addresses: the kernel plane has room for {SOURCES_MAX} networks in the source ranges \
                 of all Services, counted once for each vip"
            );
            return Err(Why::new("TooManySources", message));
        }
        Ok(())
    }

    /// The addresses that stand for all of this node's, of the families of the Service.
    fn every_address(&self) -> impl Iterator<Item = IpAddr> {
        let has = |is_ipv4: bool| self.entry.cluster_ips.iter().any(|address| address.is_ipv4() == is_ipv4);
        let of = |is_ipv4: bool, address: IpAddr| has(is_ipv4).then_some(address);
        [of(true, Ipv4Addr::UNSPECIFIED.into()), of(false, Ipv6Addr::UNSPECIFIED.into())].into_iter().flatten()
    }

    fn has_sources(&self) -> bool {
        let limits = |it: &crate::index::LoadBalancer| !it.sources.is_empty() || !it.bad_sources.is_empty();
        self.entry.load_balancer.as_deref().is_some_and(limits)
    }

    fn want_cluster_ip(&self, wanted: &mut Wanted, port: &ServicePort, address: IpAddr) {
        let place = SocketAddr::new(address, port.port);
        self.want_for_sockets(wanted, port, place, self.on_nodes.internal_local);
        if self.settings.cluster_ip_packets {
            self.want_cluster_ip_for_packets(wanted, port, place);
        }
    }

    fn want_for_sockets(&self, wanted: &mut Wanted, port: &ServicePort, place: SocketAddr, is_local: bool) {
        let mut vip = self.vip(port, place, VipMode::Socket, "@socket");
        vip.is_of_node = is_local;
        if port.transport == Transport::Udp {
            // A process learns nothing of an endpoint that is gone, and would send to it for ever.
            vip.on_unhealthy = OnUnhealthy::Reset;
        }
        wanted.vips.push((vip, self.source(port, is_local)));
    }

    fn want_for_packets(&self, wanted: &mut Wanted, port: &ServicePort, place: SocketAddr, of_balancer: bool) {
        let is_local = self.on_nodes.external_local;
        let mode = if is_local { VipMode::Nat } else { VipMode::FullNat { sources: Vec::new() } };
        let mut vip = self.vip(port, place, mode, "");
        vip.interfaces.clone_from(&self.settings.interfaces);
        vip.at_sockets = false;
        vip.is_of_node = is_local;
        if let Some(balancer) = self.entry.load_balancer.as_deref().filter(|_| of_balancer && self.has_sources()) {
            let is_same = |network: &&ipnet::IpNet| network.addr().is_ipv4() == place.is_ipv4();
            // With more than these, the Service is refused.
            vip.allow = balancer.sources.iter().filter(is_same).take(SOURCES_OF_SERVICE_MAX + 1).copied().collect();
            if vip.allow.is_empty() {
                vip.deny = everybody(place.ip());
            }
            wanted.sources += vip.allow.len() + vip.deny.len();
        }
        wanted.vips.push((vip, self.source(port, is_local)));
    }

    /// Clients may share a link with the endpoints, where replies would not come back through this node. So endpoints see the node.
    fn want_cluster_ip_for_packets(&self, wanted: &mut Wanted, port: &ServicePort, place: SocketAddr) {
        let is_local = self.on_nodes.internal_local;
        let mut vip = self.vip(port, place, VipMode::FullNat { sources: Vec::new() }, "");
        vip.interfaces.clone_from(&self.settings.interfaces);
        vip.at_sockets = false;
        vip.is_of_node = is_local;
        wanted.vips.push((vip, self.source(port, is_local)));
    }

    fn vip(&self, port: &ServicePort, place: SocketAddr, mode: VipMode, suffix: &str) -> Vip {
        let transport = word(port.transport).to_lowercase();
        let name = format!("{}.{}@{place}/{transport}{suffix}", self.name.name, self.name.namespace);
        let mut vip = stream::vip(name, place, port.transport, mode, &[]);
        // There are many of them, and a table for Maglev takes 256 KiB.
        vip.algorithm = VipAlgorithm::Random;
        vip.affinity = self.on_nodes.affinity;
        vip
    }

    fn source(&self, port: &ServicePort, is_local: bool) -> Source {
        let from = match is_local {
            true => Choice::Here(self.node.to_owned()),
            false => Choice::Near { node: self.node.to_owned(), zone: self.settings.zone.clone() },
        };
        let (service, port, transport) = (self.name.clone(), port.port, port.transport);
        Source { shares: vec![Share { service, port, transport, weight: 1, h2: false, proxy: None }], from }
    }
}

/// The endpoints on this node that serve a Service, each once. A pod of two families counts once: kube-proxy answers for one of them.
fn endpoints_here(index: &Index, settings: &Settings, name: &Name) -> usize {
    let Some(entry) = index.services.get(name) else { return 0 };
    let node = settings.node.as_deref();
    let of = |port: &ServicePort| cluster::each_endpoint(index, name, port.port, port.transport).map(|(it, _)| it);
    // kube-proxy counts only those that are ready: a node that drains must get no more connections.
    let here =
        entry.ports.iter().flat_map(of).filter(|it| it.standing == Standing::Ready && it.node.as_deref() == node);
    let addresses: BTreeSet<IpAddr> = here.map(|endpoint| endpoint.address).collect();
    let of_ipv4 = addresses.iter().filter(|address| address.is_ipv4()).count();
    of_ipv4.max(addresses.len() - of_ipv4)
}

/// Answers as kube-proxy does: balancers send connections only to nodes that answer 200.
fn report_health(
    binds: &mut Binds,
    settings: &Settings,
    place: SocketAddr,
    entry: &ServiceEntry,
    name: &Name,
    count: usize,
) {
    let policy = ClientPolicy { accept_proxy_protocol: false, ..ClientPolicy::of(settings) };
    if binds.claim(place, Speaks::Http, policy).is_err() {
        return;
    }
    let body = serde_json::json!({
        "service": {"namespace": &*name.namespace, "name": &*name.name},
        "localEndpoints": count,
        "serviceProxyHealthy": true,
    });
    let response = FixedResponse {
        status: if count > 0 { 200 } else { 503 },
        headers: vec![
            ("x-content-type-options".to_owned(), "nosniff".to_owned()),
            ("x-load-balancing-endpoint-weight".to_owned(), count.to_string()),
        ],
        page: Some(Page { content_type: "application/json".to_owned(), body: PageBody::Text(body.to_string()) }),
    };
    let route = Route::to_all(format!("health/{name}"), RouteAction::Respond(response));
    let rank = Rank::new(&route, entry.meta.created, name, (0, 0));
    let _ = binds.route(place, rank, route);
}

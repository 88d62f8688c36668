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

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use model::{FixedResponse, OnUnhealthy, Page, PageBody, Route, RouteAction, Transport, Vip, VipAlgorithm, VipMode};

use super::bind::{Binds, Rank, Speaks};
use super::clients::ClientPolicy;
use super::cluster::{self, Share};
use super::reference::{Why, word};
use super::service::{VIPS_MAX, everybody};
use super::stream::{self, Choice, Source, Vips};
use super::{Circumstances, Notice};
use crate::index::{Index, Kind, Name, OnNodes, ServiceEntry, ServicePort, Standing};
use crate::settings::Settings;

/// What is served besides vips.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// The number of endpoints on this node that each health check port reports.
    reported: BTreeMap<Name, usize>,
}

impl Node {
    /// Whether the answer of a health check port of one of these Services has changed.
    pub(crate) fn is_outdated(&self, index: &Index, settings: &Settings, services: &BTreeSet<Name>) -> bool {
        let differs =
            |(name, count): (&Name, &usize)| services.contains(name) && endpoints_here(index, settings, name) != *count;
        self.reported.iter().any(differs)
    }
}

/// A Service that is being translated.
struct Served<'s> {
    name: &'s Name,
    entry: &'s ServiceEntry,
    on_nodes: &'s OnNodes,
    settings: &'s Settings,
    node: &'s str,
}

/// Serves every Service that has addresses, the oldest first.
pub(crate) fn translate(
    index: &Index,
    settings: &Settings,
    circumstances: &Circumstances,
    (vips, binds): (&mut Vips, &mut Binds),
    notices: &mut Vec<Notice>,
) -> Node {
    let mut node = Node::default();
    let Some(own_name) = settings.node.as_deref().filter(|_| settings.kube_proxy_replacement) else { return node };
    let of = |(name, entry): (&'_ Name, &'_ ServiceEntry)| entry.on_nodes.is_some().then_some(name.clone());
    let mut names: Vec<Name> = index.services.iter().filter_map(of).collect();
    names.sort_by_cached_key(|name| (index.services.get(name).map(|entry| entry.meta.created), name.clone()));
    let place = |vip: &Vip| (vip.address, vip.ports.first, vip.transport as u8);
    let with_packets: BTreeSet<(IpAddr, u16, u8)> = vips.list.iter().map(place).collect();
    // The addresses outside of the cluster that a Service has. Nothing else can be claimed twice.
    let mut taken = BTreeMap::<(IpAddr, u16, u8), Name>::new();
    for name in &names {
        let Some(entry) = index.services.get(name) else { continue };
        let Some(on_nodes) = entry.on_nodes.as_deref() else { continue };
        let served = Served { name, entry, on_nodes, settings, node: own_name };
        let begun = vips.list.len();
        if let Err(why) = served.add(index, vips, &with_packets, &mut taken) {
            notices.push(Notice::warning((Kind::Service, name.clone()), &entry.meta, why));
        }
        if vips.list.len() > VIPS_MAX {
            vips.truncate(begun);
            let message = format!("this node does not serve it: the kernel plane has room for {VIPS_MAX} vips");
            notices.push(Notice::warning((Kind::Service, name.clone()), &entry.meta, Why::new("TooManyVips", message)));
            continue;
        }
        if let Some(port) = on_nodes.health_check_port {
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

impl Served<'_> {
    /// # Errors
    /// If an older Service has one of the addresses. The others are served.
    fn add(
        &self,
        index: &Index,
        vips: &mut Vips,
        with_packets: &BTreeSet<(IpAddr, u16, u8)>,
        taken: &mut BTreeMap<(IpAddr, u16, u8), Name>,
    ) -> Result<(), Why> {
        let mut outcome = Ok(());
        for port in &self.entry.ports {
            for address in &self.on_nodes.cluster_ips {
                let place = SocketAddr::new(*address, port.port);
                self.add_for_sockets(index, vips, port, place, self.on_nodes.internal_local);
                if self.settings.cluster_ip_packets {
                    self.add_cluster_ip_for_packets(index, vips, port, place);
                }
            }
            let external = self.on_nodes.external_ips.iter().map(|address| (*address, false));
            let balancers = self.on_nodes.balancer_ips.iter().map(|address| (*address, true));
            let every = self.every_address().map(|address| (address, false));
            let at_port = external.chain(balancers).map(|(address, of_balancer)| (address, port.port, of_balancer));
            let at_node_port = every.filter_map(|(address, _)| Some((address, port.node_port?, false)));
            for (address, number, of_balancer) in at_port.chain(at_node_port) {
                match taken.insert((address, number, port.transport as u8), self.name.clone()) {
                    Some(older) if older == *self.name => continue,
                    Some(older) => {
                        taken.insert((address, number, port.transport as u8), older.clone());
                        let message =
                            format!("{address}:{number} belongs to the older Service {older}, which is served there");
                        outcome = Err(Why::new("AddressInUse", message));
                        continue;
                    }
                    None => {}
                }
                let place = SocketAddr::new(address, number);
                // The sources of sockets are not known. Their packets leave the node, and come back from the balancer.
                if !(of_balancer && self.has_sources()) {
                    self.add_for_sockets(index, vips, port, place, false);
                }
                if !with_packets.contains(&(address, number, port.transport as u8)) {
                    self.add_for_packets(index, vips, port, place, of_balancer);
                }
            }
        }
        outcome
    }

    /// The addresses that stand for all of this node's, of the families of the Service.
    fn every_address(&self) -> impl Iterator<Item = IpAddr> {
        let has = |is_ipv4: bool| self.on_nodes.cluster_ips.iter().any(|address| address.is_ipv4() == is_ipv4);
        let of = |is_ipv4: bool, address: IpAddr| has(is_ipv4).then_some(address);
        [of(true, Ipv4Addr::UNSPECIFIED.into()), of(false, Ipv6Addr::UNSPECIFIED.into())].into_iter().flatten()
    }

    fn has_sources(&self) -> bool {
        let limits = |it: &crate::index::LoadBalancer| !it.sources.is_empty() || !it.bad_sources.is_empty();
        self.entry.load_balancer.as_deref().is_some_and(limits)
    }

    fn add_for_sockets(&self, index: &Index, vips: &mut Vips, port: &ServicePort, place: SocketAddr, is_local: bool) {
        let mut vip = self.vip(port, place, VipMode::Socket, "@socket");
        vip.is_of_node = is_local;
        if port.transport == Transport::Udp {
            // A process learns nothing of an endpoint that is gone, and would send to it for ever.
            vip.on_unhealthy = OnUnhealthy::Reset;
        }
        self.serve(index, vips, port, vip, is_local);
    }

    fn add_for_packets(
        &self,
        index: &Index,
        vips: &mut Vips,
        port: &ServicePort,
        place: SocketAddr,
        of_balancer: bool,
    ) {
        let is_local = self.on_nodes.external_local;
        let mode = if is_local { VipMode::Nat } else { VipMode::FullNat { sources: Vec::new() } };
        let mut vip = self.vip(port, place, mode, "");
        vip.interfaces.clone_from(&self.settings.interfaces);
        vip.at_sockets = false;
        vip.is_of_node = is_local;
        if let Some(balancer) = self.entry.load_balancer.as_deref().filter(|_| of_balancer && self.has_sources()) {
            let is_same = |network: &&ipnet::IpNet| network.addr().is_ipv4() == place.is_ipv4();
            vip.allow = balancer.sources.iter().filter(is_same).copied().collect();
            if vip.allow.is_empty() {
                vip.deny = everybody(place.ip());
            }
        }
        self.serve(index, vips, port, vip, is_local);
    }

    /// Clients may share a link with the endpoints, where replies would not come back through this node. So endpoints see the node.
    fn add_cluster_ip_for_packets(&self, index: &Index, vips: &mut Vips, port: &ServicePort, place: SocketAddr) {
        let is_local = self.on_nodes.internal_local;
        let mut vip = self.vip(port, place, VipMode::FullNat { sources: Vec::new() }, "");
        vip.interfaces.clone_from(&self.settings.interfaces);
        vip.at_sockets = false;
        vip.is_of_node = is_local;
        self.serve(index, vips, port, vip, is_local);
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

    fn serve(&self, index: &Index, vips: &mut Vips, port: &ServicePort, vip: Vip, is_local: bool) {
        let from = match is_local {
            true => Choice::Here(self.node.to_owned()),
            false => Choice::Near { node: self.node.to_owned(), zone: self.settings.zone.clone() },
        };
        let (service, port, transport) = (self.name.clone(), port.port, port.transport);
        let shares = vec![Share { service, port, transport, weight: 1, h2: false, proxy: None }];
        // What the kernel plane of this node refuses is in the status of this node alone.
        let _ = vips.add(index, vec![vip], &Source { shares, from });
    }
}

/// The endpoints on this node that serve a Service, each once.
fn endpoints_here(index: &Index, settings: &Settings, name: &Name) -> usize {
    let Some(entry) = index.services.get(name) else { return 0 };
    let node = settings.node.as_deref();
    let of = |port: &ServicePort| cluster::each_endpoint(index, name, port.port, port.transport).map(|(it, _)| it);
    // kube-proxy counts only those that are ready: a node that drains must get no more connections.
    let here =
        entry.ports.iter().flat_map(of).filter(|it| it.standing == Standing::Ready && it.node.as_deref() == node);
    here.map(|endpoint| endpoint.address).collect::<BTreeSet<_>>().len()
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

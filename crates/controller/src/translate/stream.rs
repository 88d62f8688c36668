//! TLSRoute, TCPRoute, UDPRoute: the Services of a listener's connections or flows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use model::{PortRange, TlsMode, TlsRoute, Transport, Vip, VipAlgorithm, VipMode, Zone};

use super::RefusedVip;
use super::cluster::{self, Share};
use super::hosts::Hosts;
use super::near::{self, Near};
use super::reference::{self, Why};
use super::route::{Attaching, Made, OLDER};
use crate::index::{Index, Name, RouteKind, SliceEndpoint};
use crate::objects::StreamRule;

/// The reason for everything that the kernel plane refuses.
pub(crate) const KERNEL_PLANE: &str = "KernelPlane";

/// Endpoints of one vip. More would be of no use, and one object must leave room for the others.
const ENDPOINTS_OF_VIP_MAX: usize = 2048;

/// Endpoints of all vips together. This is less than the capacity of the kernel plane, where removed endpoints stay until their flows have
/// ended.
const ENDPOINTS_MAX: usize = 49_152;

/// Vips, and the sources of their endpoints.
#[derive(Default)]
pub(crate) struct Vips {
    pub(crate) list: Vec<Vip>,
    /// `made_of.len() == list.len()`.
    made_of: Vec<Source>,
    /// Their endpoints together.
    endpoints: usize,
    /// The vips that the kernel plane has refused, by name.
    refused: BTreeMap<String, RefusedVip>,
}

/// The source of a vip's endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) shares: Vec<Share>,
    /// Which of the endpoints.
    pub(crate) from: Choice,
}

/// Which endpoints of a Service a vip has.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    /// All.
    All,
    /// Those on this node.
    Here(String),
    /// Those that the cluster means for clients on this node and in this zone, if it says that of all endpoints; otherwise all.
    Near { node: String, zone: Option<String> },
}

impl Vips {
    /// Without vips yet. `refused` are the vips that must stay as they were, or be left out.
    pub(crate) fn new(refused: &BTreeMap<String, RefusedVip>) -> Self {
        Self { refused: refused.clone(), ..Self::default() }
    }

    /// Adds vips with the endpoints of `source`. A vip that the kernel plane has refused stays as it was served last.
    ///
    /// # Errors
    /// Returns why if the kernel plane has refused one of them. The others have been added, and the caller may remove them again.
    pub(crate) fn add(&mut self, index: &Index, vips: Vec<Vip>, source: &Source) -> Result<(), Why> {
        let mut outcome = Ok(());
        for mut vip in vips {
            let mut source = source.clone();
            if let Some(refused) = self.refused.get(&vip.name) {
                outcome = outcome.and(Err(Why::new(KERNEL_PLANE, refused.why.clone())));
                let Some(held) = refused.held.clone() else { continue };
                // Without shares, so that it follows no endpoints.
                source.shares.clear();
                vip = held;
            } else {
                vip.endpoints = endpoints(index, &vip, &source, self.room());
            }
            self.endpoints += vip.endpoints.len();
            self.list.push(vip);
            self.made_of.push(source);
        }
        outcome
    }

    /// Removes all vips after the first `count`.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.list.truncate(count);
        self.made_of.truncate(count);
        self.endpoints = self.list.iter().map(|vip| vip.endpoints.len()).sum();
    }

    /// How many more endpoints there is room for.
    fn room(&self) -> usize {
        ENDPOINTS_MAX.saturating_sub(self.endpoints)
    }

    /// The number of networks in all lists of sources.
    pub(crate) fn sources(&self) -> usize {
        self.list.iter().map(|vip| vip.allow.len() + vip.deny.len()).sum()
    }

    /// Updates the endpoints of these Services. Returns whether any vip has changed.
    pub(crate) fn follow(&mut self, index: &Index, services: &BTreeSet<Name>) -> bool {
        let mut changed = false;
        let mut room = self.room();
        let is_meant = |source: &Source| source.shares.iter().any(|share| services.contains(&share.service));
        for (vip, source) in self.list.iter_mut().zip(&self.made_of).filter(|(_, source)| is_meant(source)) {
            room += vip.endpoints.len();
            let now = endpoints(index, vip, source, room);
            room -= now.len();
            changed |= now != vip.endpoints;
            vip.endpoints = now;
        }
        self.endpoints = self.list.iter().map(|vip| vip.endpoints.len()).sum();
        changed
    }
}

/// The endpoints of the vip's family, as many as there is room for.
fn endpoints(index: &Index, vip: &Vip, source: &Source, room: usize) -> Vec<model::Endpoint> {
    let is_of_family = |endpoint: &SliceEndpoint| endpoint.address.is_ipv4() == vip.address.is_ipv4();
    let near = match (&source.from, source.shares.as_slice()) {
        (Choice::Near { node, zone }, [share]) => near::of(index, share, &is_of_family, node, zone.as_deref()),
        _ => Near::Anywhere,
    };
    let is_wanted = |endpoint: &SliceEndpoint| {
        let is_chosen = match &source.from {
            Choice::Here(node) => endpoint.node.as_deref() == Some(node),
            Choice::All | Choice::Near { .. } => near.includes(endpoint),
        };
        is_chosen && is_of_family(endpoint)
    };
    let mut found = cluster::endpoints_where(index, &source.shares, &is_wanted);
    found.truncate(room.min(ENDPOINTS_OF_VIP_MAX));
    // Every node must find the same endpoint for a connection.
    found.iter_mut().for_each(|endpoint| endpoint.zone = Zone::Unknown);
    found
}

/// A vip for a Service or a UDP listener, without endpoints.
pub(crate) fn vip(name: String, place: SocketAddr, transport: Transport, mode: VipMode, interfaces: &[String]) -> Vip {
    let ports = PortRange { first: place.port(), last: place.port() };
    Vip {
        interfaces: interfaces.to_vec(),
        // A replica that restarts without its tables finds the endpoint of a flow again. Another replica finds it only if no source address
        // is rewritten.
        algorithm: VipAlgorithm::Maglev,
        mode,
        ..Vip::new(name, place.ip(), ports, transport)
    }
}

/// Serves a route at its addresses. `mode` is where TLS ends there.
pub(crate) fn serve(
    index: &Index,
    (kind, name, mode): (RouteKind, &Name, TlsMode),
    rules: &[StreamRule],
    places: &BTreeMap<SocketAddr, Hosts>,
    out: &mut Attaching<'_, '_>,
) -> Made {
    let mut made = Made::default();
    let refuse = |reason, message: String, mut made: Made| {
        made.refused = Some(Why::new(reason, message));
        made
    };
    let [rule] = rules else {
        return refuse(
            "UnsupportedValue",
            "a route of this kind can only have one rule, because nothing distinguishes several".into(),
            made,
        );
    };
    if let Some(field) = rule.others.keys().next() {
        return refuse("UnsupportedValue", format!("`{field}` is not supported"), made);
    }
    let transport = if kind == RouteKind::Udp { Transport::Udp } else { Transport::Tcp };
    let mut shares = Vec::new();
    for backend in &rule.backend_refs {
        let share = reference::backend(index, kind.name(), &name.namespace, backend, transport);
        shares.extend(made.note(share));
    }
    let outcome = match kind {
        RouteKind::Udp => udp(index, name, shares, places, out),
        _ => tcp(index, (kind, name, mode), shares, places, out),
    };
    match outcome {
        // Nothing distinguishes the connections of two routes: the API wants both accepted and the older one served.
        Ok(older) => {
            let already = |older| Why::new(OLDER, format!("the older route {older} already serves this listener"));
            let overlapped = older.map(already);
            Made { overlapped, ..made }
        }
        Err(Why { reason, message }) => refuse(reason, message, made),
    }
}

/// Returns the older route that has one of the addresses, if there is one.
fn tcp(
    index: &Index,
    (kind, name, mode): (RouteKind, &Name, TlsMode),
    shares: Vec<Share>,
    places: &BTreeMap<SocketAddr, Hosts>,
    out: &mut Attaching<'_, '_>,
) -> Result<Option<Name>, Why> {
    let to = out.clusters.of(index, shares).map_err(|why| Why::new("UnsupportedValue", why))?;
    let mut older = None;
    for (place, hosts) in places {
        match kind {
            RouteKind::Tls => out.binds.sni(*place, TlsRoute { sni: hosts.list(), to, mode }),
            _ => older = older.or(out.binds.tcp(*place, name, to)),
        }
    }
    Ok(older)
}

/// Returns the older route that has one of the addresses, if there is one.
fn udp(
    index: &Index,
    name: &Name,
    shares: Vec<Share>,
    places: &BTreeMap<SocketAddr, Hosts>,
    out: &mut Attaching<'_, '_>,
) -> Result<Option<Name>, Why> {
    let shares: Vec<Share> = shares.into_iter().filter(|share| share.weight > 0).collect();
    let (taken, free): (Vec<&SocketAddr>, Vec<&SocketAddr>) =
        places.keys().partition(|place| out.udp.contains_key(place));
    let older = taken.first().and_then(|place| out.udp.get(place).cloned());
    // An endpoint may be on any node and would answer the client directly, so it must see an address of this host.
    let mode = || VipMode::FullNat { sources: Vec::new() };
    let of =
        |place: &&SocketAddr| vip(format!("udproute/{name}@{place}"), **place, Transport::Udp, mode(), out.interfaces);
    let vips = free.iter().map(of).collect();
    // Even if the kernel plane refuses it, because it may keep what it had of this route there.
    out.udp.extend(free.into_iter().map(|place| (*place, name.clone())));
    out.vips.add(index, vips, &Source { shares, from: Choice::All })?;
    Ok(older)
}

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

/// How many are kept while vips are added, so that the limit of each vip is not found anew with every vip.
const ENDPOINTS_MEANWHILE_MAX: usize = 2 * ENDPOINTS_MAX;

/// Vips, and the sources of their endpoints.
#[derive(Default)]
pub(crate) struct Vips {
    pub(crate) list: Vec<Vip>,
    /// `made_of.len() == list.len()`.
    made_of: Vec<Source>,
    /// The number of endpoints that each would have if there were no limits. `wanted.len() == list.len()`.
    wanted: Vec<usize>,
    /// Their endpoints together.
    endpoints: usize,
    /// How many endpoints a vip may have, if all together would have too many.
    fair: Option<usize>,
    /// New endpoints no longer fit these limits, or make others fit.
    outgrew: bool,
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
            let wanted;
            if let Some(refused) = self.refused.get(&vip.name) {
                outcome = outcome.and(Err(Why::new(KERNEL_PLANE, refused.why.clone())));
                let Some(held) = refused.held.clone() else { continue };
                // Without shares, so that it follows no endpoints.
                source.shares.clear();
                vip = held;
                wanted = vip.endpoints.len();
            } else {
                (vip.endpoints, wanted) = endpoints(index, &vip, &source, self.limit());
            }
            self.endpoints += vip.endpoints.len();
            self.list.push(vip);
            self.made_of.push(source);
            self.wanted.push(wanted);
            if self.endpoints > ENDPOINTS_MEANWHILE_MAX {
                self.fit();
            }
        }
        outcome
    }

    /// Removes all vips after the first `count`.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.list.truncate(count);
        self.made_of.truncate(count);
        self.wanted.truncate(count);
        self.endpoints = self.list.iter().map(|vip| vip.endpoints.len()).sum();
    }

    /// The most endpoints of a vip.
    fn limit(&self) -> usize {
        self.fair.unwrap_or(ENDPOINTS_OF_VIP_MAX)
    }

    /// Leaves out endpoints if there are too many: of the vips with most, so that all others keep theirs, and none is left without. The
    /// caller calls this when it has added all vips.
    pub(crate) fn fit(&mut self) {
        if self.endpoints <= ENDPOINTS_MAX {
            return;
        }
        // Those that the kernel plane has refused stay as they are.
        let is_free = |source: &Source| !source.shares.is_empty();
        let sizes = || self.list.iter().zip(&self.made_of);
        let kept: usize = sizes().filter(|(_, source)| !is_free(source)).map(|(vip, _)| vip.endpoints.len()).sum();
        let free = sizes().filter(|(_, source)| is_free(source)).map(|(vip, _)| vip.endpoints.len());
        let fair = fair_share(free.collect(), ENDPOINTS_MAX.saturating_sub(kept)).min(self.limit());
        for (vip, _) in self.list.iter_mut().zip(&self.made_of).filter(|(_, source)| is_free(source)) {
            vip.endpoints.truncate(fair);
        }
        self.endpoints = self.list.iter().map(|vip| vip.endpoints.len()).sum();
        self.fair = Some(fair);
    }

    /// Why the kernel plane has only some of their endpoints, for each Service of which this is true.
    pub(crate) fn cut(&self) -> BTreeMap<Name, Why> {
        let all = self.list.iter().zip(&self.made_of).zip(&self.wanted);
        let cut = all.filter(|((vip, source), wanted)| !source.shares.is_empty() && vip.endpoints.len() < **wanted);
        let mut found = BTreeMap::new();
        for ((vip, source), _) in cut {
            let message = match vip.endpoints.len() {
                ENDPOINTS_OF_VIP_MAX => {
                    format!(
                        "the kernel plane uses {ENDPOINTS_OF_VIP_MAX} endpoints of a vip, and this Service has more"
                    )
                }
                _ => format!(
                    "the kernel plane has room for {ENDPOINTS_MAX} endpoints, counted once for each vip, and all vips together have more: \
                     it uses some of the endpoints of the vips with most of them, such as those of this Service"
                ),
            };
            let why = || Why::new("TooManyEndpoints", message.clone());
            source.shares.iter().for_each(|share| _ = found.entry(share.service.clone()).or_insert_with(why));
        }
        found
    }

    /// Whether the endpoints that [`Vips::follow`] has brought fit no longer, or fit again, so that all vips must be made anew.
    pub(crate) fn outgrew(&self) -> bool {
        self.outgrew
    }

    /// The number of networks in all lists of sources.
    pub(crate) fn sources(&self) -> usize {
        self.list.iter().map(|vip| vip.allow.len() + vip.deny.len()).sum()
    }

    /// Updates the endpoints of these Services. Returns whether any vip has changed.
    pub(crate) fn follow(&mut self, index: &Index, services: &BTreeSet<Name>) -> bool {
        let mut changed = false;
        let (limit, is_short) = (self.limit(), self.fair.is_some());
        let is_meant = |source: &Source| source.shares.iter().any(|share| services.contains(&share.service));
        let all = self.list.iter_mut().zip(&self.made_of).zip(&mut self.wanted);
        for ((vip, source), wanted) in all.filter(|((_, source), _)| is_meant(source)) {
            let (now, wants) = endpoints(index, vip, source, limit);
            self.outgrew |= is_short && wants != *wanted || (wants > limit) != (*wanted > limit);
            changed |= now != vip.endpoints;
            (vip.endpoints, *wanted) = (now, wants);
        }
        self.endpoints = self.list.iter().map(|vip| vip.endpoints.len()).sum();
        self.outgrew |= self.endpoints > ENDPOINTS_MAX;
        changed
    }
}

/// The largest share for each of these, of which some are smaller, so that all together take no more than there is room for.
fn fair_share(mut sizes: Vec<usize>, mut room: usize) -> usize {
    sizes.sort_unstable();
    let count = sizes.len();
    for (at, size) in sizes.into_iter().enumerate() {
        let share = room / (count - at);
        if size > share {
            return share;
        }
        room -= size;
    }
    usize::MAX
}

/// The endpoints of the vip's family, at most `limit`, and how many there would be.
fn endpoints(index: &Index, vip: &Vip, source: &Source, limit: usize) -> (Vec<model::Endpoint>, usize) {
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
    let wanted = found.len();
    if wanted > limit {
        found.truncate(limit);
        found.shrink_to_fit();
    }
    // Every node must find the same endpoint for a connection.
    found.iter_mut().for_each(|endpoint| endpoint.zone = Zone::Unknown);
    (found, wanted)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_give_way() {
        let check = |sizes: &[usize], room, expect| assert_eq!(fair_share(sizes.to_vec(), room), expect, "{sizes:?}");
        check(&[], 10, usize::MAX);
        check(&[3, 7], 10, usize::MAX);
        check(&[7, 3], 9, 6);
        check(&[100, 100, 1], 21, 10);
        check(&[2048; 3], 10, 3);
        check(&[5], 0, 0);
    }
}

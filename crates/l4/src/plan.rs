//! Computes the wanted content of the maps from vips, verdicts and the present content. Pure.
//!
//! Indexes are stable: a vip keeps its index as long as its address, protocol and first port stay the same, and an endpoint keeps its index
//! as long as its vip, address and port do. So the entries in the table of flows keep their meaning, even after another process has taken
//! over.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use model::{Announce, Endpoint, EndpointAddress, OnUnhealthy, Transport, Tunnel, Vip, VipAlgorithm, VipMode};

use crate::abi::*;
use crate::content::Content;
use crate::{EndpointVerdict, Refusal, own, table};

/// Protocol numbers (IANA).
pub(crate) const TCP: u8 = 6;
/// UDP.
pub(crate) const UDP: u8 = 17;

/// The properties that identify a vip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) address: IpAddr,
    pub(crate) proto: u8,
    pub(crate) first: u16,
    /// `LB_SCOPE_*`: who finds it.
    pub(crate) scope: u8,
}

/// The addresses of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    /// For `full_nat` vips without `sources`, vips in mode `nat` and those with a tunnel, by name: the source address that this host uses for
    /// each endpoint.
    pub(crate) towards: BTreeMap<String, BTreeMap<SocketAddr, IpAddr>>,
    /// The first and the last of the ports that nothing else on this host uses unasked.
    pub(crate) ports: (u16, u16),
    /// Addresses of vips that this host has itself.
    pub(crate) own: BTreeSet<IpAddr>,
    /// The addresses of vips that have every address of this host.
    pub(crate) every: BTreeSet<IpAddr>,
    /// All addresses of this host's interfaces.
    pub(crate) here: BTreeSet<IpAddr>,
}

/// Endpoints that this host cannot serve, by vip, and why. They count as down, whatever probes say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unreachable(BTreeMap<String, BTreeMap<SocketAddr, String>>);

impl Unreachable {
    pub(crate) fn add(&mut self, vip: &str, endpoint: SocketAddr, why: String) {
        self.0.entry(vip.to_owned()).or_default().insert(endpoint, why);
    }

    pub(crate) fn why(&self, vip: &str, endpoint: SocketAddr) -> Option<&str> {
        self.0.get(vip)?.get(&endpoint).map(String::as_str)
    }

    /// Each vip and endpoint, and why it is unreachable.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, SocketAddr, &str)> {
        self.0.iter().flat_map(|(vip, all)| all.iter().map(move |(at, why)| (vip.as_str(), *at, why.as_str())))
    }
}

/// The wanted content, and the meaning of its indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) content: Content,
    /// By index.
    pub(crate) vips: BTreeMap<u32, Named>,
    /// Endpoints that no vip names any more. They are removed when their flows have ended.
    pub(crate) leaving: BTreeSet<u32>,
    /// All interfaces that vips name.
    pub(crate) interfaces: BTreeSet<String>,
    /// Addresses of vips in mode `local`. The host has them, in one way or another.
    local: BTreeSet<IpAddr>,
}

/// A flag of `lb_endpoint.source`.
const HERE: u8 = LB_ENDPOINT_HERE as u8;

/// A vip with the name that reports use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) identity: Identity,
    /// It names no interfaces, so they are found by the routes to its endpoints.
    pub(crate) is_routed: bool,
    /// It is announced on the link of its address, where its clients are.
    pub(crate) is_on_link: bool,
    /// As configured, with the index of each.
    pub(crate) endpoints: BTreeMap<SocketAddr, u32>,
    /// The input of its table.
    basis: Basis,
}

/// The input of a table: the algorithm, and index, address and weight of each endpoint that takes new flows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Basis {
    algorithm: VipAlgorithm,
    active: Vec<(u32, SocketAddr, u32)>,
}

/// Makes the plan. `held` is the content of the maps, as earlier plans have made it. `resting` has the indexes of vips that are gone but
/// may still be in the table of flows.
///
/// # Errors
/// If there are more vips or endpoints than indexes.
pub(crate) fn plan(
    vips: &[Vip],
    usable: &dyn Fn(&str, &Endpoint) -> EndpointVerdict,
    held: &Content,
    previous: &Plan,
    resting: &BTreeSet<u32>,
    sources: &Sources,
) -> Result<Plan, Refusal> {
    let known_vips = identities(held);
    let known_endpoints: BTreeMap<_, u32> =
        held.endpoints.iter().map(|(id, it)| ((it.vip, it.addr, it.port), *id)).collect();
    let taken = |id: &u32| held.vips.contains_key(id) || resting.contains(id);
    let mut free_vips = (0..LB_VIPS_MAX).filter(|id| !taken(id));
    let mut free_endpoints = (0..LB_ENDPOINTS_MAX).filter(|id| !held.endpoints.contains_key(id));
    let mut plan = Plan::default();
    for vip in vips {
        let identity = identity(vip);
        let id = known_vips.get(&identity).copied().or_else(|| free_vips.next());
        // Indexes of vips that go, or have gone a moment ago, become free when no flow has them any more.
        let id = id.ok_or_else(|| {
            let going = LB_VIPS_MAX as usize - plan.vips.len();
            Refusal::TooManyAtOnce { what: "vips", have: vips.len(), going, max: LB_VIPS_MAX }
        })?;
        let mut endpoints = BTreeMap::new();
        let own = sources.of(&vip.name);
        for endpoint in &vip.endpoints {
            // Only the proxy plane resolves names: nothing in the kernel could follow them.
            let EndpointAddress::Socket(address) = endpoint.address else { continue };
            let value = lb_endpoint {
                addr: words_of(address.ip()),
                vip: id,
                weight: endpoint.weight,
                port: address.port().to_be(),
                state: state(vip, endpoint.weight, usable(&vip.name, endpoint)),
                source: sources.only(&own, &vip.name, address) | if sources.has(vip, address.ip()) { HERE } else { 0 },
            };
            let known = known_endpoints.get(&(id, value.addr, value.port)).copied();
            let known = known.or_else(|| endpoints.get(&address).copied());
            let index = known.or_else(|| free_endpoints.next());
            let have = plan.content.endpoints.len() + 1;
            let index = index.ok_or(Refusal::TooMany { what: "endpoints", have, max: LB_ENDPOINTS_MAX })?;
            plan.content.endpoints.insert(index, value);
            endpoints.insert(address, index);
        }
        let basis = plan.basis(vip, &endpoints);
        // Usually another vip has changed, and a Maglev table takes milliseconds to compute.
        let known = previous.vips.get(&id).filter(|named| named.basis == basis).and_then(|_| held.tables.get(&id));
        let table = known.cloned().unwrap_or_else(|| basis.table());
        plan.add(vip, id, table, sources);
        // Connections that are balanced at the socket need no interface.
        let (name, is_routed) = (vip.name.clone(), vip.interfaces.is_empty() && vip.mode != VipMode::Socket);
        let is_on_link = is_routed && vip.announce == Announce::L2;
        plan.vips.insert(id, Named { name, identity, is_routed, is_on_link, endpoints, basis });
    }
    // A process that sends datagrams learns nothing of an endpoint that is gone, and would send to it as long as it gets no answer.
    let of_datagrams: BTreeSet<u32> =
        plan.vips.iter().filter(|(_, it)| is_for_datagrams(it)).map(|(id, _)| *id).collect();
    let datagrams_end = |vip: u32| of_datagrams.contains(&vip);
    for (id, endpoint) in &held.endpoints {
        if !plan.content.endpoints.contains_key(id) {
            // A dead endpoint stays dead: its flows must be reset and not hang.
            let is_dead = endpoint.state == LB_ENDPOINT_DOWN as u8 || datagrams_end(endpoint.vip);
            let state = if is_dead { LB_ENDPOINT_DOWN } else { LB_ENDPOINT_DRAINING } as u8;
            plan.content.endpoints.insert(*id, lb_endpoint { state, ..*endpoint });
            plan.leaving.insert(*id);
        }
    }
    Ok(plan)
}

/// Whether only sockets of this host send it datagrams.
fn is_for_datagrams(named: &Named) -> bool {
    named.identity.proto == UDP && u32::from(named.identity.scope) & LB_SCOPE_SOCKETS != 0
}

impl Sources {
    /// The source addresses of this host for the endpoints of a vip, each once.
    fn of(&self, vip: &str) -> Vec<IpAddr> {
        let all: BTreeSet<IpAddr> = self.towards.get(vip).into_iter().flat_map(BTreeMap::values).copied().collect();
        all.into_iter().collect()
    }

    /// Whether packets to an endpoint of the vip go to this host's own stack, and its replies are translated where they leave. A listener
    /// gets TCP connections to an address of this host as they are, which costs packets nothing.
    fn has(&self, vip: &Vip, endpoint: IpAddr) -> bool {
        let is_rewritten = matches!(vip.mode, VipMode::Nat | VipMode::FullNat { .. });
        let is_own = vip.address.is_unspecified() || self.own.contains(&vip.address);
        is_rewritten && !(vip.transport == Transport::Tcp && is_own) && self.here.contains(&endpoint)
    }

    /// Which of them to use for the endpoint, counted from 1, because it may know no way back to the others. 0 means any that the file
    /// names.
    fn only(&self, own: &[IpAddr], vip: &str, endpoint: SocketAddr) -> u8 {
        let source = self.towards.get(vip).and_then(|towards| towards.get(&endpoint));
        let at = source.and_then(|source| own.iter().position(|address| address == source));
        let at = at.filter(|at| *at < LB_POOL_MAX as usize);
        at.map_or(0, |at| u8::try_from(at + 1).unwrap_or(0))
    }
}

impl Plan {
    /// The addresses of all vips.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.content.addresses.keys().map(|key| address_of(key.addr))
    }

    /// Whether packets to an endpoint go to this host's own stack.
    pub(crate) fn has_endpoint_here(&self) -> bool {
        self.content.endpoints.values().any(|endpoint| endpoint.source & HERE != 0)
    }

    /// Marks those that this host has itself. Returns whether any has changed.
    pub(crate) fn set_own(&mut self, own: &BTreeSet<IpAddr>) -> bool {
        let mut differs = false;
        for (key, address) in &mut self.content.addresses {
            let at = address_of(key.addr);
            let is_own = own.contains(&at) || self.local.contains(&at);
            let flags = address.flags & !LB_ADDRESS_HOST | if is_own { LB_ADDRESS_HOST } else { 0 };
            differs |= std::mem::replace(&mut address.flags, flags) != flags;
        }
        differs
    }

    /// The addresses of endpoints, including leaving ones, of vips whose interfaces are found by routes. `held` is the content of the maps.
    pub(crate) fn routed_endpoints(&self, held: &Content) -> BTreeSet<IpAddr> {
        let is_of_routed = |endpoint: &&lb_endpoint| self.vips.get(&endpoint.vip).is_some_and(|named| named.is_routed);
        held.endpoints.values().filter(is_of_routed).map(|endpoint| address_of(endpoint.addr)).collect()
    }

    /// Whether there are such vips of IPv4, and of IPv6.
    pub(crate) fn families_along(&self) -> [bool; 2] {
        let has = |ipv6| self.vips.values().any(|named| named.is_routed && named.identity.address.is_ipv6() == ipv6);
        [has(false), has(true)]
    }

    /// The addresses of vips that are announced on links and name no interfaces.
    pub(crate) fn on_links(&self) -> BTreeSet<IpAddr> {
        self.vips.values().filter(|named| named.is_on_link).map(|named| named.identity.address).collect()
    }

    /// Whether a vip has every address of this host, for packets or at the socket.
    pub(crate) fn has_every(&self) -> bool {
        self.vips.values().any(|named| named.identity.address.is_unspecified())
    }

    fn basis(&self, vip: &Vip, endpoints: &BTreeMap<SocketAddr, u32>) -> Basis {
        let active = endpoints.iter().filter_map(|(address, index)| {
            let endpoint = self.content.endpoints.get(index)?;
            (endpoint.state == LB_ENDPOINT_ACTIVE as u8).then_some((*index, *address, endpoint.weight))
        });
        Basis { algorithm: vip.algorithm, active: active.collect() }
    }

    fn add(&mut self, vip: &Vip, id: u32, table: Vec<u32>, sources: &Sources) {
        self.content.vips.insert(id, value(vip, table.len() as u32));
        if !table.is_empty() {
            self.content.tables.insert(id, table);
        }
        let own = sources.of(&vip.name);
        match &vip.mode {
            VipMode::FullNat { sources: named } => {
                self.content.pools.insert(id, pool(if named.is_empty() { &own } else { named }, sources.ports));
            }
            // For clients that are endpoints themselves, and for tunnels.
            VipMode::Nat | VipMode::Dsr if !own.is_empty() => {
                self.content.pools.insert(id, pool(&own, sources.ports));
            }
            _ => {}
        }
        for (nets, verdict) in [(&vip.allow, LB_SOURCE_ALLOW), (&vip.deny, LB_SOURCE_DENY)] {
            self.content.sources.extend(nets.iter().map(|net| (source_key(id, net), verdict)));
        }
        self.add_address(vip, id, sources);
        self.interfaces.extend(vip.interfaces.iter().cloned());
    }

    fn add_address(&mut self, vip: &Vip, id: u32, sources: &Sources) {
        let Identity { address, proto, first, scope } = identity(vip);
        let key = |address, scope| lb_vip_key { addr: words_of(address), port: first.to_be(), proto, scope };
        if !address.is_unspecified() {
            return self.add_one_address(vip, address, id, sources);
        }
        self.content.vip_ids.insert(key(address, scope), id);
        let scope = scope & !LB_SCOPE_NOBODY as u8;
        for own in sources.every.iter().filter(|own| own.is_ipv4() == address.is_ipv4()) {
            // A vip that names the address has precedence, wherever it stands in the list.
            self.content.vip_ids.entry(key(*own, scope)).or_insert(id);
            if vip.mode != VipMode::Socket {
                // The host answers echo requests itself.
                let flags = LB_ADDRESS_HOST;
                let fresh = || lb_address { flags, ..lb_address::default() };
                self.content.addresses.entry(lb_address_key { addr: words_of(*own) }).or_insert_with(fresh).flags |=
                    flags;
            }
        }
    }

    fn add_one_address(&mut self, vip: &Vip, at: IpAddr, id: u32, sources: &Sources) {
        let Identity { proto, scope, .. } = identity(vip);
        let addr = words_of(at);
        let key = lb_vip_key { addr, port: vip.ports.first.to_be(), proto, scope };
        if vip.ports.first == vip.ports.last {
            self.content.vip_ids.insert(key, id);
        }
        if vip.mode == VipMode::Socket {
            // No packet may find out that there is such an address.
            return;
        }
        let address = self
            .content
            .addresses
            .entry(lb_address_key { addr })
            .or_insert_with(|| lb_address { flags: LB_ADDRESS_ECHO, ..lb_address::default() });
        if vip.mode == VipMode::Local {
            // The host has the address and answers echo requests itself.
            address.flags &= !LB_ADDRESS_ECHO;
            self.local.insert(at);
        }
        address.flags |= if self.local.contains(&at) || sources.own.contains(&at) { LB_ADDRESS_HOST } else { 0 };
        if vip.ports.first == vip.ports.last {
            return;
        }
        if let Some(range) = address.ranges.get_mut(address.range_count as usize) {
            // `check` refuses more ranges than there is room for.
            *range = lb_range { first: vip.ports.first, last: vip.ports.last, vip: id, proto, pad: [0; 3] };
            address.range_count += 1;
        }
    }
}

impl Basis {
    fn table(&self) -> Vec<u32> {
        let weighted: Vec<(SocketAddr, u32)> =
            self.active.iter().map(|(_, address, weight)| (*address, *weight)).collect();
        let slots = table::slots(self.algorithm, &weighted);
        slots.iter().filter_map(|slot| self.active.get(*slot as usize).map(|(index, _, _)| *index)).collect()
    }
}

/// Refuses vips that exceed the layouts. `config` checks the file; this is for vips from other sources.
///
/// # Errors
/// If there are too many of something.
pub(crate) fn check_limits(vips: &[Vip]) -> Result<(), Refusal> {
    let within = |what, have: usize, max: u32| {
        if have > max as usize { Err(Refusal::TooMany { what, have, max }) } else { Ok(()) }
    };
    within("vips", vips.len(), LB_VIPS_MAX)?;
    let every = vips.iter().filter(|vip| vip.address.is_unspecified()).count();
    within("addresses of vips", vips.len() + every * own::EVERY_MAX, LB_VIP_KEYS_MAX)?;
    let networks = vips.iter().map(|vip| vip.allow.len() + vip.deny.len()).sum();
    within("networks in `allow` and `deny`", networks, LB_SOURCES_MAX)?;
    within("endpoints", vips.iter().map(|vip| vip.endpoints.len()).sum(), LB_ENDPOINTS_MAX)?;
    let mut ranges: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for vip in vips {
        if vip.ports.first != vip.ports.last {
            *ranges.entry(vip.address).or_default() += 1;
        }
        if let VipMode::FullNat { sources } = &vip.mode {
            within("source addresses of a vip", sources.len(), LB_POOL_MAX)?;
        }
    }
    within("ranges of ports on one address", ranges.values().copied().max().unwrap_or(0), LB_RANGES_MAX)
}

/// The vip of each index.
pub(crate) fn identities(held: &Content) -> BTreeMap<Identity, u32> {
    let mut found = BTreeMap::new();
    let is_kept = |scope: u8| u32::from(scope) & LB_SCOPE_NOBODY != 0;
    let every: BTreeSet<u32> = held.vip_ids.iter().filter(|(key, _)| is_kept(key.scope)).map(|(_, id)| *id).collect();
    for (key, id) in &held.vip_ids {
        // A vip with every address of the host has many keys, and one of them identifies it.
        if is_kept(key.scope) || !every.contains(id) {
            let (address, first) = (address_of(key.addr), u16::from_be(key.port));
            found.insert(Identity { address, proto: key.proto, first, scope: key.scope }, *id);
        }
    }
    for (key, address) in &held.addresses {
        for range in address.ranges.iter().take(address.range_count as usize) {
            let (address, scope) = (address_of(key.addr), LB_SCOPE_PACKETS as u8);
            found.insert(Identity { address, proto: range.proto, first: range.first, scope }, range.vip);
        }
    }
    found.retain(|_, id| held.vips.contains_key(id));
    found
}

pub(crate) fn identity(vip: &Vip) -> Identity {
    let scope = if vip.mode == VipMode::Socket { LB_SCOPE_SOCKETS } else { LB_SCOPE_PACKETS };
    let kept = if vip.address.is_unspecified() { LB_SCOPE_NOBODY } else { 0 };
    Identity { address: vip.address, proto: proto(vip.transport), first: vip.ports.first, scope: (scope | kept) as u8 }
}

pub(crate) fn proto(transport: Transport) -> u8 {
    match transport {
        Transport::Tcp => TCP,
        Transport::Udp => UDP,
    }
}

fn state(vip: &Vip, weight: u32, verdict: EndpointVerdict) -> u8 {
    let keeps = vip.on_unhealthy == OnUnhealthy::Keep && vip.transport == Transport::Tcp;
    let state = match verdict {
        EndpointVerdict::Down if keeps => LB_ENDPOINT_FAILING,
        EndpointVerdict::Down => LB_ENDPOINT_DOWN,
        // An endpoint of weight 0 takes no new flows, not even those of returning clients.
        EndpointVerdict::Active if weight > 0 => LB_ENDPOINT_ACTIVE,
        EndpointVerdict::Active | EndpointVerdict::Draining => LB_ENDPOINT_DRAINING,
    };
    state as u8
}

fn value(vip: &Vip, table_slots: u32) -> lb_vip {
    let mut flags = 0;
    let mut set = |bit, when| flags |= if when { bit } else { 0 };
    set(LB_VIP_AFFINITY, vip.affinity.is_some());
    set(LB_VIP_SOURCES, !vip.allow.is_empty() || !vip.deny.is_empty());
    set(LB_VIP_SOURCES_ONLY, !vip.allow.is_empty());
    set(LB_VIP_RATE, vip.source_rate.is_some());
    set(LB_VIP_SOCKETS, is_for_sockets(vip));
    set(LB_VIP_OF_NODE, vip.is_of_node);
    lb_vip {
        table_slots,
        affinity_s: vip.affinity.map_or(0, seconds),
        syn_s: seconds(vip.timeouts.syn),
        idle_s: seconds(vip.timeouts.idle),
        closing_s: seconds(vip.timeouts.closing),
        rate_per_s: vip.source_rate.map_or(0, |rate| rate.per_second),
        rate_burst: vip.source_rate.map_or(0, |rate| rate.burst),
        mode: mode(&vip.mode) as u8,
        algorithm: algorithm(vip.algorithm) as u8,
        flags: flags as u8,
        tunnel: tunnel(vip) as u8,
    }
}

/// Whether its connections can be balanced at the socket. In mode dsr an endpoint may serve the vip's address alone. Lists and rates apply to
/// source addresses, which a socket gets after its destination.
fn is_for_sockets(vip: &Vip) -> bool {
    let is_rewritten = matches!(vip.mode, VipMode::Nat | VipMode::FullNat { .. } | VipMode::Socket);
    is_rewritten && vip.at_sockets && vip.allow.is_empty() && vip.deny.is_empty() && vip.source_rate.is_none()
}

/// Rounded up, so that a fraction of a second does not become zero.
fn seconds(duration: Duration) -> u32 {
    let whole = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    u32::try_from(whole).unwrap_or(u32::MAX)
}

fn mode(mode: &VipMode) -> u32 {
    match mode {
        VipMode::Nat => LB_MODE_NAT,
        VipMode::FullNat { .. } => LB_MODE_FULL_NAT,
        VipMode::Dsr => LB_MODE_DSR,
        VipMode::Local => LB_MODE_LOCAL,
        VipMode::Socket => LB_MODE_SOCKET,
    }
}

fn tunnel(vip: &Vip) -> u32 {
    match vip.tunnel.filter(|_| vip.mode == VipMode::Dsr) {
        None => LB_TUNNEL_NONE,
        Some(Tunnel::Ipip) => LB_TUNNEL_IPIP,
        Some(Tunnel::Gue) => LB_TUNNEL_GUE,
    }
}

fn algorithm(algorithm: VipAlgorithm) -> u32 {
    match algorithm {
        VipAlgorithm::RoundRobin => LB_ROUND_ROBIN,
        VipAlgorithm::Random => LB_RANDOM,
        VipAlgorithm::Maglev => LB_MAGLEV,
        VipAlgorithm::SourceHash => LB_SOURCE_HASH,
        VipAlgorithm::LeastConnections => LB_LEAST_CONNECTIONS,
    }
}

fn pool(addresses: &[IpAddr], (port_first, port_last): (u16, u16)) -> lb_pool {
    let mut pool = lb_pool { port_first, port_last, ..lb_pool::default() };
    for (room, address) in pool.addrs.iter_mut().zip(addresses) {
        *room = words_of(*address);
        pool.addr_count += 1;
    }
    pool
}

fn source_key(vip: u32, net: &IpNet) -> lb_source_key {
    // The vip is the first part of the prefix. An IPv4 address begins after ::ffff:.
    let before = 32 + if net.addr().is_ipv4() { 96 } else { 0 };
    let prefix_bits = before + u32::from(net.prefix_len());
    lb_source_key { prefix_bits, vip: vip.to_be(), addr: words_of(net.trunc().addr()) }
}

#[cfg(test)]
mod tests;

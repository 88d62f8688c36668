//! Decides to which interfaces the programs are attached, and which endpoints this host can serve.
//!
//! It handles the interfaces that vips name and those of their routes, the source addresses of `full_nat` vips, and the messages about all
//! these. `vip_routes` and `routes` look up routes, and `attach` attaches programs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use model::{EndpointAddress, PortRange, Vip, VipMode};

use super::Plane;
use crate::abi::LB_POOL_MAX;
use crate::interfaces::{self, Interface, LOOPBACK};
use crate::load::{self, ENTRY, EXIT, HERE};
use crate::plan::{Sources, Unreachable};
use crate::vip_routes::LOOKUPS_MAX;
use crate::{Refusal, host, own};

/// An interface that a vip names does not exist.
const GONE: &str = "gone";
/// The programs cannot read the packets of an interface.
const NOT_ETHERNET: &str = "not Ethernet";

impl Plane {
    /// The names of the interfaces on which packets of a vip arrive: those that it names, or those that were found by routes.
    pub fn interfaces_of(&self, vip: &Vip) -> Vec<String> {
        if vip.mode == VipMode::Socket {
            return Vec::new();
        }
        if !vip.interfaces.is_empty() {
            let names = |entry: &String| match interfaces::is_pattern(entry) {
                true => self.fitting(entry).map(|interface| interface.name.clone()).collect(),
                false => vec![entry.clone()],
            };
            let mut distinct = BTreeSet::new();
            return vip.interfaces.iter().flat_map(names).filter(|name| distinct.insert(name.clone())).collect();
        }
        let endpoints = sockets(vip).map(|socket| socket.ip());
        self.vip_routes
            .of(vip.address, endpoints)
            .iter()
            .filter_map(|index| self.attached.get(index))
            .cloned()
            .collect()
    }

    /// The interfaces that a pattern stands for. Packets of the loopback are this host's own, and packets without an Ethernet header cannot be
    /// read.
    fn fitting(&self, pattern: &str) -> impl Iterator<Item = &Interface> {
        let is_fit = |interface: &&Interface| interface.index != LOOPBACK && interface.ethernet;
        self.interfaces.iter().filter(is_fit).filter(move |interface| interfaces::stands_for(pattern, &interface.name))
    }

    /// Why this host cannot serve an endpoint; `None` if it can.
    pub fn why_unreachable(&self, vip: &str, endpoint: SocketAddr) -> Option<&str> {
        self.unreachable.why(vip, endpoint)
    }

    /// Looks up the routes to endpoints, at least those that are not known yet, and finds endpoints that cannot be served, for vips that
    /// name no interfaces.
    pub(super) fn find_ways(&mut self, vips: &[Vip], unreachable: &mut Unreachable) {
        let is_routed = |vip: &&Vip| vip.interfaces.is_empty() && vip.mode != VipMode::Socket;
        let routed: Vec<&Vip> = vips.iter().filter(is_routed).collect();
        // Also the leaving endpoints, which the old plan has.
        let mut wanted = self.plan.routed_endpoints(&self.held);
        wanted.extend(routed.iter().flat_map(|vip| sockets(vip)).map(|socket| socket.ip()));
        let followed = self.vip_routes.follow(&wanted, &self.interfaces);
        say(followed.and_then(|()| self.vip_routes.ask_again(&self.interfaces).map(drop)));
        for vip in routed {
            for socket in sockets(vip) {
                if let Some(why) = self.vip_routes.why_not(socket.ip()) {
                    unreachable.add(&vip.name, socket, why.to_owned());
                }
            }
        }
    }

    /// Follows the routes of the present plan.
    pub(super) fn follow_routes(&mut self) {
        let families = self.plan.families_along();
        if families == [false; 2] {
            return self.vip_routes.forget();
        }
        say(self.vip_routes.follow(&self.plan.routed_endpoints(&self.held), &self.interfaces));
        let of_clients = if self.plan.has_every() { self.every.values().copied().collect() } else { BTreeSet::new() };
        self.vip_routes.set_clients(of_clients, &self.interfaces);
        let on_links = self.plan.on_links();
        let links = if on_links.is_empty() { Ok(Vec::new()) } else { own::on_links() };
        match links {
            Ok(links) => self.vip_routes.set_links(&on_links, &links, &self.interfaces),
            Err(error) => tracing::error!(%error, "cannot list the networks of this host's interfaces"),
        }
        match self.vip_routes.ask_defaults(families, &self.interfaces) {
            Ok(unreadable) => self.warn_of_unreadable(unreadable),
            Err(error) => say(Err(error)),
        }
    }

    fn warn_of_unreadable(&mut self, interfaces: Vec<String>) {
        for interface in interfaces {
            if self.warned.insert((interface.clone(), NOT_ETHERNET)) {
                tracing::warn!(
                    interface,
                    "a default route uses an interface whose packets have no Ethernet header: vips are not attached to it"
                );
            }
        }
    }

    /// Looks routes up again, because they can change at any time.
    pub(super) fn ask_again(&mut self) {
        self.follow_routes();
        match self.vip_routes.ask_again(&self.interfaces) {
            Ok(differs) => self.reach_differs |= differs,
            Err(error) => say(Err(error)),
        }
        self.reach_differs |=
            self.sourceless.iter().take(LOOKUPS_MAX).any(|endpoint| host::source_towards(*endpoint).is_ok());
    }

    pub(super) fn warn_of_unreachable(&self, unreachable: &Unreachable) {
        for (vip, endpoint, why) in unreachable.all() {
            if self.why_unreachable(vip, endpoint).is_none() {
                tracing::warn!(vip, %endpoint, why, "an endpoint cannot be reached; the vip uses its other endpoints");
            }
        }
        for (vip, endpoint, _) in self.unreachable.all() {
            if unreachable.why(vip, endpoint).is_none() {
                tracing::info!(vip, %endpoint, "an endpoint can be reached again, or was removed");
            }
        }
    }

    /// Attaches the programs. `collected` means that another collection has begun.
    pub(super) fn attach(&mut self, collected: bool) -> Result<(), Refusal> {
        if !self.applied {
            return Ok(());
        }
        let name = |index: u32| self.interfaces.iter().find(|it| it.index == index).map(|it| (index, it.name.clone()));
        let mut wanted: BTreeMap<u32, String> = self.vip_routes.interfaces(collected).filter_map(name).collect();
        let (patterns, names): (Vec<&String>, Vec<&String>) =
            self.plan.interfaces.iter().partition(|entry| interfaces::is_pattern(entry));
        let fitting = patterns.into_iter().flat_map(|pattern| self.fitting(pattern));
        wanted.extend(fitting.map(|interface| (interface.index, interface.name.clone())));
        for name in names {
            match self.interfaces.iter().find(|interface| interface.name == *name) {
                Some(interface) => {
                    self.warned.remove(&(name.clone(), GONE));
                    wanted.insert(interface.index, name.clone());
                }
                None if self.warned.insert((name.clone(), GONE)) && self.attachments.said(name) => {
                    tracing::warn!(
                        interface = name,
                        "an interface of a vip is gone; Steelyard attaches to it again when it comes back"
                    );
                }
                None => {}
            }
        }
        let program = load::program(&self.object, ENTRY)?;
        self.attachments.sync(&program, &wanted, &self.interfaces)?;
        // Their replies leave by one of these.
        let out = if self.plan.has_endpoint_here() { wanted.clone() } else { BTreeMap::new() };
        let exit = load::program(&self.object, EXIT)?;
        self.attachments_out.sync(&exit, &out, &self.interfaces)?;
        let nothing = load::program(&self.object, HERE)?;
        self.attachments.mark(&nothing)?;
        self.attached = wanted;
        Ok(())
    }

    pub(super) fn warn_of_forwarding(&mut self, vips: &[Vip]) {
        // Interfaces may come and go under ever new names.
        let present: BTreeSet<&str> = self.interfaces.iter().map(|interface| interface.name.as_str()).collect();
        self.warned.retain(|(name, _)| self.plan.interfaces.contains(name) || present.contains(name.as_str()));
        for vip in vips.iter().filter(|vip| !matches!(vip.mode, VipMode::Local | VipMode::Socket)) {
            for interface in &self.interfaces_of(vip) {
                let (ipv6, what) = if vip.address.is_ipv6() { (true, "net.ipv6") } else { (false, "net.ipv4") };
                if host::forwards(interface, ipv6) {
                    self.warned.remove(&(interface.clone(), what));
                } else if self.warned.insert((interface.clone(), what)) {
                    tracing::warn!(
                        vip = vip.name,
                        interface,
                        "{what}.conf.{interface}.forwarding is 0, so the kernel finds no route for its packets: set it to 1"
                    );
                }
            }
        }
    }
}

fn sockets(vip: &Vip) -> impl Iterator<Item = SocketAddr> {
    vip.endpoints.iter().filter_map(|endpoint| match endpoint.address {
        EndpointAddress::Socket(address) => Some(address),
        EndpointAddress::Name { .. } | EndpointAddress::Service { .. } => None,
    })
}

/// What was known of the routes stays valid.
fn say(asked: io::Result<()>) {
    if let Err(error) = asked {
        tracing::error!(%error, "cannot ask the kernel for routes: vips stay attached to the same interfaces");
    }
}

pub(super) fn check_interfaces(vips: &[Vip], present: &[Interface]) -> Result<(), Refusal> {
    for vip in vips {
        // What fits a pattern may come later.
        for name in vip.interfaces.iter().filter(|entry| !interfaces::is_pattern(entry)) {
            let (vip, name) = (vip.name.clone(), name.clone());
            match present.iter().find(|interface| interface.name == name) {
                Some(interface) if interface.ethernet => {}
                Some(_) => return Err(Refusal::NotEthernet { vip, name }),
                None => return Err(Refusal::NoInterface { nearest: interfaces::nearest(&name, present), vip, name }),
            }
        }
    }
    Ok(())
}

/// Endpoints that are vips themselves go to `unreachable`: what was balanced once is not balanced again, so nobody would answer. A listener
/// of this host serves a vip in mode `local`.
pub(super) fn find_vips_of_vips(vips: &[Vip], unreachable: &mut Unreachable) {
    let mut forwarding = BTreeMap::<IpAddr, Vec<&Vip>>::new();
    for vip in vips.iter().filter(|vip| vip.mode != VipMode::Local) {
        forwarding.entry(vip.address).or_default().push(vip);
    }
    for vip in vips {
        for endpoint in sockets(vip) {
            let Some(others) = forwarding.get(&endpoint.ip()) else { continue };
            let ports = match endpoint.port() {
                0 => vip.ports,
                port => PortRange { first: port, last: port },
            };
            let is_same = |it: &&&Vip| {
                it.transport == vip.transport && it.ports.first <= ports.last && ports.first <= it.ports.last
            };
            if let Some(other) = others.iter().find(is_same) {
                let why =
                    format!("it is the address of the vip {}: name the endpoints of that vip instead", other.name);
                unreachable.add(&vip.name, endpoint, why);
            }
        }
    }
}

/// The source addresses of `full_nat` vips that name none, of tunnels, and of vips in mode `nat`. Endpoints of the former two without one go
/// to `unreachable`.
///
/// # Errors
/// Names every vip that has too many, so that the caller may continue without these.
pub(super) fn sources(vips: &[Vip], unreachable: &mut Unreachable) -> Result<Sources, Refusal> {
    let (mut towards, mut known) = (BTreeMap::new(), Known::new());
    let mut refused = Vec::new();
    let needs_sources = |vip: &&Vip| match &vip.mode {
        VipMode::FullNat { sources } => sources.is_empty(),
        VipMode::Dsr => vip.tunnel.is_some(),
        _ => false,
    };
    for vip in vips.iter().filter(needs_sources) {
        match sources_of(vip, &mut known, unreachable) {
            Ok(found) => drop(towards.insert(vip.name.clone(), found)),
            Err(refusal) => refused.push(refusal),
        }
    }
    match refused.pop() {
        None => {
            for vip in vips.iter().filter(|vip| vip.mode == VipMode::Nat) {
                // Only clients that are endpoints themselves need one, so a vip does without.
                let none = &mut Unreachable::default();
                let found = sources_of_all(vip, &mut known, none);
                towards.insert(vip.name.clone(), found);
            }
            // Many vips have one address, at many ports.
            let is_one = |vip: &&Vip| vip.mode != VipMode::Socket && !vip.address.is_unspecified();
            let addresses: BTreeSet<IpAddr> = vips.iter().filter(is_one).map(|vip| vip.address).collect();
            let own = own::among(addresses.into_iter());
            Ok(Sources { towards, ports: host::free_ports(), own, ..Sources::default() })
        }
        Some(only) if refused.is_empty() => Err(only),
        Some(last) => {
            refused.push(last);
            Err(Refusal::Several(refused))
        }
    }
}

/// Vips have endpoints in common, and a route does not depend on the port.
type Known = BTreeMap<IpAddr, Result<IpAddr, String>>;

fn sources_of(
    vip: &Vip,
    known: &mut Known,
    unreachable: &mut Unreachable,
) -> Result<BTreeMap<SocketAddr, IpAddr>, Refusal> {
    let found = sources_of_all(vip, known, unreachable);
    let have = found.values().collect::<BTreeSet<_>>().len();
    if have > LB_POOL_MAX as usize {
        return Err(Refusal::TooManySources { vip: vip.name.clone(), have, max: LB_POOL_MAX });
    }
    Ok(found)
}

fn sources_of_all(vip: &Vip, known: &mut Known, unreachable: &mut Unreachable) -> BTreeMap<SocketAddr, IpAddr> {
    let mut found = BTreeMap::new();
    for endpoint in sockets(vip) {
        let ask = || host::source_towards(endpoint).map_err(|error| error.to_string());
        match known.entry(endpoint.ip()).or_insert_with(ask) {
            Ok(source) => drop(found.insert(endpoint, *source)),
            Err(error) => {
                let why = format!(
                    "this host has no source address for it ({error}): add a route, or name an address in `sources` (mode full_nat)"
                );
                unreachable.add(&vip.name, endpoint, why);
            }
        }
    }
    found
}

//! Vips without named interfaces: the programs are attached to the interfaces of the routes to their endpoints, and of the default routes.
//!
//! This module knows the route to each endpoint of such vips, looks some of them up again with each collection, and determines the needed
//! interfaces. `attach` does the attaching, and `plan` knows which vips these are.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::Bound;

use netlink_sys::Socket;

use crate::interfaces::{self, Interface, LOOPBACK};
use crate::own::OnLink;
use crate::routes;

/// Endpoints whose route is looked up again in one collection, which takes some milliseconds. With more endpoints, a full round takes
/// several collections.
pub(crate) const LOOKUPS_MAX: usize = 512;
/// Collections for which an interface stays attached after no route needs it any more. A route that is gone for a moment then breaks no
/// connection, and packets that still take the old route are still translated.
const SPARE_COLLECTIONS: u8 = 5;

/// The routes that these vips need.
#[derive(Debug, Default)]
pub(crate) struct VipRoutes {
    endpoints: BTreeMap<IpAddr, EndpointRoute>,
    /// The interfaces of default routes: of IPv4, and of IPv6.
    defaults: [BTreeSet<u32>; 2],
    /// The interfaces with addresses of this host, if a vip has them all: clients may come by any of them.
    clients: BTreeSet<u32>,
    /// The interfaces on whose link the address of a vip is, if it is announced there.
    links: BTreeMap<IpAddr, BTreeSet<u32>>,
    /// The last address that the last collection looked up.
    turn: Option<IpAddr>,
    /// The interfaces to attach to, with the number of collections since they were needed.
    kept: BTreeMap<u32, u8>,
}

/// The route to an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct EndpointRoute {
    /// The interfaces of its next hops to which the programs can be attached.
    interfaces: BTreeSet<u32>,
    /// Why it cannot be served.
    why_not: Option<String>,
}

impl VipRoutes {
    /// Looks up routes that are not known yet, and forgets those that are no longer wanted.
    pub(crate) fn follow(&mut self, wanted: &BTreeSet<IpAddr>, present: &[Interface]) -> io::Result<()> {
        self.endpoints.retain(|address, _| wanted.contains(address));
        let new: Vec<IpAddr> = wanted.iter().filter(|address| !self.endpoints.contains_key(address)).copied().collect();
        self.ask(&new, present).map(drop)
    }

    /// Looks up some routes again. Returns true if an endpoint has become reachable or unreachable.
    pub(crate) fn ask_again(&mut self, present: &[Interface]) -> io::Result<bool> {
        let after = self.turn.map_or(Bound::Unbounded, Bound::Excluded);
        let next: Vec<IpAddr> =
            self.endpoints.range((after, Bound::Unbounded)).map(|(address, _)| *address).take(LOOKUPS_MAX).collect();
        self.turn = if next.len() == LOOKUPS_MAX { next.last().copied() } else { None };
        self.ask(&next, present)
    }

    fn ask(&mut self, addresses: &[IpAddr], present: &[Interface]) -> io::Result<bool> {
        if addresses.is_empty() {
            return Ok(false);
        }
        let socket = interfaces::open()?;
        let mut differs = false;
        for address in addresses {
            let route = route(&socket, *address, present);
            let before = self.endpoints.insert(*address, route.clone());
            differs |= before.is_some_and(|before| before.why_not.is_some() != route.why_not.is_some());
        }
        Ok(differs)
    }

    /// Looks up the default routes of these families (IPv4, IPv6). Returns the names of their interfaces whose packets cannot be read.
    pub(crate) fn ask_defaults(&mut self, families: [bool; 2], present: &[Interface]) -> io::Result<Vec<String>> {
        let mut unreadable = Vec::new();
        for ((defaults, ipv6), wanted) in self.defaults.iter_mut().zip([false, true]).zip(families) {
            let found = if wanted { routes::by_default(ipv6)? } else { BTreeSet::new() };
            unreadable.extend(found.iter().filter_map(|index| not_ethernet(*index, present)).cloned());
            *defaults = attachable(found, present);
        }
        Ok(unreadable)
    }

    /// Sets the interfaces that have addresses of this host, for vips that have all these addresses.
    pub(crate) fn set_clients(&mut self, interfaces: BTreeSet<u32>, present: &[Interface]) {
        self.clients = attachable(interfaces, present);
    }

    /// Sets the interfaces on whose links these addresses are announced: their clients are there.
    pub(crate) fn set_links(&mut self, addresses: &BTreeSet<IpAddr>, links: &[OnLink], present: &[Interface]) {
        let of = |address: &IpAddr| {
            let on = links.iter().filter(|link| link.contains(*address)).map(|link| link.interface);
            (*address, attachable(on.collect(), present))
        };
        self.links = addresses.iter().map(of).collect();
    }

    /// Why the endpoint cannot be served.
    pub(crate) fn why_not(&self, address: IpAddr) -> Option<&str> {
        self.endpoints.get(&address)?.why_not.as_deref()
    }

    /// The interfaces on which packets of a vip arrive: first those of its clients, by the default routes of its family, then those of its
    /// endpoints.
    pub(crate) fn of(&self, vip: IpAddr, endpoints: impl Iterator<Item = IpAddr>) -> Vec<u32> {
        let [v4, v6] = &self.defaults;
        let mut found: Vec<u32> = if vip.is_ipv6() { v6 } else { v4 }.iter().copied().collect();
        let clients = self.clients.iter().filter(|index| vip.is_unspecified() && !found.contains(index));
        found.extend(clients.copied().collect::<Vec<_>>());
        let on_link = self.links.get(&vip).into_iter().flatten().filter(|index| !found.contains(index));
        found.extend(on_link.copied().collect::<Vec<_>>());
        let endpoints =
            endpoints.filter_map(|address| self.endpoints.get(&address)).flat_map(|route| &route.interfaces);
        let more: BTreeSet<u32> = endpoints.filter(|index| !found.contains(index)).copied().collect();
        found.extend(more);
        found
    }

    /// The interfaces to attach to. `collected` means that another collection has begun.
    pub(crate) fn interfaces(&mut self, collected: bool) -> impl Iterator<Item = u32> + '_ {
        if collected {
            self.kept.values_mut().for_each(|since| *since += 1);
        }
        let of_clients = self.defaults.iter().chain([&self.clients]).chain(self.links.values());
        let needed = of_clients.chain(self.endpoints.values().map(|route| &route.interfaces)).flatten();
        self.kept.extend(needed.map(|index| (*index, 0)));
        self.kept.retain(|_, since| *since <= SPARE_COLLECTIONS);
        self.kept.keys().copied()
    }

    /// No vip without interfaces is left.
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }
}

fn route(socket: &Socket, address: IpAddr, present: &[Interface]) -> EndpointRoute {
    let by = match routes::towards(socket, address) {
        Ok(by) => by,
        Err(error) => {
            return EndpointRoute { why_not: Some(format!("no route to it: {error}")), ..EndpointRoute::default() };
        }
    };
    let interfaces = attachable(by.clone(), present);
    let other = by.iter().find_map(|index| not_ethernet(*index, present)).filter(|_| interfaces.is_empty());
    let why_not = other.map(|name| {
        format!(
            "its route uses {name}, whose packets have no Ethernet header: the kernel plane would not see its replies"
        )
    });
    EndpointRoute { interfaces, why_not }
}

/// Packets of the loopback are this host's own, and packets of tunnels without an Ethernet header cannot be read.
fn attachable(mut indexes: BTreeSet<u32>, present: &[Interface]) -> BTreeSet<u32> {
    let reads = |index: u32| index != LOOPBACK && present.iter().any(|it| it.index == index && it.ethernet);
    indexes.retain(|index| reads(*index));
    indexes
}

fn not_ethernet(index: u32, present: &[Interface]) -> Option<&String> {
    present.iter().find(|it| it.index == index && !it.ethernet).map(|it| &it.name)
}

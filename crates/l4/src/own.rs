//! Finds which addresses belong to this host. Packets to these go to its own stack, whichever interface has the address, even if only a
//! route of type `local` assigns it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::route::{RouteFlags, RouteType};
use netlink_sys::Socket;

use crate::{Reachability, interfaces, routes};

/// The addresses of this host among `addresses`. An address that the kernel cannot look up is left out.
pub fn among(addresses: impl Iterator<Item = IpAddr>) -> BTreeSet<IpAddr> {
    match interfaces::open() {
        Ok(socket) => addresses.filter(|address| is_local(&socket, *address).unwrap_or(false)).collect(),
        Err(error) => {
            tracing::error!(%error, "cannot ask the kernel which addresses this host has");
            BTreeSet::new()
        }
    }
}

/// Where packets to each of these addresses go. If the kernel cannot be asked, all of them count as local: who asks does so to leave these out.
pub fn reachability(addresses: impl Iterator<Item = IpAddr>) -> BTreeMap<IpAddr, Reachability> {
    let socket = interfaces::open()
        .inspect_err(|error| tracing::error!(%error, "cannot ask the kernel which addresses this host has"));
    let reached = |address| match &socket {
        Ok(socket) => match is_local(socket, address) {
            Ok(true) => Reachability::Local,
            Ok(false) => Reachability::Remote,
            Err(_) => Reachability::Unreachable,
        },
        Err(_) => Reachability::Local,
    };
    addresses.map(|address| (address, reached(address))).collect()
}

/// The most addresses of each family that a vip with every address of this host has: nodes have some, and each costs such a vip a key.
pub(crate) const EVERY_MAX: usize = 16;

/// Datagrams of an answer. Each holds some dozens of addresses.
const DATAGRAMS_MAX: usize = 1024;

/// The addresses of this host that others can reach, with the index of an interface that has each: not those of the loopback network or of
/// a single link. At most [`EVERY_MAX`] of each family, in the order of the kernel.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn every() -> io::Result<BTreeMap<IpAddr, u32>> {
    let mut found = BTreeMap::new();
    each(|address, index| {
        if found.keys().filter(|other: &&IpAddr| other.is_ipv4() == address.is_ipv4()).count() < EVERY_MAX {
            found.entry(address).or_insert(index);
        }
    })?;
    Ok(found)
}

/// All addresses of interfaces that others can reach, of which there may be more. Unlike [`among`], leaves out what only a route assigns.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn assigned() -> io::Result<BTreeSet<IpAddr>> {
    let mut found = BTreeSet::new();
    each(|address, _| {
        found.insert(address);
    })?;
    Ok(found)
}

/// A network that an interface is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OnLink {
    pub(crate) interface: u32,
    own: IpAddr,
    prefix_bits: u8,
}

impl OnLink {
    /// Whether others on the link expect the address there. The network of a single address has no others.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let network = ipnet::IpNet::new(self.own, self.prefix_bits);
        network.is_ok_and(|network| network.prefix_len() < network.max_prefix_len() && network.contains(&address))
    }
}

/// The networks of this host's interfaces.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn on_links() -> io::Result<Vec<OnLink>> {
    let mut found = Vec::new();
    each_message(|message| {
        let own = address_of(message).filter(is_reached_by_others);
        let prefix_bits = message.header.prefix_len;
        found.extend(own.map(|own| OnLink { interface: message.header.index, own, prefix_bits }));
    })?;
    Ok(found)
}

/// Passes each address that others can reach to `take`, with the index of its interface.
fn each(mut take: impl FnMut(IpAddr, u32)) -> io::Result<()> {
    each_message(|message| {
        if let Some(address) = address_of(message).filter(is_reached_by_others) {
            take(address, message.header.index);
        }
    })
}

fn each_message(mut take: impl FnMut(&AddressMessage)) -> io::Result<()> {
    let socket = interfaces::open()?;
    interfaces::send(&socket, RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP)?;
    for _ in 0..DATAGRAMS_MAX {
        let (datagram, _) = socket.recv_from_full()?;
        let is_last = interfaces::for_each(&datagram, |message| {
            if let RouteNetlinkMessage::NewAddress(message) = message {
                take(&message);
            }
            ControlFlow::Continue(())
        })?;
        if is_last {
            return Ok(());
        }
    }
    Err(io::Error::other("the answer does not end"))
}

/// On a link between two hosts, `Address` is the other one's (rtnetlink(7)).
fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    let of = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    };
    let any = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    };
    message.attributes.iter().find_map(of).or_else(|| message.attributes.iter().find_map(any))
}

fn is_reached_by_others(address: &IpAddr) -> bool {
    let of_link = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast() && !of_link
}

/// Only routes of type `local` lead to this host itself. Having no route at all is an error.
fn is_local(socket: &Socket, address: IpAddr) -> io::Result<bool> {
    routes::to(socket, address, RouteFlags::empty()).map(|route| route.header.kind == RouteType::Local)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use testkit::netns::Netns;

    use super::*;

    #[test]
    fn addresses_of_a_namespace() {
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(std::io::stderr(), "SKIP addresses_of_a_namespace: network namespaces are root's");
            return;
        }
        let netns = Netns::new("own").unwrap();
        // Two addresses of one subnet, where the kernel uses the first as the source for the second, and one that only a route assigns.
        let link = "link add v0 type veth peer name v1\nlink set dev v0 up\nlink set dev v1 up";
        let addresses = "addr add 10.0.0.1/24 dev v0\naddr add 10.0.0.2/24 dev v0\naddr add fd00::1/64 dev v0";
        let routes = "route add local 20.20.20.0/24 dev lo\nroute add 10.9.0.0/16 dev v0";
        netns.ip(&format!("{link}\n{addresses}\n{routes}")).unwrap();
        let ours = ["127.0.0.1", "127.9.9.9", "10.0.0.1", "10.0.0.2", "20.20.20.7", "::1", "fd00::1"];
        let others = ["10.0.0.3", "10.9.1.1", "192.0.2.1", "fd00::2", "2001:db8::1"];
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        let expect = ours.iter().map(|text| parse(text)).collect();
        // An IPv6 address gets its local route only after a worker of the kernel has handled it, even with `nodad`.
        let mut found = BTreeSet::new();
        testkit::until(testkit::PATIENCE, || {
            found = netns.inside(|| among(ours.iter().chain(&others).map(|text| parse(text))));
            (found == expect).then_some(())
        });
        assert_eq!(found, expect);
        let reached = netns.inside(|| reachability(ours.iter().chain(&others).map(|text| parse(text))));
        let are = |kind: Reachability| {
            let of_kind = reached.iter().filter(|(_, found)| **found == kind);
            of_kind.map(|(address, _)| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(are(Reachability::Local).len(), ours.len());
        assert_eq!(are(Reachability::Remote), ["10.0.0.3", "10.9.1.1", "fd00::2"]);
        assert_eq!(are(Reachability::Unreachable), ["192.0.2.1", "2001:db8::1"]);
        let every: Vec<String> = netns.inside(super::every).unwrap().keys().map(ToString::to_string).collect();
        assert_eq!(every, ["10.0.0.1", "10.0.0.2", "fd00::1"]);
        let lines: Vec<String> = (1..=2 * EVERY_MAX).map(|n| format!("addr add 10.7.0.{n}/32 dev v0")).collect();
        netns.ip(&lines.join("\n")).unwrap();
        let every = netns.inside(super::every).unwrap();
        assert_eq!(netns.inside(assigned).unwrap().len(), 3 + 2 * EVERY_MAX);
        assert_eq!(every.keys().filter(|address| address.is_ipv4()).count(), EVERY_MAX);
        assert!(every.contains_key(&parse("10.0.0.1")) && every.contains_key(&parse("fd00::1")), "{every:?}");
    }
}

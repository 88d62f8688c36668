//! Finds the interfaces of this host's routes, to an address and by default. Uses netlink, as `ip route` does.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_DUMP, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;

use crate::interfaces;

/// Datagrams of a dump. Each holds some hundreds of routes. Default routes after these are not found.
const DATAGRAMS_MAX: usize = 64;

/// The route to an address. `flags` select the route that would be used, or the entry of the table that it comes from.
///
/// # Errors
/// If there is none, or the kernel refuses.
pub(crate) fn to(socket: &Socket, address: IpAddr, flags: RouteFlags) -> io::Result<RouteMessage> {
    let mut about = RouteMessage::default();
    let (family, bits, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
    };
    about.header.address_family = family;
    about.header.destination_prefix_length = bits;
    about.header.flags = flags;
    about.attributes.push(RouteAttribute::Destination(destination));
    interfaces::send(socket, RouteNetlinkMessage::GetRoute(about), 0)?;
    let (datagram, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => Ok(route),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::Error::other("the answer is to another request")),
    }
}

/// The interfaces by which packets to an address may leave, over all next hops of the route. Empty if this host has the address itself.
///
/// # Errors
/// If there is no route, or the kernel refuses.
pub(crate) fn towards(socket: &Socket, address: IpAddr) -> io::Result<BTreeSet<u32>> {
    let route = to(socket, address, RouteFlags::FibMatch)?;
    Ok(if route.header.kind == RouteType::Local { BTreeSet::new() } else { by(&route) })
}

/// The interfaces of the default routes in the main table.
///
/// # Errors
/// If the kernel refuses.
pub(crate) fn by_default(ipv6: bool) -> io::Result<BTreeSet<u32>> {
    // Uses a socket of its own, because it is closed while the kernel may still have more to send.
    let socket = interfaces::open()?;
    socket.set_netlink_get_strict_chk(true)?;
    let mut about = RouteMessage::default();
    about.header.address_family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    about.header.table = RouteHeader::RT_TABLE_MAIN;
    interfaces::send(&socket, RouteNetlinkMessage::GetRoute(about), NLM_F_DUMP)?;
    let mut found = BTreeSet::new();
    for _ in 0..DATAGRAMS_MAX {
        let (datagram, _) = socket.recv_from_full()?;
        if read_defaults(&datagram, &mut found)? {
            break;
        }
    }
    Ok(found)
}

/// Returns true if no default route can follow this datagram.
fn read_defaults(datagram: &[u8], found: &mut BTreeSet<u32>) -> io::Result<bool> {
    interfaces::for_each(datagram, |message| {
        if let RouteNetlinkMessage::NewRoute(route) = message {
            if route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast {
                found.extend(by(&route));
            } else if is_behind_defaults(&route) {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })
}

/// The kernel lists IPv4 routes in the order of their addresses, so a table of a million need not be read. IPv6 routes have no such order.
fn is_behind_defaults(route: &RouteMessage) -> bool {
    route.attributes.iter().any(
        |attribute| matches!(attribute, RouteAttribute::Destination(RouteAddress::Inet(to)) if !to.is_unspecified()),
    )
}

fn by(route: &RouteMessage) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => drop(found.insert(*index)),
            RouteAttribute::MultiPath(hops) => found.extend(hops.iter().map(|hop| hop.interface_index)),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use testkit::netns::Netns;

    use super::*;

    #[test]
    fn interfaces_that_routes_lead_by() {
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(std::io::stderr(), "SKIP interfaces_that_routes_lead_by: network namespaces are root's");
            return;
        }
        let netns = Netns::new("routes").unwrap();
        let links: String = (0..3).map(|n| format!("link add v{n} index {} type veth peer name w{n}\nlink set dev v{n} up\nlink set dev w{n} up\naddr add 10.0.{n}.1/24 dev v{n}\naddr add fd00:{n}::1/64 dev v{n} nodad\n", 10 + n)).collect();
        netns.ip(&links).unwrap();
        let ask = |address: &str| {
            let address = address.parse().unwrap();
            netns.inside(|| towards(&interfaces::open().unwrap(), address)).map_err(|error| error.kind())
        };
        let defaults = || [false, true].map(|ipv6| netns.inside(|| by_default(ipv6)).unwrap());
        assert_eq!(defaults(), [BTreeSet::new(), BTreeSet::new()]);
        assert_eq!(ask("10.9.9.9"), Err(io::ErrorKind::NetworkUnreachable));
        assert_eq!(ask("fd00:9::9"), Err(io::ErrorKind::NetworkUnreachable));
        netns.ip("route add blackhole 10.8.0.0/16").unwrap();
        assert!(ask("10.8.9.9").is_err());
        for (address, by) in [
            ("10.0.1.7", Some(11)),
            ("fd00:2::7", Some(12)),
            ("10.0.1.1", None),
            ("127.0.0.1", None),
            ("fd00:1::1", None),
        ] {
            let expect = Ok(by.into_iter().collect());
            // The kernel adds the route of an own IPv6 address a moment after the address.
            testkit::until(testkit::PATIENCE, || (ask(address) == expect).then_some(()));
            assert_eq!(ask(address), expect, "{address}");
        }
        let hops = |a: &str, b: &str| format!("nexthop via {a} dev v0 nexthop via {b} dev v1");
        netns.ip(&format!("route add 10.7.0.0/16 {}", hops("10.0.0.2", "10.0.1.2"))).unwrap();
        netns.ip(&format!("route add fd00:7::/64 {}", hops("fd00:0::2", "fd00:1::2"))).unwrap();
        assert_eq!((ask("10.7.1.1"), ask("fd00:7::1")), (Ok([10, 11].into()), Ok([10, 11].into())));
        // Several metrics and hops, and routes to other networks beside them.
        netns.ip("route add default via 10.0.2.2\nroute add default via 10.0.1.2 metric 7\nroute add 0.0.0.0/1 dev v0\nroute add default via fd00:2::2 metric 7").unwrap();
        netns.ip(&format!("route add default {}", hops("fd00:0::2", "fd00:1::2"))).unwrap();
        let many: String = (0..2000)
            .map(|n| {
                format!("route add 10.{}.{}.0/24 dev v0\nroute add fd01:{n:x}::/32 dev v0\n", 100 + n / 250, n % 250)
            })
            .collect();
        netns.ip(&many).unwrap();
        assert_eq!(defaults(), [[11, 12].into(), [10, 11, 12].into()]);
    }
}

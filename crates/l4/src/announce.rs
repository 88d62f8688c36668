//! Routes for the addresses of vips, which a routing daemon passes on to routers. No packet uses them: the programs see it before.
//!
//! The type of a route is `unreachable`. Of the types that FRR's `redistribute kernel` takes (8.4: unicast, blackhole, unreachable; not
//! local), it is the one that does no harm on this host: a packet that the programs leave alone is answered, and neither sent back to the
//! router nor around the loopback.
//!
//! Not here: when an address is announced.

use std::io;
use std::net::IpAddr;
use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::interfaces;

/// The number by which the routes are known as ours (`ip route show proto 83`). zebra removes routes with the numbers of its own daemons
/// when it starts, and some other daemons have numbers of their own; nobody is known to have this one.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(83);

/// Datagrams of a dump. Each holds some dozens of routes, and there are at most as many routes as vips.
const DATAGRAMS_MAX: usize = 4096;

/// A route to one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AnnouncedRoute {
    /// The address.
    pub address: IpAddr,
    /// The routing table.
    pub table: u32,
    /// The metric.
    pub metric: u32,
}

impl AnnouncedRoute {
    /// Those that exist, whichever process made them.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn all() -> io::Result<Vec<Self>> {
        let mut found = of_family(false)?;
        found.extend(of_family(true)?);
        Ok(found)
    }

    /// Adds the route.
    ///
    /// # Errors
    /// If the kernel refuses, or (`AlreadyExists`) if the table has a route to the address with this metric, this one or another.
    pub fn add(self) -> io::Result<()> {
        ask(RouteNetlinkMessage::NewRoute(self.message()), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes the route. It is no error if there is none.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(self) -> io::Result<()> {
        match ask(RouteNetlinkMessage::DelRoute(self.message()), 0) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            outcome => outcome,
        }
    }

    fn message(self) -> RouteMessage {
        let mut about = RouteMessage::default();
        let (family, bits, destination) = match self.address {
            IpAddr::V4(address) => (AddressFamily::Inet, 32, RouteAddress::Inet(address)),
            IpAddr::V6(address) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(address)),
        };
        about.header.address_family = family;
        about.header.destination_prefix_length = bits;
        about.header.protocol = PROTOCOL;
        about.header.kind = RouteType::Unreachable;
        about.header.table = u8::try_from(self.table).unwrap_or(RouteHeader::RT_TABLE_UNSPEC);
        about.attributes = vec![
            RouteAttribute::Destination(destination),
            RouteAttribute::Table(self.table),
            RouteAttribute::Priority(self.metric),
        ];
        about
    }
}

/// Removes all of them.
///
/// # Errors
/// If the kernel refuses.
pub fn withdraw_all() -> io::Result<()> {
    AnnouncedRoute::all()?.into_iter().try_for_each(AnnouncedRoute::remove)
}

fn of_family(ipv6: bool) -> io::Result<Vec<AnnouncedRoute>> {
    // Uses a socket of its own, because it is closed while the kernel may still have more to send.
    let socket = interfaces::open()?;
    // The kernel then lists only what the request describes: a table may have a million routes of others.
    socket.set_netlink_get_strict_chk(true)?;
    let mut about = RouteMessage::default();
    about.header.address_family = if ipv6 { AddressFamily::Inet6 } else { AddressFamily::Inet };
    about.header.protocol = PROTOCOL;
    interfaces::send(&socket, RouteNetlinkMessage::GetRoute(about), NLM_F_DUMP)?;
    let mut found = Vec::new();
    for _ in 0..DATAGRAMS_MAX {
        let (datagram, _) = socket.recv_from_full()?;
        let is_last = interfaces::for_each(&datagram, |message| {
            if let RouteNetlinkMessage::NewRoute(route) = message {
                found.extend(read(&route));
            }
            ControlFlow::Continue(())
        })?;
        if is_last {
            return Ok(found);
        }
    }
    Err(io::Error::other("the answer does not end"))
}

fn read(route: &RouteMessage) -> Option<AnnouncedRoute> {
    let header = &route.header;
    let host = if header.address_family == AddressFamily::Inet6 { 128 } else { 32 };
    if header.protocol != PROTOCOL || header.kind != RouteType::Unreachable || header.destination_prefix_length != host
    {
        return None;
    }
    let (mut address, mut table, mut metric) = (None, u32::from(header.table), 0);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(to)) => address = Some(IpAddr::from(*to)),
            RouteAttribute::Destination(RouteAddress::Inet6(to)) => address = Some(IpAddr::from(*to)),
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Priority(number) => metric = *number,
            _ => {}
        }
    }
    Some(AnnouncedRoute { address: address?, table, metric })
}

/// Sends a request and waits for its outcome.
fn ask(request: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let socket = interfaces::open()?;
    interfaces::send(&socket, request, flags | NLM_F_ACK)?;
    let (datagram, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&datagram).map_err(io::Error::other)?;
    match answer.payload {
        NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::Error::other("the answer is to another request")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use testkit::netns::Netns;

    use super::*;

    #[test]
    fn routes_come_and_go() {
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(std::io::stderr(), "SKIP routes_come_and_go: network namespaces are root's");
            return;
        }
        let netns = Netns::new("announce").unwrap();
        let route = |address: &str, table, metric| AnnouncedRoute { address: address.parse().unwrap(), table, metric };
        let mut ours = vec![
            route("192.0.2.7", 254, 1024),
            route("192.0.2.7", 254, 7),
            route("192.0.2.8", 1000, 1024),
            route("2001:db8::7", 254, 1024),
            route("2001:db8::7", 1000, 1024),
        ];
        netns.ip("route add unreachable 192.0.2.9 metric 1024\nroute add unreachable 192.0.3.0/24 proto 83").unwrap();
        netns.ip("route add blackhole 2001:db8::9 proto 83 metric 1024").unwrap();
        ours.sort();
        let found = || {
            let mut found = netns.inside(AnnouncedRoute::all).unwrap();
            found.sort();
            found
        };
        let each = |what: fn(AnnouncedRoute) -> io::Result<()>| -> Vec<Option<io::ErrorKind>> {
            netns.inside(|| ours.iter().map(|route| what(*route).err().map(|error| error.kind())).collect())
        };
        assert_eq!(each(AnnouncedRoute::add), vec![None; 5]);
        assert_eq!(found(), ours);
        assert_eq!(each(AnnouncedRoute::add), vec![Some(io::ErrorKind::AlreadyExists); 5]);
        let shown = netns.run(&["ip", "route", "show", "proto", "83", "192.0.2.7"]).unwrap();
        let lines = |shown: &str| shown.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
        assert_eq!(lines(&shown), ["unreachable 192.0.2.7 metric 7", "unreachable 192.0.2.7 metric 1024"]);
        // A route of another owner is neither taken for ours nor removed.
        let taken = netns.inside(|| route("192.0.2.9", 254, 1024).add().unwrap_err().kind());
        assert_eq!(taken, io::ErrorKind::AlreadyExists);
        assert_eq!(netns.inside(|| route("192.0.2.9", 254, 1024).remove()).map_err(|error| error.kind()), Ok(()));
        assert_eq!(each(AnnouncedRoute::remove), vec![None; 5]);
        assert_eq!(each(AnnouncedRoute::remove), vec![None; 5]);
        assert_eq!(found(), []);
        let left = netns.run(&["ip", "route", "show", "table", "main"]).unwrap();
        assert_eq!(lines(&left), ["unreachable 192.0.2.9 metric 1024", "unreachable 192.0.3.0/24 proto 83"]);
    }
}

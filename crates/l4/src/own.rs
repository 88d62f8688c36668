//! Finds which addresses belong to this host. Packets to these go to its own stack, whichever interface has the address, even if only a
//! route of type `local` assigns it.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{RouteFlags, RouteType};
use netlink_sys::Socket;

use crate::{interfaces, routes};

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
    }
}

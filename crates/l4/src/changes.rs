//! Says when the interfaces, addresses or routes of this network namespace change, by the kernel's own messages (rtnetlink(7)).
//!
//! Messages are only counted as a reason to look again: they can be lost, and a full table of a routing daemon sends millions of them. What is
//! there is always read anew, by `interfaces`, `own` and `routes`.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// Messages that one call of [`Changes::drain`] discards. A flood leaves the rest in the socket, where the kernel discards what exceeds its
/// buffer.
const DRAINED_MAX: usize = 512;

/// The groups of links, of addresses and of routes of both families (`RTNLGRP_*`).
const GROUPS: [u32; 5] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// A socket that can be read when something has changed.
#[derive(Debug)]
pub struct Changes(Socket);

impl Changes {
    /// Listens from now on.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn listen() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Discards the messages that have arrived. Returns whether there were any, and whether all are gone.
    pub fn drain(&self) -> (bool, bool) {
        let mut any = false;
        for _ in 0..DRAINED_MAX {
            // Only the beginning of a message is copied, and nothing of it is used.
            let mut head = Vec::with_capacity(16);
            match self.0.recv(&mut head, libc::MSG_DONTWAIT | libc::MSG_TRUNC) {
                Ok(_) => any = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return (any, true),
                // The buffer was full: something was lost, which is a change like any other.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => any = true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(%error, "cannot read about changes of the network");
                    return (any, true);
                }
            }
        }
        (any, false)
    }
}

impl AsRawFd for Changes {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use testkit::netns::Netns;

    use super::*;

    #[test]
    fn what_changes_is_said() {
        if !rustix::process::geteuid().is_root() {
            _ = writeln!(std::io::stderr(), "SKIP what_changes_is_said: network namespaces are root's");
            return;
        }
        let netns = Netns::new("changes").unwrap();
        let changes = netns.inside(Changes::listen).unwrap();
        assert_eq!(changes.drain(), (false, true));
        // The message is in the socket when `ip` has its answer.
        for change in [
            "link add v0 type veth peer name v1",
            "link set v0 up",
            "addr add 10.0.0.1/24 dev v0",
            "addr add fd00::1/64 dev v0",
            "route add 10.9.0.0/16 dev v0",
            "route add unreachable fd00:9::/64",
            "link del v0",
        ] {
            netns.ip(change).unwrap();
            assert!(changes.drain().0, "{change}");
            while changes.drain().0 {}
        }
        // More than the socket holds: what was lost counts too, and the rest is bounded.
        let many: String =
            (0..20_000).map(|n| format!("route add 10.{}.{}.0/24 dev lo\n", 100 + n / 250, n % 250)).collect();
        netns.ip(&format!("link set lo up\n{many}")).unwrap();
        let mut rounds = 0;
        while !changes.drain().1 {
            rounds += 1;
        }
        assert!((0..200).contains(&rounds), "{rounds}");
        netns.ip("link add v0 type veth peer name v1").unwrap();
        assert!(changes.drain().0);
    }
}

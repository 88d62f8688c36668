//! A node's end of the link to the API server, and a node of which every address is its own.

use testkit::netns::Netns;

use super::ApiServer;

/// Where controllers listen.
pub const GATEWAY: &str = "10.244.0.1";

/// A network namespace that owns a range of addresses.
pub fn node() -> Netns {
    let netns = Netns::new("node").unwrap();
    netns.ip("route add local 10.244.0.0/16 dev lo\nroute add local fd00:244::/64 dev lo").unwrap();
    // Of IPv6 only addresses of interfaces may be listened at, whatever the routes say.
    netns.sysctl("net.ipv6.ip_nonlocal_bind", "1").unwrap();
    // What the Deployment asks its node for: ports below 1024 need no right.
    netns.sysctl("net.ipv4.ip_unprivileged_port_start", "0").unwrap();
    netns
}

/// A namespace's way to the API server.
pub struct Link<'a> {
    api_server: &'a ApiServer,
    /// The API server's end.
    name: String,
}

impl<'a> Link<'a> {
    /// Joins a namespace to the API server.
    pub fn new(api_server: &'a ApiServer, netns: &Netns) -> Self {
        Self { api_server, name: api_server.join(netns) }
    }

    /// All that is said is lost on the way, and nobody is told: the other end of the link stays up, and so do its routes.
    pub fn lose(&self) {
        self.api_server.netns.ip(&format!("link set dev {} down", self.name)).unwrap();
    }

    /// Nothing is lost any more.
    pub fn lose_no_more(&self) {
        self.api_server.netns.ip(&format!("link set dev {} up", self.name)).unwrap();
    }
}

//! Connections that the kernel redirects to a sidecar, and the identities of sidecars.

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;

use crate::ClusterId;

/// The side of the application on which connections are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the application.
    Inbound,
    /// From the application.
    Outbound,
}

impl Direction {
    /// As the file writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Outbound => "outbound",
        }
    }

    /// The listener that the connections of this direction are redirected to. No listener of a file can have this name.
    pub fn listener(self) -> &'static str {
        match self {
            Self::Inbound => "sidecar/inbound",
            Self::Outbound => "sidecar/outbound",
        }
    }
}

/// The listener that the kernel redirects the connections of one direction to. It asks the kernel for the original destination of each, and
/// passes the connection to the listener that captures this destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureListener {
    /// Which connections these are.
    pub direction: Direction,
    /// What happens to a connection whose destination no listener captures.
    pub unknown: UnknownDestination,
    /// Clients may connect in plain text although the listener has [`crate::Listener::tls`]. Without that, it has no effect.
    pub admits_plain: bool,
    /// How long to wait for the first byte, or for as many as tell protocols apart, before a connection counts as one whose server sends
    /// first.
    pub detect_timeout: Duration,
    /// How long both directions of a connection to an unknown destination may be silent; then it is closed.
    pub idle_timeout: Duration,
    /// What the kernel leaves alone.
    pub excluded: Excluded,
    /// The user that the sidecar runs as. The kernel leaves its connections alone, or they would come back to it.
    pub user: u32,
}

/// What happens to a connection whose destination no listener captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownDestination {
    /// It is relayed to its original destination, byte for byte.
    Pass,
    /// It is reset, and counted.
    Refuse,
}

/// Connections that are not captured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    /// Those to these ports.
    pub ports: Vec<u16>,
    /// Inbound: those from these networks. Outbound: those to them.
    pub networks: Vec<IpNet>,
}

/// The connections that a listener without a socket of its own serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Their direction.
    pub direction: Direction,
    /// Their destinations, at least one. Of several listeners, the one with the longest network that has the destination counts.
    pub destinations: Vec<Destination>,
    /// Clients may connect in plain text although the listener has [`crate::Listener::tls`].
    pub admits_plain: bool,
    /// Whether the first bytes decide if a connection speaks HTTP; `None` means that the protocol of the listener is known. Only with
    /// [`crate::Protocol::Http`].
    pub detect: Option<Detect>,
    /// See [`CaptureListener::detect_timeout`].
    pub detect_timeout: Duration,
}

/// Where a connection was going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// `None` means every address.
    pub network: Option<IpNet>,
    /// The port.
    pub port: u16,
}

impl Destination {
    /// Whether it includes this address.
    pub fn has(&self, address: SocketAddr) -> bool {
        self.port == address.port() && self.network.is_none_or(|network| network.contains(&address.ip()))
    }

    /// The more specific of two destinations has the larger rank.
    pub fn rank(&self) -> u8 {
        self.network.map_or(0, |network| network.prefix_len() + 1)
    }
}

impl std::fmt::Display for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.network {
            None => write!(f, "*:{}", self.port),
            Some(network) if network.prefix_len() == network.max_prefix_len() => {
                SocketAddr::new(network.addr(), self.port).fmt(f)
            }
            Some(IpNet::V6(network)) => write!(f, "[{network}]:{}", self.port),
            Some(network) => write!(f, "{network}:{}", self.port),
        }
    }
}

/// What happens to a connection that does not speak HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detect {
    /// The cluster that it is relayed to; `None` means its original destination.
    pub to: Option<ClusterId>,
    /// How long both of its directions may be silent; then it is closed.
    pub idle_timeout: Duration,
}

/// SPIFFE ids (<https://spiffe.io/docs/latest/spiffe-specs/spiffe-id/>): one, or all below a path or in a trust domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpiffeMatcher {
    /// `spiffe://example.org/ns/shop/sa/web`, byte for byte.
    Exact(String),
    /// Ends with `/`: `spiffe://example.org/ns/shop/`, or `spiffe://example.org/` for the whole trust domain.
    Below(String),
}

impl SpiffeMatcher {
    /// Whether a URI is one of these ids. One with an empty segment, `.` or `..` is no id (section 2.2), and is below nothing.
    pub fn matches(&self, uri: &str) -> bool {
        match self {
            Self::Exact(id) => id == uri,
            Self::Below(prefix) => uri
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.split('/').all(|segment| !matches!(segment, "" | "." | ".."))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_below_a_path() {
        let check = |matcher: &SpiffeMatcher, uri: &str, expect: bool| {
            assert_eq!(matcher.matches(uri), expect, "{matcher:?} {uri}");
        };
        let exact = SpiffeMatcher::Exact("spiffe://example.org/web".into());
        check(&exact, "spiffe://example.org/web", true);
        check(&exact, "spiffe://example.org/web/", false);
        check(&exact, "spiffe://example.org/Web", false);
        let domain = SpiffeMatcher::Below("spiffe://example.org/".into());
        check(&domain, "spiffe://example.org/web", true);
        check(&domain, "spiffe://example.org/", false);
        check(&domain, "spiffe://example.org", false);
        check(&domain, "spiffe://example.org.evil/web", false);
        check(&domain, "https://example.org/web", false);
        check(&domain, "spiffe://example.org/ns/../web", false);
        check(&domain, "spiffe://example.org/./web", false);
        check(&domain, "spiffe://example.org/ns//web", false);
        check(&domain, "spiffe://example.org/ns/..web", true);
    }

    #[test]
    fn destinations() {
        let check = |network: Option<&str>, shown: &str, has: &str, expect: bool| {
            let destination = Destination { network: network.map(|network| network.parse().unwrap()), port: 80 };
            assert_eq!(destination.to_string(), shown);
            assert_eq!(destination.has(has.parse().unwrap()), expect, "{shown} {has}");
        };
        check(None, "*:80", "10.0.0.1:80", true);
        check(None, "*:80", "10.0.0.1:81", false);
        check(Some("10.0.0.1/32"), "10.0.0.1:80", "10.0.0.1:80", true);
        check(Some("10.0.0.0/8"), "10.0.0.0/8:80", "11.0.0.1:80", false);
        check(Some("fd00::1/128"), "[fd00::1]:80", "[fd00::1]:80", true);
        check(Some("fd00::/8"), "[fd00::/8]:80", "10.0.0.1:80", false);
    }
}

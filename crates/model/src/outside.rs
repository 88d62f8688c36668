//! Clusters whose endpoints somebody named who is not the operator: hosts outside of a Kubernetes cluster, in an annotation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{Ipv4Net, Ipv6Net};

/// What holds for the endpoints of such a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The addresses that are used. Others are dropped when a name is resolved, and again before a connection is made.
    pub reach: Reach,
    /// A token of this installation, the same for all of its replicas. Requests to the cluster have it in `CDN-Loop` (RFC 8586). A request that
    /// arrives with it is not asked about at such a cluster, and not copied to one: the host may lead back here.
    pub mark: Arc<str>,
    /// The namespace of those who named the endpoints; `None` means that the operator did. Names of one namespace hold up those of no other.
    pub namespace: Option<Arc<str>>,
}

/// Which addresses are used. [`Reach::allows`] has those that never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// Those of the Internet (the registries of RFC 6890).
    Public,
    /// Those of private networks, too.
    Private,
}

impl Reach {
    /// Whether an endpoint may have this address.
    ///
    /// Never: loopback, link-local (with the metadata of clouds), this network, multicast, broadcast, IPv4 addresses within IPv6 that a
    /// translator or a tunnel could take somewhere else (mapped, compatible, 6to4, Teredo, local NAT64), and the addresses outside of these
    /// networks where clouds answer with credentials. An address of the well-known prefix of NAT64 (RFC 6052) is judged by the IPv4 address in it.
    pub fn allows(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.allows_v4(address),
            IpAddr::V6(address) => self.allows_v6(address),
        }
    }

    fn allows_v4(self, address: Ipv4Addr) -> bool {
        let within = |networks: &[Ipv4Net]| networks.iter().any(|network| network.contains(&address));
        !within(&NEVER_V4) && (self == Self::Private || !within(&NOT_PUBLIC_V4))
    }

    fn allows_v6(self, address: Ipv6Addr) -> bool {
        let within = |networks: &[Ipv6Net]| networks.iter().any(|network| network.contains(&address));
        if NAT64.contains(&address) {
            let [.., a, b, c, d] = address.octets();
            return self.allows_v4(Ipv4Addr::new(a, b, c, d));
        }
        let is_unicast = GLOBAL_V6.contains(&address) && !within(&NOT_GLOBAL_V6);
        is_unicast || self == Self::Private && UNIQUE_LOCAL_V6.contains(&address) && !within(&METADATA_V6)
    }
}

const fn v4(a: u8, b: u8, c: u8, d: u8, bits: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), bits)
}

const fn v6(a: u16, b: u16, c: u16, h: u16, bits: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, h), bits)
}

const NEVER_V4: [Ipv4Net; 8] = [
    // This network, loopback, link-local, multicast, broadcast.
    v4(0, 0, 0, 0, 8),
    v4(127, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(224, 0, 0, 0, 4),
    v4(255, 255, 255, 255, 32),
    // Protocol assignments, among them the metadata of Oracle Cloud for iSCSI; metadata of Alibaba Cloud; the agent's server of Azure.
    v4(192, 0, 0, 0, 24),
    v4(100, 100, 100, 200, 32),
    v4(168, 63, 129, 16, 32),
];

const NOT_PUBLIC_V4: [Ipv4Net; 10] = [
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(172, 16, 0, 0, 12),
    v4(192, 168, 0, 0, 16),
    // Documentation, the anycast of 6to4, benchmarks, reserved.
    v4(192, 0, 2, 0, 24),
    v4(192, 88, 99, 0, 24),
    v4(198, 18, 0, 0, 15),
    v4(198, 51, 100, 0, 24),
    v4(203, 0, 113, 0, 24),
    v4(240, 0, 0, 0, 4),
];

/// All that is assigned as global unicast. Everything outside of it is refused, so neither the mapped addresses nor what comes later needs an entry.
const GLOBAL_V6: Ipv6Net = v6(0x2000, 0, 0, 0, 3);
const NOT_GLOBAL_V6: [Ipv6Net; 4] = [
    // Protocol assignments with Teredo, documentation, 6to4, documentation.
    v6(0x2001, 0, 0, 0, 23),
    v6(0x2001, 0xdb8, 0, 0, 32),
    v6(0x2002, 0, 0, 0, 16),
    v6(0x3fff, 0, 0, 0, 20),
];
const UNIQUE_LOCAL_V6: Ipv6Net = v6(0xfc00, 0, 0, 0, 7);
/// The metadata of AWS, Scaleway, Google Cloud, Oracle Cloud, Akamai and Alibaba Cloud.
const METADATA_V6: [Ipv6Net; 6] = [
    v6(0xfd00, 0xec2, 0, 0, 32),
    v6(0xfd00, 0x42, 0, 0x42, 128),
    v6(0xfd20, 0xce, 0, 0x254, 128),
    v6(0xfd00, 0xc1, 0, 0, 32),
    v6(0xfd00, 0xa9fe, 0xa9fe, 0, 48),
    v6(0xfd00, 0x100, 0, 0, 32),
];
const NAT64: Ipv6Net = v6(0x64, 0xff9b, 0, 0, 96);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_reach() {
        let check = |addresses: &str, public: bool, private: bool| {
            for address in addresses.split(' ') {
                let parsed = address.parse().unwrap();
                let found = (Reach::Public.allows(parsed), Reach::Private.allows(parsed));
                assert_eq!(found, (public, private), "{address}");
            }
        };
        check(
            "1.1.1.1 93.184.216.34 100.63.255.255 100.128.0.0 172.15.0.1 172.32.0.1 192.0.1.1 223.255.255.255",
            true,
            true,
        );
        check("2606:4700::1111 2001:200::1 2003::1 2a00:1450:4001::1 64:ff9b::101:101", true, true);
        check("10.0.0.1 100.64.0.1 172.16.0.1 172.31.255.255 192.168.1.1 240.0.0.1", false, true);
        check("192.0.2.1 198.51.100.1 203.0.113.1 198.18.0.1 198.19.255.255 192.88.99.1", false, true);
        check("fc00::1 fd12:3456::1 64:ff9b::a00:1 64:ff9b::c0a8:101", false, true);
        check(
            "0.0.0.0 0.1.2.3 127.0.0.1 127.255.255.255 169.254.169.254 224.0.0.1 239.1.1.1 255.255.255.255",
            false,
            false,
        );
        check("192.0.0.192 100.100.100.200 168.63.129.16", false, false);
        check(":: ::1 ::ffff:1.1.1.1 ::ffff:127.0.0.1 ::1.1.1.1 fe80::1 fec0::1 ff02::1 100::1 4000::1", false, false);
        check("64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:: 64:ff9b:1::101:101 64:ff9b:0:1::101:101", false, false);
        check("2001::1 2001:10::1 2001:db8::1 2002:101:101::1 2002:7f00:1::1 3fff::1", false, false);
        check("fd00:ec2::254 fd00:ec2:1::1 fd00:42::42 fd20:ce::254", false, false);
        check("fd00:c1::a9fe:a9fe fd00:a9fe:a9fe::1 fd00:100::100:200", false, false);
    }
}

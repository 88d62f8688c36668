//! Which clients may use a listener or a route, by their addresses.
//!
//! The networks are turned into ranges that follow each other, each with its verdict, so a lookup is one binary search however many
//! networks there are. `a_lookup_does_not_walk_the_list` compares it with reading the list.

use std::net::IpAddr;

use ipnet::IpNet;
use model::AddressRules;

/// The rules of one listener or route, ready for lookups.
pub(crate) struct AddressTable {
    v4: Ranges<u32>,
    v6: Ranges<u128>,
}

/// Ranges of addresses: each begins at its start and ends before the next. `starts` is ascending and begins with 0, and
/// `starts.len() == allowed.len()`.
struct Ranges<T> {
    starts: Vec<T>,
    allowed: Vec<bool>,
}

/// A network of one address family, as numbers.
struct Network {
    first: u128,
    last: u128,
    prefix: u8,
    is_allowed: bool,
}

impl AddressTable {
    /// `None` if every client is allowed.
    pub(crate) fn new(rules: &AddressRules) -> Option<Self> {
        if rules.is_empty() {
            return None;
        }
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let allow = rules.allow.iter().map(|network| (network, true));
        for (network, is_allowed) in allow.chain(rules.deny.iter().map(|network| (network, false))) {
            let prefix = network.prefix_len();
            match network {
                IpNet::V4(network) => {
                    let (first, last) = (network.network().to_bits().into(), network.broadcast().to_bits().into());
                    v4.push(Network { first, last, prefix, is_allowed });
                }
                IpNet::V6(network) => {
                    let (first, last) = (network.network().to_bits(), network.broadcast().to_bits());
                    v6.push(Network { first, last, prefix, is_allowed });
                }
            }
        }
        let otherwise = rules.allow.is_empty();
        let (starts, allowed): (Vec<_>, _) = ranges(v4, otherwise, u32::MAX.into()).into_iter().unzip();
        // They were made of 32 bits.
        let v4 = Ranges { starts: starts.into_iter().map(|start| start as u32).collect(), allowed };
        let (starts, allowed) = ranges(v6, otherwise, u128::MAX).into_iter().unzip();
        Some(Self { v4, v6: Ranges { starts, allowed } })
    }

    /// Whether a client may pass. `None`: its address is not known, because a trusted proxy has sent something else. Nothing allows that.
    pub(crate) fn admits(&self, client: Option<IpAddr>) -> bool {
        match client.map(|client| client.to_canonical()) {
            Some(IpAddr::V4(client)) => self.v4.allows(client.to_bits()),
            Some(IpAddr::V6(client)) => self.v6.allows(client.to_bits()),
            None => false,
        }
    }
}

impl<T: Ord> Ranges<T> {
    fn allows(&self, address: T) -> bool {
        let after = self.starts.partition_point(|start| *start <= address);
        after.checked_sub(1).and_then(|at| self.allowed.get(at)).is_some_and(|allowed| *allowed)
    }
}

/// The starts of all ranges with their verdicts. `otherwise` is the verdict for addresses in no network, `max` the last address.
fn ranges(mut networks: Vec<Network>, otherwise: bool, max: u128) -> Vec<(u128, bool)> {
    // A network comes before those within it. Of two equal ones the refused comes last, as if it were within the other.
    networks.sort_unstable_by_key(|network| (network.first, network.prefix, !network.is_allowed));
    let mut found = vec![(0, otherwise)];
    // The networks that the sweep is in, the innermost last.
    let mut open: Vec<(u128, bool)> = Vec::new();
    let leave = |found: &mut Vec<(u128, bool)>, open: &mut Vec<(u128, bool)>, until: Option<u128>| {
        while let Some((last, _)) = open.last().copied().filter(|(last, _)| until.is_none_or(|until| *last < until)) {
            open.pop();
            if last < max {
                begin(found, last + 1, open.last().map_or(otherwise, |(_, is_allowed)| *is_allowed));
            }
        }
    };
    for network in networks {
        leave(&mut found, &mut open, Some(network.first));
        begin(&mut found, network.first, network.is_allowed);
        open.push((network.last, network.is_allowed));
    }
    leave(&mut found, &mut open, None);
    found.dedup_by_key(|(_, is_allowed)| *is_allowed);
    found
}

/// Begins a range. One that begins at the same address has no addresses left.
fn begin(found: &mut Vec<(u128, bool)>, start: u128, is_allowed: bool) {
    if found.last().is_some_and(|(last, _)| *last == start) {
        found.pop();
    }
    found.push((start, is_allowed));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(allow: &str, deny: &str) -> AddressRules {
        let networks = |text: &str| text.split_whitespace().map(|network| network.parse().unwrap()).collect();
        AddressRules { allow: networks(allow), deny: networks(deny) }
    }

    /// The same, by reading the list.
    fn walk(rules: &AddressRules, client: IpAddr) -> bool {
        let longest = |networks: &[IpNet]| {
            networks.iter().filter(|network| network.contains(&client)).map(|network| network.prefix_len()).max()
        };
        match (longest(&rules.allow), longest(&rules.deny)) {
            (None, None) => rules.allow.is_empty(),
            (allow, deny) => allow > deny,
        }
    }

    #[test]
    fn the_longest_network_decides() {
        let check = |allow: &str, deny: &str, addresses: &str, expect: bool| {
            let rules = rules(allow, deny);
            let table = AddressTable::new(&rules).unwrap();
            for address in addresses.split_whitespace() {
                let client = address.parse().unwrap();
                assert_eq!(table.admits(Some(client)), expect, "{address}: {allow}, but not {deny}");
                assert_eq!(walk(&rules, client.to_canonical()), expect, "{address}");
            }
            assert!(!table.admits(None));
        };
        let (nested, but) = ("10.0.0.0/8 10.1.2.0/24", "10.1.0.0/16 10.1.2.9/32");
        check(
            nested,
            but,
            "10.0.0.0 10.0.255.255 10.1.2.0 10.1.2.8 10.1.2.10 10.1.2.255 10.2.0.0 10.255.255.255",
            true,
        );
        check(nested, but, "9.255.255.255 10.1.0.0 10.1.1.255 10.1.2.9 10.1.3.0 10.1.255.255 11.0.0.0 ::1 ::", false);
        // An IPv4 address in the form of a dual-stack socket.
        check(nested, but, "::ffff:10.1.2.8", true);
        check("", "0.0.0.0/1 fd00::/8", "128.0.0.0 255.255.255.255 fc00::1 fe00::", true);
        check("", "0.0.0.0/1 fd00::/8", "0.0.0.0 127.255.255.255 fd00:: fdff::1", false);
        check("0.0.0.0/0", "255.255.255.255/32 0.0.0.0/32", "0.0.0.1 255.255.255.254", true);
        check("0.0.0.0/0", "255.255.255.255/32 0.0.0.0/32", "0.0.0.0 255.255.255.255 ::1", false);
        check("::/0 ffff::/16", "::/1 ::1/128", "8000:: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true);
        check("::/0", "::/1", "7fff:: 1.2.3.4", false);
        // Up to the last address, behind which there is none.
        check("0.0.0.0/0", "", "0.0.0.0 1.2.3.4 255.255.255.255", true);
        check("", "0.0.0.0/0", "0.0.0.0 1.2.3.4 255.255.255.255", false);
        check("::/0", "", ":: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true);
        // Equal networks: `deny`.
        check("10.0.0.0/8", "10.0.0.0/8", "10.0.0.1", false);
        assert!(AddressTable::new(&AddressRules::default()).is_none());
    }

    proptest! {
        #[test]
        fn ranges_say_what_the_list_says(
            allow in prop::collection::vec((0_u32..64, 0_u8..=32), 0..8),
            deny in prop::collection::vec((0_u32..64, 0_u8..=32), 0..8),
            clients in prop::collection::vec(0_u32..64, 32),
        ) {
            // The bits are at both ends, so that networks are often within each other.
            let address = |bits: u32| std::net::Ipv4Addr::from_bits((bits >> 3) << 29 | (bits & 7));
            let networks = |list: &[(u32, u8)]| -> Box<[IpNet]> {
                let network = |(bits, prefix): &(u32, u8)| ipnet::Ipv4Net::new(address(*bits), *prefix).unwrap().trunc();
                list.iter().map(|one| IpNet::V4(network(one))).collect()
            };
            let rules = AddressRules { allow: networks(&allow), deny: networks(&deny) };
            if let Some(table) = AddressTable::new(&rules) {
                for bits in clients {
                    let client = IpAddr::V4(address(bits));
                    prop_assert_eq!(table.admits(Some(client)), walk(&rules, client), "{} in {:?}", client, rules);
                }
            }
        }
    }

    /// The steps of a search in as many ranges as the largest list makes.
    #[test]
    fn a_lookup_does_not_walk_the_list() {
        let count = AddressRules::NETWORKS_MAX as u32;
        let network = |number: u32| {
            let first = std::net::Ipv4Addr::from_bits(number << 10);
            IpNet::V4(ipnet::Ipv4Net::new(first, 24).unwrap())
        };
        let rules = AddressRules { allow: Box::default(), deny: (0..count).map(network).collect() };
        let table = AddressTable::new(&rules).unwrap();
        assert_eq!(table.v4.starts.len() as u32, 2 * count);
        assert!(table.v4.starts.len().ilog2() < 16);
        assert!(!table.admits(Some("0.1.0.9".parse().unwrap())) && table.admits(Some("0.1.1.9".parse().unwrap())));
    }
}

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
    /// Whether an address that no network has may pass.
    is_open: bool,
}

/// What the rules say of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    Allowed,
    Denied,
    /// No network has it.
    Nowhere,
}

/// Ranges of addresses: each begins at its start and ends before the next. `starts` is ascending and begins with 0, and
/// `starts.len() == listed.len()`.
struct Ranges<T> {
    starts: Vec<T>,
    listed: Vec<Listed>,
}

/// A network of one address family, as numbers.
struct Network {
    first: u128,
    last: u128,
    prefix: u8,
    listed: Listed,
}

impl AddressTable {
    /// `None` if every client is allowed.
    pub(crate) fn new(rules: &AddressRules) -> Option<Self> {
        if rules.is_empty() {
            return None;
        }
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        let allow = rules.allow.iter().map(|network| (network, Listed::Allowed));
        for (network, listed) in allow.chain(rules.deny.iter().map(|network| (network, Listed::Denied))) {
            let prefix = network.prefix_len();
            match network {
                IpNet::V4(network) => {
                    let (first, last) = (network.network().to_bits().into(), network.broadcast().to_bits().into());
                    v4.push(Network { first, last, prefix, listed });
                }
                IpNet::V6(network) => {
                    let (first, last) = (network.network().to_bits(), network.broadcast().to_bits());
                    v6.push(Network { first, last, prefix, listed });
                }
            }
        }
        let (starts, listed): (Vec<_>, _) = ranges(v4, u32::MAX.into()).into_iter().unzip();
        // They were made of 32 bits.
        let v4 = Ranges { starts: starts.into_iter().map(|start| start as u32).collect(), listed };
        let (starts, listed) = ranges(v6, u128::MAX).into_iter().unzip();
        Some(Self { v4, v6: Ranges { starts, listed }, is_open: rules.allow.is_empty() })
    }

    /// Whether a client may pass. `None`: its address is not known, because a trusted proxy has sent something else. Nothing allows that.
    pub(crate) fn admits(&self, client: Option<IpAddr>) -> bool {
        self.lets_pass(self.find(client))
    }

    /// Whether an address of which the rules say this may pass.
    pub(crate) fn lets_pass(&self, listed: Listed) -> bool {
        match listed {
            Listed::Allowed => true,
            Listed::Denied => false,
            Listed::Nowhere => self.is_open,
        }
    }

    /// What the rules say of a client. An address that is not known counts as denied: it may be such a one.
    pub(crate) fn find(&self, client: Option<IpAddr>) -> Listed {
        match client.map(|client| client.to_canonical()) {
            Some(IpAddr::V4(client)) => self.v4.find(client.to_bits()),
            Some(IpAddr::V6(client)) => self.v6.find(client.to_bits()),
            None => Listed::Denied,
        }
    }
}

impl<T: Ord> Ranges<T> {
    fn find(&self, address: T) -> Listed {
        let after = self.starts.partition_point(|start| *start <= address);
        after.checked_sub(1).and_then(|at| self.listed.get(at)).copied().unwrap_or(Listed::Denied)
    }
}

/// The starts of all ranges with their verdicts. `max` is the last address.
fn ranges(mut networks: Vec<Network>, max: u128) -> Vec<(u128, Listed)> {
    // A network comes before those within it. Of two equal ones the refused comes last, as if it were within the other.
    networks.sort_unstable_by_key(|network| (network.first, network.prefix, network.listed == Listed::Denied));
    let mut found = vec![(0, Listed::Nowhere)];
    // The networks that the sweep is in, the innermost last.
    let mut open: Vec<(u128, Listed)> = Vec::new();
    let leave = |found: &mut Vec<(u128, Listed)>, open: &mut Vec<(u128, Listed)>, until: Option<u128>| {
        while let Some((last, _)) = open.last().copied().filter(|(last, _)| until.is_none_or(|until| *last < until)) {
            open.pop();
            if last < max {
                begin(found, last + 1, open.last().map_or(Listed::Nowhere, |(_, listed)| *listed));
            }
        }
    };
    for network in networks {
        leave(&mut found, &mut open, Some(network.first));
        begin(&mut found, network.first, network.listed);
        open.push((network.last, network.listed));
    }
    leave(&mut found, &mut open, None);
    found.dedup_by_key(|(_, listed)| *listed);
    found
}

/// Begins a range. One that begins at the same address has no addresses left.
fn begin(found: &mut Vec<(u128, Listed)>, start: u128, listed: Listed) {
    if found.last().is_some_and(|(last, _)| *last == start) {
        found.pop();
    }
    found.push((start, listed));
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
        let table = AddressTable::new(&rules(nested, but)).unwrap();
        let found = ["10.0.0.1", "10.1.0.0", "11.0.0.0"].map(|address| table.find(Some(address.parse().unwrap())));
        assert_eq!(found, [Listed::Allowed, Listed::Denied, Listed::Nowhere]);
        assert_eq!(table.find(None), Listed::Denied);
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

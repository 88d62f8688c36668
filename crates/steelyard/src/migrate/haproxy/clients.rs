//! Rules about the address of the client as `allow` and `deny`.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::super::draft::Keys;
use super::acl::{Signed, Term};

/// Networks in the lists of a listener or a route.
const NETWORKS_MAX: usize = 16_384;

/// Whether a list of terms for which requests are refused is about the address of the client alone, and is now part of the lists.
pub(super) fn by_source(list: &[Signed], allow: &mut Vec<IpNet>, deny: &mut Vec<IpNet>) -> bool {
    match list {
        [Signed { term: Term::Source(networks), is_negated: false }] => deny.extend(networks),
        // Two such rules would both have to hold.
        [Signed { term: Term::Source(networks), is_negated: true }] if allow.is_empty() => allow.extend(networks),
        _ => return false,
    }
    true
}

/// The keys for both; `None` if nobody may come in, or if there are too many. For HAProxy each rule refuses for itself, and for Steelyard the
/// longest network decides: an allowed network within a denied one is left out.
pub(super) fn lists(allow: &[IpNet], deny: &[IpNet]) -> Option<Keys> {
    let refused: BTreeSet<&IpNet> = deny.iter().collect();
    let is_refused = |network: &&IpNet| {
        let lengths = (0..=network.prefix_len()).filter_map(|length| IpNet::new(network.addr(), length).ok());
        lengths.into_iter().any(|wide| refused.contains(&wide.trunc()))
    };
    let admitted: BTreeSet<&IpNet> = allow.iter().filter(|network| !is_refused(network)).collect();
    if !allow.is_empty() && admitted.is_empty() || admitted.len() + refused.len() > NETWORKS_MAX {
        return None;
    }
    let mut keys = Keys::default();
    for (key, all) in [("allow", admitted), ("deny", refused)] {
        if !all.is_empty() {
            keys.set(key, all.iter().map(ToString::to_string).collect::<Vec<_>>());
        }
    }
    Some(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_rule_decides() {
        let check = |allow: &[&str], deny: &[&str], expect: Option<[&[&str]; 2]>| {
            let read = |all: &[&str]| all.iter().map(|one| one.parse().unwrap()).collect::<Vec<IpNet>>();
            let found = lists(&read(allow), &read(deny)).map(|keys| {
                ["allow", "deny"].map(|key| {
                    let all = keys.get(key).and_then(|all| all.as_array()).into_iter().flatten();
                    all.filter_map(|one| one.as_str()).map(str::to_owned).collect::<Vec<_>>()
                })
            });
            let expect = expect.map(|both| both.map(|one| one.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()));
            assert_eq!(found, expect, "{allow:?} {deny:?}");
        };
        check(&[], &[], Some([&[], &[]]));
        check(&["10.0.0.0/8"], &["10.1.0.0/16", "10.1.0.0/16"], Some([&["10.0.0.0/8"], &["10.1.0.0/16"]]));
        check(&["10.1.0.0/16", "192.0.2.0/24"], &["10.0.0.0/8"], Some([&["192.0.2.0/24"], &["10.0.0.0/8"]]));
        check(&["10.0.0.0/8"], &["10.0.0.0/8"], None);
        check(&["10.0.0.1/32"], &["0.0.0.0/0"], None);
    }
}

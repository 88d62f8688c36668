//! Allots addresses from pools to objects.
//!
//! An allotted address is recorded only in the status of its object, so every replica reads the same and a new leader continues where the
//! old one ended. Only the leader allots addresses; the others wait until they read what it wrote.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::reference::Why;
use crate::index::{Kind, Name};
use crate::settings::Pool;

/// What the last translation has allotted.
///
/// A status takes a moment to reach the API server and to come back. Without this, a younger object whose status is on its way would lose its
/// address to an older one that appears meanwhile, after clients have read it: creation times have whole seconds, so "older" is often a matter of
/// names.
#[derive(Default)]
pub(crate) struct Allotted {
    of: BTreeMap<(Kind, Name), Vec<IpAddr>>,
}

impl Allotted {
    /// The addresses that an object has: those in its status, or those that it was given if its status has none of these pools.
    pub(crate) fn present(&self, object: (Kind, &Name), in_status: Vec<IpAddr>, pools: &[Pool]) -> Vec<IpAddr> {
        let is_ours = |address: &IpAddr| pools.iter().any(|pool| pool.contains(*address));
        match self.of.get(&(object.0, object.1.clone())) {
            Some(given) if !in_status.iter().any(is_ours) => given.clone(),
            _ => in_status,
        }
    }

    /// Replaces what is known of this kind.
    pub(crate) fn set<'n>(
        &mut self,
        kind: Kind,
        given: impl Iterator<Item = (&'n Name, &'n Result<Vec<IpAddr>, Why>)>,
    ) {
        self.of.retain(|(of, _), _| *of != kind);
        let addresses = given.filter_map(|(name, given)| Some((name, given.as_ref().ok()?)));
        self.of.extend(addresses.map(|(name, addresses)| ((kind, name.clone()), addresses.clone())));
    }

    /// Forgets everything. Another process allots now, and only statuses say what.
    pub(crate) fn clear(&mut self) {
        self.of.clear();
    }
}

/// An object that needs addresses. Claims are in the order of age: if two objects have the same address, the older one keeps it.
#[derive(Clone)]
pub(crate) struct Claim<'p> {
    /// The pools for its addresses. If there are none, it gets no address.
    pub(crate) pools: &'p [Pool],
    /// The addresses that the object asks for; empty means any.
    pub(crate) asked: Vec<IpAddr>,
    /// The addresses that it has: see [`Allotted::present`].
    pub(crate) present: Vec<IpAddr>,
    /// Whether it wants an IPv4 and an IPv6 address. If neither is set, it gets one of whichever family there is.
    pub(crate) families: (bool, bool),
}

/// The addresses of each claim, in their order. An empty list means none yet: the leader will allot one.
pub(crate) fn allot(claims: &[Claim<'_>], allots: bool) -> Vec<Result<Vec<IpAddr>, Why>> {
    let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
    let held: Vec<Vec<IpAddr>> = claims.iter().map(|claim| keep(claim, &mut taken)).collect();
    // Only after all claims have kept what they have: a claim that asks for an address must not take it away from an object that uses it.
    let asked = |(claim, held): (&Claim<'_>, Vec<IpAddr>)| ask(claim, held, &mut taken);
    let mut kept: Vec<Result<Vec<IpAddr>, Why>> = claims.iter().zip(held).map(asked).collect();
    if !allots {
        return kept;
    }
    for (claim, outcome) in claims.iter().zip(&mut kept) {
        let Ok(addresses) = outcome else { continue };
        if !claim.asked.is_empty() {
            continue;
        }
        for is_ipv4 in families(claim.families, claim.pools) {
            if addresses.iter().any(|address| address.is_ipv4() == is_ipv4) {
                continue;
            }
            let mut free = claim.pools.iter().filter(|pool| pool.is_ipv4() == is_ipv4).flat_map(Pool::addresses);
            if let Some(free) = free.find(|address| !taken.contains(address)) {
                taken.insert(free);
                addresses.push(free);
            }
        }
        if addresses.is_empty() {
            *outcome = Err(Why::new("AddressNotAssigned", "no address is free in the pools"));
        }
    }
    kept
}

/// IPv4 or not, for each wanted address.
fn families((v4, v6): (bool, bool), pools: &[Pool]) -> Vec<bool> {
    let has = |is_ipv4: bool| pools.iter().any(|pool| pool.is_ipv4() == is_ipv4);
    match (v4, v6) {
        (false, false) => [true, false].into_iter().find(|is_ipv4| has(*is_ipv4)).into_iter().collect(),
        _ => [(v4, true), (v6, false)].into_iter().filter(|(wanted, _)| *wanted).map(|(_, is_ipv4)| is_ipv4).collect(),
    }
}

/// The addresses that a claim keeps: those in its status that are in the pools, do not belong to an older object, and agree with what it
/// asks for.
fn keep(claim: &Claim<'_>, taken: &mut BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let is_ours = |address: IpAddr| claim.pools.iter().any(|pool| pool.contains(address));
    let is_wanted = |address: &IpAddr| claim.asked.is_empty() || claim.asked.contains(address);
    let present = claim.present.iter().copied().filter(is_wanted);
    present.filter(|address| is_ours(*address) && taken.insert(*address)).collect()
}

fn ask(claim: &Claim<'_>, held: Vec<IpAddr>, taken: &mut BTreeSet<IpAddr>) -> Result<Vec<IpAddr>, Why> {
    if claim.asked.is_empty() {
        return Ok(held);
    }
    if let Some(foreign) = claim.asked.iter().find(|address| !claim.pools.iter().any(|pool| pool.contains(**address))) {
        return Err(Why::new("AddressNotUsable", format!("{foreign} is not in any pool of this controller")));
    }
    if let Some(other) = claim.asked.iter().find(|address| !held.contains(address) && taken.contains(address)) {
        return Err(Why::new("AddressNotUsable", format!("{other} belongs to another object")));
    }
    taken.extend(&claim.asked);
    Ok(claim.asked.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims as `asked/present`, each a list; `@46` after one means both families.
    #[track_caller]
    fn check(pools: &str, claims: &[&str], allots: bool, expect: &[&str]) {
        let list =
            |text: &str| text.split(',').filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect();
        let pools: Vec<Pool> = pools.split_whitespace().map(|pool| pool.parse().unwrap()).collect();
        let claim = |text: &&str| {
            let (text, families) = text.split_once('@').unwrap_or((text, ""));
            let (asked, present) = text.split_once('/').unwrap();
            Claim {
                pools: &pools,
                asked: list(asked),
                present: list(present),
                families: (families.contains('4'), families.contains('6')),
            }
        };
        let claims: Vec<Claim<'_>> = claims.iter().map(claim).collect();
        let found: Vec<String> = allot(&claims, allots)
            .into_iter()
            .map(|outcome| match outcome {
                Ok(addresses) => addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                Err(why) => why.reason.to_owned(),
            })
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn kept_before_new_ones_are_given() {
        let pool = "10.0.0.1-10.0.0.3";
        check(pool, &["/", "/10.0.0.1"], true, &["10.0.0.2", "10.0.0.1"]);
        check(pool, &["/", "/10.0.0.1"], false, &["", "10.0.0.1"]);
        check(pool, &["/10.0.0.2", "/10.0.0.2"], true, &["10.0.0.2", "10.0.0.1"]);
        check(pool, &["/192.0.2.1"], true, &["10.0.0.1"]);
        check(pool, &["/", "/", "/", "/"], true, &["10.0.0.1", "10.0.0.2", "10.0.0.3", "AddressNotAssigned"]);
    }

    #[test]
    fn asked_for() {
        let pool = "10.0.0.1-10.0.0.3";
        check(pool, &["10.0.0.3/10.0.0.1", "/"], true, &["10.0.0.3", "10.0.0.1"]);
        check(pool, &["10.0.0.3/", "10.0.0.3/"], true, &["10.0.0.3", "AddressNotUsable"]);
        check(pool, &["10.0.0.3/10.0.0.3", "10.0.0.1/"], true, &["10.0.0.3", "10.0.0.1"]);
        check(pool, &["10.0.0.1/", "/10.0.0.1"], true, &["AddressNotUsable", "10.0.0.1"]);
        check(pool, &["10.0.0.4/"], true, &["AddressNotUsable"]);
    }

    #[test]
    fn families_of_addresses() {
        let pools = "fd00::1-fd00::2 10.0.0.1-10.0.0.2";
        check(
            pools,
            &["/@46", "/@6", "/@4", "/"],
            true,
            &["10.0.0.1,fd00::1", "fd00::2", "10.0.0.2", "AddressNotAssigned"],
        );
        check(pools, &["/fd00::2@46"], true, &["fd00::2,10.0.0.1"]);
        check("fd00::/64", &["/", "/@4"], true, &["fd00::", "AddressNotAssigned"]);
    }
}

//! Maglev's consistent hashing (Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load Balancer", NSDI 2016, section 3.4),
//! weighted.
//!
//! The table is built from the addresses in sorted order, so that two Steelyards whose files list them in different orders agree. It
//! contains all endpoints with weight above 0, healthy or not: a failing endpoint does not move the keys of the others, and its own keys
//! return to it. If the endpoint of a key cannot take it, the key is looked up again under other hashes, which depend only on the key.

use std::net::SocketAddr;
use std::sync::Arc;

use model::SUBSET_MAX;

use crate::endpoint::EndpointState;
use crate::hash::{hash_key, mix};

/// The number of slots. It is a prime, as the permutations need, and the paper's choice. With more than a hundred slots for each of
/// [`ENDPOINTS_SMALL_MAX`] endpoints, shares stay within 1 % of each other. It is not smaller for fewer endpoints: 128 KiB for each cluster
/// is cheap, and a size that depended on the number of endpoints would move nearly all keys whenever that number crossed a step.
const SLOTS: usize = 65_537;
/// The paper's larger prime, for more endpoints.
const SLOTS_LARGE: usize = 655_373;
/// The smaller table is used up to this number.
const ENDPOINTS_SMALL_MAX: usize = 655;
/// Lookups of a key whose endpoints cannot take it, before all slots are walked. Outside panic, with the default threshold of 30 %, sixteen
/// in a row miss in one case of 300.
const LOOKUPS_MAX: u32 = 16;

#[derive(Debug)]
pub(crate) struct Maglev {
    /// Indexes into the cluster's endpoints. Empty if no endpoint has weight.
    slots: Vec<u32>,
    /// The endpoints with weight, sorted by address.
    order: Vec<u32>,
}

/// The state of one endpoint while the table is filled.
struct Claim {
    index: u32,
    weight: u64,
    /// `0 <= next < slots`: its next preferred slot.
    next: usize,
    skip: usize,
    /// Grows by `weight` each round; the largest weight buys one slot.
    credit: u64,
}

impl Maglev {
    pub(crate) fn new(endpoints: &[Arc<EndpointState>], weights: &[u32]) -> Self {
        let weighted: Vec<(SocketAddr, u32)> =
            endpoints.iter().zip(weights).map(|(endpoint, weight)| (endpoint.address(), *weight)).collect();
        let present = in_order(&weighted);
        let size = if present.len() <= ENDPOINTS_SMALL_MAX { SLOTS } else { SLOTS_LARGE };
        let order = present.iter().map(|(index, _, _)| *index).collect();
        Self { slots: table(&present, size), order }
    }

    /// The endpoint of a key, among those that `accepts`; `None` if it accepts none.
    pub(crate) fn lookup(&self, key: u64, accepts: impl Fn(usize) -> bool) -> Option<usize> {
        let mut hash = key;
        for _ in 0..LOOKUPS_MAX {
            let index = *self.slots.get((hash % self.slots.len().max(1) as u64) as usize)? as usize;
            if accepts(index) {
                return Some(index);
            }
            // `mix` alone would map 0 to itself.
            hash = mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15));
        }
        self.walk(hash).map(|index| index as usize).find(|index| accepts(*index))
    }

    /// The first `size` endpoints of a key, at most [`SUBSET_MAX`], among those that `accepts`: those that lookups would find one after another. So
    /// one that goes leaves the others of the key, and one that comes takes the place of one of them for few keys.
    pub(crate) fn subset(&self, key: u64, size: usize, accepts: impl Fn(usize) -> bool) -> Subset {
        let mut subset = Subset { found: [0; SUBSET_MAX], count: 0 };
        let size = size.min(SUBSET_MAX);
        let mut hash = key;
        // With many more endpoints than `size`, nearly every lookup finds another one.
        for _ in 0..LOOKUPS_MAX + 4 * size as u32 {
            let slot = self.slots.get((hash % self.slots.len().max(1) as u64) as usize);
            if let Some(index) = slot.filter(|index| accepts(**index as usize)) {
                subset.add(*index);
            }
            if subset.count == size {
                return subset;
            }
            hash = mix(hash.wrapping_add(0x9e37_79b9_7f4a_7c15));
        }
        for index in self.walk(key).filter(|index| accepts(*index as usize)) {
            if subset.count == size {
                break;
            }
            subset.add(index);
        }
        subset
    }

    /// All endpoints, from one that the hash chooses.
    fn walk(&self, hash: u64) -> impl Iterator<Item = u32> {
        let start = (hash % self.order.len().max(1) as u64) as usize;
        let (head, tail) = self.order.split_at_checked(start).unwrap_or_default();
        tail.iter().chain(head).copied()
    }
}

/// The endpoints of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subset {
    found: [u32; SUBSET_MAX],
    /// `0 <= count <= SUBSET_MAX`
    count: usize,
}

impl Subset {
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + Clone {
        self.found.iter().take(self.count).map(|index| *index as usize)
    }

    /// Adds an endpoint, unless it is there.
    fn add(&mut self, index: u32) {
        let (found, rest) = self.found.split_at_mut(self.count.min(SUBSET_MAX));
        if let (false, Some(place)) = (found.contains(&index), rest.first_mut()) {
            *place = index;
            self.count += 1;
        }
    }
}

/// A table of `size` slots, a prime above 1: each is an index into `endpoints` (addresses and weights). Empty if no endpoint has weight.
/// The order of the endpoints does not change the table.
pub fn maglev_table(endpoints: &[(SocketAddr, u32)], size: usize) -> Vec<u32> {
    table(&in_order(endpoints), size)
}

/// The endpoints with weight: index, address, weight, sorted by address.
fn in_order(endpoints: &[(SocketAddr, u32)]) -> Vec<(u32, SocketAddr, u32)> {
    let indexed = endpoints.iter().enumerate().map(|(index, (address, weight))| (index as u32, *address, *weight));
    let mut present: Vec<_> = indexed.filter(|(_, _, weight)| *weight > 0).collect();
    present.sort_by_key(|(_, address, _)| *address);
    present
}

fn table(present: &[(u32, SocketAddr, u32)], size: usize) -> Vec<u32> {
    let claim = |(index, address, weight): &(u32, SocketAddr, u32)| Claim::new(*index, *address, *weight, size);
    let mut claims: Vec<Claim> = present.iter().map(claim).collect();
    fill(&mut claims, size)
}

impl Claim {
    fn new(index: u32, address: SocketAddr, weight: u32, size: usize) -> Self {
        // The text and not the bytes, because operators see the text and other implementations can reproduce it.
        let hash = hash_key(address.to_string().as_bytes());
        let offset = (hash % size as u64) as usize;
        let skip = (mix(hash ^ 0x5bf0_3635) % (size as u64 - 1)) as usize + 1;
        Self { index, weight: u64::from(weight), next: offset, skip, credit: 0 }
    }

    /// Takes the first free slot of its permutation. There is one, because the caller stops when all are taken.
    fn take(&mut self, slots: &mut [u32]) {
        let size = slots.len();
        for _ in 0..size {
            let slot = self.next;
            self.next = (self.next + self.skip) % size.max(1);
            if let Some(free) = slots.get_mut(slot).filter(|taken| **taken == FREE) {
                *free = self.index;
                return;
            }
        }
    }
}

const FREE: u32 = u32::MAX;

/// Lets the claims take slots in turn, each in proportion to its weight, until none is free.
fn fill(claims: &mut [Claim], size: usize) -> Vec<u32> {
    let Some(largest) = claims.iter().map(|claim| claim.weight).max() else { return Vec::new() };
    let mut slots = vec![FREE; size];
    let mut left = size;
    loop {
        for claim in claims.iter_mut() {
            claim.credit += claim.weight;
            if claim.credit < largest {
                continue;
            }
            claim.credit -= largest;
            claim.take(&mut slots);
            left -= 1;
            if left == 0 {
                return slots;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::{address, cluster_of, cluster_with, maglev, picker, seeded};

    fn endpoints(numbers: &[usize]) -> Vec<Arc<EndpointState>> {
        numbers.iter().map(|n| Arc::new(EndpointState::new(address(*n)))).collect()
    }

    fn maglev_of(numbers: &[usize], weights: &[u32]) -> Maglev {
        Maglev::new(&endpoints(numbers), weights)
    }

    /// The share of all slots that two tables give to different addresses.
    fn moved(a: (&[usize], &Maglev), b: (&[usize], &Maglev)) -> f64 {
        let pairs = a.1.slots.iter().zip(&b.1.slots);
        pairs.filter(|(x, y)| a.0[**x as usize] != b.0[**y as usize]).count() as f64 / SLOTS as f64
    }

    #[test]
    fn the_smallest_sets() {
        assert_eq!(maglev_of(&[], &[]).lookup(1, |_| true), None);
        assert_eq!(maglev_of(&[7], &[0]).lookup(1, |_| true), None);
        assert_eq!(maglev_of(&[7], &[3]).lookup(1, |_| true), Some(0));
        assert_eq!(maglev_of(&[7, 8], &[0, 3]).lookup(1, |_| true), Some(1));
        assert_eq!(maglev_of(&[7, 8], &[1, 3]).lookup(1, |_| false), None);
    }

    fn subset_of(maglev: &Maglev, key: u64, size: usize) -> Vec<usize> {
        let mut found: Vec<usize> = maglev.subset(key, size, |_| true).iter().collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn a_key_has_as_many_endpoints_as_there_are_and_it_may_have() {
        let check = |weights: &[u32], size: usize, expect: usize| {
            let maglev = maglev_of(&(0..weights.len()).collect::<Vec<_>>(), weights);
            for key in 0..200 {
                let mut found = subset_of(&maglev, mix(key), size);
                assert_eq!(found.len(), expect, "{weights:?} {size}");
                found.dedup();
                assert_eq!(found.len(), expect, "{weights:?} {size}");
                assert!(found.iter().all(|index| weights[*index] > 0));
            }
        };
        check(&[], 3, 0);
        check(&[0, 0], 3, 0);
        check(&[1], 3, 1);
        check(&[1, 0, 1], 3, 2);
        check(&[1, 1, 1], 3, 3);
        check(&[1; 20], 3, 3);
        check(&[1000, 1, 1, 1, 1], 5, 5);
        check(&[1; 100], SUBSET_MAX, SUBSET_MAX);
        check(&[1; 100], 1000, SUBSET_MAX);
    }

    #[test]
    fn subsets_are_spread_evenly_and_keep_their_endpoints_when_others_go() {
        const KEYS: u64 = 20_000;
        let all: Vec<usize> = (0..20).collect();
        let before = maglev_of(&all, &[1; 20]);
        let mut counts = [0u32; 20];
        let (mut lost, mut changed) = (0, 0);
        // The eighth goes.
        let left: Vec<usize> = all.iter().copied().filter(|number| *number != 7).collect();
        let after = maglev_of(&left, &[1; 19]);
        for key in (0..KEYS).map(mix) {
            let (one, other) = (subset_of(&before, key, 3), subset_of(&after, key, 3));
            one.iter().for_each(|index| counts[*index] += 1);
            let other: Vec<usize> = other.into_iter().map(|index| left[index]).collect();
            lost += one.iter().filter(|index| **index == 7).count();
            changed += one.iter().filter(|index| **index != 7 && !other.contains(index)).count();
        }
        let fair = KEYS as f64 * 3.0 / 20.0;
        assert!(counts.iter().all(|count| (f64::from(*count) / fair - 1.0).abs() < 0.1), "{counts:?}");
        assert!((lost as f64 / fair - 1.0).abs() < 0.1, "{lost}");
        // Of the other 57,000 places, few change.
        assert!((changed as f64) < KEYS as f64 * 3.0 * 0.03, "{changed}");
    }

    #[test]
    fn the_sizes_are_primes() {
        for size in [SLOTS, SLOTS_LARGE] {
            assert!((2..).take_while(|d| d * d <= size).all(|d| size % d != 0), "{size}");
        }
    }

    #[test]
    fn many_endpoints_take_the_large_table() {
        let numbers: Vec<usize> = (0..ENDPOINTS_SMALL_MAX + 1).collect();
        let table = maglev_of(&numbers, &vec![1; numbers.len()]);
        assert_eq!(table.slots.len(), SLOTS_LARGE);
        assert!(!table.slots.contains(&FREE));
    }

    #[test]
    fn every_endpoint_is_found_when_it_alone_accepts() {
        let numbers: Vec<usize> = (0..50).collect();
        let table = maglev_of(&numbers, &[1; 50]);
        for only in 0..50 {
            for key in 0..50 {
                assert_eq!(table.lookup(hash_key(&[key]), |index| index == only), Some(only));
            }
        }
    }

    #[test]
    fn keys_return_gradually_in_slow_start_and_each_stays() {
        let cluster =
            cluster_with(maglev(), &[1, 1], |cluster| cluster.slow_start = std::time::Duration::from_secs(10));
        let mut picker = picker(&maglev(), 1);
        let keys: Vec<u64> = (0..1000u32).map(|n| hash_key(&n.to_be_bytes())).collect();
        cluster.set_healthy(1, false, 0);
        cluster.set_healthy(1, true, 1000);
        let mut back = vec![false; keys.len()];
        let mut counts = Vec::new();
        for now_ms in [1000, 3500, 6000, 8500, 11_000] {
            for (key, back) in keys.iter().zip(&mut back) {
                let here = picker.pick(&cluster, now_ms, *key, &[]).unwrap().index == 1;
                assert!(here || !*back, "a key left again at {now_ms}");
                *back = here;
            }
            counts.push(back.iter().filter(|back| **back).count());
        }
        assert!(counts.is_sorted_by(|a, b| a < b), "{counts:?}");
        assert!(counts[0] > 20 && counts[0] < 100 && counts[4] > 450, "{counts:?}");
    }

    proptest! {
        #![proptest_config(seeded(24))]

        #[test]
        fn removing_or_adding_one_of_n_moves_little(start in 0usize..50_000, n in 2usize..24, which: prop::sample::Index) {
            let all: Vec<usize> = (start..start + n).collect();
            let gone = which.index(n);
            let rest: Vec<usize> = all.iter().copied().filter(|number| *number != start + gone).collect();
            let (whole, part) = (maglev_of(&all, &vec![1; n]), maglev_of(&rest, &vec![1; n - 1]));
            let moved = moved((&all, &whole), (&rest, &part));
            prop_assert!(moved <= 1.0 / n as f64 + 0.01, "{} of {}", moved, n);
        }

        #[test]
        fn shares_are_the_weights(weights in prop::collection::vec(0u32..10, 1..12)) {
            let numbers: Vec<usize> = (0..weights.len()).collect();
            let table = maglev_of(&numbers, &weights);
            let sum: u32 = weights.iter().sum();
            for (index, weight) in weights.iter().enumerate() {
                let slots = table.slots.iter().filter(|slot| **slot as usize == index).count() as f64;
                let due = if sum == 0 { 0.0 } else { SLOTS as f64 * f64::from(*weight) / f64::from(sum) };
                prop_assert!((slots - due).abs() <= f64::from(*weight).max(1.0) + 1.0, "{} for {}", slots, due);
            }
        }

        #[test]
        fn the_order_of_the_list_does_not_matter(
            (numbers, shuffled) in prop::collection::btree_set(0usize..5000, 1..20)
                .prop_map(|set| set.into_iter().collect::<Vec<_>>())
                .prop_flat_map(|numbers| (Just(numbers.clone()), Just(numbers).prop_shuffle())),
        ) {
            let weight = |numbers: &[usize]| numbers.iter().map(|n| (n % 3) as u32 + 1).collect::<Vec<u32>>();
            let (a, b) = (maglev_of(&numbers, &weight(&numbers)), maglev_of(&shuffled, &weight(&shuffled)));
            prop_assert_eq!(moved((&numbers, &a), (&shuffled, &b)), 0.0);
        }

        /// An unhealthy endpoint's keys move to others, no other key moves, and they return.
        #[test]
        fn an_unhealthy_endpoint_moves_only_its_own_keys(n in 2usize..12, which: prop::sample::Index) {
            let numbers: Vec<usize> = (0..n).collect();
            let cluster = cluster_of(maglev(), endpoints(&numbers).into_iter().zip(std::iter::repeat(1)).collect(), |_| {});
            let mut picker = picker(&maglev(), 1);
            let keys: Vec<u64> = (0..500u32).map(|n| hash_key(&n.to_be_bytes())).collect();
            let mut all = || keys.iter().map(|key| picker.pick(&cluster, 0, *key, &[]).unwrap().index).collect::<Vec<_>>();
            let down = which.index(n);
            let before = all();
            cluster.set_healthy(down, false, 0);
            let during = all();
            cluster.set_healthy(down, true, 0);
            prop_assert_eq!(&before, &all());
            for (before, during) in before.iter().zip(&during) {
                prop_assert!(*during != down && (before == during || *before == down));
            }
        }
    }
}

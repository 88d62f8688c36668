//! The table of a vip: the endpoint of each of its slots. Pure.
//!
//! Every algorithm uses such a table, so the cost of a choice does not depend on the number of endpoints. There are two kinds: a round,
//! which holds each endpoint as often as its weight, and a Maglev table.

use std::net::SocketAddr;

use balance::maglev_table;
use model::VipAlgorithm;

/// Slots of a round. If the sum of the weights, divided by their greatest common divisor, is larger, the weights are rounded: each share is
/// then wrong by less than one of these slots, and an endpoint of the least weight still has one.
pub(crate) const ROUND_SLOTS_MAX: u64 = 65_536;

/// A prime, as the permutations need, and the paper's choice (Eisenbud et al., NSDI 2016). It takes 256 KiB in the kernel for each vip. It
/// does not depend on the number of endpoints, because nearly all new flows would move whenever that crossed a step. With 4093 slots,
/// adding or removing an endpoint also moved up to 1.4 % of the slots of others. Up to 655 endpoints have a hundred slots each, which keeps
/// their shares within a few per cent; with more endpoints the shares grow coarser.
const MAGLEV_SLOTS: usize = 65_537;

/// Slots, as indexes into `endpoints` (addresses and weights). Empty if no endpoint has weight.
pub(crate) fn slots(algorithm: VipAlgorithm, endpoints: &[(SocketAddr, u32)]) -> Vec<u32> {
    match algorithm {
        VipAlgorithm::RoundRobin | VipAlgorithm::Random | VipAlgorithm::LeastConnections => round(endpoints),
        VipAlgorithm::Maglev | VipAlgorithm::SourceHash => maglev_table(endpoints, MAGLEV_SLOTS),
    }
}

/// A turn of an endpoint in a round.
struct Turn {
    /// `(2 k n + 2 i + 1) / (2 n weight)` for the k-th turn of the i-th of n: the turns of an endpoint are at equal distances, and no two
    /// endpoints have the same one.
    numerator: u128,
    weight: u128,
    index: u32,
}

/// Each endpoint as often as its weight divided by the common divisor of all weights, interleaved.
fn round(endpoints: &[(SocketAddr, u32)]) -> Vec<u32> {
    let counts = counts(endpoints);
    let present: Vec<(usize, u64)> = counts.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
    let mut turns = Vec::new();
    for (place, (index, count)) in present.iter().enumerate() {
        for turn in 0..u128::from(*count) {
            let numerator = 2 * turn * present.len() as u128 + 2 * place as u128 + 1;
            turns.push(Turn { numerator, weight: u128::from(*count), index: *index as u32 });
        }
    }
    turns.sort_by(|a, b| (a.numerator * b.weight).cmp(&(b.numerator * a.weight)).then(a.index.cmp(&b.index)));
    turns.into_iter().map(|turn| turn.index).collect()
}

/// Slots of each endpoint.
fn counts(endpoints: &[(SocketAddr, u32)]) -> Vec<u64> {
    let weights = || endpoints.iter().map(|(_, weight)| u64::from(*weight));
    let common = weights().fold(0, greatest_common_divisor).max(1);
    let sum: u64 = weights().sum::<u64>() / common;
    if sum <= ROUND_SLOTS_MAX {
        return weights().map(|weight| weight / common).collect();
    }
    weights().map(|weight| if weight == 0 { 0 } else { (weight / common * ROUND_SLOTS_MAX / sum).max(1) }).collect()
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoints(weights: &[u32]) -> Vec<(SocketAddr, u32)> {
        weights.iter().enumerate().map(|(n, weight)| (address(n), *weight)).collect()
    }

    fn address(n: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 80))
    }

    fn count(slots: &[u32], index: usize) -> usize {
        slots.iter().filter(|slot| **slot as usize == index).count()
    }

    #[test]
    fn rounds() {
        let check = |weights: &[u32], expect: &[u32]| {
            assert_eq!(slots(VipAlgorithm::RoundRobin, &endpoints(weights)), expect, "{weights:?}");
        };
        check(&[], &[]);
        check(&[0, 0], &[]);
        check(&[7], &[0]);
        check(&[1, 1, 1], &[0, 1, 2]);
        check(&[4, 4, 8], &[0, 2, 1, 2]);
        check(&[0, 3, 0, 3], &[1, 3]);
        check(&[5, 1, 1], &[0, 0, 0, 1, 0, 0, 2]);
    }

    #[test]
    fn weights_that_are_too_large_are_rounded() {
        let slots = slots(VipAlgorithm::Random, &endpoints(&[65_535, 65_534, 1, 0]));
        assert!(slots.len() as u64 <= ROUND_SLOTS_MAX + 4);
        let counts: Vec<usize> = (0..4).map(|index| count(&slots, index)).collect();
        assert_eq!(counts, [32_768, 32_767, 1, 0]);
    }

    #[test]
    fn a_thousand_endpoints() {
        let endpoints = endpoints(&vec![1; 1000]);
        assert_eq!(slots(VipAlgorithm::LeastConnections, &endpoints).len(), 1000);
        let slots = slots(VipAlgorithm::Maglev, &endpoints);
        assert_eq!(slots.len(), 65_537);
        let counts: Vec<usize> = (0..1000).map(|index| count(&slots, index)).collect();
        assert!(counts.iter().all(|count| (60..=70).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_size_is_a_prime() {
        assert!((2..).take_while(|d| d * d <= MAGLEV_SLOTS).all(|d| !MAGLEV_SLOTS.is_multiple_of(d)));
    }

    fn seeded() -> ProptestConfig {
        ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() }
    }

    proptest! {
        #![proptest_config(seeded())]

        #[test]
        fn a_round_holds_each_as_often_as_its_weight_and_never_bunches(weights in prop::collection::vec(0u32..50, 1..20)) {
            let slots = slots(VipAlgorithm::RoundRobin, &endpoints(&weights));
            let common = weights.iter().copied().fold(0, |a, b| greatest_common_divisor(a, b.into())).max(1);
            let n = weights.iter().filter(|weight| **weight > 0).count();
            for (index, weight) in weights.iter().enumerate() {
                let due = u64::from(*weight) / common;
                prop_assert_eq!(count(&slots, index) as u64, due);
                // Two turns of one endpoint, also across the end, are as far apart as its weight requires, plus or minus one turn of each
                // other endpoint.
                let at: Vec<usize> = slots.iter().enumerate().filter(|(_, slot)| **slot as usize == index).map(|(at, _)| at).collect();
                let apart = at.windows(2).map(|pair| pair[1] - pair[0]).chain(at.first().map(|first| first + slots.len() - at[at.len() - 1]));
                for gap in apart {
                    prop_assert!((gap as f64 - slots.len() as f64 / due as f64).abs() <= n as f64, "{:?} of {:?}", gap, slots);
                }
            }
        }

        #[test]
        fn removing_one_of_n_moves_little(n in 2usize..40, which: prop::sample::Index) {
            let all = endpoints(&vec![1; n]);
            let gone = which.index(n);
            let mut rest = all.clone();
            rest[gone].1 = 0;
            let (before, after) = (slots(VipAlgorithm::Maglev, &all), slots(VipAlgorithm::Maglev, &rest));
            let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count() as f64 / before.len() as f64;
            prop_assert!(moved <= 1.0 / n as f64 + 0.01, "{} of {}", moved, n);
        }

        #[test]
        fn the_order_of_the_list_does_not_matter(
            (list, shuffled) in prop::collection::btree_set(0usize..5000, 1..60)
                .prop_map(|set| set.into_iter().map(|n| (address(n), n as u32 % 3 + 1)).collect::<Vec<_>>())
                .prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
        ) {
            let named = |list: &[(SocketAddr, u32)]| -> Vec<SocketAddr> {
                slots(VipAlgorithm::SourceHash, list).into_iter().map(|slot| list[slot as usize].0).collect()
            };
            prop_assert_eq!(named(&list), named(&shuffled));
        }
    }
}

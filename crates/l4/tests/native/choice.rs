//! Hashes, slots, loads, tokens and ports.

use proptest::prelude::*;

use super::core::{Rate, hash_flow, hash_source, is_less_loaded, port_of_turn, rate_take, slot_of_hash, turn_of_hash};
use super::seeded;

const SECOND_NS: u64 = 1_000_000_000;

#[test]
fn flows_spread_evenly_over_slots() {
    // Ports of one client, and the same port of many clients: the two patterns of real traffic. With 100 flows per slot on average, a fair
    // hash stays within five standard deviations of 10.
    let slots = 101;
    let by_port = |n: u32| [0, 0, 0xffff_0000, 0x0a0a_0a0a, 0, 0, 0xffff_0000, 0x1414_1414, n, 6];
    let by_client = |n: u32| [0, 0, 0xffff_0000, n, 0, 0, 0xffff_0000, 0x1414_1414, 0x5000_8000, 6];
    for make in [by_port, by_client] {
        let mut found = vec![0u32; slots as usize];
        (0..slots * 100).for_each(|n| found[slot_of_hash(hash_flow(&make(n)), 0, slots) as usize] += 1);
        assert!(found.iter().all(|count| (50..=150).contains(count)), "{found:?}");
    }
    let mut found = vec![0u32; slots as usize];
    (0..slots * 100).for_each(|n| found[slot_of_hash(hash_source(&by_client(n)), 0, slots) as usize] += 1);
    assert!(found.iter().all(|count| (50..=150).contains(count)), "{found:?}");
}

/// Other Steelyards, and later versions, must find the same slot. A change of the hash breaks every flow that moves between them.
#[test]
fn the_hash_is_what_it_was() {
    let key = [0, 0, u32::from_ne_bytes([0, 0, 0xff, 0xff]), 1, 2, 3, 4, 5, 6, 6];
    assert_eq!([hash_flow(&key), hash_source(&key)], KNOWN);
}

/// As computed when the hash was fixed, on a little-endian host.
const KNOWN: [u32; 2] = [1_121_909_985, 48_758_665];

#[test]
fn another_try_finds_another_slot() {
    let same = (0..1000u32).filter(|n| slot_of_hash(n * 7919, 1, 4093) == slot_of_hash(n * 7919, 0, 4093)).count();
    assert!(same <= 5, "{same}");
}

#[test]
fn the_shorter_queue_is_the_one_with_more_room_for_its_weight() {
    let check = |a, b, expect: [bool; 2]| {
        let (a, b): ((u32, u32), (u32, u32)) = (a, b);
        let found = [is_less_loaded(a.0, a.1, b.0, b.1), is_less_loaded(b.0, b.1, a.0, a.1)].map(|less| less != 0);
        assert_eq!(found, expect, "{a:?} {b:?}");
    };
    check((0, 1), (0, 1), [false, false]);
    check((0, 1), (1, 1), [true, false]);
    check((0, 1), (0, 3), [false, true]);
    check((2, 3), (0, 1), [false, false]);
    check((1, 3), (0, 1), [true, false]);
    check((u32::MAX, u32::MAX), (u32::MAX, 1), [true, false]);
}

#[test]
fn a_bucket_fills_with_time() {
    let mut bucket = Rate { refilled_ns: SECOND_NS, tokens_milli: 2000 };
    let mut check =
        |now_ns, expect: bool| assert_eq!(rate_take(&mut bucket, now_ns, 10, 2) != 0, expect, "at {now_ns}");
    check(SECOND_NS, true);
    check(SECOND_NS, true);
    check(SECOND_NS, false);
    check(SECOND_NS + 99_000_000, false);
    check(SECOND_NS + 100_000_000, true);
    check(SECOND_NS + 100_000_000, false);
    check(0, false); // another CPU's clock, a little behind
    check(SECOND_NS * 10, true);
    check(SECOND_NS * 10, true);
    check(SECOND_NS * 10, false);
    check(SECOND_NS * 1_000_000, true);
}

proptest! {
    #![proptest_config(seeded(2000))]

    /// At any times: never more than the burst plus the tokens that have arrived since.
    #[test]
    fn no_more_than_the_rate(per_s in 0u32..1000, burst in 1u32..100, gaps_us in prop::collection::vec(0u64..100_000, 1..200)) {
        let start = SECOND_NS;
        let mut bucket = Rate { refilled_ns: start, tokens_milli: u64::from(burst) * 1000 };
        let (mut now, mut taken) = (start, 0u64);
        for gap in gaps_us {
            now += gap * 1000;
            taken += u64::from(rate_take(&mut bucket, now, per_s, burst) != 0);
            let come_in = u128::from(now - start) * u128::from(per_s) / u128::from(SECOND_NS);
            prop_assert!(u128::from(taken) <= u128::from(burst) + come_in + 1);
            prop_assert!(bucket.tokens_milli <= u64::from(burst) * 1000);
        }
    }

    /// For any bucket, clock and limit, no overflow is visible.
    #[test]
    fn no_overflow(bucket: (u64, u64), now_ns: u64, per_s: u32, burst: u32) {
        let full = u64::from(burst) * 1000;
        let mut bucket = Rate { refilled_ns: bucket.0, tokens_milli: bucket.1.min(full) };
        rate_take(&mut bucket, now_ns, per_s, burst);
        prop_assert!(bucket.tokens_milli <= full);
    }

    #[test]
    fn slots_are_slots(hash: u32, attempt in 0u32..8, slots in 1u32..) {
        prop_assert!(slot_of_hash(hash, attempt, slots) < slots);
    }

    /// As many probes as there are ports try each port once.
    #[test]
    fn probes_try_every_port(hash: u32, first: u16, count in 1u16..64) {
        let last = first.saturating_add(count - 1);
        let turns = u32::from(last - first) + 1;
        let port = |probe| port_of_turn(turn_of_hash(hash, probe, turns, turns), first, last);
        let mut ports: Vec<u16> = (0..turns).map(port).collect();
        ports.sort_unstable();
        prop_assert_eq!(ports, (first..=last).collect::<Vec<_>>());
    }

    /// With fewer probes than ports, no two try the same one, and none but a short run of ports is left out.
    #[test]
    fn probes_are_spread(hash: u32, probes in 1u32..32, turns in 32u32..516_096) {
        let mut tried: Vec<u32> = (0..probes).map(|probe| turn_of_hash(hash, probe, probes, turns) % turns).collect();
        tried.sort_unstable();
        tried.push(tried[0] + turns);
        let gaps: Vec<u32> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
        prop_assert!(gaps.iter().all(|gap| (1..turns / probes + probes + 1).contains(gap)), "{:?}", gaps);
    }
}

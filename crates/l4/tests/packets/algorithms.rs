//! The choice of an endpoint: exact if possible, and the same for the same flow if a hash decides.

use std::collections::BTreeMap;

use testkit::packet::{ACK, Packet, RST, SYN};

use super::layout::{AFFINITY, COUNTED, SEEN_ACK, TCP, UDP, algorithm, state};
use super::plane::{Action, CLIENT, Plane, Vip, on_cpu, with_plane, with_plane_of};

const VIP: &str = "20.20.20.1:2020";
const NO_ENDPOINT: u32 = 6;

/// `count` endpoints of weight 1 on the first interface.
fn endpoints(count: u32) -> Vec<(std::net::SocketAddr, u32)> {
    (0..count).map(|n| (format!("31.31.{}.{}:80", 1 + n / 250, 1 + n % 250).parse().unwrap(), 1)).collect()
}

fn vip(algorithm: u8, endpoints: Vec<(std::net::SocketAddr, u32)>) -> Vip {
    Vip { algorithm, endpoints, ..Vip::new(0, TCP, VIP, &[]) }
}

/// Opens a flow and returns its endpoint.
#[track_caller]
fn open(plane: &Plane, client: &str) -> u32 {
    let sent = plane.send(CLIENT, &Packet::tcp(client, VIP).flags(SYN));
    assert_eq!(sent.action, Action::Redirect, "{:?}", plane.drops());
    plane.flow(client, VIP, TCP).unwrap().endpoint
}

/// Opens this many flows from different ports and clients, and counts them by endpoint.
fn spread(plane: &Plane, count: u32) -> BTreeMap<u32, u32> {
    let mut found = BTreeMap::new();
    for n in 0..count {
        let client = format!("10.10.{}.{}:{}", 10 + n / 200 % 200, 1 + n % 200, 1000 + n);
        *found.entry(open(plane, &client)).or_insert(0) += 1;
    }
    found
}

#[test]
fn round_robin_is_exact() {
    with_plane("round_robin_is_exact", |plane| {
        plane.add(&vip(algorithm::ROUND_ROBIN, endpoints(3)));
        let order: Vec<u32> = (1..=9).map(|port| open(plane, &format!("10.10.10.1:{port}"))).collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
    });
}

#[test]
fn each_cpu_has_its_own_round() {
    with_plane("each_cpu_has_its_own_round", |plane| {
        plane.add(&vip(algorithm::ROUND_ROBIN, endpoints(3)));
        if !on_cpu(1) {
            return;
        }
        // One endpoint further on, so that the first flows of all CPUs do not meet.
        let of_second: Vec<u32> = (1..=3).map(|port| open(plane, &format!("10.10.10.1:{port}"))).collect();
        on_cpu(0);
        let of_first: Vec<u32> = (4..=7).map(|port| open(plane, &format!("10.10.10.1:{port}"))).collect();
        assert_eq!((of_second, of_first), (vec![1, 2, 0], vec![0, 1, 2, 0]));
        assert_eq!(plane.cursors(0)[..2], [4, 3]);
    });
}

#[test]
fn weights_are_slots_of_the_table() {
    with_plane("weights_are_slots_of_the_table", |plane| {
        let mut weighted = endpoints(3);
        weighted[1].1 = 3;
        weighted[2].1 = 0;
        plane.add(&vip(algorithm::ROUND_ROBIN, weighted));
        assert_eq!(spread(plane, 40), [(0, 10), (1, 30)].into());
    });
}

#[test]
fn a_thousand_endpoints_have_their_turn() {
    with_plane("a_thousand_endpoints_have_their_turn", |plane| {
        plane.add(&vip(algorithm::ROUND_ROBIN, endpoints(1000)));
        let found = spread(plane, 1000);
        assert_eq!((found.len(), found.values().max()), (1000, Some(&1)));
    });
}

#[test]
fn random_reaches_everyone() {
    with_plane("random_reaches_everyone", |plane| {
        plane.add(&vip(algorithm::RANDOM, endpoints(4)));
        let found = spread(plane, 400);
        // Ten standard deviations of the binomial distribution, which does not happen by chance.
        assert!(found.len() == 4 && found.values().all(|count| (14..=187).contains(count)), "{found:?}");
    });
}

#[test]
fn maglev_spreads_flows_and_source_hash_clients() {
    with_plane("maglev_spreads_flows_and_source_hash_clients", |plane| {
        plane.add(&vip(algorithm::MAGLEV, endpoints(5)));
        let found = spread(plane, 500);
        assert!(found.len() == 5 && found.values().all(|count| (50..=150).contains(count)), "{found:?}");
        let hashed = Vip { algorithm: algorithm::SOURCE_HASH, ..Vip::new(1, UDP, "20.20.20.1:53", &[]) };
        let first = plane.add(&Vip { endpoints: endpoints(5), ..hashed });
        let mut by_client = BTreeMap::new();
        for n in 0..100 {
            for port in [1, 2] {
                let client = format!("10.10.10.{n}:{port}");
                plane.send(CLIENT, &Packet::udp(&client, "20.20.20.1:53"));
                let endpoint = plane.flow(&client, "20.20.20.1:53", UDP).unwrap().endpoint;
                assert_eq!(
                    *by_client.entry(n).or_insert(endpoint),
                    endpoint,
                    "another port of the client led to another endpoint"
                );
            }
        }
        let mut endpoints: Vec<u32> = by_client.into_values().collect();
        endpoints.sort_unstable();
        endpoints.dedup();
        assert_eq!(endpoints, (first..first + 5).collect::<Vec<_>>());
    });
}

#[test]
fn a_hash_finds_the_flow_again_in_its_middle() {
    let mut chosen = Vec::new();
    for round in 0..2 {
        // Another plane, as after a restart of the host, or another Steelyard.
        with_plane("a_hash_finds_the_flow_again_in_its_middle", |plane| {
            plane.add(&vip(algorithm::MAGLEV, endpoints(7)));
            for port in 1..=50u16 {
                let client = format!("10.10.10.1:{port}");
                let flags = if round == 0 { SYN } else { ACK };
                let sent = plane.send(CLIENT, &Packet::tcp(&client, VIP).flags(flags));
                assert_eq!(sent.action, Action::Redirect);
                let flow = plane.flow(&client, VIP, TCP).unwrap();
                if round == 0 {
                    chosen.push(flow.endpoint);
                } else {
                    assert_eq!(flow.endpoint, chosen[usize::from(port) - 1]);
                    assert_eq!(flow.state, SEEN_ACK | COUNTED);
                }
            }
            // A packet that is no segment of a connection is not taken up.
            plane.send(CLIENT, &Packet::tcp("10.10.10.2:1", VIP).flags(RST)).dropped();
            assert_eq!(plane.send(CLIENT, &Packet::tcp("10.10.10.2:1", VIP).flags(SYN | ACK)).frame[47], RST);
            assert!(plane.flow("10.10.10.2:1", VIP, TCP).is_none());
        });
    }
}

#[test]
fn least_connections_evens_out() {
    with_plane("least_connections_evens_out", |plane| {
        plane.add(&vip(algorithm::LEAST_CONNECTIONS, endpoints(2)));
        let found = spread(plane, 200);
        // Both draws pick the same endpoint half of the time; the other half takes the shorter queue. So the difference stays small, like a
        // random walk that is pulled back. Pure chance would be ten times as wide.
        assert!(found[&0].abs_diff(found[&1]) <= 24, "{found:?}");
        // One endpoint already has many flows and three times the weight, so the other fills up first.
        plane.put("lb_active", &0u32.to_ne_bytes(), &1000u32.to_ne_bytes());
        plane.put("lb_active", &1u32.to_ne_bytes(), &0u32.to_ne_bytes());
        let before = plane.counters(1)[4];
        for n in 0..100 {
            open(plane, &format!("10.10.250.1:{}", 2000 + n));
        }
        // It takes a flow only if both draws pick the loaded one: a quarter.
        assert!(plane.counters(1)[4] - before >= 50, "{:?}", plane.counters(1));
    });
}

#[test]
fn what_the_table_names_in_vain_is_passed_over() {
    with_plane("what_the_table_names_in_vain_is_passed_over", |plane| {
        for (index, algorithm) in
            [algorithm::ROUND_ROBIN, algorithm::MAGLEV, algorithm::SOURCE_HASH].into_iter().enumerate()
        {
            let at = format!("20.20.20.{}:80", index + 1);
            let first = plane.add(&Vip { algorithm, endpoints: endpoints(2), ..Vip::new(index as u32, TCP, &at, &[]) });
            plane.set_state(first, if index == 0 { state::DOWN } else { state::DRAINING });
            let mut refused = 0;
            for port in 1..=20 {
                let client = format!("10.10.10.1:{}", 100 * (index + 1) + port);
                match plane.send(CLIENT, &Packet::tcp(&client, &at).flags(SYN)).action {
                    Action::Redirect => assert_eq!(plane.flow(&client, &at, TCP).unwrap().endpoint, first + 1),
                    // Eight draws of a hash may all hit the half that is gone: one flow in 256.
                    _ => refused += 1,
                }
            }
            assert!(refused <= 2, "{refused}");
        }
    });
}

#[test]
fn without_an_endpoint_it_is_said() {
    with_plane("without_an_endpoint_it_is_said", |plane| {
        plane.add(&vip(algorithm::ROUND_ROBIN, Vec::new()));
        plane.send(CLIENT, &Packet::tcp("10.10.10.1:1", VIP).flags(SYN)).dropped();
        plane.assert_drops(&[NO_ENDPOINT]);
    });
}

#[test]
fn a_client_comes_back_to_its_endpoint() {
    with_plane_of("a_client_comes_back_to_its_endpoint", 4096, |plane| {
        let sticky = Vip { flags: AFFINITY, affinity_s: 600, ..vip(algorithm::ROUND_ROBIN, endpoints(3)) };
        plane.add(&sticky);
        let at_first = [open(plane, "10.10.10.1:1"), open(plane, "10.10.10.2:1"), open(plane, "10.10.10.3:1")];
        assert_eq!(at_first, [0, 1, 2]);
        for port in 2..6 {
            assert_eq!(open(plane, &format!("10.10.10.2:{port}")), 1);
        }
        // An endpoint that takes no new flows does not keep its clients.
        plane.set_state(1, state::DRAINING);
        let moved = open(plane, "10.10.10.2:7");
        assert_ne!(moved, 1);
        plane.set_state(1, state::ACTIVE);
        assert_eq!(open(plane, "10.10.10.2:8"), moved, "the client stays with the endpoint that it moved to");
        // Affinity ends.
        for (key, mut value) in plane.entries("lb_affinity") {
            value[4..8].copy_from_slice(&0u32.to_ne_bytes());
            plane.put("lb_affinity", &key, &value);
        }
        let cursor = plane.cursors(0)[0];
        assert_eq!(open(plane, "10.10.10.2:9"), cursor % 3);
    });
}

//! Connections from their first packet to their last: what is rewritten, remembered and forgotten.

use testkit::packet::{ACK, FIN, PSH, Packet, RST, SYN};

use super::layout::{CLOSING, COUNTED, ENDED, FIN_LAST, SEEN_ACK, SEEN_FIN, SEEN_SYN, TCP, UDP, mode, state};
use super::plane::{Action, CLIENT, ENDPOINT, Plane, Vip, with_plane, with_plane_of};

const VIP: &str = "20.20.20.1:2020";
const CLIENT_AT: &str = "10.10.10.1:40000";
const ENDPOINT_AT: &str = "31.31.31.1:5001";

const NO_ENDPOINT: u32 = 6;
const NO_FLOW: u32 = 7;
const ENDPOINT_DOWN: u32 = 8;
const TABLE_FULL: u32 = 9;
const PORTS_EXHAUSTED: u32 = 10;
const COLLISION: u32 = 11;

fn one_endpoint() -> Vip {
    Vip::new(0, TCP, VIP, &[ENDPOINT_AT])
}

fn from_client(flags: u8) -> Packet {
    Packet::tcp(CLIENT_AT, VIP).flags(flags).seq(1000).ack(2000)
}

fn from_endpoint(flags: u8) -> Packet {
    Packet::tcp(ENDPOINT_AT, CLIENT_AT).flags(flags).seq(2000).ack(1001)
}

/// Sends a segment of the client, and checks that it reaches the endpoint.
#[track_caller]
fn there(plane: &Plane, packet: &Packet) {
    plane.send(CLIENT, packet).forwarded(&packet.clone().to(ENDPOINT_AT).ttl(63));
}

/// Sends a segment of the endpoint, and checks that it reaches the client.
#[track_caller]
fn back(plane: &Plane, packet: &Packet) {
    plane.send(ENDPOINT[0], packet).forwarded(&packet.clone().from(VIP).ttl(63));
}

#[track_caller]
fn states(plane: &Plane, client: u32, endpoint: u32) {
    let found = [(CLIENT_AT, VIP), (ENDPOINT_AT, CLIENT_AT)].map(|(from, to)| plane.flow(from, to, TCP).unwrap().state);
    assert_eq!(found, [client, endpoint]);
}

#[test]
fn a_connection_from_syn_to_fin() {
    with_plane("a_connection_from_syn_to_fin", |plane| {
        plane.add(&one_endpoint());
        there(plane, &from_client(SYN).tcp_options(&[2, 4, 5, 180]));
        states(plane, SEEN_SYN | COUNTED, 0);
        back(plane, &from_endpoint(SYN | ACK));
        there(plane, &from_client(ACK));
        states(plane, SEEN_SYN | SEEN_ACK | COUNTED, SEEN_SYN);
        there(plane, &from_client(PSH | ACK).payload(b"a question"));
        back(plane, &from_endpoint(PSH | ACK).payload_bytes(1001));
        assert_eq!(plane.active(0), 1);
        there(plane, &from_client(FIN | ACK));
        assert_eq!(plane.active(0), 1, "half closed is not over");
        back(plane, &from_endpoint(ACK).payload(b"more"));
        back(plane, &from_endpoint(FIN | ACK));
        let said = SEEN_SYN | SEEN_ACK | SEEN_FIN | CLOSING;
        states(plane, said | COUNTED, said | FIN_LAST);
        assert_eq!(plane.active(0), 1, "the last segment may not have arrived");
        back(plane, &from_endpoint(FIN | ACK));
        states(plane, said | COUNTED, said | FIN_LAST);
        there(plane, &from_client(ACK));
        states(plane, said | ENDED, said | FIN_LAST);
        assert_eq!(plane.active(0), 0);
        assert_eq!(plane.flow_count(), 2);
        let [packets_there, packets_back, bytes_there, bytes_back, flows] = plane.counters(0);
        assert_eq!((packets_there, packets_back, flows), (5, 5, 1));
        assert_eq!(bytes_there, 5 * 54 + 4 + 10);
        assert_eq!(bytes_back, 5 * 54 + 1001 + 4);
        plane.assert_drops(&[]);
    });
}

#[test]
fn ipv6_takes_the_same_way() {
    with_plane("ipv6_takes_the_same_way", |plane| {
        let (client, vip, endpoint) = ("[fd00:10::1]:40000", "[fd00:20::1]:2020", "[fd00:31::1]:5001");
        plane.add(&Vip::new(0, TCP, vip, &[endpoint]));
        let syn = Packet::tcp(client, vip).flags(SYN);
        plane.send(CLIENT, &syn).forwarded(&syn.clone().to(endpoint).ttl(63));
        let answer = Packet::tcp(endpoint, client).flags(SYN | ACK).payload_bytes(77);
        plane.send(ENDPOINT[0], &answer).forwarded(&answer.clone().from(vip).ttl(63));
        let data = Packet::tcp(client, vip).payload_bytes(999);
        plane.send(CLIENT, &data).forwarded(&data.clone().to(endpoint).ttl(63));
        plane.assert_drops(&[]);
    });
}

#[test]
fn udp_with_and_without_a_checksum() {
    with_plane("udp_with_and_without_a_checksum", |plane| {
        plane.add(&Vip::new(0, UDP, "20.20.20.1:53", &["31.31.31.1:5353"]));
        plane.add(&Vip::new(1, UDP, "[fd00:20::1]:53", &["[fd00:31::1]:5353"]));
        let check = |from: &str, vip: &str, endpoint: &str, change: fn(Packet) -> Packet| {
            let question = change(Packet::udp(from, vip).payload(b"question"));
            plane.send(CLIENT, &question).forwarded(&question.clone().to(endpoint).ttl(63));
            let answer = change(Packet::udp(endpoint, from).payload(b"an answer"));
            plane.send(ENDPOINT[0], &answer).forwarded(&answer.clone().from(vip).ttl(63));
        };
        check("10.10.10.1:4000", "20.20.20.1:53", "31.31.31.1:5353", |packet| packet);
        check("10.10.10.1:4001", "20.20.20.1:53", "31.31.31.1:5353", Packet::unsummed);
        check("[fd00:10::1]:4000", "[fd00:20::1]:53", "[fd00:31::1]:5353", |packet| packet);
        assert_eq!(plane.flow("10.10.10.1:4000", "20.20.20.1:53", UDP).unwrap().state, SEEN_ACK | COUNTED);
    });
}

#[test]
fn a_sum_that_comes_out_as_zero_is_written_as_ones() {
    with_plane("a_sum_that_comes_out_as_zero_is_written_as_ones", |plane| {
        plane.add(&Vip::new(0, UDP, "20.20.20.1:53", &["31.31.31.1:5353"]));
        // The payload is the sum of the rest of the packet as the endpoint will see it, so its checksum is 0.
        let base = Packet::udp("31.31.31.1:1", "31.31.31.1:5353").from("10.10.10.1:4000").payload(&[0, 0]);
        let sum = base.build()[40..42].to_vec();
        let question = Packet::udp("10.10.10.1:4000", "20.20.20.1:53").payload(&sum);
        let sent = plane.send(CLIENT, &question);
        assert_eq!(sent.frame[40..42], [0xff, 0xff]);
        sent.forwarded(&question.clone().to("31.31.31.1:5353").ttl(63));
    });
}

#[test]
fn what_is_not_a_vips_is_not_touched() {
    with_plane("what_is_not_a_vips_is_not_touched", |plane| {
        plane.add(&one_endpoint());
        plane.add(&Vip { mode: mode::LOCAL, ..Vip::new(1, TCP, "20.20.20.2:80", &[]) });
        let check = |packet: Packet| plane.send(CLIENT, &packet).untouched(&packet.build());
        check(Packet::tcp(CLIENT_AT, "20.20.20.1:2021").flags(SYN));
        check(Packet::udp(CLIENT_AT, VIP));
        check(Packet::tcp(CLIENT_AT, "20.20.20.9:2020").flags(SYN));
        check(Packet::tcp(CLIENT_AT, "20.20.20.2:80").flags(SYN));
        check(Packet::tcp("[fd00:10::1]:1", "[fd00:20::1]:2020").flags(SYN));
        check(Packet::other("10.10.10.1", "20.20.20.1", 47).payload(b"gre"));
        check(Packet::other("fd00::1", "fd00::2", 50).payload(b"esp"));
        check(Packet::tcp(ENDPOINT_AT, CLIENT_AT).flags(SYN | ACK));
        let mut arp = vec![0xff; 6];
        arp.extend([2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        arp.extend([0; 20]);
        plane.send_bytes(CLIENT, &arp).untouched(&arp);
        assert_eq!(plane.flow_count(), 0);
        plane.assert_drops(&[]);
    });
}

#[test]
fn a_range_of_ports_goes_to_the_same_ports() {
    with_plane("a_range_of_ports_goes_to_the_same_ports", |plane| {
        plane.add(&Vip { ports: (8000, 8010), ..Vip::new(0, TCP, "20.20.20.1:8000", &["31.31.31.1:0"]) });
        for port in [8000, 8005, 8010] {
            let syn = Packet::tcp(CLIENT_AT, &format!("20.20.20.1:{port}")).flags(SYN);
            plane.send(CLIENT, &syn).forwarded(&syn.clone().to(&format!("31.31.31.1:{port}")).ttl(63));
        }
        for port in [7999, 8011] {
            let syn = Packet::tcp(CLIENT_AT, &format!("20.20.20.1:{port}")).flags(SYN);
            plane.send(CLIENT, &syn).untouched(&syn.build());
        }
    });
}

#[test]
fn a_segment_of_no_connection_is_reset() {
    with_plane("a_segment_of_no_connection_is_reset", |plane| {
        plane.add(&one_endpoint());
        plane.add(&Vip::new(1, TCP, "[fd00:20::1]:2020", &["[fd00:31::1]:5001"]));
        // RFC 9293, 3.10.7.1: the ACK's own number; without an ACK zero, and everything that was sent is acknowledged.
        let data = from_client(PSH | ACK).payload_bytes(500).tcp_options(&[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        let reset = data.reply().tcp_options(&[]).payload(&[]).window(0);
        plane.send(CLIENT, &data).answered(&reset.clone().flags(RST).seq(2000).ack(0));
        let stray = from_client(FIN).payload_bytes(10);
        plane.send(CLIENT, &stray).answered(&reset.flags(RST | ACK).seq(0).ack(1011));
        let options = from_client(ACK).ip_options(&[7, 4, 4, 0]);
        plane.send(CLIENT, &options).answered(&options.reply().window(0).flags(RST).seq(2000).ack(0));
        // Never an RST for an RST.
        plane.send(CLIENT, &from_client(RST)).dropped();
        plane.assert_drops(&[NO_FLOW; 4]);
        let six = Packet::tcp("[fd00:10::1]:9", "[fd00:20::1]:2020").seq(1).ack(7);
        plane.send(CLIENT, &six).answered(&six.reply().window(0).flags(RST).seq(7).ack(0));
        assert_eq!(plane.flow_count(), 0);
    });
}

#[test]
fn a_reset_ends_the_connection() {
    with_plane("a_reset_ends_the_connection", |plane| {
        plane.add(&one_endpoint());
        there(plane, &from_client(SYN));
        back(plane, &from_endpoint(RST | ACK));
        assert_eq!(plane.active(0), 0);
        // And again: a released flow is not released twice.
        back(plane, &from_endpoint(RST | ACK));
        assert_eq!(plane.active(0), 0);
        plane.assert_drops(&[]);
    });
}

#[test]
fn a_port_that_is_used_again_opens_the_flow_in_place() {
    with_plane("a_port_that_is_used_again_opens_the_flow_in_place", |plane| {
        plane.add(&one_endpoint());
        for round in 0..3 {
            there(plane, &from_client(SYN));
            states(plane, SEEN_SYN | COUNTED, 0);
            back(plane, &from_endpoint(SYN | ACK));
            there(plane, &from_client(SYN)); // a retransmission changes nothing
            there(plane, &from_client(FIN | ACK));
            back(plane, &from_endpoint(FIN | ACK));
            // In the first round the last ACK is lost on its way here.
            if round > 0 {
                there(plane, &from_client(ACK));
            }
            let active = u32::from(round == 0);
            assert_eq!((plane.active(0), plane.flow_count(), plane.counters(0)[4]), (active, 2, round + 1));
        }
    });
}

#[test]
fn a_port_that_is_used_again_leaves_an_endpoint_that_takes_nothing_new() {
    with_plane("a_port_that_is_used_again_leaves_an_endpoint_that_takes_nothing_new", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT, "32.32.32.1:5001"]));
        there(plane, &from_client(SYN));
        plane.set_state(0, state::DRAINING);
        // The established flow continues, even with a retransmitted SYN.
        there(plane, &from_client(SYN));
        back(plane, &from_endpoint(RST));
        let syn = from_client(SYN);
        plane.send(CLIENT, &syn).forwarded(&syn.clone().to("32.32.32.1:5001").ttl(63));
        assert_eq!((plane.active(0), plane.active(1), plane.flow_count()), (0, 1, 2));
    });
}

#[test]
fn an_endpoint_that_is_down_resets_tcp_and_gives_udp_to_another() {
    with_plane("an_endpoint_that_is_down_resets_tcp_and_gives_udp_to_another", |plane| {
        plane.add(&one_endpoint());
        plane.add(&Vip::new(1, UDP, "20.20.20.1:53", &["31.31.31.1:53", "32.32.32.1:53"]));
        there(plane, &from_client(SYN));
        back(plane, &from_endpoint(SYN | ACK));
        let question = Packet::udp(CLIENT_AT, "20.20.20.1:53").payload(b"q");
        plane.send(CLIENT, &question).forwarded(&question.clone().to("31.31.31.1:53").ttl(63));
        plane.set_state(0, state::DOWN);
        plane.set_state(1, state::DOWN);

        let data = from_client(PSH | ACK).payload(b"anyone there?");
        plane.send(CLIENT, &data).answered(&data.reply().payload(&[]).window(0).flags(RST).seq(2000).ack(0));
        plane.assert_drops(&[ENDPOINT_DOWN]);
        assert_eq!(plane.active(0), 0);
        plane.send(CLIENT, &question).forwarded(&question.clone().to("32.32.32.1:53").ttl(63));
        assert_eq!((plane.active(1), plane.active(2)), (0, 1));
        assert_eq!(plane.flow_count(), 2, "the UDP flow's two entries");
        // A SYN finds no endpoint: the table still names the one that is down.
        plane.send(CLIENT, &from_client(SYN)).dropped();
        plane.assert_drops(&[ENDPOINT_DOWN, NO_ENDPOINT]);
    });
}

#[test]
fn an_endpoint_that_fails_keeps_what_it_has_answered() {
    with_plane("an_endpoint_that_fails_keeps_what_it_has_answered", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT, "32.32.32.1:5001"]));
        there(plane, &from_client(SYN));
        back(plane, &from_endpoint(SYN | ACK));
        there(plane, &from_client(ACK));
        // Of two more, one reaches the second endpoint, and the other is not answered.
        for port in [2, 3] {
            plane.send(CLIENT, &Packet::tcp(&format!("10.10.10.1:{port}"), VIP).flags(SYN));
        }
        plane.set_state(0, state::FAILING);
        there(plane, &from_client(PSH | ACK).payload(b"still there?"));
        back(plane, &from_endpoint(PSH | ACK).payload(b"still here"));
        there(plane, &from_client(SYN));
        let again = Packet::tcp("10.10.10.1:3", VIP).flags(SYN);
        plane.send(CLIENT, &again).forwarded(&again.clone().to("32.32.32.1:5001").ttl(63));
        assert_eq!((plane.active(0), plane.active(1), plane.flow_count()), (1, 2, 6));
        plane.assert_drops(&[]);
    });
}

#[test]
fn two_vips_one_endpoint_one_client_port() {
    with_plane("two_vips_one_endpoint_one_client_port", |plane| {
        plane.add(&one_endpoint());
        plane.add(&Vip::new(1, TCP, "20.20.20.2:2020", &[ENDPOINT_AT, "32.32.32.1:5001"]));
        plane.add(&Vip::new(2, TCP, "20.20.20.3:2020", &[ENDPOINT_AT]));
        there(plane, &from_client(SYN));
        // The tuple at the first endpoint is taken, so the second gets the flow.
        let second = Packet::tcp(CLIENT_AT, "20.20.20.2:2020").flags(SYN);
        plane.send(CLIENT, &second).forwarded(&second.clone().to("32.32.32.1:5001").ttl(63));
        let third = Packet::tcp(CLIENT_AT, "20.20.20.3:2020").flags(SYN);
        plane.send(CLIENT, &third).dropped();
        assert_eq!(plane.drops().get(&(2, COLLISION)), Some(&1));
        back(plane, &from_endpoint(SYN | ACK));
        assert_eq!(plane.flow_count(), 4);
    });
}

#[test]
fn a_full_table_is_said_and_harms_no_established_flow() {
    // An odd number, so that one half of a flow finds room and the other does not.
    with_plane_of("a_full_table_is_said_and_harms_no_established_flow", 63, |plane| {
        plane.add(&one_endpoint());
        there(plane, &from_client(SYN));
        back(plane, &from_endpoint(SYN | ACK));
        let mut full = 0;
        for port in 1..=640 {
            let syn = Packet::tcp(&format!("10.10.10.2:{port}"), VIP).flags(SYN);
            match plane.send(CLIENT, &syn).action {
                Action::Drop => full += 1,
                action => assert_eq!(action, Action::Redirect),
            }
            there(plane, &from_client(ACK).payload(b"still here"));
        }
        assert!(full >= 640 - 64, "{full}");
        assert_eq!(plane.drops(), [((0, TABLE_FULL), full)].into());
        // Each flow has both halves: none was left alone when its other half found no room.
        assert_eq!(plane.active(0) as usize * 2, plane.flow_count());
        back(plane, &from_endpoint(ACK).payload(b"here too"));
    });
}

#[test]
fn full_nat_speaks_from_its_pool_and_finds_the_way_back() {
    with_plane("full_nat_speaks_from_its_pool_and_finds_the_way_back", |plane| {
        let pool = (vec!["31.31.255.254".parse().unwrap(), "31.31.255.253".parse().unwrap()], 2000, 2009);
        plane.add(&Vip { mode: mode::FULL_NAT, pool, ..one_endpoint() });
        let mut sources = std::collections::BTreeSet::new();
        let mut refused = 0;
        for port in 1..=30 {
            let client = format!("10.10.10.1:{port}");
            let syn = Packet::tcp(&client, VIP).flags(SYN).seq(5);
            let sent = plane.send(CLIENT, &syn);
            if sent.action == Action::Drop {
                refused += 1;
                continue;
            }
            let source = plane.flow(&client, VIP, TCP).unwrap().from;
            sent.forwarded(&syn.clone().from(&source.to_string()).to(ENDPOINT_AT).ttl(63));
            assert!(sources.insert(source), "{source} is used twice");
            let answer = Packet::tcp(ENDPOINT_AT, &source.to_string()).flags(SYN | ACK);
            plane.send(ENDPOINT[0], &answer).forwarded(&answer.clone().from(VIP).to(&client).ttl(63));
        }
        // Two addresses, ten ports: twenty flows, and the others are counted.
        assert_eq!((sources.len(), refused), (20, 10));
        assert!(sources.iter().all(|source| (2000..=2009).contains(&source.port())));
        assert_eq!(plane.drops(), [((0, PORTS_EXHAUSTED), 10)].into());
    });
}

#[test]
fn full_nat_uses_a_port_again_when_all_others_have_been_used() {
    with_plane("full_nat_uses_a_port_again_when_all_others_have_been_used", |plane| {
        let pool = (vec!["31.31.255.254".parse().unwrap()], 2000, 2009);
        let two = &[ENDPOINT_AT, "32.32.32.1:5001"];
        plane.add(&Vip { mode: mode::FULL_NAT, pool, ..Vip::new(0, TCP, VIP, two) });
        let mut used = [Vec::new(), Vec::new()];
        for port in 1..=60 {
            let client = format!("10.10.10.1:{port}");
            plane.send(CLIENT, &Packet::tcp(&client, VIP).flags(SYN));
            let flow = plane.flow(&client, VIP, TCP).unwrap();
            used[flow.endpoint as usize].push(flow.from.port());
            // It ends and is forgotten, but the endpoint may remember it for a minute.
            plane.send(CLIENT, &Packet::tcp(&client, VIP).flags(RST));
            plane.age(60);
            plane.collect();
        }
        for used in used {
            assert_eq!(used.len(), 30);
            for round in used.chunks(10) {
                let ports: std::collections::BTreeSet<u16> = round.iter().copied().collect();
                assert_eq!(ports.len(), 10, "{used:?}");
            }
        }
    });
}

/// A connection through a full_nat vip from its beginning to its end, of which these are the last segments. Returns its source port towards
/// the endpoint; none if there was none.
fn connection(plane: &Plane, client: &str, end: &[(&str, u8)]) -> Option<u16> {
    plane.send(CLIENT, &Packet::tcp(client, VIP).flags(SYN));
    let source = plane.flow(client, VIP, TCP)?.from;
    let segment = |interface: &str, flags: u8| {
        let (from, to) = if interface == CLIENT { (client, VIP.to_owned()) } else { (ENDPOINT_AT, source.to_string()) };
        assert_eq!(plane.send(interface, &Packet::tcp(from, &to).flags(flags)).action, Action::Redirect);
    };
    [(ENDPOINT[0], SYN | ACK), (CLIENT, ACK)]
        .iter()
        .chain(end)
        .for_each(|(interface, flags)| segment(interface, *flags));
    Some(source.port())
}

#[test]
fn full_nat_lets_a_tuple_rest_that_its_endpoint_has_closed() {
    const ENDPOINT_FIRST: &[(&str, u8)] = &[(ENDPOINT[0], FIN | ACK), (CLIENT, FIN | ACK), (ENDPOINT[0], ACK)];
    const CLIENT_FIRST: &[(&str, u8)] =
        &[(CLIENT, FIN | ACK), (ENDPOINT[0], ACK), (ENDPOINT[0], FIN | ACK), (CLIENT, ACK)];
    // Each side acknowledges the other's FIN after its own.
    const AT_ONCE: &[(&str, u8)] = &[(CLIENT, FIN | ACK), (ENDPOINT[0], FIN | ACK), (ENDPOINT[0], ACK), (CLIENT, ACK)];
    const RESET: &[(&str, u8)] = &[(ENDPOINT[0], RST | ACK)];
    with_plane("full_nat_lets_a_tuple_rest_that_its_endpoint_has_closed", |plane| {
        let pool = (vec!["31.31.255.254".parse().unwrap()], 2000, 2009);
        plane.add(&Vip { mode: mode::FULL_NAT, pool, ..one_endpoint() });
        let forget = |plane: &Plane| {
            plane.age(4);
            plane.collect();
            assert_eq!(plane.flow_count(), 0);
        };
        let ten = |plane: &Plane, end| {
            let all = (1..=10).filter_map(|port| connection(plane, &format!("10.10.10.1:{port}"), end));
            let ports: std::collections::BTreeSet<u16> = all.collect();
            assert_eq!(ports, (2000..=2009).collect(), "each once");
        };
        let mut refused = 0;
        for (end, rests) in [(CLIENT_FIRST, false), (RESET, false), (ENDPOINT_FIRST, true), (AT_ONCE, true)] {
            ten(plane, end);
            forget(plane);
            if rests {
                plane.age_rests(60);
                assert_eq!(connection(plane, "10.10.10.2:1", RESET), None, "no tuple is free");
                refused += 1;
                // As long as a kernel may take for 60 s.
                plane.age_rests(5);
            }
            let used = connection(plane, "10.10.10.2:1", RESET);
            assert!(used.is_some(), "{end:?}");
            forget(plane);
        }
        assert_eq!(plane.drops(), [((0, PORTS_EXHAUSTED), refused)].into());
        // A client that uses its port again gets another one towards the endpoint, even while the old flow is in the table.
        let used: Vec<_> = (0..5).map(|_| connection(plane, CLIENT_AT, ENDPOINT_FIRST).unwrap()).collect();
        assert_eq!(used.iter().collect::<std::collections::BTreeSet<_>>().len(), 5, "{used:?}");
        let used: Vec<_> = (0..3).map(|_| connection(plane, "10.10.10.3:1", CLIENT_FIRST).unwrap()).collect();
        assert_eq!(used.iter().collect::<std::collections::BTreeSet<_>>().len(), 1, "{used:?}");
    });
}

#[test]
fn full_nat_speaks_to_an_endpoint_from_the_address_that_it_knows() {
    with_plane("full_nat_speaks_to_an_endpoint_from_the_address_that_it_knows", |plane| {
        let pool = (vec!["31.31.255.254".parse().unwrap(), "31.31.255.253".parse().unwrap()], 2000, 2009);
        let endpoint = plane.add(&Vip { mode: mode::FULL_NAT, pool, ..one_endpoint() });
        plane.set_source(endpoint, 2);
        let mut ports = std::collections::BTreeSet::new();
        for port in 1..=12 {
            let client = format!("10.10.10.1:{port}");
            plane.send(CLIENT, &Packet::tcp(&client, VIP).flags(SYN));
            let Some(flow) = plane.flow(&client, VIP, TCP) else { continue };
            assert_eq!(flow.from.ip().to_string(), "31.31.255.253");
            ports.insert(flow.from.port());
        }
        // All its ports are tried, and no other address.
        assert_eq!(ports, (2000..=2009).collect());
        assert_eq!(plane.drops(), [((0, PORTS_EXHAUSTED), 2)].into());
    });
}

#[test]
fn full_nat_without_a_pool_says_so() {
    with_plane("full_nat_without_a_pool_says_so", |plane| {
        plane.add(&Vip { mode: mode::FULL_NAT, ..one_endpoint() });
        plane.send(CLIENT, &from_client(SYN)).dropped();
        plane.assert_drops(&[PORTS_EXHAUSTED]);
        assert_eq!(plane.flow_count(), 0);
    });
}

#[test]
fn dsr_touches_nothing_but_the_ttl() {
    with_plane("dsr_touches_nothing_but_the_ttl", |plane| {
        plane.add(&Vip { mode: mode::DSR, ..one_endpoint() });
        for flags in [SYN, ACK, PSH | ACK, FIN | ACK] {
            let packet = from_client(flags);
            plane.send(CLIENT, &packet).forwarded(&packet.clone().ttl(63));
        }
        let flow = plane.flow(CLIENT_AT, VIP, TCP).unwrap();
        assert_eq!(flow.next_hop.to_string(), "31.31.31.1");
        assert_eq!(plane.flow_count(), 1, "replies do not come by here");
        // A reused port, and an endpoint behind a router, which DSR cannot reach.
        plane.send(CLIENT, &from_client(SYN)).forwarded(&from_client(SYN).ttl(63));
        assert_eq!(plane.flow(CLIENT_AT, VIP, TCP).unwrap().state, SEEN_SYN | COUNTED);
        assert_eq!(plane.active(0), 1);
    });
}

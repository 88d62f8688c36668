//! Forwarding: TTL, MTU, VLAN tags, the kind of interface, routes that change.

use testkit::packet::{ACK, IcmpError, PSH, Packet, RST, SYN};

use super::layout::{ECHO, HOST, NO_VIP, TCP, UDP, mode};
use super::plane::{Action, CLIENT, ENDPOINT, Plane, Vip, ifindex, with_plane};

const VIP: &str = "20.20.20.1:2020";
const CLIENT_AT: &str = "10.10.10.1:40000";
const ENDPOINT_AT: &str = "31.31.31.1:5001";

/// `enum lb_action`.
const PEER: u8 = 1;
/// See `PEER`.
const NEIGH: u8 = 2;

const TTL_EXPIRED: u32 = 2;
const NO_ROUTE: u32 = 12;
const TOO_BIG: u32 = 14;
const NO_SUCH_PORT: u32 = 17;

/// Opens a flow from the client to the first endpoint.
fn open(plane: &mut Plane, proto: u8) {
    plane.add(&Vip::new(0, proto, VIP, &[ENDPOINT_AT]));
    let first = if proto == TCP { Packet::tcp(CLIENT_AT, VIP).flags(SYN) } else { Packet::udp(CLIENT_AT, VIP) };
    plane.send(CLIENT, &first).forwarded(&first.clone().to(ENDPOINT_AT).ttl(63));
}

#[test]
fn a_packet_whose_ttl_ends_here_goes_no_further() {
    with_plane("a_packet_whose_ttl_ends_here_goes_no_further", |plane| {
        open(plane, TCP);
        plane.add(&Vip::new(1, UDP, "[fd00:20::1]:2020", &["[fd00:31::1]:5001"]));
        let told = |from: &str, packet: &Packet, quoted: usize| {
            let error = Packet::error(from, IcmpError::TimeExceeded, packet).quote(quoted);
            let error = error.macs(packet.destination_mac, packet.source_mac);
            plane.send(CLIENT, packet).answered(&error);
        };
        for ttl in [0, 1] {
            told("20.20.20.1", &Packet::tcp(CLIENT_AT, VIP).ttl(ttl).payload_bytes(900), 40);
            told("20.20.20.1", &Packet::tcp("10.10.10.1:40001", VIP).flags(SYN).ttl(ttl), 40);
            told("fd00:20::1", &Packet::udp("[fd00:10::1]:1", "[fd00:20::1]:2020").ttl(ttl).payload_bytes(32), 60);
        }
        assert_eq!(plane.drops(), [((0, TTL_EXPIRED), 4), ((1, TTL_EXPIRED), 2)].into());
        assert_eq!(plane.flow_count(), 2, "no flow for a packet that goes nowhere");
        let last = Packet::tcp(CLIENT_AT, VIP).ttl(2);
        plane.send(CLIENT, &last).forwarded(&last.clone().to(ENDPOINT_AT).ttl(1));
    });
}

#[test]
fn a_port_that_no_vip_has_is_answered_where_routes_would_send_it_back() {
    with_plane("a_port_that_no_vip_has_is_answered_where_routes_would_send_it_back", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        plane.add(&Vip::new(1, TCP, "[fd00:20::1]:2020", &["[fd00:31::1]:5001"]));
        let closed = |client: &str, vip: &str| {
            let (client, other) = (format!("{client}:7"), format!("{vip}:81"));
            (Packet::tcp(&client, &other).flags(SYN).seq(9), Packet::udp(&client, &other).payload(b"question"))
        };
        let families = [("10.10.10.1", "20.20.20.1", 28 + 12), ("[fd00:10::1]", "[fd00:20::1]", 48 + 12)];
        // The host's stack knows better: here it has no route to the client.
        for (client, vip, _) in families {
            let (syn, datagram) = closed(client, vip);
            plane.send(CLIENT, &syn).untouched(&syn.build());
            plane.send(CLIENT, &datagram).untouched(&datagram.build());
        }
        run("ip route add default via 10.10.10.253");
        run("ip route add default via fd00:10::fd");
        for (client, vip, quoted) in families {
            let (syn, datagram) = closed(client, vip);
            plane.send(CLIENT, &syn).answered(&syn.reply().flags(RST | ACK).seq(0).ack(10).window(0));
            plane.send(CLIENT, &syn.clone().flags(RST)).dropped();
            // Such a short datagram is quoted with zeros after it.
            let from = datagram.destination.to_string();
            let mut error = Packet::error(&from, IcmpError::PortUnreachable, &datagram);
            error.payload.resize(quoted, 0);
            plane.send(CLIENT, &datagram).answered(&error.macs(datagram.destination_mac, datagram.source_mac));
            // They leave by another interface, and do not loop.
            plane.send(ENDPOINT[0], &syn).untouched(&syn.build());
        }
        assert_eq!(plane.drops(), [((NO_VIP, NO_SUCH_PORT), 6)].into());
        plane.set_address("20.20.20.1", HOST);
        let (syn, _) = closed("10.10.10.1", "20.20.20.1");
        plane.send(CLIENT, &syn).untouched(&syn.build());
    });
}

#[test]
fn what_is_too_big_is_answered_with_the_mtu() {
    with_plane("what_is_too_big_is_answered_with_the_mtu", |plane| {
        open(plane, TCP);
        let fits = Packet::tcp(CLIENT_AT, VIP).dont_fragment().payload_bytes(1460);
        plane.send(CLIENT, &fits).forwarded(&fits.clone().to(ENDPOINT_AT).ttl(63));
        let big = fits.payload_bytes(1461);
        // The error comes from the address that the packet was sent to, and quotes the packet as it was sent.
        let error = Packet::error("20.20.20.1", IcmpError::TooBig(1500), &big).quote(40);
        let error = error.macs(big.destination_mac, big.source_mac);
        plane.send(CLIENT, &big).answered(&error);
        plane.assert_drops(&[TOO_BIG]);
        // The endpoint gets the same error about the path to the client.
        let big = Packet::tcp(ENDPOINT_AT, CLIENT_AT).dont_fragment().payload_bytes(1461);
        let error = Packet::error("10.10.10.1", IcmpError::TooBig(1500), &big).quote(40);
        plane.send(ENDPOINT[0], &big).answered(&error.macs(big.destination_mac, big.source_mac));
    });
}

#[test]
fn what_is_too_big_is_answered_over_ipv6_and_udp() {
    with_plane("what_is_too_big_is_answered_over_ipv6_and_udp", |plane| {
        let (client, vip, endpoint) = ("[fd00:10::1]:40000", "[fd00:20::1]:2020", "[fd00:31::1]:5001");
        plane.add(&Vip::new(0, UDP, vip, &[endpoint]));
        let fits = Packet::udp(client, vip).payload_bytes(1452);
        plane.send(CLIENT, &fits).forwarded(&fits.clone().to(endpoint).ttl(63));
        let big = fits.payload_bytes(1453);
        let error = Packet::error("fd00:20::1", IcmpError::TooBig(1500), &big).quote(60);
        plane.send(CLIENT, &big).answered(&error.macs(big.destination_mac, big.source_mac));
        // With extension headers it is dropped, and counted all the same.
        let long = big.extension(testkit::packet::DESTINATION_OPTIONS, &[1, 4]);
        plane.send(CLIENT, &long).dropped();
        plane.assert_drops(&[TOO_BIG; 2]);
    });
}

#[test]
fn what_is_too_big_and_may_be_cut_is_left_to_the_stack() {
    with_plane("what_is_too_big_and_may_be_cut_is_left_to_the_stack", |plane| {
        open(plane, UDP);
        let big = Packet::udp(CLIENT_AT, VIP).payload_bytes(2000);
        let sent = plane.send(CLIENT, &big);
        assert_eq!(sent.action, Action::Next);
        // The stack decrements the TTL.
        assert_eq!(Packet::read(&sent.frame).unwrap().right(), big.to(ENDPOINT_AT));
        plane.assert_drops(&[]);
    });
}

#[test]
fn what_the_stack_would_not_take_is_answered_with_the_mtu_too() {
    with_plane("what_the_stack_would_not_take_is_answered_with_the_mtu_too", |plane| {
        open(plane, UDP);
        let big = Packet::udp(ENDPOINT_AT, CLIENT_AT).payload_bytes(2000).id(4);
        let told = |packet: &Packet| {
            let error = Packet::error("10.10.10.1", IcmpError::TooBig(1500), packet).quote(40);
            plane.send(ENDPOINT[0], packet).answered(&error.macs(packet.destination_mac, packet.source_mac));
        };
        let cut_by_the_stack = || assert_eq!(plane.send(ENDPOINT[0], &big).action, Action::Next);
        let (strict, loose) = (2, 4);
        cut_by_the_stack();
        // There is no route to the vip.
        for filter in [strict, loose] {
            plane.set_interface(ENDPOINT[0], filter);
            told(&big);
        }
        // There is one, through another interface.
        run("ip route add default via 10.10.10.253");
        cut_by_the_stack();
        plane.set_interface(ENDPOINT[0], strict);
        told(&big);
        // The host has the address.
        plane.set_interface(ENDPOINT[0], 0);
        cut_by_the_stack();
        plane.set_address("20.20.20.1", ECHO | HOST);
        told(&big);
        // Of a fragmented datagram, the first fragment is answered; the others cannot be identified.
        let pieces = Packet::udp(ENDPOINT_AT, CLIENT_AT).payload_bytes(6000).id(5).fragments(3000);
        assert_eq!(plane.send_bytes(ENDPOINT[0], &pieces[0]).action, Action::Redirect);
        plane.send_bytes(ENDPOINT[0], &pieces[1]).dropped();
    });
}

#[test]
fn of_many_segments_each_must_fit() {
    with_plane("of_many_segments_each_must_fit", |plane| {
        open(plane, TCP);
        let many = Packet::tcp(CLIENT_AT, VIP).flags(PSH | ACK).dont_fragment().payload_bytes(3000);
        plane.send_segments(CLIENT, &many, 1460).forwarded(&many.clone().to(ENDPOINT_AT).ttl(63));
        let error = Packet::error("20.20.20.1", IcmpError::TooBig(1500), &many).quote(40);
        let sent = plane.send_segments(CLIENT, &many, 1461);
        sent.answered(&error.macs(many.destination_mac, many.source_mac));
    });
}

#[test]
fn frames_of_a_vlan_are_left_to_its_own_interface() {
    with_plane("frames_of_a_vlan_are_left_to_its_own_interface", |plane| {
        open(plane, TCP);
        let mut bare = Packet::tcp(CLIENT_AT, VIP).payload(b"tagged");
        for _ in 0..2 {
            // A tag of VLAN 0 only has a priority, which applies to its link.
            let tagged = bare.clone().vlan(0);
            let expect = Packet { vlans: Vec::new(), ..tagged.clone() };
            plane.send(CLIENT, &tagged).forwarded(&expect.to(ENDPOINT_AT).ttl(63));
            for id in [1, 7, 4095] {
                let other = bare.clone().vlan(id);
                plane.send(CLIENT, &other).untouched(&other.build());
            }
            bare = bare.vlan(0);
        }
        // Three tags are more than the programs support: not ours.
        let three = bare.vlan(0);
        plane.send(CLIENT, &three.clone()).untouched(&three.build());
        plane.assert_drops(&[]);
    });
}

#[test]
fn frames_for_another_host_are_left_alone() {
    with_plane("frames_for_another_host_are_left_alone", |plane| {
        open(plane, TCP);
        // Frames that a switch floods: to another host, to all, to a group.
        for mac in [[2, 0, 0, 0, 0, 9], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            let packets = [
                Packet::tcp(CLIENT_AT, VIP).payload(b"of a flow"),
                Packet::tcp("10.10.10.1:40001", VIP).flags(SYN),
                Packet::tcp("10.10.10.1:40001", VIP),
                Packet::ping("10.10.10.1", "20.20.20.1", 7, 1),
            ];
            for packet in packets {
                let packet = packet.macs([2, 0, 0, 0, 0, 1], mac);
                plane.send(CLIENT, &packet).untouched(&packet.build());
            }
        }
        plane.assert_drops(&[]);
        assert_eq!(plane.flow_count(), 2);
    });
}

#[test]
fn a_packet_is_handed_directly_to_the_other_end_of_a_veth_and_nobody_behind_it() {
    with_plane("a_packet_is_handed_directly_to_the_other_end_of_a_veth_and_nobody_behind_it", |plane| {
        let check = |plane: &Plane, from: &str, vip: &str, interface: &str, action: u8| {
            plane.send(CLIENT, &Packet::tcp(from, vip).flags(SYN));
            let flow = plane.flow(from, vip, TCP).unwrap();
            assert_eq!((flow.ifindex, flow.action), (ifindex(interface), action), "{from} {vip}");
        };
        // The last two are behind the second endpoint's interface: one has another link-layer address, and that of the other is unknown.
        let endpoints = ["31.31.31.1:1", "32.32.32.1:2", "33.33.33.1:3", "32.32.32.2:4", "32.32.32.3:5"];
        plane.add(&Vip::new(0, TCP, VIP, &endpoints));
        let ways = [
            (ENDPOINT[0], NEIGH),
            (ENDPOINT[1], PEER),
            (ENDPOINT[2], NEIGH),
            (ENDPOINT[1], NEIGH),
            (ENDPOINT[1], NEIGH),
        ];
        for (port, (interface, action)) in (1..).zip(ways) {
            check(plane, &format!("10.10.10.1:{port}"), VIP, interface, action);
        }
        plane.add(&Vip::new(1, TCP, "[fd00:20::1]:2020", &["[fd00:32::1]:1"]));
        check(plane, "[fd00:10::1]:1", "[fd00:20::1]:2020", ENDPOINT[1], PEER);

        // The neighbour's address changes: established flows follow within a second.
        run("ip neigh replace 32.32.32.1 lladdr 02:00:00:00:00:09 dev ep1");
        plane.age(1);
        plane.send(CLIENT, &Packet::tcp("10.10.10.1:2", VIP));
        assert_eq!(plane.flow("10.10.10.1:2", VIP, TCP).unwrap().action, NEIGH);
    });
}

#[test]
fn the_way_is_the_hosts_routes_and_follows_them() {
    with_plane("the_way_is_the_hosts_routes_and_follows_them", |plane| {
        run("ip route add 172.16.0.0/24 via 31.31.31.7");
        plane.add(&Vip::new(0, TCP, VIP, &["172.16.0.1:80"]));
        let syn = Packet::tcp(CLIENT_AT, VIP).flags(SYN);
        plane.send(CLIENT, &syn).forwarded(&syn.clone().to("172.16.0.1:80").ttl(63));
        let flow = plane.flow(CLIENT_AT, VIP, TCP).unwrap();
        assert_eq!((flow.ifindex, flow.next_hop.to_string()), (ifindex(ENDPOINT[0]), "31.31.31.7".to_owned()));

        run("ip route replace 172.16.0.0/24 via 33.33.33.7");
        plane.age(1); // the way is looked up again once a second
        plane.send(CLIENT, &Packet::tcp(CLIENT_AT, VIP)).forwarded(&Packet::tcp(CLIENT_AT, "172.16.0.1:80").ttl(63));
        let flow = plane.flow(CLIENT_AT, VIP, TCP).unwrap();
        assert_eq!((flow.ifindex, flow.next_hop.to_string()), (ifindex(ENDPOINT[2]), "33.33.33.7".to_owned()));

        // Without a route the flow keeps its way, and a new one is refused.
        run("ip route del 172.16.0.0/24");
        plane.age(1);
        plane.send(CLIENT, &Packet::tcp(CLIENT_AT, VIP)).forwarded(&Packet::tcp(CLIENT_AT, "172.16.0.1:80").ttl(63));
        plane.send(CLIENT, &Packet::tcp("10.10.10.1:2", VIP).flags(SYN)).dropped();
        plane.assert_drops(&[NO_ROUTE]);
    });
}

#[test]
fn dsr_does_not_go_through_a_router() {
    with_plane("dsr_does_not_go_through_a_router", |plane| {
        run("ip route add 172.16.0.0/24 via 31.31.31.7");
        plane.add(&Vip { mode: mode::DSR, ..Vip::new(0, TCP, VIP, &["172.16.0.1:80"]) });
        plane.send(CLIENT, &Packet::tcp(CLIENT_AT, VIP).flags(SYN)).dropped();
        plane.assert_drops(&[NO_ROUTE]);
    });
}

#[test]
fn a_host_that_does_not_forward_has_no_route() {
    with_plane("a_host_that_does_not_forward_has_no_route", |plane| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        plane.send(CLIENT, &Packet::tcp(CLIENT_AT, VIP).flags(SYN)).dropped();
        plane.assert_drops(&[NO_ROUTE]);
    });
}

/// Runs a command in the namespace of this thread.
#[track_caller]
fn run(line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    assert!(std::process::Command::new(words[0]).args(&words[1..]).status().unwrap().success(), "{line}");
}

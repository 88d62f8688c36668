//! Echo, and errors about packets that went through here.

use testkit::packet::{ACK, FIN, IcmpError, Packet, RST, SYN};

use super::layout::{ECHO, HOST, NO_VIP, TCP, UDP, algorithm, mode};
use super::plane::{Action, CLIENT, ENDPOINT, Plane, Vip, with_plane};

const VIP: &str = "20.20.20.1:2020";
const CLIENT_AT: &str = "10.10.10.1:40000";
const ENDPOINT_AT: &str = "31.31.31.1:5001";
const VIP6: &str = "[fd00:20::1]:2020";
const CLIENT6: &str = "[fd00:10::1]:40000";
const ENDPOINT6: &str = "[fd00:31::1]:5001";

const TTL_EXPIRED: u32 = 2;
const UNKNOWN_FRAGMENT: u32 = 13;
const ICMP_UNMATCHED: u32 = 15;

#[test]
fn a_ping_to_a_vip_is_answered() {
    with_plane("a_ping_to_a_vip_is_answered", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        plane.add(&Vip::new(1, TCP, VIP6, &[ENDPOINT6]));
        for (from, to) in [("10.10.10.1", "20.20.20.1"), ("fd00:10::1", "fd00:20::1")] {
            let ping = Packet::ping(from, to, 7, 1).ttl(9).payload_bytes(57);
            plane.send(CLIENT, &ping).answered(&ping.reply());
        }
        let elsewhere = Packet::ping("10.10.10.1", "20.20.20.9", 7, 1);
        plane.send(CLIENT, &elsewhere).untouched(&elsewhere.build());
        let answer = Packet::ping("10.10.10.1", "20.20.20.1", 7, 1).reply().from("10.10.10.1").to("20.20.20.1");
        plane.send(CLIENT, &answer).untouched(&answer.build());
    });
}

/// The packet addressed to the interface again, after [`Packet::reply`].
fn there(packet: &Packet) -> Packet {
    packet.clone().macs([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
}

#[test]
fn a_ping_in_pieces_is_answered_piece_by_piece() {
    with_plane("a_ping_in_pieces_is_answered_piece_by_piece", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        plane.add(&Vip::new(1, TCP, VIP6, &[ENDPOINT6]));
        for (from, to) in [("10.10.10.1", "20.20.20.1"), ("fd00:10::1", "fd00:20::1")] {
            let ping = Packet::ping(from, to, 7, 1).id(5).payload_bytes(3000);
            // The checksum of the answer covers the whole: its fragments are those of the answer as one packet.
            for (piece, expect) in ping.fragments(1500).iter().zip(ping.reply().fragments(1500)) {
                let sent = plane.send_bytes(CLIENT, piece);
                assert_eq!(sent.action, Action::Redirect);
                assert_eq!(sent.frame, expect, "{}", Packet::describe(&sent.frame));
            }
            // A fragment of a ping whose first fragment was not seen, and one of another protocol.
            plane.send_bytes(CLIENT, &ping.clone().id(6).fragments(1500)[1]).dropped();
            let answer = there(&ping.reply().from(from).to(to)).id(7);
            plane.send_bytes(CLIENT, &answer.fragments(1500)[0]).dropped();
        }
        assert_eq!(plane.drops(), [((NO_VIP, UNKNOWN_FRAGMENT), 4)].into());
    });
}

#[test]
fn what_belongs_to_no_flow_is_the_hosts_where_it_has_the_address() {
    with_plane("what_belongs_to_no_flow_is_the_hosts_where_it_has_the_address", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        plane.add(&Vip { algorithm: algorithm::MAGLEV, ..Vip::new(1, TCP, VIP6, &[ENDPOINT6]) });
        plane.set_address("20.20.20.1", ECHO | HOST);
        plane.set_address("fd00:20::1", HOST);
        let untouched = |frame: &[u8]| plane.send_bytes(CLIENT, frame).untouched(frame);
        for (vip, client, router) in [(VIP, CLIENT_AT, "192.0.2.1"), (VIP6, CLIENT6, "fd00:99::1")] {
            // A packet of the host's own connections: from the client's port to one of its own.
            let (own, host) = if vip == VIP {
                (Packet::tcp("20.20.20.1:50000", "10.10.10.1:443"), "20.20.20.1")
            } else {
                (Packet::tcp("[fd00:20::1]:50000", "[fd00:10::1]:443"), "fd00:20::1")
            };
            for kind in [IcmpError::TooBig(1280), IcmpError::HostUnreachable, IcmpError::TimeExceeded] {
                untouched(&Packet::error(router, kind, &own).build());
            }
            let far = there(&Packet::ping(router, host, 7, 1).reply().from(router).to(host)).id(9).payload_bytes(3000);
            far.fragments(1500).iter().for_each(|piece| untouched(piece));
            // A segment without a flow: the host's stack answers it, whether or not a vip has this port.
            for flags in [ACK, SYN | ACK, RST, FIN | ACK] {
                // With a hash, an ACK may belong to a flow of another Steelyard.
                if vip == VIP || flags & (SYN | ACK | RST) != ACK {
                    untouched(&Packet::tcp(client, vip).flags(flags).build());
                }
                untouched(&there(&own.reply()).flags(flags).build());
            }
        }
        // A range of ports may contain the source ports of the host's own connections.
        let datagram = Packet::udp("192.0.2.1:53", "20.20.20.1:2020").id(3).payload_bytes(3000);
        datagram.fragments(1500).iter().for_each(|piece| untouched(piece));
        assert_eq!((plane.drops(), plane.flow_count()), ([].into(), 0));
        // The vip's flows still work.
        let syn = Packet::tcp(CLIENT_AT, VIP).flags(SYN);
        plane.send(CLIENT, &syn).forwarded(&syn.clone().to(ENDPOINT_AT).ttl(63));
        let error = Packet::error("192.0.2.1", IcmpError::TooBig(1280), &Packet::tcp(VIP, CLIENT_AT));
        let expect = Packet::error("192.0.2.1", IcmpError::TooBig(1280), &Packet::tcp(ENDPOINT_AT, CLIENT_AT)).ttl(63);
        plane.send(CLIENT, &error).forwarded(&expect);
    });
}

#[test]
fn a_connection_of_this_host_is_not_taken_up_by_a_hash() {
    with_plane("a_connection_of_this_host_is_not_taken_up_by_a_hash", |plane| {
        // The host's own address on the client's link is also a vip with all ports.
        let vip = Vip {
            algorithm: algorithm::MAGLEV,
            ports: (1, 65535),
            ..Vip::new(0, TCP, "10.10.10.254:1", &["31.31.31.1:0"])
        };
        plane.add(&vip);
        plane.set_address("10.10.10.254", HOST);
        let listener = std::net::TcpListener::bind("10.10.10.254:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, there) = (ours.local_addr().unwrap().to_string(), listener.local_addr().unwrap().to_string());
        let segment = Packet::tcp(&there, &here).flags(ACK);
        plane.send(CLIENT, &segment).untouched(&segment.build());
        // A connection that the host does not know was another Steelyard's.
        let segment = Packet::tcp(CLIENT_AT, &there).flags(ACK);
        plane
            .send(CLIENT, &segment)
            .forwarded(&segment.clone().to(&there.replace("10.10.10.254", "31.31.31.1")).ttl(63));
    });
}

/// An error about a packet to the endpoint reaches the client and quotes what the client sent; and the other way round.
#[track_caller]
fn errors_are_translated(plane: &Plane, client: &str, vip: &str, endpoint: &str, udp: bool) {
    let packet = |from: &str, to: &str| {
        let packet = if udp { Packet::udp(from, to) } else { Packet::tcp(from, to).seq(77) };
        packet.payload_bytes(700)
    };
    let first = if udp { packet(client, vip) } else { Packet::tcp(client, vip).flags(SYN) };
    let sent = plane.send(CLIENT, &first);
    sent.forwarded(&first.clone().to(endpoint).ttl(63));
    let address = |at: &str| Packet::udp(at, at).source.to_string();
    let (router, hop) = if vip.starts_with('[') { ("fd00:99::1", "fd00:98::1") } else { ("192.0.2.1", "198.51.100.1") };

    let seen_by_endpoint = packet(client, endpoint).ttl(60);
    let seen_by_client = packet(client, vip).ttl(60);
    let answer_of_endpoint = packet(endpoint, client).ttl(60);
    let answer_of_vip = packet(vip, client).ttl(60);
    for kind in
        [IcmpError::TooBig(1280), IcmpError::PortUnreachable, IcmpError::HostUnreachable, IcmpError::TimeExceeded]
    {
        for quote in [if vip.starts_with('[') { 48 } else { 28 }, 60, 400, 2000] {
            // From a router on the way, and from the endpoint, which the client knows as the vip.
            let error = Packet::error(router, kind, &seen_by_endpoint).quote(quote);
            let expect = Packet::error(router, kind, &seen_by_client).quote(quote).ttl(63);
            plane.send(ENDPOINT[0], &error).forwarded(&expect);
            let error = Packet::error(&address(endpoint), kind, &seen_by_endpoint).quote(quote);
            let expect = Packet::error(&address(vip), kind, &seen_by_client).quote(quote).ttl(63);
            plane.send(ENDPOINT[0], &error).forwarded(&expect);
            // About an answer: the client or a router before it sends the error to the vip.
            let error = Packet::error(hop, kind, &answer_of_vip).quote(quote);
            let expect = Packet::error(hop, kind, &answer_of_endpoint).quote(quote).ttl(63);
            plane.send(CLIENT, &error).forwarded(&expect);
        }
    }
}

#[test]
fn errors_are_translated_both_ways() {
    with_plane("errors_are_translated_both_ways", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        plane.add(&Vip::new(1, TCP, VIP6, &[ENDPOINT6]));
        plane.add(&Vip::new(2, UDP, VIP, &[ENDPOINT_AT]));
        plane.add(&Vip::new(3, UDP, VIP6, &[ENDPOINT6]));
        errors_are_translated(plane, CLIENT_AT, VIP, ENDPOINT_AT, false);
        errors_are_translated(plane, CLIENT6, VIP6, ENDPOINT6, false);
        errors_are_translated(plane, CLIENT_AT, VIP, ENDPOINT_AT, true);
        errors_are_translated(plane, CLIENT6, VIP6, ENDPOINT6, true);
        assert_eq!(plane.drops(), [].into());
    });
}

#[test]
fn errors_find_their_way_through_full_nat() {
    with_plane("errors_find_their_way_through_full_nat", |plane| {
        let pool = (vec!["31.31.255.254".parse().unwrap()], 2000, 2000);
        plane.add(&Vip { mode: mode::FULL_NAT, pool, ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        let syn = Packet::tcp(CLIENT_AT, VIP).flags(SYN);
        plane.send(CLIENT, &syn).forwarded(&syn.clone().from("31.31.255.254:2000").to(ENDPOINT_AT).ttl(63));
        let error =
            Packet::error("31.31.31.1", IcmpError::TooBig(1280), &Packet::tcp("31.31.255.254:2000", ENDPOINT_AT));
        let expect = Packet::error("20.20.20.1", IcmpError::TooBig(1280), &Packet::tcp(CLIENT_AT, VIP)).ttl(63);
        plane.send(ENDPOINT[0], &error).forwarded(&expect);
    });
}

#[test]
fn errors_about_nothing_that_is_known() {
    with_plane("errors_about_nothing_that_is_known", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        let about = |from: &str, to: &str| Packet::error("192.0.2.1", IcmpError::TooBig(1280), &Packet::tcp(from, to));
        plane.send(CLIENT, &about(VIP, CLIENT_AT)).dropped();
        // For another address: the host's stack may know the connection.
        let foreign = about(CLIENT_AT, ENDPOINT_AT);
        plane.send(ENDPOINT[0], &foreign).untouched(&foreign.build());
        assert_eq!(plane.drops(), [((NO_VIP, ICMP_UNMATCHED), 1)].into());

        // A priority tag applies to its link.
        plane.send(CLIENT, &Packet::tcp(CLIENT_AT, VIP).flags(SYN));
        let tagged = about(VIP, CLIENT_AT).vlan(0);
        let expect = about(ENDPOINT_AT, CLIENT_AT).ttl(63);
        plane.send(CLIENT, &tagged).forwarded(&expect);

        // Cut anywhere, it is never translated by half; nor when its own TTL ends.
        for quote in 0..28 {
            plane.send(CLIENT, &about(VIP, CLIENT_AT).quote(quote)).dropped();
        }
        plane.send(CLIENT, &about(VIP, CLIENT_AT).ttl(1)).dropped();
        assert_eq!(plane.drops(), [((NO_VIP, ICMP_UNMATCHED), 29), ((0, TTL_EXPIRED), 1)].into());
    });
}

#[test]
fn dsr_passes_errors_on_as_they_are() {
    with_plane("dsr_passes_errors_on_as_they_are", |plane| {
        plane.add(&Vip { mode: mode::DSR, ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        plane.send(CLIENT, &Packet::tcp(CLIENT_AT, VIP).flags(SYN));
        let answer = Packet::tcp(VIP, CLIENT_AT).flags(ACK).payload_bytes(1400);
        let error = Packet::error("192.0.2.1", IcmpError::TooBig(1280), &answer);
        plane.send(CLIENT, &error).forwarded(&error.clone().ttl(63));
    });
}

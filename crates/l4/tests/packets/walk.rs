//! Headers of every shape, whole and broken; and fragments.

use testkit::packet::{DESTINATION_OPTIONS, HOP_BY_HOP, PSH, Packet, ROUTING, SYN};

use super::layout::{NO_VIP, TCP, UDP};
use super::plane::{Action, CLIENT, ENDPOINT, Plane, Vip, with_plane};

const VIP: &str = "20.20.20.1:2020";
const CLIENT_AT: &str = "10.10.10.1:40000";
const ENDPOINT_AT: &str = "31.31.31.1:5001";
const VIP6: &str = "[fd00:20::1]:2020";
const CLIENT6: &str = "[fd00:10::1]:40000";
const ENDPOINT6: &str = "[fd00:31::1]:5001";

const MALFORMED: u32 = 1;
const UNKNOWN_FRAGMENT: u32 = 13;

/// TCP or UDP over both families. All have the vip number 0 in the drops.
fn both(plane: &mut Plane, proto: u8) {
    plane.add(&Vip::new(0, proto, VIP, &[ENDPOINT_AT]));
    plane.add(&Vip::new(1, proto, VIP6, &[ENDPOINT6]));
}

#[test]
fn options_and_extension_headers_are_stepped_over() {
    with_plane("options_and_extension_headers_are_stepped_over", |plane| {
        both(plane, TCP);
        let check = |packet: Packet| {
            let endpoint = if packet.source.is_ipv4() { ENDPOINT_AT } else { ENDPOINT6 };
            plane.send(CLIENT, &packet).forwarded(&packet.clone().to(endpoint).ttl(63));
        };
        let four = Packet::tcp(CLIENT_AT, VIP).flags(SYN).payload(b"x");
        let six = Packet::tcp(CLIENT6, VIP6).flags(SYN).payload(b"x");
        for count in 0..=10 {
            check(four.clone().ip_options(&vec![1; count * 4]));
        }
        check(six.clone().extension(HOP_BY_HOP, &[1, 4]));
        check(six.clone().extension(DESTINATION_OPTIONS, &[1; 62]));
        check(six.clone().extension(ROUTING, &[0; 6]));
        check(
            six.clone()
                .extension(HOP_BY_HOP, &[1, 4])
                .extension(DESTINATION_OPTIONS, &[1, 4])
                .extension(ROUTING, &[0; 6]),
        );
        check(six.clone().extension(DESTINATION_OPTIONS, &[1; 254]));
        check((0..6).fold(six.clone(), |packet, _| packet.extension(DESTINATION_OPTIONS, &[1, 4])));
        // An atomic fragment is complete by itself (RFC 6946).
        check(six.clone().fragment(0, false).id(9));

        // One header too many; a header that is too long; a routing header with segments left.
        let seven = (0..7).fold(six.clone(), |packet, _| packet.extension(DESTINATION_OPTIONS, &[1, 4]));
        plane.send(CLIENT, &seven).dropped();
        plane.send(CLIENT, &six.clone().extension(DESTINATION_OPTIONS, &[1; 262 + 8])).dropped();
        assert_eq!(plane.drops(), [((NO_VIP, MALFORMED), 2)].into());
        let on_its_way = six.extension(ROUTING, &[0, 1, 0, 0, 0, 0]);
        plane.send(CLIENT, &on_its_way).untouched(&on_its_way.build());
    });
}

/// A packet that is cut anywhere is never forwarded, and the tables stay as they were.
#[test]
fn what_is_cut_anywhere_is_never_forwarded() {
    with_plane("what_is_cut_anywhere_is_never_forwarded", |plane| {
        both(plane, TCP);
        let opened = [Packet::tcp(CLIENT_AT, VIP).flags(SYN), Packet::tcp(CLIENT6, VIP6).flags(SYN)];
        for packet in &opened {
            assert_eq!(plane.send(CLIENT, packet).action, Action::Redirect);
        }
        let packets = [
            Packet::tcp(CLIENT_AT, VIP).ip_options(&[7, 4, 4, 0]).payload(b"payload"),
            Packet::tcp(CLIENT_AT, VIP).vlan(0).vlan(0),
            Packet::tcp("10.10.10.1:1", VIP).flags(SYN),
            Packet::tcp(CLIENT6, VIP6).extension(HOP_BY_HOP, &[1, 4]).extension(ROUTING, &[0; 6]).payload(b"payload"),
            Packet::tcp("[fd00:10::1]:1", VIP6).flags(SYN).fragment(0, false),
        ];
        for packet in packets {
            let whole = packet.build();
            // TEST_RUN accepts no frame that ends within its IP header; the native tests cover that.
            let shortest = if packet.source.is_ipv4() { 34 } else { 54 };
            for length in shortest..whole.len() {
                let sent = plane.send_bytes(CLIENT, &whole[..length]);
                assert_ne!(sent.action, Action::Redirect, "{packet} cut to {length}");
                assert_eq!(sent.frame, &whole[..length], "{packet} cut to {length}");
            }
        }
        assert_eq!(plane.flow_count(), 4);
        assert!(plane.drops().keys().all(|(_, reason)| *reason == MALFORMED), "{:?}", plane.drops());
    });
}

#[test]
fn headers_that_contradict_themselves_are_dropped() {
    with_plane("headers_that_contradict_themselves_are_dropped", |plane| {
        both(plane, TCP);
        let check = |packet: &Packet, at: usize, bytes: &[u8]| {
            let mut frame = packet.build();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            let sent = plane.send_bytes(CLIENT, &frame);
            assert_eq!(sent.action, Action::Drop, "{packet}: {bytes:x?} at {at}");
        };
        let four = Packet::tcp(CLIENT_AT, VIP).flags(SYN).payload_bytes(40);
        check(&four, 14, &[0x44]); // header of 16 bytes
        check(&four, 16, &[0, 39]); // length: less than IP and TCP header
        check(&four, 16, &[0, 81]); // length: more than there is
        check(&four, 34 + 12, &[0x40]); // TCP header of 16 bytes
        check(&four.clone().payload(&[]), 34 + 12, &[0x60]); // TCP header longer than the packet
        let six = Packet::tcp(CLIENT6, VIP6).flags(SYN).payload_bytes(40);
        check(&six, 18, &[0, 19]);
        check(&six, 18, &[0, 61]);
        assert_eq!(plane.drops().values().sum::<u64>(), 7);
        assert_eq!(plane.flow_count(), 0);
    });
}

#[test]
fn fragments_follow_their_first() {
    with_plane("fragments_follow_their_first", |plane| {
        both(plane, UDP);
        for (client, vip, endpoint) in [(CLIENT_AT, VIP, ENDPOINT_AT), (CLIENT6, VIP6, ENDPOINT6)] {
            let whole = Packet::udp(client, vip).payload_bytes(3000).id(77);
            let translated = whole.clone().to(endpoint).ttl(63);
            for (piece, expect) in whole.fragments(1400).iter().zip(translated.fragments(1400)) {
                let sent = plane.send_bytes(CLIENT, piece);
                assert_eq!(sent.action, Action::Redirect);
                assert_eq!(Packet::describe(&sent.frame), Packet::describe(&expect));
                assert_eq!(sent.frame, expect);
            }
            // And the answer, whose first fragment again prepares the path for the others.
            let whole = Packet::udp(endpoint, client).payload_bytes(3000).id(78);
            let translated = whole.clone().from(vip).ttl(63);
            for (piece, expect) in whole.fragments(1400).iter().zip(translated.fragments(1400)) {
                assert_eq!(plane.send_bytes(ENDPOINT[0], piece).frame, expect);
            }
        }
        assert_eq!(plane.drops(), [].into());
    });
}

#[test]
fn a_fragment_before_its_first_is_dropped_and_counted() {
    with_plane("a_fragment_before_its_first_is_dropped_and_counted", |plane| {
        both(plane, UDP);
        for (client, vip) in [(CLIENT_AT, VIP), (CLIENT6, VIP6)] {
            let pieces = Packet::udp(client, vip).payload_bytes(3000).id(77).fragments(1400);
            plane.send_bytes(CLIENT, &pieces[1]).dropped();
            assert_eq!(plane.send_bytes(CLIENT, &pieces[0]).action, Action::Redirect);
            assert_eq!(plane.send_bytes(CLIENT, &pieces[2]).action, Action::Redirect);
            // A fragment of another datagram.
            let other = Packet::udp(client, vip).payload_bytes(3000).id(78).fragments(1400);
            plane.send_bytes(CLIENT, &other[1]).dropped();
        }
        assert_eq!(plane.drops(), [((NO_VIP, UNKNOWN_FRAGMENT), 4)].into());
        // Fragments for other addresses are not ours.
        let foreign = Packet::udp(CLIENT_AT, "20.20.20.9:1").payload_bytes(3000).fragments(1400);
        for piece in &foreign {
            plane.send_bytes(CLIENT, piece).untouched(piece);
        }
    });
}

#[test]
fn flags_that_no_connection_begins_with_open_none() {
    with_plane("flags_that_no_connection_begins_with_open_none", |plane| {
        both(plane, TCP);
        for flags in 0..0x40u8 {
            let begins = flags & 0x17 == SYN;
            let packet = Packet::tcp("10.10.10.1:5", VIP).flags(flags);
            if begins {
                continue;
            }
            plane.send(CLIENT, &packet);
            assert_eq!(plane.flow_count(), 0, "flags {flags:#x}");
        }
        let odd_but_new = Packet::tcp(CLIENT_AT, VIP).flags(SYN | PSH);
        assert_eq!(plane.send(CLIENT, &odd_but_new).action, Action::Redirect);
    });
}

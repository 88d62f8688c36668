//! The walk over headers, compared with `testkit::packet`, which was written from the RFCs and independently of it.

use std::net::IpAddr;

use proptest::prelude::*;
use testkit::packet::{DESTINATION_OPTIONS, HOP_BY_HOP, IcmpError, Packet, ROUTING, Transport};

use super::core::{self, Walk, walk, walk_quoted};
use super::seeded;

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Compares what both say about a packet that both can read.
#[track_caller]
fn agree(frame: &[u8], found: &core::Packet) {
    let read = Packet::read(frame).unwrap().packet;
    assert_eq!((found.saddr, found.daddr), (octets(read.source), octets(read.destination)), "{read}");
    assert_eq!((found.ttl, found.ipv6 == 1), (read.ttl, read.source.is_ipv6()), "{read}");
    assert_eq!(found.proto, read.protocol(), "{read}");
    assert_eq!(usize::from(found.vlan_tags), read.vlans.len(), "{read}");
    let (offset, more) = read.fragment.unwrap_or_default();
    assert_eq!(found.fragment, if offset > 0 { 2 } else { u8::from(more) }, "{read}");
    if found.fragment == 0 {
        let ports = [found.sport, found.dport].map(u16::from_be_bytes);
        assert_eq!((ports[0], ports[1]), read.ports().unwrap_or_default(), "{read}");
        let header = usize::from(found.l4 + u16::from(found.l4_header));
        assert_eq!(&frame[header..header + read.payload.len()], read.payload, "{read}");
    }
    match read.transport {
        Transport::Tcp(tcp) => assert_eq!(found.tcp_flags, tcp.flags),
        Transport::Icmp { kind, .. } => assert_eq!((found.icmp_type, found.icmp_code), kind),
        _ => {}
    }
}

/// A complete packet is understood; a packet that is cut anywhere within its headers is not. The quick walk agrees where it has a result.
#[track_caller]
fn check(packet: &Packet) {
    let frame = packet.build();
    let (result, found) = walk(&frame, frame.len(), true);
    assert_eq!(result, Walk::Ok, "{packet}");
    agree(&frame, &found);
    let headers = frame.len() - packet.payload.len();
    for length in 0..frame.len() {
        // Only this much of it is available, but the wire carried all of it.
        let (result, _) = walk(&frame[..length], frame.len(), true);
        let is_whole = length >= headers.min(usize::from(found.l4) + 20);
        assert_eq!(result, if is_whole { Walk::Ok } else { Walk::Short }, "{packet}: {length} of {headers} at hand");
        // The wire carried no more than this.
        let (result, _) = walk(&frame[..length], length, true);
        assert!(matches!(result, Walk::Short | Walk::Malformed), "{packet}: cut to {length}, {result:?}");
    }
    match walk(&frame, frame.len(), false) {
        (Walk::Longer, _) => {}
        (result, quick) => assert_eq!((result, quick), (Walk::Ok, found), "{packet}"),
    }
}

#[test]
fn headers_of_every_shape() {
    let (four, six) = (("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2"));
    for (from, to) in [four, six] {
        check(&Packet::tcp(from, to).payload(b"data"));
        check(&Packet::tcp(from, to).vlan(0).vlan(0).tcp_options(&[1; 40]));
        check(&Packet::udp(from, to).vlan(0).payload_bytes(100));
        check(&Packet::udp(from, to));
    }
    check(&Packet::ping("10.0.0.1", "10.0.0.2", 1, 2).payload(b"x"));
    check(&Packet::ping("fd00::1", "fd00::2", 1, 2));
    check(&Packet::tcp(four.0, four.1).ip_options(&[1; 40]));
    let chained = Packet::udp(six.0, six.1).extension(HOP_BY_HOP, &[1, 4]).extension(DESTINATION_OPTIONS, &[1; 30]);
    check(&chained.extension(ROUTING, &[0; 6]).fragment(0, false).payload(b"atomic"));
}

#[test]
fn frames_of_another_vlan_are_not_ours() {
    for id in [1, 0xfff] {
        for packet in [Packet::tcp("10.0.0.1:1", "10.0.0.2:2"), Packet::udp("[fd00::1]:1", "[fd00::2]:2").vlan(0)] {
            let frame = packet.vlan(id).build();
            assert_eq!(walk(&frame, frame.len(), true).0, Walk::Other, "{id}");
        }
    }
}

#[test]
fn quotations_of_every_shape() {
    let (four, six) = (("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2"));
    for (from, to) in [four, six] {
        for about in [Packet::tcp(from, to).payload_bytes(900), Packet::udp(from, to).payload_bytes(900)] {
            let router = if about.source.is_ipv4() { "192.0.2.1" } else { "fd00::9" };
            let error = Packet::error(router, IcmpError::TooBig(1280), &about);
            let header = if about.source.is_ipv4() { 20 } else { 40 };
            for quote in 0..=header + 60 {
                let frame = error.clone().quote(quote).build();
                let start = 14 + header + 8;
                let (result, found) = walk_quoted(&frame, start, about.source.is_ipv6());
                assert_eq!(
                    result,
                    if quote >= header + 8 { Walk::Ok } else { Walk::Short },
                    "{quote} bytes of {about}"
                );
                if result == Walk::Ok {
                    assert_eq!([found.saddr, found.daddr], [octets(about.source), octets(about.destination)]);
                    assert_eq!([found.sport, found.dport].map(u16::from_be_bytes), [1, 2]);
                    assert_eq!((usize::from(found.l3), usize::from(found.l4)), (start, start + header));
                }
            }
        }
    }
}

fn any_packet() -> impl Strategy<Value = Packet> {
    let shape = (any::<bool>(), 0..3usize, 0..3u8, 0..11usize, prop::collection::vec((0..2usize, 0..4usize), 0..5));
    (shape, 1u16.., 1u16.., 0..64u8, 0..11usize, 0..100usize).prop_map(
        |((ipv6, vlans, transport, options, extensions), sport, dport, flags, tcp_options, payload)| {
            let (from, to) = if ipv6 { ("[fd00::1]", "[fd00::2]") } else { ("10.0.0.1", "10.0.0.2") };
            let (from_port, to_port) = (format!("{from}:{sport}"), format!("{to}:{dport}"));
            let mut packet = match transport {
                0 => Packet::tcp(&from_port, &to_port).flags(flags).tcp_options(&vec![1; tcp_options * 4]),
                1 => Packet::udp(&from_port, &to_port),
                _ => Packet::ping(from.trim_matches(['[', ']']), to.trim_matches(['[', ']']), sport, dport),
            };
            packet = (0..vlans).fold(packet, |packet, _| packet.vlan(0)).payload_bytes(payload);
            if ipv6 {
                let add = |packet: Packet, (kind, units): (usize, usize)| {
                    packet.extension([HOP_BY_HOP, DESTINATION_OPTIONS][kind], &vec![1; units * 8 + 6])
                };
                extensions.into_iter().fold(packet, add)
            } else {
                packet.ip_options(&vec![1; options * 4])
            }
        },
    )
}

proptest! {
    #![proptest_config(seeded(300))]

    #[test]
    fn any_packet_is_read_as_it_was_written(packet in any_packet()) {
        check(&packet);
    }

    /// For any bytes, the walk ends within them, and if it succeeds, every header lies before the end.
    #[test]
    fn any_bytes(
        mut packet in any_packet().prop_map(|packet| packet.build()), noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        hidden in 0..40usize,
    ) {
        for (at, value) in noise {
            let at = at.index(packet.len());
            packet[at] = value;
        }
        // A box of exactly these bytes: a read beyond them is outside the allocation.
        let linear: Box<[u8]> = packet[..packet.len() - hidden.min(packet.len())].into();
        for full in [false, true] {
            let (result, found) = walk(&linear, packet.len(), full);
            if result == Walk::Ok {
                let l4 = usize::from(found.l4);
                prop_assert!(14 <= usize::from(found.l3) && usize::from(found.l3) < l4);
                prop_assert!(l4 + found.l4_len as usize <= packet.len());
                let header = if found.fragment == 2 { 0 } else if found.proto == 6 { 20 } else { 8 };
                prop_assert!(l4 + header <= linear.len());
                prop_assert!(usize::from(found.l4_header) <= found.l4_len as usize);
            }
        }
    }
}

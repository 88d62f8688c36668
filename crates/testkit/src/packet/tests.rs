//! Round trips of packets, and faults that the reader notices. What a balancer does with packets is not tested here.

use super::*;

/// Checks that the packet is the same after building and reading, without faults, and that it prints as this line.
#[track_caller]
fn check(packet: Packet, line: &str) {
    let bytes = packet.build();
    let reading = Packet::read(&bytes).unwrap();
    assert_eq!(reading.faults, Vec::<String>::new(), "{packet}");
    assert_eq!(reading.packet, packet);
    assert_eq!(Packet::describe(&bytes), line);
    // A change of any byte after the link layer is noticed, because it is in a sum or is read.
    for index in 12..bytes.len() {
        let mut altered = bytes.clone();
        altered[index] ^= 0x10;
        let noticed = match Packet::read(&altered) {
            Err(_) => true,
            Ok(reading) => !reading.faults.is_empty() || reading.packet != packet,
        };
        // The IPv6 flow label is not read, because nothing here depends on it.
        let is_flow_label = packet.source.is_ipv6() && (16..18).contains(&(index - 4 * packet.vlans.len()));
        assert!(noticed || is_flow_label, "{packet}: byte {index}");
    }
}

#[test]
fn there_and_back() {
    let (client, vip) = ("10.10.10.1:40000", "20.20.20.1:2020");
    let (client6, vip6) = ("[fd00:10::1]:40000", "[fd00:20::1]:2020");
    check(
        Packet::tcp(client, vip).flags(SYN).seq(1).tcp_options(&[2, 4, 5, 180]),
        "10.10.10.1:40000 > 20.20.20.1:2020 tcp S seq 1 ack 0 win 64240 options [02, 04, 05, b4], 0 bytes, ttl 64",
    );
    check(
        Packet::tcp(client6, vip6).flags(PSH | ACK).seq(u32::MAX).ack(7).payload(b"odd").vlan(7).vlan(8).tos(0xb8),
        "vlan 7 vlan 8 [fd00:10::1]:40000 > [fd00:20::1]:2020 tcp P. seq 4294967295 ack 7 win 64240, 3 bytes, ttl 64, tos 0xb8",
    );
    check(
        Packet::udp(client, vip).payload(b"x").dont_fragment().id(9).ip_options(&[7, 4, 4, 0]),
        "10.10.10.1:40000 > 20.20.20.1:2020 udp, 1 bytes, ttl 64, id 9, DF, IP options [07, 04, 04, 00]",
    );
    check(
        Packet::udp(client6, vip6).extension(HOP_BY_HOP, &[1, 4]).extension(DESTINATION_OPTIONS, &[1; 14]).ttl(1),
        "[fd00:10::1]:40000 > [fd00:20::1]:2020 udp, 0 bytes, ttl 1, extension 0 of 8 bytes, extension 60 of 16 bytes",
    );
    check(
        Packet::ping("10.10.10.1", "20.20.20.1", 1, 2).payload(b"ping"),
        "10.10.10.1 > 20.20.20.1 icmp 8/0 [00, 01, 00, 02], 4 bytes, ttl 64",
    );
    check(
        Packet::ping("fd00::1", "fd00::2", 1, 2).reply(),
        "fd00::2 > fd00::1 icmp6 129/0 [00, 01, 00, 02], 0 bytes, ttl 64",
    );
    check(
        Packet::other("10.0.0.1", "10.0.0.2", 47).payload(b"gre"),
        "10.0.0.1 > 10.0.0.2 protocol 47, 3 bytes, ttl 64",
    );
}

#[test]
fn errors_quote_what_they_are_about() {
    let segment = Packet::tcp("10.10.10.1:40000", "20.20.20.1:2020").payload(&[7; 1400]);
    let error = Packet::error("192.0.2.1", IcmpError::TooBig(1280), &segment);
    assert_eq!(error.build_ip().len(), 576);
    check(error.clone().quote(28), "192.0.2.1 > 10.10.10.1 icmp 3/4 [00, 00, 05, 00], 28 bytes, ttl 64");
    assert!(error.to_string().ends_with(
        ", 548 bytes, ttl 64 (10.10.10.1:40000 > 20.20.20.1:2020 tcp . seq 0 ack 0 win 64240, 508 bytes, ttl 64)"
    ));
    let datagram = Packet::udp("[fd00::1]:5", "[fd00::2]:6").payload(b"lost");
    check(
        Packet::error("fd00::3", IcmpError::PortUnreachable, &datagram),
        "fd00::3 > fd00::1 icmp6 1/4 [00, 00, 00, 00], 52 bytes, ttl 64 ([fd00::1]:5 > [fd00::2]:6 udp, 4 bytes, ttl 64)",
    );
}

#[test]
fn a_wrong_sum_is_named() {
    let check = |packet: Packet, place: usize, fault: &str| {
        let mut bytes = packet.build();
        bytes[place] ^= 1;
        assert_eq!(Packet::read(&bytes).unwrap().faults, [fault], "{packet}");
        assert!(Packet::describe(&bytes).ends_with(&format!(" WRONG: {fault}")));
    };
    let udp = Packet::udp("10.0.0.1:1", "10.0.0.2:2").payload(b"abcd");
    check(udp.clone(), 24, "IPv4 header checksum");
    check(udp.clone(), 43, "UDP checksum");
    check(Packet::tcp("10.0.0.1:1", "10.0.0.2:2"), 14 + 20 + 15, "TCP checksum");
    check(Packet::ping("10.0.0.1", "10.0.0.2", 1, 1), 14 + 20 + 7, "ICMP checksum");
    check(Packet::ping("fd00::1", "fd00::2", 1, 1), 14 + 40 + 7, "ICMPv6 checksum");
    let unsummed = udp.unsummed();
    assert_eq!(&unsummed.build()[40..42], [0, 0]);
    assert_eq!(Packet::read(&unsummed.build()).unwrap().right(), unsummed);

    // A correct outer sum does not hide a wrong inner one.
    let mut quoted = Packet::udp("10.0.0.1:1", "10.0.0.2:2").build_ip();
    quoted[10] ^= 1;
    let error = Packet::icmp("192.0.2.1", "10.0.0.1", (3, 3), [0; 4]).payload(&quoted);
    assert_eq!(Packet::read(&error.build()).unwrap().faults, ["in the quoted packet: IPv4 header checksum"]);
}

#[test]
fn a_udp_sum_of_zero_is_written_as_ones() {
    // With this payload the sum is 0: it is the sum over the rest.
    let base = Packet::udp("10.0.0.1:1", "10.0.0.2:2").payload(&[0, 0]);
    let sum = base.build()[40..42].to_vec();
    let zero = base.payload(&sum);
    assert_eq!(zero.build()[40..42], [0xff, 0xff]);
    assert_eq!(Packet::read(&zero.build()).unwrap().right(), zero);
}

#[test]
fn pieces_make_the_whole() {
    for (from, to, header) in [("10.0.0.1:1", "10.0.0.2:2", 34), ("[fd00::1]:1", "[fd00::2]:2", 14 + 48)] {
        let whole = Packet::udp(from, to).payload_bytes(3000).id(77);
        let pieces = whole.fragments(1500);
        assert_eq!(pieces.len(), 3);
        let mut content: Vec<u8> = Vec::new();
        for piece in &pieces {
            assert!(piece.len() <= 1514);
            let read = Packet::read(piece).unwrap().right();
            assert_eq!((read.id, read.fragment), (77, Some((content.len() as u16, content.len() + 1480 < 3008))));
            content.extend(&piece[header..]);
        }
        assert_eq!(content, whole.build_ip()[whole.build_ip().len() - 3008..]);
        assert_eq!(whole.fragments(4000), [whole.build()]);
    }
}

#[test]
fn headers_that_are_cut_are_no_packet() {
    for packet in [
        Packet::tcp("10.0.0.1:1", "10.0.0.2:2").tcp_options(&[1; 8]),
        Packet::udp("[fd00::1]:1", "[fd00::2]:2").extension(ROUTING, &[]).vlan(3),
    ] {
        let whole = packet.build();
        for length in 0..whole.len() {
            assert!(Packet::read(&whole[..length]).is_err(), "{packet} cut to {length}");
        }
    }
    let payload = Packet::udp("10.0.0.1:1", "10.0.0.2:2").payload(b"abcd").build();
    let cut = Packet::read(&payload[..payload.len() - 1]).unwrap();
    assert_eq!(cut.faults[0], "cut: 11 of 12 bytes after the IP header");
}

#[test]
fn the_other_way() {
    let there = Packet::tcp("10.0.0.1:1", "20.0.0.1:2").ttl(7).macs([1; 6], [2; 6]);
    let back = there.reply();
    assert_eq!(back, Packet::tcp("20.0.0.1:2", "10.0.0.1:1").macs([2; 6], [1; 6]));
    assert_eq!(back.from("30.0.0.1:9").to("10.0.0.7").ports(), Some((9, 1)));
}

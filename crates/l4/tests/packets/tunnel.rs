//! dsr beyond the link: packets that travel inside others. The bytes of the outer headers are written here by hand.

use testkit::packet::{ACK, IcmpError, Packet, SYN};

use super::layout::{TCP, UDP, mode};
use super::plane::{Action, CLIENT, Plane, Vip, with_plane};

const NO_ROUTE: u32 = 12;
const TOO_BIG: u32 = 14;
const IPIP: u8 = 1;
const GUE: u8 = 2;
const ETHERNET: usize = 14;

/// By family: the client, the vip, an endpoint behind a router, and this host's address towards it.
const V4: [&str; 4] = ["10.10.10.1:40000", "20.20.20.1:80", "10.99.0.1:80", "10.10.10.254"];
const V6: [&str; 4] = ["[fd00:10::1]:40000", "[fd00:20::1]:80", "[fd00:31::1]:80", "fd00:31::fe"];

fn vip(index: u32, proto: u8, [_, vip, endpoint, source]: [&str; 4], tunnel: u8) -> Vip {
    let mut made = Vip::new(index, proto, vip, &[endpoint]);
    (made.mode, made.tunnel) = (mode::DSR, tunnel);
    made.pool = (vec![source.parse().unwrap()], 1024, 32_767);
    made
}

fn add(plane: &mut Plane, vip: &Vip) {
    let endpoint = plane.add(vip);
    plane.set_source(endpoint, 1);
}

/// Takes the packet out, after a look at what it travels in. Returns it with a link-layer header, and the source port of GUE.
#[track_caller]
fn inner(frame: &[u8], [_, _, to, from]: [&str; 4], tunnel: u8) -> (Vec<u8>, u16) {
    let to: std::net::SocketAddr = to.parse().unwrap();
    let from: std::net::IpAddr = from.parse().unwrap();
    let outer = &frame[ETHERNET..];
    let (header, proto, inside) = if to.is_ipv4() { (20, outer[9], 4) } else { (40, outer[6], 41) };
    let be16 = |at: usize| u16::from_be_bytes([outer[at], outer[at + 1]]);
    assert_eq!(proto, if tunnel == IPIP { inside } else { 17 });
    if to.is_ipv4() {
        assert_eq!((outer[0], usize::from(be16(2)), be16(6), outer[8]), (0x45, outer.len(), 0, 64));
        let sum: u32 = (0..10).map(|word| u32::from(be16(2 * word))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum of the outer header");
        assert_eq!(
            outer[12..20],
            [from.to_string(), to.ip().to_string()]
                .map(|it| it.parse::<std::net::Ipv4Addr>().unwrap().octets())
                .concat()
        );
    } else {
        assert_eq!((outer[0] >> 4, usize::from(be16(4)), outer[7]), (6, outer.len() - 40, 64));
        assert_eq!(
            outer[8..40],
            [from.to_string(), to.ip().to_string()]
                .map(|it| it.parse::<std::net::Ipv6Addr>().unwrap().octets())
                .concat()
        );
    }
    let mut rest = &outer[header..];
    let mut port = 0;
    if tunnel == GUE {
        port = be16(header);
        assert_eq!((be16(header + 2), usize::from(be16(header + 4)), be16(header + 6)), (6080, rest.len(), 0));
        assert_eq!(rest[8..12], [0, inside, 0, 0], "the header of GUE");
        rest = &rest[12..];
    }
    ([&frame[..ETHERNET], rest].concat(), port)
}

#[test]
fn packets_inside_others() {
    with_plane("packets_inside_others", |plane| {
        plane.run_ip("route add 10.99.0.0/24 via 10.10.10.253");
        for (index, (at, tunnel)) in [(V4, IPIP), (V4, GUE), (V6, IPIP), (V6, GUE)].into_iter().enumerate() {
            let [client, to, ..] = at;
            let to = to.replace("1:80", &format!("{}:80", index + 1)).replace("::1]", &format!("::{}]", index + 1));
            let of = |proto, offset| Vip {
                address: to.parse::<std::net::SocketAddr>().unwrap().ip(),
                ..vip(2 * index as u32 + offset, proto, at, tunnel)
            };
            add(plane, &of(TCP, 0));
            add(plane, &of(UDP, 1));
            let mut ports = Vec::new();
            for packet in [
                Packet::tcp(client, &to).flags(SYN),
                Packet::tcp(client, &to).flags(ACK).payload_bytes(1000),
                Packet::udp(client, &to).payload(b"question"),
            ] {
                let sent = plane.send(CLIENT, &packet);
                assert_eq!(sent.action, Action::Redirect, "{packet}");
                let (taken, port) = inner(&sent.frame, at, tunnel);
                ports.push(port);
                let mut expect = packet.clone().ttl(63).build();
                // The type of the frame and its addresses are the kernel's to write.
                expect[..ETHERNET].copy_from_slice(&taken[..ETHERNET]);
                assert_eq!(taken, expect, "{}", Packet::describe(&taken));
            }
            if tunnel == GUE {
                assert!(
                    ports[0] == ports[1] && ports[0] != ports[2] && ports.iter().all(|port| *port >= 0xc000),
                    "{ports:?}"
                );
            }
        }
        plane.assert_drops(&[]);
    });
}

#[test]
fn what_does_not_fit_with_the_tunnel() {
    with_plane("what_does_not_fit_with_the_tunnel", |plane| {
        plane.run_ip("route add 10.99.0.0/24 via 10.10.10.253");
        for (index, (at, tunnel, room)) in [(V4, IPIP, 1480_u16), (V6, GUE, 1448)].into_iter().enumerate() {
            let [client, to, ..] = at;
            add(plane, &vip(index as u32, TCP, at, tunnel));
            let syn = Packet::tcp(client, to).flags(SYN);
            assert_eq!(plane.send(CLIENT, &syn).action, Action::Redirect);
            let (room_bytes, headers) = (usize::from(room), if at == V4 { 40 } else { 60 });
            let fits = Packet::tcp(client, to).flags(ACK).payload_bytes(room_bytes - headers);
            let fits = if at == V4 { fits.dont_fragment() } else { fits };
            assert_eq!(plane.send(CLIENT, &fits).action, Action::Redirect);
            let host = to.parse::<std::net::SocketAddr>().unwrap().ip().to_string();
            let big = fits.payload_bytes(room_bytes - headers + 1);
            let error = Packet::error(&host, IcmpError::TooBig(room), &big)
                .quote(headers)
                .macs(big.destination_mac, big.source_mac);
            plane.send(CLIENT, &big).answered(&error);
        }
        assert_eq!(plane.drops(), [((0, TOO_BIG), 1), ((1, TOO_BIG), 1)].into());
    });
}

#[test]
fn without_an_address_of_this_host_nothing_leaves() {
    with_plane("without_an_address_of_this_host_nothing_leaves", |plane| {
        plane.run_ip("route add 10.99.0.0/24 via 10.10.10.253");
        plane.add(&Vip { pool: (Vec::new(), 1024, 2048), ..vip(0, TCP, V4, IPIP) });
        plane.send(CLIENT, &Packet::tcp(V4[0], V4[1]).flags(SYN)).dropped();
        plane.assert_drops(&[NO_ROUTE]);
    });
}

#[test]
fn an_error_about_an_answer_reaches_the_endpoint() {
    with_plane("an_error_about_an_answer_reaches_the_endpoint", |plane| {
        plane.run_ip("route add 10.99.0.0/24 via 10.10.10.253");
        let [client, to, ..] = V4;
        add(plane, &vip(0, TCP, V4, IPIP));
        assert_eq!(plane.send(CLIENT, &Packet::tcp(client, to).flags(SYN)).action, Action::Redirect);
        let answer = Packet::tcp(to, client).flags(ACK).payload_bytes(1400);
        let error = Packet::error("10.10.10.253", IcmpError::TooBig(1300), &answer).quote(60);
        let error = error.macs([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let sent = plane.send(CLIENT, &error);
        assert_eq!(sent.action, Action::Redirect);
        let (taken, _) = inner(&sent.frame, V4, IPIP);
        let mut expect = error.ttl(63).build();
        expect[..ETHERNET].copy_from_slice(&taken[..ETHERNET]);
        assert_eq!(taken, expect, "{}", Packet::describe(&taken));
    });
}

//! Which sources may open a flow: lists and rates.

use std::net::IpAddr;

use testkit::packet::{ACK, FIN, Packet, SYN};

use super::layout::{RATE, SOURCES, SOURCES_ONLY, TCP, Writer, algorithm};
use super::plane::{Action, CLIENT, Plane, Vip, with_plane};

const VIP: &str = "20.20.20.1:2020";
const ALLOW: u32 = 1;
const DENY: u32 = 2;

const DENIED: u32 = 3;
const NOT_ALLOWED: u32 = 4;
const RATE_LIMITED: u32 = 5;

fn list(plane: &Plane, vip: u32, prefix: &str, bits: u32, verdict: u32) {
    let address: IpAddr = prefix.parse().unwrap();
    let bits = if address.is_ipv4() { 96 + bits } else { bits };
    let key = Writer::default().u32(32 + bits).be32(vip).address(address);
    plane.put("lb_sources", &key.0, &verdict.to_ne_bytes());
}

fn opens(plane: &Plane, client: &str) -> bool {
    plane.send(CLIENT, &Packet::tcp(client, VIP).flags(SYN)).action == Action::Redirect
}

#[test]
fn the_longest_prefix_decides() {
    with_plane("the_longest_prefix_decides", |plane| {
        let vip = Vip::new(0, TCP, VIP, &["31.31.31.1:80"]);
        plane.add(&Vip { flags: SOURCES, ..vip.clone() });
        list(plane, 0, "10.10.0.0", 16, DENY);
        list(plane, 0, "10.10.10.0", 24, ALLOW);
        list(plane, 0, "10.10.10.7", 32, DENY);
        list(plane, 1, "10.9.0.0", 16, DENY); // another vip's
        assert!(opens(plane, "10.10.10.1:1"));
        assert!(!opens(plane, "10.10.11.1:1"));
        assert!(!opens(plane, "10.10.10.7:1"));
        assert!(opens(plane, "10.9.0.1:1"));
        plane.assert_drops(&[DENIED, DENIED]);

        // With an allow list, a source that is not on it is refused; its existing flows continue.
        plane.set_vip(&Vip { flags: SOURCES | SOURCES_ONLY, ..vip }, 1);
        assert!(!opens(plane, "10.8.0.1:1"));
        assert!(opens(plane, "10.10.10.2:1"));
        let data = Packet::tcp("10.9.0.1:1", VIP);
        assert_eq!(plane.send(CLIENT, &data).action, Action::Redirect);
        plane.assert_drops(&[DENIED, DENIED, NOT_ALLOWED]);
    });
}

#[test]
fn ipv6_sources_are_listed_too() {
    with_plane("ipv6_sources_are_listed_too", |plane| {
        let vip = "[fd00:20::1]:2020";
        plane.add(&Vip { flags: SOURCES | SOURCES_ONLY, ..Vip::new(0, TCP, vip, &["[fd00:31::1]:80"]) });
        list(plane, 0, "fd00:10::", 64, ALLOW);
        let opens = |client: &str| plane.send(CLIENT, &Packet::tcp(client, vip).flags(SYN)).action == Action::Redirect;
        assert!(opens("[fd00:10::1]:1"));
        assert!(!opens("[fd00:11::1]:1"));
        plane.assert_drops(&[NOT_ALLOWED]);
    });
}

#[test]
fn a_source_opens_so_many_and_no_more() {
    with_plane("a_source_opens_so_many_and_no_more", |plane| {
        // No token returns here. The tests of the arithmetic cover the clock.
        plane.add(&Vip { flags: RATE, rate: (0, 10), ..Vip::new(0, TCP, VIP, &["31.31.31.1:80"]) });
        let opened = (1..=40).filter(|port| opens(plane, &format!("10.10.10.1:{port}"))).count();
        assert_eq!(opened, 10);
        assert_eq!(plane.drops(), [((0, RATE_LIMITED), 30)].into());
        assert!(opens(plane, "10.10.10.2:1"), "another source has its own");
        // Packets of established flows cost no token.
        for _ in 0..50 {
            assert_eq!(plane.send(CLIENT, &Packet::tcp("10.10.10.1:1", VIP)).action, Action::Redirect);
        }
    });
}

#[test]
fn a_port_that_is_used_again_counts_as_new() {
    with_plane("a_port_that_is_used_again_counts_as_new", |plane| {
        plane.add(&Vip { flags: RATE, rate: (0, 3), ..Vip::new(0, TCP, VIP, &["31.31.31.1:80"]) });
        let mut refused = 0;
        for _ in 0..20 {
            refused += u32::from(!opens(plane, "10.10.10.1:1"));
            plane.send(CLIENT, &Packet::tcp("10.10.10.1:1", VIP).flags(FIN | ACK));
            plane.send("ep0", &Packet::tcp("31.31.31.1:80", "10.10.10.1:1").flags(FIN | ACK));
        }
        assert_eq!(refused, 17);
    });
}

#[test]
fn a_flood_of_acks_opens_no_more_than_syns_would() {
    with_plane("a_flood_of_acks_opens_no_more_than_syns_would", |plane| {
        for (index, algorithm) in [(0, algorithm::MAGLEV), (1, algorithm::SOURCE_HASH)] {
            let at = format!("20.20.20.{}:80", 10 + index);
            let vip = Vip { flags: RATE, rate: (0, 10), ..Vip::new(index, TCP, &at, &["31.31.31.1:80"]) };
            plane.add(&Vip { algorithm, ..vip });
            // Each would be a flow that is found again after a restart.
            let middle = |port: u32| Packet::tcp(&format!("10.10.10.{}:{port}", 1 + index), &at).flags(ACK);
            let taken_up =
                (1..=40).filter(|port| plane.send(CLIENT, &middle(*port)).action == Action::Redirect).count();
            assert_eq!(taken_up, 10);
            // The others are not reset: they try again when there are tokens.
            assert_eq!(plane.drops().get(&(index, RATE_LIMITED)), Some(&30));
        }
    });
}

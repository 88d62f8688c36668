//! The effect of time on flows: the collection.

use testkit::packet::{ACK, FIN, Packet, RST, SYN};

use super::layout::{TCP, UDP, mode};
use super::plane::{Action, CLIENT, ENDPOINT, Plane, Vip, with_plane, with_plane_of};

const VIP: &str = "20.20.20.1:2020";
const ENDPOINT_AT: &str = "31.31.31.1:5001";
/// The number in `bpf/drop.h`.
const TIMED_OUT: u32 = 18;

fn client(port: u32) -> String {
    format!("10.10.10.1:{port}")
}

fn there(plane: &Plane, port: u32, flags: u8) {
    plane.send(CLIENT, &Packet::tcp(&client(port), VIP).flags(flags));
}

fn back(plane: &Plane, port: u32, flags: u8) {
    plane.send(ENDPOINT[0], &Packet::tcp(ENDPOINT_AT, &client(port)).flags(flags));
}

/// One flow waiting for its answer, one established, one half closed, one closed.
fn four(plane: &Plane) {
    for port in 1..=4 {
        there(plane, port, SYN);
    }
    for port in 2..=4 {
        back(plane, port, SYN | ACK);
        there(plane, port, ACK);
        back(plane, port, ACK);
    }
    for port in 3..=4 {
        there(plane, port, FIN | ACK);
    }
    back(plane, 4, FIN | ACK);
    there(plane, 4, ACK);
}

fn alive(plane: &Plane) -> Vec<u32> {
    let both = |port: &u32| {
        let halves = [plane.flow(&client(*port), VIP, TCP), plane.flow(ENDPOINT_AT, &client(*port), TCP)];
        assert_eq!(halves[0].is_some(), halves[1].is_some(), "half a flow of port {port}");
        halves[0].is_some()
    };
    (1..=4).filter(both).collect()
}

#[test]
fn each_state_has_its_time() {
    with_plane("each_state_has_its_time", |plane| {
        plane.add(&Vip { times_s: [20, 3600, 2], ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        four(plane);
        assert_eq!((plane.collect(), plane.active(0)), ((8, 0, 0), 3));
        plane.age(4);
        assert_eq!((plane.collect(), alive(plane), plane.active(0)), ((8, 0, 1), vec![1, 2, 3], 3));
        plane.age(18);
        assert_eq!((plane.collect(), alive(plane), plane.active(0)), ((6, 1, 0), vec![2, 3], 2));
        plane.age(3500);
        assert_eq!((plane.collect(), alive(plane)), ((4, 0, 0), vec![2, 3]));
        // One direction sends: both stay.
        back(plane, 2, ACK);
        plane.age(200);
        assert_eq!(
            (plane.collect(), alive(plane), plane.active(0)),
            ((4, 0, 0), vec![2, 3], 1),
            "ended, and still there"
        );
        plane.age(4);
        assert_eq!((plane.collect(), alive(plane), plane.active(0)), ((4, 1, 0), vec![2], 1));
        plane.age(3700);
        assert_eq!((plane.collect(), plane.active(0)), ((2, 0, 0), 0));
        plane.age(4);
        assert_eq!((plane.collect(), alive(plane)), ((2, 1, 0), vec![]));
    });
}

#[test]
fn both_sides_of_an_idle_connection_are_told_that_it_is_over() {
    with_plane("both_sides_of_an_idle_connection_are_told_that_it_is_over", |plane| {
        plane.add(&Vip { times_s: [20, 3600, 2], ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        for port in 1..=3 {
            there(plane, port, SYN);
            back(plane, port, SYN | ACK);
            there(plane, port, ACK);
        }
        plane.age(3700);
        assert_eq!((plane.collect_ending(1), plane.active(0)), ((6, 0, 0), 2), "the others wait their turn");
        assert_eq!((plane.collect(), plane.active(0)), ((6, 0, 0), 0));
        let reset = |interface: &str, packet: Packet| {
            let reset = packet.reply().window(0).flags(RST).seq(4711).ack(0);
            plane.send(interface, &packet.flags(ACK).seq(7).ack(4711)).answered(&reset);
        };
        // Whichever side is first, and again: a packet may have been on its way.
        reset(CLIENT, Packet::tcp(&client(1), VIP));
        reset(ENDPOINT[0], Packet::tcp(ENDPOINT_AT, &client(1)));
        reset(CLIENT, Packet::tcp(&client(1), VIP));
        reset(ENDPOINT[0], Packet::tcp(ENDPOINT_AT, &client(2)));
        plane.assert_drops(&[TIMED_OUT; 4]);
        // Its own RST is not answered, and a SYN begins a new connection.
        there(plane, 2, RST);
        plane.assert_drops(&[TIMED_OUT; 5]);
        there(plane, 3, SYN);
        back(plane, 3, SYN | ACK);
        there(plane, 3, ACK);
        plane.age(4);
        assert_eq!((plane.collect(), plane.active(0)), ((6, 2, 0), 1));
        plane.assert_drops(&[TIMED_OUT; 5]);
    });
}

#[test]
fn the_last_packet_removes_a_connection_if_the_table_is_filling_or_nobody_collects() {
    with_plane("the_last_packet_removes_a_connection_if_the_table_is_filling_or_nobody_collects", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        let close = |plane: &Plane, last: &[(bool, u8)]| {
            there(plane, 1, SYN);
            back(plane, 1, SYN | ACK);
            there(plane, 1, ACK);
            for (is_client, flags) in last {
                let packet = match is_client {
                    true => Packet::tcp(&client(1), VIP),
                    false => Packet::tcp(ENDPOINT_AT, &client(1)),
                };
                let interface = if *is_client { CLIENT } else { ENDPOINT[0] };
                // The last packet itself still arrives.
                assert_eq!(plane.send(interface, &packet.flags(*flags)).action, Action::Redirect);
            }
        };
        let fins = [(true, FIN | ACK), (false, FIN | ACK), (true, ACK)];
        let other_fins = [(false, FIN | ACK), (true, FIN | ACK), (false, ACK)];
        let half = [(true, FIN | ACK), (false, FIN | ACK)];
        let check = |last: &[(bool, u8)], entries: usize| {
            close(plane, last);
            assert_eq!((plane.flow_count(), plane.active(0)), (entries, u32::from(last.len() == 2)), "{last:?}");
            there(plane, 1, RST);
            plane.age(4);
            plane.collect();
        };
        let now_s = super::plane::monotonic_s();
        // Somebody collects, and there is room.
        for last in [&fins[..], &other_fins, &[(false, RST | ACK)], &half] {
            check(last, 2);
        }
        for is_high in [true, false] {
            if is_high {
                plane.press(true);
            } else {
                plane.collected(now_s.saturating_sub(60));
            }
            for last in [&fins[..], &other_fins, &[(true, RST)], &[(false, RST | ACK)]] {
                check(last, 0);
            }
            // The last ACK is missing, so it may be sent again.
            check(&half, 2);
        }
    });
}

#[test]
fn under_pressure_an_idle_connection_is_forgotten_at_once() {
    with_plane("under_pressure_an_idle_connection_is_forgotten_at_once", |plane| {
        plane.add(&Vip { times_s: [20, 3600, 2], ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        four(plane);
        plane.age(3700);
        plane.press(true);
        assert_eq!((plane.collect(), plane.flow_count()), ((8, 3, 1), 0));
    });
}

#[test]
fn what_was_said_last_may_come_again() {
    with_plane("what_was_said_last_may_come_again", |plane| {
        plane.add(&Vip { times_s: [20, 3600, 2], ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        for flags in [SYN, ACK, FIN | ACK] {
            there(plane, 1, flags);
            back(plane, 1, if flags == SYN { SYN | ACK } else { ACK });
        }
        // The answer and its FIN pass here and are lost later: the endpoint sends them again, with growing gaps.
        for gap_s in [1, 2, 4, 8, 16, 32] {
            back(plane, 1, FIN | ACK);
            plane.age(gap_s);
            assert_eq!((plane.collect(), plane.active(0)), ((2, 0, 0), 1), "{gap_s}");
        }
        there(plane, 1, ACK);
        assert_eq!(plane.active(0), 0);
        plane.age(4);
        assert_eq!(plane.collect(), (2, 0, 1));

        // If the silence does not end, the flow is forgotten.
        for flags in [SYN, ACK, FIN | ACK] {
            there(plane, 1, flags);
            back(plane, 1, if flags == SYN { SYN | ACK } else { flags });
        }
        plane.age(62);
        assert_eq!((plane.collect(), plane.active(0)), ((2, 0, 1), 0));
    });
}

#[test]
fn udp_lives_longer_once_it_was_answered() {
    with_plane("udp_lives_longer_once_it_was_answered", |plane| {
        plane.add(&Vip { times_s: [30, 120, 2], ..Vip::new(0, UDP, VIP, &[ENDPOINT_AT]) });
        for port in 1..=2 {
            plane.send(CLIENT, &Packet::udp(&client(port), VIP));
        }
        plane.send(ENDPOINT[0], &Packet::udp(ENDPOINT_AT, &client(2)));
        plane.age(40);
        assert_eq!(plane.collect(), (4, 1, 0));
        assert!(plane.flow(&client(2), VIP, UDP).is_some());
        plane.age(90);
        assert_eq!((plane.collect(), plane.active(0)), ((2, 1, 0), 0));
    });
}

#[test]
fn a_flow_whose_other_half_is_gone_goes_too() {
    with_plane("a_flow_whose_other_half_is_gone_goes_too", |plane| {
        plane.add(&Vip::new(0, TCP, VIP, &[ENDPOINT_AT]));
        for port in 1..=2 {
            there(plane, port, SYN);
        }
        let delete = |from: &str, to: &str| {
            let key = super::layout::flow_key(from.parse().unwrap(), to.parse().unwrap(), TCP);
            plane.delete("lb_flows", &key);
        };
        delete(&client(1), VIP);
        delete(ENDPOINT_AT, &client(2));
        assert_eq!(plane.collect(), (2, 0, 0), "the other half may be about to be made");
        plane.age(4);
        assert_eq!(plane.collect(), (2, 2, 0));
        assert_eq!(plane.flow_count(), 0);
        // A left-over entry of replies does not lock its client out.
        there(plane, 3, SYN);
        delete(&client(3), VIP);
        there(plane, 3, SYN);
        assert_eq!(plane.flow_count(), 2);
    });
}

#[test]
fn flows_of_a_vip_that_was_removed_are_forgotten() {
    with_plane("flows_of_a_vip_that_was_removed_are_forgotten", |plane| {
        let vip = Vip::new(0, TCP, VIP, &[ENDPOINT_AT]);
        plane.add(&vip);
        there(plane, 1, SYN);
        plane.set_vip(&Vip { mode: 0, ..vip }, 0);
        assert_eq!((plane.collect(), plane.flow_count(), plane.active(0)), ((2, 1, 0), 0, 0));
    });
}

#[test]
fn dsr_ends_after_the_clients_fin() {
    with_plane("dsr_ends_after_the_clients_fin", |plane| {
        plane.add(&Vip { mode: mode::DSR, ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        for flags in [SYN, ACK] {
            there(plane, 1, flags);
            there(plane, 2, flags);
        }
        there(plane, 2, FIN | ACK);
        plane.age(100);
        assert_eq!(plane.collect(), (2, 0, 0));
        plane.age(30);
        assert_eq!(plane.collect(), (2, 1, 0));
        assert!(plane.flow(&client(1), VIP, TCP).is_some());
    });
}

#[test]
fn a_full_table_that_nobody_collects_is_swept_by_the_packet_that_finds_it() {
    with_plane_of("a_full_table_that_nobody_collects_is_swept_by_the_packet_that_finds_it", 64, |plane| {
        plane.add(&Vip { times_s: [20, 3600, 10], ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        there(plane, 1, SYN);
        back(plane, 1, SYN | ACK);
        there(plane, 1, ACK);
        let opens =
            |port: u32| plane.send(CLIENT, &Packet::tcp(&client(port), VIP).flags(SYN)).action == Action::Redirect;
        let now_s = plane.now_s();
        plane.collected(now_s);
        let opened = (2..=100).filter(|port| opens(*port)).count();
        assert!((10..99).contains(&opened), "{opened}");
        let full = plane.flow_count();
        plane.age(10);
        // User space collects, and will collect again.
        assert!(!opens(200));
        assert_eq!(plane.flow_count(), full);
        plane.collected(now_s.wrapping_sub(60));
        assert!(!opens(200), "the client must send the packet that swept again");
        assert!(opens(200));
        // Established flows are still there.
        assert_eq!(plane.flow_count(), 4);
        assert!(plane.flow(&client(1), VIP, TCP).is_some() && plane.flow(ENDPOINT_AT, &client(1), TCP).is_some());
        assert_eq!(plane.active(0), 2);
    });
}

#[test]
fn under_pressure_what_is_not_established_goes_sooner() {
    with_plane("under_pressure_what_is_not_established_goes_sooner", |plane| {
        plane.add(&Vip { times_s: [20, 3600, 10], ..Vip::new(0, TCP, VIP, &[ENDPOINT_AT]) });
        four(plane);
        plane.age(5);
        assert_eq!(plane.collect(), (8, 0, 0));
        plane.press(true);
        assert_eq!((plane.collect(), alive(plane)), ((8, 1, 1), vec![2, 3]));
    });
}

//! The dry run: it reports what would happen and changes nothing.

use testkit::packet::{Packet, RST, SYN};

use super::layout::{AFFINITY, Flow, RATE, TCP, UDP, mode, state, u32_at};
use super::plane::{Action, CLIENT, Plane, Vip, with_plane};

const VIP: &str = "20.20.20.1:2020";
const CLIENT_AT: &str = "10.10.10.1:40000";

/// A stage, its outcome, and the reason.
const PACKET: (u8, u8, u8) = (1, 0, 0);
const CONNTRACK: (u8, u8, u8) = (2, 0, 0);
const NEW: (u8, u8, u8) = (2, 7, 0);
const OURS: (u8, u8, u8) = (3, 0, 0);
const SELECT: (u8, u8, u8) = (5, 0, 0);
const CREATE: (u8, u8, u8) = (6, 0, 0);
const FORWARD: (u8, u8, u8) = (7, 3, 0);

/// Everything that a packet could have changed.
fn everything(plane: &Plane) -> Vec<Vec<(Vec<u8>, Vec<u8>)>> {
    ["lb_flows", "lb_active", "lb_cursors", "lb_affinity", "lb_rates", "lb_fragments"]
        .map(|map| plane.entries(map))
        .to_vec()
}

#[track_caller]
fn check(plane: &Plane, packet: &Packet, expect: &[(u8, u8, u8)]) -> Flow {
    let (before, drops, counters) = (everything(plane), plane.drops(), plane.counters(0));
    let frame = packet.build();
    let sent = plane.run("lb_trace", CLIENT, &frame, 0);
    assert_eq!((sent.action, &sent.frame), (Action::Next, &frame));
    assert!(
        before == everything(plane) && drops == plane.drops() && counters == plane.counters(0),
        "a dry run left traces"
    );
    let trace = plane.look("lb_traces", &0u32.to_ne_bytes()).unwrap();
    let count = u32_at(&trace, 0) as usize;
    let steps: Vec<_> = trace[4..].chunks(8).take(count).map(|step| (step[0], step[1], step[2])).collect();
    assert_eq!(steps, expect, "{packet}");
    Flow::read(&trace[4 + 16 * 8..])
}

#[test]
fn it_tells_each_stage_and_changes_nothing() {
    with_plane("it_tells_each_stage_and_changes_nothing", |plane| {
        let vip =
            Vip { flags: AFFINITY | RATE, affinity_s: 60, rate: (0, 1), ..Vip::new(0, TCP, VIP, &["31.31.31.1:80"]) };
        plane.add(&vip);
        plane.add(&Vip { mode: mode::LOCAL, ..Vip::new(1, TCP, "20.20.20.1:443", &[]) });
        plane.add(&Vip::new(2, UDP, "20.20.20.1:53", &["99.99.99.99:53"]));
        let syn = Packet::tcp(CLIENT_AT, VIP).flags(SYN);
        let admitted = (4, 0, 0);
        for _ in 0..3 {
            let flow = check(plane, &syn, &[PACKET, NEW, OURS, admitted, SELECT, CREATE, FORWARD]);
            assert_eq!(
                (flow.from.to_string(), flow.to.to_string()),
                (CLIENT_AT.to_owned(), "31.31.31.1:80".to_owned())
            );
        }
        assert_eq!(plane.send(CLIENT, &syn).action, Action::Redirect);
        let flow = check(plane, &Packet::tcp(CLIENT_AT, VIP), &[PACKET, CONNTRACK, FORWARD]);
        assert_eq!(flow.to.to_string(), "31.31.31.1:80");

        check(plane, &Packet::tcp("10.10.10.1:2", VIP).flags(SYN), &[PACKET, NEW, OURS, (4, 5, 5)]);
        check(plane, &Packet::tcp(CLIENT_AT, "20.20.20.1:443").flags(SYN), &[PACKET, NEW, (3, 2, 0)]);
        check(plane, &Packet::tcp(CLIENT_AT, "20.20.20.1:444").flags(SYN), &[PACKET, NEW, (3, 1, 0)]);
        check(plane, &Packet::tcp("10.10.10.2:2", VIP), &[PACKET, NEW, OURS, (2, 4, 7)]);
        check(plane, &Packet::tcp("10.10.10.2:2", VIP).flags(RST), &[PACKET, NEW, OURS, (2, 5, 7)]);
        check(plane, &Packet::tcp(CLIENT_AT, VIP).ttl(1), &[PACKET, CONNTRACK, (7, 4, 2)]);
        check(plane, &Packet::ping("10.10.10.1", "20.20.20.1", 1, 1), &[PACKET, (2, 4, 0)]);
        check(plane, &Packet::other("10.10.10.1", "20.20.20.1", 47), &[(1, 1, 0)]);
        // Without a route, the trace has each try.
        let tries: Vec<_> =
            [PACKET, NEW, OURS].into_iter().chain([SELECT, (6, 5, 12)].into_iter().cycle().take(13)).collect();
        check(plane, &Packet::udp(CLIENT_AT, "20.20.20.1:53"), &tries);

        plane.set_state(0, state::DOWN);
        check(plane, &Packet::tcp(CLIENT_AT, VIP), &[PACKET, (2, 4, 8)]);
        check(plane, &Packet::tcp("10.10.10.3:2", VIP).flags(SYN), &[PACKET, NEW, OURS, admitted, (5, 5, 6)]);
    });
}

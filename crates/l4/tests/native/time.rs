//! The states of a flow, and how long a flow may be silent in each.

use proptest::prelude::*;

use super::core::{Vip, flow_endpoint_waits, flow_life_s, is_silent, tcp_begins, tcp_step};
use super::seeded;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

const SEEN_SYN: u32 = 1;
const SEEN_ACK: u32 = 2;
const SEEN_FIN: u32 = 4;
const SEEN_RST: u32 = 8;
const CLOSING: u32 = 16;
const FIN_LAST: u32 = 64;
const ENDED: u32 = 128;
const TIMED_OUT: u32 = 256;
const FIN_CROSSED: u32 = 512;

#[test]
fn what_a_segment_adds() {
    let check =
        |flags, mine, twin, expect| assert_eq!(tcp_step(flags, mine, twin), expect, "{flags:#x} on {mine}, {twin}");
    check(SYN, 0, 0, SEEN_SYN);
    check(SYN | ACK, 0, SEEN_SYN, SEEN_SYN);
    check(ACK, SEEN_SYN, SEEN_SYN, SEEN_ACK);
    check(FIN | ACK, SEEN_ACK, SEEN_ACK, SEEN_ACK | SEEN_FIN);
    check(FIN | ACK, SEEN_ACK, SEEN_FIN, SEEN_ACK | SEEN_FIN | CLOSING | FIN_LAST);
    // The first sender's FIN again; its ACK; the other side's FIN again.
    check(FIN | ACK, SEEN_FIN, SEEN_FIN | FIN_LAST, SEEN_ACK | SEEN_FIN | CLOSING);
    check(ACK, SEEN_FIN, SEEN_FIN | FIN_LAST, SEEN_ACK | CLOSING | ENDED);
    check(FIN | ACK, SEEN_FIN | FIN_LAST, SEEN_FIN, SEEN_ACK | SEEN_FIN | CLOSING);
    // An ACK after its own last FIN: the FINs crossed.
    check(ACK, SEEN_FIN | FIN_LAST, SEEN_FIN, SEEN_ACK | CLOSING | FIN_CROSSED);
    check(RST, 0, 0, SEEN_RST | CLOSING);
    check(RST | ACK, SEEN_ACK, SEEN_ACK, SEEN_RST | CLOSING);
    check(0, SEEN_SYN, 0, 0);
}

#[test]
fn what_begins_a_connection() {
    for flags in 0..=255u8 {
        // Congestion notification sets two more bits in a SYN (RFC 3168), which must still open a connection.
        assert_eq!(tcp_begins(flags) != 0, flags & (SYN | ACK | RST | FIN) == SYN, "{flags:#x}");
    }
}

#[test]
fn whose_time_wait_it_is() {
    let check = |client, endpoint, expect| {
        assert_eq!(flow_endpoint_waits(client, endpoint) != 0, expect, "{client} {endpoint}");
    };
    check(SEEN_ACK, SEEN_ACK, false);
    check(SEEN_ACK, SEEN_FIN, false);
    check(SEEN_FIN | FIN_LAST, SEEN_FIN, true);
    check(SEEN_FIN | FIN_LAST | SEEN_RST, SEEN_FIN, true);
    check(SEEN_FIN, SEEN_FIN | FIN_LAST, false);
    check(SEEN_FIN, SEEN_FIN | FIN_LAST | FIN_CROSSED, true);
    check(SEEN_RST, SEEN_FIN, false);
}

const VIP: Vip =
    Vip { table_slots: 0, affinity_s: 0, syn_s: 20, idle_s: 3600, closing_s: 2, rate: [0; 2], mode: [0; 4] };

#[test]
fn how_long_a_flow_may_be_silent() {
    let check = |mine, twin, dsr, expect, under_pressure| {
        let found = [0, 1].map(|pressure| flow_life_s(&VIP, mine, twin, dsr, pressure));
        assert_eq!(found, [expect, under_pressure], "{mine} {twin} dsr {dsr}");
    };
    check(SEEN_SYN, 0, 0, 20, 3);
    check(SEEN_SYN, SEEN_SYN, 0, 20, 3);
    check(SEEN_SYN | SEEN_ACK, 0, 0, 20, 3);
    check(SEEN_SYN | SEEN_ACK, SEEN_SYN, 0, 3600, 3600);
    check(SEEN_ACK, SEEN_ACK, 0, 3600, 3600);
    check(SEEN_ACK | SEEN_FIN, SEEN_ACK, 0, 3600, 3600);
    // The last FIN has its ACK, or not yet.
    check(SEEN_ACK | CLOSING | ENDED, SEEN_ACK | CLOSING, 0, 2, 0);
    check(SEEN_ACK | CLOSING, SEEN_ACK | CLOSING | ENDED, 0, 2, 0);
    check(SEEN_ACK | CLOSING, SEEN_ACK | CLOSING | FIN_LAST, 0, 60, 3);
    check(SEEN_RST | CLOSING, SEEN_ACK | CLOSING, 0, 2, 0);
    check(SEEN_ACK | CLOSING | TIMED_OUT, SEEN_ACK | CLOSING | TIMED_OUT, 0, 2, 0);
    check(SEEN_SYN, 0, 1, 20, 3);
    check(SEEN_ACK, 0, 1, 3600, 3600);
    check(SEEN_ACK | SEEN_FIN, 0, 1, 120, 120);
    check(SEEN_RST | CLOSING, 0, 1, 2, 0);
}

#[test]
fn silence_is_measured_on_a_clock_that_turns_over() {
    let check =
        |now, touched, life, expect| assert_eq!(is_silent(now, touched, life) != 0, expect, "{now} {touched} {life}");
    check(100, 100, 0, false);
    check(101, 100, 0, true);
    check(120, 100, 20, false);
    check(121, 100, 20, true);
    check(100, 101, 0, false); // another CPU touched it a moment later
    check(5, u32::MAX - 5, 10, true);
    check(5, u32::MAX - 3, 10, false);
}

proptest! {
    #![proptest_config(seeded(2000))]

    /// Whatever the two sides send: bits are only added, and the end is reported when both have ended, or one has aborted.
    #[test]
    fn any_two_sides(segments in prop::collection::vec((any::<bool>(), 0u8..32), 0..20)) {
        let mut state = [0u32; 2];
        let (mut fins, mut broken) = ([false; 2], false);
        for (side, flags) in segments {
            let (mine, twin) = (usize::from(side), usize::from(!side));
            let add = tcp_step(flags, state[mine], state[twin]);
            state[mine] |= add;
            broken |= flags & RST != 0;
            fins[mine] |= flags & FIN != 0 && flags & RST == 0;
            let closing = (state[0] | state[1]) & CLOSING != 0;
            prop_assert_eq!(closing, broken || fins == [true; 2]);
        }
    }

    /// Pressure never extends the life of a flow, and established flows live as long under it.
    #[test]
    fn pressure_only_shortens(
        times in prop::array::uniform3(0u32..10_000), mine in 0u32..512, twin in 0u32..512, dsr in 0i32..2,
    ) {
        let vip = Vip { syn_s: times[0], idle_s: times[1], closing_s: times[2], ..VIP };
        let (calm, pressed) = (flow_life_s(&vip, mine, twin, dsr, 0), flow_life_s(&vip, mine, twin, dsr, 1));
        prop_assert!(pressed <= calm);
        prop_assert!(calm <= *times.iter().max().unwrap());
    }
}

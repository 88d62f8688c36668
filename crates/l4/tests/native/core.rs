//! Safe functions for the exports of `core.c`.

/// `struct packet` of `packet.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    pub saddr: [u8; 16],
    pub daddr: [u8; 16],
    pub sport: [u8; 2],
    pub dport: [u8; 2],
    pub proto: u8,
    pub pad: [u8; 3],
    pub fragment_id: u32,
    pub l4_len: u32,
    pub vip: u32,
    pub mtu: u32,
    pub l3: u16,
    pub l4: u16,
    pub l4_header: u8,
    pub ipv6: u8,
    pub ttl: u8,
    pub dont_fragment: u8,
    pub fragment: u8,
    pub tcp_flags: u8,
    pub icmp_type: u8,
    pub icmp_code: u8,
    pub vlan_tags: u8,
    pub addressed: u8,
    pub reason: u8,
    pub answer: u8,
}

/// `enum walk`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    Ok,
    Other,
    Short,
    Malformed,
    Longer,
}

/// `struct lb_vip`, as far as it concerns time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Vip {
    pub table_slots: u32,
    pub affinity_s: u32,
    pub syn_s: u32,
    pub idle_s: u32,
    pub closing_s: u32,
    pub rate: [u32; 2],
    pub mode: [u8; 4],
}

/// `struct lb_rate`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    pub refilled_ns: u64,
    pub tokens_milli: u64,
}

mod c {
    use super::{Packet, Rate, Vip};

    unsafe extern "C" {
        pub fn core_packet_size() -> u32;
        pub fn core_walk(data: *const u8, linear: u32, wire_len: u32, full: i32, packet: *mut Packet) -> i32;
        pub fn core_walk_quoted(data: *const u8, linear: u32, start: u32, ipv6: i32, packet: *mut Packet) -> i32;
        pub fn core_csum_diff_addresses(from: *const u32, to: *const u32) -> u32;
        pub safe fn core_csum_diff_ports(from_s: u16, to_s: u16, from_d: u16, to_d: u16) -> u32;
        pub safe fn core_csum_apply(check: u16, diff: u32) -> u16;
        pub safe fn core_csum_ipv4_forwarded(check: u16, diff: u32) -> u16;
        pub safe fn core_tcp_begins(flags: u8) -> i32;
        pub safe fn core_tcp_step(flags: u8, mine: u32, twin: u32) -> u32;
        pub safe fn core_flow_life_s(vip: &Vip, mine: u32, twin: u32, dsr: i32, pressure: i32) -> u32;
        pub safe fn core_is_silent(now_s: u32, touched_s: u32, life_s: u32) -> i32;
        pub safe fn core_hash_flow(key: &[u32; 10]) -> u32;
        pub safe fn core_hash_source(key: &[u32; 10]) -> u32;
        pub safe fn core_slot_of_hash(hash: u32, attempt: u32, slots: u32) -> u32;
        pub safe fn core_is_less_loaded(active_a: u32, weight_a: u32, active_b: u32, weight_b: u32) -> i32;
        pub safe fn core_rate_take(bucket: &mut Rate, now_ns: u64, per_s: u32, burst: u32) -> i32;
        pub safe fn core_port_of_turn(turn: u32, first: u16, last: u16) -> u16;
        pub safe fn core_turn_of_hash(hash: u32, probe: u32, probes: u32, turns: u32) -> u32;
        pub safe fn core_flow_endpoint_waits(client: u32, endpoint: u32) -> i32;
    }
}

pub use c::{
    core_csum_apply as csum_apply, core_csum_diff_ports as csum_diff_ports,
    core_csum_ipv4_forwarded as csum_ipv4_forwarded, core_flow_endpoint_waits as flow_endpoint_waits,
    core_flow_life_s as flow_life_s, core_hash_flow as hash_flow, core_hash_source as hash_source,
    core_is_less_loaded as is_less_loaded, core_is_silent as is_silent, core_port_of_turn as port_of_turn,
    core_rate_take as rate_take, core_slot_of_hash as slot_of_hash, core_tcp_begins as tcp_begins,
    core_tcp_step as tcp_step, core_turn_of_hash as turn_of_hash,
};

fn walk_of(result: i32) -> Walk {
    match result {
        0 => Walk::Ok,
        1 => Walk::Other,
        2 => Walk::Short,
        3 => Walk::Malformed,
        4 => Walk::Longer,
        other => panic!("a walk ended as {other}"),
    }
}

/// Walks the first bytes of a packet of `wire_len`.
pub fn walk(linear: &[u8], wire_len: usize, full: bool) -> (Walk, Packet) {
    // SAFETY: it has no arguments and no state.
    assert_eq!(unsafe { c::core_packet_size() } as usize, size_of::<Packet>());
    let mut packet = Packet::default();
    // SAFETY: the slice is valid for its length, and the packet has the size of C's.
    let result = unsafe {
        c::core_walk(linear.as_ptr(), linear.len() as u32, wire_len as u32, i32::from(full), &raw mut packet)
    };
    (walk_of(result), packet)
}

/// Walks what an ICMP error quotes from `start` on.
pub fn walk_quoted(linear: &[u8], start: usize, ipv6: bool) -> (Walk, Packet) {
    assert!(start <= linear.len());
    let mut packet = Packet::default();
    // SAFETY: the slice is valid for its length, `start` is within it, and the packet has the size of C's.
    let result = unsafe {
        c::core_walk_quoted(linear.as_ptr(), linear.len() as u32, start as u32, i32::from(ipv6), &raw mut packet)
    };
    (walk_of(result), packet)
}

/// The difference of both addresses: source, then destination.
pub fn csum_diff_addresses(from: &[u32; 8], to: &[u32; 8]) -> u32 {
    // SAFETY: both have eight words, which is what C reads.
    unsafe { c::core_csum_diff_addresses(from.as_ptr(), to.as_ptr()) }
}

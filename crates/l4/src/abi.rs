//! The layouts that are shared with the programs, and their conversion to bytes. `build.rs` makes them from `bpf/abi.h` and `bpf/drop.h`.
//!
//! All fields are plain integers. Code that reads a value from the kernel converts it explicitly, never by a cast.
#![allow(non_camel_case_types, dead_code, reason = "named as in C; a test looks at all of them")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

include!(concat!(env!("OUT_DIR"), "/constants.rs"));
include!(concat!(env!("OUT_DIR"), "/layouts.rs"));

/// A type that can be a key or a value of a map.
///
/// # Safety
/// The type must consist of integers without padding, so that any bytes of its size are a valid value and every byte of a value is
/// initialised.
pub(crate) unsafe trait Layout: Copy + Default + 'static {}

macro_rules! layouts {
    ($($name:ty),* $(,)?) => {
        $(
            // SAFETY: integers, with explicit padding only; `tests::no_layout_has_padding` checks this against the object's BTF.
            unsafe impl Layout for $name {}
        )*
    };
}

layouts!(
    u32,
    u64,
    lb_flow_key,
    lb_flow,
    lb_vip_key,
    lb_vip,
    lb_address_key,
    lb_address,
    lb_endpoint,
    lb_counters,
    lb_pool,
    lb_source_key,
    lb_client_key,
    lb_affinity,
    lb_datagram_key,
    lb_datagram,
    lb_interface,
    lb_shared,
    lb_trace,
    lb_gc_context,
    lb_socket,
    lb_uses,
    lb_connect_context,
    lb_forget_context,
);

pub(crate) fn bytes_of<T: Layout>(value: &T) -> &[u8] {
    // SAFETY: `T` has no padding, as its trait requires; the slice borrows the value.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

pub(crate) fn bytes_of_mut<T: Layout>(value: &mut T) -> &mut [u8] {
    // SAFETY: as above, and any bytes that are written form a valid `T`.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(value).cast(), size_of::<T>()) }
}

/// Returns `None` if the size differs.
pub(crate) fn read<T: Layout>(bytes: &[u8]) -> Option<T> {
    let mut value = T::default();
    if bytes.len() != size_of::<T>() {
        return None;
    }
    bytes_of_mut(&mut value).copy_from_slice(bytes);
    Some(value)
}

/// The address as words in network byte order; IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn words_of(address: IpAddr) -> [u32; 4] {
    let octets = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    let mut words = [0; 4];
    for (word, chunk) in words.iter_mut().zip(octets.chunks_exact(4)) {
        *word = chunk.try_into().map_or(0, u32::from_ne_bytes);
    }
    words
}

pub(crate) fn address_of(words: [u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (chunk, word) in octets.chunks_exact_mut(4).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    let address = Ipv6Addr::from(octets);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), |address: Ipv4Addr| IpAddr::V4(address))
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use libbpf_rs::btf::types::{MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, BtfType};

    use super::*;

    /// The size and the offsets of a C struct, from the object's BTF. Checks that the fields leave no hole.
    fn in_c(btf: &Btf<'_>, name: &str) -> (usize, Vec<(String, usize)>) {
        let found: Struct<'_> = btf.type_by_name(name).unwrap_or_else(|| panic!("{name} is not in the object"));
        let members = found.iter().map(|member| {
            let MemberAttr::Normal { offset } = member.attr else { panic!("{name} has a bit field") };
            (member.name.unwrap().to_string_lossy().into_owned(), offset as usize / 8)
        });
        (size_of_type(&found), members.collect())
    }

    fn size_of_type(found: &Struct<'_>) -> usize {
        use libbpf_rs::btf::HasSize;
        found.size()
    }

    macro_rules! check {
        ($btf:expr, $name:ident: $($field:ident),*) => {{
            let (size, members) = in_c($btf, stringify!($name));
            assert_eq!(size, size_of::<$name>(), stringify!($name));
            let here = vec![$((stringify!($field).to_owned(), offset_of!($name, $field))),*];
            assert_eq!(members, here, stringify!($name));
            let value = $name::default();
            assert_eq!(size, 0 $(+ size_of_val(&value.$field))*, "{} has padding that no field covers", stringify!($name));
        }};
    }

    #[test]
    fn no_layout_has_padding_and_all_are_as_in_c() {
        let sockets = Btf::from_path(env!("LB_SOCKET_OBJECT")).unwrap();
        let sockets = &sockets;
        check!(sockets, lb_socket: vip_addr, addr, netns, vip, endpoint, born_s, vip_port, port, proto, left, pad, group);
        check!(sockets, lb_forget_context: socket, endpoint, born_s);
        check!(sockets, lb_connect_context: addr, netns, now_s, port, proto, pad);
        let btf = Btf::from_path(env!("LB_OBJECT")).unwrap();
        let btf = &btf;
        check!(btf, lb_flow_key: saddr, daddr, sport, dport, proto, pad);
        check!(btf, lb_flow: saddr, daddr, next_hop, sport, dport, addr_diff, port_diff, ifindex, endpoint, vip, state, touched_s, born_s, mtu, action, flags);
        check!(btf, lb_vip_key: addr, port, proto, scope);
        check!(btf, lb_vip: table_slots, affinity_s, syn_s, idle_s, closing_s, rate_per_s, rate_burst, mode, algorithm, flags, tunnel);
        check!(btf, lb_range: first, last, vip, proto, pad);
        check!(btf, lb_address_key: addr);
        check!(btf, lb_address: range_count, flags, ranges);
        check!(btf, lb_endpoint: addr, vip, weight, port, state, source);
        check!(btf, lb_counters: packets, bytes, flows);
        check!(btf, lb_uses: made, open, unknown);
        check!(btf, lb_pool: addrs, addr_count, port_first, port_last);
        check!(btf, lb_source_key: prefix_bits, vip, addr);
        check!(btf, lb_interface: mtu, flags, peer_mac, pad);
        check!(btf, lb_shared: flows_used, pressure, collected_s, swept);
        check!(btf, lb_trace_step: stage, outcome, reason, pad, detail);
        check!(btf, lb_trace: step_count, steps, flow);
        check!(btf, lb_gc_context: key_count, now_s, expired, closed, removed, ends_max, ended);
        let _: Option<BtfType<'_>> = None;
    }

    #[test]
    fn constants_are_those_of_the_headers() {
        // One of each form in which they are written.
        assert_eq!((LB_VIPS_MAX, LB_FLOW_DSR, LB_MODE_FULL_NAT, LB_ENDPOINT_DOWN, LB_DROP), (8192, 8, 2, 3, 5));
    }

    #[test]
    fn addresses() {
        for text in ["10.1.2.3", "fd00::1", "::1", "0.0.0.0"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(address_of(words_of(address)), address, "{text}");
        }
        assert_eq!(words_of("1.2.3.4".parse().unwrap()), [0, 0, 0xffff_u32.to_be(), 0x0102_0304_u32.to_be()]);
    }

    #[test]
    fn bytes() {
        let key = lb_vip_key { port: 0x5000, proto: 6, ..lb_vip_key::default() };
        assert_eq!(read::<lb_vip_key>(bytes_of(&key)), Some(key));
        assert_eq!(read::<u32>(&[0; 3]), None);
    }
}

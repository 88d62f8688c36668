//! Checksums by difference against checksums over the whole.

use proptest::prelude::*;
use testkit::packet::{Packet, internet};

use super::core::{csum_apply, csum_diff_addresses, csum_diff_ports, csum_ipv4_forwarded};
use super::seeded;

fn words(bytes: &[u8]) -> [u32; 8] {
    std::array::from_fn(|index| u32::from_ne_bytes(bytes[index * 4..index * 4 + 4].try_into().unwrap()))
}

proptest! {
    #![proptest_config(seeded(2000))]

    /// An IPv4 header keeps a valid checksum when its addresses change and its TTL decreases.
    #[test]
    fn ipv4_headers(header in prop::array::uniform20(any::<u8>()), new in prop::array::uniform8(any::<u8>())) {
        let mut header = header;
        header[8] = header[8].max(1);
        header[10..12].fill(0);
        let sum = internet(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        let mapped = |bytes: &[u8]| {
            let mut both = [0u8; 32];
            for (half, address) in both.chunks_mut(16).zip(bytes.chunks(4)) {
                half[10..12].fill(0xff);
                half[12..].copy_from_slice(address);
            }
            words(&both)
        };
        let diff = csum_diff_addresses(&mapped(&header[12..]), &mapped(&new));
        let check = csum_ipv4_forwarded(u16::from_ne_bytes([header[10], header[11]]), diff);
        header[12..].copy_from_slice(&new);
        header[8] -= 1;
        header[10..12].copy_from_slice(&check.to_ne_bytes());
        prop_assert_eq!(internet(&header), 0);
    }

    /// A segment's checksum follows its addresses and ports, whatever the order of the differences.
    #[test]
    fn segments(
        ports in prop::array::uniform4(1u16..), payload in prop::collection::vec(any::<u8>(), 0..64),
        from in prop::array::uniform32(any::<u8>()), to in prop::array::uniform32(any::<u8>()),
    ) {
        let place = |bytes: &[u8], port: u16| {
            let octets: [u8; 16] = bytes.try_into().unwrap();
            format!("[{}]:{port}", std::net::Ipv6Addr::from(octets))
        };
        let build = |both: &[u8], sport: u16, dport: u16| {
            Packet::tcp(&place(&both[..16], sport), &place(&both[16..], dport)).payload(&payload).build()
        };
        let (before, after) = (build(&from, ports[0], ports[1]), build(&to, ports[2], ports[3]));
        let at = 14 + 40 + 16;
        let check = u16::from_ne_bytes([before[at], before[at + 1]]);
        let addresses = csum_diff_addresses(&words(&from), &words(&to));
        // As the flow stores it: in the byte order of memory.
        let be = |port: u16| u16::from_ne_bytes(port.to_be_bytes());
        let ports = csum_diff_ports(be(ports[0]), be(ports[2]), be(ports[1]), be(ports[3]));
        let found = csum_apply(csum_apply(check, addresses), ports);
        prop_assert_eq!(found, csum_apply(csum_apply(check, ports), addresses));
        let mut frame = before;
        frame[14 + 8..14 + 40].copy_from_slice(&to);
        frame[54..58].copy_from_slice(&after[54..58]);
        frame[at..at + 2].copy_from_slice(&found.to_ne_bytes());
        prop_assert!(Packet::read(&frame).unwrap().faults.is_empty(), "{}", Packet::describe(&frame));
    }
}

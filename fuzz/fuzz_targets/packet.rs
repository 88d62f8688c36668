//! The data plane's walk over headers, as C runs it natively: it stays within the bytes, the quick walk and the whole one say the same, and
//! `testkit::packet`, which was written from the RFCs, reads the same addresses and ports. Then what an ICMP error would quote.
#![no_main]

use std::net::IpAddr;

// The C of the cores lies in this package's library, and is linked only by whom names it.
use fuzz as _;
use libfuzzer_sys::fuzz_target;
use testkit::packet::Packet;

#[path = "../../crates/l4/tests/native/core.rs"]
#[allow(dead_code, unused_imports, reason = "the tests use the rest of it")]
mod core;

use core::{Walk, walk, walk_quoted};

fuzz_target!(|data: &[u8]| {
    // The first two bytes say how much of the packet is at hand; the linear part has an allocation of exactly its size.
    let Some(([low, high], frame)) = data.split_first_chunk() else { return };
    let at_hand = usize::from(u16::from_le_bytes([*low, *high])).min(frame.len());
    let linear: Box<[u8]> = frame[..at_hand].into();
    let (quick, of_quick) = walk(&linear, frame.len(), false);
    let (whole, of_whole) = walk(&linear, frame.len(), true);
    match quick {
        Walk::Longer => {}
        // The quick walk stops where a header begins that it does not know, or where the bytes end; the whole one may see more.
        Walk::Ok => assert_eq!((whole, of_whole), (quick, of_quick)),
        _ => assert_eq!(whole, quick),
    }
    if whole == Walk::Ok {
        bounds(&of_whole, linear.len(), frame.len());
        same(&of_whole, frame);
    }
    for (ipv6, header) in [(false, 20), (true, 40)] {
        let (result, quoted) = walk_quoted(&linear, 0, ipv6);
        if result == Walk::Ok {
            assert!(usize::from(quoted.l4) >= header);
            let ports = if quoted.fragment == 2 { 0 } else { 8 };
            assert!(usize::from(quoted.l4) + ports <= linear.len());
        }
    }
});

/// Every header lies in what was at hand, and the rest in what was on the wire.
fn bounds(found: &core::Packet, linear: usize, wire: usize) {
    let l4 = usize::from(found.l4);
    assert!(14 <= usize::from(found.l3) && usize::from(found.l3) < l4);
    let header = if found.fragment == 2 {
        0
    } else if found.proto == 6 {
        20
    } else {
        8
    };
    assert!(l4 + header <= linear && l4 + found.l4_len as usize <= wire);
    assert!(usize::from(found.l4_header) <= found.l4_len as usize);
}

fn same(found: &core::Packet, frame: &[u8]) {
    // It refuses what it finds wrong, and that is its business: what it reads must be the same.
    let Ok(read) = Packet::read(frame) else { return };
    let read = read.packet;
    if read.fragment.is_some_and(|(offset, more)| offset > 0 || more) || ![1, 6, 17, 58].contains(&read.protocol()) {
        return;
    }
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    };
    assert_eq!((found.saddr, found.daddr), (octets(read.source), octets(read.destination)), "{read}");
    assert_eq!((found.proto, found.ttl), (read.protocol(), read.ttl), "{read}");
    let ports = [found.sport, found.dport].map(u16::from_be_bytes);
    assert_eq!((ports[0], ports[1]), read.ports().unwrap_or_default(), "{read}");
}

//! Changes that the plane or the kernel refuses.

use std::net::Ipv4Addr;

use super::*;
use crate::sync::set;

fn networks(count: u32) -> Vec<ipnet::IpNet> {
    (0..count).map(|number| format!("{}/32", Ipv4Addr::from(0x3000_0000 + number)).parse().unwrap()).collect()
}

#[test]
fn a_change_that_the_kernel_refuses_half_way_is_undone() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    let old = lab.vip(&[0]);
    lab.apply(&mut plane, std::slice::from_ref(&old)).unwrap();
    // Entries that the plane does not know of: the kernel has no room, although by all counts there is some.
    for number in 0..LB_SOURCES_MAX {
        let key = lb_source_key { prefix_bits: 160, vip: 9_u32.to_be(), addr: [0, 0, 0, number] };
        set(&plane.maps.sources, &key, &LB_SOURCE_ALLOW).unwrap();
    }
    let before = plane.held.clone();
    let wanted = Vip { allow: networks(2), ..lab.vip(&[1]) };
    let refusal = lab.apply(&mut plane, &[wanted]).unwrap_err();
    assert!(refusal.to_string().contains("lb_sources"), "{refusal}");
    assert_eq!(plane.held, before);
    assert_eq!(lab.connect().1, 0, "the old endpoint takes new connections");
    lab.apply(&mut plane, &[lab.vip(&[1])]).unwrap();
    assert_eq!(lab.connect().1, 1);
}

#[test]
fn what_has_no_room_is_refused_before_anything_is_written() {
    let Some(lab) = Lab::new(1) else { return };
    let mut plane = lab.open();
    let with = |allow: Vec<ipnet::IpNet>| Vip { allow, ..lab.vip(&[0]) };
    let refused = |plane: &mut Plane, vip: Vip| lab.apply(plane, &[vip]).unwrap_err().to_string();
    assert_eq!(
        refused(&mut plane, with(networks(65_537))),
        "there are 65537 networks in `allow` and `deny`; the kernel plane can hold 65536"
    );
    lab.apply(&mut plane, &[with(networks(40_000))]).unwrap();
    let others = networks(80_000).split_off(40_000);
    let told = refused(&mut plane, with(others));
    assert!(
        told.starts_with("there are 40000 networks in `allow` and `deny`, and 40000 others go only when"),
        "{told}"
    );
    assert_eq!(plane.held.sources.len(), 40_000);
}

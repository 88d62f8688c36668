//! Addresses that are announced on their link: the host answers ARP and neighbour discovery for them, as long as it can serve them.
#![forbid(unsafe_code)]

mod support;

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use support::at_sockets::vip_of;
use support::echo::{ECHO_PORT, bulk, exchange};
use support::network::{FAMILIES, Family, Links, Vips, found_at, mac_of, within};
use testkit::{PATIENCE, Signal};

/// Addresses of the link between the client and the balancer, which no host has.
fn on_link(family: Family, host: u8) -> IpAddr {
    match family {
        Family::V4 => format!("10.10.10.{host}").parse().unwrap(),
        Family::V6 => format!("fd00:10::{host:x}").parse().unwrap(),
    }
}

fn echo(family: Family, host: u8, more: &str) -> String {
    let at = SocketAddr::new(on_link(family, host), ECHO_PORT);
    let name = format!("tcp-{family:?}-{host}").to_lowercase();
    format!("{name}: {{address: '{at}/tcp', announce: l2, endpoints: {}{more}}}\n", family.endpoints(ECHO_PORT))
}

fn announcement<'s>(status: &'s Value, name: &str) -> &'s Value {
    &vip_of(status, name)["announcement"]
}

#[test]
fn a_host_on_the_link_finds_a_vip() {
    within("a_host_on_the_link_finds_a_vip", Links::default(), |network| {
        let _echoes = network.echoes();
        let mut vips = Vips::serve(&FAMILIES.map(|family| echo(family, 77, "")).concat());
        let mine = mac_of(&network.balancer, "client0");
        for family in FAMILIES {
            let address = on_link(family, 77);
            assert_eq!(found_at(&network.client, "eth0", address).as_ref(), Some(&mine), "{address}");
            bulk(&network.connect(SocketAddr::new(address, ECHO_PORT)), 1 << 20);
            let name = format!("tcp-{family:?}-77").to_lowercase();
            let status = vips.steelyard.status();
            assert_eq!(
                (&announcement(&status, &name)["by"], &announcement(&status, &name)["state"]),
                (&"l2".into(), &"announced".into()),
                "{status}"
            );
            // Nobody answers for a neighbour of the address.
            assert_eq!(found_at(&network.client, "eth0", on_link(family, 78)), None);
        }
        // Without a usable endpoint, nobody answers.
        for index in 0..3 {
            vips.ask(&["endpoint", "drain", &SocketAddr::new(Family::V4.endpoint(index), ECHO_PORT).to_string()]);
        }
        vips.steelyard.until("it is withdrawn", |status| announcement(status, "tcp-v4-77")["state"] == "withdrawn");
        assert_eq!(found_at(&network.client, "eth0", on_link(Family::V4, 77)), None);
        assert_eq!(found_at(&network.client, "eth0", on_link(Family::V6, 77)), Some(mine));
        // Nor without the process: another node may answer.
        let held = network.connect(SocketAddr::new(on_link(Family::V6, 77), ECHO_PORT));
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(PATIENCE).unwrap();
        exchange(&held, "the programs are still there").unwrap();
        assert_eq!(found_at(&network.client, "eth0", on_link(Family::V6, 77)), None);
    });
}

#[test]
fn an_address_that_another_host_claims() {
    within("an_address_that_another_host_claims", Links::default(), |network| {
        let _echoes = network.echoes();
        let other = network.beside();
        let mut vips = Vips::serve(&echo(Family::V4, 77, ""));
        let at = SocketAddr::new(on_link(Family::V4, 77), ECHO_PORT);
        exchange(&network.connect(at), "hello").unwrap();
        // Somebody gives a machine the same address. The vip is claimed again, and the status says who.
        other.ip("addr add 10.10.10.77/24 dev client0").unwrap();
        // Its kernel announces its addresses.
        other.sysctl("net.ipv4.conf.client0.arp_notify", "1").unwrap();
        other.ip("link set client0 address 02:00:00:00:00:55").unwrap();
        let mac = mac_of(&other, "client0");
        let is_told =
            |status: &Value| announcement(status, "tcp-v4-77")["why"].as_str().is_some_and(|why| why.contains(&mac));
        let status = vips.steelyard.until("another host claims it", is_told);
        assert_eq!(announcement(&status, "tcp-v4-77")["state"], "announced");
        other.ip("addr del 10.10.10.77/24 dev client0").unwrap();
        vips.steelyard.until("nobody claims it any more", |status| announcement(status, "tcp-v4-77")["why"].is_null());
        exchange(&network.connect(at), "hello").unwrap();
    });
}

#[test]
fn an_address_of_no_link() {
    within("an_address_of_no_link", Links::default(), |network| {
        let _echoes = network.echoes();
        let mut vips = Vips::serve(&echo(Family::V4, 77, "").replace("10.10.10.77", "10.11.0.77"));
        let why = |status: &Value| announcement(status, "tcp-v4-77")["why"].as_str().unwrap_or_default().to_owned();
        vips.steelyard
            .until("it says why", |status| why(status).contains("no interface of this host is in the network"));
        // An interface of that network comes.
        network.balancer.ip("addr add 10.11.0.254/16 dev client0").unwrap();
        network.client.ip("addr add 10.11.0.1/16 dev eth0").unwrap();
        vips.steelyard.until("it is announced", |status| announcement(status, "tcp-v4-77")["state"] == "announced");
        let at = SocketAddr::new("10.11.0.77".parse().unwrap(), ECHO_PORT);
        exchange(&network.connect(at), "hello").unwrap();
    });
}

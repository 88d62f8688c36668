//! dsr beyond the link: packets reach an endpoint behind a router inside others, and the endpoint answers the client directly.
//!
//! This kernel may have neither `ipip` nor `fou`, so a program at the endpoint takes packets out. `cargo xtask test kernels` has the kernel's own.
#![forbid(unsafe_code)]

mod support;

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use support::at_sockets::vip_of;
use support::echo::{ECHO_PORT, Echo, bulk, try_datagram};
use support::network::{FAMILIES, Family, Links, Network, Offload, Vips, within};
use testkit::Program;
use testkit::netns::{Netns, join};

const BULK_BYTES: usize = 2 << 20;
const DECAPSULATE: &str = include_str!("support/decapsulate.py");

/// An endpoint behind a router.
struct Far {
    router: Netns,
    endpoint: Netns,
    running: Vec<Program>,
}

const AT: [&str; 2] = ["35.35.35.1", "fd00:35::1"];

impl Far {
    /// `mtu` is that of the link beyond the router.
    fn new(network: &Network, mtu: u32) -> Self {
        let far =
            Self { router: Netns::new("router").unwrap(), endpoint: Netns::new("far").unwrap(), running: Vec::new() };
        far.router.forward().unwrap();
        join((&network.balancer, "ep3"), (&far.router, "eth0"), 1500).unwrap();
        join((&far.router, "far0"), (&far.endpoint, "eth0"), mtu).unwrap();
        let lines = |netns: &Netns, lines: &[&str]| netns.ip(&lines.join("\n")).unwrap();
        lines(&network.balancer, &["addr add 34.34.34.254/24 dev ep3", "addr add fd00:34::fe/64 dev ep3"]);
        lines(&network.balancer, &["route add 35.35.35.0/24 via 34.34.34.1", "route add fd00:35::/64 via fd00:34::1"]);
        lines(&far.router, &["addr add 34.34.34.1/24 dev eth0", "addr add fd00:34::1/64 dev eth0"]);
        lines(&far.router, &["route add default via 34.34.34.254", "route add default via fd00:34::fe"]);
        lines(&far.router, &["addr add 35.35.35.254/24 dev far0", "addr add fd00:35::fe/64 dev far0"]);
        lines(&far.endpoint, &["addr add 35.35.35.1/24 dev eth0", "addr add fd00:35::1/64 dev eth0", "link set lo up"]);
        // The endpoint does not say how much less than 1,500 bytes reach it.
        lines(
            &far.endpoint,
            &["route add default via 35.35.35.254 advmss 1460", "route add default via fd00:35::fe advmss 1440"],
        );
        // Our kernel cuts what leaves for the router, and computes the checksums of what is inside; the endpoint verifies them.
        network.balancer.offload("ep3", "tx off").unwrap();
        far
    }

    /// The endpoint has these addresses, and takes packets out of others of this kind.
    fn decapsulate(&mut self, kind: &str, hosts: &[u8]) {
        for (host, family) in hosts.iter().flat_map(|host| FAMILIES.map(|family| (host, family))) {
            let bits = if family == Family::V4 { 32 } else { 128 };
            self.endpoint.ip(&format!("addr add {}/{bits} dev lo", family.vip(*host))).unwrap();
        }
        for version in ["4", "6"] {
            let mut command = Command::new("python3");
            command.args(["-c", DECAPSULATE, kind, version, &format!("{kind}{version}")]);
            let mut program = self.endpoint.spawn(&format!("decapsulate {kind} {version}"), &mut command).unwrap();
            program.says("decapsulating").unwrap();
            self.running.push(program);
        }
    }
}

/// An echo over both protocols with this tunnel, at a vip with this host number.
fn echo(kind: &str, host: u8) -> String {
    let one = |(family, at): (Family, &str), transport: &str| {
        let to = SocketAddr::new(family.vip(host), ECHO_PORT);
        let name = format!("{transport}-{kind}-{family:?}").to_lowercase();
        format!(
            "{name}: {{address: '{to}/{transport}', interfaces: ['client*', 'ep*'], mode: dsr, tunnel: {kind}, endpoints: ['{at}']}}\n"
        )
    };
    FAMILIES.into_iter().zip(AT).flat_map(|at| ["tcp", "udp"].map(|transport| one(at, transport))).collect()
}

const KINDS: [(&str, u8); 2] = [("ipip", 1), ("gue", 2)];

#[test]
fn endpoints_behind_a_router() {
    within("endpoints_behind_a_router", Links { mtu: 1500, offload: Offload::All }, |network| {
        let mut far = Far::new(network, 1500);
        let vips = Vips::serve(&KINDS.map(|(kind, host)| echo(kind, host)).concat());
        for (kind, host) in KINDS {
            far.decapsulate(kind, &[host]);
            let _echo = far.endpoint.inside(Echo::start);
            for family in FAMILIES {
                let to = SocketAddr::new(family.vip(host), ECHO_PORT);
                // Full segments do not fit the tunnel: the client learns that by an ICMP error of ours.
                for _ in 0..3 {
                    bulk(&network.connect(to), BULK_BYTES);
                }
                let socket = network.talk(to);
                for count in [3, 1300, 8000] {
                    // The first datagram that does not fit is answered by an error, as it would be by a narrow link.
                    testkit::until(testkit::PATIENCE, || try_datagram(&socket, count).ok())
                        .unwrap_or_else(|| panic!("{kind} {family:?} {count}"));
                }
                let name = format!("tcp-{kind}-{family:?}").to_lowercase();
                let traced = vips.ask(&[
                    "trace",
                    "--vip",
                    &name,
                    "--from",
                    &family.client().to_string(),
                    "--interface",
                    "client0",
                ]);
                let how = if kind == "ipip" { "IP in IP" } else { "by GUE" };
                assert!(traced.contains(how), "{traced}");
                let status = vips.steelyard.status();
                let vip = vip_of(&status, &name);
                let drops = vip["drops"].as_object().unwrap();
                assert!(drops.keys().eq(["too_big"]), "{status}");
                assert_eq!(vip["tunnel"], kind);
            }
        }
        assert!(vips.ask(&["vip", "list"]).contains("dsr, ipip"));
        // Outer packets come from this host, and the ports of GUE differ by flow.
        for (kind, programs) in ["ipip", "gue"].into_iter().zip(far.running.chunks_mut(2)) {
            let mut ports = std::collections::BTreeSet::new();
            for (program, from) in programs.iter_mut().zip(["34.34.34.254", "fd00:34::fe"]) {
                let log = program.log();
                let headers: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
                assert!(headers.len() >= 4, "{kind}: {log}");
                for header in headers {
                    assert_eq!(header["from"], from, "{kind}: {header}");
                    ports.extend(header["port"].as_u64());
                    if header.get("to").is_some() {
                        assert_eq!((&header["to"], &header["ttl"]), (&"35.35.35.1".into(), &63.into()), "{header}");
                    }
                }
            }
            assert_eq!(ports.len() > 4, kind == "gue", "{kind}: {ports:?}");
            assert!(ports.iter().all(|port| (0xc000..=0xffff).contains(port)), "{ports:?}");
        }
    });
}

#[test]
fn a_narrow_link_beyond_the_router() {
    within("a_narrow_link_beyond_the_router", Links { mtu: 1500, offload: Offload::All }, |network| {
        let mut far = Far::new(network, 1400);
        let _vips = Vips::serve(&KINDS.map(|(kind, host)| echo(kind, host)).concat());
        for (kind, host) in KINDS {
            far.decapsulate(kind, &[host]);
            let _echo = far.endpoint.inside(Echo::start);
            // A router may fragment the outer packets of IPv4.
            bulk(&network.connect(SocketAddr::new(Family::V4.vip(host), ECHO_PORT)), BULK_BYTES);
        }
        // With the MTU of the path at the route, none is, and IPv6 works too.
        network
            .balancer
            .ip("route change 35.35.35.0/24 via 34.34.34.1 mtu lock 1400\nroute change fd00:35::/64 via fd00:34::1 mtu lock 1400")
            .unwrap();
        for (_, host) in KINDS {
            let _echo = far.endpoint.inside(Echo::start);
            for family in FAMILIES {
                bulk(&network.connect(SocketAddr::new(family.vip(host), ECHO_PORT)), BULK_BYTES);
            }
        }
    });
}

#[test]
fn without_a_tunnel_the_router_is_in_the_way() {
    within("without_a_tunnel_the_router_is_in_the_way", Links { mtu: 1500, offload: Offload::All }, |network| {
        let _far = Far::new(network, 1500);
        let without = echo("ipip", 1).replace(", tunnel: ipip", "");
        let mut vips = Vips::serve(&without);
        assert!(network.try_connect(SocketAddr::new(Family::V4.vip(1), ECHO_PORT)).is_none());
        vips.steelyard.until("no_route is counted", |status| {
            vip_of(status, "tcp-ipip-v4")["drops"]["no_route"].as_u64() > Some(0)
        });
        let traced =
            vips.steelyard.ask(&["trace", "--vip", "tcp-ipip-v4", "--from", "10.10.10.1", "--interface", "client0"]);
        assert!(traced.stdout.contains("behind a router, and the vip has no `tunnel`"), "{}", traced.stdout);
    });
}

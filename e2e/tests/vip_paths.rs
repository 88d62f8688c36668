//! What reaches an endpoint through a vip, and what comes back: every mode, over every kind of link.
//!
//! A veth pair passes on packets whose checksum is not computed yet, and nothing verifies those, so a wrong checksum would go unnoticed. So
//! some links have no checksum offload, where every sender computes and every receiver verifies. And some look like hardware to the
//! balancer, whose kernel computes the checksums that the sender left to it, after our programs have changed them.
#![forbid(unsafe_code)]

mod support;

use std::net::{SocketAddr, TcpListener, TcpStream};

use support::echo::{ECHO_PORT, bulk, datagram, exchange};
use support::local;
use support::network::{FAMILIES, Family, INTERFACES, Links, Network, Offload, Vips, start_in, vip, within};
use testkit::netns::{Netns, join};

/// Enough for windows to grow over many segments, and little enough for fifty transfers.
const BULK_BYTES: usize = 2 << 20;

/// The modes, with the host number of each vip.
const MODES: [(&str, u8); 3] = [("nat", 1), ("full_nat", 2), ("dsr", 3)];

#[test]
fn links_of_1500() {
    within("links_of_1500", Links { mtu: 1500, offload: Offload::All }, every_mode);
}

#[test]
fn links_of_1500_without_tso() {
    within("links_of_1500_without_tso", Links { mtu: 1500, offload: Offload::NoSegments }, every_mode);
}

#[test]
fn links_of_1500_without_checksum_offload() {
    within("links_of_1500_without_checksum_offload", Links { mtu: 1500, offload: Offload::NoSums }, every_mode);
}

#[test]
fn links_of_1500_like_hardware() {
    within("links_of_1500_like_hardware", Links { mtu: 1500, offload: Offload::LikeHardware }, every_mode);
}

#[test]
fn links_of_9000() {
    within("links_of_9000", Links { mtu: 9000, offload: Offload::All }, every_mode);
}

#[test]
fn links_of_9000_without_tso() {
    within("links_of_9000_without_tso", Links { mtu: 9000, offload: Offload::NoSegments }, every_mode);
}

#[test]
fn links_of_9000_without_checksum_offload() {
    within("links_of_9000_without_checksum_offload", Links { mtu: 9000, offload: Offload::NoSums }, every_mode);
}

#[test]
fn links_of_9000_like_hardware() {
    within("links_of_9000_like_hardware", Links { mtu: 9000, offload: Offload::LikeHardware }, every_mode);
}

/// Requests, bulk and datagrams through a vip of each mode and family.
fn every_mode(network: &Network) {
    network.hold(&[3]);
    let (_origins, _echoes) = (network.origins(), network.echoes());
    let mut vips = String::new();
    for (mode, host) in MODES {
        for family in FAMILIES {
            let name = format!("{}-{family:?}", mode.replace('_', "-")).to_lowercase();
            // With dsr nothing can be rewritten, so the port is the endpoint's.
            let http = if mode == "dsr" { 80 } else { 5001 };
            for (kind, transport, port, to) in [("web", "tcp", 80, http), ("tcp", "tcp", 7, 7), ("udp", "udp", 7, 7)] {
                let rest = format!("mode: {mode}, endpoints: {}", family.endpoints(to));
                let address = SocketAddr::new(family.vip(host), port);
                vips += &vip(&format!("{kind}-{name}"), address, transport, &rest);
            }
        }
    }
    let _vips = Vips::serve(&vips);
    for (mode, host) in MODES {
        for family in FAMILIES {
            let address = family.vip(host);
            let report = network.get(SocketAddr::new(address, 80), 6, 300);
            // Round robin, and one flow per connection.
            let served: Vec<u64> = report.origins.values().copied().collect();
            assert_eq!(served, [100, 100, 100], "{mode} {family:?}: {:?}", report.origins);
            bulk(&network.connect(SocketAddr::new(address, ECHO_PORT)), BULK_BYTES);
            let socket = network.talk(SocketAddr::new(address, ECHO_PORT));
            for count in [1, 512, 1400] {
                datagram(&socket, count);
            }
        }
    }
}

#[test]
fn links_that_end_in_bridges() {
    // Bridges at the client and two endpoints: a container host, or the host below the container that Steelyard runs in. The third endpoint
    // has none.
    within("links_that_end_in_bridges", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        network.bridge(&network.client, FAMILIES.map(|family| (family.client(), family.gateway())));
        for index in [0, 1] {
            let ways = FAMILIES.map(|family| (family.endpoint(index), family.balancer(index)));
            network.bridge(&network.endpoints[index], ways);
        }
        let (_origins, _echoes) = (network.origins(), network.echoes());
        let _vips = Vips::serve(&FAMILIES.map(beside).concat());
        for family in FAMILIES {
            let served = network.get(SocketAddr::new(family.vip(1), 80), 6, 300).origins;
            assert_eq!(served.values().copied().collect::<Vec<_>>(), [100, 100, 100], "{family:?}: {served:?}");
            bulk(&network.connect(SocketAddr::new(family.vip(1), ECHO_PORT)), BULK_BYTES);
            datagram(&network.talk(SocketAddr::new(family.vip(1), ECHO_PORT)), 1400);
        }
    });
}

/// Three vips with one address and different ports: nat, which answers pings and takes ranges.
fn beside(family: Family) -> String {
    let address = family.vip(1);
    let endpoints = |port| format!("endpoints: {}", family.endpoints(port));
    let name = format!("{family:?}").to_lowercase();
    [
        vip(&format!("web-{name}"), SocketAddr::new(address, 80), "tcp", &endpoints(5001)),
        vip(&format!("tcp-{name}"), SocketAddr::new(address, 7), "tcp", &endpoints(7)),
        vip(&format!("udp-{name}"), SocketAddr::new(address, 7), "udp", &endpoints(7)),
    ]
    .concat()
}

#[test]
fn a_vip_answers_pings() {
    within("a_vip_answers_pings", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        let _vips = Vips::serve(&FAMILIES.map(beside).concat());
        for family in FAMILIES {
            let address = family.vip(1).to_string();
            for size in ["8", "56", "1400", "3000", "20000"] {
                let ping = ["ping", "-c", "2", "-i", "0.2", "-W", "5", "-s", size, &address];
                let said = network.client.run(&ping).unwrap_or_else(|failure| panic!("{failure}"));
                assert!(said.contains(" 0% packet loss"), "{said}");
            }
        }
        // We must not answer for a neighbouring address.
        let other = Family::V4.vip(9).to_string();
        assert!(network.client.run(&["ping", "-c", "1", "-W", "1", &other]).is_err());
    });
}

#[test]
fn datagrams_in_pieces() {
    within("datagrams_in_pieces", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        let _echoes = network.echoes();
        let _vips = Vips::serve(&FAMILIES.map(beside).concat());
        for family in FAMILIES {
            let socket = network.talk(SocketAddr::new(family.vip(1), ECHO_PORT));
            for count in [3000, 1472, 8000] {
                datagram(&socket, count);
            }
        }
    });
}

#[test]
fn a_range_of_ports_keeps_the_port() {
    within("a_range_of_ports_keeps_the_port", Links::default(), |network| {
        // Each answers only at its own ports: 5001, and the echo's 7.
        let (_origins, _echoes) = (network.origins(), network.echoes());
        let endpoints = "endpoints: [31.31.31.1, 32.32.32.1, 33.33.33.1]";
        let address = Family::V4.vip(1);
        let range = format!("range: {{address: '{address}:2-6000/tcp', interfaces: {INTERFACES}, {endpoints}}}");
        let one = vip("one", SocketAddr::new(address, 7000), "tcp", "endpoints: ['31.31.31.1:80']");
        let _vips = Vips::serve(&format!("{range}\n{one}"));
        assert_eq!(network.get(SocketAddr::new(address, 5001), 3, 30).origins.len(), 3);
        exchange(&network.connect(SocketAddr::new(address, ECHO_PORT)), "seven").unwrap();
        // A port next to the range has its own vip. One below and one above have none, and nothing answers.
        assert_eq!(network.get(SocketAddr::new(address, 7000), 1, 10).origins.keys().collect::<Vec<_>>(), ["ep0"]);
        for port in [1, 6001] {
            assert!(network.try_connect(SocketAddr::new(address, port)).is_none(), "port {port} is in no vip");
        }
    });
}

#[test]
fn a_vip_in_front_of_a_listener_of_this_host() {
    within("a_vip_in_front_of_a_listener_of_this_host", Links::default(), |network| {
        let _origins = network.origins();
        for family in FAMILIES {
            let bits = if family == Family::V4 { 32 } else { 128 };
            network.balancer.ip(&format!("addr add {}/{bits} dev lo", family.vip(1))).unwrap();
        }
        let (v4, v6) = (SocketAddr::new(Family::V4.vip(1), 80), SocketAddr::new(Family::V6.vip(1), 80));
        let config = format!(
            "admin: {{admin}}
listeners:
  four: {{bind: '{v4}', protocol: http, to: all}}
  six: {{bind: '{v6}', protocol: http, to: all}}
clusters:
  all: {{endpoints: {}}}
vips:
  {}  {}",
            Family::V4.endpoints(5001),
            vip("four", v4, "tcp", "mode: local"),
            vip("six", v6, "tcp", "mode: local"),
        );
        let vips = Vips { steelyard: support::Steelyard::serve(&config, 1) };
        for (name, address) in [("four", v4), ("six", v6)] {
            assert_eq!(network.get(address, 4, 60).origins.len(), 3, "{address}");
            let client = if name == "four" { Family::V4.client() } else { Family::V6.client() };
            let said = vips.ask(&["trace", "--vip", name, "--from", &client.to_string()]);
            assert!(said.contains("listener on this host"), "{said}");
        }
    });
}

#[test]
fn a_vip_on_an_address_of_this_host() {
    within("a_vip_on_an_address_of_this_host", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        // Far away, behind a narrow link that only ICMP errors reveal: the host's own connections need these errors, and its own pings are
        // fragmented.
        let far = Netns::new("far").unwrap();
        network.client.forward().unwrap();
        join((&network.client, "narrow"), (&far, "eth0"), 1280).unwrap();
        network.client.ip("addr add 40.40.40.254/24 dev narrow\naddr add fd00:40::fe/64 dev narrow").unwrap();
        far.ip("addr add 40.40.40.1/24 dev eth0\naddr add fd00:40::1/64 dev eth0").unwrap();
        far.ip("route add default via 40.40.40.254 advmss 1460\nroute add default via fd00:40::fe advmss 1440")
            .unwrap();
        network.balancer.ip("route add 40.40.40.0/24 via 10.10.10.1\nroute add fd00:40::/64 via fd00:10::1").unwrap();
        let mut vips = String::new();
        for family in FAMILIES {
            let bits = if family == Family::V4 { 32 } else { 128 };
            for host in [1, 2] {
                network.balancer.ip(&format!("addr add {}/{bits} dev lo", family.vip(host))).unwrap();
            }
            let endpoints = format!("endpoints: {}", family.endpoints(5001));
            vips +=
                &vip(&format!("web-{family:?}").to_lowercase(), SocketAddr::new(family.vip(1), 80), "tcp", &endpoints);
            let local = SocketAddr::new(family.vip(2), ECHO_PORT);
            vips += &vip(&format!("local-{family:?}").to_lowercase(), local, "tcp", "mode: local");
        }
        let (_origins, _echo) = (network.origins(), support::echo::Echo::start());
        let _vips = Vips::serve(&vips);
        for family in FAMILIES {
            let away = if family == Family::V4 { "40.40.40.1" } else { "fd00:40::1" };
            // One next to a vip's port, and one in mode local.
            for host in [1, 2] {
                let own = SocketAddr::new(family.vip(host), ECHO_PORT);
                let stream = far.inside(|| TcpStream::connect_timeout(&own, testkit::PATIENCE)).unwrap();
                stream.set_read_timeout(Some(testkit::PATIENCE)).unwrap();
                bulk(&stream, BULK_BYTES);
                let own = own.ip().to_string();
                let pings =
                    [(&far, vec!["-s", "3000", &own]), (&network.balancer, vec!["-s", "3000", "-I", &own, away])];
                for (netns, words) in pings {
                    let ping = [&["ping", "-c", "2", "-i", "0.2", "-W", "5"], &words[..]].concat();
                    let said = netns.run(&ping).unwrap_or_else(|failure| panic!("{failure}"));
                    assert!(said.contains(" 0% packet loss"), "{said}");
                }
            }
            // The vip still works.
            assert_eq!(network.get(SocketAddr::new(family.vip(1), 80), 3, 30).origins.len(), 3);
        }
    });
}

/// Sends bulk in both directions through the vips.
fn both_ways(network: &Network) {
    let _echoes = network.echoes();
    let _vips = Vips::serve(&FAMILIES.map(beside).concat());
    for family in FAMILIES {
        for _endpoint in 0..3 {
            bulk(&network.connect(SocketAddr::new(family.vip(1), ECHO_PORT)), BULK_BYTES);
        }
    }
}

#[test]
fn a_narrow_link_to_the_endpoints() {
    within("a_narrow_link_to_the_endpoints", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        for (index, endpoint) in network.endpoints.iter().enumerate() {
            network.narrow(&format!("ep{index}"), endpoint, FAMILIES.map(|family| family.balancer(index)));
        }
        both_ways(network);
    });
}

#[test]
fn a_narrow_link_to_the_endpoints_like_hardware() {
    within(
        "a_narrow_link_to_the_endpoints_like_hardware",
        Links { mtu: 9000, offload: Offload::LikeHardware },
        |network| {
            for (index, endpoint) in network.endpoints.iter().enumerate() {
                network.narrow(&format!("ep{index}"), endpoint, FAMILIES.map(|family| family.balancer(index)));
            }
            both_ways(network);
        },
    );
}

#[test]
fn a_narrow_link_to_the_client() {
    within("a_narrow_link_to_the_client", Links { mtu: 9000, offload: Offload::NoSums }, |network| {
        network.narrow("client0", &network.client, FAMILIES.map(Family::gateway));
        both_ways(network);
    });
}

#[test]
fn a_narrow_link_behind_a_router() {
    // Its errors are about packets with a destination that the client does not know, so they must be translated to the vip.
    within("a_narrow_link_behind_a_router", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        let (router, far) = (Netns::new("router").unwrap(), Netns::new("far").unwrap());
        router.forward().unwrap();
        join((&network.balancer, "ep3"), (&router, "eth0"), 1500).unwrap();
        join((&router, "narrow"), (&far, "eth0"), 1280).unwrap();
        let lines = |netns: &Netns, lines: &[&str]| netns.ip(&lines.join("\n")).unwrap();
        lines(&network.balancer, &["addr add 34.34.34.254/24 dev ep3", "addr add fd00:34::fe/64 dev ep3"]);
        lines(&network.balancer, &["route add 35.35.35.0/24 via 34.34.34.1", "route add fd00:35::/64 via fd00:34::1"]);
        lines(&router, &["addr add 34.34.34.1/24 dev eth0", "addr add fd00:34::1/64 dev eth0"]);
        lines(&router, &["route add default via 34.34.34.254", "route add default via fd00:34::fe"]);
        lines(&router, &["addr add 35.35.35.254/24 dev narrow", "addr add fd00:35::fe/64 dev narrow"]);
        lines(&far, &["addr add 35.35.35.1/24 dev eth0", "addr add fd00:35::1/64 dev eth0"]);
        // It claims to accept what its own link cannot carry, so the router has to inform the client.
        lines(
            &far,
            &["route add default via 35.35.35.254 advmss 1460", "route add default via fd00:35::fe advmss 1440"],
        );
        let _echo = far.inside(support::echo::Echo::start);
        let config = [
            vip("tcp-v4", SocketAddr::new(Family::V4.vip(1), 7), "tcp", "endpoints: ['35.35.35.1:7']"),
            vip("tcp-v6", SocketAddr::new(Family::V6.vip(1), 7), "tcp", "endpoints: ['[fd00:35::1]:7']"),
        ];
        let _vips = Vips::serve(&config.concat().replace("ep2]", "ep2, ep3]"));
        for family in FAMILIES {
            bulk(&network.connect(SocketAddr::new(family.vip(1), ECHO_PORT)), BULK_BYTES);
        }
    });
}

#[test]
fn a_closed_udp_port_is_told_to_the_client() {
    within("a_closed_udp_port_is_told_to_the_client", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        // Nothing listens at the endpoints.
        let _vips = Vips::serve(&FAMILIES.map(beside).concat());
        for family in FAMILIES {
            let socket = network.talk(SocketAddr::new(family.vip(1), ECHO_PORT));
            socket.send(b"anybody?").unwrap();
            let error = socket.recv(&mut [0; 16]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{family:?}");
        }
    });
}

#[test]
fn a_thousand_endpoints() {
    within("a_thousand_endpoints", Links::default(), |network| {
        const COUNT: usize = 1000;
        let address = |index: usize| format!("31.31.{}.{}", 100 + index / 250, 1 + index % 250);
        let all: String = (0..COUNT).map(|index| format!("addr add {}/32 dev eth0\n", address(index))).collect();
        network.endpoints[0].ip(&all).unwrap();
        network.balancer.ip("route add 31.31.96.0/20 via 31.31.31.1").unwrap();
        let (_origin, _echoes) = (network.origin(0), network.echoes());
        let endpoints: Vec<String> = (0..COUNT).map(|index| format!("'{}:7'", address(index))).collect();
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let rest = format!("endpoints: [{}]", endpoints.join(", "));
        let vips = Vips::serve(&vip("many", to, "tcp", &rest));
        let open: Vec<_> = (0..COUNT).map(|_| network.connect(to)).collect();
        for stream in &open {
            exchange(stream, "hello").unwrap();
        }
        // Each endpoint has had exactly one.
        let status = vips.steelyard.status();
        let counts: Vec<u64> = support::network::endpoint_figures(&status, "many", "flows");
        assert_eq!(counts, vec![1; COUNT]);
    });
}

#[test]
fn the_example() {
    within("the_example", Links::default(), |network| {
        let _origins = network.origins();
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/vip.yaml");
        let mut balancer = start_in(&network.balancer, &["serve", "-c", &file.display().to_string()]);
        let admin = local(9900);
        let ready = || support::get(admin, "/readyz").filter(|response| response.status == 200);
        balancer.until("ready", ready).unwrap();
        let to: SocketAddr = "20.20.20.1:2020".parse().unwrap();
        assert_eq!(network.get(to, 3, 300).origins.len(), 3);
        drop(balancer);
        assert_eq!(support::network::detach().exit, testkit::Exit::Code(0));
    });
}

#[test]
fn what_is_not_for_a_vip_is_left_alone() {
    within("what_is_not_for_a_vip_is_left_alone", Links { mtu: 1500, offload: Offload::NoSums }, |network| {
        let (_origins, _echoes) = (network.origins(), network.echoes());
        let _vips = Vips::serve(&FAMILIES.map(beside).concat());
        for family in FAMILIES {
            // Routed through the balancer, to an endpoint's own address.
            network.get(SocketAddr::new(family.endpoint(1), 80), 2, 20);
            bulk(&network.connect(SocketAddr::new(family.endpoint(2), ECHO_PORT)), BULK_BYTES);
            // And to the balancer itself.
            let own = SocketAddr::new(family.balancer(0), 4000);
            let listener = TcpListener::bind(own).unwrap();
            let stream = network.connect(own);
            assert_eq!(listener.accept().unwrap().1, stream.local_addr().unwrap());
        }
    });
}

#[test]
fn programs_of_others_stay_and_run() {
    within("programs_of_others_stay_and_run", Links::default(), |network| {
        let _origins = network.origins();
        // A program of another project, which drops packets to endpoint 0 itself: `ld [30]; jeq #31.31.31.1; ret drop; ret unspecified`.
        let bytecode = "4,32 0 0 30,21 0 1 522133249,6 0 0 2,6 0 0 4294967295";
        let tc =
            |words: &[&str]| network.balancer.run(&[&["tc"], words].concat()).unwrap_or_else(|why| panic!("{why}"));
        tc(&["qdisc", "add", "dev", "client0", "clsact"]);
        tc(&["filter", "add", "dev", "client0", "ingress", "pref", "7", "bpf", "da", "bytecode", bytecode]);
        let reaches = |to: SocketAddr| network.try_connect(to).is_some();
        let (dropped, routed) = (Family::V4.endpoint(0), Family::V4.endpoint(1));
        let check = || (reaches(SocketAddr::new(dropped, 80)), reaches(SocketAddr::new(routed, 80)));
        assert_eq!(check(), (false, true), "the other program alone");
        let to = SocketAddr::new(Family::V4.vip(1), 80);
        {
            let _vips = Vips::serve(&beside(Family::V4));
            assert_eq!(network.get(to, 3, 30).origins.len(), 3, "endpoint 0 is reached by the vip");
            assert_eq!(check(), (false, true), "the other program beside ours");
        }
        assert_eq!(check(), (false, true), "the other program after ours");
        assert!(!reaches(to), "the vip answers although it is gone");
    });
}

//! Vips for sockets alone, which no packet finds, and vips with every address of the host.
#![forbid(unsafe_code)]

mod support;

use std::net::{IpAddr, SocketAddr};

use support::at_sockets::{config, sees_the_vip, serve, until_open, vip_of, with_cgroup};
use support::cgroup::Cgroup;
use support::echo::{ECHO_PORT, Echo, bulk, datagram, exchange};
use support::network::{FAMILIES, Family, Network, Vips, endpoint_figures, vip};
use testkit::{Exit, Signal, until};

/// A port in the range of node ports.
const PORT: u16 = 30_007;

fn endpoint(family: Family, index: usize) -> String {
    format!("['{}']", SocketAddr::new(family.endpoint(index), ECHO_PORT))
}

/// A vip without interfaces.
fn without_interfaces(name: &str, address: SocketAddr, transport: &str, rest: &str) -> String {
    format!("{name}: {{address: '{address}/{transport}', {rest}}}\n")
}

/// The number of the endpoint from which a client outside of the control group gets its answer.
fn answered_by(network: &Network, vips: &mut Vips, name: &str, to: SocketAddr) -> usize {
    let before = endpoint_figures(&vips.steelyard.status(), name, "flows_total");
    exchange(&network.connect(to), "hello").unwrap();
    let status =
        vips.steelyard.until("the flow is counted", |status| endpoint_figures(status, name, "flows_total") != before);
    let after = endpoint_figures(&status, name, "flows_total");
    after.iter().zip(&before).position(|(after, before)| after > before).unwrap()
}

#[test]
fn a_vip_for_sockets_alone() {
    with_cgroup("a_vip_for_sockets_alone", |network, cgroup| {
        let _echoes = network.echoes();
        let vips: String = FAMILIES
            .map(|family| {
                let (at, name) = (SocketAddr::new(family.vip(1), ECHO_PORT), format!("{family:?}").to_lowercase());
                let to = |index| format!("endpoints: {}", endpoint(family, index));
                ["tcp", "udp"]
                    .map(|transport| {
                        let sockets = format!("mode: socket, {}", to(1));
                        without_interfaces(&format!("sk-{transport}-{name}"), at, transport, &sockets)
                            + &vip(&format!("pk-{transport}-{name}"), at, transport, &to(0))
                    })
                    .concat()
            })
            .concat();
        let mut vips = serve(cgroup, &vips);
        for family in FAMILIES {
            let (at, name) = (SocketAddr::new(family.vip(1), ECHO_PORT), format!("{family:?}").to_lowercase());
            let seen_as = format!("{} {ECHO_PORT}", at.ip());
            for where_from in [&network.balancer, &network.client] {
                for kind in ["tcp", "udp-connected", "udp"] {
                    let mut client = cgroup.client(where_from, kind, at, 3);
                    sees_the_vip(&client.report(), &seen_as, kind != "udp", 3);
                    sees_the_vip(&client.again(), &seen_as, kind != "udp", 3);
                    let vip = format!("sk-{}-{name}", kind.split('-').next().unwrap());
                    if kind == "tcp" {
                        let what = "three sockets are open";
                        vips.steelyard.until(what, |status| endpoint_figures(status, &vip, "sockets") == [3]);
                    }
                }
            }
            // Others, by packets, get the other endpoint.
            assert_eq!(answered_by(network, &mut vips, &format!("pk-tcp-{name}"), at), 0);
            datagram(&network.talk(at), 3);
            let status = vips.steelyard.status();
            for (vip, figure) in [(format!("sk-tcp-{name}"), "packets_to"), (format!("pk-tcp-{name}"), "sockets_total")]
            {
                assert_eq!(endpoint_figures(&status, &vip, figure), [0], "{status}");
            }
            assert_eq!(endpoint_figures(&status, &format!("pk-udp-{name}"), "flows_total"), [1], "{status}");
            let traced = vips.ask(&["trace", "--vip", &format!("sk-tcp-{name}"), "--from", "local"]);
            assert!(
                traced.contains(&format!("connected to {}", SocketAddr::new(family.endpoint(1), ECHO_PORT))),
                "{traced}"
            );
        }
        assert!(!vips.steelyard.status()["findings"].to_string().contains("attached"));
        // Without the other vip, packets find nothing, and the address is not answered for.
        let alone = without_interfaces(
            "alone",
            SocketAddr::new(Family::V4.vip(2), 80),
            "tcp",
            "mode: socket, endpoints: [31.31.31.1]",
        );
        vips.steelyard.reload(&config(cgroup.path(), &alone), |status| {
            status["vips"].as_array().is_some_and(|vips| vips.len() == 1)
        });
        let traced = vips.steelyard.ask(&["trace", "--vip", "alone", "--from", "10.10.10.1"]);
        assert_eq!(traced.exit, Exit::Code(1));
        assert!(traced.stdout.contains("vip alone has mode socket"), "{}", traced.stdout);
        let pinged = network.client.run(&["ping", "-c1", "-W1", "20.20.20.2"]);
        assert!(pinged.is_err(), "{pinged:?}");
        assert!(vips.ask(&["vip", "list"]).contains("at the socket alone"));
    });
}

fn every(family: Family) -> SocketAddr {
    let any: IpAddr = if family == Family::V4 { [0; 4].into() } else { [0_u16; 8].into() };
    SocketAddr::new(any, PORT)
}

fn node_ports(cgroup: &Cgroup) -> String {
    let vips = FAMILIES.map(|family| {
        let name = format!("{family:?}").to_lowercase();
        ["tcp", "udp"]
            .map(|transport| {
                let rest = |mode: &str| format!("mode: {mode}, endpoints: {}", family.endpoints(ECHO_PORT));
                without_interfaces(&format!("sk-{transport}-{name}"), every(family), transport, &rest("socket"))
                    + &without_interfaces(
                        &format!("pk-{transport}-{name}"),
                        every(family),
                        transport,
                        &rest("full_nat"),
                    )
            })
            .concat()
    });
    config(cgroup.path(), &vips.concat())
}

#[test]
fn every_address_of_the_host() {
    with_cgroup("every_address_of_the_host", |network, cgroup| {
        let _echoes = network.echoes();
        let mut vips = Vips { steelyard: support::Steelyard::serve(&node_ports(cgroup), 1) };
        for family in FAMILIES {
            let name = format!("{family:?}").to_lowercase();
            for address in [family.gateway(), family.balancer(0), family.balancer(2)] {
                let to = SocketAddr::new(address, PORT);
                for where_from in [&network.balancer, &network.client] {
                    for kind in ["tcp", "udp-connected", "udp"] {
                        let mut client = cgroup.client(where_from, kind, to, 3);
                        sees_the_vip(&client.report(), &format!("{address} {PORT}"), kind != "udp", 3);
                    }
                }
                // From elsewhere, by packets.
                exchange(&network.connect(to), "hello").unwrap();
                datagram(&network.talk(to), 3);
            }
            let status = vips.steelyard.status();
            let made = |vip: &str, figure: &str| {
                endpoint_figures(&status, &format!("{vip}-{name}"), figure).iter().sum::<u64>()
            };
            assert_eq!((made("sk-tcp", "sockets_total"), made("sk-tcp", "flows_total")), (18, 0), "{status}");
            assert_eq!((made("pk-tcp", "sockets_total"), made("pk-tcp", "flows_total")), (0, 3), "{status}");
            assert_eq!(made("pk-udp", "flows_total"), 3, "{status}");
            // An address of nobody's, and the loopback, are not balanced.
            let loopback = if family == Family::V4 { "127.0.0.1" } else { "::1" };
            let mut client = cgroup.client_of(&network.balancer, "tcp", loopback, PORT, 1);
            assert_eq!(client.report().errors, ["ECONNREFUSED"], "{family:?}");
            for (from, forwarded) in [("local", "connected to"), (&*family.client().to_string(), "forwarded to")] {
                let vip = format!("{}-tcp-{name}", if from == "local" { "sk" } else { "pk" });
                let traced = vips.ask(&["trace", "--vip", &vip, "--from", from]);
                assert!(traced.contains(forwarded), "{traced}");
            }
        }
        // The host itself answers at its addresses.
        network.client.run(&["ping", "-c1", "-W5", "10.10.10.254"]).unwrap();
        assert_eq!(vip_of(&vips.steelyard.status(), "pk-tcp-v4")["drops"], serde_json::json!({}));

        // An address that comes, and one that goes.
        network.balancer.ip("addr add 10.10.10.253/24 dev client0").unwrap();
        let added = SocketAddr::from(([10, 10, 10, 253], PORT));
        until(testkit::PATIENCE, || network.try_connect(added).map(drop)).unwrap();
        let mut client = cgroup.client(&network.client, "tcp", added, 3);
        sees_the_vip(&client.report(), &format!("{} {PORT}", added.ip()), true, 3);
        let held = network.connect(added);

        // Its connections outlive the process, which finds the same vip again.
        until_open(&mut vips, "sk-tcp-v4", [1, 1, 1]);
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(testkit::PATIENCE).unwrap();
        exchange(&held, "without a process").unwrap();
        let file = vips.steelyard.file();
        vips.steelyard.start_again(&file);
        until_open(&mut vips, "sk-tcp-v4", [1, 1, 1]);
        exchange(&held, "with the next").unwrap();
        let flows = vips.ask(&["flows", "--vip", "pk-tcp-v4"]);
        assert!(flows.contains("established"), "{flows}");
        drop(client);
        until_open(&mut vips, "sk-tcp-v4", [0, 0, 0]);
        network.balancer.ip("addr del 10.10.10.253/24 dev client0").unwrap();
        let mut refused = cgroup.client(&network.balancer, "tcp", added, 1);
        until(testkit::PATIENCE, || {
            let errors = refused.report().errors;
            refused = cgroup.client(&network.balancer, "tcp", added, 1);
            (!errors.is_empty()).then_some(())
        })
        .unwrap();
    });
}

/// Over TCP, a listener gets the connections at any address of the host. Its answers come from the address that the client asked for.
#[test]
fn a_listener_of_this_host_is_an_endpoint() {
    with_cgroup("a_listener_of_this_host_is_an_endpoint", |network, cgroup| {
        let _echoes = network.echoes();
        let listening = Echo::start();
        let vips = FAMILIES.map(|family| {
            let here = SocketAddr::new(family.gateway(), ECHO_PORT);
            let there = SocketAddr::new(family.endpoint(0), ECHO_PORT);
            let rest = format!("mode: full_nat, endpoints: ['{here}', '{there}']");
            without_interfaces(&format!("tcp-{family:?}").to_lowercase(), every(family), "tcp", &rest)
        });
        let mut vips = serve(cgroup, &vips.concat());
        for family in FAMILIES {
            let name = format!("tcp-{family:?}").to_lowercase();
            for address in [family.gateway(), family.balancer(2)] {
                for _ in 0..4 {
                    let stream = network.connect(SocketAddr::new(address, PORT));
                    exchange(&stream, "hello").unwrap();
                    bulk(&stream, 1 << 20);
                }
            }
            let made = |status: &serde_json::Value| endpoint_figures(status, &name, "flows_total") == [4, 4];
            let status = vips.steelyard.until("half of them were taken by each", made);
            assert_eq!(vip_of(&status, &name)["drops"], serde_json::json!({}), "{status}");
            assert!(!status["findings"].to_string().contains(&name), "{status}");
        }
        let here: SocketAddr = SocketAddr::new(Family::V4.gateway(), ECHO_PORT);
        vips.ask(&["endpoint", "drain", &SocketAddr::new(Family::V4.endpoint(0), ECHO_PORT).to_string()]);
        let traced = vips.ask(&["trace", "--vip", "tcp-v4", "--from", "10.10.10.1"]);
        assert!(traced.contains(&format!("{here} is a listener of this host")), "{traced}");
        assert!(traced.contains("left to a listener on this host"), "{traced}");
        // A connection outlives the process and the endpoint's place in the vip.
        let stream = network.connect(SocketAddr::new(Family::V4.gateway(), PORT));
        vips.ask(&["endpoint", "drain", &here.to_string()]);
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(testkit::PATIENCE).unwrap();
        exchange(&stream, "without a process").unwrap();
        // Without a listener, the connection is refused like one without an endpoint.
        let file = vips.steelyard.file();
        vips.steelyard.start_again(&file);
        vips.ask(&["endpoint", "drain", &SocketAddr::new(Family::V4.endpoint(0), ECHO_PORT).to_string()]);
        drop(stream);
        drop(listening);
        assert!(network.try_connect(SocketAddr::new(Family::V4.gateway(), PORT)).is_none());
        vips.steelyard
            .until("no_route is counted", |status| vip_of(status, "tcp-v4")["drops"]["no_route"].as_u64() > Some(0));
    });
}

/// Interfaces that fit a pattern are followed as they come and go.
#[test]
fn interfaces_by_pattern() {
    with_cgroup("interfaces_by_pattern", |network, cgroup| {
        let _echoes = network.echoes();
        let at = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let rest = format!("interfaces: ['client*', 'ep*'], endpoints: {}", endpoint(Family::V4, 0));
        let mut vips = serve(cgroup, &without_interfaces("web", at, "tcp", &rest));
        exchange(&network.connect(at), "hello").unwrap();
        let attached = |status: &serde_json::Value| vip_of(status, "web")["interfaces"].clone();
        assert_eq!(attached(&vips.steelyard.status()), serde_json::json!(["client0", "ep0", "ep1", "ep2"]));
        // One that comes and goes under ever new names, and one that stays.
        for number in 0..30 {
            let name = format!("client{}", 100 + number);
            network.balancer.ip(&format!("link add {name} type veth peer name other\nlink del {name}")).unwrap();
        }
        network.balancer.ip("link add client9 type veth peer name other9").unwrap();
        vips.steelyard
            .until("it is attached to the new one", |status| attached(status).to_string().contains("client9"));
        network.balancer.ip("link del client9").unwrap();
        let expect = serde_json::json!(["client0", "ep0", "ep1", "ep2"]);
        vips.steelyard.until("and to no other", |status| attached(status) == expect);
        exchange(&network.connect(at), "again").unwrap();
        // A pattern that nothing fits is no error: something may come.
        let none = without_interfaces("web", at, "tcp", &rest.replace("'client*', 'ep*'", "'wlan*'"));
        vips.steelyard.reload(&config(cgroup.path(), &none), |status| attached(status) == serde_json::json!([]));
        assert!(vips.steelyard.status()["findings"].to_string().contains("nothing fits the pattern"));
    });
}

/// An interface that is made again all the time: the last one is attached to, other endpoints are served all the while, and the log stays short.
#[test]
fn an_interface_that_comes_and_goes_all_the_time() {
    with_cgroup("an_interface_that_comes_and_goes_all_the_time", |network, cgroup| {
        let _echoes = network.echoes();
        let at = |host| SocketAddr::new(Family::V4.vip(host), ECHO_PORT);
        let one = |name: &str, host, index| {
            without_interfaces(
                name,
                at(host),
                "tcp",
                &format!("interfaces: ['client*', 'ep*'], endpoints: {}", endpoint(Family::V4, index)),
            )
        };
        let mut vips = serve(cgroup, &(one("stays", 1, 0) + &one("flaps", 2, 2)));
        let held = network.connect(at(1));
        let attached = |status: &serde_json::Value| vip_of(status, "flaps")["interfaces"].to_string().contains("ep2");
        for round in 0..100 {
            network.balancer.ip("link del ep2").unwrap();
            network.link_again(2);
            exchange(&held, "hello").unwrap();
            if round % 10 == 0 {
                exchange(&network.connect(at(1)), "hello").unwrap();
                vips.steelyard.until("it is attached to the one of now", |status| attached(status));
            }
        }
        vips.steelyard.until("it is attached to the last", |status| attached(status));
        until(testkit::PATIENCE, || {
            network.try_connect(at(2)).filter(|stream| exchange(stream, "by the last").is_ok()).map(drop)
        })
        .unwrap();
        let log = vips.steelyard.program.log();
        let named = log.lines().filter(|line| line.contains("ep2")).count();
        assert!((1..60).contains(&named), "{named} lines: {log}");
        assert!(log.contains("comes and goes all the time"), "{log}");
    });
}

/// The most specific vip has an address.
#[test]
fn a_vip_that_names_the_address_has_precedence() {
    with_cgroup("a_vip_that_names_the_address_has_precedence", |network, cgroup| {
        let _echoes = network.echoes();
        let gateway = Family::V4.gateway();
        let all = without_interfaces(
            "all",
            every(Family::V4),
            "tcp",
            &format!("mode: socket, endpoints: {}", endpoint(Family::V4, 0)),
        );
        let one = |mode: &str| {
            let rest = format!("mode: {mode}, endpoints: {}", endpoint(Family::V4, 1));
            without_interfaces("one", SocketAddr::new(gateway, PORT), "tcp", &rest)
        };
        let mut vips = serve(cgroup, &(one("socket") + &all));
        let ask = |vips: &mut Vips, to: IpAddr, expect: &str| {
            let mut client = cgroup.client(&network.balancer, "tcp", SocketAddr::new(to, PORT), 1);
            sees_the_vip(&client.report(), &format!("{to} {PORT}"), true, 1);
            vips.steelyard.until(expect, |status| endpoint_figures(status, expect, "sockets") == [1]);
            drop(client);
            vips.steelyard.until("none is open", |status| endpoint_figures(status, expect, "sockets") == [0]);
        };
        ask(&mut vips, gateway, "one");
        ask(&mut vips, Family::V4.balancer(0), "all");
        vips.steelyard.reload(&config(cgroup.path(), &all), |status| {
            status["vips"].as_array().is_some_and(|vips| vips.len() == 1)
        });
        ask(&mut vips, gateway, "all");
        vips.steelyard.reload(&config(cgroup.path(), &(all.clone() + &one("socket"))), |status| {
            status["vips"].as_array().is_some_and(|vips| vips.len() == 2)
        });
        ask(&mut vips, gateway, "one");
    });
}

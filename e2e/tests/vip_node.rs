//! A node: pods on a bridge that reach vips by packets, pods that are their own endpoints, and endpoints that are addresses of the node itself.
#![forbid(unsafe_code)]

mod support;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use support::at_sockets::vip_of;
use support::echo::{ECHO_PORT, Echo, bulk, datagram, exchange};
use support::network::{FAMILIES, Family, Links, Network, Offload, Vips, endpoint_figures, within};
use testkit::netns::{Netns, join};
use testkit::{PATIENCE, Signal};

const BULK_BYTES: usize = 2 << 20;

/// Of the balancer: where clients and pods are. It has no default route.
const INTERFACES: &str = "['client*', 'ep*', 'cni*']";

/// Without checksum offload: every receiver verifies.
const LINKS: Links = Links { mtu: 1500, offload: Offload::NoSums };

/// Two pods on a bridge of the balancer, as the plug-in `bridge` of CNI makes them: the ports do not send frames back to where they came from.
struct Pods([Netns; 2]);

impl Pods {
    fn new(network: &Network) -> Self {
        let pods = ["pod 0", "pod 1"].map(|name| Netns::new(name).unwrap());
        let balancer = &network.balancer;
        balancer.ip("link add cni0 type bridge\nlink set cni0 up\naddr add 10.88.0.254/24 dev cni0\naddr add fd00:88::fe/64 dev cni0").unwrap();
        for (index, pod) in pods.iter().enumerate() {
            let port = format!("pod{index}");
            join((balancer, &port), (pod, "eth0"), 1500).unwrap();
            balancer.ip(&format!("link set {port} master cni0")).unwrap();
            for (netns, interface) in [(balancer, &*port), (pod, "eth0")] {
                netns.offload(interface, "tx off").unwrap();
            }
            pod.ip(&format!(
                "addr add {}/24 dev eth0\naddr add {}/64 dev eth0",
                Self::at(Family::V4, index),
                Self::at(Family::V6, index)
            ))
            .unwrap();
            pod.ip("route add default via 10.88.0.254\nroute add default via fd00:88::fe").unwrap();
        }
        balancer.offload("cni0", "tx off").unwrap();
        Self(pods)
    }

    fn at(family: Family, index: usize) -> IpAddr {
        let host = index + 1;
        match family {
            Family::V4 => format!("10.88.0.{host}").parse().unwrap(),
            Family::V6 => format!("fd00:88::{host}").parse().unwrap(),
        }
    }
}

fn connect(from: &Netns, to: SocketAddr) -> TcpStream {
    let stream =
        from.inside(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap_or_else(|error| panic!("{to}: {error}"));
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn talk(from: &Netns, to: SocketAddr) -> UdpSocket {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = from.inside(|| UdpSocket::bind(any).and_then(|socket| socket.connect(to).map(|()| socket))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// The echo over both protocols, at the port of a vip with this host number.
fn echo(name: &str, family: Family, host: u8, rest: &str) -> String {
    let at = SocketAddr::new(family.vip(host), ECHO_PORT);
    let name = format!("{name}-{family:?}").to_lowercase();
    let one = |transport: &str| {
        format!("{transport}-{name}: {{address: '{at}/{transport}', interfaces: {INTERFACES}, {rest}}}\n")
    };
    one("tcp") + &one("udp")
}

/// What a client gets at the echo.
fn reaches(from: &Netns, to: SocketAddr) {
    let stream = connect(from, to);
    bulk(&stream, BULK_BYTES);
    assert_eq!(stream.peer_addr().unwrap(), to);
    let socket = talk(from, to);
    for count in [3, 1400, 8000] {
        datagram(&socket, count);
    }
}

#[test]
fn a_pod_that_is_its_own_endpoint() {
    within("a_pod_that_is_its_own_endpoint", LINKS, |network| {
        let pods = Pods::new(network);
        let _echo = pods.0[0].inside(Echo::start);
        let vips: String = FAMILIES
            .map(|family| {
                let rest = |mode: &str| format!("mode: {mode}, endpoints: ['{}']", Pods::at(family, 0));
                echo("nat", family, 1, &rest("nat")) + &echo("full", family, 2, &rest("full_nat"))
            })
            .concat();
        let mut vips = Vips::serve(&vips);
        for family in FAMILIES {
            for host in [1, 2] {
                reaches(&pods.0[0], SocketAddr::new(family.vip(host), ECHO_PORT));
                // From elsewhere.
                reaches(&network.client, SocketAddr::new(family.vip(host), ECHO_PORT));
            }
            // From the same bridge, where a reply of nat would not come back.
            reaches(&pods.0[1], SocketAddr::new(family.vip(2), ECHO_PORT));
        }
        let status = vips.steelyard.status();
        for vip in status["vips"].as_array().unwrap() {
            assert_eq!(vip["drops"], serde_json::json!({}), "{status}");
        }
        // Nat hides only the client that is the endpoint.
        let listener = pods.0[0].inside(|| TcpListener::bind("0.0.0.0:81")).unwrap();
        let web = format!(
            "web: {{address: '{}:81/tcp', interfaces: {INTERFACES}, endpoints: ['{}']}}\n",
            Family::V4.vip(3),
            Pods::at(Family::V4, 0)
        );
        vips.reload(&web);
        for (from, seen) in [(&pods.0[0], "10.88.0.254"), (&network.client, "10.10.10.1")] {
            let _stream = connect(from, SocketAddr::new(Family::V4.vip(3), 81));
            assert_eq!(listener.accept().unwrap().1.ip().to_string(), seen);
        }
    });
}

#[test]
#[expect(clippy::too_many_lines, reason = "one life of a vip, from its first packet to its last")]
fn an_endpoint_that_is_this_node() {
    within("an_endpoint_that_is_this_node", LINKS, |network| {
        let pods = Pods::new(network);
        let echoing = Echo::start();
        let vips: String = FAMILIES
            .map(|family| {
                let rest = |mode: &str| format!("mode: {mode}, endpoints: ['{}']", family.balancer(1));
                let every = if family == Family::V4 { "0.0.0.0" } else { "[::]" };
                let name = format!("{family:?}").to_lowercase();
                echo("nat", family, 1, &rest("nat"))
                    + &echo("full", family, 2, &rest("full_nat"))
                    + &format!(
                        "every-{name}: {{address: '{every}:30053/udp', mode: full_nat, endpoints: ['{}']}}\n",
                        SocketAddr::new(family.balancer(1), ECHO_PORT)
                    )
            })
            .concat();
        let mut vips = Vips::serve(&vips);
        let mut held = Vec::new();
        for family in FAMILIES {
            for from in [&network.client, &pods.0[0]] {
                for host in [1, 2] {
                    reaches(from, SocketAddr::new(family.vip(host), ECHO_PORT));
                }
                for address in [family.gateway(), family.balancer(2)] {
                    let socket = talk(from, SocketAddr::new(address, 30053));
                    for count in [3, 1400, 8000] {
                        datagram(&socket, count);
                    }
                }
            }
            held.push(connect(&network.client, SocketAddr::new(family.vip(1), ECHO_PORT)));
            exchange(held.last().unwrap(), "hello").unwrap();
            let name = format!("tcp-nat-{family:?}").to_lowercase();
            let traced =
                vips.ask(&["trace", "--vip", &name, "--from", &family.client().to_string(), "--interface", "client0"]);
            assert!(traced.contains("which is an address of this host"), "{traced}");
            assert!(traced.contains("on this host"), "{traced}");
            let flows = vips.ask(&["flows", "--vip", &name]);
            assert!(flows.contains("established"), "{flows}");
        }
        let status = vips.steelyard.status();
        for vip in status["vips"].as_array().unwrap() {
            assert_eq!(vip["drops"], serde_json::json!({}), "{status}");
            let name = vip["name"].as_str().unwrap();
            assert!(endpoint_figures(&status, name, "packets_from").iter().all(|count| *count > 0), "{status}");
        }
        assert!(!status["findings"].to_string().contains("here"), "{status}");

        // The endpoint sees the client itself, since the node's own replies are translated.
        let listener = TcpListener::bind("32.32.32.254:81").unwrap();
        let web = format!(
            "web: {{address: '{}:81/tcp', interfaces: {INTERFACES}, mode: full_nat, endpoints: [32.32.32.254]}}\n",
            Family::V4.vip(3)
        );
        vips.reload(&(echo("nat", Family::V4, 1, "endpoints: [32.32.32.254]") + &web));
        let _stream = connect(&network.client, SocketAddr::new(Family::V4.vip(3), 81));
        assert_eq!(listener.accept().unwrap().1.ip(), Family::V4.client());

        // It outlives the process. Without a listener, a client learns it as from the host itself.
        vips.steelyard.program.signal(Signal::KILL).unwrap();
        vips.steelyard.program.exit_within(PATIENCE).unwrap();
        exchange(&held[0], "without a process").unwrap();
        let file = vips.steelyard.file();
        vips.steelyard.start_again(&file);
        exchange(&held[0], "with the next").unwrap();
        drop(echoing);
        let socket = talk(&network.client, SocketAddr::new(Family::V4.vip(1), ECHO_PORT));
        socket.send(b"anybody?").unwrap();
        assert_eq!(socket.recv(&mut [0; 16]).unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        let to = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        let refused = network.client.inside(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        let status = vips.steelyard.status();
        assert_eq!(vip_of(&status, "tcp-nat-v4")["drops"], serde_json::json!({}), "{status}");
    });
}

#[test]
fn an_address_that_the_node_gets_and_loses() {
    within("an_address_that_the_node_gets_and_loses", LINKS, |network| {
        let _echoes = network.echoes();
        let at = SocketAddr::new(Family::V4.vip(1), ECHO_PORT);
        // Nothing has it: the endpoint is on the link to endpoint 1.
        let mut vips = Vips::serve(&echo("web", Family::V4, 1, "endpoints: [32.32.32.77]"));
        assert!(network.try_connect(at).is_none());
        network.balancer.ip("addr add 32.32.32.77/24 dev ep1").unwrap();
        let _echo = Echo::start();
        testkit::until(PATIENCE, || network.try_connect(at).map(drop)).unwrap();
        reaches(&network.client, at);
        network.balancer.ip("addr del 32.32.32.77/24 dev ep1").unwrap();
        network.endpoints[1].ip("addr add 32.32.32.77/24 dev eth0").unwrap();
        vips.steelyard.until("its packets are forwarded again", |_| {
            network.try_connect(at).is_some_and(|stream| exchange(&stream, "x").is_ok())
        });
        bulk(&network.connect(at), BULK_BYTES);
    });
}

#[test]
fn a_narrow_path_to_a_client_of_this_node() {
    within("a_narrow_path_to_a_client_of_this_node", LINKS, |network| {
        // Behind the client, which routes. Only its ICMP errors reveal the link.
        let far = Netns::new("far").unwrap();
        network.client.forward().unwrap();
        join((&network.client, "narrow"), (&far, "eth0"), 1280).unwrap();
        network.client.ip("addr add 40.40.40.254/24 dev narrow\naddr add fd00:40::fe/64 dev narrow").unwrap();
        far.ip("addr add 40.40.40.1/24 dev eth0\naddr add fd00:40::1/64 dev eth0").unwrap();
        far.ip("route add default via 40.40.40.254 advmss 1460\nroute add default via fd00:40::fe advmss 1440")
            .unwrap();
        network.balancer.ip("route add 40.40.40.0/24 via 10.10.10.1\nroute add fd00:40::/64 via fd00:10::1").unwrap();
        let _echo = Echo::start();
        let vips = FAMILIES.map(|family| echo("nat", family, 1, &format!("endpoints: ['{}']", family.balancer(1))));
        let _vips = Vips::serve(&vips.concat());
        for family in FAMILIES {
            bulk(&connect(&far, SocketAddr::new(family.vip(1), ECHO_PORT)), BULK_BYTES);
        }
    });
}

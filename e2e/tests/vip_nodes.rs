//! Two Steelyards behind a router with ECMP, which learns their routes by BGP from FRR on each node: who announces what and when, and what
//! becomes of connections when a node dies and comes back.
//!
//! ```text
//! client 10.10.10.1 ---- router ---- one link: node a 10.30.0.1, node b .2, endpoints .11, .12, .13, the router .254
//! ```
#![forbid(unsafe_code)]

mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use support::echo::{ECHO_PORT, Echo, exchange};
use support::frr::{self, Frr};
use support::network::{Vips, detach};
use support::{Scratch, Steelyard, skip};
use testkit::netns::{Netns, join};
use testkit::{PATIENCE, Signal, until};

const VIP: &str = "192.0.2.7";
const VIP6: &str = "2001:db8::7";
/// Connections that are counted.
const CONNECTIONS: usize = 200;
/// After this long, a connection that was moved has been reset, or works.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest wait for the router: longer than the hold time of BGP, and far longer than the rest takes.
const ROUTED_MAX: Duration = Duration::from_secs(40);
/// The gateways of the endpoints: the router, or the nodes.
const ROUTER: [u8; 3] = [254; 3];

/// The hosts of the link, by the last number of their addresses.
struct Network {
    client: Netns,
    router: Netns,
    nodes: [Netns; 2],
    _endpoints: [Netns; 3],
    switch: Netns,
    _echoes: Vec<Echo>,
    _frr: Frr,
}

/// A node that runs, with everything on it.
struct Node {
    _frr: Frr,
    steelyard: Option<Steelyard>,
}

fn on_link(host: u8) -> [String; 2] {
    [format!("10.30.0.{host}"), format!("fd00:30::{host}")]
}

impl Network {
    /// `gateways` has the last number of the gateway of each endpoint.
    fn new(gateways: [u8; 3]) -> Self {
        let netns = |name: &str| Netns::new(name).unwrap();
        let (client, router, switch) = (netns("client"), netns("router"), netns("switch"));
        let (nodes, endpoints) =
            (["node a", "node b"].map(netns), ["endpoint 0", "endpoint 1", "endpoint 2"].map(netns));
        switch.ip("link add lan type bridge\nlink set dev lan up").unwrap();
        router.forward().unwrap();
        for key in ["net.ipv4.fib_multipath_hash_policy", "net.ipv6.fib_multipath_hash_policy"] {
            router.sysctl(key, "1").unwrap();
        }
        // A veth passes on the hash that the sender has chosen, and the router takes it for its own. It must not change when the sender
        // repeats a segment, as it would not behind a real link.
        client.sysctl("net.core.txrehash", "0").unwrap();
        join((&router, "client0"), (&client, "eth0"), 1500).unwrap();
        router.ip("addr add 10.10.10.254/24 dev client0\naddr add fd00:10::254/64 dev client0").unwrap();
        let ways = "route add default via 10.10.10.254\nroute add default via fd00:10::254";
        client.ip(&format!("addr add 10.10.10.1/24 dev eth0\naddr add fd00:10::1/64 dev eth0\n{ways}")).unwrap();
        let hosts = [(&router, 254), (&nodes[0], 1), (&nodes[1], 2)];
        let hosts = hosts.into_iter().chain(endpoints.iter().zip(11..));
        for (host, number) in hosts {
            let port = format!("port{number}");
            join((&switch, &port), (host, "lan"), 1500).unwrap();
            switch.ip(&format!("link set {port} master lan")).unwrap();
            let [v4, v6] = on_link(number);
            host.ip(&format!("addr add {v4}/24 dev lan\naddr add {v6}/64 dev lan")).unwrap();
            if number != 254 {
                let by = number.checked_sub(11).map_or(254, |endpoint| gateways[usize::from(endpoint)]);
                host.ip(&format!("route add default via 10.30.0.{by}\nroute add default via fd00:30::254")).unwrap();
            }
        }
        for node in &nodes {
            node.forward().unwrap();
            // Redirects would tell endpoints to go around the node.
            node.sysctl("net.ipv4.conf.all.send_redirects", "0").unwrap();
            node.sysctl("net.ipv4.conf.lan.send_redirects", "0").unwrap();
        }
        // With dsr, endpoints have the address themselves.
        for endpoint in &endpoints {
            endpoint.sysctl("net.ipv4.conf.all.arp_ignore", "1").unwrap();
            endpoint.ip(&format!("addr add {VIP}/32 dev lo\naddr add {VIP6}/128 dev lo")).unwrap();
        }
        let echoes = endpoints.iter().map(|endpoint| endpoint.inside(Echo::start)).collect();
        let frr = Frr::start(&router, &bgp(254, &[(1, 65001), (2, 65001)], ""));
        Self { client, router, nodes, _endpoints: endpoints, switch, _echoes: echoes, _frr: frr }
    }

    /// The nodes to which the router sends packets for the address.
    fn next_hops(&self) -> Vec<usize> {
        let said = self.router.run(&["ip", "route", "show", VIP]).unwrap();
        (0..2).filter(|node| said.contains(&format!("via {} ", on_link(*node as u8 + 1)[0]))).collect()
    }

    #[track_caller]
    fn until_next_hops(&self, nodes: &[usize]) {
        until(ROUTED_MAX, || (self.next_hops() == nodes).then_some(()))
            .unwrap_or_else(|| panic!("next hops {:?} and not {nodes:?}", self.next_hops()));
    }

    fn start_frr(&self, node: usize) -> Frr {
        let redistribute = "redistribute kernel";
        Frr::start(&self.nodes[node], &bgp(node as u8 + 1, &[(254, 65000)], redistribute))
    }

    /// Starts a node with these endpoints.
    fn start(&self, node: usize, endpoints: &[u8], rest: &str) -> Node {
        let frr = self.start_frr(node);
        let steelyard = self.nodes[node].inside(|| Steelyard::serve(&config(endpoints, rest), 1));
        Node { _frr: frr, steelyard: Some(steelyard) }
    }

    /// The host dies: nothing of it answers, and it sends nothing any more.
    fn kill(&self, node: usize, running: &mut Node) {
        self.switch.ip(&format!("link set dev port{} down", node + 1)).unwrap();
        let mut steelyard = running.steelyard.take().unwrap();
        steelyard.program.signal(Signal::KILL).unwrap();
        steelyard.program.exit_within(PATIENCE).unwrap();
        // A host that starts has neither programs nor routes.
        self.nodes[node].inside(|| drop(detach()));
    }

    fn plug_in(&self, node: usize) {
        self.switch.ip(&format!("link set dev port{} up", node + 1)).unwrap();
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let to = SocketAddr::new(VIP.parse().unwrap(), ECHO_PORT);
        let stream = self.client.inside(|| TcpStream::connect_timeout(&to, PATIENCE))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_nodelay(true)?;
        exchange(&stream, "hello")?;
        Ok(stream)
    }

    /// New connections, all of which must succeed.
    #[track_caller]
    fn connect_all(&self) -> Vec<TcpStream> {
        (0..CONNECTIONS).map(|_| self.connect().unwrap()).collect()
    }
}

/// The configuration of bgpd of a host, with the hosts that it speaks to and their numbers.
fn bgp(host: u8, others: &[(u8, u32)], redistribute: &str) -> String {
    let own = if host == 254 { 65000 } else { 65001 };
    let [v4, _] = on_link(host);
    let mut text = format!("router bgp {own}\n bgp router-id {v4}\n no bgp ebgp-requires-policy\n");
    // A busy host may be late with some messages.
    text += " timers bgp 1 8\n";
    let mut families = [String::new(), String::new()];
    for (other, number) in others {
        for (family, address) in families.iter_mut().zip(on_link(*other)) {
            text += &format!(" neighbor {address} remote-as {number}\n neighbor {address} timers connect 1\n");
            text += &format!(" neighbor {address} advertisement-interval 0\n");
            *family += &format!("  neighbor {address} activate\n");
        }
    }
    // Only the addresses of vips leave a node, whatever other routes its kernel has.
    let map = " route-map vips";
    let redistribute = if redistribute.is_empty() { String::new() } else { format!("  {redistribute}{map}\n") };
    for (name, activate) in ["ipv4", "ipv6"].iter().zip(families) {
        text += &format!(" address-family {name} unicast\n{activate}{redistribute} exit-address-family\n");
    }
    text + "ip prefix-list vips permit 192.0.2.0/24 ge 32\nipv6 prefix-list vips permit 2001:db8::/64 ge 128\n\
            route-map vips permit 10\n match ip address prefix-list vips\n\
            route-map vips permit 20\n match ipv6 address prefix-list vips\n"
}

const CHECK: &str = "health_check: {tcp: true, interval: 200ms, timeout: 1s, unhealthy_after: 2, healthy_after: 1}";

fn config(endpoints: &[u8], rest: &str) -> String {
    let six: Vec<String> = endpoints.iter().map(|host| format!("'[{}]:{ECHO_PORT}'", on_link(*host)[1])).collect();
    let endpoints: Vec<String> = endpoints.iter().map(|host| format!("'{}:{ECHO_PORT}'", on_link(*host)[0])).collect();
    let common = format!("interfaces: lan, {CHECK}");
    // Endpoints of the other family are served in a mode that needs nothing of them.
    format!(
        "admin: {{admin}}\nkernel_plane: {{announce: route, announce_after: 1s, flows_max: 4096}}\nvips:\n  echo: {{address: \
         '{VIP}:{ECHO_PORT}/tcp', endpoints: [{}], {common}, {rest}}}\n  six: {{address: '[{VIP6}]:{ECHO_PORT}/tcp', endpoints: [{}], \
         {common}, mode: full_nat}}\n",
        endpoints.join(", "),
        six.join(", ")
    )
}

/// How many connections still work.
fn working(streams: Vec<TcpStream>) -> Vec<TcpStream> {
    streams.into_iter().filter(|stream| exchange(stream, "still here").is_ok()).collect()
}

/// The number of connections that a node has forwarded, from its counters.
fn flows(status: &Value) -> u64 {
    let vips = status["vips"].as_array().unwrap();
    vips.iter().find(|vip| vip["name"] == "echo").and_then(|vip| vip["flows"].as_u64()).unwrap()
}

fn announcement<'s>(status: &'s Value, vip: &str) -> &'s str {
    let vips = status["vips"].as_array().unwrap();
    vips.iter().find(|entry| entry["name"] == vip).unwrap()["announcement"]["state"].as_str().unwrap()
}

fn is_possible(name: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip(name, "the kernel plane is root's");
        return false;
    }
    if !frr::is_installed() {
        skip(name, "FRR is not installed");
        return false;
    }
    true
}

/// The steelyard of a node; requests to it must come from there.
fn at<T: Send>(network: &Network, node: usize, running: &mut Node, work: impl FnOnce(&mut Steelyard) -> T + Send) -> T {
    let steelyard = running.steelyard.as_mut().unwrap();
    network.nodes[node].inside(|| work(steelyard))
}

fn end(network: &Network, nodes: [Node; 2]) {
    for (netns, mut node) in network.nodes.iter().zip(nodes) {
        netns.inside(|| drop(node.steelyard.take().map(|steelyard| Vips { steelyard })));
    }
}

/// What becomes of connections.
#[derive(Debug, PartialEq, Eq)]
struct Count {
    /// On the node that dies.
    on_it: usize,
    broken_by_death: usize,
    /// Of the `there` that were there when it came back, half of which were made while it was dead.
    broken_by_return: usize,
    there: usize,
}

/// Counts what happens to connections when node a dies and when it comes back.
fn die_and_return(name: &str, rest: &str, gateways: [u8; 3], endpoints: [&[u8]; 2]) -> Option<Count> {
    if !is_possible(name) {
        return None;
    }
    let network = Network::new(gateways);
    let mut a = network.start(0, endpoints[0], rest);
    let mut b = network.start(1, endpoints[1], rest);
    network.until_next_hops(&[0, 1]);
    let streams = network.connect_all();
    let on_it = at(&network, 0, &mut a, |steelyard| flows(&steelyard.status())) as usize;
    let on_other = at(&network, 1, &mut b, |steelyard| flows(&steelyard.status())) as usize;
    assert_eq!(on_it + on_other, CONNECTIONS, "the router uses both");
    assert!(on_it > CONNECTIONS / 4 && on_other > CONNECTIONS / 4, "{on_it} and {on_other}");
    network.kill(0, &mut a);
    drop(a);
    network.until_next_hops(&[1]);
    // New ones all succeed.
    let meanwhile = network.connect_all();
    let mut streams = working(streams);
    let broken_by_death = CONNECTIONS - streams.len();
    streams.extend(meanwhile);
    network.plug_in(0);
    let a = network.start(0, endpoints[0], rest);
    network.until_next_hops(&[0, 1]);
    drop(network.connect_all());
    let there = streams.len();
    let broken_by_return = there - working(streams).len();
    let count = Count { on_it, broken_by_death, broken_by_return, there };
    _ = writeln!(std::io::stderr(), "{name}: {rest}: {count:?} of {CONNECTIONS}");
    end(&network, [a, b]);
    Some(count)
}

const ALL: &[u8] = &[11, 12, 13];

#[test]
fn full_nat_loses_what_moves() {
    let rest = "mode: full_nat, balance: maglev";
    let Some(count) = die_and_return("full_nat_loses_what_moves", rest, ROUTER, [ALL, ALL]) else { return };
    // An endpoint knows a connection by the address of the node that made it. The connections of the survivor go on.
    assert_eq!(count.broken_by_death, count.on_it);
    assert!(count.broken_by_return > 0, "{count:?}");
}

#[test]
fn dsr_with_maglev_loses_nothing() {
    let rest = "mode: dsr, balance: maglev";
    let Some(count) = die_and_return("dsr_with_maglev_loses_nothing", rest, ROUTER, [ALL, ALL]) else { return };
    assert_eq!((count.broken_by_death, count.broken_by_return), (0, 0));
}

#[test]
fn dsr_without_a_hash_loses_what_moves() {
    let rest = "mode: dsr, balance: round_robin";
    let Some(count) = die_and_return("dsr_without_a_hash_loses_what_moves", rest, ROUTER, [ALL, ALL]) else { return };
    assert_eq!(count.broken_by_death, count.on_it);
    assert!(count.broken_by_return > 0, "{count:?}");
}

#[test]
fn nat_with_endpoints_of_its_own_loses_what_moves() {
    let name = "nat_with_endpoints_of_its_own_loses_what_moves";
    let rest = "mode: nat, balance: maglev";
    let Some(count) = die_and_return(name, rest, [1, 2, 2], [&[11], &[12, 13]]) else { return };
    assert_eq!(count.broken_by_death, count.on_it);
    assert!(count.broken_by_return > 0, "{count:?}");
}

#[test]
fn nat_with_shared_endpoints_serves_through_one_node_only() {
    let name = "nat_with_shared_endpoints_serves_through_one_node_only";
    if !is_possible(name) {
        return;
    }
    // All endpoints answer by node a.
    let network = Network::new([1, 1, 1]);
    let [mut a, mut b] = [0, 1].map(|node| network.start(node, ALL, "mode: nat, balance: maglev"));
    network.until_next_hops(&[0, 1]);
    let to = SocketAddr::new(VIP.parse().unwrap(), ECHO_PORT);
    let tries = 48;
    let opened = std::thread::scope(|scope| {
        let one = || network.client.inside(|| TcpStream::connect_timeout(&to, Duration::from_millis(2500)).is_ok());
        let threads: Vec<_> = (0..tries).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|opened| *opened).count()
    });
    let [on_a, on_b] = [(0, &mut a), (1, &mut b)].map(|(node, running)| {
        at(&network, node, running, |steelyard| {
            let status = steelyard.status();
            let vips = status["vips"].as_array().unwrap();
            vips.iter().find(|vip| vip["name"] == "echo").and_then(|vip| vip["flows_total"].as_u64()).unwrap() as usize
        })
    });
    _ = writeln!(std::io::stderr(), "{name}: {opened} of {tries} were opened, {on_a} through a, {on_b} through b");
    assert_eq!((opened, on_a + on_b), (on_a, tries));
    assert!(on_b > 0);
    end(&network, [a, b]);
}

#[test]
fn health_drives_the_announcement() {
    let name = "health_drives_the_announcement";
    if !is_possible(name) {
        return;
    }
    let network = Network::new(ROUTER);
    let rest = "mode: full_nat";
    let mut a = network.start(0, ALL, rest);
    let b = network.start(1, ALL, rest);
    network.until_next_hops(&[0, 1]);
    // IPv6 too.
    let six = || network.router.run(&["ip", "-6", "route", "show", VIP6]).unwrap().matches("via ").count();
    until(PATIENCE, || (six() == 2).then_some(())).unwrap_or_else(|| panic!("{} next hops for {VIP6}", six()));
    // Other routes of the kernel stay on the node.
    network.nodes[0].ip("route add unreachable 192.0.3.1").unwrap();
    let said = network.nodes[0].run(&["ip", "route", "show", "proto", "83"]).unwrap();
    assert_eq!(said.trim(), format!("unreachable {VIP} metric 1024"));
    let said = at(&network, 0, &mut a, |steelyard| steelyard.ask(&["vip", "list"]).stdout);
    assert!(said.contains("announced   by route"), "{said}");

    // Node a alone loses its way to the endpoints.
    let blackholes = |verb: &str| -> String {
        ALL.iter().map(|host| format!("route {verb} blackhole {}\n", on_link(*host)[0])).collect()
    };
    network.nodes[0].ip(&blackholes("add")).unwrap();
    network.until_next_hops(&[1]);
    let withdrawn = at(&network, 0, &mut a, |steelyard| {
        let status = steelyard.until("withdrawn", |status| announcement(status, "echo") == "withdrawn");
        assert_eq!(announcement(&status, "six"), "announced");
        assert_eq!(steelyard.metric("steelyard_vip_announced", &[("vip", "echo")]), 0.0);
        status
    });
    let findings = withdrawn["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["kind"] == "vip_withdrawn"), "{findings:?}");
    drop(network.connect_all());
    network.nodes[0].ip(&blackholes("del")).unwrap();
    network.until_next_hops(&[0, 1]);
    drop(network.connect_all());
    at(&network, 0, &mut a, |steelyard| {
        assert_eq!(steelyard.metric("steelyard_vip_announcement_changes_total", &[("vip", "echo")]), 3.0);
        // A route that something else removes comes back.
        network.nodes[0].ip(&format!("route del unreachable {VIP} metric 1024")).unwrap();
        steelyard.program.says("was gone: added again").unwrap();
    });
    network.until_next_hops(&[0, 1]);

    next_processes_change_nothing(&network, &mut a);
    end(&network, [a, b]);
}

/// After a crash and an upgrade of node a, the next process keeps the route as it is.
fn next_processes_change_nothing(network: &Network, a: &mut Node) {
    let host = &network.nodes[0];
    let folder = Scratch::new();
    let log = folder.write("routes", "");
    let monitor = format!("exec stdbuf -oL ip monitor route > {log}");
    let monitor = host.spawn("ip", std::process::Command::new("sh").args(["-c", &monitor])).unwrap();
    let seen = |route: &str| {
        let noticed = || {
            host.ip(&format!("route add unreachable {route}\nroute del unreachable {route}")).unwrap();
            std::fs::read_to_string(&log).ok().filter(|seen| seen.contains(route))
        };
        until(PATIENCE, noticed).unwrap_or_else(|| panic!("{route} was not noticed"))
    };
    seen("192.0.3.2");
    at(network, 0, a, |steelyard| {
        let file = steelyard.file();
        steelyard.program.signal(Signal::KILL).unwrap();
        steelyard.program.exit_within(PATIENCE).unwrap();
        steelyard.start_again(&file);
        steelyard.until("healthy", |status| {
            let vips = status["vips"].as_array().unwrap();
            vips.iter()
                .all(|vip| vip["endpoints"][0]["state"] == "healthy" && vip["announcement"]["state"] == "announced")
        });
        // A successor takes over.
        steelyard.program.signal(Signal::USR2).unwrap();
        steelyard.program.says("draining").unwrap();
        let admin = steelyard.admin;
        let pid = u64::from(steelyard.program.pid());
        let successor = until(PATIENCE, || {
            support::status(admin).filter(|status| status["pid"] != pid && announcement(status, "echo") == "announced")
        })
        .expect("a successor that announces");
        let successor = successor["pid"].as_u64().unwrap().to_string();
        host.run(&["kill", "-KILL", &successor]).unwrap();
        until(PATIENCE, || support::status(admin).is_none().then_some(())).expect("the end of the successor");
    });
    let seen = seen("192.0.3.3");
    assert!(!seen.contains(VIP), "{seen}");
    drop(monitor);
}

#[test]
fn a_process_that_ends_withdraws_first() {
    let name = "a_process_that_ends_withdraws_first";
    if !is_possible(name) {
        return;
    }
    let network = Network::new(ROUTER);
    let rest = "mode: dsr, balance: maglev";
    let frr = network.start_frr(0);
    // A route of an earlier process to an address that is not wanted any more, and one of another program.
    network.nodes[0]
        .ip("route add unreachable 192.0.2.66 proto 83 metric 1024\nroute add unreachable 192.0.2.67 metric 9")
        .unwrap();
    let with_delay = |rest: &str| config(ALL, rest).replacen("vips:", "drain_delay: 10m\nvips:", 1);
    let steelyard = network.nodes[0].inside(|| Steelyard::serve(&with_delay(rest), 1));
    let mut a = Node { _frr: frr, steelyard: Some(steelyard) };
    let b = network.start(1, ALL, rest);
    network.until_next_hops(&[0, 1]);
    let left = network.nodes[0].run(&["ip", "route", "show", "root", "192.0.2.64/29"]).unwrap();
    assert_eq!(left.trim(), "unreachable 192.0.2.67 metric 9");
    let streams = network.connect_all();
    at(&network, 0, &mut a, |steelyard| steelyard.program.signal(Signal::TERM).unwrap());
    network.until_next_hops(&[1]);
    // It still forwards what comes, and says why it announces nothing.
    at(&network, 0, &mut a, |steelyard| {
        let status = steelyard.until("ending", |status| status["ending"] == true);
        assert_eq!(announcement(&status, "echo"), "withdrawn");
        let findings = status["findings"].as_array().unwrap();
        assert!(!findings.iter().any(|finding| finding["severity"] == "wrong"), "{findings:?}");
    });
    assert_eq!(working(streams).len(), CONNECTIONS);
    drop(network.connect_all());
    end(&network, [a, b]);
}

#[test]
fn detaching_withdraws() {
    let name = "detaching_withdraws";
    if !is_possible(name) {
        return;
    }
    let network = Network::new(ROUTER);
    let mut a = network.start(0, ALL, "mode: full_nat");
    network.until_next_hops(&[0]);
    at(&network, 0, &mut a, |steelyard| {
        steelyard.program.signal(Signal::KILL).unwrap();
        steelyard.program.exit_within(PATIENCE).unwrap();
        assert_eq!(detach().exit, testkit::Exit::Code(0));
    });
    network.until_next_hops(&[]);
    assert_eq!(network.nodes[0].run(&["ip", "route", "show", "proto", "83"]).unwrap(), "");
    drop(a);
}

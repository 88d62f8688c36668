//! Every Service on a node, in the place of kube-proxy: pods and processes of the node at the socket, others by packets.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use testkit::{Exit, PATIENCE, Signal, until};

use crate::edge::{Edge, within_network};
use crate::support::at_sockets::sees_the_vip;
use crate::support::cgroup::Cgroup;
use crate::support::echo::{ECHO_PORT, datagram, exchange};
use crate::support::network::{Family, Network, detach};
use crate::support::{Steelyard, skip};

/// The node of the test.
const NODE: &str = "node-a";

/// The controller of a node. What it pinned is gone when this is.
struct Node {
    steelyard: Steelyard,
}

impl Node {
    fn start(edge: &Edge, cgroup: &Cgroup, more: &[&str]) -> Self {
        let listen = Family::V4.balancer(0).to_string();
        let node = ["--kube-proxy-replacement", "--node-name", NODE, "--node-zone", "zone-a"];
        let arguments = [&["--listen-address", &listen, "--socket-cgroup", cgroup.path()], &node[..], more].concat();
        Self { steelyard: edge.controller_with("one", &arguments) }
    }

    /// Waits until the vip that serves this at the socket, or for packets, has these endpoints and no others.
    #[track_caller]
    fn until_endpoints(&self, vip: SocketAddr, mode: &str, expect: &[usize]) {
        let expect: Vec<String> = expect.iter().map(|index| endpoint(*index).to_string()).collect();
        let is_it = |found: &&Value| found["address"] == format!("{vip}/tcp") && found["mode"] == mode;
        let are_there = || {
            let status = self.steelyard.status();
            let found = status["vips"].as_array()?.iter().find(is_it)?;
            let endpoints = found["endpoints"].as_array()?.iter().filter_map(|endpoint| endpoint["address"].as_str());
            endpoints.eq(expect.iter().map(String::as_str)).then_some(())
        };
        let vips = || self.steelyard.status()["vips"].clone();
        assert!(until(PATIENCE, are_there).is_some(), "{vip}: not {expect:?}: {:#}", vips());
    }

    /// How often the vip with this address and mode refused something for this reason.
    fn drops(&self, vip: SocketAddr, mode: &str, reason: &str) -> u64 {
        let status = self.steelyard.status();
        let mut vips = status["vips"].as_array().into_iter().flatten();
        let found = vips.find(|found| found["address"] == format!("{vip}/tcp") && found["mode"] == mode);
        found.and_then(|vip| vip["drops"][reason].as_u64()).unwrap_or(0)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        _ = self.steelyard.program.signal(Signal::KILL);
        _ = self.steelyard.program.exit_within(PATIENCE);
        let detached = detach();
        if !std::thread::panicking() {
            assert_eq!(detached.exit, Exit::Code(0), "{}{}", detached.stdout, detached.stderr);
        }
    }
}

fn endpoint(index: usize) -> SocketAddr {
    SocketAddr::new(Family::V4.endpoint(index), ECHO_PORT)
}

fn with_node(name: &str, test: impl FnOnce(&Edge, &Network, &Cgroup) + Send) {
    within_network(name, |edge, network| match Cgroup::new() {
        Some(cgroup) => test(edge, network, &cgroup),
        None => skip(name, "no hierarchy of control groups of version 2 is mounted"),
    });
}

/// A Service of these ports of both protocols, with `more` of its fields.
fn service(edge: &Edge, name: &str, more: &str) -> Value {
    edge.cluster.apply(&format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}}}, spec: {{ports: [{{name: tcp, port: 80}}, \
         {{name: udp, port: 80, protocol: UDP}}], {more}}}}}"
    ));
    edge.cluster.get("Service", name).unwrap()
}

/// Its endpoints: each with its place in the network, its node and its hints.
fn endpoints(edge: &Edge, name: &str, endpoints: &[(usize, &str, &str)]) {
    let one = |(index, node, hints): &(usize, &str, &str)| {
        format!("{{addresses: ['{}'], nodeName: {node}, hints: {hints}}}", Family::V4.endpoint(*index))
    };
    let list: Vec<String> = endpoints.iter().map(one).collect();
    edge.cluster.apply(&format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-a, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: tcp, port: {ECHO_PORT}}}, {{name: udp, port: {ECHO_PORT}, protocol: UDP}}]
endpoints: [{}]
",
        list.join(", ")
    ));
}

fn cluster_ip(service: &Value) -> SocketAddr {
    let address: IpAddr = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    SocketAddr::new(address, 80)
}

fn node_port(service: &Value) -> u16 {
    u16::try_from(service["spec"]["ports"][0]["nodePort"].as_u64().unwrap()).unwrap()
}

fn every(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], port))
}

#[test]
fn cluster_ips_and_node_ports() {
    with_node("cluster_ips_and_node_ports", |edge, network, cgroup| {
        let _echoes = network.echoes();
        let made = service(edge, "web", "type: NodePort, externalIPs: ['198.51.100.7']");
        let (web, port) = (cluster_ip(&made), node_port(&made));
        endpoints(edge, "web", &[(0, NODE, "{}"), (1, "node-b", "{}")]);
        let node = Node::start(edge, cgroup, &[]);
        node.until_endpoints(web, "socket", &[0, 1]);
        let external = SocketAddr::from(([198, 51, 100, 7], 80));
        let at_node = [Family::V4.gateway(), Family::V4.balancer(2)].map(|address| SocketAddr::new(address, port));
        // Processes of the node, and of a pod.
        for where_from in [&network.balancer, &network.client] {
            for to in [web, external, at_node[0], at_node[1]] {
                let mut client = cgroup.client(where_from, "tcp", to, 4);
                sees_the_vip(&client.report(), &format!("{} {}", to.ip(), to.port()), true, 4);
            }
            for kind in ["udp", "udp-connected"] {
                let mut client = cgroup.client(where_from, kind, web, 4);
                sees_the_vip(&client.report(), &format!("{} 80", web.ip()), kind != "udp", 4);
            }
        }
        // Others.
        network.balancer.ip("route add 198.51.100.7 dev lo").unwrap();
        for to in [at_node[0], at_node[1], external] {
            exchange(&network.connect(to), "by packets").unwrap();
        }
        let udp = u16::try_from(made["spec"]["ports"][1]["nodePort"].as_u64().unwrap()).unwrap();
        datagram(&network.talk(SocketAddr::new(at_node[0].ip(), udp)), 3);
        // A pod that is an endpoint reaches itself.
        for _ in 0..4 {
            let mut client = cgroup.client(&network.endpoints[0], "tcp", web, 4);
            sees_the_vip(&client.report(), &format!("{} 80", web.ip()), true, 4);
        }
        // A packet to a cluster IP is left alone.
        let traced = node.steelyard.ask(&["trace", "--vip", &format!("{web}/tcp"), "--from", "10.10.10.1"]);
        assert!(traced.stdout.contains("has mode socket"), "{}", traced.stdout);

        // Endpoints come and go, and so do Services.
        endpoints(edge, "web", &[(2, "node-b", "{}")]);
        node.until_endpoints(web, "socket", &[2]);
        node.until_endpoints(every(port), "full_nat", &[2]);
        exchange(&network.connect(at_node[0]), "to the other").unwrap();
        edge.cluster.delete("Service", "web");
        let gone = || {
            node.steelyard.status()["vips"]
                .as_array()
                .is_none_or(|vips| vips.iter().all(|vip| vip["address"] != format!("{web}/tcp")))
                .then_some(())
        };
        assert!(until(PATIENCE, gone).is_some(), "{:#}", node.steelyard.status()["vips"]);
        let mut client = cgroup.client(&network.balancer, "tcp", web, 1);
        assert_eq!(client.report().errors.len(), 1);
    });
}

#[test]
fn cluster_ips_by_packets() {
    with_node("cluster_ips_by_packets", |edge, network, cgroup| {
        let _echoes = network.echoes();
        let web = cluster_ip(&service(edge, "web", "type: ClusterIP"));
        endpoints(edge, "web", &[(0, NODE, "{}"), (1, "node-b", "{}")]);
        let node = Node::start(edge, cgroup, &["--cluster-ip-packets", "--vip-interface", "client0,ep0,ep1,ep2"]);
        node.until_endpoints(web, "full_nat", &[0, 1]);
        // Clients in no control group of the node: elsewhere, and a pod that is an endpoint.
        let flows = |count: usize| (0..count).map(|_| network.connect(web)).collect::<Vec<_>>();
        for stream in flows(8) {
            exchange(&stream, "by packets").unwrap();
        }
        datagram(&network.talk(web), 3);
        for _ in 0..8 {
            let stream = network.endpoints[0].inside(|| std::net::TcpStream::connect_timeout(&web, PATIENCE)).unwrap();
            exchange(&stream, "to itself or the other").unwrap();
        }
        let traced = node.steelyard.ask(&[
            "trace",
            "--vip",
            &format!("{web}/tcp"),
            "--from",
            "10.10.10.1",
            "--interface",
            "client0",
        ]);
        assert!(traced.stdout.contains("forwarded to"), "{}", traced.stdout);
        // Processes in the group need no packets to be translated.
        let mut client = cgroup.client(&network.client, "tcp", web, 4);
        sees_the_vip(&client.report(), &format!("{} 80", web.ip()), true, 4);
        // An endpoint in the network of the node: an API server, or a name server.
        let _here = crate::support::echo::Echo::start();
        edge.cluster.apply(&format!(
            "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-a, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: tcp, port: {ECHO_PORT}}}, {{name: udp, port: {ECHO_PORT}, protocol: UDP}}]
endpoints: [{{addresses: ['{}'], nodeName: {NODE}}}]
",
            Family::V4.balancer(2)
        ));
        let status = || node.steelyard.status();
        let has = || status()["vips"].to_string().contains("33.33.33.254:7").then_some(());
        assert!(until(PATIENCE, has).is_some(), "{:#}", status());
        exchange(&network.connect(web), "to the node itself").unwrap();
        datagram(&network.talk(web), 3);
    });
}

#[test]
fn policies_and_hints() {
    with_node("policies_and_hints", |edge, network, cgroup| {
        let _echoes = network.echoes();
        let made =
            service(edge, "web", "type: LoadBalancer, externalTrafficPolicy: Local, internalTrafficPolicy: Local");
        let (web, port) = (cluster_ip(&made), node_port(&made));
        let health = made["spec"]["healthCheckNodePort"].as_u64().unwrap();
        endpoints(edge, "web", &[(0, NODE, "{}"), (1, "node-b", "{}")]);
        let node = Node::start(edge, cgroup, &[]);
        node.until_endpoints(web, "socket", &[0]);
        node.until_endpoints(every(port), "nat", &[0]);
        // Clients of the node's own get all endpoints there.
        node.until_endpoints(every(port), "socket", &[0, 1]);
        let at_node = SocketAddr::new(Family::V4.gateway(), port);
        let mut client = cgroup.client(&network.client, "tcp", web, 4);
        sees_the_vip(&client.report(), &format!("{} 80", web.ip()), true, 4);
        exchange(&network.connect(at_node), "to the one here").unwrap();
        let ask = |expect: &str| {
            let url = format!("http://{}:{health}/", Family::V4.gateway());
            let words = ["curl", "-s", "--max-time", "30", "-w", " %{http_code} %{content_type}", &url];
            let answered = || network.client.run(&words).ok().filter(|said| said.ends_with(expect));
            until(PATIENCE, answered).unwrap_or_else(|| panic!("not {expect}: {:?}", network.client.run(&words)))
        };
        let said = ask(" 200 application/json");
        let said: Value =
            serde_json::from_str(said.split("} ").next().map(|body| format!("{body}}}")).unwrap().as_str()).unwrap();
        let expect = json!({"service": {"namespace": edge.name, "name": "web"}, "localEndpoints": 1, "serviceProxyHealthy": true});
        assert_eq!(said, expect);

        // None is here.
        endpoints(edge, "web", &[(1, "node-b", "{}")]);
        node.until_endpoints(web, "socket", &[]);
        ask(" 503 application/json");
        let mut client = cgroup.client(&network.balancer, "tcp", web, 3);
        assert_eq!(client.report().errors, ["ECONNREFUSED"; 3]);
        assert_eq!(node.drops(web, "socket", "no_local_endpoint"), 3);
        assert!(network.try_connect(at_node).is_none());
        assert!(node.drops(every(port), "nat", "no_local_endpoint") > 0);
        for (from, vip) in [("local", format!("{web}/tcp")), ("10.10.10.1", format!("{at_node}/tcp"))] {
            let traced = node.steelyard.ask(&["trace", "--vip", &vip, "--from", from]);
            assert!(traced.stdout.contains("dropped: no_local_endpoint"), "{}", traced.stdout);
        }

        // Hints, for another Service.
        let near = cluster_ip(&service(edge, "near", "trafficDistribution: PreferSameNode"));
        let (here, there) = (
            "{forNodes: [{name: node-a}], forZones: [{name: zone-a}]}",
            "{forNodes: [{name: node-b}], forZones: [{name: zone-b}]}",
        );
        endpoints(edge, "near", &[(0, NODE, here), (1, "node-b", there)]);
        node.until_endpoints(near, "socket", &[0]);
        let zone = "{forZones: [{name: zone-a}]}";
        endpoints(edge, "near", &[(0, NODE, "{forZones: [{name: zone-b}]}"), (1, "node-b", zone), (2, "node-b", zone)]);
        node.until_endpoints(near, "socket", &[1, 2]);
        endpoints(edge, "near", &[(0, NODE, "{}"), (1, "node-b", zone)]);
        node.until_endpoints(near, "socket", &[0, 1]);
    });
}

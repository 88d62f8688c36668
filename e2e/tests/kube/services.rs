//! Services of the type LoadBalancer, and routes for UDP: what the kernel plane serves of a cluster.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::{Exit, PATIENCE, Signal, until};

use crate::edge::{Edge, api_server, within_network};
use crate::harness::{ADDRESS, Link, PORT, Relay};
use crate::support::echo::{ECHO_PORT, datagram};
use crate::support::network::{Family, detach};
use crate::support::{Origin, Steelyard};

/// Where packets of vips arrive, and the replies.
const INTERFACES: &str = "client0,ep0,ep1,ep2";

/// A controller with a kernel plane. What it pinned is gone when this is.
struct Plane {
    steelyard: Steelyard,
}

impl Plane {
    fn start(edge: &Edge) -> Self {
        Self::start_with(edge, &[])
    }

    fn start_with(edge: &Edge, more: &[&str]) -> Self {
        let gateway = Family::V4.balancer(0).to_string();
        let arguments =
            ["--listen-address", &gateway, "--address-pool", "20.20.20.10-20.20.20.11", "--vip-interface", INTERFACES];
        Self { steelyard: edge.controller_with("one", &[&arguments, more].concat()) }
    }

    /// Waits until a vip has these endpoints and no others.
    #[track_caller]
    fn until_endpoints(&self, vip: SocketAddr, expect: &[SocketAddr]) {
        let is_it = |found: &&Value| found["address"] == format!("{vip}/tcp");
        let are_there = || {
            let status = self.steelyard.status();
            let found = status["vips"].as_array()?.iter().find(is_it)?;
            let endpoints = found["endpoints"].as_array()?.iter().filter_map(|endpoint| endpoint["address"].as_str());
            endpoints.eq(expect.iter().map(ToString::to_string)).then_some(())
        };
        let vips = || self.steelyard.status()["vips"].clone();
        assert!(until(PATIENCE, are_there).is_some(), "{vip}: not {expect:?}: {:#}", vips());
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        // First the process, then what it left in place on purpose.
        _ = self.steelyard.program.signal(Signal::KILL);
        _ = self.steelyard.program.exit_within(PATIENCE);
        let detached = detach();
        if !std::thread::panicking() {
            assert_eq!(detached.exit, Exit::Code(0), "{}{}", detached.stdout, detached.stderr);
        }
    }
}

/// A Service of ours with these endpoints of the network, at this port of theirs.
fn service(edge: &Edge, name: &str, more: &str, port: u16, endpoints: &[usize]) {
    edge.cluster.apply(&format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec:
  type: LoadBalancer
  loadBalancerClass: steelyard.io/kernel-plane
  allocateLoadBalancerNodePorts: false
  ports: [{{name: main, port: 80}}]
  {more}
"
    ));
    let endpoints: Vec<SocketAddr> =
        endpoints.iter().map(|index| SocketAddr::new(Family::V4.endpoint(*index), port)).collect();
    edge.endpoints(name, &endpoints);
}

/// The address that a Service has been given.
fn address(edge: &Edge, name: &str) -> SocketAddr {
    let point = |service: &Value| service["status"]["loadBalancer"]["ingress"][0].clone();
    let service = edge.cluster.until("given an address", "Service", name, |service| point(service).is_object());
    assert_eq!(point(&service)["ipMode"], "VIP");
    SocketAddr::new(point(&service)["ip"].as_str().unwrap().parse().unwrap(), 80)
}

#[test]
fn a_load_balancer_has_an_address_and_a_vip() {
    within_network("a_load_balancer_has_an_address_and_a_vip", |edge, network| {
        let origins = network.origins();
        let plane = Plane::start(edge);
        service(edge, "web", "", 80, &[0, 1]);
        let web = address(edge, "web");
        assert_eq!(web.ip(), Family::V4.vip(10));
        plane.until_endpoints(web, &[endpoint(0, 80), endpoint(1, 80)]);
        network.get(web, 8, 800);
        let first_two = origins[0].requests() + origins[1].requests();
        assert_eq!((first_two, origins[2].requests()), (800, 0));

        edge.endpoints("web", &[endpoint(2, 80)]);
        plane.until_endpoints(web, &[endpoint(2, 80)]);
        network.get(web, 8, 800);
        assert_eq!((origins[0].requests() + origins[1].requests(), origins[2].requests()), (first_two, 800));

        // One more has an address, and then the pool has none.
        service(edge, "second", "", 80, &[1]);
        assert_eq!(address(edge, "second").ip(), Family::V4.vip(11));
        service(edge, "third", "", 80, &[1]);
        let why = edge.cluster.until_event("Service", "third", "AddressNotAssigned");
        assert!(why.contains("no address is free"), "{why}");
        // One that is deleted gives its address back.
        edge.cluster.delete("Service", "web");
        assert_eq!(address(edge, "third").ip(), Family::V4.vip(10));

        // Of no class: not ours.
        let theirs = "{apiVersion: v1, kind: Service, metadata: {name: theirs}, spec: {type: LoadBalancer, ports: [{port: 80}]}}";
        edge.cluster.apply(theirs);
        edge.cluster.delete("Service", "second");
        service(edge, "ours", "externalTrafficPolicy: Local", 80, &[1]);
        edge.cluster.until_event("Service", "ours", "UnknownNode");
        assert_eq!(edge.cluster.get("Service", "theirs").unwrap()["status"]["loadBalancer"], json!({}));
    });
}

#[test]
fn who_may_come_and_where_they_stay() {
    within_network("who_may_come_and_where_they_stay", |edge, network| {
        let origins = network.origins();
        let plane = Plane::start(edge);
        let all: Vec<usize> = (0..3).collect();
        service(edge, "sticky", "sessionAffinity: ClientIP", 80, &all);
        let sticky = address(edge, "sticky");
        plane.until_endpoints(sticky, &[0, 1, 2].map(|index| endpoint(index, 80)));
        for _ in 0..20 {
            network.get(sticky, 1, 1);
        }
        let mut requests: Vec<u64> = origins.iter().map(Origin::requests).collect();
        requests.sort_unstable();
        assert_eq!(requests, [0, 0, 20], "one client was sent to several endpoints");

        service(edge, "closed", "loadBalancerSourceRanges: [192.0.2.0/24]", 80, &all);
        let closed = address(edge, "closed");
        plane.until_endpoints(closed, &[0, 1, 2].map(|index| endpoint(index, 80)));
        assert!(network.try_connect(closed).is_none(), "{closed} is open to everybody");
        let everybody = json!({"spec": {"loadBalancerSourceRanges": ["192.0.2.0/24", "10.10.10.0/24"]}});
        edge.cluster.patch("Service", "closed", everybody);
        assert!(until(PATIENCE, || network.try_connect(closed)).is_some(), "{closed} is closed to those who may come");
    });
}

#[test]
fn udp_route() {
    within_network("udp_route", |edge, network| {
        let _echoes = network.echoes();
        let _plane = Plane::start(edge);
        edge.gateway("{name: dns, port: 53, protocol: UDP}");
        dns(edge);
        edge.route("UDPRoute", "dns", "rules: [{backendRefs: [{name: dns, port: 53}]}]");
        edge.until_served("UDPRoute", "dns");
        edge.until_programmed();
        datagram(&network.talk(SocketAddr::new(Family::V4.balancer(0), 53)), 100);
    });
}

/// A Service with two endpoints that answer datagrams.
fn dns(edge: &Edge) {
    edge.cluster.apply(
        "{apiVersion: v1, kind: Service, metadata: {name: dns}, spec: {clusterIP: None, ports: [{name: main, port: 53, protocol: UDP}]}}",
    );
    edge.cluster.apply(&format!(
        "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: dns-a, labels: {{kubernetes.io/service-name: dns}}}}
addressType: IPv4
ports: [{{name: main, port: {ECHO_PORT}, protocol: UDP}}]
endpoints: [{{addresses: ['{}']}}, {{addresses: ['{}']}}]
",
        Family::V4.endpoint(0),
        Family::V4.endpoint(1)
    ));
}

#[test]
fn ports_of_ingress_nginx() {
    within_network("ports_of_ingress_nginx", |edge, network| {
        let _echoes = network.echoes();
        let (tcp, udp) = (format!("{}/tcp-services", edge.name), format!("{}/udp-services", edge.name));
        let arguments = ["--ingress-nginx", "--ingress-nginx-tcp-services", &tcp, "--ingress-nginx-udp-services", &udp];
        let plane = Plane::start_with(edge, &arguments);
        for name in ["tcp-services", "udp-services"] {
            edge.cluster.until_event_with("ConfigMap", name, "NotServed", "there is no ConfigMap");
        }
        dns(edge);
        edge.service("echo", &[endpoint(0, ECHO_PORT)]);
        for (name, port, service) in [("tcp-services", 7, "echo:80"), ("udp-services", 53, "dns:main")] {
            let data = json!({port.to_string(): format!("{}/{service}", edge.name), "x": "y"});
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
            edge.cluster.apply(&object.to_string());
            edge.cluster.until_event_with("ConfigMap", name, "NotServed", "port x: the key is a number");
        }
        let balancer = |port| SocketAddr::new(Family::V4.balancer(0), port);
        let served = |what: &str| plane.steelyard.status()[what].as_array().is_some_and(|all| !all.is_empty());
        assert!(until(PATIENCE, || (served("vips") && served("listeners")).then_some(())).is_some());
        datagram(&network.talk(balancer(53)), 100);
        assert!(network.try_connect(balancer(7)).is_some());
        edge.cluster.delete("ConfigMap", "tcp-services");
        edge.cluster.delete("ConfigMap", "udp-services");
        let is_gone = || (!served("vips") && !served("listeners")).then_some(());
        assert!(until(PATIENCE, is_gone).is_some(), "{}", plane.steelyard.status());
    });
}

/// Two nodes on one link: a Lease decides which one answers for the address.
#[test]
#[expect(clippy::too_many_lines, reason = "one address on its way from node to node")]
fn one_node_at_a_time_answers_on_the_link() {
    within_network("one_node_at_a_time_answers_on_the_link", |edge, network| {
        let _echoes = network.echoes();
        let other = network.beside();
        // As the chart does with `announce: l2`.
        edge.cluster.apply(&format!(
            "
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: addresses}}
rules: [{{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, update]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: addresses}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: addresses}}
subjects: [{{kind: ServiceAccount, name: steelyard, namespace: {}}}]
",
            edge.name
        ));
        service(edge, "web", "", ECHO_PORT, &[0]);
        let arguments = [
            "--listen-address",
            "127.0.0.1",
            "--address-pool",
            "10.10.10.64/31",
            "--announce",
            "l2",
            "--announce-after",
            "0s",
            "--drain-delay",
            "1s",
        ];
        let mut first = Plane { steelyard: edge.controller_with("one", &arguments) };
        let web = address(edge, "web");
        let of = |admin: SocketAddr| {
            let status = crate::support::status(admin)?;
            let vips = status["vips"].as_array()?;
            Some(vips.first()?["announcement"].clone())
        };
        let is = |admin: SocketAddr, expect: &str| {
            // A Lease that nobody renews is taken after 15 s.
            let found = until(4 * PATIENCE, || of(admin).filter(|it| it["state"] == expect));
            found.unwrap_or_else(|| panic!("not {expect}: {:?}", of(admin)))
        };
        is(first.steelyard.admin, "announced");
        let at = |netns| crate::support::network::mac_of(netns, "client0");
        let is_at = |netns| {
            let expect = at(netns);
            let found = || crate::support::network::found_at(&network.client, "switch", web.ip());
            assert!(
                until(PATIENCE, || (found().as_ref() == Some(&expect)).then_some(())).is_some(),
                "not at {expect} but {:?}",
                found()
            );
            crate::support::echo::exchange(&network.connect(web), "hello").unwrap();
        };
        is_at(&network.balancer);
        let lease = format!("steelyard-{}", web.ip());
        edge.cluster.until("held by one", "Lease", &lease, |lease| lease["spec"]["holderIdentity"] == "one");

        // A second node waits.
        let second = other.inside(|| {
            let link = Link::new(api_server(), &other);
            let relay = Relay::start((ADDRESS, PORT).into());
            let steelyard = edge.controller_through(&relay, "two", &arguments);
            (steelyard, relay, link)
        });
        let (mut second, relay, _link) = second;
        let at_second = second.admin;
        let waits = other.inside(|| is(at_second, "waiting"));
        assert!(waits["why"].as_str().unwrap_or_default().contains("does not hold its Lease"), "{waits}");
        is_at(&network.balancer);

        // The first drains, and the second takes over.
        first.steelyard.program.signal(Signal::TERM).unwrap();
        edge.cluster.until("taken over", "Lease", &lease, |lease| lease["spec"]["holderIdentity"] == "two");
        other.inside(|| is(at_second, "announced"));
        is_at(&other);
        first.steelyard.program.exit_within(PATIENCE).unwrap();

        // The API server does not answer: nobody else can take the Lease, so the holder goes on.
        relay.close();
        // Ten seconds after the last renewal.
        let unsure = || second.program.log().contains("sure=false").then_some(());
        assert!(until(4 * PATIENCE, unsure).is_some(), "{}", second.program.log());
        is_at(&other);
        relay.open();

        // The second dies without a word.
        let again = Plane { steelyard: edge.controller_with("three", &arguments) };
        is(again.steelyard.admin, "waiting");
        second.program.signal(Signal::KILL).unwrap();
        second.program.exit_within(PATIENCE).unwrap();
        is(again.steelyard.admin, "announced");
        is_at(&network.balancer);
        let detached = other.inside(detach);
        assert_eq!(detached.exit, Exit::Code(0), "{}{}", detached.stdout, detached.stderr);
    });
}

#[test]
fn a_kernel_plane_that_refuses_withdraws_nothing() {
    within_network("a_kernel_plane_that_refuses_withdraws_nothing", |edge, network| {
        let _origins = network.origins();
        let plane = Plane::start(edge);
        service(edge, "web", "", 80, &[0, 1]);
        let web = address(edge, "web");
        plane.until_endpoints(web, &[endpoint(0, 80), endpoint(1, 80)]);
        // An interface of all vips is missing: the next change is refused as a whole.
        network.balancer.ip("link set dev ep2 down\nlink set dev ep2 name away2").unwrap();
        service(edge, "second", "", 80, &[1]);
        let why = edge.cluster.until_event("Service", "second", "KernelPlane");
        assert!(why.contains("ep2"), "{why}");
        edge.cluster.until_event("Service", "web", "KernelPlane");
        assert_eq!(address(edge, "web"), web, "its address was taken back");
        assert_eq!(edge.cluster.get("Service", "second").unwrap()["status"]["loadBalancer"], json!({}));
        network.get(web, 8, 200);
        // Tried again by itself.
        network.balancer.ip("link set dev away2 name ep2\nlink set dev ep2 up").unwrap();
        assert_eq!(address(edge, "second").ip(), Family::V4.vip(11));
        network.get(web, 8, 200);
    });
}

fn endpoint(index: usize, port: u16) -> SocketAddr {
    SocketAddr::new(Family::V4.endpoint(index), port)
}

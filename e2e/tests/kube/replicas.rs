//! Several controllers of the same objects: each serves, one writes, and one that is killed is followed by another.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::Value;
use testkit::{Exit, PATIENCE, Signal, until};

use crate::edge::{Edge, answer, api_server, gateway, holds, origin, until_endpoints, within};
use crate::harness::{ADDRESS, PORT, Relay};
use crate::support::{Steelyard, get};

/// Renewals that take longer than a Lease is valid: 5 of 4 s, and 15 s.
const RENEWALS: usize = 5;

/// Two, beside each other, reached at one address by the outside. The first holds the Lease.
fn two(edge: &Edge) -> [Steelyard; 2] {
    let start = |identity, address| {
        edge.controller_with(identity, &["--listen-address", address, "--publish-address", "203.0.113.7"])
    };
    let one = start("one", "10.244.0.1");
    edge.cluster.until("held", "Lease", "steelyard", |lease| lease["spec"]["holderIdentity"] == "one");
    [one, start("two", "10.244.0.2")]
}

fn holder(edge: &Edge) -> String {
    let lease = edge.cluster.get("Lease", "steelyard");
    lease.and_then(|lease| Some(lease["spec"]["holderIdentity"].as_str()?.to_owned())).unwrap_or_default()
}

/// All calls so far of the controllers of this test.
fn calls(edge: &Edge) -> Vec<Value> {
    api_server().audit(&format!("{}:steelyard", edge.name))
}

/// Which tokens wrote statuses, and which the Lease: each controller has its own.
fn writers(calls: &[Value]) -> [BTreeSet<String>; 2] {
    let mut writers = [BTreeSet::new(), BTreeSet::new()];
    for event in calls {
        let (subresource, resource) = (&event["objectRef"]["subresource"], &event["objectRef"]["resource"]);
        let is_good = event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300);
        let is_write = is_good && (event["verb"] == "create" || event["verb"] == "update" || event["verb"] == "patch");
        let token =
            event["user"]["extra"]["authentication.kubernetes.io/credential-id"][0].as_str().unwrap_or_default();
        match is_write {
            true if subresource == "status" => writers[0].insert(token.to_owned()),
            true if resource == "leases" => writers[1].insert(token.to_owned()),
            _ => false,
        };
    }
    writers
}

#[test]
fn both_serve_and_one_writes() {
    within("both_serve_and_one_writes", |edge| {
        let [first, second] = [1, 2].map(origin);
        edge.web(&[first.address]);
        let controllers = two(edge);
        edge.until_served("HTTPRoute", "web");
        for expect in [&first, &second] {
            edge.endpoints("web", &[expect.address]);
            for (controller, address) in controllers.iter().zip(["10.244.0.1:80", "10.244.0.2:80"]) {
                until_endpoints(controller, &[expect.address]);
                assert_eq!(answer(address.parse().unwrap(), "a", "/").0, 200);
            }
        }
        for number in 0..3 {
            let name = format!("more-{number}");
            edge.route("HTTPRoute", &name, "rules: [{backendRefs: [{name: web, port: 80}]}]");
            edge.until_served("HTTPRoute", &name);
        }
        assert_eq!(holder(edge), "one");
        let [statuses, lease] = writers(&calls(edge));
        assert_eq!(lease.len(), 1, "{lease:?}");
        assert_eq!(statuses, lease, "statuses were written by one who does not hold the Lease");
    });
}

#[test]
fn the_holder_is_killed() {
    within("the_holder_is_killed", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let [mut one, two] = two(edge);
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let route = version(&edge.until_served("HTTPRoute", "web"));
        let gateway_object = edge.until_programmed();
        let class = edge.cluster.get("GatewayClass", &edge.name).unwrap();
        assert_eq!(holder(edge), "one");
        one.program.signal(Signal::KILL).unwrap();
        assert_eq!(one.program.exit_within(PATIENCE).unwrap(), Exit::Signal(9));

        // Nobody waits for a holder to be served.
        let other = origin(2);
        edge.endpoints("web", &[other.address]);
        until_endpoints(&two, &[other.address]);
        assert_eq!(answer("10.244.0.2:80".parse().unwrap(), "a", "/"), (200, "pod-2".into()));

        edge.cluster.until("taken over", "Lease", "steelyard", |lease| lease["spec"]["holderIdentity"] == "two");
        // Of a Gateway of its own, so that nothing changes for the others.
        edge.cluster.apply(&format!(
            "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: later}}
spec: {{gatewayClassName: {}, listeners: [{{name: web, port: 81, protocol: HTTP}}]}}
",
            edge.name
        ));
        edge.cluster.until("programmed by the other", "Gateway", "later", |gateway| {
            holds(gateway, &gateway["status"], &["Programmed"])
        });
        // What was said is not said again, and was never taken back.
        let now = |kind: &str, name: &str| version(&edge.cluster.get(kind, name).unwrap());
        assert_eq!(now("HTTPRoute", "web"), route);
        assert_eq!(now("Gateway", "edge"), version(&gateway_object));
        assert_eq!(now("GatewayClass", &edge.name), version(&class));
        assert!(std::net::TcpStream::connect(gateway(80)).is_err(), "the one that was killed still listens");
    });
}

#[test]
fn the_holder_is_cut_off_and_comes_back() {
    within("the_holder_is_cut_off_and_comes_back", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let more = |address| ["--listen-address", address, "--publish-address", "203.0.113.7"];
        let one = edge.controller_with("one", &more("10.244.0.1"));
        edge.until_served("HTTPRoute", "web");
        let relay = Relay::start((ADDRESS, PORT).into());
        let two = edge.controller_through(&relay, "two", &more("10.244.0.2"));
        assert_eq!(holder(edge), "one");
        let [first, _] = writers(&calls(edge));
        edge.relay.close();
        edge.cluster.until("taken over", "Lease", "steelyard", |lease| lease["spec"]["holderIdentity"] == "two");
        let so_far = calls(edge).len();
        edge.relay.open();

        // Both are told, both serve, and the one that is back writes nothing.
        let other = origin(2);
        edge.endpoints("web", &[other.address]);
        for (controller, address) in [(&one, "10.244.0.1:80"), (&two, "10.244.0.2:80")] {
            until_endpoints(controller, &[other.address]);
            assert_eq!(answer(address.parse().unwrap(), "a", "/"), (200, "pod-2".into()));
        }
        edge.route("HTTPRoute", "later", "rules: [{backendRefs: [{name: web, port: 80}]}]");
        edge.until_served("HTTPRoute", "later");
        let (all, [since, _]) = (calls(edge), writers(&calls(edge)[so_far..]));
        let [_, holders] = writers(&all);
        assert_eq!(since, &holders - &first, "statuses were written by one who does not hold the Lease any more");
        assert_eq!(holder(edge), "two");
    });
}

/// The clock of the holder is a minute behind that of the API server, and that of the other a minute ahead.
#[test]
fn clocks_differ() {
    within("clocks_differ", |edge| {
        let web = origin(1);
        edge.web(&[web.address]);
        let more = |address| ["--listen-address", address, "--publish-address", "203.0.113.7"];
        let mut one = edge.controller_at("-60s", "one", &more("10.244.0.1"));
        let lease = edge.cluster.until("held", "Lease", "steelyard", |lease| lease["spec"]["holderIdentity"] == "one");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (made, renewed) = (text(&lease["metadata"]["creationTimestamp"]), text(&lease["spec"]["renewTime"]));
        assert!(renewed < made, "the holder's clock says {renewed}, and the API server's said {made}");
        let two = edge.controller_at("+60s", "two", &more("10.244.0.2"));
        edge.until_served("HTTPRoute", "web");
        // For more than the time after which a holder that does not renew its Lease loses it.
        let mut last = renewed;
        for _ in 0..RENEWALS {
            let lease = edge.cluster.until("renewed", "Lease", "steelyard", |lease| lease["spec"]["renewTime"] != last);
            assert_eq!(lease["spec"]["holderIdentity"], "one");
            last = text(&lease["spec"]["renewTime"]);
        }
        let [statuses, leases] = writers(&calls(edge));
        assert_eq!((leases.len(), &statuses), (1, &leases));
        let other = origin(2);
        edge.endpoints("web", &[other.address]);
        for (controller, address) in [(&one, "10.244.0.1:80"), (&two, "10.244.0.2:80")] {
            until_endpoints(controller, &[other.address]);
            assert_eq!(answer(address.parse().unwrap(), "a", "/"), (200, "pod-2".into()));
        }
        one.program.signal(Signal::KILL).unwrap();
        assert_eq!(one.program.exit_within(PATIENCE).unwrap(), Exit::Signal(9));
        edge.cluster.until("taken over", "Lease", "steelyard", |lease| lease["spec"]["holderIdentity"] == "two");
    });
}

/// Each finds the other, and a pod whose name is markup and that does not answer as Steelyard does, by a Service.
#[test]
fn replicas_find_each_other() {
    within("replicas_find_each_other", |edge| {
        edge.web(&[origin(1).address]);
        let service = format!("{}/all", edge.name);
        let start = |identity, address: &str| {
            let metrics = format!("{address}:9902");
            let more = ["--listen-address", address, "--metrics", &metrics, "--replicas-service", &service];
            edge.controller_with(identity, &more)
        };
        let both = [start("one", "10.244.0.1"), start("two", "10.244.0.2")];
        edge.until_served("HTTPRoute", "web");
        let shown = |of: &Steelyard| {
            let page = String::from_utf8(get(of.admin, "/?replicas=1").unwrap().body).unwrap();
            let section = page.split("<section id=\"replicas\"").nth(1).unwrap().split("</section>").next().unwrap();
            section.to_owned()
        };
        let none = || shown(&both[0]).contains("the Service has no endpoints, or does not exist").then_some(());
        until(PATIENCE, none).unwrap_or_else(|| panic!("{}", shown(&both[0])));
        // What a stranger among the endpoints hears.
        let stranger = TcpListener::bind("10.244.0.3:9902").unwrap();
        let heard = std::thread::spawn(move || {
            let (mut stream, _) = stranger.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.extend(byte);
            }
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n<b>").unwrap();
            String::from_utf8(head).unwrap()
        });
        edge.cluster.apply(
            "
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: all-a, labels: {kubernetes.io/service-name: all}}
addressType: IPv4
ports: [{name: metrics, port: 9902}]
endpoints:
  - {addresses: [10.244.0.1]}
  - {addresses: [10.244.0.2], conditions: {ready: false}}
  - {addresses: [10.244.0.3], targetRef: {kind: Pod, name: '<img src=x>'}}
",
        );
        let rows = until(PATIENCE, || {
            let rows = shown(&both[0]);
            rows.contains("10.244.0.3:9902").then_some(rows)
        });
        let rows = rows.unwrap_or_else(|| shown(&both[0]));
        assert!(rows.contains("10.244.0.1:9902") && rows.contains("10.244.0.2:9902"), "{rows}");
        assert!(rows.contains("All 2 that answered"), "{rows}");
        assert!(rows.contains("what answers there is no Steelyard of this version"), "{rows}");
        assert!(rows.contains("&lt;img src=x&gt;") && !rows.contains("<img"), "{rows}");
        assert_eq!(heard.join().unwrap(), "GET /overview HTTP/1.0\r\nHost: 10.244.0.3:9902\r\n\r\n");
        // One is no longer of the Service.
        edge.endpoints("all", &["10.244.0.2:9902".parse().unwrap()]);
        let is_alone = || shown(&both[1]).contains("All 1 that answered").then_some(());
        until(PATIENCE, is_alone).unwrap_or_else(|| panic!("{}", shown(&both[1])));
    });
}

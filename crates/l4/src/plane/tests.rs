//! Tests of the plane in namespaces of its own: a client, this host, and endpoints, joined by veth pairs.

mod earlier;
mod refused;
mod routes;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use model::{PortRange, Transport, VipMode};
use testkit::netns::{Netns, join};
use testkit::{PATIENCE, until};

use super::*;
use crate::sync::set;
use crate::{Flow, FlowClient, TraceQuery};

const VIP: &str = "20.0.0.1:80";
/// Far more steps than a table of these tests has pages.
const WALK_STEPS_MAX: usize = 100;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

struct Lab {
    client: Netns,
    lb: Netns,
    endpoints: Vec<Netns>,
    options: Options,
}

impl Lab {
    /// Only as root: otherwise it reports a skip, and as root the run fails if it was skipped. Clients are at 10.0.0.2, endpoints at
    /// 10.1.N.2. Port 80 of each sends N and then echoes.
    fn new(endpoints: u8) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            _ = writeln!(std::io::stderr(), "SKIP {name}: network namespaces and BPF are root's");
            return None;
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let (client, lb) = (Netns::new("client").unwrap(), Netns::new("lb").unwrap());
        join((&lb, "client0"), (&client, "eth0"), 1500).unwrap();
        lb.forward().unwrap();
        lb.ip("addr add 10.0.0.1/24 dev client0").unwrap();
        client.ip("addr add 10.0.0.2/24 dev eth0\nroute add default via 10.0.0.1").unwrap();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let pin_dir = PathBuf::from(format!("/sys/fs/bpf/steelyard-test-{}-{number}", std::process::id()));
        let options = Options { flows_max: 4096, pin_dir: Some(pin_dir), force_tc: false };
        let mut lab = Self { client, lb, endpoints: Vec::new(), options };
        for number in 0..endpoints {
            let endpoint = Netns::new(&format!("ep{number}")).unwrap();
            join((&lab.lb, &format!("ep{number}")), (&endpoint, "eth0"), 1500).unwrap();
            lab.lb.ip(&format!("addr add 10.1.{number}.1/24 dev ep{number}")).unwrap();
            endpoint
                .ip(&format!("addr add 10.1.{number}.2/24 dev eth0\nroute add default via 10.1.{number}.1"))
                .unwrap();
            serve(&endpoint, number);
            lab.endpoints.push(endpoint);
        }
        Some(lab)
    }

    fn open(&self) -> Plane {
        self.lb.inside(|| Plane::open(&self.options)).unwrap()
    }

    fn vip(&self, endpoints: &[u8]) -> Vip {
        let endpoint = |number: &u8| Endpoint {
            address: EndpointAddress::Socket(address(*number)),
            weight: 1,
            priority: 0,
            zone: model::Zone::Unknown,
            host: None,
        };
        let interfaces = (0..self.endpoints.len()).map(|number| format!("ep{number}")).chain(["client0".to_owned()]);
        let at: SocketAddr = VIP.parse().unwrap();
        let ports = PortRange { first: at.port(), last: at.port() };
        Vip {
            interfaces: interfaces.collect(),
            endpoints: endpoints.iter().map(endpoint).collect(),
            ..Vip::new("web", at.ip(), ports, Transport::Tcp)
        }
    }

    fn apply(&self, plane: &mut Plane, vips: &[Vip]) -> Result<(), Refusal> {
        self.lb.inside(|| plane.apply(vips, &|_, _| EndpointVerdict::Active))
    }

    fn collect(&self, plane: &mut Plane) -> Collected {
        let walked = self.lb.inside(|| (0..WALK_STEPS_MAX).find_map(|_| plane.collect().transpose()));
        walked.expect("the table has an end").unwrap()
    }

    /// A connection through the vip, and the number of the endpoint that serves it.
    fn connect(&self) -> (TcpStream, u8) {
        let mut stream = self.client.inside(|| TcpStream::connect(VIP)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut number = [0];
        stream.read_exact(&mut number).unwrap();
        (stream, number[0])
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Also after a panic, because pinned objects outlive the namespace.
        _ = self.lb.inside(|| detach(&self.options));
    }
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 1, number, 2], 80))
}

/// The thread ends with the test's process, because nothing closes its listener.
fn serve(endpoint: &Netns, number: u8) {
    let listener = endpoint.inside(|| TcpListener::bind("0.0.0.0:80")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                _ = stream.write_all(&[number]);
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    _ = stream.write_all(&buffer[..count]);
                }
            });
        }
    });
}

fn echoes(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *b"ping"
}

#[test]
fn connections_are_balanced_counted_and_told_of() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0, 1])]).unwrap();
    let mut streams: Vec<(TcpStream, u8)> = (0..4).map(|_| lab.connect()).collect();
    let mut served: Vec<u8> = streams.iter().map(|(_, number)| *number).collect();
    served.sort_unstable();
    assert_eq!(served, [0, 0, 1, 1]);
    assert!(streams.iter_mut().all(|(stream, _)| echoes(stream)));

    lab.collect(&mut plane);
    let counters = plane.counters().unwrap();
    let web = &counters.vips["web"];
    assert_eq!((counters.flows_used, counters.flows_max, counters.pressure), (8, 8192, false));
    assert_eq!((web.total.flows_active, web.total.flows_made), (4, 4));
    assert_eq!(web.endpoints[&address(0)].flows_made, 2);
    assert!(web.total.packets[0] >= 12 && web.total.bytes[1] > 200, "{web:?}");
    assert_eq!(web.drops["no_endpoint"], 0);
    assert!(plane.samples().iter().any(|sample| sample.name == "steelyard_vip_flows_active" && sample.value == 2.0));

    let (flows, more) = plane.flows(Some("web"), 3).unwrap();
    assert_eq!((flows.len(), more), (3, true));
    let (flows, more) = plane.flows(None, 100).unwrap();
    assert_eq!((flows.len(), more), (4, false));
    let client = FlowClient::Address(streams[0].0.local_addr().unwrap());
    let Flow { address: to, endpoint, state, vip, .. } = flows.iter().find(|flow| flow.client == client).unwrap();
    assert_eq!(
        (to.to_string().as_str(), *endpoint, *state, vip.as_str()),
        (VIP, address(streams[0].1), "established", "web")
    );
    assert_eq!(plane.flows(Some("other"), 100).unwrap(), (Vec::new(), false));
}

#[test]
fn a_restart_keeps_connections_indexes_and_counters() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0, 1])]).unwrap();
    let (mut stream, number) = lab.connect();
    let (before, made) = (plane.held.clone(), plane.counters().unwrap().vips["web"].total.flows_made);
    drop(plane);
    assert!(pinned(&lab.options));
    assert!(echoes(&mut stream), "nobody looks after it, and it goes on");

    // The changed size is for the next table.
    let options = Options { flows_max: 1000, ..lab.options.clone() };
    let mut plane = lab.lb.inside(|| Plane::open(&options)).unwrap();
    assert_eq!(
        (&plane.held.vips, &plane.held.endpoints, &plane.held.vip_ids),
        (&before.vips, &before.endpoints, &before.vip_ids)
    );
    lab.collect(&mut plane);
    assert!(echoes(&mut stream), "opened, but not told what to serve");
    lab.apply(&mut plane, &[lab.vip(&[1, 0])]).unwrap();
    assert_eq!((&plane.held.vips, &plane.held.endpoints), (&before.vips, &before.endpoints));
    assert!(echoes(&mut stream), "another process looks after it");
    let web = &plane.counters().unwrap().vips["web"];
    assert_eq!((web.total.flows_made, web.endpoints[&address(number)].flows_active), (made, 1));
    assert_eq!(plane.counters().unwrap().flows_max, 8192);
    lab.connect();
}

fn filters(lab: &Lab) -> String {
    lab.lb.run(&["tc", "filter", "show", "dev", "client0", "ingress"]).unwrap()
}

#[test]
fn the_filter_of_old_kernels_and_what_others_have_there() {
    let Some(mut lab) = Lab::new(1) else { return };
    lab.options.force_tc = true;
    lab.lb.run(&["tc", "qdisc", "add", "dev", "client0", "clsact"]).unwrap();
    // A program that matches nothing.
    let others = ["prio", "7", "protocol", "all", "bpf", "bytecode", "1,6 0 0 0", "flowid", "1:7"];
    lab.lb.run(&[&["tc", "filter", "add", "dev", "client0", "ingress"], &others[..]].concat()).unwrap();
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    assert!(filters(&lab).contains("lb_in"), "{}", filters(&lab));
    assert!(plane.pins.links().is_empty());
    let (mut stream, _) = lab.connect();
    drop(plane);

    // The next plane takes the filter over, and replaces it by tcx.
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    assert_eq!(filters(&lab).matches("handle 0x57ee1bad").count(), 1, "{}", filters(&lab));
    assert!(echoes(&mut stream));
    drop(plane);
    lab.options.force_tc = false;
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    assert!(echoes(&mut stream));
    assert!(!filters(&lab).contains("lb_in"), "{}", filters(&lab));
    drop(plane);

    lab.options.force_tc = true;
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    assert!(plane.pins.links().is_empty());
    lab.lb.inside(|| plane.detach_all()).unwrap();
    let left = filters(&lab);
    assert!(!left.contains("lb_in") && left.contains("flowid 1:7"), "{left}");
}

#[test]
fn a_client_that_waits_for_a_dead_endpoint_is_reset() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let (mut stream, _) = lab.connect();
    assert!(echoes(&mut stream));
    // Its last ACK is late (RFC 9293 section 3.8.6.3). From here on, both it and the endpoint are silent.
    let is_silent = || (plane.flows(None, 1).unwrap().0[0].idle_s >= Some(2)).then_some(());
    assert!(until(PATIENCE, is_silent).is_some());
    lab.endpoints[0].ip("link set eth0 down").unwrap();
    let dead = |_: &str, _: &Endpoint| EndpointVerdict::Down;
    let vip = Vip { on_unhealthy: OnUnhealthy::Reset, ..lab.vip(&[0]) };
    lab.lb.inside(|| plane.apply(&[vip], &dead)).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut prodded = 0;
    let reset = until(PATIENCE, || {
        prodded += lab.collect(&mut plane).prodded;
        match stream.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            other => Some(other.map_err(|error| error.kind())),
        }
    });
    let told = || format!("{prodded} prodded, {:?}, {:?}", plane.flows(None, 9), plane.counters().unwrap().vips["web"]);
    assert_eq!(reset, Some(Err(ErrorKind::ConnectionReset)), "{}", told());
    assert!(prodded > 0, "the client had spoken by itself");
    let web = &plane.counters().unwrap().vips["web"];
    assert_eq!((web.total.flows_active, web.drops["endpoint_down"]), (0, 1));
}

/// The result that a socket gets that waits for the other side. `None` means nothing yet.
fn told(stream: &mut TcpStream) -> Option<std::io::Result<usize>> {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        other => Some(other),
    }
}

#[test]
fn both_ends_of_an_idle_connection_see_a_reset() {
    let Some(lab) = Lab::new(1) else { return };
    lab.lb.ip("addr add fd00:1::1/64 dev client0 nodad\naddr add fd00:2::1/64 dev ep0 nodad").unwrap();
    lab.client.ip("addr add fd00:1::2/64 dev eth0 nodad\nroute add default via fd00:1::1").unwrap();
    lab.endpoints[0].ip("addr add fd00:2::2/64 dev eth0 nodad\nroute add default via fd00:2::1").unwrap();
    let mut plane = lab.open();
    let mut check = |vip: &str, endpoint: &str, mode: VipMode| {
        let (vip, endpoint): (SocketAddr, SocketAddr) = (vip.parse().unwrap(), endpoint.parse().unwrap());
        let listener = lab.endpoints[0].inside(|| TcpListener::bind(endpoint)).unwrap();
        let mut idle = Vip {
            address: vip.ip(),
            endpoints: vec![Endpoint {
                address: EndpointAddress::Socket(endpoint),
                weight: 1,
                priority: 0,
                zone: model::Zone::Unknown,
                host: None,
            }],
            mode,
            ..lab.vip(&[])
        };
        idle.timeouts.idle = std::time::Duration::from_secs(1);
        lab.apply(&mut plane, &[idle]).unwrap();
        let mut client = lab.client.inside(|| TcpStream::connect(vip)).unwrap();
        let (mut served, _) = listener.accept().unwrap();
        let (mut at_client, mut at_endpoint) = (None, None);
        _ = until(PATIENCE, || {
            lab.collect(&mut plane);
            at_client = at_client.take().or_else(|| told(&mut client));
            at_endpoint = at_endpoint.take().or_else(|| told(&mut served));
            (at_client.is_some() && at_endpoint.is_some()).then_some(())
        });
        for told in [at_client, at_endpoint] {
            let told = told.map(|told| told.map_err(|error| error.kind()));
            assert_eq!(told, Some(Err(ErrorKind::ConnectionReset)), "{vip} to {endpoint}, {:?}", plane.flows(None, 9));
        }
        assert_eq!(plane.counters().unwrap().vips["web"].total.flows_active, 0);
        let forgotten = until(PATIENCE, || (lab.collect(&mut plane).kept == 0).then_some(()));
        assert!(forgotten.is_some(), "{:?}", plane.flows(None, 9));
    };
    check(VIP, "10.1.0.2:81", VipMode::Nat);
    check(VIP, "10.1.0.2:82", VipMode::FullNat { sources: Vec::new() });
    check("[fd00:9::1]:80", "[fd00:2::2]:81", VipMode::Nat);
}

#[test]
fn what_was_dead_is_told_to_the_next_process() {
    let Some(lab) = Lab::new(2) else { return };
    for on_unhealthy in [OnUnhealthy::Keep, OnUnhealthy::Reset] {
        let vip = Vip { on_unhealthy, ..lab.vip(&[0, 1]) };
        let mut plane = lab.open();
        let first = vip.endpoints[0].clone();
        let verdict = |_: &str, endpoint: &Endpoint| {
            if *endpoint == first { EndpointVerdict::Down } else { EndpointVerdict::Active }
        };
        lab.lb.inside(|| plane.apply(std::slice::from_ref(&vip), &verdict)).unwrap();
        assert!(plane.found_dead(&vip).is_empty(), "its own verdicts hold");
        drop(plane);
        let plane = lab.open();
        let dead = plane.found_dead(&vip);
        assert_eq!(dead.len(), 1);
        assert!(dead.iter().all(|dead| first.address == EndpointAddress::Socket(*dead)));
        let other = Vip { address: "20.0.0.9".parse().unwrap(), ..vip };
        assert!(plane.found_dead(&other).is_empty());
    }
}

#[test]
fn an_endpoint_that_is_removed_drains_and_its_totals_stay() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let (mut stream, _) = lab.connect();
    let index = *plane.held.endpoints.keys().next().unwrap();
    lab.apply(&mut plane, &[lab.vip(&[1])]).unwrap();
    assert!(echoes(&mut stream), "an established connection stays where it is");
    assert_eq!(lab.connect().1, 1);
    assert_eq!(lab.collect(&mut plane).freed, 0);
    let before = plane.counters().unwrap().vips["web"].total.clone();
    assert!(before.flows_active >= 1);
    drop(stream);
    let freed = until(PATIENCE, || (lab.collect(&mut plane).freed == 1).then_some(()));
    assert!(freed.is_some(), "{:?}", plane.counters());
    assert!(!plane.held.endpoints.contains_key(&index));
    let after = plane.counters().unwrap().vips["web"].total.clone();
    assert!(after.packets[0] >= before.packets[0] && after.flows_made == before.flows_made, "{before:?} {after:?}");
    // The next endpoint with this index begins at zero.
    lab.apply(&mut plane, &[lab.vip(&[1, 0])]).unwrap();
    assert_eq!(plane.counters().unwrap().vips["web"].endpoints[&address(0)].flows_made, 0);
    assert_eq!(plane.held.endpoints.keys().copied().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_vip_that_is_removed_leaves_nothing_but_the_others() {
    let Some(lab) = Lab::new(1) else { return };
    let mut plane = lab.open();
    let other = Vip { name: "other".to_owned(), address: "20.0.0.2".parse().unwrap(), ..lab.vip(&[0]) };
    lab.apply(&mut plane, &[lab.vip(&[0]), other.clone()]).unwrap();
    let (mut stream, _) = lab.connect();
    lab.apply(&mut plane, std::slice::from_ref(&other)).unwrap();
    let collected = lab.collect(&mut plane);
    assert_eq!((collected.freed, plane.held.vips.len(), plane.held.endpoints.len()), (1, 1, 1));
    // Its packets go to this host, which has no such address.
    _ = stream.write_all(b"ping");
    assert_eq!(plane.flows(None, 10).unwrap().0.len(), 0);
    // The index is free again.
    lab.apply(&mut plane, &[other, lab.vip(&[0])]).unwrap();
    assert_eq!(plane.plan.vips.keys().copied().collect::<Vec<_>>(), [0, 1]);
    lab.connect();
}

#[test]
fn interfaces_that_come_and_go() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    let names = |plane: &Plane| plane.pins.links().len();
    lab.apply(&mut plane, &[lab.vip(&[0, 1])]).unwrap();
    assert_eq!(names(&plane), 3);
    let fewer = Vip { interfaces: vec!["client0".to_owned(), "ep0".to_owned()], ..lab.vip(&[0]) };
    lab.apply(&mut plane, &[fewer]).unwrap();
    assert_eq!(names(&plane), 2);
    lab.connect();

    lab.lb.ip("link del client0").unwrap();
    lab.collect(&mut plane);
    assert_eq!(names(&plane), 1);
    join((&lab.lb, "client0"), (&lab.client, "eth0"), 1500).unwrap();
    lab.lb.ip("addr add 10.0.0.1/24 dev client0").unwrap();
    lab.client.ip("addr add 10.0.0.2/24 dev eth0\nroute add default via 10.0.0.1").unwrap();
    lab.collect(&mut plane);
    assert_eq!(names(&plane), 2);
    lab.connect();
}

#[test]
fn what_is_refused_changes_nothing() {
    let Some(lab) = Lab::new(1) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let before = plane.held.clone();
    let check = |plane: &mut Plane, vip: Vip, part: &str| {
        let refusal = lab.lb.inside(|| plane.check(std::slice::from_ref(&vip))).unwrap_err();
        assert!(refusal.to_string().contains(part), "{refusal}");
        assert_eq!(lab.apply(plane, &[vip]), Err(refusal));
        assert_eq!(plane.held, before);
    };
    let on = |interface: &str| Vip { interfaces: vec![interface.to_owned()], ..lab.vip(&[0]) };
    check(&mut plane, on("cleint0"), "interface cleint0 does not exist; did you mean `client0`?");
    lab.lb.ip("tuntap add tun7 mode tun").unwrap();
    check(&mut plane, on("tun7"), "no Ethernet header");
    lab.connect();
}

#[test]
fn the_source_of_full_nat_is_found() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    let full = Vip { mode: VipMode::FullNat { sources: Vec::new() }, ..lab.vip(&[0, 1]) };
    lab.apply(&mut plane, &[full]).unwrap();
    let pool = plane.held.pools.values().next().unwrap();
    assert_eq!((address_of(pool.addrs[0]).to_string().as_str(), pool.addr_count), ("10.1.0.1", 2));
    assert!(pool.port_first >= 1024 && pool.port_last < 32_768, "{pool:?}");
    // Each knows only its own link, as behind a balancer with one interface.
    for endpoint in &lab.endpoints {
        endpoint.ip("route del default").unwrap();
    }
    let streams: Vec<_> = (0..8).map(|_| lab.connect()).collect();
    let served = |number: u8| streams.iter().filter(|(_, served)| *served == number).count();
    assert_eq!((served(0), served(1)), (4, 4));
}

/// Whether a packet would be forwarded, the verdict, and the steps, one per line.
fn ask(lab: &Lab, plane: &Plane, vip: &str, from: &str, interface: &str, flags: u8) -> (bool, String, String) {
    let to: SocketAddr = vip.parse().unwrap();
    let query = TraceQuery {
        vip: (to.ip(), to.port(), Transport::Tcp),
        from: from.parse().unwrap(),
        interface: Some(interface.to_owned()),
        flags,
    };
    let trace = lab.lb.inside(|| plane.trace(&query)).unwrap();
    let steps: Vec<String> = trace.steps.iter().map(|step| format!("{}: {}", step.stage, step.text)).collect();
    (trace.forwarded, trace.verdict, steps.join("\n"))
}

const CLIENT: &str = "10.0.0.2:50000";

#[test]
fn what_would_happen_to_a_packet() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    let denied = Vip { deny: vec!["10.0.0.9/32".parse().unwrap()], ..lab.vip(&[0]) };
    let empty = Vip { name: "empty".to_owned(), address: "20.0.0.2".parse().unwrap(), ..lab.vip(&[]) };
    let local =
        Vip { name: "local".to_owned(), address: "20.0.0.3".parse().unwrap(), mode: VipMode::Local, ..lab.vip(&[]) };
    lab.apply(&mut plane, &[denied, empty, local]).unwrap();
    let check = |vip: &str, from: &str, flags: u8, verdict: &str, part: &str| {
        let (forwarded, said, steps) = ask(&lab, &plane, vip, from, "client0", flags);
        assert_eq!((forwarded, said.as_str()), (verdict.starts_with("forwarded"), verdict), "{steps}");
        assert!(steps.contains(part), "{steps}");
    };
    check(VIP, CLIENT, SYN, "forwarded to 10.1.0.2:80 by ep0", "select: chose endpoint 10.1.0.2:80");
    check(VIP, "10.0.0.9:1", SYN, "dropped: source_denied", "source: dropped, source_denied: its source is on");
    check(VIP, CLIENT, ACK, "answered here, not forwarded: no_flow", "no_flow");
    check("20.0.0.2:80", CLIENT, SYN, "dropped: no_endpoint", "all are down, draining or of weight 0");
    let ours = "not for a vip: left to this host unchanged";
    check("20.0.0.1:81", CLIENT, SYN, ours, "no vip has port 81/tcp of 20.0.0.1 (its vips: web)");
    check("20.0.0.7:80", CLIENT, SYN, ours, "no vip has the address 20.0.0.7");
    let (forwarded, verdict, _) = ask(&lab, &plane, "20.0.0.3:80", CLIENT, "client0", SYN);
    assert_eq!((forwarded, verdict.as_str()), (true, "left to a listener on this host"));
    let (forwarded, verdict, steps) = ask(&lab, &plane, VIP, CLIENT, "lo", SYN);
    assert!(!forwarded && verdict.starts_with("not seen"), "{verdict}");
    assert!(
        steps.contains("interface: the programs are not attached to the interface lo, because no vip names it"),
        "{steps}"
    );
}

#[test]
fn a_trace_of_a_known_flow_and_of_one_without_a_route() {
    let Some(lab) = Lab::new(1) else { return };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let (stream, _) = lab.connect();
    let known = stream.local_addr().unwrap().to_string();
    let (forwarded, verdict, steps) = ask(&lab, &plane, VIP, &known, "client0", ACK);
    assert_eq!((forwarded, verdict.as_str()), (true, "forwarded to 10.1.0.2:80 by ep0"), "{steps}");
    assert!(steps.contains("conntrack: belongs to a known flow to 10.1.0.2:80"), "{steps}");
    assert_eq!(plane.counters().unwrap().vips["web"].total.flows_made, 1, "asking makes no flow");

    lab.lb.sysctl("net.ipv4.conf.client0.forwarding", "0").unwrap();
    let (_, verdict, steps) = ask(&lab, &plane, VIP, CLIENT, "client0", SYN);
    assert_eq!(verdict, "dropped: no_route", "{steps}");
    assert!(steps.contains("net.ipv4.conf.client0.forwarding is 0"), "{steps}");
}

#[test]
fn nothing_is_left_after_detaching() {
    let Some(lab) = Lab::new(1) else { return };
    assert!(!pinned(&lab.options));
    assert_eq!(lab.lb.inside(|| detach(&lab.options)), Ok(false));
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    assert!(pinned(&lab.options));
    drop(plane);
    assert_eq!(lab.lb.inside(|| detach(&lab.options)), Ok(true));
    assert!(!pinned(&lab.options));
    assert!(!lab.options.pin_dir.clone().unwrap().exists());
    let refused =
        lab.client.inside(|| TcpStream::connect_timeout(&VIP.parse().unwrap(), std::time::Duration::from_millis(300)));
    assert!(refused.is_err(), "the vip answers still");
}

#[test]
fn what_a_dead_namespace_left_is_swept_away() {
    let options = Options { flows_max: 1024, ..Options::default() };
    let folder = |lab: &Lab| lab.lb.inside(|| Pins::new(&options)).unwrap().folder;
    let gone = {
        let Some(mut lab) = Lab::new(1) else { return };
        lab.options = options.clone();
        let mut plane = lab.open();
        lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
        // As after `kill -9`: nothing is cleaned up, and its interfaces disappear with the namespace.
        let folder = folder(&lab);
        assert!(folder.exists());
        lab.lb.ip("link del client0\nlink del ep0").unwrap();
        lab.options.pin_dir = Some(PathBuf::from("/sys/fs/bpf/steelyard-test-nothing"));
        folder
    };
    // Another process that opens a plane on this host at this moment may be quicker.
    let Some(mut lab) = Lab::new(1) else { return };
    lab.options = options.clone();
    let plane = lab.open();
    assert!(!gone.exists() && folder(&lab).exists());
    drop(plane);
}

#[test]
fn what_an_earlier_process_did_not_clear_is_not_inherited() {
    let Some(lab) = Lab::new(1) else { return };
    let plane = lab.open();
    // It ended when it had removed a vip and its endpoint, and before it cleared their counters.
    set(&plane.maps.uses, &0_u32, &lb_uses { made: 7, open: 3, unknown: 1 }).unwrap();
    set(&plane.maps.active, &0_u32, &5_u32).unwrap();
    let old = lb_counters { packets: [1, 2], bytes: [3, 4], flows: 9 };
    let cpus = libbpf_rs::num_possible_cpus().unwrap();
    let write = |map: &libbpf_rs::MapHandle, index: u32, value: &[u8]| {
        let values = vec![value.to_vec(); cpus];
        libbpf_rs::MapCore::update_percpu(map, bytes_of(&index), &values, libbpf_rs::MapFlags::ANY).unwrap();
    };
    write(&plane.maps.counters, 0, bytes_of(&old));
    let reason = crate::DropReason::ALL.iter().find(|reason| reason.name == "no_endpoint").unwrap();
    write(&plane.maps.drops, u32::from(reason.number), &8_u64.to_ne_bytes());
    drop(plane);
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    assert_eq!(plane.held.endpoints.keys().copied().collect::<Vec<_>>(), [0]);
    let web = &plane.counters().unwrap().vips["web"];
    assert_eq!((&web.total, web.drops["no_endpoint"]), (&crate::Traffic::default(), 0));
}

/// A directory for planes of one test, which nothing else on this host sweeps.
struct Beside(PathBuf);

impl Drop for Beside {
    fn drop(&mut self) {
        // Empty, except after a failure.
        _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_plane_without_interfaces_is_not_swept_away_while_its_process_lives() {
    let beside = Beside(PathBuf::from(format!("/sys/fs/bpf/steelyard-test-{}-beside", std::process::id())));
    let (Some(mut lab), Some(mut other)) = (Lab::new(1), Lab::new(1)) else { return };
    lab.options.pin_dir = Some(beside.0.join("lab"));
    other.options.pin_dir = Some(beside.0.join("other"));
    let folder = Pins::new(&lab.options).unwrap().folder;
    let is_there_when_swept = || {
        sweep(&Pins::new(&other.options).unwrap());
        folder.exists()
    };
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    // As when all containers of a host restart.
    lab.lb.ip("link del client0\nlink del ep0").unwrap();
    assert!(is_there_when_swept(), "its process lives");
    // Two planes that hand over to each other both hold the lock.
    let successor = lab.open();
    drop(plane);
    assert!(is_there_when_swept(), "the other process lives");
    drop(successor);
    // Between fork and exec, a process that another test starts has a copy of the descriptor, and with it the lock.
    let swept = until(PATIENCE, || (!is_there_when_swept()).then_some(()));
    assert!(swept.is_some(), "nobody looks after it");
}

/// Puts both halves of an established flow into the table, last heard at that time.
fn put_flow(plane: &Plane, client_port: u16, net: u8, touched_s: u32) {
    put_flow_in(plane, client_port, net, touched_s, LB_SEEN_SYN | LB_SEEN_ACK);
}

fn put_flow_in(plane: &Plane, client_port: u16, net: u8, touched_s: u32, state: u32) {
    let client = words_of([10, 99, net, 1].into());
    let (vip, endpoint): (SocketAddr, SocketAddr) = (VIP.parse().unwrap(), address(0));
    let half = |from: [u32; 4], sport: u16, to: [u32; 4], dport: u16| lb_flow_key {
        saddr: from,
        daddr: to,
        sport: sport.to_be(),
        dport: dport.to_be(),
        proto: plan::TCP,
        pad: [0; 3],
    };
    let leaves_as = |key: &lb_flow_key, flags: u32| lb_flow {
        saddr: key.saddr,
        daddr: key.daddr,
        sport: key.sport,
        dport: key.dport,
        state,
        touched_s,
        flags: flags as u8,
        ..lb_flow::default()
    };
    let there = half(client, client_port, words_of(vip.ip()), vip.port());
    let there_after = half(client, client_port, words_of(endpoint.ip()), endpoint.port());
    let back = half(words_of(endpoint.ip()), endpoint.port(), client, client_port);
    let back_after = half(words_of(vip.ip()), vip.port(), client, client_port);
    set(&plane.maps.flows, &there, &leaves_as(&there_after, LB_FLOW_NEW_DADDR)).unwrap();
    set(&plane.maps.flows, &back, &leaves_as(&back_after, LB_FLOW_NEW_SADDR | LB_FLOW_REPLY)).unwrap();
}

#[test]
fn a_large_table_is_gone_over_in_steps() {
    let Some(mut lab) = Lab::new(1) else { return };
    lab.options.flows_max = 32_768;
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let now_s = host::now_s();
    for number in 0..20_000_u16 {
        // One in four has been silent for longer than an hour, and waits for an answer.
        let (silent_s, state) = if number % 4 == 0 { (4000, LB_SEEN_SYN) } else { (0, LB_SEEN_SYN | LB_SEEN_ACK) };
        put_flow_in(&plane, number, 0, now_s.wrapping_sub(silent_s), state);
    }
    assert_eq!(lab.lb.inside(|| plane.collect()), Ok(None), "all of it in one step");
    let collected = lab.collect(&mut plane);
    assert_eq!((collected.expired, collected.closed, collected.kept), (5000, 0, 30_000));
    assert_eq!(plane.counters().unwrap().flows_used, 30_000);
    assert_eq!(lab.collect(&mut plane), Collected { kept: 30_000, ..Collected::default() });
}

#[test]
fn a_vip_that_goes_while_a_collection_is_under_way_takes_its_flows_along() {
    let Some(mut lab) = Lab::new(1) else { return };
    lab.options.flows_max = 32_768;
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let now_s = host::now_s();
    (0..20_000).for_each(|number| put_flow(&plane, number, 0, now_s));
    assert_eq!(lab.lb.inside(|| plane.collect()), Ok(None));
    lab.apply(&mut plane, &[]).unwrap();
    // The rest of the table is left for the next collection: until then neither index is reused.
    let collected = lab.collect(&mut plane);
    assert!(collected.kept > 0 && collected.freed == 0, "{collected:?}");
    let other = Vip { address: "20.0.0.2".parse().unwrap(), ..lab.vip(&[0]) };
    lab.apply(&mut plane, std::slice::from_ref(&other)).unwrap();
    assert_eq!(plane.plan.vips.keys().copied().collect::<Vec<_>>(), [1]);
    let collected = lab.collect(&mut plane);
    assert_eq!((collected.kept, collected.freed), (0, 1), "{collected:?}");
}

#[test]
fn all_flows_of_a_full_table_are_listed() {
    let Some(mut lab) = Lab::new(1) else { return };
    lab.options.flows_max = 16_384;
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let now_s = host::now_s();
    // Two entries each. Pages end where the next bucket does not fit, long before the last one.
    (0..15_000).for_each(|number| put_flow(&plane, number, 0, now_s));
    let (flows, more) = plane.flows(None, usize::MAX).unwrap();
    assert_eq!((flows.len(), more), (15_000, false));
}

#[test]
fn a_table_that_fills_up_says_so() {
    let Some(mut lab) = Lab::new(1) else { return };
    lab.options.flows_max = 8;
    let mut plane = lab.open();
    lab.apply(&mut plane, &[lab.vip(&[0])]).unwrap();
    let mut streams: Vec<_> = (0..6).map(|_| lab.connect()).collect();
    let check = |plane: &mut Plane, used: u64, pressure: bool| {
        lab.collect(plane);
        let counters = plane.counters().unwrap();
        assert_eq!((counters.flows_used, counters.flows_max, counters.pressure), (used, 16, pressure));
    };
    check(&mut plane, 12, false);
    streams.push(lab.connect());
    check(&mut plane, 14, true);
}

#[test]
fn a_plane_that_has_no_interfaces_goes_with_its_namespace() {
    let beside = Beside(PathBuf::from(format!("/sys/fs/bpf/steelyard-test-{}-lonely", std::process::id())));
    let Some(mut other) = Lab::new(0) else { return };
    other.options.pin_dir = Some(beside.0.join("other"));
    let gone = {
        let Some(mut lab) = Lab::new(0) else { return };
        lab.lb.ip("link del client0").unwrap();
        lab.options.pin_dir = Some(beside.0.join("lab"));
        let mut plane = lab.open();
        let nowhere = Vip { interfaces: Vec::new(), ..lab.vip(&[0]) };
        lab.apply(&mut plane, &[nowhere]).unwrap();
        assert!(plane.pins.links().is_empty());
        let folder = plane.pins.folder.clone();
        drop(plane);
        sweep(&Pins::new(&other.options).unwrap());
        assert!(folder.exists(), "its namespace is there, although nothing looks after it");
        // As after `kill -9`.
        lab.options.pin_dir = Some(PathBuf::from("/sys/fs/bpf/steelyard-test-nothing"));
        folder
    };
    // The kernel ends a namespace in the background.
    let swept = until(PATIENCE, || {
        sweep(&Pins::new(&other.options).unwrap());
        (!gone.exists()).then_some(())
    });
    assert!(swept.is_some(), "{} is still there", gone.display());
}

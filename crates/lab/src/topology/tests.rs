//! Packets take the paths that a topology makes, and nothing of it remains.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use super::*;
use crate::host::is_root;

fn load_path(index: u8, layer: Layer, binds: bool) -> LoadPath {
    LoadPath { index, layer, binds, pods: false, placement: Placement::new(&[0, 1], 1) }
}

/// Sends its name to every client that connects, until the namespace is removed.
fn origin(namespace: &str, name: &'static str) {
    let listener = inside(namespace, || TcpListener::bind("0.0.0.0:9000")).unwrap().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let from = stream.peer_addr().map(|address| address.ip().to_string()).unwrap_or_default();
            let _ = stream.write_all(format!("{name} {from}").as_bytes());
        }
    });
}

fn ask(namespace: &str, to: SocketAddr) -> io::Result<String> {
    inside(namespace, move || {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    })?
}

#[test]
fn direct_and_routed_reach_every_origin_and_all_is_gone_afterwards() {
    if !is_root() {
        crate::host::skip("topology: network namespaces take root");
        return;
    }
    let tag = crate::leftovers::tag("topology");
    let mut topology = Topology::new(&tag, 2, 1400, true).unwrap();
    let load_paths =
        [load_path(0, Layer::Direct, false), load_path(1, Layer::Routed, false), load_path(2, Layer::Tcp, true)];
    for load_path in &load_paths {
        topology.add_load_path(load_path).unwrap();
    }
    origin(&topology.origin(0), "zero");
    origin(&topology.origin(1), "one");
    for load_path in &load_paths[..2] {
        let vip = SocketAddr::from((load_path.vip(), 9000));
        let said: BTreeSet<_> = (0..64).map(|_| ask(&topology.client(), vip).unwrap()).collect();
        // Both answer, and both see the first client address of this path.
        let client = load_path.clients()[0];
        assert_eq!(said, [format!("one {client}"), format!("zero {client}")].into());
        topology.use_origins(load_path, 1).unwrap();
        let said: BTreeSet<_> = (0..16).map(|_| ask(&topology.client(), vip).unwrap()).collect();
        assert_eq!(said, [format!("zero {client}")].into());
    }
    // A balancer that binds its VIP is reachable there, and reaches the origins.
    let balancer = topology.balancer(&load_paths[2]);
    let vip = SocketAddr::from((load_paths[2].vip(), 9000));
    let listener = inside(&balancer, move || TcpListener::bind(vip)).unwrap().unwrap();
    let mut greeting = String::new();
    let client = topology.client();
    let asking = std::thread::spawn(move || ask(&client, vip));
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"here").unwrap();
    drop(stream);
    greeting += &asking.join().unwrap().unwrap();
    assert_eq!(greeting, "here");
    let behind = SocketAddr::from((load_paths[2].endpoint(1), 9000));
    assert_eq!(ask(&balancer, behind).unwrap(), "one 10.101.2.254");

    let settings = settings(&balancer).unwrap();
    let cubic = settings.iter().find(|setting| setting.name.ends_with("congestion_control")).unwrap();
    assert_eq!(cubic.value, "cubic");
    let steered = Command::new("ip")
        .args([
            "netns",
            "exec",
            &balancer,
            "cat",
            "/sys/class/net/client0/queues/rx-0/rps_cpus",
            "/sys/class/net/ep1/mtu",
        ])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&steered.stdout).split_whitespace().collect::<Vec<_>>(), ["2", "1400"]);

    let names = topology.namespaces().to_vec();
    assert!(names.iter().all(|name| path_of(name).exists()));
    drop(topology);
    assert!(!names.iter().any(|name| path_of(name).exists()));
}

#[test]
fn pods_are_joined_by_one_link_and_have_a_way_to_the_address() {
    if !is_root() {
        crate::host::skip("topology: network namespaces take root");
        return;
    }
    let mut topology = Topology::new(&crate::leftovers::tag("pods"), 1, 1500, false).unwrap();
    let pods = [0, 1].map(|index| LoadPath { pods: true, ..load_path(index, Layer::Tcp, false) });
    for pod in &pods {
        topology.add_load_path(pod).unwrap();
    }
    let names: BTreeSet<_> =
        pods.iter().flat_map(|pod| [topology.client_of(pod), topology.origin_of(pod, 0)]).collect();
    assert_eq!(names.len(), 4);
    let pod = &pods[1];
    origin(&topology.origin_of(pod, 0), "app");
    let client = topology.client_of(pod);
    assert_eq!(ask(&client, SocketAddr::from((pod.endpoint(0), 9000))).unwrap(), "app 10.100.1.254");
    // Nothing captures the address here, so the other pod has no way on. But it is asked, from the first of the client's addresses.
    let route = Command::new("ip").args(["-n", &client, "route", "get", &pod.vip().to_string()]).output().unwrap();
    let route = String::from_utf8_lossy(&route.stdout).into_owned();
    assert!(route.contains("via 10.100.1.1") && route.contains("src 10.10.1.1"), "{route}");
}

#[test]
fn what_goes_wrong_names_the_command() {
    let error = run(Command::new("ip").args(["link", "show", "nosuchlink"]), "").unwrap_err().to_string();
    assert!(error.contains("`ip link show nosuchlink` failed") && error.contains("nosuchlink"), "{error}");
}

//! Vips that follow the routes, and endpoints without a route.

use super::*;

/// A vip without interfaces, with these endpoints.
fn routed_vip(lab: &Lab, endpoints: &[&str]) -> Vip {
    let endpoint = |address: &&str| Endpoint {
        address: EndpointAddress::Socket(address.parse().unwrap()),
        weight: 1,
        priority: 0,
        zone: model::Zone::Unknown,
        host: None,
    };
    Vip { interfaces: Vec::new(), endpoints: endpoints.iter().map(endpoint).collect(), ..lab.vip(&[]) }
}

fn attached(plane: &Plane) -> Vec<&str> {
    let mut names: Vec<&str> = plane.attached.values().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names.len(), plane.pins.links().len(), "{names:?}");
    names
}

/// The endpoints that serve this many connections, each once.
fn servers(lab: &Lab, connections: usize) -> Vec<u8> {
    let mut served: Vec<u8> = (0..connections).map(|_| lab.connect().1).collect();
    served.sort_unstable();
    served.dedup();
    served
}

#[test]
fn an_endpoint_without_a_way_is_down_and_the_others_serve() {
    let Some(lab) = Lab::new(2) else { return };
    let far: SocketAddr = "172.16.0.1:80".parse().unwrap();
    lab.lb.ip("route add default via 10.0.0.2").unwrap();
    lab.endpoints[1].ip("addr add 172.16.0.1/32 dev eth0").unwrap();
    // There is a default route, so only this shows that there is no route.
    lab.lb.ip("route add unreachable 172.16.0.0/16").unwrap();
    let mut plane = lab.open();
    let mode = VipMode::FullNat { sources: Vec::new() };
    let full = Vip { mode, ..routed_vip(&lab, &["10.1.0.2:80", "172.16.0.1:80"]) };
    let named = Vip { interfaces: lab.vip(&[]).interfaces, ..full.clone() };
    let nat = Vip { mode: VipMode::Nat, ..full.clone() };
    for (vip, why) in [(named, "no source address"), (full, "no route"), (nat, "no route")] {
        let vips = [vip];
        lab.apply(&mut plane, &vips).unwrap();
        assert!(plane.why_unreachable("web", far).is_some_and(|told| told.contains(why)), "{why}");
        assert_eq!((plane.why_unreachable("web", address(0)), servers(&lab, 4)), (None, vec![0]), "{why}");
        assert!(!lab.collect(&mut plane).reach_differs, "{why}");

        lab.lb.ip("route replace 172.16.0.0/16 via 10.1.1.2").unwrap();
        assert!(lab.collect(&mut plane).reach_differs, "{why}");
        lab.apply(&mut plane, &vips).unwrap();
        assert_eq!((plane.why_unreachable("web", far), servers(&lab, 4)), (None, vec![0, 1]), "{why}");
        assert!(!lab.collect(&mut plane).reach_differs, "{why}");
        lab.lb.ip("route replace unreachable 172.16.0.0/16").unwrap();
    }
    // With routes, a lost route is noticed too.
    assert!(lab.collect(&mut plane).reach_differs);
}

#[test]
fn endpoints_on_this_host_are_served_along_the_routes() {
    let Some(lab) = Lab::new(2) else { return };
    // As most Kubernetes network plug-ins do it: each pod has a veth of its own, and a route to it.
    let pods = [Netns::new("pod").unwrap(), Netns::new("bridged").unwrap()];
    join((&lab.lb, "cali7"), (&pods[0], "eth0"), 1500).unwrap();
    lab.lb.ip("route add default via 10.0.0.2\nroute add 10.244.0.7/32 dev cali7").unwrap();
    lab.lb.sysctl("net.ipv4.conf.cali7.proxy_arp", "1").unwrap();
    let way = "route add 169.254.1.1 dev eth0 scope link\nroute add default via 169.254.1.1 dev eth0";
    pods[0].ip(&format!("addr add 10.244.0.7/32 dev eth0\n{way}")).unwrap();
    // And as others do it: all of them are ports of a bridge, which has the host's address.
    join((&lab.lb, "port8"), (&pods[1], "eth0"), 1500).unwrap();
    lab.lb
        .ip("link add cni0 type bridge\nlink set port8 master cni0\nlink set cni0 up\naddr add 10.244.1.1/24 dev cni0")
        .unwrap();
    pods[1].ip("addr add 10.244.1.8/24 dev eth0\nroute add default via 10.244.1.1").unwrap();
    serve(&pods[0], 7);
    serve(&pods[1], 8);
    let mut plane = lab.open();
    let both = routed_vip(&lab, &["10.244.0.7:80", "10.244.1.8:80"]);
    for mode in [VipMode::Nat, VipMode::FullNat { sources: Vec::new() }] {
        let vip = Vip { mode, ..both.clone() };
        lab.apply(&mut plane, std::slice::from_ref(&vip)).unwrap();
        assert_eq!(attached(&plane), ["cali7", "client0", "cni0"]);
        assert_eq!(plane.interfaces_of(&vip), ["client0", "cali7", "cni0"]);
        assert_eq!(servers(&lab, 4), [7, 8]);
        let mut streams: Vec<TcpStream> = (0..4).map(|_| lab.connect().0).collect();
        assert!(streams.iter_mut().all(echoes));
    }
    // In mode `nat` the endpoint sees the client, so only the vip attracts its reply.
    lab.apply(&mut plane, &[both]).unwrap();
    let (stream, _) = lab.connect();
    assert_eq!(stream.peer_addr().unwrap().to_string(), VIP);
    let web = &plane.counters().unwrap().vips["web"];
    assert!(web.endpoints.values().all(|endpoint| endpoint.packets[1] > 0), "{web:?}");
}

#[test]
fn attached_interfaces_follow_the_routes() {
    let Some(lab) = Lab::new(2) else { return };
    let mut plane = lab.open();
    let vip = routed_vip(&lab, &["10.1.0.2:80"]);
    lab.apply(&mut plane, std::slice::from_ref(&vip)).unwrap();
    assert_eq!(attached(&plane), ["ep0"], "there is no default route");
    lab.lb.ip("route add default via 10.0.0.2").unwrap();
    lab.collect(&mut plane);
    assert_eq!((attached(&plane), servers(&lab, 1)), (vec!["client0", "ep0"], vec![0]));

    // Another endpoint. The first keeps its connections.
    let (mut stream, _) = lab.connect();
    let other = routed_vip(&lab, &["10.1.1.2:80"]);
    lab.apply(&mut plane, std::slice::from_ref(&other)).unwrap();
    for _ in 0..10 {
        lab.collect(&mut plane);
    }
    assert_eq!(attached(&plane), ["client0", "ep0", "ep1"]);
    assert!(echoes(&mut stream));
    drop(stream);
    let left = until(PATIENCE, || {
        lab.collect(&mut plane);
        (attached(&plane) == ["client0", "ep1"]).then_some(())
    });
    assert!(left.is_some(), "{:?}", plane.attached);

    // One route disappears for a moment, another one for good.
    lab.lb.ip("route del default").unwrap();
    lab.collect(&mut plane);
    assert_eq!(attached(&plane), ["client0", "ep1"]);
    for _ in 0..10 {
        lab.collect(&mut plane);
    }
    assert_eq!(attached(&plane), ["ep1"]);

    // Packets of a tunnel cannot be read, and packets from an address of this host arrive on no interface.
    lab.lb.ip("tuntap add tun7 mode tun\nlink set tun7 up\nroute add 172.17.0.0/16 dev tun7").unwrap();
    let nowhere = routed_vip(&lab, &["172.17.0.1:80", "10.1.0.1:80", "10.1.1.2:80"]);
    lab.apply(&mut plane, std::slice::from_ref(&nowhere)).unwrap();
    assert_eq!(attached(&plane), ["ep1"]);
    let why = plane.why_unreachable("web", "172.17.0.1:80".parse().unwrap()).unwrap();
    assert!(why.contains("tun7, whose packets have no Ethernet header"), "{why}");
    assert_eq!(plane.why_unreachable("web", "10.1.0.1:80".parse().unwrap()), None);

    // Named interfaces replace the routes at once.
    lab.apply(&mut plane, &[Vip { interfaces: vec!["ep0".to_owned()], ..vip }]).unwrap();
    assert_eq!(attached(&plane), ["ep0"]);
}

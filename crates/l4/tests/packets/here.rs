//! Clients and endpoints that are one host: endpoints at addresses of this host, and clients that are their own endpoint.

use testkit::packet::{ACK, FIN, IcmpError, Packet, SYN};

use super::layout::{HERE, TCP, UDP, mode, state};
use super::plane::{CLIENT, ENDPOINT, Plane, Vip, with_plane};

/// An address of a client, a vip, and an endpoint at an address of this host.
const V4: [&str; 3] = ["10.10.10.1:40000", "20.20.20.1:2020", "32.32.32.254:5001"];
const V6: [&str; 3] = ["[fd00:10::1]:40000", "[fd00:20::1]:2020", "[fd00:32::fe]:5001"];

const ENDPOINT_DOWN: u32 = 8;
const PORTS_EXHAUSTED: u32 = 10;

/// A vip with one endpoint on this host. Returns the index of the endpoint.
fn here(plane: &mut Plane, vip: &Vip) -> u32 {
    let endpoint = plane.add(vip);
    plane.set_source(endpoint, HERE);
    endpoint
}

#[test]
fn packets_for_this_host_and_its_answers() {
    with_plane("packets_for_this_host_and_its_answers", |plane| {
        for (index, ([client, vip, endpoint], mode)) in [(V4, mode::NAT), (V6, mode::FULL_NAT)].into_iter().enumerate()
        {
            let is_ipv4 = client == V4[0];
            let mut tcp = Vip::new(2 * index as u32, TCP, vip, &[endpoint]);
            tcp.mode = mode;
            let own = here(plane, &tcp);
            here(plane, &Vip { index: 2 * index as u32 + 1, proto: UDP, ..tcp });
            // Neither is forwarded, so no hop counts, and the endpoint sees the client.
            let syn = Packet::tcp(client, vip).flags(SYN).ttl(1 + 1);
            plane.send(CLIENT, &syn).passed(&syn.clone().to(endpoint));
            let answer = Packet::tcp(endpoint, client).flags(SYN | ACK);
            plane.leave(CLIENT, &answer).passed(&answer.clone().from(vip));
            let data = Packet::tcp(client, vip).flags(ACK).payload_bytes(777).ttl(1);
            plane.send(CLIENT, &data).passed(&data.clone().to(endpoint));
            let data = Packet::tcp(endpoint, client).flags(ACK).payload_bytes(999);
            plane.leave(CLIENT, &data).passed(&data.clone().from(vip));
            assert_eq!(plane.active(own), 1);
            let [to, from, _, _, flows] = plane.counters(own);
            assert_eq!((to, from, flows), (2, 2, 1));
            let question = Packet::udp(client, vip).payload(b"question");
            plane.send(CLIENT, &question).passed(&question.clone().to(endpoint));
            let answer = Packet::udp(endpoint, client).payload(b"an answer");
            plane.leave(CLIENT, &answer).passed(&answer.clone().from(vip));
            // The host refuses a datagram: its error quotes what it got, and the client must see what it sent.
            let refused = Packet::error(&host(endpoint), IcmpError::PortUnreachable, &question.clone().to(endpoint));
            let expect = Packet::error(&host(vip), IcmpError::PortUnreachable, &question).ttl(63);
            let expect = expect.macs(refused.source_mac, refused.destination_mac);
            plane.leave(CLIENT, &refused).passed(&expect);
            // A router tells this host that its answer is too big.
            let quoted = Packet::tcp(vip, client).flags(ACK).payload_bytes(1400);
            let router = if is_ipv4 { "10.10.10.253" } else { "fd00:10::fd" };
            let error = Packet::error(router, IcmpError::TooBig(1300), &quoted)
                .quote(60)
                .macs(data.source_mac, data.destination_mac);
            let told = plane.send(CLIENT, &error);
            let expect =
                Packet::error(router, IcmpError::TooBig(1300), &quoted.clone().from(endpoint)).quote(60).ttl(63);
            told.passed(&expect.macs(data.source_mac, data.destination_mac));
        }
        plane.assert_drops(&[]);
    });
}

/// The address without its port.
fn host(at: &str) -> String {
    at.parse::<std::net::SocketAddr>().unwrap().ip().to_string()
}

#[test]
fn what_else_leaves_is_not_touched() {
    with_plane("what_else_leaves_is_not_touched", |plane| {
        let [client, vip, endpoint] = V4;
        here(plane, &Vip::new(0, TCP, vip, &[endpoint]));
        // A flow of another endpoint, whose replies arrive and are not this host's.
        plane.add(&Vip::new(1, TCP, "20.20.20.2:2020", &["31.31.31.1:5001"]));
        let syn = Packet::tcp(client, "20.20.20.2:2020").flags(SYN);
        plane.send(CLIENT, &syn).forwarded(&syn.clone().to("31.31.31.1:5001").ttl(63));
        for packet in [
            Packet::tcp(endpoint, client).flags(ACK),
            Packet::tcp("31.31.31.1:5001", client).flags(ACK),
            Packet::tcp(client, vip).flags(SYN),
            Packet::udp(endpoint, client),
            Packet::error("32.32.32.254", IcmpError::PortUnreachable, &Packet::udp(client, endpoint)),
            Packet::error("31.31.31.1", IcmpError::PortUnreachable, &Packet::tcp(client, "31.31.31.1:5001")).quote(40),
        ] {
            plane.leave(CLIENT, &packet).untouched(&packet.build());
        }
        plane.assert_drops(&[]);
    });
}

#[test]
fn an_endpoint_here_that_is_down() {
    with_plane("an_endpoint_here_that_is_down", |plane| {
        let [client, vip, endpoint] = V4;
        let own = here(plane, &Vip::new(0, TCP, vip, &[endpoint]));
        let syn = Packet::tcp(client, vip).flags(SYN);
        plane.send(CLIENT, &syn).passed(&syn.clone().to(endpoint));
        plane.set_state(own, state::DOWN);
        // Its answer leaves no more, and the client gets a RST with its next segment: the flow is gone.
        plane.leave(CLIENT, &Packet::tcp(endpoint, client).flags(SYN | ACK)).dropped();
        assert_eq!(plane.flow_count(), 0);
        plane.assert_drops(&[ENDPOINT_DOWN]);
    });
}

#[test]
fn a_connection_here_from_its_beginning_to_its_end() {
    with_plane("a_connection_here_from_its_beginning_to_its_end", |plane| {
        let [client, vip, endpoint] = V4;
        let own = here(plane, &Vip::new(0, TCP, vip, &[endpoint]));
        let there = |flags| {
            let packet = Packet::tcp(client, vip).flags(flags);
            plane.send(CLIENT, &packet).passed(&packet.clone().to(endpoint));
        };
        let back = |flags| {
            let packet = Packet::tcp(endpoint, client).flags(flags);
            plane.leave(CLIENT, &packet).passed(&packet.clone().from(vip));
        };
        there(SYN);
        back(SYN | ACK);
        there(ACK);
        // The route is not asked for again: the host itself is the end.
        plane.age(5);
        there(ACK);
        back(ACK);
        assert_eq!(plane.active(own), 1);
        back(FIN | ACK);
        there(FIN | ACK);
        back(ACK);
        assert_eq!(plane.active(own), 0);
        plane.age(60);
        plane.collect();
        assert_eq!(plane.flow_count(), 0);
        plane.assert_drops(&[]);
    });
}

#[test]
fn a_client_that_is_its_own_endpoint() {
    with_plane("a_client_that_is_its_own_endpoint", |plane| {
        let (client, vip, endpoint) = ("31.31.31.1:40000", "20.20.20.1:2020", "31.31.31.1:5001");
        let mut nat = Vip::new(0, TCP, vip, &[endpoint]);
        nat.pool = (vec!["31.31.255.254".parse().unwrap()], 2000, 2000);
        plane.add(&nat);
        let syn = Packet::tcp(client, vip).flags(SYN);
        let seen = "31.31.255.254:2000";
        plane.send(ENDPOINT[0], &syn).forwarded(&syn.clone().from(seen).to(endpoint).ttl(63));
        let answer = Packet::tcp(endpoint, seen).flags(SYN | ACK);
        plane.send(ENDPOINT[0], &answer).forwarded(&answer.clone().from(vip).to(client).ttl(63));
        // Others are seen as what they are.
        let other = Packet::tcp("31.31.31.2:40000", vip).flags(SYN);
        plane.send(ENDPOINT[0], &other).forwarded(&other.clone().to(endpoint).ttl(63));
        plane.assert_drops(&[]);
        let second = Packet::tcp("31.31.31.1:40001", vip).flags(SYN);
        plane.send(ENDPOINT[0], &second).dropped();
        plane.assert_drops(&[PORTS_EXHAUSTED]);
    });
}

//! The source ports of `full_nat`, towards an endpoint that closes each connection first and so holds it in TIME_WAIT.
#![forbid(unsafe_code)]

mod support;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use support::network::{Family, Links, Network, SILENCE, Vips, vip, within};
use testkit::{PATIENCE, Program, until};

/// Sends back a byte and closes.
const CLOSES_FIRST: &str = "
import socket, sys
listener = socket.create_server(('31.31.31.1', 8080), backlog=128)
print('listening', file=sys.stderr, flush=True)
while True:
    connection, _ = listener.accept()
    connection.send(connection.recv(1))
    connection.close()
";

/// The ports that the balancer may use towards an endpoint.
const PORTS: usize = 20;
/// Clients, each with its own address, and so with its own timestamps: the endpoint can tell them apart.
const CLIENTS: usize = 8;
/// The longest time until a tuple may be used again.
const REST_MAX: Duration = Duration::from_secs(90);

fn to() -> SocketAddr {
    SocketAddr::new(Family::V4.vip(1), 80)
}

fn address(client: usize) -> IpAddr {
    Ipv4Addr::new(10, 10, 10, 1 + (client % CLIENTS) as u8).into()
}

/// One short connection of a client. `None`: it was not accepted at once.
fn connection(network: &Network, client: usize) -> Option<()> {
    let stream: TcpStream = network.client.inside(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(address(client), 0).into()).unwrap();
        socket.connect_timeout(&to().into(), SILENCE).ok().map(|()| socket.into())
    })?;
    exchange(stream).ok()
}

fn exchange(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"x")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    assert_eq!(answer, b"x");
    Ok(())
}

/// What the endpoint's kernel has counted about segments for tuples in TIME_WAIT: refused SYNs, and tuples that were used again.
fn met(network: &Network) -> Vec<u64> {
    let said = network.endpoints[0].run(&["cat", "/proc/thread-self/net/netstat"]).unwrap();
    let mut lines = said.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, counts) = (lines.next().unwrap(), lines.next().unwrap());
    let counted: Vec<(&str, &str)> = names.split(' ').zip(counts.split(' ')).collect();
    let count = |name: &str| counted.iter().find(|(known, _)| *known == name).unwrap().1.parse().unwrap();
    ["PAWSTimewait", "TCPACKSkippedTimeWait", "TWRecycled"].map(count).to_vec()
}

fn waiting(network: &Network) -> usize {
    network.endpoints[0].run(&["ss", "-Htn", "state", "time-wait"]).unwrap().lines().count()
}

#[test]
fn full_nat_meets_no_time_wait() {
    within("full_nat_meets_no_time_wait", Links::default(), |network| {
        // Everything above belongs to the balancer's own sockets.
        network.balancer.sysctl("net.ipv4.ip_local_port_range", &format!("{} 65535", 1024 + PORTS)).unwrap();
        // As hardened hosts have it: an RST does not end a TIME_WAIT, so a SYN that meets one is not accepted for a minute.
        network.endpoints[0].sysctl("net.ipv4.tcp_rfc1337", "1").unwrap();
        for client in 1..CLIENTS {
            network.client.ip(&format!("addr add {}/24 dev eth0", address(client))).unwrap();
        }
        let mut endpoint: Program =
            network.endpoints[0].spawn("python3", Command::new("python3").args(["-c", CLOSES_FIRST])).unwrap();
        let listens = until(PATIENCE, || endpoint.log().contains("listening").then_some(()));
        assert!(listens.is_some(), "{}", endpoint.log());
        let mut vips = Vips::serve(&vip("web", to(), "tcp", "endpoints: ['31.31.31.1:8080'], mode: full_nat"));
        let exhausted = [("vip", "web"), ("reason", "ports_exhausted")];

        let failed: Vec<usize> = (0..PORTS).filter(|client| connection(network, *client).is_none()).collect();
        assert_eq!((failed, waiting(network)), (vec![], PORTS), "each port once");
        // Even when the flows are forgotten, which takes some seconds, the tuples are not used.
        vips.steelyard.until("no flow", |status| status["kernel_plane"]["entries"] == 0);
        let served = (0..3).filter(|client| connection(network, *client).is_some()).count();
        assert_eq!(served, 0, "all {PORTS} tuples are in TIME_WAIT");
        let refused = vips.steelyard.metric("steelyard_vip_drops_total", &exhausted);
        assert!(refused >= 3.0, "{refused} packets were counted");
        // A minute later all serve again, and none too early.
        for client in 0..PORTS {
            assert!(
                until(REST_MAX, || connection(network, client)).is_some(),
                "connection {client} of the second round"
            );
        }
        assert_eq!(met(network), [0, 0, 0], "a SYN met a TIME_WAIT");
    });
}

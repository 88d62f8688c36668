//! A network for tests: a client, the balancer, and three endpoints, each in its own namespace, connected by veth pairs.
//!
//! ```text
//! client 10.10.10.1 ---- client0 .254  balancer  .254 ep0 ---- 31.31.31.1 endpoint 0
//!     fd00:10::1                                 .254 ep1 ---- 32.32.32.1 endpoint 1    the same with fd00:31::1 and so on
//!                                                .254 ep2 ---- 33.33.33.1 endpoint 2
//! ```
//!
//! No host has addresses in 20.20.20.0/24 and fd00:20::/64, where the vips are: the default routes of the client and the endpoints lead to
//! the balancer. A test runs in the balancer's namespace ([`within`]), so that what it starts is there, and enters the others when needed.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use lab::load::{HttpLoad, LoadReport, Target, Until, run_http};
use serde_json::Value;
use testkit::netns::{Netns, join};
use testkit::{Finished, PATIENCE, Program};

use super::echo::Echo;
use super::{Origin, Steelyard, run, skip, steelyard};

/// Where each endpoint answers HTTP, with its name in `x-origin`, on both ports.
pub const HTTP_PORTS: [u16; 2] = [80, 5001];
/// All interfaces of the balancer, in the form of a configuration.
pub const INTERFACES: &str = "[client0, ep0, ep1, ep2]";
/// The beginnings of the addresses, by family.
const CLIENT: [&str; 2] = ["10.10.10", "fd00:10:"];
const ENDPOINTS: [[&str; 2]; 3] = [["31.31.31", "fd00:31:"], ["32.32.32", "fd00:32:"], ["33.33.33", "fd00:33:"]];
const VIPS: [&str; 2] = ["20.20.20", "fd00:20:"];
/// After this long without an answer, there is none: nothing here is that slow.
pub const SILENCE: Duration = Duration::from_millis(300);

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    fn host(self, prefix: [&str; 2], host: u8) -> IpAddr {
        let text = match self {
            Self::V4 => format!("{}.{host}", prefix[0]),
            Self::V6 => format!("{}:{host:x}", prefix[1]),
        };
        text.parse().unwrap()
    }

    /// The client's address.
    pub fn client(self) -> IpAddr {
        self.host(CLIENT, 1)
    }

    /// The address of one endpoint.
    pub fn endpoint(self, index: usize) -> IpAddr {
        self.host(ENDPOINTS[index], 1)
    }

    /// The balancer's address on the link to the client.
    pub fn gateway(self) -> IpAddr {
        self.host(CLIENT, 254)
    }

    /// The balancer's address on the link to an endpoint.
    pub fn balancer(self, index: usize) -> IpAddr {
        self.host(ENDPOINTS[index], 254)
    }

    /// An address that no host has.
    pub fn vip(self, host: u8) -> IpAddr {
        self.host(VIPS, host)
    }

    /// Addresses and port of all three endpoints, in the form of a configuration.
    pub fn endpoints(self, port: u16) -> String {
        let all: Vec<String> =
            (0..3).map(|index| format!("'{}'", SocketAddr::new(self.endpoint(index), port))).collect();
        format!("[{}]", all.join(", "))
    }

    fn prefix_bits(self) -> u8 {
        if self == Self::V4 { 24 } else { 64 }
    }
}

/// Properties of the links.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// The MTU of all links.
    pub mtu: u32,
    /// The offload of all links.
    pub offload: Offload,
}

/// What senders leave to the network card. A veth pair does none of it, and passes unfinished packets on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// What the kernel by default leaves to a veth pair: checksums and segmentation.
    All,
    /// Only checksums.
    NoSegments,
    /// Nothing: senders compute checksums, and receivers verify them.
    NoSums,
    /// The client and the endpoints leave checksums and segmentation to the link, and the balancer leaves nothing: its kernel finishes
    /// outgoing packets. A bridge is between it and each link, so that it cannot hand packets directly to the other end.
    LikeHardware,
}

impl Default for Links {
    fn default() -> Self {
        Self { mtu: 1500, offload: Offload::All }
    }
}

/// The five namespaces.
pub struct Network {
    pub client: Netns,
    pub balancer: Netns,
    pub endpoints: [Netns; 3],
    links: Links,
}

/// Makes the network and runs `test` in the balancer's namespace; prints that the test is skipped if that is not possible.
pub fn within(name: &str, links: Links, test: impl FnOnce(&Network) + Send) {
    if !rustix::process::geteuid().is_root() {
        return skip(name, "the kernel plane is root's");
    }
    let network = Network::new(links);
    network.balancer.inside(|| test(&network));
}

impl Network {
    fn new(links: Links) -> Self {
        let netns = |name: &str| Netns::new(name).unwrap();
        let network = Self {
            client: netns("client"),
            balancer: netns("balancer"),
            endpoints: ["endpoint 0", "endpoint 1", "endpoint 2"].map(netns),
            links,
        };
        let balancer = &network.balancer;
        balancer.forward().unwrap();
        network.link("client0", &network.client, CLIENT, links);
        for (index, endpoint) in network.endpoints.iter().enumerate() {
            network.link(&format!("ep{index}"), endpoint, ENDPOINTS[index], links);
        }
        network
    }

    /// Replaces a deleted link to an endpoint.
    pub fn link_again(&self, index: usize) {
        self.link(&format!("ep{index}"), &self.endpoints[index], ENDPOINTS[index], self.links);
    }

    /// Joins `other` to the balancer, which is its default gateway.
    fn link(&self, interface: &str, other: &Netns, prefix: [&str; 2], links: Links) {
        let Links { mtu, offload } = links;
        if offload == Offload::LikeHardware {
            let port = port_of(interface);
            join((&self.balancer, &port), (other, "eth0"), mtu).unwrap();
            let bridge = format!("link add {interface} mtu {mtu} type bridge\nlink set {port} master {interface}");
            self.balancer.ip(&format!("{bridge}\nlink set dev {interface} up")).unwrap();
            self.balancer.offload(&port, "tx off").unwrap();
        } else {
            join((&self.balancer, interface), (other, "eth0"), mtu).unwrap();
        }
        let features = match offload {
            Offload::All | Offload::LikeHardware => None,
            Offload::NoSegments => Some("tso off gso off gro off"),
            Offload::NoSums => Some("tx off"),
        };
        if let Some(features) = features {
            self.balancer.offload(interface, features).unwrap();
            other.offload("eth0", features).unwrap();
        }
        let mut here = String::new();
        let mut there = String::new();
        for family in FAMILIES {
            let (bits, gateway) = (family.prefix_bits(), family.host(prefix, 254));
            here += &format!("addr add {gateway}/{bits} dev {interface}\n");
            there += &format!("addr add {}/{bits} dev eth0\n", family.host(prefix, 1));
            there += &format!("route add default via {gateway}\n");
        }
        self.balancer.ip(&here).unwrap();
        other.ip(&there).unwrap();
    }

    /// Makes a link carry 1,280 bytes, while `other` at its end still claims the MTU of its old link: only an ICMP error informs a sender.
    /// `gateways` are the balancer's addresses on that link. (A veth end drops packets above its own MTU, so both ends are lowered.)
    pub fn narrow(&self, interface: &str, other: &Netns, gateways: [IpAddr; 2]) {
        if self.links.offload == Offload::LikeHardware {
            self.balancer.ip(&format!("link set dev {} mtu 1280", port_of(interface))).unwrap();
        }
        self.balancer.ip(&format!("link set dev {interface} mtu 1280")).unwrap();
        let mss = if self.links.mtu > 1500 { 8900 } else { 1440 };
        let routes = gateways.map(|gateway| format!("route change default via {gateway} advmss {mss}\n")).concat();
        other.ip(&format!("link set dev eth0 mtu 1280\n{routes}")).unwrap();
    }

    /// Makes `other`'s end of its link a port of a bridge there, which then has the addresses, as on a container host. `ways` has its
    /// address and its gateway, by family.
    pub fn bridge(&self, other: &Netns, ways: [(IpAddr, IpAddr); 2]) {
        let mut lines = "addr flush dev eth0\nlink add bridge0 type bridge\n".to_owned();
        lines += "link set dev bridge0 address 02:00:00:00:00:77\nlink set dev eth0 master bridge0\nlink set dev bridge0 up\n";
        for (family, (address, gateway)) in FAMILIES.into_iter().zip(ways) {
            lines += &format!("addr add {address}/{} dev bridge0\n", family.prefix_bits());
            lines += &format!("route replace default via {gateway} dev bridge0\n");
        }
        other.ip(&lines).unwrap();
    }

    /// A second balancer beside the first, on the link to the client, with a route to the endpoints through the first. The client's addresses are on a bridge
    /// `switch` from now on, and the link is a switch.
    pub fn beside(&self) -> Netns {
        let other = Netns::new("beside").unwrap();
        other.forward().unwrap();
        join((&self.client, "port1"), (&other, "client0"), 1500).unwrap();
        let ports = "link set eth0 master switch\nlink set port1 master switch";
        self.client
            .ip(&format!("link add switch type bridge\nlink set switch up\naddr flush dev eth0\n{ports}"))
            .unwrap();
        let mut here = String::new();
        let mut there = String::new();
        for family in FAMILIES {
            let bits = family.prefix_bits();
            here += &format!(
                "addr add {}/{bits} dev switch\nroute replace default via {}\n",
                family.client(),
                family.gateway()
            );
            there += &format!(
                "addr add {}/{bits} dev client0\nroute add default via {}\n",
                family.host(CLIENT, 253),
                family.gateway()
            );
        }
        self.client.ip(&here).unwrap();
        other.ip(&there).unwrap();
        other
    }

    /// Makes the endpoints hold these addresses themselves, for dsr. None of them announces that on its link.
    pub fn hold(&self, hosts: &[u8]) {
        for endpoint in &self.endpoints {
            endpoint.sysctl("net.ipv4.conf.all.arp_ignore", "1").unwrap();
            for (host, family) in hosts.iter().flat_map(|host| FAMILIES.map(|family| (*host, family))) {
                let bits = if family == Family::V4 { 32 } else { 128 };
                endpoint.ip(&format!("addr add {}/{bits} dev lo", family.vip(host))).unwrap();
            }
        }
    }

    /// An HTTP origin at each endpoint, called ep0, ep1 and ep2.
    pub fn origins(&self) -> Vec<Origin> {
        (0..3).map(|index| self.origin(index)).collect()
    }

    pub fn origin(&self, index: usize) -> Origin {
        let listen = HTTP_PORTS.map(|port| format!("[::]:{port}").parse().unwrap());
        self.endpoints[index].inside(|| Origin::start_on(listen.to_vec(), &format!("ep{index}"), 18))
    }

    /// Echoes at each endpoint.
    pub fn echoes(&self) -> Vec<Echo> {
        self.endpoints.iter().map(|endpoint| endpoint.inside(Echo::start)).collect()
    }

    /// GETs from the client in a closed loop over `connections` connections. All must be answered on the connection that sent them.
    #[track_caller]
    pub fn get(&self, to: SocketAddr, connections: usize, requests: u64) -> LoadReport {
        let report = self.try_get(to, connections, requests);
        assert_eq!((report.failures(), report.answers, report.reconnects), (0, requests, 0), "{to}: {report}");
        report
    }

    /// The same, whatever the result.
    pub fn try_get(&self, to: SocketAddr, connections: usize, requests: u64) -> LoadReport {
        self.client.inside(|| {
            on_one_cpu();
            let target = Target::resolve(&format!("http://{to}/")).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(run_http(&HttpLoad::get(target, connections, Until::Requests(requests)))).unwrap()
        })
    }

    /// A connection of the client.
    #[track_caller]
    pub fn connect(&self, to: SocketAddr) -> TcpStream {
        let stream = self.client.inside(|| {
            on_one_cpu();
            TcpStream::connect_timeout(&to, PATIENCE)
        });
        let stream = stream.unwrap_or_else(|error| panic!("{to}: {error}"));
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// The same, for a connection that may fail quickly.
    pub fn try_connect(&self, to: SocketAddr) -> Option<TcpStream> {
        let stream = self.client.inside(|| {
            on_one_cpu();
            TcpStream::connect_timeout(&to, SILENCE)
        });
        let stream = stream.ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        Some(stream)
    }

    /// A UDP socket of the client that is connected to `to`, and gets its ICMP errors.
    pub fn talk(&self, to: SocketAddr) -> UdpSocket {
        let socket = self.client.inside(|| {
            on_one_cpu();
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).unwrap();
            socket
        });
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

/// The link-layer address that the client has for an address, after it has forgotten it and asked again.
pub fn found_at(client: &Netns, interface: &str, address: IpAddr) -> Option<String> {
    client.ip(&format!("neigh flush dev {interface}")).unwrap();
    _ = client.run(&["ping", "-c1", "-W1", &address.to_string()]);
    let said = client.run(&["ip", "neigh", "show", "dev", interface, &address.to_string()]).unwrap();
    let mut words = said.split_whitespace();
    words.find(|word| *word == "lladdr").and_then(|_| words.next()).map(str::to_owned)
}

/// That of an interface.
pub fn mac_of(netns: &Netns, interface: &str) -> String {
    let said = netns.run(&["ip", "-o", "link", "show", "dev", interface]).unwrap();
    let mut words = said.split_whitespace();
    words.find(|word| *word == "link/ether").and_then(|_| words.next()).unwrap().to_owned()
}

/// `round_robin` has a cursor for each CPU, and the first packet of a connection is balanced on the CPU that sent it. So what this thread begins
/// is balanced in turn. Programs that it starts run on that CPU, too.
pub fn on_one_cpu() {
    let mut set = rustix::thread::CpuSet::new();
    set.set(0);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// The link's end below a bridge.
fn port_of(interface: &str) -> String {
    format!("{interface}-port")
}

/// `steelyard serve` with vips. When dropped, it removes what it attached and pinned.
pub struct Vips {
    pub steelyard: Steelyard,
}

impl Vips {
    /// Serves these vips, one per line as `name: {...}`, and waits until it is ready.
    pub fn serve(vips: &str) -> Self {
        Self { steelyard: Steelyard::serve(&vip_config(vips), 1) }
    }

    /// Replaces the vips.
    pub fn reload(&mut self, vips: &str) {
        let generation = self.steelyard.generation();
        self.steelyard.reload(&vip_config(vips), |status| status["generation"].as_u64() > Some(generation));
    }

    /// Runs `steelyard WORDS...` against it, which must succeed. Returns its standard output.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> String {
        let finished = self.steelyard.ask(words);
        assert_eq!(finished.exit, testkit::Exit::Code(0), "{words:?}: {}{}", finished.stdout, finished.stderr);
        finished.stdout
    }
}

impl Drop for Vips {
    fn drop(&mut self) {
        // First the process, then what it left in place on purpose.
        _ = self.steelyard.program.signal(testkit::Signal::KILL);
        _ = self.steelyard.program.exit_within(PATIENCE);
        let detached = detach();
        if !std::thread::panicking() {
            assert_eq!(detached.exit, testkit::Exit::Code(0), "{}{}", detached.stdout, detached.stderr);
        }
    }
}

/// `steelyard vip detach`, which needs no running process.
pub fn detach() -> Finished {
    run(&["vip", "detach"])
}

/// A configuration with only vips.
pub fn vip_config(vips: &str) -> String {
    let lines: String = vips.lines().map(|line| format!("  {}\n", line.trim())).collect();
    format!("admin: {{admin}}\nvips:\n{lines}")
}

/// One vip, as a line of a configuration.
pub fn vip(name: &str, address: SocketAddr, transport: &str, rest: &str) -> String {
    format!("{name}: {{address: '{address}/{transport}', interfaces: {INTERFACES}, {rest}}}\n")
}

/// A figure of each endpoint of a vip, from the status.
pub fn endpoint_figures(status: &Value, vip: &str, figure: &str) -> Vec<u64> {
    let figures = vip_endpoints(status, vip);
    figures.map(|endpoint| endpoint[figure].as_u64().unwrap_or_else(|| panic!("{figure} in {endpoint}"))).collect()
}

/// The same for a word.
pub fn endpoint_words(status: &Value, vip: &str, word: &str) -> Vec<String> {
    let words = vip_endpoints(status, vip);
    words.map(|endpoint| endpoint[word].as_str().unwrap_or_else(|| panic!("{word} in {endpoint}")).to_owned()).collect()
}

fn vip_endpoints<'s>(status: &'s Value, vip: &str) -> impl Iterator<Item = &'s Value> + use<'s> {
    let found = status["vips"].as_array().into_iter().flatten().find(|entry| entry["name"] == vip);
    found.and_then(|entry| entry["endpoints"].as_array()).into_iter().flatten()
}

/// Starts `steelyard` with these words in a namespace.
pub fn start_in(netns: &Netns, words: &[&str]) -> Program {
    netns.spawn("steelyard", steelyard().args(words)).unwrap()
}

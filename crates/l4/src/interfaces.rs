//! The interfaces of this network namespace, read by netlink, because sysfs may show another namespace to a process that was moved.

use std::io;
use std::ops::ControlFlow;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// The properties of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// Whether its packets begin with an Ethernet header. Those of the loopback do.
    pub(crate) ethernet: bool,
    /// The other end of a veth, if that is in another namespace.
    elsewhere: Option<Elsewhere>,
    /// The link-layer address of that other end, if packets can be handed to it directly (`bpf_redirect_peer`). See [`list_with_peers`].
    pub(crate) peer: Option<[u8; 6]>,
    /// Its own link-layer address.
    pub(crate) mac: [u8; 6],
}

/// An interface of another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Elsewhere {
    index: u32,
    /// The number that this namespace has for the other one.
    netns: i32,
}

/// The index of `lo`, in every namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// Datagrams of one answer. Each holds some dozens of interfaces.
const DATAGRAMS_MAX: usize = 4096;

/// All interfaces.
pub(crate) fn list() -> io::Result<Vec<Interface>> {
    let socket = open()?;
    ask(&socket, LinkMessage::default(), NLM_F_DUMP)?;
    let mut found = Vec::new();
    for _ in 0..DATAGRAMS_MAX {
        let (datagram, _) = socket.recv_from_full()?;
        if read(&datagram, &mut found)? {
            return Ok(found.iter().filter_map(interface).collect());
        }
    }
    Err(io::Error::other("the answer does not end"))
}

/// All interfaces. For each veth it also finds whether packets can be handed directly to its other end.
pub(crate) fn list_with_peers() -> io::Result<Vec<Interface>> {
    let mut interfaces = list()?;
    let socket = open()?;
    for interface in &mut interfaces {
        // The kernel only answers a process with CAP_NET_ADMIN over that namespace. Without an answer, packets use the neighbour table.
        interface.peer = interface.elsewhere.and_then(|there| peer(&socket, there).ok()?);
    }
    Ok(interfaces)
}

/// A netlink socket for requests.
pub(crate) fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

fn ask(socket: &Socket, about: LinkMessage, flags: u16) -> io::Result<()> {
    send(socket, RouteNetlinkMessage::GetLink(about), flags)
}

/// Sends a request.
pub(crate) fn send(socket: &Socket, question: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut question = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(question));
    question.header.flags = flags | NLM_F_REQUEST;
    question.finalize();
    let mut bytes = vec![0; question.buffer_len()];
    question.serialize(&mut bytes);
    socket.send(&bytes, 0).map(drop)
}

/// The link-layer address of an interface in another namespace. Returns `None` if it is a port of a bridge or the like, which looks at the
/// address of each frame: `bpf_redirect_peer` does not rewrite it.
fn peer(socket: &Socket, there: Elsewhere) -> io::Result<Option<[u8; 6]>> {
    let mut about = LinkMessage::default();
    about.header.index = there.index;
    about.attributes.push(LinkAttribute::IfNetnsId(there.netns));
    ask(socket, about, 0)?;
    let (datagram, _) = socket.recv_from_full()?;
    let mut found = Vec::new();
    read(&datagram, &mut found)?;
    let is_port = |link: &LinkMessage| link.attributes.iter().any(|it| matches!(it, LinkAttribute::Controller(_)));
    Ok(found.iter().find(|link| !is_port(link)).and_then(mac))
}

/// Reads the messages of one datagram. Returns true if the last message was among them.
fn read(datagram: &[u8], found: &mut Vec<LinkMessage>) -> io::Result<bool> {
    for_each(datagram, |message| {
        if let RouteNetlinkMessage::NewLink(link) = message {
            found.push(link);
        }
        ControlFlow::Continue(())
    })
}

/// Passes the messages of one datagram to `take` until that returns true. Returns true if it did, or if the last message was among them.
pub(crate) fn for_each(
    datagram: &[u8],
    mut take: impl FnMut(RouteNetlinkMessage) -> ControlFlow<()>,
) -> io::Result<bool> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
        let length = message.header.length as usize;
        let flow = match message.payload {
            NetlinkPayload::Done(_) => ControlFlow::Break(()),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(message) => take(message),
            _ => ControlFlow::Continue(()),
        };
        if flow.is_break() {
            return Ok(true);
        }
        // Messages begin at multiples of four (netlink(7)).
        let Some(after) = rest.get(length.next_multiple_of(4).max(4)..) else { break };
        rest = after;
    }
    Ok(false)
}

fn interface(link: &LinkMessage) -> Option<Interface> {
    let mut interface = Interface {
        index: link.header.index,
        name: String::new(),
        mtu: 0,
        ethernet: matches!(link.header.link_layer_type, LinkLayerType::Ether | LinkLayerType::Loopback),
        elsewhere: None,
        peer: None,
        mac: mac(link).unwrap_or_default(),
    };
    let (mut veth, mut index, mut netns) = (false, None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::Link(other) => index = Some(*other),
            // The kernel reports this only if the other end is in another namespace.
            LinkAttribute::LinkNetNsId(other) => netns = Some(*other),
            LinkAttribute::LinkInfo(infos) => veth |= infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            _ => {}
        }
    }
    if veth {
        interface.elsewhere = index.zip(netns).map(|(index, netns)| Elsewhere { index, netns });
    }
    (!interface.name.is_empty()).then_some(interface)
}

fn mac(link: &LinkMessage) -> Option<[u8; 6]> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(address) => address.as_slice().try_into().ok(),
        _ => None,
    })
}

/// Whether an entry of a list of interfaces is a pattern.
pub(crate) fn is_pattern(entry: &str) -> bool {
    entry.contains('*')
}

/// Whether an entry of a list of interfaces, which is a name or a pattern, stands for this interface. Each `*` stands for any characters.
pub(crate) fn stands_for(entry: &str, name: &str) -> bool {
    let Some((head, rest)) = entry.split_once('*') else { return entry == name };
    let Some(name) = name.strip_prefix(head) else { return false };
    // A name has 15 characters at most.
    (0..=name.len()).any(|skipped| name.get(skipped..).is_some_and(|name| stands_for(rest, name)))
}

/// The name that the operator perhaps meant.
pub(crate) fn nearest(name: &str, interfaces: &[Interface]) -> Option<String> {
    // Two wrong or swapped letters, in names that seldom have more than ten.
    let distance = |other: &Interface| strsim::damerau_levenshtein(name, &other.name);
    interfaces
        .iter()
        .filter(|other| distance(other) <= 2)
        .min_by_key(|other| distance(other))
        .map(|other| other.name.clone())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use testkit::netns::{Netns, join};

    use super::*;

    fn named(interfaces: &[Interface], name: &str) -> Interface {
        interfaces
            .iter()
            .find(|interface| interface.name == name)
            .unwrap_or_else(|| panic!("no {name} in {interfaces:?}"))
            .clone()
    }

    fn is_root(name: &str) -> bool {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root {
            _ = writeln!(std::io::stderr(), "SKIP {name}: network namespaces are root's");
        }
        is_root
    }

    #[test]
    fn what_a_namespace_has() {
        if !is_root("what_a_namespace_has") {
            return;
        }
        let (one, other) = (Netns::new("one").unwrap(), Netns::new("other").unwrap());
        join((&one, "ep0"), (&other, "eth0"), 9000).unwrap();
        one.ip("link add here mtu 1400 type veth peer name there mtu 1400\nlink set dev lo mtu 1234").unwrap();
        let found = one.inside(list_with_peers).unwrap();
        let ep = named(&found, "ep0");
        let eth = named(&other.inside(list).unwrap(), "eth0");
        assert_eq!((ep.mtu, ep.ethernet, ep.peer), (9000, true, Some(eth.mac)));
        assert_ne!(ep.mac, [0; 6]);
        // Both ends are here, so there is no other namespace to reach.
        let a = named(&found, "here");
        assert_eq!((a.mtu, a.ethernet, a.peer), (1400, true, None));
        let lo = named(&found, "lo");
        assert_eq!((lo.index, lo.mtu, lo.ethernet, lo.peer), (1, 1234, true, None));
        // A bridge looks at the address of a frame, which the direct way does not rewrite.
        other.ip("link add bridge type bridge\nlink set eth0 master bridge").unwrap();
        assert_eq!(named(&one.inside(list_with_peers).unwrap(), "ep0").peer, None);
    }

    #[test]
    fn more_than_one_datagram() {
        if !is_root("more_than_one_datagram") {
            return;
        }
        let netns = Netns::new("many").unwrap();
        let lines: Vec<String> = (0..100).map(|n| format!("link add d{n} type veth peer name e{n}")).collect();
        netns.ip(&lines.join("\n")).unwrap();
        let found = netns.inside(list).unwrap();
        assert_eq!(found.iter().filter(|interface| interface.name.starts_with(['d', 'e'])).count(), 200);
    }

    #[test]
    fn patterns() {
        let check =
            |entry: &str, name: &str, expect: bool| assert_eq!(stands_for(entry, name), expect, "{entry} {name}");
        check("eth0", "eth0", true);
        check("eth0", "eth01", false);
        check("eth*", "eth0", true);
        check("eth*", "eth", true);
        check("eth*", "veth0", false);
        check("*", "anything", true);
        check("*.7", "bond0.7", true);
        check("*.7", "bond0.70", false);
        check("en*s*", "enp1s0", true);
        check("en*s*", "enp1", false);
        check("**0", "lan0", true);
    }

    #[test]
    fn names_that_were_perhaps_meant() {
        let interface = |name: &str| Interface {
            index: 1,
            name: name.to_owned(),
            mtu: 1500,
            ethernet: true,
            elsewhere: None,
            peer: None,
            mac: [0; 6],
        };
        let interfaces = ["lo", "eth0", "client0"].map(interface);
        let check =
            |name: &str, expect: Option<&str>| assert_eq!(nearest(name, &interfaces).as_deref(), expect, "{name}");
        check("eht0", Some("eth0"));
        check("cleint0", Some("client0"));
        check("wlan17", None);
    }
}

//! The interfaces of this network namespace, asked by netlink: sysfs shows another namespace's to a process that was moved.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// What is asked of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) mtu: u32,
    /// Its packets begin with an Ethernet header. The loopback's do.
    pub(crate) ethernet: bool,
    /// A veth whose other end is in another namespace: what is put into it can come out there at once (`bpf_redirect_peer`).
    pub(crate) peer: bool,
    /// Its own address on the link.
    pub(crate) mac: [u8; 6],
}

/// Datagrams of one answer: each holds some dozens of interfaces.
const DATAGRAMS_MAX: usize = 4096;

/// All of them.
pub(crate) fn list() -> io::Result<Vec<Interface>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut question = NetlinkMessage::new(
        NetlinkHeader::default(),
        NetlinkPayload::from(RouteNetlinkMessage::GetLink(LinkMessage::default())),
    );
    question.header.flags = NLM_F_DUMP | NLM_F_REQUEST;
    question.finalize();
    let mut bytes = vec![0; question.buffer_len()];
    question.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut found = Vec::new();
    for _ in 0..DATAGRAMS_MAX {
        let (datagram, _) = socket.recv_from_full()?;
        if read(&datagram, &mut found)? {
            return Ok(found);
        }
    }
    Err(io::Error::other("an answer without end"))
}

/// The messages of one datagram. True: the last was among them.
fn read(datagram: &[u8], found: &mut Vec<Interface>) -> io::Result<bool> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other)?;
        let length = message.header.length as usize;
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => found.extend(interface(&link)),
            _ => {}
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
        peer: false,
        mac: [0; 6],
    };
    let (mut veth, mut elsewhere) = (false, false);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::Address(address) => interface.mac = address.as_slice().try_into().unwrap_or_default(),
            // Told only when the other end is in another namespace.
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::LinkInfo(infos) => veth |= infos.contains(&LinkInfo::Kind(InfoKind::Veth)),
            _ => {}
        }
    }
    interface.peer = veth && elsewhere;
    (!interface.name.is_empty()).then_some(interface)
}

/// The name that was perhaps meant.
pub(crate) fn nearest(name: &str, interfaces: &[Interface]) -> Option<String> {
    // Two letters wrong, or swapped, in names that are seldom longer than ten.
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
        let found = one.inside(list).unwrap();
        let ep = named(&found, "ep0");
        assert_eq!((ep.mtu, ep.ethernet, ep.peer), (9000, true, true));
        assert_ne!(ep.mac, [0; 6]);
        // Both ends here: nothing to jump over to.
        let a = named(&found, "here");
        assert_eq!((a.mtu, a.ethernet, a.peer), (1400, true, false));
        let lo = named(&found, "lo");
        assert_eq!((lo.index, lo.mtu, lo.ethernet, lo.peer), (1, 1234, true, false));
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
    fn names_that_were_perhaps_meant() {
        let interface = |name: &str| Interface {
            index: 1,
            name: name.to_owned(),
            mtu: 1500,
            ethernet: true,
            peer: false,
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

//! Answers for addresses of vips on a link, as their host would: ARP (RFC 826, RFC 5227) and neighbour discovery of IPv6 (RFC 4861).
//!
//! Job: the sockets, the interfaces on which an address belongs to the link, answers, and announcements to everyone on the link. Not its job:
//! when an address is announced, and by which of several nodes. If the process ends, nobody answers any more, so another node may.
//!
//! [`ask_of`] and what it calls are pure, and believe no length that the message does not confirm.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::interfaces::{self, Interface, LOOPBACK};
use crate::own::{self, OnLink};

/// Messages that one call of [`Neighbours::answer`] reads. A flood leaves the rest in the sockets, where the kernel discards what exceeds their
/// buffers.
const READ_MAX: usize = 256;
/// The longest message that is read: an Ethernet frame's content. More is cut off.
const MESSAGE_BYTES_MAX: usize = 1514;
/// How often an address is announced on its links after it came here. Single frames can be lost.
const REPEATS: u8 = 5;

const ETH_P_ARP: u16 = 0x0806;
const ETH_P_IPV6: u16 = 0x86dd;
const BROADCAST: Mac = [0xff; 6];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;
const ARP_BYTES: usize = 28;
/// Ethernet, IPv4, 6 and 4 bytes for an address of each.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ICMPV6: u8 = 58;
const IPV6_BYTES: usize = 40;
/// Neighbour discovery is only valid with the hop limit that a router would have decreased (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

type Mac = [u8; 6];

/// What somebody on a link has said about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    /// Asks who has it. The answer goes to this address of IP and of the link.
    Asks { address: IpAddr, from: IpAddr, mac: Mac },
    /// Claims to have it.
    Claims { address: IpAddr, mac: Mac },
}

/// The sockets and the addresses that are answered for.
#[derive(Debug)]
pub struct Neighbours {
    arp: OwnedFd,
    ndp: OwnedFd,
    /// Receives nothing: the groups to which solicitations are sent are joined with it.
    groups: socket2::Socket,
    joined: BTreeSet<(Ipv6Addr, u32)>,
    /// With the interfaces of its link, and how often it is still announced.
    held: BTreeMap<IpAddr, Held>,
    /// The interfaces by which addresses are on links, as they were last looked at.
    links: Vec<OnLink>,
    macs: BTreeMap<u32, Mac>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Held {
    interfaces: BTreeSet<u32>,
    repeats: u8,
}

impl Neighbours {
    /// Opens the sockets.
    ///
    /// # Errors
    /// If the kernel refuses: CAP_NET_RAW is needed.
    pub fn open() -> io::Result<Self> {
        let groups = socket2::Socket::new(socket2::Domain::IPV6, socket2::Type::DGRAM, None)?;
        let mut opened = Self {
            arp: packet_socket(ETH_P_ARP, &[])?,
            ndp: packet_socket(ETH_P_IPV6, &OF_NEIGHBOURS)?,
            groups,
            joined: BTreeSet::new(),
            held: BTreeMap::new(),
            links: Vec::new(),
            macs: BTreeMap::new(),
        };
        opened.look()?;
        Ok(opened)
    }

    /// Duplicates of the sockets that can be read when somebody has said something: of ARP and of IPv6.
    ///
    /// # Errors
    /// If there are too many open files.
    pub fn sockets(&self) -> io::Result<[OwnedFd; 2]> {
        Ok([self.arp.try_clone()?, self.ndp.try_clone()?])
    }

    /// Whether the address belongs to the network of an interface, where somebody may ask for it.
    pub fn is_on_link(&self, address: IpAddr) -> bool {
        !self.links_of(address).is_empty()
    }

    /// Looks at the interfaces and their addresses again, and repeats announcements.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn look(&mut self) -> io::Result<()> {
        let interfaces: Vec<Interface> = interfaces::list()?;
        let is_usable = |it: &&Interface| it.ethernet && it.index != LOOPBACK;
        self.macs = interfaces.iter().filter(is_usable).map(|it| (it.index, it.mac)).collect();
        self.links = own::on_links()?;
        let addresses: Vec<IpAddr> = self.held.keys().copied().collect();
        for address in addresses {
            let now = self.links_of(address);
            let Some(held) = self.held.get_mut(&address) else { continue };
            if held.interfaces != now {
                *held = Held { interfaces: now, repeats: REPEATS };
            }
            if held.repeats > 0 {
                held.repeats -= 1;
                let interfaces = held.interfaces.clone();
                self.announce(address, &interfaces);
            }
        }
        self.follow_groups();
        Ok(())
    }

    /// Answers for exactly these addresses from now on, and announces those that are new.
    pub fn hold(&mut self, wanted: &BTreeSet<IpAddr>) {
        self.held.retain(|address, _| wanted.contains(address));
        for address in wanted {
            if self.held.contains_key(address) {
                continue;
            }
            let interfaces = self.links_of(*address);
            self.announce(*address, &interfaces);
            self.held.insert(*address, Held { interfaces, repeats: REPEATS });
        }
        self.follow_groups();
    }

    /// Answers whoever has asked. Returns the addresses that somebody else claims to have, and the link-layer address of that.
    pub fn answer(&mut self) -> BTreeMap<IpAddr, String> {
        let mut claimed = BTreeMap::new();
        for (socket, is_arp) in [(self.arp.as_raw_fd(), true), (self.ndp.as_raw_fd(), false)] {
            let mut message = [0; MESSAGE_BYTES_MAX];
            for _ in 0..READ_MAX {
                let Some((length, interface)) = receive(socket, &mut message) else { break };
                let Some(mine) = self.macs.get(&interface).copied() else { continue };
                let said = ask_of(message.get(..length).unwrap_or_default(), is_arp);
                match said {
                    Some(Said::Asks { address, from, mac }) if self.holds(address, interface) => {
                        self.send(interface, mac, &answer(address, mine, from, mac));
                    }
                    Some(Said::Claims { address, mac })
                        if self.holds(address, interface) && !self.macs.values().any(|own| *own == mac) =>
                    {
                        claimed.insert(address, written(mac));
                    }
                    _ => {}
                }
            }
        }
        claimed
    }

    /// Announces an address again, because somebody else has claimed it.
    pub fn defend(&mut self, address: IpAddr) {
        if let Some(interfaces) = self.held.get(&address).map(|held| held.interfaces.clone()) {
            self.announce(address, &interfaces);
        }
    }

    fn holds(&self, address: IpAddr, interface: u32) -> bool {
        self.held.get(&address).is_some_and(|held| held.interfaces.contains(&interface))
    }

    fn links_of(&self, address: IpAddr) -> BTreeSet<u32> {
        let on = self.links.iter().filter(|link| link.contains(address)).map(|link| link.interface);
        on.filter(|interface| self.macs.contains_key(interface)).collect()
    }

    fn announce(&self, address: IpAddr, interfaces: &BTreeSet<u32>) {
        for interface in interfaces {
            let Some(mine) = self.macs.get(interface).copied() else { continue };
            for (to, message) in announcements(address, mine) {
                self.send(*interface, to, &message);
            }
        }
    }

    fn send(&self, interface: u32, to: Mac, message: &[u8]) {
        let is_arp = message.len() == ARP_BYTES;
        let (socket, protocol) = if is_arp { (&self.arp, ETH_P_ARP) } else { (&self.ndp, ETH_P_IPV6) };
        if let Err(error) = send(socket.as_raw_fd(), protocol, interface, to, message) {
            // The interface is down or gone. Whoever asked will ask again.
            tracing::debug!(%error, interface, "cannot answer on a link");
        }
    }

    /// Solicitations are sent to a group that the last three bytes of the address choose.
    fn follow_groups(&mut self) {
        let wanted: BTreeSet<(Ipv6Addr, u32)> = self
            .held
            .iter()
            .filter_map(|(address, held)| match address {
                IpAddr::V6(address) => Some(held.interfaces.iter().map(|interface| (group_of(*address), *interface))),
                IpAddr::V4(_) => None,
            })
            .flatten()
            .collect();
        for (group, interface) in self.joined.difference(&wanted) {
            // An interface that is gone took its groups with it.
            _ = self.groups.leave_multicast_v6(group, *interface);
        }
        for (group, interface) in wanted.difference(&self.joined) {
            if let Err(error) = self.groups.join_multicast_v6(group, *interface) {
                tracing::warn!(%error, %group, interface, "cannot join the group of an address: some on the link may not find it");
            }
        }
        self.joined = wanted;
    }
}

/// Neighbour solicitations and advertisements: `ldb [6]; jeq 58; ldb [40]; jeq 135; jeq 136`, on packets from their IPv6 header on.
const OF_NEIGHBOURS: [libc::sock_filter; 7] = [
    filter(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 6, 0, 0),
    filter(libc::BPF_JMP | libc::BPF_JEQ, ICMPV6 as u32, 0, 4),
    filter(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, IPV6_BYTES as u32, 0, 0),
    filter(libc::BPF_JMP | libc::BPF_JEQ, SOLICITATION as u32, 1, 0),
    filter(libc::BPF_JMP | libc::BPF_JEQ, ADVERTISEMENT as u32, 0, 1),
    filter(libc::BPF_RET, MESSAGE_BYTES_MAX as u32, 0, 0),
    filter(libc::BPF_RET, 0, 0, 0),
];

const fn filter(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// A socket for what is above the link layer, on all interfaces.
fn packet_socket(protocol: u16, only: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // Protocol 0: nothing is received before there is a filter.
    // SAFETY: the call has no pointers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just made, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    if !only.is_empty() {
        let program = libc::sock_fprog { len: only.len() as u16, filter: only.as_ptr().cast_mut() };
        // SAFETY: the kernel copies the program, whose length is given, during the call.
        let result = unsafe {
            let size = size_of_val(&program) as libc::socklen_t;
            let program = std::ptr::from_ref(&program).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, program, size)
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let address = link_address(protocol, 0, [0; 6]);
    // SAFETY: the kernel reads `address`, of the size that is given.
    let result = unsafe {
        let size = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), size)
    };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

fn link_address(protocol: u16, interface: u32, mac: Mac) -> libc::sockaddr_ll {
    let mut sll_addr = [0; 8];
    for (room, byte) in sll_addr.iter_mut().zip(mac) {
        *room = byte;
    }
    libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: protocol.to_be(),
        sll_ifindex: interface as i32,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr,
    }
}

/// The next message that has arrived: its length, and its interface. `None`: there is none.
fn receive(socket: RawFd, message: &mut [u8]) -> Option<(usize, u32)> {
    loop {
        let mut from = link_address(0, 0, [0; 6]);
        let mut size = size_of_val(&from) as libc::socklen_t;
        // SAFETY: the kernel writes at most `message.len()` bytes to `message` and `size` bytes to `from`.
        let length = unsafe {
            let from = std::ptr::from_mut(&mut from).cast();
            libc::recvfrom(socket, message.as_mut_ptr().cast(), message.len(), 0, from, &raw mut size)
        };
        if length < 0 {
            // An interface that went down is an error of the socket, once.
            let error = io::Error::last_os_error();
            if matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::EINTR)) {
                continue;
            }
            return None;
        }
        if from.sll_pkttype == libc::PACKET_OUTGOING {
            continue;
        }
        return Some((length as usize, u32::try_from(from.sll_ifindex).ok()?));
    }
}

fn send(socket: RawFd, protocol: u16, interface: u32, to: Mac, message: &[u8]) -> io::Result<()> {
    let address = link_address(protocol, interface, to);
    // SAFETY: the kernel reads `message` and `address`, of the sizes that are given.
    let sent = unsafe {
        let size = size_of_val(&address) as libc::socklen_t;
        let address = std::ptr::from_ref(&address).cast();
        libc::sendto(socket, message.as_ptr().cast(), message.len(), libc::MSG_DONTWAIT, address, size)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a message says. `None`: nothing that matters here, or it is malformed.
fn ask_of(message: &[u8], is_arp: bool) -> Option<Said> {
    if is_arp { said_by_arp(message) } else { said_by_ndp(message) }
}

fn said_by_arp(message: &[u8]) -> Option<Said> {
    if message.get(..6)? != ARP_HEAD || *message.get(6)? != 0 {
        return None;
    }
    let operation = *message.get(7)?;
    let mac: Mac = message.get(8..14)?.try_into().ok()?;
    let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(message.get(at..at + 4)?).ok()?));
    let (from, to) = (address(14)?, address(24)?);
    // A group cannot have asked, and an answer to it would reach everyone.
    if mac.first()? & 1 != 0 {
        return None;
    }
    match operation {
        // An announcement looks like a question of the address about itself.
        ARP_REQUEST if from == to => Some(Said::Claims { address: from.into(), mac }),
        ARP_REQUEST => Some(Said::Asks { address: to.into(), from: from.into(), mac }),
        ARP_REPLY => Some(Said::Claims { address: from.into(), mac }),
        _ => None,
    }
}

fn said_by_ndp(message: &[u8]) -> Option<Said> {
    let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(message.get(at..at + 16)?).ok()?));
    let (from, to) = (address(8)?, address(24)?);
    let payload = usize::from(u16::from_be_bytes(message.get(4..6)?.try_into().ok()?));
    let body = message.get(IPV6_BYTES..IPV6_BYTES.checked_add(payload)?)?;
    let is_ndp = message.first()? >> 4 == 6 && *message.get(6)? == ICMPV6 && *message.get(7)? == HOP_LIMIT;
    if !is_ndp || *body.get(1)? != 0 || checksum(from, to, body) != 0 {
        return None;
    }
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(body.get(8..24)?).ok()?);
    match *body.first()? {
        SOLICITATION if !from.is_unspecified() => {
            Some(Said::Asks { address: target.into(), from: from.into(), mac: link_layer(body.get(24..)?, 1)? })
        }
        // Somebody who is about to take the address (RFC 4862, 5.4): the answer goes to all.
        SOLICITATION => {
            let mac = multicast(ALL_NODES);
            Some(Said::Asks { address: target.into(), from: ALL_NODES.into(), mac })
        }
        ADVERTISEMENT => Some(Said::Claims { address: target.into(), mac: link_layer(body.get(24..)?, 2)? }),
        _ => None,
    }
}

/// The link-layer address among the options (RFC 4861, 4.6): each has its kind and its length in units of eight bytes.
fn link_layer(mut options: &[u8], kind: u8) -> Option<Mac> {
    loop {
        let length = usize::from(*options.get(1)?) * 8;
        let option = options.get(..length).filter(|option| !option.is_empty())?;
        if *option.first()? == kind {
            let mac: Mac = option.get(2..8)?.try_into().ok()?;
            return (mac.first()? & 1 == 0).then_some(mac);
        }
        options = options.get(length..)?;
    }
}

/// "This address is at this link-layer address", to whoever asked.
fn answer(address: IpAddr, mine: Mac, to: IpAddr, mac: Mac) -> Vec<u8> {
    match (address, to) {
        (IpAddr::V4(address), IpAddr::V4(to)) => arp(ARP_REPLY, (mine, address), (mac, to)),
        (IpAddr::V6(address), IpAddr::V6(to)) => {
            advertisement(address, mine, to, if to == ALL_NODES { OVERRIDE } else { SOLICITED | OVERRIDE })
        }
        _ => Vec::new(),
    }
}

/// The same to everyone on the link, with their destinations. Some hosts heed only one of the two forms of ARP (RFC 5227, 3).
fn announcements(address: IpAddr, mine: Mac) -> Vec<(Mac, Vec<u8>)> {
    match address {
        IpAddr::V4(address) => vec![
            (BROADCAST, arp(ARP_REQUEST, (mine, address), ([0; 6], address))),
            (BROADCAST, arp(ARP_REPLY, (mine, address), (BROADCAST, address))),
        ],
        IpAddr::V6(address) => vec![(multicast(ALL_NODES), advertisement(address, mine, ALL_NODES, OVERRIDE))],
    }
}

fn arp(operation: u8, from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr)) -> Vec<u8> {
    let mut message = ARP_HEAD.to_vec();
    message.extend([0, operation]);
    for (mac, address) in [from, to] {
        message.extend(mac);
        message.extend(address.octets());
    }
    message
}

fn advertisement(address: Ipv6Addr, mine: Mac, to: Ipv6Addr, flags: u8) -> Vec<u8> {
    let mut body = vec![ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0];
    body.extend(address.octets());
    body.extend([2, 1]);
    body.extend(mine);
    let sum = checksum(address, to, &body).to_be_bytes();
    for (room, byte) in body.iter_mut().skip(2).zip(sum) {
        *room = byte;
    }
    let mut message = vec![0x60, 0, 0, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend([ICMPV6, HOP_LIMIT]);
    message.extend(address.octets());
    message.extend(to.octets());
    message.extend(body);
    message
}

/// Of an ICMPv6 message, including the pseudo header (RFC 8200, 8.1). Over a message with a right checksum, it is 0.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, body: &[u8]) -> u16 {
    let mut bytes = [from.octets(), to.octets()].concat();
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend([0, 0, 0, ICMPV6]);
    bytes.extend(body);
    let word =
        |pair: &[u8]| u32::from(pair.first().copied().unwrap_or(0)) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The group of an address's solicitations (RFC 4291, 2.7.1).
fn group_of(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b] = address.segments();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | a & 0xff, b)
}

/// RFC 2464, 7.
fn multicast(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}

fn written(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 9];

    fn v4(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn v6(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    #[test]
    fn what_arp_says() {
        let check = |message: &[u8], expect: Option<Said>| assert_eq!(ask_of(message, true), expect, "{message:?}");
        let (vip, host) = (v4("192.0.2.7"), v4("192.0.2.1"));
        let asks = |from: Ipv4Addr| Some(Said::Asks { address: vip.into(), from: from.into(), mac: OTHER });
        let question = arp(ARP_REQUEST, (OTHER, host), ([0; 6], vip));
        check(&question, asks(host));
        // A probe of a host that is about to take the address has no address yet (RFC 5227).
        check(&arp(ARP_REQUEST, (OTHER, Ipv4Addr::UNSPECIFIED), ([0; 6], vip)), asks(Ipv4Addr::UNSPECIFIED));
        let claims = Some(Said::Claims { address: vip.into(), mac: OTHER });
        for (_, announcement) in announcements(vip.into(), OTHER) {
            check(&announcement, claims);
        }
        check(&answer(vip.into(), OTHER, host.into(), MINE), claims);
        // With the padding of a short frame.
        check(&[&question[..], &[0; 18]].concat(), asks(host));
        for length in 0..question.len() {
            check(&question[..length], None);
        }
        check(&arp(3, (OTHER, host), ([0; 6], vip)), None);
        check(&arp(ARP_REQUEST, (BROADCAST, host), ([0; 6], vip)), None);
        for byte in 0..7 {
            let mut wrong = question.clone();
            wrong[byte] ^= 0x10;
            check(&wrong, None);
        }
    }

    #[test]
    fn what_neighbour_discovery_says() {
        let check = |message: &[u8], expect: Option<Said>| assert_eq!(ask_of(message, false), expect, "{message:?}");
        let (vip, host) = (v6("2001:db8::7"), v6("2001:db8::1"));
        let mut body = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        body.extend(vip.octets());
        // An option that is not known, and the sender's link-layer address.
        body.extend([14, 1, 1, 2, 3, 4, 5, 6, 1, 1]);
        body.extend(OTHER);
        let question = |from: Ipv6Addr, mut body: Vec<u8>| {
            let sum = checksum(from, group_of(vip), &body).to_be_bytes();
            body[2..4].copy_from_slice(&sum);
            let mut message = vec![0x60, 0, 0, 0, 0, body.len() as u8, ICMPV6, HOP_LIMIT];
            message.extend(from.octets());
            message.extend(group_of(vip).octets());
            message.extend(body);
            message
        };
        let asked = question(host, body.clone());
        check(&asked, Some(Said::Asks { address: vip.into(), from: host.into(), mac: OTHER }));
        let taking = question(Ipv6Addr::UNSPECIFIED, body[..24].to_vec());
        let all = Said::Asks { address: vip.into(), from: ALL_NODES.into(), mac: [0x33, 0x33, 0, 0, 0, 1] };
        check(&taking, Some(all));
        check(&question(host, body[..24].to_vec()), None);
        let claims = Some(Said::Claims { address: vip.into(), mac: OTHER });
        check(&announcements(vip.into(), OTHER)[0].1, claims);
        check(&answer(vip.into(), OTHER, host.into(), MINE), claims);
        for length in 0..asked.len() {
            check(&asked[..length], None);
        }
        // A router has passed it on; the checksum is wrong; an option has no length.
        for (byte, value) in [(7, 254), (42, 1), (65, 0)] {
            let mut wrong = asked.clone();
            wrong[byte] = value;
            check(&wrong, None);
        }
        let mut endless = body;
        endless[25] = 0;
        check(&question(host, endless), None);
    }

    #[test]
    fn groups() {
        assert_eq!(group_of(v6("2001:db8::1:2345:6789")), v6("ff02::1:ff45:6789"));
        assert_eq!(multicast(v6("ff02::1:ff45:6789")), [0x33, 0x33, 0xff, 0x45, 0x67, 0x89]);
    }
}

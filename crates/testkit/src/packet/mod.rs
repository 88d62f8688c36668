//! Packets, described: built from words, read back into the same words, and printed in one line.
//!
//! ```
//! use testkit::packet::{Packet, SYN, ACK};
//!
//! let syn = Packet::tcp("10.10.10.1:40000", "20.20.20.1:2020").flags(SYN).seq(1000);
//! let forwarded = syn.clone().to("31.31.31.1:5001").ttl(63);
//! let answer = forwarded.reply().flags(SYN | ACK).seq(7).ack(1001);
//! assert_eq!(Packet::read(&syn.build()).unwrap().right(), syn);
//! ```
//!
//! Every field has a plain default; what a test does not name does not matter to it. [`Packet::build`] writes the bytes with right lengths
//! and checksums; [`Packet::read`] is its inverse and says which checksums are wrong. The sums are computed the plain way, over the whole
//! packet, so they can be held against a program that computes differences.
//!
//! Not here: sending anything, and packets that are wrong on purpose: a test cuts or alters the bytes itself.

mod checksum;
mod icmp;
mod read;
mod show;
mod write;

use std::net::{IpAddr, SocketAddr};

pub use checksum::{internet, with_pseudo_header};
pub use icmp::IcmpError;
pub use read::Reading;

/// TCP flags, to be or-ed.
pub const FIN: u8 = 0x01;
/// See [`FIN`].
pub const SYN: u8 = 0x02;
/// See [`FIN`].
pub const RST: u8 = 0x04;
/// See [`FIN`].
pub const PSH: u8 = 0x08;
/// See [`FIN`].
pub const ACK: u8 = 0x10;
/// See [`FIN`].
pub const URG: u8 = 0x20;

/// Protocol numbers.
pub(crate) mod protocol {
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const FRAGMENT: u8 = 44;
    pub const ICMPV6: u8 = 58;
}

/// IPv6 extension headers that may stand before the transport (RFC 8200 section 4.1).
pub(crate) const EXTENSIONS: [u8; 3] = [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS];
/// For [`Packet::extension`].
pub const HOP_BY_HOP: u8 = 0;
/// For [`Packet::extension`]. The pseudo header is summed with the destination as it stands: no segments left.
pub const ROUTING: u8 = 43;
/// For [`Packet::extension`].
pub const DESTINATION_OPTIONS: u8 = 60;

/// A whole packet on an Ethernet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Link layer: from, to, and its VLAN tags from the outside in: priority in the upper four bits, identifier in the others.
    pub source_mac: [u8; 6],
    /// See `source_mac`.
    pub destination_mac: [u8; 6],
    /// See `source_mac`.
    pub vlans: Vec<u16>,
    /// Of one family with `destination`.
    pub source: IpAddr,
    /// Of one family with `source`.
    pub destination: IpAddr,
    /// TTL, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Identification; of 16 bits in IPv4, and in IPv6 only written into a fragment header.
    pub id: u32,
    /// IPv4 only.
    pub dont_fragment: bool,
    /// IPv4 only; padded with zeros to whole words when written.
    pub ip_options: Vec<u8>,
    /// IPv6 only: number and content of each extension header but the fragment header; `6 + 8 n` bytes each.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// This is a fragment: at this offset in bytes (a multiple of 8), and whether more follow. `payload` is its raw share.
    pub fragment: Option<(u16, bool)>,
    /// What is in it.
    pub transport: Transport,
    /// What is in that.
    pub payload: Vec<u8>,
}

/// The header behind the IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp {
        /// From.
        source_port: u16,
        /// To.
        destination_port: u16,
        /// False: the checksum field is 0, "none" (IPv4 only; RFC 768).
        is_summed: bool,
    },
    /// ICMP or ICMPv6, by the family of the addresses.
    Icmp {
        /// Type and code.
        kind: (u8, u8),
        /// The four bytes after the checksum.
        rest: [u8; 4],
    },
    /// Another protocol, or a fragment: all is payload.
    Opaque(u8),
}

/// A TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// From.
    pub source_port: u16,
    /// To.
    pub destination_port: u16,
    /// Number of its first byte.
    pub seq: u32,
    /// Next number expected; meant only with [`ACK`].
    pub ack: u32,
    /// [`SYN`] and so on.
    pub flags: u8,
    /// As written, not scaled.
    pub window: u16,
    /// As written, not checked.
    pub urgent: u16,
    /// Padded with zeros to whole words when written.
    pub options: Vec<u8>,
}

impl Packet {
    /// A TCP segment with ACK alone, between two addresses with ports, as in `10.0.0.1:40000` or `[fd00::1]:40000`.
    ///
    /// # Panics
    /// On what is no address, and on two families. So do all that take an address in words.
    #[track_caller]
    pub fn tcp(from: &str, to: &str) -> Self {
        let (from, to) = (socket_address(from), socket_address(to));
        let tcp = Tcp {
            source_port: from.port(),
            destination_port: to.port(),
            seq: 0,
            ack: 0,
            flags: ACK,
            window: 64_240,
            urgent: 0,
            options: Vec::new(),
        };
        Self::between(from.ip(), to.ip(), Transport::Tcp(tcp))
    }

    /// A UDP datagram.
    #[track_caller]
    pub fn udp(from: &str, to: &str) -> Self {
        let (from, to) = (socket_address(from), socket_address(to));
        let (source_port, destination_port) = (from.port(), to.port());
        Self::between(from.ip(), to.ip(), Transport::Udp { source_port, destination_port, is_summed: true })
    }

    /// ICMP or ICMPv6 of any type and code.
    #[track_caller]
    pub fn icmp(from: &str, to: &str, kind: (u8, u8), rest: [u8; 4]) -> Self {
        Self::between(address(from), address(to), Transport::Icmp { kind, rest })
    }

    /// An echo request.
    #[track_caller]
    pub fn ping(from: &str, to: &str, id: u16, seq: u16) -> Self {
        let kind = if address(from).is_ipv4() { (8, 0) } else { (128, 0) };
        let ([a, b], [c, d]) = (id.to_be_bytes(), seq.to_be_bytes());
        Self::icmp(from, to, kind, [a, b, c, d])
    }

    /// A packet of any other protocol.
    #[track_caller]
    pub fn other(from: &str, to: &str, protocol: u8) -> Self {
        Self::between(address(from), address(to), Transport::Opaque(protocol))
    }

    #[track_caller]
    fn between(source: IpAddr, destination: IpAddr, transport: Transport) -> Self {
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "{source} and {destination} are of two families");
        Self {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            vlans: Vec::new(),
            source,
            destination,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: false,
            ip_options: Vec::new(),
            extensions: Vec::new(),
            fragment: None,
            transport,
            payload: Vec::new(),
        }
    }

    /// From the link-layer address to the other.
    pub fn macs(mut self, from: [u8; 6], to: [u8; 6]) -> Self {
        (self.source_mac, self.destination_mac) = (from, to);
        self
    }

    /// Adds a VLAN tag inside those that it has.
    pub fn vlan(mut self, id: u16) -> Self {
        self.vlans.push(id);
        self
    }

    /// TTL, or hop limit.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = ttl;
        self
    }

    /// Type of service, or traffic class.
    pub fn tos(mut self, tos: u8) -> Self {
        self.tos = tos;
        self
    }

    /// Identification.
    pub fn id(mut self, id: u32) -> Self {
        self.id = id;
        self
    }

    /// Sets DF.
    pub fn dont_fragment(mut self) -> Self {
        self.dont_fragment = true;
        self
    }

    /// IPv4 options, up to 40 bytes.
    pub fn ip_options(mut self, options: &[u8]) -> Self {
        self.ip_options = options.to_vec();
        self
    }

    /// Adds an IPv6 extension header behind those that it has; padded to a multiple of 8 bytes.
    pub fn extension(mut self, number: u8, content: &[u8]) -> Self {
        let mut content = content.to_vec();
        content.resize((content.len() + 2).next_multiple_of(8) - 2, 0);
        self.extensions.push((number, content));
        self
    }

    /// An IPv6 packet with a fragment header that is not in pieces (RFC 6946), or a raw piece of any packet.
    pub fn fragment(mut self, offset_bytes: u16, more: bool) -> Self {
        self.fragment = Some((offset_bytes, more));
        self
    }

    /// Exactly these flags.
    #[track_caller]
    pub fn flags(self, flags: u8) -> Self {
        self.change_tcp(|tcp| tcp.flags = flags)
    }

    /// Sequence number.
    #[track_caller]
    pub fn seq(self, seq: u32) -> Self {
        self.change_tcp(|tcp| tcp.seq = seq)
    }

    /// Acknowledgement number; the flag is not touched.
    #[track_caller]
    pub fn ack(self, ack: u32) -> Self {
        self.change_tcp(|tcp| tcp.ack = ack)
    }

    /// Window.
    #[track_caller]
    pub fn window(self, window: u16) -> Self {
        self.change_tcp(|tcp| tcp.window = window)
    }

    /// TCP options, up to 40 bytes.
    #[track_caller]
    pub fn tcp_options(self, options: &[u8]) -> Self {
        self.change_tcp(|tcp| tcp.options = options.to_vec())
    }

    #[track_caller]
    fn change_tcp(mut self, change: impl FnOnce(&mut Tcp)) -> Self {
        match &mut self.transport {
            Transport::Tcp(tcp) => change(tcp),
            other => panic!("{other:?} is not TCP"),
        }
        self
    }

    /// A UDP checksum of 0.
    #[track_caller]
    pub fn unsummed(mut self) -> Self {
        match &mut self.transport {
            Transport::Udp { is_summed, .. } => *is_summed = false,
            other => panic!("{other:?} is not UDP"),
        }
        self
    }

    /// The content.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// As many bytes of content, in a pattern in which no two places within 251 bytes look alike.
    pub fn payload_bytes(mut self, count: usize) -> Self {
        self.payload = (0..count).map(|index| (index % 251) as u8).collect();
        self
    }

    /// Another source: an address with a port, or an address alone.
    #[track_caller]
    pub fn from(mut self, source: &str) -> Self {
        let (address, port) = place(source);
        self.source = address;
        if let (Some(port), Some((own, _))) = (port, self.ports_mut()) {
            *own = port;
        }
        self
    }

    /// Another destination: an address with a port, or an address alone.
    #[track_caller]
    pub fn to(mut self, destination: &str) -> Self {
        let (address, port) = place(destination);
        self.destination = address;
        if let (Some(port), Some((_, own))) = (port, self.ports_mut()) {
            *own = port;
        }
        self
    }

    /// The other way: link addresses, addresses and ports change places, the TTL is fresh. An echo request becomes its reply.
    pub fn reply(&self) -> Self {
        let mut reply = self.clone();
        (reply.source_mac, reply.destination_mac) = (self.destination_mac, self.source_mac);
        (reply.source, reply.destination, reply.ttl) = (self.destination, self.source, 64);
        if let Some((source, destination)) = reply.ports_mut() {
            std::mem::swap(source, destination);
        }
        if let Transport::Icmp { kind, .. } = &mut reply.transport {
            kind.0 = match kind.0 {
                8 => 0,
                128 => 129,
                other => other,
            };
        }
        reply
    }

    /// Source and destination port, where it has any.
    pub fn ports(&self) -> Option<(u16, u16)> {
        match &self.transport {
            Transport::Tcp(tcp) => Some((tcp.source_port, tcp.destination_port)),
            Transport::Udp { source_port, destination_port, .. } => Some((*source_port, *destination_port)),
            Transport::Icmp { .. } | Transport::Opaque(_) => None,
        }
    }

    fn ports_mut(&mut self) -> Option<(&mut u16, &mut u16)> {
        match &mut self.transport {
            Transport::Tcp(tcp) => Some((&mut tcp.source_port, &mut tcp.destination_port)),
            Transport::Udp { source_port, destination_port, .. } => Some((source_port, destination_port)),
            Transport::Icmp { .. } | Transport::Opaque(_) => None,
        }
    }

    /// Its protocol number.
    pub fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp(_) => protocol::TCP,
            Transport::Udp { .. } => protocol::UDP,
            Transport::Icmp { .. } if self.source.is_ipv4() => protocol::ICMP,
            Transport::Icmp { .. } => protocol::ICMPV6,
            Transport::Opaque(number) => number,
        }
    }
}

#[track_caller]
fn socket_address(text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no address with a port"))
}

#[track_caller]
fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no address"))
}

#[track_caller]
fn place(text: &str) -> (IpAddr, Option<u16>) {
    match text.parse::<SocketAddr>() {
        Ok(place) => (place.ip(), Some(place.port())),
        Err(_) => (address(text), None),
    }
}

#[cfg(test)]
mod tests;

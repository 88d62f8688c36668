//! Descriptions of packets: built from text, read back into the same description, and printed in one line.
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
//! Every field has a simple default, so a test names only the fields that matter to it. [`Packet::build`] writes the
//! bytes with correct lengths and checksums. [`Packet::read`] is its inverse and reports wrong checksums. The sums are
//! computed in the simplest way, over the whole packet, so that programs that compute differences can be compared with
//! them.
//!
//! Not here: sending packets, and intentionally wrong packets: a test cuts or alters the bytes itself.

mod checksum;
mod icmp;
mod read;
mod show;
mod write;

use std::net::{IpAddr, SocketAddr};

pub use checksum::{internet, with_pseudo_header};
pub use icmp::IcmpError;
pub use read::Reading;

/// TCP flags, to be combined with `|`.
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

/// IPv6 extension headers that may precede the transport header (RFC 8200 section 4.1).
pub(crate) const EXTENSIONS: [u8; 3] = [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS];
/// For [`Packet::extension`].
pub const HOP_BY_HOP: u8 = 0;
/// For [`Packet::extension`]. The pseudo header uses the destination of the packet: there are no segments left.
pub const ROUTING: u8 = 43;
/// For [`Packet::extension`].
pub const DESTINATION_OPTIONS: u8 = 60;

/// A whole Ethernet frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Source and destination MAC address, and VLAN tags from the outermost: the priority in the upper four bits, the
    /// identifier in the others.
    pub source_mac: [u8; 6],
    /// See `source_mac`.
    pub destination_mac: [u8; 6],
    /// See `source_mac`.
    pub vlans: Vec<u16>,
    /// The source address, of the same family as `destination`.
    pub source: IpAddr,
    /// The destination address, of the same family as `source`.
    pub destination: IpAddr,
    /// TTL, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Identification. 16 bits in IPv4; in IPv6 only used in a fragment header.
    pub id: u32,
    /// IPv4 only.
    pub dont_fragment: bool,
    /// IPv4 only. Padded with zeros to whole words when written.
    pub ip_options: Vec<u8>,
    /// IPv6 only: number and content of each extension header other than the fragment header, with `6 + 8 n` bytes
    /// each.
    pub extensions: Vec<(u8, Vec<u8>)>,
    /// Set for a fragment: its offset in bytes (a multiple of 8), and whether more fragments follow. `payload` is its
    /// raw part.
    pub fragment: Option<(u16, bool)>,
    /// The transport header.
    pub transport: Transport,
    /// The payload of the transport.
    pub payload: Vec<u8>,
}

/// The header behind the IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp(Tcp),
    /// UDP.
    Udp {
        /// The source port.
        source_port: u16,
        /// The destination port.
        destination_port: u16,
        /// If false, the checksum field is 0, which means "none" (IPv4 only; RFC 768).
        is_summed: bool,
    },
    /// ICMP or ICMPv6, by the family of the addresses.
    Icmp {
        /// Type and code.
        kind: (u8, u8),
        /// The four bytes after the checksum.
        rest: [u8; 4],
    },
    /// Another protocol, or a fragment. Everything is payload.
    Opaque(u8),
}

/// A TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// The source port.
    pub source_port: u16,
    /// The destination port.
    pub destination_port: u16,
    /// The sequence number of the first byte.
    pub seq: u32,
    /// The next expected sequence number; only meaningful with [`ACK`].
    pub ack: u32,
    /// [`SYN`] and so on.
    pub flags: u8,
    /// The raw field, without scaling.
    pub window: u16,
    /// The raw field, not checked.
    pub urgent: u16,
    /// The options, padded with zeros to whole words when written.
    pub options: Vec<u8>,
}

impl Packet {
    /// A TCP segment with only ACK, between two addresses with ports, such as `10.0.0.1:40000` or `[fd00::1]:40000`.
    ///
    /// # Panics
    /// If a text is not an address, or if the addresses are of two families. So do all functions that take an address
    /// as text.
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

    /// Sets the source and destination MAC address.
    pub fn macs(mut self, from: [u8; 6], to: [u8; 6]) -> Self {
        (self.source_mac, self.destination_mac) = (from, to);
        self
    }

    /// Adds a VLAN tag inside the existing ones.
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

    /// Adds an IPv6 extension header after the existing ones, padded to a multiple of 8 bytes.
    pub fn extension(mut self, number: u8, content: &[u8]) -> Self {
        let mut content = content.to_vec();
        content.resize((content.len() + 2).next_multiple_of(8) - 2, 0);
        self.extensions.push((number, content));
        self
    }

    /// An IPv6 packet with a fragment header that is not fragmented (RFC 6946), or a raw fragment of any packet.
    pub fn fragment(mut self, offset_bytes: u16, more: bool) -> Self {
        self.fragment = Some((offset_bytes, more));
        self
    }

    /// Sets exactly these flags.
    #[track_caller]
    pub fn flags(self, flags: u8) -> Self {
        self.change_tcp(|tcp| tcp.flags = flags)
    }

    /// Sequence number.
    #[track_caller]
    pub fn seq(self, seq: u32) -> Self {
        self.change_tcp(|tcp| tcp.seq = seq)
    }

    /// Acknowledgement number. The flag does not change.
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

    /// Sends no UDP checksum (0).
    #[track_caller]
    pub fn unsummed(mut self) -> Self {
        match &mut self.transport {
            Transport::Udp { is_summed, .. } => *is_summed = false,
            other => panic!("{other:?} is not UDP"),
        }
        self
    }

    /// The payload.
    pub fn payload(mut self, payload: &[u8]) -> Self {
        self.payload = payload.to_vec();
        self
    }

    /// A payload of this many bytes, in a pattern in which no two places within 251 bytes look alike.
    pub fn payload_bytes(mut self, count: usize) -> Self {
        self.payload = (0..count).map(|index| (index % 251) as u8).collect();
        self
    }

    /// Sets another source: an address with or without a port.
    #[track_caller]
    pub fn from(mut self, source: &str) -> Self {
        let (address, port) = place(source);
        self.source = address;
        if let (Some(port), Some((own, _))) = (port, self.ports_mut()) {
            *own = port;
        }
        self
    }

    /// Sets another destination: an address with or without a port.
    #[track_caller]
    pub fn to(mut self, destination: &str) -> Self {
        let (address, port) = place(destination);
        self.destination = address;
        if let (Some(port), Some((_, own))) = (port, self.ports_mut()) {
            *own = port;
        }
        self
    }

    /// The packet in the other direction: MAC addresses, addresses and ports are swapped, and the TTL is reset. An echo
    /// request becomes its reply.
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

    /// The source and destination port, if there are any.
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
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not an address with a port"))
}

#[track_caller]
fn address(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is not an address"))
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

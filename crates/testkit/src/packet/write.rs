//! Writes the bytes of a packet.

use std::net::IpAddr;

use super::{EXTENSIONS, Packet, Transport, checksum, protocol};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
/// The ethertype of the outer of two tags (IEEE 802.1ad).
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

impl Packet {
    /// The whole frame, with correct lengths and checksums.
    ///
    /// # Panics
    /// If something does not fit in a packet: more than 64 KiB, options of more than 40 bytes, IPv6 parts in an IPv4
    /// packet.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.destination_mac);
        bytes.extend(self.source_mac);
        for (index, id) in self.vlans.iter().enumerate() {
            let is_outer = index + 1 < self.vlans.len();
            bytes.extend((if is_outer { ETHERTYPE_SERVICE_VLAN } else { ETHERTYPE_VLAN }).to_be_bytes());
            bytes.extend(id.to_be_bytes());
        }
        bytes.extend((if self.source.is_ipv4() { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }).to_be_bytes());
        bytes.extend(self.build_ip());
        bytes
    }

    /// The bytes from the IP header on.
    pub fn build_ip(&self) -> Vec<u8> {
        let content = self.content();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                assert!(self.extensions.is_empty(), "only IPv6 has extension headers");
                let options = padded(&self.ip_options, 4);
                assert!(options.len() <= 40, "{} bytes of IPv4 options", options.len());
                let header_bytes = 20 + options.len();
                let total = u16::try_from(header_bytes + content.len()).expect("at most 65,535 bytes");
                let (offset, more) = self.fragment.unwrap_or_default();
                assert_eq!(offset % 8, 0, "the offset of a fragment is a multiple of 8");
                let flags = u16::from(self.dont_fragment) << 14 | u16::from(more) << 13;
                let mut bytes = vec![0x40 | (header_bytes / 4) as u8, self.tos];
                bytes.extend(total.to_be_bytes());
                bytes.extend((self.id as u16).to_be_bytes());
                bytes.extend((flags | (offset / 8)).to_be_bytes());
                bytes.extend([self.ttl, self.protocol(), 0, 0]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
                bytes.extend(options);
                let sum = checksum::internet(&bytes);
                bytes[10..12].copy_from_slice(&sum.to_be_bytes());
                bytes.extend(content);
                bytes
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                assert!(self.ip_options.is_empty() && !self.dont_fragment, "only IPv4 has options and DF");
                let (first, chain) = self.chain();
                let length = u16::try_from(chain.len() + content.len()).expect("at most 65,535 bytes");
                let mut bytes = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0];
                bytes.extend(length.to_be_bytes());
                bytes.extend([first, self.ttl]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
                bytes.extend(chain);
                bytes.extend(content);
                bytes
            }
            _ => panic!("{} and {} are of different families", self.source, self.destination),
        }
    }

    /// The extension headers, and the number of the first header after IPv6's own.
    fn chain(&self) -> (u8, Vec<u8>) {
        let mut numbers: Vec<u8> = self.extensions.iter().map(|(number, _)| *number).collect();
        if let Some(unknown) = numbers.iter().find(|number| !EXTENSIONS.contains(number)) {
            panic!("no extension header has the number {unknown}");
        }
        numbers.extend(self.fragment.map(|_| protocol::FRAGMENT));
        numbers.push(self.protocol());
        let mut bytes = Vec::new();
        for ((_, content), next) in self.extensions.iter().zip(&numbers[1..]) {
            assert_eq!((content.len() + 2) % 8, 0, "the length of an extension header is a multiple of 8 bytes");
            bytes.extend([*next, ((content.len() + 2) / 8 - 1) as u8]);
            bytes.extend(content);
        }
        if let Some((offset, more)) = self.fragment {
            assert_eq!(offset % 8, 0, "the offset of a fragment is a multiple of 8");
            bytes.extend([self.protocol(), 0]);
            bytes.extend((offset | u16::from(more)).to_be_bytes());
            bytes.extend(self.id.to_be_bytes());
        }
        (numbers[0], bytes)
    }

    /// The transport header with its checksum, and its payload.
    fn content(&self) -> Vec<u8> {
        let (mut bytes, sum_at) = match &self.transport {
            Transport::Opaque(_) => return self.payload.clone(),
            Transport::Tcp(tcp) => {
                let options = padded(&tcp.options, 4);
                assert!(options.len() <= 40, "{} bytes of TCP options", options.len());
                let mut bytes = Vec::new();
                bytes.extend(tcp.source_port.to_be_bytes());
                bytes.extend(tcp.destination_port.to_be_bytes());
                bytes.extend(tcp.seq.to_be_bytes());
                bytes.extend(tcp.ack.to_be_bytes());
                bytes.extend([(((20 + options.len()) / 4) << 4) as u8, tcp.flags]);
                bytes.extend(tcp.window.to_be_bytes());
                bytes.extend([0, 0]);
                bytes.extend(tcp.urgent.to_be_bytes());
                bytes.extend(options);
                (bytes, 16)
            }
            Transport::Udp { source_port, destination_port, .. } => {
                let length = u16::try_from(8 + self.payload.len()).expect("at most 65,527 bytes");
                let mut bytes = Vec::new();
                bytes.extend(source_port.to_be_bytes());
                bytes.extend(destination_port.to_be_bytes());
                bytes.extend(length.to_be_bytes());
                bytes.extend([0, 0]);
                (bytes, 6)
            }
            Transport::Icmp { kind, rest } => {
                let mut bytes = vec![kind.0, kind.1, 0, 0];
                bytes.extend(rest);
                (bytes, 2)
            }
        };
        bytes.extend(&self.payload);
        let sum = match &self.transport {
            Transport::Udp { is_summed: false, .. } => 0,
            Transport::Icmp { .. } if self.source.is_ipv4() => checksum::internet(&bytes),
            _ => checksum::with_pseudo_header(self.source, self.destination, self.protocol(), &bytes),
        };
        // A sum of 0 is written in its other form, because 0 means "none" (RFC 768).
        let is_summed_udp = matches!(self.transport, Transport::Udp { is_summed: true, .. });
        let sum = if is_summed_udp && sum == 0 { 0xffff } else { sum };
        bytes[sum_at..sum_at + 2].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// The frames in which the packet crosses a link that carries IP packets of `mtu` bytes; one frame if it fits.
    pub fn fragments(&self, mtu: usize) -> Vec<Vec<u8>> {
        let whole = self.build_ip();
        if whole.len() <= mtu {
            return vec![self.build()];
        }
        let content = self.content();
        let piece = Self { fragment: Some((0, true)), transport: Transport::Opaque(self.protocol()), ..self.clone() };
        let header_bytes = piece.clone().payload(&[]).build_ip().len();
        let share = (mtu - header_bytes) / 8 * 8;
        let count = content.len().div_ceil(share);
        let pieces = content.chunks(share).enumerate().map(|(index, bytes)| {
            let offset = u16::try_from(index * share).expect("at most 65,535 bytes");
            piece.clone().fragment(offset, index + 1 < count).payload(bytes).build()
        });
        pieces.collect()
    }
}

fn padded(bytes: &[u8], unit: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(unit), 0);
    padded
}

//! Reads bytes back into a packet, and checks its sums.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{EXTENSIONS, Packet, Tcp, Transport, checksum, protocol};

/// The maximum number of extension headers in a packet.
const EXTENSIONS_MAX: usize = 16;

/// The result of reading: the packet, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The packet, as far as it could be read.
    pub packet: Packet,
    /// A sentence for each wrong checksum and length. Empty if everything is correct.
    pub faults: Vec<String>,
}

impl Reading {
    /// The packet.
    ///
    /// # Panics
    /// If anything is wrong with it.
    #[track_caller]
    pub fn right(self) -> Packet {
        assert!(self.faults.is_empty(), "{}: {}", self.packet, self.faults.join("; "));
        self.packet
    }
}

impl Packet {
    /// Reads a frame.
    ///
    /// # Errors
    /// The frame is not an IP packet, or ends before its headers do.
    pub fn read(frame: &[u8]) -> Result<Reading, String> {
        let mut cursor = Cursor { rest: frame };
        let (destination_mac, source_mac) = (cursor.take::<6>("Ethernet")?, cursor.take::<6>("Ethernet")?);
        let mut vlans = Vec::new();
        loop {
            match u16::from_be_bytes(cursor.take("Ethernet")?) {
                0x8100 | 0x88a8 => vlans.push(u16::from_be_bytes(cursor.take("VLAN")?)),
                0x0800 | 0x86dd => break,
                other => return Err(format!("not IP: ethertype {other:04x}")),
            }
        }
        let mut reading = Self::read_ip(cursor.rest)?;
        let packet = Self { source_mac, destination_mac, vlans, ..reading.packet };
        reading.packet = packet;
        Ok(reading)
    }

    /// Reads from the IP header on. The link layer has the defaults of the builder.
    ///
    /// # Errors
    /// Same as [`Packet::read`].
    pub fn read_ip(bytes: &[u8]) -> Result<Reading, String> {
        let mut faults = Vec::new();
        let (packet, content) = match bytes.first().map(|first| first >> 4) {
            Some(4) => ipv4(bytes, &mut faults)?,
            Some(6) => ipv6(bytes, &mut faults)?,
            Some(version) => return Err(format!("IP version {version}")),
            None => return Err("empty".to_owned()),
        };
        let packet = if packet.fragment.is_some_and(|(offset, more)| offset > 0 || more) {
            // The content of a fragment makes sense only together with the others.
            packet.payload(content)
        } else {
            transport(packet, content, &mut faults)?
        };
        Ok(Reading { packet, faults })
    }

    /// Reads a frame and describes it in one line, including wrong sums, for the message of an assertion.
    pub fn describe(frame: &[u8]) -> String {
        match Self::read(frame) {
            Err(why) => format!("{} bytes that are not a packet ({why})", frame.len()),
            Ok(Reading { packet, faults }) => faults.iter().fold(packet.to_string(), |mut line, fault| {
                // Writing to a String cannot fail.
                let _ = write!(line, " WRONG: {fault}");
                line
            }),
        }
    }
}

struct Cursor<'b> {
    rest: &'b [u8],
}

impl<'b> Cursor<'b> {
    fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N], String> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| format!("{what} header cut short"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn take_slice(&mut self, count: usize, what: &str) -> Result<&'b [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| format!("{what} header cut short"))?;
        self.rest = rest;
        Ok(taken)
    }
}

/// The packet without its payload, and the payload.
fn ipv4<'b>(bytes: &'b [u8], faults: &mut Vec<String>) -> Result<(Packet, &'b [u8]), String> {
    let mut cursor = Cursor { rest: bytes };
    let [first, tos] = cursor.take("IPv4")?;
    let header_bytes = usize::from(first & 15) * 4;
    let total = usize::from(u16::from_be_bytes(cursor.take("IPv4")?));
    let id = u16::from_be_bytes(cursor.take("IPv4")?);
    let fragment = u16::from_be_bytes(cursor.take("IPv4")?);
    let [ttl, number, _, _] = cursor.take("IPv4")?;
    let source = Ipv4Addr::from(cursor.take::<4>("IPv4")?);
    let destination = Ipv4Addr::from(cursor.take::<4>("IPv4")?);
    let options =
        cursor.take_slice(header_bytes.checked_sub(20).ok_or("IPv4 header length is less than 20 bytes")?, "IPv4")?;
    if checksum::internet(&bytes[..header_bytes]) != 0 {
        faults.push("IPv4 header checksum".to_owned());
    }
    let content_bytes = total.checked_sub(header_bytes).ok_or("IPv4 total length is less than its header")?;
    let content = content(cursor.rest, content_bytes, faults);
    let mut packet = Packet::between(source.into(), destination.into(), Transport::Opaque(number));
    (packet.tos, packet.ttl, packet.id, packet.ip_options) = (tos, ttl, id.into(), options.to_vec());
    packet.dont_fragment = fragment & 0x4000 != 0;
    let (offset, more) = (fragment << 3, fragment & 0x2000 != 0);
    packet.fragment = (offset > 0 || more).then_some((offset, more));
    Ok((packet, content))
}

fn ipv6<'b>(bytes: &'b [u8], faults: &mut Vec<String>) -> Result<(Packet, &'b [u8]), String> {
    let mut cursor = Cursor { rest: bytes };
    let [first, second, _, _] = cursor.take("IPv6")?;
    let length = usize::from(u16::from_be_bytes(cursor.take("IPv6")?));
    let [mut next, ttl] = cursor.take("IPv6")?;
    let source = Ipv6Addr::from(cursor.take::<16>("IPv6")?);
    let destination = Ipv6Addr::from(cursor.take::<16>("IPv6")?);
    let mut cursor = Cursor { rest: content(cursor.rest, length, faults) };
    let mut packet = Packet::between(source.into(), destination.into(), Transport::Opaque(0));
    (packet.tos, packet.ttl) = (first << 4 | second >> 4, ttl);
    for _ in 0..EXTENSIONS_MAX {
        if EXTENSIONS.contains(&next) {
            let [following, units] = cursor.take("extension")?;
            let content = cursor.take_slice(6 + 8 * usize::from(units), "extension")?;
            packet.extensions.push((next, content.to_vec()));
            next = following;
        } else if next == protocol::FRAGMENT {
            let [following, _] = cursor.take("fragment")?;
            let place = u16::from_be_bytes(cursor.take("fragment")?);
            packet.id = u32::from_be_bytes(cursor.take("fragment")?);
            packet.fragment = Some((place & !7, place & 1 != 0));
            next = following;
            break;
        } else {
            break;
        }
    }
    packet.transport = Transport::Opaque(next);
    Ok((packet, cursor.rest))
}

/// The bytes that the length covers. Bytes after them pad a short frame. A frame with fewer bytes was cut.
fn content<'b>(rest: &'b [u8], bytes: usize, faults: &mut Vec<String>) -> &'b [u8] {
    rest.get(..bytes).unwrap_or_else(|| {
        faults.push(format!("cut: {} of {bytes} bytes after the IP header", rest.len()));
        rest
    })
}

fn transport(mut packet: Packet, content: &[u8], faults: &mut Vec<String>) -> Result<Packet, String> {
    let Transport::Opaque(number) = packet.transport else { return Ok(packet) };
    let (source, destination) = (packet.source, packet.destination);
    let mut cursor = Cursor { rest: content };
    match number {
        protocol::TCP => {
            packet.transport = Transport::Tcp(tcp(&mut cursor)?);
            check_sum("TCP", source, destination, number, content, faults);
        }
        protocol::UDP => {
            let source_port = u16::from_be_bytes(cursor.take("UDP")?);
            let destination_port = u16::from_be_bytes(cursor.take("UDP")?);
            let length = usize::from(u16::from_be_bytes(cursor.take("UDP")?));
            let is_summed = cursor.take("UDP")? != [0, 0];
            packet.transport = Transport::Udp { source_port, destination_port, is_summed };
            if length != content.len() {
                faults.push(format!("UDP length {length} in {} bytes", content.len()));
            }
            if is_summed {
                check_sum("UDP", source, destination, number, content, faults);
            } else if source.is_ipv6() {
                faults.push("UDP over IPv6 without a checksum".to_owned());
            }
        }
        protocol::ICMP if source.is_ipv4() => {
            let [kind, code, _, _] = cursor.take("ICMP")?;
            packet.transport = Transport::Icmp { kind: (kind, code), rest: cursor.take("ICMP")? };
            if checksum::internet(content) != 0 {
                faults.push("ICMP checksum".to_owned());
            }
            if matches!(kind, 3 | 11 | 12) {
                quoted(cursor.rest, faults);
            }
        }
        protocol::ICMPV6 if source.is_ipv6() => {
            let [kind, code, _, _] = cursor.take("ICMPv6")?;
            packet.transport = Transport::Icmp { kind: (kind, code), rest: cursor.take("ICMPv6")? };
            check_sum("ICMPv6", source, destination, number, content, faults);
            if (1..=4).contains(&kind) {
                quoted(cursor.rest, faults);
            }
        }
        _ => {}
    }
    Ok(packet.payload(cursor.rest))
}

fn tcp(cursor: &mut Cursor) -> Result<Tcp, String> {
    let source_port = u16::from_be_bytes(cursor.take("TCP")?);
    let destination_port = u16::from_be_bytes(cursor.take("TCP")?);
    let seq = u32::from_be_bytes(cursor.take("TCP")?);
    let ack = u32::from_be_bytes(cursor.take("TCP")?);
    let [offset, flags] = cursor.take("TCP")?;
    let window = u16::from_be_bytes(cursor.take("TCP")?);
    let _sum: [u8; 2] = cursor.take("TCP")?;
    let urgent = u16::from_be_bytes(cursor.take("TCP")?);
    let option_bytes =
        (usize::from(offset >> 4) * 4).checked_sub(20).ok_or("TCP header length is less than 20 bytes")?;
    let options = cursor.take_slice(option_bytes, "TCP")?.to_vec();
    Ok(Tcp { source_port, destination_port, seq, ack, flags, window, urgent, options })
}

fn check_sum(name: &str, source: IpAddr, destination: IpAddr, number: u8, content: &[u8], faults: &mut Vec<String>) {
    if checksum::with_pseudo_header(source, destination, number, content) != 0 {
        faults.push(format!("{name} checksum"));
    }
}

/// A quoted packet is usually cut, so only faults in what is there count.
fn quoted(bytes: &[u8], faults: &mut Vec<String>) {
    match Packet::read_ip(bytes) {
        Ok(reading) => {
            let is_cut = reading.faults.iter().any(|fault| fault.starts_with("cut: "));
            let wrong = reading.faults.iter().filter(|fault| !is_cut || fault.starts_with("IPv4 header"));
            faults.extend(wrong.map(|fault| format!("in the quoted packet: {fault}")));
        }
        // 8 bytes of a TCP header are a legal quotation (RFC 792).
        Err(why) if why == "TCP header cut short" => {}
        Err(why) => faults.push(format!("in the quoted packet: {why}")),
    }
}

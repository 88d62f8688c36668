//! The few packets that user space makes: the packet of a trace, and those that prod a client.

use std::net::{IpAddr, SocketAddr};

use model::Transport;

use crate::plan::{TCP, UDP};

/// RFC 1700's default, which most hosts use.
const TTL: u8 = 64;
const TCP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const WINDOW: u16 = 65_535;

/// An IP packet without payload and with correct checksums. Both ends must be of one family.
pub(crate) fn packet(from: SocketAddr, to: SocketAddr, transport: Transport, tcp_flags: u8) -> Vec<u8> {
    let mut segment = match transport {
        Transport::Tcp => {
            let mut header = vec![0; TCP_HEADER];
            // Five words of header (RFC 9293 section 3.1).
            put(&mut header, 12, &[5 << 4, tcp_flags]);
            put(&mut header, 14, &WINDOW.to_be_bytes());
            header
        }
        Transport::Udp => {
            let mut header = vec![0; UDP_HEADER];
            put(&mut header, 4, &(UDP_HEADER as u16).to_be_bytes());
            header
        }
    };
    put(&mut segment, 0, &from.port().to_be_bytes());
    put(&mut segment, 2, &to.port().to_be_bytes());
    let (proto, check_at) = match transport {
        Transport::Tcp => (TCP, 16),
        Transport::Udp => (UDP, 6),
    };
    let (from, to) = (octets(from.ip()), octets(to.ip()));
    let length = segment.len() as u16;
    let pseudo = [&from[..], &to, &[0, proto], &length.to_be_bytes(), &segment].concat();
    put(&mut segment, check_at, &checksum(&pseudo).to_be_bytes());
    [header(&from, &to, proto, length), segment].concat()
}

/// Adds an Ethernet header, as if the packet arrived at the interface with this address.
pub(crate) fn ethernet(to: [u8; 6], packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = if packet.first().is_some_and(|first| first >> 4 == 6) { [0x86, 0xdd] } else { [0x08, 0x00] };
    // A locally administered address, which no device has.
    let from = [0x02, 0, 0, 0, 0, 1];
    [&to[..], &from, &kind, packet].concat()
}

fn header(from: &[u8], to: &[u8], proto: u8, length: u16) -> Vec<u8> {
    if from.len() == 16 {
        let mut header = vec![0x60, 0, 0, 0];
        header.extend_from_slice(&length.to_be_bytes());
        header.extend_from_slice(&[proto, TTL]);
        return [&header, from, to].concat();
    }
    let mut header = vec![0x45, 0];
    header.extend_from_slice(&(length + 20).to_be_bytes());
    // With the DF bit, as TCP sends it.
    header.extend_from_slice(&[0, 0, 0x40, 0, TTL, proto, 0, 0]);
    header.extend_from_slice(from);
    header.extend_from_slice(to);
    let check = checksum(&header);
    put(&mut header, 10, &check.to_be_bytes());
    header
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let word = |pair: &[u8]| pair.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) << (8 * (2 - pair.len()));
    let mut sum: u32 = bytes.chunks(2).map(word).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(room) = bytes.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use testkit::packet::Packet;

    use super::*;

    #[test]
    fn packets_are_read_by_others_as_they_were_meant() {
        let check = |from: &str, to: &str, transport: Transport, flags: u8, expect: &str| {
            let frame =
                ethernet([0x02, 0, 0, 0, 0, 9], &packet(from.parse().unwrap(), to.parse().unwrap(), transport, flags));
            let read = Packet::read(&frame).unwrap();
            assert!(read.faults.is_empty(), "{:?}: {}", read.faults, Packet::describe(&frame));
            assert!(Packet::describe(&frame).contains(expect), "{} has no {expect}", Packet::describe(&frame));
        };
        check("10.0.0.1:40000", "20.0.0.1:80", Transport::Tcp, 0x02, "10.0.0.1:40000");
        check("10.0.0.1:40000", "20.0.0.1:80", Transport::Tcp, 0x10, "20.0.0.1:80");
        check("10.0.0.1:40000", "20.0.0.1:53", Transport::Udp, 0, "20.0.0.1:53");
        check("[fd00::1]:40000", "[fd00::2]:80", Transport::Tcp, 0x02, "[fd00::2]:80");
        check("[fd00::1]:40000", "[fd00::2]:53", Transport::Udp, 0, "[fd00::1]:40000");
    }
}

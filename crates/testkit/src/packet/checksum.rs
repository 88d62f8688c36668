//! The Internet checksum (RFC 1071), computed in the simplest way, so that faster ways can be compared with it.

use std::net::IpAddr;

/// The one's complement of the one's complement sum of all 16-bit words. It is 0 over bytes that contain a correct
/// checksum.
pub fn internet(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        // An odd last byte is the high half of a word.
        [high] => u32::from(high) << 8,
        _ => 0,
    });
    // The sum of 65,535 words of 65,535 fits, and no packet is that long.
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The pseudo header that TCP, UDP and ICMPv6 include in their sum (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub fn with_pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, bytes: &[u8]) -> u16 {
    let mut summed = Vec::with_capacity(40 + bytes.len());
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => summed.extend(address.octets()),
            IpAddr::V6(address) => summed.extend(address.octets()),
        }
    }
    // The length has 16 bits in IPv4 and 32 in IPv6, with zeros before the protocol, so the sum is the same.
    summed.extend((bytes.len() as u32).to_be_bytes());
    summed.extend([0, 0, 0, protocol]);
    summed.extend(bytes);
    internet(&summed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sums() {
        let check = |bytes: &[u8], expect: u16| assert_eq!(internet(bytes), expect, "{bytes:x?}");
        // The example of RFC 1071 section 3: the sum is ddf2.
        check(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7], !0xddf2);
        check(&[], 0xffff);
        check(&[0xff], !0xff00);
        check(&[0xff, 0xff, 0x00, 0x01], !0x0001);
    }

    #[test]
    fn a_datagram_of_which_the_sum_is_known() {
        // 192.168.0.31:20 > 192.168.0.30:10, "Hi"; summed by hand: the words add up to 1ca39.
        let datagram = [0, 20, 0, 10, 0, 10, 0, 0, b'H', b'i'];
        let (source, destination) = ("192.168.0.31".parse().unwrap(), "192.168.0.30".parse().unwrap());
        assert_eq!(with_pseudo_header(source, destination, 17, &datagram), 0x35c5);
        let summed = [0, 20, 0, 10, 0, 10, 0x35, 0xc5, b'H', b'i'];
        assert_eq!(with_pseudo_header(source, destination, 17, &summed), 0);
    }
}

//! ICMP errors, with the same names for both families.

use std::net::IpAddr;

use super::{Packet, Transport};

/// Why a packet was sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet is longer than the next link carries, given in bytes (RFC 1191 section 4, RFC 4443 section 3.2).
    TooBig(u16),
    /// Port unreachable.
    PortUnreachable,
    /// Host unreachable.
    HostUnreachable,
    /// The TTL reached 0.
    TimeExceeded,
}

impl IcmpError {
    fn header(self, is_ipv4: bool) -> ((u8, u8), [u8; 4]) {
        match self {
            Self::TooBig(mtu) => {
                let [high, low] = mtu.to_be_bytes();
                (if is_ipv4 { (3, 4) } else { (2, 0) }, [0, 0, high, low])
            }
            Self::PortUnreachable => (if is_ipv4 { (3, 3) } else { (1, 4) }, [0; 4]),
            Self::HostUnreachable => (if is_ipv4 { (3, 1) } else { (1, 3) }, [0; 4]),
            Self::TimeExceeded => (if is_ipv4 { (11, 0) } else { (3, 0) }, [0; 4]),
        }
    }
}

impl Packet {
    /// The error that `from` sends to the source of `about`. It quotes as much as RFC 1812 section 4.3.2.3 (576 bytes
    /// in all) and RFC 4443 section 2.4 (1,280 in all) allow. [`Packet::quote`] shortens it.
    #[track_caller]
    pub fn error(from: &str, error: IcmpError, about: &Packet) -> Self {
        let source = super::address(from);
        let room = match source {
            IpAddr::V4(_) => 576 - 20 - 8,
            IpAddr::V6(_) => 1280 - 40 - 8,
        };
        let (kind, rest) = error.header(source.is_ipv4());
        let mut quoted = about.build_ip();
        quoted.truncate(room);
        Self::between(source, about.source, Transport::Icmp { kind, rest }).payload(&quoted)
    }

    /// Cuts the payload, which in an error is the quoted packet. RFC 792 guarantees only 28 bytes.
    pub fn quote(mut self, bytes: usize) -> Self {
        self.payload.truncate(bytes);
        self
    }
}

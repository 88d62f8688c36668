//! Keys and values of the maps as bytes. They are written by hand from `abi.h` a second time, so that an error in the crate's own layouts
//! cannot hide.

use std::net::{IpAddr, SocketAddr};

/// As in `abi.h`.
pub mod mode {
    pub const NAT: u8 = 1;
    pub const FULL_NAT: u8 = 2;
    pub const DSR: u8 = 3;
    pub const LOCAL: u8 = 4;
}

/// As in `abi.h`.
pub mod algorithm {
    pub const ROUND_ROBIN: u8 = 1;
    pub const MAGLEV: u8 = 2;
    pub const SOURCE_HASH: u8 = 3;
    pub const LEAST_CONNECTIONS: u8 = 4;
    pub const RANDOM: u8 = 5;
}

/// As in `abi.h`.
pub mod state {
    pub const ACTIVE: u8 = 1;
    pub const DRAINING: u8 = 2;
    pub const DOWN: u8 = 3;
    pub const FAILING: u8 = 4;
}

/// `LB_VIPS_MAX`: drops of packets for no vip.
pub const NO_VIP: u32 = 8192;

/// `LB_VIP_*`.
pub const AFFINITY: u8 = 1;
/// `LB_VIP_*`.
pub const SOURCES: u8 = 2;
/// `LB_VIP_*`.
pub const SOURCES_ONLY: u8 = 4;
/// `LB_VIP_*`.
pub const RATE: u8 = 8;

/// `LB_ADDRESS_*`.
pub const ECHO: u32 = 1;
/// `LB_ADDRESS_*`.
pub const HOST: u32 = 2;

/// `LB_ENDPOINT_HERE`.
pub const HERE: u8 = 0x80;

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// Bytes in the order of a C structure.
#[derive(Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    /// A port in network byte order.
    pub fn port(mut self, value: u16) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn be32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn address(mut self, address: IpAddr) -> Self {
        let bytes = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            IpAddr::V6(address) => address.octets(),
        };
        self.0.extend(bytes);
        self
    }
}

/// `struct lb_flow_key`.
pub fn flow_key(from: SocketAddr, to: SocketAddr, proto: u8) -> Vec<u8> {
    let writer = Writer::default().address(from.ip()).address(to.ip()).port(from.port()).port(to.port());
    writer.u8(proto).u8(0).u16(0).0
}

/// `struct lb_flow`, with the fields that tests use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The source that packets leave with.
    pub from: SocketAddr,
    /// The destination that packets leave with.
    pub to: SocketAddr,
    pub next_hop: IpAddr,
    pub ifindex: u32,
    pub endpoint: u32,
    pub state: u32,
    pub mtu: u16,
    pub action: u8,
    pub flags: u8,
}

/// `LB_SEEN_*` and so on.
pub const SEEN_SYN: u32 = 1;
pub const SEEN_ACK: u32 = 2;
pub const SEEN_FIN: u32 = 4;
pub const CLOSING: u32 = 16;
pub const COUNTED: u32 = 32;
pub const FIN_LAST: u32 = 64;
pub const ENDED: u32 = 128;

pub const FLOW_BYTES: usize = 88;
/// The offsets of `touched_s` and `born_s`.
pub const TOUCHED_AT: usize = 76;

impl Flow {
    /// Reads a flow.
    pub fn read(bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), FLOW_BYTES);
        let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        Self {
            from: SocketAddr::new(address_at(bytes, 0), u16_at(48)),
            to: SocketAddr::new(address_at(bytes, 16), u16_at(50)),
            next_hop: address_at(bytes, 32),
            ifindex: u32_at(bytes, 60),
            endpoint: u32_at(bytes, 64),
            state: u32_at(bytes, 72),
            mtu: u16::from_ne_bytes([bytes[84], bytes[85]]),
            action: bytes[86],
            flags: bytes[87],
        }
    }
}

/// A number in the host's byte order.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn address_at(bytes: &[u8], at: usize) -> IpAddr {
    let octets: [u8; 16] = bytes[at..at + 16].try_into().unwrap();
    IpAddr::from(octets).to_canonical()
}

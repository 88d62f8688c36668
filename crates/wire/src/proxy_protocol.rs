//! The PROXY protocol, versions 1 and 2: a header before the first byte of a connection says who the client is.
//!
//! Source: <https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt>; the sections below are of that document. Whether a connection
//! begins with such a header is configured and never guessed: a client that could choose would choose its own address. The lengths of the
//! type-length-values after the addresses are checked, and the values are skipped. The checksum among them (section 2.2.3) is not verified,
//! which the section allows.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest line of version 1, with its CRLF (section 2.1).
pub const V1_BYTES_MAX: usize = 107;
/// The limit for version 2 after its first 16 bytes. The field allows 65,535. Real headers stay below 1 KiB, even with a certificate's
/// common name and a unique id among their values.
pub const V2_PAYLOAD_BYTES_MAX: usize = 4096;
/// Enough bytes for any header that [`parse`] accepts.
pub const HEADER_BYTES_MAX: usize = V2_FIXED_BYTES + V2_PAYLOAD_BYTES_MAX;

const V1_START: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family and protocol, length.
const V2_FIXED_BYTES: usize = 16;

/// The result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Valid so far; more bytes are needed. Fewer than [`HEADER_BYTES_MAX`] were given.
    Incomplete,
    /// A complete header.
    Complete {
        /// Its content.
        header: Header,
        /// Its length; what follows is from the client.
        consumed: usize,
    },
}

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client's address and the one it connected to. `None` if the sender speaks for itself (LOCAL), does not know them (UNKNOWN,
    /// UNSPEC), or proxies something other than TCP. Then the connection's own addresses apply.
    pub source: Option<(SocketAddr, SocketAddr)>,
    /// The sender speaks for itself (LOCAL), as for its own health checks. A header without `source` that is not local is for a client
    /// whose address it does not have.
    pub is_local: bool,
}

/// The version of the header that is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A line of text (section 2.1).
    V1,
    /// Binary (section 2.2).
    V2,
}

/// Why the bytes are not a header. The connection must be closed (section 2.1: "abort").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocolError {
    /// The first bytes match neither version. Most likely a client connected without a proxy.
    NotProxyProtocol,
    /// Version 1: no CRLF within [`V1_BYTES_MAX`].
    LineTooLong,
    /// Version 1: a CR or an LF alone.
    LineEnd,
    /// Version 1: not one of the three forms, or not exactly one space between their parts.
    Line,
    /// Version 1: an address that is not in its family's form.
    Address,
    /// Version 1: a port is not a number up to 65,535, or has a leading zero.
    Port,
    /// Version 2: the version is not 2, or the command is not LOCAL or PROXY.
    Command,
    /// Version 2: an unassigned family or protocol.
    Family,
    /// Version 2: more than [`V2_PAYLOAD_BYTES_MAX`] announced.
    PayloadTooLong,
    /// Version 2: the announced length ends within the addresses or within a type-length-value.
    Truncated,
}

impl fmt::Display for ProxyProtocolError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NotProxyProtocol => "the connection does not begin with a PROXY protocol header",
            Self::LineTooLong => "PROXY v1: no CRLF within 107 bytes",
            Self::LineEnd => "PROXY v1: a CR or LF alone, expected CRLF",
            Self::Line => "PROXY v1: expected \"PROXY TCP4|TCP6 SOURCE DESTINATION PORT PORT\" or \"PROXY UNKNOWN\"",
            Self::Address => "PROXY v1: an address is not of the announced family",
            Self::Port => "PROXY v1: a port is not a number from 0 to 65535 without leading zeros",
            Self::Command => "PROXY v2: expected version 2 and command LOCAL or PROXY",
            Self::Family => "PROXY v2: unassigned address family or protocol",
            Self::PayloadTooLong => "PROXY v2: more than 4096 bytes announced",
            Self::Truncated => "PROXY v2: the announced length ends within a field",
        })
    }
}

impl Error for ProxyProtocolError {}

/// Reads the header at the start of `bytes`, which are all that have arrived so far. Refuses it at the first byte that cannot be valid.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ProxyProtocolError> {
    if let Some(rest) = bytes.strip_prefix(V1_START) {
        parse_v1(rest)
    } else if let Some(rest) = bytes.strip_prefix(V2_SIGNATURE) {
        parse_v2(rest)
    } else if V1_START.starts_with(bytes) || V2_SIGNATURE.starts_with(bytes) {
        Ok(Parsed::Incomplete)
    } else {
        Err(ProxyProtocolError::NotProxyProtocol)
    }
}

/// `rest` is what follows `PROXY` and a space.
fn parse_v1(rest: &[u8]) -> Result<Parsed, ProxyProtocolError> {
    let end_max = V1_BYTES_MAX - V1_START.len() - b"\r\n".len();
    let Some(end) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).filter(|end| *end <= end_max) else {
        return if rest.len() > end_max { Err(ProxyProtocolError::LineTooLong) } else { Ok(Parsed::Incomplete) };
    };
    let (line, end_of_line) = rest.split_at_checked(end).ok_or(ProxyProtocolError::Line)?;
    match end_of_line {
        [b'\r'] => return Ok(Parsed::Incomplete),
        [b'\r', b'\n', ..] => {}
        _ => return Err(ProxyProtocolError::LineEnd),
    }
    let header = Header { source: parse_v1_line(line)?, is_local: false };
    Ok(Parsed::Complete { header, consumed: V1_START.len() + line.len() + b"\r\n".len() })
}

fn parse_v1_line(line: &[u8]) -> Result<Option<(SocketAddr, SocketAddr)>, ProxyProtocolError> {
    // "The receiver must ignore anything presented before the CRLF."
    if line == b"UNKNOWN" || line.starts_with(b"UNKNOWN ") {
        return Ok(None);
    }
    let line = str::from_utf8(line).map_err(|_| ProxyProtocolError::Line)?;
    let mut parts = line.split(' ');
    let mut part = || parts.next().ok_or(ProxyProtocolError::Line);
    let (family, source, destination, source_port, destination_port) = (part()?, part()?, part()?, part()?, part()?);
    if parts.next().is_some() {
        return Err(ProxyProtocolError::Line);
    }
    let address = match family {
        "TCP4" => |text: &str| text.parse::<Ipv4Addr>().map(IpAddr::from),
        // The standard library also accepts `::ffff:192.0.2.1`. The specification does not have this form, but senders that use inet_ntop
        // write it, HAProxy among them.
        "TCP6" => |text: &str| text.parse::<Ipv6Addr>().map(IpAddr::from),
        _ => return Err(ProxyProtocolError::Line),
    };
    let socket = |ip: &str, port: &str| {
        let ip = address(ip).map_err(|_| ProxyProtocolError::Address)?;
        Ok(SocketAddr::new(ip, parse_port(port)?))
    };
    Ok(Some((socket(source, source_port)?, socket(destination, destination_port)?)))
}

fn parse_port(text: &str) -> Result<u16, ProxyProtocolError> {
    // The standard library's parser would accept a plus sign and leading zeros.
    let strict = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| strict).ok_or(ProxyProtocolError::Port)
}

/// `rest` is what follows the signature.
fn parse_v2(rest: &[u8]) -> Result<Parsed, ProxyProtocolError> {
    let local = match rest.first() {
        None => return Ok(Parsed::Incomplete),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(ProxyProtocolError::Command),
    };
    let Some(([_, family, high, low], rest)) = rest.split_first_chunk() else { return Ok(Parsed::Incomplete) };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    // A LOCAL header's family is ignored (section 2.2).
    if !local && (family >> 4 > 3 || family & 0x0f > 2) {
        return Err(ProxyProtocolError::Family);
    }
    if length > V2_PAYLOAD_BYTES_MAX {
        return Err(ProxyProtocolError::PayloadTooLong);
    }
    let Some(payload) = rest.get(..length) else { return Ok(Parsed::Incomplete) };
    let source = if local { None } else { parse_v2_payload(*family, payload)? };
    Ok(Parsed::Complete { header: Header { source, is_local: local }, consumed: V2_FIXED_BYTES + length })
}

fn parse_v2_payload(family: u8, payload: &[u8]) -> Result<Option<(SocketAddr, SocketAddr)>, ProxyProtocolError> {
    let (source, values) = match family {
        0x11 => take_v4(payload).map(|(source, values)| (Some(source), values)),
        0x21 => take_v6(payload).map(|(source, values)| (Some(source), values)),
        // Datagrams and Unix sockets are valid but of no use to a TCP proxy: "fall back to the UNSPEC mode".
        0x12 => payload.get(12..).map(|values| (None, values)),
        0x22 => payload.get(36..).map(|values| (None, values)),
        0x31 | 0x32 => payload.get(216..).map(|values| (None, values)),
        // UNSPEC in either half: the end of the addresses is not defined.
        _ => return Ok(None),
    }
    .ok_or(ProxyProtocolError::Truncated)?;
    skip_values(values)?;
    Ok(source)
}

fn take_v4(payload: &[u8]) -> Option<((SocketAddr, SocketAddr), &[u8])> {
    let (source, rest) = payload.split_first_chunk::<4>()?;
    let (destination, rest) = rest.split_first_chunk::<4>()?;
    take_ports(Ipv4Addr::from(*source).into(), Ipv4Addr::from(*destination).into(), rest)
}

fn take_v6(payload: &[u8]) -> Option<((SocketAddr, SocketAddr), &[u8])> {
    let (source, rest) = payload.split_first_chunk::<16>()?;
    let (destination, rest) = rest.split_first_chunk::<16>()?;
    take_ports(Ipv6Addr::from(*source).into(), Ipv6Addr::from(*destination).into(), rest)
}

fn take_ports(source: IpAddr, destination: IpAddr, rest: &[u8]) -> Option<((SocketAddr, SocketAddr), &[u8])> {
    let (source_port, rest) = rest.split_first_chunk()?;
    let (destination_port, rest) = rest.split_first_chunk()?;
    let source = SocketAddr::new(source, u16::from_be_bytes(*source_port));
    Some(((source, SocketAddr::new(destination, u16::from_be_bytes(*destination_port))), rest))
}

/// Type-length-values fill the rest exactly (section 2.2).
fn skip_values(mut rest: &[u8]) -> Result<(), ProxyProtocolError> {
    while !rest.is_empty() {
        let Some(([_, high, low], value)) = rest.split_first_chunk() else { return Err(ProxyProtocolError::Truncated) };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        rest = value.get(length..).ok_or(ProxyProtocolError::Truncated)?;
    }
    Ok(())
}

/// Appends the header that says that `source` connected to `destination`. It has at most [`V1_BYTES_MAX`] bytes, so it fits in one segment,
/// and must be sent before what follows or in one write with it.
///
/// IPv4 addresses in IPv6 form, as a listener on `[::]` sees them, are sent as IPv4. If only one of the two is IPv4, it is sent in IPv6
/// form (`::ffff:0:0/96`, RFC 4291 section 2.5.5.2), since a header has one family.
pub fn encode(version: Version, source: SocketAddr, destination: SocketAddr, out: &mut Vec<u8>) {
    let ports = (source.port(), destination.port());
    match (source.ip().to_canonical(), destination.ip().to_canonical(), version) {
        (IpAddr::V4(source), IpAddr::V4(destination), Version::V1) => {
            encode_line(out, format_args!("TCP4 {source} {destination} {} {}", ports.0, ports.1));
        }
        (IpAddr::V4(source), IpAddr::V4(destination), Version::V2) => {
            encode_binary(out, 0x11, &source.octets(), &destination.octets(), ports);
        }
        (source, destination, Version::V1) => {
            let (source, destination) = (Hexadecimal(as_v6(source)), Hexadecimal(as_v6(destination)));
            encode_line(out, format_args!("TCP6 {source} {destination} {} {}", ports.0, ports.1));
        }
        (source, destination, Version::V2) => {
            encode_binary(out, 0x21, &as_v6(source).octets(), &as_v6(destination).octets(), ports);
        }
    }
}

fn encode_line(out: &mut Vec<u8>, line: fmt::Arguments<'_>) {
    // Writing to a vector cannot fail.
    _ = write!(out, "PROXY {line}\r\n");
}

fn encode_binary(out: &mut Vec<u8>, family: u8, source: &[u8], destination: &[u8], ports: (u16, u16)) {
    let length = (source.len() + destination.len() + 4) as u16;
    out.extend_from_slice(V2_SIGNATURE);
    out.extend_from_slice(&[0x21, family]);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(source);
    out.extend_from_slice(destination);
    out.extend_from_slice(&ports.0.to_be_bytes());
    out.extend_from_slice(&ports.1.to_be_bytes());
}

fn as_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// An IPv6 address in the only form that section 2.1 allows: hexadecimal groups. `Display` writes mapped addresses with dots.
struct Hexadecimal(Ipv6Addr);

impl fmt::Display for Hexadecimal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_ipv4_mapped().map(|address| address.octets()) {
            Some([a, b, c, d]) => {
                write!(out, "::ffff:{:x}:{:x}", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
            }
            None => write!(out, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngSeed};

    use super::*;

    /// `expect` is `Ok` with "source > destination" or "none", or the error. Every proper prefix must be incomplete or give the same error.
    /// What follows the header must not matter, and none of it may be consumed.
    fn check(bytes: &[u8], expect: Result<&str, ProxyProtocolError>) {
        let shown = String::from_utf8_lossy(bytes);
        let text = |header: Header| header.source.map_or("none".to_owned(), |(from, to)| format!("{from} > {to}"));
        let followed = [bytes, b"GET / HTTP/1.1\r\n"].concat();
        for input in [bytes, &followed] {
            match parse(input) {
                Ok(Parsed::Complete { header, consumed }) => {
                    assert_eq!(Ok(text(header).as_str()), expect, "{shown:?}");
                    assert_eq!(consumed, bytes.len(), "{shown:?}");
                }
                Ok(Parsed::Incomplete) => panic!("{shown:?} is incomplete"),
                Err(error) => assert_eq!(Err(error), expect, "{shown:?}"),
            }
        }
        for end in 0..bytes.len() {
            match parse(&bytes[..end]) {
                Ok(Parsed::Incomplete) => {}
                Err(error) => assert_eq!(Err(error), expect, "the first {end} of {shown:?}"),
                Ok(complete) => panic!("the first {end} of {shown:?}: {complete:?}"),
            }
        }
    }

    #[test]
    fn v1_good() {
        check(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\n", Ok("192.0.2.1:56324 > 198.51.100.2:443"));
        check(b"PROXY TCP4 255.255.255.255 0.0.0.0 65535 0\r\n", Ok("255.255.255.255:65535 > 0.0.0.0:0"));
        check(b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n", Ok("[2001:db8::1]:1 > [::1]:2"));
        check(
            b"PROXY TCP6 FFFF:ffff:ffff:ffff:ffff:ffff:ffff:ffff 2001:0db8:0:0:0:0:0:1 65535 65535\r\n",
            Ok("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535 > [2001:db8::1]:65535"),
        );
        check(
            b"PROXY TCP6 ::ffff:192.0.2.1 ::ffff:c000:202 1 2\r\n",
            Ok("[::ffff:192.0.2.1]:1 > [::ffff:192.0.2.2]:2"),
        );
        check(b"PROXY UNKNOWN\r\n", Ok("none"));
        check(b"PROXY UNKNOWN \r\n", Ok("none"));
        check(b"PROXY UNKNOWN whatever \xff it says\r\n", Ok("none"));
        let longest = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 91], b"\r\n"].concat();
        assert_eq!(longest.len(), V1_BYTES_MAX);
        check(&longest, Ok("none"));
    }

    #[test]
    fn v1_bad() {
        use ProxyProtocolError::*;
        check(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\n", Err(LineEnd));
        check(b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r ", Err(LineEnd));
        check(b"PROXY UNKNOWN\n", Err(LineEnd));
        check(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 92], b"\r\n"].concat(), Err(LineTooLong));
        check(&[b"PROXY TCP4 ".as_slice(), &[b'1'; 200]].concat(), Err(LineTooLong));
        for line in [
            "TCP4",
            "TCP4 ",
            "TCP5 192.0.2.1 192.0.2.2 1 2",
            "tcp4 192.0.2.1 192.0.2.2 1 2",
            "UNKNOWNX",
            "TCP4 192.0.2.1 192.0.2.2 1",
            "TCP4 192.0.2.1 192.0.2.2 1 2 ",
            "TCP4 192.0.2.1 192.0.2.2 1 2 3",
            "\u{e9} 192.0.2.1 192.0.2.2 1 2",
            " TCP4 192.0.2.1 192.0.2.2 1 2",
            "",
        ] {
            check(format!("PROXY {line}\r\n").as_bytes(), Err(Line));
        }
        for line in [
            "TCP4  192.0.2.1 192.0.2.2 1",
            "TCP4 192.0.2.1  1 2",
            "TCP4 192.0.2.01 192.0.2.2 1 2",
            "TCP4 192.0.2 192.0.2.2 1 2",
            "TCP4 192.0.2.256 192.0.2.2 1 2",
            "TCP4 2001:db8::1 ::1 1 2",
            "TCP6 192.0.2.1 192.0.2.2 1 2",
            "TCP6 2001:db8::1::2 ::1 1 2",
            "TCP6 [::1] ::1 1 2",
            "TCP6 fe80::1%eth0 ::1 1 2",
            "TCP4 192.0.2.1\t 192.0.2.2 1 2",
        ] {
            check(format!("PROXY {line}\r\n").as_bytes(), Err(Address));
        }
        for port in ["", "01", "00", "+1", "-1", "65536", "99999999999999999999", "1a", "0x1"] {
            check(format!("PROXY TCP4 192.0.2.1 192.0.2.2 {port} 2\r\n").as_bytes(), Err(Port));
            check(format!("PROXY TCP4 192.0.2.1 192.0.2.2 2 {port}\r\n").as_bytes(), Err(Port));
        }
    }

    #[test]
    fn neither() {
        use ProxyProtocolError::*;
        assert_eq!(parse(b""), Ok(Parsed::Incomplete));
        for bytes in ["GET / HTTP/1.1\r\n", "\r\nGET", "PROXY\r\n", "PROXYTCP4", "proxy TCP4", "PUT", "\x16\x03\x01"] {
            check(bytes.as_bytes(), Err(NotProxyProtocol));
        }
    }

    fn v2(command: u8, family: u8, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
        [V2_SIGNATURE.as_slice(), &[command, family], &length, payload].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x34, 0, 80];

    #[test]
    fn v2_good() {
        check(&v2(0x21, 0x11, &V4), Ok("192.0.2.1:4660 > 192.0.2.2:80"));
        let v6: Vec<u8> = [&[0; 15][..], &[1], &[0; 15], &[2], &[0, 1, 0, 2]].concat();
        check(&v2(0x21, 0x21, &v6), Ok("[::1]:1 > [::2]:2"));
        check(&v2(0x20, 0, &[]), Ok("none"));
        // LOCAL, with any family and payload.
        check(&v2(0x20, 0xff, &[1, 2, 3]), Ok("none"));
        check(&v2(0x21, 0x00, &[1, 2, 3]), Ok("none"));
        check(&v2(0x21, 0x10, &V4), Ok("none"));
        check(&v2(0x21, 0x12, &V4), Ok("none"));
        check(&v2(0x21, 0x22, &[0; 36]), Ok("none"));
        check(&v2(0x21, 0x31, &[0; 216]), Ok("none"));
        // A NOOP of 0 bytes, then an authority of 1.
        check(&v2(0x21, 0x11, &[&V4[..], &[4, 0, 0], &[2, 0, 1, b'x']].concat()), Ok("192.0.2.1:4660 > 192.0.2.2:80"));
        let padding = V2_PAYLOAD_BYTES_MAX - 12 - 3;
        let [high, low] = u16::try_from(padding).unwrap().to_be_bytes();
        let largest = v2(0x21, 0x11, &[&V4[..], &[4, high, low], &vec![0; padding]].concat());
        assert_eq!(largest.len(), HEADER_BYTES_MAX);
        check(&largest, Ok("192.0.2.1:4660 > 192.0.2.2:80"));
    }

    #[test]
    fn v2_bad() {
        use ProxyProtocolError::*;
        for command in [0x00, 0x01, 0x11, 0x22, 0x2f, 0x31, 0xff] {
            check(&v2(command, 0x11, &V4), Err(Command));
        }
        for family in [0x41, 0x13, 0xf1, 0x1f] {
            check(&v2(0x21, family, &V4), Err(Family));
        }
        check(&v2(0x21, 0x11, &vec![0; V2_PAYLOAD_BYTES_MAX + 1]), Err(PayloadTooLong));
        check(&v2(0x20, 0x00, &vec![0; 65_535]), Err(PayloadTooLong));
        check(&v2(0x21, 0x11, &V4[..11]), Err(Truncated));
        check(&v2(0x21, 0x21, &[0; 35]), Err(Truncated));
        check(&v2(0x21, 0x12, &V4[..11]), Err(Truncated));
        check(&v2(0x21, 0x31, &[0; 215]), Err(Truncated));
        check(&v2(0x21, 0x11, &[&V4[..], &[4]].concat()), Err(Truncated));
        check(&v2(0x21, 0x11, &[&V4[..], &[4, 0]].concat()), Err(Truncated));
        check(&v2(0x21, 0x11, &[&V4[..], &[4, 0, 2, 0]].concat()), Err(Truncated));
    }

    fn check_encode(version: Version, source: &str, destination: &str, expect: &[u8]) {
        let mut out = b"before".to_vec();
        encode(version, source.parse().unwrap(), destination.parse().unwrap(), &mut out);
        assert_eq!(out.strip_prefix(b"before"), Some(expect), "{source} {destination}");
    }

    #[test]
    fn encoded() {
        check_encode(Version::V1, "192.0.2.1:1", "192.0.2.2:80", b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n");
        check_encode(Version::V1, "[2001:db8::1]:1", "[::1]:80", b"PROXY TCP6 2001:db8::1 ::1 1 80\r\n");
        check_encode(Version::V1, "192.0.2.1:1", "[::1]:80", b"PROXY TCP6 ::ffff:c000:201 ::1 1 80\r\n");
        check_encode(
            Version::V1,
            "[::ffff:192.0.2.1]:1",
            "[::ffff:192.0.2.2]:80",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 80\r\n",
        );
        check_encode(Version::V2, "192.0.2.1:4660", "192.0.2.2:80", &v2(0x21, 0x11, &V4));
        let mixed: Vec<u8> = [&[0; 15][..], &[1], &[0; 10], &[0xff, 0xff, 192, 0, 2, 2], &[0, 1, 0, 80]].concat();
        check_encode(Version::V2, "[::1]:1", "192.0.2.2:80", &v2(0x21, 0x21, &mixed));
    }

    fn seeded(cases: u32) -> Config {
        Config {
            rng_seed: RngSeed::Fixed(0x57ee_17a2_d000_0002),
            failure_persistence: None,
            cases,
            ..Config::default()
        }
    }

    fn address() -> impl Strategy<Value = SocketAddr> {
        let mapped = any::<Ipv4Addr>().prop_map(|address| IpAddr::V6(address.to_ipv6_mapped()));
        let ip = prop_oneof![any::<Ipv4Addr>().prop_map(IpAddr::V4), any::<Ipv6Addr>().prop_map(IpAddr::V6), mapped];
        (ip, any::<u16>()).prop_map(SocketAddr::from)
    }

    /// Bytes that pass the first checks: a good start and then anything, or a good header with some bytes changed.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let start = prop_oneof![
            Just(Vec::new()),
            Just(b"PROXY ".to_vec()),
            Just(b"PROXY TCP4 ".to_vec()),
            Just(b"PROXY TCP6 ::".to_vec()),
            (any::<[bool; 2]>(), any::<u8>(), 0u16..300).prop_map(|([proxy, known], family, length)| {
                let family = if known { 0x11 + (family & 0x20) } else { family };
                [V2_SIGNATURE.as_slice(), &[0x20 | u8::from(proxy), family], &length.to_be_bytes()].concat()
            }),
        ];
        let started =
            (start, prop::collection::vec(any::<u8>(), 0..400)).prop_map(|(start, rest)| [start, rest].concat());
        let version = prop_oneof![Just(Version::V1), Just(Version::V2)];
        let changed = (version, address(), address(), prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..4))
            .prop_map(|(version, source, destination, changes)| {
                let mut bytes = Vec::new();
                encode(version, source, destination, &mut bytes);
                for (place, byte) in changes {
                    let place = place.index(bytes.len());
                    bytes[place] = byte;
                }
                bytes
            });
        prop_oneof![started, changed]
    }

    proptest! {
        #![proptest_config(seeded(2000))]

        #[test]
        fn what_is_encoded_is_read_back(source in address(), destination in address(), v1: bool) {
            let mut bytes = Vec::new();
            encode(if v1 { Version::V1 } else { Version::V2 }, source, destination, &mut bytes);
            prop_assert!(bytes.len() <= V1_BYTES_MAX);
            let Ok(Parsed::Complete { header, consumed }) = parse(&bytes) else { panic!("{:?}", parse(&bytes)) };
            prop_assert_eq!(consumed, bytes.len());
            let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
            let (from, to) = header.source.unwrap();
            prop_assert_eq!((canonical(from), canonical(to)), (canonical(source), canonical(destination)));
        }

        #[test]
        fn hostile_bytes_are_read_within_bounds(bytes in hostile()) {
            match parse(&bytes) {
                Ok(Parsed::Complete { header, consumed }) => {
                    prop_assert!(consumed <= bytes.len() && consumed <= HEADER_BYTES_MAX);
                    // The result depends only on the consumed bytes.
                    prop_assert_eq!(parse(&bytes[..consumed]), Ok(Parsed::Complete { header, consumed }));
                    prop_assert_eq!(parse(&bytes[..consumed - 1]), Ok(Parsed::Incomplete));
                }
                Ok(Parsed::Incomplete) => prop_assert!(bytes.len() < HEADER_BYTES_MAX),
                Err(_) => {}
            }
        }
    }
}

//! The values in a vip: its address, endpoints, interfaces and rates.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use model::{PortRange, Transport};

use super::address::dns_name;
use super::{Positive, duration_text};
use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// Bytes of an interface name: Linux's `IFNAMSIZ` (if.h) without the NUL.
const INTERFACE_BYTES_MAX: usize = 15;

/// The limit for new connections per second of one source, and for its burst. A source that may open more needs no limit.
const RATE_MAX: u32 = 1_000_000;

/// The address, ports and protocol of a vip: `192.0.2.1:80/tcp`, `[2001:db8::1]:5000-5010/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipAddress {
    pub address: IpAddr,
    pub ports: PortRange,
    pub transport: Transport,
}

/// An endpoint of a vip: an address and port, or an address alone, which stands for the port that the client connected to (port 0 here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VipEndpoint(pub SocketAddr);

/// An address without a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub IpAddr);

/// The name of a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Interface(pub String);

/// Events per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(pub u32);

/// A duration of whole seconds, at least one, because the kernel plane counts in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(pub Duration);

/// Parses the address of a vip: `192.0.2.1:80/tcp`, `192.0.2.1:5000-5010/udp`, `[2001:db8::1]:80/tcp`.
///
/// # Errors
/// Returns what is wrong with the text and what would be right.
pub fn parse_vip_address(text: &str) -> Result<(IpAddr, PortRange, Transport), String> {
    let VipAddress { address, ports, transport } = VipAddress::parse(text).map_err(|wrong| wrong.to_string())?;
    Ok((address, ports, transport))
}

impl Formed for VipAddress {
    const FORM: Form = Form {
        noun: "an address, port and protocol",
        example: "192.0.2.1:80/tcp",
        pattern: Some("^.+:[0-9]{1,5}(-[0-9]{1,5})?/(tcp|udp)$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = |what: &str| Wrong::new(format!("{} {what}", quoted(text)));
        let Some((rest, transport)) = text.rsplit_once('/') else {
            return Err(wrong("has no protocol").hint(format!("write {text}/tcp or {text}/udp")));
        };
        let transport = match transport {
            "tcp" => Transport::Tcp,
            "udp" => Transport::Udp,
            _ => return Err(wrong("has an unknown protocol").hint(format!("write {rest}/tcp or {rest}/udp"))),
        };
        if let Ok(address) = rest.parse::<IpAddr>() {
            let hint = format!("add the port, for example {}", with_port(address, "80/tcp"));
            return Err(wrong("has no port").hint(hint));
        }
        let Some((host, ports)) = rest.rsplit_once(':') else {
            return Err(wrong("has no port").hint("write one such as 192.0.2.1:80/tcp"));
        };
        let ports = ports_of(ports).ok_or_else(|| {
            wrong("has no valid port").hint("write a port from 1 to 65535, or a range such as 5000-5010")
        })?;
        let address = address_of(host)
            .ok_or_else(|| wrong("is not a virtual address").hint(not_an_address(host, "192.0.2.1:80/tcp")))?;
        // Every address of this host, at this port.
        let address = if address.is_unspecified() { address } else { reachable(address, text)? };
        Ok(Self { address, ports, transport })
    }
}

impl Formed for VipEndpoint {
    const FORM: Form = Form { noun: "an address, and a port if it differs", example: "10.0.0.1:5001", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if let Some(address) = address_of(text) {
            return Ok(Self(SocketAddr::new(reachable(address, text)?, 0)));
        }
        let wrong = |what: &str| Wrong::new(format!("{} {what}", quoted(text)));
        match text.parse::<SocketAddr>() {
            Ok(endpoint) if endpoint.port() == 0 => {
                Err(wrong("has port 0").hint("omit the port to use the one that the client connected to"))
            }
            Ok(endpoint) => Ok(Self(SocketAddr::new(reachable(endpoint.ip(), text)?, endpoint.port()))),
            Err(_) => {
                let host = text.rsplit_once(':').map_or(text, |(host, _)| host);
                Err(wrong("is not an address").hint(not_an_address(
                    host,
                    "10.0.0.1:5001, or 10.0.0.1 to use the port that the client connected to",
                )))
            }
        }
    }
}

impl Formed for Address {
    const FORM: Form = Form { noun: "an address", example: "192.0.2.1", pattern: Some("^[0-9A-Fa-f:.]+$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let address = text.parse().map_err(|_| {
            Wrong::new(format!("{} is not an address", quoted(text))).hint("write one such as 192.0.2.1 or 2001:db8::1")
        })?;
        Ok(Self(reachable(address, text)?))
    }
}

impl Formed for Interface {
    const FORM: Form = Form { noun: "the name of an interface", example: "eth0", pattern: Some(r"^[^/:\s]{1,15}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        // The names that Linux's `dev_valid_name` accepts.
        let known = !text.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control());
        if text.is_empty() || text.len() > INTERFACE_BYTES_MAX || !known || text == "." || text == ".." {
            let hint = format!("an interface name has 1 to {INTERFACE_BYTES_MAX} characters, as `ip link` shows it");
            return Err(Wrong::new(format!("{} is not the name of an interface", quoted(text))).hint(hint));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Formed for Rate {
    const FORM: Form = Form { noun: "a rate", example: "100/s", pattern: Some("^[0-9]+/s$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || Wrong::new(format!("{} is not a rate", quoted(text)));
        let Some((number, unit)) = text.split_once('/') else {
            return Err(wrong().hint("write a number and `/s`, such as 100/s"));
        };
        if unit != "s" {
            return Err(wrong().hint("rates are per second: write /s"));
        }
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        match number.parse() {
            Ok(rate) if digits && (1..=RATE_MAX).contains(&rate) => Ok(Self(rate)),
            _ => Err(wrong().hint(format!("write 1/s to {RATE_MAX}/s"))),
        }
    }
}

impl Formed for Seconds {
    const FORM: Form = Positive::FORM;

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Positive(duration) = <Positive as Formed>::parse(text)?;
        if duration.subsec_nanos() != 0 {
            let up = Duration::from_secs(duration.as_secs() + 1);
            return Err(Wrong::new(format!("{} is not whole seconds", quoted(text)))
                .hint(format!("the kernel plane counts seconds; write {}", duration_text(up))));
        }
        Ok(Self(duration))
    }
}

/// An address alone. An IPv6 address may have brackets.
fn address_of(text: &str) -> Option<IpAddr> {
    match text.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

/// `PORT` or `FIRST-LAST`.
fn ports_of(text: &str) -> Option<PortRange> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let port = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let range = PortRange { first: port(first)?, last: port(last)? };
    (1 <= range.first && range.first <= range.last).then_some(range)
}

fn with_port(address: IpAddr, port: &str) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

/// The hint for a text that should be an address.
fn not_an_address(host: &str, example: &str) -> String {
    let named = !host.is_empty() && dns_name(host).is_ok();
    if named {
        // The reason helps the operator, because the same text is valid in a cluster.
        format!("a vip takes no names, because the kernel cannot resolve them: write an address such as {example}")
    } else if host.contains(':') && !host.starts_with('[') {
        format!("put an IPv6 address in brackets; write one such as {example}")
    } else {
        format!("write one such as {example}")
    }
}

/// Refuses an address whose packets no interface forwards, or that the kernel plane cannot represent.
fn reachable(address: IpAddr, text: &str) -> Result<IpAddr, Wrong> {
    let what = match address {
        _ if address.is_unspecified() => "stands for every address; name one",
        _ if address.is_loopback() => "is a loopback address, which packets from other hosts cannot reach",
        _ if address.is_multicast() => "is a multicast address",
        IpAddr::V4(v4) if v4.is_broadcast() => "is the broadcast address",
        // RFC 4291 section 2.5.6: it means another host on each link.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => "is link-local and means another host on each link",
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => {
                return Err(Wrong::new(format!("{} is an IPv4 address", quoted(text))).hint(format!("write {v4}")));
            }
            None => return Ok(address),
        },
        IpAddr::V4(_) => return Ok(address),
    };
    Err(Wrong::new(format!("{} {what}", quoted(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsed value as text, or the error in one line.
    fn check<T: Formed>(text: &str, expect: &str, show: impl Fn(T) -> String) {
        assert_eq!(T::parse(text).map_or_else(|wrong| wrong.to_string(), show), expect, "{text:?}");
    }

    #[test]
    fn addresses_of_vips() {
        let show =
            |vip: VipAddress| format!("{} {}-{} {:?}", vip.address, vip.ports.first, vip.ports.last, vip.transport);
        let check = |text: &str, expect: &str| check(text, expect, show);
        check("20.20.20.1:2020/tcp", "20.20.20.1 2020-2020 Tcp");
        check("20.20.20.1:53/udp", "20.20.20.1 53-53 Udp");
        check("192.0.2.1:5000-5010/udp", "192.0.2.1 5000-5010 Udp");
        check("[2001:db8::1]:80/tcp", "2001:db8::1 80-80 Tcp");
        check("20.20.20.1:80", r#""20.20.20.1:80" has no protocol; write 20.20.20.1:80/tcp or 20.20.20.1:80/udp"#);
        check(
            "20.20.20.1:80/sctp",
            r#""20.20.20.1:80/sctp" has an unknown protocol; write 20.20.20.1:80/tcp or 20.20.20.1:80/udp"#,
        );
        check("20.20.20.1/tcp", r#""20.20.20.1/tcp" has no port; add the port, for example 20.20.20.1:80/tcp"#);
        check("2001:db8::1/tcp", r#""2001:db8::1/tcp" has no port; add the port, for example [2001:db8::1]:80/tcp"#);
        check("80/tcp", r#""80/tcp" has no port; write one such as 192.0.2.1:80/tcp"#);
        let ports = |ports: &str| {
            let text = format!("192.0.2.1:{ports}/tcp");
            let expect =
                format!("{text:?} has no valid port; write a port from 1 to 65535, or a range such as 5000-5010");
            check(&text, &expect);
        };
        ["0", "65536", "10-5", "0-5", "5-", "-5", "1-2-3", "+1", ""].into_iter().for_each(ports);
        check(
            "web:80/tcp",
            r#""web:80/tcp" is not a virtual address; a vip takes no names, because the kernel cannot resolve them: write an address such as 192.0.2.1:80/tcp"#,
        );
        check(
            "fd00:1:2:3::z:80/tcp",
            r#""fd00:1:2:3::z:80/tcp" is not a virtual address; put an IPv6 address in brackets; write one such as 192.0.2.1:80/tcp"#,
        );
        check(":80/tcp", r#"":80/tcp" is not a virtual address; write one such as 192.0.2.1:80/tcp"#);
        check("0.0.0.0:80/tcp", "0.0.0.0 80-80 Tcp");
        check("[::]:80/udp", ":: 80-80 Udp");
        check(
            "127.0.0.1:80/tcp",
            r#""127.0.0.1:80/tcp" is a loopback address, which packets from other hosts cannot reach"#,
        );
        check("[ff02::1]:80/tcp", r#""[ff02::1]:80/tcp" is a multicast address"#);
    }

    #[test]
    fn endpoints_of_vips() {
        let check = |text: &str, expect: &str| check(text, expect, |VipEndpoint(address)| address.to_string());
        check("31.31.31.1:5001", "31.31.31.1:5001");
        check("31.31.31.1", "31.31.31.1:0");
        check("[fd00::1]:80", "[fd00::1]:80");
        check("[fd00::1]", "[fd00::1]:0");
        check("fd00::1", "[fd00::1]:0");
        check(
            "31.31.31.1:0",
            r#""31.31.31.1:0" has port 0; omit the port to use the one that the client connected to"#,
        );
        let names = "a vip takes no names, because the kernel cannot resolve them: write an address such as 10.0.0.1:5001, or 10.0.0.1 to use the port that the client connected to";
        check("origin:80", &format!(r#""origin:80" is not an address; {names}"#));
        check("origin", &format!(r#""origin" is not an address; {names}"#));
        check(
            "10.0.0.256:80",
            r#""10.0.0.256:80" is not an address; write one such as 10.0.0.1:5001, or 10.0.0.1 to use the port that the client connected to"#,
        );
        check("[::1]:80", r#""[::1]:80" is a loopback address, which packets from other hosts cannot reach"#);
        check("fe80::1", r#""fe80::1" is link-local and means another host on each link"#);
        check("::ffff:10.0.0.1", r#""::ffff:10.0.0.1" is an IPv4 address; write 10.0.0.1"#);
        check("255.255.255.255", r#""255.255.255.255" is the broadcast address"#);
    }

    #[test]
    fn interfaces() {
        let check = |text: &str, expect: &str| check(text, expect, |Interface(name)| name);
        check("eth0", "eth0");
        check("enp0s31f6.4094", "enp0s31f6.4094");
        let wrong = "is not the name of an interface; an interface name has 1 to 15 characters, as `ip link` shows it";
        for text in ["", ".", "..", "a/b", "a b", "eth0:1", "sixteencharacter"] {
            check(text, &format!("{text:?} {wrong}"));
        }
    }

    #[test]
    fn rates_and_seconds() {
        let rate = |text, expect| check(text, expect, |Rate(rate)| rate.to_string());
        rate("100/s", "100");
        rate("1000000/s", "1000000");
        rate("100", r#""100" is not a rate; write a number and `/s`, such as 100/s"#);
        rate("100/m", r#""100/m" is not a rate; rates are per second: write /s"#);
        rate("0/s", r#""0/s" is not a rate; write 1/s to 1000000/s"#);
        rate("+1/s", r#""+1/s" is not a rate; write 1/s to 1000000/s"#);
        let seconds = |text, expect| check(text, expect, |Seconds(duration)| duration_text(duration));
        seconds("2s", "2s");
        seconds("1.5m", "90s");
        seconds("500ms", r#""500ms" is not whole seconds; the kernel plane counts seconds; write 1s"#);
        seconds("0s", r#""0s" would expire at once; write more than zero"#);
    }
}

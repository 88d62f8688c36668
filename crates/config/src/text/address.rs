//! Addresses, networks and host names.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use model::{AdminAddress, EndpointAddress, UNIX_PREFIX};

use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// `sockaddr_un.sun_path` has 108 bytes, and the last one is a zero byte (unix(7)).
const UNIX_PATH_BYTES_MAX: usize = 107;

/// The address of the control API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin(pub AdminAddress);

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind(pub SocketAddr);

/// The address of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointText(pub EndpointAddress);

/// A service in DNS (RFC 2782).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName(pub String);

/// A name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server(pub SocketAddr);

/// A network. A single address is a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(pub IpNet);

/// A network of clients, written exactly. A single address is a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientNetwork(pub IpNet);

/// Parses an address to listen on: `127.0.0.1:80`, `[::1]:80`, or `:80` and `*:80` for every address, IPv4 and IPv6.
///
/// # Errors
/// Returns what is wrong with the text and what would be right.
pub fn parse_bind(text: &str) -> Result<SocketAddr, String> {
    match Bind::parse(text) {
        Ok(Bind(address)) => Ok(address),
        Err(wrong) => Err(wrong.to_string()),
    }
}

/// Parses the address of the control API: a loopback address and a port, such as `127.0.0.1:9900`, `[::1]:9900` or `localhost:9900`, or a
/// Unix socket, such as `unix:/run/steelyard/admin.sock`.
///
/// # Errors
/// Returns what is wrong with the text and what would be right.
pub fn parse_admin(text: &str) -> Result<AdminAddress, String> {
    match Admin::parse(text) {
        Ok(Admin(AdminAddress::Socket(address))) if !address.ip().to_canonical().is_loopback() => Err(format!(
            "{} can be reached from other hosts, and there is no file that says who may use it; write 127.0.0.1:{}",
            quoted(text),
            address.port()
        )),
        Ok(Admin(address)) => Ok(address),
        Err(wrong) => Err(wrong.to_string()),
    }
}

/// Parses the address of an endpoint: `127.0.0.1:9001`, `[::1]:9001`, or `origin.example.com:9001`, which is resolved at run time.
///
/// # Errors
/// Returns what is wrong with the text and what would be right.
pub fn parse_endpoint(text: &str) -> Result<EndpointAddress, String> {
    match EndpointText::parse(text) {
        Ok(EndpointText(address)) => Ok(address),
        Err(wrong) => Err(wrong.to_string()),
    }
}

impl Formed for Bind {
    const FORM: Form = Form { noun: "an address and port", example: "127.0.0.1:8080", pattern: Some(":[0-9]{1,5}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if let Ok(address) = text.parse() {
            return Ok(Self(address));
        }
        let (host, port) = host_and_port(text, "127.0.0.1", true)?;
        match host {
            "" | "*" => Ok(Self(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))),
            _ => Err(Wrong::new(format!("{} is not an address of this host", quoted(host))).hint(format!(
                "write an address such as 127.0.0.1:{port} or [::1]:{port}, or :{port} to listen on all of them"
            ))),
        }
    }
}

impl Formed for Admin {
    const FORM: Form = Form {
        noun: "an address and port, or `unix:` and an absolute path",
        example: "127.0.0.1:9900",
        pattern: Some(":[0-9]{1,5}$|^unix:/"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Wrong::new(format!("{} is only a port", quoted(text))).hint(format!("write 127.0.0.1:{text}")));
        }
        if let Some(path) = text.strip_prefix(UNIX_PREFIX) {
            return unix_path(path).map(Self);
        }
        let local = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        let Bind(address) = Bind::parse(local.as_deref().unwrap_or(text))?;
        Ok(Self(address.into()))
    }
}

/// The path of a Unix socket.
fn unix_path(path: &str) -> Result<AdminAddress, Wrong> {
    let wrong = if !path.starts_with('/') {
        "is not an absolute path"
    } else if path.ends_with('/') {
        "is a directory"
    } else if path.len() > UNIX_PATH_BYTES_MAX {
        "is longer than 107 bytes, the limit for the path of a Unix socket"
    } else if path.contains('\0') {
        "contains a zero byte"
    } else {
        return Ok(AdminAddress::Path(path.into()));
    };
    Err(Wrong::new(format!("{} {wrong}", quoted(path))).hint("write unix:/run/steelyard/admin.sock"))
}

impl Formed for EndpointText {
    const FORM: Form =
        Form { noun: "an address and port", example: "127.0.0.1:9001", pattern: Some("^.+:[0-9]{1,5}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let address = match text.parse::<SocketAddr>() {
            Ok(address) => EndpointAddress::Socket(address),
            Err(_) => {
                let (host, port) = host_and_port(text, "127.0.0.1", false)?;
                if host.is_empty() {
                    return Err(Wrong::new(format!("{} names no host", quoted(text)))
                        .hint(format!("put an address or name before it, such as 127.0.0.1:{port}")));
                }
                EndpointAddress::Name { host: dns_name(host)?, port }
            }
        };
        let port = match &address {
            EndpointAddress::Socket(address) => address.port(),
            EndpointAddress::Name { port, .. } => *port,
            // Written in another key.
            EndpointAddress::Service { .. } => return Ok(Self(address)),
        };
        if port == 0 {
            return Err(Wrong::new(format!("{} has port 0, which cannot be reached", quoted(text))));
        }
        Ok(Self(address))
    }
}

impl Formed for ServiceName {
    const FORM: Form = Form {
        noun: "the name of a service in DNS",
        example: "_http._tcp.shop.example.com",
        pattern: Some("^_.+\\._.+\\..+$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let name = dns_name(text)?;
        let mut labels = name.split('.');
        let has_both =
            [labels.next(), labels.next()].iter().flatten().filter(|label| label.starts_with('_')).count() == 2;
        if !has_both || labels.next().is_none() {
            let hint = "write the service, the protocol and the domain, such as _http._tcp.shop.example.com";
            return Err(Wrong::new(format!("{} is not the name of a service", quoted(text))).hint(hint));
        }
        Ok(Self(name))
    }
}

impl Formed for Server {
    const FORM: Form = Form { noun: "the address of a name server", example: "127.0.0.53", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        // RFC 1035 section 4.2: the port of DNS.
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(SocketAddr::new(address, 53)));
        }
        let wrong = || {
            Wrong::new(format!("{} is not an address", quoted(text))).hint("write one such as 10.0.0.2 or [::1]:5353")
        };
        text.parse().map(Self).map_err(|_| wrong())
    }
}

impl Formed for Network {
    const FORM: Form = Form { noun: "an address or network", example: "10.0.0.0/8", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self(address.into()));
        }
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(Self(network.trunc()));
        }
        let wrong = Wrong::new(format!("{} is not an address or network", quoted(text)));
        Err(match text.split_once('/') {
            Some((address, prefix)) if address.parse::<IpAddr>().is_ok() => {
                wrong.hint(format!("{} is not a prefix length for it", quoted(prefix)))
            }
            _ => wrong.hint("write one such as 10.0.0.0/8, fd00::/8 or 192.0.2.7"),
        })
    }
}

impl Formed for ClientNetwork {
    const FORM: Form = Network::FORM;

    fn parse(text: &str) -> Result<Self, Wrong> {
        if text.eq_ignore_ascii_case("all") {
            let wrong = Wrong::new(format!("{} is not an address or network", quoted(text)));
            return Err(
                wrong.hint("with `allow`, all others are refused; write 0.0.0.0/0 and ::/0 to name every address")
            );
        }
        let Network(network) = Network::parse(text)?;
        let written = text.parse::<IpNet>().map_or(network, |written| written);
        // The operator may have meant this address, or the whole network: a guess could let the wrong clients in.
        if written != network {
            let wrong = Wrong::new(format!("{} has bits behind its prefix", quoted(text)));
            return Err(wrong.hint(format!("write {network} for the network, or {} for the address", written.addr())));
        }
        if let IpNet::V6(network) = network
            && let (Some(address), 96..) = (network.addr().to_ipv4_mapped(), network.prefix_len())
        {
            let wrong = Wrong::new(format!("{} is a network of IPv4 addresses", quoted(text)));
            return Err(wrong.hint(format!("write {address}/{}", network.prefix_len() - 96)));
        }
        Ok(Self(network))
    }
}

/// Splits the text at the last colon. With `any`, an empty host stands for every address.
fn host_and_port<'a>(text: &'a str, example: &str, any: bool) -> Result<(&'a str, u16), Wrong> {
    let wrong = |what: &str| Wrong::new(format!("{} {what}", quoted(text)));
    if text.contains("://") {
        return Err(wrong("is a URL").hint(format!("write an address and port, such as {example}:80")));
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(wrong("has no port").hint(format!("add the port, for example [{text}]:80")));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        let hint = match (text.parse::<u16>(), any) {
            (Ok(port), true) => format!("write :{port} for every address, or {example}:{port}"),
            (Ok(port), false) => format!("write {example}:{port}"),
            (Err(_), _) => format!("add the port, for example {}:80", shown_host(text, example)),
        };
        let what = if text.parse::<u16>().is_ok() { "is only a port" } else { "has no port" };
        return Err(wrong(what).hint(hint));
    };
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let Some(port) = port.parse().ok().filter(|_| digits) else {
        return Err(wrong("has no valid port").hint("a port is a number from 1 to 65535"));
    };
    if host.contains(':') {
        return Err(wrong("is ambiguous").hint("put an IPv6 address in brackets, as in [::1]:80"));
    }
    Ok((host, port))
}

/// The text as written, where it can stand in a hint.
fn shown_host<'a>(text: &'a str, example: &'a str) -> &'a str {
    if dns_name(text).is_ok() || text.parse::<IpAddr>().is_ok() { text } else { example }
}

/// Parses a DNS name, and returns it in lower case without its trailing dot (RFC 1123 section 2.1). Underscores are allowed as in RFC 2782,
/// because container networks use them.
pub fn dns_name(text: &str) -> Result<String, Wrong> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let wrong = |why: &str| Wrong::new(format!("{} is not a host name", quoted(text))).hint(why);
    if !name.is_ascii() {
        return Err(wrong("write an international name in its ASCII form (xn--…)"));
    }
    // RFC 1035 section 2.3.4.
    if name.is_empty() || name.len() > 253 || name.split('.').any(|label| label.is_empty() || label.len() > 63) {
        return Err(wrong("a name consists of labels of 1 to 63 characters between dots, 253 characters in all"));
    }
    let letters = |label: &str| label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if !name.split('.').all(|label| letters(label) && !label.starts_with('-') && !label.ends_with('-')) {
        return Err(wrong("a label consists of letters, digits, `_` and `-`, and does not begin or end with `-`"));
    }
    // No top-level domain is a number, so the operator meant an address (RFC 3696 section 2).
    if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit())) {
        return Err(wrong("an IPv4 address has four numbers from 0 to 255"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parsed value as text, or the error in one line.
    fn check<T: Formed>(text: &str, expect: &str, show: impl Fn(T) -> String) {
        assert_eq!(T::parse(text).map_or_else(|wrong| wrong.to_string(), show), expect, "{text:?}");
    }

    #[test]
    fn binds() {
        let check = |text, expect| check(text, expect, |Bind(address)| address.to_string());
        check("127.0.0.1:80", "127.0.0.1:80");
        check("[::1]:80", "[::1]:80");
        check(":80", "[::]:80");
        check("*:80", "[::]:80");
        check("127.0.0.1:0", "127.0.0.1:0");
        check("80", r#""80" is only a port; write :80 for every address, or 127.0.0.1:80"#);
        check("127.0.0.1", r#""127.0.0.1" has no port; add the port, for example 127.0.0.1:80"#);
        check("::1", r#""::1" has no port; add the port, for example [::1]:80"#);
        check("fe80::1%eth0:80", r#""fe80::1%eth0:80" is ambiguous; put an IPv6 address in brackets, as in [::1]:80"#);
        check(
            "localhost:80",
            r#""localhost" is not an address of this host; write an address such as 127.0.0.1:80 or [::1]:80, or :80 to listen on all of them"#,
        );
        check("127.0.0.1:99999", r#""127.0.0.1:99999" has no valid port; a port is a number from 1 to 65535"#);
        check("127.0.0.1:+80", r#""127.0.0.1:+80" has no valid port; a port is a number from 1 to 65535"#);
        check(
            "http://127.0.0.1:80",
            r#""http://127.0.0.1:80" is a URL; write an address and port, such as 127.0.0.1:80"#,
        );
        check("", r#""" has no port; add the port, for example 127.0.0.1:80"#);
    }

    #[test]
    fn endpoints() {
        let check = |text, expect| check(text, expect, |EndpointText(address)| format!("{address:?}"));
        check("10.0.0.1:9001", "Socket(10.0.0.1:9001)");
        check("[fd00::1]:9001", "Socket([fd00::1]:9001)");
        check("Origin.Example.com.:9001", r#"Name { host: "origin.example.com", port: 9001 }"#);
        check("my_service:80", r#"Name { host: "my_service", port: 80 }"#);
        check(":9001", r#"":9001" names no host; put an address or name before it, such as 127.0.0.1:9001"#);
        check("9001", r#""9001" is only a port; write 127.0.0.1:9001"#);
        check("origin", r#""origin" has no port; add the port, for example origin:80"#);
        check("origin:0", r#""origin:0" has port 0, which cannot be reached"#);
        check("10.0.0.256:80", r#""10.0.0.256" is not a host name; an IPv4 address has four numbers from 0 to 255"#);
        check(
            "-a:80",
            r#""-a" is not a host name; a label consists of letters, digits, `_` and `-`, and does not begin or end with `-`"#,
        );
        check(
            "a..b:80",
            r#""a..b" is not a host name; a name consists of labels of 1 to 63 characters between dots, 253 characters in all"#,
        );
        check(
            "müller.de:80",
            r#""müller.de" is not a host name; write an international name in its ASCII form (xn--…)"#,
        );
    }

    #[test]
    fn networks_and_servers() {
        let network = |text, expect| check(text, expect, |Network(network)| network.to_string());
        network("10.1.2.3/8", "10.0.0.0/8");
        network("192.0.2.7", "192.0.2.7/32");
        network("fd00::/8", "fd00::/8");
        network("10.0.0.0/33", r#""10.0.0.0/33" is not an address or network; "33" is not a prefix length for it"#);
        network("ten", r#""ten" is not an address or network; write one such as 10.0.0.0/8, fd00::/8 or 192.0.2.7"#);
        let exact = |text, expect| check(text, expect, |ClientNetwork(network)| network.to_string());
        exact("10.0.0.0/8", "10.0.0.0/8");
        exact("fd00::1", "fd00::1/128");
        exact(
            "10.1.2.3/8",
            r#""10.1.2.3/8" has bits behind its prefix; write 10.0.0.0/8 for the network, or 10.1.2.3 for the address"#,
        );
        exact("::ffff:10.0.0.0/104", r#""::ffff:10.0.0.0/104" is a network of IPv4 addresses; write 10.0.0.0/8"#);
        exact(
            "all",
            r#""all" is not an address or network; with `allow`, all others are refused; write 0.0.0.0/0 and ::/0 to name every address"#,
        );
        let server = |text, expect| check(text, expect, |Server(address)| address.to_string());
        server("10.0.0.2", "10.0.0.2:53");
        server("::1", "[::1]:53");
        server("[::1]:5353", "[::1]:5353");
        server("dns", r#""dns" is not an address; write one such as 10.0.0.2 or [::1]:5353"#);
    }
}

//! SPIFFE ids, and the destinations of captured connections.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use model::{Destination, SpiffeMatcher};

use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// The longest id (<https://spiffe.io/docs/latest/spiffe-specs/spiffe-id/> section 2.3).
const SPIFFE_BYTES_MAX: usize = 2048;

/// A SPIFFE id, or all below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpiffeText(pub SpiffeMatcher);

/// An address or a network with a port, or every address with a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationText(pub Destination);

impl Formed for SpiffeText {
    const FORM: Form = Form {
        noun: "a SPIFFE id",
        example: "spiffe://example.org/ns/shop/sa/web",
        pattern: Some("^spiffe://[!-~]+$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = |hint: &str| Err(Wrong::new(format!("{} is not a SPIFFE id", quoted(text))).hint(hint));
        let Some(rest) = text.strip_prefix("spiffe://") else {
            return wrong("write one such as spiffe://example.org/ns/shop/sa/web");
        };
        let (domain, path) = rest.split_once('/').unwrap_or((rest, ""));
        let of_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte);
        if domain.is_empty() || !domain.bytes().all(of_domain) {
            return wrong("a trust domain has lower-case letters, digits, `-`, `.` and `_`");
        }
        if text.len() > SPIFFE_BYTES_MAX {
            return wrong("an id has at most 2048 bytes");
        }
        // Section 2.2 of the specification. `*` is ours.
        let (segments, is_below) = match path.strip_suffix('*') {
            Some(path) if path.is_empty() || path.ends_with('/') => (path.trim_end_matches('/'), true),
            Some(_) => return wrong("`*` stands for whole segments: write spiffe://example.org/ns/*"),
            None => (path, false),
        };
        let of_path = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_segment = |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(of_path);
        if !segments.is_empty() && !segments.split('/').all(is_segment) {
            return wrong("a segment of the path has letters, digits, `-`, `.` and `_`");
        }
        Ok(Self(match (is_below, segments) {
            (true, "") => SpiffeMatcher::Below(format!("spiffe://{domain}/")),
            (true, segments) => SpiffeMatcher::Below(format!("spiffe://{domain}/{segments}/")),
            (false, "") => {
                return wrong(&format!("it has no path; write spiffe://{domain}/* for every id of the trust domain"));
            }
            (false, _) => SpiffeMatcher::Exact(text.to_owned()),
        }))
    }
}

impl Formed for DestinationText {
    const FORM: Form = Form { noun: "a destination", example: "10.96.0.20:80", pattern: Some(":[0-9]{1,5}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || {
            Wrong::new(format!("{} is not a destination", quoted(text)))
                .hint("write an address or a network with a port, such as 10.96.0.20:80, 10.96.0.0/12:80 or [fd00::/8]:80, or *:80")
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port != 0).ok_or_else(wrong)?;
        if host == "*" {
            return Ok(Self(Destination { network: None, port }));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self(Destination { network: Some(address.ip().to_canonical().into()), port }));
        }
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(v6) => v6,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        let network: IpNet = host.parse().map_err(|_| wrong())?;
        if matches!(network.addr(), IpAddr::V6(_)) != text.starts_with('[') {
            return Err(wrong());
        }
        if network.trunc() != network {
            let wrong = Wrong::new(format!("{} has bits behind its prefix", quoted(host)));
            return Err(wrong.hint(format!(
                "write {} for the network, or {} for the address",
                network.trunc(),
                network.addr()
            )));
        }
        Ok(Self(Destination { network: Some(network), port }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spiffe_ids() {
        let check = |text: &str, expect: &str| {
            let found = SpiffeText::parse(text).map_or_else(|wrong| wrong.to_string(), |id| format!("{:?}", id.0));
            assert!(found.ends_with(expect), "{text}: {found}");
        };
        check("spiffe://example.org/ns/shop/sa/web", r#"Exact("spiffe://example.org/ns/shop/sa/web")"#);
        check("spiffe://example.org/ns/shop/*", r#"Below("spiffe://example.org/ns/shop/")"#);
        check("spiffe://example.org/*", r#"Below("spiffe://example.org/")"#);
        check("spiffe://example.org", "write spiffe://example.org/* for every id of the trust domain");
        check("spiffe://example.org/", "write spiffe://example.org/* for every id of the trust domain");
        check("spiffe://Example.org/a", "a trust domain has lower-case letters, digits, `-`, `.` and `_`");
        check("spiffe:///a", "a trust domain has lower-case letters, digits, `-`, `.` and `_`");
        check("spiffe://example.org/ns*", "write spiffe://example.org/ns/*");
        check("spiffe://example.org/a//b", "a segment of the path has letters, digits, `-`, `.` and `_`");
        check("spiffe://example.org/../b", "a segment of the path has letters, digits, `-`, `.` and `_`");
        check("spiffe://example.org/a?b", "a segment of the path has letters, digits, `-`, `.` and `_`");
        check("https://example.org/a", "write one such as spiffe://example.org/ns/shop/sa/web");
    }

    #[test]
    fn destinations() {
        let check = |text: &str, expect: &str| {
            let found = DestinationText::parse(text).map_or_else(|wrong| wrong.to_string(), |to| to.0.to_string());
            assert!(found.contains(expect), "{text}: {found}");
        };
        for same in ["10.96.0.20:80", "10.96.0.0/12:443", "[fd00::1]:80", "[fd00::/8]:80", "*:80"] {
            check(same, same);
        }
        check("[::ffff:10.0.0.1]:80", "10.0.0.1:80");
        check("10.96.0.1/12:80", "write 10.96.0.0/12 for the network, or 10.96.0.1 for the address");
        for bad in [
            "10.96.0.20",
            "10.96.0.20:0",
            "10.96.0.20:x",
            "fd00::1:80",
            "fd00::/8:80",
            "[10.0.0.0/8]:80",
            "db:80",
            ":80",
        ] {
            check(bad, "is not a destination");
        }
    }
}

//! Hosts outside of the cluster that URLs of annotations name.

use std::fmt;
use std::net::IpAddr;

use model::Reach;
use rustls::pki_types::ServerName;

use super::super::value;
use super::{Compat, ServiceUrl};

/// What a URL leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A Service.
    Service(ServiceUrl),
    /// Another host.
    Outside(OutsideUrl),
}

impl Target {
    /// The Service, if it is one.
    pub const fn service(&self) -> Option<&ServiceUrl> {
        match self {
            Self::Service(url) => Some(url),
            Self::Outside(_) => None,
        }
    }

    /// The other host, if it is one.
    pub const fn outside(&self) -> Option<&OutsideUrl> {
        match self {
            Self::Service(_) => None,
            Self::Outside(url) => Some(url),
        }
    }

    /// What requests have as their host; empty for that of the client's request.
    pub fn host(&self) -> &str {
        match self {
            Self::Service(url) => &url.host,
            Self::Outside(url) => &url.host,
        }
    }

    /// The path and the query.
    pub(super) fn request(&self) -> (&str, &str) {
        match self {
            Self::Service(url) => (&url.path, &url.query),
            Self::Outside(url) => (&url.path, &url.query),
        }
    }

    pub(super) fn set_host(&mut self, host: String) {
        match self {
            Self::Service(url) => url.host = host,
            Self::Outside(url) => url.host = host,
        }
    }
}

/// A URL of a host that is no Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideUrl {
    /// Where it leads.
    pub to: OutsideHost,
    /// The host that requests name.
    pub host: String,
    /// The path without its query.
    pub path: String,
    /// The query, with variables of Steelyard.
    pub query: String,
    /// An annotation has it, and not the ConfigMap of the operator.
    pub is_annotated: bool,
}

/// A host that is no Service, with a scheme and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutsideHost {
    /// It is asked over TLS.
    pub is_https: bool,
    /// A name in lower case without a dot at its end, or an address, one of IPv6 without brackets.
    pub name: String,
    /// The port.
    pub port: u16,
}

impl OutsideHost {
    /// The host as a URL has it: an IPv6 address is in brackets.
    pub(super) fn host(&self) -> String {
        if self.name.contains(':') { format!("[{}]", self.name) } else { self.name.clone() }
    }
}

impl fmt::Display for OutsideHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host(), self.port)
    }
}

/// How much of the world is asked. With the safe reading, whoever may write an Ingress reaches nothing that is not public.
pub const fn reach(compat: Compat) -> Reach {
    match compat {
        Compat::Safe => Reach::Public,
        Compat::Exact => Reach::Private,
    }
}

/// What the report says of such a URL.
pub(super) const fn says(is_https: bool, compat: Compat) -> &'static str {
    match (compat, is_https) {
        (Compat::Safe, true) => {
            "the host is outside of the cluster: only its public addresses are used, and its certificate must be valid for its name, which ingress-nginx \
             does not check"
        }
        (Compat::Safe, false) => {
            "the host is outside of the cluster: only its public addresses are used. What clients send goes there in the clear"
        }
        (Compat::Exact, true) => {
            "the host is outside of the cluster: its public and private addresses are used, and its certificate is not checked, as with ingress-nginx"
        }
        (Compat::Exact, false) => {
            "the host is outside of the cluster: its public and private addresses are used. What clients send goes there in the clear"
        }
    }
}

/// The host of a URL.
///
/// # Errors
/// Says in a sentence what is wrong with it.
pub(super) fn host(is_https: bool, written: &str, port: Option<u16>, compat: Compat) -> Result<OutsideHost, String> {
    let name = written.strip_suffix('.').unwrap_or(written).to_ascii_lowercase();
    let shown = value::cut(written);
    let port = port.unwrap_or(if is_https { 443 } else { 80 });
    if port == 0 {
        return Err(format!("{shown} has the port 0"));
    }
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    if let Ok(address) = bare.parse::<IpAddr>() {
        if !reach(compat).allows(address) {
            return Err(format!("{address} is not an address outside of the cluster that may be used"));
        }
        return Ok(OutsideHost { is_https, name: address.to_string(), port });
    }
    let is_label = |label: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_part)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let labels: Vec<&str> = name.split('.').collect();
    // Other software reads a number at the end as a part of an address.
    let is_number = |label: &&str| label.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = name.len() <= 253
        && labels.iter().all(|label| is_label(label))
        && labels.last().is_some_and(|last| !is_number(last))
        && matches!(ServerName::try_from(name.as_str()), Ok(ServerName::DnsName(_)));
    if !is_name || labels.len() < 2 {
        return Err(format!("{shown} is no Service of this cluster, and no name of a host outside of it"));
    }
    // They resolve to what is inside, if at all.
    let is_inside = ["svc", "local", "localhost", "internal"].contains(labels.last().unwrap_or(&""));
    if is_inside && compat == Compat::Safe {
        return Err(format!(
            "{shown} is no Service of this cluster, and its name is not one of a host outside of it: start the controller with \
             --ingress-nginx-compat=exact to use it all the same"
        ));
    }
    Ok(OutsideHost { is_https, name, port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_urls() {
        let check = |compat: Compat, written: &str, expect: Result<&str, &str>| {
            let found = host(true, written, None, compat);
            match (found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found.to_string(), expect),
                (Err(why), Err(part)) => assert!(why.contains(part), "{written}: {why}"),
                (found, expect) => panic!("{written}: {found:?}, and not {expect:?}"),
            }
        };
        let [safe, exact] = [Compat::Safe, Compat::Exact];
        check(safe, "Auth.Example.com.", Ok("https://auth.example.com:443"));
        check(safe, "a-b.x--y.example", Ok("https://a-b.x--y.example:443"));
        check(safe, "1.1.1.1", Ok("https://1.1.1.1:443"));
        check(safe, "10.0.0.1", Err("may be used"));
        check(exact, "10.0.0.1", Ok("https://10.0.0.1:443"));
        for address in ["127.0.0.1", "169.254.169.254", "0.0.0.0", "255.255.255.255"] {
            check(exact, address, Err("may be used"));
        }
        check(safe, "[2606:4700:0::1111]", Ok("https://[2606:4700::1111]:443"));
        check(safe, "[fd12::1]", Err("may be used"));
        check(exact, "[FD12::1]", Ok("https://[fd12::1]:443"));
        for address in ["[::1]", "[::]", "[fe80::1]", "[::ffff:10.0.0.1]", "[2001:db8::1]", "[fd00:ec2::254]"] {
            check(exact, address, Err("may be used"));
        }
        for name in
            ["auth", "-a.example", "a-.example", "a..example", ".example", "a.example..", "127.1", "a.1", "1.2.3.4.5"]
        {
            check(exact, name, Err("no name of a host"));
        }
        check(exact, &format!("{}.example", "a".repeat(64)), Err("no name of a host"));
        check(exact, &format!("{}example", "a.".repeat(125)), Err("no name of a host"));
        for name in ["a.svc", "10-0-0-1.shop.pod.cluster.local", "a.localhost", "metadata.google.internal"] {
            check(safe, name, Err("--ingress-nginx-compat=exact"));
            check(exact, name, Ok(&format!("https://{name}:443")));
        }
        assert!(host(false, "a.example", Some(0), exact).is_err());
        assert_eq!(host(false, "a.example", None, safe).unwrap().port, 80);
        assert_eq!(host(false, "a.example", Some(4180), safe).unwrap().port, 4180);
    }
}

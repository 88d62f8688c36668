//! The target of a load, parsed from `http://host:port/path`, `https://host:port/path` or `host:port`.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::requests::shown;

/// The parts of a URL that a request needs, and the address of its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address to connect to.
    pub address: SocketAddr,
    /// The value of the `host` header.
    pub host: String,
    /// The path and the query.
    pub path: String,
}

/// A parsed URL whose host is not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    /// Whether the scheme is `https`.
    pub is_secure: bool,
    /// The name or address of the host, without brackets.
    pub name: String,
    pub port: u16,
    /// Host and port as written in the URL, which is the value of the `host` header.
    pub authority: String,
    /// The path and the query.
    pub path: String,
}

impl Url {
    /// Parses a URL. Without a scheme, it means `http`.
    ///
    /// # Errors
    /// Another scheme, characters that are not allowed in a request line, a user name, no host, or an invalid port.
    pub(super) fn parse(url: &str) -> io::Result<Self> {
        let (is_secure, rest) = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
            Some((scheme, _)) => {
                return Err(unusable(url, &format!("the scheme is {scheme:?}; use http or https")));
            }
            None => (false, url),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        if !rest.bytes().all(|byte| (0x21..0x7f).contains(&byte)) {
            return Err(unusable(url, "a space or a character outside ASCII must be percent-encoded"));
        }
        let (authority, path) = match rest.find(['/', '?']) {
            Some(at) if rest.as_bytes().get(at) == Some(&b'?') => (&rest[..at], format!("/{}", &rest[at..])),
            Some(at) => (&rest[..at], rest[at..].to_owned()),
            None => (rest, "/".to_owned()),
        };
        if authority.contains('@') {
            return Err(unusable(url, "it contains a user name; use -H 'Authorization: Basic ...' instead"));
        }
        let default_port = if is_secure { 443 } else { 80 };
        // The colons of an IPv6 address are inside brackets.
        let bracket = authority.rfind(']').map_or(0, |at| at + 1);
        let (name, port) = match authority[bracket..].split_once(':') {
            Some((name, port)) => {
                let port = port.parse().map_err(|_| unusable(url, &format!("{port:?} is not a port")))?;
                (&authority[..bracket + name.len()], port)
            }
            None => (authority, default_port),
        };
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if name.is_empty() {
            return Err(unusable(url, "it has no host"));
        }
        Ok(Self { is_secure, name: name.to_owned(), port, authority: authority.to_owned(), path })
    }

    /// Returns every address of the host. This may block.
    ///
    /// # Errors
    /// The name does not resolve.
    pub(super) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let Self { name, port, .. } = self;
        let addresses: Vec<SocketAddr> =
            (name.as_str(), *port).to_socket_addrs().map_err(|error| not_found(name, &error))?.collect();
        if addresses.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name} has no address")));
        }
        Ok(addresses)
    }

    /// Returns the target at one of its addresses.
    pub(super) fn at(self, address: SocketAddr) -> Target {
        Target { address, host: self.authority, path: self.path }
    }
}

/// The error of the resolver, without its prefix.
fn not_found(name: &str, error: &io::Error) -> io::Error {
    let text = error.to_string();
    let why = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    io::Error::new(io::ErrorKind::InvalidInput, format!("cannot look up {name}: {why}"))
}

impl Target {
    /// Parses a URL of the scheme `http` and resolves its host, which may block. Uses the first address.
    ///
    /// # Errors
    /// The URL is invalid or uses `https`, or the name does not resolve.
    pub fn resolve(url: &str) -> io::Result<Self> {
        let parsed = Url::parse(url)?;
        if parsed.is_secure {
            return Err(unusable(url, "this kind of load does not support TLS; use http"));
        }
        let address = parsed.addresses()?.first().copied().ok_or_else(|| unusable(url, "the name has no address"))?;
        Ok(parsed.at(address))
    }
}

/// Resolves `host:port`, which may block. Uses the first address.
pub(crate) fn resolve_address(text: &str) -> io::Result<SocketAddr> {
    let mut addresses = text.to_socket_addrs().map_err(|error| unusable(text, &error.to_string()))?;
    addresses.next().ok_or_else(|| unusable(text, "the name has no address"))
}

fn unusable(what: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("cannot put load on {}: {why}", shown(what)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, expect: Option<(&str, &str, &str)>) {
        let expect = expect.map(|(address, host, path)| Target {
            address: address.parse().unwrap(),
            host: host.to_owned(),
            path: path.to_owned(),
        });
        assert_eq!(Target::resolve(url).ok(), expect, "{url}");
    }

    #[test]
    fn urls() {
        check("http://127.0.0.1:8080/a?b=c#d", Some(("127.0.0.1:8080", "127.0.0.1:8080", "/a?b=c")));
        check("http://127.0.0.1", Some(("127.0.0.1:80", "127.0.0.1", "/")));
        check("127.0.0.1:8080", Some(("127.0.0.1:8080", "127.0.0.1:8080", "/")));
        check("http://127.0.0.1:8080?x", Some(("127.0.0.1:8080", "127.0.0.1:8080", "/?x")));
        check("http://[::1]:8080/", Some(("[::1]:8080", "[::1]:8080", "/")));
        for bad in ["https://127.0.0.1/", "http://127.0.0.1/a b", "http://127.0.0.1/\r\nx: y", "http://:8080:/", ""] {
            check(bad, None);
        }
    }

    #[test]
    fn schemes_names_and_ports() {
        let check = |url: &str, expect: (bool, &str, u16)| {
            let parsed = Url::parse(url).unwrap();
            assert_eq!((parsed.is_secure, parsed.name.as_str(), parsed.port), expect, "{url}");
        };
        check("https://a.example/b", (true, "a.example", 443));
        check("https://a.example:8443", (true, "a.example", 8443));
        check("HTTPS://A.example", (true, "A.example", 443));
        check("http://[2001:db8::1]/", (false, "2001:db8::1", 80));
        check("https://[2001:db8::1]:8443/", (true, "2001:db8::1", 8443));
        check("localhost:8080/", (false, "localhost", 8080));
        let refused = |url: &str, expect: &str| {
            assert_eq!(Url::parse(url).unwrap_err().to_string(), format!("cannot put load on {url}: {expect}"));
        };
        refused("ftp://a/", "the scheme is \"ftp\"; use http or https");
        refused("http://a:b/", "\"b\" is not a port");
        refused("http://a:70000/", "\"70000\" is not a port");
        refused("http:///b", "it has no host");
        refused("http://me:secret@a/", "it contains a user name; use -H 'Authorization: Basic ...' instead");
    }
}

//! Where load goes: `http://host:port/path`, or `host:port`.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// A URL of the scheme `http`, and the address behind its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where the connections go.
    pub address: SocketAddr,
    /// The value of the header `host`.
    pub host: String,
    /// Path and query.
    pub path: String,
}

impl Target {
    /// Parses a URL and resolves its host, which may block; the first address is taken.
    ///
    /// # Errors
    /// Another scheme, characters that do not belong into a request line, a name that does not resolve.
    pub fn resolve(url: &str) -> io::Result<Self> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(unusable(url, &format!("the scheme {scheme} is not spoken here, only http")));
            }
            None => url,
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
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let dialled = if has_port { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { address: resolve_address(&dialled)?, host: authority.to_owned(), path })
    }
}

/// Resolves `host:port`, which may block; the first address is taken.
pub(crate) fn resolve_address(text: &str) -> io::Result<SocketAddr> {
    let mut addresses = text.to_socket_addrs().map_err(|error| unusable(text, &error.to_string()))?;
    addresses.next().ok_or_else(|| unusable(text, "the name has no address"))
}

fn unusable(what: &str, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("cannot put load on {what}: {why}"))
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
}

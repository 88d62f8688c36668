//! URLs of services that are asked about requests, or get copies of them.

use std::net::Ipv6Addr;

use super::value::cut;

/// A URL in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url<'u> {
    pub(super) is_https: bool,
    /// A name or an address; one of IPv6 is in brackets.
    pub(super) host: &'u str,
    pub(super) port: Option<u16>,
    /// The rest, with its `/` or `?`; empty if there is none.
    pub(super) rest: &'u str,
}

impl<'u> Url<'u> {
    /// Reads a URL. Its host may have variables of nginx.
    ///
    /// # Errors
    /// Says what is wrong with it, and what to write instead.
    pub(super) fn parse(url: &'u str) -> Result<Self, String> {
        let (is_https, after) = match url.split_once("://") {
            Some(("http", after)) => (false, after),
            Some(("https", after)) => (true, after),
            _ => return Err("write a URL that begins with http:// or https://".to_owned()),
        };
        let (authority, rest) = after.split_at(after.find(['/', '?']).unwrap_or(after.len()));
        if authority.contains('@') {
            // Not shown: it may be a password.
            return Err(
                "it has a user or a password before its host, which would not be sent: write the URL without them; \
                        auth-proxy-set-headers can set the header Authorization of the question"
                    .to_owned(),
            );
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(inner) => {
                let wrong = || {
                    format!(
                        "{} is no IPv6 address in brackets: write it as in http://[2001:db8::1]:8080/",
                        cut(authority)
                    )
                };
                let (address, after) = inner.split_once(']').ok_or_else(wrong)?;
                address.parse::<Ipv6Addr>().map_err(|_| wrong())?;
                let port = after.strip_prefix(':');
                if port.is_none() && !after.is_empty() {
                    return Err(wrong());
                }
                let (host, _) = authority.split_at(authority.len() - after.len());
                (host, port)
            }
            None => authority.rsplit_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() {
            return Err("it has no host: write it after http:// or https://".to_owned());
        }
        if host.contains(':') && !host.starts_with('[') {
            return Err(format!(
                "{} has more than one `:`: write an IPv6 address in brackets, as in http://[2001:db8::1]:8080/",
                cut(authority)
            ));
        }
        if !host.is_ascii() {
            return Err(format!(
                "{} is not ASCII: write the name in punycode, with labels that begin with xn--",
                cut(host)
            ));
        }
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._$".contains(&byte);
        if !host.starts_with('[') && !host.bytes().all(is_of_host) {
            return Err(format!("{} is no name of a host: it has letters, digits, `-`, `_` and dots", cut(host)));
        }
        let read = |port: &str| {
            // The library takes a sign, too.
            let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
            let number = port.parse().ok().filter(|number| *number > 0 && is_number);
            number.ok_or_else(|| format!("{} is no port: write a number from 1 to 65535", cut(port)))
        };
        Ok(Self { is_https, host, port: port.map(read).transpose()?, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_urls() {
        let check = |url: &str, expect: Result<(bool, &str, Option<u16>, &str), &str>| match (Url::parse(url), expect) {
            (Ok(Url { is_https, host, port, rest }), Ok(expect)) => assert_eq!((is_https, host, port, rest), expect),
            (Err(why), Err(part)) => assert!(why.contains(part), "{url}: {why}"),
            (found, expect) => panic!("{url}: {found:?}, and not {expect:?}"),
        };
        check("http://a.shop.svc:80/x?y@z", Ok((false, "a.shop.svc", Some(80), "/x?y@z")));
        check("https://$host?a=[b", Ok((true, "$host", None, "?a=[b")));
        check("https://xn--bcher-kva.example/", Ok((true, "xn--bcher-kva.example", None, "/")));
        check("http://[2001:db8::1]", Ok((false, "[2001:db8::1]", None, "")));
        check("http://[2001:db8::1]:8080/a", Ok((false, "[2001:db8::1]", Some(8080), "/a")));
        check("https://[::ffff:10.0.0.1]/", Ok((true, "[::ffff:10.0.0.1]", None, "/")));
        for url in
            ["http://[::1", "http://[::1]8080/", "http://[fe80::1%eth0]/", "http://[a]/", "http://[]/", "http://["]
        {
            check(url, Err("no IPv6 address in brackets"));
        }
        check("http://2001:db8::1/", Err("more than one `:`"));
        check("http://bücher.example/", Err("punycode"));
        for url in ["https://me:secret@a.example/", "https://me@[::1]/", "https://@a.example"] {
            let why = Url::parse(url).unwrap_err();
            assert!(why.contains("Authorization") && !why.contains("secret"), "{why}");
        }
        for url in ["http://a:/", "http://a:x/", "http://a:0/", "http://a:65536/", "http://[::1]:/", "http://a:-1"] {
            check(url, Err("is no port"));
        }
        for url in ["", "/", "a.example", "ftp://a.example/", "HTTP://a/", "://"] {
            check(url, Err("begins with http://"));
        }
        for url in ["http://", "https:///x", "http://:80", "http://?"] {
            check(url, Err("no host"));
        }
        for url in ["http://a b/", "http://a#b", "http://a]/", "http://a\\b/"] {
            check(url, Err("no name of a host"));
        }
    }
}

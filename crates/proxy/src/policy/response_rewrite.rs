//! Changes to URLs and cookies in the responses of endpoints (`proxy_redirect`, `proxy_cookie_domain` and `proxy_cookie_path` of nginx).

use model::{ResponseRewrite, Scheme, ToPart, ValueFrom, ValueRewrite};
use regex::Captures;

use crate::http::headers::Out;

/// The changes of a route, and what they need of the request.
#[derive(Clone, Copy)]
pub(crate) struct Rewriting<'r> {
    pub(crate) rules: &'r ResponseRewrite,
    /// The scheme of the client's request.
    pub(crate) scheme: Scheme,
    /// The host of the client's request, with its port.
    pub(crate) authority: &'r [u8],
}

impl Rewriting<'_> {
    /// Writes a field of an endpoint's response with another value. Returns false if it has to stay as it is.
    pub(crate) fn write(&self, out: &mut impl Out, name: &[u8], value: &[u8], never_indexed: bool) -> bool {
        let rewritten = match name {
            name if name.eq_ignore_ascii_case(b"location") => self.first(&self.rules.location, value, false),
            name if name.eq_ignore_ascii_case(b"refresh") => self.refresh(value),
            name if name.eq_ignore_ascii_case(b"set-cookie") => self.cookie(value),
            _ => None,
        };
        match rewritten {
            // A field must not begin or end with white space (RFC 9113 section 8.2.1), which a group may have captured.
            Some(value) => out.field(name, value.trim_ascii(), never_indexed),
            None => return false,
        }
        true
    }

    /// `5; url=http://a/`: seconds and a URL.
    fn refresh(&self, value: &[u8]) -> Option<Vec<u8>> {
        let is_it = |four: &[u8]| four.eq_ignore_ascii_case(b"url=");
        let at = value.windows(4).position(is_it)? + 4;
        let (before, url) = value.split_at_checked(at)?;
        let url = self.first(&self.rules.location, url, false)?;
        Some([before, &url].concat())
    }

    /// The value of `Set-Cookie` (RFC 6265 section 4.1.1). If an attribute changes, all parts are written anew, as nginx does.
    fn cookie(&self, value: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(value.len() + 32);
        let mut is_changed = false;
        for (number, part) in value.split(|byte| *byte == b';').enumerate() {
            let (name, value) = match memchr::memchr(b'=', part).and_then(|at| part.split_at_checked(at)) {
                Some((name, value)) => (name.trim_ascii(), value.get(1..).map(<[u8]>::trim_ascii)),
                None => (part.trim_ascii(), None),
            };
            let rewritten = match value {
                // Not a cookie.
                None if number == 0 => return None,
                Some(_) if number == 0 => None,
                Some(value) if name.eq_ignore_ascii_case(b"domain") => {
                    self.first(&self.rules.cookie_domain, value, true)
                }
                Some(value) if name.eq_ignore_ascii_case(b"path") => self.first(&self.rules.cookie_path, value, false),
                _ => None,
            };
            if number > 0 {
                out.extend_from_slice(b"; ");
            }
            out.extend_from_slice(name);
            if let Some(value) = rewritten.as_deref().or(value) {
                out.push(b'=');
                out.extend_from_slice(value);
            }
            is_changed |= rewritten.is_some();
        }
        is_changed.then_some(out)
    }

    /// The value that the first of these changes which matches makes of it.
    fn first(&self, rules: &[ValueRewrite], value: &[u8], is_domain: bool) -> Option<Vec<u8>> {
        rules.iter().find_map(|ValueRewrite { from, to }| {
            let (kept, compared): (&[u8], &[u8]) = match value.strip_prefix(b".") {
                Some(rest) if is_domain => (b".", rest),
                _ => (b"", value),
            };
            match from {
                ValueFrom::Text(text) if is_domain => {
                    let is_it = compared.eq_ignore_ascii_case(text.as_bytes());
                    is_it.then(|| self.made(to, None, kept, b"")).flatten()
                }
                ValueFrom::Text(text) => self.made(to, None, b"", value.strip_prefix(text.as_bytes())?),
                ValueFrom::Regex(regex) => {
                    let groups = regex.captures(std::str::from_utf8(value).ok()?)?;
                    self.made(to, Some(&groups), b"", b"")
                }
            }
        })
    }

    /// The new value between these texts. `None` if it has the host of the request, and the request names none.
    fn made(&self, to: &[ToPart], groups: Option<&Captures<'_>>, before: &[u8], behind: &[u8]) -> Option<Vec<u8>> {
        let mut out = before.to_vec();
        for part in to {
            match part {
                ToPart::Text(text) => out.extend_from_slice(text.as_bytes()),
                ToPart::Group(number) => {
                    let group = groups.and_then(|groups| groups.get(*number));
                    out.extend_from_slice(group.map_or(b"", |group| group.as_str().as_bytes()));
                }
                ToPart::Scheme => out.extend_from_slice(self.scheme.name().as_bytes()),
                ToPart::Host => out.extend_from_slice(host(self.authority)?),
            }
        }
        out.extend_from_slice(behind);
        Some(out)
    }
}

/// The host without its port. `None` if there is none, or if it has a character that would end it in a URL or in a cookie.
fn host(authority: &[u8]) -> Option<&[u8]> {
    let digits = authority.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (host, _) = authority.split_at_checked(authority.len() - digits)?;
    let host = host.strip_suffix(b":").unwrap_or(authority);
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~[]:".contains(byte);
    (!host.is_empty() && host.iter().all(is_plain)).then_some(host)
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    fn text(from: &str, to: &str) -> ValueRewrite {
        ValueRewrite { from: ValueFrom::Text(from.to_owned()), to: vec![ToPart::Text(to.to_owned())] }
    }

    fn regex(from: &str, to: Vec<ToPart>) -> ValueRewrite {
        ValueRewrite { from: ValueFrom::Regex(Regex::new(&format!("\\A(?:{from})\\z")).unwrap()), to }
    }

    #[track_caller]
    fn check(rules: &ResponseRewrite, authority: &str, name: &str, value: &str, expect: Option<&str>) {
        let rewriting = Rewriting { rules, scheme: Scheme::Https, authority: authority.as_bytes() };
        let mut out = Vec::new();
        let is_written = rewriting.write(&mut out, name.as_bytes(), value.as_bytes(), false);
        let expect = expect.map(|expect| format!("{name}: {expect}\r\n"));
        assert_eq!(
            (String::from_utf8(out).unwrap(), is_written),
            (expect.clone().unwrap_or_default(), expect.is_some())
        );
    }

    #[test]
    fn places() {
        let group = |number| ToPart::Group(number);
        let part = |text: &str| ToPart::Text(text.to_owned());
        let rules = ResponseRewrite {
            location: vec![
                text("http://a/", "https://b/c/"),
                ValueRewrite {
                    from: ValueFrom::Text("/x".to_owned()),
                    to: vec![ToPart::Scheme, part("://"), ToPart::Host, part("/y")],
                },
                regex("http://([a-z]+)\\.in(/.*)?", vec![part("/"), group(1), group(2)]),
            ],
            ..ResponseRewrite::default()
        };
        let check = |host, name, value, expect| check(&rules, host, name, value, expect);
        check("h:81", "Location", "http://a/1", Some("https://b/c/1"));
        check("h:81", "Location", "HTTP://a/1", None);
        check("h:81", "Location", "/x?z", Some("https://h/y?z"));
        check("[::1]:81", "location", "/x", Some("https://[::1]/y"));
        check("", "location", "/x", None);
        check("a/b", "location", "/x", None);
        check("h", "location", "http://shop.in/1", Some("/shop/1"));
        check("h", "location", "http://shop.in", Some("/shop"));
        check("h", "Refresh", "5; URL=http://a/1", Some("5; URL=https://b/c/1"));
        check("h", "Refresh", "5", None);
        check("h", "Refresh", "5; url=", None);
        check("h", "Content-Location", "http://a/1", None);
        check("h", "Set-Cookie", "a=b; Path=/x", None);
    }

    #[test]
    fn cookies() {
        let rules = ResponseRewrite {
            location: Vec::new(),
            cookie_domain: vec![text("in.test", "out.test"), regex("(?i)(.*)\\.old", vec![ToPart::Group(1)])],
            cookie_path: vec![text("/app/", "/"), text("/", "/x/")],
        };
        let check = |value, expect| check(&rules, "h", "Set-Cookie", value, expect);
        check("a=b; Domain=in.test", Some("a=b; Domain=out.test"));
        check("a=b; domain=.IN.test; Path=/app/c;HttpOnly", Some("a=b; domain=.out.test; Path=/c; HttpOnly"));
        check("a=b; Domain=x.in.test", None);
        check("a=b;Domain = .a.OLD ;  Secure", Some("a=b; Domain=.a; Secure"));
        check("a=b; path=/c; Max-Age=1;", Some("a=b; path=/x/c; Max-Age=1;"));
        check("a=b; Path", None);
        check("a=b; Path=", None);
        check("a; Path=/", None);
        check("Path=/; HttpOnly", None);
        check("a=\"b=c\"; Path=/", Some("a=\"b=c\"; Path=/x/"));
        check("", None);
    }
}

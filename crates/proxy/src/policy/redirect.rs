//! The target of a redirect.

use std::borrow::Cow;
use std::io::Write;

use model::{PathMatcher, Redirect};

use super::{RequestView, passed_on, rewrite, scheme};
use crate::error::Error;

/// The `Location` of a redirect (RFC 9110 section 10.2.2). Unless the redirect is relative, it is a complete URL.
///
/// # Errors
/// Same as [`rewrite::target`].
pub(crate) fn location(redirect: &Redirect, matched: &PathMatcher, asked: &RequestView<'_>) -> Result<Vec<u8>, Error> {
    if redirect.is_relative {
        return relative(redirect, matched, asked);
    }
    let RequestView { head, buffer, client, .. } = asked;
    let scheme_to = redirect.scheme.unwrap_or_else(|| scheme(asked));
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(scheme_to.name().as_bytes());
    out.extend_from_slice(b"://");

    let authority = head.authority.get(buffer);
    let (host, port) = split_port(authority);
    match &redirect.host {
        Some(host) => out.extend_from_slice(host.as_bytes()),
        None if host.is_empty() => {
            // HTTP/1.0 without Host: the best known host is the address that the client connected to. Writing to a Vec cannot fail.
            let address = client.local;
            let _ = if address.is_ipv6() { write!(out, "[{}]", address.ip()) } else { write!(out, "{}", address.ip()) };
        }
        None => out.extend_from_slice(host),
    }
    let listener_port = Some(client.local.port());
    let port_to = match (redirect.port, redirect.scheme, &redirect.host) {
        (Some(port), ..) => Some(port),
        // The default port of the scheme.
        (None, Some(_), _) => None,
        (None, None, Some(_)) => listener_port,
        (None, None, None) if authority.is_empty() => listener_port,
        (None, None, None) => {
            out.extend_from_slice(port);
            None
        }
    };
    if let Some(port) = port_to.filter(|port| *port != scheme_to.port()) {
        let _ = write!(out, ":{port}");
    }

    out.extend_from_slice(&path_to(redirect, matched, asked)?);
    Ok(out)
}

/// The path and the query alone. The client chooses its path, and one that begins with two slashes would be read as a host, as would one with
/// backslashes by browsers.
fn relative(redirect: &Redirect, matched: &PathMatcher, asked: &RequestView<'_>) -> Result<Vec<u8>, Error> {
    let path = path_to(redirect, matched, asked)?;
    let begin = path.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    let mut out = vec![b'/'];
    out.extend_from_slice(path.get(begin..).unwrap_or_default());
    Ok(out)
}

/// The new path with the query.
fn path_to<'t>(redirect: &Redirect, matched: &PathMatcher, asked: &RequestView<'t>) -> Result<Cow<'t, [u8]>, Error> {
    let kept = passed_on(&asked.paths, asked.head.path.get(asked.buffer), asked.target);
    Ok(match (rewrite::target(redirect.path.as_ref(), matched, asked)?, kept) {
        (Some(target), _) => Cow::Owned(target),
        (None, b"" | b"*") => Cow::Borrowed(b"/"),
        (None, target) => Cow::Borrowed(target),
    })
}

/// The host, and the port with its colon if there is one.
fn split_port(authority: &[u8]) -> (&[u8], &[u8]) {
    let behind_address = memchr::memrchr(b']', authority).map_or(0, |at| at + 1);
    let rest = authority.get(behind_address..).unwrap_or_default();
    let colon = memchr::memchr(b':', rest).map_or(authority.len(), |at| behind_address + at);
    authority.split_at(colon)
}

#[cfg(test)]
mod tests {
    use model::{PathRewrite, Scheme};

    use super::super::testing;
    use super::*;

    const KEPT: Redirect =
        Redirect { scheme: None, host: None, port: None, path: None, status: 302, is_relative: false };

    fn check(redirect: &Redirect, line: &str, host: &str, expect: &str) {
        let lines = format!("{line}\r\n{host}");
        let to = testing::asked(&lines, false, |asked| {
            location(redirect, &PathMatcher::Prefix("/old".into()), asked).unwrap()
        });
        assert_eq!(String::from_utf8(to).unwrap(), expect, "{redirect:?} {line} {host}");
    }

    #[test]
    fn what_is_not_said_stays() {
        let host = |name: &str| Some(name.to_owned());
        let get = "GET /old/x?y=1 HTTP/1.1";
        let shop = Redirect { scheme: Some(Scheme::Https), host: host("shop.example.com"), ..KEPT };
        check(&shop, get, "Host: a.test:8080\r\n", "https://shop.example.com/old/x?y=1");
        check(
            &Redirect { port: Some(8443), ..shop.clone() },
            get,
            "Host: a\r\n",
            "https://shop.example.com:8443/old/x?y=1",
        );
        check(&Redirect { port: Some(443), ..shop.clone() }, get, "Host: a\r\n", "https://shop.example.com/old/x?y=1");
        let moved = Redirect { path: Some(PathRewrite::Prefix("/new".into())), ..KEPT };
        check(&moved, get, "Host: a.test:99\r\n", "http://a.test:99/new/x?y=1");
        check(
            &Redirect { path: Some(PathRewrite::Full("/".into())), ..shop },
            get,
            "Host: a\r\n",
            "https://shop.example.com/?y=1",
        );
        // The default port of the scheme, and the listener's port if only the host changes.
        check(&Redirect { scheme: Some(Scheme::Https), ..KEPT }, get, "Host: [::1]:80\r\n", "https://[::1]/old/x?y=1");
        check(&Redirect { host: host("b.test"), ..KEPT }, get, "Host: a\r\n", "http://b.test:8080/old/x?y=1");
        check(&Redirect { port: Some(81), ..KEPT }, get, "Host: [::1]\r\n", "http://[::1]:81/old/x?y=1");
    }

    #[test]
    fn a_relative_redirect_stays_on_its_host() {
        let to = |path: Option<PathRewrite>| Redirect { path, is_relative: true, ..KEPT };
        let get = "GET /old/x?y=1 HTTP/1.1";
        let host = "Host: a.test:99\r\n";
        check(&to(Some(PathRewrite::Full("/new/".into()))), get, host, "/new/?y=1");
        check(&to(Some(PathRewrite::Prefix("/new".into()))), get, host, "/new/x?y=1");
        check(&to(None), "GET //evil.test/ HTTP/1.1", host, "/evil.test/");
        check(&to(None), "GET /%5cevil.test/ HTTP/1.1", host, "/%5cevil.test/");
        check(&to(Some(PathRewrite::Prefix("/".into()))), "GET /old//evil.test HTTP/1.1", host, "/evil.test");
        check(&to(None), "OPTIONS * HTTP/1.1", host, "/");
    }

    #[test]
    fn no_request_makes_a_strange_place() {
        let moved = Redirect { port: Some(81), ..KEPT };
        check(&moved, "GET //evil.test/ HTTP/1.1", "Host: a\r\n", "http://a:81//evil.test/");
        check(&moved, "GET / HTTP/1.0", "", "http://127.0.0.1:81/");
        check(&Redirect { status: 301, ..KEPT }, "GET / HTTP/1.0", "", "http://127.0.0.1:8080/");
        check(&moved, "OPTIONS * HTTP/1.1", "Host: a\r\n", "http://a:81/");
        check(&moved, "GET http://a HTTP/1.1", "Host: a\r\n", "http://a:81/");
    }
}

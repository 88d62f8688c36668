//! The redirect of clients that the service does not know to the page on which they sign in.

use model::{RequestPart, SignIn};

use super::Refusal;
use crate::policy::request_text::{UNRESERVED, escape, put_in_url};
use crate::policy::{self, RequestView};

/// What a client gets instead of this refusal: the way to the page, and the cookies of the refusal. A client that does not say which host it
/// wants (HTTP/1.0) gets the refusal itself if the way depends on that.
pub(crate) fn redirect(sign_in: &SignIn, asked: &RequestView<'_>, mut refusal: Refusal) -> Refusal {
    let Some(location) = location(sign_in, asked) else { return refusal };
    refusal.headers.retain(|(name, _)| name == "set-cookie");
    refusal.headers.push(("location".to_owned(), location));
    Refusal { status: 302, headers: refusal.headers, content_type: None, body: None }
}

/// `None` if it has the host of the request, and the request names none.
fn location(sign_in: &SignIn, asked: &RequestView<'_>) -> Option<String> {
    let SignIn { url, param, path_only } = sign_in;
    let authority = asked.head.authority.get(asked.buffer);
    let mut host = String::new();
    // What a client writes there does not end the host of the URL.
    escape(without_port(authority), b"-._~[]:", &mut host);
    // `https:///start` leads to a host called `start`.
    let has_host = !host.is_empty();
    if url.iter().any(|part| matches!(part, RequestPart::Host | RequestPart::Authority)) && !has_host {
        return None;
    }
    let mut location = String::new();
    for part in url {
        match part {
            RequestPart::Host => location.push_str(&host),
            part => put_in_url(std::slice::from_ref(part), asked, &mut location),
        }
    }
    let query = location.split_once('?').map(|(_, query)| query);
    let is_it =
        |pair: &str| pair.strip_prefix(param.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    if query.is_some_and(|query| query.split('&').any(is_it)) {
        return Some(location);
    }
    location.push(if query.is_some() { '&' } else { '?' });
    location.push_str(param);
    location.push('=');
    let uri = policy::passed_on(&asked.paths, asked.head.path.get(asked.buffer), asked.target);
    if *path_only {
        escape(if stays_on_host(uri) { uri } else { b"/" }, UNRESERVED, &mut location);
        return Some(location);
    }
    if !has_host {
        return None;
    }
    escape(policy::scheme(asked).name().as_bytes(), UNRESERVED, &mut location);
    escape(b"://", UNRESERVED, &mut location);
    escape(authority, UNRESERVED, &mut location);
    escape(uri, UNRESERVED, &mut location);
    Some(location)
}

/// Whether a page to which a client goes back by this path and query is one of the same host, however often the page for signing in decodes it, and
/// whatever it and the browser make of it. `//evil.test` is another host. So is `/\evil.test`, and a browser leaves out tabs and line breaks
/// (WHATWG URL, "URL parsing"); both resolve `/.//evil.test` and `/a/..//evil.test`. Some servers leave out parameters (`;x`) first. A path with both segments of
/// dots and empty ones is therefore never passed on, whichever it resolves to: no browser sends one.
fn stays_on_host(uri: &[u8]) -> bool {
    let end = uri.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(uri.len());
    let mut path = uri.get(..end).unwrap_or_default().to_vec();
    for _ in 0..DECODED_MAX {
        // They go before the next decoding, too: `%2%09f` is `%2f` to whoever leaves out tabs.
        path.retain(|byte| *byte > b' ' && *byte != b'\x7f');
        let Some((b'/', rest)) = path.split_first() else { return false };
        let begin = rest.iter().find(|byte| **byte != b'.');
        if matches!(begin, Some(b'/' | b'\\' | b';')) || has_dots_and_gaps(rest) {
            return false;
        }
        let decoded = decode(&path);
        if decoded == path {
            return true;
        }
        path = decoded;
    }
    // Nobody encodes a path so often who means well.
    false
}

/// Whether a path has a segment of dots and an empty one, both of them maybe with parameters.
fn has_dots_and_gaps(path: &[u8]) -> bool {
    let segments = path.split(|byte| matches!(byte, b'/' | b'\\'));
    // Without parameters.
    let names = segments.map(|segment| segment.split(|byte| *byte == b';').next().unwrap_or_default());
    let (mut has_dots, mut has_gap) = (false, false);
    for name in names {
        has_dots |= matches!(name, b"." | b"..");
        has_gap |= name.is_empty();
    }
    has_dots && has_gap
}

/// How often a path may be encoded.
const DECODED_MAX: usize = 4;

/// Decodes `%XX` once.
fn decode(path: &[u8]) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        let byte = match (first, after) {
            (b'%', [high, low, behind @ ..]) => digit(high).zip(digit(low)).map(|(high, low)| {
                rest = behind;
                high << 4 | low
            }),
            _ => None,
        };
        out.push(byte.unwrap_or(*first));
    }
    out
}

/// A host without the port behind it.
fn without_port(authority: &[u8]) -> &[u8] {
    let digits = authority.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (host, _) = authority.split_at(authority.len() - digits);
    host.strip_suffix(b":").unwrap_or(authority)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::asked;

    /// A URL with the host between each two of these.
    fn parts(url: &[&str]) -> Box<[RequestPart]> {
        let parts = url.iter().map(|text| RequestPart::Text((*text).to_owned()));
        parts.flat_map(|part| [RequestPart::Host, part]).skip(1).collect()
    }

    #[test]
    fn what_clients_send_does_not_end_a_parameter() {
        let text = |text: &str| RequestPart::Text(text.to_owned());
        let url = [
            RequestPart::Scheme,
            text("://l/?rm="),
            RequestPart::Method,
            text("&t="),
            RequestPart::Header("x-t".into()),
            text("&h="),
            RequestPart::Host,
        ];
        let sign_in = SignIn { url: url.into(), param: "rd".to_owned(), path_only: true };
        let lines = "GET /a HTTP/1.1\r\nHost: shop\r\nX-T: &rd=https://evil/?#\r\n";
        let found = asked(lines, false, |asked| location(&sign_in, asked));
        let expect = "http://l/?rm=GET&t=%26rd%3Dhttps%3A%2F%2Fevil%2F%3F%23&h=shop&rd=%2Fa";
        assert_eq!(found.as_deref(), Some(expect));
    }

    #[test]
    fn where_clients_sign_in() {
        let check = |url: &[&str], path_only: bool, line: &str, host: &str, expect: &str| {
            let url = parts(url);
            let sign_in = SignIn { url, param: "rd".to_owned(), path_only };
            let lines = format!("{line} HTTP/1.1\r\nHost: {host}\r\n");
            let found = asked(&lines, false, |asked| location(&sign_in, asked));
            assert_eq!(found.as_deref(), Some(expect), "{line} {host}");
        };
        let login = &["https://login.example/start"];
        check(login, false, "GET /a?b=c&d", "shop", "https://login.example/start?rd=http%3A%2F%2Fshop%2Fa%3Fb%3Dc%26d");
        check(login, true, "GET /a", "shop", "https://login.example/start?rd=%2Fa");
        check(&["https://l/s?x=1"], true, "GET /", "shop", "https://l/s?x=1&rd=%2F");
        check(&["https://l/s?rd=/home"], false, "GET /a", "shop", "https://l/s?rd=/home");
        check(&["https://l/s?rdx=1"], true, "GET /", "shop", "https://l/s?rdx=1&rd=%2F");
        let own = &["https://", "/oauth2/start"];
        check(own, true, "GET /", "shop.example:8443", "https://shop.example/oauth2/start?rd=%2F");
        check(own, true, "GET /", "[::1]:80", "https://[::1]/oauth2/start?rd=%2F");
        check(own, false, "GET /", "shop:80", "https://shop/oauth2/start?rd=http%3A%2F%2Fshop%3A80%2F");
    }

    /// Paths that mean another host to somebody.
    const FOREIGN: &[&str] = &[
        "//evil.test",
        "/\\evil.test",
        "\\\\evil.test",
        "/\t/evil.test",
        "/\t\\evil",
        "/\n/evil",
        "/\x0b/evil",
        "/ /evil",
        "/.//evil",
        "/..//evil",
        "/./\\evil",
        "/%2f/evil",
        "/%2Fevil",
        "/%5cevil",
        "/%09/evil",
        "/%0d%0a/evil",
        "/%252f/evil",
        "/%2e//evil",
        "/.%2f/evil",
        "/%00/evil",
        "https://evil.test/",
        "*",
        "",
        "evil",
        "%2f%2fevil",
        "/a/..//evil",
        "/a/%2e%2e//evil",
        "/a/%252E.%2f/evil",
        "/a/..\\evil\\\\x",
        "/a/..\\\\evil",
        "/a/../\\evil",
        "/a\\..\\/evil",
        "/a/.\t.//evil",
        "/a/b/../..//evil",
        "/a/b//../..//evil",
        "/a/..;x=y//evil",
        "/a/%2e%2e%3b//evil",
        "/a/..;/;/evil",
        "/a/../;x/evil",
        "/;/evil",
        "/;//evil",
        "/%3b/evil",
        "/%2%09f/evil",
        "/%5%0dcevil",
        "/a/%2%09e%2e//evil",
    ];

    #[test]
    fn the_way_back_stays_on_the_host() {
        let check = |path: &str, expect: bool| assert_eq!(stays_on_host(path.as_bytes()), expect, "{path:?}");
        for path in [
            "/",
            "/a",
            "/a//b",
            "/.well-known/x",
            "/..",
            "/a?to=//evil.test",
            "/?//evil",
            "/%41",
            "/%",
            "/%zz",
            "/a%2f%2fb",
            "/a/../b",
            "/a/..",
            "/a/./b",
            "/a\\b",
            "/a/..b//c",
            "/a;//b",
        ] {
            check(path, true);
        }
        for path in FOREIGN {
            check(path, false);
        }
        check(&format!("/%{}2f", "25".repeat(1000)), false);
        let sign_in = SignIn { url: parts(&["https://l/"]), param: "rd".to_owned(), path_only: true };
        let found = asked("GET //evil.test/x HTTP/1.1\r\nHost: a\r\n", false, |asked| location(&sign_in, asked));
        assert_eq!(found.as_deref(), Some("https://l/?rd=%2F"));
    }

    #[test]
    fn a_request_without_a_host_gets_no_way_that_needs_one() {
        let check = |url: &[&str], path_only: bool, head: &str, expect: Option<&str>| {
            let url = parts(url);
            let sign_in = SignIn { url, param: "rd".to_owned(), path_only };
            let refusal = Refusal { status: 401, headers: Vec::new(), content_type: None, body: Some(b"no".to_vec()) };
            let found = asked(head, false, |asked| redirect(&sign_in, asked, refusal));
            let way = found.headers.iter().find(|(name, _)| name == "location").map(|(_, value)| value.as_str());
            assert_eq!((found.status, way), (if expect.is_some() { 302 } else { 401 }, expect), "{head:?}");
        };
        let without = "GET /a HTTP/1.0\r\n";
        check(&["https://", "/start"], true, without, None);
        check(&["https://l/"], false, without, None);
        check(&["https://l/"], true, without, Some("https://l/?rd=%2Fa"));
        check(&["https://", "/start"], true, "GET /a HTTP/1.0\r\nHost: shop\r\n", Some("https://shop/start?rd=%2Fa"));
    }

    #[test]
    fn cookies_stay_and_the_rest_of_the_refusal_does_not() {
        let sign_in = SignIn { url: parts(&["https://l/"]), param: "rd".to_owned(), path_only: true };
        let headers = [("set-cookie", "a=b"), ("www-authenticate", "Basic"), ("location", "/x")];
        let refusal = Refusal {
            status: 401,
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
            content_type: Some("text/html".to_owned()),
            body: Some(b"no".to_vec()),
        };
        let found = asked("GET / HTTP/1.1\r\nHost: a\r\n", false, |asked| redirect(&sign_in, asked, refusal));
        let expect = [("set-cookie", "a=b"), ("location", "https://l/?rd=%2F")];
        assert_eq!(found.headers, expect.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!((found.status, found.content_type, found.body), (302, None, None));
    }
}

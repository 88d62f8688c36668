//! The redirect of clients that the service does not know to the page on which they sign in.

use model::SignIn;

use super::Refusal;
use crate::policy::{self, RequestView};

/// What a client gets instead of this refusal: the way to the page, and the cookies of the refusal.
pub(crate) fn redirect(sign_in: &SignIn, asked: &RequestView<'_>, refusal: Refusal) -> Refusal {
    let mut headers = refusal.headers;
    headers.retain(|(name, _)| name == "set-cookie");
    headers.push(("location".to_owned(), location(sign_in, asked)));
    Refusal { status: 302, headers, content_type: None, body: None }
}

fn location(sign_in: &SignIn, asked: &RequestView<'_>) -> String {
    let SignIn { url, param, path_only } = sign_in;
    let authority = asked.head.authority.get(asked.buffer);
    let mut host = String::new();
    // What a client writes there does not end the host of the URL.
    escape(without_port(authority), b"-._~[]:", &mut host);
    let mut location = url.join(&host);
    let query = location.split_once('?').map(|(_, query)| query);
    let is_it =
        |pair: &str| pair.strip_prefix(param.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('='));
    if query.is_some_and(|query| query.split('&').any(is_it)) {
        return location;
    }
    location.push(if query.is_some() { '&' } else { '?' });
    location.push_str(param);
    location.push('=');
    if !path_only {
        escape(policy::scheme(asked).name().as_bytes(), UNRESERVED, &mut location);
        escape(b"://", UNRESERVED, &mut location);
        escape(authority, UNRESERVED, &mut location);
    }
    let uri = policy::passed_on(&asked.paths, asked.head.path.get(asked.buffer), asked.target);
    escape(uri, UNRESERVED, &mut location);
    location
}

/// RFC 3986 section 2.3, besides letters and digits.
const UNRESERVED: &[u8] = b"-._~";

/// Appends bytes, percent-encoded but for letters, digits and these.
fn escape(bytes: &[u8], kept: &[u8], out: &mut String) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    let digit = |four: u8| HEX.get(usize::from(four)).copied().unwrap_or('0');
    for byte in bytes {
        match byte.is_ascii_alphanumeric() || kept.contains(byte) {
            true => out.push(char::from(*byte)),
            false => out.extend(['%', digit(byte >> 4), digit(byte & 15)]),
        }
    }
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

    #[test]
    fn where_clients_sign_in() {
        let check = |url: &[&str], path_only: bool, line: &str, host: &str, expect: &str| {
            let url = url.iter().map(|part| (*part).to_owned()).collect();
            let sign_in = SignIn { url, param: "rd".to_owned(), path_only };
            let lines = format!("{line} HTTP/1.1\r\nHost: {host}\r\n");
            let found = asked(&lines, false, |asked| location(&sign_in, asked));
            assert_eq!(found, expect, "{line} {host}");
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

    #[test]
    fn cookies_stay_and_the_rest_of_the_refusal_does_not() {
        let sign_in = SignIn { url: vec!["https://l/".to_owned()], param: "rd".to_owned(), path_only: true };
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

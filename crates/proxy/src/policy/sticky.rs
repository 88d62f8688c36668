//! A cookie or a header that sends clients back to the endpoint that served them first.
//!
//! Its value names the endpoint by a keyed hash of its address. Nothing is stored per client: the hashes of all endpoints are computed
//! with the snapshot, and a client's value is looked up among them. Any other value is ignored. A cluster can have the values of ingress-nginx
//! instead, so that clients which come from there keep their endpoints.

mod ring;

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::hmac;
use md5::{Digest, Md5};
use model::{CookieScope, IngressNginxSessions, PathMatcher, SameSite, Sticky, StickyToken};
use wire::message::{Field, RequestHead};

use self::ring::Ring;
use crate::http::cookie;

/// Hexadecimal digits of a value: 64 bits, more than enough to distinguish the endpoints of a cluster.
const VALUE_DIGITS: usize = 16;

/// The most keys of an endpoint on a ring. Clients with the same key move together when endpoints come or go.
const KEYS_MAX: usize = 32;

/// The sessions of one cluster, for one snapshot.
pub(crate) struct StickySessions {
    token: StickyToken,
    /// The path of the cookie; `None` means that of the route.
    path: Option<String>,
    /// The text after the path in `Set-Cookie`.
    attributes: String,
    /// `Secure` is among them.
    is_always_secure: bool,
    /// What new clients of an endpoint get. Indexed by endpoint.
    values: Vec<Vec<String>>,
    /// How many new clients there were.
    given: AtomicUsize,
    /// The endpoints by their values.
    places: HashMap<String, usize>,
    /// Instead of `places`.
    ring: Option<Ring>,
    /// What a value ends with.
    backend: Option<String>,
}

impl StickySessions {
    /// `endpoints` are in the order of the cluster's state, with their weights.
    pub(crate) fn new(sticky: &Sticky, cluster: &str, endpoints: impl Iterator<Item = (SocketAddr, u32)>) -> Self {
        let mut sessions = Self {
            token: sticky.token.clone(),
            path: sticky.scope.path.clone().or_else(|| sticky.ingress_nginx.is_none().then(|| "/".to_owned())),
            attributes: attributes(&sticky.scope, sticky.ttl.map(|ttl| ttl.as_secs())),
            is_always_secure: sticky.scope.is_secure || sticky.scope.same_site == SameSite::None,
            values: Vec::new(),
            given: AtomicUsize::new(0),
            places: HashMap::new(),
            ring: None,
            backend: None,
        };
        match &sticky.ingress_nginx {
            Some(nginx) => sessions.take_over(nginx, &endpoints.collect::<Vec<_>>()),
            None => {
                let secret = sticky.secret.as_ref().map_or("", |secret| &secret.0);
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
                sessions.name(endpoints.map(|(address, _)| value(&key, cluster, address)));
            }
        }
        sessions
    }

    /// Names each endpoint by one value.
    fn name(&mut self, values: impl Iterator<Item = String>) {
        self.values = values.map(|value| vec![value]).collect();
        let places = self.values.iter().enumerate();
        self.places =
            places.flat_map(|(place, values)| values.iter().map(move |value| (value.clone(), place))).collect();
    }

    /// Reads and writes the cookies of ingress-nginx.
    fn take_over(&mut self, nginx: &IngressNginxSessions, endpoints: &[(SocketAddr, u32)]) {
        let backend = &nginx.backend;
        self.backend = Some(hex_md5(&format!("{}{backend}", hex_md5(backend))));
        if nginx.is_persistent {
            return self.name(endpoints.iter().map(|(address, _)| hex_md5(&format!("{backend}{address}"))));
        }
        // An endpoint that drains has the weight 0. There, it would have no points any more.
        let usable = endpoints.iter().enumerate().filter(|(_, (_, weight))| *weight > 0);
        let ring = Ring::new(usable.map(|(place, (address, _))| (place, address.to_string())));
        self.values = keys(&ring, endpoints.len());
        self.ring = Some(ring);
    }

    /// The index of the endpoint that served the client before, if the cluster still has it.
    pub(crate) fn endpoint(&self, head: &RequestHead, buffer: &[u8]) -> Option<usize> {
        match &self.token {
            StickyToken::Cookie(name) => {
                cookie::values(&head.fields, buffer, name.as_bytes()).find_map(|value| self.place(value))
            }
            StickyToken::Header(name) => {
                let is_it = |field: &&Field| field.name.get(buffer).eq_ignore_ascii_case(name.as_bytes());
                head.fields.iter().filter(is_it).find_map(|field| self.place(field.value.get(buffer)))
            }
        }
    }

    fn place(&self, value: &[u8]) -> Option<usize> {
        let mut value = value;
        if let Some(backend) = &self.backend {
            // Before its version 1.0, there was no backend behind the key. That of another one is the cookie of a canary.
            let (key, of) = value.split_at(memchr::memchr(b'|', value).unwrap_or(value.len()));
            if key.is_empty() || of.strip_prefix(b"|").is_some_and(|of| of != backend.as_bytes()) {
                return None;
            }
            value = key;
        }
        match &self.ring {
            Some(ring) => ring.find(value),
            None => self.places.get(std::str::from_utf8(value).ok()?).copied(),
        }
    }

    /// Whether the sessions of another cluster are in the same cookie or header.
    pub(crate) fn are_shared_with(&self, other: &Self) -> bool {
        self.token == other.token
    }

    /// The field for a client that the endpoint with this index has served on a route. `None` if the endpoint takes no new clients.
    pub(crate) fn set(&self, place: usize, is_https: bool, route: &PathMatcher) -> Option<SessionField<'_>> {
        let values = self.values.get(place)?;
        let value = match values.as_slice() {
            [] => return None,
            [one] => one,
            several => several.get(self.given.fetch_add(1, Ordering::Relaxed) % several.len())?,
        };
        Some(match &self.token {
            StickyToken::Cookie(name) => {
                let secure = if is_https || self.is_always_secure { "; Secure" } else { "" };
                let (mark, backend) = self.backend.as_ref().map_or(("", ""), |backend| ("|", backend));
                let path = self.path.as_deref().unwrap_or_else(|| path_of(route));
                let value = format!("{name}={value}{mark}{backend}; Path={path}{}{secure}", self.attributes);
                SessionField { name: "set-cookie", value: value.into_bytes().into() }
            }
            StickyToken::Header(name) => SessionField { name, value: value.as_bytes().into() },
        })
    }
}

/// The path that browsers compare with those of their requests (RFC 6265 section 5.1.4).
fn path_of(route: &PathMatcher) -> &str {
    match route {
        PathMatcher::Exact(path) | PathMatcher::Prefix(path) if !path.contains(';') => path,
        _ => "/",
    }
}

/// Scripts of the page do not need the cookie.
fn attributes(scope: &CookieScope, ttl_s: Option<u64>) -> String {
    let same_site = match scope.same_site {
        SameSite::Lax => "Lax",
        SameSite::Strict => "Strict",
        SameSite::None => "None",
    };
    let mut text = format!("; HttpOnly; SameSite={same_site}");
    if let Some(domain) = &scope.domain {
        text += &format!("; Domain={domain}");
    }
    if let Some(ttl_s) = ttl_s {
        text += &format!("; Max-Age={ttl_s}");
    }
    text
}

/// Keys for each endpoint of a ring, in the form of ingress-nginx: seconds, a process and a random number. Few endpoints have less than the most, and
/// one with none, whose points are too close to others, gives no cookies.
fn keys(ring: &Ring, endpoints: usize) -> Vec<Vec<String>> {
    let mut keys = vec![Vec::new(); endpoints];
    for number in 0..endpoints.saturating_mul(2 * KEYS_MAX) {
        let key = format!("0.0.{number}");
        if let Some(keys) = ring.find(key.as_bytes()).and_then(|place| keys.get_mut(place))
            && keys.len() < KEYS_MAX
        {
            keys.push(key);
        }
    }
    keys
}

fn hex_md5(text: &str) -> String {
    hex(&Md5::digest(text))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A field of a response that tells a client its session.
pub(crate) struct SessionField<'s> {
    /// In lower case.
    pub(crate) name: &'s str,
    pub(crate) value: Cow<'s, [u8]>,
}

impl SessionField<'_> {
    /// Whether the endpoint's field of this name is not passed on: cookies it may set as it likes.
    pub(crate) fn replaces(&self, name: &[u8]) -> bool {
        self.name != "set-cookie" && name.eq_ignore_ascii_case(self.name.as_bytes())
    }
}

/// Includes the name of the cluster, so that an address in two clusters has a value for each.
fn value(key: &hmac::Key, cluster: &str, address: SocketAddr) -> String {
    let tag = hmac::sign(key, format!("{cluster}\n{address}").as_bytes());
    let mut digits = hex(tag.as_ref());
    digits.truncate(VALUE_DIGITS);
    digits
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing;
    use super::*;

    static ROUTE: std::sync::LazyLock<PathMatcher> = std::sync::LazyLock::new(|| PathMatcher::Prefix("/shop".into()));

    fn cookie(secret: Option<&str>, ttl_s: Option<u64>, ports: &[u16]) -> StickySessions {
        let sticky = Sticky {
            ttl: ttl_s.map(Duration::from_secs),
            secret: secret.map(|secret| model::Secret(secret.to_owned())),
            ..Sticky::new(StickyToken::Cookie("shop".into()))
        };
        sessions(&sticky, ports)
    }

    fn sessions(sticky: &Sticky, ports: &[u16]) -> StickySessions {
        StickySessions::new(sticky, "v2", ports.iter().map(|port| (([10, 0, 0, 1], *port).into(), 1)))
    }

    fn text(field: Option<SessionField<'_>>) -> String {
        String::from_utf8(field.unwrap().value.into_owned()).unwrap()
    }

    #[test]
    fn the_value_is_the_same_from_every_process() {
        // A change of one of these loses every client's endpoint during an upgrade.
        let first = text(cookie(None, Some(3600), &[80, 81]).set(0, false, &ROUTE));
        assert_eq!(first, text(cookie(None, Some(3600), &[81, 80]).set(1, false, &ROUTE)));
        assert!(
            first.starts_with("shop=") && first.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600"),
            "{first}"
        );
        assert!(!first.contains("10.0.0.1") && !first.contains("Secure"));
        assert_eq!(text(cookie(None, Some(3600), &[80]).set(0, true, &ROUTE)), format!("{first}; Secure"));
        assert_ne!(text(cookie(Some("x"), Some(3600), &[80]).set(0, false, &ROUTE)), first);
        assert!(!text(cookie(None, None, &[80]).set(0, false, &ROUTE)).contains("Max-Age"));
    }

    #[test]
    fn a_client_is_known_by_what_it_was_given_and_by_nothing_else() {
        let cookie = cookie(None, None, &[80, 81]);
        let value = |place: usize| text(cookie.set(place, false, &ROUTE)).split(';').next().unwrap().to_owned();
        let check = |line: &str, expect| {
            let lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n");
            let found = testing::asked(&lines, false, |asked| cookie.endpoint(asked.head, asked.buffer));
            assert_eq!(found, expect, "{line}");
        };
        check(&format!("Cookie: a=b; {}", value(1)), Some(1));
        check(&format!("Cookie: shop=10.0.0.1:80; {}", value(0)), Some(0));
        check("Cookie: shop=0", None);
        check("Cookie: shop=", None);
        check(&format!("Cookie: x{}", value(0)), None);
        check("X: y", None);
    }

    #[test]
    fn a_header_carries_the_value_alone() {
        let sessions = sessions(&Sticky::new(StickyToken::Header("x-session".into())), &[80, 81]);
        let field = sessions.set(1, true, &ROUTE).unwrap();
        assert_eq!((field.name, field.value.len()), ("x-session", VALUE_DIGITS));
        assert!(field.replaces(b"X-Session") && !field.replaces(b"x-other"));
        assert!(!cookie(None, None, &[80]).set(0, false, &ROUTE).unwrap().replaces(b"set-cookie"));
        let value = String::from_utf8(field.value.into_owned()).unwrap();
        let check = |line: &str, expect| {
            let lines = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n");
            let found = testing::asked(&lines, false, |asked| sessions.endpoint(asked.head, asked.buffer));
            assert_eq!(found, expect, "{line}");
        };
        check(&format!("X-Session: {value}"), Some(1));
        check(&format!("X-Session: {value}0"), None);
        check(&format!("Cookie: x-session={value}"), None);
    }

    #[test]
    fn browsers_are_told_the_scope_of_the_cookie() {
        let check = |scope: CookieScope, is_https, expect: &str| {
            let sticky = Sticky { scope, ..Sticky::new(StickyToken::Cookie("shop".into())) };
            let field = text(sessions(&sticky, &[80]).set(0, is_https, &ROUTE));
            assert_eq!(field.split_once(';').unwrap().1, expect);
        };
        let scope = CookieScope::default();
        let strict = CookieScope { path: Some("/a".into()), same_site: SameSite::Strict, ..scope.clone() };
        check(strict, false, " Path=/a; HttpOnly; SameSite=Strict");
        let below = CookieScope { domain: Some("a.test".into()), is_secure: true, ..scope.clone() };
        check(below, false, " Path=/; HttpOnly; SameSite=Lax; Domain=a.test; Secure");
        check(CookieScope { same_site: SameSite::None, ..scope }, false, " Path=/; HttpOnly; SameSite=None; Secure");
    }

    fn nginx(is_persistent: bool) -> Sticky {
        let nginx = IngressNginxSessions { backend: "default-shop-80".into(), is_persistent };
        Sticky { ingress_nginx: Some(nginx), ..Sticky::new(StickyToken::Cookie("route".into())) }
    }

    fn endpoint(sessions: &StickySessions, value: &str) -> Option<usize> {
        let lines = format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: route={value}\r\n");
        testing::asked(&lines, false, |asked| sessions.endpoint(asked.head, asked.buffer))
    }

    /// What ingress-nginx writes behind the keys of this backend: `md5hex(md5hex(NAME) + NAME)`, by md5sum.
    const BACKEND: &str = "a630d342a7253deaa8858cf51930c012";

    #[test]
    fn cookies_of_ingress_nginx_keep_their_endpoints() {
        let endpoints = ["10.0.0.1:80", "10.0.0.2:80", "10.244.3.17:8080", "[fd00::5]:8080", "10.0.0.9:9000"];
        let parsed = endpoints.iter().map(|address| (address.parse().unwrap(), 1));
        let balanced = StickySessions::new(&nginx(false), "any", parsed);
        // Keys of the test of the ring.
        assert_eq!(endpoint(&balanced, &format!("1700007919.623.31.349780|{BACKEND}")), Some(1));
        assert_eq!(endpoint(&balanced, &format!("1700269263.123.64.892531|{BACKEND}")), Some(2));
        assert_eq!(endpoint(&balanced, "1700269263.123.64.892531"), Some(2));
        assert_eq!(endpoint(&balanced, "1700269263.123.64.892531|a630"), None);
        assert_eq!(endpoint(&balanced, &format!("|{BACKEND}")), None);
        // What is given here leads back here, and the key to the same endpoint there.
        for place in 0..endpoints.len() {
            for _ in 0..2 * KEYS_MAX {
                let field = text(balanced.set(place, false, &ROUTE));
                let value = field.strip_prefix("route=").unwrap().split(';').next().unwrap();
                assert!(value.ends_with(&format!("|{BACKEND}")), "{value}");
                assert_eq!(endpoint(&balanced, value), Some(place), "{value}");
            }
        }
    }

    #[test]
    fn an_endpoint_that_drains_has_no_point_on_the_ring() {
        let endpoints = [("10.0.0.1:80", 0), ("10.0.0.2:80", 1)];
        let sessions = StickySessions::new(
            &nginx(false),
            "any",
            endpoints.map(|(a, weight)| (a.parse().unwrap(), weight)).into_iter(),
        );
        assert!((0..50).all(|key| endpoint(&sessions, &key.to_string()) == Some(1)));
        assert!(sessions.set(0, false, &ROUTE).is_none());
    }

    #[test]
    fn persistent_cookies_of_ingress_nginx_name_their_endpoint() {
        let sessions = sessions(&nginx(true), &[80, 81]);
        // printf 'default-shop-8010.0.0.1:81' | md5sum
        let value = format!("{}|{BACKEND}", "4da4aaa01756b6b8f9f2d5c30239bfec");
        assert_eq!(endpoint(&sessions, &value), Some(1));
        assert!(text(sessions.set(1, false, &ROUTE)).starts_with(&format!("route={value}; Path=/shop; ")));
        let of = |route: &PathMatcher| text(sessions.set(1, false, route)).split("; ").nth(1).unwrap().to_owned();
        assert_eq!(of(&PathMatcher::Exact("/a".into())), "Path=/a");
        assert_eq!(of(&PathMatcher::Prefix("/a;b".into())), "Path=/");
        assert_eq!(endpoint(&sessions, "1700269263.123.64.892531"), None);
    }
}

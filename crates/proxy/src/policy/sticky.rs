//! A cookie or a header that sends clients back to the endpoint that served them first.
//!
//! Its value names the endpoint by a keyed hash of its address. Nothing is stored per client: the hashes of all endpoints are computed
//! with the snapshot, and a client's value is looked up among them. Any other value is ignored.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::SocketAddr;

use aws_lc_rs::hmac;
use model::{Sticky, StickyToken};
use wire::message::{Field, RequestHead};

use crate::http::cookie;

/// Hexadecimal digits of a value: 64 bits, more than enough to distinguish the endpoints of a cluster.
const VALUE_DIGITS: usize = 16;

/// The sessions of one cluster, for one snapshot.
pub(crate) struct StickySessions {
    token: StickyToken,
    /// The text after the value in `Set-Cookie`.
    attributes: String,
    /// Indexed by endpoint.
    values: Vec<String>,
    places: HashMap<String, usize>,
}

impl StickySessions {
    /// `endpoints` are in the order of the cluster's state.
    pub(crate) fn new(sticky: &Sticky, cluster: &str, endpoints: impl Iterator<Item = SocketAddr>) -> Self {
        let secret = sticky.secret.as_deref().unwrap_or_default();
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let values: Vec<String> = endpoints.map(|address| value(&key, cluster, address)).collect();
        // Scripts of the page do not need it, and neither do forms of other sites (RFC 6265bis section 5.6.7).
        let mut attributes = "; Path=/; HttpOnly; SameSite=Lax".to_owned();
        if let Some(ttl) = sticky.ttl {
            attributes += &format!("; Max-Age={}", ttl.as_secs());
        }
        let places = values.iter().enumerate().map(|(place, value)| (value.clone(), place)).collect();
        Self { token: sticky.token.clone(), attributes, values, places }
    }

    /// The index of the endpoint that served the client before, if the cluster still has it.
    pub(crate) fn endpoint(&self, head: &RequestHead, buffer: &[u8]) -> Option<usize> {
        let place = |value: &[u8]| self.places.get(std::str::from_utf8(value).ok()?).copied();
        match &self.token {
            StickyToken::Cookie(name) => cookie::values(&head.fields, buffer, name.as_bytes()).find_map(place),
            StickyToken::Header(name) => {
                let is_it = |field: &&Field| field.name.get(buffer).eq_ignore_ascii_case(name.as_bytes());
                head.fields.iter().filter(is_it).find_map(|field| place(field.value.get(buffer)))
            }
        }
    }

    /// Whether the sessions of another cluster are in the same cookie or header.
    pub(crate) fn are_shared_with(&self, other: &Self) -> bool {
        self.token == other.token
    }

    /// The field for a client that the endpoint with this index has served.
    pub(crate) fn set(&self, place: usize, is_https: bool) -> Option<SessionField<'_>> {
        let value = self.values.get(place)?;
        Some(match &self.token {
            StickyToken::Cookie(name) => {
                let secure = if is_https { "; Secure" } else { "" };
                let value = format!("{name}={value}{}{secure}", self.attributes);
                SessionField { name: "set-cookie", value: value.into_bytes().into() }
            }
            StickyToken::Header(name) => SessionField { name, value: value.as_bytes().into() },
        })
    }
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
    let mut digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    digits.truncate(VALUE_DIGITS);
    digits
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::testing;
    use super::*;

    fn cookie(secret: Option<&str>, ttl_s: Option<u64>, ports: &[u16]) -> StickySessions {
        let sticky = Sticky {
            token: StickyToken::Cookie("shop".into()),
            ttl: ttl_s.map(Duration::from_secs),
            secret: secret.map(str::to_owned),
        };
        StickySessions::new(&sticky, "v2", ports.iter().map(|port| ([10, 0, 0, 1], *port).into()))
    }

    fn text(field: Option<SessionField<'_>>) -> String {
        String::from_utf8(field.unwrap().value.into_owned()).unwrap()
    }

    #[test]
    fn the_value_is_the_same_from_every_process() {
        // A change of one of these loses every client's endpoint during an upgrade.
        let first = text(cookie(None, Some(3600), &[80, 81]).set(0, false));
        assert_eq!(first, text(cookie(None, Some(3600), &[81, 80]).set(1, false)));
        assert!(
            first.starts_with("shop=") && first.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=3600"),
            "{first}"
        );
        assert!(!first.contains("10.0.0.1") && !first.contains("Secure"));
        assert_eq!(text(cookie(None, Some(3600), &[80]).set(0, true)), format!("{first}; Secure"));
        assert_ne!(text(cookie(Some("x"), Some(3600), &[80]).set(0, false)), first);
        assert!(!text(cookie(None, None, &[80]).set(0, false)).contains("Max-Age"));
    }

    #[test]
    fn a_client_is_known_by_what_it_was_given_and_by_nothing_else() {
        let cookie = cookie(None, None, &[80, 81]);
        let value = |place: usize| text(cookie.set(place, false)).split(';').next().unwrap().to_owned();
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
        let sticky = Sticky { token: StickyToken::Header("x-session".into()), ttl: None, secret: None };
        let sessions =
            StickySessions::new(&sticky, "v2", [80, 81].into_iter().map(|port| ([10, 0, 0, 1], port).into()));
        let field = sessions.set(1, true).unwrap();
        assert_eq!((field.name, field.value.len()), ("x-session", VALUE_DIGITS));
        assert!(field.replaces(b"X-Session") && !field.replaces(b"x-other"));
        assert!(!cookie(None, None, &[80]).set(0, false).unwrap().replaces(b"set-cookie"));
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
}

//! A cookie that sends clients back to the endpoint that served them first.
//!
//! The cookie names the endpoint by a keyed hash of its address. Nothing is stored per client: the hashes of all endpoints are computed
//! with the snapshot, and a client's value is looked up among them. Any other value is ignored.

use std::collections::HashMap;
use std::net::SocketAddr;

use aws_lc_rs::hmac;
use model::Sticky;
use wire::message::RequestHead;

use crate::http::cookie;

/// Hexadecimal digits of a value: 64 bits, more than enough to distinguish the endpoints of a cluster.
const VALUE_DIGITS: usize = 16;

/// The cookie of one cluster, for one snapshot.
pub(crate) struct StickyCookie {
    name: String,
    /// The text after the value in `Set-Cookie`.
    attributes: String,
    /// Indexed by endpoint.
    values: Vec<String>,
    places: HashMap<String, usize>,
}

impl StickyCookie {
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
        Self { name: sticky.cookie.clone(), attributes, values, places }
    }

    /// The index of the endpoint that served the client before, if the cluster still has it.
    pub(crate) fn endpoint(&self, head: &RequestHead, buffer: &[u8]) -> Option<usize> {
        let mut values = cookie::values(&head.fields, buffer, self.name.as_bytes());
        values.find_map(|value| self.places.get(std::str::from_utf8(value).ok()?).copied())
    }

    /// The value of `Set-Cookie` for a client that the endpoint with this index has served.
    pub(crate) fn set(&self, place: usize, is_https: bool) -> Option<Vec<u8>> {
        let secure = if is_https { "; Secure" } else { "" };
        Some(format!("{}={}{}{secure}", self.name, self.values.get(place)?, self.attributes).into_bytes())
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

    fn cookie(secret: Option<&str>, ttl_s: Option<u64>, ports: &[u16]) -> StickyCookie {
        let sticky =
            Sticky { cookie: "shop".into(), ttl: ttl_s.map(Duration::from_secs), secret: secret.map(str::to_owned) };
        StickyCookie::new(&sticky, "v2", ports.iter().map(|port| ([10, 0, 0, 1], *port).into()))
    }

    fn text(value: Option<Vec<u8>>) -> String {
        String::from_utf8(value.unwrap()).unwrap()
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
}

//! Session cookies: `affinity` and what says more about it.

use serde_json::{Map, Value, json};

use super::{Reading, Verdict};

/// How a session cookie leads to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// By a consistent hash.
    Balanced,
    /// By its address.
    Persistent,
}

impl Reading<'_> {
    /// Cookies that lead clients back to their endpoints.
    pub(super) fn session(&mut self) {
        const OF_COOKIES: [&str; 10] = [
            "affinity-mode",
            "session-cookie-name",
            "session-cookie-path",
            "session-cookie-domain",
            "session-cookie-samesite",
            "session-cookie-secure",
            "session-cookie-max-age",
            "session-cookie-expires",
            "session-cookie-change-on-failure",
            "session-cookie-conditional-samesite-none",
        ];
        if self.text("affinity").is_none() {
            return self.idle(&OF_COOKIES, "without affinity, it has no effect");
        }
        let is_persistent = self.text("affinity-mode") == Some("persistent");
        self.affinity = Some(if is_persistent { Affinity::Persistent } else { Affinity::Balanced });
        let mut sticky = Map::new();
        sticky.insert("cookie".to_owned(), json!(self.text("session-cookie-name").unwrap_or("INGRESSCOOKIE")));
        // A value that no cookie can have is left out, as browsers leave it out.
        let is_path =
            |path: &&str| path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && !b"?#;".contains(&b));
        let is_host =
            |host: &&str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
        let path = self.text("session-cookie-path").map(|path| Some(path).filter(is_path).map(str::to_owned));
        let domain = self.text("session-cookie-domain").map(|domain| domain.trim_start_matches('.'));
        let domain = domain.map(|domain| Some(domain).filter(is_host).map(str::to_owned));
        for (key, field, value) in [("session-cookie-path", "path", path), ("session-cookie-domain", "domain", domain)]
        {
            match value {
                Some(Some(value)) => drop(sticky.insert(field.to_owned(), json!(value))),
                Some(None) => self.tell(key, Verdict::Refused, "no cookie can have this value"),
                None => {}
            }
        }
        if let Some(same_site) = self.text("session-cookie-samesite") {
            sticky.insert("sameSite".to_owned(), json!(same_site.to_lowercase()));
        }
        if self.bool("session-cookie-secure", false) {
            sticky.insert("secure".to_owned(), json!(true));
        }
        let ttl = self.int("session-cookie-max-age").or_else(|| self.int("session-cookie-expires"));
        if let Some(seconds) = ttl.filter(|seconds| *seconds > 0) {
            sticky.insert("ttl".to_owned(), json!(format!("{}s", seconds.min(31_536_000 * 10))));
        }
        self.cluster.insert("sticky".to_owned(), Value::Object(sticky));
    }
}

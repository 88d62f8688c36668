//! Who may use a route: JSON Web Tokens (RFC 7519).

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::KeyPlace;

/// Tokens of issuers whose keys are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtAuth {
    /// For the `WWW-Authenticate` of a refusal.
    pub realm: String,
    /// Where a request may have its token. Empty means `Authorization: Bearer`.
    pub places: Vec<KeyPlace>,
    /// The values of `iss` that are accepted. At least one.
    pub issuers: Vec<String>,
    /// The values of `aud` of which a token must have one; `None` means that `aud` does not matter.
    pub audiences: Option<Vec<String>>,
    /// The algorithms that are accepted; `None` means those that the keys name. Only keys that name no algorithm are affected otherwise.
    pub algorithms: Option<Vec<JwtAlgorithm>>,
    /// How much the clocks may differ.
    pub leeway: Duration,
    /// Whether a token without `exp` is refused.
    pub require_exp: bool,
    /// Whether a request without a token passes.
    pub optional: bool,
    /// Whether the endpoint gets the token, too.
    pub forward: bool,
    /// Headers for the endpoint, in lower case, each with the claim that it has ([`claim_path`]).
    pub claim_headers: Vec<(String, String)>,
    /// The keys of the issuers.
    pub jwks: Jwks,
}

/// Where a set of keys (RFC 7517) comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Jwks {
    /// It is fetched, and again when it may have changed.
    Url(JwksUrl),
    /// A file.
    File(PathBuf),
    /// The configuration has the text.
    Inline(String),
}

/// The URL of a set of keys.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JwksUrl {
    /// Whether it begins with `https`.
    pub is_https: bool,
    /// A name, or an address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path with the query.
    pub path: String,
    /// The roots that are trusted for it; `None` means those of the host.
    pub ca: Option<PathBuf>,
}

impl JwksUrl {
    /// The host as a URL has it.
    pub fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let default = if self.is_https { 443 } else { 80 };
        if self.port == default { host } else { format!("{host}:{}", self.port) }
    }
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.is_https { "https" } else { "http" }, self.authority(), self.path)
    }
}

impl fmt::Display for Jwks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => url.fmt(f),
            Self::File(path) => path.display().fmt(f),
            Self::Inline(_) => f.write_str("inline"),
        }
    }
}

/// The names that lead to a claim. A text that begins with `/` is a JSON pointer to a member of nested objects (RFC 6901), any other is the name
/// of the claim.
pub fn claim_path(text: &str) -> Vec<String> {
    match text.strip_prefix('/') {
        Some(pointer) => pointer.split('/').map(|name| name.replace("~1", "/").replace("~0", "~")).collect(),
        None => vec![text.to_owned()],
    }
}

macro_rules! algorithms {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// An algorithm of signatures (RFC 7518 section 3.1, RFC 8037). None of them uses a shared secret.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum JwtAlgorithm {
            $(#[doc = $doc] $variant,)*
        }

        impl JwtAlgorithm {
            /// All of them, each with its name and what it is.
            pub const ALL: &[(&str, JwtAlgorithm, &str)] = &[$(($name, Self::$variant, $doc),)*];
        }
    };
}

algorithms! {
    Rs256 "RS256" "RSA (PKCS #1 1.5) with SHA-256",
    Rs384 "RS384" "RSA (PKCS #1 1.5) with SHA-384",
    Rs512 "RS512" "RSA (PKCS #1 1.5) with SHA-512",
    Ps256 "PS256" "RSA (PSS) with SHA-256",
    Ps384 "PS384" "RSA (PSS) with SHA-384",
    Ps512 "PS512" "RSA (PSS) with SHA-512",
    Es256 "ES256" "ECDSA over P-256 with SHA-256",
    Es384 "ES384" "ECDSA over P-384 with SHA-384",
    Es512 "ES512" "ECDSA over P-521 with SHA-512",
    EdDsa "EdDSA" "Ed25519",
}

impl JwtAlgorithm {
    /// The algorithm with this name. Case matters.
    pub fn named(name: &str) -> Option<Self> {
        // RFC 9864 section 2.2 has a second name for it.
        if name == "Ed25519" {
            return Some(Self::EdDsa);
        }
        Self::ALL.iter().find(|(known, ..)| *known == name).map(|(_, algorithm, _)| *algorithm)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, known, _)| *known == self).map_or("", |(name, ..)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_names_or_pointers() {
        let check = |text: &str, expect: &[&str]| assert_eq!(claim_path(text), expect, "{text}");
        check("sub", &["sub"]);
        check("https://example.com/roles", &["https://example.com/roles"]);
        check("a.b", &["a.b"]);
        check("/realm_access/roles", &["realm_access", "roles"]);
        check("/a~1b/~01", &["a/b", "~1"]);
        check("/", &[""]);
    }

    #[test]
    fn algorithms_have_names() {
        for (name, algorithm, _) in JwtAlgorithm::ALL {
            assert_eq!((JwtAlgorithm::named(name), algorithm.name()), (Some(*algorithm), *name));
        }
        for name in ["none", "NONE", "HS256", "HS512", "rs256", "", "eddsa", "ES256K"] {
            assert_eq!(JwtAlgorithm::named(name), None, "{name}");
        }
        assert_eq!(JwtAlgorithm::named("Ed25519"), Some(JwtAlgorithm::EdDsa));
    }

    #[test]
    fn urls_are_shown_as_they_were_written() {
        let check = |is_https, host: &str, port, expect: &str| {
            let url = JwksUrl { is_https, host: host.into(), port, path: "/keys?a=b".into(), ca: None };
            assert_eq!(url.to_string(), expect);
        };
        check(true, "a.test", 443, "https://a.test/keys?a=b");
        check(true, "a.test", 80, "https://a.test:80/keys?a=b");
        check(false, "::1", 8080, "http://[::1]:8080/keys?a=b");
    }
}

//! The values in authentication by tokens: claims, key sets and their URLs.

use model::{JwkSet, JwksUrl};

use super::http::Text;
use super::policy::PlainHost;
use crate::define::Form;
use crate::diagnostic::{Wrong, quoted};
use crate::read::Formed;

/// Bytes of the name of a claim.
const CLAIM_BYTES_MAX: usize = 256;

/// Nested objects through which a pointer may lead.
const CLAIM_DEPTH_MAX: usize = 8;

/// Bytes of path and query of a URL.
const PATH_BYTES_MAX: usize = 1024;

/// The name of a claim, or a pointer to a nested one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimName(pub String);

/// The text of a key set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksText(pub String);

/// The URL of a key set, without `ca`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksUrlText(pub JwksUrl);

impl Formed for ClaimName {
    const FORM: Form = Form { noun: "a claim", example: "/realm_access/roles", pattern: Some("^.{1,256}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Text(name) = Text::parse(text)?;
        let wrong = || Wrong::new(format!("{} is not a claim", quoted(text)));
        if name.is_empty() || name.len() > CLAIM_BYTES_MAX {
            return Err(wrong().hint(format!("write its name, of 1 to {CLAIM_BYTES_MAX} bytes")));
        }
        let Some(pointer) = name.strip_prefix('/') else { return Ok(Self(name)) };
        // RFC 6901 section 3.
        if pointer.split('~').skip(1).any(|behind| !behind.starts_with(['0', '1'])) {
            return Err(wrong().hint("in a pointer, `~0` stands for `~` and `~1` for `/`"));
        }
        if pointer.split('/').count() > CLAIM_DEPTH_MAX {
            return Err(wrong().hint(format!("a pointer has at most {CLAIM_DEPTH_MAX} names")));
        }
        Ok(Self(name))
    }
}

impl Formed for JwksText {
    const FORM: Form = Form { noun: "a key set", example: r#"{"keys": [...]}"#, pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        match JwkSet::parse(text.as_bytes()) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(why) => Err(Wrong::new(why).hint("write what the issuer publishes at its jwks_uri")),
        }
    }
}

impl Formed for JwksUrlText {
    const FORM: Form = Form {
        noun: "the URL of a key set",
        example: "https://login.example.com/.well-known/jwks.json",
        pattern: Some(r"^https?://[^/?#\s@]+(/[^#\s]*)?$"),
    };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = || Wrong::new(format!("{} is not the URL of a key set", quoted(text)));
        let (is_https, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(wrong().hint("a URL begins with https:// or http://")),
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(wrong().hint("remove what stands before `@`: a set of public keys needs no password"));
        }
        if path.contains('#') || !path.bytes().all(|byte| byte.is_ascii_graphic()) || path.len() > PATH_BYTES_MAX {
            return Err(wrong().hint(format!(
                "path and query have up to {PATH_BYTES_MAX} visible characters of ASCII; write others as %XX, and no `#`"
            )));
        }
        let (host, port) = match authority.rsplit_once(':') {
            // A colon within brackets is part of the address.
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (authority, None),
        };
        let port = match port.map(|port| (port, port.parse::<u16>())) {
            None => {
                if is_https {
                    443
                } else {
                    80
                }
            }
            Some((port, Ok(number))) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => number,
            Some(_) => return Err(wrong().hint("a port is a number from 1 to 65535")),
        };
        let PlainHost(host) = PlainHost::parse(host)?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self(JwksUrl { is_https, host, port, path, ca: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls() {
        let check = |text: &str, expect: Result<&str, &str>| match (JwksUrlText::parse(text), expect) {
            (Ok(url), Ok(expect)) => assert_eq!(url.0.to_string(), expect),
            (Err(wrong), Err(part)) => {
                let told = format!("{}; {}", wrong.message, wrong.hint.unwrap_or_default());
                assert!(told.contains(part), "{told}");
            }
            (found, _) => panic!("{text}: {found:?}"),
        };
        check("https://a.test", Ok("https://a.test/"));
        check("https://A.test:8443/keys?v=2", Ok("https://a.test:8443/keys?v=2"));
        check("http://[::1]:80?x", Ok("http://[::1]/?x"));
        check("http://127.0.0.1:8080/", Ok("http://127.0.0.1:8080/"));
        check("a.test/keys", Err("begins with https://"));
        check("ftp://a.test/keys", Err("begins with https://"));
        check("https://joe:secret@a.test/keys", Err("before `@`"));
        check("https://a.test/keys#x", Err("no `#`"));
        check("https://a.test/ä", Err("as %XX"));
        check("https://a.test:0/", Err("from 1 to 65535"));
        check("https://*.a.test/", Err("many hosts"));
        check("https:///keys", Err("host"));
    }

    #[test]
    fn claims() {
        let check = |text: &str, is_good: bool| assert_eq!(ClaimName::parse(text).is_ok(), is_good, "{text}");
        check("sub", true);
        check("https://example.com/roles", true);
        check("/realm_access/roles", true);
        check("/a~1b/~0", true);
        check("/a~2b", false);
        check("/a~", false);
        check("", false);
        check("a\nb", false);
        check("/a/b/c/d/e/f/g/h/i", false);
        check(&"a".repeat(257), false);
    }
}

//! The prefix of the annotations, which a flag of ingress-nginx changes.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The prefix of the annotations, unless the flag says otherwise.
pub const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// What the names of all annotations begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix(Cow<'static, str>);

impl Default for Prefix {
    fn default() -> Self {
        Self(Cow::Borrowed(PREFIX))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim_end_matches('/'))
    }
}

impl FromStr for Prefix {
    type Err = String;

    /// Reads it as the flag has it, without the slash.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        match (1..=253).contains(&text.len()) && text.bytes().all(is_part) {
            true => Ok(Self(Cow::Owned(format!("{text}/")))),
            false => Err("expected a DNS name such as nginx.ingress.kubernetes.io, without a slash".to_owned()),
        }
    }
}

impl Prefix {
    /// The name of an annotation without the prefix; `None` if it has another one.
    pub fn name_of<'k>(&self, annotation: &'k str) -> Option<&'k str> {
        annotation.strip_prefix(&*self.0)
    }

    /// The annotation with this name.
    pub fn annotation(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let prefix: Prefix = "foo.io".parse().unwrap();
        assert_eq!(prefix.annotation("auth-type"), "foo.io/auth-type");
        assert_eq!(prefix.name_of("foo.io/auth-type"), Some("auth-type"));
        assert_eq!(prefix.name_of("foo.iox/auth-type"), None);
        assert_eq!(prefix.to_string(), "foo.io");
        assert_eq!("nginx.ingress.kubernetes.io".parse(), Ok(Prefix::default()));
        for wrong in ["", "foo.io/", "$(PREFIX)", &"a".repeat(254)] {
            assert!(wrong.parse::<Prefix>().is_err(), "{wrong}");
        }
    }
}

//! Names of users and clients, and the secrets that prove them. No message contains a secret.

use model::{PasswordHash, Secret};

use super::Text;
use crate::define::{Form, Kind};
use crate::diagnostic::{Report, Wrong, quoted};
use crate::read::{Formed, Read, unexpected};
use crate::yaml::{Node, Value};

/// Bytes of the name of a user or a client.
const NAME_BYTES_MAX: usize = 256;

/// The name of a user or a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserName(pub String);

/// What browsers show when they ask for a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Realm(pub String);

/// An API key.
#[derive(Debug)]
pub struct KeyText(pub Secret);

/// The hash of a password.
#[derive(Debug)]
pub struct HashText(pub PasswordHash);

impl Formed for UserName {
    const FORM: Form = Form { noun: "a name", example: "joe", pattern: Some("^[^:]{1,256}$") };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let Text(name) = Text::parse(text)?;
        let is_name = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(':') && name.trim() == name;
        if !is_name {
            let hint = format!("a name has 1 to {NAME_BYTES_MAX} bytes, no `:`, and no space at either end");
            // Without a space behind the colon, the secret is a part of the name.
            let (shown, _) = text.split_once(':').unwrap_or((text, ""));
            let rest = if shown.len() < text.len() { " with a `:` behind it" } else { "" };
            return Err(Wrong::new(format!("{}{rest} is not a name", quoted(shown))).hint(hint));
        }
        Ok(Self(name))
    }
}

impl Formed for Realm {
    const FORM: Form = Form { noun: "text", example: "staff", pattern: None };

    fn parse(text: &str) -> Result<Self, Wrong> {
        let is_plain = |byte: u8| (byte == b' ' || byte.is_ascii_graphic()) && !matches!(byte, b'"' | b'\\');
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.bytes().all(is_plain) {
            let hint = format!("use 1 to {NAME_BYTES_MAX} characters of ASCII without quotes and backslashes");
            return Err(Wrong::new(format!("{} is not a realm", quoted(text))).hint(hint));
        }
        Ok(Self(text.to_owned()))
    }
}

impl Read for KeyText {
    fn kind() -> Kind {
        Kind::Text(Form { noun: "a key", example: "kHq8Zl0nWv2rT5yB", pattern: Some("^[!-~]{1,1024}$") })
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        let text = secret(node, subject, &Self::kind(), report)?;
        match Secret::api_key(text) {
            Ok(key) => Some(Self(key)),
            Err(message) => {
                report.add(node.location, Wrong::new(format!("{subject}: {message}")));
                None
            }
        }
    }
}

impl Read for HashText {
    fn kind() -> Kind {
        let example = "$2y$10$7CDMF7GkYXqXhwAzVdY7AOjhVmlAChI/Z18lCVrTV7SyZlhQ1VGsy";
        Kind::Text(Form {
            noun: "the hash of a password",
            example,
            pattern: Some("^(\\$(2[aby]|apr1|1|5|6|argon2(id|i|d))\\$|\\{(SHA|SSHA|PLAIN)\\}).+$"),
        })
    }

    fn read(node: &Node, subject: &str, report: &mut Report) -> Option<Self> {
        let text = secret(node, subject, &Self::kind(), report)?;
        match PasswordHash::parse(text) {
            Ok(hash) => Some(Self(hash)),
            Err(message) => {
                let hint = "`htpasswd -nB NAME` makes one of bcrypt";
                report.add(node.location, Wrong::new(format!("{subject}: {message}")).hint(hint));
                None
            }
        }
    }
}

/// The text of a scalar that no message may show.
fn secret<'n>(node: &'n Node, subject: &str, kind: &Kind, report: &mut Report) -> Option<&'n str> {
    let Value::Scalar { text, .. } = &node.value else {
        report.add(node.location, unexpected(subject, kind, &node.value));
        return None;
    };
    report.hide(text);
    Some(text)
}

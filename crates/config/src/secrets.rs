//! The lines of a file that no excerpt shows, because a secret is in them, or may be: what has a secret may also be misspelt.

use crate::diagnostic::{Report, nearest};
use crate::yaml::{self, Node, Value};

/// What a node may contain.
#[derive(Clone, Copy)]
enum Place {
    /// No secret, but perhaps an `auth`.
    Outside,
    /// Keys of authentication.
    Auth,
    /// Keys of a collector.
    Collector,
    Secret,
}

/// Keys of authentication with values that are no secrets.
const OPEN: [&str; 11] = [
    "realm",
    "file",
    "user_header",
    "forward",
    "header",
    "query",
    "cookie",
    "client_header",
    "hosts",
    "token_file",
    "user_file",
];

/// Makes the errors in this file not show the lines with secrets. Called only if there are errors: comparing each key with those that were
/// perhaps meant costs a quarter of reading the file.
pub fn hide_lines(text: &str, report: &mut Report) {
    match yaml::load(text, &mut Report::default()) {
        Some(root) => hide(&root, Place::Outside, report),
        // It is not YAML, so nobody knows which lines these are.
        None if ["users:", "keys:", "tokens:"].iter().any(|key| text.contains(key)) => report.hide_all(),
        None if text.contains("headers:") && ["tracing:", "otlp:"].iter().any(|key| text.contains(key)) => {
            report.hide_all();
        }
        None => {}
    }
}

/// The depth of a tree is limited, and so is the number of its nodes, each counted as often as an alias names it.
fn hide(node: &Node, place: Place, report: &mut Report) {
    match &node.value {
        Value::Null => {}
        Value::Scalar { text, .. } => {
            if matches!(place, Place::Secret) || matches!(place, Place::Auth) && text != "off" {
                report.hide_line(node.location.line);
            }
        }
        Value::List(items) => items.iter().for_each(|item| hide(item, place, report)),
        Value::Map(pairs) => {
            for (key, value) in pairs {
                let name = if let Value::Scalar { text, .. } = &key.value { text.as_str() } else { "" };
                let below = match place {
                    Place::Secret => Place::Secret,
                    Place::Auth if OPEN.contains(&name) => Place::Outside,
                    Place::Auth if matches!(name, "basic" | "api_key" | "read" | "act") => Place::Auth,
                    // Public keys, and what is in every token.
                    Place::Auth if name == "jwt" => Place::Outside,
                    // `users`, `keys`, and what was meant to be one of them.
                    Place::Auth => Place::Secret,
                    // An inline key set may be the wrong one, with private keys.
                    Place::Outside if matches!(name, "users" | "keys" | "tokens" | "inline") => Place::Secret,
                    Place::Collector if nearest(name, ["headers"]).is_some() => Place::Secret,
                    Place::Collector => Place::Outside,
                    Place::Outside if matches!(name, "tracing" | "otlp") => Place::Collector,
                    Place::Outside if nearest(name, ["auth", "basic", "api_key", "admin_access"]).is_some() => {
                        Place::Auth
                    }
                    Place::Outside => Place::Outside,
                };
                if matches!(place, Place::Secret) {
                    report.hide_line(key.location.line);
                }
                hide(value, below, report);
            }
        }
    }
}

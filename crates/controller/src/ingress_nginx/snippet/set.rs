//! `set` of a snippet: a text for a variable, which its other directives may name.

use super::words::Directive;

/// How variables begin that ingress-nginx or nginx itself reads.
const READ_BEGIN: [&str; 11] =
    ["arg_", "balancer_", "best_", "cookie_", "http_", "limit_", "pass_", "proxy_", "request_", "sent_", "ssl_"];

/// Others of them.
const READ: [&str; 14] = [
    "args",
    "force_ssl_redirect",
    "full_x_forwarded_for",
    "host",
    "ingress_name",
    "is_args",
    "location_path",
    "namespace",
    "remote_addr",
    "req_id",
    "scheme",
    "service_name",
    "service_port",
    "the_real_ip",
];

/// The directives with the texts of their variables, and without `set`.
///
/// # Errors
/// Returns the `set` that is not understood: one with a variable in its text, one of a variable that others read, one that counts for some requests
/// alone, or one whose variable is named in a block.
pub(super) fn constants(directives: Vec<Directive>) -> Result<Vec<Directive>, String> {
    let mut known: Vec<(String, String)> = Vec::new();
    let mut rest = Vec::new();
    for directive in directives {
        if directive.name() != "set" || directive.block.is_some() {
            rest.push(directive);
            continue;
        }
        // nginx takes these in the order in which they are written, and one of the others may end it.
        let ends = |other: &Directive| ["if", "return", "rewrite", "break"].contains(&other.name());
        let set = match directive.words().as_slice() {
            [_, name, text] if !text.contains('$') && !rest.iter().any(ends) => {
                let name = name.strip_prefix('$').filter(|name| is_own(name));
                name.map(|name| (name.to_owned(), (*text).to_owned()))
            }
            _ => None,
        };
        let set = set.ok_or_else(|| directive.words.join(" "))?;
        if known.iter().any(|(name, _)| *name == set.0) {
            return Err(directive.words.join(" "));
        }
        known.push(set);
    }
    for (name, text) in &known {
        let has = |directive: &Directive| directive.words.iter().any(|word| replaced(word, name, "").is_some());
        if let Some(block) =
            rest.iter().find(|directive| directive.block.is_some() && directive.all().into_iter().any(has))
        {
            return Err(format!("${name} in {}", block.name()));
        }
        for word in rest.iter_mut().flat_map(|directive| &mut directive.words) {
            if let Some(new) = replaced(word, name, text) {
                *word = new;
            }
        }
    }
    Ok(rest)
}

/// Whether a variable is one that nobody else reads.
fn is_own(name: &str) -> bool {
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name && !READ.contains(&name) && !READ_BEGIN.iter().any(|begin| name.starts_with(begin))
}

/// A word with this text in place of a variable; `None` if the variable is not in it.
fn replaced(word: &str, name: &str, text: &str) -> Option<String> {
    let (mut out, mut rest, mut is_there) = (String::new(), word, false);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let braced = after.strip_prefix('{').and_then(|after| after.strip_prefix(name)?.strip_prefix('}'));
        let bare = after
            .strip_prefix(name)
            .filter(|tail| !tail.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_'));
        match braced.or(bare) {
            Some(tail) => {
                is_there = true;
                out.push_str(text);
                rest = tail;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    is_there.then_some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Refused, read};
    use super::*;

    #[test]
    fn texts_of_variables() {
        let check = |text: &str, expect: serde_json::Value| {
            let changes = read(text).unwrap_or_else(|refused| panic!("{text}: {refused:?}"));
            assert_eq!(changes.response.field().unwrap_or_default(), expect, "{text}");
        };
        check("set $agentflag 0;", serde_json::Value::Null);
        check("set $a b; add_header X-A \"$a ${a}c\" always;", json!({"add": {"x-a": "b bc"}}));
        check("add_header X-A $a always; set $a b;", json!({"add": {"x-a": "b"}}));
        check("set $a b; set $ab c; more_set_headers 'X-A: $ab';", json!({"set": {"x-a": "c"}}));
        check("set $a 1; if ($http_x = b) { return 403; }", serde_json::Value::Null);
    }

    #[test]
    fn sets_that_are_refused() {
        let check = |text: &str| assert!(matches!(read(text), Err(Refused { protects: true, .. })), "{text}");
        for text in [
            "set $a $host;",
            "set a b;",
            "set $a b c;",
            "set $proxy_upstream_name x;",
            "set $service_name x;",
            "set $a 1; set $a 2;",
            "set $a 1; if ($a = 1) { return 403; }",
            "if ($http_x = b) { set $a 1; }",
            "rewrite ^/a /b break; set $a 1;",
            "set $a 1; add_header X-A $ab;",
        ] {
            check(text);
        }
    }

    #[test]
    fn words_with_variables() {
        assert_eq!(replaced("$a-$ab-${a}", "a", "1").as_deref(), Some("1-$ab-1"));
        assert_eq!(replaced("$ab", "a", "1"), None);
        assert_eq!(replaced("a$", "a", "1"), None);
    }
}

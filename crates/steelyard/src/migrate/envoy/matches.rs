//! The conditions of a route, and how they are written here.

use serde_json::{Value, json};

use super::super::draft::{Became, Keys, literal};
use super::super::pattern::{REGEX_BYTES_MAX, escaped, is_normal, reads_alike};
use super::super::tree::Node;
use super::Making;

/// The condition on the path.
pub(in super::super) enum Path {
    All,
    Exact(String),
    /// Of the text, not of segments.
    Prefix(String),
    /// Ends at a segment.
    Separated(String),
    /// Of the whole path.
    Regex(String),
}

impl Path {
    /// The value of `path`, if there is a condition.
    pub(in super::super) fn condition(&self, ignores_case: bool) -> Option<Value> {
        let case = if ignores_case { "(?i)" } else { "" };
        let regex = |text: String| Some(json!({"regex": format!("{case}{text}")}));
        match self {
            Self::All => None,
            Self::Exact(path) if !ignores_case => Some(json!({"exact": path})),
            Self::Exact(path) => regex(escaped(path)),
            Self::Prefix(path) if path.is_empty() => None,
            Self::Prefix(path) => regex(format!("{}.*", escaped(path))),
            Self::Separated(path) if !ignores_case && !path.contains('*') => Some(json!(path)),
            Self::Separated(path) => regex(format!("{}(?:/.*)?", escaped(path))),
            Self::Regex(text) => regex(text.clone()),
        }
    }

    /// The same condition, and a value of `path` in a rewrite or redirect that has `new` in place of what it matches.
    pub(in super::super) fn replaced(&self, ignores_case: bool, new: &str) -> (Value, String) {
        let case = if ignores_case { "(?i)" } else { "" };
        let regex = |text: String| json!({"regex": format!("{case}{text}")});
        let tail = format!("{}${{1}}", literal(new));
        match self {
            Self::All => (regex("/(.*)".to_owned()), tail),
            Self::Prefix(path) => (regex(format!("{}(.*)", escaped(path))), tail),
            Self::Separated(path) => (regex(format!("{}((?:/.*)?)", escaped(path))), tail),
            Self::Exact(_) => (self.condition(ignores_case).unwrap_or_default(), literal(new)),
            Self::Regex(text) => (regex(text.clone()), literal(new)),
        }
    }
}

/// Whether a path is its own normal form, so that it means the same in both programs.
pub(in super::super) fn is_plain(path: &str) -> bool {
    is_normal(path, |byte| byte.is_ascii_graphic() && !b"%\\?#".contains(&byte))
}

/// Whether an expression of RE2 means the same here.
pub(in super::super) fn is_same_regex(text: &str) -> bool {
    let has_other =
        ["&&", "--", "~~", "\\C", "\\Q", "(?=", "(?!", "(?<=", "(?<!"].iter().any(|sign| text.contains(sign));
    !has_other && text.len() <= REGEX_BYTES_MAX && reads_alike(text, |_| true)
}

/// Whether a condition on this header is not about what a client wrote there: the proxy writes it, or it belongs to one hop.
pub(in super::super) fn is_of_proxy(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let known = ["connection", "forwarded", "host", "te", "upgrade", "via", "x-real-ip", "x-request-id"];
    name.is_empty()
        || name.starts_with(':')
        || name.starts_with("x-forwarded-")
        || name.starts_with("x-envoy-")
        || known.contains(&&*name)
}

/// A route's conditions.
pub(super) struct Matched {
    pub(super) path: Path,
    pub(super) ignores_case: bool,
    /// Its conditions; fewer if it is not exact.
    pub(super) keys: Keys,
    pub(super) is_exact: bool,
}

impl Making<'_> {
    /// The conditions of a route. If they are not exact, they take more.
    pub(super) fn matches(&mut self, node: &Node) -> Matched {
        const KNOWN: &[&str] = &[
            "prefix",
            "path",
            "safe_regex",
            "path_separated_prefix",
            "headers",
            "query_parameters",
            "case_sensitive",
            "grpc",
        ];
        let mut is_exact = !self.unknown(node, KNOWN, "the route is closed");
        let ignores_case = node.at("case_sensitive").is_false();
        let mut keys = Keys::default();
        let path = self.path(node).unwrap_or_else(|| {
            is_exact = false;
            Path::All
        });
        if let Some(condition) = path.condition(ignores_case) {
            keys.set("path", condition);
        }
        if !node.at("grpc").is_null() {
            is_exact &= keys.condition("headers", "content-type", json!({"regex": "application/grpc(?:\\+.*)?"}));
        }
        for (from, key) in [("headers", "headers"), ("query_parameters", "query")] {
            for one in node.at(from).items() {
                is_exact &= self.value(one, key, &mut keys);
            }
        }
        Matched { path, ignores_case, keys, is_exact }
    }

    /// The condition on the path; `None` if it is not understood.
    fn path(&mut self, node: &Node) -> Option<Path> {
        let regex = node.at("safe_regex");
        if !regex.is_null() {
            let text = regex.at("regex").text().unwrap_or_default();
            let known = ["regex", "google_re2"];
            if self.unknown(regex, &known, "the route is closed") || !is_same_regex(text) || text.is_empty() {
                self.note(regex, "safe_regex", Became::Closed, "the expression has another meaning here");
                return None;
            }
            return Some(Path::Regex(text.to_owned()));
        }
        let (path, prefix, separated) = (node.at("path"), node.at("prefix"), node.at("path_separated_prefix"));
        let text = path.text().or(prefix.text()).or(separated.text())?;
        let is_any = text.is_empty() && prefix.text().is_some();
        if !is_any && !is_plain(text) {
            self.note(node, text, Became::Closed, "no path in its normal form is this one, so the route is closed");
            return None;
        }
        let text = text.to_owned();
        Some(match () {
            () if path.text().is_some() => Path::Exact(text),
            () if prefix.text().is_none() => Path::Separated(text),
            () if text == "/" => Path::All,
            () => Path::Prefix(text),
        })
    }

    /// Adds a condition on a header or a parameter; answers false if the route must be closed without it.
    fn value(&mut self, one: &Node, key: &str, keys: &mut Keys) -> bool {
        let name = one.at("name").text().unwrap_or_default().to_owned();
        let condition = text_matcher(one);
        let is_added = match condition {
            Some(Value::String(method)) if key == "headers" && name == ":method" => {
                let methods = json!([method]);
                let is_same = keys.get("methods").is_none_or(|known| *known == methods);
                keys.set("methods", methods);
                is_same
            }
            Some(condition) if key == "headers" && !is_of_proxy(&name) => keys.condition(key, &name, condition),
            // Envoy compares parameters as they are written.
            Some(condition) if key == "query" && is_unescaped(&name) && is_unescaped(&condition.to_string()) => {
                keys.condition(key, &name, condition)
            }
            _ => false,
        };
        if !is_added {
            let why = "the condition is not understood, so what it may be about is closed";
            self.note(one, &name, Became::Closed, why);
        }
        is_added
    }
}

fn is_unescaped(text: &str) -> bool {
    !text.is_empty() && !text.contains(['%', '+'])
}

/// A condition on one header or parameter.
fn text_matcher(node: &Node) -> Option<Value> {
    const KNOWN: &[&str] = &[
        "name",
        "string_match",
        "exact_match",
        "prefix_match",
        "suffix_match",
        "contains_match",
        "safe_regex_match",
        "present_match",
        "invert_match",
    ];
    let only = |node: &Node, known: &[&str]| {
        node.entries().iter().all(|(key, value)| value.is_null() || known.iter().any(|known| key.is_key(known)))
    };
    let string = node.at("string_match");
    let is_known = only(node, KNOWN)
        && only(string, &["exact", "prefix", "suffix", "contains", "safe_regex", "ignore_case"])
        && [string.at("safe_regex"), node.at("safe_regex_match")]
            .iter()
            .all(|regex| only(regex, &["regex", "google_re2"]));
    if !is_known || node.at("invert_match").is_true() || node.at("present_match").is_false() {
        return None;
    }
    let case = if string.at("ignore_case").is_true() { "(?i)" } else { "" };
    let text = |new: &str, old: &str| string.at(new).text().or(node.at(old).text()).map(str::to_owned);
    if let Some(value) = text("exact", "exact_match") {
        return Some(if case.is_empty() {
            json!(value)
        } else {
            json!({"regex": format!("{case}{}", escaped(&value))})
        });
    }
    let regex = string.at("safe_regex").at("regex").text().or(node.at("safe_regex_match").at("regex").text());
    if regex.is_some_and(|regex| !is_same_regex(regex)) {
        return None;
    }
    let regex = regex
        .map(str::to_owned)
        .or_else(|| text("prefix", "prefix_match").map(|value| format!("{}.*", escaped(&value))))
        .or_else(|| text("suffix", "suffix_match").map(|value| format!(".*{}", escaped(&value))))
        .or_else(|| text("contains", "contains_match").map(|value| format!(".*{}.*", escaped(&value))));
    match regex {
        Some(regex) => Some(json!({"regex": format!("{case}{regex}")})),
        None if string.is_null() => Some(json!({"present": true})),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_with_another_meaning() {
        for text in ["/[a-z]+/x", "[[:alpha:]]+", "[]a]", "[^]a]", "\\[\\[", "(a|b)\\.png"] {
            assert!(is_same_regex(text), "{text}");
        }
        for text in ["[a[b]", "[a&&b]", "[\\w--x]", "\\Qa\\E", "(?=a)", "[[a]]"] {
            assert!(!is_same_regex(text), "{text}");
        }
        assert!(!is_same_regex(&"a".repeat(5000)));
    }

    #[test]
    fn paths_in_normal_form() {
        for path in ["/", "/a", "/a/", "/.well-known/", "/a.b/..c"] {
            assert!(is_plain(path), "{path}");
        }
        for path in ["", "a", "/a%20b", "//", "/a/./b", "/a/..", "/a?b", "/a\\b", "/ü"] {
            assert!(!is_plain(path), "{path}");
        }
    }
}

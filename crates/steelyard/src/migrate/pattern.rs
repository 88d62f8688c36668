//! What stands for many texts: expressions, paths and names of hosts; and whether it means the same in another proxy and in Steelyard.

/// The longest expression, in bytes.
pub(super) const REGEX_BYTES_MAX: usize = 4096;

/// The expression of a whole path or value for one that is searched for anywhere in it; `None` if our engine cannot match it.
pub(super) fn searched(pattern: &str, ignores_case: bool) -> Option<String> {
    if pattern.len() > REGEX_BYTES_MAX || looks_around(pattern) {
        return None;
    }
    let has_choice = pattern.contains('|');
    let (begin, rest) = match pattern.strip_prefix('^') {
        Some(rest) if !has_choice => ("", rest),
        _ => (".*?", pattern),
    };
    let is_escaped = |text: &str| text.chars().rev().skip(1).take_while(|letter| *letter == '\\').count() % 2 == 1;
    let (rest, end) = match rest.strip_suffix('$') {
        Some(inner) if !has_choice && !is_escaped(rest) => (inner, ""),
        _ => (rest, ".*"),
    };
    let inner = if has_choice { format!("(?:{rest})") } else { rest.to_owned() };
    let case = if ignores_case { "(?i)" } else { "" };
    // nginx and others escape slashes, which means nothing.
    Some(format!("{case}{begin}{inner}{end}").replace("\\/", "/"))
}

/// Look-around, back references and what else needs backtracking.
fn looks_around(pattern: &str) -> bool {
    const SIGNS: &[&str] = &["(?=", "(?!", "(?<=", "(?<!", "(?>", "*+", "++", "?+"];
    let refers_back = pattern.as_bytes().windows(2).any(|pair| matches!(pair, [b'\\', b'1'..=b'9' | b'k' | b'g']));
    refers_back || SIGNS.iter().any(|sign| pattern.contains(sign))
}

/// The expression of a text without a meaning.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if "\\.+*?()|[]{}^$#&-~".contains(letter) {
            out.push('\\');
        }
        out.push(letter);
    }
    out
}

/// What an expression is made of, besides what its classes have.
pub(super) enum Sign<'p> {
    /// What follows a backslash, anywhere; nothing if the expression ends in one.
    Escape(Option<char>),
    /// A letter outside of classes, and all that follows it.
    Letter(char, &'p str),
}

/// Whether PCRE or RE2 and our engine read an expression in the same way: it has no class within a class and no operations on classes, which only
/// ours knows, and `is_common` says so of all else.
pub(super) fn reads_alike(pattern: &str, is_common: impl Fn(Sign<'_>) -> bool) -> bool {
    let mut letters = pattern.chars();
    let mut is_class = false;
    while let Some(letter) = letters.next() {
        let rest = letters.as_str();
        match letter {
            '\\' if !is_common(Sign::Escape(letters.next())) => return false,
            '\\' => {}
            '[' if !is_class => {
                is_class = true;
                // These belong to the class, whatever they are.
                let body = rest.strip_prefix('^').unwrap_or(rest);
                letters = body.strip_prefix(']').unwrap_or(body).chars();
            }
            '[' => match rest.strip_prefix(':').and_then(|name| name.split_once(']')) {
                // `[:alpha:]`
                Some((_, behind)) => letters = behind.chars(),
                None => return false,
            },
            ']' if is_class => is_class = false,
            '&' | '-' | '~' if is_class && rest.starts_with(letter) => return false,
            _ if is_class || is_common(Sign::Letter(letter, rest)) => {}
            _ => return false,
        }
    }
    !is_class
}

/// Whether a path of these bytes is its own normal form, so that it means the same in both programs.
pub(super) fn is_normal(path: &str, is_plain: impl Fn(u8) -> bool) -> bool {
    path.starts_with('/')
        && path.bytes().all(|byte| byte == b'/' || is_plain(byte))
        && !path.contains("//")
        && !path.split('/').any(|segment| segment == "." || segment == "..")
}

/// Whether a name, `*.` and a name, or `*` takes all that another one takes.
pub(super) fn covers(pattern: &str, host: &str) -> bool {
    pattern == "*"
        || pattern == host
        || pattern.strip_prefix('*').is_some_and(|end| {
            host.strip_prefix('*').unwrap_or(host).ends_with(end) && host.trim_start_matches('*').len() > end.len()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_whole_values() {
        let check =
            |pattern: &str, expect: Option<&str>| assert_eq!(searched(pattern, false).as_deref(), expect, "{pattern}");
        check("^/img/.*\\.png$", Some("/img/.*\\.png"));
        check("\\.php$", Some(".*?\\.php"));
        check("^/a|/b$", Some(".*?(?:^/a|/b$).*"));
        check("^/price\\$", Some("/price\\$.*"));
        check("^\\/a\\/", Some("/a/.*"));
        check("(?!x)", None);
        check("(a)\\1", None);
        assert_eq!(searched("^/a$", true).as_deref(), Some("(?i)/a"));
    }

    #[test]
    fn what_names_cover() {
        let check =
            |wide: &str, narrow: &str, expect: bool| assert_eq!(covers(wide, narrow), expect, "{wide} {narrow}");
        check("a.example", "a.example", true);
        check("*.example", "a.example", true);
        check("*.example", "*.a.example", true);
        check("*.example", "*.example", true);
        check("*.a.example", "*.example", false);
        check("*.example", "example", false);
        check("*.example", "aexample", false);
        check("a.example", "*.a.example", false);
    }

    #[test]
    fn classes_that_only_one_engine_knows() {
        let all = |_: Sign<'_>| true;
        for pattern in ["[[:alpha:]_-]x", "[]x]", "[^]x]", "[a\\]b]", "[[:alpha:]{]", "a&&b--c]", ""] {
            assert!(reads_alike(pattern, all), "{pattern}");
        }
        for pattern in ["[a[b]]", "[a&&b]", "[[:alpha:]--z]", "[a~~b]", "[a", "[[:alpha:]", "[[:a"] {
            assert!(!reads_alike(pattern, all), "{pattern}");
        }
        let no_groups = |sign: Sign<'_>| !matches!(sign, Sign::Letter('(', _) | Sign::Escape(None | Some('Q')));
        assert!(reads_alike("[(]\\.", no_groups));
        assert!(["(a)", "\\Qa", "[\\Q]", "a\\"].iter().all(|pattern| !reads_alike(pattern, no_groups)));
    }
}

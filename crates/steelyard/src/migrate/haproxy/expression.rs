//! Ways of comparison of HAProxy as regular expressions of a whole value.

use super::super::pattern::{Sign, escaped, reads_alike, searched};

/// The expression of the whole value for a way of comparison; `None` if there is none that matches the same.
pub(super) fn expression(way: &str, values: &[&str], ignores_case: bool) -> Option<String> {
    if way == "reg" {
        let [one] = values else { return None };
        return is_common(one).then(|| searched(one, ignores_case)).flatten();
    }
    let trimmed: Vec<&str> = match way {
        "dir" => values.iter().map(|value| value.trim_matches(['/', '?'])).collect(),
        _ => values.to_vec(),
    };
    let any = any_of(&trimmed)?;
    let case = if ignores_case { "(?i)" } else { "" };
    Some(match way {
        "str" => format!("{case}{any}"),
        "beg" => format!("{case}{any}.*"),
        "end" => format!("{case}.*{any}"),
        "sub" => format!("{case}.*{any}.*"),
        "dir" => format!("{case}.*/{any}(?:/.*)?"),
        _ => return None,
    })
}

/// The same for a header that HAProxy takes for a list of values between commas, one of which has to match. It also takes some lists with
/// quoted commas that HAProxy does not take.
pub(super) fn in_list(way: &str, values: &[&str], ignores_case: bool) -> Option<String> {
    let case = if ignores_case { "(?i)" } else { "" };
    if way == "reg" {
        let [one] = values else { return None };
        // Anchors are about one value, and these classes about bytes, which here are letters.
        let is_plain = !one.contains(['^', '$', '|'])
            && ["\\b", "\\B", "\\D", "\\S", "\\W"].iter().all(|class| !one.contains(class));
        return (is_plain && is_common(one)).then(|| format!("{case}.*(?:{one}).*"));
    }
    let has_edge = |value: &&str| value.contains(',') || value.trim() != *value;
    if values.iter().any(has_edge) {
        return None;
    }
    let any = any_of(values)?;
    let (before, after) = ("(?:.*,)?[ \\t]*", "[ \\t]*(?:,.*)?");
    Some(match way {
        "str" => format!("{case}{before}{any}{after}"),
        "beg" => format!("{case}{before}{any}.*"),
        "end" => format!("{case}.*{any}{after}"),
        "sub" => format!("{case}.*{any}.*"),
        _ => return None,
    })
}

fn any_of(values: &[&str]) -> Option<String> {
    if values.iter().any(|value| value.is_empty()) {
        return None;
    }
    let all: Vec<String> = values.iter().map(|value| escaped(value)).collect();
    match &all[..] {
        [] => None,
        [one] => Some(one.clone()),
        all => Some(format!("(?:{})", all.join("|"))),
    }
}

/// Whether an expression means the same for PCRE, which HAProxy uses, and for our engine: no class within a class, no set operations, no
/// escapes and groups that only one of them knows.
fn is_common(pattern: &str) -> bool {
    reads_alike(pattern, |sign| match sign {
        Sign::Escape(None) => false,
        Sign::Escape(Some(letter)) => {
            "dDwWsSbBnrtAz".contains(letter) || letter.is_ascii_punctuation() && letter != '\\'
        }
        Sign::Letter('(', rest) => match rest.strip_prefix('?') {
            Some(kind) => kind.starts_with(':') || kind.starts_with("i)"),
            None => !rest.starts_with('*'),
        },
        Sign::Letter('{', rest) => rest.starts_with(|letter: char| letter.is_ascii_digit()),
        Sign::Letter(..) => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_of_comparison() {
        let check = |way: &str, values: &[&str], expect: Option<&str>| {
            assert_eq!(expression(way, values, false).as_deref(), expect, "{way} {values:?}");
        };
        check("beg", &["/a", "/b."], Some("(?:/a|/b\\.).*"));
        check("dir", &["/adm/"], Some(".*/adm(?:/.*)?"));
        check("dir", &["/"], None);
        check("sub", &[""], None);
        check("dom", &["a"], None);
        check("reg", &["^/a[]&b]$"], Some("/a[]&b]"));
        for one in [
            "[a&&b]", "[a[b]]", "[a--b]", "\\Qa\\E", "(?<x>a)", "(?x)a", "(?ix)a", "(*F)", "a\\", "a{,3}", "\\\\/",
            "[a",
        ] {
            check("reg", &[one], None);
        }
    }

    #[test]
    fn lists_in_headers() {
        let check = |way: &str, value: &str, expect: Option<&str>| {
            assert_eq!(in_list(way, &[value], false).as_deref(), expect, "{way} {value}");
        };
        check("str", "a", Some("(?:.*,)?[ \\t]*a[ \\t]*(?:,.*)?"));
        check("sub", "a b", Some(".*a b.*"));
        check("str", "a,b", None);
        check("beg", " a", None);
        check("reg", "bot/[0-9]", Some(".*(?:bot/[0-9]).*"));
        check("reg", "^a", None);
        check("reg", "\\bbot", None);
    }
}

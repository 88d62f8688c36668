//! Expressions in `server-alias`, as names: hosts are looked up here, not matched. Most expressions stand for a few names, or for all names below
//! a domain.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Names that one expression may stand for.
const NAMES_MAX: usize = 64;

/// A character that no name has, for all labels in front of a domain.
const LABELS: char = '*';

/// The names that an expression matches, in lower case: `*.example.com` stands for all below a domain. `None` if they are not such names, or too many.
pub(super) fn names(pattern: &str) -> Option<Vec<String>> {
    let whole = pattern.strip_prefix('^')?.strip_suffix('$')?;
    // `\D` is not `\d`.
    let has_negation = whole.split('\\').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    if has_negation {
        return None;
    }
    let hir = regex_syntax::parse(&whole.to_ascii_lowercase()).ok()?;
    let found = expand(&hir)?;
    found.iter().all(|name| is_name(name)).then_some(found)
}

fn is_name(name: &str) -> bool {
    let rest = name.strip_prefix("*.").unwrap_or(name);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    rest.split('.').all(is_label) && rest.len() <= 253
}

/// All texts that an expression matches.
fn expand(hir: &Hir) -> Option<Vec<String>> {
    let found = match hir.kind() {
        HirKind::Empty => vec![String::new()],
        HirKind::Literal(literal) => vec![std::str::from_utf8(&literal.0).ok()?.to_owned()],
        HirKind::Class(class) => letters(class)?,
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => match (repetition.min, repetition.max) {
            (0, Some(1)) => {
                let mut found = expand(&repetition.sub)?;
                found.push(String::new());
                found
            }
            (1, None) if is_any(&repetition.sub) => vec![LABELS.to_string()],
            _ => return None,
        },
        HirKind::Capture(capture) => expand(&capture.sub)?,
        HirKind::Concat(parts) => {
            let mut found = vec![String::new()];
            for part in parts {
                let ends = expand(part)?;
                if found.len() * ends.len() > NAMES_MAX {
                    return None;
                }
                found = found.iter().flat_map(|begin| ends.iter().map(move |end| format!("{begin}{end}"))).collect();
            }
            found
        }
        HirKind::Alternation(parts) => {
            let all: Option<Vec<Vec<String>>> = parts.iter().map(expand).collect();
            all?.concat()
        }
    };
    (found.len() <= NAMES_MAX).then_some(found)
}

fn letters(class: &Class) -> Option<Vec<String>> {
    let Class::Unicode(class) = class else { return None };
    let count: usize = class.ranges().iter().map(|range| range.len()).sum();
    let all = class.ranges().iter().flat_map(|range| range.start()..=range.end());
    (count <= NAMES_MAX).then(|| all.map(String::from).collect())
}

/// Whether a class has all characters of labels, so that a repetition of it is any label.
fn is_any(hir: &Hir) -> bool {
    let HirKind::Class(Class::Unicode(class)) = hir.kind() else { return false };
    let has = |letter: char| class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&letter));
    ('a'..='z').chain('0'..='9').chain(['-']).all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_expression_stands_for() {
        let check = |pattern: &str, expect: Option<&[&str]>| {
            let expect = expect.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!(names(pattern), expect, "{pattern}");
        };
        check(r"^(www|Shop)\.example\.com$", Some(&["www.example.com", "shop.example.com"]));
        check(r"^(www\.)?example\.com$", Some(&["www.example.com", "example.com"]));
        check(r"^.+\.example\.com$", Some(&["*.example.com"]));
        check(r"^(?<tenant>[^.]+)\.example\.com$", Some(&["*.example.com"]));
        check(r"^[a-z0-9-]+\.example\.com$", Some(&["*.example.com"]));
        check(r"^app[12]\.example\.com$", Some(&["app1.example.com", "app2.example.com"]));
        for refused in [
            r"example\.com",
            r"^example\.com",
            r"^[a-z]+\.example\.com$",
            r"^www\..+\.com$",
            r"^a.+\.example\.com$",
            r"^www.example\.com$",
            r"^.*\.example\.com$",
            r"^(a$|b)\.example\.com$",
            r"^[a-z][a-z]\.example\.com$",
            r"^a\D\.example\.com$",
            r"^(?=a)\.example\.com$",
            r"^.+$",
            r"^$",
            "^[$",
        ] {
            check(refused, None);
        }
    }
}

//! Values of `server-alias`, as names: hosts are looked up here, not matched. Most expressions stand for a few names, or for all names below a
//! domain.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::path::means_the_same;

/// Names that one expression may stand for.
const NAMES_MAX: usize = 64;

/// A character that no name has, for all labels in front of a domain.
const LABELS: char = '*';

/// Bytes of a name, with [`LABELS`] in front of it.
const NAME_BYTES_MAX: usize = 255;

/// Bytes of an expression.
const BYTES_MAX: usize = 4096;

/// The names that a value stands for, in lower case: `*.example.com` is all below a domain, as in `server_name` of nginx.
///
/// # Errors
/// Says in a sentence why there are no such names, and what would be right.
pub(super) fn names(word: &str) -> Result<Vec<String>, String> {
    if let Some(pattern) = word.strip_prefix('~') {
        return of_expression(pattern).map_err(str::to_owned);
    }
    let name = word.to_ascii_lowercase();
    if let Some(domain) = name.strip_prefix('.').filter(|domain| is_name(domain)) {
        return Ok(vec![domain.to_owned(), format!("*.{domain}")]);
    }
    match name.strip_suffix(".*") {
        _ if is_name(&name) => Ok(vec![name]),
        Some(begin) if is_name(begin) && !begin.starts_with(LABELS) => Err(format!(
            "a `*` at the end stands for every domain, and hosts here have one at the beginning alone: write {begin}.com and the like"
        )),
        _ => Err("it is no host: write a name, perhaps with `*.` in front of it, without a port".to_owned()),
    }
}

fn of_expression(pattern: &str) -> Result<Vec<String>, &'static str> {
    if pattern.len() > BYTES_MAX {
        return Err("it is too long");
    }
    // `\D` is not `\d`.
    let has_negation = pattern.split('\\').skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    // As in nginx, a letter is a byte.
    let parsed = ParserBuilder::new().unicode(false).utf8(false).build().parse(&pattern.to_ascii_lowercase());
    let is_same = !has_negation && means_the_same(pattern);
    let hir = parsed.ok().filter(|_| is_same).ok_or("it looks around, refers back, or is no expression for here")?;
    let parts = match hir.kind() {
        HirKind::Concat(parts) => parts.as_slice(),
        _ => std::slice::from_ref(&hir),
    };
    let (begins, parts) = anchored(parts.split_first(), Look::Start, parts);
    let (ends, parts) = anchored(parts.split_last(), Look::End, parts);
    let mut found = all_of(parts)?;
    if found.is_empty() {
        return Err("no text matches it");
    }
    // Without an anchor, anything may be there.
    for name in &mut found {
        if !begins {
            name.insert(0, LABELS);
        }
        if !ends {
            name.push(LABELS);
        }
    }
    match (found.iter().all(|name| is_name(name)), begins && ends) {
        (true, _) => Ok(found),
        (false, false) => Err("it is found in longer names as well: write `^` in front of it and `$` behind it"),
        (false, true) => Err("it stands for any text in other places than instead of the first labels"),
    }
}

/// Whether an anchor is at the edge of a concatenation, and what is left without it.
fn anchored<'h>(edge: Option<(&'h Hir, &'h [Hir])>, look: Look, parts: &'h [Hir]) -> (bool, &'h [Hir]) {
    match edge {
        Some((first, rest)) if *first.kind() == HirKind::Look(look) => (true, rest),
        _ => (false, parts),
    }
}

fn is_name(name: &str) -> bool {
    let rest = name.strip_prefix("*.").unwrap_or(name);
    let is_label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    rest.split('.').all(is_label) && rest.len() <= 253
}

const TOO_MANY: &str = "it stands for more than 64 names";

/// All texts that an expression matches.
fn expand(hir: &Hir) -> Result<Vec<String>, &'static str> {
    let found = match hir.kind() {
        HirKind::Empty => vec![String::new()],
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "a host has ASCII letters only")?;
            if text.contains(LABELS) {
                return Err("no host has a `*`: write `[^.]+` for any label if it is the first one");
            }
            vec![text.to_owned()]
        }
        HirKind::Class(class) => letters(class)?,
        HirKind::Look(_) => return Err("it has an anchor in other places than its ends"),
        HirKind::Repetition(repetition) => match (repetition.min, repetition.max) {
            (0, Some(1)) => {
                let mut found = expand(&repetition.sub)?;
                found.push(String::new());
                found
            }
            // No host begins with a dot, so `.*` in front of one stands for a label, too.
            (0 | 1, None) if is_any(&repetition.sub) => vec![LABELS.to_string()],
            (_, None) => {
                return Err("it repeats some letters: write `[^.]+` for any label if it is the first one");
            }
            (min, Some(max)) if min == max && max < 64 => {
                let each = expand(&repetition.sub)?;
                (0..max).try_fold(vec![String::new()], |found, _| joined(&found, &each))?
            }
            _ => return Err(TOO_MANY),
        },
        HirKind::Capture(capture) => expand(&capture.sub)?,
        HirKind::Concat(parts) => all_of(parts)?,
        HirKind::Alternation(parts) => {
            let mut found = Vec::new();
            for part in parts {
                found.extend(expand(part)?);
                if found.len() > NAMES_MAX {
                    return Err(TOO_MANY);
                }
            }
            found
        }
    };
    if found.len() > NAMES_MAX { Err(TOO_MANY) } else { Ok(found) }
}

/// All texts that the expressions match one behind the other.
fn all_of(parts: &[Hir]) -> Result<Vec<String>, &'static str> {
    parts.iter().try_fold(vec![String::new()], |found, part| joined(&found, &expand(part)?))
}

/// All texts of the first list with one of the second behind it.
fn joined(begins: &[String], ends: &[String]) -> Result<Vec<String>, &'static str> {
    if begins.len() * ends.len() > NAMES_MAX {
        return Err(TOO_MANY);
    }
    let found: Vec<String> =
        begins.iter().flat_map(|begin| ends.iter().map(move |end| format!("{begin}{end}"))).collect();
    match found.iter().any(|text| text.len() > NAME_BYTES_MAX) {
        true => Err("a host has at most 253 letters"),
        false => Ok(found),
    }
}

fn letters(class: &Class) -> Result<Vec<String>, &'static str> {
    const ANY: &str = "a `.` without a `\\` in front of it stands for any letter, and so does a class of more than 64: write `\\.` for a dot";
    let ranges = ranges(class);
    // Hosts are compared in lower case.
    let all = ranges.iter().flat_map(|(first, last)| *first..=*last).take(256);
    let all: Vec<char> =
        all.filter_map(char::from_u32).filter(|letter| !letter.is_ascii_uppercase() && *letter != LABELS).collect();
    if all.len() > NAMES_MAX { Err(ANY) } else { Ok(all.into_iter().map(String::from).collect()) }
}

/// The first and the last letter of each range. A class of bytes is one of letters if all of them are ASCII.
fn ranges(class: &Class) -> Vec<(u32, u32)> {
    match class {
        Class::Unicode(class) => class.iter().map(|range| (range.start().into(), range.end().into())).collect(),
        Class::Bytes(class) => class.iter().map(|range| (range.start().into(), range.end().into())).collect(),
    }
}

/// Whether a class has all characters of labels, so that a repetition of it is any label.
fn is_any(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Class(class) => {
            let ranges = ranges(class);
            let has = |letter: u8| ranges.iter().any(|(first, last)| (*first..=*last).contains(&letter.into()));
            (b'a'..=b'z').chain(b'0'..=b'9').chain([b'-']).all(has)
        }
        HirKind::Capture(capture) => is_any(&capture.sub),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_value_stands_for() {
        let check = |word: &str, expect: &[&str]| assert_eq!(names(word).unwrap(), expect, "{word}");
        check("Alias.example.com", &["alias.example.com"]);
        check("*.example.com", &["*.example.com"]);
        check(".example.com", &["example.com", "*.example.com"]);
        check(r"~^(www|Shop)\.example\.com$", &["www.example.com", "shop.example.com"]);
        check(r"~^(www\.)?example\.com$", &["www.example.com", "example.com"]);
        check(r"~^.+\.example\.com$", &["*.example.com"]);
        check(r"~^.*\.example\.com$", &["*.example.com"]);
        check(r"~\.example\.com$", &["*.example.com"]);
        check(r"~\.example\.(com|org)$", &["*.example.com", "*.example.org"]);
        check(r"~^(.+\.)?example\.com$", &["*.example.com", "example.com"]);
        check(r"~^(?<tenant>[^.]+)\.example\.com$", &["*.example.com"]);
        check(r"~^[a-z0-9-]+\.example\.com$", &["*.example.com"]);
        check(r"~^app[12]\.example\.com$", &["app1.example.com", "app2.example.com"]);
        check(r"~^w{3}\.example\.com$", &["www.example.com"]);
        check(r"~^[*a]\.example\.com$", &["a.example.com"]);
        assert_eq!(names(r"~^www\d\.example\.com$").unwrap().len(), 10);
    }

    #[test]
    fn what_is_refused_and_why() {
        let check = |word: &str, why: &str| {
            let wrong = names(word).unwrap_err();
            assert!(wrong.contains(why), "{word}: {wrong}");
        };
        check("mail.*", "a `*` at the end");
        for none in ["*", "a.*.com", "*.example.*", "example.com:80", "a/b", "..", "", "é.com"] {
            check(none, "it is no host");
        }
        for open in [r"~example\.com", r"~^example\.com", r"~example\.com$", "~", "~a|b", r"~^a\.com|b\.com$"] {
            let wrong = names(open).unwrap_err();
            assert!(wrong.contains("longer names") || wrong.contains("an anchor"), "{open}: {wrong}");
        }
        for any in [r"~^www\..+\.com$", r"~^a.+\.example\.com$", "~^.+$", r"~^.*example\.com$", "~^$"] {
            check(any, "in other places");
        }
        check(r"~^[a-z]+\.example\.com$", "[^.]+");
        check(r"~^\*\.example\.com$", "no host has a `*`");
        check(r"~^[*]\.example\.com$", "no host has a `*`");
        check(r"~^www\d+\.example\.com$", "[^.]+");
        check(r"~^www.example\.com$", "write `\\.`");
        check(r"~^[a-z][a-z]\.example\.com$", "more than 64 names");
        check(r"~^a{2,90}\.example\.com$", "more than 64 names");
        check(r"~^((a{60}){60}){60}\.example\.com$", "at most 253");
        // It would take a long time to write out each of them.
        let deep = format!("~^{}a?{}$", "(?:".repeat(60), "){63}".repeat(60));
        check(&deep, "more than 64 names");
        check(r"~^(a$|b)\.example\.com$", "an anchor");
        for unread in [
            r"~^a\D\.example\.com$",
            r"~^(?=a)\.example\.com$",
            "~^[$",
            r"~^(a)\1$",
            r"~^[a[b]]\.com$",
            r"~^[a&&b]\.com$",
            r"~^[^.&&x]+\.com$",
        ] {
            check(unread, "it looks around");
        }
    }
}

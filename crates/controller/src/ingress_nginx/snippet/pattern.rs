//! Expressions of nginx, written so that they find here what they find there.
//!
//! PCRE compares bytes, of a path that is decoded. Here, `\d`, `\w` and `\s` have letters of all scripts unless they are written out, and a path
//! has reserved characters, control characters and others than ASCII as `%XX`: what an `if` keeps out must not pass in another spelling.

use regex_syntax::ast::{self, AssertionKind, Ast, ClassPerl, ClassPerlKind};

/// Bytes of an expression. nginx takes up to 4,096, and each may become a route.
const BYTES_MAX: usize = 512;

/// What an expression is looked for in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// A value, each byte of which is a letter.
    Value,
    /// A path that is not decoded. More than in nginx may be found in one with `%XX`, and not less.
    Path,
}

/// The expression for here; `None` if there is no such one, or if it may be found in an empty text, as what is not there is one to nginx.
pub(super) fn written(pattern: &str, ignores_case: bool, subject: Subject) -> Option<String> {
    let out = read(pattern, ignores_case, subject)?;
    // It is compiled with the routes, whose expressions have a limit together.
    let least = regex_syntax::parse(&out).ok()?.properties().minimum_len();
    least.is_some_and(|bytes| bytes > 0).then_some(out)
}

/// The same for one that may be found in an empty text.
pub(super) fn read(pattern: &str, ignores_case: bool, subject: Subject) -> Option<String> {
    let is_known = pattern.is_ascii() && pattern.len() <= BYTES_MAX && super::super::path::is_same(pattern);
    if !is_known {
        return None;
    }
    let ast = ast::parse::Parser::new().parse(pattern).ok()?;
    let mut out = String::new();
    write(&ast, subject, &mut out)?;
    Some(if ignores_case { format!("(?i:{out})") } else { out })
}

/// A text as an expression of paths.
pub fn of_path(text: &str) -> String {
    let mut out = String::new();
    text.chars().for_each(|letter| literal(letter, &regex::escape(&letter.to_string()), &mut out));
    out
}

fn write(ast: &Ast, subject: Subject, out: &mut String) -> Option<()> {
    match ast {
        Ast::Empty(_) => {}
        Ast::Flags(_) => return None,
        Ast::Literal(one) if !one.c.is_ascii() => return None,
        Ast::Literal(one) if subject == Subject::Path => literal(one.c, &regex::escape(&one.c.to_string()), out),
        Ast::Literal(one) => out.push_str(&regex::escape(&one.c.to_string())),
        Ast::Dot(_) => encoded(".", subject, out),
        Ast::Assertion(assertion) => match assertion.kind {
            AssertionKind::StartLine => out.push('^'),
            // In both engines before the end, and in PCRE before a line break at the end.
            AssertionKind::EndLine => out.push_str(if subject == Subject::Path { "(?:%0[Aa])?$" } else { "$" }),
            AssertionKind::WordBoundary => out.push_str(r"(?-u:\b)"),
            _ => return None,
        },
        Ast::ClassUnicode(_) => return None,
        Ast::ClassPerl(class) => encoded(&format!("[{}]", perl(class)), subject, out),
        Ast::ClassBracketed(class) => encoded(&bracketed(class)?, subject, out),
        Ast::Repetition(repetition) => {
            write(&repetition.ast, subject, out)?;
            out.push_str(&shown(&repetition.op.kind));
            if !repetition.greedy {
                out.push('?');
            }
        }
        Ast::Group(group) => {
            match &group.kind {
                // Nothing refers to a name, and two expressions that are put together may have the same.
                ast::GroupKind::CaptureIndex(_) | ast::GroupKind::CaptureName { .. } => out.push('('),
                ast::GroupKind::NonCapturing(flags) if flags.items.is_empty() => out.push_str("(?:"),
                ast::GroupKind::NonCapturing(_) => return None,
            }
            write(&group.ast, subject, out)?;
            out.push(')');
        }
        Ast::Alternation(alternation) => {
            for (number, part) in alternation.asts.iter().enumerate() {
                if number > 0 {
                    out.push('|');
                }
                write(part, subject, out)?;
            }
        }
        Ast::Concat(concat) => concat.asts.iter().try_for_each(|part| write(part, subject, out))?,
    }
    Some(())
}

fn shown(kind: &ast::RepetitionKind) -> String {
    match kind {
        ast::RepetitionKind::ZeroOrOne => "?".to_owned(),
        ast::RepetitionKind::ZeroOrMore => "*".to_owned(),
        ast::RepetitionKind::OneOrMore => "+".to_owned(),
        ast::RepetitionKind::Range(ast::RepetitionRange::Exactly(n)) => format!("{{{n}}}"),
        ast::RepetitionKind::Range(ast::RepetitionRange::AtLeast(n)) => format!("{{{n},}}"),
        ast::RepetitionKind::Range(ast::RepetitionRange::Bounded(n, m)) => format!("{{{n},{m}}}"),
    }
}

/// A letter of a path: as it is, or encoded. nginx makes one slash of several.
fn literal(letter: char, text: &str, out: &mut String) {
    let is_unreserved = letter.is_ascii_alphanumeric() || "-._~".contains(letter);
    if is_unreserved {
        return out.push_str(text);
    }
    let hex = |digit: u32| match char::from_digit(digit, 16) {
        Some(digit) if digit.is_ascii_alphabetic() => format!("[{}{digit}]", digit.to_ascii_uppercase()),
        digit => digit.into_iter().collect(),
    };
    let code = u32::from(letter);
    let times = if letter == '/' { "+" } else { "" };
    out.push_str(&format!("(?:{text}|%{}{}){times}", hex(code >> 4), hex(code & 15)));
}

/// A class, or in a path a byte that is encoded.
fn encoded(class: &str, subject: Subject, out: &mut String) {
    match subject {
        Subject::Value => out.push_str(class),
        Subject::Path => out.push_str(&format!("(?:{class}|%[0-9A-Fa-f][0-9A-Fa-f])")),
    }
}

/// What is in a class of Perl, for ASCII.
fn perl(class: &ClassPerl) -> String {
    let all = match class.kind {
        ClassPerlKind::Digit => "0-9",
        ClassPerlKind::Word => "0-9A-Za-z_",
        ClassPerlKind::Space => r"\t\n\x0b\x0c\r ",
    };
    if class.negated { format!("^{all}") } else { all.to_owned() }
}

fn bracketed(class: &ast::ClassBracketed) -> Option<String> {
    let mut items = Vec::new();
    match &class.kind {
        ast::ClassSet::BinaryOp(_) => return None,
        ast::ClassSet::Item(ast::ClassSetItem::Union(union)) => items.extend(&union.items),
        ast::ClassSet::Item(item) => items.push(item),
    }
    let mut out = String::from(if class.negated { "[^" } else { "[" });
    for item in items {
        match item {
            ast::ClassSetItem::Literal(one) => out.push_str(&escaped(one.c)?),
            ast::ClassSetItem::Range(range) => {
                out.push_str(&format!("{}-{}", escaped(range.start.c)?, escaped(range.end.c)?));
            }
            ast::ClassSetItem::Perl(class) if !class.negated => out.push_str(&perl(class)),
            ast::ClassSetItem::Ascii(class) => {
                out.push_str(&format!("[:{}{}:]", if class.negated { "^" } else { "" }, ascii(&class.kind)?))
            }
            _ => return None,
        }
    }
    out.push(']');
    Some(out)
}

/// A letter of a class; `None` if it is no byte.
fn escaped(letter: char) -> Option<String> {
    u8::try_from(letter).ok().map(|byte| format!(r"\x{byte:02x}"))
}

fn ascii(kind: &ast::ClassAsciiKind) -> Option<&'static str> {
    use ast::ClassAsciiKind::{Alnum, Alpha, Digit, Lower, Space, Upper, Xdigit};
    Some(match kind {
        Alnum => "alnum",
        Alpha => "alpha",
        Digit => "digit",
        Lower => "lower",
        Space => "space",
        Upper => "upper",
        Xdigit => "xdigit",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_found() {
        let check = |pattern: &str, subject: Subject, found: &[&str], others: &[&str]| {
            let text = written(pattern, false, subject).unwrap_or_else(|| panic!("{pattern}"));
            let regex = regex::Regex::new(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            found.iter().for_each(|one| assert!(regex.is_match(one), "{pattern}: {one} ({text})"));
            others.iter().for_each(|one| assert!(!regex.is_match(one), "{pattern}: {one} ({text})"));
        };
        let (path, value) = (Subject::Path, Subject::Value);
        check(r"\.php$", path, &["/a.php", "/a.php%0a"], &["/a.phps", "/aphp"]);
        check("^/admin/", path, &["/admin/", "/admin%2fx", "/%2Fadmin/"], &["/admin", "/x/admin/"]);
        check("^/adm.n/", path, &["/admin/", "/adm%e9n/"], &["/admn/"]);
        check("[ <>'\"]", path, &["/a%20", "/%3c"], &["/a"]);
        check(r"^/a\+b$", path, &["/a+b", "/a%2bb", "/a%2Bb"], &["/aab"]);
        check(r"^/(x|y)/([0-9]{2,3})$", path, &["/x/12"], &["/x/1", "/z/12"]);
        check(r"^/[^/]+/private", path, &["/a/private"], &["/private"]);
        check(r"^\d+$", value, &["12"], &["\u{661}", "1a"]);
        check(r"^\W+$", value, &["é", "--"], &["a"]);
        check(r"\bbot\b", value, &["a bot"], &["robot"]);
        check(r"^[\w.-]+$", value, &["a_b.c-d"], &["a b", "é"]);
        check("^[[:alpha:]]+$", value, &["ab"], &["a1"]);
        check("^(?<a>x)y??$", value, &["x", "xy"], &["y"]);
        for refused in ["", "a*", "(?i)a", r"\pL", "é", "[a&&b]", "a(?=b)", r"\Aa", "(?s:a)"] {
            assert_eq!(written(refused, false, value), None, "{refused}");
        }
        assert!(regex::Regex::new(&written("K", true, value).unwrap()).unwrap().is_match("k"));
    }
}

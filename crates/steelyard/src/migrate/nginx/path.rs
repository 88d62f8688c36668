//! Expressions of nginx for the paths that routes of Steelyard see.
//!
//! nginx compares a location with the decoded path, and a route is compared with the normal form, in which only letters, digits and `-._~` are
//! decoded: nginx sees `/a+b` where a route sees `/a%2Bb` or `/a+b`, as the client wrote it. So an expression for the decoded path becomes one that
//! matches exactly the normal forms of what it matched. Paths with `%2F`, `%5C` or an escaped control character do not get here: the listener has
//! `refuse_ambiguous`.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Capture, Class, ClassUnicode, ClassUnicodeRange, Hir, HirKind, Look, Repetition};

use super::super::pattern::{self, Sign, escaped, is_normal, searched};

/// An expression with more parts has no equivalent.
const DEEP_MAX: u32 = 50;

/// The condition for the paths in which nginx finds an expression; `None` if there is none.
pub(super) fn found(pattern: &str, ignores_case: bool) -> Option<String> {
    if !reads_alike(pattern) {
        return None;
    }
    normal(&searched(pattern, ignores_case)?)
}

/// The condition for the paths that begin with a text, or are it.
pub(super) fn text(path: &str) -> String {
    // The expression of a text can always be read.
    normal(&escaped(path)).unwrap_or_else(|| escaped(path))
}

/// Whether every normal form of a path is the path itself.
pub(super) fn is_plain(path: &str) -> bool {
    is_normal(path, is_unreserved)
}

/// Whether nginx (PCRE) and Steelyard read an expression in the same way, as far as both can read it.
pub(super) fn reads_alike(pattern: &str) -> bool {
    // A literal or another class there; here the bounds of words, and letters by number.
    pattern::reads_alike(pattern, |sign| !matches!(sign, Sign::Escape(Some('<' | '>' | 'v' | 'u' | 'U'))))
}

/// Whether an expression matches nothing at all, too, as a header that is not there; also if that is not known.
pub(super) fn takes_nothing(pattern: &str) -> bool {
    let read = ParserBuilder::new().nest_limit(DEEP_MAX).build().parse(pattern);
    read.map_or(true, |read| read.properties().minimum_len() == Some(0))
}

/// The expression for normal forms, of one that matches whole decoded paths.
fn normal(expression: &str) -> Option<String> {
    let parsed = ParserBuilder::new().unicode(false).utf8(false).nest_limit(DEEP_MAX).build().parse(expression).ok()?;
    let mut encoding = Encoding { changed: false };
    let encoded = encoding.of(&parsed, true)?;
    Some(if encoding.changed { encoded.to_string() } else { expression.to_owned() })
}

struct Encoding {
    /// Otherwise the expression as it is written is right.
    changed: bool,
}

impl Encoding {
    /// `ends_whole`: what follows cannot begin in the middle of an escape.
    fn of(&mut self, hir: &Hir, ends_whole: bool) -> Option<Hir> {
        Some(match hir.kind() {
            HirKind::Empty | HirKind::Look(Look::Start | Look::End) => hir.clone(),
            // The bounds of words are others in escapes, and a path has one line.
            HirKind::Look(_) => return None,
            HirKind::Literal(literal) => {
                Hir::concat(literal.0.iter().map(|byte| self.bytes(&Bytes::of([*byte]))).collect())
            }
            HirKind::Class(class) => {
                let bytes = Bytes::of_class(class)?;
                self.bytes(&bytes)
            }
            HirKind::Repetition(Repetition { min, max, greedy, sub }) => {
                let all = match sub.kind() {
                    HirKind::Class(class) => Bytes::of_class(class).filter(Bytes::has_escapes),
                    _ => None,
                };
                let sub = match all {
                    // Each sign of an escape is one of them, too.
                    Some(bytes) if *min <= 1 && max.is_none() && ends_whole => bytes.written(),
                    _ => self.of(sub, false)?,
                };
                Hir::repetition(Repetition { min: *min, max: *max, greedy: *greedy, sub: Box::new(sub) })
            }
            HirKind::Capture(Capture { index, name, sub }) => {
                let sub = Box::new(self.of(sub, ends_whole)?);
                Hir::capture(Capture { index: *index, name: name.clone(), sub })
            }
            HirKind::Concat(all) => {
                let mut parts = Vec::new();
                for (number, part) in all.iter().enumerate() {
                    let ends_whole = all.get(number + 1).map_or(ends_whole, begins_whole);
                    parts.push(self.of(part, ends_whole)?);
                }
                Hir::concat(parts)
            }
            HirKind::Alternation(all) => {
                let all: Option<Vec<Hir>> = all.iter().map(|one| self.of(one, ends_whole)).collect();
                Hir::alternation(all?)
            }
        })
    }

    /// One of these bytes, written as itself or as an escape.
    fn bytes(&mut self, bytes: &Bytes) -> Hir {
        let escaped: Vec<u8> = bytes.all().filter(|byte| *byte != b'/' && !is_unreserved(*byte)).collect();
        if escaped.is_empty() {
            return bytes.written();
        }
        self.changed = true;
        let digit = || Bytes::of(*b"0123456789ABCDEF").written();
        let mut all = match bytes.has_reserved() {
            true => vec![Hir::concat(vec![Hir::literal(*b"%"), digit(), digit()])],
            false => escaped.into_iter().map(|byte| Hir::literal(format!("%{byte:02X}").into_bytes())).collect(),
        };
        let mut plain = bytes.clone();
        plain.remove(b'%');
        if plain.all().any(|byte| byte.is_ascii_graphic()) {
            all.insert(0, plain.written());
        }
        Hir::alternation(all)
    }
}

/// Whether what an expression matches cannot begin with a digit of an escape. The end of a path is not within one.
fn begins_whole(hir: &Hir) -> bool {
    match hir.kind() {
        HirKind::Empty => false,
        HirKind::Look(look) => matches!(look, Look::Start | Look::End),
        HirKind::Literal(literal) => literal.0.first().is_some_and(|byte| !is_digit(*byte)),
        HirKind::Class(class) => Bytes::of_class(class).is_some_and(|bytes| !bytes.all().any(is_digit)),
        HirKind::Repetition(Repetition { min, sub, .. }) => *min > 0 && begins_whole(sub),
        HirKind::Capture(Capture { sub, .. }) => begins_whole(sub),
        HirKind::Concat(all) => all.first().is_some_and(begins_whole),
        HirKind::Alternation(all) => all.iter().all(begins_whole),
    }
}

/// A digit of an escape in a normal form.
fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'A'..=b'F')
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

/// Some of all bytes.
#[derive(Clone)]
struct Bytes([bool; 256]);

impl Bytes {
    fn of<const N: usize>(all: [u8; N]) -> Self {
        Self(std::array::from_fn(|byte| all.iter().any(|one| usize::from(*one) == byte)))
    }

    fn of_class(class: &Class) -> Option<Self> {
        let mut found = Self([false; 256]);
        let mut add = |start: usize, end: usize| found.0.get_mut(start..=end).map(|bytes| bytes.fill(true));
        match class {
            Class::Bytes(class) => {
                class.iter().try_for_each(|range| add(range.start().into(), range.end().into()))?;
            }
            Class::Unicode(class) => {
                class.is_ascii().then_some(())?;
                class.iter().try_for_each(|range| add(range.start() as usize, range.end() as usize))?;
            }
        }
        Some(found)
    }

    fn all(&self) -> impl Iterator<Item = u8> + '_ {
        (0..=u8::MAX).filter(|byte| self.0.get(usize::from(*byte)) == Some(&true))
    }

    fn remove(&mut self, byte: u8) {
        if let Some(one) = self.0.get_mut(usize::from(byte)) {
            *one = false;
        }
    }

    /// It has every byte that occurs as an escape.
    fn has_reserved(&self) -> bool {
        let occurs = |byte: &u8| !byte.is_ascii_control() && !is_unreserved(*byte) && !b"/\\".contains(byte);
        (0..=u8::MAX).filter(occurs).all(|byte| self.0.get(usize::from(byte)) == Some(&true))
    }

    /// It has every byte that occurs as an escape, and every sign of an escape.
    fn has_escapes(&self) -> bool {
        self.has_reserved()
            && (0..=u8::MAX).filter(|byte| is_digit(*byte)).all(|byte| self.all().any(|one| one == byte))
    }

    /// Those that can stand in a path. None if there is no such byte: then nothing matches.
    fn written(&self) -> Hir {
        let range = |byte: u8| ClassUnicodeRange::new(byte.into(), byte.into());
        Hir::class(Class::Unicode(ClassUnicode::new(self.all().filter(u8::is_ascii_graphic).map(range))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plain_stays() {
        let check =
            |pattern: &str, expect: &str| assert_eq!(found(pattern, false).as_deref(), Some(expect), "{pattern}");
        check("^/img/.*\\.png$", "/img/.*\\.png");
        check("\\.(php|inc)$", ".*?(?:\\.(php|inc)$).*");
        check("^/user/[^/]+/x", "/user/[^/]+/x.*");
        assert_eq!(text("/a.b/"), "/a\\.b/");
        assert!(
            is_plain("/a.b/~c") && !is_plain("/a+b") && !is_plain("/a//b") && !is_plain("/a/../b") && !is_plain("a")
        );
    }

    #[test]
    fn what_has_no_equivalent() {
        for pattern in ["\\bx", "(?=x)", "(x)\\1", "[a[b]]", "[a&&b]", "\\<x", "(?m)^x$", "\\h", "(", "[é]"] {
            assert_eq!(found(pattern, false), None, "{pattern}");
        }
        for pattern in ["[[:alpha:]_-]x", "[]x]", "[^]x]", "a{2,3}"] {
            assert!(found(pattern, false).is_some(), "{pattern}");
        }
    }

    #[test]
    fn nothing_is_matched() {
        assert!(takes_nothing(".*") && takes_nothing("a?") && takes_nothing("(") && !takes_nothing("a.*"));
    }

    /// An expression for normal forms matches what the original matches in decoded paths. `escape` writes other bytes as nobody must.
    #[test]
    fn both_forms_match_alike() {
        let decoded = |path: &str| -> Vec<u8> {
            let mut out = Vec::new();
            let mut rest = path.as_bytes();
            while let [byte, behind @ ..] = rest {
                let digits = std::str::from_utf8(behind.get(..2).unwrap_or_default()).unwrap_or_default();
                match (byte, u8::from_str_radix(digits, 16)) {
                    (b'%', Ok(byte)) => {
                        out.push(byte);
                        rest = &behind[2..];
                    }
                    _ => {
                        out.push(*byte);
                        rest = behind;
                    }
                }
            }
            out
        };
        let patterns = [
            "^/a+b",
            "^/a\\+b$",
            "^/x y",
            "é",
            "20$",
            ".*0$",
            "^/.$",
            "^/.{3}$",
            "[^a-z]$",
            "^/[^/]+$",
            "%",
            "^/[+ ]x",
            "(?i)^/ABC",
            "A.*B",
            "^/(a|\\$)+$",
            "^/a.?b",
            "B$",
            "^/a[0-9]*5",
            "\\.php$",
            "^/[^.]*$",
            "",
        ];
        let parts =
            ["a", "b", "0", "5", "B", "+", "%2B", "%20", "%C3%A9", "%25", "/", ".", "$", "%24", "x", ".php", "%40"];
        let mut paths: Vec<String> = vec!["/".to_owned()];
        for first in parts {
            for second in parts {
                paths.push(format!("/{first}{second}"));
                paths.extend(parts.map(|third| format!("/{first}{second}{third}")));
            }
        }
        for pattern in patterns {
            let ours = found(pattern, false).unwrap_or_else(|| panic!("{pattern}"));
            let whole = regex::Regex::new(&format!("^(?:{ours})$")).unwrap();
            let theirs = regex::bytes::RegexBuilder::new(pattern).unicode(false).build().unwrap();
            for path in &paths {
                assert_eq!(whole.is_match(path), theirs.is_match(&decoded(path)), "{pattern} is {ours}: {path}");
            }
        }
    }
}

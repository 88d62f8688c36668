//! Texts that match a regular expression, so that requests can be made from paths and hosts that are expressions.

use regex_syntax::hir::{Class, Hir, HirKind};

/// Bytes of a text. Paths of requests are shorter.
const BYTES_MAX: usize = 1024;

/// Parts of an expression that are visited for one text: `(a?){1000}{1000}` has few parts and many repetitions.
const VISITS_MAX: usize = 4096;

/// Bytes of an expression: nginx takes no longer ones, and reading one of the size of an object takes GiB.
const PATTERN_BYTES_MAX: usize = 4096;

/// Texts for one expression.
const SAMPLES_MAX: usize = 8;

/// Bytes of a compiled expression.
const COMPILED_BYTES_MAX: usize = 256 * 1024;

/// The signs that stand for a class, if it has one of them.
const LIKELY: &str = "a1A-_./ ";

/// Texts that match an expression from their beginning: the first one is as short as the parts of the expression allow, and the others show other
/// alternatives and repetitions. There are none if the expression cannot be read, or if only long texts match.
pub(super) fn samples(pattern: &str) -> Vec<String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        return Vec::new();
    }
    let Ok(hir) = regex_syntax::parse(pattern) else { return Vec::new() };
    let anchored = format!("^(?:{pattern})");
    let Ok(regex) = regex::RegexBuilder::new(&anchored).size_limit(COMPILED_BYTES_MAX).build() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for choice in std::iter::once(None).chain((0..SAMPLES_MAX).map(Some)) {
        let mut making = Making { choice, text: String::new(), visits: 0 };
        // `^` and `$` within an expression can make a text that does not match.
        if making.add(&hir).is_some() && regex.is_match(&making.text) && !found.contains(&making.text) {
            found.push(making.text);
        }
    }
    found.truncate(SAMPLES_MAX);
    found
}

struct Making {
    /// The alternative that is taken, with the repetitions of one more than the fewest; `None`: the shortest and the fewest.
    choice: Option<usize>,
    text: String,
    visits: usize,
}

impl Making {
    /// Adds what matches this part; `None` if that is too long, or if nothing matches.
    fn add(&mut self, hir: &Hir) -> Option<()> {
        self.visits += 1;
        if self.visits > VISITS_MAX || self.text.len() > BYTES_MAX {
            return None;
        }
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => {}
            HirKind::Literal(literal) => self.text.push_str(std::str::from_utf8(&literal.0).ok()?),
            HirKind::Class(class) => self.text.push(member(class)?),
            HirKind::Capture(capture) => self.add(&capture.sub)?,
            HirKind::Concat(parts) => parts.iter().try_for_each(|part| self.add(part))?,
            HirKind::Repetition(repetition) => {
                let more = u32::from(self.choice.is_some() && repetition.max != Some(repetition.min));
                for _ in 0..repetition.min.saturating_add(more) {
                    self.add(&repetition.sub)?;
                }
            }
            HirKind::Alternation(parts) => {
                let shortest = || parts.iter().min_by_key(|part| part.properties().minimum_len());
                let chosen = self.choice.and_then(|choice| parts.get(choice % parts.len().max(1)));
                self.add(chosen.or_else(shortest)?)?;
            }
        }
        Some(())
    }
}

/// A sign of a class.
fn member(class: &Class) -> Option<char> {
    let has = |wanted: char| match class {
        Class::Unicode(class) => class.iter().any(|range| (range.start()..=range.end()).contains(&wanted)),
        Class::Bytes(class) => {
            class.iter().any(|range| (char::from(range.start())..=char::from(range.end())).contains(&wanted))
        }
    };
    let visible = || ('!'..='~').find(|sign| has(*sign));
    let any = || match class {
        Class::Unicode(class) => class.iter().next().map(|range| range.start()),
        Class::Bytes(_) => None,
    };
    LIKELY.chars().find(|sign| has(*sign)).or_else(visible).or_else(any)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_match() {
        let check = |pattern: &str, expect: &[&str]| {
            let found = samples(pattern);
            assert_eq!(found, expect, "{pattern}");
        };
        check("/api/v[0-9]+/x", &["/api/v1/x", "/api/v11/x"]);
        check("/b(/|$)(.*)", &["/b", "/b/a"]);
        check("/a/(users|groups|all)/?", &["/a/all", "/a/users/", "/a/groups/", "/a/all/"]);
        check(r"/[^/]+\.(png|jpe?g)$", &["/a.png", "/aa.png", "/aa.jpeg"]);
        check(r"^www\d{2}\.a\.example$", &["www11.a.example"]);
        check("/x$y", &[]);
        check("(", &[]);
        check("(?!a)b", &[]);
        // Neither long nor slow.
        check("a{2000}", &[]);
        check(&format!("/{}", r"\w".repeat(3000)), &[]);
        check("(((a?){1000}){1000}){1000}", &[]);
        check(&"(a|b)?".repeat(100), &["", &"a".repeat(100)]);
        assert!(samples("(1|2|3|4|5|6|7|8|9|aa|bb)(xx|y)").len() <= SAMPLES_MAX);
    }
}

//! Regular expressions of rules. Each is compiled once, however often the objects are translated, and their number and size are bounded.
//!
//! Anyone who may write a route can write them. The library matches in time linear in the length of the path, whatever the expression, but
//! an expression can cost memory and time to compile.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

/// Bytes that one compiled expression may take.
const REGEX_BYTES_MAX: usize = 256 * 1024;

/// Different expressions in all routes together. With the bound on each, they take 256 MiB at the very worst; a common one takes a few KiB.
const REGEXES_MAX: usize = 1024;

/// The known expressions, each with the number of the last translation that used it.
#[derive(Default)]
pub struct Regexes {
    known: HashMap<Box<str>, (Regex, u64)>,
    translation: u64,
    in_use: usize,
}

impl Regexes {
    /// Begins a translation.
    pub(super) fn begin(&mut self) {
        self.translation += 1;
        self.in_use = 0;
    }

    /// Ends a translation: expressions that it did not use are removed.
    pub(super) fn end(&mut self) {
        self.known.retain(|_, (_, last)| *last == self.translation);
    }

    /// Compiles the expression, anchored at both ends.
    ///
    /// # Errors
    /// Returns a sentence if it is invalid or too large, or if there are too many.
    pub(super) fn anchored(&mut self, text: &str) -> Result<Regex, String> {
        if let Some((regex, last)) = self.known.get_mut(text) {
            if *last != self.translation {
                if self.in_use >= REGEXES_MAX {
                    return Err(too_many());
                }
                (*last, self.in_use) = (self.translation, self.in_use + 1);
            }
            return Ok(regex.clone());
        }
        if self.in_use >= REGEXES_MAX {
            return Err(too_many());
        }
        let regex = compile(text)?;
        self.known.insert(text.into(), (regex.clone(), self.translation));
        self.in_use += 1;
        Ok(regex)
    }
}

fn too_many() -> String {
    format!("the limit of {REGEXES_MAX} regular expressions is reached")
}

fn compile(text: &str) -> Result<Regex, String> {
    let compile = |text: &str, bytes_max| RegexBuilder::new(text).size_limit(bytes_max).build();
    // Compile the expression alone first: `a)|(b` must not become valid through the parentheses that are put around it. A size limit of 0
    // makes this stop before the costly part.
    if let Err(regex::Error::Syntax(_)) = compile(text, 0) {
        return Err(format!("{text:?} is not a regular expression"));
    }
    let anchored = compile(&format!(r"\A(?:{text})\z"), REGEX_BYTES_MAX);
    // If this does not compile, the expression ends in a comment (`(?x)` allows them). A newline ends the comment.
    let anchored = anchored.or_else(|_| compile(&format!("\\A(?:{text}\n)\\z"), REGEX_BYTES_MAX));
    anchored.map_err(|_| format!("the regular expression {text:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchored_and_bounded() {
        let mut regexes = Regexes::default();
        let mut check = |text: &str, matches: &[&str], others: &[&str]| {
            let regex = regexes.anchored(text).unwrap();
            assert!(matches.iter().all(|path| regex.is_match(path)), "{text}");
            assert!(!others.iter().any(|path| regex.is_match(path)), "{text}");
        };
        check("/a|/b", &["/a", "/b"], &["/ab", "/a/", "x/a"]);
        check("(?x) /a # the first", &["/a"], &["/a#"]);
        for wrong in ["(", "a)|(b", "[z-a]", r"\w{9999}"] {
            assert!(regexes.anchored(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn one_too_many_is_refused_and_the_others_are_kept() {
        let mut regexes = Regexes::default();
        for _ in 0..2 {
            regexes.begin();
            for number in 0..REGEXES_MAX {
                assert!(regexes.anchored(&format!("/{number}")).is_ok());
            }
            assert!(regexes.anchored("/0").is_ok(), "it is there already");
            assert!(regexes.anchored("/more").is_err());
            regexes.end();
        }
        // Expressions that are no longer used make room.
        regexes.begin();
        assert!(regexes.anchored("/more").is_ok());
        regexes.end();
        assert_eq!(regexes.known.len(), 1);
    }
}

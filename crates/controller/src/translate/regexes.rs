//! Regular expressions of rules. Each is compiled once, however often the objects are translated, and their number and size are bounded.
//!
//! Anyone who may write a route can write them. The library matches in time linear in the length of the path, whatever the expression, but
//! an expression can cost memory and time to compile.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};

use crate::ingress_nginx::regex_of;

/// Bytes that one compiled expression may take; it is charged with the least of these that it needs. A common one needs the first.
const REGEX_BYTES: [usize; 3] = [16 * 1024, 64 * 1024, 256 * 1024];

/// Bytes of all different expressions of all routes together: 16,384 common ones.
const REGEXES_BYTES_MAX: usize = 256 << 20;

/// Bytes that a thread remembers while it matches one, in proportion to its own. The library's own limit is 2 MiB for each.
const CACHE_FACTOR: usize = 8;

/// The known expressions.
pub struct Regexes {
    known: HashMap<Box<str>, Known>,
    /// The expressions of paths of ingress-nginx, or what paths begin with if there is none, and the last translation that used each.
    of_paths: HashMap<Box<str>, (Result<String, String>, u64)>,
    translation: u64,
    /// Bytes of those that the present translation uses.
    in_use: usize,
    bytes_max: usize,
}

struct Known {
    regex: Regex,
    bytes: usize,
    /// The number of the last translation that used it.
    last: u64,
}

impl Default for Regexes {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            of_paths: HashMap::new(),
            translation: 0,
            in_use: 0,
            bytes_max: REGEXES_BYTES_MAX,
        }
    }
}

impl Regexes {
    /// Begins a translation.
    pub(super) fn begin(&mut self) {
        self.translation += 1;
        self.in_use = 0;
    }

    /// Ends a translation: expressions that it did not use are removed.
    pub(super) fn end(&mut self) {
        self.known.retain(|_, known| known.last == self.translation);
        self.of_paths.retain(|_, (_, last)| *last == self.translation);
    }

    /// The expression of a path of ingress-nginx, as [`regex_of`] finds it, which compiles it twice.
    ///
    /// # Errors
    /// As [`regex_of`].
    pub(super) fn of_path(&mut self, path: &str) -> Result<String, String> {
        if let Some((found, last)) = self.of_paths.get_mut(path) {
            *last = self.translation;
            return found.clone();
        }
        let found = regex_of(path);
        self.of_paths.insert(path.into(), (found.clone(), self.translation));
        found
    }

    /// Compiles the expression, anchored at both ends.
    ///
    /// # Errors
    /// Returns a sentence if it is invalid or too large, or if there are too many.
    pub(super) fn anchored(&mut self, text: &str) -> Result<Regex, String> {
        let left = self.bytes_max.saturating_sub(self.in_use);
        if let Some(known) = self.known.get_mut(text) {
            if known.last != self.translation {
                if known.bytes > left {
                    return Err(too_many());
                }
                known.last = self.translation;
                self.in_use += known.bytes;
            }
            return Ok(known.regex.clone());
        }
        if left < REGEX_BYTES[0] {
            return Err(too_many());
        }
        let (regex, bytes) = compile(text)?;
        if bytes > left {
            return Err(too_many());
        }
        self.known.insert(text.into(), Known { regex: regex.clone(), bytes, last: self.translation });
        self.in_use += bytes;
        Ok(regex)
    }
}

fn too_many() -> String {
    format!("the regular expressions of all routes take more than {} MiB", REGEXES_BYTES_MAX >> 20)
}

fn compile(text: &str) -> Result<(Regex, usize), String> {
    let compile = |text: &str, bytes_max: usize| {
        RegexBuilder::new(text).size_limit(bytes_max).dfa_size_limit(bytes_max.saturating_mul(CACHE_FACTOR)).build()
    };
    // Compile the expression alone first: `a)|(b` must not become valid through the parentheses that are put around it. A size limit of 0
    // makes this stop before the costly part.
    if let Err(regex::Error::Syntax(_)) = compile(text, 0) {
        return Err(format!("{text:?} is not a regular expression"));
    }
    for bytes in REGEX_BYTES {
        let anchored = compile(&format!(r"\A(?:{text})\z"), bytes);
        // If this does not compile, the expression ends in a comment (`(?x)` allows them). A newline ends the comment.
        if let Ok(regex) = anchored.or_else(|_| compile(&format!("\\A(?:{text}\n)\\z"), bytes)) {
            return Ok((regex, bytes));
        }
    }
    Err(format!("the regular expression {text:?} is too large"))
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
    fn paths_are_known_as_long_as_they_are_used() {
        let mut regexes = Regexes::default();
        for path in ["/a(.*)", "/b(?!c)"] {
            regexes.begin();
            for _ in 0..2 {
                assert_eq!(regexes.of_path(path), regex_of(path));
            }
            regexes.end();
            assert_eq!(regexes.of_paths.len(), 1);
        }
    }

    #[test]
    fn one_too_many_is_refused_and_the_others_are_kept() {
        let mut regexes = Regexes { bytes_max: 8 * REGEX_BYTES[0], ..Regexes::default() };
        for _ in 0..2 {
            regexes.begin();
            for number in 0..8 {
                assert!(regexes.anchored(&format!("/{number}")).is_ok());
            }
            assert!(regexes.anchored("/0").is_ok(), "it is there already");
            assert!(regexes.anchored("/more").is_err());
            regexes.end();
        }
        // One that is larger counts more.
        regexes.begin();
        assert!(regexes.anchored(r"/\w").is_ok());
        assert!(regexes.in_use > REGEX_BYTES[0], "{}", regexes.in_use);
        regexes.end();
        // Expressions that are no longer used make room.
        regexes.begin();
        assert!(regexes.anchored("/more").is_ok());
        regexes.end();
        assert_eq!(regexes.known.len(), 1);
    }
}

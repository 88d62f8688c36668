//! Regular expressions of rules. Each is compiled once, however often the objects are translated, and their number and size are bounded.
//!
//! Anyone who may write a route can write them. The library matches in time linear in the length of the path, whatever the expression, but
//! an expression can cost memory and time to compile. So what may be compiled is bounded before it is, in proportion to that: also for
//! expressions that turn out to be too large, which are remembered as well.

use std::collections::HashMap;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};

use crate::ingress_nginx::{literal_of, pattern_of};

/// Bytes that one compiled expression may take; it is charged with the least of these that it needs. A common one needs the first.
const REGEX_BYTES: [usize; 3] = [16 * 1024, 64 * 1024, 256 * 1024];

/// What one is charged that does not fit in the most. It takes no memory, but the time of all attempts: of 4 KiB of `(a|b|[^c]+)?` each took
/// 7.4 ms in an optimised build on a busy CPU of 2026, three times as long as one that fits. 256 of them, and nothing more is tried.
const TOO_LARGE_BYTES: usize = 1 << 20;

/// Bytes of all different expressions of all routes together: 16,384 common ones.
const REGEXES_BYTES_MAX: usize = 256 << 20;

/// Bytes that a thread remembers while it matches one, in proportion to its own. The library's own limit is 2 MiB for each.
const CACHE_FACTOR: usize = 8;

/// The known expressions.
pub struct Regexes {
    known: HashMap<Box<str>, Known>,
    /// The expressions of paths of ingress-nginx, and the last translation that used each.
    of_paths: HashMap<Box<str>, (Option<String>, u64)>,
    translation: u64,
    /// Bytes of those that the present translation uses.
    in_use: usize,
    bytes_max: usize,
    /// How often the compilation of one was begun.
    #[cfg(test)]
    begun: usize,
}

struct Known {
    /// `None`: it is too large.
    regex: Option<Arc<Regex>>,
    bytes: usize,
    /// The number of the last translation that used it.
    last: u64,
}

/// A path of ingress-nginx that cannot be matched.
#[derive(Debug, PartialEq, Eq)]
pub struct Unmatched {
    /// All paths that it can match begin with this, in any case of letters.
    pub begins: String,
    pub why: String,
}

/// Why there is no compiled expression.
enum Failure {
    /// The text is none.
    Invalid,
    TooLarge,
    TooMany,
}

impl Default for Regexes {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            of_paths: HashMap::new(),
            translation: 0,
            in_use: 0,
            bytes_max: REGEXES_BYTES_MAX,
            #[cfg(test)]
            begun: 0,
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

    /// Compiles the expression of a path of ingress-nginx.
    ///
    /// # Errors
    /// It has no expression here, or that is too large, or there are too many.
    pub(super) fn of_path(&mut self, path: &str) -> Result<Regex, Unmatched> {
        let pattern = match self.of_paths.get_mut(path) {
            Some((pattern, last)) => {
                *last = self.translation;
                pattern.clone()
            }
            None => {
                let pattern = pattern_of(path);
                self.of_paths.insert(path.into(), (pattern.clone(), self.translation));
                pattern
            }
        };
        let compiled = pattern.ok_or(Failure::Invalid).and_then(|pattern| self.compiled(&pattern));
        compiled.map(|regex| Regex::clone(&regex)).map_err(|failure| Unmatched {
            begins: literal_of(path),
            why: match failure {
                Failure::Invalid => "it looks around or refers back, or is no expression".to_owned(),
                Failure::TooLarge => "the expression is too large".to_owned(),
                Failure::TooMany => too_many(),
            },
        })
    }

    /// Compiles the expression so that it is found anywhere in a text.
    ///
    /// # Errors
    /// As [`Regexes::anchored`].
    pub(super) fn anywhere(&mut self, pattern: &str) -> Result<Regex, String> {
        self.anchored(&found_anywhere(pattern))
    }

    /// The same, for all routes that have it together: each clone of an expression remembers for itself what it needs while it matches one.
    ///
    /// # Errors
    /// As [`Regexes::anchored`].
    pub(super) fn shared_anywhere(&mut self, pattern: &str) -> Result<Arc<Regex>, String> {
        self.shared(&found_anywhere(pattern))
    }

    /// Compiles the expression, anchored at both ends.
    ///
    /// # Errors
    /// Returns a sentence if it is invalid or too large, or if there are too many.
    pub(super) fn anchored(&mut self, text: &str) -> Result<Regex, String> {
        self.shared(text).map(|regex| Regex::clone(&regex))
    }

    /// The same, as [`Regexes::shared_anywhere`].
    ///
    /// # Errors
    /// As [`Regexes::anchored`].
    pub(super) fn shared(&mut self, text: &str) -> Result<Arc<Regex>, String> {
        self.compiled(text).map_err(|failure| match failure {
            Failure::Invalid => format!("{text:?} is not a regular expression"),
            Failure::TooLarge => format!("the regular expression {text:?} is too large"),
            Failure::TooMany => too_many(),
        })
    }

    fn compiled(&mut self, text: &str) -> Result<Arc<Regex>, Failure> {
        let left = self.bytes_max.saturating_sub(self.in_use);
        if let Some(known) = self.known.get_mut(text) {
            if known.last != self.translation {
                if known.bytes > left {
                    return Err(Failure::TooMany);
                }
                known.last = self.translation;
                self.in_use += known.bytes;
            }
            return known.regex.clone().ok_or(Failure::TooLarge);
        }
        let whole = anchored(text).ok_or(Failure::Invalid)?;
        let (mut found, mut tried) = (None, 0);
        for bytes in REGEX_BYTES {
            if bytes > left {
                // What was done in vain is charged: the next such expressions are refused before that.
                self.in_use += tried;
                return Err(Failure::TooMany);
            }
            tried = bytes;
            #[cfg(test)]
            {
                self.begun += 1;
            }
            found = compile(&whole, bytes).map(|regex| (Arc::new(regex), bytes));
            if found.is_some() {
                break;
            }
        }
        let (regex, bytes) = found.map_or((None, TOO_LARGE_BYTES), |(regex, bytes)| (Some(regex), bytes));
        self.in_use += bytes;
        self.known.insert(text.into(), Known { regex: regex.clone(), bytes, last: self.translation });
        regex.ok_or(Failure::TooLarge)
    }
}

fn found_anywhere(pattern: &str) -> String {
    format!("(?s:.*)(?:{pattern})(?s:.*)")
}

fn too_many() -> String {
    format!("the regular expressions of all routes take more than {} MiB", REGEXES_BYTES_MAX >> 20)
}

/// The expression between anchors; `None` if it is none.
fn anchored(text: &str) -> Option<String> {
    let is_one = |text: &str| regex_syntax::parse(text).is_ok();
    // The expression alone first: `a)|(b` must not become valid through the parentheses that are put around it.
    if !is_one(text) {
        return None;
    }
    let whole = format!(r"\A(?:{text})\z");
    // If this is none, the expression ends in a comment (`(?x)` allows them). A newline ends the comment.
    Some(if is_one(&whole) { whole } else { format!("\\A(?:{text}\n)\\z") })
}

fn compile(text: &str, bytes_max: usize) -> Option<Regex> {
    let cache_bytes = bytes_max.saturating_mul(CACHE_FACTOR);
    RegexBuilder::new(text).size_limit(bytes_max).dfa_size_limit(cache_bytes).build().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress_nginx::regex_of;

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
                let found = regexes.of_path(path).map(|_| ()).map_err(|unmatched| unmatched.begins);
                assert_eq!(found, regex_of(path).map(|_| ()));
            }
            regexes.end();
            assert_eq!(regexes.of_paths.len(), 1);
        }
    }

    #[test]
    fn each_is_compiled_once_and_one_that_is_too_large_is_not_tried_again() {
        let mut regexes = Regexes::default();
        for _ in 0..3 {
            regexes.begin();
            for path in ["/a(.*)", "/a(.*)", "/b[a-z]{9}"] {
                assert!(regexes.of_path(path).is_ok());
            }
            let found = regexes.of_path(r"/c/\w{2000}").unwrap_err();
            assert_eq!(found.begins, "/c/");
            assert!(found.why.contains("is too large"), "{found:?}");
            regexes.end();
            assert_eq!((regexes.begun, regexes.known.len()), (2 + REGEX_BYTES.len(), 3));
        }
        assert_eq!(regexes.in_use, 2 * REGEX_BYTES[0] + TOO_LARGE_BYTES, "what was tried is charged");
    }

    #[test]
    fn few_are_tried_that_are_too_large() {
        let mut regexes = Regexes { bytes_max: 8 * TOO_LARGE_BYTES, ..Regexes::default() };
        for _ in 0..2 {
            regexes.begin();
            let whys = (0..100).map(|number| regexes.of_path(&format!(r"/{number}/\w{{2000}}")).unwrap_err().why);
            assert_eq!(whys.filter(|why| why.contains("is too large")).count(), 8);
            regexes.end();
        }
        assert!(regexes.begun <= 9 * REGEX_BYTES.len(), "{}", regexes.begun);
    }

    #[test]
    fn nothing_is_compiled_that_there_is_no_room_for() {
        let costly = |number: usize| format!("/{number}/([a-z]{{1,60}}[0-9]{{1,60}}){{1,9}}");
        let mut regexes = Regexes { bytes_max: 2 * REGEX_BYTES[2], ..Regexes::default() };
        for _ in 0..2 {
            regexes.begin();
            let refused = (0..100).filter(|number| regexes.of_path(&costly(*number)).is_err()).count();
            regexes.end();
            assert!(refused > 80, "{refused}");
        }
        assert!(regexes.begun < 40, "{}", regexes.begun);
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

//! Errors of a file and their places. The reader collects them and goes on after each, so that one run reports all errors.

use std::collections::BTreeSet;
use std::fmt;

/// The most diagnostics that one file can have. Later ones are counted but not kept: a file with more is most likely the wrong file.
pub const DIAGNOSTICS_MAX: usize = 100;

/// Characters of the source line that are shown around the place, so that a line of megabytes does not flood the terminal.
const EXCERPT_CHARS_MAX: usize = 160;

/// What a source line and the caret under it begin with. No message does.
const EXCERPT_MARGIN: &str = "    ";

/// Characters of the operator's own text that a message repeats.
const QUOTE_CHARS_MAX: usize = 60;

/// A place in the file. Both numbers begin at 1, and columns count characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
}

impl Location {
    /// The beginning of the file: the place of an error about something that is missing.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// One thing that is wrong with a file.
///
/// `Display` is one line: `FILE:LINE:COLUMN: message; hint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file name as the caller gave it.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What would be right, if known.
    pub hint: Option<String>,
    /// The line of the file and the number of characters before the place; `None` if the file has no such line.
    pub excerpt: Option<Excerpt>,
}

/// A line of a file, shortened on both sides if it is very long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line without its end and without control characters other than tabs.
    pub text: String,
    /// Characters of `text` before the place.
    pub before: usize,
}

/// All errors of a file, in the order of the file; never empty.
///
/// `Display` shows each with its source line and a caret under the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{diagnostic}")?;
            if let Some(excerpt) = &diagnostic.excerpt {
                write!(f, "\n{EXCERPT_MARGIN}{}\n{EXCERPT_MARGIN}{}^", excerpt.text, excerpt.margin())?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// The lines of such a text without source lines and carets. Beside what is wrong, a source line may have a secret, so only whoever may read the
/// file sees it.
pub fn without_excerpts(errors: &str) -> impl Iterator<Item = &str> {
    errors.lines().filter(|line| !line.starts_with(EXCERPT_MARGIN))
}

impl Excerpt {
    fn of(line: &str, location: Location) -> Self {
        let before = location.column - 1;
        let skipped = before.saturating_sub(EXCERPT_CHARS_MAX / 2);
        let shown = line.chars().skip(skipped).take(EXCERPT_CHARS_MAX);
        let text: String = shown.map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect();
        Self { text: text.trim_end().to_owned(), before: before - skipped }
    }

    /// The text before the caret. Tabs stay tabs, so that the caret is under its character whatever the width of a tab.
    fn margin(&self) -> String {
        let mut margin: String =
            self.text.chars().take(self.before).map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let missing = self.before.saturating_sub(margin.chars().count());
        margin.extend(std::iter::repeat_n(' ', missing));
        margin
    }
}

/// What a reader found wrong with one value: the message, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub message: String,
    pub hint: Option<String>,
}

impl Wrong {
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None }
    }

    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{}; {hint}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Collects the errors that the readers find.
#[derive(Debug, Default)]
pub struct Report {
    found: Vec<(Location, Wrong)>,
    /// The number of errors beyond `DIAGNOSTICS_MAX`.
    dropped: usize,
    /// What no excerpt may show.
    hidden: Hidden,
}

/// What no excerpt may show.
#[derive(Clone, Debug, Default)]
pub struct Hidden {
    texts: Vec<String>,
    lines: BTreeSet<usize>,
    /// Nothing of the file may be shown.
    all: bool,
}

impl Hidden {
    fn has(&self, number: usize, line: &str) -> bool {
        self.all || self.lines.contains(&number) || self.texts.iter().any(|text| line.contains(text.as_str()))
    }

    /// Adds what `other` hides.
    pub fn join(&mut self, other: Self) {
        self.texts.extend(other.texts);
        self.lines.extend(other.lines);
        self.all |= other.all;
    }
}

impl Report {
    pub fn add(&mut self, location: Location, wrong: Wrong) {
        if self.found.len() < DIAGNOSTICS_MAX {
            self.found.push((location, wrong));
        } else {
            self.dropped += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Shows no source line that contains this text, such as a key.
    pub fn hide(&mut self, text: &str) {
        if !text.is_empty() {
            self.hidden.texts.push(text.to_owned());
        }
    }

    /// Does not show this line.
    pub fn hide_line(&mut self, number: usize) {
        self.hidden.lines.insert(number);
    }

    /// Shows no line at all.
    pub fn hide_all(&mut self) {
        self.hidden.all = true;
    }

    /// What is hidden.
    pub fn hidden(&mut self) -> &mut Hidden {
        &mut self.hidden
    }

    /// Returns the errors in the order of the file. An error within an alias has the place of its anchor and is reported once.
    pub fn into_errors(mut self, file: &str, text: &str) -> Errors {
        self.found.sort_by(|a, b| (a.0, &a.1.message).cmp(&(b.0, &b.1.message)));
        self.found.dedup();
        if let Some((last, _)) = self.found.last()
            && self.dropped > 0
        {
            self.found.push((*last, Wrong::new(format!("{} more errors are not shown", self.dropped))));
        }
        // A lone CR also ends a line in YAML (YAML 1.2 section 5.4).
        let mut lines = text.lines().flat_map(|line| line.split('\r')).enumerate();
        let hidden = self.hidden;
        let mut current: Option<(usize, &str)> = None;
        let diagnostics = self.found.into_iter().map(|(location, wrong)| {
            // The places are sorted, so one pass over the lines serves all of them.
            while current.is_none_or(|(index, _)| index + 1 < location.line) {
                match lines.next() {
                    Some(next) => current = Some(next),
                    None => break,
                }
            }
            let line = current.filter(|(index, _)| index + 1 == location.line);
            Diagnostic {
                file: file.to_owned(),
                line: location.line,
                column: location.column,
                message: wrong.message,
                hint: wrong.hint,
                excerpt: line
                    .filter(|(index, line)| !hidden.has(index + 1, line))
                    .map(|(_, line)| Excerpt::of(line, location)),
            }
        });
        Errors(diagnostics.collect())
    }
}

/// The operator's own text in a message: in quotes, escaped, shortened.
pub fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTE_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}

/// A key in a message: in backticks, escaped, shortened.
pub fn ticked(key: &str) -> String {
    let quoted = quoted(key);
    format!("`{}`", quoted.trim_matches('"'))
}

/// The nearest of `known` to the written text, if it is near enough to be what the operator meant.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // The cost is the product of both lengths, and no known name is longer than this.
    if written.len() > 64 {
        return None;
    }
    let far = 1 + written.chars().count() / 4;
    known
        .into_iter()
        .map(|name| (strsim::osa_distance(&written.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= far && *distance < name.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: usize, column: usize) -> Location {
        Location { line, column }
    }

    #[test]
    fn errors_show_the_line_and_a_caret_under_the_place_in_the_order_of_the_file() {
        let mut report = Report::default();
        report.add(at(2, 5), Wrong::new("second").hint("do this"));
        report.add(at(1, 1), Wrong::new("first"));
        report.add(at(9, 1), Wrong::new("past the end"));
        report.add(at(2, 5), Wrong::new("second").hint("do this"));
        let errors = report.into_errors("x.yaml", "a: 1\n\tb: ü\n");
        assert_eq!(
            errors.to_string(),
            "x.yaml:1:1: first\n    a: 1\n    ^\nx.yaml:2:5: second; do this\n    \tb: ü\n    \t   ^\nx.yaml:9:1: past the end"
        );
        let text = errors.to_string();
        let without: Vec<&str> = without_excerpts(&text).collect();
        assert_eq!(without, ["x.yaml:1:1: first", "x.yaml:2:5: second; do this", "x.yaml:9:1: past the end"]);
    }

    #[test]
    fn many_errors_and_long_lines_are_bounded() {
        let mut report = Report::default();
        for column in 1..=1000 {
            report.add(at(1, column * 1000), Wrong::new("wrong"));
        }
        let errors = report.into_errors("x.yaml", &"x".repeat(1_000_000));
        assert_eq!(errors.0.len(), DIAGNOSTICS_MAX + 1);
        assert_eq!(errors.0.last().unwrap().message, "900 more errors are not shown");
        assert!(errors.0.iter().all(|d| d.excerpt.as_ref().unwrap().text.len() <= EXCERPT_CHARS_MAX));
    }

    #[test]
    fn nearest_names_what_was_meant_and_nothing_else() {
        let check =
            |written, expect| assert_eq!(nearest(written, ["listeners", "clusters", "to"]), expect, "{written}");
        check("listener", Some("listeners"));
        check("Clutsers", Some("clusters"));
        check("vips", None);
        check("at", None);
        check("t", Some("to"));
        check(&"x".repeat(100), None);
    }

    #[test]
    fn quotes_are_escaped_and_short() {
        assert_eq!(quoted("a\"\n\u{1b}[31m"), r#""a\"\n\u{1b}[31m""#);
        assert_eq!(quoted(&"x".repeat(1000)).chars().count(), QUOTE_CHARS_MAX + 3);
        assert_eq!(ticked("vips"), "`vips`");
    }
}

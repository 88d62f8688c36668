//! TOML files that people write for the lab, read with every error at its place.
//!
//! It turns text into tables from which values are taken by name and kind. Errors are noted, and reading continues with a stand-in, so that
//! one pass finds everything that is wrong. A name that was never taken is unknown, and an error that suggests the nearest known name. The
//! meaning of the values is not its concern.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::units;

/// The size limit of a file in bytes; a larger file is a mistake.
const BYTES_MAX: usize = 1 << 20;

/// The most problems that are reported for one file.
const PROBLEMS_MAX: usize = 100;

/// How near a known name must be to an unknown one to be suggested (Jaro-Winkler, 0 to 1).
const SIMILARITY_MIN: f64 = 0.8;

/// An error in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// What is wrong, and what would be right.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}:{}: {}", self.file, self.line, self.column, self.what)
    }
}

/// A file while it is being read.
pub(crate) struct Document<'t> {
    file: &'t str,
    text: &'t str,
    problems: RefCell<Vec<Problem>>,
}

impl<'t> Document<'t> {
    /// Passes the file's top table to `take`, and returns its result.
    ///
    /// # Errors
    /// Everything that is wrong, by place.
    pub(crate) fn read<T>(
        file: &'t str,
        text: &'t str,
        take: impl FnOnce(&mut Table<'_, '_>) -> T,
    ) -> Result<T, Vec<Problem>> {
        let document = Self { file, text, problems: RefCell::default() };
        if text.len() > BYTES_MAX {
            document.note(0..0, format!("the file is larger than {BYTES_MAX} bytes"));
            return Err(document.problems.into_inner());
        }
        let (table, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            // What follows a mistake of the syntax may be lost, and would be missed.
            for error in errors {
                document.note(error.span().unwrap_or_default(), error.message().to_owned());
            }
            return Err(document.sorted());
        }
        let span = 0..0;
        let mut top = Table { document: &document, table: table.get_ref(), span, taken: Vec::new() };
        let taken = take(&mut top);
        top.finish();
        let problems = document.sorted();
        if problems.is_empty() { Ok(taken) } else { Err(problems) }
    }

    /// The problems, by place.
    fn sorted(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|problem| (problem.line, problem.column));
        problems
    }

    fn note(&self, span: Range<usize>, what: String) {
        let mut problems = self.problems.borrow_mut();
        if problems.len() >= PROBLEMS_MAX {
            return;
        }
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        problems.push(Problem { file: self.file.to_owned(), line, column, what });
    }
}

/// A table, and the names in it that were requested.
pub(crate) struct Table<'d, 't> {
    document: &'d Document<'t>,
    table: &'d DeTable<'t>,
    /// The place for errors about missing names.
    span: Range<usize>,
    taken: Vec<&'static str>,
}

/// A string and its place.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub text: String,
    pub span: Range<usize>,
}

impl<'d, 't> Table<'d, 't> {
    fn take(&mut self, name: &'static str) -> Option<&'d Spanned<DeValue<'t>>> {
        self.taken.push(name);
        self.table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
    }

    /// Notes an error at `span`.
    pub(crate) fn note(&self, span: Range<usize>, what: impl Into<String>) {
        self.document.note(span, what.into());
    }

    /// Notes an error in the value of `name`, or in the table if it has none.
    pub(crate) fn note_at(&self, name: &str, what: impl Into<String>) {
        let value = self.table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value.span());
        self.document.note(value.unwrap_or_else(|| self.span.clone()), what.into());
    }

    /// Whether no problem of the document was noted yet.
    pub(crate) fn is_clean(&self) -> bool {
        self.document.problems.borrow().is_empty()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.table.iter().any(|(key, _)| key.get_ref() == name)
    }

    fn missing(&self, name: &str) {
        self.document.note(self.span.clone(), format!("`{name}` is missing"));
    }

    fn wrong(&self, value: &Spanned<DeValue<'t>>, name: &str, right: &str) {
        self.document.note(value.span(), format!("`{name}` must be {right}, not {}", a(value.get_ref())));
    }

    pub(crate) fn optional_text(&mut self, name: &'static str) -> Option<Text> {
        let value = self.take(name)?;
        match value.get_ref() {
            DeValue::String(text) => Some(Text { text: text.clone().into_owned(), span: value.span() }),
            _ => {
                self.wrong(value, name, "a string");
                None
            }
        }
    }

    pub(crate) fn optional_string(&mut self, name: &'static str) -> Option<String> {
        self.optional_text(name).map(|text| text.text)
    }

    pub(crate) fn string(&mut self, name: &'static str) -> String {
        if !self.has(name) {
            self.missing(name);
        }
        self.optional_string(name).unwrap_or_default()
    }

    pub(crate) fn texts(&mut self, name: &'static str) -> Option<Vec<Text>> {
        let value = self.take(name)?;
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(value, name, "a list of strings");
            return None;
        };
        let mut texts = Vec::new();
        for item in items.iter() {
            match item.get_ref() {
                DeValue::String(text) => texts.push(Text { text: text.clone().into_owned(), span: item.span() }),
                _ => self.wrong(item, name, "a list of strings"),
            }
        }
        Some(texts)
    }

    pub(crate) fn strings(&mut self, name: &'static str) -> Option<Vec<String>> {
        self.texts(name).map(|texts| texts.into_iter().map(|text| text.text).collect())
    }

    /// A list of commands, each a list of words.
    pub(crate) fn commands(&mut self, name: &'static str) -> Vec<Vec<String>> {
        let Some(value) = self.take(name) else { return Vec::new() };
        let words = |value: &DeValue<'_>| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|word| word.get_ref().as_str().map(str::to_owned)).collect()
        };
        let commands = value.get_ref().as_array().and_then(|commands| {
            commands.iter().map(|command| words(command.get_ref()).filter(|words| !words.is_empty())).collect()
        });
        commands.unwrap_or_else(|| {
            self.wrong(value, name, "a list of commands, each a list of words");
            Vec::new()
        })
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Option<bool> {
        let value = self.take(name)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.wrong(value, name, "true or false");
        }
        flag
    }

    pub(crate) fn number(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let value = self.take(name)?;
        let number = self.number_in(value, name, &range);
        number.or(Some(*range.start()))
    }

    /// A number, or a list of numbers, each of which makes a case.
    pub(crate) fn numbers(&mut self, name: &'static str, range: RangeInclusive<u32>) -> Option<Vec<u32>> {
        let value = self.take(name)?;
        match value.get_ref() {
            DeValue::Array(items) if !items.is_empty() => {
                Some(items.iter().filter_map(|item| self.number_in(item, name, &range)).collect())
            }
            _ => Some(self.number_in(value, name, &range).into_iter().collect()),
        }
    }

    fn number_in(&self, value: &Spanned<DeValue<'t>>, name: &str, range: &RangeInclusive<u32>) -> Option<u32> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => u32::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.wrong(value, name, &format!("a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }

    pub(crate) fn duration(&mut self, name: &'static str) -> Option<Duration> {
        let text = self.optional_text(name)?;
        match units::duration(&text.text) {
            Ok(duration) => Some(duration),
            Err(why) => {
                self.note(text.span, format!("`{name}`: {why}"));
                None
            }
        }
    }

    /// One of a few words.
    pub(crate) fn one_of<T: Copy>(&mut self, name: &'static str, words: &[(&str, T)]) -> Option<T> {
        let text = self.optional_text(name)?;
        let found = words.iter().find(|(word, _)| *word == text.text).map(|&(_, meaning)| meaning);
        if found.is_none() {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            let hint = nearest(&text.text, known.iter().copied());
            self.note(text.span, format!("`{name}` is {:?}; it must be {}{hint}", text.text, known.join(", ")));
        }
        found
    }

    /// A string or a number as written, for values that can be either.
    pub(crate) fn scalars(&mut self, name: &'static str) -> Option<Vec<Text>> {
        let value = self.take(name)?;
        let scalar = |value: &Spanned<DeValue<'t>>| {
            let text = match value.get_ref() {
                DeValue::String(text) => text.clone().into_owned(),
                DeValue::Integer(number) => number.as_str().to_owned(),
                DeValue::Float(number) => number.as_str().to_owned(),
                _ => {
                    self.wrong(value, name, "a number or a string");
                    return None;
                }
            };
            Some(Text { text, span: value.span() })
        };
        match value.get_ref() {
            DeValue::Array(items) => Some(items.iter().filter_map(scalar).collect()),
            _ => scalar(value).map(|text| vec![text]),
        }
    }

    /// The table of that name, read by `take`.
    pub(crate) fn table<T>(&mut self, name: &'static str, take: impl FnOnce(&mut Table<'_, '_>) -> T) -> Option<T> {
        let value = self.take(name)?;
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong(value, name, "a table");
            return None;
        };
        let mut inner = Table { document: self.document, table, span: value.span(), taken: Vec::new() };
        let taken = take(&mut inner);
        inner.finish();
        Some(taken)
    }

    /// The tables of the list of that name, each read by `take`.
    pub(crate) fn tables<T>(&mut self, name: &'static str, mut take: impl FnMut(&mut Table<'_, '_>) -> T) -> Vec<T> {
        let Some(value) = self.take(name) else { return Vec::new() };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(value, name, "a list of tables");
            return Vec::new();
        };
        let mut all = Vec::new();
        for item in items.iter() {
            let DeValue::Table(table) = item.get_ref() else {
                self.wrong(item, name, "a list of tables");
                continue;
            };
            let mut inner = Table { document: self.document, table, span: item.span(), taken: Vec::new() };
            all.push(take(&mut inner));
            inner.finish();
        }
        all
    }

    fn finish(self) {
        for (key, _) in self.table.iter() {
            let name = &**key.get_ref();
            if !self.taken.contains(&name) {
                let hint = nearest(name, self.taken.iter().copied());
                self.document.note(key.span(), format!("unknown name `{name}`{hint}"));
            }
        }
    }
}

/// `; did you mean X?`, or nothing.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let scored = known.map(|candidate| (strsim::jaro_winkler(word, candidate), candidate));
    let best = scored.max_by(|(left, _), (right, _)| left.total_cmp(right));
    best.filter(|(score, _)| *score >= SIMILARITY_MIN)
        .map_or_else(String::new, |(_, candidate)| format!("; did you mean `{candidate}`?"))
}

fn a(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the string {:?}", &**text),
        DeValue::Integer(number) => format!("the number {}", number.as_str()),
        DeValue::Float(number) => format!("the number {}", number.as_str()),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a fixed form, and compares the places and messages of its errors.
    fn check(text: &str, expect: &[&str]) {
        let outcome = Document::read("f", text, |top| {
            top.string("name");
            top.number("count", 1..=9);
            top.duration("time");
            top.one_of("colour", &[("red", 1), ("green", 2)]);
            top.strings("words");
            top.flag("quick");
            top.commands("setup");
            top.numbers("sizes", 1..=9);
            top.table("inner", |inner| inner.string("name"));
            top.tables("case", |case| case.string("name"));
        });
        let problems = outcome.err().unwrap_or_default();
        assert_eq!(problems.iter().map(Problem::to_string).collect::<Vec<_>>(), expect, "{text}");
    }

    #[test]
    fn good_ones() {
        check("name = 'x'", &[]);
        check(
            "name = 'x'\ncount = 9\ntime = '2s'\ncolour = 'red'\nwords = ['a']\nquick = true\nsetup = [['a', 'b']]\nsizes = [1, 2]\n\
             [inner]\nname = 'y'\n[[case]]\nname = 'z'",
            &[],
        );
    }

    #[test]
    fn every_error_has_its_place() {
        check("", &["f:1:1: `name` is missing"]);
        check(
            "name = 7\ncount = 10\ntime = '2'\ncolour = 'gren'\nwords = [1]\nquick = 'yes'\nsetup = [[]]\nsizes = [1, 'a']\n",
            &[
                "f:1:8: `name` must be a string, not the number 7",
                "f:2:9: `count` must be a whole number from 1 to 9, not the number 10",
                "f:3:8: `time`: a duration needs a unit: write 2s or 2ms",
                "f:4:10: `colour` is \"gren\"; it must be red, green; did you mean `green`?",
                "f:5:10: `words` must be a list of strings, not the number 1",
                "f:6:9: `quick` must be true or false, not the string \"yes\"",
                "f:7:9: `setup` must be a list of commands, each a list of words, not a list",
                "f:8:13: `sizes` must be a whole number from 1 to 9, not the string \"a\"",
            ],
        );
    }

    #[test]
    fn unknown_names_have_a_hint_at_any_depth() {
        check(
            "name = 'x'\ncoutn = 1\n[[case]]\nname = 'z'\nnaem = 'z'\nzzz = 1\n",
            &[
                "f:2:1: unknown name `coutn`; did you mean `count`?",
                "f:5:1: unknown name `naem`; did you mean `name`?",
                "f:6:1: unknown name `zzz`",
            ],
        );
    }

    #[test]
    fn syntax_errors_do_not_hide_the_rest() {
        let problems = Document::read("f", "name = \ncount = 'ä' 'x'\n", |top| top.number("count", 1..=9)).unwrap_err();
        assert!(problems.len() >= 2, "{problems:?}");
        assert_eq!((problems[0].line, problems[0].file.as_str()), (1, "f"));
    }
}

//! Reads a file of HAProxy: lines, words, sections, and the defaults that hold for each section. The size of what comes out is bounded.

use std::collections::HashMap;
use std::rc::Rc;

/// Lines of a file.
const LINES_MAX: usize = 200_000;

/// Words of a line. HAProxy takes 64.
const WORDS_MAX: usize = 1_024;

/// Lines of all sections together, with the lines of their defaults in each of them.
const SECTION_LINES_MAX: usize = 1_000_000;

/// The words that begin a section.
const KINDS: &[&str] = &[
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "resolvers",
    "userlist",
    "peers",
    "mailers",
    "cache",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "log-profile",
    "fcgi-app",
    "crt-store",
    "traces",
    "acme",
];

/// A line: its number and its words.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) words: Vec<String>,
}

impl Line {
    pub(super) fn word(&self, place: usize) -> &str {
        self.words.get(place).map_or("", String::as_str)
    }

    /// The words after this many, as they are written.
    pub(super) fn rest(&self, from: usize) -> String {
        self.words.get(from..).unwrap_or_default().join(" ")
    }

    pub(super) fn told(&self) -> String {
        let text = self.rest(0);
        match text.char_indices().nth(100) {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
            None => text,
        }
    }

    /// The word after a word.
    pub(super) fn after(&self, word: &str) -> Option<&str> {
        let place = self.words.iter().position(|known| known == word)?;
        self.words.get(place + 1).map(String::as_str)
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|known| known == word)
    }

    fn begins_with(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(place, word)| self.word(place) == *word)
    }
}

/// A section, with the defaults that hold for it.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) line: usize,
    /// Those of the defaults first.
    pub(super) lines: Vec<Rc<Line>>,
    /// How many of them are of the defaults.
    pub(super) defaults: usize,
    /// The places of the lines of each `acl` in `lines`.
    acls: HashMap<String, Vec<usize>>,
}

impl Section {
    /// The line that begins it.
    pub(super) fn head(&self) -> Line {
        Line { number: self.line, words: vec![self.kind.clone(), self.name.clone()] }
    }

    /// Lines that begin with these words; of single settings, the last counts.
    pub(super) fn all<'s>(&'s self, words: &'s [&str]) -> impl DoubleEndedIterator<Item = &'s Rc<Line>> {
        self.lines.iter().filter(move |line| line.begins_with(words))
    }

    pub(super) fn last(&self, words: &[&str]) -> Option<&Rc<Line>> {
        self.lines.iter().rev().find(|line| line.begins_with(words))
    }

    /// The lines of an acl.
    pub(super) fn acl(&self, name: &str) -> impl Iterator<Item = &Rc<Line>> {
        self.acls.get(name).into_iter().flatten().filter_map(|place| self.lines.get(*place))
    }

    /// Whether an option is on: the last line about it decides.
    pub(super) fn has_option(&self, name: &str) -> bool {
        let is_about =
            |line: &&Rc<Line>| line.begins_with(&["option", name]) || line.begins_with(&["no", "option", name]);
        self.lines.iter().rev().find(is_about).is_some_and(|line| line.word(0) == "option")
    }

    pub(super) fn is_disabled(&self) -> bool {
        let switch = self.lines.iter().rev().find(|line| ["disabled", "enabled"].contains(&line.word(0)));
        switch.is_some_and(|line| line.word(0) == "disabled")
    }

    /// What `mode` says; connections of any protocol are the default.
    pub(super) fn mode(&self) -> &str {
        self.last(&["mode"]).map_or("tcp", |line| line.word(1))
    }

    pub(super) fn is_http(&self) -> bool {
        self.mode() == "http"
    }

    /// A time in milliseconds, which is the unit of times without one.
    pub(super) fn time(&self, words: &[&str]) -> Option<u64> {
        self.last(words).and_then(|line| time(line.words.last().map_or("", String::as_str)))
    }

    fn push(&mut self, line: Rc<Line>) {
        if line.word(0) == "acl" {
            self.acls.entry(line.word(1).to_owned()).or_default().push(self.lines.len());
        }
        self.lines.push(line);
    }
}

/// The sections of a text in the making.
struct Reader<'t> {
    file: &'t str,
    sections: Vec<Section>,
    /// The lines of `defaults`, by name.
    named: HashMap<String, Vec<Rc<Line>>>,
    /// Those of the last `defaults`, which hold where no name is given.
    last: Vec<Rc<Line>>,
    /// The name of the `defaults` that is being read.
    open: Option<String>,
    /// Lines in all sections.
    lines: usize,
}

/// # Errors
/// The place, and what cannot be read there.
pub(super) fn sections(file: &str, text: &str) -> Result<Vec<Section>, String> {
    if text.contains('\u{fffd}') {
        return Err(format!("{file}: it is not UTF-8: conditions with other bytes cannot be translated"));
    }
    let mut reader =
        Reader { file, sections: Vec::new(), named: HashMap::new(), last: Vec::new(), open: None, lines: 0 };
    for (number, text) in text.lines().enumerate().map(|(number, text)| (number + 1, text)) {
        if number > LINES_MAX {
            return Err(format!("{file}: more than {LINES_MAX} lines"));
        }
        let words = words(text).map_err(|why| format!("{file}:{number}: {why}"))?;
        if words.len() > WORDS_MAX {
            return Err(format!("{file}:{number}: more than {WORDS_MAX} words"));
        }
        if !words.is_empty() {
            reader.line(Line { number, words })?;
        }
    }
    reader.end_defaults();
    Ok(reader.sections)
}

impl Reader<'_> {
    fn line(&mut self, line: Line) -> Result<(), String> {
        let (file, number, first) = (self.file, line.number, line.word(0).to_owned());
        if first.starts_with('.') {
            return Err(format!(
                "{file}:{number}: {first}: conditional lines are not read; give the file as it is in use, without them"
            ));
        }
        if KINDS.contains(&first.as_str()) {
            return self.begin(&line);
        }
        let line = Rc::new(line);
        match self.sections.last_mut() {
            Some(section) => section.push(Rc::clone(&line)),
            None => {
                return Err(format!(
                    "{file}:{number}: {first}: it is in no section; a file begins with global, defaults or frontend"
                ));
            }
        }
        if self.open.is_some() {
            self.last.push(line);
        }
        self.count(1)
    }

    fn begin(&mut self, line: &Line) -> Result<(), String> {
        self.end_defaults();
        let kind = line.word(0);
        let inherits = ["frontend", "backend", "listen", "defaults"].contains(&kind);
        let from = line.after("from").filter(|_| inherits);
        let mut lines = match from {
            Some(name) => self.named.get(name).cloned().ok_or_else(|| {
                format!("{}:{}: {}: there is no `defaults {name}` before it", self.file, line.number, line.told())
            })?,
            None if inherits && kind != "defaults" => self.last.clone(),
            None => Vec::new(),
        };
        let name =
            line.words.get(1).filter(|name| *name != "from" || line.words.len() != 3).cloned().unwrap_or_default();
        if kind == "defaults" {
            self.last = std::mem::take(&mut lines);
            self.open = Some(name.clone());
        }
        let mut section = Section {
            kind: kind.to_owned(),
            name,
            line: line.number,
            defaults: lines.len(),
            lines: Vec::with_capacity(lines.len()),
            acls: HashMap::new(),
        };
        self.count(lines.len())?;
        lines.into_iter().for_each(|line| section.push(line));
        // `frontend web *:80`, as older versions have it.
        let address = line.word(2);
        if ["frontend", "listen"].contains(&kind) && address.contains(':') {
            section.push(Rc::new(Line { number: line.number, words: vec!["bind".to_owned(), address.to_owned()] }));
        }
        self.sections.push(section);
        Ok(())
    }

    fn end_defaults(&mut self) {
        if let Some(name) = self.open.take() {
            self.named.insert(name, self.last.clone());
        }
    }

    fn count(&mut self, lines: usize) -> Result<(), String> {
        self.lines += lines;
        if self.lines > SECTION_LINES_MAX {
            return Err(format!(
                "{}: its sections have more than {SECTION_LINES_MAX} lines together, with the lines of their defaults: split it",
                self.file
            ));
        }
        Ok(())
    }
}

/// The words of a line: quotes, escapes and comments.
pub(super) fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut all, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) = (Vec::new(), None, None);
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            ('\\', None | Some('"')) => escape(&mut letters, quote.is_some(), word.get_or_insert_default())?,
            ('$', Some('"')) => {
                return Err("variables of the environment are not read; write the value in its place".to_owned());
            }
            (letter, Some(open)) if letter == open => quote = None,
            (letter, Some(_)) => word.get_or_insert_default().push(letter),
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (letter, None) if letter.is_ascii_whitespace() || letter == '\x0b' => all.extend(word.take()),
            (letter, None) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is not closed".to_owned());
    }
    all.extend(word);
    Ok(all)
}

/// What follows a backslash. Before most letters, the backslash itself stays: it belongs to an expression.
fn escape(letters: &mut std::str::Chars<'_>, is_quoted: bool, word: &mut String) -> Result<(), String> {
    let mut ahead = letters.clone();
    let escaped = match ahead.next() {
        Some(letter @ (' ' | '#' | '\\' | '"' | '\'')) => Some(letter),
        Some('$') if is_quoted => Some('$'),
        Some('n') => Some('\n'),
        Some('r') => Some('\r'),
        Some('t') => Some('\t'),
        Some('x') => {
            let digits: String = ahead.by_ref().take(2).collect();
            let byte = u8::from_str_radix(&digits, 16).ok().filter(|byte| digits.len() == 2 && byte.is_ascii());
            Some(char::from(byte.ok_or("after `\\x` there are two hexadecimal digits, up to `\\x7f`")?))
        }
        _ => None,
    };
    match escaped {
        Some(letter) => {
            word.push(letter);
            *letters = ahead;
        }
        None => word.push('\\'),
    }
    Ok(())
}

/// `30s`, `500ms` or `500` in milliseconds.
pub(super) fn time(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "" | "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    // A year is the longest time that Steelyard knows.
    let most = 365 * 86_400_000;
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|time| *time > 0).map(|time| time.min(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let check = |text: &str, expect: &[&str]| assert_eq!(words(text).unwrap(), expect, "{text}");
        check("  acl a path_beg /x # y", &["acl", "a", "path_beg", "/x"]);
        check("a \"b c\" 'd\\e' f\\ g", &["a", "b c", "d\\e", "f g"]);
        check("path_reg ^/a\\.b$", &["path_reg", "^/a\\.b$"]);
        // What HAProxy 2.6 makes of them.
        check("a\\x64min\\$x\\'y\\.z", &["admin\\$x'y\\.z"]);
        check("\"a\\x64min\\$x\\'y\\.z\\\"q\"", &["admin$x'y\\.z\"q"]);
        check("'a\\x64\"b' a\"b c\"d a\\,b\\tc a\\", &["a\\x64\"b", "ab cd", "a\\,b\tc", "a\\"]);
        check("${HOME} '${HOME}'", &["${HOME}", "${HOME}"]);
        for wrong in ["a 'b", "a \"${SECRET}\"", "a \"$\"", "a \\x", "a \\xff", "a \\xé"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_read() {
        let check = |text: &str, part: &str| {
            let why = sections("f", text).unwrap_err();
            assert!(why.starts_with(part), "{why}");
        };
        check("bind :80", "f:1: bind: it is in no section");
        check("global\n.if defined(X)", "f:2: .if");
        check("frontend f from A\n", "f:1: frontend f from A: there is no `defaults A` before it");
        check(&"x ".repeat(1_025), "f:1: more than 1024 words");
        check("global\n description \u{fffd}", "f: it is not UTF-8");
        // A small file that becomes large.
        let text = format!("defaults\n{}{}", " option httplog\n".repeat(2_000), "backend b\n".repeat(2_000));
        check(&text, "f: its sections have more than 1000000 lines together");
    }

    #[test]
    fn defaults() {
        let text = "defaults A\n mode http\n option forwardfor\ndefaults B from A\n disabled\n no option forwardfor\n\
                    defaults\n mode tcp\nfrontend f from A\nbackend g from B\n enabled\nlisten h\ndefaults from A\nbackend i\n";
        let sections = sections("f", text).unwrap();
        let section = |name: &str| sections.iter().find(|one| one.name == name && one.kind != "defaults").unwrap();
        let told = |name: &str| {
            let one = section(name);
            (one.mode(), one.has_option("forwardfor"), one.is_disabled(), one.defaults)
        };
        assert_eq!(told("f"), ("http", true, false, 2));
        assert_eq!(told("g"), ("http", false, false, 4));
        assert_eq!(told("h"), ("tcp", false, false, 1));
        assert_eq!(told("i"), ("http", true, false, 2));
    }
}

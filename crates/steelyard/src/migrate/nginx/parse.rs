//! The syntax of nginx's configuration: directives with their lines, blocks, quotes, comments and `include`.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Limits of everything that is read together.
const BYTES_MAX: u64 = 16 << 20;
const FILES_MAX: usize = 1_000;
/// Names that are looked at for patterns.
const NAMES_MAX: usize = 20_000;
const INCLUDES_DEEP_MAX: usize = 16;
const BLOCKS_DEEP_MAX: usize = 32;
const DIRECTIVES_MAX: usize = 200_000;

/// Files of nginx itself that say nothing about who gets what, and that may be missing here.
const TABLES: &[&str] = &["mime.types", "fastcgi_params", "fastcgi.conf", "uwsgi_params", "scgi_params", "koi-utf"];

/// A directive.
#[derive(Clone, Debug)]
pub(in crate::migrate) struct Directive {
    pub(super) file: Rc<str>,
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    /// Empty if it has no block.
    pub(super) block: Vec<Directive>,
}

impl Directive {
    pub(super) fn arg(&self, number: usize) -> &str {
        self.args.get(number).map_or("", String::as_str)
    }

    pub(super) fn place(&self) -> (&str, usize) {
        (&self.file, self.line)
    }

    /// As it is written, without its block.
    pub(super) fn told(&self) -> String {
        let text =
            [self.name.as_str()].into_iter().chain(self.args.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
        match text.char_indices().nth(100) {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
            None => text,
        }
    }
}

/// Reads a file and what it includes.
///
/// # Errors
/// The place, and what is wrong there.
pub(in crate::migrate) fn read(path: &Path) -> Result<Vec<Directive>, String> {
    let folder = path.parent().map_or_else(|| PathBuf::from("."), Path::to_owned);
    let mut reading = Reading { folder, bytes: 0, files: 0, names: 0, directives: 0 };
    reading.file(path, 0)
}

struct Reading {
    /// That of the first file: names of others are relative to it.
    folder: PathBuf,
    bytes: u64,
    files: usize,
    names: usize,
    directives: usize,
}

impl Reading {
    fn file(&mut self, path: &Path, includes_deep: usize) -> Result<Vec<Directive>, String> {
        let name = path.display().to_string();
        self.files += 1;
        if self.files > FILES_MAX || includes_deep > INCLUDES_DEEP_MAX {
            return Err(format!(
                "{name}: more than {FILES_MAX} files, or files that include each other more than {INCLUDES_DEEP_MAX} deep"
            ));
        }
        let wrong = |error: std::io::Error| format!("{name}: {error}");
        // A pipe would be waited for, and a device may have no end. It is looked at before it is opened, because that waits, too.
        let is_file = std::fs::metadata(path).map_err(wrong)?.is_file();
        if !is_file {
            return Err(format!("{name}: it is no file: give a file, and include files"));
        }
        let mut text = Vec::new();
        let left = BYTES_MAX - self.bytes;
        File::open(path).and_then(|file| file.take(left + 1).read_to_end(&mut text)).map_err(wrong)?;
        if text.len() as u64 > left {
            return Err(format!("{name}: the files have more than {BYTES_MAX} bytes together"));
        }
        self.bytes += text.len() as u64;
        let text = String::from_utf8_lossy(&text);
        let mut lexer = Lexer { file: name.as_str().into(), rest: text.chars().peekable(), line: 1 };
        self.block(&mut lexer, 0, includes_deep)
    }

    fn block(&mut self, lexer: &mut Lexer<'_>, deep: usize, includes_deep: usize) -> Result<Vec<Directive>, String> {
        let mut all = Vec::new();
        loop {
            let (line, mut words, end) = lexer.statement()?;
            if words.is_empty() {
                match end {
                    End::Close if deep > 0 => return Ok(all),
                    End::File if deep == 0 => return Ok(all),
                    End::Semicolon => continue,
                    End::Close => return Err(lexer.wrong("there is a } too many")),
                    End::File => return Err(lexer.wrong("a } is missing")),
                    End::Open => return Err(lexer.wrong("a block has no name")),
                }
            }
            self.directives += 1;
            if self.directives > DIRECTIVES_MAX || deep >= BLOCKS_DEEP_MAX {
                return Err(lexer.wrong(&format!(
                    "more than {DIRECTIVES_MAX} directives, or blocks that are more than {BLOCKS_DEEP_MAX} deep"
                )));
            }
            let name = words.remove(0);
            let block = match end {
                End::Semicolon => Vec::new(),
                End::Open if name.ends_with("_by_lua_block") => {
                    lexer.skip_block()?;
                    Vec::new()
                }
                End::Open => self.block(lexer, deep + 1, includes_deep)?,
                End::Close | End::File => return Err(lexer.wrong(&format!("a ; is missing after {name}"))),
            };
            if name == "include" {
                self.include(words.first().map_or("", String::as_str), (&*lexer, line), includes_deep, &mut all)?;
            } else {
                all.push(Directive { file: lexer.file.clone(), line, name, args: words, block });
            }
        }
    }

    fn include(
        &mut self,
        pattern: &str,
        (lexer, line): (&Lexer<'_>, usize),
        includes_deep: usize,
        all: &mut Vec<Directive>,
    ) -> Result<(), String> {
        let path = self.folder.join(pattern);
        let is_table = path.file_name().is_some_and(|name| TABLES.iter().any(|table| name == *table));
        if is_table && !path.exists() {
            return Ok(());
        }
        let wrong = |why: &str| Err(format!("{}:{line}: include {pattern}: {why}", lexer.file));
        if pattern.contains(['[', ']', '\\']) {
            return wrong("of patterns, * and ? are understood: name the files");
        }
        if !pattern.contains(['*', '?']) {
            let read = self.file(&path, includes_deep + 1);
            let told = |why: String| {
                format!(
                    "{}:{line}: include {pattern}: {why}; copy the file, or remove the line if nothing in it keeps somebody out",
                    lexer.file
                )
            };
            all.extend(read.map_err(|why| if why.contains(": include ") { why } else { told(why) })?);
            return Ok(());
        }
        let mut found = Vec::new();
        let parts: Vec<String> =
            path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        if let Err(why) = self.matching(Path::new(""), &parts, &mut found) {
            return wrong(&why);
        }
        found.sort();
        for path in found {
            all.extend(self.file(&path, includes_deep + 1)?);
        }
        Ok(())
    }

    /// What has a name that matches a pattern, part by part.
    ///
    /// # Errors
    /// There is too much of it, or a folder that cannot be read, in which there may be some.
    fn matching(&mut self, folder: &Path, parts: &[String], found: &mut Vec<PathBuf>) -> Result<(), String> {
        let [part, rest @ ..] = parts else {
            if folder.symlink_metadata().is_ok() {
                found.push(folder.to_owned());
            }
            return Ok(());
        };
        if !part.contains(['*', '?']) {
            return self.matching(&folder.join(part), rest, found);
        }
        let place = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        if !place.is_dir() {
            return Ok(());
        }
        let wrong = |error: std::io::Error| format!("{}: {error}", place.display());
        for entry in std::fs::read_dir(place).map_err(wrong)? {
            self.names += 1;
            if self.names > NAMES_MAX || found.len() > FILES_MAX {
                return Err(format!("more than {NAMES_MAX} names to compare, or {FILES_MAX} files"));
            }
            let name = entry.map_err(wrong)?.file_name().to_string_lossy().into_owned();
            let is_hidden = name.starts_with('.') && !part.starts_with('.');
            if !is_hidden && fits(&part.chars().collect::<Vec<_>>(), &name.chars().collect::<Vec<_>>()) {
                self.matching(&folder.join(name), rest, found)?;
            }
        }
        Ok(())
    }
}

/// Whether a name matches a pattern with `*` and `?`. It takes the product of both lengths.
fn fits(pattern: &[char], name: &[char]) -> bool {
    let mut row: Vec<bool> = vec![false; name.len() + 1];
    if let Some(first) = row.first_mut() {
        *first = true;
    }
    for sign in pattern {
        let mut next = vec![false; name.len() + 1];
        for place in 0..=name.len() {
            let here = |row: &[bool], place: usize| row.get(place).copied().unwrap_or(false);
            let before = place.checked_sub(1);
            let value = match sign {
                '*' => here(&row, place) || before.is_some_and(|before| here(&next, before)),
                sign => {
                    before.is_some_and(|before| here(&row, before) && (*sign == '?' || name.get(before) == Some(sign)))
                }
            };
            if let Some(cell) = next.get_mut(place) {
                *cell = value;
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or(false)
}

/// How a statement ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Semicolon,
    Open,
    Close,
    File,
}

struct Lexer<'t> {
    file: Rc<str>,
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    line: usize,
}

impl Lexer<'_> {
    fn wrong(&self, what: &str) -> String {
        format!("{}:{}: {what}", self.file, self.line)
    }

    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        if next == Some('\n') {
            self.line += 1;
        }
        next
    }

    /// The line, the words and the end of the next statement.
    fn statement(&mut self) -> Result<(usize, Vec<String>, End), String> {
        let (mut line, mut words) = (self.line, Vec::new());
        loop {
            let Some(letter) = self.next() else { return Ok((line, words, End::File)) };
            match letter {
                letter if letter.is_whitespace() => continue,
                '#' => while self.next().is_some_and(|letter| letter != '\n') {},
                ';' => return Ok((line, words, End::Semicolon)),
                '{' => return Ok((line, words, End::Open)),
                '}' => return Ok((line, words, End::Close)),
                letter => {
                    if words.is_empty() {
                        line = self.line;
                    }
                    words.push(match letter {
                        '"' | '\'' => self.quoted(letter)?,
                        letter => self.word(letter),
                    });
                }
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, String> {
        let mut text = String::new();
        loop {
            match self.next().ok_or_else(|| self.wrong("a quote is not closed"))? {
                letter if letter == quote => return Ok(text),
                '\\' => self.escape(&mut text),
                letter => text.push(letter),
            }
        }
    }

    fn word(&mut self, first: char) -> String {
        let mut text = String::new();
        let mut letter = first;
        loop {
            match letter {
                '\\' => self.escape(&mut text),
                letter => text.push(letter),
            }
            match self.rest.peek() {
                // `${name}`
                Some('{') if text.ends_with('$') => {
                    while let Some(inner) = self.next() {
                        text.push(inner);
                        if inner == '}' {
                            break;
                        }
                    }
                }
                _ => {}
            }
            match self.rest.peek() {
                Some(next) if !next.is_whitespace() && ![';', '{', '}'].contains(next) => letter = *next,
                _ => return text,
            }
            self.next();
        }
    }

    /// What follows a backslash: quotes and blanks are meant, and other pairs stay as they are, for expressions.
    fn escape(&mut self, text: &mut String) {
        match self.next() {
            Some(letter @ ('"' | '\'')) => text.push(letter),
            Some('t') => text.push_str("\\t"),
            Some('n') => text.push_str("\\n"),
            Some(letter) => text.extend(['\\', letter]),
            None => text.push('\\'),
        }
    }

    /// A block of Lua: braces in its texts and comments do not count.
    fn skip_block(&mut self) -> Result<(), String> {
        let mut open = 1;
        while open > 0 {
            match self.next().ok_or_else(|| self.wrong("a } is missing"))? {
                '{' => open += 1,
                '}' => open -= 1,
                quote @ ('"' | '\'') => self.skip_lua_text(quote)?,
                '[' => {
                    self.skip_long_bracket()?;
                }
                '-' if self.rest.peek() == Some(&'-') => {
                    self.next();
                    let is_long = self.rest.next_if_eq(&'[').is_some() && self.skip_long_bracket()?;
                    if !is_long {
                        while self.rest.peek().is_some_and(|letter| *letter != '\n') {
                            self.next();
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn skip_lua_text(&mut self, quote: char) -> Result<(), String> {
        loop {
            match self.next().ok_or_else(|| self.wrong("a quote is not closed"))? {
                letter if letter == quote => return Ok(()),
                '\\' => {
                    self.next();
                }
                _ => {}
            }
        }
    }

    /// What follows the first `[` of `[[ ]]` and `[=[ ]=]`, if it is one of them.
    fn skip_long_bracket(&mut self) -> Result<bool, String> {
        let mut level = 0;
        while self.rest.next_if_eq(&'=').is_some() {
            level += 1;
        }
        if self.rest.next_if_eq(&'[').is_none() {
            return Ok(false);
        }
        loop {
            if self.next().ok_or_else(|| self.wrong("a ]] is missing"))? != ']' {
                continue;
            }
            let mut count = 0;
            while self.rest.next_if_eq(&'=').is_some() {
                count += 1;
            }
            if count == level && self.rest.next_if_eq(&']').is_some() {
                return Ok(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Directive>, String> {
        let mut reading = Reading { folder: PathBuf::from("/nowhere"), bytes: 0, files: 0, names: 0, directives: 0 };
        let mut lexer = Lexer { file: "f".into(), rest: text.chars().peekable(), line: 1 };
        reading.block(&mut lexer, 0, 0)
    }

    #[test]
    fn words_blocks_and_lines() {
        let check = |text: &str, expect: &str| {
            fn told(all: &[Directive]) -> String {
                let one = |one: &Directive| {
                    let block = if one.block.is_empty() { String::new() } else { format!(" {{{}}}", told(&one.block)) };
                    format!("{}:{}{:?}{block}", one.line, one.name, one.args)
                };
                all.iter().map(one).collect::<Vec<_>>().join(" ")
            }
            assert_eq!(parsed(text).map_or_else(|why| why, |all| told(&all)), expect, "{text}");
        };
        check("a b 'c d' \"e\\\"f\";# x;\n\ng { h; }", r#"1:a["b", "c d", "e\"f"] 3:g[] {3:h[]}"#);
        check(r"location ~ \.php$ { x ${host}y; }", r#"1:location["~", "\\.php$"] {1:x["${host}y"]}"#);
        check("content_by_lua_block { if x then { } end }\na;", "1:content_by_lua_block[] 2:a[]");
        check(
            "x_by_lua_block { s = \"}\\\"{\" -- }\n t = [[ } ]] --[=[ }]] ]=] u = v[1] }\na;",
            "1:x_by_lua_block[] 3:a[]",
        );
        check("a {\n b", "f:2: a ; is missing after b");
        check("a {", "f:1: a } is missing");
        check("a; }", "f:1: there is a } too many");
        check("a 'b", "f:1: a quote is not closed");
        check("include mime.types; a;", "1:a[]");
        assert!(parsed("\na; include x.conf;").unwrap_err().starts_with("f:2: include x.conf: "));
        assert!(parsed(&"a {".repeat(100)).unwrap_err().contains("deep"));
    }

    #[test]
    fn names_of_files() {
        let check = |pattern: &str, name: &str, expect: bool| {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            assert_eq!(fits(&letters(pattern), &letters(name)), expect, "{pattern} {name}");
        };
        check("*.conf", "a.conf", true);
        check("*.conf", "a.conf.bak", false);
        check("?b*", "ab", true);
        check("*", "", true);
        check(&"*a".repeat(50), &"a".repeat(200), true);
    }

    #[test]
    fn files_that_include_each_other() {
        let folder = std::env::temp_dir().join(format!("steelyard-nginx-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("conf.d")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("nginx.conf", "http {\n include conf.d/*.conf;\n}");
        write("conf.d/a.conf", "server { listen 80; }");
        write("conf.d/b.conf", "server { listen 81; }");
        let all = read(&folder.join("nginx.conf")).unwrap();
        assert_eq!(all[0].block.iter().map(|server| server.block[0].arg(0)).collect::<Vec<_>>(), ["80", "81"]);
        write("conf.d/a.conf", "include nginx.conf;");
        assert!(read(&folder.join("nginx.conf")).unwrap_err().contains("16 deep"));
        let refused = |text: &str, part: &str| {
            write("nginx.conf", text);
            let why = read(&folder.join("nginx.conf")).unwrap_err();
            assert!(why.contains(part) && why.contains("nginx.conf:2: include "), "{text}: {why}");
        };
        refused("\ninclude /dev/zero;", "it is no file");
        refused("\ninclude .;", "it is no file");
        refused("\ninclude conf.d/[ab].conf;", "name the files");
        refused("\ninclude /proc/*/*/*/*;", "more than 20000 names");
        std::os::unix::net::UnixListener::bind(folder.join("conf.d/s.conf")).unwrap();
        refused("\ninclude conf.d/s.conf;", "it is no file");
        write("nginx.conf", "\ninclude conf.d/s*;");
        assert!(read(&folder.join("nginx.conf")).unwrap_err().contains("it is no file"));
        // A table that is there is read.
        write("fastcgi_params", "deny all;");
        write("nginx.conf", "include fastcgi_params; include mime.types;");
        assert_eq!(read(&folder.join("nginx.conf")).unwrap()[0].name, "deny");
        write("large.conf", &"#".repeat(1 << 20));
        write("nginx.conf", &"include large.conf;".repeat(20));
        assert!(read(&folder.join("nginx.conf")).unwrap_err().contains("bytes together"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

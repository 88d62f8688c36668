//! The words and blocks of a snippet, as nginx reads them.

/// One directive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Directive {
    /// Its name and what follows; at least the name.
    pub(super) words: Vec<String>,
    /// What is in its braces; `None` means that it ends with a `;`.
    pub(super) block: Option<Vec<Directive>>,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub(super) fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }

    /// What follows its name.
    pub(super) fn rest(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    /// The directive and those in its blocks.
    pub(super) fn all(&self) -> Vec<&Self> {
        let inner = self.block.iter().flatten().flat_map(Self::all);
        std::iter::once(self).chain(inner).collect()
    }
}

/// Directives in a snippet. nginx has no limit, and a person writes a few.
const DIRECTIVES_MAX: usize = 256;

/// Blocks within blocks: `location` with an `if` in it.
const DEPTH_MAX: usize = 4;

/// Reads all directives.
///
/// # Errors
/// Returns what cannot be read.
pub(super) fn read(text: &str) -> Result<Vec<Directive>, &'static str> {
    let mut reader = Reader { letters: text.chars().peekable(), directives: 0 };
    reader.block(0)
}

struct Reader<'t> {
    letters: std::iter::Peekable<std::str::Chars<'t>>,
    directives: usize,
}

impl Reader<'_> {
    /// Reads directives up to the end of the block, or of the text if `depth` is 0.
    fn block(&mut self, depth: usize) -> Result<Vec<Directive>, &'static str> {
        let mut all = Vec::new();
        let mut words: Vec<String> = Vec::new();
        while let Some(letter) = self.letters.next() {
            match letter {
                letter if letter.is_whitespace() => {}
                '#' => drop(self.letters.by_ref().find(|letter| *letter == '\n')),
                ';' | '{' => {
                    self.directives += 1;
                    if words.is_empty() || self.directives > DIRECTIVES_MAX {
                        return Err("a `;` or a `{` too many");
                    }
                    let words = std::mem::take(&mut words);
                    // Its block is in a language of its own.
                    if letter == '{' && words.first().is_some_and(|name| name.contains("lua")) {
                        return Err("a block of Lua");
                    }
                    let block = match letter {
                        '{' if depth == DEPTH_MAX => return Err("a block in too many others"),
                        '{' => Some(self.block(depth + 1)?),
                        _ => None,
                    };
                    all.push(Directive { words, block });
                }
                '}' if depth > 0 && words.is_empty() => return Ok(all),
                '}' => return Err("a `}` too many"),
                quote @ ('"' | '\'') => words.push(self.quoted(quote)?),
                letter => words.push(self.bare(letter)?),
            }
        }
        match (words.is_empty(), depth) {
            (true, 0) => Ok(all),
            (true, _) => Err("a block without a `}`"),
            (false, _) => Err("a directive without a `;`"),
        }
    }

    fn quoted(&mut self, quote: char) -> Result<String, &'static str> {
        let mut word = String::new();
        loop {
            match self.letters.next().ok_or("a text without an end")? {
                '\\' => self.escaped(&mut word)?,
                letter if letter == quote => return Ok(word),
                letter if letter.is_control() && letter != '\t' => return Err("a line break in a text"),
                letter => word.push(letter),
            }
        }
    }

    fn bare(&mut self, first: char) -> Result<String, &'static str> {
        let mut word = String::new();
        let mut next = Some(first);
        while let Some(letter) = next {
            match letter {
                '\\' => self.escaped(&mut word)?,
                letter if letter.is_control() => return Err("a control character"),
                letter => word.push(letter),
            }
            // A brace belongs to a word in `${name}` alone.
            next = self.letters.next_if(|next| {
                let is_brace = *next == '{' && word.ends_with('$') || *next == '}' && word.contains("${");
                is_brace || !(next.is_whitespace() || [';', '{', '}'].contains(next))
            });
        }
        Ok(word)
    }

    /// What follows a backslash. nginx takes it away before these letters only: `\.` of an expression stays as it is.
    fn escaped(&mut self, word: &mut String) -> Result<(), &'static str> {
        match self.letters.next().ok_or("a text without an end")? {
            letter @ ('"' | '\'' | '\\') => word.push(letter),
            't' => word.push('\t'),
            'r' | 'n' => return Err("a line break in a text"),
            letter if letter.is_control() => return Err("a line break in a text"),
            letter => word.extend(['\\', letter]),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(directives: &[Directive]) -> String {
        let one = |directive: &Directive| {
            let block = directive.block.as_deref().map_or(";".to_owned(), |block| format!("{{{}}}", shown(block)));
            format!("{}{block}", directive.words.join("|"))
        };
        directives.iter().map(one).collect()
    }

    #[test]
    fn directives_and_blocks() {
        let check = |text: &str, expect: &str| assert_eq!(read(text).map(|all| shown(&all)).unwrap(), expect, "{text}");
        check("", "");
        check("a b; # c;\nd 'e f' \"g\";", "a|b;d|e f|g;");
        check("if ($a = \"b c\") { return 403; } x y;", "if|($a|=|b c|){return|403;}x|y;");
        check("location ~ \\.php$ { deny all; }", "location|~|\\.php$|{deny|all;}".replace("|{", "{").as_str());
        check("location ~ \"^/a{2}\" {deny all;}", "location|~|^/a{2}{deny|all;}");
        check("add_header a ${b}-c;", "add_header|a|${b}-c;");
        check(r#"a "b\"c" '\\d' e\.f "\.g";"#, r#"a|b"c|\d|e\.f|\.g;"#);
        check("a { b { c; } d; }", "a{b{c;}d;}");
        check("a {}", "a{}");
    }

    #[test]
    fn what_cannot_be_read() {
        let check = |text: &str, what: &str| assert_eq!(read(text), Err(what), "{text}");
        check("a", "a directive without a `;`");
        check("a {", "a block without a `}`");
        check("a { b; ", "a block without a `}`");
        check("a { b }", "a `}` too many");
        check("}", "a `}` too many");
        check("server { } }", "a `}` too many");
        check(";", "a `;` or a `{` too many");
        check("{ a; }", "a `;` or a `{` too many");
        check("a \"b;", "a text without an end");
        check("a \"b\nc\";", "a line break in a text");
        check("a b\\nc;", "a line break in a text");
        check("a b\\\nc;", "a line break in a text");
        check("access_by_lua_block { if x then }", "a block of Lua");
        check(&"a {".repeat(1000), "a block in too many others");
        check(&"a;".repeat(1000), "a `;` or a `{` too many");
    }
}

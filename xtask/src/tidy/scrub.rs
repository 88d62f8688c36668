//! Blanks everything in Rust source that is not code.
//!
//! This is a few states of a lexer, not a parser: enough to distinguish `unsafe` in code from `unsafe` in a comment or
//! a string.

/// Returns the text with comments and the contents of literals replaced by spaces. Every line and column (in
/// characters) stays the same.
pub fn scrub(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, is_code) = token(&chars, at);
        if is_code {
            out.extend(&chars[at..end]);
        } else {
            out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        }
        at = end;
    }
    out
}

/// The end of the word, literal, comment or single character that begins at `start`, and whether it is code. `start <
/// end <= chars.len()`.
fn token(chars: &[char], start: usize) -> (usize, bool) {
    match (chars[start], chars.get(start + 1)) {
        ('/', Some('/')) => (find(chars, start, |rest| rest[0] == '\n'), false),
        ('/', Some('*')) => (end_of_block_comment(chars, start), false),
        ('"', _) => (end_of_string(chars, start + 1), false),
        ('\'', _) => match end_of_char_literal(chars, start) {
            Some(end) => (end, false),
            // A lifetime or a label.
            None => (start + 1, true),
        },
        (first, _) if is_word(first) => {
            let end = find(chars, start, |rest| !is_word(rest[0]));
            match end_of_prefixed_literal(chars, start, end) {
                Some(end) => (end, false),
                None => (end, true),
            }
        }
        _ => (start + 1, true),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// `r"..."`, `br#"..."#`, `b"..."`, `b'x'`: a prefix word and a literal right after it.
fn end_of_prefixed_literal(chars: &[char], start: usize, end: usize) -> Option<usize> {
    let word: String = chars[start..end].iter().collect();
    let hashes = chars[end..].iter().take_while(|c| **c == '#').count();
    match (word.as_str(), hashes, chars.get(end + hashes)?) {
        ("r" | "br" | "cr", _, '"') => {
            let closes =
                |rest: &[char]| rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes;
            Some((find(chars, end + hashes + 1, closes) + 1 + hashes).min(chars.len()))
        }
        ("b" | "c", 0, '"') => Some(end_of_string(chars, end + 1)),
        ("b", 0, '\'') => end_of_char_literal(chars, end),
        _ => None,
    }
}

fn end_of_string(chars: &[char], mut at: usize) -> usize {
    while let Some(c) = chars.get(at) {
        match c {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

fn end_of_char_literal(chars: &[char], start: usize) -> Option<usize> {
    match (chars.get(start + 1)?, chars.get(start + 2)?) {
        ('\\', _) => Some((find(chars, start + 3, |rest| rest[0] == '\'') + 1).min(chars.len())),
        (_, '\'') => Some(start + 3),
        _ => None,
    }
}

/// Block comments nest.
fn end_of_block_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0_usize;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

/// The first position from `start` on where `is_there` holds for the rest, which is never empty; or the end.
fn find(chars: &[char], start: usize, is_there: impl Fn(&[char]) -> bool) -> usize {
    (start..chars.len()).find(|at| is_there(&chars[*at..])).unwrap_or(chars.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        let check = |text: &str, expect: &str| {
            let scrubbed = scrub(text);
            assert_eq!(scrubbed.chars().count(), text.chars().count(), "{text}");
            assert_eq!(scrubbed.split_whitespace().collect::<Vec<_>>().join(" "), expect, "{text}");
        };
        check("let a = 1; // unsafe\nlet b;", "let a = 1; let b;");
        check("a /* unsafe /* nested */ still */ b", "a b");
        check(r#"f("unsafe \" still", x)"#, "f( , x)");
        check(r##"f(r#"a "quoted" unsafe"#, x)"##, "f( , x)");
        check(r#"f(b"unsafe", b'"', x)"#, "f( , , x)");
        check(r"match c { '\'' => 1, '\n' => 2, 'x' => 3 }", "match c { => 1, => 2, => 3 }");
        check(
            "fn f<'a>(x: &'a str) -> &'static str { 'outer: loop {} }",
            "fn f<'a>(x: &'a str) -> &'static str { 'outer: loop {} }",
        );
        check("let r = 1; let br = r#type;", "let r = 1; let br = r#type;");
        check("\"never closed", "");
        check("/* never closed", "");
        check("r#\"never closed", "");
        check(r"'\", r"'\");
    }

    #[test]
    fn lines_stay_where_they_are() {
        assert_eq!(scrub("a\n/* b\nc */ d\n\"e\nf\" g").lines().count(), 5);
    }
}

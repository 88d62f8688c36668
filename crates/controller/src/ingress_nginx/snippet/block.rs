//! `block-user-agents` and `block-referers`: requests with one of these values of a header get 403.
//!
//! ingress-nginx writes each value as it is into a `map` of nginx: a text that is compared in any case of letters, or an expression behind `~` or
//! `~*`. What is not there is an empty text to nginx.

use super::pattern::{self, Subject};
use super::{Answer, Like, Step, Test, words};
use crate::ingress_nginx::value::cut;

/// Bytes of the values that become one expression, unless one of them is longer. The compiled one has a limit, in `translate::regexes`.
const TOGETHER_BYTES_MAX: usize = 1024;

/// Expressions of one list. Each becomes a route of every host.
const EXPRESSIONS_MAX: usize = 32;

/// What becomes of a request whose header, by its name in lower case, has one of these values.
///
/// # Errors
/// Says which value cannot be served, and what would be right.
pub(in crate::ingress_nginx) fn blocks(header: &str, list: &str) -> Result<Vec<Step>, String> {
    let mut takes_empty = false;
    let mut expressions: Vec<String> = Vec::new();
    for written in list.split(',').map(str::trim).filter(|value| !value.is_empty()) {
        let (expression, is_of_empty) = expression(written)?;
        takes_empty |= is_of_empty;
        let Some(expression) = expression else { continue };
        match expressions.last_mut().filter(|last| last.len() + expression.len() < TOGETHER_BYTES_MAX) {
            Some(last) => *last += &format!("|{expression}"),
            None => expressions.push(expression),
        }
    }
    if expressions.len() > EXPRESSIONS_MAX {
        return Err(format!("its values have more than {} KiB together", (EXPRESSIONS_MAX * TOGETHER_BYTES_MAX) >> 10));
    }
    let step = |like, is_not| Step::If {
        test: Test::Header(header.to_owned(), like),
        is_not,
        answer: Answer::Fixed { status: 403, location: None, text: None },
    };
    let empty = takes_empty.then(|| step(Like::IsThere, true));
    Ok(empty.into_iter().chain(expressions.into_iter().map(|all| step(Like::Has(all), false))).collect())
}

/// A value as an expression, and whether it is found in an empty text. `None` if it is found in no other one.
fn expression(written: &str) -> Result<(Option<String>, bool), String> {
    let wrong = |why: &str| format!("{}: {why}", cut(written));
    let read = words::read(&format!("{written} 1;"));
    let [key, value] = match read.as_deref() {
        Ok([directive]) if directive.block.is_none() => directive.words(),
        _ => Vec::new(),
    }[..] else {
        return Err(wrong("nginx does not read it as one word: write quotes around it"));
    };
    if value != "1" || ["default", "include"].contains(&key) {
        return Err(wrong("nginx does not read it as a value: write a `\\` in front of it"));
    }
    if let Some(pattern) = key.strip_prefix('~') {
        let (pattern, ignores_case) = pattern.strip_prefix('*').map_or((pattern, false), |pattern| (pattern, true));
        let found = pattern::read(pattern, ignores_case, Subject::Value);
        let expression = found.ok_or_else(|| {
            wrong("an expression that looks around, refers back, has flags or letters other than ASCII, or is longer than 512 bytes; write it otherwise")
        })?;
        let regex = regex::RegexBuilder::new(&expression).size_limit(BYTES_MAX).build();
        let regex = regex.map_err(|_| wrong("the expression is too large"))?;
        return Ok((Some(format!("(?:{expression})")), regex.is_match("")));
    }
    let text = key.strip_prefix('\\').unwrap_or(key);
    if !text.is_ascii() {
        return Err(wrong(
            "a text with letters other than ASCII; write an expression with a `.` for each of their bytes",
        ));
    }
    let expression = format!("(?i-u:^{}$)", regex::escape(text));
    Ok((Some(expression).filter(|_| !text.is_empty()), text.is_empty()))
}

/// Bytes of a compiled expression that is looked at alone.
const BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a value of the header is blocked; `""` stands for none.
    fn is_blocked(steps: &[Step], value: &str) -> bool {
        steps.iter().any(|step| match step {
            Step::If { test: Test::Header(_, Like::Has(pattern)), is_not: false, .. } => {
                regex::Regex::new(pattern).unwrap().is_match(value)
            }
            Step::If { test: Test::Header(_, Like::IsThere), is_not: true, .. } => value.is_empty(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn what_is_blocked() {
        let check = |list: &str, blocked: &[&str], others: &[&str]| {
            let steps = blocks("user-agent", list).unwrap();
            blocked.iter().for_each(|value| assert!(is_blocked(&steps, value), "{list}: {value}"));
            others.iter().for_each(|value| assert!(!is_blocked(&steps, value), "{list}: {value}"));
        };
        check("", &[], &["", "a"]);
        check(
            "curl/7.54.0, BadBot",
            &["curl/7.54.0", "badbot", "BADBOT"],
            &["", "curl/7x54.0", "a badbot", "badbot/1"],
        );
        check(
            r#"~Mozilla.*\+http://x\.y/ , "~*evil bot""#,
            &["Mozilla (+http://x.y/)", "an Evil Bot"],
            &["mozilla", ""],
        );
        check("'a b',\nc,,", &["a b", "C"], &["a", "b"]);
        check(r#""", x"#, &["", "x"], &["a"]);
        check("~^$", &[""], &["a"]);
        check("~^(curl.*)?$", &["", "curl/8"], &["a curl"]);
        check("~", &["", "a"], &[]);
        check(r"\~x, \default, hostnames", &["~x", "default", "hostnames"], &["x"]);
        check(r"~(?<n>a)b, ~(?<n>c)d", &["ab", "cd"], &["ad"]);
        check("~^a|b$,~c", &["ax", "xb", "xcx"], &["xax"]);
    }

    #[test]
    fn long_lists_are_divided() {
        let list = |count: usize| (0..count).map(|number| format!("~*bot{number:05}\\b")).collect::<Vec<_>>().join(",");
        let steps = blocks("referer", &list(1000)).unwrap();
        assert!((2..=EXPRESSIONS_MAX).contains(&steps.len()), "{}", steps.len());
        assert!(is_blocked(&steps, "a BOT00999 x") && !is_blocked(&steps, "bot01000"));
        assert!(blocks("referer", &list(3000)).unwrap_err().contains("more than 32 KiB"));
    }

    #[test]
    fn what_cannot_be_served() {
        let check = |list: &str, why: &str| {
            let wrong = blocks("user-agent", list).unwrap_err();
            assert!(wrong.contains(why), "{list}: {wrong}");
        };
        for list in ["a b", "a;b", "~a{2}", "\"a", "a } b", "#a", "a\nb"] {
            check(list, "as one word");
        }
        for list in ["default", "include"] {
            check(list, "as a value");
        }
        for list in ["~(?!a)b", r"~(a)\1", "~(a", "~(?i)a", "~é", &format!("~{}", "a".repeat(513))] {
            check(list, "write it otherwise");
        }
        check("é", "other than ASCII");
        check("~\\w{2}", "as one word");
        check("\"~(a{100}){100}\"", "too large");
    }
}

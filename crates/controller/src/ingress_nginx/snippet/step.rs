//! What a snippet decides of a request before anything else: `if` with an answer in it, `rewrite`, and `return`.
//!
//! nginx takes them in the order in which they are written, and so do the routes that they become.

use super::super::path::literal_of;
use super::answer::{self, Answer};
use super::pattern::{self, Subject};
use super::words::Directive;

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Requests for which this holds get the answer.
    If {
        /// What is looked at.
        test: Test,
        /// The answer is for the other requests.
        is_not: bool,
        /// The answer.
        answer: Answer,
    },
    /// Paths in which the expression is found get another one.
    Rewrite {
        /// As it is written, with the groups of `to`.
        pattern: String,
        /// The new path, or a URL, with `$1` to `$9`.
        to: String,
        /// Clients are sent there with this status; `None` means that endpoints get the new path.
        status: Option<u16>,
    },
    /// A path is redirected to another one.
    Moved {
        /// The path.
        from: String,
        /// The new one.
        to: String,
        /// The status.
        status: u16,
    },
    /// All requests get the answer.
    Answer(Answer),
}

/// What an `if` looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// A header, by its name in lower case.
    Header(String, Like),
    /// One of these methods.
    Method(Vec<String>),
    /// An expression that is found in the path: as it is written, and for paths here.
    Path(String, String),
    /// This path.
    ExactPath(String),
    /// This host.
    Host(String),
    /// The request came over HTTP, and not over HTTPS.
    IsPlain,
}

/// What a value is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Like {
    /// Exactly this; not empty.
    Is(String),
    /// The expression is found in it, and not in an empty text.
    Has(String),
    /// It is not empty.
    IsThere,
}

/// Which paths of a rule have an expression in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Those that the expression is found in are all paths of the rule.
    Within,
    /// None of them.
    Never,
    /// It may be found in others as well.
    Elsewhere,
}

/// Whether an expression is found in the paths of a rule with this path.
pub fn found_in(pattern: &str, path: &str, is_exact: bool) -> Found {
    let begins = pattern.strip_prefix('^').map_or_else(|| "/".to_owned(), literal_of);
    // At a segment boundary: `^/a` is found in `/ab`, which is no path of `/a`.
    let below = format!("{}/", path.trim_end_matches('/'));
    match is_exact {
        false if path == "/" || begins.starts_with(&below) => Found::Within,
        _ if !path.starts_with(&begins) => Found::Never,
        _ => Found::Elsewhere,
    }
}

/// What a snippet may decide. Each becomes a route of each path of the Ingress, with the conditions of those before.
pub(super) const STEPS_MAX: usize = 16;

/// Adds a step.
pub(super) fn push(step: Step, steps: &mut Vec<Step>) -> Result<(), String> {
    if steps.len() == STEPS_MAX {
        return Err(format!("more than {STEPS_MAX} of `if` and `rewrite`"));
    }
    steps.push(step);
    Ok(())
}

/// `if (CONDITION) { return ...; }`, or with a `rewrite` of all to a URL.
pub(super) fn read_if(directive: &Directive) -> Result<Step, String> {
    let block = directive.block.as_deref().unwrap_or_default();
    let words = condition(directive.rest()).ok_or("the condition of an `if`")?;
    let shown = || format!("if ({})", words.join(" "));
    let (test, is_not) = test(&words).ok_or_else(shown)?;
    if is_not && matches!(test, Test::Path(..) | Test::ExactPath(_)) {
        return Err(format!("{}: all paths but some", shown()));
    }
    let [inner] = block else { return Err(format!("{} with other than one `return`", shown())) };
    let answer = match inner.words().as_slice() {
        ["return", rest @ ..] if inner.block.is_none() => answer::answer(rest)?,
        ["rewrite", from, to, flag] if inner.block.is_none() => {
            answer::moved(from, to, flag).ok_or_else(|| format!("rewrite {from} in an `if`"))?
        }
        [name, ..] => return Err(format!("{name} in an `if`")),
        [] => return Err(shown()),
    };
    Ok(Step::If { test, is_not, answer })
}

/// The words between the parentheses, which may stand alone.
fn condition(words: &[String]) -> Option<Vec<&str>> {
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    *words.first_mut()? = words.first()?.strip_prefix('(')?;
    *words.last_mut()? = words.last()?.strip_suffix(')')?;
    if words.first()?.is_empty() {
        words.remove(0);
    }
    if words.last()?.is_empty() {
        words.pop();
    }
    Some(words)
}

fn test(words: &[&str]) -> Option<(Test, bool)> {
    let (variable, sign, text) = match words {
        // Neither empty nor `0`.
        [variable] => (variable, "~", r"^(0.+|[\x01-\x2f\x31-\xff].*)"),
        [variable, sign, text] => (variable, *sign, *text),
        _ => return None,
    };
    let name = variable.strip_prefix('$')?;
    // A value may hold variables too, and what `$1` is depends on what was matched before. A `$` ends an expression.
    let (is_not, sign) = sign.strip_prefix('!').map_or((false, sign), |sign| (true, sign));
    let like = match (sign, text) {
        ("=", text) if text.contains('$') => return None,
        ("=", text) => Sign::Is(text),
        ("~", text) => Sign::Has(text, false),
        ("~*", text) => Sign::Has(text, true),
        _ => return None,
    };
    let (test, turns) = subject(name, like)?;
    Some((test, is_not != turns))
}

enum Sign<'t> {
    Is(&'t str),
    /// The expression, and whether it ignores case.
    Has(&'t str, bool),
}

/// The test of a variable, and whether it holds the other way around. Not `$arg_NAME` and `$cookie_NAME`: nginx looks for those in any case of
/// letters and as they are written, and what reads them behind it does not.
fn subject(name: &str, sign: Sign<'_>) -> Option<(Test, bool)> {
    let as_is = |test| Some((test, false));
    match (name, sign) {
        ("request_method", Sign::Is(method)) => as_is(Test::Method(vec![method.to_owned()])),
        ("request_method", Sign::Has(pattern, _)) => as_is(Test::Method(methods(pattern)?)),
        ("scheme", Sign::Is("http")) => as_is(Test::IsPlain),
        ("scheme", Sign::Is("https")) => Some((Test::IsPlain, true)),
        ("https", Sign::Is("on")) => Some((Test::IsPlain, true)),
        ("https", Sign::Is("")) => as_is(Test::IsPlain),
        ("host", Sign::Is(host)) if !host.is_empty() => as_is(Test::Host(host.to_ascii_lowercase())),
        ("uri", Sign::Is(path)) if is_path(path) => as_is(Test::ExactPath(path.to_owned())),
        ("uri", Sign::Has(pattern, ignores_case)) => {
            as_is(Test::Path(pattern.to_owned(), pattern::written(pattern, ignores_case, Subject::Path)?))
        }
        // It has the query as well, and is not decoded: only how it begins is the same in both.
        ("request_uri", Sign::Has(pattern, ignores_case)) if begins(pattern) => {
            as_is(Test::Path(pattern.to_owned(), pattern::written(pattern, ignores_case, Subject::Path)?))
        }
        (name, sign) => {
            let header = name.strip_prefix("http_").filter(|name| !["host", "cookie"].contains(name))?;
            let (like, turns) = like(sign)?;
            Some((Test::Header(header.replace('_', "-"), like), turns))
        }
    }
}

/// A path that nginx can be asked for: it decodes those of requests.
pub(super) fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && !path.contains("//")
        && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%')
        && path.len() <= PATH_BYTES_MAX
}

/// Bytes of a path or a value in a snippet.
const PATH_BYTES_MAX: usize = 1024;

/// Whether an expression says how a text begins, and nothing else: `^/a`, `^/(a|b)`.
fn begins(pattern: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/_-()|".contains(&byte);
    pattern
        .strip_prefix("^/")
        .is_some_and(|rest| rest.bytes().all(is_plain) && has_outer_alternative(rest) == Some(false))
}

/// Whether there is a `|` outside of parentheses; `None` if they do not fit.
fn has_outer_alternative(text: &str) -> Option<bool> {
    let (mut depth, mut found) = (0_usize, false);
    for byte in text.bytes() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            b'|' => found |= depth == 0,
            _ => {}
        }
    }
    (depth == 0).then_some(found)
}

/// For nginx, what is not there is empty.
fn like(sign: Sign<'_>) -> Option<(Like, bool)> {
    match sign {
        Sign::Is("") => Some((Like::IsThere, true)),
        Sign::Is(text) => (text.is_ascii() && text.len() <= PATH_BYTES_MAX).then(|| (Like::Is(text.to_owned()), false)),
        Sign::Has(pattern, ignores_case) => {
            Some((Like::Has(pattern::written(pattern, ignores_case, Subject::Value)?), false))
        }
    }
}

/// The methods of `^(GET|HEAD)$`. Without its anchors, `LOCK` is found in `UNLOCK`.
fn methods(pattern: &str) -> Option<Vec<String>> {
    // Methods are in capitals, whichever case the expression ignores: nginx refuses others.
    let inner = pattern.strip_prefix('^')?.strip_suffix('$')?;
    let list = inner.strip_prefix('(').map_or(Some(inner), |rest| rest.strip_suffix(')'))?;
    if list.contains('|') && list.len() == inner.len() {
        return None;
    }
    let list = list.strip_prefix("?:").unwrap_or(list);
    let is_method = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    let methods: Vec<&str> = list.split('|').collect();
    methods.iter().all(|word| is_method(word)).then(|| methods.into_iter().map(str::to_owned).collect())
}

/// `rewrite EXPRESSION TO FLAG`.
pub(super) fn read_rewrite(words: &[&str]) -> Result<Step, String> {
    let [from, to, flag] = words else { return Err(format!("rewrite {}", words.join(" "))) };
    let refused = || format!("rewrite {from} with {flag}");
    if let (Some((from, to)), "permanent" | "redirect") = (moved_path(from, to), *flag) {
        let status = if *flag == "permanent" { 301 } else { 302 };
        return Ok(Step::Moved { from, to, status });
    }
    let status = match *flag {
        "permanent" => Some(301),
        "redirect" => Some(302),
        "break" => None,
        // `last` looks for another location.
        _ => return Err(refused()),
    };
    if status.is_some()
        && let Some(answer) = answer::moved(from, to, flag)
    {
        return Ok(Step::Answer(answer));
    }
    let is_path = to.starts_with('/') && !to.starts_with("//");
    let is_url = super::super::value::split_url(to).is_some_and(|(_, host, ..)| !host.contains('$'));
    let is_plain = to.bytes().all(|byte| byte.is_ascii_graphic() && !b"?\"\\{}".contains(&byte));
    let mut after = to.split('$').skip(1);
    let has_groups_alone = after.all(|rest| rest.starts_with(|c: char| ('1'..='9').contains(&c)));
    let is_served = is_plain && has_groups_alone && (is_path || (is_url && status.is_some()));
    let same = pattern::written(from, false, Subject::Value).is_some();
    if !is_served || !same {
        return Err(format!("rewrite {from} {to}"));
    }
    Ok(Step::Rewrite { pattern: (*from).to_owned(), to: (*to).to_owned(), status })
}

/// The path that a `rewrite` of one path redirects: `^(/app)$ $1/`. Others are not understood.
fn moved_path(from: &str, to: &str) -> Option<(String, String)> {
    let inner = from.strip_prefix('^')?.strip_suffix('$')?;
    let path = inner.strip_prefix('(').map_or(Some(inner), |inner| inner.strip_suffix(')'))?;
    let is_path = |path: &str| {
        path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-_~".contains(&byte))
    };
    let to = to.replace("$1", if path == inner { "" } else { path });
    (is_path(path) && is_path(&to) && to != path).then(|| (path.to_owned(), to))
}

/// `limit_except METHODS { deny all; }`: the methods that pass.
pub(super) fn read_limit_except(directive: &Directive) -> Result<Vec<String>, String> {
    let methods = directive.rest();
    let denies = directive
        .block
        .as_deref()
        .is_some_and(|block| matches!(block, [inner] if inner.block.is_none() && inner.words() == ["deny", "all"]));
    let known = |method: &String| METHODS.contains(&method.as_str());
    if !denies || methods.is_empty() || !methods.iter().all(known) {
        return Err("limit_except with other than `deny all`".to_owned());
    }
    let mut methods = methods.to_vec();
    if methods.iter().any(|method| method == "GET") && !methods.iter().any(|method| method == "HEAD") {
        methods.push("HEAD".to_owned());
    }
    Ok(methods)
}

/// The methods that nginx knows in limit_except.
const METHODS: [&str; 15] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "MKCOL",
    "COPY",
    "MOVE",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
    "PATCH",
    "CONNECT",
];

#[cfg(test)]
mod tests {
    use super::super::words;
    use super::*;

    fn first(text: &str) -> Result<Step, String> {
        read_if(&words::read(text).unwrap()[0])
    }

    #[test]
    fn conditions() {
        let check = |condition: &str, expect: Option<(Test, bool)>| {
            let found = first(&format!("if {condition} {{ return 403; }}"));
            let found = found.ok().map(|step| match step {
                Step::If { test, is_not, .. } => (test, is_not),
                other => panic!("{other:?}"),
            });
            assert_eq!(found, expect, "{condition}");
        };
        let header = |name: &str, like| Test::Header(name.to_owned(), like);
        let is = |text: &str| Like::Is(text.to_owned());
        let has = |text: &str| Like::Has(text.to_owned());
        let methods = |all: &[&str]| Test::Method(all.iter().map(ToString::to_string).collect());
        check("($http_x_key = \"a b\")", Some((header("x-key", is("a b")), false)));
        check("( $http_x_key != a )", Some((header("x-key", is("a")), true)));
        check("($http_x_key = \"\")", Some((header("x-key", Like::IsThere), true)));
        check("($http_x_key != '')", Some((header("x-key", Like::IsThere), false)));
        check("($http_x_key)", Some((header("x-key", has("^(0.+|[\\x01-\\x2f\\x31-\\xff].*)")), false)));
        check("($http_user_agent ~* (bot|crawler))", Some((header("user-agent", has("(?i:(bot|crawler))")), false)));
        check("($http_user_agent !~ \"^curl/\")", Some((header("user-agent", has("^curl/")), true)));
        check("($request_method = POST)", Some((methods(&["POST"]), false)));
        check("($request_method !~ ^(GET|HEAD)$)", Some((methods(&["GET", "HEAD"]), true)));
        check("($request_method ~ \"^(?:PUT|DELETE)$\")", Some((methods(&["PUT", "DELETE"]), false)));
        check("($scheme = http)", Some((Test::IsPlain, false)));
        check("($scheme != https)", Some((Test::IsPlain, false)));
        check("($host != 'www.Example')", Some((Test::Host("www.example".to_owned()), true)));
        check("($uri = /a)", Some((Test::ExactPath("/a".to_owned()), false)));
        let slash = "(?:/|%2[Ff])+";
        check("($uri ~ ^/admin)", Some((Test::Path("^/admin".to_owned(), format!("^{slash}admin")), false)));
        let both = (Test::Path("^/(a|b)".to_owned(), format!("(?i:^{slash}(a|b))")), false);
        check("($request_uri ~* \"^/(a|b)\")", Some(both));
        for refused in [
            "$http_a = b",
            "()",
            "(!$http_a)",
            "(-f $request_filename)",
            "($http_a = $http_b)",
            // It would hold without the header.
            "($http_a ~ .*)",
            "($http_a ~ (?!b))",
            "($http_a ~ \"[\")",
            "($request_method ~ GET|POST)",
            "($request_method ~ ^GET|POST$)",
            "($request_uri ~ \"^/a\\?b=c\")",
            "($request_uri ~ ^/a$)",
            "($request_uri = /a)",
            "($host ~ a)",
            "($http_host = a)",
            "($http_cookie ~ a)",
            "($arg_a = b)",
            "($cookie_a = b)",
            "($request_uri ~ /a)",
            "($request_uri ~ ^/a|b)",
            "($request_uri ~ ^/a.*b)",
            "($uri = //a)",
            "($remote_addr = 10.0.0.1)",
            "($a = b)",
            "($http_a == b)",
            "($http_a = b c)",
        ] {
            check(refused, None);
        }
    }

    #[test]
    fn what_is_in_an_if() {
        assert!(first("if ($http_a) { return 301 https://$host$request_uri; }").is_ok());
        assert!(first("if ($http_a) { rewrite ^ https://$host$request_uri? permanent; }").is_ok());
        for refused in [
            "set $a b;",
            "return 403; return 404;",
            "add_header a b;",
            "",
            "if ($http_b) { return 403; }",
            "return 301 /$1;",
        ] {
            assert!(first(&format!("if ($http_a) {{ {refused} }}")).is_err(), "{refused}");
        }
    }

    #[test]
    fn rewrites() {
        let check = |words: &str, expect: bool| {
            let words: Vec<&str> = words.split(' ').collect();
            assert_eq!(read_rewrite(&words).is_ok(), expect, "{words:?}");
        };
        for (words, expect) in [
            ("^/a/(.*)$ /b/$1 break", true),
            ("^/a/(.*)$ /b/$1 permanent", true),
            ("^/a/(.*)$ https://b.example/$1 redirect", true),
            ("^/a/(.*)$ /b/$1 last", false),
            ("^/a/(.*)$ /b/$1", false),
            ("^/a/(.*)$ /b/$1?x=y permanent", false),
            ("^/a/(.*)$ https://$1.example/ redirect", false),
            ("^/a/(.*)$ https://b.example/$1 break", false),
            ("^/a/(.*)$ /b/$arg_x break", false),
            ("^/a/(.*)$ //b.example/ redirect", false),
            ("^/a(?!b) /b break", false),
            ("^/a( /b break", false),
        ] {
            check(words, expect);
        }
    }

    #[test]
    fn methods_that_pass() {
        let read = |text: &str| read_limit_except(&words::read(text).unwrap()[0]);
        assert_eq!(read("limit_except GET POST { deny all; }").unwrap(), ["GET", "POST", "HEAD"]);
        for refused in [
            "limit_except GET;",
            "limit_except { deny all; }",
            "limit_except A { deny all; }",
            "limit_except GET { allow all; }",
        ] {
            assert!(read(refused).is_err(), "{refused}");
        }
    }
}

//! Paths of rules as regular expressions.

/// The regular expression that matches a path of a rule as ingress-nginx does, on a host whose paths are expressions.
///
/// nginx matches with PCRE, which can look around and refer back. The engine here cannot, and its time is linear in the length of the path,
/// whatever anybody writes into an Ingress. An engine that can backtracks: it takes exponential time for some expressions, or stops at a
/// limit and then answers neither yes nor no. So such a path is closed instead, together with all others that begin as it does.
///
/// # Errors
/// Returns the text that all paths begin with which the expression can match.
pub fn regex_of(path: &str) -> Result<String, String> {
    let build = |text: &String| regex::RegexBuilder::new(text).size_limit(BYTES_MAX).build();
    pattern_of(path).filter(|pattern| build(pattern).is_ok()).ok_or_else(|| literal_of(path))
}

/// The same, without a look at what it takes to compile it; `None` if there is no such expression.
pub(crate) fn pattern_of(path: &str) -> Option<String> {
    let is_one = |text: &str| regex_syntax::parse(text).is_ok();
    // The expression alone first: `a)|(b` must not become one through the parentheses around it.
    if path.len() > PATH_BYTES_MAX || !means_the_same(path) || !is_one(path) {
        return None;
    }
    Some(format!("(?i:{path})(?s:.*)")).filter(|pattern| is_one(pattern))
}

/// Whether an expression means the same to nginx and here.
pub(super) fn is_same(pattern: &str) -> bool {
    pattern.len() <= PATH_BYTES_MAX && means_the_same(pattern) && regex_syntax::parse(pattern).is_ok()
}

/// Bytes of an expression. nginx takes no longer ones, and to compile those of an object of the largest size takes minutes.
const PATH_BYTES_MAX: usize = 4096;

/// Bytes of a compiled expression. The limit of the routes is a little higher.
const BYTES_MAX: usize = 240 * 1024;

/// Whether an expression that both engines read means the same to both.
pub(super) fn means_the_same(path: &str) -> bool {
    let bytes = path.as_bytes();
    let (mut at, mut in_class) = (0, false);
    while let Some(byte) = bytes.get(at) {
        let rest = bytes.get(at + 1..).unwrap_or_default();
        match byte {
            b'\\' => {
                // Here they are the edges of words, and there the signs.
                if rest.first().is_some_and(|next| b"<>".contains(next)) || rest.starts_with(b"b{") {
                    return false;
                }
                at += 1;
            }
            // Here, classes are made of classes: `[a[b]]`, `[a&&b]`, `[a--b]`, `[a~~b]`.
            b'[' if in_class => match rest.windows(2).position(|pair| pair == b":]") {
                Some(end) if rest.starts_with(b":") => at += end + 2,
                _ => return false,
            },
            b'&' | b'-' | b'~' if in_class && rest.first() == Some(byte) => return false,
            b'[' => {
                in_class = true;
                // A bracket at the beginning of a class is a member of it.
                let negated = usize::from(rest.first() == Some(&b'^'));
                at += negated + usize::from(rest.get(negated) == Some(&b']'));
            }
            b']' => in_class = false,
            // Here, `a*+` is a repetition of `a*`. There, it gives nothing back.
            b'*' | b'+' | b'?' | b'}' if !in_class && rest.first() == Some(&b'+') => return false,
            // There, `(?R)` is the whole expression again; here it is a flag, as `u` is.
            b'(' if !in_class && rest.first() == Some(&b'?') => {
                let flags = rest.iter().skip(1).take_while(|flag| flag.is_ascii_alphabetic() || **flag == b'-');
                let is_name = rest.starts_with(b"?P<");
                if !is_name && flags.into_iter().any(|flag| !b"imsxU-".contains(flag)) {
                    return false;
                }
            }
            _ => {}
        }
        at += 1;
    }
    true
}

/// The literal text at the beginning of an expression; at least `/`.
pub(crate) fn literal_of(path: &str) -> String {
    let mut depth = 0_i32;
    let is_plain = !path.contains(['\\', '[']);
    let has_alternative = path.chars().any(|letter| {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        letter == '|' && (depth <= 0 || !is_plain)
    });
    let literal = path.split(['(', '[', '.', '*', '+', '?', '\\', '|', '^', '$', '{', ')']).next().unwrap_or_default();
    let rest = path.get(literal.len()..).unwrap_or_default();
    // The last letter may be there or not: `/ab*`.
    let is_repeated = rest.starts_with(['*', '?', '{']);
    let end = literal.char_indices().last().filter(|_| is_repeated).map_or(literal.len(), |(at, _)| at);
    let literal = literal.get(..end).unwrap_or_default();
    if has_alternative || !literal.starts_with('/') { "/".to_owned() } else { literal.to_owned() }
}

/// Whether a text is an expression that can be matched in linear time. It is read and not compiled: whoever may write an Ingress can write one that
/// takes a second to compile, and what compiles them for routes bounds all of them together.
pub fn is_expression(pattern: &str) -> bool {
    regex_syntax::parse(pattern).is_ok()
}

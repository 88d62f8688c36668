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
    // Here, `a*+` is a repetition of `a*`. There, it gives nothing back.
    let is_possessive = ["*+", "++", "?+", "}+"].iter().any(|sign| path.contains(sign));
    if !is_possessive && regex::Regex::new(path).is_ok() {
        return Ok(format!("(?i:{path})(?s:.*)"));
    }
    Err(literal_of(path))
}

/// The literal text at the beginning of an expression; at least `/`.
fn literal_of(path: &str) -> String {
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

//! Removes from the text of a snapshot what may be a secret although neither its type nor the place where it stands says so: values beside a
//! name that sounds like a secret. What is known by its place is masked before (`Route::masked` and others).

/// Words in the names of headers, cookies and parameters whose values are not shown.
const SECRET_WORDS: [&str; 8] = ["auth", "cookie", "credential", "key", "passw", "secret", "session", "token"];

/// What stands for a value.
const HIDDEN: &str = "\"(hidden)\"";

/// Returns the text, which is that of `{:#?}`, without these values.
pub(super) fn without_secrets(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // The indentation at which hiding ends, and whether the name before the values is still to come.
    let mut hides_from: Option<usize> = None;
    let mut changes: Option<(usize, bool)> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indentation = line.len() - trimmed.len();
        if hides_from.is_some_and(|from| indentation < from) {
            hides_from = None;
        }
        if changes.is_some_and(|(from, _)| indentation <= from) {
            changes = None;
        }
        let is_name = match &mut changes {
            // An entry begins, and its name follows.
            Some((_, name_is_next)) if trimmed == "(" => {
                *name_is_next = true;
                true
            }
            Some((_, name_is_next)) => std::mem::take(name_is_next),
            None => false,
        };
        let hides = hides_from.is_some() || changes.is_some() && !is_name;
        out += &match (hides, trimmed.starts_with("name: \"")) {
            (true, _) => hidden(line),
            // The names of routes hold the values that they match.
            (false, true) => without_values(line),
            (false, false) => line.to_owned(),
        };
        out.push('\n');
        if matches!(trimmed, "set: [" | "add: [") {
            changes = Some((indentation, false));
        }
        let sounds_secret = |text: &str| SECRET_WORDS.iter().any(|word| text.to_ascii_lowercase().contains(word));
        // The name of a route, which begins with its path, says nothing about what follows.
        let is_route = trimmed.starts_with("name: \"/");
        if hides_from.is_none() && !is_route && trimmed.contains('"') && sounds_secret(trimmed) {
            hides_from = Some(indentation);
        }
    }
    out
}

/// The line without what follows the equals sign of each word.
fn without_values(line: &str) -> String {
    let shown = |word: &str| match word.split_once('=') {
        Some((name, value)) => {
            let end = value.find('"').map_or("", |at| value.get(at..).unwrap_or_default());
            format!("{name}=(hidden){end}")
        }
        None => word.to_owned(),
    };
    line.split(' ').map(shown).collect::<Vec<_>>().join(" ")
}

/// The line without the texts in quotes.
fn hidden(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('"') {
        out += before;
        out += HIDDEN;
        // The end is the next quote that no backslash escapes.
        let mut escaped = false;
        let end = after.char_indices().find(|(_, c)| {
            let is_end = *c == '"' && !escaped;
            escaped = *c == '\\' && !escaped;
            is_end
        });
        rest = end.and_then(|(end, _)| after.get(end + 1..)).unwrap_or_default();
    }
    out + rest
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_that_may_be_secret_are_hidden() {
        let text = "listeners: {l: {bind: ':1', protocol: http, error_pages: [{status: 503, body: hunter9}], routes: [{path: /shop, \
                    request_headers: {set: {x-hop: hunter2, x-b: 'a \"hunter3'}}, headers: {x-api-key: hunter4, x-pw: hunter6}, query: \
                    {access_token: hunter5, sig: hunter7}, to: web}, {path: /own, respond: {status: 200, body: 'my hunter8', headers: \
                    {x-a: hunter10}}}]}}\nclusters: {web: {endpoints: ['127.0.0.1:1'], health_check: {http: /, headers: \
                    {x-probe: hunter11}}}}";
        let snapshot = config::parse("f", text, model::Generation(1)).unwrap_or_else(|errors| panic!("{errors}"));
        let whole = format!("{snapshot:#?}");
        let missing: Vec<_> = (2..=11).filter(|number| !whole.contains(&format!("hunter{number}"))).collect();
        assert!(missing.is_empty(), "the test shows nothing of {missing:?}");
        let shown = crate::control::about::text(&snapshot);
        assert!(!shown.contains("hunter"), "{shown}");
        for kept in
            ["\"x-hop\"", "\"x-api-key\"", "\"access_token\"", "\"sig\"", "/shop", "127.0.0.1:1", "x-pw=(hidden)"]
        {
            assert!(shown.contains(kept), "{kept}: {shown}");
        }
    }
}

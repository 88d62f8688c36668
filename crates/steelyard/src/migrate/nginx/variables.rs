//! Variables in the texts of nginx: `$name` and `${name}`.

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'t> {
    Text(&'t str),
    /// A variable as it is written, and its name.
    Variable {
        written: &'t str,
        name: &'t str,
    },
}

/// The parts of a text. A `$` without a name is a text.
pub(super) fn parts(text: &str) -> Vec<Part<'_>> {
    let mut all = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        if !before.is_empty() {
            all.push(Part::Text(before));
        }
        let behind = from.get(1..).unwrap_or_default();
        let (name, length) = match behind.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, _)) if name.bytes().all(is_of_name) => (name, name.len() + 3),
            _ => {
                let end = behind.bytes().position(|byte| !is_of_name(byte)).unwrap_or(behind.len());
                (behind.get(..end).unwrap_or_default(), end + 1)
            }
        };
        let (written, after) = from.split_at(length);
        all.push(if name.is_empty() { Part::Text(written) } else { Part::Variable { written, name } });
        rest = after;
    }
    if !rest.is_empty() {
        all.push(Part::Text(rest));
    }
    all
}

/// A text with the values of some variables in it; the others stay as they are written.
pub(super) fn replaced<'v>(text: &str, value: impl Fn(&str) -> Option<&'v str>) -> String {
    let mut out = String::new();
    for part in parts(text) {
        out.push_str(match part {
            Part::Text(text) => text,
            Part::Variable { written, name } => value(name).unwrap_or(written),
        });
    }
    out
}

/// The names of the variables in a text.
pub(super) fn names(text: &str) -> impl Iterator<Item = &str> {
    parts(text).into_iter().filter_map(|part| match part {
        Part::Text(_) => None,
        Part::Variable { name, .. } => Some(name),
    })
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names() {
        let value = |name: &str| (name == "h").then_some("foo");
        let check = |text: &str, expect: &str| assert_eq!(replaced(text, value), expect, "{text}");
        check("$h", "foo");
        check("$host", "$host");
        check("a$h/$h", "afoo/foo");
        check("${h}ost", "fooost");
        check("${host}${h}", "${host}foo");
        check("$", "$");
        check("$$h", "$foo");
        check("${h", "${h");
        check("${}x", "${}x");
        check("é$hé", "éfooé");
        check("${é}$h", "${é}foo");
        assert_eq!(names("a$b${c}d$1").collect::<Vec<_>>(), ["b", "c", "1"]);
    }
}

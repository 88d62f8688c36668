//! The reference page: every key of the file, for people to read.

use std::fmt::Write as _;

use crate::define::{Key, Kind, Object, keys_of};
use crate::diagnostic::DIAGNOSTICS_MAX;
use crate::raw::RawFile;
use crate::read::Read;
use crate::yaml::{DEPTH_MAX, FILE_BYTES_MAX};

/// The reference page, in Markdown.
pub fn reference() -> String {
    let mut page = introduction();
    for object in RawFile::kind().objects() {
        section(object, &mut page);
    }
    page
}

fn introduction() -> String {
    format!(
        "\
# Configuration

<!-- Made from crates/config/src/raw.rs. Change it there, then: cargo run -p config --example reference > docs/configuration.md -->

The configuration is one YAML 1.2 document of at most {} MiB, nested at most {DEPTH_MAX} deep. `steelyard check -c FILE` reports every error
in it (up to {DIAGNOSTICS_MAX}), each with its line, its column and what would be right, and opens nothing. `steelyard schema` prints the
JSON schema, with which an editor completes and checks keys while you type. `examples/` has whole files.

How values are written:

| value | written | |
|---|---|---|
| duration | `500ms`, `30s`, `1.5m`, `1h`, `7d` | always with its unit: `ms`, `s`, `m`, `h`, `d` |
| size | `512B`, `64KiB`, `10MB`, `5GiB` | always with its unit: `KiB` is 1024 bytes, `kB` is 1000 |
| share | `50%` | always with the `%` |
| yes or no | `true`, `false` | YAML 1.2 has no `yes`, `no` and `on`; some keys also accept `off` |
| list | `[a, b]` | never empty; where the type allows a single value, the brackets are optional |
| name of a listener or cluster | `web` | up to 64 letters, digits, `-`, `_` and `.` |

Write long lists and mappings (a megabyte or more) with one entry per line and without brackets. An unknown key, a key written twice and a
key that belongs to another protocol are errors. Anchors and aliases work; merge keys (`<<`) are not part of YAML 1.2.
",
        FILE_BYTES_MAX / (1024 * 1024)
    )
}

fn section(object: &Object, page: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(page, "\n## {}\n\n{}\n", title(object), object.doc);
    if !object.one_of.is_empty() {
        let _ = write!(page, "\nExactly one of {} is written.\n", keys_of(object.one_of.iter().copied()));
    }
    page.push_str("\n| key | type | default | meaning |\n|---|---|---|---|\n");
    for key in &object.keys {
        let _ =
            writeln!(page, "| `{}` | {} | {} | {} |", key.name, type_of(&key.kind), default(key, object), meaning(key));
    }
}

/// "A route" becomes "Route".
fn title(object: &Object) -> String {
    let mut letters = object.name().chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn type_of(kind: &Kind) -> String {
    match kind {
        Kind::Text(form) => format!("{}, as `{}`", form.noun, form.example.replace('|', "\\|")),
        Kind::Integer(min, max) => format!("{min} to {max}"),
        Kind::Boolean => "`true` or `false`".to_owned(),
        Kind::True => "`true`".to_owned(),
        Kind::Choice(words) => keys_of(words.iter().map(|word| word.text)),
        Kind::List(item) => format!("list of: {}", type_of(item)),
        Kind::Named(form, value) => format!("{} → {}", form.noun, type_of(value)),
        Kind::Object(object) => format!("[{}](#{})", object.name(), object.slug()),
        // One or many: the page gives the type once.
        Kind::Either(kinds) => match kinds.as_slice() {
            [one, Kind::List(item)] if type_of(one) == type_of(item) => format!("one or a list of: {}", type_of(one)),
            _ => kinds.iter().map(type_of).collect::<Vec<_>>().join("; or "),
        },
    }
}

fn default(key: &Key, object: &Object) -> String {
    match &key.default {
        Some(default) => default.clone(),
        None if object.one_of.contains(&key.name) => "one of these".to_owned(),
        None => "**required**".to_owned(),
    }
}

fn meaning(key: &Key) -> String {
    let mut meaning = key.doc.replace('|', "\\|");
    if let Some(only) = key.only {
        let _ = write!(meaning, " Protocol {only} only.");
    }
    // A choice, or a choice that an object can replace. The text above describes a choice of a single word.
    let kind = match &key.kind {
        Kind::Either(kinds) => kinds.first(),
        kind => Some(kind),
    };
    if let Some(Kind::Choice(words)) = kind
        && words.len() > 1
    {
        let words: Vec<String> = words.iter().map(|word| format!("`{}`: {}", word.text, word.doc)).collect();
        let _ = write!(meaning, " {}.", words.join("; "));
    }
    meaning
}

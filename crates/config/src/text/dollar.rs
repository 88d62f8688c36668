//! Text in which `$` refers to something and `$$` is a dollar sign: paths with captures, values with variables.

use crate::diagnostic::Wrong;

/// A part of such a text.
pub enum Part<T> {
    Text(String),
    Reference(T),
}

/// Splits a text into its parts. No text among them is empty, and no two follow each other. `reference` reads what follows a `$`, and returns what
/// is behind it.
///
/// # Errors
/// Those of `reference`.
pub fn parts<'t, T>(
    text: &'t str,
    mut reference: impl FnMut(&'t str) -> Result<(T, &'t str), Wrong>,
) -> Result<Vec<Part<T>>, Wrong> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        literal.push_str(before);
        if let Some(behind) = after.strip_prefix('$') {
            literal.push('$');
            rest = behind;
            continue;
        }
        let (found, behind) = reference(after)?;
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        parts.push(Part::Reference(found));
        rest = behind;
    }
    literal.push_str(rest);
    if !literal.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

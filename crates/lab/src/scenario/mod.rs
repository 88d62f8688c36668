//! Scenarios: declarative files in `lab/scenarios/`, each of which produces one table.
//!
//! This module reads such a file with every error at its place ([`read()`]), finds files ([`find`]), and cuts a scenario to what this host
//! can run and this call asks for ([`select()`]).
//!
//! A contender takes part as an *instance*, written `name[:default][*hops][@workers]`: `nginx-http`, `nginx-http:default` (the defaults of
//! its makers instead of the recommended settings), `haproxy-tcp*2` (two of it in a chain), `envoy-http@4` (four workers on four CPUs).

mod id;
mod read;
mod select;

use std::path::Path;

pub use id::InstanceId;
pub use read::{CaseFile, Quick, ScenarioFile, Times, read};
pub use select::{Selection, Wish, select};
pub(crate) use select::{and_copies, base_of, instance, with_copies};

use crate::contender::Recipe;
use crate::document::Problem;
use crate::shipped;

/// The most files that are read from a directory.
const FILES_MAX: usize = 500;

/// The names of the scenarios that come with the program.
#[must_use]
pub fn names() -> Vec<&'static str> {
    shipped::SCENARIOS.iter().map(|(name, _)| *name).collect()
}

/// The scenario with this name: one that comes with the program, or a file, if the name ends in `.toml` or has a slash.
///
/// # Errors
/// If there is no such scenario (with the existing names), if a file cannot be read, or everything that is wrong with it.
pub fn find(name: &str, recipes: &[Recipe]) -> Result<ScenarioFile, Vec<Problem>> {
    if name.ends_with(".toml") || name.contains('/') {
        let (stem, file, text) = text_of(Path::new(name)).map_err(|problem| vec![problem])?;
        return read(&stem, &file, &text, recipes);
    }
    match shipped::SCENARIOS.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => read(name, &format!("lab/scenarios/{name}.toml"), text, recipes),
        None => {
            let hint = crate::document::nearest(name, names().into_iter());
            let what = format!("no such scenario{hint} The scenarios are: {}; or give a file", names().join(", "));
            Err(vec![whole(name, what.replace("? There", "? there"))])
        }
    }
}

/// Name, path and text of each `.toml` file of a directory, by name.
pub(crate) fn texts_of(directory: &Path) -> Result<Vec<(String, String, String)>, Problem> {
    let at = |error: std::io::Error| whole(&directory.to_string_lossy(), format!("cannot be read: {error}"));
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(at)?.take(FILES_MAX) {
        let path = entry.map_err(at)?.path();
        if path.extension().is_some_and(|suffix| suffix == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    paths.iter().map(|path| text_of(path)).collect()
}

fn text_of(path: &Path) -> Result<(String, String, String), Problem> {
    let file = path.to_string_lossy().into_owned();
    let text = std::fs::read_to_string(path).map_err(|error| whole(&file, format!("cannot be read: {error}")))?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok((stem, file, text))
}

fn whole(file: &str, what: String) -> Problem {
    Problem { file: file.to_owned(), line: 1, column: 1, what }
}

#[cfg(test)]
mod tests;

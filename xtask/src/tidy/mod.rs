//! `cargo xtask tidy`: the rules of this repository that no compiler checks.
//!
//! Each check takes its input and returns [`Problem`]s, so that each has its own tests beside it. What clippy can check
//! is in `clippy.toml` and the lints of the workspace, not here.

mod arrows;
pub mod docs;
mod licences;
mod scrub;
mod source;
pub mod tree;

use std::fmt;

use crate::cargo::metadata;
use crate::command::root;

/// A violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The path relative to the workspace's folder.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Prints every problem, and fails if there is one.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask tidy".into());
    }
    let metadata = metadata()?;
    let files = tree::read(&root())?;

    let mut problems = arrows::check(&metadata.members);
    problems.extend(licences::check(&metadata.externals));
    problems.extend(source::check(&files, &metadata.members));
    problems.extend(docs::check(&files, &metadata.members));
    problems.sort();
    for problem in &problems {
        println!("{problem}");
    }
    for long in source::long_files(&files) {
        println!("note: {long}");
    }
    println!(
        "tidy: {} files, {} crates, {} dependencies",
        files.len(),
        metadata.members.len(),
        metadata.externals.len()
    );
    if problems.is_empty() { Ok(()) } else { Err(format!("{} problems", problems.len())) }
}

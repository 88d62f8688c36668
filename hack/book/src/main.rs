//! Builds a folder of Markdown as a site: `book FOLDER`. `cargo xtask docs` prepares the folder and checks the result.
//!
//! This is a package outside the workspace, because mdBook brings a hundred crates that no other verb needs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use mdbook_driver::MDBook;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1) else {
        eprintln!("usage: book FOLDER, where FOLDER has a book.toml");
        return ExitCode::from(2);
    };
    match MDBook::load(folder).and_then(|book| book.build()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("book: {error:#}");
            ExitCode::FAILURE
        }
    }
}

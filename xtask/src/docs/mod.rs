//! `cargo xtask docs`: builds the documentation as a site in `target/book/html`.
//!
//! mdBook needs all pages in one folder, but the pages link to files all over the repository (examples, kept runs). So
//! this verb copies the pages and the linked files into `target/book`, runs `hack/book` to build the site there, and
//! checks every link of it.

mod site;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::command::{cargo, root, run as run_command};
use crate::tidy::docs::{resolve, targets};
use crate::tidy::tree::{self, File};

/// The package that builds the site. It is outside the workspace.
pub const MANIFEST: &str = "hack/book/Cargo.toml";
const SETTINGS: &str = "hack/book/book.toml";
/// The table of contents. Its links are relative to its folder, as in every page.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Builds the site, and reports every link in it that leads nowhere or loads something from another host.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask docs".into());
    }
    let folder = root().join("target/book");
    for old in ["src", "html"] {
        let old = folder.join(old);
        if old.exists() {
            fs::remove_dir_all(&old).map_err(|error| format!("{}: {error}", old.display()))?;
        }
    }
    for (path, text) in prepared(&tree::read(&root())?)? {
        write(&folder.join("src").join(path), &text)?;
    }
    fs::copy(root().join(SETTINGS), folder.join("book.toml")).map_err(|error| format!("{SETTINGS}: {error}"))?;

    let shown = folder.to_string_lossy();
    run_command(&mut cargo(&[
        "run",
        "--quiet",
        "--locked",
        "--manifest-path",
        MANIFEST,
        "--target-dir",
        &shown,
        "--",
        &shown,
    ]))?;

    let problems = site::check(&folder.join("html"))?;
    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        return Err(format!("{} links of the site are wrong", problems.len()));
    }
    println!("docs: open {}", folder.join("html/index.html").display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The content of the folder with the site's sources: the table of contents, the chapters in it, and every file that a
/// chapter links to.
fn prepared(files: &[File]) -> Result<BTreeMap<String, String>, String> {
    let find = |path: &str| files.iter().find(|file| file.path == path);
    let summary = find(SUMMARY).ok_or_else(|| format!("{SUMMARY} is missing: it names the chapters in their order"))?;
    let chapters: Vec<String> =
        targets(&summary.text).into_iter().map(|(_, target)| resolve(SUMMARY, target)).collect();
    let mut prepared = BTreeMap::from([("SUMMARY.md".to_owned(), moved_up(&summary.text))]);
    for chapter in &chapters {
        let chapter = find(chapter).ok_or_else(|| format!("{SUMMARY} names {chapter}, which does not exist"))?;
        prepared.insert(chapter.path.clone(), renamed(chapter, &chapters));
        for (_, target) in targets(&chapter.text) {
            let path = resolve(&chapter.path, target.split('#').next().unwrap_or_default());
            if let Some(linked) = find(&path).filter(|file| !file.path.ends_with(".md")) {
                prepared.insert(path, linked.text.clone());
            }
        }
    }
    Ok(prepared)
}

/// mdBook builds `index.html` from a chapter `README.md`, but links to it must be changed here.
fn renamed(chapter: &File, chapters: &[String]) -> String {
    let mut text = chapter.text.clone();
    for (_, target) in targets(&chapter.text) {
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        if let Some(folder) =
            path.strip_suffix("README.md").filter(|_| chapters.contains(&resolve(&chapter.path, path)))
        {
            let mark = if heading.is_empty() { "" } else { "#" };
            text = text.replace(&format!("]({target})"), &format!("]({folder}index.md{mark}{heading})"));
        }
    }
    text
}

/// The table of contents with links relative to the parent folder.
fn moved_up(summary: &str) -> String {
    let mut text = String::new();
    for line in summary.lines() {
        match line.split_once("](").and_then(|(before, rest)| Some((before, rest.split_once(')')?))) {
            Some((before, (target, after))) => {
                text += &format!("{before}]({}){after}\n", resolve(SUMMARY, target));
            }
            None => text += &format!("{line}\n"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chapters_and_what_they_link_to_are_prepared() {
        let files = [
            File::new("docs/SUMMARY.md", "# Steelyard\n\n[Start](../README.md)\n\n- [Install](install.md)\n"),
            File::new("README.md", "[http](examples/http.yaml) [a heading](docs/install.md#here)"),
            File::new(
                "docs/install.md",
                "[units](../deploy/unit.service) [back](../README.md#start) [elsewhere](https://example.com)",
            ),
            File::new("docs/other.md", "not a chapter"),
            File::new("deploy/unit.service", "[Unit]"),
            File::new("examples/http.yaml", "listeners: {}"),
            File::new("examples/tcp.yaml", "listeners: {}"),
        ];
        let prepared = prepared(&files).unwrap();
        let names: Vec<&str> = prepared.keys().map(String::as_str).collect();
        assert_eq!(names, ["README.md", "SUMMARY.md", "deploy/unit.service", "docs/install.md", "examples/http.yaml"]);
        assert!(prepared["docs/install.md"].contains("(../index.md#start)"), "{}", prepared["docs/install.md"]);
        assert_eq!(prepared["SUMMARY.md"], "# Steelyard\n\n[Start](README.md)\n\n- [Install](docs/install.md)\n");
    }

    #[test]
    fn a_chapter_that_is_not_there_is_named() {
        let files = [File::new("docs/SUMMARY.md", "- [Gone](gone.md)\n")];
        assert_eq!(prepared(&files).unwrap_err(), "docs/SUMMARY.md names docs/gone.md, which does not exist");
    }
}

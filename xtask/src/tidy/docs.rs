//! Rules for the documents: every link leads somewhere, and every example and crate is mentioned.

use super::Problem;
use super::tree::File;
use crate::cargo::Member;

/// The page that describes each example.
const EXAMPLES: &str = "docs/examples.md";
/// The table of contents of the documentation.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Applies every rule of this file to every Markdown file.
pub fn check(files: &[File], members: &[Member]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        links(file, files, &mut problems);
    }
    let examples = files.iter().filter_map(|file| file.path.strip_prefix("examples/").map(|_| file.path.as_str()));
    mentioned(EXAMPLES, examples, files, &mut problems);
    let folders = members.iter().map(|member| member.folder.as_str());
    mentioned("ARCHITECTURE.md", folders, files, &mut problems);
    let pages = files.iter().map(|file| file.path.as_str());
    let pages = pages.filter(|path| path.starts_with("docs/") && path.ends_with(".md") && *path != SUMMARY);
    mentioned(SUMMARY, pages, files, &mut problems);
    front_page(files, &mut problems);
    problems
}

/// A newcomer reads one page, not a book. Everything else goes to `docs/`.
const FRONT_PAGE_LINES_MAX: usize = 120;

fn front_page(files: &[File], problems: &mut Vec<Problem>) {
    let lines = files.iter().find(|file| file.path == "README.md").map_or(0, |file| file.text.lines().count());
    if lines > FRONT_PAGE_LINES_MAX {
        let message = format!("has {lines} lines, {FRONT_PAGE_LINES_MAX} at most: move something to docs/");
        problems.push(Problem { file: "README.md".into(), line: FRONT_PAGE_LINES_MAX + 1, message });
    }
}

/// Each name must occur on the page as code, or as the target of a link.
fn mentioned<'a>(page: &str, names: impl Iterator<Item = &'a str>, files: &[File], problems: &mut Vec<Problem>) {
    let text = files.iter().find(|file| file.path == page).map_or("", |file| &file.text);
    let linked: Vec<String> = targets(text).into_iter().map(|(_, target)| resolve(page, target)).collect();
    for name in names.filter(|name| !text.contains(&format!("`{name}`")) && !linked.iter().any(|path| path == name)) {
        problems.push(Problem { file: page.into(), line: 1, message: format!("does not mention `{name}`") });
    }
}

/// Checks relative links: the file and the named heading must exist. Links to other sites are not followed, because CI
/// must not depend on them.
fn links(file: &File, files: &[File], problems: &mut Vec<Problem>) {
    for (place, target) in targets(&file.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, heading) = target.split_once('#').unwrap_or((target, ""));
        let path = if path.is_empty() { file.path.clone() } else { resolve(&file.path, path) };
        let mut problem = |message| problems.push(Problem { file: file.path.clone(), line: place, message });
        let there = files.iter().find(|other| other.path == path);
        let is_folder = files.iter().any(|other| other.path.starts_with(&format!("{path}/")));
        match there {
            None if is_folder => {}
            None => problem(format!("`{target}` leads nowhere: there is no {path}")),
            Some(there)
                if !heading.is_empty()
                    && there.path.ends_with(".md")
                    && !anchors(&there.text).any(|anchor| anchor == heading) =>
            {
                problem(format!("`{target}` leads nowhere: {path} has no heading `#{heading}`"));
            }
            Some(_) => {}
        }
    }
}

/// The targets of `[text](target)` outside fenced code, with line numbers from 1.
pub fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (place, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if !fenced {
            let ends = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
            found.extend(ends.map(|(target, _)| (place + 1, target)));
        }
    }
    found
}

/// The anchors that GitHub gives to headings: lower case, spaces become `-`, other punctuation is dropped.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// `path`, resolved relative to the folder of `from`.
pub fn resolve(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere() {
        let check = |text: &str, expect: &[&str]| {
            let files = [
                File::new("docs/page.md", text),
                File::new("docs/operate.md", "# Signals, and codes\n"),
                File::new("examples/http.yaml", ""),
            ];
            let mut problems = Vec::new();
            links(&files[0], &files, &mut problems);
            let messages: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
            assert_eq!(messages, expect, "{text}");
        };
        check("[a](operate.md) [b](../examples/http.yaml) [c](../examples/) [d](https://example.com/x)", &[]);
        check("[a](operate.md#signals-and-codes)", &[]);
        check("# Here\n[a](#here)", &[]);
        check("[a](gone.md)", &["`gone.md` leads nowhere: there is no docs/gone.md"]);
        check("[a](operate.md#gone)", &["`operate.md#gone` leads nowhere: docs/operate.md has no heading `#gone`"]);
        check("```\n[a](gone.md)\n```\n", &[]);
    }

    #[test]
    fn nothing_is_left_unmentioned() {
        let member = |folder: &str| Member {
            name: folder.into(),
            folder: folder.into(),
            roots: Vec::new(),
            dependencies: Vec::new(),
        };
        let files = [
            File::new("ARCHITECTURE.md", "`crates/wire`"),
            File::new("README.md", "one line"),
            File::new("docs/SUMMARY.md", "- [Examples](examples.md)"),
            File::new("docs/examples.md", "[http](../examples/http.yaml)"),
            File::new("docs/lost.md", ""),
            File::new("examples/http.yaml", ""),
            File::new("examples/tcp.yaml", ""),
        ];
        let problems = check(&files, &[member("crates/wire"), member("crates/net")]);
        let shown: Vec<String> = problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            shown,
            [
                "docs/examples.md:1: does not mention `examples/tcp.yaml`",
                "ARCHITECTURE.md:1: does not mention `crates/net`",
                "docs/SUMMARY.md:1: does not mention `docs/lost.md`",
            ]
        );
    }

    #[test]
    fn the_front_page_is_short() {
        let check = |lines: usize, expect: &[&str]| {
            let mut problems = Vec::new();
            front_page(&[File::new("README.md", "a\n".repeat(lines))], &mut problems);
            let shown: Vec<String> = problems.iter().map(Problem::to_string).collect();
            assert_eq!(shown, expect);
        };
        check(120, &[]);
        check(121, &["README.md:121: has 121 lines, 120 at most: move something to docs/"]);
    }
}

//! Checks the links of a built site: each must lead to a file of the site and to an anchor in it, and nothing may be
//! loaded from another host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::tidy::docs::resolve;

/// Tags that load what they link to. `<a>` only leads to it.
const LOADING: [&str; 8] = ["link", "script", "img", "iframe", "source", "image", "use", "object"];

/// Returns the problems of the site in `folder`, one per line.
pub fn check(folder: &Path) -> Result<Vec<String>, String> {
    let mut files = BTreeMap::new();
    walk(folder, "", &mut files).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(problems(&files))
}

/// `files` by path. The text is empty except for pages and style sheets.
fn problems(files: &BTreeMap<String, String>) -> Vec<String> {
    let is_page = |path: &str| path.ends_with(".html");
    let anchors: BTreeMap<&str, BTreeSet<&str>> =
        files.iter().filter(|(path, _)| is_page(path)).map(|(path, text)| (path.as_str(), ids(text))).collect();
    let mut problems = Vec::new();
    for (path, text) in files {
        if path.ends_with(".css") {
            let loaded = text.split("url(").skip(1).map(|rest| rest.trim_start_matches(['"', '\'']));
            problems.extend(
                loaded.filter(|url| is_elsewhere(url)).map(|_| format!("{path}: loads something from another host")),
            );
        }
        if !is_page(path) {
            continue;
        }
        for (tag, target) in links(text) {
            if is_elsewhere(target) {
                if LOADING.contains(&tag) {
                    problems.push(format!("{path}: <{tag}> loads {target} from another host"));
                }
                continue;
            }
            if target.starts_with("mailto:") || target.starts_with("data:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { path.clone() } else { resolve(path, file) };
            let file = if file.is_empty() { "index.html".to_owned() } else { file };
            if !files.contains_key(&file) {
                problems.push(format!("{path}: {target} leads nowhere: the site has no {file}"));
            } else if !anchor.is_empty() && anchors.get(file.as_str()).is_some_and(|ids| !ids.contains(anchor)) {
                problems.push(format!("{path}: {target} leads nowhere: {file} has no #{anchor}"));
            }
        }
    }
    problems
}

fn is_elsewhere(target: &str) -> bool {
    target.starts_with("//") || target.starts_with("http://") || target.starts_with("https://")
}

/// The name of each tag with `href` or `src`, and the value of that attribute.
fn links(page: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for tag in tags(page) {
        let name = tag.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
        for attribute in [" href=\"", " src=\""] {
            let value = tag.split_once(attribute).and_then(|(_, rest)| rest.split_once('"'));
            found.extend(value.map(|(value, _)| (name, value)));
        }
    }
    found
}

fn ids(page: &str) -> BTreeSet<&str> {
    tags(page).filter_map(|tag| Some(tag.split_once(" id=\"")?.1.split_once('"')?.0)).collect()
}

/// The text between `<` and `>`. Scripts use `<` as an operator, but then none of the attributes follows it.
fn tags(page: &str) -> impl Iterator<Item = &str> {
    page.split('<').skip(1).filter_map(|rest| rest.split_once('>').map(|(tag, _)| tag))
}

fn walk(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), &format!("{path}/"), files)?;
        } else if path.ends_with(".html") || path.ends_with(".css") {
            files.insert(path, fs::read_to_string(entry.path())?);
        } else {
            files.insert(path, String::new());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_somewhere_and_nothing_is_loaded_from_elsewhere() {
        let check = |page: &str, expect: &[&str]| {
            let files = BTreeMap::from([
                ("docs/page.html".to_owned(), page.to_owned()),
                ("docs/tls.html".to_owned(), "<h2 id=\"renewal\">Renewal</h2>".to_owned()),
                ("index.html".to_owned(), String::new()),
                ("examples/http.yaml".to_owned(), String::new()),
                ("book.css".to_owned(), "body { background: url(\"a.png\") }".to_owned()),
            ]);
            assert_eq!(problems(&files), expect, "{page}");
        };
        check(
            "<a href=\"tls.html\">a</a> <a href=\"tls.html#renewal\">b</a> <a href=\"../examples/http.yaml\">c</a>",
            &[],
        );
        check("<h1 id=\"here\">x</h1><a class=\"header\" href=\"#here\">y</a>", &[]);
        check("<a href=\"https://example.com/x\">out</a>", &[]);
        check(
            "<a href=\"gone.html\">a</a>",
            &["docs/page.html: gone.html leads nowhere: the site has no docs/gone.html"],
        );
        check(
            "<a href=\"tls.html#gone\">a</a>",
            &["docs/page.html: tls.html#gone leads nowhere: docs/tls.html has no #gone"],
        );
        check(
            "<script src=\"https://cdn.example.com/x.js\"></script>",
            &["docs/page.html: <script> loads https://cdn.example.com/x.js from another host"],
        );
    }

    #[test]
    fn style_sheets_load_nothing_from_elsewhere() {
        let files = BTreeMap::from([("a.css".to_owned(), "@font-face { src: url('https://x.example/f') }".to_owned())]);
        assert_eq!(problems(&files), ["a.css: loads something from another host"]);
    }
}

//! The licence texts of the parts: where they lie, and one file of all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Part;
use crate::command::root;
use crate::dist::pack;

/// How such a file's name begins.
const NAMES: &[&str] = &["license", "licence", "copying", "notice", "unlicense", "copyright"];

/// Folders of a crate with code of others that our builds do not use: they take these libraries from the host.
const UNUSED: &[(&str, &[&str])] = &[("libbpf-sys", &["elfutils", "zlib"])];

/// Crates without a text whose repository has another crate with the text of both: `dropbox/rust-alloc-no-stdlib`.
const SIBLINGS: &[(&str, &str)] = &[("alloc-stdlib", "alloc-no-stdlib")];

/// How deep such files lie in a crate: aws-lc-sys keeps those of its assembly in `aws-lc/third_party/fiat`.
const DEPTH_MAX: usize = 4;

/// The licence texts in the folder of a crate. A crate that has none, and may be used under Apache-2.0, is under the text that we have.
pub fn files(folder: &Path, name: &str) -> Result<Vec<PathBuf>, String> {
    let unused = UNUSED.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, folders)| *folders);
    let mut found = Vec::new();
    walk(folder, unused, DEPTH_MAX, &mut found).map_err(|error| format!("{}: {error}", folder.display()))?;
    if let (true, Some((_, sibling))) = (found.is_empty(), SIBLINGS.iter().find(|(known, _)| *known == name)) {
        found = siblings_files(folder, sibling)?;
    }
    if found.is_empty() {
        let manifest = pack::read(&folder.join("Cargo.toml"))?;
        if !manifest.lines().any(|line| line.starts_with("license = ") && line.contains("Apache-2.0")) {
            return Err(format!("{name} carries no licence text, and we have none for it: {}", folder.display()));
        }
        found.push(root().join("LICENSE"));
    }
    found.sort();
    Ok(found)
}

/// The texts of another crate, whose folder lies beside this one.
fn siblings_files(folder: &Path, sibling: &str) -> Result<Vec<PathBuf>, String> {
    let beside = folder.parent().map(std::fs::read_dir).transpose();
    let beside = beside.map_err(|error| format!("{}: {error}", folder.display()))?;
    let is_sibling = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let version = name.strip_prefix(sibling).and_then(|rest| rest.strip_prefix('-'));
        version.is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
    };
    let found = beside.into_iter().flatten().flatten().map(|entry| entry.path()).find(is_sibling);
    found.map_or(Ok(Vec::new()), |folder| files(&folder, sibling))
}

fn walk(folder: &Path, unused: &[&str], depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let kind = entry.file_type()?;
        if kind.is_dir() && depth > 0 && !name.starts_with('.') && !unused.contains(&&*name) {
            walk(&entry.path(), &[], depth - 1, found)?;
        } else if kind.is_file() && NAMES.iter().any(|begin| name.starts_with(begin)) {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// One file of all: the parts by name, each with the numbers of its texts, then each text once.
pub fn texts(parts: &[Part]) -> Result<String, String> {
    let mut texts: Vec<String> = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut list = String::new();
    for part in parts {
        let mut own = Vec::new();
        for path in &part.texts {
            let text = std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
            let text = String::from_utf8_lossy(&text).trim().replace("\r\n", "\n");
            let number = *numbers.entry(text.clone()).or_insert_with(|| {
                texts.push(text);
                texts.len()
            });
            own.push(format!("[{number}]"));
        }
        own.dedup();
        list += &format!("{} {}: {} {}\n", part.name, part.version, part.licence, own.join(" "));
    }
    let mut all = format!(
        "Steelyard is under the Apache License, Version 2.0. The program contains the parts below, each under its own licence.\n\
         The number in brackets is that of the text, further down.\n\n{list}"
    );
    for (place, text) in texts.iter().enumerate() {
        all += &format!("\n{:=<100}\n[{}]\n\n{text}\n", "", place + 1);
    }
    Ok(all)
}

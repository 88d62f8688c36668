//! The text files of the repository, both committed and new ones.

use std::fs;
use std::path::Path;

use super::scrub::scrub;

/// A text file.
pub struct File {
    /// The path relative to the workspace's folder, with `/` as the separator.
    pub path: String,
    /// The content.
    pub text: String,
    /// For Rust, the same lines with comments and the contents of literals blanked, so that only code is left. Empty
    /// for other files.
    pub code: String,
}

impl File {
    /// Creates a file as [`read`] does.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") { scrub(&text) } else { String::new() };
        Self { path, text, code }
    }
}

/// Every file below `root` that is UTF-8 and not in `.gitignore`, sorted by path.
///
/// Only anchored paths (`/target`) in `.gitignore` are understood. The repository has no others, and another one is an
/// error.
pub fn read(root: &Path) -> Result<Vec<File>, String> {
    let ignore = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    let mut ignored = vec![".git".to_owned()];
    for line in ignore.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let path = line.strip_prefix('/').filter(|path| !path.contains('*'));
        ignored.push(path.ok_or(format!(".gitignore: `{line}` is not an anchored path: write `/folder`"))?.to_owned());
    }
    let mut files = Vec::new();
    walk(root, "", &ignored, &mut files).map_err(|error| format!("{}: {error}", root.display()))?;
    files.sort_by(|left, right| left.path.cmp(&right.path));
    Ok(files)
}

fn walk(folder: &Path, prefix: &str, ignored: &[String], files: &mut Vec<File>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if ignored.contains(&path) {
            continue;
        }
        // Symbolic links are not followed: their targets are read where they are.
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), ignored, files)?;
        } else if kind.is_file()
            && let Ok(text) = String::from_utf8(fs::read(entry.path())?)
        {
            files.push(File::new(path, text));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::root;

    #[test]
    fn reads_this_repository() {
        let files = read(&root()).unwrap();
        let has = |path: &str| files.iter().any(|file| file.path == path);
        assert!(has("Cargo.toml") && has("xtask/src/tidy/tree.rs") && has(".ci/run"));
        assert!(!files.iter().any(|file| file.path.starts_with("target/") || file.path.starts_with(".git/")));
    }
}

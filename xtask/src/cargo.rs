//! What `cargo metadata` says about the workspace, reduced to what the verbs need.

use std::path::PathBuf;

use serde_json::Value;

use crate::command::{capture, cargo};

/// The workspace and everything that it is built from.
pub struct Metadata {
    /// Our crates, by name.
    pub members: Vec<Member>,
    /// The crates of others.
    pub externals: Vec<External>,
    /// The folder for build output.
    pub target_directory: PathBuf,
}

/// A crate of this workspace.
#[derive(Debug, Clone)]
pub struct Member {
    /// The name, as in its manifest.
    pub name: String,
    /// The path relative to the workspace's folder, with `/` as the separator: `crates/wire`.
    pub folder: String,
    /// The root files of the library and the binaries, relative to the workspace's folder.
    pub roots: Vec<String>,
    /// All dependencies in its manifest, ours and others'.
    pub dependencies: Vec<Dependency>,
}

/// A dependency in a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The package's name, not the name that it may be renamed to.
    pub name: String,
    /// It is under `[dev-dependencies]`, so it is not part of what users run.
    pub dev: bool,
}

/// A crate of others.
#[derive(Debug, Clone)]
pub struct External {
    /// `name version`.
    pub name: String,
    /// The SPDX expression; empty if the manifest has none.
    pub licence: String,
}

/// Runs `cargo metadata`.
pub fn metadata() -> Result<Metadata, String> {
    let text = capture(&mut cargo(&["metadata", "--format-version=1", "--all-features"]))?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata wrote bad JSON: {error}"))?;
    let root = format!("{}/", text_at(&value, "workspace_root"));
    let packages = list_at(&value, "packages");
    let ours = |package: &&Value| package.get("source").is_none_or(Value::is_null);
    let mut members: Vec<Member> = packages.iter().filter(ours).map(|package| member(package, &root)).collect();
    members.sort_by(|left, right| left.name.cmp(&right.name));
    let externals = packages.iter().filter(|package| !ours(package)).map(external).collect();
    Ok(Metadata { members, externals, target_directory: PathBuf::from(text_at(&value, "target_directory")) })
}

/// Where cargo puts what it builds. Unlike [`metadata`], this fetches no crate.
pub fn target_directory() -> Result<PathBuf, String> {
    let text = capture(&mut cargo(&["metadata", "--format-version=1", "--no-deps"]))?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata wrote bad JSON: {error}"))?;
    Ok(PathBuf::from(text_at(&value, "target_directory")))
}

/// The names of the binaries of one manifest outside the workspace.
pub fn binaries(manifest: &str) -> Result<Vec<String>, String> {
    let text = capture(&mut cargo(&["metadata", "--format-version=1", "--no-deps", "--manifest-path", manifest]))?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata wrote bad JSON: {error}"))?;
    let packages = list_at(&value, "packages");
    let targets = packages.iter().flat_map(|package| list_at(package, "targets"));
    Ok(targets.filter(|target| has_kind(target, &["bin"])).map(|target| text_at(target, "name").to_owned()).collect())
}

fn member(package: &Value, root: &str) -> Member {
    let relative = |path: &str| path.strip_prefix(root).unwrap_or(path).to_owned();
    let manifest = relative(text_at(package, "manifest_path"));
    let targets = list_at(package, "targets").iter().filter(|target| has_kind(target, &["lib", "bin"]));
    Member {
        name: text_at(package, "name").to_owned(),
        folder: manifest.strip_suffix("/Cargo.toml").unwrap_or("").to_owned(),
        roots: targets.map(|target| relative(text_at(target, "src_path"))).collect(),
        dependencies: list_at(package, "dependencies")
            .iter()
            .map(|entry| Dependency { name: text_at(entry, "name").to_owned(), dev: text_at(entry, "kind") == "dev" })
            .collect(),
    }
}

fn external(package: &Value) -> External {
    External {
        name: format!("{} {}", text_at(package, "name"), text_at(package, "version")),
        licence: text_at(package, "license").to_owned(),
    }
}

fn has_kind(target: &Value, kinds: &[&str]) -> bool {
    list_at(target, "kind").iter().filter_map(Value::as_str).any(|kind| kinds.contains(&kind))
}

fn text_at<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

fn list_at<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_this_workspace() {
        let metadata = metadata().unwrap();
        let xtask = metadata.members.iter().find(|member| member.name == "xtask").unwrap();
        assert_eq!(
            (xtask.folder.as_str(), xtask.roots.as_slice()),
            ("xtask", ["xtask/src/main.rs".to_owned()].as_slice())
        );
        assert!(xtask.dependencies.contains(&Dependency { name: "serde_json".into(), dev: false }));
        assert!(metadata.externals.iter().any(|external| external.name.starts_with("serde_json ")));
        assert!(metadata.members.iter().all(|member| member.name != "serde_json"));
    }
}

//! The version that the test of an upgrade comes from: an earlier commit of this repository, with its own chart, kinds and program.

use std::path::{Path, PathBuf};

use super::images::PREVIOUS;
use crate::cargo::metadata;
use crate::command::{capture, command, root, run as run_command, succeeds};
use crate::dist::{self, Release};

/// It is the last commit before 24 November 2026, 07:00 UTC. Its kernel tables have layout 2, so the upgrade must move connections. Raise it with
/// each release.
const COMMIT: &str = "cd9293d794a8f75208517e8e0692b8e8758ffdbf";

/// What it takes to install that version.
pub struct Previous {
    /// The folder with its source.
    pub source: PathBuf,
    pub image: PathBuf,
}

/// Builds it, unless an earlier run has. `None` in a clone without its commit.
pub fn make() -> Result<Option<Previous>, String> {
    let commit = format!("{COMMIT}^{{commit}}");
    if !succeeds(&mut command("git", &["cat-file", "-e", &commit])) {
        println!("cluster: this clone has no commit {COMMIT}: the test upgrades from the present version to itself");
        return Ok(None);
    }
    let folder = metadata()?.target_directory.join("previous").join(COMMIT);
    let source = folder.join("source");
    if !source.join("Cargo.lock").exists() {
        unpack(&folder, &source)?;
    }
    let program = folder.join("steelyard");
    if !program.exists() {
        dist::build_static(&source, &program)?;
    }
    let release = Release::for_tests("cluster/previous")?;
    Ok(Some(Previous { image: dist::image_of(&release, &program, PREVIOUS)?, source }))
}

/// Writes the files of the commit.
fn unpack(folder: &Path, source: &Path) -> Result<(), String> {
    std::fs::create_dir_all(source).map_err(|error| format!("cannot make {}: {error}", source.display()))?;
    let archive = folder.join("source.tar").display().to_string();
    run_command(&mut command("git", &["archive", "--format=tar", "--output", &archive, COMMIT]))?;
    capture(&mut command("tar", &["--extract", "--file", &archive, "--directory", &source.display().to_string()]))?;
    std::fs::remove_file(&archive).map_err(|error| format!("cannot remove {archive}: {error}"))
}

/// The folder whose chart and kinds are installed first.
pub fn source(previous: Option<&Previous>) -> PathBuf {
    previous.map_or_else(root, |previous| previous.source.clone())
}

//! Builds Go programs of other projects into the target folder. Modules under `hack` pin their versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{command, find_program, root};

/// Runs `go` with these arguments, in the folder of a module.
pub fn go(module: &str, arguments: &[&str]) -> Result<Command, String> {
    // Go's own archive is installed there. In a shell that did not read the login profile, this is not on the PATH.
    let installed = Some(PathBuf::from("/usr/local/go/bin/go")).filter(|path| path.is_file());
    let go = find_program("go").or(installed).ok_or_else(|| {
        format!(
            "this builds programs in Go, and go is not installed: install the version in {module}/go.mod, see \
             https://go.dev/dl"
        )
    })?;
    let mut command = command(&go.to_string_lossy(), arguments);
    command.current_dir(root().join(module));
    Ok(command)
}

/// Runs `go build` of a module into a folder, which is created. The caller adds the packages and flags.
pub fn build(module: &str, directory: &Path) -> Result<Command, String> {
    std::fs::create_dir_all(directory).map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    // With the slash, the binaries go into the folder even if there is only one.
    let output = format!("{}/", directory.display());
    let mut build = go(module, &["build", "-mod=readonly", "-trimpath", "-o", &output])?;
    // None of them needs C, which would require a compiler.
    build.env("CGO_ENABLED", "0");
    Ok(build)
}

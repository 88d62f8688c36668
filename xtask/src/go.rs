//! Programs of others that are written in Go: modules under `hack` pin them, and they are built into the target folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{command, find_program, root};

/// `go` with these arguments, in the folder of a module.
pub fn go(module: &str, arguments: &[&str]) -> Result<Command, String> {
    // Where Go's own archive puts it, which a shell that no login read does not have on its PATH.
    let installed = Some(PathBuf::from("/usr/local/go/bin/go")).filter(|path| path.is_file());
    let go = find_program("go").or(installed).ok_or_else(|| {
        format!(
            "programs are built here that are written in Go, and there is no go: \
             install the version that {module}/go.mod asks for, as https://go.dev/dl says"
        )
    })?;
    let mut command = command(&go.to_string_lossy(), arguments);
    command.current_dir(root().join(module));
    Ok(command)
}

/// `go build` of a module into a folder, which is made: the packages and flags are for the caller to add.
pub fn build(module: &str, directory: &Path) -> Result<Command, String> {
    std::fs::create_dir_all(directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    // With the slash, the binaries go into the folder whatever their number.
    let output = format!("{}/", directory.display());
    let mut build = go(module, &["build", "-mod=readonly", "-trimpath", "-o", &output])?;
    // C is of no use to any of them, and would want a compiler.
    build.env("CGO_ENABLED", "0");
    Ok(build)
}

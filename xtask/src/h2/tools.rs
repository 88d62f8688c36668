//! The suites' programs: Go, pinned by `hack/interop/go.mod`, built into the target folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::command::{command, find_program, root, run as run_command};

/// Where the module is.
const MODULE: &str = "hack/interop";

/// What is built: the package, and what `go build` calls its binary.
const H2SPEC: (&str, &str) = ("github.com/summerwind/h2spec/cmd/h2spec", "h2spec");
const SERVER: (&str, &str) = ("google.golang.org/grpc/interop/server", "server");
const CLIENT: (&str, &str) = ("./client", "client");

/// The built programs.
pub struct Tools {
    pub h2spec: PathBuf,
    /// The gRPC suite's server, and our command around its client's cases.
    pub server: PathBuf,
    pub client: PathBuf,
}

/// Builds them, which takes a minute or two the first time and a second after that.
pub fn build(directory: &Path) -> Result<Tools, String> {
    // Where Go's own archive puts it, which a shell that no login read does not have on its PATH.
    let installed = Some(PathBuf::from("/usr/local/go/bin/go")).filter(|path| path.is_file());
    let go = find_program("go").or(installed).ok_or_else(|| {
        format!("the suites are Go programs and there is no go: install the version that {MODULE}/go.mod asks for, as https://go.dev/dl says")
    })?;
    std::fs::create_dir_all(directory).map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let start = Instant::now();
    // With the slash, the binaries go into the folder whatever their number.
    let output = format!("{}/", directory.display());
    let mut build = command(&go.to_string_lossy(), &["build", "-mod=readonly", "-trimpath", "-o", &output]);
    build.args([H2SPEC.0, SERVER.0, CLIENT.0]).current_dir(root().join(MODULE));
    // C is of no use to them, and would want a compiler.
    run_command(build.env("CGO_ENABLED", "0"))?;
    println!("interop: built in {} s", start.elapsed().as_secs());
    let built = |(_, name): (&str, &str)| directory.join(name);
    Ok(Tools { h2spec: built(H2SPEC), server: built(SERVER), client: built(CLIENT) })
}

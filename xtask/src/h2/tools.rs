//! The programs of the suites: in Go, pinned by `hack/interop/go.mod`, built into the target folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::command::run as run_command;
use crate::go;

/// The folder of the module.
const MODULE: &str = "hack/interop";

/// What to build: the package, and the name that `go build` gives its binary.
const H2SPEC: (&str, &str) = ("github.com/summerwind/h2spec/cmd/h2spec", "h2spec");
const SERVER: (&str, &str) = ("google.golang.org/grpc/interop/server", "server");
const CLIENT: (&str, &str) = ("./client", "client");
const AUTHZ: (&str, &str) = ("./authz", "authz");

/// The built programs.
pub struct Tools {
    pub h2spec: PathBuf,
    /// The gRPC suite's server, and our command that runs the cases of its client.
    pub server: PathBuf,
    pub client: PathBuf,
    /// An authorization service written against Envoy's protos.
    pub authz: PathBuf,
}

/// Builds them. This takes a minute or two the first time, and a second after that.
pub fn build(directory: &Path) -> Result<Tools, String> {
    let start = Instant::now();
    run_command(go::build(MODULE, directory)?.args([H2SPEC.0, SERVER.0, CLIENT.0, AUTHZ.0]))?;
    println!("interop: built in {} s", start.elapsed().as_secs());
    let built = |(_, name): (&str, &str)| directory.join(name);
    Ok(Tools { h2spec: built(H2SPEC), server: built(SERVER), client: built(CLIENT), authz: built(AUTHZ) })
}

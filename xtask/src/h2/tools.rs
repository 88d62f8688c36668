//! The programs of the suites: in Go, pinned by the go.mod files of `hack/interop`, `hack/oauth2-proxy` and `hack/otlp`, built into the target
//! folder.

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::command::run as run_command;
use crate::go;

/// The folder of the module.
const MODULE: &str = "hack/interop";

/// The folder of the module of a login service, and its package. Go names the binary after the folder above the version.
const LOGIN_MODULE: &str = "hack/oauth2-proxy";
const LOGIN: (&str, &str) = ("github.com/oauth2-proxy/oauth2-proxy/v7", "oauth2-proxy");

/// The folder of the module of a collector, which is its package, too.
const COLLECTOR_MODULE: &str = "hack/otlp";

/// What to build: the package, and the name that `go build` gives its binary.
const H2SPEC: (&str, &str) = ("github.com/summerwind/h2spec/cmd/h2spec", "h2spec");
const SERVER: (&str, &str) = ("google.golang.org/grpc/interop/server", "server");
const CLIENT: (&str, &str) = ("./client", "client");
const AUTHZ: (&str, &str) = ("./authz", "authz");
const DESCRIBED: (&str, &str) = ("./described", "described");
const RLS: (&str, &str) = ("./rls", "rls");
const RATELIMIT: (&str, &str) = ("github.com/envoyproxy/ratelimit/src/service_cmd", "service_cmd");

/// The built programs.
pub struct Tools {
    pub h2spec: PathBuf,
    /// The gRPC suite's server, and our command that runs the cases of its client.
    pub server: PathBuf,
    pub client: PathBuf,
    /// The gRPC suite's service, which describes itself by server reflection.
    pub described: PathBuf,
    /// An authorization service written against Envoy's protos.
    pub authz: PathBuf,
    /// Rate limit services that misbehave.
    pub rls: PathBuf,
    /// The rate limit service of the Envoy project.
    pub ratelimit: PathBuf,
}

/// Builds the login service. This takes two minutes the first time, and a second after that.
pub fn build_login(directory: &Path) -> Result<PathBuf, String> {
    let start = Instant::now();
    run_command(go::build(LOGIN_MODULE, directory)?.arg(LOGIN.0))?;
    println!("oauth2-proxy: built in {} s", start.elapsed().as_secs());
    Ok(directory.join(LOGIN.1))
}

/// Builds the collector. This takes half a minute the first time, and a second after that.
pub fn build_collector(directory: &Path) -> Result<PathBuf, String> {
    let start = Instant::now();
    run_command(go::build(COLLECTOR_MODULE, directory)?.arg("."))?;
    println!("collector: built in {} s", start.elapsed().as_secs());
    Ok(directory.join("otlp"))
}

/// Builds them. This takes a minute or two the first time, and a second after that.
pub fn build(directory: &Path) -> Result<Tools, String> {
    let start = Instant::now();
    run_command(go::build(MODULE, directory)?.args([
        H2SPEC.0,
        SERVER.0,
        CLIENT.0,
        DESCRIBED.0,
        AUTHZ.0,
        RLS.0,
        RATELIMIT.0,
    ]))?;
    println!("interop: built in {} s", start.elapsed().as_secs());
    let built = |(_, name): (&str, &str)| directory.join(name);
    Ok(Tools {
        h2spec: built(H2SPEC),
        server: built(SERVER),
        client: built(CLIENT),
        described: built(DESCRIBED),
        authz: built(AUTHZ),
        rls: built(RLS),
        ratelimit: built(RATELIMIT),
    })
}

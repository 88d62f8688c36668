//! `cargo xtask test kube` and `cargo xtask bench kube`: Steelyard as the controller of a real API server. [`crate::cluster`] also has nodes.
//!
//! kube-apiserver and etcd are built from their Go modules, which `hack/kube` pins. The kinds of the Gateway API come from its module, which
//! `hack/kube/gateway-api` pins. Both are kept under `target/kube`, so that only the first run builds them. The tests are in
//! `e2e/tests/kube`, the benchmark is `e2e/benches/kube.rs`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::cargo::metadata;
use crate::command::{self, capture, cargo, is_root};
use crate::{dist, go, setup, test};

/// The folders of the modules.
const MODULE: &str = "hack/kube";
const GATEWAY_API: &str = "hack/kube/gateway-api";
/// The module with the kinds to install, and its folder that has one folder for each channel.
const KINDS: (&str, &str) = ("sigs.k8s.io/gateway-api", "config/crd");

/// A file beside the kinds of the experimental channel that is not a definition of a kind.
const KUSTOMIZATION: &str = "kustomization.yaml";

/// The packages to build. Go names a binary after the folder above a version, so etcd's is called `server`.
const PACKAGES: [&str; 2] = ["k8s.io/kubernetes/cmd/kube-apiserver", "go.etcd.io/etcd/server/v3"];

/// The packages that a cluster with nodes needs in addition.
const REST: [&str; 4] = [
    "k8s.io/kubernetes/cmd/kube-controller-manager",
    "k8s.io/kubernetes/cmd/kube-scheduler",
    "k8s.io/kubernetes/cmd/kubectl",
    "k8s.io/kubernetes/cmd/kubelet",
];

/// The version that a released kube-apiserver reports. A build from the module alone does not know it.
pub const VERSION: &str = "v1.36.3";

/// Runs the tests. `arguments` are passed to the test binary; usually they are names of tests.
pub fn test(arguments: &[String]) -> Result<(), String> {
    setup::install_for("test")?;
    let binary = test::build_steelyard(&[])?;
    let mut tests = cargo(&["test", "--workspace", "--features", "e2e/kube", "--test", "kube", "--"]);
    let run = prepare(&binary, &mut tests)?;
    dist::render_variants(&metadata()?.target_directory.join("kube/charts"))?;
    let outcome = test::run_chosen(tests.args(arguments));
    clear(&run)?;
    outcome
}

/// Runs the benchmark.
pub fn bench(arguments: &[String]) -> Result<(), String> {
    if !is_root() {
        return Err("namespaces are root's".into());
    }
    setup::install_for("bench")?;
    command::run(&mut cargo(&["build", "--release", "--package", "steelyard"]))?;
    let mut bench =
        cargo(&["bench", "--profile", "dev", "--package", "e2e", "--features", "kube", "--bench", "kube", "--"]);
    let run = prepare(&metadata()?.target_directory.join("release/steelyard"), &mut bench)?;
    let outcome = command::run(bench.args(arguments));
    clear(&run)?;
    outcome
}

/// Builds what is needed, and passes its location to `command` in the environment. Returns the folder for the files of one run.
fn prepare(binary: &Path, command: &mut Command) -> Result<PathBuf, String> {
    let target = metadata()?.target_directory;
    let directory = target.join("kube");
    build(&directory, &PACKAGES)?;
    let run = directory.join("run");
    clear(&run)?;
    command.env("STEELYARD_BIN", binary).env("STEELYARD_KUBE", &directory);
    Ok(run)
}

/// Builds all programs of Kubernetes, and copies the kinds of the Gateway API into the same folder. Returns that folder.
pub fn build_everything() -> Result<PathBuf, String> {
    let directory = metadata()?.target_directory.join("kube");
    build(&directory, &[&PACKAGES[..], &REST].concat())?;
    Ok(directory)
}

/// The folder of a module on which Kubernetes depends.
pub fn module(name: &str) -> Result<PathBuf, String> {
    // A module that no build has fetched has no folder, and `list` says so with an empty line.
    command::run(go::go(MODULE, &["mod", "download"])?.arg(name))?;
    let said = capture(&mut go::go(MODULE, &["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", name])?)?;
    Ok(PathBuf::from(said.trim()))
}

/// Takes some minutes the first time and a second after that.
fn build(directory: &Path, packages: &[&str]) -> Result<(), String> {
    let start = Instant::now();
    let (major, minor) = major_and_minor(VERSION);
    let say = |name: &str, value: &str| format!("-X k8s.io/component-base/version.{name}={value}");
    let flags = ["-s -w".to_owned(), say("gitVersion", VERSION), say("gitMajor", major), say("gitMinor", minor)];
    command::run(go::build(MODULE, directory)?.arg("-ldflags").arg(flags.join(" ")).args(packages))?;
    copy_kinds("standard", &directory.join("gateway-api"))?;
    println!("kube: built in {} s", start.elapsed().as_secs());
    Ok(())
}

/// Copies the definitions of a channel's kinds into a folder, and returns it.
pub fn kinds(channel: &str) -> Result<PathBuf, String> {
    let directory = metadata()?.target_directory.join("kube").join(format!("gateway-api-{channel}"));
    copy_kinds(channel, &directory)?;
    Ok(directory)
}

fn major_and_minor(version: &str) -> (&str, &str) {
    let mut parts = version.trim_start_matches('v').split('.');
    (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// Copies only definitions, and removes older ones first.
fn copy_kinds(channel: &str, to: &Path) -> Result<(), String> {
    command::run(&mut go::go(GATEWAY_API, &["mod", "download", KINDS.0])?)?;
    let module = capture(&mut go::go(GATEWAY_API, &["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", KINDS.0])?)?;
    let from = &Path::new(module.trim()).join(KINDS.1).join(channel);
    clear(to)?;
    let copy = || -> std::io::Result<usize> {
        fs::create_dir_all(to)?;
        let mut count = 0;
        for entry in fs::read_dir(from)? {
            let path = entry?.path();
            let is_definition = |name: &&OsStr| name.as_encoded_bytes().ends_with(b".yaml") && *name != KUSTOMIZATION;
            if let Some(name) = path.file_name().filter(is_definition) {
                // Not fs::copy: files of the module cache are read-only, and a copy of one would be, too.
                fs::write(to.join(name), fs::read(&path)?)?;
                count += 1;
            }
        }
        Ok(count)
    };
    match copy() {
        Ok(0) => Err(format!("there are no definitions of kinds in {}", from.display())),
        Ok(_) => Ok(()),
        Err(error) => Err(format!("cannot copy {} to {}: {error}", from.display(), to.display())),
    }
}

pub fn clear(directory: &Path) -> Result<(), String> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}", directory.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_module() {
        let module = fs::read_to_string(command::root().join(MODULE).join("go.mod")).unwrap();
        assert!(module.contains(&format!("k8s.io/kubernetes {VERSION}\n")), "{VERSION} is not what {MODULE} pins");
        assert_eq!(major_and_minor(VERSION), ("1", "36"));
    }
}

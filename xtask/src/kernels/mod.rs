//! `cargo xtask test kernels`: tests the kernel plane on the kernels that it claims to support, each booted under qemu.
//!
//! Job: unpack Debian's kernels without installing them; boot a guest with its own network in which the built program
//! serves virtual IPs for packets and at the socket, or says that it cannot; report the outcome. Not its job: performance. qemu emulates the CPU,
//! twenty times slower than the host, so that it needs no virtualisation and can boot any kernel.

mod boot;
mod fetch;
mod image;

pub use fetch::mirror;

use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::cargo::metadata;
use crate::command::{command, find_program, run as run_command};
use crate::{setup, test};

/// The expected behaviour of the kernel plane on a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// It serves, attached in this way.
    Serves { by: &'static str },
    /// It is refused with this message.
    Refused,
}

/// A kernel of Debian.
#[derive(Debug)]
struct Kernel {
    /// Its version as in conversation.
    name: &'static str,
    /// The suite of Debian's archive whose generic kernel this is.
    suite: &'static str,
    expect: Expect,
}

/// The oldest one that the documentation names, a newer one that attaches in another way, and one that is too old.
/// Debian has no kernel between 5.10 and 6.1.
const KERNELS: &[Kernel] = &[
    Kernel { name: "5.10", suite: "bullseye", expect: Expect::Refused },
    Kernel { name: "6.1", suite: "bookworm", expect: Expect::Serves { by: "tc" } },
    Kernel { name: "6.12", suite: "bookworm-backports", expect: Expect::Serves { by: "tcx" } },
];

/// The oldest kernel on which the kernel plane is shown to serve.
#[cfg(test)]
pub fn oldest_that_serves() -> &'static str {
    let serving = KERNELS.iter().filter(|kernel| matches!(kernel.expect, Expect::Serves { .. }));
    let oldest =
        serving.min_by_key(|kernel| kernel.name.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>());
    oldest.map_or("", |kernel| kernel.name)
}

/// The compilers that `crates/l4/build.rs` accepts and Debian has. The programs that each one compiles must load.
const CLANGS: &[&str] = &["clang-14", "clang-15", "clang-16", "clang-19"];

/// Boots all of them, or the named ones.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let chosen = chosen(arguments)?;
    setup::install_for("kernels")?;
    let steelyard = test::build_steelyard(&[])?;
    let folder = metadata()?.target_directory.join("kernels");
    let objects = compile(&folder.join("objects"))?;
    let mut failed = Vec::new();
    for kernel in chosen {
        let start = Instant::now();
        let outcome = try_kernel(kernel, &folder.join(kernel.name), &steelyard, &objects);
        let seconds = start.elapsed().as_secs();
        match outcome {
            Ok(said) => println!("kernels: Linux {}: ok, {seconds} s: {said}", kernel.name),
            Err(why) => {
                println!("kernels: Linux {}: FAILED, {seconds} s: {why}", kernel.name);
                failed.push(kernel.name);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("not as expected on Linux {}", failed.join(", "))) }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Kernel>, String> {
    let known: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("usage: cargo xtask test kernels [{}]...; there is no {unknown}", known.join("|")));
    }
    let wanted = |kernel: &&Kernel| names.is_empty() || names.iter().any(|name| name == kernel.name);
    Ok(KERNELS.iter().filter(wanted).collect())
}

fn try_kernel(kernel: &Kernel, folder: &Path, steelyard: &Path, objects: &[PathBuf]) -> Result<String, String> {
    let unpacked = fetch::fetch(kernel.suite, folder)?;
    // On a kernel that is too old, the refusal comes before anything is loaded.
    let objects = if kernel.expect == Expect::Refused { &[] } else { objects };
    let image = image::build(folder, &unpacked, steelyard, objects)?;
    let expect = match kernel.expect {
        Expect::Serves { by } => format!("steelyard.attached_by={by}"),
        Expect::Refused => "steelyard.refused=1".to_owned(),
    };
    boot::boot(&unpacked.image, &image, &expect)
}

/// The programs, compiled by each compiler.
fn compile(folder: &Path) -> Result<Vec<PathBuf>, String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let mut objects = Vec::new();
    for clang in CLANGS.iter().filter(|clang| find_program(clang).is_some()) {
        for (source, name) in [("lb.bpf.c", clang.to_string()), ("socket.bpf.c", format!("{clang}-socket"))] {
            let object = folder.join(format!("{name}.o"));
            let (source, output) = (format!("crates/l4/bpf/{source}"), object.display().to_string());
            // The same flags as in crates/l4/build.rs.
            let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
            let arguments = ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", "-I", &headers];
            run_command(command(clang, &arguments).args(["-c", &source, "-o", &output]))?;
            objects.push(object);
        }
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_chosen_by_name() {
        let check = |names: &[&str], expect: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let chosen = chosen(&names).unwrap();
            assert_eq!(chosen.iter().map(|kernel| kernel.name).collect::<Vec<_>>(), expect);
        };
        check(&[], &["5.10", "6.1", "6.12"]);
        check(&["6.12", "6.1"], &["6.1", "6.12"]);
        assert!(chosen(&["4.19".to_owned()]).unwrap_err().starts_with("usage:"));
    }
}

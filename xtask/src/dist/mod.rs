//! `cargo xtask dist` makes everything that a release publishes, on one Debian host, in `target/dist`.
//!
//! That is: the program (stripped with separate debug symbols, and fully static), the Debian package, the OCI image, the Helm chart, the bill of
//! materials with all licences, and a file of SHA-256 sums. `cargo xtask test dist` tests all of it: see [`trial`]. It publishes nothing. It
//! needs only the Debian packages that `setup` names, and Go for Helm, which renders and checks the chart.
//!
//! Two builds from one commit with one toolchain give the same archives: files are sorted, belong to root, and have the time of the commit.

mod binaries;
mod chart;
mod deb;
pub mod image;
mod inside;
mod minimum;
pub mod pack;
pub mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use crate::cargo::metadata;
use crate::command::{capture, command};
use crate::setup;

pub use chart::{CHART, helm, render_variants};

/// The release that is being made.
#[derive(Clone)]
pub struct Release {
    /// The version of the workspace and of every artifact.
    version: String,
    /// The name of the architecture in the names of archives, and Debian's name.
    architecture: Architecture,
    /// The time of every file in every archive: the time of the commit in seconds since 1970.
    epoch: u64,
    /// The commit; `None` outside a repository.
    revision: Option<String>,
    /// Compress for speed rather than size, for tests.
    quick: bool,
    /// The folder for the artifacts.
    directory: PathBuf,
}

/// The names of one architecture.
#[derive(Clone, Copy, Debug)]
struct Architecture {
    rust: &'static str,
    /// Debian's name, which OCI images use, too.
    debian: &'static str,
}

const ARCHITECTURES: &[Architecture] =
    &[Architecture { rust: "x86_64", debian: "amd64" }, Architecture { rust: "aarch64", debian: "arm64" }];

const USAGE: &str = "usage: cargo xtask dist [render | --profile NAME]";

/// Makes everything, or with `render` regenerates the manifests in `deploy/`. The profile is `release`. Another one (`--profile dev`) is faster to
/// build, but not meant to be published.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let profile = match arguments {
        [] => "release",
        [render] if render == "render" => return chart::write_committed(),
        [flag, name] if flag == "--profile" => name.as_str(),
        _ => return Err(USAGE.into()),
    };
    setup::install_for("dist")?;
    let release = Release::new()?;
    fresh(&release.directory)?;
    let built = binaries::build(profile)?;
    let made = make(&release, &built)?;
    println!("\n{}", list(&release, &made)?);
    Ok(())
}

/// Makes only the image, with the program that the tests use.
pub fn image_for_tests(release: &Release) -> Result<PathBuf, String> {
    let programs = binaries::separate(release, &binaries::build_for_tests()?)?;
    image::build(release, &programs.static_, &inside::write(release)?, &release.image())
}

/// Builds the static program of another source tree, and copies it to `to`.
pub fn build_static(source: &Path, to: &Path) -> Result<(), String> {
    binaries::build_static(source, to)
}

/// Makes an image of a static program that [`build_static`] has built, with this name.
pub fn image_of(release: &Release, program: &Path, reference: &str) -> Result<PathBuf, String> {
    let built = binaries::Built { dynamic: program.to_owned(), static_: program.to_owned() };
    let programs = binaries::separate(release, &built)?;
    image::build(release, &programs.static_, &inside::write(release)?, reference)
}

/// Makes all artifacts from these programs.
fn make(release: &Release, built: &binaries::Built) -> Result<Vec<PathBuf>, String> {
    let minimum = minimum::stated()?;
    let inside = inside::write(release)?;
    let programs = binaries::separate(release, built)?;
    minimum::hold(&minimum, &programs.dynamic)?;
    let mut made = vec![
        binaries::archive(release, &programs, &inside)?,
        binaries::archive_of_symbols(release, &programs)?,
        deb::build(release, &release.version, &programs.dynamic, &inside, &minimum)?,
        image::build(release, &programs.static_, &inside, &release.image())?,
        chart::package(release)?,
    ];
    made.extend(inside.files());
    Ok(made)
}

impl Release {
    /// A release for tests, compressed for speed, in a separate folder.
    pub fn for_tests(folder: &str) -> Result<Self, String> {
        Ok(Self { directory: metadata()?.target_directory.join(folder), quick: true, ..Self::new()? })
    }

    fn new() -> Result<Self, String> {
        let metadata = metadata()?;
        let architecture = ARCHITECTURES.iter().find(|known| known.rust == std::env::consts::ARCH);
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            architecture: *architecture.ok_or(format!("nothing is known of {}", std::env::consts::ARCH))?,
            epoch: epoch()?,
            revision: capture(&mut command("git", &["rev-parse", "HEAD"])).ok().map(|text| text.trim().to_owned()),
            quick: false,
            directory: metadata.target_directory.join("dist"),
        })
    }

    /// An empty folder for the parts of one artifact.
    pub fn stage(&self, name: &str) -> Result<PathBuf, String> {
        let folder = self.directory.join("stage").join(name);
        fresh(&folder)?;
        Ok(folder)
    }

    /// The name of the image.
    fn image(&self) -> String {
        format!("localhost/steelyard:{}", self.version)
    }

    /// A file name that begins with `steelyard-0.1.0-linux-amd64`.
    fn file(&self, ending: &str) -> PathBuf {
        self.directory.join(format!("steelyard-{}-linux-{}{ending}", self.version, self.architecture.debian))
    }

    /// [`Self::epoch`] as RFC 3339 writes it.
    fn time(&self) -> Result<String, String> {
        let at = format!("@{}", self.epoch);
        Ok(capture(&mut command("date", &["--utc", "--date", &at, "+%Y-%m-%dT%H:%M:%SZ"]))?.trim().to_owned())
    }
}

/// `SOURCE_DATE_EPOCH`, or else the time of the commit, or outside a repository that of the changelog.
fn epoch() -> Result<u64, String> {
    if let Ok(said) = std::env::var("SOURCE_DATE_EPOCH") {
        return said.parse().map_err(|_| format!("SOURCE_DATE_EPOCH is `{said}`: it must be seconds since 1970"));
    }
    let commit = capture(&mut command("git", &["log", "-1", "--format=%ct"]));
    let time = commit.or_else(|_| capture(&mut command("stat", &["--format=%Y", "CHANGELOG.md"])))?;
    time.trim().parse().map_err(|_| format!("the time of the commit is `{}`", time.trim()))
}

/// Prints the names, sizes and SHA-256 sums, and writes the sums beside the artifacts.
fn list(release: &Release, made: &[PathBuf]) -> Result<String, String> {
    let mut text = String::new();
    let mut sums = String::new();
    for path in made {
        let sum = pack::sha256(path)?;
        let size = pack::size(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        text += &format!("{size:>11}  {sum}  {name}\n");
        sums += &format!("{sum}  {name}\n");
    }
    pack::write(&release.directory.join("SHA256SUMS"), &sums)?;
    Ok(text + &format!("in {}", release.directory.display()))
}

/// Creates the folder, or empties it.
fn fresh(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(format!("cannot remove {}: {error}", folder.display()));
        }
        _ => {}
    }
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_said() {
        assert_eq!(run(&["--quick".into()]).unwrap_err(), USAGE);
    }
}

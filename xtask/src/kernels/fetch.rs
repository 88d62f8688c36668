//! Gets the newest kernel of a suite from Debian's archive, unpacked into a folder of ours.
//!
//! apt gets its own lists, so that the sources of this host do not change. It asks the host's mirror first, and then
//! Debian's archive of suites that mirrors no longer have. Existing files are not fetched again.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{capture, command, run as run_command};

/// The keyring that signs every suite.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Suites move here when they leave the mirrors, some years after their release.
const ARCHIVE: &str = "http://archive.debian.org/debian";

/// A kernel on the disk of this host.
pub struct Unpacked {
    /// The kernel to boot.
    pub image: PathBuf,
    /// The folder of its modules.
    pub modules: PathBuf,
}

/// Returns the generic kernel of `suite`, in `folder`.
pub fn fetch(suite: &str, folder: &Path) -> Result<Unpacked, String> {
    let root = folder.join("root");
    if let Some(unpacked) = find(&root) {
        return Ok(unpacked);
    }
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let apt = folder.join("apt");
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(apt.join(part)).map_err(failed)?;
    }
    let package = download_from(&[&mirror()?, ARCHIVE], suite, &apt)?;
    let fetched = files(&apt).into_iter().find(|path| path.extension().is_some_and(|ending| ending == "deb"));
    let fetched = fetched.ok_or_else(|| format!("apt-get has not left {package} in {}", apt.display()))?;
    // It has another name until it is complete.
    let partial = folder.join("partial");
    let words = [fetched.display().to_string(), partial.display().to_string()];
    run_command(command("dpkg-deb", &["--extract"]).args(&words))?;
    fs::remove_dir_all(&apt).and_then(|()| fs::rename(&partial, &root)).map_err(failed)?;
    find(&root).ok_or_else(|| format!("{package} contains no kernel"))
}

/// Downloads the package of the newest kernel from the first of these sources that has it, and returns its name.
fn download_from(sources: &[&str], suite: &str, apt: &Path) -> Result<String, String> {
    let mut errors = Vec::new();
    for source in sources {
        match download(source, suite, apt) {
            Ok(package) => return Ok(package),
            Err(error) => errors.push(format!("{source}:\n{}", error.trim_end())),
        }
    }
    Err(format!(
        "no source has the kernel of Debian's suite {suite}. Either this host cannot reach them, or Debian has removed the suite: then change \
         KERNELS in xtask/src/kernels/mod.rs, which names the suites, or ARCHIVE in xtask/src/kernels/fetch.rs. What apt says:\n{}",
        errors.join("\n")
    ))
}

fn download(source: &str, suite: &str, apt: &Path) -> Result<String, String> {
    let list = format!("deb [signed-by={KEYRING}] {source} {suite} main\n");
    fs::write(apt.join("sources.list"), list).map_err(|error| format!("{}: {error}", apt.display()))?;
    let options = options(apt);
    capture(command("apt-get", &[]).args(&options).args(["--quiet", "--quiet", "--error-on=any", "update"]))?;
    let depends = capture(command("apt-cache", &[]).args(&options).args(["depends", "linux-image-amd64"]))?;
    let package = image_package(&depends).ok_or_else(|| format!("{suite} has no linux-image-amd64"))?;
    let download = ["--quiet", "--quiet", "download", package];
    capture(command("apt-get", &[]).args(&options).args(download).current_dir(apt))?;
    Ok(package.to_owned())
}

fn options(apt: &Path) -> Vec<String> {
    let apt = apt.display();
    [
        format!("Dir::Etc::sourcelist={apt}/sources.list"),
        "Dir::Etc::sourceparts=-".to_owned(),
        format!("Dir::State::lists={apt}/lists"),
        format!("Dir::Cache={apt}/cache"),
        // The lists of an archived suite are no longer renewed.
        "Acquire::Check-Valid-Until=false".to_owned(),
        // The other user may not be able to read the folders of the one who builds here.
        "APT::Sandbox::User=root".to_owned(),
    ]
    .into_iter()
    .flat_map(|option| ["--option".to_owned(), option])
    .collect()
}

/// The mirror of this host.
pub fn mirror() -> Result<String, String> {
    let targets = ["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"];
    let known = capture(&mut command("apt-get", &targets))?;
    let debian = known.lines().find(|line| line.trim_end_matches('/').ends_with("/debian"));
    debian.map(str::to_owned).ok_or_else(|| "this host has no sources of Debian's packages".into())
}

/// The dependency of the package that always depends on the newest kernel.
fn image_package(depends: &str) -> Option<&str> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
}

fn find(root: &Path) -> Option<Unpacked> {
    let image = files(&root.join("boot"))
        .into_iter()
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")))?;
    let modules = ["lib/modules", "usr/lib/modules"].iter().find_map(|place| files(&root.join(place)).pop())?;
    Some(Unpacked { image, modules })
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_a_dependency() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-50-amd64\n  Conflicts: x\n";
        assert_eq!(image_package(depends), Some("linux-image-6.1.0-50-amd64"));
        assert_eq!(image_package("linux-image-amd64\n"), None);
    }

    #[test]
    fn a_suite_that_is_nowhere_is_told_of() {
        let apt = std::env::temp_dir().join(format!("steelyard-kernels-{}", std::process::id()));
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(apt.join(part)).unwrap();
        }
        // Nothing listens there.
        let (first, second) = ("http://127.0.0.1:9/debian", "http://127.0.0.1:9/archive");
        let error = download_from(&[first, second], "bullseye", &apt).unwrap_err();
        fs::remove_dir_all(&apt).unwrap();
        for words in ["suite bullseye", "xtask/src/kernels/mod.rs", &format!("{first}:\n"), &format!("{second}:\n")] {
            assert!(error.contains(words), "{words:?} is not in {error}");
        }
    }
}

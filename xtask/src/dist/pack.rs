//! Reproducible files and archives: sorted, owned by root, and with one time.

use std::fs;
use std::path::Path;

use super::Release;
use crate::command::{capture, command, run as run_command};

/// Writes a file, and creates the folders above it.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).map_err(failed)?;
    fs::write(path, content).map_err(failed)
}

/// Copies a file with its mode, and creates the folders above it.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot copy {} to {}: {error}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(failed)?;
    fs::copy(from, to).map(drop).map_err(failed)
}

/// Reads a file that must exist.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

pub fn size(path: &Path) -> Result<u64, String> {
    fs::metadata(path).map(|about| about.len()).map_err(|error| format!("{}: {error}", path.display()))
}

/// The SHA-256 sum of a file. coreutils computes it, which saves a dependency.
pub fn sha256(path: &Path) -> Result<String, String> {
    let said = capture(&mut command("sha256sum", &[&path.to_string_lossy()]))?;
    Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Makes a tar archive of a folder: of `names` in it, or of everything.
///
/// Every file gets the permissions of its owner for everybody, so that the umask of this host does not matter.
pub fn tar(release: &Release, folder: &Path, names: &[&str], archive: &Path) -> Result<(), String> {
    let (folder, archive) = (folder.to_string_lossy(), archive.to_string_lossy());
    let time = format!("--mtime=@{}", release.epoch);
    let mut words = vec!["--create", "--file", &*archive, "--directory", &*folder, "--format=gnu", "--sort=name"];
    words.extend([&*time, "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=rX"]);
    words.extend(if names.is_empty() { &["."] } else { names });
    run_command(&mut command("tar", &words))
}

/// Compresses `FILE` to `FILE.gz`, without name and time.
pub fn gzip(release: &Release, path: &Path) -> Result<(), String> {
    let level = if release.quick { "-1" } else { "-9" };
    run_command(&mut command("gzip", &[level, "--no-name", "--force", &path.to_string_lossy()]))
}

#[cfg(test)]
mod tests {
    use super::super::{ARCHITECTURES, fresh};
    use super::*;

    #[test]
    fn archives_of_the_same_files_are_alike() {
        let directory = std::env::temp_dir().join(format!("steelyard-pack-{}", std::process::id()));
        fresh(&directory).unwrap();
        let release = Release {
            version: "1.2.3".into(),
            architecture: ARCHITECTURES[0],
            epoch: 1_700_000_000,
            revision: None,
            quick: true,
            directory: directory.clone(),
        };
        let sums: Vec<String> = [["b", "a"], ["a", "b"]]
            .iter()
            .map(|names| {
                let folder = release.stage("files").unwrap();
                names.iter().for_each(|name| write(&folder.join(name), name).unwrap());
                let archive = directory.join("files.tar");
                tar(&release, &folder, &[], &archive).unwrap();
                sha256(&archive).unwrap()
            })
            .collect();
        assert_eq!(sums[0].len(), 64);
        assert_eq!(sums[0], sums[1]);
        assert_eq!(release.time().unwrap(), "2023-11-14T22:13:20Z");
        fs::remove_dir_all(directory).unwrap();
    }
}

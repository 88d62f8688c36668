//! The Debian package. This module stages its files, and dpkg-deb packs them.
//!
//! `build` lists the files. The scripts that run at installation and removal are in `packaging/debian`, the units in `packaging/systemd`.

use std::path::{Path, PathBuf};

use super::inside::Inside;
use super::minimum::Minimum;
use super::{Release, binaries, pack};
use crate::command::{capture, command, root, run as run_command};

/// The package of each library that the program may need. glibc's package has a minimum version.
const LIBRARIES: &[(&str, &str)] = &[
    ("libelf.so.1", "libelf1"),
    ("libz.so.1", "zlib1g"),
    ("libgcc_s.so.1", "libgcc-s1"),
    ("libc.so.6", GLIBC),
    ("libm.so.6", GLIBC),
    ("ld-linux-x86-64.so.2", GLIBC),
    ("ld-linux-aarch64.so.1", GLIBC),
];
const GLIBC: &str = "libc6";

/// The scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Configuration files: dpkg keeps an administrator's changes to them.
const CONFFILES: &str = "/etc/steelyard/steelyard.yaml\n";

/// Packs the program under this version, which is that of the release, except when an upgrade is tested.
pub fn build(
    release: &Release,
    version: &str,
    program: &Path,
    inside: &Inside,
    minimum: &Minimum,
) -> Result<PathBuf, String> {
    let stage = release.stage("deb")?;
    let repository = root();
    let put = |from: &str, to: &str| pack::copy(&repository.join(from), &stage.join(to));
    pack::copy(program, &stage.join("usr/bin/steelyard"))?;
    put("packaging/debian/steelyard.yaml", "etc/steelyard/steelyard.yaml")?;
    for unit in ["steelyard.service", "steelyard.socket"] {
        put(&format!("packaging/systemd/{unit}"), &format!("usr/lib/systemd/system/{unit}"))?;
    }
    let documents = stage.join("usr/share/doc/steelyard");
    put("packaging/systemd/kernel-plane.conf", "usr/share/doc/steelyard/examples/kernel-plane.conf")?;
    for example in examples(&repository)? {
        put(&format!("examples/{example}"), &format!("usr/share/doc/steelyard/examples/{example}"))?;
    }
    put("packaging/debian/copyright", "usr/share/doc/steelyard/copyright")?;
    pack::copy(&repository.join("CHANGELOG.md"), &documents.join("changelog"))?;
    pack::copy(&inside.licences, &documents.join("third-party-licences.txt"))?;
    for text in ["changelog", "third-party-licences.txt"] {
        pack::gzip(release, &documents.join(text))?;
    }
    generated(release, program, &stage)?;
    control(release, version, program, minimum, &stage)?;
    tidy_modes(&stage)?;
    let package = file(release, version);
    let compression = if release.quick { "-Znone" } else { "-Zxz" };
    let words = ["--root-owner-group", compression, "--build", &*stage.to_string_lossy(), &*package.to_string_lossy()];
    run_command(command("dpkg-deb", &words).env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    Ok(package)
}

/// The file of the package of this version.
pub fn file(release: &Release, version: &str) -> PathBuf {
    release.directory.join(format!("steelyard_{version}_{}.deb", release.architecture.debian))
}

fn examples(repository: &Path) -> Result<Vec<String>, String> {
    let folder = repository.join("examples");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(failed)? {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Writes man pages and completions, which the program generates.
fn generated(release: &Release, program: &Path, stage: &Path) -> Result<(), String> {
    let program = program.to_string_lossy();
    let man = stage.join("usr/share/man/man1");
    std::fs::create_dir_all(&man).map_err(|error| format!("cannot make {}: {error}", man.display()))?;
    run_command(&mut command(&program, &["man", &man.to_string_lossy()]))?;
    for page in std::fs::read_dir(&man).map_err(|error| format!("{}: {error}", man.display()))? {
        pack::gzip(release, &page.map_err(|error| format!("{}: {error}", man.display()))?.path())?;
    }
    for (shell, place) in [
        ("bash", "bash-completion/completions/steelyard"),
        ("zsh", "zsh/vendor-completions/_steelyard"),
        ("fish", "fish/vendor_completions.d/steelyard.fish"),
    ] {
        let script = capture(&mut command(&program, &["completions", shell]))?;
        pack::write(&stage.join("usr/share").join(place), script)?;
    }
    Ok(())
}

/// Writes the metadata for dpkg.
fn control(release: &Release, version: &str, program: &Path, minimum: &Minimum, stage: &Path) -> Result<(), String> {
    let folder = stage.join("DEBIAN");
    let size = capture(&mut command(
        "du",
        &["--summarize", "--apparent-size", "--block-size=1024", &stage.to_string_lossy()],
    ))?;
    let text = pack::read(&root().join("packaging/debian/control"))?
        .replace("@VERSION@", version)
        .replace("@ARCHITECTURE@", release.architecture.debian)
        .replace("@INSTALLED_SIZE@", size.split_whitespace().next().unwrap_or_default())
        .replace("@LIBRARIES@", &depends(&binaries::needed(program)?, &minimum.glibc)?);
    pack::write(&folder.join("control"), text)?;
    pack::write(&folder.join("conffiles"), CONFFILES)?;
    for script in SCRIPTS {
        pack::copy(&root().join("packaging/debian").join(script), &folder.join(script))?;
    }
    let sums =
        "find . -path ./DEBIAN -prune -o -type f -printf '%P\\n' | LC_ALL=C sort | xargs md5sum > DEBIAN/md5sums";
    run_command(command("sh", &["-ec", sums]).current_dir(stage))
}

/// The packages of the libraries that a program needs.
fn depends(needed: &[String], glibc: &str) -> Result<String, String> {
    let mut packages = Vec::new();
    for library in needed {
        let known = LIBRARIES.iter().find(|(name, _)| name == library);
        let (_, package) = known.ok_or_else(|| {
            format!("the program needs {library}: name its Debian package in xtask/src/dist/deb.rs, or do without it")
        })?;
        packages.push(if *package == GLIBC { format!("{GLIBC} (>= {glibc})") } else { (*package).to_owned() });
    }
    packages.sort();
    packages.dedup();
    Ok(packages.join(", "))
}

/// Makes programs and scripts executable, and all other files readable, for everybody.
fn tidy_modes(stage: &Path) -> Result<(), String> {
    let folder = stage.to_string_lossy();
    run_command(&mut command("chmod", &["--recursive", "u=rwX,go=rX", &folder]))?;
    run_command(&mut command("find", &[&folder, "-type", "f", "-exec", "chmod", "0644", "{}", "+"]))?;
    let mut runs: Vec<String> = SCRIPTS.iter().map(|script| format!("{folder}/DEBIAN/{script}")).collect();
    runs.push(format!("{folder}/usr/bin/steelyard"));
    run_command(command("chmod", &["0755"]).args(&runs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_become_packages() {
        let check = |needed: &[&str], expect: Result<&str, &str>| {
            let needed: Vec<String> = needed.iter().map(ToString::to_string).collect();
            match (depends(&needed, "2.36"), expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, expect),
                (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
                (found, _) => panic!("{found:?}"),
            }
        };
        check(&["libz.so.1", "libc.so.6", "libm.so.6"], Ok("libc6 (>= 2.36), zlib1g"));
        check(&["libssl.so.3"], Err("the program needs libssl.so.3: name its Debian package"));
    }

    #[test]
    fn every_template_of_the_control_file_is_filled() {
        let text = pack::read(&root().join("packaging/debian/control")).unwrap();
        for name in ["VERSION", "ARCHITECTURE", "INSTALLED_SIZE", "LIBRARIES"] {
            assert!(text.contains(&format!("@{name}@")), "{name}");
        }
    }
}

//! The parts that are no crates of their own: C libraries that crates bring or the host has, and the libraries of the two compilers.
//!
//! The program of the Debian package names libelf, zlib and glibc and takes them from the host; the static program contains them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Part, purl};
use crate::command::{capture, command, root};

/// A library of Debian that the static program contains.
struct Library {
    name: &'static str,
    /// The package that has `NAME.a`.
    package: &'static str,
    licence: &'static str,
    /// Texts that Debian keeps once for all packages.
    common: &'static [&'static str],
}

const LIBRARIES: &[Library] = &[
    Library {
        name: "libelf",
        package: "libelf-dev",
        licence: "LGPL-3.0-or-later OR GPL-2.0-or-later",
        common: &["LGPL-3", "GPL-3"],
    },
    Library { name: "zlib", package: "zlib1g-dev", licence: "Zlib", common: &[] },
    Library { name: "glibc", package: "libc6-dev", licence: "LGPL-2.1-or-later", common: &["LGPL-2.1"] },
    Library {
        name: "libgcc",
        package: "libgcc-s1",
        licence: "GPL-3.0-or-later WITH GCC-exception-3.1",
        common: &["GPL-3"],
    },
];

/// What a crate brings, and builds: its name, the crate, and the licence.
const BROUGHT: &[(&str, &str, &str)] = &[("libbpf", "libbpf-sys", "LGPL-2.1-only OR BSD-2-Clause")];

/// All of them.
pub fn parts(crates: &BTreeMap<String, Part>) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for library in LIBRARIES {
        parts.push(of_debian(library)?);
    }
    parts.push(of_rust()?);
    for (name, of, licence) in BROUGHT {
        parts.push(brought(name, of, licence, crates)?);
    }
    Ok(parts)
}

fn of_debian(library: &Library) -> Result<Part, String> {
    let format = "--showformat=${source:Package} ${Version}";
    let said = capture(&mut command("dpkg-query", &["--show", format, library.package]))?;
    let (source, version) = said.split_once(' ').ok_or_else(|| format!("dpkg-query says `{said}`"))?;
    let mut texts = vec![PathBuf::from(format!("/usr/share/doc/{}/copyright", library.package))];
    texts.extend(library.common.iter().map(|name| Path::new("/usr/share/common-licenses").join(name)));
    Ok(Part {
        name: library.name.to_owned(),
        version: version.to_owned(),
        licence: library.licence.to_owned(),
        // The name is that of the source package, under which Debian tells of vulnerabilities.
        purl: purl("deb", &format!("debian/{source}"), version) + "?arch=source",
        sha256: None,
        texts,
        uses: Vec::new(),
    })
}

/// Rust's standard library.
fn of_rust() -> Result<Part, String> {
    let version = capture(&mut command("rustc", &["--version"]))?;
    let version = version.split_whitespace().nth(1).unwrap_or_default().to_owned();
    Ok(Part {
        name: "rust-std".to_owned(),
        purl: purl("generic", "rust-std", &version),
        version,
        licence: "MIT OR Apache-2.0".to_owned(),
        sha256: None,
        texts: vec![root().join("LICENSE")],
        uses: Vec::new(),
    })
}

/// `1.7.0+v1.7.0`: behind the `+` is the version of the library. Its texts are among those of the crate.
fn brought(name: &str, of: &str, licence: &str, crates: &BTreeMap<String, Part>) -> Result<Part, String> {
    let part = crates.values().find(|part| part.name == of).ok_or_else(|| format!("{of} is no longer inside"))?;
    let version = part.version.split_once("+v").map_or(&*part.version, |(_, version)| version).to_owned();
    Ok(Part {
        name: name.to_owned(),
        purl: purl("generic", name, &version),
        version,
        licence: licence.to_owned(),
        sha256: None,
        texts: part.texts.clone(),
        uses: Vec::new(),
    })
}

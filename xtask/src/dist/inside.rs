//! What the programs contain: a bill of materials (CycloneDX 1.5, JSON), and the licence of each part.
//!
//! `cargo tree` names the crates for the features that are built; versions and checksums come from the lock file. [`native`] has the parts that
//! are not crates: C libraries, and Rust's own.

mod licence;
mod native;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Release, pack};
use crate::command::{capture, cargo, root};

/// The two files of a release.
pub struct Inside {
    pub materials: PathBuf,
    pub licences: PathBuf,
}

impl Inside {
    pub fn files(&self) -> Vec<PathBuf> {
        vec![self.materials.clone(), self.licences.clone()]
    }
}

/// A part of the program that other people wrote.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    name: String,
    version: String,
    /// The licence as an SPDX expression.
    licence: String,
    /// The package URL, such as `pkg:cargo/bytes@1.12.1`.
    purl: String,
    /// The checksum of its archive in the registry.
    sha256: Option<String>,
    /// The texts of its licences, in the order in which they are shown.
    texts: Vec<PathBuf>,
    /// The crates that it uses, as `name@version`.
    uses: Vec<String>,
}

/// Writes both files.
pub fn write(release: &Release) -> Result<Inside, String> {
    let crates = crates()?;
    let native = native::parts(&crates)?;
    let mut parts: Vec<Part> = crates.into_values().chain(native).collect();
    parts.sort();
    let inside = at(release);
    pack::write(&inside.materials, format!("{:#}\n", materials_of(release, &parts)?))?;
    pack::write(&inside.licences, licence::texts(&parts)?)?;
    println!("dist: {} parts of others are inside", parts.len());
    Ok(inside)
}

/// The names of both files.
pub fn at(release: &Release) -> Inside {
    let file = |ending: &str| release.directory.join(format!("steelyard-{}{ending}", release.version));
    Inside { materials: file(".cdx.json"), licences: file("-third-party-licences.txt") }
}

/// Other people's crates, by `name@version`.
fn crates() -> Result<BTreeMap<String, Part>, String> {
    // Crates that are linked into the program, and not those that only build it.
    let tree = ["tree", "--locked", "--package", "steelyard", "--edges", "normal", "--prefix", "depth"];
    let tree = capture(&mut cargo(&[&tree[..], &["--format", " {p}"]].concat()))?;
    let metadata = capture(&mut cargo(&["metadata", "--locked", "--format-version=1"]))?;
    let metadata: Value =
        serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata wrote bad JSON: {error}"))?;
    let lock = pack::read(&root().join("Cargo.lock"))?;
    let sums = sums(&lock);
    let arrows = arrows(&tree);
    let mut parts = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
        let key = format!("{}@{}", text("name"), text("version"));
        let Some(uses) = arrows.get(&key).filter(|_| package["source"].is_string()) else { continue };
        let folder = PathBuf::from(text("manifest_path")).parent().map(PathBuf::from).unwrap_or_default();
        let part = Part {
            name: text("name"),
            version: text("version"),
            // Old manifests write a slash for `OR`.
            licence: text("license").replace('/', " OR "),
            purl: purl("cargo", &text("name"), &text("version")),
            sha256: sums.get(&key).cloned(),
            texts: licence::files(&folder, &text("name"))?,
            uses: uses.clone(),
        };
        parts.insert(key, part);
    }
    Ok(parts)
}

/// A package URL. All other characters of a version are percent-encoded; only `+` occurs.
fn purl(kind: &str, name: &str, version: &str) -> String {
    let mut purl = format!("pkg:{kind}/{name}@");
    for byte in version.bytes() {
        match byte {
            b'.' | b'-' | b'_' | b'~' | b':' => purl.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => purl.push(char::from(byte)),
            _ => purl += &format!("%{byte:02X}"),
        }
    }
    purl
}

/// The dependencies of each crate, read from what `cargo tree --prefix depth` prints, such as `0 steelyard v0.1.0 (path)`. It prints the
/// dependencies of a crate only the first time.
fn arrows(tree: &str) -> BTreeMap<String, Vec<String>> {
    let mut arrows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut way: Vec<String> = Vec::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        let (Some(depth), Some(name), Some(version)) = (words.next(), words.next(), words.next()) else { continue };
        let Ok(depth) = depth.parse::<usize>() else { continue };
        let key = format!("{name}@{}", version.trim_start_matches('v'));
        way.truncate(depth);
        if let Some(user) = way.last() {
            let uses = arrows.entry(user.clone()).or_default();
            if !uses.contains(&key) {
                uses.push(key.clone());
            }
        }
        arrows.entry(key.clone()).or_default();
        way.push(key);
    }
    arrows.values_mut().for_each(|uses| uses.sort());
    arrows
}

/// The checksums of the lock file, by `name@version`.
fn sums(lock: &str) -> BTreeMap<String, String> {
    let value = |part: &str, key: &str| {
        let line = part.lines().find_map(|line| line.strip_prefix(&format!("{key} = ")))?;
        Some(line.trim_matches('"').to_owned())
    };
    let parts = lock.split("[[package]]");
    let sum = |part| Some((format!("{}@{}", value(part, "name")?, value(part, "version")?), value(part, "checksum")?));
    parts.filter_map(sum).collect()
}

fn materials_of(release: &Release, parts: &[Part]) -> Result<Value, String> {
    let component = |part: &Part| {
        let mut component = json!({
            "type": "library",
            "bom-ref": part.purl,
            "name": part.name,
            "version": part.version,
            "purl": part.purl,
            "licenses": [{"expression": part.licence}],
        });
        if let Some(sum) = &part.sha256 {
            component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
        }
        component
    };
    let part_of = |key: &String| parts.iter().find(|part| format!("{}@{}", part.name, part.version) == *key);
    let uses = |part: &Part| part.uses.iter().filter_map(part_of).map(|used| used.purl.clone()).collect::<Vec<_>>();
    let own = purl("generic", "steelyard", &release.version);
    let mut dependencies = vec![json!({
        "ref": own,
        "dependsOn": parts.iter().map(|part| &part.purl).collect::<Vec<_>>(),
    })];
    dependencies.extend(parts.iter().map(|part| json!({"ref": part.purl, "dependsOn": uses(part)})));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": release.time()?,
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "steelyard",
                "version": release.version,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": parts.iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0 steelyard v0.1.0 (/x)\n1 bytes v1.12.1\n1 http v1.5.0\n2 bytes v1.12.1\n2 itoa v1.0.18\n1 lab v0.1.0 (/y)\n2 http v1.5.0\n3 bytes v1.12.1\n";

    #[test]
    fn arrows_of_a_tree() {
        let arrows = arrows(TREE);
        assert_eq!(arrows["http@1.5.0"], ["bytes@1.12.1", "itoa@1.0.18"]);
        assert_eq!(arrows["steelyard@0.1.0"], ["bytes@1.12.1", "http@1.5.0", "lab@0.1.0"]);
        assert!(arrows["bytes@1.12.1"].is_empty());
    }

    #[test]
    fn package_urls() {
        assert_eq!(purl("cargo", "toml", "1.2.1+spec-1.1.0"), "pkg:cargo/toml@1.2.1%2Bspec-1.1.0");
        assert_eq!(purl("deb", "debian/zlib", "1:1.2.13.dfsg-1"), "pkg:deb/debian/zlib@1:1.2.13.dfsg-1");
    }

    #[test]
    fn every_crate_has_a_sum_a_licence_and_its_text() {
        let crates = crates().unwrap();
        assert!(crates.len() > 100 && crates.contains_key(&*format!("rustls@{}", crates_version(&crates, "rustls"))));
        for (key, part) in &crates {
            assert!(part.sha256.as_ref().is_some_and(|sum| sum.len() == 64), "{key} has no sum");
            assert!(!part.licence.is_empty() && !part.texts.is_empty(), "{key} has no licence");
        }
        // Crates that only tests or builds use.
        assert!(!crates.keys().any(|key| key.starts_with("proptest@") || key.starts_with("libbpf-cargo@")));
        let parts: Vec<Part> = crates.into_values().collect();
        assert!(licence::texts(&parts).unwrap().contains("Apache License"));
    }

    fn crates_version(crates: &BTreeMap<String, Part>, name: &str) -> String {
        crates.values().find(|part| part.name == name).map(|part| part.version.clone()).unwrap_or_default()
    }
}

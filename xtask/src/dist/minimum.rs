//! The oldest compiler, kernel and C library. `Cargo.toml` states them, in `rust-version` and under `[workspace.metadata.minimum]`.
//!
//! Everything else that depends on them is checked against these: the page on installation, the message that refuses an old kernel, the kernels
//! that the tests boot, and the symbols that the program needs from its C library.

use std::path::Path;

use serde_json::Value;

use crate::command::{capture, cargo, command};

/// The stated versions.
#[derive(Debug, PartialEq, Eq)]
pub struct Minimum {
    pub rust: String,
    pub kernel: String,
    pub glibc: String,
}

/// Reads them from cargo's metadata.
pub fn stated() -> Result<Minimum, String> {
    let text = capture(&mut cargo(&["metadata", "--format-version=1", "--no-deps"]))?;
    let value: Value =
        serde_json::from_str(&text).map_err(|error| format!("cargo metadata wrote bad JSON: {error}"))?;
    let said = |value: &Value, what: &str| {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("Cargo.toml does not state the oldest {what}"))
    };
    let minimum = &value["metadata"]["minimum"];
    Ok(Minimum {
        rust: said(&value["packages"][0]["rust_version"], "Rust")?,
        kernel: said(&minimum["kernel"], "kernel")?,
        glibc: said(&minimum["glibc"], "glibc")?,
    })
}

/// Checks that the program runs with the stated C library.
pub fn hold(minimum: &Minimum, program: &Path) -> Result<(), String> {
    let symbols = capture(&mut command("objdump", &["--dynamic-syms", &program.to_string_lossy()]))?;
    let asked = newest_glibc(&symbols).ok_or_else(|| format!("{} asks for no symbol of glibc", program.display()))?;
    println!("dist: the program needs glibc {asked}; Cargo.toml states {}", minimum.glibc);
    if parts(&asked) <= parts(&minimum.glibc) {
        return Ok(());
    }
    Err(format!(
        "the program needs glibc {asked}, and Cargo.toml states {}: build on an older Debian, or state {asked} there and in docs/install.md",
        minimum.glibc
    ))
}

/// The newest version among texts such as `(GLIBC_2.34)`.
fn newest_glibc(symbols: &str) -> Option<String> {
    let versions = symbols.split("GLIBC_").skip(1);
    let versions =
        versions.map(|rest| rest.split(|c: char| c != '.' && !c.is_ascii_digit()).next().unwrap_or_default());
    versions.filter(|version| !version.is_empty()).max_by_key(|version| parts(version)).map(str::to_owned)
}

/// The parts of a version as numbers: `2.36` is newer than `2.4`.
fn parts(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::root;
    use crate::kernels;

    #[test]
    fn finds_the_newest_symbol() {
        let check = |symbols: &str, expect: Option<&str>| assert_eq!(newest_glibc(symbols).as_deref(), expect);
        check("DF *UND* 0 (GLIBC_2.4)  x\nDF *UND* 0 (GLIBC_2.34) y\nDF *UND* 0 (GLIBC_2.2.5) z\n", Some("2.34"));
        check("DF *UND* 0 (GLIBC_PRIVATE) x\n", None);
        check("", None);
        assert!(parts("2.36") > parts("2.4") && parts("2.2.5") < parts("2.4"));
    }

    #[test]
    fn said_alike_everywhere() {
        let minimum = stated().unwrap();
        let page = std::fs::read_to_string(root().join("docs/install.md")).unwrap();
        for sentence in [
            format!("Linux {} or newer", minimum.kernel),
            format!("glibc {} or newer", minimum.glibc),
            format!("Rust {} or newer", minimum.rust),
        ] {
            assert!(page.contains(&sentence), "docs/install.md does not say `{sentence}`, which Cargo.toml states");
        }
        let refusal = std::fs::read_to_string(root().join("crates/l4/src/refusal.rs")).unwrap();
        assert!(refusal.contains(&format!("Linux {} or newer", minimum.kernel)), "crates/l4/src/refusal.rs");
        assert_eq!(kernels::oldest_that_serves(), minimum.kernel, "KERNELS in xtask/src/kernels/mod.rs");
    }
}
